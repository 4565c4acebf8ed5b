// SPDX-License-Identifier: GPL-2.0
/*
 * The interfaces of the copy-on-write counters, as programs and scripts use them
 *
 * /proc/cow_stats, /proc/<pid>/cow_stats and /proc/cow_histogram: keys, order, format, who
 * may read and reset them, and the values for a known number of faults. The vm.cow_*
 * sysctls: which values they accept. The trace events.
 *
 * Exact values are those of this process' counters. Other processes add to the system's,
 * which therefore are lower bounds here; cow_counts.c tests their exact values.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctype.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define PAGES		64	/* a multiple of any window and the page itself */
#define NOBODY		65534
#define FILE_SIZE	65536	/* more than the histogram has with all buckets used */
#define PROCESS_FILE	"/proc/self/cow_stats"
#define HIST_FILE	"/proc/cow_histogram"

FIXTURE(cow_abi)
{
	struct cow_settings saved;
	size_t ps;
};

FIXTURE_VARIANT(cow_abi)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(cow_abi, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(cow_abi, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(cow_abi, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(cow_abi, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(cow_abi)
{
	const char *reason;

	reason = cow_setup(&self->saved, variant->ahead, 0);
	if (reason)
		SKIP(return, "%s", reason);
	self->ps = cow_page_size();
	/* No folio may be in another CPU's LRU batch: it would be copied, not reused. */
	ASSERT_EQ(cow_pin_cpu(), 0);
}

FIXTURE_TEARDOWN_PARENT(cow_abi)
{
	cow_restore(&self->saved);
}

/* May we write what only root may? */
static bool is_root(void)
{
	return cow_may_change() && !access(COW_SYSCTL_DIR "cow_stats", W_OK);
}

/*
 * Faults
 */

/* How the pages came to be read-only: */
enum kind {
	SHARED,		/* with a child that is there */
	LEFT,		/* with a child that is gone: nobody else has them */
	FILE_PAGES,	/* private mapping of a file */
	ZERO_PAGE,
	NR_KINDS
};

/* What the last count_writes() added to the system's counters, at least */
static struct cow_stats system_delta;

/* What writing PAGES of them added to the counters of this process */
static int count_writes(struct cow_stats *delta, enum kind kind, char *area)
{
	static struct cow_stats before, after, system_before, system_after;
	size_t ps = cow_page_size(), i;
	struct cow_child child;
	int ret = 0;

	for (i = 0; i < PAGES; i++) {
		if (kind == SHARED || kind == LEFT)
			cow_touch(area + i * ps, 1);
		else
			cow_peek(area + i * ps);
	}
	if (kind == SHARED || kind == LEFT) {
		ret = cow_child_idle(&child);
		if (ret)
			return ret;
	}
	if (kind == LEFT && cow_child_end(&child))
		return -ECHILD;
	/* The first reads unshare the pages that the reads themselves write to. */
	ret = cow_stats_read(&system_after) ?: cow_stats_read_pid(&after, 0) ?:
	      cow_stats_read(&system_before) ?: cow_stats_read_pid(&before, 0);
	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, 2);
	ret = ret ?: cow_stats_read_pid(&after, 0) ?: cow_stats_read(&system_after);
	if (kind == SHARED && cow_child_end(&child))
		return -ECHILD;
	if (ret)
		return ret;
	cow_stats_delta(delta, &before, &after);
	cow_stats_delta(&system_delta, &system_before, &system_after);
	return 0;
}

static char *map_pages(enum kind kind)
{
	size_t ps = cow_page_size();
	char *area;
	int fd;

	area = cow_map(PAGES * ps, PAGES * ps);
	if (!area || kind != FILE_PAGES)
		return area;
	fd = memfd_create("cow_abi", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, PAGES * ps) ||
	    mmap(area, PAGES * ps, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_FIXED, fd, 0) != area)
		return NULL;
	close(fd);
	return area;
}

static int faults_of(struct cow_stats *delta, enum kind kind)
{
	char *area = map_pages(kind);
	int ret;

	if (!area)
		return -ENOMEM;
	ret = count_writes(delta, kind, area);
	cow_unmap(area, PAGES * cow_page_size());
	return ret;
}

/* The faults that it takes to write PAGES shared pages upward */
static unsigned long long expected_faults(int ahead)
{
	return cow_upward(PAGES, ahead, false).faults;
}

/* The same for pages that nobody else has */
static unsigned long long expected_reuses(int ahead)
{
	return cow_upward(PAGES, ahead, true).faults;
}

/* Switch all counting off, and read the counters until faults in progress have ended. */
static int read_frozen(struct cow_stats *s)
{
	struct cow_stats again;
	int ret;

	ret = cow_sysctl_write("cow_stats", 0) ?:
	      cow_sysctl_write("cow_precopy", 0);
	do {
		ret = ret ?: cow_stats_read(s) ?: cow_stats_read(&again);
	} while (!ret && memcmp(s, &again, sizeof(*s)));
	return ret;
}

static int reset(void)
{
	return cow_write_file(COW_STATS_FILE, "0\n");
}

/*
 * The file
 */

/* These keys once each, in this order, and nothing else */
static void check_format(struct __test_metadata *_metadata, const char *path,
			 bool (*has_key)(int key))
{
	char buf[FILE_SIZE], *line = buf;
	unsigned long long val;
	char want[128];
	int i;

	ASSERT_GT(cow_read_file(path, buf, sizeof(buf)), 0);
	for (i = 0; i < COW_NR_KEYS; i++) {
		if (!has_key(i))
			continue;
		snprintf(want, sizeof(want), "%s: ", cow_key_names[i]);
		ASSERT_EQ(strncmp(line, want, strlen(want)), 0)
			TH_LOG("'%.40s' instead of '%s'", line, want);
		errno = 0;
		val = strtoull(line + strlen(want), NULL, 10);
		ASSERT_EQ(errno, 0);
		/* No sign, no leading zero or blank, nothing behind it */
		snprintf(want, sizeof(want), "%s: %llu\n", cow_key_names[i],
			 val);
		ASSERT_EQ(strncmp(line, want, strlen(want)), 0)
			TH_LOG("'%.40s' instead of '%s'", line, want);
		line += strlen(want);
	}
	ASSERT_STREQ(line, "");
}

static bool system_has(int key)
{
	return key < COW_NR_SYSTEM_KEYS;
}

static bool process_has(int key)
{
	switch (key) {
	case COW_P50_NS:
	case COW_P90_NS:
	case COW_P95_NS:
	case COW_P99_NS:
	case COW_FAULT_P50_NS:
	case COW_FAULT_P99_NS:
		return false;
	}
	return true;
}

TEST_F_TIMEOUT(cow_abi, format, TEST_TIMEOUT)
{
	check_format(_metadata, COW_STATS_FILE, system_has);
}

TEST_F_TIMEOUT(cow_abi, process_format, TEST_TIMEOUT)
{
	check_format(_metadata, PROCESS_FILE, process_has);
}

/* Nothing in the files changes any more. */
static int freeze(void)
{
	struct cow_stats s;
	long stats, precopy;
	int ret;

	if (is_root())
		return read_frozen(&s);
	ret = cow_sysctl_read("cow_stats", &stats) ?:
	      cow_sysctl_read("cow_precopy", &precopy);
	return ret ?: stats || precopy ? -EACCES : 0;
}

/* The content is the same for any size of read. */
static void check_partial_reads(struct __test_metadata *_metadata,
				const char *path)
{
	static const size_t chunks[] = { 1, 2, 7, 64, 333, 1000, FILE_SIZE };
	static char whole[FILE_SIZE], buf[FILE_SIZE];
	ssize_t len, n, off;
	size_t i;
	int fd;

	len = cow_read_file(path, whole, sizeof(whole));
	ASSERT_GT(len, 0);
	ASSERT_LT(len, FILE_SIZE - 1);

	fd = open(path, O_RDONLY);
	ASSERT_GE(fd, 0);
	for (i = 0; i < ARRAY_SIZE(chunks); i++) {
		ASSERT_EQ(lseek(fd, 0, SEEK_SET), 0);
		off = 0;
		do {
			ASSERT_LT(off + (ssize_t)chunks[i],
				  (ssize_t)(2 * sizeof(buf)));
			n = chunks[i];
			if (n > (ssize_t)sizeof(buf) - off)
				n = sizeof(buf) - off;
			n = read(fd, buf + off, n);
			ASSERT_GE(n, 0);
			off += n;
		} while (n);
		ASSERT_EQ(off, len)
			TH_LOG("in chunks of %zu bytes", chunks[i]);
		ASSERT_EQ(memcmp(buf, whole, len), 0)
			TH_LOG("in chunks of %zu bytes", chunks[i]);
	}
	/* Backward, so that each read starts from the beginning again. */
	for (off = len - 1; off >= 0; off -= 13) {
		n = pread(fd, buf, 20, off);
		ASSERT_EQ(n, len - off < 20 ? len - off : 20);
		ASSERT_EQ(memcmp(buf, whole + off, n), 0)
			TH_LOG("at offset %zd", off);
	}
	ASSERT_EQ(lseek(fd, len / 2, SEEK_SET), len / 2);
	ASSERT_EQ(read(fd, buf, sizeof(buf)), len - len / 2);
	ASSERT_EQ(memcmp(buf, whole + len / 2, len - len / 2), 0);
	EXPECT_EQ(pread(fd, buf, sizeof(buf), len), 0);
	EXPECT_EQ(pread(fd, buf, sizeof(buf), len + 1000), 0);
	close(fd);
}

TEST_F_TIMEOUT(cow_abi, partial_reads, TEST_TIMEOUT)
{
	if (freeze())
		SKIP(return, "switching the counters needs root");
	check_partial_reads(_metadata, COW_STATS_FILE);
}

TEST_F_TIMEOUT(cow_abi, process_partial_reads, TEST_TIMEOUT)
{
	if (freeze())
		SKIP(return, "switching the counters needs root");
	check_partial_reads(_metadata, PROCESS_FILE);
}

TEST_F_TIMEOUT(cow_abi, histogram_partial_reads, TEST_TIMEOUT)
{
	struct cow_stats delta;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	ASSERT_EQ(faults_of(&delta, SHARED), 0);
	ASSERT_EQ(freeze(), 0);
	check_partial_reads(_metadata, HIST_FILE);
}

/* Even root cannot write to these; an attempt changes nothing. */
static void check_read_only(struct __test_metadata *_metadata,
			    const char *path, mode_t mode)
{
	static char before[FILE_SIZE], after[FILE_SIZE];
	struct stat st;
	int fd;

	ASSERT_EQ(stat(path, &st), 0);
	EXPECT_TRUE(S_ISREG(st.st_mode));
	EXPECT_EQ(st.st_mode & 07777, mode);
	ASSERT_GT(cow_read_file(path, before, sizeof(before)), 0);
	fd = open(path, O_RDWR | O_TRUNC);
	if (fd < 0) {
		EXPECT_EQ(errno, EACCES);
	} else {
		EXPECT_EQ(write(fd, "0\n", 2), -1);
		EXPECT_TRUE(errno == EINVAL || errno == EIO)
			TH_LOG("%s", strerror(errno));
		EXPECT_EQ(pwrite(fd, "0", 1, 1), -1);
		close(fd);
	}
	ASSERT_GT(cow_read_file(path, after, sizeof(after)), 0);
	EXPECT_STREQ(before, after);
}

TEST_F_TIMEOUT(cow_abi, read_only, TEST_TIMEOUT)
{
	struct cow_stats delta;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	ASSERT_EQ(faults_of(&delta, SHARED), 0);
	ASSERT_EQ(freeze(), 0);
	check_read_only(_metadata, PROCESS_FILE, 0400);
	check_read_only(_metadata, HIST_FILE, 0444);
}

/* It has no address space, so there is nothing to say. */
TEST_F_TIMEOUT(cow_abi, kernel_thread, TEST_TIMEOUT)
{
	char buf[FILE_SIZE];
	struct cow_stats s;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	if (cow_read_file("/proc/2/comm", buf, sizeof(buf)) <= 0 ||
	    strcmp(buf, "kthreadd\n"))
		SKIP(return, "process 2 is no kernel thread");
	EXPECT_EQ(cow_read_file("/proc/2/cow_stats", buf, sizeof(buf)), 0);
	EXPECT_EQ(cow_stats_read_pid(&s, 2), -ENODATA);
}

static const char * const sysctls[] = {
	"cow_stats", "cow_sample_interval", "cow_precopy", "cow_precopy_pages",
	"cow_precopy_max",
};

/* As nobody: 0, or the number of the check that failed */
static int check_nobody(struct cow_child *self, void *arg)
{
	char path[128], buf[FILE_SIZE];
	size_t i;

	(void)self;
	(void)arg;
	if (!getuid() && (setgroups(0, NULL) ||
			  setresgid(NOBODY, NOBODY, NOBODY) ||
			  setresuid(NOBODY, NOBODY, NOBODY)))
		return 1;
	if (cow_read_file(COW_STATS_FILE, buf, sizeof(buf)) <= 0)
		return 2;
	if (strncmp(buf, "faults: ", 8))
		return 3;
	if (cow_read_file(HIST_FILE, buf, sizeof(buf)) < 0)
		return 6;
	if (open(COW_STATS_FILE, O_WRONLY) >= 0 || errno != EACCES)
		return 4;
	if (open(COW_STATS_FILE, O_RDWR) >= 0 || errno != EACCES)
		return 5;
	for (i = 0; i < ARRAY_SIZE(sysctls); i++) {
		snprintf(path, sizeof(path), COW_SYSCTL_DIR "%s", sysctls[i]);
		if (cow_read_file(path, buf, sizeof(buf)) <= 0)
			return 10 + i;
		if (open(path, O_WRONLY) >= 0 || errno != EACCES)
			return 20 + i;
	}
	return 0;
}

TEST_F_TIMEOUT(cow_abi, permissions, TEST_TIMEOUT)
{
	struct cow_child child;
	char path[128];
	struct stat st;
	size_t i;

	ASSERT_EQ(stat(COW_STATS_FILE, &st), 0);
	EXPECT_TRUE(S_ISREG(st.st_mode));
	/* 0444 or 0644: root may write in either case. */
	EXPECT_EQ(st.st_mode & 07577, 0444U);
	EXPECT_EQ(st.st_uid, 0U);
	for (i = 0; i < ARRAY_SIZE(sysctls); i++) {
		snprintf(path, sizeof(path), COW_SYSCTL_DIR "%s", sysctls[i]);
		ASSERT_EQ(stat(path, &st), 0);
		EXPECT_EQ(st.st_mode & 07777, 0644U)
			TH_LOG("vm.%s", sysctls[i]);
		EXPECT_EQ(st.st_uid, 0U);
	}
	ASSERT_EQ(cow_child_fork(&child, check_nobody, NULL), 0);
	EXPECT_EQ(cow_child_end(&child), 0);
}

#define THREAD_FILE	"/proc/thread-self/cow_stats"

struct files {
	int parents;		/* opened by root */
	int parents_thread;
	int own;
};

/* A process that may not trace another reads nothing of it, whoever opened the file. */
static bool may_not_read(int fd)
{
	char buf[FILE_SIZE];

	return pread(fd, buf, sizeof(buf), 0) < 0 && errno == EACCES;
}

/* As nobody: whose files may be read? 0, or the number of the check that failed */
static int check_nobodys_own(struct cow_child *self, void *arg)
{
	struct files *files = arg;
	char path[64], buf[FILE_SIZE];
	struct cow_stats s;

	files->own = open(PROCESS_FILE, O_RDONLY);
	if (files->own < 0 || pread(files->own, buf, sizeof(buf), 0) <= 0)
		return 1;
	if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		return 2;
	/* Root's process: neither by path nor by a descriptor that root has opened */
	snprintf(path, sizeof(path), "/proc/%d/cow_stats", self->pid);
	if (open(path, O_RDONLY) >= 0 || errno != EACCES)
		return 3;
	if (cow_stats_read_pid(&s, self->pid) != -EACCES)
		return 4;
	if (!may_not_read(files->parents) || !may_not_read(files->parents_thread))
		return 5;
	/* Its own file belongs to root until it is dumpable again; but it is open already. */
	if (pread(files->own, buf, sizeof(buf), 0) <= 0)
		return 6;
	if (prctl(PR_SET_DUMPABLE, 1))
		return 7;
	if (cow_stats_read_pid(&s, 0) || cow_stats_read_pid(&s, getpid()))
		return 8;
	if (open(PROCESS_FILE, O_WRONLY) >= 0 || errno != EACCES)
		return 9;
	return 0;
}

TEST_F_TIMEOUT(cow_abi, process_permissions, TEST_TIMEOUT)
{
	struct cow_child child;
	struct files files;
	struct stat st;

	ASSERT_EQ(stat(PROCESS_FILE, &st), 0);
	ASSERT_TRUE(S_ISREG(st.st_mode));
	ASSERT_EQ(st.st_mode & 07777, 0400U);
	ASSERT_EQ(stat(THREAD_FILE, &st), 0);
	ASSERT_EQ(st.st_mode & 07777, 0400U);
	if (getuid())
		SKIP(return, COW_NEEDS);
	EXPECT_EQ(st.st_uid, 0U);
	files.parents = open(PROCESS_FILE, O_RDONLY);
	ASSERT_GE(files.parents, 0);
	files.parents_thread = open(THREAD_FILE, O_RDONLY);
	ASSERT_GE(files.parents_thread, 0);
	ASSERT_EQ(cow_child_fork(&child, check_nobodys_own, &files), 0);
	EXPECT_EQ(cow_child_end(&child), 0);
}

/*
 * /proc/vmstat counts the faults of all processes, and has no switch. Other processes
 * may fault at the same time, so the counts are lower bounds.
 */
TEST_F_TIMEOUT(cow_abi, vmstat, TEST_TIMEOUT)
{
	static const char file[] = "/proc/vmstat";
	long copied, reused, ahead, reused_ahead;
	struct cow_stats delta;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	copied = cow_file_key(file, "pgcow_copied");
	reused = cow_file_key(file, "pgcow_reused");
	ahead = cow_file_key(file, "pgcow_ahead");
	reused_ahead = cow_file_key(file, "pgcow_reused_ahead");
	ASSERT_GE(cow_file_key(file, "pgcow_lost"), 0);
	ASSERT_GE(copied, 0);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	ASSERT_EQ(faults_of(&delta, SHARED), 0);
	ASSERT_EQ(faults_of(&delta, LEFT), 0);
	copied = cow_file_key(file, "pgcow_copied") - copied;
	reused = cow_file_key(file, "pgcow_reused") - reused;
	ahead = cow_file_key(file, "pgcow_ahead") - ahead;
	reused_ahead = cow_file_key(file, "pgcow_reused_ahead") - reused_ahead;
	EXPECT_GE(copied, (long)expected_faults(variant->ahead));
	EXPECT_GE(ahead, (long)(PAGES - expected_faults(variant->ahead)));
	EXPECT_GE(reused, (long)expected_reuses(variant->ahead));
	EXPECT_GE(reused + reused_ahead, (long)PAGES);
	EXPECT_EQ(ahead > 0, variant->ahead != 0);
}

/* As root of a user namespace: may open the file, but not write to it */
static int reset_as_contained_root(struct cow_child *self, void *arg)
{
	int fd;

	(void)arg;
	/* Not built, switched off, or forbidden */
	if (unshare(CLONE_NEWUSER))
		return errno == EINVAL || errno == ENOSPC || errno == EPERM ? 77 : 1;
	fd = open(COW_STATS_FILE, O_WRONLY);
	if (fd < 0)
		return 2;
	if (write(fd, "0\n", 2) >= 0)
		return 3;
	if (errno != EPERM)
		return 4;
	return cow_child_send(self, fd) ? 5 : cow_child_recv(self) == -EPIPE ? 0 : 6;
}

/* The root of a container does not clear the counters of the host. */
TEST_F_TIMEOUT(cow_abi, reset_in_container, TEST_TIMEOUT)
{
	struct cow_stats before, after;
	struct cow_child child;
	int ret, fd, pidfd;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	ASSERT_EQ(faults_of(&before, SHARED), 0);
	ASSERT_EQ(cow_stats_read(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, reset_as_contained_root, NULL), 0);
	fd = cow_child_recv(&child);
	if (fd < 0) {
		ret = cow_child_end(&child);
		ASSERT_EQ(77, ret);
		SKIP(return, "no user namespaces");
	}
	/* Nor does it when a process that may do so writes to a file it has opened. */
	pidfd = syscall(SYS_pidfd_open, child.pid, 0);
	fd = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	ASSERT_LE(0, fd);
	EXPECT_EQ(write(fd, "0\n", 2), -1);
	EXPECT_EQ(errno, EPERM);
	close(fd);
	close(pidfd);
	EXPECT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(cow_stats_read(&after), 0);
	EXPECT_GE(after.v[COW_FAULTS], before.v[COW_FAULTS]);
}

/* Any write is a reset, of every counter, and counting goes on after it. */
TEST_F_TIMEOUT(cow_abi, reset, TEST_TIMEOUT)
{
	static const char * const texts[] = {
		"0", "0\n", "1\n", "reset\n", "-1", " ", NULL /* a long one */
	};
	struct cow_stats s, delta;
	char text[5000];
	size_t i, len;
	int fd, key;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	for (i = 0; i < ARRAY_SIZE(texts); i++) {
		if (texts[i]) {
			snprintf(text, sizeof(text), "%s", texts[i]);
		} else {
			memset(text, 'x', sizeof(text));
			text[sizeof(text) - 1] = '\0';
		}
		len = strlen(text);
		ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
		ASSERT_EQ(cow_sysctl_write("cow_precopy", !!variant->ahead), 0);
		ASSERT_EQ(faults_of(&delta, SHARED), 0);
		ASSERT_EQ(faults_of(&delta, LEFT), 0);
		ASSERT_EQ(read_frozen(&s), 0);
		/* The last reset set them to zero; other processes may add to them. */
		ASSERT_GE(s.v[COW_FAULTS], expected_faults(variant->ahead));
		ASSERT_GE(s.v[COW_REUSED], expected_reuses(variant->ahead));
		ASSERT_GE(s.v[COW_REUSED] + s.v[COW_REUSE_AHEAD],
			  (unsigned long long)PAGES);
		ASSERT_GT(s.v[COW_TOTAL_NS], 0ULL);
		ASSERT_GT(s.v[COW_MIN_NS], 0ULL);
		ASSERT_GE(s.v[COW_MAX_NS], s.v[COW_MIN_NS]);
		ASSERT_GT(s.v[COW_P50_NS], 0ULL);
		ASSERT_GT(s.v[COW_FAULT_TOTAL_NS], 0ULL);
		ASSERT_GT(s.v[COW_FAULT_P50_NS], 0ULL);
		if (variant->ahead)
			ASSERT_GE(s.v[COW_SUCCESS], PAGES -
				  expected_faults(variant->ahead));

		fd = open(COW_STATS_FILE, O_WRONLY);
		ASSERT_GE(fd, 0);
		ASSERT_EQ(write(fd, text, len), (ssize_t)len);
		close(fd);
		ASSERT_EQ(cow_stats_read(&s), 0);
		for (key = 0; key < COW_NR_SYSTEM_KEYS; key++) {
			ASSERT_EQ(s.v[key], 0ULL)
				TH_LOG("%s after writing '%.10s'",
				       cow_key_names[key], text);
		}
		ASSERT_EQ(s.skips, 0ULL);
		ASSERT_EQ(cow_read_file(HIST_FILE, text, sizeof(text)), 0);
	}
}

/*
 * The numbers
 */

static void check_faults(struct __test_metadata *_metadata, enum kind kind,
			 unsigned long long faults, unsigned long long reused,
			 unsigned long long attempts)
{
	unsigned long long reuse_ahead = kind == LEFT ? PAGES - reused : 0;
	static const int keys[] = {
		COW_FAULTS, COW_REUSED, COW_REUSE_AHEAD, COW_ATTEMPTS, COW_SUCCESS,
		COW_TOTAL_NS, COW_FAULT_TOTAL_NS,
	};
	struct cow_stats delta;
	size_t i;

	ASSERT_EQ(faults_of(&delta, kind), 0);
	/* Other processes add to these; cow_counts.c tests the exact values. */
	for (i = 0; i < ARRAY_SIZE(keys); i++)
		EXPECT_GE(system_delta.v[keys[i]], delta.v[keys[i]])
			TH_LOG("%s of the system", cow_key_names[keys[i]]);
	EXPECT_EQ(delta.v[COW_REUSE_AHEAD], reuse_ahead);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_REUSED], reused);
	EXPECT_EQ(delta.v[COW_ATTEMPTS], attempts);
	EXPECT_EQ(delta.v[COW_SUCCESS], attempts);
	EXPECT_EQ(delta.skips, 0ULL);
	EXPECT_GE(delta.v[COW_TOTAL_NS], faults);
	EXPECT_GE(delta.v[COW_FAULT_TOTAL_NS], delta.v[COW_TOTAL_NS]);
}

