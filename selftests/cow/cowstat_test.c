// SPDX-License-Identifier: GPL-2.0
/*
 * cow_stats.c and cowstat
 *
 * The parsers and the histogram on text that is made for it. Then cowstat, the
 * program, on a folder of files that takes the place of /proc, where each number
 * is known and a reset, an exit or a missing file happens when it should; and
 * on the running kernel, where what it prints must be what the watched processes
 * say of themselves, to the last fault.
 *
 * With COW_ANY_KERNEL in the environment, what needs no kernel with the feature
 * is run without it as well.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#ifndef ARRAY_SIZE
#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))
#endif

#define NOBODY		65534
#define FAKE_PID	4000000
#define MAX_ARGS	16
#define PATIENCE_MS	20000

/* Percentiles are documented as within 1.6 %; 3 % is what a user may rely on. */
#define BOUND		0.016

static const char *no_kernel(void)
{
	return getenv("COW_ANY_KERNEL") ? NULL : cow_missing();
}

/*
 * The folder that takes the place of /proc
 */

static char fake[64];

static int fake_begin(void)
{
	char path[128];

	snprintf(fake, sizeof(fake), "/tmp/cowstat.XXXXXX");
	if (!mkdtemp(fake))
		return -errno;
	snprintf(path, sizeof(path), "%s/%d", fake, FAKE_PID);
	return mkdir(path, 0755) ? -errno : 0;
}

static void fake_remove(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", fake, name);
	remove(path);
}

/* All at once, as the kernel does it: never a half-written file. */
static void fake_put(const char *name, const void *text, size_t len)
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

static void fake_text(const char *name, const char *text)
{
	fake_put(name, text, strlen(text));
}

static const char *fake_pid_file(const char *name)
{
	static char path[64];

	snprintf(path, sizeof(path), "%d/%s", FAKE_PID, name);
	return path;
}

static void fake_end(void)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", fake);
	if (fake[0] && system(cmd))
		abort();
}

static void fake_sysctl(const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/sys", fake);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/sys/vm", fake);
	mkdir(path, 0755);
	fake_text("sys/vm/cow_stats", value);
}

static bool is_percentile(int key)
{
	return (key >= COW_P50_NS && key <= COW_P99_NS) ||
	       key == COW_FAULT_P50_NS || key == COW_FAULT_P99_NS;
}

/* What a file has to say, as text. */
static char *counts_text(const struct cow_stats *s, bool pid)
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

static void fake_counts(const struct cow_stats *s)
{
	fake_text("cow_stats", counts_text(s, false));
}

static void fake_pid_counts(const struct cow_stats *s)
{
	fake_text(fake_pid_file("cow_stats"), counts_text(s, true));
}

static void fake_vmstat(unsigned long pgfault, unsigned long pgreuse)
{
	char text[256];

	snprintf(text, sizeof(text),
		 "nr_free_pages 7\npgfault %lu\npgmajfault 5\npgreuse %lu\ncow_ksm 3\npgfault_x 9\n",
		 pgfault, pgreuse);
	fake_text("vmstat", text);
}

/* A name with all that could lead a parser astray */
static void fake_stat(char state, unsigned long flags, unsigned long minflt,
		      unsigned long start)
{
	char text[256];

	snprintf(text, sizeof(text),
		 "%d (a) R 1 (b) %c 1 1 1 0 -1 %lu %lu 6 0 0 1 2 3 4 20 0 1 0 %lu 1 1 1\n",
		 FAKE_PID, state, flags, minflt, start);
	fake_text(fake_pid_file("stat"), text);
}

/* Counters that differ from each other, by the multiple of a base */
static void make_counts(struct cow_stats *s, unsigned long long base)
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

/*
 * Running cowstat
 */

struct run {
	pid_t pid;
	int out;		/* standard output: file or pipe */
	int err;		/* standard error: file */
	int status;		/* exit status, or 256 + signal */
	char text[65536];	/* what has come on standard output, */
	size_t len;
	char errors[8192];	/* and on standard error */
	char *line;		/* the next one of the pipe */
};

static struct run run;

static char *own_path(void)
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

	strcpy(strrchr(path, '/') + 1, "cowstat");
	return open(path, O_RDONLY | O_CLOEXEC);
}

enum { TO_FILE, TO_PIPE };

/* What to do in the child before exec; false to give up */
typedef bool (*prepare_fn)(void);

static void start_prepared(int where, prepare_fn prepare, const char **argv)
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

/* One more line of the pipe, without its newline; NULL at the end */
static char *next_line(void)
{
	char *line = run.line, *end;

	while (!(end = strchr(line, '\n'))) {
		struct pollfd pfd = { .fd = run.out, .events = POLLIN };
		ssize_t n;

		if (poll(&pfd, 1, PATIENCE_MS) != 1)
			return NULL;
		n = read(run.out, run.text + run.len,
			 sizeof(run.text) - 1 - run.len);
		if (n <= 0)
			return NULL;
		run.len += n;
	}
	*end = '\0';
	run.line = end + 1;
	return line;
}

/* Send it a signal, if any, and wait for its end; it has to be soon. */
static void finish(int sig)
{
	int status, i;
	pid_t pid = 0;

	if (sig)
		kill(run.pid, sig);
	for (i = 0; !pid && i < PATIENCE_MS; i++) {
		pid = waitpid(run.pid, &status, WNOHANG);
		if (!pid)
			usleep(1000);
	}
	if (!pid) {
		kill(run.pid, SIGKILL);
		pid = waitpid(run.pid, &status, 0);
	}
	if (pid != run.pid)
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

	argv[i++] = "cowstat";
	for (; first && i < MAX_ARGS - 1; first = va_arg(ap, const char *))
		argv[i++] = first;
	argv[i] = NULL;
}

/* cowstat with these arguments up to NULL, in the background */
static void start(const char *first, ...)
{
	const char *argv[MAX_ARGS];
	va_list ap;

	va_start(ap, first);
	collect(argv, first, ap);
	va_end(ap);
	start_prepared(TO_PIPE, NULL, argv);
}

/* to its end; returns the exit status */
static int cowstat(const char *first, ...)
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

static bool become_nobody(void)
{
	return !setgroups(0, NULL) && !setresgid(NOBODY, NOBODY, NOBODY) &&
	       !setresuid(NOBODY, NOBODY, NOBODY);
}

static int cowstat_prepared(prepare_fn prepare, const char *first, ...)
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

static int lines_of(const char *text)
{
	int nr = 0;

	while ((text = strchr(text, '\n'))) {
		text++;
		nr++;
	}
	return nr;
}

/* How often does one occur in the other? */
static int count_of(const char *text, const char *what)
{
	int nr = 0;

	while ((text = strstr(text, what))) {
		text += strlen(what);
		nr++;
	}
	return nr;
}

/* The last but nth column of the nth line, counted from 0 */
static const char *column(const char *text, int line, const char *name)
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

static const char *json_value(const char *p)
{
	static const char * const words[] = { "null", "true", "false" };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(words); i++)
		if (!strncmp(p, words[i], strlen(words[i])))
			return p + strlen(words[i]);
	return json_number(p);
}

static bool json_parse(const char *p)
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
static const char *json_text(const char *key)
{
	int i;

	for (i = 0; i < json.nr; i++)
		if (!strcmp(json.item[i].key, key))
			return json.item[i].text;
	return "";
}

static bool json_null(const char *key)
{
	return !strcmp(json_text(key), "null");
}

static unsigned long long json_ull(const char *key)
{
	return strtoull(json_text(key), NULL, 10);
}

static double json_double(const char *key)
{
	return strtod(json_text(key), NULL);
}

/* To the nine decimals that are printed of each */
static bool about(double a, double b)
{
	double off = a > b ? a - b : b - a;

	return off <= 1e-8 + 1e-6 * b;
}

/*
 * cow_stats.c: counters
 */

FIXTURE(counters)
{
	struct cow_stats s;
};

FIXTURE_SETUP(counters)
{
	const char *reason = no_kernel();

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(fake_begin(), 0);
	cow_proc = fake;
	make_counts(&self->s, 7);
}

FIXTURE_TEARDOWN(counters)
{
	fake_end();
}

