// SPDX-License-Identifier: GPL-2.0
/*
 * Are the copy-on-write counters right to the last one?
 *
 * Threads write to fork-shared pages, each page once, so that the number of
 * faults is known; /proc/cow_stats and /proc/<pid>/cow_stats must have grown by
 * exactly that: whatever CPU the threads run on or move to, whoever reads or
 * resets the counters meanwhile, and whether the threads still exist. Then what
 * becomes of a process' counts: over fork, exec and exit, in its parent, and
 * when another process does the writing.
 *
 * A process' own counts are nobody else's and have to be right at once. The
 * system's may be too high, if something else has faulted: then the measurement
 * is repeated. Too low is always an error.
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
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define SELF_FILE	"/proc/self/cow_stats"
#define HIST_FILE	"/proc/cow_histogram"

#define MAX_THREADS	8
#define PAGES		512	/* per thread; a multiple of the largest window */
#define STACK_SIZE	(256 << 10)
#define READS		10000	/* by all readers together */
#define FEW		64	/* faults of a process that did nothing */

#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

/* What only ever grows, and is the same for the system as for who did it */
static const enum cow_key summed[] = {
	COW_FAULTS, COW_REUSED, COW_TOTAL_NS, COW_FAULT_TOTAL_NS, COW_ATTEMPTS,
	COW_SUCCESS, COW_REUSE_AHEAD, COW_SKIP_VMA, COW_SKIP_PMD,
	COW_SKIP_NOTPRESENT, COW_SKIP_WRITABLE, COW_SKIP_NOTANON,
	COW_SKIP_EXCLUSIVE, COW_SKIP_RACE, COW_SKIP_NOMEM, COW_SKIP_SPECIAL,
	COW_SKIP_MADVISE, COW_SKIP_UFFD, COW_SKIP_SOFTDIRTY, COW_SKIP_KSM,
	COW_SKIP_PINNED,
};

/* Where a process' counts go when its parent waits for it */
static const struct {
	enum cow_key own;
	enum cow_key children;
} inherited[] = {
	{ COW_FAULTS,		COW_CHILDREN_FAULTS },
	{ COW_REUSED,		COW_CHILDREN_REUSED },
	{ COW_TOTAL_NS,		COW_CHILDREN_TOTAL_NS },
	{ COW_FAULT_TOTAL_NS,	COW_CHILDREN_FAULT_TOTAL_NS },
	{ COW_SUCCESS,		COW_CHILDREN_SUCCESS },
	{ COW_REUSE_AHEAD,	COW_CHILDREN_REUSE_AHEAD },
};

/* What processes tell each other: no part of what fork() shares */
struct shared {
	/* Of who writes pages, before that and right before the end */
	struct cow_stats first;
	struct cow_stats last;
	struct cow_stats other;		/* of another one */
	struct cow_stats parent;	/* of their parent, before its end */
	pid_t pid;
	int left;			/* readers that are not done */
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
	const char *reason;

	reason = cow_setup(&self->saved, variant->ahead, COW_WANT_STATS);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(access(SELF_FILE, F_OK), 0)
		TH_LOG("/proc/cow_stats without " SELF_FILE);
	self->ps = cow_page_size();
	self->sh = mmap(NULL, sizeof(*self->sh), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(self->sh, MAP_FAILED);
	ASSERT_EQ(sched_getaffinity(0, sizeof(self->cpus), &self->cpus), 0);
	/* The pages wait for the LRU in the batch of a CPU that we know. */
	ASSERT_EQ(cow_pin_cpu(), 0);
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

/* The faults that it takes to write nr shared pages upward */
static unsigned long long faults_for(int nr, int ahead)
{
	return nr / (ahead + 1);
}

/*
 * Make everything that this process may write to its own, apart from len bytes
 * at area, and have everything mapped that it may execute: from now on it takes
 * faults for the area only. Where some page cannot be had nobody writes.
 */
static int unshare_rest(const char *area, size_t len)
{
	static char maps[64 << 10];
	static struct {
		char *start;
		size_t len;
		int advice;
	} range[256];
	unsigned long start, end;
	char perms[8], *line;
	int i, nr = 0;
	ssize_t n;

	n = cow_read_file("/proc/self/maps", maps, sizeof(maps));
	if (n < 0)
		return n;
	if (n == sizeof(maps) - 1)
		return -E2BIG;
	for (line = maps; *line; line = strchr(line, '\n') + 1) {
		if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) != 3)
			return -EPROTO;
		if (perms[0] != 'r' || perms[3] != 'p' ||
		    ((char *)start < area + len && (char *)end > area))
			continue;
		if (nr == ARRAY_SIZE(range))
			return -E2BIG;
		range[nr].start = (char *)start;
		range[nr].len = end - start;
		range[nr++].advice = perms[1] == 'w' ? MADV_POPULATE_WRITE :
						       MADV_POPULATE_READ;
	}
	for (i = 0; i < nr; i++)
		if (madvise(range[i].start, range[i].len, range[i].advice) &&
		    range[i].advice == MADV_POPULATE_WRITE)
			return -errno;
	return 0;
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
	/* What the main thread does again and again until all is written */
	int (*meanwhile)(struct work *w);
	unsigned long long counter;	/* for its use */
	unsigned long torn;		/* this, too */
	unsigned long calls;		/* how often it was called */
	int fd;

