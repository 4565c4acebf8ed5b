// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of copy-on-write faults that copy a block of pages into one large
 * folio.
 */
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/kprobes.h>
#include <linux/memcontrol.h>
#include <linux/mm_inline.h>
#include <linux/mman.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/swap.h>
#include <linux/swapops.h>

#include "../internal.h"
#include "cow_kunit.h"

KUNIT_ARRAY_PARAM_DESC(odd, cowt_odd_cases, desc);
KUNIT_ARRAY_PARAM_DESC(refused, cowt_refused_cases, desc);
KUNIT_ARRAY_PARAM_DESC(race, cowt_race_cases, desc);
KUNIT_ARRAY_PARAM_DESC(policy, cowt_policy_cases, desc);

/*
 * A whole block of small pages is copied into one large folio. With
 * MADV_SEQUENTIAL, the window extends to the end of the block.
 */

#define FOLIO_ORDER	4
#define FOLIO_PAGES	BIT(FOLIO_ORDER)
#define FOLIO		PAGES(FAULT, FAULT + FOLIO_PAGES - 1)

#ifdef CONFIG_TRANSPARENT_HUGEPAGE
static void read_thp_settings(struct thp_settings *thp)
{
	thp->flags = READ_ONCE(transparent_hugepage_flags);
	thp->always = READ_ONCE(huge_anon_orders_always);
	thp->madvise = READ_ONCE(huge_anon_orders_madvise);
	thp->inherit = READ_ONCE(huge_anon_orders_inherit);
}

static void set_thp_settings(const struct thp_settings *thp)
{
	WRITE_ONCE(transparent_hugepage_flags, thp->flags);
	WRITE_ONCE(huge_anon_orders_always, thp->always);
	WRITE_ONCE(huge_anon_orders_madvise, thp->madvise);
	WRITE_ONCE(huge_anon_orders_inherit, thp->inherit);
}

static long read_mthp(unsigned int order, enum mthp_stat_item item)
{
	long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += per_cpu(mthp_stats, cpu).stats[order][item];
	return sum;
}

/* Like prctl(PR_SET_THP_DISABLE) */
static void disable_thp(void)
{
#ifdef MMF_DISABLE_THP_COMPLETELY
	mm_flags_set(MMF_DISABLE_THP_COMPLETELY, current->mm);
#else
	set_bit(MMF_DISABLE_THP, &current->mm->flags);
#endif
}
#else
static void read_thp_settings(struct thp_settings *thp)
{
}

static void set_thp_settings(const struct thp_settings *thp)
{
}

static long read_mthp(unsigned int order, enum mthp_stat_item item)
{
	return 0;
}

static void disable_thp(void)
{
}
#endif

static void restore_thp(void *thp)
{
	set_thp_settings(thp);
}

/* All sizes but that of a PMD: khugepaged must not collapse the region during a test. */
#define SMALL_ORDERS	(THP_ORDERS_ALL_ANON & ~BIT(PMD_ORDER))

/* Allow all sizes that the tests use. */
static int cow_folio_test_init(struct kunit *test)
{
	static const struct thp_settings all = { .always = SMALL_ORDERS };
	struct fixture *f;
	int ret;

	if (!IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE))
		kunit_skip(test, "no large folios in this configuration");
	ret = cowt_init(test);
	if (ret)
		return ret;
	f = test->priv;
	read_thp_settings(&f->thp);
	KUNIT_ASSERT_EQ(test, kunit_add_action(test, restore_thp, &f->thp), 0);
	set_thp_settings(&all);
	return 0;
}

/* From now on, the VMA allows large folios. */
static void want_folio(struct kunit *test)
{
	cowt_change_vma_flags(test, VM_SEQ_READ, VM_NOHUGEPAGE);
	cowt_note(test);
}

static void share_for_folio(struct kunit *test)
{
	cowt_set_adaptive(test, FOLIO_PAGES - 1, true);
	cowt_share_pages(test, ALL_PAGES);
	want_folio(test);
}

/* The pages @copied are in small folios; the PTEs of @clean are clean. */
static void expect_pages_clean(struct kunit *test, u64 copied, u64 clean)
{
	cowt_expect_clean(test, clean, true);
	cowt_expect_region(test, copied);
	cowt_expect_counts(test, hweight64(copied) - 1, COW_SKIP_NONE, 0);
	cowt_expect_anon_mapped(test, hweight64(copied));
}

/* A fault at @at copied the pages @copied into small folios. */
static void expect_pages(struct kunit *test, unsigned int at, u64 copied)
{
	expect_pages_clean(test, copied, copied & ~BIT_ULL(at));
}

/* A fault at @at copied the pages @copied into one large folio. */
static void expect_folio(struct kunit *test, unsigned int at, u64 copied)
{
	struct fixture *f = test->priv;

	f->large = copied;
	expect_pages(test, at, copied);
	/* This page is in use already. */
	KUNIT_EXPECT_TRUE(test, pte_young(cowt_read_pte(test, current->mm,
							cowt_page_addr(test, at))));
}

static struct folio *folio_at(struct kunit *test, unsigned int i)
{
	struct page *page = cowt_read_page(test, current->mm, i);

	KUNIT_ASSERT_NOT_NULL(test, page);
	return page_folio(page);
}

/* Copy the pages FOLIO, and return the large folio that they are in now. */
static struct folio *make_folio(struct kunit *test)
{
	struct folio *folio;

	share_for_folio(test);
	cowt_write_fault(test, FAULT);
	lru_add_drain_all();
	folio = folio_at(test, FAULT);
	KUNIT_ASSERT_EQ(test, folio_nr_pages(folio), FOLIO_PAGES);
	return folio;
}

struct order_case {
	const char *desc;
	unsigned int order;
};

static const struct order_case order_cases[] = {
	{ "4 pages", 2 },
	{ "8 pages", 3 },
	{ "16 pages, the largest", 4 },
};

