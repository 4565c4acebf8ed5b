# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The kernel's own mm selftests for the gate: each on the base and on the submission,
# with the same results test by test. A failure that the base has must be the same
# failure. The programs are those of the base; what each takes is in
# fixtures/mm-selftests.

. "$ROOT/scripts/gate/behaviour.sh"
. "$ROOT/scripts/bench/bench.sh"

# compare_mm_selftests [PROGRAM...]: all of them, or these
compare_mm_selftests()
{
	local mode
	MM_PROGRAMS=$*
	behaviour_tree
	base_tree
	# each program's own limit, and some for the guest that boots
	TIMEOUT=${TIMEOUT:-$(programs | awk '{ sum += $2 } END { print sum + 300 }')}
	ARCH=x86_64
	build_programs
	RUNS=$SCRATCH/runs
	mkdir -p "$RUNS"
	results_of base base ''
	[ -s "$RUNS/base" ] || die "no test ran on the base"
	leave_out_late
	silent_programs
	for mode in $(modes); do
		results_of patched "$mode" "$mode"
		compare "$mode"
	done
}

# sanitize DEBUG: our kselftests with that debug configuration. A submission that does
# not carry our options has those of the kernel that fork and write.
sanitize()
{
	DEBUG=$1
	kselftests_on x86_64
}

# What a series of ours is asked with: nothing ahead, a fixed window, an adaptive one.
modes()
{
	if [ -n "$G_OURS" ]; then
		echo off 15 adaptive
	else
		echo patched
	fi
}

# A kernel that checks all it does takes several times as long.
programs()
{
	awk -v only="$MM_PROGRAMS" -v times="$([ -n "$DEBUG" ] && echo 5 || echo 1)" '
		/^(#|$)/ { next }
		{ name = $1; sub(/.*\//, "", name); $2 *= times }
		only == "" || index(" " only " ", " " name " ")' "$ROOT/fixtures/mm-selftests"
}

# Programs that were ended on the base for their time: how far they came tells nothing.
# One that only the submission keeps from its end is a difference like any other.
leave_out_late()
{
	local name late
	mapfile -t late < <(timed_out_programs < "$RUNS/base")
	for name in "${late[@]}"; do
		warn "$name does not end in its time on the base: not compared"
		rm -f "$BENCH_FILES/selftests/$name"
		grep_any -v "^$name: " "$RUNS/base" > "$SCRATCH/rest"
		mv "$SCRATCH/rest" "$RUNS/base"
	done
	[ -s "$RUNS/base" ] || die "no test came to its end on the base"
}

# Those whose status is timeout's own, or that of its signals
timed_out_programs()
{
	sed -nE 's/^(.*): @status (124|137|143)$/\1/p'
}

# Programs that do not say what each of their tests found
silent_programs()
{
	local name
	sed -n 's/: @status .*//p' "$RUNS/base" | while read -r name; do
		grep -qE "^$name: (# )?(not )?ok " "$RUNS/base" ||
			warn "$name says nothing test by test on this kernel: only its exit status is compared"
	done
}

# One program that this kernel does not have, or that does not build for want of a
# library, is left out, and said so.
build_programs()
{
	local path seconds arguments dir name base out=$SCRATCH/programs headers=$BASE_DIR/selftests/build
	base=$BASE_DIR/tree
	make_flags
	mkdir -p "$headers" "$out"
	kmake "$base" "$headers" x86_64 headers > "$LOGS/headers.log" 2>&1 ||
		die "make headers failed; log: $LOGS/headers.log"
	while read -r path seconds arguments; do
		dir=$(dirname "$path")
		name=$(basename "$path")
		if [ ! -f "$base/tools/testing/selftests/$dir/$name.c" ]; then
			note "$name: this kernel has none"
			continue
		fi
		mkdir -p "$out/$dir"
		make -s -C "$base/tools/testing/selftests/$dir" OUTPUT="$out/$dir" \
			KHDR_INCLUDES="-isystem $headers/usr/include" "$out/$dir/$name" \
			>> "$LOGS/programs.log" 2>&1 < /dev/null || {
				warn "$name is not built here, and not run: see $LOGS/programs.log"
				rm -f "$out/$dir/$name"
			}
	done < <(programs)
	# what the Makefile generates into the tree, all of it ignored
	kgit -C "$base" clean -fXq tools/testing/selftests/mm tools/testing/selftests/cgroup
	BENCH_FILES=$SCRATCH/files
	mkdir -p "$BENCH_FILES/selftests"
	while read -r path seconds arguments; do
		[ ! -x "$out/$path" ] || copy_program "$BENCH_FILES" "$out/$path" "/selftests/$(basename "$path")"
	done < <(programs)
}

# results_of KERNEL NAME MODE: one line for each test, in $RUNS/NAME
results_of()
{
	boot_kernel "$1"
	BENCH_PATH=
	begin_job
	set_mode "$3"
	add_programs
	run_job "$LOGS/$2"
	add_results "$LOGS/$2" > "$RUNS/$2"
}

set_mode()
{
	echo 'echo 16 > /proc/sys/vm/nr_hugepages' >> "$BENCH_JOB"
	case "$1" in
	off) set_sysctl cow_precopy 0 ;;
	15) set_sysctl cow_precopy 1; set_sysctl cow_precopy_pages 15 ;;
	adaptive) set_sysctl cow_precopy 1; set_sysctl cow_precopy_pages 0 ;;
	esac
}