TEST_F_TIMEOUT(counters, read, TEST_TIMEOUT)
{
	struct cow_stats s;
	int i;

	self->s.v[COW_TOTAL_NS] = ULLONG_MAX;
	self->s.v[COW_SKIP_RACE] = 0;
	self->s.skips -= 7 * (COW_SKIP_RACE + 1);
	fake_counts(&self->s);
	memset(&s, 0xff, sizeof(s));
	ASSERT_EQ(cow_stats_read(&s), 0);
	for (i = 0; i < COW_NR_SYSTEM_KEYS; i++) {
		EXPECT_EQ(s.v[i], self->s.v[i])
			TH_LOG("%s", cow_key_names[i]);
	}
	for (; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(s.v[i], 0ULL)
			TH_LOG("%s", cow_key_names[i]);
	}
	EXPECT_EQ(s.skips, self->s.skips);
	EXPECT_TRUE(s.precopy);
}

TEST_F_TIMEOUT(counters, read_pid, TEST_TIMEOUT)
{
	struct cow_stats s;
	char path[128];
	int i;

	fake_pid_counts(&self->s);
	ASSERT_EQ(cow_stats_read_pid(&s, FAKE_PID), 0);
	for (i = 0; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(s.v[i], is_percentile(i) ? 0 : self->s.v[i])
			TH_LOG("%s", cow_key_names[i]);
	}
	EXPECT_EQ(s.skips, self->s.skips);

	/* 0 is the caller. */
	EXPECT_EQ(cow_stats_read_pid(&s, 0), -ENOENT);
	snprintf(path, sizeof(path), "%s/self", fake);
	ASSERT_EQ(mkdir(path, 0755), 0);
	fake_text("self/cow_stats", counts_text(&self->s, true));
	EXPECT_EQ(cow_stats_read_pid(&s, 0), 0);
	EXPECT_EQ(s.v[COW_CHILDREN_FAULTS], self->s.v[COW_CHILDREN_FAULTS]);

	EXPECT_EQ(cow_stats_read_pid(&s, FAKE_PID + 1), -ENOENT);
	EXPECT_EQ(cow_stats_read(&s), -ENOENT);
	/* No address space: a zombie, a kernel thread */
	fake_text(fake_pid_file("cow_stats"), "");
	EXPECT_EQ(cow_stats_read_pid(&s, FAKE_PID), -ENODATA);
	/* A file of the one kind is not one of the other. */
	fake_text("cow_stats", counts_text(&self->s, true));
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
	fake_pid_counts(&self->s);
	fake_text(fake_pid_file("cow_stats"), counts_text(&self->s, false));
	EXPECT_EQ(cow_stats_read_pid(&s, FAKE_PID), -EPROTO);
}

/* The text with one line of it replaced */
static void put_with(const char *text, const char *line, const char *instead)
{
	char buf[8192];
	const char *at = strstr(text, line);

	if (!at)
		abort();
	snprintf(buf, sizeof(buf), "%.*s%s%s", (int)(at - text), text, instead,
		 at + strlen(line));
	fake_text("cow_stats", buf);
}

TEST_F_TIMEOUT(counters, malformed, TEST_TIMEOUT)
{
	static const char * const instead[] = {
		"", "\n", "reused\n", "reused:\n", "reused: \n", "reused:14\n",
		"reused 14\n", "reused: -14\n", "reused: +14\n",
		"reused:  14\n", "reused: 14 \n", "reused: 14\t\n",
		"reused: 0x14\n", "reused: 14.0\n", "reused: 1 4\n",
		"reused: 14\r\n", "reused: fourteen\n", ": 14\n",
		"reused: 18446744073709551616\n",
		"reused: 99999999999999999999999999\n",
		"reused: 14\nreused: 14\n", "Reused: 14\n", "reused_: 14\n",
	};
	char text[8192], longer[6000];
	struct cow_stats s;
	size_t i, len;

	snprintf(text, sizeof(text), "%s", counts_text(&self->s, false));
	for (i = 0; i < ARRAY_SIZE(instead); i++) {
		put_with(text, "reused: 14\n", instead[i]);
		EXPECT_EQ(cow_stats_read(&s), -EPROTO)
			TH_LOG("'%s'", instead[i]);
	}
	/* The largest number there is */
	put_with(text, "reused: 14\n", "reused: 18446744073709551615\n");
	EXPECT_EQ(cow_stats_read(&s), 0);
	EXPECT_EQ(s.v[COW_REUSED], ULLONG_MAX);

	/*
	 * Cut off anywhere; without the last newline, too. Only before the
	 * first precopy_* it could be the file of a kernel without pre-copy.
	 */
	len = strlen(text);
	for (i = 0; i < len; i++) {
		if (!strncmp(text + i, "precopy_attempts", 16))
			continue;
		fake_put("cow_stats", text, i);
		ASSERT_EQ(cow_stats_read(&s), -EPROTO)
			TH_LOG("%zu of %zu bytes", i, len);
	}
	/* A NUL, behind a number too */
	text[3] = '\0';
	fake_put("cow_stats", text, len);
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
	text[3] = 'l';
	fake_put("cow_stats", text, len);
	EXPECT_EQ(cow_stats_read(&s), 0);
	snprintf(longer, sizeof(longer), "new: 1_\n%s", text);
	longer[6] = '\0';
	fake_put("cow_stats", longer, len + 8);
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
	longer[6] = '1';
	fake_put("cow_stats", longer, len + 8);
	EXPECT_EQ(cow_stats_read(&s), 0);
	/* A line without an end */
	memset(longer, 'x', sizeof(longer));
	fake_put("cow_stats", longer, sizeof(longer));
	EXPECT_EQ(cow_stats_read(&s), -EPROTO);
}

/* Later kernels may count more. */
TEST_F_TIMEOUT(counters, unknown_keys, TEST_TIMEOUT)
{
	struct cow_stats s;

	put_with(counts_text(&self->s, false), "reused: 14\n",
		 "new: 5\nreused: 14\nprecopy_skip_new: 100\n");
	ASSERT_EQ(cow_stats_read(&s), 0);
	EXPECT_EQ(s.v[COW_REUSED], 14ULL);
	EXPECT_EQ(s.skips, self->s.skips + 100);
}

/* CONFIG_COW_STATS without CONFIG_COW_PRECOPY */
TEST_F_TIMEOUT(counters, without_precopy, TEST_TIMEOUT)
{
	char *text = counts_text(&self->s, false);
	struct cow_stats s;

	*strstr(text, "precopy_attempts") = '\0';
	fake_text("cow_stats", text);
	ASSERT_EQ(cow_stats_read(&s), 0);
	EXPECT_FALSE(s.precopy);
	EXPECT_EQ(s.v[COW_FAULTS], 7ULL);
	EXPECT_EQ(s.v[COW_SUCCESS], 0ULL);
	EXPECT_EQ(s.skips, 0ULL);
}

TEST_F_TIMEOUT(counters, delta, TEST_TIMEOUT)
{
	struct cow_stats before, after, d;
	int i;

	make_counts(&before, 10);
	make_counts(&after, 25);
	cow_stats_delta(&d, &before, &after);
	for (i = 0; i < COW_NR_KEYS; i++) {
		unsigned long long want = after.v[i] - before.v[i];

		if (is_percentile(i) || i == COW_MIN_NS || i == COW_MAX_NS)
			want = 0;
		if (i == COW_AVG_NS)
			want = (after.v[COW_TOTAL_NS] - before.v[COW_TOTAL_NS]) /
			       (after.v[COW_FAULTS] - before.v[COW_FAULTS]);
		EXPECT_EQ(d.v[i], want)
			TH_LOG("%s", cow_key_names[i]);
	}
	EXPECT_EQ(d.skips, after.skips - before.skips);
	/* Nothing happened: nothing to divide by */
	cow_stats_delta(&d, &after, &after);
	for (i = 0; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(d.v[i], 0ULL);
	}
}