/* Shared with a child: one copy each, or one for a whole window. */
TEST_F_TIMEOUT(cow_abi, count_shared, TEST_TIMEOUT)
{
	unsigned long long faults = expected_faults(variant->ahead);

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	check_faults(_metadata, SHARED, faults, 0, PAGES - faults);
}

/*
 * The child is gone: nothing is copied, so nothing is copied ahead. An adaptive
 * window makes pages writable ahead, a fixed one does not.
 */
TEST_F_TIMEOUT(cow_abi, count_reused, TEST_TIMEOUT)
{
	unsigned long long reuses = expected_reuses(variant->ahead);

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(reuses < PAGES, variant->ahead == COW_ADAPTIVE);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	check_faults(_metadata, LEFT, 0, reuses, 0);
}

/* Each page that was made writable is one pgreuse, in a fault or ahead of it. */
TEST_F_TIMEOUT(cow_abi, count_pgreuse, TEST_TIMEOUT)
{
	static struct cow_stats delta, others, others_end;
	long long count, want = PAGES;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	if (cow_file_key("/proc/vmstat", "pgreuse") < 0)
		SKIP(return, "no pgreuse in /proc/vmstat");
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	/* The counter is system-wide: repeat while other processes have faults. */
	do {
		ASSERT_EQ(cow_count_others(&others), 0);
		count = -cow_file_key("/proc/vmstat", "pgreuse");
		ASSERT_EQ(faults_of(&delta, LEFT), 0);
		count += cow_file_key("/proc/vmstat", "pgreuse");
		ASSERT_EQ(cow_count_others(&others_end), 0);
		EXPECT_GE(count, want);
		/* The fork and the reads take some of our own. */
	} while (count >= want + PAGES / 2 && memcmp(&others, &others_end, sizeof(others)));
	EXPECT_LT(count, want + PAGES / 2);
}

