// SPDX-License-Identifier: GPL-2.0
/*
 * Copy-on-write faults and the two ways to learn which pages were written: the
 * soft-dirty bit of /proc/<pid>/pagemap, and write protection by userfaultfd.
 *
 * A write is reported whether the page is copied, reused or pinned, and by whomever it
 * is written. A copy of one page reports no other page, and a copy that is not for a
 * write (a pin for reading unshares a page) neither loses nor invents a report. True on
 * any kernel.
 */
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define NR		64	/* pages */
#define TAG		23
#define FIRST_ONE_IN_EIGHT	5
#define FIRST_PINNED	10
#define NR_PINNED	20

static size_t ps;

FIXTURE(write_tracking)
{
	struct cow_settings saved;
	char *p;
};

FIXTURE_VARIANT(write_tracking)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(write_tracking, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(write_tracking, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(write_tracking, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(write_tracking)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	self->p = cow_map(NR * ps, NR * ps);
	ASSERT_NE(NULL, self->p);
	cow_fill(self->p, NR * ps, TAG);
}

FIXTURE_TEARDOWN_PARENT(write_tracking)
{
	cow_restore(&self->saved);
}

/* Which pages are written to, or protected */
typedef bool (*page_set)(int i);

static bool no_page(int i)
{
	(void)i;
	return false;
}

static bool every_page(int i)
{
	(void)i;
	return true;
}

static bool odd(int i)
{
	return i & 1;
}

/* Runs of three written pages, with a gap of one and of five */
static bool runs(int i)
{
	return i % 12 < 3 || (i % 12 > 3 && i % 12 < 7);
}

static bool all_but_one_in_eight(int i)
{
	return i % 8 != FIRST_ONE_IN_EIGHT;
}

static bool one_in_eight(int i)
{
	return i % 8 == FIRST_ONE_IN_EIGHT;
}

static bool odd_but_one_in_eight(int i)
{
	return odd(i) && !one_in_eight(i);
}

static void write_pages(char *p, page_set written)
{
	int i;

	for (i = 0; i < NR; i++)
		if (written(i))
			cow_touch(p + i * ps, 'w');
}

/* The first page that is not as cow_fill() and write_pages() left it, or -1 */
static int wrong_content(char *p, page_set written)
{
	const size_t word = sizeof(__u64);
	int i;

	for (i = 0; i < NR; i++) {
		char *page = p + i * ps;

		if (written(i) && cow_peek(page) != 'w')
			return i;
		if (!written(i) && cow_check(page, word, TAG) != -1)
			return i;
		if (cow_check(page + word, ps - word, TAG) != -1)
			return i;
	}
	return -1;
}

/* The first page whose bit in pagemap is not what the set says, or -1 */
static int wrong_bit(char *p, __u64 bit, page_set want)
{
	int i;

	for (i = 0; i < NR; i++)
		if (want(i) != !!(cow_pagemap(p + i * ps) & bit))
			return i;
	return -1;
}

/* Waits for the parent, then checks that its memory has not changed. */
static int keeps(struct cow_child *self, void *arg)
{
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 1;
	return wrong_content(arg, no_page) == -1 ? 0 : 2;
}

static int share(struct cow_child *c, cow_child_fn fn, void *arg)
{
	int ret = cow_child_fork(c, fn, arg);

	if (ret)
		return ret;
	return cow_child_recv(c) == 1 ? 0 : -EPIPE;
}

/* Each page that is shared is copied for it. */
static int unshare_by_reading(char *p)
{
	int i, ret = 0;

	for (i = 0; i < NR && !ret; i++)
		ret = cow_unshare(p + i * ps);
	return ret;
}

/*
 * Soft-dirty
 */

static int clear_soft_dirty(char *p)
{
	int ret = cow_write_file("/proc/self/clear_refs", "4");

	if (ret)
		return ret;
	return wrong_bit(p, COW_PM_SOFT_DIRTY, no_page) == -1 ? 0 : -EIO;
}

static void expect_soft_dirty(struct __test_metadata *_metadata, char *p,
			      page_set written)
{
	int i;

	for (i = 0; i < NR; i++)
		EXPECT_EQ(written(i),
			  !!(cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY))
			TH_LOG("page %d of %d", i, NR);
}

TEST_F_TIMEOUT(write_tracking, soft_dirty_in_parent, TEST_TIMEOUT)
{
	struct cow_child c;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, share(&c, keeps, self->p));
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	write_pages(self->p, runs);
	expect_soft_dirty(_metadata, self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));
	EXPECT_EQ(0, cow_child_end(&c));
}

