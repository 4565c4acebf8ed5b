// SPDX-License-Identifier: GPL-2.0
/*
 * cow_stats.c and cowstat
 *
 * The parsers and the histogram on text that is made for it. Then cowstat, the
 * program, on a folder of files that takes the place of /proc, where each number
 * is known and a reset, an exit or a missing file happens when it should.
 * cowstat_running.c tests it on the running kernel.
 *
 * With COW_ANY_KERNEL in the environment, what needs no kernel with the feature
 * is run without it as well.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cowstat_helpers.h"

#ifndef ARRAY_SIZE
#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))
#endif

/* Percentiles are documented as within 1.6 %; 3 % is what a user may rely on. */
#define BOUND		0.016

/*
 * cow_stats.c: counters
 */

FIXTURE(counters)
{
	struct cow_stats s;
};

FIXTURE_SETUP(counters)
{
	const char *reason = no_kernel();

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(fake_begin(), 0);
	cow_proc = fake;
	make_counts(&self->s, 7);
}

FIXTURE_TEARDOWN(counters)
{
	fake_end();
}

TEST_F_TIMEOUT(counters, read, TEST_TIMEOUT)
{
	struct cow_stats s;
	int i;

	self->s.v[COW_TOTAL_NS] = ULLONG_MAX;
	self->s.v[COW_SKIP_RACE] = 0;
	self->s.skips -= 7 * (COW_SKIP_RACE + 1);
	fake_counts(&self->s);
	memset(&s, 0xff, sizeof(s));
	ASSERT_EQ(cow_stats_read(&s), 0);
	for (i = 0; i < COW_NR_SYSTEM_KEYS; i++) {
		EXPECT_EQ(s.v[i], self->s.v[i])
			TH_LOG("%s", cow_key_names[i]);
	}
	for (; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(s.v[i], 0ULL)
			TH_LOG("%s", cow_key_names[i]);
	}
	EXPECT_EQ(s.skips, self->s.skips);
	EXPECT_TRUE(s.precopy);
}

TEST_F_TIMEOUT(counters, read_pid, TEST_TIMEOUT)
{
	struct cow_stats s;
	char path[128];
	int i;

	fake_pid_counts(&self->s);
	ASSERT_EQ(cow_stats_read_pid(&s, FAKE_PID), 0);
	for (i = 0; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(s.v[i], is_percentile(i) ? 0 : self->s.v[i])
			TH_LOG("%s", cow_key_names[i]);
	}
	EXPECT_EQ(s.skips, self->s.skips);

	/* 0 is the caller. */
	EXPECT_EQ(cow_stats_read_pid(&s, 0), -ENOENT);
	snprintf(path, sizeof(path), "%s/self", fake);
	ASSERT_EQ(mkdir(path, 0755), 0);
	fake_text("self/cow_stats", counts_text(&self->s, true));
	EXPECT_EQ(cow_stats_read_pid(&s, 0), 0);
	EXPECT_EQ(s.v[COW_CHILDREN_FAULTS], self->s.v[COW_CHILDREN_FAULTS]);

	EXPECT_EQ(cow_stats_read_pid(&s, FAKE_PID + 1), -ENOENT);
	EXPECT_EQ(cow_stats_read(&s), -ENOENT);
	/* No address space: a zombie, a kernel thread */
	fake_text(fake_pid_file("cow_stats"), "");
	EXPECT_EQ(cow_stats_read_pid(&s, FAKE_PID), -ENODATA);
	/* A file of the one kind is not one of the other. */
	fake_text("cow_stats", counts_text(&self->s, true));
	EXPECT_EQ(cow_stats_read(&s), 0);
	EXPECT_STREQ(s.missing, "p50_ns");
	fake_pid_counts(&self->s);
	fake_text(fake_pid_file("cow_stats"), counts_text(&self->s, false));
	EXPECT_EQ(cow_stats_read_pid(&s, FAKE_PID), 0);
	EXPECT_STREQ(s.missing, "children_faults");
}

/* The text with one line of it replaced */
static void put_with(const char *text, const char *line, const char *instead)
{
	char buf[8192];
	const char *at = strstr(text, line);

	if (!at)
		abort();
	snprintf(buf, sizeof(buf), "%.*s%s%s", (int)(at - text), text, instead,
		 at + strlen(line));
	fake_text("cow_stats", buf);
}

TEST_F_TIMEOUT(counters, malformed, TEST_TIMEOUT)
{
	static const char * const instead[] = {
		"\n", "reused\n", "reused:\n", "reused: \n", "reused:14\n",
		"reused 14\n", "reused: -14\n", "reused: +14\n",
		"reused:  14\n", "reused: 14 \n", "reused: 14\t\n",
		"reused: 0x14\n", "reused: 14.0\n", "reused: 1 4\n",
		"reused: 14\r\n", "reused: fourteen\n", ": 14\n",
		"reused: 18446744073709551616\n",
		"reused: 99999999999999999999999999\n",
		"reused: 14\nreused: 14\n",
	};
	char text[8192], longer[6000];
	struct cow_stats s;
	size_t i, len;
	int ret;

	snprintf(text, sizeof(text), "%s", counts_text(&self->s, false));
	for (i = 0; i < ARRAY_SIZE(instead); i++) {
		put_with(text, "reused: 14\n", instead[i]);
		EXPECT_EQ(cow_stats_read(&s), -EPROTO)
			TH_LOG("'%s'", instead[i]);
	}
	/* The largest number there is */
	put_with(text, "reused: 14\n", "reused: 18446744073709551615\n");
	EXPECT_EQ(cow_stats_read(&s), 0);
	EXPECT_EQ(s.v[COW_REUSED], ULLONG_MAX);

	/*
	 * Cut off anywhere; without the last newline, too. Between two lines it
	 * lacks a key. Only before the first precopy_* it could be the file of a
	 * kernel without pre-copy.
	 */
	len = strlen(text);
	for (i = 0; i < len; i++) {
		if (!strncmp(text + i, "precopy_attempts", 16))
			continue;
		fake_put("cow_stats", text, i);
		ret = cow_stats_read(&s);
		if (i && text[i - 1] == '\n') {
			ASSERT_EQ(ret, 0)
				TH_LOG("%zu of %zu bytes", i, len);
			ASSERT_NE(s.missing, NULL);
		} else {
			ASSERT_EQ(ret, -EPROTO)
				TH_LOG("%zu of %zu bytes", i, len);
		}
	}
	/* A NUL, behind a number too */
	text[3] = '\0';
	fake_put("cow_stats", text, len);
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
	text[3] = 'l';
	fake_put("cow_stats", text, len);
	EXPECT_EQ(cow_stats_read(&s), 0);
	snprintf(longer, sizeof(longer), "new: 1_\n%s", text);
	longer[6] = '\0';
	fake_put("cow_stats", longer, len + 8);
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
	longer[6] = '1';
	fake_put("cow_stats", longer, len + 8);
	EXPECT_EQ(cow_stats_read(&s), 0);
	/* A line without an end */
	memset(longer, 'x', sizeof(longer));
	fake_put("cow_stats", longer, sizeof(longer));
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
}

