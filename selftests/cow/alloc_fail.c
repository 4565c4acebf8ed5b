// SPDX-License-Identifier: GPL-2.0
/*
 * Fails each allocation of a write fault in turn (/proc/self/fail-nth): the first one of
 * one fault, the second one of the next, until a fault has no more. Without this series a
 * fault has one allocation, or a few. The write must take effect in every case. If the
 * faulting page's own allocation fails, the fault is retried; if one for several pages
 * fails, they are allocated one by one, or the faulting page alone is copied. The child's
 * memory does not change, the counters match, and nothing leaks. Another test fails all
 * allocations of one fault that may not reclaim: those of the pages copied ahead.
 *
 * A fork fails as well, after each number of allocations. The parent's memory, its pins
 * and a device that mirrors it work on as if nothing had happened.
 *
 * Needs CONFIG_FAIL_PAGE_ALLOC, CONFIG_FAILSLAB and
 * CONFIG_FAULT_INJECTION_DEBUG_FS.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "../../../../mm/gup_test.h"

/* No uapi header, but the kernel's: relative, as this file is in its tree. */
#if __has_include("../../../../lib/test_hmm_uapi.h")
#include "../../../../lib/test_hmm_uapi.h"
#define HAVE_TEST_HMM
#endif

#define NR		192	/* pages */
/*
 * The page whose fault is tested: after a long run of written pages, and the first one of
 * a window
 */
#define AT		128
#define WINDOW		COW_ADAPTIVE_MAX
#define TAG		13
#define MAX_FAILURES	100

/* Enough for a leak of one page in each round to show through the noise */
#define ROUNDS		64
#define NOISE		(ROUNDS / 2)
#define MAX_TRIES	20

#define INJECT		"/sys/kernel/debug/fail_page_alloc/"
#define INJECT_SLAB	"/sys/kernel/debug/failslab/"

enum way {
	OFF,		/* nothing is copied ahead */
	PAGES,
	FOLIO,		/* into one folio, if there is one */
	REUSE,		/* nobody else has the pages any more */
};

static size_t ps;
static char *area;
static struct cow_child child;
static int nth_fd = -1;
static __u64 pfn_then[NR], pfn_now[NR];
static struct cow_stats before, after, cost;
static long minflt;
/* Not the n-th allocation of the write, but those that fail_without_reclaim() says */
static bool fail_while_writing;

FIXTURE(alloc_fail)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(alloc_fail)
{
	int ahead;
	enum way way;
	bool policy;		/* a memory policy: no bulk allocation */
	int least;		/* the fewest allocations that a fault may have */
};

FIXTURE_VARIANT_ADD(alloc_fail, plain) {
	.ahead = COW_PLAIN, .way = OFF, .least = 1,
};

FIXTURE_VARIANT_ADD(alloc_fail, ahead_15) {
	.ahead = WINDOW, .way = PAGES, .least = 1,
};

FIXTURE_VARIANT_ADD(alloc_fail, ahead_15_policy) {
	.ahead = WINDOW, .way = PAGES, .policy = true, .least = 1 + WINDOW,
};

FIXTURE_VARIANT_ADD(alloc_fail, adaptive) {
	.ahead = COW_ADAPTIVE, .way = PAGES, .least = 1,
};

FIXTURE_VARIANT_ADD(alloc_fail, adaptive_policy) {
	.ahead = COW_ADAPTIVE, .way = PAGES, .policy = true,
	.least = 1 + WINDOW,
};

FIXTURE_VARIANT_ADD(alloc_fail, folios) {
	.ahead = COW_ADAPTIVE, .way = FOLIO, .least = 1,
};

FIXTURE_VARIANT_ADD(alloc_fail, reuse) {
	.ahead = COW_ADAPTIVE, .way = REUSE, .least = 0,
};

