// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of copy-on-write faults that copy a fixed number of pages ahead:
 * the window and its bounds, each kind of neighbour, races, failed allocations
 * and MMU notifiers.
 */
#include <linux/memcontrol.h>
#include <linux/mman.h>
#include <linux/mmu_notifier.h>
#include <linux/page_counter.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/swap.h>

#include "../internal.h"
#include "cow_kunit.h"

KUNIT_ARRAY_PARAM_DESC(odd, cowt_odd_cases, desc);
KUNIT_ARRAY_PARAM_DESC(flags, cowt_flags_cases, desc);
KUNIT_ARRAY_PARAM_DESC(refused, cowt_refused_cases, desc);
KUNIT_ARRAY_PARAM_DESC(race, cowt_race_cases, desc);
KUNIT_ARRAY_PARAM_DESC(policy, cowt_policy_cases, desc);

static struct folio *no_alloc_stub(gfp_t gfp, struct vm_area_struct *vma,
				   unsigned long addr)
{
	struct fixture *f = kunit_get_current_test()->priv;

	f->nr_copies++;
	return NULL;
}

/*
 * The window
 */

struct size_case {
	const char *desc;
	unsigned int pages;
};

static const struct size_case size_cases[] = {
	{ "1 page", 1 },
	{ "2 pages", 2 },
	{ "3 pages", 3 },
	{ "7 pages", 7 },
	{ "8 pages", 8 },
	{ "14 pages", 14 },
	{ "15 pages, the largest", COW_PRECOPY_MAX_PAGES },
};

KUNIT_ARRAY_PARAM_DESC(size, size_cases, desc);

static void copies_the_window(struct kunit *test)
{
	const struct size_case *c = test->param_value;

	cowt_set_window(c->pages);
	cowt_share_pages(test, ALL_PAGES);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, COPIED(c->pages));
	cowt_expect_counts(test, c->pages, COW_SKIP_NONE, 0);
}

/* Write to all pages; only those with a read-only PTE fault. */
static unsigned int write_upward(struct kunit *test)
{
	unsigned int i, faults = 0;

	for (i = 0; i < NR_PAGES; i++) {
		if (!pte_write(cowt_read_pte(test, current->mm, cowt_page_addr(test, i)))) {
			cowt_write_fault(test, i);
			faults++;
		}
	}
	return faults;
}

static void sequential_walk(struct kunit *test)
{
	const struct size_case *c = test->param_value;
	unsigned int copies = DIV_ROUND_UP(NR_PAGES, c->pages + 1);
	/* Beyond the region, where the last window ends, nothing is mapped. */
	unsigned int rest = copies * (c->pages + 1) - NR_PAGES;

	cowt_set_window(c->pages);
	cowt_share_pages(test, ALL_PAGES);
	KUNIT_EXPECT_EQ(test, write_upward(test), copies);
	cowt_expect_region(test, ALL_PAGES);
	cowt_expect_counts(test, NR_PAGES - copies, COW_SKIP_NOTPRESENT, rest);
}

static void switched_off(struct kunit *test)
{
	static_branch_disable(&cow_precopy_key);
	cowt_share_pages(test, ALL_PAGES);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, COPIED(0));
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

struct young_case {
	const char *desc;
	bool hw_young;
};

static const struct young_case young_cases[] = {
	{ "hardware sets the accessed bit", true },
	{ "a fault sets the accessed bit", false },
};

KUNIT_ARRAY_PARAM_DESC(young, young_cases, desc);

/* Copies are old until they are used, if that takes no fault. */
static void copies_are_old(struct kunit *test)
{
	const struct young_case *c = test->param_value;
	unsigned int i;

	cowt_set_hw_dirty(test, false);
	cowt_set_hw_young(test, c->hw_young);
	cowt_share_pages(test, ALL_PAGES);
	cowt_write_fault(test, FAULT);
	for (i = FAULT; i <= FAULT + WINDOW; i++) {
		pte_t pte = cowt_read_pte(test, current->mm, cowt_page_addr(test, i));

		KUNIT_EXPECT_EQ_MSG(test, !pte_young(pte), i != FAULT && c->hw_young,
				    "PTE %u: old or young", i);
	}
	cowt_expect_region(test, COPIED(WINDOW));
}

/*
 * The bounds
 */

struct bound_case {
	const char *desc;
	unsigned int before;
	unsigned int window;
	unsigned int copied;
	unsigned int skipped;
};

/* The fault is @before pages below the last page below the boundary. */
static const struct bound_case bound_cases[] = {
	{ "from the last page", 0, 1, 0, 1 },
	{ "from the last page, largest window", 0, COW_PRECOPY_MAX_PAGES, 0, 1 },
	{ "onto the last page", 1, 1, 1, 0 },
	{ "one past the last page", 1, 2, 1, 1 },
	{ "up to the last page", 7, 7, 7, 0 },
	{ "over the last page", 7, 15, 7, 1 },
	{ "over the last page, largest window", 7, COW_PRECOPY_MAX_PAGES, 7, 1 },
};

KUNIT_ARRAY_PARAM_DESC(bound, bound_cases, desc);