/* Other kernels may count less: it is said what they lack. */
TEST_F_TIMEOUT(counters, missing_key, TEST_TIMEOUT)
{
	static const char * const instead[] = { "", "Reused: 14\n", "reused_: 14\n" };
	struct cow_stats s, d;
	char text[8192];
	size_t i;

	snprintf(text, sizeof(text), "%s", counts_text(&self->s, false));
	for (i = 0; i < ARRAY_SIZE(instead); i++) {
		put_with(text, "reused: 14\n", instead[i]);
		ASSERT_EQ(cow_stats_read(&s), 0);
		EXPECT_STREQ(s.missing, "reused");
		EXPECT_FALSE(s.known[COW_REUSED]);
		EXPECT_TRUE(s.known[COW_FAULTS]);
		EXPECT_EQ(s.v[COW_FAULTS], self->s.v[COW_FAULTS]);
		cow_stats_delta(&d, &s, &s);
		EXPECT_FALSE(d.known[COW_REUSED]);
		EXPECT_TRUE(d.known[COW_FAULTS]);
	}
	put_with(text, "faults: 7\n", "");
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
	fake_text("cow_stats", text);
	ASSERT_EQ(cow_stats_read(&s), 0);
	EXPECT_EQ(s.missing, NULL);
}

/* Later kernels may count more. */
TEST_F_TIMEOUT(counters, unknown_keys, TEST_TIMEOUT)
{
	struct cow_stats s;

	put_with(counts_text(&self->s, false), "reused: 14\n",
		 "new: 5\nreused: 14\nprecopy_skip_new: 100\n");
	ASSERT_EQ(cow_stats_read(&s), 0);
	EXPECT_EQ(s.v[COW_REUSED], 14ULL);
	EXPECT_EQ(s.skips, self->s.skips + 100);
}

/* CONFIG_COW_STATS without CONFIG_COW_PRECOPY */
TEST_F_TIMEOUT(counters, without_precopy, TEST_TIMEOUT)
{
	char *text = counts_text(&self->s, false);
	struct cow_stats s;

	*strstr(text, "precopy_attempts") = '\0';
	fake_text("cow_stats", text);
	ASSERT_EQ(cow_stats_read(&s), 0);
	EXPECT_FALSE(s.precopy);
	EXPECT_EQ(s.v[COW_FAULTS], 7ULL);
	EXPECT_EQ(s.v[COW_SUCCESS], 0ULL);
	EXPECT_EQ(s.skips, 0ULL);
}

TEST_F_TIMEOUT(counters, delta, TEST_TIMEOUT)
{
	struct cow_stats before, after, d;
	int i;

	make_counts(&before, 10);
	make_counts(&after, 25);
	cow_stats_delta(&d, &before, &after);
	for (i = 0; i < COW_NR_KEYS; i++) {
		unsigned long long want = after.v[i] - before.v[i];

		if (is_percentile(i) || i == COW_MIN_NS || i == COW_MAX_NS ||
		    i == COW_FAULT_MAX_NS)
			want = 0;
		if (i == COW_AVG_NS)
			want = (after.v[COW_TOTAL_NS] - before.v[COW_TOTAL_NS]) /
			       (after.v[COW_FAULTS] - before.v[COW_FAULTS]);
		EXPECT_EQ(d.v[i], want)
			TH_LOG("%s", cow_key_names[i]);
	}
	EXPECT_EQ(d.skips, after.skips - before.skips);
	/* Nothing happened: nothing to divide by */
	cow_stats_delta(&d, &after, &after);
	for (i = 0; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(d.v[i], 0ULL);
	}
}

TEST_F_TIMEOUT(counters, restarted, TEST_TIMEOUT)
{
	struct cow_stats before, after;
	int i;

	make_counts(&before, 10);
	make_counts(&after, 25);
	EXPECT_FALSE(cow_stats_restarted(&before, &after));
	EXPECT_FALSE(cow_stats_restarted(&before, &before));
	EXPECT_TRUE(cow_stats_restarted(&after, &before));
	for (i = 0; i < COW_NR_KEYS; i++) {
		after = before;
		after.v[i]--;
		/* These go up and down. */
		EXPECT_EQ(cow_stats_restarted(&before, &after),
			  !is_percentile(i) && i != COW_AVG_NS &&
			  i != COW_MIN_NS)
			TH_LOG("%s", cow_key_names[i]);
	}
	/* The minimum grows: only after a reset */
	after = before;
	after.v[COW_MIN_NS]++;
	EXPECT_TRUE(cow_stats_restarted(&before, &after));
	after.v[COW_MIN_NS] = 0;
	EXPECT_TRUE(cow_stats_restarted(&before, &after));
	before.v[COW_MIN_NS] = 0;
	after.v[COW_MIN_NS] = 5;
	EXPECT_FALSE(cow_stats_restarted(&before, &after));
	after = before;
	after.skips--;
	EXPECT_TRUE(cow_stats_restarted(&before, &after));
}

/*
 * cow_stats.c: histograms
 */

static int compare_u64(const void *a, const void *b)
{
	__u64 x = *(const __u64 *)a, y = *(const __u64 *)b;

	return x < y ? -1 : x > y;
}

/* By nearest rank, percent in thousandths, in integers */
static __u64 reference(const __u64 *sorted, __u64 nr, unsigned int thousandths)
{
	__u64 rank = (nr * thousandths + 99999) / 100000;

	return sorted[rank ? rank - 1 : 0];
}

static bool within_bound(__u64 got, __u64 want)
{
	double off = got > want ? got - want : want - got;

	return off <= BOUND * want;
}

TEST_F_TIMEOUT(counters, percentiles, TEST_TIMEOUT)
{
	static const unsigned int thousandths[] = {
		0, 1, 100, 1000, 25000, 33333, 50000, 66667, 90000, 95000,
		99000, 99900, 99990, 99999, 100000,
	};
	static const int sizes[] = { 1, 2, 3, 10, 99, 100, 101, 1000, 4096 };
	static __u64 ns[4096];
	static struct cow_hist h;
	__u64 seed = 1;
	size_t i, j;
	int shift;

	EXPECT_EQ(cow_hist_percentile(&h, 50), 0ULL);
	EXPECT_EQ(cow_hist_total(&h), 0ULL);

	/* Each rank of 1000 by its own percent, none of which is a fraction of 2 */
	for (i = 1; i <= 1000; i++)
		h.count[i - 1] = 1;
	for (i = 1; i <= 1000; i++) {
		static struct cow_hist one;

		memset(&one, 0, sizeof(one));
		one.count[i - 1] = 1;
		ASSERT_EQ(cow_hist_percentile(&h, i / 10.0),
			  cow_hist_percentile(&one, 50))
			TH_LOG("P%g", i / 10.0);
	}

	/* Exact where all is small, then over ever more octaves */
	for (shift = 59; shift >= 28; shift -= 3) {
		for (i = 0; i < ARRAY_SIZE(sizes); i++) {
			int k, nr = sizes[i];

			memset(&h, 0, sizeof(h));
			for (k = 0; k < nr; k++) {
				ns[k] = cow_rand(&seed) >> shift;
				ns[k] >>= cow_rand(&seed) % 8;
				cow_hist_add(&h, ns[k]);
			}
			qsort(ns, nr, sizeof(ns[0]), compare_u64);
			ASSERT_EQ(cow_hist_total(&h), (__u64)nr);
			for (j = 0; j < ARRAY_SIZE(thousandths); j++) {
				double p = thousandths[j] / 1000.0;
				__u64 want = reference(ns, nr, thousandths[j]);
				__u64 got = cow_hist_percentile(&h, p);

				ASSERT_TRUE(within_bound(got, want))
					TH_LOG("P%g of %d: %llu instead of %llu",
					       p, nr, got, want);
			}
		}
	}
}

