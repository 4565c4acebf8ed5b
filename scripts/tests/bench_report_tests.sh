# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the benchmarks' reports, and of what is recorded. The rows that they read are
# made as in bench_tests.sh.

test_bench_report()
{
	local page=$SCRATCH/page.html plots=$SCRATCH/plots rows=$SCRATCH/a.json window=$SCRATCH/b.json
	mkdir -p "$plots"
	bench_file a '
	for config in ("off", "fixed-15", "adaptive"):
	    rows += [row("seq", config, 1024, 1000),
	             row("snapshot", config, 1024, 1000, timeline=[[0, 0, 0], [1e6, 512, 1024], [2e6, 1024, 1024]])]
	rows.append({"kernel": "k", "arch": "a", "mode": "icount", "workload": "seq", "config": "thp", "pages": 1024, "skipped": "no <huge> pages"})'
	bench_file b 'rows += [row("seq", config, 1024, 1000) for config in
	    ("off", "fixed-1", "fixed-15", "adaptive-7", "adaptive-15", "nofork")]'
	makes 0 '.' report.py --html "$page" --plots "$plots" --window "$window" "$rows" || return
	! grep -qE '(src|href)="?(http|//|file)' "$page" || complain "the page is not self-contained" || return
	want_same "$(grep -c '<svg role="img"' "$page")" 8 &&
	grep -q 'Not run: thp: no &lt;huge&gt; pages' "$page" &&
	want_same "$(cd "$plots" && echo *)" 'latency-k.svg snapshot-k.svg window-k.svg' || return
	"$PYTHON" -c 'import sys, xml.dom.minidom
for path in sys.argv[1:]:
    xml.dom.minidom.parse(path)' "$plots"/*.svg 2> "$OUT" || complain "no SVG: $(tail -n 1 "$OUT")" || return
	makes 2 'cannot be read' report.py --html "$page" "$SCRATCH/missing.json" &&
	makes 2 'nothing to report' report.py --html "$page" &&
	makes 2 'No such file or directory' report.py --html /nonexistent/page "$rows" || return
	sed 's/"timeline": \[\[0,/"timeline": [["x",/' "$rows" > "$window"
	makes 2 "'timeline' is no list of points" report.py --html "$page" "$window"
}

# app_file FILE ROW...: a row is "CONFIG RUN REQUESTS P99"
app_file()
{
	local file=$1 config run requests p99 row comma=
	shift
	{
		echo '['
		for row; do
			read -r config run requests p99 <<< "$row"
			printf '%s{"app": "redis", "pattern": "random", "config": "%s", "run": %s, "keys": 9,' \
				"$comma" "$config" "$run"
			printf '"requests": 9, "requests_per_second": %s, "p50_us": 10, "p99_us": %s,' "$requests" "$p99"
			printf '"p999_us": 30, "faults": 5, "cow_bytes": 1048576}\n'
			comma=,
		done
		echo ']'
	} > "$SCRATCH/$file.json"
}

test_bench_apps()
{
	local log=$SCRATCH/apps.log page=$SCRATCH/page.html
	app_file a 'off 1 1000 20' 'fixed-1 1 900 30'
	"$PYTHON" -c 'import json, sys
for row in json.load(sys.stdin):
    print(json.dumps({"row": row}))
print("a line of no interest")
print(json.dumps({"test": "redis: a save", "status": "fail", "message": "key:1 is missing"}))
' < "$SCRATCH/a.json" > "$log"
	makes 0 '^  fixed-1  *1  *900 \(0\.90\)  *10 \(1\.00\)  *30 \(1\.50\)' apps.py \
		--json "$SCRATCH/b.json" --results "$SCRATCH/results.apps" "$log" kernel=k mode=wall &&
		want_same "$(cat "$SCRATCH/results.apps")" "$(printf 'fail\tredis: a save\tkey:1 is missing')" || return
	makes 0 '' report.py --html "$page" --apps "$SCRATCH/b.json" < /dev/null || return
	grep -q 'redis, random' "$page" || complain "no plot of redis" || return
	# each boot is compared with its own 'off'
	app_file c 'off 1 2000 40' 'fixed-1 1 1800 60'
	makes 0 '' report.py --html "$page" --apps "$SCRATCH/a.json" --apps "$SCRATCH/c.json" < /dev/null || return
	grep -q '0\.9' "$page" && ! grep -q '1\.35' "$page" || complain "ratios to another boot" || return
	echo '{"row": ' > "$log"
	makes 2 'not JSON' apps.py "$log" || return
	echo 'nothing' > "$log"
	makes 2 'no rows' apps.py "$log" || return
	echo '{"row": 1}' > "$log"
	makes 2 "neither a row nor a test's result" apps.py "$log" &&
	makes 2 "'kernel' is not KEY=TEXT" apps.py "$log" kernel &&
	makes 2 "'kernel' is not KEY=TEXT" rows.py collect "$log" kernel &&
	makes 2 'cannot be read' apps.py "$SCRATCH/missing.log" || return
	echo '[{"app": "redis"}]' > "$SCRATCH/b.json"
	makes 2 "no 'pattern'" report.py --apps "$SCRATCH/b.json" || return
	refused_with "no 'pattern'" bench --html "$page" "$SCRATCH/b.json" &&
	refused_with "takes no argument" bench "$SCRATCH/b.json"
}

# What is recorded is not replaced by less.
test_bench_replace_recorded()
{
	local dir=$SCRATCH/replaced
	mkdir -p "$dir"
	# shellcheck source=scripts/bench/recorded.sh
	. "$ROOT/scripts/bench/recorded.sh"
	printf '[\n{"row": 1},\n{"row": 2}\n]\n' > "$dir/old"
	printf '[\n{"row": 3}\n]\n' > "$dir/new"
	STATUS=0
	( replace_recorded "$dir/new" "$dir/old" ) > "$OUT" 2>&1 || STATUS=$?
	want_status 2 && want_output 'only 1 rows were measured, .* has 2' &&
	grep -q '"row": 1' "$dir/old" || complain "replaced by fewer" || return
	printf '[\n{"row": 3},\n{"row": 4}\n]\n' > "$dir/new"
	replace_recorded "$dir/new" "$dir/old" > "$OUT" 2>&1
	grep -q '"row": 4' "$dir/old" || complain "not replaced"
}
