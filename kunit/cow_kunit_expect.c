// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of copy-on-write faults: record the state of both address spaces
 * before a fault, and compare it with the state after the fault.
 */
#include <linux/memcontrol.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/mmzone.h>
#include <linux/seq_file.h>
#include <linux/swap.h>

#include "../internal.h"
#include "cow_kunit.h"

/* NR_ANON_MAPPED of all nodes, including the per-CPU differences. */
static long read_anon_mapped(void)
{
	long nr = 0;
	pg_data_t *pgdat;
	int cpu __maybe_unused;

	for_each_online_pgdat(pgdat) {
		nr += atomic_long_read(&pgdat->vm_stat[NR_ANON_MAPPED]);
#ifdef CONFIG_SMP
		for_each_online_cpu(cpu)
			nr += per_cpu_ptr(pgdat->per_cpu_nodestats,
					  cpu)->vm_node_stat_diff[NR_ANON_MAPPED];
#endif
	}
	return nr;
}

/* What a file in /proc shows, up to PAGE_SIZE; freed after the test */
char *cowt_read_file(struct kunit *test, int (*show)(struct seq_file *m, void *v))
{
	struct seq_file m = { .size = PAGE_SIZE };

	m.buf = kunit_kzalloc(test, m.size, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, m.buf);
	KUNIT_ASSERT_EQ(test, show(&m, NULL), 0);
	KUNIT_ASSERT_FALSE(test, seq_has_overflowed(&m));
	m.buf[m.count] = '\0';
	return m.buf;
}

unsigned long cowt_read_event(enum vm_event_item item)
{
#ifdef CONFIG_VM_EVENT_COUNTERS
	static unsigned long events[NR_VM_EVENT_ITEMS];

	all_vm_events(events);
	return events[item];
#else
	return 0;
#endif
}

static void read_counts(struct counts *counts)
{
	int why;

	counts->anon_mapped = read_anon_mapped();
	counts->pgreuse = cowt_read_event(PGREUSE);

	counts->success = cow_count_total(COW_ITEM_PRECOPIED);
	counts->attempts = counts->success;
	for (why = 0; why < NR_COW_SKIPS; why++) {
		counts->skips[why] = cow_count_total(COW_ITEM_SKIP + why);
		counts->attempts += counts->skips[why];
	}
	memcpy(counts->mine, current->mm->cow_counts.counts.items,
	       sizeof(counts->mine));
}

static void note_space(struct kunit *test, struct space *space)
{
	unsigned int i;

	space->anon = cowt_read_anon(space->mm);
	for (i = 0; i < NR_PAGES; i++)
		space->pages[i] = cowt_read_state(test, space->mm, i);
}

/* Record everything that the expectations below compare with. */
void cowt_note(struct kunit *test)
{
	struct fixture *f = test->priv;

	/* The batches of folios to be added to an LRU list hold references. */
	lru_add_drain_all();
	note_space(test, &f->parent);
	note_space(test, &f->child);
	read_counts(&f->before);
}

/*
 * Expectations
 */

void cowt_expect_content(struct kunit *test, struct space *space, unsigned int i)
{
	struct page *page = cowt_read_page(test, space->mm, i);

	if (space->pages[i].page && page)
		KUNIT_EXPECT_TRUE_MSG(test, cowt_page_has(page, cowt_page_byte(i)),
				      "content of page %u", i);
}

/* A page lost @nr mappings. By how much does its folio's mapcount drop? */
static int lost_maps(struct fixture *f, const struct page_state *was, int nr)
{
	return f->old && was->page && page_folio(was->page) == f->old ? f->old_lost : nr;
}

/* The PTE is unchanged; the page has @maps mappings and @refs references less. */
void cowt_expect_less(struct kunit *test, struct space *space, unsigned int i,
		      int maps, int refs)
{
	struct page_state *was = &space->pages[i];
	struct page_state is = cowt_read_state(test, space->mm, i);
	struct fixture *f = test->priv;

	KUNIT_EXPECT_EQ_MSG(test, pte_val(is.pte), pte_val(was->pte), "PTE %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.mapcount, was->mapcount - lost_maps(f, was, maps),
			    "mapcount of page %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.refs, was->refs - lost_maps(f, was, refs),
			    "references to page %u", i);
	cowt_expect_content(test, space, i);
}

void cowt_expect_unchanged(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;

	cowt_expect_less(test, &f->parent, i, 0, 0);
	cowt_expect_less(test, &f->child, i, 0, 0);
}

/*
 * Is the PTE of a copy expected to be clean? With contpte, ptep_get() returns the
 * dirty bit of the whole block: if one PTE of it is dirty, all of them are, even
 * after the folio was split.
 */
