// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests with constructed input: the checks that a page must pass before a
 * copy-on-write fault copies it ahead, and cow_precopy_gather(), which reads the
 * PTEs around a fault. Tests with real faults are in cow_precopy_kunit.c and
 * cow_adaptive_kunit.c, tests of the policy in cow_policy_kunit.c.
 */
#include <kunit/static_stub.h>
#include <kunit/test.h>
#include <linux/highmem.h>
#include <linux/log2.h>
#include <linux/math.h>
#include <linux/mm.h>
#include <linux/pgalloc.h>
#include <linux/pgtable.h>
#include <linux/prandom.h>
#include <linux/swap.h>
#include <linux/swapops.h>

#include "../cow.h"
#include "../cow_policy.h"
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

/* The flags of private anonymous memory after mmap() */
#define PRIVATE_ANON	(VM_READ | VM_WRITE | VM_MAYREAD | VM_MAYWRITE | \
			 VM_MAYEXEC | VM_ACCOUNT | VM_SOFTDIRTY)

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

static void free_page_action(void *page)
{
	__free_page(page);
}

static struct page *test_page(struct kunit *test)
{
	struct page *page = alloc_page(GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, page);
	KUNIT_ASSERT_EQ(test,
			kunit_add_action_or_reset(test, free_page_action, page), 0);
	return page;
}

static pte_t no_pte(struct page *page)
{
	return __pte(0);
}

static pte_t readonly_pte(struct page *page)
{
	return pte_wrprotect(mk_pte(page, PAGE_READONLY));
}

static pte_t dirty_young_pte(struct page *page)
{
	return pte_mkdirty(pte_mkyoung(readonly_pte(page)));
}

static pte_t writable_pte(struct page *page)
{
	return pte_mkwrite_novma(pte_mkdirty(mk_pte(page, PAGE_READONLY)));
}

static pte_t protnone_pte(struct page *page)
{
	return pte_modify(readonly_pte(page), PAGE_NONE);
}

static pte_t swap_pte(struct page *page)
{
	return swp_entry_to_pte(swp_entry(0, 1));
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
	/* The same PTE as readonly_pte() makes */
	bool same;
};

static const struct pte_case pte_cases[] = {
	{ "nothing mapped", no_pte, true, COW_SKIP_NOTPRESENT, false },
	{ "swap entry", swap_pte, true, COW_SKIP_NOTPRESENT, false },
	{ "migration entry", migration_pte, IS_ENABLED(CONFIG_MIGRATION),
	  COW_SKIP_NOTPRESENT, false },
	{ "poison marker", marker_pte, true, COW_SKIP_NOTPRESENT, false },
	{ "present, read-only", readonly_pte, true, COW_SKIP_NONE, true },
	{ "present, read-only, dirty and young", dirty_young_pte, true,
	  COW_SKIP_NONE, false },
	{ "present, writable", writable_pte, true, COW_SKIP_WRITABLE, false },
	{ "NUMA hinting", protnone_pte, IS_ENABLED(CONFIG_NUMA_BALANCING),
	  COW_SKIP_SPECIAL, false },
};

KUNIT_ARRAY_PARAM_DESC(check_pte, pte_cases, desc);

static void check_pte(struct kunit *test)
{
	const struct pte_case *c = test->param_value;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	expect_skip(test, cow_precopy_check_pte(c->make(test_page(test))), c->want);
}

static void pte_same_as_before(struct kunit *test)
{
	const struct pte_case *c = test->param_value;
	struct page *page = test_page(test);
	pte_t now;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	now = c->make(page);
	KUNIT_EXPECT_EQ(test, cow_precopy_pte_same(&now, readonly_pte(page)),
			c->same);
}

static void pte_same_other_page(struct kunit *test)
{
	struct page *page = test_page(test);
	pte_t now = readonly_pte(test_page(test));

	KUNIT_EXPECT_FALSE(test, cow_precopy_pte_same(&now, readonly_pte(page)));
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
	atomic_set(&page->_mapcount, -1);
	folio_set_count(folio, 1);
}

