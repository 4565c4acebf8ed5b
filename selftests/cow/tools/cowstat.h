/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of cowstat share: cowstat.c has the options and the loop,
 * cowstat_sample.c reads the counts, cowstat_rows.c makes rates of them and prints
 * these, cowstat_bill.c runs a command.
 */
#ifndef __COWSTAT_H
#define __COWSTAT_H

#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "cow_stats.h"
#include "cowstat_probes.h"
#include "cowstat_taskstats.h"

#define __printf(fmt, args)	__attribute__((format(printf, fmt, args)))
#define __noreturn		__attribute__((noreturn))

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

#define NSEC_PER_SEC	1000000000ULL
#define NSEC_PER_MSEC	1000000ULL

#define COMM_LEN	16		/* TASK_COMM_LEN in include/linux/sched.h */

/* Exit status; that of a command that could not be run is the shell's. */
#define E_OK		0
#define E_EXITED	1
#define E_USAGE		2
#define E_NOT_EXECUTABLE	126
#define E_NOT_FOUND	127
#define E_SIGNAL	128

struct options {
	bool json;
	bool enable;
	bool one_header;
	bool other_proc;
	bool wide;
	bool clock;
	bool stacks;
	bool stack_lines;	/* with the line of the source */
	bool all;		/* each process that there is */
	const char *name;	/* each process of that name */
	double interval;	/* 0: one line */
	unsigned long count;	/* 0: until the end */
	const char *file;
};

extern struct options opt;
extern FILE *out;

/* Those of the signals that end us, and SIGPIPE, if they were not ignored */
extern sigset_t caught;
/* Those that were blocked when we were started */
extern sigset_t found_mask;
/* The child that signals are handed on to, or 0 */
extern volatile pid_t command;

/* A line on standard error */
__printf(1, 2) void note(const char *fmt, ...);
/* The same, once for each bit of @said */
__printf(3, 4) void missing(unsigned int *said, unsigned int bit,
			    const char *fmt, ...);
/* Before the first line: what was in FILE of -o before is gone then. */
void begin_output(void);
/* Restore what was changed, and exit. */
__noreturn void quit(int status);
/* After a signal that came before there was a command to hand it on to */
void quit_if_interrupted(void);
/* note(), and exit with E_USAGE */
__printf(1, 2) __noreturn void die(const char *fmt, ...);

/* 0, 1, or a negative errno */
int timing_is_on(void);

/*
 * Samples
 */

/* What could be read */
#define HAVE_MINOR	0x001	/* minor faults */
#define HAVE_PGREUSE	0x002
#define HAVE_KSM	0x004
#define HAVE_WPCOPY	0x008
#define HAVE_COUNTS	0x010	/* cow_stats, whatever it counts now */
#define HAVE_TIMING	0x020	/* vm.cow_stats is 1: it counts faults and time */
#define HAVE_PRECOPY	0x040
#define HAVE_HIST	0x080
#define HAVE_PROBED	0x100	/* counted by kprobe events */
#define HAVE_PGCOW	0x200	/* vmstat's counts, of the system only */
#define HAVE_PGCOW_AHEAD	0x400	/* and those of pages ahead */

/* Copied and reused pages, and the time of faults */
#define HAVE_FAULTS	(HAVE_TIMING | HAVE_PROBED)
/* The pages, whether there are times or not */
#define HAVE_COPIED	(HAVE_FAULTS | HAVE_PGCOW)
#define HAVE_LOST	(HAVE_TIMING | HAVE_PGCOW)
#define HAVE_AHEAD	(HAVE_PRECOPY | HAVE_PGCOW_AHEAD)

struct histograms {
	struct cow_hist copy, fault;
};

struct sample {
	unsigned int have;
	unsigned long long ns;		/* CLOCK_MONOTONIC */
	unsigned long long start;	/* of the process, in ticks */
	unsigned long long minor, children_minor, pgreuse, ksm;
	struct wpcopy wpcopy;
	struct cow_stats stats;
	struct cow_stats vmstat;	/* those of the keys that it has */
	struct histograms *hist;	/* of the system only */
};

