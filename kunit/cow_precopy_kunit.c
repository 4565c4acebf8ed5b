// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests for copying ahead in copy-on-write faults: real faults in a real
 * address space, whose pages are shared with a second one as fork() does it.
 *
 * Each test looks at a region of a few pages. What is mapped there, in both
 * address spaces, with all counts, is noted before the fault and compared with
 * what is found after it.
 */
#include <kunit/static_stub.h>
#include <kunit/test.h>
#include <linux/bits.h>
#include <linux/delay.h>
#include <linux/highmem.h>
#include <linux/huge_mm.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mman.h>
#include <linux/mmu_notifier.h>
#include <linux/mmzone.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/vmstat.h>

#include <asm/tlbflush.h>

#include "../cow.h"
#include "../cow_policy.h"
#include "../internal.h"
#include "../vma.h"

/*
 * Pages of the region: the fault, the largest window, and more on both sides;
 * for most tests it is also the block that a window may be chosen from.
 */
#define NR_PAGES	COW_BLOCK
/* Where most tests write, and the page in its window that is not like others. */
#define FAULT		32
#define ODD		(FAULT + 2)
/* Page number of what most tests look at. */
#define FIRST		64

#define ALL_PAGES	GENMASK_ULL(NR_PAGES - 1, 0)
/* The window of tests that need one, of whatever size. */
#define WINDOW		15
/* The pages that a fault at FAULT replaces if it copies @n pages ahead. */
#define COPIED(n)	GENMASK_ULL(FAULT + (n), FAULT)

#define WRITE_FLAGS	(FAULT_FLAG_WRITE | FAULT_FLAG_USER)

/* Sets of pages are u64: the region has more pages than 32-bit words have bits. */
static bool has_page(u64 pages, unsigned int i)
{
	return pages & BIT_ULL(i);
}

/**
 * struct page_state - what one address space has at one page of the region
 * @pte: the PTE
 * @page: the page, NULL if there is none with a struct page to look at
 * @mapcount: of @page's folio
 * @refs: of @page's folio
 */
struct page_state {
	pte_t pte;
	struct page *page;
	int mapcount;
	int refs;
};

/**
 * struct space - an address space
 * @mm: it
 * @pages: the state of the region
 * @anon: anonymous pages that are accounted to it
 */
struct space {
	struct mm_struct *mm;
	struct page_state pages[NR_PAGES];
	s64 anon;
};

/*
 * The counters of mm/cow_precopy.c, which are never reset, and those of the
 * address space that the test's thread runs in.
 */
struct counts {
	unsigned long attempts;
	unsigned long success;
	unsigned long skips[NR_COW_SKIPS];
	u64 mine[NR_COW_ITEMS];
	long anon_mapped;
	unsigned long pgreuse;
};

/**
 * struct thp_settings - what /sys/kernel/mm/transparent_hugepage says
 * @flags: for all sizes, TRANSPARENT_HUGEPAGE_FLAG and others
 * @always: orders that are always used
 * @madvise: those that are used after MADV_HUGEPAGE
 * @inherit: those for which @flags say it
 */
struct thp_settings {
	unsigned long flags;
	unsigned long always;
	unsigned long madvise;
	unsigned long inherit;
};

/**
 * struct fixture - what a test has
 * @parent: the address space that the test's thread runs in
 * @child: the one that shares its pages
 * @base: start of the VMA that all tests use, and of a page table
 * @end: its end; another VMA follows
 * @region: address of the first page of the region
 * @before: counters before the fault
 * @was_on: vm.cow_precopy before the test
 * @old_window: vm.cow_precopy_pages before the test
 * @old_max: vm.cow_precopy_max before the test
 * @clean: pages of the parent that are expected to be copied, but clean
 * @large: pages of the parent that are expected to be in one large folio
 * @split: pages of the parent that were in one, which was split
 * @old: the large folio that the pages were in before
 * @old_lost: how many of its pages are replaced
 * @odd: the page at ODD, before it was replaced
 * @race: what happens to the region while the page table is not locked
 * @raced: @race was called
 * @copies: what was allocated to copy ahead, with a reference held
 * @nr_copies: how many
 * @nr_charges: how often copies were to be charged
 * @nr_bulk: how many pages are allocated at once
 * @block: the only free pages that a large folio could be made of
 * @isolated: how many pages are counted as isolated that are not
 * @thp: the settings of transparent huge pages before the test
 */
struct fixture {
	struct space parent;
	struct space child;
	unsigned long base;
	unsigned long end;
	unsigned long region;
	struct counts before;
	bool was_on;
	int old_window;
	int old_max;
	u64 clean;
	u64 large;
	u64 split;
	struct folio *old;
	int old_lost;
	struct page *odd;
	void (*race)(struct kunit *test);
	bool raced;
	struct folio *copies[COW_PRECOPY_MAX_PAGES];
	unsigned int nr_copies;
	unsigned int nr_charges;
	unsigned int nr_bulk;
	struct page *block;
	long isolated;
	struct thp_settings thp;
};

static unsigned long page_addr(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;

	return f->region + i * PAGE_SIZE;
}

/*
 * Looking at address spaces
 */

/* Whether a block of PTEs shares an entry of the TLB is the architecture's business. */
static pte_t pte_alone(pte_t pte)
{
#ifdef CONFIG_ARM64
	return pte_mknoncont(pte);
#else
	return pte;
#endif
}

/* Allocates the page table where there is none; that does no harm. */
static pte_t read_pte(struct kunit *test, struct mm_struct *mm, unsigned long addr)
{
	spinlock_t *ptl = NULL;
	pte_t *ptep;
	pte_t pte;

	ptep = get_locked_pte(mm, addr, &ptl);
	KUNIT_ASSERT_NOT_NULL(test, ptep);
	pte = pte_alone(ptep_get(ptep));
	pte_unmap_unlock(ptep, ptl);
	return pte;
}

static struct page *read_page(struct kunit *test, struct mm_struct *mm, unsigned int i)
{
	pte_t pte = read_pte(test, mm, page_addr(test, i));

	return pte_present(pte) ? pte_page(pte) : NULL;
}

static struct page_state read_state(struct kunit *test, struct mm_struct *mm,
				    unsigned int i)
{
	struct page_state state = {
		.pte = read_pte(test, mm, page_addr(test, i)),
	};
	struct folio *folio;

	if (!pte_present(state.pte) || is_zero_pfn(pte_pfn(state.pte)))
		return state;
	state.page = pte_page(state.pte);
	folio = page_folio(state.page);
	state.mapcount = folio_mapcount(folio);
	state.refs = folio_ref_count(folio);
	return state;
}

static s64 read_anon(struct mm_struct *mm)
{
	return percpu_counter_sum(&mm->rss_stat[MM_ANONPAGES]);
}

/* The node's count of mapped anonymous pages, with what CPUs keep back. */
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

static unsigned long read_event(enum vm_event_item item)
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
	counts->pgreuse = read_event(PGREUSE);

	counts->attempts = cow_precopy_attempts();
	counts->success = cow_precopy_successes();
	for (why = 0; why < NR_COW_SKIPS; why++)
		counts->skips[why] = cow_precopy_skips(why);
	memcpy(counts->mine, current->mm->cow_counts.counts.items,
	       sizeof(counts->mine));
}

static void note_space(struct kunit *test, struct space *space)
{
	unsigned int i;

	space->anon = read_anon(space->mm);
	for (i = 0; i < NR_PAGES; i++)
		space->pages[i] = read_state(test, space->mm, i);
}

/* Note everything that the expectations below compare with. */
static void note(struct kunit *test)
{
	struct fixture *f = test->priv;

	/* A folio on its way to an LRU list has a reference more. */
	lru_add_drain_all();
	note_space(test, &f->parent);
	note_space(test, &f->child);
	read_counts(&f->before);
}

/* Each page of the region has other content, from which its number is read. */
static u8 page_byte(unsigned int i)
{
	return 0x40 + i;
}

static void fill_page(struct page *page, u8 byte)
{
	void *addr = kmap_local_page(page);

	memset(addr, byte, PAGE_SIZE);
	flush_dcache_page(page);
	kunmap_local(addr);
}

static bool page_has(struct page *page, u8 byte)
{
	void *addr = kmap_local_page(page);
	bool same = !memchr_inv(addr, byte, PAGE_SIZE);

	kunmap_local(addr);
	return same;
}

/*
 * Changing address spaces
 */

/* With mmap_lock held for reading. */
static void fault_locked(struct kunit *test, unsigned int i, unsigned int flags)
{
	unsigned long addr = page_addr(test, i);
	struct vm_area_struct *vma = vma_lookup(current->mm, addr);
	vm_fault_t ret;

	if (!vma) {
		KUNIT_FAIL(test, "no VMA for page %u", i);
		return;
	}
	ret = handle_mm_fault(vma, addr, flags, NULL);
	KUNIT_EXPECT_FALSE_MSG(test, ret & (VM_FAULT_ERROR | VM_FAULT_RETRY |
					    VM_FAULT_COMPLETED),
			       "fault at page %u returned %#x", i, (unsigned int)ret);
}

static void fault(struct kunit *test, unsigned int i, unsigned int flags)
{
	mmap_read_lock(current->mm);
	fault_locked(test, i, flags);
	mmap_read_unlock(current->mm);
}

static void write_fault(struct kunit *test, unsigned int i)
{
	fault(test, i, WRITE_FLAGS);
}

/*
 * A write that copies nothing ahead, so that it changes one page only. It is
 * what another thread does in the tests of races.
 */
static void write_alone(struct kunit *test, unsigned int i)
{
	fault(test, i, WRITE_FLAGS | FAULT_FLAG_REMOTE);
}

static void populate(struct kunit *test, u64 pages)
{
	struct page *page;
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (!has_page(pages, i))
			continue;
		write_alone(test, i);
		page = read_page(test, current->mm, i);
		KUNIT_ASSERT_NOT_NULL(test, page);
		fill_page(page, page_byte(i));
	}
}

/* As munmap() would, but also where mmap_lock is held for reading. */
static pte_t take_page(struct kunit *test, struct mm_struct *mm, unsigned int i)
{
	unsigned long addr = page_addr(test, i);
	struct vm_area_struct *vma = vma_lookup(mm, addr);
	struct page *page;
	spinlock_t *ptl = NULL;
	pte_t *ptep;
	pte_t pte;

	ptep = get_locked_pte(mm, addr, &ptl);
	KUNIT_ASSERT_NOT_NULL(test, ptep);
	pte = ptep_clear_flush(vma, addr, ptep);
	page = pte_page(pte);
	folio_remove_rmap_pte(page_folio(page), page, vma);
	dec_mm_counter(mm, MM_ANONPAGES);
	pte_unmap_unlock(ptep, ptl);
	return pte;
}

static void unmap_page_of(struct kunit *test, struct mm_struct *mm, unsigned int i)
{
	put_page(pte_page(take_page(test, mm, i)));
}

static void replace_pte(struct kunit *test, struct mm_struct *mm, unsigned int i,
			pte_t pte)
{
	unsigned long addr = page_addr(test, i);
	spinlock_t *ptl = NULL;
	pte_t *ptep;

	ptep = get_locked_pte(mm, addr, &ptl);
	KUNIT_ASSERT_NOT_NULL(test, ptep);
	set_pte_at(mm, addr, ptep, pte);
	pte_unmap_unlock(ptep, ptl);
}

/*
 * There is no swap device; the entry must be gone before anybody looks it up.
 * The page's reference is kept, as the swap cache would.
 */
static void swap_out(struct kunit *test, unsigned int i)
{
	take_page(test, current->mm, i);
	inc_mm_counter(current->mm, MM_SWAPENTS);
	replace_pte(test, current->mm, i, swp_entry_to_pte(swp_entry(0, 1)));
}

static void drop_swap_entry(struct kunit *test, unsigned int i, struct page *page)
{
	replace_pte(test, current->mm, i, __pte(0));
	dec_mm_counter(current->mm, MM_SWAPENTS);
	put_page(page);
}

/* Change a PTE of the parent's, with its page table locked. */
static void change_pte(struct kunit *test, unsigned int i, pte_t (*change)(pte_t pte))
{
	unsigned long addr = page_addr(test, i);
	spinlock_t *ptl = NULL;
	pte_t *ptep;
	pte_t pte;

	ptep = get_locked_pte(current->mm, addr, &ptl);
	KUNIT_ASSERT_NOT_NULL(test, ptep);
	pte = ptep_get_and_clear(current->mm, addr, ptep);
	flush_tlb_page(vma_lookup(current->mm, addr), addr);
	set_pte_at(current->mm, addr, ptep, change(pte));
	pte_unmap_unlock(ptep, ptl);
}

static pte_t pte_never_written(pte_t pte)
{
	return pte_clear_soft_dirty(pte_mkclean(pte));
}

/* Hardware sets one of the two bits. */
static pte_t pte_hw_written(pte_t pte)
{
	return pte_clear_soft_dirty(pte_mkdirty(pte));
}

static pte_t pte_make_protnone(pte_t pte)
{
	return pte_modify(pte, PAGE_NONE);
}

/* As mprotect(PROT_READ) would, but also in the middle of a fault. */
static void write_protect(struct kunit *test, unsigned int i)
{
	unsigned long addr = page_addr(test, i);
	spinlock_t *ptl = NULL;
	pte_t *ptep;

	ptep = get_locked_pte(current->mm, addr, &ptl);
	KUNIT_ASSERT_NOT_NULL(test, ptep);
	ptep_set_wrprotect(current->mm, addr, ptep);
	flush_tlb_page(vma_lookup(current->mm, addr), addr);
	pte_unmap_unlock(ptep, ptl);
}

