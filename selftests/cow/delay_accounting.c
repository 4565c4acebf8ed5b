// SPDX-License-Identifier: GPL-2.0
/*
 * Copies in delay accounting (taskstats, as getdelays shows it: WPCOPY): as many as there
 * were faults that copied, whose time is a part of the time that the writes took. True on
 * any kernel since 5.18 with CONFIG_TASK_DELAY_ACCT. A task is accounted for if
 * kernel.task_delayacct was 1 when it began.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "cowstat_taskstats.h"

#define NR		512	/* pages of each writer */
#define THREADS		3
#define TAG		41
#define STACK_SIZE	(256 << 10)
#define SYSCTL		"/proc/sys/kernel/task_delayacct"

static size_t ps;

FIXTURE(delay_accounting)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(delay_accounting)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(delay_accounting, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(delay_accounting, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(delay_accounting, adaptive) { .ahead = COW_ADAPTIVE };

/*
 * A delay of 0 ns is not counted, and where the scheduler's clock is that of the ticks
 * (User-mode Linux) nearly all of them are. The time for which this process has run is
 * a number of whole ticks then.
 */
static bool clock_is_ticks(void)
{
	const unsigned long long end = cow_now_ns() + 50000000;
	unsigned long long ran;
	FILE *f;
	int ret;

	while (cow_now_ns() < end)
		;
	usleep(1);	/* not running, so that the time is up to date */
	f = fopen("/proc/self/schedstat", "re");
	if (!f)
		return false;
	ret = fscanf(f, "%llu", &ran);
	fclose(f);
	return ret == 1 && ran % 1000000 == 0;
}

FIXTURE_SETUP(delay_accounting)
{
	const char *reason = NULL;
	struct wpcopy wp;
	int ret;

	ps = cow_page_size();
	self->undo.nr = 0;
	if (access(SYSCTL, F_OK))
		reason = "kernel without CONFIG_TASK_DELAY_ACCT";
	else
		reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	if (!cow_tweak(&self->undo, SYSCTL, "1")) {
		cow_restore(&self->saved);
		SKIP(return, "kernel.task_delayacct is 0, setting it to 1 "
		     COW_NEEDS);
	}
	ret = wpcopy_read(getpid(), &wp);
	if (ret) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "no taskstats: %s", strerror(-ret));
	}
	if (clock_is_ticks()) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "the scheduler's clock counts ticks");
	}
}

FIXTURE_TEARDOWN_PARENT(delay_accounting)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* In shared memory */
struct result {
	bool alone;		/* nobody else has the pages any more */
	bool zero;		/* nobody has written to them: the zero page */
	int threads;
	long faults;		/* that the writes took */
	struct wpcopy d;	/* what they added */
	unsigned long long ns;	/* how long it took, for all threads together */
};

struct writer {
	char *area;
	pthread_barrier_t *barrier;
	long faults;
	unsigned long long ns;
};

static void write_pages(struct writer *w)
{
	int i;

	w->ns = cow_now_ns();
	w->faults = cow_minflt();
	for (i = 0; i < NR; i++)
		cow_touch(w->area + i * ps, 'w');
	w->faults = cow_minflt() - w->faults;
	w->ns = cow_now_ns() - w->ns;
}

static void *writer_thread(void *arg)
{
	struct writer *w = arg;

	pthread_barrier_wait(w->barrier);	/* all is shared, and counted */
	pthread_barrier_wait(w->barrier);
	write_pages(w);
	return NULL;
}

/*
 * pthread_join() returns while the thread still ends, and the kernel counts it twice
 * then: as one that has ended, and as one that lives.
 */
static int wait_alone(void)
{
	struct stat st;

	do {
		if (stat("/proc/self/task", &st))
			return -1;
	} while (st.st_nlink > 3 && !sched_yield());	/* ., .. and this thread */
	return 0;
}

