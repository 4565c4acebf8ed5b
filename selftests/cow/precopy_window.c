// SPDX-License-Identifier: GPL-2.0
/*
 * What vm.cow_precopy_pages=N does: a write fault that copies a fork-shared
 * page copies up to N pages above it as well. How many faults a program
 * takes, which pages get a new frame and what each counter says follows
 * exactly from what is in the memory; simulate() does the arithmetic, and each
 * test lays out some memory, writes to it and compares.
 *
 * With vm.cow_precopy_pages=0 the window adapts, and how large it is depends on
 * rules that are not repeated here (adaptive.c tests what comes of them). Next
 * to a long run of written pages there is one for certain. So these variants
 * write such a run first, below the pages of the layout or, in the variant
 * adaptive_down, above them, with the whole layout reversed. Then the same
 * pages must be left alone, and every page that was copied ahead or made
 * writable ahead must have saved a fault as soon as it is written to.
 *
 * The environment variable COW_SEED repeats the random layouts of a run.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "../../../../mm/gup_test.h"

#define MAX_NR		512
#define TAG		7
#define GUP_TEST	"/sys/kernel/debug/gup_test"

/* A pin counts as 1024 references; who has more may be pinned. */
#define AS_IF_PINNED	(1024 + 64)

/* What a page is when the writing begins */
enum kind {
	SHARED,		/* anonymous, the child has it too: to be copied */
	HOLE,		/* MADV_DONTNEED */
	WRITTEN,	/* already our own, writable */
	ZERO,		/* the zero page */
	ALONE,		/* the child has unmapped it: to be reused */
	UNSHARED,	/* exclusive, but read-only: was pinned for reading */
	PINNED,		/* UNSHARED and still pinned */
	REFERENCED,	/* fork-shared, and a pipe has a reference */
	SPLICED,	/* fork-shared, with so many references as if pinned */
	MERGED,		/* KSM */
	LAZYFREE,	/* MADV_FREE, then forked */
	SWAPPED,
	FILEPAGE,	/* of a private file mapping */
	POISONED,	/* MADV_HWPOISON: any access is a SIGBUS */
	NR_KINDS
};

struct layout {
	int nr;			/* pages */
	int offset;		/* of the first one in its page table */
	enum kind kind[MAX_NR];
	int order[MAX_NR];	/* which to write, and in which order */
	int nr_order;
	int cut;		/* a second VMA begins here, if not 0 */
	bool down;		/* all of it is reversed: the second one ends here */
	enum cow_key refuse;	/* a whole window is refused, if not 0 */
	/* Called before and after the fork; 0 or a negative errno */
	int (*before_fork)(char *p, const struct layout *l);
	int (*after_fork)(char *p, const struct layout *l);
};

struct expected {
	struct cow_stats d;
	long minflt;
	bool moved[MAX_NR];	/* has another frame afterwards */
	bool written[MAX_NR];
};

static size_t ps, ptrs_per_pmd;
/* vm.cow_stats: without it, and no root to set it, faults are not counted. */
static long counting;
static int gup_fd = -1;
static int splice_pipe[2];
static struct layout lay;
static struct expected want;
static struct cow_measure got;
static __u64 seed;
static bool turn;	/* the variant's: reverse each layout */

/*
 * The arithmetic
 */

static const enum cow_key skip_of[NR_KINDS] = {
	[HOLE]		= COW_SKIP_NOTPRESENT,
	[WRITTEN]	= COW_SKIP_WRITABLE,
	[ZERO]		= COW_SKIP_NOTANON,
	[ALONE]		= COW_SKIP_EXCLUSIVE,
	[UNSHARED]	= COW_SKIP_EXCLUSIVE,
	/* or exclusive: both are true, see compare() */
	[PINNED]	= COW_SKIP_PINNED,
	[REFERENCED]	= COW_SKIP_PINNED,
	[SPLICED]	= COW_SKIP_PINNED,
	[MERGED]	= COW_SKIP_KSM,
	[LAZYFREE]	= COW_SKIP_SPECIAL,
	[SWAPPED]	= COW_SKIP_NOTPRESENT,
	[FILEPAGE]	= COW_SKIP_NOTANON,
	[POISONED]	= COW_SKIP_NOTPRESENT,
};

static void skip(struct expected *e, enum cow_key why)
{
	e->d.v[COW_ATTEMPTS]++;
	e->d.v[why]++;
	e->d.skips++;
}

/* Page i has been copied: what about the ones above it? */
static void simulate_window(struct expected *e, const struct layout *l,
			    enum kind *kind, int i, int ahead)
{
	int vma_end = l->cut && i < l->cut ? l->cut : l->nr;
	int k, j;

	if (!ahead)
		return;
	if (l->refuse) {
		skip(e, l->refuse);
		return;
	}
	for (k = 1; k <= ahead; k++) {
		j = i + k;
		if (j >= vma_end) {
			skip(e, COW_SKIP_VMA);
			return;
		}
		if ((l->offset + j) / ptrs_per_pmd !=
		    (l->offset + i) / ptrs_per_pmd) {
			skip(e, COW_SKIP_PMD);
			return;
		}
		if (kind[j] != SHARED) {
			skip(e, skip_of[kind[j]]);
			continue;
		}
		e->d.v[COW_ATTEMPTS]++;
		e->d.v[COW_SUCCESS]++;
		e->moved[j] = true;
		kind[j] = WRITTEN;
	}
}

