// SPDX-License-Identifier: GPL-2.0
/*
 * A page that nobody shares any more is not copied: neither by the write fault
 * nor ahead of it. The other processes have exited, unmapped the memory or
 * executed another program; then the frame of each page must be the same
 * before and after the write, and /proc/cow_stats, where there is one, must have
 * counted no copy.
 * As long as one process still has the page, it must be copied.
 */
#include <fcntl.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define NR		64	/* pages; all in one page table */
#define TAG		42

/* Environment of the program that a child executes: its two pipes */
#define EXEC_ENV	"COW_CHILD_EXIT_FDS"

struct region {
	char *p;
	struct cow_child child[3];
	int nr_children;
	__u64 before[NR], after[NR];
};

static size_t ps;

/* Runs before main(), in the program that a child has executed (this one). */
static void __attribute__((constructor(101))) executed(void)
{
	const char *fds = getenv(EXEC_ENV);
	struct cow_child self;

	if (!fds)
		return;
	if (sscanf(fds, "%d,%d", &self.in, &self.out) != 2)
		_exit(1);
	_exit(cow_child_stay(&self));
}

/*
 * Children: say 1 when they have done their part, then wait for the end.
 */

/* Keeps the memory until it exits, and checks that nothing in it has changed. */
static int keeps(struct cow_child *self, void *arg)
{
	struct region *r = arg;

	if (cow_child_stay(self))
		return 1;
	return cow_check(r->p, NR * ps, TAG) == -1 ? 0 : 2;
}

static int unmaps(struct cow_child *self, void *arg)
{
	struct region *r = arg;

	if (munmap(r->p, NR * ps))
		return 2;
	return cow_child_stay(self);
}

/* Unmaps the even pages and keeps the others. */
static int unmaps_even(struct cow_child *self, void *arg)
{
	struct region *r = arg;
	int i;

	for (i = 0; i < NR; i += 2)
		if (munmap(r->p + i * ps, ps))
			return 2;
	if (cow_child_stay(self))
		return 1;
	for (i = 1; i < NR; i += 2)
		if (cow_check(r->p + i * ps, ps, TAG) != -1)
			return 2;
	return 0;
}

static int drops(struct cow_child *self, void *arg)
{
	struct region *r = arg;

	if (madvise(r->p, NR * ps, MADV_DONTNEED))
		return 2;
	return cow_child_stay(self);
}

static int writes_all(struct cow_child *self, void *arg)
{
	struct region *r = arg;

	cow_fill(r->p, NR * ps, TAG + 1);
	if (cow_child_stay(self))
		return 1;
	return cow_check(r->p, NR * ps, TAG + 1) == -1 ? 0 : 2;
}

static int executes(struct cow_child *self, void *arg)
{
	char fds[32];

	(void)arg;
	/* Without close-on-exec */
	snprintf(fds, sizeof(fds), "%d,%d", dup(self->in), dup(self->out));
	setenv(EXEC_ENV, fds, 1);
	execl("/proc/self/exe", "child_exit", NULL);
	return 3;
}

/* Unmaps the memory; a child of its own keeps it. */
static int hands_on(struct cow_child *self, void *arg)
{
	struct region *r = arg;
	struct cow_child c;
	int ret;

	if (cow_child_fork(&c, keeps, r) || cow_child_recv(&c) != 1 ||
	    cow_child_settle(&c) || munmap(r->p, NR * ps))
		return 3;
	ret = cow_child_stay(self);
	return cow_child_end(&c) ?: ret;
}

static int start(struct region *r, cow_child_fn fn)
{
	struct cow_child *c = &r->child[r->nr_children];
	int ret;

	ret = cow_child_fork(c, fn, r);
	if (ret)
		return ret;
	r->nr_children++;
	ret = cow_child_recv(c);
	if (ret != 1)
		return ret < 0 ? ret : -EPROTO;
	return cow_child_settle(c);
}

/* What happens between filling the memory and writing to it again */
typedef int (*scenario)(struct region *r);

static int nothing(struct region *r)
{
	(void)r;
	return 0;
}

static int one_exited(struct region *r)
{
	return start(r, keeps) ?: cow_child_end(&r->child[--r->nr_children]);
}

static int three_exited(struct region *r)
{
	int ret;

	ret = start(r, keeps) ?: start(r, keeps) ?: start(r, keeps);
	while (!ret && r->nr_children)
		ret = cow_child_end(&r->child[--r->nr_children]);
	return ret;
}

static int two_of_three_exited(struct region *r)
{
	int ret;

	ret = start(r, keeps) ?: start(r, keeps) ?: start(r, keeps);
	while (!ret && r->nr_children > 1)
		ret = cow_child_end(&r->child[--r->nr_children]);
	return ret;
}

static int one_alive(struct region *r)
{
	return start(r, keeps);
}

static int one_unmapped(struct region *r)
{
	return start(r, unmaps);
}

