// SPDX-License-Identifier: GPL-2.0
/*
 * A device that mirrors the page table
 *
 * lib/test_hmm is a device with a page table of its own, which it fills from
 * the process's when it finds no entry, and whose entries it drops when the mmu
 * notifier tells it to. If a pre-copy replaces a page without telling it, then the
 * device goes on reading the old page, which is the child's by now: what the
 * parent writes to the new page never gets there.
 *
 * The driver drops one page more than the notifier's range, whose end it takes
 * for inclusive. A range that has only the faulting page drops the next one as
 * well, so the variant with one page ahead cannot detect it; the one with 15
 * pages ahead can. Backward, an adaptive window lies below the fault.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

/* No uapi header, but the kernel's: relative, as this file is in its tree. */
#if __has_include("../../../../lib/test_hmm_uapi.h")
#include "../../../../lib/test_hmm_uapi.h"
#define HAVE_TEST_HMM
#endif

#ifdef HAVE_TEST_HMM

#define DEVICE	"/dev/hmm_dmirror0"
#define GROUP	(COW_MAX_AHEAD + 1)
#define GROUPS	4
#define PAGES	(GROUPS * GROUP)
#define ROUNDS	4		/* of the test that races */

/* Contents: what the child has to keep, and what is written later */
#define OLD	1
#define NEW	2
#define DEV	3

static __u64 value(unsigned int page, size_t word, __u64 tag)
{
	return tag << 48 | (__u64)page << 24 | word;
}

/* page is the number of the page in both the area and the device's buffer. */
static void fill(char *area, size_t ps, unsigned int page, __u64 tag)
{
	__u64 *p = (__u64 *)(area + page * ps);
	size_t word;

	for (word = 0; word < ps / sizeof(*p); word++)
		__atomic_store_n(&p[word], value(page, word, tag),
				 __ATOMIC_RELAXED);
}

/* The tag of all words of the page, or -1 if it has a foreign or mixed content */
static int tag_of(const char *area, size_t ps, unsigned int page)
{
	const __u64 *p = (const __u64 *)(area + page * ps);
	__u64 tag = p[0] >> 48;
	size_t word;

	for (word = 0; word < ps / sizeof(*p); word++)
		if (p[word] != value(page, word, tag))
			return -1;
	return tag;
}

/* Not in the fixture: that is memory which the child shares. */
static struct cow_child child;

struct mirror {
	struct cow_stats before;
	char *area;
	char *buf;		/* shared: no copy-on-write of its own */
	size_t ps;
	int fd;
};

FIXTURE(secondary_mmu)
{
	struct cow_settings saved;
	struct cow_undo undo;
	struct mirror m;
};

FIXTURE_VARIANT(secondary_mmu)
{
	int ahead;
	bool folios;
};

