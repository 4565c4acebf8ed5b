// SPDX-License-Identifier: GPL-2.0
/*
 * What writing to memory costs after a fork, under every condition that
 * matters, with copying ahead and with what a user would use instead
 *
 * A program for any kernel: what one cannot do is reported as skipped. See
 * cow_bench.h for how it measures, and print_help() for what it prints.
 *
 * The work is done by a second process. The first one waits for its end,
 * whatever that is, and then puts all settings back.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cow_bench.h"

#define EXIT_USAGE	2
#define EXIT_SKIPPED	4

#define MAX_SIZES	8
#define MAX_CONFIGS	32
#define MAX_GLOBS	64

static struct {
	struct {
		size_t bytes;
		unsigned int repeat;
	} size[MAX_SIZES];
	unsigned int sizes;
	const char *glob[MAX_GLOBS];
	unsigned int globs;
	struct bench_config config[MAX_CONFIGS];
	unsigned int configs;
	unsigned int repeat;
	__u64 seed;
	const char *mode;
	bool json;
	bool quick;
	bool cdf;
	bool stats;
	bool question;
} opt = {
	.seed = 1,
	.mode = "native",
};

static const struct bench_config configs[] = {
	{ "off", "the kernel as it is, copying nothing ahead", BENCH_COW, 0 },
	{ "fixed-1", "1 page copied ahead (any number up to 15)", BENCH_COW, 1 },
	{ "fixed-15", "15 pages copied ahead", BENCH_COW, 15 },
	{ "adaptive", "the kernel chooses how many (adaptive-N: up to N, from 1 to 15)",
	  BENCH_COW, BENCH_ADAPTIVE },
	{ "populate-write", "MADV_POPULATE_WRITE before the first write",
	  BENCH_POPULATE, 0 },
	{ "thp", "transparent huge pages", BENCH_THP, 0 },
	{ "nofork", "the same writes without a fork", BENCH_NOFORK, 0 },
	{ "memcpy", "copying each page in the program, no fork", BENCH_MEMCPY, 0 },
};

static struct bench_rep *rep;
static struct bench_plan *plan;

/* Copying a page by the kernel (0: it does not say) and by memcpy() */
static double kernel_copy_ns, memcpy_ns;

#define usage_error(...)						\
	do {								\
		fputs("cow_bench: ", stderr);				\
		fprintf(stderr, __VA_ARGS__);				\
		fputs("\nTry 'cow_bench --help'.\n", stderr);		\
		exit(EXIT_USAGE);					\
	} while (0)

/* status, or 2 if the output could not be written */
static int written_out(int status)
{
	if (!fflush(stdout) && !ferror(stdout))
		return status;
	fprintf(stderr, "cow_bench: cannot write the output: %s\n",
		strerror(errno));
	/* Not once more at the end */
	fclose(stdout);
	return EXIT_USAGE;
}

