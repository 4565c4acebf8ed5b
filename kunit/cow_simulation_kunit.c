// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of cow_policy(), which chooses the pages that a copy-on-write fault
 * copies ahead: a simulated address space of shared pages, which is written to in
 * thousands of ways. There must never be more unused copies than faults, and few faults
 * where a program writes in order.
 */
#include <kunit/test.h>
#include <linux/log2.h>
#include <linux/math.h>
#include <linux/minmax.h>
#include <linux/moduleparam.h>
#include <linux/pgtable.h>
#include <linux/prandom.h>
#include <linux/string.h>

#include "../cow.h"
#include "../cow_policy.h"
#include "../cow_precopy.h"
#include "cow_kunit_policy.h"

#define SIM_PAGES	4096
/* The tests of the bound write to fewer pages, so that they fill up. */
#define SIM_REGION	1024

enum sim_state {
	SIM_SHARED,
	/* Copied by a fault of its own */
	SIM_DEMANDED,
	/* Copied ahead and then written to */
	SIM_USED,
	/* Copied ahead, and not written to */
	SIM_UNUSED,
};

/**
 * struct sim - the address space
 * @test: the test
 * @rnd: state of the random number generator
 * @what: name of the write pattern, for messages
 * @number: number of the sequence of writes, for messages
 * @pages: size of the VMA in pages
 * @max: vm.cow_precopy_max
 * @hw_dirty: hardware sets dirty bits
 * @early: use the early exits of the fault handler
 * @sample: look at a sample of the page table; without, all of it is dense
 * @faults: number of faults
 * @taken: number of pages copied ahead
 * @unused: number of those that have not been written to
 * @broken: a failure was reported
 * @state: state of each page
 */
struct sim {
	struct kunit *test;
	struct rnd_state rnd;
	const char *what;
	unsigned int number;
	unsigned int pages;
	unsigned int max;
	bool hw_dirty;
	bool early;
	bool sample;
	unsigned int faults;
	unsigned int taken;
	unsigned int unused;
	bool broken;
	u8 state[SIM_PAGES];
};

/* For a search that takes longer than a test may: cow_simulation_kunit.times=100 */
static unsigned int times = 1;
module_param(times, uint, 0444);
MODULE_PARM_DESC(times, "So many times the random orders of bound_of_waste (default 1)");

static unsigned long long seed = 1988;
module_param(seed, ullong, 0444);
MODULE_PARM_DESC(seed, "What the random orders begin with (default 1988)");

static struct sim *new_sim(struct kunit *test)
{
	struct sim *s = kunit_kzalloc(test, sizeof(*s), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, s);
	s->test = test;
	s->pages = SIM_PAGES;
	s->max = COW_PRECOPY_MAX_PAGES;
	s->hw_dirty = true;
	s->early = true;
	prandom_seed_state(&s->rnd, seed);
	return s;
}

static void sim_fork(struct sim *s)
{
	memset(s->state, SIM_SHARED, sizeof(s->state));
	s->faults = 0;
	s->taken = 0;
	s->unused = 0;
}

static unsigned int sim_random(struct sim *s, unsigned int below)
{
	return prandom_u32_state(&s->rnd) % below;
}

static bool sim_private(const struct sim *s, unsigned int page)
{
	return page < s->pages && s->state[page] != SIM_SHARED;
}

static bool sim_written(const struct sim *s, unsigned int page)
{
	return sim_private(s, page) && (!s->hw_dirty || s->state[page] != SIM_UNUSED);
}

/* Like cow_precopy_alone() */
static bool sim_alone(const struct sim *s, unsigned int page)
{
	unsigned int index = page % PTRS_PER_PTE;

	if (index < 2 || index > PTRS_PER_PTE - 3)
		return false;
	return !(sim_private(s, page - 1) && sim_private(s, page - 2)) &&
	       !(sim_private(s, page + 1) && sim_private(s, page + 2)) &&
	       !(sim_private(s, page ^ 5) && sim_private(s, page ^ 9));
}

/* Like cow_count_written(); page 0 has none below, as UINT_MAX is not private. */
static unsigned int sim_count(const struct sim *s, unsigned int page, int step,
			      unsigned int max)
{
	unsigned int nr = 0;

	while (nr < max && sim_written(s, page + step * (int)nr))
		nr++;
	return nr;
}

