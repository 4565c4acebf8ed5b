// SPDX-License-Identifier: GPL-2.0
/*
 * Everything at once, for kernels with debugging checks (KASAN, KCSAN, lockdep,
 * DEBUG_VM, PAGE_TABLE_CHECK): threads write to fork-shared memory while others
 * fork, exit, page out, merge, move, protect, discard and collapse it, while
 * the cgroup's limit goes up and down, and while the settings of pre-copy
 * change. Every half of every page says what was written to it last; whoever
 * owns it checks that before he writes to it again, and every process checks
 * all of its memory before it exits.
 *
 * Takes 10 seconds, or COW_STRESS_SECONDS=N from the environment. COW_SEED
 * repeats the random numbers of a run, but not what the scheduler makes of them.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#ifndef MREMAP_MAYMOVE
#define MREMAP_MAYMOVE	1
#define MREMAP_FIXED	2
#endif

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE	0x100000
#endif

#define DEFAULT_SECONDS	10
#define SLOW_SECONDS	600	/* at most, until each operation has run */
/* The runner's own limit is in the file "settings". */
#define STRESS_TIMEOUT	86400

#define FAMILIES	3	/* processes with threads */
#define THREADS		3	/* of each */
#define CHILDREN	4	/* of each, at a time, with one thread */
#define STRIPE		4	/* pages in a row that one thread owns, and a VMA */
#define MAX_PAGES	1024	/* of a process: two page tables */
#define THP_DIR		"/sys/kernel/mm/transparent_hugepage/"

#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

/* A half of a page with such a tag looks like many others: something to merge */
#define EQUAL		0x80000000U

struct shared {
	unsigned int stop;
	unsigned int claimed;
	unsigned int failed;
	char msg[256];
	unsigned long writes;
	unsigned long forks;
	unsigned long ops[16];
};

struct thread {
	pthread_t id;
	unsigned int nr;
	__u64 rnd;
};

static struct shared *sh;
static size_t ps, nr_pages, pmd;
static __u64 seed;

/* Of this process; a child inherits its parent's. */
static char *area, *spare;
static __u32 tag_of[MAX_PAGES][2];
static unsigned int next_tag;
static bool alone;	/* a child: owns all pages, and needs no lock */
static bool no_lazyfree;	/* it would lose pages */
/* Else a thread that forks would wait forever. */
static pthread_rwlock_t lock =
	PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

enum op {
	WRITE_UP,
	WRITE_DOWN,
	WRITE_RANDOM,
	WRITE_EQUAL,
	DISCARD,
	LAZYFREE,
	UNMAP,
	MOVE,
	PROTECT,
	PAGEOUT,
	COLD,
	MERGE,
	HUGE,
	COLLAPSE,
	CLEAR_SOFT_DIRTY,
	NR_OPS
};

static void fail(const char *what, size_t page, __u64 want, __u64 got)
{
	if (__atomic_exchange_n(&sh->claimed, 1, __ATOMIC_RELAXED))
		return;
	snprintf(sh->msg, sizeof(sh->msg),
		 "%s: process %d, page %zu: %#llx instead of %#llx; COW_SEED=%llu",
		 what, getpid(), page, got, want, seed);
	__atomic_store_n(&sh->failed, 1, __ATOMIC_RELEASE);
}

static bool over(void)
{
	return READ_ONCE(sh->stop) || READ_ONCE(sh->claimed);
}

/*
 * Content
 */

static __u64 word_of(__u32 tag, size_t page, size_t half, size_t i)
{
	if (!tag)
		return 0;
	if (tag & EQUAL)
		return tag & (EQUAL | 3);
	return ((__u64)tag << 32 | page << 16 | half << 15 | i) *
	       0xd1342543de82ef95ULL;
}

static __u64 *half_at(char *base, size_t page, size_t half)
{
	return (__u64 *)(base + page * ps + half * ps / 2);
}

static bool half_is(const __u64 *p, __u32 tag, size_t page, size_t half,
		    __u64 *want, __u64 *got)
{
	size_t i;

	for (i = 0; i < ps / 2 / sizeof(*p); i++) {
		*want = word_of(tag, page, half, i);
		*got = READ_ONCE(p[i]);
		if (*want != *got)
			return false;
	}
	return true;
}

