// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of copy-on-write faults that choose the pages by what was written
 * around them: windows below and on both sides, allocation in bulk, and pages
 * that are made writable without a copy.
 */
#include <linux/mman.h>
#include <linux/pgalloc.h>
#include <linux/sched.h>
#include <linux/sched/sysctl.h>
#include <linux/swap.h>

#include "../internal.h"
#include "cow_kunit.h"

KUNIT_ARRAY_PARAM_DESC(odd, cowt_odd_cases, desc);
KUNIT_ARRAY_PARAM_DESC(flags, cowt_flags_cases, desc);
KUNIT_ARRAY_PARAM_DESC(refused, cowt_refused_cases, desc);
KUNIT_ARRAY_PARAM_DESC(race, cowt_race_cases, desc);
KUNIT_ARRAY_PARAM_DESC(policy, cowt_policy_cases, desc);

/*
 * The window depends on which pages were written. The region is one block.
 * cow_policy() chooses the pages, and has tests of its own.
 */

/*
 * Four written pages at odd distances from the fault, two of them at 5 and 9: without
 * them, the fault takes the early exit. Distance is the XOR of the page numbers.
 */
#define NEAR_50		(BIT_ULL(55) | BIT_ULL(59) | BIT_ULL(61) | BIT_ULL(63))
#define NEAR_63		(BIT_ULL(58) | BIT_ULL(54) | BIT_ULL(52) | BIT_ULL(50))
/* Two of every three pages from 0 to @last */
#define PAIRS(last)		(0xb6db6db6db6db6dbULL & PAGES(0, last))

/* Write to a page; it faults only if its PTE is read-only. */
static unsigned int write_page(struct kunit *test, unsigned int i)
{
	if (pte_write(cowt_read_pte(test, current->mm, cowt_page_addr(test, i)))) {
		cowt_change_pte(test, i, cowt_pte_hw_written);
		return 0;
	}
	cowt_write_fault(test, i);
	return 1;
}

/**
 * struct adaptive_case - pages that were written, and pages that a fault copies
 * @desc: description
 * @pos: page of the fault
 * @demand: pages that were copied by faults of their own
 * @used: pages that were copied ahead and written to
 * @unused: pages that were copied ahead and not written to
 * @hole: pages that are not mapped
 * @set: flags of the VMA
 * @max: vm.cow_precopy_max; 0 for the default
 * @soft_dirty: the case depends on soft-dirty bits
 * @want: the pages that are copied ahead
 * @want_no_hw: the same if hardware does not set dirty bits
 * @why: why pages are skipped
 * @skipped: number of pages that are skipped
 */
struct adaptive_case {
	const char *desc;
	unsigned int pos;
	u64 demand;
	u64 used;
	u64 unused;
	u64 hole;
	vm_flags_t set;
	unsigned int max;
	bool soft_dirty;
	u64 want;
	u64 want_no_hw;
	enum cow_skip why;
	unsigned int skipped;
};

