#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# The trace events cow:cow_fault and cow:cow_precopy, as tracefs, trace-cmd and
# perf show them. The program known_faults takes known faults and prints the
# records that they must leave; the records of its memory must be these, one for
# one and in this order, with times that are possible.
#
# -t NAME runs one test; as often as wanted.

DIR=$(dirname "$(readlink -f "$0")")
. "$DIR/trace_helpers.sh"

TESTS="format tracefs_off tracefs_ahead filter_outcome filter_address filter_refused
	two_instances trigger_traceoff trigger_hist trace_cmd_off trace_cmd_ahead perf_record_off
	perf_record_ahead perf_stat uncounted"

# The memory of known_faults, for filters
HERE='address >= 0x200000000 && address < 0x300000000'

TRACEFS=/sys/kernel/tracing
STATS=/proc/cow_stats
HISTOGRAM=/proc/cow_histogram

sysctl_value()
{
	cat "/proc/sys/vm/$1"
}

#
# The workload and what it must leave in a trace
#

# records FILE: the records of the workload's memory in FILE, each as
# known_faults prints it, from the output of tracefs, trace-cmd or perf:
#
#	comm-123     [000] ..... 12.345678: cow_fault: address=...
#	comm-123     [000] ..... 12.345678: cow_fault:     address=...
#	comm   123   [000]       12.345678: cow:cow_fault: address=...
#
# Times that cannot be are complained of in records of their own.
records()
{
	awk -v pid="$(known_pid)" '
	function bad(what) {
		print "impossible: " what ": " $0
	}
	{
		for (f = 1; f <= NF && $f !~ /^(cow:)?cow_(fault|precopy):$/; f++)
			;
		if (f > NF)
			next
		name = $f
		sub(/^cow:/, "", name)
		sub(/:$/, "", name)
		split("", value)
		line = name
		for (i = f + 1; i <= NF; i++) {
			split($i, pair, "=")
			value[pair[1]] = pair[2]
			if (pair[1] !~ /_ns$/)
				line = line " " $i
		}
		if (value["address"] !~ /^0x2........$/)
			next
		if ($0 !~ "(-| )" pid " +\\[")
			bad("not by process " pid)
		time = $(f - 1)
		if (time !~ /^[0-9]+\.[0-9]+:$/ || time + 0 < last)
			bad("time stamp after " last)
		last = time + 0
		if (name == "cow_fault") {
			copied = value["outcome"] != "reused"
			if (value["copy_ns"] !~ /^[0-9]+$/ || value["fault_ns"] !~ /^[0-9]+$/)
				bad("not a number")
			if (copied != (value["copy_ns"] > 0))
				bad("copy_ns is that of another outcome")
			if (value["copy_ns"] + 0 > value["fault_ns"] + 0 ||
			    value["fault_ns"] + 0 == 0)
				bad("the fault was shorter than its copy")
		}
		print line
	}' "$1"
}

# Are $TMP/expected and $TMP/records the same? Shows the first differences.
same_lines()
{
	diff -u "$TMP/expected" "$TMP/records" > "$TMP/diff" && return
	sed -e 1,2d -e 's/^/# /' "$TMP/diff" | head -n 30
	return 1
}

# compare FILE [OUTCOME]: are the records in FILE those of the workload?
compare()
{
	expected "${2:-}" > "$TMP/expected"
	records "$1" > "$TMP/records"
	[ -s "$TMP/expected" ] || complain "known_faults expects no records" || return
	same_lines ||
		complain "$(wc -l < "$TMP/records") records, expected $(wc -l < "$TMP/expected")" ||
		return
	ktap_print_msg "$(wc -l < "$TMP/records") records as expected"
}

#
# tracefs, in an instance of our own, so that nobody else's tracing is disturbed
#

INSTANCE=

before_test()
{
	INSTANCE=$TRACEFS/instances/cow_trace.$$
	mkdir "$INSTANCE" 2> /dev/null ||
		{ INSTANCE=; complain "no instance of tracefs"; return; }
	EVENTS=$INSTANCE/events/cow
}

after_test()
{
	[ -n "$INSTANCE" ] || return 0
	for instance in "$INSTANCE" "$INSTANCE.2"; do
		[ ! -d "$instance" ] || {
			echo 0 > "$instance/events/enable"
			rmdir "$instance"
		}
	done
	INSTANCE=
}

put()
{
	echo "$1" > "$2" 2> /dev/null || complain "cannot write '$1' to ${2#"$TRACEFS/"}"
}

# trace_faults [-p]: one workload with both events on
trace_faults()
{
	put 1 "$EVENTS/enable" &&
	workload "$DIR/known_faults" "$@" &&
	put 0 "$EVENTS/enable" &&
	cat "$INSTANCE/trace" > "$TMP/trace"
}

