// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of cow_precopy_gather(), which reads the PTEs around a copy-on-write
 * fault: page tables of each kind, compared with a model of plain loops. What is made
 * of that is in cow_policy_kunit.c.
 */
#include <kunit/static_stub.h>
#include <kunit/test.h>
#include <linux/math.h>
#include <linux/mm.h>
#include <linux/pgalloc.h>
#include <linux/pgtable.h>
#include <linux/prandom.h>

#include "../cow.h"
#include "../cow_policy.h"
#include "../cow_precopy.h"
#include "cow_kunit_pte.h"

/* Three page tables that belong to no address space */

/* PTEs per table; page 0 is the first one of the first table. */
#define T		PTRS_PER_PTE
#define NR_TABLES	3
/* Address of the PMD table that has the three page tables; PAE has four such tables. */
#define GATHER_PUD	(2 * PUD_SIZE)
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
	pte_t pte = pte_clear_soft_dirty(pte_mkclean(cowt_readonly_pte(page)));

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
		return cowt_protnone_pte(page);
	case GATHER_SWAP:
		return cowt_swap_pte(page);
	default:
		return __pte(0);
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
	void *tables;
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, g);
	g->pmds = kunit_kzalloc(test, 4 * PAGE_SIZE, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, g->pmds);
	g->pmds += PTRS_PER_PMD;
	g->page = cowt_page(test);
	/* Side by side, so that reading over the end of one finds a run to go on. */
	tables = kunit_kzalloc(test, NR_TABLES * PAGE_SIZE, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, tables);
	for (i = 0; i < NR_TABLES; i++)
		g->tables[i] = tables + i * PAGE_SIZE;
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
 * @first: no page of the block before this one is read, ...
 * @last: ... and none behind this one; none at all if no rule applies
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
		.before = 10, .first = 32, .last = 47,
	}, {
		.desc = "10 pages above",
		.fault = T + 100, .from = T + 101, .to = T + 110,
		.after = 10, .first = 32, .last = 47,
	}, {
		.desc = "10 pages behind a gap",
		.fault = T + 100, .from = T + 102, .to = T + 111,
		.first = 0, .last = 63,
	}, {
		.desc = "15 pages: a window is looked at",
		.fault = T + 100, .from = T + 85, .to = T + 99,
		.before = 15, .first = 32, .last = 47,
	}, {
		.desc = "16 pages",
		.fault = T + 100, .from = T + 84, .to = T + 99,
		.before = 16, .first = 0, .last = 63,
	}, {
		.desc = "16 pages above",
		.fault = T + 100, .from = T + 101, .to = T + 116,
		.after = 16, .first = 0, .last = 63,
	}, {
		.desc = "119 pages",
		.fault = T + 300, .from = T + 181, .to = T + 299,
		.before = 119, .first = 0, .last = 63,
	}, {
		.desc = "120 pages: what a window may have is looked at",
		.fault = T + 300, .from = T + 180, .to = T + 299,
		.before = 120, .first = 32, .last = 47,
	}, {
		.desc = "120 pages, at most 5",
		.fault = T + 300, .from = T + 180, .to = T + 299, .max = 5,
		.before = 120, .first = 40, .last = 47,
	}, {
		.desc = "all: no further than needed",
		.fault = T + 300, .from = 0, .to = 3 * T - 1,
		.before = 120, .after = 120, .first = 32, .last = 47,
	}, {
		.desc = "all, at most 1",
		.fault = T + 300, .from = 0, .to = 3 * T - 1, .max = 1,
		.before = 8, .after = 8, .first = 0, .last = 63,
	}, {
		.desc = "all, at most 2",
		.fault = T + 300, .from = 0, .to = 3 * T - 1, .max = 2,
		.before = 120, .after = 120, .first = 44, .last = 47,
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
		.before = 10, .first = 0, .last = 15,
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
		.after = 10, .first = 48, .last = 63,
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
		.before = 27, .first = 0, .last = 63,
	}, {
		.desc = "the run goes on in the table before, too far",
		.fault = T + 5, .from = 0, .to = T + 4,
		.before = 120, .first = 0, .last = 15,
	}, {
		.desc = "the run ends with the table",
		.fault = T + 5, .from = T, .to = T + 4,
		.before = 5, .first = 0, .last = 15,
	}, {
		.desc = "the run begins in the table before, behind a gap",
		.fault = T + 5, .from = 0, .to = T - 1,
		.first = 0, .last = 63,
	}, {
		.desc = "the run goes on in the next table",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 2 * T + 21,
		.after = 27, .first = 0, .last = 63,
	}, {
		.desc = "the run goes on in the next table, too far",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 3 * T - 1,
		.after = 120, .first = 48, .last = 63,
	}, {
		.desc = "the run goes on below, another PUD",
		.fault = T + 5, .from = 0, .to = T + 4, .slot = -1,
		.before = 5, .first = 0, .last = 15,
	}, {
		.desc = "the run goes on above, another PUD",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 3 * T - 1,
		.slot = PTRS_PER_PMD - 2,
		.after = 5, .first = 48, .last = 63,
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
		.before = 5, .first = 0, .last = 15,
	}, {
		.desc = "the VMA starts in the table before",
		.fault = T + 5, .from = 0, .to = T + 4, .start = T - 3,
		.before = 8, .first = 0, .last = 15,
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
		.after = 5, .first = 48, .last = 63,
	}, {
		.desc = "the VMA ends in the next table",
		.fault = 2 * T - 6, .from = 2 * T - 5, .to = 3 * T - 1,
		.end = 2 * T + 3,
		.after = 8, .first = 48, .last = 63,
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

/* Are the nearest 32 pages of a run in this table, with a fault for each window? */
static bool model_windows(const struct gather_space *g, unsigned int fault, int step,
			  unsigned int max)
{
	unsigned int nr, page, size = 1, faults = 0;

	for (nr = 1; nr <= 32; nr++) {
		page = fault + step * (int)nr;
		if (page / T != fault / T || !model_written(g, page))
			return false;
		faults += g->kind[page] == GATHER_DEMANDED;
	}
	while (size <= max)
		size *= 2;
	return HAS_DEMAND && g->hw_dirty && faults && faults * size <= 32;
}

/* As cow_run(). */
static unsigned int model_run(const struct gather_space *g, unsigned int fault,
			      int step, unsigned int limit, unsigned int max)
{
	unsigned int reach = step > 0 ? g->end - 1 - fault : fault - g->start;
	unsigned int nr;

	reach = min(reach, limit);
	if (reach >= 64 && model_windows(g, fault, step, max))
		return reach;
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

/* Is the whole block looked at, for rule 3? */
static bool model_young(const struct cow_evidence *e)
{
	unsigned int run = max(e->before, e->after);

	return e->hw_dirty && !e->sequential && !e->reuse && run >= 16 && run < 120;
}

/* May an unused page be in the block of the last page of the run? */
static bool model_unused_far(const struct gather_space *g, unsigned int fault,
			     const struct cow_evidence *e)
{
	unsigned int far = e->before >= e->after ? fault - e->before : fault + e->after;
	unsigned int page;

	/* The run may begin beyond the part of the page table that the model has. */
	if (!model_in_reach(g, fault, far))
		return true;
	for (page = g->start; page < g->end; page++) {
		if (page / COW_BLOCK == far / COW_BLOCK && g->kind[page] == GATHER_UNUSED)
			return true;
	}
	return false;
}

static struct cow_evidence model_gather(const struct gather_space *g,
					unsigned int fault, unsigned int max,
					bool reuse, bool sequential)
{
	unsigned int block = round_down(fault, COW_BLOCK), size = COW_BLOCK, i;
	unsigned int most = reuse ? min(max * 4 + 3, 63u) : max;
	unsigned int limit = reuse ? most : max > 1 ? 120 : 8;
	struct cow_evidence e = {
		.pos = fault - block,
		.before = model_run(g, fault, -1, limit, max),
		.after = model_run(g, fault, 1, limit, max),
		.max = most,
		.reuse = reuse,
		.hw_dirty = g->hw_dirty,
		.sequential = sequential,
	};

	e.dense = model_dense(g, fault, &e);
	e.unused_far = model_young(&e) && model_unused_far(g, fault, &e);
	/* No rule applies. */
	if (!e.dense && !sequential && max(e.before, e.after) < 3)
		return e;
	if (!e.dense && !model_young(&e))
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

static void run(struct kunit *test)
{
	test_gather(test, true);
}

static void run_no_hw_dirty(struct kunit *test)
{
	test_gather(test, false);
}

/**
 * struct windows_case - a run of pages that faults copied ahead
 * @desc: description
 * @pages: length of the run
 * @demanded: those that took a fault: their distances from the fault to come
 * @in_table: number of pages in the same page table; 0 if there are enough
 * @in_vma: number of pages in the VMA; 0 if there are enough
 * @max: vm.cow_precopy_max; 0 for the default
 * @want: length of the run that is found
 */
struct windows_case {
	const char *desc;
	unsigned int pages;
	unsigned int demanded[5];
	unsigned int in_table;
	unsigned int in_vma;
	unsigned int max;
	unsigned int want;
};

/* Where no bit tells faults from hardware, all are counted, as in "no fault". */
static const struct windows_case windows_cases[] = {
	{
		.desc = "two windows",
		.pages = 32, .demanded = { 16, 32 }, .want = 120,
	}, {
		.desc = "one fault",
		.pages = 32, .demanded = { 24 }, .want = 120,
	}, {
		.desc = "three faults",
		.pages = 32, .demanded = { 10, 16, 32 }, .want = 32,
	}, {
		.desc = "a third fault behind them",
		.pages = 33, .demanded = { 16, 32, 33 }, .want = 120,
	}, {
		.desc = "no fault",
		.pages = 32, .want = 32,
	}, {
		.desc = "four windows, at most 7",
		.pages = 32, .demanded = { 8, 16, 24, 32 }, .max = 7, .want = 120,
	}, {
		.desc = "five faults, at most 7",
		.pages = 32, .demanded = { 8, 10, 16, 24, 32 }, .max = 7, .want = 32,
	}, {
		.desc = "three faults, at most 8",
		.pages = 32, .demanded = { 10, 16, 32 }, .max = 8, .want = 32,
	}, {
		.desc = "one window",
		.pages = 16, .demanded = { 16 }, .want = 16,
	}, {
		.desc = "a page less",
		.pages = 31, .demanded = { 15, 31 }, .want = 31,
	}, {
		.desc = "as far as the page table",
		.pages = 40, .demanded = { 16, 32 }, .in_table = 32, .want = 120,
	}, {
		.desc = "over the end of the page table",
		.pages = 40, .demanded = { 16, 31 }, .in_table = 31, .want = 40,
	}, {
		.desc = "as far as the VMA",
		.pages = 32, .demanded = { 16, 32 }, .in_vma = 64, .want = 64,
	}, {
		.desc = "too little of the VMA is left to count",
		.pages = 32, .demanded = { 16, 32 }, .in_vma = 63, .want = 32,
	},
};

KUNIT_ARRAY_PARAM_DESC(windows, windows_cases, desc);

static void expect_windows(struct kunit *test, const struct windows_case *c, int step,
			   bool hw_dirty, unsigned int want)
{
	struct gather_space *g = new_gather_space(test);
	unsigned int in_table = c->in_table ?: T / 2;
	unsigned int fault = step > 0 ? 2 * T - 1 - in_table : T + in_table;
	struct cow_evidence e;
	unsigned int i;

	memset(g->kind, GATHER_READONLY, sizeof(g->kind));
	for (i = 1; i <= c->pages; i++)
		g->kind[fault + step * (int)i] = GATHER_USED;
	for (i = 0; i < ARRAY_SIZE(c->demanded) && c->demanded[i]; i++)
		g->kind[fault + step * (int)c->demanded[i]] = GATHER_DEMANDED;
	g->hw_dirty = hw_dirty;
	if (c->in_vma && step > 0)
		g->end = fault + 1 + c->in_vma;
	else if (c->in_vma)
		g->start = fault - c->in_vma;
	e = gather(test, g, fault, c->max ?: COW_PRECOPY_MAX_PAGES, false, false);
	KUNIT_EXPECT_EQ(test, e.before, step > 0 ? 0 : want);
	KUNIT_EXPECT_EQ(test, e.after, step > 0 ? want : 0);
}

/* A run of whole windows is not counted, unless nothing shows that they are windows. */
static void windows(struct kunit *test)
{
	const struct windows_case *c = test->param_value;
	unsigned int want = HAS_DEMAND ? c->want : c->pages;

	if (__is_defined(__PAGETABLE_PMD_FOLDED) && c->in_table)
		kunit_skip(test, "a run ends with the page table in this configuration");
	expect_windows(test, c, -1, true, want);
	expect_windows(test, c, 1, true, want);
	expect_windows(test, c, -1, false, c->pages);
	expect_windows(test, c, 1, false, c->pages);
}

/**
 * struct far_case - a run, and an unused page that may be near its beginning
 * @desc: description
 * @fault: the page of the fault
 * @from: first page of the run
 * @to: last page of the run
 * @unused: the unused page
 * @start: first page of the VMA
 * @end: first page beyond the VMA; 0 if it ends with the last table
 * @slot: PMD of the first table; 0 for any in the middle
 * @windows: the run consists of whole windows, so that it is not counted
 * @reuse: the faulting page will not be copied
 * @sequential: MADV_SEQUENTIAL
 * @want: the unused page may matter
 */
struct far_case {
	const char *desc;
	unsigned int fault;
	unsigned int from;
	unsigned int to;
	unsigned int unused;
	unsigned int start;
	unsigned int end;
	int slot;
	bool windows;
	bool reuse;
	bool sequential;
	bool want;
};

static const struct far_case far_cases[] = {
	{
		.desc = "first page of the block",
		.fault = T + 200, .from = T + 140, .to = T + 199,
		.unused = T + 128, .want = true,
	}, {
		.desc = "in the block before",
		.fault = T + 200, .from = T + 140, .to = T + 199,
		.unused = T + 127,
	}, {
		.desc = "last page of the block",
		.fault = T + 100, .from = T + 101, .to = T + 150,
		.unused = T + 191, .want = true,
	}, {
		.desc = "in the block behind",
		.fault = T + 100, .from = T + 101, .to = T + 150,
		.unused = T + 192,
	}, {
		.desc = "the run begins with the block",
		.fault = T + 200, .from = T + 128, .to = T + 199,
		.unused = T + 127,
	}, {
		.desc = "outside of the VMA",
		.fault = T + 200, .from = T + 140, .to = T + 199,
		.unused = T + 130, .start = T + 131,
	}, {
		.desc = "15 pages",
		.fault = T + 200, .from = T + 185, .to = T + 199,
		.unused = T + 130,
	}, {
		.desc = "119 pages",
		.fault = T + 300, .from = T + 181, .to = T + 299,
		.unused = T + 130, .want = true,
	}, {
		.desc = "120 pages",
		.fault = T + 300, .from = T + 180, .to = T + 299,
		.unused = T + 130,
	}, {
		.desc = "the run begins in the table before",
		.fault = T + 20, .from = T - 10, .to = T + 19,
		.unused = T - 64, .want = true,
	}, {
		.desc = "in the table before, but another block",
		.fault = T + 20, .from = T - 10, .to = T + 19,
		.unused = T - 65,
	}, {
		.desc = "the run begins in the next table",
		.fault = 2 * T - 20, .from = 2 * T - 19, .to = 2 * T + 9,
		.unused = 2 * T + 63, .want = true,
	}, {
		.desc = "the run begins with the table",
		.fault = T + 60, .from = T, .to = T + 59,
		.unused = T - 1,
	}, {
		.desc = "the run ends with the table",
		.fault = 2 * T - 61, .from = 2 * T - 60, .to = 2 * T - 1,
		.unused = 2 * T,
	}, {
		.desc = "not counted, the VMA begins in another PUD",
		.fault = T + 40, .from = T - 50, .to = T + 39, .windows = true,
		.unused = T + 200, .start = T - 50, .slot = -1,
		.want = HAS_DEMAND,
	}, {
		.desc = "not counted, the VMA ends in another PUD",
		.fault = 2 * T - 41, .from = 2 * T - 40, .to = 2 * T + 49,
		.windows = true, .unused = T + 200, .end = 2 * T + 50,
		.slot = PTRS_PER_PMD - 2, .want = HAS_DEMAND,
	}, {
		.desc = "not counted, the VMA begins in the table before",
		.fault = T + 40, .from = T - 50, .to = T + 39, .windows = true,
		.unused = T + 200, .start = T - 50,
	}, {
		.desc = "sequential",
		.fault = T + 200, .from = T + 140, .to = T + 199,
		.unused = T + 130, .sequential = true,
	}, {
		.desc = "reuse",
		.fault = T + 200, .from = T + 140, .to = T + 199,
		.unused = T + 130, .reuse = true,
	},
};

KUNIT_ARRAY_PARAM_DESC(far, far_cases, desc);

static void unused_far(struct kunit *test)
{
	const struct far_case *c = test->param_value;
	struct gather_space *g = new_gather_space(test);
	struct cow_evidence e;
	unsigned int i;

	if (__is_defined(__PAGETABLE_PMD_FOLDED) && (c->from < T || c->to >= 2 * T))
		kunit_skip(test, "a run ends with the page table in this configuration");
	memset(g->kind, GATHER_READONLY, sizeof(g->kind));
	for (i = c->from; i <= c->to; i++)
		g->kind[i] = c->windows && i % 16 ? GATHER_USED : GATHER_DEMANDED;
	g->kind[c->unused] = GATHER_UNUSED;
	g->start = c->start;
	g->end = c->end ?: NR_TABLES * T;
	g->slot = c->slot ?: GATHER_SLOT;
	g->hw_dirty = true;
	e = gather(test, g, c->fault, COW_PRECOPY_MAX_PAGES, c->reuse, c->sequential);
	KUNIT_EXPECT_EQ(test, e.unused_far, c->want);
	g->hw_dirty = false;
	e = gather(test, g, c->fault, COW_PRECOPY_MAX_PAGES, c->reuse, c->sequential);
	KUNIT_EXPECT_FALSE(test, e.unused_far);
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
static void kinds(struct kunit *test)
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
		/* A window has a fault. */
		if (random & BIT(31) && kind == GATHER_USED)
			g->kind[i - 1] = GATHER_DEMANDED;
	}
}

static void random(struct kunit *test)
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
		    e.dense == want.dense && e.unused_far == want.unused_far &&
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
		KUNIT_EXPECT_EQ(test, e.unused_far, want.unused_far);
		return;
	}
}

static struct kunit_case cow_gather_cases[] = {
	KUNIT_CASE_PARAM(run, gather_gen_params),
	KUNIT_CASE_PARAM(run_no_hw_dirty, gather_gen_params),
	KUNIT_CASE_PARAM(windows, windows_gen_params),
	KUNIT_CASE_PARAM(unused_far, far_gen_params),
	KUNIT_CASE_PARAM(kinds, kind_gen_params),
	KUNIT_CASE(random),
	{}
};

static struct kunit_suite cow_gather_suite = {
	.name = "cow_gather",
	.test_cases = cow_gather_cases,
};

kunit_test_suite(cow_gather_suite);

MODULE_DESCRIPTION("Tests for what copy-on-write faults copy ahead: the evidence");
MODULE_LICENSE("GPL");