	cpu_set_t cpus;
	size_t ps;
	char *area;
	pthread_barrier_t barrier;
	int finished;
	struct writer writer[MAX_THREADS];

	/* What it added; to the system from the reset on, if there is one */
	struct cow_stats self;
	struct cow_stats system;
	/* All that the process' file says, also after the threads' exit */
	struct cow_stats whole;
	struct cow_stats exited;
	long main_minflt;
};

static struct work work;

/* Everybody is here, and nobody is in a fault any more. */
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
	return ret ?: unshare_rest(w->area, w->threads * PAGES * w->ps);
}

static int take_faults(struct work *w)
{
	static struct cow_stats self, system, end;
	int ret;

	w->finished = 0;
	ret = cow_stats_read_pid(&self, 0) ?: cow_stats_read(&system);
	if (!ret && w->reset) {
		ret = reset();
		memset(&system, 0, sizeof(system));
	}
	if (ret)
		return ret;
	w->calls = 0;
	w->counter = 0;
	w->torn = 0;
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
	ret = cow_stats_read_pid(&w->whole, 0) ?: cow_stats_read(&end);
	cow_stats_delta(&w->self, &self, &w->whole);
	cow_stats_delta(&w->system, &system, &end);
	return ret;
}

/* Once. 0 or a negative errno, and then the threads are left where they are. */
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

/* A process' counts as a whole */
static void check_times(struct __test_metadata *_metadata,
			const struct cow_stats *s)
{
	unsigned long long faults = s->v[COW_FAULTS];

	EXPECT_LE(s->v[COW_MIN_NS], s->v[COW_AVG_NS]);
	EXPECT_LE(s->v[COW_AVG_NS], s->v[COW_MAX_NS]);
	EXPECT_EQ(s->v[COW_AVG_NS],
		  faults ? s->v[COW_TOTAL_NS] / faults : 0);
	EXPECT_EQ(!s->v[COW_MIN_NS], !faults);
	EXPECT_GE(s->v[COW_FAULT_TOTAL_NS],
		  s->v[COW_TOTAL_NS] + s->v[COW_REUSED]);
	EXPECT_TRUE(cow_stats_balanced(s));
}

/* What the process says of itself: always exact, at the first try */
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
	/* The premise of it all; with w->meanwhile, it may fault itself. */
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

/* The system did what the process did: as often, and it took as long. */
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
	size_t i, try;

	for (try = 0; try < COW_TRIES; try++) {
		ASSERT_EQ(run(w), 0);
		check_self(_metadata, w);
		for (i = 0; i < ARRAY_SIZE(summed); i++) {
			EXPECT_GE(w->system.v[summed[i]], w->self.v[summed[i]])
				TH_LOG("%s lost", cow_key_names[summed[i]]);
		}
		if (!too_high(w))
			break;
	}
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

/*
 * Resets
 */

/* From a reset on, the file itself says it, not only a difference. */
TEST_F_TIMEOUT(cow_counts, since_reset, TEST_TIMEOUT)
{
	struct work *w = new_work(SHARED, variant->ahead, &self->cpus);

	if (!is_root())
		SKIP(return, COW_NEEDS);
	w->reset = true;
	check_all(_metadata, w);
}

/*
 * A reset that takes half of a fault leaves the two distributions apart. (While
 * pages are reused, they are anyway: only the second one has those.)
 */
static int read_and_reset(struct work *w)
{
	static struct cow_hist copy, fault;
	static struct cow_stats s;
	int ret;

	ret = cow_stats_read(&s);
	w->counter += s.v[COW_FAULTS] + s.v[COW_REUSED];
	ret = ret ?: reset();
	if (!ret && w->kind == SHARED) {
		ret = cow_hist_read(&copy, &fault);
		w->torn += cow_hist_total(&copy) != cow_hist_total(&fault);
	}
	return ret;
}

