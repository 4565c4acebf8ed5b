// SPDX-License-Identifier: GPL-2.0
/*
 * A virtual machine whose memory is ours
 *
 * KVM has page tables of its own (nested ones, or shadows of the guest's), which
 * it fills from ours when the guest finds no entry, and whose entries it drops
 * when the mmu notifier tells it to. If a pre-copy replaces a page without
 * telling it, then the guest goes on reading the old page, which is the child's
 * by now: what we write to the new page never gets there. If an entry that may be
 * written to is left behind, the guest writes to what the child sees.
 *
 * The guest is a loop without an operating system, in protected mode without
 * paging. It reads a word of each page and writes it down where we find it, or it
 * writes a word into each page; then it leaves by an OUT. KVM fills in the pages
 * one by one, as the guest gets to them: no read repairs the entries of others.
 *
 * Unlike lib/test_hmm, KVM drops exactly what it is told to drop.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "cow_guest.h"

#ifdef __x86_64__

#define GROUP	(COW_MAX_AHEAD + 1)
#define GROUPS	4
#define PAGES	(GROUPS * GROUP)
#define ROUNDS	4		/* of the tests that race */

/* The guest's memory: the program and what it reports, and the area */
#define GUEST_LOW_SIZE	0x10000
#define GUEST_REPORT	0x8000
#define GUEST_AREA	0x100000

/*
 * esi: address in the first page, ecx: number of pages, edi: where to report,
 * eax: what to write into the first page, one more into each next one
 */
static const unsigned char guest_program[] = {
	/* 0x00: read */
	0x8b, 0x06,				/* mov (%esi),%eax */
	0x89, 0x07,				/* mov %eax,(%edi) */
	0x81, 0xc6, 0x00, 0x10, 0x00, 0x00,	/* add $0x1000,%esi */
	0x83, 0xc7, 0x04,			/* add $4,%edi */
	0x49,					/* dec %ecx */
	0x75, 0xf0,				/* jne read */
	0xe6, COW_GUEST_PORT,			/* out %al,$COW_GUEST_PORT */
	/* 0x12: write */
	0x89, 0x06,				/* mov %eax,(%esi) */
	0x81, 0xc6, 0x00, 0x10, 0x00, 0x00,	/* add $0x1000,%esi */
	0x40,					/* inc %eax */
	0x49,					/* dec %ecx */
	0x75, 0xf4,				/* jne write */
	0xe6, COW_GUEST_PORT,			/* out %al,$COW_GUEST_PORT */
};

#define GUEST_READ	0x00
#define GUEST_WRITE	0x12

/* Contents: what the child has to keep, what we write, what the guest writes */
#define OLD	1
#define NEW	2
#define VM	3

/* The page is in the low bits: see the guest's program. */
static __u32 value(unsigned int page, size_t word, __u32 tag)
{
	return tag << 24 | word << 12 | page;
}

static __u32 *page_words(char *area, unsigned int page)
{
	return (__u32 *)(area + page * cow_page_size());
}

static void fill(char *area, unsigned int page, __u32 tag)
{
	__u32 *p = page_words(area, page);
	size_t word;

	for (word = 0; word < cow_page_size() / sizeof(*p); word++)
		__atomic_store_n(&p[word], value(page, word, tag),
				 __ATOMIC_RELAXED);
}

/* The tag of the words of the page from first on, or -1 if they disagree */
static int tag_from(char *area, unsigned int page, size_t first)
{
	const __u32 *p = page_words(area, page);
	__u32 tag = p[first] >> 24;
	size_t word;

	for (word = first; word < cow_page_size() / sizeof(*p); word++)
		if (p[word] != value(page, word, tag))
			return -1;
	return tag;
}

static int tag_of(char *area, unsigned int page)
{
	return tag_from(area, page, 0);
}

/* Not in the fixture: that is memory which the child shares. */
static struct cow_child child;

struct vm {
	struct cow_stats before;
	char *area;
	char *low;		/* shared: no copy-on-write of its own */
	__u32 *report;		/* a word for each page */
	struct cow_guest guest;
	int stats;
	off_t filled_at;	/* in stats */
};

FIXTURE(kvm_mmu)
{
	struct cow_settings saved;
	struct cow_undo undo;
	struct vm vm;
};

