// SPDX-License-Identifier: GPL-2.0
/*
 * What the tests of cowstat share: a folder in place of /proc, running cowstat,
 * and reading what it prints. See cowstat_helpers.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cowstat_helpers.h"

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

#define NOBODY		65534

const char *no_kernel(void)
{
	return getenv("COW_ANY_KERNEL") ? NULL : cow_missing();
}

/* Signals that whoever runs the tests ignores (nohup, a job of a script) end cowstat here. */
static __attribute__((constructor)) void default_signals(void)
{
	signal(SIGHUP, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGQUIT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
}

/*
 * The folder that takes the place of /proc
 */

char fake[64];

int fake_begin(void)
{
	char path[128];

	snprintf(fake, sizeof(fake), "/tmp/cowstat.XXXXXX");
	if (!mkdtemp(fake))
		return -errno;
	snprintf(path, sizeof(path), "%s/%d", fake, FAKE_PID);
	return mkdir(path, 0755) ? -errno : 0;
}

void fake_remove(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", fake, name);
	remove(path);
}

/* All at once, as the kernel does it: never a half-written file. */
void fake_put(const char *name, const void *text, size_t len)
{
	char path[256], new[300];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", fake, name);
	snprintf(new, sizeof(new), "%s.new", path);
	fd = open(new, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, text, len) != (ssize_t)len || close(fd) ||
	    rename(new, path))
		abort();
}

void fake_text(const char *name, const char *text)
{
	fake_put(name, text, strlen(text));
}

const char *fake_pid_file(const char *name)
{
	static char path[64];

	snprintf(path, sizeof(path), "%d/%s", FAKE_PID, name);
	return path;
}

void fake_end(void)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", fake);
	if (fake[0] && system(cmd))
		abort();
}

void fake_sysctl(const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/sys", fake);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/sys/vm", fake);
	mkdir(path, 0755);
	fake_text("sys/vm/cow_stats", value);
}

bool is_percentile(int key)
{
	return (key >= COW_P50_NS && key <= COW_P99_NS) ||
	       key == COW_FAULT_P50_NS || key == COW_FAULT_P99_NS;
}

/* What a cow_stats file says, as text */
char *counts_text(const struct cow_stats *s, bool pid)
{
	static char text[4096];
	int i, len = 0;

	for (i = 0; i < COW_NR_KEYS; i++) {
		if (pid ? is_percentile(i) : i >= COW_NR_SYSTEM_KEYS)
			continue;
		len += snprintf(text + len, sizeof(text) - len, "%s: %llu\n",
				cow_key_names[i], s->v[i]);
	}
	return text;
}

void fake_counts(const struct cow_stats *s)
{
	fake_text("cow_stats", counts_text(s, false));
}

void fake_pid_counts(const struct cow_stats *s)
{
	fake_text(fake_pid_file("cow_stats"), counts_text(s, true));
}

const char *vmstat_text(unsigned long pgfault, unsigned long pgreuse)
{
	static char text[256];

	snprintf(text, sizeof(text),
		 "nr_free_pages 7\npgfault %lu\npgmajfault 5\npgreuse %lu\ncow_ksm 3\npgfault_x 9\n",
		 pgfault, pgreuse);
	return text;
}

void fake_vmstat(unsigned long pgfault, unsigned long pgreuse)
{
	fake_text("vmstat", vmstat_text(pgfault, pgreuse));
}

/*
 * A gate: vmstat, which each sample reads first, after it has taken the time, is
 * a FIFO. So a sample waits there until the test lets it go on: what the other
 * files say by then is what it reads.
 */

void gate_begin(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/vmstat", fake);
	remove(path);
	if (mkfifo(path, 0600))
		abort();
}

/* Wait until cowstat has begun a sample. -ESRCH if it has ended */
int gate_enter(void)
{
	siginfo_t info = {};
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/vmstat", fake);
	for (;;) {
		fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0)
			return fd;
		if (errno != ENXIO)
			return -errno;
		if (waitid(P_PID, run.pid, &info, WEXITED | WNOHANG | WNOWAIT))
			return -errno;
		if (info.si_pid)
			return -ESRCH;
		usleep(1000);
	}
}