TEST_F_TIMEOUT(counters, restarted, TEST_TIMEOUT)
{
	struct cow_stats before, after;
	int i;

	make_counts(&before, 10);
	make_counts(&after, 25);
	EXPECT_FALSE(cow_stats_restarted(&before, &after));
	EXPECT_FALSE(cow_stats_restarted(&before, &before));
	EXPECT_TRUE(cow_stats_restarted(&after, &before));
	for (i = 0; i < COW_NR_KEYS; i++) {
		after = before;
		after.v[i]--;
		/* These go up and down. */
		EXPECT_EQ(cow_stats_restarted(&before, &after),
			  !is_percentile(i) && i != COW_AVG_NS &&
			  i != COW_MIN_NS)
			TH_LOG("%s", cow_key_names[i]);
	}
	/* The shortest gets longer: only if it is another one's shortest */
	after = before;
	after.v[COW_MIN_NS]++;
	EXPECT_TRUE(cow_stats_restarted(&before, &after));
	after.v[COW_MIN_NS] = 0;
	EXPECT_TRUE(cow_stats_restarted(&before, &after));
	before.v[COW_MIN_NS] = 0;
	after.v[COW_MIN_NS] = 5;
	EXPECT_FALSE(cow_stats_restarted(&before, &after));
	after = before;
	after.skips--;
	EXPECT_TRUE(cow_stats_restarted(&before, &after));
}

/*
 * cow_stats.c: histograms
 */

static int compare_u64(const void *a, const void *b)
{
	__u64 x = *(const __u64 *)a, y = *(const __u64 *)b;

	return x < y ? -1 : x > y;
}

/* By nearest rank, percent in thousandths, in integers */
static __u64 reference(const __u64 *sorted, __u64 nr, unsigned int thousandths)
{
	__u64 rank = (nr * thousandths + 99999) / 100000;

	return sorted[rank ? rank - 1 : 0];
}

static bool within_bound(__u64 got, __u64 want)
{
	double off = got > want ? got - want : want - got;

	return off <= BOUND * want;
}

TEST_F_TIMEOUT(counters, percentiles, TEST_TIMEOUT)
{
	static const unsigned int thousandths[] = {
		0, 1, 100, 1000, 25000, 33333, 50000, 66667, 90000, 95000,
		99000, 99900, 99990, 99999, 100000,
	};
	static const int sizes[] = { 1, 2, 3, 10, 99, 100, 101, 1000, 4096 };
	static __u64 ns[4096];
	static struct cow_hist h;
	__u64 seed = 1;
	size_t i, j;
	int shift;

	EXPECT_EQ(cow_hist_percentile(&h, 50), 0ULL);
	EXPECT_EQ(cow_hist_total(&h), 0ULL);

	/* Each rank of 1000 by its own percent, none of which is a fraction of 2 */
	for (i = 1; i <= 1000; i++)
		h.count[i - 1] = 1;
	for (i = 1; i <= 1000; i++) {
		static struct cow_hist one;

		memset(&one, 0, sizeof(one));
		one.count[i - 1] = 1;
		ASSERT_EQ(cow_hist_percentile(&h, i / 10.0),
			  cow_hist_percentile(&one, 50))
			TH_LOG("P%g", i / 10.0);
	}

	/* Exact where all is small, then over ever more octaves */
	for (shift = 59; shift >= 28; shift -= 3) {
		for (i = 0; i < ARRAY_SIZE(sizes); i++) {
			int k, nr = sizes[i];

			memset(&h, 0, sizeof(h));
			for (k = 0; k < nr; k++) {
				ns[k] = cow_rand(&seed) >> shift;
				ns[k] >>= cow_rand(&seed) % 8;
				cow_hist_add(&h, ns[k]);
			}
			qsort(ns, nr, sizeof(ns[0]), compare_u64);
			ASSERT_EQ(cow_hist_total(&h), (__u64)nr);
			for (j = 0; j < ARRAY_SIZE(thousandths); j++) {
				double p = thousandths[j] / 1000.0;
				__u64 want = reference(ns, nr, thousandths[j]);
				__u64 got = cow_hist_percentile(&h, p);

				ASSERT_TRUE(within_bound(got, want))
					TH_LOG("P%g of %d: %llu instead of %llu",
					       p, nr, got, want);
			}
		}
	}
}

/* Every bucket's borders */
TEST_F_TIMEOUT(counters, buckets, TEST_TIMEOUT)
{
	static struct cow_hist h;
	__u64 ns, nr = 0;
	int shift, i;

	for (shift = 0; shift < COW_HIST_MAX_BITS; shift++) {
		for (i = -1; i <= 1; i++) {
			ns = ((__u64)1 << shift) + i;
			memset(&h, 0, sizeof(h));
			cow_hist_add(&h, ns);
			EXPECT_TRUE(within_bound(cow_hist_percentile(&h, 50), ns))
				TH_LOG("%llu", ns);
		}
	}
	/* What is too long is in the last one. */
	memset(&h, 0, sizeof(h));
	for (i = COW_HIST_MAX_BITS; i < 64; i++, nr++)
		cow_hist_add(&h, (__u64)1 << i);
	cow_hist_add(&h, ULLONG_MAX);
	EXPECT_EQ(h.count[COW_HIST_BUCKETS - 1], nr + 1);
	EXPECT_EQ(cow_hist_total(&h), nr + 1);
	EXPECT_TRUE(within_bound(cow_hist_percentile(&h, 100),
				 (__u64)1 << COW_HIST_MAX_BITS));
	/* Percents that make no sense */
	EXPECT_EQ(cow_hist_percentile(&h, -5), cow_hist_percentile(&h, 0));
	EXPECT_EQ(cow_hist_percentile(&h, 1000), cow_hist_percentile(&h, 100));
}

TEST_F_TIMEOUT(counters, hist_delta, TEST_TIMEOUT)
{
	static struct cow_hist before, after, d;

	cow_hist_add(&before, 10);
	cow_hist_add(&before, 1000);
	after = before;
	EXPECT_FALSE(cow_hist_restarted(&before, &after));
	cow_hist_add(&after, 20);
	cow_hist_add(&after, 20);
	EXPECT_FALSE(cow_hist_restarted(&before, &after));
	EXPECT_TRUE(cow_hist_restarted(&after, &before));
	cow_hist_delta(&d, &before, &after);
	EXPECT_EQ(cow_hist_total(&d), 2ULL);
	EXPECT_EQ(cow_hist_percentile(&d, 1), 20ULL);
	EXPECT_EQ(cow_hist_percentile(&d, 100), 20ULL);
}

TEST_F_TIMEOUT(counters, hist_read, TEST_TIMEOUT)
{
	static const char * const malformed[] = {
		"copy 5 5 1", "copy\n", "copy \n", "copy 5\n", "copy 5 5\n",
		"copy 5 5 \n", "copy 5 5 1 \n", "copy 5 5 1 1\n",
		"copy  5 5 1\n", "copy 5 5 -1\n", "copy 5 5 x\n",
		"copy 5 4 1\n", "copy 5 6 1\n",	/* two buckets */
		"copy 5 5 1\ncopy 5 5 1\n", "copy 6 6 1\ncopy 5 5 1\n",
		"fault 1000 2000 1\n", " copy 5 5 1\n", "\n",
		"copy 5 5 18446744073709551616\n",
	};
	static struct cow_hist copy, fault;
	static char text[200000];
	unsigned long long ns;
	size_t i;
	int len;

	EXPECT_EQ(cow_hist_read(&copy, &fault), -ENOENT);
	fake_text("cow_histogram", "");
	EXPECT_EQ(cow_hist_read(&copy, &fault), 0);
	EXPECT_EQ(cow_hist_total(&copy) + cow_hist_total(&fault), 0ULL);
	fake_text("cow_histogram",
		  "copy 5 5 2\ncopy 64 65 3\nother 1 9 7\nfault 3 3 4\n"
		  "fault 67645734912 68719476735 1\n");
	memset(&copy, 0xff, sizeof(copy));
	EXPECT_EQ(cow_hist_read(&copy, &fault), 0);
	EXPECT_EQ(cow_hist_total(&copy), 5ULL);
	EXPECT_EQ(cow_hist_percentile(&copy, 40), 5ULL);
	EXPECT_EQ(cow_hist_percentile(&copy, 41), 65ULL);
	EXPECT_EQ(cow_hist_total(&fault), 5ULL);
	EXPECT_EQ(fault.count[3], 4ULL);
	EXPECT_EQ(fault.count[COW_HIST_BUCKETS - 1], 1ULL);
	EXPECT_EQ(cow_hist_read(NULL, &fault), 0);
	EXPECT_EQ(cow_hist_read(&copy, NULL), 0);
	EXPECT_EQ(cow_hist_total(&copy), 5ULL);

	for (i = 0; i < ARRAY_SIZE(malformed); i++) {
		fake_text("cow_histogram", malformed[i]);
		EXPECT_EQ(cow_hist_read(&copy, &fault), -EPROTO)
			TH_LOG("'%s'", malformed[i]);
	}

	/* As large as it can be: every bucket of both */
	for (i = len = 0; i < 2; i++) {
		const char *name = i ? "fault" : "copy";
		int bucket;

		for (bucket = ns = 0; bucket < COW_HIST_BUCKETS; bucket++) {
			int octave = bucket >> COW_HIST_SHIFT;
			unsigned long long width = 1;

			if (octave > 1)
				width <<= octave - 1;
			len += snprintf(text + len, sizeof(text) - len,
					"%s %llu %llu %d\n", name, ns,
					ns + width - 1, bucket + 1);
			ns += width;
		}
	}
	fake_text("cow_histogram", text);
	ASSERT_EQ(cow_hist_read(&copy, &fault), 0);
	for (i = 0; i < COW_HIST_BUCKETS; i++) {
		ASSERT_EQ(copy.count[i], i + 1);
		ASSERT_EQ(fault.count[i], i + 1);
	}
}

