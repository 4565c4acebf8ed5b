// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that write to fork-shared memory at the same time
 *
 * A region straddles the border between two page tables. In every round the
 * region is fork-shared anew with a child, then threads write every word of
 * it, in an interleaving that makes the windows of their pre-copies overlap
 * (and, in some tests, while another thread unmaps, moves, protects or discards
 * pages in between, or forks). A word holds its own index and the number of
 * the round that wrote it. So it is known whether
 *
 * - a writer finds what it wrote in the last round; if not, a write was lost;
 * - a reader finds what was published as written; if not, a write was lost, or
 *   the read went through an old TLB entry;
 * - the child's snapshot is as it was.
 *
 * stale_tlb does the same for a single page at a time and leaves nothing to
 * chance: one CPU reads the neighbours without a pause, so that their old
 * translation is in its TLB, while another one makes the kernel replace them.
 *
 * The amount of work is a number of rounds, not a time: COW_OPS=N in the
 * environment runs N of them per test and number of writers.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE	0x100000
#endif
#ifndef MREMAP_MAYMOVE
#define MREMAP_MAYMOVE		1
#define MREMAP_FIXED		2
#endif

#define DEFAULT_ROUNDS	3
#define PAGES		96	/* of the region */
#define BLOCK		6	/* pages that one writer writes in a row */
#define STRIPE		4	/* pages that are disturbed, or not, in a row */
#define NR_STRIPES	(PAGES / STRIPE)
#define MAX_WRITERS	8
#define MAX_OTHERS	8	/* readers, disturbers */
#define FORKS		3	/* per round, by the thread that forks */

#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define LOAD_ACQUIRE(x)		__atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define STORE_RELEASE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELEASE)

/* Who writes what: */
enum grain {
	WORDS,			/* every n-th word */
	WHOLE_PAGES,		/* every n-th page */
	BLOCKS,			/* BLOCK pages, every n-th time */
};

/* What is done to every second stripe, which no writer writes to: */
enum disturbance {
	MPROTECT,
	DONTNEED,
	MUNMAP,
	MREMAP,
	NR_DISTURBANCES,
	NO_DISTURBANCE = NR_DISTURBANCES,
	ALL_DISTURBANCES,	/* each has every 4th of these stripes */
};

/* The first thing that went wrong, in whatever thread or process */
struct failure {
	unsigned int claimed;
	unsigned int valid;
	const char *what;
	long page;
	long word;
	__u64 want;
	__u64 seen;
};

/* Shared with the children: no part of the memory under test. */
struct shared {
	struct failure failure;
	/* The round that is being written; it ends when over says the same. */
	unsigned int round;
	unsigned int over;
	unsigned int passes;	/* of the children over their snapshots */
	/* The last round whose words of this page this writer has written */
	unsigned int done[MAX_WRITERS][PAGES];
};

struct job {
	struct shared *sh;
	char *area;
	char *spare;		/* as large, to move stripes to */
	__u64 *copy;		/* what a child forked in midway began with */
	size_t ps;
	size_t words;		/* per page */
	unsigned int rounds;
	unsigned int writers;
	enum grain grain;
	enum disturbance disturbance;
	bool forker;
	pthread_barrier_t start;
	pthread_barrier_t written;	/* by those that are bounded() */
	pthread_barrier_t end;
	bool quit;
};

struct thread {
	pthread_t id;
	struct job *job;
	unsigned int nr;
	/* Does its part of the round. */
	void (*fn)(struct thread *t, unsigned int round);
	enum disturbance disturbance;
};

static void fail(struct shared *sh, const char *what, long page, long word,
		 __u64 want, __u64 seen)
{
	struct failure *f = &sh->failure;

	if (__atomic_exchange_n(&f->claimed, 1, __ATOMIC_RELAXED))
		return;
	f->what = what;
	f->page = page;
	f->word = word;
	f->want = want;
	f->seen = seen;
	STORE_RELEASE(f->valid, 1);
}

static bool failed(struct shared *sh)
{
	return READ_ONCE(sh->failure.claimed);
}

/* What the word is after this round */
static __u64 value(struct job *job, unsigned int round, size_t page,
		   size_t word)
{
	return (__u64)(round + 1) << 32 | (page * job->words + word);
}

static unsigned int round_of(__u64 val)
{
	return (unsigned int)(val >> 32) - 1;
}

static __u64 *word_at(struct job *job, char *area, size_t page, size_t word)
{
	return (__u64 *)(area + page * job->ps) + word;
}