add_programs()
{
	local path seconds arguments name
	while read -r path seconds arguments; do
		name=$(basename "$path")
		[ -x "$BENCH_FILES/selftests/$name" ] || continue
		printf 'echo "@section %s"\ncd /selftests; timeout -k 5 %s ./%s %s; echo "@status $?"\n' \
			"$name" "$seconds" "$name" "$arguments"
	done < <(programs) >> "$BENCH_JOB"
}

# add_results DIR: the programs' results, each line with its program's name
add_results()
{
	local path name
	while read -r path _; do
		name=$(basename "$path")
		[ -f "$1/$name.out" ] || continue
		tr -d '\r' < "$1/$name.out" | grep_any -a -E '^(# )?(not )?ok [0-9]|^@status ' | sed "s/^/$name: /"
	done < <(programs)
}

# A test that races with the kernel's own threads says now this, now that: what may be
# said the base tells, asked so often in all.
BASE_RUNS=5

# compare MODE: each program as on the base
compare()
{
	local name names
	mapfile -t names < <(sed 's/: .*//' "$RUNS/base" "$RUNS/$1" | sort -u)
	for name in "${names[@]}"; do
		[ -n "$(differences "$1" "$name")" ] || continue
		ask_base_again "$1" "$name"
		if [ -n "$(differences "$1" "$name")" ]; then
			differences "$1" "$name" | fail_each "$1: "
		else
			warn "$1: $name: not as in the base's first run, but not always the same there either"
		fi
	done
	note "$1: $(grep -c ': \(# \)\?ok ' "$RUNS/$1" || true) ok, $(grep -c ': \(# \)\?not ok ' "$RUNS/$1" || true) not ok"
}

# differences MODE NAME: what no run of the base has said, and what each of them has
differences()
{
	local run now=$SCRATCH/now.lines some=$SCRATCH/some.lines all=$SCRATCH/all.lines
	lines_of "$RUNS/$1" "$2" > "$now"
	lines_of "$RUNS/base" "$2" | tee "$some" > "$all"
	for run in "$RUNS/again.$2".*; do
		[ -f "$run" ] || continue
		lines_of "$run" "$2" > "$SCRATCH/run.lines"
		sort -u "$some" "$SCRATCH/run.lines" -o "$some"
		comm -12 "$all" "$SCRATCH/run.lines" > "$SCRATCH/both.lines"
		mv "$SCRATCH/both.lines" "$all"
	done
	comm -13 "$some" "$now" | sed 's/^/not so on the base: /'
	comm -23 "$all" "$now" | sed 's/^/on the base only: /'
}

# lines_of RUN NAME: each once, as a test that is there twice is of no use
lines_of()
{
	grep_any "^$2: " "$1" | sort -u
}

# ask_base_again MODE NAME: until it has said the same, or often enough
ask_base_again()
{
	local MM_PROGRAMS=$2 BASE_AGAIN=1 nr
	for ((nr = 2; nr <= BASE_RUNS; nr++)); do
		[ ! -f "$RUNS/again.$2.$nr" ] || continue
		results_of base "again.$2.$nr" ''
		[ -n "$(differences "$1" "$2")" ] || return 0
	done
}
