// SPDX-License-Identifier: GPL-2.0
/*
 * Copy-on-write of transparent huge pages that are mapped by one PMD.
 *
 * While two processes share a huge page, a write splits the mapping of the process that
 * writes and copies a small page; nothing else changes for either of them. Once nobody
 * else has the huge page, a write makes all of it writable, without a copy. Soft-dirty
 * bits, write protection by userfaultfd, pipes and pins work as with small pages, and
 * nothing leaks. What is written to a private mapping of a huge page of a file does not
 * get to the file. Where PTEs map a folio, and when it is split, each page stays as shared
 * and as protected as it was. True on any kernel.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "../../../../mm/gup_test.h"

#define MAX_PAGES	COW_MAX_MEASURED
#define TAG		31
/* Small pages of the first huge page that tests write to */
#define FIRST		77
#define OTHER		300

/* Two huge pages; children inherit these variables. */
static char *area;
static int nr;			/* small pages in a huge page */
static int pages;		/* small pages in the area */
static size_t ps;

static struct cow_child child;

/* A page that was read from a pipe or through a pin */
static char got[65536];

/* What a process sees of its area */
struct view {
	__u64 frame[MAX_PAGES];	/* 0 if not root */
	long huge_kb;		/* mapped by PMDs */
	long rss_kb;		/* of the process; the kernel may round it */
};

struct seen {
	struct view before, after;
	unsigned long long ahead;	/* pages that its own write copied ahead */
	int protected;			/* pages that userfaultfd protects from writes */
	int wrong;			/* the first page with the wrong content, or -1 */
};

/* In shared memory */
static struct seen *by_parent, *by_child;

static long kb(int nr_pages)
{
	return nr_pages * (long)ps / 1024;
}

static int look(struct view *v)
{
	v->huge_kb = cow_smaps_kb(area, "AnonHugePages");
	v->rss_kb = cow_status_kb("RssAnon");
	return cow_pfns(area, pages, v->frame);
}

static bool intact(const char *page, bool zero, bool written)
{
	static const char zeros[65536];
	size_t skip = written ? sizeof(__u64) : 0;

	if (written && cow_peek(page) != 'w')
		return false;
	if (zero)
		return !memcmp(page + skip, zeros, ps - skip);
	return cow_check(page + skip, ps - skip, TAG) == -1;
}

/*
 * The first page that is not as cow_fill() left it (or zero), apart from the first byte
 * of the pages that were written to, from first on; or -1
 */
static int wrong_page(bool zero, int first, int nr_written)
{
	int i;

	for (i = 0; i < pages; i++)
		if (!intact(area + i * ps, zero, i >= first && i < first + nr_written))
			return i;
	return -1;
}

static int pages_with(__u64 bit, int first, int nr_pages)
{
	int i, found = 0;

	for (i = first; i < first + nr_pages; i++)
		found += !!(cow_pagemap(area + i * ps) & bit);
	return found;
}

/* Write to the first byte of each page, and note what that changed. */
static int write_and_look(struct seen *s, int first, int nr_written)
{
	static struct cow_measure m;

	if (look(&s->before) || cow_measure(&m, area + first * ps, NULL, nr_written))
		return -1;
	s->ahead = m.d.v[COW_SUCCESS];
	s->wrong = wrong_page(false, first, nr_written);
	return look(&s->after);
}

/* Looks at the start and at the end. */
static int keeps(struct cow_child *self, void *arg)
{
	(void)arg;
	if (look(&by_child->before) || cow_child_stay(self))
		return 1;
	by_child->protected = pages_with(COW_PM_UFFD_WP, 0, pages);
	by_child->wrong = wrong_page(false, 0, 0);
	return look(&by_child->after) ? 1 : 0;
}

static int writes_one(struct cow_child *self, void *arg)
{
	(void)arg;
	if (write_and_look(by_child, FIRST, 1))
		return 1;
	return cow_child_stay(self);
}

static void share_with(struct __test_metadata *_metadata, cow_child_fn fn, void *arg)
{
	ASSERT_EQ(0, cow_child_fork(&child, fn, arg));
	ASSERT_EQ(1, cow_child_recv(&child));
}

static void expect_rss(struct __test_metadata *_metadata, const struct seen *s)
{
	EXPECT_LE(kb(pages) - kb(nr) / 2, s->before.rss_kb);
	EXPECT_GE(kb(nr) / 2, labs(s->after.rss_kb - s->before.rss_kb));
}

/* The content is right, no frame has changed, and no huge page is split. */
static void expect_kept(struct __test_metadata *_metadata, const struct seen *s)
{
	int i;

	EXPECT_EQ(-1, s->wrong);
	EXPECT_EQ(kb(pages), s->before.huge_kb);
	EXPECT_EQ(kb(pages), s->after.huge_kb);
	expect_rss(_metadata, s);
	for (i = 0; i < pages; i++)
		ASSERT_EQ(s->before.frame[i], s->after.frame[i])
			TH_LOG("page %d", i);
}

/* The first huge page is split. Its page FIRST was copied, and what was copied ahead. */
static void expect_copied(struct __test_metadata *_metadata, const struct seen *s)
{
	unsigned long long changed = 0;
	int i;

	EXPECT_EQ(-1, s->wrong);
	EXPECT_EQ(kb(pages), s->before.huge_kb);
	EXPECT_EQ(kb(nr), s->after.huge_kb);
	expect_rss(_metadata, s);
	/* Not root: frames read as zero. */
	if (!cow_pfn_visible())
		return;
	EXPECT_NE(s->before.frame[FIRST], s->after.frame[FIRST]);
	for (i = 0; i < nr; i++)
		changed += s->before.frame[i] != s->after.frame[i];
	/* On other kernels nobody counts what is copied ahead. */
	if (cow_counting())
		EXPECT_EQ(1 + s->ahead, changed);
	for (i = nr; i < pages; i++)
		ASSERT_EQ(s->before.frame[i], s->after.frame[i])
			TH_LOG("page %d of the other huge page", i - nr);
}

/* The child ends, and nothing has changed for it since the fork. */
static void expect_child_kept(struct __test_metadata *_metadata)
{
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(0, by_child->protected);
	expect_kept(_metadata, by_child);
}

FIXTURE(huge_pages)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char cgroup[COW_CGROUP_DIR];
};

