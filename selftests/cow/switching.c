// SPDX-License-Identifier: GPL-2.0
/*
 * Switches of the copy-on-write statistics and of pre-copy: vm.cow_stats,
 * vm.cow_precopy and the trace event, which share a part of their hooks. Each may be
 * set to what it is already, in any order, and while faults run: what is on works and
 * what is off does nothing. And what the kernel's command line sets at boot.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kselftest_harness.h"
#include "cow_helpers.h"

#define AHEAD		15
#define STEP		(AHEAD + 1)	/* pages that are written at a time */
#define TAG		37
#define WRITERS		2

enum { STATS, PRECOPY, TRACE, NR_SWITCHES };

static size_t ps;

FIXTURE(switching)
{
	struct cow_settings saved;
	char instance[64];	/* a trace buffer of our own, or empty */
};

static void trace_path(char path[128], const char *instance, const char *file)
{
	snprintf(path, 128, "%s/%s", instance, file);
}

static int make_instance(char instance[64])
{
	char path[128];

	if (!cow_tracefs())
		return -ENOENT;
	snprintf(instance, 64, "%s/instances/cow_switching", cow_tracefs());
	/* Of a run that was killed: the event is on in it. */
	rmdir(instance);
	if (mkdir(instance, 0700)) {
		instance[0] = '\0';
		return -errno;
	}
	trace_path(path, instance, "set_event_pid");
	return cow_write_long(path, getpid());
}

FIXTURE_SETUP(switching)
{
	const char *reason;

	ps = cow_page_size();
	self->instance[0] = '\0';
	reason = cow_setup(&self->saved, AHEAD, COW_WANT_STATS);
	if (!reason && !cow_may_change())
		reason = COW_NEEDS;
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_pin_cpu());
	ASSERT_EQ(0, cow_sysctl_write("cow_stats", 0));
	ASSERT_EQ(0, cow_sysctl_write("cow_precopy", 0));
}

FIXTURE_TEARDOWN_PARENT(switching)
{
	cow_restore(&self->saved);
	if (self->instance[0])
		rmdir(self->instance);
}

static int set_switch(const char *instance, int which, bool on)
{
	static const char * const names[] = { "cow_stats", "cow_precopy" };
	char path[128];

	if (which != TRACE)
		return cow_sysctl_write(names[which], on);
	trace_path(path, instance, "events/cow/cow_fault/enable");
	return cow_write_long(path, on);
}

/* Pages that are shared with a child, STEP of them for each time that we look */
struct pages {
	char *area, *next;
	size_t len;
	struct cow_child child;
};

static int share_pages(struct pages *p, int steps)
{
	p->len = steps * STEP * ps;
	p->area = cow_map(p->len, STEP * ps);
	if (!p->area)
		return -ENOMEM;
	cow_fill(p->area, p->len, TAG);
	p->next = p->area;
	return cow_child_idle(&p->child) ?:
	       cow_unshare_rest(p->area, p->len);
}

static int end_pages(struct pages *p)
{
	int ret = cow_child_end(&p->child);

	cow_unmap(p->area, p->len);
	return ret;
}

/* The events in the buffer, which is empty then. One per fault of the next pages. */
static int take_events(const char *instance, const char *area)
{
	static char text[64 << 10];
	unsigned long addr;
	char path[128], *p;
	int fd, nr = 0;

	trace_path(path, instance, "trace");
	if (cow_read_file(path, text, sizeof(text)) < 0)
		return -EIO;
	for (p = text; (p = strstr(p, " cow_fault: ")); p++)
		if (sscanf(p, " cow_fault: address=%lx", &addr) == 1 &&
		    addr - (uintptr_t)area < STEP * ps)
			nr++;
	fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	close(fd);
	return nr;
}

/*
 * Write the next pages. What is on has done all of its work, and the rest nothing;
 * NULL, or what is wrong.
 */
