# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
#
# What the tests of tracing share: known_faults takes known faults and prints the
# records that they must leave. A test is a function test_NAME; the caller has a
# list TESTS, a folder TMP, and functions before_test and after_test.

# shellcheck source=/dev/null
. "$DIR/../kselftest/ktap_helpers.sh"

skip_test()
{
	__ktap_test ok "$1" "SKIP $2"
	KTAP_CNT_SKIP=$((KTAP_CNT_SKIP + 1))
}

# A test says with these why it fails (and then returns 1) or is skipped.
complain()
{
	ktap_print_msg "$*"
	return 1
}

skip()
{
	SKIP=$*
	return 0
}

#
# The workload and what it must leave in a trace
#

# workload COMMAND...: which is, or runs, known_faults; what that says is kept
workload()
{
	"$@" > "$TMP/said" 2> "$TMP/errors" && return
	sed 's/^/# /' "$TMP/errors"
	complain "failed: $*"
}

# expected [OUTCOME]: the records of the last workload, of one outcome only
expected()
{
	grep -v '^pid' "$TMP/said" | grep "${1:+outcome=$1}"
}

known_pid()
{
	sed -n 's/^pid //p' "$TMP/said"
}

need_tool()
{
	command -v "$1" > /dev/null || { skip "no $1 here"; false; }
}

#
# Running
#

run_test()
{
	SKIP=
	status=0
	before_test && "test_$1" || status=1
	after_test
	if [ $status -ne 0 ]; then
		ktap_test_fail "$1"
	elif [ -n "$SKIP" ]; then
		skip_test "$1" "$SKIP"
	else
		ktap_test_pass "$1"
	fi
}

chosen_tests()
{
	for name in $TESTS; do
		case " $* " in
		"  "|*" -t $name "*) echo "$name" ;;
		esac
	done
}

skip_all()
{
	ktap_skip_all "$*"
	exit "$KSFT_SKIP"
}

# Root, and asked to: sysctls, counters and tracing are the machine's (see cow_helpers.h).
need_leave_to_change()
{
	[ "$(id -u)" -eq 0 ] && [ "$COW_TEST_INVASIVE" = 1 ] ||
		skip_all "needs root and COW_TEST_INVASIVE=1"
}

# mount_tracefs: where it is not mounted. Replaces what is done on EXIT: a test that does
# more there calls unmount_tracefs, which leaves what was mounted before, or is in use.
mount_tracefs()
{
	MOUNTED=
	trap unmount_tracefs EXIT
	[ ! -d /sys/kernel/tracing/events ] || return 0
	! mount -t tracefs trace /sys/kernel/tracing 2> /dev/null || MOUNTED=/sys/kernel/tracing
}

unmount_tracefs()
{
	[ -z "$MOUNTED" ] || umount "$MOUNTED" 2> /dev/null || true
}

# run_chosen [-t NAME]...: all tests without -t
run_chosen()
{
	ktap_set_plan "$(chosen_tests "$@" | wc -l)"
	for name in $(chosen_tests "$@"); do
		run_test "$name"
	done
	ktap_finished
}
