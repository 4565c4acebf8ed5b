// SPDX-License-Identifier: GPL-2.0
/*
 * Copies and memory cgroups, to the page: how much is charged and to whom, also when
 * somebody else writes to the memory, or reads it from swap; the limits of ancestors; what
 * is reclaimed before anybody is killed; huge pages in memory.stat; cgroups that are removed
 * while their pages are copied. True on any kernel. accounting.c finds out what leaks.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define NR		8192	/* pages that are counted */
#define NR_LIMITED	2048	/* pages of a writer with a limit */
#define LIMIT		(NR_LIMITED / 2)
#define NR_FOLIOS	1024	/* pages that may be copied into large folios */
#define NR_SIBLING	256
#define SLACK		(LIMIT / 4)	/* the process itself, and its page tables */
/* What one CPU has charged ahead, and the kernel's own objects */
#define BATCHES		(COW_CHARGE_BATCH + COW_CHARGE_BATCH / 2)
#define TAG		29
#define NOT_SWAPPED	100	/* status of a child */

static size_t ps;

FIXTURE(cgroup_charges)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char above[COW_CGROUP_DIR];
	char cgroup[2][COW_CGROUP_DIR];	/* in the one above */
};

FIXTURE_VARIANT(cgroup_charges)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(cgroup_charges, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(cgroup_charges, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(cgroup_charges, adaptive) { .ahead = COW_ADAPTIVE };

static const char * const below[] = { "a", "b" };

static const char *make_cgroups(char *above, char cgroup[2][COW_CGROUP_DIR])
{
	const char *reason;
	int i;

	for (i = 0; i < 2; i++)
		cgroup[i][0] = '\0';
	reason = cow_cgroup_make(above, "cow_charges");
	for (i = 0; i < 2 && !reason; i++)
		reason = cow_cgroup_below(cgroup[i], above, below[i]);
	return reason;
}

static void remove_cgroups(char *above, char cgroup[2][COW_CGROUP_DIR])
{
	int i;

	for (i = 0; i < 2; i++)
		cow_cgroup_remove(cgroup[i]);
	cow_cgroup_remove(above);
}

/* cow_setup() and make_cgroups(); undoes both on failure */
static const char *setup(struct cow_settings *saved, int ahead, unsigned int flags,
			 char *above, char cgroup[2][COW_CGROUP_DIR])
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup(saved, ahead, flags);
	if (reason)
		return reason;
	reason = make_cgroups(above, cgroup);
	if (reason) {
		remove_cgroups(above, cgroup);
		cow_restore(saved);
	}
	return reason;
}

FIXTURE_SETUP(cgroup_charges)
{
	const char *reason = setup(&self->saved, variant->ahead, COW_ANY_KERNEL,
				   self->above, self->cgroup);

	if (reason)
		SKIP(return, "%s", reason);
}

FIXTURE_TEARDOWN_PARENT(cgroup_charges)
{
	cow_undo(&self->undo);
	remove_cgroups(self->above, self->cgroup);
	cow_restore(&self->saved);
}

/* What a cgroup says of itself; a key that this kernel lacks is always -1. */
struct counts {
	long current, anon;	/* pages */
	long long pgfault, copied, ahead, lost, reused_ahead;
	long minflt;		/* of the thread that asks */
};

static void read_counts(struct counts *c, const char *dir)
{
	long bytes = -1;

	c->minflt = cow_minflt();
	cow_cgroup_read(dir, "memory.current", &bytes);
	c->current = bytes / (long)ps;
	c->anon = cow_cgroup_stat(dir, "anon") / (long)ps;
	c->pgfault = cow_cgroup_stat(dir, "pgfault");
	c->copied = cow_cgroup_stat(dir, "pgcow_copied");
	c->ahead = cow_cgroup_stat(dir, "pgcow_ahead");
	c->lost = cow_cgroup_stat(dir, "pgcow_lost");
	c->reused_ahead = cow_cgroup_stat(dir, "pgcow_reused_ahead");
}

static void subtract(struct counts *d, const struct counts *from)
{
	d->current -= from->current;
	d->anon -= from->anon;
	d->pgfault -= from->pgfault;
	d->copied -= from->copied;
	d->ahead -= from->ahead;
	d->lost -= from->lost;
	d->reused_ahead -= from->reused_ahead;
	d->minflt -= from->minflt;
}

static bool counts_copies(const char *dir)
{
	return cow_cgroup_stat(dir, "pgcow_copied") >= 0;
}

/* Of two huge pages, while a child shares them, and before and after that */
enum huge_state {
	HUGE_NOT_YET, HUGE_MAPPED, HUGE_SPLIT, HUGE_ALONE, HUGE_UNMAPPED, HUGE_STATES,
};

struct huge_stat {
	long anon, thp;		/* of memory.stat, in pages */
};

/* In memory that processes share */
struct shared {
	const char *cgroup[2];
	char *area;
	struct counts d[2];	/* what the writes added, by cgroup or process */
	long faults;		/* that the writes took */
	long own_faults;	/* of who is written to by another */
	long written;		/* pages, so far */
	long current, swap;	/* pages, of a writer with a limit */
	long other;		/* pages, of a reader in the other cgroup */
	struct huge_stat huge[HUGE_STATES];
	int rounds, stop;
	bool gone;		/* the child, before the writes */
};

static struct shared *new_shared(char cgroup[2][COW_CGROUP_DIR])
{
	struct shared *sh;

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		return NULL;
	sh->cgroup[0] = cgroup[0];
	sh->cgroup[1] = cgroup[1];
	return sh;
}

static char *filled(int nr)
{
	char *area = cow_map(nr * ps, 0);

	if (area)
		cow_fill(area, nr * ps, TAG);
	return area;
}

/* Every first byte has been written to, and nothing else. */
static bool all_written(char *area, int nr)
{
	const size_t word = sizeof(__u64);
	int i;

	for (i = 0; i < nr; i++)
		if (cow_peek(area + i * ps) != 'w' ||
		    cow_check(area + i * ps + word, ps - word, TAG) != -1)
			return false;
	return true;
}

/*
 * To the page
 */

static int counts_exactly(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	struct counts before;
	struct cow_child c;
	char *area, *page;
	long minflt;
	int i;

	(void)self;
	/* One CPU's batches */
	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	area = filled(NR);
	page = cow_map(ps, 0);
	if (!area || !page)
		return 2;
	cow_touch(page, 1);
	if (cow_child_idle(&c) || (sh->gone && cow_child_end(&c)) ||
	    cow_unshare_rest(area, NR * ps))
		return 3;
	/* The first time it faults for what it needs itself. */
	for (i = 0; i < 2; i++) {
		cow_cgroup_add_up(sh->cgroup[0], page);
		read_counts(&before, sh->cgroup[0]);
	}
	minflt = cow_minflt();
	for (i = 0; i < NR; i++)
		cow_touch(area + i * ps, 'w');
	sh->faults = cow_minflt() - minflt;
	cow_cgroup_add_up(sh->cgroup[0], page);
	read_counts(&sh->d[0], sh->cgroup[0]);
	subtract(&sh->d[0], &before);
	if (!all_written(area, NR))
		return 4;
	return !sh->gone && cow_child_end(&c) ? 5 : 0;
}

/* The shared pages stay, and there is one more for each that was written. */
TEST_F_TIMEOUT(cgroup_charges, exactly_as_many, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;

	ASSERT_NE(NULL, sh);
	ASSERT_EQ(0, cow_child_fork(&c, counts_exactly, sh));
	ASSERT_EQ(0, cow_child_wait(&c));
	EXPECT_EQ(NR, sh->d[0].anon);
	EXPECT_GE(NR + BATCHES, sh->d[0].current);
	EXPECT_LE(NR - BATCHES, sh->d[0].current);
	EXPECT_EQ(sh->d[0].minflt, sh->d[0].pgfault);
	/* Another kernel may copy more than the faulting page. */
	EXPECT_GE(NR, sh->faults);
	if (!counts_copies(self->cgroup[0]))
		return;
	if (!variant->ahead)
		EXPECT_EQ(NR, sh->faults);
	EXPECT_EQ(sh->faults, sh->d[0].copied);
	EXPECT_EQ(NR, sh->d[0].copied + sh->d[0].ahead);
	EXPECT_EQ(0, sh->d[0].lost);
}

/*
 * With the child gone, no page comes or goes; each was made writable by a fault of its own,
 * or ahead of one.
 */
TEST_F_TIMEOUT(cgroup_charges, reused_ahead, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;

	ASSERT_NE(NULL, sh);
	sh->gone = true;
	ASSERT_EQ(0, cow_child_fork(&c, counts_exactly, sh));
	ASSERT_EQ(0, cow_child_wait(&c));
	EXPECT_EQ(0, sh->d[0].anon);
	EXPECT_EQ(sh->d[0].minflt, sh->d[0].pgfault);
	EXPECT_GE(NR, sh->faults);
	if (cow_cgroup_stat(self->cgroup[0], "pgcow_reused_ahead") < 0)
		return;
	EXPECT_EQ(0, sh->d[0].copied + sh->d[0].ahead + sh->d[0].lost);
	EXPECT_EQ(NR, sh->faults + sh->d[0].reused_ahead);
}

/* How often memory.current changes while pages are written, at best */
static int writes_in_batches(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	struct cow_child c;
	char *area;
	int i, j;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	sh->rounds = NR_LIMITED;
	/* Whoever else is charged on this CPU may take its batch away. */
	for (i = 0; i < 5; i++) {
		long before, now;
		int changes = 0;

		area = filled(NR_LIMITED);
		if (!area || cow_child_idle(&c) || cow_unshare_rest(area, NR_LIMITED * ps) ||
		    cow_cgroup_read(sh->cgroup[0], "memory.current", &before))
			return 2;
		for (j = 0; j < NR_LIMITED; j++, before = now) {
			cow_touch(area + j * ps, 'w');
			if (cow_cgroup_read(sh->cgroup[0], "memory.current", &now))
				return 3;
			changes += now != before;
		}
		if (!all_written(area, NR_LIMITED) || cow_child_end(&c))
			return 4;
		cow_unmap(area, NR_LIMITED * ps);
		if (changes < sh->rounds)
			sh->rounds = changes;
	}
	return 0;
}

/* All levels up to the root are charged for one batch, not for each fault. */
TEST_F_TIMEOUT(cgroup_charges, in_batches, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;

	ASSERT_NE(NULL, sh);
	ASSERT_EQ(0, cow_child_fork(&c, writes_in_batches, sh));
	ASSERT_EQ(0, cow_child_wait(&c));
	/* With KASAN, what reading the file takes is charged as often again. */
	EXPECT_GE(3 * NR_LIMITED / COW_CHARGE_BATCH, sh->rounds);
}

/*
 * A cgroup gets its queue of folios to be split with its first large folio.
 */

/* With folios in the second cgroup, written: how many large pages; current: before */
static int writes_to_folios(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	struct cow_child c;
	char *area, *p;
	int i;

	(void)self;
	/* Single pages, charged elsewhere */
	area = cow_map(NR_FOLIOS * ps, cow_pmd_size());
	if (!area)
		return 1;
	cow_fill(area, NR_FOLIOS * ps, TAG);
	if (madvise(area, NR_FOLIOS * ps, MADV_HUGEPAGE) ||
	    cow_cgroup_enter(sh->cgroup[sh->rounds]))
		return 2;
	if (sh->rounds) {
		p = cow_map(NR_FOLIOS * ps, cow_pmd_size());
		if (!p || madvise(p, NR_FOLIOS * ps, MADV_HUGEPAGE))
			return 3;
		cow_fill(p, NR_FOLIOS * ps, TAG);
		sh->current = cow_large_pages(p, NR_FOLIOS);
		cow_unmap(p, NR_FOLIOS * ps);
	}
	if (cow_child_idle(&c))
		return 4;
	for (i = 0; i < NR_FOLIOS; i++)
		cow_touch(area + i * ps, 'w');
	sh->written = cow_large_pages(area, NR_FOLIOS);
	if (!all_written(area, NR_FOLIOS))
		return 5;
	for (i = 0; i < NR_FOLIOS; i += 4)
		if (madvise(area + i * ps, ps, MADV_DONTNEED))
			return 6;
	for (i = 0; i < NR_FOLIOS; i++)
		if (cow_peek(area + i * ps) != (i % 4 ? 'w' : 0))
			return 7;
	return cow_child_end(&c) ? 8 : 0;
}

TEST_F_TIMEOUT(cgroup_charges, folios_are_split, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	const char *reason = cow_allow_folios(&self->undo);
	struct cow_child c;
	long left;

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_NE(NULL, sh);
	for (sh->rounds = 0; sh->rounds < 2; sh->rounds++) {
		ASSERT_EQ(0, cow_child_fork(&c, writes_to_folios, sh));
		ASSERT_EQ(0, cow_child_wait(&c));
	}
	/* Folios that the first cgroup has no queue for are not left charged to it. */
	ASSERT_EQ(0, cow_cgroup_read(self->cgroup[0], "memory.current", &left));
	EXPECT_GT((NR_FOLIOS / 2 + COW_CHARGE_BATCH * cow_nr_cpus()) * (long)ps, left);
	if (variant->ahead != COW_ADAPTIVE || !cow_hw_dirty())
		return;
	/* If there is memory in blocks, copies are in large folios. */
	if (sh->current == NR_FOLIOS)
		EXPECT_LT(0, sh->written);
}

/*
 * Somebody else writes to the memory
 */

/* In the second cgroup. Its memory is written to from the first one. */
static int is_written_to(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	char *page;

	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[1]))
		return 1;
	page = cow_map(ps, 0);
	if (!page)
		return 2;
	cow_touch(page, 1);
	if (cow_unshare_rest(sh->area, NR_LIMITED * ps))
		return 3;
	/* Each time it is asked to */
	do {
		cow_cgroup_add_up(sh->cgroup[1], page);
		sh->own_faults = cow_minflt();
		if (cow_child_send(self, 1))
			return 4;
	} while (cow_child_recv(self) == 1);
	return all_written(sh->area, NR_LIMITED) ? 0 : 5;
}

