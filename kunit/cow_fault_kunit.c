// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of how copy-on-write faults are counted, in /proc/vmstat and by
 * CONFIG_COW_STATS: each outcome of a real fault changes its own counter, and no other.
 * An MMU notifier makes a fault lose its race.
 */
#include <linux/cow_stats.h>
#include <linux/mmu_notifier.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/swap.h>

#include "cow_kunit.h"

/* What is counted, and by how much a fault has to change it */
struct fault_counts {
	unsigned long copied;
	unsigned long reused;
	unsigned long lost;
	u64 faults;
	u64 stat_reused;
	u64 stat_lost;
	u64 unshared;
};

static struct fault_counts read_fault_counts(void)
{
	const u64 *mine = current->mm->cow_counts.counts.items;

	return (struct fault_counts) {
		.copied = cowt_read_event(PGCOW_COPIED),
		.reused = cowt_read_event(PGCOW_REUSED),
		.lost = cowt_read_event(PGCOW_LOST),
		.faults = mine[COW_ITEM_FAULTS],
		.stat_reused = mine[COW_ITEM_REUSED],
		.stat_lost = mine[COW_ITEM_LOST],
		.unshared = mine[COW_ITEM_UNSHARED],
	};
}

static void expect_more(struct kunit *test, const struct fault_counts *before,
			const struct fault_counts *more)
{
	struct fault_counts now = read_fault_counts();

	if (IS_ENABLED(CONFIG_VM_EVENT_COUNTERS)) {
		KUNIT_EXPECT_EQ(test, now.copied - before->copied, more->copied);
		KUNIT_EXPECT_EQ(test, now.reused - before->reused, more->reused);
		KUNIT_EXPECT_EQ(test, now.lost - before->lost, more->lost);
	}
	KUNIT_EXPECT_EQ(test, now.faults - before->faults, more->faults);
	KUNIT_EXPECT_EQ(test, now.stat_reused - before->stat_reused, more->stat_reused);
	KUNIT_EXPECT_EQ(test, now.stat_lost - before->stat_lost, more->stat_lost);
	KUNIT_EXPECT_EQ(test, now.unshared - before->unshared, more->unshared);
}

static void stop_counting(void *unused)
{
	sysctl_cow_stats = 0;
	cow_timing_put();
}

/* Only the faulting page is copied, and faults are timed. */
static void count_alone(struct kunit *test)
{
	static_branch_disable(&cow_precopy_key);
	cow_timing_get();
	sysctl_cow_stats = 1;
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, stop_counting, NULL), 0);
}

static void copied(struct kunit *test)
{
	const struct fault_counts more = { .copied = 1, .faults = 1 };
	struct fault_counts before;

	cowt_share_pages(test, ALL_PAGES);
	count_alone(test);
	before = read_fault_counts();
	cowt_write_fault(test, FAULT);
	expect_more(test, &before, &more);
}

/* The counters of vmstat need nothing to be switched on. */
static void copied_uncounted(struct kunit *test)
{
	const struct fault_counts more = { .copied = 1 };
	struct fault_counts before;

	cowt_share_pages(test, ALL_PAGES);
	static_branch_disable(&cow_precopy_key);
	before = read_fault_counts();
	cowt_write_fault(test, FAULT);
	expect_more(test, &before, &more);
}

static void reused(struct kunit *test)
{
	const struct fault_counts more = { .reused = 1, .stat_reused = 1 };
	struct fixture *f = test->priv;
	struct fault_counts before;

	cowt_share_pages(test, ALL_PAGES);
	cowt_unmap_page_of(test, f->child.mm, FAULT);
	count_alone(test);
	before = read_fault_counts();
	cowt_write_fault(test, FAULT);
	expect_more(test, &before, &more);
}

/* The faults in the last column of /proc/cow_histogram */
static unsigned long faults_timed(struct kunit *test)
{
	char *line, *text = cowt_read_file(test, cow_histogram_show);
	unsigned long nr, sum = 0;

	while ((line = strsep(&text, "\n")))
		if (sscanf(line, "fault %*u %*u %lu", &nr) == 1)
			sum += nr;
	return sum;
}

