// SPDX-License-Identifier: GPL-2.0
/*
 * The rows of cowstat: rates, the table, JSON
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "cowstat.h"

#define DEFAULT_HEIGHT	24		/* lines of what is not a terminal */

static const int percentile_keys[NR_PERCENTILES] = {
	COW_P50_NS, COW_P90_NS, COW_P95_NS, COW_P99_NS,
	COW_FAULT_P50_NS, COW_FAULT_P99_NS,
};

static const int percents[NR_PERCENTILES] = { 50, 90, 95, 99, 50, 99 };

/* What the kernel's own file does not say, now or at all: @vmstat has it. */
static void add_vmstat(struct row *r, const struct cow_stats *vmstat)
{
	int i;

	for (i = 0; i < COW_NR_KEYS; i++) {
		bool ahead = i == COW_SUCCESS || i == COW_REUSE_AHEAD;

		if (vmstat->known[i] &&
		    !(r->have & (ahead ? HAVE_PRECOPY : HAVE_FAULTS)))
			cow_stats_set(&r->d, i, vmstat->v[i]);
	}
}

void first_row(struct row *r, const struct sample *s)
{
	int i;

	*r = (struct row) {
		/* The events are only now in place. */
		.have = s->have & ~HAVE_PROBED,
		.kind = ROW_TOTAL,
		.minor = s->minor,
		.children_minor = s->children_minor,
		.pgreuse = s->pgreuse,
		.ksm = s->ksm,
		.wpcopy = s->wpcopy,
		.d = s->stats,
	};
	add_vmstat(r, &s->vmstat);
	for (i = 0; i < NR_PERCENTILES; i++)
		r->percentile[i] = s->stats.v[percentile_keys[i]];
}

/* A counter that went backward tells of a reset. */
static bool restarted(const struct sample *a, const struct sample *b)
{
	unsigned int both = a->have & b->have;

	return ((both & HAVE_COUNTS) &&
		cow_stats_restarted(&a->stats, &b->stats)) ||
	       ((both & HAVE_HIST) &&
		(cow_hist_restarted(&a->hist->copy, &b->hist->copy) ||
		 cow_hist_restarted(&a->hist->fault, &b->hist->fault))) ||
	       ((both & HAVE_WPCOPY) && b->wpcopy.count < a->wpcopy.count);
}

/* Minor faults are the difference of two sums, not taken at one instant. */
static unsigned long long grown(unsigned long long a, unsigned long long b)
{
	return b > a ? b - a : 0;
}

void next_row(struct row *r, const struct sample *a, const struct sample *b)
{
	static struct cow_hist copy, fault;
	struct cow_stats vmstat;
	int i;

	*r = (struct row) {
		.kind = ROW_INTERVAL,
		.have = a->have & b->have,
		.seconds = (double)(b->ns - a->ns) / NSEC_PER_SEC,
		.reset = restarted(a, b),
		.minor = grown(a->minor, b->minor),
		.children_minor = grown(a->children_minor, b->children_minor),
		.pgreuse = grown(a->pgreuse, b->pgreuse),
		.ksm = grown(a->ksm, b->ksm),
		.wpcopy.count = b->wpcopy.count - a->wpcopy.count,
		.wpcopy.ns = b->wpcopy.ns - a->wpcopy.ns,
	};
	cow_stats_delta(&r->d, &a->stats, &b->stats);
	cow_stats_delta(&vmstat, &a->vmstat, &b->vmstat);
	add_vmstat(r, &vmstat);
	if (r->reset)
		r->have &= HAVE_MINOR | HAVE_PGREUSE | HAVE_KSM;
	if (!(r->have & HAVE_HIST))
		return;
	cow_hist_delta(&copy, &a->hist->copy, &b->hist->copy);
	cow_hist_delta(&fault, &a->hist->fault, &b->hist->fault);
	for (i = 0; i < NR_PERCENTILES; i++)
		r->percentile[i] = cow_hist_percentile(i < FAULT_P50 ? &copy : &fault,
						       percents[i]);
}