static bool check_page(const char *what, size_t page)
{
	__u64 want, got;
	size_t half;

	for (half = 0; half < 2; half++) {
		if (half_is(half_at(area, page, half), tag_of[page][half], page,
			    half, &want, &got))
			continue;
		fail(what, page, want, got);
		return false;
	}
	return true;
}

static bool check_all(const char *what)
{
	size_t page;

	for (page = 0; page < nr_pages; page++)
		if (!check_page(what, page))
			return false;
	return true;
}

static void write_half(size_t page, size_t half, __u32 tag)
{
	__u64 *p = half_at(area, page, half);
	size_t i;

	for (i = 0; i < ps / 2 / sizeof(*p); i++)
		WRITE_ONCE(p[i], word_of(tag, page, half, i));
	tag_of[page][half] = tag;
}

/* One half of the page or both, after a look at what is there */
static bool write_page(struct thread *t, size_t page, bool equal)
{
	__u32 tag = __atomic_add_fetch(&next_tag, 1, __ATOMIC_RELAXED);
	unsigned int which = cow_rand(&t->rnd) % 3;

	if (!check_page("a wrong page before a write", page))
		return false;
	tag = equal ? EQUAL | tag % 4 : (tag & ~EQUAL) | 1;
	if (equal || which != 0)
		write_half(page, 0, tag);
	if (equal || which != 1)
		write_half(page, 1, tag);
	return true;
}

static bool owned(const struct thread *t, size_t page)
{
	return alone || page / STRIPE % THREADS == t->nr;
}

/*
 * Operations; each is done with the lock held for reading
 */

static bool write_some(struct thread *t, enum op op)
{
	size_t at = cow_rand(&t->rnd) % nr_pages, page = at, i;
	size_t len = 1 + cow_rand(&t->rnd) % 160;

	for (i = 0; i < len && !over(); i++) {
		if (op == WRITE_RANDOM)
			page = cow_rand(&t->rnd) % nr_pages;
		if (owned(t, page) && !write_page(t, page, op == WRITE_EQUAL))
			return false;
		page = (page + (op == WRITE_DOWN ? nr_pages - 1 : 1)) % nr_pages;
	}
	__atomic_add_fetch(&sh->writes, i, __ATOMIC_RELAXED);
	return true;
}

/* A stripe that is t's: its first page, and how many pages it has */
static size_t any_stripe(struct thread *t, size_t *first)
{
	do {
		*first = cow_rand(&t->rnd) % (nr_pages / STRIPE) * STRIPE;
	} while (!owned(t, *first));
	return STRIPE;
}

static bool failed_call(const char *call, size_t page)
{
	/* Memory may be short; and a mapping too many is not an error here. */
	if (errno == ENOMEM || errno == EAGAIN)
		return true;
	fail(call, page, 0, errno);
	return false;
}

static bool discard(struct thread *t)
{
	size_t first, nr = any_stripe(t, &first), i;

	if (madvise(area + first * ps, nr * ps, MADV_DONTNEED))
		return failed_call("MADV_DONTNEED", first);
	for (i = first; i < first + nr; i++) {
		memset(tag_of[i], 0, sizeof(tag_of[i]));
		if (!check_page("not zero after MADV_DONTNEED", i))
			return false;
	}
	return true;
}

/*
 * A page that was swapped in without the swap cache is clean, and nowhere else.
 * Once a child that shares it has said MADV_FREE, 6.12 drops it for its parent,
 * too, whether anything is copied ahead or not.
 */
static int lose_page(void)
{
	char *page = mmap(NULL, ps, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pid_t pid;

	/* MADV_FREE waits in a per-CPU LRU batch. */
	if (page == MAP_FAILED || cow_pin_cpu())
		return 2;
	memset(page, 'x', ps);
	madvise(page, ps, MADV_PAGEOUT);
	cow_peek(page);
	pid = fork();
	if (!pid)
		_exit(!!madvise(page, ps, MADV_FREE));
	if (waitpid(pid, NULL, 0) != pid)
		return 2;
	madvise(page, ps, MADV_PAGEOUT);
	return *page != 'x';
}

/* Does this kernel? Found out by a process that may be pinned to a CPU. */
static bool loses_pages(void)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid)
		_exit(lose_page());
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
	       WEXITSTATUS(status) == 1;
}