static struct page *test_page_for(struct kunit *test, const struct page_case *c)
{
	struct page *page = test_page(test);
	struct folio *folio = page_folio(page);

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

/*
 * cow_precopy_gather(), with three page tables that belong to no address space
 */

/* PTEs per table; page 0 is the first one of the first table. */
#define T		PTRS_PER_PTE
#define NR_TABLES	3
/* Address of the PMD table that has the three page tables */
#define GATHER_PUD	(64 * PUD_SIZE)
/* Index of the first table's PMD in most tests */
#define GATHER_SLOT	16

enum gather_kind {
	GATHER_NONE,
	GATHER_READONLY,
	GATHER_READONLY_DIRTY,
	/* Copied ahead; copied ahead and then written; copied by its own fault */
	GATHER_UNUSED,
	GATHER_USED,
	GATHER_DEMANDED,
	GATHER_PROTNONE,
	GATHER_SWAP,
	NR_GATHER_KINDS,
};

/**
 * struct gather_space - page tables and a VMA
 * @page: the page that all PTEs map
 * @pmds: three tables of PMDs; the address space has the one in the middle
 * @tables: page tables
 * @kind: kind of each PTE
 * @slot: index of the first table's PMD
 * @start: first page of the VMA
 * @end: first page beyond the VMA
 * @missing: number of the table that does not exist; NR_TABLES if all exist
 * @hw_dirty: hardware sets dirty bits
 */
struct gather_space {
	struct page *page;
	pmd_t *pmds;
	pte_t *tables[NR_TABLES];
	u8 kind[NR_TABLES * T];
	int slot;
	unsigned int start;
	unsigned int end;
	unsigned int missing;
	bool hw_dirty;
};

static pte_t gather_pte(struct page *page, enum gather_kind kind)
{
	pte_t pte = pte_clear_soft_dirty(pte_mkclean(readonly_pte(page)));

	switch (kind) {
	case GATHER_READONLY:
		return pte;
	case GATHER_READONLY_DIRTY:
		return pte_wrprotect(pte_mkdirty(pte));
	case GATHER_UNUSED:
		return pte_mkwrite_novma(pte);
	case GATHER_USED:
		return cowt_pte_hw_written(pte_mkwrite_novma(pte));
	case GATHER_DEMANDED:
		return pte_mkwrite_novma(pte_mksoft_dirty(pte_mkdirty(pte)));
	case GATHER_PROTNONE:
		return protnone_pte(page);
	case GATHER_SWAP:
		return swap_pte(page);
	default:
		return no_pte(page);
	}
}

static void restore_max_action(void *max)
{
	WRITE_ONCE(sysctl_cow_precopy_max, (long)max);
}

static struct gather_space *new_gather_space(struct kunit *test)
{
	struct gather_space *g = kunit_kzalloc(test, sizeof(*g), GFP_KERNEL);
	void *max = (void *)(long)sysctl_cow_precopy_max;
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, g);
	g->pmds = kunit_kzalloc(test, 4 * PAGE_SIZE, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, g->pmds);
	g->pmds += PTRS_PER_PMD;
	g->page = test_page(test);
	for (i = 0; i < NR_TABLES; i++)
		g->tables[i] = page_address(test_page(test));
	g->slot = GATHER_SLOT;
	g->end = NR_TABLES * T;
	g->missing = NR_TABLES;
	KUNIT_ASSERT_EQ(test,
			kunit_add_action_or_reset(test, restore_max_action, max), 0);
	return g;
}

static void fill_tables(struct gather_space *g)
{
	unsigned int i;

	for (i = 0; i < NR_TABLES * T; i++)
		set_pte(&g->tables[i / T][i % T], gather_pte(g->page, g->kind[i]));
	for (i = 0; i < NR_TABLES; i++) {
		pmd_t *pmd = g->pmds + g->slot + (int)i;

		if (i == g->missing)
			pmd_clear(pmd);
		else
			pmd_populate(current->mm, pmd, virt_to_page(g->tables[i]));
	}
}

