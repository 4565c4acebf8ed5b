# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the command line, of the console scanner, of the KTAP reader, and of what else
# all commands share.

# refused_with MESSAGE COMMAND...: bad usage is status 2, with a message
refused_with()
{
	local message=$1
	shift
	in_repo "$@" && want_status 2 && want_output "$message"
}

test_bad_input()
{
	refused_with "unknown command 'nonsense'" nonsense &&
	refused_with "unknown option '--nonsense'" kselftest --nonsense &&
	refused_with "takes no argument 'x'" kselftest x &&
	refused_with "does not apply to 'tree'" tree --filter x &&
	refused_with "needs a whole number" kselftest --jobs none &&
	refused_with "needs a whole number" boot --timeout 0 -- true &&
	refused_with "is too large" check --minutes 9223372036854775807 &&
	refused_with "needs a value" kselftest --timeout &&
	refused_with "um x86_64 arm64 i386" kunit --arch riscv &&
	refused_with "um x86_64 arm64$" kselftest --arch i386 &&
	refused_with "kasan, kcsan or lockdep" kselftest --debug nothing &&
	refused_with "no KCSAN on um" kunit --debug kcsan &&
	refused_with "use 'kselftest --debug kcsan'" run --debug kcsan &&
	refused_with "neither a known kernel .*nor the folder" tree --kernel 5.4 &&
	refused_with "is not a kernel tree" tree --kernel / &&
	refused_with "cannot be written" kselftest --junit /nonexistent/file &&
	refused_with "needs a file" run --json '' &&
	KCIDB_ORIGIN=my-lab refused_with "lower-case letters" kunit --kcidb "$SCRATCH/kcidb" &&
	refused_with "neither a program of the host nor of busybox" boot -- no-such-program &&
	refused_with "does not exist" boot -- ./no-such-program &&
	refused_with "does not run on arm64|packages are missing" boot --arch arm64 -- "$(type -P true)" &&
	refused_with "needs a terminal" boot &&
	refused_with "list what" list nonsense &&
	refused_with "is not WORKLOAD:CONFIG" bench --profile seq &&
	refused_with "compares two, not 3" bench --profile a:b,c:d,e:f &&
	refused_with "does not apply" bench --profile seq:off --quick &&
	refused_with "neither a file nor 'running'" package --base-config /nonexistent &&
	refused_with "neither a file nor 'running'" package --base-config / &&
	refused_with "not the output of lsmod" package --localmod /etc/passwd &&
	refused_with "needs a glob" run --filter ' ' &&
	refused_with "neither a known kernel" tree --kernel 6.120 &&
	refused_with "neither a known kernel" gate --selftest --filter good --base nope &&
	refused_with "neither a known kernel" gate --list --base series:nope &&
	refused_with "takes one KEY=VALUE" gate --set $'vm.a=1\nfoo' --list &&
	refused_with "--markdown goes to that file already" gate --list --markdown "$SCRATCH/r" --junit "$SCRATCH/r" &&
	refused_with "does not apply to 'bench cost'" bench cost --quick &&
	refused_with "'cost' comes first" bench --kernel 7.3 cost &&
	refused_with "needs one folder" export &&
	refused_with "needs one folder" export ''
}

# Started by a link, through CDPATH, or from a git hook, it is the same.
test_however_started()
{
	local hook=$SCRATCH/hook.git
	OUT=$SCRATCH/output
	ln -sfn "$ROOT/run_tests.sh" "$SCRATCH/link"
	"$SCRATCH/link" list kernels > "$OUT" 2>&1 || complain "not by a link: $(cat "$OUT")" || return
	( cd / && CDPATH=$(dirname "$ROOT") "$ROOT/run_tests.sh" list kernels ) > "$OUT" 2>&1 ||
		complain "not with CDPATH: $(cat "$OUT")" || return
	rm -rf "$hook"
	kgit init -q --bare "$hook"
	# shellcheck disable=SC2016 # it is another shell's
	GIT_DIR=$hook GIT_INDEX_FILE=$hook/index bash -c '
		. "$1"
		say "GIT_DIR is ${GIT_DIR-unset}, GIT_INDEX_FILE ${GIT_INDEX_FILE-unset}"
	' sh "$ROOT/scripts/lib/base.sh" > "$OUT" 2>&1
	want_output 'GIT_DIR is unset, GIT_INDEX_FILE unset'
}

# A report that cannot be written costs nothing but the report.
test_report_unwritable()
{
	OUT=$SCRATCH/output
	STATUS=0
	(
		RESULTS=$SCRATCH/unwritable.results
		echo $'pass\tfirst\t' > "$RESULTS"
		JUNIT=/dev/full
		JSON=$SCRATCH/written.json
		finish
	) > "$OUT" 2>&1 || STATUS=$?
	want_same "$(grep -c first "$SCRATCH/written.json")" 1 &&
	want_status 2 && want_output '^1 passed, 0 failed' && want_output "'/dev/full' could not be written" &&
	want_same "$(grep -c Traceback "$OUT")" 0
}

