// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat --stacks: the code of a command that makes pages be copied, as folded
 * stacks: a line "COMMAND;CALLER;...;FUNCTION COPIES" per stack. With --stacks=lines
 * it is "FUNCTION (FILE:LINE)". Copies that another thread made useless end in ";[lost]".
 *
 * perf records and resolves the stacks. The event is cow:cow_fault, or a kprobe event on
 * kernels that do not have it.
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
#define SYMBOL_LEN	1024
#define FRAME_LEN	(SYMBOL_LEN + 64)

static char dir[] = "/tmp/cowstat.XXXXXX";
static char data[64], errors[64];
static bool own_event;		/* the kernel's, not a kprobe event */

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
		own_event = true;
		/* copied, lost, and copied around */
		snprintf(filter, filter_size, "outcome == 0 || outcome == 2 || outcome == 4");
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
	if (out_fd < 0)
		quit_if_interrupted();
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
	char event[64], filter[512];
	const char *options[] = {
		"perf", "record", "-q", "--user-callchains", "-g", "-e", event,
		"--filter", filter, "-o", data, "--",
	};
	const char **argv;
	size_t nr = 0;
	int status;

	choose_event(event, sizeof(event), filter, sizeof(filter));
	while (command_line[nr])
		nr++;
	argv = calloc(ARRAY_SIZE(options) + nr + 1, sizeof(*argv));
	if (!argv)
		die("no memory");
	memcpy(argv, options, sizeof(options));
	memcpy(argv + ARRAY_SIZE(options), command_line, nr * sizeof(*argv));
	status = wait_for(start_perf(argv, -1));
	command = 0;
	free(argv);
	return status;
}

/*
 * Folding
 */

static char **stacks;
static size_t nr_stacks;

/* A sample of perf: the innermost frame is the first one. */
struct stack {
	char comm[COMM_LEN + 1];
	bool lost;
	int nr;
	char frames[MAX_FRAMES][FRAME_LEN];
};

static void add_stack(const struct stack *s)
{
	static char text[MAX_FRAMES * (FRAME_LEN + 1) + 64];
	char *copy;
	size_t len;
	int i;

	len = snprintf(text, sizeof(text), "%s", s->comm);
	/* It ends a name. */
	for (copy = text; *copy; copy++)
		if (*copy == ';')
			*copy = ':';
	for (i = s->nr - 1; i >= 0; i--)
		len += snprintf(text + len, sizeof(text) - len, ";%s", s->frames[i]);
	if (s->lost)
		snprintf(text + len, sizeof(text) - len, ";[lost]");
	if (!(nr_stacks & (nr_stacks + 1)))
		stacks = realloc(stacks, 2 * (nr_stacks + 1) * sizeof(*stacks));
	copy = strdup(text);
	if (!stacks || !copy)
		die("no memory");
	stacks[nr_stacks++] = copy;
}

/* The command, and behind it what our event says */
static void begin_stack(struct stack *s, char *line)
{
	char *event = own_event ? strstr(line, " address=0x") : NULL, *p;

	s->nr = 0;
	s->lost = event && strstr(event, " outcome=lost ");
	if (event)
		*event = '\0';
	snprintf(s->comm, sizeof(s->comm), "%.*s", (int)strcspn(line, "\t"), line);
	p = s->comm + strlen(s->comm);
	while (p > s->comm && p[-1] == ' ')
		*--p = '\0';
}

/* "ADDRESS SYMBOL"; a symbol of C++ has spaces in it. */
static void add_frame(struct stack *s, const char *line)
{
	line += strcspn(line, " ");
	line += strspn(line, " ");
	snprintf(s->frames[s->nr++], FRAME_LEN, "%.*s", SYMBOL_LEN - 1, line);
}

/* FILE:LINE of the last frame; PROGRAM[ADDRESS] is what perf says if it knows none. */
static bool add_source(struct stack *s, const char *line)
{
	char *frame;
	size_t len;

	if (!s->nr || line[strlen(line) - 1] == ']')
		return false;
	frame = s->frames[s->nr - 1];
	len = strlen(frame);
	snprintf(frame + len, FRAME_LEN - len, " (%s)", line);
	return true;
}

/*
 * A line with the command, then a line for each frame, which begins with a tab, and
 * one for the frame's line of the source, which does not; then an empty one. True if
 * there is any line of a source.
 */
static bool read_stacks(FILE *file)
{
	static struct stack s;
	bool sources = false;
	char line[4096], *p;

	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		p = line + strspn(line, " \t");
		if (!*p) {
			if (*s.comm)
				add_stack(&s);
			s.comm[0] = '\0';
		} else if (!*s.comm) {
			begin_stack(&s, p);
		} else if (opt.stack_lines && *line != '\t') {
			sources |= add_source(&s, p);
		} else if (s.nr < MAX_FRAMES) {
			add_frame(&s, p);
		}
	}
	if (*s.comm)
		add_stack(&s);
	return sources;
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
	const char *argv[7] = { "perf", "script", "-F", NULL, "-i", data, NULL };
	bool sources;
	char fields[64];
	int ends[2];
	FILE *file;
	pid_t pid;

	snprintf(fields, sizeof(fields), "comm%s,ip,sym%s", own_event ? ",trace" : "",
		 opt.stack_lines ? ",srcline" : "");
	argv[3] = fields;
	if (pipe2(ends, O_CLOEXEC))
		die("pipe: %s", strerror(errno));
	pid = start_perf(argv, ends[1]);
	close(ends[1]);
	file = fdopen(ends[0], "r");
	if (!file)
		die("no memory");
	sources = read_stacks(file);
	fclose(file);
	if (wait_for(pid)) {
		show_errors();
		die("perf script failed");
	}
	if (opt.stack_lines && nr_stacks && !sources)
		note("no lines: perf needs addr2line (Debian's package binutils), and the code -g");
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
