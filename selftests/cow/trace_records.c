// SPDX-License-Identifier: GPL-2.0
/*
 * What cow:cow_fault and cow:cow_reuse_ahead record of pages made writable ahead, pages
 * copied for GUP, copies that lost a race to another thread, and faults in the memory of
 * another process. Each record must have the process whose memory it is, and the records
 * must add up to what /proc/<pid>/cow_stats counts.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define PAGES		COW_BLOCK
#define MAX_RECORDS	(2 * PAGES)	/* a page made writable may have one of each event */
#define MAX_ROUNDS	2000
#define TAG		41

static size_t ps;

FIXTURE(trace_records)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char instance[64];	/* a trace buffer of our own, or empty */
};

FIXTURE_VARIANT(trace_records)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(trace_records, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(trace_records, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(trace_records)
{
	const char *reason;

	ps = cow_page_size();
	self->instance[0] = '\0';
	reason = cow_setup(&self->saved, variant->ahead, COW_WANT_STATS);
	if (!reason && !cow_may_change())
		reason = COW_NEEDS;
	if (!reason && !cow_tracefs())
		reason = "no tracefs";
	if (reason)
		SKIP(return, "%s", reason);
	snprintf(self->instance, sizeof(self->instance), "%s/instances/cow_records",
		 cow_tracefs());
	/* One that was killed has left its own. */
	rmdir(self->instance);
	ASSERT_EQ(0, mkdir(self->instance, 0700));
}

FIXTURE_TEARDOWN_PARENT(trace_records)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
	if (self->instance[0])
		rmdir(self->instance);
}

/*
 * The records
 */

struct record {
	bool reuse_ahead;	/* cow_reuse_ahead, or else cow_fault */
	int task;		/* who has taken the fault */
	unsigned long address;
	int pid;
	char outcome[32];
	unsigned int nr;	/* pages copied or made writable ahead */
	unsigned int order;	/* of the folio that they were copied into */
	unsigned long long copy_ns, fault_ns;
};

static struct record records[MAX_RECORDS];

static int put(const char *instance, const char *file, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", instance, file);
	return cow_write_file(path, text);
}

/* Both events of this thread; on one CPU, as the clocks of two may disagree on the order */
static int begin_records(const char *instance)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", getpid());
	return cow_pin_cpu() ?:
	       put(instance, "set_event_pid", text) ?:
	       put(instance, "events/cow/cow_reuse_ahead/enable", "1") ?:
	       put(instance, "events/cow/cow_fault/enable", "1");
}

/* The faults of any thread that pass a filter */
static int begin_faults(const char *instance, const char *filter)
{
	return put(instance, "events/cow/cow_fault/filter", filter) ?:
	       put(instance, "events/cow/cow_fault/enable", "1");
}

/* "COMM-TASK [CPU] FLAGS TIME: EVENT: FIELDS" */
static bool parse_record(struct record *r, char *line)
{
	char *cpu = strchr(line, '['), *event, *dash;

	event = cpu ? strstr(cpu, ": cow_") : NULL;
	if (!event)
		return false;
	*cpu = '\0';
	dash = strrchr(line, '-');
	if (!dash)
		return false;
	r->task = atoi(dash + 1);
	r->reuse_ahead = !strncmp(event, ": cow_reuse_ahead:", 18);
	if (r->reuse_ahead)
		return sscanf(event, ": cow_reuse_ahead: address=%lx pid=%d nr=%u",
			      &r->address, &r->pid, &r->nr) == 3;
	return sscanf(event,
		      ": cow_fault: address=%lx pid=%d outcome=%31s order=%u ahead=%u copy_ns=%llu fault_ns=%llu",
		      &r->address, &r->pid, r->outcome, &r->order, &r->nr,
		      &r->copy_ns, &r->fault_ns) == 7;
}

/* How many there are in records[], or a negative errno; the buffer is empty then. */
static int end_records(const char *instance)
{
	static char text[256 << 10];
	char path[128], *line, *save = NULL;
	ssize_t len;
	int nr = 0;

	if (put(instance, "events/cow/enable", "0"))
		return -EIO;
	snprintf(path, sizeof(path), "%s/trace", instance);
	len = cow_read_file(path, text, sizeof(text));
	if (len < 0)
		return len;
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (*line == '#')
			continue;
		if (nr == MAX_RECORDS)
			return -E2BIG;
		if (!parse_record(&records[nr++], line))
			return -EPROTO;
	}
	/* Opening it so empties the buffer. */
	close(open(path, O_WRONLY | O_TRUNC | O_CLOEXEC));
	return nr;
}

