// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of copy-on-write faults: kinds of neighbours, VMAs and races that
 * are tested with every kind of window, and stubs for allocations.
 */
#include <linux/mempolicy.h>
#include <linux/mm_inline.h>
#include <linux/rmap.h>
#include <linux/swap.h>
#include <linux/swapops.h>

#include "../internal.h"
#include "cow_kunit.h"

/*
 * Stubs
 */

static void race_stub(struct vm_fault *vmf)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	/* The race may take a fault, which ends up here again. */
	if (f->raced)
		return;
	f->raced = true;
	f->race(test);
}

/* Memory to speculate with is there at once, and above the low watermark, or not taken. */
void cowt_expect_gfp(struct kunit *test, gfp_t gfp)
{
	KUNIT_EXPECT_EQ_MSG(test, gfp & __GFP_RECLAIM, 0, "reclaims memory, or wakes kswapd");
	KUNIT_EXPECT_EQ_MSG(test, gfp & (__GFP_HIGH | __GFP_MEMALLOC | __GFP_NOFAIL), 0,
			    "takes memory below the low watermark");
	KUNIT_EXPECT_TRUE_MSG(test, gfp & __GFP_NOMEMALLOC, "may use the reserves");
	KUNIT_EXPECT_TRUE_MSG(test, gfp & __GFP_NOWARN, "warns that memory is short");
}

/* Keep a reference, to check later that the fault dropped its own. */
struct folio *cowt_alloc_stub(gfp_t gfp, struct vm_area_struct *vma,
			      unsigned long addr)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;
	struct page *page = alloc_page(GFP_HIGHUSER_MOVABLE);

	cowt_expect_gfp(test, gfp);
	if (!page || f->nr_copies == ARRAY_SIZE(f->copies)) {
		KUNIT_FAIL(test, "no memory, or more asked for than the window has");
		return NULL;
	}
	get_page(page);
	f->copies[f->nr_copies++] = page_folio(page);
	return page_folio(page);
}

/* Force one allocation per page, so that tests see each address. */
unsigned int cowt_no_bulk_stub(gfp_t gfp, struct vm_area_struct *vma,
			       unsigned int nr, struct page **pages)
{
	return 0;
}

/* One page cannot be read, as if a machine check had hit it. */
static bool read_stub(struct page *copy, struct page *old, unsigned long addr,
		      struct vm_area_struct *vma)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	f->nr_reads++;
	if (addr == cowt_page_addr(test, f->unreadable))
		return false;
	copy_highpage(copy, old);
	return true;
}

/* If it is the faulting page, the fault fails. Nothing reads a page twice. */
void cowt_fault_unreadable(struct kunit *test, unsigned int at,
			   const struct unreadable_case *c)
{
	struct fixture *f = test->priv;

	f->unreadable = c->page;
	kunit_activate_static_stub(test, cow_precopy_read, read_stub);
	if (c->page == at)
		KUNIT_EXPECT_EQ(test, cowt_fault_result(test, at, WRITE_FLAGS),
				VM_FAULT_HWPOISON);
	else
		cowt_write_fault(test, at);
	KUNIT_EXPECT_EQ(test, f->nr_reads, c->reads);
}

int cowt_no_charge_stub(struct page **pages, unsigned int nr, struct mm_struct *mm,
			gfp_t gfp)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	f->nr_charges++;
	KUNIT_EXPECT_FALSE_MSG(test, gfp & __GFP_DIRECT_RECLAIM, "the charge may reclaim");
	return -ENOMEM;
}

/*
 * The neighbour at ODD differs from the others. Its other neighbours are either
 * all shared, so that the fault copies them, or mapped by the parent only, so
 * that the fault makes them writable.
 */

struct page *cowt_odd_page(struct kunit *test)
{
	struct fixture *f = test->priv;

	f->odd = cowt_read_page(test, current->mm, ODD);
	KUNIT_ASSERT_NOT_NULL(test, f->odd);
	return f->odd;
}

struct folio *cowt_odd_folio(struct kunit *test)
{
	return page_folio(cowt_odd_page(test));
}

/* For undo functions: the fault may have replaced the page. */
static struct folio *odd_old_folio(struct kunit *test)
{
	struct fixture *f = test->priv;

	return page_folio(f->odd);
}

