// SPDX-License-Identifier: GPL-2.0
/*
 * What copies, and copies ahead, cost in memory: resident set, and what happens in a
 * memory cgroup at its limit. accounting.c has the tests for leaks, precopy_window.c
 * those of which pages are copied.
 */
#include <signal.h>
#include <sys/wait.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define TAG		7

static size_t ps;

FIXTURE(precopy_memory)
{
	struct cow_settings saved;
	char cgroup[COW_CGROUP_DIR];
};

FIXTURE_VARIANT(precopy_memory)
{
	int ahead;
	bool any_kernel;
};

/* "plain" runs on any kernel; "off" also checks this series' counters. */
FIXTURE_VARIANT_ADD(precopy_memory, plain) {
	.ahead = COW_PLAIN,
	.any_kernel = true,
};

FIXTURE_VARIANT_ADD(precopy_memory, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(precopy_memory, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(precopy_memory, ahead_2) { .ahead = 2 };
FIXTURE_VARIANT_ADD(precopy_memory, ahead_3) { .ahead = 3 };
FIXTURE_VARIANT_ADD(precopy_memory, ahead_7) { .ahead = 7 };
FIXTURE_VARIANT_ADD(precopy_memory, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(precopy_memory, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(precopy_memory)
{
	unsigned int flags = variant->any_kernel ? COW_ANY_KERNEL : 0;
	const char *reason;

	reason = cow_setup(&self->saved, variant->ahead,
			   flags | COW_WANT_STATS);
	if (reason)
		reason = cow_setup(&self->saved, variant->ahead, flags);
	if (reason)
		SKIP(return, "%s", reason);
	ps = cow_page_size();
	ASSERT_EQ(0, cow_pin_cpu());
}

FIXTURE_TEARDOWN_PARENT(precopy_memory)
{
	cow_cgroup_remove(self->cgroup);
	cow_restore(&self->saved);
}

/* MADV_SEQUENTIAL: an adaptive window opens without a run of writes. */
static int expect_windows(char *p, int nr, int ahead)
{
	if (ahead != COW_ADAPTIVE)
		return 0;
	return madvise(p, nr * ps, MADV_SEQUENTIAL) ? -errno : 0;
}

struct memory {
	char *p;
	int nr;
};

/* Waits for the parent, then checks that its memory has not changed. */
static int keeps(struct cow_child *self, void *arg)
{
	struct memory *m = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 3;
	return cow_check(m->p, m->nr * ps, TAG) == -1 ? 0 : 4;
}

/* Fill nr pages and share them with a child. */
static int share(struct cow_child *c, char *p, int nr)
{
	struct memory m = { .p = p, .nr = nr };
	int ret;

	cow_fill(p, nr * ps, TAG);
	ret = cow_child_fork(c, keeps, &m);
	if (ret)
		return ret;
	return cow_child_recv(c) == 1 ? 0 : -EPIPE;
}

TEST_F_TIMEOUT(precopy_memory, resident_set, TEST_TIMEOUT)
{
	struct cow_child c;
	long kb = 64 * ps / 1024;
	char *p;
	int i;

	p = cow_map(64 * ps, 64 * ps);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, share(&c, p, 64));
	ASSERT_EQ(0, expect_windows(p, 64, variant->ahead));
	if (cow_smaps_kb(p, "Rss") < 0)
		SKIP(return, "no /proc/self/smaps");
	ASSERT_EQ(kb, cow_smaps_kb(p, "Rss"));
	for (i = 0; i < 64; i += 3) {
		cow_touch(p + i * ps, 'w');
		EXPECT_EQ(kb, cow_smaps_kb(p, "Rss"));
		EXPECT_EQ(kb, cow_smaps_kb(p, "Anonymous"));
	}
	EXPECT_EQ(0, cow_child_end(&c));
	cow_unmap(p, 64 * ps);
}

/*
 * A memory cgroup at its limit
 */

#define CG_PAGES	1024
#define CG_WRITES	48

struct cgroup_work {
	char dir[COW_CGROUP_DIR];
	int ahead;
	const char *limit;	/* memory.max or memory.high */
	long extra;		/* pages that may be charged from now on */
	/* results */
	struct cow_measure m;
	int err;
};

/* Runs in the cgroup: the sparse writes fit below the limit, copies ahead do not. */
static int in_cgroup(struct cow_child *self, void *arg)
{
	struct cgroup_work *w = arg;
	int order[CG_WRITES], i;
	char text[32];
	struct cow_child c;
	long now;
	char *p;

	w->err = cow_cgroup_enter(w->dir);
	if (w->err)
		return 1;
	p = cow_map(CG_PAGES * ps, 0);
	if (!p)
		return 2;
	cow_fill(p, CG_PAGES * ps, TAG);
	for (i = 0; i < CG_WRITES; i++)
		order[i] = i * (CG_PAGES / CG_WRITES);
	if (cow_child_idle(&c) || expect_windows(p, CG_PAGES, w->ahead))
		return 3;
	/* Charge everything but the writes before the limit is set. */
	if (cow_measure(&w->m, p + (CG_PAGES - 1) * ps, NULL, 1))
		return 4;
	w->err = cow_cgroup_read(w->dir, "memory.current", &now);
	if (w->err)
		return 5;
	snprintf(text, sizeof(text), "%ld", now + w->extra * (long)ps);
	w->err = cow_cgroup_write(w->dir, w->limit, text);
	if (w->err)
		return 6;
	if (cow_measure(&w->m, p, order, CG_WRITES))
		return 7;
	cow_cgroup_write(w->dir, w->limit, "max");
	for (i = 0; i < CG_PAGES - 1; i++) {
		bool written = i % (CG_PAGES / CG_WRITES) == 0 &&
			       i / (CG_PAGES / CG_WRITES) < CG_WRITES;

		if (cow_check(p + i * ps, ps, TAG) != (written ? 0 : -1))
			return 8;
	}
	if (cow_child_end(&c))
		return 9;
	cow_cgroup_add_up(w->dir, p);
	(void)self;
	return 0;
}

/* Sets cgroup, for the teardown. NULL: the test is skipped. */
static struct cgroup_work *new_cgroup(struct __test_metadata *_metadata,
				      char *cgroup)
{
	struct cgroup_work *w;
	const char *reason;

	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, w);
	reason = cow_cgroup_make(w->dir, "cow_test");
	if (reason)
		SKIP(return NULL, "%s", reason);
	memcpy(cgroup, w->dir, sizeof(w->dir));
	/* No swap, so nothing can be reclaimed: over the limit, the OOM killer runs. */
	cow_cgroup_write(w->dir, "memory.swap.max", "0");

	return w;
}

static void with_cgroup(struct __test_metadata *_metadata,
			char *cgroup, int ahead, const char *limit, long extra)
{
	struct cgroup_work *w;
	struct cow_child c;
	int status;

	w = new_cgroup(_metadata, cgroup);
	if (!w)
		return;
	w->ahead = ahead;
	w->limit = limit;
	w->extra = extra;
	ASSERT_EQ(0, cow_child_fork(&c, in_cgroup, w));
	status = cow_child_wait(&c);
	EXPECT_EQ(0, cow_cgroup_event(w->dir, "oom_kill")) {
		TH_LOG("a program that fits was killed for memory");
	}
	ASSERT_EQ(0, status) {
		TH_LOG("in the cgroup: %s", w->err ? strerror(-w->err) :
		       status > 256 ? "killed" : "failed");
	}
	/* The cgroup's counters include at least those of its only program. */
	if (cow_cgroup_stat(w->dir, "pgcow_copied") >= 0) {
		EXPECT_LE(w->m.d.v[COW_FAULTS],
			  cow_cgroup_stat(w->dir, "pgcow_copied"));
		EXPECT_LE(w->m.d.v[COW_SUCCESS],
			  cow_cgroup_stat(w->dir, "pgcow_ahead"));
		if (!ahead)
			EXPECT_EQ(0, cow_cgroup_stat(w->dir, "pgcow_ahead"));
	}
	/* Each write has been solved, by a fault or ahead of it, */
	if (cow_counting())
		EXPECT_LE(CG_WRITES, w->m.minflt + w->m.d.v[COW_SUCCESS]);
	EXPECT_TRUE(cow_stats_balanced(&w->m.d));
	/* and at the limit pre-copy has stopped. */
	EXPECT_EQ(ahead != 0, w->m.d.v[COW_SKIP_NOMEM] > 0);
	if (!ahead)
		return;
	/*
	 * memory.current has counted pages that each CPU keeps for the next
	 * charges, up to a batch; these come on top.
	 */
	EXPECT_GE(extra + COW_CHARGE_BATCH * sysconf(_SC_NPROCESSORS_ONLN),
		  w->m.d.v[COW_SUCCESS]);
}

TEST_F_TIMEOUT(precopy_memory, cgroup_at_its_limit, TEST_TIMEOUT)
{
	/* What the writes need, and a little for what the kernel needs */
	with_cgroup(_metadata, self->cgroup, variant->ahead, "memory.max",
		    CG_WRITES + 32);
}

TEST_F_TIMEOUT(precopy_memory, cgroup_at_memory_high, TEST_TIMEOUT)
{
	with_cgroup(_metadata, self->cgroup, variant->ahead, "memory.high",
		    CG_WRITES + 32);
}

/*
 * The faulting page's own allocation fails after the window was chosen. No process may
 * be OOM-killed, so the fault is retried until the limit is raised.
 */
static int without_memory(struct cow_child *self, void *arg)
{
	struct cgroup_work *w = arg;
	char text[32];
	struct cow_child c;
	long now;
	char *p;
	int i;

	w->err = cow_cgroup_enter(w->dir);
	if (w->err)
		return 1;
	p = cow_map(CG_PAGES * ps, 0);
	if (!p)
		return 2;
	cow_fill(p, CG_PAGES * ps, TAG);
	w->err = cow_write_file("/proc/self/oom_score_adj", "-1000");
	if (w->err || cow_child_idle(&c))
		return 3;
	w->err = cow_cgroup_read(w->dir, "memory.current", &now);
	if (w->err)
		return 4;
	snprintf(text, sizeof(text), "%ld", now + w->extra * (long)ps);
	w->err = cow_cgroup_write(w->dir, "memory.max", text);
	if (w->err)
		return 5;
	for (i = 0; i < CG_PAGES; i++)
		cow_fill(p + i * ps, ps, TAG + 1);
	if (cow_check(p, CG_PAGES * ps, TAG + 1) != -1 || cow_child_end(&c))
		return 6;
	(void)self;
	return 0;
}

TEST_F_TIMEOUT(precopy_memory, fault_fails_for_want_of_memory, TEST_TIMEOUT)
{
	struct cgroup_work *w;
	struct cow_child c;
	siginfo_t info = {};
	int status;

	w = new_cgroup(_metadata, self->cgroup);
	if (!w)
		return;
	w->extra = CG_WRITES;
	ASSERT_EQ(0, cow_child_fork(&c, without_memory, w));
	/* The child cannot end before it has hit the limit. */
	while (cow_cgroup_event(w->dir, "oom") == 0 &&
	       !waitid(P_PID, c.pid, &info, WEXITED | WNOHANG | WNOWAIT) &&
	       !info.si_pid)
		usleep(1000);
	EXPECT_LE(1, cow_cgroup_event(w->dir, "oom"));
	cow_cgroup_write(w->dir, "memory.max", "max");
	status = cow_child_wait(&c);
	EXPECT_EQ(0, status) {
		TH_LOG("in the cgroup: %s", w->err ? strerror(-w->err) :
		       status > 256 ? "killed" : "failed");
	}
	EXPECT_EQ(0, cow_cgroup_event(w->dir, "oom_kill"));
}

TEST_HARNESS_MAIN