/*
 * cowstat on the folder
 */

FIXTURE(cowstat)
{
	struct cow_stats a, b;
};

FIXTURE_SETUP(cowstat)
{
	const char *reason = no_kernel();

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(fake_begin(), 0);
	make_counts(&self->a, 10);
	make_counts(&self->b, 35);
	fake_counts(&self->a);
	fake_pid_counts(&self->a);
	fake_vmstat(1005, 100);
	fake_stat('S', 0, 50, 777);
	fake_sysctl("1\n");
	fake_text("cow_histogram", "copy 5 5 10\nfault 64 65 20\n");
}

FIXTURE_TEARDOWN(cowstat)
{
	fake_end();
}

static const int additive[] = {
	COW_FAULTS, COW_REUSED, COW_TOTAL_NS, COW_FAULT_TOTAL_NS, COW_ATTEMPTS,
	COW_SUCCESS, COW_REUSE_AHEAD, COW_SKIP_VMA, COW_SKIP_PMD,
	COW_SKIP_NOTPRESENT, COW_SKIP_WRITABLE, COW_SKIP_NOTANON,
	COW_SKIP_EXCLUSIVE, COW_SKIP_RACE, COW_SKIP_NOMEM, COW_SKIP_SPECIAL,
	COW_SKIP_MADVISE, COW_SKIP_UFFD, COW_SKIP_SOFTDIRTY, COW_SKIP_KSM,
	COW_SKIP_PINNED, COW_CHILDREN_FAULTS, COW_CHILDREN_REUSED,
	COW_CHILDREN_TOTAL_NS, COW_CHILDREN_FAULT_TOTAL_NS,
	COW_CHILDREN_SUCCESS, COW_CHILDREN_REUSE_AHEAD,
};

#define NR_ADDITIVE_SYSTEM	(ARRAY_SIZE(additive) - 6)

/*
 * The key whose value is wrong, or "": the JSON object has these counts, and
 * that of a process those of its children too.
 */
static const char *wrong_count(const struct cow_stats *want, bool pid)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(additive); i++) {
		const char *key = cow_key_names[additive[i]];

		if (i >= NR_ADDITIVE_SYSTEM && !pid) {
			if (!json_null(key))
				return key;
		} else if (json_null(key) || !*json_text(key) ||
			   json_ull(key) != want->v[additive[i]]) {
			return key;
		}
	}
	return "";
}

/* The first line is what the files say, without any change. */
TEST_F_TIMEOUT(cowstat, total, TEST_TIMEOUT)
{
	char pid[16];

	ASSERT_EQ(cowstat("--proc", fake, "-j", NULL), 0);
	EXPECT_STREQ(run.errors, "");
	ASSERT_EQ(lines_of(run.text), 1);
	ASSERT_TRUE(json_parse(run.text))
		TH_LOG("%s", run.text);
	EXPECT_STREQ(wrong_count(&self->a, false), "");
	EXPECT_TRUE(json_null("pid"));
	EXPECT_TRUE(json_null("seconds"));
	EXPECT_STREQ(json_text("reset"), "false");
	EXPECT_EQ(json_ull("minor_faults"), 1000ULL);
	EXPECT_EQ(json_ull("pgreuse"), 100ULL);
	EXPECT_EQ(json_ull("cow_ksm"), 3ULL);
	EXPECT_EQ(json_ull("p50_ns"), self->a.v[COW_P50_NS]);
	EXPECT_EQ(json_ull("p90_ns"), self->a.v[COW_P90_NS]);
	EXPECT_EQ(json_ull("p95_ns"), self->a.v[COW_P95_NS]);
	EXPECT_EQ(json_ull("p99_ns"), self->a.v[COW_P99_NS]);
	EXPECT_EQ(json_ull("fault_p50_ns"), self->a.v[COW_FAULT_P50_NS]);
	EXPECT_EQ(json_ull("fault_p99_ns"), self->a.v[COW_FAULT_P99_NS]);
	EXPECT_TRUE(json_null("faults_per_s"));
	EXPECT_TRUE(json_null("wall_share"));
	EXPECT_TRUE(about(json_double("copy_share"), 0.25));
	EXPECT_TRUE(about(json_double("skip_share"),
			  (double)self->a.skips / self->a.v[COW_ATTEMPTS]));

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	ASSERT_EQ(cowstat("--proc", fake, "-j", "-p", pid, NULL), 0);
	EXPECT_NE(strstr(run.errors,
			 "no percentiles: the kernel has them for the system"),
		  NULL);
	ASSERT_TRUE(json_parse(run.text))
		TH_LOG("%s", run.text);
	EXPECT_STREQ(wrong_count(&self->a, true), "");
	EXPECT_EQ(json_ull("pid"), (unsigned long long)FAKE_PID);
	EXPECT_EQ(json_ull("minor_faults"), 50ULL);
	EXPECT_EQ(json_ull("children_minor_faults"), 6ULL);
	EXPECT_TRUE(json_null("p50_ns"));

	/* The same as a table */
	ASSERT_EQ(cowstat("--proc", fake, NULL), 0);
	ASSERT_EQ(lines_of(run.text), 3);
	EXPECT_STREQ(column(run.text, 0, "seconds"), "total");
	EXPECT_STREQ(column(run.text, 0, "minor"), "1000");
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");
	EXPECT_STREQ(column(run.text, 0, "reused"), "20");
	EXPECT_STREQ(column(run.text, 0, "ahead"), "150");
	EXPECT_STREQ(column(run.text, 0, "reuse+"), "160");
	EXPECT_STREQ(column(run.text, 0, "copy%"), "25.0");
	EXPECT_STREQ(column(run.text, 0, "wall%"), "-");
	EXPECT_STREQ(column(run.text, 0, "p50"), "70");
	/* Only where copied is not known */
	EXPECT_STREQ(column(run.text, 0, "pgreuse"), "");
}

/* The next line until a key is not zero; NULL if it never is */
static char *line_with(const char *key)
{
	char *line;
	int i;

	for (i = 0; i < 200; i++) {
		line = next_line();
		if (!line || !json_parse(line))
			return NULL;
		if (!json_null(key) && json_ull(key))
			return line;
	}
	return NULL;
}

/* The next line that says reset */
static char *line_with_reset(void)
{
	char *line;
	int i;

	for (i = 0; i < 100; i++) {
		line = next_line();
		if (!line || !json_parse(line))
			return NULL;
		if (!strcmp(json_text("reset"), "true"))
			return line;
	}
	return NULL;
}