/* A debugger writes to what the process itself may not write to. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_by_force, TEST_TIMEOUT)
{
	ssize_t ret;
	int i;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ));
	ret = cow_write_by_force(self->p);
	if (ret < 0)
		SKIP(return, COW_NO_FORCE, strerror(-ret));
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	for (i = 0; i < NR; i++)
		if (runs(i))
			ASSERT_EQ(1, cow_write_by_force(self->p + i * ps));
	expect_soft_dirty(_metadata, self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));
}

/* Cleared first, and then shared: the write-protection is fork's. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_cleared_before_fork, TEST_TIMEOUT)
{
	struct cow_child c;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	ASSERT_EQ(0, share(&c, keeps, self->p));
	write_pages(self->p, runs);
	expect_soft_dirty(_metadata, self->p, runs);
	EXPECT_EQ(0, cow_child_end(&c));
}

static int writes_and_looks(struct cow_child *self, void *arg)
{
	int wrong;

	(void)self;
	if (clear_soft_dirty(arg))
		return 101;
	write_pages(arg, runs);
	wrong = wrong_bit(arg, COW_PM_SOFT_DIRTY, runs);
	if (wrong != -1)
		return 1 + wrong;
	return wrong_content(arg, runs) == -1 ? 0 : 102;
}

TEST_F_TIMEOUT(write_tracking, soft_dirty_in_child, TEST_TIMEOUT)
{
	struct cow_child c;
	int status;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	ASSERT_EQ(0, cow_child_fork(&c, writes_and_looks, self->p));
	status = cow_child_wait(&c);
	EXPECT_EQ(0, status) {
		if (status > 0 && status <= NR)
			TH_LOG("the child's page %d", status - 1);
	}
	/* The child's writes are not the parent's. */
	expect_soft_dirty(_metadata, self->p, no_page);
	EXPECT_EQ(-1, wrong_content(self->p, no_page));
}

/* The child has exited: the pages are reused. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_of_reused, TEST_TIMEOUT)
{
	struct cow_child c;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, share(&c, keeps, self->p));
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	ASSERT_EQ(0, cow_child_end(&c));
	write_pages(self->p, runs);
	expect_soft_dirty(_metadata, self->p, runs);
}

/* Written by read(2): the fault is the kernel's. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_by_the_kernel, TEST_TIMEOUT)
{
	struct cow_child c;
	int i, fds[2];

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, share(&c, keeps, self->p));
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	for (i = 0; i < NR; i++) {
		if (!runs(i))
			continue;
		ASSERT_EQ(1, write(fds[1], "w", 1));
		ASSERT_EQ(1, read(fds[0], self->p + i * ps, 1));
	}
	expect_soft_dirty(_metadata, self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));
	EXPECT_EQ(0, cow_child_end(&c));
}

/* Unsharing for a pin is not a write: the bit does not change. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_of_unshared, TEST_TIMEOUT)
{
	struct cow_child c;
	int i, ret;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	write_pages(self->p, odd);
	ASSERT_EQ(0, cow_child_idle(&c));
	ret = unshare_by_reading(self->p);
	if (ret) {
		cow_child_end(&c);
		SKIP(return, "process_vm_readv: %s", strerror(-ret));
	}
	EXPECT_EQ(-1, wrong_bit(self->p, COW_PM_EXCLUSIVE, every_page));
	expect_soft_dirty(_metadata, self->p, odd);
	write_pages(self->p, runs);
	for (i = 0; i < NR; i++)
		EXPECT_EQ(odd(i) || runs(i),
			  !!(cow_pagemap(self->p + i * ps) & COW_PM_SOFT_DIRTY))
			TH_LOG("page %d", i);
	EXPECT_EQ(0, cow_child_end(&c));
}

/* The pages that were written before the fork are reported in the child, and no others. */
static int inherits(struct cow_child *self, void *arg)
{
	(void)self;
	return 1 + wrong_bit(arg, COW_PM_SOFT_DIRTY, odd);
}

