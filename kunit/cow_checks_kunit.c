// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests with constructed input: the checks that a page must pass before a
 * copy-on-write fault copies it ahead. Tests with real faults are in
 * cow_precopy_kunit.c and cow_adaptive_kunit.c.
 */
#include <kunit/test.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/swap.h>
#include <linux/swapops.h>

#include "../cow.h"
#include "../cow_precopy.h"
#include "../internal.h"
#include "cow_kunit_pte.h"

#define PAGES_PER_PMD	(PMD_SIZE >> PAGE_SHIFT)
/* Number of a page where a page table starts; nothing is mapped there. */
#define FIRST		(16 * PAGES_PER_PMD)
/* The number of the last page of the address space. */
#define LAST		(ULONG_MAX >> PAGE_SHIFT)

static const char *cow_skip_name(enum cow_skip why)
{
	static const char * const names[NR_COW_SKIPS] = {
		[COW_SKIP_NONE]		= "none",
		[COW_SKIP_VMA]		= "vma",
		[COW_SKIP_PMD]		= "pmd",
		[COW_SKIP_NOTPRESENT]	= "notpresent",
		[COW_SKIP_WRITABLE]	= "writable",
		[COW_SKIP_NOTANON]	= "notanon",
		[COW_SKIP_EXCLUSIVE]	= "exclusive",
		[COW_SKIP_RACE]		= "race",
		[COW_SKIP_NOMEM]	= "nomem",
		[COW_SKIP_SPECIAL]	= "special",
		[COW_SKIP_MADVISE]	= "madvise",
		[COW_SKIP_UFFD]		= "uffd",
		[COW_SKIP_SOFTDIRTY]	= "softdirty",
		[COW_SKIP_KSM]		= "ksm",
		[COW_SKIP_PINNED]	= "pinned",
	};

	return names[why];
}

/* Compare names, so that a failure can be read. */
static void expect_skip(struct kunit *test, enum cow_skip is, enum cow_skip want)
{
	KUNIT_EXPECT_STREQ(test, cow_skip_name(is), cow_skip_name(want));
}

/*
 * cow_precopy_in_vma()
 */

struct in_vma_case {
	const char *desc;
	unsigned long start;
	unsigned long end;
	unsigned long addr;
	bool want;
};

static const struct in_vma_case in_vma_cases[] = {
	{
		.desc = "first page",
		.start = FIRST << PAGE_SHIFT,
		.end = (FIRST + 4) << PAGE_SHIFT,
		.addr = FIRST << PAGE_SHIFT,
		.want = true,
	}, {
		.desc = "last page",
		.start = FIRST << PAGE_SHIFT,
		.end = (FIRST + 4) << PAGE_SHIFT,
		.addr = (FIRST + 3) << PAGE_SHIFT,
		.want = true,
	}, {
		.desc = "one past the end",
		.start = FIRST << PAGE_SHIFT,
		.end = (FIRST + 4) << PAGE_SHIFT,
		.addr = (FIRST + 4) << PAGE_SHIFT,
		.want = false,
	}, {
		.desc = "one before the start",
		.start = FIRST << PAGE_SHIFT,
		.end = (FIRST + 4) << PAGE_SHIFT,
		.addr = (FIRST - 1) << PAGE_SHIFT,
		.want = false,
	}, {
		.desc = "only page",
		.start = FIRST << PAGE_SHIFT,
		.end = (FIRST + 1) << PAGE_SHIFT,
		.addr = FIRST << PAGE_SHIFT,
		.want = true,
	}, {
		.desc = "one past the only page",
		.start = FIRST << PAGE_SHIFT,
		.end = (FIRST + 1) << PAGE_SHIFT,
		.addr = (FIRST + 1) << PAGE_SHIFT,
		.want = false,
	}, {
		.desc = "last page but one of the address space",
		.start = (LAST - 4) << PAGE_SHIFT,
		.end = LAST << PAGE_SHIFT,
		.addr = (LAST - 1) << PAGE_SHIFT,
		.want = true,
	}, {
		.desc = "last page of the address space, past the end",
		.start = (LAST - 4) << PAGE_SHIFT,
		.end = LAST << PAGE_SHIFT,
		.addr = LAST << PAGE_SHIFT,
		.want = false,
	}, {
		.desc = "wrapped to 0 over the top of the address space",
		.start = (LAST - 4) << PAGE_SHIFT,
		.end = ULONG_MAX,
		.addr = 0,
		.want = false,
	},
};

