// SPDX-License-Identifier: GPL-2.0
/*
 * What becomes of a process' copy-on-write counters: over fork, exec and exit,
 * in its parent, and when another process writes to its memory.
 *
 * Processes write to fork-shared pages, each page once, so that the number of
 * faults is known. A process' own counters count nobody else's faults, and must
 * be exact at the first attempt.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_counts.h"

#define FEW		64	/* faults of a process that did nothing */

/* Where a process' counts go when its parent waits for it */
static const struct {
	enum cow_key own;
	enum cow_key children;
} inherited[] = {
	{ COW_FAULTS,		COW_CHILDREN_FAULTS },
	{ COW_REUSED,		COW_CHILDREN_REUSED },
	{ COW_LOST,		COW_CHILDREN_LOST },
	{ COW_LOST_NS,		COW_CHILDREN_LOST_NS },
	{ COW_UNSHARED,		COW_CHILDREN_UNSHARED },
	{ COW_PMD_REUSED,	COW_CHILDREN_PMD_REUSED },
	{ COW_PMD_SPLIT,	COW_CHILDREN_PMD_SPLIT },
	{ COW_TOTAL_NS,		COW_CHILDREN_TOTAL_NS },
	{ COW_FAULT_TOTAL_NS,	COW_CHILDREN_FAULT_TOTAL_NS },
	{ COW_SUCCESS,		COW_CHILDREN_SUCCESS },
	{ COW_REUSE_AHEAD,	COW_CHILDREN_REUSE_AHEAD },
};

/* Shared between the processes (MAP_SHARED) */
struct shared {
	/* Of the process that writes pages: before the writes, and right before its end */
	struct cow_stats first;
	struct cow_stats last;
	struct cow_stats other;		/* of another one */
	struct cow_stats parent;	/* of their parent, before its end */
	pid_t pid;
	int stop;
};

FIXTURE(process_counts)
{
	struct cow_settings saved;
	struct cow_undo undo;
	struct shared *sh;
	size_t ps;
};

FIXTURE_VARIANT(process_counts)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(process_counts, off) { .ahead = 0 };
FIXTURE_VARIANT_ADD(process_counts, ahead_15) { .ahead = 15 };

FIXTURE_SETUP(process_counts)
{
	self->ps = cow_page_size();
	self->sh = counts_setup(_metadata, &self->saved, variant->ahead,
				sizeof(*self->sh));
	if (!self->sh)
		return;
}

FIXTURE_TEARDOWN_PARENT(process_counts)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* This process' own counters, read until the reads themselves add nothing */
static int read_own(struct cow_stats *s)
{
	static struct cow_stats again;
	int i, ret;

	for (i = 0; i < 20; i++) {
		ret = cow_stats_read_pid(&again, 0) ?: cow_stats_read_pid(s, 0);
		if (ret || !memcmp(s, &again, sizeof(*s)))
			return ret;
	}
	return -EAGAIN;
}

/* Memory for children to write to: fork-shared with them */
static char *touched_pages(void)
{
	size_t ps = cow_page_size(), i;
	char *p = cow_map(PAGES * ps, PAGES * ps);

	for (i = 0; p && i < PAGES; i++)
		cow_touch(p + i * ps, 1);
	return p;
}

static void write_all(char *area)
{
	size_t ps = cow_page_size(), i;

	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, 2);
}

struct job {
	char *area;
	struct shared *sh;
	int fd;
};

/* From here on, this process takes no faults but for its pages. */
static int begin(struct job *job)
{
	return cow_unshare_rest(job->area, PAGES * cow_page_size()) ?:
	       read_own(&job->sh->first);
}

/* Writes to its pages, and records its counters as the last thing it does. */
static int spender(struct cow_child *self, void *arg)
{
	struct job *job = arg;

	(void)self;
	if (begin(job))
		return 1;
	write_all(job->area);
	return read_own(&job->sh->last) ? 2 : 0;
}

/* What the children brought: own counts of one of them and its children's */
static void check_inherited(struct __test_metadata *_metadata,
			    const struct cow_stats *before,
			    const struct cow_stats *after,
			    const struct cow_stats *child)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(inherited); i++) {
		enum cow_key key = inherited[i].children;

		EXPECT_EQ(after->v[key] - before->v[key],
			  child->v[inherited[i].own] + child->v[key])
			TH_LOG("%s, after - before", cow_key_names[key]);
	}
}

static void check_nothing_inherited(struct __test_metadata *_metadata,
				    const struct cow_stats *before,
				    const struct cow_stats *after)
{
	static const struct cow_stats nothing;

	check_inherited(_metadata, before, after, &nothing);
}

