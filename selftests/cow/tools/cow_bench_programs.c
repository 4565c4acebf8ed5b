// SPDX-License-Identifier: GPL-2.0
/*
 * Workloads of cow_bench that are programs of their own: a snapshot with many
 * threads, a storm of fork and exec, a program in a memory cgroup
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cow_bench.h"
#include "cow_marker.h"

/*
 * Snapshot: threads write an array of words, thread t the words t, t + n, ...,
 * from right after the fork on. The child copies the array in batches with
 * threads of its own, and unmaps each batch that it has copied.
 */

#define STAMPS		64	/* per writer */
#define MAX_BATCHES	4096
#define POINTS		64	/* of the time line */

struct snapshot_writer {
	pthread_t thread;
	unsigned int nr;
	size_t seen;		/* the page last written to */
	__u64 start;
	__u64 stamp[STAMPS];	/* when 1/64, 2/64, ... was written */
	long faults;
	__u64 *latency;
};

/* Of the program's threads but the main one, which looks at it */
struct usage {
	long faults;
	__u64 system_ns;
};

/* Shared with the child */
static struct snapshot {
	struct bench_rep *rep;
	size_t words;
	size_t ps;
	size_t batches;
	size_t batch_words;
	size_t next;		/* batch */
	int wrong;		/* the child has seen what it must not */
	__u64 saved[MAX_BATCHES];
	pthread_barrier_t barrier;
	struct snapshot_writer writer[BENCH_MAX_WRITERS];
	/* nanoseconds since the fork began */
	__u64 forked;
	__u64 unmapped_ns;
	__u64 reaped;
	__u64 done;
	struct usage start, unmapped, reaped_usage, end;
} *snap;

static __u64 old_word(size_t i)
{
	return i + 1;
}

static void fill_words(struct bench_rep *rep)
{
	__u64 *word = (__u64 *)rep->base;
	size_t i;

	for (i = 0; i < snap->words; i++)
		word[i] = old_word(i);
}

/* One thread of the child */
static void *checkpointer(void *arg)
{
	size_t words = snap->batch_words, first, i, k;
	char *copies = arg;
	__u64 *copy, *from;

	for (;;) {
		k = __atomic_fetch_add(&snap->next, 1, __ATOMIC_RELAXED);
		if (k >= snap->batches)
			return NULL;
		first = k * words;
		if (words > snap->words - first)
			words = snap->words - first;
		from = (__u64 *)snap->rep->base + first;
		copy = (__u64 *)copies;
		if (bench_snapshot.whole)
			copy += first;
		memcpy(copy, from, words * sizeof(*copy));
		munmap(from, words * sizeof(*from));
		snap->saved[k] = bench_now();
		/* Only in that pass: it takes as long as copying. */
		for (i = 0; snap->rep->pass == BENCH_COUNTING && i < words; i++)
			if (copy[i] != old_word(first + i))
				snap->wrong = 1;
	}
}

static int checkpoint(struct cow_child *self, void *arg)
{
	unsigned int t, nr = bench_snapshot.checkpointers;
	pthread_t thread[BENCH_MAX_WRITERS];
	char *copies = arg;

	/* The program has looked at the frames, where it does. */
	if (cow_child_recv(self) < 0)
		return 1;
	for (t = 0; t < nr; t++)
		if (pthread_create(&thread[t], NULL, checkpointer,
				   bench_snapshot.whole ? copies :
				   copies + t * bench_snapshot.batch))
			return 1;
	for (t = 0; t < nr; t++)
		pthread_join(thread[t], NULL);
	/* All is saved and unmapped; the exit takes its time, too. */
	if (cow_child_send(self, 1))
		return 1;
	return snap->wrong ? 2 : 0;
}

static void write_words(size_t from, size_t to, size_t step)
{
	__u64 *word = (__u64 *)snap->rep->base;
	size_t i;

	for (i = from; i < to; i += step)
		__atomic_store_n(&word[i], ~old_word(i), __ATOMIC_RELAXED);
}

