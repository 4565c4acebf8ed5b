// SPDX-License-Identifier: GPL-2.0
/*
 * A mapping changes after some of its pages were copied, and others are still shared:
 * it is made read-only, moved, merged, written to by force, shared again, or reclaimed;
 * its file gets a hole, or is a disk's; in swap it is shared by many, or nothing but
 * zeroes. No page becomes writable that way, none is lost, and none is anybody else's. True
 * on any kernel.
 */
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define NR		64	/* pages */
#define TAG		43
#define MAX_PAGE_SIZE	65536

/* Of /proc/kpageflags */
#define KPF_REFERENCED	((__u64)1 << 2)
#define KPF_UPTODATE	((__u64)1 << 3)
#define KPF_LRU		((__u64)1 << 5)
#define KPF_ACTIVE	((__u64)1 << 6)
#define KPF_ANON	((__u64)1 << 12)

static size_t ps;

FIXTURE(mapping_changes)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char *p;
};

FIXTURE_VARIANT(mapping_changes)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(mapping_changes, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(mapping_changes, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(mapping_changes, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(mapping_changes)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup_pages(&self->saved, variant->ahead, &self->p, NR, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN_PARENT(mapping_changes)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

struct memory {
	char *p;
	int nr;
};

/* Shares the memory until it is told to end; it must not have changed by then. */
static int keeps(struct cow_child *self, void *arg)
{
	const struct memory *m = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 1;
	return cow_check(m->p, m->nr * ps, TAG) == -1 ? 0 : 2;
}

static int share(struct cow_child *c, char *p, int nr)
{
	struct memory m = { .p = p, .nr = nr };
	int ret = cow_child_fork(c, keeps, &m);

	if (ret)
		return ret;
	if (cow_child_recv(c) != 1)
		return -EPIPE;
	return cow_child_settle(c);
}

static void write_up(char *p, int from, int to)
{
	int i;

	for (i = from; i < to; i++)
		cow_touch(p + i * ps, 'w');
}

/* The first page that is not as it should be: the first nr were written. Or -1 */
static int wrong_content(const char *p, int nr)
{
	const size_t word = sizeof(__u64);
	int i;

	for (i = 0; i < NR; i++) {
		const char *page = p + i * ps;

		if (i < nr ? cow_peek(page) != 'w' :
			     cow_check(page, word, TAG) != -1)
			return i;
		if (cow_check(page + word, ps - word, TAG) != -1)
			return i;
	}
	return -1;
}

/* Does the CPU refuse to write there, in the kernel as in user space? */
static bool is_read_only(int fd, char *page)
{
	return pread(fd, page, 1, 0) == -1 && errno == EFAULT;
}

/* A file of NR pages with what cow_fill() would write at p */
static int make_file(const char *p)
{
	int fd = memfd_create("cow_mapping", MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (write(fd, p, NR * ps) != (ssize_t)(NR * ps)) {
		close(fd);
		return -EIO;
	}
	return fd;
}

static void expect_read_only(struct __test_metadata *_metadata, int fd, char *p)
{
	int i;

	for (i = 0; i < NR; i++)
		EXPECT_TRUE(is_read_only(fd, p + i * ps))
			TH_LOG("page %d can be written to", i);
}

/* 0 if what it has inherited is there once it may be accessed again */
static int opens(struct cow_child *self, void *arg)
{
	char *p = arg;

	(void)self;
	if (mprotect(p, NR * ps, PROT_READ | PROT_WRITE))
		return 1;
	if (cow_check(p, NR * ps, TAG) != -1)
		return 2;
	write_up(p, 0, NR);
	return 0;
}

/* Memory that nobody may access at the time of the fork */
TEST_F_TIMEOUT(mapping_changes, inaccessible_at_fork, TEST_TIMEOUT)
{
	struct cow_child c;

	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_NONE));
	ASSERT_EQ(0, cow_child_fork(&c, opens, self->p));
	EXPECT_EQ(0, cow_child_wait(&c));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ | PROT_WRITE));
	EXPECT_EQ(-1, cow_check(self->p, NR * ps, TAG));
}

/* userfaultfd maps pages of a file: in a private mapping only to be read. */
TEST_F_TIMEOUT(mapping_changes, continued, TEST_TIMEOUT)
{
	struct uffdio_continue args = {};
	char *map, *text = cow_map(NR * ps, 0);
	const char *reason;
	int fd, uffd;

	ASSERT_NE(NULL, text);
	fd = make_file(self->p);
	ASSERT_LE(0, fd);
	map = mmap(NULL, NR * ps, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, map);
	reason = cow_uffd_minor(&uffd, map, NR * ps);
	if (reason)
		SKIP(return, "%s", reason);
	args.range.start = (uintptr_t)map;
	args.range.len = NR * ps;
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_CONTINUE, &args));
	EXPECT_EQ(0, memcmp(map, self->p, NR * ps));
	write_up(map, 0, NR);
	/* The file has what it had. */
	ASSERT_EQ((ssize_t)(NR * ps), pread(fd, text, NR * ps, 0));
	EXPECT_EQ(0, memcmp(text, self->p, NR * ps));
	munmap(map, NR * ps);
	close(uffd);
	close(fd);
}

TEST_F_TIMEOUT(mapping_changes, read_only, TEST_TIMEOUT)
{
	__u64 before[NR], after[NR];
	struct cow_child c;
	int i, fd;

	fd = make_file(self->p);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, share(&c, self->p, NR));
	/* Up to here they are copied, or ahead; the rest is shared. */
	write_up(self->p, 0, NR / 2);
	ASSERT_EQ(0, cow_pfns(self->p, NR, before));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ));
	expect_read_only(_metadata, fd, self->p);
	EXPECT_EQ(-1, wrong_content(self->p, NR / 2));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ | PROT_WRITE));
	write_up(self->p, 0, NR);
	EXPECT_EQ(-1, wrong_content(self->p, NR));
	ASSERT_EQ(0, cow_pfns(self->p, NR, after));
	for (i = 0; i < NR / 2; i++)
		EXPECT_EQ(before[i], after[i]) TH_LOG("page %d", i);
	EXPECT_EQ(0, cow_child_end(&c));
	close(fd);
}