/* Every bucket's borders */
TEST_F_TIMEOUT(counters, buckets, TEST_TIMEOUT)
{
	static struct cow_hist h;
	__u64 ns, nr = 0;
	int shift, i;

	for (shift = 0; shift < COW_HIST_MAX_BITS; shift++) {
		for (i = -1; i <= 1; i++) {
			ns = ((__u64)1 << shift) + i;
			memset(&h, 0, sizeof(h));
			cow_hist_add(&h, ns);
			EXPECT_TRUE(within_bound(cow_hist_percentile(&h, 50), ns))
				TH_LOG("%llu", ns);
		}
	}
	/* What is too long is in the last one. */
	memset(&h, 0, sizeof(h));
	for (i = COW_HIST_MAX_BITS; i < 64; i++, nr++)
		cow_hist_add(&h, (__u64)1 << i);
	cow_hist_add(&h, ULLONG_MAX);
	EXPECT_EQ(h.count[COW_HIST_BUCKETS - 1], nr + 1);
	EXPECT_EQ(cow_hist_total(&h), nr + 1);
	EXPECT_TRUE(within_bound(cow_hist_percentile(&h, 100),
				 (__u64)1 << COW_HIST_MAX_BITS));
	/* Percents that make no sense */
	EXPECT_EQ(cow_hist_percentile(&h, -5), cow_hist_percentile(&h, 0));
	EXPECT_EQ(cow_hist_percentile(&h, 1000), cow_hist_percentile(&h, 100));
}

TEST_F_TIMEOUT(counters, hist_delta, TEST_TIMEOUT)
{
	static struct cow_hist before, after, d;

	cow_hist_add(&before, 10);
	cow_hist_add(&before, 1000);
	after = before;
	EXPECT_FALSE(cow_hist_restarted(&before, &after));
	cow_hist_add(&after, 20);
	cow_hist_add(&after, 20);
	EXPECT_FALSE(cow_hist_restarted(&before, &after));
	EXPECT_TRUE(cow_hist_restarted(&after, &before));
	cow_hist_delta(&d, &before, &after);
	EXPECT_EQ(cow_hist_total(&d), 2ULL);
	EXPECT_EQ(cow_hist_percentile(&d, 1), 20ULL);
	EXPECT_EQ(cow_hist_percentile(&d, 100), 20ULL);
}

TEST_F_TIMEOUT(counters, hist_read, TEST_TIMEOUT)
{
	static const char * const malformed[] = {
		"copy 5 5 1", "copy\n", "copy \n", "copy 5\n", "copy 5 5\n",
		"copy 5 5 \n", "copy 5 5 1 \n", "copy 5 5 1 1\n",
		"copy  5 5 1\n", "copy 5 5 -1\n", "copy 5 5 x\n",
		"copy 5 4 1\n", "copy 5 6 1\n",	/* two buckets */
		"copy 5 5 1\ncopy 5 5 1\n", "copy 6 6 1\ncopy 5 5 1\n",
		"fault 1000 2000 1\n", " copy 5 5 1\n", "\n",
		"copy 5 5 18446744073709551616\n",
	};
	static struct cow_hist copy, fault;
	static char text[200000];
	unsigned long long ns;
	size_t i;
	int len;

	EXPECT_EQ(cow_hist_read(&copy, &fault), -ENOENT);
	fake_text("cow_histogram", "");
	EXPECT_EQ(cow_hist_read(&copy, &fault), 0);
	EXPECT_EQ(cow_hist_total(&copy) + cow_hist_total(&fault), 0ULL);
	fake_text("cow_histogram",
		  "copy 5 5 2\ncopy 64 65 3\nother 1 9 7\nfault 3 3 4\n"
		  "fault 67645734912 68719476735 1\n");
	memset(&copy, 0xff, sizeof(copy));
	EXPECT_EQ(cow_hist_read(&copy, &fault), 0);
	EXPECT_EQ(cow_hist_total(&copy), 5ULL);
	EXPECT_EQ(cow_hist_percentile(&copy, 40), 5ULL);
	EXPECT_EQ(cow_hist_percentile(&copy, 41), 65ULL);
	EXPECT_EQ(cow_hist_total(&fault), 5ULL);
	EXPECT_EQ(fault.count[3], 4ULL);
	EXPECT_EQ(fault.count[COW_HIST_BUCKETS - 1], 1ULL);
	EXPECT_EQ(cow_hist_read(NULL, &fault), 0);
	EXPECT_EQ(cow_hist_read(&copy, NULL), 0);
	EXPECT_EQ(cow_hist_total(&copy), 5ULL);

	for (i = 0; i < ARRAY_SIZE(malformed); i++) {
		fake_text("cow_histogram", malformed[i]);
		EXPECT_EQ(cow_hist_read(&copy, &fault), -EPROTO)
			TH_LOG("'%s'", malformed[i]);
	}

	/* As large as it can be: every bucket of both */
	for (i = len = 0; i < 2; i++) {
		const char *name = i ? "fault" : "copy";
		int bucket;

		for (bucket = ns = 0; bucket < COW_HIST_BUCKETS; bucket++) {
			int octave = bucket >> COW_HIST_SHIFT;
			unsigned long long width = 1;

			if (octave > 1)
				width <<= octave - 1;
			len += snprintf(text + len, sizeof(text) - len,
					"%s %llu %llu %d\n", name, ns,
					ns + width - 1, bucket + 1);
			ns += width;
		}
	}
	fake_text("cow_histogram", text);
	ASSERT_EQ(cow_hist_read(&copy, &fault), 0);
	for (i = 0; i < COW_HIST_BUCKETS; i++) {
		ASSERT_EQ(copy.count[i], i + 1);
		ASSERT_EQ(fault.count[i], i + 1);
	}
}

/*
 * cowstat on the folder
 */

FIXTURE(cowstat)
{
	struct cow_stats a, b;
};

FIXTURE_SETUP(cowstat)
{
	const char *reason = no_kernel();

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(fake_begin(), 0);
	make_counts(&self->a, 10);
	make_counts(&self->b, 35);
	fake_counts(&self->a);
	fake_pid_counts(&self->a);
	fake_vmstat(1005, 100);
	fake_stat('S', 0, 50, 777);
	fake_sysctl("1\n");
	fake_text("cow_histogram", "copy 5 5 10\nfault 64 65 20\n");
}

FIXTURE_TEARDOWN(cowstat)
{
	fake_end();
}

static const int additive[] = {
	COW_FAULTS, COW_REUSED, COW_TOTAL_NS, COW_FAULT_TOTAL_NS, COW_ATTEMPTS,
	COW_SUCCESS, COW_REUSE_AHEAD, COW_SKIP_VMA, COW_SKIP_PMD,
	COW_SKIP_NOTPRESENT, COW_SKIP_WRITABLE, COW_SKIP_NOTANON,
	COW_SKIP_EXCLUSIVE, COW_SKIP_RACE, COW_SKIP_NOMEM, COW_SKIP_SPECIAL,
	COW_SKIP_MADVISE, COW_SKIP_UFFD, COW_SKIP_SOFTDIRTY, COW_SKIP_KSM,
	COW_SKIP_PINNED, COW_CHILDREN_FAULTS, COW_CHILDREN_REUSED,
	COW_CHILDREN_TOTAL_NS, COW_CHILDREN_FAULT_TOTAL_NS,
	COW_CHILDREN_SUCCESS, COW_CHILDREN_REUSE_AHEAD,
};

