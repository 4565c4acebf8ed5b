/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the two tests of exact counts share; include it after the harness.
 */
#ifndef __COW_COUNTS_H
#define __COW_COUNTS_H

#include "cow_helpers.h"

#define SELF_FILE	"/proc/self/cow_stats"
#define PAGES		512	/* per writer; a multiple of the largest window */
#define STACK_SIZE	(256 << 10)

#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

/* Settings, and memory to share with children. NULL: the test is skipped. */
static inline void *counts_setup(struct __test_metadata *_metadata,
				 struct cow_settings *saved, int ahead,
				 size_t size)
{
	const char *reason;
	void *shared;

	reason = cow_setup(saved, ahead, COW_WANT_STATS);
	if (reason)
		SKIP(return NULL, "%s", reason);
	ASSERT_EQ(access(SELF_FILE, F_OK), 0)
		TH_LOG("/proc/cow_stats without " SELF_FILE);
	shared = mmap(NULL, size, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(shared, MAP_FAILED);
	/* The pages wait for the LRU in the batch of a CPU that we know. */
	ASSERT_EQ(cow_pin_cpu(), 0);
	return shared;
}

/* The faults that it takes to write nr shared pages upward */
static inline unsigned long long faults_for(int nr, int ahead)
{
	return nr / (ahead + 1);
}

/* A process' counts as a whole */
static inline void check_times(struct __test_metadata *_metadata,
			       const struct cow_stats *s)
{
	unsigned long long faults = s->v[COW_FAULTS];

	EXPECT_LE(s->v[COW_MIN_NS], s->v[COW_AVG_NS]);
	EXPECT_LE(s->v[COW_AVG_NS], s->v[COW_MAX_NS]);
	EXPECT_EQ(s->v[COW_AVG_NS],
		  faults ? s->v[COW_TOTAL_NS] / faults : 0);
	EXPECT_EQ(!s->v[COW_MIN_NS], !faults);
	EXPECT_GE(s->v[COW_FAULT_TOTAL_NS], s->v[COW_TOTAL_NS]);
	EXPECT_TRUE(cow_stats_balanced(s));
}

#endif /* __COW_COUNTS_H */
