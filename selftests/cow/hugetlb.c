// SPDX-License-Identifier: GPL-2.0
/*
 * Copy-on-write of private mappings of hugetlb pages, which has code of its own.
 *
 * Parent and child keep what is theirs, also in the TLB of another CPU. Pages in use, free
 * and reserved are counted right. Where the pool has no page left for a copy, the process
 * that reserved the page keeps it, and a child gets SIGBUS instead of any wrong content.
 * Write protection by userfaultfd is inherited and outlives copies as with small pages, and
 * poison is for the child, too. What is written by force stays read-only, and what moves is
 * gone from where it was.
 * True on any kernel. A device that mirrors such a page is a test of secondary_mmu.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define POOL	8	/* huge pages */
#define NR	3	/* that most tests share, and copy */
#define ROUNDS	20
#define TLB_ROUNDS	4

/* Tags of the content */
#define OLD	61
#define BY_PARENT	62
#define BY_CHILD	63

#define SYSCTL_DIR	"/proc/sys/vm/"

static size_t ps, huge;

/* Children inherit it. */
static char *area;

static struct cow_child child;

FIXTURE(hugetlb)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(hugetlb)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(hugetlb, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(hugetlb, adaptive) { .ahead = COW_ADAPTIVE };

static long long pool(const char *key)
{
	return cow_file_key("/proc/meminfo", key);
}

/* A pool of POOL pages, none of which is in use. NULL, or why there is none */
static const char *make_pool(struct cow_undo *undo)
{
	long long kb = pool("Hugepagesize");
	int i;

	if (kb <= 0)
		return "no hugetlb pages in this kernel";
	if (!cow_may_change())
		return COW_NEEDS;
	huge = kb * 1024;
	/* Memory that was reserved at boot may not come back. */
	if (pool("HugePages_Total") > POOL)
		return "there is a larger pool of hugetlb pages, which is somebody's";
	/* No pages beyond the pool's */
	if (!cow_tweak(undo, SYSCTL_DIR "nr_overcommit_hugepages", "0") ||
	    !cow_tweak(undo, SYSCTL_DIR "nr_hugepages", "8"))
		return "the pool of hugetlb pages cannot be changed";
	/* The child of a test that failed may be ending yet. */
	for (i = 0; i < 30000 && pool("HugePages_Free") != pool("HugePages_Total"); i++)
		usleep(1000);
	if (pool("HugePages_Total") != POOL || pool("HugePages_Free") != POOL ||
	    pool("HugePages_Rsvd"))
		return "got no pool of 8 hugetlb pages that nobody uses";
	return NULL;
}

FIXTURE_SETUP(hugetlb)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	reason = make_pool(&self->undo);
	if (reason) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
}

FIXTURE_TEARDOWN_PARENT(hugetlb)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* Of each huge page, the tests write to the first small page, and look at the last one. */
static void write_page(int i, __u64 tag)
{
	cow_fill(area + i * huge, ps, tag);
}

static bool page_is(int i, __u64 tag)
{
	return cow_check(area + i * huge, ps, tag) == -1 &&
	       cow_check(area + (i + 1) * huge - ps, ps, OLD) == -1;
}

static void fill_pages(char *p, int nr)
{
	int i;

	for (i = 0; i < nr; i++) {
		cow_fill(p + i * huge, ps, OLD);
		cow_fill(p + (i + 1) * huge - ps, ps, OLD);
	}
}

