# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the benchmarks.

#
# bench: what needs no guest
#

# rows_file FILE MODE ROW...: a file of rows; ROW is "WORKLOAD CONFIG COST SPREAD
# WASTED [KEY=TEXT]", with min and max SPREAD below and above COST
rows_file()
{
	local file=$1 mode=$2 row workload config cost spread wasted more comma=
	shift 2
	{
		echo '['
		for row; do
			read -r workload config cost spread wasted more <<< "$row"
			printf '%s{"kernel": "k", "arch": "a", "mode": "%s", "workload": "%s", "config": "%s",' \
				"$comma" "$mode" "$workload" "$config"
			printf '"pages": 100, "written": 100, "faults": 100, "copied": 100, "copied_ahead": 0,'
			printf '"reused": null, "reused_ahead": 0, "wasted": %s,' "$wasted"
			printf '"per_page_median": %s, "per_page_min": %s, "per_page_max": %s,' \
				"$cost" $((cost - spread)) $((cost + spread))
			[ -z "$more" ] || printf '"%s": "%s",' "${more%%=*}" "${more#*=}"
			printf '"overhead_median": null, "p50": 1, "p99": 2, "max": 3}\n'
			comma=,
		done
		echo ']'
	} > "$SCRATCH/$file.json"
}

# compares STATUS OUTPUT [OPTIONS]: bench --compare of a.json and b.json
compares()
{
	local status=$1 output=$2
	shift 2
	in_repo bench "$@" --compare "$SCRATCH/a.json" "$SCRATCH/b.json" &&
	want_status "$status" && want_output "$output"
}

test_bench_compare()
{
	rows_file a icount 'seq off 1000 0 0' 'seq fixed-1 800 0 0'
	rows_file b icount 'seq off 1000 0 0' 'seq fixed-1 805 0 0'
	compares 0 '^0 better, 2 same, 0 worse$' &&
	compares 1 'fixed-1.* worse \(cost\)$' --tolerance 0.5 &&
	compares 0 '^2 passed, 0 failed, 0 skipped$' || return
	rows_file b icount 'seq off 1000 0 0' 'seq fixed-1 780 0 0'
	compares 0 'fixed-1.* better \(cost\)$' || return
	rows_file b icount 'seq off 1000 0 0' 'seq fixed-1 820 0 0'
	compares 1 'fixed-1.* worse \(cost\)$' && want_output '^1 passed, 1 failed' || return
	# no change excuses itself by its own spread, nor a spread by its median
	rows_file b icount 'seq off 1000 0 0' 'seq fixed-1 820 40 0'
	compares 1 'fixed-1.* worse \(spread\)$' || return
	rows_file b icount 'seq off 1000 0 0' 'seq fixed-1 832 10 0'
	compares 1 'fixed-1.* worse \(cost\)$' --tolerance 3 || return
	# a change within the spread of the old ones
	rows_file a icount 'seq off 1000 0 0' 'seq fixed-1 800 40 0'
	compares 0 'fixed-1.* same$' || return
	rows_file a icount 'seq off 1000 0 0' 'seq fixed-1 800 0 0'
	# fewer instructions for more memory
	rows_file b icount 'seq off 1000 0 0' 'seq fixed-1 700 0 50'
	compares 1 'fixed-1.* worse \(wasted\)$' || return
	# for information only, in both files or in one
	rows_file a icount 'seq off 1000 0 0' 'snapshot off 1000 0 0' 'snapshot adaptive 1000 0 0'
	rows_file b icount 'seq off 1000 0 0' 'snapshot off 9000 0 0'
	compares 0 '^0 better, 1 same, 0 worse$' && want_output '^not compared, .*: snapshot$' || return
	rows_file a icount 'snapshot off 1000 0 0'
	compares 2 'a\.json: every row was skipped, or is of snapshot'
}

