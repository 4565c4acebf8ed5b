// SPDX-License-Identifier: GPL-2.0
/*
 * Processes that fork, write, unmap and exit at random, on any kernel. Each one records
 * what it has written to each page, and a child inherits the record. A page with any
 * other content was shared for too long, or unshared too early.
 *
 * The environment variable COW_SEED repeats the random steps of a run.
 */
#include <stdlib.h>
#include <time.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

static size_t ps;
static __u64 seed;
static char *area;
static struct cow_stats before, after, cost;

FIXTURE(crowd)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(crowd)
{
	int ahead;
	bool folios;
};

FIXTURE_VARIANT_ADD(crowd, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(crowd, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(crowd, adaptive_folios) {
	.ahead = COW_ADAPTIVE,
	.folios = true,
};

FIXTURE_SETUP(crowd)
{
	const char *reason;

	reason = cow_setup_folios(&self->saved, &self->undo, variant->ahead,
				  variant->folios, COW_WANT_STATS | COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	cow_map_hugepage = variant->folios;
	ps = cow_page_size();
	seed = cow_seed();
}

FIXTURE_TEARDOWN_PARENT(crowd)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

#define CROWD_NR	320
#define CROWD_MAX	10
#define CROWD_STEPS	400

static __u32 tag_of[CROWD_NR];	/* 0: not mapped any more */
static __u64 crowd_rnd;

static int crowd_verify(void)
{
	int i;

	for (i = 0; i < CROWD_NR; i++)
		if (tag_of[i] &&
		    cow_check(area + i * ps, ps, tag_of[i]) != -1)
			return 1 + i;
	return 0;
}

/* One step of a process: 0, or 1 + the number of the page that is wrong */
static int crowd_step(__u32 tag)
{
	int len = 1 + cow_rand(&crowd_rnd) % 120, i, page, step = 1;
	int at = cow_rand(&crowd_rnd) % CROWD_NR;
	int what = cow_rand(&crowd_rnd) % 8;

	if (what == 0) {
		len = 1 + len % 12;
		for (i = at; i < at + len && i < CROWD_NR; i++) {
			if (tag_of[i] && munmap(area + i * ps, ps))
				return 1 + i;
			tag_of[i] = 0;
		}
		return 0;
	}
	if (what == 1)
		step = 1 + cow_rand(&crowd_rnd) % 4;
	for (i = 0; i < len; i++) {
		page = what < 5 ? at + i * step : at - i;
		if (what == 7)
			page = cow_rand(&crowd_rnd) % CROWD_NR;
		if (page < 0 || page >= CROWD_NR || !tag_of[page])
			continue;
		/* Wrong before the write: another process' write has reached it. */
		if (cow_check(area + page * ps, ps, tag_of[page]) != -1)
			return 1 + page;
		cow_fill(area + page * ps, ps, tag);
		tag_of[page] = tag;
	}
	return 0;
}

/* Does one step for each byte that it receives, and answers with the result. */
static int crowd_member(struct cow_child *self, void *arg)
{
	__u32 tag = *(__u32 *)arg;
	int ret;

	crowd_rnd ^= tag;
	for (;;) {
		ret = cow_child_recv(self);
		if (ret == -EPIPE)
			return !!crowd_verify();
		if (ret < 0)
			return 2;
		ret = ret ? crowd_step(++tag) : crowd_verify();
		if (cow_child_send(self, !!ret))
			return 3;
	}
}

TEST_F_TIMEOUT(crowd, random_steps, TEST_TIMEOUT)
{
	struct cow_child member[CROWD_MAX];
	int nr = 0, step, i, k, bad;
	__u32 tag = 1;

	crowd_rnd = seed;
	area = cow_map(CROWD_NR * ps, 0);
	ASSERT_NE(NULL, area);
	for (i = 0; i < CROWD_NR; i++) {
		tag_of[i] = tag;
		cow_fill(area + i * ps, ps, tag);
	}
	ASSERT_EQ(0, cow_count(&before));
	for (step = 0; step < CROWD_STEPS; step++) {
		tag += 1 << 12;
		i = nr ? cow_rand(&crowd_rnd) % nr : 0;
		switch (cow_rand(&crowd_rnd) % 6) {
		case 0:
			if (nr == CROWD_MAX)
				break;
			ASSERT_EQ(0, cow_child_fork(&member[nr], crowd_member,
						    &tag));
			nr++;
			break;
		case 1:
			if (!nr)
				break;
			ASSERT_EQ(0, cow_child_end(&member[i]))
				TH_LOG("COW_SEED=%llu", seed);
			member[i] = member[--nr];
			break;
		case 2:
		case 3:
			if (!nr)
				break;
			ASSERT_EQ(0, cow_child_send(&member[i], 1));
			ASSERT_EQ(0, cow_child_recv(&member[i]))
				TH_LOG("COW_SEED=%llu", seed);
			break;
		default:
			bad = crowd_step(tag);
			ASSERT_EQ(0, bad)
				TH_LOG("page %d; COW_SEED=%llu", bad - 1, seed);
		}
		/* Map again what was unmapped, or in the end nothing would be left. */
		for (k = 0; step % 40 == 39 && k < CROWD_NR; k++) {
			if (tag_of[k])
				continue;
			ASSERT_EQ(area + k * ps,
				  mmap(area + k * ps, ps, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
				       -1, 0));
			tag_of[k] = tag;
			cow_fill(area + k * ps, ps, tag);
		}
		if (step % 10 != 9)
			continue;
		bad = crowd_verify();
		ASSERT_EQ(0, bad)
			TH_LOG("page %d; COW_SEED=%llu", bad - 1, seed);
		for (i = 0; i < nr; i++) {
			ASSERT_EQ(0, cow_child_send(&member[i], 0));
			ASSERT_EQ(0, cow_child_recv(&member[i]))
				TH_LOG("COW_SEED=%llu", seed);
		}
	}
	while (nr)
		EXPECT_EQ(0, cow_child_end(&member[--nr]));
	ASSERT_EQ(0, crowd_verify());
	ASSERT_EQ(0, cow_count(&after));
	cow_stats_delta(&cost, &before, &after);
	cow_unmap(area, CROWD_NR * ps);
	if (variant->ahead == COW_PLAIN)
		return;
	/* Else it has tested nothing. */
	EXPECT_GT(cost.v[COW_SUCCESS], 0);
	EXPECT_GT(cost.v[COW_REUSE_AHEAD], 0);
}

TEST_HARNESS_MAIN
