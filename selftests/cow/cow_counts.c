// SPDX-License-Identifier: GPL-2.0
/*
 * The copy-on-write counters are exact.
 *
 * Threads write to fork-shared pages, each page once, so the number of faults is known.
 * /proc/cow_stats and /proc/<pid>/cow_stats must grow by exactly that number: on any CPU,
 * when threads migrate or have exited, and while other threads read or reset the
 * counters. process_counts.c tests fork, exec and exit.
 *
 * A process' own counters must be exact at the first attempt. The system's may be too
 * high, but only if the counters of other processes have grown, too; then the
 * measurement is repeated. Too low is always an error.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_counts.h"

#define HIST_FILE	"/proc/cow_histogram"

#define MAX_THREADS	8
#define READS		10000	/* by all readers together */

/* Counters that only grow, and that the system and the process count alike */
static const enum cow_key summed[] = {
	COW_FAULTS, COW_REUSED, COW_TOTAL_NS, COW_FAULT_TOTAL_NS, COW_ATTEMPTS,
	COW_SUCCESS, COW_REUSE_AHEAD, COW_SKIP_VMA, COW_SKIP_PMD,
	COW_SKIP_NOTPRESENT, COW_SKIP_WRITABLE, COW_SKIP_NOTANON,
	COW_SKIP_EXCLUSIVE, COW_SKIP_RACE, COW_SKIP_NOMEM, COW_SKIP_SPECIAL,
	COW_SKIP_MADVISE, COW_SKIP_UFFD, COW_SKIP_SOFTDIRTY, COW_SKIP_KSM,
	COW_SKIP_PINNED,
};

/* What processes tell each other: no part of what fork() shares */
struct shared {
	int left;			/* readers that have not finished */
	int stop;
	int reached;			/* by who should have been stopped */
};

FIXTURE(cow_counts)
{
	struct cow_settings saved;
	struct shared *sh;
	cpu_set_t cpus;
	size_t ps;
};

FIXTURE_VARIANT(cow_counts)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(cow_counts, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(cow_counts, ahead_15) { .ahead = 15 };

FIXTURE_SETUP(cow_counts)
{
	ASSERT_EQ(sched_getaffinity(0, sizeof(self->cpus), &self->cpus), 0);
	self->ps = cow_page_size();
	self->sh = counts_setup(_metadata, &self->saved, variant->ahead,
				sizeof(*self->sh));
	if (!self->sh)
		return;
}

FIXTURE_TEARDOWN_PARENT(cow_counts)
{
	cow_restore(&self->saved);
}

static bool is_root(void)
{
	return cow_may_change() && !access(COW_SYSCTL_DIR "cow_stats", W_OK);
}

static int reset(void)
{
	return cow_write_file(COW_STATS_FILE, "0\n");
}

/*
 * Threads that take faults
 */

enum kind {
	SHARED,		/* with a child: each page is copied */
	LEFT,		/* the child is gone: each page is reused */
};

struct work;

struct writer {
	struct work *work;
	pthread_t id;
	pid_t tid;
	int nr;
	long minflt;
};

struct work {
	enum kind kind;
	int threads;
	int ahead;
	bool hop;		/* go to another CPU now and then */
	bool reset;		/* before they begin */
	bool switching;		/* vm.cow_stats changes: not all is counted */
	bool disturbed;		/* other processes have counted something, too */
	/* What the main thread does again and again until all is written */
	int (*meanwhile)(struct work *w);
	unsigned long long counter;	/* for its use */
	unsigned long calls;		/* how often it was called */
	int fd;

	cpu_set_t cpus;
	size_t ps;
	char *area;
	pthread_barrier_t barrier;
	int finished;
	struct writer writer[MAX_THREADS];

	/* What the work added; for the system since the reset, if there is one */
	struct cow_stats self;
	struct cow_stats system;
	/* The process' file, before and after the threads' exit */
	struct cow_stats whole;
	struct cow_stats exited;
	long main_minflt;
};

static struct work work;

/* A barrier of all threads: none of them is in a fault after it. */
static void meet(struct work *w)
{
	pthread_barrier_wait(&w->barrier);
}

static void go_to_cpu(const struct work *w, pid_t tid, unsigned int nr)
{
	int cpu, count = nr % CPU_COUNT(&w->cpus);
	cpu_set_t set;

	for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &w->cpus) && !count--)
			break;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(tid, sizeof(set), &set);
}

