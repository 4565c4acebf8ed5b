// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of /proc/cow_stats: the histogram of durations, its percentiles,
 * resets, the clock, and the counters of processes.
 */
#include <kunit/test.h>
#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/cow_stats.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/limits.h>
#include <linux/math64.h>
#include <linux/overflow.h>
#include <linux/prandom.h>
#include <linux/preempt.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/seqlock.h>
#include <linux/sort.h>
#include <linux/string.h>
#include <linux/timer.h>

#include "cow_kunit.h"

/* The first duration that shares the last bucket with all longer ones. */
#define LONGEST		(BIT_ULL(COW_HIST_MAX_BITS) - 1)

/* A value read from the histogram may be off by 3 %. */
static bool close_to(u64 is, u64 want)
{
	u64 diff = is > want ? is - want : want - is;

	return diff <= div_u64(want * 3, 100);
}

/*
 * Buckets
 */

KUNIT_DEFINE_ACTION_WRAPPER(put_mm, mmput, struct mm_struct *);

struct bucket_case {
	const char *desc;
	u64 ns;
	unsigned int index;
	u64 value;
};

/* 32 buckets of width 1 for 0 to 31, of width 1 for 32 to 63, of 2 to 127, ... */
static const struct bucket_case bucket_cases[] = {
	{ "0", 0, 0, 0 },
	{ "1", 1, 1, 1 },
	{ "31, last below the first power", 31, 31, 31 },
	{ "32", 32, 32, 32 },
	{ "33", 33, 33, 33 },
	{ "63, last of width 1", 63, 63, 63 },
	{ "64, first of width 2", 64, 64, 65 },
	{ "65, the same bucket", 65, 64, 65 },
	{ "66, the next bucket", 66, 65, 67 },
	{ "127, last of width 2", 127, 95, 127 },
	{ "128, first of width 4", 128, 96, 130 },
	{ "131, the same bucket", 131, 96, 130 },
	{ "1023", 1023, 191, 1016 },
	{ "1024", 1024, 192, 1040 },
	{ "longest that is told apart", LONGEST, COW_HIST_BUCKETS - 1,
	  LONGEST - (BIT_ULL(COW_HIST_MAX_BITS - COW_HIST_SHIFT - 2)) + 1 },
	{ "longer", LONGEST + 1, COW_HIST_BUCKETS - 1,
	  LONGEST - (BIT_ULL(COW_HIST_MAX_BITS - COW_HIST_SHIFT - 2)) + 1 },
	{ "longest of all", U64_MAX, COW_HIST_BUCKETS - 1,
	  LONGEST - (BIT_ULL(COW_HIST_MAX_BITS - COW_HIST_SHIFT - 2)) + 1 },
};

KUNIT_ARRAY_PARAM_DESC(bucket, bucket_cases, desc);

static void bucket(struct kunit *test)
{
	const struct bucket_case *c = test->param_value;

	KUNIT_EXPECT_EQ(test, cow_hist_index(c->ns), c->index);
	KUNIT_EXPECT_EQ(test, cow_hist_value(c->index), c->value);
}

/* The value of each bucket belongs to that bucket. */
static void bucket_round_trip(struct kunit *test)
{
	unsigned int i;

	for (i = 0; i < COW_HIST_BUCKETS; i++)
		KUNIT_EXPECT_EQ_MSG(test, cow_hist_index(cow_hist_value(i)), i,
				    "bucket %u", i);
}

static void bucket_values_rise(struct kunit *test)
{
	unsigned int i;

	for (i = 1; i < COW_HIST_BUCKETS; i++)
		KUNIT_EXPECT_GT_MSG(test, cow_hist_value(i), cow_hist_value(i - 1),
				    "bucket %u", i);
}

static void expect_bucket(struct kunit *test, u64 ns)
{
	unsigned int index = cow_hist_index(ns);

	KUNIT_ASSERT_LT(test, index, COW_HIST_BUCKETS);
	KUNIT_EXPECT_TRUE_MSG(test, close_to(cow_hist_value(index), ns),
			      "%llu ns is read as %llu", ns, cow_hist_value(index));
	if (ns)
		KUNIT_EXPECT_LE_MSG(test, cow_hist_index(ns - 1), index,
				    "%llu ns", ns);
}