/* Pages of a file are copied one by one. */
TEST_F_TIMEOUT(cow_abi, count_file, TEST_TIMEOUT)
{
	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	check_faults(_metadata, FILE_PAGES, PAGES, 0, 0);
}

/* vm.cow_stats and vm.cow_precopy each switch their own counters. */
TEST_F_TIMEOUT(cow_abi, switches, TEST_TIMEOUT)
{
	unsigned long long faults = expected_faults(variant->ahead);
	struct cow_stats s, delta;
	int key;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	/* vm.cow_stats off: only what is copied ahead counts. */
	ASSERT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	ASSERT_EQ(reset(), 0);
	ASSERT_EQ(faults_of(&delta, SHARED), 0);
	ASSERT_EQ(faults_of(&delta, LEFT), 0);
	ASSERT_EQ(cow_stats_read(&s), 0);
	for (key = COW_FAULTS; key <= COW_FAULT_P99_NS; key++) {
		EXPECT_EQ(s.v[key], 0ULL)
			TH_LOG("%s with vm.cow_stats=0", cow_key_names[key]);
	}
	EXPECT_GE(s.v[COW_SUCCESS], PAGES - faults);
	if (!variant->ahead)
		EXPECT_EQ(s.v[COW_ATTEMPTS], 0ULL);

	/* vm.cow_precopy off: only the faults do. */
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	ASSERT_EQ(cow_sysctl_write("cow_precopy", 0), 0);
	ASSERT_EQ(reset(), 0);
	ASSERT_EQ(faults_of(&delta, SHARED), 0);
	ASSERT_EQ(cow_stats_read(&s), 0);
	EXPECT_GE(s.v[COW_FAULTS], (unsigned long long)PAGES);
	for (key = COW_ATTEMPTS; key < COW_NR_SYSTEM_KEYS; key++) {
		EXPECT_EQ(s.v[key], 0ULL)
			TH_LOG("%s with vm.cow_precopy=0", cow_key_names[key]);
	}
}