test_unknown_filter()
{
	refused_with "no kselftest matches 'no_such\*'" kselftest --filter 'no_such*' &&
	refused_with "no KUnit test matches" kunit --filter 'no_such*' &&
	refused_with "no test matches" run --filter 'no_such*' &&
	refused_with "no mutant" mutants --filter 'no_such*' &&
	refused_with "no mutant" mutants --changed --filter 'no_such*'
}

test_help()
{
	local command
	for command in run kunit kselftest boot bench profile tree export refresh mutants gate package new check clean list; do
		in_repo "$command" --help && want_status 0 && want_output '^Usage: ' || return
	done
	in_repo --help && want_status 0 && want_output 'Exit status'
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

# However many tests fail: with set -o pipefail, a reader that ends early is fatal (SIGPIPE).
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

# On a terminal the ticker runs until the guest has ended, and is not waited for.
test_terminal_guest()
{
	local dir=$SCRATCH/terminal watch
	mkdir -p "$dir"
	touch "$dir"/{status,console.log,job.log}
	(
		is_terminal() { true; }
		start_ticker guest "$SECONDS"
		{ sleep 20; kill "$TICKER" && touch "$dir/waited"; } &
		watch=$!
		disown "$watch"
		setsid sleep 0.1 &
		GUEST=$!
		wait_guest "$dir" 60
		kill "$watch"
	) 2> /dev/null
	[ ! -e "$dir/waited" ] || complain "the end of the ticker was waited for"
}

# A run of hours keeps its logs, however many others have begun since.
test_old_logs()
(
	BUILD=$SCRATCH/old-logs
	mkdir -p "$BUILD"/logs/{long,over,0{1..40}}
	touch "$BUILD/logs/over/log" "$BUILD/logs/long/log"
	touch -d '2 hours ago' "$BUILD/logs/over/log" "$BUILD"/logs/0*
	touch -d '3 hours ago' "$BUILD"/logs/{long,over}
	drop_old_logs
	want_same "$(cd "$BUILD/logs" && echo [a-z]*) $(find "$BUILD/logs" -name '0*' | wc -l)" "long 29"
)

# What is in COW_BUILD is removed by clean: it must be the harness's.
test_foreign_build()
{
	local dir=$SCRATCH/foreign
	mkdir -p "$dir"
	touch "$dir/mine"
	COW_BUILD=$dir refused_with "holds files of others" clean &&
	COW_BUILD=$dir refused_with "holds files of others" tree &&
	want_same "$(ls "$dir")" mine || return
	rm "$dir/mine"
	( cd "$SCRATCH" && COW_BUILD=foreign in_repo tree --kernel /nonexistent && want_status 2 )
}

# One guest at a time has real-time priority, if that is allowed.
test_realtime_priority()
{
	local first=OTHER policies status=0
	[ "$(nproc)" -eq 1 ] || ! chrt --rr 1 true 2> /dev/null || first=RR
	policies=$(COW_GUEST_LOCK=$SCRATCH/lock "$ROOT/scripts/lib/with-realtime-priority" sh -c '
		chrt -p $$
		chrt --other 0 "$0" sh -c "chrt -p \$\$; exit 3"
		exit $?' "$ROOT/scripts/lib/with-realtime-priority") || status=$?
	want_same "$status $(echo "$policies" | sed -n 's/.* SCHED_//p' | paste -sd,)" "3 $first,OTHER"
}

# A guest is booted again only after the oops that the emulator causes.
test_emulator_slip()
{
	local file
	echo "$(boot_id) no" > "$SCRATCH/kvm-probe"
	for file in "$ROOT"/fixtures/consoles/*.log; do
		if ( BUILD=$SCRATCH && qemu_ran_stale_int3 "$file" ); then
			[ "${file##*/}" = splat-emulator-int3.log ] ||
				complain "${file##*/}: taken for the emulator's" || return
		else
			[ "${file##*/}" != splat-emulator-int3.log ] ||
				complain "${file##*/}: not recognised" || return
		fi
	done
}

# fake_qemu DIR VERSION
fake_qemu()
{
	mkdir -p "$1"
	printf '#!/bin/sh\necho "QEMU emulator version %s (Debian)"\n' "$2" > "$1/qemu-system-x86_64"
	chmod +x "$1/qemu-system-x86_64"
}

# fake_backports DIR VERSION: an apt archive below DIR whose backports serve that QEMU
fake_backports()
{
	local archive=$1 package
	mkdir -p "$archive/pool"
	fake_qemu "$archive/qemu-system-x86/usr/bin" "$2"
	for package in "${QEMU_PACKAGES[@]}"; do
		mkdir -p "$archive/$package/DEBIAN"
		printf '%s\n' "Package: $package" "Version: $2" "Architecture: all" \
			"Maintainer: nobody <nobody@localhost>" "Description: QEMU" > "$archive/$package/DEBIAN/control"
		dpkg-deb --root-owner-group -b "$archive/$package" "$archive/pool/${package}_$2_all.deb" > /dev/null
	done
	serve_pool "$archive" -backports
}

# qemu_version_of_guests: that which need_qemu chooses
qemu_version_of_guests()
{
	( PATH=$SCRATCH/bin:$PATH BUILD=$SCRATCH/build APT_SOURCES=$SCRATCH/qemu/etc
	  need_qemu x86_64 && "${QEMU[@]}" --version | awk '{ print $4 }' ) 2> "$OUT"
}

# An old QEMU of the host gives way to that of the backports, if it can be had.
test_old_qemu()
{
	OUT=$SCRATCH/output
	fake_qemu "$SCRATCH/bin" 8.1.0
	want_same "$(qemu_version_of_guests)" 8.1.0 && want_same "$(cat "$OUT")" "" || return
	fake_qemu "$SCRATCH/bin" 7.2.22
	want_same "$(qemu_version_of_guests)" 7.2.22 && want_output 'cannot be had' &&
	want_same "$(qemu_version_of_guests)" 7.2.22 && want_same "$(cat "$OUT")" "" || return
	fake_backports "$SCRATCH/qemu" 10.0.2
	want_same "$(qemu_version_of_guests)" 7.2.22 || return
	rm -r "$SCRATCH/build/qemu"
	want_same "$(qemu_version_of_guests)" 10.0.2 && want_output 'downloading' &&
	want_same "$(qemu_version_of_guests)" 10.0.2 && want_same "$(cat "$OUT")" ""
}

test_ktap()
{
	local file want got
	for file in "$ROOT"/fixtures/ktap/*.log; do
		want=$(sed -n 's/^#! *//p' "$file")
		got=$(grep -v '^#!' "$file" | "$PYTHON" "$ROOT/scripts/lib/ktap.py" /dev/stdin |
			awk -F '\t' '{ n[$1]++ } END { printf "%d passed, %d failed, %d skipped\n", n["pass"], n["fail"], n["skip"] }')
		want_same "${file##*/}: $got" "${file##*/}: $want" || return
	done
}

# A program that skips all of its tests says why in its plan.
test_ktap_reason()
{
	"$PYTHON" "$ROOT/scripts/lib/ktap.py" "$ROOT/fixtures/ktap/kselftest-all-skip.log" > "$SCRATCH/got"
	want_same "$(head -n 1 "$SCRATCH/got")" $'skip\tone\tno vm.cow_precopy: the kernel lacks the series'
}

# fake_legs COMMAND: legs of check that depend on each other, and COMMAND
fake_legs()
{
	cat > "$SANDBOX/scripts/tests/legs.sh" <<-END
	host_legs()
	{
		leg host timeout 300 sh -c "until [ -e $SCRATCH/guest.began ]; do sleep 0.1; done"
	}
	kernel_legs()
	{
		guest_leg guest sh -c "touch $SCRATCH/guest.began; echo wrong; exit 1"
		leg later true
	}
	newest_kernel_legs() { :; }
	default_kernel_legs() { $1; }
	END
	rm -f "$SCRATCH/guest.began"
}

# Two legs at a time, one of them with a guest; the results are those of all. A queue that
# cannot go on is a failure, whatever the other one does.
test_check_queues()
{
	make_sandbox
	fake_legs :
	in_sandbox check --kernel 6.12 --jobs 2 --filter '*' && want_status 1 &&
	want_output '^FAIL guest' && want_output 'wrong' && want_output '^PASS host' &&
	want_output '^2 passed, 1 failed, 0 skipped' &&
	want_same "$(cut -f 1,2 "$SANDBOX"/build/logs/*-check*/results | sort | tr '\t\n' ' ,')" \
		'fail guest:status,pass host:all,pass later:all,' || return
	fake_legs '[ "$QUEUE" != others ] || exit 3'
	in_sandbox check --kernel 6.12 --jobs 2 --filter '*' && want_status 1 &&
	want_output 'check could not go on .status 3.' || return
	# what a leg dies of is said, and the others run
	fake_legs 'leg dies die "it cannot"; leg last true'
	in_sandbox check --kernel 6.12 --jobs 1 --filter '[dl]*s*' && want_status 1 &&
	want_output '^FAIL dies' && want_output 'it cannot' && want_output '^PASS last'
}

# The job has ended, and the guest has not.
test_not_switched_off()
(
	local dir=$SCRATCH/not.off HUNG='' VERDICT WHY
	mkdir -p "$dir"
	: > "$dir/console.log"
	echo 'exit 0' > "$dir/status"
	judge_guest "$dir"
	want_same "$VERDICT|$WHY" 'exited 0|' || return
	HUNG='the guest printed nothing for 300s'
	judge_guest "$dir"
	want_same "$VERDICT|$WHY" 'hung|the guest did not switch off after the job: the guest printed nothing for 300s'
)