static void *write_pages(void *arg)
{
	struct writer *me = arg;
	struct work *w = me->work;
	char *p = w->area + me->nr * PAGES * w->ps;
	long minflt;
	int i;

	me->tid = syscall(SYS_gettid);
	sched_setaffinity(0, sizeof(w->cpus), &w->cpus);
	meet(w);	/* exists */
	meet(w);	/* all is shared */
	meet(w);	/* go */
	minflt = cow_minflt();
	for (i = 0; i < PAGES; i++) {
		if (w->hop && !(i % 8))
			go_to_cpu(w, 0, i / 8 + me->nr);
		cow_touch(p + i * w->ps, 2);
	}
	me->minflt = cow_minflt() - minflt;
	__atomic_add_fetch(&w->finished, 1, __ATOMIC_RELEASE);
	meet(w);	/* written */
	meet(w);	/* measured */
	return NULL;
}

static int start_writers(struct work *w)
{
	pthread_attr_t attr;
	int i, ret;

	ret = pthread_barrier_init(&w->barrier, NULL, w->threads + 1);
	ret = ret ?: pthread_attr_init(&attr);
	ret = ret ?: pthread_attr_setstacksize(&attr, STACK_SIZE);
	for (i = 0; !ret && i < w->threads; i++) {
		w->writer[i].work = w;
		w->writer[i].nr = i;
		ret = pthread_create(&w->writer[i].id, &attr, write_pages,
				     &w->writer[i]);
	}
	return -ret;
}

static int share_pages(struct work *w, struct cow_child *child)
{
	int ret;

	ret = cow_child_idle(child);
	if (!ret && w->kind == LEFT)
		ret = cow_child_end(child);
	ret = ret ?: cow_drain_lru();
	return ret ?: cow_unshare_rest(w->area, w->threads * PAGES * w->ps);
}

static int take_faults(struct work *w)
{
	static struct cow_stats self, system, end, others, others_end;
	int ret;

	w->finished = 0;
	ret = cow_count_others(&others) ?: cow_stats_read_pid(&self, 0) ?:
	      cow_stats_read(&system);
	if (!ret && w->reset) {
		ret = reset();
		memset(&system, 0, sizeof(system));
	}
	if (ret)
		return ret;
	w->calls = 0;
	w->counter = 0;
	w->main_minflt = cow_minflt();
	meet(w);	/* go */
	if (w->meanwhile) {
		do {
			ret = w->meanwhile(w);
			if (ret)
				return ret;
			w->calls++;
		} while (__atomic_load_n(&w->finished, __ATOMIC_ACQUIRE) <
			 w->threads);
	}
	meet(w);	/* written */
	w->main_minflt = cow_minflt() - w->main_minflt;
	ret = cow_stats_read_pid(&w->whole, 0) ?: cow_stats_read(&end) ?:
	      cow_count_others(&others_end);
	w->disturbed = memcmp(&others, &others_end, sizeof(others));
	cow_stats_delta(&w->self, &self, &w->whole);
	cow_stats_delta(&w->system, &system, &end);
	return ret;
}

/* 0, or a negative errno with the threads still at a barrier */
static int run(struct work *w)
{
	struct cow_child child;
	size_t len;
	int i, ret;

	w->ps = cow_page_size();
	len = w->threads * PAGES * w->ps;
	w->area = cow_map(len, PAGES * w->ps);
	if (!w->area)
		return -ENOMEM;
	for (i = 0; i < w->threads * PAGES; i++)
		cow_touch(w->area + i * w->ps, 1);
	ret = start_writers(w);
	if (ret)
		return ret;
	meet(w);	/* exists */
	ret = share_pages(w, &child);
	if (ret)
		return ret;
	meet(w);	/* all is shared */
	ret = take_faults(w);
	if (ret)
		return ret;
	meet(w);	/* measured */
	for (i = 0; i < w->threads; i++)
		pthread_join(w->writer[i].id, NULL);
	pthread_barrier_destroy(&w->barrier);
	ret = cow_stats_read_pid(&w->exited, 0);
	if (!ret && w->kind == SHARED)
		ret = cow_child_end(&child);
	cow_unmap(w->area, len);
	return ret;
}