static void bucket_at_powers_of_two(struct kunit *test)
{
	unsigned int bit;

	for (bit = 0; bit < COW_HIST_MAX_BITS; bit++) {
		expect_bucket(test, BIT_ULL(bit) - 1);
		expect_bucket(test, BIT_ULL(bit));
		expect_bucket(test, BIT_ULL(bit) + 1);
	}
	expect_bucket(test, LONGEST);
}

/*
 * Distributions
 */

#define NR_SAMPLES	4000

static u64 uniform(struct rnd_state *rnd)
{
	return 200 + prandom_u32_state(rnd) % 100000;
}

static u64 small(struct rnd_state *rnd)
{
	return prandom_u32_state(rnd) % 64;
}

/* All powers of two are equally likely. */
static u64 heavy_tail(struct rnd_state *rnd)
{
	u64 ns = BIT_ULL(prandom_u32_state(rnd) % (COW_HIST_MAX_BITS - 1));

	return ns + div_u64(ns * (prandom_u32_state(rnd) % 1000), 1000);
}

/* Like copying a page: fast, except when an interrupt hits it. */
static u64 two_peaks(struct rnd_state *rnd)
{
	u32 spread = prandom_u32_state(rnd) % 40;

	return prandom_u32_state(rnd) % 100 < 93 ? 300 + spread : 25000 + 70 * spread;
}

static u64 constant(struct rnd_state *rnd)
{
	return 777;
}

struct dist_case {
	const char *desc;
	u64 (*draw)(struct rnd_state *rnd);
	unsigned int nr;
};

static const struct dist_case dist_cases[] = {
	{ "uniform", uniform, NR_SAMPLES },
	{ "exact buckets only", small, NR_SAMPLES },
	{ "heavy tail", heavy_tail, NR_SAMPLES },
	{ "two peaks", two_peaks, NR_SAMPLES },
	{ "all the same", constant, NR_SAMPLES },
	{ "one sample", uniform, 1 },
	{ "two samples", uniform, 2 },
	{ "three samples", uniform, 3 },
	{ "99 samples", uniform, 99 },
	{ "100 samples", uniform, 100 },
	{ "101 samples", uniform, 101 },
};

KUNIT_ARRAY_PARAM_DESC(dist, dist_cases, desc);

static int cmp_u64(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

/* Count the samples of one distribution, and return them sorted. */
static u64 *draw(struct kunit *test, struct cow_hist *hist)
{
	const struct dist_case *c = test->param_value;
	u64 *ns = kunit_kcalloc(test, c->nr, sizeof(*ns), GFP_KERNEL);
	struct rnd_state rnd;
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, ns);
	prandom_seed_state(&rnd, 20240607);
	for (i = 0; i < c->nr; i++) {
		ns[i] = c->draw(&rnd);
		cow_hist_add(hist, ns[i], 1);
	}
	sort(ns, c->nr, sizeof(*ns), cmp_u64, NULL);
	return ns;
}

static struct cow_hist *test_hist(struct kunit *test)
{
	struct cow_hist *hist = kunit_kzalloc(test, sizeof(*hist), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, hist);
	return hist;
}

/* Nearest rank: the smallest sample that at least @percent % do not exceed */
static void percentiles(struct kunit *test)
{
	static const unsigned int percents[] = { 1, 2, 50, 90, 95, 99, 100 };
	const struct dist_case *c = test->param_value;
	struct cow_hist *hist = test_hist(test);
	u64 *ns = draw(test, hist);
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(percents); i++) {
		u64 want = ns[DIV_ROUND_UP(c->nr * percents[i], 100) - 1];
		u64 is = cow_hist_percentile(hist, percents[i]);

		KUNIT_EXPECT_TRUE_MSG(test, close_to(is, want),
				      "percentile %u is %llu, not %llu",
				      percents[i], is, want);
	}
}

/* The total is exact, unlike percentiles. */
static void total(struct kunit *test)
{
	const struct dist_case *c = test->param_value;
	struct cow_hist *hist = test_hist(test);

	draw(test, hist);
	KUNIT_EXPECT_EQ(test, cow_hist_total(hist), c->nr);
}