static bool odd_is_shared(struct kunit *test)
{
	struct fixture *f = test->priv;

	return cowt_read_page(test, f->child.mm, ODD);
}

static void odd_read(struct kunit *test)
{
	cowt_fault(test, ODD, FAULT_FLAG_USER);
	KUNIT_ASSERT_TRUE(test, is_zero_pfn(pte_pfn(cowt_read_pte(test, current->mm,
								  cowt_page_addr(test, ODD)))));
}

void cowt_odd_zap(struct kunit *test)
{
	cowt_unmap_page_of(test, current->mm, ODD);
}

static void odd_swap_out(struct kunit *test)
{
	cowt_odd_page(test);
	cowt_swap_out(test, ODD);
}

static void odd_swap_back(struct kunit *test)
{
	cowt_drop_swap_entry(test, ODD, &odd_old_folio(test)->page);
}

void cowt_odd_write(struct kunit *test)
{
	cowt_write_alone(test, ODD);
	cowt_fill_page(cowt_odd_page(test), cowt_page_byte(ODD));
}

void cowt_odd_write_and_protect(struct kunit *test)
{
	cowt_odd_write(test);
	cowt_write_protect(test, ODD);
	KUNIT_ASSERT_TRUE(test, PageAnonExclusive(cowt_odd_page(test)));
}

static void odd_unshare(struct kunit *test)
{
	struct fixture *f = test->priv;

	if (odd_is_shared(test))
		cowt_unmap_page_of(test, f->child.mm, ODD);
	KUNIT_ASSERT_FALSE(test, PageAnonExclusive(cowt_odd_page(test)));
}

static void odd_get(struct kunit *test)
{
	folio_get(cowt_odd_folio(test));
}

static void odd_put(struct kunit *test)
{
	folio_put(odd_old_folio(test));
}

static void odd_exclusive_get(struct kunit *test)
{
	cowt_odd_write_and_protect(test);
	odd_get(test);
}

/* Whoever locks a folio has a reference; here nobody does, and the lock is no obstacle. */
static void odd_lock(struct kunit *test)
{
	folio_lock(cowt_odd_folio(test));
}

static void odd_unlock(struct kunit *test)
{
	folio_unlock(odd_old_folio(test));
}

/* The swap cache has a reference. */
static void odd_swapcache_alone(struct kunit *test)
{
	folio_set_swapcache(cowt_odd_folio(test));
	folio_get(cowt_odd_folio(test));
}

static void odd_unswapcache_alone(struct kunit *test)
{
	folio_clear_swapcache(odd_old_folio(test));
	folio_put(odd_old_folio(test));
}

static void odd_exclusive_swapcache(struct kunit *test)
{
	cowt_odd_write_and_protect(test);
	odd_swapcache_alone(test);
}

static void odd_swapcache(struct kunit *test)
{
	odd_swapcache_alone(test);
	odd_get(test);
}

static void odd_unswapcache(struct kunit *test)
{
	odd_unswapcache_alone(test);
	odd_put(test);
}

static void odd_pin(struct kunit *test)
{
	folio_ref_add(cowt_odd_folio(test), GUP_PIN_COUNTING_BIAS);
}

static void odd_unpin(struct kunit *test)
{
	folio_put_refs(odd_old_folio(test), GUP_PIN_COUNTING_BIAS);
}

static void odd_exclusive_pin(struct kunit *test)
{
	cowt_odd_write_and_protect(test);
	odd_pin(test);
}

/*
 * Anonymous pages have bit 0 of folio->mapping set, KSM pages bits 0 and 1. If
 * only the parent maps the page, it is marked exclusive: nothing but the check
 * for KSM must keep it from being made writable.
 */
static void odd_ksm(struct kunit *test)
{
	struct folio *folio = cowt_odd_folio(test);

	if (!odd_is_shared(test))
		SetPageAnonExclusive(cowt_odd_page(test));
	folio->mapping = (void *)((unsigned long)folio->mapping | 3);
	KUNIT_EXPECT_TRUE(test, folio_test_ksm(folio));
}

static void odd_unksm(struct kunit *test)
{
	struct folio *folio = odd_old_folio(test);

	folio->mapping = (void *)(((unsigned long)folio->mapping & ~3UL) | 1);
}

/* PG_swapbacked selects the LRU list, so drain the batches before it changes. */
static void odd_lazyfree(struct kunit *test)
{
	lru_add_drain_all();
	folio_clear_swapbacked(cowt_odd_folio(test));
}

