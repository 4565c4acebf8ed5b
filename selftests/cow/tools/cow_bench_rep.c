// SPDX-License-Identifier: GPL-2.0
/*
 * The parts of a repetition: memory, children, writing
 *
 * After a fork all of the program's memory is shared, its stack and its
 * variables too. What the timed part writes to is therefore in memory that a
 * fork leaves alone (MAP_SHARED), or has been written to since the fork.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdio.h>
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

/* What gen of each page must be, for this process: children have their own. */
static unsigned char *expected;

static size_t ps;

int bench_rep_init(struct bench_rep *rep, size_t pages, size_t writes)
{
	ps = cow_page_size();
	expected = malloc(pages);
	rep->written = bench_alloc(pages);
	rep->latency = bench_alloc(writes * sizeof(*rep->latency));
	rep->max_latency = writes;
	return expected && rep->written && rep->latency ?
	       bench_count_init(rep, pages) : -ENOMEM;
}

static struct page_head *head(const struct bench_rep *rep, size_t i)
{
	return (struct page_head *)(rep->base + i * ps);
}

/*
 * Writing
 */

/*
 * Have as many pages in this CPU's lists as can be copied at most. To fetch a
 * thousand of them at once from the zone takes as long as 30 faults.
 */
static void free_pages(size_t pages)
{
	char *p = cow_map(pages * ps, 0);
	size_t i;

	if (!p)
		return;
	for (i = 0; i < pages; i++)
		cow_touch(p + i * ps, 1);
	cow_unmap(p, pages * ps);
}

static void have_pages(const struct bench_rep *rep)
{
	size_t pages = rep->plan->pages;
	size_t most = rep->plan->nr * (BENCH_MAX_BOUND + 1);

	if (rep->config->kind != BENCH_POPULATE && pages > most)
		pages = most;
	free_pages(pages);
	/*
	 * After so many, two larger ones in a row (slabs, say) would empty the
	 * lists; with each page that is allocated the kernel forgets half of them.
	 */
	free_pages(16);
}

/*
 * Pages at hand, the batches on their way to the LRU empty, a whole period of the
 * timer ahead: what is measured does not depend on what was before.
 */
static void begin_evenly(struct bench_rep *rep)
{
	if (rep->pass == BENCH_COUNTING)
		return;
	/* Once after each fork. A cgroup's limit leaves no room for that. */
	if (!rep->workload->memcg_percent && bench_forks(rep) && !rep->at_hand)
		have_pages(rep);
	rep->at_hand = true;
	cow_drain_lru();
	bench_await_tick();
}

static void write_alone(struct bench_rep *rep)
{
	struct bench_writer *w = &rep->writer[0];

	bench_rehearse(w);
	bench_count_begin(rep);
	begin_evenly(rep);
	bench_loop(w);
	bench_count_end(rep, false);
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
	bench_count_begin(rep);
	begin_evenly(rep);
	pthread_barrier_wait(&rep->barrier);
	pthread_barrier_wait(&rep->barrier);
	bench_count_end(rep, false);
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

void bench_wrote(struct bench_rep *rep, size_t page)
{
	if (!rep->copy)
		expected[page] = rep->gen;
	/* The floor copies a page each time. */
	rep->nr_written += rep->copy || !rep->written[page];
	rep->written[page] = true;
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
	for (k = first; k < first + nr; k++)
		bench_wrote(rep, plan->order[k]);
	return BENCH_OK;
}

int bench_populate(struct bench_rep *rep, size_t pages)
{
	bool mark = rep->marked && rep->pass == BENCH_TIMING;
	__u64 start;
	long faults;
	int ret;

	if (rep->config->kind != BENCH_POPULATE)
		return BENCH_OK;
	bench_now();
	cow_minflt();
	bench_count_begin(rep);
	begin_evenly(rep);
	faults = cow_minflt();
	start = bench_now();
	if (mark)
		cow_marker_start();
	ret = madvise(rep->base, pages * ps, MADV_POPULATE_WRITE);
	if (mark)
		cow_marker_stop();
	rep->elapsed += bench_since(start, bench_now());
	rep->faults += cow_minflt() - faults;
	bench_count_end(rep, true);
	if (ret)
		return bench_skip(rep, "MADV_POPULATE_WRITE: %s",
				  strerror(errno));
	return BENCH_OK;
}

/*
 * Children
 */

long bench_look(const struct bench_rep *rep, size_t first, size_t nr)
{
	size_t i;

	for (i = first; i < first + nr; i++) {
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
		if (what != BENCH_LOOK ||
		    cow_child_send(self, bench_look(rep, 0, rep->plan->pages) >= 0))
			return 1;
	}
	return 0;
}

int bench_share(struct bench_rep *rep)
{
	unsigned int i, nr = rep->workload->children ?: 1;
	int ret;

	cow_drain_lru();
	for (i = 0; bench_forks(rep) && i < nr; i++) {
		struct cow_child *c = &rep->child[rep->children];

		ret = cow_child_fork(c, rep->workload->child ?: child_main, rep);
		if (ret)
			return bench_fail(rep, "fork: %s", strerror(-ret));
		rep->children++;
		if (cow_child_recv(c) != 1 || cow_child_settle(c))
			return bench_fail(rep, "a child does not sleep");
	}
	rep->gen++;
	rep->at_hand = false;
	bench_look_at_frames(rep);
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
		if (cow_child_send(&rep->child[i], BENCH_LOOK) ||
		    cow_child_recv(&rep->child[i]))
			return bench_fail(rep, "child %u of %u sees what the program wrote",
					  i + 1, rep->children);
	}
	return bench_end_children(rep);
}

