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
	int running;
	unsigned long long wall_ns, minor;
	double user, system;		/* seconds */
	struct wpcopy wpcopy;
	struct cow_stats d;
};

static double seconds(struct timeval tv)
{
	return tv.tv_sec + tv.tv_usec / 1e6;
}

/* With those that copied for nothing; by kprobe events they are in the total. */
static unsigned long long all_faults_ns(const struct bill *b)
{
	return b->d.v[COW_CHILDREN_FAULT_TOTAL_NS] + b->d.v[COW_CHILDREN_LOST_NS];
}

/* Is it counted, and does the kernel's file have it? */
static bool knows(const struct bill *b, unsigned int needs, enum cow_key key)
{
	return (b->have & needs) && b->d.known[key];
}

static void json_sum(const struct bill *b, const char *name, unsigned int needs,
		     enum cow_key key)
{
	json_count(name, knows(b, needs, key), b->d.v[key]);
}

static void json_bill(const struct bill *b)
{
	const unsigned long long *v = b->d.v;
	bool killed = WIFSIGNALED(b->status);

	fprintf(out, "{\"time\":%.6f",
		(double)now_ns(CLOCK_REALTIME) / NSEC_PER_SEC);
	json_count("status", !killed, WEXITSTATUS(b->status));
	json_count("signal", killed, WTERMSIG(b->status));
	json_real("wall_s", true, (double)b->wall_ns / NSEC_PER_SEC);
	json_real("user_s", true, b->user);
	json_real("system_s", true, b->system);
	json_count("minor_faults", true, b->minor);
	json_count("wpcopy_count", b->have & HAVE_WPCOPY, b->wpcopy.count);
	json_count("wpcopy_ns", b->have & HAVE_WPCOPY, b->wpcopy.ns);
	json_sum(b, "faults", HAVE_FAULTS, COW_CHILDREN_FAULTS);
	json_sum(b, "reused", HAVE_FAULTS, COW_CHILDREN_REUSED);
	json_sum(b, "lost", HAVE_TIMING, COW_CHILDREN_LOST);
	json_sum(b, "lost_ns", HAVE_TIMING, COW_CHILDREN_LOST_NS);
	json_sum(b, "unshared", HAVE_TIMING, COW_CHILDREN_UNSHARED);
	json_sum(b, "pmd_reused", HAVE_TIMING, COW_CHILDREN_PMD_REUSED);
	json_sum(b, "pmd_split", HAVE_TIMING, COW_CHILDREN_PMD_SPLIT);
	json_sum(b, "total_ns", HAVE_TIMING, COW_CHILDREN_TOTAL_NS);
	json_sum(b, "fault_total_ns", HAVE_FAULTS, COW_CHILDREN_FAULT_TOTAL_NS);
	json_sum(b, "precopy_success", HAVE_PRECOPY, COW_CHILDREN_SUCCESS);
	json_sum(b, "reuse_ahead", HAVE_PRECOPY, COW_CHILDREN_REUSE_AHEAD);
	json_real("copy_share", knows(b, HAVE_TIMING, COW_CHILDREN_TOTAL_NS) &&
		  knows(b, HAVE_TIMING, COW_CHILDREN_FAULT_TOTAL_NS),
		  share(v[COW_CHILDREN_TOTAL_NS], v[COW_CHILDREN_FAULT_TOTAL_NS]));
	json_real("wall_share", knows(b, HAVE_FAULTS, COW_CHILDREN_FAULT_TOTAL_NS),
		  share(all_faults_ns(b), b->wall_ns));
	fputs("}\n", out);
}

static __printf(3, 4) void bill_line(bool known, unsigned long long count,
				     const char *fmt, ...)
{
	va_list ap;

	if (known)
		fprintf(out, "%14llu  ", count);
	else
		fprintf(out, "%14s  ", "-");
	va_start(ap, fmt);
	vfprintf(out, fmt, ap);
	va_end(ap);
	fputc('\n', out);
}

static void count_line(const struct bill *b, enum cow_key key, const char *what)
{
	bill_line(b->d.known[key], b->d.v[key], "%s", what);
}

/* Of what few programs have */
static void rare_line(const struct bill *b, enum cow_key key, const char *what)
{
	if (b->d.v[key] || !b->d.known[key])
		count_line(b, key, what);
}

static void time_line(bool known, unsigned long long ns, const char *what,
		      unsigned long long whole, const char *of)
{
	if (known)
		fprintf(out, "%14.3f  ms %s", (double)ns / NSEC_PER_MSEC, what);
	else
		fprintf(out, "%14s  ms %s", "-", what);
	if (known && whole)
		fprintf(out, ", %.1f %% of %s", 100.0 * ns / whole, of);
	fputc('\n', out);
}

