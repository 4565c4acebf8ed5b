// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The copy-on-write counters of the kernel, in a C program
 *
 * See cow_stats.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cow_stats.h"

const char *cow_proc = "/proc";

const char * const cow_key_names[COW_NR_KEYS] = {
	[COW_FAULTS]			= "faults",
	[COW_REUSED]			= "reused",
	[COW_LOST]			= "lost",
	[COW_LOST_NS]			= "lost_ns",
	[COW_UNSHARED]			= "unshared",
	[COW_PMD_REUSED]		= "pmd_reused",
	[COW_PMD_SPLIT]			= "pmd_split",
	[COW_TOTAL_NS]			= "total_ns",
	[COW_MAX_NS]			= "max_ns",
	[COW_MIN_NS]			= "min_ns",
	[COW_AVG_NS]			= "avg_ns",
	[COW_P50_NS]			= "p50_ns",
	[COW_P90_NS]			= "p90_ns",
	[COW_P95_NS]			= "p95_ns",
	[COW_P99_NS]			= "p99_ns",
	[COW_FAULT_TOTAL_NS]		= "fault_total_ns",
	[COW_FAULT_P50_NS]		= "fault_p50_ns",
	[COW_FAULT_P99_NS]		= "fault_p99_ns",
	[COW_FAULT_MAX_NS]		= "fault_max_ns",
	[COW_ATTEMPTS]			= "precopy_attempts",
	[COW_SUCCESS]			= "precopy_success",
	[COW_REUSE_AHEAD]		= "reuse_ahead",
	[COW_SKIP_VMA]			= "precopy_skip_vma",
	[COW_SKIP_PMD]			= "precopy_skip_pmd",
	[COW_SKIP_NOTPRESENT]		= "precopy_skip_notpresent",
	[COW_SKIP_WRITABLE]		= "precopy_skip_writable",
	[COW_SKIP_NOTANON]		= "precopy_skip_notanon",
	[COW_SKIP_EXCLUSIVE]		= "precopy_skip_exclusive",
	[COW_SKIP_RACE]			= "precopy_skip_race",
	[COW_SKIP_NOMEM]		= "precopy_skip_nomem",
	[COW_SKIP_SPECIAL]		= "precopy_skip_special",
	[COW_SKIP_MADVISE]		= "precopy_skip_madvise",
	[COW_SKIP_UFFD]			= "precopy_skip_uffd",
	[COW_SKIP_SOFTDIRTY]		= "precopy_skip_softdirty",
	[COW_SKIP_KSM]			= "precopy_skip_ksm",
	[COW_SKIP_PINNED]		= "precopy_skip_pinned",
	[COW_CHILDREN_FAULTS]		= "children_faults",
	[COW_CHILDREN_REUSED]		= "children_reused",
	[COW_CHILDREN_LOST]		= "children_lost",
	[COW_CHILDREN_LOST_NS]		= "children_lost_ns",
	[COW_CHILDREN_UNSHARED]		= "children_unshared",
	[COW_CHILDREN_PMD_REUSED]	= "children_pmd_reused",
	[COW_CHILDREN_PMD_SPLIT]	= "children_pmd_split",
	[COW_CHILDREN_TOTAL_NS]		= "children_total_ns",
	[COW_CHILDREN_FAULT_TOTAL_NS]	= "children_fault_total_ns",
	[COW_CHILDREN_SUCCESS]		= "children_precopy_success",
	[COW_CHILDREN_REUSE_AHEAD]	= "children_reuse_ahead",
};

/* Known of what one file counts, but not of the difference between two readings */
static bool cow_is_extreme(int key)
{
	return key == COW_MAX_NS || key == COW_MIN_NS || key == COW_FAULT_MAX_NS;
}

static bool cow_is_percentile(int key)
{
	switch (key) {
	case COW_P50_NS:
	case COW_P90_NS:
	case COW_P95_NS:
	case COW_P99_NS:
	case COW_FAULT_P50_NS:
	case COW_FAULT_P99_NS:
		return true;
	}
	return false;
}

/* Missing without CONFIG_COW_PRECOPY */
static bool cow_is_precopy(int key)
{
	return (key >= COW_ATTEMPTS && key < COW_NR_SYSTEM_KEYS) ||
	       key == COW_CHILDREN_SUCCESS || key == COW_CHILDREN_REUSE_AHEAD;
}

/*
 * Files
 */

ssize_t cow_read_file(const char *path, char *buf, size_t size)
{
	ssize_t n, len = 0;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while ((size_t)len < size - 1) {
		n = read(fd, buf + len, size - 1 - len);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			len = -errno;
			break;
		}
		if (!n)
			break;
		len += n;
	}
	close(fd);
	buf[len < 0 ? 0 : len] = '\0';
	return len;
}

