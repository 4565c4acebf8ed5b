// SPDX-License-Identifier: GPL-2.0
/*
 * What the tests of copy-on-write faults share
 *
 * See cow_helpers.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 35)
#include <sys/rseq.h>
#endif
#endif

#include "cow_helpers.h"

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

int cow_write_file(const char *path, const char *text)
{
	ssize_t n, len = strlen(text);
	int fd, ret = 0;

	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = write(fd, text, len);
	if (n < 0)
		ret = -errno;
	else if (n != len)
		ret = -EIO;
	if (close(fd) && !ret)
		ret = -errno;
	return ret;
}

const char *cow_tracefs(void)
{
	if (!access("/sys/kernel/tracing/events", F_OK))
		return "/sys/kernel/tracing";
	if (!access("/sys/kernel/debug/tracing/events", F_OK))
		return "/sys/kernel/debug/tracing";
	return NULL;
}

int cow_read_long(const char *path, long *val)
{
	char buf[64], *end;
	ssize_t len;

	len = cow_read_file(path, buf, sizeof(buf));
	if (len < 0)
		return len;
	errno = 0;
	*val = strtol(buf, &end, 10);
	if (errno || end == buf)
		return -EPROTO;
	return 0;
}

int cow_write_long(const char *path, long val)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld", val);
	return cow_write_file(path, buf);
}

static bool changes_allowed;

void cow_allow_changes(void)
{
	changes_allowed = true;
}

bool cow_may_change(void)
{
	const char *env = getenv("COW_TEST_INVASIVE");

	return changes_allowed || (env && !strcmp(env, "1"));
}

/* The value in a file; of "a [b] c" that is b */
static bool current_value(const char *path, char value[32])
{
	char text[128], *start, *end;

	if (cow_read_file(path, text, sizeof(text)) <= 0)
		return false;
	start = strchr(text, '[');
	start = start ? start + 1 : text;
	end = strpbrk(start, "]\n");
	if (end)
		*end = '\0';
	snprintf(value, 32, "%.31s", start);
	return true;
}

/* Remember what is there; false if that is not possible. */
static bool cow_save(struct cow_undo *undo, const char *path)
{
	int i;

	if (!cow_may_change())
		return false;
	for (i = 0; i < undo->nr; i++)
		if (!strcmp(undo->file[i].path, path))
			return true;
	if (i == (int)ARRAY_SIZE(undo->file) ||
	    !current_value(path, undo->file[i].value))
		return false;
	snprintf(undo->file[i].path, sizeof(undo->file[0].path), "%s", path);
	undo->nr++;
	return true;
}

bool cow_tweak(struct cow_undo *undo, const char *path, const char *value)
{
	char now[32];

	if (!current_value(path, now))
		return false;
	/* Nothing to change, and so nothing to undo */
	if (!strcmp(now, value))
		return true;
	return cow_save(undo, path) && !cow_write_file(path, value);
}

bool cow_keep_locked(struct cow_undo *undo)
{
	static const char compact[] = "/proc/sys/vm/compact_unevictable_allowed";

	return access(compact, F_OK) || cow_tweak(undo, compact, "0");
}

void cow_undo(struct cow_undo *undo)
{
	while (undo->nr) {
		undo->nr--;
		cow_write_file(undo->file[undo->nr].path,
			       undo->file[undo->nr].value);
	}
}

int cow_sysctl_read(const char *name, long *val)
{
	char path[128];

	snprintf(path, sizeof(path), COW_SYSCTL_DIR "%s", name);
	return cow_read_long(path, val);
}

int cow_sysctl_write(const char *name, long val)
{
	char path[128];

	if (!cow_may_change())
		return -EPERM;
	snprintf(path, sizeof(path), COW_SYSCTL_DIR "%s", name);
	return cow_write_long(path, val);
}

const char *cow_missing(void)
{
	if (access(COW_STATS_FILE, F_OK) ||
	    access(COW_SYSCTL_DIR "cow_stats", F_OK))
		return "no " COW_STATS_FILE ": kernel without CONFIG_COW_STATS";
	if (access(COW_SYSCTL_DIR "cow_precopy", F_OK) ||
	    access(COW_SYSCTL_DIR "cow_precopy_pages", F_OK))
		return "no vm.cow_precopy: kernel without CONFIG_COW_PRECOPY";
	return NULL;
}

bool cow_counting(void)
{
	long on;

	return !cow_missing() && !cow_sysctl_read("cow_stats", &on) && on;
}

int cow_count(struct cow_stats *s)
{
	memset(s, 0, sizeof(*s));
	return cow_missing() ? 0 : cow_stats_read(s);
}