static const struct adaptive_case adaptive_cases[] = {
	{ .desc = "lone write", .pos = 20 },
	{ .desc = "lone write, first page of the block", .pos = 0 },
	{ .desc = "lone write, last page of the block", .pos = 63 },
	{ .desc = "page 15 of the block", .pos = 15 },
	{ .desc = "page 16 of the block", .pos = 16 },
	{ .desc = "a page below is written", .pos = 20, .demand = BIT_ULL(19) },
	{ .desc = "a page above is written", .pos = 20, .demand = BIT_ULL(21) },
	{ .desc = "one on each side", .pos = 20, .demand = BIT_ULL(19) | BIT_ULL(21) },
	{ .desc = "every second page", .pos = 32, .demand = 0x5555555455555555ULL },
	{
		.desc = "2 pages below",
		.pos = 20, .demand = PAGES(18, 19),
	}, {
		.desc = "2 pages above",
		.pos = 20, .demand = PAGES(21, 22),
	}, {
		.desc = "3 pages below",
		.pos = 20, .demand = PAGES(17, 19),
		.want = BIT_ULL(21), .want_no_hw = BIT_ULL(21),
	}, {
		.desc = "3 pages above",
		.pos = 20, .demand = PAGES(21, 23),
		.want = BIT_ULL(19), .want_no_hw = BIT_ULL(19),
	}, {
		.desc = "3 pages below, end of the aligned pages",
		.pos = 31, .demand = PAGES(28, 30),
	}, {
		.desc = "3 pages above, start of the aligned pages",
		.pos = 32, .demand = PAGES(33, 35),
	}, {
		.desc = "28 pages below",
		.pos = 32, .demand = PAGES(4, 31),
		.want = PAGES(33, 35), .want_no_hw = BIT_ULL(33),
	}, {
		.desc = "28 pages above",
		.pos = 31, .demand = PAGES(32, 59),
		.want = PAGES(28, 30), .want_no_hw = BIT_ULL(30),
	}, {
		.desc = "28 pages below that were copied ahead and used",
		.pos = 32, .used = PAGES(4, 31),
		.want = PAGES(33, 35), .want_no_hw = BIT_ULL(33),
	}, {
		.desc = "28 pages below, last page of the block",
		.pos = 63, .demand = PAGES(35, 62),
	}, {
		.desc = "28 pages above, first page of the block",
		.pos = 0, .demand = PAGES(1, 28),
	}, {
		.desc = "28 pages below, end of the aligned pages is near",
		.pos = 46, .demand = PAGES(18, 45),
		.want = BIT_ULL(47), .want_no_hw = BIT_ULL(47),
	}, {
		.desc = "28 pages below, an unused page near",
		.pos = 32, .demand = PAGES(4, 31), .unused = BIT_ULL(47),
		.want = BIT_ULL(33), .want_no_hw = BIT_ULL(33),
	}, {
		.desc = "28 pages below, an unused page farther off",
		.pos = 32, .demand = PAGES(4, 31), .unused = BIT_ULL(48),
		.want = BIT_ULL(33), .want_no_hw = BIT_ULL(33),
	}, {
		.desc = "3 pages below that were copied ahead and not used",
		.pos = 20, .unused = PAGES(17, 19),
		.want_no_hw = BIT_ULL(21),
	}, {
		.desc = "nothing is mapped at the next page",
		.pos = 32, .demand = PAGES(4, 31), .hole = BIT_ULL(33),
		.want = PAGES(34, 35), .why = COW_SKIP_NOTPRESENT, .skipped = 1,
	}, {
		.desc = "at most 1",
		.pos = 32, .demand = PAGES(4, 31), .max = 1,
		.want = BIT_ULL(33), .want_no_hw = BIT_ULL(33),
	}, {
		.desc = "at most 3, aligned to 4",
		.pos = 33, .demand = PAGES(5, 32), .max = 3,
		.want = PAGES(34, 35), .want_no_hw = BIT_ULL(34),
	}, {
		.desc = "MADV_RANDOM",
		.pos = 32, .demand = PAGES(4, 31), .set = VM_RAND_READ,
		.why = COW_SKIP_MADVISE, .skipped = 1,
	}, {
		.desc = "MADV_RANDOM, lone write",
		.pos = 20, .set = VM_RAND_READ,
	}, {
		.desc = "MADV_SEQUENTIAL",
		.pos = 20, .set = VM_SEQ_READ,
		.want = PAGES(21, 31), .want_no_hw = PAGES(21, 31),
	}, {
		.desc = "MADV_SEQUENTIAL, first of the aligned pages",
		.pos = 32, .set = VM_SEQ_READ,
		.want = PAGES(33, 47), .want_no_hw = PAGES(33, 47),
	}, {
		.desc = "MADV_SEQUENTIAL, last of the aligned pages",
		.pos = 31, .set = VM_SEQ_READ,
	}, {
		.desc = "MADV_SEQUENTIAL, at most 2",
		.pos = 0, .set = VM_SEQ_READ, .max = 2,
		.want = PAGES(1, 2), .want_no_hw = PAGES(1, 2),
	}, {
		.desc = "MADV_SEQUENTIAL, next page written",
		.pos = 20, .demand = BIT_ULL(21), .set = VM_SEQ_READ,
		.want = PAGES(22, 31), .want_no_hw = PAGES(22, 31),
	}, {
		.desc = "23 pages demanded",
		.pos = 50, .demand = PAIRS(25) | NEAR_50, .soft_dirty = true,
	}, {
		.desc = "24 pages demanded: on both sides",
		.pos = 50, .demand = PAIRS(27) | NEAR_50, .soft_dirty = true,
		.want = PAGES(42, 49) | (PAGES(51, 58) & ~NEAR_50),
	}, {
		.desc = "24 pages demanded, last page of the block",
		.pos = 63, .demand = PAIRS(27) | NEAR_63, .soft_dirty = true,
		.want = PAGES(44, 62) & ~NEAR_63,
	}, {
		.desc = "24 pages written, 22 of them demanded",
		.pos = 50, .demand = PAIRS(24) | NEAR_50, .used = PAGES(27, 28),
		.soft_dirty = true,
	}, {
		.desc = "24 pages demanded, as many unused",
		.pos = 40, .demand = PAIRS(30) | BIT_ULL(33) | BIT_ULL(37),
		.unused = PAGES(42, 63) | PAGES(35, 36),
		.soft_dirty = true,
	},
};

KUNIT_ARRAY_PARAM_DESC(adaptive, adaptive_cases, desc);

static void set_up_case(struct kunit *test, const struct adaptive_case *c, bool hw_dirty)
{
	cowt_set_adaptive(test, c->max ?: COW_PRECOPY_MAX_PAGES, hw_dirty);
	cowt_populate(test, ALL_PAGES & ~c->hole);
	cowt_share(test);
	cowt_demand(test, c->demand);
	cowt_copied_ahead(test, c->used, true);
	cowt_copied_ahead(test, c->unused, false);
	cowt_change_vma_flags(test, c->set, 0);
	cowt_note(test);
}