/* Each page is what it was, or zero, until it is written to. */
static bool lazyfree(struct thread *t)
{
	size_t first, nr = any_stripe(t, &first), i;
	__u64 want, got;

	if (madvise(area + first * ps, nr * ps, MADV_FREE))
		return failed_call("MADV_FREE", first);
	for (i = first; i < first + nr; i++) {
		__u64 *p = half_at(area, i, 0);

		/* A write, so that it is not lost any more: 0 or not by now */
		__atomic_add_fetch(p, 0, __ATOMIC_RELAXED);
		if (half_is(p, 0, i, 0, &want, &got) &&
		    half_is(half_at(area, i, 1), 0, i, 1, &want, &got))
			memset(tag_of[i], 0, sizeof(tag_of[i]));
		if (!check_page("neither old nor zero after MADV_FREE", i))
			return false;
	}
	return true;
}

static bool unmap(struct thread *t)
{
	size_t first, nr = any_stripe(t, &first), i;
	char *addr = area + first * ps;

	/* In one call: another thread must not get the range in between. */
	if (mmap(addr, nr * ps, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != addr) {
		if (errno == ENOMEM)
			_exit(0);
		return failed_call("mmap", first);
	}
	for (i = first; i < first + nr; i++) {
		memset(tag_of[i], 0, sizeof(tag_of[i]));
		if (!check_page("not zero after mmap()", i))
			return false;
	}
	return true;
}

static bool move(struct thread *t)
{
	size_t first, nr = any_stripe(t, &first), len = nr * ps, i;
	char *here = area + first * ps, *there = spare + first * ps;

	if (mremap(here, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, there) !=
	    there)
		return failed_call("mremap", first);
	for (i = 0; i < nr; i++)
		cow_peek(there + i * ps);
	if (mremap(there, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, here) !=
	    here) {
		fail("mremap back", first, 0, errno);
		return false;
	}
	/* What the next one needs there */
	mmap(there, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
	     MAP_FIXED_NOREPLACE, -1, 0);
	for (i = first; i < first + nr; i++)
		if (!check_page("changed by mremap()", i))
			return false;
	return true;
}

static bool protect(struct thread *t)
{
	size_t first, nr = any_stripe(t, &first), i;
	char *addr = area + first * ps;

	if (mprotect(addr, nr * ps, PROT_READ))
		return failed_call("mprotect(PROT_READ)", first);
	for (i = first; i < first + nr; i++)
		if (!check_page("changed by mprotect()", i))
			return false;
	if (mprotect(addr, nr * ps, PROT_READ | PROT_WRITE)) {
		fail("mprotect", first, 0, errno);
		return false;
	}
	return true;
}

/* What does not change the content, of anybody's pages; may be refused */
static void advise(struct thread *t, enum op op)
{
	size_t first = cow_rand(&t->rnd) % (nr_pages / STRIPE) * STRIPE;
	size_t nr = (1 + cow_rand(&t->rnd) % 32) * STRIPE;
	char *half = area + first * ps / pmd * pmd;

	if (nr > nr_pages - first)
		nr = nr_pages - first;
	switch (op) {
	case PAGEOUT:
		madvise(area + first * ps, nr * ps, MADV_PAGEOUT);
		break;
	case COLD:
		madvise(area + first * ps, nr * ps, MADV_COLD);
		break;
	case HUGE:
		madvise(half, pmd, cow_rand(&t->rnd) % 2 ? MADV_HUGEPAGE :
							   MADV_NOHUGEPAGE);
		break;
	case COLLAPSE:
		madvise(half, pmd, MADV_COLLAPSE);
		break;
	case MERGE:
		madvise(area + first * ps, nr * ps, MADV_MERGEABLE);
		break;
	case CLEAR_SOFT_DIRTY:
		cow_write_file("/proc/self/clear_refs", "4");
		break;
	default:
		break;
	}
}

/* Mostly writes; operations across two page tables are rare. */
static enum op next_op(struct thread *t)
{
	if (cow_rand(&t->rnd) % 3)
		return cow_rand(&t->rnd) % (WRITE_EQUAL + 1);
	if (cow_rand(&t->rnd) % 16 == 0)
		return HUGE + cow_rand(&t->rnd) % 2;
	/* It ends all pre-copy in this process. */
	if (alone && cow_rand(&t->rnd) % 50 == 0)
		return CLEAR_SOFT_DIRTY;
	return DISCARD + cow_rand(&t->rnd) % (MERGE + 1 - DISCARD);
}

static bool do_op(struct thread *t)
{
	enum op op = next_op(t);

	__atomic_add_fetch(&sh->ops[op], 1, __ATOMIC_RELAXED);
	switch (op) {
	case WRITE_UP:
	case WRITE_DOWN:
	case WRITE_RANDOM:
	case WRITE_EQUAL:
		return write_some(t, op);
	case DISCARD:
		return discard(t);
	case LAZYFREE:
		return no_lazyfree || lazyfree(t);
	case UNMAP:
		return unmap(t);
	case MOVE:
		return move(t);
	case PROTECT:
		return protect(t);
	default:
		advise(t, op);
		return true;
	}
}

/*
 * Processes
 */

static void *run_thread(void *arg)
{
	struct thread *t = arg;
	bool ok = true;

	while (ok && !over()) {
		pthread_rwlock_rdlock(&lock);
		ok = do_op(t);
		pthread_rwlock_unlock(&lock);
	}
	return NULL;
}

static void judge(int status)
{
	/* SIGKILL: its parent has ended, or it is out of memory. */
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
		fail("a child was killed", 0, 0, WTERMSIG(status));
	else if (WIFEXITED(status) && WEXITSTATUS(status))
		fail("a child failed", 0, 0, WEXITSTATUS(status));
}

static void reap(int *children, bool all)
{
	int status;

	while (*children > 0 && waitpid(-1, &status, all ? 0 : WNOHANG) > 0) {
		(*children)--;
		judge(status);
	}
}

/* A child: alone with what it has inherited, for some time */
static int run_child(__u64 rnd)
{
	struct thread t = { .rnd = rnd };
	int i, status, ops = cow_rand(&t.rnd) % 24;
	pid_t pid;

	alone = true;
	/* Nobody else's tags */
	next_tag = cow_rand(&t.rnd);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!check_all("a wrong page after fork()"))
		return 1;
	for (i = 0; i < ops && !over(); i++)
		if (!do_op(&t))
			return 1;
	/* Some have a child of their own, and some of these end after it. */
	if (cow_rand(&t.rnd) % 3 == 0) {
		rnd = cow_rand(&t.rnd);
		pid = fork();
		if (!pid)
			_exit(run_child(rnd));
		while (pid > 0 && i++ < 32 && !over())
			if (!do_op(&t))
				return 1;
		if (pid > 0 && cow_rand(&t.rnd) % 4 && waitpid(pid, &status, 0) == pid)
			judge(status);
	}
	return !check_all("a wrong page at the end");
}