static void odd_unlazyfree(struct kunit *test)
{
	folio_set_swapbacked(odd_old_folio(test));
}

void cowt_odd_poison(struct kunit *test)
{
	SetPageHWPoison(cowt_odd_page(test));
}

void cowt_odd_unpoison(struct kunit *test)
{
	struct fixture *f = test->priv;

	ClearPageHWPoison(f->odd);
}

void cowt_odd_protnone(struct kunit *test)
{
	cowt_change_pte(test, ODD, cowt_pte_make_protnone);
}

static void odd_dirty(struct kunit *test)
{
	cowt_change_pte(test, ODD, cowt_pte_hw_written);
}

/* A write fault leaves the PTE dirty and soft-dirty. */
static void odd_soft_dirty(struct kunit *test)
{
	cowt_change_pte(test, ODD, pte_mkdirty);
}

const struct odd_case cowt_odd_cases[NR_ODD_CASES] = {
	{
		.desc = "never touched",
		.hole = true,
		.needs = true,
		.copy = COW_SKIP_NOTPRESENT,
		.reuse = COW_SKIP_NOTPRESENT,
	}, {
		.desc = "unmapped",
		.late = cowt_odd_zap,
		.needs = true,
		.copy = COW_SKIP_NOTPRESENT,
		.reuse = COW_SKIP_NOTPRESENT,
	}, {
		.desc = "swapped out",
		.late = odd_swap_out,
		.undo = odd_swap_back,
		.needs = true,
		.copy = COW_SKIP_NOTPRESENT,
		.reuse = COW_SKIP_NOTPRESENT,
	}, {
		.desc = "zero page",
		.hole = true,
		.early = odd_read,
		.needs = true,
		.copy = COW_SKIP_NOTANON,
		.reuse = COW_SKIP_NOTANON,
	}, {
		.desc = "still shared",
		.needs = true,
		.shared = true,
	}, {
		.desc = "no longer shared",
		.late = odd_unshare,
		.needs = true,
		.copy = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "dirty",
		.late = odd_dirty,
		.needs = true,
		.dirty = true,
	}, {
		.desc = "soft-dirty",
		.late = odd_soft_dirty,
		.needs = IS_ENABLED(CONFIG_MEM_SOFT_DIRTY),
		.dirty = true,
	}, {
		.desc = "exclusive, read-only",
		.late = cowt_odd_write_and_protect,
		.needs = true,
		.dirty = true,
		.copy = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "exclusive, somebody has a reference",
		.late = odd_exclusive_get,
		.undo = odd_put,
		.needs = true,
		.dirty = true,
		.copy = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "locked",
		.late = odd_lock,
		.undo = odd_unlock,
		.needs = true,
	}, {
		.desc = "somebody has a reference",
		.late = odd_get,
		.undo = odd_put,
		.needs = true,
		.copy = COW_SKIP_PINNED,
		.reuse = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "in the swap cache, somebody has a reference",
		.late = odd_swapcache,
		.undo = odd_unswapcache,
		.needs = true,
		.copy = COW_SKIP_PINNED,
		.reuse = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "exclusive, in the swap cache",
		.late = odd_exclusive_swapcache,
		.undo = odd_unswapcache_alone,
		.needs = IS_ENABLED(CONFIG_SWAP),
		.dirty = true,
		.copy = COW_SKIP_EXCLUSIVE,
		.reuse = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "in the swap cache",
		.late = odd_swapcache_alone,
		.undo = odd_unswapcache_alone,
		.needs = IS_ENABLED(CONFIG_SWAP),
		.reuse = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "pinned",
		.late = odd_pin,
		.undo = odd_unpin,
		.needs = true,
		.copy = COW_SKIP_PINNED,
		.reuse = COW_SKIP_PINNED,
	}, {
		.desc = "exclusive and pinned",
		.late = odd_exclusive_pin,
		.undo = odd_unpin,
		.needs = true,
		.copy = COW_SKIP_PINNED,
		.reuse = COW_SKIP_PINNED,
	}, {
		.desc = "KSM page",
		.late = odd_ksm,
		.undo = odd_unksm,
		.needs = IS_ENABLED(CONFIG_KSM),
		.copy = COW_SKIP_KSM,
		.reuse = COW_SKIP_KSM,
	}, {
		.desc = "MADV_FREE",
		.late = odd_lazyfree,
		.undo = odd_unlazyfree,
		.needs = true,
		.copy = COW_SKIP_SPECIAL,
		.reuse = COW_SKIP_SPECIAL,
	}, {
		.desc = "hwpoison",
		.late = cowt_odd_poison,
		.undo = cowt_odd_unpoison,
		.needs = IS_ENABLED(CONFIG_MEMORY_FAILURE),
		.copy = COW_SKIP_SPECIAL,
		.reuse = COW_SKIP_SPECIAL,
	}, {
		.desc = "NUMA hinting",
		.late = cowt_odd_protnone,
		.needs = IS_ENABLED(CONFIG_NUMA_BALANCING),
		.copy = COW_SKIP_SPECIAL,
		.reuse = COW_SKIP_SPECIAL,
	},
};

