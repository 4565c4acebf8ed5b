// SPDX-License-Identifier: GPL-2.0
/*
 * The adaptive window (vm.cow_precopy_pages=0): the kernel chooses the pages to copy
 * ahead, and those to make writable ahead, by what was written around the fault. The
 * tests do not know which pages it chooses. They check what a program may rely on:
 *
 * - lone writes copy nothing ahead;
 * - long runs take few faults, in either direction;
 * - at any time there are at most as many unused copies as pages copied on demand;
 * - a page that another process still maps is copied, never made writable.
 *
 * All counters are those of this process, so their values are exact.
 *
 * The environment variable COW_SEED repeats the random orders of a run.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <time.h>

#include "../../../../mm/gup_test.h"
#include "kselftest_harness.h"
#include "cow_helpers.h"

#define GUP_TEST	"/sys/kernel/debug/gup_test"

#define NR		4096	/* pages of most tests */
#define MAX_NR		8192
#define TAG		11

static size_t ps, table;	/* bytes of a page, pages of a page table */
static __u64 seed;
static char *map, *area;
static size_t map_len;
static struct cow_child child;
static __u64 pfn_then[MAX_NR], pfn_now[MAX_NR];
static int order[MAX_NR];
static bool written[MAX_NR];
static struct cow_stats before, after, cost;
static long minflt;

static bool folios;

FIXTURE(adaptive)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char cgroup[COW_CGROUP_DIR];
};

/* A whole block may be copied into one large folio, or page by page. */
FIXTURE_VARIANT(adaptive)
{
	bool folios;
};

FIXTURE_VARIANT_ADD(adaptive, pages) { .folios = false };
FIXTURE_VARIANT_ADD(adaptive, folios) { .folios = true };

FIXTURE_SETUP(adaptive)
{
	const char *reason;

	if (!cow_pfn_visible())
		SKIP(return, "reading frame numbers needs root");
	folios = variant->folios;
	reason = cow_setup_folios(&self->saved, &self->undo, COW_ADAPTIVE, folios,
				  COW_WANT_STATS);
	if (reason)
		SKIP(return, "%s", reason);
	ps = cow_page_size();
	table = cow_pmd_size() / ps;
	seed = cow_seed();
	ASSERT_EQ(0, cow_pin_cpu());
}

