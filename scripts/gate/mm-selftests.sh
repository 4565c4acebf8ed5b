# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The kernel's own mm selftests for the gate. If a test of a program does not pass on the
# submission, each of its tests must have the same result on the base; otherwise the number
# of tests must be the same. The programs are those of the base; their time limits and
# arguments are in fixtures/mm-selftests.

. "$ROOT/scripts/gate/behaviour.sh"
. "$ROOT/scripts/bench/bench.sh"

# The programs to run; empty for all
MM_PROGRAMS=

# compare_mm_selftests [PROGRAM...]: all of them, or these
compare_mm_selftests()
{
	local mode
	MM_PROGRAMS=$*
	behaviour_tree
	base_tree
	# each program's own limit, and some for the guest to boot
	TIMEOUT=${TIMEOUT:-$(programs | awk '{ sum += $2 } END { print sum + 300 }')}
	ARCH=x86_64
	build_programs
	RUNS=$SCRATCH/runs
	mkdir -p "$RUNS"
	RUN_BASE_FIRST=base_survives
	for mode in $(modes); do
		results_of patched "$mode" "$mode"
		compare "$mode"
		note_skipping_programs "$mode"
	done
	warn_silent_programs "$mode"
}

# base_survives: run after the submission did not; base_failed() ends the check if the base
# does not either
base_survives()
{
	results_of base base.survives ''
}

# The settings that our own series is run with: nothing ahead, a fixed window, an adaptive
# one. Another submission is run as it is, and with what --set and --append switch on.
modes()
{
	if [ -n "$G_OURS" ]; then
		echo off 15 adaptive
	else
		echo patched
		[ -z "$SET$APPEND_ON" ] || echo switched
	fi
}

# programs: the lines of fixtures/mm-selftests for MM_PROGRAMS
programs()
{
	awk -v only="$MM_PROGRAMS" '
		/^(#|$)/ { next }
		{ name = $1; sub(/.*\//, "", name) }
		only == "" || index(" " only " ", " " name " ")' "$ROOT/fixtures/mm-selftests"
}

# Programs whose tests cannot be compared one by one
warn_silent_programs()
{
	local name
	sed -n 's/: @status .*//p' "$RUNS/$1" | while read -r name; do
		grep -qE "^$name: (# )?(not )?ok " "$RUNS/$1" ||
			warn "$name prints no result per test on this kernel: only its exit status is compared"
	done
}

# note_skipping_programs MODE: programs of which every test skips
note_skipping_programs()
{
	local name skipping
	skipping=$(sed -n -E 's/: (# )?ok .*# SKIP.*//p' "$RUNS/$1" | sort -u | while read -r name; do
		grep -E "^$name: (# )?(not )?ok " "$RUNS/$1" | grep -qv '# SKIP' || echo "$name"
	done | paste -sd' ')
	[ -z "$skipping" ] || note "$1: every test skips in this guest: $skipping"
}

# Programs that this kernel does not have, or that do not build here because of
# a missing library, are left out with a note or a warning.
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
	local APPEND=$APPEND
	[ "$3" != switched ] || APPEND+=" $APPEND_ON"
	boot_kernel "$1"
	BENCH_PATH=
	rm -rf "${LOGS:?}/$2"
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
	switched) SWITCH_ON=$SET switch_on_lines >> "$BENCH_JOB" ;;
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

# Tests that race with the kernel's own threads are flaky: a result is accepted if one
# of so many runs of the base has it, too.
BASE_RUNS=5

# compare MODE: with the base, the programs of which something failed, was skipped, or is
# missing
compare()
{
	local run name flaky=() different=() all
	mapfile -t all < <(programs_run)
	run_on_base 1 "${all[@]}"
	mapfile -t different < <({ not_all_passed "$1"; other_number "$1"; } | sort -u)
	for ((run = 1; run <= BASE_RUNS && ${#different[@]} > 0; run++)); do
		[ "$run" -ne 2 ] || flaky=("${different[@]}")
		run_on_base "$run" "${different[@]}"
		mapfile -t different < <(for name in "${different[@]}"; do
			timed_out_on_base "$name" || [ -z "$(differences "$1" "$name" "$run")" ] || echo "$name"
		done)
	done
	for name in "${different[@]}"; do
		differences "$1" "$name" "$BASE_RUNS" | fail_each "$1: "
	done
	for name in "${flaky[@]}"; do
		[[ " ${different[*]} " == *" $name "* ]] ||
			warn "$1: $name: flaky; its results were seen in a later run of the base"
	done
	warn_timed_out "$1"
	note "$1: $(grep -c ': \(# \)\?ok ' "$RUNS/$1" || true) ok, $(grep -c ': \(# \)\?not ok ' "$RUNS/$1" || true) not ok"
}

programs_run()
{
	( cd "$BENCH_FILES/selftests" && printf '%s\n' * )
}

# other_number MODE: programs that have not as many tests there as on the base. mm/cow has
# some for each size of folio, and none for a size that the kernel seems not to have.
other_number()
{
	local name
	programs_run | while read -r name; do
		[ "$(grep -c "^$name: .*ok " "$RUNS/$1")" -eq "$(grep -c "^$name: .*ok " "$RUNS/base.1")" ] || echo "$name"
	done
}

# not_all_passed MODE: programs with another status than 0, and those of which a test
# failed or was skipped
not_all_passed()
{
	local name
	programs_run | while read -r name; do
		grep -qxF "$name: @status 0" "$RUNS/$1" && ! grep -qE "^$name: (.*not ok |.*# SKIP)" "$RUNS/$1" ||
			echo "$name"
	done
}

# run_on_base NUMBER PROGRAM...: those of them that have not been run there so often
run_on_base()
{
	local number=$1 MM_PROGRAMS name
	shift
	MM_PROGRAMS=$(for name; do
		grep -qs "^$name: @status " "$RUNS/base.$number" || echo "$name"
	done | paste -sd' ')
	[ -n "$MM_PROGRAMS" ] || return 0
	results_of base base.now ''
	[ -s "$RUNS/base.now" ] || [ "$number" -gt 1 ] || die "no test ran on the base"
	cat "$RUNS/base.now" >> "$RUNS/base.$number"
}

# timed_out_on_base PROGRAM: timeout's own status, or that of its signals. How far it
# got does not matter. (If only the submission times out, that is a difference like any other.)
timed_out_on_base()
{
	grep -qsE "^$1: @status (124|137|143)$" "$RUNS/base.1"
}

# warn_timed_out MODE: what was not compared in it
warn_timed_out()
{
	local name
	not_all_passed "$1" | while read -r name; do
		! timed_out_on_base "$name" ||
			warn "$1: $name does not end in its time on the base: not compared"
	done
}

# differences MODE PROGRAM RUNS: what none of the first RUNS of the base has, and what each
# of them has and the submission has not
differences()
{
	local run files=()
	for ((run = 1; run <= $3; run++)); do
		! grep -qs "^$2: @status " "$RUNS/base.$run" || files+=("$RUNS/base.$run")
	done
	awk -v name="$2: " -v runs="${#files[@]}" '
		index($0, name) != 1 || seen[FILENAME, $0]++ { next }
		FILENAME == ARGV[1] { here[$0] = 1; next }
		{ base[$0]++ }
		END {
			for (line in here)
				if (!(line in base))
					print "not so on the base: " line
			for (line in base)
				if (base[line] == runs && !(line in here))
					print "on the base only: " line
		}' "$RUNS/$1" "${files[@]}" | sort
}
