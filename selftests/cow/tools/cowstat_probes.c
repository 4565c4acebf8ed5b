// SPDX-License-Identifier: GPL-2.0
/*
 * Copy-on-write faults by kprobe events
 *
 * do_wp_page() is entered (event "start") and left ("cow_end") by each write-protect
 * fault. In between wp_page_reuse() makes the PTE writable ("reused"), or
 * wp_page_copy() takes the old page out of the rmap ("copied"). The compiler may
 * have inlined both into do_wp_page(), where they cannot be probed. So probe the
 * functions that they call, and accept a hit if its return address is in one of the
 * three. Retried faults, those that go to userfaultfd, and writes to shared
 * mappings or to the zero page are no copies; unsharing for GUP has its flag in the
 * fault's flags. A copy that lost its race is not recognised: it is only in the
 * time. Faults on huge pages that a PMD maps go to do_huge_pmd_wp_page(), and are
 * not counted unless that splits the mapping. A kernel that can copy several pages
 * in a fault (CONFIG_COW_PRECOPY) is refused: cow_batch_copy() takes them out of
 * the rmap, once for each run of pages, which does not tell how many faults there
 * were.
 *
 * The kernel adds up: hist triggers carry process, flags and time from "start"
 * to the other events in variables. A variable belongs to a thread, by the top
 * bits of its kernel stack's address; thread ids would fill the table in time.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cow_stats.h"
#include "cowstat_btf.h"
#include "cowstat_probes.h"

#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))

#define PREFIX		"cowstat_"
/* Of a table; the kernel says how often there was none left. A test wants few. */
#ifndef ENTRIES
#define ENTRIES		16384
#endif
#define KRETPROBES	1024	/* threads that may be in do_wp_page() at a time */

/* include/linux/mm.h and mm_types.h */
#define VM_MAYSHARE_BIT		7
#define FAULT_FLAG_UNSHARE_BIT	10
#define VM_FAULT_WRITE		8	/* before 6.2: a fault that was solved */

#if defined(__x86_64__)
#define RETURN_ADDRESS	"$stack0"
#elif defined(__aarch64__)
#define RETURN_ADDRESS	"%x30"
#endif

/* Kernel stacks are aligned to their size, which is 16 KiB or more. */
#define THREAD_KEY	"stack=$stack:b50@14/64"

static const char *tracefs;
static char name[32];		/* of group and instance; "" if not begun */
static enum probes_whose whose;
static char why[512];

static const char *because(const char *fmt, ...)
	__attribute__((format(printf, 1, 2)));

static const char *because(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return why;
}

/*
 * Files of tracefs
 */

/* Append a line; opening it without O_APPEND would remove all events. */
static int put(const char *path, const char *line)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC), ret = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, line, strlen(line)) < 0)
		ret = -errno;
	close(fd);
	return ret;
}