/* Like cow_precopy_sparse() */
static bool sim_sparse(const struct sim *s, unsigned int page)
{
	unsigned int distance, nr = 0;

	if (sim_count(s, page - 1, -1, COW_RUN) == COW_RUN ||
	    sim_count(s, page + 1, 1, COW_RUN) == COW_RUN)
		return false;
	for (distance = 1; distance < 16; distance += 2)
		nr += sim_private(s, page ^ distance);
	return nr < 4;
}

/* Are the nearest pages of a run whole windows? */
static bool sim_run_of_windows(const struct sim *s, unsigned int page, int step)
{
	unsigned int nr, faults = 0;

	if (!s->hw_dirty)
		return false;
	for (nr = 0; nr < COW_RUN_WINDOWS; nr++, page += step) {
		if (!sim_written(s, page))
			return false;
		faults += s->state[page] == SIM_DEMANDED;
	}
	return faults && faults <= COW_RUN_WINDOWS / roundup_pow_of_two(s->max + 1);
}

/* Like cow_run() */
static unsigned int sim_run(const struct sim *s, unsigned int page, int step,
			    unsigned int limit)
{
	unsigned int index = page % PTRS_PER_PTE;
	unsigned int in_table = step > 0 ? PTRS_PER_PTE - 1 - index : index;
	unsigned int nr;

	limit = min(limit, step > 0 ? s->pages - 1 - page : page);
	if (in_table >= COW_RUN_WINDOWS && limit >= 2 * COW_RUN_WINDOWS &&
	    sim_run_of_windows(s, page + step, step))
		return limit;
	nr = sim_count(s, page + step, step, min(in_table, limit));
	if (nr == in_table && nr < limit)
		nr += sim_count(s, page + step * (int)(nr + 1), step, limit - nr);
	return nr;
}

/* Like cow_table_is_dense() */
static bool sim_table_is_dense(const struct sim *s, unsigned int page)
{
	unsigned int first = round_down(page, PTRS_PER_PTE), nr = 0, private = 0;
	unsigned int end = min(first + (unsigned int)PTRS_PER_PTE, s->pages);

	for (; first < end; first += COW_TABLE_SAMPLE) {
		nr++;
		private += sim_private(s, first);
	}
	return private * 16 >= nr * COW_DENSE_TABLE;
}

/* Like cow_unused_far() */
static bool sim_unused_far(const struct sim *s, unsigned int page,
			   const struct cow_evidence *e)
{
	unsigned int far = e->before >= e->after ? page - e->before : page + e->after, i;

	for (i = round_down(far, COW_BLOCK); i % COW_BLOCK || i <= far; i++) {
		if (sim_private(s, i) && !sim_written(s, i))
			return true;
	}
	return false;
}

/* Like cow_precopy_gather() */
static void sim_gather(const struct sim *s, unsigned int page, struct cow_evidence *e)
{
	unsigned int limit = s->max > 1 ? COW_RUN_ENOUGH : COW_RUN_SHARE;
	unsigned int first, last, run, size = COW_BLOCK, i;
	bool young;

	memset(e, 0, sizeof(*e));
	e->hw_dirty = s->hw_dirty;
	e->max = s->max;
	e->pos = page % COW_BLOCK;
	e->before = sim_run(s, page, -1, limit);
	e->after = sim_run(s, page, 1, limit);
	run = max(e->before, e->after);
	e->dense = run < COW_LONG_RUN && (!s->sample || sim_table_is_dense(s, page));
	young = s->hw_dirty && run >= COW_LONG_RUN && run < COW_RUN_ENOUGH;
	e->unused_far = young && sim_unused_far(s, page, e);
	if (!e->dense && !young)
		size = roundup_pow_of_two(s->max + 1);
	first = round_down(page, size);
	last = min(first + size, s->pages) - 1;
	e->valid = BITS(first % COW_BLOCK, last % COW_BLOCK);
	for (i = first; i <= last; i++) {
		u64 bit = BIT_ULL(i % COW_BLOCK);

		e->written |= sim_written(s, i) ? bit : 0;
		e->demand |= s->state[i] == SIM_DEMANDED ? bit : 0;
		e->unused |= sim_private(s, i) && !sim_written(s, i) ? bit : 0;
	}
}