/* The same, with a look at the clock around the first word of each page */
static void time_words(struct snapshot_writer *w, size_t from, size_t to,
		       size_t step)
{
	size_t i, page, per_page = snap->ps / sizeof(__u64);
	__u64 *word = (__u64 *)snap->rep->base;
	__u64 start;

	for (i = from; i < to; i += step) {
		page = i / per_page;
		start = page != w->seen ? bench_now() : 0;
		__atomic_store_n(&word[i], ~old_word(i), __ATOMIC_RELAXED);
		if (page == w->seen)
			continue;
		w->seen = page;
		w->latency[page] = bench_since(start, bench_now());
	}
}

static void *snapshot_writer(void *arg)
{
	size_t k, from, to, step = bench_snapshot.writers;
	struct snapshot_writer *w = arg;

	pthread_barrier_wait(&snap->barrier);
	w->start = bench_now();
	w->faults = cow_minflt();
	for (k = 0; k < STAMPS; k++) {
		/* The first and last word of this part that are this thread's */
		from = snap->words * k / STAMPS + step - 1 - w->nr;
		from = from / step * step + w->nr;
		to = snap->words * (k + 1) / STAMPS;
		if (w->latency)
			time_words(w, from, to, step);
		else
			write_words(from, to, step);
		w->stamp[k] = bench_now();
	}
	w->faults = cow_minflt() - w->faults;
	return NULL;
}

/* How many pages were written, or saved, by a point in time */
static double written_by(__u64 now)
{
	size_t pages = snap->words * sizeof(__u64) / snap->ps;
	unsigned int t, k, nr = bench_snapshot.writers;
	double sum = 0;

	for (t = 0; t < nr; t++) {
		struct snapshot_writer *w = &snap->writer[t];

		for (k = 0; k < STAMPS && w->stamp[k] <= now; k++)
			;
		sum += k;
		if (k < STAMPS && now > w->start) {
			__u64 last = k ? w->stamp[k - 1] : w->start;

			sum += (double)(now - last) / (w->stamp[k] - last);
		}
	}
	return sum / nr / STAMPS * pages;
}

static double saved_by(__u64 now)
{
	size_t pages = snap->words * sizeof(__u64) / snap->ps, k, nr = 0;

	for (k = 0; k < snap->batches; k++)
		nr += snap->saved[k] && snap->saved[k] <= now;
	return (double)nr / snap->batches * pages;
}