/* A process with threads, that forks as well */
static int run_family(unsigned int nr)
{
	struct thread threads[THREADS] = {};
	__u64 rnd = seed + nr, child_rnd;
	struct thread first = {};
	int children = 0, i;
	size_t page;
	pid_t pid;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	area = cow_map(nr_pages * ps, pmd);
	spare = mmap(NULL, nr_pages * ps, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!area || spare == MAP_FAILED)
		return 2;
	next_tag = nr << 24;
	first.rnd = rnd;
	alone = true;
	for (page = 0; page < nr_pages; page++)
		if (cow_rand(&rnd) % 8 &&
		    !write_page(&first, page, cow_rand(&rnd) % 4 == 0))
			return 1;
	alone = false;
	for (i = 0; i < THREADS; i++) {
		threads[i].nr = i;
		threads[i].rnd = cow_rand(&rnd);
		if (pthread_create(&threads[i].id, NULL, run_thread,
				   &threads[i]))
			return 2;
	}
	while (!over()) {
		reap(&children, false);
		usleep(cow_rand(&rnd) % 10000);
		if (children == CHILDREN)
			continue;
		child_rnd = cow_rand(&rnd);
		pthread_rwlock_wrlock(&lock);
		pid = fork();
		if (!pid)
			_exit(run_child(child_rnd));
		pthread_rwlock_unlock(&lock);
		if (pid > 0) {
			children++;
			__atomic_add_fetch(&sh->forks, 1, __ATOMIC_RELAXED);
		}
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i].id, NULL);
	reap(&children, true);
	return !check_all("a wrong page in the end");
}

