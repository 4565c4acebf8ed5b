// SPDX-License-Identifier: GPL-2.0
/*
 * Memory cgroups of the tests of copy-on-write faults
 *
 * See cow_helpers.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cow_helpers.h"

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

#define ROOT_CONTROLLERS	COW_CGROUP_ROOT "/cgroup.subtree_control"
/*
 * The end of a cgroup's name if the memory controller was off: cow_cgroup_remove(), maybe
 * in another process, switches it off again.
 */
#define WITH_MEMORY		"_memory"

const char *cow_cgroup_make(char dir[COW_CGROUP_DIR], const char *name)
{
	char now[256];
	bool ours;
	int len;

	dir[0] = '\0';
	if (access(COW_CGROUP_ROOT "/cgroup.controllers", F_OK))
		return "no cgroup2 in " COW_CGROUP_ROOT;
	if (!cow_may_change())
		return "a memory cgroup " COW_NEEDS;
	if (cow_read_file(ROOT_CONTROLLERS, now, sizeof(now)) < 0)
		return "cannot read " ROOT_CONTROLLERS;
	ours = !strstr(now, "memory");
	if (ours && cow_write_file(ROOT_CONTROLLERS, "+memory"))
		return "no memory controller in " COW_CGROUP_ROOT ", or not root";
	len = snprintf(dir, COW_CGROUP_DIR, COW_CGROUP_ROOT "/%s_%d%s", name,
		       getpid(), ours ? WITH_MEMORY : "");
	if (len >= COW_CGROUP_DIR || mkdir(dir, 0755)) {
		if (ours)
			cow_write_file(ROOT_CONTROLLERS, "-memory");
		dir[0] = '\0';
		return "cannot make a cgroup in " COW_CGROUP_ROOT;
	}
	return NULL;
}

static void cgroup_path(char *path, const char *dir, const char *file)
{
	snprintf(path, COW_CGROUP_PATH, "%s/%s", dir, file);
}

int cow_cgroup_write(const char *dir, const char *file, const char *text)
{
	char path[COW_CGROUP_PATH];

	cgroup_path(path, dir, file);
	return cow_write_file(path, text);
}

int cow_cgroup_read(const char *dir, const char *file, long *val)
{
	char path[COW_CGROUP_PATH];

	cgroup_path(path, dir, file);
	return cow_read_long(path, val);
}

const char *cow_cgroup_below(char dir[COW_CGROUP_DIR], const char *parent,
			     const char *name)
{
	int len;

	dir[0] = '\0';
	if (cow_cgroup_write(parent, "cgroup.subtree_control", "+memory"))
		return "no memory controller below a cgroup";
	len = snprintf(dir, COW_CGROUP_DIR, "%s/%s", parent, name);
	if (len >= COW_CGROUP_DIR || mkdir(dir, 0755)) {
		dir[0] = '\0';
		return "cannot make a cgroup in a cgroup";
	}
	return NULL;
}

long long cow_cgroup_key(const char *dir, const char *file, const char *key)
{
	char path[COW_CGROUP_PATH];

	cgroup_path(path, dir, file);
	return cow_file_key(path, key);
}

long long cow_cgroup_event(const char *dir, const char *key)
{
	return cow_cgroup_key(dir, "memory.events", key);
}

long long cow_cgroup_stat(const char *dir, const char *key)
{
	return cow_cgroup_key(dir, "memory.stat", key);
}

/* How many faults of this thread, or of others, memory.stat does not count yet */
static long long overflow_batches(const char *dir, char *page)
{
	long nr = 2 * COW_CHARGE_BATCH * (sysconf(_SC_NPROCESSORS_CONF) + 1);
	size_t ps = cow_page_size();
	long i;

	for (i = 0; i < nr; i++) {
		madvise(page, ps, MADV_DONTNEED);
		cow_touch(page, 1);
	}
	return cow_minflt() - cow_cgroup_stat(dir, "pgfault");
}

void cow_cgroup_add_up(const char *dir, char *page)
{
	long long missing, before;
	int i;

	/* The kernel adds up every two seconds, and counts the faults anew then. */
	missing = overflow_batches(dir, page);
	for (i = 0; i < 10; i++) {
		before = missing;
		missing = overflow_batches(dir, page);
		if (missing == before)
			return;
	}
}

int cow_cgroup_enter(const char *dir)
{
	return cow_cgroup_write(dir, "cgroup.procs", "0");
}

/* For nr frames from first on; cgroup[] has the inodes of the cgroups charged for them. */
static long count_unmapped(__u64 first, const __u64 *cgroup, size_t nr, __u64 inode,
			   const int fd[2], __u64 want)
{
	__u64 flags, mapped;
	long count = 0;
	size_t i;

	for (i = 0; i < nr; i++) {
		off_t at = (first + i) * sizeof(__u64);

		if (cgroup[i] != inode)
			continue;
		if (pread(fd[0], &flags, sizeof(flags), at) != sizeof(flags) ||
		    pread(fd[1], &mapped, sizeof(mapped), at) != sizeof(mapped))
			return -EIO;
		if (!mapped && (flags & want) == want && !(flags & COW_KPF_PGTABLE))
			count++;
	}
	return count;
}

long cow_cgroup_unmapped(const char *dir, __u64 flags)
{
	static const char * const names[] = {
		"/proc/kpageflags", "/proc/kpagecount", "/proc/kpagecgroup",
	};
	static __u64 cgroup[8192];
	long ret = 0, count = 0;
	struct stat st;
	__u64 first;
	ssize_t n;
	int fd[3];
	size_t i;

	/* An LRU batch may hold the last reference to a folio. */
	cow_drain_lru();
	if (stat(dir, &st))
		return -errno;
	for (i = 0; i < ARRAY_SIZE(names); i++) {
		fd[i] = open(names[i], O_RDONLY | O_CLOEXEC);
		if (fd[i] < 0)
			ret = -errno;
	}
	for (first = 0; ret >= 0; first += n) {
		n = pread(fd[2], cgroup, sizeof(cgroup), first * sizeof(*cgroup));
		if (n <= 0) {
			ret = n ? -errno : count;
			break;
		}
		n /= sizeof(*cgroup);
		ret = count_unmapped(first, cgroup, n, st.st_ino, fd, flags);
		count += ret;
	}
	while (i--)
		if (fd[i] >= 0)
			close(fd[i]);
	return ret;
}

void cow_cgroup_remove(char *dir)
{
	size_t len = strlen(dir), end = strlen(WITH_MEMORY);
	int i;

	if (!dir[0])
		return;
	cow_cgroup_write(dir, "cgroup.kill", "1");
	for (i = 0; i < 30000 && rmdir(dir) && errno == EBUSY; i++)
		usleep(1000);
	/* EBUSY if somebody else has come to need it */
	if (len > end && !strcmp(dir + len - end, WITH_MEMORY))
		cow_write_file(ROOT_CONTROLLERS, "-memory");
	dir[0] = '\0';
}
