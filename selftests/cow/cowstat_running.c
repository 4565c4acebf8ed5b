// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat on the running kernel: what it prints must be what the watched
 * processes say of themselves, to the last fault.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cowstat_helpers.h"

#define PAGES		256
#define ROUNDS		3

FIXTURE(running)
{
	struct cow_settings saved;
};

FIXTURE_VARIANT(running)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(running, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(running, ahead_15) { .ahead = 15 };

FIXTURE_SETUP(running)
{
	struct cow_stats s;
	const char *reason;
	int ret;

	cow_proc = "/proc";
	reason = cow_setup(&self->saved, variant->ahead, COW_WANT_STATS);
	if (reason)
		SKIP(return, "%s", reason);
	ret = cow_stats_read_pid(&s, 0);
	if (ret)
		SKIP(return, "/proc/self/cow_stats: %s", strerror(-ret));
}

FIXTURE_TEARDOWN_PARENT(running)
{
	cow_restore(&self->saved);
}

/*
 * What this process has counted until now, in a way that the reading of it adds
 * nothing afterwards: all that is written to has been written to before.
 */
static int own_counts(struct cow_stats *s)
{
	int ret;

	cow_own_stack();
	ret = cow_stats_read_pid(s, 0) ?: cow_stats_read_pid(s, 0);
	return ret ?: cow_stats_read_pid(s, 0);
}

/* In memory that the watched process shares with the test: */
struct watched {
	struct cow_stats counts;
	int ret;
};

/* Each byte received: write to PAGES pages that a child shares; then report. */
static int watched_process(struct cow_child *self, void *arg)
{
	size_t ps = cow_page_size();
	struct watched *w = arg;
	char *area[ROUNDS];
	struct cow_child idle;
	size_t i;
	int r;

	for (r = 0; r < ROUNDS; r++) {
		area[r] = cow_map(PAGES * ps, PAGES * ps);
		if (!area[r])
			return 1;
		cow_fill(area[r], PAGES * ps, r);
	}
	if (cow_child_idle(&idle))
		return 2;
	for (r = 0; r < ROUNDS; r++) {
		w->ret = own_counts(&w->counts);
		if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
			return 3;
		for (i = 0; i < PAGES; i++)
			cow_touch(area[r] + i * ps, 'w');
	}
	w->ret = own_counts(&w->counts);
	if (cow_child_send(self, 1))
		return 4;
	/* Until it is told to end */
	cow_child_recv(self);
	return cow_child_end(&idle);
}

/* What it has printed of the watched process since its first line */
struct seen {
	unsigned long long faults, reused, total_ns, success;
};

static void add_line(struct seen *seen)
{
	seen->faults += json_ull("faults");
	seen->reused += json_ull("reused");
	seen->total_ns += json_ull("total_ns");
	seen->success += json_ull("precopy_success");
}

/*
 * Watch a process that writes to PAGES shared pages: each number is what the process
 * says itself. 0 or a negative errno
 */
static int watch(struct __test_metadata *_metadata, struct watched *w)
{
	struct cow_stats first, d;
	struct seen seen = {};
	struct cow_child child;
	__u64 begin, done, last_sample = 0;
	char pid[16];
	int r, ret;

	ret = cow_child_fork(&child, watched_process, w);
	if (ret)
		return ret;
	/* The first rounds make it ready: nothing else is to be counted then. */
	for (r = 0; r < ROUNDS - 1; r++)
		if (cow_child_recv(&child) != 1 || cow_child_send(&child, 1))
			return -EPIPE;
	if (cow_child_recv(&child) != 1 || w->ret)
		return w->ret ?: -EPIPE;
	first = w->counts;
	snprintf(pid, sizeof(pid), "%d", child.pid);
	begin = cow_now_ns();
	start("-j", "-p", pid, "0.05", NULL);
	if (!json_parse(next_line()))
		return -EPROTO;
	EXPECT_EQ(json_ull("faults"), first.v[COW_FAULTS]);
	EXPECT_EQ(json_ull("reused"), first.v[COW_REUSED]);
	EXPECT_EQ(json_ull("total_ns"), first.v[COW_TOTAL_NS]);

	if (cow_child_send(&child, 1) || cow_child_recv(&child) != 1 || w->ret)
		return w->ret ?: -EPIPE;
	cow_stats_delta(&d, &first, &w->counts);
	/* The first sample was after begin: up to one that is after done */
	done = cow_now_ns();
	while (last_sample < done - begin) {
		if (!json_parse(next_line()))
			return -EPROTO;
		last_sample += json_double("seconds") * 1e9;
		add_line(&seen);
	}
	finish(SIGTERM);
	cow_child_end(&child);
	EXPECT_EQ(run.status, 0);
	EXPECT_EQ(seen.faults, d.v[COW_FAULTS]);
	EXPECT_EQ(seen.reused, d.v[COW_REUSED]);
	EXPECT_EQ(seen.total_ns, d.v[COW_TOTAL_NS]);
	EXPECT_EQ(seen.success, d.v[COW_SUCCESS]);
	EXPECT_EQ(d.v[COW_FAULTS] + d.v[COW_SUCCESS], (unsigned long long)PAGES);
	return 0;
}

TEST_F_TIMEOUT(running, process, TEST_TIMEOUT)
{
	struct watched *w;

	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(w, MAP_FAILED);
	EXPECT_EQ(watch(_metadata, w), 0);
}

/*
 * A command whose bill is known: each of its processes writes down what it has
 * counted, as the last thing that it does before it ends or calls exec.
 *
 * --spend FD 2: two generations of children that share PAGES pages and write to
 * them, in a process that has called exec before, and the rest of it.
 */

static int note_down(int fd)
{
	static struct cow_stats s;

	/*
	 * What fork() has registered is written to at exit if somebody looks at this
	 * address space then, as cowstat does: a fault after the last count.
	 */
	syscall(SYS_set_tid_address, NULL);
	/* So that the dynamic linker has found these. */
	if (write(fd, &s, 0) || own_counts(&s))
		return 1;
	return write(fd, &s, sizeof(s)) != sizeof(s);
}

static int spend_and_exit(int fd, int generations, char *area)
{
	size_t ps = cow_page_size(), i;
	int status = 0;
	pid_t pid;

	pid = generations ? fork() : 0;
	if (pid < 0)
		return 1;
	if (!pid && generations)
		_exit(spend_and_exit(fd, generations - 1, area));
	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, generations);
	if (generations && (waitpid(pid, &status, 0) != pid || status))
		return 1;
	/* Nobody else has these pages any more. */
	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, generations);
	return note_down(fd);
}