/*
 * Faults
 */

/*
 * Pages that a child has, too, or had if it is gone. From now on this process takes
 * faults for them only. NULL on an error
 */
static char *share_pages(struct cow_child *child, bool gone)
{
	size_t len = PAGES * ps;
	char *area = cow_map(len, len);

	if (!area)
		return NULL;
	cow_fill(area, len, TAG);
	if (cow_child_idle(child) || (gone && cow_child_end(child)) ||
	    cow_drain_lru() || cow_unshare_rest(area, len))
		return NULL;
	return area;
}

/* The counters of a process, read until the reading itself adds nothing */
static int read_counts(struct cow_stats *s, pid_t pid)
{
	static struct cow_stats again;
	int i, ret;

	for (i = 0; i < 20; i++) {
		ret = cow_stats_read_pid(&again, pid) ?: cow_stats_read_pid(s, pid);
		if (ret || !memcmp(s, &again, sizeof(*s)))
			return ret;
	}
	return -EAGAIN;
}

/* Without memory cgroups the kernel does not know whose address space it is: then it is 0. */
static bool is_owner(int pid, pid_t owner)
{
	return pid == owner ||
	       (!pid && owner != getpid() && access("/proc/kpagecgroup", F_OK));
}

/* This thread has faulted once in each page of the area, upward, and copied that alone. */
static void check_copies(struct __test_metadata *_metadata, int nr, const char *area,
			 const char *outcome, pid_t owner)
{
	const struct record *r = records;
	int i;

	ASSERT_EQ(nr, PAGES);
	for (i = 0; i < nr; i++, r++) {
		ASSERT_FALSE(r->reuse_ahead);
		EXPECT_TRUE(is_owner(r->pid, owner))
			TH_LOG("recorded with pid %d, the memory is of %d", r->pid, owner);
		EXPECT_EQ(r->task, getpid());
		EXPECT_EQ(r->address, (uintptr_t)area + i * ps);
		EXPECT_STREQ(r->outcome, outcome);
		EXPECT_EQ(r->nr, 0U);
		EXPECT_GT(r->copy_ns, 0ULL);
		EXPECT_GE(r->fault_ns, r->copy_ns);
	}
}

/* Write to all pages, upward: how many records that makes, or a negative errno */
static int record_writes(const char *instance, char *area, struct cow_stats *before,
			 struct cow_stats *after)
{
	int i, nr, ret;

	ret = read_counts(before, 0) ?: begin_records(instance);
	if (ret)
		return ret < 0 ? ret : -EIO;
	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, 'w');
	nr = end_records(instance);
	return read_counts(after, 0) ?: nr;
}

/*
 * The child is gone, and an adaptive window makes pages writable ahead. As many as a
 * record says take no fault.
 */
TEST_F_TIMEOUT(trace_records, reuse_ahead, TEST_TIMEOUT)
{
	struct cow_stats before, after;
	unsigned long long ahead = 0;
	unsigned int window = 0;
	struct cow_child child;
	unsigned long next;
	char *area;
	int i, nr;

	/* No folio may be in another CPU's LRU batch: it would be copied, not reused. */
	ASSERT_EQ(cow_pin_cpu(), 0);
	area = share_pages(&child, true);
	ASSERT_NE(area, NULL);
	nr = record_writes(self->instance, area, &before, &after);
	ASSERT_GT(nr, 0);

	next = (uintptr_t)area;
	for (i = 0; i < nr; i++) {
		const struct record *r = &records[i];

		EXPECT_EQ(r->address, next);
		EXPECT_EQ(r->pid, getpid());
		EXPECT_EQ(r->task, getpid());
		if (r->reuse_ahead) {
			/* The record of the same fault comes next, when it ends. */
			EXPECT_EQ(window, 0U);
			EXPECT_GT(r->nr, 0U);
			window = r->nr;
			ahead += window;
			continue;
		}
		EXPECT_STREQ(r->outcome, "reused");
		EXPECT_EQ(r->nr, 0U);
		EXPECT_EQ(r->copy_ns, 0ULL);
		EXPECT_GT(r->fault_ns, 0ULL);
		next += (1 + window) * ps;
		window = 0;
	}
	EXPECT_EQ(window, 0U);
	EXPECT_EQ(next, (uintptr_t)area + PAGES * ps);
	EXPECT_EQ(ahead, after.v[COW_REUSE_AHEAD] - before.v[COW_REUSE_AHEAD])
		TH_LOG("cow_reuse_ahead does not add up to reuse_ahead");
	EXPECT_EQ(ahead > 0, variant->ahead == COW_ADAPTIVE);
}