/* What is watched: the system, or a process */
struct target {
	pid_t pid;			/* 0: the system */
	pid_t tid;			/* one of its threads that has not exited */
	char name[COMM_LEN];
	bool gone;
	unsigned long long found;	/* when, if it was not there at first */
	unsigned long rows;		/* shown, without the first one */
	struct sample *now, *before;
	struct sample *first;		/* since the last reset */
};

unsigned long long now_ns(clockid_t clock);

void begin_probing(enum probes_whose whose, pid_t pid);
/* Once per interval, before the samples of processes are taken */
void read_all_probes(void);
/* Of that process, at the last read_all_probes() */
void sample_probes(struct sample *s, pid_t pid);
/* A process and all its descendants */
bool read_probes_of_tree(struct probed *p, pid_t root);
/*
 * A thread of the process that has not exited, as the main thread may have before
 * the others: any thread's files show the process. 0: there is none.
 */
pid_t live_thread(pid_t pid);
/* The process that @tid is a thread of, or 0 if that cannot be told */
pid_t process_of(pid_t tid);
/* Of @t into t->now. False if the process has gone, or never was; *why says it. */
bool take_sample(struct target *t, const char **why);
/* What its delays are: into s->wpcopy */
void sample_wpcopy(struct sample *s, pid_t pid);
/* What could be read of the system's or a process' counters, with what @ret says */
int sample_counts(struct sample *s, int ret);
/* Say why the counters could not be read: @ret is what reading them returned. */
void explain_counts(int ret, pid_t pid);
/* Say what the file lacks: once for the system's, and once for those of processes */
void explain_missing_key(const struct sample *s, pid_t pid);
/* Say which of the counters are off. */
void explain_switches(const struct sample *s);

/*
 * Rows: the difference of two samples, or the first one as a whole
 */

enum percentile {
	COPY_P50,
	COPY_P90,
	COPY_P95,
	COPY_P99,
	FAULT_P50,
	FAULT_P99,
	NR_PERCENTILES
};

enum row_kind { ROW_TOTAL, ROW_INTERVAL, ROW_AVERAGE };

struct row {
	unsigned int have;
	enum row_kind kind;
	bool reset;
	double seconds;
	unsigned long long minor, children_minor, pgreuse, ksm;
	struct wpcopy wpcopy;
	struct cow_stats d;
	unsigned long long percentile[NR_PERCENTILES];
};

void first_row(struct row *r, const struct sample *s);
void next_row(struct row *r, const struct sample *a, const struct sample *b);

/* One line of the table for one target, with a header where one is due */
void print_table_row(const struct row *r, unsigned int have);
/* The header of a table of processes, and one process in it */
void print_processes_header(const struct row *r, unsigned int have);
void print_process_row(const struct target *t, const struct row *r,
		       unsigned int have);
/* How many lines the terminal has */
int screen_height(void);

void json_row(const struct target *t, const struct row *r);
void json_count(const char *key, bool known, unsigned long long val);
void json_real(const char *key, bool known, double val);
/* Part of the whole, or UNKNOWN if that is 0 */
double share(unsigned long long part, unsigned long long whole);

#define UNKNOWN	-1.0

/*
 * Start a program as it would start without us, with signals as we have found them.
 * 0 or an errno. See posix_spawnp().
 */
int spawn_program(pid_t *pid, const posix_spawn_file_actions_t *actions,
		  char **argv);
/* Say that it cannot be run, which is what @err says, and exit as a shell does. */
__noreturn void no_command(const char *name, int err);
/* The exit status of a shell for what waitpid() says */
int exit_status(int status);
/* Run a command, and say what it spent. Its exit status. */
int bill_command(char **argv);
/* Run a command, and print the stacks that copied pages. Its exit status. */
int stacks_of_command(char **argv);

#endif /* __COWSTAT_H */
