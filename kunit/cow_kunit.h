/* SPDX-License-Identifier: GPL-2.0 */
/*
 * KUnit tests of copy-on-write faults: what the suites with real faults share.
 *
 * A test runs in an address space of its own (the parent), whose pages are
 * shared with a second one (the child) as fork() does it. It looks at a region
 * of a few pages: cowt_note() records what both have mapped there, with all
 * counts, and the expectations compare that with what they find later.
 *
 * - cow_kunit_mm.c: address spaces, faults, changes of PTEs and VMAs
 * - cow_kunit_expect.c: what is recorded and expected
 * - cow_kunit_cases.c: neighbours that differ, refusing VMAs, races, stubs
 * - cow_kunit_pte.h: PTEs of each kind
 */
#ifndef __MM_COW_KUNIT_H
#define __MM_COW_KUNIT_H

#include <kunit/static_stub.h>
#include <kunit/test.h>
#include <linux/bits.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/vmstat.h>

#include "../cow.h"
#include "../cow_policy.h"
#include "../cow_precopy.h"
#include "cow_kunit_pte.h"

/*
 * Pages of the region: the fault, the largest window, and more on both sides;
 * for most tests it is also the block that a window may be chosen from.
 */
#define NR_PAGES	COW_BLOCK
/* The page that most tests write, and the neighbour that differs in some of them */
#define FAULT		32
#define ODD		(FAULT + 2)
/* Most tests use the region that starts at this page of the VMA */
#define FIRST		64

#define ALL_PAGES	GENMASK_ULL(NR_PAGES - 1, 0)
/* The window of tests that do not depend on its size */
#define WINDOW		15
/* The pages that a fault at FAULT replaces if it copies @n pages ahead */
#define COPIED(n)	GENMASK_ULL(FAULT + (n), FAULT)

/* The pages @first to @last */
#define PAGES(first, last)	GENMASK_ULL(last, first)

#define WRITE_FLAGS	(FAULT_FLAG_WRITE | FAULT_FLAG_USER)

/* A set of pages is a u64 with one bit per page of the region. */
static inline bool has_page(u64 pages, unsigned int i)
{
	return pages & BIT_ULL(i);
}

/**
 * struct page_state - what one address space maps at one page of the region
 * @pte: the PTE
 * @page: the page; NULL if nothing or the zero page is mapped
 * @mapcount: mapcount of the page's folio
 * @refs: reference count of the page's folio
 */
struct page_state {
	pte_t pte;
	struct page *page;
	int mapcount;
	int refs;
};

/**
 * struct space - an address space
 * @mm: its mm_struct
 * @pages: the state of the region
 * @anon: its MM_ANONPAGES
 */
struct space {
	struct mm_struct *mm;
	struct page_state pages[NR_PAGES];
	s64 anon;
};

/*
 * The global counters of mm/cow_precopy.c, and those of the address space that
 * the test runs in (@mine).
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
 * struct thp_settings - the settings in /sys/kernel/mm/transparent_hugepage
 * @flags: the global setting, TRANSPARENT_HUGEPAGE_FLAG and others
 * @always: orders that are set to "always"
 * @madvise: orders that are set to "madvise"
 * @inherit: orders that inherit the global setting
 */
struct thp_settings {
	unsigned long flags;
	unsigned long always;
	unsigned long madvise;
	unsigned long inherit;
};