/* @boundary: the first page of the region above the boundary */
static void test_bound(struct kunit *test, unsigned int boundary, enum cow_skip why)
{
	const struct bound_case *c = test->param_value;
	unsigned int at = boundary - 1 - c->before;

	cowt_set_window(c->window);
	cowt_share_pages(test, ALL_PAGES);
	cowt_write_fault(test, at);
	cowt_expect_region(test, GENMASK_ULL(at + c->copied, at));
	cowt_expect_counts(test, c->copied, why, c->skipped);
}

/* Half of the region is below @addr, half of it above. */
static void test_both_sides(struct kunit *test, unsigned long addr, enum cow_skip why)
{
	struct fixture *f = test->priv;

	cowt_look_at(test, ((addr - f->base) >> PAGE_SHIFT) - NR_PAGES / 2);
	test_bound(test, NR_PAGES / 2, why);
}

/* Above the end is another VMA, whose pages could be copied as well. */
static void next_vma(struct kunit *test)
{
	struct fixture *f = test->priv;

	test_both_sides(test, f->end, COW_SKIP_VMA);
}

/* Nothing is mapped above the end: this tests the counter. */
static void vma_end(struct kunit *test)
{
	struct fixture *f = test->priv;

	KUNIT_ASSERT_EQ(test, vm_munmap(f->end, FIRST * PAGE_SIZE), 0);
	cowt_look_at(test, ((f->end - f->base) >> PAGE_SHIFT) - NR_PAGES);
	test_bound(test, NR_PAGES, COW_SKIP_VMA);
}

static void pmd_boundary(struct kunit *test)
{
	struct fixture *f = test->priv;

	test_both_sides(test, f->base + PMD_SIZE, COW_SKIP_PMD);
}

/* If both end at the same page, the VMA's end is counted. */
static void vma_end_at_pmd_boundary(struct kunit *test)
{
	struct fixture *f = test->priv;

	KUNIT_ASSERT_EQ(test, vm_munmap(f->base + PMD_SIZE, f->end - f->base - PMD_SIZE),
			0);
	f->end = f->base + PMD_SIZE;
	cowt_map_fixed(test, f->end, FIRST * PAGE_SIZE, MAP_NORESERVE);
	test_both_sides(test, f->end, COW_SKIP_VMA);
}

static void odd_neighbour(struct kunit *test)
{
	const struct odd_case *c = test->param_value;
	bool left_out = c->copy != COW_SKIP_NONE;

	cowt_set_window(3);
	cowt_share_odd(test, 0, 0);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, left_out ? COPIED(3) & ~BIT_ULL(ODD) : COPIED(3));
	cowt_expect_counts(test, 3 - left_out, c->copy, left_out);
	cowt_undo_odd(test);
}

static void written_neighbour(struct kunit *test)
{
	cowt_set_window(3);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_odd_write(test);
	cowt_note(test);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, COPIED(3) & ~BIT_ULL(ODD));
	cowt_expect_counts(test, 2, COW_SKIP_WRITABLE, 1);
}

/* One page of the file was only read, and is still the file's page. */
static void file_neighbour(struct kunit *test)
{
	cowt_map_file(test);
	cowt_set_window(3);
	cowt_fault(test, ODD, FAULT_FLAG_USER);
	KUNIT_ASSERT_FALSE(test, folio_test_anon(cowt_odd_folio(test)));
	cowt_fill_page(cowt_odd_page(test), cowt_page_byte(ODD));
	cowt_share_pages(test, ALL_PAGES & ~BIT_ULL(ODD));
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, COPIED(3) & ~BIT_ULL(ODD));
	cowt_expect_counts(test, 2, COW_SKIP_NOTANON, 1);
}

/* Since 6.13, a page in an LRU batch is still on the LRU, and has a reference more. */
static void neighbour_in_lru_batch(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct folio *folio;
	int refs;

	if (lru_gen_enabled())
		kunit_skip(test, "the multi-gen LRU need not deactivate it");
	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	folio = cowt_odd_folio(test);
	lru_add_drain_all();
	/* The fault empties the batches of its own CPU. */
	migrate_disable();
	folio_activate(folio);
	lru_add_drain();
	/* Nor may anybody else empty them before they are looked at. */
	preempt_disable();
	folio_deactivate(folio);
	refs = folio_ref_count(folio);
	preempt_enable();
	cowt_write_fault(test, FAULT);
	migrate_enable();
	KUNIT_EXPECT_EQ(test, refs, f->parent.pages[ODD].refs + 1);
	cowt_expect_region(test, COPIED(3));
	cowt_expect_counts(test, 3, COW_SKIP_NONE, 0);
}

/* MADV_FREE has put the page into an LRU batch: the page is given up when that is emptied. */
static void lazyfree_neighbour_in_lru_batch(struct kunit *test)
{
	struct folio *folio;

	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	folio = cowt_odd_folio(test);
	lru_add_drain_all();
	/* The fault empties the batches of its own CPU. */
	migrate_disable();
	folio_mark_lazyfree(folio);
	cowt_write_fault(test, FAULT);
	migrate_enable();
	KUNIT_EXPECT_FALSE(test, folio_test_swapbacked(folio));
	cowt_expect_region(test, COPIED(3) & ~BIT_ULL(ODD));
	cowt_expect_counts(test, 2, COW_SKIP_SPECIAL, 1);
}

