// SPDX-License-Identifier: GPL-2.0
/*
 * The host: its CPUs, its settings, and memory that a fork leaves alone
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <string.h>
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

#define NODE_DIR	"/sys/devices/system/node/"
#define MAX_NODES	1024
#define MPOL_BIND	2

/* "0-3,8": the next range; NULL at the end */
static const char *next_range(const char *list, int *first, int *last)
{
	int len = 0;

	if (sscanf(list, "%d%n", first, &len) != 1)
		return NULL;
	list += len;
	*last = *first;
	if (*list == '-' && sscanf(list, "-%d%n", last, &len) == 1)
		list += len;
	return *list == ',' ? list + 1 : list;
}

/* The CPUs of a node that this process may use; how many */
static int node_cpus(int node, cpu_set_t *set)
{
	char path[64], list[4096];
	const char *p = list;
	int first, last;

	CPU_ZERO(set);
	snprintf(path, sizeof(path), NODE_DIR "node%d/cpulist", node);
	if (cow_read_file(path, list, sizeof(list)) <= 0)
		return 0;
	while ((p = next_range(p, &first, &last)))
		for (; first <= last && first < CPU_SETSIZE; first++)
			if (CPU_ISSET(first, &cpus))
				CPU_SET(first, set);
	return CPU_COUNT(set);
}

void bench_use_node(char *text, size_t len)
{
	unsigned long mask[MAX_NODES / (8 * sizeof(long))] = {};
	unsigned int cpu = 0, node = 0, bits = 8 * sizeof(long);
	int first, last, nodes = 0;
	const char *p;
	cpu_set_t set;
	char list[256];

	p = cow_read_file(NODE_DIR "has_memory", list, sizeof(list)) > 0 ? list : NULL;
	while (p && (p = next_range(p, &first, &last)))
		nodes += last - first + 1;
	if (nodes < 2) {
		snprintf(text, len, "one node: CPUs and memory are where the kernel puts them");
		return;
	}
	if (syscall(SYS_getcpu, &cpu, &node, NULL) || node >= MAX_NODES ||
	    !node_cpus(node, &set)) {
		snprintf(text, len, "%d nodes, not bound to one: which CPUs it has is unknown",
			 nodes);
		return;
	}
	mask[node / bits] = 1UL << node % bits;
	if (syscall(SYS_set_mempolicy, MPOL_BIND, mask, MAX_NODES)) {
		snprintf(text, len, "%d nodes, not bound to one: set_mempolicy: %s",
			 nodes, strerror(errno));
		return;
	}
	cpus = set;
	snprintf(text, len, "%d nodes: bound to the %d CPUs and the memory of node %u",
		 nodes, CPU_COUNT(&set), node);
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
