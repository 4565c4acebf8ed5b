// SPDX-License-Identifier: GPL-2.0
/*
 * Child processes of the tests of copy-on-write faults
 *
 * See cow_helpers.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cow_helpers.h"

/* glibc since 2.35 registers an area of each thread at an offset from its thread pointer. */
#if __has_include("sys/rseq.h")
#include <sys/rseq.h>
#endif
#ifdef __x86_64__
#define THREAD_POINTER	((char *)pthread_self())
#else
#define THREAD_POINTER	((char *)__builtin_thread_pointer())
#endif

/* What tells a child to end. Not EOF: its siblings have that pipe too. */
#define BYE	255

/*
 * The kernel writes there when it reschedules the thread (rseq). That takes a fault while
 * the page is shared with a child: not while a test counts.
 */
static void own_rseq(void)
{
#ifdef RSEQ_SIG
	__atomic_fetch_or(THREAD_POINTER + __rseq_offset, 0, __ATOMIC_RELAXED);
#endif
}

int cow_child_fork(struct cow_child *c, cow_child_fn fn, void *arg)
{
	pid_t parent = getpid();
	int down[2], up[2], err;
	pid_t pid;

	/* cow_child_send() to one that has died returns an error instead. */
	signal(SIGPIPE, SIG_IGN);
	if (pipe2(down, O_CLOEXEC))
		return -errno;
	if (pipe2(up, O_CLOEXEC)) {
		err = errno;
		close(down[0]);
		close(down[1]);
		return -err;
	}
	/* @c may be in shared memory, where the child's 0 could win. */
	pid = fork();
	if (pid < 0) {
		err = errno;
		close(down[0]);
		close(down[1]);
		close(up[0]);
		close(up[1]);
		return -err;
	}
	own_rseq();
	if (!pid) {
		struct cow_child self = {
			.pid = parent,
			.in = down[0],
			.out = up[1],
		};

		close(down[1]);
		close(up[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(255);
		_exit(fn(&self, arg));
	}
	close(down[0]);
	close(up[1]);
	c->pid = pid;
	c->in = up[0];
	c->out = down[1];
	return 0;
}

int cow_child_send(struct cow_child *c, unsigned char byte)
{
	ssize_t n;

	do {
		n = write(c->out, &byte, 1);
	} while (n < 0 && errno == EINTR);
	return n == 1 ? 0 : -errno;
}

int cow_child_recv(struct cow_child *c)
{
	unsigned char byte;
	ssize_t n;

	do {
		n = read(c->in, &byte, 1);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n == 1 && byte != BYE ? byte : -EPIPE;
}

/* The letter in /proc/<pid>/stat, or a negative errno */
static int cow_task_state(pid_t pid)
{
	char path[64], buf[512], *p;
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	len = cow_read_file(path, buf, sizeof(buf));
	if (len < 0)
		return len;
	p = strrchr(buf, ')');
	return p && p[1] == ' ' ? p[2] : -EPROTO;
}

bool cow_task_sleeps(pid_t pid)
{
	return cow_task_state(pid) == 'S';
}

bool cow_task_ended(pid_t pid)
{
	int state = cow_task_state(pid);

	return state < 0 || state == 'Z' || state == 'X';
}

int cow_child_settle(struct cow_child *c)
{
	int state;

	for (;;) {
		state = cow_task_state(c->pid);
		if (state < 0 || state == 'S')
			return state < 0 ? state : 0;
		if (state == 'Z' || state == 'X')
			return -ESRCH;
		sched_yield();
	}
}

int cow_child_stay(struct cow_child *self)
{
	if (cow_child_send(self, 1))
		return 1;
	return cow_child_recv(self) == -EPIPE ? 0 : 1;
}

static int cow_idle(struct cow_child *self, void *arg)
{
	(void)arg;
	return cow_child_stay(self);
}

#define STACK_BELOW	(16 << 10)
#define STACK_MAX	(1024 << 10)

void cow_own_stack(void)
{
	volatile char *end = (char *)getauxval(AT_RANDOM);
	size_t ps = cow_page_size();
	volatile char here[STACK_BELOW], *p;

	own_rseq();
	p = here - (uintptr_t)here % ps;
	/* Not the main thread's stack */
	if (p > end || end - p > STACK_MAX)
		return;
	for (; p < end; p += ps)
		*p = *p;
}

struct fork_message {
	pthread_t reader;
	int fd;
	int child_fd;	/* or a negative errno */
};

static void *read_fork_message(void *arg)
{
	struct fork_message *m = arg;
	struct pollfd poll_fd = { .fd = m->fd, .events = POLLIN };
	struct uffd_msg msg;

	m->child_fd = -EPROTO;
	if (poll(&poll_fd, 1, -1) == 1 &&
	    read(m->fd, &msg, sizeof(msg)) == sizeof(msg) && msg.event == UFFD_EVENT_FORK)
		m->child_fd = msg.arg.fork.ufd;
	return NULL;
}

/* The fork waits until another thread has read its message. */
int cow_uffd_fork(struct cow_child *c, cow_child_fn fn, void *arg, int fd)
{
	struct fork_message m = { .fd = fd };
	int ret;

	ret = -pthread_create(&m.reader, NULL, read_fork_message, &m);
	if (ret)
		return ret;
	ret = cow_child_fork(c, fn, arg);
	if (ret)
		pthread_cancel(m.reader);
	pthread_join(m.reader, NULL);
	return ret ?: m.child_fd;
}

int cow_child_idle(struct cow_child *c)
{
	int ret;

	ret = cow_child_fork(c, cow_idle, NULL);
	if (ret)
		return ret;
	ret = cow_child_recv(c);
	if (ret != 1)
		return ret < 0 ? ret : -EPROTO;
	cow_own_stack();
	return cow_child_settle(c);
}

int cow_child_wait(struct cow_child *c)
{
	int status;
	pid_t pid;

	do {
		pid = waitpid(c->pid, &status, 0);
	} while (pid < 0 && errno == EINTR);
	if (pid < 0)
		return -errno;
	if (WIFSIGNALED(status))
		return 256 + WTERMSIG(status);
	return WEXITSTATUS(status);
}

int cow_child_end(struct cow_child *c)
{
	int ret;

	/* Fails if it has ended by itself */
	cow_child_send(c, BYE);
	close(c->out);
	ret = cow_child_wait(c);
	close(c->in);
	return ret;
}

int cow_try_child_memory(void)
{
	struct cow_child c;
	char path[64];
	int fd, err;

	err = -cow_child_idle(&c);
	if (err)
		return err;
	snprintf(path, sizeof(path), "/proc/%d/mem", c.pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	err = fd < 0 ? errno : 0;
	if (!err)
		close(fd);
	cow_child_end(&c);
	return err;
}
