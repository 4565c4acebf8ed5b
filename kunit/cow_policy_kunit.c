// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of cow_policy(), which chooses the pages that a copy-on-write fault
 * copies ahead: tables with each rule and each boundary. What comes of these rules is
 * in cow_simulation_kunit.c.
 */
#include <kunit/test.h>
#include <linux/minmax.h>
#include <linux/prandom.h>

#include "../cow.h"
#include "../cow_policy.h"
#include "../cow_precopy.h"
#include "cow_kunit_policy.h"

/* Two of every three pages from 0 to @last: no run is longer than two. */
#define PAIRS(last)		(0xb6db6db6db6db6dbULL & BITS(0, last))
#define PAIRS_20		PAIRS(28)
#define PAIRS_22		PAIRS(31)
#define PAIRS_23		PAIRS(33)
#define PAIRS_24		PAIRS(34)
#define PAIRS_30		PAIRS(43)
/* Every second page. */
#define EVEN_PAGES		0x5555555555555555ULL

/**
 * struct policy_case - evidence, and the expected pages
 * @desc: description
 * @pos: position of the fault in the block
 * @before: length of the run of demanded pages below the fault
 * @after: length of the run of demanded pages above the fault
 * @demand: other pages that were copied by faults of their own
 * @used: other pages that were copied ahead and written to
 * @unused: pages that were copied ahead and not written to
 * @outside: pages of the block that were not read
 * @max: largest window; 0 for the default, which is the block for @reuse
 * @reuse: pages are made writable, not copied
 * @no_hw_dirty: hardware does not set dirty bits
 * @sequential: MADV_SEQUENTIAL
 * @sparse_table: little of the page table is writable
 * @unused_far: there is an unused page where the run begins
 * @want: the pages that are taken
 */
struct policy_case {
	const char *desc;
	unsigned int pos;
	unsigned int before;
	unsigned int after;
	u64 demand;
	u64 used;
	u64 unused;
	u64 outside;
	unsigned int max;
	bool reuse;
	bool no_hw_dirty;
	bool sequential;
	bool sparse_table;
	bool unused_far;
	u64 want;
};

/* The pages of the runs next to @pos that are in the block. */
static u64 run_in_block(unsigned int pos, unsigned int before, unsigned int after)
{
	u64 run = 0;

	if (before && pos)
		run |= BITS(pos - min(before, pos), pos - 1);
	if (after && pos < COW_BLOCK - 1)
		run |= BITS(pos + 1, pos + min(after, COW_BLOCK - 1U - pos));
	return run;
}

static struct cow_evidence policy_evidence(const struct policy_case *c)
{
	u64 run = run_in_block(c->pos, c->before, c->after);

	return (struct cow_evidence) {
		.valid = ~c->outside,
		.written = run | c->demand | c->used,
		.demand = run | c->demand,
		.unused = c->unused,
		.pos = c->pos,
		.before = c->before,
		.after = c->after,
		.max = c->max ?: c->reuse ? COW_BLOCK - 1 : COW_PRECOPY_MAX_PAGES,
		.reuse = c->reuse,
		.hw_dirty = !c->no_hw_dirty,
		.dense = !c->sparse_table,
		.unused_far = c->unused_far,
		.sequential = c->sequential,
	};
}

static void expect_policy(struct kunit *test, const struct policy_case *c)
{
	struct cow_evidence e = policy_evidence(c);
	u64 take = cow_policy(&e);

	KUNIT_EXPECT_EQ_MSG(test, take, c->want, "took %#llx, not %#llx", take, c->want);
}

/*
 * Rules 1, 2, 3 and 6: by the length of the run, in both directions
 */

struct run_case {
	const char *desc;
	unsigned int run;
	unsigned int max;
	unsigned int want;
	unsigned int reuse;
};