/* A fork write-protects the pages, but what was written before it was written. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_after_fork, TEST_TIMEOUT)
{
	struct cow_child c;
	int status;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	write_pages(self->p, odd);
	ASSERT_EQ(0, cow_child_fork(&c, inherits, self->p));
	status = cow_child_wait(&c);
	EXPECT_EQ(0, status)
		TH_LOG("the child's page %d", status - 1);
	expect_soft_dirty(_metadata, self->p, odd);
}

/* Read-only and back: the page may be writable again at once only if it is dirty. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_after_mprotect, TEST_TIMEOUT)
{
	struct cow_child c;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ | PROT_WRITE));
	expect_soft_dirty(_metadata, self->p, no_page);
	write_pages(self->p, runs);
	expect_soft_dirty(_metadata, self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));

	/* The same with pages that are shared */
	cow_fill(self->p, NR * ps, TAG);
	ASSERT_EQ(0, share(&c, keeps, self->p));
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ | PROT_WRITE));
	write_pages(self->p, odd);
	expect_soft_dirty(_metadata, self->p, odd);
	EXPECT_EQ(0, cow_child_end(&c));
}

/*
 * What is mapped anew has lost the content that it had, and is reported although nobody
 * has written to it: also where an old mapping has grown.
 */
TEST_F_TIMEOUT(write_tracking, soft_dirty_of_new_mapping, TEST_TIMEOUT)
{
	const size_t half = NR / 2 * ps;
	char *p, *upper;
	int i;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	/* Not cow_map(): the new part must be able to join the old one. */
	p = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	cow_fill(p, 2 * half, TAG);
	ASSERT_EQ(0, clear_soft_dirty(p));
	upper = p + half;
	ASSERT_EQ(0, munmap(upper, half));
	ASSERT_EQ(upper, mmap(upper, half, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	for (i = NR / 2; i < NR; i++)
		EXPECT_NE(0, cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY)
			TH_LOG("page %d", i);
	munmap(p, 2 * half);
}

/* The heap grows: its VMA does, and is not a new one. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_of_grown_heap, TEST_TIMEOUT)
{
	const long half = NR / 2 * ps;
	const long to_boundary = ps - (uintptr_t)sbrk(0) % ps;
	char *p;
	int i;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	p = sbrk(to_boundary + 2 * half);
	if (p == (void *)-1)
		SKIP(return, "no heap by sbrk()");
	p += to_boundary;
	cow_fill(p, 2 * half, TAG);
	ASSERT_EQ(0, clear_soft_dirty(p));
	ASSERT_NE((void *)-1, sbrk(-half));
	ASSERT_NE((void *)-1, sbrk(half));
	for (i = NR / 2; i < NR; i++)
		EXPECT_NE(0, cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY)
			TH_LOG("page %d", i);
}

/*
 * Pages that are not anonymous yet: a write puts a new one in the place of a file's page, of
 * the zero page, or of none.
 */

/* Put a private mapping of a file with the same content in the place of p. */
static int map_file(char *p)
{
	int fd = memfd_create("write_tracking", MFD_CLOEXEC), ret = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, p, NR * ps) != (ssize_t)(NR * ps))
		ret = -EIO;
	else if (mmap(p, NR * ps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) != p)
		ret = -errno;
	close(fd);
	return ret;
}

TEST_F_TIMEOUT(write_tracking, soft_dirty_of_file, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, map_file(self->p));
	/* All pages of the file are mapped now. */
	ASSERT_EQ(-1, wrong_content(self->p, no_page));
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	write_pages(self->p, runs);
	expect_soft_dirty(_metadata, self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));
}

TEST_F_TIMEOUT(write_tracking, soft_dirty_of_unmapped_file, TEST_TIMEOUT)
{
	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, map_file(self->p));
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	write_pages(self->p, runs);
	expect_soft_dirty(_metadata, self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));
}

/* The odd pages are the zero page, the others are not there. */
TEST_F_TIMEOUT(write_tracking, soft_dirty_of_zero_page, TEST_TIMEOUT)
{
	char *p = cow_map(NR * ps, 0);
	int i;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_NE(NULL, p);
	for (i = 1; i < NR; i += 2)
		ASSERT_EQ(0, cow_peek(p + i * ps));
	ASSERT_EQ(0, clear_soft_dirty(p));
	write_pages(p, runs);
	expect_soft_dirty(_metadata, p, runs);
	for (i = 0; i < NR; i++)
		EXPECT_EQ(runs(i) ? 'w' : 0, cow_peek(p + i * ps))
			TH_LOG("page %d", i);
}