static void test_adaptive(struct kunit *test, bool hw_dirty)
{
	const struct adaptive_case *c = test->param_value;
	u64 want = hw_dirty ? c->want : c->want_no_hw;
	unsigned int skipped = c->skipped;

	if (c->soft_dirty)
		cowt_need_demand(test);
	set_up_case(test, c, hw_dirty);
	cowt_write_fault(test, c->pos);
	cowt_expect_clean(test, want, hw_dirty);
	cowt_expect_region(test, want | BIT_ULL(c->pos));
	cowt_expect_counts(test, hweight64(want), skipped ? c->why : COW_SKIP_NONE,
			   skipped);
	cowt_expect_anon_mapped(test, 1 + hweight64(want));
	cowt_change_vma_flags(test, 0, c->set);
}

static void chooses(struct kunit *test)
{
	test_adaptive(test, true);
}

static void chooses_no_hw_dirty(struct kunit *test)
{
	test_adaptive(test, false);
}

struct walk_case {
	const char *desc;
	bool backward;
	bool hw_dirty;
	unsigned int faults;
};

static const struct walk_case walk_cases[] = {
	{ "forward", false, true, 21 },
	{ "backward", true, true, 21 },
	{ "forward, no dirty bits", false, false, 34 },
	{ "backward, no dirty bits", true, false, 34 },
};

KUNIT_ARRAY_PARAM_DESC(walk, walk_cases, desc);

static void adaptive_walk(struct kunit *test)
{
	const struct walk_case *c = test->param_value;
	unsigned int i, faults = 0;

	cowt_set_adaptive(test, COW_PRECOPY_MAX_PAGES, c->hw_dirty);
	cowt_share_pages(test, ALL_PAGES);
	for (i = 0; i < NR_PAGES; i++)
		faults += write_page(test, c->backward ? NR_PAGES - 1 - i : i);
	KUNIT_EXPECT_EQ(test, faults, c->faults);
	cowt_expect_region(test, ALL_PAGES);
	cowt_expect_counts(test, NR_PAGES - c->faults, COW_SKIP_NONE, 0);
	cowt_expect_anon_mapped(test, NR_PAGES);
}

/* Of the region, the pages @demand were written; a fault at @pos copies @want ahead. */
static void fault_beside(struct kunit *test, u64 demand, unsigned int pos, u64 want)
{
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, demand);
	cowt_note(test);
	cowt_write_fault(test, pos);
	cowt_expect_clean(test, want, true);
	cowt_expect_region(test, want | BIT_ULL(pos));
	cowt_expect_counts(test, hweight64(want), COW_SKIP_NONE, 0);
}

struct table_end_case {
	const char *desc;
	unsigned int pos;
	u64 demand;
	u64 want;
};

/* Page 32 is the first of a page table. */
static const struct table_end_case table_end_cases[] = {
	{ "first PTE", 32, PAGES(29, 31), BIT_ULL(33) },
	{ "second PTE", 33, PAGES(29, 32), BIT_ULL(34) },
	{ "last PTE", 31, PAGES(32, 34), BIT_ULL(30) },
	{ "last PTE but one", 30, PAGES(31, 34), BIT_ULL(29) },
};

KUNIT_ARRAY_PARAM_DESC(table_end, table_end_cases, desc);

/* The run goes on in the page table next to it: nothing is read beyond the end of one. */
static void adaptive_at_table_end(struct kunit *test)
{
	const struct table_end_case *c = test->param_value;
	struct fixture *f = test->priv;

	if ((f->base ^ (f->base + PMD_SIZE)) & PUD_MASK)
		kunit_skip(test, "the two page tables belong to different tables of PMDs");
	cowt_set_adaptive(test, COW_PRECOPY_MAX_PAGES, true);
	cowt_look_at(test, PTRS_PER_PTE - 32);
	fault_beside(test, c->demand, c->pos, c->want);
}

/* Nothing is copied ahead if the sysctl or the VMA forbids it, or for other faults. */
static void adaptive_switched_off(struct kunit *test)
{
	cowt_set_adaptive(test, WINDOW, true);
	static_branch_disable(&cow_precopy_key);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, PAGES(4, 31));
	cowt_note(test);
	cowt_write_fault(test, 32);
	cowt_expect_region(test, BIT_ULL(32));
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void adaptive_vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	cowt_set_adaptive(test, WINDOW, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, PAGES(4, 31));
	cowt_note(test);
	cowt_change_vma_flags(test, c->set, c->clear);
	cowt_write_fault(test, 32);
	cowt_expect_region(test, BIT_ULL(32));
	cowt_expect_counts(test, 0, c->why, 1);
	cowt_change_vma_flags(test, c->clear, c->set);
}

