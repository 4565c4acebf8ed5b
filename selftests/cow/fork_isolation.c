// SPDX-License-Identifier: GPL-2.0
/*
 * After fork() parent and children change what they share, in every way that
 * makes the kernel copy a page; after each step every byte of every process
 * must be what that process wrote or inherited, nothing else.
 *
 * A test is a table of steps: which process does what. A model in shared memory
 * knows what each process must see: one tag for each 512 byte sector of each
 * page. A write changes one sector only, so that a page that was not copied
 * whole shows in the other seven.
 *
 * The environment variable COW_SEED repeats the run with that seed.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"
#include "../../../../mm/gup_test.h"

#define MAX_PROCS	6
#define MAX_PAGES	1024
#define SECTORS		8
#define MAX_PIPE	8

/* How often to look whether the process that has to answer is still alive */
#define LOOK_MS		100

/* Which pages a step writes to ... */
enum {
	ALL,
	EVEN,
	ODD,
	RUNS,		/* runs of 1 to 24 pages with gaps */
	RANDOM,		/* one in three */
	SPARSE,		/* one in sixteen */
	LAST,		/* the last page of each VMA */
	EDGES,		/* the first and last two pages of each VMA */
	BOUNDARY,	/* three pages either side of a page table's end */
	SEL_MASK = 0xff,
	/* ... in which order (upward if nothing is said) ... */
	DOWN = 0x100,
	SHUFFLED = 0x200,
	/* ... and how. */
	WHOLE = 0x400,	/* the whole page instead of one sector */
	BY_KERNEL = 0x800,	/* read(2) into the page */
};

struct step {
	int proc;
	int (*op)(int me, long a, long b);
	long a, b;
	/* Do not verify after this step: reading changes what comes next. */
	bool blind;
};

/* Not a process, but what else has a copy or a reference */
#define IN_PIPE		-1
#define IN_PINNED	-2

struct bad {
	int proc;
	int page;
	unsigned int offset;
	__u64 want, got;
};

/* What all processes of a test share (MAP_SHARED). Process 0 is the test. */
struct world {
	__u32 model[MAX_PROCS][MAX_PAGES][SECTORS];
	char *page[MAX_PROCS][MAX_PAGES];	/* NULL: not mapped any more */
	bool readonly[MAX_PROCS][MAX_PAGES];
	bool vma_first[MAX_PAGES];
	bool vma_last[MAX_PAGES];
	__u32 key[MAX_PAGES];	/* pages of one key have one content */
	int nr_pages;
	__u32 tag;		/* of the next write; 0 means zeroes */
	__u32 backing;		/* tag of what MADV_DONTNEED brings back */
	__u64 seed;
	size_t page_size, pmd_size;

	bool alive[MAX_PROCS];
	int parent[MAX_PROCS];
	pid_t pid[MAX_PROCS];
	int to[MAX_PROCS][2], from[MAX_PROCS][2];
	struct step cmd[MAX_PROCS];
	int result[MAX_PROCS];

	int pipe[2];
	int pipe_first, pipe_len;
	__u32 pipe_model[MAX_PIPE][SECTORS];
	int gup_fd;

	struct bad bad;
	char msg[512];
};

static struct world *w;

static unsigned int sector_words(void)
{
	return w->page_size / SECTORS / sizeof(__u64);
}

static __u64 word_of(__u32 tag, __u32 key, unsigned int word)
{
	__u64 base = ((__u64)tag << 32) ^ (key * 0x9e3779b97f4a7c15ULL);

	return tag ? (base + word) * 0xd1342543de82ef95ULL : 0;
}

static void put_sector(void *dst, __u32 tag, int page, int sector)
{
	unsigned int i, n = sector_words();
	__u64 *p = dst;

	for (i = 0; i < n; i++)
		p[i] = word_of(tag, w->key[page], sector * n + i);
}

/* 0, or -EBADMSG with w->bad filled in */
static int check_sector(const void *src, __u32 tag, int proc, int page,
			int sector)
{
	unsigned int i, n = sector_words();
	const __u64 *p = src;

	for (i = 0; i < n; i++) {
		__u64 want = word_of(tag, w->key[page], sector * n + i);

		if (p[i] == want)
			continue;
		w->bad.proc = proc;
		w->bad.page = page;
		w->bad.offset = (sector * n + i) * sizeof(__u64);
		w->bad.want = want;
		w->bad.got = p[i];
		return -EBADMSG;
	}
	return 0;
}

static int check_page(const char *src, __u32 *tags, int proc, int page)
{
	size_t size = w->page_size / SECTORS;
	int s, ret;

	for (s = 0; s < SECTORS; s++) {
		ret = check_sector(src + s * size, tags[s], proc, page, s);
		if (ret)
			return ret;
	}
	return 0;
}

/*
 * What a process can do. me is its number; 0 or a negative errno.
 */

static int op_verify(int me, long a, long b)
{
	int i, ret;

	for (i = 0; i < w->nr_pages; i++) {
		if (!w->page[me][i])
			continue;
		ret = check_page(w->page[me][i], w->model[me][i], me, i);
		if (ret)
			return ret;
	}
	return 0;
}

static bool selected(int me, int i, int sel, __u64 *rnd, int *run)
{
	unsigned long in_table;

	switch (sel) {
	case ALL:
		return true;
	case EVEN:
		return !(i & 1);
	case ODD:
		return i & 1;
	case RUNS:
		/* run > 0: pages left of a run; < 0: of a gap */
		if (!*run)
			*run = cow_rand(rnd) % 24 + 1;
		if (*run > 0) {
			if (!--*run)
				*run = -(int)(cow_rand(rnd) % 5 + 1);
			return true;
		}
		++*run;
		return false;
	case RANDOM:
		return !(cow_rand(rnd) % 3);
	case SPARSE:
		/* One of every 16, so that there always is one. */
		if (!(i % 16))
			*run = cow_rand(rnd) % 16;
		return i % 16 == *run;
	case LAST:
		return w->vma_last[i];
	case EDGES:
		return w->vma_first[i] || w->vma_last[i] ||
		       (i && w->vma_first[i - 1]) ||
		       (i + 1 < w->nr_pages && w->vma_last[i + 1]);
	case BOUNDARY:
		in_table = ((unsigned long)w->page[me][i] &
			    (w->pmd_size - 1)) / w->page_size;
		return in_table < 3 || in_table >= w->pmd_size / w->page_size - 3;
	}
	return false;
}

