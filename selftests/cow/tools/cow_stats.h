/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The copy-on-write counters of the kernel (CONFIG_COW_STATS), in a C program
 *
 * Two files, no library: compile cow_stats.c with the program, which may have any
 * licence. What a piece of work costs in copy-on-write faults is what it adds to
 * the counters::
 *
 *	struct cow_stats before, after, cost;
 *
 *	if (cow_stats_read_pid(&before, 0))
 *		return;
 *	...
 *	if (cow_stats_read_pid(&after, 0))
 *		return;
 *	cow_stats_delta(&cost, &before, &after);
 *	printf("%llu pages copied in %llu ns\n", cost.v[COW_FAULTS],
 *	       cost.v[COW_TOTAL_NS]);
 *
 * cow_snapshot.c is a complete program that does so. Nothing is counted while
 * the sysctl vm.cow_stats is 0, apart from what is copied ahead.
 *
 * Reading a file also writes to memory: the first read after a fork takes a few
 * copy-on-write faults itself. Where the number has to be exact, read twice and
 * take the second one as what was before.
 *
 * Functions return 0 or a negative errno, print nothing, and may be called by
 * several threads. None of them allocates memory.
 */
#ifndef __COW_STATS_H
#define __COW_STATS_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Where the files are: "/proc". A program may point it at something else that
 * has the same files, as a test does.
 */
extern const char *cow_proc;

/*
 * Counters
 */

enum cow_key {
	/* The keys of /proc/cow_stats, in the order of the file */
	COW_FAULTS,
	COW_REUSED,
	COW_LOST,
	COW_LOST_NS,
	COW_UNSHARED,
	COW_PMD_REUSED,
	COW_PMD_SPLIT,
	COW_TOTAL_NS,
	COW_MAX_NS,
	COW_MIN_NS,
	COW_AVG_NS,
	COW_P50_NS,
	COW_P90_NS,
	COW_P95_NS,
	COW_P99_NS,
	COW_FAULT_TOTAL_NS,
	COW_FAULT_P50_NS,
	COW_FAULT_P99_NS,
	COW_FAULT_MAX_NS,
	COW_ATTEMPTS,
	COW_SUCCESS,
	COW_REUSE_AHEAD,
	COW_SKIP_VMA,
	COW_SKIP_PMD,
	COW_SKIP_NOTPRESENT,
	COW_SKIP_WRITABLE,
	COW_SKIP_NOTANON,
	COW_SKIP_EXCLUSIVE,
	COW_SKIP_RACE,
	COW_SKIP_NOMEM,
	COW_SKIP_SPECIAL,
	COW_SKIP_MADVISE,
	COW_SKIP_UFFD,
	COW_SKIP_SOFTDIRTY,
	COW_SKIP_KSM,
	COW_SKIP_PINNED,
	COW_NR_SYSTEM_KEYS,

	/* /proc/<pid>/cow_stats lacks the percentiles, and has these as well. */
	COW_CHILDREN_FAULTS = COW_NR_SYSTEM_KEYS,
	COW_CHILDREN_REUSED,
	COW_CHILDREN_LOST,
	COW_CHILDREN_LOST_NS,
	COW_CHILDREN_UNSHARED,
	COW_CHILDREN_PMD_REUSED,
	COW_CHILDREN_PMD_SPLIT,
	COW_CHILDREN_TOTAL_NS,
	COW_CHILDREN_FAULT_TOTAL_NS,
	COW_CHILDREN_SUCCESS,
	COW_CHILDREN_REUSE_AHEAD,
	COW_NR_KEYS
};

#define COW_FIRST_SKIP	COW_SKIP_VMA

/* The keys' names in the files, in the order of the files */
extern const char * const cow_key_names[COW_NR_KEYS];

struct cow_stats {
	/* By enum cow_key; 0 what the file does not have */
	unsigned long long v[COW_NR_KEYS];
	/* Sum of every precopy_skip_*, also of one that is not in the list. */
	unsigned long long skips;
	/* Which keys the file has. A kernel may have fewer than this list, or more. */
	bool known[COW_NR_KEYS];
	/* The first key that is not there and should be; NULL: none */
	const char *missing;
	/* Does the file have precopy_*? Not without CONFIG_COW_PRECOPY. */
	bool precopy;
};

/*
 * The whole system, since the last reset. -ENOENT: kernel without
 * CONFIG_COW_STATS; -EPROTO: a key is there twice, a line malformed, or there is
 * not even "faults". Unknown keys are left out; see also missing.
 */
int cow_stats_read(struct cow_stats *s);

/*
 * One process, 0 for the caller: its address space since exec or fork, whatever
 * its threads did, and in COW_CHILDREN_* the children that it has waited for.
 * A reset of /proc/cow_stats does not change these. -ENOENT: no such process,
 * or a kernel without the file; -ESRCH: the process has just exited; -EACCES:
 * somebody else's (the rule is that of ptrace); -ENODATA: it has no address
 * space, as a zombie and a kernel thread; -EPROTO as above.
 */
int cow_stats_read_pid(struct cow_stats *s, pid_t pid);

/* For counts from elsewhere */
void cow_stats_set(struct cow_stats *s, enum cow_key key, unsigned long long val);

/*
 * after - before, for every counter. The average is that of the difference; its
 * minimum, maximum and percentiles are not known, and 0.
 */
void cow_stats_delta(struct cow_stats *d, const struct cow_stats *before,
		     const struct cow_stats *after);

/*
 * Has something gone backward: were the counters reset in between, or is it the
 * address space of another program? Then the difference means nothing. Counters
 * that have grown past what they were are not recognised.
 */
bool cow_stats_restarted(const struct cow_stats *before,
			 const struct cow_stats *after);

/*
 * Histograms of durations
 *
 * The same buckets as the kernel's: exact below 32 ns, then 32 per octave. The
 * middle of a bucket stands for all that is in it, so a percentile is within
 * 1.6 % of the exact one. From 2^36 ns (68 s) on all is one bucket. A histogram
 * is empty when it is all zero.
 */

#define COW_HIST_SHIFT		5
#define COW_HIST_MAX_BITS	36
#define COW_HIST_BUCKETS	((COW_HIST_MAX_BITS - COW_HIST_SHIFT + 1) << COW_HIST_SHIFT)

struct cow_hist {
	__u64 count[COW_HIST_BUCKETS];
};

/* Count one duration. For one thread at a time. */
void cow_hist_add(struct cow_hist *h, __u64 ns);
/* after - before */
void cow_hist_delta(struct cow_hist *d, const struct cow_hist *before,
		    const struct cow_hist *after);
/* As cow_stats_restarted() */
bool cow_hist_restarted(const struct cow_hist *before,
			const struct cow_hist *after);
/* How many durations there are */
__u64 cow_hist_total(const struct cow_hist *h);
/*
 * The duration that percent of all (0 to 100, fractions too) do not exceed, by
 * nearest rank: of n in order the one at ceil(n * percent / 100). 0 if empty.
 */
__u64 cow_hist_percentile(const struct cow_hist *h, double percent);

/*
 * The whole system's, since the last reset, from /proc/cow_histogram: of copying
 * a page, and of the whole fault. Either may be NULL. -ENOENT: the kernel does
 * not have it; -EPROTO: malformed.
 */
int cow_hist_read(struct cow_hist *copy, struct cow_hist *fault);

/*
 * Files
 */

/* Whole file into buf, NUL-terminated; length or a negative errno */
ssize_t cow_read_file(const char *path, char *buf, size_t size);

#endif /* __COW_STATS_H */