/* Keeps every second page, from the first one on. */
static int drop_odd(struct cow_child *self, void *arg)
{
	char *area = arg;
	int i;

	for (i = 1; i < PAGES; i += 2) {
		if (madvise(area + i * ps, ps, MADV_DONTNEED))
			return 2;
	}
	return cow_child_stay(self);
}

/* As share_pages(), with that child. */
static char *share_even_pages(struct cow_child *child)
{
	size_t len = PAGES * ps;
	char *area = cow_map(len, len);

	if (!area)
		return NULL;
	cow_fill(area, len, TAG);
	if (cow_child_fork(child, drop_odd, area) || cow_child_recv(child) != 1 ||
	    cow_child_settle(child) || cow_drain_lru() || cow_unshare_rest(area, len))
		return NULL;
	return area;
}

/* A fault that copies ahead makes pages writable ahead as well, that are not shared. */
TEST_F_TIMEOUT(trace_records, reuse_ahead_of_copy, TEST_TIMEOUT)
{
	unsigned long long ahead = 0, with_copy = 0;
	struct cow_stats before, after;
	struct cow_child child;
	char *area;
	int i, nr;

	ASSERT_EQ(cow_pin_cpu(), 0);
	area = share_even_pages(&child);
	ASSERT_NE(area, NULL);
	nr = record_writes(self->instance, area, &before, &after);
	ASSERT_GT(nr, 0);
	ASSERT_EQ(cow_child_end(&child), 0);

	for (i = 0; i < nr; i++) {
		if (!records[i].reuse_ahead)
			continue;
		ahead += records[i].nr;
		/* The record of the same fault comes next, when it ends. */
		ASSERT_LT(i + 1, nr);
		EXPECT_EQ(records[i].address, records[i + 1].address);
		if (strcmp(records[i + 1].outcome, "reused"))
			with_copy += records[i].nr;
	}
	EXPECT_EQ(ahead, after.v[COW_REUSE_AHEAD] - before.v[COW_REUSE_AHEAD])
		TH_LOG("cow_reuse_ahead does not add up to reuse_ahead");
	EXPECT_EQ(with_copy > 0, variant->ahead == COW_ADAPTIVE);
}

/* A record says how large the folio is that its pages were copied into. */
TEST_F_TIMEOUT(trace_records, order_of_folios, TEST_TIMEOUT)
{
	const char *reason = cow_allow_folios(&self->undo);
	int i, nr, large, recorded = 0;
	struct cow_stats before, after;
	struct cow_child child;
	char *area;

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(cow_pin_cpu(), 0);
	area = share_pages(&child, false);
	ASSERT_NE(area, NULL);
	ASSERT_EQ(madvise(area, PAGES * ps, MADV_HUGEPAGE), 0);
	ASSERT_EQ(madvise(area, PAGES * ps, MADV_SEQUENTIAL), 0);
	nr = record_writes(self->instance, area, &before, &after);
	ASSERT_GT(nr, 0);
	large = cow_large_pages(area, PAGES);
	ASSERT_EQ(cow_child_end(&child), 0);
	for (i = 0; i < nr; i++) {
		const struct record *r = &records[i];

		if (!r->order)
			continue;
		ASSERT_EQ(r->nr + 1, 1U << r->order);
		recorded += r->nr + 1;
	}
	/* None without windows, or if no block was free. */
	ASSERT_EQ(recorded, large);
	if (variant->ahead && !large)
		SKIP(return, "no page was copied into a large folio");
}

/*
 * process_vm_readv() pins the pages that it reads: FOLL_PIN without FOLL_WRITE. 0 or a
 * negative errno
 */
static int pin_for_reading(pid_t pid, char *area)
{
	static struct iovec remote[PAGES];
	static char copy[PAGES];
	struct iovec local = { .iov_base = copy, .iov_len = sizeof(copy) };
	ssize_t ret;
	int i;

	for (i = 0; i < PAGES; i++) {
		remote[i].iov_base = area + i * ps;
		remote[i].iov_len = 1;
	}
	ret = process_vm_readv(pid, &local, 1, remote, PAGES, 0);
	if (ret < 0)
		return -errno;
	return ret == PAGES ? 0 : -EFAULT;
}