/* The pages that a fault at a shared page copies ahead. */
static u64 sim_choose(struct sim *s, unsigned int page)
{
	struct cow_evidence e;
	u64 take;

	if (s->early && (sim_alone(s, page) || sim_sparse(s, page)))
		return 0;
	sim_gather(s, page, &e);
	take = cow_policy(&e);
	if (!is_sane(&e, take) && !s->broken) {
		s->broken = true;
		KUNIT_FAIL(s->test, "%s %u: took %#llx at %u", s->what, s->number,
			   take, page);
	}
	return take;
}

static void sim_fault(struct sim *s, unsigned int page)
{
	u64 take = sim_choose(s, page);

	s->state[page] = SIM_DEMANDED;
	s->faults++;
	for (; take; take &= take - 1) {
		s->state[round_down(page, COW_BLOCK) + __ffs64(take)] = SIM_UNUSED;
		s->taken++;
		s->unused++;
	}
	/* The bound: no more unused copies than faults */
	if (s->unused <= s->faults || s->broken)
		return;
	s->broken = true;
	KUNIT_FAIL(s->test, "%s %u, page %u: %u unused pages after %u faults",
		   s->what, s->number, page, s->unused, s->faults);
}

static void sim_write(struct sim *s, unsigned int page)
{
	switch (s->state[page]) {
	case SIM_SHARED:
		sim_fault(s, page);
		break;
	case SIM_UNUSED:
		s->state[page] = SIM_USED;
		s->unused--;
		break;
	}
}

/*
 * Writes of mixed kinds
 */

static void write_one(struct sim *s)
{
	sim_write(s, sim_random(s, s->pages));
}

static unsigned int some_length(struct sim *s)
{
	return 1 + sim_random(s, 1 << sim_random(s, 9));
}

static void write_run(struct sim *s)
{
	unsigned int page = sim_random(s, s->pages), nr = some_length(s);

	while (nr-- && page < s->pages)
		sim_write(s, page++);
}

static void write_run_down(struct sim *s)
{
	unsigned int page = sim_random(s, s->pages), nr = some_length(s);

	while (nr-- && page < s->pages)
		sim_write(s, page--);
}

static void write_stride(struct sim *s)
{
	unsigned int page = sim_random(s, s->pages), nr = some_length(s);
	unsigned int stride = 2 + sim_random(s, 7);

	for (; nr-- && page < s->pages; page += stride)
		sim_write(s, page);
}

/* Write to two pages of every three or four. */
static void write_pairs(struct sim *s)
{
	unsigned int page = sim_random(s, s->pages), nr = some_length(s);
	unsigned int stride = 3 + sim_random(s, 2);

	for (; nr-- && page + 1 < s->pages; page += stride) {
		sim_write(s, page);
		sim_write(s, page + 1);
	}
}

/* Find a page in state @state, starting from a random page; if none, any page. */
static unsigned int find_state(struct sim *s, enum sim_state state)
{
	unsigned int page = sim_random(s, s->pages), nr;

	for (nr = 0; nr < s->pages && s->state[page] != state; nr++)
		page = page + 1 < s->pages ? page + 1 : 0;
	return page;
}

/* Write to a shared page. */
static void write_shared(struct sim *s)
{
	sim_write(s, find_state(s, SIM_SHARED));
}

/* Write to a page that was copied ahead: the run grows without a fault. */
static void write_unused(struct sim *s)
{
	sim_write(s, find_state(s, SIM_UNUSED));
}

/* Write to the first shared page after a run. */
static void write_behind_run(struct sim *s)
{
	unsigned int page = find_state(s, SIM_DEMANDED);

	while (page < s->pages && s->state[page] != SIM_SHARED)
		page++;
	if (page < s->pages)
		sim_write(s, page);
}

static void write_before_run(struct sim *s)
{
	unsigned int page = find_state(s, SIM_DEMANDED);

	while (page < s->pages && s->state[page] != SIM_SHARED)
		page--;
	if (page < s->pages)
		sim_write(s, page);
}

/* Of eight pages, write to the one whose fault copies the most pages. */
static void write_greedy(struct sim *s)
{
	unsigned int best = 0, most = 0, i;

	for (i = 0; i < 8; i++) {
		unsigned int page = find_state(s, SIM_SHARED), nr;

		if (s->state[page] != SIM_SHARED)
			return;
		nr = hweight64(sim_choose(s, page));
		if (nr >= most) {
			most = nr;
			best = page;
		}
	}
	sim_write(s, best);
}

static void (* const sim_kinds[])(struct sim *s) = {
	write_one, write_run, write_run_down, write_stride, write_pairs,
	write_shared, write_unused, write_behind_run, write_before_run, write_greedy,
};

