/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of copy-on-write faults share
 *
 * Nothing in here uses the harness, so that it may be called from a forked
 * child as well: functions return 0 or a negative errno (or what they say) and
 * print nothing. A child must not use ASSERT_*() or EXPECT_*(): it would run
 * the rest of the parent's test. It returns a value instead, which becomes its
 * exit status.
 *
 * A fixture looks like this::
 *
 *	FIXTURE(foo) {
 *		struct cow_settings saved;
 *	};
 *
 *	FIXTURE_VARIANT(foo) {
 *		int ahead;
 *	};
 *
 *	FIXTURE_VARIANT_ADD(foo, plain) { .ahead = COW_PLAIN };
 *	FIXTURE_VARIANT_ADD(foo, ahead_1) { .ahead = 1 };
 *	FIXTURE_VARIANT_ADD(foo, ahead_15) { .ahead = 15 };
 *	FIXTURE_VARIANT_ADD(foo, adaptive) { .ahead = COW_ADAPTIVE };
 *
 *	FIXTURE_SETUP(foo)
 *	{
 *		const char *reason;
 *
 *		reason = cow_setup(&self->saved, variant->ahead, COW_WANT_STATS);
 *		if (reason)
 *			SKIP(return, "%s", reason);
 *	}
 *
 *	FIXTURE_TEARDOWN_PARENT(foo)
 *	{
 *		cow_restore(&self->saved);
 *	}
 *
 * TEARDOWN_PARENT, because it restores the settings also when the test died. One
 * that the harness ends for its time leaves them to the next test: so none may
 * take long, and each is given TEST_TIMEOUT instead of the harness's 30 s.
 *
 * A test must not depend on what else runs. Exact numbers come from what is the
 * test's own: its process' counters (cow_count_own()), cow_minflt() of this thread,
 * the frames of its memory, and a memory cgroup of its own. Of the system's counters
 * (cow_count()) a test may only say that they are at least as high. For exact counts:
 * cow_pin_cpu() first, and read the counters twice before the measured part, as the
 * first read writes to the pages that the read itself needs.
 */
#ifndef __COW_HELPERS_H
#define __COW_HELPERS_H

#include <linux/types.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "cow_stats.h"

/* Seconds: under KCSAN in an emulator a second's work takes minutes */
#define TEST_TIMEOUT	900

#ifndef MADV_COLD
#define MADV_COLD	20
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE	23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

#define COW_SYSCTL_DIR	"/proc/sys/vm/"
#define COW_STATS_FILE	"/proc/cow_stats"

/* The largest fixed window that vm.cow_precopy_pages takes. */
#define COW_MAX_AHEAD	15

/*
 * Instead of a number of pages: vm.cow_precopy_pages=0. The window is chosen by
 * what was written around the fault, up to vm.cow_precopy_max pages, and may
 * lie on either side of it.
 */
#define COW_ADAPTIVE	(-1)
/* vm.cow_precopy_max, as the kernel and cow_setup() set it */
#define COW_ADAPTIVE_MAX	15
/* A run of this many written pages gets the largest window. */
#define COW_RUN_ENOUGH	(8 * COW_ADAPTIVE_MAX)
/* A window never leaves an aligned block of this many pages. */
#define COW_BLOCK	64

/*
 * Sysctls, and settings of a fixture.
 */

/* name is "cow_precopy", "cow_stats", ...; 0 or a negative errno */
int cow_sysctl_read(const char *name, long *val);
int cow_sysctl_write(const char *name, long val);
/* Set the sysctl to val. NULL, or the reason why that failed */
const char *cow_want(const char *name, long val);

/* Files in sysfs and the like that a test has changed */
struct cow_undo {
	int nr;
	struct {
		char path[128];
		char value[32];
	} file[16];
};

struct cow_settings {
	struct cow_undo quiet;	/* what would add faults */
	bool valid;		/* the rest was saved */
	long stats;
	long sample_interval;
	long precopy;
	long precopy_pages;
	long precopy_max;	/* -1 on a kernel whose window does not adapt */
};

