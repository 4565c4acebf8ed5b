// SPDX-License-Identifier: GPL-2.0
/*
 * The samples of cowstat: what the kernel has counted so far
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cowstat.h"

#define PF_KTHREAD	0x00200000	/* include/linux/sched.h */

unsigned long long now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec;
}

/* The value of a line "key value", or false */
static bool find_key(const char *text, const char *key, unsigned long long *val)
{
	size_t len = strlen(key);

	while (text) {
		if (!strncmp(text, key, len) && text[len] == ' ')
			return sscanf(text + len, "%llu", val) == 1;
		text = strchr(text, '\n');
		if (text)
			text++;
	}
	return false;
}

/* Every kernel with the first patch of the series has these, without an option. */
static void sample_pgcow(struct sample *s, const char *text)
{
	static const struct {
		const char *name;
		enum cow_key key;
	} counts[] = {
		{ "pgcow_copied", COW_FAULTS },
		{ "pgcow_reused", COW_REUSED },
		{ "pgcow_lost", COW_LOST },
		{ "pgcow_ahead", COW_SUCCESS },
		{ "pgcow_reused_ahead", COW_REUSE_AHEAD },
	};
	unsigned long long val;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(counts); i++)
		if (find_key(text, counts[i].name, &val))
			cow_stats_set(&s->vmstat, counts[i].key, val);
	if (s->vmstat.known[COW_FAULTS])
		s->have |= HAVE_PGCOW;
	if (s->vmstat.known[COW_SUCCESS])
		s->have |= HAVE_PGCOW_AHEAD;
}

/* NULL if it cannot be read */
static const char *read_vmstat(void)
{
	static char buf[65536];
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/vmstat", cow_proc);
	return cow_read_file(path, buf, sizeof(buf)) > 0 ? buf : NULL;
}

static void sample_vmstat(struct sample *s)
{
	const char *buf = read_vmstat();
	unsigned long long all, major;

	if (!buf)
		return;
	sample_pgcow(s, buf);
	if (find_key(buf, "pgfault", &all) &&
	    find_key(buf, "pgmajfault", &major)) {
		s->minor = all > major ? all - major : 0;
		s->have |= HAVE_MINOR;
	}
	if (find_key(buf, "pgreuse", &s->pgreuse))
		s->have |= HAVE_PGREUSE;
	if (find_key(buf, "cow_ksm", &s->ksm))
		s->have |= HAVE_KSM;
}

/* A main thread that has exited before the others is a zombie with empty files. */
pid_t live_thread(pid_t pid)
{
	char path[PATH_MAX], buf[1024], *p, state;
	struct dirent *entry;
	pid_t tid = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/%d/task", cow_proc, pid);
	dir = opendir(path);
	if (!dir)
		return 0;
	while (!tid && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "%s/%d/task/%.20s/stat", cow_proc,
			 pid, entry->d_name);
		if (cow_read_file(path, buf, sizeof(buf)) <= 0)
			continue;
		p = strrchr(buf, ')');
		if (p && sscanf(p + 1, " %c", &state) == 1 && state != 'Z' &&
		    state != 'X')
			tid = atoi(entry->d_name);
	}
	closedir(dir);
	return tid;
}

pid_t process_of(pid_t tid)
{
	char path[PATH_MAX], buf[4096], *p;

	snprintf(path, sizeof(path), "%s/%d/status", cow_proc, tid);
	if (cow_read_file(path, buf, sizeof(buf)) <= 0)
		return 0;
	p = strstr(buf, "\nTgid:");
	return p ? atoi(p + strlen("\nTgid:")) : 0;
}

/* False if the process has gone, or never was; *why says what is wrong. */
static bool sample_process(struct target *t, const char **why)
{
	struct sample *s = t->now;
	char path[PATH_MAX], buf[1024], *p, state;
	unsigned long flags;
	ssize_t len;

	snprintf(path, sizeof(path), "%s/%d/stat", cow_proc, t->pid);
	len = cow_read_file(path, buf, sizeof(buf));
	if (len == -ENOENT || len == -ESRCH) {
		*why = "no such process";
		return false;
	}
	if (len < 0) {
		/* With hidepid=1 the others cannot be read; none was asked for. */
		if (!opt.all && !opt.name)
			die("%s: %s", path, strerror(-len));
		*why = strerror(-len);
		return false;
	}
	/* The name in parentheses may have any character in it. */
	p = strrchr(buf, ')');
	if (!p || !memchr(buf, '(', p - buf) || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %lu %llu %llu %*u %*u"
			 " %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &flags,
			 &s->minor, &s->children_minor, &s->start) != 5)
		die("%s is malformed", path);
	*p = '\0';
	snprintf(t->name, sizeof(t->name), "%s", strchr(buf, '(') + 1);
	t->tid = t->pid;
	if (state == 'Z' || state == 'X')
		t->tid = live_thread(t->pid);
	if (!t->tid) {
		*why = "it has exited, and its parent has not waited for it yet";
		return false;
	}
	if (flags & PF_KTHREAD) {
		*why = "it is a kernel thread, which has no memory of its own";
		return false;
	}
	s->have |= HAVE_MINOR;
	return true;
}

