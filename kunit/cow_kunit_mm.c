// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of copy-on-write faults: set up, read and change address spaces.
 */
#include <linux/delay.h>
#include <linux/highmem.h>
#include <linux/mm_inline.h>
#include <linux/mman.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/swap.h>

#include <asm/tlbflush.h>

#include "../internal.h"
#include "../vma.h"
#include "cow_kunit.h"

unsigned long cowt_page_addr(struct kunit *test, unsigned int i)
{
	struct fixture *f = test->priv;

	return f->region + i * PAGE_SIZE;
}

static void free_page_action(void *page)
{
	__free_page(page);
}

/* A page that is in no address space, until the test ends */
struct page *cowt_page(struct kunit *test)
{
	struct page *page = alloc_page(GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, page);
	KUNIT_ASSERT_EQ(test,
			kunit_add_action_or_reset(test, free_page_action, page), 0);
	return page;
}

/*
 * Looking at address spaces
 */

/* Tests do not compare the contpte bit. */
static pte_t pte_alone(pte_t pte)
{
#ifdef CONFIG_ARM64
	return pte_mknoncont(pte);
#else
	return pte;
#endif
}

/* May allocate a page table, which does no harm. */
pte_t cowt_read_pte(struct kunit *test, struct mm_struct *mm, unsigned long addr)
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

struct page *cowt_read_page(struct kunit *test, struct mm_struct *mm, unsigned int i)
{
	pte_t pte = cowt_read_pte(test, mm, cowt_page_addr(test, i));

	return pte_present(pte) ? pte_page(pte) : NULL;
}