/* For cow_setup(): nothing is copied ahead. */
#define COW_PLAIN	0

/* Set vm.cow_stats=1 too; without it faults, reused and *_ns do not count. */
#define COW_WANT_STATS	1
/* With COW_PLAIN: the kernel need not have this series. See cow_counting(). */
#define COW_ANY_KERNEL	2

/*
 * Save the sysctls and switch pre-copy off (ahead 0) or on with a window of
 * ahead pages, or with one that adapts (COW_ADAPTIVE). Returns NULL, or the
 * reason to skip: the kernel lacks the series, or the setting is another one
 * and may not be changed. Without root a setting that happens to be right
 * already is fine.
 */
const char *cow_setup(struct cow_settings *saved, int ahead, unsigned int flags);
/*
 * As cow_setup() for any kernel, with this task on one CPU, the one whose LRU batches
 * cow_drain_lru() drains, and with nr pages, each with its number and tag. *p is NULL if
 * there is no memory.
 */
const char *cow_setup_pages(struct cow_settings *saved, int ahead, char **p, int nr,
			    __u64 tag);
void cow_restore(struct cow_settings *saved);

/*
 * NULL if the kernel has both COW_STATS and COW_PRECOPY, else the reason to
 * skip. cow_setup() calls it.
 */
const char *cow_missing(void);

/* Does this kernel count copies and reuses, and is that switched on? */
bool cow_counting(void);

/* The system's counters, or this process'; all 0 on a kernel without them */
int cow_count(struct cow_stats *s);
int cow_count_own(struct cow_stats *s);
/*
 * Pages that this process, and the children that it has waited for, have copied ahead
 * since cow_count_own()
 */
unsigned long long cow_copied_ahead(const struct cow_stats *before);
/*
 * The sum of the counters of all other processes. Two equal sums: no other process has
 * counted anything in between. Needs root.
 */
int cow_count_others(struct cow_stats *sum);

/*
 * Files
 */

/* Where tracefs is, or NULL */
const char *cow_tracefs(void);
int cow_write_file(const char *path, const char *text);
int cow_read_long(const char *path, long *val);
int cow_write_long(const char *path, long val);

/*
 * Write value to a file and remember what was there ("a [b] c" means b), for
 * cow_undo() in FIXTURE_TEARDOWN_PARENT(). False if that is not possible.
 */
bool cow_tweak(struct cow_undo *undo, const char *path, const char *value);
/*
 * Keep compaction off locked pages: one that it moves has no mlocked flag meanwhile.
 * False if that is not possible.
 */
bool cow_keep_locked(struct cow_undo *undo);

/*
 * May tests change system-wide settings: sysctls, KSM, huge pages, fault injection,
 * poisoned pages, cgroups, tracing, kprobe events (also those that cowstat makes and
 * removes)? Only if the environment has COW_TEST_INVASIVE=1, as in a test guest. Tools
 * may.
 */
bool cow_may_change(void);
void cow_allow_changes(void);
#define COW_NEEDS	"needs root and COW_TEST_INVASIVE=1"
void cow_undo(struct cow_undo *undo);

/*
 * Memory
 */

size_t cow_page_size(void);
/* What one page table maps: 2 MB with pages of 4 kB. */
size_t cow_pmd_size(void);

/*
 * Nothing is copied ahead below the low watermark of the zone that pages come from first,
 * the last one of this node: each test of what is copied would fail.
 */
bool cow_memory_is_low(void);

/*
 * Allow folios of 64 kB, and none of a whole page table, in memory that has
 * MADV_HUGEPAGE. NULL, or the reason why not
 */
const char *cow_allow_folios(struct cow_undo *undo);
/* cow_setup(), and cow_allow_folios() if folios; undoes both on failure */
const char *cow_setup_folios(struct cow_settings *saved, struct cow_undo *undo,
			     int ahead, bool folios, unsigned int flags);
/* cow_map() uses MADV_HUGEPAGE. */
extern bool cow_map_hugepage;