KUNIT_ARRAY_PARAM_DESC(order, order_cases, desc);

static void folio_sizes(struct kunit *test)
{
	const struct order_case *c = test->param_value;
	unsigned int nr = 1 << c->order;
	long allocated, mapped;

	cowt_set_adaptive(test, nr - 1, true);
	cowt_share_pages(test, ALL_PAGES);
	want_folio(test);
	allocated = read_mthp(c->order, MTHP_STAT_ANON_FAULT_ALLOC);
	mapped = read_mthp(c->order, MTHP_STAT_NR_ANON);
	cowt_write_fault(test, FAULT);
	expect_folio(test, FAULT, PAGES(FAULT, FAULT + nr - 1));
	KUNIT_EXPECT_EQ(test, read_mthp(c->order, MTHP_STAT_ANON_FAULT_ALLOC),
			allocated + 1);
	KUNIT_EXPECT_EQ(test, read_mthp(c->order, MTHP_STAT_NR_ANON), mapped + 1);
	KUNIT_EXPECT_TRUE(test, list_empty(&folio_at(test, FAULT)->_deferred_list));
}

/*
 * Which folios are allowed
 */

#define THP_ALWAYS	BIT(TRANSPARENT_HUGEPAGE_FLAG)
#define THP_MADVISE	BIT(TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG)
#define OTHER_ORDERS	(SMALL_ORDERS & ~BIT(FOLIO_ORDER))

/**
 * struct allowed_case - settings that allow a folio of 16 pages, or do not
 * @desc: description
 * @thp: the settings of transparent huge pages
 * @set: flags of the VMA
 * @disabled: transparent huge pages are disabled by prctl()
 * @large: a large folio is expected
 */
struct allowed_case {
	const char *desc;
	struct thp_settings thp;
	vm_flags_t set;
	bool disabled;
	bool large;
};

static const struct allowed_case allowed_cases[] = {
	{
		.desc = "this size only",
		.thp = { .always = BIT(FOLIO_ORDER) },
		.large = true,
	}, {
		.desc = "all sizes but this",
		.thp = { THP_ALWAYS, OTHER_ORDERS, OTHER_ORDERS, OTHER_ORDERS },
		.set = VM_HUGEPAGE,
	}, {
		.desc = "none",
		.thp = { THP_ALWAYS },
		.set = VM_HUGEPAGE,
	}, {
		.desc = "after MADV_HUGEPAGE, which was given",
		.thp = { .madvise = BIT(FOLIO_ORDER) },
		.set = VM_HUGEPAGE,
		.large = true,
	}, {
		.desc = "after MADV_HUGEPAGE, which was not given",
		.thp = { THP_ALWAYS, .madvise = BIT(FOLIO_ORDER) },
	}, {
		.desc = "as for all sizes: always",
		.thp = { THP_ALWAYS, .inherit = BIT(FOLIO_ORDER) },
		.large = true,
	}, {
		.desc = "as for all sizes: after MADV_HUGEPAGE, which was given",
		.thp = { THP_MADVISE, .inherit = BIT(FOLIO_ORDER) },
		.set = VM_HUGEPAGE,
		.large = true,
	}, {
		.desc = "as for all sizes: after MADV_HUGEPAGE, which was not given",
		.thp = { THP_MADVISE, .inherit = BIT(FOLIO_ORDER) },
	}, {
		.desc = "as for all sizes: never",
		.thp = { .inherit = BIT(FOLIO_ORDER) },
		.set = VM_HUGEPAGE,
	}, {
		.desc = "MADV_NOHUGEPAGE",
		.thp = { THP_ALWAYS, BIT(FOLIO_ORDER) },
		.set = VM_NOHUGEPAGE,
	}, {
		.desc = "disabled by prctl()",
		.thp = { THP_ALWAYS, BIT(FOLIO_ORDER) },
		.disabled = true,
	}, {
		.desc = "not supported by hardware",
		.thp = { BIT(TRANSPARENT_HUGEPAGE_UNSUPPORTED), BIT(FOLIO_ORDER) },
	},
};

KUNIT_ARRAY_PARAM_DESC(allowed, allowed_cases, desc);

static void folio_allowed(struct kunit *test)
{
	const struct allowed_case *c = test->param_value;

	share_for_folio(test);
	set_thp_settings(&c->thp);
	cowt_change_vma_flags(test, c->set, 0);
	if (c->disabled)
		disable_thp();
	cowt_write_fault(test, FAULT);
	if (c->large)
		expect_folio(test, FAULT, FOLIO);
	else
		expect_pages(test, FAULT, FOLIO);
}

static vm_fault_t no_huge_fault(struct vm_fault *vmf, unsigned int order)
{
	return VM_FAULT_FALLBACK;
}

/*
 * The file's mapping allows large folios, but private copies of its pages are
 * anonymous memory, for which no size is enabled.
 */
static void folio_private_file(struct kunit *test)
{
	static const struct thp_settings files = { .flags = THP_ALWAYS };
	static const struct vm_operations_struct ops = {
		.huge_fault = no_huge_fault,
	};
	const struct vm_operations_struct *old;
	struct vm_area_struct *vma;

	cowt_map_file(test);
	vma = vma_lookup(current->mm, cowt_page_addr(test, 0));
	old = vma->vm_ops;
	share_for_folio(test);
	set_thp_settings(&files);
	vma->vm_ops = &ops;
	cowt_write_fault(test, FAULT);
	vma->vm_ops = old;
	expect_pages(test, FAULT, FOLIO);
}

/*
 * Which windows are a block
 */

/**
 * struct block_case - pages that were written, and pages that a fault copies
 * @desc: description
 * @pos: page of the fault
 * @demand: pages that were copied by faults of their own
 * @unused: pages that were copied ahead and not written to
 * @want: the pages that are copied ahead
 * @large: they are copied into one large folio
 */