/* The times are a distribution. */
TEST_F_TIMEOUT(cow_abi, percentiles, TEST_TIMEOUT)
{
	unsigned long long faults;
	struct cow_stats s, delta;
	int i, ret = 0;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	ASSERT_EQ(reset(), 0);
	for (i = 0; !ret && i < 8; i++)
		ret = faults_of(&delta, SHARED);
	ASSERT_EQ(ret, 0);
	ASSERT_EQ(read_frozen(&s), 0);

	faults = s.v[COW_FAULTS];
	ASSERT_GE(faults, 8 * expected_faults(variant->ahead));
	EXPECT_GT(s.v[COW_MIN_NS], 0ULL);
	EXPECT_LE(s.v[COW_MIN_NS], s.v[COW_P50_NS]);
	EXPECT_LE(s.v[COW_P50_NS], s.v[COW_P90_NS]);
	EXPECT_LE(s.v[COW_P90_NS], s.v[COW_P95_NS]);
	EXPECT_LE(s.v[COW_P95_NS], s.v[COW_P99_NS]);
	EXPECT_LE(s.v[COW_P99_NS], s.v[COW_MAX_NS]);
	EXPECT_LE(s.v[COW_MIN_NS], s.v[COW_AVG_NS]);
	EXPECT_LE(s.v[COW_AVG_NS], s.v[COW_MAX_NS]);
	EXPECT_LE(s.v[COW_AVG_NS] * faults, s.v[COW_TOTAL_NS]);
	EXPECT_GE((s.v[COW_AVG_NS] + 1) * faults, s.v[COW_TOTAL_NS]);
	EXPECT_LE(s.v[COW_FAULT_P50_NS], s.v[COW_FAULT_P99_NS]);
	EXPECT_GT(s.v[COW_FAULT_P50_NS], 0ULL);
	EXPECT_GE(s.v[COW_FAULT_TOTAL_NS], s.v[COW_TOTAL_NS]);
}