KUNIT_ARRAY_PARAM_DESC(in_vma, in_vma_cases, desc);

static void in_vma(struct kunit *test)
{
	const struct in_vma_case *c = test->param_value;
	struct vm_area_struct *vma = kunit_kzalloc(test, sizeof(*vma), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, vma);
	vma->vm_start = c->start;
	vma->vm_end = c->end;
	KUNIT_EXPECT_EQ(test, cow_precopy_in_vma(vma, c->addr), c->want);
}

/*
 * cow_precopy_same_pmd()
 */

struct same_pmd_case {
	const char *desc;
	unsigned long fault;
	unsigned long page;
	bool want;
};

/* In page numbers. */
static const struct same_pmd_case same_pmd_cases[] = {
	{ "the faulting page", FIRST, FIRST, true },
	{ "next page", FIRST, FIRST + 1, true },
	{ "last PTE from the first", FIRST, FIRST + PAGES_PER_PMD - 1, true },
	{ "last PTE from the one before",
	  FIRST + PAGES_PER_PMD - 2, FIRST + PAGES_PER_PMD - 1, true },
	{ "first PTE of the next table from the last",
	  FIRST + PAGES_PER_PMD - 1, FIRST + PAGES_PER_PMD, false },
	{ "first PTE of the next table from the first",
	  FIRST, FIRST + PAGES_PER_PMD, false },
	{ "last PTE of the table before", FIRST, FIRST - 1, false },
	{ "last page of the address space", LAST - 1, LAST, true },
	{ "wrapped to 0 over the top of the address space", LAST, 0, false },
};

KUNIT_ARRAY_PARAM_DESC(same_pmd, same_pmd_cases, desc);

static void same_pmd(struct kunit *test)
{
	const struct same_pmd_case *c = test->param_value;

	KUNIT_EXPECT_EQ(test,
			cow_precopy_same_pmd(c->fault << PAGE_SHIFT,
					     c->page << PAGE_SHIFT),
			c->want);
}

/*
 * cow_precopy_window()
 */

struct window_case {
	const char *desc;
	unsigned long start;
	unsigned long end;
	unsigned long fault;
	unsigned int asked;
	unsigned int want;
	enum cow_skip cut;
};

/* In page numbers; one page table maps FIRST to FIRST + PAGES_PER_PMD - 1. */
static const struct window_case window_cases[] = {
	{ "zero-size window", FIRST, FIRST + 8, FIRST, 0, 0, COW_SKIP_NONE },
	{ "zero-size window on the last page",
	  FIRST, FIRST + 8, FIRST + 7, 0, 0, COW_SKIP_NONE },
	{ "one page", FIRST, FIRST + 8, FIRST, 1, 1, COW_SKIP_NONE },
	{ "one page, from the last page",
	  FIRST, FIRST + 8, FIRST + 7, 1, 0, COW_SKIP_VMA },
	{ "one page, onto the last page",
	  FIRST, FIRST + 8, FIRST + 6, 1, 1, COW_SKIP_NONE },
	{ "ends with the VMA", FIRST, FIRST + 8, FIRST + 2, 5, 5, COW_SKIP_NONE },
	{ "ends one past the VMA",
	  FIRST, FIRST + 8, FIRST + 2, 6, 5, COW_SKIP_VMA },
	{ "VMA of one page", FIRST, FIRST + 1, FIRST, 15, 0, COW_SKIP_VMA },
	{ "ends with the page table", FIRST, FIRST + 2 * PAGES_PER_PMD,
	  FIRST + PAGES_PER_PMD - 4, 3, 3, COW_SKIP_NONE },
	{ "ends one past the page table", FIRST, FIRST + 2 * PAGES_PER_PMD,
	  FIRST + PAGES_PER_PMD - 4, 4, 3, COW_SKIP_PMD },
	{ "from the last PTE of a page table", FIRST, FIRST + 2 * PAGES_PER_PMD,
	  FIRST + PAGES_PER_PMD - 1, 1, 0, COW_SKIP_PMD },
	{ "from the first PTE of a page table", FIRST, FIRST + 2 * PAGES_PER_PMD,
	  FIRST + PAGES_PER_PMD, 15, 15, COW_SKIP_NONE },
	{ "VMA and page table end together: the VMA counts",
	  FIRST, FIRST + PAGES_PER_PMD,
	  FIRST + PAGES_PER_PMD - 4, 4, 3, COW_SKIP_VMA },
	{ "crosses the page table first, then the VMA",
	  FIRST, FIRST + PAGES_PER_PMD + 2,
	  FIRST + PAGES_PER_PMD - 4, 15, 3, COW_SKIP_PMD },
	{ "crosses the VMA before the page table",
	  FIRST, FIRST + PAGES_PER_PMD - 2,
	  FIRST + PAGES_PER_PMD - 6, 15, 3, COW_SKIP_VMA },
	{ "largest window", FIRST, FIRST + 2 * PAGES_PER_PMD, FIRST,
	  COW_PRECOPY_MAX_PAGES, COW_PRECOPY_MAX_PAGES, COW_SKIP_NONE },
	{ "top of the address space",
	  LAST - 8, LAST, LAST - 4, 15, 3, COW_SKIP_VMA },
};

