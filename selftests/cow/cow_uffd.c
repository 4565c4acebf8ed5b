// SPDX-License-Identifier: GPL-2.0
/*
 * Userfaultfd and PAGEMAP_SCAN, which reports what it has seen written, in the tests of
 * copy-on-write faults
 *
 * See cow_helpers.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cow_helpers.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY	1
#endif

static const char *cow_uffd_open(int *fd)
{
	/* Faults of the kernel are for root only, and not needed here. */
	*fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (*fd < 0)
		return errno == EPERM ? "userfaultfd is not permitted" :
					"kernel without userfaultfd";
	return NULL;
}

static const char *cow_uffd_register(int *fd, const void *addr, size_t len,
				     __u64 features, __u64 mode)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register reg = {
		.range = { .start = (uintptr_t)addr, .len = len },
		.mode = mode,
	};
	const char *reason = cow_uffd_open(fd);

	if (reason)
		return reason;
	if (ioctl(*fd, UFFDIO_API, &api))
		return errno == EPERM ? "following a fork needs root" :
		       "userfaultfd of this kernel lacks what the test needs";
	if (ioctl(*fd, UFFDIO_REGISTER, &reg))
		return "memory cannot be registered with userfaultfd for this";
	return NULL;
}

const char *cow_uffd_wp(int *fd, const void *addr, size_t len, __u64 features)
{
	return cow_uffd_register(fd, addr, len, features | UFFD_FEATURE_PAGEFAULT_FLAG_WP,
				 UFFDIO_REGISTER_MODE_WP);
}

const char *cow_uffd_missing(int *fd, const void *addr, size_t len, __u64 features)
{
	return cow_uffd_register(fd, addr, len, features, UFFDIO_REGISTER_MODE_MISSING);
}

const char *cow_uffd_minor(int *fd, const void *addr, size_t len)
{
	return cow_uffd_register(fd, addr, len, UFFD_FEATURE_MINOR_SHMEM,
				 UFFDIO_REGISTER_MODE_MINOR);
}

/* Not in 6.12 */
#ifndef UFFDIO_RWPROTECT
#define UFFD_FEATURE_RWP		0x20000
#define UFFDIO_REGISTER_MODE_RWP	((__u64)1 << 3)
#define UFFDIO_RWPROTECT_MODE_RWP	((__u64)1 << 0)

struct uffdio_rwprotect {
	struct uffdio_range range;
	__u64 mode;
};

#define UFFDIO_RWPROTECT		_IOWR(UFFDIO, 0x09, struct uffdio_rwprotect)
#endif

const char *cow_uffd_access(int *fd, const void *addr, size_t len, __u64 features)
{
	return cow_uffd_register(fd, addr, len, features | UFFD_FEATURE_RWP,
				 UFFDIO_REGISTER_MODE_RWP);
}

int cow_uffd_protect_access(int fd, const void *addr, size_t len, bool protect)
{
	struct uffdio_rwprotect rwp = {
		.range = { .start = (uintptr_t)addr, .len = len },
		.mode = protect ? UFFDIO_RWPROTECT_MODE_RWP : 0,
	};

	return ioctl(fd, UFFDIO_RWPROTECT, &rwp) ? -errno : 0;
}

int cow_uffd_protect(int fd, const void *addr, size_t len, bool protect)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (uintptr_t)addr, .len = len },
		.mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return ioctl(fd, UFFDIO_WRITEPROTECT, &wp) ? -errno : 0;
}

/* Since 6.8 */
#ifndef UFFDIO_MOVE
struct uffdio_move {
	__u64 dst, src, len, mode;
	__s64 move;
};

#define UFFDIO_MOVE	_IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

int cow_uffd_move(int fd, void *to, const void *from, size_t len, long long *moved)
{
	struct uffdio_move move = {
		.dst = (uintptr_t)to, .src = (uintptr_t)from, .len = len,
	};
	int ret = ioctl(fd, UFFDIO_MOVE, &move) ? -errno : 0;

	if (moved)
		*moved = move.move;
	return ret;
}

/* Since 6.7 */
#ifndef PAGEMAP_SCAN
struct page_region {
	__u64 start;
	__u64 end;
	__u64 categories;
};

struct pm_scan_arg {
	__u64 size;
	__u64 flags;
	__u64 start;
	__u64 end;
	__u64 walk_end;
	__u64 vec;
	__u64 vec_len;
	__u64 max_pages;
	__u64 category_inverted;
	__u64 category_mask;
	__u64 category_anyof_mask;
	__u64 return_mask;
};

#define PAGEMAP_SCAN		_IOWR('f', 16, struct pm_scan_arg)
#define PAGE_IS_WRITTEN		0x2
#define PAGE_IS_PRESENT		0x8
#define PM_SCAN_WP_MATCHING	0x1
#define PM_SCAN_CHECK_WPASYNC	0x2
#endif

#define MAX_REGIONS		64

/* One call of the kernel, which says in args->walk_end how far it got */
static int scan_once(int fd, struct pm_scan_arg *args, const char *p, unsigned char *times)
{
	size_t ps = cow_page_size();
	struct page_region found[MAX_REGIONS];
	int i, nr;
	__u64 addr;

	args->vec = (uintptr_t)found;
	nr = ioctl(fd, PAGEMAP_SCAN, args);
	if (nr < 0)
		return -errno;
	for (i = 0; i < nr; i++)
		for (addr = found[i].start; addr < found[i].end; addr += ps)
			times[(addr - (uintptr_t)p) / ps]++;
	return args->walk_end > args->start ? 0 : -ELOOP;
}

int cow_scan_written(const char *p, int nr, const struct cow_scan *scan,
		     unsigned char *times)
{
	struct pm_scan_arg args = {
		.size = sizeof(args),
		.flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
		.start = (uintptr_t)p,
		.end = (uintptr_t)(p + nr * cow_page_size()),
		.vec_len = scan->max_regions ? scan->max_regions : MAX_REGIONS,
		.max_pages = scan->max_pages,
		.category_mask = PAGE_IS_WRITTEN,
		.return_mask = PAGE_IS_WRITTEN | (scan->also_present ? PAGE_IS_PRESENT : 0),
	};
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), ret = 0;

	if (fd < 0)
		return -errno;
	while (!ret && args.start < args.end) {
		ret = scan_once(fd, &args, p, times);
		args.start = args.walk_end;
	}
	close(fd);
	return ret;
}
