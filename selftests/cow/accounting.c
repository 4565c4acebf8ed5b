// SPDX-License-Identifier: GPL-2.0
/*
 * Accounting of copies, on any kernel. A page that a write fault replaces is freed, and so
 * is a copy that lost a race to another thread. A copy is charged to the memory cgroup of
 * the process that writes, whose limit applies; RSS does not change. A child commits as much
 * memory as its parent.
 *
 * The tests measure cgroups of their own over thousands of faults: a leak of one page per
 * fault is far larger than what per-CPU charge batches hide.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "../../../../mm/gup_test.h"

#define NR		1024	/* pages */
#define ROUNDS		8
#define FAULTS		(NR * ROUNDS)
#define TAG		17

/* Tolerance: per-CPU charge batches, and what a process needs besides */
#define SLACK		(FAULTS / 8)

static size_t ps;
static bool down;

FIXTURE(accounting)
{
	struct cow_settings saved;
	char cgroup[2][COW_CGROUP_DIR];
};

FIXTURE_VARIANT(accounting)
{
	int ahead;
	bool down;	/* write from the last page to the first */
};

FIXTURE_VARIANT_ADD(accounting, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(accounting, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(accounting, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(accounting, adaptive_down) {
	.ahead = COW_ADAPTIVE,
	.down = true,
};

/* Pages that are charged to it; negative: an error */
static long charged(const char *cgroup)
{
	long bytes;
	int ret;

	ret = cow_cgroup_read(cgroup, "memory.current", &bytes);
	return ret ? ret : bytes / (long)ps;
}

FIXTURE_SETUP(accounting)
{
	static const char * const names[] = { "cow_owner", "cow_writer" };
	const char *reason;
	int i;

	ps = cow_page_size();
	down = variant->down;
	reason = cow_setup(&self->saved, variant->ahead, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	for (i = 0; i < 2 && !reason; i++)
		reason = cow_cgroup_make(self->cgroup[i], names[i]);
	if (reason) {
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
}

FIXTURE_TEARDOWN_PARENT(accounting)
{
	int i;

	for (i = 0; i < 2; i++)
		cow_cgroup_remove(self->cgroup[i]);
	cow_restore(&self->saved);
}

/* What the process in the cgroup does with NR pages that it shares with a child */
typedef int (*write_fn)(char *area);

static int write_alone(char *area)
{
	int i;

	for (i = 0; i < NR; i++)
		cow_touch(area + (down ? NR - 1 - i : i) * ps, 'w');
	return 0;
}

static int write_together(char *area)
{
	return cow_write_in_step(area, NR, down);
}

/* The kinds of pages that are copied: NR at a time. 0, or where it failed */
typedef int (*copy_fn)(void);

static int share_and_write(write_fn write)
{
	struct cow_child c;
	char *area;

	area = cow_map(NR * ps, 0);
	if (!area)
		return 2;
	cow_fill(area, NR * ps, TAG);
	if (cow_child_idle(&c))
		return 3;
	if (write(area) || cow_child_end(&c))
		return 4;
	cow_unmap(area, NR * ps);
	return 0;
}

static int copy_shared(void)
{
	return share_and_write(write_alone);
}

static int copy_in_races(void)
{
	return share_and_write(write_together);
}

static void read_pages(const char *area)
{
	int i;

	for (i = 0; i < NR; i++)
		cow_peek(area + i * ps);
}

static int copy_zero_page(void)
{
	char *area = cow_map(NR * ps, 0);

	if (!area)
		return 2;
	read_pages(area);
	write_alone(area);
	cow_unmap(area, NR * ps);
	return 0;
}

/* Of a file whose pages the mapping has, or has not yet */
static int copy_file(bool mapped)
{
	int fd = memfd_create("cow_accounting", MFD_CLOEXEC);
	char *area;

	if (fd < 0 || ftruncate(fd, NR * ps))
		return 2;
	area = mmap(NULL, NR * ps, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (area == MAP_FAILED)
		return 3;
	if (mapped)
		read_pages(area);
	write_alone(area);
	munmap(area, NR * ps);
	close(fd);
	return 0;
}

static int copy_mapped_file(void)
{
	return copy_file(true);
}

static int copy_unmapped_file(void)
{
	return copy_file(false);
}

/* A pin for reading copies a shared page, too. */
static int copy_unshared(void)
{
	char *area = cow_map(NR * ps, 0);
	struct cow_child c;
	int i;

	if (!area)
		return 2;
	cow_fill(area, NR * ps, TAG);
	if (cow_child_idle(&c))
		return 3;
	for (i = 0; i < NR; i++)
		if (cow_unshare(area + i * ps))
			return 4;
	if (cow_child_end(&c))
		return 5;
	cow_unmap(area, NR * ps);
	return 0;
}

#define GUP_TEST	"/sys/kernel/debug/gup_test"

/* fork() copies pages that are pinned. */
static int copy_pinned(void)
{
	struct pin_longterm_test args = {
		.size = NR * ps,
		.flags = PIN_LONGTERM_TEST_FLAG_USE_WRITE,
	};
	char *area = cow_map(NR * ps, 0);
	struct cow_child c;
	int fd;

	fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (!area || fd < 0)
		return 2;
	args.addr = (uintptr_t)area;
	if (ioctl(fd, PIN_LONGTERM_TEST_START, &args))
		return 3;
	if (cow_child_idle(&c) || cow_child_end(&c))
		return 4;
	write_alone(area);
	if (ioctl(fd, PIN_LONGTERM_TEST_STOP))
		return 5;
	close(fd);
	cow_unmap(area, NR * ps);
	return 0;
}

struct work {
	const char *cgroup;
	copy_fn copy;
};

/* A batch of charges for each CPU, and what the kernel allocates for the processes */
static long most_left(void)
{
	return COW_CHARGE_BATCH * (sysconf(_SC_NPROCESSORS_CONF) + 6);
}

/* A leak of one page per fault is larger, also if each fault copies 16 pages. */
static int leak_rounds(void)
{
	int rounds = 2 * 16 * most_left() / NR + 1;

	return rounds > ROUNDS ? rounds : ROUNDS;
}

static int in_cgroup(struct cow_child *self, void *arg)
{
	const struct work *work = arg;
	const int rounds = leak_rounds();
	int i, ret = 0;

	(void)self;
	if (cow_cgroup_enter(work->cgroup))
		return 1;
	for (i = 0; i < rounds && !ret; i++)
		ret = work->copy();
	return ret;
}

/* When the last process of a cgroup has exited, at most charge batches are left. */
static void assert_nothing_left(struct __test_metadata *_metadata,
				const char *cgroup, copy_fn copy)
{
	struct work work = { .cgroup = cgroup, .copy = copy };
	struct cow_child c;
	long left;
	int i;

	ASSERT_EQ(0, cow_child_fork(&c, in_cgroup, &work));
	ASSERT_EQ(0, cow_child_wait(&c));
	left = charged(cgroup);
	/* What RCU frees is free a bit later. */
	for (i = 0; i < 1000 && left > most_left(); i++) {
		usleep(10000);
		left = charged(cgroup);
	}
	ASSERT_LE(0, left);
	ASSERT_GE(most_left(), left)
		TH_LOG("%ld pages are still charged after %d writes", left,
		       leak_rounds() * NR);
}

TEST_F_TIMEOUT(accounting, nothing_leaks, TEST_TIMEOUT)
{
	assert_nothing_left(_metadata, self->cgroup[0], copy_shared);
}

TEST_F_TIMEOUT(accounting, zero_page_leaks_nothing, TEST_TIMEOUT)
{
	assert_nothing_left(_metadata, self->cgroup[0], copy_zero_page);
}

TEST_F_TIMEOUT(accounting, unsharing_leaks_nothing, TEST_TIMEOUT)
{
	int ret = cow_unshare(&ps);

	if (ret)
		SKIP(return, "process_vm_readv: %s", strerror(-ret));
	assert_nothing_left(_metadata, self->cgroup[0], copy_unshared);
}

TEST_F_TIMEOUT(accounting, pinned_pages_leak_nothing, TEST_TIMEOUT)
{
	if (access(GUP_TEST, F_OK))
		SKIP(return, "no " GUP_TEST ": %s", strerror(errno));
	assert_nothing_left(_metadata, self->cgroup[0], copy_pinned);
}

/* Neither the copies nor the pages of the file, which is gone as well */
TEST_F_TIMEOUT(accounting, private_file_leaks_nothing, TEST_TIMEOUT)
{
	assert_nothing_left(_metadata, self->cgroup[0], copy_unmapped_file);
	assert_nothing_left(_metadata, self->cgroup[0], copy_mapped_file);
}

#define GENERATIONS	500
/* More than one process takes, and much less than a structure per mapping and ancestor */
#define MOST_SLAB	(256 << 10)

/* Each has one child, and ends; the last one waits for the end of the pipe. */
static void grow_old(int fd)
{
	char byte;
	pid_t pid;
	int i;

	for (i = 0; i < GENERATIONS; i++) {
		pid = fork();
		if (pid)
			_exit(pid < 0);
	}
	_exit(read(fd, &byte, 1) != 0);
}

/*
 * 0, or where it failed; 4 if the last descendant has too much of its ancestors', 5 if nothing
 * of that is charged
 */
static int has_descendants(struct cow_child *self, void *arg)
{
	const char *cgroup = arg;
	int i, status, until[2];
	long long before, slab;

	(void)self;
	if (cow_cgroup_enter(cgroup) || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		return 1;
	if (pipe(until))
		return 2;
	before = cow_cgroup_stat(cgroup, "slab");
	if (!fork()) {
		close(until[1]);
		grow_old(until[0]);
	}
	for (i = 0; i < GENERATIONS; i++)
		if (wait(&status) == -1 || status)
			return 3;
	/* What RCU frees is free a bit later. */
	for (i = 0; i < 1000; i++) {
		slab = cow_cgroup_stat(cgroup, "slab") - before;
		if (slab <= MOST_SLAB)
			break;
		usleep(10000);
	}
	close(until[1]);
	if (wait(&status) == -1 || status)
		return 3;
	if (slab > MOST_SLAB)
		return 4;
	return slab > 0 ? 0 : 5;
}

/*
 * A daemon that forks to live on in its child: what the rmap keeps of each ancestor that is
 * gone would add up.
 */
TEST_F_TIMEOUT(accounting, ancestors_leave_nothing, TEST_TIMEOUT)
{
	struct cow_child c;
	int ret;

	if (cow_cgroup_stat(self->cgroup[0], "slab") < 0)
		SKIP(return, "no slab in memory.stat");
	ASSERT_EQ(0, cow_child_fork(&c, has_descendants, self->cgroup[0]));
	ret = cow_child_wait(&c);
	if (ret == 5)
		SKIP(return, "slab is not charged");
	EXPECT_EQ(0, ret);
}

/* A host that is busy may run the CPUs of a guest one after the other for a while. */
#define MAX_TRIES	50

TEST_F_TIMEOUT(accounting, lost_races_leak_nothing, TEST_TIMEOUT)
{
	long before, lost = 0;
	int i;

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	before = cow_cgroup_stat(self->cgroup[0], "pgcow_lost");
	for (i = 0; i < MAX_TRIES && lost <= SLACK; i++) {
		/* What leaks stays charged from one to the next. */
		assert_nothing_left(_metadata, self->cgroup[0], copy_in_races);
		/* Were there any? Only this series counts them. */
		if (before < 0)
			return;
		lost = cow_cgroup_stat(self->cgroup[0], "pgcow_lost") - before;
		ASSERT_LE(0, lost);
	}
	if (lost <= SLACK)
		SKIP(return, "only %ld races were lost: the CPUs took turns", lost);
}

struct charge {
	const char *owner, *writer;
	long owner_before, owner_after, writer_before, writer_after;
	long rss_before, rss_after;
	long copied;
	char *area;
};

/* In pages, as the kernel counts it */
static long rss(void)
{
	long kb = cow_file_key("/proc/self/status", "RssAnon");

	return kb < 0 ? kb : kb * 1024 / (long)ps;
}

static int writes_elsewhere(struct cow_child *self, void *arg)
{
	struct charge *charge = arg;
	int i;

	(void)self;
	if (cow_cgroup_enter(charge->writer))
		return 1;
	charge->owner_before = charged(charge->owner);
	charge->writer_before = charged(charge->writer);
	charge->rss_before = rss();
	for (i = 0; i < FAULTS; i++)
		cow_touch(charge->area + i * ps, 'w');
	charge->rss_after = rss();
	charge->owner_after = charged(charge->owner);
	charge->writer_after = charged(charge->writer);
	return 0;
}

/* In the owner's cgroup: share the area with a child, and wait until that has ended. */
static int share_with(cow_child_fn child, struct charge *charge)
{
	struct cow_child c;

	/* One CPU only: each CPU has a charge batch. */
	if (cow_pin_cpu() || cow_cgroup_enter(charge->owner))
		return -1;
	charge->area = cow_map(FAULTS * ps, 0);
	if (!charge->area)
		return -2;
	cow_fill(charge->area, FAULTS * ps, TAG);
	if (cow_child_fork(&c, child, charge))
		return -3;
	return cow_child_wait(&c);
}

static int owns(struct cow_child *self, void *arg)
{
	struct charge *charge = arg;

	(void)self;
	if (share_with(writes_elsewhere, charge))
		return 4;
	return cow_check(charge->area, FAULTS * ps, TAG) == -1 ? 0 : 5;
}

/* Copies count in the writer's cgroup and RSS. */
TEST_F_TIMEOUT(accounting, charged_to_the_writer, TEST_TIMEOUT)
{
	struct charge *charge;
	struct cow_child c;

	charge = mmap(NULL, sizeof(*charge), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, charge);
	charge->owner = self->cgroup[0];
	charge->writer = self->cgroup[1];
	ASSERT_EQ(0, cow_child_fork(&c, owns, charge));
	ASSERT_EQ(0, cow_child_wait(&c));

	ASSERT_LE(FAULTS, charge->owner_before);
	EXPECT_GT(SLACK, charge->owner_after - charge->owner_before);
	EXPECT_GT(SLACK, charge->owner_before - charge->owner_after);
	EXPECT_LT(FAULTS - SLACK, charge->writer_after - charge->writer_before);
	EXPECT_GT(FAULTS + SLACK, charge->writer_after - charge->writer_before);
	/* Each copy has replaced a page. */
	ASSERT_LE(FAULTS - SLACK, charge->rss_before);
	EXPECT_GT(SLACK, charge->rss_after - charge->rss_before);
	EXPECT_GT(SLACK, charge->rss_before - charge->rss_after);
}

/* Is OOM-killed at the limit of its cgroup, which has nothing to reclaim. */
static int writes_beyond_limit(struct cow_child *self, void *arg)
{
	struct charge *charge = arg;
	int i;

	(void)self;
	if (cow_pin_cpu() || cow_cgroup_enter(charge->writer))
		return 1;
	charge->owner_before = charged(charge->owner);
	for (i = 0; i < FAULTS; i++) {
		cow_touch(charge->area + i * ps, 'w');
		charge->copied = i + 1;
	}
	return 0;
}

static int owns_and_outlives(struct cow_child *self, void *arg)
{
	struct charge *charge = arg;

	(void)self;
	if (share_with(writes_beyond_limit, charge) != 256 + SIGKILL)
		return 4;
	charge->owner_after = charged(charge->owner);
	/* The parent is the only user now, and writes to all pages. */
	if (cow_check(charge->area, FAULTS * ps, TAG) != -1)
		return 5;
	write_alone(charge->area);
	return 0;
}

static int limit(const char *cgroup, long pages)
{
	char text[32];
	int ret;

	/* There is no memory.swap.max without swap. */
	ret = cow_cgroup_write(cgroup, "memory.swap.max", "0");
	if (ret && ret != -ENOENT)
		return ret;
	snprintf(text, sizeof(text), "%ld", pages * (long)ps);
	return cow_cgroup_write(cgroup, "memory.max", text);
}

/* A writer that exceeds its limit is OOM-killed; the parent is not affected. */
TEST_F_TIMEOUT(accounting, killed_at_the_writers_limit, TEST_TIMEOUT)
{
	struct charge *charge;
	struct cow_child c;

	charge = mmap(NULL, sizeof(*charge), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, charge);
	charge->owner = self->cgroup[0];
	charge->writer = self->cgroup[1];
	ASSERT_EQ(0, limit(charge->writer, FAULTS / 2));
	ASSERT_EQ(0, cow_child_fork(&c, owns_and_outlives, charge));
	EXPECT_EQ(0, cow_child_wait(&c));

	EXPECT_EQ(0, cow_cgroup_event(charge->owner, "oom_kill"));
	EXPECT_EQ(1, cow_cgroup_event(charge->writer, "oom_kill"));
	/* Killed close to the limit */
	EXPECT_LT(FAULTS / 2 - SLACK, charge->copied);
	EXPECT_GT(FAULTS / 2 + SLACK, charge->copied);
	EXPECT_GT(SLACK, charge->owner_after - charge->owner_before);
	EXPECT_GT(SLACK, charge->owner_before - charge->owner_after);
	EXPECT_GT(SLACK, charged(charge->writer));
}

/*
 * Memory that may be written to is committed, whether or not it ever is.
 */

#define NR_CHILDREN	4

static long committed_kb(void)
{
	return cow_file_key("/proc/meminfo", "Committed_AS");
}

/*
 * Does each child commit as much as its parent, kb, until it exits? 0 or 1, or a negative
 * errno
 */
static int children_commit(long kb)
{
	struct cow_child c[NR_CHILDREN];
	long before = committed_kb(), during;
	int i, ret = 0;

	for (i = 0; i < NR_CHILDREN && !ret; i++)
		ret = cow_child_idle(&c[i]);
	during = committed_kb() - before;
	/* The last one is not there if ret says so. */
	for (i -= !!ret; i > 0; i--)
		cow_child_end(&c[i - 1]);
	if (ret)
		return ret;
	return during > (NR_CHILDREN - 1) * kb && during < (NR_CHILDREN + 1) * kb &&
	       labs(committed_kb() - before) < kb;
}

/* So much that nothing else is likely to commit or free it meanwhile, and not each time */
TEST_F_TIMEOUT(accounting, committed, TEST_TIMEOUT)
{
	size_t len = sysconf(_SC_PHYS_PAGES) / 2 * ps;
	int i, ret = 0;
	char *area;

	if (committed_kb() < 0)
		SKIP(return, "no Committed_AS in /proc/meminfo");
	if (len > 1UL << 30)
		len = 1UL << 30;
	area = cow_map(len, 0);
	if (!area)
		SKIP(return, "may not commit %zu MB", len >> 20);
	for (i = 0; i < 10 && !ret; i++)
		ret = children_commit(len / 1024);
	if (ret < 0)
		SKIP(return, "fork: %s", strerror(-ret));
	EXPECT_EQ(1, ret);
	cow_unmap(area, len);
}

TEST_HARNESS_MAIN