static void change_vma_flags(struct kunit *test, vm_flags_t set, vm_flags_t clear)
{
	struct vm_area_struct *vma;

	mmap_write_lock(current->mm);
	vma = vma_lookup(current->mm, page_addr(test, 0));
	if (vma)
		vm_flags_mod(vma, set, clear);
	mmap_write_unlock(current->mm);
	KUNIT_ASSERT_NOT_NULL(test, vma);
}

/* With both mmap_locks held for writing. */
static int dup_vma(struct mm_struct *mm, struct vm_area_struct *vma)
{
	struct vm_area_struct *new = vm_area_dup(vma);
	struct anon_vma *anon_vma;
	int ret;

	if (!new)
		return -ENOMEM;
	new->vm_mm = mm;
	new->anon_vma = NULL;
	vma_start_write(vma);
	ret = anon_vma_fork(new, vma);
	if (ret)
		goto free;
	/* insert_vm_struct() wants a VMA that has not been written to. */
	anon_vma = new->anon_vma;
	new->anon_vma = NULL;
	ret = insert_vm_struct(mm, new);
	new->anon_vma = anon_vma;
	if (ret)
		goto unlink;
	/* It is in the tree: mmput() frees it from here on. */
	if (new->vm_file)
		get_file(new->vm_file);
	return copy_page_range(new, vma);
unlink:
	unlink_anon_vmas(new);
free:
	vm_area_free(new);
	return ret;
}

static void mmput_action(void *mm)
{
	mmput(mm);
}

/* Share all pages with a second address space, as fork() does. */
static void share(struct kunit *test)
{
	struct mm_struct *mm = current->mm;
	struct fixture *f = test->priv;
	struct mm_struct *child = mm_alloc();
	struct vm_area_struct *vma;
	struct vma_iterator vmi;
	int ret = 0;

	KUNIT_ASSERT_NOT_NULL(test, child);
	KUNIT_ASSERT_EQ(test,
			kunit_add_action_or_reset(test, mmput_action, child), 0);
	child->task_size = TASK_SIZE;
#ifdef CONFIG_MEMCG
	/* This thread, which it outlives: the cleanup runs in another one. */
	rcu_assign_pointer(child->owner, NULL);
#endif

	mmap_write_lock(mm);
	mmap_write_lock_nested(child, SINGLE_DEPTH_NESTING);
	vma_iter_init(&vmi, mm, 0);
	for_each_vma(vmi, vma) {
		ret = dup_vma(child, vma);
		if (ret)
			break;
	}
	mmap_write_unlock(child);
	flush_tlb_mm(mm);
	mmap_write_unlock(mm);

	f->child.mm = child;
	KUNIT_ASSERT_EQ(test, ret, 0);
}

/*
 * Expectations
 */

static void expect_content(struct kunit *test, struct space *space, unsigned int i)
{
	struct page *page = read_page(test, space->mm, i);

	if (space->pages[i].page && page)
		KUNIT_EXPECT_TRUE_MSG(test, page_has(page, page_byte(i)),
				      "content of page %u", i);
}

/* How many mappings less a page has that has lost @nr; a large folio's are one sum. */
static int lost_maps(struct fixture *f, const struct page_state *was, int nr)
{
	return f->old && was->page && page_folio(was->page) == f->old ? f->old_lost : nr;
}

/* The same PTE as before; of the page, @maps mappings and @refs references less. */
static void expect_less(struct kunit *test, struct space *space, unsigned int i,
			int maps, int refs)
{
	struct page_state *was = &space->pages[i];
	struct page_state is = read_state(test, space->mm, i);
	struct fixture *f = test->priv;

	KUNIT_EXPECT_EQ_MSG(test, pte_val(is.pte), pte_val(was->pte), "PTE %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.mapcount, was->mapcount - lost_maps(f, was, maps),
			    "mapcount of page %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.refs, was->refs - lost_maps(f, was, refs),
			    "references to page %u", i);
	expect_content(test, space, i);
}

static void expect_unchanged(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;

	expect_less(test, &f->parent, i, 0, 0);
	expect_less(test, &f->child, i, 0, 0);
}

/*
 * Is the PTE of a copy to be clean? Where the PTEs of a block of a folio share an
 * entry of the TLB, they are read as one: each is as dirty as the fault's own, also
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

/* The parent has a page of its own, and the child what it had. */
static void expect_copied(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;
	struct page_state is = read_state(test, f->parent.mm, i);
	int nr = has_page(f->large, i) ? hweight64(f->large) : 1;

	expect_less(test, &f->child, i, 1, 1);
	KUNIT_EXPECT_TRUE_MSG(test, pte_present(is.pte), "PTE %u", i);
	if (!is.page)
		return;
	KUNIT_EXPECT_PTR_NE_MSG(test, is.page, f->parent.pages[i].page,
				"page %u was not copied", i);
	KUNIT_EXPECT_TRUE_MSG(test, pte_write(is.pte), "PTE %u is read-only", i);
	KUNIT_EXPECT_EQ_MSG(test, !pte_dirty(is.pte), wants_clean(f, i),
			    "PTE %u: clean or dirty", i);
	if (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && has_page(f->clean, i))
		KUNIT_EXPECT_FALSE_MSG(test, pte_soft_dirty(is.pte),
				       "PTE %u is soft-dirty", i);
	KUNIT_EXPECT_TRUE_MSG(test, PageAnon(is.page) && PageAnonExclusive(is.page),
			      "page %u is not exclusive", i);
	if (has_page(f->clean, i))
		KUNIT_EXPECT_TRUE_MSG(test, folio_test_dirty(page_folio(is.page)),
				      "the copy of page %u may be dropped", i);
	KUNIT_EXPECT_EQ_MSG(test, folio_nr_pages(page_folio(is.page)), nr,
			    "pages of the folio of page %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.mapcount, nr, "mapcount of the copy of page %u", i);
	KUNIT_EXPECT_EQ_MSG(test, is.refs, nr, "references to the copy of page %u", i);
	if (nr > 1)
		KUNIT_EXPECT_PTR_EQ_MSG(test, is.page, folio_page(page_folio(is.page),
								  i - __ffs(f->large)),
					"page %u is another one of its folio", i);
	KUNIT_EXPECT_TRUE_MSG(test, folio_test_lru(page_folio(is.page)),
			      "the copy of page %u is on no LRU list", i);
	KUNIT_EXPECT_EQ_MSG(test, folio_memcg_charged(page_folio(is.page)),
			    IS_ENABLED(CONFIG_MEMCG) && !mem_cgroup_disabled(),
			    "the copy of page %u: charged", i);
	expect_content(test, &f->parent, i);
	if (is.page == f->parent.pages[i].page)
		return;
	/* What the parent writes, the child must not see. */
	fill_page(is.page, 0xee);
	expect_content(test, &f->child, i);
}

/* The parent has the page that it had, for itself, and may write to it. */
static void expect_reused(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;
	struct page_state *was = &f->parent.pages[i];
	struct page_state is = read_state(test, f->parent.mm, i);

	expect_less(test, &f->child, i, 0, 0);
	KUNIT_EXPECT_PTR_EQ_MSG(test, is.page, was->page, "page %u was replaced", i);
	if (!is.page)
		return;
	KUNIT_EXPECT_TRUE_MSG(test, pte_write(is.pte), "PTE %u is read-only", i);
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
	expect_content(test, &f->parent, i);
}

/*
 * Of the region, the fault replaced the pages @copied, and made the pages
 * @reused writable; nothing else changed.
 */
static void expect_region_reused(struct kunit *test, u64 copied, u64 reused)
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
			expect_copied(test, i);
		else if (has_page(reused, i))
			expect_reused(test, i);
		else
			expect_unchanged(test, i);
	}
	KUNIT_EXPECT_EQ(test, read_anon(f->parent.mm), f->parent.anon);
	KUNIT_EXPECT_EQ(test, read_anon(f->child.mm), f->child.anon);
}

/* Of the region, the fault replaced the pages @copied, and nothing else. */
static void expect_region(struct kunit *test, u64 copied)
{
	expect_region_reused(test, copied, 0);
}

/* @success pages were copied ahead, @skipped left out for the reason @why. */
static void expect_counts(struct kunit *test, unsigned int success,
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
 * Stubs
 */

static void race_stub(struct vm_fault *vmf)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	/* The race may be a fault, too. */
	if (f->raced)
		return;
	f->raced = true;
	f->race(test);
}

static bool hw_dirty_stub(void)
{
	return true;
}

static bool no_hw_dirty_stub(void)
{
	return false;
}

/* Does hardware set dirty bits? */
static void set_hw_dirty(struct kunit *test, bool hw_dirty)
{
	if (hw_dirty)
		kunit_activate_static_stub(test, cow_precopy_hw_dirty,
					   hw_dirty_stub);
	else
		kunit_activate_static_stub(test, cow_precopy_hw_dirty,
					   no_hw_dirty_stub);
}

/* Holds a reference, to see later whether the fault has dropped its own. */
static struct folio *alloc_stub(struct vm_area_struct *vma, unsigned long addr)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;
	struct page *page = alloc_page(GFP_HIGHUSER_MOVABLE);

	if (!page || f->nr_copies == ARRAY_SIZE(f->copies)) {
		KUNIT_FAIL(test, "no memory, or more asked for than the window has");
		return NULL;
	}
	get_page(page);
	f->copies[f->nr_copies++] = page_folio(page);
	return page_folio(page);
}

/* Each page is asked for alone, so that the tests see for which. */
static unsigned int no_bulk_stub(struct vm_area_struct *vma, unsigned int nr,
				 struct page **pages)
{
	return 0;
}

static struct folio *no_alloc_stub(struct vm_area_struct *vma, unsigned long addr)
{
	struct fixture *f = kunit_get_current_test()->priv;

	f->nr_copies++;
	return NULL;
}

static int no_charge_stub(struct page **pages, unsigned int nr, struct mm_struct *mm)
{
	struct fixture *f = kunit_get_current_test()->priv;

	f->nr_charges++;
	return -ENOMEM;
}

/*
 * Of the copies that were made, @mapped are mapped now, and nobody has a
 * reference to the others.
 */
static void expect_copies(struct kunit *test, unsigned int made, unsigned int mapped)
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
 * Fixture
 */

static void set_window(unsigned int pages)
{
	WRITE_ONCE(sysctl_cow_precopy_pages, pages);
}

/* Look at the pages from the one that has number @first in the first VMA. */
static void look_at(struct kunit *test, unsigned long first)
{
	struct fixture *f = test->priv;

	f->region = f->base + first * PAGE_SIZE;
}

/* Share the pages @pages of the region, and note what there is. */
static void share_pages(struct kunit *test, u64 pages)
{
	populate(test, pages);
	share(test);
	note(test);
}

static void map_fixed(struct kunit *test, unsigned long addr, unsigned long len,
		      unsigned long flags)
{
	struct vm_area_struct *vma;

	KUNIT_ASSERT_EQ(test,
			vm_mmap(NULL, addr, len, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | flags, 0),
			addr);
	mmap_write_lock(current->mm);
	vma = vma_lookup(current->mm, addr);
	if (vma)
		vm_flags_set(vma, VM_NOHUGEPAGE);
	mmap_write_unlock(current->mm);
	KUNIT_ASSERT_NOT_NULL(test, vma);
	KUNIT_ASSERT_EQ(test, vma->vm_start, addr);
}

/*
 * A test's address space goes when its thread ends, and the next test may have
 * begun by then: its counts of mapped pages would be those of both.
 */
static struct mm_struct *last_mm;

static void wait_for_last_mm(void)
{
	int tries;

	if (!last_mm)
		return;
	for (tries = 0; tries < 1000 && read_anon(last_mm) > 0; tries++)
		fsleep(1000);
	mmdrop(last_mm);
	last_mm = NULL;
}

static void cow_precopy_suite_exit(struct kunit_suite *suite)
{
	wait_for_last_mm();
}

/*
 * The first VMA begins with a page table and ends in the middle of the next.
 * The second follows at once; another flag keeps the two from being merged.
 */
static int cow_precopy_test_init(struct kunit *test)
{
	struct fixture *f = kunit_kzalloc(test, sizeof(*f), GFP_KERNEL);
	unsigned long addr;

	KUNIT_ASSERT_NOT_NULL(test, f);
	wait_for_last_mm();
	f->was_on = static_key_enabled(&cow_precopy_key);
	f->old_window = sysctl_cow_precopy_pages;
	f->old_max = sysctl_cow_precopy_max;
	static_branch_inc(&cow_active_key);
	test->priv = f;

	addr = kunit_vm_mmap(test, NULL, 0, 4 * PMD_SIZE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, 0);
	KUNIT_ASSERT_NE(test, addr, 0);
	KUNIT_ASSERT_LT(test, addr, TASK_SIZE);
	f->base = ALIGN(addr, PMD_SIZE);
	KUNIT_ASSERT_EQ(test, vm_munmap(addr, 4 * PMD_SIZE), 0);
	f->end = f->base + PMD_SIZE + 2 * FIRST * PAGE_SIZE;
	map_fixed(test, f->base, f->end - f->base, 0);
	map_fixed(test, f->end, FIRST * PAGE_SIZE, MAP_NORESERVE);

	f->parent.mm = current->mm;
	mmgrab(current->mm);
	last_mm = current->mm;
	look_at(test, FIRST);
	set_window(WINDOW);
	static_branch_enable(&cow_precopy_key);
	return 0;
}

/* Runs in another thread, when the parent's address space is gone. */
static void cow_precopy_test_exit(struct kunit *test)
{
	struct fixture *f = test->priv;

	if (!f)
		return;
	if (!f->was_on)
		static_branch_disable(&cow_precopy_key);
	static_branch_dec(&cow_active_key);
	set_window(f->old_window);
	WRITE_ONCE(sysctl_cow_precopy_max, f->old_max);
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
	{ "15 pages", 15 },
	{ "16 pages", 16 },
	{ "30 pages", 30 },
	{ "31 pages, the largest", COW_PRECOPY_MAX_PAGES },
};