FIXTURE_VARIANT(kvm_mmu)
{
	int ahead;
	bool folios;
};

FIXTURE_VARIANT_ADD(kvm_mmu, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(kvm_mmu, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(kvm_mmu, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(kvm_mmu, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(kvm_mmu, adaptive_folios) { .ahead = COW_ADAPTIVE, .folios = true };

/* Where in the statistics is this one? -1 if KVM has none. */
static off_t stat_offset(int fd, const char *name)
{
	struct kvm_stats_header header;
	char buf[256] = {};
	struct kvm_stats_desc *desc = (void *)buf;
	size_t size;
	__u32 i;

	if (pread(fd, &header, sizeof(header), 0) != sizeof(header))
		return -1;
	size = sizeof(*desc) + header.name_size;
	if (size >= sizeof(buf))
		return -1;
	for (i = 0; i < header.num_desc; i++) {
		if (pread(fd, buf, size, header.desc_offset + i * size) !=
		    (ssize_t)size)
			return -1;
		if (!strcmp(desc->name, name))
			return header.data_offset + desc->offset;
	}
	return -1;
}

/* How many entries has KVM filled into its page tables so far? */
static long long filled(const struct vm *vm)
{
	__u64 nr;

	if (pread(vm->stats, &nr, sizeof(nr), vm->filled_at) != sizeof(nr))
		return -1;
	return nr;
}

static int guest_read(struct vm *vm);

FIXTURE_SETUP(kvm_mmu)
{
	struct vm *vm = &self->vm;
	const char *reason;
	unsigned int page;
	int ret;

	ASSERT_EQ(cow_page_size(), 4096UL);
	reason = cow_setup_folios(&self->saved, &self->undo, variant->ahead,
				  variant->folios, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	cow_map_hugepage = variant->folios;
	ret = cow_guest_open(&vm->guest);
	reason = cow_guest_missing(ret);
	/* A fixture that skips or fails is not torn down. */
	if (ret || reason) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
	}
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(ret, 0)
		TH_LOG("KVM: %s", strerror(-ret));

	/*
	 * KVM marks the pages that the guest reads as used. In the LRU batch of another
	 * CPU they would look as if somebody had a reference, and not be copied ahead.
	 */
	ASSERT_EQ(cow_pin_cpu(), 0);
	vm->area = cow_map(PAGES * cow_page_size(), PAGES * cow_page_size());
	ASSERT_NE(vm->area, NULL);
	vm->low = mmap(NULL, GUEST_LOW_SIZE, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(vm->low, MAP_FAILED);
	vm->report = (__u32 *)(vm->low + GUEST_REPORT);
	memcpy(vm->low, guest_program, sizeof(guest_program));
	ASSERT_EQ(cow_guest_memory(&vm->guest, 0, 0, vm->low, GUEST_LOW_SIZE), 0);
	ASSERT_EQ(cow_guest_memory(&vm->guest, 1, GUEST_AREA, vm->area,
				   PAGES * cow_page_size()), 0);
	vm->stats = ioctl(vm->guest.vcpu, KVM_GET_STATS_FD, 0);
	ASSERT_GE(vm->stats, 0);
	vm->filled_at = stat_offset(vm->stats, "pf_fixed");
	ASSERT_GE(vm->filled_at, 0);

	for (page = 0; page < PAGES; page++)
		fill(vm->area, page, OLD);
	ASSERT_EQ(guest_read(vm), 0)
		TH_LOG("exit reason %u", vm->guest.exit_reason);
	/* PVM does so, for a guest without paging. */
	if (!filled(vm)) {
		cow_undo(&self->undo);
		cow_restore(&self->saved);
		SKIP(return, "this KVM emulates the guest without page tables");
	}
	ASSERT_EQ(cow_count_own(&vm->before), 0);
}

FIXTURE_TEARDOWN_PARENT(kvm_mmu)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* Have the guest read the first word of each page, into report. */
static int guest_read(struct vm *vm)
{
	struct kvm_regs regs = {
		.rip = GUEST_READ,
		.rsi = GUEST_AREA,
		.rdi = GUEST_REPORT,
		.rcx = PAGES,
		.rflags = 2,
	};

	memset(vm->report, 0, PAGES * sizeof(*vm->report));
	return cow_guest_run(&vm->guest, &regs);
}

/* Have the guest write the first word of nr pages. */
static int guest_write(struct vm *vm, unsigned int page, unsigned int nr)
{
	struct kvm_regs regs = {
		.rip = GUEST_WRITE,
		.rsi = GUEST_AREA + page * cow_page_size(),
		.rax = value(page, 0, VM),
		.rcx = nr,
		.rflags = 2,
	};

	return cow_guest_run(&vm->guest, &regs);
}

/* The tag of what the guest read in the page, or -1 if it is something else */
static int guest_tag(const struct vm *vm, unsigned int page)
{
	__u32 word = __atomic_load_n(&vm->report[page], __ATOMIC_RELAXED);

	return word == value(page, 0, word >> 24) ? (int)(word >> 24) : -1;
}

static const char *tag_name(int tag)
{
	return tag == OLD ? "the old content" : tag == NEW ? "what we wrote" :
	       tag == VM ? "what the guest wrote" : "garbage";
}

/* The child: idle until it is told to look. */
static int check_snapshot(struct cow_child *self, void *arg)
{
	char *area = arg;
	unsigned int page;

	if (cow_child_send(self, 1) || cow_child_recv(self) != 1)
		return 2;
	for (page = 0; page < PAGES; page++)
		if (tag_of(area, page) != OLD)
			return 1;
	return 0;
}

/*
 * Share the area with a child and have all of it in KVM's page tables. The
 * second read shows that the entries are there, and stay, if nobody has them
 * dropped.
 */
static void share_and_map(struct __test_metadata *_metadata, struct vm *vm)
{
	unsigned int page;
	long long before;
	int tag;

	/* What the fork has to drop: entries that are there, and writable. */
	ASSERT_EQ(guest_read(vm), 0)
		TH_LOG("exit reason %u", vm->guest.exit_reason);
	ASSERT_EQ(cow_child_fork(&child, check_snapshot, vm->area), 0);
	ASSERT_EQ(cow_child_recv(&child), 1);
	ASSERT_EQ(cow_child_settle(&child), 0);
	before = filled(vm);
	ASSERT_EQ(guest_read(vm), 0);
	/* Of shadow page tables, KVM may fill in some entries at once. */
	ASSERT_GT(filled(vm), before);
	before = filled(vm);
	ASSERT_EQ(guest_read(vm), 0);
	ASSERT_EQ(filled(vm), before);
	for (page = 0; page < PAGES; page++) {
		tag = guest_tag(vm, page);
		ASSERT_EQ(tag, OLD)
			TH_LOG("page %u: %s", page, tag_name(tag));
	}
	cow_own_stack();
}

static void check_child(struct __test_metadata *_metadata)
{
	ASSERT_EQ(cow_child_send(&child, 1), 0);
	EXPECT_EQ(cow_child_end(&child), 0)
		TH_LOG("the child sees what was written after the fork");
}

/* When all pages are written upward once, whatever the guest reads meanwhile */
static void expect_ahead(struct __test_metadata *_metadata, const struct vm *vm, int ahead)
{
	EXPECT_GE(cow_copied_ahead(&vm->before),
		  (unsigned long long)PAGES - cow_upward(PAGES, ahead, false).faults);
}

/*
 * The area as the guest sees it: the pages from first on and before end are
 * written, the others not.
 */
static void check_guest(struct __test_metadata *_metadata, struct vm *vm,
			unsigned int first, unsigned int end)
{
	unsigned int page;
	int tag;

	ASSERT_EQ(guest_read(vm), 0);
	for (page = 0; page < PAGES; page++) {
		tag = guest_tag(vm, page);
		ASSERT_EQ(tag, page >= first && page < end ? NEW : OLD)
			TH_LOG("the guest sees %s in page %u after writes to pages %u to %u",
			       tag_name(tag), page, first, end - 1);
	}
}

/* All written, then the guest reads. */
TEST_F_TIMEOUT(kvm_mmu, read_after_all_writes, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int page;

	share_and_map(_metadata, vm);
	for (page = 0; page < PAGES; page++)
		fill(vm->area, page, NEW);
	expect_ahead(_metadata, vm, variant->ahead);
	check_guest(_metadata, vm, 0, PAGES);
	check_child(_metadata);
}

/*
 * The guest reads after every write: also pages that were copied ahead and not
 * written yet. When they are, that takes no fault, so that the guest must have
 * the new page already.
 */
TEST_F_TIMEOUT(kvm_mmu, read_after_each_write, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int page;

	share_and_map(_metadata, vm);
	for (page = 0; page < PAGES; page++) {
		fill(vm->area, page, NEW);
		check_guest(_metadata, vm, 0, page + 1);
	}
	expect_ahead(_metadata, vm, variant->ahead);
	check_child(_metadata);
}

/* Downward: what was not yet written is at the start. */
TEST_F_TIMEOUT(kvm_mmu, read_after_writes_downward, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int page;

	share_and_map(_metadata, vm);
	for (page = PAGES; page-- > 0; ) {
		fill(vm->area, page, NEW);
		check_guest(_metadata, vm, page, PAGES);
	}
	/* A fixed window is upward. */
	if (variant->ahead == COW_ADAPTIVE)
		EXPECT_GT(cow_copied_ahead(&vm->before), 0ULL);
	check_child(_metadata);
}

/* A random order, with windows that have holes */
TEST_F_TIMEOUT(kvm_mmu, read_after_random_writes, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	bool written[PAGES] = {};
	unsigned int page, i;
	__u64 state = 1;
	int tag;

	share_and_map(_metadata, vm);
	for (i = 0; i < PAGES; i++) {
		do {
			page = cow_rand(&state) % PAGES;
		} while (written[page]);
		fill(vm->area, page, NEW);
		written[page] = true;
		ASSERT_EQ(guest_read(vm), 0);
		for (page = 0; page < PAGES; page++) {
			tag = guest_tag(vm, page);
			ASSERT_EQ(tag, written[page] ? NEW : OLD)
				TH_LOG("the guest sees %s in page %u after %u writes",
				       tag_name(tag), page, i + 1);
		}
	}
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&vm->before), 0ULL);
	check_child(_metadata);
}

/* What is stored without a fault, as the page was copied ahead */
TEST_F_TIMEOUT(kvm_mmu, store_without_fault, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int group, page, i, nr;
	long before;
	int tag;

	/* All up to the end of 16 aligned pages, without evidence */
	if (variant->ahead == COW_ADAPTIVE)
		ASSERT_EQ(madvise(vm->area, PAGES * cow_page_size(),
				  MADV_SEQUENTIAL), 0);
	nr = variant->ahead == COW_ADAPTIVE ? COW_ADAPTIVE_MAX : variant->ahead;
	share_and_map(_metadata, vm);
	for (group = 0; group < PAGES; group += GROUP) {
		fill(vm->area, group, NEW);
		/* The first call takes faults of its own. */
		before = cow_minflt();
		before = cow_minflt();
		for (i = 1; i <= nr; i++)
			fill(vm->area, group + i, NEW);
		EXPECT_EQ(cow_minflt(), before);
		ASSERT_EQ(guest_read(vm), 0);
		for (page = 0; page < PAGES; page++) {
			tag = guest_tag(vm, page);
			ASSERT_EQ(tag, page < group + GROUP &&
				  page % GROUP <= nr ? NEW : OLD)
				TH_LOG("the guest sees %s in page %u after page %u",
				       tag_name(tag), page, group);
		}
	}
	check_child(_metadata);
}

/*
 * The guest writes to what we wrote or what was copied ahead: we see it, the
 * child does not.
 */
TEST_F_TIMEOUT(kvm_mmu, guest_writes_after, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int page, group;
	int tag;

	if (variant->ahead == COW_ADAPTIVE)
		ASSERT_EQ(madvise(vm->area, PAGES * cow_page_size(),
				  MADV_SEQUENTIAL), 0);
	share_and_map(_metadata, vm);
	for (group = 0; group < PAGES; group += GROUP) {
		/* This page by us, the others of its window by the guest */
		fill(vm->area, group, NEW);
		ASSERT_EQ(guest_write(vm, group + 1, GROUP - 1), 0);
	}
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&vm->before), 0ULL);
	for (page = 0; page < PAGES; page++) {
		tag = page_words(vm->area, page)[0] >> 24;
		EXPECT_EQ(page_words(vm->area, page)[0],
			  value(page, 0, page % GROUP ? VM : NEW))
			TH_LOG("we see %s in page %u", tag_name(tag), page);
		EXPECT_EQ(tag_from(vm->area, page, 1),
			  page % GROUP ? OLD : NEW)
			TH_LOG("page %u", page);
	}
	/* And back: with entries that the guest may write to. */
	for (page = 0; page < PAGES; page++)
		fill(vm->area, page, NEW);
	check_guest(_metadata, vm, 0, PAGES);
	check_child(_metadata);
}

/*
 * The guest writes to what is shared: KVM takes the fault for it, which may copy
 * ahead as any other. Before, it could write to these pages, so that the fork
 * had to take that away.
 */
TEST_F_TIMEOUT(kvm_mmu, guest_writes_first, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int page;

	ASSERT_EQ(guest_write(vm, 0, PAGES), 0);
	for (page = 0; page < PAGES; page++)
		fill(vm->area, page, OLD);
	share_and_map(_metadata, vm);
	ASSERT_EQ(guest_write(vm, 0, PAGES), 0);
	for (page = 0; page < PAGES; page++) {
		EXPECT_EQ(page_words(vm->area, page)[0], value(page, 0, VM))
			TH_LOG("page %u", page);
		EXPECT_EQ(tag_from(vm->area, page, 1), OLD)
			TH_LOG("page %u", page);
	}
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&vm->before), 0ULL);
	for (page = 0; page < PAGES; page++)
		fill(vm->area, page, NEW);
	check_guest(_metadata, vm, 0, PAGES);
	check_child(_metadata);
}