/* Exactly the faults of the pages, whatever counters the child was forked with */
static void check_spent(struct __test_metadata *_metadata,
			const struct shared *sh, int ahead)
{
	unsigned long long faults = faults_for(PAGES, ahead);
	struct cow_stats delta;

	cow_stats_delta(&delta, &sh->first, &sh->last);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_SUCCESS], PAGES - faults);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);
	check_times(_metadata, &sh->last);
}

static long children_minflt(void)
{
	struct rusage ru;

	return getrusage(RUSAGE_CHILDREN, &ru) ? -1 : ru.ru_minflt;
}

static int await_zombie(pid_t pid)
{
	siginfo_t info;

	return waitid(P_PID, pid, &info, WEXITED | WNOWAIT) ? -errno : 0;
}

/* A child's counters are its own until it is reaped; then its parent has them. */
TEST_F_TIMEOUT(process_counts, child, TEST_TIMEOUT)
{
	unsigned long long faults = faults_for(PAGES, variant->ahead);
	struct cow_stats before, after, own;
	struct job job = { .sh = self->sh };
	char path[64], buf[4096];
	struct cow_child child;
	long minflt;
	int fd;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	minflt = children_minflt();
	ASSERT_EQ(cow_child_fork(&child, spender, &job), 0);
	snprintf(path, sizeof(path), "/proc/%d/cow_stats", child.pid);
	fd = open(path, O_RDONLY);
	ASSERT_GE(fd, 0);

	/* A zombie has no counters, and its parent does not have them yet. */
	ASSERT_EQ(await_zombie(child.pid), 0);
	EXPECT_EQ(cow_read_file(path, buf, sizeof(buf)), 0);
	EXPECT_EQ(pread(fd, buf, sizeof(buf), 0), 0);
	EXPECT_EQ(cow_stats_read_pid(&own, child.pid), -ENODATA);
	ASSERT_EQ(read_own(&after), 0);
	check_nothing_inherited(_metadata, &before, &after);
	EXPECT_EQ(children_minflt(), minflt);

	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	check_inherited(_metadata, &before, &after, &self->sh->last);
	EXPECT_GE(children_minflt() - minflt, (long)faults);
	/* The child's faults are not in our own counters. */
	EXPECT_LE(after.v[COW_FAULTS] - before.v[COW_FAULTS], FEW);

	EXPECT_EQ(cow_read_file(path, buf, sizeof(buf)), -ENOENT);
	EXPECT_EQ(cow_stats_read_pid(&own, child.pid), -ENOENT);
	EXPECT_LE(pread(fd, buf, sizeof(buf), 0), 0);
	close(fd);
}

static int write_and_have_child(struct job *job)
{
	struct cow_child child;

	write_all(job->area);
	return cow_child_fork(&child, spender, job) || cow_child_end(&child);
}

/* Has children of its own and reaps them: its parent inherits their counts, too. */
static int waiting_spender(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	struct cow_child child;

	(void)self;
	if (write_and_have_child(job))
		return 1;
	job->sh->other = job->sh->last;
	if (cow_child_fork(&child, spender, job) || cow_child_end(&child))
		return 2;
	return cow_unshare_rest(NULL, 0) || read_own(&job->sh->parent) ? 3 : 0;
}

TEST_F_TIMEOUT(process_counts, grandchildren, TEST_TIMEOUT)
{
	struct cow_stats before, after, *child = &self->sh->parent;
	struct job job = { .sh = self->sh };
	struct cow_child c;
	size_t i;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&c, waiting_spender, &job), 0);
	ASSERT_EQ(cow_child_end(&c), 0);
	ASSERT_EQ(read_own(&after), 0);
	for (i = 0; i < ARRAY_SIZE(inherited); i++) {
		EXPECT_EQ(child->v[inherited[i].children],
			  self->sh->other.v[inherited[i].own] +
			  self->sh->last.v[inherited[i].own])
			TH_LOG("%s of the child",
			       cow_key_names[inherited[i].children]);
	}
	EXPECT_GE(child->v[COW_CHILDREN_FAULTS],
		  2 * faults_for(PAGES, variant->ahead));
	check_inherited(_metadata, &before, &after, child);
}

/* Writes when it is told to, which is when its parent has gone. */
static int orphan(struct cow_child *self, void *arg)
{
	struct job *job = arg;

	/* Not to die with the parent, as the helper has arranged */
	prctl(PR_SET_PDEATHSIG, 0);
	if (begin(job) || cow_child_send(self, 1))
		return 1;
	while (!READ_ONCE(job->sh->stop))
		sched_yield();
	write_all(job->area);
	return read_own(&job->sh->last) ? 2 : 0;
}

