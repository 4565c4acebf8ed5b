/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the parts of cow_bench share
 *
 * A file names only functions of files below it, the helpers and libc (a workload
 * brings its own functions, as pointers in its struct):
 *
 * cow_bench.c            plan: options, cases, settings; the supervisor
 * cow_bench_report.c     report: rows, for people and as JSON
 * cow_bench_run.c        run: one repetition in a fresh process
 * cow_bench_workloads.c  the workloads, most of them orders of writing
 * cow_bench_programs.c   those that are programs of their own
 * cow_bench_rep.c        memory, children, writing
 * cow_bench_count.c      count: the kernel's counters, frame numbers
 * cow_bench_loop.c       the clock, and the loops that are measured
 * cow_bench_guest.c      writes by a KVM guest
 * cow_bench_host.c       CPUs, settings, memory that a fork leaves alone
 *
 * A case is a workload with a configuration and a size. It is run several
 * times, with fresh memory each time, in three kinds of pass:
 *
 * - counting: with the kernel's counters on, and looking at frame numbers
 *   before and after. It comes first and so warms up as well.
 * - timing: one clock reading before and one after the writes, nothing else
 * - latency: one clock reading before and one after each write
 */
#ifndef __COW_BENCH_H
#define __COW_BENCH_H

#include <linux/types.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "cow_helpers.h"

#define BENCH_ADAPTIVE		(-1)
#define BENCH_MAX_BOUND		15
#define BENCH_MAX_WRITERS	64
#define BENCH_MAX_CHILDREN	16
#define BENCH_MAX_REPEAT	1000
#define BENCH_MIN_PAGES		64
/* Writes of a workload per page of its memory, at most */
#define BENCH_MAX_WRITES	3
#define BENCH_UNKNOWN		(-1LL)
#define BENCH_PMD		1	/* not kB: what one page table maps */

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

enum bench_kind {
	BENCH_COW,
	BENCH_POPULATE,
	BENCH_THP,
	BENCH_NOFORK,
	BENCH_MEMCPY,
};

struct bench_config {
	char name[16];
	const char *what;
	enum bench_kind kind;
	int ahead;		/* pages; 0 is off */
	int bound;		/* of an adaptive window, in pages; 0: as it was */
};

enum bench_pass {
	BENCH_COUNTING,
	BENCH_TIMING,
	BENCH_LATENCY,
};

/* What is written, in which order; in memory that a fork does not share. */
struct bench_plan {
	size_t pages;		/* of the region */
	size_t max;		/* room in order */
	size_t nr;		/* writes */
	__u32 *order;		/* indices of pages */
	/* Writer t does order[slice[t]] to order[slice[t + 1] - 1]. */
	unsigned int writers;
	size_t slice[BENCH_MAX_WRITERS + 1];
	__u64 seed;
};

/* BENCH_UNKNOWN: neither the kernel nor the program can tell. */
struct bench_counts {
	long long copied;
	long long copied_ahead;
	long long wasted;
	long long reused;
	long long reused_ahead;
	long long tlb_flushes;
	long long tlb_shootdowns;
	long long rss_kb;
	long long private_kb;
};

/* What the kernel timed itself, while counting */
struct bench_times {
	__u64 total_ns;		/* of whole faults */
	__u64 faults;
	struct cow_hist copy;
	struct cow_hist fault;
};

/* The phases of 'snapshot': until the child has unmapped all, and after that */
struct bench_phases {
	__u64 unmapped_ns;	/* since the fork began; 0: no child */
	__u64 done_ns;
	double written;		/* pages, in the first phase */
	long faults[2];
	__u64 system_ns[2];	/* of CPU time, all threads of the program */
};

struct bench_writer {
	pthread_t thread;
	struct bench_rep *rep;
	const __u32 *order;
	size_t nr;
	__u64 *latency;		/* one per write, or NULL */
	int cpu;
	__u64 start;
	__u64 end;
	long faults;
};

struct bench_workload;

/* One repetition. It and all it points to is shared with worker processes. */
struct bench_rep {
	const struct bench_workload *workload;
	const struct bench_config *config;
	const struct bench_plan *plan;
	enum bench_pass pass;
	bool counted;		/* the kernel counts */
	bool marked;		/* cow_marker.h around what is timed */
	bool in_guest;		/* written to by bench_guest_write() */

	char *base;		/* the region */
	char *copy;		/* where memcpy goes, or NULL */
	size_t present;		/* pages that are there before the first fork */
	unsigned char gen;	/* what is written */
	struct cow_child child[BENCH_MAX_CHILDREN];
	unsigned int children;
	struct bench_writer writer[BENCH_MAX_WRITERS];
	pthread_barrier_t barrier;

	/* of the present fork */
	bool at_hand;		/* pages to copy to, in the CPU's lists */
	__u64 *pfn;		/* frames after the fork */
	__u64 *pfn_now;
	unsigned char *written;

