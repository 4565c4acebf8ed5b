// SPDX-License-Identifier: GPL-2.0
/*
 * The host: its CPUs, its settings, and memory that a fork leaves alone
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "cow_bench.h"

/* Shared with the process that works; the supervisor restores them. */
static struct bench_undo {
	struct cow_settings saved;
	struct cow_undo undo;
} *undo;

struct bench_snapshot bench_snapshot = {
	.writers = 4,
	.checkpointers = 4,
	.batch = 2 << 20,
};

/* Those that this program was started on */
static cpu_set_t cpus;

void bench_pin(void)
{
	sched_getaffinity(0, sizeof(cpus), &cpus);
	cow_pin_cpu();
}

int bench_cpus(void)
{
	return CPU_COUNT(&cpus);
}

int bench_cpu(unsigned int i)
{
	int cpu, nr = CPU_COUNT(&cpus);

	i %= nr;
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &cpus) && !i--)
			return cpu;
	return 0;
}

void bench_unpin(void)
{
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

bool bench_tweak(const char *path, const char *value)
{
	return cow_tweak(&undo->undo, path, value);
}

int bench_save_settings(void)
{
	undo = bench_alloc(sizeof(*undo));
	if (!undo)
		return -ENOMEM;
	cow_allow_changes();
	/* Only to save them; each configuration says itself what it lacks. */
	cow_setup(&undo->saved, 0, 0);
	return 0;
}

void bench_restore_settings(void)
{
	cow_undo(&undo->undo);
	cow_restore(&undo->saved);
}

void *bench_alloc(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	/* Where it is allowed, and enough without */
	mlock(p, len);
	return p;
}

/* Have shared memory in the page table, which fork leaves out. */
void bench_have_mapped(void *addr, size_t len)
{
	size_t i;

	for (i = 0; i < len; i += cow_page_size())
		cow_touch((char *)addr + i, cow_peek((char *)addr + i));
}
