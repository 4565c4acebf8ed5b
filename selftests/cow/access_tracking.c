// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that userfaultfd protects from any access (UFFDIO_RWPROTECT, in 7.3 and not yet in 6.12).
 *
 * An access to such a page is reported until the monitor allows it, in a child only if the
 * userfaultfd follows it. Fork, copies beside it, swap, migration and mprotect() leave the
 * protection as it is. When it goes, a page that is shared is still shared: the other process
 * keeps what it has. The same for huge pages and hugetlb pages. True on any kernel that has
 * it.
 */
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define NR	32	/* small pages */
#define TAG	83

/* nr pages of this size; children inherit it. */
static char *area;
static size_t size;
static int nr;
static size_t ps;

static struct cow_child child;

FIXTURE(access_tracking)
{
	struct cow_settings saved;
	struct cow_undo undo;
	int fd;
};

enum kind { SMALL, HUGE, HUGETLB };

FIXTURE_VARIANT(access_tracking)
{
	int ahead;
	enum kind kind;
};

FIXTURE_VARIANT_ADD(access_tracking, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(access_tracking, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(access_tracking, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(access_tracking, plain_huge) { .ahead = COW_PLAIN, .kind = HUGE };
FIXTURE_VARIANT_ADD(access_tracking, plain_hugetlb) { .ahead = COW_PLAIN, .kind = HUGETLB };

/* Not all of a page is looked at, but its first and its last bytes. */
static void fill_pages(void)
{
	int i;

	for (i = 0; i < nr; i++) {
		cow_fill(area + i * size, ps, TAG);
		cow_fill(area + (i + 1) * size - ps, ps, TAG);
	}
}

static const char *map_area(struct cow_undo *undo, enum kind kind)
{
	const char *reason = NULL;

	nr = kind == SMALL ? NR : kind == HUGE ? 2 : 1;
	size = kind == SMALL ? ps : cow_pmd_size();
	if (kind == HUGETLB)
		reason = cow_map_hugetlb(undo, &area, &size);
	else if (kind == HUGE)
		reason = cow_map_huge(undo, &area, nr * size, TAG);
	else
		area = cow_map(nr * size, nr * size);
	if (!reason && !area)
		reason = "no memory";
	if (!reason)
		fill_pages();
	return reason;
}

static const char *track_accesses(int *fd, __u64 features)
{
	return cow_uffd_access(fd, area, nr * size, features);
}

FIXTURE_SETUP(access_tracking)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_pin_cpu());
	reason = map_area(&self->undo, variant->kind);
	if (!reason) {
		/* Is it possible at all? Tests register again. */
		reason = track_accesses(&self->fd, UFFD_FEATURE_SIGBUS);
		close(self->fd);
	}
	if (reason) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
}

FIXTURE_TEARDOWN_PARENT(access_tracking)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

static int protect(int fd, int first, int nr_pages, bool on)
{
	return cow_uffd_protect_access(fd, area + first * size, nr_pages * size, on);
}

/* Some pages are protected; at least the first one, which may be the only one. */
static bool even(int i)
{
	return i % 2 == 0;
}

static bool none(int i)
{
	(void)i;
	return false;
}

enum access { READ, WRITE };

/* SIGBUS instead of a message, so that no thread has to wait for a monitor */
static bool is_reported(int i, enum access how)
{
	return cow_raises_sigbus(area + i * size, how == WRITE);
}

static const char *protect_even(int *fd, __u64 features)
{
	const char *reason;
	int i;

	reason = track_accesses(fd, features | UFFD_FEATURE_SIGBUS);
	for (i = 0; !reason && i < nr; i += 2)
		if (protect(*fd, i, 1, true))
			reason = "UFFDIO_RWPROTECT fails";
	return reason;
}

static bool has_mark(int i)
{
	return cow_pagemap(area + i * size) & COW_PM_UFFD_WP;
}

/* The first page that has a mark of its protection and should not, or the reverse; or -1 */
static int wrong_mark(bool (*protected)(int i))
{
	int i;

	for (i = 0; i < nr; i++)
		if (has_mark(i) != protected(i))
			return i;
	return -1;
}

/*
 * The same for the reports of reads and of writes, which get through to all other pages. The
 * first access may be what brings a page back from swap.
 */
static int wrong_report(bool (*protected)(int i), enum access first)
{
	int i;

	for (i = 0; i < nr; i++) {
		if (is_reported(i, first) != protected(i) ||
		    is_reported(i, first == READ ? WRITE : READ) != protected(i))
			return i;
	}
	return -1;
}

/* The first page that is not as it was filled, but for the first byte if it was written */
static int wrong_content(bool (*unwritten)(int i))
{
	const size_t word = sizeof(__u64);
	int i;

	for (i = 0; i < nr; i++) {
		const char *page = area + i * size, *last = page + size - ps;
		size_t skip = unwritten(i) ? 0 : word;

		if ((skip && cow_peek(page) != 'w') ||
		    cow_check(page + skip, ps - skip, TAG) != -1 ||
		    cow_check(last + word, ps - word, TAG) != -1)
			return i;
	}
	return -1;
}

static bool all(int i)
{
	(void)i;
	return true;
}

static void write_all(void)
{
	int i;

	for (i = 0; i < nr; i++)
		cow_touch(area + i * size, 'w');
}

/* Allowed again, all pages have what they should; those that were protected may be written. */
static void expect_usable_again(struct __test_metadata *_metadata, int fd)
{
	ASSERT_EQ(0, protect(fd, 0, nr, false));
	EXPECT_EQ(-1, wrong_mark(none));
	EXPECT_EQ(-1, wrong_content(even));
	write_all();
	EXPECT_EQ(-1, wrong_content(none));
}

/* Keeps what it has at the fork, whatever the parent does. */
static int keeps(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_stay(self))
		return 1;
	return wrong_content(all) == -1 ? 0 : 2;
}

