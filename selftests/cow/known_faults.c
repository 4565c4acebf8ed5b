// SPDX-License-Identifier: GPL-2.0
/*
 * A program for the tests of the trace events: takes known write-protect faults
 * and prints the records that they must leave, in the order of time, as
 *
 *	pid PID
 *	cow_fault address=0x... pid=... outcome=... order=0 ahead=...
 *	cow_precopy address=0x... pid=... asked=... installed=... reason=...
 *
 * All of its memory is between KNOWN_START and KNOWN_END, whatever the kernel
 * randomises, so that a filter can be set before it runs. The faults that the
 * process takes elsewhere, in its stack and data, are not printed.
 *
 * Exit status: 0, 1 with a message on standard error, or 4 (skip) likewise.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cow_helpers.h"

#define KNOWN_START	0x200000000ULL
#define KNOWN_END	0x300000000ULL

#define AHEAD		4	/* the window, with -p */
#define MAX_PAGES	16	/* of one case */
#define MAX_RECORDS	128

/* What a write shall find instead of a page that the child has, too */
enum prepare {
	SHARED,		/* that page */
	HOLE,		/* nothing */
	ZERO,		/* the zero page */
	DROPPED,	/* a page that the child has given up */
	FILE_PAGE,	/* all pages of the case: a file's */
	RANDOM,		/* all pages of the case: MADV_RANDOM */
	ACROSS,		/* the page table ends before this page */
};

enum result {
	NOTHING,	/* no write-protect fault */
	COPY,
	REUSE,
	PLAIN,		/* copied, but not a page whose neighbours are looked at */
};

/*
 * A mapping of its own, and the writes to it. Copying ahead is about the next
 * AHEAD pages: installed is how many of them a write gets, and reason why the
 * first of the others is left out. TAKEN: copied ahead by an earlier write.
 */
#define TAKEN	-1

struct known_case {
	int pages;
	struct {
		int page;
		enum prepare what;
	} prepare[2];
	int writes;
	struct known_write {
		int page;
		enum result result;
		int installed;
		const char *reason;
	} write[MAX_PAGES];
};

static const struct known_case with_child[] = {
	{	/* upward, to the end of the mapping */
		.pages = 12,
		.writes = 12,
		.write = {
			{ 0, COPY, AHEAD, "none" },
			{ 1, COPY, TAKEN }, { 2, COPY, TAKEN },
			{ 3, COPY, TAKEN }, { 4, COPY, TAKEN },
			{ 5, COPY, AHEAD, "none" },
			{ 6, COPY, TAKEN }, { 7, COPY, TAKEN },
			{ 8, COPY, TAKEN }, { 9, COPY, TAKEN },
			{ 10, COPY, 1, "vma" },
			{ 11, COPY, TAKEN },
		},
	}, {	/* downward: a page behind is there already */
		.pages = 8,
		.writes = 4,
		.write = {
			{ 3, COPY, AHEAD, "none" },
			{ 2, COPY, 0, "writable" },
			{ 0, COPY, 1, "writable" },
			{ 1, COPY, TAKEN },
		},
	}, {
		.pages = 6,
		.prepare = { { 3, ACROSS } },
		.writes = 1,
		.write = { { 1, COPY, 1, "pmd" } },
	}, {
		.pages = 6,
		.prepare = { { 1, HOLE } },
		.writes = 1,
		.write = { { 0, COPY, 3, "notpresent" } },
	}, {
		.pages = 6,
		.prepare = { { 4, ZERO } },
		.writes = 1,
		.write = { { 0, COPY, 3, "notanon" } },
	}, {	/* once it is written to, a page of our own is reused */
		.pages = 6,
		.prepare = { { 2, DROPPED } },
		.writes = 2,
		.write = {
			{ 0, COPY, 3, "exclusive" },
			{ 2, REUSE },
		},
	}, {	/* the first reason counts */
		.pages = 6,
		.prepare = { { 2, HOLE }, { 1, DROPPED } },
		.writes = 1,
		.write = { { 0, COPY, 2, "exclusive" } },
	}, {
		.pages = 6,
		.prepare = { { 0, RANDOM } },
		.writes = 2,
		.write = {
			{ 0, COPY, 0, "madvise" },
			{ 1, COPY, 0, "madvise" },
		},
	}, {	/* no neighbour of a file's page is looked at */
		.pages = 6,
		.prepare = { { 0, FILE_PAGE } },
		.writes = 2,
		.write = { { 0, PLAIN }, { 2, PLAIN } },
	}, {	/* neither counts: nothing to protect, nothing to copy */
		.pages = 2,
		.prepare = { { 0, HOLE }, { 1, ZERO } },
		.writes = 2,
		.write = { { 0, NOTHING }, { 1, NOTHING } },
	},
};

static const struct known_case without_child[] = {
	{
		.pages = 9,
		.writes = 6,
		.write = {
			{ 0, REUSE }, { 1, REUSE }, { 2, REUSE }, { 8, REUSE },
			{ 7, REUSE }, { 6, REUSE },
		},
	},
};

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

static size_t ps;
static char *region[ARRAY_SIZE(with_child) + ARRAY_SIZE(without_child)];
static struct cow_settings saved;

static char record[MAX_RECORDS][96];
static int nr_records;

static void restore(void)
{
	cow_restore(&saved);
}

static char *new_record(void)
{
	if (nr_records == MAX_RECORDS)
		errx(1, "more than %d records", MAX_RECORDS);
	return record[nr_records++];
}