static void print_help(void)
{
	puts("Usage: cow_bench [OPTIONS]\n"
"\n"
"Measures writes to memory that a fork has made copy-on-write.\n"
"\n"
"  --workload GLOB,...  only these workloads (see --list)\n"
"  --config LIST        only these configurations, by commas; fixed-N for any\n"
"                       N from 1 to 15, adaptive-N for a bound from 1 to 15\n"
"  --size SIZE,...      of the memory, with K, M or G (default 16M and 64M)\n"
"  --repeat N           timed repetitions (default 5 up to 16M, 3 above)\n"
"  --seed N             for what is random (default 1)\n"
"  --writers N, --checkpointers N, --batch SIZE\n"
"                       of the workload 'snapshot': threads of the program (4)\n"
"                       and of the child (4), and what it copies at a time (2M)\n"
"  --question           a user's question about a snapshot, with its own numbers:\n"
"                       28 writers, 4 checkpointers, batches of 2M, 1G, on one\n"
"                       node; the copy is a private array, written to before the\n"
"                       fork. Needs memory of 7 times the size. Answers in words.\n"
"  --quick              4M, 3 repetitions\n"
"  --cdf                JSON: with the distribution of single writes, and the\n"
"                       kernel's of whole faults and of copies\n"
"  --stats              vm.cow_stats=1 in the timed repetitions too\n"
"  --json               one JSON object per line\n"
"  --mode LABEL         the row's 'mode' (default native)\n"
"  --list               workloads and configurations, and what they are\n"
"  --help               this\n"
"\n"
"All times are nanoseconds of CLOCK_MONOTONIC; in an emulator that counts\n"
"instructions as nanoseconds they are instructions. What reading the clock\n"
"takes (clock_ns) is taken off.\n"
"\n"
"Keys of a row:\n"
"  kernel, arch, mode, workload, config, pages (of the memory)\n"
"  skipped              the reason; the row ends here then\n"
"  written              different pages written after a fork, in one repetition\n"
"  faults               minor faults of the writing threads\n"
"  copied               pages copied by a fault on that very page\n"
"  copied_ahead         pages copied before the program wrote to them, be it\n"
"                       by the kernel or by MADV_POPULATE_WRITE\n"
"  wasted               pages copied and never written until the next fork or\n"
"                       the end: by comparing frame numbers\n"
"  reused, reused_ahead pages made writable without a copy, in the same two ways\n"
"  per_page_median, _min, _max\n"
"                       time for all writes over 'written', of all repetitions\n"
"  overhead_median, _min, _max\n"
"                       the same without copying: copy_ns is taken off for each\n"
"                       page copied; null where several CPUs write at once\n"
"  p50, p90, p99, p999, max\n"
"                       how long one write takes, in a pass of its own\n"
"  tlb_flushes, tlb_shootdowns\n"
"                       nr_tlb_* of /proc/vmstat, of the whole system: entries\n"
"                       flushed by the CPU that asks for it, whole flushes as\n"
"                       one; and requests to other CPUs, each for a range\n"
"  rss_kb, private_kb   at the end: of the process; the memory's private part\n"
"  copy_ns, copy_from   what copying one page takes: by the 'kernel', as it\n"
"                       counts it itself (its clock included) in a case of its\n"
"                       own, seq:off of that size; or by 'memcpy', where it does\n"
"                       not count\n"
"  clock_ns             what reading the clock takes\n"
"  repeats              timed repetitions\n"
"  unit                 what 'written' counts and per_page_* is divided by:\n"
"                       'page', or 'fork' for fork-exec, a fork, exec and exit\n"
"  seed                 of what is random\n"
"  cdf                  with --cdf: arrays of a duration, and how many writes did\n"
"                       not take longer, with steps of 1 % at least\n"
"  kernel_copy, kernel_fault, kernel_fault_avg\n"
"                       with --cdf: pairs of per cent and time, of what the\n"
"                       kernel timed; the mean of a whole fault\n"
"Further keys of 'snapshot', of the last repetition; times since the fork began:\n"
"  writers, checkpointers, batch_kb, fork_ns (the call), reaped_ns (the child),\n"
"  done_ns (the last writer); alive_pages, alive_ns, alive_faults while the child\n"
"  was alive, and after_* then; timeline: arrays of time, pages written, pages\n"
"  that the child has saved; unmapped_ns (the child has unmapped all),\n"
"  unmapped_pages written until then, unmapped_faults and unmapped_system_ns (the\n"
"  writers' time in the kernel) until then and after. One write is a writer's\n"
"  first word in a page.\n"
"null is what cannot be known here. Frame numbers need root.\n"
"\n"
"Exit status: 0; 1 if a workload failed or memory did not hold what it should;\n"
"2 bad usage, or the output cannot be written; 4 all was skipped.");
}

/*
 * Options
 */

static unsigned long long parse_number(const char *what, const char *text,
				       unsigned long long min,
				       unsigned long long max)
{
	unsigned long long val;
	char *end;

	errno = 0;
	val = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || val < min ||
	    val > max)
		usage_error("%s: '%s' is not a number from %llu to %llu", what,
			    text, min, max);
	return val;
}