/*
 * len bytes of private anonymous memory, aligned to align (a power of two, 0
 * for a page), with an inaccessible page before and after, so that it never
 * merges with a neighbour. No THP, unless cow_map_hugepage says so. NULL if
 * there is no memory.
 */
void *cow_map(size_t len, size_t align);
/* Unmaps what cow_map() returned, with its guards. */
void cow_unmap(void *addr, size_t len);
/*
 * As cow_map() and cow_fill(), but PMDs map it: len bytes of huge pages, which khugepaged
 * leaves alone. NULL, and the address in *area; or the reason why there are none
 */
const char *cow_map_huge(struct cow_undo *undo, char **area, size_t len, __u64 tag);
/* The same with folios of 64 kB, which PTEs map */
const char *cow_map_mthp(struct cow_undo *undo, char **area, size_t len, __u64 tag);
/* A mapping of the size of a huge page that has the huge zero page */
const char *cow_map_huge_zero(struct cow_undo *undo, char **area);
/* 0, or the errno: makes a huge page of the small ones at addr. */
int cow_collapse(char *addr);
/* One hugetlb page, of *len bytes, that is not there yet; the pool has a few more. */
const char *cow_map_hugetlb(struct cow_undo *undo, char **area, size_t *len);

/* Every 8-byte word of the page depends on tag and on its own address. */
void cow_fill(void *addr, size_t len, __u64 tag);
/* -1 if all is as cow_fill() left it, else the offset of the first bad word */
ssize_t cow_check(const void *addr, size_t len, __u64 tag);
/* Is all of it zeroes, as a new page is? */
bool cow_is_zero(const void *addr, size_t len);

/* Write one byte, so that the compiler does not drop or merge it. */
static inline void cow_touch(void *addr, char val)
{
	__atomic_store_n((char *)addr, val, __ATOMIC_RELAXED);
}

/*
 * This thread and another write to each page at the same time, so that one of two
 * copies is for nothing; from the last page to the first if down. Wants two CPUs.
 */
int cow_write_in_step(char *area, int pages, bool down);

static inline char cow_peek(const void *addr)
{
	return __atomic_load_n((const char *)addr, __ATOMIC_RELAXED);
}

/*
 * Write to each page of the stack from what the next calls may use up to its end, and to
 * what the kernel writes when it reschedules, so that none is still shared with a child.
 * Where these begin is random: otherwise one run in fifty has a variable, or the frame of
 * a caller, alone in a page that is written to while the test counts.
 */
void cow_own_stack(void);

/* Pin a page for a moment, for reading. One that is shared is copied for it. */
int cow_unshare(const void *addr);

/*
 * As a debugger does: write 'w' to what this process itself may not write to. 1, or a
 * negative errno
 */
ssize_t cow_write_by_force(const void *addr);
#define COW_NO_FORCE	"no writing by force in this kernel: %s"

/* Does an access to the first byte raise SIGBUS? A write writes 'w'. */
bool cow_raises_sigbus(char *addr, bool write);

/* A small reproducible generator (splitmix64). */
__u64 cow_rand(__u64 *state);
/* To start it with: the environment's COW_SEED, or another one each time */
__u64 cow_seed(void);

#define COW_KSM_DIR	"/sys/kernel/mm/ksm/"

/*
 * Let ksmd merge equal pages in the range until want pages are merged, or it
 * has looked often enough; then stop it. Returns the number of merged pages,
 * or a negative errno if there is no KSM, or no way to see what it did.
 */
long cow_ksm_merge(struct cow_undo *undo, void *addr, size_t len, long want);

/*
 * pagemap
 */