int cow_count_own(struct cow_stats *s)
{
	memset(s, 0, sizeof(*s));
	return cow_missing() ? 0 : cow_stats_read_pid(s, 0);
}

unsigned long long cow_copied_ahead(const struct cow_stats *before)
{
	struct cow_stats now, delta;

	if (cow_count_own(&now))
		return 0;
	cow_stats_delta(&delta, before, &now);
	return delta.v[COW_SUCCESS] + delta.v[COW_CHILDREN_SUCCESS];
}

int cow_count_others(struct cow_stats *sum)
{
	struct cow_stats one;
	struct dirent *entry;
	DIR *proc;
	pid_t pid;
	int i;

	memset(sum, 0, sizeof(*sum));
	proc = opendir("/proc");
	if (!proc)
		return -errno;
	while ((entry = readdir(proc))) {
		pid = atoi(entry->d_name);
		if (pid <= 0 || pid == getpid() || cow_stats_read_pid(&one, pid))
			continue;
		for (i = 0; i < COW_NR_KEYS; i++)
			sum->v[i] += one.v[i];
	}
	closedir(proc);
	return 0;
}

const char *cow_want(const char *name, long val)
{
	static char reason[160];
	long now;
	int ret;

	ret = cow_sysctl_read(name, &now);
	if (ret) {
		snprintf(reason, sizeof(reason), "cannot read vm.%s: %s", name,
			 strerror(-ret));
		return reason;
	}
	if (now == val)
		return NULL;
	ret = cow_sysctl_write(name, val);
	if (ret == -EACCES || ret == -EPERM)
		snprintf(reason, sizeof(reason),
			 "vm.%s is %ld, setting it to %ld " COW_NEEDS, name,
			 now, val);
	else if (ret)
		snprintf(reason, sizeof(reason), "cannot set vm.%s to %ld: %s",
			 name, val, strerror(-ret));
	return ret ? reason : NULL;
}

/*
 * The kernel writes to a thread's rseq area whenever the thread was preempted. After a
 * fork, or clear_refs, that takes a fault that no test expects; nor does the test that
 * has started this program.
 */
static void __attribute__((constructor)) end_rseq(void)
{
#ifdef RSEQ_SIG
	char *area = (char *)__builtin_thread_pointer() + __rseq_offset;
	unsigned int len = 32;

	/* The length must be that with which the C library has registered it. */
	while (len < 512 &&
	       syscall(SYS_rseq, area, len, RSEQ_FLAG_UNREGISTER, RSEQ_SIG))
		len++;
#endif
}

/*
 * No hints of NUMA balancing, which add faults, and no compaction unless memory is short:
 * a page that is being migrated has a reference more, and then another frame.
 */
static void stop_migration(struct cow_undo *undo)
{
	undo->nr = 0;
	if (!cow_may_change())
		return;
	cow_tweak(undo, "/proc/sys/kernel/numa_balancing", "0");
	cow_tweak(undo, "/proc/sys/vm/compaction_proactiveness", "0");
}

/* No test copies more pages than that. */
#define COW_MOST_PAGES	16384

bool cow_memory_is_low(void)
{
	unsigned long val, free = 0, low = 0, zone_free = 0, zone_low = 0;
	unsigned int node = 0, here = 0;
	char line[256];
	FILE *file;

	file = fopen("/proc/zoneinfo", "r");
	if (!file)
		return false;
	syscall(SYS_getcpu, NULL, &here, NULL);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Node %u, zone", &node) == 1 || node != here)
			continue;
		if (sscanf(line, " pages free %lu", &val) == 1) {
			zone_free = val;
		} else if (sscanf(line, " low %lu", &val) == 1) {
			zone_low = val;
		} else if (sscanf(line, " managed %lu", &val) == 1 && val) {
			free = zone_free;
			low = zone_low;
		}
	}
	fclose(file);
	/* A node without memory has no such zone. */
	return low && free <= low + COW_MOST_PAGES;
}

