// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat when something is not as it should be: files that cannot be written or
 * read, odd surroundings, names that look like commands of a terminal, numbers that
 * are too wide. What it says, its exit status, and that nothing is changed or left
 * behind.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cowstat_helpers.h"

#define PIDS		"4000000,4000001"
#define NOT_THERE	"4194304"

FIXTURE(errors)
{
	struct cow_stats a, b;
	char file[128];
};

FIXTURE_SETUP(errors)
{
	const char *reason = no_kernel();

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(fake_begin(), 0);
	fake_two_processes(&self->a, &self->b);
	snprintf(self->file, sizeof(self->file), "%s/out", fake);
}

FIXTURE_TEARDOWN(errors)
{
	fake_end();
}

/* 80 columns, whatever the numbers are; a name of 15 characters; with -t, too */
TEST_F_TIMEOUT(errors, wide_numbers, TEST_TIMEOUT)
{
	static const char * const what[] = { "-n", "-t", "-a", "-ta", "-p" PIDS, "-tp" PIDS };
	size_t i;

	make_counts(&self->a, 12345678901234ULL);
	fake_counts(&self->a);
	fake_vmstat(4294967295UL, 100);
	fake_process(FAKE_PID, "fifteen-letters", &self->a);
	for (i = 0; i < ARRAY_SIZE(what); i++) {
		ASSERT_EQ(cowstat("--proc", fake, what[i], NULL), 0)
			TH_LOG("%s", run.errors);
		EXPECT_LE(widest(run.text), 80)
			TH_LOG("%s:\n%s", what[i], run.text);
	}
	ASSERT_EQ(cowstat("--proc", fake, NULL), 0);
	EXPECT_STREQ(column(run.text, 0, "copied"), "12345679M");
}

/* No name makes a terminal do anything. */
TEST_F_TIMEOUT(errors, names, TEST_TIMEOUT)
{
	fake_process(FAKE_PID, "\033[2J\007x\177\200y", &self->a);
	ASSERT_EQ(cowstat("--proc", fake, "-a", NULL), 0);
	EXPECT_NE(strstr(run.text, " ?[2J?x??y "), NULL)
		TH_LOG("%s", run.text);
	ASSERT_EQ(cowstat("--proc", fake, "-j", "-p", "4000000", NULL), 0);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_STREQ(json_text("comm"), "\"\\u001b[2J\\u0007x\\u007f\\u0080y\"");
}

static void put_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	if (!file || fputs(text, file) == EOF || fclose(file))
		abort();
}

/* -o: the file is made or changed once there is something to write. */
TEST_F_TIMEOUT(errors, output_is_kept, TEST_TIMEOUT)
{
	char text[4096];

	EXPECT_EQ(cowstat("--proc", fake, "-o", self->file, "-p", NOT_THERE, NULL), 2);
	EXPECT_NE(access(self->file, F_OK), 0);
	EXPECT_EQ(cowstat("-o", self->file, "--", "/nonexistent", NULL), 127);
	EXPECT_NE(access(self->file, F_OK), 0);
	put_file(self->file, "what was there\n");
	EXPECT_EQ(cowstat("--proc", fake, "-o", self->file, "-p", NOT_THERE, NULL), 2);
	ASSERT_GT(cow_read_file(self->file, text, sizeof(text)), 0);
	EXPECT_STREQ(text, "what was there\n");
	/* Nothing of what was there is behind the new lines. */
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	put_file(self->file, text);
	ASSERT_EQ(cowstat("--proc", fake, "-j", "-o", self->file, NULL), 0);
	ASSERT_GT(cow_read_file(self->file, text, sizeof(text)), 0);
	EXPECT_TRUE(json_parse(text));
	EXPECT_EQ(lines_of(text), 1);
}

static bool without_output(void)
{
	return !close(STDOUT_FILENO);
}

static bool without_any(void)
{
	return !close(STDIN_FILENO) && !close(STDOUT_FILENO) && !close(STDERR_FILENO);
}