/* Any allocation may fail, whatever its GFP flags; no stack dumps. */
static const char *allow_failures(struct cow_undo *undo)
{
	static const struct {
		const char *path;
		const char *value;
	} settings[] = {
		{ INJECT "min-order", "0" },
		{ INJECT "ignore-gfp-wait", "N" },
		{ INJECT "ignore-gfp-highmem", "N" },
		{ INJECT "verbose", "0" },
		{ INJECT_SLAB "ignore-gfp-wait", "N" },
		{ INJECT_SLAB "verbose", "0" },
	};
	size_t i;

	nth_fd = open("/proc/self/fail-nth", O_RDWR | O_CLOEXEC);
	if (nth_fd < 0 && errno == ENOENT)
		return "kernel without CONFIG_FAULT_INJECTION";
	if (nth_fd < 0)
		return "making allocations fail " COW_NEEDS;
	if (!cow_may_change())
		return "making allocations fail " COW_NEEDS;
	for (i = 0; i < ARRAY_SIZE(settings); i++) {
		if (access(settings[i].path, F_OK))
			return "no fail_page_alloc and failslab in debugfs";
		if (!cow_tweak(undo, settings[i].path, settings[i].value))
			return "making allocations fail " COW_NEEDS;
	}
	return NULL;
}

/* With MPOL_INTERLEAVE pages are allocated one by one. */
static const char *set_policy(void)
{
	unsigned long nodes = 1;

	if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &nodes,
		    8 * sizeof(nodes)))
		return "kernel without memory policies";
	return NULL;
}

FIXTURE_SETUP(alloc_fail)
{
	const char *reason;

	reason = cow_setup(&self->saved, variant->ahead,
			   COW_WANT_STATS | COW_ANY_KERNEL);
	if (!reason && !cow_pfn_visible())
		reason = "reading frame numbers needs root";
	if (!reason)
		reason = allow_failures(&self->undo);
	if (!reason && variant->way == FOLIO)
		reason = cow_allow_folios(&self->undo);
	if (!reason && variant->policy)
		reason = set_policy();
	if (reason) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
	ps = cow_page_size();
	ASSERT_EQ(0, cow_pin_cpu());
}

FIXTURE_TEARDOWN_PARENT(alloc_fail)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* Waits for the parent, then checks that its memory has not changed. */
static int keeps(struct cow_child *self, void *arg)
{
	(void)arg;
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 1;
	return cow_check(area, NR * ps, TAG) == -1 ? 0 : 2;
}

/* The n-th allocation from now on fails; 0: none */
static int fail_nth(int n)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%d", n);

	return pwrite(nth_fd, text, len, 0) == len ? 0 : -errno;
}

/* Has it failed? The kernel counts down to 0. */
static int has_failed(void)
{
	char text[16] = "";
	ssize_t len;

	len = pread(nth_fd, text, sizeof(text) - 1, 0);
	return len > 0 ? atoi(text) == 0 : -EIO;
}

/* Pages 0 to AT - 1 written, those behind them shared with a child, or not */
static void share(struct __test_metadata *_metadata, enum way way)
{
	int i;

	area = cow_map(NR * ps, cow_pmd_size());
	ASSERT_NE(NULL, area);
	/* Small pages to begin with */
	cow_fill(area, NR * ps, TAG);
	if (way == FOLIO)
		ASSERT_EQ(0, madvise(area, NR * ps, MADV_HUGEPAGE));
	ASSERT_EQ(0, cow_child_fork(&child, keeps, NULL));
	ASSERT_EQ(1, cow_child_recv(&child));
	ASSERT_EQ(0, cow_child_settle(&child));
	if (way == REUSE)
		ASSERT_EQ(0, cow_child_end(&child));
	for (i = 0; i < AT; i++)
		cow_touch(area + i * ps, 'w');
}

static void unshare_page(struct __test_metadata *_metadata, enum way way)
{
	if (way != REUSE)
		EXPECT_EQ(0, cow_child_end(&child));
	cow_unmap(area, NR * ps);
}

/* Write to page AT while the n-th allocation fails. Return: there was an n-th */
static int write_page(struct __test_metadata *_metadata, int n)
{
	int failed;

	/* The first calls unshare the pages that they write to themselves. */
	memset(pfn_now, 0, sizeof(pfn_now));
	ASSERT_EQ(0, cow_pfns(area, NR, pfn_then));
	ASSERT_EQ(0, cow_count_own(&after));
	ASSERT_EQ(0, cow_count_own(&before));
	ASSERT_EQ(0, fail_nth(0));
	ASSERT_NE(-EIO, has_failed());
	minflt = cow_minflt();
	minflt = cow_minflt();
	if (fail_while_writing)
		ASSERT_EQ(0, cow_write_file("/proc/self/make-it-fail", "1"));
	ASSERT_EQ(0, fail_nth(n));
	cow_touch(area + AT * ps, 'w');
	failed = has_failed();
	if (fail_while_writing)
		ASSERT_EQ(0, cow_write_file("/proc/self/make-it-fail", "0"));
	ASSERT_EQ(0, fail_nth(0));
	minflt = cow_minflt() - minflt;
	ASSERT_EQ(0, cow_count_own(&after));
	cow_stats_delta(&cost, &before, &after);
	ASSERT_EQ(0, cow_pfns(area, NR, pfn_now));
	return failed;
}