static int writes_to_another(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	struct iovec local = { .iov_base = "w", .iov_len = 1 };
	struct iovec remote = { .iov_len = 1 };
	struct counts before[2];
	struct cow_child c;
	long own, minflt;
	char *page;
	int i;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	sh->area = filled(NR_LIMITED);
	page = cow_map(ps, 0);
	if (!sh->area || !page)
		return 2;
	cow_touch(page, 1);
	if (cow_child_fork(&c, is_written_to, sh) || cow_child_recv(&c) != 1 ||
	    cow_unshare_rest(sh->area, NR_LIMITED * ps))
		return 3;
	cow_cgroup_add_up(sh->cgroup[0], page);
	for (i = 0; i < 2; i++)
		read_counts(&before[i], sh->cgroup[i]);
	if (cow_child_send(&c, 1) || cow_child_recv(&c) != 1)
		return 4;
	cow_cgroup_add_up(sh->cgroup[0], page);
	for (i = 0; i < 2; i++)
		read_counts(&before[i], sh->cgroup[i]);

	own = sh->own_faults;
	minflt = cow_minflt();
	for (i = 0; i < NR_LIMITED; i++) {
		remote.iov_base = sh->area + i * ps;
		if (process_vm_writev(c.pid, &local, 1, &remote, 1, 0) != 1)
			return 5;
	}
	sh->faults = cow_minflt() - minflt;

	if (cow_child_send(&c, 1) || cow_child_recv(&c) != 1)
		return 6;
	sh->own_faults -= own;
	cow_cgroup_add_up(sh->cgroup[0], page);
	for (i = 0; i < 2; i++) {
		read_counts(&sh->d[i], sh->cgroup[i]);
		subtract(&sh->d[i], &before[i]);
	}
	if (cow_check(sh->area, NR_LIMITED * ps, TAG) != -1)
		return 7;
	return cow_child_end(&c) ? 8 : 0;
}

