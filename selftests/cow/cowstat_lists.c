// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat of several processes, its layouts and averages, on a folder that takes
 * the place of /proc
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cowstat_helpers.h"

#define PIDS		"4000000,4000001"

FIXTURE(lists)
{
	struct cow_stats a, b;
};

static void remove_process(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "%d/stat", pid);
	fake_remove(path);
}

FIXTURE_SETUP(lists)
{
	const char *reason = no_kernel();

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(fake_begin(), 0);
	fake_two_processes(&self->a, &self->b);
}

FIXTURE_TEARDOWN(lists)
{
	fake_end();
}

TEST_F_TIMEOUT(lists, width, TEST_TIMEOUT)
{
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "5", NULL), 0);
	EXPECT_LE(widest(run.text), 80)
		TH_LOG("%s", run.text);
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");
	EXPECT_STREQ(column(run.text, 0, "lost"), "30");
	EXPECT_EQ(strstr(run.text, "skip%"), NULL);
	ASSERT_EQ(cowstat("--proc", fake, "-p", PIDS, "0.01", "5", NULL), 0);
	EXPECT_LE(widest(run.text), 90)
		TH_LOG("%s", run.text);
	ASSERT_EQ(cowstat("--proc", fake, "-w", "0.01", "5", NULL), 0);
	EXPECT_GT(widest(run.text), 80);
	EXPECT_NE(strstr(run.text, "skip%"), NULL);
}

TEST_F_TIMEOUT(lists, timestamp, TEST_TIMEOUT)
{
	int hour, minute, second;
	char *line;

	ASSERT_EQ(cowstat("--proc", fake, "-t", NULL), 0);
	line = strchr(run.text, '\n');
	ASSERT_NE(line, NULL);
	line = strchr(line + 1, '\n');
	ASSERT_NE(line, NULL);
	EXPECT_EQ(sscanf(line + 1, "%2d:%2d:%2d total ", &hour, &minute, &second), 3)
		TH_LOG("%s", run.text);
}

/* Rate times seconds is what was counted, in every line and on average. */
TEST_F_TIMEOUT(lists, average, TEST_TIMEOUT)
{
	double seconds = 0, copied, rate;
	char *line, word[16];
	int i;

	gate_begin();
	start("--proc", fake, "0.05", "4", NULL);
	ASSERT_NE(gate_step(vmstat_text(1005, 100)), NULL);
	ASSERT_NE(next_line(), NULL);
	ASSERT_NE(next_line(), NULL);
	for (i = 0; i < 3; i++) {
		if (i == 1)
			fake_counts(&self->b);
		line = gate_step(vmstat_text(1005, 100));
		ASSERT_EQ(sscanf(line, "%15s %*s %lf", word, &copied), 2);
		seconds += atof(word);
	}
	line = next_line();
	ASSERT_NE(line, NULL);
	ASSERT_EQ(sscanf(line, " average %*s %lf", &rate), 1)
		TH_LOG("%s", line);
	finish(0);
	EXPECT_EQ(run.status, 0);
	copied = self->b.v[COW_FAULTS] - self->a.v[COW_FAULTS];
	/* Seconds have two decimals, the rate has one or none. */
	EXPECT_GT(rate * (seconds + 0.02), copied * 0.9);
	EXPECT_LT(rate * (seconds - 0.02), copied * 1.1);
}

/* Not of one interval, and not as JSON */
TEST_F_TIMEOUT(lists, no_average, TEST_TIMEOUT)
{
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "2", NULL), 0);
	EXPECT_EQ(strstr(run.text, "average"), NULL);
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "3", NULL), 0);
	EXPECT_NE(strstr(run.text, "average"), NULL);
	ASSERT_EQ(cowstat("--proc", fake, "-j", "0.01", "3", NULL), 0);
	EXPECT_EQ(lines_of(run.text), 3);
}

static bool next_process(pid_t pid, const char *name, unsigned long long faults)
{
	char want[32];

	snprintf(want, sizeof(want), "\"%s\"", name);
	return json_parse(next_line()) && json_ull("pid") == (unsigned int)pid &&
	       !strcmp(json_text("comm"), want) && json_ull("faults") == faults;
}

/* In the order in which they were named, until the last one has exited */
TEST_F_TIMEOUT(lists, processes, TEST_TIMEOUT)
{
	char *line;

	start("--proc", fake, "-j", "-p", PIDS, "-p", "4000000", "0.05", NULL);
	EXPECT_TRUE(next_process(FAKE_PID, "small", self->a.v[COW_FAULTS]));
	EXPECT_TRUE(next_process(OTHER_PID, "large one", self->b.v[COW_FAULTS]));
	EXPECT_TRUE(next_process(FAKE_PID, "small", 0));
	remove_process(FAKE_PID);
	do {
		line = next_line();
		ASSERT_TRUE(json_parse(line));
	} while (json_ull("pid") == FAKE_PID);
	ASSERT_TRUE(json_parse(next_line()));
	ASSERT_TRUE(json_parse(next_line()));
	EXPECT_EQ(json_ull("pid"), OTHER_PID);
	remove_process(OTHER_PID);
	while (next_line())
		;
	finish(0);
	EXPECT_EQ(run.status, 1);
	EXPECT_EQ(count_of(run.errors, "process 4000000 has exited"), 1);
	EXPECT_EQ(count_of(run.errors, "process 4000001 has exited"), 1);
	fake_process(FAKE_PID, "small", &self->a);
	EXPECT_EQ(cowstat("--proc", fake, "-p", PIDS, NULL), 2);
	EXPECT_NE(strstr(run.errors, "process 4000001: no such process"), NULL);
}

