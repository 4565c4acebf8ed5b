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

struct counters {
	struct cow_stats stats;
	struct cow_hist copy;
	struct cow_hist fault;
	long long flushes;
	long long shootdowns;
};

/* Shared, as are all things that the counting itself writes to. */
static struct counters *before, *after, *delta;

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
	delta = bench_alloc(sizeof(*delta));
	rep->pfn = bench_alloc(pages * sizeof(*rep->pfn));
	rep->pfn_now = bench_alloc(pages * sizeof(*rep->pfn_now));
	rep->written = bench_alloc(pages);
	rep->latency = bench_alloc(writes * sizeof(*rep->latency));
	rep->max_latency = writes;
	return expected && before && after && delta && rep->pfn && rep->pfn_now &&
	       rep->written && rep->latency ? 0 : -ENOMEM;
}

static struct page_head *head(const struct bench_rep *rep, size_t i)
{
	return (struct page_head *)(rep->base + i * ps);
}

bool bench_forks(const struct bench_rep *rep)
{
	return rep->config->kind != BENCH_NOFORK &&
	       rep->config->kind != BENCH_MEMCPY;
}

/*
 * Writing
 */

/* This process' own, or the system's where the kernel has no others */
static void read_counters(const struct bench_rep *rep, struct counters *c)
{
	if (rep->kernel_times && cow_hist_read(&c->copy, &c->fault)) {
		memset(&c->copy, 0, sizeof(c->copy));
		memset(&c->fault, 0, sizeof(c->fault));
	}
	if (cow_stats_read_pid(&c->stats, 0) && cow_stats_read(&c->stats))
		memset(&c->stats, 0, sizeof(c->stats));
	c->flushes = cow_file_key("/proc/vmstat", "nr_tlb_local_flush_all");
	if (c->flushes >= 0)
		c->flushes += cow_file_key("/proc/vmstat",
					   "nr_tlb_local_flush_one");
	c->shootdowns = cow_file_key("/proc/vmstat", "nr_tlb_remote_flush");
}

void bench_count_begin(const struct bench_rep *rep)
{
	if (rep->pass != BENCH_COUNTING)
		return;
	/* The first reading writes to the memory that a reading needs. */
	read_counters(rep, after);
	read_counters(rep, before);
	read_counters(rep, before);
}

static void add_hist(struct cow_hist *sum, const struct cow_hist *from,
		     const struct cow_hist *to)
{
	size_t i;

	for (i = 0; i < COW_HIST_BUCKETS; i++)
		sum->count[i] += to->count[i] - from->count[i];
}

static void count_times(struct bench_times *t)
{
	const struct cow_stats *d = &delta->stats;

	t->total_ns += d->v[COW_FAULT_TOTAL_NS];
	t->faults += d->v[COW_FAULTS] + d->v[COW_REUSED];
	add_hist(&t->copy, &before->copy, &after->copy);
	add_hist(&t->fault, &before->fault, &after->fault);
}