/* What cannot be written is an error, and goes nowhere else. */
TEST_F_TIMEOUT(errors, cannot_write, TEST_TIMEOUT)
{
	static const char full[] = "cowstat: cannot write: No space left on device\n";
	char value[16];

	EXPECT_EQ(cowstat("--proc", fake, "-o", "/dev/full", NULL), 2);
	EXPECT_STREQ(run.errors, full);
	EXPECT_EQ(cowstat_prepared(to_full_disk, "--help", NULL), 2);
	EXPECT_STREQ(run.errors, full);
	EXPECT_EQ(cowstat_prepared(to_full_disk, "-V", NULL), 2);
	EXPECT_STREQ(run.errors, full);
	/* The bill of a command; the command's own failure is more. */
	EXPECT_EQ(cowstat("-o", "/dev/full", "--", "true", NULL), 2);
	EXPECT_NE(strstr(run.errors, full), NULL);
	EXPECT_EQ(cowstat("-o", "/dev/full", "--", "sh", "-c", "exit 7", NULL), 7);
	EXPECT_NE(strstr(run.errors, full), NULL);

	EXPECT_EQ(cowstat_prepared(without_output, "--proc", fake, NULL), 2);
	EXPECT_STREQ(run.errors, "cowstat: cannot write: Bad file descriptor\n");
	fake_sysctl("0\n");
	EXPECT_EQ(cowstat_prepared(without_any, "--proc", fake, "-e", "0.01", "3", NULL), 2);
	snprintf(self->file, sizeof(self->file), "%s/sys/vm/cow_stats", fake);
	ASSERT_GT(cow_read_file(self->file, value, sizeof(value)), 0);
	EXPECT_EQ(value[0], '0');
	EXPECT_EQ(strlen(value), 1UL);
}

/* A thread's number would have no faults where they are counted by process. */
TEST_F_TIMEOUT(errors, thread, TEST_TIMEOUT)
{
	fake_text(fake_pid_file("status"), "Name:\tsmall\nTgid:\t17\nPid:\t4000000\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", PIDS, NULL), 2);
	EXPECT_STREQ(run.errors, "cowstat: 4000000 is a thread of process 17\n");
	fake_text(fake_pid_file("status"), "Name:\tsmall\nTgid:\t4000000\nPid:\t4000000\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", PIDS, NULL), 0);
}

/* hidepid=1: what is not ours to see is not there for -a and -C, an error for -p. */
TEST_F_TIMEOUT(errors, hidden, TEST_TIMEOUT)
{
	char path[160];

	if (getuid())
		SKIP(return, "becoming nobody needs root");
	snprintf(path, sizeof(path), "%s/%s", fake, fake_pid_file("stat"));
	ASSERT_EQ(chmod(fake, 0755), 0);
	ASSERT_EQ(chmod(path, 0), 0);
	ASSERT_EQ(cowstat_prepared(become_nobody, "--proc", fake, "-j", "-a", NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(lines_of(run.text), 1);
	EXPECT_NE(strstr(run.text, "large one"), NULL);
	EXPECT_EQ(cowstat_prepared(become_nobody, "--proc", fake, "-p", "4000000", NULL), 2);
	EXPECT_NE(strstr(run.errors, "4000000/stat: Permission denied"), NULL)
		TH_LOG("%s", run.errors);
}

/* The file that is wrong is named. */
TEST_F_TIMEOUT(errors, malformed, TEST_TIMEOUT)
{
	char want[160];

	fake_text(fake_pid_file("cow_stats"), "faults: many\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", "4000000", NULL), 2);
	snprintf(want, sizeof(want), "cowstat: %s/4000000/cow_stats is malformed\n", fake);
	EXPECT_STREQ(run.errors, want);
}

TEST_F_TIMEOUT(errors, lines_of_a_command, TEST_TIMEOUT)
{
	static const char * const refused[] = { "-w", "-t", "-n" };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(refused); i++) {
		EXPECT_EQ(cowstat(refused[i], "--", "true", NULL), 2);
		EXPECT_STREQ(run.errors,
			     "cowstat: -n, -t and -w are for lines, not for a command\n");
	}
	EXPECT_EQ(cowstat("1", "--", "true", NULL), 2);
	EXPECT_EQ(cowstat("--stacks", "-j", "--", "true", NULL), 2);
	EXPECT_EQ(cowstat("--stacks", "--", "/nonexistent", NULL), 127);
	EXPECT_STREQ(run.errors,
		     "cowstat: cannot run '/nonexistent': No such file or directory\n");
	EXPECT_EQ(cowstat("--stacks", "--", "no-such-program", NULL), 127);
	EXPECT_EQ(cowstat("--stacks", "--", "/", NULL), 126);
	EXPECT_EQ(cowstat("--stacks", "--", "", NULL), 127);
}