static bool wants_clean(const struct fixture *f, unsigned int i)
{
#ifdef CONFIG_ARM64_CONTPTE
	u64 block = GENMASK_ULL(CONT_PTES - 1, 0) << round_down(i, CONT_PTES);

	if (!(block & ~(f->large | f->split)) && (block & ~f->clean))
		return false;
#endif
	return has_page(f->clean, i);
}

/* Writable as pte_mkwrite() makes it: x86 has another dirty bit for what is not. */
static void expect_writable(struct kunit *test, pte_t pte, unsigned int i)
{
	struct vm_area_struct *vma;
	pte_t wanted = pte;

	mmap_read_lock(current->mm);
	vma = vma_lookup(current->mm, cowt_page_addr(test, i));
	if (vma)
		wanted = pte_mkwrite(pte, vma);
	mmap_read_unlock(current->mm);
	KUNIT_EXPECT_NOT_NULL(test, vma);
	KUNIT_EXPECT_TRUE_MSG(test, pte_write(pte), "PTE %u is read-only", i);
	KUNIT_EXPECT_TRUE_MSG(test, pte_same(pte, wanted),
			      "PTE %u has the dirty bit of a read-only one", i);
}

/* The parent maps a copy, the child the same page as before. */
void cowt_expect_copied(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;
	struct page_state is = cowt_read_state(test, f->parent.mm, i);
	int nr = has_page(f->large, i) ? hweight64(f->large) : 1;

	cowt_expect_less(test, &f->child, i, 1, 1);
	KUNIT_EXPECT_TRUE_MSG(test, pte_present(is.pte), "PTE %u", i);
	if (!is.page)
		return;
	KUNIT_EXPECT_PTR_NE_MSG(test, is.page, f->parent.pages[i].page,
				"page %u was not copied", i);
	expect_writable(test, is.pte, i);
	KUNIT_EXPECT_EQ_MSG(test, !pte_dirty(is.pte), wants_clean(f, i),
			    "PTE %u: clean or dirty", i);
	if (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && has_page(f->clean, i))
		KUNIT_EXPECT_FALSE_MSG(test, pte_soft_dirty(is.pte),
				       "PTE %u is soft-dirty", i);
	if (wants_clean(f, i))
		KUNIT_EXPECT_FALSE_MSG(test, pte_young(is.pte),
				       "PTE %u is young before it is used", i);
	KUNIT_EXPECT_TRUE_MSG(test, PageAnon(is.page) && PageAnonExclusive(is.page),
			      "page %u is not exclusive", i);
	KUNIT_EXPECT_TRUE_MSG(test, folio_test_uptodate(page_folio(is.page)),
			      "the copy of page %u is not up to date", i);
	if (has_page(f->clean, i))
		KUNIT_EXPECT_TRUE_MSG(test, folio_test_dirty(page_folio(is.page)),
				      "the copy of page %u may be dropped", i);
	KUNIT_EXPECT_EQ_MSG(test, folio_nr_pages(page_folio(is.page)), nr,
			    "pages of the folio of page %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.mapcount, nr, "mapcount of the copy of page %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.refs, nr, "references to the copy of page %u", i);
	if (nr > 1)
		KUNIT_EXPECT_PTR_EQ_MSG(test, is.page, folio_page(page_folio(is.page),
								  i - __ffs64(f->large)),
					"page %u is another one of its folio", i);
	KUNIT_EXPECT_TRUE_MSG(test, folio_test_lru(page_folio(is.page)),
			      "the copy of page %u is on no LRU list", i);
	KUNIT_EXPECT_EQ_MSG(test, folio_memcg_charged(page_folio(is.page)),
			    IS_ENABLED(CONFIG_MEMCG) && !mem_cgroup_disabled(),
			    "the copy of page %u: charged", i);
	cowt_expect_content(test, &f->parent, i);
	if (is.page == f->parent.pages[i].page)
		return;
	/* The child must not see what the parent writes. */
	cowt_fill_page(is.page, 0xee);
	cowt_expect_content(test, &f->child, i);
}

/* The parent maps the same page as before, now exclusive and writable. */
static void expect_reused(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;
	struct page_state *was = &f->parent.pages[i];
	struct page_state is = cowt_read_state(test, f->parent.mm, i);

	cowt_expect_less(test, &f->child, i, 0, 0);
	KUNIT_EXPECT_PTR_EQ_MSG(test, is.page, was->page, "page %u was replaced", i);
	if (!is.page)
		return;
	expect_writable(test, is.pte, i);
	KUNIT_EXPECT_EQ_MSG(test, !pte_dirty(is.pte), has_page(f->clean, i),
			    "PTE %u: clean or dirty", i);
	if (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && has_page(f->clean, i))
		KUNIT_EXPECT_FALSE_MSG(test, pte_soft_dirty(is.pte),
				       "PTE %u is soft-dirty", i);
	KUNIT_EXPECT_TRUE_MSG(test, PageAnonExclusive(is.page),
			      "page %u is not exclusive", i);
	KUNIT_EXPECT_EQ_MSG(test, is.mapcount, was->mapcount - lost_maps(f, was, 0),
			    "mapcount of page %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.refs, was->refs - lost_maps(f, was, 0),
			    "references to page %u", i);
	cowt_expect_content(test, &f->parent, i);
}