static int write_sector(char *dst, __u32 tag, int page, int sector, bool kernel)
{
	static __u64 buf[65536 / SECTORS / sizeof(__u64)];
	size_t size = w->page_size / SECTORS;
	int fds[2], ret = 0;

	if (!kernel) {
		put_sector(dst, tag, page, sector);
		return 0;
	}
	put_sector(buf, tag, page, sector);
	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	if (write(fds[1], buf, size) != (ssize_t)size ||
	    read(fds[0], dst, size) != (ssize_t)size)
		ret = -EIO;
	close(fds[0]);
	close(fds[1]);
	return ret;
}

/* a: what, in which order and how; b: not used */
static int op_write(int me, long a, long b)
{
	__u64 rnd = w->seed + w->tag * 7919ULL;
	size_t size = w->page_size / SECTORS;
	int list[MAX_PAGES], n = 0, run = 0;
	int i, j, k, s, tmp, ret;

	for (i = 0; i < w->nr_pages; i++) {
		/* Ask also for the others: the pattern must not depend on it */
		bool hit = selected(me, i, a & SEL_MASK, &rnd, &run);

		if (hit && w->page[me][i] && !w->readonly[me][i])
			list[n++] = i;
	}
	/* Each step must write to at least one page. */
	if (!n)
		return -ENODATA;
	for (k = 0; k < n; k++) {
		if (a & DOWN)
			i = n - 1 - k;
		else
			i = k;
		if (a & SHUFFLED) {
			j = k + cow_rand(&rnd) % (n - k);
			tmp = list[k];
			list[k] = list[j];
			list[j] = tmp;
			i = k;
		}
		i = list[i];
		for (s = 0; s < SECTORS; s++) {
			if (!(a & WHOLE) && s != (int)((w->tag + i) % SECTORS))
				continue;
			ret = write_sector(w->page[me][i] + s * size, w->tag, i,
					   s, a & BY_KERNEL);
			if (ret)
				return ret;
			w->model[me][i][s] = w->tag;
		}
	}
	return 0;
}

/* a: which process to write to, through /proc/PID/mem; b: as a of op_write() */
static int op_write_other(int me, long a, long b)
{
	static __u64 buf[65536 / SECTORS / sizeof(__u64)];
	size_t size = w->page_size / SECTORS;
	__u64 rnd = w->seed + w->tag;
	int i, s, fd, run = 0, ret = -ENODATA;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/mem", w->pid[a]);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (i = 0; i < w->nr_pages; i++) {
		if (!selected(a, i, b & SEL_MASK, &rnd, &run))
			continue;
		s = (w->tag + i) % SECTORS;
		put_sector(buf, w->tag, i, s);
		if (pwrite(fd, buf, size, (unsigned long)w->page[a][i] +
			   s * size) != (ssize_t)size) {
			ret = -EIO;
			break;
		}
		w->model[a][i][s] = w->tag;
		ret = 0;
	}
	close(fd);
	return ret;
}

static void serve(int me)
{
	char byte;

	for (;;) {
		struct step *cmd = &w->cmd[me];

		if (read(w->to[me][0], &byte, 1) != 1)
			_exit(1);
		w->result[me] = cmd->op(me, cmd->a, cmd->b);
		if (write(w->from[me][1], &byte, 1) != 1)
			_exit(1);
	}
}

/* a: the number of the new process */
static int op_fork(int me, long a, long b)
{
	pid_t pid, parent = getpid();

	memcpy(w->model[a], w->model[me], sizeof(w->model[a]));
	memcpy(w->page[a], w->page[me], sizeof(w->page[a]));
	memcpy(w->readonly[a], w->readonly[me], sizeof(w->readonly[a]));
	pid = fork();
	if (pid < 0)
		return -errno;
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		serve(a);
	}
	w->pid[a] = pid;
	w->parent[a] = me;
	w->alive[a] = true;
	return 0;
}

static int op_exit(int me, long a, long b)
{
	_exit(0);
}

/* a: the child that shall exit */
static int op_end(int me, long a, long b)
{
	int status;

	w->cmd[a].op = op_exit;
	if (write(w->to[a][1], "", 1) != 1)
		return -EIO;
	if (waitpid(w->pid[a], &status, 0) != w->pid[a])
		return -errno;
	w->alive[a] = false;
	return status ? -ECHILD : 0;
}

/* a: first page, b: how many; they may be in several VMAs, one by one then */
static int op_dontneed(int me, long a, long b)
{
	int i, s;

	for (i = a; i < a + b; i++) {
		if (madvise(w->page[me][i], w->page_size, MADV_DONTNEED))
			return -errno;
		for (s = 0; s < SECTORS; s++)
			w->model[me][i][s] = w->backing;
	}
	return 0;
}

static int op_munmap(int me, long a, long b)
{
	int i;

	if (munmap(w->page[me][a], b * w->page_size))
		return -errno;
	for (i = a; i < a + b; i++)
		w->page[me][i] = NULL;
	return 0;
}