/* The child has exited: pages are reused, by faults and ahead of them. */
TEST_F_TIMEOUT(kvm_mmu, child_is_gone, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	struct cow_stats now, delta;
	unsigned int page;

	ASSERT_EQ(cow_pin_cpu(), 0);
	share_and_map(_metadata, vm);
	check_child(_metadata);
	ASSERT_EQ(cow_drain_lru(), 0);
	/* The upper half of each group by us, the lower half by the guest */
	for (page = GROUP / 2; page < PAGES; page++)
		if (page % GROUP >= GROUP / 2)
			fill(vm->area, page, NEW);
	ASSERT_EQ(cow_count_own(&now), 0);
	cow_stats_delta(&delta, &vm->before, &now);
	if (variant->ahead == COW_ADAPTIVE && !variant->folios)
		EXPECT_GT(delta.v[COW_REUSE_AHEAD], 0ULL);
	for (page = 0; page < PAGES; page += GROUP)
		ASSERT_EQ(guest_write(vm, page, GROUP / 2), 0);
	ASSERT_EQ(guest_read(vm), 0);
	for (page = 0; page < PAGES; page++) {
		bool ours = page % GROUP >= GROUP / 2;

		EXPECT_EQ(guest_tag(vm, page), ours ? NEW : VM)
			TH_LOG("page %u", page);
		EXPECT_EQ(page_words(vm->area, page)[0],
			  value(page, 0, ours ? NEW : VM))
			TH_LOG("page %u", page);
		EXPECT_EQ(tag_from(vm->area, page, 1), ours ? NEW : OLD)
			TH_LOG("page %u", page);
	}
}