KUNIT_ARRAY_PARAM_DESC(window, window_cases, desc);

static void window(struct kunit *test)
{
	const struct window_case *c = test->param_value;
	struct vm_area_struct *vma = kunit_kzalloc(test, sizeof(*vma), GFP_KERNEL);
	enum cow_skip cut = NR_COW_SKIPS - 1;

	KUNIT_ASSERT_NOT_NULL(test, vma);
	vma->vm_start = c->start << PAGE_SHIFT;
	vma->vm_end = c->end << PAGE_SHIFT;
	KUNIT_EXPECT_EQ(test,
			cow_precopy_window(vma, c->fault << PAGE_SHIFT, c->asked,
					   &cut),
			c->want);
	expect_skip(test, cut, c->cut);
}

/* No VMA ends beyond the last page, but the address must not wrap to 0. */
static void window_wraps(struct kunit *test)
{
	struct vm_area_struct *vma = kunit_kzalloc(test, sizeof(*vma), GFP_KERNEL);
	enum cow_skip cut = COW_SKIP_NONE;

	KUNIT_ASSERT_NOT_NULL(test, vma);
	vma->vm_start = (LAST - 8) << PAGE_SHIFT;
	vma->vm_end = ULONG_MAX;
	KUNIT_EXPECT_EQ(test,
			cow_precopy_window(vma, (LAST - 1) << PAGE_SHIFT, 15, &cut),
			1);
	expect_skip(test, cut, COW_SKIP_VMA);
}

/*
 * cow_precopy_check_vma()
 */

struct vma_case {
	const char *desc;
	vm_flags_t set;
	vm_flags_t clear;
	bool no_anon_vma;
	bool needs;
	enum cow_skip want;
};