static int leaves_an_orphan(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	struct cow_child child;

	(void)self;
	if (cow_child_fork(&child, orphan, job) || cow_child_recv(&child) != 1)
		return 1;
	job->sh->pid = child.pid;
	return cow_unshare_rest(NULL, 0) || read_own(&job->sh->parent) ? 2 : 0;
}

/* An orphan's counts go to the process that reaps it. */
TEST_F_TIMEOUT(process_counts, orphan, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh };
	struct cow_stats before, after;
	struct cow_child child;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, leaves_an_orphan, &job), 0);
	ASSERT_EQ(cow_child_wait(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_inherited(_metadata, &before, &after, &self->sh->parent);

	before = after;
	WRITE_ONCE(self->sh->stop, 1);
	child.pid = self->sh->pid;
	ASSERT_EQ(cow_child_wait(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	check_inherited(_metadata, &before, &after, &self->sh->last);
}

/* With SIGCHLD ignored, children are not waited for, and nobody inherits their counts. */
TEST_F_TIMEOUT(process_counts, ignored_child, TEST_TIMEOUT)
{
	static const struct sigaction ignore[] = {
		{ .sa_handler = SIG_IGN },
		{ .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT },
	};
	struct job job = { .sh = self->sh };
	struct cow_stats before, after;
	struct cow_child child;
	long minflt;
	size_t i;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	for (i = 0; i < ARRAY_SIZE(ignore); i++) {
		memset(self->sh, 0, sizeof(*self->sh));
		ASSERT_EQ(sigaction(SIGCHLD, &ignore[i], NULL), 0);
		ASSERT_EQ(read_own(&before), 0);
		minflt = children_minflt();
		ASSERT_EQ(cow_child_fork(&child, spender, &job), 0);
		EXPECT_EQ(cow_child_end(&child), -ECHILD);
		check_spent(_metadata, self->sh, variant->ahead);
		ASSERT_EQ(read_own(&after), 0);
		check_nothing_inherited(_metadata, &before, &after);
		EXPECT_EQ(children_minflt(), minflt);
	}
}

struct spending_thread {
	char *area;
	int pages;
	int *written;
};

static void *spend_and_stay(void *arg)
{
	struct spending_thread *t = arg;
	size_t ps = cow_page_size();
	int i;

	for (i = 0; i < t->pages; i++)
		cow_touch(t->area + i * ps, 2);
	__atomic_add_fetch(t->written, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

/* Ends with all its threads alive. */
static int threaded_spender(struct cow_child *self, void *arg)
{
	static struct spending_thread t[4];
	static int written;
	struct job *job = arg;
	pthread_t id;
	size_t i;

	(void)self;
	if (begin(job))
		return 1;
	for (i = 0; i < ARRAY_SIZE(t); i++) {
		t[i].pages = PAGES / ARRAY_SIZE(t);
		t[i].area = job->area + i * t[i].pages * cow_page_size();
		t[i].written = &written;
		if (pthread_create(&id, NULL, spend_and_stay, &t[i]))
			return 2;
	}
	while (__atomic_load_n(&written, __ATOMIC_ACQUIRE) <
	       (int)ARRAY_SIZE(t))
		sched_yield();
	return read_own(&job->sh->last) ? 3 : 0;
}

TEST_F_TIMEOUT(process_counts, child_with_threads, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh };
	struct cow_stats before, after;
	struct cow_child child;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, threaded_spender, &job), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	check_inherited(_metadata, &before, &after, &self->sh->last);
}

static void *spend_when_alone(void *arg)
{
	struct job *job = arg;
	char path[64], buf[512], *p;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	do {
		if (cow_read_file(path, buf, sizeof(buf)) < 0)
			_exit(1);
		p = strrchr(buf, ')');
	} while (!p || p[2] != 'Z');
	write_all(job->area);
	_exit(read_own(&job->sh->last) ? 2 : 0);
}

/* The main thread exits, another one goes on. */
static int headless_spender(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	pthread_t id;

	(void)self;
	if (begin(job) || pthread_create(&id, NULL, spend_when_alone, job))
		return 1;
	syscall(SYS_exit, 0);
	return 2;
}

TEST_F_TIMEOUT(process_counts, leader_exits_first, TEST_TIMEOUT)
{
	struct cow_stats before, after;
	struct job job = { .sh = self->sh };
	struct cow_child child;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, headless_spender, &job), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	check_inherited(_metadata, &before, &after, &self->sh->last);
}

/* Begins the next thread, and ends: the process always has one that lives. */
static void *thread_of_chain(void *arg)
{
	struct shared *sh = arg;
	pthread_t id;

	if (READ_ONCE(sh->stop))
		_exit(0);
	if (pthread_create(&id, NULL, thread_of_chain, sh) || pthread_detach(id))
		_exit(1);
	return NULL;
}

static int chain_of_threads(struct cow_child *self, void *arg)
{
	pthread_t id;

	(void)self;
	if (pthread_create(&id, NULL, thread_of_chain, arg) || pthread_detach(id))
		return 1;
	syscall(SYS_exit, 0);
	return 2;
}

/* The thread by which the kernel finds the address space may end meanwhile. */
TEST_F_TIMEOUT(process_counts, threads_come_and_go, TEST_TIMEOUT)
{
	struct cow_child child;
	struct cow_stats now;
	int i, ret = 0;

	ASSERT_EQ(cow_child_fork(&child, chain_of_threads, self->sh), 0);
	while (!cow_task_ended(child.pid))
		sched_yield();
	for (i = 0; i < 1000 && !ret; i++)
		ret = cow_stats_read_pid(&now, child.pid);
	EXPECT_EQ(ret, 0)
		TH_LOG("at read %d", i);
	WRITE_ONCE(self->sh->stop, 1);
	EXPECT_EQ(cow_child_end(&child), 0);
}

/*
 * fork and exec, seen from outside before the new process or program has run
 * one instruction
 */

static int traced_forker(struct cow_child *self, void *arg)
{
	struct job *job = arg;
	pid_t pid;

	(void)self;
	if (begin(job))
		return 1;
	write_all(job->area);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) || raise(SIGSTOP) ||
	    read_own(&job->sh->last))
		return 2;
	/* glibc's fork() has the kernel write to the child's memory. */
	pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!pid)
		_exit(0);
	return pid > 0 && waitpid(pid, NULL, 0) == pid ? 0 : 3;
}