KUNIT_ARRAY_PARAM_DESC(size, size_cases, desc);

static void copies_the_window(struct kunit *test)
{
	const struct size_case *c = test->param_value;

	set_window(c->pages);
	share_pages(test, ALL_PAGES);
	write_fault(test, FAULT);
	expect_region(test, COPIED(c->pages));
	expect_counts(test, c->pages, COW_SKIP_NONE, 0);
}

/* Write as a program does, which faults only where it has to. */
static unsigned int write_upward(struct kunit *test)
{
	unsigned int i, faults = 0;

	for (i = 0; i < NR_PAGES; i++) {
		if (!pte_write(read_pte(test, current->mm, page_addr(test, i)))) {
			write_fault(test, i);
			faults++;
		}
	}
	return faults;
}

static void sequential_walk(struct kunit *test)
{
	const struct size_case *c = test->param_value;
	unsigned int copies = DIV_ROUND_UP(NR_PAGES, c->pages + 1);
	/* The last window reaches over the region, to where nothing is mapped. */
	unsigned int rest = copies * (c->pages + 1) - NR_PAGES;

	set_window(c->pages);
	share_pages(test, ALL_PAGES);
	KUNIT_EXPECT_EQ(test, write_upward(test), copies);
	expect_region(test, ALL_PAGES);
	expect_counts(test, NR_PAGES - copies, COW_SKIP_NOTPRESENT, rest);
}

static void switched_off(struct kunit *test)
{
	static_branch_disable(&cow_precopy_key);
	share_pages(test, ALL_PAGES);
	write_fault(test, FAULT);
	expect_region(test, COPIED(0));
	expect_counts(test, 0, COW_SKIP_NONE, 0);
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

/* The fault is @before pages before the last one in front of the boundary. */
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

/* @boundary: the first page of the region that is behind it. */
static void test_bound(struct kunit *test, unsigned int boundary, enum cow_skip why)
{
	const struct bound_case *c = test->param_value;
	unsigned int at = boundary - 1 - c->before;

	set_window(c->window);
	share_pages(test, ALL_PAGES);
	write_fault(test, at);
	expect_region(test, GENMASK_ULL(at + c->copied, at));
	expect_counts(test, c->copied, why, c->skipped);
}

/* Half of the region in front of @addr, half of it behind. */
static void test_both_sides(struct kunit *test, unsigned long addr, enum cow_skip why)
{
	struct fixture *f = test->priv;

	look_at(test, ((addr - f->base) >> PAGE_SHIFT) - NR_PAGES / 2);
	test_bound(test, NR_PAGES / 2, why);
}

/* Behind the end is another VMA, whose pages could be copied as well. */
static void next_vma(struct kunit *test)
{
	struct fixture *f = test->priv;

	test_both_sides(test, f->end, COW_SKIP_VMA);
}

/* Behind the end is nothing, so that all that can go wrong is the counter. */
static void vma_end(struct kunit *test)
{
	struct fixture *f = test->priv;

	KUNIT_ASSERT_EQ(test, vm_munmap(f->end, FIRST * PAGE_SIZE), 0);
	look_at(test, ((f->end - f->base) >> PAGE_SHIFT) - NR_PAGES);
	test_bound(test, NR_PAGES, COW_SKIP_VMA);
}

static void pmd_boundary(struct kunit *test)
{
	struct fixture *f = test->priv;

	test_both_sides(test, f->base + PMD_SIZE, COW_SKIP_PMD);
}

/* Where both end, it is the VMA's end that counts. */
static void vma_end_at_pmd_boundary(struct kunit *test)
{
	struct fixture *f = test->priv;

	KUNIT_ASSERT_EQ(test, vm_munmap(f->base + PMD_SIZE, f->end - f->base - PMD_SIZE),
			0);
	f->end = f->base + PMD_SIZE;
	map_fixed(test, f->end, FIRST * PAGE_SIZE, MAP_NORESERVE);
	test_both_sides(test, f->end, COW_SKIP_VMA);
}

/*
 * One neighbour is not like the others. Most kinds are left out by every fault;
 * those on both sides of it are not. There are two sorts of faults: those whose
 * neighbours are all shared, to be copied, and those whose neighbours the parent
 * has alone, to be made writable.
 */

static struct page *odd_page(struct kunit *test)
{
	struct fixture *f = test->priv;

	f->odd = read_page(test, current->mm, ODD);
	KUNIT_ASSERT_NOT_NULL(test, f->odd);
	return f->odd;
}

static struct folio *odd_folio(struct kunit *test)
{
	return page_folio(odd_page(test));
}

/* For undoing: the parent may have a copy meanwhile. */
static struct folio *odd_old_folio(struct kunit *test)
{
	struct fixture *f = test->priv;

	return page_folio(f->odd);
}

static bool odd_is_shared(struct kunit *test)
{
	struct fixture *f = test->priv;

	return read_page(test, f->child.mm, ODD);
}

static void odd_read(struct kunit *test)
{
	fault(test, ODD, FAULT_FLAG_USER);
	KUNIT_ASSERT_TRUE(test, is_zero_pfn(pte_pfn(read_pte(test, current->mm,
							     page_addr(test, ODD)))));
}

static void odd_zap(struct kunit *test)
{
	unmap_page_of(test, current->mm, ODD);
}

static void odd_swap_out(struct kunit *test)
{
	odd_page(test);
	swap_out(test, ODD);
}

static void odd_swap_back(struct kunit *test)
{
	drop_swap_entry(test, ODD, &odd_old_folio(test)->page);
}

static void odd_write(struct kunit *test)
{
	write_alone(test, ODD);
	fill_page(odd_page(test), page_byte(ODD));
}

static void odd_write_and_protect(struct kunit *test)
{
	odd_write(test);
	write_protect(test, ODD);
	KUNIT_ASSERT_TRUE(test, PageAnonExclusive(odd_page(test)));
}

static void odd_unshare(struct kunit *test)
{
	struct fixture *f = test->priv;

	if (odd_is_shared(test))
		unmap_page_of(test, f->child.mm, ODD);
	KUNIT_ASSERT_FALSE(test, PageAnonExclusive(odd_page(test)));
}

static void odd_get(struct kunit *test)
{
	folio_get(odd_folio(test));
}

static void odd_put(struct kunit *test)
{
	folio_put(odd_old_folio(test));
}

static void odd_exclusive_get(struct kunit *test)
{
	odd_write_and_protect(test);
	odd_get(test);
}

static void odd_lock(struct kunit *test)
{
	folio_lock(odd_folio(test));
}

static void odd_unlock(struct kunit *test)
{
	folio_unlock(odd_old_folio(test));
}

/* The cache has a reference, and somebody else has another one. */
static void odd_swapcache(struct kunit *test)
{
	folio_set_swapcache(odd_folio(test));
	folio_ref_add(odd_folio(test), 2);
}

static void odd_unswapcache(struct kunit *test)
{
	folio_clear_swapcache(odd_old_folio(test));
	folio_put_refs(odd_old_folio(test), 2);
}

static void odd_pin(struct kunit *test)
{
	folio_ref_add(odd_folio(test), GUP_PIN_COUNTING_BIAS);
}

static void odd_unpin(struct kunit *test)
{
	folio_put_refs(odd_old_folio(test), GUP_PIN_COUNTING_BIAS);
}

static void odd_exclusive_pin(struct kunit *test)
{
	odd_write_and_protect(test);
	odd_pin(test);
}

/*
 * Anonymous pages have bit 0 of folio->mapping, KSM pages bits 0 and 1. One that
 * the parent has alone would be made writable if it were exclusive, and must not
 * be seen as shared.
 */
static void odd_ksm(struct kunit *test)
{
	struct folio *folio = odd_folio(test);

	if (!odd_is_shared(test))
		SetPageAnonExclusive(odd_page(test));
	folio->mapping = (void *)((unsigned long)folio->mapping | 3);
	KUNIT_EXPECT_TRUE(test, folio_test_ksm(folio));
}

static void odd_unksm(struct kunit *test)
{
	struct folio *folio = odd_old_folio(test);

	folio->mapping = (void *)(((unsigned long)folio->mapping & ~3UL) | 1);
}

/* It has been put on an LRU list for what it is, and must be taken off as that. */
static void odd_lazyfree(struct kunit *test)
{
	lru_add_drain_all();
	folio_clear_swapbacked(odd_folio(test));
}

static void odd_unlazyfree(struct kunit *test)
{
	folio_set_swapbacked(odd_old_folio(test));
}

static void odd_poison(struct kunit *test)
{
	SetPageHWPoison(odd_page(test));
}

static void odd_unpoison(struct kunit *test)
{
	struct fixture *f = test->priv;

	ClearPageHWPoison(f->odd);
}

static void odd_protnone(struct kunit *test)
{
	change_pte(test, ODD, pte_make_protnone);
}

static void odd_dirty(struct kunit *test)
{
	change_pte(test, ODD, pte_hw_written);
}

/* As a fault has left it before it was shared. */
static void odd_soft_dirty(struct kunit *test)
{
	change_pte(test, ODD, pte_mkdirty);
}

/**
 * struct odd_case - how a neighbour may differ
 * @desc: in words
 * @hole: it is not written to before the others are shared
 * @early: is called before the pages are shared
 * @late: is called after that
 * @undo: is called at the end
 * @needs: can it be in this configuration?
 * @shared: the parent never has it alone
 * @dirty: it is dirty when it is made writable, whatever hardware does
 * @copy: what it is left out for where neighbours are shared; or it is copied
 * @reuse: the same where the parent has them alone; or it is made writable
 */
struct odd_case {
	const char *desc;
	bool hole;
	void (*early)(struct kunit *test);
	void (*late)(struct kunit *test);
	void (*undo)(struct kunit *test);
	bool needs;
	bool shared;
	bool dirty;
	enum cow_skip copy;
	enum cow_skip reuse;
};

static const struct odd_case odd_cases[] = {
	{
		.desc = "never touched",
		.hole = true,
		.needs = true,
		.copy = COW_SKIP_NOTPRESENT,
		.reuse = COW_SKIP_NOTPRESENT,
	}, {
		.desc = "unmapped",
		.late = odd_zap,
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
		.late = odd_write_and_protect,
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
		.reuse = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "somebody has a reference",
		.late = odd_get,
		.undo = odd_put,
		.needs = true,
		.reuse = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "in the swap cache, somebody has a reference",
		.late = odd_swapcache,
		.undo = odd_unswapcache,
		.needs = true,
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
		.late = odd_poison,
		.undo = odd_unpoison,
		.needs = IS_ENABLED(CONFIG_MEMORY_FAILURE),
		.copy = COW_SKIP_SPECIAL,
		.reuse = COW_SKIP_SPECIAL,
	}, {
		.desc = "NUMA hinting",
		.late = odd_protnone,
		.needs = IS_ENABLED(CONFIG_NUMA_BALANCING),
		.copy = COW_SKIP_SPECIAL,
		.reuse = COW_SKIP_SPECIAL,
	},
};

KUNIT_ARRAY_PARAM_DESC(odd, odd_cases, desc);

/* The pages that the child has not any more, if it ever had them. */
static void take_from_child(struct kunit *test, u64 pages)
{
	struct fixture *f = test->priv;
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (!has_page(pages, i))
			continue;
		unmap_page_of(test, f->child.mm, i);
		/* So that it shows who has made it dirty. */
		change_pte(test, i, pte_never_written);
	}
}

/* Pages of the parent that faults have copied. */
static void demand(struct kunit *test, u64 pages)
{
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (!has_page(pages, i))
			continue;
		write_alone(test, i);
		fill_page(read_page(test, current->mm, i), page_byte(i));
	}
}

/* Of the pages that are shared first, the parent has copied some, and has some alone. */
static void share_odd(struct kunit *test, u64 demanded, u64 alone)
{
	const struct odd_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	if (c->hole || c->shared)
		alone &= ~BIT_ULL(ODD);
	populate(test, c->hole ? ALL_PAGES & ~BIT_ULL(ODD) : ALL_PAGES);
	if (c->early)
		c->early(test);
	share(test);
	demand(test, demanded);
	take_from_child(test, alone);
	if (c->late)
		c->late(test);
	note(test);
}

static void undo_odd(struct kunit *test)
{
	const struct odd_case *c = test->param_value;

	if (c->undo)
		c->undo(test);
}

static void odd_neighbour(struct kunit *test)
{
	const struct odd_case *c = test->param_value;
	bool left_out = c->copy != COW_SKIP_NONE;

	set_window(3);
	share_odd(test, 0, 0);
	write_fault(test, FAULT);
	expect_region(test, left_out ? COPIED(3) & ~BIT_ULL(ODD) : COPIED(3));
	expect_counts(test, 3 - left_out, c->copy, left_out);
	undo_odd(test);
}

static void written_neighbour(struct kunit *test)
{
	set_window(3);
	populate(test, ALL_PAGES);
	share(test);
	odd_write(test);
	note(test);
	write_fault(test, FAULT);
	expect_region(test, COPIED(3) & ~BIT_ULL(ODD));
	expect_counts(test, 2, COW_SKIP_WRITABLE, 1);
}