static const struct vma_case vma_cases[] = {
	{ .desc = "private anonymous memory", .needs = true },
	{ .desc = "MADV_SEQUENTIAL", .set = VM_SEQ_READ, .needs = true },
	{ .desc = "locked", .set = VM_LOCKED, .needs = true },
	{
		.desc = "MADV_RANDOM",
		.set = VM_RAND_READ,
		.needs = true,
		.want = COW_SKIP_MADVISE,
	}, {
		.desc = "userfaultfd, missing",
		.set = VM_UFFD_MISSING,
		.needs = IS_ENABLED(CONFIG_USERFAULTFD),
		.want = COW_SKIP_UFFD,
	}, {
		.desc = "userfaultfd, write-protect",
		.set = VM_UFFD_WP,
		.needs = IS_ENABLED(CONFIG_USERFAULTFD),
		.want = COW_SKIP_UFFD,
	}, {
		.desc = "userfaultfd, minor",
		.set = VM_UFFD_MINOR,
		.needs = IS_ENABLED(CONFIG_HAVE_ARCH_USERFAULTFD_MINOR) &&
			 IS_ENABLED(CONFIG_USERFAULTFD),
		.want = COW_SKIP_UFFD,
	}, {
/* Not in 6.12 */
#ifdef VM_UFFD_RWP
		.desc = "userfaultfd, read-write-protect",
		.set = VM_UFFD_RWP,
		.needs = IS_ENABLED(CONFIG_USERFAULTFD_RWP) &&
			 IS_ENABLED(CONFIG_USERFAULTFD),
		.want = COW_SKIP_UFFD,
	}, {
#endif
		.desc = "soft-dirty tracking",
		.clear = VM_SOFTDIRTY,
		.needs = IS_ENABLED(CONFIG_MEM_SOFT_DIRTY),
		.want = COW_SKIP_SOFTDIRTY,
	}, {
		.desc = "read-only",
		.clear = VM_WRITE,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "no anon_vma",
		.no_anon_vma = true,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "shared",
		.set = VM_SHARED | VM_MAYSHARE,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "shared, file opened read-only",
		.set = VM_MAYSHARE,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "PFN map",
		.set = VM_PFNMAP,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "mixed map",
		.set = VM_MIXEDMAP,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "I/O memory",
		.set = VM_IO,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "not to be expanded",
		.set = VM_DONTEXPAND,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "huge pages of hugetlbfs",
		.set = VM_HUGETLB,
		.needs = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "shadow stack",
		.set = VM_SHADOW_STACK,
		.needs = VM_SHADOW_STACK != VM_NONE,
		.want = COW_SKIP_SPECIAL,
	},
};

KUNIT_ARRAY_PARAM_DESC(check_vma, vma_cases, desc);

static void check_vma(struct kunit *test)
{
	const struct vma_case *c = test->param_value;
	struct vm_area_struct *vma = kunit_kzalloc(test, sizeof(*vma), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, vma);
	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	vm_flags_init(vma, (PRIVATE_ANON | c->set) & ~c->clear);
	/* The pointer is compared with NULL, but never dereferenced. */
	vma->anon_vma = c->no_anon_vma ? NULL : (struct anon_vma *)vma;
	expect_skip(test, cow_precopy_check_vma(vma), c->want);
}

/*
 * cow_precopy_check_pte() and cow_precopy_pte_same()
 */

static pte_t no_pte(struct page *page)
{
	return __pte(0);
}

static pte_t dirty_young_pte(struct page *page)
{
	return pte_mkdirty(pte_mkyoung(cowt_readonly_pte(page)));
}

static pte_t writable_pte(struct page *page)
{
	return pte_mkwrite_novma(pte_mkdirty(mk_pte(page, PAGE_READONLY)));
}

static pte_t migration_pte(struct page *page)
{
	return swp_entry_to_pte(make_readable_migration_entry(page_to_pfn(page)));
}

static pte_t marker_pte(struct page *page)
{
	return make_pte_marker(PTE_MARKER_POISONED);
}

struct pte_case {
	const char *desc;
	pte_t (*make)(struct page *page);
	bool needs;
	enum cow_skip want;
	/* The same PTE as cowt_readonly_pte() makes */
	bool same;
};

static const struct pte_case pte_cases[] = {
	{ "nothing mapped", no_pte, true, COW_SKIP_NOTPRESENT, false },
	{ "swap entry", cowt_swap_pte, true, COW_SKIP_NOTPRESENT, false },
	{ "migration entry", migration_pte, IS_ENABLED(CONFIG_MIGRATION),
	  COW_SKIP_NOTPRESENT, false },
	{ "poison marker", marker_pte, true, COW_SKIP_NOTPRESENT, false },
	{ "present, read-only", cowt_readonly_pte, true, COW_SKIP_NONE, true },
	{ "present, read-only, dirty and young", dirty_young_pte, true,
	  COW_SKIP_NONE, false },
	{ "present, writable", writable_pte, true, COW_SKIP_WRITABLE, false },
	{ "NUMA hinting", cowt_protnone_pte, IS_ENABLED(CONFIG_NUMA_BALANCING),
	  COW_SKIP_SPECIAL, false },
};