# want_fields EVENT "TYPE NAME"...: what the format file declares, all and in order
want_fields()
{
	event=$1
	shift
	printf '%s\n' "$@" > "$TMP/expected"
	sed -n -e '/ common_/d' -e 's/^[[:space:]]*field:\([^;]*\);.*/\1/p' \
		"$TRACEFS/events/cow/$event/format" > "$TMP/records"
	same_lines || complain "format of $event"
}

# no_holes EVENT: each field begins where the last one has ended
no_holes()
{
	sed -n 's/.*offset:\([0-9]*\);.*size:\([0-9]*\);.*/\1 \2/p' \
		"$TRACEFS/events/cow/$1/format" | {
		end=0
		while read -r offset size; do
			[ "$end" = 0 ] || [ "$offset" -eq "$end" ] ||
				complain "format of $1: a hole at offset $end" || return
			end=$((offset + size))
		done
	}
}

# want_names EVENT NAME...: what its print format calls the values, 1 up or 0 up
want_names()
{
	event=$1
	shift
	grep '^print fmt' "$TRACEFS/events/cow/$event/format" |
		grep -o '{ *[0-9]*, *"[^"]*" *}' | tr -d '{},"' |
		sed -e 's/^ *//' -e 's/ *$//' -e 's/  */ /' > "$TMP/records"
	printf '%s\n' "$@" > "$TMP/expected"
	same_lines || complain "names in the format of $event"
}

test_format()
{
	want_fields cow_fault 'u64 copy_ns' 'u64 fault_ns' 'unsigned long address' \
		'pid_t pid' 'u8 outcome' 'u8 order' 'u16 ahead' || return
	no_holes cow_fault || return
	want_fields cow_reuse_ahead 'unsigned long address' 'pid_t pid' \
		'unsigned int nr' || return
	want_fields cow_precopy 'unsigned long address' 'pid_t pid' 'u8 asked' \
		'u8 installed' 'u16 reason' || return
	no_holes cow_precopy || return
	want_names cow_fault '0 copied' '1 reused' '2 lost' '3 unshared' '4 precopied-around' ||
		return
	want_names cow_precopy '0 none' '1 vma' '2 pmd' '3 notpresent' '4 writable' \
		'5 notanon' '6 exclusive' '7 race' '8 nomem' '9 special' '10 madvise' \
		'11 uffd' '12 softdirty' '13 ksm' '14 pinned'
}

test_tracefs_off()
{
	trace_faults && compare "$TMP/trace"
}

test_tracefs_ahead()
{
	trace_faults -p && compare "$TMP/trace"
}

test_filter_outcome()
{
	put 'outcome == 1' "$EVENTS/cow_fault/filter" &&
	trace_faults && compare "$TMP/trace" reused || return
	! grep -q 'outcome=[^r]' "$TMP/trace" || complain "the filter let others pass"
}

test_filter_address()
{
	put "$HERE && fault_ns > 0 && copy_ns == 0" "$EVENTS/cow_fault/filter" &&
	trace_faults && compare "$TMP/trace" reused || return
	grep -c 'cow_fault:' "$TMP/trace" > "$TMP/count"
	[ "$(cat "$TMP/count")" -eq "$(wc -l < "$TMP/expected")" ] ||
		complain "the filter let $(cat "$TMP/count") pass"
}

test_filter_refused()
{
	for filter in 'no_such_field == 1' 'outcome == ' 'copy_ns == "text"' 'address'; do
		if echo "$filter" 2> /dev/null > "$EVENTS/cow_fault/filter"; then
			complain "accepted as a filter: $filter"
			return
		fi
	done
}

# Faults are timed, and recorded for the one, when the other has ended.
test_two_instances()
{
	other=$INSTANCE.2
	mkdir "$other" &&
	put 1 "$other/events/cow/enable" &&
	trace_faults && compare "$TMP/trace" &&
	workload "$DIR/known_faults" -p &&
	put 0 "$other/events/cow/enable" || return
	cp "$INSTANCE/trace" "$TMP/trace"
	! grep -q "known_faults-$(known_pid) " "$TMP/trace" ||
		complain "recorded when off" || return
	grep "known_faults-$(known_pid) " "$other/trace" > "$TMP/trace"
	compare "$TMP/trace"
}

# The first reused page stops the recording.
test_trigger_traceoff()
{
	put "traceoff if outcome == 1 && $HERE" "$EVENTS/cow_fault/trigger" &&
	trace_faults || return
	sed '/outcome=reused/q' "$TMP/said" > "$TMP/until"
	mv "$TMP/until" "$TMP/said"
	compare "$TMP/trace" || return
	[ "$(cat "$INSTANCE/tracing_on")" = 0 ] || complain "tracing did not stop"
}