static const char *wrong_step(struct pages *p, const char *instance, const bool *on)
{
	int faults = on[PRECOPY] ? 1 : STEP, ahead = on[PRECOPY] ? AHEAD : 0;
	int counted = on[STATS] ? faults : 0, traced = on[TRACE] ? faults : 0;
	static struct cow_stats before, after, d;
	static char text[128];
	int i, events = traced;

	if (cow_stats_read_pid(&before, 0))
		return "no counters";
	for (i = 0; i < STEP; i++)
		cow_touch(p->next + i * ps, 'w');
	if (cow_stats_read_pid(&after, 0))
		return "no counters";
	cow_stats_delta(&d, &before, &after);
	if (*instance)
		events = take_events(instance, p->next);
	p->next += STEP * ps;
	if ((int)d.v[COW_FAULTS] == counted && !d.v[COW_REUSED] &&
	    (int)d.v[COW_SUCCESS] == ahead && (int)d.v[COW_ATTEMPTS] == ahead &&
	    events == traced)
		return NULL;
	snprintf(text, sizeof(text),
		 "%llu faults (want %d), %llu ahead (want %d), %d events (want %d)",
		 d.v[COW_FAULTS], counted, d.v[COW_SUCCESS], ahead, events,
		 traced);
	return text;
}

#define ORDER	6	/* so often it is set, in each of the orders that there are */

static void check_orders(struct __test_metadata *_metadata, int which)
{
	bool on[NR_SWITCHES] = {};
	const char *wrong;
	struct pages p;
	int order, i;

	ASSERT_EQ(0, share_pages(&p, ORDER << ORDER));
	for (order = 0; order < 1 << ORDER; order++) {
		for (i = 0; i < ORDER; i++) {
			on[which] = order >> i & 1;
			ASSERT_EQ(0, set_switch("", which, on[which]));
			wrong = wrong_step(&p, "", on);
			ASSERT_EQ(NULL, wrong)
				TH_LOG("order %#x, number %d: %s", order, i,
				       wrong);
		}
	}
	EXPECT_EQ(0, end_pages(&p));
}

TEST_F_TIMEOUT(switching, stats_in_any_order, TEST_TIMEOUT)
{
	check_orders(_metadata, STATS);
}

TEST_F_TIMEOUT(switching, precopy_in_any_order, TEST_TIMEOUT)
{
	check_orders(_metadata, PRECOPY);
}

#define WALK	256

/* Both the event and vm.cow_stats have faults timed: neither ends it for the other. */
TEST_F_TIMEOUT(switching, together_with_tracing, TEST_TIMEOUT)
{
	bool on[NR_SWITCHES] = {};
	const char *wrong;
	struct pages p;
	__u64 state = 1, what;
	int i, which;

	if (make_instance(self->instance))
		SKIP(return, "no tracefs");
	ASSERT_EQ(0, share_pages(&p, WALK));
	for (i = 0; i < WALK; i++) {
		what = cow_rand(&state);
		which = what % NR_SWITCHES;
		on[which] = what >> 32 & 1;
		ASSERT_EQ(0, set_switch(self->instance, which, on[which]));
		wrong = wrong_step(&p, self->instance, on);
		ASSERT_EQ(NULL, wrong)
			TH_LOG("step %d: stats %d, precopy %d, trace %d: %s", i,
			       on[STATS], on[PRECOPY], on[TRACE], wrong);
	}
	ASSERT_EQ(0, set_switch(self->instance, TRACE, false));
	EXPECT_EQ(0, end_pages(&p));
}

/*
 * While faults run
 */

struct shared {
	int stop;
	int stop_switching;
	int rounds[WRITERS];
};

struct writer {
	struct shared *sh;
	int nr;
};

static int writes_all_the_time(struct cow_child *self, void *arg)
{
	const struct writer *w = arg;
	struct pages p;
	size_t i;

	(void)self;
	while (!__atomic_load_n(&w->sh->stop, __ATOMIC_RELAXED)) {
		if (share_pages(&p, 4))
			return 1;
		for (i = 0; i < p.len; i += ps)
			cow_touch(p.area + i, 'w');
		for (i = 0; i < p.len; i += ps)
			if (cow_peek(p.area + i) != 'w' ||
			    cow_check(p.area + i + 8, ps - 8, TAG) != -1)
				return 2;
		if (end_pages(&p))
			return 3;
		__atomic_add_fetch(&w->sh->rounds[w->nr], 1, __ATOMIC_RELEASE);
	}
	return 0;
}