/* Values are UNKNOWN or not negative. */
double share(unsigned long long part, unsigned long long whole)
{
	return whole ? (double)part / whole : UNKNOWN;
}

static double rate(const struct row *r, unsigned long long count)
{
	return r->kind == ROW_TOTAL ? (double)count : count / r->seconds;
}

enum field {
	MINOR, COPIED, REUSED, LOST, AHEAD, REUSE_AHEAD, SKIP_SHARE,
	COPY_MS, COPY_SHARE, WALL_SHARE, PERCENTILE,
	PGREUSE, KSM, WPCOPY, WPCOPY_MS,
};

/* What the kernel's file does not have is not known. */
static double count_rate(const struct row *r, enum cow_key key)
{
	return r->d.known[key] ? rate(r, r->d.v[key]) : UNKNOWN;
}

/* With the faults that copied for nothing; by kprobe events they are in the total. */
static double wall_share(const struct row *r)
{
	if (r->kind == ROW_TOTAL || !r->d.known[COW_FAULT_TOTAL_NS])
		return UNKNOWN;
	return (r->d.v[COW_FAULT_TOTAL_NS] + r->d.v[COW_LOST_NS]) /
	       (r->seconds * NSEC_PER_SEC);
}

static double value(const struct row *r, enum field which, int arg)
{
	switch (which) {
	case MINOR:
		return rate(r, r->minor);
	case COPIED:
		return count_rate(r, COW_FAULTS);
	case REUSED:
		return count_rate(r, COW_REUSED);
	case LOST:
		return count_rate(r, COW_LOST);
	case AHEAD:
		return count_rate(r, COW_SUCCESS);
	case REUSE_AHEAD:
		return count_rate(r, COW_REUSE_AHEAD);
	case SKIP_SHARE:
		return share(r->d.skips, r->d.v[COW_ATTEMPTS]);
	case COPY_MS:
		return count_rate(r, COW_TOTAL_NS) / NSEC_PER_MSEC;
	case COPY_SHARE:
		return share(r->d.v[COW_TOTAL_NS], r->d.v[COW_FAULT_TOTAL_NS]);
	case WALL_SHARE:
		return wall_share(r);
	case PERCENTILE:
		/* 0 only if there was no fault. */
		return r->percentile[arg] ? (double)r->percentile[arg] : UNKNOWN;
	case PGREUSE:
		return rate(r, r->pgreuse);
	case KSM:
		return rate(r, r->ksm);
	case WPCOPY:
		return rate(r, r->wpcopy.count);
	case WPCOPY_MS:
		return rate(r, r->wpcopy.ns) / NSEC_PER_MSEC;
	}
	return UNKNOWN;
}

/*
 * The table
 */

#define GROUP_FAULTS	"faults/s"
#define GROUP_AHEAD	"ahead"
#define GROUP_TIME	"time"
#define GROUP_COPY	"copy ns"
#define GROUP_FAULT	"fault ns"

/* What is shown instead where the faults are not counted */
#define HAVE_INSTEAD	(HAVE_PGREUSE | HAVE_KSM | HAVE_WPCOPY)

enum format { RATE, MSEC, PERCENT, NSEC };

/* Which columns 80 characters hold; NO_CLOCK: without -t, NO_LIST: not in a list */
enum when { ALWAYS, NO_CLOCK, NO_LIST, WIDE };