/* The region is a private mapping of a file. */
static void map_file(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned long addr, len = NR_PAGES * PAGE_SIZE;
	struct vm_area_struct *vma;
	struct file *file = NULL;

	/* What is shared and anonymous is a file in truth. */
	addr = kunit_vm_mmap(test, NULL, 0, len, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, 0);
	KUNIT_ASSERT_NE(test, addr, 0);
	KUNIT_ASSERT_LT(test, addr, TASK_SIZE);
	mmap_read_lock(current->mm);
	vma = vma_lookup(current->mm, addr);
	if (vma)
		file = vma->vm_file;
	mmap_read_unlock(current->mm);
	KUNIT_ASSERT_NOT_NULL(test, file);
	KUNIT_ASSERT_EQ(test,
			vm_mmap(file, f->base, len, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_FIXED, 0),
			f->base);
	KUNIT_ASSERT_EQ(test, vm_munmap(addr, len), 0);
	look_at(test, 0);
	change_vma_flags(test, VM_NOHUGEPAGE, 0);
}

/* One page was only read. */
static void file_neighbour(struct kunit *test)
{
	map_file(test);
	set_window(3);
	fault(test, ODD, FAULT_FLAG_USER);
	KUNIT_ASSERT_FALSE(test, folio_test_anon(odd_folio(test)));
	fill_page(odd_page(test), page_byte(ODD));
	share_pages(test, ALL_PAGES & ~BIT_ULL(ODD));
	write_fault(test, FAULT);
	expect_region(test, COPIED(3) & ~BIT_ULL(ODD));
	expect_counts(test, 2, COW_SKIP_NOTANON, 1);
}

/*
 * The faulting page itself
 */

/* Nothing is copied, so nothing is copied ahead. */
static void fault_reuses(struct kunit *test)
{
	struct fixture *f = test->priv;
	struct page *page;

	share_pages(test, ALL_PAGES);
	unmap_page_of(test, f->child.mm, FAULT);
	note(test);
	page = f->parent.pages[FAULT].page;

	write_fault(test, FAULT);
	lru_add_drain_all();
	KUNIT_EXPECT_PTR_EQ(test, read_page(test, current->mm, FAULT), page);
	KUNIT_EXPECT_TRUE(test, pte_write(read_pte(test, current->mm,
						   page_addr(test, FAULT))));
	f->parent.pages[FAULT] = read_state(test, current->mm, FAULT);
	expect_region(test, 0);
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void fault_on_zero_page(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	fault(test, FAULT, FAULT_FLAG_USER);
	share_pages(test, ALL_PAGES & ~BIT_ULL(FAULT));
	write_fault(test, FAULT);
	lru_add_drain_all();
	KUNIT_EXPECT_EQ(test, read_anon(current->mm), f->parent.anon + 1);
	for (i = FAULT + 1; i < NR_PAGES; i++)
		expect_unchanged(test, i);
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

struct flags_case {
	const char *desc;
	unsigned int flags;
	bool write;
};

static const struct flags_case flags_cases[] = {
	{ "unsharing for GUP", FAULT_FLAG_USER | FAULT_FLAG_UNSHARE, false },
	{ "write by another process", WRITE_FLAGS | FAULT_FLAG_REMOTE, true },
};

KUNIT_ARRAY_PARAM_DESC(flags, flags_cases, desc);

/* The page itself is copied, as ever. */
static void fault_is_no_plain_write(struct kunit *test)
{
	const struct flags_case *c = test->param_value;
	struct fixture *f = test->priv;
	unsigned int i;
	pte_t pte;

	share_pages(test, ALL_PAGES);
	fault(test, FAULT, c->flags);
	lru_add_drain_all();
	pte = read_pte(test, current->mm, page_addr(test, FAULT));
	KUNIT_ASSERT_TRUE(test, pte_present(pte));
	KUNIT_EXPECT_PTR_NE(test, pte_page(pte), f->parent.pages[FAULT].page);
	KUNIT_EXPECT_EQ(test, !!pte_write(pte), c->write);
	for (i = FAULT + 1; i < NR_PAGES; i++)
		expect_unchanged(test, i);
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/*
 * The VMA forbids it. One refusal is counted, whatever the window.
 */

struct refused_case {
	const char *desc;
	vm_flags_t set;
	vm_flags_t clear;
	bool needs;
	enum cow_skip why;
};

static const struct refused_case refused_cases[] = {
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

KUNIT_ARRAY_PARAM_DESC(refused, refused_cases, desc);

static void vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_pages(test, ALL_PAGES);
	change_vma_flags(test, c->set, c->clear);
	write_fault(test, FAULT);
	expect_region(test, COPIED(0));
	expect_counts(test, 0, c->why, 1);
	change_vma_flags(test, c->clear, c->set);
}

/*
 * Races: while the page table is not locked, something happens to a neighbour
 * or to the faulting page. The copy is not mapped and is freed, the others are
 * mapped, and the fault is solved.
 */

/* A page of the parent is not any more what it was; note what it is now. */
static void note_race(struct kunit *test, unsigned int i, int refs)
{
	struct fixture *f = test->priv;

	lru_add_drain_all();
	f->parent.pages[i] = read_state(test, f->parent.mm, i);
	f->parent.anon = read_anon(f->parent.mm);
	/* What only the child maps now. */
	f->child.pages[i].mapcount--;
	f->child.pages[i].refs -= refs;
}

/* Another thread writes to the page @i. */
static void write_locked(struct kunit *test, unsigned int i)
{
	struct page *page;

	fault_locked(test, i, WRITE_FLAGS | FAULT_FLAG_REMOTE);
	page = read_page(test, current->mm, i);
	if (page)
		fill_page(page, page_byte(i));
}

static void race_write(struct kunit *test)
{
	write_locked(test, ODD);
	note_race(test, ODD, 1);
}

static void race_unmap(struct kunit *test)
{
	odd_zap(test);
	note_race(test, ODD, 1);
}

static void race_swap_out(struct kunit *test)
{
	odd_swap_out(test);
	note_race(test, ODD, 0);
}

/* Read-only, as before, but another page. */
static void race_write_and_protect(struct kunit *test)
{
	write_locked(test, ODD);
	write_protect(test, ODD);
	note_race(test, ODD, 1);
}

/* As swap_out(), with the same limits. */
static void race_migrate(struct kunit *test)
{
	unsigned long pfn = page_to_pfn(odd_page(test));

	take_page(test, current->mm, ODD);
	replace_pte(test, current->mm, ODD,
		    swp_entry_to_pte(make_readable_migration_entry(pfn)));
	note_race(test, ODD, 0);
}

/* A migration entry is not accounted as swap. */
static void undo_migrate(struct kunit *test)
{
	replace_pte(test, current->mm, ODD, __pte(0));
	folio_put(odd_old_folio(test));
}

struct race_case {
	const char *desc;
	void (*race)(struct kunit *test);
	void (*undo)(struct kunit *test);
	bool needs;
};

static const struct race_case race_cases[] = {
	{ "written to", race_write, NULL, true },
	{ "unmapped", race_unmap, NULL, true },
	{ "swapped out", race_swap_out, odd_swap_back, true },
	{ "under migration", race_migrate, undo_migrate,
	  IS_ENABLED(CONFIG_MIGRATION) },
	{ "another page, write-protected", race_write_and_protect, NULL, true },
};

KUNIT_ARRAY_PARAM_DESC(race, race_cases, desc);

static void start_race(struct kunit *test, void (*race)(struct kunit *test))
{
	struct fixture *f = test->priv;

	f->race = race;
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, alloc_stub);
	kunit_activate_static_stub(test, cow_precopy_unlocked, race_stub);
}

static void race_on_neighbour(struct kunit *test)
{
	const struct race_case *c = test->param_value;
	struct fixture *f = test->priv;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	set_window(3);
	share_pages(test, ALL_PAGES);
	start_race(test, c->race);
	write_fault(test, FAULT);
	KUNIT_EXPECT_TRUE(test, f->raced);
	expect_copies(test, 3, 2);
	expect_region(test, COPIED(3) & ~BIT_ULL(ODD));
	expect_counts(test, 2, COW_SKIP_RACE, 1);
	if (c->undo)
		c->undo(test);
}

static void race_write_fault_page(struct kunit *test)
{
	write_locked(test, FAULT);
	note_race(test, FAULT, 1);
}

/* Another thread has solved the fault: nothing is left to do. */
static void race_on_fault_page(struct kunit *test)
{
	struct fixture *f = test->priv;

	set_window(3);
	share_pages(test, ALL_PAGES);
	start_race(test, race_write_fault_page);
	write_fault(test, FAULT);
	KUNIT_EXPECT_TRUE(test, f->raced);
	expect_copies(test, 3, 0);
	expect_region(test, 0);
	expect_counts(test, 0, COW_SKIP_RACE, 3);
}

static void race_write_all(struct kunit *test)
{
	unsigned int i;

	for (i = FAULT + 1; i <= FAULT + 3; i++) {
		write_locked(test, i);
		note_race(test, i, 1);
	}
}

/* No copy is left to map, but the fault is solved. */
static void race_on_all_neighbours(struct kunit *test)
{
	struct fixture *f = test->priv;

	set_window(3);
	share_pages(test, ALL_PAGES);
	start_race(test, race_write_all);
	write_fault(test, FAULT);
	KUNIT_EXPECT_TRUE(test, f->raced);
	expect_copies(test, 3, 0);
	expect_region(test, COPIED(0));
	expect_counts(test, 0, COW_SKIP_RACE, 3);
}

/* The PTE is what it was, and the parent is now the only one with the page. */
static void race_unmap_in_child(struct kunit *test)
{
	struct fixture *f = test->priv;

	unmap_page_of(test, f->child.mm, ODD);
	f->child.pages[ODD] = read_state(test, f->child.mm, ODD);
	f->child.anon = read_anon(f->child.mm);
}

/* A fault copies the pages @copied, ODD among them; @made copies were made, each alone. */
static void test_race_with_child(struct kunit *test, u64 copied,
				 unsigned int made)
{
	struct fixture *f = test->priv;
	struct page *old = f->parent.pages[ODD].page;
	unsigned int i;

	get_page(old);
	write_fault(test, FAULT);
	KUNIT_EXPECT_TRUE(test, f->raced);
	expect_copies(test, made, made);
	KUNIT_EXPECT_FALSE(test, folio_mapped(page_folio(old)));
	KUNIT_EXPECT_EQ(test, page_count(old), 1);
	put_page(old);
	for (i = 0; i < NR_PAGES; i++) {
		if (i == ODD)
			continue;
		if (has_page(copied, i))
			expect_copied(test, i);
		else
			expect_unchanged(test, i);
	}
	expect_content(test, &f->parent, ODD);
	KUNIT_EXPECT_EQ(test, read_anon(f->parent.mm), f->parent.anon);
	expect_counts(test, hweight64(copied) - 1, COW_SKIP_NONE, 0);
}

/* The copy is mapped all the same, and the old page is freed. */
static void race_with_child(struct kunit *test)
{
	set_window(3);
	share_pages(test, ALL_PAGES);
	start_race(test, race_unmap_in_child);
	test_race_with_child(test, COPIED(3), 3);
}

/*
 * Memory is short: the fault is solved, nothing is copied ahead, and nothing is
 * asked for again.
 */

/*
 * A write fault that ends when it has looked at its neighbours, as it does if
 * memory is short for its own page. With mmap_lock held for reading.
 */
static void fault_until_copy(struct kunit *test, unsigned int i, unsigned int looked_at)
{
	unsigned long addr = page_addr(test, i);
	struct mm_struct *mm = current->mm;
	struct vm_fault vmf = {
		.vma = vma_lookup(mm, addr),
		.address = addr,
		.flags = WRITE_FLAGS,
		.pmd = mm_find_pmd(mm, addr),
	};
	struct cow_fault cow;

	vmf.pte = get_locked_pte(mm, addr, &vmf.ptl);
	KUNIT_ASSERT_NOT_NULL(test, vmf.pte);
	vmf.orig_pte = ptep_get(vmf.pte);
	vmf.page = pte_page(vmf.orig_pte);
	cow_fault_begin(&vmf, &cow);
	__cow_precopy_look(&vmf, &cow);
	pte_unmap_unlock(vmf.pte, vmf.ptl);
	KUNIT_EXPECT_EQ(test, cow.ahead.nr, looked_at);
	cow_fault_end(&vmf, &cow);
}

/* The neighbours that were looked at are let go, and counted nowhere. */
static void fault_fails(struct kunit *test)
{
	set_window(3);
	share_pages(test, ALL_PAGES);
	mmap_read_lock(current->mm);
	fault_until_copy(test, FAULT, 3);
	mmap_read_unlock(current->mm);
	expect_region(test, 0);
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void allocation_fails(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, no_alloc_stub);
	write_fault(test, FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_copies, 1);
	expect_region(test, COPIED(0));
	expect_counts(test, 0, COW_SKIP_NOMEM, 1);
}

static void charge_fails(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, alloc_stub);
	kunit_activate_static_stub(test, cow_precopy_charge, no_charge_stub);
	write_fault(test, FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_charges, 1);
	expect_copies(test, WINDOW, 0);
	expect_region(test, COPIED(0));
	expect_counts(test, 0, COW_SKIP_NOMEM, 1);
}

static struct folio *alloc_twice_stub(struct vm_area_struct *vma, unsigned long addr)
{
	struct fixture *f = kunit_get_current_test()->priv;

	return f->nr_copies < 2 ? alloc_stub(vma, addr) : NULL;
}

/* What was copied before memory ran out is not in vain. */
static void allocation_fails_later(struct kunit *test)
{
	share_pages(test, ALL_PAGES);
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, no_bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_alloc, alloc_twice_stub);
	write_fault(test, FAULT);
	expect_copies(test, 2, 2);
	expect_region(test, COPIED(2));
	expect_counts(test, 2, COW_SKIP_NOMEM, 1);
}

/*
 * Secondary MMUs
 */

