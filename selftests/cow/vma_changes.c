// SPDX-License-Identifier: GPL-2.0
/*
 * A VMA is split, merged, moved in part or grown: its pages, and private copies of a file's,
 * are found through the rmap as before, so that they can be reclaimed, and a child inherits
 * them. A breakpoint that the kernel has set in them (uprobes) leaves no trace. True on any
 * kernel.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define NR		64	/* pages */
#define HALF		(NR / 2)
#define TAG		83

static size_t ps;

#define EVENT	"cow_test/text"

static void remove_event(void)
{
	char events[128];

	if (!cow_may_change() || !cow_tracefs())
		return;
	snprintf(events, sizeof(events), "%s/uprobe_events", cow_tracefs());
	cow_write_file(events, "-:" EVENT);
}

FIXTURE(vma_changes)
{
	struct cow_settings saved;
	struct cow_undo undo;
	char *p;
};

FIXTURE_VARIANT(vma_changes)
{
	int ahead;
};

FIXTURE_VARIANT_ADD(vma_changes, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(vma_changes, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(vma_changes, adaptive) { .ahead = COW_ADAPTIVE };

FIXTURE_SETUP(vma_changes)
{
	const char *reason;

	ps = cow_page_size();
	reason = cow_setup_pages(&self->saved, variant->ahead, &self->p, NR, TAG);
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN_PARENT(vma_changes)
{
	/* Writing "0" where a test has ended early; then the event can go. */
	cow_undo(&self->undo);
	remove_event();
	cow_restore(&self->saved);
}

/* Put private copies of a file's pages, with the same content, in the place of p. */
static int map_file_copies(char *p)
{
	int fd = memfd_create("vma_changes", MFD_CLOEXEC), ret = 0;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, 2 * NR * ps) ||
	    mmap(p, NR * ps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, NR * ps) != p)
		ret = -errno;
	else
		cow_fill(p, NR * ps, TAG);
	close(fd);
	return ret;
}

/* Reclaim unmaps what it finds through the rmap. */
static void expect_reclaimed(struct __test_metadata *_metadata, char *p, int nr)
{
	EXPECT_TRUE(cow_page_out(p, nr))
		TH_LOG("%d of %d pages are in swap", cow_swapped(p, nr), nr);
	EXPECT_EQ(-1, cow_check(p, nr * ps, TAG));
}

/* The changes: what is left is from the returned page on. -1 if one is not possible */
typedef int (*change_fn)(char *p);

static int unmap_lower(char *p)
{
	return munmap(p, HALF * ps) ? -1 : HALF;
}

static int unmap_upper(char *p)
{
	return munmap(p + HALF * ps, HALF * ps) ? -1 : 0;
}

/* A VMA of its own, and one with the rest again */
static int protect(char *p, int first)
{
	p += first * ps;
	return mprotect(p, HALF * ps, PROT_READ) ||
	       mprotect(p, HALF * ps, PROT_READ | PROT_WRITE) ? -1 : 0;
}

static int protect_lower(char *p)
{
	return protect(p, 0);
}

static int protect_upper(char *p)
{
	return protect(p, HALF);
}

/* Away and back */
static int move_lower(char *p)
{
	char *to = cow_map(HALF * ps, 0);

	if (!to || mremap(p, HALF * ps, HALF * ps, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to ||
	    mremap(to, HALF * ps, HALF * ps, MREMAP_MAYMOVE | MREMAP_FIXED, p) != p)
		return -1;
	return 0;
}

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif

/* The VMA stays as it is, and loses these pages only. */
static int take_lower(char *p)
{
	char *to = cow_map(HALF * ps, 0);

	if (!to || mremap(p, HALF * ps, HALF * ps,
			  MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != to)
		return -1;
	return HALF;
}

struct rest {
	char *p;
	int nr;
};

static int keeps(struct cow_child *self, void *arg)
{
	const struct rest *rest = arg;

	if (cow_child_stay(self))
		return 1;
	return cow_check(rest->p, rest->nr * ps, TAG) == -1 ? 0 : 2;
}

static void change_and_reclaim(struct __test_metadata *_metadata, char *p, change_fn change)
{
	struct cow_child c;
	struct rest rest;
	int first;

	first = change(p);
	ASSERT_LE(0, first) TH_LOG("%s", strerror(errno));
	rest.p = p + first * ps;
	rest.nr = change == unmap_upper ? HALF : NR - first;
	ASSERT_EQ(0, cow_child_fork(&c, keeps, &rest));
	ASSERT_EQ(1, cow_child_recv(&c));
	EXPECT_EQ(0, cow_child_end(&c));
	expect_reclaimed(_metadata, rest.p, rest.nr);
}

static void test_change(struct __test_metadata *_metadata, char *p, change_fn change)
{
	char *copies = cow_map(NR * ps, 0);

	if (!cow_can_page_out(NR))
		SKIP(return, "no swap space");
	ASSERT_NE(NULL, copies);
	ASSERT_EQ(0, map_file_copies(copies));
	change_and_reclaim(_metadata, p, change);
	change_and_reclaim(_metadata, copies, change);
}

TEST_F_TIMEOUT(vma_changes, lower_half_unmapped, TEST_TIMEOUT)
{
	test_change(_metadata, self->p, unmap_lower);
}

TEST_F_TIMEOUT(vma_changes, upper_half_unmapped, TEST_TIMEOUT)
{
	test_change(_metadata, self->p, unmap_upper);
}

TEST_F_TIMEOUT(vma_changes, lower_half_protected, TEST_TIMEOUT)
{
	test_change(_metadata, self->p, protect_lower);
}

TEST_F_TIMEOUT(vma_changes, upper_half_protected, TEST_TIMEOUT)
{
	test_change(_metadata, self->p, protect_upper);
}

TEST_F_TIMEOUT(vma_changes, lower_half_moved, TEST_TIMEOUT)
{
	test_change(_metadata, self->p, move_lower);
}

TEST_F_TIMEOUT(vma_changes, lower_half_taken, TEST_TIMEOUT)
{
	test_change(_metadata, self->p, take_lower);
}

#define STACK_GUARD	256	/* stack_guard_gap, in pages */

/* A stack grows downward: its first page becomes another one. */
TEST_F_TIMEOUT(vma_changes, grown, TEST_TIMEOUT)
{
	const size_t below = (NR + STACK_GUARD) * ps;
	char *area = cow_map(below + NR * ps, 0), *stack = area + below;
	struct rlimit most;

	if (!cow_can_page_out(NR))
		SKIP(return, "no swap space");
	ASSERT_EQ(0, getrlimit(RLIMIT_STACK, &most));
	if (most.rlim_cur < 2 * NR * ps)
		SKIP(return, "a stack may have %llu bytes only", (unsigned long long)most.rlim_cur);
	ASSERT_NE(NULL, area);
	ASSERT_EQ(0, munmap(area, below));
	ASSERT_EQ(stack, mmap(stack, NR * ps, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0));
	madvise(stack, NR * ps, MADV_NOHUGEPAGE);
	cow_fill(stack, NR * ps, TAG);
	cow_touch(stack - HALF * ps, 'w');
	expect_reclaimed(_metadata, stack, NR);
	EXPECT_EQ('w', cow_peek(stack - HALF * ps));
}

/*
 * The child maps memory next to what it has inherited. Both become one VMA only if the rmap
 * knows what the child shares with its parent.
 */
static int maps_below(struct cow_child *self, void *arg)
{
	char *p = arg, *below = p - HALF * ps;

	if (mmap(below, HALF * ps, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != below)
		return 1;
	madvise(below, HALF * ps, MADV_NOHUGEPAGE);
	cow_touch(below, 'w');
	if (protect(p, 0) || protect(p, HALF))
		return 2;
	if (cow_child_stay(self))
		return 3;
	if (!cow_page_out(p, NR))
		return 4;
	return cow_check(p, NR * ps, TAG) == -1 && cow_peek(below) == 'w' ? 0 : 5;
}

TEST_F_TIMEOUT(vma_changes, next_to_inherited, TEST_TIMEOUT)
{
	char *area = cow_map((HALF + NR) * ps, 0), *p = area + HALF * ps;
	struct cow_child c;

	if (!cow_can_page_out(NR))
		SKIP(return, "no swap space");
	ASSERT_NE(NULL, area);
	ASSERT_EQ(0, munmap(area, HALF * ps));
	cow_fill(p, NR * ps, TAG);
	ASSERT_EQ(0, cow_child_fork(&c, maps_below, p));
	ASSERT_EQ(1, cow_child_recv(&c));
	/* The child's page tables are the only ones. */
	ASSERT_EQ(0, madvise(p, NR * ps, MADV_DONTNEED));
	EXPECT_EQ(0, cow_child_end(&c));
}

/*
 * Breakpoints
 */

#ifdef __x86_64__
#define KNOWN_CPU	true
#else
#define KNOWN_CPU	false
#endif
#define NOP		((char)0x90)
#define BREAKPOINT	((char)0xcc)
#define CHANGED		100	/* this byte, by the process itself */

static int keeps_change(struct cow_child *self, void *arg)
{
	const char *text = arg;

	if (cow_child_stay(self))
		return 1;
	return cow_peek(text) == NOP && cow_peek(text + CHANGED) == 'w' ? 0 : 2;
}

/* A file of one page, and a private mapping of it that is executable and has a change */
static char *map_text(int *fd)
{
	char *text;

	*fd = memfd_create("text", MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, ps))
		return NULL;
	text = mmap(NULL, ps, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (text == MAP_FAILED)
		return NULL;
	memset(text, NOP, ps);
	if (mmap(text, ps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, *fd, 0) != text)
		return NULL;
	cow_touch(text + CHANGED, 'w');
	return mprotect(text, ps, PROT_READ | PROT_EXEC) ? NULL : text;
}

TEST_F_TIMEOUT(vma_changes, breakpoint_in_changed_page, TEST_TIMEOUT)
{
	char events[128], enable[128], line[128], byte;
	struct cow_child c;
	char *text;
	int fd;

	if (!KNOWN_CPU)
		SKIP(return, "the test knows breakpoints of x86 only");
	if (!cow_may_change())
		SKIP(return, "a breakpoint " COW_NEEDS);
	if (!cow_tracefs())
		SKIP(return, "kernel without tracefs");
	text = map_text(&fd);
	if (!text)
		SKIP(return, "no executable copy of a file: %s", strerror(errno));
	snprintf(events, sizeof(events), "%s/uprobe_events", cow_tracefs());
	snprintf(enable, sizeof(enable), "%s/events/" EVENT "/enable", cow_tracefs());
	snprintf(line, sizeof(line), "p:" EVENT " /proc/%d/fd/%d:0x0", getpid(), fd);
	if (cow_write_file(events, line))
		SKIP(return, "no breakpoints by %s", events);
	ASSERT_TRUE(cow_tweak(&self->undo, enable, "1"));
	EXPECT_EQ(BREAKPOINT, cow_peek(text));
	EXPECT_EQ('w', cow_peek(text + CHANGED));
	ASSERT_EQ(0, cow_child_fork(&c, keeps_change, text));
	ASSERT_EQ(1, cow_child_recv(&c));
	EXPECT_EQ(0, cow_write_file(enable, "0"));
	EXPECT_EQ(NOP, cow_peek(text));
	EXPECT_EQ('w', cow_peek(text + CHANGED));
	EXPECT_EQ(0, cow_child_end(&c));
	ASSERT_EQ(1, pread(fd, &byte, 1, CHANGED));
	EXPECT_EQ(NOP, byte);
	close(fd);
}

TEST_HARNESS_MAIN