static void empty_distribution(struct kunit *test)
{
	struct cow_hist *hist = test_hist(test);

	KUNIT_EXPECT_EQ(test, cow_hist_total(hist), 0);
	KUNIT_EXPECT_EQ(test, cow_hist_percentile(hist, 1), 0);
	KUNIT_EXPECT_EQ(test, cow_hist_percentile(hist, 50), 0);
	KUNIT_EXPECT_EQ(test, cow_hist_percentile(hist, 100), 0);
}

static void zero_durations(struct kunit *test)
{
	struct cow_hist *hist = test_hist(test);

	cow_hist_add(hist, 0, 1);
	cow_hist_add(hist, 0, 1);
	KUNIT_EXPECT_EQ(test, cow_hist_total(hist), 2);
	KUNIT_EXPECT_EQ(test, cow_hist_percentile(hist, 100), 0);
}

/*
 * The counters, as /proc/cow_stats shows them
 */

static const char * const keys[] = {
	"faults", "reused", "lost", "lost_ns", "unshared", "pmd_reused", "pmd_split",
	"total_ns", "max_ns", "min_ns", "avg_ns",
	"p50_ns", "p90_ns", "p95_ns", "p99_ns",
	"fault_total_ns", "fault_p50_ns", "fault_p99_ns", "fault_max_ns",
	"precopy_attempts", "precopy_success", "reuse_ahead",
	"precopy_skip_vma", "precopy_skip_pmd", "precopy_skip_notpresent",
	"precopy_skip_writable", "precopy_skip_notanon", "precopy_skip_exclusive",
	"precopy_skip_race", "precopy_skip_nomem", "precopy_skip_special",
	"precopy_skip_madvise", "precopy_skip_uffd", "precopy_skip_softdirty",
	"precopy_skip_ksm", "precopy_skip_pinned",
};

static char *read_stats(struct kunit *test)
{
	return cowt_read_file(test, cow_stats_show);
}

static u64 value_of(struct kunit *test, const char *stats, const char *key)
{
	size_t len = strlen(key);
	const char *line;
	u64 value;

	for (line = stats; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, key, len) &&
		    sscanf(line + len, ": %llu", &value) == 1)
			return value;
	}
	KUNIT_FAIL(test, "no %s in\n%s", key, stats);
	return 0;
}

static u64 read_stat(struct kunit *test, const char *key)
{
	return value_of(test, read_stats(test), key);
}

static void shows_all_keys(struct kunit *test)
{
	char *stats = read_stats(test), *line;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		line = strsep(&stats, "\n");
		KUNIT_ASSERT_NOT_NULL_MSG(test, line, "no %s", keys[i]);
		KUNIT_EXPECT_TRUE_MSG(test,
				      strstarts(line, keys[i]) &&
				      strstarts(line + strlen(keys[i]), ": "),
				      "%s expected, not %s", keys[i], line);
	}
	KUNIT_EXPECT_STREQ(test, stats, "");
}

static void reset_to_zero(struct kunit *test)
{
	char *stats;
	unsigned int i;

	cow_count(COW_COPIED, 500, 900, 1);
	cow_count(COW_REUSED, 0, 100, 1);
	cow_count(COW_LOST, 50, 100, 1);
	cow_count(COW_UNSHARED, 50, 100, 1);
	cow_stats_reset();
	stats = read_stats(test);
	for (i = 0; i < ARRAY_SIZE(keys); i++)
		KUNIT_EXPECT_EQ_MSG(test, value_of(test, stats, keys[i]), 0,
				    "%s", keys[i]);
}

static void counts_from_zero(struct kunit *test)
{
	char *stats;

	/* Faster, slower and more often than what is counted after the reset */
	cow_count(COW_COPIED, 1, 1, 1);
	cow_count(COW_COPIED, 1000000, 2000000, 1);
	cow_count(COW_REUSED, 0, 3000000, 1);
	cow_stats_reset();
	cow_count(COW_COPIED, 20, 40, 1);
	cow_count(COW_PRECOPIED, 30, 50, 1);
	cow_count(COW_COPIED, 40, 60, 1);
	cow_count(COW_REUSED, 0, 10, 1);

	stats = read_stats(test);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "faults"), 3);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "reused"), 1);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "total_ns"), 90);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "min_ns"), 20);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "max_ns"), 40);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "avg_ns"), 30);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "p50_ns"), 30);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "p99_ns"), 40);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_total_ns"), 160);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_p50_ns"), 40);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_p99_ns"), 60);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_max_ns"), 60);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "lost"), 0);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "unshared"), 0);
}