static int one_unmapped_even(struct region *r)
{
	return start(r, unmaps_even);
}

static int one_dropped(struct region *r)
{
	return start(r, drops);
}

static int one_wrote_all(struct region *r)
{
	return start(r, writes_all);
}

static int one_executed(struct region *r)
{
	return start(r, executes);
}

static int one_of_two_executed(struct region *r)
{
	return start(r, executes) ?: start(r, keeps);
}

static int grandchild_alive(struct region *r)
{
	return start(r, hands_on);
}

static int soft_dirty_cleared(struct region *r)
{
	(void)r;
	return cow_write_file("/proc/self/clear_refs", "4");
}

/* Which pages must be copied */
static bool all_pages(int i)
{
	(void)i;
	return true;
}

static bool no_page(int i)
{
	(void)i;
	return false;
}

static bool odd_pages(int i)
{
	return i & 1;
}

FIXTURE(child_exit)
{
	struct cow_settings saved;
};

FIXTURE_VARIANT(child_exit)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(child_exit, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(child_exit, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(child_exit, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(child_exit, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(child_exit)
{
	const char *reason;

	reason = cow_setup(&self->saved, variant->ahead,
			   COW_WANT_STATS | COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	ps = cow_page_size();
	ASSERT_EQ(0, cow_pin_cpu());
}

FIXTURE_TEARDOWN_PARENT(child_exit)
{
	cow_restore(&self->saved);
}

/*
 * Did every write fault, except to pages made writable ahead? A kernel that does not
 * count those may have saved any but the first fault.
 */
static bool faults_are_right(long faults, scenario happen, bool no_fault)
{
	if (no_fault)
		return !faults;
	/* Without a fault of its own a write would not be seen. */
	if (cow_counting() || happen == soft_dirty_cleared)
		return faults == NR;
	return faults >= 1 && faults <= NR;
}

/*
 * Fill the memory, let the scenario happen, write to each page. Exactly the
 * pages of which copied() is true must be copied; every other write must have
 * taken a fault that reused the page, or none at all (no_fault).
 */
static void check(struct __test_metadata *_metadata, int ahead, scenario happen,
		  bool (*copied)(int i), bool no_fault)
{
	static struct cow_measure m;
	static struct region r;
	const struct cow_stats *d = &m.d;
	unsigned long long copies, reuses, faults;
	bool visible = cow_pfn_visible();
	int i, want = 0;

	for (i = 0; i < NR; i++)
		want += copied(i);

	memset(&r, 0, sizeof(r));
	r.p = cow_map(NR * ps, NR * ps);
	ASSERT_NE(NULL, r.p);
	cow_fill(r.p, NR * ps, TAG);
	ASSERT_EQ(0, happen(&r));

	ASSERT_EQ(0, cow_pfns(r.p, NR, r.before));
	ASSERT_EQ(0, cow_measure(&m, r.p, NULL, NR));
	ASSERT_EQ(0, cow_pfns(r.p, NR, r.after));

	for (i = 0; i < NR; i++) {
		/* The first word has been written to. */
		EXPECT_EQ('w', r.p[i * ps]);
		EXPECT_EQ(-1, cow_check(r.p + i * ps + sizeof(__u64),
					ps - sizeof(__u64), TAG));
		/* Not root: frames read as zero */
		if (!visible)
			continue;
		ASSERT_NE(0, r.before[i]);
		EXPECT_EQ(copied(i), r.before[i] != r.after[i]) {
			TH_LOG("page %d: frame %#llx before, %#llx after",
			       i, r.before[i], r.after[i]);
		}
	}
	while (r.nr_children)
		EXPECT_EQ(0, cow_child_end(&r.child[--r.nr_children]));
	cow_unmap(r.p, NR * ps);

	copies = d->v[COW_FAULTS] + d->v[COW_SUCCESS];
	reuses = d->v[COW_REUSED] + d->v[COW_REUSE_AHEAD];
	faults = m.minflt;
	if (cow_counting())
		faults += d->v[COW_SUCCESS] + d->v[COW_REUSE_AHEAD];
	/* Whatever was done ahead must have saved a fault. */
	EXPECT_TRUE(faults_are_right(faults, happen, no_fault))
		TH_LOG("%llu faults", faults);
	if (!cow_counting())
		return;
	EXPECT_EQ(want, copies);
	EXPECT_EQ(no_fault ? 0 : NR - want, reuses);
	EXPECT_TRUE(cow_stats_balanced(d));
	if (!ahead)
		EXPECT_EQ(0, d->v[COW_ATTEMPTS]);
	/* A fixed window is for copying only. */
	if (ahead != COW_ADAPTIVE)
		EXPECT_EQ(0, d->v[COW_REUSE_AHEAD]);
	/* Nothing but pages to copy: the window is always full. */
	if (copied == all_pages) {
		EXPECT_EQ(cow_upward(NR, ahead, false).faults,
			  d->v[COW_FAULTS]);
		EXPECT_EQ(0, d->v[COW_REUSE_AHEAD]);
	}
	if (copied == no_page) {
		EXPECT_EQ(0, d->v[COW_ATTEMPTS]);
		/* With soft-dirty tracking on, nothing is reused ahead. */
		want = cow_upward(NR, ahead, true).faults;
		if (happen == soft_dirty_cleared)
			want = NR;
		EXPECT_EQ(no_fault ? 0 : want, d->v[COW_REUSED]);
	}
}

TEST_F_TIMEOUT(child_exit, exited, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_exited, no_page, false);
}

TEST_F_TIMEOUT(child_exit, all_of_three_exited, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, three_exited, no_page, false);
}

TEST_F_TIMEOUT(child_exit, unmapped, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_unmapped, no_page, false);
}

TEST_F_TIMEOUT(child_exit, dropped, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_dropped, no_page, false);
}

TEST_F_TIMEOUT(child_exit, child_wrote_all, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_wrote_all, no_page, false);
}