static void simulate(struct expected *e, const struct layout *l, int ahead)
{
	static enum kind kind[MAX_NR];
	int n, i;

	memset(e, 0, sizeof(*e));
	memcpy(kind, l->kind, sizeof(kind));
	for (n = 0; n < l->nr_order; n++) {
		i = l->order[n];
		e->written[i] = true;
		switch (kind[i]) {
		case WRITTEN:
			continue;
		case HOLE:
		case ZERO:
			/* a new page, but nothing to copy from */
			e->moved[i] = true;
			break;
		case SWAPPED:	/* a major fault or a minor one */
		case POISONED:
			/* not written to by any test */
			break;
		case ALONE:
		case UNSHARED:
		case PINNED:
			e->d.v[COW_REUSED]++;
			break;
		case SHARED:
		case REFERENCED:
		case SPLICED:
		case LAZYFREE:
			e->d.v[COW_FAULTS]++;
			e->moved[i] = true;
			simulate_window(e, l, kind, i, ahead);
			break;
		case MERGED:
		case FILEPAGE:
			e->d.v[COW_FAULTS]++;
			e->moved[i] = true;
			break;
		default:
			break;
		}
		e->minflt++;
		kind[i] = WRITTEN;
	}
}

/*
 * Making each kind of page
 */

/* The child: unmaps the pages of kind ALONE, and checks that the others do not change. */
static int child(struct cow_child *self, void *arg)
{
	char *p = arg;
	int i;

	for (i = 0; i < lay.nr; i++)
		if (lay.kind[i] == ALONE && munmap(p + i * ps, ps))
			return 2;
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 3;
	for (i = 0; i < lay.nr; i++) {
		switch (lay.kind[i]) {
		case ALONE:	/* not there */
		case LAZYFREE:	/* may be zeroed at any time */
		case MERGED:	/* the same in all, see before_fork() */
		case POISONED:
			continue;
		default:
			if (cow_check(p + i * ps, ps, TAG) != -1)
				return 4;
		}
	}
	return 0;
}

static int pin_and_unpin(char *addr)
{
	struct pin_longterm_test args = {
		.addr = (unsigned long)addr,
		.size = ps,
	};

	if (ioctl(gup_fd, PIN_LONGTERM_TEST_START, &args) ||
	    ioctl(gup_fd, PIN_LONGTERM_TEST_STOP))
		return -errno;
	return 0;
}

/* One page into a pipe, @times times: up to 64, or a multiple of that */
static int splice_page(char *addr, int times)
{
	const int each = times < 64 ? times : 64;
	struct iovec iov[64];
	int i;

	for (i = 0; i < each; i++) {
		iov[i].iov_base = addr;
		iov[i].iov_len = ps;
	}
	if (pipe2(splice_pipe, O_CLOEXEC) ||
	    fcntl(splice_pipe[1], F_SETPIPE_SZ, 2 * times * ps) < 0)
		return -errno;
	for (i = 0; i < times; i += each)
		if (vmsplice(splice_pipe[1], iov, each, SPLICE_F_NONBLOCK) !=
		    (ssize_t)(each * ps))
			return -EAGAIN;
	return 0;
}

static void ignore_once(int sig)
{
	(void)sig;
}

/* Whoever injects the error gets a SIGBUS for it, too. */
static int poison(char *addr)
{
	struct sigaction action = {
		.sa_handler = ignore_once,
		.sa_flags = SA_RESETHAND,
	};

	if (sigaction(SIGBUS, &action, NULL) ||
	    madvise(addr, ps, MADV_HWPOISON))
		return -errno;
	signal(SIGBUS, SIG_DFL);
	return cow_pagemap(addr) & COW_PM_PRESENT ? -EAGAIN : 0;
}

static int make_kinds(char *p)
{
	int i, ret = 0;

	for (i = 0; i < lay.nr && !ret; i++) {
		char *addr = p + i * ps;

		switch (lay.kind[i]) {
		case HOLE:
		case ZERO:
		case WRITTEN:
			if (madvise(addr, ps, MADV_DONTNEED))
				return -errno;
			if (lay.kind[i] == ZERO)
				cow_peek(addr);
			if (lay.kind[i] == WRITTEN)
				cow_fill(addr, ps, TAG);
			break;
		case UNSHARED:
			ret = pin_and_unpin(addr);
			break;
		case PINNED: {
			struct pin_longterm_test args = {
				.addr = (unsigned long)addr,
				.size = ps,
			};

			if (ioctl(gup_fd, PIN_LONGTERM_TEST_START, &args))
				ret = -errno;
			break;
		}
		case REFERENCED:
			ret = splice_page(addr, 1);
			break;
		case SPLICED:
			ret = splice_page(addr, AS_IF_PINNED);
			break;
		case POISONED:
			ret = poison(addr);
			break;
		default:
			break;
		}
	}
	return ret;
}

/* Turn everything round, so that what was above a page is below it. */
static void reverse(struct layout *l)
{
	enum kind kind;
	int i;

	for (i = 0; i < l->nr / 2; i++) {
		kind = l->kind[i];
		l->kind[i] = l->kind[l->nr - 1 - i];
		l->kind[l->nr - 1 - i] = kind;
	}
	for (i = 0; i < l->nr_order; i++)
		l->order[i] = l->nr - 1 - l->order[i];
	l->offset = ptrs_per_pmd - 1 - (l->offset + l->nr - 1) % ptrs_per_pmd;
	if (l->cut)
		l->cut = l->nr - l->cut;
	l->down = true;
}

static void fill(char *p)
{
	int i;

	for (i = 0; i < lay.nr; i++)
		if (lay.kind[i] != FILEPAGE)
			cow_fill(p + i * ps, ps, TAG);
}

/*
 * Running a layout
 */

FIXTURE(precopy_window)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(precopy_window)
{
	int ahead;
	bool down;
};