static int put_global(const char *file, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int put_global(const char *file, const char *fmt, ...)
{
	char path[PATH_MAX], line[1024];
	va_list ap;

	snprintf(path, sizeof(path), "%s/%s", tracefs, file);
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	return put(path, line);
}

/* FILE of an event in the instance; of a synthetic one with "synthetic/" */
static void event_file(char *path, size_t size, const char *instance,
		       const char *event, const char *file)
{
	if (strchr(event, '/'))
		snprintf(path, size, "%s/instances/%s/events/%s/%s", tracefs,
			 instance, event, file);
	else if (*event == '+')
		snprintf(path, size, "%s/instances/%s/events/synthetic/%s_%s/%s",
			 tracefs, instance, instance, event + 1, file);
	else
		snprintf(path, size, "%s/instances/%s/events/%s/%s/%s", tracefs,
			 instance, instance, event, file);
}

static int set_trigger(const char *event, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int set_trigger(const char *event, const char *fmt, ...)
{
	char path[PATH_MAX], line[1024];
	va_list ap;
	int ret;

	event_file(path, sizeof(path), name, event, "trigger");
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	ret = put(path, line);
	if (ret)
		because("the kernel refuses '%s': %s", line, strerror(-ret));
	return ret;
}

/*
 * Removal, in an order in which nothing refers any more to what is removed
 */

static const char * const events[] = {
	"copied", "cow_end", "reused", "reused_2", "reused_3", "+copy", "+time",
	"sched/sched_process_fork", "start",
};

static void clear_triggers(const char *instance, const char *event)
{
	char path[PATH_MAX], lines[8][1024];
	int nr = 0, i;
	FILE *file;

	event_file(path, sizeof(path), instance, event, "trigger");
	file = fopen(path, "re");
	if (!file)
		return;
	while (nr < (int)ARRAY_SIZE(lines) &&
	       fgets(lines[nr] + 1, sizeof(lines[nr]) - 1, file))
		nr += lines[nr][1] != '#';
	fclose(file);
	for (i = 0; i < nr; i++) {
		char *line = lines[i], *state = strstr(line + 1, " [");

		if (state)
			*state = '\0';
		line[0] = '!';
		put(path, line);
	}
}

static bool is_gone(int ret)
{
	return !ret || ret == -ENOENT;
}

/* False if something is still in use, such as an event by a perf that runs on */
static bool remove_all(const char *instance)
{
	char path[PATH_MAX];
	bool all = true;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(events); i++)
		clear_triggers(instance, events[i]);
	for (i = 0; i < ARRAY_SIZE(events); i++) {
		if (events[i][0] == '+')
			all &= is_gone(put_global("synthetic_events", "!%s_%s",
						  instance, events[i] + 1));
		else if (!strchr(events[i], '/'))
			all &= is_gone(put_global("kprobe_events", "-:%s/%s",
						  instance, events[i]));
	}
	/* Last: whoever finds it knows that there may be something to remove. */
	snprintf(path, sizeof(path), "%s/instances/%s", tracefs, instance);
	return all && (!rmdir(path) || errno == ENOENT);
}

/* Each cowstat has its instance's folder open, and locked. */
static int instance_lock = -1;

static bool lock_instance(const char *instance, int *fd)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/instances/%s", tracefs, instance);
	*fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *fd >= 0 && !flock(*fd, LOCK_EX | LOCK_NB);
}

/*
 * The process need not be the one that made it, numbers are used again. If it is a
 * cowstat, it may have made it just now, without the lock yet.
 */
static bool is_leftover(const char *instance, int pid)
{
	char path[64], comm[32];
	bool locked;
	int fd;

	locked = lock_instance(instance, &fd);
	if (fd >= 0)
		close(fd);
	if (!locked || pid == getpid())
		return locked;
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	return cow_read_file(path, comm, sizeof(comm)) <= 0 ||
	       strcmp(comm, "cowstat\n");
}

/* What was left by a cowstat that could not end itself */
static void remove_leftovers(void)
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/instances", tracefs);
	dir = opendir(path);
	if (!dir)
		return;
	while ((entry = readdir(dir))) {
		char instance[32], rest;
		int pid;

		if (sscanf(entry->d_name, PREFIX "%d%c", &pid, &rest) != 1 ||
		    pid <= 0)
			continue;
		snprintf(instance, sizeof(instance), PREFIX "%d", pid);
		if (is_leftover(instance, pid))
			remove_all(instance);
	}
	closedir(dir);
}

/*
 * What this kernel has
 */

static const char *find_tracefs(void)
{
	static const char * const places[] = {
		"/sys/kernel/tracing", "/sys/kernel/debug/tracing",
	};
	char path[PATH_MAX];
	size_t i;

	if (geteuid())
		return because("kprobe events need root");
	for (i = 0; i < ARRAY_SIZE(places); i++) {
		snprintf(path, sizeof(path), "%s/events", places[i]);
		if (access(path, F_OK))
			continue;
		tracefs = places[i];
		snprintf(path, sizeof(path), "%s/kprobe_events", tracefs);
		if (access(path, W_OK))
			return because("%s: %s (CONFIG_KPROBE_EVENTS)", path,
				       strerror(errno));
		snprintf(path, sizeof(path), "%s/synthetic_events", tracefs);
		if (access(path, W_OK))
			return because("%s: %s (CONFIG_HIST_TRIGGERS)", path,
				       strerror(errno));
		return NULL;
	}
	return because("tracefs is not mounted: mount -t tracefs none /sys/kernel/tracing");
}

/* A function's code: up to the next symbol */
struct code {
	const char *name;
	unsigned long long start, end;
};

enum {
	DO_WP_PAGE,
	/* Where the compiler has not made them part of do_wp_page() */
	WP_PAGE_COPY,
	WP_PAGE_REUSE,
	/* What takes a page out of the rmap; the second one before 6.9 */
	FOLIO_REMOVE,
	PAGE_REMOVE,
	/* What makes a PTE writable; the second and third one on arm64 */
	SET_ACCESS,
	SET_ACCESS_ARM64,
	SET_ACCESS_CONTPTE,
	/* A kernel that has it may handle a fault by none of the others. */
	COW_BATCH_COPY,
	NR_CODES
};