/* The system's numbers since a reset: are they those of one set of faults? */
static void check_whole(struct __test_metadata *_metadata)
{
	static struct cow_hist copy, fault;
	struct cow_stats s;

	ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	ASSERT_EQ(cow_stats_read(&s), 0);
	ASSERT_EQ(cow_hist_read(&copy, &fault), 0);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	EXPECT_EQ(cow_hist_total(&copy), s.v[COW_FAULTS]);
	EXPECT_EQ(cow_hist_total(&fault), s.v[COW_FAULTS] + s.v[COW_REUSED]);
	EXPECT_LE(s.v[COW_MIN_NS], s.v[COW_AVG_NS]);
	EXPECT_LE(s.v[COW_AVG_NS], s.v[COW_MAX_NS]);
	EXPECT_GE(s.v[COW_FAULT_TOTAL_NS],
		  s.v[COW_TOTAL_NS] + s.v[COW_REUSED]);
}

/*
 * Somebody resets the system's counters all the time. The process' own know
 * nothing of it; the system's count nothing twice, and go on as if nothing had
 * happened.
 */
TEST_F_TIMEOUT(cow_counts, reset_while_faulting, TEST_TIMEOUT)
{
	unsigned long long counted, most;
	enum kind kind;
	size_t i;
	int try;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	for (i = 0; i < 2 * ARRAY_SIZE(thread_counts); i++) {
		struct work *w;

		kind = i & 1 ? LEFT : SHARED;
		w = new_work(kind, variant->ahead, &self->cpus);
		w->threads = thread_counts[i / 2];
		w->reset = true;
		w->meanwhile = read_and_reset;
		for (try = 0; try < COW_TRIES; try++) {
			ASSERT_EQ(run(w), 0);
			check_self(_metadata, w);
			check_whole(_metadata);
			/* What each reset took away, and what was left */
			counted = w->counter + w->system.v[COW_FAULTS] +
				  w->system.v[COW_REUSED];
			most = w->self.v[COW_FAULTS] + w->self.v[COW_REUSED];
			/* Somebody else may have reused a page. */
			if (counted <= most && !w->torn)
				break;
		}
		EXPECT_LE(counted, most)
			TH_LOG("counted twice in %lu resets", w->calls);
		EXPECT_EQ(w->torn, 0UL)
			TH_LOG("faults cut in two by %lu resets", w->calls);
		w->meanwhile = NULL;
		check(_metadata, w);
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

/* Reads again and again: can it be read, and does nothing go backward? */
static int reader(struct cow_child *self, void *arg)
{
	static struct cow_hist copy[2], fault[2];
	static struct cow_stats s[2];
	const struct reader *r = arg;
	bool backward = false;
	int i, ret = 0;

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

/* 10 000 times, under load: nothing is lost, garbled or goes backward. */
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
	EXPECT_GE(rounds, 2);
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

/* Threads come and go; what they did stays, and never counts for a while only. */
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
	ASSERT_EQ(unshare_rest(area, len), 0);
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
	check_whole(_metadata);
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
			check_whole(_metadata);
		}
	}
	close(fd);
}

/* Off is off, and on again is on again. */
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

/*
 * Processes
 */

/* This process' own counts, which reading them does not change any more */
static int read_own(struct cow_stats *s)
{
	static struct cow_stats again;
	int i, ret;

	for (i = 0; i < 20; i++) {
		ret = cow_stats_read_pid(&again, 0) ?: cow_stats_read_pid(s, 0);
		if (ret || !memcmp(s, &again, sizeof(*s)))
			return ret;
	}
	return -EAGAIN;
}

/* Memory for children to write to: fork-shared with them */
static char *touched_pages(void)
{
	size_t ps = cow_page_size(), i;
	char *p = cow_map(PAGES * ps, PAGES * ps);

	for (i = 0; p && i < PAGES; i++)
		cow_touch(p + i * ps, 1);
	return p;
}

static void write_all(char *area)
{
	size_t ps = cow_page_size(), i;

	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, 2);
}

struct job {
	char *area;
	struct shared *sh;
	int fd;
};

/* From here on, this process takes no faults but for its pages. */
static int begin(struct job *job)
{
	return unshare_rest(job->area, PAGES * cow_page_size()) ?:
	       read_own(&job->sh->first);
}

/* Writes to its pages and says what that made of its counts, right to the end. */
static int spender(struct cow_child *self, void *arg)
{
	struct job *job = arg;

	(void)self;
	if (begin(job))
		return 1;
	write_all(job->area);
	return read_own(&job->sh->last) ? 2 : 0;
}

