/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of cowstat share. Nothing in here uses the harness.
 */
#ifndef __COWSTAT_HELPERS_H
#define __COWSTAT_HELPERS_H

#include "cow_helpers.h"

/*
 * The folder that takes the place of /proc
 */

#define FAKE_PID	4000000
#define OTHER_PID	(FAKE_PID + 1)

extern char fake[64];

int fake_begin(void);
void fake_end(void);
void fake_remove(const char *name);
/* All at once, as the kernel does it: never a half-written file. */
void fake_put(const char *name, const void *text, size_t len);
void fake_text(const char *name, const char *text);
/* The name of a file of the process FAKE_PID */
const char *fake_pid_file(const char *name);
void fake_sysctl(const char *value);
bool is_percentile(int key);
/* What a cow_stats file says, as text: of a process or of the system */
char *counts_text(const struct cow_stats *s, bool pid);
void fake_counts(const struct cow_stats *s);
void fake_pid_counts(const struct cow_stats *s);
const char *vmstat_text(unsigned long pgfault, unsigned long pgreuse);
void fake_vmstat(unsigned long pgfault, unsigned long pgreuse);
void fake_stat(char state, unsigned long flags, unsigned long minflt,
	       unsigned long start);
/* A process of this name that has counted this */
void fake_process(pid_t pid, const char *name, const struct cow_stats *s);
/* Counters that differ from each other, by the multiple of a base */
void make_counts(struct cow_stats *s, unsigned long long base);
/* A system that counts, with FAKE_PID "small" and OTHER_PID "large one" */
void fake_two_processes(struct cow_stats *a, struct cow_stats *b);

/*
 * A gate: vmstat, which each sample reads first, after it has taken the time, is
 * a FIFO. A sample waits there until the test lets it go on, so that the test
 * does not depend on when cowstat runs.
 */

void gate_begin(void);
/* Wait until cowstat has begun a sample. A descriptor, or a negative errno */
int gate_enter(void);
/* Let the sample read this vmstat and all else; return its (first) line. */
char *gate_leave(int fd, const char *vmstat);
/* One sample: its (first) line, or NULL */
char *gate_step(const char *vmstat);

/*
 * Running cowstat
 */

#define MAX_ARGS	16

struct run {
	pid_t pid;
	int out;		/* standard output: file or pipe */
	int err;		/* standard error: file */
	int status;		/* exit status, or 256 + signal */
	char text[131072];	/* what has come on standard output, */
	size_t len;
	char errors[8192];	/* and on standard error */
	char *line;		/* the next one of the pipe */
};

extern struct run run;

/* What to do in the child before exec; false to give up */
typedef bool (*prepare_fn)(void);

enum { TO_FILE, TO_PIPE };

/* The tool beside the test that the functions below run: cowstat, unless a test sets it */
extern const char *tested_tool;
/* NULL, or the reason to skip: the kernel lacks the series */
const char *no_kernel(void);
/* The path of the test program */
char *own_path(void);
void start_prepared(int where, prepare_fn prepare, const char **argv);
/* cowstat with these arguments up to NULL, in the background */
void start(const char *first, ...);
/* Run cowstat to its end; returns the exit status. */
int cowstat(const char *first, ...);
int cowstat_prepared(prepare_fn prepare, const char *first, ...);
/* Send it a signal, if any, and wait for its end. */
void finish(int sig);
/* One more line of the pipe, valid until the next call; NULL at the end */
char *next_line(void);
/* The next line whose key is not zero; NULL at the end */
char *line_with(const char *key);
/* The next line that says reset; NULL at the end */
char *line_with_reset(void);

/* For cowstat_prepared() */
bool become_nobody(void);
bool to_full_disk(void);
bool to_nobody(void);

/*
 * What it prints
 */

int lines_of(const char *text);
/* The length of the longest line */
size_t widest(const char *text);
/* How often does one occur in the other? */
int count_of(const char *text, const char *what);
/* The value in the column of that name, in the nth row, counted from 0 */
const char *column(const char *text, int line, const char *name);
/* Parse a JSON object for the functions below. */
bool json_parse(const char *p);
/* The value as text; "" if there is no such key */
const char *json_text(const char *key);
bool json_null(const char *key);
unsigned long long json_ull(const char *key);
double json_double(const char *key);
/* Equal to the nine decimals that are printed of each? */
bool about(double a, double b);

#endif /* __COWSTAT_HELPERS_H */
