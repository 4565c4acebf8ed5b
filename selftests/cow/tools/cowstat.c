// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat: copy-on-write faults per interval, of the system, a process or a
 * command
 *
 * Needs CONFIG_COW_STATS to be of full use. On other kernels it counts by kprobe
 * events as root, and otherwise shows what they have: minor faults, reused
 * pages, delay accounting.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cow_stats.h"
#include "cowstat_probes.h"
#include "cowstat_taskstats.h"

#define __printf(fmt, args)	__attribute__((format(printf, fmt, args)))
#define __noreturn		__attribute__((noreturn))

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

#define NSEC_PER_SEC	1000000000ULL
#define NSEC_PER_MSEC	1000000ULL
#define PID_MAX_LIMIT	4194304		/* include/linux/threads.h */
#define PF_KTHREAD	0x00200000	/* include/linux/sched.h */
#define MIN_INTERVAL	0.01
#define MAX_INTERVAL	31536000.0	/* a year */
#define DEFAULT_HEIGHT	24		/* lines of what is not a terminal */

/* Exit status; that of a command that could not be run is the shell's. */
#define E_OK		0
#define E_EXITED	1
#define E_USAGE		2
#define E_NOT_EXECUTABLE	126
#define E_NOT_FOUND	127
#define E_SIGNAL	128

static struct {
	pid_t pid;		/* 0: the whole system */
	bool json;
	bool enable;
	bool one_header;
	bool other_proc;
	double interval;	/* 0: one line */
	unsigned long count;	/* 0: until the end */
	const char *file;
} opt;

static FILE *out;
static volatile sig_atomic_t stop;
static volatile pid_t command;

static void usage(FILE *to)
{
	fputs("Usage: cowstat [-ejn] [-o FILE] [-p PID] [INTERVAL [COUNT]]\n"
	      "       cowstat [-ej] [-o FILE] -- CMD [ARGS...]\n"
	      "\n"
	      "Copy-on-write faults of the whole system or of one process: one line every\n"
	      "INTERVAL seconds (0.01 to 31536000, fractions too), COUNT lines or until it is\n"
	      "interrupted. The first line is the total since the counters were reset, or\n"
	      "since the process began or called exec; without INTERVAL it is the only one.\n"
	      "\n"
	      "With a command: runs it, and says at the end what it and those of its children\n"
	      "that were waited for have spent in copy-on-write faults.\n"
	      "\n"
	      "  -p, --pid PID      one process with all its threads\n"
	      "  -j, --json         a JSON object per line\n"
	      "  -e, --enable       set vm.cow_stats to 1 until the end (root)\n"
	      "  -n, --one-header   do not repeat the header for each screenful\n"
	      "  -o, --output FILE  write to FILE, '-' is standard output; otherwise lines go\n"
	      "                     there, and the bill of a command to standard error\n"
	      "      --proc DIR     read the files in DIR instead of those in /proc\n"
	      "  -h, --help\n"
	      "\n"
	      "  seconds  how long the interval was; 'total' in the first line; 'reset' if the\n"
	      "           counters began anew in between (reset, or exec): then nothing is known\n"
	      "  minor    minor faults per second, of any kind\n"
	      "  copied   pages copied by a fault, per second\n"
	      "  reused   faults that made a page writable without a copy, per second\n"
	      "  lost     pages copied for nothing, per second: another thread was faster\n"
	      "  ahead    pages copied ahead, per second (vm.cow_precopy)\n"
	      "  reuse+   pages made writable ahead, per second\n"
	      "  skip%    of the pages looked at in order to copy them ahead: left out\n"
	      "  copyms   milliseconds spent on these copies, not on those ahead, per second\n"
	      "  copy%    the same as a share of the time in copy-on-write faults\n"
	      "  wall%    the time in these faults as a share of the interval; 100 is one CPU\n"
	      "  p50 ...  percentiles in ns: of copying a page, and of the whole fault. There\n"
	      "           are none for one process, the kernel has them for the system only\n"
	      "A kernel without CONFIG_COW_STATS does not count these. As root, cowstat then\n"
	      "counts copied, reused and wall% itself, by kprobe events in an instance of\n"
	      "tracefs that it removes at its end (the next one removes what a killed one\n"
	      "left); x86_64 and arm64, with BTF. The time is that in do_wp_page(). Each\n"
	      "fault is slower meanwhile, and each page that is unmapped. The bill of a\n"
	      "command has all its descendants then. Where that cannot be had:\n"
	      "  pgreuse  pages made writable without a copy, per second (/proc/vmstat)\n"
	      "  ksm      pages merged by KSM that were copied, per second (/proc/vmstat)\n"
	      "  wpcopy   pages copied per second, and\n"
	      "  wpcms    milliseconds that took, per second (one process; delay accounting)\n"
	      "In the first line these are not per second but totals. A '-' is not known.\n"
	      "\n"
	      "JSON: time (Unix), pid (null: the system), seconds (null: total), reset, then\n"
	      "the counts of the interval under the names that the kernel's files have, with\n"
	      "minor_faults, children_minor_faults, pgreuse, cow_ksm, wpcopy_count and\n"
	      "wpcopy_ns; minor_faults_per_s, faults_per_s, reused_per_s,\n"
	      "lost_per_s, precopy_success_per_s, reuse_ahead_per_s; skip_share, copy_share and\n"
	      "wall_share (1 is all); percentiles in ns. Always all of them; null: not known.\n"
	      "With a command: status and signal (null: none), wall_s, user_s, system_s,\n"
	      "minor_faults, then as above.\n"
	      "\n"
	      "Exit status: 0, also when interrupted; 1 if the process exited while it was\n"
	      "watched; 2 usage or another error. With a command its own, 128 + signal if it\n"
	      "was killed, 126 if it cannot be executed, 127 if it is not found.\n",
	      to);
}