KUNIT_ARRAY_PARAM_DESC(check_pte, pte_cases, desc);

static void check_pte(struct kunit *test)
{
	const struct pte_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	expect_skip(test, cow_precopy_check_pte(c->make(cowt_page(test))), c->want);
}

static void pte_same_as_before(struct kunit *test)
{
	const struct pte_case *c = test->param_value;
	struct page *page = cowt_page(test);
	pte_t now;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	now = c->make(page);
	KUNIT_EXPECT_EQ(test, cow_precopy_pte_same(&now, cowt_readonly_pte(page)),
			c->same);
}

static void pte_same_other_page(struct kunit *test)
{
	struct page *page = cowt_page(test);
	pte_t now = cowt_readonly_pte(cowt_page(test));

	KUNIT_EXPECT_FALSE(test, cow_precopy_pte_same(&now, cowt_readonly_pte(page)));
}

/* cow_precopy_page_is_shared() and cow_precopy_check_page() */

/* The low bits of folio->mapping. */
#define MAPPING_FILE	0x1000
#define MAPPING_ANON	0x1001
#define MAPPING_KSM	0x1003

struct page_case {
	const char *desc;
	unsigned long mapping;
	unsigned int mapcount;
	unsigned int pins;
	bool exclusive;
	bool lazyfree;
	bool hwpoison;
	bool device;
	bool needs;
	bool anon;
	bool shared;
	enum cow_skip want;
};

static const struct page_case page_cases[] = {
	{
		.desc = "anonymous, in two processes",
		.mapping = MAPPING_ANON,
		.mapcount = 2,
		.needs = true,
		.anon = true,
		.shared = true,
		.want = COW_SKIP_NONE,
	}, {
		.desc = "anonymous, in three processes",
		.mapping = MAPPING_ANON,
		.mapcount = 3,
		.needs = true,
		.anon = true,
		.shared = true,
		.want = COW_SKIP_NONE,
	}, {
		.desc = "anonymous, in one process",
		.mapping = MAPPING_ANON,
		.mapcount = 1,
		.needs = true,
		.anon = true,
		.want = COW_SKIP_EXCLUSIVE,
	}, {
		.desc = "anonymous, exclusive",
		.mapping = MAPPING_ANON,
		.mapcount = 1,
		.exclusive = true,
		.needs = true,
		.anon = true,
		.want = COW_SKIP_EXCLUSIVE,
	}, {
		/* Should not happen, but such a page must not be copied. */
		.desc = "anonymous, exclusive, in two processes",
		.mapping = MAPPING_ANON,
		.mapcount = 2,
		.exclusive = true,
		.needs = true,
		.anon = true,
		.want = COW_SKIP_EXCLUSIVE,
	}, {
		/* As many references as a pin has */
		.desc = "anonymous, in 1030 processes",
		.mapping = MAPPING_ANON,
		.mapcount = GUP_PIN_COUNTING_BIAS + 6,
		.needs = true,
		.anon = true,
		.shared = true,
		.want = COW_SKIP_NONE,
	}, {
		.desc = "anonymous, in 1030 processes, pinned",
		.mapping = MAPPING_ANON,
		.mapcount = GUP_PIN_COUNTING_BIAS + 6,
		.pins = 1,
		.needs = true,
		.anon = true,
		.shared = true,
		.want = COW_SKIP_PINNED,
	}, {
		.desc = "anonymous, pinned",
		.mapping = MAPPING_ANON,
		.mapcount = 2,
		.pins = 1,
		.needs = true,
		.anon = true,
		.shared = true,
		.want = COW_SKIP_PINNED,
	}, {
		.desc = "anonymous, exclusive and pinned",
		.mapping = MAPPING_ANON,
		.mapcount = 1,
		.pins = 1,
		.exclusive = true,
		.needs = true,
		.anon = true,
		.want = COW_SKIP_PINNED,
	}, {
		.desc = "anonymous, MADV_FREE",
		.mapping = MAPPING_ANON,
		.mapcount = 2,
		.lazyfree = true,
		.needs = true,
		.anon = true,
		.shared = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "anonymous, hwpoison",
		.mapping = MAPPING_ANON,
		.mapcount = 2,
		.hwpoison = true,
		.needs = IS_ENABLED(CONFIG_MEMORY_FAILURE),
		.anon = true,
		.shared = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "anonymous, memory of a device",
		.mapping = MAPPING_ANON,
		.mapcount = 2,
		.device = true,
		.needs = IS_ENABLED(CONFIG_ZONE_DEVICE),
		.anon = true,
		.shared = true,
		.want = COW_SKIP_SPECIAL,
	}, {
		.desc = "KSM page",
		.mapping = MAPPING_KSM,
		.mapcount = 2,
		.needs = IS_ENABLED(CONFIG_KSM),
		.anon = true,
		.shared = true,
		.want = COW_SKIP_KSM,
	}, {
		.desc = "KSM page in one process",
		.mapping = MAPPING_KSM,
		.mapcount = 1,
		.needs = IS_ENABLED(CONFIG_KSM),
		.anon = true,
		.want = COW_SKIP_KSM,
	}, {
		.desc = "page of a file",
		.mapping = MAPPING_FILE,
		.mapcount = 2,
		.needs = true,
		.shared = true,
		.want = COW_SKIP_NOTANON,
	}, {
		.desc = "page without a mapping",
		.mapcount = 2,
		.needs = true,
		.shared = true,
		.want = COW_SKIP_NOTANON,
	},
};