# In-kernel sums by outcome, without any tool
test_trigger_hist()
{
	grep -q hist "$EVENTS/cow_fault/trigger" ||
		{ skip "kernel without CONFIG_HIST_TRIGGERS"; return; }
	put "hist:keys=outcome:vals=copy_ns,fault_ns if $HERE" "$EVENTS/cow_fault/trigger" &&
	workload "$DIR/known_faults" -p || return
	cat "$EVENTS/cow_fault/hist" > "$TMP/hist"
	for outcome in 0:copied 1:reused 4:precopied-around; do
		expected "${outcome#*:}" | wc -l > "$TMP/expected"
		sed -n "s/^{ outcome: *${outcome%:*} } hitcount: *\([0-9]*\) .*/\1/p" \
			"$TMP/hist" > "$TMP/records"
		diff "$TMP/expected" "$TMP/records" > /dev/null && continue
		sed 's/^/# /' "$TMP/hist"
		complain "hits of ${outcome#*:}: expected $(cat "$TMP/expected")"
		return
	done
}

#
# trace-cmd and perf: recorded to a file, and read back
#

# trace-cmd has the top-level buffer to itself.
need_idle_tracefs()
{
	[ ! -s "$TRACEFS/set_event" ] || { skip "somebody else is tracing"; false; }
}

trace_cmd()
{
	need_tool trace-cmd && need_idle_tracefs || return 0
	rm -f "$TMP/trace.dat"
	workload trace-cmd record -q -e cow -o "$TMP/trace.dat" "$DIR/known_faults" "$@" ||
		return
	trace-cmd report -i "$TMP/trace.dat" > "$TMP/trace" 2> /dev/null ||
		complain "trace-cmd report failed" || return
	compare "$TMP/trace"
}

test_trace_cmd_off()
{
	trace_cmd
}

test_trace_cmd_ahead()
{
	trace_cmd -p
}

perf_record()
{
	need_tool perf || return 0
	rm -f "$TMP/perf.data"
	workload perf record -q -e 'cow:*' -o "$TMP/perf.data" -- "$DIR/known_faults" "$@" ||
		return
	perf script -i "$TMP/perf.data" > "$TMP/trace" 2> "$TMP/errors" ||
		complain "perf script failed: $(cat "$TMP/errors")" || return
	compare "$TMP/trace"
}

test_perf_record_off()
{
	perf_record
}

test_perf_record_ahead()
{
	perf_record -p
}

test_perf_stat()
{
	need_tool perf || return 0
	workload perf stat -x, -o "$TMP/stat" -e cow:cow_fault --filter "$HERE" \
		-- "$DIR/known_faults" || return
	expected | wc -l > "$TMP/expected"
	sed -n 's/^\([0-9]*\),.*cow:cow_fault.*/\1/p' "$TMP/stat" > "$TMP/records"
	diff "$TMP/expected" "$TMP/records" > /dev/null && return
	sed 's/^/# /' "$TMP/stat"
	complain "expected $(cat "$TMP/expected")"
}

# Tracing times the faults, and counts them only if vm.cow_stats says so.
test_uncounted()
{
	[ "$(sysctl_value cow_stats)" = 0 ] || { skip "vm.cow_stats is on"; return; }
	put 0 "$STATS" && trace_faults && compare "$TMP/trace" || return
	[ "$(sysctl_value cow_stats)" = 0 ] || complain "vm.cow_stats was changed" || return
	awk '$1 !~ /^(precopy_|reuse_ahead)/ && $2 != 0 { print "# " $0; counted = 1 }
		END { exit counted }' "$STATS" || complain "counted with vm.cow_stats=0" || return
	[ -z "$(cat "$HISTOGRAM")" ] || complain "$HISTOGRAM is not empty"
}

#
# Running
#

cleanup()
{
	after_test
	rm -rf "$TMP"
	unmount_tracefs
}

ktap_print_header
need_leave_to_change
[ -e "$STATS" ] || skip_all "no $STATS: kernel without CONFIG_COW_STATS"
[ -e /proc/sys/vm/cow_precopy ] || skip_all "no vm.cow_precopy: kernel without CONFIG_COW_PRECOPY"
mount_tracefs
[ -d "$TRACEFS/events/cow" ] || skip_all "no trace events: kernel without CONFIG_EVENT_TRACING"

TMP=$(mktemp -d)
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

"$DIR/known_faults" > /dev/null 2> "$TMP/errors"
[ $? -ne "$KSFT_SKIP" ] || skip_all "$(cat "$TMP/errors")"

run_chosen "$@"