static size_t parse_size(const char *what, const char *text)
{
	unsigned long long val;
	unsigned int shift = 0;
	char *end;

	errno = 0;
	val = strtoull(text, &end, 10);
	if (*end == 'K' || *end == 'M' || *end == 'G')
		shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 30;
	if (shift)
		end++;
	if (text[0] < '0' || text[0] > '9' || *end || errno ||
	    val << shift >> shift != val)
		usage_error("%s: '%s' is not a size such as 16M", what, text);
	return val << shift;
}

static void add_size(const char *text)
{
	size_t page = cow_page_size(), bytes;

	bytes = parse_size("--size", text);
	if (bytes % page || bytes < BENCH_MIN_PAGES * page)
		usage_error("--size: '%s': must be whole pages, %zu bytes at least",
			    text, BENCH_MIN_PAGES * page);
	if (bytes / page >= 1ULL << 32)
		usage_error("--size: '%s' is too large", text);
	if (opt.sizes == MAX_SIZES)
		usage_error("--size: more than %d sizes", MAX_SIZES);
	opt.size[opt.sizes].bytes = bytes;
	opt.size[opt.sizes].repeat = bytes > 16 << 20 ? 3 : 5;
	opt.sizes++;
}

static size_t parse_batch(const char *text)
{
	size_t page = cow_page_size(), bytes = parse_size("--batch", text);

	if (bytes % page || !bytes || bytes > 1 << 30)
		usage_error("--batch: '%s' is not a multiple of a page, up to 1G",
			    text);
	return bytes;
}

static void add_glob(const char *text)
{
	unsigned int i;

	for (i = 0; i < bench_nr_workloads; i++)
		if (!fnmatch(text, bench_workloads[i].name, 0))
			break;
	if (i == bench_nr_workloads)
		usage_error("--workload: no workload is called '%s'; --list tells their names",
			    text);
	if (opt.globs == MAX_GLOBS)
		usage_error("--workload: more than %d", MAX_GLOBS);
	opt.glob[opt.globs++] = text;
}

static void add_config(const char *text)
{
	struct bench_config *c = &opt.config[opt.configs];
	unsigned int i;

	if (opt.configs == MAX_CONFIGS)
		usage_error("--config: more than %d", MAX_CONFIGS);
	for (i = 0; i < ARRAY_SIZE(configs); i++)
		if (!strcmp(text, configs[i].name))
			break;
	if (i < ARRAY_SIZE(configs)) {
		*c = configs[i];
	} else if (!strncmp(text, "fixed-", 6)) {
		c->kind = BENCH_COW;
		c->what = "pages copied ahead";
		c->ahead = parse_number("--config: fixed-N", text + 6, 1,
					COW_MAX_AHEAD);
		snprintf(c->name, sizeof(c->name), "fixed-%d", c->ahead);
	} else if (!strncmp(text, "adaptive-", 9)) {
		c->kind = BENCH_COW;
		c->what = "the kernel chooses, up to a bound";
		c->ahead = BENCH_ADAPTIVE;
		c->bound = parse_number("--config: adaptive-N", text + 9, 1,
					BENCH_MAX_BOUND);
		snprintf(c->name, sizeof(c->name), "adaptive-%d", c->bound);
	} else {
		usage_error("--config: unknown configuration '%s'; --list tells their names",
			    text);
	}
	for (i = 0; i < opt.configs; i++)
		if (!strcmp(opt.config[i].name, c->name))
			usage_error("--config: '%s' twice", c->name);
	opt.configs++;
}

/* Call add() for each word between commas. */
static void each_word(char *list, void (*add)(const char *word))
{
	char *word;

	do {
		word = strsep(&list, ",");
		add(word);
	} while (list);
}

static void list_all(void)
{
	unsigned int i;

	puts("Workloads:");
	for (i = 0; i < bench_nr_workloads; i++)
		printf("  %-22s %s\n", bench_workloads[i].name,
		       bench_workloads[i].what);
	puts("Configurations:");
	for (i = 0; i < ARRAY_SIZE(configs); i++)
		printf("  %-22s %s\n", configs[i].name, configs[i].what);
}