FIXTURE_VARIANT_ADD(secondary_mmu, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(secondary_mmu, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(secondary_mmu, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(secondary_mmu, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(secondary_mmu, adaptive_folios) { .ahead = COW_ADAPTIVE, .folios = true };

FIXTURE_SETUP(secondary_mmu)
{
	struct mirror *m = &self->m;
	unsigned int page;
	const char *reason;

	/* In the LRU batch of another CPU, pages are not copied ahead. */
	ASSERT_EQ(cow_pin_cpu(), 0);
	reason = cow_setup_folios(&self->saved, &self->undo, variant->ahead,
				  variant->folios, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	cow_map_hugepage = variant->folios;
	m->fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (m->fd < 0) {
		int err = errno;

		cow_undo(&self->undo);
		cow_restore(&self->saved);
		if (err == ENOENT || err == ENODEV || err == ENXIO)
			SKIP(return, "no " DEVICE ": test_hmm is not loaded");
		if (err == EACCES || err == EPERM)
			SKIP(return, DEVICE " needs root");
		ASSERT_EQ(err, 0);
	}
	m->ps = cow_page_size();
	m->area = cow_map(PAGES * m->ps, PAGES * m->ps);
	ASSERT_NE(m->area, NULL);
	m->buf = mmap(NULL, PAGES * m->ps, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(m->buf, MAP_FAILED);
	memset(m->buf, 0, PAGES * m->ps);
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, OLD);
	ASSERT_EQ(cow_count_own(&m->before), 0);
}

FIXTURE_TEARDOWN_PARENT(secondary_mmu)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* The driver's page faults, or a negative errno */
static int device_cmd(int fd, unsigned long request, char *area, char *buf,
		      unsigned int pages)
{
	struct hmm_dmirror_cmd cmd = {
		.addr = (uintptr_t)area,
		.ptr = (uintptr_t)buf,
		.npages = pages,
	};

	while (ioctl(fd, request, &cmd))
		if (errno != EINTR && errno != EBUSY)
			return -errno;
	return cmd.cpages == pages ? (int)cmd.faults : -EIO;
}

/*
 * Have the device read the area, each page for itself: when the driver does not
 * find an entry, it fills in all pages from there to the end of what it was
 * asked for, and would so repair the stale ones behind. Faults or -errno.
 */
static int device_read(int fd, char *area, char *buf, size_t ps)
{
	int ret, faults = 0;
	unsigned int page;

	for (page = 0; page < PAGES; page++) {
		ret = device_cmd(fd, HMM_DMIRROR_READ, area + page * ps,
				 buf + page * ps, 1);
		if (ret < 0)
			return ret;
		faults += ret;
	}
	return faults;
}

struct snapshot {
	char *area;
	size_t ps;
};

/* The child: idle until it is told to look. */
static int check_snapshot(struct cow_child *self, void *arg)
{
	struct snapshot *snap = arg;
	unsigned int page;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 2;
	for (page = 0; page < PAGES; page++)
		if (tag_of(snap->area, snap->ps, page) != OLD)
			return 1;
	return 0;
}

/*
 * Share the area with a child and have all of it in the device's page table.
 * The second read shows that the entries are there, and stay, if nobody has
 * them dropped.
 */
static void share_and_mirror(struct __test_metadata *_metadata,
			     struct mirror *m)
{
	struct snapshot snap = { .area = m->area, .ps = m->ps };
	unsigned int page;
	int tag;

	/* What the fork has to drop: entries that are there, and writable. */
	ASSERT_GE(device_read(m->fd, m->area, m->buf, m->ps), 0);
	ASSERT_EQ(cow_child_fork(&child, check_snapshot, &snap), 0);
	ASSERT_EQ(cow_child_recv(&child), 1);
	ASSERT_EQ(cow_child_settle(&child), 0);
	ASSERT_EQ(device_read(m->fd, m->area, m->buf, m->ps), PAGES);
	ASSERT_EQ(device_read(m->fd, m->area, m->buf, m->ps), 0);
	for (page = 0; page < PAGES; page++) {
		tag = tag_of(m->buf, m->ps, page);
		ASSERT_EQ(tag, OLD);
	}
	cow_own_stack();
}

static void check_child(struct __test_metadata *_metadata)
{
	ASSERT_EQ(cow_child_send(&child, 1), 0);
	EXPECT_EQ(cow_child_end(&child), 0);
}

/* Pages copied ahead when all pages are written upward once */
static unsigned long long expected_ahead(int ahead)
{
	return PAGES - cow_upward(PAGES, ahead, false).faults;
}

/*
 * The area as the device sees it: the first pages written, the others not.
 * Says which page differs.
 */
static void check_device(struct __test_metadata *_metadata, struct mirror *m,
			 unsigned int written)
{
	unsigned int page;
	int tag;

	ASSERT_GE(device_read(m->fd, m->area, m->buf, m->ps), 0);
	for (page = 0; page < PAGES; page++) {
		tag = tag_of(m->buf, m->ps, page);
		ASSERT_EQ(tag, page < written ? NEW : OLD)
			TH_LOG("the device sees %s in page %u after %u writes",
			       tag == OLD ? "the old content" :
			       tag == NEW ? "what is not yet written" :
			       "garbage", page, written);
	}
}

/* All written, then the device reads. */
TEST_F_TIMEOUT(secondary_mmu, read_after_all_writes, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page;

	share_and_mirror(_metadata, m);
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, NEW);
	EXPECT_GE(cow_copied_ahead(&m->before), expected_ahead(variant->ahead));
	check_device(_metadata, m, PAGES);
	check_child(_metadata);
}

/*
 * The device reads after every write: also pages that were copied ahead and
 * not written yet. When they are, that takes no fault, so that the device must
 * have the new page already.
 */
TEST_F_TIMEOUT(secondary_mmu, read_after_each_write, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page;

	share_and_mirror(_metadata, m);
	for (page = 0; page < PAGES; page++) {
		fill(m->area, m->ps, page, NEW);
		check_device(_metadata, m, page + 1);
	}
	EXPECT_GE(cow_copied_ahead(&m->before), expected_ahead(variant->ahead));
	check_child(_metadata);
}

/* Downward: what was not yet written is at the start. */
TEST_F_TIMEOUT(secondary_mmu, read_after_writes_downward, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page, i;
	int tag;

	share_and_mirror(_metadata, m);
	for (i = PAGES; i-- > 0; ) {
		fill(m->area, m->ps, i, NEW);
		ASSERT_GE(device_read(m->fd, m->area, m->buf, m->ps), 0);
		for (page = 0; page < PAGES; page++) {
			tag = tag_of(m->buf, m->ps, page);
			ASSERT_EQ(tag, page < i ? OLD : NEW)
				TH_LOG("page %u after page %u", page, i);
		}
	}
	if (variant->ahead == COW_ADAPTIVE)
		EXPECT_GE(cow_copied_ahead(&m->before),
			  expected_ahead(variant->ahead));
	check_child(_metadata);
}

/* The same in a random order: windows with holes. */
TEST_F_TIMEOUT(secondary_mmu, read_after_random_writes, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	bool written[PAGES] = {};
	__u64 state = 1;
	unsigned int page, i;

	share_and_mirror(_metadata, m);
	for (i = 0; i < PAGES; i++) {
		do {
			page = cow_rand(&state) % PAGES;
		} while (written[page]);
		fill(m->area, m->ps, page, NEW);
		written[page] = true;
		ASSERT_GE(device_read(m->fd, m->area, m->buf, m->ps), 0);
		for (page = 0; page < PAGES; page++) {
			ASSERT_EQ(tag_of(m->buf, m->ps, page),
				  written[page] ? NEW : OLD)
				TH_LOG("page %u after %u writes", page, i + 1);
		}
	}
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&m->before), 0ULL);
	check_child(_metadata);
}

/*
 * The device writes to what we wrote or what was copied ahead: we see it, the
 * child does not.
 */
TEST_F_TIMEOUT(secondary_mmu, device_writes_after, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page, group;

	/* All up to the end of 16 aligned pages, without evidence */
	if (variant->ahead == COW_ADAPTIVE)
		ASSERT_EQ(madvise(m->area, PAGES * m->ps, MADV_SEQUENTIAL), 0);
	share_and_mirror(_metadata, m);
	for (page = 0; page < PAGES; page++)
		fill(m->buf, m->ps, page, DEV);
	for (group = 0; group < PAGES; group += GROUP) {
		/* This page by us, the others of its window by the device */
		fill(m->area, m->ps, group, NEW);
		ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_WRITE,
				     m->area + (group + 1) * m->ps,
				     m->buf + (group + 1) * m->ps,
				     GROUP - 1), 0);
	}
	if (variant->ahead)
		EXPECT_GE(cow_copied_ahead(&m->before), (unsigned long long)GROUPS *
			  (variant->ahead == COW_ADAPTIVE ? COW_ADAPTIVE_MAX :
			   variant->ahead));
	for (page = 0; page < PAGES; page++) {
		ASSERT_EQ(tag_of(m->area, m->ps, page),
			  page % GROUP ? DEV : NEW)
			TH_LOG("page %u", page);
	}
	/* Again, with writable entries in the device's page table. */
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, NEW);
	check_device(_metadata, m, PAGES);
	check_child(_metadata);
}