const char *cow_setup(struct cow_settings *saved, int ahead, unsigned int flags)
{
	bool any_kernel = ahead == COW_PLAIN && (flags & COW_ANY_KERNEL);
	const char *reason;

	saved->valid = false;
	stop_migration(&saved->quiet);
	reason = cow_missing();
	if (reason && any_kernel)
		return NULL;
	if (reason)
		goto undo;
	reason = "cannot read the vm.cow_* sysctls";
	if (cow_sysctl_read("cow_stats", &saved->stats) ||
	    cow_sysctl_read("cow_sample_interval", &saved->sample_interval) ||
	    cow_sysctl_read("cow_precopy", &saved->precopy) ||
	    cow_sysctl_read("cow_precopy_pages", &saved->precopy_pages))
		goto undo;
	if (cow_sysctl_read("cow_precopy_max", &saved->precopy_max))
		saved->precopy_max = -1;
	saved->valid = true;

	reason = "no vm.cow_precopy_max: this kernel's window does not adapt";
	if (ahead == COW_ADAPTIVE && saved->precopy_max < 0)
		goto undo;
	reason = cow_want("cow_precopy", !!ahead);
	if (!reason && ahead)
		reason = cow_want("cow_precopy_pages",
				  ahead == COW_ADAPTIVE ? 0 : ahead);
	if (!reason && ahead == COW_ADAPTIVE)
		reason = cow_want("cow_precopy_max", COW_ADAPTIVE_MAX);
	/* Without counters, frames and contents can still be judged. */
	if (!reason && (flags & COW_WANT_STATS) &&
	    (cow_may_change() || !any_kernel))
		reason = cow_want("cow_stats", 1);
	if (!reason && ahead && cow_memory_is_low())
		reason = "no free memory above the low watermark";
	if (reason)
		goto undo;
	/* A quiet kernel log is nice to have, no more. */
	cow_want("cow_sample_interval", 0);
	return NULL;

undo:
	cow_restore(saved);
	return reason;
}

const char *cow_setup_pages(struct cow_settings *saved, int ahead, char **p, int nr,
			    __u64 tag)
{
	size_t len = nr * cow_page_size();
	const char *reason;

	*p = NULL;
	reason = cow_setup(saved, ahead, COW_ANY_KERNEL);
	if (reason)
		return reason;
	if (cow_pin_cpu()) {
		cow_restore(saved);
		return "cannot stay on one CPU";
	}
	*p = cow_map(len, len);
	if (*p)
		cow_fill(*p, len, tag);
	return NULL;
}

void cow_restore(struct cow_settings *saved)
{
	cow_undo(&saved->quiet);
	if (!saved->valid)
		return;
	cow_want("cow_precopy", saved->precopy);
	cow_want("cow_precopy_pages", saved->precopy_pages);
	if (saved->precopy_max > 0)
		cow_want("cow_precopy_max", saved->precopy_max);
	cow_want("cow_stats", saved->stats);
	cow_want("cow_sample_interval", saved->sample_interval);
}

size_t cow_page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

size_t cow_pmd_size(void)
{
	long val;

	if (!cow_read_long("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
			   &val) && val > 0)
		return val;
	return cow_page_size() * (cow_page_size() / sizeof(__u64));
}

#define THP_DIR	"/sys/kernel/mm/transparent_hugepage/"

/*
 * Where khugepaged collapses to folios of this size, too, it would move pages whose page
 * frames a test compares. It scans when the first process in the system asks for huge
 * pages, then every 10 seconds. Let this process be the first, with nothing to collapse
 * yet, and delay the second scan by a day.
 */
static void cow_quiet_khugepaged(struct cow_undo *undo)
{
	static const char scans[] = THP_DIR "khugepaged/full_scans";
	size_t len = 2 << 16;	/* however it is aligned */
	long then, now;
	void *p;
	int i;

	if (access(THP_DIR "hugepages-64kB/stats/collapse_alloc", F_OK))
		return;
	if (!cow_tweak(undo, THP_DIR "khugepaged/scan_sleep_millisecs",
		       "86400000") ||
	    cow_read_long(scans, &then))
		return;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return;
	*(volatile char *)p = 1;
	madvise(p, len, MADV_HUGEPAGE);
	/* Wait for the scan. There is none if another process was first. */
	for (i = 0; i < 100 && !cow_read_long(scans, &now) && now == then; i++)
		usleep(10000);
	munmap(p, len);
}

const char *cow_allow_folios(struct cow_undo *undo)
{
	char path[128];

	snprintf(path, sizeof(path), THP_DIR "hugepages-%zukB/enabled",
		 cow_pmd_size() / 1024);
	if (access(THP_DIR "hugepages-64kB/enabled", F_OK))
		return "kernel without huge pages of 64 kB";
	if (!cow_tweak(undo, path, "never") ||
	    !cow_tweak(undo, THP_DIR "hugepages-64kB/enabled", "madvise"))
		return "enabling huge pages of 64 kB " COW_NEEDS;
	cow_quiet_khugepaged(undo);
	return NULL;
}

const char *cow_setup_folios(struct cow_settings *saved, struct cow_undo *undo,
			     int ahead, bool folios, unsigned int flags)
{
	const char *reason;

	reason = cow_setup(saved, ahead, flags);
	if (reason || !folios)
		return reason;
	reason = cow_allow_folios(undo);
	if (reason) {
		cow_undo(undo);
		cow_restore(saved);
	}
	return reason;
}

bool cow_map_hugepage;