/* @want: number of pages to copy; @reuse: number of pages to make writable */
static const struct run_case run_cases[] = {
	{ "no page", 0, 15, 0, 0 },
	{ "1 page", 1, 15, 0, 0 },
	{ "2 pages", 2, 15, 0, 0 },
	{ "3 pages", 3, 15, 1, 3 },
	{ "4 pages", 4, 15, 1, 4 },
	{ "5 pages", 5, 15, 1, 5 },
	{ "15 pages", 15, 15, 1, 15 },
	{ "16 pages", 16, 15, 2, 15 },
	{ "17 pages", 17, 15, 2, 15 },
	{ "23 pages", 23, 15, 2, 15 },
	{ "24 pages", 24, 15, 3, 15 },
	{ "29 pages", 29, 15, 3, 15 },
	{ "30 pages", 30, 15, 3, 15 },
	{ "32 pages", 32, 15, 4, 15 },
	{ "119 pages", 119, 15, 14, 15 },
	{ "120 pages", 120, 15, 15, 15 },
	{ "121 pages", 121, 15, 15, 15 },
	{ "longer than any", UINT_MAX, 15, 15, 15 },
	{ "no page, at most 1", 0, 1, 0, 0 },
	{ "1 page, at most 1", 1, 1, 0, 0 },
	{ "2 pages, at most 1", 2, 1, 0, 0 },
	{ "3 pages, at most 1", 3, 1, 1, 1 },
	{ "120 pages, at most 1", 120, 1, 1, 1 },
	{ "2 pages, at most 2", 2, 2, 0, 0 },
	{ "3 pages, at most 2", 3, 2, 1, 2 },
	{ "16 pages, at most 2", 16, 2, 2, 2 },
	{ "15 pages, at most 3", 15, 3, 1, 3 },
	{ "23 pages, at most 3", 23, 3, 2, 3 },
	{ "24 pages, at most 3", 24, 3, 3, 3 },
	{ "120 pages, at most 3", 120, 3, 3, 3 },
	{ "47 pages, at most 5", 47, 5, 5, 5 },
	{ "55 pages, at most 7", 55, 7, 6, 7 },
	{ "56 pages, at most 7", 56, 7, 7, 7 },
	{ "120 pages, at most 7", 120, 7, 7, 7 },
};

KUNIT_ARRAY_PARAM_DESC(run, run_cases, desc);

/*
 * The fault is at the first page of an aligned block, or at the last one if the
 * run is above it, so that only the run limits the window.
 */
static struct policy_case run_to_policy(const struct run_case *c, bool forward)
{
	struct policy_case p = { .max = c->max };

	if (forward) {
		p.pos = COW_BLOCK / 2;
		p.before = c->run;
	} else {
		p.pos = COW_BLOCK / 2 - 1;
		p.after = c->run;
	}
	return p;
}

static u64 run_window(const struct policy_case *p, unsigned int nr)
{
	if (!nr)
		return 0;
	/* The run is below the fault if the fault is at the first page. */
	return p->pos == COW_BLOCK / 2 ? BITS(p->pos + 1, p->pos + nr) :
					 BITS(p->pos - nr, p->pos - 1);
}

static void test_run(struct kunit *test, bool reuse, bool no_hw_dirty)
{
	const struct run_case *c = test->param_value;
	unsigned int want = reuse ? c->reuse : c->want;
	int forward;

	/* Rule 7, which does not apply to reuse */
	if (no_hw_dirty && !reuse)
		want = min(want, 1U);
	for (forward = 0; forward < 2; forward++) {
		struct policy_case p = run_to_policy(c, forward);
		struct cow_evidence e;
		u64 take;

		p.reuse = reuse;
		p.no_hw_dirty = no_hw_dirty;
		e = policy_evidence(&p);
		take = cow_policy(&e);
		KUNIT_EXPECT_EQ_MSG(test, take, run_window(&p, want),
				    "%s: took %#llx, not %u pages",
				    forward ? "forward" : "backward", take, want);
	}
}