/*
 * A device's write copies nothing ahead: a fault for a device or for another address
 * space handles only the requested page.
 */
TEST_F_TIMEOUT(secondary_mmu, device_writes_first, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page;

	/* Without it an adaptive window would not open in any case. */
	if (variant->ahead == COW_ADAPTIVE)
		ASSERT_EQ(madvise(m->area, PAGES * m->ps, MADV_SEQUENTIAL), 0);
	share_and_mirror(_metadata, m);
	for (page = 0; page < PAGES; page++)
		fill(m->buf, m->ps, page, DEV);
	/* The call unshares the stack pages that it needs; this page is not checked. */
	ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_READ, m->buf, m->buf + m->ps,
			     1), 0);
	ASSERT_EQ(cow_count_own(&m->before), 0);
	ASSERT_EQ(cow_count_own(&m->before), 0);
	for (page = 0; page < PAGES; page += GROUP) {
		ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_WRITE,
				     m->area + page * m->ps,
				     m->buf + page * m->ps, 1), 0);
	}
	EXPECT_EQ(cow_copied_ahead(&m->before), 0ULL);
	for (page = 0; page < PAGES; page++) {
		ASSERT_EQ(tag_of(m->area, m->ps, page),
			  page % GROUP ? OLD : DEV)
			TH_LOG("page %u", page);
	}
	/* These pages are in the way of the windows now. */
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, NEW);
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&m->before), 0ULL);
	check_device(_metadata, m, PAGES);
	check_child(_metadata);
}

