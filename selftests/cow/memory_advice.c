// SPDX-License-Identifier: GPL-2.0
/*
 * Copy-on-write faults in memory with MADV_FREE, MADV_MERGEABLE, mlock or mbind, on any
 * kernel. Each of them applies to the copies as well, and only to the process that called
 * it. What a child does not inherit (MADV_WIPEONFORK, MADV_DONTFORK) is not shared. Neither
 * migration to another node nor a NUMA hinting fault loses a write or its report.
 */
#include <linux/io_uring.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

/* Since 6.11 */
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE	0x08
#endif

#define NR		64	/* pages */
#define TAG		31
#define MAX_NODES	64

static size_t ps;
/* What the parent found in the ring of an io_uring */
static char *ring_copy;

FIXTURE(memory_advice)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char *p;
};

FIXTURE_VARIANT(memory_advice)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(memory_advice, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(memory_advice, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(memory_advice, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(memory_advice)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup_pages(&self->saved, variant->ahead, &self->p, NR, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN_PARENT(memory_advice)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/*
 * MADV_FREE: a page that is written to afterwards stays. Any other one has what it had
 * before, or zeroes.
 */

/* One that was dropped reads as zeroes, but for the byte written since then. */
static bool old_or_dropped(char *page, bool written)
{
	const size_t word = sizeof(__u64);
	size_t i;

	if (written && cow_peek(page) != 'w')
		return false;
	if (!written)
		return cow_check(page, ps, TAG) == -1 || cow_is_zero(page, ps);
	if (cow_check(page + word, ps - word, TAG) == -1)
		return true;
	for (i = 1; i < ps; i++)
		if (page[i])
			return false;
	return true;
}

/* Of each four pages, the parent writes to the first one, the child to the second one. */
static bool by_parent(int i)
{
	return i % 4 == 0;
}

static bool by_child(int i)
{
	return i % 4 == 1;
}

/* Write to the first byte of some of our pages, the whole of the ones after them. */
static void write_ours(char *p, bool (*ours)(int i), __u64 tag)
{
	int i;

	for (i = 0; i < NR - 2; i++) {
		if (!ours(i))
			continue;
		cow_touch(p + i * ps, 'w');
		cow_fill(p + (i + 2) * ps, ps, tag);
	}
}

/* The first page that is not what it may be, or -1 */
static int wrong_page(char *p, bool (*ours)(int i), __u64 tag)
{
	int i;

	for (i = 0; i < NR; i++) {
		bool whole = i >= 2 && ours(i - 2);

		if (whole ? cow_check(p + i * ps, ps, tag) != -1 :
			    !old_or_dropped(p + i * ps, ours(i) && i < NR - 2))
			return i;
	}
	return -1;
}

static int writes_lazily_freed(struct cow_child *self, void *arg)
{
	int wrong;

	write_ours(arg, by_child, TAG + 2);
	madvise(arg, NR * ps, MADV_PAGEOUT);
	wrong = wrong_page(arg, by_child, TAG + 2);
	if (wrong != -1)
		return 1 + wrong;
	/* The parent writes, and asks for its pages to be reclaimed. */
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 101;
	madvise(arg, NR * ps, MADV_PAGEOUT);
	wrong = wrong_page(arg, by_child, TAG + 2);
	return wrong == -1 ? 0 : 1 + wrong;
}

TEST_F_TIMEOUT(memory_advice, lazily_freed, TEST_TIMEOUT)
{
	struct cow_child c;
	int status, i;

	if (madvise(self->p, NR * ps, MADV_FREE))
		SKIP(return, "MADV_FREE: %s", strerror(errno));
	/* MADV_FREE only takes effect when the pages leave the batch of their CPU. */
	ASSERT_EQ(0, cow_drain_lru());
	ASSERT_EQ(0, cow_child_fork(&c, writes_lazily_freed, self->p));
	ASSERT_EQ(1, cow_child_recv(&c));
	write_ours(self->p, by_parent, TAG + 1);
	if (cow_pfn_visible()) {
		/* Copies are dirty: reclaim must not drop them. */
		for (i = 0; i < NR - 2; i++)
			if (by_parent(i))
				EXPECT_NE(0, cow_page_flags(self->p + i * ps) &
					     COW_KPF_SWAPBACKED)
					TH_LOG("page %d", i);
	}
	madvise(self->p, NR * ps, MADV_PAGEOUT);
	EXPECT_EQ(-1, wrong_page(self->p, by_parent, TAG + 1));
	status = cow_child_end(&c);
	EXPECT_EQ(0, status) {
		if (status > 0 && status <= NR)
			TH_LOG("the child's page %d", status - 1);
	}
	EXPECT_EQ(-1, wrong_page(self->p, by_parent, TAG + 1));
}

/*
 * A lazily freed page that was written to since must not be dropped. Only its PTE is dirty
 * then: a fork, a split, or a migration has to keep that.
 */
#define WRITTEN		5	/* this page; the last one shows that reclaim drops pages */

struct freed {
	char *p;
	size_t len;
};

static bool free_and_write(const struct freed *freed)
{
	if (madvise(freed->p, freed->len, MADV_FREE) || cow_drain_lru())
		return false;
	cow_touch(freed->p + WRITTEN * ps, 'w');
	return true;
}

#define NOT_DROPPED	100
#define NOTHING_DROPPED	"freed pages are not dropped"

/* 0 if what was written is there after reclaim, or NOT_DROPPED if nothing was reclaimed */
static int reclaim_freed(const struct freed *freed)
{
	const char *page = freed->p + WRITTEN * ps;

	madvise(freed->p, freed->len, MADV_PAGEOUT);
	if (!cow_is_zero(freed->p + freed->len - ps, ps))
		return NOT_DROPPED;
	if (cow_peek(page) != 'w')
		return 1;
	return cow_check(page + sizeof(__u64), ps - sizeof(__u64), TAG) == -1 ? 0 : 2;
}

/* ret is what reclaim_freed() returned. */
static void expect_kept(struct __test_metadata *_metadata, int ret)
{
	if (ret == NOT_DROPPED)
		SKIP(return, NOTHING_DROPPED);
	EXPECT_EQ(0, ret);
}

/* After the parent has unmapped the pages */
static int reclaims_freed(struct cow_child *self, void *arg)
{
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 3;
	return reclaim_freed(arg);
}

static int fork_freed(struct __test_metadata *_metadata, const struct freed *freed)
{
	struct cow_child c;

	ASSERT_TRUE(free_and_write(freed));
	ASSERT_EQ(0, cow_child_fork(&c, reclaims_freed, (void *)freed));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, madvise(freed->p, freed->len, MADV_DONTNEED));
	return cow_child_end(&c);
}

/*
 * What one process lets go is still the other's, also where nothing but the folio is dirty.
 */

static int frees(struct cow_child *self, void *arg)
{
	(void)self;
	return madvise(arg, NR * ps, MADV_FREE) || cow_drain_lru();
}

static int keeps_all(struct cow_child *self, void *arg)
{
	if (cow_child_stay(self))
		return 1;
	return cow_check(arg, NR * ps, TAG) == -1 ? 0 : 2;
}

/* Reclaimed, if that is possible, the pages are in swap. */
static int reclaims_and_keeps(struct cow_child *self, void *arg)
{
	if (cow_child_stay(self))
		return 1;
	madvise(arg, NR * ps, MADV_PAGEOUT);
	return cow_check(arg, NR * ps, TAG) == -1 ? 0 : 2;
}

/* Read back from swap: no PTE is dirty. NULL, or why that is not possible */
static const char *clean_ptes(struct __test_metadata *_metadata, char *p)
{
	/* Where swap is synchronous (zram, a ramdisk), nor was the folio. */
	if (cow_kernel_before(7, 0))
		return "a kernel before 7.0 may lose such pages";
	if (!cow_page_out(p, NR))
		return "the pages do not go to swap";
	ASSERT_EQ(-1, cow_check(p, NR * ps, TAG));
	return NULL;
}

TEST_F_TIMEOUT(memory_advice, freed_by_child, TEST_TIMEOUT)
{
	const char *reason = clean_ptes(_metadata, self->p);
	struct cow_child c;

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_child_fork(&c, frees, self->p));
	ASSERT_EQ(0, cow_child_wait(&c));
	madvise(self->p, NR * ps, MADV_PAGEOUT);
	EXPECT_EQ(-1, cow_check(self->p, NR * ps, TAG));
}

TEST_F_TIMEOUT(memory_advice, freed_by_parent, TEST_TIMEOUT)
{
	const char *reason = clean_ptes(_metadata, self->p);
	struct cow_child c;

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_child_fork(&c, reclaims_and_keeps, self->p));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, madvise(self->p, NR * ps, MADV_FREE));
	ASSERT_EQ(0, cow_drain_lru());
	ASSERT_EQ(0, madvise(self->p, NR * ps, MADV_DONTNEED));
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_F_TIMEOUT(memory_advice, freed_and_written_before_fork, TEST_TIMEOUT)
{
	struct freed freed = { .p = self->p, .len = NR * ps };

	expect_kept(_metadata, fork_freed(_metadata, &freed));
}

/* PTEs of a folio of 64 kB, which a fork takes together; another folio is dropped */
TEST_F_TIMEOUT(memory_advice, freed_mthp_and_written_before_fork, TEST_TIMEOUT)
{
	struct freed freed = { .len = 2 * 65536 };
	const char *reason;

	reason = cow_map_mthp(&self->undo, &freed.p, freed.len, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	expect_kept(_metadata, fork_freed(_metadata, &freed));
}

/* All that was not freed is there after reclaim. */
static void free_and_reclaim(struct __test_metadata *_metadata, char *p, size_t len,
			     const struct freed *freed)
{
	const char *end = freed->p + freed->len;

	ASSERT_EQ(0, madvise(freed->p, freed->len, MADV_FREE));
	ASSERT_EQ(0, cow_drain_lru());
	madvise(p, len, MADV_PAGEOUT);
	ASSERT_EQ(-1, cow_check(p, freed->p - p, TAG));
	ASSERT_EQ(-1, cow_check(end, p + len - end, TAG));
	if (!cow_is_zero(freed->p, freed->len))
		SKIP(return, NOTHING_DROPPED);
}

TEST_F_TIMEOUT(memory_advice, part_of_huge_page_freed, TEST_TIMEOUT)
{
	size_t len = cow_pmd_size();
	struct freed freed = { .len = ps };
	const char *reason;
	char *p;

	reason = cow_map_huge(&self->undo, &p, len, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	freed.p = p + WRITTEN * ps;
	free_and_reclaim(_metadata, p, len, &freed);
}

/* Of a large folio that was read back from swap, no PTE is dirty. */
TEST_F_TIMEOUT(memory_advice, part_of_mthp_freed, TEST_TIMEOUT)
{
	const int nr = 65536 / ps;
	struct freed freed = { .len = 65536 / 2 };
	const char *reason;
	char *p;

	reason = cow_map_mthp(&self->undo, &p, 65536, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	if (!cow_page_out(p, nr))
		SKIP(return, "the pages do not go to swap");
	ASSERT_EQ(-1, cow_check(p, 65536, TAG));
	if (cow_large_pages(p, nr) != nr)
		SKIP(return, "small pages come back from swap");
	freed.p = p;
	free_and_reclaim(_metadata, p, 65536, &freed);
}

TEST_F_TIMEOUT(memory_advice, freed_and_written_before_split, TEST_TIMEOUT)
{
	struct freed freed = { .len = 2 * cow_pmd_size() };
	const char *reason;

	reason = cow_map_huge(&self->undo, &freed.p, freed.len, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_TRUE(free_and_write(&freed));
	ASSERT_EQ(0, mprotect(freed.p, ps, PROT_READ));
	ASSERT_EQ(0, mprotect(freed.p, ps, PROT_READ | PROT_WRITE));
	expect_kept(_metadata, reclaim_freed(&freed));
}

/*
 * MADV_WIPEONFORK and MADV_DONTFORK, for the pages in the middle
 */

static bool in_the_middle(int i)
{
	return i >= NR / 4 && i < NR * 3 / 4;
}

static int advise_middle(char *p, int advice)
{
	return madvise(p + NR / 4 * ps, NR / 2 * ps, advice) ? -errno : 0;
}

struct inherited {
	char *p;
	bool wiped;		/* or not there at all */
};

static bool page_is_there(char *page)
{
	unsigned char in_core;

	return mincore(page, ps, &in_core) == 0 || errno != ENOMEM;
}

/* Looks at what it has inherited, writes to it, and has it still at the end. */
static int writes_inherited(struct cow_child *self, void *arg)
{
	struct inherited *inherited = arg;
	char *p = inherited->p;
	int i;

	for (i = 0; i < NR; i++) {
		char *page = p + i * ps;

		if (!in_the_middle(i)) {
			if (cow_check(page, ps, TAG) != -1)
				return 1 + i;
		} else if (inherited->wiped ? !cow_is_zero(page, ps) :
					      page_is_there(page)) {
			return 1 + i;
		}
	}
	for (i = 0; i < NR; i++)
		if (inherited->wiped || !in_the_middle(i))
			cow_fill(p + i * ps, ps, TAG + 2);
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 101;
	for (i = 0; i < NR; i++)
		if ((inherited->wiped || !in_the_middle(i)) &&
		    cow_check(p + i * ps, ps, TAG + 2) != -1)
			return 1 + i;
	return 0;
}

static void test_inherited(struct __test_metadata *_metadata,
			   struct inherited *inherited)
{
	char *p = inherited->p;
	struct cow_child c;
	int i, status;

	ASSERT_EQ(0, cow_child_fork(&c, writes_inherited, inherited));
	status = cow_child_recv(&c);
	EXPECT_EQ(1, status);
	for (i = 0; status == 1 && i < NR; i++) {
		/* Nobody else has it. */
		if (in_the_middle(i))
			EXPECT_NE(0, cow_pagemap(p + i * ps) & COW_PM_EXCLUSIVE)
				TH_LOG("page %d", i);
		EXPECT_EQ(-1, cow_check(p + i * ps, ps, TAG))
			TH_LOG("page %d", i);
		cow_fill(p + i * ps, ps, TAG + 1);
	}
	status = cow_child_end(&c);
	EXPECT_EQ(0, status) {
		if (status > 0 && status <= NR)
			TH_LOG("the child's page %d", status - 1);
	}
	for (i = 0; i < NR; i++)
		EXPECT_EQ(-1, cow_check(p + i * ps, ps, TAG + 1))
			TH_LOG("page %d", i);
}

TEST_F_TIMEOUT(memory_advice, wiped_in_child, TEST_TIMEOUT)
{
	struct inherited inherited = { .p = self->p, .wiped = true };
	int ret = advise_middle(self->p, MADV_WIPEONFORK);

	if (ret)
		SKIP(return, "MADV_WIPEONFORK: %s", strerror(-ret));
	test_inherited(_metadata, &inherited);
}

static int finds_zeroes(struct cow_child *self, void *arg)
{
	(void)self;
	return cow_is_zero(arg, NR * ps) ? 0 : 1;
}

/* What the kernel may drop at any time must not be in two processes: see vgetrandom(). */
TEST_F_TIMEOUT(memory_advice, droppable_wiped_in_child, TEST_TIMEOUT)
{
	struct cow_child c;
	char *p;

	p = mmap(NULL, NR * ps, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS,
		 -1, 0);
	if (p == MAP_FAILED)
		SKIP(return, "MAP_DROPPABLE: %s", strerror(errno));
	cow_fill(p, NR * ps, TAG);
	ASSERT_EQ(0, cow_child_fork(&c, finds_zeroes, p));
	EXPECT_EQ(0, cow_child_wait(&c));
	munmap(p, NR * ps);
}

TEST_F_TIMEOUT(memory_advice, not_in_child, TEST_TIMEOUT)
{
	struct inherited inherited = { .p = self->p };

	ASSERT_EQ(0, advise_middle(self->p, MADV_DONTFORK));
	test_inherited(_metadata, &inherited);
}

/* Pages that a driver mapped when the mapping was made: no fault could bring them back. */
static int finds_ring(struct cow_child *self, void *arg)
{
	(void)self;
	return memcmp(arg, ring_copy, ps);
}

TEST_F_TIMEOUT(memory_advice, driver_pages_in_child, TEST_TIMEOUT)
{
	struct io_uring_params params = {};
	int fd = syscall(__NR_io_uring_setup, 8, &params);
	struct cow_child c;
	char *ring;

	if (fd < 0)
		SKIP(return, "no io_uring: %s", strerror(errno));
	ring = mmap(NULL, ps, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	ASSERT_NE(MAP_FAILED, ring);
	ring_copy = memcpy(self->p, ring, ps);
	/* It has at least its number of entries. */
	ASSERT_FALSE(cow_is_zero(ring, ps));
	ASSERT_EQ(0, cow_child_fork(&c, finds_ring, ring));
	EXPECT_EQ(0, cow_child_wait(&c));
	munmap(ring, ps);
	close(fd);
}

/*
 * mlock()
 */

/* It copies what is shared: nothing faults later. */
TEST_F_TIMEOUT(memory_advice, locked_while_shared, TEST_TIMEOUT)
{
	static struct cow_measure m;
	struct cow_child c;

	ASSERT_EQ(0, cow_child_fork(&c, keeps_all, self->p));
	ASSERT_EQ(1, cow_child_recv(&c));
	if (mlock(self->p, NR * ps)) {
		cow_child_end(&c);
		SKIP(return, "mlock: %s", strerror(errno));
	}
	ASSERT_EQ(0, cow_measure(&m, self->p, NULL, NR));
	EXPECT_EQ(0, m.minflt);
	EXPECT_EQ(0, cow_child_end(&c));
	ASSERT_EQ(0, munlock(self->p, NR * ps));
}

/* How many of the pages has the kernel marked as locked? */
static int locked_pages(const char *p)
{
	int i, locked = 0;

	for (i = 0; i < NR; i++)
		locked += !!(cow_page_flags(p + i * ps) & COW_KPF_MLOCKED);
	return locked;
}

/* A child does not inherit locked memory, so its copies are not mlocked. */
static int writes_unlocked(struct cow_child *self, void *arg)
{
	int i;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 1;
	if (cow_status_kb("VmLck") || cow_smaps_kb(arg, "Locked"))
		return 2;
	/* The parent has written to all of its own. */
	if (cow_check(arg, NR * ps, TAG) != -1)
		return 5;
	for (i = 0; i < NR; i++)
		cow_touch((char *)arg + i * ps, 'c');
	if (cow_status_kb("VmLck") || cow_smaps_kb(arg, "Locked"))
		return 3;
	return locked_pages(arg) ? 4 : 0;
}

TEST_F_TIMEOUT(memory_advice, locked, TEST_TIMEOUT)
{
	long kb = NR * ps / 1024, before, i;
	struct cow_child c;

	if (cow_pfn_visible() && !cow_keep_locked(&self->undo))
		SKIP(return, "keeping compaction off locked pages " COW_NEEDS);
	before = cow_status_kb("VmLck");
	ASSERT_LE(0, before);
	if (mlock(self->p, NR * ps))
		SKIP(return, "mlock: %s", strerror(errno));
	ASSERT_EQ(0, cow_child_fork(&c, writes_unlocked, self->p));
	ASSERT_EQ(1, cow_child_recv(&c));
	for (i = 0; i < NR; i++)
		cow_touch(self->p + i * ps, 'w');
	EXPECT_EQ(before + kb, cow_status_kb("VmLck"));
	/* Each page is exclusive now, so all of them count. */
	EXPECT_EQ(kb, cow_smaps_kb(self->p, "Locked"));
	EXPECT_EQ(kb, cow_smaps_kb(self->p, "Rss"));
	if (cow_pfn_visible()) {
		cow_drain_lru();
		EXPECT_EQ(NR, locked_pages(self->p));
	}
	ASSERT_EQ(0, cow_child_send(&c, 2));
	EXPECT_EQ(0, cow_child_wait(&c));
	for (i = 0; i < NR; i++)
		EXPECT_EQ('w', cow_peek(self->p + i * ps));
	ASSERT_EQ(0, munlock(self->p, NR * ps));
	EXPECT_EQ(before, cow_status_kb("VmLck"));
	if (cow_pfn_visible())
		EXPECT_EQ(0, locked_pages(self->p));
}

/*
 * Where copies lie: of two nodes with memory. The policies are this process' own.
 */

/* Negative: that cannot be seen */
static int node_of(void *page)
{
	int status;

	return syscall(__NR_move_pages, 0, 1UL, &page, NULL, &status, 0) ? -errno : status;
}

/* Finds the first two nodes that give us a page. Returns how many there are, at most 2. */
static int find_nodes(int *node)
{
	unsigned long mask;
	int i, nr = 0;
	void *p;

	for (i = 0; i < MAX_NODES && nr < 2; i++) {
		mask = 1UL << i;
		p = cow_map(ps, 0);
		if (!p)
			return nr;
		/* The last bit of the mask is not looked at. */
		if (!syscall(__NR_mbind, p, ps, MPOL_BIND, &mask,
			     MAX_NODES + 1, 0)) {
			cow_touch(p, 1);
			if (node_of(p) == i)
				node[nr++] = i;
		}
		cow_unmap(p, ps);
	}
	return nr;
}

/* How many of the pages lie there? -1: that cannot be seen */
static int pages_on(char *p, int node)
{
	int i, status[NR], nr = 0;
	void *page[NR];

	for (i = 0; i < NR; i++)
		page[i] = p + i * ps;
	if (syscall(__NR_move_pages, 0, (unsigned long)NR, page, NULL, status,
		    0))
		return -1;
	for (i = 0; i < NR; i++)
		nr += status[i] == node;
	return nr;
}

static int bind_memory(char *p, int node, unsigned int flags)
{
	unsigned long mask = 1UL << node;

	return syscall(__NR_mbind, p, NR * ps, MPOL_BIND, &mask, MAX_NODES + 1,
		       flags) ? -errno : 0;
}

/* Does all of it lie there now? */
static bool move_to(char *p, int node)
{
	return !bind_memory(p, node, MPOL_MF_MOVE) && pages_on(p, node) == NR;
}

struct placed {
	char *p;
	int node;
};

/* By the policy of the process, not of the mapping */
static int writes_by_task_policy(struct cow_child *self, void *arg)
{
	struct placed *placed = arg;
	unsigned long mask = 1UL << placed->node;
	int i;

	(void)self;
	if (syscall(__NR_set_mempolicy, MPOL_BIND, &mask, MAX_NODES + 1) ||
	    syscall(__NR_mbind, placed->p, NR * ps, MPOL_DEFAULT, NULL, 0, 0))
		return 101;
	for (i = 0; i < NR; i++)
		cow_touch(placed->p + i * ps, 'c');
	return NR - pages_on(placed->p, placed->node);
}

/* Without a policy, copies lie where the process runs. On each CPU that it may use */
TEST_F_TIMEOUT(memory_advice, numa_local, TEST_TIMEOUT)
{
	unsigned int cpu, here;
	cpu_set_t set;
	int i, node[2], tried = 0;
	struct cow_child c;

	if (find_nodes(node) < 2)
		SKIP(return, "fewer than two NUMA nodes with memory");
	/* Not by a policy of whoever runs the test */
	ASSERT_EQ(0, syscall(__NR_set_mempolicy, MPOL_DEFAULT, NULL, 0UL));
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		int far;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set) ||
		    syscall(__NR_getcpu, NULL, &here, NULL) ||
		    ((int)here != node[0] && (int)here != node[1]))
			continue;
		far = (int)here == node[0] ? node[1] : node[0];
		/* A node that is full gives way to the other one. */
		if (cow_memory_is_low() || !move_to(self->p, far))
			continue;
		tried++;
		ASSERT_EQ(0, syscall(__NR_mbind, self->p, NR * ps,
				     MPOL_DEFAULT, NULL, 0, 0));
		ASSERT_EQ(0, cow_child_idle(&c));
		for (i = 0; i < NR; i++)
			cow_touch(self->p + i * ps, 'w');
		ASSERT_EQ(NR, pages_on(self->p, here))
			TH_LOG("CPU %u, node %u", cpu, here);
		ASSERT_EQ(0, cow_child_end(&c));
	}
	if (!tried)
		SKIP(return, "not enough free memory on both nodes");
}

/* Which CPUs are near which of two nodes? False if one of them has none that we may use. */
static bool find_cpus(const int *node, cpu_set_t *near)
{
	unsigned int cpu, here;
	cpu_set_t set;
	int i;

	CPU_ZERO(&near[0]);
	CPU_ZERO(&near[1]);
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set) ||
		    syscall(__NR_getcpu, NULL, &here, NULL))
			continue;
		for (i = 0; i < 2; i++)
			if ((int)here == node[i])
				CPU_SET(cpu, &near[i]);
	}
	return CPU_COUNT(&near[0]) && CPU_COUNT(&near[1]);
}

