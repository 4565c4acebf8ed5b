# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# bench cost: the cost of the series in instructions per fault, with its options off
# and on and with its sysctls off and on, and (--objects) the difference in code with
# its options off.
#
# What has no option is the counters in vmstat and memory.stat, and the trace event.
# The rest must cost next to nothing over a kernel that has only these.

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

# Without memory cgroups the counters in memory.stat cost nothing.
NO_MEMCG=' cgroup_disable=memory'

measure_cost()
{
	local status=0
	use_mode icount
	prepare_bench
	cost_boot stats0
	cost_boot stats1 --stats
	OPTIONS_OFF=1
	need_kernel "$ARCH"
	cost_boot off
	APPEND+=$NO_MEMCG cost_boot off-no-memcg
	OPTIONS_OFF=
	UNPATCHED=1
	prepare_sources
	need_kernel "$ARCH"
	cost_boot plain
	APPEND+=$NO_MEMCG cost_boot plain-no-memcg
	"$PYTHON" "$ROOT/scripts/bench/cost.py" --results "$RESULTS" ${ROWS_FILE:+--json "$ROWS_FILE"} \
		"$LOGS"/{plain,off,stats0,stats1,plain-no-memcg,off-no-memcg}.json || status=$?
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
	if [ -z "$UNPATCHED$OPTIONS_OFF" ]; then
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

# counters_commit: the last patch before the first option of the series
counters_commit()
{
	local commit
	while read -r commit; do
		kgit -C "$K_TREE" diff "$commit~" "$commit" -- '*Kconfig' | grep -q '^+config COW_' || continue
		kgit -C "$K_TREE" rev-parse "$commit~"
		return
	done < <(kgit -C "$K_TREE" rev-list --reverse base..prepared -- mm/Kconfig)
	die "the series adds no option"
}

# compare_objects: with the options off, is the code that of the kernel that has only
# the patches before the first option?
compare_objects()
{
	local sources objects counters
	BENCH=1
	ARCH=x86_64
	OPTIONS_OFF=1
	prepare_tree
	prepare_unpatched
	counters=$(counters_commit)
	mapfile -t sources < <(changed_sources)
	[ ${#sources[@]} -gt 0 ] || die "the series changes no existing file"
	lay_out_tree "the kernel with the counters only" "$K_DIR/counters/tree" "$counters"
	build_objects "$K_DIR/counters" "with only the counters of" "${sources[@]/%.c/.o}"
	objects=$OUT
	# The same configuration, in which the options of the series are off.
	build_objects "$K_DIR" with "${sources[@]/%.c/.o}"
	compare_text "$objects" "$OUT" "${sources[@]/%.c/.o}"
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

# compare_text WITHOUT WITH OBJECT...: bytes of code, which may grow by MOST_BYTES in all
MOST_BYTES=64
compare_text()
{
	local without=$1 with=$2 object before after sum=0
	shift 2
	for object; do
		before=$(text_bytes "$without/$object")
		after=$(text_bytes "$with/$object")
		[ "$before" -gt 0 ] && [ "$after" -gt 0 ] || die "$object has no code"
		sum=$((sum + after - before))
		printf '%-28s %8d bytes of code, %+d\n' "$object" "$after" $((after - before))
	done
	if [ "$sum" -le "$MOST_BYTES" ]; then
		record pass "code with the options off" "$sum bytes more, allowed $MOST_BYTES"
	else
		record fail "code with the options off" "$sum bytes more, allowed $MOST_BYTES"
	fi
}

text_bytes()
{
	local bytes sum=0
	while read -r bytes; do
		sum=$((sum + bytes))
	done < <(size -A "$1" | sed -n 's/^\.text[^ ]* *\([0-9]*\) .*/\1/p')
	echo "$sum"
}
