/* SPDX-License-Identifier: GPL-2.0 */
/*
 * KUnit tests of copy-on-write faults: what the tests of the policy share.
 */
#ifndef __MM_COW_KUNIT_POLICY_H
#define __MM_COW_KUNIT_POLICY_H

#include <linux/bitops.h>
#include <linux/bits.h>

#include "../cow_policy.h"

#define BITS(first, last)	GENMASK_ULL(last, first)

/* Only valid pages that are still shared, not the faulting one, and at most @max. */
static inline bool is_sane(const struct cow_evidence *e, u64 take)
{
	u64 no = ~e->valid | e->written | e->unused | BIT_ULL(e->pos);

	return !(take & no) && hweight64(take) <= e->max;
}

#endif /* __MM_COW_KUNIT_POLICY_H */
