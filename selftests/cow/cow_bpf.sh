#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# The bpftrace scripts in tools/, against the known faults of known_faults. Each
# must show these, one for one, and nothing else of that memory.
#
# -t NAME runs one test; as often as wanted.

DIR=$(dirname "$(readlink -f "$0")")
. "$DIR/trace_helpers.sh"

TESTS="count lat stacks map other_process one_process copy bad_argument bad_range"

# script NAME: beside the tests, where it was made or installed
script()
{
	[ -e "$DIR/$1.bt" ] && echo "$DIR/$1.bt" || echo "$DIR/tools/$1.bt"
}

# The memory of known_faults
FROM=0x200000000
TO=0x300000000

before_test()
{
	pid=
}

after_test()
{
	[ -z "$pid" ] || kill "$pid" 2> /dev/null
	return 0
}

# trace SCRIPT [ARGS...]: what it prints of known_faults in TMP/out
trace()
{
	name=$1
	shift
	if ! bpftrace -c "$DIR/known_faults" "$(script "$name")" "$@" \
			> "$TMP/out" 2> "$TMP/errors"; then
		sed 's/^/# /' "$TMP/out" "$TMP/errors"
		complain "bpftrace $name.bt failed"
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

# Is nothing printed but what known_faults says, the first line and what PATTERN, an
# extended regular expression, matches as a whole? An internal map would show here.
nothing_but()
{
	grep -v -e '^pid ' -e '^cow_' -e '^Attach' -e '^Tracing ' -e '^$' "$TMP/out" |
		grep -vxE "$1" > "$TMP/rest" || return 0
	sed 's/^/# /' "$TMP/rest"
	complain "unexpected output"
}

BAR='[[(][0-9]+[KMG]?(, [0-9]+[KMG]?)?[])] +[0-9]+ \|[@ ]+\|'

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
	same "faults by process" && nothing_but '@(copied|reused)\[.*'
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
	nothing_but "@(copied|reused)_ns: *|$BAR"
}

test_stacks()
{
	trace cowstacks 0 $FROM $TO || return
	expected_number copied > "$TMP/expected"
	sed -n 's/^, known_faults]: //p' "$TMP/out" | awk '{ sum += $1 } END { print sum + 0 }' \
		> "$TMP/records"
	same "stacks of copied pages" || return
	# A frame: an address, or a name with an offset
	frame='[[:space:]]+[^ ]+\+[0-9]+( .*)?'
	nothing_but "@copied\\[|[[:space:]]+(0x)?[0-9a-f]+|$frame|, known_faults\\]: [0-9]+"
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
	grep -q 'memfd:known_faults' "$TMP/maps" || complain "the file is not named" || return
	nothing_but '@copied\[[0-9]+, [0-9]+, [0-9]+, .*\]: [0-9]+'
}

test_other_process()
{
	trace cowcount $$ || return
	! grep -q known_faults, "$TMP/out" || complain "counted another process than $$"
}

# Only the process of that number, which becomes known_faults when it is told to
test_one_process()
{
	mkfifo "$TMP/begin"
	sh -c 'read -r go < "$1" && exec "$2"' sh "$TMP/begin" "$DIR/known_faults" \
		> "$TMP/said" 2> "$TMP/errors" &
	pid=$!
	# until it has gone, or is a zombie, as we have not waited for it yet
	cat > "$TMP/go" <<-END
	echo go > "$TMP/begin"
	while grep -q ') [^Z]' /proc/$pid/stat 2> /dev/null; do sleep 0.1; done
	END
	bpftrace -c "$(command -v sh) $TMP/go" "$(script cowcount)" $pid $FROM $TO \
		> "$TMP/out" 2>> "$TMP/errors" ||
		complain "bpftrace failed: $(cat "$TMP/errors")" || return
	wait $pid || complain "known_faults failed" || return
	for kind in copied reused; do
		echo "@${kind}[$pid, known_faults]: $(expected_number $kind)"
	done > "$TMP/expected"
	grep '^@' "$TMP/out" | sort > "$TMP/records"
	same "faults of process $pid"
}

# The time of the copy alone, where the kernel has the event
test_copy()
{
	[ -d /sys/kernel/tracing/events/cow ] ||
		{ skip "no trace event: kernel without CONFIG_COW_STATS"; return; }
	trace cowcopy 0 $FROM $TO || return
	expected_number copied > "$TMP/expected"
	histogram copy_ns > "$TMP/records"
	same "copies in the histogram" && nothing_but "@copy_ns: *|@ahead_pages: 0|$BAR"
}

test_bad_argument()
{
	for name in cowcopy cowcount cowlat cowmap cowstacks; do
		! bpftrace "$(script $name)" everything > "$TMP/out" 2>&1 ||
			complain "$name.bt: accepted 'everything' as a PID" || return
	done
}

# FROM without TO, or behind it: says so, and ends by itself
test_bad_range()
{
	names="cowcount cowlat cowmap cowstacks"
	[ ! -d /sys/kernel/tracing/events/cow ] || names="$names cowcopy"
	for name in $names; do
		for range in $FROM "$TO $FROM"; do
			# shellcheck disable=SC2086 # one or two words
			timeout 300 bpftrace "$(script $name)" 0 $range > "$TMP/out" 2>&1 ||
				complain "$name.bt 0 $range: status $?" || return
			grep -q '^Nothing is traced: FROM needs a TO above it' "$TMP/out" &&
				! grep -q '^Tracing ' "$TMP/out" && continue
			sed 's/^/# /' "$TMP/out"
			complain "$name.bt accepted the range '$range'"
			return
		done
	done
}

cleanup()
{
	rm -rf "$TMP"
	unmount_tracefs
}

ktap_print_header
need_leave_to_change
command -v bpftrace > /dev/null || skip_all "no bpftrace here"
[ -e /sys/kernel/btf/vmlinux ] ||
	skip_all "no /sys/kernel/btf/vmlinux: kernel without CONFIG_DEBUG_INFO_BTF"
mount_tracefs
[ -e /sys/kernel/tracing/kprobe_events ] ||
	skip_all "no kprobes: kernel without CONFIG_KPROBE_EVENTS"

TMP=$(mktemp -d)
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

"$DIR/known_faults" > /dev/null 2> "$TMP/errors"
[ $? -ne "$KSFT_SKIP" ] || skip_all "$(cat "$TMP/errors")"

run_chosen "$@"