void sample_wpcopy(struct sample *s, pid_t pid)
{
	static unsigned int said;
	int ret;

	/* The delays are those of this kernel. */
	if (opt.other_proc)
		return;
	ret = wpcopy_read(pid, &s->wpcopy);
	if (!ret)
		s->have |= HAVE_WPCOPY;
	else if (ret == -EPERM || ret == -EACCES)
		missing(&said, 1, "no wpcopy: delay accounting needs root");
	else if (ret == -ENODATA)
		missing(&said, 2, "no wpcopy: kernel.task_delayacct is 0 (1 acts on processes that start later)");
	else if (ret == -EOPNOTSUPP || ret == -ENOENT)
		missing(&said, 4, "no wpcopy: kernel without CONFIG_TASK_DELAY_ACCT");
	else if (ret != -ESRCH)
		missing(&said, 8, "no wpcopy: %s", strerror(-ret));
}

/*
 * Kernels that do not count
 */

static bool probing;
static const char *no_probes;	/* the reason */

void begin_probing(enum probes_whose whose, pid_t pid)
{
	unsigned long long val;
	char path[PATH_MAX];
	const char *vmstat;

	snprintf(path, sizeof(path), "%s/cow_stats", cow_proc);
	if (opt.other_proc || !access(path, F_OK))
		return;
	/* What the kernel counts costs nothing, and needs no root. */
	vmstat = whose == PROBES_SYSTEM ? read_vmstat() : NULL;
	if (vmstat && find_key(vmstat, "pgcow_copied", &val))
		return;
	no_probes = probes_begin(whose, pid);
	probing = !no_probes;
}

static void check_probes(int ret, unsigned long long missed)
{
	static unsigned int said;

	if (ret)
		die("the kprobe events cannot be read any more: %s", strerror(-ret));
	if (missed)
		missing(&said, 1, "some faults are not counted: a table of the kernel's is full");
}

void read_all_probes(void)
{
	unsigned long long missed;
	int ret;

	if (!probing)
		return;
	ret = probes_read(&missed);
	check_probes(ret, missed);
}

bool read_probes_of_tree(struct probed *p, pid_t root)
{
	unsigned long long missed;
	int ret;

	if (!probing)
		return false;
	ret = probes_read_tree(p, root, &missed);
	check_probes(ret, missed);
	return true;
}

void sample_probes(struct sample *s, pid_t pid)
{
	const struct probed *p;

	if (!probing)
		return;
	p = probes_of(pid);
	cow_stats_set(&s->stats, COW_FAULTS, p->faults);
	cow_stats_set(&s->stats, COW_REUSED, p->reused);
	cow_stats_set(&s->stats, COW_UNSHARED, p->unshared);
	cow_stats_set(&s->stats, COW_FAULT_TOTAL_NS, p->fault_total_ns);
	s->have |= HAVE_PROBED;
}

void explain_counts(int ret, pid_t pid)
{
	static unsigned int said;
	char path[PATH_MAX];

	if (pid)
		snprintf(path, sizeof(path), "%s/%d/cow_stats", cow_proc, pid);
	else
		snprintf(path, sizeof(path), "%s/cow_stats", cow_proc);
	if (ret == -EPROTO)
		die("%s is malformed", path);
	snprintf(path, sizeof(path), "%s/cow_stats", cow_proc);
	if (ret == -EACCES || ret == -EPERM)
		missing(&said, 1, "no permission to see more of process %d than its minor faults",
			pid);
	else if (ret == -ENOENT && pid && !access(path, F_OK))
		missing(&said, 2, "this kernel counts for the system, not for each process: minor faults only");
	else if (ret == -ENOENT && probing)
		missing(&said, 16, "kernel without CONFIG_COW_STATS: counting by kprobe events, from now on; no lost, ahead, copy time, percentiles, nor faults on huge pages that a PMD maps");
	else if (ret == -ENOENT && no_probes)
		missing(&said, 4, "no copied, reused, ahead, times: kernel without CONFIG_COW_STATS, and without kprobe events: %s",
			no_probes);
	else if (ret == -ENOENT)
		missing(&said, 4, "no copied, reused, ahead, times: kernel without CONFIG_COW_STATS");
	else
		missing(&said, 8, "cannot read the counters: %s",
			strerror(-ret));
}