struct bucket {
	unsigned long long lowest;
	unsigned long long highest;
	unsigned long long count;
};

#define MAX_BUCKETS	2048

/*
 * The lines that begin with name, from *text on, which is moved behind them:
 * how many, or -EPROTO if they are not just "NAME LOWEST HIGHEST COUNT".
 */
static int read_buckets(const char *name, const char **text, struct bucket *b)
{
	char word[16], line[128];
	int nr = 0;

	while (sscanf(*text, "%15s", word) == 1 && !strcmp(word, name)) {
		if (nr == MAX_BUCKETS ||
		    sscanf(*text, "%*s %llu %llu %llu", &b[nr].lowest,
			   &b[nr].highest, &b[nr].count) != 3)
			return -EPROTO;
		snprintf(line, sizeof(line), "%s %llu %llu %llu\n", name,
			 b[nr].lowest, b[nr].highest, b[nr].count);
		if (strncmp(*text, line, strlen(line)))
			return -EPROTO;
		*text += strlen(line);
		nr++;
	}
	return nr;
}

/* Nearest rank, and the middle of the bucket stands for it. */
static unsigned long long percentile(const struct bucket *b, int nr,
				     unsigned long long total, int percent)
{
	unsigned long long rank = (total * percent + 99) / 100, seen = 0;
	int i;

	for (i = 0; i < nr; i++) {
		seen += b[i].count;
		if (seen >= rank)
			return b[i].lowest +
			       (b[i].highest - b[i].lowest + 1) / 2;
	}
	return 0;
}

static void check_buckets(struct __test_metadata *_metadata,
			  const struct bucket *b, int nr,
			  unsigned long long total, unsigned long long sum)
{
	unsigned long long count = 0, least = 0, most = 0, width;
	int i;

	for (i = 0; i < nr; i++) {
		ASSERT_LE(b[i].lowest, b[i].highest);
		if (i)
			ASSERT_GT(b[i].lowest, b[i - 1].highest);
		/* The documented precision is 1/64 to either side of the middle. */
		width = b[i].highest - b[i].lowest + 1;
		EXPECT_TRUE(width == 1 || 32 * width <= b[i].lowest)
			TH_LOG("%llu to %llu", b[i].lowest, b[i].highest);
		EXPECT_GT(b[i].count, 0ULL);
		count += b[i].count;
		least += b[i].count * b[i].lowest;
		most += b[i].count * b[i].highest;
	}
	EXPECT_EQ(count, total);
	EXPECT_LE(least, sum);
	EXPECT_GE(most, sum);
}

static unsigned long long clamp(unsigned long long val, unsigned long long low,
				unsigned long long high)
{
	return val < low ? low : val > high ? high : val;
}