/* Pages on the inactive anonymous list, by zone and as the memory cgroup counts them */
struct lru_sizes {
	unsigned long zone[MAX_NR_ZONES];
	unsigned long lruvec[MAX_NR_ZONES];
};

static void read_lru_sizes(struct lruvec *lruvec, struct lru_sizes *sizes)
{
	pg_data_t *pgdat = lruvec_pgdat(lruvec);
	unsigned int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		sizes->zone[i] = zone_page_state_snapshot(&pgdat->node_zones[i],
							  NR_ZONE_INACTIVE_ANON);
		if (!mem_cgroup_disabled())
			sizes->lruvec[i] = mem_cgroup_get_zone_lru_size(lruvec,
									LRU_INACTIVE_ANON, i);
	}
}

/* The lruvec of the pages, once no page waits in a batch any more. */
static struct lruvec *quiet_lruvec(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct lruvec *lruvec;

	lru_add_drain_all();
	/* The folio is charged: its memory cgroup stays. */
	rcu_read_lock();
	lruvec = folio_lruvec(page_folio(f->parent.pages[FAULT].page));
	rcu_read_unlock();
	return lruvec;
}

/* The first CPU's node has more zones than others. This is the test's own thread. */
static void run_on_first_cpu(struct kunit *test)
{
	KUNIT_ASSERT_EQ(test, set_cpus_allowed_ptr(current, cpumask_of(0)), 0);
}

/*
 * From the node whose list is looked at, the second half of the pages from another zone,
 * where it has one
 */
static struct folio *alloc_zones_stub(gfp_t gfp, struct vm_area_struct *vma,
				      unsigned long addr)
{
	struct fixture *f = kunit_get_current_test()->priv;
	int nid = page_to_nid(f->parent.pages[FAULT].page);
	struct page *page = NULL;

	if (IS_ENABLED(CONFIG_ZONE_DMA) && f->nr_copies++ >= 8)
		page = alloc_pages_node(nid, GFP_KERNEL | GFP_DMA | __GFP_THISNODE |
					     __GFP_NOWARN, 0);
	if (!page)
		page = alloc_pages_node(nid, GFP_HIGHUSER_MOVABLE | __GFP_THISNODE, 0);
	return page ? page_folio(page) : NULL;
}

/*
 * The copies are put on their list at once, but each is counted in its zone. Nobody
 * else allocates anonymous pages: at boot, when the suites run, there is no user space.
 */
static void copies_are_on_the_lru(struct kunit *test)
{
	struct lru_sizes before, after, copies = {};
	struct lruvec *lruvec;
	unsigned int i;

	if (lru_gen_enabled())
		kunit_skip(test, "the multi-gen LRU has other lists");
	run_on_first_cpu(test);
	cowt_set_window(15);
	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, alloc_zones_stub);
	lruvec = quiet_lruvec(test);
	read_lru_sizes(lruvec, &before);
	cowt_write_fault(test, FAULT);
	read_lru_sizes(lruvec, &after);
	for (i = FAULT; i <= FAULT + 15; i++)
		copies.zone[page_zonenum(cowt_read_page(test, current->mm, i))]++;
	for (i = 0; i < MAX_NR_ZONES; i++) {
		KUNIT_EXPECT_EQ_MSG(test, after.zone[i] - before.zone[i], copies.zone[i],
				    "pages more in zone %u", i);
		if (!mem_cgroup_disabled())
			KUNIT_EXPECT_EQ_MSG(test, after.lruvec[i] - before.lruvec[i],
					    copies.zone[i],
					    "pages of zone %u more on the list", i);
	}
	cowt_expect_region(test, COPIED(15));
	cowt_expect_counts(test, 15, COW_SKIP_NONE, 0);
}

/* Few copies wait in this CPU's batch, as that of any other fault does. */
static void few_copies_wait(struct kunit *test)
{
	struct lru_sizes before, after;
	struct lruvec *lruvec;
	unsigned int i;

	cowt_set_window(2);
	cowt_share_pages(test, ALL_PAGES);
	lruvec = quiet_lruvec(test);
	read_lru_sizes(lruvec, &before);
	cowt_write_fault(test, FAULT);
	read_lru_sizes(lruvec, &after);
	for (i = 0; i < MAX_NR_ZONES; i++)
		KUNIT_EXPECT_EQ_MSG(test, after.zone[i], before.zone[i],
				    "pages more in zone %u", i);
	cowt_expect_region(test, COPIED(2));
	cowt_expect_counts(test, 2, COW_SKIP_NONE, 0);
}

/* Each copy lies below the one before, the next page's copy in the frame before it. */
static unsigned int alloc_downward_stub(gfp_t gfp, struct vm_area_struct *vma,
					unsigned int nr, struct page **pages)
{
	const unsigned int order = ilog2(WINDOW + 1);
	struct kunit *test = kunit_get_current_test();
	struct page *block = alloc_pages(GFP_HIGHUSER_MOVABLE, order);
	unsigned int i;

	if (!block || nr != WINDOW + 1) {
		KUNIT_FAIL(test, "no memory, or not asked for a window");
		return 0;
	}
	split_page(block, order);
	for (i = 0; i < nr; i++)
		pages[i] = block + nr - 1 - i;
	return nr;
}

