// SPDX-License-Identifier: GPL-2.0
/*
 * The rows of cow_bench, for people and as JSON
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "cow_bench.h"

static int by_size_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int by_size_u64(const void *a, const void *b)
{
	__u64 x = *(const __u64 *)a, y = *(const __u64 *)b;

	return x < y ? -1 : x > y;
}

static double median(const double *sorted, unsigned int nr)
{
	return nr % 2 ? sorted[nr / 2] :
	       (sorted[nr / 2 - 1] + sorted[nr / 2]) / 2;
}

/* By nearest rank; per_mille of 1000 is the largest. */
static __u64 percentile(const struct bench_result *res, unsigned int per_mille)
{
	size_t rank = (res->nr_latency * per_mille + 999) / 1000;

	return res->latency[rank ? rank - 1 : 0];
}

static void sort_result(struct bench_result *res)
{
	qsort(res->per_page, res->repeats, sizeof(*res->per_page),
	      by_size_double);
	qsort(res->latency, res->nr_latency, sizeof(*res->latency),
	      by_size_u64);
}

/* What is left per page without the kernel's copies. False: unknown */
static bool overhead(const struct bench_result *res, double per_page,
		     double *left)
{
	const struct bench_counts *c = &res->counts;
	double copies = c->copied + c->copied_ahead;

	if (res->config->kind == BENCH_MEMCPY)
		return false;
	/* Threads copy at the same time: the sum of their times must not be subtracted. */
	if (res->parallel)
		return false;
	if (c->copied == BENCH_UNKNOWN || c->copied_ahead == BENCH_UNKNOWN)
		return false;
	if (copies && !res->copy_ns)
		return false;
	*left = per_page - copies * res->copy_ns / res->written;
	return true;
}

static void json_string(const char *key, const char *text)
{
	printf("\"%s\":\"", key);
	for (; *text; text++) {
		if ((unsigned char)*text < ' ')
			printf("\\u%04x", *text);
		else if (*text == '"' || *text == '\\')
			printf("\\%c", *text);
		else
			putchar(*text);
	}
	putchar('"');
}

static void json_count(const char *key, long long val)
{
	if (val == BENCH_UNKNOWN)
		printf(",\"%s\":null", key);
	else
		printf(",\"%s\":%lld", key, val);
}

static void json_double(const char *key, bool known, double val)
{
	if (known)
		printf(",\"%s\":%.1f", key, val);
	else
		printf(",\"%s\":null", key);
}

static void json_overhead(const char *key, const struct bench_result *res,
			  double per_page)
{
	double left = 0;
	bool known = overhead(res, per_page, &left);

	json_double(key, known, left);
}

static void json_head(const struct bench_result *res)
{
	struct utsname un;

	uname(&un);
	putchar('{');
	json_string("kernel", un.release);
	putchar(',');
	json_string("arch", un.machine);
	putchar(',');
	json_string("mode", res->mode);
	putchar(',');
	json_string("workload", res->workload->name);
	putchar(',');
	json_string("config", res->config->name);
	printf(",\"pages\":%zu", res->pages);
}

/* Durations and how many writes took that long or less, in steps of 1 % at least */
static void json_cdf(const struct bench_result *res)
{
	size_t i, first = 0, nr = res->nr_latency;
	const char *comma = "";

	printf(",\"cdf\":[");
	for (i = 0; i < nr; i++) {
		/* The last one of those that are about as long as the first */
		if (i + 1 < nr &&
		    res->latency[i + 1] - res->latency[first] <= res->latency[first] / 100)
			continue;
		printf("%s[%llu,%zu]", comma, res->latency[i], i + 1);
		comma = ",";
		first = i + 1;
	}
	putchar(']');
}

/* Each percentile and its value; empty: unknown */
static void json_percentiles(const char *key, const struct cow_hist *h)
{
	static const double percent[] = { 0, 1, 10, 25, 50, 75, 90, 95, 99,
					  99.9, 100 };
	const char *comma = "";
	size_t i;

	printf(",\"%s\":[", key);
	for (i = 0; cow_hist_total(h) && i < ARRAY_SIZE(percent); i++) {
		printf("%s[%g,%llu]", comma, percent[i],
		       cow_hist_percentile(h, percent[i] ?: 0.001));
		comma = ",";
	}
	putchar(']');
}

static void json_kernel_times(const struct bench_times *t)
{
	json_percentiles("kernel_copy", &t->copy);
	json_percentiles("kernel_fault", &t->fault);
	json_double("kernel_fault_avg", t->faults,
		    (double)t->total_ns / (t->faults ?: 1));
}