/* Nobody asked to follow the fork. */
static int is_free(struct cow_child *self, void *arg)
{
	(void)arg;
	if (wrong_mark(none) != -1)
		return 2;
	if (cow_child_stay(self))
		return 1;
	if (wrong_content(all) != -1)
		return 3;
	write_all();
	return wrong_content(none) == -1 ? 0 : 4;
}

static int is_protected_too(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_stay(self))
		return 1;
	if (wrong_mark(even) != -1)
		return 2;
	return wrong_report(even, WRITE) == -1 ? 0 : 3;
}

static void share_with(struct __test_metadata *_metadata, cow_child_fn fn)
{
	ASSERT_EQ(0, cow_child_fork(&child, fn, NULL));
	ASSERT_EQ(1, cow_child_recv(&child));
}

TEST_F_TIMEOUT(access_tracking, unaware_of_child, TEST_TIMEOUT)
{
	const char *reason = protect_even(&self->fd, 0);

	ASSERT_EQ(NULL, reason);
	share_with(_metadata, is_free);
	EXPECT_EQ(-1, wrong_mark(even));
	EXPECT_EQ(-1, wrong_report(even, READ));
	expect_usable_again(_metadata, self->fd);
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, wrong_content(none));
}

TEST_F_TIMEOUT(access_tracking, follows_child, TEST_TIMEOUT)
{
	const char *reason = protect_even(&self->fd, UFFD_FEATURE_EVENT_FORK);
	int child_fd;

	if (reason)
		SKIP(return, "%s", reason);
	child_fd = cow_uffd_fork(&child, is_protected_too, NULL, self->fd);
	ASSERT_LE(0, child_fd);
	ASSERT_EQ(1, cow_child_recv(&child));
	EXPECT_EQ(-1, wrong_report(even, READ));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, wrong_mark(even));
	expect_usable_again(_metadata, self->fd);
	close(child_fd);
}

/* The fork copies pages that are pinned, with their protection. */
TEST_F_TIMEOUT(access_tracking, follows_child_pinned, TEST_TIMEOUT)
{
	/* Before they are protected: a pin is an access. */
	int child_fd, pin_fd = cow_pin(area, nr * size);
	const char *reason;

	if (pin_fd < 0)
		SKIP(return, "pages cannot be pinned by io_uring: %s", strerror(-pin_fd));
	reason = protect_even(&self->fd, UFFD_FEATURE_EVENT_FORK);
	if (reason)
		SKIP(return, "%s", reason);
	child_fd = cow_uffd_fork(&child, is_protected_too, NULL, self->fd);
	ASSERT_LE(0, child_fd);
	ASSERT_EQ(1, cow_child_recv(&child));
	EXPECT_EQ(-1, wrong_report(even, READ));
	expect_usable_again(_metadata, self->fd);
	EXPECT_EQ(0, cow_child_end(&child));
	close(child_fd);
	close(pin_fd);
}