static char *map_pages(int nr)
{
	char *p = mmap(NULL, nr * huge, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	fill_pages(p, nr);
	return p;
}

/* The file's two pages, at the same address each time: content goes by that. */
static bool map_file(int fd, int flags)
{
	void *p;

	if (area)
		flags |= MAP_FIXED;
	p = mmap(area, 2 * huge, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (p == MAP_FAILED)
		return false;
	area = p;
	return true;
}

/* As many pages are free as there should be, and none is reserved. */
static void expect_free(struct __test_metadata *_metadata, int nr, const char *when)
{
	EXPECT_EQ(nr, pool("HugePages_Free"))
		TH_LOG("%s", when);
	EXPECT_EQ(0, pool("HugePages_Rsvd"))
		TH_LOG("%s", when);
}

static void share_with(struct __test_metadata *_metadata, cow_child_fn fn)
{
	ASSERT_EQ(0, cow_child_fork(&child, fn, NULL));
	ASSERT_EQ(1, cow_child_recv(&child));
}

/* Page 0 is written by the parent, page 1 by the child, and page 2 by both. */
static int keeps_its_own(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 1;
	if (!page_is(0, OLD) || !page_is(1, OLD) || !page_is(2, OLD))
		return 2;
	write_page(1, BY_CHILD);
	write_page(2, BY_CHILD);
	if (cow_child_stay(self))
		return 3;
	return page_is(0, OLD) && page_is(1, BY_CHILD) && page_is(2, BY_CHILD) ? 0 : 4;
}

TEST_F_TIMEOUT(hugetlb, isolated, TEST_TIMEOUT)
{
	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	share_with(_metadata, keeps_its_own);
	write_page(0, BY_PARENT);
	write_page(2, BY_PARENT);
	ASSERT_EQ(0, cow_child_send(&child, 1));
	ASSERT_EQ(1, cow_child_recv(&child));
	EXPECT_TRUE(page_is(0, BY_PARENT));
	EXPECT_TRUE(page_is(1, OLD));
	EXPECT_TRUE(page_is(2, BY_PARENT));
	write_page(1, BY_PARENT);
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_TRUE(page_is(1, BY_PARENT));
}

/* Does this process have NR pages mapped, by its own account? */
static bool counted(void)
{
	return cow_status_kb("HugetlbPages") == (long)(NR * huge / 1024);
}

static void write_all(__u64 tag)
{
	int i;

	for (i = 0; i < NR; i++)
		write_page(i, tag);
}

static int counts_and_writes(struct cow_child *self, void *arg)
{
	(void)arg;
	if (!counted())
		return 2;
	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 1;
	write_all(BY_CHILD);
	if (!counted())
		return 3;
	return cow_child_stay(self);
}

/* The first of the two to write copies, the other has the old pages for itself. */
TEST_F_TIMEOUT(hugetlb, counted, TEST_TIMEOUT)
{
	bool parent_first;
	int round;

	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	for (round = 0; round < ROUNDS; round++) {
		parent_first = round % 2;
		expect_free(_metadata, POOL - NR, "before the fork");
		share_with(_metadata, counts_and_writes);
		EXPECT_TRUE(counted());
		expect_free(_metadata, POOL - NR, "after the fork");
		if (parent_first)
			write_all(BY_PARENT);
		ASSERT_EQ(0, cow_child_send(&child, 1));
		ASSERT_EQ(1, cow_child_recv(&child));
		if (!parent_first)
			write_all(BY_PARENT);
		EXPECT_TRUE(counted());
		expect_free(_metadata, POOL - 2 * NR, "after the copies");
		EXPECT_EQ(0, cow_child_end(&child));
	}
	expect_free(_metadata, POOL - NR, "after the last child");
	EXPECT_TRUE(counted());
	ASSERT_EQ(0, munmap(area, NR * huge));
	expect_free(_metadata, POOL, "after munmap");
	EXPECT_EQ(0, cow_status_kb("HugetlbPages"));
}

/* Of the half of the pool that it shares, the child may write to no page. */
static int finds_no_page(struct cow_child *self, void *arg)
{
	int i;

	(void)arg;
	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 1;
	if (!cow_raises_sigbus(area + 3 * huge, true))
		return 2;
	/* The parent writes to page 0, and gives the other half of the pool back. */
	if (cow_child_send(self, 2) || cow_child_recv(self) != 2)
		return 1;
	for (i = 1; i < POOL / 2; i++)
		if (!page_is(i, OLD))
			return 3;
	/* Neither what the parent wrote, nor a new page */
	return cow_raises_sigbus(area, false) ? 0 : 4;
}

TEST_F_TIMEOUT(hugetlb, no_page_left, TEST_TIMEOUT)
{
	char *own;

	area = map_pages(POOL / 2);
	ASSERT_NE(NULL, area);
	own = map_pages(POOL / 2);
	ASSERT_NE(NULL, own);
	ASSERT_EQ(0, madvise(own, POOL / 2 * huge, MADV_DONTFORK));
	expect_free(_metadata, 0, "with all pages in use");
	share_with(_metadata, finds_no_page);
	ASSERT_EQ(0, cow_child_send(&child, 1));
	ASSERT_EQ(2, cow_child_recv(&child));
	/* It has reserved the page, which is taken from the child for it. */
	write_page(0, BY_PARENT);
	EXPECT_TRUE(page_is(0, BY_PARENT));
	EXPECT_TRUE(page_is(3, OLD));
	ASSERT_EQ(0, munmap(own, POOL / 2 * huge));
	expect_free(_metadata, POOL / 2, "with half of the pages in use");
	ASSERT_EQ(0, cow_child_send(&child, 2));
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_TRUE(page_is(0, BY_PARENT));
	expect_free(_metadata, POOL / 2, "without the child");
	ASSERT_EQ(0, munmap(area, POOL / 2 * huge));
	expect_free(_metadata, POOL, "after munmap");
}

/*
 * One CPU reads the pages without a pause, so that their translations are in its TLB, while
 * another one writes to them: once a write is done, the old page is not seen any more.
 */

/* In shared memory, which takes no write fault */
struct reader {
	int written;	/* pages */
	int seen;	/* as many pages were written when all were last read */
	int stale;	/* an old page that it saw, or -1 */
	int err;
};

static void *reads_all_the_time(void *arg)
{
	struct reader *r = arg;
	int written, i;

	r->err = cow_leave_cpu();
	do {
		written = __atomic_load_n(&r->written, __ATOMIC_ACQUIRE);
		/* A page is 'o', and 'n' when it is written. */
		for (i = 0; i < NR && !r->err; i++) {
			if (cow_peek(area + i * huge) == 'n' || i >= written)
				continue;
			r->stale = i;
			r->err = ESTALE;
		}
		__atomic_store_n(&r->seen, r->err ? NR : written, __ATOMIC_RELEASE);
	} while (!r->err && written < NR);
	return NULL;
}

static int keeps_old(struct cow_child *self, void *arg)
{
	int i;

	(void)arg;
	if (cow_child_stay(self))
		return 1;
	for (i = 0; i < NR; i++)
		if (cow_peek(area + i * huge) != 'o')
			return 2;
	return 0;
}

static void write_before_a_reader(struct __test_metadata *_metadata, struct reader *r)
{
	pthread_t thread;
	int i;

	*r = (struct reader){ .seen = -1, .stale = -1 };
	for (i = 0; i < NR; i++)
		cow_touch(area + i * huge, 'o');
	share_with(_metadata, keeps_old);
	ASSERT_EQ(0, cow_child_settle(&child));
	ASSERT_EQ(0, pthread_create(&thread, NULL, reads_all_the_time, r));
	for (i = 0; i < NR; i++) {
		while (__atomic_load_n(&r->seen, __ATOMIC_ACQUIRE) < i)
			;
		cow_touch(area + i * huge, 'n');
		__atomic_store_n(&r->written, i + 1, __ATOMIC_RELEASE);
	}
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, cow_child_end(&child));
	if (r->err == -ENOENT)
		SKIP(return, "may use one CPU only");
	EXPECT_EQ(0, r->err)
		TH_LOG("page %d: %s", r->stale, r->stale < 0 ? strerror(abs(r->err)) :
		       "another CPU still reads the old page");
}

TEST_F_TIMEOUT(hugetlb, stale_tlb, TEST_TIMEOUT)
{
	struct reader *r;
	int round;

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	ASSERT_EQ(0, cow_pin_cpu());
	r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, r);
	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	for (round = 0; round < TLB_ROUNDS; round++)
		write_before_a_reader(_metadata, r);
}