static void adaptive_no_plain_write(struct kunit *test)
{
	const struct flags_case *c = test->param_value;
	struct fixture *f = test->priv;
	unsigned int i;
	pte_t pte;

	cowt_set_adaptive(test, WINDOW, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, PAGES(4, 31));
	cowt_note(test);
	cowt_fault(test, 32, c->flags);
	lru_add_drain_all();
	pte = cowt_read_pte(test, current->mm, cowt_page_addr(test, 32));
	KUNIT_ASSERT_TRUE(test, pte_present(pte));
	KUNIT_EXPECT_PTR_NE(test, pte_page(pte), f->parent.pages[32].page);
	KUNIT_EXPECT_EQ(test, !!pte_write(pte), c->write);
	for (i = 0; i < NR_PAGES; i++) {
		if (i != 32)
			cowt_expect_unchanged(test, i);
	}
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/*
 * Windows below the fault, and on both sides: bounds, races, memory
 */

/* The VMA starts or ends in the middle of the window. */
struct edge_case {
	const char *desc;
	unsigned int pos;
	u64 demand;
	unsigned int cut;
	bool above;
	u64 want;
};

static const struct edge_case edge_cases[] = {
	{ "ends behind the fault", 33, PAGES(5, 32), 34, true, 0 },
	{ "ends a page later", 33, PAGES(5, 32), 35, true, BIT_ULL(34) },
	{ "ends two pages later", 33, PAGES(5, 32), 36, true, PAGES(34, 35) },
	{ "starts with the fault", 30, PAGES(31, 58), 30, false, 0 },
	{ "starts a page earlier", 30, PAGES(31, 58), 29, false, BIT_ULL(29) },
	{ "starts two pages earlier", 30, PAGES(31, 58), 28, false, PAGES(28, 29) },
};

KUNIT_ARRAY_PARAM_DESC(edge, edge_cases, desc);

/* Beyond the edge is another VMA, whose pages are shared, too. */
static void adaptive_vma_edge(struct kunit *test)
{
	const struct edge_case *c = test->param_value;
	struct fixture *f = test->priv;
	unsigned long edge = cowt_page_addr(test, c->cut);

	/* The region is in two VMAs. Split it before any page is touched. */
	if (c->above)
		cowt_map_fixed(test, edge, f->end - edge, MAP_NORESERVE);
	else
		cowt_map_fixed(test, f->base, edge - f->base, MAP_NORESERVE);
	cowt_set_adaptive(test, WINDOW, true);
	fault_beside(test, c->demand, c->pos, c->want);
}

/* Windows of the tests of races; ODD is in the middle of each. */
#define BELOW_FAULT	(ODD + 2)
#define BELOW		PAGES(ODD - 1, ODD + 1)
#define BELOW_DEMAND	PAGES(BELOW_FAULT + 1, BELOW_FAULT + 27)
/* Four written pages at odd distances, see NEAR_50 */
#define AROUND_FAULT	(ODD + 1)
#define AROUND_NEAR	(BIT_ULL(38) | BIT_ULL(42) | BIT_ULL(44) | BIT_ULL(46))
#define AROUND_DEMAND	(PAIRS(21) | PAGES(59, 62) | AROUND_NEAR)
#define AROUND		(PAGES(26, 43) & ~(BIT_ULL(AROUND_FAULT) | AROUND_NEAR))

static void share_for_window(struct kunit *test, u64 pages)
{
	cowt_set_adaptive(test, WINDOW, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, pages);
	cowt_note(test);
}

static void test_race(struct kunit *test, u64 written, unsigned int at,
		      u64 window)
{
	const struct race_case *c = test->param_value;
	struct fixture *f = test->priv;
	unsigned int nr = hweight64(window);

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_for_window(test, written);
	cowt_start_race(test, c->race);
	cowt_write_fault(test, at);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, nr + 1, nr);
	cowt_expect_clean(test, window, true);
	cowt_expect_region(test, (window | BIT_ULL(at)) & ~BIT_ULL(ODD));
	cowt_expect_counts(test, nr - 1, COW_SKIP_RACE, 1);
	if (c->undo)
		c->undo(test);
}

static void race_below(struct kunit *test)
{
	test_race(test, BELOW_DEMAND, BELOW_FAULT, BELOW);
}

static void race_around(struct kunit *test)
{
	cowt_need_demand(test);
	test_race(test, AROUND_DEMAND, AROUND_FAULT, AROUND);
}

/* A page that cannot be read, where the pages copied ahead lie below the fault. */
static const struct unreadable_case unreadable_cases[] = {
	{ "the first page", ODD - 1, 1 },
	{ "a page in the middle", ODD, 2 },
	{ "the page next to the fault", ODD + 1, 3 },
	{ "the faulting page, the last one", BELOW_FAULT, 4 },
};

KUNIT_ARRAY_PARAM_DESC(unreadable, unreadable_cases, desc);