static int spend(int argc, char **argv)
{
	size_t ps = cow_page_size();
	char *area = cow_map(PAGES * ps, PAGES * ps);
	int fd, generations, ret;

	if (argc < 4 || !area)
		return 1;
	fd = atoi(argv[2]);
	generations = atoi(argv[3]);
	cow_fill(area, PAGES * ps, 1);
	/* "again": once more, in a new address space of the same process */
	argv[4] = NULL;
	ret = spend_and_exit(fd, generations, area);
	if (!ret && argc > 4)
		ret = execv("/proc/self/exe", argv);
	return ret;
}

/* The bill is the sum of what the processes have written down to fd. */
static void check_bill(struct __test_metadata *_metadata, int fd, int want)
{
	unsigned long long sum[COW_NR_KEYS] = {};
	static const int keys[] = {
		COW_FAULTS, COW_REUSED, COW_TOTAL_NS, COW_FAULT_TOTAL_NS,
		COW_SUCCESS, COW_REUSE_AHEAD,
	};
	struct cow_stats s;
	size_t i;
	int nr;

	for (nr = 0; pread(fd, &s, sizeof(s), nr * sizeof(s)) == sizeof(s); nr++)
		for (i = 0; i < COW_NR_KEYS; i++)
			sum[i] += s.v[i];
	ASSERT_EQ(nr, want);
	ASSERT_TRUE(json_parse(strchr(run.errors, '{')))
		TH_LOG("%s", run.errors);
	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		const char *name = cow_key_names[keys[i]];

		EXPECT_FALSE(json_null(name));
		EXPECT_EQ(json_ull(name), sum[keys[i]])
			TH_LOG("%s in the bill, and by the processes", name);
	}
	/* It is not all nothing. */
	EXPECT_GE(sum[COW_FAULTS] + sum[COW_SUCCESS], 2ULL * 2 * PAGES);
}