/* The owner of the address space is charged, not who writes to it. */
TEST_F_TIMEOUT(cgroup_charges, written_from_outside, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;
	int status, err;

	ASSERT_NE(NULL, sh);
	err = cow_try_child_memory();
	if (err)
		SKIP(return, "writing to a child's memory: %s", strerror(err));
	ASSERT_EQ(0, cow_child_fork(&c, writes_to_another, sh));
	status = cow_child_wait(&c);
	ASSERT_EQ(0, status);
	/* Nothing is copied ahead for somebody else. */
	EXPECT_EQ(NR_LIMITED, sh->faults);
	EXPECT_EQ(0, sh->d[0].anon);
	EXPECT_EQ(NR_LIMITED, sh->d[1].anon);
	EXPECT_EQ(sh->own_faults + sh->faults, sh->d[1].pgfault);
	EXPECT_GE(BATCHES, sh->d[0].current);
	EXPECT_GE(NR_LIMITED + BATCHES, sh->d[1].current);
	EXPECT_LE(NR_LIMITED - BATCHES, sh->d[1].current);
	if (!counts_copies(self->cgroup[0]))
		return;
	EXPECT_EQ(0, sh->d[0].copied);
	EXPECT_EQ(NR_LIMITED, sh->d[1].copied);
}

