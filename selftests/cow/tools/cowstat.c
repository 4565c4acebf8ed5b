// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat: copy-on-write faults per interval, of the system, of processes or of a
 * command
 *
 * With CONFIG_COW_STATS it shows everything. Without it, the system's counts are
 * those of /proc/vmstat. If the kernel lacks these, too, it counts with kprobe
 * events as root; other users get what any kernel has: minor faults, reused pages,
 * delay accounting.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cowstat.h"

#define VERSION		"1.0"

#define PID_MAX_LIMIT	4194304		/* include/linux/threads.h */
#define MIN_INTERVAL	0.01
#define MAX_INTERVAL	31536000.0	/* a year */

struct options opt;
FILE *out;

static volatile sig_atomic_t stop;
volatile pid_t command;

static void usage(FILE *to)
{
	fputs("Usage: cowstat [-ejntw] [-o FILE] [-a | -p PID[,PID...] | -C NAME]\n"
	      "               [INTERVAL [COUNT]]\n"
	      "       cowstat [-ej] [-o FILE] -- CMD [ARGS...]\n"
	      "       cowstat --stacks[=lines] [-o FILE] -- CMD [ARGS...]\n"
	      "\n"
	      "Copy-on-write faults of the whole system or of processes: one line every\n"
	      "INTERVAL seconds (0.01 to 31536000, fractions too), COUNT lines or until it is\n"
	      "interrupted, and then the average (not with -j). The first line is the total\n"
	      "since the counters were reset, or since the process began or called exec;\n"
	      "without INTERVAL it is the only one.\n"
	      "\n"
	      "With a command: runs it, and says at the end what it and its descendants have\n"
	      "spent in copy-on-write faults; those that still run, what they have until then.\n"
	      "\n"
	      "With --stacks: says which code of the command has copied pages, as folded stacks\n"
	      "that flame graph tools read (root; needs perf, and frame pointers in the code).\n"
	      "\n"
	      "  -p, --pid PID,...  these processes, each with all its threads\n"
	      "  -C, --command NAME the processes of that name, also those that come later\n"
	      "  -a, --all          all processes that take such faults, the costliest first;\n"
	      "                     what one has had since the last line is not shown if it\n"
	      "                     exits\n"
	      "  -w, --wide         all columns; without it as many as 80 characters hold\n"
	      "  -t, --timestamp    begin each line with the time of day\n"
	      "  -j, --json         a JSON object per line\n"
	      "  -e, --enable       set vm.cow_stats to 1 until the end (root); the last of\n"
	      "                     several cowstats sets it back\n"
	      "  -n, --one-header   do not repeat the header for each screenful\n"
	      "      --stacks       COMMAND;CALLER;...;FUNCTION COPIES, a line per stack; ends in\n"
	      "                     ;[lost] for copies that were for nothing\n"
	      "      --stacks=lines FUNCTION (FILE:LINE) instead of FUNCTION, if it was built\n"
	      "                     with -g; needs addr2line, too\n"
	      "  -o, --output FILE  write to FILE, '-' is standard output; without it, lines go\n"
	      "                     to standard output, the bill of a command to standard error\n"
	      "      --proc DIR     read the files in DIR instead of those in /proc\n"
	      "  -V, --version\n"
	      "  -h, --help\n"
	      "\n"
	      "  seconds  how long the interval was; 'total' in the first line; 'reset' if the\n"
	      "           counters began anew in between (reset, exec): nothing is known then\n"
	      "  minor    minor faults per second, of any kind\n"
	      "  copied   pages copied by a fault, per second\n"
	      "  reused   faults that made a page writable without a copy, per second\n"
	      "  lost     pages copied for nothing, per second: another thread was faster\n"
	      "  ahead    pages copied ahead, per second (vm.cow_precopy)\n"
	      "  reuse+   pages made writable ahead, per second (-w)\n"
	      "  skip%    of the pages looked at in order to copy them ahead: left out (-w)\n"
	      "  copyms   milliseconds spent on these copies, not on those ahead, per second\n"
	      "  copy%    the same as a share of the time in copy-on-write faults (-w)\n"
	      "  wall%    the time in all of these faults, also those that copied for\n"
	      "           nothing, as a share of the interval; 100 is one CPU\n"
	      "  p50 ...  percentiles in ns: of copying a page (-w), and of the whole fault.\n"
	      "           There are none for a process, the kernel has them for the system only\n"
	      "Of the system, copied, reused and lost are those of /proc/vmstat while\n"
	      "vm.cow_stats is 0, and so are ahead and reuse+ on a kernel that has all of\n"
	      "them there, but no CONFIG_COW_STATS. Times are not known then. The first\n"
	      "line is since boot, or since the last reset of /proc/cow_stats.\n"
	      "Other kernels do not count these. As root, cowstat then counts copied, reused\n"
	      "and wall% itself, by kprobe events in an instance of tracefs that it removes at\n"
	      "its end (the next one removes what a killed one left); x86_64 and arm64, with\n"
	      "BTF, not with CONFIG_COW_PRECOPY. The time is that in do_wp_page(). Faults on\n"
	      "huge pages that a PMD maps are not counted, but a page that is copied after\n"
	      "its mapping was split is. --stacks also counts pages copied for GUP there. Each\n"
	      "fault is slower meanwhile, and each page that is unmapped. Where that cannot\n"
	      "be had:\n"
	      "  pgreuse  pages made writable without a copy, per second (/proc/vmstat)\n"
	      "  ksm      pages merged by KSM that were copied, per second (/proc/vmstat)\n"
	      "  wpcopy   pages copied per second, and\n"
	      "  wpcms    milliseconds that took, per second (one process; delay accounting)\n"
	      "In the first line these are not per second but totals. A '-' is not known.\n"
	      "\n"
	      "JSON: time (Unix), pid and comm (null: the system), seconds (null: total),\n"
	      "reset, then the counts of the interval under the names that the kernel's files\n"
	      "have, with minor_faults, children_minor_faults, pgreuse, cow_ksm, wpcopy_count\n"
	      "and wpcopy_ns; minor_faults_per_s, faults_per_s, reused_per_s, lost_per_s,\n"
	      "precopy_success_per_s, reuse_ahead_per_s; skip_share, copy_share and wall_share\n"
	      "(1 is all); percentiles in ns. Always all of them; null: not known.\n"
	      "A byte of comm that is no ASCII is one \\u00XX.\n"
	      "With a command: status and signal (null: none), wall_s, user_s, system_s,\n"
	      "minor_faults, then counts, copy_share and wall_share as above.\n"
	      "\n"
	      "Exit status: 0, also when interrupted; 1 if all processes of -p exited while\n"
	      "they were watched; 2 usage or another error. With a command its own, 128 +\n"
	      "signal if it was killed, 126 if it cannot be executed, 127 if it is not found.\n",
	      to);
}