static void run_length(struct kunit *test)
{
	test_run(test, false, false);
}

static void run_length_no_hw_dirty(struct kunit *test)
{
	test_run(test, false, true);
}

static void run_length_reuse(struct kunit *test)
{
	test_run(test, true, false);
}

static void run_length_reuse_no_hw_dirty(struct kunit *test)
{
	test_run(test, true, true);
}

/*
 * Rules 1, 2, 3 and 6: what ends the window
 */

static const struct policy_case window_cases[] = {
	{ .desc = "nothing is known", .pos = 8 },
	{ .desc = "nothing was looked at", .pos = 8, .before = 120, .outside = U64_MAX },
	{ .desc = "everything is written", .pos = 8, .before = 120, .after = 120 },
	{ .desc = "1 page on each side", .pos = 8, .before = 1, .after = 1 },
	{ .desc = "2 pages on each side", .pos = 8, .before = 2, .after = 2 },
	{ .desc = "3 pages behind a gap", .pos = 8, .demand = BITS(4, 6) },
	{
		.desc = "tie of short runs",
		.pos = 8, .before = 3, .after = 3, .want = BIT_ULL(12),
	}, {
		.desc = "longer run below, a page above",
		.pos = 8, .before = 5, .after = 1, .want = BIT_ULL(10),
	}, {
		.desc = "longer run above, a page below",
		.pos = 8, .before = 1, .after = 5, .want = BIT_ULL(6),
	}, {
		.desc = "short run below, longer one above",
		.pos = 40, .before = 3, .after = 24, .want = BITS(34, 36),
	}, {
		/* Runs extend beyond the block, and are read without a lock. */
		.desc = "long runs beyond the end of the block",
		.pos = 63, .before = 16, .after = 16,
	}, {
		.desc = "long runs beyond the start of the block",
		.pos = 0, .before = 16, .after = 16,
	}, {
		.desc = "page 0 of the block, forward",
		.pos = 0, .before = 120, .want = BITS(1, 15),
	}, {
		.desc = "page 0 of the block, backward",
		.pos = 0, .after = 120,
	}, {
		.desc = "page 15, forward",
		.pos = 15, .before = 120,
	}, {
		.desc = "page 15, backward",
		.pos = 15, .after = 120, .want = BITS(0, 14),
	}, {
		.desc = "page 16, forward",
		.pos = 16, .before = 120, .want = BITS(17, 31),
	}, {
		.desc = "page 16, backward",
		.pos = 16, .after = 120,
	}, {
		.desc = "page 63, forward",
		.pos = 63, .before = 120,
	}, {
		.desc = "page 63, backward",
		.pos = 63, .after = 120, .want = BITS(48, 62),
	}, {
		.desc = "page 63, forward, short run",
		.pos = 63, .before = 3,
	}, {
		.desc = "page 0, backward, short run",
		.pos = 0, .after = 3,
	}, {
		.desc = "stops at the end of the aligned pages",
		.pos = 24, .before = 120, .want = BITS(25, 31),
	}, {
		.desc = "stops at the start of the aligned pages",
		.pos = 20, .after = 120, .want = BITS(16, 19),
	}, {
		.desc = "not even one page over the end",
		.pos = 47, .before = 3,
	}, {
		.desc = "not even one page over the start",
		.pos = 48, .after = 3,
	}, {
		.desc = "at most 1, even page, forward",
		.pos = 32, .before = 120, .max = 1, .want = BIT_ULL(33),
	}, {
		.desc = "at most 1, odd page, forward",
		.pos = 33, .before = 120, .max = 1,
	}, {
		.desc = "at most 1, odd page, backward",
		.pos = 33, .after = 120, .max = 1, .want = BIT_ULL(32),
	}, {
		.desc = "at most 1, even page, backward",
		.pos = 32, .after = 120, .max = 1,
	}, {
		.desc = "at most 3, aligned to 4",
		.pos = 33, .before = 120, .max = 3, .want = BITS(34, 35),
	}, {
		.desc = "at most 5, aligned to 8",
		.pos = 35, .before = 120, .max = 5, .want = BITS(36, 39),
	}, {
		.desc = "at most 7, aligned to 8",
		.pos = 33, .before = 120, .max = 7, .want = BITS(34, 39),
	}, {
		.desc = "passes over a written page",
		.pos = 32, .before = 120, .demand = BIT_ULL(36),
		.want = BITS(33, 35) | BITS(37, 47),
	}, {
		.desc = "passes over a written page, backward",
		.pos = 47, .after = 120, .demand = BIT_ULL(40),
		.want = BITS(32, 39) | BITS(41, 46),
	}, {
		.desc = "passes over a used page",
		.pos = 32, .before = 120, .used = BIT_ULL(36),
		.want = BITS(33, 35) | BITS(37, 47),
	}, {
		.desc = "next page is written",
		.pos = 32, .before = 120, .after = 1, .want = BITS(34, 47),
	}, {
		.desc = "every second page is written: as many as always",
		.pos = 32, .before = 32, .demand = EVEN_PAGES,
		.want = BIT_ULL(33) | BIT_ULL(35) | BIT_ULL(37) | BIT_ULL(39),
	}, {
		.desc = "every second page is written, short run",
		.pos = 33, .after = 3, .demand = EVEN_PAGES & BITS(16, 33),
	}, {
		.desc = "not beyond the aligned pages for what is written",
		.pos = 40, .before = 16, .demand = BITS(42, 47),
		.want = BIT_ULL(41),
	}, {
		.desc = "all aligned pages are written",
		.pos = 40, .before = 16, .after = 7,
	}, {
		.desc = "stops at an unused page behind a written one",
		.pos = 40, .before = 5, .after = 1, .unused = BIT_ULL(42),
	}, {
		.desc = "stops where the VMA ends",
		.pos = 32, .before = 120, .outside = BITS(40, 63),
		.want = BITS(33, 39),
	}, {
		.desc = "stops where the VMA starts",
		.pos = 47, .after = 120, .outside = BITS(0, 39),
		.want = BITS(40, 46),
	}, {
		.desc = "last page of the VMA",
		.pos = 32, .before = 120, .outside = BITS(33, 63),
	}, {
		.desc = "long run, next page unused",
		.pos = 32, .before = 120, .unused = BIT_ULL(33),
	}, {
		.desc = "long run, last aligned page unused",
		.pos = 32, .before = 120, .unused = BIT_ULL(47),
		.want = BIT_ULL(33),
	}, {
		.desc = "long run, first aligned page unused",
		.pos = 33, .before = 120, .unused = BIT_ULL(32),
		.want = BIT_ULL(34),
	}, {
		.desc = "long run, unused page behind the aligned ones",
		.pos = 32, .before = 120, .unused = BIT_ULL(48),
		.want = BITS(33, 47),
	}, {
		.desc = "long run, unused page in front of the aligned ones",
		.pos = 47, .after = 120, .unused = BIT_ULL(31),
		.want = BITS(32, 46),
	}, {
		.desc = "119 pages, unused page in the block",
		.pos = 32, .before = 119, .unused = BIT_ULL(63),
		.want = BIT_ULL(33),
	}, {
		.desc = "16 pages, unused page in the block, backward",
		.pos = 47, .after = 16, .unused = BIT_ULL(0),
		.want = BIT_ULL(46),
	}, {
		.desc = "119 pages, unused page where they begin",
		.pos = 32, .before = 119, .unused_far = true,
		.want = BIT_ULL(33),
	}, {
		.desc = "long run, unused page where it begins",
		.pos = 32, .before = 120, .unused_far = true,
		.want = BITS(33, 47),
	}, {
		.desc = "at most 7, unused page behind the aligned ones",
		.pos = 32, .before = 120, .unused = BIT_ULL(40), .max = 7,
		.want = BITS(33, 39),
	}, {
		.desc = "short run, unused page behind the next",
		.pos = 32, .before = 5, .unused = BIT_ULL(34),
		.want = BIT_ULL(33),
	}, {
		.desc = "short run, next page unused",
		.pos = 32, .before = 5, .unused = BIT_ULL(33),
	}, {
		.desc = "reuse: unused pages do not matter before the window",
		.pos = 40, .before = 120, .unused = BIT_ULL(33), .reuse = true,
		.want = BITS(41, 63),
	}, {
		.desc = "reuse: as many as the run has",
		.pos = 0, .before = 40, .reuse = true, .want = BITS(1, 40),
	}, {
		.desc = "reuse: all of the block",
		.pos = 0, .before = 63, .reuse = true, .want = BITS(1, 63),
	}, {
		.desc = "reuse: all of the block, backward",
		.pos = 63, .after = 63, .reuse = true, .want = BITS(0, 62),
	}, {
		.desc = "reuse: all of the block but one",
		.pos = 0, .before = 62, .reuse = true, .want = BITS(1, 62),
	}, {
		.desc = "reuse: stops at a page that is writable",
		.pos = 32, .before = 120, .unused = BIT_ULL(36), .reuse = true,
		.want = BITS(33, 35),
	}, {
		.desc = "reuse: next to nothing",
		.pos = 32, .demand = BITS(34, 40), .reuse = true,
	}, {
		.desc = "its own bits say nothing",
		.pos = 32, .demand = BIT_ULL(32), .used = BIT_ULL(32),
	},
};

