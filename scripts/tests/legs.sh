# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The legs of check: which there are, and what each does.

# ours COMMAND ARGS...: a command of this harness
ours()
{
	local command=$1
	shift
	bash "$ROOT/scripts/cmd/$command" --jobs "$JOBS" ${INSTALL_DEPS:+--install-deps} "$@"
}

# Those that need no kernel
host_legs()
{
	leg shellcheck lint
	leg harness bash "$ROOT/scripts/tests/harness" --filter '[!g]* gate*'
}

# Those of each kernel, chosen by select_kernel
kernel_legs()
{
	local k=$K_NAME
	leg "$k: KUnit on UML" ours kunit --kernel "$K_CHOICE"
	leg "$k: kselftests on x86_64" ours kselftest --kernel "$K_CHOICE"
	[ -n "$ALL" ] || return 0
	leg "$k: kselftests without the series" plain_kselftests
	leg "$k: kselftest targets" selftest_targets
	leg "$k: checkpatch" checkpatch
	if [ -n "$K_PACKAGE" ]; then
		leg "$k: recorded benchmarks" ours bench --check --kernel "$K_CHOICE"
	else
		skip_leg "$k: recorded benchmarks" "nothing is recorded for a tree of the user's"
	fi
}

# Those of the newest kernel: the tests and mutants of the quick gate are legs already
newest_kernel_legs()
{
	leg "$K_NAME: quick gate" ours gate --quick --skip 'behaviour-*,mutants-*' --base "$K_CHOICE"
	[ -n "$ALL" ] || return 0
	leg "$K_NAME: gate" ours gate --base "$K_CHOICE"
}

FIVE='vma-bounds pmd-crossing not-present already-writable exclusive-flag pte-same'
CHANGED_MUTANTS_MINUTES=10

default_kernel_legs()
{
	local k=$K_NAME
	leg "$k: mutants of the five checks" ours mutants --filter "$FIVE" --kernel "$K_CHOICE"
	if [ -z "$ALL" ]; then
		leg "$k: ten submissions" ours gate --selftest --quick --base "$K_CHOICE"
		leg "$k: changed mutants" ours mutants --changed --minutes "$CHANGED_MUTANTS_MINUTES" \
			--kernel "$K_CHOICE"
		return
	fi
	leg "$k: KUnit on x86_64" ours kunit --kernel "$K_CHOICE" --arch x86_64
	leg "$k: guests" bash "$ROOT/scripts/tests/harness" --filter 'guest_*'
	leg "$k: upstream mm/cow" upstream_cow
	leg "$k: cost of counting" ours bench cost --kernel "$K_CHOICE"
	leg "$k: code with the options off" ours bench cost --objects --kernel "$K_CHOICE"
	leg "$k: profile of a fault" ours profile cow --repeat 2 --kernel "$K_CHOICE"
	leg "$k: profile of a fork" ours profile fork --repeat 2 --size 0,1 --kernel "$K_CHOICE"
	leg "$k: profile of instructions" ours bench --profile seq:off,seq:fixed-15 --kernel "$K_CHOICE"
	leg "$k: all submissions" ours gate --selftest --base "$K_CHOICE"
	leg "$k: all mutants" ours mutants --kernel "$K_CHOICE"
}

