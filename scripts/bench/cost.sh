# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# bench cost: the cost of the series in instructions per fault, with its sysctls off
# and on, and (--objects) the difference in code with its options off.

# Faults that copy, and faults on pages that are no longer shared
COST_CASE=(--workload 'seq,child-gone' --size 16M --json)

bench_cost()
{
	if [ -n "$OBJECTS" ]; then
		compare_objects
	else
		measure_cost
	fi
}

measure_cost()
{
	local status=0
	use_mode icount
	prepare_bench
	cost_boot stats0
	cost_boot stats1 --stats
	UNPATCHED=1
	prepare_sources
	need_kernel "$ARCH"
	cost_boot plain
	python3 "$ROOT/scripts/bench/cost.py" --results "$RESULTS" ${ROWS_FILE:+--json "$ROWS_FILE"} \
		"$LOGS"/{plain,stats0,stats1}.json || status=$?
	[ "$status" -le 1 ] || leave "$E_USAGE"
}

# cost_boot NAME OPTION...: rows in LOGS/NAME.json. Each kernel and setting has its own
# boot and runs the compared cases first: earlier work changes the state of the page
# allocator, with a larger effect than the cost of the hooks.
cost_boot()
{
	local name=$1 sections=(off.out)
	shift
	begin_job
	section off "/$BENCH_PROGRAM" "${COST_CASE[@]}" --config off "$@"
	if [ -z "$UNPATCHED" ]; then
		section ahead "/$BENCH_PROGRAM" "${COST_CASE[@]}" --config fixed-1,fixed-15 "$@"
		sections+=(ahead.out)
	fi
	run_job "$LOGS/$name"
	collect_rows "$LOGS/$name" "${sections[@]}" > "$LOGS/$name.json" || leave "$E_USAGE"
}

#
# Objects
#

# The existing C files that the series changes
changed_sources()
{
	kgit -C "$K_TREE" diff --name-only --diff-filter=M base prepared -- '*.c' ':!tools'
}

# compare_objects: with the options off, is the code that of the kernel without the series?
compare_objects()
{
	local sources objects
	BENCH=1
	ARCH=x86_64
	prepare_tree
	prepare_unpatched
	mapfile -t sources < <(changed_sources)
	[ ${#sources[@]} -gt 0 ] || die "the series changes no existing file"
	UNPATCHED=1
	build_objects "$K_DIR/unpatched" without "${sources[@]/%.c/.o}"
	objects=$OUT
	# The same configuration, in which the options of the series are off.
	build_objects "$K_DIR" with "${sources[@]/%.c/.o}"
	compare_disassembly "$objects" "$OUT" "${sources[@]/%.c/.o}"
}

# build_objects BASE WHAT OBJECT...: sets OUT
build_objects()
{
	local base=$1 what=$2
	shift 2
	OUT=$base/x86_64-objects
	make_flags
	mkdir -p "$OUT"
	configure "$base/tree" "$OUT" x86_64
	step "compiling $# objects $what the series" build.log \
		kmake "$base/tree" "$OUT" x86_64 "$@" || {
			show_errors "$LOGS/build.log"
			die "the objects do not compile; log: $LOGS/build.log"
		}
}

compare_disassembly()
{
	local without=$1 with=$2 object
	shift 2
	for object; do
		disassemble "$without/$object" > "$SCRATCH/without.s"
		disassemble "$with/$object" > "$SCRATCH/with.s"
		[ -s "$SCRATCH/without.s" ] || die "$object has no code"
		if diff -u "$SCRATCH/without.s" "$SCRATCH/with.s" > "$SCRATCH/diff"; then
			printf '%-28s %6d lines, the same\n' "$object" "$(wc -l < "$SCRATCH/with.s")"
			record pass "$object with the options off"
		else
			cp "$SCRATCH/diff" "$LOGS/${object//\//-}.diff"
			printf '%-28s %6d lines differ\n' "$object" "$(grep -c '^[-+] ' "$SCRATCH/diff")"
			record fail "$object with the options off" \
				"its code differs from that without the series: $LOGS/${object//\//-}.diff"
		fi
	done
}

# disassemble OBJECT: without the first lines, which contain the file's name
disassemble()
{
	objdump -dr "$1" | sed 1,3d
}