/**
 * struct fixture - the state of one test
 * @parent: the address space that the test runs in
 * @child: the address space that shares its pages
 * @base: start of the VMA that all tests use; a page table starts there, too
 * @end: end of that VMA; another VMA follows
 * @region: address of the first page of the region
 * @before: counters before the fault
 * @was_on: vm.cow_precopy before the test
 * @old_window: vm.cow_precopy_pages before the test
 * @old_max: vm.cow_precopy_max before the test
 * @clean: pages of the parent that are expected to have a clean PTE
 * @large: pages of the parent that are expected to be in one large folio
 * @split: pages of the parent that were in a large folio, which was split
 * @old: the large folio that the pages were in before the fault
 * @old_lost: number of pages of @old that the fault replaces
 * @odd: the page at ODD, before it was replaced
 * @race: changes the region while the fault does not hold the page table lock
 * @raced: @race was called
 * @copies: pages allocated to copy ahead; the test holds a reference on each
 * @nr_copies: number of @copies
 * @nr_charges: number of attempts to charge copies
 * @nr_reads: number of attempts to read a page
 * @unreadable: the page that cannot be read
 * @nr_bulk: number of pages that the stub for bulk allocation returns
 * @folio: large folio that the fault allocated; the test holds a reference
 * @nr_folios: number of attempts to allocate a large folio
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
	struct folio *copies[COW_BATCH_PAGES];
	unsigned int nr_copies;
	unsigned int nr_charges;
	unsigned int nr_reads;
	unsigned int unreadable;
	unsigned int nr_bulk;
	struct folio *folio;
	unsigned int nr_folios;
	struct thp_settings thp;
};

/**
 * struct odd_case - a neighbour that differs from the others
 * @desc: description
 * @hole: the page is not populated before the others are shared
 * @early: called before the pages are shared
 * @late: called after the pages are shared
 * @undo: called at the end of the test
 * @needs: this configuration can have such a page
 * @shared: the page stays shared in the tests of reuse
 * @dirty: the page's PTE stays dirty when it is made writable
 * @copy: why the page is not copied, if its neighbours are shared
 * @reuse: why the page is not made writable, if its neighbours are not shared
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

struct flags_case {
	const char *desc;
	unsigned int flags;
	bool write;
};

struct refused_case {
	const char *desc;
	vm_flags_t set;
	vm_flags_t clear;
	bool needs;
	enum cow_skip why;
};

struct race_case {
	const char *desc;
	void (*race)(struct kunit *test);
	void (*undo)(struct kunit *test);
	bool needs;
};

struct policy_case {
	const char *desc;
	bool of_vma;
};

#define NR_ODD_CASES		21
#define NR_FLAGS_CASES		2
#define NR_REFUSED_CASES	4
#define NR_RACE_CASES		5
#define NR_POLICY_CASES		2

/* cow_kunit_mm.c */
unsigned long cowt_page_addr(struct kunit *test, unsigned int i);
pte_t cowt_read_pte(struct kunit *test, struct mm_struct *mm, unsigned long addr);
struct page *cowt_read_page(struct kunit *test, struct mm_struct *mm, unsigned int i);
struct page_state cowt_read_state(struct kunit *test, struct mm_struct *mm,
				  unsigned int i);
s64 cowt_read_anon(struct mm_struct *mm);
u8 cowt_page_byte(unsigned int i);
void cowt_fill_page(struct page *page, u8 byte);
bool cowt_page_has(struct page *page, u8 byte);
void cowt_fault_locked(struct kunit *test, unsigned int i, unsigned int flags);
vm_fault_t cowt_fault_result(struct kunit *test, unsigned int i, unsigned int flags);
void cowt_fault(struct kunit *test, unsigned int i, unsigned int flags);
void cowt_write_fault(struct kunit *test, unsigned int i);
void cowt_write_alone(struct kunit *test, unsigned int i);
void cowt_populate(struct kunit *test, u64 pages);
pte_t cowt_take_page(struct kunit *test, struct mm_struct *mm, unsigned int i);
void cowt_unmap_page_of(struct kunit *test, struct mm_struct *mm, unsigned int i);
void cowt_replace_pte(struct kunit *test, struct mm_struct *mm, unsigned int i,
		      pte_t pte);
void cowt_swap_out(struct kunit *test, unsigned int i);
void cowt_drop_swap_entry(struct kunit *test, unsigned int i, struct page *page);
void cowt_change_pte(struct kunit *test, unsigned int i, pte_t (*change)(pte_t pte));
pte_t cowt_pte_make_protnone(pte_t pte);
void cowt_write_protect(struct kunit *test, unsigned int i);
void cowt_change_vma_flags(struct kunit *test, vm_flags_t set, vm_flags_t clear);
void cowt_share(struct kunit *test);
void cowt_set_hw_young(struct kunit *test, bool hw_young);
void cowt_set_hw_dirty(struct kunit *test, bool hw_dirty);
void cowt_set_window(unsigned int pages);
void cowt_look_at(struct kunit *test, unsigned long first);
void cowt_share_pages(struct kunit *test, u64 pages);
void cowt_map_fixed(struct kunit *test, unsigned long addr, unsigned long len,
		    unsigned long flags);
