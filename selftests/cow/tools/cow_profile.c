// SPDX-License-Identifier: GPL-2.0
/*
 * Where the time of a fork, or of a copy-on-write fault, goes
 *
 * Forks, or takes copy-on-write faults, a given number of times and says how
 * long each section of the kernel's work took: mean and variance over all of
 * them. The times are those of the function_graph tracer, limited to the few
 * functions where one section ends and the next begins, and without what the
 * tracer itself costs:
 *
 * - Four costs are constant: from the time stamp of one event to that of the
 *   next, for each combination of entry and exit. They are measured here, by
 *   system calls that do next to nothing, and taken off between every two
 *   events.
 * - What tracing costs a fork even if no function is traced (the new task gets
 *   a stack for return addresses) is measured by forking in that state.
 * - The same work is timed without the tracer, before and after. The sections
 *   must add up to that; whoever reads the output has to compare.
 *
 * What the compiler has inlined has no event. The time between two calls of one
 * function belongs to the section that the first of the two begins.
 *
 * Times are counts of the CPU's time-stamp counter, as are those of the events.
 * A program for kernels that are otherwise idle, not a test. Needs root.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <getopt.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cow_helpers.h"

#define TRACING		"/sys/kernel/tracing/"
#define ARRAY_SIZE(arr)	(sizeof(arr) / sizeof((arr)[0]))
#define __printf(fmt, args)	__attribute__((format(printf, fmt, args)))
#define __noreturn		__attribute__((noreturn))

#define MAX_COUNT	16384
#define MAX_MB		1024
#define WARM_UP		16	/* forks or faults before the first that counts */
#define ROUNDS		2	/* of each kind without tracing */
#define NO_FAULT	200	/* ticks in which nothing can have happened */
#define NR_CALLS	2000	/* system calls to measure the tracer's cost by */
#define MAX_DEPTH	32
#define MAX_EVENTS	65536	/* in one fork or fault */

static bool tracer_used;	/* by this process */
/* What was set before */
static char old_buffer_size[32], old_clock[32], old_on[32];

static void trace_put_back(void)
{
	if (!tracer_used)
		return;
	tracer_used = false;
	cow_write_file(TRACING "current_tracer", "nop");
	close(open(TRACING "set_ftrace_filter", O_WRONLY | O_TRUNC));
	cow_write_file(TRACING "trace_clock", old_clock);
	cow_write_file(TRACING "buffer_size_kb", old_buffer_size);
	cow_write_file(TRACING "tracing_on", old_on);
}

static void on_signal(int sig)
{
	trace_put_back();
	_exit(128 + sig);
}