static void unreadable_below(struct kunit *test)
{
	const struct unreadable_case *c = test->param_value;
	bool self = c->page == BELOW_FAULT;

	share_for_window(test, BELOW_DEMAND);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, cowt_alloc_stub);
	cowt_fault_unreadable(test, BELOW_FAULT, c);
	cowt_expect_copies(test, 4, 0);
	cowt_expect_region(test, self ? 0 : BIT_ULL(BELOW_FAULT));
	cowt_expect_counts(test, 0, COW_SKIP_SPECIAL, 3);
}

static void notifier_range_below(struct kunit *test)
{
	share_for_window(test, BELOW_DEMAND);
	cowt_watch_fault(test, BELOW_FAULT, ODD - 1, BELOW_FAULT, BELOW | BIT_ULL(BELOW_FAULT));
}

/* The range does not include pages below the fault that are skipped. */
static void notifier_range_below_is_no_wider(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_window(test, BELOW_DEMAND);
	cowt_unmap_page_of(test, f->parent.mm, ODD - 1);
	cowt_note(test);
	cowt_watch_fault(test, BELOW_FAULT, ODD, BELOW_FAULT, PAGES(ODD, BELOW_FAULT));
}

static void notifier_range_around(struct kunit *test)
{
	cowt_need_demand(test);
	share_for_window(test, AROUND_DEMAND);
	cowt_watch_fault(test, AROUND_FAULT, 26, 43, AROUND | BIT_ULL(AROUND_FAULT));
}

/* Return f->nr_bulk pages; the others are then allocated one by one. */
static unsigned int bulk_stub(gfp_t gfp, struct vm_area_struct *vma,
			      unsigned int nr, struct page **pages)
{
	struct fixture *f = kunit_get_current_test()->priv;
	unsigned int i;

	for (i = 0; i < min(nr, f->nr_bulk); i++) {
		struct folio *copy = cowt_alloc_stub(gfp, vma, 0);

		if (!copy)
			break;
		pages[i] = folio_page(copy, 0);
	}
	return i;
}

struct bulk_case {
	const char *desc;
	unsigned int bulk;
	bool no_more;
	unsigned int made;
	u64 want;
};

/* The window is BELOW. All pages are copied ahead, or none. */
static const struct bulk_case bulk_cases[] = {
	{ "none at once", 0, false, 4, BELOW },
	{ "one at once", 1, false, 4, BELOW },
	{ "all but one at once", 3, false, 4, BELOW },
	{ "all at once", 4, false, 4, BELOW },
	{ "none at all", 0, true, 0, 0 },
	{ "one", 1, true, 1, 0 },
	{ "all but one", 3, true, 3, 0 },
	{ "all at once, and no more", 4, true, 4, BELOW },
};

KUNIT_ARRAY_PARAM_DESC(bulk, bulk_cases, desc);

/* Each page that is allocated alone is for the right address. */
static struct folio *alloc_at_stub(gfp_t gfp, struct vm_area_struct *vma,
				   unsigned long addr)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	KUNIT_EXPECT_EQ(test, addr, cowt_page_addr(test, ODD - 1 + f->nr_copies));
	return cowt_alloc_stub(gfp, vma, addr);
}

static struct folio *none_stub(gfp_t gfp, struct vm_area_struct *vma,
			       unsigned long addr)
{
	return NULL;
}

static void bulk_allocation(struct kunit *test)
{
	const struct bulk_case *c = test->param_value;
	unsigned int nr = hweight64(c->want);
	struct fixture *f = test->priv;

	share_for_window(test, BELOW_DEMAND);
	f->nr_bulk = c->bulk;
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, bulk_stub);
	if (c->no_more)
		kunit_activate_static_stub(test, cow_precopy_alloc, none_stub);
	else
		kunit_activate_static_stub(test, cow_precopy_alloc, alloc_at_stub);
	cowt_write_fault(test, BELOW_FAULT);
	cowt_expect_copies(test, c->made, nr ? nr + 1 : 0);
	cowt_expect_clean(test, c->want, true);
	cowt_expect_region(test, c->want | BIT_ULL(BELOW_FAULT));
	if (!nr)
		cowt_expect_counts(test, 0, COW_SKIP_NOMEM, 3);
	else
		cowt_expect_counts(test, nr, COW_SKIP_NONE, 0);
	cowt_expect_anon_mapped(test, nr + 1);
}

/* With a memory policy, each page may belong on another node: no bulk allocation. */
static void bulk_memory_policy(struct kunit *test)
{
	struct vm_area_struct *vma = vma_lookup(current->mm, cowt_page_addr(test, 0));
	struct page *pages[3] = {};
	unsigned int nr;

	cowt_set_policy(test, true);
	nr = cow_precopy_alloc_bulk(COW_PRECOPY_GFP, vma, ARRAY_SIZE(pages), pages);
	cowt_set_policy(test, false);
	KUNIT_EXPECT_EQ(test, nr, 0);
	while (nr--)
		put_page(pages[nr]);
}