TEST_F_TIMEOUT(running, command, TEST_TIMEOUT)
{
	char number[16], self_path[PATH_MAX];
	int fd;

	snprintf(self_path, sizeof(self_path), "%s", own_path());
	/* Found when it is called first, it would be written to then. */
	setenv("LD_BIND_NOW", "1", 1);
	/* Its position is shared by all who have it. */
	fd = memfd_create("counts", 0);
	ASSERT_GE(fd, 0);
	snprintf(number, sizeof(number), "%d", fd);
	/* The exec'd one writes down what is left of it: 2 x 3 */
	ASSERT_EQ(cowstat("-j", "--", self_path, "--spend", number, "2", "again",
			  NULL), 0)
		TH_LOG("%s", run.errors);
	check_bill(_metadata, fd, 6);
	close(fd);
	EXPECT_EQ(json_ull("status"), 0ULL);
	EXPECT_TRUE(json_null("signal"));
	EXPECT_GE(json_ull("minor_faults"), json_ull("faults"));
	EXPECT_GT(json_double("wall_s"), 0);
	EXPECT_TRUE(about(json_double("copy_share"),
			  json_double("total_ns") /
			  json_double("fault_total_ns")));
	EXPECT_TRUE(about(json_double("wall_share"),
			  (json_double("fault_total_ns") +
			   json_double("lost_ns")) / 1e9 /
			  json_double("wall_s")));
}

/* Its exit status is ours; its output is not mixed up with the bill. */
TEST_F_TIMEOUT(running, command_status, TEST_TIMEOUT)
{
	char file[64] = "/tmp/cowstat_bill.XXXXXX", text[4096];

	EXPECT_EQ(cowstat("--", "sh", "-c", "echo out; echo err >&2; exit 7",
			  NULL), 7);
	EXPECT_STREQ(run.text, "out\n");
	EXPECT_EQ(strncmp(run.errors, "err\n", 4), 0);
	EXPECT_NE(strstr(run.errors, "bill of 'sh' and its children, exit status 7:"),
		  NULL);
	EXPECT_NE(strstr(run.errors, "pages copied by a fault"), NULL);
	EXPECT_NE(strstr(run.errors, "of them copying"), NULL);
	EXPECT_EQ(cowstat("--", "sh", "-c", "kill -9 $$", NULL), 128 + 9);
	EXPECT_NE(strstr(run.errors, "killed by signal 9:"), NULL);
	EXPECT_EQ(cowstat("-j", "--", "sh", "-c", "kill -9 $$", NULL), 128 + 9);
	ASSERT_TRUE(json_parse(run.errors));
	EXPECT_EQ(json_ull("signal"), 9ULL);
	EXPECT_TRUE(json_null("status"));
	EXPECT_EQ(cowstat("--", "/nonexistent/program", NULL), 127);
	EXPECT_STREQ(run.errors,
		     "cowstat: cannot run '/nonexistent/program': No such file or directory\n");
	EXPECT_EQ(cowstat("--", "/proc/self/status", NULL), 126);
	EXPECT_STREQ(run.errors,
		     "cowstat: cannot run '/proc/self/status': Permission denied\n");
	/* Options of the command are the command's. */
	EXPECT_EQ(cowstat("--", "sh", "-c", "exit $#", "-p", "-j", "-x", NULL),
		  2);

	ASSERT_GE(mkstemp(file), 0);
	EXPECT_EQ(cowstat("-j", "-o", file, "--", "true", NULL), 0);
	EXPECT_STREQ(run.errors, "");
	ASSERT_GT(cow_read_file(file, text, sizeof(text)), 0);
	EXPECT_TRUE(json_parse(text));
	unlink(file);
}

static long timing(void)
{
	long val = -1;

	cow_sysctl_read("cow_stats", &val);
	return val;
}

static void wait_for_timing(long want)
{
	while (timing() != want)
		usleep(1000);
}

/* Signals for the command, which end it and not the bill */
TEST_F_TIMEOUT(running, command_signals, TEST_TIMEOUT)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGHUP };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(signals); i++) {
		start("-j", "--", "sh", "-c", "echo ready; exec sleep 1000",
		      NULL);
		ASSERT_STREQ(next_line(), "ready");
		finish(signals[i]);
		EXPECT_EQ(run.status, 128 + signals[i]);
		ASSERT_TRUE(json_parse(run.errors))
			TH_LOG("%s", run.errors);
		EXPECT_EQ(json_ull("signal"), (unsigned long long)signals[i]);
	}
	/* What was ignored remains so, for the command too. */
	signal(SIGHUP, SIG_IGN);
	EXPECT_EQ(cowstat("-j", "--", "sh", "-c", "kill -HUP $$; exit 3", NULL),
		  3);
	signal(SIGHUP, SIG_DFL);
}

