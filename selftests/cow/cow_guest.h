/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A KVM guest without an operating system, in protected mode without paging: its
 * addresses are those of its memory slots. x86 only.
 */
#ifndef __COW_GUEST_H
#define __COW_GUEST_H

#ifdef __x86_64__

#include <linux/kvm.h>
#include <stddef.h>

#define COW_KVM		"/dev/kvm"
/* "out %al,$COW_GUEST_PORT" ends a run. */
#define COW_GUEST_PORT	0x10

struct cow_guest {
	int kvm;
	int vm;
	int vcpu;
	struct kvm_run *run;
	int run_size;
	__u32 exit_reason;	/* if it was not the expected one */
};

/* 0 or a negative errno: that of opening COW_KVM, or what else failed */
int cow_guest_open(struct cow_guest *g);
void cow_guest_close(struct cow_guest *g);
/* NULL, or why opening COW_KVM failed with @err where KVM is not to be had */
const char *cow_guest_missing(int err);
/* 0 or a negative errno */
int cow_guest_memory(struct cow_guest *g, __u32 slot, __u64 guest, void *addr,
		     size_t size);
/*
 * Run the guest from these registers on until it leaves by the port: 0 or a negative
 * errno, -EPROTO for any other exit.
 */
int cow_guest_run(struct cow_guest *g, const struct kvm_regs *regs);

#endif /* __x86_64__ */

#endif /* __COW_GUEST_H */