/*
 * Limits
 */

static int writes_with_limit(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	int i;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	for (i = 0; i < NR_LIMITED; i++) {
		cow_touch(sh->area + i * ps, 'w');
		sh->written = i + 1;
	}
	if (cow_cgroup_read(sh->cgroup[0], "memory.current", &sh->current) ||
	    cow_cgroup_read(sh->cgroup[0], "memory.swap.current", &sh->swap))
		return 2;
	sh->current /= (long)ps;
	sh->swap /= (long)ps;
	return all_written(sh->area, NR_LIMITED) ? 0 : 3;
}

/* Has the pages without a limit, and returns how the writer ended. */
static int owns_them(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	struct cow_child c;
	int status;

	(void)self;
	sh->area = filled(NR_LIMITED);
	if (!sh->area || cow_child_fork(&c, writes_with_limit, sh))
		return 101;
	status = cow_child_wait(&c);
	if (cow_check(sh->area, NR_LIMITED * ps, TAG) != -1)
		return 102;
	return status == 256 + SIGKILL ? 100 : status;
}

static int set_limit(const char *dir, long pages)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", pages * (long)ps);
	return cow_cgroup_write(dir, "memory.max", text);
}

static int no_swap(const char *dir)
{
	int ret = cow_cgroup_write(dir, "memory.swap.max", "0");

	/* There is no such file without swap. */
	return ret == -ENOENT ? 0 : ret;
}