/* Written pages begin with 'w'; nothing else has changed. */
static void check_content(struct __test_metadata *_metadata)
{
	const size_t word = sizeof(__u64);
	int i;

	for (i = 0; i <= AT; i++) {
		EXPECT_EQ('w', area[i * ps]);
		EXPECT_EQ(-1, cow_check(area + i * ps + word, ps - word, TAG))
			TH_LOG("page %d", i);
	}
	EXPECT_EQ(-1, cow_check(area + i * ps, (NR - i) * ps, TAG));
	EXPECT_EQ((long)(NR * ps / 1024), cow_smaps_kb(area, "Rss"));
	EXPECT_EQ((long)(NR * ps / 1024), cow_smaps_kb(area, "Anonymous"));
}

/*
 * Count the pages, other than page AT, that have another page frame than before. With our
 * series they must be a run behind AT. Any other kernel may copy other pages, too, but
 * not those before AT, which nobody shares.
 */
static int count_moved(struct __test_metadata *_metadata)
{
	int i, moved = 0;

	for (i = 0; i < NR; i++)
		moved += i != AT && pfn_now[i] != pfn_then[i];
	if (!cow_counting()) {
		for (i = 0; i < AT; i++)
			EXPECT_EQ(pfn_then[i], pfn_now[i])
				TH_LOG("page %d", i);
		return moved;
	}
	for (i = AT + 1; i <= AT + moved && i < NR; i++)
		EXPECT_NE(pfn_then[i], pfn_now[i])
			TH_LOG("page %d", i);
	return moved;
}

/* The counters match what happened. */
static void check_counts(struct __test_metadata *_metadata, enum way way,
			 int moved)
{
	const bool reuse = way == REUSE;
	const int wanted = way == PAGES || way == FOLIO ? WINDOW : 0;

	EXPECT_EQ(1, minflt);
	if (!cow_counting())
		return;
	EXPECT_EQ(!reuse, cost.v[COW_FAULTS]);
	EXPECT_EQ(reuse, cost.v[COW_REUSED]);
	EXPECT_EQ(reuse ? COW_BLOCK - 1 : 0, cost.v[COW_REUSE_AHEAD]);
	EXPECT_EQ(moved, (int)cost.v[COW_SUCCESS]);
	/* All pages are copied ahead, or none. */
	if (moved)
		EXPECT_EQ(wanted, moved);
	EXPECT_EQ(wanted - moved, (int)cost.v[COW_SKIP_NOMEM]);
	EXPECT_EQ(cost.v[COW_SKIP_NOMEM], cost.skips);
	EXPECT_TRUE(cow_stats_balanced(&cost));
}

/* One fault with all checks. Return: as write_page() */
static int one_fault(struct __test_metadata *_metadata, enum way way, int n)
{
	int failed;

	share(_metadata, way);
	failed = write_page(_metadata, n);
	check_content(_metadata);
	check_counts(_metadata, way, count_moved(_metadata));
	unshare_page(_metadata, way);
	return failed;
}

TEST_F_TIMEOUT(alloc_fail, each_once, TEST_TIMEOUT)
{
	int n;

	for (n = 1; n < MAX_FAILURES; n++) {
		if (!one_fault(_metadata, variant->way, n))
			break;
		ASSERT_TRUE(_metadata->exit_code == KSFT_PASS)
			TH_LOG("when allocation %d failed", n);
	}
	TH_LOG("%d allocations", n - 1);
	EXPECT_GT(MAX_FAILURES, n);
	EXPECT_LE(variant->least, n - 1);
}