/* What the children brought: own counts of one of them and its children's */
static void check_inherited(struct __test_metadata *_metadata,
			    const struct cow_stats *before,
			    const struct cow_stats *after,
			    const struct cow_stats *child)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(inherited); i++) {
		enum cow_key key = inherited[i].children;

		EXPECT_EQ(after->v[key] - before->v[key],
			  child->v[inherited[i].own] + child->v[key])
			TH_LOG("%s, after - before", cow_key_names[key]);
	}
}

static void check_nothing_inherited(struct __test_metadata *_metadata,
				    const struct cow_stats *before,
				    const struct cow_stats *after)
{
	static const struct cow_stats nothing;

	check_inherited(_metadata, before, after, &nothing);
}

/* The pages, and nothing but the pages, whatever the child began with */
static void check_spent(struct __test_metadata *_metadata,
			const struct shared *sh, int ahead)
{
	unsigned long long faults = faults_for(PAGES, ahead);
	struct cow_stats delta;

	cow_stats_delta(&delta, &sh->first, &sh->last);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_SUCCESS], PAGES - faults);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);
	check_times(_metadata, &sh->last);
}

static long children_minflt(void)
{
	struct rusage ru;

	return getrusage(RUSAGE_CHILDREN, &ru) ? -1 : ru.ru_minflt;
}

static int await_zombie(pid_t pid)
{
	siginfo_t info;

	return waitid(P_PID, pid, &info, WEXITED | WNOWAIT) ? -errno : 0;
}

/* A child's counts are its own, go with it, and are its parent's once reaped. */
TEST_F_TIMEOUT(cow_counts, child, TEST_TIMEOUT)
{
	unsigned long long faults = faults_for(PAGES, variant->ahead);
	struct cow_stats before, after, own;
	struct job job = { .sh = self->sh };
	char path[64], buf[4096];
	struct cow_child child;
	long minflt;
	int fd;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	minflt = children_minflt();
	ASSERT_EQ(cow_child_fork(&child, spender, &job), 0);
	snprintf(path, sizeof(path), "/proc/%d/cow_stats", child.pid);
	fd = open(path, O_RDONLY);
	ASSERT_GE(fd, 0);

	/* A zombie has no address space, and is nobody's yet. */
	ASSERT_EQ(await_zombie(child.pid), 0);
	EXPECT_EQ(cow_read_file(path, buf, sizeof(buf)), 0);
	EXPECT_EQ(pread(fd, buf, sizeof(buf), 0), 0);
	EXPECT_EQ(cow_stats_read_pid(&own, child.pid), -ENODATA);
	ASSERT_EQ(read_own(&after), 0);
	check_nothing_inherited(_metadata, &before, &after);
	EXPECT_EQ(children_minflt(), minflt);

	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	check_inherited(_metadata, &before, &after, &self->sh->last);
	EXPECT_GE(children_minflt() - minflt, (long)faults);
	/* What the child did is not what we did. */
	EXPECT_LE(after.v[COW_FAULTS] - before.v[COW_FAULTS], FEW);

	EXPECT_EQ(cow_read_file(path, buf, sizeof(buf)), -ENOENT);
	EXPECT_EQ(cow_stats_read_pid(&own, child.pid), -ENOENT);
	EXPECT_LE(pread(fd, buf, sizeof(buf), 0), 0);
	close(fd);
}

/* Has children of its own and waits for them: they all come to its parent. */
static int waiting_spender(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	struct cow_child child;

	(void)self;
	write_all(job->area);
	if (cow_child_fork(&child, spender, job) || cow_child_end(&child))
		return 1;
	job->sh->other = job->sh->last;
	if (cow_child_fork(&child, spender, job) || cow_child_end(&child))
		return 2;
	return unshare_rest(NULL, 0) || read_own(&job->sh->parent) ? 3 : 0;
}

TEST_F_TIMEOUT(cow_counts, grandchildren, TEST_TIMEOUT)
{
	struct cow_stats before, after, *child = &self->sh->parent;
	struct job job = { .sh = self->sh };
	struct cow_child c;
	size_t i;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&c, waiting_spender, &job), 0);
	ASSERT_EQ(cow_child_end(&c), 0);
	ASSERT_EQ(read_own(&after), 0);
	for (i = 0; i < ARRAY_SIZE(inherited); i++) {
		EXPECT_EQ(child->v[inherited[i].children],
			  self->sh->other.v[inherited[i].own] +
			  self->sh->last.v[inherited[i].own])
			TH_LOG("%s of the child",
			       cow_key_names[inherited[i].children]);
	}
	EXPECT_GE(child->v[COW_CHILDREN_FAULTS],
		  2 * faults_for(PAGES, variant->ahead));
	check_inherited(_metadata, &before, &after, child);
}

