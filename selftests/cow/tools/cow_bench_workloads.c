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
#include <sys/mman.h>

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

	for (i = 0; i < rep->plan->nr && !ret; i++)
		ret = bench_fork_and_write(rep, i, 1);
	return ret ?: bench_verify(rep);
}

/*
 * A child that copies its memory away, batch by batch, and unmaps what it has
 * copied, in step with the program: for each batch the program writes as many
 * pages. So all that is measured is the same each time.
 */

#define COPY_BATCH	2
#define BATCH_BYTES	(2UL << 20)

static int copy_and_unmap(struct cow_child *self, void *arg)
{
	size_t ps = cow_page_size(), batch = BATCH_BYTES / ps, done = 0;
	struct bench_rep *rep = arg;
	size_t pages = rep->plan->pages;
	char *copy = cow_map(BATCH_BYTES, 0);
	int what;

	if (!copy || cow_child_send(self, 1))
		return 1;
	while ((what = cow_child_recv(self)) >= 0) {
		bool wrong = false;

		if (what == COPY_BATCH && done < pages) {
			if (batch > pages - done)
				batch = pages - done;
			wrong = bench_look(rep, done, batch) >= 0;
			memcpy(copy, rep->base + done * ps, batch * ps);
			munmap(rep->base + done * ps, batch * ps);
			done += batch;
		} else if (what == BENCH_LOOK) {
			wrong = bench_look(rep, done, pages - done) >= 0;
		}
		if (cow_child_send(self, wrong))
			return 1;
	}
	return 0;
}

static int run_child_unmaps(struct bench_rep *rep)
{
	size_t batch = BATCH_BYTES / cow_page_size(), i, nr = rep->plan->nr;
	struct cow_child *c = &rep->child[0];
	int ret;

	ret = bench_share(rep);
	if (!ret)
		ret = bench_populate(rep, rep->plan->pages);
	for (i = 0; i < nr && !ret; i += batch) {
		if (rep->children &&
		    (cow_child_send(c, COPY_BATCH) || cow_child_recv(c) ||
		     cow_child_settle(c)))
			return bench_fail(rep, "the child copied what it must not see");
		ret = bench_write(rep, i, nr - i < batch ? nr - i : batch);
	}
	if (!ret)
		ret = bench_close(rep);
	if (!ret)
		ret = bench_unshare(rep);
	return ret ?: bench_verify(rep);
}

/*
 * A heap that grows: a quarter of the memory is there, and three times a child
 * is forked, which stays; all pages are written, and a quarter more.
 */

#define GROW_STEPS	3
#define GROW_PARTS	(GROW_STEPS + 1)

static void plan_grow(struct bench_plan *plan, unsigned int unused)
{
	size_t step, i, quarter = plan->pages / GROW_PARTS;

	(void)unused;
	plan->nr = 0;
	for (step = 1; step <= GROW_STEPS; step++)
		for (i = 0; i < (step + 1) * quarter; i++)
			plan->order[plan->nr++] = i;
}

static int run_grow(struct bench_rep *rep)
{
	size_t step, nr, first = 0, quarter = rep->plan->pages / GROW_PARTS;
	int ret = BENCH_OK;

	for (step = 1; step <= GROW_STEPS && !ret; step++) {
		nr = (step + 1) * quarter;
		ret = bench_share(rep);
		if (!ret)
			ret = bench_populate(rep, nr);
		if (!ret)
			ret = bench_write(rep, first, nr);
		if (!ret)
			ret = bench_close(rep);
		first += nr;
	}
	if (!ret)
		ret = bench_unshare(rep);
	return ret ?: bench_verify(rep);
}

/* A guest of KVM writes to the memory that it has from us. */
static int run_guest(struct bench_rep *rep)
{
	int ret = bench_guest_open(rep);

	if (ret)
		return ret;
	ret = bench_once(rep);
	return bench_guest_close(rep) ?: ret;
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
		.name = "sparse-50",
		.what = "half of the pages, at random",
		.plan = plan_random, .arg = 50,
	}, {
		.name = "zipf",
		.what = "as many writes as pages, Zipf's distribution (s = 1)",
		.plan = plan_zipf,
	}, {
		.name = "child-gone",
		.what = "every page, forward, after the child has ended",
		.gone = true,
	}, {
		.name = "child-gone-single",
		.what = "one lone write after a fork whose child has ended, 16 times",
		.plan = plan_few, .arg = FORKS_OF_SINGLE,
		.run = run_single, .gone = true,
	}, {
		.name = "child-gone-stride-2",
		.what = "every 2nd page, forward, after the child has ended",
		.plan = plan_forward, .arg = 2, .gone = true,
	}, {
		.name = "child-gone-sparse-25",
		.what = "25 % of the pages, at random, after the child has ended",
		.plan = plan_random, .arg = 25, .gone = true,
	}, {
		.name = "child-unmaps",
		.what = "at random, while the child copies and unmaps, in turns of 2 MB",
		.plan = plan_random, .arg = 100,
		.run = run_child_unmaps, .child = copy_and_unmap,
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
	}, {
		.name = "snapshot",
		.what = "threads write all words of an array that a child copies and unmaps",
		.around = bench_snapshot_around, .parallel = true,
		.unfit = 1 << BENCH_MEMCPY,
	}, {
		.name = "thp",
		.what = "every page, forward, of PMD-mapped huge pages",
		.folio_kb = BENCH_PMD, .unfit = 1 << BENCH_THP,
	}, {
		.name = "mthp-64k",
		.what = "every page, forward, of folios of 64 kB",
		.folio_kb = 64, .unfit = 1 << BENCH_THP,
	}, {
		.name = "fork-exec",
		.what = "fork, exec and exit, with 8 lone writes on either side",
		.plan = plan_random, .arg = 100,
		.run = bench_fork_exec, .count_children = true,
		.most = 4 << 20, .unit = "fork",
		.unfit = 1 << BENCH_MEMCPY | 1 << BENCH_NOFORK |
			 1 << BENCH_POPULATE,
	}, {
		.name = "kvm-seq",
		.what = "every page, forward, by a KVM guest whose memory it is",
		.run = run_guest, .unfit = 1 << BENCH_MEMCPY,
	}, {
		.name = "kvm-random",
		.what = "every page once, in random order, by a KVM guest",
		.plan = plan_random, .arg = 100,
		.run = run_guest, .unfit = 1 << BENCH_MEMCPY,
	}, {
		.name = "grow",
		.what = "a heap that grows by quarters, each after another fork",
		.plan = plan_grow, .part = GROW_PARTS,
		.run = run_grow, .unfit = 1 << BENCH_MEMCPY,
	}, {
		.name = "memcg-110",
		.what = "25 % of the pages at random, in a cgroup with 110 % of the need",
		.plan = plan_random, .arg = 25,
		.around = bench_memcg_around, .run = bench_memcg,
		.memcg_percent = 110,
		.unfit = 1 << BENCH_MEMCPY | 1 << BENCH_NOFORK,
	}, {
		.name = "memcg-90",
		.what = "25 % of the pages at random, in a cgroup with 90 % of the need",
		.plan = plan_random, .arg = 25,
		.around = bench_memcg_around, .run = bench_memcg,
		.memcg_percent = 90,
		.unfit = 1 << BENCH_MEMCPY | 1 << BENCH_NOFORK,
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