/* The histograms match the counters, and the percentiles match the histograms. */
TEST_F_TIMEOUT(cow_abi, histogram, TEST_TIMEOUT)
{
	static const struct {
		enum cow_key key;
		int percent;
		bool fault;
	} percentiles[] = {
		{ COW_P50_NS, 50, false },
		{ COW_P90_NS, 90, false },
		{ COW_P95_NS, 95, false },
		{ COW_P99_NS, 99, false },
		{ COW_FAULT_P50_NS, 50, true },
		{ COW_FAULT_P99_NS, 99, true },
	};
	static struct bucket copy[MAX_BUCKETS], fault[MAX_BUCKETS];
	static struct cow_hist copies, faults;
	static char buf[1 << 17];
	const char *text = buf;
	struct cow_stats s, delta;
	unsigned long long missing = 30 * sysconf(_SC_NPROCESSORS_CONF);
	int i, copy_nr, fault_nr;
	unsigned long long val, total;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	ASSERT_EQ(reset(), 0);
	for (i = 0; i < 8; i++) {
		ASSERT_EQ(faults_of(&delta, SHARED), 0);
		ASSERT_EQ(faults_of(&delta, LEFT), 0);
	}
	ASSERT_EQ(read_frozen(&s), 0);
	ASSERT_GT(cow_read_file(HIST_FILE, buf, sizeof(buf)), 0);

	copy_nr = read_buckets("copy", &text, copy);
	ASSERT_GT(copy_nr, 0);
	fault_nr = read_buckets("fault", &text, fault);
	ASSERT_GT(fault_nr, 0);
	ASSERT_STREQ(text, "");
	ASSERT_GT(s.v[COW_REUSED], 0ULL);
	check_buckets(_metadata, copy, copy_nr, s.v[COW_FAULTS],
		      s.v[COW_TOTAL_NS]);
	/* One reuse in 31 stands for all: some are missing, or too many. */
	ASSERT_EQ(cow_hist_read(&copies, &faults), 0);
	total = cow_hist_total(&faults);
	EXPECT_LE(total, s.v[COW_FAULTS] + s.v[COW_REUSED] + missing);
	EXPECT_GE(total + missing, s.v[COW_FAULTS] + s.v[COW_REUSED]);
	check_buckets(_metadata, fault, fault_nr, total,
		      s.v[COW_FAULT_TOTAL_NS]);
	/* The extremes are in the first and in the last bucket. */
	EXPECT_GE(s.v[COW_MIN_NS], copy[0].lowest);
	EXPECT_LE(s.v[COW_MIN_NS], copy[0].highest);
	EXPECT_GE(s.v[COW_MAX_NS], copy[copy_nr - 1].lowest);
	EXPECT_LE(s.v[COW_MAX_NS], copy[copy_nr - 1].highest);

	for (i = 0; i < (int)ARRAY_SIZE(percentiles); i++) {
		int percent = percentiles[i].percent;

		if (percentiles[i].fault) {
			val = percentile(fault, fault_nr, total, percent);
			EXPECT_EQ(cow_hist_percentile(&faults, percent), val);
			val = clamp(val, 0, s.v[COW_FAULT_MAX_NS]);
		} else {
			val = percentile(copy, copy_nr, s.v[COW_FAULTS],
					 percent);
			EXPECT_EQ(cow_hist_percentile(&copies, percent), val);
			val = clamp(val, s.v[COW_MIN_NS], s.v[COW_MAX_NS]);
		}
		EXPECT_EQ(s.v[percentiles[i].key], val)
			TH_LOG("%s", cow_key_names[percentiles[i].key]);
	}

	ASSERT_EQ(reset(), 0);
	EXPECT_EQ(cow_read_file(HIST_FILE, buf, sizeof(buf)), 0);
	ASSERT_EQ(cow_hist_read(&copies, &faults), 0);
	EXPECT_EQ(cow_hist_total(&copies), 0ULL);
	EXPECT_EQ(cow_hist_total(&faults), 0ULL);
}

/* attempts is the sum of success and all skip counters. */
TEST_F_TIMEOUT(cow_abi, attempts_add_up, TEST_TIMEOUT)
{
	size_t ps = self->ps, len = PAGES * ps;
	struct cow_stats s;
	struct cow_child child, second;
	__u64 state = 7;
	char *area;
	size_t i;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(reset(), 0);
	area = cow_map(len, 0);
	ASSERT_NE(area, NULL);
	/* Every 4th page is not there, or the zero page, ... */
	for (i = 0; i < PAGES; i++)
		if (i % 4)
			cow_touch(area + i * ps, 1);
		else if (i % 8)
			cow_peek(area + i * ps);
	ASSERT_EQ(madvise(area + len / 4 * 3, len / 4, MADV_RANDOM), 0);
	ASSERT_EQ(cow_child_idle(&child), 0);
	/* ... some are written, and then others are shared twice. */
	for (i = 0; i < PAGES / 4; i++)
		cow_touch(area + cow_rand(&state) % PAGES * ps, 2);
	ASSERT_EQ(cow_child_idle(&second), 0);
	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, 3);
	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(cow_child_end(&second), 0);
	ASSERT_EQ(read_frozen(&s), 0);
	cow_unmap(area, len);

	EXPECT_EQ(s.v[COW_ATTEMPTS], s.v[COW_SUCCESS] + s.skips);
	if (variant->ahead) {
		EXPECT_GT(s.v[COW_SUCCESS], 0ULL);
		EXPECT_GT(s.v[COW_SKIP_NOTPRESENT], 0ULL);
		EXPECT_GT(s.v[COW_SKIP_NOTANON], 0ULL);
		EXPECT_GT(s.v[COW_SKIP_MADVISE], 0ULL);
	} else {
		EXPECT_EQ(s.v[COW_ATTEMPTS], 0ULL);
	}
}

/*
 * The sysctls
 */

struct knob {
	const char *name;
	const char *good[8];
	const char *bad[8];
};

static const struct knob knobs[] = {
	{
		.name = "cow_stats",
		.good = { "1", "0" },
		.bad = { "2", "16", "100" },
	},
	{
		.name = "cow_sample_interval",
		.good = { "0", "1", "99", "2147483647", "100" },
		.bad = { "2147483648", "4294967295" },
	},
	{
		.name = "cow_precopy",
		.good = { "1", "0" },
		.bad = { "2", "15", "16" },
	},
	{
		.name = "cow_precopy_pages",
		.good = { "0", "1", "2", "14", "15", "7" },
		.bad = { "16", "31", "2147483647" },
	},
	{
		.name = "cow_precopy_max",
		.good = { "1", "2", "14", "15", "7" },
		.bad = { "0", "16", "31", "2147483647" },
	},
};