/* The copies are charged in one call. If that fails, none is mapped. */
static void adaptive_charge_fails(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_window(test, BELOW_DEMAND);
	f->nr_bulk = 4;
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_charge, cowt_no_charge_stub);
	cowt_write_fault(test, BELOW_FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_charges, 1);
	cowt_expect_copies(test, 4, 0);
	cowt_expect_region(test, BIT_ULL(BELOW_FAULT));
	cowt_expect_counts(test, 0, COW_SKIP_NOMEM, 3);
	cowt_expect_anon_mapped(test, 1);
}

/*
 * Reuse ahead. The run of written pages below the fault has 8 pages if the fault
 * reuses its page, and 32 if it copies it; both are enough for 4 pages ahead.
 */

#define REUSE_WINDOW	PAGES(FAULT + 1, FAULT + 4)

static u64 reuse_run(bool copies)
{
	return copies ? PAGES(0, 31) : PAGES(24, 31);
}

/* Pages that are not reused must not be marked exclusive. */
static void expect_not_exclusive(struct kunit *test, u64 pages)
{
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		struct page *page;

		if (!has_page(pages, i))
			continue;
		page = cowt_read_page(test, current->mm, i);
		if (page)
			KUNIT_EXPECT_FALSE_MSG(test, PageAnonExclusive(page),
					       "page %u is exclusive", i);
	}
}

static void test_reuse(struct kunit *test, bool hw_dirty, bool copies)
{
	const struct odd_case *c = test->param_value;
	bool left_out = c->reuse != COW_SKIP_NONE;
	u64 reused = REUSE_WINDOW, copied = 0;
	struct fixture *f = test->priv;
	unsigned int ahead;
	struct page *odd;
	bool exclusive;

	if (left_out || c->shared)
		reused &= ~BIT_ULL(ODD);
	cowt_set_adaptive(test, WINDOW, hw_dirty);
	cowt_share_odd(test, reuse_run(copies),
		       copies ? REUSE_WINDOW : REUSE_WINDOW | BIT_ULL(FAULT));
	odd = f->parent.pages[ODD].page;
	ahead = hweight64(reused);

	exclusive = odd && PageAnonExclusive(odd);
	cowt_write_fault(test, FAULT);
	if (copies)
		copied = BIT_ULL(FAULT);
	else
		reused |= BIT_ULL(FAULT);
	/* A page that is still shared is copied. */
	if (copies && c->shared)
		copied |= BIT_ULL(ODD);
	cowt_expect_clean(test, REUSE_WINDOW, hw_dirty);
	if (c->dirty)
		f->clean &= ~BIT_ULL(ODD);
	cowt_expect_region_reused(test, copied, reused);
	/* No fault was taken for this page, so it is not soft-dirty. */
	if (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && (reused & BIT_ULL(ODD)) && hw_dirty)
		KUNIT_EXPECT_FALSE(test, pte_soft_dirty(cowt_read_pte(test, current->mm,
								      cowt_page_addr(test, ODD))));
	if (!exclusive && !((copied | reused) & BIT_ULL(ODD)))
		expect_not_exclusive(test, BIT_ULL(ODD));
	if (!copies)
		cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
	else
		cowt_expect_counts(test, c->shared, c->reuse, left_out);
	cowt_expect_reuses(test, ahead, !copies);
	cowt_expect_anon_mapped(test, hweight64(copied));
	cowt_undo_odd(test);
}

/* The faulting page is no longer shared, so the fault reuses it. */
static void reuse_ahead(struct kunit *test)
{
	test_reuse(test, true, false);
}

static void reuse_ahead_no_hw_dirty(struct kunit *test)
{
	test_reuse(test, false, false);
}

/* The faulting page is copied. */
static void reuse_in_window(struct kunit *test)
{
	test_reuse(test, true, true);
}