FIXTURE_VARIANT(huge_pages)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(huge_pages, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(huge_pages, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(huge_pages, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(huge_pages)
{
	const char *reason;

	ps = cow_page_size();
	nr = cow_pmd_size() / ps;
	pages = 2 * nr;
	if (pages > MAX_PAGES)
		SKIP(return, "a huge page is too large for this test");
	ASSERT_EQ(0, cow_pin_cpu());
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	reason = cow_map_huge(&self->undo, &area, pages * ps, TAG);
	if (reason) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
	by_parent = mmap(NULL, 2 * sizeof(*by_parent), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, by_parent);
	by_child = by_parent + 1;
}

FIXTURE_TEARDOWN_PARENT(huge_pages)
{
	cow_cgroup_remove(self->cgroup);
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* What nobody maps any more of a huge page can be freed once it is split: it is queued. */
TEST_F_TIMEOUT(huge_pages, queued_for_split, TEST_TIMEOUT)
{
	static const char key[] = "thp_deferred_split_page";
	long long before = cow_file_key("/proc/vmstat", key);

	share_with(_metadata, keeps, NULL);
	ASSERT_EQ(0, write_and_look(by_parent, FIRST, 1));
	expect_copied(_metadata, by_parent);
	expect_child_kept(_metadata);
	EXPECT_LT(before, cow_file_key("/proc/vmstat", key));
}

/* The child has exited: writes to all pages keep the huge page. */
TEST_F_TIMEOUT(huge_pages, reused_after_exit, TEST_TIMEOUT)
{
	share_with(_metadata, keeps, NULL);
	ASSERT_EQ(0, cow_child_end(&child));
	ASSERT_EQ(0, write_and_look(by_parent, 0, nr));
	expect_kept(_metadata, by_parent);
}

/* The same if the child had split its mapping, and the rest was mapped page by page. */
TEST_F_TIMEOUT(huge_pages, reused_after_child_wrote, TEST_TIMEOUT)
{
	share_with(_metadata, writes_one, NULL);
	ASSERT_EQ(0, cow_child_end(&child));
	ASSERT_EQ(0, write_and_look(by_parent, 0, nr));
	expect_kept(_metadata, by_parent);
}

/* A write changes one frame, and nothing for the child; writes to all pages change all. */
TEST_F_TIMEOUT(huge_pages, written_by_parent, TEST_TIMEOUT)
{
	int i;

	share_with(_metadata, keeps, NULL);
	ASSERT_EQ(0, write_and_look(by_parent, FIRST, 1));
	expect_copied(_metadata, by_parent);

	ASSERT_EQ(0, write_and_look(by_parent, 0, nr));
	EXPECT_EQ(-1, by_parent->wrong);
	EXPECT_EQ(kb(nr), by_parent->after.huge_kb);
	expect_rss(_metadata, by_parent);
	for (i = 0; i < pages && cow_pfn_visible(); i++)
		ASSERT_EQ(i < nr, by_child->before.frame[i] != by_parent->after.frame[i])
			TH_LOG("page %d", i);
	expect_child_kept(_metadata);
}

/* The same the other way round: the parent's mapping is not split. */
TEST_F_TIMEOUT(huge_pages, written_by_child, TEST_TIMEOUT)
{
	ASSERT_EQ(0, look(&by_parent->before));
	share_with(_metadata, writes_one, NULL);
	expect_copied(_metadata, by_child);
	ASSERT_EQ(0, look(&by_parent->after));
	by_parent->wrong = wrong_page(false, 0, 0);
	expect_kept(_metadata, by_parent);
	EXPECT_EQ(0, cow_child_end(&child));
}

/* A debugger writes to a huge page that is read-only: the same again. */
TEST_F_TIMEOUT(huge_pages, written_by_force, TEST_TIMEOUT)
{
	ssize_t ret;

	share_with(_metadata, keeps, NULL);
	ASSERT_EQ(0, mprotect(area, pages * ps, PROT_READ));
	ASSERT_EQ(0, look(&by_parent->before));
	ret = cow_write_by_force(area + FIRST * ps);
	if (ret < 0) {
		cow_child_end(&child);
		SKIP(return, COW_NO_FORCE, strerror(-ret));
	}
	ASSERT_EQ(0, look(&by_parent->after));
	by_parent->wrong = wrong_page(false, FIRST, 1);
	expect_child_kept(_metadata);
	expect_copied(_metadata, by_parent);
}

/*
 * Soft-dirty
 *
 * A huge page has one bit, and a split may set that of each small page (x86 does): a write
 * may report other pages of the same huge page, but no page of another one.
 */

static void clear_soft_dirty(struct __test_metadata *_metadata)
{
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	ASSERT_EQ(0, pages_with(COW_PM_SOFT_DIRTY, 0, pages));
}

/* Is the write to page FIRST reported, and none to the other huge page? */
static bool soft_dirty_is_right(void)
{
	return pages_with(COW_PM_SOFT_DIRTY, FIRST, 1) == 1 &&
	       pages_with(COW_PM_SOFT_DIRTY, nr, nr) == 0;
}

/* A write that makes all of a huge page writable is reported. */
TEST_F_TIMEOUT(huge_pages, soft_dirty_of_reused, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	share_with(_metadata, keeps, NULL);
	clear_soft_dirty(_metadata);
	ASSERT_EQ(0, cow_child_end(&child));
	cow_touch(area + FIRST * ps, 'w');
	EXPECT_TRUE(soft_dirty_is_right());

	/* It has been exclusive since. */
	clear_soft_dirty(_metadata);
	cow_touch(area + FIRST * ps, 'w');
	EXPECT_TRUE(soft_dirty_is_right());
}

/* A write that splits a huge page is reported, and later writes page by page. */
TEST_F_TIMEOUT(huge_pages, soft_dirty_of_split, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	share_with(_metadata, keeps, NULL);
	clear_soft_dirty(_metadata);
	cow_touch(area + FIRST * ps, 'w');
	EXPECT_TRUE(soft_dirty_is_right());

	clear_soft_dirty(_metadata);
	cow_touch(area + OTHER * ps, 'w');
	EXPECT_EQ(1, pages_with(COW_PM_SOFT_DIRTY, OTHER, 1));
	EXPECT_EQ(1, pages_with(COW_PM_SOFT_DIRTY, 0, pages));
	expect_child_kept(_metadata);
}

static void write_protect_and_back(struct __test_metadata *_metadata)
{
	ASSERT_EQ(0, mprotect(area, pages * ps, PROT_READ));
	ASSERT_EQ(0, mprotect(area, pages * ps, PROT_READ | PROT_WRITE));
}

/* Read-only and back: the first write is still reported. */
TEST_F_TIMEOUT(huge_pages, soft_dirty_after_mprotect, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	clear_soft_dirty(_metadata);
	write_protect_and_back(_metadata);
	EXPECT_EQ(0, pages_with(COW_PM_SOFT_DIRTY, 0, pages));
	cow_touch(area + FIRST * ps, 'w');
	EXPECT_TRUE(soft_dirty_is_right());
	EXPECT_EQ(kb(pages), cow_smaps_kb(area, "AnonHugePages"));
}

static int inherits_bits(struct cow_child *self, void *arg)
{
	(void)self;
	(void)arg;
	return soft_dirty_is_right() ? 0 : 2;
}

/* What was written before a fork is reported after it, to parent and child. */
TEST_F_TIMEOUT(huge_pages, soft_dirty_after_fork, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	clear_soft_dirty(_metadata);
	cow_touch(area + FIRST * ps, 'w');
	ASSERT_EQ(0, cow_child_fork(&child, inherits_bits, NULL));
	EXPECT_EQ(0, cow_child_wait(&child));
	EXPECT_TRUE(soft_dirty_is_right());
}

/*
 * Write protection by userfaultfd
 */

/*
 * Protect the first huge page. A write to it gets SIGBUS, so that no thread has to wait.
 * A child's memory is not protected, as nobody asks to follow the fork.
 */
static const char *protect_first(int *fd, __u64 features)
{
	const char *reason;

	reason = cow_uffd_wp(fd, area, pages * ps, features | UFFD_FEATURE_SIGBUS);
	if (!reason && cow_uffd_protect(*fd, area, nr * ps, true))
		reason = "cannot write-protect a huge page by userfaultfd";
	return reason;
}

static bool write_is_reported(int page)
{
	return cow_raises_sigbus(area + page * ps, true);
}

/* A write is reported. When one page is written to, all others stay protected. */
TEST_F_TIMEOUT(huge_pages, uffd_of_split, TEST_TIMEOUT)
{
	const char *reason;
	int fd;

	reason = protect_first(&fd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	share_with(_metadata, keeps, NULL);
	EXPECT_EQ(nr, pages_with(COW_PM_UFFD_WP, 0, nr));
	EXPECT_EQ(0, pages_with(COW_PM_UFFD_WP, nr, nr));
	EXPECT_TRUE(write_is_reported(FIRST));
	EXPECT_EQ(-1, wrong_page(false, 0, 0));

	ASSERT_EQ(0, look(&by_parent->before));
	ASSERT_EQ(0, cow_uffd_protect(fd, area + FIRST * ps, ps, false));
	EXPECT_FALSE(write_is_reported(FIRST));
	ASSERT_EQ(0, look(&by_parent->after));
	by_parent->wrong = wrong_page(false, FIRST, 1);
	expect_copied(_metadata, by_parent);
	EXPECT_EQ(nr - 1, pages_with(COW_PM_UFFD_WP, 0, nr));
	EXPECT_EQ(0, pages_with(COW_PM_UFFD_WP, FIRST, 1));
	EXPECT_TRUE(write_is_reported(FIRST + 1));
	EXPECT_TRUE(write_is_reported(OTHER));
	expect_child_kept(_metadata);
	close(fd);
}

static int is_protected_too(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_stay(self))
		return 1;
	if (pages_with(COW_PM_UFFD_WP, 0, pages) != nr)
		return 2;
	return write_is_reported(FIRST) && !write_is_reported(nr + OTHER) ? 0 : 3;
}

TEST_F_TIMEOUT(huge_pages, uffd_follows_child, TEST_TIMEOUT)
{
	const char *reason;
	int fd, child_fd;

	reason = protect_first(&fd, UFFD_FEATURE_EVENT_FORK);
	if (reason)
		SKIP(return, "%s", reason);
	child_fd = cow_uffd_fork(&child, is_protected_too, NULL, fd);
	ASSERT_LE(0, child_fd);
	ASSERT_EQ(1, cow_child_recv(&child));
	EXPECT_EQ(nr, pages_with(COW_PM_UFFD_WP, 0, pages));
	EXPECT_TRUE(write_is_reported(FIRST));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, wrong_page(false, 0, 0));
	close(child_fd);
	close(fd);
}

/* A page that is copied for a pin stays protected, and so do all others. */
TEST_F_TIMEOUT(huge_pages, uffd_of_unshared, TEST_TIMEOUT)
{
	const char *reason;
	int fd, ret;

	reason = protect_first(&fd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	share_with(_metadata, keeps, NULL);
	ASSERT_EQ(0, look(&by_parent->before));
	ret = cow_unshare(area + FIRST * ps);
	if (ret) {
		cow_child_end(&child);
		SKIP(return, "process_vm_readv: %s", strerror(-ret));
	}
	ASSERT_EQ(0, look(&by_parent->after));
	by_parent->wrong = wrong_page(false, 0, 0);
	expect_copied(_metadata, by_parent);
	EXPECT_EQ(nr, pages_with(COW_PM_UFFD_WP, 0, nr));
	EXPECT_TRUE(write_is_reported(FIRST));
	EXPECT_TRUE(write_is_reported(OTHER));
	expect_child_kept(_metadata);
	close(fd);
}

/*
 * In asynchronous mode nobody is told: the written page, and no other, is not protected any
 * more. One huge page is this process' own, the other is shared.
 */
TEST_F_TIMEOUT(huge_pages, uffd_asynchronous, TEST_TIMEOUT)
{
	const char *reason;
	int fd;

	reason = cow_uffd_wp(&fd, area, pages * ps, UFFD_FEATURE_WP_ASYNC);
	if (reason)
		SKIP(return, "asynchronous: %s", reason);
	ASSERT_EQ(0, cow_uffd_protect(fd, area, pages * ps, true));
	ASSERT_EQ(pages, pages_with(COW_PM_UFFD_WP, 0, pages));
	EXPECT_EQ(kb(pages), cow_smaps_kb(area, "AnonHugePages"));
	cow_touch(area + FIRST * ps, 'w');
	EXPECT_EQ(0, pages_with(COW_PM_UFFD_WP, FIRST, 1));
	EXPECT_EQ(pages - 1, pages_with(COW_PM_UFFD_WP, 0, pages));
	EXPECT_EQ(-1, wrong_page(false, FIRST, 1));

	cow_fill(area + FIRST * ps, ps, TAG);
	share_with(_metadata, keeps, NULL);
	cow_touch(area + (nr + OTHER) * ps, 'w');
	EXPECT_EQ(0, pages_with(COW_PM_UFFD_WP, nr + OTHER, 1));
	EXPECT_EQ(pages - 2, pages_with(COW_PM_UFFD_WP, 0, pages));
	EXPECT_EQ(-1, wrong_page(false, nr + OTHER, 1));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, by_child->wrong);
	EXPECT_EQ(0, by_child->protected);
	close(fd);
}

/* A debugger that writes to a page which is read-only takes its protection away, too. */
TEST_F_TIMEOUT(huge_pages, uffd_by_force, TEST_TIMEOUT)
{
	const char *reason;
	ssize_t ret;
	int fd;

	reason = cow_uffd_wp(&fd, area, pages * ps, UFFD_FEATURE_WP_ASYNC);
	if (reason)
		SKIP(return, "asynchronous: %s", reason);
	ASSERT_EQ(0, mprotect(area, pages * ps, PROT_READ));
	ASSERT_EQ(0, cow_uffd_protect(fd, area, pages * ps, true));
	ASSERT_EQ(kb(pages), cow_smaps_kb(area, "AnonHugePages"));
	ret = cow_write_by_force(area + FIRST * ps);
	if (ret < 0)
		SKIP(return, COW_NO_FORCE, strerror(-ret));
	EXPECT_EQ(0, pages_with(COW_PM_UFFD_WP, FIRST, 1));
	EXPECT_EQ(pages - 1, pages_with(COW_PM_UFFD_WP, 0, pages));
	EXPECT_EQ(-1, wrong_page(false, FIRST, 1));
	close(fd);
}

/* A part of a huge page cannot be protected again without a report of the rest. */
TEST_F_TIMEOUT(huge_pages, uffd_scanned_in_parts, TEST_TIMEOUT)
{
	unsigned char times[MAX_PAGES] = {};
	const struct cow_scan all = {};
	int i, fd, half = nr / 2;
	const char *reason;

	reason = cow_uffd_wp(&fd, area, pages * ps, UFFD_FEATURE_WP_ASYNC);
	if (reason)
		SKIP(return, "asynchronous: %s", reason);
	/* Nothing is protected yet: all pages count as written. */
	ASSERT_EQ(0, cow_scan_written(area, half, &all, times));
	ASSERT_EQ(0, cow_scan_written(area + half * ps, pages - half, &all, times + half));
	ASSERT_EQ(0, cow_scan_written(area, pages, &all, times));
	for (i = 0; i < pages; i++)
		EXPECT_EQ(1, times[i])
			TH_LOG("page %d", i);
	EXPECT_EQ(pages, pages_with(COW_PM_UFFD_WP, 0, pages));
	close(fd);
}

/* Read-only and back: a protected page must not become writable by that. */
TEST_F_TIMEOUT(huge_pages, uffd_after_mprotect, TEST_TIMEOUT)
{
	const char *reason;
	int fd;

	reason = protect_first(&fd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, mprotect(area, pages * ps, PROT_READ));
	ASSERT_EQ(0, mprotect(area, pages * ps, PROT_READ | PROT_WRITE));
	EXPECT_EQ(kb(pages), cow_smaps_kb(area, "AnonHugePages"));
	EXPECT_EQ(nr, pages_with(COW_PM_UFFD_WP, 0, pages));
	EXPECT_TRUE(write_is_reported(FIRST));
	EXPECT_FALSE(write_is_reported(nr + OTHER));
	EXPECT_EQ(-1, wrong_page(false, nr + OTHER, 1));
	close(fd);
}

static int splices(struct cow_child *self, void *arg)
{
	struct iovec iov = { .iov_base = area + FIRST * ps, .iov_len = ps };
	int *fds = arg;

	(void)self;
	return vmsplice(fds[1], &iov, 1, 0) == (ssize_t)ps ? 0 : 1;
}

/* A pipe refers to a page of a child that has exited: no write of the parent changes it. */
TEST_F_TIMEOUT(huge_pages, pipe_of_child, TEST_TIMEOUT)
{
	static char old[65536];
	char *page = area + FIRST * ps;
	int fds[2];

	memcpy(old, page, ps);
	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, cow_child_fork(&child, splices, fds));
	ASSERT_EQ(0, cow_child_wait(&child));
	cow_fill(page, ps, TAG + 1);
	ASSERT_EQ((ssize_t)ps, read(fds[0], got, ps));
	EXPECT_EQ(0, memcmp(old, got, ps));
	EXPECT_EQ(-1, cow_check(page, ps, TAG + 1));
}

#define NO_GUP_TEST	"no /sys/kernel/debug/gup_test (CONFIG_GUP_TEST, debugfs, root)"

static int gup_fd;
static char *pinned;		/* a page */

static bool open_gup_test(void)
{
	gup_fd = open("/sys/kernel/debug/gup_test", O_RDWR | O_CLOEXEC);
	return gup_fd >= 0;
}

static int pin(__u32 flags)
{
	struct pin_longterm_test args = {
		.addr = (uintptr_t)pinned, .size = ps, .flags = flags,
	};

	return ioctl(gup_fd, PIN_LONGTERM_TEST_START, &args);
}

/* Is this all that a device reads from the pinned page? */
static bool pin_reads(char byte)
{
	__u64 addr = (uintptr_t)got;
	size_t i;

	if (ioctl(gup_fd, PIN_LONGTERM_TEST_READ, &addr))
		return false;
	for (i = 0; i < ps && got[i] == byte; i++)
		;
	return i == ps;
}

/* Pin a page for writing, and fork. */
static void pin_and_fork(struct __test_metadata *_metadata, char *page, __u32 flags)
{
	pinned = page;
	ASSERT_EQ(0, pin(flags | PIN_LONGTERM_TEST_FLAG_USE_WRITE));
	share_with(_metadata, keeps, NULL);
	memset(page, 'p', ps);
	EXPECT_TRUE(pin_reads('p'));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, by_child->wrong);
	memset(page, 'q', ps);
	EXPECT_TRUE(pin_reads('q'));
	ASSERT_EQ(0, ioctl(gup_fd, PIN_LONGTERM_TEST_STOP));
	cow_fill(page, ps, TAG);
}

/* After a fork a pin sees what the parent writes, and the child does not. */
TEST_F_TIMEOUT(huge_pages, pinned_by_parent, TEST_TIMEOUT)
{
	if (!open_gup_test())
		SKIP(return, NO_GUP_TEST);
	pin_and_fork(_metadata, area + FIRST * ps, 0);
	pin_and_fork(_metadata, area + (nr + OTHER) * ps, PIN_LONGTERM_TEST_FLAG_USE_FAST);
}

/* Make the area two folios of 64 kB, which PTEs map. NULL, or why that is not possible */
static const char *map_mthp(struct cow_undo *undo)
{
	pages = 2 * 65536 / ps;
	return cow_map_mthp(undo, &area, pages * ps, TAG);
}

/* Since 6.15 a kernel can tell whether one process has all mappings of a large folio. */
static const char *reuse_of_mthp(struct cow_undo *undo)
{
	return cow_kernel_before(6, 15) ? "the kernel is older, and does not reuse large folios" :
					  map_mthp(undo);
}

/* The same with a page of such a folio */
TEST_F_TIMEOUT(huge_pages, pinned_mthp, TEST_TIMEOUT)
{
	const char *reason;

	if (!open_gup_test())
		SKIP(return, NO_GUP_TEST);
	reason = map_mthp(&self->undo);
	if (reason)
		SKIP(return, "%s", reason);
	pin_and_fork(_metadata, area + ps, 0);
	pin_and_fork(_metadata, area + (pages - 1) * ps, PIN_LONGTERM_TEST_FLAG_USE_FAST);
}

/* What nobody else has any more is reused, by whichever process is left. */

static int writes_alone(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_stay(self))
		return 1;
	return write_and_look(by_child, 0, pages);
}