static void describe(struct bench_rep *rep, __u64 begin)
{
	size_t pages = rep->plan->pages, len = sizeof(rep->extra);
	__u64 end = snap->done > snap->reaped ? snap->done : snap->reaped;
	__u64 alive = snap->reaped < snap->done ? snap->reaped : snap->done;
	double before = written_by(begin + alive);
	struct bench_phases *ph = &rep->phases;
	unsigned int i;
	int n;

	ph->unmapped_ns = snap->unmapped_ns;
	ph->done_ns = snap->done;
	ph->written = written_by(begin + ph->unmapped_ns);
	ph->faults[0] = snap->unmapped.faults - snap->start.faults;
	ph->faults[1] = snap->end.faults - snap->unmapped.faults;
	ph->system_ns[0] = snap->unmapped.system_ns - snap->start.system_ns;
	ph->system_ns[1] = snap->end.system_ns - snap->unmapped.system_ns;
	n = snprintf(rep->extra, len,
		     ",\"writers\":%u,\"checkpointers\":%u,\"batch_kb\":%zu,\"fork_ns\":%llu,\"reaped_ns\":%llu,\"done_ns\":%llu",
		     bench_snapshot.writers, bench_snapshot.checkpointers,
		     bench_snapshot.batch / 1024, snap->forked, snap->reaped,
		     snap->done);
	n += snprintf(rep->extra + n, len - n,
		      ",\"alive_pages\":%.0f,\"alive_ns\":%llu,\"alive_faults\":%ld,\"after_pages\":%.0f,\"after_ns\":%llu,\"after_faults\":%ld",
		      before, alive > snap->forked ? alive - snap->forked : 0,
		      snap->reaped_usage.faults - snap->start.faults,
		      pages - before, snap->done - alive,
		      snap->end.faults - snap->reaped_usage.faults);
	n += snprintf(rep->extra + n, len - n,
		      ",\"unmapped_ns\":%llu,\"unmapped_pages\":%.0f,\"unmapped_faults\":[%ld,%ld],\"unmapped_system_ns\":[%llu,%llu]",
		      ph->unmapped_ns, ph->written, ph->faults[0], ph->faults[1],
		      ph->system_ns[0], ph->system_ns[1]);
	n += snprintf(rep->extra + n, len - n, ",\"timeline\":[");
	for (i = 0; i <= POINTS && n < (int)len - 64; i++) {
		__u64 now = end * i / POINTS;

		n += snprintf(rep->extra + n, len - n, "%s[%llu,%.0f,%.0f]",
			      i ? "," : "", now, written_by(begin + now),
			      saved_by(begin + now));
	}
	snprintf(rep->extra + n, len - n, "]");
	snprintf(rep->note, sizeof(rep->note),
		 "fork %llu us, child reaped after %llu us, writers done after %llu us; %.0f pages written before, %.0f after",
		 snap->forked / 1000, snap->reaped / 1000, snap->done / 1000,
		 before, pages - before);
}

static long faults_of_all(void)
{
	struct rusage ru;

	return getrusage(RUSAGE_SELF, &ru) ? 0 : ru.ru_minflt;
}

/*
 * What ends later counts more, always: the process' sums only grow. The main
 * thread's own part is read first, so that none of it is left over.
 */
static void usage_of_writers(struct usage *u)
{
	struct rusage own = {}, all = {};

	getrusage(RUSAGE_THREAD, &own);
	getrusage(RUSAGE_SELF, &all);
	u->faults = all.ru_minflt - own.ru_minflt;
	u->system_ns = (all.ru_stime.tv_sec - own.ru_stime.tv_sec) * 1000000000LL +
		       (all.ru_stime.tv_usec - own.ru_stime.tv_usec) * 1000LL;
}

/* Never less than before: the scheduler's times are only scaled to its ticks. */
static void usage_since(struct usage *u, const struct usage *before)
{
	usage_of_writers(u);
	if (u->faults < before->faults)
		u->faults = before->faults;
	if (u->system_ns < before->system_ns)
		u->system_ns = before->system_ns;
}

/* From "all is unmapped" to the child's end */
static int reap(struct bench_rep *rep, struct cow_child *c, __u64 begin)
{
	if (cow_child_recv(c) == 1)
		snap->unmapped_ns = bench_now() - begin;
	usage_since(&snap->unmapped, &snap->start);
	if (rep->pass == BENCH_COUNTING)
		rep->changed_first = bench_changed(rep);
	if (cow_child_wait(c))
		return bench_fail(rep, "the child's copy is wrong");
	snap->reaped = bench_now() - begin;
	usage_since(&snap->reaped_usage, &snap->unmapped);
	close(c->in);
	close(c->out);
	return BENCH_OK;
}

static int start_writers(struct bench_rep *rep)
{
	unsigned int t, nr = bench_snapshot.writers;
	int ret;

	pthread_barrier_init(&snap->barrier, NULL, nr + 1);
	for (t = 0; t < nr; t++) {
		struct snapshot_writer *w = &snap->writer[t];

		w->nr = t;
		w->seen = ~0UL;
		w->latency = NULL;
		if (rep->pass == BENCH_LATENCY)
			w->latency = rep->latency + t * rep->plan->pages;
		ret = pthread_create(&w->thread, NULL, snapshot_writer, w);
		if (ret)
			return bench_fail(rep, "cannot create thread %u: %s", t,
					  strerror(ret));
	}
	return BENCH_OK;
}