static void vnote(const char *fmt, va_list ap)
{
	fputs("cowstat: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
}

void note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vnote(fmt, ap);
	va_end(ap);
}

/* Each reason once, whatever it is that is missing in every line */
void missing(unsigned int *said, unsigned int bit, const char *fmt, ...)
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

/*
 * vm.cow_stats
 */

static bool switched_on;

static void sysctl_path(char *path, size_t size)
{
	snprintf(path, size, "%s/sys/vm/cow_stats", cow_proc);
}

int timing_is_on(void)
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

/*
 * Each cowstat that has switched it on, or has found that another one had, holds a
 * read lock on the byte USERS of the file. Who can have it alone is the last one, and
 * switches it off. LOOKING is held meanwhile. Anybody may lock the file for reading:
 * none of these waits for long.
 */
enum { USERS, LOOKING };

#define LOCK_TRIES	100	/* 10 ms each */

static int timing_fd = -1;

static bool lock_byte(short type, off_t byte)
{
	struct flock lock = {
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = byte,
		.l_len = 1,
	};

	return !fcntl(timing_fd, F_OFD_SETLK, &lock);
}

static void begin_looking(void)
{
	struct timespec ts = { .tv_nsec = 10 * NSEC_PER_MSEC };
	int i;

	for (i = 0; i < LOCK_TRIES && !lock_byte(F_WRLCK, LOOKING); i++)
		nanosleep(&ts, NULL);
}

