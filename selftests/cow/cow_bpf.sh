#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# The bpftrace scripts, by kprobes and by the trace event (*_event), against the known
# faults of known_faults. Each must show these, one for one, and nothing else of that
# memory. If the kernel can copy ahead, it does.
#
# -t NAME runs one test; as often as wanted.

DIR=$(dirname "$(readlink -f "$0")")
. "$DIR/trace_helpers.sh"

TESTS="count lat stacks map count_event lat_event stacks_event
	other_process other_process_event one_process one_process_event
	cowtrace bad_argument bad_range"

EVENTS=/sys/kernel/tracing/events
AHEAD=
[ ! -e /proc/sys/vm/cow_precopy ] || AHEAD=-p

has_event()
{
	grep -qs ' ahead;' $EVENTS/cow/cow_fault/format
}

# why_not SCRIPT: why it cannot run on this kernel
why_not()
{
	case "$1" in
	*_event)
		has_event || echo "no trace event cow:cow_fault, or an older one" ;;
	*)
		[ -e /sys/kernel/btf/vmlinux ] ||
			{ echo "no BTF: kernel without CONFIG_DEBUG_INFO_BTF"; return; }
		[ -e /sys/kernel/tracing/kprobe_events ] ||
			echo "no kprobes: kernel without CONFIG_KPROBE_EVENTS" ;;
	esac
}

# can_run SCRIPT: or else the test is skipped
can_run()
{
	reason=$(why_not "$1")
	[ -z "$reason" ] || { skip "$reason"; false; }
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

# run COMMAND...: with what it prints in TMP/out
run()
{
	"$@" > "$TMP/out" 2> "$TMP/errors" && return
	sed 's/^/# /' "$TMP/out" "$TMP/errors"
	complain "failed: $*"
}

# trace COMMAND...: likewise, on known_faults, which has the same standard output
trace()
{
	run "$@" && grep -e '^pid ' -e '^cow_fault' "$TMP/out" > "$TMP/said"
}

# trace_by SCRIPT [ARGS...]
trace_by()
{
	name=$1
	shift
	trace bpftrace -c "$DIR/known_faults $AHEAD" "$DIR/$name.bt" "$@"
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

# expect_copies: with those that copied other pages ahead; not of these pages
expect_copies()
{
	{ expected copied; expected precopied-around; }
}

# expected_number KIND: how many known_faults expects
expected_number()
{
	case "$1" in
	copied|copy) expect_copies | wc -l ;;
	reused) expected reused | wc -l ;;
	ahead) expected | awk -F= '{ sum += $NF } END { print sum + 0 }' ;;
	esac
}

# kinds_of SCRIPT: kprobes do not see what is copied ahead
kinds_of()
{
	case "$1" in
	*_event) echo copied ${AHEAD:+ahead} ;;
	*) echo copied ;;
	esac
}

# total KIND: the sum of what is counted, whatever by
total()
{
	awk -v name="@$1" '/^@/ { ours = index($0, name "[") == 1 || index($0, name ":") == 1 }
		ours && /: [0-9]+$/ { sum += $NF } END { print sum + 0 }' "$TMP/out"
}

# same_totals KIND...
same_totals()
{
	for kind in "$@"; do
		expected_number "$kind" > "$TMP/expected"
		total "$kind" > "$TMP/records"
		same "total of $kind" || return
	done
}

# same_by_process SCRIPT PID: what it counts of that one, and nothing else
same_by_process()
{
	for kind in $(kinds_of "$1") reused; do
		echo "@${kind}[$2, known_faults]: $(expected_number "$kind")"
	done | sort > "$TMP/expected"
	grep '^@' "$TMP/out" | sort > "$TMP/records"
	same "faults by process"
}

check_count()
{
	can_run "$1" || return 0
	trace_by "$1" 0 $FROM $TO && same_by_process "$1" "$(known_pid)" &&
		nothing_but '@(copied|reused|ahead)\[.*'
}

test_count()
{
	check_count cowcount
}

test_count_event()
{
	check_count cowcount_event
}

# histogram NAME: the sum of its lines
histogram()
{
	awk -v name="@$1: " '/^@/ { ours = $0 == name } ours && /^\[/ { sum += $3 }
		END { print sum + 0 }' "$TMP/out"
}

# check_lat SCRIPT HISTOGRAM...
check_lat()
{
	can_run "$1" || return 0
	trace_by "$1" 0 $FROM $TO || return
	[ "$(kinds_of "$1")" = copied ] || same_totals ahead || return
	shift
	for name in "$@"; do
		expected_number "$name" > "$TMP/expected"
		histogram "${name}_ns" > "$TMP/records"
		same "$name faults in the histogram" || return
	done
	nothing_but "@($(echo "$*" | tr ' ' '|'))_ns: *|@ahead: [0-9]+|$BAR"
}

test_lat()
{
	check_lat cowlat copied reused
}

test_lat_event()
{
	check_lat cowlat_event copied copy reused
}

check_stacks()
{
	can_run "$1" || return 0
	# shellcheck disable=SC2046 # words
	trace_by "$1" 0 $FROM $TO && same_totals $(kinds_of "$1") || return
	# A frame: an address, or a name with an offset
	frame='[[:space:]]+[^ ]+\+[0-9]+( .*)?'
	nothing_but "@(copied|ahead)\\[|[[:space:]]+(0x)?[0-9a-f]+|$frame|, known_faults\\]: [0-9]+"
}

test_stacks()
{
	check_stacks cowstacks
}

test_stacks_event()
{
	check_stacks cowstacks_event
}