#define NR_ADDITIVE_SYSTEM	(ARRAY_SIZE(additive) - 6)

/*
 * The key whose value is wrong, or "": the JSON object has these counts, and
 * that of a process those of its children too.
 */
static const char *wrong_count(const struct cow_stats *want, bool pid)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(additive); i++) {
		const char *key = cow_key_names[additive[i]];

		if (i >= NR_ADDITIVE_SYSTEM && !pid) {
			if (!json_null(key))
				return key;
		} else if (json_null(key) || !*json_text(key) ||
			   json_ull(key) != want->v[additive[i]]) {
			return key;
		}
	}
	return "";
}

/* The first line is what the files say, without any change. */
TEST_F_TIMEOUT(cowstat, total, TEST_TIMEOUT)
{
	char pid[16];

	ASSERT_EQ(cowstat("--proc", fake, "-j", NULL), 0);
	EXPECT_STREQ(run.errors, "");
	ASSERT_EQ(lines_of(run.text), 1);
	ASSERT_TRUE(json_parse(run.text))
		TH_LOG("%s", run.text);
	EXPECT_STREQ(wrong_count(&self->a, false), "");
	EXPECT_TRUE(json_null("pid"));
	EXPECT_TRUE(json_null("seconds"));
	EXPECT_STREQ(json_text("reset"), "false");
	EXPECT_EQ(json_ull("minor_faults"), 1000ULL);
	EXPECT_EQ(json_ull("pgreuse"), 100ULL);
	EXPECT_EQ(json_ull("cow_ksm"), 3ULL);
	EXPECT_EQ(json_ull("p50_ns"), self->a.v[COW_P50_NS]);
	EXPECT_EQ(json_ull("p90_ns"), self->a.v[COW_P90_NS]);
	EXPECT_EQ(json_ull("p95_ns"), self->a.v[COW_P95_NS]);
	EXPECT_EQ(json_ull("p99_ns"), self->a.v[COW_P99_NS]);
	EXPECT_EQ(json_ull("fault_p50_ns"), self->a.v[COW_FAULT_P50_NS]);
	EXPECT_EQ(json_ull("fault_p99_ns"), self->a.v[COW_FAULT_P99_NS]);
	EXPECT_TRUE(json_null("faults_per_s"));
	EXPECT_TRUE(json_null("wall_share"));
	EXPECT_TRUE(about(json_double("copy_share"), 0.25));
	EXPECT_TRUE(about(json_double("skip_share"),
			  (double)self->a.skips / self->a.v[COW_ATTEMPTS]));

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	ASSERT_EQ(cowstat("--proc", fake, "-j", "-p", pid, NULL), 0);
	EXPECT_NE(strstr(run.errors,
			 "no percentiles: the kernel has them for the system"),
		  NULL);
	ASSERT_TRUE(json_parse(run.text))
		TH_LOG("%s", run.text);
	EXPECT_STREQ(wrong_count(&self->a, true), "");
	EXPECT_EQ(json_ull("pid"), (unsigned long long)FAKE_PID);
	EXPECT_EQ(json_ull("minor_faults"), 50ULL);
	EXPECT_EQ(json_ull("children_minor_faults"), 6ULL);
	EXPECT_TRUE(json_null("p50_ns"));

	/* The same as a table */
	ASSERT_EQ(cowstat("--proc", fake, "-w", NULL), 0);
	ASSERT_EQ(lines_of(run.text), 3);
	EXPECT_STREQ(column(run.text, 0, "seconds"), "total");
	EXPECT_STREQ(column(run.text, 0, "minor"), "1000");
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");
	EXPECT_STREQ(column(run.text, 0, "reused"), "20");
	EXPECT_STREQ(column(run.text, 0, "lost"), "30");
	EXPECT_STREQ(column(run.text, 0, "ahead"), "210");
	EXPECT_STREQ(column(run.text, 0, "reuse+"), "220");
	EXPECT_STREQ(column(run.text, 0, "copy%"), "25.0");
	EXPECT_STREQ(column(run.text, 0, "wall%"), "-");
	EXPECT_STREQ(column(run.text, 0, "p50"), "120");
	/* Only where copied is not known */
	EXPECT_STREQ(column(run.text, 0, "pgreuse"), "");
}

/* One gated sample; false unless it printed a JSON line. */
static bool next_sample(const char *vmstat)
{
	return json_parse(gate_step(vmstat));
}

/* Rates are the counts divided by the seconds that the line says; so are shares. */
TEST_F_TIMEOUT(cowstat, rates, TEST_TIMEOUT)
{
	struct cow_stats d;
	double seconds;

	cow_stats_delta(&d, &self->a, &self->b);
	gate_begin();
	start("--proc", fake, "-j", "0.1", NULL);
	ASSERT_TRUE(next_sample(vmstat_text(1005, 100)));
	ASSERT_TRUE(next_sample(vmstat_text(2505, 110)));
	EXPECT_EQ(json_ull("minor_faults"), 1500ULL);
	EXPECT_EQ(json_ull("pgreuse"), 10ULL);
	seconds = json_double("seconds");
	EXPECT_GT(seconds, 0);
	EXPECT_TRUE(about(json_double("minor_faults_per_s"), 1500 / seconds));
	EXPECT_STREQ(json_text("faults"), "0");
	EXPECT_TRUE(json_null("copy_share"));

	fake_counts(&self->b);
	ASSERT_TRUE(next_sample(vmstat_text(2505, 110)));
	EXPECT_STREQ(wrong_count(&d, false), "");
	seconds = json_double("seconds");
	EXPECT_TRUE(about(json_double("faults_per_s"),
			  d.v[COW_FAULTS] / seconds));
	EXPECT_TRUE(about(json_double("reused_per_s"),
			  d.v[COW_REUSED] / seconds));
	EXPECT_TRUE(about(json_double("precopy_success_per_s"),
			  d.v[COW_SUCCESS] / seconds));
	EXPECT_TRUE(about(json_double("reuse_ahead_per_s"),
			  d.v[COW_REUSE_AHEAD] / seconds));
	EXPECT_TRUE(about(json_double("copy_share"), 0.25));
	EXPECT_TRUE(about(json_double("skip_share"),
			  (double)d.skips / d.v[COW_ATTEMPTS]));
	EXPECT_GT(d.v[COW_LOST_NS], 0ULL);
	EXPECT_TRUE(about(json_double("wall_share"),
			  (d.v[COW_FAULT_TOTAL_NS] + d.v[COW_LOST_NS]) / 1e9 /
			  seconds));
	/* Nothing in the histogram has changed. */
	EXPECT_TRUE(json_null("p50_ns"));

	/* Ten of 5 ns are of before; new are 90 of 7 and 10 of 64. */
	fake_text("cow_histogram",
		  "copy 5 5 10\ncopy 7 7 90\ncopy 64 65 10\nfault 64 65 21\n");
	ASSERT_TRUE(next_sample(vmstat_text(2505, 110)));
	EXPECT_EQ(json_ull("p50_ns"), 7ULL);
	EXPECT_EQ(json_ull("p90_ns"), 7ULL);
	EXPECT_EQ(json_ull("p95_ns"), 65ULL);
	EXPECT_EQ(json_ull("p99_ns"), 65ULL);
	EXPECT_EQ(json_ull("fault_p50_ns"), 65ULL);
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
	EXPECT_STREQ(run.errors, "");
}

/* The seconds of a line, which have nine decimals */
static __u64 line_ns(void)
{
	return json_double("seconds") * 1e9 + 0.5;
}