FIXTURE_VARIANT_ADD(precopy_window, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(precopy_window, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(precopy_window, ahead_2) { .ahead = 2 };
FIXTURE_VARIANT_ADD(precopy_window, ahead_3) { .ahead = 3 };
FIXTURE_VARIANT_ADD(precopy_window, ahead_7) { .ahead = 7 };
FIXTURE_VARIANT_ADD(precopy_window, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(precopy_window, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(precopy_window, adaptive_down) {
	.ahead = COW_ADAPTIVE,
	.down = true,
};

FIXTURE_SETUP(precopy_window)
{
	const char *reason;

	if (variant->ahead == COW_ADAPTIVE && !cow_pfn_visible())
		SKIP(return, "an adaptive window is checked by frame numbers, which need root");
	reason = cow_setup(&self->saved, variant->ahead, COW_WANT_STATS);
	if (reason)
		reason = cow_setup(&self->saved, variant->ahead, 0);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_sysctl_read("cow_stats", &counting));
	ps = cow_page_size();
	ptrs_per_pmd = cow_pmd_size() / ps;
	turn = variant->down;
	seed = cow_seed();
	ASSERT_EQ(0, cow_pin_cpu());
}

FIXTURE_TEARDOWN_PARENT(precopy_window)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/*
 * The same for an adaptive window. *e is for no window at all: each write that did not
 * fault must have been to a page that was copied or reused ahead.
 */
static bool compare_adaptive(const struct cow_measure *m,
			     const struct expected *e, int unused)
{
	long copies = m->d.v[COW_SUCCESS], reuses = m->d.v[COW_REUSE_AHEAD];
	int i, left = 0;

	for (i = 0; i < lay.nr; i++)
		left += !e->written[i] &&
			(lay.kind[i] == ALONE || lay.kind[i] == UNSHARED);
	if (!cow_stats_balanced(&m->d) || copies < unused ||
	    m->minflt + copies - unused + reuses < e->minflt ||
	    m->minflt + copies - unused + reuses > e->minflt + left)
		return false;
	if (lay.refuse && (copies || reuses || !m->d.v[lay.refuse] ||
			   m->d.skips != m->d.v[lay.refuse]))
		return false;
	if (!counting)
		return true;
	return m->d.v[COW_FAULTS] + copies - unused == e->d.v[COW_FAULTS] &&
	       m->d.v[COW_REUSED] + reuses >= e->d.v[COW_REUSED];
}

/* Is what the counters say what was expected? */
static bool compare(const struct cow_measure *m, const struct expected *e)
{
	const unsigned long long *a = m->d.v, *b = e->d.v;
	int k;

	if (m->minflt != e->minflt || m->d.skips != e->d.skips ||
	    !cow_stats_balanced(&m->d))
		return false;
	for (k = 0; k < COW_NR_SYSTEM_KEYS; k++) {
		switch (k) {
		case COW_FAULTS:
		case COW_REUSED:
			if (!counting)
				continue;
			break;
		case COW_SKIP_PINNED:
			/* A pinned page is exclusive, too. */
			if (a[k] + a[COW_SKIP_EXCLUSIVE] !=
			    b[k] + b[COW_SKIP_EXCLUSIVE])
				return false;
			continue;
		case COW_SKIP_EXCLUSIVE:
			continue;
		default:
			/* times and percentiles */
			if (k < COW_ATTEMPTS)
				continue;
		}
		if (a[k] != b[k])
			return false;
	}
	return true;
}

static void log_difference(struct __test_metadata *_metadata)
{
	int k;

	TH_LOG("%d pages, %d written: %ld faults of this thread, %ld expected; COW_SEED=%llu",
	       lay.nr, lay.nr_order, got.minflt, want.minflt, seed);
	for (k = 0; k < COW_NR_SYSTEM_KEYS; k++)
		if (got.d.v[k] != want.d.v[k] &&
		    (k >= COW_ATTEMPTS || (counting && k < COW_TOTAL_NS)))
			TH_LOG("%s: %llu, %llu expected", cow_key_names[k],
			       got.d.v[k], want.d.v[k]);
}

/*
 * May an adaptive window contain this page, to which nobody has written? Only if
 * something was written in the same VMA, and in the same part of a page table.
 */
static bool near_a_write(int i)
{
	int first = i < lay.cut ? 0 : lay.cut, k;
	int end = i < lay.cut ? lay.cut : lay.nr;

	for (k = first; k < end; k++) {
		if (want.written[k] &&
		    (lay.offset + k) / COW_BLOCK == (lay.offset + i) / COW_BLOCK)
			return true;
	}
	return false;
}

/* Pages that had to be copied have new frames; others only if they may be copied. */
static int check_frames(struct __test_metadata *_metadata, int ahead,
			const __u64 *before, const __u64 *after)
{
	int i, unused = 0;

	for (i = 0; i < lay.nr; i++) {
		if (lay.kind[i] == SWAPPED)
			continue;
		if (ahead == COW_ADAPTIVE && !want.written[i] &&
		    lay.kind[i] == SHARED && before[i] != after[i]) {
			EXPECT_TRUE(near_a_write(i)) {
				TH_LOG("page %d was copied", i);
			}
			unused++;
			continue;
		}
		EXPECT_EQ(want.moved[i], before[i] != after[i]) {
			TH_LOG("page %d: frame %#llx before, %#llx after",
			       i, before[i], after[i]);
		}
	}
	return unused;
}

/* After the writes: is in page i what must be there? */
static bool content_ok(const char *page, int i)
{
	const size_t word = sizeof(__u64);

	if (want.written[i] && page[0] != 'w')
		return false;
	switch (lay.kind[i]) {
	case HOLE:
	case ZERO:
		return cow_is_zero(page + word, ps - word);
	case MERGED:
		return page[ps - 1] == 0x5a;
	case LAZYFREE:
		/* Its content may have been lost before the write. */
		if (cow_is_zero(page + word, ps - word))
			return true;
		break;
	default:
		break;
	}
	if (want.written[i])
		return cow_check(page + word, ps - word, TAG) == -1;
	return cow_check(page, ps, TAG) == -1;
}

/*
 * A run of written pages just below the layout, or above it, as
 * evidence for an adaptive window. Without a window of its own, which could
 * reach into the layout.
 */
static int write_evidence(char *p)
{
	const int nr = COW_RUN_ENOUGH + 10;
	char *run = turn ? p + lay.nr * ps : p - nr * ps;
	int i;

	if (madvise(run, nr * ps, MADV_RANDOM))
		return -errno;
	for (i = 0; i < nr; i++)
		cow_touch(run + i * ps, 'e');
	return madvise(run, nr * ps, MADV_NORMAL) ? -errno : 0;
}

/* Lay the memory out and write to it in the given order. Return: all as simulated */
static bool run_once(struct __test_metadata *_metadata, int ahead)
{
	static __u64 before[MAX_NR], after[MAX_NR];
	int i, pages, unused = 0;
	bool visible = cow_pfn_visible(), ok;
	struct cow_child c;
	char *map, *p;

	pages = lay.offset + lay.nr;
	if (ahead == COW_ADAPTIVE)
		pages += ptrs_per_pmd;
	map = cow_map(pages * ps, ptrs_per_pmd * ps);
	ASSERT_NE(NULL, map);
	p = map + lay.offset * ps;
	if (ahead == COW_ADAPTIVE) {
		if (!turn)
			p += ptrs_per_pmd * ps;
		cow_fill(turn ? p + lay.nr * ps : map, ptrs_per_pmd * ps, TAG);
	}
	if (!lay.before_fork)
		fill(p);
	else
		ASSERT_EQ(0, lay.before_fork(p, &lay));
	ASSERT_EQ(0, cow_child_fork(&c, child, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, cow_child_settle(&c));
	ASSERT_EQ(0, make_kinds(p));
	if (lay.after_fork)
		ASSERT_EQ(0, lay.after_fork(p, &lay));
	if (ahead == COW_ADAPTIVE)
		ASSERT_EQ(0, write_evidence(p));

	ASSERT_EQ(0, cow_pfns(p, lay.nr, before));
	ASSERT_EQ(0, cow_measure(&got, p, lay.order, lay.nr_order));
	ASSERT_EQ(0, cow_pfns(p, lay.nr, after));

	if (visible)
		unused = check_frames(_metadata, ahead, before, after);
	for (i = 0; i < lay.nr; i++) {
		if ((lay.kind[i] == HOLE && !want.written[i]) ||
		    lay.kind[i] == POISONED)
			continue;
		EXPECT_TRUE(content_ok(p + i * ps, i)) {
			TH_LOG("page %d has a wrong content", i);
		}
	}
	if (gup_fd >= 0)
		ioctl(gup_fd, PIN_LONGTERM_TEST_STOP);
	if (splice_pipe[0]) {
		close(splice_pipe[0]);
		close(splice_pipe[1]);
		splice_pipe[0] = 0;
	}
	/* It has found its own memory unchanged. */
	EXPECT_EQ(0, cow_child_end(&c));
	cow_unmap(map, pages * ps);
	ok = ahead == COW_ADAPTIVE ? compare_adaptive(&got, &want, unused) :
				     compare(&got, &want);
	EXPECT_TRUE(cow_stats_balanced(&got.d));
	if (!ok)
		log_difference(_metadata);
	return ok;
}

/*
 * After a fork, and after clear_refs, what the kernel itself writes to this thread
 * (its rseq area, when it was preempted) takes a fault, too: try again then.
 */
static void run(struct __test_metadata *_metadata, int ahead)
{
	struct layout kept = lay;
	int try;

	ASSERT_LE(lay.nr, MAX_NR);
	if (turn)
		reverse(&lay);
	simulate(&want, &lay, ahead == COW_ADAPTIVE ? 0 : ahead);
	for (try = 0; try < 3; try++) {
		if (run_once(_metadata, ahead))
			break;
	}
	EXPECT_LT(try, 3);
	lay = kept;
}

/* An adaptive window must have met such pages; for a fixed one run() is exact. */
static void expect_met(struct __test_metadata *_metadata, int ahead,
		       enum cow_key key)
{
	if (ahead == COW_ADAPTIVE)
		EXPECT_GT(got.d.v[key], 0) {
			TH_LOG("%s", cow_key_names[key]);
		}
}

/* MADV_SEQUENTIAL: an adaptive window opens without a run of writes. */
static int expect_windows(char *p, int nr, int ahead)
{
	if (ahead != COW_ADAPTIVE)
		return 0;
	return madvise(p, nr * ps, MADV_SEQUENTIAL) ? -errno : 0;
}

/* Every page shared, and written from the first to the last */
static void lay_upward(int nr)
{
	int i;

	memset(&lay, 0, sizeof(lay));
	lay.nr = nr;
	lay.nr_order = nr;
	for (i = 0; i < nr; i++)
		lay.order[i] = i;
}

static void lay_every(int nr, int step, enum kind kind)
{
	int i;

	lay_upward(nr);
	for (i = step - 1; i < nr; i += step)
		lay.kind[i] = kind;
}

/*
 * The order of the writes
 */

TEST_F_TIMEOUT(precopy_window, upward, TEST_TIMEOUT)
{
	static const int sizes[] = { 1, 2, 15, 16, 17, 64, 100, 512 };
	int n = variant->ahead;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		int m = sizes[i];

		lay_upward(m);
		run(_metadata, n);
		if (n == COW_ADAPTIVE)
			continue;
		/* The formula, without simulate() */
		EXPECT_EQ((m + n) / (n + 1), got.minflt);
		EXPECT_EQ(counting ? (m + n) / (n + 1) : 0,
			  got.d.v[COW_FAULTS]);
		EXPECT_EQ(m - (m + n) / (n + 1), got.d.v[COW_SUCCESS]);
		EXPECT_EQ(0, got.d.v[COW_REUSED]);
	}
}

TEST_F_TIMEOUT(precopy_window, downward, TEST_TIMEOUT)
{
	const int m = 64;
	int i;

	lay_upward(m);
	for (i = 0; i < m; i++)
		lay.order[i] = m - 1 - i;
	run(_metadata, variant->ahead);
	if (variant->ahead == COW_ADAPTIVE)
		return;
	EXPECT_EQ(m, got.minflt);
	EXPECT_EQ(0, got.d.v[COW_SUCCESS]);
}

TEST_F_TIMEOUT(precopy_window, strides, TEST_TIMEOUT)
{
	const int m = 96;
	int step, i;

	for (step = 2; step <= 17; step += 3) {
		lay_upward(m);
		lay.nr_order = 0;
		for (i = 0; i < m; i += step)
			lay.order[lay.nr_order++] = i;
		run(_metadata, variant->ahead);
	}
}

TEST_F_TIMEOUT(precopy_window, same_page_again, TEST_TIMEOUT)
{
	int i;

	lay_upward(64);
	for (i = 0; i < 64; i++)
		lay.order[i] = 3;
	run(_metadata, variant->ahead);
	EXPECT_EQ(1, got.minflt);
	if (variant->ahead != COW_ADAPTIVE)
		EXPECT_EQ(variant->ahead, got.d.v[COW_SUCCESS]);
}

TEST_F_TIMEOUT(precopy_window, random_order, TEST_TIMEOUT)
{
	__u64 rnd = seed;
	int round, i;

	for (round = 0; round < 4; round++) {
		lay_upward(128);
		for (i = 0; i < 128; i++)
			lay.order[i] = cow_rand(&rnd) % 128;
		run(_metadata, variant->ahead);
	}
}

/*
 * Where the window ends
 */

/* The second VMA: where it begins, and how long it is */
static char *second_vma(char *p, const struct layout *l, size_t *len)
{
	*len = (l->down ? l->cut : l->nr - l->cut) * ps;
	return l->down ? p : p + l->cut * ps;
}

static int cut_by_mprotect(char *p, const struct layout *l)
{
	size_t len;

	fill(p);
	p = second_vma(p, l, &len);
	return mprotect(p, len, PROT_READ) ? -errno : 0;
}

static int cut_by_madvise(char *p, const struct layout *l)
{
	size_t len;

	fill(p);
	p = second_vma(p, l, &len);
	return madvise(p, len, MADV_DONTDUMP) ? -errno : 0;
}

TEST_F_TIMEOUT(precopy_window, end_of_vma, TEST_TIMEOUT)
{
	int last;

	/* The last page written: the VMA's last, the one before it, ... */
	for (last = 1; last <= 33; last += 4) {
		lay_upward(64);
		lay.cut = 40;
		lay.before_fork = last & 4 ? cut_by_mprotect : cut_by_madvise;
		lay.order[0] = lay.cut - last;
		lay.nr_order = 1;
		run(_metadata, variant->ahead);
		EXPECT_EQ(last <= variant->ahead, got.d.v[COW_SKIP_VMA]);
	}
}

TEST_F_TIMEOUT(precopy_window, neighbouring_vmas, TEST_TIMEOUT)
{
	lay_upward(64);
	lay.cut = 23;
	lay.before_fork = cut_by_madvise;
	run(_metadata, variant->ahead);
	/* and all of the first, none of the second */
	lay.nr_order = lay.cut;
	run(_metadata, variant->ahead);
}

TEST_F_TIMEOUT(precopy_window, end_of_page_table, TEST_TIMEOUT)
{
	int last;

	for (last = 1; last <= 33; last += 4) {
		lay_upward(64);
		lay.offset = ptrs_per_pmd - 40;
		lay.order[0] = 40 - last;
		lay.nr_order = 1;
		run(_metadata, variant->ahead);
		EXPECT_EQ(last <= variant->ahead, got.d.v[COW_SKIP_PMD]);
		EXPECT_EQ(0, got.d.v[COW_SKIP_VMA]);
	}
}

TEST_F_TIMEOUT(precopy_window, across_page_tables, TEST_TIMEOUT)
{
	lay_upward(96);
	lay.offset = ptrs_per_pmd - 41;
	run(_metadata, variant->ahead);
}

TEST_F_TIMEOUT(precopy_window, vma_ends_with_page_table, TEST_TIMEOUT)
{
	/* Both at once: the VMA's end is what counts. */
	lay_upward(64);
	lay.offset = ptrs_per_pmd - 32;
	lay.cut = 32;
	lay.before_fork = cut_by_madvise;
	run(_metadata, variant->ahead);
	EXPECT_EQ(0, got.d.v[COW_SKIP_PMD]);
}

/*
 * Which pages the window leaves alone
 */

/* A single window with such pages in it, then writes to all pages */
static void run_between(struct __test_metadata *_metadata, int ahead, enum kind kind)
{
	lay_every(64, 2, kind);
	lay.nr_order = 1;
	run(_metadata, ahead);
	lay_every(64, 4, kind);
	run(_metadata, ahead);
}

TEST_F_TIMEOUT(precopy_window, holes, TEST_TIMEOUT)
{
	run_between(_metadata, variant->ahead, HOLE);
	expect_met(_metadata, variant->ahead, COW_SKIP_NOTPRESENT);
}

TEST_F_TIMEOUT(precopy_window, written_pages, TEST_TIMEOUT)
{
	run_between(_metadata, variant->ahead, WRITTEN);
}

TEST_F_TIMEOUT(precopy_window, zero_pages, TEST_TIMEOUT)
{
	run_between(_metadata, variant->ahead, ZERO);
	expect_met(_metadata, variant->ahead, COW_SKIP_NOTANON);
}

TEST_F_TIMEOUT(precopy_window, no_longer_shared, TEST_TIMEOUT)
{
	run_between(_metadata, variant->ahead, ALONE);
	expect_met(_metadata, variant->ahead, COW_REUSE_AHEAD);
}

TEST_F_TIMEOUT(precopy_window, exclusive_read_only, TEST_TIMEOUT)
{
	gup_fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (gup_fd < 0)
		SKIP(return, "no " GUP_TEST ": %s", strerror(errno));
	run_between(_metadata, variant->ahead, UNSHARED);
	expect_met(_metadata, variant->ahead, COW_REUSE_AHEAD);
}

TEST_F_TIMEOUT(precopy_window, pinned, TEST_TIMEOUT)
{
	gup_fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (gup_fd < 0)
		SKIP(return, "no " GUP_TEST ": %s", strerror(errno));
	/* The driver pins one range at a time. */
	lay_upward(64);
	lay.kind[1] = PINNED;
	run(_metadata, variant->ahead);
	expect_met(_metadata, variant->ahead, COW_SKIP_PINNED);
}

static void leave_alone(struct __test_metadata *_metadata, int ahead, enum kind kind)
{
	lay_upward(64);
	lay.kind[1] = kind;
	lay.nr_order = 1;
	run(_metadata, ahead);
	expect_met(_metadata, ahead, COW_SKIP_PINNED);
	lay.nr_order = 64;
	run(_metadata, ahead);
}

TEST_F_TIMEOUT(precopy_window, as_if_pinned, TEST_TIMEOUT)
{
	char *p = cow_map(ps, 0);

	ASSERT_NE(NULL, p);
	cow_touch(p, 1);
	if (splice_page(p, AS_IF_PINNED) == -EPERM)
		SKIP(return, "a pipe that large needs root");
	close(splice_pipe[0]);
	close(splice_pipe[1]);
	leave_alone(_metadata, variant->ahead, SPLICED);
}

/* A device may write by it, as with an O_DIRECT read over NFS. */
TEST_F_TIMEOUT(precopy_window, referenced, TEST_TIMEOUT)
{
	leave_alone(_metadata, variant->ahead, REFERENCED);
}

static struct cow_undo *ksm_undo;
static int merge(char *p, const struct layout *l)
{
	int i, nr = 0;

	fill(p);
	for (i = 0; i < l->nr; i++) {
		if (l->kind[i] == MERGED) {
			memset(p + i * ps, 0x5a, ps);
			nr++;
		}
	}
	return cow_ksm_merge(ksm_undo, p, l->nr * ps, nr) == nr ? 0 : -EAGAIN;
}

TEST_F_TIMEOUT(precopy_window, ksm, TEST_TIMEOUT)
{
	char *p;
	long ret;

	p = cow_map(2 * ps, 0);
	ASSERT_NE(NULL, p);
	memset(p, 0x77, 2 * ps);
	ret = cow_ksm_merge(&self->undo, p, 2 * ps, 2);
	if (ret < 0)
		SKIP(return, "no KSM: %s", strerror(-ret));
	if (ret < 2)
		SKIP(return, "ksmd merges nothing");
	cow_unmap(p, 2 * ps);

	ksm_undo = &self->undo;
	lay_every(32, 4, MERGED);
	lay.before_fork = merge;
	run(_metadata, variant->ahead);
	expect_met(_metadata, variant->ahead, COW_SKIP_KSM);
}

static int lazyfree(char *p, const struct layout *l)
{
	int i;

	/* Only pages on the LRU can be given up, */
	fill(p);
	for (i = 0; i < l->nr; i++) {
		if (l->kind[i] == LAZYFREE && madvise(p + i * ps, ps, MADV_FREE))
			return -errno;
	}
	/* and they are when the batch that they wait in is emptied. */
	return cow_drain_lru();
}

TEST_F_TIMEOUT(precopy_window, lazyfree, TEST_TIMEOUT)
{
	__u64 flags;
	char *p;

	lay_every(32, 4, LAZYFREE);
	p = cow_map(32 * ps, 0);
	ASSERT_NE(NULL, p);
	if (lazyfree(p, &lay))
		SKIP(return, "no MADV_FREE");
	flags = cow_page_flags(p + 3 * ps);
	cow_unmap(p, 32 * ps);
	if (!flags || flags & COW_KPF_SWAPBACKED)
		SKIP(return, "MADV_FREE has no effect, or none to be seen");

	lay.before_fork = lazyfree;
	run(_metadata, variant->ahead);
	expect_met(_metadata, variant->ahead, COW_SKIP_SPECIAL);
}

static int swap_out(char *p, const struct layout *l)
{
	int i;

	fill(p);
	for (i = 0; i < l->nr; i++) {
		if (l->kind[i] == SWAPPED && !cow_page_out(p + i * ps, 1))
			return -EAGAIN;
	}
	return 0;
}

TEST_F_TIMEOUT(precopy_window, swapped_out, TEST_TIMEOUT)
{
	char *p;
	int i;

	lay_every(64, 4, SWAPPED);
	p = cow_map(64 * ps, 0);
	ASSERT_NE(NULL, p);
	if (swap_out(p, &lay))
		SKIP(return, "no page goes to swap");
	cow_unmap(p, 64 * ps);

	lay.before_fork = swap_out;
	lay.nr_order = 0;
	for (i = 0; i < 64; i++)
		if (lay.kind[i] != SWAPPED)
			lay.order[lay.nr_order++] = i;
	run(_metadata, variant->ahead);
	expect_met(_metadata, variant->ahead, COW_SKIP_NOTPRESENT);
}

TEST_F_TIMEOUT(precopy_window, poisoned, TEST_TIMEOUT)
{
	char *p = cow_map(ps, 0);
	int i;

	ASSERT_NE(NULL, p);
	if (!cow_may_change())
		SKIP(return, "poisoning a page " COW_NEEDS);
	/* The guard page cannot be poisoned, and that is the only reason. */
	errno = 0;
	madvise(p - ps, ps, MADV_HWPOISON);
	if (errno != EFAULT)
		SKIP(return, "no MADV_HWPOISON: %s", strerror(errno));
	/* The child would be killed if vm.memory_failure_early_kill is set. */
	prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0);
	lay_upward(32);
	lay.kind[1] = POISONED;
	lay.nr_order = 0;
	for (i = 0; i < 32; i++)
		if (i != 1)
			lay.order[lay.nr_order++] = i;
	run(_metadata, variant->ahead);
	expect_met(_metadata, variant->ahead, COW_SKIP_NOTPRESENT);
}

static int map_file(char *p, const struct layout *l)
{
	int fd, i, ret = 0;
	char *q;

	fd = memfd_create("cow", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, l->nr * ps))
		ret = -errno;
	q = mmap(p, l->nr * ps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		 fd, 0);
	if (q != p)
		return -errno;
	cow_fill(p, l->nr * ps, TAG);
	q = mmap(p, l->nr * ps, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_FIXED, fd, 0);
	if (q != p)
		return -errno;
	close(fd);
	for (i = 0; i < l->nr; i++) {
		if (l->kind[i] == FILEPAGE)
			cow_peek(p + i * ps);
		else
			cow_fill(p + i * ps, ps, TAG);
	}
	return ret;
}

TEST_F_TIMEOUT(precopy_window, file_pages, TEST_TIMEOUT)
{
	lay_every(64, 4, FILEPAGE);
	lay.before_fork = map_file;
	run(_metadata, variant->ahead);
	expect_met(_metadata, variant->ahead, COW_SKIP_NOTANON);
	/* and a mapping of which nothing has been written */
	lay_every(64, 1, FILEPAGE);
	lay.before_fork = map_file;
	run(_metadata, variant->ahead);
	EXPECT_EQ(0, got.d.v[COW_ATTEMPTS]);
}

TEST_F_TIMEOUT(precopy_window, mixture, TEST_TIMEOUT)
{
	static const enum kind kinds[] = {
		SHARED, SHARED, SHARED, SHARED, HOLE, WRITTEN, ZERO, ALONE,
	};
	__u64 rnd = seed + 1;
	int round, i;

	for (round = 0; round < 6; round++) {
		lay_upward(128);
		lay.offset = cow_rand(&rnd) % ptrs_per_pmd;
		lay.cut = cow_rand(&rnd) % 128;
		lay.before_fork = lay.cut ? cut_by_madvise : NULL;
		for (i = 0; i < 128; i++) {
			lay.kind[i] = kinds[cow_rand(&rnd) % ARRAY_SIZE(kinds)];
			if (round & 1)
				lay.order[i] = cow_rand(&rnd) % 128;
		}
		run(_metadata, variant->ahead);
	}
}

/*
 * Mappings that want none of it
 */

static int advise_random(char *p, const struct layout *l)
{
	fill(p);
	return madvise(p, l->nr * ps, MADV_RANDOM) ? -errno : 0;
}

static int advise_random_and_back(char *p, const struct layout *l)
{
	return advise_random(p, l) ?:
	       madvise(p, l->nr * ps, MADV_NORMAL) ? -errno : 0;
}

TEST_F_TIMEOUT(precopy_window, madv_random, TEST_TIMEOUT)
{
	lay_upward(64);
	lay.before_fork = advise_random;
	lay.refuse = COW_SKIP_MADVISE;
	run(_metadata, variant->ahead);
	EXPECT_EQ(0, got.d.v[COW_SUCCESS]);
	EXPECT_EQ(64, got.minflt);

	lay_upward(64);
	lay.before_fork = advise_random_and_back;
	run(_metadata, variant->ahead);
	EXPECT_EQ(variant->ahead != 0, got.d.v[COW_SUCCESS] > 0);
}

static int uffd = -1;
static __u64 uffd_mode;
static __u64 uffd_features;

static int open_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = uffd_features };
	int fd;

	/* Faults of the kernel are for root only, and not needed here. */
	fd = syscall(__NR_userfaultfd,
		     O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		return -ENOTSUP;
	}
	return fd;
}

