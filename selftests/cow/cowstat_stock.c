// SPDX-License-Identifier: GPL-2.0
/*
 * cowstat on a kernel without CONFIG_COW_STATS, where it counts by kprobe events:
 * exact, and nothing remains of them. On any kernel the bill of a command has the
 * grandchildren that nobody has waited for.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/sched.h>
#include <linux/userfaultfd.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cowstat_helpers.h"

#define PAGES		64
#define ROUNDS		3
#define SLACK		32
#define NAME		"cow_watched"
#define NO_HUGE_PAGES	77	/* exit status of the watched process */
#define TRACEFS		"/sys/kernel/tracing"

/* What a page is before it is written to */
enum kind {
	SHARED,		/* a child has it, too */
	REUSED,		/* a child had it */
	THREADS,	/* SHARED, and two threads write to it */
	ZERO,		/* the zero page */
	PRIVATE_FILE,	/* of a file; each page is a mapping of its own */
	RETRIED,	/* PRIVATE_FILE, and a thread holds mmap_lock most of the time */
	SHARED_FILE,
	UFFD,		/* SHARED, and write-protected by userfaultfd */
	GUP,		/* SHARED, and pinned for reading instead of written to */
	HUGE_SHARED,	/* SHARED, and a part of a huge page */
	HUGE_REUSED,	/* REUSED, and a part of a huge page */
};

FIXTURE(stock)
{
	int unused;
};

FIXTURE_VARIANT(stock)
{
	enum kind kind;
	unsigned long long faults, reused, unshared;
};

FIXTURE_VARIANT_ADD(stock, shared) { .kind = SHARED, .faults = PAGES };
FIXTURE_VARIANT_ADD(stock, reused) { .kind = REUSED, .reused = PAGES };
FIXTURE_VARIANT_ADD(stock, threads) { .kind = THREADS, .faults = PAGES };
FIXTURE_VARIANT_ADD(stock, zero_page) { .kind = ZERO };
FIXTURE_VARIANT_ADD(stock, private_file) { .kind = PRIVATE_FILE, .faults = PAGES };
/*
 * The first copy in a mapping makes its anon_vma. With the VMA lock that takes
 * mmap_lock, too: where another thread holds it (on older kernels always), do_wp_page()
 * returns VM_FAULT_RETRY, and is entered a second time.
 */
FIXTURE_VARIANT_ADD(stock, retried) { .kind = RETRIED, .faults = PAGES };
FIXTURE_VARIANT_ADD(stock, shared_file) { .kind = SHARED_FILE };
FIXTURE_VARIANT_ADD(stock, uffd_wp) { .kind = UFFD, .faults = PAGES };
FIXTURE_VARIANT_ADD(stock, gup) { .kind = GUP, .unshared = PAGES };
/* The first write splits the mapping, and then copies its page as the others do. */
FIXTURE_VARIANT_ADD(stock, huge_shared) { .kind = HUGE_SHARED, .faults = PAGES };
/* The first write makes all of it writable: do_wp_page() is not entered. */
FIXTURE_VARIANT_ADD(stock, huge_reused) { .kind = HUGE_REUSED };

/* NULL, or the reason to skip */
static const char *no_events(void)
{
	if (!access("/proc/cow_stats", F_OK))
		return "the kernel has CONFIG_COW_STATS";
	/* cowstat removes its kprobe events, but meanwhile they slow every process down. */
	if (geteuid() || !cow_may_change())
		return "making kprobe events " COW_NEEDS;
	if (access(TRACEFS "/kprobe_events", W_OK))
		return "no kprobe events (CONFIG_KPROBE_EVENTS)";
	if (access(TRACEFS "/synthetic_events", W_OK))
		return "no hist triggers (CONFIG_HIST_TRIGGERS)";
	if (access("/sys/kernel/btf/vmlinux", R_OK))
		return "no BTF (CONFIG_DEBUG_INFO_BTF)";
	return NULL;
}

FIXTURE_SETUP(stock)
{
	const char *reason = no_events();

	cow_proc = "/proc";
	if (reason)
		SKIP(return, "%s", reason);
}

FIXTURE_TEARDOWN(stock)
{
}

/*
 * The watched process
 */

static size_t ps;
static int uffd = -1;