/*
 * The last sample is the next one's base, and a pause is a long interval: as
 * long as the test has seen the process stopped, however late either one runs.
 */
TEST_F_TIMEOUT(cowstat, pause, TEST_TIMEOUT)
{
	const __u64 step = 50000000;
	__u64 stopped, total = 0;
	double seconds;
	int fd, status, i;

	gate_begin();
	start("--proc", fake, "-j", "0.05", NULL);
	ASSERT_TRUE(next_sample(vmstat_text(1005, 100)));
	/* It has taken the time of this sample, and stops in it. */
	fd = gate_enter();
	ASSERT_GE(fd, 0);
	stopped = cow_now_ns();
	ASSERT_EQ(kill(run.pid, SIGSTOP), 0);
	ASSERT_EQ(waitpid(run.pid, &status, WUNTRACED), run.pid);
	ASSERT_TRUE(WIFSTOPPED(status));
	while (cow_now_ns() < stopped + 6 * step)
		usleep(1000);
	stopped = cow_now_ns() - stopped;
	ASSERT_EQ(kill(run.pid, SIGCONT), 0);
	ASSERT_TRUE(json_parse(gate_leave(fd, vmstat_text(1005, 100))));
	EXPECT_EQ(json_ull("faults"), 0ULL);

	fake_counts(&self->b);
	ASSERT_TRUE(next_sample(vmstat_text(1005, 100)));
	seconds = json_double("seconds");
	EXPECT_GE(line_ns(), stopped);
	EXPECT_EQ(json_ull("faults"), 25ULL);
	EXPECT_TRUE(about(json_double("faults_per_s"), 25 / seconds));

	/* What was missed is not made up for: each comes when it is due. */
	for (i = 0; i < 4; i++) {
		ASSERT_TRUE(next_sample(vmstat_text(1005, 100)));
		EXPECT_EQ(json_ull("faults"), 0ULL);
		total += line_ns();
	}
	EXPECT_GE(total, 3 * step);
	finish(SIGTERM);
}

static const char *line_of(const char *text, int nr)
{
	static char line[512];

	while (nr-- && text)
		text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
	snprintf(line, sizeof(line), "%.*s",
		 text ? (int)strcspn(text, "\n") : 0, text ?: "");
	return line;
}

/* After a reset neither a difference nor an old sum is printed. */
TEST_F_TIMEOUT(cowstat, reset, TEST_TIMEOUT)
{
	char pid[16], *line;
	int way;

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	for (way = 0; way < 3; way++) {
		struct cow_stats after;

		fake_counts(&self->b);
		fake_pid_counts(&self->b);
		fake_text("cow_histogram", "copy 5 5 10\n");
		if (way == 2)
			start("--proc", fake, "-j", "-p", pid, "0.05", NULL);
		else
			start("--proc", fake, "-j", "0.05", NULL);
		ASSERT_TRUE(json_parse(next_line()));
		if (way == 0)
			fake_counts(&self->a);
		else if (way == 1)
			fake_text("cow_histogram", "copy 5 5 9\n");
		else
			fake_pid_counts(&self->a);
		ASSERT_NE(line_with_reset(), NULL);
		EXPECT_TRUE(json_null("faults"));
		EXPECT_TRUE(json_null("total_ns"));
		EXPECT_TRUE(json_null("precopy_success"));
		EXPECT_TRUE(json_null("children_faults"));
		EXPECT_TRUE(json_null("faults_per_s"));
		EXPECT_TRUE(json_null("wall_share"));
		EXPECT_TRUE(json_null("skip_share"));
		EXPECT_TRUE(json_null("p50_ns"));
		/* These are not reset. */
		EXPECT_STREQ(json_text("minor_faults"), "0");

		/* What is counted from there on is right again. */
		after = way == 1 ? self->b : self->a;
		after.v[COW_FAULTS] += 3;
		fake_counts(&after);
		fake_pid_counts(&after);
		ASSERT_NE(line_with("faults"), NULL);
		EXPECT_EQ(json_ull("faults"), 3ULL);
		EXPECT_STREQ(json_text("reset"), "false");
		finish(SIGTERM);
	}

	/* As a table */
	fake_counts(&self->b);
	start("--proc", fake, "0.05", NULL);
	ASSERT_NE(next_line(), NULL);
	ASSERT_NE(next_line(), NULL);
	ASSERT_NE(next_line(), NULL);
	fake_counts(&self->a);
	do {
		line = next_line();
		ASSERT_NE(line, NULL);
	} while (!strstr(line, "reset"));
	EXPECT_EQ(strspn(line + strspn(line, " ") + 5, " -0"),
		  strlen(line + strspn(line, " ") + 5))
		TH_LOG("%s", line);
	finish(SIGTERM);
}

/* One reset is one, also if it falls between reading the one file and the other. */
TEST_F_TIMEOUT(cowstat, reset_between_files, TEST_TIMEOUT)
{
	const char *histogram = "copy 5 5 1\n";
	char fifo[128], path[128];
	int fd;

	fake_counts(&self->b);
	fake_text("cow_histogram", "copy 5 5 10\n");
	start("--proc", fake, "-j", "0.05", NULL);
	ASSERT_TRUE(json_parse(next_line()));

	/* Who opens a FIFO waits for the other end: the counts have been read. */
	snprintf(fifo, sizeof(fifo), "%s/fifo", fake);
	snprintf(path, sizeof(path), "%s/cow_histogram", fake);
	ASSERT_EQ(mkfifo(fifo, 0600), 0);
	ASSERT_EQ(rename(fifo, path), 0);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	ASSERT_GE(fd, 0);
	fake_counts(&self->a);
	fake_text("cow_histogram", histogram);
	ASSERT_EQ(write(fd, histogram, strlen(histogram)),
		  (ssize_t)strlen(histogram));
	close(fd);

	ASSERT_NE(line_with_reset(), NULL);
	ASSERT_TRUE(json_parse(next_line()));
	EXPECT_STREQ(json_text("reset"), "false");
	finish(SIGTERM);
}

/* The lines that are headers: which, and how many rows follow each of them */
static bool headers_every(const char *text, int rows)
{
	int nr = lines_of(text), i;

	for (i = 0; i < nr; i++) {
		int at = i % (rows + 2);
		const char *line = line_of(text, i);
		bool header = at == 1;

		if (!strncmp(line, " seconds ", 9) ^ header ||
		    !!strstr(line, "faults/s") ^ !at)
			return false;
	}
	return true;
}