static void print_counts(const struct bill *b)
{
	if (b->have & HAVE_FAULTS) {
		count_line(b, COW_CHILDREN_FAULTS, "pages copied by a fault");
		count_line(b, COW_CHILDREN_REUSED,
			   "faults that made a page writable without a copy");
	}
	if (b->have & HAVE_TIMING) {
		rare_line(b, COW_CHILDREN_LOST,
			  "pages copied for nothing: another thread was faster");
		rare_line(b, COW_CHILDREN_UNSHARED, "pages copied to be pinned");
		rare_line(b, COW_CHILDREN_PMD_REUSED,
			  "faults that made a huge page writable without a copy");
		rare_line(b, COW_CHILDREN_PMD_SPLIT,
			  "faults that split the mapping of a huge page");
	}
	if (b->have & HAVE_PRECOPY) {
		count_line(b, COW_CHILDREN_SUCCESS, "pages copied ahead");
		count_line(b, COW_CHILDREN_REUSE_AHEAD, "pages made writable ahead");
	}
}

static void print_times(const struct bill *b)
{
	const unsigned long long *v = b->d.v;
	const bool *known = b->d.known;

	if (b->have & HAVE_FAULTS)
		time_line(known[COW_CHILDREN_FAULT_TOTAL_NS], all_faults_ns(b),
			  "in copy-on-write faults", b->wall_ns, "the wall time");
	if (v[COW_CHILDREN_LOST])
		time_line(known[COW_CHILDREN_LOST_NS], v[COW_CHILDREN_LOST_NS],
			  "of them in faults that copied for nothing", 0, NULL);
	if (b->have & HAVE_TIMING)
		time_line(known[COW_CHILDREN_TOTAL_NS], v[COW_CHILDREN_TOTAL_NS],
			  "of them copying", v[COW_CHILDREN_FAULT_TOTAL_NS],
			  "the fault time");
}

static void print_bill(const struct bill *b, const char *name)
{
	fprintf(out, "\nCopy-on-write bill of '%s' and its children", name);
	if (WIFSIGNALED(b->status))
		fprintf(out, ", killed by signal %d", WTERMSIG(b->status));
	else if (WEXITSTATUS(b->status))
		fprintf(out, ", exit status %d", WEXITSTATUS(b->status));
	fputs(":\n\n", out);
	print_counts(b);
	if (b->have & HAVE_WPCOPY)
		bill_line(true, b->wpcopy.count,
			  "pages copied by '%s' without its children (wpcopy)",
			  name);
	bill_line(true, b->minor, "minor faults of any kind");
	print_times(b);
	if (b->have & HAVE_WPCOPY)
		time_line(true, b->wpcopy.ns, "for these copies (wpcopy)",
			  b->wall_ns, "the wall time");
	fprintf(out, "%14.3f  s wall time (%.3f user, %.3f system)\n\n",
		(double)b->wall_ns / NSEC_PER_SEC, b->user, b->system);
}

void no_command(const char *name, int err)
{
	note("cannot run '%s': %s", name, strerror(err));
	quit(err == ENOENT ? E_NOT_FOUND : E_NOT_EXECUTABLE);
}

/*
 * By posix_spawn(), which lends the program our memory until it calls exec: what it
 * writes to in that time is not on its bill.
 */
int spawn_program(pid_t *pid, const posix_spawn_file_actions_t *actions, char **argv)
{
	posix_spawnattr_t attr;
	int err;

	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigdefault(&attr, &caught);
	posix_spawnattr_setsigmask(&attr, &found_mask);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF |
					POSIX_SPAWN_SETSIGMASK);
	err = posix_spawnp(pid, argv[0], actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	return err;
}

static void start_command(char **argv)
{
	siginfo_t info;
	sigset_t old;
	pid_t pid;
	int err;

	/* They stay our children in exec(). */
	if (!waitid(P_ALL, 0, &info, WEXITED | WNOWAIT | WNOHANG))
		note("children that were there before the command are on its bill, too");
	/* No signal is lost between the start and that @command is known. */
	sigprocmask(SIG_BLOCK, &caught, &old);
	quit_if_interrupted();
	err = spawn_program(&pid, NULL, argv);
	if (err)
		no_command(argv[0], err);
	command = pid;
	sigprocmask(SIG_SETMASK, &old, NULL);
}

/*
 * Until the command has ended; it remains a zombie, and no signal reaches it any
 * more. Descendants without a parent are our children: they need not remain.
 */
static void await_end(void)
{
	siginfo_t info;

	for (;;) {
		if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT)) {
			if (errno == EINTR)
				continue;
			die("cannot wait: %s", strerror(errno));
		}
		if (info.si_pid == command)
			break;
		waitpid(info.si_pid, NULL, WNOHANG);
	}
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
	/* With those of the children that it has waited for; times in ticks */
	unsigned long long minor, user, system;
};

static struct process processes[65536];

static bool read_process(struct process *p, const char *name)
{
	unsigned long long children_minor, children_user, children_system;
	char path[PATH_MAX], buf[1024], *text;

	*p = (struct process) { .pid = atoi(name) };
	if (!p->pid)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/stat", p->pid);
	if (cow_read_file(path, buf, sizeof(buf)) <= 0)
		return false;
	text = strrchr(buf, ')');
	if (!text || sscanf(text + 1,
			    " %c %d %*d %*d %*d %*d %*u %llu %llu %*u %*u %llu %llu %llu %llu",
			    &p->state, &p->parent, &p->minor, &children_minor, &p->user,
			    &p->system, &children_user, &children_system) != 8)
		return false;
	p->minor += children_minor;
	p->user += children_user;
	p->system += children_system;
	return true;
}