static struct code codes[NR_CODES] = {
	[DO_WP_PAGE] = { "do_wp_page" },
	[WP_PAGE_COPY] = { "wp_page_copy" },
	[WP_PAGE_REUSE] = { "wp_page_reuse" },
	[FOLIO_REMOVE] = { "folio_remove_rmap_ptes" },
	[PAGE_REMOVE] = { "page_remove_rmap" },
	[SET_ACCESS] = { "ptep_set_access_flags" },
	[SET_ACCESS_ARM64] = { "__ptep_set_access_flags" },
	[SET_ACCESS_CONTPTE] = { "contpte_ptep_set_access_flags" },
	[COW_BATCH_COPY] = { "cow_batch_copy" },
};

static const struct {
	int code;
	const char *event;
} reusing[] = {
	{ SET_ACCESS, "reused" },
	{ SET_ACCESS_ARM64, "reused_2" },
	{ SET_ACCESS_CONTPTE, "reused_3" },
};

/* One line of kallsyms; its symbols are in no order */
static void look_at_symbol(unsigned long long addr, const char *symbol, bool find)
{
	size_t i;

	for (i = 0; i < NR_CODES; i++) {
		struct code *c = &codes[i];

		if (find && !strcmp(symbol, c->name))
			c->start = addr;
		else if (!find && c->start && addr > c->start && addr < c->end)
			c->end = addr;
	}
}

static const char *find_functions(void)
{
	char line[512], symbol[256];
	unsigned long long addr;
	bool any = false;
	FILE *file;
	size_t i;
	int find;

	file = fopen("/proc/kallsyms", "re");
	if (!file)
		return because("no /proc/kallsyms (CONFIG_KALLSYMS)");
	for (i = 0; i < NR_CODES; i++) {
		codes[i].start = 0;
		codes[i].end = ULLONG_MAX;
	}
	for (find = 1; find >= 0; find--) {
		rewind(file);
		while (fgets(line, sizeof(line), file)) {
			if (sscanf(line, "%llx %*c %255s", &addr, symbol) != 2)
				continue;
			any |= addr;
			look_at_symbol(addr, symbol, find);
		}
	}
	fclose(file);
	if (!any)
		return because("/proc/kallsyms hides the addresses (kernel.kptr_restrict)");
	if (codes[COW_BATCH_COPY].start)
		return because("they miss faults of a kernel with CONFIG_COW_PRECOPY, which counts by process with CONFIG_COW_STATS only");
	if (!codes[DO_WP_PAGE].start)
		return because("the kernel has no function do_wp_page");
	if (!codes[FOLIO_REMOVE].start && !codes[PAGE_REMOVE].start)
		return because("the kernel has neither %s nor %s",
			       codes[FOLIO_REMOVE].name, codes[PAGE_REMOVE].name);
	if (!codes[SET_ACCESS].start && !codes[SET_ACCESS_ARM64].start)
		return because("the kernel has neither %s nor %s",
			       codes[SET_ACCESS].name, codes[SET_ACCESS_ARM64].name);
	return NULL;
}

/*
 * Setting up
 */

enum { VMF_VMA, VMF_FLAGS, VMA_MM, VMA_FLAGS, MM_OWNER, TASK_TGID };

static struct member_offset members[] = {
	[VMF_VMA] = { "vm_fault", "vma" },
	[VMF_FLAGS] = { "vm_fault", "flags" },
	[VMA_MM] = { "vm_area_struct", "vm_mm" },
	[VMA_FLAGS] = { "vm_area_struct", "vm_flags" },
	[MM_OWNER] = { "mm_struct", "owner" },
	[TASK_TGID] = { "task_struct", "tgid" },
};

