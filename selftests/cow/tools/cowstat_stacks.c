// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat --stacks: the code of a command that makes pages be copied, as folded
 * stacks: a line "COMMAND;CALLER;...;FUNCTION COPIES" per stack
 *
 * perf records and resolves the stacks. The event is that of CONFIG_COW_STATS, or a
 * kprobe event on kernels without it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cowstat.h"

#define MAX_FRAMES	127	/* kernel.perf_event_max_stack */
#define TRACEPOINT	"/sys/kernel/tracing/events/cow/cow_fault"

static char dir[] = "/tmp/cowstat.XXXXXX";
static char data[64], errors[64];

static void remove_files(void)
{
	unlink(data);
	unlink(errors);
	rmdir(dir);
}

static void make_files(void)
{
	if (!mkdtemp(dir))
		die("%s: %s", dir, strerror(errno));
	snprintf(data, sizeof(data), "%s/perf.data", dir);
	snprintf(errors, sizeof(errors), "%s/errors", dir);
	atexit(remove_files);
}

/*
 * What to record
 */

static void choose_event(char *event, size_t size, char *filter, size_t filter_size)
{
	const char *reason;

	if (!access(TRACEPOINT, F_OK)) {
		snprintf(event, size, "cow:cow_fault");
		/* copied, and copied around */
		snprintf(filter, filter_size, "outcome == 0 || outcome == 4");
		return;
	}
	reason = probes_begin_copied(event, size, filter, filter_size);
	if (reason)
		die("no stacks: %s", reason);
}

/* With its output to @out_fd, and its messages to a file, if that is not -1 */
static pid_t start_perf(const char **argv, int out_fd)
{
	posix_spawn_file_actions_t actions;
	sigset_t old;
	pid_t pid;
	int err;

	sigprocmask(SIG_BLOCK, &caught, &old);

	posix_spawn_file_actions_init(&actions);
	if (out_fd >= 0) {
		posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
		posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors,
						 O_WRONLY | O_CREAT, 0600);
	}
	err = spawn_program(&pid, &actions, (char **)argv);
	posix_spawn_file_actions_destroy(&actions);
	if (err == ENOENT)
		die("--stacks needs perf (Debian's package linux-perf)");
	if (err)
		die("cannot run perf: %s", strerror(err));
	if (out_fd < 0)
		command = pid;
	sigprocmask(SIG_SETMASK, &old, NULL);
	return pid;
}

static int wait_for(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die("cannot wait: %s", strerror(errno));
	return status;
}

static int record(char **command_line)
{
	const char *argv[256] = { "perf", "record", "-q", "--user-callchains", "-g" };
	char event[64], filter[512];
	size_t nr = 5, i;
	int status;

	choose_event(event, sizeof(event), filter, sizeof(filter));
	argv[nr++] = "-e";
	argv[nr++] = event;
	argv[nr++] = "--filter";
	argv[nr++] = filter;
	argv[nr++] = "-o";
	argv[nr++] = data;
	argv[nr++] = "--";
	for (i = 0; command_line[i]; i++) {
		if (nr == ARRAY_SIZE(argv) - 1)
			die("more than %zu arguments", i);
		argv[nr++] = command_line[i];
	}
	status = wait_for(start_perf(argv, -1));
	command = 0;
	return status;
}

/*
 * Folding
 */

static char **stacks;
static size_t nr_stacks;

static void add_stack(const char *comm, char (*frames)[128], int nr)
{
	char text[MAX_FRAMES * 128 + 64], *copy;
	size_t len;
	int i;

	len = snprintf(text, sizeof(text), "%s", comm);
	/* It ends a name. */
	for (copy = text; *copy; copy++)
		if (*copy == ';')
			*copy = ':';
	/* perf has the innermost one first. */
	for (i = nr - 1; i >= 0; i--)
		len += snprintf(text + len, sizeof(text) - len, ";%s", frames[i]);
	if (!(nr_stacks & (nr_stacks + 1)))
		stacks = realloc(stacks, 2 * (nr_stacks + 1) * sizeof(*stacks));
	copy = strdup(text);
	if (!stacks || !copy)
		die("no memory");
	stacks[nr_stacks++] = copy;
}

/*
 * A line with the command, then a line "ADDRESS SYMBOL" for each frame, then an
 * empty one. A symbol of C++ has spaces in it.
 */
static void read_stacks(FILE *file)
{
	static char frames[MAX_FRAMES][128];
	char line[4096], comm[COMM_LEN + 1] = "", *p;
	int nr = 0;

	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		p = line + strspn(line, " \t");
		if (!*p) {
			if (*comm)
				add_stack(comm, frames, nr);
			*comm = '\0';
			nr = 0;
		} else if (!*comm) {
			snprintf(comm, sizeof(comm), "%.*s", (int)strcspn(p, "\t"), p);
			p = comm + strlen(comm);
			while (p > comm && p[-1] == ' ')
				*--p = '\0';
		} else if (nr < MAX_FRAMES) {
			p += strcspn(p, " ");
			p += strspn(p, " ");
			snprintf(frames[nr++], sizeof(frames[0]), "%s", p);
		}
	}
	if (*comm)
		add_stack(comm, frames, nr);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char * const *)a, *(char * const *)b);
}

static void print_stacks(void)
{
	size_t i, first;

	qsort(stacks, nr_stacks, sizeof(*stacks), by_text);
	for (i = first = 0; i < nr_stacks; i++) {
		if (i + 1 < nr_stacks && !strcmp(stacks[i], stacks[i + 1]))
			continue;
		fprintf(out, "%s %zu\n", stacks[i], i + 1 - first);
		first = i + 1;
	}
}

static void show_errors(void)
{
	char text[4096];

	if (cow_read_file(errors, text, sizeof(text)) > 0)
		fputs(text, stderr);
}

static void fold(void)
{
	static const char *argv[] = {
		"perf", "script", "-F", "comm,ip,sym", "-i", data, NULL
	};
	int ends[2];
	FILE *file;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		die("pipe: %s", strerror(errno));
	pid = start_perf(argv, ends[1]);
	close(ends[1]);
	file = fdopen(ends[0], "r");
	if (!file)
		die("no memory");
	read_stacks(file);
	fclose(file);
	if (wait_for(pid)) {
		show_errors();
		die("perf script failed");
	}
	begin_output();
	print_stacks();
}

/* 0 or a negative errno, of exec */
static int cannot_run(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || access(path, X_OK))
		return -EACCES;
	return 0;
}

/* perf does not say by its exit status that the command could not be run. */
static void look_for(const char *name)
{
	const char *dirs = getenv("PATH") ?: "/bin:/usr/bin";
	int err = -ENOENT, found;
	char path[PATH_MAX];

	if (strchr(name, '/')) {
		err = cannot_run(name);
		if (err)
			no_command(name, -err);
		return;
	}
	for (; *name && *dirs; dirs += strcspn(dirs, ":"), dirs += *dirs == ':') {
		snprintf(path, sizeof(path), "%.*s/%s", (int)strcspn(dirs, ":"), dirs,
			 name);
		found = cannot_run(path);
		if (!found)
			return;
		if (found == -EACCES)
			err = found;
	}
	no_command(name, -err);
}

int stacks_of_command(char **argv)
{
	int status;

	look_for(argv[0]);
	make_files();
	status = record(argv);
	if (access(data, F_OK))
		die("perf record failed, see above");
	fold();
	if (fflush(out))
		die("cannot write: %s", strerror(errno));
	return exit_status(status);
}