static const struct column {
	const char *group, *name;
	int width;
	enum when when;
	unsigned int needs;
	enum format format;
	enum field field;
	int arg;
} columns[] = {
	{ GROUP_FAULTS, "minor", 9, NO_LIST, HAVE_MINOR, RATE, MINOR },
	{ GROUP_FAULTS, "copied", 9, ALWAYS, HAVE_COPIED, RATE, COPIED },
	{ GROUP_FAULTS, "reused", 9, ALWAYS, HAVE_COPIED, RATE, REUSED },
	{ GROUP_FAULTS, "lost", 7, ALWAYS, HAVE_LOST, RATE, LOST },
	{ GROUP_FAULTS, "pgreuse", 9, ALWAYS, HAVE_PGREUSE, RATE, PGREUSE },
	{ GROUP_FAULTS, "ksm", 8, ALWAYS, HAVE_KSM, RATE, KSM },
	{ GROUP_FAULTS, "wpcopy", 9, ALWAYS, HAVE_WPCOPY, RATE, WPCOPY },
	{ GROUP_AHEAD, "ahead", 9, ALWAYS, HAVE_AHEAD, RATE, AHEAD },
	{ GROUP_AHEAD, "reuse+", 8, WIDE, HAVE_AHEAD, RATE, REUSE_AHEAD },
	{ GROUP_AHEAD, "skip%", 5, WIDE, HAVE_PRECOPY, PERCENT, SKIP_SHARE },
	{ GROUP_TIME, "wpcms", 7, ALWAYS, HAVE_WPCOPY, MSEC, WPCOPY_MS },
	{ GROUP_TIME, "copyms", 7, ALWAYS, HAVE_TIMING, MSEC, COPY_MS },
	{ GROUP_TIME, "copy%", 5, WIDE, HAVE_TIMING, PERCENT, COPY_SHARE },
	{ GROUP_TIME, "wall%", 5, ALWAYS, HAVE_FAULTS, PERCENT, WALL_SHARE },
	{ GROUP_COPY, "p50", 6, WIDE, HAVE_HIST, NSEC, PERCENTILE, COPY_P50 },
	{ GROUP_COPY, "p90", 6, WIDE, HAVE_HIST, NSEC, PERCENTILE, COPY_P90 },
	{ GROUP_COPY, "p99", 6, WIDE, HAVE_HIST, NSEC, PERCENTILE, COPY_P99 },
	{ GROUP_FAULT, "p50", 6, WIDE, HAVE_HIST, NSEC, PERCENTILE, FAULT_P50 },
	{ GROUP_FAULT, "p99", 8, NO_CLOCK, HAVE_HIST, NSEC, PERCENTILE, FAULT_P99 },
};

static bool shown(const struct column *c, unsigned int have, bool list)
{
	if ((have & HAVE_COPIED) && (c->needs & HAVE_INSTEAD))
		return false;
	if (!(have & c->needs))
		return false;
	if (opt.wide)
		return true;
	switch (c->when) {
	case ALWAYS:
		return true;
	case NO_CLOCK:
		return !opt.clock;
	case NO_LIST:
		/* Where there is nothing else to show, it is shown. */
		return !list || !(have & HAVE_FAULTS);
	case WIDE:
		break;
	}
	return false;
}

/* The time of day, or room for it */
static void print_clock(bool header)
{
	char text[16];
	time_t now;

	if (!opt.clock)
		return;
	now = now_ns(CLOCK_REALTIME) / NSEC_PER_SEC;
	strftime(text, sizeof(text), "%H:%M:%S", localtime(&now));
	fprintf(out, "%8s ", header ? "" : text);
}

/* "--- name ---" of this width */
static void print_group(const char *name, int width)
{
	int len = strlen(name), left = (width - len - 2) / 2, i;

	if (width < len + 2) {
		fprintf(out, "%*.*s", width, width, name);
		return;
	}
	for (i = 0; i < left; i++)
		fputc('-', out);
	i += fprintf(out, " %s ", name);
	for (; i < width; i++)
		fputc('-', out);
}

static void print_groups(unsigned int have, bool list)
{
	size_t i, j;

	for (i = 0; i < ARRAY_SIZE(columns); i = j) {
		int width = -1;

		for (j = i; j < ARRAY_SIZE(columns) &&
		     !strcmp(columns[j].group, columns[i].group); j++)
			if (shown(&columns[j], have, list))
				width += columns[j].width + 1;
		if (width < 0)
			continue;
		fputc(' ', out);
		print_group(columns[i].group, width);
	}
	fputc('\n', out);
}

static void print_names(unsigned int have, bool list)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(columns); i++)
		if (shown(&columns[i], have, list))
			fprintf(out, " %*s", columns[i].width, columns[i].name);
	fputc('\n', out);
}