static __printf(1, 2) __noreturn void fatal(const char *fmt, ...)
{
	va_list ap;

	trace_put_back();
	fflush(stdout);
	fputs("cow_profile: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(2);
}

static void *allocate(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		fatal("out of memory");
	return p;
}

/*
 * The time-stamp counter
 */
#ifdef __x86_64__
static inline __u64 tsc(void)
{
	__u32 low, high;

	asm volatile("lfence\n\trdtsc" : "=a" (low), "=d" (high) : : "memory");
	return (__u64)high << 32 | low;
}

/*
 * A system call with the time just before and after. In between nothing is
 * written to memory: after a fork, that would be a copy-on-write fault.
 */
static long timed_syscall(long nr, long arg, __u64 *start, __u64 *end)
{
	register long r10 asm("r10") = 0;
	register long r8 asm("r8") = 0;
	__u64 before, after;
	long ret;

	asm volatile("lfence\n\t"
		     "rdtsc\n\t"
		     "shl $32, %%rdx\n\t"
		     "or %%rdx, %%rax\n\t"
		     "mov %%rax, %[before]\n\t"
		     "mov %[nr], %%rax\n\t"
		     "xor %%edx, %%edx\n\t"
		     "syscall\n\t"
		     "mov %%rax, %[ret]\n\t"
		     "lfence\n\t"
		     "rdtsc\n\t"
		     "shl $32, %%rdx\n\t"
		     "or %%rdx, %%rax\n\t"
		     : [before] "=&r" (before), [ret] "=&r" (ret),
		       "=&a" (after)
		     : [nr] "r" (nr), "D" (arg), "S" (0), "r" (r10), "r" (r8)
		     : "rcx", "rdx", "r11", "memory", "cc");
	/* Not in the child: *start and *end are shared with it. */
	if (ret || nr != SYS_clone) {
		*start = before;
		*end = after;
	}
	return ret;
}

#define SYS_NOTHING	156	/* was _sysctl, today sys_ni_syscall */
#else
static __u64 tsc(void)
{
	fatal("not for this architecture: x86_64 only");
}

static long timed_syscall(long nr, long arg, __u64 *start, __u64 *end)
{
	*start = tsc();
	*end = *start;
	return -EOPNOTSUPP;
}

#define SYS_NOTHING	-1
#endif

/* Where the time goes. The functions are the kernel's, inlined or not. */
struct section {
	const char *name;
	const char *what;
};

/*
 * A traced function: the section that its own time is charged to, and the one
 * that its caller's time is charged to after it has returned, until another
 * function changes that.
 */
struct probe {
	const char *function;
	const char *caller;	/* only there; elsewhere as its caller is */
	int section;
	int after;		/* or KEEP, or SELF */
};

enum {
	KEEP = -1,	/* as before the call */
	SELF = -2,	/* the section of the caller */
	RESUME = -3,	/* as before the interrupt */
};

enum fork_section {
	FORK_ENTRY,
	FORK_TASK,
	FORK_CREDS,
	FORK_SCHED,
	FORK_FILES,
	FORK_FS,
	FORK_SIGNALS,
	FORK_MM,
	FORK_VMAS,
	FORK_PTES,
	FORK_THREAD,
	FORK_PID,
	FORK_CGROUP,
	FORK_WAKE,
	FORK_EXIT,
	FORK_IRQ,
	FORK_MISC,
};

static const struct section fork_sections[] = {
	[FORK_ENTRY]	= { "system call, entry", "entry_SYSCALL_64, sys_clone" },
	[FORK_TASK]	= { "task and stack", "dup_task_struct" },
	[FORK_CREDS]	= { "credentials", "copy_creds" },
	[FORK_SCHED]	= { "scheduler", "sched_fork, sched_cgroup_fork, sched_post_fork" },
	[FORK_FILES]	= { "files", "copy_files" },
	[FORK_FS]	= { "root and cwd", "copy_fs" },
	[FORK_SIGNALS]	= { "signals", "copy_sighand, copy_signal" },
	[FORK_MM]	= { "mm, descriptor", "dup_mm, mm_init" },
	[FORK_VMAS]	= { "mm, VMA walk", "dup_mmap without copy_page_range" },
	[FORK_PTES]	= { "mm, page tables", "copy_page_range" },
	[FORK_THREAD]	= { "namespaces, IO, thread", "copy_namespaces, copy_io, copy_thread" },
	[FORK_PID]	= { "pid", "alloc_pid, attach_pid" },
	[FORK_CGROUP]	= { "cgroups", "cgroup_fork, cgroup_can_fork, cgroup_post_fork" },
	[FORK_WAKE]	= { "wake-up", "wake_up_new_task" },
	[FORK_EXIT]	= { "system call, exit", "sys_clone, syscall_exit_to_user_mode" },
	[FORK_IRQ]	= { "interrupts", "irq_enter_rcu ... irq_exit_rcu" },
	[FORK_MISC]	= { "miscellaneous", "kernel_clone, copy_process themselves" },
};

/* In the order of the calls. dup_mmap() may be inlined, with its caller. */
static const struct probe fork_probes[] = {
	{ "kernel_clone", NULL, FORK_MISC, FORK_EXIT },
	{ "copy_process", NULL, FORK_MISC, SELF },
	{ "dup_task_struct", "copy_process", FORK_TASK, SELF },
	{ "kmem_cache_alloc_node_noprof", "copy_process", FORK_TASK, FORK_TASK },
	{ "arch_dup_task_struct", "copy_process", FORK_TASK, FORK_TASK },
	{ "copy_creds", "copy_process", FORK_CREDS, SELF },
	{ "cgroup_fork", "copy_process", FORK_CGROUP, SELF },
	{ "sched_fork", "copy_process", FORK_SCHED, SELF },
	{ "copy_semundo", "copy_process", FORK_FILES, FORK_FILES },
	{ "dup_fd", "copy_process", FORK_FILES, FORK_FILES },
	{ "copy_fs_struct", "copy_process", FORK_FS, FORK_SIGNALS },
	{ "posix_cputimers_group_init", "copy_process", FORK_SIGNALS, FORK_SIGNALS },
	{ "__init_rwsem", "copy_process", FORK_SIGNALS, FORK_MM },
	{ "dup_mm", "copy_process", FORK_MM, FORK_MM },
	{ "mm_init", NULL, FORK_MM, FORK_VMAS },
	{ "dup_mmap", NULL, FORK_VMAS, FORK_VMAS },
	{ "vm_area_dup", NULL, FORK_VMAS, FORK_VMAS },
	{ "copy_page_range", NULL, FORK_PTES, FORK_VMAS },
	{ "copy_namespaces", "copy_process", FORK_THREAD, FORK_THREAD },
	{ "copy_thread", "copy_process", FORK_THREAD, SELF },
	{ "alloc_pid", "copy_process", FORK_PID, SELF },
	{ "cgroup_can_fork", "copy_process", FORK_CGROUP, SELF },
	{ "sched_cgroup_fork", "copy_process", FORK_SCHED, SELF },
	{ "attach_pid", "copy_process", FORK_PID, SELF },
	{ "sched_post_fork", "copy_process", FORK_SCHED, SELF },
	{ "cgroup_post_fork", "copy_process", FORK_CGROUP, SELF },
	{ "wake_up_new_task", "kernel_clone", FORK_WAKE, SELF },
	{ "irq_enter_rcu", NULL, FORK_IRQ, FORK_IRQ },
	{ "irq_exit_rcu", NULL, FORK_IRQ, RESUME },
};

enum fault_section {
	FAULT_ENTRY,
	FAULT_VMA,
	FAULT_WALK,
	FAULT_WP,
	FAULT_ALLOC,
	FAULT_CHARGE,
	FAULT_COPY,
	FAULT_LOCK,
	FAULT_FLUSH,
	FAULT_RMAP,
	FAULT_AHEAD,
	FAULT_EXIT,
	FAULT_IRQ,
	FAULT_MISC,
};

static const struct section fault_sections[] = {
	[FAULT_ENTRY]	= { "exception, entry", "asm_exc_page_fault, exc_page_fault" },
	[FAULT_VMA]	= { "VMA lookup", "lock_vma_under_rcu" },
	[FAULT_WALK]	= { "page-table walk", "handle_mm_fault, __handle_mm_fault" },
	[FAULT_WP]	= { "write-protect fault", "do_wp_page, wp_page_copy themselves" },
	[FAULT_ALLOC]	= { "allocation", "vma_alloc_folio" },
	[FAULT_CHARGE]	= { "memcg charge", "mem_cgroup_charge" },
	[FAULT_COPY]	= { "copy", "copy_mc_user_highpage" },
	[FAULT_LOCK]	= { "lock and recheck", "pte_offset_map_lock, pte_same, the new PTE" },
	[FAULT_FLUSH]	= { "clear and TLB flush", "ptep_clear_flush" },
	[FAULT_RMAP]	= { "rmap and LRU",
			    "folio_add_new_anon_rmap, folio_add_lru_vma, folio_remove_rmap_pte" },
	[FAULT_AHEAD]	= { "copying ahead", "cow_copy_ahead, cow_batch_copy" },
	[FAULT_EXIT]	= { "exception, exit", "exc_page_fault, irqentry_exit" },
	[FAULT_IRQ]	= { "interrupts", "irq_enter_rcu ... irq_exit_rcu" },
	[FAULT_MISC]	= { "miscellaneous", "exc_page_fault between its calls" },
};

static const struct probe fault_probes[] = {
	{ "lock_vma_under_rcu", NULL, FAULT_VMA, FAULT_MISC },
	{ "lock_mm_and_find_vma", NULL, FAULT_VMA, FAULT_MISC },
	{ "handle_mm_fault", NULL, FAULT_WALK, FAULT_EXIT },
	{ "__handle_mm_fault", NULL, FAULT_WALK, SELF },
	{ "do_wp_page", NULL, FAULT_WP, SELF },
	{ "vma_alloc_folio_noprof", NULL, FAULT_ALLOC, SELF },
	{ "__mem_cgroup_charge", NULL, FAULT_CHARGE, SELF },
	{ "copy_mc_to_kernel", NULL, FAULT_COPY, SELF },
	{ "copy_mc_user_highpage", NULL, FAULT_COPY, SELF },
	{ "pte_offset_map_lock", NULL, FAULT_LOCK, FAULT_LOCK },
	{ "__pte_offset_map_lock", NULL, FAULT_LOCK, FAULT_LOCK },
	{ "ptep_clear_flush", NULL, FAULT_FLUSH, SELF },
	{ "folio_add_new_anon_rmap", NULL, FAULT_RMAP, SELF },
	{ "folio_add_lru_vma", NULL, FAULT_RMAP, SELF },
	{ "folio_remove_rmap_ptes", NULL, FAULT_RMAP, SELF },
	{ "cow_copy_ahead", NULL, FAULT_AHEAD, SELF },
	{ "cow_batch_copy", NULL, FAULT_AHEAD, SELF },
	{ "irq_enter_rcu", NULL, FAULT_IRQ, FAULT_IRQ },
	{ "irq_exit_rcu", NULL, FAULT_IRQ, RESUME },
};

/* To measure the tracer by: with nothing inside, and one inside the other. */
static const struct probe leaf_probes[] = {
	{ "__do_sys_getuid", NULL, 0, KEEP },
	{ "__x64_sys_getuid", NULL, 0, KEEP },
};

static const struct probe nested_probes[] = {
	{ "__do_sys_getppid", NULL, 0, KEEP },
	{ "__x64_sys_getppid", NULL, 0, KEEP },
	{ "__task_pid_nr_ns", NULL, 0, KEEP },
};

/* What is profiled: fork or cow */
struct workload {
	const char *name;
	const struct section *section;
	int nr_sections;
	const struct probe *probe;
	int nr_probes;
	int entry, exit, irq;
	int setup;	/* has what tracing costs if nothing is traced, or -1 */
	double spread;	/* how far one may differ, see outlier() */
	int counted;	/* the probe that is called once for each */
	void (*run)(const struct workload *w);
};

static void run_forks(const struct workload *w);
static void run_faults(const struct workload *w);

static const struct workload workloads[] = {
	{
		.name		= "fork",
		.section	= fork_sections,
		.nr_sections	= ARRAY_SIZE(fork_sections),
		.probe		= fork_probes,
		.nr_probes	= ARRAY_SIZE(fork_probes),
		.entry		= FORK_ENTRY,
		.exit		= FORK_EXIT,
		.irq		= FORK_IRQ,
		.setup		= FORK_TASK,
		.counted	= 0,
		.run		= run_forks,
	}, {
		.name		= "cow",
		.section	= fault_sections,
		.nr_sections	= ARRAY_SIZE(fault_sections),
		.probe		= fault_probes,
		.nr_probes	= ARRAY_SIZE(fault_probes),
		.entry		= FAULT_ENTRY,
		.exit		= FAULT_EXIT,
		.irq		= FAULT_IRQ,
		.setup		= -1,
		.spread		= 20,
		.counted	= 2,
		.run		= run_faults,
	},
};

/* What is timed: each fork, fault or system call from start to end */
struct stamp {
	__u64 start;
	__u64 end;
};

static struct stamp *stamps;
static int count;
static size_t touched;	/* bytes that the forking process has written to */
static double empty;	/* what a stamp costs itself */

/* Shared memory is not copied by fork(), and takes no copy-on-write faults. */
static void map_stamps(void)
{
	int nr = count + WARM_UP > NR_CALLS ? count + WARM_UP : NR_CALLS;

	stamps = mmap(NULL, nr * sizeof(*stamps), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (stamps == MAP_FAILED)
		fatal("mmap: %s", strerror(errno));
}

/* The first WARM_UP forks and faults are stored too, and overwritten. */
static struct stamp *stamp_of(int i)
{
	return &stamps[i < WARM_UP ? i : i - WARM_UP];
}

/* A timer that the scheduler has set for the child that is gone still fires. */
static void settle(void)
{
	__u64 start = tsc();

	while (tsc() - start < 1000000)
		;
}

static void run_forks(const struct workload *w)
{
	int i, status;
	pid_t pid;

	for (i = 0; i < count + WARM_UP; i++) {
		struct stamp *s = stamp_of(i);

		pid = timed_syscall(SYS_clone, SIGCHLD, &s->start, &s->end);
		if (!pid)
			_exit(0);
		if (pid < 0)
			fatal("fork: %s", strerror(-pid));
		if (waitpid(pid, &status, 0) != pid || status)
			fatal("a child failed");
		settle();
	}
}

static char *region;

static void run_faults(const struct workload *w)
{
	size_t page = cow_page_size();
	struct cow_child child;
	int i, ret;

	ret = cow_child_idle(&child);
	if (ret)
		fatal("fork: %s", strerror(-ret));
	for (i = 0; i < count + WARM_UP; i++) {
		struct stamp *s = stamp_of(i);
		__u64 start = tsc();

		cow_touch(region + i * page, 2);
		s->end = tsc();
		s->start = start;
	}
	ret = cow_child_end(&child);
	if (ret)
		fatal("the child failed: %d", ret);
}

static void run_calls(long nr)
{
	int i;

	for (i = 0; i < NR_CALLS; i++)
		timed_syscall(nr, 0, &stamps[i].start, &stamps[i].end);
}

static int compare_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The mean of what is not far off: an interrupt came in between. */
static double usual_mean(double *v, int nr)
{
	double sum = 0;
	int i;

	if (!nr)
		return 0;
	qsort(v, nr, sizeof(*v), compare_double);
	for (i = 0; i < nr && v[i] <= 2 * v[nr / 2]; i++)
		sum += v[i];
	return sum / (i ?: 1);
}

static double usual_call(void)
{
	static double v[NR_CALLS];
	int i;

	for (i = 0; i < NR_CALLS; i++)
		v[i] = stamps[i].end - stamps[i].start - empty;
	return usual_mean(v, NR_CALLS);
}

static void run_empty(void)
{
	int i;

	for (i = 0; i < NR_CALLS; i++) {
		__u64 start = tsc();

		stamps[i].end = tsc();
		stamps[i].start = start;
	}
}

/*
 * The worker: the process that forks and takes the faults. It stays as small as
 * it was at the start while this one reads the trace.
 *
 * Nobody else runs: it has the CPU until it sleeps, also after a fork. Its
 * children are ordinary processes.
 */
enum {
	WORK_EMPTY,
	WORK_NOTHING,
	WORK_GETUID,
	WORK_GETPPID,
	WORK_MAP,
	WORK_LOAD,
	WORK_DONE,
};

static struct cow_child worker;

static void have_cpu(void)
{
	struct sched_param param = { .sched_priority = 1 };

	if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param))
		fatal("cannot become a real-time task: %s", strerror(errno));
}