/*
 * Write protection by userfaultfd
 */

static bool protected(int i)
{
	return cow_pagemap(area + i * huge) & COW_PM_UFFD_WP;
}

/* Protect the first page. A write to it raises SIGBUS, so that no thread has to wait. */
static const char *protect_first(int *fd, __u64 features)
{
	const char *reason;

	reason = cow_uffd_wp(fd, area, NR * huge, features | UFFD_FEATURE_SIGBUS |
			     UFFD_FEATURE_WP_HUGETLBFS_SHMEM);
	if (!reason && cow_uffd_protect(*fd, area, huge, true))
		reason = "cannot write-protect a hugetlb page by userfaultfd";
	if (!reason && !protected(0))
		reason = "pagemap does not tell which hugetlb pages are protected";
	return reason;
}

/* Is the first page protected, and no other? */
static bool first_is_protected(void)
{
	return protected(0) && !protected(1) && !protected(2) &&
	       cow_raises_sigbus(area, true) && !cow_raises_sigbus(area + huge, true);
}

static int nothing_is_protected(struct cow_child *self, void *arg)
{
	int i;

	(void)arg;
	/* Nobody asked to follow the fork. */
	for (i = 0; i < NR; i++)
		if (protected(i))
			return 2;
	if (cow_child_stay(self))
		return 1;
	for (i = 0; i < NR; i++)
		if (!page_is(i, OLD))
			return 3;
	write_all(BY_CHILD);
	for (i = 0; i < NR; i++)
		if (!page_is(i, BY_CHILD))
			return 4;
	return 0;
}