static void print_header(unsigned int have)
{
	print_clock(true);
	fprintf(out, "%8s", "");
	print_groups(have, false);
	print_clock(true);
	fprintf(out, "%8s", "seconds");
	print_names(have, false);
}

/* A number that is too wide for its column in thousands, millions, ... */
static void print_number(int width, int decimals, double val)
{
	static const char units[] = "kMGTPE";
	char text[64];
	size_t unit;

	snprintf(text, sizeof(text), "%.*f", decimals, val);
	for (unit = 0; (int)strlen(text) > width && units[unit]; unit++) {
		val /= 1000;
		snprintf(text, sizeof(text), "%.0f%c", val, units[unit]);
	}
	fprintf(out, " %*s", width, text);
}

static void print_value(const struct column *c, double val)
{
	int decimals = 0;

	switch (c->format) {
	case RATE:
		if (val < 99.95 && val != (int)val)
			decimals = 1;
		break;
	case MSEC:
		decimals = val < 9.9995 ? 3 : val < 9999.95 ? 1 : 0;
		break;
	case PERCENT:
		val *= 100;
		decimals = val < 999.95 ? 1 : 0;
		break;
	case NSEC:
		break;
	}
	if (val < 0)
		fprintf(out, " %*s", c->width, "-");
	else
		print_number(c->width, decimals, val);
}

/* What the row is about: of which interval */
static const char *row_label(const struct row *r)
{
	static char text[32];

	if (r->kind == ROW_TOTAL)
		return "total";
	if (r->reset)
		return "reset";
	if (r->kind == ROW_AVERAGE)
		return "average";
	snprintf(text, sizeof(text), r->seconds < 99999 ? "%.2f" : "%.0f", r->seconds);
	return text;
}

/* have: what the header has; the row may know less. */
static void print_values(const struct row *r, unsigned int have, bool list)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(columns); i++) {
		const struct column *c = &columns[i];

		if (shown(c, have, list))
			print_value(c, r->have & c->needs ?
				       value(r, c->field, c->arg) : UNKNOWN);
	}
	fputc('\n', out);
}

void print_processes_header(const struct row *r, unsigned int have)
{
	fputc('\n', out);
	print_clock(false);
	fprintf(out, "%*s", opt.clock ? 14 : 23, row_label(r));
	print_groups(have, true);
	fprintf(out, "%7s %-15s", "PID", "COMMAND");
	print_names(have, true);
}

void print_process_row(const struct target *t, const struct row *r,
		       unsigned int have)
{
	char name[COMM_LEN];
	int i;

	/* A process may have any name: nothing that a terminal takes for a command */
	for (i = 0; t->name[i]; i++)
		name[i] = t->name[i] >= ' ' && t->name[i] <= '~' ? t->name[i] : '?';
	name[i] = '\0';
	fprintf(out, "%7d %-15s", t->pid, name);
	print_values(r, have, true);
}

int screen_height(void)
{
	struct winsize size;

	if (ioctl(fileno(out), TIOCGWINSZ, &size) || !size.ws_row)
		return DEFAULT_HEIGHT;
	return size.ws_row;
}

void print_table_row(const struct row *r, unsigned int have)
{
	static unsigned int header;
	static int lines;

	/* The header's two lines, and one for the cursor */
	if (have != header || (!opt.one_header && lines >= screen_height() - 3)) {
		print_header(have);
		header = have;
		lines = 0;
	}
	print_clock(false);
	fprintf(out, "%8s", row_label(r));
	print_values(r, have, false);
	lines++;
}

/*
 * JSON
 */

static void json_key(const char *key)
{
	fprintf(out, ",\"%s\":", key);
}

void json_count(const char *key, bool known, unsigned long long val)
{
	json_key(key);
	if (known)
		fprintf(out, "%llu", val);
	else
		fputs("null", out);
}

void json_real(const char *key, bool known, double val)
{
	json_key(key);
	if (known && val >= 0)
		fprintf(out, "%.9f", val);
	else
		fputs("null", out);
}

