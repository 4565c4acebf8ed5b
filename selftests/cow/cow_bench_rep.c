// SPDX-License-Identifier: GPL-2.0
/*
 * One repetition: memory, children, writing, counting
 *
 * After a fork all of the program's memory is shared, its stack and its
 * variables too. What the timed part writes to is therefore in memory that a
 * fork leaves alone (MAP_SHARED), or has been written to since the fork.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cow_bench.h"
#include "cow_marker.h"

/* What the first bytes of a page hold. */
struct page_head {
	unsigned char gen;
	unsigned char unused[7];
	__u64 tag;
};

#define TAG(i)		(0xc0b0000000000000ULL | (i))
#define FIRST_GEN	1

/* What a child is asked to do. */
#define CHILD_LOOK	1

/* What gen of each page must be, for this process: children have their own. */
static unsigned char *expected;

static size_t ps;

struct counters {
	struct cow_stats stats;
	long long flushes;
	long long shootdowns;
};

/* Shared, as are all things that the counting itself writes to. */
static struct counters *before, *after;

void *bench_alloc(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* Where it is allowed, and enough without */
	mlock(p, len);
	return p;
}

int bench_rep_init(struct bench_rep *rep, size_t pages, size_t writes)
{
	ps = cow_page_size();
	expected = malloc(pages);
	before = bench_alloc(sizeof(*before));
	after = bench_alloc(sizeof(*after));
	rep->pfn = bench_alloc(pages * sizeof(*rep->pfn));
	rep->pfn_now = bench_alloc(pages * sizeof(*rep->pfn_now));
	rep->written = bench_alloc(pages);
	rep->latency = bench_alloc(writes * sizeof(*rep->latency));
	return expected && before && after && rep->pfn && rep->pfn_now &&
	       rep->written && rep->latency ? 0 : -ENOMEM;
}

static struct page_head *head(const struct bench_rep *rep, size_t i)
{
	return (struct page_head *)(rep->base + i * ps);
}

static bool has_children(const struct bench_rep *rep)
{
	return rep->config->kind != BENCH_NOFORK &&
	       rep->config->kind != BENCH_MEMCPY;
}

/*
 * Writing
 */

static void read_counters(struct counters *c)
{
	if (cow_stats_read(&c->stats))
		memset(&c->stats, 0, sizeof(c->stats));
	c->flushes = cow_file_key("/proc/vmstat", "nr_tlb_local_flush_all");
	if (c->flushes >= 0)
		c->flushes += cow_file_key("/proc/vmstat",
					   "nr_tlb_local_flush_one");
	c->shootdowns = cow_file_key("/proc/vmstat", "nr_tlb_remote_flush");
}

static void count_begin(const struct bench_rep *rep)
{
	if (rep->pass != BENCH_COUNTING)
		return;
	/* The first reading writes to the memory that a reading needs. */
	read_counters(after);
	read_counters(before);
	read_counters(before);
}

/* ahead: whatever was copied was copied before the program writes to it */
static void count_end(struct bench_rep *rep, bool ahead)
{
	static struct cow_stats *d;
	struct bench_counts *c = &rep->counts;

	if (rep->pass != BENCH_COUNTING)
		return;
	read_counters(after);
	d = &after->stats;
	cow_stats_delta(d, &before->stats, &after->stats);
	if (ahead) {
		c->copied_ahead += d->v[COW_FAULTS];
		c->reused_ahead += d->v[COW_REUSED];
	} else {
		c->copied += d->v[COW_FAULTS];
		c->reused += d->v[COW_REUSED];
	}
	c->copied_ahead += d->v[COW_SUCCESS];
	c->reused_ahead += d->v[COW_REUSE_AHEAD];
	rep->copy_ns += d->v[COW_TOTAL_NS];
	rep->copies_timed += d->v[COW_FAULTS];
	if (after->flushes < 0 || before->flushes < 0)
		c->tlb_flushes = BENCH_UNKNOWN;
	else
		c->tlb_flushes += after->flushes - before->flushes;
	if (after->shootdowns < 0 || before->shootdowns < 0)
		c->tlb_shootdowns = BENCH_UNKNOWN;
	else
		c->tlb_shootdowns += after->shootdowns - before->shootdowns;
}