static int pin_pages(char *p)
{
	return cow_pin(p + FIRST_PINNED * ps, NR_PINNED * ps);
}

static bool pinned(int i)
{
	return i >= FIRST_PINNED && i < FIRST_PINNED + NR_PINNED;
}

/*
 * Each written page is reported. The kernel may report pinned pages that were not written,
 * too: it does not write-protect those, and leaves their bit alone.
 */
static void expect_soft_dirty_with_pins(struct __test_metadata *_metadata,
					char *p, page_set written)
{
	int i;

	for (i = 0; i < NR; i++) {
		bool bit = cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY;

		if (!written(i) && pinned(i))
			continue;
		EXPECT_EQ(written(i), bit)
			TH_LOG("page %d%s", i, pinned(i) ? ", pinned" : "");
	}
}

TEST_F_TIMEOUT(write_tracking, soft_dirty_of_pinned_before_fork, TEST_TIMEOUT)
{
	struct cow_child keeper, writer;
	int fd, status;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	fd = pin_pages(self->p);
	if (fd < 0)
		SKIP(return, "pages cannot be pinned by io_uring: %s",
		     strerror(-fd));
	/* fork() copies the pinned pages at once. */
	ASSERT_EQ(0, share(&keeper, keeps, self->p));
	ASSERT_EQ(0, cow_child_fork(&writer, writes_and_looks, self->p));
	status = cow_child_wait(&writer);
	EXPECT_EQ(0, status) {
		if (status > 0 && status <= NR)
			TH_LOG("the child's page %d", status - 1);
	}
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	write_pages(self->p, runs);
	expect_soft_dirty_with_pins(_metadata, self->p, runs);
	EXPECT_EQ(0, cow_child_end(&keeper));
	EXPECT_EQ(-1, wrong_content(self->p, runs));
	close(fd);
}

TEST_F_TIMEOUT(write_tracking, soft_dirty_of_pinned_after_fork, TEST_TIMEOUT)
{
	struct cow_child c;
	int fd;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	ASSERT_EQ(0, clear_soft_dirty(self->p));
	ASSERT_EQ(0, share(&c, keeps, self->p));
	fd = pin_pages(self->p);
	if (fd < 0) {
		cow_child_end(&c);
		SKIP(return, "pages cannot be pinned by io_uring: %s",
		     strerror(-fd));
	}
	/* A pin for writing may report its pages, and no other. */
	expect_soft_dirty_with_pins(_metadata, self->p, no_page);
	ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
	write_pages(self->p, runs);
	expect_soft_dirty_with_pins(_metadata, self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));
	EXPECT_EQ(0, cow_child_end(&c));
	close(fd);
}

/*
 * Write protection by userfaultfd
 */

/* Who wrote */
enum { PARENT, CHILD, NR_WRITERS };

struct monitor {
	int fd[NR_WRITERS];
	char *p;
	pthread_t thread;
	int stop[2];
	int reported[NR_WRITERS][NR];
	int unexpected;
};

static struct monitor mon;

static void handle_message(int who, const struct uffd_msg *msg)
{
	unsigned long page;

	if (msg->event == UFFD_EVENT_FORK && mon.fd[CHILD] < 0) {
		mon.fd[CHILD] = msg->arg.fork.ufd;
		return;
	}
	page = (msg->arg.pagefault.address - (unsigned long)mon.p) / ps;
	if (msg->event != UFFD_EVENT_PAGEFAULT || page >= NR ||
	    !(msg->arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP)) {
		mon.unexpected++;
		return;
	}
	mon.reported[who][page]++;
	if (cow_uffd_protect(mon.fd[who], mon.p + page * ps, ps, false))
		mon.unexpected++;
}