KUNIT_ARRAY_PARAM_DESC(page, page_cases, desc);

/* The page allocator checks these fields when the page is freed. */
static void reset_page_action(void *data)
{
	struct page *page = data;
	struct folio *folio = page_folio(page);

	if (PageAnon(page))
		ClearPageAnonExclusive(page);
	ClearPageHWPoison(page);
	folio_clear_swapbacked(folio);
	folio->mapping = NULL;
	set_page_zone(page, page_private(page));
	set_page_private(page, 0);
	atomic_set(&page->_mapcount, -1);
	folio_set_count(folio, 1);
}

static struct page *test_page_for(struct kunit *test, const struct page_case *c)
{
	struct page *page = cowt_page(test);
	struct folio *folio = page_folio(page);

	set_page_private(page, page_zonenum(page));
	KUNIT_ASSERT_EQ(test,
			kunit_add_action_or_reset(test, reset_page_action, page), 0);
	folio->mapping = (void *)c->mapping;
	atomic_set(&page->_mapcount, c->mapcount - 1);
	folio_set_count(folio, c->mapcount + c->pins * GUP_PIN_COUNTING_BIAS);
	if (!c->lazyfree)
		folio_set_swapbacked(folio);
	if (c->exclusive)
		SetPageAnonExclusive(page);
	if (c->hwpoison)
		SetPageHWPoison(page);
#ifdef CONFIG_ZONE_DEVICE
	if (c->device)
		set_page_zone(page, ZONE_DEVICE);
#endif
	return page;
}

static void page_is_shared(struct kunit *test)
{
	const struct page_case *c = test->param_value;
	struct page *page;

	if (!c->needs || !c->anon)
		kunit_skip(test, "not in this configuration, or never asked");
	page = test_page_for(test, c);
	KUNIT_EXPECT_EQ(test, cow_precopy_page_is_shared(page_folio(page), page),
			c->shared);
}

static void check_page(struct kunit *test)
{
	const struct page_case *c = test->param_value;
	struct page *page;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	page = test_page_for(test, c);
	expect_skip(test, cow_precopy_check_page(page_folio(page), page), c->want);
}

static void no_page(struct kunit *test)
{
	expect_skip(test, cow_precopy_check_page(NULL, NULL), COW_SKIP_NOTANON);
}

static void zero_page(struct kunit *test)
{
	struct page *page = ZERO_PAGE(0);

	expect_skip(test, cow_precopy_check_page(page_folio(page), page), COW_SKIP_NOTANON);
}

