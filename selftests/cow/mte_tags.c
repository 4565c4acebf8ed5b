// SPDX-License-Identifier: GPL-2.0
/*
 * arm64's Memory Tagging Extension has a tag of four bits for each 16 bytes. A
 * page that is copied, or made writable, ahead must keep its tags as it keeps its
 * data, in the process that writes and in the one that shared it; and a tag that
 * one of them sets later is its own.
 *
 * Tags are set and read by instructions that do not check them, and checking is
 * off for all other accesses: a wrong tag is reported, instead of a signal.
 *
 * QEMU 7.2 keeps one tag only for all of a page's odd granules, and one for the
 * even ones. Where that is so, the tests look at one granule of each page.
 */
#include <sys/auxv.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#ifndef PROT_MTE
#define PROT_MTE	0x20
#endif
#ifndef HWCAP2_MTE
#define HWCAP2_MTE	0x40000
#endif

#define NR		256	/* pages */
#define FILL		42	/* of the data */
#define GRANULE		16
#define TAG_SHIFT	56

#define FOLIO_STAT \
	"/sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/anon_fault_alloc"

#ifdef __aarch64__
static bool have_mte(void)
{
	return getauxval(AT_HWCAP2) & HWCAP2_MTE;
}

static void tag_store(void *addr, unsigned int tag)
{
	__u64 tagged = (uintptr_t)addr | (__u64)tag << TAG_SHIFT;

	asm volatile(".arch armv8.5-a+memtag\n\t"
		     "stg %0, [%1]"
		     : : "r" (tagged), "r" (addr) : "memory");
}

static unsigned int tag_load(const void *addr)
{
	__u64 tagged = 0;

	asm volatile(".arch armv8.5-a+memtag\n\t"
		     "ldg %0, [%1]"
		     : "+r" (tagged) : "r" (addr) : "memory");
	return tagged >> TAG_SHIFT & 15;
}
#else
static bool have_mte(void)
{
	return false;
}

static void tag_store(void *addr, unsigned int tag)
{
}

static unsigned int tag_load(const void *addr)
{
	return 0;
}
#endif

static size_t ps;
static size_t step;	/* from one tag that is looked at to the next */

/* Another one for each granule of a page, and for each page and salt; never 0 */
static unsigned int tag_of(const void *addr, unsigned int salt)
{
	uintptr_t a = (uintptr_t)addr;

	return (a / GRANULE + a / ps * 7 + salt) % 15 + 1;
}

static void tags_store(char *addr, size_t len, unsigned int salt)
{
	size_t i;

	for (i = 0; i < len; i += step)
		tag_store(addr + i, tag_of(addr + i, salt));
}

/* -1 if all is as tags_store() left it, else the offset of the first bad tag */
static ssize_t tags_check(const char *addr, size_t len, unsigned int salt)
{
	size_t i;

	for (i = 0; i < len; i += step) {
		if (tag_load(addr + i) != tag_of(addr + i, salt))
			return i;
	}
	return -1;
}

/* GRANULE, unless all of a page have the same tag */
static size_t find_step(char *page)
{
	tag_store(page, 1);
	tag_store(page + 2 * GRANULE, 2);
	return tag_load(page) == 1 ? GRANULE : ps;
}

FIXTURE(mte_tags) {
	struct cow_settings saved;
	struct cow_undo undo;
	struct cow_child child;
	char *area;
};

FIXTURE_VARIANT(mte_tags) {
	int ahead;
	bool folios;
};