static unsigned long gather_addr(const struct gather_space *g, unsigned int page)
{
	return GATHER_PUD + (long)g->slot * PMD_SIZE + page * PAGE_SIZE;
}

static bool gather_hw_dirty(void)
{
	return true;
}

static bool gather_no_hw_dirty(void)
{
	return false;
}

static struct cow_evidence gather(struct kunit *test, struct gather_space *g,
				  unsigned int fault, unsigned int max, bool reuse,
				  bool sequential)
{
	struct vm_area_struct *vma = kunit_kzalloc(test, sizeof(*vma), GFP_KERNEL);
	struct vm_fault vmf = {
		.vma = vma,
		.address = gather_addr(g, fault),
		.pmd = g->pmds + g->slot + (int)(fault / T),
		.pte = &g->tables[fault / T][fault % T],
	};
	struct cow_evidence e;

	KUNIT_ASSERT_NOT_NULL(test, vma);
	vma->vm_start = gather_addr(g, g->start);
	vma->vm_end = gather_addr(g, g->end);
	vm_flags_init(vma, PRIVATE_ANON | (sequential ? VM_SEQ_READ : VM_NONE));
	WRITE_ONCE(sysctl_cow_precopy_max, max);
	if (g->hw_dirty)
		kunit_activate_static_stub(test, cow_precopy_hw_dirty,
					   gather_hw_dirty);
	else
		kunit_activate_static_stub(test, cow_precopy_hw_dirty,
					   gather_no_hw_dirty);
	fill_tables(g);
	/* Poison: every field must be set. */
	memset(&e, 0xa5, sizeof(e));
	if (!cow_precopy_gather(&vmf, reuse, &e)) {
		e.valid = 0;
		e.written = 0;
		e.demand = 0;
		e.unused = 0;
	}
	kunit_kfree(test, vma);
	return e;
}

/**
 * struct gather_case - a run of written pages, and what is expected of it
 * @desc: description
 * @fault: the page of the fault, which is not part of the run
 * @from: first page of the run
 * @to: last page of the run; 0 if there is no run
 * @start: first page of the VMA
 * @end: first page beyond the VMA; 0 if it ends with the last table
 * @max: vm.cow_precopy_max; 0 for the default
 * @reuse: the faulting page will not be copied
 * @sequential: MADV_SEQUENTIAL
 * @no_table: a table is missing: 1 the first, 2 the second, 3 the third
 * @slot: PMD of the first table; 0 for any in the middle
 * @before: number of written pages below the fault
 * @after: number of written pages above the fault
 * @first: first page of the block that is read
 * @last: last page of the block that is read
 */
struct gather_case {
	const char *desc;
	unsigned int fault;
	unsigned int from;
	unsigned int to;
	unsigned int start;
	unsigned int end;
	unsigned int max;
	bool reuse;
	bool sequential;
	unsigned int no_table;
	int slot;
	unsigned int before;
	unsigned int after;
	unsigned int first;
	unsigned int last;
};