/* The costliest first; what takes no faults is left out. */
TEST_F_TIMEOUT(lists, all, TEST_TIMEOUT)
{
	struct cow_stats none = self->a;

	memset(none.v, 0, sizeof(none.v));
	fake_process(OTHER_PID + 1, "idle", &none);
	start("--proc", fake, "-j", "-a", NULL);
	EXPECT_TRUE(next_process(OTHER_PID, "large one", self->b.v[COW_FAULTS]));
	EXPECT_TRUE(next_process(FAKE_PID, "small", self->a.v[COW_FAULTS]));
	EXPECT_EQ(next_line(), NULL);
	finish(0);
	EXPECT_EQ(run.status, 0);
	ASSERT_EQ(cowstat("--proc", fake, "-a", NULL), 0);
	EXPECT_LT(strstr(run.text, "large one"), strstr(run.text, "small"));
	EXPECT_EQ(strstr(run.text, "idle"), NULL);
}

/* What a new process has counted is of the interval in which it came. */
TEST_F_TIMEOUT(lists, name, TEST_TIMEOUT)
{
	char *line;

	start("--proc", fake, "-j", "-C", "small", "0.05", NULL);
	EXPECT_TRUE(next_process(FAKE_PID, "small", self->a.v[COW_FAULTS]));
	EXPECT_TRUE(json_null("seconds"));
	EXPECT_TRUE(next_process(FAKE_PID, "small", 0));
	fake_process(OTHER_PID + 1, "small", &self->b);
	do {
		line = next_line();
		ASSERT_TRUE(json_parse(line));
	} while (json_ull("pid") != OTHER_PID + 1);
	EXPECT_EQ(json_ull("faults"), self->b.v[COW_FAULTS]);
	EXPECT_FALSE(json_null("seconds"));
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
	EXPECT_EQ(cowstat("--proc", fake, "-C", "smal", NULL), 2);
	EXPECT_NE(strstr(run.errors, "no process has the name 'smal'"), NULL);
}