/* Only the faulting page is made writable. */
static void expect_reuse_alone(struct kunit *test)
{
	struct fixture *f = test->priv;

	f->clean = 0;
	cowt_expect_region_reused(test, 0, BIT_ULL(FAULT));
	expect_not_exclusive(test, REUSE_WINDOW);
	cowt_expect_reuses(test, 0, true);
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void reuse_share(struct kunit *test)
{
	cowt_set_adaptive(test, WINDOW, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, reuse_run(false));
	cowt_take_from_child(test, REUSE_WINDOW | BIT_ULL(FAULT));
	cowt_note(test);
}

static pte_t make_old(pte_t pte)
{
	return pte_mkold(pte);
}

/* An old page stays old until it is used, if that takes no fault. */
static void test_reuse_of_old_page(struct kunit *test, bool hw_young)
{
	pte_t pte;

	reuse_share(test);
	cowt_set_hw_young(test, hw_young);
	cowt_change_pte(test, ODD, make_old);
	cowt_write_fault(test, FAULT);
	pte = cowt_read_pte(test, current->mm, cowt_page_addr(test, ODD));
	KUNIT_EXPECT_TRUE(test, pte_write(pte));
	KUNIT_EXPECT_EQ(test, !pte_young(pte), hw_young);
}

static void reuse_old_page(struct kunit *test)
{
	test_reuse_of_old_page(test, true);
}

static void reuse_old_page_no_hw_young(struct kunit *test)
{
	test_reuse_of_old_page(test, false);
}

/* As a fault does, for NUMA balancing: who used the page last may have been the child. */
static void reuse_forgets_last_cpu(struct kunit *test)
{
#ifdef CONFIG_NUMA_BALANCING
	int mode = sysctl_numa_balancing_mode;
	struct fixture *f = test->priv;
	struct folio *folio;

	reuse_share(test);
	folio = page_folio(f->parent.pages[ODD].page);
	folio_xchg_last_cpupid(folio, 1);
	sysctl_numa_balancing_mode = NUMA_BALANCING_NORMAL;
	cowt_write_fault(test, FAULT);
	sysctl_numa_balancing_mode = mode;
	KUNIT_EXPECT_EQ(test, folio_last_cpupid(folio), (1 << LAST_CPUPID_SHIFT) - 1);
	cowt_expect_clean(test, REUSE_WINDOW, true);
	cowt_expect_region_reused(test, 0, REUSE_WINDOW | BIT_ULL(FAULT));
#else
	kunit_skip(test, "no NUMA balancing in this configuration");
#endif
}

/* A page of the child's anon_vma becomes the parent's, as in wp_can_reuse_anon_folio(). */
static void reuse_takes_anon_vma(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct vm_area_struct *vma, *child;
	struct folio *folio;

	reuse_share(test);
	folio = page_folio(f->parent.pages[ODD].page);
	vma = vma_lookup(current->mm, cowt_page_addr(test, ODD));
	child = vma_lookup(f->child.mm, cowt_page_addr(test, ODD));
	KUNIT_ASSERT_PTR_NE(test, child->anon_vma, vma->anon_vma);
	folio_lock(folio);
	folio_move_anon_rmap(folio, child);
	folio_unlock(folio);
	cowt_write_fault(test, FAULT);
	KUNIT_EXPECT_PTR_EQ(test, folio_anon_vma(folio), vma->anon_vma);
	cowt_expect_clean(test, REUSE_WINDOW, true);
	cowt_expect_region_reused(test, 0, REUSE_WINDOW | BIT_ULL(FAULT));
}

static void reuse_vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	reuse_share(test);
	cowt_change_vma_flags(test, c->set, c->clear);
	cowt_write_fault(test, FAULT);
	expect_reuse_alone(test);
	cowt_change_vma_flags(test, c->clear, c->set);
}

/* A debugger writes to a read-only mapping. */
static void reuse_vma_read_only(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	reuse_share(test);
	cowt_change_vma_flags(test, 0, VM_WRITE);
	cowt_write_fault(test, FAULT);
	lru_add_drain_all();
	for (i = 0; i < NR_PAGES; i++) {
		if (i != FAULT)
			cowt_expect_less(test, &f->parent, i, 0, 0);
	}
	expect_not_exclusive(test, REUSE_WINDOW);
	cowt_expect_reuses(test, 0, true);
	cowt_change_vma_flags(test, VM_WRITE, 0);
}

static void reuse_fixed_window(struct kunit *test)
{
	reuse_share(test);
	cowt_set_window(WINDOW);
	cowt_write_fault(test, FAULT);
	expect_reuse_alone(test);
}

static void reuse_switched_off(struct kunit *test)
{
	reuse_share(test);
	static_branch_disable(&cow_precopy_key);
	cowt_write_fault(test, FAULT);
	expect_reuse_alone(test);
}