static void check_zero(struct __test_metadata *_metadata,
		       const struct cow_stats *s)
{
	int key;

	for (key = 0; key < COW_NR_KEYS; key++) {
		EXPECT_EQ(s->v[key], 0ULL)
			TH_LOG("the new process' %s", cow_key_names[key]);
	}
	EXPECT_EQ(s->skips, 0ULL);
}

TEST_F_TIMEOUT(process_counts, fork, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh };
	struct cow_stats parent, child;
	unsigned long pid = 0;
	struct cow_child c;
	int key, status;

	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(cow_child_fork(&c, traced_forker, &job), 0);
	ASSERT_EQ(waitpid(c.pid, &status, WUNTRACED), c.pid);
	ASSERT_TRUE(WIFSTOPPED(status));
	ASSERT_EQ(ptrace(PTRACE_SETOPTIONS, c.pid, NULL,
			 PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL), 0)
		TH_LOG("no ptrace");
	ASSERT_EQ(ptrace(PTRACE_CONT, c.pid, NULL, 0), 0);
	ASSERT_EQ(waitpid(c.pid, &status, 0), c.pid);
	ASSERT_EQ(status >> 8, SIGTRAP | PTRACE_EVENT_FORK << 8);
	ASSERT_EQ(ptrace(PTRACE_GETEVENTMSG, c.pid, NULL, &pid), 0);
	ASSERT_EQ(waitpid(pid, &status, __WALL), (pid_t)pid);
	ASSERT_TRUE(WIFSTOPPED(status));

	ASSERT_EQ(cow_stats_read_pid(&child, pid), 0);
	check_zero(_metadata, &child);
	ASSERT_EQ(cow_stats_read_pid(&parent, c.pid), 0);
	check_spent(_metadata, self->sh, variant->ahead);
	for (key = 0; key < COW_NR_KEYS; key++) {
		EXPECT_EQ(parent.v[key], self->sh->last.v[key])
			TH_LOG("the parent's %s", cow_key_names[key]);
	}
	ASSERT_EQ(ptrace(PTRACE_DETACH, pid, NULL, 0), 0);
	ASSERT_EQ(ptrace(PTRACE_DETACH, c.pid, NULL, 0), 0);
	ASSERT_EQ(cow_child_wait(&c), 0);
}

/* What this program does if it is started as "process_counts --exec FD": */
static int after_exec(int fd)
{
	struct cow_child child;
	struct job job;

	job.sh = mmap(NULL, sizeof(*job.sh), PROT_READ | PROT_WRITE, MAP_SHARED,
		      fd, 0);
	if (job.sh == MAP_FAILED)
		return 10;
	job.area = touched_pages();
	if (!job.area || cow_child_idle(&child) || begin(&job))
		return 11;
	write_all(job.area);
	if (cow_child_end(&child))
		return 12;
	return read_own(&job.sh->last) ? 13 : 0;
}

static int exec_self(struct job *job)
{
	static char fd[16];
	static char * const argv[] = { "process_counts", "--exec", fd, NULL };

	snprintf(fd, sizeof(fd), "%d", job->fd);
	return execv("/proc/self/exe", argv);
}