TEST_F_TIMEOUT(mapping_changes, moved, TEST_TIMEOUT)
{
	__u64 before[NR], after[NR];
	struct cow_child c;
	char *to;
	int i;

	to = cow_map(NR * ps, 0);
	ASSERT_NE(NULL, to);
	ASSERT_EQ(0, share(&c, self->p, NR));
	write_up(self->p, 0, NR / 2);
	ASSERT_EQ(0, cow_pfns(self->p, NR, before));
	ASSERT_EQ(to, mremap(self->p, NR * ps, NR * ps,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to));
	/* The very same pages */
	ASSERT_EQ(0, cow_pfns(to, NR, after));
	for (i = 0; i < NR; i++) {
		EXPECT_EQ(before[i], after[i]) TH_LOG("page %d", i);
		EXPECT_EQ(0, cow_pagemap(self->p + i * ps));
	}
	write_up(to, 0, NR);
	for (i = 0; i < NR; i++)
		EXPECT_EQ('w', cow_peek(to + i * ps));
	ASSERT_EQ(0, cow_pfns(to, NR, after));
	for (i = 0; i < NR / 2; i++)
		EXPECT_EQ(before[i], after[i]) TH_LOG("page %d", i);
	EXPECT_EQ(0, cow_child_end(&c));
}

/*
 * No CPU keeps a translation of what has moved away. There is no system call, which might
 * flush, between the move and the first accesses.
 */
static void expect_moved_away(struct __test_metadata *_metadata, char *from, char *to, int nr)
{
	int i;

	for (i = 0; i < nr; i++)
		EXPECT_EQ(0, cow_peek(from + i * ps)) TH_LOG("page %d", i);
	write_up(from, 0, nr);
	for (i = 0; i < nr; i++) {
		EXPECT_EQ('m', cow_peek(to + i * ps)) TH_LOG("page %d", i);
		EXPECT_EQ('w', cow_peek(from + i * ps)) TH_LOG("page %d", i);
	}
}

static void move_away(struct __test_metadata *_metadata, char *from, char *to, size_t len)
{
	int i, nr = len / ps < NR ? len / ps : NR;

	for (i = 0; i < nr; i++)
		cow_touch(from + i * ps, 'm');
	if (mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != to)
		SKIP(return, "MREMAP_DONTUNMAP: %s", strerror(errno));
	expect_moved_away(_metadata, from, to, nr);
}

TEST_F_TIMEOUT(mapping_changes, moved_away, TEST_TIMEOUT)
{
	char *to = cow_map(NR * ps, 0);

	ASSERT_NE(NULL, to);
	move_away(_metadata, self->p, to, NR * ps);
}

/* A whole page table moves. */
TEST_F_TIMEOUT(mapping_changes, moved_away_table, TEST_TIMEOUT)
{
	size_t len = cow_pmd_size();
	char *from = cow_map(len, len), *to = cow_map(len, len);

	ASSERT_NE(NULL, from);
	ASSERT_NE(NULL, to);
	move_away(_metadata, from, to, len);
}

TEST_F_TIMEOUT(mapping_changes, moved_away_huge, TEST_TIMEOUT)
{
	size_t len = cow_pmd_size();
	const char *reason;
	char *huge, *to;

	reason = cow_map_huge(&self->undo, &huge, len, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	to = cow_map(len, len);
	ASSERT_NE(NULL, to);
	move_away(_metadata, huge, to, len);
}

/* What cow_fill() wrote depends on the address: this is to compare with after a move. */
static char *copy_of(struct __test_metadata *_metadata, const char *p, size_t len)
{
	char *copy = cow_map(len, 0);

	ASSERT_NE(NULL, copy);
	return memcpy(copy, p, len);
}

/* Where userfaultfd moves pages to: NULL, or the reason why it cannot */
static const char *map_target(struct __test_metadata *_metadata, char **to, int *fd,
			      size_t len, size_t align)
{
	*to = cow_map(len, align);
	ASSERT_NE(NULL, *to);
	return cow_uffd_missing(fd, *to, len, UFFD_FEATURE_MOVE);
}

/* The zero page is everybody's: who gets it from userfaultfd may not write to it. */
TEST_F_TIMEOUT(mapping_changes, zero_page_by_uffd, TEST_TIMEOUT)
{
	struct uffdio_zeropage zero = {};
	const char *reason;
	char *to, *other;
	int fd, i;

	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	other = cow_map(ps, 0);
	ASSERT_NE(NULL, other);
	ASSERT_EQ(0, cow_peek(other));
	zero.range.start = (uintptr_t)to;
	zero.range.len = NR * ps;
	ASSERT_EQ(0, ioctl(fd, UFFDIO_ZEROPAGE, &zero));
	write_up(to, 0, NR);
	EXPECT_TRUE(cow_is_zero(other, ps));
	for (i = 0; i < NR; i++)
		EXPECT_TRUE(cow_is_zero(to + i * ps + 1, ps - 1)) TH_LOG("page %d", i);
	/* So that other processes live on if it was written to */
	for (i = 0; i < NR; i++)
		cow_touch(to + i * ps, 0);
	close(fd);
}

TEST_F_TIMEOUT(mapping_changes, moved_away_by_uffd, TEST_TIMEOUT)
{
	const char *reason;
	char *to;
	int fd, i;

	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	for (i = 0; i < NR; i++)
		cow_touch(self->p + i * ps, 'm');
	ASSERT_EQ(0, cow_uffd_move(fd, to, self->p, NR * ps, NULL));
	expect_moved_away(_metadata, self->p, to, NR);
	close(fd);
}

/* None of the pages, as another process has them, too */
static void expect_not_moved(struct __test_metadata *_metadata, int fd, char *to, char *from)
{
	int i;

	for (i = 0; i < NR; i++)
		EXPECT_EQ(-EBUSY, cow_uffd_move(fd, to + i * ps, from + i * ps, ps, NULL))
			TH_LOG("page %d", i);
	EXPECT_EQ(-1, cow_check(from, NR * ps, TAG));
}

/* A page is writable where userfaultfd has moved it: so that is refused while it is shared. */
TEST_F_TIMEOUT(mapping_changes, shared_page_not_moved, TEST_TIMEOUT)
{
	const char *reason;
	struct cow_child c;
	char *to;
	int i, fd;

	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, self->p, NR));
	expect_not_moved(_metadata, fd, to, self->p);
	/* Our own copy */
	write_up(self->p, 0, 1);
	EXPECT_EQ(0, cow_uffd_move(fd, to, self->p, ps, NULL));
	EXPECT_EQ(0, cow_child_end(&c));
	/* Nobody else has the others. */
	write_up(self->p, 1, NR);
	for (i = 1; i < NR; i++)
		EXPECT_EQ(0, cow_uffd_move(fd, to + i * ps, self->p + i * ps, ps, NULL))
			TH_LOG("page %d", i);
	for (i = 0; i < NR; i++) {
		ASSERT_EQ(0, cow_pagemap(self->p + i * ps) & COW_PM_PRESENT);
		ASSERT_NE(0, cow_pagemap(to + i * ps) & COW_PM_PRESENT);
		EXPECT_EQ('w', cow_peek(to + i * ps));
	}
	/* Reclaim finds them where they are now. */
	if (cow_can_page_out(NR))
		EXPECT_TRUE(cow_page_out(to, NR));
	for (i = 0; i < NR; i++)
		EXPECT_EQ('w', cow_peek(to + i * ps));
	close(fd);
}

