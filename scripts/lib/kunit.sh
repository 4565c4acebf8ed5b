# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# KUnit, by the kernel's own kunit.py.

# known_kunit_tests: suite.case for each case that kunit/*.c declares
known_kunit_tests()
{
	cat "$ROOT"/kunit/*.c 2> /dev/null | awk '
		/struct kunit_case [a-z_A-Z0-9]+\[\]/ {
			table = $0
			sub(/.*struct kunit_case /, "", table)
			sub(/\[.*/, "", table)
		}
		/KUNIT_CASE[A-Z_]*\(/ {
			name = $0
			sub(/.*KUNIT_CASE[A-Z_]*\( */, "", name)
			sub(/[,) ].*/, "", name)
			cases[table] = cases[table] " " name
		}
		/\.name *= *"/ {
			suite = $0
			sub(/[^"]*"/, "", suite)
			sub(/".*/, "", suite)
		}
		/\.test_cases *=/ {
			table = $0
			sub(/.*\.test_cases *= */, "", table)
			sub(/[ ,;].*/, "", table)
			n = split(cases[table], list, " ")
			for (i = 1; i <= n; i++)
				print suite "." list[i]
		}'
}

# kunit_filter GLOB: refuses one that no test matches
kunit_filter()
{
	local glob=$1 name
	case "$glob" in
	*.*) ;;
	*) glob="$glob.*" ;;
	esac
	for name in $(known_kunit_tests); do
		# shellcheck disable=SC2254 # a glob on purpose
		case "$name" in
		$glob) return 0 ;;
		esac
	done
	die "no KUnit test matches '$1'; './run_tests.sh list tests' lists them"
}

# qemu_wrapper DIR ARCH: a qemu without '-accel kvm', for which kunit.py asks whenever
# the device node is there, working or not.
qemu_wrapper()
{
	local qemu=${ARCH_QEMU[$2]-}
	[ -n "$qemu" ] || return 0
	need_qemu "$2"
	QEMU[0]=$(type -P "${QEMU[0]}")
	mkdir -p "$1"
	cat > "$1/$qemu" <<-END
	#!/bin/bash
	arguments=()
	while [ \$# -gt 0 ]; do
		case "\$1 \${2-}" in
		"-accel kvm"|"-accel hvf") shift 2 ;;
		*) arguments+=("\$1"); shift ;;
		esac
	done
	exec "$ROOT/scripts/lib/with-realtime-priority" ${QEMU[@]@Q} "\${arguments[@]}"
	END
	chmod +x "$1/$qemu"
}

# kunit_fragments ARCH: what is wanted beside kunit/.kunitconfig
kunit_fragments()
{
	case "$1" in
	x86_64|i386) echo kunit-x86.config ;;
	esac
	echo "kunit-$1.config"
}

# run_kunit TREE OUT ARCH [GLOB] [OPTIONS...]: OUT is made if need be. Records
# every test; sets KUNIT_LOG, the kernel's own log. Status 1 if the kernel did
# not get built.
run_kunit()
{
	local tree=$1 out=$2 arch=$3 glob=${4-} status=0 option config
	shift $(($# > 4 ? 4 : $#))
	local command=("$PYTHON" tools/testing/kunit/kunit.py run
		--arch="$arch" --build_dir="$out" --jobs="$JOBS"
		--kunitconfig="${KUNIT_CONFIG:-mm/tests}" --timeout="${TIMEOUT:-900}")
	for config in $(kunit_fragments "$arch"); do
		command+=(--kunitconfig="$ROOT/fixtures/config/$config")
	done
	make_flags "$arch"
	for option in "${MAKE_FLAGS[@]}"; do
		command+=(--make_options="$option")
	done
	# some tests need another CPU
	[ "$arch" = um ] || command+=(--qemu_args='-smp 2')
	# a busy host that delivers no tick is not a broken timer
	case "$arch" in
	x86_64|i386) command+=(--kernel_args=no_timer_check) ;;
	esac
	# some tests need a second node
	[ "$arch" != x86_64 ] || command+=(--kernel_args=numa=fake=2)
	# with PAE the kernel takes NX for granted
	[ "$arch" != i386 ] || command+=(--qemu_args='-cpu qemu32,+nx')
	# an oops or a panic ends the kernel at once, not at the timeout
	for option in panic=-1 oops=panic $APPEND; do
		command+=(--kernel_args="$option")
	done
	command+=("$@")
	[ -z "$glob" ] || command+=("$glob")

	qemu_wrapper "$SCRATCH/bin" "$arch"
	open_logs
	mkdir -p "$out"
	KUNIT_LOG=$LOGS/kunit-$arch.log
	: > "$KUNIT_LOG"
	lock "$(out_label "$out" | tr / -)"
	rm -f "$out/test.log"
	: > "$LOGS/kunit.py-$arch.log"
	step "KUnit ($(out_label "$out"))" "kunit.py-$arch.log" \
		kunit_py "$tree" "${command[@]}" || status=$?
	[ ! -f "$out/test.log" ] || tr -d '\r' < "$out/test.log" > "$KUNIT_LOG"
	unlock "$(out_label "$out" | tr / -)"
	[ -s "$KUNIT_LOG" ] || return 1
	judge_kunit "$arch" "$status"
}

# kunit_py TREE COMMAND...: kunit.py, in a tree
kunit_py()
{
	local tree=$1
	shift
	( cd "$tree" && PATH=$SCRATCH/bin:$PATH exec nice "$@" )
}

judge_kunit()
{
	local arch=$1 status=$2 before after splats why=
	before=$(count_results fail)
	record_ktap "$KUNIT_LOG" "$arch:"
	after=$(count_results fail)
	splats=$(find_splats "$KUNIT_LOG")
	if grep -q 'Kernel panic - not syncing' "$KUNIT_LOG"; then
		why="the kernel panicked"
	elif grep -q 'timed out after' "$LOGS/kunit.py-$arch.log"; then
		why="the kernel hung: stopped after ${TIMEOUT:-900}s (--timeout)"
	elif [ "$status" -ne 0 ] && [ "$before" -eq "$after" ]; then
		why="kunit.py: status $status"
	fi
	if [ -n "$why" ]; then
		record fail "$arch:kernel" "$why"
		[ -n "${QUIET-}" ] || show_tail "$KUNIT_LOG"
	fi
	if [ -n "$splats" ]; then
		[ -n "${QUIET-}" ] || show_splats "$splats" "$KUNIT_LOG"
		record fail "$arch:console" "$(first_splat "$splats")"
	fi
}