static char *map_private_file(void)
{
	char *area = cow_map(2 * PAGES * ps, ps);
	int fd = memfd_create("private", MFD_CLOEXEC), i;

	if (!area || fd < 0 || ftruncate(fd, PAGES * ps))
		return NULL;
	/* With a gap between them, they do not become one mapping. */
	for (i = 0; i < PAGES; i++) {
		char *p = area + 2 * i * ps;

		if (mmap(p, ps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
			 fd, i * ps) != p)
			return NULL;
		cow_peek(p);
	}
	close(fd);
	return area;
}

/* Clean pages that are not writable, until the kernel has been asked. */
static char *map_shared_file(void)
{
	int fd = memfd_create("shared", MFD_CLOEXEC), i;
	char *area;

	if (fd < 0 || ftruncate(fd, PAGES * ps))
		return NULL;
	area = mmap(NULL, PAGES * ps, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (area == MAP_FAILED)
		return NULL;
	for (i = 0; i < PAGES; i++)
		cow_peek(area + i * ps);
	if (mprotect(area, PAGES * ps, PROT_READ) ||
	    mprotect(area, PAGES * ps, PROT_READ | PROT_WRITE))
		return NULL;
	return area;
}

static bool is_private_file(enum kind kind)
{
	return kind == PRIVATE_FILE || kind == RETRIED;
}

static bool is_huge(enum kind kind)
{
	return kind == HUGE_SHARED || kind == HUGE_REUSED;
}

static bool is_reused(enum kind kind)
{
	return kind == REUSED || kind == HUGE_REUSED;
}

/* NULL if the kernel gives none */
static char *map_huge_page(void)
{
	size_t len = cow_pmd_size();
	char *area;

	cow_map_hugepage = true;
	area = cow_map(len, len);
	cow_map_hugepage = false;
	if (!area)
		return NULL;
	cow_fill(area, len, 1);
	/* khugepaged makes none of what is split. */
	madvise(area, len, MADV_NOHUGEPAGE);
	return cow_smaps_kb(area, "AnonHugePages") * 1024 == (long)len ? area : NULL;
}

static char *map_area(enum kind kind)
{
	char *area;
	int i;

	if (is_private_file(kind))
		return map_private_file();
	if (kind == SHARED_FILE)
		return map_shared_file();
	if (is_huge(kind))
		return map_huge_page();
	area = cow_map(PAGES * ps, PAGES * ps);
	for (i = 0; area && kind == ZERO && i < PAGES; i++)
		cow_peek(area + i * ps);
	if (area && kind != ZERO)
		cow_fill(area, PAGES * ps, 1);
	return area;
}

/* Lift the protection of each page that somebody wants to write to. */
static void *unprotect_pages(void *arg)
{
	struct uffd_msg msg;

	(void)arg;
	while (read(uffd, &msg, sizeof(msg)) == sizeof(msg)) {
		struct uffdio_writeprotect wp = {
			.range = {
				.start = msg.arg.pagefault.address & ~(__u64)(ps - 1),
				.len = ps,
			},
		};

		if (ioctl(uffd, UFFDIO_WRITEPROTECT, &wp))
			_exit(9);
	}
	return NULL;
}

static int protect_areas(char **areas)
{
	struct uffdio_api api = { .api = UFFD_API };
	pthread_t thread;
	int r;

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		return -errno;
	for (r = 0; r < ROUNDS; r++) {
		struct uffdio_register reg = {
			.range = { .start = (uintptr_t)areas[r], .len = PAGES * ps },
			.mode = UFFDIO_REGISTER_MODE_WP,
		};
		struct uffdio_writeprotect wp = {
			.range = reg.range,
			.mode = UFFDIO_WRITEPROTECT_MODE_WP,
		};

		if (ioctl(uffd, UFFDIO_REGISTER, &reg) ||
		    ioctl(uffd, UFFDIO_WRITEPROTECT, &wp))
			return -errno;
	}
	return -pthread_create(&thread, NULL, unprotect_pages, NULL);
}

/* process_vm_readv() pins the pages that it reads: FOLL_PIN without FOLL_WRITE. */
static int pin_for_reading(char *area)
{
	static char copy[PAGES][1];
	struct iovec local = { .iov_base = copy, .iov_len = sizeof(copy) };
	struct iovec remote[PAGES];
	int i;

	for (i = 0; i < PAGES; i++) {
		remote[i].iov_base = area + i * ps;
		remote[i].iov_len = 1;
	}
	return process_vm_readv(getpid(), &local, 1, remote, PAGES, 0) != PAGES;
}

static void touch_all(char *area, size_t step)
{
	int i;

	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * step, 'w');
}