/* Is this page in a stripe that is unmapped, moved, protected or discarded? */
static bool disturbed(struct job *job, size_t page)
{
	return job->disturbance != NO_DISTURBANCE && (page / STRIPE) % 2;
}

/* Which words of the page are this writer's: first and distance */
static bool owned(struct job *job, unsigned int writer, size_t page,
		  size_t *first, size_t *step)
{
	*first = 0;
	*step = 1;
	if (disturbed(job, page))
		return false;
	/* The stripes in between belong to the disturbing thread: skip them. */
	if (job->disturbance != NO_DISTURBANCE)
		page = page / (2 * STRIPE) * STRIPE + page % STRIPE;
	switch (job->grain) {
	case WORDS:
		*first = writer;
		*step = job->writers;
		return true;
	case WHOLE_PAGES:
		return page % job->writers == writer;
	case BLOCKS:
		return page / BLOCK % job->writers == writer;
	}
	return false;
}

/* All words of the page as they are after this round? */
static bool check_page(struct job *job, char *area, size_t page,
		       unsigned int round, const char *what)
{
	__u64 want, seen;
	size_t word;

	for (word = 0; word < job->words; word++) {
		want = value(job, round, page, word);
		seen = READ_ONCE(*word_at(job, area, page, word));
		if (want != seen) {
			fail(job->sh, what, page, word, want, seen);
			return false;
		}
	}
	return true;
}

/* All of them zero? */
static bool check_zero(struct job *job, char *area, size_t page,
		       const char *what)
{
	__u64 seen;
	size_t word;

	for (word = 0; word < job->words; word++) {
		seen = READ_ONCE(*word_at(job, area, page, word));
		if (seen) {
			fail(job->sh, what, page, word, 0, seen);
			return false;
		}
	}
	return true;
}

static void write_page(struct job *job, char *area, size_t page,
		       unsigned int round, size_t first, size_t last)
{
	size_t word;

	for (word = first; word < last; word++)
		WRITE_ONCE(*word_at(job, area, page, word),
			   value(job, round, page, word));
}

/*
 * Writers and readers
 */

static void writer(struct thread *t, unsigned int round)
{
	struct job *job = t->job;
	size_t i, page, word, first, step;
	__u64 want, seen;

	for (i = 0; i < PAGES; i++) {
		/* Upward and downward, so that windows run ahead or into it. */
		page = round % 2 ? i : PAGES - 1 - i;
		if (!owned(job, t->nr, page, &first, &step))
			continue;
		for (word = first; word < job->words; word += step) {
			want = value(job, round - 1, page, word);
			seen = READ_ONCE(*word_at(job, job->area, page, word));
			if (want != seen) {
				fail(job->sh, "a write was lost",
				     page, word, want, seen);
				return;
			}
			WRITE_ONCE(*word_at(job, job->area, page, word),
				   value(job, round, page, word));
		}
		STORE_RELEASE(job->sh->done[t->nr][page], round);
		if (failed(job->sh))
			return;
	}
}

static void read_published(struct job *job, unsigned int w, size_t page,
			   unsigned int round)
{
	size_t word, first, step;
	unsigned int published;
	__u64 seen;

	if (!owned(job, w, page, &first, &step))
		return;
	published = LOAD_ACQUIRE(job->sh->done[w][page]);
	for (word = first; word < job->words; word += step) {
		seen = READ_ONCE(*word_at(job, job->area, page, word));
		if (round_of(seen) >= published && round_of(seen) <= round &&
		    seen == value(job, round_of(seen), page, word))
			continue;
		fail(job->sh, "an old or a wrong word was read", page, word,
		     value(job, published, page, word), seen);
		return;
	}
}

static void reader(struct thread *t, unsigned int round)
{
	struct job *job = t->job;
	unsigned int w;
	size_t page;

	/* At least once after the end, when everything is published. */
	do {
		for (page = 0; page < PAGES; page++)
			for (w = 0; w < job->writers; w++)
				read_published(job, w, page, round);
		sched_yield();
	} while (LOAD_ACQUIRE(job->sh->over) < round && !failed(job->sh));
}

/*
 * Disturbers
 */

/* One page at a time, while its neighbours are being written */
static bool do_dontneed(struct job *job, size_t page, unsigned int round)
{
	char *addr = job->area + page * job->ps;
	size_t i;

	for (i = 0; i < STRIPE; i++) {
		if (!check_page(job, job->area, page + i, round - 1,
				"changed before MADV_DONTNEED"))
			return false;
		if (madvise(addr + i * job->ps, job->ps, MADV_DONTNEED)) {
			fail(job->sh, "MADV_DONTNEED failed", page + i, -1, 0,
			     errno);
			return false;
		}
		/* Otherwise the old page has come back. */
		if (!check_zero(job, job->area, page + i,
				"not zero after MADV_DONTNEED"))
			return false;
	}
	return true;
}