static const struct gather_case gather_cases[] = {
	{
		.desc = "nothing is written",
		.fault = T + 100,
		.first = 0, .last = 63,
	}, {
		.desc = "10 pages below",
		.fault = T + 100, .from = T + 90, .to = T + 99,
		.before = 10, .first = 0, .last = 63,
	}, {
		.desc = "10 pages above",
		.fault = T + 100, .from = T + 101, .to = T + 110,
		.after = 10, .first = 0, .last = 63,
	}, {
		.desc = "10 pages behind a gap",
		.fault = T + 100, .from = T + 102, .to = T + 111,
		.first = 0, .last = 63,
	}, {
		.desc = "15 pages: the block is looked at",
		.fault = T + 100, .from = T + 85, .to = T + 99,
		.before = 15, .first = 0, .last = 63,
	}, {
		.desc = "16 pages: what a window may have is looked at",
		.fault = T + 100, .from = T + 84, .to = T + 99,
		.before = 16, .first = 32, .last = 47,
	}, {
		.desc = "16 pages above",
		.fault = T + 100, .from = T + 101, .to = T + 116,
		.after = 16, .first = 32, .last = 47,
	}, {
		.desc = "16 pages, at most 5",
		.fault = T + 100, .from = T + 84, .to = T + 99, .max = 5,
		.before = 16, .first = 32, .last = 39,
	}, {
		.desc = "all: no further than needed",
		.fault = T + 300, .from = 0, .to = 3 * T - 1,
		.before = 120, .after = 120, .first = 32, .last = 47,
	}, {
		.desc = "all, at most 1",
		.fault = T + 300, .from = 0, .to = 3 * T - 1, .max = 1,
		.before = 8, .after = 8, .first = 0, .last = 63,
	}, {
		.desc = "all, at most 3",
		.fault = T + 300, .from = 0, .to = 3 * T - 1, .max = 3,
		.before = 24, .after = 24, .first = 44, .last = 47,
	}, {
		.desc = "all, reuse",
		.fault = T + 300, .from = 0, .to = 3 * T - 1, .reuse = true,
		.before = 63, .after = 63, .first = 0, .last = 63,
	}, {
		.desc = "all, reuse, at most 7",
		.fault = T + 300, .from = 0, .to = 3 * T - 1, .max = 7, .reuse = true,
		.before = 31, .after = 31, .first = 32, .last = 63,
	}, {
		.desc = "nothing, sequential",
		.fault = T + 100, .sequential = true,
		.first = 32, .last = 47,
	}, {
		.desc = "PTE 0, the run is in the table before",
		.fault = T, .from = T - 10, .to = T - 1,
		.before = 10, .first = 0, .last = 63,
	}, {
		.desc = "PTE 0, the table before is full",
		.fault = T, .from = 0, .to = T - 1,
		.before = 120, .first = 0, .last = 15,
	}, {
		.desc = "PTE 0, no table before",
		.fault = T, .from = 0, .to = T - 1, .no_table = 1,
		.first = 0, .last = 63,
	}, {
		.desc = "PTE 511, the run is in the next table",
		.fault = 2 * T - 1, .from = 2 * T, .to = 2 * T + 9,
		.after = 10, .first = 0, .last = 63,
	}, {
		.desc = "PTE 511, the next table is full",
		.fault = 2 * T - 1, .from = 2 * T, .to = 3 * T - 1,
		.after = 120, .first = 48, .last = 63,
	}, {
		.desc = "PTE 511, no next table",
		.fault = 2 * T - 1, .from = 2 * T, .to = 3 * T - 1, .no_table = 3,
		.first = 0, .last = 63,
	}, {
		.desc = "the run goes on in the table before",
		.fault = T + 5, .from = T - 22, .to = T + 4,
		.before = 27, .first = 0, .last = 15,
	}, {
		.desc = "the run goes on in the table before, too far",
		.fault = T + 5, .from = 0, .to = T + 4,
		.before = 120, .first = 0, .last = 15,
	}, {
		.desc = "the run ends with the table",
		.fault = T + 5, .from = T, .to = T + 4,
		.before = 5, .first = 0, .last = 63,
	}, {
		.desc = "the run begins in the table before, behind a gap",
		.fault = T + 5, .from = 0, .to = T - 1,
		.first = 0, .last = 63,
	}, {
		.desc = "the run goes on in the next table",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 2 * T + 21,
		.after = 27, .first = 48, .last = 63,
	}, {
		.desc = "the run goes on in the next table, too far",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 3 * T - 1,
		.after = 120, .first = 48, .last = 63,
	}, {
		.desc = "the run goes on below, another PUD",
		.fault = T + 5, .from = 0, .to = T + 4, .slot = -1,
		.before = 5, .first = 0, .last = 63,
	}, {
		.desc = "the run goes on above, another PUD",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 3 * T - 1,
		.slot = PTRS_PER_PMD - 2,
		.after = 5, .first = 0, .last = 63,
	}, {
		.desc = "the last PMD of a PUD, the run is below",
		.fault = T + 5, .from = 0, .to = T + 4, .slot = PTRS_PER_PMD - 2,
		.before = 120, .first = 0, .last = 15,
	}, {
		.desc = "the VMA starts with the fault",
		.fault = T + 100, .from = 0, .to = T + 99, .start = T + 100,
		.first = 36, .last = 63,
	}, {
		.desc = "the VMA starts a page earlier",
		.fault = T + 100, .from = 0, .to = T + 99, .start = T + 99,
		.before = 1, .first = 35, .last = 63,
	}, {
		.desc = "the VMA starts with the table",
		.fault = T + 5, .from = 0, .to = T + 4, .start = T,
		.before = 5, .first = 0, .last = 63,
	}, {
		.desc = "the VMA starts in the table before",
		.fault = T + 5, .from = 0, .to = T + 4, .start = T - 3,
		.before = 8, .first = 0, .last = 63,
	}, {
		.desc = "the VMA ends behind the fault",
		.fault = T + 100, .from = T + 101, .to = 3 * T - 1, .end = T + 101,
		.first = 0, .last = 36,
	}, {
		.desc = "the VMA ends a page later",
		.fault = T + 100, .from = T + 101, .to = 3 * T - 1, .end = T + 102,
		.after = 1, .first = 0, .last = 37,
	}, {
		.desc = "the VMA ends with the table",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 3 * T - 1, .end = 2 * T,
		.after = 5, .first = 0, .last = 63,
	}, {
		.desc = "the VMA ends in the next table",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 3 * T - 1,
		.end = 2 * T + 3,
		.after = 8, .first = 0, .last = 63,
	}, {
		.desc = "a VMA of one page",
		.fault = T + 100, .from = 0, .to = 3 * T - 1,
		.start = T + 100, .end = T + 101,
		.first = 36, .last = 36,
	}, {
		.desc = "a VMA of three pages, sequential",
		.fault = T + 100, .start = T + 99, .end = T + 102,
		.sequential = true,
		.first = 35, .last = 37,
	},
};