/* Nobody reads its events: a page that waited for them would hang the test. */
static int arm_uffd(char *p, const struct layout *l)
{
	struct uffdio_register reg = {
		.range = { .start = (unsigned long)p, .len = l->nr * ps },
		.mode = uffd_mode,
	};

	return ioctl(uffd, UFFDIO_REGISTER, &reg) ? -errno : 0;
}

static int disarm_uffd(char *p, const struct layout *l)
{
	struct uffdio_range range = {
		.start = (unsigned long)p,
		.len = l->nr * ps,
	};

	return arm_uffd(p, l) ?:
	       ioctl(uffd, UFFDIO_UNREGISTER, &range) ? -errno : 0;
}

static void with_uffd(struct __test_metadata *_metadata, int ahead)
{
	uffd = open_uffd();
	if (uffd < 0)
		SKIP(return, "no userfaultfd: %s", strerror(-uffd));
	lay_upward(64);
	lay.after_fork = arm_uffd;
	lay.refuse = COW_SKIP_UFFD;
	run(_metadata, ahead);
	EXPECT_EQ(0, got.d.v[COW_SUCCESS]);
	EXPECT_EQ(64, got.minflt);

	lay_upward(64);
	lay.after_fork = disarm_uffd;
	run(_metadata, ahead);
	EXPECT_EQ(ahead != 0, got.d.v[COW_SUCCESS] > 0);
	close(uffd);
}