/* Map new memory where op_munmap() made a hole, and use it. */
static int op_refill(int me, long a, long b)
{
	char *at = w->page[me][a - 1] + w->page_size;
	int i, s;

	if (mmap(at, b * w->page_size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	madvise(at, b * w->page_size, MADV_NOHUGEPAGE);
	for (i = a; i < a + b; i++) {
		w->page[me][i] = at + (i - a) * w->page_size;
		for (s = 0; s < SECTORS; s++)
			w->model[me][i][s] = 0;
	}
	return 0;
}

static int op_mremap(int me, long a, long b)
{
	char *to, *p;
	int i;

	to = cow_map(b * w->page_size, 0);
	if (!to)
		return -ENOMEM;
	p = mremap(w->page[me][a], b * w->page_size, b * w->page_size,
		   MREMAP_MAYMOVE | MREMAP_FIXED, to);
	if (p != to)
		return -errno;
	for (i = a; i < a + b; i++)
		w->page[me][i] = to + (i - a) * w->page_size;
	return 0;
}

static int protect(int me, long a, long b, bool readonly)
{
	int i;

	if (mprotect(w->page[me][a], b * w->page_size,
		     readonly ? PROT_READ : PROT_READ | PROT_WRITE))
		return -errno;
	for (i = a; i < a + b; i++)
		w->readonly[me][i] = readonly;
	return 0;
}

static int op_readonly(int me, long a, long b)
{
	return protect(me, a, b, true);
}

static int op_writable(int me, long a, long b)
{
	return protect(me, a, b, false);
}

static int op_pageout(int me, long a, long b)
{
	return madvise(w->page[me][a], b * w->page_size, MADV_PAGEOUT) ?
	       -errno : 0;
}

/* Put references to pages into the pipe. */
static int op_vmsplice(int me, long a, long b)
{
	struct iovec iov = {
		.iov_base = w->page[me][a],
		.iov_len = b * w->page_size,
	};
	int i;

	for (i = 0; i < b; i++)
		memcpy(w->pipe_model[i], w->model[me][a + i],
		       sizeof(w->pipe_model[i]));
	w->pipe_first = a;
	w->pipe_len = b;
	if (vmsplice(w->pipe[1], &iov, 1, 0) != (ssize_t)iov.iov_len)
		return -EIO;
	return 0;
}

/* The pipe delivers what the pages held at the time of vmsplice(). */
static int op_pipe_check(int me, long a, long b)
{
	char *buf;
	size_t got;
	ssize_t n;
	int i, ret = 0;

	buf = malloc(w->page_size);
	if (!buf)
		return -ENOMEM;
	for (i = 0; i < w->pipe_len && !ret; i++) {
		for (got = 0; got < w->page_size; got += n) {
			n = read(w->pipe[0], buf + got, w->page_size - got);
			if (n <= 0) {
				free(buf);
				return -EIO;
			}
		}
		ret = check_page(buf, w->pipe_model[i], IN_PIPE,
				 w->pipe_first + i);
	}
	free(buf);
	return ret;
}

static int pin(int me, long a, long b, __u32 flags)
{
	struct pin_longterm_test args = {
		.addr = (unsigned long)w->page[me][a],
		.size = b * w->page_size,
		.flags = flags,
	};

	return ioctl(w->gup_fd, PIN_LONGTERM_TEST_START, &args) ? -errno : 0;
}

static int op_pin_read(int me, long a, long b)
{
	return pin(me, a, b, 0);
}

/* Without page faults, if all pages may be pinned as they are */
static int op_pin_fast(int me, long a, long b)
{
	return pin(me, a, b, PIN_LONGTERM_TEST_FLAG_USE_FAST);
}

static int op_pin_write(int me, long a, long b)
{
	return pin(me, a, b, PIN_LONGTERM_TEST_FLAG_USE_WRITE);
}

/* The device sees the same bytes as the process that pinned them. */
static int op_pin_check(int me, long a, long b)
{
	char *buf;
	__u64 addr;
	int i, ret = 0;

	buf = malloc(b * w->page_size);
	if (!buf)
		return -ENOMEM;
	addr = (unsigned long)buf;
	if (ioctl(w->gup_fd, PIN_LONGTERM_TEST_READ, &addr))
		ret = -errno;
	for (i = 0; i < b && !ret; i++)
		ret = check_page(buf + i * w->page_size, w->model[me][a + i],
				 IN_PINNED, a + i);
	free(buf);
	return ret;
}

static int op_unpin(int me, long a, long b)
{
	return ioctl(w->gup_fd, PIN_LONGTERM_TEST_STOP) ? -errno : 0;
}

/* Change byte b of page a behind the model's back: the check must find it. */
static int op_spoil(int me, long a, long b)
{
	w->page[me][a][b] ^= 1;
	return 0;
}

/*
 * The test's side
 */

static int run(int proc, int (*op)(int me, long a, long b), long a, long b)
{
	struct pollfd fd = { .fd = w->from[proc][0], .events = POLLIN };
	bool ended = false;
	char byte = 0;
	int ret;

	if (!proc)
		return op(0, a, b);
	if (!w->alive[proc])
		return -ESRCH;
	w->cmd[proc].op = op;
	w->cmd[proc].a = a;
	w->cmd[proc].b = b;
	if (write(w->to[proc][1], &byte, 1) != 1)
		return -errno;
	/* No time limit. Its answer stays in the pipe when it exits. */
	do {
		ended = cow_task_ended(w->pid[proc]);
		ret = poll(&fd, 1, ended ? 0 : LOOK_MS);
	} while (ret <= 0 && !ended);
	if (ret != 1)
		return -EIO;
	if (read(w->from[proc][0], &byte, 1) != 1)
		return -EIO;
	return w->result[proc];
}

static bool failed(int step, int proc, const char *what, int ret)
{
	struct bad *bad = &w->bad;
	const char *where = "its memory";
	char more[160] = "";

	if (bad->proc == IN_PIPE)
		where = "the pipe";
	else if (bad->proc == IN_PINNED)
		where = "its pinned memory";
	if (ret == -EBADMSG)
		snprintf(more, sizeof(more),
			 ": %s, page %d of %d, byte %u: want %#llx, got %#llx",
			 where, bad->page, w->nr_pages, bad->offset, bad->want,
			 bad->got);
	snprintf(w->msg, sizeof(w->msg),
		 "step %d, process %d: %s: %s%s; COW_SEED=%llu", step, proc,
		 what, strerror(-ret), more, w->seed);
	return false;
}

/* All steps, with a check of every process after each. False: see w->msg */
static bool play(const struct step *steps, int nr)
{
	int i, proc, ret;

	for (i = 0; i < nr; i++) {
		const struct step *s = &steps[i];

		w->tag++;
		ret = run(s->proc, s->op, s->a, s->b);
		if (ret)
			return failed(i, s->proc, "the step itself", ret);
		if (s->blind)
			continue;
		for (proc = 0; proc < MAX_PROCS; proc++) {
			if (!w->alive[proc])
				continue;
			ret = run(proc, op_verify, 0, 0);
			if (ret)
				return failed(i, proc, "verify", ret);
		}
	}
	/* The others must exit with status 0; the youngest may be a grandchild. */
	for (proc = MAX_PROCS - 1; proc > 0; proc--) {
		if (!w->alive[proc])
			continue;
		ret = run(w->parent[proc], op_end, proc, 0);
		if (ret)
			return failed(nr, proc, "end", ret);
	}
	ret = op_verify(0, 0, 0);
	if (ret)
		return failed(nr, 0, "verify at the end", ret);
	return true;
}

/* Pages of one VMA, or of the next part of it, join the model. */
static void add_pages(char *base, int nr)
{
	int i, n = w->nr_pages;

	for (i = 0; i < nr; i++) {
		w->page[0][n + i] = base + i * w->page_size;
		w->key[n + i] = n + i;
	}
	w->vma_first[n] = true;
	w->vma_last[n + nr - 1] = true;
	w->nr_pages += nr;
}

static void fill(int first, int nr)
{
	size_t size = w->page_size / SECTORS;
	int i, s;

	w->tag++;
	for (i = first; i < first + nr; i++) {
		for (s = 0; s < SECTORS; s++) {
			put_sector(w->page[0][i] + s * size, w->tag, i, s);
			w->model[0][i][s] = w->tag;
		}
	}
}

/* The usual memory: nr pages in a VMA of their own, written. */
static bool simple_region(int nr)
{
	char *p = cow_map(nr * w->page_size, 0);

	if (!p)
		return false;
	add_pages(p, nr);
	fill(0, nr);
	return true;
}

FIXTURE(fork_isolation)
{
	struct cow_settings saved;
	struct cow_undo undo;
};

FIXTURE_VARIANT(fork_isolation)
{
	int ahead;
	bool folios;
};

FIXTURE_VARIANT_ADD(fork_isolation, plain) { .ahead = COW_PLAIN };
FIXTURE_VARIANT_ADD(fork_isolation, ahead_1) { .ahead = 1 };
FIXTURE_VARIANT_ADD(fork_isolation, ahead_15) { .ahead = 15 };
FIXTURE_VARIANT_ADD(fork_isolation, adaptive) { .ahead = COW_ADAPTIVE };
FIXTURE_VARIANT_ADD(fork_isolation, adaptive_folios) { .ahead = COW_ADAPTIVE, .folios = true };

FIXTURE_SETUP(fork_isolation)
{
	const char *reason;
	int i;

	reason = cow_setup_folios(&self->saved, &self->undo, variant->ahead,
				  variant->folios, COW_ANY_KERNEL);
	if (reason)
		SKIP(return, "%s", reason);
	cow_map_hugepage = variant->folios;

	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, w);
	w->page_size = cow_page_size();
	w->pmd_size = cow_pmd_size();
	w->gup_fd = -1;
	w->alive[0] = true;
	w->pid[0] = getpid();
	w->seed = cow_seed();
	for (i = 1; i < MAX_PROCS; i++) {
		ASSERT_EQ(0, pipe2(w->to[i], O_CLOEXEC));
		ASSERT_EQ(0, pipe2(w->from[i], O_CLOEXEC));
	}
}

FIXTURE_TEARDOWN_PARENT(fork_isolation)
{
	cow_undo(&self->undo);
	cow_restore(&self->saved);
}

/* What most tests do with their memory: two children, every way to write. */
static const struct step usual[] = {
	{ 0, op_fork, 1 },
	{ 0, op_write, EVEN },
	{ 1, op_write, ODD },
	{ 0, op_fork, 2 },
	{ 2, op_write, RUNS },
	{ 0, op_write, RANDOM | SHUFFLED },
	{ 1, op_write, EDGES | DOWN },
	{ 0, op_write, ALL },
	{ 2, op_write, ALL | DOWN | WHOLE },
	{ 0, op_end, 2 },
	{ 0, op_write, ALL | DOWN },
	{ 1, op_write, ALL | WHOLE },
};

TEST_F_TIMEOUT(fork_isolation, alternating_pages, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, EVEN },
		{ 1, op_write, EVEN },
		{ 1, op_write, ODD | DOWN },
		{ 0, op_write, ODD | DOWN },
		/* and now over what may have been copied ahead */
		{ 0, op_write, ALL },
		{ 1, op_write, ALL | WHOLE },
		{ 0, op_fork, 2 },
		{ 2, op_write, ODD },
		{ 0, op_write, ODD },
		{ 2, op_write, EVEN },
		{ 0, op_write, EVEN },
	};

	ASSERT_TRUE(simple_region(67));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