KUNIT_ARRAY_PARAM_DESC(gather, gather_cases, desc);

/*
 * A model: plain loops over the pages
 */

static bool model_written(const struct gather_space *g, unsigned int page)
{
	switch (g->kind[page]) {
	case GATHER_UNUSED:
		return !g->hw_dirty;
	case GATHER_USED:
	case GATHER_DEMANDED:
		return true;
	default:
		return false;
	}
}

/* May the run go on at a page? Below page 0, it wraps to UINT_MAX. */
static bool model_in_reach(const struct gather_space *g, unsigned int fault,
			   unsigned int page)
{
	return page < g->end && page >= g->start && page / T != g->missing &&
	       !((gather_addr(g, page) ^ gather_addr(g, fault)) & PUD_MASK);
}

/* As cow_run(). */
static unsigned int model_run(const struct gather_space *g, unsigned int fault,
			      int step, unsigned int limit)
{
	unsigned int nr;

	for (nr = 0; nr < limit; nr++) {
		unsigned int page = fault + step * (int)(nr + 1);

		if (!model_in_reach(g, fault, page) || !model_written(g, page))
			break;
	}
	return nr;
}

static bool model_private(const struct gather_space *g, unsigned int page)
{
	return model_written(g, page) || g->kind[page] == GATHER_UNUSED;
}

/* Are 3/8 of one in 16 of the pages that the VMA has in the page table private? */
static bool model_table_is_dense(const struct gather_space *g, unsigned int fault)
{
	unsigned int page = max(g->start, round_down(fault, T)), nr = 0, private = 0;

	for (; page < min(g->end, round_down(fault, T) + T); page += 16) {
		nr++;
		private += page != fault && model_private(g, page);
	}
	return private * 8 >= nr * 3;
}

/* Is the whole block looked at, for rule 4? */
static bool model_dense(const struct gather_space *g, unsigned int fault,
			const struct cow_evidence *e)
{
	if (e->sequential || e->before >= 16 || e->after >= 16)
		return false;
	return e->reuse || model_table_is_dense(g, fault);
}