/* -e leaves the system as it was, however it ends. */
TEST_F_TIMEOUT(running, enable, TEST_TIMEOUT)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT };
	size_t i;

	ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	EXPECT_EQ(cowstat("--", "cat", "/proc/sys/vm/cow_stats", NULL), 0);
	EXPECT_STREQ(run.text, "0\n");
	EXPECT_NE(strstr(run.errors, "vm.cow_stats is 0"), NULL);
	EXPECT_EQ(strstr(run.errors, "pages copied by a fault"), NULL);
	EXPECT_EQ(cowstat("-e", "--", "cat", "/proc/sys/vm/cow_stats", NULL), 0);
	EXPECT_STREQ(run.text, "1\n");
	EXPECT_NE(strstr(run.errors, "pages copied by a fault"), NULL);
	EXPECT_EQ(timing(), 0);
	EXPECT_EQ(cowstat("-e", "--", "/nonexistent", NULL), 127);
	EXPECT_EQ(timing(), 0);
	EXPECT_EQ(cowstat("-e", "-p", "4194304", NULL), 2);
	EXPECT_EQ(timing(), 0);
	EXPECT_EQ(cowstat("-e", "0.01", "3", NULL), 0);
	EXPECT_EQ(timing(), 0);
	EXPECT_EQ(cowstat_prepared(to_nobody, "-e", "0.01", NULL), 0);
	EXPECT_EQ(timing(), 0);
	EXPECT_EQ(cowstat_prepared(to_full_disk, "-e", "0.01", NULL), 2);
	EXPECT_EQ(timing(), 0);
	for (i = 0; i < ARRAY_SIZE(signals); i++) {
		start("-e", "1000", NULL);
		wait_for_timing(1);
		ASSERT_NE(next_line(), NULL);
		finish(signals[i]);
		EXPECT_EQ(run.status, 0);
		EXPECT_EQ(timing(), 0);
	}
	/* What was on before stays on. */
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	EXPECT_EQ(cowstat("-e", "--", "true", NULL), 0);
	EXPECT_EQ(timing(), 1);
}

TEST_F_TIMEOUT(running, nobody, TEST_TIMEOUT)
{
	char pid[16];

	if (getuid())
		SKIP(return, "becoming nobody needs root");
	snprintf(pid, sizeof(pid), "%d", getpid());
	/* Somebody else's process: what everybody may see */
	EXPECT_EQ(cowstat_prepared(become_nobody, "-p", pid, "0.01", "3", NULL),
		  0);
	EXPECT_EQ(count_of(run.errors, "cowstat: no permission to see more of process"),
		  1)
		TH_LOG("%s", run.errors);
	EXPECT_STREQ(column(run.text, 0, "copied"), "");
	EXPECT_GT(atol(column(run.text, 0, "minor")), 0);
	/* The system and one's own command */
	EXPECT_EQ(cowstat_prepared(become_nobody, "-j", NULL), 0);
	EXPECT_STREQ(run.errors, "");
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_FALSE(json_null("faults"));
	EXPECT_EQ(cowstat_prepared(become_nobody, "-j", "--", "true", NULL), 0);
	ASSERT_TRUE(json_parse(run.errors))
		TH_LOG("%s", run.errors);
	EXPECT_FALSE(json_null("faults"));
	/* Switching on is root's. */
	ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	EXPECT_EQ(cowstat_prepared(become_nobody, "-e", NULL), 2);
	EXPECT_STREQ(run.errors,
		     "cowstat: setting vm.cow_stats to 1 needs root\n");
	EXPECT_EQ(timing(), 0);
}

/* One that exits while it is watched, and one that has exited before */
TEST_F_TIMEOUT(running, exited, TEST_TIMEOUT)
{
	struct cow_child child;
	char want[64], pid[16];
	int reap;

	for (reap = 0; reap < 2; reap++) {
		ASSERT_EQ(cow_child_idle(&child), 0);
		snprintf(pid, sizeof(pid), "%d", child.pid);
		snprintf(want, sizeof(want), "cowstat: process %s has exited\n",
			 pid);
		start("-j", "-p", pid, "0.05", NULL);
		ASSERT_TRUE(json_parse(next_line()));
		if (reap)
			cow_child_end(&child);
		else
			kill(child.pid, SIGKILL);
		while (next_line())
			;
		finish(0);
		EXPECT_EQ(run.status, 1);
		EXPECT_NE(strstr(run.errors, want), NULL)
			TH_LOG("%s", run.errors);
		EXPECT_EQ(cowstat("-p", pid, NULL), 2);
		EXPECT_NE(strstr(run.errors, reap ? ": no such process" :
					     ": it has exited"), NULL)
			TH_LOG("%s", run.errors);
		if (!reap)
			cow_child_end(&child);
	}
}

