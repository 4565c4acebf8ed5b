// SPDX-License-Identifier: GPL-2.0
/*
 * The bill of a command: what it has spent in copy-on-write faults
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cowstat.h"

/* How often to look again for the end of a process that is exiting, 10 ms each */
#define EXIT_TRIES	200

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

static void json_sum(const struct bill *b, const char *name, unsigned int needs,
		     enum cow_key key)
{
	json_count(name, (b->have & needs) && b->d.known[key], b->d.v[key]);
}

static void json_bill(const struct bill *b)
{
	const unsigned long long *v = b->d.v;
	bool timing = b->have & HAVE_TIMING, counted = b->have & HAVE_FAULTS;
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
	json_sum(b, "faults", HAVE_FAULTS, COW_CHILDREN_FAULTS);
	json_sum(b, "reused", HAVE_FAULTS, COW_CHILDREN_REUSED);
	json_sum(b, "lost", HAVE_TIMING, COW_CHILDREN_LOST);
	json_sum(b, "lost_ns", HAVE_TIMING, COW_CHILDREN_LOST_NS);
	json_sum(b, "total_ns", HAVE_TIMING, COW_CHILDREN_TOTAL_NS);
	json_sum(b, "fault_total_ns", HAVE_FAULTS, COW_CHILDREN_FAULT_TOTAL_NS);
	json_sum(b, "precopy_success", HAVE_PRECOPY, COW_CHILDREN_SUCCESS);
	json_sum(b, "reuse_ahead", HAVE_PRECOPY, COW_CHILDREN_REUSE_AHEAD);
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

	if (!read_probes_of_tree(&p, command))
		return;
	cow_stats_set(&b->d, COW_CHILDREN_FAULTS, p.faults);
	cow_stats_set(&b->d, COW_CHILDREN_REUSED, p.reused);
	cow_stats_set(&b->d, COW_CHILDREN_FAULT_TOTAL_NS, p.fault_total_ns);
	s->have |= HAVE_PROBED;
}

/*
 * Descendants that nobody has waited for: their parent has exited, so they are our
 * children now. Those that have ended are in our sum of children once we wait for
 * them; those that still run have their own counts.
 */

struct process {
	pid_t pid, parent;
	char state;
	bool ours;
};

static struct process processes[65536];

static size_t list_processes(void)
{
	char path[PATH_MAX], buf[1024], *p;
	struct dirent *entry;
	size_t nr = 0;
	DIR *dir;

	dir = opendir("/proc");
	if (!dir)
		return 0;
	while ((entry = readdir(dir)) && nr < ARRAY_SIZE(processes)) {
		struct process *process = &processes[nr];

		*process = (struct process) { .pid = atoi(entry->d_name) };
		if (!process->pid)
			continue;
		snprintf(path, sizeof(path), "/proc/%d/stat", process->pid);
		if (cow_read_file(path, buf, sizeof(buf)) <= 0)
			continue;
		p = strrchr(buf, ')');
		nr += p && sscanf(p + 1, " %c %d", &process->state,
				  &process->parent) == 2;
	}
	closedir(dir);
	return nr;
}

static bool is_ours(pid_t pid, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i++)
		if (processes[i].pid == pid)
			return processes[i].ours;
	return pid == getpid();
}

static void mark_descendants(size_t nr)
{
	bool more = true;
	size_t i;

	while (more) {
		more = false;
		for (i = 0; i < nr; i++) {
			struct process *p = &processes[i];

			if (p->ours || (p->parent != getpid() &&
					!is_ours(p->parent, nr)))
				continue;
			p->ours = true;
			more = true;
		}
	}
}

/* What the process and the children that it has waited for have spent so far */
static void add_running(struct cow_stats *d, const struct cow_stats *s)
{
	static const struct {
		int sum, own;
	} keys[] = {
		{ COW_CHILDREN_FAULTS, COW_FAULTS },
		{ COW_CHILDREN_REUSED, COW_REUSED },
		{ COW_CHILDREN_LOST, COW_LOST },
		{ COW_CHILDREN_LOST_NS, COW_LOST_NS },
		{ COW_CHILDREN_TOTAL_NS, COW_TOTAL_NS },
		{ COW_CHILDREN_FAULT_TOTAL_NS, COW_FAULT_TOTAL_NS },
		{ COW_CHILDREN_SUCCESS, COW_SUCCESS },
		{ COW_CHILDREN_REUSE_AHEAD, COW_REUSE_AHEAD },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(keys); i++)
		d->v[keys[i].sum] += s->v[keys[i].sum] + s->v[keys[i].own];
}

/* How many still run; -1 if one is just exiting, and its counts are not to be had */
static int bill_running(struct cow_stats *d)
{
	size_t nr = list_processes(), i;
	int running = 0, ret;
	struct cow_stats s;

	mark_descendants(nr);
	for (i = 0; i < nr; i++) {
		/* A parent that does not wait for its child keeps what that had. */
		if (!processes[i].ours || (processes[i].state == 'Z' &&
					   processes[i].parent != getpid()))
			continue;
		ret = cow_stats_read_pid(&s, processes[i].pid);
		if (ret == -ESRCH || ret == -ENODATA || ret == -ENOENT)
			return -1;
		if (ret)
			continue;
		add_running(d, &s);
		running++;
	}
	return running;
}

static void bill_counts(struct bill *b, const struct cow_stats *before)
{
	struct timespec ts = { .tv_nsec = 10 * NSEC_PER_MSEC };
	struct cow_stats after;
	int ret, running, tries;

	for (tries = 0; tries < EXIT_TRIES; tries++) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		ret = cow_stats_read_pid(&after, 0);
		if (ret)
			die("the counters cannot be read any more: %s",
			    strerror(-ret));
		cow_stats_delta(&b->d, before, &after);
		running = bill_running(&b->d);
		if (running >= 0)
			break;
		nanosleep(&ts, NULL);
	}
	if (running > 0)
		note("%d of its processes still run: what they have spent so far is included",
		     running);
}

int bill_command(char **argv)
{
	static struct cow_stats before;
	struct bill b = {};
	struct sample s = {};
	unsigned long long start;
	int ret;

	ret = cow_stats_read_pid(&before, 0);
	if (ret) {
		explain_counts(ret, 0);
	} else {
		s.stats = before;
		sample_counts(&s, 0);
		explain_switches(&s);
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
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
	if (s.have & HAVE_COUNTS)
		bill_counts(&b, &before);
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