void *cow_map(size_t len, size_t align)
{
	size_t ps = cow_page_size();
	uintptr_t start, want, end;
	size_t total;
	char *p;

	if (align < ps)
		align = ps;
	total = len + align + 2 * ps;
	p = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	start = (uintptr_t)p;
	end = start + total;
	want = (start + ps + align - 1) & ~(uintptr_t)(align - 1);
	if (want - ps > start)
		munmap(p, want - ps - start);
	if (want + len + ps < end)
		munmap((void *)(want + len + ps), end - (want + len + ps));
	p = (char *)want;
	if (mprotect(p, len, PROT_READ | PROT_WRITE)) {
		munmap(p - ps, len + 2 * ps);
		return NULL;
	}
	/* EINVAL without THP */
	madvise(p, len, cow_map_hugepage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return p;
}

void cow_unmap(void *addr, size_t len)
{
	size_t ps = cow_page_size();

	munmap((char *)addr - ps, len + 2 * ps);
}

int cow_collapse(char *addr)
{
	size_t len = cow_pmd_size();
	int tries, ret = EAGAIN;

	if (madvise(addr, len, MADV_HUGEPAGE))
		return errno;
	/* Pages that somebody else has just locked or taken off the LRU */
	for (tries = 0; tries < 10 && ret == EAGAIN; tries++) {
		if (tries)
			usleep(10000);
		ret = madvise(addr, len, MADV_COLLAPSE) ? errno : 0;
		if (!ret && cow_smaps_kb(addr, "AnonHugePages") * 1024 < (long)len)
			ret = EAGAIN;
	}
	return ret;
}

#define MOST_HUGE	(64 << 20)	/* they have 512 MB where a page has 64 kB */

const char *cow_map_huge(struct cow_undo *undo, char **area, size_t len, __u64 tag)
{
	size_t pmd = cow_pmd_size();
	char path[128], *p;

	if (access(THP_DIR "enabled", F_OK))
		return "kernel without transparent huge pages";
	if (pmd > MOST_HUGE)
		return "huge pages are too large for a test";
	/* If they cannot be changed, they may already be right. */
	cow_tweak(undo, THP_DIR "enabled", "madvise");
	snprintf(path, sizeof(path), THP_DIR "hugepages-%zukB/enabled", pmd / 1024);
	cow_tweak(undo, path, "inherit");
	p = cow_map(len, pmd);
	if (!p)
		return "no memory";
	madvise(p, len, MADV_HUGEPAGE);
	cow_fill(p, len, tag);
	/* Huge pages stay huge, and khugepaged makes none of what is split. */
	madvise(p, len, MADV_NOHUGEPAGE);
	if (cow_smaps_kb(p, "AnonHugePages") * 1024 != (long)len) {
		cow_unmap(p, len);
		return "got no huge pages";
	}
	*area = p;
	return NULL;
}

const char *cow_map_mthp(struct cow_undo *undo, char **area, size_t len, __u64 tag)
{
	const char *reason = cow_allow_folios(undo);
	char *p;

	if (reason)
		return reason;
	cow_map_hugepage = true;
	p = cow_map(len, 65536);
	if (!p)
		return "no memory";
	cow_fill(p, len, tag);
	if (!(cow_page_flags(p) & COW_KPF_COMPOUND) ||
	    !(cow_page_flags(p + len - cow_page_size()) & COW_KPF_COMPOUND)) {
		cow_unmap(p, len);
		return "got no huge pages of 64 kB";
	}
	*area = p;
	return NULL;
}

const char *cow_map_huge_zero(struct cow_undo *undo, char **area)
{
	size_t len = cow_pmd_size();
	/* Allows huge pages */
	const char *reason = cow_map_huge(undo, area, len, 0);

	if (reason)
		return reason;
	cow_tweak(undo, THP_DIR "use_zero_page", "1");
	if (madvise(*area, len, MADV_DONTNEED) || madvise(*area, len, MADV_HUGEPAGE))
		return "no memory";
	/* A read brings it. It is none of the process' own. */
	cow_peek(*area);
	if (!(cow_pagemap(*area + len - cow_page_size()) & COW_PM_PRESENT) ||
	    cow_smaps_kb(*area, "AnonHugePages"))
		return "got no huge zero page";
	return NULL;
}

const char *cow_map_hugetlb(struct cow_undo *undo, char **area, size_t *len)
{
	long long kb = cow_file_key("/proc/meminfo", "Hugepagesize");

	if (kb <= 0)
		return "no hugetlb pages in this kernel";
	/* A larger pool, which is somebody's, stays as it is. */
	if (cow_file_key("/proc/meminfo", "HugePages_Total") < 8 &&
	    !cow_tweak(undo, "/proc/sys/vm/nr_hugepages", "8"))
		return "the pool of hugetlb pages cannot be changed";
	if (cow_file_key("/proc/meminfo", "HugePages_Free") < 2)
		return "there are not two free hugetlb pages";
	*len = kb * 1024;
	*area = mmap(NULL, *len, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	return *area == MAP_FAILED ? "got no hugetlb page" : NULL;
}

static sigjmp_buf cow_before_access;
static void *cow_bus_error;

static void cow_on_sigbus(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	cow_bus_error = info->si_addr;
	siglongjmp(cow_before_access, 1);
}

bool cow_raises_sigbus(char *addr, bool write)
{
	struct sigaction action = { .sa_sigaction = cow_on_sigbus, .sa_flags = SA_SIGINFO };
	volatile bool raised = true;

	sigaction(SIGBUS, &action, NULL);
	if (!sigsetjmp(cow_before_access, 1)) {
		if (write)
			cow_touch(addr, 'w');
		else
			cow_peek(addr);
		raised = false;
	}
	/* At any other access it is an error of the test. */
	signal(SIGBUS, SIG_DFL);
	return raised && cow_bus_error == addr;
}

static __u64 cow_mix(__u64 z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

__u64 cow_rand(__u64 *state)
{
	*state += 0x9e3779b97f4a7c15ULL;
	return cow_mix(*state);
}

__u64 cow_seed(void)
{
	const char *env = getenv("COW_SEED");

	return env ? strtoull(env, NULL, 0) : ((__u64)time(NULL) << 16) ^ getpid();
}

void cow_fill(void *addr, size_t len, __u64 tag)
{
	__u64 base = cow_mix(tag + 1);
	__u64 *p = addr;
	size_t i;

	for (i = 0; i < len / sizeof(*p); i++)
		p[i] = base ^ (uintptr_t)&p[i];
}

ssize_t cow_check(const void *addr, size_t len, __u64 tag)
{
	__u64 base = cow_mix(tag + 1);
	const __u64 *p = addr;
	size_t i;

	for (i = 0; i < len / sizeof(*p); i++)
		if (p[i] != (base ^ (uintptr_t)&p[i]))
			return i * sizeof(*p);
	return -1;
}

bool cow_is_zero(const void *addr, size_t len)
{
	const char *p = addr;
	size_t i;

	for (i = 0; i < len; i++)
		if (p[i])
			return false;
	return true;
}

/*
 * How many pages have their frame in common with another one. KPF_KSM in
 * /proc/kpageflags will not do: in v6.12 all anonymous pages have it.
 */
static long merged_pages(const void *addr, int nr)
{
	static __u64 pfn[COW_MAX_MEASURED];
	long merged = 0;
	int i, k;

	if (cow_pfns(addr, nr, pfn))
		return 0;
	for (i = 0; i < nr; i++) {
		for (k = 0; k < nr; k++) {
			if (k != i && pfn[i] && pfn[i] == pfn[k]) {
				merged++;
				break;
			}
		}
	}
	return merged;
}

long cow_ksm_merge(struct cow_undo *undo, void *addr, size_t len, long want)
{
	int ret, nr = len / cow_page_size();
	long merged, start, scans;

	if (access(COW_KSM_DIR "run", F_OK))
		return -ENOENT;
	if (!cow_tweak(undo, COW_KSM_DIR "sleep_millisecs", "0") ||
	    !cow_tweak(undo, COW_KSM_DIR "pages_to_scan", "4096"))
		return -EACCES;
	/* Since v6.7: do not leave out pages that did not merge at once. */
	cow_tweak(undo, COW_KSM_DIR "smart_scan", "0");
	if (nr > COW_MAX_MEASURED)
		return -E2BIG;
	if (!cow_pfn_visible())
		return -EACCES;
	if (madvise(addr, len, MADV_MERGEABLE))
		return -errno;
	ret = cow_read_long(COW_KSM_DIR "full_scans", &start);
	if (ret)
		return ret;
	/* Also where it is on already: it is switched off below. */
	if (!cow_save(undo, COW_KSM_DIR "run"))
		return -EACCES;
	ret = cow_write_file(COW_KSM_DIR "run", "1");
	if (ret)
		return ret;
	do {
		usleep(1000);
		ret = cow_read_long(COW_KSM_DIR "full_scans", &scans);
		merged = merged_pages(addr, nr);
	} while (!ret && merged < want && scans - start < 20);
	/* Not to merge again what becomes equal later */
	cow_write_file(COW_KSM_DIR "run", "0");
	return ret ?: merged;
}

__u64 cow_pagemap(const void *addr)
{
	__u64 entry;
	ssize_t n;
	int fd;

	/* Not kept open: it would be the parent's after a fork. */
	fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = pread(fd, &entry, sizeof(entry),
		  (uintptr_t)addr / cow_page_size() * sizeof(entry));
	close(fd);
	return n == sizeof(entry) ? entry : 0;
}

__u64 cow_page_flags(const void *addr)
{
	__u64 pfn = 0, flags = 0;
	int fd;

	if (cow_pfns(addr, 1, &pfn) || !pfn)
		return 0;
	fd = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (pread(fd, &flags, sizeof(flags), pfn * sizeof(flags)) !=
	    sizeof(flags))
		flags = 0;
	close(fd);
	return flags;
}

int cow_large_pages(const char *p, int nr)
{
	int i, large = 0;

	for (i = 0; i < nr; i++)
		large += !!(cow_page_flags(p + i * cow_page_size()) & COW_KPF_COMPOUND);
	return large;
}

bool cow_pfn_visible(void)
{
	__u64 pfn;
	char here;

	cow_touch(&here, 1);
	return !cow_pfns(&here, 1, &pfn) && pfn;
}

int cow_swapped(const void *addr, int nr)
{
	size_t ps = cow_page_size();
	int i, swapped = 0;

	for (i = 0; i < nr; i++)
		swapped += !!(cow_pagemap((const char *)addr + i * ps) & COW_PM_SWAP);
	return swapped;
}

int cow_pin(void *addr, size_t len)
{
	struct iovec iov = { .iov_base = addr, .iov_len = len };
	struct io_uring_params params = {};
	int fd, err;

	fd = syscall(__NR_io_uring_setup, 1, &params);
	if (fd < 0)
		return -errno;
	if (syscall(__NR_io_uring_register, fd, IORING_REGISTER_BUFFERS, &iov, 1)) {
		err = errno;
		close(fd);
		return -err;
	}
	return fd;
}

bool cow_kernel_before(int version, int level)
{
	struct utsname u;
	int v, l;

	if (uname(&u) || sscanf(u.release, "%d.%d", &v, &l) != 2)
		return true;
	return v < version || (v == version && l < level);
}

bool cow_page_out(void *addr, int nr)
{
	const size_t len = nr * cow_page_size();
	int i;

	if (cow_file_key("/proc/meminfo", "SwapFree") * 1024 <= 2 * (long long)len)
		return false;
	/*
	 * Reclaim leaves out what is in an LRU batch, referenced since last time, or being
	 * written to a slow disk.
	 */
	for (i = 0; i < 50 && cow_swapped(addr, nr) < nr; i++) {
		if (i)
			usleep(10000);
		cow_drain_lru();
		if (madvise(addr, len, MADV_PAGEOUT))
			return false;
	}
	return cow_swapped(addr, nr) == nr;
}

bool cow_can_page_out(int nr)
{
	const size_t len = nr * cow_page_size();
	char *p = cow_map(len, 0);
	bool can;

	if (!p)
		return false;
	cow_fill(p, len, 1);
	can = cow_page_out(p, nr);
	cow_unmap(p, len);
	return can;
}

bool cow_soft_dirty_works(void)
{
	char *p = cow_map(cow_page_size(), 0);
	bool works;

	cow_touch(p, 1);
	works = cow_pagemap(p) & COW_PM_SOFT_DIRTY;
	if (cow_write_file("/proc/self/clear_refs", "4") ||
	    cow_pagemap(p) & COW_PM_SOFT_DIRTY)
		works = false;
	cow_touch(p, 1);
	if (!(cow_pagemap(p) & COW_PM_SOFT_DIRTY))
		works = false;
	cow_unmap(p, cow_page_size());
	return works;
}

long cow_smaps_kb(const void *addr, const char *key)
{
	unsigned long start, end;
	size_t len = strlen(key);
	bool inside = false;
	long kb = -1;
	char line[512];
	FILE *f;

	f = fopen("/proc/self/smaps", "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		/* "Rss:" is no range; a range's line has no colon there. */
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			inside = (uintptr_t)addr >= start &&
				 (uintptr_t)addr < end;
			continue;
		}
		if (inside && !strncmp(line, key, len) && line[len] == ':') {
			kb = atol(line + len + 1);
			break;
		}
	}
	fclose(f);
	return kb;
}

long cow_status_kb(const char *key)
{
	size_t len = strlen(key);
	char line[512];
	long kb = -1;
	FILE *f;

	f = fopen("/proc/self/status", "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, key, len) && line[len] == ':') {
			kb = atol(line + len + 1);
			break;
		}
	}
	fclose(f);
	return kb;
}

long long cow_file_key(const char *path, const char *key)
{
	size_t len = strlen(key);
	long long val = -1;
	char line[512];
	FILE *f;

	f = fopen(path, "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, key, len) &&
		    (line[len] == ' ' || line[len] == ':')) {
			val = atoll(line + len + 1);
			break;
		}
	}
	fclose(f);
	return val;
}