void cowt_suite_exit(struct kunit_suite *suite);
int cowt_init(struct kunit *test);
void cowt_exit(struct kunit *test);
void cowt_take_from_child(struct kunit *test, u64 pages);
void cowt_demand(struct kunit *test, u64 pages);
void cowt_map_file(struct kunit *test);
void cowt_set_adaptive(struct kunit *test, unsigned int max, bool hw_dirty);
void cowt_copied_ahead(struct kunit *test, u64 pages, bool used);
void cowt_need_demand(struct kunit *test);

/* cow_kunit_expect.c */
char *cowt_read_file(struct kunit *test, int (*show)(struct seq_file *m, void *v));
unsigned long cowt_read_event(enum vm_event_item item);
void cowt_note(struct kunit *test);
void cowt_expect_content(struct kunit *test, struct space *space, unsigned int i);
void cowt_expect_less(struct kunit *test, struct space *space, unsigned int i,
		      int maps, int refs);
void cowt_expect_unchanged(struct kunit *test, unsigned int i);
void cowt_expect_copied(struct kunit *test, unsigned int i);
void cowt_expect_region_reused(struct kunit *test, u64 copied, u64 reused);
void cowt_expect_region(struct kunit *test, u64 copied);
void cowt_expect_counts(struct kunit *test, unsigned int success,
			enum cow_skip why, unsigned int skipped);
void cowt_expect_copies(struct kunit *test, unsigned int made, unsigned int mapped);
void cowt_watch_fault(struct kunit *test, unsigned int at, unsigned long first,
		      unsigned long last, u64 copied);
void cowt_expect_clean(struct kunit *test, u64 pages, bool hw_dirty);
void cowt_expect_anon_mapped(struct kunit *test, unsigned int more);
void cowt_expect_reuses(struct kunit *test, unsigned int ahead, bool self);

/* cow_kunit_cases.c */
extern const struct odd_case cowt_odd_cases[NR_ODD_CASES];
extern const struct flags_case cowt_flags_cases[NR_FLAGS_CASES];
extern const struct refused_case cowt_refused_cases[NR_REFUSED_CASES];
extern const struct race_case cowt_race_cases[NR_RACE_CASES];
extern const struct policy_case cowt_policy_cases[NR_POLICY_CASES];
/* A page that cannot be read, and how many pages a fault reads with it */
struct unreadable_case {
	const char *desc;
	unsigned int page;
	unsigned int reads;
};

void cowt_expect_gfp(struct kunit *test, gfp_t gfp);
struct folio *cowt_alloc_stub(gfp_t gfp, struct vm_area_struct *vma,
			      unsigned long addr);
unsigned int cowt_no_bulk_stub(gfp_t gfp, struct vm_area_struct *vma,
			       unsigned int nr, struct page **pages);
void cowt_fault_unreadable(struct kunit *test, unsigned int at,
			   const struct unreadable_case *c);
int cowt_no_charge_stub(struct page **pages, unsigned int nr, struct mm_struct *mm,
			gfp_t gfp);
struct page *cowt_odd_page(struct kunit *test);
struct folio *cowt_odd_folio(struct kunit *test);
void cowt_odd_zap(struct kunit *test);
void cowt_odd_write(struct kunit *test);
void cowt_odd_write_and_protect(struct kunit *test);
void cowt_odd_protnone(struct kunit *test);
void cowt_odd_poison(struct kunit *test);
void cowt_odd_unpoison(struct kunit *test);
void cowt_share_odd(struct kunit *test, u64 demanded, u64 alone);
void cowt_undo_odd(struct kunit *test);
void cowt_note_race(struct kunit *test, unsigned int i, int refs);
void cowt_write_locked(struct kunit *test, unsigned int i);
void cowt_race_write(struct kunit *test);
void cowt_start_race(struct kunit *test, void (*race)(struct kunit *test));
void cowt_race_write_fault_page(struct kunit *test);
void cowt_race_unmap_in_child(struct kunit *test);
void cowt_test_race_with_child(struct kunit *test, u64 copied,
			       unsigned int made);
void cowt_set_policy(struct kunit *test, bool on);

#endif /* __MM_COW_KUNIT_H */