/* With PAE, pte_advance_pfn() by a negative distance gives another PTE. */
static void copies_downward(struct kunit *test)
{
	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, alloc_downward_stub);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, COPIED(WINDOW));
	cowt_expect_counts(test, WINDOW, COW_SKIP_NONE, 0);
}

/*
 * The faulting page itself
 */

/* A fault that reuses its page copies nothing ahead. */
static void fault_reuses(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct page *page;

	cowt_share_pages(test, ALL_PAGES);
	cowt_unmap_page_of(test, f->child.mm, FAULT);
	cowt_note(test);
	page = f->parent.pages[FAULT].page;

	cowt_write_fault(test, FAULT);
	lru_add_drain_all();
	KUNIT_EXPECT_PTR_EQ(test, cowt_read_page(test, current->mm, FAULT), page);
	KUNIT_EXPECT_TRUE(test, pte_write(cowt_read_pte(test, current->mm,
							cowt_page_addr(test, FAULT))));
	f->parent.pages[FAULT] = cowt_read_state(test, current->mm, FAULT);
	cowt_expect_region(test, 0);
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void fault_on_zero_page(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	cowt_fault(test, FAULT, FAULT_FLAG_USER);
	cowt_share_pages(test, ALL_PAGES & ~BIT_ULL(FAULT));
	cowt_write_fault(test, FAULT);
	lru_add_drain_all();
	KUNIT_EXPECT_EQ(test, cowt_read_anon(current->mm), f->parent.anon + 1);
	for (i = FAULT + 1; i < NR_PAGES; i++)
		cowt_expect_unchanged(test, i);
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/* The faulting page is copied, and nothing is copied ahead. */
static void fault_is_no_plain_write(struct kunit *test)
{
	const struct flags_case *c = test->param_value;
	struct fixture *f = test->priv;
	unsigned int i;
	pte_t pte;

	cowt_share_pages(test, ALL_PAGES);
	cowt_fault(test, FAULT, c->flags);
	lru_add_drain_all();
	pte = cowt_read_pte(test, current->mm, cowt_page_addr(test, FAULT));
	KUNIT_ASSERT_TRUE(test, pte_present(pte));
	KUNIT_EXPECT_PTR_NE(test, pte_page(pte), f->parent.pages[FAULT].page);
	KUNIT_EXPECT_EQ(test, !!pte_write(pte), c->write);
	for (i = FAULT + 1; i < NR_PAGES; i++)
		cowt_expect_unchanged(test, i);
	cowt_expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	cowt_share_pages(test, ALL_PAGES);
	cowt_change_vma_flags(test, c->set, c->clear);
	cowt_write_fault(test, FAULT);
	cowt_expect_region(test, COPIED(0));
	cowt_expect_counts(test, 0, c->why, 1);
	cowt_change_vma_flags(test, c->clear, c->set);
}

static void race_on_neighbour(struct kunit *test)
{
	const struct race_case *c = test->param_value;
	struct fixture *f = test->priv;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	cowt_start_race(test, c->race);
	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, 4, 3);
	cowt_expect_region(test, COPIED(3) & ~BIT_ULL(ODD));
	cowt_expect_counts(test, 2, COW_SKIP_RACE, 1);
	if (c->undo)
		c->undo(test);
}

/* Another thread handled the same fault first. */
static void race_on_fault_page(struct kunit *test)
{
	struct fixture *f = test->priv;

	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	cowt_start_race(test, cowt_race_write_fault_page);
	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, 4, 0);
	cowt_expect_region(test, 0);
	cowt_expect_counts(test, 0, COW_SKIP_RACE, 3);
}

/* The PMD entry of the region, while its page table is out of reach */
static pmd_t hidden_pmd;

static void race_hide_page_table(struct kunit *test)
{
	pmd_t *pmd = pmd_off(current->mm, cowt_page_addr(test, FAULT));

	hidden_pmd = *pmd;
	pmd_clear(pmd);
}

/* Another thread unmapped all that the page table maps, and the table was freed. */
static void race_page_table_gone(struct kunit *test)
{
	struct fixture *f = test->priv;

	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	pmd_clear(&hidden_pmd);
	cowt_start_race(test, race_hide_page_table);
	cowt_write_fault(test, FAULT);
	if (!pmd_none(hidden_pmd))
		set_pmd(pmd_off(current->mm, cowt_page_addr(test, FAULT)), hidden_pmd);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, 4, 0);
	cowt_expect_region(test, 0);
	cowt_expect_counts(test, 0, COW_SKIP_RACE, 3);
}

static void race_write_all(struct kunit *test)
{
	unsigned int i;

	for (i = FAULT + 1; i <= FAULT + 3; i++) {
		cowt_write_locked(test, i);
		cowt_note_race(test, i, 1);
	}
}

/* All copies ahead lost the race, but the faulting page is copied. */
static void race_on_all_neighbours(struct kunit *test)
{
	struct fixture *f = test->priv;

	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	cowt_start_race(test, race_write_all);
	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, 4, 1);
	cowt_expect_region(test, COPIED(0));
	cowt_expect_counts(test, 0, COW_SKIP_RACE, 3);
}

/* The copy is mapped, and the old page is freed. */
static void race_with_child(struct kunit *test)
{
	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	cowt_start_race(test, cowt_race_unmap_in_child);
	cowt_test_race_with_child(test, COPIED(3), 4);
}