/* A copy that lost its race, and one for GUP, are in no number but their own. */
static void lost_and_unshared(struct kunit *test)
{
	char *stats;

	cow_stats_reset();
	cow_count(COW_COPIED, 20, 40, 1);
	cow_count(COW_LOST, 1000, 2000, 1);
	cow_count(COW_LOST, 3000, 9000, 1);
	cow_count(COW_UNSHARED, 5000, 7000, 1);

	stats = read_stats(test);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "lost"), 2);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "lost_ns"), 11000);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "unshared"), 1);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "faults"), 1);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "total_ns"), 20);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "max_ns"), 20);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_total_ns"), 40);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_max_ns"), 40);
}

/* A duration may stand for several faults: in sums and distributions, not in counts. */
static void timed_for_others(struct kunit *test)
{
	char *stats;

	cow_stats_reset();
	cow_count(COW_COPIED, 20, 40, 1);
	cow_count(COW_REUSED, 0, 10, 8);

	stats = read_stats(test);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "faults"), 1);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "reused"), 1);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "total_ns"), 20);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_total_ns"), 120);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_p50_ns"), 10);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_max_ns"), 40);
}

/* Percentiles are limited to the shortest and the longest duration. */
static void percentiles_within_extremes(struct kunit *test)
{
	char *stats;

	cow_stats_reset();
	cow_count(COW_COPIED, 1025, 1984, 1);
	cow_count(COW_COPIED, 1026, 1984, 1);
	stats = read_stats(test);
	KUNIT_EXPECT_LE(test, value_of(test, stats, "p99_ns"), 1026);
	KUNIT_EXPECT_GE(test, value_of(test, stats, "p50_ns"), 1025);
	KUNIT_EXPECT_LE(test, value_of(test, stats, "fault_p99_ns"), 1984);

	/* Longer than the middle of their bucket */
	cow_stats_reset();
	cow_count(COW_COPIED, 1050, 1984, 1);
	cow_count(COW_COPIED, 1050, 1984, 1);
	stats = read_stats(test);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "p50_ns"), 1050);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "p99_ns"), 1050);
}

/* One line for each bucket that is not empty, with its bounds. */
static void histogram_lines(struct kunit *test)
{
	cow_stats_reset();
	cow_count(COW_COPIED, 20, 2000, 1);
	cow_count(COW_COPIED, 1024, 2100, 1);
	cow_count(COW_COPIED, 1055, 2100, 1);
	cow_count(COW_COPIED, 1056, U64_MAX, 1);
	cow_count(COW_REUSED, 0, 5, 1);
	cow_count(COW_LOST, 7, 9, 1);
	KUNIT_EXPECT_STREQ(test, cowt_read_file(test, cow_histogram_show),
			   "copy 20 20 1\n"
			   "copy 1024 1055 2\n"
			   "copy 1056 1087 1\n"
			   "fault 5 5 1\n"
			   "fault 1984 2015 1\n"
			   "fault 2048 2111 2\n"
			   "fault 67645734912 68719476735 1\n"
			   "lost 9 9 1\n");
	cow_stats_reset();
	KUNIT_EXPECT_STREQ(test, cowt_read_file(test, cow_histogram_show), "");
}

/* Buckets neither overlap nor leave gaps. */
static void bucket_bounds(struct kunit *test)
{
	unsigned int i;

	KUNIT_EXPECT_EQ(test, cow_hist_lowest(0), 0);
	for (i = 1; i < COW_HIST_BUCKETS; i++) {
		u64 lowest = cow_hist_lowest(i);

		KUNIT_EXPECT_EQ(test, cow_hist_index(lowest), i);
		KUNIT_EXPECT_EQ(test, cow_hist_index(lowest - 1), i - 1);
	}
	KUNIT_EXPECT_EQ(test, cow_hist_lowest(COW_HIST_BUCKETS), LONGEST + 1);
}