/* Each kind of write has a random weight, which may be 0. */
static void write_mixed(struct sim *s)
{
	unsigned int weight[ARRAY_SIZE(sim_kinds)], sum = 0, steps, i, n;

	for (i = 0; i < ARRAY_SIZE(sim_kinds); i++) {
		weight[i] = sim_random(s, 2) ? sim_random(s, 10) : 0;
		sum += weight[i];
	}
	if (!sum)
		return;
	for (steps = 5 + sim_random(s, 200); steps; steps--) {
		n = sim_random(s, sum);
		for (i = 0; n >= weight[i]; i++)
			n -= weight[i];
		sim_kinds[i](s);
	}
}

struct bound_case {
	const char *desc;
	unsigned int max;
	bool early;
	bool no_hw_dirty;
	unsigned int sequences;
};

/* With the early exits of the fault handler, and without ("looking always") */
static const struct bound_case bound_cases[] = {
	{ "at most 15", 15, true, false, 1000 },
	{ "at most 15, looking always", 15, false, false, 1000 },
	{ "at most 15, no dirty bits", 15, true, true, 250 },
	{ "at most 15, looking always, no dirty bits", 15, false, true, 250 },
	{ "at most 1", 1, true, false, 250 },
	{ "at most 2", 2, true, false, 250 },
	{ "at most 3", 3, true, false, 250 },
	{ "at most 7", 7, true, false, 250 },
	{ "at most 12, looking always", 12, false, false, 250 },
};

KUNIT_ARRAY_PARAM_DESC(bound, bound_cases, desc);

static struct sim *bound_sim(struct kunit *test)
{
	const struct bound_case *c = test->param_value;
	struct sim *s = new_sim(test);

	s->max = c->max;
	s->early = c->early;
	s->hw_dirty = !c->no_hw_dirty;
	return s;
}

/* At any time there are at most as many unused copies as there were faults. */
static void bound_of_waste(struct kunit *test)
{
	const struct bound_case *c = test->param_value;
	struct sim *s = bound_sim(test);

	s->what = "sequence";
	for (; s->number < c->sequences * times && !s->broken; s->number++) {
		/* The VMA may end within a block. */
		s->pages = SIM_REGION >> sim_random(s, 6);
		s->pages -= sim_random(s, s->pages / 4);
		sim_fork(s);
		write_mixed(s);
	}
}

/**
 * struct found_case - an order of writes
 * @desc: description
 * @pages: the pages, of which none is page 0
 * @faults: number of faults in the end
 * @unused: number of unused pages in the end
 */
struct found_case {
	const char *desc;
	u8 pages[144];
	unsigned int faults;
	unsigned int unused;
};

/*
 * Orders that were found to break the bound of earlier rules, and one that would if a
 * single window showed that a run was long (see cow_run())
 */
static const struct found_case found_cases[] = {
	{
		.desc = "short runs grow together",
		.pages = {
			115, 106, 112, 121, 88, 118, 107, 101, 98, 110, 122, 94,
			125, 92, 91, 104, 89, 119, 124, 97, 113, 95, 109, 116,
			100, 93, 114, 99, 108, 90, 111, 123, 105, 120, 126, 102,
			96, 72, 117, 103, 127, 128,
		},
		.faults = 27, .unused = 24,
	}, {
		.desc = "a long run that begins in a block of rule 4",
		.pages = {
			128, 129, 131, 132, 134, 135, 133, 130, 144, 145, 143,
			138, 139, 141, 140, 142, 127, 126, 125, 124, 123, 122,
			121, 120, 119, 118, 117, 116, 115, 114, 113, 112, 111,
			110, 109, 108, 107, 106, 105, 104, 103, 102, 101, 100,
			99, 98, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87, 86,
			85, 84, 83, 82, 81, 80, 79, 78, 77, 76, 75, 74, 73, 72,
			71, 70, 69, 68, 67, 66, 65, 64, 63, 62, 61, 60, 59, 58,
			57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44,
			43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30,
			29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
			137, 186, 188, 190, 191, 187, 185, 189, 168, 136, 146,
			15,
		},
		.faults = 49, .unused = 29,
	}, {
		.desc = "rule 4 takes a whole window",
		.pages = {
			85, 84, 119, 87, 127, 113, 81, 118, 99, 112, 114, 101,
			108, 106, 86, 93, 100, 89, 105, 95, 107, 125, 163, 128,
			175, 180, 140, 129, 162, 185, 173, 177, 171, 164, 182,
			137, 133, 142, 190, 132, 167, 130, 138, 186, 187, 115,
			80, 69, 134, 64, 65, 66, 67, 68, 70, 71, 72, 73, 74, 75,
			76, 77, 78, 79, 63, 104, 110,
		},
		.faults = 52, .unused = 24,
	},
};