/* Without a run of written pages, nothing is reused ahead. */
static void reuse_lone_write(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	cowt_set_adaptive(test, WINDOW, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	for (i = 0; i < NR_PAGES; i++)
		cowt_unmap_page_of(test, f->child.mm, i);
	cowt_note(test);
	cowt_write_fault(test, FAULT);
	expect_reuse_alone(test);
}

static void reuse_no_plain_write(struct kunit *test)
{
	const struct flags_case *c = test->param_value;
	unsigned int i;

	reuse_share(test);
	cowt_fault(test, FAULT, c->flags);
	lru_add_drain_all();
	for (i = 0; i < NR_PAGES; i++) {
		if (i != FAULT)
			cowt_expect_unchanged(test, i);
	}
	expect_not_exclusive(test, REUSE_WINDOW);
	cowt_expect_reuses(test, 0, c->write);
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/* Reuse works downward, too, and for many pages at once. */
static void reuse_backward(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	cowt_set_adaptive(test, WINDOW, false);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, PAGES(32, 63));
	for (i = 0; i < 32; i++)
		cowt_unmap_page_of(test, f->child.mm, i);
	cowt_note(test);
	cowt_write_fault(test, 31);
	cowt_expect_region_reused(test, 0, PAGES(0, 31));
	cowt_expect_reuses(test, 31, true);
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/* Two page tables, each in a page of its own, between two pages that look like them */
struct two_tables {
	struct vm_area_struct vma;
	pmd_t pmds[2];
	pte_t *ptes;
};

#define PTES_PER_PAGE	(PAGE_SIZE / sizeof(pte_t))

static struct two_tables *new_two_tables(struct kunit *test)
{
	struct two_tables *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);
	unsigned int i;
	pte_t written;

	KUNIT_ASSERT_NOT_NULL(test, t);
	t->ptes = kunit_kzalloc(test, 4 * PAGE_SIZE, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, t->ptes);
	t->vma.vm_end = 3 * PUD_SIZE;
	written = pte_mkdirty(mk_pte(virt_to_page(t->ptes), vm_get_page_prot(VM_READ)));
	written = pte_mkwrite_novma(pte_mksoft_dirty(written));
	for (i = 0; i < 4 * PTES_PER_PAGE; i++)
		set_pte(t->ptes + i, written);
	for (i = 0; i < 2; i++)
		pmd_populate(current->mm, &t->pmds[i],
			     virt_to_page(t->ptes + (i + 1) * PTES_PER_PAGE));
	return t;
}

/* How far the run goes from the first or last PTE of a table into the other one */
static unsigned int run_from(struct two_tables *t, unsigned int table, int step)
{
	unsigned int index = step > 0 ? PTRS_PER_PTE - 1 : 0;
	struct vm_fault vmf = {
		.vma = &t->vma,
		.address = 2 * PUD_SIZE + table * PMD_SIZE + index * PAGE_SIZE,
		.pmd = &t->pmds[table],
		.pte = t->ptes + (table + 1) * PTES_PER_PAGE + index,
	};

	return cow_run(&vmf, step, 3 * PTRS_PER_PTE, true, 0);
}

/* Where tables are smaller than a page, there are others around the next one. */
static void run_ends_with_table(struct kunit *test)
{
	struct two_tables *t;

	if (__is_defined(__PAGETABLE_PMD_FOLDED))
		kunit_skip(test, "a run ends with the page table in this configuration");
	t = new_two_tables(test);
	KUNIT_EXPECT_EQ(test, run_from(t, 0, 1), PTRS_PER_PTE);
	KUNIT_EXPECT_EQ(test, run_from(t, 1, -1), PTRS_PER_PTE);
}

static struct kunit_case cow_adaptive_cases[] = {
	KUNIT_CASE_PARAM(chooses, adaptive_gen_params),
	KUNIT_CASE_PARAM(chooses_no_hw_dirty, adaptive_gen_params),
	KUNIT_CASE_PARAM(adaptive_walk, walk_gen_params),
	KUNIT_CASE_PARAM(adaptive_at_table_end, table_end_gen_params),
	KUNIT_CASE(adaptive_switched_off),
	KUNIT_CASE_PARAM(adaptive_vma_refuses, refused_gen_params),
	KUNIT_CASE_PARAM(adaptive_no_plain_write, flags_gen_params),
	KUNIT_CASE_PARAM(adaptive_vma_edge, edge_gen_params),
	KUNIT_CASE(run_ends_with_table),
	KUNIT_CASE_PARAM(race_below, race_gen_params),
	KUNIT_CASE_PARAM(race_around, race_gen_params),
	KUNIT_CASE_PARAM(unreadable_below, unreadable_gen_params),
	KUNIT_CASE(notifier_range_below),
	KUNIT_CASE(notifier_range_below_is_no_wider),
	KUNIT_CASE(notifier_range_around),
	KUNIT_CASE_PARAM(bulk_allocation, bulk_gen_params),
	KUNIT_CASE_PARAM(bulk_memory_policy, policy_gen_params),
	KUNIT_CASE(adaptive_charge_fails),
	KUNIT_CASE_PARAM(reuse_ahead, odd_gen_params),
	KUNIT_CASE_PARAM(reuse_ahead_no_hw_dirty, odd_gen_params),
	KUNIT_CASE_PARAM(reuse_in_window, odd_gen_params),
	KUNIT_CASE(reuse_old_page),
	KUNIT_CASE(reuse_old_page_no_hw_young),
	KUNIT_CASE(reuse_forgets_last_cpu),
	KUNIT_CASE(reuse_takes_anon_vma),
	KUNIT_CASE_PARAM(reuse_vma_refuses, refused_gen_params),
	KUNIT_CASE(reuse_vma_read_only),
	KUNIT_CASE(reuse_fixed_window),
	KUNIT_CASE(reuse_switched_off),
	KUNIT_CASE(reuse_lone_write),
	KUNIT_CASE_PARAM(reuse_no_plain_write, flags_gen_params),
	KUNIT_CASE(reuse_backward),
	{}
};

static struct kunit_suite cow_adaptive_suite = {
	.name = "cow_adaptive",
	.init = cowt_init,
	.exit = cowt_exit,
	.suite_exit = cowt_suite_exit,
	.test_cases = cow_adaptive_cases,
};

kunit_test_suite(cow_adaptive_suite);

MODULE_DESCRIPTION("Tests of copy-on-write faults that choose what to copy ahead");
MODULE_LICENSE("GPL");