/* Rates are what was counted, by the seconds that it says; so are shares. */
TEST_F_TIMEOUT(cowstat, rates, TEST_TIMEOUT)
{
	struct cow_stats d;
	double seconds;

	cow_stats_delta(&d, &self->a, &self->b);
	start("--proc", fake, "-j", "0.1", NULL);
	ASSERT_TRUE(json_parse(next_line()));
	fake_vmstat(2505, 110);
	ASSERT_NE(line_with("minor_faults"), NULL);
	EXPECT_EQ(json_ull("minor_faults"), 1500ULL);
	EXPECT_EQ(json_ull("pgreuse"), 10ULL);
	seconds = json_double("seconds");
	EXPECT_GE(seconds, 0.09);
	EXPECT_TRUE(about(json_double("minor_faults_per_s"), 1500 / seconds));
	EXPECT_STREQ(json_text("faults"), "0");
	EXPECT_TRUE(json_null("copy_share"));

	fake_counts(&self->b);
	ASSERT_NE(line_with("faults"), NULL);
	EXPECT_STREQ(wrong_count(&d, false), "");
	seconds = json_double("seconds");
	EXPECT_TRUE(about(json_double("faults_per_s"),
			  d.v[COW_FAULTS] / seconds));
	EXPECT_TRUE(about(json_double("reused_per_s"),
			  d.v[COW_REUSED] / seconds));
	EXPECT_TRUE(about(json_double("precopy_success_per_s"),
			  d.v[COW_SUCCESS] / seconds));
	EXPECT_TRUE(about(json_double("reuse_ahead_per_s"),
			  d.v[COW_REUSE_AHEAD] / seconds));
	EXPECT_TRUE(about(json_double("copy_share"), 0.25));
	EXPECT_TRUE(about(json_double("skip_share"),
			  (double)d.skips / d.v[COW_ATTEMPTS]));
	EXPECT_TRUE(about(json_double("wall_share"),
			  d.v[COW_FAULT_TOTAL_NS] / 1e9 / seconds));
	/* Nothing in the histogram has changed. */
	EXPECT_TRUE(json_null("p50_ns"));

	/* Ten of 5 ns are of before; new are 90 of 7 and 10 of 64. */
	fake_text("cow_histogram",
		  "copy 5 5 10\ncopy 7 7 90\ncopy 64 65 10\nfault 64 65 21\n");
	ASSERT_NE(line_with("p50_ns"), NULL);
	EXPECT_EQ(json_ull("p50_ns"), 7ULL);
	EXPECT_EQ(json_ull("p90_ns"), 7ULL);
	EXPECT_EQ(json_ull("p95_ns"), 65ULL);
	EXPECT_EQ(json_ull("p99_ns"), 65ULL);
	EXPECT_EQ(json_ull("fault_p50_ns"), 65ULL);
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
	EXPECT_STREQ(run.errors, "");
}

/* The last sample is the next one's base, and a pause is a long interval. */
TEST_F_TIMEOUT(cowstat, pause, TEST_TIMEOUT)
{
	double seconds;

	start("--proc", fake, "-j", "0.05", NULL);
	ASSERT_TRUE(json_parse(next_line()));
	kill(run.pid, SIGSTOP);
	usleep(600 * 1000);
	fake_counts(&self->b);
	kill(run.pid, SIGCONT);
	ASSERT_NE(line_with("faults"), NULL);
	seconds = json_double("seconds");
	EXPECT_GE(seconds, 0.5);
	EXPECT_EQ(json_ull("faults"), 25ULL);
	EXPECT_TRUE(about(json_double("faults_per_s"), 25 / seconds));
	ASSERT_TRUE(json_parse(next_line()));
	/* Not one after the other for what was missed */
	EXPECT_GE(json_double("seconds"), 0.001);
	EXPECT_EQ(json_ull("faults"), 0ULL);
	finish(SIGTERM);
}

static const char *line_of(const char *text, int nr)
{
	static char line[512];

	while (nr-- && text)
		text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
	snprintf(line, sizeof(line), "%.*s",
		 text ? (int)strcspn(text, "\n") : 0, text ?: "");
	return line;
}

/* No difference is printed that is none, and no sum of what went before it. */
TEST_F_TIMEOUT(cowstat, reset, TEST_TIMEOUT)
{
	char pid[16], *line;
	int way, lines = 0;

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	for (way = 0; way < 3; way++) {
		struct cow_stats after;

		fake_counts(&self->b);
		fake_pid_counts(&self->b);
		fake_text("cow_histogram", "copy 5 5 10\n");
		if (way == 2)
			start("--proc", fake, "-j", "-p", pid, "0.05", NULL);
		else
			start("--proc", fake, "-j", "0.05", NULL);
		ASSERT_TRUE(json_parse(next_line()));
		if (way == 0)
			fake_counts(&self->a);
		else if (way == 1)
			fake_text("cow_histogram", "copy 5 5 9\n");
		else
			fake_pid_counts(&self->a);
		ASSERT_NE(line_with_reset(), NULL);
		EXPECT_TRUE(json_null("faults"));
		EXPECT_TRUE(json_null("total_ns"));
		EXPECT_TRUE(json_null("precopy_success"));
		EXPECT_TRUE(json_null("children_faults"));
		EXPECT_TRUE(json_null("faults_per_s"));
		EXPECT_TRUE(json_null("wall_share"));
		EXPECT_TRUE(json_null("skip_share"));
		EXPECT_TRUE(json_null("p50_ns"));
		/* These are not reset. */
		EXPECT_STREQ(json_text("minor_faults"), "0");

		/* What is counted from there on is right again. */
		after = way == 1 ? self->b : self->a;
		after.v[COW_FAULTS] += 3;
		fake_counts(&after);
		fake_pid_counts(&after);
		ASSERT_NE(line_with("faults"), NULL);
		EXPECT_EQ(json_ull("faults"), 3ULL);
		EXPECT_STREQ(json_text("reset"), "false");
		finish(SIGTERM);
	}

	/* As a table */
	fake_counts(&self->b);
	start("--proc", fake, "0.05", NULL);
	ASSERT_NE(next_line(), NULL);
	ASSERT_NE(next_line(), NULL);
	ASSERT_NE(next_line(), NULL);
	fake_counts(&self->a);
	do {
		line = next_line();
		ASSERT_NE(line, NULL);
		ASSERT_LT(lines++, 15);
	} while (!strstr(line, "reset"));
	EXPECT_EQ(strspn(line + strspn(line, " ") + 5, " -0"),
		  strlen(line + strspn(line, " ") + 5))
		TH_LOG("%s", line);
	finish(SIGTERM);
}

/* One reset is one, also if it falls between reading the one file and the other. */
TEST_F_TIMEOUT(cowstat, reset_between_files, TEST_TIMEOUT)
{
	const char *histogram = "copy 5 5 1\n";
	char fifo[128], path[128];
	int fd;

	fake_counts(&self->b);
	fake_text("cow_histogram", "copy 5 5 10\n");
	start("--proc", fake, "-j", "0.05", NULL);
	ASSERT_TRUE(json_parse(next_line()));

	/* Who opens a FIFO waits for the other end: the counts have been read. */
	snprintf(fifo, sizeof(fifo), "%s/fifo", fake);
	snprintf(path, sizeof(path), "%s/cow_histogram", fake);
	ASSERT_EQ(mkfifo(fifo, 0600), 0);
	ASSERT_EQ(rename(fifo, path), 0);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	ASSERT_GE(fd, 0);
	fake_counts(&self->a);
	fake_text("cow_histogram", histogram);
	ASSERT_EQ(write(fd, histogram, strlen(histogram)),
		  (ssize_t)strlen(histogram));
	close(fd);

	ASSERT_NE(line_with_reset(), NULL);
	ASSERT_TRUE(json_parse(next_line()));
	EXPECT_STREQ(json_text("reset"), "false");
	finish(SIGTERM);
}

/* The lines that are headers: which, and how many rows follow each of them */
static bool headers_every(const char *text, int rows)
{
	int nr = lines_of(text), i;

	for (i = 0; i < nr; i++) {
		int at = i % (rows + 2);
		const char *line = line_of(text, i);
		bool header = at == 1;

		if (!strncmp(line, " seconds ", 9) ^ header ||
		    !!strstr(line, "faults/s") ^ !at)
			return false;
	}
	return true;
}