static void expect_reused(struct __test_metadata *_metadata, const struct seen *s)
{
	EXPECT_EQ(-1, s->wrong);
	/* Not root: all are 0. */
	EXPECT_EQ(0, memcmp(s->before.frame, s->after.frame, pages * sizeof(s->after.frame[0])));
}

TEST_F_TIMEOUT(huge_pages, mthp_reused_after_exit, TEST_TIMEOUT)
{
	const char *reason = reuse_of_mthp(&self->undo);

	if (reason)
		SKIP(return, "%s", reason);
	share_with(_metadata, keeps, NULL);
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, by_child->wrong);
	ASSERT_EQ(0, write_and_look(by_parent, 0, pages));
	expect_reused(_metadata, by_parent);
	EXPECT_EQ(pages, cow_large_pages(area, pages));
}

TEST_F_TIMEOUT(huge_pages, mthp_reused_by_child, TEST_TIMEOUT)
{
	const char *reason = reuse_of_mthp(&self->undo);

	if (reason)
		SKIP(return, "%s", reason);
	share_with(_metadata, writes_alone, NULL);
	ASSERT_EQ(0, madvise(area, pages * ps, MADV_DONTNEED));
	EXPECT_EQ(0, cow_child_end(&child));
	expect_reused(_metadata, by_child);
}