struct block_case {
	const char *desc;
	unsigned int pos;
	u64 demand;
	u64 unused;
	u64 want;
	bool large;
};

static const struct block_case block_cases[] = {
	{ "behind a run", 32, PAGES(8, 31), 0, PAGES(33, 35), true },
	{ "in front of a run", 31, PAGES(32, 55), 0, PAGES(28, 30), true },
	{ "behind a run, not aligned", 33, PAGES(9, 32), 0, PAGES(34, 36) },
	{ "in front of a run, not aligned", 30, PAGES(31, 54), 0, PAGES(27, 29) },
	{ "behind a run, 6 pages", 40, PAGES(0, 39), 0, PAGES(41, 45) },
	{ "behind a run, 2 pages", 32, PAGES(29, 31), 0, BIT_ULL(33) },
	{
		"behind dense pages",
		32, PAGES(0, 1) | PAGES(3, 8) | (PAGES(16, 31) & ~BIT_ULL(21)),
		BIT_ULL(21), PAGES(33, 47), true,
	}, {
		"in front of dense pages",
		31, PAGES(48, 55) | (PAGES(32, 47) & ~BIT_ULL(42)), BIT_ULL(42),
		PAGES(16, 30), true,
	},
};

KUNIT_ARRAY_PARAM_DESC(block, block_cases, desc);

static void folio_window(struct kunit *test)
{
	const struct block_case *c = test->param_value;

	if (c->unused)
		cowt_need_demand(test);
	cowt_set_adaptive(test, FOLIO_PAGES - 1, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, c->demand);
	cowt_copied_ahead(test, c->unused, false);
	cowt_change_vma_flags(test, 0, VM_NOHUGEPAGE);
	cowt_note(test);
	cowt_write_fault(test, c->pos);
	if (c->large)
		expect_folio(test, c->pos, c->want | BIT_ULL(c->pos));
	else
		expect_pages(test, c->pos, c->want | BIT_ULL(c->pos));
}

/* One page of the block is unmapped: the fault does not even try a large folio. */
static void folio_window_with_a_hole(struct kunit *test)
{
	cowt_set_adaptive(test, FOLIO_PAGES - 1, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, PAGES(0, FAULT - 1));
	cowt_odd_zap(test);
	cowt_change_vma_flags(test, 0, VM_NOHUGEPAGE);
	cowt_note(test);
	cowt_watch_fault(test, FAULT, FAULT, FAULT + 4,
			 PAGES(FAULT, FAULT + 4) & ~BIT_ULL(ODD));
}

/**
 * struct border_case - where the VMA or the page table ends
 * @desc: description
 * @first: the first page of the region
 * @pos: page of the fault
 * @cut: the page where the VMA ends; 0 if it ends beyond the region
 * @nr: number of pages that are copied
 * @large: they are copied into one large folio
 */
struct border_case {
	const char *desc;
	unsigned long first;
	unsigned int pos;
	unsigned int cut;
	unsigned int nr;
	bool large;
};

static const struct border_case border_cases[] = {
	{ "the VMA begins with the block", 0, 0, 0, 16, true },
	{ "the VMA ends with the block", FIRST, 32, 48, 16, true },
	{ "the VMA ends a page earlier", FIRST, 32, 47, 15 },
	{ "the VMA ends in the middle of the block", FIRST, 32, 40, 8, true },
	{ "the VMA ends after 3 pages", FIRST, 32, 35, 3 },
	{ "last block of a page table", PTRS_PER_PTE - NR_PAGES, 48, 0, 16, true },
	{ "first block of a page table", PTRS_PER_PTE, 0, 0, 16, true },
};

KUNIT_ARRAY_PARAM_DESC(border, border_cases, desc);

/* Above the end of the VMA is another one, whose pages are shared, too. */
static void folio_bounds(struct kunit *test)
{
	const struct border_case *c = test->param_value;
	u64 copied = PAGES(c->pos, c->pos + c->nr - 1);
	struct fixture *f = test->priv;

	cowt_look_at(test, c->first);
	if (c->cut)
		cowt_map_fixed(test, cowt_page_addr(test, c->cut),
			       f->end - cowt_page_addr(test, c->cut), MAP_NORESERVE);
	share_for_folio(test);
	cowt_write_fault(test, c->pos);
	if (c->large)
		expect_folio(test, c->pos, copied);
	else
		expect_pages(test, c->pos, copied);
}

static void folio_no_hw_dirty(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	kunit_deactivate_static_stub(test, cow_precopy_hw_dirty);
	cowt_set_hw_dirty(test, false);
	cowt_write_fault(test, FAULT);
	f->large = FOLIO;
	cowt_expect_region(test, FOLIO);
	cowt_expect_counts(test, FOLIO_PAGES - 1, COW_SKIP_NONE, 0);
}

/* A fixed window uses small folios, even where large ones are enabled. */
static void folio_fixed_window(struct kunit *test)
{
	share_for_folio(test);
	cowt_set_window(FOLIO_PAGES - 1);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, FOLIO);
	cowt_expect_counts(test, FOLIO_PAGES - 1, COW_SKIP_NONE, 0);
}

/* If one page must be skipped, the others are copied into small folios. */
static void folio_odd_neighbour(struct kunit *test)
{
	const struct odd_case *c = test->param_value;
	bool left_out = c->copy != COW_SKIP_NONE;
	struct fixture *f = test->priv;
	u64 copied = FOLIO, reused = 0;

	cowt_set_adaptive(test, FOLIO_PAGES - 1, true);
	cowt_share_odd(test, 0, 0);
	want_folio(test);
	cowt_write_fault(test, FAULT);
	if (left_out)
		copied &= ~BIT_ULL(ODD);
	else
		f->large = FOLIO;
	/* A page that is not shared is made writable, and stays as dirty as it was. */
	if (c->copy == COW_SKIP_EXCLUSIVE && c->reuse == COW_SKIP_NONE) {
		reused = BIT_ULL(ODD);
		left_out = false;
	}
	cowt_expect_clean(test, copied & ~BIT_ULL(FAULT), true);
	cowt_expect_region_reused(test, copied, reused);
	cowt_expect_counts(test, hweight64(copied) - 1,
			   left_out ? c->copy : COW_SKIP_NONE, left_out);
	cowt_expect_reuses(test, hweight64(reused), false);
	cowt_undo_odd(test);
}