/* A second writer, which is there before the round that counts */
static char *second_area;
static pthread_barrier_t barrier;

static void *second_writer(void *arg)
{
	int r;

	(void)arg;
	for (r = 0; r < ROUNDS; r++) {
		pthread_barrier_wait(&barrier);
		touch_all(second_area + 1, ps);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

/* Write-locks mmap_lock again and again, for as long as a change of so many PTEs takes. */
#define CHANGED_PAGES	1024

static void *change_protection(void *arg)
{
	size_t len = CHANGED_PAGES * ps;
	cpu_set_t *cpus = arg;
	char *area = cow_map(len, 0);

	/* Not on the CPU of the thread that writes, if there is another one */
	if (!area || sched_setaffinity(0, sizeof(*cpus), cpus))
		_exit(9);
	cow_fill(area, len, 1);
	pthread_barrier_wait(&barrier);
	while (!mprotect(area, len, PROT_READ) &&
	       !mprotect(area, len, PROT_READ | PROT_WRITE))
		;
	_exit(9);
}

/* 0 once it does so */
static int begin_changing(cpu_set_t *cpus)
{
	pthread_t thread;

	if (pthread_barrier_init(&barrier, NULL, 2) ||
	    pthread_create(&thread, NULL, change_protection, cpus))
		return 1;
	pthread_barrier_wait(&barrier);
	return 0;
}

static int act(enum kind kind, char *area)
{
	if (kind == GUP)
		return pin_for_reading(area);
	if (kind == THREADS) {
		second_area = area;
		pthread_barrier_wait(&barrier);
	}
	touch_all(area, is_private_file(kind) ? 2 * ps : ps);
	if (kind == THREADS)
		pthread_barrier_wait(&barrier);
	return 0;
}

/* Each byte received: one round. The last one is to be seen by cowstat. */
static int watched(struct cow_child *self, void *arg)
{
	const enum kind kind = *(enum kind *)arg;
	struct cow_child idle;
	char *areas[ROUNDS];
	pthread_t thread;
	cpu_set_t cpus;
	int r;

	ps = cow_page_size();
	/* A page in another CPU's batch for the LRU would be copied, not reused. */
	if (prctl(PR_SET_NAME, NAME) || sched_getaffinity(0, sizeof(cpus), &cpus) ||
	    cow_pin_cpu())
		return 1;
	for (r = 0; r < ROUNDS; r++) {
		areas[r] = map_area(kind);
		if (!areas[r])
			return is_huge(kind) ? NO_HUGE_PAGES : 1;
	}
	/* It would share the page cache's pages, nothing else. */
	if (!is_private_file(kind) && cow_child_idle(&idle))
		return 2;
	if (is_reused(kind) && cow_child_end(&idle))
		return 3;
	if (kind == UFFD && protect_areas(areas))
		return 4;
	if (kind == THREADS &&
	    (pthread_barrier_init(&barrier, NULL, 2) ||
	     pthread_create(&thread, NULL, second_writer, NULL)))
		return 5;
	if (kind == RETRIED && begin_changing(&cpus))
		return 5;
	for (r = 0; r < ROUNDS; r++) {
		if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
			return 6;
		if (act(kind, areas[r]))
			return 7;
	}
	if (cow_child_send(self, 1))
		return 8;
	/* Until it is told to end */
	cow_child_recv(self);
	return is_private_file(kind) || is_reused(kind) ? 0 : cow_child_end(&idle);
}

/*
 * The tests
 */

struct seen {
	unsigned long long faults, reused, unshared, ns;
};

/* Which processes cowstat shows; the watched one is among them. */
enum shown { ITSELF, ITS_NAME, ALL };

static void start_cowstat(enum shown shown, pid_t pid)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", pid);
	if (shown == ITSELF)
		start("-j", "-p", number, "0.1", NULL);
	else if (shown == ITS_NAME)
		start("-j", "-C", NAME, "0.1", NULL);
	else
		start("-j", "-a", "0.1", NULL);
}

/* Has a line in each sample, also of -a: fork() makes it copy or reuse its stack. */
static int always_busy(struct cow_child *self, void *arg)
{
	pid_t pid;

	(void)self;
	(void)arg;
	for (;;) {
		pid = fork();
		if (!pid)
			_exit(0);
		if (pid < 0 || waitpid(pid, NULL, 0) != pid)
			return 1;
		usleep(20000);
	}
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/*
 * Add up the lines of a process. A sample may have begun before now; the next one has
 * not, and all of it has been read when that after it begins. ticker is a process that
 * each sample has.
 */
static int sum_up(struct seen *seen, pid_t pid, pid_t ticker)
{
	double begin = now();
	int samples = 0;

	while (samples < 3) {
		if (!json_parse(next_line()))
			return -EPROTO;
		if ((pid_t)json_ull("pid") == ticker && json_double("time") > begin)
			samples++;
		/* Of the first sample they are not known. */
		if ((pid_t)json_ull("pid") != pid || json_null("faults"))
			continue;
		seen->faults += json_ull("faults");
		seen->reused += json_ull("reused");
		seen->unshared += json_ull("unshared");
		seen->ns += json_ull("fault_total_ns");
	}
	return 0;
}

/* What cowstat has printed of the last round: 0, NO_HUGE_PAGES, or a negative errno */
static int watch(enum kind kind, enum shown shown, struct seen *seen)
{
	struct cow_child child, busy;
	int r, ret;

	memset(seen, 0, sizeof(*seen));
	ret = cow_child_fork(&child, watched, &kind);
	if (ret)
		return ret;
	for (r = 0; r < ROUNDS; r++) {
		if (cow_child_recv(&child) != 1)
			return cow_child_end(&child) == NO_HUGE_PAGES ?
			       NO_HUGE_PAGES : -EPIPE;
		if (r < ROUNDS - 1 && cow_child_send(&child, 1))
			return -EPIPE;
	}
	ret = cow_child_fork(&busy, always_busy, NULL);
	if (ret)
		return ret;
	start_cowstat(shown, child.pid);
	/* The events are there once a line is. */
	if (!json_parse(next_line()) || !json_null("faults") ||
	    cow_child_send(&child, 1) || cow_child_recv(&child) != 1)
		return -EPROTO;
	ret = sum_up(seen, child.pid, shown == ALL ? busy.pid : child.pid);
	if (ret)
		return ret;
	finish(SIGTERM);
	if (run.status)
		return -EPROTO;
	kill(busy.pid, SIGKILL);
	cow_child_wait(&busy);
	return cow_child_end(&child);
}

TEST_F_TIMEOUT(stock, exact, TEST_TIMEOUT)
{
	static const char * const options[] = { "-p", "-C", "-a" };
	struct seen seen;
	enum shown shown;
	int ret;

	for (shown = ITSELF; shown <= ALL; shown++) {
		ret = watch(variant->kind, shown, &seen);
		if (ret == NO_HUGE_PAGES)
			SKIP(return, "got no huge pages");
		ASSERT_EQ(ret, 0)
			TH_LOG("%s: %s", options[shown], run.errors);
		EXPECT_EQ(seen.faults, variant->faults)
			TH_LOG("copied, by cowstat %s", options[shown]);
		EXPECT_EQ(seen.reused, variant->reused)
			TH_LOG("reused, by cowstat %s", options[shown]);
		/* The ranking leaves out who has neither copied nor reused. */
		if (shown != ALL || variant->faults + variant->reused)
			EXPECT_EQ(seen.unshared, variant->unshared)
				TH_LOG("unshared, by cowstat %s", options[shown]);
		if (variant->kind != ZERO)
			EXPECT_EQ(seen.ns > 0, seen.faults + seen.reused > 0);
	}
}

/*
 * The end of it
 */

FIXTURE(tracefs)
{
	int unused;
};

FIXTURE_SETUP(tracefs)
{
	const char *reason = no_events();

	cow_proc = "/proc";
	if (reason)
		SKIP(return, "%s", reason);
}

FIXTURE_TEARDOWN(tracefs)
{
}

/* Instances and events in tracefs that a cowstat has made */
static int leftovers(void)
{
	static const char * const files[] = { "kprobe_events", "synthetic_events" };
	static char text[65536];
	struct dirent *entry;
	char path[128];
	int nr = 0;
	size_t i;
	DIR *dir;

	dir = opendir(TRACEFS "/instances");
	if (!dir)
		return -errno;
	while ((entry = readdir(dir)))
		nr += !strncmp(entry->d_name, "cowstat_", 8);
	closedir(dir);
	for (i = 0; i < ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), TRACEFS "/%s", files[i]);
		if (cow_read_file(path, text, sizeof(text)) > 0)
			nr += count_of(text, "cowstat_");
	}
	return nr;
}