#define COW_PM_SOFT_DIRTY	((__u64)1 << 55)
#define COW_PM_EXCLUSIVE	((__u64)1 << 56)
#define COW_PM_UFFD_WP		((__u64)1 << 57)
#define COW_PM_SWAP		((__u64)1 << 62)
#define COW_PM_PRESENT		((__u64)1 << 63)
#define COW_KPF_WRITEBACK	((__u64)1 << 8)
#define COW_KPF_SWAPCACHE	((__u64)1 << 13)
#define COW_KPF_SWAPBACKED	((__u64)1 << 14)
#define COW_KPF_COMPOUND	((__u64)3 << 15)	/* head or tail */
#define COW_KPF_PGTABLE		((__u64)1 << 26)
#define COW_KPF_MLOCKED		((__u64)1 << 33)
#define COW_KPF_MAPPEDTODISK	((__u64)1 << 34)	/* anonymous: exclusive */
#define COW_PM_PFN_MASK		(((__u64)1 << 55) - 1)

/* Its pages in the page cache have that flag. Tests only read from it. */
#define COW_DISK	"/dev/ram1"
#define COW_NO_FLAG	"pages of " COW_DISK " without PG_mappedtodisk (CONFIG_BUFFER_HEAD)"

/* This process' entry for addr; 0 if the page is not there or on an error. */
__u64 cow_pagemap(const void *addr);
/* The page's line in /proc/kpageflags; 0 if hidden or not present */
__u64 cow_page_flags(const void *addr);
/* How many of the nr pages at p are in large folios? */
int cow_large_pages(const char *p, int nr);
/* May this process see frame numbers? */
bool cow_pfn_visible(void);
/*
 * Pin pages for as long as the returned file is open: fixed buffers of an io_uring. A negative
 * errno if that is not possible.
 */
int cow_pin(void *addr, size_t len);
/* How many of the nr pages at addr are in swap? */
int cow_swapped(const void *addr, int nr);
/* Is the kernel older? For what it does not do, or gets wrong, and does not tell of. */
bool cow_kernel_before(int version, int level);
/* Have them reclaimed, if nobody shares them and swap has room: true if all are in swap. */
bool cow_page_out(void *addr, int nr);
/* May this process have nr pages of its own in swap? */
bool cow_can_page_out(int nr);
/*
 * Migrate nr pages of one node to another one; false if there is none, or it has no room, or
 * they are more than COW_MAX_MEASURED
 */
bool cow_move_to_another_node(char *addr, int nr);
/* Can this process see which pages were written since it last asked? */
bool cow_soft_dirty_works(void);
#define COW_NO_SOFT_DIRTY	"no soft-dirty bits in this kernel or architecture"
/* The value in kB of a line ("Rss", ...) in smaps of the VMA at addr, or -1 */
long cow_smaps_kb(const void *addr, const char *key);
/* The value of a line ("VmRSS", "VmLck", ...) of /proc/self/status, or -1 */
long cow_status_kb(const char *key);
/* The value of a line of /proc/vmstat or of a cgroup's *.events, or -1 */
long long cow_file_key(const char *path, const char *key);

/*
 * userfaultfd
 */

/* Since 6.7. Include <linux/userfaultfd.h> before this file. */
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC	0x8000
#endif

/*
 * Register memory for write protection; features are UFFD_FEATURE_*. NULL, and the file
 * in *fd, for cow_uffd_protect(); or the reason why that is not possible
 */
const char *cow_uffd_wp(int *fd, const void *addr, size_t len, __u64 features);
/* The same for pages that are missing */
const char *cow_uffd_missing(int *fd, const void *addr, size_t len, __u64 features);
/* The same for a mapping of a memfd, whose pages UFFDIO_CONTINUE maps */
const char *cow_uffd_minor(int *fd, const void *addr, size_t len);
int cow_uffd_protect(int fd, const void *addr, size_t len, bool protect);

/* Not in 6.12 */
#ifndef UFFD_FEATURE_RWP_ASYNC
#define UFFD_FEATURE_RWP_ASYNC	0x40000
#endif

/* The same for protection from any access */
const char *cow_uffd_access(int *fd, const void *addr, size_t len, __u64 features);
int cow_uffd_protect_access(int fd, const void *addr, size_t len, bool protect);

/* Since 6.8 */
#ifndef UFFD_FEATURE_MOVE
#define UFFD_FEATURE_MOVE	0x10000
#endif

