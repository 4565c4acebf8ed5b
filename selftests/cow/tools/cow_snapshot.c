// SPDX-License-Identifier: GPL-2.0
/*
 * Example: what a snapshot by fork() costs the program that takes it
 *
 * A table in memory is written to all the time. A child is forked that sees the
 * table as it was at that moment and reads all of it, as one that saves it to a
 * disk would; the parent writes on meanwhile, and each first write to a page is
 * a copy-on-write fault. With cow_stats.c the program finds out by itself how
 * many there were, how long they took, and what that did to its own writes.
 *
 * Usage: cow_snapshot [MEGABYTES]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cow_stats.h"

#define MAX_MEGABYTES	1024

static struct cow_hist latencies;

static __u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* The child: read everything, as it was, until the parent says that it is over. */
static int save(const volatile long *table, size_t words, int over)
{
	long sum = 0;
	size_t i;
	char byte;

	for (i = 0; i < words; i++)
		sum += table[i];
	return read(over, &byte, 1) || sum ? 1 : 0;
}

/* A write to each page, timed */
static void update(volatile long *table, size_t words, size_t step)
{
	size_t i;

	for (i = 0; i < words; i += step) {
		__u64 start = now_ns();

		table[i]++;
		cow_hist_add(&latencies, now_ns() - start);
	}
}

static void report_faults(const struct cow_stats *cost, __u64 wall)
{
	const unsigned long long *v = cost->v;

	printf("%llu pages copied, %llu copied ahead, %llu reused\n",
	       v[COW_FAULTS], v[COW_SUCCESS], v[COW_REUSED]);
	printf("%.3f ms in copy-on-write faults of %.3f ms, %.3f ms of them copying\n",
	       v[COW_FAULT_TOTAL_NS] / 1e6, wall / 1e6, v[COW_TOTAL_NS] / 1e6);
	if (!v[COW_FAULT_TOTAL_NS])
		puts("nothing was counted: vm.cow_stats is 0");
}

static void report_writes(void)
{
	printf("a write: P50 %llu, P99 %llu, P99.9 %llu, max %llu ns\n",
	       cow_hist_percentile(&latencies, 50),
	       cow_hist_percentile(&latencies, 99),
	       cow_hist_percentile(&latencies, 99.9),
	       cow_hist_percentile(&latencies, 100));
}

/* Decimal digits, nothing else; 0 for what is no size */
static long parse_megabytes(const char *text)
{
	if (!*text || text[strspn(text, "0123456789")])
		return 0;
	return strtol(text, NULL, 10);
}

int main(int argc, char **argv)
{
	long megabytes = argc > 1 ? parse_megabytes(argv[1]) : 16;
	static struct cow_stats before, after, cost;
	size_t words, step = sysconf(_SC_PAGESIZE) / sizeof(long);
	int over[2], ret, status;
	bool counted;
	__u64 start;
	pid_t child;
	long *table;

	if (argc > 2) {
		fprintf(stderr, "Usage: %s [MEGABYTES]\n", argv[0]);
		return 2;
	}
	if (megabytes < 1 || megabytes > MAX_MEGABYTES) {
		fprintf(stderr, "%s: '%s' is not a number of megabytes from 1 to %d\n",
			argv[0], argv[1], MAX_MEGABYTES);
		return 2;
	}
	words = megabytes * 1024 * 1024 / sizeof(long);
	table = mmap(NULL, words * sizeof(long), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (table == MAP_FAILED || pipe(over)) {
		perror(argv[0]);
		return 2;
	}
	memset(table, 0, words * sizeof(long));

	ret = cow_stats_read_pid(&before, 0);
	counted = !ret;
	if (ret == -ENOENT)
		fprintf(stderr, "%s: pages copied are not known: kernel without CONFIG_COW_STATS\n",
			argv[0]);
	else if (ret)
		fprintf(stderr, "%s: pages copied are not known: /proc/self/cow_stats: %s\n",
			argv[0], strerror(-ret));
	start = now_ns();

	/* The snapshot, and the writes while it is being saved */
	child = fork();
	if (child < 0) {
		perror("fork");
		return 2;
	}
	if (!child) {
		close(over[1]);
		_exit(save(table, words, over[0]));
	}
	update(table, words, step);
	close(over[1]);
	if (waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "%s: the snapshot is not what it should be\n",
			argv[0]);
		return 1;
	}

	if (counted && !cow_stats_read_pid(&after, 0)) {
		cow_stats_delta(&cost, &before, &after);
		report_faults(&cost, now_ns() - start);
	}
	report_writes();
	if (fflush(stdout)) {
		fprintf(stderr, "%s: cannot write: %s\n", argv[0], strerror(errno));
		return 2;
	}
	return 0;
}