TEST_F_TIMEOUT(hugetlb, uffd_unaware_of_child, TEST_TIMEOUT)
{
	const char *reason;
	int fd;

	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	reason = protect_first(&fd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	share_with(_metadata, nothing_is_protected);
	EXPECT_TRUE(first_is_protected());
	ASSERT_EQ(0, cow_uffd_protect(fd, area, huge, false));
	write_page(0, BY_PARENT);
	EXPECT_EQ(0, cow_child_end(&child));
	EXPECT_TRUE(page_is(0, BY_PARENT));
	EXPECT_TRUE(page_is(2, OLD));
	close(fd);
}

static int first_is_protected_too(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_stay(self))
		return 1;
	return first_is_protected() ? 0 : 2;
}

TEST_F_TIMEOUT(hugetlb, uffd_follows_child, TEST_TIMEOUT)
{
	const char *reason;
	int fd, child_fd;

	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	reason = protect_first(&fd, UFFD_FEATURE_EVENT_FORK);
	if (reason)
		SKIP(return, "%s", reason);
	child_fd = cow_uffd_fork(&child, first_is_protected_too, NULL, fd);
	ASSERT_LE(0, child_fd);
	ASSERT_EQ(1, cow_child_recv(&child));
	EXPECT_TRUE(first_is_protected());
	EXPECT_EQ(0, cow_child_end(&child));
	close(child_fd);
	close(fd);
}

static int keeps_all(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_stay(self))
		return 1;
	return page_is(0, OLD) && page_is(1, OLD) && page_is(2, OLD) ? 0 : 2;
}

/* What page 0 has once 'w' was written to its first byte, and the CPU may not write */
static void expect_written(struct __test_metadata *_metadata, int fd)
{
	EXPECT_EQ('w', cow_peek(area));
	EXPECT_EQ(-1, cow_check(area + sizeof(__u64), ps - sizeof(__u64), OLD));
	EXPECT_TRUE(page_is(1, OLD));
	/* As the kernel would write what it reads from a file */
	EXPECT_EQ(-1, pread(fd, area, 1, 0));
	EXPECT_EQ(EFAULT, errno);
}