/*
 * Memory is short: the faulting page is copied, nothing is copied ahead, and the
 * allocation is not retried.
 */

static void allocation_fails(struct kunit *test)
{
	struct fixture *f = test->priv;

	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, no_alloc_stub);
	cowt_write_fault(test, FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_copies, 1);
	cowt_expect_region(test, COPIED(0));
	cowt_expect_counts(test, 0, COW_SKIP_NOMEM, WINDOW);
}

struct reference_watcher {
	struct mmu_notifier notifier;
	struct kunit *test;
	unsigned int calls;
	u64 held;	/* pages with another number of references than before */
};

/* wp_page_copy() has allocated, and perhaps reclaimed. */
static int look_at_references(struct mmu_notifier *notifier,
			      const struct mmu_notifier_range *range)
{
	struct reference_watcher *w =
		container_of(notifier, struct reference_watcher, notifier);
	struct fixture *f = w->test->priv;
	unsigned int i;

	w->calls++;
	for (i = 0; i < NR_PAGES; i++) {
		const struct page_state *was = &f->parent.pages[i];

		if (i != FAULT && was->page && page_count(was->page) != was->refs)
			w->held |= BIT_ULL(i);
	}
	return 0;
}

static const struct mmu_notifier_ops reference_watcher_ops = {
	.invalidate_range_start = look_at_references,
};

/*
 * The plain path may reclaim. References on neighbours would then keep other processes
 * from reusing these pages, and the pages from migrating.
 */
static void no_references_across_reclaim(struct kunit *test)
{
	struct reference_watcher *w = kunit_kzalloc(test, sizeof(*w), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, w);
	w->notifier.ops = &reference_watcher_ops;
	w->test = test;
	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, no_alloc_stub);
	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&w->notifier, current->mm), 0);
	cowt_write_fault(test, FAULT);
	mmu_notifier_unregister(&w->notifier, current->mm);
	KUNIT_EXPECT_EQ(test, w->calls, 1);
	KUNIT_EXPECT_EQ(test, w->held, 0);
	cowt_expect_counts(test, 0, COW_SKIP_NOMEM, WINDOW);
}

static struct page *throttled_page;

static void throttle_stub(struct page *copy)
{
	throttled_page = copy;
}

/* By the faulting page alone, as in a fault that copies only that one. */
static void throttles(struct kunit *test)
{
	struct page_state is;

	throttled_page = NULL;
	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_throttle, throttle_stub);
	cowt_write_fault(test, FAULT);
	is = cowt_read_state(test, current->mm, FAULT);
	KUNIT_EXPECT_NOT_NULL(test, throttled_page);
	KUNIT_EXPECT_PTR_EQ(test, throttled_page, is.page);
	cowt_expect_region(test, COPIED(WINDOW));
}

static void charge_fails(struct kunit *test)
{
	struct fixture *f = test->priv;

	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, cowt_alloc_stub);
	kunit_activate_static_stub(test, cow_precopy_charge, cowt_no_charge_stub);
	cowt_write_fault(test, FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_charges, 1);
	cowt_expect_copies(test, WINDOW + 1, 0);
	cowt_expect_region(test, COPIED(0));
	cowt_expect_counts(test, 0, COW_SKIP_NOMEM, WINDOW);
}

static struct folio *alloc_twice_stub(gfp_t gfp, struct vm_area_struct *vma,
				      unsigned long addr)
{
	struct fixture *f = kunit_get_current_test()->priv;

	return f->nr_copies < 2 ? cowt_alloc_stub(gfp, vma, addr) : NULL;
}

/* The copies that were allocated before memory ran out are freed. */
static void allocation_fails_later(struct kunit *test)
{
	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, alloc_twice_stub);
	cowt_write_fault(test, FAULT);
	cowt_expect_copies(test, 2, 0);
	cowt_expect_region(test, COPIED(0));
	cowt_expect_counts(test, 0, COW_SKIP_NOMEM, WINDOW);
}

static bool no_room_stub(struct vm_area_struct *vma, unsigned int order,
			 unsigned int nr)
{
	struct kunit *test = kunit_get_current_test();

	KUNIT_EXPECT_EQ_MSG(test, nr, WINDOW + 1, "pages that room is asked for");
	return false;
}

/* Where memory is short, no page is asked for. */
static void no_room(struct kunit *test)
{
	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_has_room, no_room_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, cowt_alloc_stub);
	cowt_write_fault(test, FAULT);
	cowt_expect_copies(test, 0, 0);
	cowt_expect_region(test, COPIED(0));
	cowt_expect_counts(test, 0, COW_SKIP_NOMEM, WINDOW);
}

/* More pages than any zone has: that is below its low watermark. */
static void no_room_in_zone(struct kunit *test)
{
	struct vm_area_struct *vma = vma_lookup(current->mm, cowt_page_addr(test, 0));

	KUNIT_EXPECT_FALSE(test, cow_precopy_has_room(vma, 0, INT_MAX / 2));
}