/*
 * A fork takes the PTEs of such a folio together, also where just the first one is
 * read-only. That needs a mapping whose written pages are not soft-dirty, and which is
 * soft-dirty as a whole: it has merged with a new one.
 */
TEST_F_TIMEOUT(huge_pages, mthp_partly_writable, TEST_TIMEOUT)
{
	size_t len = 65536;
	const char *reason;
	char *page;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	reason = map_mthp(&self->undo);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	for (page = area + ps; page < area + len; page += ps)
		cow_touch(page, cow_peek(page));
	ASSERT_EQ(area + len, mmap(area + len, len, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	ASSERT_EQ(0, madvise(area + len, len, MADV_HUGEPAGE));
	EXPECT_EQ(kb(pages), cow_smaps_kb(area, "Size"));
	cow_fill(area + len, len, TAG);
	share_with(_metadata, keeps, NULL);
	for (page = area + ps; page < area + len; page += ps)
		cow_touch(page, 'w');
	EXPECT_EQ(-1, wrong_page(false, 1, len / ps - 1));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, by_child->wrong);
}

/* The first page that has no soft-dirty bit but is odd, or has one but is even; or -1 */
static int wrong_soft_dirty(void)
{
	int i;

	for (i = 0; i < pages; i++)
		if (pages_with(COW_PM_SOFT_DIRTY, i, 1) != i % 2)
			return i;
	return -1;
}

static void write_odd_pages(struct __test_metadata *_metadata)
{
	int i;

	clear_soft_dirty(_metadata);
	for (i = 1; i < pages; i += 2)
		cow_touch(area + i * ps, 'w');
	ASSERT_EQ(-1, wrong_soft_dirty());
}

static int inherits_odd_bits(struct cow_child *self, void *arg)
{
	(void)self;
	(void)arg;
	return 1 + wrong_soft_dirty();
}

/* A fork takes only those PTEs together that are soft-dirty, or not, alike. */
TEST_F_TIMEOUT(huge_pages, soft_dirty_of_mthp_after_fork, TEST_TIMEOUT)
{
	const char *reason;
	int status;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	reason = map_mthp(&self->undo);
	if (reason)
		SKIP(return, "%s", reason);
	write_odd_pages(_metadata);
	ASSERT_EQ(0, cow_child_fork(&child, inherits_odd_bits, NULL));
	status = cow_child_wait(&child);
	EXPECT_EQ(0, status)
		TH_LOG("the child's page %d", status - 1);
	EXPECT_EQ(-1, wrong_soft_dirty());
}

/* The same for mprotect(), which takes them together as well */
TEST_F_TIMEOUT(huge_pages, soft_dirty_of_mthp_after_mprotect, TEST_TIMEOUT)
{
	const char *reason;
	int i;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	reason = map_mthp(&self->undo);
	if (reason)
		SKIP(return, "%s", reason);
	write_odd_pages(_metadata);
	write_protect_and_back(_metadata);
	EXPECT_EQ(-1, wrong_soft_dirty());
	for (i = 0; i < pages; i += 2)
		cow_touch(area + i * ps, 'w');
	EXPECT_EQ(pages, pages_with(COW_PM_SOFT_DIRTY, 0, pages));
}

static int keeps_all_but_first(struct cow_child *self, void *arg)
{
	int i;

	(void)arg;
	if (cow_child_stay(self))
		return 1;
	for (i = 1; i < pages; i++)
		if (!intact(area + i * ps, false, false))
			return 1 + i;
	return 0;
}

/* Fork with the first page left out, and make it one mapping again. */
static void share_all_but_first(struct __test_metadata *_metadata)
{
	ASSERT_EQ(0, madvise(area, ps, MADV_DONTFORK));
	share_with(_metadata, keeps_all_but_first, NULL);
	ASSERT_EQ(0, madvise(area, ps, MADV_DOFORK));
	ASSERT_EQ(kb(pages), cow_smaps_kb(area, "Size"));
}

static void write_all(struct __test_metadata *_metadata)
{
	int i, status;

	for (i = 0; i < pages; i++)
		cow_touch(area + i * ps, 'w');
	EXPECT_EQ(-1, wrong_page(false, 0, pages));
	status = cow_child_end(&child);
	EXPECT_EQ(0, status)
		TH_LOG("the child's page %d", status - 1);
}

/* One page of the folio is ours alone, as it was not inherited: it is the only writable one. */
TEST_F_TIMEOUT(huge_pages, partly_shared_mthp_after_mprotect, TEST_TIMEOUT)
{
	const char *reason;

	reason = map_mthp(&self->undo);
	if (reason)
		SKIP(return, "%s", reason);
	share_all_but_first(_metadata);
	/* Its PTEs are changed together. */
	write_protect_and_back(_metadata);
	write_all(_metadata);
}

/* The same while the folio is in swap: it comes back page by page. */
TEST_F_TIMEOUT(huge_pages, partly_shared_mthp_in_swap, TEST_TIMEOUT)
{
	const char *reason;

	reason = map_mthp(&self->undo);
	if (reason)
		SKIP(return, "%s", reason);
	if (!cow_page_out(area, pages))
		SKIP(return, "the pages do not go to swap");
	share_all_but_first(_metadata);
	ASSERT_EQ(pages, cow_swapped(area, pages));
	write_all(_metadata);
}

/*
 * Reclaim splits folios, not only their mapping. A small page of zeroes becomes the zero
 * page then.
 */

/* NULL, or why the first nr_pages pages are in large folios yet */
static const char *split_folios(int nr_pages)
{
	char text[64];

	snprintf(text, sizeof(text), "%d,0x%lx,0x%lx", getpid(), (unsigned long)area,
		 (unsigned long)(area + nr_pages * ps));
	cow_drain_lru();
	if (cow_write_file("/sys/kernel/debug/split_huge_pages", text))
		return "no split_huge_pages in debugfs";
	return cow_large_pages(area, nr_pages) ? "the huge pages are not split" : NULL;
}

/* Every third one */
static bool emptied(int page)
{
	return page % 3 == 0;
}

static void empty_pages(int nr_pages)
{
	int i;

	for (i = 0; i < nr_pages; i++)
		if (emptied(i))
			memset(area + i * ps, 0, ps);
}

static int wrong_emptied(int nr_pages)
{
	int i;

	for (i = 0; i < nr_pages; i++)
		if (!intact(area + i * ps, emptied(i), false))
			return i;
	return -1;
}

TEST_F_TIMEOUT(huge_pages, uffd_of_split_folio, TEST_TIMEOUT)
{
	const char *reason;
	int fd;

	empty_pages(nr);
	reason = protect_first(&fd, 0);
	if (!reason)
		reason = split_folios(nr);
	if (reason)
		SKIP(return, "%s", reason);
	EXPECT_EQ(nr, pages_with(COW_PM_UFFD_WP, 0, nr));
	EXPECT_TRUE(write_is_reported(0));
	EXPECT_TRUE(write_is_reported(1));
	EXPECT_EQ(-1, wrong_emptied(nr));
	close(fd);
}

TEST_F_TIMEOUT(huge_pages, soft_dirty_of_split_folio, TEST_TIMEOUT)
{
	const char *reason;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	clear_soft_dirty(_metadata);
	empty_pages(nr);
	reason = split_folios(nr);
	if (reason)
		SKIP(return, "%s", reason);
	/* The whole huge page was. */
	EXPECT_EQ(nr, pages_with(COW_PM_SOFT_DIRTY, 0, nr));
	EXPECT_EQ(0, pages_with(COW_PM_SOFT_DIRTY, nr, nr));
	EXPECT_EQ(-1, wrong_emptied(nr));
}

/* A folio that is shared is still shared when it is split. */
TEST_F_TIMEOUT(huge_pages, shared_while_split, TEST_TIMEOUT)
{
	const char *reason;

	share_with(_metadata, keeps, NULL);
	reason = split_folios(nr);
	if (reason) {
		cow_child_end(&child);
		SKIP(return, "%s", reason);
	}
	write_all(_metadata);
	EXPECT_EQ(-1, by_child->wrong);
}

/* No TLB entry allows a write after mprotect(), for any page of the folio. */
TEST_F_TIMEOUT(huge_pages, mthp_read_only, TEST_TIMEOUT)
{
	const char *reason;
	int i, fd;

	fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	reason = map_mthp(&self->undo);
	if (reason)
		SKIP(return, "%s", reason);
	/* The kernel writes there as well, with the same TLB entries. */
	for (i = 0; i < pages; i++)
		ASSERT_EQ(1, read(fd, area + i * ps, 1));
	ASSERT_EQ(0, mprotect(area, pages * ps, PROT_READ));
	for (i = 0; i < pages; i++) {
		EXPECT_EQ(-1, read(fd, area + i * ps, 1))
			TH_LOG("page %d can be written to", i);
		EXPECT_EQ(EFAULT, errno);
	}
	close(fd);
}

static int pins_and_writes(struct cow_child *self, void *flags)
{
	if (pin(*(__u32 *)flags))
		return 2;
	memset(pinned, 'c', ps);
	return cow_child_stay(self);
}

/* Pin a page of the child for reading, which makes it the child's own. */
static void fork_and_pin(struct __test_metadata *_metadata, char *page, __u32 flags)
{
	pinned = page;
	share_with(_metadata, pins_and_writes, &flags);
	EXPECT_EQ(-1, wrong_page(false, 0, 0));
	EXPECT_TRUE(pin_reads('c'));
	memset(page, 'p', ps);
	EXPECT_TRUE(pin_reads('c'));
	EXPECT_EQ(0, cow_child_end(&child));
	memset(page, 'q', ps);
	EXPECT_TRUE(pin_reads('c'));
	ASSERT_EQ(0, ioctl(gup_fd, PIN_LONGTERM_TEST_STOP));
	cow_fill(page, ps, TAG);
}

/* Such a pin sees what the child writes, and never what the parent writes. */
TEST_F_TIMEOUT(huge_pages, pinned_by_child, TEST_TIMEOUT)
{
	if (!open_gup_test())
		SKIP(return, NO_GUP_TEST);
	fork_and_pin(_metadata, area + FIRST * ps, 0);
	fork_and_pin(_metadata, area + (nr + OTHER) * ps, PIN_LONGTERM_TEST_FLAG_USE_FAST);
}

/* Writes when the parent has written, and looks before, after, and at the end. */
static int writes_to_zeros(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 1;
	if (wrong_page(true, 0, 0) != -1)
		return 2;
	cow_touch(area + OTHER * ps, 'w');
	if (wrong_page(true, OTHER, 1) != -1 || cow_child_stay(self))
		return 3;
	return wrong_page(true, OTHER, 1) == -1 ? 0 : 4;
}

/* A write is seen by its process only, at its address only; all else stays zero. */
TEST_F_TIMEOUT(huge_pages, zero_page, TEST_TIMEOUT)
{
	const __u64 *frame = by_parent->before.frame;

	cow_map_hugepage = true;
	area = cow_map(pages * ps, nr * ps);
	ASSERT_NE(NULL, area);
	ASSERT_EQ(0, cow_peek(area));
	ASSERT_EQ(0, cow_peek(area + nr * ps));
	ASSERT_EQ(0, look(&by_parent->before));
	/* Both reads have mapped all small pages, to the same huge page. */
	if (pages_with(COW_PM_PRESENT, 0, pages) != pages || frame[0] != frame[nr])
		SKIP(return, "got no huge zero page");

	share_with(_metadata, writes_to_zeros, NULL);
	cow_touch(area + FIRST * ps, 'w');
	EXPECT_EQ(-1, wrong_page(true, FIRST, 1));
	ASSERT_EQ(0, cow_child_send(&child, 2));
	EXPECT_EQ(1, cow_child_recv(&child));
	EXPECT_EQ(-1, wrong_page(true, FIRST, 1));
	EXPECT_EQ(0, cow_child_end(&child));
	cow_touch(area + (FIRST + 1) * ps, 'w');
	EXPECT_EQ(-1, wrong_page(true, FIRST, 2));
}

/*
 * A private mapping of a file: no write gets to the file, also if a PMD maps it.
 */

#define THP_DIR	"/sys/kernel/mm/transparent_hugepage/"

/* Map the file to the area, private or shared. */
static bool map_file(int fd, int flags)
{
	return mmap(area, nr * ps, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == area;
}

static bool file_is_huge(void)
{
	return cow_smaps_kb(area, "ShmemPmdMapped") == kb(nr);
}

/*
 * Make the area a private mapping of a file, which is one huge page. NULL, or the reason
 * why that is not possible
 */
static const char *map_huge_file(struct cow_undo *undo, int *fd)
{
	char path[128];

	snprintf(path, sizeof(path), THP_DIR "hugepages-%ldkB/shmem_enabled", kb(nr));
	if (!access(path, F_OK) && !cow_tweak(undo, path, "inherit"))
		return "enabling huge pages of files " COW_NEEDS;
	if (!cow_tweak(undo, THP_DIR "shmem_enabled", "advise"))
		return "no huge pages of files, or enabling them " COW_NEEDS;
	*fd = memfd_create("cow_huge", MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, nr * ps))
		return "cannot make a file";
	pages = nr;
	area = cow_map(nr * ps, nr * ps);
	if (!area || !map_file(*fd, MAP_SHARED))
		return "no memory";
	madvise(area, nr * ps, MADV_HUGEPAGE);
	cow_fill(area, nr * ps, TAG);
	if (!file_is_huge())
		return "got no huge page for a file";
	return map_file(*fd, MAP_PRIVATE) ? NULL : "no memory";
}

/* Reads before it writes, so that a PMD maps the file. */
static int writes_to_private_file(struct cow_child *self, void *arg)
{
	(void)arg;
	if (wrong_page(false, 0, 0) != -1 || !file_is_huge())
		return 1;
	cow_touch(area + FIRST * ps, 'w');
	if (wrong_page(false, FIRST, 1) != -1 || cow_child_stay(self))
		return 2;
	return wrong_page(false, FIRST, 1) == -1 ? 0 : 3;
}

static int keeps_two_written(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_stay(self))
		return 1;
	return wrong_page(false, FIRST, 2) == -1 ? 0 : 2;
}