/**
 * struct watcher - what MMU notifiers are told
 * @notifier: the one that is told of ranges
 * @tlb: the one that is told of TLB flushes; no notifier may be both
 * @test: the test
 * @starts: how often a range was announced
 * @ends: how often one was over
 * @start: of the range
 * @end: of the range
 * @early: pages that were replaced before the range was announced
 * @late: pages that were replaced when it was over
 * @flushes: how often TLBs were flushed
 * @flushed: pages that were mapped by nothing then
 */
struct watcher {
	struct mmu_notifier notifier;
	struct mmu_notifier tlb;
	struct kunit *test;
	unsigned int starts;
	unsigned int ends;
	unsigned long start;
	unsigned long end;
	unsigned long early;
	unsigned long late;
	unsigned int flushes;
	u64 flushed;
};

static u64 replaced_pages(struct kunit *test)
{
	struct fixture *f = test->priv;
	u64 replaced = 0;
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (read_page(test, f->parent.mm, i) != f->parent.pages[i].page)
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

/* The page table is locked by the one who flushes. */
static void watch_flush(struct mmu_notifier *notifier, struct mm_struct *mm,
			unsigned long start, unsigned long end)
{
	struct watcher *w = container_of(notifier, struct watcher, tlb);
	unsigned int i;

	w->flushes++;
	for (i = 0; i < NR_PAGES; i++) {
		unsigned long addr = page_addr(w->test, i);
		pte_t *ptep = pte_offset_kernel(pmd_off(mm, addr), addr);

		if (addr >= start && addr < end && pte_none(ptep_get_lockless(ptep)))
			w->flushed |= BIT_ULL(i);
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
 * A fault at @at announces the pages from @first to @last, and replaces @copied.
 * When all TLBs forget the old pages, the new ones are not there yet.
 */
static void watch_fault(struct kunit *test, unsigned int at, unsigned long first,
			unsigned long last, u64 copied)
{
	struct watcher *w = kunit_kzalloc(test, sizeof(*w), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, w);
	w->notifier.ops = &watch_ops;
	w->tlb.ops = &tlb_ops;
	w->test = test;
	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&w->notifier, current->mm), 0);
	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&w->tlb, current->mm), 0);
	write_fault(test, at);
	mmu_notifier_unregister(&w->tlb, current->mm);
	mmu_notifier_unregister(&w->notifier, current->mm);

	KUNIT_EXPECT_EQ(test, w->starts, 1);
	KUNIT_EXPECT_EQ(test, w->ends, 1);
	KUNIT_EXPECT_EQ(test, w->start, page_addr(test, first));
	KUNIT_EXPECT_EQ(test, w->end, page_addr(test, last + 1));
	KUNIT_EXPECT_EQ(test, w->early, 0);
	KUNIT_EXPECT_EQ(test, w->late, copied);
	/* Other architectures do not tell. */
	if (IS_ENABLED(CONFIG_X86)) {
		KUNIT_EXPECT_EQ(test, w->flushes, 1);
		KUNIT_EXPECT_EQ(test, w->flushed & copied, copied);
	}
}

/* @last: the last page of the window that is shared */
static void test_notifier(struct kunit *test, unsigned long last, u64 copied)
{
	watch_fault(test, FAULT, FAULT, last, copied);
}

static void notifier_range(struct kunit *test)
{
	set_window(5);
	share_pages(test, ALL_PAGES);
	test_notifier(test, FAULT + 5, COPIED(5));
}

/* The range ends with the last page that is copied, not with the window. */
static void notifier_range_is_no_wider(struct kunit *test)
{
	set_window(5);
	populate(test, ALL_PAGES);
	share(test);
	write_alone(test, FAULT + 2);
	write_alone(test, FAULT + 5);
	note(test);
	test_notifier(test, FAULT + 4, COPIED(4) & ~BIT_ULL(FAULT + 2));
}

static void notifier_range_alone(struct kunit *test)
{
	static_branch_disable(&cow_precopy_key);
	share_pages(test, ALL_PAGES);
	test_notifier(test, FAULT, COPIED(0));
}

/*
 * The window is chosen by what was written. The region is one block; what is
 * expected is what cow_policy() says, which has tests of its own.
 */

#define PAGES(first, last)	GENMASK_ULL(last, first)
/*
 * Three pages at odd distances, without which a fault looks no further, and one
 * of them is at distance 5. The distance is that of the page numbers by XOR.
 */
#define NEAR_50		(BIT_ULL(55) | BIT_ULL(59) | BIT_ULL(63))
#define NEAR_63		(BIT_ULL(58) | BIT_ULL(54) | BIT_ULL(50))
/* Two of three pages from 0 to @last, as the tests of cow_policy() have it. */
#define PAIRS(last)		(0xb6db6db6db6db6dbULL & PAGES(0, last))

static void set_adaptive(struct kunit *test, unsigned int max, bool hw_dirty)
{
	set_window(0);
	WRITE_ONCE(sysctl_cow_precopy_max, max);
	set_hw_dirty(test, hw_dirty);
}

/* As a program writes: a fault where there has to be one. */
static unsigned int write_page(struct kunit *test, unsigned int i)
{
	if (pte_write(read_pte(test, current->mm, page_addr(test, i)))) {
		change_pte(test, i, pte_hw_written);
		return 0;
	}
	write_fault(test, i);
	return 1;
}

/* Pages of the parent that were copied ahead, as hardware says used or not. */
static void copied_ahead(struct kunit *test, u64 pages, bool used)
{
	unsigned int i;

	demand(test, pages);
	for (i = 0; i < NR_PAGES; i++)
		if (has_page(pages, i))
			change_pte(test, i, used ? pte_hw_written : pte_never_written);
}

/* Nothing is demanded where faults leave no trace. */
static void skip_without_demand(struct kunit *test)
{
	if (!IS_ENABLED(CONFIG_MEM_SOFT_DIRTY))
		kunit_skip(test, "no soft-dirty bits in this configuration");
}

/* What expect_region() wants to see: the copies ahead are clean, the fault not. */
static void expect_clean(struct kunit *test, u64 pages, bool hw_dirty)
{
	struct fixture *f = test->priv;

	f->clean = hw_dirty ? pages : 0;
}

static void expect_anon_mapped(struct kunit *test, unsigned int more)
{
	struct fixture *f = test->priv;

	/* Elsewhere, other processes' pages come and go meanwhile. */
	if (!IS_ENABLED(CONFIG_UML))
		return;
	KUNIT_EXPECT_EQ_MSG(test, read_anon_mapped(), f->before.anon_mapped + more,
			    "nr_anon_pages");
}

/**
 * struct adaptive_case - what was written, and what a fault copies
 * @desc: in words
 * @pos: the fault
 * @demand: pages that faults have copied
 * @used: pages that were copied ahead and written to
 * @unused: pages that were copied ahead
 * @hole: pages that nobody has
 * @set: flags of the VMA
 * @max: vm.cow_precopy_max; 0 for the default
 * @soft_dirty: works only where faults on demand are told from others
 * @want: the pages that are copied ahead
 * @want_no_hw: the same, where hardware does not note writes
 * @why: why pages are left out
 * @skipped: how many
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
		.want = BIT_ULL(21), .want_no_hw = BIT_ULL(21),
	}, {
		.desc = "2 pages above",
		.pos = 20, .demand = PAGES(21, 22),
		.want = BIT_ULL(19), .want_no_hw = BIT_ULL(19),
	}, {
		.desc = "2 pages below, end of the aligned pages",
		.pos = 31, .demand = PAGES(29, 30),
	}, {
		.desc = "2 pages above, start of the aligned pages",
		.pos = 32, .demand = PAGES(33, 34),
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
		.want = PAGES(33, 35), .want_no_hw = BIT_ULL(33),
	}, {
		.desc = "2 pages below that were copied ahead and not used",
		.pos = 20, .unused = PAGES(18, 19),
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
		.desc = "at most 31, aligned to 32",
		.pos = 48, .demand = PAGES(0, 47), .max = 31,
		.want = PAGES(49, 54), .want_no_hw = BIT_ULL(49),
	}, {
		.desc = "at most 31, backward",
		.pos = 15, .demand = PAGES(16, 63), .max = 31,
		.want = PAGES(9, 14), .want_no_hw = BIT_ULL(14),
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
		.desc = "MADV_SEQUENTIAL, at most 31",
		.pos = 0, .set = VM_SEQ_READ, .max = 31,
		.want = PAGES(1, 31), .want_no_hw = PAGES(1, 31),
	}, {
		.desc = "MADV_SEQUENTIAL, at most 2",
		.pos = 0, .set = VM_SEQ_READ, .max = 2,
		.want = PAGES(1, 2), .want_no_hw = PAGES(1, 2),
	}, {
		.desc = "MADV_SEQUENTIAL, next page written",
		.pos = 20, .demand = BIT_ULL(21), .set = VM_SEQ_READ,
		.want = PAGES(22, 31), .want_no_hw = PAGES(22, 31),
	}, {
		.desc = "19 pages demanded",
		.pos = 50, .demand = PAIRS(21) | NEAR_50, .soft_dirty = true,
	}, {
		.desc = "20 pages demanded: on both sides",
		.pos = 50, .demand = PAIRS(23) | NEAR_50, .soft_dirty = true,
		.want = PAGES(42, 49) | (PAGES(51, 58) & ~NEAR_50),
	}, {
		.desc = "20 pages demanded, last page of the block",
		.pos = 63, .demand = PAIRS(23) | NEAR_63, .soft_dirty = true,
		.want = PAGES(45, 62) & ~NEAR_63,
	}, {
		.desc = "20 pages written, 18 of them demanded",
		.pos = 50, .demand = PAIRS(19) | NEAR_50, .used = PAGES(27, 28),
		.soft_dirty = true,
	}, {
		.desc = "20 pages demanded, as many unused",
		.pos = 40, .demand = PAIRS(25) | BIT_ULL(37), .unused = PAGES(44, 63),
		.soft_dirty = true,
	},
};

KUNIT_ARRAY_PARAM_DESC(adaptive, adaptive_cases, desc);

static void set_up_case(struct kunit *test, const struct adaptive_case *c, bool hw_dirty)
{
	set_adaptive(test, c->max ?: COW_PRECOPY_MAX_DEFAULT, hw_dirty);
	populate(test, ALL_PAGES & ~c->hole);
	share(test);
	demand(test, c->demand);
	copied_ahead(test, c->used, true);
	copied_ahead(test, c->unused, false);
	change_vma_flags(test, c->set, 0);
	note(test);
}

static void test_adaptive(struct kunit *test, bool hw_dirty)
{
	const struct adaptive_case *c = test->param_value;
	u64 want = hw_dirty ? c->want : c->want_no_hw;
	unsigned int skipped = c->skipped;

	if (c->soft_dirty)
		skip_without_demand(test);
	set_up_case(test, c, hw_dirty);
	write_fault(test, c->pos);
	expect_clean(test, want, hw_dirty);
	expect_region(test, want | BIT_ULL(c->pos));
	expect_counts(test, hweight64(want), skipped ? c->why : COW_SKIP_NONE,
		      skipped);
	expect_anon_mapped(test, 1 + hweight64(want));
	change_vma_flags(test, 0, c->set);
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
	{ "forward", false, true, 20 },
	{ "backward", true, true, 20 },
	{ "forward, no dirty bits", false, false, 33 },
	{ "backward, no dirty bits", true, false, 33 },
};

KUNIT_ARRAY_PARAM_DESC(walk, walk_cases, desc);

static void adaptive_walk(struct kunit *test)
{
	const struct walk_case *c = test->param_value;
	unsigned int i, faults = 0;

	set_adaptive(test, COW_PRECOPY_MAX_DEFAULT, c->hw_dirty);
	share_pages(test, ALL_PAGES);
	for (i = 0; i < NR_PAGES; i++)
		faults += write_page(test, c->backward ? NR_PAGES - 1 - i : i);
	KUNIT_EXPECT_EQ(test, faults, c->faults);
	expect_region(test, ALL_PAGES);
	expect_counts(test, NR_PAGES - c->faults, COW_SKIP_NONE, 0);
	expect_anon_mapped(test, NR_PAGES);
}

/* The sysctl and the VMA say no, or it is not a plain write. */
static void adaptive_switched_off(struct kunit *test)
{
	set_adaptive(test, WINDOW, true);
	static_branch_disable(&cow_precopy_key);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, PAGES(4, 31));
	note(test);
	write_fault(test, 32);
	expect_region(test, BIT_ULL(32));
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void adaptive_vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	set_adaptive(test, WINDOW, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, PAGES(4, 31));
	note(test);
	change_vma_flags(test, c->set, c->clear);
	write_fault(test, 32);
	expect_region(test, BIT_ULL(32));
	expect_counts(test, 0, c->why, 1);
	change_vma_flags(test, c->clear, c->set);
}