KUNIT_ARRAY_PARAM_DESC(window, window_cases, desc);

static void window(struct kunit *test)
{
	expect_policy(test, test->param_value);
}

/*
 * Rule 5
 */

static const struct policy_case sequential_cases[] = {
	{ .desc = "from the start", .pos = 0, .want = BITS(1, 15) },
	{ .desc = "from the middle", .pos = 8, .want = BITS(9, 15) },
	{ .desc = "from the last but one", .pos = 14, .want = BIT_ULL(15) },
	{ .desc = "from the last", .pos = 15 },
	{ .desc = "last of the block", .pos = 63 },
	{ .desc = "at most 1", .pos = 0, .max = 1, .want = BIT_ULL(1) },
	{ .desc = "at most 1, odd page", .pos = 1, .max = 1 },
	{ .desc = "at most 3", .pos = 0, .max = 3, .want = BITS(1, 3) },
	{ .desc = "at most 5", .pos = 0, .max = 5, .want = BITS(1, 5) },
	{ .desc = "no hardware", .pos = 0, .no_hw_dirty = true, .want = BITS(1, 15) },
	{ .desc = "reuse", .pos = 0, .reuse = true, .want = BITS(1, 63) },
	{
		.desc = "the next page is written",
		.pos = 4, .after = 3, .want = BITS(8, 15),
	}, {
		.desc = "never backward",
		.pos = 15, .after = 120,
	}, {
		.desc = "all, next to a short run",
		.pos = 4, .before = 4, .want = BITS(5, 15),
	}, {
		.desc = "passes over a written page",
		.pos = 0, .demand = BIT_ULL(5), .want = BITS(1, 4) | BITS(6, 15),
	}, {
		.desc = "stops at an unused page",
		.pos = 0, .unused = BIT_ULL(5), .want = BITS(1, 4),
	}, {
		.desc = "unused page behind the fault",
		.pos = 8, .unused = BIT_ULL(5), .want = BITS(9, 15),
	}, {
		.desc = "stops where the VMA ends",
		.pos = 0, .outside = BITS(3, 63), .want = BITS(1, 2),
	}, {
		.desc = "no more for what else was written",
		.pos = 55, .demand = PAIRS_30, .want = BITS(56, 63),
	}, {
		.desc = "nothing for what else was written",
		.pos = 63, .demand = PAIRS_30,
	},
};