KUNIT_ARRAY_PARAM_DESC(found, found_cases, desc);

static void bound_found(struct kunit *test)
{
	const struct found_case *c = test->param_value;
	struct sim *s = new_sim(test);
	unsigned int i;

	s->what = c->desc;
	for (i = 0; c->pages[i]; i++)
		sim_write(s, c->pages[i]);
	/* The case would be of no use if the policy chose less than it does. */
	KUNIT_EXPECT_EQ(test, s->faults, c->faults);
	KUNIT_EXPECT_EQ(test, s->unused, c->unused);
}

/* Write to @nr pages from @from on, then to the next shared page at each end. */
static void write_both_ends(struct sim *s, unsigned int from, unsigned int nr)
{
	unsigned int page;

	for (page = from; page < from + nr; page++)
		sim_write(s, page);
	while (page < s->pages && s->state[page] != SIM_SHARED)
		page++;
	if (page < s->pages)
		sim_write(s, page);
	for (page = from; page < s->pages && s->state[page] != SIM_SHARED;)
		page--;
	if (page < s->pages)
		sim_write(s, page);
}

/* One window at each end of a run of written pages. */
static void bound_at_both_ends(struct kunit *test)
{
	struct sim *s = bound_sim(test);
	unsigned int shift;

	s->what = "run of";
	s->pages = SIM_REGION;
	for (s->number = 2; s->number < 400 && !s->broken; s->number++) {
		for (shift = 0; shift < 32; shift += 1 + s->number / 50) {
			sim_fork(s);
			write_both_ends(s, SIM_REGION / 4 + shift, s->number);
		}
	}
}

/*
 * The benefit: number of faults and of copies for common write patterns
 */

/* In tenths of a percent, rounded up. */
static unsigned int per_mille(unsigned int part, unsigned int whole)
{
	return DIV_ROUND_UP(part * 1000, whole);
}

static void forward(struct kunit *test)
{
	struct sim *s = new_sim(test);
	unsigned int page;

	s->what = "forward";
	for (page = 0; page < SIM_PAGES; page++)
		sim_write(s, page);
	KUNIT_EXPECT_LE(test, per_mille(s->faults, SIM_PAGES), 80);
	KUNIT_EXPECT_EQ(test, s->unused, 0);
}

static void backward(struct kunit *test)
{
	struct sim *s = new_sim(test);
	unsigned int page;

	s->what = "backward";
	for (page = SIM_PAGES; page; page--)
		sim_write(s, page - 1);
	KUNIT_EXPECT_LE(test, per_mille(s->faults, SIM_PAGES), 80);
	KUNIT_EXPECT_EQ(test, s->unused, 0);
}

/* Without dirty bits, every second page faults. */
static void forward_no_hw_dirty(struct kunit *test)
{
	struct sim *s = new_sim(test);
	unsigned int page;

	s->what = "forward";
	s->hw_dirty = false;
	for (page = 0; page < SIM_PAGES; page++)
		sim_write(s, page);
	KUNIT_EXPECT_LE(test, per_mille(s->faults, SIM_PAGES), 505);
	KUNIT_EXPECT_EQ(test, s->unused, 0);
}

/* Write to the even pages, then to the odd ones, like two threads in turn. */
static void interleaved(struct kunit *test)
{
	struct sim *s = new_sim(test);
	unsigned int page;

	s->what = "interleaved";
	for (page = 0; page < SIM_PAGES; page += 2)
		sim_write(s, page);
	for (page = 1; page < SIM_PAGES; page += 2)
		sim_write(s, page);
	KUNIT_EXPECT_LE(test, per_mille(s->faults, SIM_PAGES), 570);
	KUNIT_EXPECT_EQ(test, s->unused, 0);
}