static void write_alone(struct bench_rep *rep)
{
	struct bench_writer *w = &rep->writer[0];

	bench_rehearse(w);
	count_begin(rep);
	bench_loop(w);
	count_end(rep, false);
}

static void *writer_thread(void *arg)
{
	struct bench_writer *w = arg;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(w->cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	bench_rehearse(w);
	pthread_barrier_wait(&w->rep->barrier);	/* ready */
	pthread_barrier_wait(&w->rep->barrier);	/* go */
	bench_loop(w);
	pthread_barrier_wait(&w->rep->barrier);	/* done */
	pthread_barrier_wait(&w->rep->barrier);	/* counted */
	return NULL;
}

static int write_by_threads(struct bench_rep *rep, unsigned int nr)
{
	unsigned int i;
	int ret;

	pthread_barrier_init(&rep->barrier, NULL, nr + 1);
	for (i = 0; i < nr; i++) {
		ret = pthread_create(&rep->writer[i].thread, NULL,
				     writer_thread, &rep->writer[i]);
		/* The others would wait for it for ever. */
		if (ret)
			return bench_fail(rep, "cannot create thread %u: %s", i,
					  strerror(ret));
	}
	pthread_barrier_wait(&rep->barrier);
	count_begin(rep);
	pthread_barrier_wait(&rep->barrier);
	pthread_barrier_wait(&rep->barrier);
	count_end(rep, false);
	pthread_barrier_wait(&rep->barrier);
	for (i = 0; i < nr; i++)
		pthread_join(rep->writer[i].thread, NULL);
	pthread_barrier_destroy(&rep->barrier);
	return BENCH_OK;
}

static void set_writer(struct bench_rep *rep, unsigned int i, size_t first,
		       size_t nr)
{
	struct bench_writer *w = &rep->writer[i];

	w->rep = rep;
	w->order = rep->plan->order + first;
	w->nr = nr;
	w->latency = NULL;
	w->cpu = bench_cpu(i);
	if (rep->pass == BENCH_LATENCY) {
		w->latency = rep->latency + rep->nr_latency;
		rep->nr_latency += nr;
	}
}

static void sum_up(struct bench_rep *rep, unsigned int nr)
{
	__u64 start = rep->writer[0].start, end = rep->writer[0].end;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		if (rep->writer[i].start < start)
			start = rep->writer[i].start;
		if (rep->writer[i].end > end)
			end = rep->writer[i].end;
		rep->faults += rep->writer[i].faults;
	}
	rep->elapsed += bench_since(start, end);
}

int bench_write(struct bench_rep *rep, size_t first, size_t nr)
{
	const struct bench_plan *plan = rep->plan;
	unsigned int i, writers = plan->writers;
	size_t k;
	int ret;

	if (writers) {
		for (i = 0; i < writers; i++)
			set_writer(rep, i, plan->slice[i],
				   plan->slice[i + 1] - plan->slice[i]);
		ret = write_by_threads(rep, writers);
		if (ret)
			return ret;
		sum_up(rep, writers);
	} else {
		set_writer(rep, 0, first, nr);
		write_alone(rep);
		sum_up(rep, 1);
	}
	for (k = first; k < first + nr; k++) {
		__u32 page = plan->order[k];

		if (!rep->copy)
			expected[page] = rep->gen;
		/* The floor copies a page each time. */
		rep->nr_written += rep->copy || !rep->written[page];
		rep->written[page] = true;
	}
	return BENCH_OK;
}

int bench_populate(struct bench_rep *rep)
{
	__u64 start;
	long faults;
	int ret;

	if (rep->config->kind != BENCH_POPULATE)
		return BENCH_OK;
	bench_now();
	cow_minflt();
	count_begin(rep);
	faults = cow_minflt();
	start = bench_now();
	cow_marker_start();
	ret = madvise(rep->base, rep->present * ps, MADV_POPULATE_WRITE);
	cow_marker_stop();
	rep->elapsed += bench_since(start, bench_now());
	rep->faults += cow_minflt() - faults;
	count_end(rep, true);
	if (ret)
		return bench_skip(rep, "MADV_POPULATE_WRITE: %s",
				  strerror(errno));
	return BENCH_OK;
}

