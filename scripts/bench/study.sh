# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The tables of the published study of copy-on-write faults, on this kernel.

STUDY_CASES=(--workload 'single,seq,random' --config 'off,fixed-1,fixed-15,adaptive')

bench_study()
{
	local dir=$LOGS/guest
	use_mode "$MODE"
	prepare_bench
	begin_job
	section rows "/$BENCH_PROGRAM" --json --cdf "${STUDY_CASES[@]}" --size "16M,64M"
	run_job "$dir"
	collect_rows "$dir" rows.out > "$dir/rows.json" || leave "$E_USAGE"
	"$PYTHON" "$ROOT/scripts/bench/study.py" "$dir/rows.json" || leave "$E_USAGE"
	record_rows "$dir/rows.json"
	[ -z "$ROWS_FILE" ] || cp "$dir/rows.json" "$ROWS_FILE"
	study_elsewhere
}

# How to run it without a guest
study_elsewhere()
{
	cat <<-END

	The same in nanoseconds of a real machine: fixtures/results/bare-metal.md. In short,
	as root, on a kernel of 'run_tests.sh package':

	  cow_bench --mode wall --json --cdf ${STUDY_CASES[*]} --size 16M,64M > rows
	  scripts/bench/rows.py collect rows > rows.json
	  scripts/bench/study.py rows.json

	END
}