void explain_missing_key(const struct sample *s, pid_t pid)
{
	static unsigned int said;
	char dir[16] = "";

	if (!s->stats.missing)
		return;
	if (pid)
		snprintf(dir, sizeof(dir), "/%d", pid);
	missing(&said, pid ? 2 : 1, "%s%s/cow_stats has no '%s': this kernel's counters are older or newer than cowstat",
		cow_proc, dir, s->stats.missing);
}

/* Of the system there are vmstat's counts, but no times. */
static void explain_no_times(void)
{
	static unsigned int said;

	missing(&said, 1, "no times, percentiles: kernel without CONFIG_COW_STATS; the counts are those of %s/vmstat",
		cow_proc);
}

void explain_switches(const struct sample *s)
{
	static unsigned int said;

	if (!(s->have & HAVE_TIMING) && (s->have & HAVE_PGCOW))
		missing(&said, 1, "no times, percentiles: vm.cow_stats is 0, copied, reused and lost are those of %s/vmstat; as root: sysctl vm.cow_stats=1, or cowstat -e",
			cow_proc);
	else if (!(s->have & HAVE_TIMING))
		missing(&said, 1, "no copied, reused, times: vm.cow_stats is 0; as root: sysctl vm.cow_stats=1, or cowstat -e");
	if (!(s->have & HAVE_AHEAD))
		missing(&said, 2, "no pages ahead: kernel without CONFIG_COW_PRECOPY");
}

int sample_counts(struct sample *s, int ret)
{
	if (ret)
		return ret;
	s->have |= HAVE_COUNTS;
	if (s->stats.precopy)
		s->have |= HAVE_PRECOPY;
	/* A directory that somebody has filled need not have it. */
	if (timing_is_on())
		s->have |= HAVE_TIMING;
	return 0;
}

static void sample_histogram(struct sample *s, pid_t pid)
{
	static unsigned int said;
	int ret;

	if (!(s->have & HAVE_TIMING))
		return;
	if (pid) {
		missing(&said, 1, "no percentiles: the kernel has them for the system, not for a process");
		return;
	}
	ret = cow_hist_read(&s->hist->copy, &s->hist->fault);
	if (!ret)
		s->have |= HAVE_HIST;
	else if (ret == -EPROTO)
		die("%s/cow_histogram is malformed", cow_proc);
	else
		missing(&said, 2, "no percentiles: %s/cow_histogram: %s",
			cow_proc, strerror(-ret));
}

static bool sample_once(struct target *t, const char **why)
{
	struct sample *s = t->now;
	int ret;

	*s = (struct sample) { .hist = s->hist };
	s->ns = now_ns(CLOCK_MONOTONIC);
	if (t->pid) {
		if (!sample_process(t, why))
			return false;
		ret = sample_counts(s, cow_stats_read_pid(&s->stats, t->tid));
	} else {
		sample_vmstat(s);
		ret = sample_counts(s, cow_stats_read(&s->stats));
	}
	if (ret == -ESRCH || ret == -ENODATA) {
		*why = "it has just exited";
		return false;
	}
	if (ret == -ENOENT && (s->have & HAVE_PGCOW)) {
		explain_no_times();
	} else if (ret) {
		explain_counts(ret, t->pid);
	} else {
		explain_missing_key(s, t->pid);
		explain_switches(s);
	}
	sample_probes(s, t->pid);
	sample_histogram(s, t->pid);
	if (t->pid && !(s->have & HAVE_FAULTS))
		sample_wpcopy(s, t->pid);
	if (!s->have)
		die("nothing in %s to show: neither cow_stats nor vmstat",
		    cow_proc);
	return true;
}

static bool reset_meanwhile(const struct sample *s)
{
	struct cow_stats now;

	return (s->have & HAVE_HIST) && !cow_stats_read(&now) &&
	       cow_stats_restarted(&s->stats, &now);
}

/*
 * Counts and histogram are two files. A reset between reading the one and the
 * other would be two: of the histogram in this sample, of the counts in the next.
 */
bool take_sample(struct target *t, const char **why)
{
	do {
		if (!sample_once(t, why))
			return false;
	} while (reset_meanwhile(t->now));
	return true;
}