/* Nodes outside of the cpuset have no room. */
static void no_room_in_cpuset(struct kunit *test)
{
#if defined(CONFIG_CPUSETS) && defined(CONFIG_NUMA)
	struct vm_area_struct *vma = vma_lookup(current->mm, cowt_page_addr(test, 0));
	nodemask_t allowed = current->mems_allowed;
	bool room;

	KUNIT_ASSERT_TRUE(test, cow_precopy_has_room(vma, 0, 1));
	nodes_clear(current->mems_allowed);
	room = cow_precopy_has_room(vma, 0, 1);
	current->mems_allowed = allowed;
	KUNIT_EXPECT_FALSE(test, room);
#else
	kunit_skip(test, "no cpusets with nodes in this configuration");
#endif
}

static struct {
	struct zone *first;
	unsigned int asked;
	bool elsewhere;
} zones;

/* No room in the zone that is asked first */
static bool first_zone_is_full(struct zone *zone, int highest, unsigned int order,
			       unsigned long nr)
{
	if (!zones.asked++)
		zones.first = zone;
	zones.elsewhere |= zone_to_nid(zone) != zone_to_nid(zones.first);
	return zone != zones.first;
}

/* Another zone of the same node has, if there is one. */
static void room_in_other_zone(struct kunit *test)
{
	struct vm_area_struct *vma = vma_lookup(current->mm, cowt_page_addr(test, 0));
	unsigned int i, nr = 0;
	bool room;

	run_on_first_cpu(test);
	memset(&zones, 0, sizeof(zones));
	kunit_activate_static_stub(test, cow_zone_has_room, first_zone_is_full);
	room = cow_precopy_has_room(vma, 0, 1);
	KUNIT_ASSERT_NOT_NULL(test, zones.first);
	for (i = 0; i <= gfp_zone(COW_PRECOPY_GFP); i++)
		nr += populated_zone(&zones.first->zone_pgdat->node_zones[i]);
	KUNIT_EXPECT_EQ(test, room, nr > 1);
	KUNIT_EXPECT_EQ(test, zones.asked, nr > 1 ? 2 : 1);
	KUNIT_EXPECT_FALSE(test, zones.elsewhere);
}

static struct {
	int nid;
	bool full;	/* that node only; else all others are */
} room_on;

static bool node_stub(struct zone *zone, int highest, unsigned int order, unsigned long nr)
{
	return (zone_to_nid(zone) == room_on.nid) != room_on.full;
}

/* The nearest node counts; where a memory policy may choose another one, all do. */
static void room_on_nodes(struct kunit *test)
{
	struct vm_area_struct *vma = vma_lookup(current->mm, cowt_page_addr(test, 0));
	bool near, far, all;

	if (num_node_state(N_MEMORY) < 2)
		kunit_skip(test, "only one node has memory");
	kunit_activate_static_stub(test, cow_zone_has_room, node_stub);
	migrate_disable();
	room_on.nid = numa_mem_id();
	room_on.full = false;
	near = cow_precopy_has_room(vma, 0, 1);
	cowt_set_policy(test, true);
	all = cow_precopy_has_room(vma, 0, 1);
	cowt_set_policy(test, false);
	room_on.full = true;
	far = cow_precopy_has_room(vma, 0, 1);
	migrate_enable();
	KUNIT_EXPECT_TRUE(test, near);
	KUNIT_EXPECT_FALSE_MSG(test, all, "the policy may choose the other node");
	KUNIT_EXPECT_FALSE_MSG(test, far, "the other node is too far");
}

/* Pages that will be pinned must not be movable, and room is asked for movable ones. */
static void no_room_for_pins(struct kunit *test)
{
	struct vm_area_struct *vma = vma_lookup(current->mm, cowt_page_addr(test, 0));
	unsigned int flags;
	bool room;

	KUNIT_ASSERT_TRUE(test, cow_precopy_has_room(vma, 0, 1));
	flags = memalloc_pin_save();
	room = cow_precopy_has_room(vma, 0, 1);
	memalloc_pin_restore(flags);
	KUNIT_EXPECT_FALSE(test, room);
}

enum room_limit { MEMORY_MAX, MEMORY_HIGH, SWAP_HIGH, MEMSW_MAX };

/**
 * struct room_case - a memory cgroup near one of its limits
 * @desc: description
 * @limit: the limit
 * @of_parent: it is the limit of the cgroup above
 * @lacks: pages that are missing
 */
struct room_case {
	const char *desc;
	enum room_limit limit;
	bool of_parent;
	unsigned int lacks;
};

static const struct room_case room_cases[] = {
	{ "memory.max: enough", MEMORY_MAX, false, 0 },
	{ "memory.max: a page short", MEMORY_MAX, false, 1 },
	{ "memory.high: enough", MEMORY_HIGH, false, 0 },
	{ "memory.high: a page short", MEMORY_HIGH, false, 1 },
	{ "swap.high: enough", SWAP_HIGH, false, 0 },
	{ "swap.high: a page above", SWAP_HIGH, false, 1 },
	{ "memory and swap (v1): enough", MEMSW_MAX, false, 0 },
	{ "memory and swap (v1): a page short", MEMSW_MAX, false, 1 },
	{ "memory.max of the parent: enough", MEMORY_MAX, true, 0 },
	{ "memory.max of the parent: a page short", MEMORY_MAX, true, 1 },
	{ "memory.high of the parent: enough", MEMORY_HIGH, true, 0 },
	{ "memory.high of the parent: a page short", MEMORY_HIGH, true, 1 },
	{ "swap.high of the parent: enough", SWAP_HIGH, true, 0 },
	{ "swap.high of the parent: a page above", SWAP_HIGH, true, 1 },
	{ "memory and swap of the parent (v1): a page short", MEMSW_MAX, true, 1 },
};

