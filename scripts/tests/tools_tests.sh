# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the users' tools that need no kernel.

# counts_in_python ARGS...: sets OUT and STATUS
counts_in_python()
{
	STATUS=0
	"$PYTHON" "$ROOT/selftests/cow/tools/cow_stats.py" --proc "$SCRATCH/cow_stats.proc" "$@" \
		> "$SCRATCH/cow_stats.out" 2>&1 || STATUS=$?
	OUT=$(cat "$SCRATCH/cow_stats.out")
}

test_cow_stats_py()
{
	mkdir -p "$SCRATCH/cow_stats.proc/7"
	printf 'faults: 3\ntotal_ns: 1500000000\np99_ns: 12\nnew_key: 5\n' > "$SCRATCH/cow_stats.proc/cow_stats"
	printf 'faults: 2\n' > "$SCRATCH/cow_stats.proc/7/cow_stats"
	counts_in_python 7
	[ "$STATUS" -eq 0 ] && diff <(echo "$OUT") - <<-'END' || return 1
	# TYPE cow_faults_total counter
	cow_faults_total 3
	# TYPE cow_total_seconds_total counter
	cow_total_seconds_total 1.5
	# TYPE cow_new_key_total counter
	cow_new_key_total 5
	# TYPE cow_process_faults_total counter
	cow_process_faults_total{pid="7"} 2
	END
	processes_that_ended || return 1
	local line
	for line in 'faults: -1' 'faults 1' 'reused: 1' $'faults: 1\nfaults: 1' 'faults: 1x' ''; do
		echo "$line" > "$SCRATCH/cow_stats.proc/cow_stats"
		counts_in_python
		[ "$STATUS" -eq 2 ] || { echo "'$line' was accepted"; return 1; }
	done
	echo 'faults: 1' > "$SCRATCH/cow_stats.proc/cow_stats"
	# a line for each process, once
	counts_in_python 7 7
	[ "$STATUS" -eq 0 ] && [ "$(echo "$OUT" | grep -c 'pid="7"')" -eq 1 ] || return 1
	for line in 0 -1 x 1x ''; do
		counts_in_python -- "$line"
		[ "$STATUS" -eq 2 ] && [[ "$OUT" == *"'$line' is not a process id"* ]] ||
			{ echo "'$line' was accepted: $OUT"; return 1; }
	done
	STATUS=0
	"$PYTHON" "$ROOT/selftests/cow/tools/cow_stats.py" --proc "$SCRATCH/cow_stats.proc" \
		> /dev/full 2> "$SCRATCH/cow_stats.out" || STATUS=$?
	[ "$STATUS" -eq 2 ] && grep -q '^cow_stats.py: cannot write: No space' "$SCRATCH/cow_stats.out" || return 1
	rm "$SCRATCH/cow_stats.proc/cow_stats"
	counts_in_python
	[ "$STATUS" -eq 2 ] && [[ "$OUT" == *"kernel without CONFIG_COW_STATS" ]] || return 1
	counts_of_vmstat
}

# Processes that have ended are named and left out; the others are there.
processes_that_ended()
{
	mkdir -p "$SCRATCH/cow_stats.proc/9"
	: > "$SCRATCH/cow_stats.proc/9/stat"
	: > "$SCRATCH/cow_stats.proc/9/cow_stats"
	counts_in_python 8 9 7
	[ "$STATUS" -eq 0 ] && [ "$(grep -c left <<< "$OUT")" -eq 2 ] &&
	[[ "$OUT" == *"process 8 left out: no such process"* ]] &&
	[[ "$OUT" == *"process 9 left out: it has no memory"* ]] &&
	[[ "$OUT" == *'cow_process_faults_total{pid="7"} 2'* && "$OUT" == *"cow_faults_total 3"* ]] ||
		{ echo "processes that have ended: $OUT"; return 1; }
}

# Without CONFIG_COW_STATS there are the counts of vmstat, for processes none.
counts_of_vmstat()
{
	printf 'pgfault 9\npgcow_copied 4\npgcow_lost 0\n' > "$SCRATCH/cow_stats.proc/vmstat"
	rm "$SCRATCH/cow_stats.proc/7/cow_stats"
	: > "$SCRATCH/cow_stats.proc/7/stat"
	counts_in_python 7
	[ "$STATUS" -eq 0 ] && diff <(echo "$OUT") - <<-'END'
	cow_stats.py: process 7 left out: kernel without CONFIG_COW_STATS
	# TYPE cow_pgcow_copied_total counter
	cow_pgcow_copied_total 4
	# TYPE cow_pgcow_lost_total counter
	cow_pgcow_lost_total 0
	END
}

# A test that skips after an EXPECT is a skip, also if that failed: the kernel's harness
# keeps the last word only.
test_skip_after_expect()
{
	local found
	found=$("$PYTHON" - "$ROOT"/selftests/cow/*.c <<-'END'
	import re, sys
	for name in sys.argv[1:]:
	    text = open(name, encoding="utf-8").read()
	    for test in re.finditer(r"^TEST\w*\(([^\n]*)\)\n\{(.*?)^\}", text, re.M | re.S):
	        before = test[2].rpartition("SKIP(")[0]
	        if re.search(r"EXPECT_|\bexpect_\w+\(_metadata", before):
	            print(f"{name.rpartition('/')[2]}: {test[1]}")
	END
	) || return
	want_same "$found" ""
}