void bench_print_json(struct bench_result *res, __u64 seed, bool cdf)
{
	const struct bench_counts *c = &res->counts;
	unsigned int nr = res->repeats;

	json_head(res);
	if (res->why[0]) {
		putchar(',');
		json_string("skipped", res->why);
		puts("}");
		return;
	}
	sort_result(res);
	json_count("written", res->written);
	json_count("faults", res->faults);
	json_count("copied", c->copied);
	json_count("copied_ahead", c->copied_ahead);
	json_count("wasted", c->wasted);
	json_count("reused", c->reused);
	json_count("reused_ahead", c->reused_ahead);
	json_double("per_page_median", true, median(res->per_page, nr));
	json_double("per_page_min", true, res->per_page[0]);
	json_double("per_page_max", true, res->per_page[nr - 1]);
	json_overhead("overhead_median", res, median(res->per_page, nr));
	json_overhead("overhead_min", res, res->per_page[0]);
	json_overhead("overhead_max", res, res->per_page[nr - 1]);
	json_count("p50", percentile(res, 500));
	json_count("p90", percentile(res, 900));
	json_count("p99", percentile(res, 990));
	json_count("p999", percentile(res, 999));
	json_count("max", percentile(res, 1000));
	json_count("tlb_flushes", c->tlb_flushes);
	json_count("tlb_shootdowns", c->tlb_shootdowns);
	json_count("rss_kb", c->rss_kb);
	json_count("private_kb", c->private_kb);
	json_double("copy_ns", res->copy_ns, res->copy_ns);
	putchar(',');
	json_string("copy_from", res->copy_from);
	json_count("clock_ns", bench_clock_ns);
	json_count("repeats", nr);
	putchar(',');
	json_string("unit", res->workload->unit ?: "page");
	json_count("seed", seed);
	if (cdf) {
		json_cdf(res);
		json_kernel_times(&res->times);
	}
	fputs(res->extra, stdout);
	puts("}");
}

void bench_print_heading(const struct bench_workload *w, size_t pages)
{
	printf("\n%s, %zu pages: %s\n", w->name, pages, w->what);
	printf("%-14s %s%-5s %9s %9s %9s %7s %7s %7s %7s %7s %8s %8s %8s\n",
	       "config", "per ", w->unit ?: "page", "min", "max", "overhead", "faults",
	       "copied", "ahead", "wasted", "reused", "P50", "P99", "max");
}

static void print_count(int width, long long val)
{
	if (val == BENCH_UNKNOWN)
		printf(" %*s", width, "-");
	else
		printf(" %*lld", width, val);
}

void bench_print_row(struct bench_result *res)
{
	const struct bench_counts *c = &res->counts;
	unsigned int nr = res->repeats;
	double left;

	printf("%-14s", res->config->name);
	if (res->why[0]) {
		printf(" skipped: %s\n", res->why);
		return;
	}
	sort_result(res);
	printf(" %9.1f %9.1f %9.1f", median(res->per_page, nr),
	       res->per_page[0], res->per_page[nr - 1]);
	if (overhead(res, median(res->per_page, nr), &left))
		printf(" %9.1f", left);
	else
		printf(" %9s", "-");
	print_count(7, res->faults);
	print_count(7, c->copied);
	print_count(7, c->copied_ahead);
	print_count(7, c->wasted);
	print_count(7, c->reused == BENCH_UNKNOWN ? c->reused :
		    c->reused + c->reused_ahead);
	print_count(8, percentile(res, 500));
	print_count(8, percentile(res, 990));
	print_count(8, percentile(res, 1000));
	putchar('\n');
	if (res->note[0])
		printf("%14s %s\n", "", res->note);
}

static double ms(__u64 ns)
{
	return ns / 1e6;
}

/* Sentence by sentence, each from what was measured */
void bench_print_answer(const struct bench_result *res,
			const struct bench_result *off)
{
	const struct bench_phases *p = &res->phases;
	long long late = res->changed - res->copied_first;

	if (!p->unmapped_ns) {
		printf("\n%s: no child, so no phases.\n", res->config->name);
		return;
	}
	fprintf(stdout,
		"\n%s: the child had saved and unmapped everything after %.1f ms, the writers were done after %.1f ms.\n",
		res->config->name, ms(p->unmapped_ns), ms(p->done_ns));
	fprintf(stdout,
		"Until then they had written %.0f of %zu pages, with %ld faults and %.1f ms of CPU time in the kernel; after it they had %ld faults and %.1f ms.\n",
		p->written, res->pages, p->faults[0], ms(p->system_ns[0]),
		p->faults[1], ms(p->system_ns[1]));
	if (res->copied_first == BENCH_UNKNOWN || late < 0)
		fprintf(stdout,
			"How many pages were copied in which phase is unknown: that needs root, and no swapping.\n");
	else if (!p->faults[1])
		fprintf(stdout,
			"The kernel copied %lld of the pages, all while the child still had some: no fault came later.\n",
			res->changed);
	else if (late > (long long)res->pages / 100)
		fprintf(stdout,
			"The kernel copied %lld pages before and still %lld after the child had unmapped everything.\n",
			res->copied_first, late);
	else
		fprintf(stdout,
			"The kernel copied %lld pages before and %lld after: the later faults do not copy, they only make pages writable.\n",
			res->copied_first, late);
	if (off && off != res && off->phases.done_ns)
		fprintf(stdout,
			"Compared with '%s' the writers needed %+.1f %% time, with %+.1f %% faults.\n",
			off->config->name,
			100.0 * p->done_ns / off->phases.done_ns - 100,
			100.0 * (res->faults - off->faults) / (off->faults ?: 1));
}