/* Records each write and lets it continue, until it is told to stop. */
static void *monitor(void *arg)
{
	struct uffd_msg msg;
	int who;

	(void)arg;
	for (;;) {
		struct pollfd fds[] = {
			{ .fd = mon.fd[PARENT], .events = POLLIN },
			{ .fd = mon.fd[CHILD], .events = POLLIN },
			{ .fd = mon.stop[0], .events = POLLIN },
		};

		/* The message of the fork brings the child's file: poll that, too. */
		if (poll(fds, 3, -1) < 0 && errno != EINTR)
			return NULL;
		for (who = 0; who < NR_WRITERS; who++)
			while (mon.fd[who] >= 0 &&
			       read(mon.fd[who], &msg, sizeof(msg)) ==
			       sizeof(msg))
				handle_message(who, &msg);
		if (fds[2].revents)
			return NULL;
	}
}

static int write_protect(int fd, char *p, page_set which)
{
	int i, ret = 0;

	for (i = 0; !ret && i < NR; i++)
		if (which(i))
			ret = cow_uffd_protect(fd, p + i * ps, ps, true);
	return ret;
}

/*
 * Write-protect these pages of p, and note who writes to them. NULL, or why that is not
 * possible
 */
static const char *protect_pages(char *p, page_set protect, __u64 features)
{
	const char *reason;

	mon = (struct monitor){ .fd = { -1, -1 }, .p = p };
	reason = cow_uffd_wp(&mon.fd[PARENT], p, NR * ps, features);
	if (reason)
		return reason;
	if (write_protect(mon.fd[PARENT], p, protect))
		return "cannot write-protect a page by userfaultfd";
	if (pipe2(mon.stop, O_CLOEXEC) ||
	    pthread_create(&mon.thread, NULL, monitor, NULL))
		return "cannot start a thread";
	return NULL;
}

/* The monitor has ended, and these pages were reported, once each. */
static void expect_reported(struct __test_metadata *_metadata, page_set parent,
			    page_set child)
{
	int i;

	ASSERT_EQ(1, write(mon.stop[1], "x", 1));
	ASSERT_EQ(0, pthread_join(mon.thread, NULL));
	EXPECT_EQ(0, mon.unexpected);
	for (i = 0; i < NR; i++) {
		EXPECT_EQ(parent(i), mon.reported[PARENT][i])
			TH_LOG("page %d, written by the parent", i);
		EXPECT_EQ(child(i), mon.reported[CHILD][i])
			TH_LOG("page %d, written by the child", i);
	}
	if (mon.fd[CHILD] >= 0)
		close(mon.fd[CHILD]);
	close(mon.fd[PARENT]);
}

static void expect_protected(struct __test_metadata *_metadata, char *p,
			     page_set want)
{
	int i;

	for (i = 0; i < NR; i++)
		EXPECT_EQ(want(i), !!(cow_pagemap(p + i * ps) & COW_PM_UFFD_WP))
			TH_LOG("page %d", i);
}

TEST_F_TIMEOUT(write_tracking, uffd_in_parent, TEST_TIMEOUT)
{
	struct cow_child c;
	const char *reason;

	reason = protect_pages(self->p, odd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, keeps, self->p));
	expect_protected(_metadata, self->p, odd);
	write_pages(self->p, every_page);
	expect_reported(_metadata, odd, no_page);
	EXPECT_EQ(-1, wrong_content(self->p, every_page));
	EXPECT_EQ(0, cow_child_end(&c));
}

/* Copies between protected pages */
TEST_F_TIMEOUT(write_tracking, uffd_next_to_a_copy, TEST_TIMEOUT)
{
	struct cow_child c;
	const char *reason;

	reason = protect_pages(self->p, all_but_one_in_eight, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, keeps, self->p));
	write_pages(self->p, one_in_eight);
	expect_protected(_metadata, self->p, all_but_one_in_eight);
	EXPECT_EQ(-1, wrong_content(self->p, one_in_eight));
	/* From now on pages are reused. */
	EXPECT_EQ(0, cow_child_end(&c));
	write_pages(self->p, runs);
	write_pages(self->p, every_page);
	expect_reported(_metadata, all_but_one_in_eight, no_page);
	EXPECT_EQ(-1, wrong_content(self->p, every_page));
}

static int writes_all(struct cow_child *self, void *arg)
{
	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 1;
	write_pages(arg, every_page);
	return wrong_content(arg, every_page) == -1 ? 0 : 2;
}

