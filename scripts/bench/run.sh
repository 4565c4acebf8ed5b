# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# bench: the cases of a run, its rows, and their report. Needs bench.sh.

# select_cases: sets SELECTION to cow_bench's options, from --quick and --filter
select_cases()
{
	SELECTION=()
	[ -z "$QUICK" ] || SELECTION+=(--quick)
	if [ -n "$PLOTS" ] && [ -z "$HTML$ROWS_FILE$FILTER" ]; then
		SELECTION+=("${PLOT_CASES[@]}")
		[ -n "$QUICK" ] || SELECTION+=(--size 16M)
	fi
	[ -z "$FILTER" ] || [ -z "${FILTER%%:*}" ] || SELECTION+=(--workload "${FILTER%%:*}")
	case "$FILTER" in
	*:*) SELECTION+=(--config "${FILTER#*:}") ;;
	esac
	check_selection "${SELECTION[@]}"
}

# check_selection OPTION...: cow_bench has cases for them. If it does not run here, the
# guest says so.
check_selection()
{
	local message
	! is_foreign || return 0
	message=$("$BENCH_PATH" "$@" --list 2>&1 > /dev/null) ||
		die "--filter '$FILTER': $(printf '%s\n' "$message" | head -n 1)"
}

# The case that is run in two boots, which must agree
SHORT_CASE=(--workload seq --config 'off,nofork' --size 4M --repeat 3)

# The cases of the plots by window size, with the lower bounds
WINDOW_CASES=(--workload 'seq,reverse,random,stride-4,sparse-5,child-gone'
	--config 'off,fixed-1,fixed-2,fixed-4,fixed-8,fixed-15,adaptive-1,adaptive-3,adaptive-7,adaptive-15,populate-write,nofork,memcpy')

# The cases of the other plots of a README
PLOT_CASES=(--workload 'seq,random,snapshot' --config 'off,fixed-1,fixed-15,adaptive')

# measure DIR OPTION...: the rows of one kernel in DIR/rows.json
measure()
{
	local dir=$1 cdf=()
	shift
	! has_plots || cdf=(--cdf)
	begin_job
	[ -z "$ICOUNT" ] || section short "/$BENCH_PROGRAM" --json "${SHORT_CASE[@]}"
	section rows "/$BENCH_PROGRAM" --json "${cdf[@]}" "$@"
	! has_plots || section window "/$BENCH_PROGRAM" --json "${WINDOW_CASES[@]}" \
		--size "$([ -n "$QUICK" ] && echo 4M || echo 16M)"
	run_job "$dir"
	collect_rows "$dir" rows.out > "$dir/rows.json" || leave "$E_USAGE"
	! has_plots || collect_rows "$dir" window.out > "$dir/window.json" || leave "$E_USAGE"
	[ -z "$ICOUNT" ] || repeat_short_case "$dir"
}

# repeat_short_case DIR: in a second boot, and compares the two
repeat_short_case()
{
	local dir=$1 status=0
	begin_job
	section short "/$BENCH_PROGRAM" --json "${SHORT_CASE[@]}"
	run_job "$dir.again"
	collect_rows "$dir" short.out > "$dir/short.json" &&
	collect_rows "$dir.again" short.out > "$dir.again/short.json" || leave "$E_USAGE"
	rows repeat --results "$RESULTS" "$dir/short.json" "$dir.again/short.json" || status=$?
	[ "$status" -le 1 ] || leave "$E_USAGE"
	echo
}

# record_rows FILE: a row that was measured is a passed test
record_rows()
{
	rows results "$1" >> "$RESULTS"
}

run_benchmarks()
{
	local dir=$LOGS/guest SELECTION=()
	use_mode "$MODE"
	need_gnuplot
	prepare_program
	select_cases
	need_kernel "$ARCH"
	measure "$dir" "${SELECTION[@]}"
	rows show "$dir/rows.json"
	record_rows "$dir/rows.json"
	[ -z "$ROWS_FILE" ] || cp "$dir/rows.json" "$ROWS_FILE"
	! has_plots || draw --window "$dir/window.json" "${ARGS[@]/#/--apps=}" "$dir/rows.json"
	say "elapsed: ${SECONDS}s"
}

# Writes by a KVM guest whose memory a child shares, beside the same writes by the
# program itself
KVM_CASES=(--workload 'seq,random,kvm-seq,kvm-random' --config 'off,fixed-1,fixed-15,adaptive,nofork')

bench_kvm()
{
	local dir=$LOGS/guest
	use_mode "$MODE"
	BENCH_KVM=1
	prepare_bench
	begin_job
	section rows "/$BENCH_PROGRAM" --json ${QUICK:+--quick} "${KVM_CASES[@]}"
	run_job "$dir"
	collect_rows "$dir" rows.out > "$dir/rows.json" || leave "$E_USAGE"
	rows show "$dir/rows.json"
	record_rows "$dir/rows.json"
	[ -z "$ROWS_FILE" ] || cp "$dir/rows.json" "$ROWS_FILE"
	! grep -q 'KVM: \|no /dev/kvm' "$dir/rows.json" || die "KVM does not run in the guest; log: $dir/job.log"
}

has_plots()
{
	[ -n "$HTML$PLOTS" ]
}

need_gnuplot()
{
	! has_plots || command -v gnuplot > /dev/null ||
		die "--html and --plots need gnuplot. Install it with" \
			"apt-get install -y --no-install-recommends gnuplot-nox"
}

# draw ARGS...: report.py's page, plots, or both
draw()
{
	step "drawing" report.log \
		"$PYTHON" "$ROOT/scripts/bench/report.py" ${HTML:+--html "$HTML"} ${PLOTS:+--plots "$PLOTS"} "$@" ||
		leave "$E_USAGE"
	[ -z "$HTML" ] || say "report: $HTML"
	[ -z "$PLOTS" ] || say "plots: $PLOTS"
}

# check_app_rows: ARGS are files of rows of real programs, for the report
check_app_rows()
{
	[ ${#ARGS[@]} -eq 0 ] || has_plots || no_arguments
	[ ${#ARGS[@]} -eq 0 ] ||
		"$PYTHON" "$ROOT/scripts/bench/report.py" "${ARGS[@]/#/--apps=}" || leave "$E_USAGE"
}