static int sits_in_second(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;

	if (cow_cgroup_enter(sh->cgroup[1]) || !filled(NR_SIBLING))
		return 1;
	if (cow_child_send(self, 1))
		return 2;
	return cow_child_recv(self) == -EPIPE ? 0 : 3;
}

/* The cgroup above has a limit, which its members share. */
TEST_F_TIMEOUT(cgroup_charges, limit_of_an_ancestor, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c, sibling;
	long extra;

	ASSERT_NE(NULL, sh);
	/* What the kernel needs for the two cgroups below, on each CPU, is charged here. */
	ASSERT_EQ(0, cow_cgroup_read(self->above, "memory.current", &extra));
	extra /= (long)ps;
	ASSERT_EQ(0, set_limit(self->above, LIMIT + extra));
	ASSERT_EQ(0, no_swap(self->above));
	ASSERT_EQ(0, cow_child_fork(&sibling, sits_in_second, sh));
	ASSERT_EQ(1, cow_child_recv(&sibling));
	ASSERT_EQ(0, cow_child_fork(&c, owns_them, sh));
	EXPECT_EQ(100, cow_child_wait(&c)) {
		TH_LOG("the writer was not killed");
	}
	EXPECT_EQ(0, cow_child_end(&sibling));
	EXPECT_EQ(1, cow_cgroup_event(self->above, "oom_kill"));
	EXPECT_LE(1, cow_cgroup_event(self->above, "max"));
	EXPECT_EQ(0, cow_cgroup_event(self->cgroup[0], "max"));
	/* Some of the extra pages may be a stock of charges, and so be there for them. */
	EXPECT_GE(LIMIT + extra - NR_SIBLING, sh->written);
	EXPECT_LE(LIMIT - NR_SIBLING - SLACK, sh->written);
}

/* Copies at the limit push other pages out to swap, and nobody is killed. */
TEST_F_TIMEOUT(cgroup_charges, reclaimed_at_the_limit, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;

	ASSERT_NE(NULL, sh);
	if (!cow_can_page_out(NR_LIMITED))
		SKIP(return, "no swap space");
	ASSERT_EQ(0, set_limit(self->cgroup[0], LIMIT));
	ASSERT_EQ(0, cow_child_fork(&c, owns_them, sh));
	EXPECT_EQ(0, cow_child_wait(&c));
	EXPECT_EQ(NR_LIMITED, sh->written);
	EXPECT_EQ(0, cow_cgroup_event(self->cgroup[0], "oom_kill"));
	EXPECT_LE(1, cow_cgroup_event(self->cgroup[0], "max"));
	EXPECT_GE(LIMIT, sh->current);
	EXPECT_LE(NR_LIMITED - LIMIT, sh->swap);
}

static int reads_from_second(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;

	if (cow_cgroup_enter(sh->cgroup[1]) || cow_check(sh->area, NR_LIMITED * ps, TAG) != -1)
		return 1;
	return cow_child_stay(self);
}

/* Pages that another one brings back from swap: how many are charged to each cgroup? */
static int swaps_out(struct cow_child *self, void *arg)
{
	struct counts before[2], after[2];
	struct shared *sh = arg;
	struct cow_child c;
	int i;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	sh->area = filled(NR_LIMITED);
	if (!sh->area)
		return 1;
	if (!cow_page_out(sh->area, NR_LIMITED))
		return NOT_SWAPPED;
	for (i = 0; i < 2; i++)
		read_counts(&before[i], sh->cgroup[i]);
	if (cow_child_fork(&c, reads_from_second, sh) || cow_child_recv(&c) != 1)
		return 2;
	for (i = 0; i < 2; i++) {
		read_counts(&after[i], sh->cgroup[i]);
		subtract(&after[i], &before[i]);
	}
	sh->current = after[0].current;
	sh->other = after[1].current;
	return cow_child_end(&c) ? 3 : 0;
}