static void vnote(const char *fmt, va_list ap)
{
	fputs("cowstat: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
}

static __printf(1, 2) void note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vnote(fmt, ap);
	va_end(ap);
}

static __printf(1, 2) __noreturn void die(const char *fmt, ...);

/*
 * vm.cow_stats
 */

static bool switched_on;

static void sysctl_path(char *path, size_t size)
{
	snprintf(path, size, "%s/sys/vm/cow_stats", cow_proc);
}

/* 0, 1, or a negative errno */
static int timing_is_on(void)
{
	char path[PATH_MAX], buf[32];
	ssize_t len;

	sysctl_path(path, sizeof(path));
	len = cow_read_file(path, buf, sizeof(buf));
	return len < 0 ? len : buf[0] == '1';
}

static int switch_timing(const char *value)
{
	char path[PATH_MAX];
	FILE *file;

	sysctl_path(path, sizeof(path));
	file = fopen(path, "we");
	if (!file)
		return -errno;
	if (fputs(value, file) == EOF || fflush(file)) {
		int err = -errno;

		fclose(file);
		return err;
	}
	return fclose(file) ? -errno : 0;
}

static void enable_timing(void)
{
	int ret = timing_is_on();

	if (ret > 0)
		return;
	if (!ret)
		ret = switch_timing("1");
	if (ret == -ENOENT)
		die("there is no vm.cow_stats to switch on: kernel without CONFIG_COW_STATS");
	if (ret == -EACCES || ret == -EPERM)
		die("setting vm.cow_stats to 1 needs root");
	if (ret)
		die("cannot set vm.cow_stats to 1: %s", strerror(-ret));
	switched_on = true;
}

static void restore_timing(void)
{
	int ret;

	if (!switched_on)
		return;
	switched_on = false;
	ret = switch_timing("0");
	if (ret)
		note("vm.cow_stats remains 1: %s", strerror(-ret));
}

static __noreturn void quit(int status)
{
	restore_timing();
	probes_end();
	exit(status);
}

static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vnote(fmt, ap);
	va_end(ap);
	quit(E_USAGE);
}

/*
 * Signals: they end the loop, and what was switched on is switched off again.
 * While a command runs they are handed on to it, unless they come from the
 * terminal, which has sent them to both.
 */

static const int end_signals[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };
/* Those of them that we handle, and SIGPIPE, if they were not ignored */
static sigset_t caught;

static void on_signal(int sig, siginfo_t *info, void *context)
{
	(void)context;
	stop = 1;
	if (command > 0 && info->si_code <= 0)
		kill(command, sig);
}

static bool is_ignored(int sig)
{
	struct sigaction act;

	return !sigaction(sig, NULL, &act) && act.sa_handler == SIG_IGN;
}

/* nohup and a shell's background jobs have some ignored: that remains. */
static void catch_signals(void)
{
	/* No SA_RESTART: a write that waits for the reader ends, too. */
	struct sigaction act = {
		.sa_sigaction = on_signal,
		.sa_flags = SA_SIGINFO,
	};
	size_t i;

	sigemptyset(&caught);
	for (i = 0; i < ARRAY_SIZE(end_signals); i++) {
		if (is_ignored(end_signals[i]))
			continue;
		sigaddset(&caught, end_signals[i]);
		sigaction(end_signals[i], &act, NULL);
	}
	if (!is_ignored(SIGPIPE)) {
		sigaddset(&caught, SIGPIPE);
		/* write() says it. */
		signal(SIGPIPE, SIG_IGN);
	}
}

/*
 * Samples
 */

/* What could be read */
#define HAVE_MINOR	0x001	/* minor faults */
#define HAVE_PGREUSE	0x002
#define HAVE_KSM	0x004
#define HAVE_WPCOPY	0x008
#define HAVE_COUNTS	0x010	/* cow_stats, whatever it counts now */
#define HAVE_TIMING	0x020	/* vm.cow_stats is 1: it counts faults and time */
#define HAVE_PRECOPY	0x040
#define HAVE_HIST	0x080
#define HAVE_PROBED	0x100	/* counted by kprobe events */

/* Copied and reused pages, and the time of faults */
#define HAVE_FAULTS	(HAVE_TIMING | HAVE_PROBED)

struct sample {
	unsigned int have;
	unsigned long long ns;		/* CLOCK_MONOTONIC */
	unsigned long long start;	/* of the process, in ticks */
	unsigned long long minor, children_minor, pgreuse, ksm;
	struct wpcopy wpcopy;
	struct cow_stats stats;
	struct cow_hist copy, fault;
};

/* Each reason once, whatever it is that is missing in every line */
static __printf(3, 4) void missing(unsigned int *said, unsigned int bit,
				   const char *fmt, ...)
{
	char text[512];
	va_list ap;

	if (*said & bit)
		return;
	*said |= bit;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	note("%s", text);
}

static unsigned long long now_ns(clockid_t clock)
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