static void enable_timing(void)
{
	char path[PATH_MAX];
	int ret;

	ret = timing_is_on();
	if (ret == -ENOENT)
		die("there is no vm.cow_stats to switch on: kernel without CONFIG_COW_STATS");
	sysctl_path(path, sizeof(path));
	timing_fd = open(path, O_RDWR | O_CLOEXEC);
	/* It is on, and who is not root cannot keep it so. */
	if (timing_fd < 0 && ret > 0)
		return;
	if (timing_fd < 0 && (errno == EACCES || errno == EPERM))
		die("setting vm.cow_stats to 1 needs root");
	if (timing_fd < 0)
		die("cannot set vm.cow_stats to 1: %s", strerror(errno));
	begin_looking();
	ret = timing_is_on();
	if (ret > 0 && lock_byte(F_WRLCK, USERS)) {
		/* The administrator wants it, and we leave it on. */
		close(timing_fd);
		return;
	}
	if (!ret)
		ret = switch_timing("1");
	if (ret < 0)
		die("cannot set vm.cow_stats to 1: %s", strerror(-ret));
	switched_on = true;
	lock_byte(F_RDLCK, USERS);
	lock_byte(F_UNLCK, LOOKING);
}

static void restore_timing(void)
{
	int ret = 0;

	if (!switched_on)
		return;
	switched_on = false;
	begin_looking();
	if (lock_byte(F_WRLCK, USERS))
		ret = switch_timing("0");
	close(timing_fd);
	if (ret)
		note("vm.cow_stats remains 1: %s", strerror(-ret));
}

/*
 * The file of -o
 */

static bool created, begun;

/* What is in it stays there until there is something to write. */
static void open_output(void)
{
	int fd;

	if (!opt.file)
		return;
	if (!strcmp(opt.file, "-")) {
		out = stdout;
		return;
	}
	fd = open(opt.file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	created = fd >= 0;
	if (fd < 0 && errno == EEXIST)
		fd = open(opt.file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		die("%s: %s", opt.file, strerror(errno));
	out = fdopen(fd, "w");
	if (!out)
		die("no memory");
}

void begin_output(void)
{
	if (!begun && opt.file && out != stdout && ftruncate(fileno(out), 0) &&
	    errno != EINVAL)
		die("%s: %s", opt.file, strerror(errno));
	begun = true;
}

void quit(int status)
{
	restore_timing();
	if (!probes_end())
		note("events are left in tracefs, as they are in use; the next cowstat removes them");
	if (created && !begun)
		unlink(opt.file);
	exit(status);
}

void die(const char *fmt, ...)
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

static const int end_signals[] = {
	SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGALRM, SIGUSR1, SIGUSR2,
};

sigset_t caught, found_mask;

static void on_signal(int sig, siginfo_t *info, void *context)
{
	(void)context;
	stop = sig;
	if (command > 0 && info->si_code <= 0)
		kill(command, sig);
}

void quit_if_interrupted(void)
{
	if (stop)
		quit(E_SIGNAL + stop);
}

static bool is_ignored(int sig)
{
	struct sigaction act;

	return !sigaction(sig, NULL, &act) && act.sa_handler == SIG_IGN;
}

/*
 * If a standard descriptor is closed, that is an error: else the output would go to
 * whatever file is opened next.
 */
static void occupy_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDONLY);
	while (fd >= 0 && fd <= STDERR_FILENO);
	close(fd);
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

	/* Ignored, children would be gone before they have been waited for. */
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, NULL, &found_mask);
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

/*
 * What is watched
 */

static struct target **targets;
static size_t nr_targets;
static bool listed;		/* several, or as many as there are */

static void *zeroed(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		die("no memory");
	return p;
}

static struct sample *new_sample(bool system)
{
	struct sample *s = zeroed(sizeof(*s));

	if (system)
		s->hist = zeroed(sizeof(*s->hist));
	return s;
}

static struct target *add_target(pid_t pid)
{
	struct target *t = zeroed(sizeof(*t));

	t->pid = pid;
	t->now = new_sample(!pid);
	t->before = new_sample(!pid);
	t->first = new_sample(!pid);
	targets = realloc(targets, (nr_targets + 1) * sizeof(*targets));
	if (!targets)
		die("no memory");
	targets[nr_targets++] = t;
	return t;
}

static void free_sample(struct sample *s)
{
	free(s->hist);
	free(s);
}