/* A parent may have had its children's ends ignored; and some of its signals. */
static bool with_odd_signals(void)
{
	sigset_t set;

	signal(SIGCHLD, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	return !sigprocmask(SIG_SETMASK, &set, NULL);
}

TEST_F_TIMEOUT(errors, children_ignored, TEST_TIMEOUT)
{
	EXPECT_EQ(cowstat_prepared(with_odd_signals, "--", "sh", "-c", "exit 5", NULL), 5)
		TH_LOG("%s", run.errors);
	/* The command has the signal mask of its parent. SIGUSR1 is 10, or bit 9. */
	EXPECT_EQ(cowstat_prepared(with_odd_signals, "--", "grep", "SigBlk",
				   "/proc/self/status", NULL), 0);
	EXPECT_STREQ(run.text, "SigBlk:\t0000000000000200\n");
}

/*
 * Descendants whose parent has exited are cowstat's children. Those that have ended
 * do not remain as zombies until the command ends.
 */
TEST_F_TIMEOUT(errors, orphans, TEST_TIMEOUT)
{
	char script[1024];

	snprintf(script, sizeof(script),
		 "(sh -c 'echo $$ > %s/new; mv %s/new %s/pid' &)\n"
		 "until [ -e %s/pid ]; do sleep 0.01; done\n"
		 "pid=$(cat %s/pid)\n"
		 "i=0\n"
		 "while [ -e /proc/$pid ] && [ $i -lt 6000 ]; do sleep 0.01; i=$((i + 1)); done\n"
		 "! [ -e /proc/$pid ]",
		 fake, fake, fake, fake, fake);
	EXPECT_EQ(cowstat("--", "sh", "-c", script, NULL), 0);
}

/* It gets a child that it has not started, as from a script that ends with exec. */
static bool with_child(void)
{
	pid_t parent = getpid(), pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (getppid() == parent)
			pause();
		_exit(0);
	}
	return pid > 0;
}