/* The zero page moves, too, but is everybody's where it arrives. */
static void check_zero_moved(struct __test_metadata *_metadata, int fd, char *to, char *from,
			     char *other, size_t len)
{
	size_t off;

	ASSERT_EQ(0, cow_uffd_move(fd, to, from, len, NULL));
	for (off = 0; off < len; off += ps)
		cow_touch(to + off, 'w');
	EXPECT_TRUE(cow_is_zero(other, len));
	/* So that other processes live on if it was written to */
	for (off = 0; off < len; off += ps)
		cow_touch(to + off, 0);
	close(fd);
}

TEST_F_TIMEOUT(mapping_changes, zero_page_moved, TEST_TIMEOUT)
{
	char *from = cow_map(NR * ps, 0), *other = cow_map(NR * ps, 0), *to;
	const char *reason;
	int fd;

	ASSERT_NE(NULL, from);
	ASSERT_NE(NULL, other);
	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_TRUE(cow_is_zero(from, NR * ps));
	check_zero_moved(_metadata, fd, to, from, other, NR * ps);
}

TEST_F_TIMEOUT(mapping_changes, huge_zero_page_moved, TEST_TIMEOUT)
{
	const size_t len = cow_pmd_size();
	char *from, *other, *to;
	const char *reason;
	int fd;

	reason = cow_map_huge_zero(&self->undo, &from);
	if (!reason)
		reason = cow_map_huge_zero(&self->undo, &other);
	if (!reason)
		reason = map_target(_metadata, &to, &fd, len, len);
	if (reason)
		SKIP(return, "%s", reason);
	check_zero_moved(_metadata, fd, to, from, other, len);
}

/* Pages behind the first one move in one go with it, but those that are shared stay. */
TEST_F_TIMEOUT(mapping_changes, shared_page_not_moved_along, TEST_TIMEOUT)
{
	int i, fd, own = NR / 2;
	const char *reason;
	struct cow_child c;
	long long moved;
	char *to;

	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, self->p, NR));
	write_up(self->p, 0, own);
	/* Others may have been copied ahead. */
	while (own < NR && cow_pagemap(self->p + own * ps) & COW_PM_EXCLUSIVE)
		own++;
	ASSERT_GT(NR, own);
	ASSERT_NE(0, cow_uffd_move(fd, to, self->p, NR * ps, &moved));
	EXPECT_EQ((long long)(own * ps), moved);
	for (i = 0; i < NR; i++) {
		EXPECT_EQ(i < own, !!(cow_pagemap(to + i * ps) & COW_PM_PRESENT))
			TH_LOG("page %d", i);
		/* Nobody handles faults there. */
		if (cow_pagemap(to + i * ps) & COW_PM_PRESENT)
			cow_touch(to + i * ps, 'm');
	}
	EXPECT_EQ(-1, cow_check(self->p + own * ps, (NR - own) * ps, TAG));
	EXPECT_EQ(0, cow_child_end(&c));
	close(fd);
}

/* Nor do they move while a device writes to them. */
TEST_F_TIMEOUT(mapping_changes, pinned_page_not_moved_along, TEST_TIMEOUT)
{
	const int pinned = 5;
	int i, fd, pin_fd;
	const char *reason;
	long long moved;
	char *to;

	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	pin_fd = cow_pin(self->p + pinned * ps, ps);
	if (pin_fd < 0)
		SKIP(return, "no pins by io_uring: %s", strerror(-pin_fd));
	ASSERT_NE(0, cow_uffd_move(fd, to, self->p, NR * ps, &moved));
	EXPECT_EQ((long long)(pinned * ps), moved);
	for (i = 0; i < NR; i++)
		EXPECT_EQ(i < pinned, !!(cow_pagemap(to + i * ps) & COW_PM_PRESENT))
			TH_LOG("page %d", i);
	EXPECT_EQ(-1, cow_check(self->p + pinned * ps, (NR - pinned) * ps, TAG));
	close(pin_fd);
	close(fd);
}

/* What userfaultfd puts into a private mapping of a file is not for the file. */
TEST_F_TIMEOUT(mapping_changes, copied_by_uffd, TEST_TIMEOUT)
{
	struct uffdio_copy copy = { .len = NR * ps, .src = (uintptr_t)self->p };
	static char text[NR * MAX_PAGE_SIZE];
	int uffd, fd = memfd_create("cow_mapping", MFD_CLOEXEC);
	const char *reason;
	char *map;

	ASSERT_EQ(0, ftruncate(fd, NR * ps));
	map = mmap(NULL, NR * ps, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, map);
	/* A page that is not copied must not be waited for. */
	reason = cow_uffd_missing(&uffd, map, NR * ps, UFFD_FEATURE_SIGBUS);
	if (reason)
		SKIP(return, "%s", reason);
	copy.dst = (uintptr_t)map;
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_COPY, &copy));
	EXPECT_EQ(0, memcmp(map, self->p, NR * ps));
	write_up(map, 0, NR);
	ASSERT_EQ((ssize_t)(NR * ps), pread(fd, text, NR * ps, 0));
	EXPECT_TRUE(cow_is_zero(text, NR * ps));
	munmap(map, NR * ps);
	close(uffd);
	close(fd);
}

/* The same for pages in swap, which both processes may bring back */
TEST_F_TIMEOUT(mapping_changes, shared_swap_not_moved, TEST_TIMEOUT)
{
	const char *reason;
	struct cow_child c;
	char *to;
	int fd;

	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	ASSERT_EQ(0, share(&c, self->p, NR));
	ASSERT_EQ(NR, cow_swapped(self->p, NR));
	expect_not_moved(_metadata, fd, to, self->p);
	EXPECT_EQ(0, cow_child_end(&c));
	close(fd);
}