/* The nodes of nr pages; false if not all of them are there */
static bool cow_nodes_of(void **page, int nr, int *node)
{
	int i;

	if (syscall(SYS_move_pages, 0, (unsigned long)nr, page, NULL, node, 0))
		return false;
	for (i = 0; i < nr && node[i] >= 0; i++)
		;
	return i == nr;
}

#define MAX_NODES	64

bool cow_move_to_another_node(char *addr, int nr)
{
	static int to[COW_MAX_MEASURED], node[COW_MAX_MEASURED];
	static void *page[COW_MAX_MEASURED];
	int i, target, here;

	if (nr > COW_MAX_MEASURED)
		return false;
	for (i = 0; i < nr; i++)
		page[i] = addr + i * cow_page_size();
	if (!cow_nodes_of(page, nr, node))
		return false;
	/* A page that is on the other node already would not move. */
	here = node[0];
	for (i = 0; i < nr; i++)
		if (node[i] != here)
			return false;
	for (target = 0; target < MAX_NODES; target++) {
		if (target == here)
			continue;
		for (i = 0; i < nr; i++)
			to[i] = target;
		/* A node without memory is an error. */
		if (syscall(SYS_move_pages, 0, (unsigned long)nr, page, to, node,
			    MPOL_MF_MOVE) < 0)
			continue;
		/* Of a large folio that moves, all pages but one are told to be busy. */
		if (!cow_nodes_of(page, nr, node))
			return false;
		for (i = 0; i < nr && node[i] == target; i++)
			;
		return i == nr;
	}
	return false;
}