/* Clocks of two CPUs may be out of order. No duration is 0. */
static void clock_never_runs_back(struct kunit *test)
{
	u64 begin, end;

	migrate_disable();
	begin = local_clock() - 1000;
	end = cow_clock();
	migrate_enable();
	KUNIT_EXPECT_GE(test, cow_ns_between(begin, end), 1000);
	KUNIT_EXPECT_EQ(test, cow_ns_between(NSEC_PER_SEC, 0), 1);
	KUNIT_EXPECT_EQ(test, cow_ns_between(1000, 1000), 1);
	KUNIT_EXPECT_EQ(test, cow_ns_between(1000, 2500), 1500);
}

/*
 * Processes
 */

static struct mm_struct *new_mm(struct kunit *test)
{
	struct mm_struct *mm = mm_alloc();

	KUNIT_ASSERT_NOT_NULL(test, mm);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, put_mm, mm), 0);
	return mm;
}

static void new_mm_counts_nothing(struct kunit *test)
{
	const struct cow_counts *counts = &new_mm(test)->cow_counts.counts;

	KUNIT_EXPECT_NULL(test, memchr_inv(counts->items, 0, sizeof(counts->items)));
	KUNIT_EXPECT_EQ(test, counts->min_ns, U64_MAX);
	KUNIT_EXPECT_EQ(test, counts->max_ns, 0);
}

/* Counts go to the mm that is given, not to the current task. */
static void counts_for_others(struct kunit *test)
{
	struct mm_struct *mm = new_mm(test), *other = new_mm(test);
	unsigned int seq;

	/* Two may count at once: with the lock, so that a reader tries again. */
	seq = read_seqbegin(&mm->cow_counts.lock);
	cow_count_items(mm, COW_ITEM_PRECOPIED, 1);
	KUNIT_EXPECT_TRUE(test, read_seqretry(&mm->cow_counts.lock, seq));
	cow_count_items(mm, COW_ITEM_PRECOPIED, 2);
	cow_count_items(other, COW_ITEM_REUSE_AHEAD, 1);
	KUNIT_EXPECT_EQ(test, mm->cow_counts.counts.items[COW_ITEM_PRECOPIED], 3);
	KUNIT_EXPECT_EQ(test, mm->cow_counts.counts.items[COW_ITEM_REUSE_AHEAD], 0);
	KUNIT_EXPECT_EQ(test, other->cow_counts.counts.items[COW_ITEM_REUSE_AHEAD], 1);
	KUNIT_EXPECT_EQ(test, current->cow_counts.items[COW_ITEM_PRECOPIED], 0);
}

/* Pretend that this thread counted @base + n of item n. */
static void pretend_counts(unsigned int base, u64 min_ns, u64 max_ns)
{
	unsigned int i;

	for (i = 0; i < NR_COW_ITEMS; i++)
		current->cow_counts.items[i] = base + i;
	current->cow_counts.min_ns = min_ns;
	current->cow_counts.max_ns = max_ns;
}

/* cow_stats_leave_mm() moves the counts of the task to the mm. */
static void leaving_moves_counts(struct kunit *test)
{
	struct mm_struct *mm = new_mm(test);
	const struct cow_counts *counts = &mm->cow_counts.counts;
	const struct cow_counts *mine = &current->cow_counts;
	struct cow_bill before = current->signal->cow_bill;
	unsigned int i;

	pretend_counts(100, 30, 70);
	cow_stats_leave_mm(mm);
	KUNIT_EXPECT_NULL(test, memchr_inv(mine->items, 0, sizeof(mine->items)));
	pretend_counts(1000, 40, 80);
	cow_stats_leave_mm(mm);
	/* Nothing is left to move. */
	cow_stats_leave_mm(mm);
	cow_stats_leave_mm(NULL);

	for (i = 0; i < NR_COW_ITEMS; i++)
		KUNIT_EXPECT_EQ_MSG(test, counts->items[i], 1100 + 2 * i, "item %u", i);
	KUNIT_EXPECT_EQ(test, counts->min_ns, 30);
	KUNIT_EXPECT_EQ(test, counts->max_ns, 80);
	for (i = 0; i < NR_COW_INHERITED; i++)
		KUNIT_EXPECT_EQ_MSG(test, current->signal->cow_bill.own[i],
				    before.own[i] + 1100 + 2 * i, "item %u", i);
	KUNIT_EXPECT_MEMEQ(test, current->signal->cow_bill.children,
			   before.children, sizeof(before.children));
}