static void folio_vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_for_folio(test);
	cowt_change_vma_flags(test, c->set, c->clear);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, BIT_ULL(FAULT));
	cowt_expect_counts(test, 0, c->why, 1);
	cowt_change_vma_flags(test, c->clear, c->set);
}

/*
 * Races: a page of the block changed. The folio is of no use, and the faulting
 * page is copied alone.
 */

/* @lost: pages that another thread copied first */
static void expect_lost_race(struct kunit *test, unsigned int at,
			     u64 window, u64 lost)
{
	struct fixture *f = test->priv;

	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, 0, 0);
	cowt_expect_region(test, BIT_ULL(at) & ~lost);
	cowt_expect_counts(test, 0, COW_SKIP_RACE, hweight64(window));
}

static void folio_race(struct kunit *test)
{
	const struct race_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_for_folio(test);
	cowt_start_race(test, c->race);
	cowt_write_fault(test, FAULT);
	expect_lost_race(test, FAULT, FOLIO & ~BIT_ULL(FAULT), BIT_ULL(ODD));
	if (c->undo)
		c->undo(test);
}

static void race_write_first_page(struct kunit *test)
{
	cowt_write_locked(test, FAULT - 4);
	cowt_note_race(test, FAULT - 4, 1);
}

static void folio_race_on_first_page(struct kunit *test)
{
	cowt_set_adaptive(test, FOLIO_PAGES - 1, true);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_demand(test, PAGES(FAULT, FAULT + 23));
	cowt_change_vma_flags(test, 0, VM_NOHUGEPAGE);
	cowt_note(test);
	cowt_start_race(test, race_write_first_page);
	cowt_write_fault(test, FAULT - 1);
	expect_lost_race(test, FAULT - 1, PAGES(FAULT - 4, FAULT - 2), BIT_ULL(FAULT - 4));
}

static void race_write_last_page(struct kunit *test)
{
	cowt_write_locked(test, FAULT + FOLIO_PAGES - 1);
	cowt_note_race(test, FAULT + FOLIO_PAGES - 1, 1);
}

static void folio_race_on_last_page(struct kunit *test)
{
	share_for_folio(test);
	cowt_start_race(test, race_write_last_page);
	cowt_write_fault(test, FAULT);
	expect_lost_race(test, FAULT, FOLIO & ~BIT_ULL(FAULT),
			 BIT_ULL(FAULT + FOLIO_PAGES - 1));
}

/* Another thread handled the same fault first. */
static void folio_race_on_fault_page(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	cowt_start_race(test, cowt_race_write_fault_page);
	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, 0, 0);
	cowt_expect_region(test, 0);
	cowt_expect_counts(test, 0, COW_SKIP_RACE, FOLIO_PAGES - 1);
}

/* The folio is mapped, and the old page is freed. */
static void folio_race_with_child(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	cowt_start_race(test, cowt_race_unmap_in_child);
	f->large = FOLIO;
	cowt_expect_clean(test, FOLIO & ~BIT_ULL(FAULT), true);
	cowt_test_race_with_child(test, FOLIO, 0);
}

/*
 * Memory is short
 */

static struct folio *no_folio_stub(gfp_t gfp, unsigned int order)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	f->nr_folios++;
	KUNIT_EXPECT_EQ(test, order, FOLIO_ORDER);
	cowt_expect_gfp(test, gfp);
	return NULL;
}

/* The allocation fails, so the pages are copied into small folios. */
static void folio_no_block_left(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	kunit_activate_static_stub(test, cow_folio_try_alloc, no_folio_stub);
	cowt_write_fault(test, FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_folios, 1);
	expect_pages(test, FAULT, FOLIO);
}

/* Keep a reference, to check later that the fault dropped its own. */
static struct folio *folio_stub(gfp_t gfp, unsigned int order)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	if (f->nr_folios++) {
		KUNIT_FAIL(test, "a second folio was asked for");
		return NULL;
	}
	f->folio = folio_alloc(gfp, order);
	if (!f->folio) {
		KUNIT_FAIL(test, "no memory for a folio");
		return NULL;
	}
	folio_get(f->folio);
	return f->folio;
}

static void race_after_folio_alloc(struct kunit *test)
{
	struct fixture *f = test->priv;

	KUNIT_EXPECT_NOT_NULL(test, f->folio);
	cowt_race_write(test);
}

/* A folio that lost the race is freed. */
static void folio_lost_race_is_freed(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	cowt_start_race(test, race_after_folio_alloc);
	kunit_activate_static_stub(test, cow_folio_try_alloc, folio_stub);
	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_NOT_NULL(test, f->folio);
	KUNIT_EXPECT_FALSE(test, folio_mapped(f->folio));
	KUNIT_EXPECT_EQ(test, folio_ref_count(f->folio), 1);
	folio_put(f->folio);
	expect_lost_race(test, FAULT, FOLIO & ~BIT_ULL(FAULT), BIT_ULL(ODD));
}

/* A page that cannot be read: the folio is freed, and nothing is read twice. */
static const struct unreadable_case unreadable_cases[] = {
	{ "the faulting page, the first one", FAULT, 1 },
	{ "a page in the middle", ODD, ODD - FAULT + 1 },
	{ "the last page", FAULT + FOLIO_PAGES - 1, FOLIO_PAGES },
};

KUNIT_ARRAY_PARAM_DESC(unreadable, unreadable_cases, desc);

