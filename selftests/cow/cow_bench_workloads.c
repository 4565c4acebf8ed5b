// SPDX-License-Identifier: GPL-2.0
/*
 * The workloads of cow_bench: which pages are written, in which order, and
 * what happens between the writes
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdlib.h>
#include <string.h>

#include "cow_bench.h"

/*
 * Orders
 */

static void plan_forward(struct bench_plan *plan, unsigned int step)
{
	size_t i;

	plan->nr = 0;
	for (i = 0; i < plan->pages; i += step)
		plan->order[plan->nr++] = i;
}

static void plan_reverse(struct bench_plan *plan, unsigned int unused)
{
	size_t i;

	(void)unused;
	plan->nr = plan->pages;
	for (i = 0; i < plan->nr; i++)
		plan->order[i] = plan->pages - 1 - i;
}

/* percent of the pages, each once, in a random order */
static void plan_random(struct bench_plan *plan, unsigned int percent)
{
	__u64 state = plan->seed;
	size_t i, k;
	__u32 tmp;

	plan_forward(plan, 1);
	for (i = plan->nr - 1; i > 0; i--) {
		k = cow_rand(&state) % (i + 1);
		tmp = plan->order[i];
		plan->order[i] = plan->order[k];
		plan->order[k] = tmp;
	}
	plan->nr = plan->pages * percent / 100;
	if (!plan->nr)
		plan->nr = 1;
}

/* nr single pages */
static void plan_few(struct bench_plan *plan, unsigned int nr)
{
	plan_random(plan, 100);
	if (plan->nr > nr)
		plan->nr = nr;
}

/*
 * As many writes as there are pages; the page of rank r is written with a
 * probability of 1/r (over the sum of these). Ranks are scattered at random.
 */
static void plan_zipf(struct bench_plan *plan, unsigned int unused)
{
	size_t i, low, high, mid, nr = plan->pages;
	__u64 state = plan->seed ^ 0x21bf;
	__u32 *page = malloc(nr * sizeof(*page));
	double *sum = malloc(nr * sizeof(*sum));
	double x;

	(void)unused;
	plan_random(plan, 100);
	if (page && sum) {
		memcpy(page, plan->order, nr * sizeof(*page));
		for (i = 0; i < nr; i++)
			sum[i] = (i ? sum[i - 1] : 0) + 1.0 / (i + 1);
		for (i = 0; i < nr; i++) {
			x = (double)(cow_rand(&state) >> 11) / (1ULL << 53) * sum[nr - 1];
			low = 0;
			high = nr - 1;
			while (low < high) {
				mid = (low + high) / 2;
				if (sum[mid] > x)
					high = mid;
				else
					low = mid + 1;
			}
			plan->order[i] = page[low];
		}
	}
	free(page);
	free(sum);
}

/* Put each writer's share one after the other, each in the order it had. */
static void share_out(struct bench_plan *plan, bool blocks)
{
	size_t i, to = 0, nr = plan->nr;
	unsigned int t, writers = plan->writers;
	__u32 *all = malloc(nr * sizeof(*all));

	if (!all)
		abort();
	memcpy(all, plan->order, nr * sizeof(*all));
	for (t = 0; t < writers; t++) {
		plan->slice[t] = to;
		for (i = 0; i < nr; i++)
			if ((blocks ? i * writers / nr : i % writers) == t)
				plan->order[to++] = all[i];
	}
	plan->slice[writers] = to;
	free(all);
}

void bench_make_plan(struct bench_plan *plan, const struct bench_workload *w,
		     size_t pages, __u64 seed)
{
	plan->pages = pages;
	plan->seed = seed;
	plan->writers = w->writers;
	if (w->plan)
		w->plan(plan, w->arg);
	else
		plan_forward(plan, 1);
	if (plan->writers)
		share_out(plan, w->blocks);
}

/*
 * Runs that are not simply bench_once()
 */

/* A fork for each write */
static int run_single(struct bench_rep *rep)
{
	size_t i;
	int ret = BENCH_OK;

	for (i = 0; i < rep->plan->nr && !ret; i++) {
		ret = bench_share(rep);
		if (!ret)
			ret = bench_populate(rep);
		if (!ret)
			ret = bench_write(rep, i, 1);
		if (!ret)
			ret = bench_close(rep);
		if (!ret)
			ret = bench_unshare(rep);
	}
	return ret ?: bench_verify(rep);
}

#define FORKS_OF_SINGLE	16

const struct bench_workload bench_workloads[] = {
	{
		.name = "single",
		.what = "one lone write after a fork, 16 times",
		.plan = plan_few, .arg = FORKS_OF_SINGLE,
		.run = run_single,
	}, {
		.name = "seq",
		.what = "every page, forward",
	}, {
		.name = "reverse",
		.what = "every page, backward",
		.plan = plan_reverse,
	}, {
		.name = "stride-2",
		.what = "every 2nd page, forward",
		.plan = plan_forward, .arg = 2,
	}, {
		.name = "stride-4",
		.what = "every 4th page, forward",
		.plan = plan_forward, .arg = 4,
	}, {
		.name = "stride-16",
		.what = "every 16th page, forward",
		.plan = plan_forward, .arg = 16,
	}, {
		.name = "random",
		.what = "every page once, in random order",
		.plan = plan_random, .arg = 100,
	}, {
		.name = "sparse-1",
		.what = "1 % of the pages, at random",
		.plan = plan_random, .arg = 1,
	}, {
		.name = "sparse-5",
		.what = "5 % of the pages, at random",
		.plan = plan_random, .arg = 5,
	}, {
		.name = "sparse-25",
		.what = "25 % of the pages, at random",
		.plan = plan_random, .arg = 25,
	}, {
		.name = "zipf",
		.what = "as many writes as pages, Zipf's distribution (s = 1)",
		.plan = plan_zipf,
	}, {
		.name = "child-gone",
		.what = "every page, forward, after the child has ended",
		.gone = true,
	}, {
		.name = "multi-child-1",
		.what = "every page, forward, with 1 child",
		.children = 1,
	}, {
		.name = "multi-child-4",
		.what = "every page, forward, with 4 children",
		.children = 4,
	}, {
		.name = "multi-child-16",
		.what = "every page, forward, with 16 children",
		.children = 16,
	}, {
		.name = "threads-1-interleaved",
		.what = "every page, forward, by 1 thread",
		.writers = 1,
	}, {
		.name = "threads-2-interleaved",
		.what = "every page, by 2 threads, each every 2nd page",
		.writers = 2,
	}, {
		.name = "threads-4-interleaved",
		.what = "every page, by 4 threads, each every 4th page",
		.writers = 4,
	}, {
		.name = "threads-1-blocks",
		.what = "every page, forward, by 1 thread",
		.writers = 1, .blocks = true,
	}, {
		.name = "threads-2-blocks",
		.what = "every page, by 2 threads, each one half",
		.writers = 2, .blocks = true,
	}, {
		.name = "threads-4-blocks",
		.what = "every page, by 4 threads, each one quarter",
		.writers = 4, .blocks = true,
	},
};

const unsigned int bench_nr_workloads = ARRAY_SIZE(bench_workloads);

const struct bench_workload *bench_find_workload(const char *name)
{
	unsigned int i;

	for (i = 0; i < bench_nr_workloads; i++)
		if (!strcmp(bench_workloads[i].name, name))
			return &bench_workloads[i];
	return NULL;
}