/*
 * Write faults on other than anonymous pages (the zero page, a private file), and copies
 * without a write (unsharing): the device must be notified as well.
 */

/* The device has all pages of the area, which are then written to. */
static void write_mirrored(struct __test_metadata *_metadata, struct mirror *m)
{
	unsigned int page;

	ASSERT_EQ(device_read(m->fd, m->area, m->buf, m->ps), PAGES);
	ASSERT_EQ(device_read(m->fd, m->area, m->buf, m->ps), 0);
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, NEW);
	check_device(_metadata, m, PAGES);
}

TEST_F_TIMEOUT(secondary_mmu, zero_page, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;

	m->area = cow_map(PAGES * m->ps, PAGES * m->ps);
	ASSERT_NE(m->area, NULL);
	write_mirrored(_metadata, m);
}

/* The first write replaces all of the huge zero page. */
TEST_F_TIMEOUT(secondary_mmu, huge_zero_page, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	const char *reason;

	reason = cow_map_huge_zero(&self->undo, &m->area);
	if (reason)
		SKIP(return, "%s", reason);
	write_mirrored(_metadata, m);
}

TEST_F_TIMEOUT(secondary_mmu, private_file, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	size_t len = PAGES * m->ps;
	int fd = memfd_create("cow", MFD_CLOEXEC);

	ASSERT_GE(fd, 0);
	ASSERT_EQ(write(fd, m->area, len), (ssize_t)len);
	m->area = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(m->area, MAP_FAILED);
	write_mirrored(_metadata, m);
	close(fd);
}

/* A part of a hugetlb page: the first write copies all of it. */
TEST_F_TIMEOUT(secondary_mmu, hugetlb, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	const char *reason;
	unsigned int page;
	size_t len;

	reason = cow_map_hugetlb(&self->undo, &m->area, &len);
	if (reason)
		SKIP(return, "%s", reason);
	if (len < PAGES * m->ps)
		SKIP(return, "a hugetlb page is too small");
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, OLD);
	share_and_mirror(_metadata, m);
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, NEW);
	check_device(_metadata, m, PAGES);
	check_child(_metadata);
}

/* Copied for somebody who pins it for reading: the write that follows copies nothing. */
TEST_F_TIMEOUT(secondary_mmu, unshared, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page;
	int ret;

	share_and_mirror(_metadata, m);
	for (page = 0; page < PAGES; page++) {
		ret = cow_unshare(m->area + page * m->ps);
		if (ret) {
			check_child(_metadata);
			SKIP(return, "process_vm_readv: %s", strerror(-ret));
		}
	}
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, NEW);
	check_device(_metadata, m, PAGES);
	check_child(_metadata);
}

static void expect_soft_dirty(struct __test_metadata *_metadata, struct mirror *m,
			      bool dirty)
{
	unsigned int page;

	for (page = 0; page < PAGES; page++)
		EXPECT_EQ(dirty, !!(cow_pagemap(m->area + page * m->ps) &
				    COW_PM_SOFT_DIRTY))
			TH_LOG("page %u", page);
}