/* Of one task, each allocation that may not reclaim memory fails, and no other one. */
static void fail_without_reclaim(struct __test_metadata *_metadata, struct cow_undo *undo)
{
	ASSERT_TRUE(cow_tweak(undo, INJECT "ignore-gfp-wait", "Y"));
	ASSERT_TRUE(cow_tweak(undo, INJECT "task-filter", "Y"));
	ASSERT_TRUE(cow_tweak(undo, INJECT "times", "-1"));
	ASSERT_TRUE(cow_tweak(undo, INJECT "probability", "100"));
}

/*
 * What is copied ahead is allocated without reclaim, by whatever path, so that all of it
 * fails; the faulting page is copied.
 */
TEST_F_TIMEOUT(alloc_fail, all_without_reclaim, TEST_TIMEOUT)
{
	share(_metadata, variant->way);
	fail_without_reclaim(_metadata, &self->undo);
	fail_while_writing = true;
	write_page(_metadata, 0);
	check_content(_metadata);
	if (cow_counting())
		EXPECT_EQ(0, count_moved(_metadata));
	check_counts(_metadata, variant->way, 0);
	unshare_page(_metadata, variant->way);
}

/*
 * Pages in the CPUs' own lists. How long these may become the kernel adapts to
 * what is allocated and freed: hundreds of pages, within these rounds.
 */
static long pages_of_cpus(struct __test_metadata *_metadata)
{
	FILE *file = fopen("/proc/zoneinfo", "r");
	long sum = 0, count;
	char line[256];

	ASSERT_NE(NULL, file);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, " count: %ld", &count) == 1)
			sum += count;
	fclose(file);
	return sum;
}

/*
 * Slab counts as free: KASAN holds what was freed there back, up to thousands of
 * pages, and a copy is never in there.
 */
static long free_pages(struct __test_metadata *_metadata)
{
	long kb;

	cow_drain_lru();
	cow_write_file("/proc/sys/vm/stat_refresh", "1");
	kb = cow_file_key("/proc/meminfo", "MemFree") + cow_file_key("/proc/meminfo", "Slab");
	return kb * 1024 / (long)ps + pages_of_cpus(_metadata);
}

/* Memory that is gone after many faults whose n-th allocation failed, in pages */
static long lost_pages(struct __test_metadata *_metadata, enum way way, int n)
{
	long lost = free_pages(_metadata);
	int i;

	for (i = 0; i < ROUNDS; i++) {
		share(_metadata, way);
		write_page(_metadata, n);
		unshare_page(_metadata, way);
	}
	return lost - free_pages(_metadata);
}

/* What the rest of the system takes meanwhile differs; a leak is there each time. */
static long least_lost(struct __test_metadata *_metadata, enum way way, int n)
{
	long least = LONG_MAX;
	int i;

	for (i = 0; i < MAX_TRIES && least > NOISE; i++) {
		long lost = lost_pages(_metadata, way, n);

		if (lost < least)
			least = lost;
	}
	return least;
}

TEST_F_TIMEOUT(alloc_fail, nothing_leaks, TEST_TIMEOUT)
{
	long lost;
	int n;

	if (access("/proc/zoneinfo", R_OK))
		SKIP(return, "kernel without VM event counters");
	for (n = 1; n < MAX_FAILURES; n++) {
		/* The first one fills caches. */
		share(_metadata, variant->way);
		if (!write_page(_metadata, n))
			break;
		unshare_page(_metadata, variant->way);
		lost = least_lost(_metadata, variant->way, n);
		EXPECT_LE(lost, NOISE)
			TH_LOG("%ld pages lost in %d rounds, when allocation %d fails",
			       lost, ROUNDS, n);
	}
	unshare_page(_metadata, variant->way);
}

/*
 * A fork that fails
 */

/* A few page tables, each with a few pages */
#define TABLES		4
#define PAGES		2
#define PINNED		1	/* the first pages of one of them */
#define MAX_OF_FORK	3000
/* A round takes milliseconds, or seconds in an emulator with KCSAN. */
#define ROUND_SECONDS	120

FIXTURE(fork_fail)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(fork_fail)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(fork_fail, plain) { .ahead = COW_PLAIN };

FIXTURE_SETUP(fork_fail)
{
	const char *reason;

	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (!reason)
		reason = allow_failures(&self->undo);
	if (reason) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
	ps = cow_page_size();
	ASSERT_EQ(0, cow_pin_cpu());
}