/* Without UFFD_FEATURE_EVENT_FORK the child's writes are not reported. */
TEST_F_TIMEOUT(write_tracking, uffd_unaware_of_child, TEST_TIMEOUT)
{
	struct cow_child c;
	const char *reason;

	reason = protect_pages(self->p, odd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, writes_all, self->p));
	ASSERT_EQ(0, cow_child_send(&c, 2));
	ASSERT_EQ(0, cow_child_wait(&c));
	EXPECT_EQ(-1, wrong_content(self->p, no_page));
	expect_protected(_metadata, self->p, odd);
	write_pages(self->p, every_page);
	expect_reported(_metadata, odd, no_page);
}

TEST_F_TIMEOUT(write_tracking, uffd_follows_child, TEST_TIMEOUT)
{
	struct cow_child c;
	const char *reason;

	reason = protect_pages(self->p, odd, UFFD_FEATURE_EVENT_FORK);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, writes_all, self->p));
	/* Parent first: what is written by it stays protected in the child. */
	write_pages(self->p, runs);
	EXPECT_EQ(-1, wrong_content(self->p, runs));
	ASSERT_EQ(0, cow_child_send(&c, 2));
	ASSERT_EQ(0, cow_child_wait(&c));
	write_pages(self->p, every_page);
	expect_reported(_metadata, odd, odd);
}

/* Pages that are pinned are copied by the fork, with their protection. */
TEST_F_TIMEOUT(write_tracking, uffd_follows_child_pinned, TEST_TIMEOUT)
{
	struct cow_child c;
	const char *reason;
	int fd;

	/* A pin for writing would be reported. */
	fd = pin_pages(self->p);
	if (fd < 0)
		SKIP(return, "pages cannot be pinned by io_uring: %s", strerror(-fd));
	reason = protect_pages(self->p, odd, UFFD_FEATURE_EVENT_FORK);
	if (reason) {
		close(fd);
		SKIP(return, "%s", reason);
	}
	ASSERT_EQ(0, share(&c, writes_all, self->p));
	ASSERT_EQ(0, cow_child_send(&c, 2));
	ASSERT_EQ(0, cow_child_wait(&c));
	EXPECT_EQ(-1, wrong_content(self->p, no_page));
	write_pages(self->p, every_page);
	expect_reported(_metadata, odd, odd);
	close(fd);
}

/* The child inherits the protection of pages in swap, too. */
TEST_F_TIMEOUT(write_tracking, uffd_follows_child_in_swap, TEST_TIMEOUT)
{
	struct cow_child c;
	const char *reason;

	reason = protect_pages(self->p, odd, UFFD_FEATURE_EVENT_FORK);
	if (reason)
		SKIP(return, "%s", reason);
	if (!cow_page_out(self->p, NR))
		SKIP(return, "the pages do not go to swap");
	ASSERT_EQ(0, share(&c, writes_all, self->p));
	ASSERT_EQ(0, cow_child_send(&c, 2));
	ASSERT_EQ(0, cow_child_wait(&c));
	write_pages(self->p, every_page);
	expect_reported(_metadata, odd, odd);
}

/* Pages of a private file that are protected before anybody has looked at them */
TEST_F_TIMEOUT(write_tracking, uffd_of_unmapped_file, TEST_TIMEOUT)
{
	const char *reason;
	int i;

	ASSERT_EQ(0, map_file(self->p));
	reason = protect_pages(self->p, odd, UFFD_FEATURE_WP_HUGETLBFS_SHMEM);
	if (reason)
		SKIP(return, "%s", reason);
	for (i = 0; i < NR; i += 3)
		cow_peek(self->p + i * ps);
	write_pages(self->p, every_page);
	expect_reported(_metadata, odd, no_page);
	EXPECT_EQ(-1, wrong_content(self->p, every_page));
}

/* Protect pages of a private file that were all read, as long as nobody has them. */
static const char *protect_file(struct __test_metadata *_metadata, char *p)
{
	ASSERT_EQ(0, map_file(p));
	ASSERT_EQ(-1, wrong_content(p, no_page));
	return protect_pages(p, odd, UFFD_FEATURE_WP_HUGETLBFS_SHMEM);
}

static void expect_file_protected(struct __test_metadata *_metadata, char *p)
{
	expect_protected(_metadata, p, odd);
	write_pages(p, every_page);
	expect_reported(_metadata, odd, no_page);
	EXPECT_EQ(-1, wrong_content(p, every_page));
}