KUNIT_ARRAY_PARAM_DESC(sequential, sequential_cases, desc);

static void sequential(struct kunit *test)
{
	struct policy_case c = *(const struct policy_case *)test->param_value;

	c.sequential = true;
	expect_policy(test, &c);
}

/*
 * Rule 4; the faulting page counts as demanded
 */

static const struct policy_case dense_cases[] = {
	{
		.desc = "23 demanded",
		.pos = 50, .demand = PAIRS_22,
	}, {
		.desc = "24 demanded: nearest first, above before below",
		.pos = 50, .demand = PAIRS_23,
		.want = BITS(43, 49) | BITS(51, 58),
	}, {
		.desc = "24 demanded, less of the page table written",
		.pos = 50, .demand = PAIRS_23, .sparse_table = true,
	}, {
		.desc = "25 demanded",
		.pos = 50, .demand = PAIRS_24,
		.want = BITS(43, 49) | BITS(51, 58),
	}, {
		.desc = "24 demanded, at most 1",
		.pos = 50, .demand = PAIRS_23, .max = 1, .want = BIT_ULL(51),
	}, {
		.desc = "24 demanded, at most 3",
		.pos = 50, .demand = PAIRS_23, .max = 3,
		.want = BIT_ULL(49) | BITS(51, 52),
	}, {
		.desc = "24 demanded, at most 4",
		.pos = 50, .demand = PAIRS_23, .max = 4,
		.want = BITS(48, 49) | BITS(51, 52),
	}, {
		.desc = "last page of the block: all are below",
		.pos = 63, .demand = PAIRS_23, .want = BITS(48, 62),
	}, {
		.desc = "first page of the block: all are above",
		.pos = 0, .demand = PAIRS_24 << 29, .max = 7, .want = BITS(1, 7),
	}, {
		.desc = "around what is written",
		.pos = 26, .demand = (PAIRS_24 & ~BITS(24, 28)) | BITS(40, 43),
		.max = 3, .want = BIT_ULL(25) | BITS(27, 28),
	}, {
		.desc = "the VMA ends behind the fault",
		.pos = 50, .demand = PAIRS_23, .outside = BITS(51, 63), .max = 3,
		.want = BITS(47, 49),
	}, {
		.desc = "the VMA ends: fewer pages than asked for",
		.pos = 32, .demand = PAIRS_23, .outside = BITS(34, 63),
		.want = BIT_ULL(2) | BIT_ULL(5) | BIT_ULL(8) | BIT_ULL(11) |
			BIT_ULL(14) | BIT_ULL(17) | BIT_ULL(20) | BIT_ULL(23) |
			BIT_ULL(26) | BIT_ULL(29),
	}, {
		.desc = "as many unused as demanded",
		.pos = 36, .demand = PAIRS_23, .unused = BITS(40, 63),
	}, {
		.desc = "more unused than demanded",
		.pos = 36, .demand = PAIRS_23, .unused = BITS(38, 63),
	}, {
		.desc = "one unused less than demanded",
		.pos = 36, .demand = PAIRS_23, .unused = BITS(41, 63),
		.want = BIT_ULL(37),
	}, {
		.desc = "two unused less than demanded",
		.pos = 36, .demand = PAIRS_23, .unused = BITS(42, 63),
		.want = BIT_ULL(35) | BIT_ULL(37),
	}, {
		.desc = "not over an unused page twice",
		.pos = 36, .demand = PAIRS_23, .unused = BIT_ULL(37), .max = 2,
		.want = BIT_ULL(35) | BIT_ULL(38),
	}, {
		.desc = "used pages are not demanded ones",
		.pos = 50, .demand = PAIRS_22, .used = PAIRS_30 & ~PAIRS_22,
	}, {
		.desc = "used pages beside 24 demanded",
		.pos = 50, .demand = PAIRS_23, .used = BITS(48, 49), .max = 3,
		.want = BITS(51, 53),
	}, {
		.desc = "no two side by side",
		.pos = 62, .demand = EVEN_PAGES,
	}, {
		.desc = "the fault is the second of two",
		.pos = 63, .demand = EVEN_PAGES, .before = 1, .max = 2,
		.want = BIT_ULL(61) | BIT_ULL(59),
	}, {
		.desc = "first and last page are not side by side",
		.pos = 32, .demand = (EVEN_PAGES & BITS(0, 61)) | BIT_ULL(63),
	}, {
		.desc = "a used page makes two",
		.pos = 62, .demand = EVEN_PAGES, .used = BIT_ULL(1), .max = 1,
		.want = BIT_ULL(63),
	}, {
		.desc = "a run of 16 does not count",
		.pos = 50, .demand = BITS(0, 15) | (PAIRS(25) & BITS(17, 25)) |
			BITS(28, 32) | BITS(34, 38),
	}, {
		.desc = "a run of 15 counts",
		.pos = 50, .demand = BITS(1, 15) | BITS(18, 25), .max = 1,
		.want = BIT_ULL(51),
	}, {
		.desc = "a run of 15 and 7 more, with the fault 23",
		.pos = 50, .demand = BITS(1, 15) | BITS(18, 24),
	}, {
		.desc = "3 pages at the beginning may be part of a longer run",
		.pos = 50, .demand = BITS(0, 2) | BITS(10, 20) | BITS(30, 38),
	}, {
		.desc = "2 pages at the beginning count",
		.pos = 50, .demand = BITS(0, 1) | BITS(10, 20) | BITS(30, 39),
		.max = 1, .want = BIT_ULL(51),
	}, {
		.desc = "3 pages at the end may be part of a longer run",
		.pos = 5, .demand = BITS(61, 63) | BITS(10, 20) | BITS(30, 38),
	}, {
		.desc = "2 pages at the end count",
		.pos = 5, .demand = BITS(62, 63) | BITS(10, 20) | BITS(30, 39),
		.max = 1, .want = BIT_ULL(6),
	}, {
		.desc = "24 beside a run of 16",
		.pos = 56, .demand = BITS(0, 15) | BITS(18, 30) | BITS(34, 43),
		.max = 1, .want = BIT_ULL(57),
	}, {
		.desc = "23 beside a run of 16",
		.pos = 56, .demand = BITS(0, 15) | BITS(18, 30) | BITS(34, 42),
	}, {
		.desc = "two runs that the fault joins to one of 16",
		.pos = 9, .before = 8, .after = 7, .demand = BITS(18, 25),
	}, {
		.desc = "a run of 16 with used pages in it",
		.pos = 50, .demand = BITS(1, 15) | BITS(18, 25),
		.used = BIT_ULL(16),
	}, {
		.desc = "a run of 16 at the end of the block",
		.pos = 30, .demand = BITS(48, 63) | BITS(0, 2) | BITS(4, 18) |
			BITS(20, 23),
		.want = 0,
	}, {
		.desc = "the fault is the last page of a full block",
		.pos = 63, .before = 63,
	}, {
		.desc = "with one page of rule 2",
		.pos = 48, .demand = PAIRS_22, .before = 3, .max = 3,
		.want = BITS(49, 51),
	}, {
		.desc = "rule 2 is all that a bound of 1 allows",
		.pos = 48, .demand = PAIRS_22, .before = 3, .max = 1,
		.want = BIT_ULL(49),
	}, {
		.desc = "the page of rule 2 is one of those unused",
		.pos = 32, .demand = PAIRS_20, .before = 3, .unused = BITS(41, 63),
		.want = BIT_ULL(33),
	}, {
		.desc = "one more than the page of rule 2",
		.pos = 32, .demand = PAIRS_20, .before = 3, .unused = BITS(42, 63),
		.want = BIT_ULL(33) | BIT_ULL(34),
	}, {
		.desc = "not with more than a page of rule 3",
		.pos = 16, .before = 16, .demand = BITS(20, 29) | BITS(40, 52),
		.want = BITS(17, 18),
	}, {
		.desc = "hardware does not note writes",
		.pos = 50, .demand = PAIRS_30, .no_hw_dirty = true,
	}, {
		.desc = "rule 2 where hardware does not note writes",
		.pos = 50, .demand = PAIRS_30, .before = 3, .no_hw_dirty = true,
		.want = BIT_ULL(51),
	},
};