/* The parent inherits the counts of the child and of its children. */
static void parent_gets_the_bill(struct kunit *test)
{
	struct signal_struct *parent = kunit_kzalloc(test, sizeof(*parent), GFP_KERNEL);
	struct signal_struct *child = kunit_kzalloc(test, sizeof(*child), GFP_KERNEL);
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, parent);
	KUNIT_ASSERT_NOT_NULL(test, child);
	for (i = 0; i < NR_COW_INHERITED; i++) {
		parent->cow_bill.own[i] = 10000;
		parent->cow_bill.children[i] = 1000;
		child->cow_bill.own[i] = 100 + i;
		child->cow_bill.children[i] = 10;
	}
	cow_stats_reap(parent, child);
	for (i = 0; i < NR_COW_INHERITED; i++) {
		KUNIT_EXPECT_EQ(test, parent->cow_bill.children[i], 1110 + i);
		KUNIT_EXPECT_EQ(test, parent->cow_bill.own[i], 10000);
	}
}

/*
 * A timer counts faults while the test resets the counters: on another CPU if
 * there is one, else by interrupting the reset. The test passes whenever the
 * timer runs; how soon it does is not checked.
 */

#define BURST		500
#define ROUNDS		40
#define COPY_NS		100
#define FAULT_NS	300

struct counting {
	struct timer_list timer;
	/* Calls of cow_count() that have begun, and that have ended */
	atomic_t begun;
	atomic_t done;
};

static void count_burst(struct timer_list *timer)
{
	struct counting *c = container_of(timer, struct counting, timer);
	unsigned int i;

	for (i = 0; i < BURST; i++) {
		/* Fully ordered, unlike atomic_inc(). */
		atomic_inc_return(&c->begun);
		cow_count(COW_COPIED, COPY_NS, FAULT_NS, 1);
		atomic_inc_return(&c->done);
	}
}

static void stop_counting(void *data)
{
	struct counting *c = data;

	timer_shutdown_sync(&c->timer);
}

/* Reset until a burst has begun, then check what the last reset left. */
static void reset_during_burst(struct kunit *test, struct counting *c)
{
	unsigned int before, after;
	u64 faults;

	atomic_set(&c->begun, 0);
	atomic_set(&c->done, 0);
	c->timer.expires = jiffies + 1;
	add_timer_on(&c->timer, cpumask_last(cpu_online_mask));
	do {
		before = atomic_fetch_add(0, &c->done);
		cow_stats_reset();
		after = atomic_fetch_add(0, &c->begun);
		cond_resched();
	} while (!after);
	while (atomic_read(&c->done) < BURST)
		cond_resched();

	faults = read_stat(test, "faults");
	KUNIT_EXPECT_GE(test, faults, BURST - after);
	KUNIT_EXPECT_LE(test, faults, BURST - before);
	/* A fault is counted as a whole or not at all. */
	KUNIT_EXPECT_EQ(test, read_stat(test, "total_ns"), faults * COPY_NS);
	KUNIT_EXPECT_EQ(test, read_stat(test, "fault_total_ns"), faults * FAULT_NS);
	KUNIT_EXPECT_EQ(test, read_stat(test, "max_ns"), faults ? COPY_NS : 0);
}

/*
 * A reset drops what was counted before it and keeps what is counted after it.
 * What is counted during the reset may be dropped or kept.
 */
static void reset_while_counting(struct kunit *test)
{
	struct counting *c = kunit_kzalloc(test, sizeof(*c), GFP_KERNEL);
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, c);
	timer_setup(&c->timer, count_burst, TIMER_PINNED);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, stop_counting, c), 0);
	for (i = 0; i < ROUNDS; i++)
		reset_during_burst(test, c);

	/* Without concurrent counting, a reset drops everything. */
	cow_stats_reset();
	KUNIT_EXPECT_EQ(test, read_stat(test, "faults"), 0);
	KUNIT_EXPECT_EQ(test, read_stat(test, "total_ns"), 0);
}

/*
 * The test stops a thread on another CPU while it counts a fault: a read or a
 * reset must wait for it.
 */

/* Enough for a reader or a reset that does not wait to be over */
#define HOLD_UP_MS	50