# In parallel: each file is checked with all that it sources.
lint()
{
	{
		shell_scripts
		printf '%s\n' "$ROOT/run_tests.sh" "$ROOT/.ci/run" "$ROOT/fixtures/init" "$ROOT"/selftests/cow/*.sh
	} | xargs -d '\n' -n 4 -P "$JOBS" shellcheck -x -P SCRIPTDIR -P "$ROOT" \
		-e SC2015,SC2016,SC2034,SC2153,SC2317
}

# Every file in scripts/ is a shell script, but for those with another name.
shell_scripts()
{
	find "$ROOT/scripts" -type f ! -name '*.awk' ! -name '*.py' ! -name '*.pyc' ! -name '*.gp' \
		! -name '*.md' ! -name '*~' ! -name '.*' | sort
}

# How the kselftests build: all, install, clean, gen_tar; in the tree, and with
# O= absolute and relative. On a copy of the tree's tools, to leave it clean.
selftest_targets()
{
	local copy=$SCRATCH/targets.$K_NAME way out=() failed=
	rm -rf "$copy"
	mkdir -p "$copy"
	( cd "$K_TREE" && git_archive_for_selftests | tar -x -C "$copy" ) || return 1
	cp -r "$K_DIR/selftests/build/usr" "$copy/usr"
	for way in in-tree absolute relative; do
		case "$way" in
		in-tree) out=() ;;
		absolute) out=("O=$copy/out.absolute") ;;
		relative) out=(O=out.relative) ;;
		esac
		mkdir -p "$copy/out.absolute" "$copy/out.relative"
		targets_one_way "$copy" "$way" "${out[@]}" || failed=1
	done
	rm -rf "$copy"
	[ -z "$failed" ]
}

git_archive_for_selftests()
{
	kgit archive HEAD -- Makefile scripts tools/testing/selftests/Makefile \
		tools/testing/selftests/lib.mk tools/testing/selftests/*.h \
		tools/testing/selftests/*.sh tools/testing/selftests/kselftest \
		tools/testing/selftests/cow tools/scripts tools/include include/uapi \
		tools/build tools/arch mm/gup_test.h lib/test_hmm_uapi.h
}

targets_one_way()
{
	local copy=$1 way=$2 target status
	local selftests=$1/tools/testing/selftests failed=
	shift 2
	for target in all install gen_tar clean; do
		status=0
		# make does not look at its own stale headers: those of the tree's
		# build stand in usr/include
		( cd "$copy" && make -s -C tools/testing/selftests "$@" TARGETS=cow FORCE_TARGETS=1 \
			KHDR_INCLUDES="-isystem $copy/usr/include" \
			INSTALL_PATH="$copy/installed.$way" "$target" ) || status=$?
		[ "$status" -eq 0 ] || { failed=1; echo "FAIL $way: make $target: status $status"; }
		printf '%s\t%s %s\t\n' "$([ "$status" -eq 0 ] && echo pass || echo fail)" \
			"$way" "$target" >> "$COW_RESULTS"
		[ "$target" != install ] || installed_all "$copy/installed.$way" || {
			failed=1
			printf 'fail\t%s install\tnot every program was installed\n' "$way" >> "$COW_RESULTS"
		}
	done
	left_over "$selftests" "$way" || failed=1
	[ -z "$failed" ]
}

installed_all()
{
	local program
	for program in $(selftest_programs); do
		[ -x "$1/cow/$program" ] || return 1
		grep -qx "cow:$program" "$1/kselftest-list.txt" || return 1
	done
}

left_over()
{
	local file
	# what was built: scripts are sources
	file=$(find "$1/cow" -type f -perm -u+x ! -name '*.sh' | head -n 1)
	if [ -n "$file" ]; then
		printf 'fail\t%s clean\tleaves %s\n' "$2" "${file##*/}" >> "$COW_RESULTS"
		return 1
	fi
}

# The tree's own checkpatch. The series carries no Signed-off-by on purpose.
checkpatch()
{
	local dir=$SCRATCH/export.$K_NAME file complaints failed=
	rm -rf "$dir"
	bash "$ROOT/scripts/cmd/export" --kernel "$K_CHOICE" "$dir" || return
	for file in "$dir"/[0-9]*.patch; do
		case "$file" in
		*/0000-*) continue ;;
		esac
		complaints=$(run_checkpatch "$file")
		if [ -z "$complaints" ]; then
			printf 'pass\t%s\t\n' "${file##*/}" >> "$COW_RESULTS"
		else
			printf '%s:\n%s\n' "${file##*/}" "$complaints"
			printf 'fail\t%s\t%s\n' "${file##*/}" "$(echo "$complaints" | head -n 3 | paste -sd';')" >> "$COW_RESULTS"
			failed=1
		fi
	done
	[ -z "$failed" ]
}