/* Writes when it is told to, which is when its parent has gone. */
static int orphan(struct cow_child *self, void *arg)
{
	struct job *job = arg;

	/* Not to die with the parent, as the helper has arranged */
	prctl(PR_SET_PDEATHSIG, 0);
	if (begin(job) || cow_child_send(self, 1))
		return 1;
	while (!READ_ONCE(job->sh->stop))
		sched_yield();
	write_all(job->area);
	return read_own(&job->sh->last) ? 2 : 0;
}

static int leaves_an_orphan(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	struct cow_child child;

	(void)self;
	if (cow_child_fork(&child, orphan, job) || cow_child_recv(&child) != 1)
		return 1;
	job->sh->pid = child.pid;
	return unshare_rest(NULL, 0) || read_own(&job->sh->parent) ? 2 : 0;
}

/* Nobody has waited for it yet when its parent ends: it is the next one's. */
TEST_F_TIMEOUT(cow_counts, orphan, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh };
	struct cow_stats before, after;
	struct cow_child child;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, leaves_an_orphan, &job), 0);
	ASSERT_EQ(cow_child_wait(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_inherited(_metadata, &before, &after, &self->sh->parent);

	before = after;
	WRITE_ONCE(self->sh->stop, 1);
	child.pid = self->sh->pid;
	ASSERT_EQ(cow_child_wait(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	check_inherited(_metadata, &before, &after, &self->sh->last);
}

/* Children that nobody wants to hear of are reaped, and count nowhere. */
TEST_F_TIMEOUT(cow_counts, ignored_child, TEST_TIMEOUT)
{
	static const struct sigaction ignore[] = {
		{ .sa_handler = SIG_IGN },
		{ .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT },
	};
	struct job job = { .sh = self->sh };
	struct cow_stats before, after;
	struct cow_child child;
	long minflt;
	size_t i;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	for (i = 0; i < ARRAY_SIZE(ignore); i++) {
		memset(self->sh, 0, sizeof(*self->sh));
		ASSERT_EQ(sigaction(SIGCHLD, &ignore[i], NULL), 0);
		ASSERT_EQ(read_own(&before), 0);
		minflt = children_minflt();
		ASSERT_EQ(cow_child_fork(&child, spender, &job), 0);
		EXPECT_EQ(cow_child_end(&child), -ECHILD);
		check_spent(_metadata, self->sh, variant->ahead);
		ASSERT_EQ(read_own(&after), 0);
		check_nothing_inherited(_metadata, &before, &after);
		EXPECT_EQ(children_minflt(), minflt);
	}
}

struct spending_thread {
	char *area;
	int pages;
	int *written;
};

static void *spend_and_stay(void *arg)
{
	struct spending_thread *t = arg;
	size_t ps = cow_page_size();
	int i;

	for (i = 0; i < t->pages; i++)
		cow_touch(t->area + i * ps, 2);
	__atomic_add_fetch(t->written, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

/* Ends with all its threads alive. */
static int threaded_spender(struct cow_child *self, void *arg)
{
	static struct spending_thread t[4];
	static int written;
	struct job *job = arg;
	pthread_t id;
	size_t i;

	(void)self;
	if (begin(job))
		return 1;
	for (i = 0; i < ARRAY_SIZE(t); i++) {
		t[i].pages = PAGES / ARRAY_SIZE(t);
		t[i].area = job->area + i * t[i].pages * cow_page_size();
		t[i].written = &written;
		if (pthread_create(&id, NULL, spend_and_stay, &t[i]))
			return 2;
	}
	while (__atomic_load_n(&written, __ATOMIC_ACQUIRE) <
	       (int)ARRAY_SIZE(t))
		sched_yield();
	return read_own(&job->sh->last) ? 3 : 0;
}

TEST_F_TIMEOUT(cow_counts, child_with_threads, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh };
	struct cow_stats before, after;
	struct cow_child child;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, threaded_spender, &job), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	check_inherited(_metadata, &before, &after, &self->sh->last);
}

static void *spend_when_alone(void *arg)
{
	struct job *job = arg;
	char path[64], buf[512], *p;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	do {
		if (cow_read_file(path, buf, sizeof(buf)) < 0)
			_exit(1);
		p = strrchr(buf, ')');
	} while (!p || p[2] != 'Z');
	write_all(job->area);
	_exit(0);
}

/* The first thread goes, and another one goes on. */
static int headless_spender(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	pthread_t id;

	(void)self;
	if (begin(job) || pthread_create(&id, NULL, spend_when_alone, job))
		return 1;
	syscall(SYS_exit, 0);
	return 2;
}

TEST_F_TIMEOUT(cow_counts, leader_exits_first, TEST_TIMEOUT)
{
	unsigned long long faults = faults_for(PAGES, variant->ahead);
	struct cow_stats before, after, delta;
	struct job job = { .sh = self->sh };
	struct cow_child child;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, headless_spender, &job), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	cow_stats_delta(&delta, &before, &after);
	/* That thread cannot read its counts, but it has written the pages. */
	EXPECT_EQ(delta.v[COW_CHILDREN_FAULTS],
		  self->sh->first.v[COW_FAULTS] + faults);
	EXPECT_EQ(delta.v[COW_CHILDREN_SUCCESS],
		  self->sh->first.v[COW_SUCCESS] + PAGES - faults);
	EXPECT_EQ(delta.v[COW_CHILDREN_REUSED],
		  self->sh->first.v[COW_REUSED]);
}

/*
 * fork and exec, seen from outside before the new process or program has run
 * one instruction
 */

static int traced_forker(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	pid_t pid;

	(void)self;
	if (begin(job))
		return 1;
	write_all(job->area);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP) ||
	    read_own(&job->sh->last))
		return 2;
	/* glibc's fork() has the kernel write to the child's memory. */
	pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!pid)
		_exit(0);
	return pid > 0 && waitpid(pid, NULL, 0) == pid ? 0 : 3;
}