/* Let the sample read this vmstat and all else; return its (first) line. */
char *gate_leave(int fd, const char *vmstat)
{
	ssize_t len = strlen(vmstat);

	if (fd < 0 || write(fd, vmstat, len) != len)
		return NULL;
	close(fd);
	return next_line();
}

/* One sample: its (first) line, or NULL */
char *gate_step(const char *vmstat)
{
	return gate_leave(gate_enter(), vmstat);
}

/* A name with all that could lead a parser astray */
void fake_stat(char state, unsigned long flags, unsigned long minflt,
	       unsigned long start)
{
	char text[256];

	snprintf(text, sizeof(text),
		 "%d (a) R 1 (b) %c 1 1 1 0 -1 %lu %lu 6 0 0 1 2 3 4 20 0 1 0 %lu 1 1 1\n",
		 FAKE_PID, state, flags, minflt, start);
	fake_text(fake_pid_file("stat"), text);
}

/* A process of this name that has counted this */
void fake_process(pid_t pid, const char *name, const struct cow_stats *s)
{
	char path[160], text[256];

	snprintf(path, sizeof(path), "%s/%d", fake, pid);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%d/stat", pid);
	snprintf(text, sizeof(text),
		 "%d (%s) S 1 1 1 0 -1 0 50 6 0 0 1 2 3 4 20 0 1 0 777 1 1 1\n",
		 pid, name);
	fake_text(path, text);
	snprintf(path, sizeof(path), "%d/cow_stats", pid);
	fake_text(path, counts_text(s, true));
	/* Last: cowstat -C looks for it. */
	snprintf(path, sizeof(path), "%d/comm", pid);
	snprintf(text, sizeof(text), "%s\n", name);
	fake_text(path, text);
}

/* Counters that differ from each other, by the multiple of a base */
void make_counts(struct cow_stats *s, unsigned long long base)
{
	int i;

	memset(s, 0, sizeof(*s));
	for (i = 0; i < COW_NR_KEYS; i++)
		s->v[i] = base * (i + 1);
	for (i = COW_FIRST_SKIP; i < COW_NR_SYSTEM_KEYS; i++)
		s->skips += s->v[i];
	/* Time is spent in faults; copying is a part of it. */
	s->v[COW_FAULT_TOTAL_NS] = 4 * s->v[COW_TOTAL_NS];
	s->v[COW_MIN_NS] = 100;
	s->precopy = true;
}

void fake_two_processes(struct cow_stats *a, struct cow_stats *b)
{
	make_counts(a, 10);
	make_counts(b, 35);
	fake_counts(a);
	fake_vmstat(1005, 100);
	fake_sysctl("1\n");
	fake_text("cow_histogram", "copy 5 5 10\nfault 64 65 20\n");
	fake_process(FAKE_PID, "small", a);
	fake_process(OTHER_PID, "large one", b);
}

/*
 * Running cowstat
 */

struct run run;

const char *tested_tool = "cowstat";

char *own_path(void)
{
	static char path[PATH_MAX];
	ssize_t len;

	len = readlink("/proc/self/exe", path, sizeof(path) - 32);
	if (len < 0)
		abort();
	path[len] = '\0';
	return path;
}

/* The tool is where the test is. */
static int tool_fd(void)
{
	char *path = own_path();

	strcpy(strrchr(path, '/') + 1, tested_tool);
	return open(path, O_RDONLY | O_CLOEXEC);
}

void start_prepared(int where, prepare_fn prepare, const char **argv)
{
	int fd = tool_fd(), ends[2] = { -1, -1 };

	memset(&run, 0, sizeof(run));
	run.line = run.text;
	run.err = memfd_create("stderr", MFD_CLOEXEC);
	run.out = memfd_create("stdout", MFD_CLOEXEC);
	if (where == TO_PIPE && pipe2(ends, O_CLOEXEC))
		abort();
	run.pid = fork();
	if (!run.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(where == TO_PIPE ? ends[1] : run.out, STDOUT_FILENO);
		dup2(run.err, STDERR_FILENO);
		if (!prepare || prepare())
			syscall(SYS_execveat, fd, "", argv, environ,
				AT_EMPTY_PATH);
		_exit(99);
	}
	close(fd);
	if (where == TO_PIPE) {
		close(ends[1]);
		close(run.out);
		run.out = ends[0];
	}
}