static void sum_up(struct bench_rep *rep, __u64 begin)
{
	unsigned int t, nr = bench_snapshot.writers;
	__u64 start = ~0ULL, end = 0;
	size_t i;

	for (t = 0; t < nr; t++) {
		struct snapshot_writer *w = &snap->writer[t];

		if (w->start < start)
			start = w->start;
		if (w->stamp[STAMPS - 1] > end)
			end = w->stamp[STAMPS - 1];
		rep->faults += w->faults;
	}
	rep->elapsed += bench_since(start, end);
	snap->done = end - begin;
	for (i = 0; i < rep->plan->pages; i++)
		bench_wrote(rep, i);
	if (rep->pass == BENCH_LATENCY)
		rep->nr_latency = nr * rep->plan->pages;
}

static int verify_words(struct bench_rep *rep)
{
	__u64 *word = (__u64 *)rep->base;
	size_t i;

	for (i = 0; i < snap->words; i++)
		if (word[i] != ~old_word(i))
			return bench_fail(rep, "word %zu was not written", i);
	return BENCH_OK;
}

static int take_snapshot(struct bench_rep *rep, char *copies)
{
	unsigned int t, nr = bench_snapshot.writers;
	struct cow_child c;
	__u64 begin;
	int ret;

	cow_drain_lru();
	ret = start_writers(rep);
	if (ret)
		return ret;
	begin = bench_now();
	if (bench_forks(rep) && cow_child_fork(&c, checkpoint, copies))
		return bench_fail(rep, "fork: %s", strerror(errno));
	snap->forked = bench_now() - begin;
	bench_look_at_frames(rep);
	ret = bench_populate(rep, rep->plan->pages);
	bench_count_begin(rep);
	usage_of_writers(&snap->start);
	snap->unmapped = snap->start;
	snap->reaped_usage = snap->start;
	if (bench_forks(rep))
		cow_child_send(&c, 1);
	pthread_barrier_wait(&snap->barrier);
	if (bench_forks(rep) && reap(rep, &c, begin))
		return BENCH_FAIL;
	for (t = 0; t < nr; t++)
		pthread_join(snap->writer[t].thread, NULL);
	usage_since(&snap->end, &snap->reaped_usage);
	bench_count_end(rep, false);
	pthread_barrier_destroy(&snap->barrier);
	sum_up(rep, begin);
	describe(rep, begin);
	if (!ret)
		ret = bench_close(rep);
	return ret ?: verify_words(rep);
}

int bench_snapshot_around(struct bench_rep *rep,
			  int (*body)(struct bench_rep *rep))
{
	size_t len = rep->plan->pages * cow_page_size();
	size_t copies_len = bench_snapshot.batch * bench_snapshot.checkpointers;
	char *copies;
	int ret;

	(void)body;
	bench_unpin();
	if (!snap)
		snap = bench_alloc(sizeof(*snap));
	if (bench_snapshot.whole) {
		copies_len = len;
		copies = cow_map(len, 0);
		if (copies)
			memset(copies, 0xff, len);
	} else {
		copies = bench_alloc(copies_len);
	}
	if (!snap || !copies)
		return bench_fail(rep, "no memory");
	memset(snap, 0, sizeof(*snap));
	snap->rep = rep;
	snap->ps = cow_page_size();
	snap->words = len / sizeof(__u64);
	snap->batch_words = bench_snapshot.batch / sizeof(__u64);
	snap->batches = (len + bench_snapshot.batch - 1) / bench_snapshot.batch;
	if (snap->batches > MAX_BATCHES) {
		munmap(copies, copies_len);
		return bench_fail(rep, "more than %d batches", MAX_BATCHES);
	}
	ret = bench_map(rep, fill_words);
	if (!ret)
		ret = take_snapshot(rep, copies);
	bench_unmap(rep);
	munmap(copies, copies_len);
	return ret;
}