/* Would the others notice? */
TEST_F_TIMEOUT(fork_isolation, wrong_byte_is_found, TEST_TIMEOUT)
{
	static const struct step spoiled[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, EVEN },
		{ 1, op_spoil, 12, 3001 },
		{ 0, op_write, ODD },
	};
	static const struct step lost_write[] = { { 0, op_write, EVEN, .blind = true } };

	ASSERT_TRUE(simple_region(16));
	ASSERT_FALSE(play(spoiled, ARRAY_SIZE(spoiled)));
	EXPECT_EQ(1, w->bad.proc);
	EXPECT_EQ(12, w->bad.page);
	EXPECT_EQ(3000, w->bad.offset);

	ASSERT_EQ(0, run(0, op_end, 1, 0));
	w->tag++;
	w->model[0][15][0] = w->tag;
	ASSERT_FALSE(play(lost_write, ARRAY_SIZE(lost_write)));
	EXPECT_EQ(0, w->bad.proc);
	EXPECT_EQ(15, w->bad.page);
}

TEST_F_TIMEOUT(fork_isolation, runs, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, RUNS },
		{ 1, op_write, RUNS },
		{ 1, op_write, RUNS | DOWN },
		{ 0, op_write, RUNS | DOWN },
		{ 0, op_fork, 2 },
		{ 2, op_write, RUNS | WHOLE },
		{ 0, op_write, RUNS | WHOLE },
		{ 1, op_write, RUNS },
	};
	struct cow_stats before, after;

	ASSERT_TRUE(simple_region(160));
	ASSERT_EQ(0, cow_count(&before));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
	ASSERT_EQ(0, cow_count(&after));

	/* Otherwise pre-copy was not tested. */
	EXPECT_EQ(variant->ahead != 0,
		  after.v[COW_ATTEMPTS] > before.v[COW_ATTEMPTS]);
	EXPECT_EQ(variant->ahead != 0,
		  after.v[COW_SUCCESS] > before.v[COW_SUCCESS]);
}