static void remove_gone(void)
{
	size_t i, left = 0;

	for (i = 0; i < nr_targets; i++) {
		struct target *t = targets[i];

		if (!t->gone) {
			targets[left++] = t;
			continue;
		}
		free_sample(t->now);
		free_sample(t->before);
		free_sample(t->first);
		free(t);
	}
	nr_targets = left;
}

static bool is_watched(pid_t pid)
{
	size_t i;

	for (i = 0; i < nr_targets; i++)
		if (targets[i]->pid == pid)
			return true;
	return false;
}

static bool has_name(pid_t pid, const char *name)
{
	char path[PATH_MAX], text[COMM_LEN + 1];
	ssize_t len;

	snprintf(path, sizeof(path), "%s/%d/comm", cow_proc, pid);
	len = cow_read_file(path, text, sizeof(text));
	if (len <= 0)
		return false;
	text[strcspn(text, "\n")] = '\0';
	return !strcmp(text, name);
}

/*
 * A process that was not there at the last sample has had no faults until then. One
 * that was there, and had another name (-C), is shown from the next line on.
 */
static bool had_other_name(const struct target *t)
{
	unsigned long long since_boot, start, tick = NSEC_PER_SEC / sysconf(_SC_CLK_TCK);

	if (!t->found || opt.other_proc)
		return false;
	since_boot = t->found + now_ns(CLOCK_BOOTTIME) - now_ns(CLOCK_MONOTONIC);
	start = t->now->start * tick;
	return start + tick <= since_boot;
}

static void find_targets(unsigned long long last)
{
	struct dirent *entry;
	DIR *dir;

	dir = opendir(cow_proc);
	if (!dir)
		die("%s: %s", cow_proc, strerror(errno));
	while ((entry = readdir(dir))) {
		pid_t pid = atoi(entry->d_name);
		struct target *t;

		if (pid <= 0 || pid == getpid() || is_watched(pid) ||
		    (opt.name && !has_name(pid, opt.name)))
			continue;
		t = add_target(pid);
		if (!last)
			continue;
		t->rows = 1;
		t->found = last;
		t->now->have = ~0U;
		t->now->ns = last;
		memset(t->now->stats.known, true, sizeof(t->now->stats.known));
		/* of one that had the number before */
		sample_probes(t->now, pid);
		*t->first = *t->now;
	}
	closedir(dir);
}

static void swap_samples(struct target *t)
{
	struct sample *tmp = t->before;

	t->before = t->now;
	t->now = tmp;
}

static void copy_sample(struct sample *to, const struct sample *from)
{
	struct histograms *hist = to->hist;

	if (hist)
		*hist = *from->hist;
	*to = *from;
	to->hist = hist;
}

/* The last good sample remains if it has gone. */
static bool advance(struct target *t, const char **why)
{
	swap_samples(t);
	if (take_sample(t, why) &&
	    (!t->before->start || t->now->start == t->before->start))
		return true;
	swap_samples(t);
	t->gone = true;
	return false;
}

static void make_row(struct target *t, struct row *r)
{
	if (t->rows == 1 && had_other_name(t))
		t->rows = 0;
	t->found = 0;
	if (t->rows++)
		next_row(r, t->before, t->now);
	else
		first_row(r, t->now);
	if (r->kind == ROW_TOTAL || r->reset)
		copy_sample(t->first, t->now);
}

/*
 * One target: a line each
 */

static void show_one(struct target *t)
{
	struct row row;

	make_row(t, &row);
	if (opt.json)
		json_row(t, &row);
	else
		print_table_row(&row, t->now->have);
}

/*
 * Several: a table each
 */

struct entry {
	struct target *t;
	struct row row;
};

static unsigned long long cost(const struct row *r)
{
	if (!(r->have & HAVE_FAULTS))
		return r->minor;
	return r->d.v[COW_FAULT_TOTAL_NS] ?: r->d.v[COW_FAULTS] + r->d.v[COW_REUSED];
}

static int by_cost(const void *a, const void *b)
{
	unsigned long long x = cost(&((const struct entry *)a)->row);
	unsigned long long y = cost(&((const struct entry *)b)->row);

	return x < y ? 1 : x > y ? -1 : 0;
}

/* Does each list take the place of the last one on the screen? */
static bool is_ranking(void)
{
	return opt.all && opt.interval && !opt.json && isatty(fileno(out));
}