/*
 * A storm of fork, exec and exit, as when a compiler's driver or a shell runs
 * one program after the other. Parent and child write to a few single pages.
 */

#define STORM_FORKS	32
#define STORM_WRITES	8

/* Shared with the children */
static struct storm {
	unsigned long long wasted;
} *storm;

static void storm_writes(struct bench_rep *rep, const __u32 *order)
{
	size_t ps = cow_page_size();
	int i;

	for (i = 0; i < STORM_WRITES; i++)
		cow_touch(rep->base + order[i] * ps, rep->gen);
}

/* Pages that this process has copied and not written */
static unsigned long long storm_wasted(struct bench_rep *rep,
				       const __u32 *order)
{
	size_t i, pages = rep->plan->pages;
	unsigned long long wasted = 0;

	if (cow_pfns(rep->base, pages, rep->pfn_now))
		return 0;
	for (i = 0; i < STORM_WRITES; i++)
		rep->pfn_now[order[i]] = rep->pfn[order[i]];
	for (i = 0; i < pages; i++)
		wasted += rep->pfn[i] != rep->pfn_now[i];
	return wasted;
}

static void storm_child(struct bench_rep *rep, const __u32 *order)
{
	char *const argv[] = { "cow_bench", BENCH_NOTHING, NULL };
	char *const envp[] = { NULL };

	storm_writes(rep, order);
	if (rep->pass == BENCH_COUNTING)
		storm->wasted += storm_wasted(rep, order);
	execve("/proc/self/exe", argv, envp);
	_exit(127);
}

static int storm_fork(struct bench_rep *rep, const __u32 *order, int *status)
{
	pid_t pid;

	pid = fork();
	if (pid < 0)
		return bench_fail(rep, "fork: %s", strerror(errno));
	if (!pid)
		storm_child(rep, order);
	storm_writes(rep, order + STORM_WRITES);
	while (waitpid(pid, status, 0) < 0 && errno == EINTR)
		;
	return BENCH_OK;
}

static int storm_cycle(struct bench_rep *rep, size_t k)
{
	const __u32 *order = rep->plan->order + k * 2 * STORM_WRITES %
			     (rep->plan->nr - 2 * STORM_WRITES);
	bool mark = rep->marked && rep->pass == BENCH_TIMING;
	int i, ret, status = 0;
	__u64 start;

	bench_look_at_frames(rep);
	bench_count_begin(rep);
	start = bench_now();
	if (mark)
		cow_marker_start();
	ret = storm_fork(rep, order, &status);
	if (mark)
		cow_marker_stop();
	start = bench_since(start, bench_now());
	bench_count_end(rep, false);
	if (ret)
		return ret;
	if (status)
		return bench_fail(rep, "the program executed ended with status %d",
				  status);
	rep->elapsed += start;
	for (i = 0; i < STORM_WRITES; i++)
		bench_wrote(rep, order[STORM_WRITES + i]);
	if (rep->pass == BENCH_LATENCY)
		rep->latency[rep->nr_latency++] = start;
	if (rep->pass == BENCH_COUNTING)
		storm->wasted += storm_wasted(rep, order + STORM_WRITES);
	return BENCH_OK;
}

static long faults_with_children(void)
{
	struct rusage ru;

	return getrusage(RUSAGE_CHILDREN, &ru) ? 0 :
	       ru.ru_minflt + faults_of_all();
}