TEST_F_TIMEOUT(child_exit, executed, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_executed, no_page, false);
}

TEST_F_TIMEOUT(child_exit, exclusive_all_along, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, nothing, no_page, true);
}

/* Exclusive, and yet each write faults */
TEST_F_TIMEOUT(child_exit, exclusive_but_write_protected, TEST_TIMEOUT)
{
	char *p = cow_map(ps, 0);

	ASSERT_NE(NULL, p);
	cow_touch(p, 1);
	if (!(cow_pagemap(p) & COW_PM_SOFT_DIRTY) ||
	    soft_dirty_cleared(NULL) ||
	    (cow_pagemap(p) & COW_PM_SOFT_DIRTY))
		SKIP(return, COW_NO_SOFT_DIRTY);
	check(_metadata, variant->ahead, soft_dirty_cleared, no_page, false);
}

TEST_F_TIMEOUT(child_exit, still_alive, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_alive, all_pages, false);
}

TEST_F_TIMEOUT(child_exit, one_of_three_still_alive, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, two_of_three_exited, all_pages, false);
}

TEST_F_TIMEOUT(child_exit, one_of_two_executed, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_of_two_executed, all_pages, false);
}

TEST_F_TIMEOUT(child_exit, grandchild_still_alive, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, grandchild_alive, all_pages, false);
}

TEST_F_TIMEOUT(child_exit, every_other_page_unmapped, TEST_TIMEOUT)
{
	check(_metadata, variant->ahead, one_unmapped_even, odd_pages, false);
}

/* The reverse: the parent has unmapped the memory, the child writes. */
struct alone {
	struct cow_measure m;
	__u64 before[NR], after[NR];
};

struct alone_arg {
	struct alone *shared;
	char *p;
};

static int measures(struct cow_child *self, void *arg)
{
	struct alone_arg *a = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 1;
	if (cow_pfns(a->p, NR, a->shared->before) ||
	    cow_measure(&a->shared->m, a->p, NULL, NR) ||
	    cow_pfns(a->p, NR, a->shared->after))
		return 2;
	if (cow_child_send(self, 1))
		return 1;
	return cow_child_recv(self) == -EPIPE ? 0 : 1;
}

TEST_F_TIMEOUT(child_exit, parent_unmapped, TEST_TIMEOUT)
{
	struct cow_child child;
	struct alone_arg arg;
	struct alone *a;
	int i;

	a = mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, a);
	arg.shared = a;
	arg.p = cow_map(NR * ps, NR * ps);
	ASSERT_NE(NULL, arg.p);
	cow_fill(arg.p, NR * ps, TAG);
	ASSERT_EQ(0, cow_child_fork(&child, measures, &arg));
	ASSERT_EQ(1, cow_child_recv(&child));
	cow_unmap(arg.p, NR * ps);
	ASSERT_EQ(0, cow_child_send(&child, 1));
	ASSERT_EQ(1, cow_child_recv(&child));
	ASSERT_EQ(0, cow_child_end(&child));

	for (i = 0; i < NR && cow_pfn_visible(); i++) {
		ASSERT_NE(0, a->before[i]);
		EXPECT_EQ(a->before[i], a->after[i]);
	}
	if (!cow_counting()) {
		/* Some may have been reused ahead. */
		EXPECT_LE(1, a->m.minflt);
		EXPECT_GE(NR, a->m.minflt);
		return;
	}
	EXPECT_EQ(NR, a->m.minflt + a->m.d.v[COW_REUSE_AHEAD]);
	EXPECT_EQ(0, a->m.d.v[COW_FAULTS]);
	EXPECT_EQ(0, a->m.d.v[COW_ATTEMPTS]);
	EXPECT_EQ(NR, a->m.d.v[COW_REUSED] + a->m.d.v[COW_REUSE_AHEAD]);
}

TEST_HARNESS_MAIN