#define MANY	1024	/* pages */

/* Which of the two writes to page i: each to a half, or in turn */
static int whose(int i, bool in_turn)
{
	return in_turn ? i % 2 : i >= MANY / 2;
}

/*
 * Threads of two nodes write to the same memory; here it is one thread, which moves from
 * node to node. What is copied ahead lies where the fault was. That is wrong for one window
 * if each thread has a part of its own, and for half of the pages if they write in turn.
 */
TEST_F_TIMEOUT(memory_advice, numa_two_writers, TEST_TIMEOUT)
{
	int i, who, in_turn, wrong, most, node[2];
	struct cow_child c;
	cpu_set_t near[2];
	char *p;

	if (find_nodes(node) < 2 || !find_cpus(node, near))
		SKIP(return, "fewer than two NUMA nodes with memory and a CPU");
	if (cow_memory_is_low())
		SKIP(return, "not enough free memory");
	ASSERT_EQ(0, syscall(__NR_set_mempolicy, MPOL_DEFAULT, NULL, 0UL));
	p = cow_map(MANY * ps, 0);
	ASSERT_NE(NULL, p);
	cow_fill(p, MANY * ps, TAG);
	for (in_turn = 0; in_turn < 2; in_turn++) {
		wrong = 0;
		ASSERT_EQ(0, cow_child_idle(&c));
		for (i = 0; i < MANY; i++) {
			who = whose(i, in_turn);
			ASSERT_EQ(0, sched_setaffinity(0, sizeof(near[who]), &near[who]));
			cow_touch(p + i * ps, 'w');
		}
		for (i = 0; i < MANY; i++)
			wrong += node_of(p + i * ps) != node[whose(i, in_turn)];
		ksft_print_msg("%s: %d of %d pages lie on the other node\n",
			       in_turn ? "in turn" : "in parts", wrong, MANY);
		most = variant->ahead == COW_PLAIN ? 0 : in_turn ? MANY / 2 : 15;
		EXPECT_LE(wrong, most);
		ASSERT_EQ(0, cow_child_end(&c));
	}
}