/* A terminal of that height; its other side is returned in *slave. */
static int open_terminal(int height, int *slave)
{
	struct winsize size = { .ws_row = height, .ws_col = 200 };
	int pty = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	struct termios raw;

	if (pty < 0 || grantpt(pty) || unlockpt(pty))
		return -1;
	*slave = open(ptsname(pty), O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (*slave < 0 || tcgetattr(*slave, &raw))
		return -1;
	cfmakeraw(&raw);
	if (tcsetattr(*slave, TCSANOW, &raw) ||
	    ioctl(*slave, TIOCSWINSZ, &size))
		return -1;
	return pty;
}

static int terminal;

static bool to_terminal(void)
{
	return dup2(terminal, STDOUT_FILENO) >= 0;
}

/* cowstat on a terminal of that height: what it has printed, or NULL */
static char *on_terminal(int height, const char **argv)
{
	int pty = open_terminal(height, &terminal);
	static char text[32768];
	size_t len = 0;
	ssize_t n;

	if (pty < 0)
		return NULL;
	start_prepared(TO_FILE, to_terminal, argv);
	close(terminal);
	while (len < sizeof(text) - 1) {
		n = read(pty, text + len, sizeof(text) - 1 - len);
		if (n <= 0)
			break;
		len += n;
	}
	text[len] = '\0';
	close(pty);
	finish(0);
	return text;
}

/* Fifty lines and the average */
TEST_F_TIMEOUT(cowstat, headers, TEST_TIMEOUT)
{
	static const int heights[] = { 10, 4, 40 };
	size_t i;

	/* What is no terminal is taken for one of 24 lines. */
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "50", NULL), 0);
	ASSERT_EQ(lines_of(run.text), 51 + 2 * 3);
	ASSERT_TRUE(headers_every(run.text, 21))
		TH_LOG("%s", run.text);
	ASSERT_EQ(cowstat("-n", "--proc", fake, "0.01", "50", NULL), 0);
	ASSERT_EQ(lines_of(run.text), 51 + 2);
	ASSERT_TRUE(headers_every(run.text, 51));
	ASSERT_EQ(cowstat("-j", "--proc", fake, "0.01", "50", NULL), 0);
	ASSERT_EQ(lines_of(run.text), 50);

	for (i = 0; i < ARRAY_SIZE(heights); i++) {
		static const char *argv[] = {
			"cowstat", "--proc", fake, "0.01", "50", NULL
		};
		char *text = on_terminal(heights[i], argv);
		int rows = heights[i] - 3;

		if (!text)
			SKIP(return, "no pseudoterminal: %s", strerror(errno));
		ASSERT_EQ(run.status, 0);
		ASSERT_EQ(lines_of(text), 51 + 2 * ((51 + rows - 1) / rows));
		ASSERT_TRUE(headers_every(text, rows))
			TH_LOG("height %d:\n%s", heights[i], text);
	}
}

/*
 * A ranking takes the place of the last one; what was said at the beginning is above
 * the first, until then. JSON is for programs: all of it, and no control characters.
 */
TEST_F_TIMEOUT(cowstat, ranking_on_terminal, TEST_TIMEOUT)
{
	static const char *list[] = { "cowstat", "--proc", fake, "-a", "0.01", "3", NULL };
	static const char *json[] = { "cowstat", "--proc", fake, "-ja", "0.01", "3", NULL };
	char *text = on_terminal(10, list);

	if (!text)
		SKIP(return, "no pseudoterminal: %s", strerror(errno));
	EXPECT_EQ(run.status, 0);
	/* The second, the third, and the averages */
	EXPECT_GE(count_of(text, "\033[H\033[2J"), 2)
		TH_LOG("%s", text);
	EXPECT_NE(strncmp(text, "\033", 1), 0)
		TH_LOG("%s", text);
	text = on_terminal(10, json);
	EXPECT_EQ(run.status, 0);
	EXPECT_EQ(count_of(text, "\033"), 0)
		TH_LOG("%s", text);
	EXPECT_TRUE(json_parse(text));
}

/* A kernel that has nothing of all this */
TEST_F_TIMEOUT(cowstat, stock_kernel, TEST_TIMEOUT)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	fake_remove("cow_stats");
	fake_remove(fake_pid_file("cow_stats"));
	fake_remove("cow_histogram");
	fake_remove("sys/vm/cow_stats");
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "5", NULL), 0);
	EXPECT_EQ(lines_of(run.text), 8);
	EXPECT_STREQ(line_of(run.text, 1), " seconds     minor   pgreuse      ksm");
	EXPECT_STREQ(column(run.text, 0, "minor"), "1000");
	EXPECT_STREQ(column(run.text, 0, "pgreuse"), "100");
	EXPECT_STREQ(column(run.text, 0, "ksm"), "3");
	EXPECT_STREQ(column(run.text, 4, "minor"), "0");
	/* Once, not for each line */
	EXPECT_STREQ(run.errors,
		     "cowstat: no copied, reused, ahead, times: kernel without CONFIG_COW_STATS\n");
	ASSERT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 0);
	EXPECT_STREQ(line_of(run.text, 1), " seconds     minor");
	EXPECT_STREQ(column(run.text, 0, "minor"), "50");
	EXPECT_STREQ(run.errors,
		     "cowstat: no copied, reused, ahead, times: kernel without CONFIG_COW_STATS\n");
	ASSERT_EQ(cowstat("--proc", fake, "-j", NULL), 0);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_EQ(json_ull("minor_faults"), 1000ULL);
	EXPECT_TRUE(json_null("faults"));
	EXPECT_TRUE(json_null("precopy_success"));
	EXPECT_TRUE(json_null("p50_ns"));
	ASSERT_EQ(cowstat("--proc", fake, "-j", "--", "true", NULL), 0);
	ASSERT_TRUE(json_parse(strchr(run.errors, '{')))
		TH_LOG("%s", run.errors);
	EXPECT_GT(json_ull("minor_faults"), 0ULL);
	EXPECT_TRUE(json_null("faults"));
	EXPECT_TRUE(json_null("precopy_success"));
	/* -e asks for what is not possible. */
	EXPECT_EQ(cowstat("--proc", fake, "-e", NULL), 2);
	EXPECT_STREQ(run.errors,
		     "cowstat: there is no vm.cow_stats to switch on: kernel without CONFIG_COW_STATS\n");
	/* Nothing at all */
	fake_remove("vmstat");
	EXPECT_EQ(cowstat("--proc", fake, NULL), 2);
	EXPECT_NE(strstr(run.errors, "neither cow_stats nor vmstat"), NULL);
}

/* What every kernel with the first patch counts */
static const char *pgcow_text(unsigned int base)
{
	static char text[512];

	snprintf(text, sizeof(text),
		 "%spgcow_copied %u\npgcow_reused %u\npgcow_lost %u\npgcow_ahead %u\npgcow_reused_ahead %u\n",
		 vmstat_text(1005, 100), base + 1, base + 2, base + 3, base + 4, base + 5);
	return text;
}

/* The key whose value is not that of pgcow_text(@base), or "" */
static const char *wrong_pgcow(unsigned int base, bool differences)
{
	static const int keys[] = {
		COW_FAULTS, COW_REUSED, COW_LOST, COW_SUCCESS, COW_REUSE_AHEAD,
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		const char *key = cow_key_names[keys[i]];

		if (json_null(key) || json_ull(key) != base + (differences ? 0 : i + 1))
			return key;
	}
	return "";
}