/* The numbers of the question; options after it may change them. */
static void ask_question(void)
{
	opt.question = true;
	bench_snapshot.writers = 28;
	bench_snapshot.checkpointers = 4;
	bench_snapshot.batch = 2 << 20;
	bench_snapshot.whole = true;
}

static void parse_options(int argc, char **argv)
{
	enum { WORKLOAD = 256, CONFIG, SIZE, REPEAT, SEED, WRITERS,
	       CHECKPOINTERS, BATCH, QUESTION, QUICK, STATS, JSON, CDF, MODE,
	       LIST, HELP };
	static const struct option options[] = {
		{ "workload", required_argument, NULL, WORKLOAD },
		{ "config", required_argument, NULL, CONFIG },
		{ "size", required_argument, NULL, SIZE },
		{ "repeat", required_argument, NULL, REPEAT },
		{ "seed", required_argument, NULL, SEED },
		{ "writers", required_argument, NULL, WRITERS },
		{ "checkpointers", required_argument, NULL, CHECKPOINTERS },
		{ "batch", required_argument, NULL, BATCH },
		{ "question", no_argument, NULL, QUESTION },
		{ "quick", no_argument, NULL, QUICK },
		{ "stats", no_argument, NULL, STATS },
		{ "json", no_argument, NULL, JSON },
		{ "cdf", no_argument, NULL, CDF },
		{ "mode", required_argument, NULL, MODE },
		{ "list", no_argument, NULL, LIST },
		{ "help", no_argument, NULL, HELP },
		{}
	};
	unsigned int i;
	int c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case WORKLOAD:
			each_word(optarg, add_glob);
			break;
		case CONFIG:
			each_word(optarg, add_config);
			break;
		case SIZE:
			each_word(optarg, add_size);
			break;
		case REPEAT:
			opt.repeat = parse_number("--repeat", optarg, 1,
						  BENCH_MAX_REPEAT);
			break;
		case SEED:
			opt.seed = parse_number("--seed", optarg, 0, ~0ULL);
			break;
		case WRITERS:
			bench_snapshot.writers =
				parse_number("--writers", optarg, 1,
					     BENCH_MAX_WRITERS);
			break;
		case CHECKPOINTERS:
			bench_snapshot.checkpointers =
				parse_number("--checkpointers", optarg, 1,
					     BENCH_MAX_WRITERS);
			break;
		case BATCH:
			bench_snapshot.batch = parse_batch(optarg);
			break;
		case QUESTION:
			ask_question();
			break;
		case QUICK:
			opt.quick = true;
			break;
		case STATS:
			opt.stats = true;
			break;
		case JSON:
			opt.json = true;
			break;
		case CDF:
			opt.cdf = true;
			break;
		case MODE:
			opt.mode = optarg;
			break;
		case LIST:
			list_all();
			exit(written_out(0));
		case HELP:
		case 'h':
			print_help();
			exit(written_out(0));
		default:
			fputs("Try 'cow_bench --help'.\n", stderr);
			exit(EXIT_USAGE);
		}
	}
	if (optind < argc)
		usage_error("unexpected argument '%s'", argv[optind]);
	if (opt.question && opt.globs)
		usage_error("--question is about the workload 'snapshot': leave out --workload");
	if (opt.question)
		add_glob("snapshot");
	if (opt.question && !opt.sizes)
		add_size("1G");
	if (opt.question && !opt.configs) {
		add_config("off");
		add_config("adaptive");
		add_config("populate-write");
	}
	if (!opt.sizes) {
		add_size(opt.quick ? "4M" : "16M");
		if (!opt.quick)
			add_size("64M");
	}
	if (!opt.configs)
		for (i = 0; i < ARRAY_SIZE(configs); i++)
			opt.config[opt.configs++] = configs[i];
	for (i = 0; i < opt.sizes; i++) {
		if (opt.quick)
			opt.size[i].repeat = 3;
		if (opt.repeat)
			opt.size[i].repeat = opt.repeat;
	}
}