FIXTURE_VARIANT_ADD(mte_tags, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(mte_tags, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(mte_tags, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(mte_tags, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(mte_tags, folios) { .ahead = COW_ADAPTIVE, .folios = true };

FIXTURE_SETUP(mte_tags)
{
	const char *reason = NULL;

	if (!have_mte())
		SKIP(return, "no memory tags (MTE) on this machine");
	ps = cow_page_size();
	reason = cow_setup(&self->saved, variant->ahead,
			   COW_WANT_STATS | COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	if (variant->folios)
		reason = cow_allow_folios(&self->undo);
	if (reason) {
		cow_restore(&self->saved);
		SKIP(return, "%s", reason);
	}
	ASSERT_EQ(0, cow_pin_cpu());
	cow_map_hugepage = variant->folios;
	self->area = cow_map(NR * ps, cow_pmd_size());
	ASSERT_NE(NULL, self->area);
	ASSERT_EQ(0, mprotect(self->area, NR * ps,
			      PROT_READ | PROT_WRITE | PROT_MTE));
	/* Else no run is worth a whole block where hardware notes no writes. */
	if (variant->folios)
		ASSERT_EQ(0, madvise(self->area, NR * ps, MADV_SEQUENTIAL));
	cow_fill(self->area, NR * ps, FILL);
	step = find_step(self->area);
	if (step != GRANULE)
		TH_LOG("this machine has one tag for each page only");
	tags_store(self->area, NR * ps, 0);
	ASSERT_EQ(-1, tags_check(self->area, NR * ps, 0));
}

FIXTURE_TEARDOWN_PARENT(mte_tags)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* Before it exits, it checks that its data and tags are as at fork(). */
static int keeps(struct cow_child *self, void *arg)
{
	const char *area = arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 1;
	if (cow_check(area, NR * ps, FILL) != -1)
		return 2;
	return tags_check(area, NR * ps, 0) == -1 ? 0 : 3;
}

/* The same by the one that writes: half of the pages, so that it copies ahead. */
static int writes(struct cow_child *self, void *arg)
{
	char *area = arg;
	int i;

	for (i = 0; i < NR / 2; i++)
		cow_touch(area + i * ps, 'w');
	for (i = 0; i < NR; i++) {
		if (cow_check(area + i * ps + 8, ps - 8, FILL) != -1)
			return 2;
	}
	if (tags_check(area, NR * ps, 0) != -1)
		return 3;
	tags_store(area, NR / 2 * ps, 1);
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 1;
	return tags_check(area, NR / 2 * ps, 1) == -1 ? 0 : 4;
}

static void share(struct __test_metadata *_metadata,
		  FIXTURE_DATA(mte_tags) *self, cow_child_fn fn)
{
	ASSERT_EQ(0, cow_child_fork(&self->child, fn, self->area));
	ASSERT_EQ(1, cow_child_recv(&self->child));
	ASSERT_EQ(0, cow_child_settle(&self->child));
}

/* The data of our pages are as they were, but for the word that we write to. */
static void check_data(struct __test_metadata *_metadata,
		       FIXTURE_DATA(mte_tags) *self)
{
	int i;

	for (i = 0; i < NR; i++) {
		ASSERT_EQ(-1, cow_check(self->area + i * ps + 8, ps - 8, FILL)) {
			TH_LOG("data of page %d", i);
		}
	}
}

static void check_tags(struct __test_metadata *_metadata,
		       FIXTURE_DATA(mte_tags) *self, int first, int nr,
		       unsigned int salt)
{
	ssize_t bad = tags_check(self->area + first * ps, nr * ps, salt);

	EXPECT_EQ(-1, bad) {
		TH_LOG("wrong tags in page %zd", first + bad / (ssize_t)ps);
	}
}

/* How many folios of 64 kB were made for anonymous memory; 0 if nobody counts */
static long folios_made(void)
{
	long nr;

	return cow_read_long(FOLIO_STAT, &nr) ? 0 : nr;
}

/* The last window lies behind what is written, and is copied nevertheless. */
TEST_F_TIMEOUT(mte_tags, copied_by_parent, TEST_TIMEOUT)
{
	long folios = folios_made();
	struct cow_measure m;

	share(_metadata, self, keeps);
	ASSERT_EQ(0, cow_measure(&m, self->area, NULL, NR / 2));
	if (variant->ahead) {
		EXPECT_LT(0, m.d.v[COW_SUCCESS]);
	}
	if (variant->folios) {
		EXPECT_LT(folios, folios_made());
	}
	check_data(_metadata, self);
	check_tags(_metadata, self, 0, NR, 0);
	/* From now on ours are others; the child looks at its own at its end. */
	tags_store(self->area, NR * ps, 1);
	check_tags(_metadata, self, 0, NR, 1);
	EXPECT_EQ(0, cow_child_end(&self->child));
}

TEST_F_TIMEOUT(mte_tags, copied_by_child, TEST_TIMEOUT)
{
	share(_metadata, self, writes);
	EXPECT_EQ(-1, cow_check(self->area, NR * ps, FILL));
	check_tags(_metadata, self, 0, NR, 0);
	EXPECT_EQ(0, cow_child_end(&self->child));
}

/* The child has exited: an adaptive window reuses pages ahead. */
TEST_F_TIMEOUT(mte_tags, reused, TEST_TIMEOUT)
{
	struct cow_measure m;

	share(_metadata, self, keeps);
	EXPECT_EQ(0, cow_child_end(&self->child));
	ASSERT_EQ(0, cow_drain_lru());
	ASSERT_EQ(0, cow_measure(&m, self->area, NULL, NR / 2));
	EXPECT_EQ(0, m.d.v[COW_SUCCESS]);
	if (variant->ahead == COW_ADAPTIVE) {
		EXPECT_LT(0, m.d.v[COW_REUSE_AHEAD]);
	}
	check_data(_metadata, self);
	check_tags(_metadata, self, 0, NR, 0);
}

/* Tags go to swap and come back, to whichever process accesses the page first. */
TEST_F_TIMEOUT(mte_tags, swapped_out, TEST_TIMEOUT)
{
	struct cow_measure m;

	if (!cow_page_out(self->area, NR))
		SKIP(return, "the pages do not go to swap");
	share(_metadata, self, keeps);
	ASSERT_EQ(0, cow_measure(&m, self->area, NULL, NR / 2));
	check_data(_metadata, self);
	check_tags(_metadata, self, 0, NR, 0);
	tags_store(self->area, NR * ps, 1);
	EXPECT_EQ(0, cow_child_end(&self->child));
	check_tags(_metadata, self, 0, NR, 1);
}

/* Never tagged: a copy must not bring tags of what the page held before. */
TEST_F_TIMEOUT(mte_tags, untagged, TEST_TIMEOUT)
{
	struct cow_measure m;
	size_t i;

	ASSERT_EQ(0, madvise(self->area, NR * ps, MADV_DONTNEED));
	cow_fill(self->area, NR * ps, FILL);
	ASSERT_EQ(0, cow_child_idle(&self->child));
	ASSERT_EQ(0, cow_measure(&m, self->area, NULL, NR / 2));
	check_data(_metadata, self);
	for (i = 0; i < NR * ps; i += step) {
		ASSERT_EQ(0, tag_load(self->area + i)) {
			TH_LOG("a tag in page %zu", i / ps);
		}
	}
	EXPECT_EQ(0, cow_child_end(&self->child));
}

TEST_HARNESS_MAIN