/* They stay the owner's, whoever reads them. */
TEST_F_TIMEOUT(cgroup_charges, swapped_in_by_another, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;
	int status;

	ASSERT_NE(NULL, sh);
	ASSERT_EQ(0, cow_child_fork(&c, swaps_out, sh));
	status = cow_child_wait(&c);
	if (status == NOT_SWAPPED)
		SKIP(return, "the pages do not go to swap");
	EXPECT_EQ(0, status);
	EXPECT_LE(NR_LIMITED - SLACK, sh->current);
	EXPECT_GE(SLACK, sh->other);
}

/*
 * Huge pages in memory.stat: each page counts once, whether a PMD maps it or a PTE.
 */

static void read_huge(struct shared *sh, enum huge_state state, char *page)
{
	cow_cgroup_add_up(sh->cgroup[0], page);
	sh->huge[state].anon = cow_cgroup_stat(sh->cgroup[0], "anon") / (long)ps;
	sh->huge[state].thp = cow_cgroup_stat(sh->cgroup[0], "anon_thp") / (long)ps;
}

static int just_stays(struct cow_child *self, void *arg)
{
	(void)arg;
	return cow_child_stay(self);
}

static int splits_huge(struct cow_child *self, void *arg)
{
	size_t len = 2 * cow_pmd_size();
	struct cow_undo undo = {};
	struct shared *sh = arg;
	char *page, *area;
	struct cow_child c;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	page = filled(1);
	if (!page)
		return 1;
	read_huge(sh, HUGE_NOT_YET, page);
	/* They are allowed already: there is nothing to undo. */
	if (cow_map_huge(&undo, &area, len, TAG))
		return 2;
	read_huge(sh, HUGE_MAPPED, page);
	if (cow_child_fork(&c, just_stays, NULL) || cow_child_recv(&c) != 1)
		return 3;
	cow_touch(area, 'w');
	read_huge(sh, HUGE_SPLIT, page);
	if (cow_child_end(&c))
		return 4;
	read_huge(sh, HUGE_ALONE, page);
	cow_unmap(area, len);
	read_huge(sh, HUGE_UNMAPPED, page);
	return 0;
}

TEST_F_TIMEOUT(cgroup_charges, huge_pages_in_stat, TEST_TIMEOUT)
{
	const int nr = cow_pmd_size() / ps, slack = nr / 4;
	/* Huge pages: all, and those that a PMD maps */
	static const struct huge_stat want[HUGE_STATES] = {
		[HUGE_MAPPED] = { 2, 2 },
		/* The child still has the one whose mapping is split, as a whole. */
		[HUGE_SPLIT] = { 2, 2 },
		[HUGE_ALONE] = { 2, 1 },
	};
	struct shared *sh = new_shared(self->cgroup);
	const struct huge_stat *was;
	const char *reason;
	struct cow_child c;
	char *area;
	int i;

	ASSERT_NE(NULL, sh);
	reason = cow_map_huge(&self->undo, &area, 2 * cow_pmd_size(), TAG);
	if (reason)
		SKIP(return, "%s", reason);
	cow_unmap(area, 2 * cow_pmd_size());
	ASSERT_EQ(0, cow_child_fork(&c, splits_huge, sh));
	ASSERT_EQ(0, cow_child_wait(&c));
	was = &sh->huge[HUGE_NOT_YET];
	for (i = HUGE_MAPPED; i < HUGE_STATES; i++) {
		EXPECT_GE(slack, labs(sh->huge[i].anon - was->anon - want[i].anon * nr))
			TH_LOG("state %d: anon has %ld pages more", i,
			       sh->huge[i].anon - was->anon);
		EXPECT_GE(slack, labs(sh->huge[i].thp - was->thp - want[i].thp * nr))
			TH_LOG("state %d: anon_thp has %ld pages more", i,
			       sh->huge[i].thp - was->thp);
	}
}

/*
 * Cgroups that come and go
 */

/* Removed, and nothing refers to it any more: no page and no leaked reference */
static long dying(const char *above)
{
	return cow_cgroup_key(above, "cgroup.stat", "nr_dying_descendants");
}

/* Pages on their way to the LRU keep their cgroup: there is a batch on each CPU. */
static void drain_all_cpus(void)
{
	cpu_set_t old, set;
	int cpu;

	if (sched_getaffinity(0, sizeof(old), &old))
		return;
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &old))
			continue;
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (!sched_setaffinity(0, sizeof(set), &set))
			cow_drain_lru();
	}
	sched_setaffinity(0, sizeof(old), &old);
}

