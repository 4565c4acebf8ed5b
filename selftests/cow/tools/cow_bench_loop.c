// SPDX-License-Identifier: GPL-2.0
/*
 * The clock, and the loops that are measured
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <time.h>

#include "cow_bench.h"
#include "cow_marker.h"

__u64 bench_clock_ns;

__u64 bench_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* The smallest difference between two readings */
void bench_init_clock(void)
{
	__u64 min = ~0ULL, start, ns;
	int i;

	for (i = 0; i < 10000; i++) {
		start = bench_now();
		ns = bench_now() - start;
		if (ns < min)
			min = ns;
	}
	bench_clock_ns = min;
}

__u64 bench_since(__u64 start, __u64 end)
{
	__u64 ns = end - start;

	return ns > bench_clock_ns ? ns - bench_clock_ns : 0;
}

/*
 * Wait for a timer interrupt, which alone moves that clock, so that short
 * measurements contain none and long ones equally many. The wait is bounded,
 * as a CPU may have no tick.
 */
void bench_await_tick(void)
{
	struct timespec tick, first, now;
	__u64 end;

	if (clock_getres(CLOCK_MONOTONIC_COARSE, &tick) || tick.tv_sec)
		return;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &first);
	end = bench_now() + 2 * tick.tv_nsec;
	do {
		clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	} while (now.tv_sec == first.tv_sec && now.tv_nsec == first.tv_nsec &&
		 bench_now() < end);
}

static void touch_all(struct bench_writer *w, bool mark)
{
	size_t i, ps = cow_page_size(), nr = w->nr;
	char *base = w->rep->base;
	char gen = w->rep->gen;

	w->start = bench_now();
	if (mark)
		cow_marker_start();
	for (i = 0; i < nr; i++)
		cow_touch(base + w->order[i] * ps, gen);
	if (mark)
		cow_marker_stop();
	w->end = bench_now();
}

static void guest_all(struct bench_writer *w, bool mark)
{
	w->start = bench_now();
	if (mark)
		cow_marker_start();
	bench_guest_write(w->rep, w->order, w->nr);
	if (mark)
		cow_marker_stop();
	w->end = bench_now();
}

/* Each with entering and leaving the guest */
static void time_guest(struct bench_writer *w)
{
	size_t i, nr = w->nr;
	__u64 start;

	w->start = bench_now();
	for (i = 0; i < nr; i++) {
		start = bench_now();
		bench_guest_write(w->rep, w->order + i, 1);
		w->latency[i] = bench_since(start, bench_now());
	}
	w->end = bench_now();
}

static void copy_all(struct bench_writer *w, bool mark)
{
	size_t i, ps = cow_page_size(), nr = w->nr;
	char *from = w->rep->base, *to = w->rep->copy;

	w->start = bench_now();
	if (mark)
		cow_marker_start();
	for (i = 0; i < nr; i++)
		memcpy(to + w->order[i] * ps, from + w->order[i] * ps, ps);
	if (mark)
		cow_marker_stop();
	w->end = bench_now();
}

static void time_each(struct bench_writer *w)
{
	size_t i, ps = cow_page_size(), nr = w->nr;
	char *base = w->rep->base, *to = w->rep->copy;
	char gen = w->rep->gen;
	__u64 start;

	w->start = bench_now();
	for (i = 0; i < nr; i++) {
		size_t offset = w->order[i] * ps;

		start = bench_now();
		if (to)
			memcpy(to + offset, base + offset, ps);
		else
			cow_touch(base + offset, gen);
		w->latency[i] = bench_since(start, bench_now());
	}
	w->end = bench_now();
}

void bench_loop(struct bench_writer *w)
{
	/* Those of several writers would overlap; a rehearsal is not measured. */
	bool mark = w->rep->marked && w->rep->pass == BENCH_TIMING &&
		    !w->rep->plan->writers && w->nr;
	long faults = cow_minflt();

	if (w->rep->in_guest && w->latency)
		time_guest(w);
	else if (w->rep->in_guest)
		guest_all(w, mark);
	else if (w->latency)
		time_each(w);
	else if (w->rep->copy)
		copy_all(w, mark);
	else
		touch_all(w, mark);
	w->faults = cow_minflt() - faults;
}

void bench_rehearse(struct bench_writer *w)
{
	size_t nr = w->nr;

	w->nr = 0;
	bench_loop(w);
	w->nr = nr;
}