/* The region and its copies, what a row needs per page, and some more */
static void check_memory(void)
{
	long long avail = cow_file_key("/proc/meminfo", "MemAvailable");
	unsigned long long need;
	unsigned int i;

	for (i = 0; i < opt.sizes; i++) {
		need = opt.size[i].bytes / 16 * 35 + (32 << 20);
		/*
		 * The copy, in both processes, and the array's old pages; and the
		 * time of each writer's first write to a page
		 */
		if (opt.question)
			need += opt.size[i].bytes * 3 +
				opt.size[i].bytes / cow_page_size() * 8 *
				bench_snapshot.writers;
		if (avail >= 0 && need / 1024 > (unsigned long long)avail)
			usage_error("--size: %zu MB need %llu MB of memory; available are %lld MB",
				    opt.size[i].bytes >> 20, need >> 20,
				    avail >> 10);
	}
}

static bool selected(const struct bench_workload *w)
{
	unsigned int i;

	for (i = 0; i < opt.globs; i++)
		if (!fnmatch(opt.glob[i], w->name, 0))
			return true;
	return !opt.globs;
}

/*
 * Settings
 */

/* A window that adapts, and its bound: the configuration's, or as it was. */
static const char *apply_adaptive(const struct bench_config *c)
{
	static const char path[] = COW_SYSCTL_DIR "cow_precopy_max";
	static long as_it_was = -1;
	char text[16];

	if (cow_sysctl_write("cow_precopy_pages", 0) == -EINVAL)
		return "this kernel's window does not adapt: vm.cow_precopy_pages refuses 0";
	if (as_it_was < 0 && cow_read_long(path, &as_it_was))
		return c->bound ? "this kernel's window has no bound: no vm.cow_precopy_max" : NULL;
	snprintf(text, sizeof(text), "%ld", c->bound ?: as_it_was);
	if (!bench_tweak(path, text))
		return "cannot set vm.cow_precopy_max: refused, or not root";
	return NULL;
}

/*
 * NULL, or why this kernel or this user cannot have that configuration. Without
 * root nothing is counted, but what needs no setting to be changed can be timed.
 */
static const char *apply(const struct bench_config *c, bool stats)
{
	const char *reason = cow_missing();
	long on;

	rep->counted = false;
	if (reason)
		return c->ahead ? reason : NULL;
	cow_want("cow_sample_interval", 0);
	reason = cow_want("cow_stats", stats);
	/* Counts may be missing, but what is timed is what was asked for. */
	if (reason && (!stats || opt.stats))
		return reason;
	rep->counted = !cow_sysctl_read("cow_stats", &on) && on;
	reason = c->ahead == BENCH_ADAPTIVE ? apply_adaptive(c) : NULL;
	if (!reason && c->ahead)
		reason = cow_want("cow_precopy_pages",
				  c->ahead == BENCH_ADAPTIVE ? 0 : c->ahead);
	return reason ?: cow_want("cow_precopy", !!c->ahead);
}

/*
 * Cases
 */

static int run_rep(const struct bench_workload *w,
		   const struct bench_config *c, enum bench_pass pass)
{
	const char *reason;

	rep->workload = w;
	rep->config = c;
	rep->plan = plan;
	rep->pass = pass;
	rep->kernel_times = opt.cdf;
	reason = apply(c, opt.stats || pass == BENCH_COUNTING);
	if (reason)
		return bench_skip(rep, "%s", reason);
	return bench_run_fresh(rep);
}

static void note_why(struct bench_result *res)
{
	memcpy(res->why, rep->why, sizeof(res->why));
}

static double per_page(void)
{
	return (double)rep->elapsed / rep->nr_written;
}

