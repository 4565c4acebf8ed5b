# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the command line, of the console scanner and of the KTAP reader.

# refused MESSAGE COMMAND...: bad usage is status 2, with a message
refused_with()
{
	local message=$1
	shift
	here "$@" && want_status 2 && want_output "$message"
}

test_bad_input()
{
	refused_with "unknown command 'nonsense'" nonsense &&
	refused_with "unknown option '--nonsense'" kselftest --nonsense &&
	refused_with "takes no argument 'x'" kselftest x &&
	refused_with "does not apply to 'tree'" tree --filter x &&
	refused_with "needs a whole number" kselftest --jobs none &&
	refused_with "needs a whole number" boot --timeout 0 -- true &&
	refused_with "needs a value" kselftest --timeout &&
	refused_with "um x86_64 arm64" kunit --arch riscv &&
	refused_with "kasan, kcsan or lockdep" kselftest --debug nothing &&
	refused_with "neither a known kernel .*nor the folder" tree --kernel 5.4 &&
	refused_with "is not a kernel tree" tree --kernel / &&
	refused_with "cannot be written" kselftest --junit /nonexistent/file &&
	refused_with "neither a program of the host nor of busybox" boot -- no-such-program &&
	refused_with "does not exist" boot -- ./no-such-program &&
	refused_with "does not run on arm64|packages are missing" boot --arch arm64 -- "$(type -P true)" &&
	refused_with "needs a terminal" boot &&
	refused_with "list what" list nonsense &&
	refused_with "is not WORKLOAD:CONFIG" bench --profile seq &&
	refused_with "compares two, not 3" bench --profile a:b,c:d,e:f &&
	refused_with "does not apply" bench --profile seq:off --quick &&
	refused_with "neither a file nor 'running'" package --base-config /nonexistent &&
	refused_with "not the output of lsmod" package --localmod /etc/passwd &&
	refused_with "needs one folder" export
}

test_unknown_filter()
{
	refused_with "no kselftest matches 'no_such\*'" kselftest --filter 'no_such*' &&
	refused_with "no KUnit test matches" kunit --filter 'no_such*' &&
	refused_with "no test matches" run --filter 'no_such*' &&
	refused_with "no mutant" mutants --filter 'no_such*'
}

test_help()
{
	local command
	for command in run kunit kselftest boot bench profile tree export refresh mutants gate package new check clean list; do
		here "$command" --help && want_status 0 && want_output '^Usage: ' || return
	done
	here --help && want_status 0 && want_output 'Exit status'
}

test_splat_scanner()
{
	local file verdict found
	for file in "$ROOT"/fixtures/consoles/*.log; do
		verdict=${file##*/}
		verdict=${verdict%%-*}
		found=$(find_splats "$file")
		case "$verdict" in
		clean)
			[ -z "$found" ] || complain "${file##*/}: $found" || return ;;
		splat)
			[ -n "$found" ] || complain "${file##*/}: not noticed" || return ;;
		*)
			complain "${file##*/}: its name must begin with clean- or splat-"
			return ;;
		esac
	done
}

# However many tests fail: with set -o pipefail, a reader that has seen enough is fatal.
test_many_failures()
{
	local log=$SCRATCH/many.log status=0
	OUT=$SCRATCH/output
	seq -f '# not ok %.0f a test with a rather long name, so that no pipe holds all of them' 20000 > "$log"
	( QUIET='' && show_failures "$log" && show_splats "$(cat "$log")" x ) > "$OUT" 2>&1 || status=$?
	want_same "$status" 0 && want_output 'not ok 40 ' &&
	want_same "$(grep -c 'not ok 41 ' "$OUT")" 0
}

# A disk that is full is named, for the logs are empty then.
test_full_disk()
{
	local status=0
	OUT=$SCRATCH/output
	(
		BUILD=$SCRATCH
		df() { printf 'Filesystem\nx 100 97 3 97%% /\n'; }
		step "writing" full.log false
	) 2> "$OUT" || status=$?
	want_same "$status" 1 && want_output "only 3 MB are free for $SCRATCH"
}