/* Has had children and taken faults, when it becomes another program. */
static int execer(struct cow_child *self, void *arg)
{
	struct job *job = arg;

	(void)self;
	if (write_and_have_child(job))
		return 1;
	if (cow_unshare_rest(NULL, 0) || ptrace(PTRACE_TRACEME, 0, NULL, NULL) ||
	    read_own(&job->sh->parent))
		return 2;
	exec_self(job);
	return 3;
}

/* A place for struct shared that can be passed on over exec() */
static int new_shared(struct job *job)
{
	job->fd = memfd_create("process_counts", 0);
	if (job->fd < 0 || ftruncate(job->fd, sizeof(*job->sh)))
		return -errno;
	job->sh = mmap(NULL, sizeof(*job->sh), PROT_READ | PROT_WRITE,
		       MAP_SHARED, job->fd, 0);
	return job->sh == MAP_FAILED ? -errno : 0;
}

TEST_F_TIMEOUT(process_counts, exec, TEST_TIMEOUT)
{
	unsigned long long faults = faults_for(PAGES, variant->ahead);
	struct cow_stats before, after, fresh, total;
	const struct cow_stats *old;
	struct cow_child c;
	struct job job;
	int i, status;

	ASSERT_EQ(new_shared(&job), 0);
	old = &job.sh->parent;
	job.area = touched_pages();
	ASSERT_NE(job.area, NULL);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&c, execer, &job), 0);
	ASSERT_EQ(waitpid(c.pid, &status, WUNTRACED), c.pid);
	ASSERT_TRUE(WIFSTOPPED(status))
		TH_LOG("exit status %d", WEXITSTATUS(status));
	ASSERT_EQ(WSTOPSIG(status), SIGTRAP);

	EXPECT_GE(old->v[COW_FAULTS], faults);
	EXPECT_GE(old->v[COW_CHILDREN_FAULTS], faults);
	ASSERT_EQ(cow_stats_read_pid(&fresh, c.pid), 0);
	/* The kernel clears what follows the data in the file's last page. */
	EXPECT_LE(fresh.v[COW_FAULTS], 4ULL);
	EXPECT_LE(fresh.v[COW_REUSED], 4ULL);
	EXPECT_EQ(fresh.v[COW_ATTEMPTS], 0ULL);
	check_times(_metadata, &fresh);
	/* Its children are still its children. */
	for (i = COW_CHILDREN_FAULTS; i < COW_NR_KEYS; i++) {
		EXPECT_EQ(fresh.v[i], old->v[i])
			TH_LOG("%s", cow_key_names[i]);
	}
	ASSERT_EQ(ptrace(PTRACE_DETACH, c.pid, NULL, 0), 0);
	ASSERT_EQ(cow_child_wait(&c), 0);

	/* The old address space, the new one, and the children of both */
	ASSERT_EQ(read_own(&after), 0);
	check_spent(_metadata, job.sh, variant->ahead);
	total = job.sh->last;
	for (i = 0; i < (int)ARRAY_SIZE(inherited); i++)
		total.v[inherited[i].own] += old->v[inherited[i].own];
	check_inherited(_metadata, &before, &after, &total);
}

/*
 * A child that runs in its parent's address space, as of vfork() and
 * posix_spawn(): what it does counts for the address space, and, as in
 * RUSAGE_CHILDREN, for a child that was waited for.
 */

static int guest(void *arg)
{
	struct job *job = arg;

	write_all(job->area);
	return job->fd < 0 ? 0 : exec_self(job);
}

static void check_guest(struct __test_metadata *_metadata, struct job *job,
			int ahead)
{
	unsigned long long faults = faults_for(PAGES, ahead);
	size_t len = PAGES * cow_page_size();
	struct cow_stats before, after, delta, child;
	struct cow_child idle;
	int pid, status;
	char *stack;
	size_t i;

	stack = cow_map(STACK_SIZE, 0);
	ASSERT_NE(stack, NULL);
	job->area = touched_pages();
	ASSERT_NE(job->area, NULL);
	ASSERT_EQ(cow_child_idle(&idle), 0);
	ASSERT_EQ(cow_unshare_rest(job->area, len), 0);
	ASSERT_EQ(read_own(&before), 0);
	pid = clone(guest, stack + STACK_SIZE,
		    CLONE_VM | CLONE_VFORK | SIGCHLD, job);
	ASSERT_GT(pid, 0);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_EQ(status, 0);
	ASSERT_EQ(read_own(&after), 0);
	cow_stats_delta(&delta, &before, &after);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_SUCCESS], PAGES - faults);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);
	/* And with exec(), what it did afterwards */
	child = job->sh->last;
	for (i = 0; i < ARRAY_SIZE(inherited); i++)
		child.v[inherited[i].own] += delta.v[inherited[i].own];
	check_inherited(_metadata, &before, &after, &child);
	ASSERT_EQ(cow_child_end(&idle), 0);
}