static void adaptive_no_plain_write(struct kunit *test)
{
	const struct flags_case *c = test->param_value;
	unsigned int i;

	set_adaptive(test, WINDOW, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, PAGES(4, 31));
	note(test);
	fault(test, 32, c->flags);
	lru_add_drain_all();
	for (i = 0; i < NR_PAGES; i++) {
		if (i != 32)
			expect_unchanged(test, i);
	}
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/*
 * Windows below the fault, and on both sides: bounds, races, memory
 */

/* The VMA begins, or ends, in the middle of the window. */
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

/* Behind the edge is another VMA, whose pages are shared, too. */
static void adaptive_vma_edge(struct kunit *test)
{
	const struct edge_case *c = test->param_value;
	struct fixture *f = test->priv;
	unsigned long edge = page_addr(test, c->cut);

	/* Before the first page is touched: one region, two VMAs. */
	if (c->above)
		map_fixed(test, edge, f->end - edge, MAP_NORESERVE);
	else
		map_fixed(test, f->base, edge - f->base, MAP_NORESERVE);
	set_adaptive(test, WINDOW, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, c->demand);
	note(test);
	write_fault(test, c->pos);
	expect_clean(test, c->want, true);
	expect_region(test, c->want | BIT_ULL(c->pos));
	expect_counts(test, hweight64(c->want), COW_SKIP_NONE, 0);
}

/* Around the fault are those of the tests of races, ODD in their middle. */
#define BELOW_FAULT	(ODD + 2)
#define BELOW		PAGES(ODD - 1, ODD + 1)
#define BELOW_DEMAND	PAGES(BELOW_FAULT + 1, BELOW_FAULT + 27)
/* Written near the fault, or it would not look any further: 3 at odd distances. */
#define AROUND_FAULT	(ODD + 1)
#define AROUND_NEAR	(BIT_ULL(38) | BIT_ULL(42) | BIT_ULL(46))
#define AROUND_DEMAND	(PAIRS(23) | AROUND_NEAR)
#define AROUND		(PAGES(27, 44) & ~(BIT_ULL(AROUND_FAULT) | AROUND_NEAR))

static void share_for_window(struct kunit *test, u64 pages)
{
	set_adaptive(test, WINDOW, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, pages);
	note(test);
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
	start_race(test, c->race);
	write_fault(test, at);
	KUNIT_EXPECT_TRUE(test, f->raced);
	expect_copies(test, nr, nr - 1);
	expect_clean(test, window, true);
	expect_region(test, (window | BIT_ULL(at)) & ~BIT_ULL(ODD));
	expect_counts(test, nr - 1, COW_SKIP_RACE, 1);
	if (c->undo)
		c->undo(test);
}

static void race_below(struct kunit *test)
{
	test_race(test, BELOW_DEMAND, BELOW_FAULT, BELOW);
}

static void race_around(struct kunit *test)
{
	skip_without_demand(test);
	test_race(test, AROUND_DEMAND, AROUND_FAULT, AROUND);
}

static void notifier_range_below(struct kunit *test)
{
	share_for_window(test, BELOW_DEMAND);
	watch_fault(test, BELOW_FAULT, ODD - 1, BELOW_FAULT, BELOW | BIT_ULL(BELOW_FAULT));
}

/* What is left out below the fault is not announced. */
static void notifier_range_below_is_no_wider(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_window(test, BELOW_DEMAND);
	unmap_page_of(test, f->parent.mm, ODD - 1);
	note(test);
	watch_fault(test, BELOW_FAULT, ODD, BELOW_FAULT, PAGES(ODD, BELOW_FAULT));
}

static void notifier_range_around(struct kunit *test)
{
	skip_without_demand(test);
	share_for_window(test, AROUND_DEMAND);
	watch_fault(test, AROUND_FAULT, 27, 44, AROUND | BIT_ULL(AROUND_FAULT));
}

/* As many pages as f->nr_bulk says; the others are asked for one by one. */
static unsigned int bulk_stub(struct vm_area_struct *vma, unsigned int nr,
			      struct page **pages)
{
	struct fixture *f = kunit_get_current_test()->priv;
	unsigned int i;

	for (i = 0; i < min(nr, f->nr_bulk); i++) {
		struct folio *copy = alloc_stub(vma, 0);

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

/* The window is BELOW. */
static const struct bulk_case bulk_cases[] = {
	{ "none at once", 0, false, 3, BELOW },
	{ "one at once", 1, false, 3, BELOW },
	{ "all but one at once", 2, false, 3, BELOW },
	{ "all at once", 3, false, 3, BELOW },
	{ "none at all", 0, true, 0, 0 },
	{ "one", 1, true, 1, BIT_ULL(ODD - 1) },
	{ "all but one", 2, true, 2, BIT_ULL(ODD - 1) | BIT_ULL(ODD) },
	{ "all at once, and no more", 3, true, 3, BELOW },
};

KUNIT_ARRAY_PARAM_DESC(bulk, bulk_cases, desc);

/* A page that is asked for alone is for the right address. */
static struct folio *alloc_at_stub(struct vm_area_struct *vma, unsigned long addr)
{
	struct kunit *test = kunit_get_current_test();
	struct fixture *f = test->priv;

	KUNIT_EXPECT_EQ(test, addr, page_addr(test, ODD - 1 + f->nr_copies));
	return alloc_stub(vma, addr);
}

static struct folio *none_stub(struct vm_area_struct *vma, unsigned long addr)
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
	write_fault(test, BELOW_FAULT);
	expect_copies(test, c->made, nr);
	expect_clean(test, c->want, true);
	expect_region(test, c->want | BIT_ULL(BELOW_FAULT));
	if (nr < 3)
		expect_counts(test, nr, COW_SKIP_NOMEM, 1);
	else
		expect_counts(test, nr, COW_SKIP_NONE, 0);
	expect_anon_mapped(test, nr + 1);
}

struct policy_case {
	const char *desc;
	bool of_vma;
};

static const struct policy_case policy_cases[] = {
	{ "of the task", false },
	{ "of the VMA", true },
};

KUNIT_ARRAY_PARAM_DESC(policy, policy_cases, desc);

/* A memory policy; that it is the default one does not matter. */
static void set_policy(struct kunit *test, bool on)
{
#ifdef CONFIG_NUMA
	static struct mempolicy local = {
		.refcnt = ATOMIC_INIT(1),
		.mode = MPOL_LOCAL,
	};
	const struct policy_case *c = test->param_value;
	struct mempolicy *policy = on ? &local : NULL;

	if (c->of_vma)
		vma_lookup(current->mm, page_addr(test, 0))->vm_policy = policy;
	else
		current->mempolicy = policy;
#else
	kunit_skip(test, "not in this configuration");
#endif
}

/* Each page may have to be on another node, so nothing is allocated at once. */
static void bulk_memory_policy(struct kunit *test)
{
	struct vm_area_struct *vma = vma_lookup(current->mm, page_addr(test, 0));
	struct page *pages[3] = {};
	unsigned int nr;

	set_policy(test, true);
	nr = cow_precopy_alloc_bulk(vma, ARRAY_SIZE(pages), pages);
	set_policy(test, false);
	KUNIT_EXPECT_EQ(test, nr, 0);
	while (nr--)
		put_page(pages[nr]);
}

/* All are charged at once, and none is mapped. */
static void adaptive_charge_fails(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_window(test, BELOW_DEMAND);
	f->nr_bulk = 3;
	kunit_activate_static_stub(test, cow_precopy_alloc_bulk, bulk_stub);
	kunit_activate_static_stub(test, cow_precopy_charge, no_charge_stub);
	write_fault(test, BELOW_FAULT);
	KUNIT_EXPECT_EQ(test, f->nr_charges, 1);
	expect_copies(test, 3, 0);
	expect_region(test, BIT_ULL(BELOW_FAULT));
	expect_counts(test, 0, COW_SKIP_NOMEM, 1);
	expect_anon_mapped(test, 1);
}

/*
 * Reuse ahead. Of the run below the fault, 8 pages are written if it makes its
 * page writable, for 4 pages ahead; 32 if it copies, for as many.
 */

#define REUSE_WINDOW	PAGES(FAULT + 1, FAULT + 4)

static u64 reuse_run(bool copies)
{
	return copies ? PAGES(0, 31) : PAGES(24, 31);
}

/* @ahead pages were made writable ahead, and the faulting one if @self. */
static void expect_reuses(struct kunit *test, unsigned int ahead, bool self)
{
	struct fixture *f = test->priv;
	struct counts now;

	read_counts(&now);
	KUNIT_EXPECT_EQ(test, now.mine[COW_ITEM_REUSE_AHEAD] -
			f->before.mine[COW_ITEM_REUSE_AHEAD], ahead);
	if (IS_ENABLED(CONFIG_VM_EVENT_COUNTERS))
		KUNIT_EXPECT_EQ(test, now.pgreuse - f->before.pgreuse, ahead + self);
}

/* What is not reused must not say that it is the parent's alone. */
static void expect_not_exclusive(struct kunit *test, u64 pages)
{
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		struct page *page = has_page(pages, i) ? read_page(test, current->mm, i) : NULL;

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
	set_adaptive(test, WINDOW, hw_dirty);
	share_odd(test, reuse_run(copies),
		  copies ? REUSE_WINDOW : REUSE_WINDOW | BIT_ULL(FAULT));
	odd = f->parent.pages[ODD].page;
	ahead = hweight64(reused);

	exclusive = odd && PageAnonExclusive(odd);
	write_fault(test, FAULT);
	if (copies)
		copied = BIT_ULL(FAULT);
	else
		reused |= BIT_ULL(FAULT);
	/* It does not matter what was meant to be copied. */
	if (copies && c->shared)
		copied |= BIT_ULL(ODD);
	expect_clean(test, REUSE_WINDOW, hw_dirty);
	if (c->dirty)
		f->clean &= ~BIT_ULL(ODD);
	expect_region_reused(test, copied, reused);
	/* Nobody has taken a fault for it. */
	if (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && (reused & BIT_ULL(ODD)) && hw_dirty)
		KUNIT_EXPECT_FALSE(test, pte_soft_dirty(read_pte(test, current->mm,
								 page_addr(test, ODD))));
	if (!exclusive && !((copied | reused) & BIT_ULL(ODD)))
		expect_not_exclusive(test, BIT_ULL(ODD));
	if (!copies)
		expect_counts(test, 0, COW_SKIP_NONE, 0);
	else
		expect_counts(test, c->shared, c->reuse, left_out);
	expect_reuses(test, ahead, !copies);
	expect_anon_mapped(test, hweight64(copied));
	undo_odd(test);
}

/* The faulting page is no longer shared, either. */
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

/* Nothing but the faulting page is made writable. */
static void expect_reuse_alone(struct kunit *test)
{
	struct fixture *f = test->priv;

	f->clean = 0;
	expect_region_reused(test, 0, BIT_ULL(FAULT));
	expect_not_exclusive(test, REUSE_WINDOW);
	expect_reuses(test, 0, true);
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

static void reuse_share(struct kunit *test)
{
	set_adaptive(test, WINDOW, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, reuse_run(false));
	take_from_child(test, REUSE_WINDOW | BIT_ULL(FAULT));
	note(test);
}

static void reuse_vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	reuse_share(test);
	change_vma_flags(test, c->set, c->clear);
	write_fault(test, FAULT);
	expect_reuse_alone(test);
	change_vma_flags(test, c->clear, c->set);
}

/* A debugger writes where the program may not. */
static void reuse_vma_read_only(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	reuse_share(test);
	change_vma_flags(test, 0, VM_WRITE);
	write_fault(test, FAULT);
	lru_add_drain_all();
	for (i = 0; i < NR_PAGES; i++) {
		if (i != FAULT)
			expect_less(test, &f->parent, i, 0, 0);
	}
	expect_not_exclusive(test, REUSE_WINDOW);
	expect_reuses(test, 0, true);
	change_vma_flags(test, VM_WRITE, 0);
}

static void reuse_fixed_window(struct kunit *test)
{
	reuse_share(test);
	set_window(WINDOW);
	write_fault(test, FAULT);
	expect_reuse_alone(test);
}

static void reuse_switched_off(struct kunit *test)
{
	reuse_share(test);
	static_branch_disable(&cow_precopy_key);
	write_fault(test, FAULT);
	expect_reuse_alone(test);
}

/* No run, no reuse. */
static void reuse_lone_write(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	set_adaptive(test, WINDOW, true);
	populate(test, ALL_PAGES);
	share(test);
	for (i = 0; i < NR_PAGES; i++)
		unmap_page_of(test, f->child.mm, i);
	note(test);
	write_fault(test, FAULT);
	expect_reuse_alone(test);
}

static void reuse_no_plain_write(struct kunit *test)
{
	const struct flags_case *c = test->param_value;
	unsigned int i;

	reuse_share(test);
	fault(test, FAULT, c->flags);
	lru_add_drain_all();
	for (i = 0; i < NR_PAGES; i++) {
		if (i != FAULT)
			expect_unchanged(test, i);
	}
	expect_not_exclusive(test, REUSE_WINDOW);
	expect_reuses(test, 0, c->write);
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/* Downward, too; and a large number of pages at once. */
static void reuse_backward(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned int i;

	set_adaptive(test, WINDOW, false);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, PAGES(32, 63));
	for (i = 0; i < 32; i++)
		unmap_page_of(test, f->child.mm, i);
	note(test);
	write_fault(test, 31);
	expect_region_reused(test, 0, PAGES(0, 31));
	expect_reuses(test, 31, true);
	expect_counts(test, 0, COW_SKIP_NONE, 0);
}

/*
 * A whole block is copied into one large folio. MADV_SEQUENTIAL makes the fault
 * take all up to the end of the block; the pages are small before.
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

/* As prctl(PR_SET_THP_DISABLE) */
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

/* Folios of all sizes are allowed. */
static int cow_folio_test_init(struct kunit *test)
{
	static const struct thp_settings all = { .always = THP_ORDERS_ALL_ANON };
	struct fixture *f;
	int ret;

	if (!IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE))
		kunit_skip(test, "no large folios in this configuration");
	ret = cow_precopy_test_init(test);
	if (ret)
		return ret;
	f = test->priv;
	read_thp_settings(&f->thp);
	KUNIT_ASSERT_EQ(test, kunit_add_action(test, restore_thp, &f->thp), 0);
	set_thp_settings(&all);
	return 0;
}

/* What comes next is in one folio, if it may be. */
static void want_folio(struct kunit *test)
{
	change_vma_flags(test, VM_SEQ_READ, VM_NOHUGEPAGE);
	note(test);
}

static void share_for_folio(struct kunit *test)
{
	set_adaptive(test, FOLIO_PAGES - 1, true);
	share_pages(test, ALL_PAGES);
	want_folio(test);
}

/* A fault at @at has copied the pages @copied, each alone. */
static void expect_pages(struct kunit *test, unsigned int at, u64 copied)
{
	expect_clean(test, copied & ~BIT_ULL(at), true);
	expect_region(test, copied);
	expect_counts(test, hweight64(copied) - 1, COW_SKIP_NONE, 0);
	expect_anon_mapped(test, hweight64(copied));
}

/* The same into one folio. */
static void expect_folio(struct kunit *test, unsigned int at, u64 copied)
{
	struct fixture *f = test->priv;

	f->large = copied;
	expect_pages(test, at, copied);
}

static struct folio *folio_at(struct kunit *test, unsigned int i)
{
	struct page *page = read_page(test, current->mm, i);

	KUNIT_ASSERT_NOT_NULL(test, page);
	return page_folio(page);
}

/* Copies FOLIO; returns what it is in now. */
static struct folio *make_folio(struct kunit *test)
{
	struct folio *folio;

	share_for_folio(test);
	write_fault(test, FAULT);
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
	{ "16 pages", 4 },
	{ "32 pages, the largest", 5 },
};

KUNIT_ARRAY_PARAM_DESC(order, order_cases, desc);

static void folio_sizes(struct kunit *test)
{
	const struct order_case *c = test->param_value;
	unsigned int nr = 1 << c->order;
	long allocated, mapped;

	set_adaptive(test, nr - 1, true);
	share_pages(test, ALL_PAGES);
	want_folio(test);
	allocated = read_mthp(c->order, MTHP_STAT_ANON_FAULT_ALLOC);
	mapped = read_mthp(c->order, MTHP_STAT_NR_ANON);
	write_fault(test, FAULT);
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
#define OTHER_ORDERS	(THP_ORDERS_ALL_ANON & ~BIT(FOLIO_ORDER))

/**
 * struct allowed_case - who may have a folio of 16 pages
 * @desc: in words
 * @thp: the settings
 * @set: flags of the VMA
 * @disabled: by prctl()
 * @large: yes
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
	change_vma_flags(test, c->set, 0);
	if (c->disabled)
		disable_thp();
	write_fault(test, FAULT);
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
 * What a file may have is not what its private copies may have: no size of
 * anonymous folios is enabled.
 */
static void folio_private_file(struct kunit *test)
{
	static const struct thp_settings files = { .flags = THP_ALWAYS };
	static const struct vm_operations_struct ops = {
		.huge_fault = no_huge_fault,
	};
	const struct vm_operations_struct *old;
	struct vm_area_struct *vma;

	map_file(test);
	vma = vma_lookup(current->mm, page_addr(test, 0));
	old = vma->vm_ops;
	share_for_folio(test);
	set_thp_settings(&files);
	vma->vm_ops = &ops;
	write_fault(test, FAULT);
	vma->vm_ops = old;
	expect_pages(test, FAULT, FOLIO);
}

/*
 * Which windows are a block
 */

/**
 * struct block_case - what was written, and what a fault copies
 * @desc: in words
 * @pos: the fault
 * @demand: pages that faults have copied
 * @unused: pages that were copied ahead
 * @want: the pages that are copied ahead
 * @large: into one folio
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
	{ "behind a run, 2 pages", 32, PAGES(30, 31), 0, BIT_ULL(33) },
	{
		"behind dense pages",
		32, PAGES(0, 7) | (PAGES(16, 31) & ~BIT_ULL(21)), BIT_ULL(21),
		PAGES(33, 47), true,
	}, {
		"in front of dense pages",
		31, PAGES(56, 63) | (PAGES(32, 47) & ~BIT_ULL(42)), BIT_ULL(42),
		PAGES(16, 30), true,
	},
};

KUNIT_ARRAY_PARAM_DESC(block, block_cases, desc);

static void folio_window(struct kunit *test)
{
	const struct block_case *c = test->param_value;

	if (c->unused)
		skip_without_demand(test);
	set_adaptive(test, FOLIO_PAGES - 1, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, c->demand);
	copied_ahead(test, c->unused, false);
	change_vma_flags(test, 0, VM_NOHUGEPAGE);
	note(test);
	write_fault(test, c->pos);
	if (c->large)
		expect_folio(test, c->pos, c->want | BIT_ULL(c->pos));
	else
		expect_pages(test, c->pos, c->want | BIT_ULL(c->pos));
}

/* Nobody is told about a block, and no page table is locked for it, in vain. */
static void folio_window_with_a_hole(struct kunit *test)
{
	set_adaptive(test, FOLIO_PAGES - 1, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, PAGES(0, FAULT - 1));
	odd_zap(test);
	change_vma_flags(test, 0, VM_NOHUGEPAGE);
	note(test);
	watch_fault(test, FAULT, FAULT, FAULT + 4,
		    PAGES(FAULT, FAULT + 4) & ~BIT_ULL(ODD));
}

/**
 * struct border_case - where the VMA or the page table ends
 * @desc: in words
 * @first: the first page of the region
 * @pos: the fault
 * @cut: where the VMA ends, if it does
 * @nr: pages that are copied
 * @large: into one folio
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

/* Behind the end of the VMA is another one, whose pages are shared, too. */
static void folio_bounds(struct kunit *test)
{
	const struct border_case *c = test->param_value;
	u64 copied = PAGES(c->pos, c->pos + c->nr - 1);
	struct fixture *f = test->priv;

	look_at(test, c->first);
	if (c->cut)
		map_fixed(test, page_addr(test, c->cut),
			  f->end - page_addr(test, c->cut), MAP_NORESERVE);
	share_for_folio(test);
	write_fault(test, c->pos);
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
	set_hw_dirty(test, false);
	write_fault(test, FAULT);
	f->large = FOLIO;
	expect_region(test, FOLIO);
	expect_counts(test, FOLIO_PAGES - 1, COW_SKIP_NONE, 0);
}

/* It is what it says, whatever is allowed. */
static void folio_fixed_window(struct kunit *test)
{
	share_for_folio(test);
	set_window(FOLIO_PAGES - 1);
	write_fault(test, FAULT);
	expect_region(test, FOLIO);
	expect_counts(test, FOLIO_PAGES - 1, COW_SKIP_NONE, 0);
}

/* If one page must be left out, the others are copied one by one. */
static void folio_odd_neighbour(struct kunit *test)
{
	const struct odd_case *c = test->param_value;
	bool left_out = c->copy != COW_SKIP_NONE;
	struct fixture *f = test->priv;
	u64 copied = FOLIO, reused = 0;

	set_adaptive(test, FOLIO_PAGES - 1, true);
	share_odd(test, 0, 0);
	want_folio(test);
	write_fault(test, FAULT);
	if (left_out)
		copied &= ~BIT_ULL(ODD);
	else
		f->large = FOLIO;
	/* What nobody else has is made writable, and stays as dirty as it was. */
	if (c->copy == COW_SKIP_EXCLUSIVE && c->reuse == COW_SKIP_NONE) {
		reused = BIT_ULL(ODD);
		left_out = false;
	}
	expect_clean(test, copied & ~BIT_ULL(FAULT), true);
	expect_region_reused(test, copied, reused);
	expect_counts(test, hweight64(copied) - 1,
		      left_out ? c->copy : COW_SKIP_NONE, left_out);
	expect_reuses(test, hweight64(reused), false);
	undo_odd(test);
}

static void folio_vma_refuses(struct kunit *test)
{
	const struct refused_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_for_folio(test);
	change_vma_flags(test, c->set, c->clear);
	write_fault(test, FAULT);
	expect_region(test, BIT_ULL(FAULT));
	expect_counts(test, 0, c->why, 1);
	change_vma_flags(test, c->clear, c->set);
}

/*
 * Races: the block is not what it was, and its pages are copied one by one.
 */

/* @lost: pages of which another thread has a copy by then */
static void expect_lost_race(struct kunit *test, unsigned int at,
			     u64 window, u64 lost)
{
	struct fixture *f = test->priv;
	u64 mapped = window & ~lost;

	KUNIT_EXPECT_TRUE(test, f->raced);
	expect_copies(test, hweight64(window), hweight64(mapped));
	expect_clean(test, mapped, true);
	expect_region(test, (mapped | BIT_ULL(at)) & ~lost);
	expect_counts(test, hweight64(mapped), COW_SKIP_RACE,
		      hweight64(window & lost));
}

static void folio_race(struct kunit *test)
{
	const struct race_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_for_folio(test);
	start_race(test, c->race);
	write_fault(test, FAULT);
	expect_lost_race(test, FAULT, FOLIO & ~BIT_ULL(FAULT), BIT_ULL(ODD));
	if (c->undo)
		c->undo(test);
}

static void race_write_first_page(struct kunit *test)
{
	write_locked(test, FAULT - 4);
	note_race(test, FAULT - 4, 1);
}

static void folio_race_on_first_page(struct kunit *test)
{
	set_adaptive(test, FOLIO_PAGES - 1, true);
	populate(test, ALL_PAGES);
	share(test);
	demand(test, PAGES(FAULT, FAULT + 23));
	change_vma_flags(test, 0, VM_NOHUGEPAGE);
	note(test);
	start_race(test, race_write_first_page);
	write_fault(test, FAULT - 1);
	expect_lost_race(test, FAULT - 1, PAGES(FAULT - 4, FAULT - 2), BIT_ULL(FAULT - 4));
}

static void race_write_last_page(struct kunit *test)
{
	write_locked(test, FAULT + FOLIO_PAGES - 1);
	note_race(test, FAULT + FOLIO_PAGES - 1, 1);
}

static void folio_race_on_last_page(struct kunit *test)
{
	share_for_folio(test);
	start_race(test, race_write_last_page);
	write_fault(test, FAULT);
	expect_lost_race(test, FAULT, FOLIO & ~BIT_ULL(FAULT),
			 BIT_ULL(FAULT + FOLIO_PAGES - 1));
}

/* Another thread has solved the fault: nothing is left to do. */
static void folio_race_on_fault_page(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	start_race(test, race_write_fault_page);
	write_fault(test, FAULT);
	KUNIT_EXPECT_TRUE(test, f->raced);
	expect_copies(test, FOLIO_PAGES - 1, 0);
	expect_region(test, 0);
	expect_counts(test, 0, COW_SKIP_RACE, FOLIO_PAGES - 1);
}

/* The folio is mapped all the same, and the old page is freed. */
static void folio_race_with_child(struct kunit *test)
{
	struct fixture *f = test->priv;

	share_for_folio(test);
	start_race(test, race_unmap_in_child);
	f->large = FOLIO;
	expect_clean(test, FOLIO & ~BIT_ULL(FAULT), true);
	test_race_with_child(test, FOLIO, 0);
}

/*
 * Memory is short
 */

static void count_isolated(long nr)
{
	pg_data_t *pgdat;

	for_each_online_pgdat(pgdat)
		mod_node_page_state(pgdat, NR_ISOLATED_ANON, nr);
}

static void stop_compaction(struct fixture *f)
{
	f->isolated = totalram_pages();
	count_isolated(f->isolated);
}

static void let_compact(void *fixture)
{
	struct fixture *f = fixture;

	count_isolated(-f->isolated);
	f->isolated = 0;
}

/*
 * Twice a second kcompactd looks whether memory is fragmented, as it is in these tests,
 * and would move our pages and make blocks of what was left alone: it waits as long as
 * too many pages seem to be isolated already. What else may free memory waits for this
 * thread, on one CPU, for up to a second (the fair server).
 */
static void share_undisturbed(struct kunit *test)
{
	stop_compaction(test->priv);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, let_compact, test->priv), 0);
	sched_set_fifo(current);
	share_for_folio(test);
}