struct page_state cowt_read_state(struct kunit *test, struct mm_struct *mm,
				  unsigned int i)
{
	struct page_state state = {
		.pte = cowt_read_pte(test, mm, cowt_page_addr(test, i)),
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

s64 cowt_read_anon(struct mm_struct *mm)
{
	return percpu_counter_sum(&mm->rss_stat[MM_ANONPAGES]);
}

/* Each page of the region is filled with a byte of its own. */
u8 cowt_page_byte(unsigned int i)
{
	return 0x40 + i;
}

void cowt_fill_page(struct page *page, u8 byte)
{
	void *addr = kmap_local_page(page);

	memset(addr, byte, PAGE_SIZE);
	flush_dcache_page(page);
	kunmap_local(addr);
}

bool cowt_page_has(struct page *page, u8 byte)
{
	void *addr = kmap_local_page(page);
	bool same = !memchr_inv(addr, byte, PAGE_SIZE);

	kunmap_local(addr);
	return same;
}

/*
 * Changing address spaces
 */

static vm_fault_t fault_locked(struct kunit *test, unsigned int i, unsigned int flags)
{
	unsigned long addr = cowt_page_addr(test, i);
	struct vm_area_struct *vma = vma_lookup(current->mm, addr);

	if (!vma) {
		KUNIT_FAIL(test, "no VMA for page %u", i);
		return 0;
	}
	return handle_mm_fault(vma, addr, flags, NULL);
}

/* The caller holds mmap_lock for reading. */
void cowt_fault_locked(struct kunit *test, unsigned int i, unsigned int flags)
{
	vm_fault_t ret = fault_locked(test, i, flags);

	KUNIT_EXPECT_FALSE_MSG(test, ret & (VM_FAULT_ERROR | VM_FAULT_RETRY |
					    VM_FAULT_COMPLETED),
			       "fault at page %u returned %#x", i, (unsigned int)ret);
}

void cowt_fault(struct kunit *test, unsigned int i, unsigned int flags)
{
	mmap_read_lock(current->mm);
	cowt_fault_locked(test, i, flags);
	mmap_read_unlock(current->mm);
}

/* A fault that is to fail. */
vm_fault_t cowt_fault_result(struct kunit *test, unsigned int i, unsigned int flags)
{
	vm_fault_t ret;

	mmap_read_lock(current->mm);
	ret = fault_locked(test, i, flags);
	mmap_read_unlock(current->mm);
	return ret;
}

void cowt_write_fault(struct kunit *test, unsigned int i)
{
	cowt_fault(test, i, WRITE_FLAGS);
}

/*
 * Write to one page without copying others ahead, like another thread in the
 * tests of races.
 */
void cowt_write_alone(struct kunit *test, unsigned int i)
{
	cowt_fault(test, i, WRITE_FLAGS | FAULT_FLAG_REMOTE);
}

void cowt_populate(struct kunit *test, u64 pages)
{
	struct page *page;
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (!has_page(pages, i))
			continue;
		cowt_write_alone(test, i);
		page = cowt_read_page(test, current->mm, i);
		KUNIT_ASSERT_NOT_NULL(test, page);
		cowt_fill_page(page, cowt_page_byte(i));
	}
}

/* Unmap a page like munmap(), but with mmap_lock held for reading. */
pte_t cowt_take_page(struct kunit *test, struct mm_struct *mm, unsigned int i)
{
	unsigned long addr = cowt_page_addr(test, i);
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

void cowt_unmap_page_of(struct kunit *test, struct mm_struct *mm, unsigned int i)
{
	put_page(pte_page(cowt_take_page(test, mm, i)));
}

void cowt_replace_pte(struct kunit *test, struct mm_struct *mm, unsigned int i,
		      pte_t pte)
{
	unsigned long addr = cowt_page_addr(test, i);
	spinlock_t *ptl = NULL;
	pte_t *ptep;

	ptep = get_locked_pte(mm, addr, &ptl);
	KUNIT_ASSERT_NOT_NULL(test, ptep);
	set_pte_at(mm, addr, ptep, pte);
	pte_unmap_unlock(ptep, ptl);
}

/*
 * There is no swap device: the entry must be removed before anything looks it
 * up. The page's reference is kept, as the swap cache does.
 */
void cowt_swap_out(struct kunit *test, unsigned int i)
{
	cowt_take_page(test, current->mm, i);
	inc_mm_counter(current->mm, MM_SWAPENTS);
	cowt_replace_pte(test, current->mm, i, cowt_swap_pte(NULL));
}

void cowt_drop_swap_entry(struct kunit *test, unsigned int i, struct page *page)
{
	cowt_replace_pte(test, current->mm, i, __pte(0));
	dec_mm_counter(current->mm, MM_SWAPENTS);
	put_page(page);
}

/* Change a PTE of the parent. */
void cowt_change_pte(struct kunit *test, unsigned int i, pte_t (*change)(pte_t pte))
{
	unsigned long addr = cowt_page_addr(test, i);
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

pte_t cowt_pte_make_protnone(pte_t pte)
{
	return pte_modify(pte, PAGE_NONE);
}

/* Like mprotect(PROT_READ), but with mmap_lock held for reading. */
void cowt_write_protect(struct kunit *test, unsigned int i)
{
	unsigned long addr = cowt_page_addr(test, i);
	spinlock_t *ptl = NULL;
	pte_t *ptep;

	ptep = get_locked_pte(current->mm, addr, &ptl);
	KUNIT_ASSERT_NOT_NULL(test, ptep);
	ptep_set_wrprotect(current->mm, addr, ptep);
	flush_tlb_page(vma_lookup(current->mm, addr), addr);
	pte_unmap_unlock(ptep, ptl);
}

void cowt_change_vma_flags(struct kunit *test, vm_flags_t set, vm_flags_t clear)
{
	struct vm_area_struct *vma;

	mmap_write_lock(current->mm);
	vma = vma_lookup(current->mm, cowt_page_addr(test, 0));
	if (vma)
		vm_flags_mod(vma, set, clear);
	mmap_write_unlock(current->mm);
	KUNIT_ASSERT_NOT_NULL(test, vma);
}

/* The caller holds both mmap_locks for writing. */
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
	/* insert_vm_struct() warns about a VMA that has an anon_vma. */
	anon_vma = new->anon_vma;
	new->anon_vma = NULL;
	ret = insert_vm_struct(mm, new);
	new->anon_vma = anon_vma;
	if (ret)
		goto unlink;
	/* The VMA is in the tree: from here on, mmput() frees it. */
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
void cowt_share(struct kunit *test)
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
	/* The mm outlives its owner, this thread: cleanup runs in another one. */
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

static bool hw_sets_it(void)
{
	return true;
}

static bool faults_set_it(void)
{
	return false;
}

/* Pretend that hardware sets accessed bits, or that it does not. */
void cowt_set_hw_young(struct kunit *test, bool hw_young)
{
	if (hw_young)
		kunit_activate_static_stub(test, cow_precopy_hw_young, hw_sets_it);
	else
		kunit_activate_static_stub(test, cow_precopy_hw_young, faults_set_it);
}

/* Pretend that hardware sets accessed and dirty bits, or neither. */
void cowt_set_hw_dirty(struct kunit *test, bool hw_dirty)
{
	cowt_set_hw_young(test, hw_dirty);
	if (hw_dirty)
		kunit_activate_static_stub(test, cow_precopy_hw_dirty, hw_sets_it);
	else
		kunit_activate_static_stub(test, cow_precopy_hw_dirty, faults_set_it);
}

/*
 * Fixture
 */

void cowt_set_window(unsigned int pages)
{
	WRITE_ONCE(sysctl_cow_precopy_pages, pages);
}

/* The region starts at page @first of the first VMA. */
void cowt_look_at(struct kunit *test, unsigned long first)
{
	struct fixture *f = test->priv;

	f->region = f->base + first * PAGE_SIZE;
}

/* Populate the pages @pages of the region, share them, and record the state. */
void cowt_share_pages(struct kunit *test, u64 pages)
{
	cowt_populate(test, pages);
	cowt_share(test);
	cowt_note(test);
}

void cowt_map_fixed(struct kunit *test, unsigned long addr, unsigned long len,
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
 * The address space of the previous test is freed when that test's thread exits.
 * The next test must wait for that, because it looks at global counters.
 */
static struct mm_struct *last_mm;

static void wait_for_last_mm(void)
{
	if (!last_mm)
		return;
	/* exit_mmap() empties the tree of VMAs when all pages are unmapped. */
	while (!mtree_empty(&last_mm->mm_mt))
		fsleep(1000);
	mmdrop(last_mm);
	last_mm = NULL;
}

void cowt_suite_exit(struct kunit_suite *suite)
{
	wait_for_last_mm();
}

/*
 * The first VMA starts where a page table starts and ends within the next one.
 * The second VMA follows immediately; a different flag prevents a merge.
 */
int cowt_init(struct kunit *test)
{
	struct fixture *f = kunit_kzalloc(test, sizeof(*f), GFP_KERNEL);
	unsigned long addr;

	KUNIT_ASSERT_NOT_NULL(test, f);
	wait_for_last_mm();
	f->was_on = static_key_enabled(&cow_precopy_key);
	f->old_window = sysctl_cow_precopy_pages;
	f->old_max = sysctl_cow_precopy_max;
	test->priv = f;

	addr = kunit_vm_mmap(test, NULL, 0, 4 * PMD_SIZE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, 0);
	KUNIT_ASSERT_NE(test, addr, 0);
	KUNIT_ASSERT_LT(test, addr, TASK_SIZE);
	f->base = ALIGN(addr, PMD_SIZE);
	KUNIT_ASSERT_EQ(test, vm_munmap(addr, 4 * PMD_SIZE), 0);
	f->end = f->base + PMD_SIZE + 2 * FIRST * PAGE_SIZE;
	cowt_map_fixed(test, f->base, f->end - f->base, 0);
	cowt_map_fixed(test, f->end, FIRST * PAGE_SIZE, MAP_NORESERVE);

	f->parent.mm = current->mm;
	mmgrab(current->mm);
	last_mm = current->mm;
	cowt_look_at(test, FIRST);
	cowt_set_window(WINDOW);
	static_branch_enable(&cow_precopy_key);
	return 0;
}

/* Runs in another thread, which has no access to the parent's address space. */
void cowt_exit(struct kunit *test)
{
	struct fixture *f = test->priv;

	if (!f)
		return;
	if (!f->was_on)
		static_branch_disable(&cow_precopy_key);
	cowt_set_window(f->old_window);
	WRITE_ONCE(sysctl_cow_precopy_max, f->old_max);
}

/* The child unmaps the pages @pages. */
void cowt_take_from_child(struct kunit *test, u64 pages)
{
	struct fixture *f = test->priv;
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (!has_page(pages, i))
			continue;
		cowt_unmap_page_of(test, f->child.mm, i);
		/* The fault under test must be what makes it dirty. */
		cowt_change_pte(test, i, pte_never_written);
	}
}

/* The parent copies each of the pages @pages in a fault of its own. */
void cowt_demand(struct kunit *test, u64 pages)
{
	unsigned int i;

	for (i = 0; i < NR_PAGES; i++) {
		if (!has_page(pages, i))
			continue;
		cowt_write_alone(test, i);
		cowt_fill_page(cowt_read_page(test, current->mm, i), cowt_page_byte(i));
	}
}

/* The region is a private mapping of a file. */
void cowt_map_file(struct kunit *test)
{
	struct fixture *f = test->priv;
	unsigned long addr, len = NR_PAGES * PAGE_SIZE;
	struct vm_area_struct *vma;
	struct file *file = NULL;

	/* Shared anonymous memory is backed by a shmem file. */
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
	cowt_look_at(test, 0);
	cowt_change_vma_flags(test, VM_NOHUGEPAGE, 0);
}

void cowt_set_adaptive(struct kunit *test, unsigned int max, bool hw_dirty)
{
	cowt_set_window(0);
	WRITE_ONCE(sysctl_cow_precopy_max, max);
	cowt_set_hw_dirty(test, hw_dirty);
}

/* Make @pages look as if they were copied ahead, and written to since if @used. */
void cowt_copied_ahead(struct kunit *test, u64 pages, bool used)
{
	unsigned int i;

	cowt_demand(test, pages);
	for (i = 0; i < NR_PAGES; i++)
		if (has_page(pages, i))
			cowt_change_pte(test, i, used ? cowt_pte_hw_written : pte_never_written);
}

/*
 * Rule 4 needs demand faults, which not every configuration can tell by the PTE, and goes
 * by the pages that the VMA has in the page table: leave it only the region.
 * Call this before any page is touched.
 */
void cowt_need_demand(struct kunit *test)
{
	unsigned long start = cowt_page_addr(test, 0), end = cowt_page_addr(test, NR_PAGES);
	struct fixture *f = test->priv;

	if (!HAS_DEMAND)
		kunit_skip(test, "nothing tells faults from hardware in this configuration");
	cowt_map_fixed(test, f->base, start - f->base, MAP_NORESERVE);
	cowt_map_fixed(test, end, f->end - end, MAP_NORESERVE);
}