/* Of a ranking as much as the screen has lines */
static size_t room(size_t nr)
{
	size_t lines = screen_height() > 5 ? screen_height() - 4 : 1;

	return is_ranking() && nr > lines ? lines : nr;
}

static void show_list(struct entry *list, size_t nr)
{
	static bool cleared = true;
	unsigned int have = 0;
	size_t i;

	for (i = 0; i < nr; i++)
		have |= list[i].row.have;
	/* What was said at the beginning is above the first list. */
	if (!cleared && is_ranking())
		fputs("\033[H\033[2J", out);
	cleared = false;
	if (nr && !opt.json)
		print_processes_header(&list[0].row, have);
	if (opt.all)
		qsort(list, nr, sizeof(*list), by_cost);
	nr = room(nr);
	for (i = 0; i < nr; i++) {
		if (opt.all && !cost(&list[i].row))
			break;
		if (opt.json)
			json_row(list[i].t, &list[i].row);
		else
			print_process_row(list[i].t, &list[i].row, have);
	}
}

static void show_all(void)
{
	struct entry *list = zeroed((nr_targets + 1) * sizeof(*list));
	static bool totals = true;
	size_t i, nr;

	for (i = nr = 0; i < nr_targets; i++) {
		list[nr].t = targets[i];
		make_row(targets[i], &list[nr].row);
		/* A total is no rate. */
		nr += opt.json || totals || list[nr].row.kind != ROW_TOTAL;
	}
	totals = false;
	show_list(list, nr);
	free(list);
}

/* Since the first line, or the last reset */
static void show_averages(void)
{
	struct entry *list = zeroed((nr_targets + 1) * sizeof(*list));
	size_t i, nr = 0;

	for (i = 0; i < nr_targets; i++) {
		struct target *t = targets[i];

		if (t->rows < 3 || t->now->ns == t->first->ns)
			continue;
		list[nr].t = t;
		next_row(&list[nr].row, t->first, t->now);
		list[nr++].row.kind = ROW_AVERAGE;
	}
	if (nr && listed)
		show_list(list, nr);
	else if (nr)
		print_table_row(&list[0].row, list[0].t->now->have);
	free(list);
}

/*
 * The loop
 */

/* Of all targets; false if none is left. */
static bool take_samples(bool begin)
{
	size_t i, left = nr_targets;
	const char *why;

	read_all_probes();
	for (i = 0; i < nr_targets; i++) {
		struct target *t = targets[i];

		if (advance(t, &why))
			continue;
		left--;
		if (opt.all || opt.name)
			continue;
		if (begin)
			die("process %d: %s", t->pid, why);
		note("process %d has exited", t->pid);
	}
	return left || opt.all || opt.name;
}

static int end_of_watch(int status)
{
	if (!opt.json)
		show_averages();
	flush();
	return status;
}

/* A thread's files are those of its process, whose number is the one that counts. */
static void refuse_threads(void)
{
	size_t i;

	for (i = 0; i < nr_targets; i++) {
		pid_t pid = targets[i]->pid, process = process_of(pid);

		if (process && process != pid)
			die("%d is a thread of process %d", pid, process);
	}
}