/* Beside the parent, on another CPU if there is one */
static int switches_too(struct cow_child *self, void *arg)
{
	struct shared *sh = arg;
	int i;

	(void)self;
	cow_leave_cpu();
	for (i = 0; !__atomic_load_n(&sh->stop_switching, __ATOMIC_RELAXED); i++)
		if (cow_sysctl_write("cow_precopy", i & 1) ||
		    cow_sysctl_write("cow_stats", i >> 1 & 1))
			return 1;
	return 0;
}

/* Until each of them has written to its pages once more, from the first one on */
static bool wait_for_round(struct shared *sh, const struct cow_child *c)
{
	int i, from;

	for (i = 0; i < WRITERS; i++) {
		from = __atomic_load_n(&sh->rounds[i], __ATOMIC_ACQUIRE);
		while (__atomic_load_n(&sh->rounds[i], __ATOMIC_ACQUIRE) <
		       from + 2) {
			if (cow_task_ended(c[i].pid))
				return false;
			sched_yield();
		}
	}
	return true;
}

#define SWITCHES	512

TEST_F_TIMEOUT(switching, while_faults_run, TEST_TIMEOUT)
{
	static const bool all_on[NR_SWITCHES] = { true, true, true };
	static const bool off[NR_SWITCHES] = {};
	static struct cow_stats before, after, d;
	struct cow_child c[WRITERS], other;
	struct writer w[WRITERS];
	struct shared *sh;
	const char *wrong;
	struct pages p;
	__u64 state = 2, what;
	int i, k;

	if (make_instance(self->instance))
		SKIP(return, "no tracefs");
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, sh);
	for (i = 0; i < WRITERS; i++) {
		w[i] = (struct writer) { .sh = sh, .nr = i };
		ASSERT_EQ(0, cow_child_fork(&c[i], writes_all_the_time, &w[i]));
	}
	ASSERT_EQ(0, cow_child_fork(&other, switches_too, sh));
	for (i = 0; i < SWITCHES; i++) {
		what = cow_rand(&state);
		ASSERT_EQ(0, set_switch(self->instance, what % NR_SWITCHES,
					what >> 32 & 1));
	}
	__atomic_store_n(&sh->stop_switching, 1, __ATOMIC_RELAXED);
	EXPECT_EQ(0, cow_child_wait(&other));
	/* All off, twice: the whole system counts nothing any more. */
	for (i = 0; i < 2 * NR_SWITCHES; i++)
		ASSERT_EQ(0, set_switch(self->instance, i % NR_SWITCHES, false));
	ASSERT_TRUE(wait_for_round(sh, c));
	ASSERT_EQ(0, cow_stats_read(&before));
	ASSERT_TRUE(wait_for_round(sh, c));
	ASSERT_EQ(0, cow_stats_read(&after));
	cow_stats_delta(&d, &before, &after);
	for (i = 0; i < COW_NR_SYSTEM_KEYS; i++)
		EXPECT_EQ(0ULL, d.v[i]) TH_LOG("%s", cow_key_names[i]);
	ASSERT_EQ(0, share_pages(&p, 2));
	wrong = wrong_step(&p, self->instance, off);
	EXPECT_EQ(NULL, wrong) TH_LOG("all off: %s", wrong);
	/* All on, twice */
	for (i = 0; i < 2; i++)
		for (k = 0; k < NR_SWITCHES; k++)
			ASSERT_EQ(0, set_switch(self->instance, k, true));
	wrong = wrong_step(&p, self->instance, all_on);
	EXPECT_EQ(NULL, wrong) TH_LOG("all on: %s", wrong);
	ASSERT_EQ(0, set_switch(self->instance, TRACE, false));
	EXPECT_EQ(0, end_pages(&p));
	__atomic_store_n(&sh->stop, 1, __ATOMIC_RELAXED);
	for (i = 0; i < WRITERS; i++)
		EXPECT_EQ(0, cow_child_wait(&c[i]));
}

/*
 * At boot
 */