static int add_kprobe(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static int add_kprobe(const char *fmt, ...)
{
	char line[512];
	va_list ap;
	int ret;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	ret = put_global("kprobe_events", "%s", line);
	if (ret)
		because("the kernel refuses '%s': %s", line, strerror(-ret));
	return ret;
}

/*
 * Whose memory it is, which is the process in the kernel's own counts too; a
 * debugger may be the one that faults. vma is how to get at the VMA.
 */
static const char *memory_fields(const char *vma)
{
	static char text[192];

	snprintf(text, sizeof(text),
		 "pid=+%u(+%u(+%u(%s))):u32 shared=+%u(%s):b1@%d/64",
		 members[TASK_TGID].offset, members[MM_OWNER].offset,
		 members[VMA_MM].offset, vma, members[VMA_FLAGS].offset, vma,
		 VM_MAYSHARE_BIT);
	return text;
}

#ifdef RETURN_ADDRESS
static bool add_reuse_kprobes(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(reusing); i++) {
		const struct code *c = &codes[reusing[i].code];

		if (c->start &&
		    add_kprobe("p:%s/%s %s %s from=" RETURN_ADDRESS ":x64", name,
			       reusing[i].event, c->name, memory_fields("$arg1")))
			return false;
	}
	return true;
}

static bool add_copied_kprobe(void)
{
	int removal = codes[FOLIO_REMOVE].start ? FOLIO_REMOVE : PAGE_REMOVE;

	return !add_kprobe("p:%s/copied %s " THREAD_KEY " from=" RETURN_ADDRESS ":x64",
			   name, codes[removal].name);
}

static bool add_kprobes(void)
{
	char vma[32];

	snprintf(vma, sizeof(vma), "+%u($arg1)", members[VMF_VMA].offset);
	return !add_kprobe("p:%s/start do_wp_page " THREAD_KEY " %s unshare=+%u($arg1):b1@%d/32",
			   name, memory_fields(vma), members[VMF_FLAGS].offset,
			   FAULT_FLAG_UNSHARE_BIT) &&
	       !add_kprobe("r%d:%s/cow_end do_wp_page " THREAD_KEY " ret=$retval:u32",
			   KRETPROBES, name) &&
	       add_copied_kprobe() &&
	       add_reuse_kprobes();
}
#else
static bool add_kprobes(void)
{
	because("kprobe events are for x86_64 and arm64 only");
	return false;
}

static bool add_copied_kprobe(void)
{
	return add_kprobes();
}
#endif

static bool add_synthetic(void)
{
	int ret = put_global("synthetic_events", "%s_copy u32 pid; u32 unshare", name);

	if (!ret)
		ret = put_global("synthetic_events",
				 "%s_time u32 pid; u32 unshare; u64 shared; u64 ns", name);
	if (ret)
		because("the kernel refuses a synthetic event: %s", strerror(-ret));
	return !ret;
}

/* "from" is in one of the functions of write-protect faults */
static void caller_filter(char *text, size_t size)
{
	int i, len = 0;

	for (i = DO_WP_PAGE; i <= WP_PAGE_REUSE; i++)
		if (codes[i].start)
			len += snprintf(text + len, size - len,
					"%s(from >= 0x%llx && from < 0x%llx)",
					len ? " || " : "", codes[i].start,
					codes[i].end);
}

static bool add_reuse_triggers(const char *callers, const char *only)
{
	const char *key = whose == PROBES_SYSTEM ? "shared" : "pid";
	size_t i;

	for (i = 0; i < ARRAY_SIZE(reusing); i++)
		if (codes[reusing[i].code].start &&
		    set_trigger(reusing[i].event,
				"hist:keys=%s:size=%d if (%s) && shared == 0%s",
				key, ENTRIES, callers, only))
			return false;
	return true;
}

static bool add_triggers(pid_t pid)
{
	/* A table for the whole system needs no more than one entry. */
	const char *time = whose == PROBES_SYSTEM ? "unshare" : "pid";
	const char *copy = whose == PROBES_SYSTEM ? "unshare" : "pid,unshare";
	char callers[384], only[32] = "", only_if[40] = "";

	if (whose == PROBES_PROCESS) {
		snprintf(only, sizeof(only), " && pid == %d", pid);
		snprintf(only_if, sizeof(only_if), " if pid == %d", pid);
	}
	caller_filter(callers, sizeof(callers));
	if (whose == PROBES_EACH &&
	    set_trigger("sched/sched_process_fork",
			"hist:keys=parent_pid,child_pid:size=%d", ENTRIES))
		return false;
	return !set_trigger("+copy", "hist:keys=%s:size=%d%s", copy, ENTRIES, only_if) &&
	       !set_trigger("+time", "hist:keys=%s:vals=ns:size=%d if unshare == 0 && shared == 0%s",
			    time, ENTRIES, only) &&
	       /* Reading a variable clears it: one set for each event that reads them. */
	       !set_trigger("start",
			    "hist:keys=stack:cp=pid,cu=unshare,ep=pid,eu=unshare,es=shared,t=common_timestamp:size=%d",
			    ENTRIES) &&
	       !set_trigger("copied",
			    "hist:keys=stack:size=%d:onmatch(%s.start).trace(%s_copy,$cp,$cu) if %s",
			    ENTRIES, name, name, callers) &&
	       !set_trigger("cow_end",
			    "hist:keys=stack:ns=common_timestamp-$t:size=%d:onmatch(%s.start).trace(%s_time,$ep,$eu,$es,$ns) if ret == 0 || ret == %d",
			    ENTRIES, name, name, VM_FAULT_WRITE) &&
	       add_reuse_triggers(callers, only);
}