static bool too_high(const struct work *w)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(summed); i++)
		if (w->system.v[summed[i]] > w->self.v[summed[i]])
			return true;
	return false;
}

/* The process' own counters must be exact at the first attempt. */
static void check_self(struct __test_metadata *_metadata, const struct work *w)
{
	unsigned long long pages = w->threads * PAGES;
	unsigned long long copied = 0, reused = 0, ahead = 0;
	const unsigned long long *v = w->self.v;
	unsigned long long minflt = 0;
	size_t i;

	if (w->kind == LEFT) {
		reused = pages;
	} else {
		copied = faults_for(pages, w->ahead);
		ahead = pages - copied;
	}
	for (i = 0; i < (size_t)w->threads; i++)
		minflt += w->writer[i].minflt;
	/* The faults as getrusage() counts them. w->meanwhile may fault itself. */
	ASSERT_EQ(minflt, copied + reused);
	if (!w->meanwhile)
		ASSERT_EQ(w->main_minflt, 0);

	if (w->switching) {
		EXPECT_LE(v[COW_FAULTS], copied);
		EXPECT_LE(v[COW_REUSED], reused);
	} else {
		EXPECT_EQ(v[COW_FAULTS], copied);
		EXPECT_EQ(v[COW_REUSED], reused);
	}
	EXPECT_EQ(v[COW_SUCCESS], ahead);
	EXPECT_EQ(v[COW_ATTEMPTS], ahead);
	EXPECT_EQ(v[COW_REUSE_AHEAD], 0ULL);
	EXPECT_EQ(w->self.skips, 0ULL);
	EXPECT_GE(v[COW_TOTAL_NS], v[COW_FAULTS]);
	check_times(_metadata, &w->whole);
	for (i = 0; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(w->exited.v[i], w->whole.v[i])
			TH_LOG("%s changed when the threads ended",
			       cow_key_names[i]);
	}
}

/* The system's counters grew by the same as the process'. */
static void check_system(struct __test_metadata *_metadata,
			 const struct work *w)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(summed); i++) {
		EXPECT_EQ(w->system.v[summed[i]], w->self.v[summed[i]])
			TH_LOG("%s of the system, and of the process",
			       cow_key_names[summed[i]]);
	}
}

static void check(struct __test_metadata *_metadata, struct work *w)
{
	size_t i;

	do {
		ASSERT_EQ(run(w), 0);
		check_self(_metadata, w);
		for (i = 0; i < ARRAY_SIZE(summed); i++) {
			EXPECT_GE(w->system.v[summed[i]], w->self.v[summed[i]])
				TH_LOG("%s lost", cow_key_names[summed[i]]);
		}
	} while (too_high(w) && w->disturbed);
	check_system(_metadata, w);
}

static const int thread_counts[] = { 1, 2, 4, MAX_THREADS };

static void check_all(struct __test_metadata *_metadata, struct work *w)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(thread_counts); i++) {
		w->threads = thread_counts[i];
		check(_metadata, w);
	}
}

static struct work *new_work(enum kind kind, int ahead, const cpu_set_t *cpus)
{
	memset(&work, 0, sizeof(work));
	work.kind = kind;
	work.ahead = ahead;
	work.cpus = *cpus;
	return &work;
}

TEST_F_TIMEOUT(cow_counts, copied, TEST_TIMEOUT)
{
	struct work *w = new_work(SHARED, variant->ahead, &self->cpus);

	check_all(_metadata, w);
}

TEST_F_TIMEOUT(cow_counts, reused, TEST_TIMEOUT)
{
	struct work *w = new_work(LEFT, variant->ahead, &self->cpus);

	check_all(_metadata, w);
}

