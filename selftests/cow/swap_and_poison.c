// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that parent and child share and that are swapped out, or poisoned, when one of
 * them writes, on any kernel. Each process reads back its own data, and knows after swap,
 * too, which pages were written to and which are protected. An access to the poisoned
 * page gets SIGBUS in every process, an access to any other page does not; and SIGSEGV if
 * it is a guard page.
 *
 * Only a memory cgroup of the test's own is reclaimed, but swap is switched off, and on
 * again, for all.
 */
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <sys/time.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

/* Since 6.6 */
#ifndef UFFDIO_POISON
#define UFFD_FEATURE_POISON	0x4000

struct uffdio_poison {
	struct uffdio_range range;
	__u64 mode;
	__s64 updated;
};

#define UFFDIO_POISON		_IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

/* Since 6.13 */
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL	102
#endif

#define NR		512	/* pages */
#define TAG		41
#define ROUNDS		4
#define POISONED	17	/* this page */

/*
 * swapoff does not end while a process has pages in swap that it does not know of. It is
 * stuck if it frees nothing in so many periods of so many seconds.
 */
#define STUCK_PERIODS	3
#define PERIOD		10

/* What per-CPU batches of charges may hide */
#define SLACK		(NR * ROUNDS / 4)

static size_t ps;

/* The swap space of the system, which a test has switched off */
struct swaps {
	int nr;
	struct {
		char path[128];
		int priority;
	} area[8];
};

FIXTURE(swap_and_poison)
{
	struct cow_settings saved;
	struct cow_undo undo;
	struct swaps off;
	char cgroup[COW_CGROUP_DIR];
};

FIXTURE_VARIANT(swap_and_poison)
{
	int ahead;
	bool multi_gen;		/* reclaim by the multi-gen LRU */
};