static u16 *random_order(struct kunit *test, struct sim *s)
{
	u16 *order = kunit_kmalloc_array(test, SIM_PAGES, sizeof(*order), GFP_KERNEL);
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, order);
	for (i = 0; i < SIM_PAGES; i++) {
		unsigned int j = sim_random(s, i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	return order;
}

/* Write to every page once, in random order. */
static void permutation(struct kunit *test)
{
	struct sim *s = new_sim(test);
	unsigned int i, round;
	u16 *order;

	s->what = "permutation";
	s->sample = true;
	for (round = 0; round < 4; round++) {
		sim_fork(s);
		order = random_order(test, s);
		for (i = 0; i < SIM_PAGES; i++)
			sim_write(s, order[i]);
		KUNIT_EXPECT_LE(test, per_mille(s->faults, SIM_PAGES), 550);
		KUNIT_EXPECT_EQ(test, s->unused, 0);
	}
}

struct part_case {
	const char *desc;
	unsigned int pages;
	unsigned int in_vain;
};

/* @in_vain: unused copies per thousand faults */
static const struct part_case part_cases[] = {
	{ "one page in 20", SIM_PAGES / 20, 5 },
	{ "one page in 4", SIM_PAGES / 4, 20 },
	{ "one page in 3", SIM_PAGES / 3, 80 },
};

KUNIT_ARRAY_PARAM_DESC(part, part_cases, desc);

/* Write to a part of the pages at random, and to no more. */
static void random_part(struct kunit *test)
{
	const struct part_case *c = test->param_value;
	struct sim *s = new_sim(test);
	unsigned int i, round;
	u16 *order;

	s->what = c->desc;
	s->sample = true;
	for (round = 0; round < 4; round++) {
		sim_fork(s);
		order = random_order(test, s);
		for (i = 0; i < c->pages; i++)
			sim_write(s, order[i]);
		KUNIT_EXPECT_LE(test, per_mille(s->unused, s->faults), c->in_vain);
	}
}

struct stride_case {
	const char *desc;
	unsigned int stride;
};

static const struct stride_case stride_cases[] = {
	{ "2 pages", 2 },
	{ "3 pages", 3 },
	{ "4 pages", 4 },
	{ "5 pages", 5 },
	{ "16 pages", 16 },
	{ "64 pages", 64 },
	{ "511 pages", 511 },
};

KUNIT_ARRAY_PARAM_DESC(stride, stride_cases, desc);

/* With the early exits, and without. */
static void stride(struct kunit *test)
{
	const struct stride_case *c = test->param_value;
	struct sim *s = new_sim(test);
	unsigned int page;

	s->what = "stride";
	for (page = 0; page < SIM_PAGES; page += c->stride)
		sim_write(s, page);
	KUNIT_EXPECT_EQ(test, s->taken, 0);
	sim_fork(s);
	s->early = false;
	for (page = 0; page < SIM_PAGES; page += c->stride)
		sim_write(s, SIM_PAGES - 1 - page);
	KUNIT_EXPECT_EQ(test, s->taken, 0);
}

/* A single write, at each position. */
static void single(struct kunit *test)
{
	struct sim *s = new_sim(test);
	unsigned int page;

	s->what = "single";
	s->early = false;
	for (page = 0; page < SIM_PAGES; page++) {
		s->state[page] = SIM_SHARED;
		sim_write(s, page);
		s->state[page] = SIM_SHARED;
	}
	KUNIT_EXPECT_EQ(test, s->faults, SIM_PAGES);
	KUNIT_EXPECT_EQ(test, s->taken, 0);
}

static struct kunit_case cow_simulation_cases[] = {
	KUNIT_CASE_PARAM(bound_of_waste, bound_gen_params),
	KUNIT_CASE_PARAM(bound_found, found_gen_params),
	KUNIT_CASE_PARAM(bound_at_both_ends, bound_gen_params),
	KUNIT_CASE(forward),
	KUNIT_CASE(backward),
	KUNIT_CASE(forward_no_hw_dirty),
	KUNIT_CASE(interleaved),
	KUNIT_CASE(permutation),
	KUNIT_CASE_PARAM(random_part, part_gen_params),
	KUNIT_CASE_PARAM(stride, stride_gen_params),
	KUNIT_CASE(single),
	{}
};

static struct kunit_suite cow_simulation_suite = {
	.name = "cow_simulation",
	.test_cases = cow_simulation_cases,
};

kunit_test_suite(cow_simulation_suite);

MODULE_DESCRIPTION("Tests for what copy-on-write faults copy ahead: a simulation");
MODULE_LICENSE("GPL");