TEST_F_TIMEOUT(process_counts, vfork, TEST_TIMEOUT)
{
	struct job job = { .sh = self->sh, .fd = -1 };

	check_guest(_metadata, &job, variant->ahead);
}

TEST_F_TIMEOUT(process_counts, vfork_exec, TEST_TIMEOUT)
{
	struct job job;

	ASSERT_EQ(new_shared(&job), 0);
	check_guest(_metadata, &job, variant->ahead);
	check_spent(_metadata, job.sh, variant->ahead);
}

/*
 * Writing to the memory of somebody else
 */

enum way { PROC_MEM, VM_WRITEV, POKE };

static ssize_t write_remote(enum way way, pid_t pid, int mem, char *addr)
{
	char byte = 3;
	struct iovec from = { &byte, 1 }, to = { addr, 1 };

	switch (way) {
	case PROC_MEM:
		return pwrite(mem, &byte, 1, (uintptr_t)addr);
	case VM_WRITEV:
		return process_vm_writev(pid, &from, 1, &to, 1, 0);
	case POKE:
		return ptrace(PTRACE_POKEDATA, pid, addr, 3L) ? -1 : 1;
	}
	return -1;
}

/* A fault counts for the address space, not for the process that caused it. */
TEST_F_TIMEOUT(process_counts, remote_write, TEST_TIMEOUT)
{
	static const char * const names[] = {
		"/proc/<pid>/mem", "process_vm_writev()", "PTRACE_POKEDATA"
	};
	struct cow_stats own[2], other[2], d;
	struct cow_child child;
	int i, mem, status;
	char path[64];
	enum way way;
	long minflt;
	char *area;

	area = touched_pages();
	ASSERT_NE(area, NULL);
	for (way = PROC_MEM; way <= POKE; way++) {
		ASSERT_EQ(cow_child_idle(&child), 0);
		snprintf(path, sizeof(path), "/proc/%d/mem", child.pid);
		mem = open(path, O_RDWR);
		ASSERT_GE(mem, 0);
		if (way == POKE) {
			ASSERT_EQ(ptrace(PTRACE_ATTACH, child.pid, NULL, NULL),
				  0);
			ASSERT_EQ(waitpid(child.pid, &status, 0), child.pid);
		}
		ASSERT_EQ(cow_unshare_rest(area, PAGES * self->ps), 0);
		ASSERT_EQ(cow_stats_read_pid(&other[0], child.pid), 0);
		ASSERT_EQ(read_own(&own[0]), 0);
		minflt = cow_minflt();
		for (i = 0; i < PAGES; i++) {
			ASSERT_EQ(write_remote(way, child.pid, mem,
					       area + i * self->ps), 1)
				TH_LOG("%s", names[way]);
		}
		EXPECT_EQ(cow_minflt() - minflt, PAGES);
		ASSERT_EQ(read_own(&own[1]), 0);
		ASSERT_EQ(cow_stats_read_pid(&other[1], child.pid), 0);
		/* Nothing is copied ahead for somebody else. */
		cow_stats_delta(&d, &other[0], &other[1]);
		EXPECT_EQ(d.v[COW_FAULTS], (unsigned long long)PAGES)
			TH_LOG("by %s", names[way]);
		EXPECT_EQ(d.v[COW_REUSED], 0ULL);
		EXPECT_EQ(d.v[COW_ATTEMPTS], 0ULL);
		EXPECT_GE(d.v[COW_TOTAL_NS], d.v[COW_FAULTS]);
		EXPECT_EQ(memcmp(&own[0], &own[1], sizeof(own[0])), 0)
			TH_LOG("%s counts for the wrong process", names[way]);
		if (way == POKE) {
			ASSERT_EQ(ptrace(PTRACE_DETACH, child.pid, NULL, NULL),
				  0);
		}
		close(mem);
		ASSERT_EQ(cow_child_end(&child), 0);
	}
}

/* Who writes every second page of another process, the one that sleeps */
struct remote_writer {
	int mem;	/* of that process */
	char *area;
	int first;
	bool leave;
};

static int writes_every_second(struct cow_child *self, void *arg)
{
	const struct remote_writer *w = arg;
	size_t ps = cow_page_size();
	int i;

	if (w->leave && cow_leave_cpu())
		return 1;
	if (cow_child_send(self, 1) || cow_child_recv(self) != 2)
		return 2;
	for (i = w->first; i < PAGES; i += 2)
		if (pwrite(w->mem, "w", 1, (uintptr_t)w->area + i * ps) != 1)
			return 3;
	return 0;
}