static void slurp(int fd, char *buf, size_t size)
{
	ssize_t n = pread(fd, buf, size - 1, 0);

	buf[n < 0 ? 0 : n] = '\0';
}

/*
 * One more line of the pipe, without its newline, valid until the next call;
 * NULL at the end. A cowstat that hangs is ended with the test (TEST_TIMEOUT).
 */
char *next_line(void)
{
	char *end;
	ssize_t n;

	run.len -= run.line - run.text;
	memmove(run.text, run.line, run.len + 1);
	run.line = run.text;
	while (!(end = strchr(run.text, '\n'))) {
		n = read(run.out, run.text + run.len,
			 sizeof(run.text) - 1 - run.len);
		if (n <= 0)
			return NULL;
		run.len += n;
		run.text[run.len] = '\0';
	}
	*end = '\0';
	run.line = end + 1;
	return run.text;
}

/* Send it a signal, if any, and wait for its end. */
void finish(int sig)
{
	int status;

	if (sig)
		kill(run.pid, sig);
	if (waitpid(run.pid, &status, 0) != run.pid)
		abort();
	run.status = WIFSIGNALED(status) ? 256 + WTERMSIG(status) :
					   WEXITSTATUS(status);
	if (!run.len)
		slurp(run.out, run.text, sizeof(run.text));
	slurp(run.err, run.errors, sizeof(run.errors));
	close(run.out);
	close(run.err);
}

static void collect(const char **argv, const char *first, va_list ap)
{
	int i = 0;

	argv[i++] = tested_tool;
	for (; first && i < MAX_ARGS - 1; first = va_arg(ap, const char *))
		argv[i++] = first;
	argv[i] = NULL;
}

/* cowstat with these arguments up to NULL, in the background */
void start(const char *first, ...)
{
	const char *argv[MAX_ARGS];
	va_list ap;

	va_start(ap, first);
	collect(argv, first, ap);
	va_end(ap);
	start_prepared(TO_PIPE, NULL, argv);
}

/* Run cowstat to its end; returns the exit status. */
int cowstat(const char *first, ...)
{
	const char *argv[MAX_ARGS];
	va_list ap;

	va_start(ap, first);
	collect(argv, first, ap);
	va_end(ap);
	start_prepared(TO_FILE, NULL, argv);
	finish(0);
	return run.status;
}

bool become_nobody(void)
{
	return !setgroups(0, NULL) && !setresgid(NOBODY, NOBODY, NOBODY) &&
	       !setresuid(NOBODY, NOBODY, NOBODY);
}

int cowstat_prepared(prepare_fn prepare, const char *first, ...)
{
	const char *argv[MAX_ARGS];
	va_list ap;

	va_start(ap, first);
	collect(argv, first, ap);
	va_end(ap);
	start_prepared(TO_FILE, prepare, argv);
	finish(0);
	return run.status;
}

int lines_of(const char *text)
{
	int nr = 0;

	while ((text = strchr(text, '\n'))) {
		text++;
		nr++;
	}
	return nr;
}

size_t widest(const char *text)
{
	size_t max = 0;

	for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
		if (strcspn(text, "\n") > max)
			max = strcspn(text, "\n");
	return max;
}

/* How often does one occur in the other? */
int count_of(const char *text, const char *what)
{
	int nr = 0;

	while ((text = strstr(text, what))) {
		text += strlen(what);
		nr++;
	}
	return nr;
}