static void folio_unreadable_page(struct kunit *test)
{
	const struct unreadable_case *c = test->param_value;
	bool self = c->page == FAULT;
	struct fixture *f = test->priv;

	share_for_folio(test);
	kunit_activate_static_stub(test, cow_folio_try_alloc, folio_stub);
	cowt_fault_unreadable(test, FAULT, c);
	KUNIT_ASSERT_NOT_NULL(test, f->folio);
	KUNIT_EXPECT_FALSE(test, folio_mapped(f->folio));
	KUNIT_EXPECT_EQ(test, folio_ref_count(f->folio), 1);
	folio_put(f->folio);
	cowt_expect_region(test, self ? 0 : BIT_ULL(FAULT));
	cowt_expect_counts(test, 0, COW_SKIP_SPECIAL, FOLIO_PAGES - 1);
}

/* With a memory policy, each page may belong on another node. */
static void folio_memory_policy(struct kunit *test)
{
	share_for_folio(test);
	cowt_set_policy(test, true);
	cowt_write_fault(test, FAULT);
	cowt_set_policy(test, false);
	expect_pages(test, FAULT, FOLIO);
}

/* Asked before a large folio is allocated. */
static bool folio_no_room_stub(struct vm_area_struct *vma, unsigned int order,
			       unsigned int nr)
{
	struct kunit *test = kunit_get_current_test();

	KUNIT_EXPECT_EQ_MSG(test, order ? nr + BIT(order) : nr, FOLIO_PAGES,
			    "pages that room is asked for");
	return false;
}

static void folio_no_room(struct kunit *test)
{
	share_for_folio(test);
	kunit_activate_static_stub(test, cow_precopy_has_room, folio_no_room_stub);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, BIT_ULL(FAULT));
	cowt_expect_counts(test, 0, COW_SKIP_NOMEM, FOLIO_PAGES - 1);
}

static void folio_notifier_range(struct kunit *test)
{
	share_for_folio(test);
	cowt_watch_fault(test, FAULT, FAULT, FAULT + FOLIO_PAGES - 1, FOLIO);
}

/*
 * The state of the folio after the fault
 */

static void folio_locked_memory(struct kunit *test)
{
	share_for_folio(test);
	cowt_change_vma_flags(test, VM_LOCKED, 0);
	cowt_write_fault(test, FAULT);
	expect_folio(test, FAULT, FOLIO);
	KUNIT_EXPECT_TRUE(test, folio_test_mlocked(folio_at(test, FAULT)));
	KUNIT_EXPECT_TRUE(test, folio_test_unevictable(folio_at(test, FAULT)));
	cowt_change_vma_flags(test, 0, VM_LOCKED);
}

struct mappings {
	struct mm_struct *mm;
	unsigned int mine;
	unsigned int others;
};

static bool count_mappings(struct folio *folio, struct vm_area_struct *vma,
			   unsigned long addr, void *arg)
{
	DEFINE_FOLIO_VMA_WALK(pvmw, folio, vma, addr, 0);
	struct mappings *m = arg;

	while (page_vma_mapped_walk(&pvmw)) {
		if (vma->vm_mm == m->mm)
			m->mine++;
		else
			m->others++;
	}
	return true;
}

static void folio_is_in_the_rmap(struct kunit *test)
{
	struct folio *folio = make_folio(test);
	struct mappings m = { .mm = current->mm };
	struct rmap_walk_control rwc = {
		.rmap_one = count_mappings,
		.arg = &m,
	};

	folio_lock(folio);
	rmap_walk(folio, &rwc);
	folio_unlock(folio);
	KUNIT_EXPECT_EQ(test, m.mine, FOLIO_PAGES);
	KUNIT_EXPECT_EQ(test, m.others, 0);
}

/* Share the large folio with a second child. */
static struct folio *share_folio_again(struct kunit *test)
{
	struct fixture *f = test->priv;

	f->old = make_folio(test);
	cowt_share(test);
	cowt_note(test);
	return f->old;
}

/* The child still maps the whole folio, so it is not queued for splitting. */
static void folio_of_folio(struct kunit *test)
{
	struct folio *old = share_folio_again(test);

	cowt_write_fault(test, FAULT);
	expect_folio(test, FAULT, FOLIO);
	KUNIT_EXPECT_TRUE(test, list_empty(&old->_deferred_list));
}

static void odd_exclusive(struct kunit *test)
{
	SetPageAnonExclusive(cowt_odd_page(test));
}

/**
 * struct part_case - how one page of a large folio may differ
 * @desc: description
 * @late: called after the folio is shared
 * @undo: called at the end of the test
 * @needs: this configuration can have such a page
 * @reused: the page is made writable
 * @why: why the page is skipped, if it is not made writable
 */
struct part_case {
	const char *desc;
	void (*late)(struct kunit *test);
	void (*undo)(struct kunit *test);
	bool needs;
	bool reused;
	enum cow_skip why;
};

static const struct part_case part_cases[] = {
	{
		.desc = "unmapped",
		.late = cowt_odd_zap,
		.needs = true,
		.why = COW_SKIP_NOTPRESENT,
	}, {
		.desc = "hwpoison",
		.late = cowt_odd_poison,
		.undo = cowt_odd_unpoison,
		.needs = IS_ENABLED(CONFIG_MEMORY_FAILURE),
		.why = COW_SKIP_SPECIAL,
	}, {
		.desc = "exclusive",
		.late = odd_exclusive,
		.needs = true,
		.why = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "NUMA hinting",
		.late = cowt_odd_protnone,
		.needs = IS_ENABLED(CONFIG_NUMA_BALANCING) &&
			 !IS_ENABLED(CONFIG_ARM64_CONTPTE),
		.why = COW_SKIP_SPECIAL,
	}, {
		.desc = "replaced by another page",
		.late = cowt_odd_write_and_protect,
		.needs = true,
		.reused = true,
	},
};