FIXTURE_VARIANT_ADD(swap_and_poison, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(swap_and_poison, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(swap_and_poison, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_VARIANT_ADD(swap_and_poison, plain_multi_gen) {
	.ahead = COW_PLAIN,
	.multi_gen = true,
};

FIXTURE_VARIANT_ADD(swap_and_poison, adaptive_multi_gen) {
	.ahead = COW_ADAPTIVE,
	.multi_gen = true,
};

FIXTURE_SETUP(swap_and_poison)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (!reason && variant->multi_gen &&
	    !cow_tweak(&self->undo, "/sys/kernel/mm/lru_gen/enabled", "0x0007")) {
		cow_restore(&self->saved);
		reason = "no multi-gen LRU, or " COW_NEEDS;
	}
	if (reason)
		SKIP(return, "%s", reason);
}

/* Again what it was; nothing if swap_off() was not called */
/* What is in use already is no error: a swapoff that is interrupted puts it back. */
static bool swap_on(struct swaps *off)
{
	bool all = true;

	while (off->nr) {
		int priority = off->area[--off->nr].priority;

		/* Negative: chosen by the kernel */
		if (swapon(off->area[off->nr].path,
			   priority < 0 ? 0 : SWAP_FLAG_PREFER | priority) && errno != EBUSY)
			all = false;
	}
	return all;
}

FIXTURE_TEARDOWN_PARENT(swap_and_poison)
{
	swap_on(&self->off);
	cow_cgroup_remove(self->cgroup);
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* Which pages are written to */
typedef bool (*page_set)(int i);

static bool every_page(int i)
{
	(void)i;
	return true;
}

static bool no_page(int i)
{
	(void)i;
	return false;
}

static bool even(int i)
{
	return !(i & 1);
}

static bool odd(int i)
{
	return i & 1;
}

static void write_pages(char *p, page_set written, __u64 tag)
{
	int i;

	for (i = 0; i < NR; i++)
		if (written(i))
			cow_fill(p + i * ps, ps, tag);
}

static bool content_is_right(char *p, page_set written, __u64 tag)
{
	int i;

	for (i = 0; i < NR; i++)
		if (cow_check(p + i * ps, ps, written(i) ? tag : TAG) != -1)
			return false;
	return true;
}

/*
 * Swap
 */

/* NULL, or why there is none */
static const char *make_cgroup(char *dir)
{
	const char *reason = cow_cgroup_make(dir, "cow_swap");
	long bytes;

	if (reason)
		return reason;
	if (cow_cgroup_write(dir, "memory.reclaim", "0") == -ENOENT)
		return "kernel without memory.reclaim";
	if (cow_cgroup_read(dir, "memory.swap.current", &bytes))
		return "swap is not counted in memory cgroups";
	return NULL;
}

/* Have the cgroup's pages reclaimed until most of ours are in swap. */
static bool swap_out(const char *cgroup, const char *p)
{
	int i;

	for (i = 0; i < 50 && cow_swapped(p, NR) < NR * 3 / 4; i++) {
		/* Reclaim does not see folios in an LRU batch. */
		cow_drain_lru();
		/* -EAGAIN: not all of that was there */
		cow_cgroup_write(cgroup, "memory.reclaim", "16M");
	}
	return cow_swapped(p, NR) >= NR / 2;
}

/*
 * All pages leave swap space, as it is switched off. False if some of it cannot be, for
 * lack of memory
 */
static bool swap_off(struct swaps *off)
{
	char line[512];
	FILE *f;
	int i;

	f = fopen("/proc/swaps", "re");
	if (!f)
		return false;
	for (i = 0; i < (int)ARRAY_SIZE(off->area) && fgets(line, sizeof(line), f); )
		i += sscanf(line, "%127s %*s %*d %*d %d", off->area[i].path,
			    &off->area[i].priority) == 2;
	fclose(f);
	off->nr = i;
	for (i = 0; i < off->nr; i++)
		if (swapoff(off->area[i].path))
			return false;
	return true;
}

enum result {
	FINE,
	NO_CGROUP,
	NO_MEMORY,
	NO_CHILD,
	NOT_SWAPPED,
	NOT_RECLAIMED,
	PARENT_IS_WRONG,
	CHILD_IS_WRONG,
	STILL_SHARED,
	STILL_IN_SWAP,
	NO_USERFAULTFD,
	NOT_PROTECTED,
	LOST_AT_FORK,
	KEPT_AT_FORK,
	LOST_IN_SWAP,
	LOST_FROM_SWAP,
	NOT_CLEARED,
	NOT_WRITTEN,
	NOT_SWITCHED_OFF,
	NOT_SWITCHED_ON,
	SWAPOFF_IS_STUCK,
};

struct work {
	const char *cgroup;
	struct swaps *off;
	int (*round)(struct work *work);
	char *p;
};

/* Writes to its odd pages once the parent has written to its even ones. */
static int writes_odd(struct cow_child *self, void *arg)
{
	struct work *work = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 1;
	if (!content_is_right(work->p, no_page, 0))
		return 2;
	write_pages(work->p, odd, TAG + 2);
	if (cow_child_send(self, 3) || cow_child_recv(self) != -EPIPE)
		return 3;
	return content_is_right(work->p, odd, TAG + 2) ? 0 : 4;
}

static void on_alarm(int sig)
{
	(void)sig;
}

/* Every so many seconds a signal ends a system call that sleeps or works. 0: never again */
static void interrupt_every(int seconds)
{
	struct sigaction action = { .sa_handler = on_alarm };
	struct itimerval timer = {
		.it_interval.tv_sec = seconds,
		.it_value.tv_sec = seconds,
	};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static long long swap_used_kb(void)
{
	return cow_file_key("/proc/meminfo", "SwapTotal") -
	       cow_file_key("/proc/meminfo", "SwapFree");
}

/* Switch it off, and on again. */
static int without_all_swap(struct swaps *off)
{
	long long used, least = swap_used_kb();
	int ret, stuck = 0;

	do {
		errno = 0;
		ret = swap_off(off) ? FINE :
		      errno == EINTR ? SWAPOFF_IS_STUCK : NOT_SWITCHED_OFF;
		if (!swap_on(off))
			return NOT_SWITCHED_ON;
		used = swap_used_kb();
		if (used < least) {
			least = used;
			stuck = 0;
		} else {
			stuck++;
		}
	} while (ret == SWAPOFF_IS_STUCK && stuck < STUCK_PERIODS);
	return ret;
}

/* swapoff brings the pages back, however they are shared. */
static int without_swap(struct work *work)
{
	int ret;

	interrupt_every(PERIOD);
	ret = without_all_swap(work->off);
	interrupt_every(0);
	if (ret != FINE)
		return ret;
	return cow_swapped(work->p, NR) ? STILL_IN_SWAP : FINE;
}

/* Everything between a fork and the end of the child, with all pages in swap */
static int write_from_swap(struct work *work, int (*bring_back)(struct work *work))
{
	int ret;
	struct cow_child c;

	cow_fill(work->p, NR * ps, TAG);
	if (cow_child_fork(&c, writes_odd, work) || cow_child_recv(&c) != 1)
		return NO_CHILD;
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	ret = bring_back ? bring_back(work) : FINE;
	if (ret != FINE)
		return ret;
	/* From swap into a write, next to pages that stay there */
	write_pages(work->p, even, TAG + 1);
	if (cow_child_send(&c, 2) || cow_child_recv(&c) != 3)
		return CHILD_IS_WRONG;
	if (!content_is_right(work->p, even, TAG + 1))
		return PARENT_IS_WRONG;
	/* Out again, both ways of each page */
	swap_out(work->cgroup, work->p);
	if (cow_child_end(&c))
		return CHILD_IS_WRONG;
	return content_is_right(work->p, even, TAG + 1) ? FINE :
							  PARENT_IS_WRONG;
}

static int round_of_both(struct work *work)
{
	return write_from_swap(work, NULL);
}

static int round_of_swapoff(struct work *work)
{
	return write_from_swap(work, without_swap);
}

/* Does not look at its pages until it is told to. */
static int looks_late(struct cow_child *self, void *arg)
{
	struct work *work = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 1;
	return content_is_right(work->p, no_page, 0) ? 0 : 2;
}

/*
 * The pages are in swap before the child is there: of the child's share in them, swapoff
 * knows only from the fork.
 */
static int round_of_heirs(struct work *work)
{
	struct cow_child c;
	int ret;

	cow_fill(work->p, NR * ps, TAG);
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (cow_child_fork(&c, looks_late, work) || cow_child_recv(&c) != 1)
		return NO_CHILD;
	ret = without_swap(work);
	if (ret != FINE)
		return ret;
	if (!content_is_right(work->p, no_page, 0))
		return PARENT_IS_WRONG;
	if (cow_child_send(&c, 2) || cow_child_end(&c))
		return CHILD_IS_WRONG;
	return content_is_right(work->p, no_page, 0) ? FINE : PARENT_IS_WRONG;
}

/* Reclaim finds the copies, too. */
static int round_of_copies(struct work *work)
{
	struct cow_child c;

	cow_fill(work->p, NR * ps, TAG);
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (!content_is_right(work->p, no_page, 0))
		return PARENT_IS_WRONG;
	if (cow_child_idle(&c))
		return NO_CHILD;
	write_pages(work->p, every_page, TAG + 1);
	if (!swap_out(work->cgroup, work->p))
		return NOT_RECLAIMED;
	if (cow_child_end(&c))
		return NO_CHILD;
	return content_is_right(work->p, every_page, TAG + 1) ? FINE :
								PARENT_IS_WRONG;
}

/* The child has exited: the pages are read back from swap, then written. */
static int round_after_child(struct work *work)
{
	struct cow_child c;
	int i;

	cow_fill(work->p, NR * ps, TAG);
	if (cow_child_idle(&c))
		return NO_CHILD;
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	/* Still in the swap cache when the child goes */
	if (!content_is_right(work->p, no_page, 0))
		return PARENT_IS_WRONG;
	if (cow_child_end(&c))
		return NO_CHILD;
	write_pages(work->p, odd, TAG + 1);
	if (!content_is_right(work->p, odd, TAG + 1))
		return PARENT_IS_WRONG;
	/* Alone with all of them, wherever they are */
	write_pages(work->p, every_page, TAG + 1);
	for (i = 0; i < NR; i++)
		if (!(cow_pagemap(work->p + i * ps) & COW_PM_EXCLUSIVE))
			return STILL_SHARED;
	if (cow_smaps_kb(work->p, "Swap") ||
	    cow_smaps_kb(work->p, "Rss") != NR * (long)ps / 1024)
		return STILL_IN_SWAP;
	return content_is_right(work->p, every_page, TAG + 1) ? FINE :
								PARENT_IS_WRONG;
}

/* Do just these pages have this bit in pagemap? */
static bool bits_are_right(const char *p, __u64 bit, page_set want)
{
	int i;

	for (i = 0; i < NR; i++)
		if (want(i) != !!(cow_pagemap(p + i * ps) & bit))
			return false;
	return true;
}

/* Out to swap, and back when that is switched off: the same pages have the bit. */
static int swapoff_keeps(struct work *work, __u64 bit, page_set want)
{
	int ret;

	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	ret = without_swap(work);
	if (ret != FINE)
		return ret;
	return bits_are_right(work->p, bit, want) ? FINE : LOST_FROM_SWAP;
}

static int inherits_soft_dirty(struct cow_child *self, void *arg)
{
	struct work *work = arg;

	(void)self;
	return !bits_are_right(work->p, COW_PM_SOFT_DIRTY, even);
}

static bool clear_soft_dirty(void)
{
	return cow_write_file("/proc/self/clear_refs", "4") == 0;
}

/* The even pages were written to after the fork: their bits go to swap and come back. */
static int round_of_soft_dirty(struct work *work)
{
	struct cow_child c, heir;

	cow_fill(work->p, NR * ps, TAG);
	if (cow_child_idle(&c))
		return NO_CHILD;
	if (!clear_soft_dirty())
		return NOT_CLEARED;
	write_pages(work->p, even, TAG + 1);
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (!bits_are_right(work->p, COW_PM_SOFT_DIRTY, even))
		return LOST_IN_SWAP;
	if (cow_child_fork(&heir, inherits_soft_dirty, work))
		return NO_CHILD;
	if (cow_child_wait(&heir))
		return LOST_AT_FORK;
	if (!content_is_right(work->p, even, TAG + 1))
		return PARENT_IS_WRONG;
	if (!bits_are_right(work->p, COW_PM_SOFT_DIRTY, even))
		return LOST_FROM_SWAP;
	/* Cleared where they lie */
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (!clear_soft_dirty() ||
	    !bits_are_right(work->p, COW_PM_SOFT_DIRTY, no_page))
		return NOT_CLEARED;
	write_pages(work->p, odd, TAG + 1);
	if (!bits_are_right(work->p, COW_PM_SOFT_DIRTY, odd))
		return NOT_WRITTEN;
	if (cow_child_end(&c))
		return NO_CHILD;
	return content_is_right(work->p, every_page, TAG + 1) ? FINE :
								PARENT_IS_WRONG;
}

/*
 * Cleared while they are in swap, and brought back by a read: nothing is written, but the
 * next write must be noticed. Written pages stay soft-dirty when swapoff brings them back.
 */
static int round_of_late_clearing(struct work *work)
{
	int ret;

	cow_fill(work->p, NR * ps, TAG);
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (!clear_soft_dirty())
		return NOT_CLEARED;
	if (!content_is_right(work->p, no_page, 0))
		return PARENT_IS_WRONG;
	if (!bits_are_right(work->p, COW_PM_SOFT_DIRTY, no_page))
		return NOT_CLEARED;
	write_pages(work->p, odd, TAG + 1);
	if (!bits_are_right(work->p, COW_PM_SOFT_DIRTY, odd))
		return NOT_WRITTEN;
	ret = swapoff_keeps(work, COW_PM_SOFT_DIRTY, odd);
	if (ret != FINE)
		return ret;
	return content_is_right(work->p, odd, TAG + 1) ? FINE : PARENT_IS_WRONG;
}

static bool protect_pages(int fd, char *p, page_set which, bool protect)
{
	int i;

	for (i = 0; i < NR; i++)
		if (which(i) && cow_uffd_protect(fd, p + i * ps, ps, protect))
			return false;
	return true;
}

/* A fork that userfaultfd does not follow leaves nothing protected in the child. */
static int inherits_protection(struct cow_child *self, void *arg)
{
	struct work *work = arg;

	(void)self;
	return !bits_are_right(work->p, COW_PM_UFFD_WP, no_page);
}

/* The odd pages are protected by userfaultfd, of which nobody reads the messages. */
static int round_of_protection(struct work *work)
{
	struct cow_child c, heir;
	int fd;

	cow_fill(work->p, NR * ps, TAG);
	if (cow_uffd_wp(&fd, work->p, NR * ps, 0))
		return NO_USERFAULTFD;
	if (cow_child_idle(&c))
		return NO_CHILD;
	if (!protect_pages(fd, work->p, odd, true))
		return NOT_PROTECTED;
	write_pages(work->p, even, TAG + 1);
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (!bits_are_right(work->p, COW_PM_UFFD_WP, odd))
		return LOST_IN_SWAP;
	if (cow_child_fork(&heir, inherits_protection, work))
		return NO_CHILD;
	if (cow_child_wait(&heir))
		return KEPT_AT_FORK;
	if (!content_is_right(work->p, even, TAG + 1))
		return PARENT_IS_WRONG;
	if (!bits_are_right(work->p, COW_PM_UFFD_WP, odd))
		return LOST_FROM_SWAP;
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (!protect_pages(fd, work->p, odd, false) ||
	    !bits_are_right(work->p, COW_PM_UFFD_WP, no_page))
		return NOT_CLEARED;
	close(fd);
	write_pages(work->p, odd, TAG + 1);
	if (cow_child_end(&c))
		return NO_CHILD;
	return content_is_right(work->p, every_page, TAG + 1) ? FINE :
								PARENT_IS_WRONG;
}

/* Protected while they are in swap: still so when reads, or swapoff, bring them back */
static int round_of_late_protection(struct work *work)
{
	int fd, ret;

	cow_fill(work->p, NR * ps, TAG);
	if (cow_uffd_wp(&fd, work->p, NR * ps, 0))
		return NO_USERFAULTFD;
	if (!swap_out(work->cgroup, work->p))
		return NOT_SWAPPED;
	if (!protect_pages(fd, work->p, odd, true) ||
	    !bits_are_right(work->p, COW_PM_UFFD_WP, odd))
		return NOT_PROTECTED;
	if (!content_is_right(work->p, no_page, 0))
		return PARENT_IS_WRONG;
	if (!bits_are_right(work->p, COW_PM_UFFD_WP, odd))
		return LOST_FROM_SWAP;
	ret = swapoff_keeps(work, COW_PM_UFFD_WP, odd);
	if (ret != FINE)
		return ret;
	close(fd);
	return content_is_right(work->p, no_page, 0) ? FINE : PARENT_IS_WRONG;
}

/*
 * Pages that were protected from any access are so when swapoff brings them back: an access
 * takes the protection away, and with it the bit.
 */
static int round_of_access_protection(struct work *work)
{
	int i, fd, ret;

	cow_fill(work->p, NR * ps, TAG);
	if (cow_uffd_access(&fd, work->p, NR * ps, UFFD_FEATURE_RWP_ASYNC))
		return NO_USERFAULTFD;
	for (i = 0; i < NR; i++)
		if (odd(i) && cow_uffd_protect_access(fd, work->p + i * ps, ps, true))
			return NOT_PROTECTED;
	ret = swapoff_keeps(work, COW_PM_UFFD_WP, odd);
	if (ret != FINE)
		return ret;
	if (!content_is_right(work->p, no_page, 0))
		return PARENT_IS_WRONG;
	if (!bits_are_right(work->p, COW_PM_UFFD_WP, no_page))
		return NOT_CLEARED;
	close(fd);
	return FINE;
}

static int in_cgroup(struct cow_child *self, void *arg)
{
	struct work *work = arg;
	int i, ret = FINE;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(work->cgroup))
		return NO_CGROUP;
	for (i = 0; i < ROUNDS && ret == FINE; i++) {
		work->p = cow_map(NR * ps, 0);
		if (!work->p)
			return NO_MEMORY;
		ret = work->round(work);
		cow_unmap(work->p, NR * ps);
	}
	return ret;
}

static void with_swap(struct __test_metadata *_metadata,
		      FIXTURE_DATA(swap_and_poison) *self,
		      int (*round)(struct work *work))
{
	struct work work = {
		.cgroup = self->cgroup,
		.off = &self->off,
		.round = round,
	};
	const char *reason;
	struct cow_child c;
	long bytes;
	int status;

	if (!cow_can_page_out(NR))
		SKIP(return, "no swap space");
	reason = make_cgroup(self->cgroup);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_child_fork(&c, in_cgroup, &work));
	status = cow_child_wait(&c);
	if (status == NOT_SWAPPED)
		SKIP(return, "the pages do not go to swap");
	if (status == NOT_SWITCHED_OFF)
		SKIP(return, "swap space cannot be switched off");
	if (status == NO_USERFAULTFD)
		SKIP(return, "no such protection by userfaultfd");
	EXPECT_EQ(FINE, status);
	/* The last user of a swap slot has freed it. */
	ASSERT_EQ(0, cow_cgroup_read(self->cgroup, "memory.swap.current", &bytes));
	EXPECT_GT(SLACK, bytes / (long)ps);
}

TEST_F_TIMEOUT(swap_and_poison, both_write, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_of_both);
}

TEST_F_TIMEOUT(swap_and_poison, swapoff, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_of_swapoff);
}