typedef int (*cow_line_fn)(char *line, void *arg);

/*
 * Hand each line of a file, without its newline, to fn until that fails. The
 * number of lines, or a negative errno; -EPROTO if one is cut off or too long.
 */
static int cow_parse_lines(const char *path, cow_line_fn fn, void *arg)
{
	/* Static: read and parsed in the same pages each time. */
	static __thread char buf[4096];
	size_t have = 0;
	int fd, nr = 0, ret = 0;
	ssize_t n;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (!ret) {
		char *line = buf, *end;

		n = read(fd, buf + have, sizeof(buf) - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			ret = n ? -errno : 0;
			break;
		}
		have += n;
		while (!ret && (end = memchr(line, '\n', buf + have - line))) {
			*end = '\0';
			/* No line has a NUL in it. */
			ret = strlen(line) == (size_t)(end - line) ?
			      fn(line, arg) : -EPROTO;
			line = end + 1;
			nr++;
		}
		have -= line - buf;
		memmove(buf, line, have);
		if (!ret && have == sizeof(buf))
			ret = -EPROTO;
	}
	close(fd);
	if (!ret && have)
		ret = -EPROTO;
	return ret ?: nr;
}

/* Decimal digits only, unlike strtoull(); moves *text behind them. */
static bool cow_parse(char **text, unsigned long long *val)
{
	char *p = *text;

	*val = 0;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (*val > (ULLONG_MAX - (*p - '0')) / 10)
			return false;
		*val = *val * 10 + (*p - '0');
	}
	if (p == *text)
		return false;
	*text = p;
	return true;
}

/*
 * Counters
 */

static int cow_stats_line(char *line, void *arg)
{
	struct cow_stats *s = arg;
	unsigned long long val;
	char *text;
	int i;

	text = strstr(line, ": ");
	if (!text || text == line)
		return -EPROTO;
	*text = '\0';
	text += 2;
	if (!cow_parse(&text, &val) || *text)
		return -EPROTO;
	if (!strncmp(line, "precopy_skip_", 13))
		s->skips += val;
	for (i = 0; i < COW_NR_KEYS; i++) {
		if (strcmp(line, cow_key_names[i]))
			continue;
		if (s->known[i])
			return -EPROTO;
		s->v[i] = val;
		s->known[i] = true;
		break;
	}
	return 0;
}

static int cow_stats_parse(struct cow_stats *s, const char *path, bool system)
{
	int i, nr;

	memset(s, 0, sizeof(*s));
	nr = cow_parse_lines(path, cow_stats_line, s);
	if (nr < 0)
		return nr;
	if (!nr)
		return system ? -EPROTO : -ENODATA;
	for (i = COW_ATTEMPTS; i < COW_NR_SYSTEM_KEYS; i++)
		s->precopy |= s->known[i];
	for (i = 0; i < COW_NR_KEYS; i++) {
		if (s->known[i] || (!s->precopy && cow_is_precopy(i)) ||
		    (system && i >= COW_NR_SYSTEM_KEYS) ||
		    (!system && cow_is_percentile(i)))
			continue;
		s->missing = cow_key_names[i];
		break;
	}
	/* A file without this key is not cow_stats. */
	return s->known[COW_FAULTS] ? 0 : -EPROTO;
}

int cow_stats_read(struct cow_stats *s)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/cow_stats", cow_proc);
	return cow_stats_parse(s, path, true);
}

int cow_stats_read_pid(struct cow_stats *s, pid_t pid)
{
	char path[PATH_MAX];

	if (pid)
		snprintf(path, sizeof(path), "%s/%d/cow_stats", cow_proc, pid);
	else
		snprintf(path, sizeof(path), "%s/self/cow_stats", cow_proc);
	return cow_stats_parse(s, path, false);
}

void cow_stats_set(struct cow_stats *s, enum cow_key key, unsigned long long val)
{
	s->v[key] = val;
	s->known[key] = true;
}

void cow_stats_delta(struct cow_stats *d, const struct cow_stats *before,
		     const struct cow_stats *after)
{
	int i;

	for (i = 0; i < COW_NR_KEYS; i++)
		d->v[i] = cow_is_percentile(i) || cow_is_extreme(i) ? 0 :
			  after->v[i] - before->v[i];
	d->v[COW_AVG_NS] = d->v[COW_FAULTS] ?
			   d->v[COW_TOTAL_NS] / d->v[COW_FAULTS] : 0;
	for (i = 0; i < COW_NR_KEYS; i++)
		d->known[i] = before->known[i] && after->known[i];
	d->missing = after->missing;
	d->skips = after->skips - before->skips;
	d->precopy = after->precopy;
}

