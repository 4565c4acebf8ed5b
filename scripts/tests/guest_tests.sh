# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of guests, with the default kernel.

#
# Guests, with the default kernel
#

# boots MESSAGE STATUS ARGS...
boots()
{
	local message=$1 status=$2
	shift 2
	in_repo boot "$@" && want_status "$status" && want_output "$message"
}

# The exact bytes, and the status.
guest_brings_back()
{
	local status=0
	COW_RESULTS='' "$ROOT/run_tests.sh" boot --arch "$1" -- \
		sh -c 'printf "a\r\nb\0c\377"; echo err >&2; exit 42' \
		> "$SCRATCH/got" 2> "$SCRATCH/output" < /dev/null || status=$?
	STATUS=$status OUT=$SCRATCH/output
	want_status 42 || return
	printf 'a\r\nb\0c\377err\n' | cmp -s - "$SCRATCH/got" ||
		complain "other bytes came back: $(od -c "$SCRATCH/got" | head -n 3)"
}

test_guest_x86_64()
{
	guest_brings_back x86_64 &&
	boots '^Linux' 0 -- "$(type -P uname)" &&
	boots '' 1 -- false
}

test_guest_um()
{
	guest_brings_back um &&
	boots '^Linux' 0 --arch um -- "$(type -P uname)" &&
	boots 'the guest panicked' 2 --arch um --append 'rdinit=/nonexistent init=/nonexistent' -- true &&
	boots 'the guest died early' 2 --arch um -- sh -c 'halt -f; sleep 100'
}

test_guest_append()
{
	boots 'one_word=two' 0 --append 'one_word=two' -- cat /proc/cmdline
}

test_guest_panics()
{
	boots 'the guest panicked' 2 -- sh -c 'echo c > /proc/sysrq-trigger; sleep 100'
}

test_guest_hangs()
{
	boots 'the guest hung' 2 --timeout 15 -- sleep 1000
}

# The benchmark itself says what it does not have, on the host and before a kernel is
# built; only the guest knows how much memory it has.
test_guest_bench_input()
{
	local program
	refused_with "no workload is called 'nonsense'" bench --filter nonsense &&
	refused_with "unknown configuration 'nonsense'" bench --filter seq:nonsense &&
	refused_with "'32' is not a number from 1 to 15" bench --filter seq:fixed-32 &&
	refused_with "'32' is not a number from 1 to 15" bench --filter seq:adaptive-32 &&
	refused_with "'seq:' is not WORKLOAD:CONFIG" bench --profile seq: || return
	program=$(dirname "$("$ROOT/run_tests.sh" tree)")/selftests/install/cow/cow_bench
	boots "--size: '0' is not|whole pages, [0-9]+ bytes at least" 2 -- "$program" --size 0 &&
	boots 'whole pages' 2 -- "$program" --size 4097 &&
	boots 'need [0-9]+ MB of memory; available are' 2 -- "$program" --size 4G
}

test_guest_dies()
{
	boots 'the guest died early' 2 -- sh -c 'reboot -f; sleep 100'
}

test_guest_does_not_start()
{
	boots 'the guest (did not start|panicked)' 2 --append 'rdinit=/nonexistent init=/nonexistent' -- true
}

test_guest_splat()
{
	boots 'the kernel complained' 2 -- sh -c 'echo "BUG: Bad page state in process x" > /dev/kmsg; exit 0'
}

# A submission is one result, whatever the gate has found in it.
test_guest_gate_results()
{
	local results=$SCRATCH/handed-on
	: > "$results"
	COW_RESULTS=$results "$ROOT/run_tests.sh" gate --selftest --filter style > /dev/null 2>&1 < /dev/null ||
		complain "status $?" || return
	[ "$(wc -l < "$results")" -eq 1 ] || complain "handed on: $(paste -sd' ' "$results")"
}

# settings_program FILE: merges by KSM and makes a cgroup as the kselftests do, and undoes it
settings_program()
{
	local tests=$ROOT/selftests/cow
	gcc -O2 -static -I"$tests" -I"$tests/tools" -x c -o "$1" - "$tests/cow_helpers.c" "$tests/cow_children.c" "$tests/cow_cgroup.c" \
		"$tests/cow_uffd.c" \
		"$tests/tools/cow_stats.c" -lpthread <<-'END'
	#include <stdio.h>
	#include <string.h>
	#include "cow_helpers.h"

	int main(void)
	{
		size_t len = 16 * cow_page_size();
		struct cow_undo undo = {};
		char dir[COW_CGROUP_DIR], *p = cow_map(len, 0);
		long merged;

		memset(p, 'x', len);
		merged = cow_ksm_merge(&undo, p, len, 16);
		cow_undo(&undo);
		printf("merged %ld, cgroup %d", merged, !cow_cgroup_make(dir, "cow_settings"));
		cow_cgroup_remove(dir);
		return 0;
	}
	END
}

# The kselftests leave KSM and the controllers of the root cgroup as they were, on or off,
# and without COW_TEST_INVASIVE they ask neither for one nor the other.
test_guest_settings()
{
	local program=$SCRATCH/settings job=$SCRATCH/settings.job
	settings_program "$program" || complain "the program does not build" || return
	cat > "$job" <<-END
	control=/sys/fs/cgroup/cgroup.subtree_control
	cd /sys/kernel/mm/ksm
	try()
	{
		echo \$2 > run
		echo \${3}memory > \$control
		COW_TEST_INVASIVE=\$1 $program
		echo ", run \$(cat run), controllers '\$(cat \$control)'"
	}
	try 1 1 -
	try 1 0 +
	try 0 1 -
	END
	in_repo boot -- sh "$job" "$program" && want_status 0 &&
	want_same "$(grep '^merged' "$OUT" | paste -sd'|')" \
		"merged 16, cgroup 1, run 1, controllers ''|merged 16, cgroup 1, run 0, controllers 'memory'|merged -13, cgroup 0, run 1, controllers ''"
}