FIXTURE_TEARDOWN_PARENT(fork_fail)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* What the process that forks says after each fork, and when it ends */
enum round {
	FORK_FAILED = 1,
	FORK_WORKED,		/* though an allocation failed */
	NO_MORE_FAILURES,
	NO_SETUP,
	NO_REASON,		/* a fork failed, but no allocation */
	HEIR_IS_WRONG,
	CONTENT_IS_WRONG,
	PIN_IS_WRONG,
	DEVICE_IS_WRONG,
	RSS_IS_WRONG,
	UFFD_IS_WRONG,
	COMMITTED_IS_WRONG,
};

/* Of the process that forks; -1 if the kernel has no such device, or no userfaultfd */
static int gup_fd, mirror_fd, uffd;
/* The page that userfaultfd watches */
static char *watched;
/* What the device and the pin read */
static char *got;

static char *table(int i)
{
	return area + i * cow_pmd_size();
}

static void fill_tables(__u64 tag)
{
	int i;

	for (i = 0; i < TABLES; i++)
		cow_fill(table(i), PAGES * ps, tag);
}

static bool tables_have(__u64 tag)
{
	int i;

	for (i = 0; i < TABLES; i++)
		if (cow_check(table(i), PAGES * ps, tag) != -1)
			return false;
	return true;
}

static bool pin_works(void)
{
	__u64 addr = (uintptr_t)got;

	return gup_fd < 0 || (!ioctl(gup_fd, PIN_LONGTERM_TEST_READ, &addr) &&
			      !memcmp(got, table(1), PINNED * ps));
}

#ifdef HAVE_TEST_HMM
static bool device_works(void)
{
	int i;

	for (i = 0; mirror_fd >= 0 && i < TABLES; i++) {
		struct hmm_dmirror_cmd cmd = {
			.addr = (uintptr_t)table(i),
			.ptr = (uintptr_t)got,
			.npages = PAGES,
		};

		while (ioctl(mirror_fd, HMM_DMIRROR_READ, &cmd))
			if (errno != EINTR && errno != EBUSY)
				return false;
		if (memcmp(got, table(i), PAGES * ps))
			return false;
	}
	return true;
}
#else
static bool device_works(void)
{
	return true;
}
#endif

/*
 * If it is never told that a notifier range has ended, a device waits for that for ever,
 * and so does its process, even if it is killed. Nobody may wait for its output then.
 */
static void leave_output(const struct cow_child *self)
{
	int fd;

	for (fd = 3; fd < 256; fd++)
		if (fd != self->in && fd != self->out)
			close(fd);
	fd = open("/dev/null", O_RDWR);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
}

/*
 * What a fork commits for its child, it gives back if it fails: this mapping, which has no
 * pages, is so large that nothing else is likely to commit as much meanwhile. It is the first
 * one, so that each fork gets as far as that.
 */
#define COMMITTED	(256L << 20)

