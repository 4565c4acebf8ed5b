#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# The bpftrace scripts in tools/, against the known faults of known_faults. Each
# must show these, one for one, and nothing else of that memory.
#
# -t NAME runs one test; as often as wanted.

DIR=$(dirname "$(readlink -f "$0")")
. "$DIR/trace_helpers.sh"

TESTS="count lat stacks map other_process copy bad_argument"

# Beside the tests where they are installed
BT=$DIR
[ -e "$BT/cowcount.bt" ] || BT=$DIR/tools

# The memory of known_faults
FROM=0x200000000
TO=0x300000000

before_test()
{
	:
}

after_test()
{
	:
}

# trace SCRIPT [ARGS...]: what it prints of known_faults in TMP/out
trace()
{
	script=$1
	shift
	if ! bpftrace -c "$DIR/known_faults" "$BT/$script.bt" "$@" \
			> "$TMP/out" 2> "$TMP/errors"; then
		sed 's/^/# /' "$TMP/out" "$TMP/errors"
		complain "bpftrace $script.bt failed"
		return
	fi
	# known_faults has the same standard output.
	grep -e '^pid ' -e '^cow_fault' "$TMP/out" > "$TMP/said"
}

# same NAME: are TMP/records what TMP/expected says?
same()
{
	diff "$TMP/expected" "$TMP/records" > /dev/null && return
	sed 's/^/# /' "$TMP/out"
	complain "$1: expected $(cat "$TMP/expected")"
}

# How many records of a kind known_faults expects
expected_number()
{
	expected "$1" | wc -l
}

test_count()
{
	trace cowcount 0 $FROM $TO || return
	for kind in copied reused; do
		echo "@${kind}[$(known_pid), known_faults]: $(expected_number $kind)"
	done > "$TMP/expected"
	grep '^@' "$TMP/out" | sort > "$TMP/records"
	same "faults by process"
}

# histogram NAME: the sum of its lines
histogram()
{
	awk -v name="@$1: " '/^@/ { ours = $0 == name } ours && /^\[/ { sum += $3 }
		END { print sum + 0 }' "$TMP/out"
}

test_lat()
{
	trace cowlat 0 $FROM $TO || return
	for kind in copied reused; do
		expected_number $kind > "$TMP/expected"
		histogram "${kind}_ns" > "$TMP/records"
		same "$kind faults in the histogram" || return
	done
}

test_stacks()
{
	trace cowstacks 0 $FROM $TO || return
	expected_number copied > "$TMP/expected"
	sed -n 's/^, known_faults]: //p' "$TMP/out" | awk '{ sum += $1 } END { print sum + 0 }' \
		> "$TMP/records"
	same "stacks of copied pages"
}

# Each copied address is in one of the mappings, and each mapping has as many.
test_map()
{
	trace cowmap 0 $FROM $TO || return
	# @copied[PID, FROM, TO, FILE]: COUNT
	number='\([0-9]*\)'
	sed -n "s/^@copied\[$number, $number, $number, \(.*\)\]: $number\$/\1 \2 \3 \5 \4/p" \
		"$TMP/out" > "$TMP/maps"
	expected copied | sed 's/.*address=\(0x[0-9a-f]*\).*/\1/' | while read -r address; do
		echo $((address))
	done > "$TMP/addresses"
	awk -v pid="$(known_pid)" 'NR == FNR { address[NR] = $1; next }
		{ nr = 0; for (i in address) nr += address[i] >= $2 && address[i] < $3
		  all += nr; print ($1 == pid && nr == $4 ? "right" : "wrong: " $0) }
		END { print all }' "$TMP/addresses" "$TMP/maps" | sort -u > "$TMP/records"
	{ expected_number copied; echo right; } > "$TMP/expected"
	same "copies by mapping" || return
	grep -q 'memfd:known_faults' "$TMP/maps" || complain "the file is not named"
}

test_other_process()
{
	trace cowcount $$ || return
	! grep -q known_faults, "$TMP/out" || complain "counted another process than $$"
}

# The time of the copy alone, where the kernel has the event
test_copy()
{
	[ -d /sys/kernel/tracing/events/cow ] ||
		{ skip "no trace event: kernel without CONFIG_COW_STATS"; return; }
	trace cowcopy 0 $FROM $TO || return
	expected_number copied > "$TMP/expected"
	histogram copy_ns > "$TMP/records"
	same "copies in the histogram"
}

test_bad_argument()
{
	for script in "$BT"/cow*.bt; do
		! bpftrace "$script" everything > "$TMP/out" 2>&1 ||
			complain "$script: accepted 'everything' as a PID" || return
	done
}

cleanup()
{
	rm -rf "$TMP"
}

ktap_print_header
[ "$(id -u)" -eq 0 ] || skip_all "needs root"
command -v bpftrace > /dev/null || skip_all "no bpftrace here"
[ -e /sys/kernel/btf/vmlinux ] ||
	skip_all "no /sys/kernel/btf/vmlinux: kernel without CONFIG_DEBUG_INFO_BTF"
[ -d /sys/kernel/tracing/events ] || mount -t tracefs trace /sys/kernel/tracing 2> /dev/null
[ -e /sys/kernel/tracing/kprobe_events ] ||
	skip_all "no kprobes: kernel without CONFIG_KPROBE_EVENTS"

TMP=$(mktemp -d)
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

"$DIR/known_faults" > /dev/null 2> "$TMP/errors"
[ $? -ne "$KSFT_SKIP" ] || skip_all "$(cat "$TMP/errors")"

run_chosen "$@"