# Each copied address is in one of the mappings, and each mapping has as many.
test_map()
{
	can_run cowmap || return 0
	trace_by cowmap 0 $FROM $TO && same_totals copied || return
	# @copied[PID, FROM, TO, FILE]: COUNT
	hex='(0x[0-9a-f]+)'
	copied="@copied\\[([0-9]+), $hex, $hex, .*\\]: ([0-9]+)"
	sed -nE "s/^$copied\$/\\1 \\2 \\3 \\4/p" "$TMP/out" | while read -r owner from to number; do
		echo "$owner $((from)) $((to)) $number"
	done > "$TMP/maps"
	expect_copies | sed 's/.*address=\(0x[0-9a-f]*\).*/\1/' | while read -r address; do
		echo $((address))
	done > "$TMP/addresses"
	awk -v pid="$(known_pid)" 'NR == FNR { address[NR] = $1; next }
		{ nr = 0; for (i in address) nr += address[i] >= $2 && address[i] < $3
		  all += nr; print ($1 == pid && nr == $4 ? "right" : "wrong: " $0) }
		END { print all }' "$TMP/addresses" "$TMP/maps" | sort -u > "$TMP/records"
	{ expected_number copied; echo right; } > "$TMP/expected"
	same "copies by mapping" || return
	grep -q '^@copied.*, memfd:known_faults\]' "$TMP/out" ||
		complain "the file is not named" || return
	nothing_but "@copied\\[[0-9]+, $hex, $hex, .*\\]: [0-9]+" || return

	# A shell that forks: it or the child writes to its stack and its heap.
	run bpftrace -c "$(command -v sh) $TMP/forks" "$DIR/cowmap.bt" || return
	mapped='\[[0-9]*, 0x[0-9a-f]*, 0x[0-9a-f]*, '
	for name in heap stack; do
		grep -q "^@copied$mapped\\[$name\\]\]: " "$TMP/out" && continue
		sed 's/^/# /' "$TMP/out"
		complain "no [$name] is named" || return
	done
}


check_other_process()
{
	can_run "$1" || return 0
	trace_by "$1" $$ || return
	! grep -q known_faults, "$TMP/out" || complain "counted another process than $$"
}

test_other_process()
{
	check_other_process cowcount
}

test_other_process_event()
{
	check_other_process cowcount_event
}

# Only the process of that number, which becomes known_faults when it is told to
check_one_process()
{
	can_run "$1" || return 0
	mkfifo "$TMP/begin"
	# shellcheck disable=SC2086 # an option or none
	sh -c 'read -r go < "$1" && shift && exec "$@"' sh "$TMP/begin" "$DIR/known_faults" $AHEAD \
		> "$TMP/said" 2> "$TMP/errors" &
	pid=$!
	# until it has gone, or is a zombie, as we have not waited for it yet
	cat > "$TMP/go" <<-END
	echo go > "$TMP/begin"
	while grep -q ') [^Z]' /proc/$pid/stat 2> /dev/null; do sleep 0.1; done
	END
	bpftrace -c "$(command -v sh) $TMP/go" "$DIR/$1.bt" $pid $FROM $TO \
		> "$TMP/out" 2>> "$TMP/errors" ||
		complain "bpftrace failed: $(cat "$TMP/errors")" || return
	wait $pid || complain "known_faults failed" || return
	same_by_process "$1" $pid
}

test_one_process()
{
	check_one_process cowcount
}

test_one_process_event()
{
	check_one_process cowcount_event
}

# The script that suits the kernel: with the event it shows what is copied ahead, too.
test_cowtrace()
{
	script=cowcount
	! has_event || script=cowcount_event
	can_run $script || return 0
	trace "$DIR/cowtrace" count -c "$DIR/known_faults $AHEAD" 0 $FROM $TO &&
		same_by_process $script "$(known_pid)" || return
	! "$DIR/cowtrace" everything > "$TMP/out" 2>&1 || complain "runs 'everything'"
}

all_scripts()
{
	echo cowmap
	for name in cowcount cowlat cowstacks; do
		echo "$name ${name}_event"
	done
}

test_bad_argument()
{
	for name in $(all_scripts); do
		! bpftrace "$DIR/$name.bt" everything > "$TMP/out" 2>&1 ||
			complain "$name.bt: accepted 'everything' as a PID" || return
	done
}

# FROM without TO, or behind it: says so, and ends by itself
test_bad_range()
{
	for name in $(all_scripts); do
		[ -z "$(why_not "$name")" ] || continue
		for range in $FROM "$TO $FROM"; do
			# shellcheck disable=SC2086 # one or two words
			timeout 300 bpftrace "$DIR/$name.bt" 0 $range > "$TMP/out" 2>&1 ||
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
[ -e /proc/sys/kernel/unprivileged_bpf_disabled ] ||
	skip_all "no bpf(): kernel without CONFIG_BPF_SYSCALL"
mount_tracefs
reason=$(why_not cowcount)
[ -z "$reason" ] || has_event || skip_all "$reason, and no trace event"

TMP=$(mktemp -d)
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

# shellcheck disable=SC2086 # an option or none
"$DIR/known_faults" $AHEAD > /dev/null 2> "$TMP/errors"
[ $? -ne "$KSFT_SKIP" ] || skip_all "$(cat "$TMP/errors")"

# Writes to its memory while a child has it
cat > "$TMP/forks" <<-'END'
for i in 1 2 3; do
	text=$text$( echo "$i" ) || exit 1
done
END

run_chosen "$@"
