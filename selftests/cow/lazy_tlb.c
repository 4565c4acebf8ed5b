// SPDX-License-Identifier: GPL-2.0
/*
 * Idle CPUs are not interrupted by copy-on-write faults
 *
 * A thread runs on another CPU, then sleeps. That CPU goes idle, keeps the address space
 * for the next time (lazy TLB), and flushes its TLB when it leaves idle. So a fault that
 * replaces pages need not interrupt it, as it would have to if page tables were freed.
 * True on any kernel for x86, where /proc/interrupts counts these interrupts.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define ROUNDS		64
#define NR		(COW_MAX_AHEAD + 1)	/* pages written in each */

struct sleeper {
	int wake[2], awake[2];
	pid_t tid;
	int cpu;
};

/* How many interrupts to flush its TLB a CPU has had, or -1 */
static long tlb_interrupts(int cpu)
{
	char line[16384], *p = NULL;
	long nr = -1;
	FILE *file;
	int i;

	file = fopen("/proc/interrupts", "r");
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		p = strstr(line, "TLB:");
		if (p)
			break;
	}
	fclose(file);
	if (!p)
		return -1;
	for (i = 0, p += strlen("TLB:"); i <= cpu; i++)
		nr = strtol(p, &p, 10);
	return nr;
}

/* AMD's INVLPGB */
static bool cpu_flushes_others(void)
{
	bool found = false;
	char line[8192];
	FILE *file;

	file = fopen("/proc/cpuinfo", "r");
	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, " invlpgb");
	if (file)
		fclose(file);
	return found;
}

static void *sleep_elsewhere(void *arg)
{
	struct sleeper *s = arg;
	char byte;

	s->tid = syscall(SYS_gettid);
	s->cpu = cow_leave_cpu() ? -1 : sched_getcpu();
	do {
		if (write(s->awake[1], "a", 1) != 1)
			return NULL;
	} while (read(s->wake[0], &byte, 1) == 1 && byte != 'q');
	return NULL;
}

/* Until it has run, and sleeps again */
static bool wait_until_asleep(struct sleeper *s)
{
	char byte;

	if (read(s->awake[0], &byte, 1) != 1)
		return false;
	while (!cow_task_sleeps(s->tid))
		usleep(100);
	/* Its CPU has to become idle yet. */
	usleep(1000);
	return true;
}

FIXTURE(lazy_tlb)
{
	struct cow_settings saved;
	struct sleeper sleeper;
	char *area;
};

FIXTURE_VARIANT(lazy_tlb)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(lazy_tlb, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(lazy_tlb, ahead_15) { .ahead = COW_MAX_AHEAD };
FIXTURE_VARIANT_ADD(lazy_tlb, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(lazy_tlb)
{
	const char *reason;

	if (cow_nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	if (tlb_interrupts(0) < 0)
		SKIP(return, "no TLB interrupts in /proc/interrupts");
	if (cpu_flushes_others())
		SKIP(return, "the CPU flushes the TLBs of others without an interrupt");
	reason = cow_setup_pages(&self->saved, variant->ahead, &self->area, ROUNDS * NR, 1);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_NE(NULL, self->area);
}

FIXTURE_TEARDOWN_PARENT(lazy_tlb)
{
	cow_restore(&self->saved);
}

TEST_F_TIMEOUT(lazy_tlb, not_interrupted, TEST_TIMEOUT)
{
	struct sleeper *s = &self->sleeper;
	size_t ps = cow_page_size();
	int round, page, quiet = 0, noisy = 0;
	struct cow_child child;
	pthread_t thread;

	ASSERT_EQ(0, cow_child_idle(&child));
	ASSERT_EQ(0, pipe(s->wake));
	ASSERT_EQ(0, pipe(s->awake));
	ASSERT_EQ(0, pthread_create(&thread, NULL, sleep_elsewhere, s));
	for (round = 0; round < ROUNDS; round++) {
		char *p = self->area + round * NR * ps;
		long idle, before;

		ASSERT_TRUE(wait_until_asleep(s));
		ASSERT_LE(0, s->cpu);
		idle = tlb_interrupts(s->cpu);
		before = tlb_interrupts(s->cpu);
		noisy += before != idle;
		for (page = 0; page < NR; page++)
			cow_touch(p + page * ps, 'w');
		quiet += tlb_interrupts(s->cpu) == before;
		ASSERT_EQ(1, write(s->wake[1], round < ROUNDS - 1 ? "w" : "q", 1));
	}
	pthread_join(thread, NULL);
	ASSERT_EQ(0, cow_child_end(&child));
	if (noisy >= ROUNDS / 4)
		SKIP(return, "CPU %d runs programs that are interrupted as well", s->cpu);
	/* Something else may run there for a moment, but not each time. */
	EXPECT_LT(ROUNDS / 4, quiet)
		TH_LOG("an idle CPU was interrupted in %d of %d rounds", ROUNDS - quiet, ROUNDS);
}

TEST_HARNESS_MAIN