FIXTURE_TEARDOWN_PARENT(adaptive)
{
	cow_cgroup_remove(self->cgroup);
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* Waits for the parent, then checks that its memory has not changed. */
static int keeps(struct cow_child *self, void *arg)
{
	size_t len = *(size_t *)arg;

	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 1;
	return cow_check(area, len, TAG) == -1 ? 0 : 2;
}

/*
 * Memory aligned to a page table, all of it below one PUD entry: the kernel looks for a
 * run no farther.
 */
static char *map_tables(size_t len)
{
	size_t align = table * ps;

	while (align < len)
		align *= 2;
	return cow_map(len, align);
}

/*
 * Share nr pages with a child. offset: index of the first page in its page table;
 * advice: for madvise(), or 0; gone: the child has exited on return
 */
static void share(struct __test_metadata *_metadata, int nr, size_t offset,
		  int advice, bool gone)
{
	size_t len = nr * ps;

	ASSERT_LE(nr, MAX_NR);
	map_len = len + offset * ps;
	map = map_tables(map_len);
	ASSERT_NE(NULL, map);
	area = map + offset * ps;
	/* All pages of area are in a VMA of their own. */
	if (offset)
		ASSERT_EQ(0, mprotect(map, offset * ps, PROT_READ));
	if (advice)
		ASSERT_EQ(0, madvise(area, len, advice));
	/* Small pages to begin with */
	cow_fill(area, len, TAG);
	if (folios)
		ASSERT_EQ(0, madvise(area, len, MADV_HUGEPAGE));
	ASSERT_EQ(0, cow_child_fork(&child, keeps, &len));
	ASSERT_EQ(1, cow_child_recv(&child));
	ASSERT_EQ(0, cow_child_settle(&child));
	if (gone)
		ASSERT_EQ(0, cow_child_end(&child));
	/* Unshare the pages of these arrays before anything is measured. */
	memset(written, 0, sizeof(written));
	memset(pfn_now, 0, sizeof(pfn_now));
	memset(pfn_then, 0, sizeof(pfn_then));
	ASSERT_EQ(0, cow_pfns(area, nr, pfn_then));
	ASSERT_EQ(0, cow_stats_read_pid(&after, 0));
	ASSERT_EQ(0, cow_stats_read_pid(&after, 0));
}

static void unshare(struct __test_metadata *_metadata, bool gone)
{
	if (!gone)
		EXPECT_EQ(0, cow_child_end(&child));
	cow_unmap(map, map_len);
}

/* Write to the first nr pages of order[]. Sets cost and minflt */
static void write_pages(struct __test_metadata *_metadata, int nr)
{
	int i;

	for (i = 0; i < nr; i++)
		written[order[i]] = true;
	/* The first calls unshare the pages that they write to themselves. */
	minflt = cow_minflt();
	ASSERT_EQ(0, cow_stats_read_pid(&after, 0));
	ASSERT_EQ(0, cow_stats_read_pid(&before, 0));
	minflt = cow_minflt();
	for (i = 0; i < nr; i++)
		cow_touch(area + order[i] * ps, 'w');
	minflt = cow_minflt() - minflt;
	ASSERT_EQ(0, cow_stats_read_pid(&after, 0));
	cow_stats_delta(&cost, &before, &after);
}

/* How many aligned blocks of size pages have copies, and no page that was written to? */
static int count_unused_blocks(int nr, int size)
{
	const size_t first = (size_t)area / ps;
	bool copied = false, used = false;
	int i, unused = 0;

	if (cow_pfns(area, nr, pfn_now))
		return -1;
	for (i = 0; i < nr; i++) {
		used |= written[i];
		copied |= pfn_now[i] != pfn_then[i];
		if ((first + i + 1) % size && i < nr - 1)
			continue;
		unused += copied && !used;
		copied = false;
		used = false;
	}
	return unused;
}

/* How many of the nr pages were copied and not written to? */
static int count_unused(int nr)
{
	return count_unused_blocks(nr, 1);
}

/* Written pages begin with 'w'; nothing else has changed. */
static void check_content(struct __test_metadata *_metadata, int nr)
{
	const size_t word = sizeof(__u64);
	int i;

	for (i = 0; i < nr; i++) {
		char *page = area + i * ps;

		if (!written[i]) {
			ASSERT_EQ(-1, cow_check(page, ps, TAG))
				TH_LOG("page %d", i);
			continue;
		}
		ASSERT_EQ('w', *page)
			TH_LOG("page %d", i);
		ASSERT_EQ(-1, cow_check(page + word, ps - word, TAG))
			TH_LOG("page %d", i);
	}
}

static void log_cost(struct __test_metadata *_metadata)
{
	TH_LOG("%ld faults: %llu copied, %llu reused; COW_SEED=%llu", minflt,
	       cost.v[COW_FAULTS], cost.v[COW_REUSED], seed);
	TH_LOG("ahead: %llu copied, %llu made writable, %llu left out",
	       cost.v[COW_SUCCESS], cost.v[COW_REUSE_AHEAD], cost.skips);
}

/* nr pages written, each copied by a fault or ahead of one, none unused */
static void expect_copied(struct __test_metadata *_metadata, int nr,
			  int percent)
{
	EXPECT_EQ(minflt, (long)cost.v[COW_FAULTS]);
	EXPECT_EQ(nr, cost.v[COW_FAULTS] + cost.v[COW_SUCCESS]);
	EXPECT_EQ(cost.v[COW_SUCCESS], cost.v[COW_ATTEMPTS]);
	EXPECT_EQ(0, cost.v[COW_REUSED] + cost.v[COW_REUSE_AHEAD]);
	EXPECT_LE(100 * minflt, percent * nr)
		log_cost(_metadata);
	EXPECT_EQ(0, count_unused(nr));
}

static void order_upward(int nr)
{
	int i;

	for (i = 0; i < nr; i++)
		order[i] = i;
}

static void order_downward(int nr)
{
	int i;

	for (i = 0; i < nr; i++)
		order[i] = nr - 1 - i;
}

static void order_random(int nr, __u64 *rnd)
{
	int i, k, tmp;

	order_upward(nr);
	for (i = 0; i < nr; i++) {
		k = i + cow_rand(rnd) % (nr - i);
		tmp = order[i];
		order[i] = order[k];
		order[k] = tmp;
	}
}

/*
 * No evidence, no copies
 */

TEST_F_TIMEOUT(adaptive, lone_writes, TEST_TIMEOUT)
{
	const int distance = 3 * COW_BLOCK + 7;
	int i, nr = 0;

	share(_metadata, NR, 0, 0, false);
	for (i = 5; i < NR; i += distance)
		order[nr++] = i;
	write_pages(_metadata, nr);
	EXPECT_EQ(nr, minflt);
	EXPECT_EQ(nr, (int)cost.v[COW_FAULTS]);
	EXPECT_EQ(0, cost.v[COW_ATTEMPTS]);
	EXPECT_EQ(0, count_unused(NR));
	check_content(_metadata, NR);
	unshare(_metadata, false);
}

/* The first and the last page of a VMA and of a page table */
TEST_F_TIMEOUT(adaptive, lone_writes_at_edges, TEST_TIMEOUT)
{
	size_t offset;

	if (3 * table > MAX_NR)
		SKIP(return, "a page table maps too much memory for this test");
	for (offset = 0; offset < table; offset += 7 * table / 16) {
		share(_metadata, 3 * table, offset, 0, false);
		order[0] = 0;
		order[1] = 3 * table - 1;
		order[2] = table - offset - 1;
		order[3] = 2 * table - offset;
		write_pages(_metadata, 4);
		EXPECT_EQ(4, minflt);
		EXPECT_EQ(0, cost.v[COW_ATTEMPTS]);
		EXPECT_EQ(0, count_unused(3 * table));
		unshare(_metadata, false);
	}
}

TEST_F_TIMEOUT(adaptive, strides, TEST_TIMEOUT)
{
	static const int strides[] = { 2, 3, 4, 5, 7, 8, 16, 33 };
	size_t k;
	int i, nr;

	for (k = 0; k < 2 * ARRAY_SIZE(strides); k++) {
		share(_metadata, NR / 2, 100, 0, false);
		nr = 0;
		for (i = 0; i < NR / 2; i += strides[k / 2])
			order[nr++] = k % 2 ? NR / 2 - 1 - i : i;
		write_pages(_metadata, nr);
		EXPECT_EQ(nr, minflt);
		EXPECT_EQ(0, cost.v[COW_ATTEMPTS])
			TH_LOG("a stride of %d pages", strides[k / 2]);
		EXPECT_EQ(0, count_unused(NR / 2));
		unshare(_metadata, false);
	}
}

TEST_F_TIMEOUT(adaptive, sparse, TEST_TIMEOUT)
{
	static const int percent[] = { 1, 5 };
	int nr, unused, faults, round;
	__u64 rnd = seed;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(percent); i++) {
		unused = 0;
		faults = 0;
		for (round = 0; round < 4; round++) {
			share(_metadata, MAX_NR, 0, 0, false);
			nr = MAX_NR * percent[i] / 100;
			order_random(MAX_NR, &rnd);
			write_pages(_metadata, nr);
			unused += count_unused(MAX_NR);
			faults += minflt;
			unshare(_metadata, false);
		}
		EXPECT_LE(100 * unused, 3 * faults)
			TH_LOG("%d %%: %d copies for nothing, %d faults; COW_SEED=%llu",
			       percent[i], unused, faults, seed);
	}
}

TEST_F_TIMEOUT(adaptive, madv_random, TEST_TIMEOUT)
{
	int gone;

	for (gone = 0; gone < 2; gone++) {
		share(_metadata, 512, 0, MADV_RANDOM, gone);
		order_upward(512);
		write_pages(_metadata, 512);
		EXPECT_EQ(512, minflt);
		EXPECT_EQ(gone ? 0 : 512, (int)cost.v[COW_FAULTS]);
		EXPECT_EQ(gone ? 512 : 0, (int)cost.v[COW_REUSED]);
		EXPECT_EQ(0, cost.v[COW_SUCCESS] + cost.v[COW_REUSE_AHEAD]);
		check_content(_metadata, 512);
		unshare(_metadata, gone);
	}
}

/*
 * Runs and dense writes
 */

/* The largest window next to a run */
static int run_window(void)
{
	return cow_hw_dirty() ? COW_ADAPTIVE_MAX : 1;
}

/* Faults per 100 pages in runs */
static int run_percent(void)
{
	return cow_hw_dirty() ? 8 : 51;
}

TEST_F_TIMEOUT(adaptive, forward, TEST_TIMEOUT)
{
	share(_metadata, NR, 0, 0, false);
	order_upward(NR);
	write_pages(_metadata, NR);
	expect_copied(_metadata, NR, run_percent());
	EXPECT_EQ(cow_upward(NR, COW_ADAPTIVE, false).faults, minflt);
	check_content(_metadata, NR);
	unshare(_metadata, false);
}