/* It takes a worker and a grace period or two; one that leaked never goes. */
static void expect_gone(struct __test_metadata *_metadata, const char *above)
{
	int i;

	for (i = 0; i < 600 && dying(above); i++) {
		drain_all_cpus();
		usleep(100000);
	}
	EXPECT_EQ(0, dying(above)) {
		TH_LOG("removed, but still referred to");
	}
}

/* All processes. There may be a new one each time that we look. */
static int move_all(const char *from, const char *to)
{
	char path[COW_CGROUP_PATH], pids[4096], *pid, *save;
	int try;

	snprintf(path, sizeof(path), "%s/cgroup.procs", from);
	for (try = 0; try < 30000; try++) {
		if (cow_read_file(path, pids, sizeof(pids)) < 0)
			return -EIO;
		pid = strtok_r(pids, "\n", &save);
		if (!pid)
			return 0;
		/* One that is exiting stays until it has run. */
		if (try)
			usleep(1000);
		/* It may have ended. The file says 0 then, which would move us. */
		for (; pid; pid = strtok_r(NULL, "\n", &save))
			if (strcmp(pid, "0"))
				cow_cgroup_write(to, "cgroup.procs", pid);
	}
	return -EBUSY;
}

/* What is left in it must be exiting. */
static int remove_left(const char *dir)
{
	int i;

	for (i = 0; i < 30000; i++) {
		if (!rmdir(dir))
			return 0;
		if (errno != EBUSY)
			return -errno;
		usleep(1000);
	}
	return -EBUSY;
}

/* Shares its pages in one cgroup, and copies them when it is in the other. */
static int moves_and_writes(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	struct counts before;
	struct cow_child c;
	char *area;
	int i;

	if (cow_pin_cpu() || cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	area = filled(NR_LIMITED);
	if (!area || cow_child_idle(&c) || cow_child_send(self, 1))
		return 2;
	/* The parent has moved us and removed the old cgroup. */
	if (cow_child_recv(self) != 1)
		return 3;
	read_counts(&before, sh->cgroup[1]);
	for (i = 0; i < NR_LIMITED; i++)
		cow_touch(area + i * ps, 'w');
	read_counts(&sh->d[1], sh->cgroup[1]);
	subtract(&sh->d[1], &before);
	if (!all_written(area, NR_LIMITED))
		return 4;
	return cow_child_end(&c) ? 5 : 0;
}

TEST_F_TIMEOUT(cgroup_charges, removed_before_the_copy, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;

	ASSERT_NE(NULL, sh);
	ASSERT_EQ(0, cow_child_fork(&c, moves_and_writes, sh));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, move_all(self->cgroup[0], self->cgroup[1]));
	ASSERT_EQ(0, remove_left(self->cgroup[0]));
	ASSERT_EQ(0, cow_child_send(&c, 1));
	EXPECT_EQ(0, cow_child_wait(&c));
	EXPECT_GE(NR_LIMITED + BATCHES, sh->d[1].current);
	EXPECT_LE(NR_LIMITED - BATCHES, sh->d[1].current);
	ASSERT_EQ(0, remove_left(self->cgroup[1]));
	expect_gone(_metadata, self->above);
}

#define NR_ROUND	64	/* pages that are written at a time */
#define MOVES		64

static int writes_all_the_time(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	struct cow_child c;
	char *area;
	int i;

	if (cow_cgroup_enter(sh->cgroup[0]) || cow_child_send(self, 1))
		return 1;
	while (!__atomic_load_n(&sh->stop, __ATOMIC_RELAXED)) {
		area = filled(NR_ROUND);
		if (!area || cow_child_idle(&c))
			return 2;
		for (i = 0; i < NR_ROUND; i++)
			cow_touch(area + i * ps, 'w');
		if (!all_written(area, NR_ROUND) || cow_child_end(&c))
			return 3;
		cow_unmap(area, NR_ROUND * ps);
		__atomic_add_fetch(&sh->rounds, 1, __ATOMIC_RELAXED);
	}
	return 0;
}