int cow_unshare(const void *addr)
{
	char byte;
	struct iovec local = { .iov_base = &byte, .iov_len = 1 };
	struct iovec remote = { .iov_base = (void *)addr, .iov_len = 1 };

	if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1)
		return -errno;
	return 0;
}

ssize_t cow_write_by_force(const void *addr)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = pwrite(fd, "w", 1, (uintptr_t)addr);
	if (n < 0)
		n = -errno;
	close(fd);
	return n;
}

struct step {
	char *area;
	int pages;
	bool down;
	int arrived;
};

static void *write_in_step(void *arg)
{
	size_t ps = cow_page_size();
	struct step *step = arg;
	int i;

	for (i = 0; i < step->pages; i++) {
		__atomic_add_fetch(&step->arrived, 1, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&step->arrived, __ATOMIC_SEQ_CST) < 2 * (i + 1))
			;
		cow_touch(step->area + (step->down ? step->pages - 1 - i : i) * ps, 'w');
	}
	return NULL;
}

int cow_write_in_step(char *area, int pages, bool down)
{
	struct step step = { .area = area, .pages = pages, .down = down };
	pthread_t thread;
	int ret;

	ret = pthread_create(&thread, NULL, write_in_step, &step);
	if (ret)
		return -ret;
	write_in_step(&step);
	pthread_join(thread, NULL);
	return 0;
}