static void map_memory(const struct workload *w)
{
	size_t len = touched;

	if (w->run == run_faults)
		len = (count + WARM_UP) * cow_page_size();
	if (!len)
		return;
	region = mmap(NULL, len, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region == MAP_FAILED)
		fatal("mmap: %s", strerror(errno));
	madvise(region, len, MADV_NOHUGEPAGE);
	memset(region, 1, len);
}

static int work(struct cow_child *self, void *arg)
{
	const struct workload *w = arg;
	int what;

	tracer_used = false;
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	have_cpu();
	while ((what = cow_child_recv(self)) >= 0) {
		switch (what) {
		case WORK_EMPTY:
			run_empty();
			break;
		case WORK_NOTHING:
			run_calls(SYS_NOTHING);
			break;
		case WORK_GETUID:
			run_calls(SYS_getuid);
			break;
		case WORK_GETPPID:
			run_calls(SYS_getppid);
			break;
		case WORK_MAP:
			map_memory(w);
			break;
		case WORK_LOAD:
			w->run(w);
			break;
		}
		if (cow_child_send(self, WORK_DONE))
			break;
	}
	return 0;
}

static void have_done(int what)
{
	if (cow_child_send(&worker, what) || cow_child_recv(&worker) != WORK_DONE)
		fatal("the measured process has failed");
}