KUNIT_ARRAY_PARAM_DESC(dense, dense_cases, desc);

static void dense(struct kunit *test)
{
	expect_policy(test, test->param_value);
}

/*
 * Random evidence, including what no page table can contain
 */

static u64 random_map(struct rnd_state *rnd)
{
	u64 map = (u64)prandom_u32_state(rnd) << 32 | prandom_u32_state(rnd);

	switch (prandom_u32_state(rnd) % 4) {
	case 0:
		return 0;
	case 1:
		return map & ((u64)prandom_u32_state(rnd) << 32 |
			      prandom_u32_state(rnd));
	case 2:
		return map | ((u64)prandom_u32_state(rnd) << 32 |
			      prandom_u32_state(rnd));
	default:
		return map;
	}
}

static void any_evidence(struct kunit *test)
{
	struct rnd_state rnd;
	int i;

	prandom_seed_state(&rnd, 1988);
	for (i = 0; i < 100000; i++) {
		struct cow_evidence e = {
			.valid = ~random_map(&rnd),
			.written = random_map(&rnd),
			.unused = random_map(&rnd),
			.pos = prandom_u32_state(&rnd) % COW_BLOCK,
			.before = prandom_u32_state(&rnd) % 300,
			.after = prandom_u32_state(&rnd) % 300,
			.reuse = prandom_u32_state(&rnd) % 2,
			.hw_dirty = prandom_u32_state(&rnd) % 4,
			.dense = prandom_u32_state(&rnd) % 4,
			.unused_far = prandom_u32_state(&rnd) % 2,
			.sequential = !(prandom_u32_state(&rnd) % 8),
		};
		unsigned int most = e.reuse ? COW_BLOCK - 1 : COW_PRECOPY_MAX_PAGES;
		u64 take;

		e.max = 1 + prandom_u32_state(&rnd) % most;
		e.demand = e.written & random_map(&rnd);
		take = cow_policy(&e);
		if (is_sane(&e, take))
			continue;
		KUNIT_FAIL(test, "number %d: took %#llx of %#llx at %u, at most %u",
			   i, take, e.valid & ~(e.written | e.unused), e.pos, e.max);
		return;
	}
}

static struct kunit_case cow_policy_cases[] = {
	KUNIT_CASE_PARAM(run_length, run_gen_params),
	KUNIT_CASE_PARAM(run_length_no_hw_dirty, run_gen_params),
	KUNIT_CASE_PARAM(run_length_reuse, run_gen_params),
	KUNIT_CASE_PARAM(run_length_reuse_no_hw_dirty, run_gen_params),
	KUNIT_CASE_PARAM(window, window_gen_params),
	KUNIT_CASE_PARAM(sequential, sequential_gen_params),
	KUNIT_CASE_PARAM(dense, dense_gen_params),
	KUNIT_CASE(any_evidence),
	{}
};

static struct kunit_suite cow_policy_suite = {
	.name = "cow_policy",
	.test_cases = cow_policy_cases,
};

kunit_test_suite(cow_policy_suite);

MODULE_DESCRIPTION("Tests for what copy-on-write faults copy ahead: the choice");
MODULE_LICENSE("GPL");