#define expect(...)	snprintf(new_record(), sizeof(record[0]), __VA_ARGS__)

static bool prepared(const struct known_case *c, int page, enum prepare what)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(c->prepare); i++)
		if (c->prepare[i].page == page && c->prepare[i].what == what)
			return true;
	return false;
}

static bool is_file(const struct known_case *c)
{
	return prepared(c, 0, FILE_PAGE);
}

/* Map the pages of a case in slot nr, two page tables wide, and fill them. */
static char *map_case(const struct known_case *c, int nr)
{
	size_t pmd = cow_pmd_size(), len = c->pages * ps;
	char *p = (char *)(uintptr_t)KNOWN_START + 2 * nr * pmd + ps;
	char *end = (char *)(uintptr_t)KNOWN_START + 2 * (nr + 1) * pmd;
	int fd = -1, flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE, i;

	for (i = 0; i < c->pages; i++)
		if (prepared(c, i, ACROSS))
			p += pmd - (i + 1) * ps;
	if (p + len > end || end > (char *)(uintptr_t)KNOWN_END)
		errx(4, "a page table maps too much (%zu bytes)", pmd);
	if (is_file(c)) {
		fd = memfd_create("known_faults", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, len))
			err(1, "memfd_create");
	} else {
		flags |= MAP_ANONYMOUS;
	}
	if (mmap(p, len, PROT_READ | PROT_WRITE, flags, fd, 0) != p)
		err(1, "mmap");
	if (fd >= 0)
		close(fd);
	/* EINVAL without THP */
	madvise(p, len, MADV_NOHUGEPAGE);
	if (prepared(c, 0, RANDOM) && madvise(p, len, MADV_RANDOM))
		err(1, "MADV_RANDOM");
	for (i = 0; i < c->pages; i++) {
		if (is_file(c) || prepared(c, i, ZERO))
			cow_peek(p + i * ps);
		else if (!prepared(c, i, HOLE))
			cow_touch(p + i * ps, i);
	}
	return p;
}

static int child(struct cow_child *self, void *arg)
{
	size_t i;
	int k;

	(void)arg;
	for (i = 0; i < ARRAY_SIZE(with_child); i++)
		for (k = 0; k < with_child[i].pages; k++)
			if (prepared(&with_child[i], k, DROPPED) &&
			    munmap(region[i] + k * ps, ps))
				return 1;
	if (cow_child_send(self, 1))
		return 1;
	return cow_child_recv(self) == -EPIPE ? 0 : 1;
}

static void expect_fault(char *addr, const char *outcome, int ahead)
{
	expect("cow_fault address=%p pid=%d outcome=%s order=0 ahead=%d", addr,
	       getpid(), outcome, ahead);
}

static void expect_copy(char *addr, int installed, const char *reason)
{
	expect("cow_precopy address=%p pid=%d asked=%d installed=%d reason=%s", addr,
	       getpid(), AHEAD, installed, reason);
	expect_fault(addr, installed ? "precopied-around" : "copied", installed);
}

static void write_case(const struct known_case *c, char *p, bool ahead)
{
	int i;

	for (i = 0; i < c->writes; i++) {
		const struct known_write *w = &c->write[i];
		char *addr = p + w->page * ps;

		/* Not at the start of the page; the records name that. */
		cow_touch(addr + 8 * i + 1, 'w');
		if (w->result == REUSE)
			expect_fault(addr, "reused", 0);
		else if (w->result == COPY && ahead && w->installed != TAKEN)
			expect_copy(addr, w->installed, w->reason);
		else if (w->result == PLAIN || (w->result == COPY && !ahead))
			expect_fault(addr, "copied", 0);
	}
}

int main(int argc, char **argv)
{
	bool ahead = argc == 2 && !strcmp(argv[1], "-p");
	struct cow_child c;
	const char *reason;
	size_t i, k;

	if (argc > 1 + ahead) {
		fprintf(stderr, "Usage: known_faults [-p]\n  -p  with pre-copy, %d pages ahead\n",
			AHEAD);
		return 1;
	}
	if (sizeof(void *) < 8)
		errx(4, "needs an address space of 64 bits");
	ps = cow_page_size();
	cow_allow_changes();
	reason = cow_setup(&saved, ahead ? AHEAD : COW_PLAIN, COW_ANY_KERNEL);
	if (reason)
		errx(4, "%s", reason);
	atexit(restore);
	if (cow_pin_cpu())
		err(1, "sched_setaffinity");

	for (i = 0; i < ARRAY_SIZE(with_child); i++)
		region[i] = map_case(&with_child[i], i);
	for (k = 0; k < ARRAY_SIZE(without_child); k++)
		region[i + k] = map_case(&without_child[k], i + k);
	if (cow_drain_lru())
		err(1, "MADV_COLD");
	if (cow_child_fork(&c, child, NULL) || cow_child_recv(&c) != 1 ||
	    cow_child_settle(&c))
		err(1, "fork");
	for (i = 0; i < ARRAY_SIZE(with_child); i++)
		write_case(&with_child[i], region[i], ahead);
	if (cow_child_end(&c))
		errx(1, "the child failed");
	for (k = 0; k < ARRAY_SIZE(without_child); k++)
		write_case(&without_child[k], region[i + k], ahead);

	printf("pid %d\n", getpid());
	for (i = 0; i < (size_t)nr_records; i++)
		puts(record[i]);
	return fflush(stdout) ? 1 : 0;
}
