// SPDX-License-Identifier: GPL-2.0
/*
 * Counting: what the kernel says, and what the frames of the memory tell
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <string.h>

#include "cow_bench.h"

struct counters {
	struct cow_stats stats;
	struct cow_hist copy;
	struct cow_hist fault;
	long long flushes;
	long long shootdowns;
};

/* Shared, as are all things that the counting itself writes to. */
static struct counters *before, *after, *delta;

int bench_count_init(struct bench_rep *rep, size_t pages)
{
	before = bench_alloc(sizeof(*before));
	after = bench_alloc(sizeof(*after));
	delta = bench_alloc(sizeof(*delta));
	rep->pfn = bench_alloc(pages * sizeof(*rep->pfn));
	rep->pfn_now = bench_alloc(pages * sizeof(*rep->pfn_now));
	return before && after && delta && rep->pfn && rep->pfn_now ? 0 :
	       -ENOMEM;
}

void bench_count_reset(struct bench_rep *rep)
{
	size_t pages = rep->plan->pages;

	bench_have_mapped(rep->pfn, pages * sizeof(*rep->pfn));
	bench_have_mapped(rep->pfn_now, pages * sizeof(*rep->pfn_now));
	bench_have_mapped(before, sizeof(*before));
	bench_have_mapped(after, sizeof(*after));
	bench_have_mapped(delta, sizeof(*delta));
	rep->changed = 0;
	rep->changed_first = BENCH_UNKNOWN;
	rep->fresh = 0;
	memset(&rep->phases, 0, sizeof(rep->phases));
	rep->swapped = 0;
	rep->copy_ns = 0;
	rep->copies_timed = 0;
	memset(&rep->times, 0, sizeof(rep->times));
	memset(&rep->counts, 0, sizeof(rep->counts));
}

bool bench_forks(const struct bench_rep *rep)
{
	return rep->config->kind != BENCH_NOFORK &&
	       rep->config->kind != BENCH_MEMCPY;
}

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

long long bench_changed(const struct bench_rep *rep)
{
	long long changed = 0;
	size_t i;

	if (!cow_pfn_visible() ||
	    cow_pfns(rep->base, rep->plan->pages, rep->pfn_now))
		return BENCH_UNKNOWN;
	for (i = 0; i < rep->plan->pages; i++)
		changed += rep->pfn[i] && rep->pfn[i] != rep->pfn_now[i];
	return changed;
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

/* Swapping moves pages to other frames, too. */
static void distrust_frames(struct bench_rep *rep)
{
	struct bench_counts *c = &rep->counts;

	c->wasted = rep->counted && !c->copied_ahead ? 0 : BENCH_UNKNOWN;
	rep->changed_first = BENCH_UNKNOWN;
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
	/*
	 * Threads that write to the same page take a fault each, and most of these
	 * solve nothing. No more pages can be reused than were written otherwise.
	 */
	if (rep->workload->parallel || c->reused < 0 ||
	    rep->changed + rep->fresh + c->reused > rep->nr_written)
		c->reused = BENCH_UNKNOWN;
}

void bench_count_finish(struct bench_rep *rep)
{
	if (rep->pass == BENCH_COUNTING && !rep->counted)
		counts_from_frames(rep);
	if (rep->swapped > 0)
		distrust_frames(rep);
}