TEST_F_TIMEOUT(swap_and_poison, swapoff_of_heirs, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_of_heirs);
}

TEST_F_TIMEOUT(swap_and_poison, copies, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_of_copies);
}

TEST_F_TIMEOUT(swap_and_poison, written_after_child, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_after_child);
}

TEST_F_TIMEOUT(swap_and_poison, soft_dirty, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	with_swap(_metadata, self, round_of_soft_dirty);
}

TEST_F_TIMEOUT(swap_and_poison, soft_dirty_cleared_late, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	with_swap(_metadata, self, round_of_late_clearing);
}

TEST_F_TIMEOUT(swap_and_poison, protected, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_of_protection);
}

TEST_F_TIMEOUT(swap_and_poison, protected_late, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_of_late_protection);
}

TEST_F_TIMEOUT(swap_and_poison, protected_from_access, TEST_TIMEOUT)
{
	with_swap(_metadata, self, round_of_access_protection);
}

/*
 * Poison
 */

static sigjmp_buf out;
static int caught, caught_code;
static char *caught_address;
/* What an access gets */
static int refusal = SIGBUS;

static void on_refusal(int sig, siginfo_t *info, void *context)
{
	(void)context;
	__atomic_store_n(&caught, sig, __ATOMIC_RELAXED);
	__atomic_store_n(&caught_code, info->si_code, __ATOMIC_RELAXED);
	__atomic_store_n(&caught_address, (char *)info->si_addr, __ATOMIC_RELAXED);
	siglongjmp(out, 1);
}