/* The value in the column of that name, in the nth row, counted from 0 */
const char *column(const char *text, int line, const char *name)
{
	static char word[32];
	const char *header = strstr(text, " seconds ");
	int at = 0, i;

	if (!header)
		return "";
	for (; sscanf(header, "%31s", word) == 1; at++) {
		header = strstr(header, word) + strlen(word);
		if (!strcmp(word, name))
			break;
		if (*header == '\n')
			return "";
	}
	header = strchr(header, '\n');
	for (i = 0; header && i < line; i++)
		header = strchr(header + 1, '\n');
	for (i = 0; header && i <= at; i++) {
		if (sscanf(header, "%31s", word) != 1)
			return "";
		header = strstr(header, word) + strlen(word);
	}
	return word;
}

/*
 * JSON, strictly, as far as it is used: one object of words and numbers
 */

#define MAX_KEYS	80

static struct {
	int nr;
	struct {
		char key[40];
		char text[32];
	} item[MAX_KEYS];
} json;

static const char *json_number(const char *p)
{
	p += *p == '-';
	if (*p == '0')
		p++;
	else if (*p >= '1' && *p <= '9')
		p += strspn(p, "0123456789");
	else
		return NULL;
	if (*p == '.') {
		size_t digits = strspn(p + 1, "0123456789");

		if (!digits)
			return NULL;
		p += 1 + digits;
	}
	return p;
}

static const char *json_string(const char *p)
{
	for (p++; *p != '"'; p++)
		if ((unsigned char)*p < ' ' || (*p == '\\' && !*++p))
			return NULL;
	return p + 1;
}

static const char *json_value(const char *p)
{
	static const char * const words[] = { "null", "true", "false" };
	size_t i;

	if (*p == '"')
		return json_string(p);
	for (i = 0; i < ARRAY_SIZE(words); i++)
		if (!strncmp(p, words[i], strlen(words[i])))
			return p + strlen(words[i]);
	return json_number(p);
}

bool json_parse(const char *p)
{
	int i;

	json.nr = 0;
	if (!p || *p++ != '{')
		return false;
	do {
		size_t len;
		const char *end;

		if (json.nr == MAX_KEYS || *p++ != '"')
			return false;
		len = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_");
		if (!len || len >= sizeof(json.item[0].key) || p[len] != '"' ||
		    p[len + 1] != ':')
			return false;
		snprintf(json.item[json.nr].key, len + 1, "%s", p);
		for (i = 0; i < json.nr; i++)
			if (!strcmp(json.item[i].key, json.item[json.nr].key))
				return false;
		p += len + 2;
		end = json_value(p);
		if (!end || end - p >= (long)sizeof(json.item[0].text))
			return false;
		snprintf(json.item[json.nr].text, end - p + 1, "%s", p);
		json.nr++;
		p = end;
	} while (*p++ == ',');
	return p[-1] == '}' && (!*p || !strcmp(p, "\n"));
}

/* The value as text; "" if there is no such key */
const char *json_text(const char *key)
{
	int i;

	for (i = 0; i < json.nr; i++)
		if (!strcmp(json.item[i].key, key))
			return json.item[i].text;
	return "";
}

bool json_null(const char *key)
{
	return !strcmp(json_text(key), "null");
}

unsigned long long json_ull(const char *key)
{
	return strtoull(json_text(key), NULL, 10);
}

double json_double(const char *key)
{
	return strtod(json_text(key), NULL);
}

/* Equal within the nine decimals that are printed */
bool about(double a, double b)
{
	double off = a > b ? a - b : b - a;

	return off <= 1e-8 + 1e-6 * b;
}

/* The next line whose key is not zero; NULL at the end */
char *line_with(const char *key)
{
	char *line;

	for (;;) {
		line = next_line();
		if (!line || !json_parse(line))
			return NULL;
		if (!json_null(key) && json_ull(key))
			return line;
	}
}

/* The next line that says reset; NULL at the end */
char *line_with_reset(void)
{
	char *line;

	for (;;) {
		line = next_line();
		if (!line || !json_parse(line))
			return NULL;
		if (!strcmp(json_text("reset"), "true"))
			return line;
	}
}

bool to_full_disk(void)
{
	return dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO) >= 0;
}

bool to_nobody(void)
{
	int ends[2];

	signal(SIGPIPE, SIG_DFL);
	return !pipe(ends) && dup2(ends[1], STDOUT_FILENO) >= 0 &&
	       !close(ends[0]);
}
