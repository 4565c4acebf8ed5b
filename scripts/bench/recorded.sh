# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# bench --compare, --check and --record: compares rows, and records them in
# fixtures/results. Needs run.sh.

compare_files()
{
	[ ${#ARGS[@]} -eq 2 ] || die "--compare needs two files of rows: --compare A.json B.json"
	open_results
	compare_rows "${ARGS[@]}"
}

# compare_rows OLD NEW: records a result for each row
compare_rows()
{
	local status=0
	rows compare ${TOLERANCE:+--tolerance "$TOLERANCE"} --results "$RESULTS" "$@" || status=$?
	[ "$status" -le 1 ] || leave "$E_USAGE"
}

#
# Recorded results
#

# recorded NAME: the file of a kernel
recorded()
{
	echo "$ROOT/fixtures/results/$1.json"
}

recorded_names()
{
	find "$ROOT/fixtures/results" -name '*.json' -printf '%f\n' 2> /dev/null | sort | paste -sd' '
}

# The recorded cases. Unrelated kernel changes, other arguments, a larger initramfs or
# another order of the cases change them by less than 0.4 %. Not recorded are cases that
# depend on scheduling and vary by 1 % or more (many processes, reclaim, the snapshot).
RECORDED=(--workload
	'single,seq,reverse,stride-*,random,sparse-*,zipf,child-*,multi-child-*,threads-2-*,*thp*,grow'
	--config 'off,fixed-1,fixed-15,adaptive,populate-write')

# quick_set DIR: measures the recorded cases
quick_set()
{
	use_mode icount
	prepare_bench
	check_selection --quick "${RECORDED[@]}"
	measure "$1" --quick "${RECORDED[@]}"
}

check_recorded()
{
	local dir=$LOGS/guest
	[ -f "$(recorded "$K_NAME")" ] ||
		die "nothing is recorded for $K_NAME; fixtures/results has: $(recorded_names)"
	quick_set "$dir"
	compare_rows "$(recorded "$K_NAME")" "$dir/rows.json"
}

record_all()
{
	local kernel failed
	mkdir -p "$ROOT/fixtures/results"
	for kernel in ${KERNEL:-$(kernel_names)}; do
		select_kernel "$kernel"
		[ -n "$K_PACKAGE" ] || die "--record is for the kernels of fixtures/kernels"
		failed=$(count_results fail)
		quick_set "$LOGS/$K_NAME"
		record_rows "$LOGS/$K_NAME/rows.json"
		rows record "$LOGS/$K_NAME/rows.json" > "$LOGS/$K_NAME/recorded.json" || leave "$E_USAGE"
		if [ "$(count_results fail)" -gt "$failed" ]; then
			say "not recorded: two boots of $K_NAME do not agree"
		else
			replace_recorded "$LOGS/$K_NAME/recorded.json" "$(recorded "$K_NAME")"
		fi
	done
}

# replace_recorded NEW OLD: not by fewer rows
replace_recorded()
{
	local rows
	rows=$(grep -c '^{' "$1")
	if [ -f "$2" ] && [ "$rows" -lt "$(grep -c '^{' "$2")" ]; then
		die "only $rows rows were measured, $2 has $(grep -c '^{' "$2")" \
			"if these cases are gone for good, remove that file and run --record again"
	fi
	mv "$1" "$2"
	say "recorded: ${2#"$ROOT"/}"
}