static int move_somebody(struct work *w)
{
	static __u64 state;
	__u64 where = cow_rand(&state);

	go_to_cpu(w, w->writer[where % w->threads].tid, where >> 32);
	return 0;
}

/* From CPU to CPU, between faults and in the middle of one */
TEST_F_TIMEOUT(cow_counts, migration, TEST_TIMEOUT)
{
	enum kind kind;

	if (CPU_COUNT(&self->cpus) < 2)
		SKIP(return, "needs two CPUs");
	for (kind = SHARED; kind <= LEFT; kind++) {
		struct work *w = new_work(kind, variant->ahead, &self->cpus);

		w->hop = true;
		check_all(_metadata, w);
		w->hop = false;
		w->meanwhile = move_somebody;
		check_all(_metadata, w);
	}
}

/* The first CPU, the last one, and each in between, whatever node it belongs to */
TEST_F_TIMEOUT(cow_counts, each_cpu, TEST_TIMEOUT)
{
	struct work *w = new_work(SHARED, variant->ahead, &self->cpus);
	int cpu;

	w->threads = 1;
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &self->cpus))
			continue;
		CPU_ZERO(&w->cpus);
		CPU_SET(cpu, &w->cpus);
		w->kind = SHARED;
		check(_metadata, w);
		w->kind = LEFT;
		check(_metadata, w);
	}
}

/*
 * Resets
 */

/* After a reset the values themselves are exact, not only differences. */
TEST_F_TIMEOUT(cow_counts, since_reset, TEST_TIMEOUT)
{
	struct work *w = new_work(SHARED, variant->ahead, &self->cpus);

	if (!is_root())
		SKIP(return, COW_NEEDS);
	w->reset = true;
	check_all(_metadata, w);
}

static int read_and_reset(struct work *w)
{
	struct cow_stats s;
	int ret;

	ret = cow_stats_read(&s);
	w->counter += s.v[COW_FAULTS] + s.v[COW_REUSED];
	return ret ?: reset();
}

/*
 * Are the system's counters since a reset consistent with each other? If faults were
 * running, it may have taken some from the counters and not from the distributions.
 */
static void check_whole(struct __test_metadata *_metadata, bool reset_at_rest)
{
	static struct cow_hist copy, fault;
	struct cow_stats s;

	ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	ASSERT_EQ(cow_stats_read(&s), 0);
	ASSERT_EQ(cow_hist_read(&copy, &fault), 0);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	if (reset_at_rest) {
		EXPECT_EQ(cow_hist_total(&copy), s.v[COW_FAULTS]);
		/* One reuse in 31 is timed, or none in the time between two switches. */
		EXPECT_GE(cow_hist_total(&fault), s.v[COW_FAULTS]);
	}
	EXPECT_LE(s.v[COW_MIN_NS], s.v[COW_AVG_NS]);
	EXPECT_LE(s.v[COW_AVG_NS], s.v[COW_MAX_NS]);
	EXPECT_GE(s.v[COW_FAULT_TOTAL_NS], s.v[COW_TOTAL_NS]);
}

/*
 * The system's counters are reset in a loop. The process' own are not affected; the
 * system's count no fault twice, and are exact again afterwards.
 */
TEST_F_TIMEOUT(cow_counts, reset_while_faulting, TEST_TIMEOUT)
{
	unsigned long long counted, most;
	enum kind kind;
	size_t i;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	for (i = 0; i < 2 * ARRAY_SIZE(thread_counts); i++) {
		struct work *w;

		kind = i & 1 ? LEFT : SHARED;
		w = new_work(kind, variant->ahead, &self->cpus);
		w->threads = thread_counts[i / 2];
		w->reset = true;
		w->meanwhile = read_and_reset;
		do {
			ASSERT_EQ(run(w), 0);
			check_self(_metadata, w);
			check_whole(_metadata, false);
			/* What each reset took away, and what was left */
			counted = w->counter + w->system.v[COW_FAULTS] +
				  w->system.v[COW_REUSED];
			most = w->self.v[COW_FAULTS] + w->self.v[COW_REUSED];
			/* Another process may have reused a page. */
		} while (counted > most && w->disturbed);
		EXPECT_LE(counted, most)
			TH_LOG("counted twice in %lu resets", w->calls);
		w->meanwhile = NULL;
		check(_metadata, w);
		check_whole(_metadata, true);
	}
}