/* From one cgroup to another in the middle of it, each time into a new one */
TEST_F_TIMEOUT(cgroup_charges, moved_while_copying, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;
	int i, from = 0;

	ASSERT_NE(NULL, sh);
	ASSERT_EQ(0, cow_child_fork(&c, writes_all_the_time, sh));
	ASSERT_EQ(1, cow_child_recv(&c));
	for (i = 0; i < MOVES; i++, from = !from) {
		/* A child may be forked behind the back of the first look. */
		do {
			ASSERT_EQ(0, move_all(self->cgroup[from],
					      self->cgroup[!from]));
		} while (rmdir(self->cgroup[from]) && errno == EBUSY);
		ASSERT_NE(0, access(self->cgroup[from], F_OK));
		ASSERT_EQ(0, mkdir(self->cgroup[from], 0755));
		ASSERT_FALSE(cow_task_ended(c.pid));
	}
	__atomic_store_n(&sh->stop, 1, __ATOMIC_RELAXED);
	EXPECT_EQ(0, cow_child_wait(&c));
	EXPECT_LT(0, sh->rounds);
	for (i = 0; i < 2; i++)
		ASSERT_EQ(0, remove_left(self->cgroup[i]));
	expect_gone(_metadata, self->above);
}

/*
 * The numbers of this series
 */

#define RACES		500

FIXTURE(cgroup_events)
{
	struct cow_settings saved;
	char above[COW_CGROUP_DIR];
	char cgroup[2][COW_CGROUP_DIR];
};

FIXTURE_VARIANT(cgroup_events)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(cgroup_events, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(cgroup_events, ahead_15) { .ahead = 15 };

FIXTURE_SETUP(cgroup_events)
{
	const char *reason = setup(&self->saved, variant->ahead, COW_WANT_STATS,
				   self->above, self->cgroup);

	if (reason)
		SKIP(return, "%s", reason);
}

FIXTURE_TEARDOWN_PARENT(cgroup_events)
{
	remove_cgroups(self->above, self->cgroup);
	cow_restore(&self->saved);
}

/* What the process has counted for itself is what its cgroup has counted. */
static int counts_lost(struct cow_child *self, void *arg)
{
	static struct cow_stats before, after, own;
	struct shared *sh = arg;
	struct counts was, is;
	struct cow_child c;
	char *page, *area;
	int i;

	(void)self;
	if (cow_cgroup_enter(sh->cgroup[0]))
		return 1;
	page = cow_map(ps, 0);
	cow_touch(page, 1);
	for (sh->rounds = 0; sh->rounds < RACES && !sh->d[0].lost; sh->rounds++) {
		area = filled(NR_LIMITED);
		if (!area || cow_child_idle(&c))
			return 2;
		for (i = 0; i < 2; i++) {
			/* Only to write to its page before that counts. */
			if (cow_stats_read_pid(&after, 0))
				return 3;
			cow_cgroup_add_up(sh->cgroup[0], page);
			if (cow_stats_read_pid(&before, 0))
				return 3;
			read_counts(&was, sh->cgroup[0]);
			if (cow_stats_read_pid(&before, 0))
				return 3;
		}
		if (cow_write_in_step(area, NR_LIMITED, false))
			return 4;
		cow_cgroup_add_up(sh->cgroup[0], page);
		if (cow_stats_read_pid(&after, 0))
			return 5;
		read_counts(&is, sh->cgroup[0]);
		cow_stats_delta(&own, &before, &after);
		subtract(&is, &was);
		sh->d[0] = is;
		sh->d[1].lost = own.v[COW_LOST];
		sh->d[1].copied = own.v[COW_FAULTS];
		sh->d[1].ahead = own.v[COW_SUCCESS];
		/* The test says what differs. */
		if (sh->d[0].lost != sh->d[1].lost ||
		    sh->d[0].copied != sh->d[1].copied ||
		    sh->d[0].ahead != sh->d[1].ahead)
			return 0;
		if (!all_written(area, NR_LIMITED) || cow_child_end(&c))
			return 6;
		cow_unmap(area, NR_LIMITED * ps);
	}
	return 0;
}

TEST_F_TIMEOUT(cgroup_events, lost_races, TEST_TIMEOUT)
{
	struct shared *sh = new_shared(self->cgroup);
	struct cow_child c;

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	ASSERT_NE(NULL, sh);
	ASSERT_LE(0, cow_cgroup_stat(self->cgroup[0], "pgcow_copied"));
	ASSERT_LE(0, cow_cgroup_stat(self->cgroup[0], "pgcow_lost"));
	ASSERT_EQ(0, cow_child_fork(&c, counts_lost, sh));
	ASSERT_EQ(0, cow_child_wait(&c));
	/* Not EXPECT: a skip would be all that is left of a failure. */
	ASSERT_EQ(sh->d[1].lost, sh->d[0].lost);
	ASSERT_EQ(sh->d[1].copied, sh->d[0].copied);
	ASSERT_EQ(sh->d[1].ahead, sh->d[0].ahead);
	if (!sh->d[0].lost)
		SKIP(return, "no thread was too late in %d rounds", sh->rounds);
}

TEST_HARNESS_MAIN