static bool do_mprotect(struct job *job, size_t page, unsigned int round)
{
	char *addr = job->area + page * job->ps;
	size_t len = STRIPE * job->ps, i;

	if (mprotect(addr, len, PROT_READ))
		goto error;
	for (i = 0; i < STRIPE; i++)
		if (!check_page(job, job->area, page + i, round - 1,
				"changed by mprotect(PROT_READ)"))
			return false;
	if (mprotect(addr, len, PROT_NONE))
		goto error;
	/*
	 * The writers' part, too: it stays writable. Some security modules do
	 * not want it to be executable.
	 */
	if (page >= STRIPE && !mprotect(addr - len, len,
					PROT_READ | PROT_WRITE | PROT_EXEC) &&
	    mprotect(addr - len, len, PROT_READ | PROT_WRITE))
		goto error;
	if (mprotect(addr, len, PROT_READ | PROT_WRITE))
		goto error;
	for (i = 0; i < STRIPE; i++)
		if (!check_page(job, job->area, page + i, round - 1,
				"changed by mprotect()"))
			return false;
	return true;
error:
	fail(job->sh, "mprotect() failed", page, -1, 0, errno);
	return false;
}

static bool do_munmap(struct job *job, size_t page)
{
	char *addr = job->area + page * job->ps;
	size_t len = STRIPE * job->ps, i;

	if (munmap(addr, len)) {
		fail(job->sh, "munmap() failed", page, -1, 0, errno);
		return false;
	}
	if (mmap(addr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		 MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != addr) {
		fail(job->sh, "mmap() after munmap() failed", page, -1, 0,
		     errno);
		return false;
	}
	madvise(addr, len, MADV_NOHUGEPAGE);
	for (i = 0; i < STRIPE; i++)
		if (!check_zero(job, job->area, page + i,
				"not zero after munmap() and mmap()"))
			return false;
	return true;
}

static bool do_mremap(struct job *job, size_t page, unsigned int round)
{
	char *here = job->area + page * job->ps;
	char *there = job->spare + page * job->ps;
	size_t len = STRIPE * job->ps, i;

	if (mremap(here, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, there) !=
	    there)
		goto error;
	for (i = 0; i < STRIPE; i++) {
		if (!check_page(job, job->spare, page + i, round - 1,
				"changed by mremap()"))
			return false;
		/* Of these, one half there and the other one back here. */
		write_page(job, job->spare, page + i, round, 0,
			   job->words / 2);
	}
	if (mremap(there, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, here) !=
	    here)
		goto error;
	/* What the next one needs there. */
	if (mmap(there, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_FIXED_NOREPLACE, -1, 0) != there)
		goto error;
	for (i = 0; i < STRIPE; i++) {
		size_t word;

		for (word = 0; word < job->words; word++) {
			__u64 want, seen;

			want = value(job, word < job->words / 2 ?
				     round : round - 1, page + i, word);
			seen = READ_ONCE(*word_at(job, job->area, page + i,
						  word));
			if (want == seen)
				continue;
			fail(job->sh, "changed by mremap() back", page + i,
			     word, want, seen);
			return false;
		}
	}
	return true;
error:
	fail(job->sh, "mremap() failed", page, -1, 0, errno);
	return false;
}

static void disturber(struct thread *t, unsigned int round)
{
	struct job *job = t->job;
	size_t i, stripe, page;
	bool ok = true;

	for (i = 0; ok && i < NR_STRIPES; i++) {
		stripe = round % 2 ? i : NR_STRIPES - 1 - i;
		if (stripe % 2 == 0)
			continue;
		if (job->disturbance == ALL_DISTURBANCES &&
		    stripe / 2 % NR_DISTURBANCES != t->disturbance)
			continue;
		page = stripe * STRIPE;
		switch (t->disturbance) {
		case DONTNEED:
			ok = do_dontneed(job, page, round);
			break;
		case MPROTECT:
			ok = do_mprotect(job, page, round);
			break;
		case MUNMAP:
			ok = do_munmap(job, page);
			break;
		case MREMAP:
			ok = do_mremap(job, page, round);
			break;
		default:
			break;
		}
		for (page = stripe * STRIPE;
		     ok && page < (stripe + 1) * STRIPE; page++)
			write_page(job, job->area, page, round, 0, job->words);
		ok = ok && !failed(job->sh);
	}
}

/*
 * Children
 */

struct snapshot {
	struct job *job;
	unsigned int round;	/* in which the child was forked */
	unsigned int (*published)[PAGES];
};

/* Forked between two rounds: sees the memory as after the earlier one, for ever. */
static int check_snapshot(struct cow_child *self, void *arg)
{
	struct snapshot *snap = arg;
	struct job *job = snap->job;
	bool over;
	size_t page;

	(void)self;
	do {
		over = LOAD_ACQUIRE(job->sh->over) >= snap->round;
		for (page = 0; page < PAGES; page++)
			if (!check_page(job, job->area, page, snap->round - 1,
					"a child's snapshot changed"))
				return 1;
		__atomic_add_fetch(&job->sh->passes, 1, __ATOMIC_RELAXED);
		sched_yield();
	} while (!over);
	return 0;
}

/*
 * Forked during a round: each word is from before or after this round's write, and from
 * after it if the writer had published that before the fork. It never changes again.
 */
static int check_midway(struct cow_child *self, void *arg)
{
	struct snapshot *snap = arg;
	struct job *job = snap->job;
	size_t page, word, first, step;
	unsigned int w, min;
	__u64 seen;
	bool over;

	(void)self;
	for (page = 0; page < PAGES; page++) {
		if (disturbed(job, page))
			continue;
		for (w = 0; w < job->writers; w++) {
			if (!owned(job, w, page, &first, &step))
				continue;
			min = snap->published[w][page];
			if (min < snap->round - 1)
				min = snap->round - 1;
			for (word = first; word < job->words; word += step) {
				seen = READ_ONCE(*word_at(job, job->area, page,
							  word));
				if (seen != value(job, snap->round, page,
						  word) &&
				    seen != value(job, min, page, word)) {
					fail(job->sh, "wrong in a child forked midway",
					     page, word,
					     value(job, min, page, word), seen);
					return 1;
				}
				job->copy[page * job->words + word] = seen;
			}
		}
	}
	do {
		over = LOAD_ACQUIRE(job->sh->over) >= snap->round;
		for (page = 0; page < PAGES; page++) {
			if (disturbed(job, page))
				continue;
			for (word = 0; word < job->words; word++) {
				__u64 want;

				want = job->copy[page * job->words + word];
				seen = READ_ONCE(*word_at(job, job->area, page,
							  word));
				if (want == seen)
					continue;
				fail(job->sh, "the snapshot of a child forked midway changed",
				     page, word, want, seen);
				return 1;
			}
		}
		sched_yield();
	} while (!over);
	return 0;
}

/* Forks while the others write, and reaps after the round. */
static void forker(struct thread *t, unsigned int round)
{
	static unsigned int published[MAX_WRITERS][PAGES];
	struct job *job = t->job;
	struct snapshot snap = {
		.job = job,
		.round = round,
		.published = published,
	};
	struct cow_child child[FORKS];
	unsigned int i, w, nr = 0;
	size_t page;
	int ret;

	while (nr < FORKS && !failed(job->sh)) {
		for (w = 0; w < job->writers; w++)
			for (page = 0; page < PAGES; page++)
				published[w][page] =
					LOAD_ACQUIRE(job->sh->done[w][page]);
		ret = cow_child_fork(&child[nr], check_midway, &snap);
		if (ret) {
			fail(job->sh, "fork() failed", -1, -1, 0, -ret);
			break;
		}
		nr++;
	}
	while (LOAD_ACQUIRE(job->sh->over) < round && !failed(job->sh))
		usleep(100);
	for (i = 0; i < nr; i++) {
		ret = cow_child_end(&child[i]);
		if (ret)
			fail(job->sh, "a child forked midway ended badly", -1,
			     -1, 0, ret);
	}
}

/*
 * The rounds
 */

/* These make the round: the main thread waits until they have finished. */
static bool bounded(const struct thread *t)
{
	return t->fn == writer || t->fn == disturber;
}

static void *run_thread(void *arg)
{
	struct thread *t = arg;
	struct job *job = t->job;

	for (;;) {
		pthread_barrier_wait(&job->start);
		if (job->quit)
			return NULL;
		t->fn(t, job->sh->round);
		if (bounded(t))
			pthread_barrier_wait(&job->written);
		pthread_barrier_wait(&job->end);
	}
}

static void add_thread(struct thread *threads, unsigned int *nr,
		       struct job *job, unsigned int index,
		       void (*fn)(struct thread *t, unsigned int round),
		       enum disturbance disturbance)
{
	struct thread *t = &threads[(*nr)++];

	t->job = job;
	t->nr = index;
	t->fn = fn;
	t->disturbance = disturbance;
}

/* 0, or -1 */
static int start_threads(struct job *job, struct thread *threads,
			 unsigned int *nr, unsigned int readers)
{
	unsigned int i, n = 0, waiting = 0;

	for (i = 0; i < job->writers; i++)
		add_thread(threads, &n, job, i, writer, NO_DISTURBANCE);
	for (i = 0; i < readers; i++)
		add_thread(threads, &n, job, i, reader, NO_DISTURBANCE);
	for (i = 0; i < NR_DISTURBANCES; i++)
		if (job->disturbance == i ||
		    job->disturbance == ALL_DISTURBANCES)
			add_thread(threads, &n, job, i, disturber, i);
	if (job->forker)
		add_thread(threads, &n, job, 0, forker, NO_DISTURBANCE);
	for (i = 0; i < n; i++)
		waiting += bounded(&threads[i]);

	if (pthread_barrier_init(&job->start, NULL, n + 1) ||
	    pthread_barrier_init(&job->written, NULL, waiting + 1) ||
	    pthread_barrier_init(&job->end, NULL, n + 1))
		return -1;
	for (i = 0; i < n; i++)
		if (pthread_create(&threads[i].id, NULL, run_thread,
				   &threads[i]))
			return -1;
	*nr = n;
	return 0;
}

static unsigned int wanted_rounds(void)
{
	const char *ops = getenv("COW_OPS");
	int n = ops ? atoi(ops) : 0;

	return n > 0 ? n : DEFAULT_ROUNDS;
}

static void report(struct __test_metadata *_metadata, struct failure *f)
{
	/* Claimed, but not yet told: wait for it. */
	while (READ_ONCE(f->claimed) && !LOAD_ACQUIRE(f->valid))
		sched_yield();
	if (f->valid)
		TH_LOG("%s: page %ld, word %ld: %#llx instead of %#llx",
		       f->what, f->page, f->word, (unsigned long long)f->seen,
		       (unsigned long long)f->want);
	EXPECT_EQ(f->valid, 0U);
}

static void run(struct __test_metadata *_metadata, enum grain grain,
		unsigned int writers, enum disturbance disturbance,
		bool fork_midway)
{
	struct thread threads[MAX_WRITERS + MAX_OTHERS] = {};
	size_t ps = cow_page_size(), pmd = cow_pmd_size();
	size_t half = PAGES / 2 * ps, page;
	struct job job = {
		.ps = ps,
		.words = ps / sizeof(__u64),
		.rounds = wanted_rounds(),
		.writers = writers,
		.grain = grain,
		.disturbance = disturbance,
		.forker = fork_midway,
	};
	unsigned int nr = 0, round, i;
	struct snapshot snap = { .job = &job };
	struct cow_child child;
	char *map;
	int ret;

	job.sh = mmap(NULL, sizeof(*job.sh), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(job.sh, MAP_FAILED);
	job.spare = mmap(NULL, 2 * half, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(job.spare, MAP_FAILED);
	job.copy = cow_map(2 * half, 0);
	ASSERT_NE(job.copy, NULL);
	/* One half in this page table, one in the next. */
	map = cow_map(pmd + half, pmd);
	ASSERT_NE(map, NULL);
	job.area = map + pmd - half;
	for (page = 0; page < PAGES; page++)
		write_page(&job, job.area, page, 0, 0, job.words);
	ASSERT_EQ(start_threads(&job, threads, &nr, fork_midway ? 1 : 2), 0);

	for (round = 1; round <= job.rounds && !failed(job.sh); round++) {
		snap.round = round;
		job.sh->round = round;
		ASSERT_EQ(cow_child_fork(&child, check_snapshot, &snap), 0);

		pthread_barrier_wait(&job.start);
		pthread_barrier_wait(&job.written);
		for (page = 0; page < PAGES && !failed(job.sh); page++)
			check_page(&job, job.area, page, round,
				   "lost at the end of the round");
		STORE_RELEASE(job.sh->over, round);
		pthread_barrier_wait(&job.end);

		ret = cow_child_end(&child);
		if (ret)
			fail(job.sh, "a child ended badly", -1, -1, 0, ret);
	}

	job.quit = true;
	pthread_barrier_wait(&job.start);
	for (i = 0; i < nr; i++)
		pthread_join(threads[i].id, NULL);
	report(_metadata, &job.sh->failure);
	EXPECT_GE(job.sh->passes, job.rounds);

	pthread_barrier_destroy(&job.start);
	pthread_barrier_destroy(&job.written);
	pthread_barrier_destroy(&job.end);
	cow_unmap(map, pmd + half);
	cow_unmap(job.copy, 2 * half);
	munmap(job.spare, 2 * half);
	munmap(job.sh, sizeof(*job.sh));
}

/*
 * The tests
 */

FIXTURE(concurrent_writers)
{
	struct cow_settings saved;
	struct cow_undo undo;
	struct cow_stats before;
};

FIXTURE_VARIANT(concurrent_writers)
{
	int ahead;
	bool folios;
};

FIXTURE_VARIANT_ADD(concurrent_writers, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(concurrent_writers, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(concurrent_writers, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(concurrent_writers, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(concurrent_writers, adaptive_folios) { .ahead = COW_ADAPTIVE, .folios = true };

FIXTURE_SETUP(concurrent_writers)
{
	const char *reason;

	reason = cow_setup_folios(&self->saved, &self->undo, variant->ahead,
				  variant->folios, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	cow_map_hugepage = variant->folios;
	ASSERT_EQ(cow_count_own(&self->before), 0);
}

FIXTURE_TEARDOWN_PARENT(concurrent_writers)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* Or else it tested nothing. */
static void expect_ahead(struct __test_metadata *_metadata,
			 const struct cow_stats *before, int ahead)
{
	unsigned long long copied = cow_copied_ahead(before);

	EXPECT_EQ(copied > 0, ahead != 0)
		TH_LOG("%llu pages were copied ahead", copied);
}

static const unsigned int crowds[] = { 2, 3, MAX_WRITERS };

static void run_crowds(struct __test_metadata *_metadata, enum grain grain)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(crowds); i++)
		run(_metadata, grain, crowds[i], NO_DISTURBANCE, false);
}

TEST_F_TIMEOUT(concurrent_writers, words, TEST_TIMEOUT)
{
	run_crowds(_metadata, WORDS);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, pages, TEST_TIMEOUT)
{
	run_crowds(_metadata, WHOLE_PAGES);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, blocks, TEST_TIMEOUT)
{
	run_crowds(_metadata, BLOCKS);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

static void run_disturbed(struct __test_metadata *_metadata,
			  enum disturbance disturbance, bool fork_midway)
{
	run(_metadata, WORDS, 2, disturbance, fork_midway);
	run(_metadata, WHOLE_PAGES, 4, disturbance, fork_midway);
	run(_metadata, BLOCKS, MAX_WRITERS, disturbance, fork_midway);
}

TEST_F_TIMEOUT(concurrent_writers, with_fork, TEST_TIMEOUT)
{
	run_disturbed(_metadata, NO_DISTURBANCE, true);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, with_mprotect, TEST_TIMEOUT)
{
	run_disturbed(_metadata, MPROTECT, false);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, with_dontneed, TEST_TIMEOUT)
{
	run_disturbed(_metadata, DONTNEED, false);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, with_munmap, TEST_TIMEOUT)
{
	run_disturbed(_metadata, MUNMAP, false);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, with_mremap, TEST_TIMEOUT)
{
	run_disturbed(_metadata, MREMAP, false);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, with_everything, TEST_TIMEOUT)
{
	run_disturbed(_metadata, ALL_DISTURBANCES, true);
	expect_ahead(_metadata, &self->before, variant->ahead);
}

/*
 * The old translation of a neighbour
 *
 * The writer writes the pages of a group in order. The first write makes the
 * kernel replace the pages behind it, too, which the reader has in its TLB. The
 * next writes take no fault any more, so that nothing flushes these
 * translations if the pre-copy did not.
 *
 * Backward, an adaptive window is below the fault. Pages are numbered in the
 * order of writing.
 */
#define TLB_GROUP	(COW_MAX_AHEAD + 1)
#define TLB_PAGES	(8 * TLB_GROUP)
#define TLB_OLD		1
#define TLB_NEW		2

struct tlb_control {
	/* How many pages have been written */
	unsigned int written;
	/* The reader has read everything near this number, and it was right */
	unsigned int ack;
	struct failure failure;
};

struct tlb_job {
	struct tlb_control *ctl;	/* shared: not fork-shared */
	char *area;
	size_t ps;
	int cpu;
	bool backward;
};

static __u64 *tlb_page(const struct tlb_job *job, unsigned int page)
{
	if (job->backward)
		page = TLB_PAGES - 1 - page;
	return (__u64 *)(job->area + page * job->ps);
}

static int pin_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set);
}

/* No system call in the loop, which might flush the TLB or sleep. */
static void *tlb_reader(void *arg)
{
	struct tlb_job *job = arg;
	struct tlb_control *ctl = job->ctl;
	unsigned int written, page, first, last;
	struct failure *f = &ctl->failure;
	__u64 seen, want;

	if (pin_to(job->cpu)) {
		f->what = "pinning the reader failed";
		STORE_RELEASE(f->valid, 1);
		return NULL;
	}
	do {
		written = LOAD_ACQUIRE(ctl->written);
		/* The group of the last write, and that of the next one. */
		first = written ? (written - 1) / TLB_GROUP * TLB_GROUP : 0;
		last = (written / TLB_GROUP + 1) * TLB_GROUP;
		if (last > TLB_PAGES)
			last = TLB_PAGES;
		for (page = first; page < last; page++) {
			seen = READ_ONCE(*tlb_page(job, page));
			/* This one may be written right now. */
			if (page == written)
				continue;
			want = page < written ? TLB_NEW : TLB_OLD;
			if (seen == want)
				continue;
			f->what = "the reader's TLB has an old page";
			f->page = tlb_page(job, page) - tlb_page(job, 0);
			f->page /= (long)(job->ps / sizeof(__u64));
			f->word = 0;
			f->want = want;
			f->seen = seen;
			STORE_RELEASE(f->valid, 1);
			return NULL;
		}
		STORE_RELEASE(ctl->ack, written);
	} while (written < TLB_PAGES);
	return NULL;
}

/* Idle until the parent says so, then all must be old. */
static int tlb_child(struct cow_child *self, void *arg)
{
	struct tlb_job *job = arg;
	unsigned int page;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 2;
	for (page = 0; page < TLB_PAGES; page++)
		if (*tlb_page(job, page) != TLB_OLD)
			return 1;
	return 0;
}

static int two_cpus(int *cpu)
{
	cpu_set_t set;
	int i, n = 0;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 0;
	for (i = 0; i < CPU_SETSIZE && n < 2; i++)
		if (CPU_ISSET(i, &set))
			cpu[n++] = i;
	return n;
}

static void stale_tlb(struct __test_metadata *_metadata, const int cpu[2], bool backward)
{
	size_t ps = cow_page_size(), len = TLB_PAGES * ps;
	struct tlb_job job = { .ps = ps, .backward = backward };
	unsigned int page, round, rounds = wanted_rounds();
	struct cow_child child;
	pthread_t reader_id;

	job.cpu = cpu[1];
	ASSERT_EQ(pin_to(cpu[0]), 0);
	job.ctl = mmap(NULL, sizeof(*job.ctl), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(job.ctl, MAP_FAILED);
	job.area = cow_map(len, TLB_PAGES * ps);
	ASSERT_NE(job.area, NULL);

	for (round = 0; round < rounds; round++) {
		for (page = 0; page < TLB_PAGES; page++)
			WRITE_ONCE(*tlb_page(&job, page), TLB_OLD);
		memset(job.ctl, 0, sizeof(*job.ctl));
		job.ctl->ack = -1;
		ASSERT_EQ(cow_child_fork(&child, tlb_child, &job), 0);
		ASSERT_EQ(cow_child_recv(&child), 1);
		ASSERT_EQ(cow_child_settle(&child), 0);
		ASSERT_EQ(pthread_create(&reader_id, NULL, tlb_reader, &job),
			  0);
		for (page = 0; page < TLB_PAGES; page++) {
			while (LOAD_ACQUIRE(job.ctl->ack) != page &&
			       !LOAD_ACQUIRE(job.ctl->failure.valid))
				;
			if (LOAD_ACQUIRE(job.ctl->failure.valid))
				break;
			WRITE_ONCE(*tlb_page(&job, page), TLB_NEW);
			STORE_RELEASE(job.ctl->written, page + 1);
		}
		ASSERT_EQ(pthread_join(reader_id, NULL), 0);
		job.ctl->failure.claimed = job.ctl->failure.valid;
		report(_metadata, &job.ctl->failure);
		ASSERT_EQ(job.ctl->failure.valid, 0U);
		ASSERT_EQ(cow_child_send(&child, 1), 0);
		ASSERT_EQ(cow_child_end(&child), 0);
	}
	cow_unmap(job.area, len);
	munmap(job.ctl, sizeof(*job.ctl));
}

/* Without copies ahead there was no old translation to flush: nothing was tested. */
static void expect_ahead_of(struct __test_metadata *_metadata,
			    const struct cow_stats *before, int ahead)
{
	unsigned int pages = TLB_PAGES - cow_upward(TLB_PAGES, ahead,
						    false).faults;

	EXPECT_GE(cow_copied_ahead(before),
		  (unsigned long long)wanted_rounds() * pages);
}

/*
 * Two processes that write to the same pages at the same time. When one has copied, the
 * other one is the last to have the page, and may write to it: if the copy is not complete
 * by then, it gets what was written.
 */
#define RIVAL_ROUNDS	40

struct rivals {
	char *area;
	unsigned int *arrived;	/* shared memory */
	size_t ps;
	int round, me;
};

static __u64 rival_word(const struct rivals *r, int page, size_t word, int owner)
{
	return ((__u64)(r->round * 4 + owner) << 32) | (page << 16) | word;
}

/* Each its own word of each page, at about the same time as the other one */
static void write_in_turn(const struct rivals *r)
{
	size_t last = r->ps / sizeof(__u64) - 1, word = r->me ? last : 0;
	unsigned int page, spin;

	for (page = 0; page < TLB_PAGES; page++) {
		__u64 *p = (__u64 *)(r->area + page * r->ps);

		__atomic_add_fetch(r->arrived, 1, __ATOMIC_ACQ_REL);
		while (LOAD_ACQUIRE(*r->arrived) < 2 * (page + 1))
			;
		/* One of them is later, by up to a fault or two. */
		for (spin = (page & 1) == r->me ? page / 2 % 8 * 400 : 0; spin; spin--)
			asm volatile("");
		WRITE_ONCE(p[word], rival_word(r, page, word, 1 + r->me));
	}
}

/* The first page with anything but our own word and what was there before, or -1 */
static int mixed_page(const struct rivals *r)
{
	size_t words = r->ps / sizeof(__u64), own = r->me ? words - 1 : 0, word;
	unsigned int page;

	for (page = 0; page < TLB_PAGES; page++) {
		const __u64 *p = (__u64 *)(r->area + page * r->ps);

		for (word = 0; word < words; word++)
			if (p[word] != rival_word(r, page, word, word == own ? 1 + r->me : 0))
				return page;
	}
	return -1;
}

static int rival_child(struct cow_child *self, void *arg)
{
	struct rivals r = *(struct rivals *)arg;

	r.me = 1;
	if (cow_leave_cpu())
		return 101;
	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 102;
	write_in_turn(&r);
	return 1 + mixed_page(&r);
}

TEST_F_TIMEOUT(concurrent_writers, processes, TEST_TIMEOUT)
{
	struct rivals r = { .ps = cow_page_size() };
	size_t len = TLB_PAGES * r.ps, i;
	struct cow_child child;

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	ASSERT_EQ(cow_pin_cpu(), 0);
	r.arrived = mmap(NULL, sizeof(*r.arrived), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(r.arrived, MAP_FAILED);
	r.area = cow_map(len, len);
	ASSERT_NE(r.area, NULL);
	for (r.round = 0; r.round < RIVAL_ROUNDS; r.round++) {
		for (i = 0; i < len / sizeof(__u64); i++)
			((__u64 *)r.area)[i] = rival_word(&r, i * sizeof(__u64) / r.ps,
							  i % (r.ps / sizeof(__u64)), 0);
		*r.arrived = 0;
		ASSERT_EQ(cow_child_fork(&child, rival_child, &r), 0);
		ASSERT_EQ(cow_child_recv(&child), 1);
		ASSERT_EQ(cow_child_send(&child, 2), 0);
		write_in_turn(&r);
		EXPECT_EQ(mixed_page(&r), -1)
			TH_LOG("round %d", r.round);
		/* 1 + the page that has the parent's word */
		ASSERT_EQ(cow_child_wait(&child), 0)
			TH_LOG("round %d", r.round);
	}
	cow_unmap(r.area, len);
	munmap(r.arrived, sizeof(*r.arrived));
}

TEST_F_TIMEOUT(concurrent_writers, stale_tlb, TEST_TIMEOUT)
{
	int cpu[2];

	if (two_cpus(cpu) < 2)
		SKIP(return, "needs two CPUs");
	stale_tlb(_metadata, cpu, false);
	expect_ahead_of(_metadata, &self->before, variant->ahead);
}

TEST_F_TIMEOUT(concurrent_writers, stale_tlb_below, TEST_TIMEOUT)
{
	int cpu[2];

	if (two_cpus(cpu) < 2)
		SKIP(return, "needs two CPUs");
	stale_tlb(_metadata, cpu, true);
	/* A fixed window is always above the fault. */
	if (variant->ahead == COW_ADAPTIVE)
		expect_ahead_of(_metadata, &self->before, variant->ahead);
}

TEST_HARNESS_MAIN
