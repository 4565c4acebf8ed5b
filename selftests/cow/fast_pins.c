// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that GUP-fast pins, without mmap_lock and without a page fault, as O_DIRECT,
 * io_uring and vfio do; and a fork.
 *
 * fork() must see the pin, and copy the page for the child at once: were it shared, then
 * the parent's next write would go to a copy, and the device would go on with the old
 * page. For the same reason a pin for a long time, even for reading, gets a page of its
 * own where there is the zero page, or one of a file or of KSM. The mm's MMF_HAS_PINNED, set
 * by the first pin, is never cleared, so each test is a process of its own, all of whose pins
 * are fast. True on any kernel.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "../../../../mm/gup_test.h"

#define GUP_TEST	"/sys/kernel/debug/gup_test"
#define NR		32	/* pages */
#define FIRST_PINNED	10
#define NR_PINNED	8
#define OLD		41	/* tags of the content */
#define NEW		42
#define FORKS		40	/* while another thread pins a page */
#define WRITES		8	/* to it, each time */

#define FOR_READING	0
#define FOR_WRITING	PIN_LONGTERM_TEST_FLAG_USE_WRITE

static size_t ps;
static int gup_fd;

FIXTURE(fast_pins)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(fast_pins)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(fast_pins, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(fast_pins, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(fast_pins)
{
	const char *reason;

	ps = cow_page_size();
	gup_fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (gup_fd < 0)
		SKIP(return, "no " GUP_TEST ": %s", strerror(errno));
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
}

FIXTURE_TEARDOWN_PARENT(fast_pins)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

static int pin(char *p, int nr, __u32 flags)
{
	struct pin_longterm_test args = {
		.addr = (uintptr_t)p,
		.size = nr * ps,
		.flags = flags | PIN_LONGTERM_TEST_FLAG_USE_FAST,
	};

	return ioctl(gup_fd, PIN_LONGTERM_TEST_START, &args) ? -errno : 0;
}

static int unpin(void)
{
	return ioctl(gup_fd, PIN_LONGTERM_TEST_STOP) ? -errno : 0;
}

/* What a device reads from the pinned pages */
static int read_pinned(char *buf)
{
	__u64 addr = (uintptr_t)buf;

	return ioctl(gup_fd, PIN_LONGTERM_TEST_READ, &addr) ? -errno : 0;
}

static int keeps(struct cow_child *self, void *arg)
{
	/* On 6.12 the pin is one of all who have the file open. */
	close(gup_fd);
	if (cow_child_stay(self))
		return 1;
	return cow_check(arg, NR * ps, OLD) == -1 ? 0 : 2;
}

/* Through the pin and through the page table there is the same content. */
static void expect_same(struct __test_metadata *_metadata, const char *p, char *buf)
{
	int i;

	ASSERT_EQ(0, read_pinned(buf));
	for (i = 0; i < NR_PINNED; i++)
		ASSERT_EQ(0, memcmp(p + (FIRST_PINNED + i) * ps, buf + i * ps, ps))
			TH_LOG("the device does not see what was written to page %d",
			       FIRST_PINNED + i);
}

/* All NR pages at p are there, and writable: the pin takes no fault. */
static void pin_and_fork(struct __test_metadata *_metadata, char *p, __u32 flags)
{
	char *buf = cow_map(NR_PINNED * ps, 0);
	struct cow_child child;

	ASSERT_NE(NULL, buf);
	cow_fill(buf, NR_PINNED * ps, OLD);
	ASSERT_EQ(0, pin(p + FIRST_PINNED * ps, NR_PINNED, flags));
	ASSERT_EQ(0, cow_child_fork(&child, keeps, p));
	ASSERT_EQ(1, cow_child_recv(&child));
	cow_fill(p, NR * ps, NEW);
	expect_same(_metadata, p, buf);
	EXPECT_EQ(0, cow_child_end(&child));
	cow_fill(p, NR * ps, NEW + 1);
	expect_same(_metadata, p, buf);
	ASSERT_EQ(0, unpin());
}

static char *map_small(void)
{
	char *p = cow_map(NR * ps, 0);

	if (p)
		cow_fill(p, NR * ps, OLD);
	return p;
}

TEST_F_TIMEOUT(fast_pins, before_fork, TEST_TIMEOUT)
{
	char *p = map_small();

	ASSERT_NE(NULL, p);
	pin_and_fork(_metadata, p, FOR_WRITING);
}

/* A device that only reads must see later writes as well. */
TEST_F_TIMEOUT(fast_pins, for_reading_before_fork, TEST_TIMEOUT)
{
	char *p = map_small();

	ASSERT_NE(NULL, p);
	pin_and_fork(_metadata, p, FOR_READING);
}

/* Pages of a huge page that one PMD maps */
TEST_F_TIMEOUT(fast_pins, huge_before_fork, TEST_TIMEOUT)
{
	const char *reason;
	char *p;

	reason = cow_map_huge(&self->undo, &p, cow_pmd_size(), OLD);
	if (reason)
		SKIP(return, "%s", reason);
	pin_and_fork(_metadata, p, FOR_WRITING);
}

/* The child gets a copy at once, which goes with it. */
TEST_F_TIMEOUT(fast_pins, hugetlb_before_fork, TEST_TIMEOUT)
{
	long long free;
	const char *reason;
	size_t len;
	char *p;

	reason = cow_map_hugetlb(&self->undo, &p, &len);
	if (reason)
		SKIP(return, "%s", reason);
	cow_fill(p, NR * ps, OLD);
	free = cow_file_key("/proc/meminfo", "HugePages_Free");
	pin_and_fork(_metadata, p, FOR_WRITING);
	EXPECT_EQ(free, cow_file_key("/proc/meminfo", "HugePages_Free"));
	ASSERT_EQ(0, munmap(p, len));
	EXPECT_EQ(free + 1, cow_file_key("/proc/meminfo", "HugePages_Free"));
}

/*
 * A page that is nobody's own: who pins it for long gets one, also for reading.
 */

static void pin_before_write(struct __test_metadata *_metadata, char *p)
{
	char *buf = cow_map(ps, 0);

	ASSERT_NE(NULL, buf);
	memset(buf, 0, ps);
	cow_peek(p);
	ASSERT_EQ(0, pin(p, 1, FOR_READING));
	cow_fill(p, ps, NEW);
	ASSERT_EQ(0, read_pinned(buf));
	EXPECT_EQ(0, memcmp(p, buf, ps))
		TH_LOG("the device does not see what was written");
	ASSERT_EQ(0, unpin());
}

TEST_F_TIMEOUT(fast_pins, of_zero_page, TEST_TIMEOUT)
{
	char *p = cow_map(ps, 0);

	ASSERT_NE(NULL, p);
	pin_before_write(_metadata, p);
}

TEST_F_TIMEOUT(fast_pins, of_huge_zero_page, TEST_TIMEOUT)
{
	const char *reason;
	char *p;

	reason = cow_map_huge_zero(&self->undo, &p);
	if (reason)
		SKIP(return, "%s", reason);
	pin_before_write(_metadata, p);
}

TEST_F_TIMEOUT(fast_pins, of_private_file, TEST_TIMEOUT)
{
	int fd = memfd_create("cow", MFD_CLOEXEC);
	char byte, *p;

	ASSERT_LE(0, fd);
	ASSERT_EQ(1, pwrite(fd, "f", 1, ps - 1));
	p = mmap(NULL, ps, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	pin_before_write(_metadata, p);
	ASSERT_EQ(1, pread(fd, &byte, 1, ps - 1));
	EXPECT_EQ('f', byte);
	close(fd);
}

/* Its page in the page cache has PG_mappedtodisk, which is PG_anon_exclusive elsewhere. */
TEST_F_TIMEOUT(fast_pins, of_disk, TEST_TIMEOUT)
{
	int fd = open(COW_DISK, O_RDONLY | O_CLOEXEC);
	char *p;

	if (fd == -1)
		SKIP(return, COW_DISK ": %s", strerror(errno));
	p = mmap(NULL, ps, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	cow_peek(p);
	if (!(cow_page_flags(p) & COW_KPF_MAPPEDTODISK))
		SKIP(return, COW_NO_FLAG);
	pin_before_write(_metadata, p);
	close(fd);
}

TEST_F_TIMEOUT(fast_pins, of_ksm, TEST_TIMEOUT)
{
	char *p = cow_map(NR * ps, 0);
	long merged;

	ASSERT_NE(NULL, p);
	memset(p, 'k', NR * ps);
	merged = cow_ksm_merge(&self->undo, p, NR * ps, NR);
	if (merged < NR)
		SKIP(return, "KSM has merged %ld pages", merged);
	pin_before_write(_metadata, p);
	EXPECT_EQ('k', cow_peek(p + ps));
}

/* Small pages that may become a huge page. NULL if there are none */
static char *map_collapsible(size_t len)
{
	char *p = cow_map(len, len);

	/* Else the first write may allocate a huge page. */
	if (!p || madvise(p, len, MADV_NOHUGEPAGE))
		return NULL;
	cow_fill(p, len, OLD);
	return p;
}

/* Pages of which some are pinned do not become a huge page: that would be other memory. */
TEST_F_TIMEOUT(fast_pins, not_collapsed, TEST_TIMEOUT)
{
	size_t len = cow_pmd_size();
	char *p = map_collapsible(len), *buf = cow_map(NR_PINNED * ps, 0);
	int ret;

	ASSERT_NE(NULL, buf);
	cow_fill(buf, NR_PINNED * ps, OLD);
	ret = p ? cow_collapse(p) : errno;
	if (ret)
		SKIP(return, "no MADV_COLLAPSE: %s", strerror(ret));
	p = map_collapsible(len);
	ASSERT_NE(NULL, p);
	/* Before MADV_HUGEPAGE: khugepaged may be fast. */
	ASSERT_EQ(0, pin(p + FIRST_PINNED * ps, NR_PINNED, FOR_WRITING));
	ASSERT_EQ(0, madvise(p, len, MADV_HUGEPAGE));
	EXPECT_EQ(-1, madvise(p, len, MADV_COLLAPSE));
	EXPECT_EQ(EAGAIN, errno);
	cow_fill(p, NR * ps, NEW);
	expect_same(_metadata, p, buf);
	EXPECT_EQ(-1, cow_check(p + NR * ps, len - NR * ps, OLD));
	ASSERT_EQ(0, unpin());
}

/* MADV_FREE lets reclaim drop pages, but not while they are pinned. */
TEST_F_TIMEOUT(fast_pins, lazily_freed, TEST_TIMEOUT)
{
	char *p, *buf = cow_map(NR_PINNED * ps, 0);

	ASSERT_NE(NULL, buf);
	cow_fill(buf, NR_PINNED * ps, OLD);
	ASSERT_EQ(0, cow_pin_cpu());
	p = map_small();
	ASSERT_NE(NULL, p);
	if (madvise(p, NR * ps, MADV_FREE))
		SKIP(return, "MADV_FREE: %s", strerror(errno));
	/* The mark waits in a batch, too. */
	ASSERT_EQ(0, cow_drain_lru());
	ASSERT_EQ(0, pin(p + FIRST_PINNED * ps, NR_PINNED, FOR_WRITING));
	madvise(p, NR * ps, MADV_PAGEOUT);
	if (!cow_is_zero(p, FIRST_PINNED * ps)) {
		unpin();
		SKIP(return, "pages that are not pinned were not dropped either");
	}
	cow_fill(p, NR * ps, NEW);
	expect_same(_metadata, p, buf);
	ASSERT_EQ(0, unpin());
}

/*
 * A fork that has just looked for pins, and is about to write-protect the page: a pin that
 * comes between fails, and waits for mmap_lock. That time is long for the last page of a
 * large folio that PTEs map, as fork() looks once and write-protects all of its pages.
 */

struct pinner {
	char *page;
	char *buf;
	unsigned int rounds;	/* so far */
	bool stop;
	int err;
};

/* 0 if the device sees what is written to the page while it is pinned */
static int pin_and_write(struct pinner *pinner, __u64 value)
{
	__u64 *word = (__u64 *)pinner->page;
	int i, ret = pin(pinner->page, 1, FOR_WRITING);

	/* Until the fork is done with the page */
	for (i = 0; i < WRITES && !ret; i++) {
		__atomic_store_n(word, value + i, __ATOMIC_RELAXED);
		ret = read_pinned(pinner->buf);
		if (!ret && *(__u64 *)pinner->buf != value + i)
			ret = -ESTALE;
	}
	unpin();
	/* Not pinned for about as long, so that the fork finds no pin half of the time */
	for (i = 0; i < WRITES; i++)
		cow_fill(pinner->buf, ps, value);
	return ret;
}

static void *pins_all_the_time(void *arg)
{
	struct pinner *pinner = arg;
	unsigned int round = 0;

	pinner->err = cow_leave_cpu();
	while (!pinner->err && !__atomic_load_n(&pinner->stop, __ATOMIC_RELAXED)) {
		pinner->err = pin_and_write(pinner, (__u64)round * WRITES);
		__atomic_store_n(&pinner->rounds, ++round, __ATOMIC_RELEASE);
	}
	/* Whoever waits for it need not wait any longer. */
	__atomic_store_n(&pinner->rounds, round + 1, __ATOMIC_RELEASE);
	return NULL;
}

static void fork_while_pinning(struct __test_metadata *_metadata, struct pinner *pinner)
{
	pthread_t thread;
	int status;
	pid_t pid;

	pinner->rounds = 0;
	pinner->stop = false;
	ASSERT_EQ(0, pthread_create(&thread, NULL, pins_all_the_time, pinner));
	while (!__atomic_load_n(&pinner->rounds, __ATOMIC_ACQUIRE))
		;
	pid = fork();
	if (!pid)
		_exit(0);
	__atomic_store_n(&pinner->stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	ASSERT_LT(0, pid);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
}

TEST_F_TIMEOUT(fast_pins, while_forking, TEST_TIMEOUT)
{
	size_t len = cow_pmd_size();
	struct pinner pinner = {};
	const char *reason;
	char *p;
	int i;

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	ASSERT_EQ(0, cow_pin_cpu());
	pinner.buf = cow_map(ps, 0);
	ASSERT_NE(NULL, pinner.buf);
	cow_touch(pinner.buf, 0);
	for (i = 0; i < FORKS; i++) {
		/* A new one each time: the fork may leave it shared. */
		reason = cow_map_huge(&self->undo, &p, len, OLD);
		if (reason)
			SKIP(return, "after %d forks: %s", i, reason);
		/* Another mapping begins behind the first page: PTEs map it from now on. */
		ASSERT_EQ(0, mprotect(p, ps, PROT_READ));
		pinner.page = p + len - ps;
		fork_while_pinning(_metadata, &pinner);
		if (pinner.err == -ENOENT)
			SKIP(return, "may use one CPU only");
		ASSERT_EQ(0, pinner.err)
			TH_LOG("fork %d: %s", i, pinner.err == -ESTALE ?
			       "the device has another page" : strerror(-pinner.err));
		cow_unmap(p, len);
	}
}

TEST_HARNESS_MAIN