static int watch(void)
{
	unsigned long long next, begin, last = 0, step = opt.interval * NSEC_PER_SEC;
	unsigned long line;

	refuse_threads();
	listed = opt.all || opt.name || nr_targets > 1;
	if (!nr_targets && !listed)
		add_target(0);
	next = now_ns(CLOCK_MONOTONIC);
	for (line = 1; ; line++) {
		begin = now_ns(CLOCK_MONOTONIC);
		if (opt.all || opt.name)
			find_targets(last);
		last = begin;
		if (opt.name && line == 1 && !nr_targets)
			die("no process has the name '%s'", opt.name);
		if (!take_samples(line == 1))
			return end_of_watch(E_EXITED);
		remove_gone();
		begin_output();
		if (listed)
			show_all();
		else
			show_one(targets[0]);
		if (!flush())
			return E_OK;
		if (!step || line == opt.count)
			return end_of_watch(E_OK);

		/* Late, as it was stopped or nobody read: leave some out. */
		do
			next += step;
		while (next <= now_ns(CLOCK_MONOTONIC));
		if (!wait_until(next))
			return end_of_watch(E_OK);
	}
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

	if (*text == '-' && !isdigit(text[1]))
		die("'%s' comes too late: options, and '--', go before INTERVAL", text);
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

/* PID[,PID...] */
static void parse_pids(const char *text)
{
	char *list = strdup(text), *rest = list, *one;
	size_t i;

	if (!list)
		die("no memory");
	while ((one = strsep(&rest, ","))) {
		pid_t pid = parse_pid(one);

		for (i = 0; i < nr_targets && targets[i]->pid != pid; i++)
			;
		if (i == nr_targets)
			add_target(pid);
	}
	free(list);
}

static void check_choice(bool run_command)
{
	if (run_command && nr_targets)
		die("either a process (-p) or a command, not both");
	if (run_command && (opt.all || opt.name))
		die("either processes (%s) or a command, not both",
		    opt.all ? "-a" : "-C");
	if (opt.stacks && !run_command)
		die("--stacks needs a command, behind '--'");
	if (opt.stacks && (opt.json || opt.enable))
		die("--stacks goes with none of -e and -j");
	if (run_command && (opt.wide || opt.clock || opt.one_header))
		die("-n, -t and -w are for lines, not for a command");
	if (!!nr_targets + !!opt.name + opt.all > 1)
		die("one of -p, -C and -a, not several");
	if (opt.name && (!*opt.name || strlen(opt.name) >= COMM_LEN))
		die("'%s' is not the name of a process: it has 1 to %d characters",
		    opt.name, COMM_LEN - 1);
}

static enum probes_whose whose_probes(bool run_command)
{
	if (run_command || opt.all || opt.name || nr_targets > 1)
		return PROBES_EACH;
	return nr_targets ? PROBES_PROCESS : PROBES_SYSTEM;
}

enum { OPT_PROC = 256, OPT_STACKS };

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		{ "command", required_argument, NULL, 'C' },
		{ "all", no_argument, NULL, 'a' },
		{ "wide", no_argument, NULL, 'w' },
		{ "timestamp", no_argument, NULL, 't' },
		{ "json", no_argument, NULL, 'j' },
		{ "enable", no_argument, NULL, 'e' },
		{ "one-header", no_argument, NULL, 'n' },
		{ "output", required_argument, NULL, 'o' },
		{ "proc", required_argument, NULL, OPT_PROC },
		{ "stacks", optional_argument, NULL, OPT_STACKS },
		{ "version", no_argument, NULL, 'V' },
		{ "help", no_argument, NULL, 'h' },
		{}
	};
	char *last = NULL;
	bool run_command;
	int c;

	occupy_descriptors();
	out = stdout;
	/* '+': what follows the first argument is not for us. */
	while ((c = getopt_long(argc, argv, "+:p:C:awtjeno:Vh", options, NULL)) != -1) {
		last = optarg;
		switch (c) {
		case 'p':
			parse_pids(optarg);
			break;
		case 'C':
			opt.name = optarg;
			break;
		case 'a':
			opt.all = true;
			break;
		case 'w':
			opt.wide = true;
			break;
		case 't':
			opt.clock = true;
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
		case OPT_STACKS:
			if (optarg && strcmp(optarg, "lines"))
				die("--stacks=%s: there is --stacks, and --stacks=lines",
				    optarg);
			opt.stacks = true;
			opt.stack_lines = optarg;
			break;
		case 'V':
			puts("cowstat " VERSION);
			quit(flush() ? E_OK : E_USAGE);
		case 'h':
			usage(stdout);
			quit(flush() ? E_OK : E_USAGE);
		case ':':
			die("option '%s' needs an argument", argv[optind - 1]);
		default:
			if (optopt >= '0' && optopt <= '9')
				die("unknown option '-%c'; an interval cannot be negative",
				    optopt);
			if (strchr(argv[optind - 1], '='))
				die("'%s': this option takes no argument, or there is none of that name",
				    argv[optind - 1]);
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
		/* The command's own output is there, too: see -o. */
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
	check_choice(run_command);
	open_output();
	catch_signals();
	if (opt.enable)
		enable_timing();
	if (opt.stacks)
		quit(stacks_of_command(argv));
	begin_probing(whose_probes(run_command), nr_targets ? targets[0]->pid : 0);
	quit(run_command ? bill_command(argv) : watch());
}