/* What cannot be had, once */
TEST_F_TIMEOUT(tracefs, says_what_is_missing, TEST_TIMEOUT)
{
	ASSERT_EQ(cowstat("-j", "0.05", "3", NULL), 0);
	EXPECT_STREQ(run.errors,
		     "cowstat: kernel without CONFIG_COW_STATS: counting by kprobe events, from now on; no lost, ahead, copy time, percentiles, nor faults on huge pages that a PMD maps\n");
}

#define MANY		2000

static int copies_many(struct cow_child *self, void *arg)
{
	char *area = cow_map(MANY * cow_page_size(), cow_page_size());
	struct cow_child idle;
	int i;

	(void)self;
	(void)arg;
	if (!area)
		return 1;
	memset(area, 1, MANY * cow_page_size());
	if (cow_child_idle(&idle))
		return 2;
	for (i = 0; i < MANY; i++)
		cow_touch(area + i * cow_page_size(), 'w');
	return cow_child_end(&idle);
}

/* A process of that number, which must be free, that is always busy */
static pid_t busy_with_number(pid_t number)
{
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = (unsigned long)&number,
		.set_tid_size = 1,
	};
	pid_t pid = syscall(SYS_clone3, &args, sizeof(args));

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(always_busy(NULL, NULL));
	}
	return pid;
}