/* A terminal of that height; its other side is returned in *slave. */
static int open_terminal(int height, int *slave)
{
	struct winsize size = { .ws_row = height, .ws_col = 200 };
	int pty = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	struct termios raw;

	if (pty < 0 || grantpt(pty) || unlockpt(pty))
		return -1;
	*slave = open(ptsname(pty), O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (*slave < 0 || tcgetattr(*slave, &raw))
		return -1;
	cfmakeraw(&raw);
	if (tcsetattr(*slave, TCSANOW, &raw) ||
	    ioctl(*slave, TIOCSWINSZ, &size))
		return -1;
	return pty;
}

static int terminal;

static bool to_terminal(void)
{
	return dup2(terminal, STDOUT_FILENO) >= 0;
}

TEST_F_TIMEOUT(cowstat, headers, TEST_TIMEOUT)
{
	static const int heights[] = { 10, 4, 40 };
	size_t i;

	/* What is no terminal is taken for one of 24 lines. */
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "50", NULL), 0);
	EXPECT_EQ(lines_of(run.text), 50 + 2 * 3);
	EXPECT_TRUE(headers_every(run.text, 21))
		TH_LOG("%s", run.text);
	ASSERT_EQ(cowstat("-n", "--proc", fake, "0.01", "50", NULL), 0);
	EXPECT_EQ(lines_of(run.text), 50 + 2);
	EXPECT_TRUE(headers_every(run.text, 50));
	ASSERT_EQ(cowstat("-j", "--proc", fake, "0.01", "50", NULL), 0);
	EXPECT_EQ(lines_of(run.text), 50);

	for (i = 0; i < ARRAY_SIZE(heights); i++) {
		static const char *argv[] = {
			"cowstat", "--proc", fake, "0.01", "50", NULL
		};
		int pty = open_terminal(heights[i], &terminal);
		int rows = heights[i] - 3;
		char text[32768];
		size_t len = 0;
		ssize_t n;

		if (pty < 0)
			SKIP(return, "no pseudoterminal: %s", strerror(errno));
		start_prepared(TO_FILE, to_terminal, argv);
		close(terminal);
		while (len < sizeof(text) - 1) {
			n = read(pty, text + len, sizeof(text) - 1 - len);
			if (n <= 0)
				break;
			len += n;
		}
		text[len] = '\0';
		close(pty);
		finish(0);
		EXPECT_EQ(run.status, 0);
		EXPECT_EQ(lines_of(text), 50 + 2 * ((50 + rows - 1) / rows));
		EXPECT_TRUE(headers_every(text, rows))
			TH_LOG("height %d:\n%s", heights[i], text);
	}
}

/* A kernel that has nothing of all this */
TEST_F_TIMEOUT(cowstat, stock_kernel, TEST_TIMEOUT)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	fake_remove("cow_stats");
	fake_remove(fake_pid_file("cow_stats"));
	fake_remove("cow_histogram");
	fake_remove("sys/vm/cow_stats");
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "5", NULL), 0);
	EXPECT_EQ(lines_of(run.text), 7);
	EXPECT_STREQ(line_of(run.text, 1), " seconds     minor   pgreuse      ksm");
	EXPECT_STREQ(column(run.text, 0, "minor"), "1000");
	EXPECT_STREQ(column(run.text, 0, "pgreuse"), "100");
	EXPECT_STREQ(column(run.text, 0, "ksm"), "3");
	EXPECT_STREQ(column(run.text, 4, "minor"), "0");
	/* Once, not for each line */
	EXPECT_STREQ(run.errors,
		     "cowstat: no copied, reused, ahead, times: kernel without CONFIG_COW_STATS\n");
	ASSERT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 0);
	EXPECT_STREQ(line_of(run.text, 1), " seconds     minor");
	EXPECT_STREQ(column(run.text, 0, "minor"), "50");
	EXPECT_STREQ(run.errors,
		     "cowstat: no copied, reused, ahead, times: kernel without CONFIG_COW_STATS\n");
	ASSERT_EQ(cowstat("--proc", fake, "-j", NULL), 0);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_EQ(json_ull("minor_faults"), 1000ULL);
	EXPECT_TRUE(json_null("faults"));
	EXPECT_TRUE(json_null("precopy_success"));
	EXPECT_TRUE(json_null("p50_ns"));
	ASSERT_EQ(cowstat("--proc", fake, "-j", "--", "true", NULL), 0);
	ASSERT_TRUE(json_parse(strchr(run.errors, '{')))
		TH_LOG("%s", run.errors);
	EXPECT_GT(json_ull("minor_faults"), 0ULL);
	EXPECT_TRUE(json_null("faults"));
	EXPECT_TRUE(json_null("precopy_success"));
	/* -e asks for what is not possible. */
	EXPECT_EQ(cowstat("--proc", fake, "-e", NULL), 2);
	EXPECT_STREQ(run.errors,
		     "cowstat: there is no vm.cow_stats to switch on: kernel without CONFIG_COW_STATS\n");
	/* Nothing at all */
	fake_remove("vmstat");
	EXPECT_EQ(cowstat("--proc", fake, NULL), 2);
	EXPECT_NE(strstr(run.errors, "neither cow_stats nor vmstat"), NULL);
}

/* A part of it is missing, or switched off. */
TEST_F_TIMEOUT(cowstat, parts, TEST_TIMEOUT)
{
	char pid[16], *text;
	int lines = 0;

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	fake_sysctl("0\n");
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "3", NULL), 0);
	EXPECT_STREQ(run.errors,
		     "cowstat: no copied, reused, times: vm.cow_stats is 0; as root: sysctl vm.cow_stats=1, or cowstat -e\n");
	EXPECT_STREQ(column(run.text, 0, "copied"), "");
	EXPECT_STREQ(column(run.text, 0, "copy%"), "");
	EXPECT_STREQ(column(run.text, 0, "p50"), "");
	EXPECT_STREQ(column(run.text, 0, "pgreuse"), "100");
	/* What is copied ahead is counted nevertheless. */
	EXPECT_STREQ(column(run.text, 0, "ahead"), "150");
	ASSERT_EQ(cowstat("--proc", fake, "-j", NULL), 0);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_TRUE(json_null("faults"));
	EXPECT_EQ(json_ull("precopy_success"), 150ULL);

	/* Switched on while it runs: the columns come. */
	start("--proc", fake, "0.05", NULL);
	ASSERT_NE(strstr(next_line(), "faults/s"), NULL);
	fake_sysctl("1\n");
	do {
		text = next_line();
		ASSERT_NE(text, NULL);
		/* Not with the header of the next screenful */
		ASSERT_LT(lines++, 15);
	} while (!strstr(text, "copied"));
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);

	text = counts_text(&self->a, false);
	*strstr(text, "precopy_attempts") = '\0';
	fake_text("cow_stats", text);
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "3", NULL), 0);
	EXPECT_STREQ(run.errors,
		     "cowstat: no pages ahead: kernel without CONFIG_COW_PRECOPY\n");
	EXPECT_STREQ(column(run.text, 0, "ahead"), "");
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");
	fake_counts(&self->a);

	fake_remove("cow_histogram");
	ASSERT_EQ(cowstat("--proc", fake, "0.01", "3", NULL), 0);
	EXPECT_EQ(count_of(run.errors, "no percentiles"), 1);
	EXPECT_STREQ(column(run.text, 0, "p50"), "");
	EXPECT_STREQ(column(run.text, 0, "copied"), "10");

	fake_remove(fake_pid_file("cow_stats"));
	ASSERT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 0);
	EXPECT_STREQ(run.errors,
		     "cowstat: this kernel counts for the system, not for each process: minor faults only\n");
	EXPECT_STREQ(column(run.text, 0, "minor"), "50");
}

TEST_F_TIMEOUT(cowstat, malformed, TEST_TIMEOUT)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	fake_text("cow_stats", "faults: many\n");
	EXPECT_EQ(cowstat("--proc", fake, NULL), 2);
	EXPECT_NE(strstr(run.errors, "malformed"), NULL);
	EXPECT_STREQ(run.text, "");
	fake_counts(&self->a);
	fake_text("cow_histogram", "copy 1 100 5\n");
	EXPECT_EQ(cowstat("--proc", fake, NULL), 2);
	EXPECT_NE(strstr(run.errors, "cow_histogram is malformed"), NULL);
	fake_text(fake_pid_file("cow_stats"), "faults: many\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "malformed"), NULL);
	fake_text(fake_pid_file("stat"), "1 (x\n");
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "stat is malformed"), NULL);
}