TEST_F_TIMEOUT(adaptive, backward, TEST_TIMEOUT)
{
	share(_metadata, NR, 0, 0, false);
	order_downward(NR);
	write_pages(_metadata, NR);
	expect_copied(_metadata, NR, run_percent());
	EXPECT_EQ(cow_upward(NR, COW_ADAPTIVE, false).faults, minflt);
	check_content(_metadata, NR);
	unshare(_metadata, false);
}

/* Two runs from the middle, in turns */
TEST_F_TIMEOUT(adaptive, both_ways, TEST_TIMEOUT)
{
	int i;

	share(_metadata, NR, 0, 0, false);
	for (i = 0; i < NR; i++)
		order[i] = i % 2 ? NR / 2 - 1 - i / 2 : NR / 2 + i / 2;
	write_pages(_metadata, NR);
	expect_copied(_metadata, NR, run_percent());
	check_content(_metadata, NR);
	unshare(_metadata, false);
}

TEST_F_TIMEOUT(adaptive, random_permutation, TEST_TIMEOUT)
{
	__u64 rnd = seed;
	int round;

	for (round = 0; round < 3; round++) {
		share(_metadata, NR, 0, 0, false);
		order_random(NR, &rnd);
		write_pages(_metadata, NR);
		/* 50.5 +- 0.8 %, or 83 +- 0.3 % without dirty bits */
		expect_copied(_metadata, NR, cow_hw_dirty() ? 60 : 90);
		check_content(_metadata, NR);
		unshare(_metadata, false);
	}
}

/* Where nothing is copied, four pages are made writable for each copy. */
static int largest_max(int max, bool gone)
{
	if (!gone)
		return max;
	return 4 * (max + 1) > COW_BLOCK ? COW_BLOCK - 1 : 4 * max + 3;
}

TEST_F_TIMEOUT(adaptive, madv_sequential, TEST_TIMEOUT)
{
	static const int at[] = { 0, 1, 5, 14, 15, 16 + 9, 32 + 3 };
	const int max[] = { COW_ADAPTIVE_MAX, 7, 3 };
	int gone, want, size;
	size_t i, k;

	for (i = 0; i < ARRAY_SIZE(at) * ARRAY_SIZE(max); i++) {
		k = i / ARRAY_SIZE(at);
		ASSERT_EQ(0, cow_sysctl_write("cow_precopy_max", max[k]));
		for (gone = 0; gone < 2; gone++) {
			share(_metadata, 128, 64, MADV_SEQUENTIAL, gone);
			order[0] = at[i % ARRAY_SIZE(at)];
			size = largest_max(max[k], gone) + 1;
			want = size - 1 - order[0] % size;
			write_pages(_metadata, 1);
			EXPECT_EQ(gone ? 0 : want, (int)cost.v[COW_SUCCESS]);
			EXPECT_EQ(gone ? want : 0,
				  (int)cost.v[COW_REUSE_AHEAD]);
			EXPECT_EQ(gone ? 0 : want, count_unused(128));
			unshare(_metadata, gone);
		}
	}
}

/* The most pages that one of these writes copied or reused ahead */
static int largest_window(int nr, enum cow_key key)
{
	unsigned long long then, largest = 0;
	int i;

	for (i = 0; i < nr; i++) {
		then = after.v[key];
		cow_touch(area + order[i] * ps, 'w');
		written[order[i]] = true;
		if (cow_stats_read_pid(&after, 0))
			return -1;
		if (after.v[key] - then > largest)
			largest = after.v[key] - then;
	}
	return largest;
}

TEST_F_TIMEOUT(adaptive, max_is_a_bound, TEST_TIMEOUT)
{
	static const int max[] = { 1, 2, 3, 7, 12, 15 };
	const int nr = 640;
	int gone, down, want, largest;
	__u64 rnd = seed;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(max); i++) {
		ASSERT_EQ(0, cow_sysctl_write("cow_precopy_max", max[i]));
		for (gone = 0; gone < 2; gone++) {
			for (down = 0; down < 2; down++) {
				share(_metadata, nr, 0, 0, gone);
				if (down)
					order_downward(nr);
				else
					order_upward(nr);
				largest = largest_window(nr, gone ?
							 COW_REUSE_AHEAD :
							 COW_SUCCESS);
				want = largest_max(max[i], gone);
				if (!gone && want > run_window())
					want = run_window();
				EXPECT_EQ(want, largest);
				check_content(_metadata, nr);
				unshare(_metadata, gone);
			}
		}
		share(_metadata, nr, 0, 0, false);
		order_random(nr, &rnd);
		EXPECT_GE(max[i], largest_window(nr, COW_SUCCESS));
		check_content(_metadata, nr);
		unshare(_metadata, false);
	}
}

/* The end of a page table does not reset the window. */
TEST_F_TIMEOUT(adaptive, across_page_tables, TEST_TIMEOUT)
{
	const int nr = COW_RUN_ENOUGH + 40, more = 8 * (COW_ADAPTIVE_MAX + 1);
	int i, gone, down, window;

	for (i = 0; i < 4; i++) {
		gone = i / 2;
		window = gone ? largest_max(COW_ADAPTIVE_MAX, true) : run_window();
		down = i % 2;
		share(_metadata, nr + more, down ? table - more : table - nr, 0,
		      gone);
		if (down)
			order_downward(nr + more);
		else
			order_upward(nr + more);
		write_pages(_metadata, nr);
		memmove(order, order + nr, more * sizeof(*order));
		write_pages(_metadata, more);
		EXPECT_EQ(more / (window + 1), minflt)
			log_cost(_metadata);
		EXPECT_EQ(0, count_unused(nr + more));
		check_content(_metadata, nr + more);
		unshare(_metadata, gone);
	}
}

/* Writes in one VMA do not open a window in the next. */
TEST_F_TIMEOUT(adaptive, not_across_vmas, TEST_TIMEOUT)
{
	const int half = 256;

	share(_metadata, 2 * half, 0, 0, false);
	ASSERT_EQ(0, madvise(area + half * ps, half * ps, MADV_DONTDUMP));
	order_upward(2 * half);
	write_pages(_metadata, half);
	EXPECT_EQ(0, count_unused(2 * half));
	order[0] = half;
	write_pages(_metadata, 1);
	EXPECT_EQ(0, cost.v[COW_SUCCESS]);
	EXPECT_EQ(0, count_unused(2 * half));
	unshare(_metadata, false);
}

/*
 * The bound
 */

enum how {
	FORWARD,
	BACKWARD,
	RANDOM,
	NEAR,		/* random, but not far */
	STRIDED,
	ABOVE_A_RUN,
	BELOW_A_RUN,
	BOTH_ENDS,
	NR_HOWS
};