static bool make_instance(void)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	char path[PATH_MAX];
	int i;

	snprintf(path, sizeof(path), "%s/instances/%s", tracefs, name);
	if (!mkdir(path, 0700)) {
		/* Another cowstat may just look whether it is a leftover. */
		for (i = 0; i < 100; i++) {
			if (lock_instance(name, &instance_lock))
				return true;
			close(instance_lock);
			nanosleep(&pause, NULL);
		}
		instance_lock = -1;
		errno = EWOULDBLOCK;
	}
	because("%s: %s", path, strerror(errno));
	/* It is not ours, nor is anything of that name. */
	name[0] = '\0';
	return false;
}

/* The events have the numbers of the first namespace, whose inode is a constant. */
static const char *other_namespace(enum probes_whose of)
{
	char link[64] = "";

	if (of == PROBES_SYSTEM ||
	    readlink("/proc/self/ns/pid", link, sizeof(link) - 1) < 0 ||
	    !strcmp(link, "pid:[4026531836]"))
		return NULL;
	return because("they know processes by other numbers than this PID namespace");
}

const char *probes_begin(enum probes_whose of, pid_t pid)
{
	const char *reason = find_tracefs() ?: find_functions() ?:
			     btf_offsets(members, ARRAY_SIZE(members)) ?:
			     other_namespace(of);

	if (reason)
		return reason;
	remove_leftovers();
	whose = of;
	snprintf(name, sizeof(name), PREFIX "%d", getpid());
	if (make_instance() && add_kprobes() && add_synthetic() && add_triggers(pid))
		return NULL;
	probes_end();
	return why;
}

const char *probes_begin_copied(char *event, size_t size, char *filter,
				size_t filter_size)
{
	const char *reason = find_tracefs() ?: find_functions();

	if (reason)
		return reason;
	remove_leftovers();
	snprintf(name, sizeof(name), PREFIX "%d", getpid());
	if (!make_instance() || !add_copied_kprobe()) {
		probes_end();
		return why;
	}
	snprintf(event, size, "%s:copied", name);
	caller_filter(filter, filter_size);
	return NULL;
}

bool probes_end(void)
{
	bool all;

	if (!name[0])
		return true;
	all = remove_all(name);
	name[0] = '\0';
	if (instance_lock >= 0)
		close(instance_lock);
	instance_lock = -1;
	return all;
}

/*
 * Reading
 */

/* One line of a hist file */
struct entry {
	unsigned int pid, child, unshare;
	unsigned long long hits, ns;
};

typedef void (*entry_fn)(const struct entry *e, void *arg);

static unsigned long long number_after(const char *line, const char *key)
{
	const char *p = strstr(line, key);

	return p ? strtoull(p + strlen(key), NULL, 10) : 0;
}

/* Calls fn for each entry; *dropped has grown by those that had no room. */
static int read_entries(const char *event, entry_fn fn, void *arg,
			unsigned long long *dropped)
{
	char path[PATH_MAX], line[512];
	FILE *file;

	event_file(path, sizeof(path), name, event, "hist");
	file = fopen(path, "re");
	if (!file)
		return -errno;
	while (fgets(line, sizeof(line), file)) {
		struct entry e;

		*dropped += number_after(line, "Dropped:");
		if (line[0] != '{')
			continue;
		e.pid = number_after(line, " pid:") ?: number_after(line, " parent_pid:");
		e.child = number_after(line, " child_pid:");
		e.unshare = number_after(line, " unshare:");
		e.hits = number_after(line, " hitcount:");
		e.ns = number_after(line, " ns:");
		fn(&e, arg);
	}
	fclose(file);
	return 0;
}