/* ahead: whatever was copied was copied before the program writes to it */
void bench_count_end(struct bench_rep *rep, bool ahead)
{
	struct bench_counts *c = &rep->counts;
	struct cow_stats *d = &delta->stats;

	if (rep->pass != BENCH_COUNTING)
		return;
	read_counters(rep, after);
	cow_stats_delta(d, &before->stats, &after->stats);
	if (rep->kernel_times)
		count_times(&rep->times);
	if (rep->workload->count_children) {
		d->v[COW_FAULTS] += d->v[COW_CHILDREN_FAULTS];
		d->v[COW_REUSED] += d->v[COW_CHILDREN_REUSED];
		d->v[COW_TOTAL_NS] += d->v[COW_CHILDREN_TOTAL_NS];
		d->v[COW_SUCCESS] += d->v[COW_CHILDREN_SUCCESS];
		d->v[COW_REUSE_AHEAD] += d->v[COW_CHILDREN_REUSE_AHEAD];
	}
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

static long long pages_swapped(void)
{
	return cow_file_key("/proc/vmstat", "pswpin") +
	       cow_file_key("/proc/vmstat", "pswpout");
}

void bench_look_at_frames(struct bench_rep *rep)
{
	memset(rep->written, 0, rep->plan->pages);
	if (rep->pass != BENCH_COUNTING)
		return;
	rep->swapped -= pages_swapped();
	if (cow_pfns(rep->base, rep->plan->pages, rep->pfn))
		memset(rep->pfn, 0, rep->plan->pages * sizeof(*rep->pfn));
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

static int end_children(struct bench_rep *rep)
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
	return end_children(rep);
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
		if (bench_forks(rep))
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
	rep->swapped += pages_swapped();
	return BENCH_OK;
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

int bench_once(struct bench_rep *rep)
{
	int ret;

	ret = bench_share(rep);
	if (!ret && rep->workload->gone)
		ret = bench_unshare(rep);
	if (!ret)
		ret = bench_populate(rep, rep->plan->pages);
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

static void fill_heads(struct bench_rep *rep)
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

static int with_memory(struct bench_rep *rep)
{
	int ret;

	ret = bench_map(rep, fill_heads);
	if (!ret)
		ret = rep->workload->run ? rep->workload->run(rep) :
		      bench_once(rep);
	/* Those that are left when something went wrong */
	if (rep->children)
		end_children(rep);
	bench_unmap(rep);
	return ret;
}

/* Swapping moves pages to other frames, too. */
static void distrust_frames(struct bench_rep *rep)
{
	struct bench_counts *c = &rep->counts;

	c->wasted = rep->counted && !c->copied_ahead ? 0 : BENCH_UNKNOWN;
	if (!rep->counted) {
		c->copied = BENCH_UNKNOWN;
		c->copied_ahead = BENCH_UNKNOWN;
		c->reused = BENCH_UNKNOWN;
	}
}

/* A kernel that does not count: what the frames tell */
static void counts_from_frames(struct bench_rep *rep)
{
	struct bench_counts *c = &rep->counts;

	if (!cow_pfn_visible() || rep->workload->count_children) {
		if (bench_forks(rep)) {
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

/* Have shared memory in the page table, which fork leaves out. */
static void have_mapped(void *addr, size_t len)
{
	size_t i;

	for (i = 0; i < len; i += ps)
		cow_touch((char *)addr + i, cow_peek((char *)addr + i));
}

int bench_rep_run(struct bench_rep *rep)
{
	const struct bench_plan *plan = rep->plan;
	int ret;

	if (rep->workload->unfit & 1 << rep->config->kind)
		return bench_skip(rep, "makes no sense with this workload");
	have_mapped(plan->order, plan->nr * sizeof(*plan->order));
	have_mapped(rep->latency, rep->max_latency * sizeof(*rep->latency));
	have_mapped(rep->written, plan->pages);
	have_mapped(rep->pfn, plan->pages * sizeof(*rep->pfn));
	have_mapped(rep->pfn_now, plan->pages * sizeof(*rep->pfn_now));
	have_mapped(rep, sizeof(*rep));
	have_mapped(before, sizeof(*before));
	have_mapped(after, sizeof(*after));
	have_mapped(delta, sizeof(*delta));
	rep->why[0] = '\0';
	rep->extra[0] = '\0';
	rep->note[0] = '\0';
	rep->base = NULL;
	rep->copy = NULL;
	rep->children = 0;
	rep->elapsed = 0;
	rep->nr_written = 0;
	rep->faults = 0;
	rep->changed = 0;
	rep->fresh = 0;
	rep->swapped = 0;
	rep->copy_ns = 0;
	rep->copies_timed = 0;
	memset(&rep->times, 0, sizeof(rep->times));
	rep->nr_latency = 0;
	rep->present = rep->plan->pages / (rep->workload->part ?: 1);
	memset(&rep->counts, 0, sizeof(rep->counts));

	if (rep->workload->around)
		ret = rep->workload->around(rep, with_memory);
	else
		ret = with_memory(rep);
	if (!ret && rep->pass == BENCH_COUNTING && !rep->counted)
		counts_from_frames(rep);
	if (!ret && rep->swapped > 0)
		distrust_frames(rep);
	return ret;
}