/* The process ends, or another one gets its number. */
TEST_F_TIMEOUT(cowstat, process_exits, TEST_TIMEOUT)
{
	char want[64], pid[16];
	int way;

	snprintf(pid, sizeof(pid), "%d", FAKE_PID);
	snprintf(want, sizeof(want), "cowstat: process %d has exited\n",
		 FAKE_PID);
	for (way = 0; way < 4; way++) {
		fake_stat('S', 0, 50, 777);
		fake_pid_counts(&self->a);
		start("--proc", fake, "-p", pid, "-j", "0.05", "40", NULL);
		ASSERT_TRUE(json_parse(next_line()));
		if (way == 0)
			fake_remove(fake_pid_file("stat"));
		else if (way == 1)
			fake_stat('Z', 0, 50, 777);
		else if (way == 2)
			fake_stat('S', 0, 50, 778);
		else
			fake_text(fake_pid_file("cow_stats"), "");
		while (next_line())
			;
		finish(0);
		EXPECT_EQ(run.status, 1)
			TH_LOG("way %d", way);
		EXPECT_NE(strstr(run.errors, want), NULL)
			TH_LOG("%s", run.errors);
	}
	/* It has exited before. */
	fake_stat('Z', 0, 50, 777);
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "it has exited, and its parent has not waited for it yet"),
		  NULL);
	fake_stat('S', 0x00200000, 50, 777);
	EXPECT_EQ(cowstat("--proc", fake, "-p", pid, NULL), 2);
	EXPECT_NE(strstr(run.errors, "is a kernel thread"), NULL);
}

static const struct bad {
	const char *argv[6];
	const char *says;
} bad[] = {
	{ { "0" }, "the interval has to be 0.01 to 31536000 seconds, not 0" },
	{ { "0.0" }, "the interval has to be" },
	{ { "0.001" }, "the interval has to be" },
	{ { "-1" }, "an interval cannot be negative" },
	{ { "--", "" }, "cannot run ''" },
	{ { "" }, "'' is not an interval in seconds" },
	{ { "." }, "'.' is not an interval in seconds" },
	{ { "1s" }, "'1s' is not an interval in seconds" },
	{ { " 1" }, "' 1' is not an interval in seconds" },
	{ { "1e2" }, "'1e2' is not an interval in seconds" },
	{ { "0x10" }, "'0x10' is not an interval in seconds" },
	{ { "inf" }, "'inf' is not an interval in seconds" },
	{ { "nan" }, "'nan' is not an interval in seconds" },
	{ { "1.2.3" }, "'1.2.3' is not an interval in seconds" },
	{ { "1,5" }, "'1,5' is not an interval in seconds" },
	{ { "make" }, "a command goes behind '--'" },
	{ { "31536001" }, "the interval has to be" },
	{ { "99999999999999999999999999" }, "the interval has to be" },
	{ { "1", "0" }, "the count of lines has to be 1 to 2147483647, not 0" },
	{ { "1", "2147483648" }, "the count of lines has to be" },
	{ { "1", "18446744073709551617" }, "the count of lines has to be" },
	{ { "1", "-1" }, "'-1' is not a count of lines" },
	{ { "1", "2x" }, "'2x' is not a count of lines" },
	{ { "1", "1.5" }, "'1.5' is not a count of lines" },
	{ { "1", "" }, "'' is not a count of lines" },
	{ { "1", "2", "3" }, "'3' is too much" },
	{ { "-p", "0" }, "'0' is not a process id" },
	{ { "-p", "-5" }, "'-5' is not a process id" },
	{ { "-p", "x" }, "'x' is not a process id" },
	{ { "-p", "1x" }, "'1x' is not a process id" },
	{ { "-p", "" }, "'' is not a process id" },
	{ { "-p", "4194305" }, "'4194305' is not a process id" },
	{ { "-p", "4294967297" }, "'4294967297' is not a process id" },
	{ { "-p", "18446744073709551617" }, "is not a process id" },
	{ { "-p", "4194304" }, "process 4194304: no such process" },
	{ { "-p" }, "option '-p' needs an argument" },
	{ { "-o" }, "option '-o' needs an argument" },
	{ { "--pid" }, "option '--pid' needs an argument" },
	{ { "-x" }, "unknown option '-x'" },
	{ { "--nonsense" }, "unknown option '--nonsense'" },
	{ { "--" }, "no command behind '--'" },
	{ { "-p", "1", "--", "true" }, "either a process (-p) or a command" },
	{ { "-o", "/nonexistent/file" }, "/nonexistent/file: No such file" },
};

TEST_F_TIMEOUT(cowstat, bad_arguments, TEST_TIMEOUT)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		const char *argv[MAX_ARGS] = { "cowstat", "--proc", fake };
		int want = strstr(bad[i].says, "cannot run") ? 127 : 2;

		memcpy(argv + 3, bad[i].argv, sizeof(bad[i].argv));
		start_prepared(TO_FILE, NULL, argv);
		finish(0);
		EXPECT_EQ(run.status, want)
			TH_LOG("%s %s: %s", bad[i].argv[0],
			       bad[i].argv[1] ?: "", run.errors);
		EXPECT_NE(strstr(run.errors, bad[i].says), NULL)
			TH_LOG("'%s' instead of '%s'", run.errors, bad[i].says);
		EXPECT_EQ(strncmp(run.errors, "cowstat: ", 9), 0);
		EXPECT_STREQ(run.text, "");
	}
	/* What is meant is documented. */
	EXPECT_EQ(cowstat("--help", NULL), 0);
	EXPECT_NE(strstr(run.text, "Exit status: 0"), NULL);
	EXPECT_STREQ(run.errors, "");
}

static bool to_full_disk(void)
{
	return dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO) >= 0;
}

static bool to_nobody(void)
{
	int ends[2];

	signal(SIGPIPE, SIG_DFL);
	return !pipe(ends) && dup2(ends[1], STDOUT_FILENO) >= 0 &&
	       !close(ends[0]);
}

TEST_F_TIMEOUT(cowstat, ends_well, TEST_TIMEOUT)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	char file[128], text[4096];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(signals); i++) {
		struct cow_child sleeper;

		start("--proc", fake, "-j", "100000", NULL);
		ASSERT_TRUE(json_parse(next_line()));
		/* While it waits */
		sleeper.pid = run.pid;
		ASSERT_EQ(cow_child_settle(&sleeper), 0);
		finish(signals[i]);
		EXPECT_EQ(run.status, 0)
			TH_LOG("signal %d", signals[i]);
		EXPECT_STREQ(run.errors, "");
	}
	/* Nobody reads: no line after the other into nothing. */
	EXPECT_EQ(cowstat_prepared(to_nobody, "--proc", fake, "0.01", NULL), 0);
	EXPECT_STREQ(run.errors, "");
	EXPECT_EQ(cowstat_prepared(to_full_disk, "--proc", fake, NULL), 2);
	EXPECT_STREQ(run.errors,
		     "cowstat: cannot write: No space left on device\n");

	/* Each line is there at once, in a file too. */
	snprintf(file, sizeof(file), "%s/out", fake);
	start("--proc", fake, "-j", "-o", file, "100000", NULL);
	for (i = 0; i < PATIENCE_MS; i++) {
		if (cow_read_file(file, text, sizeof(text)) > 0)
			break;
		usleep(1000);
	}
	finish(SIGTERM);
	EXPECT_TRUE(json_parse(text));
	EXPECT_STREQ(run.text, "");
}

/*
 * cowstat on the running kernel
 */

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

	ret = cow_stats_read_pid(s, 0) ?: cow_stats_read_pid(s, 0);
	/* The kernel writes there when it reschedules (rseq). */
	__atomic_fetch_or((char *)pthread_self(), 0, __ATOMIC_RELAXED);
	__atomic_fetch_or((char *)pthread_self() + 2048, 0, __ATOMIC_RELAXED);
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
	unsigned long long faults, reused, total_ns, success, copied;
};

static void add_line(struct seen *seen)
{
	seen->faults += json_ull("faults");
	seen->reused += json_ull("reused");
	seen->total_ns += json_ull("total_ns");
	seen->success += json_ull("precopy_success");
}