KUNIT_ARRAY_PARAM_DESC(room, room_cases, desc);

#ifdef CONFIG_MEMCG
static void put_page_action(void *page)
{
	put_page(page);
}

#define ROOM_USED	1000

/* A memory cgroup that only this test knows of */
static struct mem_cgroup *room_cgroup(struct kunit *test, struct mem_cgroup *parent)
{
	struct mem_cgroup *memcg = kunit_kzalloc(test, sizeof(*memcg), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, memcg);
	memcg->css.flags = CSS_NO_REF;
	memcg->css.parent = parent ? &parent->css : NULL;
	page_counter_init(&memcg->memory, NULL, false);
	page_counter_init(&memcg->swap, NULL, false);
	page_counter_set_high(&memcg->memory, PAGE_COUNTER_MAX);
	page_counter_set_high(&memcg->swap, PAGE_COUNTER_MAX);
	page_counter_charge(&memcg->memory, ROOM_USED);
	page_counter_charge(&memcg->swap, ROOM_USED);
	return memcg;
}

static void set_room(struct mem_cgroup *memcg, const struct room_case *c)
{
	unsigned long nr = ROOM_USED - c->lacks;

	/* What each CPU may charge at once */
	if (c->limit != SWAP_HIGH)
		nr += MEMCG_CHARGE_BATCH * num_online_cpus();
	switch (c->limit) {
	case MEMORY_MAX:
		WRITE_ONCE(memcg->memory.max, nr);
		break;
	case MEMORY_HIGH:
		page_counter_set_high(&memcg->memory, nr);
		break;
	case SWAP_HIGH:
		page_counter_set_high(&memcg->swap, nr);
		break;
	case MEMSW_MAX:
		WRITE_ONCE(memcg->memsw.max, nr);
		break;
	}
}

static void use_cgroup_v2(bool v2)
{
	if (v2)
		static_branch_enable(&memory_cgrp_subsys_on_dfl_key);
	else
		static_branch_disable(&memory_cgrp_subsys_on_dfl_key);
}

/* With the limits of cgroup v2, or those of v1 for the one that v2 does not have */
static bool has_room(struct mem_cgroup *memcg, const struct room_case *c)
{
	bool v2 = cgroup_subsys_on_dfl(memory_cgrp_subsys);
	/* No address space: the cgroup is the one that is set for the thread. */
	struct vm_area_struct vma = {};
	struct mem_cgroup *old;
	bool room;

	use_cgroup_v2(c->limit != MEMSW_MAX);
	/* Nothing can be charged to it: only while no memory is allocated. */
	old = set_active_memcg(memcg);
	room = cow_precopy_has_room(&vma, 0, 1);
	set_active_memcg(old);
	use_cgroup_v2(v2);
	return room;
}

/* Every limit counts that a fault could hit, of each cgroup up to the root. */
static void memcg_room(struct kunit *test)
{
	const struct room_case *c = test->param_value;
	struct mem_cgroup *parent, *child;

	if (mem_cgroup_disabled() || (c->limit >= SWAP_HIGH && !IS_ENABLED(CONFIG_SWAP)))
		kunit_skip(test, "not in this configuration");
	parent = room_cgroup(test, NULL);
	child = room_cgroup(test, parent);
	set_room(c->of_parent ? parent : child, c);
	KUNIT_EXPECT_EQ(test, has_room(child, c), !c->lacks);
}

static struct page *page_on_node(struct kunit *test, int nid)
{
	struct page *page = alloc_pages_node(nid, GFP_KERNEL | __GFP_THISNODE, 0);

	KUNIT_ASSERT_NOT_NULL(test, page);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, put_page_action, page), 0);
	return page;
}

/* What each page belongs to is the same as if it had been charged alone. */
static void charges_by_node(struct kunit *test)
{
	struct page *alone[2], *pages[2];
	int i, nid[2];

	if (mem_cgroup_disabled() || num_node_state(N_MEMORY) < 2)
		kunit_skip(test, "no memory cgroups, or only one node has memory");
	nid[0] = first_memory_node;
	nid[1] = next_memory_node(nid[0]);
	for (i = 0; i < 2; i++) {
		alone[i] = page_on_node(test, nid[i]);
		pages[i] = page_on_node(test, nid[i]);
		KUNIT_ASSERT_EQ(test, mem_cgroup_charge(page_folio(alone[i]), current->mm,
							GFP_KERNEL), 0);
	}
	KUNIT_ASSERT_EQ(test, mem_cgroup_charge_pages(pages, 2, current->mm, GFP_KERNEL), 0);
	for (i = 0; i < 2; i++)
		KUNIT_EXPECT_EQ_MSG(test, page_folio(pages[i])->memcg_data,
				    page_folio(alone[i])->memcg_data, "page on node %d", nid[i]);
}
#else
static void charges_by_node(struct kunit *test)
{
	kunit_skip(test, "not in this configuration");
}

static void memcg_room(struct kunit *test)
{
	kunit_skip(test, "not in this configuration");
}
#endif