/* Two at once: none of their faults gets lost, and the target can be read meanwhile. */
TEST_F_TIMEOUT(process_counts, remote_writers, TEST_TIMEOUT)
{
	struct remote_writer jobs[2] = { { .first = 0 }, { .first = 1, .leave = true } };
	struct cow_stats before, now, d;
	struct cow_child target, writer[2];
	int i, round, mem, err;
	char path[64];

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	err = cow_try_child_memory();
	if (err)
		SKIP(return, "writing to a child's memory: %s", strerror(err));
	for (round = 0; round < 8; round++) {
		char *area = touched_pages();

		ASSERT_NE(area, NULL);
		ASSERT_EQ(cow_child_idle(&target), 0);
		ASSERT_EQ(cow_child_settle(&target), 0);
		/* The writers may not open it: Yama wants an ancestor. */
		snprintf(path, sizeof(path), "/proc/%d/mem", target.pid);
		mem = open(path, O_RDWR | O_CLOEXEC);
		ASSERT_GE(mem, 0);
		for (i = 0; i < 2; i++) {
			jobs[i].mem = mem;
			jobs[i].area = area;
			ASSERT_EQ(cow_child_fork(&writer[i], writes_every_second, &jobs[i]), 0);
			ASSERT_EQ(cow_child_recv(&writer[i]), 1);
		}
		ASSERT_EQ(cow_stats_read_pid(&before, target.pid), 0);
		for (i = 0; i < 2; i++)
			ASSERT_EQ(cow_child_send(&writer[i], 2), 0);
		while (!cow_task_ended(writer[0].pid) || !cow_task_ended(writer[1].pid))
			ASSERT_EQ(cow_stats_read_pid(&now, target.pid), 0);
		for (i = 0; i < 2; i++)
			ASSERT_EQ(cow_child_wait(&writer[i]), 0);
		ASSERT_EQ(cow_stats_read_pid(&now, target.pid), 0);
		cow_stats_delta(&d, &before, &now);
		ASSERT_EQ(d.v[COW_FAULTS], (unsigned long long)PAGES);
		close(mem);
		ASSERT_EQ(cow_child_end(&target), 0);
		cow_unmap(area, PAGES * self->ps);
	}
}

/* The kernel writes on our behalf: read() into fork-shared memory. */
TEST_F_TIMEOUT(process_counts, kernel_write, TEST_TIMEOUT)
{
	unsigned long long faults = faults_for(PAGES, variant->ahead);
	struct cow_stats before, after, delta;
	size_t len = PAGES * self->ps;
	struct cow_child child;
	char *area;
	int fd;

	fd = open("/dev/zero", O_RDONLY);
	if (fd < 0)
		SKIP(return, "no /dev/zero");
	area = touched_pages();
	ASSERT_NE(area, NULL);
	ASSERT_EQ(cow_child_idle(&child), 0);
	ASSERT_EQ(cow_unshare_rest(area, len), 0);
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(read(fd, area, len), (ssize_t)len);
	ASSERT_EQ(read_own(&after), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	cow_stats_delta(&delta, &before, &after);
	EXPECT_EQ(delta.v[COW_FAULTS], faults);
	EXPECT_EQ(delta.v[COW_SUCCESS], PAGES - faults);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);
	cow_unmap(area, len);
	close(fd);
}

/* What one write to p adds to this process' counts */
static int count_one_write(char *p, struct cow_stats *delta)
{
	struct cow_stats before, after;
	int ret;

	/* Both may be on pages of the stack that are still shared. */
	ret = read_own(&after) ?: read_own(&before);
	if (ret)
		return ret;
	cow_touch(p, 2);
	ret = read_own(&after);
	if (!ret)
		cow_stats_delta(delta, &before, &after);
	return ret;
}

static int writes_once(struct cow_child *self, void *arg)
{
	(void)self;
	cow_touch(arg, 2);
	return 0;
}

/*
 * A write to a huge page that is shared splits its mapping, and then copies one
 * page. One to a huge page that is not shared any more makes all of it writable.
 */