/**
 * struct race - a thread that runs beside the test, on another CPU
 * @task: the thread of the test
 * @begun: it runs
 * @over: it has done its part
 * @resetting: the test is about to reset the counters
 * @counted: it has counted what it began to count
 * @copy_ns: what it has read
 */
struct race {
	struct task_struct *task;
	struct completion begun;
	struct completion over;
	bool resetting;
	bool counted;
	u64 copy_ns;
};

static void need_two_cpus(struct kunit *test)
{
	if (num_online_cpus() == 1)
		kunit_skip(test, "needs two CPUs");
}

/* Of the first CPU, which counts nothing after the reset */
static void extremes_of_another_cpu(struct kunit *test)
{
	char *stats;

	need_two_cpus(test);
	set_cpus_allowed_ptr(current, cpumask_of(cpumask_first(cpu_online_mask)));
	cow_count(COW_COPIED, 1, 2000000, 1);
	cow_count(COW_COPIED, 1000000, 2, 1);
	cow_stats_reset();
	set_cpus_allowed_ptr(current, cpumask_of(cpumask_last(cpu_online_mask)));
	cow_count(COW_COPIED, 20, 40, 1);
	set_cpus_allowed_ptr(current, cpu_possible_mask);
	stats = read_stats(test);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "min_ns"), 20);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "max_ns"), 20);
	KUNIT_EXPECT_EQ(test, value_of(test, stats, "fault_max_ns"), 40);
}

static struct race *begin_race(struct kunit *test, int (*fn)(void *race))
{
	unsigned int first = cpumask_first(cpu_online_mask);
	unsigned int last = cpumask_last(cpu_online_mask);
	struct task_struct *other;
	struct race *race;

	race = kunit_kzalloc(test, sizeof(*race), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, race);
	race->task = current;
	init_completion(&race->begun);
	init_completion(&race->over);
	other = kthread_create_on_cpu(fn, race, last, "cow_race/%u");
	KUNIT_ASSERT_FALSE(test, IS_ERR(other));
	set_cpus_allowed_ptr(current, cpumask_of(first));
	wake_up_process(other);
	wait_for_completion(&race->begun);
	return race;
}

static void end_race(struct race *race)
{
	wait_for_completion(&race->over);
	set_cpus_allowed_ptr(current, cpu_possible_mask);
}

static int read_counts_of_test(void *arg)
{
	static char text[PAGE_SIZE];
	struct seq_file m = { .buf = text, .size = sizeof(text) };
	struct race *race = arg;
	const char *line;

	complete(&race->begun);
	if (!proc_tid_cow_stats(&m, NULL, NULL, race->task)) {
		line = strnstr(text, "\ntotal_ns: ", m.count);
		if (line)
			sscanf(line, "\ntotal_ns: %llu", &race->copy_ns);
	}
	complete(&race->over);
	return 0;
}

/* A fault is read as a whole: the reader waits until it is counted. */
static void read_while_counting(struct kunit *test)
{
	struct cow_counts *counts = &current->cow_counts;
	u64 *copy_ns = &counts->items[COW_ITEM_COPY_NS];
	struct race *race;
	u64 before = *copy_ns;

	need_two_cpus(test);
	raw_write_seqcount_begin(&counts->seq);
	*copy_ns += COPY_NS;
	race = begin_race(test, read_counts_of_test);
	msleep(HOLD_UP_MS);
	KUNIT_EXPECT_FALSE(test, completion_done(&race->over));
	*copy_ns += COPY_NS;
	raw_write_seqcount_end(&counts->seq);
	end_race(race);
	KUNIT_EXPECT_EQ(test, race->copy_ns, before + 2 * COPY_NS);
	*copy_ns = before;
}

/* As cow_count(), which has looked at the epoch and has not counted yet */
static int count_slowly(void *arg)
{
	struct race *race = arg;

	preempt_disable();
	complete(&race->begun);
	while (!READ_ONCE(race->resetting))
		cpu_relax();
	mdelay(HOLD_UP_MS);
	WRITE_ONCE(race->counted, true);
	preempt_enable();
	complete(&race->over);
	return 0;
}

/* What is being counted by the old epoch is counted before the reset is over. */
static void reset_waits_for_counting(struct kunit *test)
{
	struct race *race;

	need_two_cpus(test);
	race = begin_race(test, count_slowly);
	WRITE_ONCE(race->resetting, true);
	cow_stats_reset();
	KUNIT_EXPECT_TRUE(test, READ_ONCE(race->counted));
	end_race(race);
}