/*
 * Readers
 */

enum file { SYSTEM, PROCESS, HISTOGRAM };

struct reader {
	enum file file;
	int reads;		/* 0: until sh->stop */
	pid_t pid;
	struct shared *sh;
	struct cow_child child;
};

#define READER_FAILED	1
#define READER_BACKWARD	2

/* Reads in a loop: every read succeeds, and no counter goes backward. */
static int reader(struct cow_child *self, void *arg)
{
	static struct cow_hist copy[2], fault[2];
	static struct cow_stats s[2];
	const struct reader *r = arg;
	bool backward = false;
	int i, ret = 0;

	/* On another CPU than the counting thread. With one CPU, preemption does as well. */
	cow_leave_cpu();
	for (i = 0; r->reads ? i < r->reads : !READ_ONCE(r->sh->stop); i++) {
		int now = i & 1, last = !now;

		switch (r->file) {
		case SYSTEM:
			ret = cow_stats_read(&s[now]);
			break;
		case PROCESS:
			ret = cow_stats_read_pid(&s[now], r->pid);
			break;
		case HISTOGRAM:
			ret = cow_hist_read(&copy[now], &fault[now]);
			break;
		}
		if (ret)
			return READER_FAILED;
		if (i)
			backward = r->file == HISTOGRAM ?
				cow_hist_restarted(&copy[last], &copy[now]) ||
				cow_hist_restarted(&fault[last], &fault[now]) :
				cow_stats_restarted(&s[last], &s[now]);
		if (backward)
			return READER_BACKWARD;
		/* What it writes to is its own from now on. */
		if (i == 3 && (cow_child_send(self, 1) ||
			       cow_child_recv(self) != 1))
			return READER_FAILED;
	}
	__atomic_sub_fetch(&r->sh->left, 1, __ATOMIC_RELAXED);
	return 0;
}

static int start_readers(struct reader *r, int nr, struct shared *sh)
{
	int i, ret;

	sh->left = nr;
	sh->stop = 0;
	for (i = 0; i < nr; i++) {
		r[i].sh = sh;
		r[i].pid = getpid();
		ret = cow_child_fork(&r[i].child, reader, &r[i]);
		if (ret)
			return ret;
		if (cow_child_recv(&r[i].child) != 1)
			return -EPROTO;
	}
	for (i = 0; i < nr; i++)
		if (cow_child_send(&r[i].child, 1))
			return -EPROTO;
	return 0;
}

/* 10 000 reads under load: no read fails, and no counter goes backward. */
TEST_F_TIMEOUT(cow_counts, read_while_faulting, TEST_TIMEOUT)
{
	struct work *w = new_work(SHARED, variant->ahead, &self->cpus);
	struct reader readers[] = {
		{ .file = SYSTEM, .reads = READS / 4 },
		{ .file = SYSTEM, .reads = READS / 4 },
		{ .file = PROCESS, .reads = READS / 5 },
		{ .file = PROCESS, .reads = READS / 5 },
		{ .file = HISTOGRAM, .reads = READS / 10 },
	};
	int i, rounds = 0;

	ASSERT_EQ(start_readers(readers, ARRAY_SIZE(readers), self->sh), 0);
	do {
		w->threads = thread_counts[rounds++ %
					   ARRAY_SIZE(thread_counts)];
		check(_metadata, w);
		/* One that gave up would be waited for in vain. */
		for (i = 0; i < (int)ARRAY_SIZE(readers); i++) {
			siginfo_t info = {};

			ASSERT_EQ(waitid(P_PID, readers[i].child.pid, &info,
					 WEXITED | WNOHANG | WNOWAIT), 0);
			ASSERT_EQ(info.si_status, 0)
				TH_LOG("reader %d: %s", i,
				       info.si_status == READER_BACKWARD ?
				       "backward" : "unreadable");
		}
	} while (READ_ONCE(self->sh->left));
	for (i = 0; i < (int)ARRAY_SIZE(readers); i++)
		EXPECT_EQ(cow_child_end(&readers[i].child), 0);
}