TEST_F_TIMEOUT(huge_pages, private_file, TEST_TIMEOUT)
{
	const char *reason;
	int fd;

	reason = map_huge_file(&self->undo, &fd);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(-1, wrong_page(false, 0, 0));
	if (!file_is_huge())
		SKIP(return, "no PMD maps a private file");
	share_with(_metadata, writes_to_private_file, NULL);
	EXPECT_EQ(-1, wrong_page(false, 0, 0));
	EXPECT_TRUE(file_is_huge());
	cow_touch(area + OTHER * ps, 'w');
	EXPECT_EQ(-1, wrong_page(false, OTHER, 1));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, wrong_page(false, OTHER, 1));
	/* And the file */
	ASSERT_TRUE(map_file(fd, MAP_SHARED));
	EXPECT_EQ(-1, wrong_page(false, 0, 0));
	close(fd);
}

/* Small pages of the file become a huge page: copies of them stay. */
TEST_F_TIMEOUT(huge_pages, private_copies_of_collapsed_file, TEST_TIMEOUT)
{
	size_t len = nr * ps;
	char *shared = cow_map(len, len);
	int fd = memfd_create("cow_collapsed", MFD_CLOEXEC);

	pages = nr;
	area = cow_map(len, len);
	ASSERT_NE(NULL, area);
	ASSERT_NE(NULL, shared);
	ASSERT_EQ(0, ftruncate(fd, len));
	ASSERT_TRUE(map_file(fd, MAP_SHARED));
	cow_fill(area, len, TAG);
	ASSERT_TRUE(map_file(fd, MAP_PRIVATE));
	ASSERT_EQ(shared, mmap(shared, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			       fd, 0));
	cow_touch(area + FIRST * ps, 'w');
	cow_touch(area + (FIRST + 1) * ps, 'w');
	share_with(_metadata, keeps_two_written, NULL);
	if (madvise(shared, len, MADV_COLLAPSE)) {
		cow_child_end(&child);
		SKIP(return, "MADV_COLLAPSE of a file: %s", strerror(errno));
	}
	EXPECT_EQ(-1, wrong_page(false, FIRST, 2));
	EXPECT_EQ(0, cow_child_end(&child));
	cow_unmap(shared, len);
	close(fd);
}