struct exec_reader {
	int (*show)(struct seq_file *m, struct pid_namespace *ns, struct pid *pid,
		    struct task_struct *task);
	struct task_struct *task;
	struct completion over;
	int ret;
};

static int read_during_exec(void *arg)
{
	static char text[PAGE_SIZE];
	struct seq_file m = { .buf = text, .size = sizeof(text) };
	struct exec_reader *reader = arg;

	reader->ret = reader->show(&m, NULL, NULL, reader->task);
	complete(&reader->over);
	return 0;
}

static const struct exec_reader exec_readers[] = {
	{ .show = proc_pid_cow_stats },
	{ .show = proc_tid_cow_stats },
};

static void exec_reader_desc(const struct exec_reader *reader, char *desc)
{
	strscpy(desc, reader->show == proc_pid_cow_stats ? "process" : "thread",
		KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(exec_reader, exec_readers, exec_reader_desc);

/*
 * execve() holds exec_update_lock from the switch to the new address space until the new
 * credentials are there. A process that may trace only the old program must not read the
 * counts of the new one in between.
 */
static void read_waits_for_exec(struct kunit *test)
{
	const struct exec_reader *param = test->param_value;
	struct rw_semaphore *lock = &current->signal->exec_update_lock;
	struct exec_reader *reader;
	struct task_struct *other;

	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		kunit_skip(test, "a lock with a writer counts as contended here");
	reader = kunit_kzalloc(test, sizeof(*reader), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, reader);
	reader->show = param->show;
	reader->task = current;
	init_completion(&reader->over);
	other = kthread_create(read_during_exec, reader, "cow_reader");
	KUNIT_ASSERT_FALSE(test, IS_ERR(other));
	down_write(lock);
	wake_up_process(other);
	while (!rwsem_is_contended(lock) && !completion_done(&reader->over))
		schedule_timeout_uninterruptible(1);
	KUNIT_EXPECT_FALSE(test, completion_done(&reader->over));
	up_write(lock);
	wait_for_completion(&reader->over);
	KUNIT_EXPECT_EQ(test, reader->ret, 0);
}

/* Leave no counts of the tests in /proc/cow_stats. */
static void cow_stats_test_exit(struct kunit *test)
{
	cow_stats_reset();
}

static struct kunit_case cow_stats_cases[] = {
	KUNIT_CASE_PARAM(bucket, bucket_gen_params),
	KUNIT_CASE(bucket_round_trip),
	KUNIT_CASE(bucket_values_rise),
	KUNIT_CASE(bucket_at_powers_of_two),
	KUNIT_CASE_PARAM(percentiles, dist_gen_params),
	KUNIT_CASE_PARAM(total, dist_gen_params),
	KUNIT_CASE(empty_distribution),
	KUNIT_CASE(zero_durations),
	KUNIT_CASE(shows_all_keys),
	KUNIT_CASE(reset_to_zero),
	KUNIT_CASE(counts_from_zero),
	KUNIT_CASE(extremes_of_another_cpu),
	KUNIT_CASE(lost_and_unshared),
	KUNIT_CASE(timed_for_others),
	KUNIT_CASE(percentiles_within_extremes),
	KUNIT_CASE(bucket_bounds),
	KUNIT_CASE(histogram_lines),
	KUNIT_CASE(clock_never_runs_back),
	KUNIT_CASE(new_mm_counts_nothing),
	KUNIT_CASE(counts_for_others),
	KUNIT_CASE(leaving_moves_counts),
	KUNIT_CASE(parent_gets_the_bill),
	KUNIT_CASE(reset_while_counting),
	KUNIT_CASE(read_while_counting),
	KUNIT_CASE(reset_waits_for_counting),
	KUNIT_CASE_PARAM(read_waits_for_exec, exec_reader_gen_params),
	{}
};

static struct kunit_suite cow_stats_suite = {
	.name = "cow_stats",
	.exit = cow_stats_test_exit,
	.test_cases = cow_stats_cases,
};

kunit_test_suite(cow_stats_suite);

MODULE_DESCRIPTION("Tests for the statistics of copy-on-write faults");
MODULE_LICENSE("GPL");