TEST_F_TIMEOUT(memory_advice, numa_policy, TEST_TIMEOUT)
{
	struct placed placed = { .p = self->p };
	struct cow_child keeper, writer;
	int i, node[2];

	if (find_nodes(node) < 2)
		SKIP(return, "fewer than two NUMA nodes with memory");
	ASSERT_EQ(0, bind_memory(self->p, node[0], MPOL_MF_MOVE));
	if (pages_on(self->p, node[0]) != NR)
		SKIP(return, "not enough free memory on node %d", node[0]);
	ASSERT_EQ(0, cow_child_idle(&keeper));
	/* The pages stay where they are; copies follow the new policy. */
	ASSERT_EQ(0, bind_memory(self->p, node[1], 0));
	ASSERT_EQ(NR, pages_on(self->p, node[0]));
	for (i = 0; i < NR; i++)
		cow_touch(self->p + i * ps, 'w');
	EXPECT_EQ(NR, pages_on(self->p, node[1]));

	placed.node = node[0];
	ASSERT_EQ(0, cow_child_fork(&writer, writes_by_task_policy, &placed));
	EXPECT_EQ(0, cow_child_wait(&writer));
	EXPECT_EQ(NR, pages_on(self->p, node[1]));
	EXPECT_EQ(0, cow_child_end(&keeper));
}