/* NULL is not known. A process may have any name. */
static void json_string(const char *text)
{
	if (!text) {
		fputs("null", out);
		return;
	}
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = *text;

		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c < ' ' || c > '~')
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

/* The HAVE_* bits without which the key has no value */
static unsigned int needs_of(enum cow_key key)
{
	switch (key) {
	case COW_FAULTS:
	case COW_REUSED:
		return HAVE_COPIED;
	case COW_UNSHARED:
	case COW_FAULT_TOTAL_NS:
		return HAVE_FAULTS;
	case COW_LOST:
		return HAVE_LOST;
	case COW_SUCCESS:
	case COW_REUSE_AHEAD:
		return HAVE_AHEAD;
	case COW_CHILDREN_SUCCESS:
	case COW_CHILDREN_REUSE_AHEAD:
		return HAVE_PRECOPY;
	default:
		return key >= COW_ATTEMPTS && key < COW_NR_SYSTEM_KEYS ?
		       HAVE_PRECOPY : HAVE_TIMING;
	}
}

/* The keys that add up, of both files */
void json_counts(const struct row *r, bool pid)
{
	int i;

	for (i = 0; i < COW_NR_KEYS; i++) {
		bool child = i >= COW_NR_SYSTEM_KEYS;

		if (i > COW_TOTAL_NS && i < COW_ATTEMPTS &&
		    i != COW_FAULT_TOTAL_NS)
			continue;
		json_count(cow_key_names[i],
			   (r->have & needs_of(i)) && (pid || !child) && r->d.known[i],
			   r->d.v[i]);
	}
}

void json_row(const struct target *t, const struct row *r)
{
	static const struct {
		const char *key;
		unsigned int needs;
		enum field field;
	} rates[] = {
		{ "minor_faults_per_s", HAVE_MINOR, MINOR },
		{ "faults_per_s", HAVE_COPIED, COPIED },
		{ "reused_per_s", HAVE_COPIED, REUSED },
		{ "lost_per_s", HAVE_LOST, LOST },
		{ "precopy_success_per_s", HAVE_AHEAD, AHEAD },
		{ "reuse_ahead_per_s", HAVE_AHEAD, REUSE_AHEAD },
	}, shares[] = {
		{ "skip_share", HAVE_PRECOPY, SKIP_SHARE },
		{ "copy_share", HAVE_TIMING, COPY_SHARE },
		{ "wall_share", HAVE_FAULTS, WALL_SHARE },
	};
	size_t i;

	fprintf(out, "{\"time\":%.6f",
		(double)now_ns(CLOCK_REALTIME) / NSEC_PER_SEC);
	json_count("pid", t->pid, t->pid);
	json_key("comm");
	json_string(t->pid ? t->name : NULL);
	json_real("seconds", r->kind != ROW_TOTAL, r->seconds);
	json_key("reset");
	fputs(r->reset ? "true" : "false", out);
	json_count("minor_faults", r->have & HAVE_MINOR, r->minor);
	json_count("children_minor_faults", (r->have & HAVE_MINOR) && t->pid,
		   r->children_minor);
	json_count("pgreuse", r->have & HAVE_PGREUSE, r->pgreuse);
	json_count("cow_ksm", r->have & HAVE_KSM, r->ksm);
	json_count("wpcopy_count", r->have & HAVE_WPCOPY, r->wpcopy.count);
	json_count("wpcopy_ns", r->have & HAVE_WPCOPY, r->wpcopy.ns);
	json_counts(r, t->pid);
	for (i = 0; i < ARRAY_SIZE(rates); i++)
		json_real(rates[i].key, r->kind != ROW_TOTAL && (r->have & rates[i].needs),
			  value(r, rates[i].field, 0));
	for (i = 0; i < ARRAY_SIZE(shares); i++)
		json_real(shares[i].key, r->have & shares[i].needs,
			  value(r, shares[i].field, 0));
	for (i = 0; i < NR_PERCENTILES; i++)
		json_count(cow_key_names[percentile_keys[i]],
			   (r->have & HAVE_HIST) && r->percentile[i],
			   r->percentile[i]);
	fputs("}\n", out);
}