/* Is an access to the page refused as that to poisoned memory, or to a guard page? */
static bool access_is_refused(char *page, bool write)
{
	if (sigsetjmp(out, 1)) {
		char *address = __atomic_load_n(&caught_address, __ATOMIC_RELAXED);

		return __atomic_load_n(&caught, __ATOMIC_RELAXED) == refusal &&
		       (refusal != SIGBUS ||
			__atomic_load_n(&caught_code, __ATOMIC_RELAXED) == BUS_MCEERR_AR) &&
		       address >= page && address < page + ps;
	}
	if (write)
		cow_touch(page, 'w');
	else
		cow_peek(page);
	return false;
}

static int catch_refusals(void)
{
	struct sigaction action = {
		.sa_sigaction = on_refusal,
		.sa_flags = SA_SIGINFO,
	};

	return sigaction(refusal, &action, NULL) ? -errno : 0;
}

/* Whoever injects the error gets a SIGBUS for it, too. */
static int poison(char *page)
{
	int ret;

	if (sigsetjmp(out, 1))
		return 0;
	ret = madvise(page, ps, MADV_HWPOISON);
	return ret ? -errno : 0;
}

static bool all_but_poisoned(int i)
{
	return i != POISONED;
}

static bool others_are_right(char *p, page_set written, __u64 tag)
{
	int i;

	for (i = 0; i < NR; i++)
		if (all_but_poisoned(i) &&
		    cow_check(p + i * ps, ps, written(i) ? tag : TAG) != -1)
			return false;
	return true;
}