TEST_F_TIMEOUT(precopy_window, userfaultfd_missing, TEST_TIMEOUT)
{
	uffd_mode = UFFDIO_REGISTER_MODE_MISSING;
	uffd_features = 0;
	with_uffd(_metadata, variant->ahead);
}

TEST_F_TIMEOUT(precopy_window, userfaultfd_wp, TEST_TIMEOUT)
{
	uffd_mode = UFFDIO_REGISTER_MODE_WP;
	uffd_features = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
	with_uffd(_metadata, variant->ahead);
}

#ifdef UFFD_FEATURE_MINOR_SHMEM
static int map_minor(char *p, const struct layout *l)
{
	int i, ret = map_file(p, l);

	/* Forked with private copies of all pages; then it is armed. */
	for (i = 0; i < l->nr && !ret; i++)
		cow_fill(p + i * ps, ps, TAG);
	return ret;
}

TEST_F_TIMEOUT(precopy_window, userfaultfd_minor, TEST_TIMEOUT)
{
	uffd_mode = UFFDIO_REGISTER_MODE_MINOR;
	uffd_features = UFFD_FEATURE_MINOR_SHMEM;
	uffd = open_uffd();
	if (uffd < 0)
		SKIP(return, "no userfaultfd minor mode for shmem: %s",
		     strerror(-uffd));
	lay_upward(64);
	lay.before_fork = map_minor;
	lay.after_fork = arm_uffd;
	lay.refuse = COW_SKIP_UFFD;
	run(_metadata, variant->ahead);
	EXPECT_EQ(0, got.d.v[COW_SUCCESS]);
	EXPECT_EQ(64, got.minflt);
	close(uffd);
}
#endif