#define SHORT_LIVED	128
#define SHORT_PAGES	16	/* each; a whole window and the page itself */

static void *short_lived(void *arg)
{
	size_t ps = cow_page_size();
	char *p = arg;
	int i;

	for (i = 0; i < SHORT_PAGES; i++)
		cow_touch(p + i * ps, 2);
	return NULL;
}

/* Threads start and exit; their counts stay in the process' file at all times. */
TEST_F_TIMEOUT(cow_counts, thread_exit, TEST_TIMEOUT)
{
	struct reader readers[] = { { .file = PROCESS }, { .file = PROCESS } };
	size_t window = SHORT_PAGES * self->ps, len = SHORT_LIVED * window;
	unsigned long long faults;
	struct cow_stats before, after, delta;
	struct cow_child child;
	pthread_t id[2];
	char *area;
	size_t i;

	area = cow_map(len, window);
	ASSERT_NE(area, NULL);
	for (i = 0; i < len; i += self->ps)
		cow_touch(area + i, 1);
	ASSERT_EQ(start_readers(readers, ARRAY_SIZE(readers), self->sh), 0);
	ASSERT_EQ(cow_child_idle(&child), 0);
	ASSERT_EQ(cow_unshare_rest(area, len), 0);
	ASSERT_EQ(cow_stats_read_pid(&before, 0), 0);
	for (i = 0; i < SHORT_LIVED; i++) {
		if (i >= ARRAY_SIZE(id))
			ASSERT_EQ(pthread_join(id[i % ARRAY_SIZE(id)], NULL),
				  0);
		ASSERT_EQ(pthread_create(&id[i % ARRAY_SIZE(id)], NULL,
					 short_lived, area + i * window), 0);
	}
	for (i = 0; i < ARRAY_SIZE(id); i++)
		ASSERT_EQ(pthread_join(id[i], NULL), 0);
	ASSERT_EQ(cow_stats_read_pid(&after, 0), 0);
	WRITE_ONCE(self->sh->stop, 1);
	for (i = 0; i < ARRAY_SIZE(readers); i++)
		EXPECT_EQ(cow_child_wait(&readers[i].child), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	cow_unmap(area, len);

	cow_stats_delta(&delta, &before, &after);
	faults = faults_for(SHORT_LIVED * SHORT_PAGES, variant->ahead);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_SUCCESS],
		  SHORT_LIVED * SHORT_PAGES - faults);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);
}

/*
 * A read takes no lock that a fault, a reset, a switch or another read waits
 * for. These readers hold whatever a read holds.
 */

struct stuck {
	char path[64];
	bool inside;		/* in the kernel, and not before or after */
	struct shared *sh;
	struct cow_child child;
};

/* A page that stays away: who wants it waits, until the process is killed. */
static void *page_that_never_comes(size_t ps)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	char *p = cow_map(ps, 0);
	int fd;

	fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	reg.range.start = (uintptr_t)p;
	reg.range.len = ps;
	if (!p || fd < 0 || ioctl(fd, UFFDIO_API, &api) ||
	    ioctl(fd, UFFDIO_REGISTER, &reg))
		return NULL;
	return p;
}

static int stuck_reader(struct cow_child *self, void *arg)
{
	struct stuck *s = arg;
	char byte, *buf = &byte;
	int fd;

	fd = open(s->path, O_RDONLY);
	if (s->inside)
		buf = page_that_never_comes(cow_page_size());
	if (fd < 0 || !buf || cow_child_send(self, 1))
		return 1;
	if (read(fd, buf, 1) == 1 && !s->inside) {
		if (cow_child_send(self, 2))
			return 2;
		raise(SIGSTOP);
	}
	__atomic_add_fetch(&s->sh->reached, 1, __ATOMIC_RELAXED);
	return 3;
}