# Only the emulator's own oops may be tried again.
test_emulator_slip()
{
	local file
	echo "$(cat /proc/sys/kernel/random/boot_id) no" > "$SCRATCH/kvm-probe"
	for file in "$ROOT"/fixtures/consoles/*.log; do
		if ( BUILD=$SCRATCH && emulator_slipped "$file" ); then
			[ "${file##*/}" = splat-emulator-int3.log ] ||
				complain "${file##*/}: taken for the emulator's" || return
		else
			[ "${file##*/}" != splat-emulator-int3.log ] ||
				complain "${file##*/}: not recognised" || return
		fi
	done
}

test_ktap()
{
	local file want got
	for file in "$ROOT"/fixtures/ktap/*.log; do
		want=$(sed -n 's/^#! *//p' "$file")
		got=$(grep -v '^#!' "$file" | awk -f "$ROOT/scripts/lib/ktap.awk" |
			awk -F '\t' '{ n[$1]++ } END { printf "%d passed, %d failed, %d skipped\n", n["pass"], n["fail"], n["skip"] }')
		want_same "${file##*/}: $got" "${file##*/}: $want" || return
	done
}

# Addresses are compared as text; bounds of sections are not functions.
test_insn_profile()
{
	local map=$SCRATCH/insn.map counts=$SCRATCH/insn.counts got
	cat > "$map" <<-'END'
	ffffffff81000000 T _stext
	ffffffff81000000 T _text
	ffffffff81000000 T startup_64
	ffffffff81000100 t __pfx_local
	ffffffff81000110 t local
	ffffffff81000200 D data
	ffffffff81000300 T __lock_text_start
	ffffffff81000300 T _raw_spin_lock
	END
	cat > "$counts" <<-'END'
	parts 2
	user 7
	ffffffff80ffffff 5
	ffffffff81000000 1
	ffffffff810000ff 2
	ffffffff81000110 10
	ffffffff81000250 20
	ffffffff81000300 40
	total 85
	END
	got=$(awk -f "$ROOT/scripts/bench/insn-profile.awk" "$map" "$counts" | sort | paste -sd,)
	want_same "$got" "3 startup_64,30 local,40 _raw_spin_lock,5 unknown,7 user" || return
	tr , '\n' <<< "$got" > "$SCRATCH/insn.functions"
	echo 'seq:off 4 2 85 85 0.000' > "$SCRATCH/insn.sums"
	got=$(awk -v LEAST=0 -v GROUPS="$ROOT/fixtures/plugin/groups" -f "$ROOT/scripts/bench/insn-table.awk" \
		"$SCRATCH/insn.sums" "$SCRATCH/insn.functions" | tr -s ' ' | tail -n +2 | paste -sd,)
	want_same "$got" " 10.00 20.00 47.06% 47.06% page table, 9.50 19.00 44.71% 91.76% other, 1.75 3.50 8.24% 100.00% user, 21.25 42.50 100.00% total, 21.25 42.50 100.00% total without the page copy"
}

# The plugin builds without a warning and loads; a QEMU that loads none is named.
test_insn_plugin()
{
	local bin=$SCRATCH/insn.bin
	OUT=$SCRATCH/output
	STATUS=0
	( BUILD=$SCRATCH/insn.build VERBOSE=1 need_insn_plugin ) > "$OUT" 2>&1 || STATUS=$?
	want_status 0 && want_output "interface version [0-9]+" &&
	want_same "$(cat "$LOGS/plugin.log")" "" || return
	mkdir -p "$bin"
	printf '%s\n' '#!/bin/sh' 'echo "qemu-system-x86_64: -plugin: invalid option"; exit 1' \
		> "$bin/qemu-system-x86_64"
	chmod +x "$bin/qemu-system-x86_64"
	( BUILD=$SCRATCH/insn.build PATH=$bin:$PATH need_insn_plugin ) > "$OUT" 2>&1 || STATUS=$?
	want_status 2 && want_output "cannot load the plugin" && want_output "invalid option"
}