/* Nor does userfaultfd's protection of small pages get lost in a huge page. */
TEST_F_TIMEOUT(huge_pages, uffd_of_collapsed, TEST_TIMEOUT)
{
	size_t len = nr * ps;
	const char *reason;
	int fd;

	pages = nr;
	area = cow_map(len, len);
	ASSERT_NE(NULL, area);
	cow_fill(area, len, TAG);
	reason = cow_uffd_wp(&fd, area, len, UFFD_FEATURE_SIGBUS);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_uffd_protect(fd, area + FIRST * ps, ps, true));
	ASSERT_EQ(0, madvise(area, len, MADV_HUGEPAGE));
	/* It need not be possible. */
	madvise(area, len, MADV_COLLAPSE);
	EXPECT_EQ(1, pages_with(COW_PM_UFFD_WP, 0, pages));
	EXPECT_EQ(1, pages_with(COW_PM_UFFD_WP, FIRST, 1));
	EXPECT_TRUE(cow_raises_sigbus(area + FIRST * ps, true));
	EXPECT_FALSE(cow_raises_sigbus(area + OTHER * ps, true));
	EXPECT_EQ(-1, wrong_page(false, OTHER, 1));
	close(fd);
}

#define NO_HUGE_PAGE	7	/* exit status */

/* Charge batches of each CPU, and room for what the kernel needs for the cgroup itself */
static long leak_slack(void)
{
	return COW_CHARGE_BATCH * (sysconf(_SC_NPROCESSORS_CONF) + 2) * ps;
}