/*
 * Migration: what a page is to those that map it does not change.
 */

/* nr huge pages in a row. NULL, or the reason why there are none */
static const char *map_huge(struct cow_undo *undo, char **p, int nr)
{
	/* It has 32 or 512 MB if a page has 16 or 64 kB. */
	if (cow_pmd_size() > 4096 * 1024)
		return "a huge page is too large for this test";
	return cow_map_huge(undo, p, nr * cow_pmd_size(), TAG);
}

/* Does all of the huge page lie there now, and does a PMD still map it? */
static bool move_huge(char *p, int node)
{
	void *page = p;
	int status;

	return !syscall(__NR_move_pages, 0, 1UL, &page, &node, &status, MPOL_MF_MOVE_ALL) &&
	       pages_on(p, node) == NR &&
	       cow_smaps_kb(p, "AnonHugePages") * 1024 == (long)cow_pmd_size();
}

/* One on the first of two nodes. NULL, or the reason why there is none */
static const char *map_huge_on(struct cow_undo *undo, char **p, int node[2])
{
	const char *reason;

	if (find_nodes(node) < 2)
		return "fewer than two NUMA nodes with memory";
	reason = map_huge(undo, p, 1);
	if (!reason && !move_huge(*p, node[0]))
		reason = "huge pages do not migrate";
	return reason;
}