	/* results */
	char why[192];		/* skipped or failed because ... */
	int ret;		/* of a worker process */
	char cgroup[COW_CGROUP_DIR];	/* to be removed at the end */
	__u64 elapsed;
	__u64 nr_written;	/* different pages, summed up over all forks */
	long faults;
	struct bench_counts counts;
	__u64 changed;		/* pages with another frame than before */
	__u64 fresh;		/* pages that were not there before */
	long long swapped;	/* pages in and out, by the whole system */
	long long changed_first;	/* of these, in the first phase */
	struct bench_phases phases;
	__u64 copy_ns;		/* the kernel's own count: copies, and time */
	__u64 copies_timed;
	bool kernel_times;	/* wanted: */
	struct bench_times times;
	__u64 *latency;
	size_t nr_latency;
	size_t max_latency;
	/* What only this workload knows, as members of a JSON object, and a line */
	char extra[8192];
	char note[256];
};

struct bench_workload {
	const char *name;
	const char *what;
	/* Fills plan->order and plan->nr. NULL: forward, every page once */
	void (*plan)(struct bench_plan *plan, unsigned int arg);
	unsigned int arg;
	/* BENCH_OK, BENCH_SKIP, or BENCH_FAIL with rep->why. NULL: bench_once() */
	int (*run)(struct bench_rep *rep);
	/* Instead of body(), which maps the memory and calls run() */
	int (*around)(struct bench_rep *rep, int (*body)(struct bench_rep *rep));
	cow_child_fn child;	/* instead of one that only sleeps */
	unsigned int children;
	unsigned int writers;	/* threads; 0: the program's only thread */
	bool blocks;		/* a writer's pages follow each other */
	bool gone;		/* the child has ended before the first write */
	bool count_children;	/* faults of children count as well */
	bool parallel;		/* has threads of its own */
	unsigned int part;	/* 1/part of the pages are there at first */
	unsigned int folio_kb;	/* folios: kB, BENCH_PMD, 0 the configuration's */
	unsigned int memcg_percent;	/* of the need, for bench_memcg() */
	size_t most;		/* bytes at most, for a size that matters little */
	unsigned int unfit;	/* 1 << BENCH_THP etc.: what makes no sense here */
	const char *unit;	/* of what written and per_page count, not pages */
};

enum {
	BENCH_OK = 0,
	BENCH_SKIP,
	BENCH_FAIL,
};

/* cow_bench_host.c */

/* Note the CPUs of this process, and stay on one of them. */
void bench_pin(void);
/* How many CPUs there are for writers */
int bench_cpus(void);
/* The CPU for the i-th writer */
int bench_cpu(unsigned int i);
/* Threads and children of this process may run on all CPUs. */
void bench_unpin(void);
/* 0 or -ENOMEM; bench_restore_settings() also undoes every bench_tweak(). */
int bench_save_settings(void);
void bench_restore_settings(void);
/* As cow_tweak() */
bool bench_tweak(const char *path, const char *value);
/* Zeroed memory that no fork shares, in place; NULL if there is none */
void *bench_alloc(size_t len);
/* Have such memory in the page table, which a fork leaves out. */
void bench_have_mapped(void *addr, size_t len);
/* Options of the snapshot */
extern struct bench_snapshot {
	unsigned int writers;
	unsigned int checkpointers;
	size_t batch;		/* bytes */
	bool whole;		/* a private copy of the whole array, there before the fork */
} bench_snapshot;
/*
 * Have the CPUs and the memory of one node, if there are several: the one that
 * this runs on. Says in text what was done.
 */
void bench_use_node(char *text, size_t len);

/* cow_bench_guest.c */

/* The region is the memory of a KVM guest, and all of it in KVM's page tables. */
int bench_guest_open(struct bench_rep *rep);
/* Write rep->gen to these pages of the plan's order; none: enter and leave. */
void bench_guest_write(const struct bench_rep *rep, const __u32 *order, size_t nr);
/* BENCH_FAIL if a run of it went wrong */
int bench_guest_close(struct bench_rep *rep);

/* cow_bench_loop.c */

/* Nanoseconds; what reading the clock takes is bench_clock_ns. */
__u64 bench_now(void);
extern __u64 bench_clock_ns;
void bench_init_clock(void);
/* end - start, without what reading the clock takes */
__u64 bench_since(__u64 start, __u64 end);
/* Let what is measured begin right after a timer interrupt, if there is one. */
void bench_await_tick(void);
/* The writes of one writer. First without any, to have the stack in place */
void bench_loop(struct bench_writer *w);
void bench_rehearse(struct bench_writer *w);

/* "return bench_fail(rep, "not the %dth", 3);" */
#define bench_why(rep, ...) \
	snprintf((rep)->why, sizeof((rep)->why), __VA_ARGS__)
#define bench_skip(rep, ...)	(bench_why(rep, __VA_ARGS__), BENCH_SKIP)
#define bench_fail(rep, ...)	(bench_why(rep, __VA_ARGS__), BENCH_FAIL)