KUNIT_ARRAY_PARAM_DESC(part, part_cases, desc);

/* One page of a large folio differs from the others. */
static void folio_of_folio_but_one(struct kunit *test)
{
	const struct part_case *c = test->param_value;
	struct fixture *f = test->priv;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_folio_again(test);
	c->late(test);
	cowt_note(test);
	cowt_write_fault(test, FAULT);
	cowt_expect_clean(test, FOLIO & ~BIT_ULL(FAULT), true);
	/* A fault made the PTE dirty before or after the page was shared. */
	if (pte_dirty(f->parent.pages[ODD].pte))
		f->clean &= ~BIT_ULL(ODD);
	cowt_expect_region_reused(test, FOLIO & ~BIT_ULL(ODD), c->reused ? BIT_ULL(ODD) : 0);
	cowt_expect_counts(test, FOLIO_PAGES - 2, c->why, !c->reused);
	cowt_expect_reuses(test, c->reused, false);
	if (c->undo)
		c->undo(test);
}

/* Another thread writes to a page of the old folio. The others are replaced. */
static void folio_of_folio_race(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct folio *old;
	unsigned int i;

	/* There all PTEs of the block change with that one. */
	if (IS_ENABLED(CONFIG_ARM64_CONTPTE))
		kunit_skip(test, "not in this configuration");
	old = share_folio_again(test);
	cowt_change_vma_flags(test, VM_NOHUGEPAGE, 0);
	cowt_start_race(test, cowt_race_write);
	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, FOLIO_PAGES, FOLIO_PAGES - 1);
	/* Those of the child are left. */
	KUNIT_EXPECT_EQ(test, folio_mapcount(old), FOLIO_PAGES);
	KUNIT_EXPECT_EQ(test, folio_ref_count(old), FOLIO_PAGES);
	for (i = FAULT; i < FAULT + FOLIO_PAGES; i++) {
		KUNIT_EXPECT_PTR_NE(test, folio_at(test, i), old);
		cowt_expect_content(test, &f->parent, i);
		cowt_expect_content(test, &f->child, i);
	}
	cowt_expect_counts(test, FOLIO_PAGES - 2, COW_SKIP_RACE, 1);
	cowt_change_vma_flags(test, 0, VM_NOHUGEPAGE);
}

static void race_unmap_all_in_child(struct kunit *test)
{
	struct fixture *f = test->priv;
	u64 pages = FOLIO;
	unsigned int i;

	/* For the checks below. Earlier, the page would be left out for this reference. */
	folio_get(page_folio(f->parent.pages[FAULT].page));
	for (i = 0; i < NR_PAGES; i++)
		if (has_page(pages, i))
			cowt_unmap_page_of(test, f->child.mm, i);
}

/* The last process that maps the old folio unmaps all of it at once. */
static void folio_of_folio_of_the_parent(struct kunit *test)
{
	struct folio *old = share_folio_again(test);
	struct fixture *f = test->priv;
	unsigned int i;

	cowt_start_race(test, race_unmap_all_in_child);
	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_TRUE(test, f->raced);
	KUNIT_EXPECT_TRUE(test, folio_test_large(folio_at(test, FAULT)));
	KUNIT_EXPECT_FALSE(test, folio_mapped(old));
	KUNIT_EXPECT_EQ(test, folio_ref_count(old), 1);
	KUNIT_EXPECT_TRUE(test, list_empty(&old->_deferred_list));
	folio_put(old);
	for (i = 0; i < NR_PAGES; i++)
		cowt_expect_content(test, &f->parent, i);
}

static void folio_page_copied_alone(struct kunit *test)
{
	struct folio *old = share_folio_again(test);
	struct fixture *f = test->priv;
	unsigned int i;

	cowt_write_alone(test, ODD);
	KUNIT_EXPECT_FALSE(test, folio_test_large(folio_at(test, ODD)));
	KUNIT_EXPECT_EQ(test, folio_mapcount(old), 2 * FOLIO_PAGES - 1);
	KUNIT_EXPECT_EQ(test, folio_ref_count(old), 2 * FOLIO_PAGES - 1);
	cowt_fill_page(cowt_read_page(test, current->mm, ODD), 0xee);
	for (i = 0; i < NR_PAGES; i++) {
		cowt_expect_content(test, &f->child, i);
		if (i != ODD)
			cowt_expect_content(test, &f->parent, i);
	}
}

struct pin_case {
	const char *desc;
	bool pinned;
};

static const struct pin_case pin_cases[] = {
	{ "not pinned", false },
	{ "pinned", true },
};

KUNIT_ARRAY_PARAM_DESC(pin, pin_cases, desc);

/* A pin of a large folio is one reference; without a count of pins it would not show. */
static void folio_pinned(struct kunit *test)
{
	const struct pin_case *c = test->param_value;
	struct folio *folio = make_folio(test);
	pte_t pte;

	cowt_write_protect(test, ODD - 1);
	cowt_write_protect(test, ODD);
	if (c->pinned) {
		folio_ref_inc(folio);
		atomic_inc(&folio->_pincount);
	}
	cowt_write_fault(test, ODD - 1);
	pte = cowt_read_pte(test, current->mm, cowt_page_addr(test, ODD));
	if (c->pinned) {
		atomic_dec(&folio->_pincount);
		folio_put(folio);
	}
	KUNIT_EXPECT_EQ(test, !!pte_write(pte), !c->pinned);
	KUNIT_EXPECT_PTR_EQ(test, folio_at(test, ODD - 1), folio);
}

/*
 * One page of a large folio is left, mapped here only. To make it writable would keep
 * the whole folio for it: a write copies it.
 */