TEST_F_TIMEOUT(fork_isolation, random_pages, TEST_TIMEOUT)
{
	struct step steps[40] = { { 0, op_fork, 1 }, { 1, op_fork, 2 } };
	static const int how[] = {
		RANDOM, RANDOM | DOWN, RANDOM | SHUFFLED, SPARSE | SHUFFLED,
		RUNS, RANDOM | WHOLE, RUNS | SHUFFLED,
	};
	__u64 rnd = w->seed;
	size_t i;

	for (i = 2; i < ARRAY_SIZE(steps); i++) {
		steps[i].proc = cow_rand(&rnd) % 3;
		steps[i].op = op_write;
		steps[i].a = how[cow_rand(&rnd) % ARRAY_SIZE(how)];
	}
	ASSERT_TRUE(simple_region(128));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, last_page_of_vma, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, LAST },
		{ 1, op_write, LAST },
		{ 0, op_fork, 2 },
		{ 2, op_write, EDGES },
		{ 0, op_write, EDGES | DOWN },
		{ 1, op_write, EDGES | WHOLE },
		{ 0, op_fork, 3 },
		{ 3, op_write, ALL },
		{ 0, op_write, ALL },
	};
	/* From a VMA of a single page to one longer than any window */
	static const int sizes[] = { 1, 2, 3, 15, 16, 17, 24, 31, 32, 33 };
	int first = 0;
	size_t i;
	char *p;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		p = cow_map(sizes[i] * w->page_size, 0);
		ASSERT_NE(NULL, p);
		add_pages(p, sizes[i]);
		fill(first, sizes[i]);
		first += sizes[i];
	}
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, pmd_boundary, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, BOUNDARY },
		{ 1, op_write, BOUNDARY | DOWN },
		{ 0, op_fork, 2 },
		{ 2, op_write, BOUNDARY | WHOLE },
		{ 0, op_write, BOUNDARY | DOWN },
		{ 0, op_fork, 3 },
		{ 3, op_write, ALL },
		{ 0, op_write, RUNS },
		{ 1, op_write, ALL | DOWN },
	};
	char *p;

	/* Two whole page tables, 40 pages either side of where they meet */
	p = cow_map(2 * w->pmd_size, w->pmd_size);
	ASSERT_NE(NULL, p);
	add_pages(p + w->pmd_size - 40 * w->page_size, 80);
	fill(0, 80);
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, neighbouring_vmas, TEST_TIMEOUT)
{
	const int each = 12;
	size_t len = each * w->page_size;
	char *p, *v;
	int i;

	/* One range without gaps, each VMA different from its neighbours */
	p = cow_map(6 * len, 0);
	ASSERT_NE(NULL, p);
	for (i = 0; i < 6; i++)
		add_pages(p + i * len, each);
	fill(0, 6 * each);

	v = p + len;
	ASSERT_EQ(0, madvise(v, len, MADV_RANDOM));
	v += len;
	ASSERT_EQ(0, op_readonly(0, 2 * each, each));
	v += len;
	ASSERT_EQ(0, madvise(v, len, MADV_DONTDUMP));
	v += len;
	ASSERT_EQ(0, madvise(v, len, MADV_SEQUENTIAL));
	ASSERT_TRUE(play(usual, ARRAY_SIZE(usual))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, several_children, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_fork, 2 },
		{ 0, op_fork, 3 },
		{ 0, op_fork, 4 },
		{ 1, op_write, EVEN },
		{ 2, op_write, ODD | DOWN },
		{ 0, op_write, RUNS },
		{ 3, op_write, RANDOM | SHUFFLED },
		{ 0, op_end, 2 },
		{ 4, op_write, ALL },
		{ 0, op_write, ALL | DOWN },
		{ 1, op_write, ALL },
		{ 0, op_end, 4 },
		{ 0, op_end, 1 },
		{ 3, op_write, ALL },
		{ 0, op_write, ALL },
	};

	ASSERT_TRUE(simple_region(64));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, grandchildren, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 1, op_write, EVEN },
		{ 1, op_fork, 2 },
		{ 2, op_write, RUNS },
		{ 0, op_write, ODD },
		{ 2, op_fork, 3 },
		{ 1, op_write, RANDOM },
		{ 3, op_write, ALL },
		{ 2, op_write, ALL | DOWN },
		{ 2, op_end, 3 },
		{ 2, op_write, RUNS | WHOLE },
		{ 0, op_write, ALL },
		{ 1, op_end, 2 },
		{ 1, op_write, ALL },
	};

	ASSERT_TRUE(simple_region(64));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, writes_by_the_kernel, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, RUNS | BY_KERNEL },
		{ 1, op_write, ALL | BY_KERNEL },
		{ 0, op_fork, 2 },
		{ 2, op_write, EVEN | DOWN | BY_KERNEL },
		{ 0, op_write, ALL },
		{ 1, op_write, EDGES | BY_KERNEL },
	};

	ASSERT_TRUE(simple_region(48));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, writes_from_outside, TEST_TIMEOUT)
{
	int err = cow_try_child_memory();
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_fork, 2 },
		{ 0, op_write_other, 1, RUNS },
		{ 0, op_write_other, 2, EVEN },
		{ 1, op_write, ALL },
		{ 0, op_write_other, 2, ALL },
		{ 0, op_write, ODD },
		{ 0, op_write_other, 1, EVEN },
		{ 0, op_write, ALL },
	};

	if (err)
		SKIP(return, "writing to a child's memory: %s", strerror(err));
	ASSERT_TRUE(simple_region(48));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, after_mremap, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_mremap, 0, 24 },
		{ 0, op_fork, 1 },
		{ 0, op_write, EVEN },
		/* each of them moves what is still shared */
		{ 0, op_mremap, 10, 14 },
		{ 1, op_mremap, 40, 20 },
		{ 0, op_write, RUNS },
		{ 1, op_write, RUNS },
		{ 0, op_fork, 2 },
		{ 2, op_mremap, 24, 16 },
		{ 2, op_write, ALL },
		{ 0, op_write, ALL | DOWN },
		{ 1, op_write, ALL },
	};

	ASSERT_TRUE(simple_region(64));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, after_mprotect, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_readonly, 20, 20 },
		{ 1, op_readonly, 0, 64 },
		{ 0, op_write, ALL },
		{ 1, op_writable, 0, 64 },
		{ 1, op_write, RUNS },
		{ 0, op_writable, 20, 20 },
		{ 0, op_write, ALL },
		{ 0, op_fork, 2 },
		{ 2, op_readonly, 8, 8 },
		{ 2, op_write, ALL | DOWN },
		{ 2, op_writable, 8, 8 },
		{ 0, op_write, EVEN },
		{ 2, op_write, ALL },
	};

	ASSERT_TRUE(simple_region(64));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, after_dontneed, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_dontneed, 5, 3 },
		{ 0, op_write, EVEN },
		{ 1, op_dontneed, 30, 20 },
		{ 1, op_write, RUNS },
		{ 0, op_dontneed, 16, 16 },
		{ 0, op_write, ALL | DOWN },
		{ 0, op_fork, 2 },
		{ 0, op_dontneed, 60, 4, .blind = true },
		{ 0, op_write, ALL },
		{ 2, op_dontneed, 0, 64 },
		{ 2, op_write, ODD },
		{ 1, op_write, ALL },
	};

	ASSERT_TRUE(simple_region(64));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, after_munmap, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_munmap, 5, 3 },
		{ 0, op_write, ALL },
		{ 1, op_munmap, 40, 24 },
		{ 1, op_write, RUNS },
		{ 0, op_fork, 2 },
		{ 0, op_refill, 5, 3, .blind = true },
		{ 0, op_write, RUNS },
		{ 2, op_munmap, 20, 1 },
		{ 2, op_write, ALL | DOWN },
		{ 0, op_write, ALL },
		{ 1, op_write, ALL },
	};

	ASSERT_TRUE(simple_region(64));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, heap, TEST_TIMEOUT)
{
	const int nr = 48;
	char *p;

	/* brk() memory, and malloc() goes on behind it */
	p = sbrk((nr + 2) * w->page_size);
	ASSERT_NE((void *)-1, p);
	p = (char *)(((unsigned long)p + w->page_size - 1) &
		     ~(w->page_size - 1));
	add_pages(p, nr);
	fill(0, nr);
	ASSERT_TRUE(play(usual, ARRAY_SIZE(usual))) TH_LOG("%s", w->msg);
}