/*
 * Move pages to memory that cow_uffd_missing() has registered. 0 or a negative errno; *moved
 * (NULL if nobody asks) is how many bytes moved, if that is less than all.
 */
int cow_uffd_move(int fd, void *to, const void *from, size_t len, long long *moved);

/* How much at a time; 0 is all, or many */
struct cow_scan {
	int max_pages;
	int max_regions;	/* of pages that are alike */
	bool also_present;	/* ask which pages are present, too */
};

/*
 * Since 6.7, with UFFD_FEATURE_WP_ASYNC: which of the nr pages at p were written since they
 * were protected? times counts how often each is reported. These are protected again.
 * 0 or a negative errno
 */
int cow_scan_written(const char *p, int nr, const struct cow_scan *scan,
		     unsigned char *times);

/*
 * Memory cgroups
 */

#define COW_CGROUP_ROOT	"/sys/fs/cgroup"
/* Enough for a directory, and for a file in it */
#define COW_CGROUP_DIR	64
#define COW_CGROUP_PATH	(COW_CGROUP_DIR + 32)

/*
 * Make one called NAME_PID, or NAME_PID_memory if that took switching the memory
 * controller on in the root. NULL, and its directory in dir; or the reason why there is
 * none, and dir is empty.
 */
const char *cow_cgroup_make(char dir[COW_CGROUP_DIR], const char *name);
/* Both as cow_write_file() and cow_read_long() */
int cow_cgroup_write(const char *dir, const char *file, const char *text);
int cow_cgroup_read(const char *dir, const char *file, long *val);
/*
 * Make another one in a cgroup that has no process of its own. NULL, and its directory
 * in dir; or the reason why there is none, and dir is empty.
 */
const char *cow_cgroup_below(char dir[COW_CGROUP_DIR], const char *parent,
			     const char *name);
/* A line of memory.events, of memory.stat, or of any such file; or -1 */
long long cow_cgroup_event(const char *dir, const char *key);
long long cow_cgroup_stat(const char *dir, const char *key);
long long cow_cgroup_key(const char *dir, const char *file, const char *key);
/*
 * memory.stat leaves out what the CPUs have not yet added up, unless two
 * seconds have passed or more than a batch for each CPU waits: take so many
 * faults for this page that a read adds up everything, until none is missing.
 * Only this thread takes faults in the cgroup at dir. The page is there and
 * private; it is there again afterwards.
 */
void cow_cgroup_add_up(const char *dir, char *page);
/* MEMCG_CHARGE_BATCH of the kernel: pages that a CPU charges at once */
#define COW_CHARGE_BATCH	64
/* Move this process into it. */
int cow_cgroup_enter(const char *dir);
/*
 * Count the frames that are charged to the cgroup, that no process maps, and that have
 * all these flags (COW_KPF_*, or 0). A freed frame is no longer charged, so without flags
 * this is the number of leaked frames. Page tables are left out. -ENOENT without
 * /proc/kpagecgroup
 */
long cow_cgroup_unmapped(const char *dir, __u64 flags);
/*
 * Kill what is in it, and remove it; dir is empty then. Nothing if it was. Undoes the
 * switching on of the controller, too.
 */
void cow_cgroup_remove(char *dir);

/*
 * Faults of this thread, and the CPU it runs on
 */

/* Minor faults of the calling thread so far */
long cow_minflt(void);
/* CLOCK_MONOTONIC in ns */
__u64 cow_now_ns(void);
/*
 * Stay on the CPU we are on; children inherit it. Folios wait in per-CPU
 * batches on their way to the LRU, which holds a reference; the fault drains
 * only the batch of its own CPU before it decides to reuse or to copy.
 */
int cow_pin_cpu(void);
/* Go to another CPU than the one we are pinned to; -ENOENT if there is none */
int cow_leave_cpu(void);
/* How many CPUs there are for us: those of our cpuset */
int cow_nr_cpus(void);
/*
 * Empty these batches: of all CPUs, which move_pages() begins with, or without NUMA of
 * the one we are on, which madvise(MADV_COLD) begins with, whatever it is told.
 */
