// SPDX-License-Identifier: GPL-2.0
/*
 * What cow_bench prints, on any kernel: in its rows a count that cannot be known is null,
 * and none is negative; --question is answered in words; a full disk is an error; the help
 * fits 80 columns.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cowstat_helpers.h"

#define PAGES		64	/* the least that it takes */
#define ROUNDS		3

static char size[32];		/* of PAGES */

FIXTURE(bench_output)
{
	int unused;
};

FIXTURE_SETUP(bench_output)
{
	long on;

	cow_proc = "/proc";
	tested_tool = "cow_bench";
	snprintf(size, sizeof(size), "%zuK", PAGES * cow_page_size() / 1024);
	/* As root it sets the sysctls of the series, where there are any. */
	if (!cow_missing() && !geteuid() && !cow_may_change())
		SKIP(return, COW_NEEDS);
	/* Without root there would be no rows. */
	if (!cow_sysctl_read("cow_precopy", &on) && on)
		SKIP(return, "vm.cow_precopy is on");
}

FIXTURE_TEARDOWN(bench_output)
{
}

/* One short row for each workload; returns the exit status. */
static int rows_of(const char *workloads, const char *json, prepare_fn prepare)
{
	return cowstat_prepared(prepare, "--workload", workloads, "--config", "off",
				"--size", size, "--repeat", "1", json, NULL);
}

static int ask(const char *json, prepare_fn prepare)
{
	return cowstat_prepared(prepare, "--question", "--size", size, "--repeat", "1",
				json, NULL);
}

/* What follows the key in the first row that was printed; "" if it has none */
static const char *value_of(const char *key)
{
	char text[64];
	const char *p;

	snprintf(text, sizeof(text), "\"%s\":", key);
	p = strstr(run.text, text);
	return p ? p + strlen(text) : "";
}

static bool is_null(const char *key)
{
	return !strncmp(value_of(key), "null,", 5);
}

/* Null is possible where frames are compared as nobody counts: swapping moves pages, too. */
static bool is_count(const char *key, long count)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld,", count);
	if (is_null(key))
		return !cow_counting();
	return !strncmp(value_of(key), text, strlen(text));
}

/* The first negative number of any row; what is left without copying may be one. */
static const char *negative(void)
{
	static const char overhead[] = "\"overhead_";
	const char *p, *key;

	for (p = run.text; (p = strchr(p, '-')); p++) {
		if (p == run.text || !strchr(":[,", p[-1]))
			continue;
		for (key = p - 1; key > run.text && *key != ','; key--)
			;
		if (strncmp(key + 1, overhead, strlen(overhead)))
			return key;
	}
	return NULL;
}

TEST_F_TIMEOUT(bench_output, help, TEST_TIMEOUT)
{
	EXPECT_EQ(cowstat("--help", NULL), 0);
	EXPECT_LE(widest(run.text), 80);
	/* Each key once */
	EXPECT_EQ(count_of(run.text, "\n  cdf "), 1);
}

/* Once, and not for each row */
TEST_F_TIMEOUT(bench_output, cannot_write, TEST_TIMEOUT)
{
	static const char full[] =
		"cow_bench: cannot write the output: No space left on device\n";

	EXPECT_EQ(rows_of("seq", "--json", to_full_disk), 2);
	EXPECT_STREQ(run.errors, full);
	EXPECT_EQ(rows_of("seq,reverse", "--json", to_full_disk), 2);
	EXPECT_STREQ(run.errors, full);
	EXPECT_EQ(rows_of("seq", NULL, to_full_disk), 2);
	EXPECT_STREQ(run.errors, full);
	EXPECT_EQ(ask(NULL, to_full_disk), 2);
	EXPECT_STREQ(run.errors, full);
	EXPECT_EQ(cowstat_prepared(to_full_disk, "--list", NULL), 2);
	EXPECT_STREQ(run.errors, full);
}

/* --cdf: durations that differ by 1 % are taken together, but not more of them. */
TEST_F_TIMEOUT(bench_output, distribution, TEST_TIMEOUT)
{
	unsigned long long ns;
	const char *p;
	long nr;

	ASSERT_EQ(0, cowstat("--workload", "seq", "--config", "off", "--size", size,
			     "--repeat", "1", "--json", "--cdf", NULL));
	p = value_of("cdf");
	ASSERT_EQ('[', *p);
	/* The first duration that half of the writes did not exceed */
	do {
		p = strchr(p + 1, '[');
		ASSERT_NE(NULL, p);
		ASSERT_EQ(2, sscanf(p, "[%llu,%ld]", &ns, &nr));
	} while (2 * nr < PAGES);
	EXPECT_LE(ns, atoll(value_of("p50")) * 101 / 100 + 1);
}