/* None of them takes these. The larger ones are 0, 1 and 15 when cut off. */
static const char * const garbage[] = {
	"-1", "-15", "-2147483648", "abc", "1abc", "on", "1.5", "--1", "+1",
	"\n", " ", "4294967296", "4294967297", "4294967311",
	"18446744073709551616", "18446744073709551617",
	"99999999999999999999",
};

/* What write() returned, or a negative errno */
static ssize_t write_knob(const struct knob *knob, const char *text)
{
	char path[128];
	ssize_t ret;
	int fd;

	snprintf(path, sizeof(path), COW_SYSCTL_DIR "%s", knob->name);
	fd = open(path, O_WRONLY);
	if (fd < 0)
		return -errno;
	ret = write(fd, text, strlen(text));
	if (ret < 0)
		ret = -errno;
	close(fd);
	return ret;
}

/* The whole file is the number, in decimal, and a newline. */
static bool knob_reads(const struct knob *knob, const char *val)
{
	char path[128], buf[128], want[64];

	snprintf(path, sizeof(path), COW_SYSCTL_DIR "%s", knob->name);
	snprintf(want, sizeof(want), "%s\n", val);
	return cow_read_file(path, buf, sizeof(buf)) > 0 && !strcmp(buf, want);
}

/* As the kernel was booted, if nobody has changed anything since */
TEST_F_TIMEOUT(cow_abi, sysctl_defaults, TEST_TIMEOUT)
{
	if (self->saved.stats || self->saved.precopy)
		SKIP(return, "vm.cow_stats or vm.cow_precopy has been set");
	EXPECT_EQ(self->saved.sample_interval, 0);
	EXPECT_EQ(self->saved.precopy_pages, 0);
	EXPECT_EQ(self->saved.precopy_max, COW_ADAPTIVE_MAX);
}

TEST_F_TIMEOUT(cow_abi, sysctl_accepts, TEST_TIMEOUT)
{
	char text[64];
	size_t i, j;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	for (i = 0; i < ARRAY_SIZE(knobs); i++)
		for (j = 0; knobs[i].good[j]; j++) {
			const char *good = knobs[i].good[j];

			EXPECT_EQ(write_knob(&knobs[i], good),
				  (ssize_t)strlen(good))
				TH_LOG("vm.%s=%s", knobs[i].name, good);
			EXPECT_TRUE(knob_reads(&knobs[i], good))
				TH_LOG("vm.%s=%s", knobs[i].name, good);
			/* As the shell's echo writes it */
			snprintf(text, sizeof(text), "%s\n", good);
			EXPECT_EQ(write_knob(&knobs[i], text),
				  (ssize_t)strlen(text));
			EXPECT_TRUE(knob_reads(&knobs[i], good));
		}
}

static void check_refused(struct __test_metadata *_metadata,
			  const struct knob *knob, const char *now,
			  const char *bad)
{
	EXPECT_EQ(write_knob(knob, bad), -EINVAL)
		TH_LOG("vm.%s='%.30s'", knob->name, bad);
	EXPECT_TRUE(knob_reads(knob, now))
		TH_LOG("vm.%s changed by '%.30s'", knob->name, bad);
}

/* EINVAL, and the value stays. */
TEST_F_TIMEOUT(cow_abi, sysctl_refuses, TEST_TIMEOUT)
{
	char huge[6000];
	size_t i, j, k;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	memset(huge, '1', sizeof(huge));
	huge[sizeof(huge) - 1] = '\0';
	for (i = 0; i < ARRAY_SIZE(knobs); i++) {
		/* Start from each valid value, as a wrong write might happen to set it. */
		for (k = 0; knobs[i].good[k]; k++) {
			const char *now = knobs[i].good[k];

			ASSERT_GT(write_knob(&knobs[i], now), 0);
			for (j = 0; knobs[i].bad[j]; j++)
				check_refused(_metadata, &knobs[i], now,
					      knobs[i].bad[j]);
			for (j = 0; j < ARRAY_SIZE(garbage); j++)
				check_refused(_metadata, &knobs[i], now,
					      garbage[j]);
			check_refused(_metadata, &knobs[i], now, huge);
			/* Writing nothing does nothing. */
			EXPECT_LE(write_knob(&knobs[i], ""), 0);
			EXPECT_TRUE(knob_reads(&knobs[i], now));
		}
	}
}

/*
 * Two numbers are never taken as one whole. The kernel's helpers for integers
 * take the first one and say with a short count that the rest is left.
 */
TEST_F_TIMEOUT(cow_abi, sysctl_two_numbers, TEST_TIMEOUT)
{
	ssize_t ret;
	size_t i;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	for (i = 0; i < ARRAY_SIZE(knobs); i++) {
		ASSERT_GT(write_knob(&knobs[i], knobs[i].good[1]), 0);
		ret = write_knob(&knobs[i], "1 2");
		if (ret < 0) {
			EXPECT_EQ(ret, -EINVAL);
			EXPECT_TRUE(knob_reads(&knobs[i], knobs[i].good[1]));
		} else {
			EXPECT_LT(ret, 3)
				TH_LOG("vm.%s takes '1 2'", knobs[i].name);
			EXPECT_TRUE(knob_reads(&knobs[i], "1"));
		}
	}
}

/* A refused write does not change the kernel's behaviour. */
TEST_F_TIMEOUT(cow_abi, sysctl_refused_has_no_effect, TEST_TIMEOUT)
{
	unsigned long long faults = expected_faults(variant->ahead);

	if (!is_root())
		SKIP(return, COW_NEEDS);
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	EXPECT_EQ(cow_sysctl_write("cow_stats", 2), -EINVAL);
	EXPECT_EQ(cow_sysctl_write("cow_precopy", 2), -EINVAL);
	EXPECT_EQ(cow_sysctl_write("cow_precopy", -1), -EINVAL);
	EXPECT_EQ(cow_sysctl_write("cow_precopy_pages", -1), -EINVAL);
	EXPECT_EQ(cow_sysctl_write("cow_precopy_pages", COW_MAX_AHEAD + 1),
		  -EINVAL);
	EXPECT_EQ(cow_sysctl_write("cow_precopy_max", 0), -EINVAL);
	EXPECT_EQ(cow_sysctl_write("cow_precopy_max", COW_MAX_AHEAD + 1),
		  -EINVAL);
	EXPECT_EQ(cow_sysctl_write("cow_stats", -1), -EINVAL);
	check_faults(_metadata, SHARED, faults, 0, PAGES - faults);
	/* Switched on twice is on once. */
	EXPECT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	EXPECT_EQ(cow_sysctl_write("cow_precopy", !!variant->ahead), 0);
	check_faults(_metadata, SHARED, faults, 0, PAGES - faults);
	EXPECT_EQ(cow_sysctl_write("cow_stats", 0), 0);
	check_faults(_metadata, SHARED, 0, 0, PAGES - faults);
}