#define STACK_PAGES	40

static bool play_on_stack(void)
{
	char room[(STACK_PAGES + 1) * w->page_size];
	char *p;

	p = (char *)(((unsigned long)room + w->page_size - 1) &
		     ~(w->page_size - 1));
	add_pages(p, STACK_PAGES);
	fill(0, STACK_PAGES);
	return play(usual, ARRAY_SIZE(usual));
}

TEST_F_TIMEOUT(fork_isolation, stack, TEST_TIMEOUT)
{
	ASSERT_TRUE(play_on_stack()) TH_LOG("%s", w->msg);
}

#define THP_DIR	"/sys/kernel/mm/transparent_hugepage/"

static const struct step large_folios[] = {
	{ 0, op_fork, 1 },
	{ 0, op_write, SPARSE },
	{ 1, op_write, BOUNDARY },
	{ 0, op_write, RUNS },
	{ 0, op_fork, 2 },
	{ 2, op_write, RUNS | DOWN },
	{ 1, op_write, RANDOM | SHUFFLED },
	{ 0, op_end, 1 },
	{ 0, op_write, ALL | DOWN },
};

TEST_F_TIMEOUT(fork_isolation, thp, TEST_TIMEOUT)
{
	int nr = 2 * w->pmd_size / w->page_size;
	char path[128], *p;

	if (nr > MAX_PAGES)
		SKIP(return, "a huge page is too large for this test");
	if (access(THP_DIR "enabled", F_OK))
		SKIP(return, "kernel without transparent huge pages");
	p = cow_map(2 * w->pmd_size, w->pmd_size);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, madvise(p, 2 * w->pmd_size, MADV_HUGEPAGE));
	cow_tweak(&self->undo, THP_DIR "enabled", "madvise");
	snprintf(path, sizeof(path), THP_DIR "hugepages-%zukB/enabled",
		 w->pmd_size / 1024);
	cow_tweak(&self->undo, path, "inherit");
	add_pages(p, nr);
	fill(0, nr);
	if (cow_smaps_kb(p, "AnonHugePages") * 1024 !=
	    2 * (long)w->pmd_size)
		SKIP(return, "got no huge pages");
	ASSERT_TRUE(play(large_folios, ARRAY_SIZE(large_folios))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, mthp, TEST_TIMEOUT)
{
	static const char dir[] = THP_DIR "hugepages-64kB/";
	const int nr = 256;
	char path[128];
	size_t half;
	char *p;

	snprintf(path, sizeof(path), "%senabled", dir);
	if (access(path, F_OK))
		SKIP(return, "kernel without huge pages of 64 kB");
	if (!cow_tweak(&self->undo, path, "madvise"))
		SKIP(return, "enabling huge pages of 64 kB " COW_NEEDS);
	/* Across two page tables, and too short for larger ones */
	p = cow_map(2 * w->pmd_size, w->pmd_size);
	ASSERT_NE(NULL, p);
	half = nr / 2 * w->page_size;
	ASSERT_EQ(0, munmap(p, w->pmd_size - half));
	p += w->pmd_size - half;
	ASSERT_EQ(0, munmap(p + 2 * half, w->pmd_size - half));
	ASSERT_EQ(0, madvise(p, 2 * half, MADV_HUGEPAGE));
	add_pages(p, nr);
	fill(0, nr);
	if (cow_large_pages(p, nr) < nr)
		SKIP(return, "got no huge pages of 64 kB");
	ASSERT_TRUE(play(large_folios, ARRAY_SIZE(large_folios))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, ksm, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, EVEN },
		{ 1, op_write, RUNS },
		{ 0, op_fork, 2 },
		{ 2, op_write, RANDOM | SHUFFLED },
		{ 0, op_write, ODD | DOWN },
		{ 1, op_write, ALL },
		{ 0, op_write, ALL | WHOLE },
	};
	const int nr = 64, equal = nr / 2;
	long merged;
	int i;

	ASSERT_TRUE(simple_region(nr));
	/* Blocks of merged pages between blocks that are only fork-shared */
	for (i = 0; i < nr; i++)
		if (i % 8 >= 4)
			w->key[i] = MAX_PAGES + i % 2;
	fill(0, nr);
	merged = cow_ksm_merge(&self->undo, w->page[0][0], nr * w->page_size,
			       equal);
	if (merged < 0)
		SKIP(return, "no KSM: %s", strerror(-merged));
	if (merged < equal)
		SKIP(return, "ksmd merged only %ld pages", merged);
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, swapped_out, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1, .blind = true },
		/* from swap into a write ... */
		{ 0, op_write, EVEN, .blind = true },
		{ 1, op_write, RUNS },
		/* ... and now all of them were at least read */
		{ 0, op_write, ODD | DOWN },
		{ 0, op_pageout, 0, 64, .blind = true },
		{ 0, op_fork, 2, .blind = true },
		{ 2, op_write, RUNS | DOWN, .blind = true },
		{ 0, op_write, ALL },
		{ 1, op_pageout, 10, 30, .blind = true },
		{ 1, op_write, ALL },
		{ 2, op_write, ALL },
	};
	int i, swapped = 0;

	ASSERT_TRUE(simple_region(64));
	if (op_pageout(0, 0, 64))
		SKIP(return, "no MADV_PAGEOUT");
	for (i = 0; i < 64; i++)
		swapped += !!(cow_pagemap(w->page[0][i]) & COW_PM_SWAP);
	if (swapped < 32)
		SKIP(return, "only %d of 64 pages went to swap", swapped);
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

