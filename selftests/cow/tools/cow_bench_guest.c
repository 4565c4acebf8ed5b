// SPDX-License-Identifier: GPL-2.0
/*
 * The region of cow_bench as the memory of a KVM guest, which writes to it. A write to
 * a page that KVM has not mapped writable ends in the same write fault as ours. What
 * a fork, a copy or a copy ahead unmaps, KVM has to fill in again, page by page, also
 * where the page is there already.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "cow_bench.h"
#include "cow_guest.h"

#ifdef __x86_64__

/* Guest addresses: its program, the list of pages, and the region */
#define GUEST_ORDER	0x100000UL
#define GUEST_AREA	0x10000000UL
#define GUEST_END	0xc0000000UL

/*
 * esi: the list, ecx: how many of it, edi: where page 0 is, bl: what to write into the
 * first byte of each page
 */
static const unsigned char guest_program[] = {
	/* 0x00: write */
	0x8b, 0x06,			/* mov (%esi),%eax */
	0xc1, 0xe0, 0x0c,		/* shl $12,%eax */
	0x88, 0x1c, 0x38,		/* mov %bl,(%eax,%edi,1) */
	0x83, 0xc6, 0x04,		/* add $4,%esi */
	0x49,				/* dec %ecx */
	0x75, 0xf2,			/* jne write */
	0xe6, COW_GUEST_PORT,		/* out %al,$COW_GUEST_PORT */
	/*
	 * 0x10: only leave. Not at an OUT: where the last one was, KVM takes it for
	 * the one that it has still to skip.
	 */
	0x90,				/* nop */
	0xe6, COW_GUEST_PORT,		/* out %al,$COW_GUEST_PORT */
};

#define GUEST_LEAVE	0x10

static struct cow_guest guest;
static char *program;
static int error;		/* of the first run that went wrong */

void bench_guest_write(const struct bench_rep *rep, const __u32 *order, size_t nr)
{
	struct kvm_regs regs = {
		.rip = nr ? 0 : GUEST_LEAVE,
		.rsi = GUEST_ORDER + (order - rep->plan->order) * sizeof(*order),
		.rdi = GUEST_AREA,
		.rcx = nr,
		.rbx = rep->gen,
		.rflags = 2,
	};
	int ret = cow_guest_run(&guest, &regs);

	if (ret && !error)
		error = ret;
}

static int begin(struct bench_rep *rep)
{
	size_t ps = cow_page_size(), list = rep->plan->nr * sizeof(*rep->plan->order);
	int ret;

	program = mmap(NULL, ps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (program == MAP_FAILED)
		return -errno;
	memcpy(program, guest_program, sizeof(guest_program));
	ret = cow_guest_memory(&guest, 0, 0, program, ps);
	if (!ret)
		ret = cow_guest_memory(&guest, 1, GUEST_ORDER, rep->plan->order,
				       (list + ps - 1) & -ps);
	if (!ret)
		ret = cow_guest_memory(&guest, 2, GUEST_AREA, rep->base,
				       rep->plan->pages * ps);
	return ret;
}

int bench_guest_open(struct bench_rep *rep)
{
	int ret;

	if (GUEST_AREA + rep->plan->pages * cow_page_size() > GUEST_END)
		return bench_skip(rep, "too large for the guest: it has 2816M at most");
	ret = cow_guest_open(&guest);
	if (cow_guest_missing(ret))
		return bench_skip(rep, "%s", cow_guest_missing(ret));
	if (ret)
		return bench_fail(rep, "KVM: %s", strerror(-ret));
	error = begin(rep);
	/* Writable: that is what a fork takes away. */
	if (!error)
		bench_guest_write(rep, rep->plan->order, rep->plan->nr);
	rep->in_guest = true;
	return error ? bench_guest_close(rep) : BENCH_OK;
}

int bench_guest_close(struct bench_rep *rep)
{
	rep->in_guest = false;
	if (error)
		bench_why(rep, "the guest: %s, exit reason %u", strerror(-error),
			  guest.exit_reason);
	cow_guest_close(&guest);
	munmap(program, cow_page_size());
	return error ? BENCH_FAIL : BENCH_OK;
}

#else /* !__x86_64__ */

void bench_guest_write(const struct bench_rep *rep, const __u32 *order, size_t nr)
{
	(void)rep;
	(void)order;
	(void)nr;
}

int bench_guest_open(struct bench_rep *rep)
{
	return bench_skip(rep, "the guest's program is for x86");
}

int bench_guest_close(struct bench_rep *rep)
{
	(void)rep;
	return BENCH_OK;
}

#endif