struct area {
	char *p;
	size_t len;
};

static int keeps(struct cow_child *self, void *arg)
{
	const struct area *area = arg;

	if (cow_child_stay(self))
		return 1;
	return cow_check(area->p, area->len, TAG) == -1 ? 0 : 2;
}

/* Of both halves: the first one is the parent's alone, the second one is shared. */
TEST_F_TIMEOUT(memory_advice, numa_shared, TEST_TIMEOUT)
{
	struct area area = { .p = self->p, .len = NR * ps };
	struct cow_child c;
	int i, ret, node[2];

	if (find_nodes(node) < 2)
		SKIP(return, "fewer than two NUMA nodes with memory");
	if (!move_to(self->p, node[0]))
		SKIP(return, "not enough free memory on node %d", node[0]);
	ASSERT_EQ(0, cow_child_fork(&c, keeps, &area));
	ASSERT_EQ(1, cow_child_recv(&c));
	for (i = 0; i < NR / 2; i++)
		cow_touch(self->p + i * ps, 'w');
	ret = bind_memory(self->p, node[1], MPOL_MF_MOVE_ALL);
	if (ret || pages_on(self->p, node[1]) != NR) {
		cow_child_end(&c);
		SKIP(return, "shared pages do not migrate: %s", strerror(-ret));
	}
	for (i = 0; i < NR; i++)
		cow_touch(self->p + i * ps, 'v');
	for (i = 0; i < NR; i++)
		EXPECT_EQ('v', cow_peek(self->p + i * ps));
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_F_TIMEOUT(memory_advice, numa_freed_and_written, TEST_TIMEOUT)
{
	struct freed freed = { .p = self->p, .len = NR * ps };
	int node[2];

	if (find_nodes(node) < 2)
		SKIP(return, "fewer than two NUMA nodes with memory");
	if (!move_to(self->p, node[0]))
		SKIP(return, "not enough free memory on node %d", node[0]);
	ASSERT_TRUE(free_and_write(&freed));
	if (!move_to(self->p, node[1]))
		SKIP(return, "freed pages do not migrate");
	expect_kept(_metadata, reclaim_freed(&freed));
}

struct mover {
	char *p;		/* NULL: nothing for the moment */
	int nr;			/* small pages, or one huge page */
	int node[2];
	int turns;		/* so far */
	int moved[2];		/* of them, to each node */
	int stop;
	pthread_t thread;
};

/* To and fro between two nodes */
static void *moves(void *arg)
{
	int i, turn, to[NR], status[NR];
	struct mover *m = arg;
	void *page[NR];
	char *p;

	cow_leave_cpu();
	for (turn = 0; !__atomic_load_n(&m->stop, __ATOMIC_RELAXED); turn ^= 1) {
		p = __atomic_load_n(&m->p, __ATOMIC_ACQUIRE);
		if (!p) {
			sched_yield();
			continue;
		}
		for (i = 0; i < m->nr; i++) {
			page[i] = p + i * ps;
			to[i] = m->node[turn];
			status[i] = -1;
		}
		syscall(__NR_move_pages, 0, (unsigned long)m->nr, page, to, status,
			MPOL_MF_MOVE);
		for (i = 0; i < m->nr; i++)
			m->moved[turn] += status[i] == to[i];
		__atomic_add_fetch(&m->turns, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Have it move what is at p, and wait until it has done so, there and back. */
static void start_moving(struct mover *m, char *p)
{
	int before = __atomic_load_n(&m->turns, __ATOMIC_ACQUIRE);

	__atomic_store_n(&m->p, p, __ATOMIC_RELEASE);
	while (__atomic_load_n(&m->turns, __ATOMIC_ACQUIRE) - before < 2)
		usleep(100);
}

static bool has_moved(const struct mover *m)
{
	return m->moved[0] && m->moved[1];
}

static void stop_moving(struct mover *m)
{
	__atomic_store_n(&m->stop, 1, __ATOMIC_RELAXED);
	pthread_join(m->thread, NULL);
}

/* Fork while the pages are being moved, and write to them. */
static void fork_while_moving(struct __test_metadata *_metadata, char *p, int round)
{
	struct area area = { .p = p, .len = NR * ps };
	struct cow_child c;
	int i;

	ASSERT_EQ(0, cow_child_fork(&c, keeps, &area));
	ASSERT_EQ(1, cow_child_recv(&c));
	for (i = 0; i < NR; i++)
		cow_touch(p + i * ps, 'w');
	for (i = 0; i < NR; i++)
		ASSERT_EQ('w', cow_peek(p + i * ps));
	ASSERT_EQ(0, cow_child_end(&c))
		TH_LOG("the child sees what was written, round %d", round);
}

/* NULL, or why nothing can be moved while this process forks */
static const char *no_moves(struct mover *m)
{
	if (find_nodes(m->node) < 2)
		return "fewer than two NUMA nodes with memory";
	if (cow_nr_cpus() < 2)
		return "needs two CPUs";
	return NULL;
}

/* Fork so often while the memory is moved: false if it does not move. */
static bool forks_while_moving(struct __test_metadata *_metadata, struct mover *m, char *p,
			       int rounds)
{
	int round;

	cow_fill(p, NR * ps, TAG);
	ASSERT_EQ(0, pthread_create(&m->thread, NULL, moves, m));
	start_moving(m, p);
	for (round = 0; has_moved(m) && round < rounds; round++) {
		cow_fill(p, NR * ps, TAG);
		fork_while_moving(_metadata, p, round);
	}
	stop_moving(m);
	return has_moved(m);
}

/*
 * The parent's own pages are being migrated when it forks: once they are there, they must be
 * shared.
 */
TEST_F_TIMEOUT(memory_advice, numa_fork_while_moving, TEST_TIMEOUT)
{
	struct mover m = { .nr = NR };
	const char *reason = no_moves(&m);

	if (reason)
		SKIP(return, "%s", reason);
	if (!forks_while_moving(_metadata, &m, self->p, 150))
		SKIP(return, "the pages do not move between the nodes");
}

/* The same with a hugetlb page, of a pool that has pages on both nodes */
TEST_F_TIMEOUT(memory_advice, numa_fork_while_moving_hugetlb, TEST_TIMEOUT)
{
	struct mover m = { .nr = 1 };
	const char *reason = no_moves(&m);
	size_t len;
	char *p;

	if (!reason)
		reason = cow_map_hugetlb(&self->undo, &p, &len);
	if (reason)
		SKIP(return, "%s", reason);
	if (!forks_while_moving(_metadata, &m, p, 100))
		SKIP(return, "the hugetlb page does not move between the nodes");
}

/* The same with a huge page: a new one each time, as the write splits it */
TEST_F_TIMEOUT(memory_advice, numa_fork_while_moving_huge, TEST_TIMEOUT)
{
	struct mover m = { .nr = 1 };
	const char *reason = no_moves(&m);
	const int rounds = 40;
	int round;
	char *p;

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, pthread_create(&m.thread, NULL, moves, &m));
	for (round = 0; round < rounds; round++) {
		reason = cow_map_huge(&self->undo, &p, cow_pmd_size(), TAG);
		if (reason)
			break;
		start_moving(&m, p);
		if (!has_moved(&m)) {
			reason = "the huge page does not move between the nodes";
			break;
		}
		fork_while_moving(_metadata, p, round);
		__atomic_store_n(&m.p, NULL, __ATOMIC_RELEASE);
		cow_unmap(p, cow_pmd_size());
	}
	stop_moving(&m);
	if (reason)
		SKIP(return, "%s", reason);
}

/* A huge page that is shared migrates as a whole, and is still nobody's own. */
TEST_F_TIMEOUT(memory_advice, numa_huge_shared, TEST_TIMEOUT)
{
	struct area area = { .len = cow_pmd_size() };
	const char *reason;
	struct cow_child c;
	int i, node[2];
	char *p;

	reason = map_huge_on(&self->undo, &p, node);
	if (reason)
		SKIP(return, "%s", reason);
	area.p = p;
	ASSERT_EQ(0, cow_child_fork(&c, keeps, &area));
	ASSERT_EQ(1, cow_child_recv(&c));
	if (!move_huge(p, node[1])) {
		cow_child_end(&c);
		SKIP(return, "shared huge pages do not migrate");
	}
	for (i = 0; i < NR; i++)
		cow_touch(p + i * ps, 'v');
	for (i = 0; i < NR; i++)
		EXPECT_EQ('v', cow_peek(p + i * ps));
	EXPECT_EQ(-1, cow_check(p + NR * ps, cow_pmd_size() - NR * ps, TAG));
	EXPECT_EQ(0, cow_child_end(&c));
}

/* A written huge page is still reported, even if MADV_FREE made it clean since then. */
TEST_F_TIMEOUT(memory_advice, numa_huge_soft_dirty, TEST_TIMEOUT)
{
	const char *reason;
	int node[2];
	char *p;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	reason = map_huge_on(&self->undo, &p, node);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	ASSERT_EQ(0, cow_pagemap(p) & COW_PM_SOFT_DIRTY);
	cow_touch(p, 'w');
	/* Migration sets the bit of a dirty huge page on x86 anyway: make it clean. */
	ASSERT_EQ(0, madvise(p, cow_pmd_size(), MADV_FREE));
	ASSERT_NE(0, cow_pagemap(p) & COW_PM_SOFT_DIRTY);
	if (!move_huge(p, node[1]))
		SKIP(return, "huge pages that are marked as free do not migrate");
	EXPECT_NE(0, cow_pagemap(p) & COW_PM_SOFT_DIRTY);
	EXPECT_NE(0, cow_pagemap(p + (NR - 1) * ps) & COW_PM_SOFT_DIRTY);
}

TEST_F_TIMEOUT(memory_advice, numa_huge_protected, TEST_TIMEOUT)
{
	const char *reason;
	int fd, node[2];
	char *p;

	reason = map_huge_on(&self->undo, &p, node);
	if (!reason)
		reason = cow_uffd_wp(&fd, p, cow_pmd_size(), 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_uffd_protect(fd, p, cow_pmd_size(), true));
	ASSERT_NE(0, cow_pagemap(p) & COW_PM_UFFD_WP);
	if (!move_huge(p, node[1]))
		SKIP(return, "huge pages that are write-protected do not migrate");
	EXPECT_NE(0, cow_pagemap(p) & COW_PM_UFFD_WP);
	EXPECT_NE(0, cow_pagemap(p + (NR - 1) * ps) & COW_PM_UFFD_WP);
	close(fd);
}

/*
 * The odd pages should have the bit in pagemap, and no others if exactly: the first page
 * that is wrong, or -1
 */
static int wrong_odd_page(const char *p, __u64 bit, bool exactly)
{
	int i;

	for (i = 0; i < NR; i++) {
		bool has = cow_pagemap(p + i * ps) & bit;

		if (i & 1 ? !has : has && exactly)
			return i;
	}
	return -1;
}

TEST_F_TIMEOUT(memory_advice, numa_soft_dirty, TEST_TIMEOUT)
{
	int i, node[2];

	if (find_nodes(node) < 2)
		SKIP(return, "fewer than two NUMA nodes with memory");
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	if (!move_to(self->p, node[0]))
		SKIP(return, "not enough free memory on node %d", node[0]);
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	for (i = 1; i < NR; i += 2)
		cow_touch(self->p + i * ps, 'w');
	ASSERT_EQ(-1, wrong_odd_page(self->p, COW_PM_SOFT_DIRTY, true));
	if (!move_to(self->p, node[1]))
		SKIP(return, "not enough free memory on node %d", node[1]);
	/* Some kernels report a page that was dirty before clear_refs. */
	EXPECT_EQ(-1, wrong_odd_page(self->p, COW_PM_SOFT_DIRTY, false));
}

TEST_F_TIMEOUT(memory_advice, numa_protected, TEST_TIMEOUT)
{
	const char *reason;
	int i, fd, node[2];

	if (find_nodes(node) < 2)
		SKIP(return, "fewer than two NUMA nodes with memory");
	if (!move_to(self->p, node[0]))
		SKIP(return, "not enough free memory on node %d", node[0]);
	reason = cow_uffd_wp(&fd, self->p, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	for (i = 1; i < NR; i += 2)
		ASSERT_EQ(0, cow_uffd_protect(fd, self->p + i * ps, ps, true));
	ASSERT_EQ(-1, wrong_odd_page(self->p, COW_PM_UFFD_WP, true));
	if (!move_to(self->p, node[1]))
		SKIP(return, "not enough free memory on node %d", node[1]);
	EXPECT_EQ(-1, wrong_odd_page(self->p, COW_PM_UFFD_WP, true));
	close(fd);
}

/*
 * NUMA balancing: the scheduler's tick marks pages, to learn from the fault who uses them.
 * Pages that are shared already are left out, and so are those of a single thread that
 * lie where it runs.
 */

static void *sleep_for_ever(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static bool read_faults(const char *page)
{
	long before = cow_minflt();

	cow_peek(page);
	return cow_minflt() != before;
}

/* Use CPU time until NUMA balancing has marked two folios: false after half a minute */
static bool wait_for_marks(const char *p, size_t folio_size)
{
	const time_t end = time(NULL) + 30;

	do {
		/* A fault may have been that of another page. */
		if (read_faults(p) && read_faults(p + folio_size))
			return true;
	} while (time(NULL) < end);
	return false;
}

static const char *start_marking(struct cow_undo *undo)
{
	pthread_t thread;
	int node[2];

	if (find_nodes(node) < 2)
		return "fewer than two NUMA nodes with memory";
	if (!cow_tweak(undo, "/proc/sys/kernel/numa_balancing", "1"))
		return "no NUMA balancing, or " COW_NEEDS;
	return pthread_create(&thread, NULL, sleep_for_ever, NULL) ? "no thread" : NULL;
}

/*
 * Marked, then shared: the fault that takes the mark off does not make a page writable.
 * There are more than two folios, as the reads take the marks off the first two.
 */
static void test_numa_hinting(struct __test_metadata *_metadata, struct cow_undo *undo,
			      struct area *area, size_t folio_size)
{
	const char *reason = start_marking(undo);
	struct cow_child c;
	size_t at;

	if (reason)
		SKIP(return, "%s", reason);
	if (!wait_for_marks(area->p, folio_size))
		SKIP(return, "no page was marked by NUMA balancing in 30 s");
	ASSERT_EQ(0, cow_child_fork(&c, keeps, area));
	ASSERT_EQ(1, cow_child_recv(&c));
	for (at = 0; at < area->len; at += folio_size)
		cow_touch(area->p + at, 'w');
	for (at = 0; at < area->len; at += folio_size)
		EXPECT_EQ('w', cow_peek(area->p + at));
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_F_TIMEOUT(memory_advice, numa_hinting, TEST_TIMEOUT)
{
	struct area area = { .p = self->p, .len = NR * ps };

	test_numa_hinting(_metadata, &self->undo, &area, ps);
}

/* The fault takes the marks off all pages of a folio. */
TEST_F_TIMEOUT(memory_advice, numa_hinting_mthp, TEST_TIMEOUT)
{
	struct area area = { .len = 4 * 65536 };
	const char *reason;

	reason = cow_map_mthp(&self->undo, &area.p, area.len, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	test_numa_hinting(_metadata, &self->undo, &area, 65536);
}

TEST_F_TIMEOUT(memory_advice, numa_hinting_huge, TEST_TIMEOUT)
{
	struct area area = { .len = 4 * cow_pmd_size() };
	const char *reason;

	reason = map_huge(&self->undo, &area.p, 4);
	if (reason)
		SKIP(return, "%s", reason);
	test_numa_hinting(_metadata, &self->undo, &area, cow_pmd_size());
}

/*
 * MADV_MERGEABLE
 */

/*
 * After a write, a page is no longer a KSM page, and reclaim finds its mapping even if no
 * other process maps it.
 */
TEST_F_TIMEOUT(memory_advice, merged, TEST_TIMEOUT)
{
	long merged;
	int i;

	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	memset(self->p, TAG, NR * ps);
	merged = cow_ksm_merge(&self->undo, self->p, NR * ps, NR);
	if (merged < 0)
		SKIP(return, "no KSM: %s", strerror(-merged));
	if (merged < NR)
		SKIP(return, "ksmd merged only %ld pages", merged);
	for (i = 0; i < NR; i++)
		cow_touch(self->p + i * ps, 'w');
	EXPECT_TRUE(cow_page_out(self->p, NR));
	for (i = 0; i < NR; i++)
		EXPECT_EQ('w', cow_peek(self->p + i * ps));
}

TEST_HARNESS_MAIN