/* Up to max pages to write next, into order[] */
static int next_writes(int nr, int max, __u64 *rnd)
{
	int len = 1 + cow_rand(rnd) % max, at = cow_rand(rnd) % nr;
	int low = at, high = at, step = 1, i, page, n = 0;
	enum how how = cow_rand(rnd) % NR_HOWS;

	if (how == STRIDED)
		step = 2 + cow_rand(rnd) % 6;
	/* The nearest page that was written, and its run */
	if (how >= ABOVE_A_RUN) {
		while (high < nr && !written[high])
			high++;
		low = high;
		while (low > 0 && written[low - 1])
			low--;
		while (high < nr && written[high])
			high++;
		if (how != BOTH_ENDS)
			len = 1 + len % 4;
	}
	for (i = 0; i < len; i++) {
		switch (how) {
		case FORWARD:
		case STRIDED:
			page = at + i * step;
			break;
		case BACKWARD:
			page = at - i;
			break;
		case NEAR:
			page = at + cow_rand(rnd) % COW_BLOCK;
			break;
		case ABOVE_A_RUN:
			page = high + i;
			break;
		case BELOW_A_RUN:
			page = low - 1 - i;
			break;
		case BOTH_ENDS:
			page = i % 2 ? low - 1 - i / 2 : high + i / 2;
			break;
		default:
			page = cow_rand(rnd) % nr;
		}
		if (page >= 0 && page < nr)
			order[n++] = page;
	}
	return n;
}

/*
 * Pages that have one dirty bit: a block of a large folio may be mapped as one on arm64
 * (contpte).
 */
static int pages_of_dirty_bit(void)
{
#ifdef __aarch64__
	if (folios)
		return 0x10000 / ps;
#endif
	return 1;
}

/*
 * After each write there are at most as many unused copies as demand faults. (Every
 * page is shared at first, so each fault copies.) In a single block, faults elsewhere
 * cannot hide what it wastes. Where several pages have one dirty bit, they look used as
 * a whole, and the bound is in such blocks.
 */
TEST_F_TIMEOUT(adaptive, waste_is_bounded, TEST_TIMEOUT)
{
	static const int max[] = { 15, 14, 7, 1, 15, 15, 3, 15 };
	static const int lengths[] = { 5, 40, 200 };
	int i, k, n, nr, writes, waste, unused;
	__u64 rnd = seed;
	size_t r, offset;
	long demand;

	for (r = 0; r < 2 * ARRAY_SIZE(max) * ARRAY_SIZE(lengths); r++) {
		k = r / 2 / ARRAY_SIZE(lengths);
		nr = r % 2 ? COW_BLOCK : 1024;
		offset = cow_rand(&rnd) % table;
		if (r % 2)
			offset -= offset % COW_BLOCK;
		ASSERT_EQ(0, cow_sysctl_write("cow_precopy_max", max[k]));
		share(_metadata, nr, offset, 0, false);
		demand = 0;
		unused = 0;
		for (writes = 0; writes < nr; writes += n) {
			n = next_writes(nr, lengths[r / 2 % ARRAY_SIZE(lengths)],
					&rnd);
			for (i = 0; i < n; i++) {
				written[order[i]] = true;
				minflt = cow_minflt();
				cow_touch(area + order[i] * ps, 'w');
				minflt = cow_minflt() - minflt;
				if (!minflt)
					continue;
				demand++;
				waste = count_unused_blocks(nr, pages_of_dirty_bit());
				ASSERT_LE(0, waste);
				ASSERT_LE(waste, demand)
					TH_LOG("vm.cow_precopy_max=%d; COW_SEED=%llu",
					       max[k], seed);
				if (!unused)
					unused = count_unused(nr);
			}
			/* No write chosen: the loop must end all the same. */
			if (!n)
				n = 1;
		}
		if (max[k] > 1 && nr > COW_BLOCK)
			EXPECT_GT(unused, 0);
		check_content(_metadata, nr);
		unshare(_metadata, false);
	}
}

/* Linux 6.12 copies pages of a large folio that nobody else maps; later ones reuse them. */
TEST_F_TIMEOUT(adaptive, large_folios_of_one_process, TEST_TIMEOUT)
{
	if (!folios)
		SKIP(return, "pages of their own");
	if (!cow_hw_dirty())
		SKIP(return, "this CPU does not set dirty bits");
	share(_metadata, NR, 0, MADV_HUGEPAGE, true);
	if (cow_large_pages(area, NR) < NR)
		SKIP(return, "got no large folios");
	order_upward(NR);
	write_pages(_metadata, NR);
	EXPECT_LE(10 * cost.v[COW_FAULTS], NR)
		log_cost(_metadata);
	check_content(_metadata, NR);
	unshare(_metadata, true);
}

/*
 * A clean PTE marks an unused copy. No data may be lost because of it.
 */

TEST_F_TIMEOUT(adaptive, clean_until_written, TEST_TIMEOUT)
{
	int unused;

	if (!cow_hw_dirty())
		SKIP(return, "this CPU does not set dirty bits");
	share(_metadata, 512, 0, 0, false);
	/* A window is open at the end of the run. */
	order_upward(512);
	write_pages(_metadata, 16 * (COW_ADAPTIVE_MAX + 1) + 1);
	unused = count_unused(512);
	ASSERT_EQ(COW_ADAPTIVE_MAX, unused);
	if (cow_smaps_kb(area, "Private_Clean") < 0)
		SKIP(return, "no /proc/self/smaps");
	/* Only the PTEs are clean; the folios, by which reclaim decides, are dirty. */
	EXPECT_EQ(0, cow_smaps_kb(area, "Private_Clean"));
	write_pages(_metadata, 512);
	EXPECT_EQ(0, cow_smaps_kb(area, "Private_Clean"));
	unshare(_metadata, false);
}

static int frees_lazily(struct cow_child *self, void *arg)
{
	size_t *len = arg;

	(void)self;
	return madvise(area, *len, MADV_FREE) != 0;
}

/* A child's MADV_FREE must not discard the parent's data. */
TEST_F_TIMEOUT(adaptive, lazyfree_by_a_child, TEST_TIMEOUT)
{
	struct cow_child other;
	size_t len = 512 * ps;

	share(_metadata, 512, 0, 0, false);
	/* A window is open at the end of the run. */
	order_upward(512);
	write_pages(_metadata, 16 * (COW_ADAPTIVE_MAX + 1) + 1);
	ASSERT_EQ(run_window(), count_unused(512));
	ASSERT_EQ(0, cow_child_end(&child));
	ASSERT_EQ(0, cow_child_fork(&other, frees_lazily, &len));
	ASSERT_EQ(0, cow_child_end(&other));
	if (madvise(area, len, MADV_PAGEOUT))
		SKIP(return, "MADV_PAGEOUT: %s", strerror(errno));
	check_content(_metadata, 512);
	unshare(_metadata, true);
}