/* How many of the pages have one of these flags? */
static int flagged_pages(int nr, __u64 flags)
{
	int i, flagged = 0;

	for (i = 0; i < nr; i++)
		flagged += !!(cow_page_flags(w->page[0][i]) & flags);
	return flagged;
}

TEST_F_TIMEOUT(fork_isolation, mlocked, TEST_TIMEOUT)
{
	const int nr = 64;
	long kb = nr * w->page_size / 1024;
	long vm_before, vm_locked;

	/* The per-CPU batches to drain are those of this CPU. */
	ASSERT_EQ(0, cow_pin_cpu());
	if (!cow_pfn_visible())
		SKIP(return, "seeing which pages are locked needs root");
	if (!cow_keep_locked(&self->undo))
		SKIP(return, "keeping compaction off locked pages " COW_NEEDS);
	vm_before = cow_status_kb("VmLck");
	ASSERT_TRUE(simple_region(nr));
	if (mlock(w->page[0][0], nr * w->page_size))
		SKIP(return, "mlock: %s", strerror(errno));
	vm_locked = cow_status_kb("VmLck");
	ASSERT_EQ(vm_before + kb, vm_locked);
	ASSERT_EQ(nr, flagged_pages(nr, COW_KPF_MLOCKED));

	ASSERT_TRUE(play(usual, ARRAY_SIZE(usual))) TH_LOG("%s", w->msg);

	/*
	 * Every page is another one now, and just as locked. The kernel takes the
	 * mark off a large folio that loses a part; reclaim puts it back.
	 */
	EXPECT_EQ(vm_locked, cow_status_kb("VmLck"));
	EXPECT_EQ(nr, flagged_pages(nr, COW_KPF_MLOCKED | COW_KPF_COMPOUND))
		TH_LOG("COW_SEED=%llu", w->seed);
	EXPECT_EQ(kb, cow_smaps_kb(w->page[0][0], "Locked"));
	cow_unmap(w->page[0][0], nr * w->page_size);
	EXPECT_EQ(vm_before, cow_status_kb("VmLck"));
}

