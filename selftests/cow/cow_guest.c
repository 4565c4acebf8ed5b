// SPDX-License-Identifier: GPL-2.0
/* A KVM guest without an operating system. See cow_guest.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cow_guest.h"

#ifdef __x86_64__

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

const char *cow_guest_missing(int err)
{
	if (err == -ENOENT || err == -ENODEV || err == -ENXIO)
		return "no " COW_KVM ": no KVM, or not on this CPU";
	if (err == -EACCES || err == -EPERM)
		return COW_KVM " needs root, or the group kvm";
	if (err == -EBUSY)
		return "another hypervisor has the CPU";
	return NULL;
}

int cow_guest_memory(struct cow_guest *g, __u32 slot, __u64 guest, void *addr,
		     size_t size)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot,
		.guest_phys_addr = guest,
		.memory_size = size,
		.userspace_addr = (uintptr_t)addr,
	};

	return ioctl(g->vm, KVM_SET_USER_MEMORY_REGION, &region) ? -errno : 0;
}

static int set_mode(int vcpu)
{
	struct kvm_segment data = {
		.limit = 0xffffffff,
		.selector = 16,
		.type = 3,
		.present = 1,
		.db = 1,
		.s = 1,
		.g = 1,
	};
	struct kvm_sregs sregs;

	if (ioctl(vcpu, KVM_GET_SREGS, &sregs))
		return -errno;
	sregs.cs = data;
	sregs.cs.selector = 8;
	sregs.cs.type = 11;
	sregs.ds = data;
	sregs.es = data;
	sregs.fs = data;
	sregs.gs = data;
	sregs.ss = data;
	sregs.cr0 = 0x11;
	return ioctl(vcpu, KVM_SET_SREGS, &sregs) ? -errno : 0;
}

static int make_vcpu(struct cow_guest *g)
{
	g->vm = ioctl(g->kvm, KVM_CREATE_VM, 0);
	if (g->vm < 0)
		return -errno;
	g->vcpu = ioctl(g->vm, KVM_CREATE_VCPU, 0);
	if (g->vcpu < 0)
		return -errno;
	g->run_size = ioctl(g->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (g->run_size < (int)sizeof(*g->run))
		return -EPROTO;
	g->run = mmap(NULL, g->run_size, PROT_READ | PROT_WRITE, MAP_SHARED,
		      g->vcpu, 0);
	if (g->run == MAP_FAILED)
		return -errno;
	return set_mode(g->vcpu);
}

int cow_guest_open(struct cow_guest *g)
{
	int ret;

	*g = (struct cow_guest) { .vm = -1, .vcpu = -1, .run = MAP_FAILED };
	g->kvm = open(COW_KVM, O_RDWR | O_CLOEXEC);
	if (g->kvm < 0)
		return -errno;
	ret = make_vcpu(g);
	if (ret)
		cow_guest_close(g);
	return ret;
}

void cow_guest_close(struct cow_guest *g)
{
	if (g->run != MAP_FAILED)
		munmap(g->run, g->run_size);
	if (g->vcpu >= 0)
		close(g->vcpu);
	if (g->vm >= 0)
		close(g->vm);
	close(g->kvm);
}

int cow_guest_run(struct cow_guest *g, const struct kvm_regs *regs)
{
	if (ioctl(g->vcpu, KVM_SET_REGS, regs))
		return -errno;
	while (ioctl(g->vcpu, KVM_RUN, 0))
		if (errno != EINTR && errno != EAGAIN)
			return -errno;
	if (g->run->exit_reason != KVM_EXIT_IO ||
	    g->run->io.direction != KVM_EXIT_IO_OUT ||
	    g->run->io.port != COW_GUEST_PORT) {
		g->exit_reason = g->run->exit_reason;
		return -EPROTO;
	}
	return 0;
}

#endif /* __x86_64__ */