static void check_zero(struct __test_metadata *_metadata,
		       const struct cow_stats *s)
{
	int key;

	for (key = 0; key < COW_NR_KEYS; key++) {
		EXPECT_EQ(s->v[key], 0ULL)
			TH_LOG("the new process' %s", cow_key_names[key]);
	}
	EXPECT_EQ(s->skips, 0ULL);
}

TEST_F_TIMEOUT(cow_counts, fork, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh };
	struct cow_stats parent, child;
	unsigned long pid = 0;
	struct cow_child c;
	int key, status;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(cow_child_fork(&c, traced_forker, &job), 0);
	ASSERT_EQ(waitpid(c.pid, &status, WUNTRACED), c.pid);
	ASSERT_TRUE(WIFSTOPPED(status));
	ASSERT_EQ(ptrace(PTRACE_SETOPTIONS, c.pid, NULL,
			 PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL), 0)
		TH_LOG("no ptrace");
	ASSERT_EQ(ptrace(PTRACE_CONT, c.pid, NULL, 0), 0);
	ASSERT_EQ(waitpid(c.pid, &status, 0), c.pid);
	ASSERT_EQ(status >> 8, SIGTRAP | PTRACE_EVENT_FORK << 8);
	ASSERT_EQ(ptrace(PTRACE_GETEVENTMSG, c.pid, NULL, &pid), 0);
	ASSERT_EQ(waitpid(pid, &status, __WALL), (pid_t)pid);
	ASSERT_TRUE(WIFSTOPPED(status));

	ASSERT_EQ(cow_stats_read_pid(&child, pid), 0);
	check_zero(_metadata, &child);
	ASSERT_EQ(cow_stats_read_pid(&parent, c.pid), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	for (key = 0; key < COW_NR_KEYS; key++) {
		EXPECT_EQ(parent.v[key], self->sh->last.v[key])
			TH_LOG("the parent's %s", cow_key_names[key]);
	}
	ASSERT_EQ(ptrace(PTRACE_DETACH, pid, NULL, 0), 0);
	ASSERT_EQ(ptrace(PTRACE_DETACH, c.pid, NULL, 0), 0);
	ASSERT_EQ(cow_child_wait(&c), 0);
}

/* What this program does if it is started as "cow_counts --exec FD": */
static int after_exec(int fd)
{
	struct cow_child child;
	struct job job;

	job.sh = mmap(NULL, sizeof(*job.sh), PROT_READ | PROT_WRITE, MAP_SHARED,
		      fd, 0);
	if (job.sh == MAP_FAILED)
		return 10;
	job.area = touched_pages();
	if (!job.area || cow_child_idle(&child) || begin(&job))
		return 11;
	write_all(job.area);
	if (cow_child_end(&child))
		return 12;
	return read_own(&job.sh->last) ? 13 : 0;
}

static int exec_self(struct job *job)
{
	static char fd[16];
	static char * const argv[] = { "cow_counts", "--exec", fd, NULL };

	snprintf(fd, sizeof(fd), "%d", job->fd);
	return execv("/proc/self/exe", argv);
}

/* Has had children and taken faults, when it becomes another program. */
static int execer(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	struct cow_child child;

	(void)self;
	write_all(job->area);
	if (cow_child_fork(&child, spender, job) || cow_child_end(&child))
		return 1;
	if (unshare_rest(NULL, 0) || ptrace(PTRACE_TRACEME, 0, NULL, NULL) ||
	    read_own(&job->sh->parent))
		return 2;
	exec_self(job);
	return 3;
}