/* The kernel's tables still have what the process that had the number before has done. */
TEST_F_TIMEOUT(tracefs, number_has_no_past, TEST_TIMEOUT)
{
	struct cow_child busy, first;
	struct seen seen = {};
	pid_t number, pid;

	ASSERT_EQ(cow_child_fork(&busy, always_busy, NULL), 0);
	start("-j", "-a", "0.1", NULL);
	ASSERT_TRUE(json_parse(next_line()));
	ASSERT_EQ(cow_child_fork(&first, copies_many, NULL), 0);
	number = first.pid;
	ASSERT_EQ(cow_child_wait(&first), 0);
	ASSERT_EQ(sum_up(&seen, 0, busy.pid), 0);
	pid = busy_with_number(number);
	if (pid < 0)
		SKIP(return, "no process with number %d: %s", number, strerror(errno));
	memset(&seen, 0, sizeof(seen));
	EXPECT_EQ(sum_up(&seen, pid, pid), 0);
	EXPECT_GT(seen.faults + seen.reused, 0ULL);
	EXPECT_LT(seen.faults, MANY / 2ULL);
	finish(SIGTERM);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	kill(busy.pid, SIGKILL);
	cow_child_wait(&busy);
}

/* A tool whose tables have room for 128 processes: what has no room is missing. */
TEST_F_TIMEOUT(tracefs, full_table, TEST_TIMEOUT)
{
	static const char says[] = "some faults are not counted: a table of the kernel's is full";
	static const char forks[] = "i=0; while [ $i -lt 300 ]; do (:); i=$((i + 1)); done";

	EXPECT_EQ(cowstat("--", "sh", "-c", forks, NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 0)
		TH_LOG("%s", run.errors);
	tested_tool = "cowstat_small";
	EXPECT_EQ(cowstat("--", "sh", "-c", forks, NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 1)
		TH_LOG("%s", run.errors);
}

/* Into another PID namespace, with our status */
static bool to_namespace(void)
{
	int status;
	pid_t pid;

	if (unshare(CLONE_NEWPID))
		return false;
	pid = fork();
	if (!pid)
		return true;
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return false;
	_exit(WEXITSTATUS(status));
}

/* The events have other numbers there than the processes: no count of a process. */
TEST_F_TIMEOUT(tracefs, other_namespace, TEST_TIMEOUT)
{
	static const char says[] = "they know processes by other numbers";

	EXPECT_EQ(cowstat_prepared(to_namespace, "-j", "--", "true", NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 1)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(cowstat_prepared(to_namespace, "-j", NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 0)
		TH_LOG("%s", run.errors);
	EXPECT_EQ(leftovers(), 0);
}

/* A kernel with CONFIG_COW_PRECOPY, by its symbols */
static bool with_precopy(void)
{
	static const char symbol[] = "ffffffff81000000 T cow_batch_copy\n";
	char path[64] = "/tmp/cowstat_symbols.XXXXXX";
	int fd = mkstemp(path);
	bool done;

	done = fd >= 0 && write(fd, symbol, strlen(symbol)) == (ssize_t)strlen(symbol) &&
	       !unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount(path, "/proc/kallsyms", NULL, MS_BIND, NULL);
	close(fd);
	unlink(path);
	return done;
}

/* Faults that copy several pages would be missing: no count rather than a wrong one. */
TEST_F_TIMEOUT(tracefs, precopy_is_refused, TEST_TIMEOUT)
{
	static const char says[] =
		"without kprobe events: they miss faults of a kernel with CONFIG_COW_PRECOPY";

	EXPECT_EQ(cowstat_prepared(with_precopy, "-j", "-p", "1", NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 1)
		TH_LOG("%s", run.errors);
	ASSERT_TRUE(json_parse(run.text));
	EXPECT_TRUE(json_null("faults"));
	EXPECT_EQ(cowstat_prepared(with_precopy, "-j", "--", "true", NULL), 0);
	EXPECT_EQ(count_of(run.errors, says), 1)
		TH_LOG("%s", run.errors);
	ASSERT_TRUE(json_parse(strchr(run.errors, '{')));
	EXPECT_TRUE(json_null("faults"));
	EXPECT_EQ(leftovers(), 0);
}

TEST_F_TIMEOUT(tracefs, nothing_remains, TEST_TIMEOUT)
{
	EXPECT_EQ(cowstat("-j", NULL), 0);
	EXPECT_EQ(leftovers(), 0);
	EXPECT_EQ(cowstat("-j", "--", "true", NULL), 0);
	EXPECT_EQ(leftovers(), 0);
	start("-j", "0.1", NULL);
	ASSERT_NE(next_line(), NULL);
	EXPECT_GT(leftovers(), 0);
	finish(SIGTERM);
	EXPECT_EQ(leftovers(), 0);
	/* Nobody can remove what a killed one has made, but the next one does. */
	start("-j", "0.1", NULL);
	ASSERT_NE(next_line(), NULL);
	finish(SIGKILL);
	EXPECT_GT(leftovers(), 0);
	EXPECT_EQ(cowstat("-j", NULL), 0);
	EXPECT_EQ(leftovers(), 0);
}

/* Neither a folder of the instance nor a number that somebody has is enough. */
TEST_F_TIMEOUT(tracefs, number_is_used_again, TEST_TIMEOUT)
{
	struct run first;

	/* init is no cowstat. */
	ASSERT_EQ(mkdir(TRACEFS "/instances/cowstat_1", 0700), 0);
	EXPECT_EQ(cowstat("-j", NULL), 0);
	EXPECT_EQ(leftovers(), 0);
	/* One that runs keeps what it has. */
	start("-j", "0.1", NULL);
	ASSERT_NE(next_line(), NULL);
	first = run;
	EXPECT_EQ(cowstat("-j", NULL), 0);
	run = first;
	EXPECT_GT(leftovers(), 0);
	ASSERT_TRUE(json_parse(next_line()));
	EXPECT_FALSE(json_null("faults"));
	finish(SIGTERM);
	EXPECT_EQ(run.status, 0);
	EXPECT_EQ(leftovers(), 0);
}

/*
 * --spend N, --linger N: N pages are copied by a grandchild that nobody waits for,
 * as its parent has exited. With --linger it does so after its main thread has
 * exited, and lives on until cowstat has.
 */
struct job {
	char *area;
	int pages, fd;
	pid_t cowstat;
};

static int copy_pages(const struct job *job)
{
	pid_t self = getpid();
	int i;

	for (i = 0; i < job->pages; i++)
		cow_touch(job->area + i * cow_page_size(), 'w');
	return write(job->fd, &self, sizeof(self)) != sizeof(self);
}

static void *linger(void *arg)
{
	const struct job *job = arg;

	while (!cow_task_ended(getpid()))
		usleep(1000);
	if (copy_pages(job))
		_exit(1);
	while (!kill(job->cowstat, 0))
		usleep(1000);
	_exit(0);
}

static int spend(int pages, bool lingers)
{
	size_t size = cow_page_size();
	char *area = cow_map(512 * size, size);
	struct job job = { .area = area, .pages = pages, .cowstat = getppid() };
	struct cow_child idle;
	pthread_t thread;
	pid_t pid, copier;
	int ends[2];

	if (!area || pages < 0 || pages > 512 || pipe(ends))
		return 1;
	cow_fill(area, 512 * size, 1);
	if (cow_child_idle(&idle))
		return 1;
	pid = fork();
	if (pid < 0)
		return 1;
	if (!pid) {
		if (fork())
			_exit(0);
		job.fd = ends[1];
		if (!lingers)
			_exit(copy_pages(&job));
		if (pthread_create(&thread, NULL, linger, &job))
			_exit(1);
		/* This thread alone */
		syscall(SYS_exit, 0);
	}
	close(ends[1]);
	if (waitpid(pid, NULL, 0) != pid ||
	    read(ends[0], &copier, sizeof(copier)) != sizeof(copier))
		return 1;
	while (!lingers && !cow_task_ended(copier))
		usleep(1000);
	return cow_child_end(&idle);
}

struct billed {
	unsigned long long copied, minor;
};

static struct billed bill(const char *how, const char *pages)
{
	struct billed billed = {};

	const char *enable = access("/proc/cow_stats", F_OK) ? "-j" : "-je";
	char self[PATH_MAX];

	/* cowstat() writes over what own_path() returns. */
	snprintf(self, sizeof(self), "%s", own_path());
	if (cowstat(enable, "--", self, how, pages, NULL) ||
	    !json_parse(strchr(run.errors, '{')) || json_null("faults"))
		return billed;
	billed.copied = json_ull("faults") + json_ull("precopy_success");
	billed.minor = json_ull("minor_faults");
	return billed;
}

/* Also on a kernel with CONFIG_COW_STATS, whose own counts are by process */
FIXTURE(bill)
{
	int unused;
};

FIXTURE_SETUP(bill)
{
	const char *reason = no_events();

	cow_proc = "/proc";
	if (reason && access("/proc/cow_stats", F_OK))
		SKIP(return, "%s", reason);
	/* cowstat switches vm.cow_stats on, or makes kprobe events. */
	if (geteuid() || !cow_may_change())
		SKIP(return, COW_NEEDS);
}

FIXTURE_TEARDOWN(bill)
{
}

/*
 * Stacks and the C library's data are copied by a parent or its child, whoever
 * comes first, and reused by the other: a few faults more or less.
 */
TEST_F_TIMEOUT(bill, has_grandchildren, TEST_TIMEOUT)
{
	static const char * const ways[] = { "--spend", "--linger" };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(ways); i++) {
		struct billed few = bill(ways[i], "12"), many = bill(ways[i], "512");

		ASSERT_GE(few.copied, 12ULL)
			TH_LOG("%s", run.errors);
		EXPECT_GE(many.copied, few.copied + 500 - SLACK)
			TH_LOG("%s", ways[i]);
		EXPECT_LE(many.copied, few.copied + 500 + SLACK)
			TH_LOG("%s", ways[i]);
		/* None is copied ahead by default. */
		EXPECT_GE(many.minor, many.copied)
			TH_LOG("%s", ways[i]);
		EXPECT_EQ(!!strstr(run.errors, "1 of its processes still run"), i == 1)
			TH_LOG("%s", run.errors);
	}
}

/*
 * --copy: known functions copy 64 and 32 pages.
 */
#define __noinline	__attribute__((noinline))

/* The line that writes to the pages */
enum { COPYING_LINE = __LINE__ + 9 };

static __noinline void copy_inner(volatile char *area, int pages)
{
	int i;

	/* With a frame of its own; without, its caller would not be in the stack. */
	__asm__ volatile("" : : "r" (__builtin_frame_address(0)));
	for (i = 0; i < pages; i++)
		area[i * ps] = 'w';
}

static __noinline void copy_outer(volatile char *area)
{
	copy_inner(area, 64);
	area[64 * ps] = 'w';
}

static __noinline int copy(void)
{
	struct cow_child idle;
	char *area;

	ps = cow_page_size();
	area = cow_map(128 * ps, ps);
	if (!area)
		return 1;
	cow_fill(area, 128 * ps, 1);
	if (cow_child_idle(&idle))
		return 1;
	copy_outer(area);
	copy_inner(area + 65 * ps, 32);
	return cow_child_end(&idle);
}

/* NULL, or the reason to skip */
static const char *no_stacks(void)
{
	if (geteuid() || system("perf --version > /dev/null 2>&1"))
		return "no perf here";
	if (!access("/proc/cow_stats", F_OK) && access(TRACEFS "/events/cow", F_OK))
		return "no trace events: kernel without CONFIG_EVENT_TRACING";
	return NULL;
}

TEST_F_TIMEOUT(bill, stacks, TEST_TIMEOUT)
{
	char self_path[PATH_MAX];

	if (no_stacks())
		SKIP(return, "%s", no_stacks());
	snprintf(self_path, sizeof(self_path), "%s", own_path());
	ASSERT_EQ(cowstat("--stacks", "-o", "-", "--", self_path, "--copy", NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_NE(strstr(run.text, ";copy_outer;copy_inner 64\n"), NULL)
		TH_LOG("%s", run.text);
	EXPECT_NE(strstr(run.text, ";copy_outer 1\n"), NULL)
		TH_LOG("%s", run.text);
	EXPECT_NE(strstr(run.text, ";copy;copy_inner 32\n"), NULL)
		TH_LOG("%s", run.text);
	EXPECT_EQ(leftovers(), 0);
	EXPECT_EQ(cowstat("--stacks", "--", "sh", "-c", "exit 7", NULL), 7);
	EXPECT_EQ(cowstat("--stacks", NULL), 2);
	EXPECT_NE(strstr(run.errors, "--stacks needs a command"), NULL);
	EXPECT_EQ(cowstat("--stacks=functions", "--", "true", NULL), 2);
	EXPECT_NE(strstr(run.errors, "--stacks=functions: there is --stacks, and --stacks=lines"),
		  NULL);
}

TEST_F_TIMEOUT(bill, stacks_with_lines, TEST_TIMEOUT)
{
	char self_path[PATH_MAX], want[96];

	if (no_stacks())
		SKIP(return, "%s", no_stacks());
	if (system("addr2line --version > /dev/null 2>&1"))
		SKIP(return, "no addr2line here, which perf needs");
	snprintf(self_path, sizeof(self_path), "%s", own_path());
	ASSERT_EQ(cowstat("--stacks=lines", "-o", "-", "--", self_path, "--copy", NULL), 0)
		TH_LOG("%s", run.errors);
	snprintf(want, sizeof(want), ");copy_inner (cowstat_stock.c:%d) 64\n", COPYING_LINE);
	EXPECT_NE(strstr(run.text, want), NULL)
		TH_LOG("%s", run.text);
	EXPECT_NE(strstr(run.text, ";copy_outer (cowstat_stock.c:"), NULL);
	snprintf(want, sizeof(want), ");copy_inner (cowstat_stock.c:%d) 32\n", COPYING_LINE);
	EXPECT_NE(strstr(run.text, want), NULL);
}

/* What perf says of two copies, one of them for nothing */
static const char said_by_perf[] =
	"#!/bin/sh\n"
	"case \"$1\" in\n"
	"record) while [ \"$1\" != -o ]; do shift; done; : > \"$2\" ;;\n"
	"script)\n"
	"	printf 'a b address=0x7000 pid=5 outcome=lost order=0 ahead=0 copy_ns=1 fault_ns=2\\n'\n"
	"	printf '\\t    10ab write_it(char *, int)\\n\\t   10cd main\\n\\n'\n"
	"	printf 'a b address=0x8000 pid=5 outcome=copied order=0 ahead=0 copy_ns=1 fault_ns=2\\n'\n"
	"	printf '\\t    10ab write_it(char *, int)\\n\\t   10cd main\\n\\n' ;;\n"
	"esac\n";

static char fake_path[128];

static bool with_fake_perf(void)
{
	return !setenv("PATH", fake_path, 1);
}

TEST_F_TIMEOUT(bill, lost_stacks, TEST_TIMEOUT)
{
	char path[128];

	if (access(TRACEFS "/events/cow", F_OK))
		SKIP(return, "the kernel does not tell lost copies from others");
	ASSERT_EQ(fake_begin(), 0);
	fake_text("perf", said_by_perf);
	snprintf(path, sizeof(path), "%s/perf", fake);
	ASSERT_EQ(chmod(path, 0755), 0);
	snprintf(fake_path, sizeof(fake_path), "%s:/bin:/usr/bin", fake);
	EXPECT_EQ(cowstat_prepared(with_fake_perf, "--stacks", "-o", "-", "--", "true", NULL), 0)
		TH_LOG("%s", run.errors);
	EXPECT_STREQ(run.text, "a b;main;write_it(char *, int) 1\n"
			       "a b;main;write_it(char *, int);[lost] 1\n");
	fake_end();
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--copy"))
		_exit(copy());
	if (argc == 3 && !strcmp(argv[1], "--spend"))
		_exit(spend(atoi(argv[2]), false));
	if (argc == 3 && !strcmp(argv[1], "--linger"))
		_exit(spend(atoi(argv[2]), true));
	return test_harness_run(argc, argv);
}