TEST_F_TIMEOUT(process_counts, huge_pages, TEST_TIMEOUT)
{
	struct cow_stats before, after, delta;
	struct cow_child child;
	char *split, *reused, *pinned;
	const char *reason;

	if (variant->ahead)
		SKIP(return, "pages are counted without windows");
	reason = cow_map_huge(&self->undo, &split, cow_pmd_size(), 1) ?:
		 cow_map_huge(&self->undo, &reused, cow_pmd_size(), 1) ?:
		 cow_map_huge(&self->undo, &pinned, cow_pmd_size(), 1);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(cow_child_idle(&child), 0);
	/* Unsharing a page for GUP splits, too, but is no write. */
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_unshare(pinned), 0);
	ASSERT_EQ(read_own(&after), 0);
	cow_stats_delta(&delta, &before, &after);
	EXPECT_EQ(delta.v[COW_PMD_SPLIT], 0ULL);
	EXPECT_EQ(delta.v[COW_UNSHARED], 1ULL);
	EXPECT_EQ(delta.v[COW_FAULTS], 0ULL);
	ASSERT_EQ(count_one_write(split, &delta), 0);
	EXPECT_EQ(delta.v[COW_PMD_SPLIT], 1ULL);
	EXPECT_EQ(delta.v[COW_PMD_REUSED], 0ULL);
	EXPECT_EQ(delta.v[COW_FAULTS], 1ULL);
	EXPECT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(count_one_write(reused, &delta), 0);
	EXPECT_EQ(delta.v[COW_PMD_SPLIT], 0ULL);
	EXPECT_EQ(delta.v[COW_PMD_REUSED], 1ULL);
	EXPECT_EQ(delta.v[COW_FAULTS], 0ULL);
	EXPECT_EQ(delta.v[COW_REUSED], 0ULL);

	/* And what a child has had of them */
	ASSERT_EQ(read_own(&before), 0);
	ASSERT_EQ(cow_child_fork(&child, writes_once, reused), 0);
	ASSERT_EQ(cow_child_end(&child), 0);
	ASSERT_EQ(read_own(&after), 0);
	cow_stats_delta(&delta, &before, &after);
	EXPECT_EQ(delta.v[COW_CHILDREN_PMD_SPLIT], 1ULL);
	EXPECT_EQ(delta.v[COW_CHILDREN_PMD_REUSED], 0ULL);
	EXPECT_EQ(delta.v[COW_CHILDREN_UNSHARED], 0ULL);
}

/*
 * /proc/<pid>/task/<tid>/cow_stats
 */

/* One count of a thread, or -errno */
static long long thread_count(pid_t tid, const char *key)
{
	char path[64], buf[4096], *line, *save = NULL;
	size_t len = strlen(key);
	ssize_t ret;

	snprintf(path, sizeof(path), "/proc/self/task/%d/cow_stats", tid);
	ret = cow_read_file(path, buf, sizeof(buf));
	if (ret < 0)
		return ret;
	for (line = strtok_r(buf, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save)) {
		if (!strncmp(line, key, len) && line[len] == ':')
			return atoll(line + len + 1);
	}
	return -EPROTO;
}

struct counted_thread {
	char *area;
	size_t nr;
	pid_t tid;
	pthread_barrier_t barrier;
};

static void *write_and_wait(void *arg)
{
	struct counted_thread *t = arg;
	size_t ps = cow_page_size(), i;

	t->tid = gettid();
	for (i = 0; i < t->nr; i++)
		cow_touch(t->area + i * ps, 3);
	pthread_barrier_wait(&t->barrier);	/* it has written */
	pthread_barrier_wait(&t->barrier);	/* its file was read */
	return NULL;
}

/* Each thread has the faults that it took itself, and no others. */
TEST_F_TIMEOUT(process_counts, threads, TEST_TIMEOUT)
{
	struct counted_thread t = { .nr = PAGES / 2 };
	struct cow_child child;
	long long before, mine, other;
	pthread_t thread;

	if (variant->ahead)
		SKIP(return, "faults are counted without windows");
	t.area = touched_pages();
	ASSERT_NE(t.area, NULL);
	ASSERT_EQ(pthread_barrier_init(&t.barrier, NULL, 2), 0);
	ASSERT_EQ(cow_child_idle(&child), 0);
	/* The first reading takes faults itself. */
	thread_count(gettid(), "faults");
	before = thread_count(gettid(), "faults");
	ASSERT_GE(before, 0);
	ASSERT_EQ(pthread_create(&thread, NULL, write_and_wait, &t), 0);
	pthread_barrier_wait(&t.barrier);
	other = thread_count(t.tid, "faults");
	mine = thread_count(gettid(), "faults") - before;
	pthread_barrier_wait(&t.barrier);
	ASSERT_EQ(pthread_join(thread, NULL), 0);

	EXPECT_GE(other, (long long)t.nr);
	EXPECT_LT(other, (long long)t.nr + FEW);
	EXPECT_LT(mine, FEW);
	/* pthread_join() may return before the thread has left /proc. */
	while (thread_count(t.tid, "faults") != -ENOENT)
		usleep(1000);
	EXPECT_EQ(cow_child_end(&child), 0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--exec"))
		_exit(after_exec(atoi(argv[2])));
	return test_harness_run(argc, argv);
}