/*
 * Settings
 */

FIXTURE(cow_stress)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char cgroup[COW_CGROUP_DIR];
};

/* The kernel as it is, or with all that this series adds */
FIXTURE_VARIANT(cow_stress)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(cow_stress, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(cow_stress, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(cow_stress)
{
	const char *reason;

	reason = cow_setup(&self->saved, variant->ahead,
			   COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	seed = cow_seed();
}

FIXTURE_TEARDOWN_PARENT(cow_stress)
{
	cow_cgroup_remove(self->cgroup);
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/*
 * Set memory.high to at least half of the usage. That causes reclaim, but no
 * OOM kill. Only for a moment, as tasks above the limit are throttled.
 */
static void limit_cgroup(const char *dir, __u64 *rnd)
{
	char text[32];
	long now;

	if (cow_cgroup_read(dir, "memory.current", &now))
		return;
	snprintf(text, sizeof(text), "%ld",
		 (long)(now / 2 + cow_rand(rnd) % (now + 1)));
	cow_cgroup_write(dir, "memory.high", text);
	usleep(3000);
	cow_cgroup_write(dir, "memory.high", "max");
}

/* Change a setting that must not affect correctness. */
static void meddle(const char *cgroup, int ahead, __u64 *rnd)
{
	int what = cow_rand(rnd) % 12;

	/* The first five are settings of copying ahead. */
	if (what < 5 && ahead == COW_PLAIN)
		return;
	switch (what) {
	case 0:
		cow_sysctl_write("cow_precopy_max", 1 + cow_rand(rnd) %
				 COW_MAX_AHEAD);
		break;
	case 1:
		cow_sysctl_write("cow_precopy_max", COW_ADAPTIVE_MAX);
		break;
	case 2:
		/* A fixed window for a moment */
		cow_sysctl_write("cow_precopy_pages", cow_rand(rnd) %
				 (COW_MAX_AHEAD + 1));
		usleep(5000);
		cow_sysctl_write("cow_precopy_pages", 0);
		break;
	case 3:
		cow_sysctl_write("cow_precopy", 0);
		usleep(2000);
		cow_sysctl_write("cow_precopy", 1);
		break;
	case 4:
		cow_sysctl_write("cow_stats", cow_rand(rnd) % 2);
		break;
	case 5:
		/* Migration, of all memory */
		if (cow_rand(rnd) % 16 == 0)
			cow_sysctl_write("compact_memory", 1);
		break;
	case 6:
		if (cow_may_change())
			cow_write_file(THP_DIR "hugepages-64kB/enabled",
				       cow_rand(rnd) % 2 ? "always" : "madvise");
		break;
	case 7:
	case 8:
		if (cgroup[0])
			limit_cgroup(cgroup, rnd);
		break;
	default:
		break;
	}
}

static void tell_what_there_is(struct __test_metadata *_metadata,
			       const char *cgroup)
{
	char text[1024], *line;

	if (cow_read_file("/proc/swaps", text, sizeof(text)) > 0) {
		line = strchr(text, '\n');
		TH_LOG("swap: %s", line && line[1] ? "yes" : "none");
	}
	TH_LOG("KSM: %s, huge pages of 64 kB: %s, memory cgroup: %s; COW_SEED=%llu",
	       access(COW_KSM_DIR "run", W_OK) ? "no" : "yes",
	       access(THP_DIR "hugepages-64kB/enabled", W_OK) ? "no" : "yes",
	       cgroup[0] ? "yes" : "no", seed);
}

/* Was each operation done, and were pages copied ahead, and made writable ahead? */
static bool all_done(const struct cow_stats *before, int ahead)
{
	struct cow_stats now, delta;
	int i;

	for (i = 0; i < NR_OPS; i++)
		if (i != CLEAR_SOFT_DIRTY && !READ_ONCE(sh->ops[i]))
			return false;
	if (ahead == COW_PLAIN || cow_count(&now))
		return true;
	cow_stats_delta(&delta, before, &now);
	return delta.v[COW_SUCCESS] && delta.v[COW_REUSE_AHEAD];
}

TEST_F_TIMEOUT(cow_stress, everything, STRESS_TIMEOUT)
{
	const char *env = getenv("COW_STRESS_SECONDS");
	long seconds = env ? atol(env) : DEFAULT_SECONDS;
	struct cow_stats before, after, delta;
	int i, left, status, waited = 0;
	pid_t family[FAMILIES];
	__u64 rnd = seed;
	time_t end;

	ps = cow_page_size();
	pmd = cow_pmd_size();
	nr_pages = 2 * pmd / ps;
	if (nr_pages > MAX_PAGES)
		SKIP(return, "a huge page is too large for this test");
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, sh);

	no_lazyfree = loses_pages();
	if (no_lazyfree)
		TH_LOG("without MADV_FREE, by which this kernel loses pages");

	/* What the kernel has of these; all of it needs root. */
	cow_cgroup_make(self->cgroup, "cow_stress");
	cow_tweak(&self->undo, "/proc/sys/kernel/numa_balancing", "1");
	cow_tweak(&self->undo, THP_DIR "hugepages-64kB/enabled", "always");
	cow_tweak(&self->undo, THP_DIR "hugepages-64kB/enabled", "madvise");
	cow_tweak(&self->undo, COW_KSM_DIR "sleep_millisecs", "20");
	cow_tweak(&self->undo, COW_KSM_DIR "smart_scan", "0");
	cow_tweak(&self->undo, COW_KSM_DIR "pages_to_scan", "500");
	cow_tweak(&self->undo, COW_KSM_DIR "run", "1");
	tell_what_there_is(_metadata, self->cgroup);
	ASSERT_EQ(0, cow_count(&before));

	for (i = 0; i < FAMILIES; i++) {
		family[i] = fork();
		ASSERT_LE(0, family[i]);
		if (family[i])
			continue;
		if (self->cgroup[0])
			cow_cgroup_enter(self->cgroup);
		_exit(run_family(i));
	}
	end = time(NULL) + seconds;
	/* A debug kernel may need longer until each operation has run. */
	while (!over() && (time(NULL) < end || (!all_done(&before, variant->ahead) &&
						time(NULL) < end + SLOW_SECONDS))) {
		meddle(self->cgroup, variant->ahead, &rnd);
		usleep(5000 + cow_rand(&rnd) % 20000);
	}
	WRITE_ONCE(sh->stop, 1);
	if (self->cgroup[0])
		cow_cgroup_write(self->cgroup, "memory.high", "max");

	/* Treat a process as hung if it has not exited after five minutes. */
	for (left = FAMILIES; left && waited < 3000; waited++) {
		for (i = 0; i < FAMILIES; i++) {
			if (!family[i] || waitpid(family[i], &status,
						  WNOHANG) != family[i])
				continue;
			EXPECT_EQ(0, status);
			family[i] = 0;
			left--;
		}
		usleep(100000);
	}
	EXPECT_EQ(0, left)
		TH_LOG("%d processes hang", left);
	for (i = 0; i < FAMILIES; i++)
		if (family[i])
			kill(family[i], SIGKILL);
	EXPECT_EQ(0, sh->failed)
		TH_LOG("%s", sh->msg);

	ASSERT_EQ(0, cow_count(&after));
	cow_stats_delta(&delta, &before, &after);
	TH_LOG("%ld s: %lu pages written, %lu forks", seconds, sh->writes,
	       sh->forks);
	TH_LOG("ahead: %llu copied, %llu made writable, %llu lost a race",
	       delta.v[COW_SUCCESS], delta.v[COW_REUSE_AHEAD],
	       delta.v[COW_SKIP_RACE]);
	for (i = 0; i < NR_OPS; i++)
		EXPECT_LT(0, sh->ops[i] + (i == CLEAR_SOFT_DIRTY))
			TH_LOG("operation %d was never done", i);
	if (variant->ahead != COW_PLAIN) {
		EXPECT_LT(0, delta.v[COW_SUCCESS]);
		EXPECT_LT(0, delta.v[COW_REUSE_AHEAD]);
	}
	EXPECT_LT(0, sh->forks);
}

TEST_HARNESS_MAIN