/*
 * The fault replaced the pages @copied of the region and made the pages @reused
 * writable; nothing else changed.
 */
void cowt_expect_region_reused(struct kunit *test, u64 copied, u64 reused)
{
	struct fixture *f = test->priv;
	unsigned int i;

	lru_add_drain_all();
	f->old_lost = 0;
	for (i = 0; i < NR_PAGES; i++)
		if (has_page(copied, i))
			f->old_lost += f->old && page_folio(f->parent.pages[i].page) == f->old;
	for (i = 0; i < NR_PAGES; i++) {
		if (has_page(copied, i))
			cowt_expect_copied(test, i);
		else if (has_page(reused, i))
			expect_reused(test, i);
		else
			cowt_expect_unchanged(test, i);
	}
	KUNIT_EXPECT_EQ(test, cowt_read_anon(f->parent.mm), f->parent.anon);
	KUNIT_EXPECT_EQ(test, cowt_read_anon(f->child.mm), f->child.anon);
}

/* The fault replaced the pages @copied of the region and changed nothing else. */
void cowt_expect_region(struct kunit *test, u64 copied)
{
	cowt_expect_region_reused(test, copied, 0);
}

/* @success pages were copied ahead, @skipped pages were not, for the reason @why. */
void cowt_expect_counts(struct kunit *test, unsigned int success,
			enum cow_skip why, unsigned int skipped)
{
	struct fixture *f = test->priv;
	struct counts now;
	int i;

	read_counts(&now);
	KUNIT_EXPECT_EQ(test, now.attempts - f->before.attempts, success + skipped);
	KUNIT_EXPECT_EQ(test, now.success - f->before.success, success);
	for (i = 0; i < NR_COW_SKIPS; i++)
		KUNIT_EXPECT_EQ_MSG(test, now.skips[i] - f->before.skips[i],
				    i == why ? skipped : 0, "reason %d", i);

	KUNIT_EXPECT_EQ(test, now.mine[COW_ITEM_PRECOPIED] -
			f->before.mine[COW_ITEM_PRECOPIED], success);
	for (i = COW_ITEM_SKIP; i < NR_COW_ITEMS; i++)
		KUNIT_EXPECT_EQ_MSG(test, now.mine[i] - f->before.mine[i],
				    i == COW_ITEM_SKIP + why ? skipped : 0,
				    "item %d of the process", i);
}

/*
 * The fault allocated @made copies. @mapped of them are mapped now, and the test
 * has the only reference to each of the others.
 */
void cowt_expect_copies(struct kunit *test, unsigned int made, unsigned int mapped)
{
	struct fixture *f = test->priv;
	unsigned int i, nr = 0;

	lru_add_drain_all();
	KUNIT_EXPECT_EQ(test, f->nr_copies, made);
	for (i = 0; i < f->nr_copies; i++) {
		struct folio *copy = f->copies[i];
		bool is_mapped = folio_mapped(copy);

		nr += is_mapped;
		KUNIT_EXPECT_EQ_MSG(test, folio_ref_count(copy), is_mapped ? 2 : 1,
				    "references to copy %u", i);
		folio_put(copy);
	}
	KUNIT_EXPECT_EQ(test, nr, mapped);
	f->nr_copies = 0;
}

/*
 * Secondary MMUs
 */

/**
 * struct watcher - MMU notifiers and what they saw
 * @notifier: for invalidate_range_start() and invalidate_range_end()
 * @tlb: for arch_invalidate_secondary_tlbs(), which needs a notifier of its own
 * @test: the test
 * @starts: number of calls of invalidate_range_start()
 * @ends: number of calls of invalidate_range_end()
 * @start: start of the range
 * @end: end of the range
 * @early: pages that had been replaced when the range started
 * @late: pages that had been replaced when the range ended
 * @flushes: number of TLB flushes
 * @flushed: pages whose PTE was none during a flush
 * @unmapped: those of them that were not in the rmap any more
 */
struct watcher {
	struct mmu_notifier notifier;
	struct mmu_notifier tlb;
	struct kunit *test;
	unsigned int starts;
	unsigned int ends;
	unsigned long start;
	unsigned long end;
	u64 early;
	u64 late;
	unsigned int flushes;
	u64 flushed;
	u64 unmapped;
};

static u64 replaced_pages(struct kunit *test)
{
	struct fixture *f = test->priv;
	u64 replaced = 0;
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (cowt_read_page(test, f->parent.mm, i) != f->parent.pages[i].page)
			replaced |= BIT_ULL(i);
	}
	return replaced;
}