TEST_F_TIMEOUT(errors, children_from_before, TEST_TIMEOUT)
{
	static const char says[] = "children that were there before the command";

	EXPECT_EQ(cowstat_prepared(with_child, "--", "true", NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 1)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(cowstat("--", "true", NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 0);
}

static bool traced(void)
{
	return !ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

static bool catches(pid_t pid, int sig)
{
	unsigned long long mask = 0;
	char path[64], text[4096], *line;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (cow_read_file(path, text, sizeof(text)) <= 0)
		return false;
	line = strstr(text, "SigCgt:");
	return line && sscanf(line, "SigCgt: %llx", &mask) == 1 && (mask >> (sig - 1)) & 1;
}

/* From system call to system call, until it catches the signal: false if it ends first */
static bool run_until_caught(pid_t pid, int sig)
{
	int status;

	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		if (catches(pid, sig))
			return true;
		ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
	}
	return false;
}

/* A signal that comes while there is no command yet: none is started. */
TEST_F_TIMEOUT(errors, signal_at_start, TEST_TIMEOUT)
{
	const char *argv[] = { "cowstat", "--", "touch", self->file, NULL };

	start_prepared(TO_FILE, traced, argv);
	ASSERT_TRUE(run_until_caught(run.pid, SIGTERM));
	ASSERT_EQ(kill(run.pid, SIGTERM), 0);
	ASSERT_EQ(ptrace(PTRACE_DETACH, run.pid, NULL, NULL), 0);
	finish(0);
	EXPECT_EQ(run.status, 128 + SIGTERM)
		TH_LOG("%s", run.errors);
	EXPECT_NE(access(self->file, F_OK), 0);
}

/*
 * Many at once that switch vm.cow_stats on: it is on while any of them runs, and off
 * in the end.
 */
#define CROWD		8
#define CROWD_ROUNDS	25

TEST_F_TIMEOUT(errors, crowd_that_enables, TEST_TIMEOUT)
{
	char path[128], value[8];
	pid_t pids[CROWD];
	int status, i, k;

	fake_sysctl("0\n");
	snprintf(path, sizeof(path), "%s/sys/vm/cow_stats", fake);
	for (i = 0; i < CROWD; i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		for (k = 0; k < CROWD_ROUNDS; k++)
			if (cowstat("--proc", fake, "-e", "--", "grep", "-q", "1", path,
				    NULL))
				_exit(k + 1);
		_exit(0);
	}
	for (i = 0; i < CROWD; i++) {
		ASSERT_EQ(waitpid(pids[i], &status, 0), pids[i]);
		EXPECT_EQ(status, 0)
			TH_LOG("off in round %d", WEXITSTATUS(status));
	}
	ASSERT_GT(cow_read_file(path, value, sizeof(value)), 0);
	EXPECT_EQ(value[0], '0');
}

/*
 * -C: what a process has done under another name is not of the interval in which it
 * gets this one.
 */
static int rename_twice(struct cow_child *self, void *arg)
{
	prctl(PR_SET_NAME, arg);
	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 1;
	prctl(PR_SET_NAME, "cow_right_name");
	if (cow_child_send(self, 1))
		return 1;
	cow_child_recv(self);
	return 0;
}

TEST_F_TIMEOUT(errors, renamed, TEST_TIMEOUT)
{
	struct cow_child first, second;
	unsigned long long pid;
	char *line;

	ASSERT_EQ(cow_child_fork(&first, rename_twice, "cow_right_name"), 0);
	ASSERT_EQ(cow_child_recv(&first), 1);
	ASSERT_EQ(cow_child_fork(&second, rename_twice, "cow_wrong_name"), 0);
	ASSERT_EQ(cow_child_recv(&second), 1);
	pid = second.pid;
	start("-j", "-C", "cow_right_name", "0.1", NULL);
	/* Two samples, so that the second process is older than the last one. */
	ASSERT_TRUE(json_parse(next_line()));
	EXPECT_EQ(json_ull("pid"), (unsigned long long)first.pid);
	ASSERT_TRUE(json_parse(next_line()));
	ASSERT_EQ(cow_child_send(&second, 1), 0);
	ASSERT_EQ(cow_child_recv(&second), 1);
	do {
		line = next_line();
		ASSERT_TRUE(json_parse(line));
	} while (json_ull("pid") != pid);
	EXPECT_TRUE(json_null("seconds"))
		TH_LOG("%s", line);
	do {
		line = next_line();
		ASSERT_TRUE(json_parse(line));
	} while (json_ull("pid") != pid);
	EXPECT_FALSE(json_null("seconds"));
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
	cow_child_end(&first);
	cow_child_end(&second);
}

/* The exit status of one of the other tools; in *said what is on standard error */
static int tool(const char *command, char *said, size_t size)
{
	char line[PATH_MAX + 128], *path = own_path();
	size_t len;
	FILE *p;

	*strrchr(path, '/') = '\0';
	snprintf(line, sizeof(line), "cd '%s' && ./%s", path, command);
	p = popen(line, "re");
	if (!p)
		return -1;
	len = fread(said, 1, size - 1, p);
	said[len] = '\0';
	return WEXITSTATUS(pclose(p));
}

TEST_F_TIMEOUT(errors, other_tools, TEST_TIMEOUT)
{
	static const struct {
		const char *command, *says;
	} bad[] = {
		{ "cow_snapshot 1 2>&1 > /dev/full", "cannot write: No space left" },
		{ "cow_snapshot 12abc 2>&1", "'12abc' is not a number of megabytes" },
		{ "cow_snapshot 1 2 2>&1", "Usage: ./cow_snapshot [MEGABYTES]\n" },
		{ "cow_profile --help 2>&1 > /dev/full", "cannot write: No space left" },
		{ "cow_profile nonsense 2>&1", "'nonsense' is neither fork nor cow\n" },
		{ "cow_profile 2>&1", "which one, fork or cow?\n" },
		{ "cow_profile fork -n 1x 2>&1", "1x" },
		{ "cow_bench --help 2>&1 > /dev/full", "cannot write the output: No space" },
		{ "cow_bench --size 12abc 2>&1", "'12abc' is not a size such as 16M\n" },
		{ "cow_bench --workload nonsense 2>&1", "no workload is called 'nonsense'" },
	};
	char said[4096];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		EXPECT_EQ(tool(bad[i].command, said, sizeof(said)), 2)
			TH_LOG("%s: %s", bad[i].command, said);
		EXPECT_NE(strstr(said, bad[i].says), NULL)
			TH_LOG("%s: %s", bad[i].command, said);
	}
}

TEST_HARNESS_MAIN