static void folio_page_left_alone(struct kunit *test)
{
	struct folio *old = share_folio_again(test);
	struct fixture *f = test->priv;
	unsigned int i;
	pte_t pte;

	cowt_write_alone(test, ODD - 1);
	cowt_write_protect(test, ODD - 1);
	for (i = FAULT; i < FAULT + FOLIO_PAGES; i++) {
		cowt_unmap_page_of(test, f->child.mm, i);
		if (i != ODD && i != ODD - 1)
			cowt_unmap_page_of(test, current->mm, i);
	}
	lru_add_drain_all();
	KUNIT_ASSERT_EQ(test, folio_ref_count(old), 1);
	cowt_write_fault(test, ODD - 1);
	pte = cowt_read_pte(test, current->mm, cowt_page_addr(test, ODD));
	KUNIT_EXPECT_PTR_EQ(test, page_folio(pte_page(pte)), old);
	KUNIT_EXPECT_FALSE(test, pte_write(pte));
	KUNIT_EXPECT_FALSE(test, PageAnonExclusive(pte_page(pte)));
}

/* Split a large folio into smaller ones. */
static void split_up(struct kunit *test, struct folio *folio, unsigned int order)
{
	folio_get(folio);
	folio_lock(folio);
	KUNIT_ASSERT_EQ(test, split_folio_to_order(folio, order), 0);
	folio_unlock(folio);
	folio_put(folio);
}

/* The pages whose PTEs are clean: a split replaces them by migration entries for a while. */
static u64 clean_after_split(void)
{
#ifdef CONFIG_MIGRATION
	if (migration_entry_supports_ad())
		return FOLIO & ~BIT_ULL(FAULT);
#endif
	return FOLIO;
}

static void folio_is_split(struct kunit *test)
{
	struct fixture *f = test->priv;

	split_up(test, make_folio(test), 0);
	f->split = FOLIO;
	expect_pages_clean(test, FOLIO, clean_after_split());
}

/* Two folios that lie side by side in memory, too, are counted apart. */
static void folio_of_two_folios(struct kunit *test)
{
	const unsigned int half = FOLIO_PAGES / 2;
	struct folio *first = make_folio(test), *second;
	struct fixture *f = test->priv;
	unsigned int i;

	split_up(test, first, FOLIO_ORDER - 1);
	second = folio_at(test, FAULT + half);
	KUNIT_ASSERT_EQ(test, folio_nr_pages(first), half);
	KUNIT_ASSERT_EQ(test, folio_pfn(second), folio_pfn(first) + half);
	cowt_share(test);
	cowt_note(test);
	cowt_write_fault(test, FAULT);
	/* Those of the child are left. */
	KUNIT_EXPECT_EQ(test, folio_mapcount(first), half);
	KUNIT_EXPECT_EQ(test, folio_ref_count(first), half);
	KUNIT_EXPECT_EQ(test, folio_mapcount(second), half);
	KUNIT_EXPECT_EQ(test, folio_ref_count(second), half);
	for (i = FAULT; i < FAULT + FOLIO_PAGES; i++) {
		cowt_expect_content(test, &f->parent, i);
		cowt_expect_content(test, &f->child, i);
	}
	cowt_expect_counts(test, FOLIO_PAGES - 1, COW_SKIP_NONE, 0);
}

/* Half of the folio is unmapped, and is freed by the split. */
static void folio_partly_unmapped(struct kunit *test)
{
	const unsigned int half = FOLIO_PAGES / 2;
	struct folio *folio = make_folio(test);
	struct fixture *f = test->priv;
	unsigned int i;

	cowt_note(test);
	KUNIT_ASSERT_EQ(test, vm_munmap(cowt_page_addr(test, FAULT + half),
					half * PAGE_SIZE), 0);
	KUNIT_EXPECT_EQ(test, folio_mapcount(folio), half);
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), half);
	KUNIT_EXPECT_FALSE(test, list_empty(&folio->_deferred_list));
	KUNIT_EXPECT_EQ(test, cowt_read_anon(current->mm), f->parent.anon - half);
	split_up(test, folio, 0);
	for (i = FAULT; i < FAULT + half; i++) {
		KUNIT_EXPECT_FALSE(test, folio_test_large(folio_at(test, i)));
		KUNIT_EXPECT_EQ(test, folio_ref_count(folio_at(test, i)), 1);
		cowt_expect_content(test, &f->parent, i);
		cowt_expect_content(test, &f->child, i);
	}
}

/* 1000 pages are free, but only in blocks of up to 8. */
static void folio_no_block_in_zone(struct kunit *test)
{
	struct zone *zone = kvzalloc(sizeof(*zone), GFP_KERNEL);
	LIST_HEAD(block);
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, zone);
	atomic_long_set(&zone->vm_stat[NR_FREE_PAGES], 1000);
	zone->_watermark[WMARK_LOW] = 400;
	for (i = 0; i < MIGRATE_TYPES; i++)
		INIT_LIST_HEAD(&zone->free_area[3].free_list[i]);
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 0, 2, 0));
	zone->free_area[3].nr_free = 1;
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 0, 2, 0));
	list_add(&block, &zone->free_area[3].free_list[MIGRATE_MOVABLE]);
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 0, 2, 0));
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 0, 3, 0));
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 0, 4, 0));
	zone->_watermark[WMARK_LOW] = 991;
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 0, 3, 0));
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 0, 3, 1));
	zone->_watermark[WMARK_LOW] = 992;
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 0, 3, 0));
	kvfree(zone);
}

static bool no_block_stub(struct zone *zone, int highest, unsigned int order,
			  unsigned long nr)
{
	if (!order)
		return true;
	KUNIT_EXPECT_EQ(kunit_get_current_test(), order, FOLIO_ORDER);
	return false;
}

/* Then no large folio is asked for. */
static void folio_needs_block(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	kunit_activate_static_stub(test, cow_zone_has_room, no_block_stub);
	kunit_activate_static_stub(test, cow_folio_try_alloc, no_folio_stub);
	cowt_write_fault(test, FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_folios, 0);
	expect_pages(test, FAULT, FOLIO);
}