/* A place for struct shared that can be passed on over exec() */
static int new_shared(struct job *job)
{
	job->fd = memfd_create("cow_counts", 0);
	if (job->fd < 0 || ftruncate(job->fd, sizeof(*job->sh)))
		return -errno;
	job->sh = mmap(NULL, sizeof(*job->sh), PROT_READ | PROT_WRITE,
		       MAP_SHARED, job->fd, 0);
	return job->sh == MAP_FAILED ? -errno : 0;
}

TEST_F_TIMEOUT(cow_counts, exec, TEST_TIMEOUT)
{
	unsigned long long faults = faults_for(PAGES, variant->ahead);
	struct cow_stats before, after, fresh, total;
	const struct cow_stats *old;
	struct cow_child c;
	struct job job;
	int i, status;

	ASSERT_EQ(new_shared(&job), 0);
	old = &job.sh->parent;
	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&c, execer, &job), 0);
	ASSERT_EQ(waitpid(c.pid, &status, WUNTRACED), c.pid);
	ASSERT_TRUE(WIFSTOPPED(status))
		TH_LOG("exit status %d", WEXITSTATUS(status));
	ASSERT_EQ(WSTOPSIG(status), SIGTRAP);

	EXPECT_GE(old->v[COW_FAULTS], faults);
	EXPECT_GE(old->v[COW_CHILDREN_FAULTS], faults);
	ASSERT_EQ(cow_stats_read_pid(&fresh, c.pid), 0);
	/* The kernel clears what follows the data in the file's last page. */
	EXPECT_LE(fresh.v[COW_FAULTS], 4ULL);
	EXPECT_LE(fresh.v[COW_REUSED], 4ULL);
	EXPECT_EQ(fresh.v[COW_ATTEMPTS], 0ULL);
	check_times(_metadata, &fresh);
	/* Its children are still its children. */
	for (i = COW_CHILDREN_FAULTS; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(fresh.v[i], old->v[i])
			TH_LOG("%s", cow_key_names[i]);
	}
	ASSERT_EQ(ptrace(PTRACE_DETACH, c.pid, NULL, 0), 0);
	ASSERT_EQ(cow_child_wait(&c), 0);

	/* The old address space, the new one, and the children of both */
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, job.sh, variant->ahead);
	total = job.sh->last;
	for (i = 0; i < (int)ARRAY_SIZE(inherited); i++)
		total.v[inherited[i].own] += old->v[inherited[i].own];
	check_inherited(_metadata, &before, &after, &total);
}

/*
 * A child that runs in its parent's address space, as of vfork() and
 * posix_spawn(): what it does counts for the address space, and, as in
 * RUSAGE_CHILDREN, for a child that was waited for.
 */

static int guest(void *arg)
{
	struct job *job = arg;

	write_all(job->area);
	return job->fd < 0 ? 0 : exec_self(job);
}

static void check_guest(struct __test_metadata *_metadata, struct job *job,
			int ahead)
{
	unsigned long long faults = faults_for(PAGES, ahead);
	size_t len = PAGES * cow_page_size();
	struct cow_stats before, after, delta, child;
	struct cow_child idle;
	int pid, status;
	char *stack;
	size_t i;

	stack = cow_map(STACK_SIZE, 0);
	ASSERT_NE(stack, NULL);
	job->area = touched_pages();
	ASSERT_NE(job->area, NULL);
	ASSERT_EQ(cow_child_idle(&idle), 0);
	ASSERT_EQ(unshare_rest(job->area, len), 0);
	ASSERT_EQ(read_own(&before), 0);
	pid = clone(guest, stack + STACK_SIZE,
		    CLONE_VM | CLONE_VFORK | SIGCHLD, job);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_EQ(status, 0);
	ASSERT_EQ(read_own(&after), 0);
	cow_stats_delta(&delta, &before, &after);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_SUCCESS], PAGES - faults);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);
	/* And with exec(), what it did afterwards */
	child = job->sh->last;
	for (i = 0; i < ARRAY_SIZE(inherited); i++)
		child.v[inherited[i].own] += delta.v[inherited[i].own];
	check_inherited(_metadata, &before, &after, &child);
	ASSERT_EQ(cow_child_end(&idle), 0);
}

TEST_F_TIMEOUT(cow_counts, vfork, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh, .fd = -1 };

	check_guest(_metadata, &job, variant->ahead);
}