/* Reads and writes all of its pages but the poisoned one. */
static int meets_poison(struct cow_child *self, void *arg)
{
	char *p = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 1;
	if (!access_is_refused(p + POISONED * ps, false))
		return 2;
	if (!others_are_right(p, no_page, 0))
		return 3;
	write_pages(p, all_but_poisoned, TAG + 2);
	if (!access_is_refused(p + POISONED * ps, true))
		return 4;
	return others_are_right(p, all_but_poisoned, TAG + 2) ? 0 : 5;
}

/* NULL, or the reason why the kernel does not know poisoned memory */
static const char *no_memory_failure(const char *p)
{
	/* The guard page cannot be poisoned, and that is the only reason. */
	errno = 0;
	madvise((char *)p - ps, ps, MADV_HWPOISON);
	return errno == EFAULT ? NULL : strerror(errno);
}

/* In the parent, too. The child waits to be told. */
static void expect_refusals(struct __test_metadata *_metadata, char *p, struct cow_child *c)
{
	int i;

	/* Next to it, and everywhere */
	for (i = 0; i < NR; i++)
		if (all_but_poisoned(i) && even(i))
			cow_fill(p + i * ps, ps, TAG + 1);
	EXPECT_TRUE(access_is_refused(p + POISONED * ps, true));
	EXPECT_TRUE(others_are_right(p, even, TAG + 1));
	ASSERT_EQ(0, cow_child_send(c, 2));
	EXPECT_EQ(0, cow_child_wait(c));
	EXPECT_TRUE(others_are_right(p, even, TAG + 1));
	EXPECT_TRUE(access_is_refused(p + POISONED * ps, false));
	cow_unmap(p, NR * ps);
}