TEST_F_TIMEOUT(mapping_changes, shared_huge_page_not_moved, TEST_TIMEOUT)
{
	const size_t len = cow_pmd_size();
	char *huge, *to, *saved;
	const char *reason;
	struct cow_child c;
	int fd;

	reason = cow_map_huge(&self->undo, &huge, len, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	reason = map_target(_metadata, &to, &fd, len, len);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, huge, len / ps));
	EXPECT_EQ(-EBUSY, cow_uffd_move(fd, to, huge, len, NULL));
	/* Nor is a part of it */
	EXPECT_EQ(-EBUSY, cow_uffd_move(fd, to, huge, ps, NULL));
	EXPECT_EQ((long)len / 1024, cow_smaps_kb(huge, "AnonHugePages"));
	EXPECT_EQ(-1, cow_check(huge, len, TAG));
	EXPECT_EQ(0, cow_child_end(&c));
	ASSERT_EQ(0, cow_drain_lru());
	cow_touch(huge, 'w');
	saved = copy_of(_metadata, huge, len);
	EXPECT_EQ(0, cow_uffd_move(fd, to, huge, len, NULL));
	EXPECT_EQ(0, cow_pagemap(huge) & COW_PM_PRESENT);
	ASSERT_NE(0, cow_pagemap(to) & COW_PM_PRESENT);
	EXPECT_EQ(0, memcmp(saved, to, len));
	close(fd);
}

/*
 * Write tracking goes by addresses: a page is soft-dirty at the address it is moved to, even
 * if nobody has written to it since it was read from swap.
 */

static void clear_soft_dirty(struct __test_metadata *_metadata, char *p, int nr)
{
	int i;

	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	for (i = 0; i < nr; i++)
		ASSERT_EQ(0, cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY);
}

static void expect_soft_dirty(struct __test_metadata *_metadata, char *p, int nr)
{
	int i;

	for (i = 0; i < nr; i++)
		EXPECT_NE(0, cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY)
			TH_LOG("page %d", i);
}