static bool map_committed(void)
{
	return mmap((void *)(1UL << 20), COMMITTED, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

static long committed_kb(void)
{
	return cow_file_key("/proc/meminfo", "Committed_AS");
}

/* A fork waits until its child's userfaultfd is taken. */
static void *take_events(void *arg)
{
	struct pollfd event = { .fd = uffd, .events = POLLIN };
	struct uffd_msg msg;

	while (poll(&event, 1, -1) == 1)
		if (read(uffd, &msg, sizeof(msg)) == sizeof(msg) &&
		    msg.event == UFFD_EVENT_FORK)
			close(msg.arg.fork.ufd);
	return arg;
}

static bool watch_page(void)
{
	pthread_t thread;

	watched = cow_map(ps, 0);
	if (!watched)
		return false;
	if (cow_uffd_wp(&uffd, watched, ps, UFFD_FEATURE_EVENT_FORK)) {
		uffd = -1;
		return true;
	}
	return !pthread_create(&thread, NULL, take_events, NULL);
}

/* Each fork keeps userfaultfd from changing anything until it is over. */
static bool uffd_works(void)
{
	return uffd < 0 || (!cow_uffd_protect(uffd, watched, ps, true) &&
			    !cow_uffd_protect(uffd, watched, ps, false));
}

static bool prepare_forks(void)
{
	struct pin_longterm_test pin = {
		.size = PINNED * ps,
		.flags = PIN_LONGTERM_TEST_FLAG_USE_WRITE,
	};

	nth_fd = open("/proc/self/fail-nth", O_RDWR | O_CLOEXEC);
	area = cow_map(TABLES * cow_pmd_size(), cow_pmd_size());
	got = mmap(NULL, PAGES * ps, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (nth_fd < 0 || !area || got == MAP_FAILED || !map_committed() || !watch_page())
		return false;
	fill_tables(TAG);
	gup_fd = open("/sys/kernel/debug/gup_test", O_RDWR | O_CLOEXEC);
	mirror_fd = open("/dev/hmm_dmirror0", O_RDWR | O_CLOEXEC);
	pin.addr = (uintptr_t)table(1);
	return gup_fd < 0 || !ioctl(gup_fd, PIN_LONGTERM_TEST_START, &pin);
}

/* While the n-th allocation fails. The child looks at its memory. */
static enum round fork_once(int n, __u64 tag)
{
	int status = 0;
	bool failed;
	pid_t pid;

	fail_nth(n);
	pid = fork();
	if (!pid)
		_exit(!tables_have(tag));
	failed = has_failed();
	fail_nth(0);
	if (pid < 0)
		return failed ? FORK_FAILED : NO_REASON;
	if (waitpid(pid, &status, 0) != pid || status)
		return HEIR_IS_WRONG;
	return failed ? FORK_WORKED : NO_MORE_FAILURES;
}

/* Nothing is lost, and it may be written to: pins and devices see that. */
static enum round one_fork(int n)
{
	enum round ret = fork_once(n, TAG + n - 1);

	if (ret > NO_MORE_FAILURES)
		return ret;
	if (!tables_have(TAG + n - 1))
		return CONTENT_IS_WRONG;
	fill_tables(TAG + n);
	if (!pin_works())
		return PIN_IS_WRONG;
	if (!device_works())
		return DEVICE_IS_WRONG;
	if (!uffd_works())
		return UFFD_IS_WRONG;
	return ret;
}

static int forks(struct cow_child *self, void *arg)
{
	enum round ret = FORK_FAILED;
	long committed;
	int n;

	(void)arg;
	leave_output(self);
	if (!prepare_forks())
		ret = NO_SETUP;
	committed = committed_kb();
	for (n = 1; n < MAX_OF_FORK && ret < NO_MORE_FAILURES; n++) {
		ret = one_fork(n);
		if (ret < NO_MORE_FAILURES && cow_child_send(self, ret))
			return 1;
	}
	if (ret == NO_MORE_FAILURES &&
	    cow_smaps_kb(area, "Rss") != TABLES * PAGES * (long)ps / 1024)
		ret = RSS_IS_WRONG;
	if (ret == NO_MORE_FAILURES &&
	    labs(committed_kb() - committed) >= COMMITTED / 1024 / 2)
		ret = COMMITTED_IS_WRONG;
	cow_child_send(self, ret);
	return 0;
}

static int result_of_round(struct cow_child *c)
{
	struct pollfd pipe = { .fd = c->in, .events = POLLIN };

	if (poll(&pipe, 1, ROUND_SECONDS * 1000) == 0)
		return -ETIMEDOUT;
	return cow_child_recv(c);
}

TEST_F_TIMEOUT(fork_fail, fork_each_once, TEST_TIMEOUT)
{
	int n = 0, failed = 0, ret;
	struct cow_child c;

	ASSERT_EQ(0, cow_child_fork(&c, forks, NULL));
	do {
		ret = result_of_round(&c);
		failed += ret == FORK_FAILED;
		n++;
	} while (ret == FORK_FAILED || ret == FORK_WORKED);
	/* Not waited for: it may be beyond killing. */
	ASSERT_EQ(NO_MORE_FAILURES, ret)
		TH_LOG("when allocation %d failed", n);
	TH_LOG("%d allocations", n - 1);
	if (access("/sys/kernel/debug/gup_test", F_OK) || access("/dev/hmm_dmirror0", F_OK))
		TH_LOG("without a pin, or without a device that mirrors the memory");
	EXPECT_EQ(0, cow_child_wait(&c));
	/* The child's page tables are some of them. */
	EXPECT_LE(TABLES, failed);
}

TEST_HARNESS_MAIN