/* Copied and, when the child has gone, reused */
TEST_F_TIMEOUT(access_tracking, beside_writes, TEST_TIMEOUT)
{
	int i;

	if (nr == 1)
		SKIP(return, "there is no page beside it");
	ASSERT_EQ(NULL, protect_even(&self->fd, 0));
	share_with(_metadata, keeps);
	for (i = 1; i <= nr / 2; i += 2)
		cow_touch(area + i * size, 'w');
	EXPECT_EQ(-1, wrong_mark(even));
	EXPECT_EQ(0, cow_child_end(&child));
	for (; i < nr; i += 2)
		cow_touch(area + i * size, 'w');
	EXPECT_EQ(-1, wrong_mark(even));
	EXPECT_EQ(-1, wrong_report(even, READ));
	expect_usable_again(_metadata, self->fd);
}

/* Protected while they are shared, and allowed again: they are still shared. */
TEST_F_TIMEOUT(access_tracking, allowed_again, TEST_TIMEOUT)
{
	ASSERT_EQ(NULL, track_accesses(&self->fd, UFFD_FEATURE_SIGBUS));
	share_with(_metadata, keeps);
	ASSERT_EQ(0, protect(self->fd, 0, nr, true));
	EXPECT_EQ(-1, wrong_mark(all));
	ASSERT_EQ(0, protect(self->fd, 0, nr, false));
	EXPECT_EQ(-1, wrong_mark(none));
	write_all();
	EXPECT_EQ(-1, wrong_content(none));
	EXPECT_EQ(0, cow_child_end(&child));
}

/* The same where the kernel itself allows what is accessed */
TEST_F_TIMEOUT(access_tracking, asynchronous, TEST_TIMEOUT)
{
	int i;

	ASSERT_EQ(NULL, track_accesses(&self->fd, UFFD_FEATURE_RWP_ASYNC));
	share_with(_metadata, keeps);
	ASSERT_EQ(0, protect(self->fd, 0, nr, true));
	for (i = 1; i < nr; i += 4)
		cow_peek(area + i * size);
	for (i = 3; i < nr; i += 4)
		cow_touch(area + i * size, 'w');
	EXPECT_EQ(-1, wrong_mark(even));
	write_all();
	EXPECT_EQ(-1, wrong_mark(none));
	EXPECT_EQ(-1, wrong_content(none));
	EXPECT_EQ(0, cow_child_end(&child));
}

TEST_F_TIMEOUT(access_tracking, unregistered, TEST_TIMEOUT)
{
	struct uffdio_range range = { .start = (uintptr_t)area, .len = nr * size };

	ASSERT_EQ(NULL, track_accesses(&self->fd, UFFD_FEATURE_SIGBUS));
	share_with(_metadata, keeps);
	ASSERT_EQ(0, protect(self->fd, 0, nr, true));
	ASSERT_EQ(0, ioctl(self->fd, UFFDIO_UNREGISTER, &range));
	EXPECT_EQ(-1, wrong_mark(none));
	write_all();
	EXPECT_EQ(-1, wrong_content(none));
	EXPECT_EQ(0, cow_child_end(&child));
}

/* Read-only and back */
TEST_F_TIMEOUT(access_tracking, after_mprotect, TEST_TIMEOUT)
{
	ASSERT_EQ(NULL, protect_even(&self->fd, 0));
	share_with(_metadata, keeps);
	ASSERT_EQ(0, mprotect(area, nr * size, PROT_READ));
	EXPECT_EQ(-1, wrong_mark(even));
	ASSERT_EQ(0, mprotect(area, nr * size, PROT_READ | PROT_WRITE));
	EXPECT_EQ(-1, wrong_mark(even));
	EXPECT_EQ(-1, wrong_report(even, READ));
	expect_usable_again(_metadata, self->fd);
	EXPECT_EQ(0, cow_child_end(&child));
}