static bool same_as(const struct seen *seen, const struct cow_stats *d)
{
	return seen->faults == d->v[COW_FAULTS] &&
	       seen->reused == d->v[COW_REUSED] &&
	       seen->total_ns == d->v[COW_TOTAL_NS] &&
	       seen->success == d->v[COW_SUCCESS];
}

/*
 * Watch a process that writes to PAGES shared pages. 0 if each number is what
 * the process says itself, and the pages are exactly those; 1 if not.
 */
static int watch_once(struct __test_metadata *_metadata, struct watched *w,
		      int ahead, bool last)
{
	unsigned long long copied;
	struct cow_stats first, d;
	struct seen seen = {};
	struct cow_child child;
	int r, i, ret, lines = 0;
	char pid[16];

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
	start("-j", "-p", pid, "0.05", NULL);
	if (!json_parse(next_line()))
		return -EPROTO;
	ret = json_ull("faults") != first.v[COW_FAULTS] ||
	      json_ull("reused") != first.v[COW_REUSED] ||
	      json_ull("total_ns") != first.v[COW_TOTAL_NS];

	if (cow_child_send(&child, 1) || cow_child_recv(&child) != 1 || w->ret)
		return w->ret ?: -EPIPE;
	cow_stats_delta(&d, &first, &w->counts);
	/* Until nothing has come for a while */
	for (i = 0; i < 3 && lines < 25; i++, lines++) {
		if (!json_parse(next_line()))
			return -EPROTO;
		if (json_ull("faults") || json_ull("precopy_success"))
			i = -1;
		add_line(&seen);
	}
	finish(SIGTERM);
	cow_child_end(&child);
	copied = d.v[COW_FAULTS] + d.v[COW_SUCCESS];
	ret |= !same_as(&seen, &d) || copied != PAGES || run.status ||
	       d.v[COW_FAULTS] != (unsigned long long)PAGES / (ahead + 1);
	if (ret && last)
		TH_LOG("printed: %llu faults, %llu reused, %llu ahead; it says: %llu, %llu, %llu",
		       seen.faults, seen.reused, seen.success,
		       d.v[COW_FAULTS], d.v[COW_REUSED], d.v[COW_SUCCESS]);
	return ret;
}

TEST_F_TIMEOUT(running, process, TEST_TIMEOUT)
{
	struct watched *w;
	int i, ret = 1;

	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(w, MAP_FAILED);
	/* Memory may be low, or a page on its way somewhere: repeat. */
	for (i = 0; ret > 0 && i < COW_TRIES; i++)
		ret = watch_once(_metadata, w, variant->ahead,
				 i == COW_TRIES - 1);
	EXPECT_EQ(ret, 0);
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
static bool bill_is_right(struct __test_metadata *_metadata, int fd, int want,
			  bool last)
{
	unsigned long long sum[COW_NR_KEYS] = {};
	static const int keys[] = {
		COW_FAULTS, COW_REUSED, COW_TOTAL_NS, COW_FAULT_TOTAL_NS,
		COW_SUCCESS, COW_REUSE_AHEAD,
	};
	bool right = true;
	struct cow_stats s;
	size_t i;
	int nr;

	for (nr = 0; pread(fd, &s, sizeof(s), nr * sizeof(s)) == sizeof(s); nr++)
		for (i = 0; i < COW_NR_KEYS; i++)
			sum[i] += s.v[i];
	if (nr != want || !json_parse(strchr(run.errors, '{'))) {
		if (last)
			TH_LOG("%d of %d wrote it down; '%s'", nr, want,
			       run.errors);
		return false;
	}
	for (i = 0; i < ARRAY_SIZE(keys); i++) {
		const char *name = cow_key_names[keys[i]];

		if (!json_null(name) && json_ull(name) == sum[keys[i]])
			continue;
		right = false;
		if (last)
			TH_LOG("%s: the bill says %s, the processes %llu", name,
			       json_text(name), sum[keys[i]]);
	}
	/* It is not all nothing. */
	return right && sum[COW_FAULTS] + sum[COW_SUCCESS] >= 2 * 2 * PAGES;
}

TEST_F_TIMEOUT(running, command, TEST_TIMEOUT)
{
	char number[16], self_path[PATH_MAX];
	bool right = false;
	int fd, i;

	snprintf(self_path, sizeof(self_path), "%s", own_path());
	/* Found when it is called first, it would be written to then. */
	setenv("LD_BIND_NOW", "1", 1);
	for (i = 0; !right && i < COW_TRIES; i++) {
		/* Its position is shared by all who have it. */
		fd = memfd_create("counts", 0);
		ASSERT_GE(fd, 0);
		snprintf(number, sizeof(number), "%d", fd);
		/* The exec'd one writes down what is left of it: 2 x 3 */
		ASSERT_EQ(cowstat("-j", "--", self_path, "--spend", number, "2",
				  "again", NULL), 0)
			TH_LOG("%s", run.errors);
		right = bill_is_right(_metadata, fd, 6, i == COW_TRIES - 1);
		close(fd);
	}
	EXPECT_TRUE(right);
	EXPECT_EQ(json_ull("status"), 0ULL);
	EXPECT_TRUE(json_null("signal"));
	EXPECT_GE(json_ull("minor_faults"), json_ull("faults"));
	EXPECT_GT(json_double("wall_s"), 0);
	EXPECT_TRUE(about(json_double("copy_share"),
			  json_double("total_ns") /
			  json_double("fault_total_ns")));
	EXPECT_TRUE(about(json_double("wall_share"),
			  json_double("fault_total_ns") / 1e9 /
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

static bool wait_for_timing(long want)
{
	int i;

	for (i = 0; i < PATIENCE_MS && timing() != want; i++)
		usleep(1000);
	return timing() == want;
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
		EXPECT_TRUE(wait_for_timing(1));
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
	for (i = 0; i < COW_TRIES; i++) {
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

/*
 * Write to shared pages, and find the interval of cowstat's that most of it is
 * in: 0 if its percentiles are those of what was copied, 1 if not, -EAGAIN if
 * it is in two.
 */
static int percentiles_once(struct __test_metadata *_metadata, char *area)
{
	static struct cow_hist before, after, d;
	static struct cow_measure m;
	__u64 total, low, high, p50;
	int i, ret;

	start("-j", "0.5", NULL);
	if (!json_parse(next_line()))
		return -EPROTO;
	ret = cow_hist_read(&before, NULL) ?:
	      cow_measure(&m, area, NULL, COW_MAX_MEASURED) ?:
	      cow_hist_read(&after, NULL);
	if (ret)
		return ret;
	cow_hist_delta(&d, &before, &after);
	total = cow_hist_total(&d);
	for (i = 0, ret = -EAGAIN; ret && i < 10; i++) {
		if (!json_parse(next_line()))
			return -EPROTO;
		if (json_ull("faults") >= total * 3 / 4)
			ret = 0;
	}
	finish(SIGTERM);
	if (ret)
		return ret;
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
	int i, ret = -EAGAIN;
	char *area;

	for (i = 0; ret == -EAGAIN && i < COW_TRIES; i++) {
		area = cow_map(len, 0);
		ASSERT_NE(area, NULL);
		cow_fill(area, len, 1);
		ASSERT_EQ(cow_child_idle(&child), 0);
		ret = percentiles_once(_metadata, area);
		cow_child_end(&child);
		cow_unmap(area, len);
	}
	EXPECT_EQ(ret, 0);
}

/* A reset of the real counters */
TEST_F_TIMEOUT(running, reset, TEST_TIMEOUT)
{
	ASSERT_EQ(cowstat("--", "sh", "-c", "for i in 1 2 3; do sh -c true; done",
			  NULL), 0);
	start("-j", "0.05", NULL);
	ASSERT_TRUE(json_parse(next_line()));
	ASSERT_EQ(cow_write_file(COW_STATS_FILE, "0\n"), 0);
	ASSERT_NE(line_with_reset(), NULL);
	EXPECT_TRUE(json_null("faults"));
	ASSERT_TRUE(json_parse(next_line()));
	EXPECT_STREQ(json_text("reset"), "false");
	EXPECT_LT(json_ull("faults"), 1000000ULL);
	finish(SIGTERM);
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
