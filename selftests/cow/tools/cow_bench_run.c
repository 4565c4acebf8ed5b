// SPDX-License-Identifier: GPL-2.0
/*
 * One repetition, from a fresh process to its counts
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <unistd.h>

#include "cow_bench.h"

static int with_memory(struct bench_rep *rep)
{
	int ret;

	ret = bench_map(rep, bench_fill);
	if (!ret)
		ret = rep->workload->run ? rep->workload->run(rep) :
		      bench_once(rep);
	/* Those that are left when something went wrong */
	if (rep->children)
		bench_end_children(rep);
	bench_unmap(rep);
	return ret;
}

static int run_here(struct bench_rep *rep)
{
	const struct bench_plan *plan = rep->plan;
	int ret;

	if (rep->workload->unfit & 1 << rep->config->kind)
		return bench_skip(rep, "makes no sense with this workload");
	bench_have_mapped(plan->order, plan->nr * sizeof(*plan->order));
	bench_have_mapped(rep->latency, rep->max_latency * sizeof(*rep->latency));
	bench_have_mapped(rep->written, plan->pages);
	bench_have_mapped(rep, sizeof(*rep));
	bench_count_reset(rep);
	rep->why[0] = '\0';
	rep->extra[0] = '\0';
	rep->note[0] = '\0';
	rep->base = NULL;
	rep->copy = NULL;
	rep->children = 0;
	rep->elapsed = 0;
	rep->nr_written = 0;
	rep->faults = 0;
	rep->nr_latency = 0;
	rep->present = rep->plan->pages / (rep->workload->part ?: 1);

	if (rep->workload->around)
		ret = rep->workload->around(rep, with_memory);
	else
		ret = with_memory(rep);
	if (!ret)
		bench_count_finish(rep);
	return ret;
}

static int fresh_process(struct cow_child *self, void *arg)
{
	struct bench_rep *rep = arg;

	(void)self;
	rep->ret = run_here(rep);
	return 0;
}

/*
 * Each repetition has a process of its own: how long a fault looks for its VMA
 * depends on all that was mapped and unmapped before.
 */
int bench_run_fresh(struct bench_rep *rep)
{
	struct cow_child c;
	int ret;

	rep->ret = BENCH_FAIL;
	ret = cow_child_fork(&c, fresh_process, rep);
	if (ret)
		return bench_fail(rep, "fork: %s", strerror(-ret));
	ret = cow_child_wait(&c);
	close(c.in);
	close(c.out);
	if (ret > 256)
		return bench_fail(rep, "ended by signal %d (%s)", ret - 256,
				  strsignal(ret - 256));
	return rep->ret;
}