static void check_unshared(struct __test_metadata *_metadata, const char *instance,
			   char *area, pid_t owner)
{
	struct cow_stats before, after;
	int ret;

	ASSERT_EQ(read_counts(&before, owner), 0);
	ASSERT_EQ(begin_records(instance), 0);
	ret = pin_for_reading(owner, area);
	if (ret)
		SKIP(return, "process_vm_readv: %s", strerror(-ret));
	check_copies(_metadata, end_records(instance), area, "unshared", owner);
	ASSERT_EQ(read_counts(&after, owner), 0);
	EXPECT_EQ(after.v[COW_UNSHARED] - before.v[COW_UNSHARED],
		  (unsigned long long)PAGES);
}

/* Copied for GUP, and nobody has written */
TEST_F_TIMEOUT(trace_records, unshared, TEST_TIMEOUT)
{
	struct cow_child child;
	char *area = share_pages(&child, false);

	ASSERT_NE(area, NULL);
	check_unshared(_metadata, self->instance, area, getpid());
	EXPECT_EQ(cow_child_end(&child), 0);
}

TEST_F_TIMEOUT(trace_records, unshared_by_another, TEST_TIMEOUT)
{
	struct cow_child child;
	char *area = share_pages(&child, false);

	ASSERT_NE(area, NULL);
	check_unshared(_metadata, self->instance, area, child.pid);
	EXPECT_EQ(cow_child_end(&child), 0);
}

/* Written through /proc/<pid>/mem: the fault is that process', whoever writes. */
TEST_F_TIMEOUT(trace_records, remote_write, TEST_TIMEOUT)
{
	struct cow_stats before, after;
	struct cow_child child;
	char path[64], *area;
	int i, mem;

	area = share_pages(&child, false);
	ASSERT_NE(area, NULL);
	snprintf(path, sizeof(path), "/proc/%d/mem", child.pid);
	mem = open(path, O_RDWR | O_CLOEXEC);
	ASSERT_GE(mem, 0);
	ASSERT_EQ(read_counts(&before, child.pid), 0);
	ASSERT_EQ(begin_records(self->instance), 0);
	for (i = 0; i < PAGES; i++)
		ASSERT_EQ(pwrite(mem, "w", 1, (uintptr_t)area + i * ps), 1);
	check_copies(_metadata, end_records(self->instance), area, "copied", child.pid);
	ASSERT_EQ(read_counts(&after, child.pid), 0);
	EXPECT_EQ(after.v[COW_FAULTS] - before.v[COW_FAULTS], (unsigned long long)PAGES);
	close(mem);
	EXPECT_EQ(cow_child_end(&child), 0);
}

/* Two threads write to the same pages until one has lost a race. */
TEST_F_TIMEOUT(trace_records, lost, TEST_TIMEOUT)
{
	unsigned long long lost = 0;
	char filter[64];
	cpu_set_t cpus;
	int i, round;

	ASSERT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
	if (CPU_COUNT(&cpus) < 2)
		SKIP(return, "needs two CPUs");
	snprintf(filter, sizeof(filter), "outcome == 2 && pid == %d", getpid());
	for (round = 0; round < MAX_ROUNDS && !lost; round++) {
		struct cow_stats before, after;
		struct cow_child child;
		char *area;
		int nr;

		area = share_pages(&child, false);
		ASSERT_NE(area, NULL);
		ASSERT_EQ(read_counts(&before, 0), 0);
		ASSERT_EQ(begin_faults(self->instance, filter), 0);
		ASSERT_EQ(cow_write_in_step(area, PAGES, false), 0);
		ASSERT_EQ(read_counts(&after, 0), 0);
		nr = end_records(self->instance);
		ASSERT_EQ(cow_child_end(&child), 0);
		lost = after.v[COW_LOST] - before.v[COW_LOST];
		for (i = 0; i < nr; i++) {
			const struct record *r = &records[i];

			/* Not EXPECT: a SKIP below would hide its failure. */
			ASSERT_STREQ(r->outcome, "lost");
			ASSERT_EQ(r->pid, getpid());
			ASSERT_LT(r->address - (uintptr_t)area, PAGES * ps);
			ASSERT_EQ(r->nr, 0U);
			ASSERT_GT(r->copy_ns, 0ULL);
			ASSERT_GE(r->fault_ns, r->copy_ns);
		}
		ASSERT_EQ(nr, (int)lost)
			TH_LOG("%llu copies lost a race", lost);
		cow_unmap(area, PAGES * ps);
	}
	/* A host that is busy may run the CPUs of a guest one after the other. */
	if (!lost)
		SKIP(return, "no race in %d rounds: the CPUs took turns", round);
}

TEST_HARNESS_MAIN