__u64 cow_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

long cow_minflt(void)
{
	struct rusage ru;

	if (getrusage(RUSAGE_THREAD, &ru))
		return -1;
	return ru.ru_minflt;
}

int cow_pin_cpu(void)
{
	cpu_set_t set;
	int cpu;

	cpu = sched_getcpu();
	if (cpu < 0)
		return -errno;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) ? -errno : 0;
}

int cow_leave_cpu(void)
{
	int here = sched_getcpu(), cpu;
	cpu_set_t set;

	for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (cpu == here)
			continue;
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (!sched_setaffinity(0, sizeof(set), &set))
			return 0;
	}
	return -ENOENT;
}

int cow_nr_cpus(void)
{
	cpu_set_t old, all;
	int nr;

	if (sched_getaffinity(0, sizeof(old), &old))
		return 1;
	/* The kernel cuts it down to the cpuset. */
	memset(&all, 0xff, sizeof(all));
	if (sched_setaffinity(0, sizeof(all), &all) ||
	    sched_getaffinity(0, sizeof(all), &all))
		return 1;
	nr = CPU_COUNT(&all);
	sched_setaffinity(0, sizeof(old), &old);
	return nr;
}

int cow_drain_lru(void)
{
	long ps = sysconf(_SC_PAGESIZE);
	char *p = cow_map(ps, 0);
	int node = 0, status, ret;
	void *none = p;

	if (!p)
		return -ENOMEM;
	/* Those of all CPUs, where there is migration; it moves no page. */
	syscall(SYS_move_pages, 0, 0UL, &none, &node, &status, 0);
	ret = madvise(p, ps, MADV_COLD) ? -errno : 0;
	cow_unmap(p, ps);
	return ret;
}