bool cow_stats_restarted(const struct cow_stats *before,
			 const struct cow_stats *after)
{
	unsigned long long min;
	int i;

	/* The shortest so far only gets shorter; 0 while there is none. */
	min = before->v[COW_MIN_NS];
	if (min && (!after->v[COW_MIN_NS] || after->v[COW_MIN_NS] > min))
		return true;
	for (i = 0; i < COW_NR_KEYS; i++) {
		if (i == COW_MIN_NS || i == COW_AVG_NS || cow_is_percentile(i))
			continue;
		if (after->v[i] < before->v[i])
			return true;
	}
	return after->skips < before->skips;
}

/*
 * Histograms
 */

static unsigned int cow_hist_index(__u64 ns)
{
	unsigned int shift;

	if (ns >> COW_HIST_MAX_BITS)
		ns = ((__u64)1 << COW_HIST_MAX_BITS) - 1;
	if (!(ns >> COW_HIST_SHIFT))
		return ns;
	shift = 63 - __builtin_clzll(ns) - COW_HIST_SHIFT;
	return (shift << COW_HIST_SHIFT) + (ns >> shift);
}

/* The middle of a bucket */
static __u64 cow_hist_value(unsigned int index)
{
	unsigned int shift;

	if (!(index >> (COW_HIST_SHIFT + 1)))
		return index;
	shift = (index >> COW_HIST_SHIFT) - 1;
	index -= shift << COW_HIST_SHIFT;
	return ((__u64)index << shift) + ((__u64)1 << (shift - 1));
}

void cow_hist_add(struct cow_hist *h, __u64 ns)
{
	h->count[cow_hist_index(ns)]++;
}

void cow_hist_delta(struct cow_hist *d, const struct cow_hist *before,
		    const struct cow_hist *after)
{
	int i;

	for (i = 0; i < COW_HIST_BUCKETS; i++)
		d->count[i] = after->count[i] - before->count[i];
}

bool cow_hist_restarted(const struct cow_hist *before,
			const struct cow_hist *after)
{
	int i;

	for (i = 0; i < COW_HIST_BUCKETS; i++)
		if (after->count[i] < before->count[i])
			return true;
	return false;
}

__u64 cow_hist_total(const struct cow_hist *h)
{
	__u64 total = 0;
	int i;

	for (i = 0; i < COW_HIST_BUCKETS; i++)
		total += h->count[i];
	return total;
}

__u64 cow_hist_percentile(const struct cow_hist *h, double percent)
{
	__u64 rank, total = cow_hist_total(h);
	double exact;
	int i;

	if (!total)
		return 0;
	/*
	 * 99.9 is not a binary fraction: take off more than the rounding error,
	 * so that 999 of 1000 does not become the 1000th.
	 */
	exact = percent / 100 * total * (1.0 - 1e-14);
	rank = exact > 0 ? exact : 0;
	if (rank < exact)
		rank++;
	if (!rank)
		rank = 1;
	if (rank > total)
		rank = total;
	for (i = 0; rank > h->count[i]; i++)
		rank -= h->count[i];
	return cow_hist_value(i);
}

struct cow_hist_parser {
	const char *name;
	struct cow_hist *h;
	int next;
};

/* copy LOWEST HIGHEST COUNT */
static int cow_hist_line(char *line, void *arg)
{
	struct cow_hist_parser *parser = arg;
	unsigned long long lowest, highest, count;
	unsigned int index;
	char *text;

	text = strchr(line, ' ');
	if (!text || text == line)
		return -EPROTO;
	*text++ = '\0';
	while (parser->name && strcmp(line, parser->name))
		parser++;
	if (!parser->name)
		return 0;
	if (!cow_parse(&text, &lowest) || *text++ != ' ' ||
	    !cow_parse(&text, &highest) || *text++ != ' ' ||
	    !cow_parse(&text, &count) || *text)
		return -EPROTO;
	/* Buckets that are coarser than ours would break the 1.6 %. */
	index = cow_hist_index(lowest);
	if (lowest > highest || cow_hist_index(highest) != index ||
	    (int)index < parser->next)
		return -EPROTO;
	parser->next = index + 1;
	if (parser->h)
		parser->h->count[index] = count;
	return 0;
}

int cow_hist_read(struct cow_hist *copy, struct cow_hist *fault)
{
	struct cow_hist_parser parser[] = {
		{ .name = "copy", .h = copy },
		{ .name = "fault", .h = fault },
		{ .name = NULL },
	};
	char path[PATH_MAX];
	int nr;

	if (copy)
		memset(copy, 0, sizeof(*copy));
	if (fault)
		memset(fault, 0, sizeof(*fault));
	snprintf(path, sizeof(path), "%s/cow_histogram", cow_proc);
	nr = cow_parse_lines(path, cow_hist_line, parser);
	return nr < 0 ? nr : 0;
}