# Wall clock: the speed of the machine does not count.
test_bench_compare_wall()
{
	rows_file a wall 'seq off 1000 10 0' 'seq fixed-1 800 10 0'
	rows_file b wall 'seq off 2000 10 0' 'seq fixed-1 1600 10 0'
	compares 0 '^0 better, 1 same, 0 worse, 1 reference$' || return
	rows_file b wall 'seq off 2000 10 0' 'seq fixed-1 1900 10 0'
	compares 1 'fixed-1.* worse \(cost\)$' || return
	rows_file a wall 'seq fixed-1 800 10 0'
	rows_file b wall 'seq fixed-1 800 10 0'
	compares 2 "no row has a row 'off' beside it"
}

# Rows of another compiler are compared relative to 'off'.
test_bench_compare_compiler()
{
	rows_file a icount 'seq off 1000 0 0 compiler=one' 'seq fixed-1 800 0 0 compiler=one'
	rows_file b icount 'seq off 1200 0 0 compiler=two' 'seq fixed-1 970 0 0 compiler=two'
	compares 0 'fixed-1.* same$' && want_output 'another compiler' || return
	rows_file b icount 'seq off 1200 0 0 compiler=two' 'seq fixed-1 1000 0 0 compiler=two'
	compares 1 'fixed-1.* worse \(cost\)$' || return
	# the gate builds both with one compiler, but a submission may change the release
	rows_file a icount 'seq off 1000 0 0 release=6.12.1'
	rows_file b icount 'seq off 1050 0 0 release=6.12.1-rival'
	makes 1 'off .* worse \(cost\)$' rows.py compare --absolute "$SCRATCH/a.json" "$SCRATCH/b.json"
}

test_bench_compare_mismatch()
{
	rows_file a icount 'seq off 1000 0 0' 'seq fixed-1 800 0 0'
	rows_file b icount 'seq off 1000 0 0'
	compares 2 'not in .*/b.json: k a icount: seq fixed-1, 100 pages' || return
	rows_file b icount 'seq off 1000 0 0' 'seq fixed-1 800 0 0' 'seq fixed-1 800 0 0'
	compares 2 'twice the same row' || return
	rows_file b wall 'seq off 1000 0 0' 'seq fixed-1 800 0 0'
	compares 2 'the rows do not match'
}