static int count(struct bench_result *res)
{
	int ret = run_rep(res->workload, res->config, BENCH_COUNTING);

	if (ret) {
		note_why(res);
		return ret;
	}
	res->parallel = bench_cpus() > 1 &&
			(res->workload->writers > 1 || res->workload->parallel);
	res->written = rep->nr_written;
	res->faults = rep->faults;
	res->counts = rep->counts;
	res->copied_first = rep->changed_first;
	res->changed = rep->changed;
	res->times = rep->times;
	res->copy_ns = kernel_copy_ns ?: memcpy_ns;
	res->copy_from = kernel_copy_ns ? "kernel" : "memcpy";
	return BENCH_OK;
}

static int time_it(struct bench_result *res)
{
	int ret = run_rep(res->workload, res->config, BENCH_TIMING);

	if (ret)
		note_why(res);
	else
		res->per_page[res->repeats++] = per_page();
	res->phases = rep->phases;
	memcpy(res->extra, rep->extra, sizeof(res->extra));
	memcpy(res->note, rep->note, sizeof(res->note));
	return ret;
}

static int time_writes(struct bench_result *res)
{
	int ret = run_rep(res->workload, res->config, BENCH_LATENCY);

	if (ret)
		note_why(res);
	res->latency = rep->latency;
	res->nr_latency = rep->nr_latency;
	return ret;
}

static const struct bench_config *find_config(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(configs) - 1; i++)
		if (!strcmp(configs[i].name, name))
			break;
	return &configs[i];
}

/*
 * What copying a page takes on this boot, with memory of that size; also warms
 * up. Not in each case: with more threads than CPUs a copy would seem to last as
 * long as the time slice that it was interrupted for.
 */
static int measure_copying(size_t bytes)
{
	const struct bench_workload *seq = bench_find_workload("seq");
	int ret;

	/* 0: unknown, as a user who may not change the sysctls cannot run these. */
	kernel_copy_ns = 0;
	memcpy_ns = 0;
	bench_make_plan(plan, seq, bytes / cow_page_size(), opt.seed);
	ret = run_rep(seq, find_config("off"), BENCH_COUNTING);
	if (ret == BENCH_FAIL)
		return ret;
	if (ret == BENCH_OK && rep->copies_timed)
		kernel_copy_ns = (double)rep->copy_ns / rep->copies_timed;
	ret = run_rep(seq, find_config("memcpy"), BENCH_TIMING);
	if (ret == BENCH_FAIL)
		return ret;
	if (ret == BENCH_OK)
		memcpy_ns = per_page();
	return BENCH_OK;
}

struct totals {
	unsigned int ok;
	unsigned int skipped;
};

static void report(struct bench_result *res, int ret, struct totals *totals)
{
	/* Nothing that comes after it could be trusted. */
	if (ret == BENCH_FAIL) {
		fprintf(stderr, "cow_bench: %s, %s, %zu pages: %s\n",
			res->workload->name, res->config->name, res->pages,
			res->why);
		exit(1);
	}
	if (opt.json)
		bench_print_json(res, opt.seed, opt.cdf);
	else
		bench_print_row(res);
	/* A full disk: the rows that are left would be lost, too. */
	if (written_out(0))
		exit(EXIT_USAGE);
	if (ret)
		totals->skipped++;
	else
		totals->ok++;
}

/* The bytes for a workload and the i-th size; 0 if it had that size already */
static size_t bytes_for(const struct bench_workload *w, unsigned int i)
{
	size_t most = w->most ?: ~0UL;
	unsigned int k;

	for (k = 0; k < i; k++)
		if (opt.size[k].bytes >= most)
			return 0;
	return opt.size[i].bytes < most ? opt.size[i].bytes : most;
}