/* cow_bench_count.c */

/* 0 or -ENOMEM */
int bench_count_init(struct bench_rep *rep, size_t pages);
/* Before a repetition; and after it: what could not be known is unknown. */
void bench_count_reset(struct bench_rep *rep);
void bench_count_finish(struct bench_rep *rep);
bool bench_forks(const struct bench_rep *rep);
/* Only in a counting pass; ahead: nothing of it is on demand */
void bench_count_begin(const struct bench_rep *rep);
void bench_count_end(struct bench_rep *rep, bool ahead);
/* What the frames are now, after the fork; and nothing is written yet */
void bench_look_at_frames(struct bench_rep *rep);
/* After the last write before another fork: count what was wasted. */
int bench_close(struct bench_rep *rep);
/* Pages with another frame than after the fork, or BENCH_UNKNOWN */
long long bench_changed(const struct bench_rep *rep);

/* cow_bench_rep.c */

/* Room for repetitions of up to max pages and writes; 0 or -ENOMEM */
int bench_rep_init(struct bench_rep *rep, size_t pages, size_t writes);

/* Fork workload->children, asleep. No children for the floors. */
int bench_share(struct bench_rep *rep);
/* MADV_POPULATE_WRITE of the first pages, if that is the configuration */
int bench_populate(struct bench_rep *rep, size_t pages);
/* Write order[first] to order[first + nr - 1], timed or counted. */
int bench_write(struct bench_rep *rep, size_t first, size_t nr);
/* The children look at their memory and end. */
int bench_unshare(struct bench_rep *rep);
/* All that, for these writes of the plan */
int bench_fork_and_write(struct bench_rep *rep, size_t first, size_t nr);
/* The program looks at its memory. */
int bench_verify(struct bench_rep *rep);
/* All writes of the plan after one fork, verified */
int bench_once(struct bench_rep *rep);

/* For those that do not use bench_write(): */

/* A page was written in this fork. */
void bench_wrote(struct bench_rep *rep, size_t page);
/* Map the region, with folios of the size asked for; write to it; unmap it. */
int bench_map(struct bench_rep *rep, void (*fill)(struct bench_rep *rep));
void bench_unmap(struct bench_rep *rep);
/* The first write to the region: what bench_look() expects */
void bench_fill(struct bench_rep *rep);
/* The children end, without looking at their memory. */
int bench_end_children(struct bench_rep *rep);
/* What a child is asked to do: look if its memory is what it was at the fork. */
#define BENCH_LOOK	1
/* The first of these pages that is not what this process should see, or -1 */
long bench_look(const struct bench_rep *rep, size_t first, size_t nr);

/* cow_bench_workloads.c */

extern const struct bench_workload bench_workloads[];
extern const unsigned int bench_nr_workloads;
const struct bench_workload *bench_find_workload(const char *name);
void bench_make_plan(struct bench_plan *plan, const struct bench_workload *w,
		     size_t pages, __u64 seed);

/* cow_bench_programs.c */

int bench_snapshot_around(struct bench_rep *rep,
			  int (*body)(struct bench_rep *rep));
int bench_fork_exec(struct bench_rep *rep);
int bench_memcg_around(struct bench_rep *rep,
		       int (*body)(struct bench_rep *rep));
int bench_memcg(struct bench_rep *rep);
/* Remove what bench_memcg_around() has left when it was killed. */
void bench_remove_cgroup(struct bench_rep *rep);
/* The argument with which the program ends at once */
#define BENCH_NOTHING	"--nothing"

/* cow_bench_run.c */

/* One repetition in a process of its own: BENCH_OK, ... */
int bench_run_fresh(struct bench_rep *rep);

/* cow_bench_report.c */

struct bench_result {
	const struct bench_workload *workload;
	const struct bench_config *config;
	size_t pages;
	const char *mode;
	char why[192];		/* not run, because ... */
	bool parallel;		/* several writers at the same time */
	unsigned int repeats;
	double per_page[BENCH_MAX_REPEAT];
	__u64 written;
	long faults;
	struct bench_counts counts;
	long long copied_first;	/* pages, in the first phase of 'snapshot' */
	long long changed;	/* pages with another frame, in both phases */
	struct bench_phases phases;
	struct bench_times times;
	double copy_ns;		/* 0: unknown */
	const char *copy_from;
	__u64 *latency;
	size_t nr_latency;
	char extra[8192];
	char note[256];
};

void bench_print_json(struct bench_result *res, __u64 seed, bool cdf);
/* NULL: only the heading */
void bench_print_heading(const struct bench_workload *w, size_t pages);
void bench_print_row(struct bench_result *res);
/* What a row of 'snapshot' says about its phases, in words; off: its reference */
void bench_print_answer(const struct bench_result *res,
			const struct bench_result *off);

#endif /* __COW_BENCH_H */