TEST_F_TIMEOUT(write_tracking, uffd_of_dropped_file, TEST_TIMEOUT)
{
	const char *reason = protect_file(_metadata, self->p);

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, madvise(self->p, NR * ps, MADV_DONTNEED));
	expect_file_protected(_metadata, self->p);
}

/* Is any of the pages still mapped, although reclaim was asked to take them? */
static bool stays_mapped(char *p)
{
	int i, tries;

	for (tries = 0; tries < 50; tries++) {
		cow_drain_lru();
		madvise(p, NR * ps, MADV_PAGEOUT);
		for (i = 0; i < NR && !(cow_pagemap(p + i * ps) & COW_PM_PRESENT); i++)
			;
		if (i == NR)
			return false;
		usleep(10000);
	}
	return true;
}

TEST_F_TIMEOUT(write_tracking, uffd_of_reclaimed_file, TEST_TIMEOUT)
{
	const char *reason;

	if (!cow_can_page_out(NR))
		SKIP(return, "no swap space for a file in memory");
	/* Where its LRU batches can be emptied */
	ASSERT_EQ(0, cow_pin_cpu());
	reason = protect_file(_metadata, self->p);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_FALSE(stays_mapped(self->p));
	expect_file_protected(_metadata, self->p);
}

/*
 * In asynchronous mode there is no message: the kernel takes the protection away, and a
 * monitor later looks which pages have lost it. Reused, copied, and reused again
 */