static void *other_thread(void *arg)
{
	struct cow_child *self = arg;

	/* Until the main thread is a zombie */
	while (!cow_task_ended(getpid()))
		usleep(1000);
	cow_child_send(self, 1);
	cow_child_recv(self);
	_exit(0);
}

static int exit_main_thread(struct cow_child *self, void *arg)
{
	pthread_t thread;

	(void)arg;
	if (pthread_create(&thread, NULL, other_thread, self))
		return 1;
	/* This thread alone; pthread_exit() would need libgcc_s in the guest. */
	return syscall(SYS_exit, 0);
}

/* The process lives on without its main thread. */
TEST_F_TIMEOUT(running, main_thread_exited, TEST_TIMEOUT)
{
	struct cow_child child;
	char pid[16];

	ASSERT_EQ(cow_child_fork(&child, exit_main_thread, NULL), 0);
	ASSERT_EQ(cow_child_recv(&child), 1);
	snprintf(pid, sizeof(pid), "%d", child.pid);
	EXPECT_EQ(cowstat("-j", "-p", pid, "0.05", "3", NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(lines_of(run.text), 3);
	ASSERT_TRUE(json_parse(strrchr(run.text, '{')));
	EXPECT_FALSE(json_null("faults"));
	EXPECT_EQ(cow_child_end(&child), 0);
}

/* The first line of the system's is /proc/cow_stats. */
TEST_F_TIMEOUT(running, system, TEST_TIMEOUT)
{
	static const int keys[] = {
		COW_FAULTS, COW_REUSED, COW_TOTAL_NS, COW_FAULT_TOTAL_NS,
		COW_ATTEMPTS, COW_SUCCESS,
	};
	struct cow_stats before, after;
	size_t k;
	int i;

	/* Counted between the two reads, or before and after them */
	for (i = 0; i < ROUNDS; i++) {
		ASSERT_EQ(cow_stats_read(&before), 0);
		ASSERT_EQ(cowstat("-j", NULL), 0);
		ASSERT_EQ(cow_stats_read(&after), 0);
		ASSERT_TRUE(json_parse(run.text));
		for (k = 0; k < ARRAY_SIZE(keys); k++) {
			const char *name = cow_key_names[keys[k]];

			EXPECT_GE(json_ull(name), before.v[keys[k]]);
			EXPECT_LE(json_ull(name), after.v[keys[k]]);
		}
	}
	EXPECT_GT(before.v[COW_FAULTS], 0ULL);
}

/* While vm.cow_stats is 0 the system's counts are those of /proc/vmstat. */
TEST_F_TIMEOUT(running, vmstat, TEST_TIMEOUT)
{
	static const char * const names[][2] = {
		{ "pgcow_copied", "faults" }, { "pgcow_reused", "reused" },
		{ "pgcow_lost", "lost" },
	};
	long long before[ARRAY_SIZE(names)], after;
	size_t i;

	ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	for (i = 0; i < ARRAY_SIZE(names); i++)
		before[i] = cow_file_key("/proc/vmstat", names[i][0]);
	/* Nobody needs to be root for these. */
	ASSERT_EQ(getuid() ? cowstat("-j", NULL) :
		  cowstat_prepared(become_nobody, "-j", NULL), 0);
	EXPECT_EQ(count_of(run.errors, "no times, percentiles: vm.cow_stats is 0"), 1)
		TH_LOG("%s", run.errors);
	ASSERT_TRUE(json_parse(run.text));
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		after = cow_file_key("/proc/vmstat", names[i][0]);
		EXPECT_FALSE(json_null(names[i][1]));
		EXPECT_GE((long long)json_ull(names[i][1]), before[i]);
		EXPECT_LE((long long)json_ull(names[i][1]), after);
	}
	EXPECT_GT(before[0], 0);
	EXPECT_TRUE(json_null("fault_total_ns"));
}

/*
 * A folder with the counters of the kernel and a gate: cowstat takes a sample
 * whenever the test says so.
 */
static int gate_to_kernel(void)
{
	static const char * const names[] = { "cow_stats", "cow_histogram", "sys" };
	char path[128], target[64];
	size_t i;
	int ret;

	ret = fake_begin();
	for (i = 0; !ret && i < ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", fake, names[i]);
		snprintf(target, sizeof(target), "/proc/%s", names[i]);
		ret = symlink(target, path) ? -errno : 0;
	}
	gate_begin();
	return ret;
}

/* One sample by the gate */
static bool sample(void)
{
	return json_parse(gate_step(vmstat_text(1000, 0)));
}

/*
 * Write to shared pages between two samples: 0 if the percentiles of the second
 * one are those of what was copied, 1 if not, -EAGAIN if others have copied too
 * much at the same time.
 */
static int percentiles_once(struct __test_metadata *_metadata, char *area)
{
	static struct cow_hist before, after, d;
	static struct cow_measure m;
	__u64 total, low, high, p50;
	int ret;

	start("--proc", fake, "-j", "0.01", NULL);
	if (!sample())
		return -EPROTO;
	ret = cow_hist_read(&before, NULL) ?:
	      cow_measure(&m, area, NULL, COW_MAX_MEASURED) ?:
	      cow_hist_read(&after, NULL);
	if (ret)
		return ret;
	if (!sample())
		return -EPROTO;
	finish(SIGTERM);
	cow_hist_delta(&d, &before, &after);
	total = cow_hist_total(&d);
	EXPECT_GE(json_ull("faults"), total);
	if (json_ull("faults") * 3 / 4 > total)
		return -EAGAIN;
	/* The median of three quarters is in the middle of all. */
	p50 = json_ull("p50_ns");
	low = cow_hist_percentile(&d, 30);
	high = cow_hist_percentile(&d, 70);
	if (p50 >= low && p50 <= high && json_ull("p90_ns") >= p50 &&
	    json_ull("p99_ns") >= json_ull("p90_ns") &&
	    json_ull("fault_p50_ns") > p50)
		return 0;
	TH_LOG("P50 %llu of %s copies, but P30 %llu and P70 %llu of %llu", p50,
	       json_text("faults"), low, high, total);
	return 1;
}

/* Percentiles of an interval are those of what was copied in it. */
TEST_F_TIMEOUT(running, percentiles, TEST_TIMEOUT)
{
	size_t len = COW_MAX_MEASURED * cow_page_size();
	struct cow_child child;
	char *area;
	int ret;

	ASSERT_EQ(gate_to_kernel(), 0);
	do {
		area = cow_map(len, 0);
		ASSERT_NE(area, NULL);
		cow_fill(area, len, 1);
		ASSERT_EQ(cow_child_idle(&child), 0);
		ret = percentiles_once(_metadata, area);
		cow_child_end(&child);
		cow_unmap(area, len);
	} while (ret == -EAGAIN);
	fake_end();
	EXPECT_EQ(ret, 0);
}

/* A reset of the real counters */
TEST_F_TIMEOUT(running, reset, TEST_TIMEOUT)
{
	ASSERT_EQ(cowstat("--", "sh", "-c", "for i in 1 2 3; do sh -c true; done",
			  NULL), 0);
	ASSERT_EQ(gate_to_kernel(), 0);
	start("--proc", fake, "-j", "0.01", NULL);
	ASSERT_TRUE(sample());
	ASSERT_EQ(cow_write_file(COW_STATS_FILE, "0\n"), 0);
	ASSERT_TRUE(sample());
	EXPECT_STREQ(json_text("reset"), "true");
	EXPECT_TRUE(json_null("faults"));
	ASSERT_TRUE(sample());
	EXPECT_STREQ(json_text("reset"), "false");
	EXPECT_LT(json_ull("faults"), 1000000ULL);
	finish(SIGTERM);
	fake_end();
}

/* The example: what it prints is not nothing. */
TEST_F_TIMEOUT(running, snapshot, TEST_TIMEOUT)
{
	unsigned long long copied = 0, ahead = 0;
	char *path = own_path(), text[4096];
	size_t n;
	FILE *p;

	strcpy(strrchr(path, '/') + 1, "cow_snapshot 4");
	p = popen(path, "re");
	ASSERT_NE(p, NULL);
	n = fread(text, 1, sizeof(text) - 1, p);
	text[n] = '\0';
	EXPECT_EQ(pclose(p), 0);
	EXPECT_EQ(sscanf(text, "%llu pages copied, %llu copied ahead", &copied,
			 &ahead), 2)
		TH_LOG("%s", text);
	EXPECT_GE(copied + ahead, (4ULL << 20) / cow_page_size());
	EXPECT_EQ(strstr(text, "nothing was counted"), NULL);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--spend"))
		_exit(spend(argc, argv));
	return test_harness_run(argc, argv);
}