/* All configurations of one workload and size, interleaved */
static void run_workload(const struct bench_workload *w, size_t bytes,
			 unsigned int repeat, struct totals *totals)
{
	static struct bench_result results[MAX_CONFIGS];
	static int ret[MAX_CONFIGS];
	unsigned int i, k, n = opt.configs;

	if (!bytes)
		return;
	bench_make_plan(plan, w, bytes / cow_page_size(), opt.seed);
	if (!opt.json)
		bench_print_heading(w, plan->pages);
	for (i = 0; i < n; i++) {
		memset(&results[i], 0, sizeof(results[i]));
		results[i].workload = w;
		results[i].config = &opt.config[i];
		results[i].pages = plan->pages;
		results[i].mode = opt.mode;
		ret[i] = count(&results[i]);
	}
	for (k = 0; k < repeat * n; k++) {
		/* Another one begins in each repetition. */
		i = (k / n + k) % n;
		if (!ret[i])
			ret[i] = time_it(&results[i]);
	}
	for (i = 0; i < n; i++) {
		if (!ret[i])
			ret[i] = time_writes(&results[i]);
		report(&results[i], ret[i], totals);
	}
	for (i = 0; i < n && opt.question && !opt.json; i++)
		if (!ret[i])
			bench_print_answer(&results[i], ret[0] ? NULL : &results[0]);
}

/* The process that works; returns the exit status. */
static int work(void)
{
	struct totals totals = {};
	char node[128];
	size_t pages = 0, writes;
	unsigned int i, k;

	bench_pin();
	if (opt.question) {
		bench_use_node(node, sizeof(node));
		fprintf(opt.json ? stderr : stdout, "Placement: %s\n", node);
	}
	bench_init_clock();
	for (i = 0; i < opt.sizes; i++)
		if (opt.size[i].bytes / cow_page_size() > pages)
			pages = opt.size[i].bytes / cow_page_size();
	plan->max = pages * BENCH_MAX_WRITES;
	writes = pages * bench_snapshot.writers;
	if (writes < plan->max)
		writes = plan->max;
	plan->order = bench_alloc(plan->max * sizeof(*plan->order));
	if (!plan->order || bench_rep_init(rep, pages, writes)) {
		fputs("cow_bench: no memory\n", stderr);
		return EXIT_USAGE;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (i = 0; i < opt.sizes; i++) {
		rep->marked = false;
		if (measure_copying(opt.size[i].bytes)) {
			fprintf(stderr, "cow_bench: %s\n", rep->why);
			return 1;
		}
		rep->marked = true;
		for (k = 0; k < bench_nr_workloads; k++)
			if (selected(&bench_workloads[k]))
				run_workload(&bench_workloads[k],
					     bytes_for(&bench_workloads[k], i),
					     opt.size[i].repeat, &totals);
	}
	return totals.ok ? 0 : EXIT_SKIPPED;
}

/* The worker's end, or a signal for us: that ends the worker first. */
static int wait_for(pid_t pid, const sigset_t *signals)
{
	int sig, status, ended_by = 0;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		sig = sigwaitinfo(signals, NULL);
		if (sig <= 0 || sig == SIGCHLD)
			continue;
		ended_by = sig;
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		break;
	}
	if (ended_by)
		return 128 + ended_by;
	if (!WIFSIGNALED(status))
		return WEXITSTATUS(status);
	fprintf(stderr, "cow_bench: ended by signal %d (%s)\n",
		WTERMSIG(status), strsignal(WTERMSIG(status)));
	return 1;
}

static int supervise(void)
{
	pid_t self = getpid(), pid;
	sigset_t signals, old;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, &old);
	pid = fork();
	if (pid < 0) {
		fprintf(stderr, "cow_bench: fork: %s\n", strerror(errno));
		return EXIT_USAGE;
	}
	if (!pid) {
		sigprocmask(SIG_SETMASK, &old, NULL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != self)
			_exit(EXIT_USAGE);
		exit(work());
	}
	return wait_for(pid, &signals);
}

int main(int argc, char **argv)
{
	int status;

	/* What fork-exec executes */
	if (argc == 2 && !strcmp(argv[1], BENCH_NOTHING))
		return 0;
	parse_options(argc, argv);
	check_memory();
	rep = bench_alloc(sizeof(*rep));
	plan = bench_alloc(sizeof(*plan));
	if (!rep || !plan || bench_save_settings()) {
		fputs("cow_bench: no memory\n", stderr);
		return EXIT_USAGE;
	}
	status = supervise();
	bench_remove_cgroup(rep);
	bench_restore_settings();
	return status;
}