static void sample_vmstat(struct sample *s)
{
	static char buf[65536];
	unsigned long long all, major;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/vmstat", cow_proc);
	if (cow_read_file(path, buf, sizeof(buf)) <= 0)
		return;
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

/* False if the process has gone, or never was; *why says what is wrong. */
static bool sample_process(struct sample *s, const char **why)
{
	char path[PATH_MAX], buf[1024], *p, state;
	unsigned long flags;
	ssize_t len;

	snprintf(path, sizeof(path), "%s/%d/stat", cow_proc, opt.pid);
	len = cow_read_file(path, buf, sizeof(buf));
	if (len == -ENOENT || len == -ESRCH) {
		*why = "no such process";
		return false;
	}
	if (len < 0)
		die("%s: %s", path, strerror(-len));
	/* The name in parentheses may have any character in it. */
	p = strrchr(buf, ')');
	if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %lu %llu %llu %*u %*u"
			 " %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &flags,
			 &s->minor, &s->children_minor, &s->start) != 5)
		die("%s is malformed", path);
	if (state == 'Z' || state == 'X') {
		*why = "it has exited, and its parent has not waited for it yet";
		return false;
	}
	if (flags & PF_KTHREAD)
		die("process %d is a kernel thread: it has no memory of its own",
		    opt.pid);
	s->have |= HAVE_MINOR;
	return true;
}

static void sample_wpcopy(struct sample *s, pid_t pid)
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

static void begin_probing(enum probes_whose whose)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/cow_stats", cow_proc);
	if (opt.other_proc || !access(path, F_OK))
		return;
	no_probes = probes_begin(whose, opt.pid);
	probing = !no_probes;
}

/* Of the system or the process; of @root and its descendants if not 0 */
static bool read_probes(struct probed *p, pid_t root)
{
	static unsigned int said;
	int ret;

	if (!probing)
		return false;
	ret = root ? probes_read_tree(p, root) : probes_read(p);
	if (ret)
		die("the kprobe events cannot be read any more: %s", strerror(-ret));
	if (p->missed)
		missing(&said, 1, "some faults are not counted: a table of the kernel's is full");
	return true;
}

static void sample_probes(struct sample *s)
{
	struct probed p;

	if (!read_probes(&p, 0))
		return;
	s->stats.v[COW_FAULTS] = p.faults;
	s->stats.v[COW_REUSED] = p.reused;
	s->stats.v[COW_UNSHARED] = p.unshared;
	s->stats.v[COW_FAULT_TOTAL_NS] = p.fault_total_ns;
	s->have |= HAVE_PROBED;
}

/* Why s->stats could not be read: ret is what reading it returned. */
static void explain_counts(int ret)
{
	static unsigned int said;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/cow_stats", cow_proc);
	if (ret == -EPROTO)
		die("the counters in %s are malformed", cow_proc);
	if (ret == -EACCES || ret == -EPERM)
		missing(&said, 1, "no permission to see more of process %d than its minor faults",
			opt.pid);
	else if (ret == -ENOENT && opt.pid && !access(path, F_OK))
		missing(&said, 2, "this kernel counts for the system, not for each process: minor faults only");
	else if (ret == -ENOENT && probing)
		missing(&said, 16, "kernel without CONFIG_COW_STATS: counting by kprobe events, from now on; no lost, ahead, copy time, percentiles");
	else if (ret == -ENOENT && no_probes)
		missing(&said, 4, "no copied, reused, ahead, times: kernel without CONFIG_COW_STATS, and without kprobe events: %s",
			no_probes);
	else if (ret == -ENOENT)
		missing(&said, 4, "no copied, reused, ahead, times: kernel without CONFIG_COW_STATS");
	else
		missing(&said, 8, "cannot read the counters: %s",
			strerror(-ret));
}

static void explain_switches(const struct sample *s)
{
	static unsigned int said;

	if (!(s->have & HAVE_TIMING))
		missing(&said, 1, "no copied, reused, times: vm.cow_stats is 0; as root: sysctl vm.cow_stats=1, or cowstat -e");
	if (!(s->have & HAVE_PRECOPY))
		missing(&said, 2, "no pages ahead: kernel without CONFIG_COW_PRECOPY");
}

/* Counters that are the same whether of a process or of the system */
static int sample_counts(struct sample *s, int ret)
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

static void sample_histogram(struct sample *s)
{
	static unsigned int said;
	int ret;

	if (!(s->have & HAVE_TIMING))
		return;
	if (opt.pid) {
		missing(&said, 1, "no percentiles: the kernel has them for the system, not for a process");
		return;
	}
	ret = cow_hist_read(&s->copy, &s->fault);
	if (!ret)
		s->have |= HAVE_HIST;
	else if (ret == -EPROTO)
		die("%s/cow_histogram is malformed", cow_proc);
	else
		missing(&said, 2, "no percentiles: %s/cow_histogram: %s",
			cow_proc, strerror(-ret));
}