/* All are counted, and one in COW_REUSE_TIMED is timed. */
static void reused_untimed(struct kunit *test)
{
	const unsigned int nr = NR_PAGES - NR_PAGES % COW_REUSE_TIMED;
	const struct fault_counts more = { .reused = nr, .stat_reused = nr };
	struct fixture *f = test->priv;
	struct fault_counts before;
	unsigned int i;
	int ticks;

	cowt_share_pages(test, ALL_PAGES);
	for (i = 0; i < nr; i++)
		cowt_unmap_page_of(test, f->child.mm, i);
	count_alone(test);
	cow_stats_reset();
	before = read_fault_counts();
	/* A batch of the LRU is a second user; the ticks are of this CPU. */
	lru_add_drain_all();
	migrate_disable();
	ticks = this_cpu_read(cow_reuse_ticks);
	for (i = 0; i < nr; i++)
		cowt_write_fault(test, i);
	/* Whole periods: the next sample is as far away as before. */
	KUNIT_EXPECT_EQ(test, this_cpu_read(cow_reuse_ticks), ticks);
	migrate_enable();
	expect_more(test, &before, &more);
	BUILD_BUG_ON(NR_PAGES < COW_REUSE_TIMED);
	KUNIT_EXPECT_EQ(test, faults_timed(test), nr);
}

static void expect_timed(struct kunit *test, struct page *page, enum fault_flag flags)
{
	struct vm_fault vmf = { .page = page, .flags = flags };
	unsigned int i;

	for (i = 0; i < COW_REUSE_TIMED; i++)
		KUNIT_EXPECT_TRUE(test, cow_times_fault(&vmf, page_folio(page)));
	/* None of them stands for others. */
	KUNIT_EXPECT_FALSE(test, vmf.cow_sampled);
}

/* Only this process has the page, but the fault does more than to make it writable. */
static void timed_in_full(struct kunit *test)
{
	struct page *page = alloc_pages(GFP_KERNEL | __GFP_COMP, 1);

	/* The last page that is mapped of a large folio is copied. */
	KUNIT_ASSERT_NOT_NULL(test, page);
	expect_timed(test, page, FAULT_FLAG_WRITE);
	__free_pages(page, 1);

	page = alloc_page(GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, page);
	expect_timed(test, page, FAULT_FLAG_UNSHARE);
	if (IS_ENABLED(CONFIG_KSM)) {
		page->mapping = (void *)3UL;
		expect_timed(test, page, FAULT_FLAG_WRITE);
		page->mapping = NULL;
	}
	__free_page(page);
}

/* Timing is switched on in the middle of a fault, or it copies where reuse was expected. */
static void half_timed(struct kunit *test)
{
	const struct fault_counts more = {};
	struct vm_fault vmf = {
		.vma = vma_lookup(current->mm, cowt_page_addr(test, 0)),
		.cow_copy_ns = 10,
	};
	struct fault_counts before;

	count_alone(test);
	before = read_fault_counts();
	cow_fault_copied(&vmf, true);
	cow_fault_reused(&vmf);
	expect_more(test, &before, &more);

	vmf.cow_start = COW_UNTIMED;
	cow_copy_begin(&vmf);
	KUNIT_EXPECT_GT(test, vmf.cow_copy_start, COW_UNTIMED);
	KUNIT_EXPECT_EQ(test, vmf.cow_start, vmf.cow_copy_start);
}

static void zero_page(struct kunit *test)
{
	const struct fault_counts more = {};
	struct fault_counts before;

	cowt_fault(test, FAULT, FAULT_FLAG_USER);
	count_alone(test);
	before = read_fault_counts();
	cowt_write_fault(test, FAULT);
	expect_more(test, &before, &more);
}

static void unshared(struct kunit *test)
{
	const struct fault_counts more = { .unshared = 1 };
	struct fault_counts before;

	cowt_share_pages(test, ALL_PAGES);
	count_alone(test);
	before = read_fault_counts();
	cowt_fault(test, FAULT, FAULT_FLAG_UNSHARE);
	expect_more(test, &before, &more);
}

struct loser {
	struct mmu_notifier notifier;
	struct kunit *test;
};

static pte_t toggle_young(pte_t pte)
{
	return pte_young(pte) ? pte_mkold(pte) : pte_mkyoung(pte);
}

/* The copy is made, the page table is not locked yet: now the PTE changes. */
static int lose(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct loser *l = container_of(notifier, struct loser, notifier);

	cowt_change_pte(l->test, FAULT, toggle_young);
	return 0;
}

static const struct mmu_notifier_ops loser_ops = {
	.invalidate_range_start = lose,
};

/*
 * A fault that loses its race changes the counts by @more; the next try copies, and
 * changes them by @copy.
 */