/* A debugger writes to what is read-only, and what others have, too. */
TEST_F_TIMEOUT(hugetlb, written_by_force, TEST_TIMEOUT)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	ssize_t ret;

	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	ASSERT_LE(0, fd);
	share_with(_metadata, keeps_all);
	ASSERT_EQ(0, mprotect(area, NR * huge, PROT_READ));
	ret = cow_write_by_force(area);
	if (ret < 0) {
		cow_child_end(&child);
		SKIP(return, COW_NO_FORCE, strerror(-ret));
	}
	expect_written(_metadata, fd);
	expect_free(_metadata, POOL - NR - 1, "after the copy");
	EXPECT_EQ(0, cow_child_end(&child));

	/* Shared once more, and by nobody now: the copy itself is written. */
	ASSERT_EQ(0, cow_child_idle(&child));
	ASSERT_EQ(0, cow_child_end(&child));
	ASSERT_EQ(1, cow_write_by_force(area));
	expect_written(_metadata, fd);
	expect_free(_metadata, POOL - NR, "after the second write");
	close(fd);
}

/* A mapping of its own: private ones of hugetlb pages do not merge. */
static char *map_pages_at(char *at, int nr)
{
	void *p = mmap(at, nr * huge, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED, -1, 0);

	return p == at ? at : NULL;
}

/* No CPU has a translation of pages that have moved away, and the counts stay. */
TEST_F_TIMEOUT(hugetlb, moved, TEST_TIMEOUT)
{
	int fd = memfd_create("cow_hugetlb", MFD_CLOEXEC);
	char *at = cow_map((NR + 1) * huge, huge), *to = cow_map(NR * huge, huge);

	ASSERT_LE(0, fd);
	ASSERT_NE(NULL, at);
	ASSERT_NE(NULL, to);
	/* The first one stays: where a page table is freed, all is flushed for that. */
	ASSERT_EQ(at, map_pages_at(at, 1));
	fill_pages(at, 1);
	at += huge;
	ASSERT_EQ(at, map_pages_at(at, NR));
	/* The last one of those that move is only reserved. */
	fill_pages(at, NR - 1);
	ASSERT_EQ(1, pool("HugePages_Rsvd"));
	cow_touch(at, 'm');
	/* By the kernel: QEMU's TLB for its accesses is not that for ours. */
	ASSERT_EQ(1, pwrite(fd, at, 1, 0));
	ASSERT_EQ(1, pwrite(fd, at + huge, 1, 0));
	ASSERT_EQ(to, mremap(at, NR * huge, NR * huge, MREMAP_MAYMOVE | MREMAP_FIXED, to));
	EXPECT_EQ(-1, pwrite(fd, at, 1, 0));
	EXPECT_EQ(-1, pwrite(fd, at + huge, 1, 0));
	EXPECT_EQ('m', cow_peek(to));
	EXPECT_EQ(1, pool("HugePages_Rsvd"));
	EXPECT_EQ(POOL - NR, pool("HugePages_Free"));
	cow_touch(to + (NR - 1) * huge, 'w');
	expect_free(_metadata, POOL - NR - 1, "without the reserve");
	ASSERT_EQ(0, munmap(to, NR * huge));
	expect_free(_metadata, POOL - 1, "without what has moved");
	ASSERT_EQ(0, munmap(at - huge, huge));
	expect_free(_metadata, POOL, "after munmap");
	close(fd);
}