TEST_F_TIMEOUT(write_tracking, uffd_asynchronous, TEST_TIMEOUT)
{
	struct cow_child c;
	int fd;

	if (cow_uffd_wp(&fd, self->p, NR * ps, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	ASSERT_EQ(0, write_protect(fd, self->p, every_page));
	write_pages(self->p, one_in_eight);
	expect_protected(_metadata, self->p, all_but_one_in_eight);
	cow_fill(self->p, NR * ps, TAG);
	ASSERT_EQ(0, write_protect(fd, self->p, odd));
	ASSERT_EQ(0, share(&c, keeps, self->p));
	write_pages(self->p, one_in_eight);
	expect_protected(_metadata, self->p, odd_but_one_in_eight);
	EXPECT_EQ(-1, wrong_content(self->p, one_in_eight));
	EXPECT_EQ(0, cow_child_end(&c));
	write_pages(self->p, every_page);
	expect_protected(_metadata, self->p, no_page);
	EXPECT_EQ(-1, wrong_content(self->p, every_page));
	close(fd);
}

/* Which pages were written since they were protected? These are protected again. */
static void expect_scanned(struct __test_metadata *_metadata, const char *p,
			   const struct cow_scan *scan, page_set written)
{
	unsigned char times[NR] = {};
	int i;

	/* It is as old as UFFD_FEATURE_WP_ASYNC. */
	ASSERT_EQ(0, cow_scan_written(p, NR, scan, times));
	for (i = 0; i < NR; i++)
		EXPECT_EQ(written(i), times[i])
			TH_LOG("page %d", i);
}

static bool first_half(int i)
{
	return i < NR / 2;
}

/* What was written before the fork is read-only when it is protected again. */
TEST_F_TIMEOUT(write_tracking, uffd_scanned, TEST_TIMEOUT)
{
	const struct cow_scan all = {};
	struct cow_child c;
	int fd;

	if (cow_uffd_wp(&fd, self->p, NR * ps, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	ASSERT_EQ(0, write_protect(fd, self->p, every_page));
	cow_fill(self->p, NR / 2 * ps, TAG);
	ASSERT_EQ(0, share(&c, keeps, self->p));
	expect_scanned(_metadata, self->p, &all, first_half);
	write_pages(self->p, odd);
	expect_scanned(_metadata, self->p, &all, odd);
	EXPECT_EQ(-1, wrong_content(self->p, odd));
	EXPECT_EQ(0, cow_child_end(&c));
	close(fd);
}

/* What was written and is in swap by now; a scan by itself brings nothing back. */
TEST_F_TIMEOUT(write_tracking, uffd_scanned_in_swap, TEST_TIMEOUT)
{
	const struct cow_scan all = {}, scans[] = { {}, { .also_present = true } };
	unsigned int i;
	int fd;

	if (!cow_can_page_out(NR))
		SKIP(return, "no swap space");
	if (cow_uffd_wp(&fd, self->p, NR * ps, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	/* In the LRU batches of this CPU, if in any */
	ASSERT_EQ(0, cow_pin_cpu());
	ASSERT_EQ(0, madvise(self->p, NR * ps, MADV_DONTNEED));
	cow_fill(self->p, NR * ps, TAG);
	for (i = 0; i < ARRAY_SIZE(scans); i++) {
		ASSERT_EQ(0, write_protect(fd, self->p, every_page));
		write_pages(self->p, odd);
		ASSERT_TRUE(cow_page_out(self->p, NR));
		expect_scanned(_metadata, self->p, &scans[i], odd);
		EXPECT_EQ(NR, cow_swapped(self->p, NR));
		expect_scanned(_metadata, self->p, &scans[i], no_page);
		/* They come back. */
		EXPECT_EQ(-1, wrong_content(self->p, odd));
		expect_scanned(_metadata, self->p, &all, no_page);
		write_pages(self->p, odd);
		expect_scanned(_metadata, self->p, &all, odd);
	}
	close(fd);
}

/* Where the caller has no room for all pages, the rest is told next time. */
TEST_F_TIMEOUT(write_tracking, uffd_scanned_in_parts, TEST_TIMEOUT)
{
	const struct cow_scan all = {}, scans[] = {
		{ .max_pages = 5 },
		{ .max_regions = 1 },
		{ .max_pages = 5, .also_present = true },
		{ .max_regions = 1, .also_present = true },
	};
	unsigned int i;
	int fd;

	if (cow_uffd_wp(&fd, self->p, NR * ps, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	ASSERT_EQ(0, write_protect(fd, self->p, every_page));
	for (i = 0; i < ARRAY_SIZE(scans); i++) {
		write_pages(self->p, runs);
		expect_scanned(_metadata, self->p, &scans[i], runs);
		expect_scanned(_metadata, self->p, &all, no_page);
	}
	close(fd);
}

/* Read-only and back: a protected page must not become writable by that. */
TEST_F_TIMEOUT(write_tracking, uffd_after_mprotect, TEST_TIMEOUT)
{
	int fd;

	if (cow_uffd_wp(&fd, self->p, NR * ps, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	ASSERT_EQ(0, write_protect(fd, self->p, every_page));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ));
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ | PROT_WRITE));
	expect_protected(_metadata, self->p, every_page);
	write_pages(self->p, one_in_eight);
	expect_protected(_metadata, self->p, all_but_one_in_eight);
	EXPECT_EQ(-1, wrong_content(self->p, one_in_eight));
	close(fd);
}

TEST_F_TIMEOUT(write_tracking, uffd_by_force, TEST_TIMEOUT)
{
	ssize_t ret;
	int i, fd;

	if (cow_uffd_wp(&fd, self->p, NR * ps, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	ASSERT_EQ(0, mprotect(self->p, NR * ps, PROT_READ));
	ret = cow_write_by_force(self->p + FIRST_ONE_IN_EIGHT * ps);
	if (ret < 0)
		SKIP(return, COW_NO_FORCE, strerror(-ret));
	ASSERT_EQ(0, write_protect(fd, self->p, every_page));
	for (i = 0; i < NR; i++)
		if (one_in_eight(i))
			ASSERT_EQ(1, cow_write_by_force(self->p + i * ps));
	expect_protected(_metadata, self->p, all_but_one_in_eight);
	EXPECT_EQ(-1, wrong_content(self->p, one_in_eight));
	close(fd);
}

/* A copy for a pin leaves the page protected. */
TEST_F_TIMEOUT(write_tracking, uffd_of_unshared, TEST_TIMEOUT)
{
	struct cow_child c;
	const char *reason;
	int ret;

	reason = protect_pages(self->p, odd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, share(&c, keeps, self->p));
	ret = unshare_by_reading(self->p);
	if (ret) {
		cow_child_end(&c);
		SKIP(return, "process_vm_readv: %s", strerror(-ret));
	}
	EXPECT_EQ(-1, wrong_bit(self->p, COW_PM_EXCLUSIVE, every_page));
	expect_protected(_metadata, self->p, odd);
	write_pages(self->p, every_page);
	expect_reported(_metadata, odd, no_page);
	EXPECT_EQ(-1, wrong_content(self->p, every_page));
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_HARNESS_MAIN
