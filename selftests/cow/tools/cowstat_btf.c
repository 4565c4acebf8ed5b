// SPDX-License-Identifier: GPL-2.0
/*
 * Offsets of structure members from /sys/kernel/btf/vmlinux. The format is in
 * Documentation/bpf/btf.rst.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/btf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cowstat_btf.h"

#define BTF_FILE	"/sys/kernel/btf/vmlinux"
#define MAX_DEPTH	8	/* of unnamed structures */

struct btf {
	char *data;
	size_t size;
	const struct btf_type **types;	/* by id; NULL for void */
	unsigned int nr;
	const char *strings;
	size_t strings_len;
};

/* How many bytes follow a type; a negative number if its kind is unknown */
static int tail_size(const struct btf_type *t)
{
	int n = BTF_INFO_VLEN(t->info);

	switch (BTF_INFO_KIND(t->info)) {
	case BTF_KIND_INT:
	case BTF_KIND_VAR:
	case BTF_KIND_DECL_TAG:
		return sizeof(__u32);
	case BTF_KIND_ARRAY:
		return sizeof(struct btf_array);
	case BTF_KIND_STRUCT:
	case BTF_KIND_UNION:
		return n * sizeof(struct btf_member);
	case BTF_KIND_ENUM:
		return n * sizeof(struct btf_enum);
	case BTF_KIND_FUNC_PROTO:
		return n * sizeof(struct btf_param);
	case BTF_KIND_DATASEC:
		return n * sizeof(struct btf_var_secinfo);
	case BTF_KIND_ENUM64:
		return n * sizeof(struct btf_enum64);
	case BTF_KIND_PTR:
	case BTF_KIND_FWD:
	case BTF_KIND_TYPEDEF:
	case BTF_KIND_VOLATILE:
	case BTF_KIND_CONST:
	case BTF_KIND_RESTRICT:
	case BTF_KIND_FUNC:
	case BTF_KIND_FLOAT:
	case BTF_KIND_TYPE_TAG:
		return 0;
	}
	return -1;
}

/* Make the table of types; false if the file is not what it should be. */
static bool index_types(struct btf *btf)
{
	const struct btf_header *h = (const void *)btf->data;
	const char *p, *end;
	unsigned int room = 0;

	if (btf->size < sizeof(*h) || h->magic != BTF_MAGIC ||
	    h->hdr_len + (size_t)h->type_off + h->type_len > btf->size ||
	    h->hdr_len + (size_t)h->str_off + h->str_len > btf->size)
		return false;
	btf->strings = btf->data + h->hdr_len + h->str_off;
	btf->strings_len = h->str_len;
	p = btf->data + h->hdr_len + h->type_off;
	end = p + h->type_len;
	for (btf->nr = 1; p + sizeof(struct btf_type) <= end; btf->nr++) {
		const struct btf_type *t = (const void *)p;
		int tail = tail_size(t);

		if (tail < 0 || tail > end - p - (long)sizeof(*t))
			return false;
		if (btf->nr >= room) {
			room = room * 2 + 4096;
			btf->types = reallocarray(btf->types, room,
						  sizeof(*btf->types));
			if (!btf->types)
				return false;
		}
		btf->types[btf->nr] = t;
		p += sizeof(*t) + tail;
	}
	return p == end && btf->nr > 1;
}

static const char *string_at(const struct btf *btf, __u32 off)
{
	return off < btf->strings_len ? btf->strings + off : "";
}

static bool is_composite(const struct btf_type *t)
{
	int kind = BTF_INFO_KIND(t->info);

	return kind == BTF_KIND_STRUCT || kind == BTF_KIND_UNION;
}

/* The structure or union of an unnamed member, behind const and volatile */
static const struct btf_type *unnamed_type(const struct btf *btf, __u32 id)
{
	int depth;

	for (depth = 0; depth < MAX_DEPTH && id && id < btf->nr; depth++) {
		const struct btf_type *t = btf->types[id];

		if (is_composite(t))
			return t;
		if (BTF_INFO_KIND(t->info) != BTF_KIND_CONST &&
		    BTF_INFO_KIND(t->info) != BTF_KIND_VOLATILE)
			return NULL;
		id = t->type;
	}
	return NULL;
}

/* The offset in bits, or -1 */
static long find_member(const struct btf *btf, const struct btf_type *t,
			const char *name, int depth)
{
	const struct btf_member *m = (const void *)(t + 1);
	int i;

	for (i = 0; i < (int)BTF_INFO_VLEN(t->info); i++, m++) {
		long off = BTF_INFO_KFLAG(t->info) ?
			   BTF_MEMBER_BIT_OFFSET(m->offset) : m->offset;
		const struct btf_type *inner;
		long found;

		if (!strcmp(string_at(btf, m->name_off), name))
			return off;
		if (*string_at(btf, m->name_off) || depth == MAX_DEPTH)
			continue;
		inner = unnamed_type(btf, m->type);
		found = inner ? find_member(btf, inner, name, depth + 1) : -1;
		if (found >= 0)
			return off + found;
	}
	return -1;
}

static long find_offset(const struct btf *btf, const char *structure,
			const char *member)
{
	unsigned int i;

	for (i = 1; i < btf->nr; i++) {
		const struct btf_type *t = btf->types[i];

		if (BTF_INFO_KIND(t->info) == BTF_KIND_STRUCT &&
		    !strcmp(string_at(btf, t->name_off), structure))
			return find_member(btf, t, member, 0);
	}
	return -1;
}

static bool read_all(struct btf *btf)
{
	int fd = open(BTF_FILE, O_RDONLY | O_CLOEXEC);
	struct stat st;
	ssize_t len;

	if (fd < 0)
		return false;
	if (!fstat(fd, &st) && st.st_size > 0)
		btf->data = malloc(st.st_size);
	while (btf->data && btf->size < (size_t)st.st_size) {
		len = read(fd, btf->data + btf->size, st.st_size - btf->size);
		if (len <= 0)
			break;
		btf->size += len;
	}
	close(fd);
	return btf->size && btf->size == (size_t)st.st_size;
}

const char *btf_offsets(struct member_offset *m, int n)
{
	static char why[128];
	struct btf btf = {};
	int i;

	why[0] = '\0';
	if (!read_all(&btf))
		snprintf(why, sizeof(why), "no " BTF_FILE " (CONFIG_DEBUG_INFO_BTF)");
	else if (!index_types(&btf))
		snprintf(why, sizeof(why), BTF_FILE " is malformed");
	for (i = 0; i < n && !why[0]; i++) {
		long bits = find_offset(&btf, m[i].structure, m[i].member);

		if (bits < 0 || bits % 8)
			snprintf(why, sizeof(why), "struct %s has no %s",
				 m[i].structure, m[i].member);
		else
			m[i].offset = bits / 8;
	}
	free(btf.types);
	free(btf.data);
	return why[0] ? why : NULL;
}