/* Where mremap() moves pages to, nobody has asked for protection. */
TEST_F_TIMEOUT(access_tracking, moved, TEST_TIMEOUT)
{
	char *from = area;

	if (variant->kind == HUGETLB)
		SKIP(return, "content goes by the address, and mremap() moves the page elsewhere");
	ASSERT_EQ(NULL, protect_even(&self->fd, 0));
	share_with(_metadata, keeps);
	/* The content of a page goes by its address: there and back. */
	area = cow_map(nr * size, size);
	ASSERT_NE(NULL, area);
	ASSERT_NE(MAP_FAILED, mremap(from, nr * size, nr * size,
				     MREMAP_MAYMOVE | MREMAP_FIXED, area));
	EXPECT_EQ(-1, wrong_mark(none));
	ASSERT_NE(MAP_FAILED, mremap(area, nr * size, nr * size,
				     MREMAP_MAYMOVE | MREMAP_FIXED, from));
	area = from;
	EXPECT_EQ(-1, wrong_mark(none));
	EXPECT_EQ(-1, wrong_content(all));
	write_all();
	EXPECT_EQ(-1, wrong_content(none));
	EXPECT_EQ(0, cow_child_end(&child));
}

static const char *to_swap(void)
{
	return cow_page_out(area, nr * size / ps) ? NULL : "the pages do not go to swap";
}

TEST_F_TIMEOUT(access_tracking, in_swap, TEST_TIMEOUT)
{
	const char *reason;

	ASSERT_EQ(NULL, protect_even(&self->fd, 0));
	reason = to_swap();
	if (reason)
		SKIP(return, "%s", reason);
	EXPECT_EQ(-1, wrong_mark(even));
	share_with(_metadata, is_free);
	EXPECT_EQ(-1, wrong_report(even, READ));
	EXPECT_EQ(-1, wrong_mark(even));
	expect_usable_again(_metadata, self->fd);
	EXPECT_EQ(0, cow_child_end(&child));
}

TEST_F_TIMEOUT(access_tracking, follows_child_in_swap, TEST_TIMEOUT)
{
	const char *reason = protect_even(&self->fd, UFFD_FEATURE_EVENT_FORK);
	int child_fd;

	if (!reason)
		reason = to_swap();
	if (reason)
		SKIP(return, "%s", reason);
	child_fd = cow_uffd_fork(&child, is_protected_too, NULL, self->fd);
	ASSERT_LE(0, child_fd);
	ASSERT_EQ(1, cow_child_recv(&child));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_EQ(-1, wrong_report(even, READ));
	expect_usable_again(_metadata, self->fd);
	close(child_fd);
}

/*
 * What UFFDIO_MOVE puts there is protected where it arrives.
 */

static void move_in(struct __test_metadata *_metadata, int fd, char *from)
{
	ASSERT_EQ(0, madvise(area, nr * size, MADV_DONTNEED));
	ASSERT_EQ(0, cow_uffd_move(fd, area, from, nr * size, NULL));
	EXPECT_EQ(-1, wrong_mark(all));
	EXPECT_EQ(-1, wrong_report(all, READ));
	EXPECT_EQ(-1, wrong_mark(all));
	ASSERT_EQ(0, protect(fd, 0, nr, false));
}

static void expect_content_moved(struct __test_metadata *_metadata)
{
	EXPECT_EQ(-1, wrong_content(all));
	write_all();
	EXPECT_EQ(-1, wrong_content(none));
}

TEST_F_TIMEOUT(access_tracking, moved_in, TEST_TIMEOUT)
{
	const char *reason = NULL;
	char *from = NULL;

	if (variant->kind == HUGETLB)
		SKIP(return, "UFFDIO_MOVE does not move hugetlb pages");
	if (variant->kind == HUGE)
		reason = cow_map_huge(&self->undo, &from, nr * size, TAG);
	else
		from = cow_map(nr * size, size);
	ASSERT_EQ(NULL, reason);
	ASSERT_NE(NULL, from);
	memcpy(from, area, nr * size);
	ASSERT_EQ(NULL, track_accesses(&self->fd, UFFD_FEATURE_SIGBUS));
	move_in(_metadata, self->fd, from);
	expect_content_moved(_metadata);
}