int bench_verify(struct bench_rep *rep)
{
	long wrong = bench_look(rep, 0, rep->plan->pages);

	if (wrong >= 0)
		return bench_fail(rep, "page %ld holds %d and not %d", wrong,
				  head(rep, wrong)->gen, expected[wrong]);
	if (rep->copy && memcmp(rep->copy + rep->plan->order[0] * ps,
				rep->base + rep->plan->order[0] * ps, ps))
		return bench_fail(rep, "memcpy() did not copy");
	return BENCH_OK;
}

int bench_fork_and_write(struct bench_rep *rep, size_t first, size_t nr)
{
	int ret;

	ret = bench_share(rep);
	if (!ret && rep->workload->gone)
		ret = bench_unshare(rep);
	if (!ret)
		ret = bench_populate(rep, rep->plan->pages);
	if (!ret)
		ret = bench_write(rep, first, nr);
	if (!ret)
		ret = bench_close(rep);
	if (!ret)
		ret = bench_unshare(rep);
	return ret;
}

int bench_once(struct bench_rep *rep)
{
	return bench_fork_and_write(rep, 0, rep->plan->nr) ?: bench_verify(rep);
}

/*
 * Memory
 */

#define THP_DIR		"/sys/kernel/mm/transparent_hugepage/"

static void thp_file(char *path, size_t len, unsigned int kb, const char *name)
{
	snprintf(path, len, THP_DIR "hugepages-%ukB/%s", kb, name);
}

/* How many folios of that size were allocated so far, or -1 */
static long folios_allocated(unsigned int kb)
{
	char path[128];
	long nr;

	thp_file(path, sizeof(path), kb, "stats/anon_fault_alloc");
	return cow_read_long(path, &nr) ? -1 : nr;
}

/*
 * Have only folios of kb where they are asked for. What may not be changed, or
 * is not there, shows when there are none.
 */
static void want_folios(unsigned int kb)
{
	unsigned int pmd_kb = cow_pmd_size() / 1024, size;
	char path[128], text[64];

	if (cow_read_file(THP_DIR "enabled", text, sizeof(text)) > 0 &&
	    strstr(text, "[never]"))
		bench_tweak(THP_DIR "enabled", "madvise");
	for (size = 2 * ps / 1024; size <= pmd_kb; size *= 2) {
		thp_file(path, sizeof(path), size, "enabled");
		bench_tweak(path, size == kb ? "madvise" : "never");
	}
}

static unsigned int folio_kb(const struct bench_rep *rep)
{
	unsigned int kb = rep->workload->folio_kb;

	if (kb == BENCH_PMD || rep->config->kind == BENCH_THP)
		return cow_pmd_size() / 1024;
	return kb;
}

static int check_folios(struct bench_rep *rep, unsigned int kb, long before)
{
	size_t len_kb = rep->present * ps / 1024;
	long now;

	if (kb * 1024 == cow_pmd_size()) {
		if (cow_smaps_kb(rep->base, "AnonHugePages") < (long)len_kb)
			return bench_skip(rep, "no huge pages to be had");
		return BENCH_OK;
	}
	now = folios_allocated(kb);
	if (before < 0 || now < 0)
		return bench_skip(rep, "no folios of %u kB: kernel without %shugepages-%ukB",
				  kb, THP_DIR, kb);
	if (now - before < (long)len_kb / kb)
		return bench_skip(rep, "only %ld of %zu folios of %u kB to be had",
				  now - before, len_kb / kb, kb);
	return BENCH_OK;
}

int bench_map(struct bench_rep *rep, void (*fill)(struct bench_rep *rep))
{
	size_t len = rep->plan->pages * ps, present = rep->present * ps;
	unsigned int kb = folio_kb(rep);
	long before = 0;

	rep->base = cow_map(len, cow_pmd_size());
	if (!rep->base)
		return bench_fail(rep, "no memory for the region");
	if (kb) {
		want_folios(kb);
		if (madvise(rep->base, len, MADV_HUGEPAGE))
			return bench_skip(rep, "MADV_HUGEPAGE: %s",
					  strerror(errno));
		before = folios_allocated(kb);
	}
	/* Only to be faster than by writing, and not on old kernels */
	madvise(rep->base, present, MADV_POPULATE_WRITE);
	fill(rep);
	if (kb && check_folios(rep, kb, before))
		return BENCH_SKIP;
	if (rep->config->kind == BENCH_MEMCPY) {
		rep->copy = cow_map(len, cow_pmd_size());
		if (!rep->copy)
			return bench_fail(rep, "no memory for the copy");
		memset(rep->copy, 0xff, len);
	}
	return BENCH_OK;
}

void bench_unmap(struct bench_rep *rep)
{
	size_t len = rep->plan->pages * ps;

	if (rep->base)
		cow_unmap(rep->base, len);
	if (rep->copy)
		cow_unmap(rep->copy, len);
	rep->base = NULL;
	rep->copy = NULL;
}

void bench_fill(struct bench_rep *rep)
{
	size_t i;

	for (i = 0; i < rep->present; i++) {
		head(rep, i)->gen = FIRST_GEN;
		head(rep, i)->tag = TAG(i);
	}
	memset(expected, FIRST_GEN, rep->present);
	memset(expected + rep->present, 0, rep->plan->pages - rep->present);
	rep->gen = FIRST_GEN;
}