static void test_lost(struct kunit *test, unsigned int flags,
		      const struct fault_counts *more, const struct fault_counts *copy)
{
	struct loser *l = kunit_kzalloc(test, sizeof(*l), GFP_KERNEL);
	struct fault_counts before;
	struct page *page;

	KUNIT_ASSERT_NOT_NULL(test, l);
	l->notifier.ops = &loser_ops;
	l->test = test;
	cowt_share_pages(test, ALL_PAGES);
	page = cowt_read_page(test, current->mm, FAULT);
	count_alone(test);
	before = read_fault_counts();

	KUNIT_ASSERT_EQ(test, mmu_notifier_register(&l->notifier, current->mm), 0);
	cowt_fault(test, FAULT, flags);
	mmu_notifier_unregister(&l->notifier, current->mm);
	KUNIT_EXPECT_PTR_EQ(test, cowt_read_page(test, current->mm, FAULT), page);
	expect_more(test, &before, more);

	before = read_fault_counts();
	cowt_fault(test, FAULT, flags);
	KUNIT_EXPECT_PTR_NE(test, cowt_read_page(test, current->mm, FAULT), page);
	expect_more(test, &before, copy);
}

/* The page that was copied for nothing is counted. */
static void lost(struct kunit *test)
{
	const struct fault_counts more = { .lost = 1, .stat_lost = 1 };
	const struct fault_counts copy = { .copied = 1, .faults = 1 };

	test_lost(test, WRITE_FLAGS, &more, &copy);
}

/* Unsharing is no write, whether it wins or loses. */
static void unshare_lost(struct kunit *test)
{
	const struct fault_counts more = {};
	const struct fault_counts copy = { .unshared = 1 };

	test_lost(test, FAULT_FLAG_USER | FAULT_FLAG_UNSHARE, &more, &copy);
}

/* This thread is a kernel thread that uses a process's memory. */
static void borrowed_mm(struct kunit *test)
{
#ifdef CONFIG_MEMCG
	struct mm_struct *mm = current->mm;
	struct task_struct *owner;

	KUNIT_ASSERT_TRUE(test, current->flags & PF_KTHREAD);
	owner = rcu_replace_pointer(mm->owner, &init_task, true);
	KUNIT_EXPECT_EQ(test, cow_mm_pid(mm), task_tgid_nr(&init_task));
	rcu_assign_pointer(mm->owner, owner);
#else
	KUNIT_EXPECT_EQ(test, cow_mm_pid(current->mm), 0);
#endif
}

/* Its file shows nothing of that process. */
static void borrowed_mm_file(struct kunit *test)
{
	struct seq_file m = { .size = PAGE_SIZE };

	m.buf = kunit_kzalloc(test, m.size, GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, m.buf);
	KUNIT_EXPECT_EQ(test, proc_pid_cow_stats(&m, NULL, NULL, current), 0);
	KUNIT_EXPECT_EQ(test, m.count, 0);
}

/* With pages ahead: one fault that copied, and the others by name. */
static void copied_ahead(struct kunit *test)
{
	const struct fault_counts more = { .copied = 1 };
	struct fault_counts before;
	unsigned long ahead;

	cowt_set_window(5);
	cowt_share_pages(test, ALL_PAGES);
	before = read_fault_counts();
	ahead = cowt_read_event(PGCOW_AHEAD);
	cowt_write_fault(test, FAULT);
	expect_more(test, &before, &more);
	if (IS_ENABLED(CONFIG_VM_EVENT_COUNTERS))
		KUNIT_EXPECT_EQ(test, cowt_read_event(PGCOW_AHEAD) - ahead, 5);
}

static struct kunit_case cow_fault_cases[] = {
	KUNIT_CASE(copied),
	KUNIT_CASE(copied_uncounted),
	KUNIT_CASE(copied_ahead),
	KUNIT_CASE(reused),
	KUNIT_CASE(reused_untimed),
	KUNIT_CASE(timed_in_full),
	KUNIT_CASE(half_timed),
	KUNIT_CASE(zero_page),
	KUNIT_CASE(unshared),
	KUNIT_CASE(lost),
	KUNIT_CASE(unshare_lost),
	KUNIT_CASE(borrowed_mm),
	KUNIT_CASE(borrowed_mm_file),
	{}
};

static struct kunit_suite cow_fault_suite = {
	.name = "cow_fault",
	.init = cowt_init,
	.exit = cowt_exit,
	.suite_exit = cowt_suite_exit,
	.test_cases = cow_fault_cases,
};

kunit_test_suite(cow_fault_suite);

MODULE_DESCRIPTION("Tests of how copy-on-write faults are counted");
MODULE_LICENSE("GPL");