static void measure_empty(void)
{
	have_done(WORK_EMPTY);
	empty = 0;
	empty = usual_call();
}

struct moments {
	double n;
	double mean;
	double squares;
};

static void add_value(struct moments *m, double v)
{
	double d = v - m->mean;

	m->n++;
	m->mean += d / m->n;
	m->squares += d * (v - m->mean);
}

static double variance(const struct moments *m)
{
	return m->n > 1 ? m->squares / (m->n - 1) : 0;
}

/*
 * An interrupt, or another task after it, makes one fork or fault take far
 * longer than the others, with or without tracing. From here on it is left out:
 * 10 times the median deviation from the median, but 5 percent at least. Faults
 * differ more: each 31st empties a batch of folios.
 */
static double outlier(const struct workload *w, const double *value)
{
	double *v = allocate(count * sizeof(*v));
	double median, limit;
	int i;

	memcpy(v, value, count * sizeof(*v));
	qsort(v, count, sizeof(*v), compare_double);
	median = v[count / 2];
	/* Most writes take no fault, because their page was copied ahead. */
	if (median < NO_FAULT) {
		free(v);
		return HUGE_VAL;
	}
	for (i = 0; i < count; i++)
		v[i] = v[i] < median ? median - v[i] : v[i] - median;
	qsort(v, count, sizeof(*v), compare_double);
	limit = 10 * v[count / 2];
	if (limit < median / 20)
		limit = median / 20;
	if (limit < w->spread * median)
		limit = w->spread * median;
	free(v);
	return median + limit;
}

static struct moments stamped(const struct workload *w)
{
	double *v = allocate(count * sizeof(*v)), limit;
	struct moments m = {};
	int i;

	for (i = 0; i < count; i++)
		v[i] = stamps[i].end - stamps[i].start - empty;
	limit = outlier(w, v);
	for (i = 0; i < count; i++)
		if (v[i] <= limit)
			add_value(&m, v[i]);
	free(v);
	return m;
}

/*
 * The tracer
 */
/* Word by word: the filter takes no more than one in a write. */
static void trace_write(const char *file, const char *text)
{
	char path[128];
	ssize_t n = 0;
	int fd;

	snprintf(path, sizeof(path), TRACING "%s", file);
	fd = open(path, O_WRONLY | O_CLOEXEC |
		  (strcmp(file, "set_ftrace_filter") ? 0 : O_TRUNC));
	while (fd >= 0 && *text) {
		n = write(fd, text, strlen(text));
		if (n < 0)
			break;
		text += n;
	}
	if (fd < 0 || n < 0 || close(fd))
		fatal("cannot write '%s' to %s: %s", text, path,
		      strerror(errno));
}