/* The value of an argument on the kernel's command line, or NULL */
static const char *boot_argument(const char *name)
{
	static char line[4096], value[64];
	size_t len = strlen(name);
	char *word, *save;

	if (cow_read_file("/proc/cmdline", line, sizeof(line)) < 0)
		return NULL;
	for (word = strtok_r(line, "\n ", &save); word;
	     word = strtok_r(NULL, "\n ", &save)) {
		if (strncmp(word, name, len) || word[len] != '=')
			continue;
		snprintf(value, sizeof(value), "%s", word + len + 1);
		return value;
	}
	return NULL;
}

FIXTURE(boot)
{
	int unused;
};

FIXTURE_SETUP(boot)
{
}

FIXTURE_TEARDOWN(boot)
{
}

/* Nobody has written to the sysctl so far, and everybody else puts it back. */
TEST_F_TIMEOUT(boot, precopy_at_boot, TEST_TIMEOUT)
{
	const char *arg = boot_argument("cow_precopy"), *reason;
	static struct cow_stats before, after, d;
	struct pages p;
	long precopy, pages;
	size_t i;

	ps = cow_page_size();
	reason = cow_missing();
	if (!reason && !arg)
		reason = "not booted with cow_precopy=on, or anything else";
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_EQ(0, cow_sysctl_read("cow_precopy", &precopy));
	EXPECT_EQ(!strcmp(arg, "on") || !strcmp(arg, "1"), precopy);
	/* It adapts, and so wants a run of written pages. */
	ASSERT_EQ(0, cow_sysctl_read("cow_precopy_pages", &pages));
	EXPECT_EQ(0, pages);
	ASSERT_EQ(0, cow_pin_cpu());
	ASSERT_EQ(0, share_pages(&p, 16));
	ASSERT_EQ(0, cow_stats_read_pid(&before, 0));
	for (i = 0; i < p.len; i += ps)
		cow_touch(p.area + i, 'w');
	ASSERT_EQ(0, cow_stats_read_pid(&after, 0));
	cow_stats_delta(&d, &before, &after);
	EXPECT_EQ(precopy, d.v[COW_SUCCESS] > 0);
	EXPECT_EQ(0, end_pages(&p));
}

/* The event is on before there is a process, and may be switched like any other. */
TEST_F_TIMEOUT(boot, tracing_at_boot, TEST_TIMEOUT)
{
	const char *arg = boot_argument("trace_event"), *dir = cow_tracefs();
	bool on[NR_SWITCHES] = {};
	long precopy, stats, enabled;
	const char *wrong;
	struct pages p;
	char path[128];
	int i;

	ps = cow_page_size();
	if (cow_missing() || !dir || !cow_may_change())
		SKIP(return, "no events of this series, or " COW_NEEDS);
	if (!arg || strcmp(arg, "cow:cow_fault"))
		SKIP(return, "not booted with trace_event=cow:cow_fault");
	trace_path(path, dir, "events/cow/cow_fault/enable");
	ASSERT_EQ(0, cow_read_long(path, &enabled));
	ASSERT_EQ(1, enabled);
	ASSERT_EQ(0, cow_sysctl_read("cow_stats", &stats));
	ASSERT_EQ(0, cow_sysctl_read("cow_precopy", &precopy));
	ASSERT_EQ(0, cow_sysctl_write("cow_precopy", 0));
	ASSERT_EQ(0, cow_pin_cpu());
	ASSERT_EQ(0, share_pages(&p, 8));
	/* What it has recorded since boot is for somebody else to read. */
	take_events(dir, p.next);
	on[STATS] = stats;
	on[TRACE] = true;
	EXPECT_EQ(NULL, wrong_step(&p, dir, on));
	for (i = 1; i < 8; i++) {
		if (i & 1)
			on[TRACE] = !on[TRACE];
		else
			on[STATS] = !on[STATS];
		ASSERT_EQ(0, set_switch(dir, i & 1 ? TRACE : STATS,
					on[i & 1 ? TRACE : STATS]));
		wrong = wrong_step(&p, dir, on);
		EXPECT_EQ(NULL, wrong) TH_LOG("step %d: %s", i, wrong);
	}
	EXPECT_EQ(0, set_switch(dir, TRACE, true));
	EXPECT_EQ(0, cow_sysctl_write("cow_stats", stats));
	EXPECT_EQ(0, cow_sysctl_write("cow_precopy", precopy));
	EXPECT_EQ(0, end_pages(&p));
}

TEST_HARNESS_MAIN