/*
 * Children
 */

/* The first page that is not what this process should see, or -1 */
static long first_wrong(const struct bench_rep *rep)
{
	size_t i;

	for (i = 0; i < rep->plan->pages; i++) {
		const struct page_head *h = head(rep, i);

		if (h->gen != expected[i] ||
		    h->tag != (i < rep->present ? TAG(i) : 0))
			return i;
	}
	return -1;
}

static int child_main(struct cow_child *self, void *arg)
{
	struct bench_rep *rep = arg;
	int what;

	if (cow_child_send(self, 1))
		return 1;
	while ((what = cow_child_recv(self)) >= 0) {
		if (what != CHILD_LOOK ||
		    cow_child_send(self, first_wrong(rep) >= 0))
			return 1;
	}
	return 0;
}

static void look_at_frames(struct bench_rep *rep)
{
	if (rep->pass != BENCH_COUNTING)
		return;
	if (cow_pfns(rep->base, rep->plan->pages, rep->pfn))
		memset(rep->pfn, 0, rep->plan->pages * sizeof(*rep->pfn));
}

int bench_share(struct bench_rep *rep)
{
	unsigned int i, nr = rep->workload->children ?: 1;
	int ret;

	cow_drain_lru();
	for (i = 0; has_children(rep) && i < nr; i++) {
		struct cow_child *c = &rep->child[rep->children];

		ret = cow_child_fork(c, child_main, rep);
		if (ret)
			return bench_fail(rep, "fork: %s", strerror(-ret));
		rep->children++;
		if (cow_child_recv(c) != 1 || cow_child_settle(c))
			return bench_fail(rep, "a child does not sleep");
	}
	rep->gen++;
	memset(rep->written, 0, rep->plan->pages);
	look_at_frames(rep);
	return BENCH_OK;
}

int bench_end_children(struct bench_rep *rep)
{
	int ret = 0;

	while (rep->children)
		ret |= cow_child_end(&rep->child[--rep->children]);
	return ret ? bench_fail(rep, "a child did not end well") : BENCH_OK;
}

int bench_unshare(struct bench_rep *rep)
{
	unsigned int i;

	for (i = 0; i < rep->children; i++) {
		if (cow_child_send(&rep->child[i], CHILD_LOOK) ||
		    cow_child_recv(&rep->child[i]))
			return bench_fail(rep, "child %u of %u sees what the program wrote",
					  i + 1, rep->children);
	}
	return bench_end_children(rep);
}

int bench_close(struct bench_rep *rep)
{
	size_t i, changed = 0, fresh = 0;
	struct bench_counts *c = &rep->counts;

	if (rep->pass != BENCH_COUNTING)
		return BENCH_OK;
	c->rss_kb = cow_status_kb("VmRSS");
	c->private_kb = cow_smaps_kb(rep->base, "Private_Dirty");
	if (!cow_pfn_visible()) {
		if (has_children(rep))
			c->wasted = BENCH_UNKNOWN;
		return BENCH_OK;
	}
	if (cow_pfns(rep->base, rep->plan->pages, rep->pfn_now))
		return bench_fail(rep, "cannot read /proc/self/pagemap");
	for (i = 0; i < rep->plan->pages; i++) {
		if (!rep->pfn[i]) {
			fresh += rep->written[i];
		} else if (rep->pfn[i] != rep->pfn_now[i]) {
			changed++;
			c->wasted += !rep->written[i];
		}
	}
	rep->changed += changed;
	rep->fresh += fresh;
	return BENCH_OK;
}

int bench_verify(struct bench_rep *rep)
{
	long wrong = first_wrong(rep);

	if (wrong >= 0)
		return bench_fail(rep, "page %ld holds %d and not %d", wrong,
				  head(rep, wrong)->gen, expected[wrong]);
	if (rep->copy && memcmp(rep->copy + rep->plan->order[0] * ps,
				rep->base + rep->plan->order[0] * ps, ps))
		return bench_fail(rep, "memcpy() did not copy");
	return BENCH_OK;
}