/* PG_lru, set or clear, explains no reference. */
static void refs_known(struct kunit *test)
{
	struct folio *folio = folio_alloc(GFP_KERNEL, 0);

	KUNIT_ASSERT_NOT_NULL(test, folio);
	KUNIT_EXPECT_FALSE(test, cow_precopy_refs_known(folio, 0));
	KUNIT_EXPECT_TRUE(test, cow_precopy_refs_known(folio, 1));
	folio_get(folio);
	KUNIT_EXPECT_FALSE(test, cow_precopy_refs_known(folio, 1));
	KUNIT_EXPECT_TRUE(test, cow_precopy_refs_known(folio, 2));
	folio_set_lru(folio);
	KUNIT_EXPECT_FALSE(test, cow_precopy_refs_known(folio, 1));
	KUNIT_EXPECT_TRUE(test, cow_precopy_refs_known(folio, 2));
	folio_clear_lru(folio);
	folio_put_refs(folio, 2);
}

/* The low watermark counts, boosted or not, and what lower zones are spared. */
static void zone_has_room(struct kunit *test)
{
	struct zone *zone = kvzalloc(sizeof(*zone), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, zone);
	atomic_long_set(&zone->vm_stat[NR_FREE_PAGES], 1000);
	zone->_watermark[WMARK_MIN] = 100;
	zone->_watermark[WMARK_LOW] = 400;
	zone->_watermark[WMARK_HIGH] = 700;
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 0, 0, 16));
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 0, 0, 599));
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 0, 0, 600));
	zone->watermark_boost = 50;
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 0, 0, 549));
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 0, 0, 550));
	zone->lowmem_reserve[1] = 500;
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 0, 0, 549));
	KUNIT_EXPECT_TRUE(test, cow_zone_has_room(zone, 1, 0, 49));
	KUNIT_EXPECT_FALSE(test, cow_zone_has_room(zone, 1, 0, 50));
	kvfree(zone);
}

#ifdef CONFIG_NUMA
static struct mempolicy *some_policy(struct vm_area_struct *vma, unsigned long addr,
				     pgoff_t *ilx)
{
	return NULL;
}
#endif

/* A file may have a memory policy for its private mappings, as tmpfs has. */
static void policy_of_file(struct kunit *test)
{
#ifdef CONFIG_NUMA
	static const struct vm_operations_struct ops = { .get_policy = some_policy };
	struct vm_area_struct vma = { .vm_ops = &ops };
	struct page *pages[3] = {};
	unsigned int nr;

	nr = cow_precopy_alloc_bulk(COW_PRECOPY_GFP, &vma, ARRAY_SIZE(pages), pages);
	KUNIT_EXPECT_EQ(test, nr, 0);
#else
	kunit_skip(test, "not in this configuration");
#endif
}

static struct kunit_case cow_checks_cases[] = {
	KUNIT_CASE_PARAM(in_vma, in_vma_gen_params),
	KUNIT_CASE_PARAM(same_pmd, same_pmd_gen_params),
	KUNIT_CASE_PARAM(window, window_gen_params),
	KUNIT_CASE(window_wraps),
	KUNIT_CASE_PARAM(check_vma, check_vma_gen_params),
	KUNIT_CASE_PARAM(check_pte, check_pte_gen_params),
	KUNIT_CASE_PARAM(pte_same_as_before, check_pte_gen_params),
	KUNIT_CASE(pte_same_other_page),
	KUNIT_CASE_PARAM(page_is_shared, page_gen_params),
	KUNIT_CASE_PARAM(check_page, page_gen_params),
	KUNIT_CASE(no_page),
	KUNIT_CASE(zero_page),
	KUNIT_CASE(refs_known),
	KUNIT_CASE(zone_has_room),
	KUNIT_CASE(policy_of_file),
	{}
};

static struct kunit_suite cow_checks_suite = {
	.name = "cow_checks",
	.test_cases = cow_checks_cases,
};

kunit_test_suite(cow_checks_suite);

MODULE_DESCRIPTION("Tests for what copy-on-write faults copy ahead: the checks");
MODULE_LICENSE("GPL");
