/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Copy-on-write faults on a kernel that does not count them: by kprobe events and
 * hist triggers, in a tracefs instance of our own.
 */
#ifndef __COWSTAT_PROBES_H
#define __COWSTAT_PROBES_H

#include <stdbool.h>
#include <sys/types.h>

/* Since probes_begin() */
struct probed {
	/* As in /proc/cow_stats, under these names */
	unsigned long long faults, reused, unshared, fault_total_ns;
};

/*
 * Whose faults: all, or those of one process, or those of every process apart,
 * so that probes_read_tree() can add up.
 */
enum probes_whose { PROBES_SYSTEM, PROBES_PROCESS, PROBES_EACH };

/*
 * Begin to count. NULL, or the reason why this kernel cannot; then nothing is
 * left behind. What a killed cowstat has left is removed first. Needs root.
 */
const char *probes_begin(enum probes_whose whose, pid_t pid);
/*
 * Instead: only the event of a copied page, for somebody else to record. Its name,
 * GROUP:EVENT, and the filter without which there is more than copies. What GUP
 * unshares is among them.
 */
const char *probes_begin_copied(char *event, size_t size, char *filter,
				size_t filter_size);
/*
 * Read what the kernel has counted: 0 or a negative errno. *missed: faults that are
 * in no count, as a table was full.
 */
int probes_read(unsigned long long *missed);
/* What was read of one process; with PROBES_SYSTEM and PROBES_PROCESS of them */
const struct probed *probes_of(pid_t pid);
/* Read, and add up a process with all its descendants, waited for or not. */
int probes_read_tree(struct probed *p, pid_t root, unsigned long long *missed);
/*
 * Remove all that probes_begin() has made; false if some of it is in use. The next
 * probes_begin() tries again. May be called twice.
 */
bool probes_end(void);

#endif /* __COWSTAT_PROBES_H */