/*
 * The guest runs while we write
 */

struct race {
	struct vm *vm;
	unsigned int written;	/* pages, so far */
	unsigned int runs;
	int err;		/* what ended the thread */
	unsigned int page;	/* where it saw something wrong */
};

static void *read_all_the_time(void *arg)
{
	struct race *race = arg;
	unsigned int written, page;
	int tag;

	do {
		written = __atomic_load_n(&race->written, __ATOMIC_ACQUIRE);
		race->err = -guest_read(race->vm);
		if (race->err)
			break;
		/* Those after that may be either. */
		for (page = 0; page < PAGES; page++) {
			tag = guest_tag(race->vm, page);
			if (tag == NEW || (tag == OLD && page >= written))
				continue;
			race->page = page;
			race->err = tag == OLD ? ESTALE : EILSEQ;
			goto out;
		}
		__atomic_add_fetch(&race->runs, 1, __ATOMIC_RELAXED);
	} while (written < PAGES);
out:
	/* Nobody needs to wait for another run. */
	__atomic_store_n(&race->runs, ~0U, __ATOMIC_RELAXED);
	return NULL;
}

static struct race *new_race(struct vm *vm)
{
	struct race *race;

	/* Shared: the pages are no part of the test. */
	race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (race == MAP_FAILED)
		return NULL;
	race->vm = vm;
	return race;
}