/* So many rounds that a page leaked by each split shows */
static int share_and_write(struct cow_child *self, void *cgroup)
{
	long i, charged = 0, rounds = 2 * leak_slack() / ps;
	struct cow_child c;
	char *p;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(cgroup))
		return 1;
	cow_map_hugepage = true;
	/* If huge pages leak, stop before memory runs out. */
	for (i = 0; i < rounds && charged < 2 * leak_slack() + 8 * nr * (long)ps; i++) {
		p = cow_map(nr * ps, nr * ps);
		if (!p)
			return 2;
		cow_touch(p, 1);
		if (cow_smaps_kb(p, "AnonHugePages") != kb(nr))
			return NO_HUGE_PAGE;
		if (cow_child_idle(&c))
			return 3;
		/* Split and copied, but every fourth is reused. */
		if (i % 4)
			cow_touch(p + FIRST * ps, 'w');
		if (cow_child_end(&c))
			return 4;
		cow_touch(p + OTHER * ps, 'w');
		cow_unmap(p, nr * ps);
		if (cow_cgroup_read(cgroup, "memory.current", &charged))
			return 5;
	}
	return 0;
}

/*
 * MADV_FREE on a folio, of which two pages were written to since: reclaim unmaps it, sees
 * that it may not drop it, and maps it again. Page 0 is the parent's alone, and writable.
 */