int cow_unshare_rest(const char *area, size_t len)
{
	static char maps[64 << 10];
	static struct {
		char *start;
		size_t len;
		int advice;
	} range[256];
	unsigned long start, end;
	char perms[8], *line;
	int i, nr = 0;
	ssize_t n;

	n = cow_read_file("/proc/self/maps", maps, sizeof(maps));
	if (n < 0)
		return n;
	if (n == sizeof(maps) - 1)
		return -E2BIG;
	for (line = maps; *line; line = strchr(line, '\n') + 1) {
		if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) != 3)
			return -EPROTO;
		if (perms[0] != 'r' || perms[3] != 'p' ||
		    ((char *)start < area + len && (char *)end > area))
			continue;
		if (nr == ARRAY_SIZE(range))
			return -E2BIG;
		range[nr].start = (char *)start;
		range[nr].len = end - start;
		range[nr++].advice = perms[1] == 'w' ? MADV_POPULATE_WRITE :
						       MADV_POPULATE_READ;
	}
	for (i = 0; i < nr; i++)
		if (madvise(range[i].start, range[i].len, range[i].advice) &&
		    range[i].advice == MADV_POPULATE_WRITE)
			return -errno;
	return 0;
}

int cow_pfns(const void *addr, int nr, __u64 *pfn)
{
	size_t len = nr * sizeof(*pfn);
	ssize_t n;
	int fd, i;

	fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = pread(fd, pfn, len,
		  (uintptr_t)addr / cow_page_size() * sizeof(*pfn));
	close(fd);
	if (n != (ssize_t)len)
		return -EIO;
	for (i = 0; i < nr; i++)
		pfn[i] = pfn[i] & COW_PM_PRESENT ? pfn[i] & COW_PM_PFN_MASK : 0;
	return 0;
}

int cow_measure(struct cow_measure *m, char *base, const int *order, int nr)
{
	static int up[COW_MAX_MEASURED];
	static struct cow_stats before, after;
	size_t ps = cow_page_size();
	int i, ret;

	if (nr > COW_MAX_MEASURED)
		return -E2BIG;
	/*
	 * Write once to all that the measurement itself writes to: it may be
	 * fork-shared as well. The reason for the static variables, too: the
	 * reads at the start and at the end use the same pages.
	 */
	for (i = 0; i < nr; i++)
		up[i] = order ? order[i] : i;
	memset(m, 0, sizeof(*m));
	ret = cow_count_own(&after);
	if (ret)
		return ret;
	m->minflt = cow_minflt();

	ret = cow_count_own(&before);
	if (ret)
		return ret;
	m->minflt = cow_minflt();
	for (i = 0; i < nr; i++)
		cow_touch(base + up[i] * ps, 'w');
	m->minflt = cow_minflt() - m->minflt;
	ret = cow_count_own(&after);
	if (ret)
		return ret;
	cow_stats_delta(&m->d, &before, &after);
	return 0;
}

#ifdef __x86_64__
bool cow_hw_dirty(void)
{
	return true;
}
#else
/* No register or file that user space may read says so, but arm64's log does. */
bool cow_hw_dirty(void)
{
	static int known = -1;
	char *log;
	int size;

	if (known >= 0)
		return known;
	known = 0;
	size = klogctl(10 /* SYSLOG_ACTION_SIZE_BUFFER */, NULL, 0);
	log = size > 0 ? malloc(size + 1) : NULL;
	if (!log)
		return false;
	size = klogctl(3 /* SYSLOG_ACTION_READ_ALL */, log, size);
	if (size > 0) {
		log[size] = '\0';
		known = !!strstr(log, "Hardware dirty bit management on CPU");
	}
	free(log);
	return known;
}
#endif

/* The most that a window can have, the faulting page included: aligned to it */
static int upward_block(bool reuse)
{
	return reuse ? COW_BLOCK : COW_ADAPTIVE_MAX + 1;
}

/* Pages ahead of a fault with a run of that many written pages before it */
static int upward_window(int run, bool reuse)
{
	int left = upward_block(reuse) - 1 - run % upward_block(reuse);

	if (run < 3)
		return 0;
	if (!reuse)
		run = run < 16 || !cow_hw_dirty() ? 1 : run / 8;
	return run < left ? run : left;
}

struct cow_upward cow_upward(int nr, int ahead, bool reuse)
{
	struct cow_upward up = {};
	int i, window;

	for (i = 0; i < nr; i += 1 + window) {
		if (ahead == COW_ADAPTIVE)
			window = upward_window(i, reuse);
		else
			window = reuse ? 0 : ahead;
		if (window > nr - 1 - i)
			window = nr - 1 - i;
		up.faults++;
		up.windows += window > 0;
	}
	return up;
}