# Upstream's own mm/cow selftest must say the same with the series, copying 15
# pages ahead, as without it.
upstream_cow()
{
	local program=$K_DIR/upstream/cow status=0
	build_upstream_cow "$program" || return 2
	run_upstream_cow without --unpatched --bench "$program" || status=$?
	[ "$status" -lt 2 ] || return "$status"
	run_upstream_cow with --append cow_precopy=on "$program" || status=$?
	[ "$status" -lt 2 ] || return "$status"
	compare_upstream_cow
}

# The program alone: the rest of mm's selftests need more than we have.
build_upstream_cow()
{
	local out
	out=$(dirname "$1")
	mkdir -p "$out"
	make_flags
	kmake "$K_TREE" "$K_DIR/selftests/build" x86_64 headers &&
	make -s -C "$K_TREE/tools/testing/selftests/mm" OUTPUT="$out" \
		KHDR_INCLUDES="-isystem $K_DIR/selftests/build/usr/include" "$out/cow"
	local status=$?
	# what the Makefile generates into the tree, all of it ignored
	kgit -C "$K_TREE" clean -fXq tools/testing/selftests/mm
	return "$status"
}

# Its own status is 1 where the kernel lacks what a test of it needs.
run_upstream_cow()
{
	local name=$1 status=0 program
	shift
	program=${*: -1}
	bash "$ROOT/scripts/cmd/boot" --kernel "$K_CHOICE" --timeout 900 "${@:1:$#-1}" -- sh -c '
		echo 8 > /proc/sys/vm/nr_hugepages
		[ ! -e /proc/sys/vm/cow_precopy ] || {
			echo 15 > /proc/sys/vm/cow_precopy_pages
			[ "$(cat /proc/sys/vm/cow_precopy)" = 1 ] || exit 2
		}
		'"$program" "$program" > "$SCRATCH/cow.$name" || status=$?
	echo "mm/cow $name the series: status $status"
	cat "$SCRATCH/cow.$name"
	[ "$status" -eq 0 ] || [ "$status" -eq 1 ] || return 2
}

compare_upstream_cow()
{
	local results='^(not )?ok |^1\.\.|^# Totals|^# SKIP'
	grep -E "$results" "$SCRATCH/cow.without" > "$SCRATCH/without"
	grep -E "$results" "$SCRATCH/cow.with" > "$SCRATCH/with"
	awk -v OFS='\t' '/^ok .*# SKIP/ { print "skip", $0, ""; next }
		/^(not )?ok / { print "pass", $0, "" }' "$SCRATCH/with" >> "$COW_RESULTS"
	if ! [ -s "$SCRATCH/with" ] || ! diff "$SCRATCH/without" "$SCRATCH/with"; then
		printf 'fail\tsame\twith and without the series differ\n' >> "$COW_RESULTS"
		return 1
	fi
}

# On a kernel without the series the tests of behaviour run, none fails, and none of
# variant plain skips but those that fixtures/plain-skips names.
plain_kselftests()
{
	local own=$SCRATCH/plain.results status=0
	: > "$own"
	COW_RESULTS=$own ours kselftest --kernel "$K_CHOICE" --unpatched || status=$?
	cat "$own" >> "$COW_RESULTS"
	unknown_skips x86_64 < "$own" | while IFS=$'\t' read -r name reason; do
		echo "$name skipped: $reason"
		printf 'fail\t%s\tskipped: %s\n' "$name" "$reason" >> "$COW_RESULTS"
	done
	[ "$status" -eq 0 ] && ! grep -q '^fail' "$COW_RESULTS"
}

# unknown_skips MACHINE: of the results, the plain tests that skip and are not known to
unknown_skips()
{
	local status name reason
	grep "^skip.*[.]plain[.]" | while IFS=$'\t' read -r status name reason; do
		matches "$name" "$(awk -v machine="$1" '!/^#/ && $2 == machine { print $1 }' \
			"$ROOT/fixtures/plain-skips" | paste -sd' ')" || printf '%s\t%s\n' "$name" "$reason"
	done
}