TEST_F_TIMEOUT(fork_isolation, private_file, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_write, EVEN },
		{ 1, op_write, RUNS },
		{ 0, op_fork, 2 },
		{ 2, op_dontneed, 20, 20 },
		{ 2, op_write, ALL | DOWN },
		{ 0, op_write, RANDOM | SHUFFLED },
		{ 1, op_write, ALL | WHOLE },
		{ 0, op_dontneed, 0, 8, .blind = true },
		{ 0, op_write, ALL },
	};
	const int nr = 64;
	int fd, i, s;
	char *p;

	fd = memfd_create("cow", MFD_CLOEXEC);
	if (fd < 0)
		SKIP(return, "memfd_create: %s", strerror(errno));
	ASSERT_EQ(0, ftruncate(fd, nr * w->page_size));
	p = mmap(NULL, nr * w->page_size, PROT_READ | PROT_WRITE, MAP_SHARED,
		 fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	add_pages(p, nr);
	fill(0, nr);
	w->backing = w->tag;
	ASSERT_EQ(0, munmap(p, nr * w->page_size));

	p = mmap(NULL, nr * w->page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE,
		 fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	for (i = 0; i < nr; i++)
		w->page[0][i] = p + i * w->page_size;
	/* Anonymous pages and pages of the file side by side */
	fill(10, 20);
	fill(45, 1);
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);

	/* The file is what it was. */
	p = mmap(NULL, nr * w->page_size, PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	for (i = 0; i < nr; i++) {
		for (s = 0; s < SECTORS; s++)
			w->model[0][i][s] = w->backing;
		EXPECT_EQ(0, check_page(p + i * w->page_size, w->model[0][i],
					0, i)) {
			TH_LOG("page %d of the file has changed", i);
		}
	}
}

TEST_F_TIMEOUT(fork_isolation, zero_page, TEST_TIMEOUT)
{
	const int nr = 64;
	int i;
	char *p;

	p = cow_map(nr * w->page_size, 0);
	ASSERT_NE(NULL, p);
	add_pages(p, nr);
	/* Written, only read, and never touched pages side by side */
	for (i = 0; i < nr; i++) {
		if (i % 7 < 3)
			fill(i, 1);
		else if (i % 7 < 6)
			cow_peek(w->page[0][i]);
	}
	ASSERT_TRUE(play(usual, ARRAY_SIZE(usual))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, vmsplice_by_parent, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 0, op_vmsplice, 9, MAX_PIPE },
		{ 0, op_write, RUNS },
		{ 1, op_write, ALL },
		{ 0, op_write, ALL | DOWN },
		{ 0, op_pipe_check },
		{ 0, op_fork, 2 },
		{ 0, op_vmsplice, 0, MAX_PIPE },
		/* alone with its own pages, but the pipe has them too */
		{ 0, op_end, 1 },
		{ 0, op_end, 2 },
		{ 0, op_write, ALL },
		{ 0, op_pipe_check },
	};

	ASSERT_TRUE(simple_region(48));
	ASSERT_EQ(0, pipe(w->pipe));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, vmsplice_by_child, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		{ 1, op_vmsplice, 9, MAX_PIPE },
		/* CVE-2020-29374: the child is gone, its reference is not */
		{ 1, op_munmap, 0, 48 },
		{ 0, op_write, ALL },
		{ 0, op_pipe_check },
		{ 0, op_fork, 2 },
		{ 2, op_vmsplice, 20, MAX_PIPE },
		{ 2, op_write, RUNS },
		{ 0, op_end, 2 },
		{ 0, op_write, ALL | DOWN },
		{ 0, op_pipe_check },
	};

	ASSERT_TRUE(simple_region(48));
	ASSERT_EQ(0, pipe(w->pipe));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

#define GUP_TEST	"/sys/kernel/debug/gup_test"

TEST_F_TIMEOUT(fork_isolation, pinned_before_fork, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_pin_write, 10, 6 },
		/* fork() copies the pinned pages at once */
		{ 0, op_fork, 1 },
		{ 0, op_write, RUNS },
		{ 0, op_pin_check, 10, 6 },
		{ 1, op_write, ALL },
		{ 0, op_pin_check, 10, 6 },
		{ 0, op_fork, 2 },
		{ 2, op_write, EVEN },
		{ 0, op_write, ALL | DOWN },
		{ 0, op_pin_check, 10, 6 },
		{ 0, op_unpin },
		{ 0, op_write, ALL },
	};

	w->gup_fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (w->gup_fd < 0)
		SKIP(return, "no " GUP_TEST ": %s", strerror(errno));
	ASSERT_TRUE(simple_region(48));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_F_TIMEOUT(fork_isolation, pinned_after_fork, TEST_TIMEOUT)
{
	static const struct step steps[] = {
		{ 0, op_fork, 1 },
		/* unshares, and copies nothing ahead */
		{ 1, op_pin_read, 10, 6 },
		{ 0, op_write, RUNS },
		{ 1, op_pin_check, 10, 6 },
		{ 1, op_write, ALL },
		{ 1, op_pin_check, 10, 6 },
		{ 0, op_write, ALL },
		{ 1, op_pin_check, 10, 6 },
		{ 1, op_unpin },
		{ 0, op_fork, 2 },
		{ 2, op_pin_fast, 40, 4 },
		{ 2, op_write, ALL },
		{ 2, op_pin_check, 40, 4 },
		{ 2, op_unpin },
		{ 0, op_pin_write, 20, 8 },
		{ 0, op_write, ALL },
		{ 2, op_write, EVEN },
		{ 0, op_pin_check, 20, 8 },
		{ 0, op_unpin },
		/* the odd ones: nobody else's any more, but not marked so */
		{ 2, op_pin_read, 32, 8 },
		{ 2, op_write, ALL | DOWN },
		{ 2, op_pin_check, 32, 8 },
		{ 2, op_unpin },
	};

	w->gup_fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (w->gup_fd < 0)
		SKIP(return, "no " GUP_TEST ": %s", strerror(errno));
	ASSERT_TRUE(simple_region(48));
	ASSERT_TRUE(play(steps, ARRAY_SIZE(steps))) TH_LOG("%s", w->msg);
}

TEST_HARNESS_MAIN