/* Without CONFIG_COW_STATS the system's counts are exact, but there are no times. */
TEST_F_TIMEOUT(cowstat, vmstat_counts, TEST_TIMEOUT)
{
	fake_remove("cow_stats");
	fake_remove("cow_histogram");
	fake_remove("sys/vm/cow_stats");
	fake_text("vmstat", pgcow_text(1000));
	ASSERT_EQ(cowstat("--proc", fake, "-w", "0.01", "3", NULL), 0);
	EXPECT_EQ(lines_of(run.errors), 1);
	EXPECT_NE(strstr(run.errors,
			 "no times, percentiles: kernel without CONFIG_COW_STATS; the counts are "),
		  NULL)
		TH_LOG("%s", run.errors);
	EXPECT_STREQ(line_of(run.text, 1),
		     " seconds     minor    copied    reused    lost     ahead   reuse+");
	EXPECT_STREQ(column(run.text, 0, "copied"), "1001");
	EXPECT_STREQ(column(run.text, 0, "lost"), "1003");
	EXPECT_STREQ(column(run.text, 1, "copied"), "0");

	gate_begin();
	start("--proc", fake, "-j", "0.05", NULL);
	ASSERT_TRUE(next_sample(pgcow_text(1000)));
	EXPECT_STREQ(wrong_pgcow(1000, false), "");
	ASSERT_TRUE(next_sample(pgcow_text(1700)));
	EXPECT_STREQ(wrong_pgcow(700, true), "");
	EXPECT_TRUE(about(json_double("faults_per_s"), 700 / json_double("seconds")));
	EXPECT_TRUE(json_null("total_ns"));
	EXPECT_TRUE(json_null("fault_total_ns"));
	EXPECT_TRUE(json_null("wall_share"));
	EXPECT_TRUE(json_null("skip_share"));
	EXPECT_TRUE(json_null("unshared"));
	EXPECT_TRUE(json_null("children_faults"));
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
}

/* The same while vm.cow_stats is 0; what the kernel's own file counts is from there. */
TEST_F_TIMEOUT(cowstat, vmstat_counts_while_off, TEST_TIMEOUT)
{
	struct cow_stats d;

	cow_stats_delta(&d, &self->a, &self->b);
	fake_sysctl("0\n");
	gate_begin();
	start("--proc", fake, "-j", "0.05", NULL);
	ASSERT_TRUE(next_sample(pgcow_text(1000)));
	EXPECT_EQ(json_ull("faults"), 1001ULL);
	EXPECT_EQ(json_ull("lost"), 1003ULL);
	EXPECT_EQ(json_ull("precopy_success"), self->a.v[COW_SUCCESS]);
	EXPECT_TRUE(json_null("unshared"));
	EXPECT_TRUE(json_null("fault_total_ns"));
	/* Switched on in between: nothing began anew. */
	fake_sysctl("1\n");
	ASSERT_TRUE(next_sample(pgcow_text(1700)));
	EXPECT_STREQ(json_text("reset"), "false");
	EXPECT_EQ(json_ull("faults"), 700ULL);
	EXPECT_TRUE(json_null("wall_share"));
	fake_counts(&self->b);
	ASSERT_TRUE(next_sample(pgcow_text(9000)));
	EXPECT_STREQ(wrong_count(&d, false), "");
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
	EXPECT_EQ(lines_of(run.errors), 1);
	EXPECT_NE(strstr(run.errors,
			 "no times, percentiles: vm.cow_stats is 0, copied, reused and lost are "),
		  NULL)
		TH_LOG("%s", run.errors);
}

/* '-' is standard output, also for a command's bill. */
TEST_F_TIMEOUT(cowstat, output_dash, TEST_TIMEOUT)
{
	ASSERT_EQ(cowstat("--proc", fake, "-o", "-", NULL), 0);
	EXPECT_EQ(lines_of(run.text), 3);
	ASSERT_EQ(cowstat("-o", "-", "--", "true", NULL), 0);
	EXPECT_NE(strstr(run.text, "Copy-on-write bill of 'true'"), NULL);
	EXPECT_NE(access("-", F_OK), 0);
}

/* The exit status of cow_snapshot, which is beside this program */
static int snapshot(const char *argument)
{
	char *path = own_path(), command[PATH_MAX + 64];

	*strrchr(path, '/') = '\0';
	snprintf(command, sizeof(command), "'%s/cow_snapshot' '%s' > /dev/null 2>&1",
		 path, argument);
	return WEXITSTATUS(system(command));
}

FIXTURE(example)
{
	int unused;
};

FIXTURE_SETUP(example)
{
}

FIXTURE_TEARDOWN(example)
{
}

/* It runs on any kernel, and refuses what is no size. */
TEST_F_TIMEOUT(example, cow_snapshot, TEST_TIMEOUT)
{
	static const char * const refused[] = { "", "0", "-1", "12abc", "1025", "x" };
	size_t i;

	EXPECT_EQ(snapshot("1"), 0);
	for (i = 0; i < ARRAY_SIZE(refused); i++) {
		const char *size = refused[i];

		EXPECT_EQ(snapshot(size), 2)
			TH_LOG("'%s'", size);
	}
}

/* A part of it is missing, or switched off. */
TEST_F_TIMEOUT(cowstat, parts, TEST_TIMEOUT)
{
	char pid[16], *text;

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	fake_sysctl("0\n");
	ASSERT_EQ(cowstat("--proc", fake, "-w", "0.01", "3", NULL), 0);
	EXPECT_STREQ(run.errors,
		     "cowstat: no copied, reused, times: vm.cow_stats is 0; as root: sysctl vm.cow_stats=1, or cowstat -e\n");
	EXPECT_STREQ(column(run.text, 0, "copied"), "");
	EXPECT_STREQ(column(run.text, 0, "copy%"), "");
	EXPECT_STREQ(column(run.text, 0, "p50"), "");
	EXPECT_STREQ(column(run.text, 0, "pgreuse"), "100");
	/* What is copied ahead is counted nevertheless. */
	EXPECT_STREQ(column(run.text, 0, "ahead"), "210");
	ASSERT_EQ(cowstat("--proc", fake, "-j", NULL), 0);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_TRUE(json_null("faults"));
	EXPECT_EQ(json_ull("precopy_success"), 210ULL);

	/* Switched on while it runs: the columns come. */
	gate_begin();
	start("--proc", fake, "0.05", NULL);
	ASSERT_NE(strstr(gate_step(vmstat_text(1005, 100)), "faults/s"), NULL);
	ASSERT_NE(next_line(), NULL);
	ASSERT_NE(next_line(), NULL);
	fake_sysctl("1\n");
	/* Not with the header of the next screenful */
	ASSERT_NE(strstr(gate_step(vmstat_text(1005, 100)), "faults/s"), NULL);
	ASSERT_NE(strstr(next_line(), "copied"), NULL);
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
	fake_vmstat(1005, 100);

	text = counts_text(&self->a, false);
	*strstr(text, "precopy_attempts") = '\0';
	fake_text("cow_stats", text);
	ASSERT_EQ(cowstat("--proc", fake, "-w", "0.01", "3", NULL), 0);
	EXPECT_STREQ(run.errors,
		     "cowstat: no pages ahead: kernel without CONFIG_COW_PRECOPY\n");
	EXPECT_STREQ(column(run.text, 0, "ahead"), "");
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");
	fake_counts(&self->a);

	fake_remove("cow_histogram");
	ASSERT_EQ(cowstat("--proc", fake, "-w", "0.01", "3", NULL), 0);
	EXPECT_EQ(count_of(run.errors, "no percentiles"), 1);
	EXPECT_STREQ(column(run.text, 0, "p50"), "");
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");

	fake_remove(fake_pid_file("cow_stats"));
	ASSERT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 0);
	EXPECT_STREQ(run.errors,
		     "cowstat: this kernel counts for the system, not for each process: minor faults only\n");
	EXPECT_STREQ(column(run.text, 0, "minor"), "50");
}