static struct cow_evidence model_gather(const struct gather_space *g,
					unsigned int fault, unsigned int max,
					bool reuse, bool sequential)
{
	unsigned int block = round_down(fault, COW_BLOCK), size = COW_BLOCK, i;
	unsigned int most = reuse ? min(max * 4 + 3, 63u) : max;
	unsigned int limit = reuse ? most : max * 8;
	struct cow_evidence e = {
		.pos = fault - block,
		.before = model_run(g, fault, -1, limit),
		.after = model_run(g, fault, 1, limit),
		.max = most,
		.reuse = reuse,
		.hw_dirty = g->hw_dirty,
		.sequential = sequential,
	};

	e.dense = model_dense(g, fault, &e);
	/* No rule applies. */
	if (!e.dense && !sequential && max(e.before, e.after) < 3)
		return e;
	if (!e.dense)
		for (size = 2; size <= most; size *= 2)
			;
	for (i = 0; i < COW_BLOCK; i++) {
		unsigned int page = block + i;

		if (page < g->start || page >= g->end || page / size != fault / size)
			continue;
		e.valid |= BIT_ULL(i);
		if (model_written(g, page))
			e.written |= BIT_ULL(i);
		else if (g->kind[page] == GATHER_UNUSED)
			e.unused |= BIT_ULL(i);
		if (g->kind[page] == GATHER_DEMANDED && HAS_DEMAND)
			e.demand |= BIT_ULL(i);
	}
	return e;
}

/* The pages of the run that are among those read. */
static u64 gather_map(const struct gather_case *c, u64 valid)
{
	unsigned int block = round_down(c->fault, COW_BLOCK), i;
	u64 map = 0;

	for (i = 0; i < COW_BLOCK; i++) {
		if (block + i >= c->from && block + i <= c->to)
			map |= BIT_ULL(i);
	}
	return map & valid & ~BIT_ULL(c->fault - block);
}

static void test_gather(struct kunit *test, bool hw_dirty)
{
	const struct gather_case *c = test->param_value;
	struct gather_space *g = new_gather_space(test);
	unsigned int max = c->max ?: COW_PRECOPY_MAX_PAGES;
	struct cow_evidence e;
	u64 map, valid;

	/* With two levels of page tables, the next one is always of another PUD. */
	if (__is_defined(__PAGETABLE_PMD_FOLDED) &&
	    (c->before > c->fault % T || c->after > T - 1 - c->fault % T))
		kunit_skip(test, "a run ends with the page table in this configuration");
	memset(g->kind, GATHER_READONLY, sizeof(g->kind));
	if (c->to)
		memset(g->kind + c->from, GATHER_DEMANDED, c->to - c->from + 1);
	g->kind[c->fault] = GATHER_READONLY;
	g->start = c->start;
	g->end = c->end ?: NR_TABLES * T;
	g->slot = c->slot ?: GATHER_SLOT;
	g->missing = c->no_table ? c->no_table - 1 : NR_TABLES;
	g->hw_dirty = hw_dirty;
	e = gather(test, g, c->fault, max, c->reuse, c->sequential);

	KUNIT_EXPECT_EQ(test, e.before, c->before);
	KUNIT_EXPECT_EQ(test, e.after, c->after);
	/* Where the block is not dense, less of it is read, or none. */
	valid = GENMASK_ULL(c->last, c->first) &
		model_gather(g, c->fault, max, c->reuse, c->sequential).valid;
	map = c->to ? gather_map(c, valid) : 0;
	KUNIT_EXPECT_EQ(test, e.valid, valid);
	KUNIT_EXPECT_EQ(test, e.written, map);
	KUNIT_EXPECT_EQ(test, e.demand, HAS_DEMAND ? map : 0);
	KUNIT_EXPECT_EQ(test, e.unused, 0);
	KUNIT_EXPECT_EQ(test, e.pos, c->fault % COW_BLOCK);
	KUNIT_EXPECT_EQ(test, e.max, c->reuse ? min(max * 4 + 3, 63u) : max);
	KUNIT_EXPECT_EQ(test, e.reuse, c->reuse);
	KUNIT_EXPECT_EQ(test, e.hw_dirty, hw_dirty);
	KUNIT_EXPECT_EQ(test, e.sequential, c->sequential);
}