/* The main thread may exit before the others. */
TEST_F_TIMEOUT(lists, main_thread_exited, TEST_TIMEOUT)
{
	char path[160], pid[16];

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	fake_stat('Z', 0, 50, 777);
	fake_text(fake_pid_file("cow_stats"), "");
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	snprintf(path, sizeof(path), "%s/%d/task", fake, FAKE_PID);
	ASSERT_EQ(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/%d/task/%d", fake, FAKE_PID, OTHER_PID);
	ASSERT_EQ(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%d/task/%d/stat", FAKE_PID, OTHER_PID);
	fake_text(path, "4000001 (thread) S 1\n");
	ASSERT_EQ(cowstat("--proc", fake, "-j", "-p", pid, NULL), 0)
		TH_LOG("%s", run.errors);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_EQ(json_ull("pid"), FAKE_PID);
	/* Any thread's directory in /proc shows the process. */
	EXPECT_EQ(json_ull("faults"), self->b.v[COW_FAULTS]);
	fake_text(path, "4000001 (thread) Z 1\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
}

/* A warning that names key and file, and the rest is shown. */
TEST_F_TIMEOUT(lists, missing_key, TEST_TIMEOUT)
{
	char *text = counts_text(&self->a, false), *lost = strstr(text, "lost: ");

	ASSERT_NE(lost, NULL);
	memcpy(lost, "l0st", 4);
	fake_text("cow_stats", text);
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "3", NULL), 0);
	EXPECT_EQ(count_of(run.errors, "/cow_stats has no 'lost'"), 1)
		TH_LOG("%s", run.errors);
	EXPECT_STREQ(column(run.text, 0, "lost"), "-");
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");
	ASSERT_EQ(cowstat("--proc", fake, "-j", NULL), 0);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_TRUE(json_null("lost"));
	EXPECT_EQ(json_ull("faults"), 10ULL);
}

/* The same of a bill: not known is not 0. */
TEST_F_TIMEOUT(lists, missing_key_of_a_bill, TEST_TIMEOUT)
{
	static const char * const missing[] = {
		"children_reused", "children_lost: ", "children_fault_total_ns",
	};
	char path[128], text[4096], *at;
	size_t i;

	snprintf(path, sizeof(path), "%s/self", fake);
	ASSERT_EQ(mkdir(path, 0755), 0);
	snprintf(text, sizeof(text), "%s", counts_text(&self->a, true));
	fake_text("self/cow_stats", text);
	ASSERT_EQ(cowstat("--proc", fake, "--", "true", NULL), 0);
	EXPECT_EQ(strstr(run.errors, "cow_stats has no"), NULL);
	EXPECT_EQ(strstr(run.errors, "             -  "), NULL)
		TH_LOG("%s", run.errors);

	for (i = 0; i < ARRAY_SIZE(missing); i++) {
		at = strstr(text, missing[i]);
		ASSERT_NE(at, NULL);
		at[strlen("children_")] = 'X';
	}
	fake_text("self/cow_stats", text);
	ASSERT_EQ(cowstat("--proc", fake, "--", "true", NULL), 0);
	EXPECT_EQ(count_of(run.errors, "/cow_stats has no 'children_reused'"), 1)
		TH_LOG("%s", run.errors);
	EXPECT_NE(strstr(run.errors, "             0  pages copied by a fault\n"), NULL);
	EXPECT_NE(strstr(run.errors, "             -  faults that made a page writable"), NULL);
	EXPECT_NE(strstr(run.errors, "             -  pages copied for nothing"), NULL);
	EXPECT_NE(strstr(run.errors, "             -  ms in copy-on-write faults\n"), NULL);
	ASSERT_EQ(cowstat("--proc", fake, "-j", "--", "true", NULL), 0);
	ASSERT_TRUE(json_parse(strchr(run.errors, '{')))
		TH_LOG("%s", run.errors);
	EXPECT_STREQ(json_text("faults"), "0");
	EXPECT_STREQ(json_text("lost_ns"), "0");
	EXPECT_TRUE(json_null("reused"));
	EXPECT_TRUE(json_null("lost"));
	EXPECT_TRUE(json_null("fault_total_ns"));
	EXPECT_TRUE(json_null("wall_share"));
	EXPECT_TRUE(json_null("copy_share"));
}

/* The last one switches it off; what was on before stays on. */
TEST_F_TIMEOUT(lists, two_that_enable, TEST_TIMEOUT)
{
	struct run first, second;
	char path[128], value[8];

	snprintf(path, sizeof(path), "%s/sys/vm/cow_stats", fake);
	fake_sysctl("0\n");
	start("--proc", fake, "-e", "-j", "1000", NULL);
	ASSERT_NE(next_line(), NULL);
	first = run;
	start("--proc", fake, "-e", "-j", "1000", NULL);
	ASSERT_NE(next_line(), NULL);
	second = run;
	run = first;
	finish(SIGTERM);
	ASSERT_GT(cow_read_file(path, value, sizeof(value)), 0);
	EXPECT_EQ(value[0], '1');
	run = second;
	finish(SIGTERM);
	ASSERT_GT(cow_read_file(path, value, sizeof(value)), 0);
	EXPECT_EQ(value[0], '0');
	fake_sysctl("1\n");
	EXPECT_EQ(cowstat("--proc", fake, "-e", "-j", NULL), 0);
	ASSERT_GT(cow_read_file(path, value, sizeof(value)), 0);
	EXPECT_EQ(value[0], '1');
}

TEST_F_TIMEOUT(lists, bad_arguments, TEST_TIMEOUT)
{
	EXPECT_EQ(cowstat("-p", "1,", NULL), 2);
	EXPECT_NE(strstr(run.errors, "'' is not a process id"), NULL);
	EXPECT_EQ(cowstat("-p", "1", "-C", "x", NULL), 2);
	EXPECT_NE(strstr(run.errors, "one of -p, -C and -a, not several"), NULL);
	EXPECT_EQ(cowstat("-a", "-C", "x", NULL), 2);
	EXPECT_EQ(cowstat("-a", "--", "true", NULL), 2);
	EXPECT_NE(strstr(run.errors, "either processes (-a) or a command"), NULL);
	EXPECT_EQ(cowstat("-C", "sixteen-letters!", NULL), 2);
	EXPECT_NE(strstr(run.errors, "is not the name of a process"), NULL);
	EXPECT_EQ(cowstat("-V", NULL), 0);
	EXPECT_EQ(strncmp(run.text, "cowstat ", 8), 0);
}

FIXTURE(help)
{
	int unused;
};

FIXTURE_SETUP(help)
{
}

FIXTURE_TEARDOWN(help)
{
}

/* Each option that the help names is in the manual. */
TEST_F_TIMEOUT(help, manual, TEST_TIMEOUT)
{
	char manual[16384], path[PATH_MAX], option[32], *p;
	int nr = 0;

	snprintf(path, sizeof(path), "%s", own_path());
	strcpy(strrchr(path, '/') + 1, "cowstat.1");
	if (cow_read_file(path, manual, sizeof(manual)) <= 0)
		SKIP(return, "no cowstat.1: it is there where the tests are installed");
	/* troff writes a minus as \-. */
	while ((p = strstr(manual, "\\-")))
		memmove(p, p + 1, strlen(p));
	ASSERT_EQ(cowstat("--help", NULL), 0);
	for (p = run.text; (p = strstr(p, " --")); p++, nr++) {
		ASSERT_EQ(sscanf(p, " %31[-a-z]", option), 1);
		EXPECT_NE(strstr(manual, option), NULL)
			TH_LOG("%s", option);
	}
	EXPECT_GE(nr, 12);
}

TEST_HARNESS_MAIN