TEST_F_TIMEOUT(kvm_mmu, read_while_writing, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int page, round, runs;
	struct race *race;
	pthread_t thread;

	for (round = 0; round < ROUNDS; round++) {
		for (page = 0; page < PAGES; page++)
			fill(vm->area, page, OLD);
		share_and_map(_metadata, vm);
		race = new_race(vm);
		ASSERT_NE(race, NULL);
		ASSERT_EQ(pthread_create(&thread, NULL, read_all_the_time,
					 race), 0);
		for (page = 0; page < PAGES; page++) {
			runs = __atomic_load_n(&race->runs, __ATOMIC_RELAXED);
			fill(vm->area, page, NEW);
			__atomic_store_n(&race->written, page + 1,
					 __ATOMIC_RELEASE);
			/* Not all of them before the guest has read again */
			while (page % 8 == 7 && runs ==
			       __atomic_load_n(&race->runs, __ATOMIC_RELAXED) &&
			       runs != ~0U)
				sched_yield();
		}
		ASSERT_EQ(pthread_join(thread, NULL), 0);
		ASSERT_EQ(race->err, 0)
			TH_LOG("the guest, page %u: %s", race->page,
			       strerror(race->err));
		munmap(race, sizeof(*race));
		check_child(_metadata);
	}
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&vm->before), 0ULL);
}