TEST_F_TIMEOUT(cow_counts, vfork_exec, TEST_TIMEOUT)
{
	struct job job;

	ASSERT_EQ(new_shared(&job), 0);
	check_guest(_metadata, &job, variant->ahead);
	check_spent(_metadata, job.sh, variant->ahead);
}

/*
 * Writing to the memory of somebody else
 */

enum way { PROC_MEM, VM_WRITEV, POKE };

static ssize_t write_remote(enum way way, pid_t pid, int mem, char *addr)
{
	char byte = 3;
	struct iovec from = { &byte, 1 }, to = { addr, 1 };

	switch (way) {
	case PROC_MEM:
		return pwrite(mem, &byte, 1, (uintptr_t)addr);
	case VM_WRITEV:
		return process_vm_writev(pid, &from, 1, &to, 1, 0);
	case POKE:
		return ptrace(PTRACE_POKEDATA, pid, addr, 3L) ? -1 : 1;
	}
	return -1;
}

/* The faults are those of the address space, not of who caused them. */
TEST_F_TIMEOUT(cow_counts, remote_write, TEST_TIMEOUT)
{
	static const char * const names[] = {
		"/proc/<pid>/mem", "process_vm_writev()", "PTRACE_POKEDATA"
	};
	struct cow_stats own[2], other[2], d;
	struct cow_child child;
	int i, mem, status;
	char path[64];
	enum way way;
	long minflt;
	char *area;

	area = touched_pages();
	ASSERT_NE(area, NULL);
	for (way = PROC_MEM; way <= POKE; way++) {
		ASSERT_EQ(cow_child_idle(&child), 0);
		snprintf(path, sizeof(path), "/proc/%d/mem", child.pid);
		mem = open(path, O_RDWR);
		ASSERT_GE(mem, 0);
		if (way == POKE) {
			ASSERT_EQ(ptrace(PTRACE_ATTACH, child.pid, NULL, NULL),
				  0);
			ASSERT_EQ(waitpid(child.pid, &status, 0), child.pid);
		}
		ASSERT_EQ(unshare_rest(area, PAGES * self->ps), 0);
		ASSERT_EQ(cow_stats_read_pid(&other[0], child.pid), 0);
		ASSERT_EQ(read_own(&own[0]), 0);
		minflt = cow_minflt();
		for (i = 0; i < PAGES; i++) {
			ASSERT_EQ(write_remote(way, child.pid, mem,
					       area + i * self->ps), 1)
				TH_LOG("%s", names[way]);
		}
		EXPECT_EQ(cow_minflt() - minflt, PAGES);
		ASSERT_EQ(read_own(&own[1]), 0);
		ASSERT_EQ(cow_stats_read_pid(&other[1], child.pid), 0);
		/* Nothing is copied ahead for somebody else. */
		cow_stats_delta(&d, &other[0], &other[1]);
		EXPECT_EQ(d.v[COW_FAULTS], (unsigned long long)PAGES)
			TH_LOG("by %s", names[way]);
		EXPECT_EQ(d.v[COW_REUSED], 0ULL);
		EXPECT_EQ(d.v[COW_ATTEMPTS], 0ULL);
		EXPECT_GE(d.v[COW_TOTAL_NS], d.v[COW_FAULTS]);
		EXPECT_EQ(memcmp(&own[0], &own[1], sizeof(own[0])), 0)
			TH_LOG("%s counts for the wrong process", names[way]);
		if (way == POKE) {
			ASSERT_EQ(ptrace(PTRACE_DETACH, child.pid, NULL, NULL),
				  0);
		}
		close(mem);
		ASSERT_EQ(cow_child_end(&child), 0);
	}
}

/* The kernel writes on our behalf: read() into fork-shared memory. */
TEST_F_TIMEOUT(cow_counts, kernel_write, TEST_TIMEOUT)
{
	unsigned long long faults = faults_for(PAGES, variant->ahead);
	struct cow_stats before, after, delta;
	size_t len = PAGES * self->ps;
	struct cow_child child;
	char *area;
	int fd;

	fd = open("/dev/zero", O_RDONLY);
	if (fd < 0)
		SKIP(return, "no /dev/zero");
	area = touched_pages();
	ASSERT_NE(area, NULL);
	ASSERT_EQ(cow_child_idle(&child), 0);
	ASSERT_EQ(unshare_rest(area, len), 0);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(read(fd, area, len), (ssize_t)len);
	ASSERT_EQ(read_own(&after), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	cow_stats_delta(&delta, &before, &after);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_SUCCESS], PAGES - faults);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);
	cow_unmap(area, len);
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--exec"))
		_exit(after_exec(atoi(argv[2])));
	return test_harness_run(argc, argv);
}