static void test_poison(struct __test_metadata *_metadata, bool before_fork)
{
	const char *reason;
	struct cow_child c;
	char *p;

	if (!cow_may_change())
		SKIP(return, "poisoning a page " COW_NEEDS);
	p = cow_map(NR * ps, 0);
	ASSERT_NE(NULL, p);
	reason = no_memory_failure(p);
	if (reason)
		SKIP(return, "no MADV_HWPOISON: %s", reason);
	cow_fill(p, NR * ps, TAG);
	ASSERT_EQ(0, catch_refusals());
	/* Not when it is poisoned, as with vm.memory_failure_early_kill, but at an access */
	prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0);
	if (before_fork)
		ASSERT_EQ(0, poison(p + POISONED * ps));
	ASSERT_EQ(0, cow_child_fork(&c, meets_poison, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	if (!before_fork)
		ASSERT_EQ(0, poison(p + POISONED * ps));
	expect_refusals(_metadata, p, &c);
}

TEST_F_TIMEOUT(swap_and_poison, poisoned, TEST_TIMEOUT)
{
	test_poison(_metadata, false);
}

/* The child inherits the poison, and no fresh page in its place. */
TEST_F_TIMEOUT(swap_and_poison, poisoned_before_fork, TEST_TIMEOUT)
{
	test_poison(_metadata, true);
}

/*
 * After a migration, userfaultfd makes poisoned what was poisoned on the other machine.
 * There is no page, but what is in the page table instead is for the child as well.
 */
TEST_F_TIMEOUT(swap_and_poison, poison_is_inherited, TEST_TIMEOUT)
{
	struct uffdio_poison args = { .range.len = ps };
	const char *reason;
	struct cow_child c;
	char *p;
	int fd;

	p = cow_map(NR * ps, 0);
	ASSERT_NE(NULL, p);
	/* Without it an access is another error, or a kernel bug in User-mode Linux. */
	reason = no_memory_failure(p);
	if (reason)
		SKIP(return, "no MADV_HWPOISON: %s", reason);
	write_pages(p, all_but_poisoned, TAG);
	reason = cow_uffd_missing(&fd, p, NR * ps, UFFD_FEATURE_POISON);
	if (reason)
		SKIP(return, "%s", reason);
	args.range.start = (uintptr_t)(p + POISONED * ps);
	ASSERT_EQ(0, ioctl(fd, UFFDIO_POISON, &args));
	ASSERT_EQ(0, catch_refusals());
	ASSERT_EQ(0, cow_child_fork(&c, meets_poison, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	expect_refusals(_metadata, p, &c);
	close(fd);
}

static void test_guard(struct __test_metadata *_metadata, char *p)
{
	struct cow_child c;

	if (madvise(p + POISONED * ps, ps, MADV_GUARD_INSTALL)) {
		ASSERT_EQ(EINVAL, errno);
		SKIP(return, "no MADV_GUARD_INSTALL for this memory");
	}
	refusal = SIGSEGV;
	ASSERT_EQ(0, catch_refusals());
	ASSERT_EQ(0, cow_child_fork(&c, meets_poison, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	expect_refusals(_metadata, p, &c);
}

/* A guard page is no page either. */
TEST_F_TIMEOUT(swap_and_poison, guard_is_inherited, TEST_TIMEOUT)
{
	char *p = cow_map(NR * ps, 0);

	ASSERT_NE(NULL, p);
	cow_fill(p, NR * ps, TAG);
	test_guard(_metadata, p);
}

/* Nor is it freed with the pages around it, or with the page table. */
TEST_F_TIMEOUT(swap_and_poison, guard_is_kept, TEST_TIMEOUT)
{
	char *p = cow_map(NR * ps, NR * ps);
	int i;

	ASSERT_NE(NULL, p);
	cow_fill(p, NR * ps, TAG);
	if (madvise(p + POISONED * ps, ps, MADV_GUARD_INSTALL))
		SKIP(return, "no MADV_GUARD_INSTALL for this memory");
	refusal = SIGSEGV;
	ASSERT_EQ(0, catch_refusals());
	ASSERT_EQ(0, madvise(p, NR * ps, MADV_DONTNEED));
	EXPECT_TRUE(access_is_refused(p + POISONED * ps, false));
	EXPECT_TRUE(access_is_refused(p + POISONED * ps, true));
	for (i = 0; i < NR; i++)
		if (all_but_poisoned(i))
			EXPECT_TRUE(cow_is_zero(p + i * ps, ps))
				TH_LOG("page %d", i);
	cow_unmap(p, NR * ps);
}

/* Here fork() has no page to copy that would make it look at the page table. */
TEST_F_TIMEOUT(swap_and_poison, guard_in_file_is_inherited, TEST_TIMEOUT)
{
	char *p = cow_map(NR * ps, 0);
	int fd = memfd_create("cow_guard", MFD_CLOEXEC);

	ASSERT_NE(NULL, p);
	ASSERT_LE(0, fd);
	/* What cow_fill() writes depends on the address: the file gets a copy of it. */
	cow_fill(p, NR * ps, TAG);
	ASSERT_EQ((ssize_t)(NR * ps), write(fd, p, NR * ps));
	ASSERT_EQ(p, mmap(p, NR * ps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0));
	close(fd);
	test_guard(_metadata, p);
}

TEST_HARNESS_MAIN