/* Never by reclaim, even if the series should: it would wait for this very thread. */
static void take_blocks(struct list_head *blocks)
{
	struct page *page;

	while ((page = alloc_pages(COW_PRECOPY_GFP & ~__GFP_RECLAIM, FOLIO_ORDER)))
		list_add(&page->lru, blocks);
}

/*
 * Nothing of a folio's size is free any more, but enough pages are, each alone: more
 * than the zones keep back, which is up to 2.5 times as much once pages of other types
 * were taken (watermark_boost_factor). With fewer, blocks would be left that nobody may
 * have, and the fault itself might not get a page.
 */
static void use_up_blocks(struct list_head *blocks, struct list_head *pages)
{
	struct page *page;
	unsigned long nr;
	unsigned int k;

	take_blocks(blocks);
	for (nr = 0; nr < 4 * totalreserve_pages && !list_empty(blocks);
	     nr += FOLIO_PAGES / 2) {
		page = list_first_entry(blocks, struct page, lru);
		list_del(&page->lru);
		split_page(page, FOLIO_ORDER);
		for (k = 0; k < FOLIO_PAGES; k++) {
			if (k % 2)
				list_add(&page[k].lru, pages);
			else
				__free_page(&page[k]);
		}
	}
	/* What the lists of a CPU hold is not free to a zone */
	drain_local_pages(NULL);
	/* Those that were kept back as long as so few pages were free */
	take_blocks(blocks);
}

static void free_list(struct list_head *pages, unsigned int order)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, pages, lru)
		__free_pages(page, order);
}

/* How often somebody had to reclaim or compact memory for his own allocation */
static unsigned long read_stalls(void)
{
	unsigned long stalls = read_event(ALLOCSTALL_NORMAL) +
			       read_event(ALLOCSTALL_MOVABLE);

#ifdef CONFIG_COMPACTION
	stalls += read_event(COMPACTSTALL);
#endif
	return stalls;
}