/* Reclaim must not drop an unused copy because its PTE is clean. */
TEST_F_TIMEOUT(adaptive, unused_copies_to_swap, TEST_TIMEOUT)
{
	const int nr = 512, run = 16 * (COW_ADAPTIVE_MAX + 1) + 1;
	int gone, swapped = 0;

	for (gone = 0; gone < 2; gone++) {
		share(_metadata, nr, 0, 0, gone);
		order_upward(nr);
		write_pages(_metadata, run);
		if (!gone)
			ASSERT_EQ(run_window(), count_unused(nr));
		if (madvise(area, nr * ps, MADV_PAGEOUT))
			SKIP(return, "no MADV_PAGEOUT");
		swapped += cow_swapped(area + run * ps, run_window());
		check_content(_metadata, nr);
		/* Again, with what was read back only */
		ASSERT_EQ(0, madvise(area, nr * ps, MADV_PAGEOUT));
		order_upward(nr);
		write_pages(_metadata, nr);
		check_content(_metadata, nr);
		ASSERT_EQ(0, madvise(area, nr * ps, MADV_PAGEOUT));
		check_content(_metadata, nr);
		unshare(_metadata, gone);
	}
	if (!swapped)
		SKIP(return, "no page goes to swap");
}

/*
 * Large folios
 */

/* How many blocks of 64 kB, of nr pages at p, have their frames in a row, and aligned? */
static int count_blocks(const char *p, int nr)
{
	const int size = 65536 / ps;
	int i, k, blocks = 0;

	if (cow_pfns(p, nr, pfn_now))
		return -1;
	for (i = 0; i + size <= nr; i += size) {
		for (k = 0; k < size; k++)
			if (pfn_now[i] % size || pfn_now[i + k] != pfn_now[i] + k)
				break;
		blocks += k == size;
	}
	return blocks;
}

/*
 * Have the kernel find memory in one piece for so many blocks of 64 kB, by compaction
 * if it must, and free it. False if there is none.
 */
static bool make_free_blocks(int nr)
{
	const int size = 65536 / ps;
	char *p = cow_map(nr * ps, 65536);
	bool found;

	if (!p || madvise(p, nr * ps, MADV_HUGEPAGE))
		return false;
	cow_fill(p, nr * ps, TAG);
	found = count_blocks(p, nr) == nr / size;
	cow_unmap(p, nr * ps);
	return found;
}

/* Where the window is a whole block, its copies are one folio if allowed. */
TEST_F_TIMEOUT(adaptive, whole_blocks, TEST_TIMEOUT)
{
	const int nr = 2048, size = 65536 / ps;
	int down;

	if (size != COW_ADAPTIVE_MAX + 1)
		SKIP(return, "64 kB is not the largest window");
	for (down = 0; down < 2; down++) {
		share(_metadata, nr, 0, 0, false);
		if (down)
			order_downward(nr);
		else
			order_upward(nr);
		if (folios && !make_free_blocks(nr))
			SKIP(return, "too little memory in blocks of 64 kB");
		write_pages(_metadata, nr);
		expect_copied(_metadata, nr, run_percent());
		/* Not those at the start of the run, where windows are small. */
		if (folios && cow_hw_dirty())
			EXPECT_GE(count_blocks(area, nr), nr / size / 2);
		check_content(_metadata, nr);
		unshare(_metadata, false);
	}
}

/* Not every kernel reuses a page of a large folio. */
static bool page_is_reused(struct __test_metadata *_metadata, int page)
{
	__u64 then, now;

	cow_sysctl_write("cow_precopy", 0);
	EXPECT_EQ(0, cow_pfns(area + page * ps, 1, &then));
	order[0] = page;
	write_pages(_metadata, 1);
	EXPECT_EQ(0, cow_pfns(area + page * ps, 1, &now));
	cow_sysctl_write("cow_precopy", 1);
	return then == now;
}

/* Pages that were copied ahead are shared again with a second child. */
TEST_F_TIMEOUT(adaptive, second_generation, TEST_TIMEOUT)
{
	static const struct {
		bool down;
		bool gone;
		bool shuffled;
	} rounds[] = {
		{ false, false, false },
		{ true, false, false },
		{ false, false, true },
		{ false, true, false },
		{ true, true, true },
	};
	size_t len = 1024 * ps;
	__u64 rnd = seed;
	int nr = 1024, i;
	bool reused;
	size_t r;

	for (r = 0; r < ARRAY_SIZE(rounds); r++) {
		share(_metadata, nr, 0, 0, false);
		if (rounds[r].down)
			order_downward(nr);
		else
			order_upward(nr);
		write_pages(_metadata, nr);
		ASSERT_EQ(0, cow_child_end(&child));

		cow_fill(area, len, TAG);
		ASSERT_EQ(0, cow_child_fork(&child, keeps, &len));
		ASSERT_EQ(1, cow_child_recv(&child));
		ASSERT_EQ(0, cow_child_settle(&child));
		if (rounds[r].gone)
			ASSERT_EQ(0, cow_child_end(&child));
		ASSERT_EQ(0, cow_pfns(area, nr, pfn_then));
		reused = rounds[r].gone && page_is_reused(_metadata, nr / 2);
		if (!variant->folios)
			ASSERT_EQ(rounds[r].gone, reused);
		if (rounds[r].down)
			order_downward(nr);
		else
			order_upward(nr);
		if (rounds[r].shuffled)
			order_random(nr, &rnd);
		write_pages(_metadata, nr);
		ASSERT_EQ(0, cow_pfns(area, nr, pfn_now));
		/* The last page of a folio that is not reused may well be so. */
		for (i = 0; i < nr; i++) {
			if (rounds[r].gone && !reused)
				break;
			ASSERT_EQ(reused, pfn_now[i] == pfn_then[i])
				TH_LOG("round %zu, page %d", r, i);
		}
		check_content(_metadata, nr);
		unshare(_metadata, rounds[r].gone);
	}
}

/*
 * A VMA mapped after clear_refs has soft-dirty tracking off, so its pages may be copied
 * ahead and then written without a fault. When it merges with a tracked VMA, those pages
 * must be reported soft-dirty. There are three adjacent VMAs, one of which is new; they
 * merge when the middle one loses PROT_EXEC.
 */