static int watch_start(struct mmu_notifier *notifier,
		       const struct mmu_notifier_range *range)
{
	struct watcher *w = container_of(notifier, struct watcher, notifier);

	w->starts++;
	w->start = range->start;
	w->end = range->end;
	w->early |= replaced_pages(w->test);
	return 0;
}

static void watch_end(struct mmu_notifier *notifier,
		      const struct mmu_notifier_range *range)
{
	struct watcher *w = container_of(notifier, struct watcher, notifier);

	w->ends++;
	w->late |= replaced_pages(w->test);
}

/* The caller holds the page table lock. */
static void watch_flush(struct mmu_notifier *notifier, struct mm_struct *mm,
			unsigned long start, unsigned long end)
{
	struct watcher *w = container_of(notifier, struct watcher, tlb);
	struct fixture *f = w->test->priv;
	unsigned int i;

	w->flushes++;
	for (i = 0; i < NR_PAGES; i++) {
		const struct page_state *was = &f->parent.pages[i];
		unsigned long addr = cowt_page_addr(w->test, i);
		pte_t *ptep = pte_offset_kernel(pmd_off(mm, addr), addr);

		if (addr < start || addr >= end || !pte_none(ptep_get_lockless(ptep)))
			continue;
		w->flushed |= BIT_ULL(i);
		if (was->page && folio_mapcount(page_folio(was->page)) != was->mapcount)
			w->unmapped |= BIT_ULL(i);
	}
}

static const struct mmu_notifier_ops watch_ops = {
	.invalidate_range_start = watch_start,
	.invalidate_range_end = watch_end,
};

static const struct mmu_notifier_ops tlb_ops = {
	.arch_invalidate_secondary_tlbs = watch_flush,
};

/*
 * A fault at @at invalidates the range from @first to @last and replaces the
 * pages @copied. The TLB is flushed before any of the copies is mapped, and before
 * the rmap forgets the old pages.
 */
void cowt_watch_fault(struct kunit *test, unsigned int at, unsigned long first,
		      unsigned long last, u64 copied)
{
	struct watcher *w = kunit_kzalloc(test, sizeof(*w), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, w);
	w->notifier.ops = &watch_ops;
	w->tlb.ops = &tlb_ops;
	w->test = test;
	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&w->notifier, current->mm), 0);
	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&w->tlb, current->mm), 0);
	cowt_write_fault(test, at);
	mmu_notifier_unregister(&w->tlb, current->mm);
	mmu_notifier_unregister(&w->notifier, current->mm);

	KUNIT_EXPECT_EQ(test, w->starts, 1);
	KUNIT_EXPECT_EQ(test, w->ends, 1);
	KUNIT_EXPECT_EQ(test, w->start, cowt_page_addr(test, first));
	KUNIT_EXPECT_EQ(test, w->end, cowt_page_addr(test, last + 1));
	KUNIT_EXPECT_EQ(test, w->early, 0);
	KUNIT_EXPECT_EQ(test, w->late, copied);
	/* Other architectures do not call arch_invalidate_secondary_tlbs(). */
	if (IS_ENABLED(CONFIG_X86)) {
		KUNIT_EXPECT_EQ(test, w->flushes, 1);
		KUNIT_EXPECT_EQ(test, w->flushed & copied, copied);
		/* Or another process would reuse a page that can still be read here. */
		KUNIT_EXPECT_EQ(test, w->unmapped, 0);
	}
}

/* Expect clean PTEs for @pages, if hardware sets dirty bits. */
void cowt_expect_clean(struct kunit *test, u64 pages, bool hw_dirty)
{
	struct fixture *f = test->priv;

	f->clean = hw_dirty ? pages : 0;
}

void cowt_expect_anon_mapped(struct kunit *test, unsigned int more)
{
	struct fixture *f = test->priv;

	/* On other architectures, other processes change the count. */
	if (!IS_ENABLED(CONFIG_UML))
		return;
	KUNIT_EXPECT_EQ_MSG(test, read_anon_mapped(), f->before.anon_mapped + more,
			    "nr_anon_pages");
}

/* @ahead pages were made writable ahead, and the faulting page if @self. */
void cowt_expect_reuses(struct kunit *test, unsigned int ahead, bool self)
{
	struct fixture *f = test->priv;
	struct counts now;

	read_counts(&now);
	KUNIT_EXPECT_EQ(test, now.mine[COW_ITEM_REUSE_AHEAD] -
			f->before.mine[COW_ITEM_REUSE_AHEAD], ahead);
	if (IS_ENABLED(CONFIG_VM_EVENT_COUNTERS))
		KUNIT_EXPECT_EQ(test, now.pgreuse - f->before.pgreuse, ahead + self);
}