/*
 * Share the region. Then the parent copies the pages @demanded, and the child
 * unmaps the pages @alone.
 */
void cowt_share_odd(struct kunit *test, u64 demanded, u64 alone)
{
	const struct odd_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	if (c->hole || c->shared)
		alone &= ~BIT_ULL(ODD);
	cowt_populate(test, c->hole ? ALL_PAGES & ~BIT_ULL(ODD) : ALL_PAGES);
	if (c->early)
		c->early(test);
	cowt_share(test);
	cowt_demand(test, demanded);
	cowt_take_from_child(test, alone);
	if (c->late)
		c->late(test);
	cowt_note(test);
}

void cowt_undo_odd(struct kunit *test)
{
	const struct odd_case *c = test->param_value;

	if (c->undo)
		c->undo(test);
}

const struct flags_case cowt_flags_cases[NR_FLAGS_CASES] = {
	{ "unsharing for GUP", FAULT_FLAG_USER | FAULT_FLAG_UNSHARE, false },
	{ "write by another process", WRITE_FLAGS | FAULT_FLAG_REMOTE, true },
};

/*
 * The VMA does not allow copying ahead. The refusal is counted once per fault.
 */

const struct refused_case cowt_refused_cases[NR_REFUSED_CASES] = {
	{
		.desc = "MADV_RANDOM",
		.set = VM_RAND_READ,
		.needs = true,
		.why = COW_SKIP_MADVISE,
	}, {
		.desc = "userfaultfd",
		.set = VM_UFFD_MISSING,
		.needs = IS_ENABLED(CONFIG_USERFAULTFD),
		.why = COW_SKIP_UFFD,
	}, {
		.desc = "soft-dirty tracking",
		.clear = VM_SOFTDIRTY,
		.needs = IS_ENABLED(CONFIG_MEM_SOFT_DIRTY),
		.why = COW_SKIP_SOFTDIRTY,
	}, {
		.desc = "mixed map",
		.set = VM_MIXEDMAP,
		.needs = true,
		.why = COW_SKIP_SPECIAL,
	},
};

/*
 * Races: a neighbour or the faulting page changes while the fault does not hold
 * the page table lock. The copy of that page is freed, the others are mapped,
 * and the fault succeeds.
 */

/* A race replaced page @i of the parent: record its new state. */
void cowt_note_race(struct kunit *test, unsigned int i, int refs)
{
	struct fixture *f = test->priv;

	lru_add_drain_all();
	f->parent.pages[i] = cowt_read_state(test, f->parent.mm, i);
	f->parent.anon = cowt_read_anon(f->parent.mm);
	/* Now only the child maps the old page. */
	f->child.pages[i].mapcount--;
	f->child.pages[i].refs -= refs;
}

/* Another thread writes to the page @i. */
void cowt_write_locked(struct kunit *test, unsigned int i)
{
	struct page *page;

	cowt_fault_locked(test, i, WRITE_FLAGS | FAULT_FLAG_REMOTE);
	page = cowt_read_page(test, current->mm, i);
	if (page)
		cowt_fill_page(page, cowt_page_byte(i));
}

void cowt_race_write(struct kunit *test)
{
	cowt_write_locked(test, ODD);
	cowt_note_race(test, ODD, 1);
}

static void race_unmap(struct kunit *test)
{
	cowt_odd_zap(test);
	cowt_note_race(test, ODD, 1);
}

static void race_swap_out(struct kunit *test)
{
	odd_swap_out(test);
	cowt_note_race(test, ODD, 0);
}