TEST_F_TIMEOUT(adaptive, soft_dirty_and_merged, TEST_TIMEOUT)
{
	const int exec = PROT_READ | PROT_WRITE | PROT_EXEC;
	const int nr = 256;
	size_t len = nr * ps;
	int new, i;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	for (new = 0; new < 3; new++) {
		map_len = 3 * len;
		map = map_tables(map_len);
		ASSERT_NE(NULL, map);
		ASSERT_EQ(0, mprotect(map + len, len, exec));
		cow_fill(map, map_len, TAG);
		area = map + new * len;
		ASSERT_EQ(0, munmap(area, len));
		ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
		ASSERT_EQ(area, mmap(area, len, new == 1 ? exec : exec & ~PROT_EXEC,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		ASSERT_EQ(0, madvise(area, len, MADV_NOHUGEPAGE));
		cow_fill(area, len, TAG);
		if (folios)
			ASSERT_EQ(0, madvise(map, map_len, MADV_HUGEPAGE));
		ASSERT_EQ(0, cow_child_fork(&child, keeps, &len));
		ASSERT_EQ(1, cow_child_recv(&child));
		ASSERT_EQ(0, cow_child_settle(&child));
		order_upward(nr);
		write_pages(_metadata, nr);
		EXPECT_LT(nr / 2, (int)cost.v[COW_SUCCESS])
			log_cost(_metadata);

		ASSERT_EQ(0, mprotect(map + len, len, exec & ~PROT_EXEC));
		ASSERT_EQ(map_len / 1024, cow_smaps_kb(area, "Size"));
		for (i = 0; i < nr; i++) {
			ASSERT_NE(0, cow_pagemap(area + i * ps) & COW_PM_SOFT_DIRTY)
				TH_LOG("range %d, page %d was written", new, i);
		}
		unshare(_metadata, false);
	}
}

static int pin_for_writing(int fd, char *from, size_t len)
{
	struct pin_longterm_test args = {
		.addr = (unsigned long)from,
		.size = len,
		.flags = PIN_LONGTERM_TEST_FLAG_USE_WRITE |
			 PIN_LONGTERM_TEST_FLAG_USE_FAST,
	};

	return ioctl(fd, PIN_LONGTERM_TEST_START, &args) ? -errno : 0;
}

/*
 * Pinning a page that was made writable ahead takes no fault, and neither do writes
 * to it after clear_refs, which leaves pinned pages writable. They must be seen as
 * written all the same, or an incremental dump loses what was written.
 */
TEST_F_TIMEOUT(adaptive, soft_dirty_of_pinned, TEST_TIMEOUT)
{
	const int nr = 128, first = 40, end = 64;
	int gone, i, fd;

	if (!cow_soft_dirty_works())
		SKIP(return, COW_NO_SOFT_DIRTY);
	for (gone = 0; gone < 2; gone++) {
		fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			SKIP(return, "no " GUP_TEST " (CONFIG_GUP_TEST, debugfs)");
		share(_metadata, nr, 0, 0, gone);
		order_upward(first);
		write_pages(_metadata, first);

		ASSERT_EQ(0, pin_for_writing(fd, area + first * ps,
					     (end - first) * ps));
		ASSERT_EQ(0, cow_stats_read_pid(&before, 0));
		cow_stats_delta(&cost, &after, &before);
		/* Some were writable already; the others took a fault for it. */
		EXPECT_LT((int)(cost.v[COW_FAULTS] + cost.v[COW_REUSED]),
			  end - first);
		ASSERT_EQ(0, cow_write_file("/proc/self/clear_refs", "4"));
		for (i = first; i < end; i++)
			cow_touch(area + i * ps, 'w');
		for (i = 0; i < nr; i++) {
			bool dirty = cow_pagemap(area + i * ps) & COW_PM_SOFT_DIRTY;

			ASSERT_EQ(i >= first && i < end, dirty)
				TH_LOG("child %s, page %d",
				       gone ? "gone" : "alive", i);
		}
		ASSERT_EQ(0, ioctl(fd, PIN_LONGTERM_TEST_STOP));
		ASSERT_EQ(0, close(fd));
		unshare(_metadata, gone);
	}
}

/*
 * Pages that no other process maps any more
 */

TEST_F_TIMEOUT(adaptive, child_gone, TEST_TIMEOUT)
{
	/* At random it is 48.6 +- 0.8 %, or 61 +- 1 % without dirty bits. */
	const int percent[] = { 2, 2, cow_hw_dirty() ? 60 : 75 };
	size_t len = NR * ps;
	__u64 rnd = seed;
	int how, i;

	for (how = 0; how < 3; how++) {
		share(_metadata, NR, 0, 0, true);
		if (how == 0)
			order_upward(NR);
		else if (how == 1)
			order_downward(NR);
		else
			order_random(NR, &rnd);
		write_pages(_metadata, NR);
		EXPECT_EQ(0, cost.v[COW_FAULTS] + cost.v[COW_ATTEMPTS]);
		EXPECT_EQ(NR, cost.v[COW_REUSED] + cost.v[COW_REUSE_AHEAD]);
		EXPECT_EQ(minflt, (long)cost.v[COW_REUSED]);
		EXPECT_LE(100 * minflt, percent[how] * NR)
			log_cost(_metadata);
		ASSERT_EQ(0, cow_pfns(area, NR, pfn_now));
		for (i = 0; i < NR; i++)
			ASSERT_EQ(pfn_then[i], pfn_now[i]);
		check_content(_metadata, NR);

		/* A new child inherits these pages and sees no later write. */
		cow_fill(area, len, TAG);
		ASSERT_EQ(0, cow_child_fork(&child, keeps, &len));
		ASSERT_EQ(1, cow_child_recv(&child));
		ASSERT_EQ(0, cow_child_settle(&child));
		write_pages(_metadata, NR);
		EXPECT_EQ(NR, cost.v[COW_FAULTS] + cost.v[COW_SUCCESS]);
		EXPECT_EQ(0, cost.v[COW_REUSE_AHEAD]);
		ASSERT_EQ(0, cow_pfns(area, NR, pfn_now));
		for (i = 0; i < NR; i++)
			ASSERT_NE(pfn_then[i], pfn_now[i]);
		check_content(_metadata, NR);
		unshare(_metadata, false);
	}
}

/* Does the second process still map this page? */
static bool still_shared(int page, __u64 pattern)
{
	__u64 state = pattern ^ page;

	switch (pattern % 4) {
	case 0:		/* every 3rd */
		return page % 3 == 0;
	case 1:		/* runs of 20, and 44 in between */
		return page % COW_BLOCK < 20;
	case 2:		/* a few */
		return cow_rand(&state) % 32 == 0;
	default:	/* half of them */
		return cow_rand(&state) % 2;
	}
}

struct sharer {
	__u64 pattern;
	int nr;
};

static int keeps_some(struct cow_child *self, void *arg)
{
	struct sharer *s = arg;
	int i;

	for (i = 0; i < s->nr; i++)
		if (!still_shared(i, s->pattern) && munmap(area + i * ps, ps))
			return 1;
	if (cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE)
		return 2;
	for (i = 0; i < s->nr; i++)
		if (still_shared(i, s->pattern) &&
		    cow_check(area + i * ps, ps, TAG) != -1)
			return 3;
	return 0;
}

/* Pages that the other process still maps are copied, the others are reused. */
TEST_F_TIMEOUT(adaptive, partly_shared, TEST_TIMEOUT)
{
	struct sharer s = { .nr = 1024 };
	struct cow_child other;
	__u64 rnd = seed;
	int i, k, how;
	bool shared;

	for (i = 0; i < 12; i++) {
		s.pattern = (cow_rand(&rnd) & ~3ULL) | i % 4;
		how = i / 4;
		share(_metadata, s.nr, cow_rand(&rnd) % table, 0, true);
		ASSERT_EQ(0, cow_child_fork(&other, keeps_some, &s));
		ASSERT_EQ(1, cow_child_recv(&other));
		ASSERT_EQ(0, cow_child_settle(&other));
		if (how == 0)
			order_upward(s.nr);
		else if (how == 1)
			order_downward(s.nr);
		else
			order_random(s.nr, &rnd);
		write_pages(_metadata, s.nr);
		EXPECT_EQ(s.nr, minflt + cost.v[COW_SUCCESS] +
				cost.v[COW_REUSE_AHEAD]);
		EXPECT_GT(cost.v[COW_REUSE_AHEAD], 0);
		ASSERT_EQ(0, cow_pfns(area, s.nr, pfn_now));
		for (k = 0; k < s.nr; k++) {
			shared = still_shared(k, s.pattern);
			ASSERT_EQ(shared, pfn_now[k] != pfn_then[k])
				TH_LOG("page %d; COW_SEED=%llu", k, seed);
		}
		check_content(_metadata, s.nr);
		EXPECT_EQ(0, cow_child_end(&other));
		unshare(_metadata, true);
	}
}

/*
 * Windows next to a run of reused pages. Such a run took few faults, so unused copies
 * may exceed the number of faults; those next to whole blocks by a quarter of the run.
 */
static int keeps_outside(struct cow_child *self, void *arg)
{
	int *range = arg;

	if (munmap(area + range[0] * ps, (range[1] - range[0]) * ps))
		return 1;
	return cow_child_send(self, 1) || cow_child_recv(self) != -EPIPE;
}

TEST_F_TIMEOUT(adaptive, waste_next_to_reused, TEST_TIMEOUT)
{
	int range[] = { 192, 192 + 256 }, nr = 640, i;
	struct cow_child other;
	long faults;

	share(_metadata, nr, 0, 0, true);
	ASSERT_EQ(0, cow_child_fork(&other, keeps_outside, range));
	ASSERT_EQ(1, cow_child_recv(&other));
	ASSERT_EQ(0, cow_child_settle(&other));
	for (i = 0; i < range[1] - range[0]; i++)
		order[i] = range[0] + i;
	write_pages(_metadata, i);
	faults = minflt;
	EXPECT_EQ(0, cost.v[COW_FAULTS] + cost.v[COW_SUCCESS]);
	order[0] = range[1];
	order[1] = range[0] - 1;
	write_pages(_metadata, 2);
	EXPECT_LE(count_unused(nr), faults + minflt + (range[1] - range[0]) / 4)
		log_cost(_metadata);
	EXPECT_EQ(0, cow_child_end(&other));
	unshare(_metadata, true);
}

#define SPLICED_FIRST	300
#define SPLICED_NR	8

static int pipe_fds[2];

/* The pipe has references to the pages, and the child is gone. */
static int splices(struct cow_child *self, void *arg)
{
	struct iovec iov = {
		.iov_base = area + SPLICED_FIRST * ps,
		.iov_len = SPLICED_NR * ps,
	};

	(void)self;
	(void)arg;
	return vmsplice(pipe_fds[1], &iov, 1, 0) != (ssize_t)iov.iov_len;
}

TEST_F_TIMEOUT(adaptive, referenced_by_a_pipe, TEST_TIMEOUT)
{
	struct cow_child other;
	const int nr = 512;
	int i, down;
	char *buf;
	bool in;

	buf = malloc(ps);
	ASSERT_NE(NULL, buf);
	ASSERT_EQ(0, pipe2(pipe_fds, O_CLOEXEC));
	for (down = 0; down < 2; down++) {
		share(_metadata, nr, 0, 0, true);
		ASSERT_EQ(0, cow_child_fork(&other, splices, NULL));
		ASSERT_EQ(0, cow_child_wait(&other));
		close(other.in);
		close(other.out);
		if (down)
			order_downward(nr);
		else
			order_upward(nr);
		write_pages(_metadata, nr);
		ASSERT_EQ(0, cow_pfns(area, nr, pfn_now));
		for (i = 0; i < nr; i++) {
			in = i >= SPLICED_FIRST &&
			     i < SPLICED_FIRST + SPLICED_NR;
			ASSERT_EQ(in, pfn_now[i] != pfn_then[i])
				TH_LOG("page %d", i);
		}
		check_content(_metadata, nr);
		/* The words of a page depend on its address. */
		for (i = 0; i < SPLICED_NR; i++) {
			char *page = area + (SPLICED_FIRST + i) * ps;
			size_t k, got = 0;
			ssize_t n;

			while (got < ps) {
				n = read(pipe_fds[0], buf + got, ps - got);
				ASSERT_GT(n, 0);
				got += n;
			}
			cow_fill(page, ps, TAG);
			for (k = 0; k < ps; k++)
				ASSERT_EQ(page[k], buf[k]);
		}
		unshare(_metadata, true);
	}
	free(buf);
}

/*
 * A page that was copied ahead is clean, and GUP gets it for writing without a fault. If
 * it is shared again, KSM must leave it alone as long as somebody has that reference;
 * here it is a pipe. The page beside it, of which nobody has one, is merged.
 */
TEST_F_TIMEOUT(adaptive, referenced_and_merged, TEST_TIMEOUT)
{
	const int nr = 128, twin = nr - 2;
	struct iovec iov = { .iov_len = ps };
	struct cow_child other;
	int first = 0;
	long merged;
	bool large;

	if (!cow_hw_dirty())
		SKIP(return, "this CPU does not set dirty bits");
	ASSERT_EQ(0, pipe2(pipe_fds, O_CLOEXEC));
	share(_metadata, nr, 0, 0, false);
	while (count_unused(nr) < 2 && first < twin / 2) {
		cow_touch(area + first * ps, 'w');
		written[first++] = true;
	}
	/* The unused pages follow the last one that was written. */
	ASSERT_LE(2, count_unused(nr));
	memcpy(area + twin * ps, area + first * ps, 2 * ps);
	iov.iov_base = area + first * ps;
	ASSERT_EQ((ssize_t)ps, vmsplice(pipe_fds[1], &iov, 1, 0));
	ASSERT_EQ(0, cow_child_idle(&other));

	ASSERT_EQ(0, cow_pfns(area, nr, pfn_then));
	large = cow_page_flags(area + first * ps) & COW_KPF_COMPOUND;
	merged = cow_ksm_merge(&self->undo, area, nr * ps, 4);
	if (merged < 0)
		SKIP(return, "no KSM: %s", strerror(-merged));
	/* A large folio cannot be split for KSM while somebody has a reference. */
	if (!large)
		EXPECT_EQ(2, merged);
	ASSERT_EQ(0, cow_pfns(area, nr, pfn_now));
	EXPECT_EQ(pfn_then[first], pfn_now[first]);
	EXPECT_NE(pfn_now[twin], pfn_now[first]);
	EXPECT_EQ(0, cow_child_end(&other));
	unshare(_metadata, false);
}

/* Pages in the swap cache that no other process maps: reused, no data lost */
TEST_F_TIMEOUT(adaptive, reused_from_swap, TEST_TIMEOUT)
{
	const int nr = 512;
	int swapped;

	share(_metadata, nr, 0, 0, true);
	if (madvise(area, nr * ps, MADV_PAGEOUT))
		SKIP(return, "no MADV_PAGEOUT");
	swapped = cow_swapped(area, nr);
	if (swapped < nr / 2)
		SKIP(return, "only %d of %d pages went to swap", swapped, nr);
	check_content(_metadata, nr);
	order_upward(nr);
	write_pages(_metadata, nr);
	check_content(_metadata, nr);
	ASSERT_EQ(0, madvise(area, nr * ps, MADV_PAGEOUT));
	check_content(_metadata, nr);
	unshare(_metadata, true);
}

/*
 * Pages in the swap cache that the child unmaps while the parent copies them: the last
 * user of a page must remove it from the swap cache.
 */

struct dropper {
	__u64 rnd;
	int nr;
	int at;		/* shared with the child: the page that we write to */
};

/* A random delay that ends within a fault, which takes 100 ns to many microseconds */
static void wait_in_fault(const struct dropper *d, int at, __u64 *rnd)
{
	__u64 turns = cow_rand(rnd) % (1 << cow_rand(rnd) % 16);

	while (turns-- && __atomic_load_n(&d->at, __ATOMIC_ACQUIRE) == at)
		;
}

static int drops_what_is_copied(struct cow_child *self, void *arg)
{
	const int window = COW_ADAPTIVE_MAX + 1;
	struct dropper *d = arg;
	__u64 rnd = d->rnd;
	int i, at, nr;

	if (cow_leave_cpu())
		return 1;
	for (i = 0; i < d->nr; i++)
		cow_peek(area + i * ps);
	if (cow_child_send(self, 1))
		return 2;
	while ((at = __atomic_load_n(&d->at, __ATOMIC_ACQUIRE)) < d->nr) {
		if (at < 0)
			continue;
		wait_in_fault(d, at, &rnd);
		nr = d->nr - at < window ? d->nr - at : window;
		if (madvise(area + at * ps, nr * ps, MADV_DONTNEED))
			return 3;
	}
	return cow_child_recv(self) == -EPIPE ? 0 : 4;
}

/*
 * Share d->nr pages in the swap cache with the child. They stay there after both have
 * read them because a third process has not. Waits for the end of writeback, during
 * which a page cannot be removed from the swap cache. Return: how many are in it
 */
static int share_swap_cache(struct __test_metadata *_metadata,
			    struct dropper *d)
{
	struct cow_child third;
	int i, cached = 0;
	__u64 flags;

	map_len = d->nr * ps;
	map = map_tables(map_len);
	ASSERT_NE(NULL, map);
	area = map;
	cow_fill(area, map_len, TAG);
	if (folios)
		ASSERT_EQ(0, madvise(area, map_len, MADV_HUGEPAGE));
	madvise(area, map_len, MADV_PAGEOUT);
	d->at = -1;
	ASSERT_EQ(0, cow_child_idle(&third));
	ASSERT_EQ(0, cow_child_fork(&child, drops_what_is_copied, d));
	ASSERT_EQ(1, cow_child_recv(&child));
	for (i = 0; i < d->nr; i++)
		cow_peek(area + i * ps);
	ASSERT_EQ(0, cow_child_end(&third));
	for (i = 0; i < d->nr; i++) {
		do {
			flags = cow_page_flags(area + i * ps);
		} while (flags & COW_KPF_WRITEBACK);
		cached += !!(flags & COW_KPF_SWAPCACHE);
	}
	memset(written, 0, sizeof(written));
	return cached;
}

/* Return: how many pages were in the swap cache to begin with */
static int drop_and_copy(struct __test_metadata *_metadata, struct dropper *d)
{
	int i, cached = share_swap_cache(_metadata, d);

	for (i = 0; i < d->nr; i++) {
		__atomic_store_n(&d->at, i, __ATOMIC_RELEASE);
		cow_touch(area + i * ps, 'w');
		written[i] = true;
	}
	__atomic_store_n(&d->at, d->nr, __ATOMIC_RELEASE);
	check_content(_metadata, d->nr);
	unshare(_metadata, false);
	return cached;
}

TEST_F_TIMEOUT(adaptive, dropped_from_swap_while_copied, TEST_TIMEOUT)
{
	const char *reason = cow_cgroup_make(self->cgroup, "cow_adaptive");
	const int nr = 512, rounds = 24;
	struct dropper *d;
	int round;
	long left;

	if (reason)
		SKIP(return, "%s", reason);
	if (cow_nr_cpus() < 2)
		SKIP(return, "one CPU");
	d = mmap(NULL, sizeof(*d), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, d);
	ASSERT_EQ(0, cow_cgroup_enter(self->cgroup));
	d->nr = nr;
	for (round = 0; round < rounds; round++) {
		d->rnd = seed + round;
		if (drop_and_copy(_metadata, d) < nr / 2)
			SKIP(return, "pages do not stay in the swap cache");
	}
	left = cow_cgroup_unmapped(self->cgroup, COW_KPF_SWAPCACHE);
	if (left == -ENOENT)
		SKIP(return, "no /proc/kpagecgroup");
	EXPECT_EQ(0, left)
		TH_LOG("unmapped pages are left in the swap cache; COW_SEED=%llu",
		       seed);
}

TEST_HARNESS_MAIN
