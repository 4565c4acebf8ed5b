// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel log: while vm.cow_stats is 1, one in vm.cow_sample_interval copies is logged
 * with the program and the times, without addresses, and not more than two a second.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define PAGES		64
#define TAG		42
/* The name of this process while nothing may be logged about it */
#define SILENT		"cow_silent"
#define LOGGED		"cow_logged"
/* Longer than any test has copied pages for */
#define NEVER		1000000000

static size_t ps;

FIXTURE(kernel_log)
{
	struct cow_settings saved;
	char *area;
	int fd;		/* the log, from now on */
};

FIXTURE_SETUP(kernel_log)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup(&self->saved, 0, COW_WANT_STATS);
	if (!reason && !cow_may_change())
		reason = COW_NEEDS;
	self->fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (!reason && self->fd < 0)
		reason = "no /dev/kmsg";
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_LE(0, lseek(self->fd, 0, SEEK_END));
	self->area = cow_map(PAGES * ps, 0);
	ASSERT_NE(NULL, self->area);
	cow_fill(self->area, PAGES * ps, TAG);
	ASSERT_EQ(0, prctl(PR_SET_NAME, LOGGED));
}

FIXTURE_TEARDOWN_PARENT(kernel_log)
{
	cow_restore(&self->saved);
}

/* Share all pages with a child, and write to them. */
static int copy_pages(char *area)
{
	struct cow_child child;
	int i;

	if (cow_child_idle(&child))
		return -1;
	for (i = 0; i < PAGES; i++)
		cow_touch(area + i * ps, 'w');
	return cow_child_end(&child);
}

/*
 * Lines about this process; -errno without a log, -EPROTO if one has an address or
 * SILENT
 */
static int log_lines(int fd)
{
	char buf[8192], *p;
	int lines = 0;
	ssize_t n;
	pid_t pid;

	for (;;) {
		n = read(fd, buf, sizeof(buf) - 1);
		if (n < 0 && (errno == EPIPE || errno == EINTR))
			continue;
		if (n < 0)
			return errno == EAGAIN ? lines : -errno;
		buf[n] = '\0';
		p = strstr(buf, "cow: ");
		if (!p)
			continue;
		/* No address of a program is in the log. */
		if (strstr(p, "0x") || strstr(p, SILENT))
			return -EPROTO;
		p = strchr(p, '[');
		if (p && sscanf(p, "[%d] copied a page in %*u ns, fault", &pid) == 1 &&
		    pid == getpid())
			lines++;
	}
}

/* A kernel worker prints the lines a little later. */
static int wait_for_lines(int fd)
{
	struct pollfd log = { .fd = fd, .events = POLLIN };

	poll(&log, 1, 100);
	return log_lines(fd);
}

static long long now_ms(void)
{
	return cow_now_ns() / 1000000;
}

/* Another line may have used up this half second: copy for longer than that. */
static int copy_for_a_second(char *area)
{
	long long end = now_ms() + 1000;
	int ret;

	do
		ret = copy_pages(area);
	while (!ret && now_ms() < end);
	return ret;
}

/*
 * Copy until a copy has been logged. Lines are printed in the order of their faults: one that
 * must not be there would come before.
 */
static void expect_next_to_be_logged(struct __test_metadata *_metadata, int fd, char *area,
				     int interval)
{
	int lines = 0;

	ASSERT_EQ(0, prctl(PR_SET_NAME, LOGGED));
	ASSERT_EQ(0, cow_sysctl_write("cow_sample_interval", interval));
	ASSERT_EQ(0, cow_sysctl_write("cow_stats", 1));
	while (!lines) {
		ASSERT_EQ(0, copy_pages(area));
		lines = wait_for_lines(fd);
	}
	EXPECT_LT(0, lines)
		TH_LOG("%s", lines == -EPROTO ?
		       "an address, or a fault that must not be logged" : strerror(-lines));
}

/* Not for an interval of 0, and not while the timing is off */
TEST_F_TIMEOUT(kernel_log, off, TEST_TIMEOUT)
{
	ASSERT_EQ(0, prctl(PR_SET_NAME, SILENT));
	ASSERT_EQ(0, cow_sysctl_write("cow_sample_interval", 0));
	ASSERT_EQ(0, copy_for_a_second(self->area));
	ASSERT_EQ(0, cow_sysctl_write("cow_stats", 0));
	ASSERT_EQ(0, cow_sysctl_write("cow_sample_interval", 1));
	ASSERT_EQ(0, copy_for_a_second(self->area));
	expect_next_to_be_logged(_metadata, self->fd, self->area, 1);
}

/* Nor for a copy whose turn it is not */
TEST_F_TIMEOUT(kernel_log, not_yet, TEST_TIMEOUT)
{
	ASSERT_EQ(0, prctl(PR_SET_NAME, SILENT));
	ASSERT_EQ(0, cow_sysctl_write("cow_sample_interval", NEVER));
	ASSERT_EQ(0, copy_for_a_second(self->area));
	expect_next_to_be_logged(_metadata, self->fd, self->area, 1);
}

/* Another process may have used up the line of this half second: repeat. */
TEST_F_TIMEOUT(kernel_log, one_in_some, TEST_TIMEOUT)
{
	expect_next_to_be_logged(_metadata, self->fd, self->area, PAGES / 2);
}

/* Two lines in a second at most, however many copies there are. */
TEST_F_TIMEOUT(kernel_log, limited, TEST_TIMEOUT)
{
	long long start = now_ms(), end;
	int found, lines = 0;

	ASSERT_EQ(0, cow_sysctl_write("cow_sample_interval", 1));
	do {
		ASSERT_EQ(0, copy_pages(self->area));
		end = now_ms();
		found = log_lines(self->fd);
		ASSERT_LE(0, found);
		lines += found;
	} while (!lines || end - start < 2000);
	/* The first one at once, and one more as a tick is not exact. */
	EXPECT_LE(lines, (now_ms() - start) / 500 + 2);
}

TEST_HARNESS_MAIN