/* Each page is copied, or, where the child is gone, none is. */
TEST_F_TIMEOUT(bench_output, counts, TEST_TIMEOUT)
{
	if (geteuid())
		SKIP(return, "seeing frames needs root");
	ASSERT_EQ(rows_of("seq", "--json", NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_TRUE(is_count("copied", PAGES) && is_count("reused", 0))
		TH_LOG("%s", run.text);
	ASSERT_EQ(rows_of("child-gone", "--json", NULL), 0);
	EXPECT_TRUE(is_count("copied", 0) && is_count("reused", PAGES))
		TH_LOG("%s", run.text);
}

/*
 * Of several threads that write to the same page, one solves the fault. How many of the
 * others' faults made a page writable only the kernel can count.
 */
TEST_F_TIMEOUT(bench_output, unknown_of_threads, TEST_TIMEOUT)
{
	if (geteuid())
		SKIP(return, "seeing frames needs root");
	ASSERT_EQ(rows_of("snapshot", "--json", NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(is_null("reused"), !!cow_missing())
		TH_LOG("%s", run.text);
}

/* Neither counters nor frames */
TEST_F_TIMEOUT(bench_output, unknown_to_a_user, TEST_TIMEOUT)
{
	static const char * const keys[] = { "copied", "copied_ahead", "wasted", "reused" };
	size_t i;

	if (cow_counting())
		SKIP(return, "vm.cow_stats is on");
	ASSERT_EQ(rows_of("seq", "--json", geteuid() ? NULL : become_nobody), 0)
		TH_LOG("%s", run.errors);
	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		EXPECT_TRUE(is_null(keys[i]))
			TH_LOG("%s: %s", keys[i], run.text);
	}
	EXPECT_TRUE(is_count("written", PAGES));
}

TEST_F_TIMEOUT(bench_output, nothing_negative, TEST_TIMEOUT)
{
	static const char * const phases[] = {
		"alive_faults", "after_faults", "alive_ns", "after_ns", "alive_pages",
		"after_pages", "unmapped_faults", "unmapped_system_ns",
	};
	size_t i;
	int k;

	for (k = 0; k < ROUNDS; k++) {
		ASSERT_EQ(cowstat("--workload", "snapshot,grow", "--config",
				  "off,populate-write,nofork", "--size", size, "--repeat",
				  "1", "--json", NULL), 0)
			TH_LOG("%s", run.errors);
		EXPECT_EQ(negative(), NULL)
			TH_LOG("%.80s", negative());
	}
	ASSERT_EQ(rows_of("snapshot", "--json", NULL), 0);
	for (i = 0; i < ARRAY_SIZE(phases); i++) {
		EXPECT_STRNE(value_of(phases[i]), "")
			TH_LOG("no %s: %s", phases[i], run.text);
	}
}

/* A sentence for each thing that was asked, of each configuration that this kernel has */
TEST_F_TIMEOUT(bench_output, question, TEST_TIMEOUT)
{
	int answers, copied, unknown;

	ASSERT_EQ(ask(NULL, NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(strncmp(run.text, "Placement: ", 11), 0);
	EXPECT_NE(strstr(run.text, "\nsnapshot, 64 pages: "), NULL);
	/* 'adaptive' takes the series. */
	answers = 3 - count_of(run.text, " skipped: ");
	EXPECT_EQ(answers, cow_missing() || geteuid() ? 2 : 3)
		TH_LOG("%s", run.text);
	EXPECT_EQ(count_of(run.text, ": the child had saved and unmapped everything after "),
		  answers);
	EXPECT_EQ(count_of(run.text, "Until then they had written "), answers);
	EXPECT_EQ(count_of(run.text, " of 64 pages, with "), answers);
	/* Only root sees which pages were copied, if none is swapped. */
	copied = count_of(run.text, "\nThe kernel copied ");
	unknown = count_of(run.text, "\nHow many pages were copied in which phase is unknown");
	EXPECT_EQ(copied + unknown, answers);
	if (geteuid())
		EXPECT_EQ(copied, 0);
	EXPECT_EQ(count_of(run.text, "\nCompared with 'off' the writers needed "), answers - 1);
}

/* Its numbers; the words are for people only. */
TEST_F_TIMEOUT(bench_output, question_as_json, TEST_TIMEOUT)
{
	char *line, *save = NULL;

	ASSERT_EQ(ask("--json", NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(strncmp(run.errors, "Placement: ", 11), 0);
	EXPECT_EQ(lines_of(run.text), 3);
	EXPECT_EQ(count_of(run.text, "\"writers\":28,\"checkpointers\":4,\"batch_kb\":2048,"),
		  3 - count_of(run.text, "\"skipped\":"));
	for (line = strtok_r(run.text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		EXPECT_EQ(*line, '{')
			TH_LOG("%s", line);
	}
	EXPECT_EQ(cowstat("--question", "--workload", "seq", NULL), 2);
	EXPECT_NE(strstr(run.errors, "--question is about the workload 'snapshot'"), NULL);
}

TEST_HARNESS_MAIN