static void *write_all(void *arg)
{
	struct race *race = arg;

	/* With one CPU it is no race, but must work all the same. */
	cow_leave_cpu();
	__atomic_store_n(&race->runs, 1, __ATOMIC_RELEASE);
	race->err = -guest_write(race->vm, 0, PAGES);
	return NULL;
}

/*
 * Both write to the same pages, to different words, and both take faults which
 * copy them: no write gets lost in a page that has just been replaced.
 */
TEST_F_TIMEOUT(kvm_mmu, write_while_writing, TEST_TIMEOUT)
{
	struct vm *vm = &self->vm;
	unsigned int page, round;
	struct race *race;
	pthread_t thread;

	for (round = 0; round < ROUNDS; round++) {
		for (page = 0; page < PAGES; page++)
			fill(vm->area, page, OLD);
		share_and_map(_metadata, vm);
		race = new_race(vm);
		ASSERT_NE(race, NULL);
		ASSERT_EQ(pthread_create(&thread, NULL, write_all, race), 0);
		while (!__atomic_load_n(&race->runs, __ATOMIC_ACQUIRE))
			sched_yield();
		/* In the other direction, each second time */
		for (page = 0; page < PAGES; page++) {
			unsigned int i = round % 2 ? PAGES - 1 - page : page;

			__atomic_store_n(&page_words(vm->area, i)[1],
					 value(i, 1, NEW), __ATOMIC_RELAXED);
		}
		ASSERT_EQ(pthread_join(thread, NULL), 0);
		ASSERT_EQ(race->err, 0)
			TH_LOG("exit reason %u", vm->guest.exit_reason);
		munmap(race, sizeof(*race));
		for (page = 0; page < PAGES; page++) {
			__u32 *p = page_words(vm->area, page);

			ASSERT_EQ(p[0], value(page, 0, VM))
				TH_LOG("the guest's write to page %u is lost",
				       page);
			ASSERT_EQ(p[1], value(page, 1, NEW))
				TH_LOG("our write to page %u is lost", page);
			ASSERT_EQ(tag_from(vm->area, page, 2), OLD)
				TH_LOG("page %u", page);
		}
		check_child(_metadata);
	}
	if (variant->ahead)
		EXPECT_GT(cow_copied_ahead(&vm->before), 0ULL);
}

#else /* !__x86_64__ */

TEST(kvm_mmu)
{
	SKIP(return, "the guest's program is for x86");
}

#endif

TEST_HARNESS_MAIN