/* A scan protects again what it reports, also from a CPU that has just written to it. */
TEST_F_TIMEOUT(hugetlb, uffd_scanned, TEST_TIMEOUT)
{
	const int nr = NR * huge / ps, each = huge / ps;
	unsigned char *times = cow_map(nr, 0);
	const struct cow_scan all = {};
	int fd, i, round;

	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	ASSERT_NE(NULL, times);
	if (cow_uffd_wp(&fd, area, NR * huge, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	ASSERT_EQ(0, cow_uffd_protect(fd, area, NR * huge, true));
	for (round = 0; round < ROUNDS; round++) {
		cow_touch(area + huge, round);
		memset(times, 0, nr);
		ASSERT_EQ(0, cow_scan_written(area, nr, &all, times));
		for (i = 0; i < nr; i++)
			ASSERT_EQ(i / each == 1, times[i])
				TH_LOG("page %d, round %d", i, round);
	}
	close(fd);
}

#define POISONED	1

/* Neither the poisoned page nor an empty one in its place */
static bool meets_poison(__u64 tag)
{
	int i;

	if (!cow_raises_sigbus(area + POISONED * huge, false))
		return false;
	for (i = 0; i < NR; i++) {
		if (i == POISONED)
			continue;
		if (!page_is(i, OLD))
			return false;
		write_page(i, tag);
		if (!page_is(i, tag))
			return false;
	}
	return cow_raises_sigbus(area + POISONED * huge, true);
}

static int inherits_poison(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 1;
	return meets_poison(BY_CHILD) ? 0 : 2;
}

static void on_sigbus(int sig)
{
	(void)sig;
}

/* Whoever injects the error gets a SIGBUS for it, too, when the system call ends. */
static int poison(char *p)
{
	struct sigaction before, action = { .sa_handler = on_sigbus };
	int ret;

	sigaction(SIGBUS, &action, &before);
	ret = madvise(p, ps, MADV_HWPOISON) ? errno : 0;
	sigaction(SIGBUS, &before, NULL);
	return ret;
}

static void test_poison(struct __test_metadata *_metadata, bool before_fork)
{
	int ret;

	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	/* Not when it is poisoned, but at an access */
	prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0);
	if (!before_fork)
		share_with(_metadata, inherits_poison);
	ret = poison(area + POISONED * huge);
	if (ret && !before_fork)
		cow_child_end(&child);
	if (ret)
		SKIP(return, "MADV_HWPOISON: %s", strerror(ret));
	if (before_fork)
		share_with(_metadata, inherits_poison);
	EXPECT_TRUE(meets_poison(BY_PARENT));
	ASSERT_EQ(0, cow_child_send(&child, 1));
	EXPECT_EQ(0, cow_child_wait(&child));
	ASSERT_EQ(0, munmap(area, NR * huge));
}

TEST_F_TIMEOUT(hugetlb, poisoned, TEST_TIMEOUT)
{
	test_poison(_metadata, false);
}

TEST_F_TIMEOUT(hugetlb, poisoned_before_fork, TEST_TIMEOUT)
{
	test_poison(_metadata, true);
}

/* What is written to a private mapping of a file does not get to the file. */
TEST_F_TIMEOUT(hugetlb, private_file, TEST_TIMEOUT)
{
	const size_t len = 2 * huge;
	int fd = memfd_create("cow_hugetlb", MFD_CLOEXEC | MFD_HUGETLB);

	if (fd < 0)
		SKIP(return, "no memfd of hugetlb pages: %s", strerror(errno));
	ASSERT_EQ(0, ftruncate(fd, len));
	ASSERT_TRUE(map_file(fd, MAP_SHARED));
	fill_pages(area, 2);
	/* Nobody else maps it. */
	ASSERT_TRUE(map_file(fd, MAP_PRIVATE));
	ASSERT_TRUE(page_is(0, OLD));
	write_page(0, BY_PARENT);
	write_page(1, BY_PARENT);
	EXPECT_TRUE(page_is(0, BY_PARENT));
	EXPECT_TRUE(page_is(1, BY_PARENT));
	ASSERT_TRUE(map_file(fd, MAP_SHARED));
	EXPECT_TRUE(page_is(0, OLD));
	EXPECT_TRUE(page_is(1, OLD));
	ASSERT_EQ(0, munmap(area, len));
	close(fd);
}

/* A page that is copied for a pin stays protected. */
TEST_F_TIMEOUT(hugetlb, uffd_of_unshared, TEST_TIMEOUT)
{
	const char *reason;
	int fd, ret;

	area = map_pages(NR);
	ASSERT_NE(NULL, area);
	reason = protect_first(&fd, 0);
	if (reason)
		SKIP(return, "%s", reason);
	share_with(_metadata, nothing_is_protected);
	ret = cow_unshare(area);
	if (ret) {
		cow_child_end(&child);
		SKIP(return, "process_vm_readv: %s", strerror(-ret));
	}
	expect_free(_metadata, POOL - NR - 1, "after the pin");
	EXPECT_TRUE(page_is(0, OLD));
	EXPECT_TRUE(first_is_protected());
	EXPECT_EQ(0, cow_child_end(&child));
	close(fd);
}

TEST_HARNESS_MAIN