static void trace_read(const char *file, char *buf, size_t size)
{
	char path[128];
	ssize_t ret;

	snprintf(path, sizeof(path), TRACING "%s", file);
	ret = cow_read_file(path, buf, size);
	if (ret < 0)
		fatal("cannot read %s: %s", path, strerror(-ret));
}

/* A function that can be traced: its address, and its number for the filter */
struct function {
	__u64 addr;
	int number;
};

static struct function *known;	/* one for each probe; number 0: none */
static const struct probe *probes;
static int nr_probes;

/* Is it that function, or what the compiler made of it? */
static bool same_function(const char *symbol, const char *function)
{
	size_t len = strlen(function);

	if (strncmp(symbol, function, len))
		return false;
	symbol += len;
	return !*symbol || !strncmp(symbol, ".constprop.", 11) ||
	       !strncmp(symbol, ".isra.", 6);
}

static void find_functions(const struct probe *list, int nr)
{
	char line[512], symbol[256];
	unsigned long long addr;
	int i, number = 0;
	FILE *f;

	probes = list;
	nr_probes = nr;
	free(known);
	known = allocate(nr * sizeof(*known));
	f = fopen(TRACING "available_filter_functions_addrs", "r");
	if (!f)
		fatal("cannot read " TRACING "available_filter_functions_addrs: %s",
		      strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%llx %255s", &addr, symbol) != 2)
			continue;
		number++;
		for (i = 0; i < nr; i++) {
			if (!same_function(symbol, list[i].function))
				continue;
			known[i].addr = addr;
			known[i].number = number;
		}
	}
	fclose(f);
}

/* By number: a name would be compared with that of every function. */
static void trace_start(void)
{
	char filter[4096];
	int i, len = 0;

	trace_write("current_tracer", "nop");
	for (i = 0; i < nr_probes; i++)
		if (known[i].number)
			len += snprintf(filter + len, sizeof(filter) - len,
					"%d ", known[i].number);
	if (!len)
		fatal("the kernel has none of the functions %s ...",
		      probes[0].function);
	trace_write("set_ftrace_filter", filter);
	trace_write("current_tracer", "function_graph");
	trace_write("tracing_on", "1");
}

static void trace_stop(void)
{
	trace_write("tracing_on", "0");
}

static void trace_prepare(void)
{
	char text[4096];

	if (access(TRACING "current_tracer", F_OK))
		fatal("no tracefs at " TRACING);
	if (access(TRACING "current_tracer", W_OK))
		fatal("needs root");
	trace_read("current_tracer", text, sizeof(text));
	if (strcmp(text, "nop\n"))
		fatal("the tracer is in use: %s", text);
	trace_read("available_tracers", text, sizeof(text));
	if (!strstr(text, "function_graph"))
		fatal("the kernel has no function_graph tracer");
	trace_read("set_ftrace_filter", text, sizeof(text));
	if (text[0] && text[0] != '#')
		fatal("the tracer is in use: set_ftrace_filter is not empty");
	trace_read("trace_clock", text, sizeof(text));
	if (!strstr(text, "x86-tsc"))
		fatal("the tracer has no clock x86-tsc");
	sscanf(strchr(text, '[') ?: "", "[%31[^]]", old_clock);
	/* One number, or as long as nothing was traced: "7 (expanded: 1408)" */
	trace_read("buffer_size_kb", text, sizeof(text));
	if (sscanf(text, "%*d (expanded: %31[0-9]", old_buffer_size) != 1)
		sscanf(text, "%31[0-9]", old_buffer_size);
	trace_read("tracing_on", text, sizeof(text));
	sscanf(text, "%31[01]", old_on);
	tracer_used = true;
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	signal(SIGHUP, on_signal);
	trace_write("tracing_on", "0");
	trace_write("trace_clock", "x86-tsc");
	/* A call is two events of about 40 bytes. */
	snprintf(text, sizeof(text), "%d", 8192 + count * 8);
	trace_write("buffer_size_kb", text);
}

/*
 * The ring buffer, as the kernel writes it: pages of events, each with the time
 * since the one before. See Documentation/trace/ring-buffer-map.rst and
 * events/header_page, header_event in tracefs.
 */
struct event {
	__u64 time;
	int probe;
	bool exit;
};

struct format {
	int id;
	int func;	/* offset of the function's address */
};

static struct format entry_format, exit_format;

static struct format read_format(const char *name)
{
	struct format f = { .id = -1, .func = -1 };
	char file[128], text[4096], *p;

	snprintf(file, sizeof(file), "events/ftrace/%s/format", name);
	trace_read(file, text, sizeof(text));
	p = strstr(text, "ID: ");
	if (p)
		f.id = atoi(p + 4);
	p = strstr(text, " func;");
	p = p ? strstr(p, "offset:") : NULL;
	if (p)
		f.func = atoi(p + 7);
	if (f.id < 0 || f.func < 0)
		fatal("the format of %s is not as expected", name);
	return f;
}

static int find_probe(__u64 addr)
{
	int i;

	for (i = 0; i < nr_probes; i++)
		if (known[i].number && known[i].addr == addr)
			return i;
	return -1;
}

/* Where one fork, fault or call after the other is taken from */
struct reader {
	struct event *events;
	int nr;			/* events of the current one */
	int index;		/* the current one */
	int total;
	void (*consume)(struct reader *r);
};

static void next_stamp(struct reader *r)
{
	r->consume(r);
	r->index++;
	r->nr = 0;
}

static void take_event(struct reader *r, __u64 time, const unsigned char *data)
{
	struct event e = { .time = time };
	__u16 id;
	__u64 addr;

	memcpy(&id, data, sizeof(id));
	e.exit = id == exit_format.id;
	if (!e.exit && id != entry_format.id)
		return;
	while (r->index < r->total && time > stamps[r->index].end)
		next_stamp(r);
	if (r->index == r->total || time < stamps[r->index].start)
		return;
	memcpy(&addr, data + (e.exit ? exit_format.func : entry_format.func),
	       sizeof(addr));
	e.probe = find_probe(addr);
	if (e.probe < 0)
		fatal("an event of an unknown function, %llx",
		      (unsigned long long)addr);
	if (r->nr == MAX_EVENTS)
		fatal("too many events");
	r->events[r->nr++] = e;
}

