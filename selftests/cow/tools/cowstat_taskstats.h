/* SPDX-License-Identifier: GPL-2.0 */
/* Delay accounting: copies, and the time they took, of one process */
#ifndef __COWSTAT_TASKSTATS_H
#define __COWSTAT_TASKSTATS_H

#include <sys/types.h>

struct wpcopy {
	unsigned long long count, ns;
};

/*
 * A whole process. Once its last thread is a zombie, the process' numbers are
 * there only if it had several threads, and otherwise those of the one. 0 or a
 * negative errno; for root only.
 */
int wpcopy_read(pid_t pid, struct wpcopy *wp);

#endif /* __COWSTAT_TASKSTATS_H */