/* No folio, so single pages; and nobody has waited for one. */
static void folio_no_block_left(struct kunit *test)
{
	unsigned long stalls;
	LIST_HEAD(blocks);
	LIST_HEAD(pages);

	share_undisturbed(test);
	use_up_blocks(&blocks, &pages);
	stalls = read_stalls();
	/* A fault that compacts memory is to fail the test, not to wait for its end */
	let_compact(test->priv);
	write_fault(test, FAULT);
	stop_compaction(test->priv);
	stalls = read_stalls() - stalls;
	free_list(&blocks, FOLIO_ORDER);
	free_list(&pages, 0);
	KUNIT_EXPECT_EQ(test, stalls, 0);
	expect_pages(test, FAULT, FOLIO);
}

/* The fault has made a folio of the last block that was free. */
static void race_for_last_block(struct kunit *test)
{
	struct fixture *f = test->priv;

	KUNIT_EXPECT_TRUE(test, PageHead(f->block));
	race_write(test);
}

static void folio_lost_race_is_freed(struct kunit *test)
{
	struct fixture *f = test->priv;
	LIST_HEAD(blocks);
	LIST_HEAD(pages);
	bool is_folio;

	share_undisturbed(test);
	start_race(test, race_for_last_block);
	use_up_blocks(&blocks, &pages);
	/* The first that was taken is of the zone that is asked first */
	f->block = list_last_entry(&blocks, struct page, lru);
	list_del(&f->block->lru);
	__free_pages(f->block, FOLIO_ORDER);
	write_fault(test, FAULT);
	is_folio = PageHead(f->block);
	free_list(&blocks, FOLIO_ORDER);
	free_list(&pages, 0);
	KUNIT_EXPECT_FALSE(test, is_folio);
	expect_lost_race(test, FAULT, FOLIO & ~BIT_ULL(FAULT), BIT_ULL(ODD));
}

/* Pages may have to be on several nodes. */
static void folio_memory_policy(struct kunit *test)
{
	share_for_folio(test);
	set_policy(test, true);
	write_fault(test, FAULT);
	set_policy(test, false);
	expect_pages(test, FAULT, FOLIO);
}

/* A cgroup near its limit has nothing to speculate with. */
static void folio_memcg_is_full(struct kunit *test)
{
#ifdef CONFIG_MEMCG
	unsigned long max;

	if (mem_cgroup_disabled())
		kunit_skip(test, "memory cgroups are disabled");
	share_for_folio(test);
	max = root_mem_cgroup->memory.max;
	WRITE_ONCE(root_mem_cgroup->memory.max, MEMCG_CHARGE_BATCH - 1);
	write_fault(test, FAULT);
	WRITE_ONCE(root_mem_cgroup->memory.max, max);
	expect_region(test, BIT_ULL(FAULT));
	expect_counts(test, 0, COW_SKIP_NOMEM, 1);
#else
	kunit_skip(test, "not in this configuration");
#endif
}

static void folio_notifier_range(struct kunit *test)
{
	share_for_folio(test);
	watch_fault(test, FAULT, FAULT, FAULT + FOLIO_PAGES - 1, FOLIO);
}

/*
 * What the folio is like afterwards
 */

static void folio_locked_memory(struct kunit *test)
{
	share_for_folio(test);
	change_vma_flags(test, VM_LOCKED, 0);
	write_fault(test, FAULT);
	expect_folio(test, FAULT, FOLIO);
	KUNIT_EXPECT_TRUE(test, folio_test_mlocked(folio_at(test, FAULT)));
	KUNIT_EXPECT_TRUE(test, folio_test_unevictable(folio_at(test, FAULT)));
	change_vma_flags(test, 0, VM_LOCKED);
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

/* The folio is shared by another fork(). */
static struct folio *share_folio_again(struct kunit *test)
{
	struct fixture *f = test->priv;

	f->old = make_folio(test);
	share(test);
	note(test);
	return f->old;
}

/* What the child has is still whole: there is nothing to be split. */
static void folio_of_folio(struct kunit *test)
{
	struct folio *old = share_folio_again(test);

	write_fault(test, FAULT);
	expect_folio(test, FAULT, FOLIO);
	KUNIT_EXPECT_TRUE(test, list_empty(&old->_deferred_list));
}

static void odd_exclusive(struct kunit *test)
{
	SetPageAnonExclusive(odd_page(test));
}

/**
 * struct part_case - how one page of a large folio may differ
 * @desc: in words
 * @late: is called after the folio is shared
 * @undo: is called at the end
 * @needs: can it be in this configuration?
 * @reused: it is made writable
 * @why: what it is left out for, if it is not
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
		.late = odd_zap,
		.needs = true,
		.why = COW_SKIP_NOTPRESENT,
	}, {
		.desc = "hwpoison",
		.late = odd_poison,
		.undo = odd_unpoison,
		.needs = IS_ENABLED(CONFIG_MEMORY_FAILURE),
		.why = COW_SKIP_SPECIAL,
	}, {
		.desc = "exclusive",
		.late = odd_exclusive,
		/* There it changes all PTEs of the block: the fault is taken again. */
		.needs = !IS_ENABLED(CONFIG_ARM64_CONTPTE),
		.reused = true,
	}, {
		.desc = "replaced by another page",
		.late = odd_write_and_protect,
		.needs = true,
		.reused = true,
	},
};

KUNIT_ARRAY_PARAM_DESC(part, part_cases, desc);

/* What holds for the other pages of a folio does not hold for this one. */
static void folio_of_folio_but_one(struct kunit *test)
{
	const struct part_case *c = test->param_value;
	struct fixture *f = test->priv;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	share_folio_again(test);
	c->late(test);
	note(test);
	write_fault(test, FAULT);
	expect_clean(test, FOLIO & ~BIT_ULL(FAULT), true);
	/* A fault has made it dirty, before or after it was shared. */
	if (pte_dirty(f->parent.pages[ODD].pte))
		f->clean &= ~BIT_ULL(ODD);
	expect_region_reused(test, FOLIO & ~BIT_ULL(ODD), c->reused ? BIT_ULL(ODD) : 0);
	expect_counts(test, FOLIO_PAGES - 2, c->why, !c->reused);
	expect_reuses(test, c->reused, false);
	if (c->undo)
		c->undo(test);
}

static void race_unmap_all_in_child(struct kunit *test)
{
	struct fixture *f = test->priv;
	u64 pages = FOLIO;
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++)
		if (has_page(pages, i))
			unmap_page_of(test, f->child.mm, i);
}

/* The last one who has the old folio gives it up all at once, and not in parts. */
static void folio_of_folio_of_the_parent(struct kunit *test)
{
	struct folio *old = share_folio_again(test);
	struct fixture *f = test->priv;
	unsigned int i;

	folio_get(old);
	start_race(test, race_unmap_all_in_child);
	write_fault(test, FAULT);
	KUNIT_EXPECT_TRUE(test, f->raced);
	KUNIT_EXPECT_TRUE(test, folio_test_large(folio_at(test, FAULT)));
	KUNIT_EXPECT_FALSE(test, folio_mapped(old));
	KUNIT_EXPECT_EQ(test, folio_ref_count(old), 1);
	KUNIT_EXPECT_TRUE(test, list_empty(&old->_deferred_list));
	folio_put(old);
	for (i = 0; i < NR_PAGES; i++)
		expect_content(test, &f->parent, i);
}

static void folio_page_copied_alone(struct kunit *test)
{
	struct folio *old = share_folio_again(test);
	struct fixture *f = test->priv;
	unsigned int i;

	write_alone(test, ODD);
	KUNIT_EXPECT_FALSE(test, folio_test_large(folio_at(test, ODD)));
	KUNIT_EXPECT_EQ(test, folio_mapcount(old), 2 * FOLIO_PAGES - 1);
	KUNIT_EXPECT_EQ(test, folio_ref_count(old), 2 * FOLIO_PAGES - 1);
	fill_page(read_page(test, current->mm, ODD), 0xee);
	for (i = 0; i < NR_PAGES; i++) {
		expect_content(test, &f->child, i);
		if (i != ODD)
			expect_content(test, &f->parent, i);
	}
}

/* Every page is as it was, in a folio of its own. */
static void split_up(struct kunit *test, struct folio *folio)
{
	folio_get(folio);
	folio_lock(folio);
	KUNIT_EXPECT_EQ(test, split_folio(folio), 0);
	folio_unlock(folio);
	folio_put(folio);
}

static void folio_is_split(struct kunit *test)
{
	struct fixture *f = test->priv;

	split_up(test, make_folio(test));
	f->split = FOLIO;
	expect_pages(test, FAULT, FOLIO);
}

/* Half of it is unmapped, and given back when it is split. */
static void folio_partly_unmapped(struct kunit *test)
{
	const unsigned int half = FOLIO_PAGES / 2;
	struct folio *folio = make_folio(test);
	struct fixture *f = test->priv;
	unsigned int i;

	note(test);
	KUNIT_ASSERT_EQ(test, vm_munmap(page_addr(test, FAULT + half),
					half * PAGE_SIZE), 0);
	KUNIT_EXPECT_EQ(test, folio_mapcount(folio), half);
	KUNIT_EXPECT_EQ(test, folio_ref_count(folio), half);
	KUNIT_EXPECT_FALSE(test, list_empty(&folio->_deferred_list));
	KUNIT_EXPECT_EQ(test, read_anon(current->mm), f->parent.anon - half);
	split_up(test, folio);
	for (i = FAULT; i < FAULT + half; i++) {
		KUNIT_EXPECT_FALSE(test, folio_test_large(folio_at(test, i)));
		KUNIT_EXPECT_EQ(test, folio_ref_count(folio_at(test, i)), 1);
		expect_content(test, &f->parent, i);
		expect_content(test, &f->child, i);
	}
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
	KUNIT_CASE(fault_reuses),
	KUNIT_CASE(fault_on_zero_page),
	KUNIT_CASE_PARAM(fault_is_no_plain_write, flags_gen_params),
	KUNIT_CASE_PARAM(vma_refuses, refused_gen_params),
	KUNIT_CASE_PARAM(race_on_neighbour, race_gen_params),
	KUNIT_CASE(race_on_fault_page),
	KUNIT_CASE(race_on_all_neighbours),
	KUNIT_CASE(race_with_child),
	KUNIT_CASE(fault_fails),
	KUNIT_CASE(allocation_fails),
	KUNIT_CASE(allocation_fails_later),
	KUNIT_CASE(charge_fails),
	KUNIT_CASE(notifier_range),
	KUNIT_CASE(notifier_range_is_no_wider),
	KUNIT_CASE(notifier_range_alone),
	{}
};

static struct kunit_suite cow_precopy_suite = {
	.name = "cow_precopy",
	.init = cow_precopy_test_init,
	.exit = cow_precopy_test_exit,
	.suite_exit = cow_precopy_suite_exit,
	.test_cases = cow_precopy_cases,
};

static struct kunit_case cow_adaptive_cases[] = {
	KUNIT_CASE_PARAM(chooses, adaptive_gen_params),
	KUNIT_CASE_PARAM(chooses_no_hw_dirty, adaptive_gen_params),
	KUNIT_CASE_PARAM(adaptive_walk, walk_gen_params),
	KUNIT_CASE(adaptive_switched_off),
	KUNIT_CASE_PARAM(adaptive_vma_refuses, refused_gen_params),
	KUNIT_CASE_PARAM(adaptive_no_plain_write, flags_gen_params),
	KUNIT_CASE_PARAM(adaptive_vma_edge, edge_gen_params),
	KUNIT_CASE_PARAM(race_below, race_gen_params),
	KUNIT_CASE_PARAM(race_around, race_gen_params),
	KUNIT_CASE(notifier_range_below),
	KUNIT_CASE(notifier_range_below_is_no_wider),
	KUNIT_CASE(notifier_range_around),
	KUNIT_CASE_PARAM(bulk_allocation, bulk_gen_params),
	KUNIT_CASE_PARAM(bulk_memory_policy, policy_gen_params),
	KUNIT_CASE(adaptive_charge_fails),
	KUNIT_CASE_PARAM(reuse_ahead, odd_gen_params),
	KUNIT_CASE_PARAM(reuse_ahead_no_hw_dirty, odd_gen_params),
	KUNIT_CASE_PARAM(reuse_in_window, odd_gen_params),
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
	.init = cow_precopy_test_init,
	.exit = cow_precopy_test_exit,
	.suite_exit = cow_precopy_suite_exit,
	.test_cases = cow_adaptive_cases,
};

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
	KUNIT_CASE(folio_lost_race_is_freed),
	KUNIT_CASE_PARAM(folio_memory_policy, policy_gen_params),
	KUNIT_CASE(folio_memcg_is_full),
	KUNIT_CASE(folio_notifier_range),
	KUNIT_CASE(folio_window_with_a_hole),
	KUNIT_CASE(folio_locked_memory),
	KUNIT_CASE(folio_is_in_the_rmap),
	KUNIT_CASE(folio_of_folio),
	KUNIT_CASE_PARAM(folio_of_folio_but_one, part_gen_params),
	KUNIT_CASE(folio_of_folio_of_the_parent),
	KUNIT_CASE(folio_page_copied_alone),
	KUNIT_CASE(folio_partly_unmapped),
	KUNIT_CASE(folio_is_split),
	{}
};

static struct kunit_suite cow_folio_suite = {
	.name = "cow_folio",
	.init = cow_folio_test_init,
	.exit = cow_precopy_test_exit,
	.suite_exit = cow_precopy_suite_exit,
	.test_cases = cow_folio_cases,
};

kunit_test_suites(&cow_precopy_suite, &cow_adaptive_suite, &cow_folio_suite);

MODULE_DESCRIPTION("Tests for what copy-on-write faults copy ahead");
MODULE_LICENSE("GPL");