/* The PTE is read-only as before, but maps another page. */
static void race_write_and_protect(struct kunit *test)
{
	cowt_write_locked(test, ODD);
	cowt_write_protect(test, ODD);
	cowt_note_race(test, ODD, 1);
}

/* See cowt_swap_out() for the limits. */
static void race_migrate(struct kunit *test)
{
	unsigned long pfn = page_to_pfn(cowt_odd_page(test));

	cowt_take_page(test, current->mm, ODD);
	cowt_replace_pte(test, current->mm, ODD,
			 swp_entry_to_pte(make_readable_migration_entry(pfn)));
	cowt_note_race(test, ODD, 0);
}

/* Unlike a swap entry, a migration entry is not in MM_SWAPENTS. */
static void undo_migrate(struct kunit *test)
{
	cowt_replace_pte(test, current->mm, ODD, __pte(0));
	folio_put(odd_old_folio(test));
}

const struct race_case cowt_race_cases[NR_RACE_CASES] = {
	{ "written to", cowt_race_write, NULL, true },
	{ "unmapped", race_unmap, NULL, true },
	{ "swapped out", race_swap_out, odd_swap_back, true },
	{ "under migration", race_migrate, undo_migrate,
	  IS_ENABLED(CONFIG_MIGRATION) },
	{ "another page, write-protected", race_write_and_protect, NULL, true },
};

void cowt_start_race(struct kunit *test, void (*race)(struct kunit *test))
{
	struct fixture *f = test->priv;

	f->race = race;
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, cowt_no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, cowt_alloc_stub);
	kunit_activate_static_stub(test, cow_precopy_unlocked, race_stub);
}

void cowt_race_write_fault_page(struct kunit *test)
{
	cowt_write_locked(test, FAULT);
	cowt_note_race(test, FAULT, 1);
}

/*
 * The parent's PTE stays the same, but no other process maps the page now. The test
 * has a reference, which it must not have before the page is chosen.
 */
void cowt_race_unmap_in_child(struct kunit *test)
{
	struct fixture *f = test->priv;

	get_page(f->parent.pages[ODD].page);
	cowt_unmap_page_of(test, f->child.mm, ODD);
	f->child.pages[ODD] = cowt_read_state(test, f->child.mm, ODD);
	f->child.anon = cowt_read_anon(f->child.mm);
}

/*
 * The child unmaps ODD during a fault that copies the pages @copied. @made pages
 * were allocated one by one.
 */
void cowt_test_race_with_child(struct kunit *test, u64 copied,
			       unsigned int made)
{
	struct fixture *f = test->priv;
	struct page *old = f->parent.pages[ODD].page;
	unsigned int i;

	cowt_write_fault(test, FAULT);
	KUNIT_ASSERT_TRUE(test, f->raced);
	cowt_expect_copies(test, made, made);
	KUNIT_EXPECT_FALSE(test, folio_mapped(page_folio(old)));
	KUNIT_EXPECT_EQ(test, page_count(old), 1);
	put_page(old);
	for (i = 0; i < NR_PAGES; i++) {
		if (i == ODD)
			continue;
		if (has_page(copied, i))
			cowt_expect_copied(test, i);
		else
			cowt_expect_unchanged(test, i);
	}
	cowt_expect_content(test, &f->parent, ODD);
	KUNIT_EXPECT_EQ(test, cowt_read_anon(f->parent.mm), f->parent.anon);
	cowt_expect_counts(test, hweight64(copied) - 1, COW_SKIP_NONE, 0);
}

const struct policy_case cowt_policy_cases[NR_POLICY_CASES] = {
	{ "of the task", false },
	{ "of the VMA", true },
};

/* Set a memory policy. Any policy will do, even the default one. */
void cowt_set_policy(struct kunit *test, bool on)
{
#ifdef CONFIG_NUMA
	static struct mempolicy local = {
		.refcnt = ATOMIC_INIT(1),
		.mode = MPOL_LOCAL,
	};
	const struct policy_case *c = test->param_value;
	struct mempolicy *policy = on ? &local : NULL;

	if (c->of_vma)
		vma_lookup(current->mm, cowt_page_addr(test, 0))->vm_policy = policy;
	else
		current->mempolicy = policy;
#else
	kunit_skip(test, "not in this configuration");
#endif
}