#if defined(CONFIG_KPROBES) && defined(CONFIG_TRANSPARENT_HUGEPAGE)
/* The counts of a folio when the mapping of its PMD, which was split, goes */
static struct {
	const struct folio *folio;
	int refs;
	int mapcount;
} in_split;

static int look_in_split(struct kprobe *kp, struct pt_regs *regs)
{
	struct folio *folio = (struct folio *)regs_get_kernel_argument(regs, 0);

	if (folio == in_split.folio) {
		in_split.refs = folio_ref_count(folio);
		in_split.mapcount = folio_mapcount(folio);
	}
	return 0;
}

static struct folio *map_pmd(struct kunit *test, unsigned long addr)
{
	static const struct thp_settings huge = { .always = BIT(PMD_ORDER) };
	struct vm_area_struct *vma;
	long without;
	pmd_t pmd;

	set_thp_settings(&huge);
	without = read_mthp(PMD_ORDER, MTHP_STAT_ANON_FAULT_FALLBACK);
	mmap_read_lock(current->mm);
	vma = vma_lookup(current->mm, addr);
	handle_mm_fault(vma, addr, FAULT_FLAG_WRITE, NULL);
	pmd = pmdp_get(pmd_off(current->mm, addr));
	mmap_read_unlock(current->mm);
	if (read_mthp(PMD_ORDER, MTHP_STAT_ANON_FAULT_FALLBACK) > without)
		kunit_skip(test, "no huge page is free");
	KUNIT_ASSERT_TRUE(test, pmd_trans_huge(pmd));
	/* A batch of the LRU has a reference. */
	lru_add_drain_all();
	return pfn_folio(pmd_pfn(pmd));
}

/*
 * cow_precopy_refs_known() relies on it: a mapping has a reference as long as it is
 * counted. Unmapping one page splits the mapping of the rest.
 */
static void split_pmd_has_references(struct kunit *test)
{
	struct kprobe kp = {
		.symbol_name = "folio_remove_rmap_pmd",
		.pre_handler = look_in_split,
	};
	unsigned long addr;
	struct folio *folio;

	addr = kunit_vm_mmap(test, NULL, 0, 2 * PMD_SIZE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, 0);
	KUNIT_ASSERT_NE(test, addr, 0);
	addr = ALIGN(addr, PMD_SIZE);
	folio = map_pmd(test, addr);
	KUNIT_ASSERT_EQ(test, folio_ref_count(folio), 1);

	in_split.folio = folio;
	in_split.refs = 0;
	in_split.mapcount = 0;
	KUNIT_ASSERT_EQ(test, register_kprobe(&kp), 0);
	vm_munmap(addr, PAGE_SIZE);
	unregister_kprobe(&kp);
	KUNIT_EXPECT_EQ(test, in_split.mapcount, HPAGE_PMD_NR + 1);
	KUNIT_EXPECT_EQ(test, in_split.refs, in_split.mapcount);
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), HPAGE_PMD_NR - 1);
}
#else
static void split_pmd_has_references(struct kunit *test)
{
	kunit_skip(test, "no kprobes in this configuration");
}
#endif

static struct kunit_case cow_folio_cases[] = {
	KUNIT_CASE_PARAM(folio_sizes, order_gen_params),
	KUNIT_CASE_PARAM(folio_allowed, allowed_gen_params),
	KUNIT_CASE(folio_private_file),
	KUNIT_CASE_PARAM(folio_window, block_gen_params),
	KUNIT_CASE_PARAM(folio_bounds, border_gen_params),
	KUNIT_CASE(folio_no_hw_dirty),
	KUNIT_CASE(folio_fixed_window),
	KUNIT_CASE_PARAM(folio_odd_neighbour, odd_gen_params),
	KUNIT_CASE_PARAM(folio_vma_refuses, refused_gen_params),
	KUNIT_CASE_PARAM(folio_race, race_gen_params),
	KUNIT_CASE(folio_race_on_first_page),
	KUNIT_CASE(folio_race_on_last_page),
	KUNIT_CASE(folio_race_on_fault_page),
	KUNIT_CASE(folio_race_with_child),
	KUNIT_CASE(folio_no_block_left),
	KUNIT_CASE(folio_no_block_in_zone),
	KUNIT_CASE(folio_needs_block),
	KUNIT_CASE(folio_lost_race_is_freed),
	KUNIT_CASE_PARAM(folio_unreadable_page, unreadable_gen_params),
	KUNIT_CASE_PARAM(folio_memory_policy, policy_gen_params),
	KUNIT_CASE(folio_no_room),
	KUNIT_CASE(folio_notifier_range),
	KUNIT_CASE(folio_window_with_a_hole),
	KUNIT_CASE(folio_locked_memory),
	KUNIT_CASE(folio_is_in_the_rmap),
	KUNIT_CASE(folio_of_folio),
	KUNIT_CASE_PARAM(folio_of_folio_but_one, part_gen_params),
	KUNIT_CASE(folio_of_folio_race),
	KUNIT_CASE(folio_of_two_folios),
	KUNIT_CASE(folio_of_folio_of_the_parent),
	KUNIT_CASE(folio_page_copied_alone),
	KUNIT_CASE_PARAM(folio_pinned, pin_gen_params),
	KUNIT_CASE(folio_page_left_alone),
	KUNIT_CASE(folio_partly_unmapped),
	KUNIT_CASE(folio_is_split),
	KUNIT_CASE(split_pmd_has_references),
	{}
};

static struct kunit_suite cow_folio_suite = {
	.name = "cow_folio",
	.init = cow_folio_test_init,
	.exit = cowt_exit,
	.suite_exit = cowt_suite_exit,
	.test_cases = cow_folio_cases,
};

kunit_test_suite(cow_folio_suite);

MODULE_DESCRIPTION("Tests of copy-on-write faults that copy into a large folio");
MODULE_LICENSE("GPL");