static void read_page(struct reader *r, const unsigned char *page, size_t size)
{
	const unsigned char *p = page + 16, *end;
	__u64 time, commit;

	memcpy(&time, page, sizeof(time));
	memcpy(&commit, page + 8, sizeof(commit));
	if (commit >> 30 & 3)
		fatal("the trace has lost events");
	end = p + (commit & 0xfffff);
	if (end > page + size)
		fatal("a damaged page of the trace");
	while (p + 8 <= end) {
		__u32 head, word, len;

		memcpy(&head, p, sizeof(head));
		memcpy(&word, p + 4, sizeof(word));
		len = head & 31;
		head >>= 5;
		p += 4;
		switch (len) {
		case 29:	/* padding */
			if (!head)
				return;
			time += head;
			p += word;
			continue;
		case 30:	/* more bits of the time since */
			time += ((__u64)word << 27) + head;
			p += 4;
			continue;
		case 31:	/* the whole time */
			time = ((__u64)word << 27) + head;
			p += 4;
			continue;
		}
		time += head;
		if (len) {
			len *= 4;
		} else {
			p += 4;
			len = ((word - 4) + 3) & ~3U;
		}
		if (p + len > end)
			fatal("a damaged event of the trace");
		take_event(r, time, p);
		p += len;
	}
}

/* Hand the events of each of the total stamps to consume. */
static void read_trace(struct reader *r)
{
	static unsigned char page[65536];
	char path[128];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), TRACING "per_cpu/cpu%d/trace_pipe_raw",
		 sched_getcpu());
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		fatal("cannot open %s: %s", path, strerror(errno));
	r->events = allocate(MAX_EVENTS * sizeof(*r->events));
	while ((n = read(fd, page, cow_page_size())) > 0)
		read_page(r, page, n);
	if (n < 0 && errno != EAGAIN)
		fatal("cannot read %s: %s", path, strerror(errno));
	close(fd);
	while (r->index < r->total)
		next_stamp(r);
	free(r->events);
}

/*
 * What the tracer costs from one time stamp to the next: cost[a][b] if the
 * first is that of an exit (a) and the second of an exit (b); and before the
 * first event and after the last.
 */
static double cost[2][2], cost_before, cost_after;

static double pair_cost(void)
{
	return cost[0][1] + cost[1][0];
}

static double *gap_time, *entry_time;
static int nr_gaps;
static bool gap_nested;

/* From the entry to what comes next, if nothing else came in between */
static void consume_gap(struct reader *r)
{
	if (r->nr == (gap_nested ? 4 : 2) && !r->events[0].exit &&
	    r->events[1].exit != gap_nested) {
		gap_time[nr_gaps] = r->events[1].time - r->events[0].time;
		entry_time[nr_gaps] = r->events[0].time -
				      stamps[r->index].start - empty / 2;
		nr_gaps++;
	}
}

/* Sets what the call takes, and what it takes until it is entered. */
static double traced_gap(const struct probe *list, int nr, bool nested, int call,
			 double *total, double *entry)
{
	struct reader r = { .total = NR_CALLS, .consume = consume_gap };

	find_functions(list, nr);
	trace_start();
	have_done(call);
	trace_stop();
	*total = usual_call();
	gap_nested = nested;
	nr_gaps = 0;
	read_trace(&r);
	if (nr_gaps < NR_CALLS / 2)
		fatal("%s is not traced as expected: %d of %d calls",
		      list[0].function, nr_gaps, NR_CALLS);
	*entry = usual_mean(entry_time, nr_gaps);
	return usual_mean(gap_time, nr_gaps);
}

/*
 * A traced call costs as much as it slows down getuid(). The part between its
 * two time stamps is the time measured there, less the call itself: getuid()
 * less a system call that does not exist. The part between an entry and the
 * entry of a function inside is the time measured there: only a few
 * instructions of the kernel are in between. The part before the first event
 * is the time up to there, less the kernel's own entry: assume that this is
 * half of a system call that does nothing.
 */
static void measure_tracer(void)
{
	double plain, nothing, traced, entry, pair, unused;

	gap_time = allocate(NR_CALLS * sizeof(*gap_time));
	entry_time = allocate(NR_CALLS * sizeof(*entry_time));
	have_done(WORK_NOTHING);
	have_done(WORK_NOTHING);
	nothing = usual_call();
	have_done(WORK_GETUID);
	plain = usual_call();
	cost[0][1] = traced_gap(leaf_probes, ARRAY_SIZE(leaf_probes), false,
				WORK_GETUID, &traced, &entry) -
		     (plain - nothing);
	pair = traced - plain;
	cost[1][0] = pair - cost[0][1];
	cost_before = entry - nothing / 2;
	cost_after = cost[1][0] - cost_before;
	cost[0][0] = traced_gap(nested_probes, ARRAY_SIZE(nested_probes), true,
				WORK_GETPPID, &unused, &unused);
	cost[1][1] = pair - cost[0][0];
	free(gap_time);
	free(entry_time);
}

/*
 * Sections
 */
struct account {
	const struct workload *w;
	struct moments *section;
	struct moments total;
	double *spent;		/* of each fork or fault, section by section */
	double *now;		/* of the current one */
	long *calls;
	bool *seen;		/* does anything begin this section? */
	double setup;
};

struct frame {
	int probe;
	int section;
	int gap;	/* the section of what comes next in here */
	int resume;	/* the same, after an interrupt */
};

static struct account account;

static struct frame enter(const struct frame *in, int probe)
{
	const struct probe *p = &probes[probe];
	struct frame f = { .probe = probe, .section = p->section };