int cow_drain_lru(void);

/*
 * Exact measurements
 */

/*
 * Make everything that this process may write to its own, apart from len bytes
 * at area, and have everything mapped that it may execute: from now on it takes
 * faults for the area only. Returns 0 or a negative errno.
 */
int cow_unshare_rest(const char *area, size_t len);

#define COW_MAX_MEASURED	1024

struct cow_measure {
	struct cow_stats d;	/* what the writes added to this process' counters */
	long minflt;		/* faults that this thread took for them */
};

/*
 * Write to the first byte of nr pages at base, in the given order (indices;
 * NULL is upward), and count what that took. Other threads should sleep.
 */
int cow_measure(struct cow_measure *m, char *base, const int *order, int nr);

/* The frames of nr pages; all 0 if hidden */
int cow_pfns(const void *addr, int nr, __u64 *pfn);

/*
 * Does hardware note in the page table that a page was written to? Elsewhere, a
 * run of written pages is worth one copy ahead, and no more.
 */
bool cow_hw_dirty(void);

/*
 * What to expect when nr pages, of which the first one is aligned to COW_BLOCK
 * pages and has nothing written before it, are written upward with a window of
 * ahead pages: the faults, and how many of them have a window. Of an adaptive
 * one, this is all that the tests know: it grows with the run of what was
 * written, to an 8th of it, and never beyond 16 aligned pages. reuse: nobody
 * else has the pages, and the window is as long as the run, up to COW_BLOCK.
 */
struct cow_upward {
	int faults;
	int windows;
};

struct cow_upward cow_upward(int nr, int ahead, bool reuse);

/* Is attempts == success + skips? In a delta too, while all is quiet. */
static inline bool cow_stats_balanced(const struct cow_stats *s)
{
	return s->v[COW_ATTEMPTS] == s->v[COW_SUCCESS] + s->skips;
}

/*
 * Children
 */

struct cow_child {
	pid_t pid;
	int in;		/* where this side reads from */
	int out;	/* where this side writes to */
};

/* Runs in the child; what it returns (0..255) is the exit status. */
typedef int (*cow_child_fn)(struct cow_child *self, void *arg);

/* Fork a child that runs fn; 0 or a negative errno. It dies with its parent. */
int cow_child_fork(struct cow_child *c, cow_child_fn fn, void *arg);
/*
 * The same where fd, a userfaultfd, follows forks (UFFD_FEATURE_EVENT_FORK). The userfaultfd
 * of the child, without which its memory is not protected; or a negative errno
 */
int cow_uffd_fork(struct cow_child *c, cow_child_fn fn, void *arg, int fd);
/*
 * Either side: send a byte (0 to 254) to the other, or await one from it.
 * -EPIPE when the other side has ended or called cow_child_end().
 */
int cow_child_send(struct cow_child *c, unsigned char byte);
int cow_child_recv(struct cow_child *c);
/* In the child: send 1 and await the end. Returns the exit status. */
int cow_child_stay(struct cow_child *self);
/*
 * 0 if the memory of a child may be written to from outside, or the errno: Yama may allow
 * that to root alone, or to nobody
 */
int cow_try_child_memory(void);
/* Does the thread sleep, for whatever it waits for? */
bool cow_task_sleeps(pid_t pid);
/* Has the process ended, whether or not it has been waited for? */
bool cow_task_ended(pid_t pid);
/* Wait until the child sleeps (it does not write to memory any more). */
int cow_child_settle(struct cow_child *c);
/*
 * Fork a child that does nothing until cow_child_end(), and return when it
 * sleeps: all memory but the caller's stack is fork-shared from now on.
 */
int cow_child_idle(struct cow_child *c);
/*
 * Tell the child to end (its cow_child_recv() returns -EPIPE), and reap it.
 * Returns its exit status, or 256 + signal, or a negative errno.
 */
int cow_child_end(struct cow_child *c);
/* Only reap: for a child that ends by itself. */
int cow_child_wait(struct cow_child *c);

#endif /* __COW_HELPERS_H */