static bool sample_once(struct sample *s, const char **why)
{
	int ret;

	memset(s, 0, sizeof(*s));
	s->ns = now_ns(CLOCK_MONOTONIC);
	if (opt.pid) {
		if (!sample_process(s, why))
			return false;
		ret = sample_counts(s, cow_stats_read_pid(&s->stats, opt.pid));
	} else {
		sample_vmstat(s);
		ret = sample_counts(s, cow_stats_read(&s->stats));
	}
	if (ret == -ESRCH || ret == -ENODATA) {
		*why = "it has just exited";
		return false;
	}
	if (ret)
		explain_counts(ret);
	else
		explain_switches(s);
	sample_probes(s);
	sample_histogram(s);
	if (opt.pid && !(s->have & HAVE_FAULTS))
		sample_wpcopy(s, opt.pid);
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
static bool take_sample(struct sample *s, const char **why)
{
	do {
		if (!sample_once(s, why))
			return false;
	} while (reset_meanwhile(s));
	return true;
}

/*
 * Rows: the difference of two samples, or the first one as a whole
 */

enum percentile {
	COPY_P50,
	COPY_P90,
	COPY_P95,
	COPY_P99,
	FAULT_P50,
	FAULT_P99,
	NR_PERCENTILES
};

static const int percentile_keys[NR_PERCENTILES] = {
	COW_P50_NS, COW_P90_NS, COW_P95_NS, COW_P99_NS,
	COW_FAULT_P50_NS, COW_FAULT_P99_NS,
};

static const int percents[NR_PERCENTILES] = { 50, 90, 95, 99, 50, 99 };

struct row {
	unsigned int have;
	bool total;
	bool reset;
	double seconds;
	unsigned long long minor, children_minor, pgreuse, ksm;
	struct wpcopy wpcopy;
	struct cow_stats d;
	unsigned long long percentile[NR_PERCENTILES];
};

static void first_row(struct row *r, const struct sample *s)
{
	int i;

	*r = (struct row) {
		/* The events are only now in place. */
		.have = s->have & ~HAVE_PROBED,
		.total = true,
		.minor = s->minor,
		.children_minor = s->children_minor,
		.pgreuse = s->pgreuse,
		.ksm = s->ksm,
		.wpcopy = s->wpcopy,
		.d = s->stats,
	};
	for (i = 0; i < NR_PERCENTILES; i++)
		r->percentile[i] = s->stats.v[percentile_keys[i]];
}

/* Anything that only ever grows and did not is a sign of a new beginning. */
static bool restarted(const struct sample *a, const struct sample *b)
{
	unsigned int both = a->have & b->have;

	return ((both & HAVE_COUNTS) &&
		cow_stats_restarted(&a->stats, &b->stats)) ||
	       ((both & HAVE_HIST) &&
		(cow_hist_restarted(&a->copy, &b->copy) ||
		 cow_hist_restarted(&a->fault, &b->fault))) ||
	       ((both & HAVE_WPCOPY) && b->wpcopy.count < a->wpcopy.count);
}

/* Minor faults are the difference of two sums, not taken at one instant. */
static unsigned long long grown(unsigned long long a, unsigned long long b)
{
	return b > a ? b - a : 0;
}

static void next_row(struct row *r, const struct sample *a,
		     const struct sample *b)
{
	static struct cow_hist copy, fault;
	int i;

	*r = (struct row) {
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
	if (r->reset)
		r->have &= HAVE_MINOR | HAVE_PGREUSE | HAVE_KSM;
	if (!(r->have & HAVE_HIST))
		return;
	cow_hist_delta(&copy, &a->copy, &b->copy);
	cow_hist_delta(&fault, &a->fault, &b->fault);
	for (i = 0; i < NR_PERCENTILES; i++)
		r->percentile[i] = cow_hist_percentile(i < FAULT_P50 ? &copy : &fault,
						       percents[i]);
}

#define UNKNOWN	-1.0

/* Values are UNKNOWN or not negative. */
static double share(unsigned long long part, unsigned long long whole)
{
	return whole ? (double)part / whole : UNKNOWN;
}

static double rate(const struct row *r, unsigned long long count)
{
	return r->total ? (double)count : count / r->seconds;
}

enum field {
	MINOR, COPIED, REUSED, LOST, AHEAD, REUSE_AHEAD, SKIP_SHARE,
	COPY_MS, COPY_SHARE, WALL_SHARE, PERCENTILE,
	PGREUSE, KSM, WPCOPY, WPCOPY_MS,
};

static double value(const struct row *r, enum field which, int arg)
{
	const unsigned long long *v = r->d.v;

	switch (which) {
	case MINOR:
		return rate(r, r->minor);
	case COPIED:
		return rate(r, v[COW_FAULTS]);
	case REUSED:
		return rate(r, v[COW_REUSED]);
	case LOST:
		return rate(r, v[COW_LOST]);
	case AHEAD:
		return rate(r, v[COW_SUCCESS]);
	case REUSE_AHEAD:
		return rate(r, v[COW_REUSE_AHEAD]);
	case SKIP_SHARE:
		return share(r->d.skips, v[COW_ATTEMPTS]);
	case COPY_MS:
		return rate(r, v[COW_TOTAL_NS]) / NSEC_PER_MSEC;
	case COPY_SHARE:
		return share(v[COW_TOTAL_NS], v[COW_FAULT_TOTAL_NS]);
	case WALL_SHARE:
		return r->total ? UNKNOWN : v[COW_FAULT_TOTAL_NS] /
					(r->seconds * NSEC_PER_SEC);
	case PERCENTILE:
		/* None of them is 0 unless there is nothing. */
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

static const struct column {
	const char *group, *name;
	int width;
	unsigned int needs;
	enum format format;
	enum field field;
	int arg;
} columns[] = {
	{ GROUP_FAULTS, "minor", 9, HAVE_MINOR, RATE, MINOR },
	{ GROUP_FAULTS, "copied", 9, HAVE_FAULTS, RATE, COPIED },
	{ GROUP_FAULTS, "reused", 9, HAVE_FAULTS, RATE, REUSED },
	{ GROUP_FAULTS, "lost", 7, HAVE_TIMING, RATE, LOST },
	{ GROUP_FAULTS, "pgreuse", 9, HAVE_PGREUSE, RATE, PGREUSE },
	{ GROUP_FAULTS, "ksm", 8, HAVE_KSM, RATE, KSM },
	{ GROUP_FAULTS, "wpcopy", 9, HAVE_WPCOPY, RATE, WPCOPY },
	{ GROUP_AHEAD, "ahead", 9, HAVE_PRECOPY, RATE, AHEAD },
	{ GROUP_AHEAD, "reuse+", 8, HAVE_PRECOPY, RATE, REUSE_AHEAD },
	{ GROUP_AHEAD, "skip%", 5, HAVE_PRECOPY, PERCENT, SKIP_SHARE },
	{ GROUP_TIME, "wpcms", 7, HAVE_WPCOPY, MSEC, WPCOPY_MS },
	{ GROUP_TIME, "copyms", 7, HAVE_TIMING, MSEC, COPY_MS },
	{ GROUP_TIME, "copy%", 5, HAVE_TIMING, PERCENT, COPY_SHARE },
	{ GROUP_TIME, "wall%", 5, HAVE_FAULTS, PERCENT, WALL_SHARE },
	{ GROUP_COPY, "p50", 6, HAVE_HIST, NSEC, PERCENTILE, COPY_P50 },
	{ GROUP_COPY, "p90", 6, HAVE_HIST, NSEC, PERCENTILE, COPY_P90 },
	{ GROUP_COPY, "p99", 6, HAVE_HIST, NSEC, PERCENTILE, COPY_P99 },
	{ GROUP_FAULT, "p50", 6, HAVE_HIST, NSEC, PERCENTILE, FAULT_P50 },
	{ GROUP_FAULT, "p99", 6, HAVE_HIST, NSEC, PERCENTILE, FAULT_P99 },
};

static bool shown(const struct column *c, unsigned int have)
{
	if ((have & HAVE_FAULTS) && (c->needs & HAVE_INSTEAD))
		return false;
	return have & c->needs;
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

static void print_header(unsigned int have)
{
	size_t i, j;

	fprintf(out, "%8s", "");
	for (i = 0; i < ARRAY_SIZE(columns); i = j) {
		int width = -1;

		for (j = i; j < ARRAY_SIZE(columns) &&
		     !strcmp(columns[j].group, columns[i].group); j++)
			if (shown(&columns[j], have))
				width += columns[j].width + 1;
		if (width < 0)
			continue;
		fputc(' ', out);
		print_group(columns[i].group, width);
	}
	fprintf(out, "\n%8s", "seconds");
	for (i = 0; i < ARRAY_SIZE(columns); i++)
		if (shown(&columns[i], have))
			fprintf(out, " %*s", columns[i].width, columns[i].name);
	fputc('\n', out);
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
		fprintf(out, " %*.*f", c->width, decimals, val);
}

/* have: what the header has; the row may know less. */
static void print_row(const struct row *r, unsigned int have)
{
	size_t i;

	if (r->total || r->reset)
		fprintf(out, "%8s", r->total ? "total" : "reset");
	else
		fprintf(out, "%8.2f", r->seconds);
	for (i = 0; i < ARRAY_SIZE(columns); i++) {
		const struct column *c = &columns[i];

		if (shown(c, have))
			print_value(c, r->have & c->needs ?
				       value(r, c->field, c->arg) : UNKNOWN);
	}
	fputc('\n', out);
}

static int screen_height(void)
{
	struct winsize size;

	if (ioctl(fileno(out), TIOCGWINSZ, &size) || !size.ws_row)
		return DEFAULT_HEIGHT;
	return size.ws_row;
}

static void print_table_row(const struct row *r, unsigned int have)
{
	static unsigned int header;
	static int lines;

	/* The header's two lines, and one for the cursor */
	if (have != header || (!opt.one_header && lines >= screen_height() - 3)) {
		print_header(have);
		header = have;
		lines = 0;
	}
	print_row(r, have);
	lines++;
}

/*
 * JSON
 */

static void json_key(const char *key)
{
	fprintf(out, ",\"%s\":", key);
}

static void json_count(const char *key, bool known, unsigned long long val)
{
	json_key(key);
	if (known)
		fprintf(out, "%llu", val);
	else
		fputs("null", out);
}

static void json_real(const char *key, bool known, double val)
{
	json_key(key);
	if (known && val >= 0)
		fprintf(out, "%.9f", val);
	else
		fputs("null", out);
}

/* The keys that add up, of both files */
static void json_counts(const struct row *r, bool pid)
{
	int i;

	for (i = 0; i < COW_NR_KEYS; i++) {
		bool child = i >= COW_NR_SYSTEM_KEYS;
		unsigned int needs = HAVE_TIMING;

		if (i > COW_TOTAL_NS && i < COW_ATTEMPTS &&
		    i != COW_FAULT_TOTAL_NS)
			continue;
		if ((i >= COW_ATTEMPTS && !child) ||
		    i == COW_CHILDREN_SUCCESS || i == COW_CHILDREN_REUSE_AHEAD)
			needs = HAVE_PRECOPY;
		if (i == COW_FAULTS || i == COW_REUSED || i == COW_UNSHARED ||
		    i == COW_FAULT_TOTAL_NS)
			needs = HAVE_FAULTS;
		json_count(cow_key_names[i],
			   (r->have & needs) && (pid || !child), r->d.v[i]);
	}
}

static void json_row(const struct row *r)
{
	static const struct {
		const char *key;
		unsigned int needs;
		enum field field;
	} rates[] = {
		{ "minor_faults_per_s", HAVE_MINOR, MINOR },
		{ "faults_per_s", HAVE_FAULTS, COPIED },
		{ "reused_per_s", HAVE_FAULTS, REUSED },
		{ "lost_per_s", HAVE_TIMING, LOST },
		{ "precopy_success_per_s", HAVE_PRECOPY, AHEAD },
		{ "reuse_ahead_per_s", HAVE_PRECOPY, REUSE_AHEAD },
	}, shares[] = {
		{ "skip_share", HAVE_PRECOPY, SKIP_SHARE },
		{ "copy_share", HAVE_TIMING, COPY_SHARE },
		{ "wall_share", HAVE_FAULTS, WALL_SHARE },
	};
	size_t i;

	fprintf(out, "{\"time\":%.6f",
		(double)now_ns(CLOCK_REALTIME) / NSEC_PER_SEC);
	json_count("pid", opt.pid, opt.pid);
	json_real("seconds", !r->total, r->seconds);
	json_key("reset");
	fputs(r->reset ? "true" : "false", out);
	json_count("minor_faults", r->have & HAVE_MINOR, r->minor);
	json_count("children_minor_faults", (r->have & HAVE_MINOR) && opt.pid,
		   r->children_minor);
	json_count("pgreuse", r->have & HAVE_PGREUSE, r->pgreuse);
	json_count("cow_ksm", r->have & HAVE_KSM, r->ksm);
	json_count("wpcopy_count", r->have & HAVE_WPCOPY, r->wpcopy.count);
	json_count("wpcopy_ns", r->have & HAVE_WPCOPY, r->wpcopy.ns);
	json_counts(r, opt.pid);
	for (i = 0; i < ARRAY_SIZE(rates); i++)
		json_real(rates[i].key, !r->total && (r->have & rates[i].needs),
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

/* False if nobody reads any more. */
static bool flush(void)
{
	if (!fflush(out) && !ferror(out))
		return true;
	if (errno == EPIPE || (errno == EINTR && stop))
		return false;
	die("cannot write: %s", strerror(errno));
}

/*
 * Lines
 */

/* False if it was interrupted. */
static bool wait_until(unsigned long long ns)
{
	sigset_t old;

	/* None may come between the look at @stop and the wait. */
	sigprocmask(SIG_BLOCK, &caught, &old);
	while (!stop) {
		unsigned long long now = now_ns(CLOCK_MONOTONIC);
		struct timespec ts;

		if (now >= ns)
			break;
		ts.tv_sec = (ns - now) / NSEC_PER_SEC;
		ts.tv_nsec = (ns - now) % NSEC_PER_SEC;
		ppoll(NULL, 0, &ts, &old);
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	return !stop;
}

static int watch(void)
{
	static struct sample samples[2];
	struct sample *now = &samples[0], *before = &samples[1];
	unsigned long long next, step = opt.interval * NSEC_PER_SEC;
	unsigned long line;
	const char *why;
	struct row row;

	if (!take_sample(now, &why))
		die("process %d: %s", opt.pid, why);
	first_row(&row, now);
	next = now->ns;
	for (line = 1; ; line++) {
		struct sample *tmp;

		if (opt.json)
			json_row(&row);
		else
			print_table_row(&row, now->have);
		if (!flush() || !step || line == opt.count)
			return E_OK;

		/* Late, as it was stopped or nobody read: leave some out. */
		do
			next += step;
		while (next <= now_ns(CLOCK_MONOTONIC));
		if (!wait_until(next))
			return E_OK;
		tmp = before;
		before = now;
		now = tmp;
		if (!take_sample(now, &why) || now->start != before->start) {
			note("process %d has exited", opt.pid);
			return E_EXITED;
		}
		next_row(&row, before, now);
	}
}

/*
 * A command's bill
 */

struct bill {
	unsigned int have;
	int status;
	unsigned long long wall_ns;
	struct rusage ru;
	struct wpcopy wpcopy;
	struct cow_stats d;
};

static double seconds(struct timeval tv)
{
	return tv.tv_sec + tv.tv_usec / 1e6;
}

static void json_bill(const struct bill *b)
{
	const unsigned long long *v = b->d.v;
	bool timing = b->have & HAVE_TIMING, precopy = b->have & HAVE_PRECOPY;
	bool counted = b->have & HAVE_FAULTS;
	bool killed = WIFSIGNALED(b->status);

	fprintf(out, "{\"time\":%.6f",
		(double)now_ns(CLOCK_REALTIME) / NSEC_PER_SEC);
	json_count("status", !killed, WEXITSTATUS(b->status));
	json_count("signal", killed, WTERMSIG(b->status));
	json_real("wall_s", true, (double)b->wall_ns / NSEC_PER_SEC);
	json_real("user_s", true, seconds(b->ru.ru_utime));
	json_real("system_s", true, seconds(b->ru.ru_stime));
	json_count("minor_faults", true, b->ru.ru_minflt);
	json_count("wpcopy_count", b->have & HAVE_WPCOPY, b->wpcopy.count);
	json_count("wpcopy_ns", b->have & HAVE_WPCOPY, b->wpcopy.ns);
	json_count("faults", counted, v[COW_CHILDREN_FAULTS]);
	json_count("reused", counted, v[COW_CHILDREN_REUSED]);
	json_count("lost", timing, v[COW_CHILDREN_LOST]);
	json_count("lost_ns", timing, v[COW_CHILDREN_LOST_NS]);
	json_count("total_ns", timing, v[COW_CHILDREN_TOTAL_NS]);
	json_count("fault_total_ns", counted, v[COW_CHILDREN_FAULT_TOTAL_NS]);
	json_count("precopy_success", precopy, v[COW_CHILDREN_SUCCESS]);
	json_count("reuse_ahead", precopy, v[COW_CHILDREN_REUSE_AHEAD]);
	json_real("copy_share", timing, share(v[COW_CHILDREN_TOTAL_NS],
					      v[COW_CHILDREN_FAULT_TOTAL_NS]));
	json_real("wall_share", counted,
		  share(v[COW_CHILDREN_FAULT_TOTAL_NS], b->wall_ns));
	fputs("}\n", out);
}

static __printf(2, 3) void bill_line(unsigned long long count,
				     const char *fmt, ...)
{
	va_list ap;

	fprintf(out, "%14llu  ", count);
	va_start(ap, fmt);
	vfprintf(out, fmt, ap);
	va_end(ap);
	fputc('\n', out);
}

static void time_line(unsigned long long ns, const char *what,
		      unsigned long long whole, const char *of)
{
	fprintf(out, "%14.3f  ms %s", (double)ns / NSEC_PER_MSEC, what);
	if (whole)
		fprintf(out, ", %.1f %% of %s", 100.0 * ns / whole, of);
	fputc('\n', out);
}

static void print_bill(const struct bill *b, const char *name)
{
	const unsigned long long *v = b->d.v;

	fprintf(out, "\nCopy-on-write bill of '%s' and its children", name);
	if (WIFSIGNALED(b->status))
		fprintf(out, ", killed by signal %d", WTERMSIG(b->status));
	else if (WEXITSTATUS(b->status))
		fprintf(out, ", exit status %d", WEXITSTATUS(b->status));
	fputs(":\n\n", out);
	if (b->have & HAVE_FAULTS) {
		bill_line(v[COW_CHILDREN_FAULTS], "pages copied by a fault");
		bill_line(v[COW_CHILDREN_REUSED],
			  "faults that made a page writable without a copy");
		if (v[COW_CHILDREN_LOST])
			bill_line(v[COW_CHILDREN_LOST],
				  "pages copied for nothing: another thread was faster");
	}
	if (b->have & HAVE_PRECOPY) {
		bill_line(v[COW_CHILDREN_SUCCESS], "pages copied ahead");
		bill_line(v[COW_CHILDREN_REUSE_AHEAD],
			  "pages made writable ahead");
	}
	if (b->have & HAVE_WPCOPY)
		bill_line(b->wpcopy.count,
			  "pages copied by '%s' without its children (wpcopy)",
			  name);
	bill_line(b->ru.ru_minflt, "minor faults of any kind");
	if (b->have & HAVE_FAULTS)
		time_line(v[COW_CHILDREN_FAULT_TOTAL_NS],
			  "in copy-on-write faults", b->wall_ns,
			  "the wall time");
	if (b->have & HAVE_TIMING) {
		time_line(v[COW_CHILDREN_TOTAL_NS], "of them copying",
			  v[COW_CHILDREN_FAULT_TOTAL_NS], "the fault time");
	}
	if (b->have & HAVE_WPCOPY)
		time_line(b->wpcopy.ns, "for these copies (wpcopy)",
			  b->wall_ns, "the wall time");
	fprintf(out, "%14.3f  s wall time (%.3f user, %.3f system)\n\n",
		(double)b->wall_ns / NSEC_PER_SEC, seconds(b->ru.ru_utime),
		seconds(b->ru.ru_stime));
}

/*
 * Start it as it would start without us. By posix_spawn(), which lends it our
 * memory until it calls exec: what it writes to in that time is not on its bill.
 */
static void spawn(char **argv)
{
	posix_spawnattr_t attr;
	sigset_t old;
	pid_t pid;
	int err;

	/* No signal is lost between the start and that @command is known. */
	sigprocmask(SIG_BLOCK, &caught, &old);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigdefault(&attr, &caught);
	posix_spawnattr_setsigmask(&attr, &old);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF |
					POSIX_SPAWN_SETSIGMASK);
	err = posix_spawnp(&pid, argv[0], NULL, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	if (err) {
		note("cannot run '%s': %s", argv[0], strerror(err));
		quit(err == ENOENT ? E_NOT_FOUND : E_NOT_EXECUTABLE);
	}
	command = pid;
	sigprocmask(SIG_SETMASK, &old, NULL);
}

/* Until it has ended; it remains a zombie, and no signal reaches it any more. */
static void await_end(void)
{
	siginfo_t info;

	while (waitid(P_PID, command, &info, WEXITED | WNOWAIT))
		if (errno != EINTR)
			die("cannot wait: %s", strerror(errno));
	sigprocmask(SIG_BLOCK, &caught, NULL);
}

/* With all its descendants: they need not have been waited for. */
static void bill_probes(struct bill *b, struct sample *s)
{
	struct probed p;

	if (!read_probes(&p, command))
		return;
	b->d.v[COW_CHILDREN_FAULTS] = p.faults;
	b->d.v[COW_CHILDREN_REUSED] = p.reused;
	b->d.v[COW_CHILDREN_FAULT_TOTAL_NS] = p.fault_total_ns;
	s->have |= HAVE_PROBED;
}

static int run(char **argv)
{
	static struct cow_stats before, after;
	struct bill b = {};
	struct sample s = {};
	unsigned long long start;
	int ret;

	ret = cow_stats_read_pid(&before, 0);
	if (ret) {
		explain_counts(ret);
	} else {
		s.stats = before;
		sample_counts(&s, 0);
		explain_switches(&s);
	}
	start = now_ns(CLOCK_MONOTONIC);
	spawn(argv);
	await_end();
	b.wall_ns = now_ns(CLOCK_MONOTONIC) - start;
	bill_probes(&b, &s);
	if (!(s.have & HAVE_FAULTS))
		sample_wpcopy(&s, command);
	b.wpcopy = s.wpcopy;
	if (wait4(command, &b.status, 0, &b.ru) < 0)
		die("cannot wait: %s", strerror(errno));
	command = 0;
	if (s.have & HAVE_COUNTS) {
		ret = cow_stats_read_pid(&after, 0);
		if (ret)
			die("the counters cannot be read any more: %s",
			    strerror(-ret));
		cow_stats_delta(&b.d, &before, &after);
	}
	b.have = s.have;
	if (opt.json)
		json_bill(&b);
	else
		print_bill(&b, argv[0]);
	if (fflush(out))
		note("cannot write: %s", strerror(errno));
	return WIFSIGNALED(b.status) ? E_SIGNAL + WTERMSIG(b.status) :
				       WEXITSTATUS(b.status);
}

/*
 * Options
 */

static const char *skip_digits(const char *text)
{
	return text + strspn(text, "0123456789");
}

/* Decimal digits, nothing else; ULONG_MAX if it is too large. */
static bool parse_number(const char *text, unsigned long *val)
{
	if (!*text || *skip_digits(text))
		return false;
	*val = strtoul(text, NULL, 10);
	return true;
}

static double parse_interval(const char *text)
{
	const char *end = skip_digits(text);
	double val;

	if (*end == '.')
		end = skip_digits(end + 1);
	if (*end || end - text < 1 || !strcmp(text, "."))
		die("'%s' is not an interval in seconds; a command goes behind '--'",
		    text);
	val = strtod(text, NULL);
	if (val < MIN_INTERVAL || val > MAX_INTERVAL)
		die("the interval has to be %.2f to %.0f seconds, not %s",
		    MIN_INTERVAL, MAX_INTERVAL, text);
	return val;
}

static unsigned long parse_count(const char *text)
{
	unsigned long val;

	if (!parse_number(text, &val))
		die("'%s' is not a count of lines", text);
	if (!val || val > INT_MAX)
		die("the count of lines has to be 1 to %d, not %s", INT_MAX,
		    text);
	return val;
}

static pid_t parse_pid(const char *text)
{
	unsigned long val;

	if (!parse_number(text, &val) || !val || val > PID_MAX_LIMIT)
		die("'%s' is not a process id", text);
	return val;
}

static void open_output(void)
{
	if (!opt.file)
		return;
	if (!strcmp(opt.file, "-")) {
		out = stdout;
		return;
	}
	out = fopen(opt.file, "we");
	if (!out)
		die("%s: %s", opt.file, strerror(errno));
}

enum { OPT_PROC = 256 };

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		{ "json", no_argument, NULL, 'j' },
		{ "enable", no_argument, NULL, 'e' },
		{ "one-header", no_argument, NULL, 'n' },
		{ "output", required_argument, NULL, 'o' },
		{ "proc", required_argument, NULL, OPT_PROC },
		{ "help", no_argument, NULL, 'h' },
		{}
	};
	char *last = NULL;
	bool run_command;
	int c;

	out = stdout;
	/* '+': what follows the first argument is not for us. */
	while ((c = getopt_long(argc, argv, "+:p:jeno:h", options, NULL)) != -1) {
		last = optarg;
		switch (c) {
		case 'p':
			opt.pid = parse_pid(optarg);
			break;
		case 'j':
			opt.json = true;
			break;
		case 'e':
			opt.enable = true;
			break;
		case 'n':
			opt.one_header = true;
			break;
		case 'o':
			opt.file = optarg;
			break;
		case OPT_PROC:
			cow_proc = optarg;
			opt.other_proc = true;
			break;
		case 'h':
			usage(stdout);
			return fflush(stdout) ? E_USAGE : E_OK;
		case ':':
			die("option '%s' needs an argument", argv[optind - 1]);
		default:
			if (optopt >= '0' && optopt <= '9')
				die("unknown option '-%c'; an interval cannot be negative",
				    optopt);
			if (optopt > 0 && optopt < OPT_PROC)
				die("unknown option '-%c', see --help", optopt);
			die("unknown option '%s', see --help", argv[optind - 1]);
		}
	}
	run_command = argv[optind - 1] != last &&
		      !strcmp(argv[optind - 1], "--");
	argv += optind;
	argc -= optind;
	if (run_command) {
		if (!argc)
			die("no command behind '--'");
		if (opt.pid)
			die("either a process (-p) or a command, not both");
		out = stderr;
	} else {
		if (argc > 0)
			opt.interval = parse_interval(argv[0]);
		if (argc > 1)
			opt.count = parse_count(argv[1]);
		if (argc > 2)
			die("'%s' is too much; a command goes behind '--'",
			    argv[2]);
	}
	open_output();
	catch_signals();
	if (opt.enable)
		enable_timing();
	if (run_command)
		begin_probing(PROBES_EACH);
	else
		begin_probing(opt.pid ? PROBES_PROCESS : PROBES_SYSTEM);
	quit(run_command ? run(argv) : watch());
}