test_bench_compare_garbage()
{
	local text
	rows_file a icount 'seq off 1000 0 0'
	while read -r text; do
		printf '%s' "$text" > "$SCRATCH/b.json"
		compares 2 'b\.json' || return
	done <<-'END'

	{
	[]
	{}
	null
	[1]
	[{}]
	[NaN]
	PASS seq
	[{"kernel": "k"}]
	END
	sed 's/"pages": 100/"pages": "many"/' "$SCRATCH/a.json" > "$SCRATCH/b.json"
	compares 2 "row 1: 'pages' is not a number" || return
	sed 's/"per_page_min": 1000/"per_page_min": 1001/' "$SCRATCH/a.json" > "$SCRATCH/b.json"
	compares 2 'not between min and max' || return
	sed 's/"per_page_median": 1000/"per_page_median": -1/' "$SCRATCH/a.json" > "$SCRATCH/b.json"
	compares 2 'is not a number: -1' || return
	sed 's/"mode": "icount"/"mode": "native"/' "$SCRATCH/a.json" > "$SCRATCH/b.json"
	compares 2 "mode 'native'" || return
	head -c 1000 /dev/urandom > "$SCRATCH/b.json"
	compares 2 'b\.json' || return
	rm "$SCRATCH/b.json"
	compares 2 'cannot be read'
}

# costs STATUS OUTPUT: cost.py of plain.json, off.json, stats0.json and stats1.json, and
# of the first two without memory cgroups
costs()
{
	OUT=$SCRATCH/output
	STATUS=0
	"$PYTHON" "$ROOT/scripts/bench/cost.py" "$SCRATCH"/{plain,optionless,off,stats0,stats1,plain-no-memcg,off-no-memcg}.json > "$OUT" 2>&1 || STATUS=$?
	want_status "$1" && want_output "$2"
}

test_bench_cost()
{
	rows_file plain icount 'seq off 10000 0 0' 'child-gone off 10000 0 0'
	rows_file optionless icount 'seq off 10145 0 0' 'child-gone off 9991 0 0'
	rows_file off icount 'seq off 10150 0 0' 'child-gone off 10000 0 0'
	rows_file stats0 icount 'seq off 10190 0 0' 'child-gone off 10039 0 0'
	rows_file stats1 icount 'seq off 10900 0 0' 'child-gone off 10639 0 0'
	rows_file plain-no-memcg icount 'seq off 10000 0 0'
	rows_file off-no-memcg icount 'seq off 10099 0 0'
	costs 0 'PASS .*vm.cow_stats=1 over 0: .* [+]6.97 %' || return
	rows_file off-no-memcg icount 'seq off 10101 0 0'
	costs 1 'FAIL a page is copied, without memory cgroups: .*[+]1.01 %, allowed 1.0 %' || return
	rows_file off icount 'seq off 10151 0 0' 'child-gone off 10000 0 0'
	costs 1 'FAIL a page is copied: options off .*[+]1.51 %, allowed 1.5 %' || return
	rows_file optionless icount 'seq off 10145 0 0' 'child-gone off 9989 0 0'
	rows_file off icount 'seq off 10150 0 0' 'child-gone off 10000 0 0'
	costs 1 'FAIL the page is no longer shared: options off over the patches .*[+]0.11 %, allowed 0.1 %' || return
	rows_file off icount 'seq off 10149 0 0' 'child-gone off 10000 0 0'
	rows_file stats0 icount 'seq off 10191 0 0' 'child-gone off 10039 0 0'
	costs 1 'FAIL a page is copied: vm.cow_stats=0 .*[+]0.41 %, allowed 0.4 %' || return
	rows_file stats0 icount 'seq off 10185 0 0' 'child-gone off 10000 0 0'
	costs 1 'FAIL the page is no longer shared: vm.cow_stats=1 .*[+]6.39 %' || return
	rows_file stats1 icount 'seq off 10900 0 0' 'child-gone off 10540 0 0'
	costs 1 'FAIL a page is copied: vm.cow_stats=1 .*[+]7.02 %' || return
	rows_file stats0 icount 'seq off 10050 0 0'
	costs 2 'stats0.json: no row child-gone off' || return
	rows_file stats0 icount 'seq off 10190 0 0' 'child-gone off 10039 0 0'
	"$PYTHON" "$ROOT/scripts/bench/cost.py" --json "$SCRATCH/cost.json" \
		"$SCRATCH"/{plain,optionless,off,stats0,stats1,plain-no-memcg,off-no-memcg}.json > /dev/null || true
	want_same "$(grep -o '"setting": "[^"]*"' "$SCRATCH/cost.json" | sort -u | wc -l)" 7
}

# Two boots may differ by 0.2 %.
test_bench_repeatable()
{
	OUT=$SCRATCH/output
	rows_file a icount 'seq off 10000 0 0'
	rows_file b icount 'seq off 10020 0 0'
	"$PYTHON" "$ROOT/scripts/bench/rows.py" repeat "$SCRATCH/a.json" "$SCRATCH/b.json" > "$OUT" ||
		complain "0.2 % apart: $(cat "$OUT")" || return
	rows_file b icount 'seq off 10021 0 0'
	! "$PYTHON" "$ROOT/scripts/bench/rows.py" repeat "$SCRATCH/a.json" "$SCRATCH/b.json" > "$OUT" ||
		complain "0.21 % apart, and not noticed: $(cat "$OUT")"
}

# Rows that a kernel skips do not fail the comparison, but are listed.
test_bench_skipped()
{
	local skipped='{"kernel": "k", "arch": "a", "mode": "icount", "workload": "seq", "config": "adaptive", "pages": 100, "skipped": "refused"}'
	rows_file a icount 'seq off 1000 0 0'
	rows_file b icount 'seq off 1000 0 0'
	sed -i "s/^]/,$skipped\n]/" "$SCRATCH/b.json"
	compares 0 "^not compared: 1 of 'adaptive', skipped: refused$" &&
	compares 0 '^1 passed, 0 failed, 1 skipped$' || return
	rows_file a icount 'seq off 1000 0 0' 'seq adaptive 900 0 0'
	compares 2 'skipped in .*/b.json: k a icount: seq adaptive, 100 pages: refused'
}

test_bench_markdown()
{
	local workload lines=()
	for workload in seq random reverse stride-4 stride-16 sparse-5 single child-gone multi-child-16; do
		lines+=("$workload off 1000 0 0" "$workload fixed-1 12345 0 0")
	done
	rows_file a icount "${lines[@]}"
	makes 0 '^\| \| off \| 1 ahead \|$' rows.py markdown "$SCRATCH/a.json" &&
		want_output '^\| backward \| 1000 \| 12 345 \|$' || return
	rows_file a icount "${lines[@]:1}"
	makes 2 'no row seq off' rows.py markdown "$SCRATCH/a.json"
}

# bench_file FILE PYTHON: rows with all keys of cow_bench --cdf, appended by PYTHON to
# `rows` with row(workload, config, pages, cost)
bench_file()
{
	"$PYTHON" - "$SCRATCH/$1.json" <<-END
	import json, sys
	def row(workload, config, pages, cost, **more):
	    ahead = {"off": 0, "fixed-1": 1, "fixed-15": 15, "adaptive": 7}.get(config, 3)
	    faults = pages // (ahead + 1)
	    spread = [[0, 9], [1, 9], [10, 9], [25, 9], [50, 10], [75, 11], [90, 12], [95, 13], [99, 14],
	              [99.9, 15], [100, 16]]
	    return {"kernel": "k", "arch": "a", "mode": "icount", "workload": workload,
	            "config": config, "pages": pages, "written": pages, "faults": faults,
	            "copied": faults, "copied_ahead": pages - faults, "wasted": 0, "reused": 0,
	            "reused_ahead": 0, "per_page_median": cost, "per_page_min": cost,
	            "per_page_max": cost, "overhead_median": cost - 100, "p50": 1, "p90": 2, "p99": 3,
	            "p999": 4, "max": 5, "copy_ns": 100, "tlb_flushes": None, "kernel_fault_avg": 90,
	            "kernel_copy": spread, "kernel_fault": spread, "cdf": [[1, pages - 1], [9, pages]],
	            **more}
	rows = []
	${2//$'\n\t'/$'\n'}
	json.dump(rows, open(sys.argv[1], "w"))
	END
}

# makes STATUS OUTPUT SCRIPT ARGS...: runs a script of scripts/bench
makes()
{
	local status=$1 output=$2 script=$3
	shift 3
	OUT=$SCRATCH/output
	STATUS=0
	"$PYTHON" "$ROOT/scripts/bench/$script" "$@" > "$OUT" 2>&1 || STATUS=$?
	want_status "$status" || return
	[ -z "$output" ] || want_output "$output"
}

STUDY_ROWS='
	for config, cost in COSTS:
	    rows.append(row("single", config, 4096, cost))
	    for workload in ("seq", "random"):
	        rows += [row(workload, config, pages, cost) for pages in (4096, 16384)]'

test_bench_study()
{
	local file=$SCRATCH/a.json
	bench_file a "${STUDY_ROWS/COSTS/[(\"off\", 1000), (\"fixed-1\", 800), (\"fixed-15\", 600)]}"
	makes 0 '^  seq, 16 MB .* 4\.096 .* -20\.0%  -50\.0% .* -40\.0%  -93\.8%$' study.py "$file" &&
		want_output '^  here  *1000  *800  *-20\.0%  *600  *-40\.0%$' &&
		want_output '^  seq, 16 MB  *1000  *90  *100  *900  *10%$' &&
		want_output '^  max  *1082  *16  *16  *16$' || return
	# a page ahead: (800 * 4096 - 1000 * 2048) / 2048; a fault: 1000
	want_output '^  study \(ns\)  *1 ahead  *550  *6800  *8\.8% \(printed: 8\.5%\)  *99, 57%$' &&
		want_output '^  seq, 16 MB  *1 ahead  *600  *1000  *150\.0%  *100%$' || return
	bench_file a "${STUDY_ROWS/COSTS/[(\"off\", 1000), (\"fixed-1\", 1100), (\"fixed-15\", 100)]}
	for some in rows:
	    some[\"wasted\"] = some[\"copied_ahead\"] // 4"
	# (1100 * 4096 - 1000 * 2048) / 2048: dearer than a fault
	makes 0 '^  seq, 16 MB  *1 ahead  *1200  *1000  *never  *75%$' study.py "$file" || return
	bench_file a "${STUDY_ROWS/COSTS/[(\"off\", 1000), (\"fixed-1\", 800), (\"fixed-15\", 600), (\"adaptive\", 500)]}"
	makes 0 '^  here .* -50\.0%$' study.py "$file" && want_output '15 ahead  adaptive$' || return
	bench_file a "${STUDY_ROWS/COSTS/[(\"off\", 1000), (\"fixed-1\", 800)]}"
	makes 2 '^bench: no row .* fixed-15 of 16 MB$' study.py "$file" || return
	bench_file a "${STUDY_ROWS/COSTS/[(\"off\", 1000), (\"fixed-1\", 800), (\"fixed-15\", 600)]}
	for some in rows:
	    some[\"kernel_copy\"] = []"
	makes 2 "no 'kernel_copy': run cow_bench with --cdf" study.py "$file" || return
	bench_file a "${STUDY_ROWS/COSTS/[(\"off\", 1000), (\"fixed-1\", 800), (\"fixed-15\", 600)]}
	for some in rows:
	    some[\"mode\"] = \"wall\""
	makes 0 '^The unit is a nanosecond of this machine[.]$' study.py "$file" && want_output ', here: millions of ns$' || return
	bench_file a "${STUDY_ROWS/COSTS/[(\"off\", 1000), (\"fixed-1\", 800), (\"fixed-15\", 600)]}
	for some in rows:
	    some.update(mode=\"wall\", machine=\"QEMU 7.2 -smp 2\")"
	makes 0 'of this machine, in a guest' study.py "$file" || return
	# what is written for real machines is what is measured in a guest
	# shellcheck source=/dev/null
	. "$ROOT/scripts/bench/study.sh"
	tr -d '\\\n\t' < "$ROOT/fixtures/results/bare-metal.md" | grep -F -- "--mode wall --json --cdf ${STUDY_CASES[*]} --size 16M,64M" > /dev/null ||
		complain "bare-metal.md measures something else than bench study" || return
	bench_file a 'rows.append({"kernel": "k", "arch": "a", "mode": "icount", "workload": "seq", "config": "off", "pages": 1, "skipped": "why"})'
	makes 2 'every row was skipped' study.py "$file" || return
	echo '[' > "$file"
	makes 2 'not JSON' study.py "$file" &&
	makes 2 'cannot be read' study.py "$SCRATCH/missing.json"
}

test_bench_options()
{
	refused_with 'needs two files' bench --compare one.json &&
	refused_with 'needs two files' bench --compare &&
	refused_with 'icount or wall' bench --mode minutes &&
	refused_with 'needs per cent' bench --check --tolerance much &&
	refused_with 'does not apply' bench --tolerance 1 &&
	refused_with 'does not apply' bench cost --mode wall &&
	refused_with 'does not apply' bench --compare --record &&
	refused_with "takes no argument 'nonsense'" bench nonsense &&
	refused_with 'UML does not count instructions' bench --arch um &&
	refused_with 'does not apply' bench cost --arch arm64 &&
	refused_with 'cannot be written' bench --json /nonexistent/file &&
	refused_with 'cannot be written' bench --html /nonexistent/file &&
	refused_with 'no folder that can be written to' bench --plots /nonexistent &&
	refused_with 'is for --mode wall' bench redis --mode icount &&
	refused_with 'does not apply' bench redis --filter seq
}
