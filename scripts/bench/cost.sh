# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# bench cost: the cost of the series in instructions per fault, with its options off
# and on and with its sysctls off and on. What its code grows by with the options off is
# the gate's check build-size.
#
# What has no option is the counters in vmstat and memory.stat, and the trace event.
# The rest must cost next to nothing over a kernel that has only the patches with these.

# Faults that copy, and faults on pages that are no longer shared
COST_CASE=(--workload 'seq,child-gone' --size 16M --json)

# Without memory cgroups the counters in memory.stat cost nothing.
NO_MEMCG=' cgroup_disable=memory'

bench_cost()
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
	need_optionless_kernel
	cost_boot optionless
	OPTIONS_OFF=
	UNPATCHED=1
	prepare_sources
	need_kernel "$ARCH"
	cost_boot plain
	APPEND+=$NO_MEMCG cost_boot plain-no-memcg
	"$PYTHON" "$ROOT/scripts/bench/cost.py" --results "$RESULTS" ${ROWS_FILE:+--json "$ROWS_FILE"} \
		"$LOGS"/{plain,optionless,off,stats0,stats1,plain-no-memcg,off-no-memcg}.json || status=$?
	[ "$status" -le 1 ] || leave "$E_USAGE"
}

# need_optionless_kernel: that of the patches before the first that adds an option
need_optionless_kernel()
{
	local dir=$K_DIR/optionless first
	first=$(kgit -C "$K_TREE" rev-list --reverse base..HEAD -- '*Kconfig*' | sed -n 1p)
	[ -n "$first" ] || die "no patch of $K_NAME adds an option: there is nothing to be off"
	lock "$K_NAME.optionless"
	lay_out_once "the tree without options" "$dir" "$first^"
	reset_tree "$dir/tree" "$first^"
	unlock "$K_NAME.optionless"
	need_kernel "$ARCH" "$dir"
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