	if (p->caller && (in->probe < 0 ||
			  strcmp(probes[in->probe].function, p->caller)))
		f.section = in->section;
	f.gap = f.section;
	return f;
}

static void leave(struct frame *in, int probe)
{
	const struct probe *p = &probes[probe];

	if (p->caller && (in->probe < 0 ||
			  strcmp(probes[in->probe].function, p->caller)))
		return;
	switch (p->after) {
	case KEEP:
		return;
	case SELF:
		in->gap = in->section;
		return;
	case RESUME:
		in->gap = in->resume;
		return;
	}
	if (p->after == account.w->irq)
		in->resume = in->gap;
	in->gap = p->after;
}

static void spend(int section, double time)
{
	account.now[section] += time;
	account.seen[section] = true;
}

/* The work of one fork or fault, event by event */
static void consume_sections(struct reader *r)
{
	const struct workload *w = account.w;
	const struct stamp *s = &stamps[r->index];
	struct frame frame[MAX_DEPTH] = {
		{ .probe = -1, .section = w->entry, .gap = w->entry },
	};
	__u64 last = s->start;
	int i, depth = 0;

	account.now = account.spent + r->index * w->nr_sections;
	spend(w->entry, -empty / 2);
	for (i = 0; i < r->nr; i++) {
		const struct event *e = &r->events[i];
		double own = e->time - last;

		own -= i ? cost[r->events[i - 1].exit][e->exit] : cost_before;
		spend(frame[depth].gap, own);
		last = e->time;
		if (!e->exit) {
			if (depth + 1 == MAX_DEPTH)
				fatal("calls are nested too deep");
			frame[depth + 1] = enter(&frame[depth], e->probe);
			depth++;
			account.calls[e->probe]++;
			continue;
		}
		if (!depth || frame[depth].probe != e->probe)
			fatal("%s returned to where it was not called",
			      probes[e->probe].function);
		depth--;
		leave(&frame[depth], e->probe);
	}
	if (depth)
		fatal("%s did not return", probes[frame[depth].probe].function);
	spend(frame[0].gap, s->end - last - (r->nr ? cost_after : 0) - empty / 2);
	if (w->setup >= 0)
		spend(w->setup, -account.setup);
}

static void add_sections(const struct workload *w)
{
	double *total = allocate(count * sizeof(*total)), *v, limit;
	int i, k;

	for (i = 0, v = account.spent; i < count; i++)
		for (k = 0; k < w->nr_sections; k++)
			total[i] += *v++;
	limit = outlier(w, total);
	for (i = 0; i < count; i++) {
		if (total[i] > limit)
			continue;
		v = account.spent + i * w->nr_sections;
		for (k = 0; k < w->nr_sections; k++)
			add_value(&account.section[k], v[k]);
		add_value(&account.total, total[i]);
	}
	free(total);
}

static void read_sections(const struct workload *w, double setup)
{
	struct reader r = { .total = count, .consume = consume_sections };

	account.w = w;
	account.section = allocate(w->nr_sections * sizeof(*account.section));
	account.spent = allocate((size_t)count * w->nr_sections *
				 sizeof(*account.spent));
	account.seen = allocate(w->nr_sections * sizeof(*account.seen));
	account.calls = allocate(w->nr_probes * sizeof(*account.calls));
	account.setup = setup;
	read_trace(&r);
	add_sections(w);
}

static void print_calls(const struct workload *w, int section)
{
	const char *comma = "";
	int i;

	for (i = 0; i < w->nr_probes; i++) {
		if (probes[i].section != section || !known[i].number)
			continue;
		printf("%s%s", comma, probes[i].function);
		comma = " ";
	}
	putchar('\n');
}

static long section_calls(const struct workload *w, int section)
{
	long n = 0;
	int i;

	for (i = 0; i < w->nr_probes; i++)
		if (probes[i].section == section)
			n += account.calls[i];
	return n;
}

static bool traceable(const struct workload *w, int section)
{
	int i;

	for (i = 0; i < w->nr_probes; i++)
		if (probes[i].section == section && known[i].number)
			return true;
	return account.seen[section];
}

/* Fields are separated by tabs; see the usage. */
static void print_results(const struct workload *w, const struct moments *before,
			  const struct moments *after, double scale)
{
	long calls = 0;
	int i;

	printf("what\t%s\t%zu\t%d\t%.3f\n", w->name, touched >> 20, count,
	       (double)account.calls[w->counted] / count);
	printf("left out\t%.1f\t%.1f\n",
	       100 * (1 - account.total.n / count),
	       100 * (1 - (before->n + after->n) / (2.0 * ROUNDS * count)));
	for (i = 0; i < w->nr_sections; i++) {
		if (!traceable(w, i)) {
			printf("absent\t%s\t%s\n", w->section[i].name,
			       w->section[i].what);
			continue;
		}
		printf("row\t%s\t%s\t%.2f\t%.2f\t%.2f\t", w->section[i].name,
		       w->section[i].what, (double)section_calls(w, i) / count,
		       account.section[i].mean * scale,
		       variance(&account.section[i]) * scale * scale);
		print_calls(w, i);
	}
	for (i = 0; i < w->nr_probes; i++)
		calls += account.calls[i];
	printf("total\t%.2f\t%.2f\n", account.total.mean * scale,
	       variance(&account.total) * scale * scale);
	printf("untraced\t%.2f\t%.2f\t%.2f\t%.2f\n",
	       (before->mean + after->mean) / 2 * scale,
	       (variance(before) + variance(after)) / 2 * scale * scale,
	       before->mean * scale, after->mean * scale);
	printf("tracer\t%.2f\t%.2f\t%.2f\n", (double)calls / count,
	       pair_cost() * scale, account.setup * scale);
}

static __u64 nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static struct moments timed_load(const struct workload *w)
{
	have_done(WORK_LOAD);
	return stamped(w);
}

static struct moments merge(const struct moments *a, const struct moments *b)
{
	double d = b->mean - a->mean;
	struct moments m = { .n = a->n + b->n };