/* The bound of an adaptive window does not bound a fixed one. */
TEST_F_TIMEOUT(cow_abi, max_is_for_adaptive, TEST_TIMEOUT)
{
	unsigned long long faults = expected_faults(variant->ahead);

	if (!is_root())
		SKIP(return, COW_NEEDS);
	/* One page ahead of every second one, from the fourth on */
	if (variant->ahead == COW_ADAPTIVE)
		faults = PAGES / 2 + 2;
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);
	ASSERT_EQ(cow_sysctl_write("cow_precopy_max", 1), 0);
	check_faults(_metadata, SHARED, faults, 0, PAGES - faults);
}

/*
 * The trace events
 */

/* The fields after the common ones, in this order */
static bool has_fields(const char *event, const char * const *fields)
{
	char path[256], buf[FILE_SIZE], *p = buf;
	char field[64];

	snprintf(path, sizeof(path), "%s/events/cow/%s/format", cow_tracefs(),
		 event);
	if (cow_read_file(path, buf, sizeof(buf)) <= 0)
		return false;
	for (; *fields; fields++) {
		snprintf(field, sizeof(field), " %s;", *fields);
		p = strstr(p, field);
		if (!p)
			return false;
	}
	return true;
}

TEST_F_TIMEOUT(cow_abi, trace_format, TEST_TIMEOUT)
{
	static const char * const fault[] = {
		"copy_ns", "fault_ns", "address", "pid", "outcome", "order",
		"ahead", NULL
	};
	static const char * const precopy[] = {
		"address", "pid", "asked", "installed", "reason", NULL
	};
	static const char * const reuse[] = { "address", "pid", "nr", NULL };

	if (!cow_tracefs())
		SKIP(return, "no tracefs, or no permission");
	EXPECT_TRUE(has_fields("cow_fault", fault));
	EXPECT_TRUE(has_fields("cow_precopy", precopy));
	EXPECT_TRUE(has_fields("cow_reuse_ahead", reuse));
}

#define FAULT_LINE	\
	" cow_fault: address=%lx pid=%d outcome=%31s order=%*u ahead=%u copy_ns=%llu fault_ns=%llu"
#define PRECOPY_LINE	\
	" cow_precopy: address=%lx pid=%d asked=%u installed=%u reason=%31s"

struct traced {
	unsigned int faults;		/* cow_fault, for pages of the area */
	unsigned int copied;		/* of these, with a time for the copy */
	unsigned int reused;
	unsigned int wrong;		/* a line that is not as it should be */
	unsigned int precopies;		/* cow_precopy, for pages of the area */
	unsigned int full;		/* of these, with a full window */
};

static void count_events(struct traced *t, char *text, char *area, int ahead)
{
	unsigned long long copy_ns, fault_ns;
	unsigned int asked, installed, copied_ahead;
	char word[32], *line, *p;
	unsigned long addr;
	int pid;
	char *save = NULL;

	memset(t, 0, sizeof(*t));
	for (line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		if (*line == '#')
			continue;
		p = strstr(line, " cow_fault: ");
		if (p) {
			if (sscanf(p, FAULT_LINE, &addr, &pid, word,
				   &copied_ahead, &copy_ns, &fault_ns) != 6) {
				t->wrong++;
				continue;
			}
			if (addr - (uintptr_t)area >= PAGES * cow_page_size())
				continue;
			t->faults++;
			if (fault_ns < copy_ns || !fault_ns || pid != getpid())
				t->wrong++;
			if (!!copied_ahead != !strcmp(word, "precopied-around"))
				t->wrong++;
			if (!strcmp(word, "reused"))
				t->reused += !copy_ns;
			else
				t->copied += !!copy_ns;
		}
		p = strstr(line, " cow_precopy: ");
		if (p) {
			if (sscanf(p, PRECOPY_LINE, &addr, &pid, &asked, &installed,
				   word) != 5 || pid != getpid()) {
				t->wrong++;
				continue;
			}
			if (addr - (uintptr_t)area >= PAGES * cow_page_size())
				continue;
			t->precopies++;
			t->full += (ahead == COW_ADAPTIVE ||
				    asked == (unsigned int)ahead) &&
				   installed == asked && !strcmp(word, "none");
		}
	}
}

/* Events of this process, in a trace buffer of its own */
static int trace_writes(struct traced *t, enum kind of, int ahead)
{
	static char text[1 << 20];
	struct cow_stats delta;
	char dir[128], path[256];
	ssize_t len = 0;
	char *area;
	int ret;

	area = map_pages(of);
	if (!area)
		return -ENOMEM;
	snprintf(dir, sizeof(dir), "%s/instances/cow_abi", cow_tracefs());
	if (mkdir(dir, 0700) && errno != EEXIST)
		return -errno;
	snprintf(path, sizeof(path), "%s/set_event_pid", dir);
	ret = cow_write_long(path, getpid());
	snprintf(path, sizeof(path), "%s/events/cow/enable", dir);
	ret = ret ?: cow_write_long(path, 1);
	ret = ret ?: count_writes(&delta, of, area);
	cow_write_long(path, 0);
	snprintf(path, sizeof(path), "%s/trace", dir);
	if (!ret) {
		len = cow_read_file(path, text, sizeof(text));
		ret = len < 0 ? len : 0;
	}
	if (rmdir(dir) && !ret)
		ret = -errno;
	if (!ret)
		count_events(t, text, area, ahead);
	cow_unmap(area, PAGES * cow_page_size());
	return ret;
}

TEST_F_TIMEOUT(cow_abi, trace_events, TEST_TIMEOUT)
{
	struct cow_upward up = cow_upward(PAGES, variant->ahead, false);
	unsigned int reuses = expected_reuses(variant->ahead);
	struct traced t;

	if (!is_root())
		SKIP(return, COW_NEEDS);
	if (!cow_tracefs())
		SKIP(return, "no tracefs");
	ASSERT_EQ(cow_sysctl_write("cow_stats", 1), 0);

	ASSERT_EQ(trace_writes(&t, SHARED, variant->ahead), 0);
	EXPECT_EQ(t.wrong, 0U);
	EXPECT_EQ(t.faults, (unsigned int)up.faults);
	EXPECT_EQ(t.copied, (unsigned int)up.faults);
	EXPECT_EQ(t.precopies, (unsigned int)up.windows);
	EXPECT_EQ(t.full, (unsigned int)up.windows);

	ASSERT_EQ(trace_writes(&t, LEFT, variant->ahead), 0);
	EXPECT_EQ(t.wrong, 0U);
	EXPECT_EQ(t.faults, reuses);
	EXPECT_EQ(t.reused, reuses);
	EXPECT_EQ(t.precopies, 0U);
}

TEST_HARNESS_MAIN