int bench_fork_exec(struct bench_rep *rep)
{
	int ret = BENCH_OK;
	long faults;
	size_t k;

	if (!storm)
		storm = bench_alloc(sizeof(*storm));
	if (!storm)
		return bench_fail(rep, "no memory");
	storm->wasted = 0;
	rep->gen++;
	cow_drain_lru();
	faults = faults_with_children();
	for (k = 0; k < STORM_FORKS && !ret; k++)
		ret = storm_cycle(rep, k);
	rep->faults = faults_with_children() - faults;
	if (rep->pass == BENCH_COUNTING) {
		rep->counts.rss_kb = cow_status_kb("VmRSS");
		rep->counts.private_kb = cow_smaps_kb(rep->base,
						      "Private_Dirty");
		rep->counts.wasted = cow_pfn_visible() ?
				     (long long)storm->wasted : BENCH_UNKNOWN;
	}
	/* Cycles are what is measured, not pages. */
	rep->nr_written = STORM_FORKS;
	return ret ?: bench_verify(rep);
}

/*
 * A program in a memory cgroup that has just enough, or too little
 */

void bench_remove_cgroup(struct bench_rep *rep)
{
	cow_cgroup_remove(rep->cgroup);
}

struct memcg_job {
	struct bench_rep *rep;
	int (*body)(struct bench_rep *rep);
};

static int in_cgroup(struct cow_child *self, void *arg)
{
	struct memcg_job *job = arg;
	int ret;

	(void)self;
	ret = cow_cgroup_enter(job->rep->cgroup);
	if (ret)
		job->rep->ret = bench_skip(job->rep, "cannot enter a cgroup: %s",
					   strerror(-ret));
	else
		job->rep->ret = job->body(job->rep);
	return 0;
}

static const char *make_cgroup(struct bench_rep *rep)
{
	char dir[sizeof(rep->cgroup)];
	const char *reason = cow_cgroup_make(dir, "cow_bench");

	if (reason)
		return reason;
	memcpy(rep->cgroup, dir, sizeof(dir));
	/* Not one of its processes, but all */
	cow_cgroup_write(dir, "memory.oom.group", "1");
	return NULL;
}

int bench_memcg_around(struct bench_rep *rep,
		       int (*body)(struct bench_rep *rep))
{
	struct memcg_job job = { .rep = rep, .body = body };
	const char *reason = make_cgroup(rep);
	struct cow_child c;
	int ret, status;

	if (reason)
		return bench_skip(rep, "%s", reason);
	rep->ret = BENCH_FAIL;
	ret = cow_child_fork(&c, in_cgroup, &job);
	if (ret) {
		bench_remove_cgroup(rep);
		return bench_fail(rep, "fork: %s", strerror(-ret));
	}
	status = cow_child_wait(&c);
	close(c.in);
	close(c.out);
	if (cow_cgroup_event(rep->cgroup, "oom_kill") > 0)
		ret = bench_skip(rep, "killed for want of memory in the cgroup");
	else if (status)
		ret = bench_fail(rep, "the process in the cgroup ended with status %d",
				 status);
	else
		ret = rep->ret;
	bench_remove_cgroup(rep);
	return ret;
}

/* The need is what there is when the writing starts, and a copy of each page. */
static int set_limit(struct bench_rep *rep)
{
	char text[32];
	long now;

	if (cow_cgroup_read(rep->cgroup, "memory.current", &now))
		return bench_fail(rep, "cannot read memory.current");
	if (bench_forks(rep))
		now += rep->plan->nr * cow_page_size();
	snprintf(text, sizeof(text), "%ld",
		 now / 100 * rep->workload->memcg_percent);
	if (cow_cgroup_write(rep->cgroup, "memory.max", text))
		return bench_fail(rep, "cannot set memory.max");
	return BENCH_OK;
}

int bench_memcg(struct bench_rep *rep)
{
	int ret;

	ret = bench_share(rep);
	if (!ret)
		ret = set_limit(rep);
	if (!ret)
		ret = bench_populate(rep, rep->plan->pages);
	if (!ret)
		ret = bench_write(rep, 0, rep->plan->nr);
	cow_cgroup_write(rep->cgroup, "memory.max", "max");
	if (!ret)
		ret = bench_close(rep);
	if (!ret)
		ret = bench_unshare(rep);
	return ret ?: bench_verify(rep);
}
