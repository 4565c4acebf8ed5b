/* SPDX-License-Identifier: GPL-2.0 */
/* Where the running kernel has the members of its structures, by its BTF */
#ifndef __COWSTAT_BTF_H
#define __COWSTAT_BTF_H

struct member_offset {
	const char *structure, *member;
	unsigned int offset;	/* in bytes, filled in */
};

/*
 * Fill in the offsets of n members, also those of unnamed structures within.
 * NULL, or what is wrong: no BTF, or no such member.
 */
const char *btf_offsets(struct member_offset *m, int n);

#endif /* __COWSTAT_BTF_H */