static int clear_soft_dirty(char *p, const struct layout *l)
{
	int i, ret;

	(void)l;
	ret = cow_write_file("/proc/self/clear_refs", "4");
	for (i = 0; i < lay.nr && !ret; i++)
		if (cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY)
			ret = -EIO;
	return ret;
}

TEST_F_TIMEOUT(precopy_window, soft_dirty, TEST_TIMEOUT)
{
	struct cow_child c;
	char *p;
	int i;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	lay_upward(64);
	lay.after_fork = clear_soft_dirty;
	lay.refuse = COW_SKIP_SOFTDIRTY;
	run(_metadata, variant->ahead);
	EXPECT_EQ(0, got.d.v[COW_SUCCESS]);
	EXPECT_EQ(64, got.minflt);

	/* The bit is set where a write was, and nowhere else. */
	lay_upward(64);
	p = cow_map(64 * ps, 0);
	ASSERT_NE(NULL, p);
	fill(p);
	ASSERT_EQ(0, cow_child_fork(&c, child, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, expect_windows(p, 64, variant->ahead));
	ASSERT_EQ(0, clear_soft_dirty(p, &lay));
	for (i = 0; i < 64; i += 5)
		cow_touch(p + i * ps, 'w');
	for (i = 0; i < 64; i++) {
		EXPECT_EQ(i % 5 == 0,
			  !!(cow_pagemap(p + i * ps) & COW_PM_SOFT_DIRTY)) {
			TH_LOG("page %d", i);
		}
	}
	EXPECT_EQ(0, cow_child_end(&c));
}

/*
 * Faults that are not for the pages behind: from outside, and for a pin
 */

TEST_F_TIMEOUT(precopy_window, write_from_outside, TEST_TIMEOUT)
{
	struct cow_stats before, after;
	struct cow_child c;
	char *p, w = 'w';
	int i, fd;

	fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, fd);
	lay_upward(64);
	p = cow_map(64 * ps, 64 * ps);
	ASSERT_NE(NULL, p);
	fill(p);
	ASSERT_EQ(0, cow_child_fork(&c, child, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, cow_child_settle(&c));
	ASSERT_EQ(0, expect_windows(p, 64, variant->ahead));
	ASSERT_EQ(0, cow_stats_read(&before));
	ASSERT_EQ(0, cow_stats_read(&before));
	for (i = 0; i < 64; i += 16) {
		if (pwrite(fd, &w, 1, (unsigned long)(p + i * ps)) != 1)
			SKIP(return, "cannot write to /proc/self/mem");
	}
	ASSERT_EQ(0, cow_stats_read(&after));
	/* All other pages are still shared with the child. */
	for (i = 0; i < 64; i++) {
		EXPECT_EQ(i % 16 == 0,
			  !!(cow_pagemap(p + i * ps) & COW_PM_EXCLUSIVE)) {
			TH_LOG("page %d", i);
		}
	}
	for (i = 0; i < 64; i++)
		EXPECT_EQ(i % 16 ? -1 : 0, cow_check(p + i * ps, ps, TAG));
	EXPECT_EQ(0, cow_child_end(&c));
	if (counting)
		EXPECT_LE(before.v[COW_FAULTS] + 4, after.v[COW_FAULTS]);
}

TEST_F_TIMEOUT(precopy_window, unshare_for_a_pin, TEST_TIMEOUT)
{
	static __u64 before[64], after[64];
	struct cow_child c;
	char *p;
	int i;

	gup_fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (gup_fd < 0)
		SKIP(return, "no " GUP_TEST ": %s", strerror(errno));
	lay_upward(64);
	p = cow_map(64 * ps, 64 * ps);
	ASSERT_NE(NULL, p);
	fill(p);
	ASSERT_EQ(0, cow_child_fork(&c, child, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	ASSERT_EQ(0, expect_windows(p, 64, variant->ahead));
	ASSERT_EQ(0, cow_pfns(p, 64, before));
	for (i = 0; i < 64; i += 16)
		ASSERT_EQ(0, pin_and_unpin(p + i * ps));
	ASSERT_EQ(0, cow_pfns(p, 64, after));
	for (i = 0; i < 64; i++) {
		EXPECT_EQ(i % 16 == 0, before[i] != after[i]) {
			TH_LOG("page %d: frame %#llx before, %#llx after", i,
			       before[i], after[i]);
		}
	}
	EXPECT_EQ(-1, cow_check(p, 64 * ps, TAG));
	EXPECT_EQ(0, cow_child_end(&c));
}

TEST_HARNESS_MAIN