static void gather_run(struct kunit *test)
{
	test_gather(test, true);
}

static void gather_run_no_hw_dirty(struct kunit *test)
{
	test_gather(test, false);
}

struct kind_case {
	const char *desc;
	enum gather_kind kind;
	bool needs;
	bool written;
	bool unused;
	bool demand;
	bool written_no_hw;
	bool demand_no_hw;
};

/* Each kind of PTE, with and without dirty bits set by hardware. */
static const struct kind_case kind_cases[] = {
	{ .desc = "nothing mapped", .kind = GATHER_NONE, .needs = true },
	{ .desc = "read-only", .kind = GATHER_READONLY, .needs = true },
	{ .desc = "read-only, dirty", .kind = GATHER_READONLY_DIRTY, .needs = true },
	{ .desc = "swap entry", .kind = GATHER_SWAP, .needs = true },
	{
		.desc = "NUMA hinting",
		.kind = GATHER_PROTNONE,
		.needs = IS_ENABLED(CONFIG_NUMA_BALANCING),
	}, {
		.desc = "writable, clean",
		.kind = GATHER_UNUSED,
		.needs = true,
		.unused = true,
		.written_no_hw = true,
	}, {
		.desc = "writable, dirty",
		.kind = GATHER_USED,
		.needs = true,
		.written = true,
		.written_no_hw = true,
	}, {
		.desc = "writable, made dirty by a fault",
		.kind = GATHER_DEMANDED,
		.needs = HAS_DEMAND,
		.written = true,
		.demand = true,
		.written_no_hw = true,
		.demand_no_hw = true,
	},
};

KUNIT_ARRAY_PARAM_DESC(kind, kind_cases, desc);

/* Two pages of one kind on each side of the fault. */
static void gather_kinds(struct kunit *test)
{
	const struct kind_case *c = test->param_value;
	unsigned int fault = T + 100;
	struct gather_space *g;
	struct cow_evidence e;
	u64 map;

	if (!c->needs)
		kunit_skip(test, "not in this configuration");
	g = new_gather_space(test);
	map = GENMASK_ULL(fault % COW_BLOCK + 2, fault % COW_BLOCK - 2) &
	      ~BIT_ULL(fault % COW_BLOCK);
	memset(g->kind, GATHER_READONLY, sizeof(g->kind));
	memset(g->kind + fault - 2, c->kind, 5);
	g->kind[fault] = GATHER_READONLY;

	g->hw_dirty = true;
	/* Sequential, so that it takes no run to look at the block */
	e = gather(test, g, fault, COW_PRECOPY_MAX_PAGES, false, true);
	KUNIT_EXPECT_EQ(test, e.before, c->written ? 2 : 0);
	KUNIT_EXPECT_EQ(test, e.after, c->written ? 2 : 0);
	KUNIT_EXPECT_EQ(test, e.written, c->written ? map : 0);
	KUNIT_EXPECT_EQ(test, e.unused, c->unused ? map : 0);
	KUNIT_EXPECT_EQ(test, e.demand, c->demand ? map : 0);

	g->hw_dirty = false;
	e = gather(test, g, fault, COW_PRECOPY_MAX_PAGES, false, true);
	KUNIT_EXPECT_EQ(test, e.before, c->written_no_hw ? 2 : 0);
	KUNIT_EXPECT_EQ(test, e.after, c->written_no_hw ? 2 : 0);
	KUNIT_EXPECT_EQ(test, e.written, c->written_no_hw ? map : 0);
	KUNIT_EXPECT_EQ(test, e.unused, 0);
	KUNIT_EXPECT_EQ(test, e.demand, c->demand_no_hw ? map : 0);
}