/*
 * A page that cannot be read. If it is the faulting page, the fault fails, as it does
 * without copying ahead. Nothing reads a page twice.
 */

static const struct unreadable_case unreadable_cases[] = {
	{ "the faulting page", FAULT, 1 },
	{ "the first neighbour", FAULT + 1, 2 },
	{ "a neighbour in the middle", FAULT + 2, 3 },
	{ "the last neighbour", FAULT + 3, 4 },
};

KUNIT_ARRAY_PARAM_DESC(unreadable, unreadable_cases, desc);

static void unreadable_page(struct kunit *test)
{
	const struct unreadable_case *c = test->param_value;
	bool self = c->page == FAULT;

	cowt_set_window(3);
	cowt_share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, cowt_alloc_stub);
	cowt_fault_unreadable(test, FAULT, c);
	cowt_expect_copies(test, 4, 0);
	cowt_expect_region(test, self ? 0 : COPIED(0));
	cowt_expect_counts(test, 0, COW_SKIP_SPECIAL, 3);
}

/* @last: the last page of the range that is invalidated */
static void test_notifier(struct kunit *test, unsigned long last, u64 copied)
{
	cowt_watch_fault(test, FAULT, FAULT, last, copied);
}

static void notifier_range(struct kunit *test)
{
	cowt_set_window(5);
	cowt_share_pages(test, ALL_PAGES);
	test_notifier(test, FAULT + 5, COPIED(5));
}

/* The range ends with the last page that is copied, not with the window. */
static void notifier_range_is_no_wider(struct kunit *test)
{
	cowt_set_window(5);
	cowt_populate(test, ALL_PAGES);
	cowt_share(test);
	cowt_write_alone(test, FAULT + 2);
	cowt_write_alone(test, FAULT + 5);
	cowt_note(test);
	test_notifier(test, FAULT + 4, COPIED(4) & ~BIT_ULL(FAULT + 2));
}

static void notifier_range_alone(struct kunit *test)
{
	static_branch_disable(&cow_precopy_key);
	cowt_share_pages(test, ALL_PAGES);
	test_notifier(test, FAULT, COPIED(0));
}

static struct kunit_case cow_precopy_cases[] = {
	KUNIT_CASE_PARAM(copies_the_window, size_gen_params),
	KUNIT_CASE_PARAM(sequential_walk, size_gen_params),
	KUNIT_CASE(switched_off),
	KUNIT_CASE_PARAM(vma_end, bound_gen_params),
	KUNIT_CASE_PARAM(pmd_boundary, bound_gen_params),
	KUNIT_CASE_PARAM(vma_end_at_pmd_boundary, bound_gen_params),
	KUNIT_CASE_PARAM(next_vma, bound_gen_params),
	KUNIT_CASE_PARAM(odd_neighbour, odd_gen_params),
	KUNIT_CASE(written_neighbour),
	KUNIT_CASE(file_neighbour),
	KUNIT_CASE(neighbour_in_lru_batch),
	KUNIT_CASE(lazyfree_neighbour_in_lru_batch),
	KUNIT_CASE_PARAM(copies_are_old, young_gen_params),
	KUNIT_CASE(copies_are_on_the_lru),
	KUNIT_CASE(few_copies_wait),
	KUNIT_CASE(copies_downward),
	KUNIT_CASE(fault_reuses),
	KUNIT_CASE(fault_on_zero_page),
	KUNIT_CASE_PARAM(fault_is_no_plain_write, flags_gen_params),
	KUNIT_CASE_PARAM(vma_refuses, refused_gen_params),
	KUNIT_CASE_PARAM(race_on_neighbour, race_gen_params),
	KUNIT_CASE(race_on_fault_page),
	KUNIT_CASE(race_on_all_neighbours),
	KUNIT_CASE(race_page_table_gone),
	KUNIT_CASE(race_with_child),
	KUNIT_CASE(allocation_fails),
	KUNIT_CASE(allocation_fails_later),
	KUNIT_CASE(no_references_across_reclaim),
	KUNIT_CASE(throttles),
	KUNIT_CASE(charge_fails),
	KUNIT_CASE(no_room),
	KUNIT_CASE(no_room_in_zone),
	KUNIT_CASE(no_room_in_cpuset),
	KUNIT_CASE(room_in_other_zone),
	KUNIT_CASE_PARAM(room_on_nodes, policy_gen_params),
	KUNIT_CASE(no_room_for_pins),
	KUNIT_CASE_PARAM(memcg_room, room_gen_params),
	KUNIT_CASE(charges_by_node),
	KUNIT_CASE_PARAM(unreadable_page, unreadable_gen_params),
	KUNIT_CASE(notifier_range),
	KUNIT_CASE(notifier_range_is_no_wider),
	KUNIT_CASE(notifier_range_alone),
	{}
};

static struct kunit_suite cow_precopy_suite = {
	.name = "cow_precopy",
	.init = cowt_init,
	.exit = cowt_exit,
	.suite_exit = cowt_suite_exit,
	.test_cases = cow_precopy_cases,
};

kunit_test_suite(cow_precopy_suite);

MODULE_DESCRIPTION("Tests of copy-on-write faults that copy a fixed window ahead");
MODULE_LICENSE("GPL");