TEST_F_TIMEOUT(mapping_changes, soft_dirty_when_moved, TEST_TIMEOUT)
{
	struct cow_child c;
	char *to;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	to = cow_map(NR * ps, 0);
	ASSERT_NE(NULL, to);
	cow_fill(to, NR * ps, TAG);
	ASSERT_EQ(0, share(&c, self->p, NR));
	write_up(self->p, 0, NR / 2);
	clear_soft_dirty(_metadata, self->p, NR);
	ASSERT_EQ(to, mremap(self->p, NR * ps, NR * ps,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to));
	expect_soft_dirty(_metadata, to, NR);
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_F_TIMEOUT(mapping_changes, soft_dirty_when_moved_in_swap, TEST_TIMEOUT)
{
	char *to, *saved;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	saved = copy_of(_metadata, self->p, NR * ps);
	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	to = cow_map(NR * ps, 0);
	ASSERT_NE(NULL, to);
	clear_soft_dirty(_metadata, self->p, NR);
	ASSERT_EQ(to, mremap(self->p, NR * ps, NR * ps,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to));
	ASSERT_EQ(NR, cow_swapped(to, NR));
	expect_soft_dirty(_metadata, to, NR);
	EXPECT_EQ(0, memcmp(saved, to, NR * ps));
}

/* Half of the pages are in swap, the others were read from there. */
TEST_F_TIMEOUT(mapping_changes, soft_dirty_when_moved_by_userfaultfd, TEST_TIMEOUT)
{
	const char *reason;
	char *to, *saved;
	int i, fd;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	saved = copy_of(_metadata, self->p, NR * ps);
	reason = map_target(_metadata, &to, &fd, NR * ps, 0);
	if (reason)
		SKIP(return, "%s", reason);
	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	for (i = 0; i < NR / 2; i++)
		cow_peek(self->p + i * ps);
	ASSERT_EQ(NR / 2, cow_swapped(self->p, NR));
	clear_soft_dirty(_metadata, self->p, NR);
	for (i = 0; i < NR; i++)
		ASSERT_EQ(0, cow_uffd_move(fd, to + i * ps, self->p + i * ps, ps, NULL))
			TH_LOG("page %d", i);
	ASSERT_EQ(NR / 2, cow_swapped(to, NR));
	expect_soft_dirty(_metadata, to, NR);
	EXPECT_EQ(0, memcmp(saved, to, NR * ps));
	close(fd);
}

/* The same for a huge page */
TEST_F_TIMEOUT(mapping_changes, soft_dirty_when_moved_huge, TEST_TIMEOUT)
{
	const size_t len = cow_pmd_size();
	char *huge, *to, *saved;
	const char *reason;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	reason = cow_map_huge(&self->undo, &huge, len, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	saved = copy_of(_metadata, huge, len);
	to = cow_map(len, len);
	ASSERT_NE(NULL, to);
	clear_soft_dirty(_metadata, huge, len / ps);
	ASSERT_EQ(to, mremap(huge, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to));
	ASSERT_EQ((long)len / 1024, cow_smaps_kb(to, "AnonHugePages"));
	expect_soft_dirty(_metadata, to, len / ps);
	EXPECT_EQ(0, memcmp(saved, to, len));
}

TEST_F_TIMEOUT(mapping_changes, soft_dirty_when_moved_by_userfaultfd_huge, TEST_TIMEOUT)
{
	const size_t len = cow_pmd_size();
	char *huge, *to, *saved;
	const char *reason;
	int fd;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	reason = cow_map_huge(&self->undo, &huge, len, TAG);
	if (!reason)
		reason = map_target(_metadata, &to, &fd, len, len);
	if (reason)
		SKIP(return, "%s", reason);
	saved = copy_of(_metadata, huge, len);
	clear_soft_dirty(_metadata, huge, len / ps);
	ASSERT_EQ(0, cow_drain_lru());
	ASSERT_EQ(0, cow_uffd_move(fd, to, huge, len, NULL));
	expect_soft_dirty(_metadata, to, len / ps);
	EXPECT_EQ(0, memcmp(saved, to, len));
	close(fd);
}

/*
 * Pages of nothing but zeroes need no room in swap, and come back as such. One that has a
 * single word, at its start or end, is another matter.
 */

/* Page 0 is zero, 1 and 2 nearly, the others are as cow_fill() left them. */
static void empty_pages(char *p)
{
	memset(p, 0, 3 * ps);
	p[ps] = 'w';
	p[3 * ps - 1] = 'w';
}

/* The first page that is not as it was, or -1 */
static int wrong_emptied(const char *p, int nr)
{
	ssize_t bad;

	if (!cow_is_zero(p, ps))
		return 0;
	if (p[ps] != 'w' || !cow_is_zero(p + ps + sizeof(__u64), ps - sizeof(__u64)))
		return 1;
	if (p[3 * ps - 1] != 'w' || !cow_is_zero(p + 2 * ps, ps - sizeof(__u64)))
		return 2;
	bad = cow_check(p + 3 * ps, (nr - 3) * ps, TAG);
	return bad == -1 ? -1 : 3 + (int)(bad / (ssize_t)ps);
}

static int looks_at_emptied(struct cow_child *self, void *arg)
{
	const struct memory *m = arg;

	(void)self;
	return 1 + wrong_emptied(m->p, m->nr);
}

/* So that new pages, which are not cleared when they are read from swap, have no zeroes */
static void fill_free_pages(void)
{
	size_t len = 4096 * ps;
	char *p = cow_map(len, 0);

	if (!p)
		return;
	cow_fill(p, len, TAG + 1);
	cow_unmap(p, len);
}

static void check_emptied(struct __test_metadata *_metadata, char *p, int nr)
{
	struct memory m = { .p = p, .nr = nr };
	struct cow_child c;

	empty_pages(p);
	if (!cow_page_out(p, nr))
		SKIP(return, "the pages do not go to swap");
	fill_free_pages();
	ASSERT_EQ(0, cow_child_fork(&c, looks_at_emptied, &m));
	EXPECT_EQ(0, cow_child_wait(&c));
	EXPECT_EQ(-1, wrong_emptied(p, nr));
}

TEST_F_TIMEOUT(mapping_changes, zeroes_in_swap, TEST_TIMEOUT)
{
	check_emptied(_metadata, self->p, NR);
}

TEST_F_TIMEOUT(mapping_changes, zeroes_in_swap_mthp, TEST_TIMEOUT)
{
	const char *reason;
	char *p;

	reason = cow_map_mthp(&self->undo, &p, 2 * 65536, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	check_emptied(_metadata, p, 2 * 65536 / ps);
}

/* A page in swap may be that of more processes than a small counter can count. */
#define MANY		40

TEST_F_TIMEOUT(mapping_changes, swapped_and_shared_by_many, TEST_TIMEOUT)
{
	struct cow_child c[MANY];
	int i;

	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	/* Nobody looks at the pages until all have them. */
	for (i = 0; i < MANY; i++)
		ASSERT_EQ(0, share(&c[i], self->p, NR));
	ASSERT_EQ(NR, cow_swapped(self->p, NR));
	for (i = 0; i < MANY; i += 2)
		EXPECT_EQ(0, cow_child_end(&c[i])) TH_LOG("child %d", i);
	EXPECT_EQ(-1, cow_check(self->p, NR * ps, TAG));
	write_up(self->p, 0, NR);
	for (i = 1; i < MANY; i += 2)
		EXPECT_EQ(0, cow_child_end(&c[i])) TH_LOG("child %d", i);
	for (i = 0; i < NR; i++)
		EXPECT_EQ('w', cow_peek(self->p + i * ps));
}

/* What tells the range in the middle from the others */
enum differs { EXECUTABLE, POLICY, NR_DIFFERS };

static int set_different(enum differs how, char *p, size_t len, bool different)
{
	const unsigned long node = 1;
	int exec = PROT_READ | PROT_WRITE | PROT_EXEC;

	if (how == EXECUTABLE)
		return mprotect(p, len, different ? exec : exec & ~PROT_EXEC);
	return syscall(__NR_mbind, p, len,
		       different ? MPOL_PREFERRED : MPOL_DEFAULT,
		       different ? &node : NULL, different ? 2UL : 0UL, 0U);
}

/*
 * Three ranges side by side, of which one is new, and soft-dirty as a whole, and nobody
 * has written to the others since they were looked at. The one in the middle is not like
 * the others. They merge only if they have the same anon_vma: a range shares that of a
 * neighbour when its first page comes, if no more than the protection differs.
 */
static char *three_ranges(enum differs how, size_t len, int new)
{
	int prot = PROT_READ | PROT_WRITE, exec = prot | PROT_EXEC;
	char *map = cow_map(3 * len, len), *p = map + new * len;

	if (!map || (how == EXECUTABLE && mprotect(map + len, len, exec)))
		return NULL;
	cow_fill(map, 3 * len, TAG);
	if (munmap(p, len) || cow_write_file("/proc/self/clear_refs", "4"))
		return NULL;
	if (mmap(p, len, new == 1 || how == POLICY ? exec : prot,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != p)
		return NULL;
	madvise(p, len, MADV_NOHUGEPAGE);
	cow_fill(p, len, TAG);
	if (how == POLICY && (set_different(how, map + len, len, true) ||
			      mprotect(p, len, prot)))
		return NULL;
	return map;
}

/*
 * In new memory pages may be copied ahead and written to without a fault. When a half of
 * the range in the middle becomes a part of the one before it or after it, each page
 * that was written is still soft-dirty.
 */
static void check_merged(struct __test_metadata *_metadata, enum differs how,
			 int new, int part)
{
	size_t len = 2 * NR * ps, i;
	struct cow_child c;
	char *map, *p;

	map = three_ranges(how, len, new);
	ASSERT_NE(NULL, map);
	p = map + new * len;
	ASSERT_EQ(0, share(&c, map, 3 * len / ps));
	write_up(p, 0, len / ps);
	ASSERT_EQ(0, set_different(how, map + len + part * len / 2, len / 2,
				   false));
	EXPECT_EQ((long)(len + len / 2) / 1024,
		  cow_smaps_kb(map + 2 * part * len, "Size"));
	for (i = 0; i < len; i += ps)
		ASSERT_NE(0, cow_pagemap(p + i) & COW_PM_SOFT_DIRTY)
			TH_LOG("%s: range %d, half %d, page %zu",
			       how == POLICY ? "mbind" : "mprotect", new, part,
			       i / ps);
	EXPECT_EQ(0, cow_child_end(&c));
	cow_unmap(map, 3 * len);
}

TEST_F_TIMEOUT(mapping_changes, soft_dirty_and_partly_merged, TEST_TIMEOUT)
{
	enum differs how;
	int new, part;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	for (how = 0; how < NR_DIFFERS; how++) {
		if (how == POLICY && (set_different(how, self->p, ps, true) ||
				      set_different(how, self->p, ps, false)))
			break;	/* no NUMA, or not on node 0 */
		for (new = 0; new < 3; new++)
			for (part = 0; part < 2; part++)
				check_merged(_metadata, how, new, part);
	}
}

/* Of both halves: the first one is ours alone, the second one, as a rule, is shared. */
TEST_F_TIMEOUT(mapping_changes, written_by_force, TEST_TIMEOUT)
{
	__u64 before[NR], after[NR];
	struct cow_child c;
	bool own[NR];
	ssize_t ret;
	int i, fd;

	fd = make_file(self->p);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, share(&c, self->p, NR));
	write_up(self->p, 0, NR / 2);
	for (i = 0; i < NR; i++)
		own[i] = cow_pagemap(self->p + i * ps) & COW_PM_EXCLUSIVE;
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ));
	ret = cow_write_by_force(self->p);
	if (ret < 0) {
		cow_child_end(&c);
		SKIP(return, COW_NO_FORCE, strerror(-ret));
	}
	ASSERT_EQ(0, cow_pfns(self->p, NR, before));
	for (i = 0; i < NR; i++)
		ASSERT_EQ(1, cow_write_by_force(self->p + i * ps));
	ASSERT_EQ(0, cow_pfns(self->p, NR, after));
	EXPECT_EQ(-1, wrong_content(self->p, NR));
	expect_read_only(_metadata, fd, self->p);
	for (i = 0; cow_pfn_visible() && i < NR; i++) {
		/* One of the second half may have been copied ahead. */
		EXPECT_TRUE(own[i] || i >= NR / 2);
		EXPECT_EQ(own[i], before[i] == after[i])
			TH_LOG("page %d", i);
	}
	/* The child has what it had. */
	EXPECT_EQ(0, cow_child_end(&c));

	/* They were shared once more, and nobody else has them now: reused. */
	ASSERT_EQ(0, cow_child_idle(&c));
	ASSERT_EQ(0, cow_child_end(&c));
	for (i = 0; i < NR; i++)
		ASSERT_EQ(1, cow_write_by_force(self->p + i * ps));
	expect_read_only(_metadata, fd, self->p);
	close(fd);
}

TEST_F_TIMEOUT(mapping_changes, file_written_by_force, TEST_TIMEOUT)
{
	static char text[NR * MAX_PAGE_SIZE];
	ssize_t ret;
	char *map;
	int i, fd;

	fd = make_file(self->p);
	ASSERT_LE(0, fd);
	map = mmap(NULL, NR * ps, PROT_READ, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, map);
	for (i = 0; i < NR; i++)
		cow_peek(map + i * ps);
	for (i = 0; i < NR; i++) {
		ret = cow_write_by_force(map + i * ps);
		if (ret < 0)
			SKIP(return, COW_NO_FORCE, strerror(-ret));
		ASSERT_EQ('w', cow_peek(map + i * ps));
		EXPECT_TRUE(is_read_only(fd, map + i * ps))
			TH_LOG("page %d", i);
	}
	/* Nobody who maps or reads the file sees any of that. */
	ASSERT_EQ((ssize_t)(NR * ps), pread(fd, text, NR * ps, 0));
	EXPECT_EQ(0, memcmp(text, self->p, NR * ps));
	munmap(map, NR * ps);
	close(fd);
}

/*
 * The bit that is PG_anon_exclusive of an anonymous page is PG_mappedtodisk of one that a
 * disk's file system or block device has in the page cache. Who asks for the bit only,
 * and not whether the page is anonymous, takes it for his own. A memfd's pages never
 * have it; those of a block device have it with CONFIG_BUFFER_HEAD, which file systems
 * such as ext2 select.
 */

struct disk {
	int fd;
	char *map;	/* private, every page read */
};

static void read_disk(struct __test_metadata *_metadata, int fd, char *text)
{
	ASSERT_EQ((ssize_t)(NR * ps), pread(fd, text, NR * ps, 0));
}

/* Why it cannot be had, or NULL */
static const char *map_disk(struct disk *disk, int prot)
{
	int i;

	disk->fd = open(COW_DISK, O_RDONLY | O_CLOEXEC);
	if (disk->fd == -1)
		return errno == EACCES ? COW_DISK " is for root" : "no " COW_DISK;
	if (lseek(disk->fd, 0, SEEK_END) < (off_t)(NR * ps))
		return COW_DISK " is not large enough";
	disk->map = mmap(NULL, NR * ps, prot, MAP_PRIVATE, disk->fd, 0);
	if (disk->map == MAP_FAILED)
		return strerror(errno);
	for (i = 0; i < NR; i++) {
		cow_peek(disk->map + i * ps);
		if (!(cow_page_flags(disk->map + i * ps) & COW_KPF_MAPPEDTODISK))
			return COW_NO_FLAG;
	}
	return NULL;
}

/* What was written is there, and nowhere else. */
static void expect_unchanged_disk(struct __test_metadata *_metadata,
				  const struct disk *disk, const char *before)
{
	static char now[NR * MAX_PAGE_SIZE];
	int i;

	read_disk(_metadata, disk->fd, now);
	for (i = 0; i < NR; i++) {
		EXPECT_EQ('w', cow_peek(disk->map + i * ps));
		EXPECT_EQ(0, memcmp(now + i * ps, before + i * ps, ps))
			TH_LOG("page %d of " COW_DISK " has changed", i);
	}
	munmap(disk->map, NR * ps);
	close(disk->fd);
}

/* Copies of pages of the disk, and what was not copied, beside each other */
TEST_F_TIMEOUT(mapping_changes, disk_written, TEST_TIMEOUT)
{
	static char before[NR * MAX_PAGE_SIZE];
	struct cow_child c;
	struct disk disk;
	const char *reason = map_disk(&disk, PROT_READ | PROT_WRITE);
	int i;

	if (reason)
		SKIP(return, "%s", reason);
	read_disk(_metadata, disk.fd, before);
	for (i = 0; i < NR; i++)
		if (!(i & 4))
			cow_touch(disk.map + i * ps, 'v');
	ASSERT_EQ(0, cow_child_idle(&c));
	for (i = 0; i < NR; i++)
		if (!(i & 4))
			cow_touch(disk.map + i * ps, 'w');
	for (i = 0; i < NR; i++)
		if (i & 4)
			cow_touch(disk.map + i * ps, 'w');
	EXPECT_EQ(0, cow_child_end(&c));
	expect_unchanged_disk(_metadata, &disk, before);
}

TEST_F_TIMEOUT(mapping_changes, disk_written_by_force, TEST_TIMEOUT)
{
	static char before[NR * MAX_PAGE_SIZE];
	struct disk disk;
	const char *reason = map_disk(&disk, PROT_READ);
	ssize_t ret;
	int i;

	if (reason)
		SKIP(return, "%s", reason);
	read_disk(_metadata, disk.fd, before);
	for (i = 0; i < NR; i++) {
		ret = cow_write_by_force(disk.map + i * ps);
		if (ret < 0 && !i)
			SKIP(return, COW_NO_FORCE, strerror(-ret));
		ASSERT_EQ(1, ret);
	}
	expect_unchanged_disk(_metadata, &disk, before);
}

/* mprotect() makes those pages writable at once that need no copy. */
TEST_F_TIMEOUT(mapping_changes, disk_made_writable, TEST_TIMEOUT)
{
	static char before[NR * MAX_PAGE_SIZE];
	struct disk disk;
	const char *reason = map_disk(&disk, PROT_READ);

	if (reason)
		SKIP(return, "%s", reason);
	read_disk(_metadata, disk.fd, before);
	ASSERT_EQ(0, mprotect(disk.map, NR * ps, PROT_READ | PROT_WRITE));
	write_up(disk.map, 0, NR);
	expect_unchanged_disk(_metadata, &disk, before);
}

struct dropper {
	char *page;
	int stop;
};

static void *drops(void *arg)
{
	struct dropper *d = arg;

	cow_leave_cpu();
	while (!__atomic_load_n(&d->stop, __ATOMIC_RELAXED))
		madvise(d->page, ps, MADV_DONTNEED);
	return NULL;
}

/*
 * The copy is gone before it is written to, and a read would find the file's page in its
 * place: copy once more.
 */
TEST_F_TIMEOUT(mapping_changes, file_written_by_force_while_dropped, TEST_TIMEOUT)
{
	const int tries = 5000;
	struct dropper d = {};
	static char text[MAX_PAGE_SIZE];
	pthread_t thread;
	ssize_t ret = 1;
	int i, fd;

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	fd = make_file(self->p);
	ASSERT_LE(0, fd);
	d.page = mmap(NULL, ps, PROT_READ, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, d.page);
	ASSERT_EQ(0, pthread_create(&thread, NULL, drops, &d));
	for (i = 0; i < tries && ret == 1; i++)
		ret = cow_write_by_force(d.page);
	__atomic_store_n(&d.stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	if (ret < 0)
		SKIP(return, COW_NO_FORCE, strerror(-ret));
	ASSERT_EQ((ssize_t)ps, pread(fd, text, ps, 0));
	EXPECT_EQ(0, memcmp(text, self->p, ps));
	munmap(d.page, ps);
	close(fd);
}

/* The content of private copies; the file has another one. */
#define COPY_TAG	(TAG + 1)

/* The first page that is not: the even ones are copies, the odd ones read from a hole */
static int wrong_at_hole(const char *map)
{
	int i;

	for (i = 0; i < NR; i++) {
		const char *page = map + i * ps;

		if (i & 1 ? !cow_is_zero(page, ps) : cow_check(page, ps, COPY_TAG) != -1)
			return i;
	}
	return -1;
}

/* A file for readable_page() */
static int sink;

/* The first page that can be read, or -1 if there is none */
static int readable_page(const char *map)
{
	int i;

	for (i = 0; i < NR; i++)
		if (pwrite(sink, map + i * ps, 1, 0) != -1 || errno != EFAULT)
			return i;
	return -1;
}

static int keeps_copies(struct cow_child *self, void *arg)
{
	const char *map = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 1;
	if (wrong_at_hole(map) != -1)
		return 2;
	if (cow_child_send(self, 3) || cow_child_recv(self) != 4)
		return 3;
	return readable_page(map) == -1 ? 0 : 4;
}

/* A private mapping whose even pages are copies: every second one was read before. */
static char *map_with_copies(int fd)
{
	char *map = mmap(NULL, NR * ps, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	int i;

	if (map == MAP_FAILED)
		return NULL;
	for (i = 0; i < NR; i++)
		if (!(i & 2))
			cow_peek(map + i * ps);
	for (i = 0; i < NR; i += 2)
		cow_fill(map + i * ps, ps, COPY_TAG);
	return map;
}

/* Most copies, at least; the pages of the file have no swap entries here. */
static bool page_out_copies(char *map)
{
	int i;

	for (i = 0; i < 20 && cow_swapped(map, NR) < NR / 2; i++) {
		cow_drain_lru();
		madvise(map, NR * ps, MADV_PAGEOUT);
	}
	return cow_swapped(map, NR) >= NR / 4;
}

static void punch_and_truncate(struct __test_metadata *_metadata, const char *content,
			       bool in_swap)
{
	struct cow_child c;
	char *map;
	int fd;

	sink = memfd_create("cow", MFD_CLOEXEC);
	ASSERT_LE(0, sink);
	fd = make_file(content);
	ASSERT_LE(0, fd);
	map = map_with_copies(fd);
	ASSERT_NE(NULL, map);
	if (in_swap && !page_out_copies(map))
		SKIP(return, "the copies do not go to swap");
	ASSERT_EQ(0, cow_child_fork(&c, keeps_copies, map));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, NR * ps));
	EXPECT_EQ(-1, wrong_at_hole(map));
	ASSERT_EQ(0, cow_child_send(&c, 2));
	EXPECT_EQ(3, cow_child_recv(&c));
	/* Beyond the end of the file there are no copies either. */
	ASSERT_EQ(0, ftruncate(fd, 0));
	EXPECT_EQ(-1, readable_page(map));
	cow_child_send(&c, 4);
	EXPECT_EQ(0, cow_child_wait(&c));
	munmap(map, NR * ps);
	close(fd);
}

/* What a file loses is not what was copied from it. */
TEST_F_TIMEOUT(mapping_changes, private_copies_outlive_the_hole, TEST_TIMEOUT)
{
	punch_and_truncate(_metadata, self->p, false);
}

TEST_F_TIMEOUT(mapping_changes, swapped_copies_outlive_the_hole, TEST_TIMEOUT)
{
	if (!cow_can_page_out(NR))
		SKIP(return, "no swap space");
	punch_and_truncate(_metadata, self->p, true);
}

/* Has not seen what its parent wrote; what MADV_FREE was told may be zeroes. */
static int sees_nothing(struct cow_child *self, void *arg)
{
	const struct memory *m = arg;
	int i;

	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 101;
	for (i = 0; i < m->nr; i++)
		if (cow_peek(m->p + i * ps) == 'w')
			return 1 + i;
	return 0;
}

/* Pages that are writable, but clean: nobody has written to them since. */
TEST_F_TIMEOUT(mapping_changes, shared_while_clean, TEST_TIMEOUT)
{
	struct memory m = { .p = self->p, .nr = NR };
	struct cow_child c[2];
	int i;

	ASSERT_EQ(0, share(&c[0], self->p, NR));
	/* What is copied ahead of these is not written to. */
	write_up(self->p, 0, NR / 2);
	cow_fill(self->p, NR * ps / 2, TAG);
	madvise(self->p, NR * ps / 4, MADV_FREE);
	ASSERT_EQ(0, cow_child_fork(&c[1], sees_nothing, &m));
	ASSERT_EQ(1, cow_child_recv(&c[1]));
	write_up(self->p, 0, NR);
	for (i = 0; i < NR; i++)
		EXPECT_EQ('w', cow_peek(self->p + i * ps));
	for (i = 0; i < 2; i++)
		EXPECT_EQ(0, cow_child_end(&c[i]));
}

/* The kernel finds a copy by its reverse mapping, wherever that is meanwhile. */
static void expect_reclaimable(struct __test_metadata *_metadata, char *p)
{
	/* One or the other may be in use just now. */
	cow_page_out(p, NR);
	EXPECT_LE(NR - NR / 8, cow_swapped(p, NR));
}

static int can_be_reclaimed(struct cow_child *self, void *arg)
{
	(void)self;
	if (!cow_page_out(arg, NR))
		return 1;
	return cow_check(arg, NR * ps, TAG) == -1 ? 0 : 2;
}

/* What a fork copies, as it is pinned */
TEST_F_TIMEOUT(mapping_changes, reclaimed_copies_of_pinned, TEST_TIMEOUT)
{
	struct cow_child c;
	int fd;

	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	fd = cow_pin(self->p, NR * ps);
	if (fd < 0)
		SKIP(return, "pages cannot be pinned by io_uring: %s", strerror(-fd));
	ASSERT_EQ(0, cow_child_fork(&c, can_be_reclaimed, self->p));
	EXPECT_EQ(0, cow_child_wait(&c));
	close(fd);
}

TEST_F_TIMEOUT(mapping_changes, reclaimed, TEST_TIMEOUT)
{
	struct cow_child c;
	char *to;

	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	cow_fill(self->p, NR * ps, TAG);
	to = cow_map(NR * ps, 0);
	ASSERT_NE(NULL, to);
	ASSERT_EQ(0, share(&c, self->p, NR));
	write_up(self->p, 0, NR);
	expect_reclaimable(_metadata, self->p);
	EXPECT_EQ(-1, wrong_content(self->p, NR));
	/* They are back; and now with another address */
	ASSERT_EQ(to, mremap(self->p, NR * ps, NR * ps,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to));
	write_up(to, 0, NR);
	expect_reclaimable(_metadata, to);
	write_up(to, 0, NR);
	EXPECT_EQ(0, cow_child_end(&c));
}

/* A copy is a page like any other. */
TEST_F_TIMEOUT(mapping_changes, page_flags, TEST_TIMEOUT)
{
	const __u64 want = KPF_UPTODATE | KPF_LRU | KPF_ANON | COW_KPF_SWAPBACKED;
	struct cow_child c;
	int i;

	if (!cow_page_flags(self->p))
		SKIP(return, "no /proc/kpageflags, or not root");
	ASSERT_EQ(0, share(&c, self->p, NR));
	write_up(self->p, 0, NR);
	ASSERT_EQ(0, cow_drain_lru());
	for (i = 0; i < NR; i++)
		EXPECT_EQ(want, cow_page_flags(self->p + i * ps) & want)
			TH_LOG("page %d", i);
	EXPECT_EQ(0, cow_child_end(&c));
}

/* NULL, or why what the multi-gen LRU thinks of the page cannot be seen */
static const char *need_multi_gen_lru(struct cow_undo *undo, const char *page)
{
	if (!cow_tweak(undo, "/sys/kernel/mm/lru_gen/enabled", "0x0007"))
		return "no multi-gen LRU, or " COW_NEEDS;
	return cow_page_flags(page) ? NULL : "no /proc/kpageflags, or not root";
}

/* To the multi-gen LRU it is a page that a fault has asked for, or is not. */
TEST_F_TIMEOUT(mapping_changes, multi_gen_lru, TEST_TIMEOUT)
{
	/* Nothing is left to be copied ahead with the last page. */
	const char *alone = self->p + (NR - 1) * ps;
	const char *reason;
	struct cow_child c;

	reason = need_multi_gen_lru(&self->undo, self->p);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, self->p, NR));
	write_up(self->p, 0, 1);
	write_up(self->p, NR - 1, NR);
	ASSERT_EQ(0, cow_drain_lru());
	EXPECT_EQ(cow_page_flags(alone) & KPF_REFERENCED,
		  cow_page_flags(self->p) & KPF_REFERENCED);
	EXPECT_EQ(0, cow_child_end(&c));
}

/* No fault has asked for the next page, copied ahead or not. A small window is apart. */
TEST_F_TIMEOUT(mapping_changes, multi_gen_lru_few, TEST_TIMEOUT)
{
	const char *next = self->p + 4 * ps;
	const char *reason;
	struct cow_child c;

	reason = need_multi_gen_lru(&self->undo, self->p);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, self->p, NR));
	/* Not after it: 6.12 clears PG_active when the batch of the CPU is emptied. */
	ASSERT_EQ(0, cow_drain_lru());
	write_up(self->p, 0, 4);
	EXPECT_EQ(0, cow_page_flags(next) & (KPF_REFERENCED | KPF_ACTIVE));
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_HARNESS_MAIN