int bench_once(struct bench_rep *rep)
{
	int ret;

	ret = bench_share(rep);
	if (!ret && rep->workload->gone)
		ret = bench_unshare(rep);
	if (!ret)
		ret = bench_populate(rep);
	if (!ret)
		ret = bench_write(rep, 0, rep->plan->nr);
	if (!ret)
		ret = bench_close(rep);
	if (!ret)
		ret = bench_unshare(rep);
	if (!ret)
		ret = bench_verify(rep);
	return ret;
}

/*
 * Memory
 */

static int fill_memory(struct bench_rep *rep)
{
	size_t i, len = rep->present * ps;

	if (rep->config->kind == BENCH_THP &&
	    madvise(rep->base, len, MADV_HUGEPAGE))
		return bench_skip(rep, "MADV_HUGEPAGE: %s", strerror(errno));
	/* Only to be faster than by writing, and not on old kernels */
	madvise(rep->base, len, MADV_POPULATE_WRITE);
	for (i = 0; i < rep->present; i++) {
		head(rep, i)->gen = FIRST_GEN;
		head(rep, i)->tag = TAG(i);
	}
	memset(expected, FIRST_GEN, rep->present);
	memset(expected + rep->present, 0, rep->plan->pages - rep->present);
	rep->gen = FIRST_GEN;
	if (rep->config->kind == BENCH_THP &&
	    cow_smaps_kb(rep->base, "AnonHugePages") * 1024L < (long)len)
		return bench_skip(rep, "no huge pages to be had");
	if (rep->copy)
		memset(rep->copy, 0xff, rep->plan->pages * ps);
	return BENCH_OK;
}

static int with_memory(struct bench_rep *rep)
{
	size_t len = rep->plan->pages * ps;
	int ret;

	rep->base = cow_map(len, cow_pmd_size());
	if (!rep->base)
		return bench_fail(rep, "no memory for the region");
	if (rep->config->kind == BENCH_MEMCPY) {
		rep->copy = cow_map(len, cow_pmd_size());
		if (!rep->copy) {
			cow_unmap(rep->base, len);
			return bench_fail(rep, "no memory for the copy");
		}
	}
	ret = fill_memory(rep);
	if (!ret)
		ret = rep->workload->run ? rep->workload->run(rep) :
		      bench_once(rep);
	/* Those that are left when something went wrong */
	if (rep->children)
		bench_end_children(rep);
	cow_unmap(rep->base, len);
	if (rep->copy)
		cow_unmap(rep->copy, len);
	return ret;
}

/* A kernel that does not count: what the frames tell */
static void counts_from_frames(struct bench_rep *rep)
{
	struct bench_counts *c = &rep->counts;

	if (!cow_pfn_visible()) {
		if (has_children(rep)) {
			c->copied = BENCH_UNKNOWN;
			c->copied_ahead = BENCH_UNKNOWN;
			c->reused = BENCH_UNKNOWN;
		}
		return;
	}
	if (rep->config->kind == BENCH_POPULATE) {
		c->copied_ahead = rep->changed;
		return;
	}
	c->copied = rep->changed;
	c->reused = rep->faults - rep->changed - rep->fresh;
	if (c->reused < 0)
		c->reused = BENCH_UNKNOWN;
}

int bench_rep_run(struct bench_rep *rep)
{
	int ret;

	rep->why[0] = '\0';
	rep->copy = NULL;
	rep->children = 0;
	rep->elapsed = 0;
	rep->nr_written = 0;
	rep->faults = 0;
	rep->changed = 0;
	rep->fresh = 0;
	rep->copy_ns = 0;
	rep->copies_timed = 0;
	rep->nr_latency = 0;
	rep->present = rep->plan->pages / (rep->workload->part ?: 1);
	memset(&rep->counts, 0, sizeof(rep->counts));

	ret = with_memory(rep);
	if (!ret && rep->pass == BENCH_COUNTING && access(COW_STATS_FILE, F_OK))
		counts_from_frames(rep);
	return ret;
}