TEST_F_TIMEOUT(access_tracking, moved_in_from_swap, TEST_TIMEOUT)
{
	char *from;

	if (variant->kind != SMALL)
		SKIP(return, "huge pages are split in swap");
	from = cow_map(nr * size, size);
	ASSERT_NE(NULL, from);
	memcpy(from, area, nr * size);
	if (!cow_page_out(from, nr))
		SKIP(return, "the pages do not go to swap");
	ASSERT_EQ(NULL, track_accesses(&self->fd, UFFD_FEATURE_SIGBUS));
	move_in(_metadata, self->fd, from);
	expect_content_moved(_metadata);
}

TEST_F_TIMEOUT(access_tracking, moved_in_zero_page, TEST_TIMEOUT)
{
	char *from;
	int i;

	if (variant->kind != SMALL)
		SKIP(return, "of small pages only");
	from = cow_map(nr * size, size);
	ASSERT_NE(NULL, from);
	for (i = 0; i < nr; i++)
		cow_peek(from + i * size);
	ASSERT_EQ(NULL, track_accesses(&self->fd, UFFD_FEATURE_SIGBUS));
	move_in(_metadata, self->fd, from);
	cow_touch(area, 'w');
	for (i = 1; i < nr; i++)
		EXPECT_TRUE(cow_is_zero(area + i * size, ps))
			TH_LOG("page %d", i);
}

TEST_F_TIMEOUT(access_tracking, migrated, TEST_TIMEOUT)
{
	ASSERT_EQ(NULL, protect_even(&self->fd, 0));
	if (!cow_move_to_another_node(area, nr * size / ps))
		SKIP(return, "no other node has room");
	EXPECT_EQ(-1, wrong_mark(even));
	EXPECT_EQ(-1, wrong_report(even, READ));
	expect_usable_again(_metadata, self->fd);
}

/* One small page of a protected huge page is allowed: all others stay protected. */
TEST_F_TIMEOUT(access_tracking, split, TEST_TIMEOUT)
{
	int i, part = size / ps / 2, pages = size / ps;

	if (variant->kind != HUGE)
		SKIP(return, "only huge pages are split");
	ASSERT_EQ(NULL, protect_even(&self->fd, 0));
	share_with(_metadata, keeps);
	/* From now on in small pages */
	size = ps;
	ASSERT_EQ(0, protect(self->fd, part, 1, false));
	for (i = 0; i < pages; i++)
		EXPECT_EQ(i != part, has_mark(i))
			TH_LOG("small page %d", i);
	EXPECT_FALSE(is_reported(part, READ));
	EXPECT_FALSE(is_reported(part, WRITE));
	EXPECT_TRUE(is_reported(part + 1, READ));
	EXPECT_TRUE(is_reported(pages - 1, WRITE));
	EXPECT_EQ(0, cow_child_end(&child));
}

/* The zero page: protected like others, and not writable when it is allowed again */
TEST_F_TIMEOUT(access_tracking, zero_page, TEST_TIMEOUT)
{
	int i;

	if (variant->kind != SMALL)
		SKIP(return, "of small pages only");
	ASSERT_EQ(0, madvise(area, nr * size, MADV_DONTNEED));
	for (i = 0; i < nr; i++)
		cow_peek(area + i * size);
	ASSERT_EQ(NULL, protect_even(&self->fd, 0));
	EXPECT_EQ(-1, wrong_report(even, READ));
	ASSERT_EQ(0, protect(self->fd, 0, nr, false));
	for (i = 0; i < nr; i++)
		EXPECT_EQ(even(i) ? 0 : 'w', cow_peek(area + i * size))
			TH_LOG("page %d", i);
	/* All pages that are not written have one frame. */
	cow_touch(area, 'w');
	for (i = 2; i < nr; i += 2)
		EXPECT_EQ(0, cow_peek(area + i * size))
			TH_LOG("page %d has changed with the first one", i);
	write_all();
	for (i = 0; i < nr; i++)
		EXPECT_TRUE(cow_is_zero(area + i * size + 1, ps - 1))
			TH_LOG("page %d", i);
}

TEST_HARNESS_MAIN