static int start_stuck(struct stuck *s, struct shared *sh)
{
	siginfo_t info;
	int ret;

	s->sh = sh;
	ret = cow_child_fork(&s->child, stuck_reader, s);
	if (ret)
		return ret;
	if (cow_child_recv(&s->child) != 1)
		return -EPROTO;
	if (s->inside)
		return cow_child_settle(&s->child);
	if (cow_child_recv(&s->child) != 2)
		return -EPROTO;
	return waitid(P_PID, s->child.pid, &info, WSTOPPED) ? -errno : 0;
}

TEST_F_TIMEOUT(cow_counts, stuck_readers, TEST_TIMEOUT)
{
	struct work *w = new_work(SHARED, variant->ahead, &self->cpus);
	struct stuck readers[] = {
		{ .path = COW_STATS_FILE },
		{ .path = HIST_FILE },
		{ .path = "" /* ours */ },
		{ .path = COW_STATS_FILE, .inside = true },
		{ .path = HIST_FILE, .inside = true },
		{ .path = "", .inside = true },
	};
	int i, uffd, nr = ARRAY_SIZE(readers);

	if (!is_root())
		SKIP(return, COW_NEEDS);
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (uffd < 0)
		SKIP(return, "no userfaultfd");
	close(uffd);
	/* So that the histogram is not empty */
	w->threads = 1;
	check(_metadata, w);
	for (i = 0; i < nr; i++) {
		if (!readers[i].path[0])
			snprintf(readers[i].path, sizeof(readers[i].path),
				 "/proc/%d/cow_stats", getpid());
		ASSERT_EQ(start_stuck(&readers[i], self->sh), 0)
			TH_LOG("reader %d of %s", i, readers[i].path);
	}
	w->threads = 4;
	w->reset = true;
	check(_metadata, w);
	check_whole(_metadata, true);
	EXPECT_EQ(READ_ONCE(self->sh->reached), 0);
	for (i = 0; i < nr; i++) {
		EXPECT_EQ(kill(readers[i].child.pid, SIGKILL), 0);
		EXPECT_EQ(cow_child_wait(&readers[i].child), 256 + SIGKILL);
	}
}

/*
 * vm.cow_stats
 */

static int switch_stats(struct work *w)
{
	const char *val = w->calls & 1 ? "1" : "0";

	return pwrite(w->fd, val, 1, 0) == 1 ? 0 : -errno;
}

/*
 * Switched all the time: some faults count and some do not, but none does twice
 * or in one place only. What is copied ahead counts in any case.
 */
TEST_F_TIMEOUT(cow_counts, switch_while_faulting, TEST_TIMEOUT)
{
	enum kind kind;
	size_t i;
	int fd;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	fd = open(COW_SYSCTL_DIR "cow_stats", O_WRONLY);
	ASSERT_GE(fd, 0);
	for (kind = SHARED; kind <= LEFT; kind++) {
		struct work *w = new_work(kind, variant->ahead, &self->cpus);

		w->reset = true;
		w->switching = true;
		w->meanwhile = switch_stats;
		w->fd = fd;
		for (i = 0; i < ARRAY_SIZE(thread_counts); i++) {
			w->threads = thread_counts[i];
			check(_metadata, w);
			check_whole(_metadata, true);
		}
	}
	close(fd);
}

/* Switched off, nothing counts; switched on again, everything does. */
TEST_F_TIMEOUT(cow_counts, switched_off, TEST_TIMEOUT)
{
	enum kind kind;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	for (kind = SHARED; kind <= LEFT; kind++) {
		struct work *w = new_work(kind, variant->ahead, &self->cpus);

		w->threads = 4;
		w->switching = true;
		ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
		check(_metadata, w);
		EXPECT_EQ(w->self.v[COW_FAULTS], 0ULL);
		EXPECT_EQ(w->self.v[COW_REUSED], 0ULL);
		EXPECT_EQ(w->self.v[COW_FAULT_TOTAL_NS], 0ULL);
		w->switching = false;
		ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
		check(_metadata, w);
	}
}

TEST_HARNESS_MAIN