static size_t list_processes(void)
{
	struct dirent *entry;
	size_t nr = 0;
	DIR *dir;

	dir = opendir("/proc");
	if (!dir)
		return 0;
	while ((entry = readdir(dir)) && nr < ARRAY_SIZE(processes))
		nr += read_process(&processes[nr], entry->d_name);
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
		{ COW_CHILDREN_UNSHARED, COW_UNSHARED },
		{ COW_CHILDREN_PMD_REUSED, COW_PMD_REUSED },
		{ COW_CHILDREN_PMD_SPLIT, COW_PMD_SPLIT },
		{ COW_CHILDREN_TOTAL_NS, COW_TOTAL_NS },
		{ COW_CHILDREN_FAULT_TOTAL_NS, COW_FAULT_TOTAL_NS },
		{ COW_CHILDREN_SUCCESS, COW_SUCCESS },
		{ COW_CHILDREN_REUSE_AHEAD, COW_REUSE_AHEAD },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		d->v[keys[i].sum] += s->v[keys[i].sum] + s->v[keys[i].own];
		if (!s->known[keys[i].sum] || !s->known[keys[i].own])
			d->known[keys[i].sum] = false;
	}
}

/* False if it is just exiting, and its counts cannot be read */
static bool add_process(struct bill *b, const struct process *p)
{
	double tick = 1.0 / sysconf(_SC_CLK_TCK);
	pid_t tid = p->pid;
	struct cow_stats s;
	int ret;

	if (p->state == 'Z' || p->state == 'X')
		tid = live_thread(p->pid);
	/* We wait for it next time; another parent has to itself. */
	if (!tid)
		return p->parent != getpid();
	if (b->have & HAVE_COUNTS) {
		ret = cow_stats_read_pid(&s, tid);
		if (ret == -ESRCH || ret == -ENODATA || ret == -ENOENT)
			return false;
		if (!ret)
			add_running(&b->d, &s);
	}
	b->minor += p->minor;
	b->user += p->user * tick;
	b->system += p->system * tick;
	b->running++;
	return true;
}

/* False if a process was just exiting */
static bool add_processes(struct bill *b)
{
	size_t nr = list_processes(), i;
	bool all = true;

	mark_descendants(nr);
	for (i = 0; i < nr; i++)
		if (processes[i].ours && !add_process(b, &processes[i]))
			all = false;
	return all;
}

static void add_usage(struct bill *b, const struct rusage *before)
{
	struct rusage ru;

	getrusage(RUSAGE_CHILDREN, &ru);
	b->minor = ru.ru_minflt - before->ru_minflt;
	b->user = seconds(ru.ru_utime) - seconds(before->ru_utime);
	b->system = seconds(ru.ru_stime) - seconds(before->ru_stime);
}

/* What have all spent: those we have waited for, and those that still run? */
static void add_up(struct bill *b, const struct cow_stats *before,
		   const struct rusage *ru_before)
{
	struct timespec ts = { .tv_nsec = 10 * NSEC_PER_MSEC };
	struct cow_stats after;
	int ret, tries;

	for (tries = 0; tries < EXIT_TRIES; tries++) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		b->running = 0;
		add_usage(b, ru_before);
		if (b->have & HAVE_COUNTS) {
			ret = cow_stats_read_pid(&after, 0);
			if (ret)
				die("the counters cannot be read any more: %s",
				    strerror(-ret));
			cow_stats_delta(&b->d, before, &after);
		}
		if (add_processes(b))
			break;
		nanosleep(&ts, NULL);
	}
	if (b->running)
		note("%d of its processes still run: what they have spent so far is included",
		     b->running);
}

int exit_status(int status)
{
	return WIFSIGNALED(status) ? E_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

int bill_command(char **argv)
{
	static struct cow_stats before;
	struct rusage ru_before;
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
		explain_missing_key(&s, getpid());
		explain_switches(&s);
	}
	getrusage(RUSAGE_CHILDREN, &ru_before);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	start = now_ns(CLOCK_MONOTONIC);
	start_command(argv);
	await_end();
	b.wall_ns = now_ns(CLOCK_MONOTONIC) - start;
	bill_probes(&b, &s);
	if (!(s.have & HAVE_FAULTS))
		sample_wpcopy(&s, command);
	b.wpcopy = s.wpcopy;
	if (waitpid(command, &b.status, 0) < 0)
		die("cannot wait: %s", strerror(errno));
	command = 0;
	b.have = s.have;
	add_up(&b, &before, &ru_before);
	begin_output();
	if (opt.json)
		json_bill(&b);
	else
		print_bill(&b, argv[0]);
	if (fflush(out)) {
		note("cannot write: %s", strerror(errno));
		/* A command that has failed says more. */
		if (!b.status)
			return E_USAGE;
	}
	return exit_status(b.status);
}