/* Runs of one kind, with other pages in between. */
static void random_kinds(struct gather_space *g, struct rnd_state *rnd)
{
	unsigned int i = 0, nr;

	while (i < ARRAY_SIZE(g->kind)) {
		u32 random = prandom_u32_state(rnd);
		u8 kind = random % NR_GATHER_KINDS;

		/* Most pages are written. */
		if (random & BIT(16))
			kind = GATHER_DEMANDED;
		else if (kind == GATHER_PROTNONE && !IS_ENABLED(CONFIG_NUMA_BALANCING))
			kind = GATHER_USED;
		nr = 1 + (random >> 20) % (1 << (1 + (random >> 17) % 8));
		while (nr-- && i < ARRAY_SIZE(g->kind))
			g->kind[i++] = kind;
	}
}

static void gather_random(struct kunit *test)
{
	struct gather_space *g = new_gather_space(test);
	static const int slots[] = { GATHER_SLOT, -1, PTRS_PER_PMD - 2 };
	struct rnd_state rnd;
	unsigned int i;

	prandom_seed_state(&rnd, 1988);
	for (i = 0; i < 2000; i++) {
		u32 random = prandom_u32_state(&rnd);
		bool reuse = random & 1, sequential = !(random & 14);
		unsigned int max = 1 + prandom_u32_state(&rnd) % COW_PRECOPY_MAX_PAGES;
		unsigned int fault = T + prandom_u32_state(&rnd) % T;
		struct cow_evidence e, want;

		random_kinds(g, &rnd);
		/* Prefer pages near the ends of a table. */
		if (random & 16)
			fault = fault % 2 ? 2 * T - 1 - fault / 2 % 32 : T + fault / 2 % 32;
		g->kind[fault] = GATHER_READONLY;
		g->hw_dirty = random & 32;
		g->slot = slots[random / 64 % ARRAY_SIZE(slots)];
		g->missing = random & 1024 ? NR_TABLES : random / 2048 % 2 * 2;
		g->start = fault - prandom_u32_state(&rnd) % (T + 1);
		g->end = fault + 1 + prandom_u32_state(&rnd) % T;
		e = gather(test, g, fault, max, reuse, sequential);
		want = model_gather(g, fault, max, reuse, sequential);
		if (e.valid == want.valid && e.written == want.written &&
		    e.demand == want.demand && e.unused == want.unused &&
		    e.pos == want.pos && e.before == want.before &&
		    e.dense == want.dense &&
		    e.after == want.after && e.max == want.max &&
		    e.reuse == want.reuse && e.hw_dirty == want.hw_dirty &&
		    e.sequential == want.sequential)
			continue;
		KUNIT_FAIL(test, "number %u, fault at %u, VMA from %u to %u",
			   i, fault, g->start, g->end);
		KUNIT_EXPECT_EQ(test, e.valid, want.valid);
		KUNIT_EXPECT_EQ(test, e.written, want.written);
		KUNIT_EXPECT_EQ(test, e.demand, want.demand);
		KUNIT_EXPECT_EQ(test, e.unused, want.unused);
		KUNIT_EXPECT_EQ(test, e.before, want.before);
		KUNIT_EXPECT_EQ(test, e.after, want.after);
		KUNIT_EXPECT_EQ(test, e.dense, want.dense);
		return;
	}
}

/* A folio that is not on the LRU need not have a reference for that. */
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

	KUNIT_EXPECT_EQ(test, cow_precopy_alloc_bulk(&vma, ARRAY_SIZE(pages), pages), 0);
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
	KUNIT_CASE_PARAM(gather_run, gather_gen_params),
	KUNIT_CASE_PARAM(gather_run_no_hw_dirty, gather_gen_params),
	KUNIT_CASE_PARAM(gather_kinds, kind_gen_params),
	KUNIT_CASE(gather_random),
	{}
};

static struct kunit_suite cow_checks_suite = {
	.name = "cow_checks",
	.test_cases = cow_checks_cases,
};

kunit_test_suite(cow_checks_suite);

MODULE_DESCRIPTION("Tests for what copy-on-write faults copy ahead: the checks");
MODULE_LICENSE("GPL");