	m.mean = (a->mean * a->n + b->mean * b->n) / m.n;
	m.squares = a->squares + b->squares + d * d * a->n * b->n / m.n;
	return m;
}

static struct moments timed_loads(const struct workload *w)
{
	struct moments all = {}, m;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		m = timed_load(w);
		all = merge(&all, &m);
	}
	return all;
}

/*
 * What the tracer costs even if it traces nothing of the load; with and without
 * in turns, because the load itself gets dearer or cheaper as memory fills.
 */
static double idle_cost(const struct workload *w)
{
	struct moments with = {}, without = {}, m;
	int i;

	timed_load(w);
	find_functions(leaf_probes, ARRAY_SIZE(leaf_probes));
	for (i = 0; i < ROUNDS; i++) {
		m = timed_load(w);
		without = merge(&without, &m);
		trace_start();
		m = timed_load(w);
		with = merge(&with, &m);
		trace_stop();
		trace_write("current_tracer", "nop");
	}
	return with.mean - without.mean;
}

/*
 * Where the memory lies decides how many page tables it takes: at the same
 * addresses in each run.
 */
static void fix_layout(char **argv)
{
	int old = personality(0xffffffff);

	if (old < 0 || old & ADDR_NO_RANDOMIZE)
		return;
	if (personality(old | ADDR_NO_RANDOMIZE) < 0)
		fatal("personality: %s", strerror(errno));
	execv("/proc/self/exe", argv);
	fatal("cannot execute /proc/self/exe: %s", strerror(errno));
}

static void profile(const struct workload *w)
{
	struct moments before, after;
	__u64 ns, ticks;
	double idle = 0;
	int ret;

	ret = cow_pin_cpu();
	if (ret)
		fatal("cannot stay on one CPU: %s", strerror(-ret));
	map_stamps();
	trace_prepare();
	entry_format = read_format("funcgraph_entry");
	exit_format = read_format("funcgraph_exit");
	ret = cow_child_fork(&worker, work, (void *)w);
	if (ret)
		fatal("fork: %s", strerror(-ret));

	ns = nanoseconds();
	ticks = tsc();
	measure_empty();
	measure_tracer();
	/* In the smallest process, where it is not lost in what forks differ */
	if (w->setup >= 0)
		idle = idle_cost(w);

	have_done(WORK_MAP);
	timed_load(w);
	before = timed_loads(w);

	find_functions(w->probe, w->nr_probes);
	trace_start();
	timed_load(w);
	trace_stop();
	read_sections(w, idle);

	trace_write("current_tracer", "nop");
	after = timed_loads(w);
	ns = nanoseconds() - ns;
	ticks = tsc() - ticks;
	cow_child_end(&worker);

	print_results(w, &before, &after, (double)ns / ticks);
	trace_put_back();
}

static void usage(FILE *f)
{
	fputs("Usage: cow_profile fork|cow [-n COUNT] [-s MB]\n"
	      "       cow_profile --help\n"
	      "\n"
	      "Forks COUNT times (default 100) from a process that has written to MB of\n"
	      "memory (default 0), or takes COUNT copy-on-write faults (default 4096), and\n"
	      "prints where the time went, in ns; fields are separated by tabs:\n"
	      "  what      fork|cow, MB, COUNT, faults or forks for each\n"
	      "  left out  percent of the forks or faults, traced and not\n"
	      "  row       section, functions, calls, mean, variance, traced functions\n"
	      "  absent    section, functions: cannot be traced, inlined in this kernel\n"
	      "  total     mean, variance of the sum\n"
	      "  untraced  mean, variance without tracing, mean before, mean after\n"
	      "  tracer    calls traced, cost of one, cost without any: all taken off\n"
	      "Root, x86_64, and a kernel with CONFIG_FUNCTION_GRAPH_TRACER.\n", f);
}

static long number(const char *option, const char *text, long min, long max)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(text, &end, 10);
	if (errno || end == text || *end || v < min || v > max)
		fatal("-%s needs a value from %ld to %ld, not '%s'", option,
		      min, max, text);
	return v;
}

/* NULL: getopt has said what is wrong. */
__attribute__((format(printf, 1, 2)))
static int bad_usage(const char *format, ...)
{
	va_list ap;

	if (format) {
		va_start(ap, format);
		fputs("cow_profile: ", stderr);
		vfprintf(stderr, format, ap);
		fputc('\n', stderr);
		va_end(ap);
	}
	fputs("Try 'cow_profile --help'.\n", stderr);
	return 2;
}

/* A full disk is an error. */
static void say_written(void)
{
	if (fflush(stdout) || ferror(stdout))
		fatal("cannot write: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "help", no_argument, NULL, 'h' },
		{}
	};
	const struct workload *w = NULL;
	bool size = false;
	size_t i;
	int c;

	while ((c = getopt_long(argc, argv, "n:s:h", options, NULL)) != -1) {
		switch (c) {
		case 'n':
			count = number("n", optarg, 2, MAX_COUNT);
			break;
		case 's':
			touched = (size_t)number("s", optarg, 0, MAX_MB) << 20;
			size = true;
			break;
		case 'h':
			usage(stdout);
			say_written();
			return 0;
		default:
			return bad_usage(NULL);
		}
	}
	if (optind == argc)
		return bad_usage("which one, fork or cow?");
	for (i = 0; i < ARRAY_SIZE(workloads) && optind < argc; i++)
		if (!strcmp(argv[optind], workloads[i].name))
			w = &workloads[i];
	if (!w)
		return bad_usage("'%s' is neither fork nor cow", argv[optind]);
	if (optind + 1 != argc)
		return bad_usage("unexpected argument '%s'", argv[optind + 1]);
	if (size && w->run == run_faults)
		fatal("-s is for fork: the faults need a page each");
	if (!count)
		count = w->run == run_faults ? 4096 : 100;
	fix_layout(argv);
	profile(w);
	say_written();
	return 0;
}