/* Began with the sysctl on, and asks for what is counted for all of its threads. */
static int writes(struct cow_child *self, void *arg)
{
	struct result *r = arg;
	pthread_t thread[THREADS];
	struct writer w[THREADS];
	pthread_barrier_t barrier;
	pthread_attr_t attr;
	struct wpcopy before;
	struct cow_child c;
	char *area;
	size_t len;
	int i;

	(void)self;
	/* Without NUMA only the LRU batches of this CPU are drained below. */
	if (cow_pin_cpu())
		return 1;
	len = r->threads * NR * ps;
	area = cow_map(len, 0);
	if (!area)
		return 1;
	for (i = 0; i < r->threads * NR; i++) {
		if (r->zero)
			cow_peek(area + i * ps);
		else
			cow_touch(area + i * ps, TAG);
	}
	pthread_barrier_init(&barrier, NULL, r->threads);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	for (i = 0; i < r->threads; i++) {
		w[i].area = area + i * NR * ps;
		w[i].barrier = &barrier;
		if (i && pthread_create(&thread[i], &attr, writer_thread, &w[i]))
			return 2;
	}
	pthread_barrier_wait(&barrier);
	if (cow_child_idle(&c) || (r->alone && cow_child_end(&c)) ||
	    cow_drain_lru())
		return 3;
	if (cow_unshare_rest(area, len))
		return 4;
	/* The first time it faults for what it needs itself. */
	for (i = 0; i < 2; i++)
		if (wpcopy_read(getpid(), &before))
			return 5;
	pthread_barrier_wait(&barrier);
	write_pages(&w[0]);
	for (i = 0; i < r->threads; i++) {
		if (i)
			pthread_join(thread[i], NULL);
		r->faults += w[i].faults;
		r->ns += w[i].ns;
	}
	/* Of threads that have ended, too */
	if (wait_alone() || wpcopy_read(getpid(), &r->d))
		return 6;
	r->d.count -= before.count;
	r->d.ns -= before.ns;
	return r->alone || !cow_child_end(&c) ? 0 : 7;
}

static struct result *run(struct __test_metadata *_metadata, int threads,
			  bool alone, bool zero)
{
	struct cow_child c;
	struct result *r;

	r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, r);
	r->threads = threads;
	r->alone = alone;
	r->zero = zero;
	ASSERT_EQ(0, cow_child_fork(&c, writes, r));
	ASSERT_EQ(0, cow_child_wait(&c));
	return r;
}

/* A fault for each page, or fewer: a kernel may do more than one in a fault. */
static void expect_faults(struct __test_metadata *_metadata, const struct result *r)
{
	EXPECT_LT(0, r->faults);
	EXPECT_GE(r->threads * NR, r->faults);
}

/* A delay for each fault. Another kernel than ours may count one for each page. */
static void expect_delays(struct __test_metadata *_metadata, const struct result *r,
			  bool ours)
{
	expect_faults(_metadata, r);
	if (ours)
		EXPECT_EQ(r->faults, (long)r->d.count);
	EXPECT_LE(r->faults, (long)r->d.count);
	EXPECT_GE(r->threads * NR, (long)r->d.count);
	EXPECT_GT(r->ns, r->d.ns);
}

/* Pages that are copied ahead are no delays of their own. */
TEST_F_TIMEOUT(delay_accounting, copied, TEST_TIMEOUT)
{
	struct result *r = run(_metadata, 1, false, false);

	expect_delays(_metadata, r, variant->ahead != COW_PLAIN);
	EXPECT_LT(0, (long long)r->d.ns);
}

TEST_F_TIMEOUT(delay_accounting, threads, TEST_TIMEOUT)
{
	struct result *r = run(_metadata, THREADS, false, false);

	expect_delays(_metadata, r, variant->ahead != COW_PLAIN);
	EXPECT_LT(0, (long long)r->d.ns);
}

/* Nobody else has the pages any more: faults that do not copy */
TEST_F_TIMEOUT(delay_accounting, reused, TEST_TIMEOUT)
{
	struct result *r = run(_metadata, 1, true, false);

	expect_faults(_metadata, r);
	EXPECT_EQ(0, (long)r->d.count);
	EXPECT_EQ(0, (long long)r->d.ns);
}

/* The first write to a page that was only read */
TEST_F_TIMEOUT(delay_accounting, zero_page, TEST_TIMEOUT)
{
	struct result *r = run(_metadata, 1, false, true);

	expect_delays(_metadata, r, variant->ahead != COW_PLAIN);
}

TEST_HARNESS_MAIN