/* What the device writes after clear_refs is reported, also where it could write before. */
TEST_F_TIMEOUT(secondary_mmu, soft_dirty, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	for (page = 0; page < PAGES; page++)
		fill(m->buf, m->ps, page, DEV);
	ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	/* The entries of the device are writable: */
	ASSERT_EQ(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	ASSERT_EQ(cow_write_file("/proc/self/clear_refs", "4"), 0);
	expect_soft_dirty(_metadata, m, false);
	ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	expect_soft_dirty(_metadata, m, true);
	for (page = 0; page < PAGES; page++)
		ASSERT_EQ(tag_of(m->area, m->ps, page), DEV);
}

/*
 * Pages that the kernel takes away, or moves, while the device may write to them
 */

/* All pages are the device's, which has written to them. */
static void write_by_device(struct __test_metadata *_metadata, struct mirror *m)
{
	unsigned int page;

	for (page = 0; page < PAGES; page++)
		fill(m->buf, m->ps, page, DEV);
	ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	/* Its entries are writable, and stay. */
	ASSERT_EQ(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
}

/*
 * Other frames have the content now. The device has no entry left, sees what we write to
 * the new frames, and writes to them itself.
 */
static void check_replaced(struct __test_metadata *_metadata, struct mirror *m)
{
	unsigned int page;

	for (page = 1; page < PAGES; page += 2)
		fill(m->area, m->ps, page, NEW);
	ASSERT_EQ(device_read(m->fd, m->area, m->buf, m->ps), PAGES)
		TH_LOG("the device still has entries for pages that were unmapped");
	for (page = 0; page < PAGES; page++)
		ASSERT_EQ(tag_of(m->buf, m->ps, page), page % 2 ? NEW : DEV)
			TH_LOG("page %u of the device", page);
	write_by_device(_metadata, m);
	for (page = 0; page < PAGES; page++)
		ASSERT_EQ(tag_of(m->area, m->ps, page), DEV)
			TH_LOG("page %u", page);
}

TEST_F_TIMEOUT(secondary_mmu, reclaimed, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;

	write_by_device(_metadata, m);
	if (!cow_page_out(m->area, PAGES))
		SKIP(return, "the pages do not go to swap");
	check_replaced(_metadata, m);
}

/* Small pages become a huge page, and are freed. */
TEST_F_TIMEOUT(secondary_mmu, collapsed, TEST_TIMEOUT)
{
	size_t len = cow_pmd_size();
	struct mirror *m = &self->m;
	const char *reason;
	int ret;

	/* Allows huge pages */
	reason = cow_map_huge(&self->undo, &m->area, len, OLD);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(madvise(m->area, len, MADV_DONTNEED), 0);
	cow_fill(m->area, len, OLD);
	write_by_device(_metadata, m);
	ASSERT_EQ(cow_smaps_kb(m->area, "AnonHugePages"), 0);
	ret = cow_collapse(m->area);
	if (ret)
		SKIP(return, "no MADV_COLLAPSE: %s", strerror(ret));
	check_replaced(_metadata, m);
}

TEST_F_TIMEOUT(secondary_mmu, migrated, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;

	write_by_device(_metadata, m);
	if (!cow_move_to_another_node(m->area, PAGES))
		SKIP(return, "needs two NUMA nodes with memory");
	check_replaced(_metadata, m);
}

/*
 * Pages that the process gives up, protects or shares while the device may write to them
 */

/* The device has no entry left: it finds new pages, which are empty. */
static void check_dropped(struct __test_metadata *_metadata, struct mirror *m)
{
	ASSERT_EQ(device_read(m->fd, m->area, m->buf, m->ps), PAGES)
		TH_LOG("the device still has entries for pages that were freed");
	EXPECT_TRUE(cow_is_zero(m->buf, PAGES * m->ps));
}

TEST_F_TIMEOUT(secondary_mmu, dropped, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	size_t len = PAGES * m->ps;

	write_by_device(_metadata, m);
	ASSERT_EQ(madvise(m->area, len, MADV_DONTNEED), 0);
	check_dropped(_metadata, m);
	write_by_device(_metadata, m);
	ASSERT_EQ(mmap(m->area, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), m->area);
	check_dropped(_metadata, m);
}

/* Pages that are somewhere else now are not here any more. */
static void check_moved(struct __test_metadata *_metadata, struct mirror *m, const char *to)
{
	unsigned int page;

	check_dropped(_metadata, m);
	for (page = 0; page < PAGES; page++)
		ASSERT_EQ(tag_of(to, m->ps, page), DEV);
}

TEST_F_TIMEOUT(secondary_mmu, moved, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	size_t len = PAGES * m->ps;
	char *to;

	write_by_device(_metadata, m);
	to = mremap(m->area, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	ASSERT_NE(to, MAP_FAILED);
	check_moved(_metadata, m, to);
}

static void move_by_userfaultfd(struct __test_metadata *_metadata, struct mirror *m, size_t len)
{
	char *to = cow_map(len, len);
	const char *reason;
	int uffd;

	ASSERT_NE(to, NULL);
	reason = cow_uffd_missing(&uffd, to, len, UFFD_FEATURE_MOVE);
	if (reason)
		SKIP(return, "%s", reason);
	write_by_device(_metadata, m);
	ASSERT_EQ(cow_drain_lru(), 0);
	ASSERT_EQ(cow_uffd_move(uffd, to, m->area, len, NULL), 0);
	check_moved(_metadata, m, to);
	close(uffd);
}

TEST_F_TIMEOUT(secondary_mmu, moved_by_userfaultfd, TEST_TIMEOUT)
{
	move_by_userfaultfd(_metadata, &self->m, PAGES * self->m.ps);
}

TEST_F_TIMEOUT(secondary_mmu, moved_by_userfaultfd_huge, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	size_t len = cow_pmd_size();
	const char *reason;

	reason = cow_map_huge(&self->undo, &m->area, len, OLD);
	if (reason)
		SKIP(return, "%s", reason);
	move_by_userfaultfd(_metadata, m, len);
}

/* A fork shares the pages, wherever they are, and the child keeps what they were. */
static void share_and_write(struct __test_metadata *_metadata, struct mirror *m)
{
	struct snapshot snap = { .area = m->area, .ps = m->ps };
	unsigned int page;

	ASSERT_EQ(cow_child_fork(&child, check_snapshot, &snap), 0);
	ASSERT_EQ(cow_child_recv(&child), 1);
	for (page = 0; page < PAGES; page++)
		fill(m->area, m->ps, page, NEW);
	check_child(_metadata);
	for (page = 0; page < PAGES; page++)
		EXPECT_EQ(tag_of(m->area, m->ps, page), NEW)
			TH_LOG("page %u", page);
}

/* A page that somebody else has just taken off the LRU stays: try again. */
static bool to_device(struct mirror *m)
{
	int i;

	for (i = 0; i < 10; i++) {
		if (device_cmd(m->fd, HMM_DMIRROR_MIGRATE_TO_DEV, m->area, m->buf, PAGES) >= 0)
			return true;
		usleep(10000);
	}
	return false;
}

/* Pages in the device's own memory come back to who touches them. */
TEST_F_TIMEOUT(secondary_mmu, in_device_memory, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;

	if (!to_device(m))
		SKIP(return, "pages do not move to the device");
	share_and_write(_metadata, m);
}

static int pages_protected(const struct mirror *m)
{
	int page, nr = 0;

	for (page = 0; page < PAGES; page++)
		nr += !!(cow_pagemap(m->area + page * m->ps) & COW_PM_UFFD_WP);
	return nr;
}

/* userfaultfd protects them on the way there, in a fork, and on the way back. */
TEST_F_TIMEOUT(secondary_mmu, protected_in_device_memory, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page;
	int fd;

	if (cow_uffd_wp(&fd, m->area, PAGES * m->ps, UFFD_FEATURE_WP_ASYNC))
		SKIP(return, "no asynchronous write protection by userfaultfd");
	if (!to_device(m))
		SKIP(return, "pages do not move to the device");
	/* And back, to be protected */
	for (page = 0; page < PAGES; page++)
		cow_peek(m->area + page * m->ps);
	ASSERT_EQ(cow_uffd_protect(fd, m->area, PAGES * m->ps, true), 0);
	ASSERT_TRUE(to_device(m));
	EXPECT_EQ(pages_protected(m), PAGES);
	ASSERT_EQ(cow_child_idle(&child), 0);
	EXPECT_EQ(pages_protected(m), PAGES);
	for (page = 0; page < PAGES; page++)
		cow_peek(m->area + page * m->ps);
	EXPECT_EQ(pages_protected(m), PAGES);
	EXPECT_EQ(cow_child_end(&child), 0);
	for (page = 1; page < PAGES; page += 2)
		fill(m->area, m->ps, page, NEW);
	for (page = 0; page < PAGES; page++)
		EXPECT_EQ(!!(cow_pagemap(m->area + page * m->ps) & COW_PM_UFFD_WP), page % 2 == 0)
			TH_LOG("page %u", page);
	close(fd);
}

/* Pages that nobody but the device may use, for its atomic operations, until they are touched */
TEST_F_TIMEOUT(secondary_mmu, exclusive_to_device, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page;

	/* Linux 6.12 refuses all pages of a large folio but the first, again and again. */
	if (variant->folios)
		SKIP(return, "of small pages only");
	if (device_cmd(m->fd, HMM_DMIRROR_EXCLUSIVE, m->area, m->buf, PAGES) < 0)
		SKIP(return, "the device gets no page for itself");
	for (page = 0; page < PAGES; page++)
		ASSERT_EQ(cow_pagemap(m->area + page * m->ps) & COW_PM_PRESENT, 0);
	share_and_write(_metadata, m);
	check_device(_metadata, m, PAGES);
}

TEST_F_TIMEOUT(secondary_mmu, protected, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	size_t len = PAGES * m->ps;
	unsigned int page;
	const char *reason;
	int uffd;

	reason = cow_uffd_wp(&uffd, m->area, len, UFFD_FEATURE_WP_ASYNC);
	if (reason)
		SKIP(return, "%s", reason);
	write_by_device(_metadata, m);
	ASSERT_EQ(cow_uffd_protect(uffd, m->area, len, true), 0);
	for (page = 0; page < PAGES; page++)
		ASSERT_NE(cow_pagemap(m->area + page * m->ps) & COW_PM_UFFD_WP, 0);
	EXPECT_GT(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	for (page = 0; page < PAGES; page++)
		EXPECT_EQ(cow_pagemap(m->area + page * m->ps) & COW_PM_UFFD_WP, 0)
			TH_LOG("page %u was written to, and nobody was told", page);
	close(uffd);
	/* Nor may the device write where the process may not. */
	ASSERT_EQ(mprotect(m->area, len, PROT_READ), 0);
	EXPECT_EQ(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), -EPERM);
}

/* Asking what was written protects it again, from the device as well. */
TEST_F_TIMEOUT(secondary_mmu, protected_by_scan, TEST_TIMEOUT)
{
	static const struct cow_scan scan;
	struct mirror *m = &self->m;
	unsigned char times[PAGES];
	unsigned int page;
	const char *reason;
	int uffd;

	reason = cow_uffd_wp(&uffd, m->area, PAGES * m->ps, UFFD_FEATURE_WP_ASYNC);
	if (reason)
		SKIP(return, "%s", reason);
	write_by_device(_metadata, m);
	ASSERT_EQ(cow_scan_written(m->area, PAGES, &scan, times), 0);
	EXPECT_GT(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	memset(times, 0, sizeof(times));
	ASSERT_EQ(cow_scan_written(m->area, PAGES, &scan, times), 0);
	for (page = 0; page < PAGES; page++)
		EXPECT_EQ(times[page], 1)
			TH_LOG("page %u was written to, and nobody was told", page);
	close(uffd);
}

/*
 * KSM shares equal pages: what the device writes to one is not in the others. Every other
 * page is: the driver drops the one behind a page as well, which would hide that it was
 * not told of that.
 */
TEST_F_TIMEOUT(secondary_mmu, merged, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	unsigned int page, other;
	size_t ps = m->ps;
	long merged;

	for (page = 0; page < PAGES; page += 2) {
		memset(m->buf + page * ps, 'k', ps);
		fill(m->buf, ps, page + 1, DEV);
	}
	ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	ASSERT_EQ(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area, m->buf, PAGES), 0);
	merged = cow_ksm_merge(&self->undo, m->area, PAGES * ps, PAGES / 2);
	if (merged < PAGES / 2)
		SKIP(return, "KSM has merged %ld pages", merged);
	for (page = 0; page < PAGES; page += 2) {
		fill(m->buf, ps, page, DEV);
		ASSERT_GE(device_cmd(m->fd, HMM_DMIRROR_WRITE, m->area + page * ps,
				     m->buf + page * ps, 1), 0);
		for (other = page + 2; other < PAGES; other += 2)
			ASSERT_EQ(cow_peek(m->area + other * ps), 'k')
				TH_LOG("page %u has changed with page %u", other, page);
	}
	for (page = 0; page < PAGES; page++)
		EXPECT_EQ(tag_of(m->area, ps, page), DEV)
			TH_LOG("page %u", page);
}

/*
 * The device reads while we write
 */

struct race {
	int fd;
	char *area;
	char *buf;
	size_t ps;
	unsigned int written;	/* pages, so far */
	unsigned int reads;
	int err;		/* what ended the reader */
	unsigned int page;	/* where it saw something wrong */
};

static void *read_all_the_time(void *arg)
{
	struct race *race = arg;
	unsigned int written, page;
	int ret, tag;

	cow_leave_cpu();
	do {
		written = __atomic_load_n(&race->written, __ATOMIC_ACQUIRE);
		ret = device_read(race->fd, race->area, race->buf, race->ps);
		if (ret < 0) {
			race->err = -ret;
			break;
		}
		__atomic_add_fetch(&race->reads, 1, __ATOMIC_RELAXED);
		/* Those after that may be half written. */
		for (page = 0; page < written; page++) {
			tag = tag_of(race->buf, race->ps, page);
			if (tag != NEW) {
				race->page = page;
				race->err = tag == OLD ? ESTALE : EILSEQ;
				return NULL;
			}
		}
	} while (written < PAGES);
	return NULL;
}

TEST_F_TIMEOUT(secondary_mmu, read_while_writing, TEST_TIMEOUT)
{
	struct mirror *m = &self->m;
	struct race *race;
	unsigned int page, round, reads;
	pthread_t thread;

	/* Shared: the pages are no part of the test. */
	race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(race, MAP_FAILED);

	for (round = 0; round < ROUNDS; round++) {
		for (page = 0; page < PAGES; page++)
			fill(m->area, m->ps, page, OLD);
		share_and_mirror(_metadata, m);
		memset(race, 0, sizeof(*race));
		race->fd = m->fd;
		race->area = m->area;
		race->buf = m->buf;
		race->ps = m->ps;
		ASSERT_EQ(pthread_create(&thread, NULL, read_all_the_time,
					 race), 0);
		for (page = 0; page < PAGES; page++) {
			/* Not all of them before the device has read once */
			reads = __atomic_load_n(&race->reads, __ATOMIC_RELAXED);
			fill(m->area, m->ps, page, NEW);
			__atomic_store_n(&race->written, page + 1,
					 __ATOMIC_RELEASE);
			while (page % 8 == 7 && reads ==
			       __atomic_load_n(&race->reads, __ATOMIC_RELAXED) &&
			       !__atomic_load_n(&race->err, __ATOMIC_RELAXED))
				sched_yield();
		}
		ASSERT_EQ(pthread_join(thread, NULL), 0);
		ASSERT_EQ(race->err, 0)
			TH_LOG("page %u of the device: %s", race->page,
			       strerror(race->err));
		check_child(_metadata);
	}
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&m->before), 0ULL);
	munmap(race, sizeof(*race));
}

#else /* !HAVE_TEST_HMM */

TEST(secondary_mmu)
{
	SKIP(return, "built outside of a kernel tree, without lib/test_hmm_uapi.h");
}

#endif

TEST_HARNESS_MAIN