#define NOT_RECLAIMED	101

static int sees_no_write(struct cow_child *self, void *arg)
{
	int i;

	(void)arg;
	if (cow_child_stay(self))
		return 1;
	for (i = 2; i < pages / 2; i++)
		if (cow_peek(area + i * ps) == 'w')
			return 1 + i;
	return 0;
}

static int frees_and_writes(struct cow_child *self, void *cgroup)
{
	struct cow_undo undo = {};
	struct cow_child c;
	int i;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(cgroup))
		return 1;
	/* Without swap what was freed is all that reclaim finds. */
	cow_cgroup_write(cgroup, "memory.swap.max", "0");
	/* They are allowed already: there is nothing to undo. */
	if (map_mthp(&undo))
		return NO_HUGE_PAGE;
	if (madvise(area, pages * ps, MADV_FREE) || cow_drain_lru())
		return NOT_RECLAIMED;
	cow_touch(area, 'w');
	cow_touch(area + ps, 'w');
	if (madvise(area, ps, MADV_DONTFORK) || cow_child_fork(&c, sees_no_write, NULL) ||
	    cow_child_recv(&c) != 1 || madvise(area, ps, MADV_DOFORK))
		return 2;
	for (i = 0; i < 20 && !(cow_page_flags(area) & COW_KPF_SWAPBACKED); i++)
		cow_cgroup_write(cgroup, "memory.reclaim", "1M");
	if (!(cow_page_flags(area) & COW_KPF_SWAPBACKED))
		return NOT_RECLAIMED;
	for (i = 0; i < pages / 2; i++)
		cow_touch(area + i * ps, 'w');
	return cow_child_end(&c) ? 3 : 0;
}

TEST_F_TIMEOUT(huge_pages, mthp_reclaimed_in_vain, TEST_TIMEOUT)
{
	const char *reason;
	int ret;

	reason = map_mthp(&self->undo);
	if (!reason)
		reason = cow_cgroup_make(self->cgroup, "cow_huge");
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_child_fork(&child, frees_and_writes, self->cgroup));
	ret = cow_child_wait(&child);
	if (ret == NO_HUGE_PAGE)
		SKIP(return, "got no huge pages of 64 kB");
	if (ret == NOT_RECLAIMED)
		SKIP(return, "reclaim has not tried to drop the folio");
	EXPECT_EQ(0, ret);
}

/* When the last process of a cgroup has exited, at most charge batches are left. */
TEST_F_TIMEOUT(huge_pages, nothing_leaks, TEST_TIMEOUT)
{
	const char *reason;
	long left = LONG_MAX;
	int ret, i;

	reason = cow_cgroup_make(self->cgroup, "cow_huge");
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_child_fork(&child, share_and_write, self->cgroup));
	ret = cow_child_wait(&child);
	if (ret == NO_HUGE_PAGE)
		SKIP(return, "got no huge pages");
	ASSERT_EQ(0, ret);
	/* What RCU frees is free a bit later. */
	for (i = 0; i < 6000 && left >= leak_slack(); i++) {
		usleep(10000);
		ASSERT_EQ(0, cow_cgroup_read(self->cgroup, "memory.current", &left));
	}
	EXPECT_GT(leak_slack(), left);
}

TEST_HARNESS_MAIN