/*
 * What was counted of each process; of PROBES_SYSTEM and PROBES_PROCESS all is that
 * of process 0. Twice as many slots as the kernel's tables have entries.
 */
struct counted {
	unsigned int pid;
	bool used;
	struct probed p;
};

static struct counted table[4 * ENTRIES];

static struct counted *slot_of(unsigned int pid)
{
	size_t i = pid % ARRAY_SIZE(table);

	while (table[i].used && table[i].pid != pid)
		i = (i + 1) % ARRAY_SIZE(table);
	return &table[i];
}

static struct probed *counts_of(unsigned int pid)
{
	struct counted *slot = slot_of(whose == PROBES_EACH ? pid : 0);

	slot->pid = whose == PROBES_EACH ? pid : 0;
	slot->used = true;
	return &slot->p;
}

const struct probed *probes_of(pid_t pid)
{
	return &slot_of(whose == PROBES_EACH ? pid : 0)->p;
}

static void add_copies(const struct entry *e, void *arg)
{
	struct probed *p = counts_of(e->pid);

	(void)arg;
	if (e->unshare)
		p->unshared += e->hits;
	else
		p->faults += e->hits;
}

static void add_reused(const struct entry *e, void *arg)
{
	(void)arg;
	counts_of(e->pid)->reused += e->hits;
}

static void add_time(const struct entry *e, void *arg)
{
	(void)arg;
	counts_of(e->pid)->fault_total_ns += e->ns;
}

static void ignore(const struct entry *e, void *arg)
{
	(void)e;
	(void)arg;
}

/* How often the kernel had no kretprobe left for "cow_end" */
static unsigned long long missed_ends(void)
{
	unsigned long long hits, missed, sum = 0;
	char path[PATH_MAX], line[512], event[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/kprobe_profile", tracefs);
	file = fopen(path, "re");
	if (!file)
		return 0;
	/* The names in this file have no group. */
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "%127s %llu %llu", event, &hits, &missed) == 3 &&
		    !strcmp(event, "cow_end"))
			sum += missed;
	fclose(file);
	return sum;
}

int probes_read(unsigned long long *missed)
{
	size_t i;
	int ret;

	memset(table, 0, sizeof(table));
	*missed = 0;
	ret = read_entries("+copy", add_copies, NULL, missed) ?:
	      read_entries("+time", add_time, NULL, missed) ?:
	      read_entries("start", ignore, NULL, missed);
	for (i = 0; i < ARRAY_SIZE(reusing) && !ret; i++)
		if (codes[reusing[i].code].start)
			ret = read_entries(reusing[i].event, add_reused, NULL,
					   missed);
	*missed += missed_ends();
	return ret;
}

/* A process and its descendants, by the forks that were seen */
struct tree {
	unsigned int *pids;
	size_t nr, room;
	bool grown;
};

static bool in_tree(const struct tree *t, unsigned int pid)
{
	size_t i;

	for (i = 0; i < t->nr; i++)
		if (t->pids[i] == pid)
			return true;
	return false;
}

static void add_child(const struct entry *e, void *arg)
{
	struct tree *t = arg;

	if (!in_tree(t, e->pid) || in_tree(t, e->child) || t->nr == t->room)
		return;
	t->pids[t->nr++] = e->child;
	t->grown = true;
}

int probes_read_tree(struct probed *p, pid_t root, unsigned long long *missed)
{
	struct tree tree = { .nr = 1, .room = 4 * ENTRIES };
	unsigned long long dropped;
	size_t i;
	int ret;

	memset(p, 0, sizeof(*p));
	tree.pids = calloc(tree.room, sizeof(*tree.pids));
	if (!tree.pids)
		return -ENOMEM;
	tree.pids[0] = root;
	do {
		tree.grown = false;
		dropped = 0;
		ret = read_entries("sched/sched_process_fork", add_child, &tree,
				   &dropped);
	} while (!ret && tree.grown);
	ret = ret ?: probes_read(missed);
	*missed += dropped;
	for (i = 0; i < tree.nr; i++) {
		const struct probed *one = probes_of(tree.pids[i]);

		p->faults += one->faults;
		p->reused += one->reused;
		p->unshared += one->unshared;
		p->fault_total_ns += one->fault_total_ns;
	}
	free(tree.pids);
	return ret;
}
