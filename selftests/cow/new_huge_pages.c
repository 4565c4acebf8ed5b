// SPDX-License-Identifier: GPL-2.0
/*
 * A transparent huge page takes the place of nothing, of the huge zero page, or of the small
 * pages that it is made of (a collapse).
 *
 * It has what these pages had, and zeroes for what was never written. What was written is
 * reported as soft-dirty. It is charged to the process whose memory it is, and the pages
 * that it replaces are freed. True on any kernel.
 */
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define TAG		91
#define FIRST		77	/* the small page that a test writes to */
#define ROUNDS		8

static size_t ps, len;

FIXTURE(new_huge_pages)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char cgroup[COW_CGROUP_DIR];
};

FIXTURE_VARIANT(new_huge_pages)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(new_huge_pages, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(new_huge_pages, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(new_huge_pages)
{
	const char *reason;
	char *p;

	ps = cow_page_size();
	len = cow_pmd_size();
	ASSERT_EQ(0, cow_pin_cpu());
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	/* Can there be any? */
	reason = cow_map_huge(&self->undo, &p, len, TAG);
	if (reason) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
	cow_unmap(p, len);
	cow_map_hugepage = false;
}

FIXTURE_TEARDOWN_PARENT(new_huge_pages)
{
	cow_cgroup_remove(self->cgroup);
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

static bool is_huge(const char *p)
{
	return cow_smaps_kb(p, "AnonHugePages") == (long)len / 1024;
}

#define NO_COLLAPSE	"no MADV_COLLAPSE: %s"

static bool soft_dirty(const char *p)
{
	return cow_pagemap(p) & COW_PM_SOFT_DIRTY;
}

/* What nobody has written to is not what somebody else had there before. */
TEST_F_TIMEOUT(new_huge_pages, holes_are_empty, TEST_TIMEOUT)
{
	const int nr = len / ps;
	const char *reason;
	int i, ret, pages = 4;
	char *p, *freed;

	p = cow_map(len, len);
	ASSERT_NE(NULL, p);
	for (i = 0; i < nr; i += 3)
		cow_fill(p + i * ps, ps, TAG);
	for (i = 1; i < nr; i += 3)
		ASSERT_EQ(0, cow_peek(p + i * ps));
	/* This CPU gets them back at once. */
	do {
		reason = cow_map_huge(&self->undo, &freed, pages * len, TAG + 1);
	} while (reason && --pages);
	if (reason)
		SKIP(return, "%s", reason);
	cow_unmap(freed, pages * len);
	ret = cow_collapse(p);
	if (ret)
		SKIP(return, NO_COLLAPSE, strerror(ret));
	for (i = 0; i < nr; i++)
		EXPECT_TRUE(i % 3 ? cow_is_zero(p + i * ps, ps) :
				    cow_check(p + i * ps, ps, TAG) == -1)
			TH_LOG("page %d", i);
}

TEST_F_TIMEOUT(new_huge_pages, soft_dirty_where_nothing_was, TEST_TIMEOUT)
{
	char *p;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	cow_map_hugepage = true;
	p = cow_map(len, len);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	cow_touch(p + FIRST * ps, 'w');
	if (!is_huge(p))
		SKIP(return, "got no huge page");
	EXPECT_TRUE(soft_dirty(p + FIRST * ps));
}

TEST_F_TIMEOUT(new_huge_pages, soft_dirty_where_zeroes_were, TEST_TIMEOUT)
{
	const char *reason;
	char *p;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	reason = cow_map_huge_zero(&self->undo, &p);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	ASSERT_FALSE(soft_dirty(p + FIRST * ps));
	cow_touch(p + FIRST * ps, 'w');
	EXPECT_TRUE(soft_dirty(p + FIRST * ps));
}

TEST_F_TIMEOUT(new_huge_pages, soft_dirty_when_collapsed, TEST_TIMEOUT)
{
	char *p;
	int ret;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	p = cow_map(len, len);
	ASSERT_NE(NULL, p);
	cow_fill(p, len, TAG);
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	cow_touch(p + FIRST * ps, 'w');
	ret = cow_collapse(p);
	if (ret)
		SKIP(return, NO_COLLAPSE, strerror(ret));
	EXPECT_TRUE(soft_dirty(p + FIRST * ps));
}

/* Exit statuses of children */
#define FAILED		1
#define NOT_POSSIBLE	2

static int collapses_mthp(struct cow_child *self, void *cgroup)
{
	const int nr = len / ps;
	char *p;
	int i;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(cgroup))
		return FAILED;
	cow_map_hugepage = true;
	for (i = 0; i < ROUNDS; i++) {
		p = cow_map(len, len);
		if (!p)
			return FAILED;
		cow_fill(p, len, TAG);
		if (is_huge(p) || cow_large_pages(p, nr) != nr || cow_collapse(p))
			return i ? 0 : NOT_POSSIBLE;
		if (cow_check(p, len, TAG) != -1)
			return FAILED;
		cow_unmap(p, len);
	}
	return 0;
}

/* The small folios are free when the process has ended. */
TEST_F_TIMEOUT(new_huge_pages, nothing_leaks, TEST_TIMEOUT)
{
	const char *reason;
	struct cow_child c;
	long left;
	int i, ret;

	reason = cow_allow_folios(&self->undo);
	if (!reason)
		reason = cow_cgroup_make(self->cgroup, "cow_collapse");
	if (reason)
		SKIP(return, "%s", reason);
	if (cow_cgroup_unmapped(self->cgroup, 0) < 0)
		SKIP(return, "no /proc/kpagecgroup");
	ASSERT_EQ(0, cow_child_fork(&c, collapses_mthp, self->cgroup));
	ret = cow_child_wait(&c);
	if (ret == NOT_POSSIBLE)
		SKIP(return, "folios of 64 kB are not collapsed");
	ASSERT_EQ(0, ret);
	/* What waits in an LRU batch is free a bit later. */
	left = cow_cgroup_unmapped(self->cgroup, 0);
	for (i = 0; i < 100 && left; i++) {
		cow_drain_lru();
		usleep(10000);
		left = cow_cgroup_unmapped(self->cgroup, 0);
	}
	EXPECT_EQ(0, left);
}

struct owner {
	const char *cgroup;
	char *p;
};

static int fills_and_stays(struct cow_child *self, void *arg)
{
	const struct owner *owner = arg;

	if (cow_cgroup_enter(owner->cgroup))
		return FAILED;
	cow_fill(owner->p, len, TAG);
	if (is_huge(owner->p) || madvise(owner->p, len, MADV_HUGEPAGE) || cow_child_stay(self))
		return FAILED;
	return is_huge(owner->p) && cow_check(owner->p, len, TAG) == -1 ? 0 : FAILED;
}

/* Another process asks for the huge page, as khugepaged does by itself. */
static int collapse_for(pid_t pid, char *p)
{
	struct iovec range = { .iov_base = p, .iov_len = len };
	int fd = syscall(SYS_pidfd_open, pid, 0), ret = 0;

	if (fd < 0)
		return errno;
	if (syscall(SYS_process_madvise, fd, &range, 1UL, MADV_COLLAPSE, 0) != (long)len)
		ret = errno;
	close(fd);
	return ret;
}

TEST_F_TIMEOUT(new_huge_pages, charged_to_the_owner, TEST_TIMEOUT)
{
	struct owner owner = { .cgroup = self->cgroup };
	const char *reason;
	struct cow_child c;
	long charged;
	int ret;

	reason = cow_cgroup_make(self->cgroup, "cow_collapse");
	if (reason)
		SKIP(return, "%s", reason);
	owner.p = cow_map(len, len);
	ASSERT_NE(NULL, owner.p);
	ASSERT_EQ(0, cow_child_fork(&c, fills_and_stays, &owner));
	ASSERT_EQ(1, cow_child_recv(&c));
	ret = collapse_for(c.pid, owner.p);
	if (ret) {
		cow_child_end(&c);
		SKIP(return, NO_COLLAPSE, strerror(ret));
	}
	ASSERT_EQ(0, cow_cgroup_read(self->cgroup, "memory.current", &charged));
	EXPECT_LE((long)len, charged);
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_HARNESS_MAIN
