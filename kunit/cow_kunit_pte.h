/* SPDX-License-Identifier: GPL-2.0 */
/*
 * KUnit tests of copy-on-write faults: PTEs of each kind, and what they map.
 */
#ifndef __MM_COW_KUNIT_PTE_H
#define __MM_COW_KUNIT_PTE_H

#include <linux/mm.h>
#include <linux/swap.h>
#include <linux/swapops.h>

struct kunit;

/* Can the kernel tell a page that took a write fault from one whose PTE hardware made dirty? */
#define HAS_DEMAND	(IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) || IS_ENABLED(CONFIG_ARM64))

/* The flags of private anonymous memory after mmap() */
#define PRIVATE_ANON	(VM_READ | VM_WRITE | VM_MAYREAD | VM_MAYWRITE | \
			 VM_MAYEXEC | VM_ACCOUNT | VM_SOFTDIRTY)

struct page *cowt_page(struct kunit *test);

static inline pte_t cowt_readonly_pte(struct page *page)
{
	return pte_wrprotect(mk_pte(page, PAGE_READONLY));
}

static inline pte_t cowt_protnone_pte(struct page *page)
{
	return pte_modify(cowt_readonly_pte(page), PAGE_NONE);
}

static inline pte_t cowt_swap_pte(struct page *page)
{
	return swp_entry_to_pte(swp_entry(0, 1));
}

/* As hardware leaves a PTE: a fault would set the soft-dirty bit, or arm64's PTE_DIRTY. */
static inline pte_t cowt_pte_hw_written(pte_t pte)
{
	pte = pte_mkdirty(pte);
#ifdef CONFIG_ARM64
	/* In a read-only PTE, nothing else says that the page is dirty. */
	if (pte_write(pte))
		pte = clear_pte_bit(pte, __pgprot(PTE_DIRTY));
#endif
	return pte_clear_soft_dirty(pte);
}

#endif /* __MM_COW_KUNIT_PTE_H */