TEST_F_TIMEOUT(cowstat, malformed, TEST_TIMEOUT)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	fake_text("cow_stats", "faults: many\n");
	EXPECT_EQ(cowstat("--proc", fake, NULL), 2);
	EXPECT_NE(strstr(run.errors, "malformed"), NULL);
	EXPECT_STREQ(run.text, "");
	fake_counts(&self->a);
	fake_text("cow_histogram", "copy 1 100 5\n");
	EXPECT_EQ(cowstat("--proc", fake, NULL), 2);
	EXPECT_NE(strstr(run.errors, "cow_histogram is malformed"), NULL);
	fake_text(fake_pid_file("cow_stats"), "faults: many\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "malformed"), NULL);
	fake_text(fake_pid_file("stat"), "1 (x\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "stat is malformed"), NULL);
}

/* The process ends, or another one gets its number. */
TEST_F_TIMEOUT(cowstat, process_exits, TEST_TIMEOUT)
{
	char want[64], pid[16];
	int way;

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	snprintf(want, sizeof(want), "cowstat: process %d has exited\n",
		 FAKE_PID);
	for (way = 0; way < 4; way++) {
		fake_stat('S', 0, 50, 777);
		fake_pid_counts(&self->a);
		start("--proc", fake, "-p", pid, "-j", "0.05", NULL);
		ASSERT_TRUE(json_parse(next_line()));
		if (way == 0)
			fake_remove(fake_pid_file("stat"));
		else if (way == 1)
			fake_stat('Z', 0, 50, 777);
		else if (way == 2)
			fake_stat('S', 0, 50, 778);
		else
			fake_text(fake_pid_file("cow_stats"), "");
		while (next_line())
			;
		finish(0);
		EXPECT_EQ(run.status, 1)
			TH_LOG("way %d", way);
		EXPECT_NE(strstr(run.errors, want), NULL)
			TH_LOG("%s", run.errors);
	}
	/* It has exited before. */
	fake_stat('Z', 0, 50, 777);
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "it has exited, and its parent has not waited for it yet"),
		  NULL);
	fake_stat('S', 0x00200000, 50, 777);
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "is a kernel thread"), NULL);
}

static const struct bad {
	const char *argv[6];
	const char *says;
} bad[] = {
	{ { "0" }, "the interval has to be 0.01 to 31536000 seconds, not 0" },
	{ { "0.0" }, "the interval has to be" },
	{ { "0.001" }, "the interval has to be" },
	{ { "-1" }, "an interval cannot be negative" },
	{ { "--", "" }, "cannot run ''" },
	{ { "" }, "'' is not an interval in seconds" },
	{ { "." }, "'.' is not an interval in seconds" },
	{ { "1s" }, "'1s' is not an interval in seconds" },
	{ { " 1" }, "' 1' is not an interval in seconds" },
	{ { "1e2" }, "'1e2' is not an interval in seconds" },
	{ { "0x10" }, "'0x10' is not an interval in seconds" },
	{ { "inf" }, "'inf' is not an interval in seconds" },
	{ { "nan" }, "'nan' is not an interval in seconds" },
	{ { "1.2.3" }, "'1.2.3' is not an interval in seconds" },
	{ { "1,5" }, "'1,5' is not an interval in seconds" },
	{ { "make" }, "a command goes behind '--'" },
	{ { "31536001" }, "the interval has to be" },
	{ { "99999999999999999999999999" }, "the interval has to be" },
	{ { "1", "0" }, "the count of lines has to be 1 to 2147483647, not 0" },
	{ { "1", "2147483648" }, "the count of lines has to be" },
	{ { "1", "18446744073709551617" }, "the count of lines has to be" },
	{ { "1", "-1" }, "'-1' is not a count of lines" },
	{ { "1", "-j" }, "'-j' comes too late: options, and '--', go before INTERVAL" },
	{ { "--json=1" }, "'--json=1': this option takes no argument" },
	{ { "1", "2x" }, "'2x' is not a count of lines" },
	{ { "1", "1.5" }, "'1.5' is not a count of lines" },
	{ { "1", "" }, "'' is not a count of lines" },
	{ { "1", "2", "3" }, "'3' is too much" },
	{ { "-p", "0" }, "'0' is not a process id" },
	{ { "-p", "-5" }, "'-5' is not a process id" },
	{ { "-p", "x" }, "'x' is not a process id" },
	{ { "-p", "1x" }, "'1x' is not a process id" },
	{ { "-p", "" }, "'' is not a process id" },
	{ { "-p", "4194305" }, "'4194305' is not a process id" },
	{ { "-p", "4294967297" }, "'4294967297' is not a process id" },
	{ { "-p", "18446744073709551617" }, "is not a process id" },
	{ { "-p", "4194304" }, "process 4194304: no such process" },
	{ { "-p" }, "option '-p' needs an argument" },
	{ { "-o" }, "option '-o' needs an argument" },
	{ { "--pid" }, "option '--pid' needs an argument" },
	{ { "-x" }, "unknown option '-x'" },
	{ { "--nonsense" }, "unknown option '--nonsense'" },
	{ { "--" }, "no command behind '--'" },
	{ { "-p", "1", "--", "true" }, "either a process (-p) or a command" },
	{ { "-o", "/nonexistent/file" }, "/nonexistent/file: No such file" },
};

TEST_F_TIMEOUT(cowstat, bad_arguments, TEST_TIMEOUT)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		const char *argv[MAX_ARGS] = { "cowstat", "--proc", fake };
		int want = strstr(bad[i].says, "cannot run") ? 127 : 2;

		memcpy(argv + 3, bad[i].argv, sizeof(bad[i].argv));
		start_prepared(TO_FILE, NULL, argv);
		finish(0);
		EXPECT_EQ(run.status, want)
			TH_LOG("%s %s: %s", bad[i].argv[0],
			       bad[i].argv[1] ?: "", run.errors);
		EXPECT_NE(strstr(run.errors, bad[i].says), NULL)
			TH_LOG("'%s' instead of '%s'", run.errors, bad[i].says);
		EXPECT_EQ(strncmp(run.errors, "cowstat: ", 9), 0);
		EXPECT_STREQ(run.text, "");
	}
	/* What is meant is documented. */
	EXPECT_EQ(cowstat("--help", NULL), 0);
	EXPECT_NE(strstr(run.text, "Exit status: 0"), NULL);
	EXPECT_STREQ(run.errors, "");
}

TEST_F_TIMEOUT(cowstat, ends_well, TEST_TIMEOUT)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	char file[128], text[4096];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(signals); i++) {
		struct cow_child sleeper;

		start("--proc", fake, "-j", "100000", NULL);
		ASSERT_TRUE(json_parse(next_line()));
		/* While it waits */
		sleeper.pid = run.pid;
		ASSERT_EQ(cow_child_settle(&sleeper), 0);
		finish(signals[i]);
		EXPECT_EQ(run.status, 0)
			TH_LOG("signal %d", signals[i]);
		EXPECT_STREQ(run.errors, "");
	}
	/* Nobody reads: no line after the other into nothing. */
	EXPECT_EQ(cowstat_prepared(to_nobody, "--proc", fake, "0.01", NULL), 0);
	EXPECT_STREQ(run.errors, "");
	EXPECT_EQ(cowstat_prepared(to_full_disk, "--proc", fake, NULL), 2);
	EXPECT_STREQ(run.errors,
		     "cowstat: cannot write: No space left on device\n");

	/* Each line is there at once, in a file too. */
	snprintf(file, sizeof(file), "%s/out", fake);
	start("--proc", fake, "-j", "-o", file, "100000", NULL);
	while (cow_read_file(file, text, sizeof(text)) <= 0)
		usleep(1000);
	finish(SIGTERM);
	EXPECT_TRUE(json_parse(text));
	EXPECT_STREQ(run.text, "");
}

TEST_HARNESS_MAIN
