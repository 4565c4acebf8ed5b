/* SPDX-License-Identifier: GPL-2.0 */
/*
 * KUnit tests of copy-on-write faults: what PTEs say of a write.
 */
#ifndef __MM_COW_KUNIT_PTE_H
#define __MM_COW_KUNIT_PTE_H

#include <linux/mm.h>

/* Can a write that took a fault be told from one that hardware noted? */
#define HAS_DEMAND	(IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) || IS_ENABLED(CONFIG_ARM64))

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
