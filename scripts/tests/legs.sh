# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The legs of check: which there are, and what each does.

# shellcheck source=scripts/tests/documented.sh
. "$ROOT/scripts/tests/documented.sh"
# shellcheck source=scripts/tests/selftest_targets.sh
. "$ROOT/scripts/tests/selftest_targets.sh"

# harness_command COMMAND ARGS...: a command of this harness
harness_command()
{
	local command=$1
	shift
	bash "$ROOT/scripts/cmd/$command" --jobs "$JOBS" ${INSTALL_DEPS:+--install-deps} "$@"
}

# Those that need no kernel
host_legs()
{
	leg shellcheck lint
	# all tests but guest_*, which boot kernels
	leg harness bash "$ROOT/scripts/tests/harness" --filter '[!g]* gate*'
}

# Those of each kernel, chosen by select_kernel
kernel_legs()
{
	local k=$K_NAME
	leg "$k: KUnit on UML" harness_command kunit --kernel "$K_CHOICE"
	guest_leg "$k: kselftests on x86_64" harness_command kselftest --kernel "$K_CHOICE"
	leg "$k: mutants apply" mutants_apply
	[ -n "$ALL" ] || return 0
	leg "$k: kselftests without the series" plain_kselftests x86_64
	leg "$k: kselftests without the series, UML" plain_kselftests um
	leg "$k: boot arguments, one node" boot_arguments
	leg "$k: parts of the series" parts_of_series
	leg "$k: kselftest targets" selftest_targets
	if [ -n "$K_PACKAGE" ]; then
		leg "$k: recorded benchmarks" harness_command bench --check --kernel "$K_CHOICE"
	else
		skip_leg "$k: recorded benchmarks" "nothing is recorded for a tree of the user's"
	fi
}

# Those of the newest kernel. Of 'gate --quick' only the form and the compiler warnings:
# its tests are legs of their own, as are its mutants on the default kernel.
newest_kernel_legs()
{
	leg "$K_NAME: form and warnings" harness_command gate --quick --skip 'behaviour-*,mutants-*' --no-verdict --base "$K_CHOICE"
	[ -n "$ALL" ] || return 0
	leg "$K_NAME: gate" harness_command gate --base "$K_CHOICE"
	leg "$K_NAME: all mutants" all_mutants
}

# What the mutants and the tests that kill them are run with
MUTANTS_USE=(Kconfig.fragment fixtures/config fixtures/init fixtures/kernels patches scripts/lib scripts/cmd/mutants
	fixtures/qemu fixtures/um kunit ':!kunit/*_kunit.c' 'selftests/cow/cow_*.h'
	selftests/cow/cow_helpers.c selftests/cow/cow_children.c selftests/cow/cow_cgroup.c selftests/cow/cow_uffd.c
	selftests/cow/cow_guest.c selftests/cow/trace_helpers.sh selftests/cow/Makefile
	selftests/cow/tools/cow_stats.c)

# Those that were killed are remembered, until one of these, the mutant or its test changes.
all_mutants()
{
	COW_KILLED=$K_DIR/mutants/$(worktree_hash "${MUTANTS_USE[@]}") \
		harness_command mutants --kernel "$K_CHOICE" ${K_PACKAGE:+--record}
}

# A mutant, or a submission on our series, that does not apply is found before its turn.
mutants_apply()
{
	local file verdict status=0
	prepare_tree
	while read -r file; do
		is_for_tree "$(mutant_field "$file" Kernel)" || continue
		verdict=pass
		kgit -C "$K_TREE" apply --check "$file" || { verdict=fail; status=1; }
		printf '%s\t%s applies\t\n' "$verdict" "$(mutant_name "$file")" >> "$COW_RESULTS"
	done < <(mutant_files; grep -lx 'Base: series' "$ROOT"/fixtures/submissions/*)
	return "$status"
}

CHANGED_MUTANTS_MINUTES=5
# Debian's default kernel
IMAGE_OF_CI=linux-image-cloud-amd64

default_kernel_legs()
{
	local k=$K_NAME
	guest_leg "$IMAGE_OF_CI: cowstat and bpftrace" image_tools "$IMAGE_OF_CI"
	guest_leg "$k: bpftrace by the trace event" scripts_by_event
	leg "$k: mutants of the five checks" harness_command mutants --filter "$FIVE_CHECKS" --kernel "$K_CHOICE"
	if [ -z "$ALL" ]; then
		guest_leg "$k: quick submissions, by their tests" harness_command gate --selftest --quick \
			--filter 'plain-*' --base "$K_CHOICE"
		leg "$k: quick submissions, by their form" harness_command gate --selftest --quick \
			--filter '[!p]* p[!l]*' --base "$K_CHOICE"
		leg "$k: changed mutants" harness_command mutants --changed --minutes "$CHANGED_MUTANTS_MINUTES" \
			--kernel "$K_CHOICE"
		return
	fi
	leg "linux-image-6.12-cloud-amd64: cowstat and bpftrace" image_tools linux-image-6.12-cloud-amd64
	leg "$IMAGE_OF_CI: kselftests" plain_tests image --image "$IMAGE_OF_CI"
	leg "$k: kselftests without the series, arm64" plain_kselftests arm64
	leg "$k: KUnit on x86_64" harness_command kunit --kernel "$K_CHOICE" --arch x86_64
	leg "$k: guests" bash "$ROOT/scripts/tests/harness" --filter 'guest_*'
	# the newest kernel has the whole gate
	leg "$k: checkpatch, mm/cow, code with the options off" harness_command gate --base "$K_CHOICE" \
		--only form-checkpatch,behaviour-mm-cow,build-size --no-verdict
	leg "$k: cost of counting" harness_command bench cost --kernel "$K_CHOICE"
	leg "$k: profile of a fault" harness_command profile cow --repeat 2 --kernel "$K_CHOICE"
	leg "$k: profile of a fork" harness_command profile fork --repeat 2 --size 0,1 --kernel "$K_CHOICE"
	leg "$k: profile of instructions" harness_command bench --profile seq:off,seq:fixed-15 --kernel "$K_CHOICE"
	leg "$k: instructions of a compile" harness_command bench compile --kernel "$K_CHOICE"
	leg_with vng "$k: virtme-ng" virtme_ng
	leg "$k: commands of the README" documented_leg
	leg "$k: all submissions" harness_command gate --selftest --base "$K_CHOICE"
	leg "$k: all mutants" all_mutants
	leg "$k: templates" templates
}

# What 'new' writes, in a copy of this repository: the test passes, the mutant is killed.
# The harness's tests run the check.
templates()
{
	local copy=$SCRATCH/templates
	mkdir -p "$copy"
	tar -C "$ROOT" --exclude=./build --exclude=./.git -c . | tar -C "$copy" -x || return
	of_copy "$copy" new test from_template && of_copy "$copy" new mutant from-template &&
	of_copy "$copy" kselftest --kernel "$K_CHOICE" --filter from_template &&
	of_copy "$copy" mutants --kernel "$K_CHOICE" --filter from-template
}

# of_copy COPY COMMAND ARGS...: a command of a copy of this harness, in our build folder
of_copy()
{
	local copy=$1 command=$2
	shift 2
	COW_BUILD=$BUILD bash "$copy/scripts/cmd/$command" --jobs "$JOBS" "$@"
}

# leg_with PROGRAM NAME COMMAND...: skipped where the host has no such program
leg_with()
{
	local program=$1
	shift
	if [ -n "$LIST" ] || command -v "$program" > /dev/null; then
		leg "$@"
	elif wanted "$1"; then
		skip_leg "$1" "$program is not installed"
	fi
}

# In parallel: each file is checked with all that it sources.
lint()
{
	shell_scripts | xargs -d '\n' -n 4 -P "$JOBS" shellcheck -x -P SCRIPTDIR -P "$ROOT" \
		-e SC2015,SC2016,SC2034,SC2153,SC2317
}

# Every file in scripts/ is a shell script, but for those with another name.
shell_scripts()
{
	printf '%s\n' "$ROOT/run_tests.sh" "$ROOT/.ci/run" "$ROOT/fixtures/init" \
		"$ROOT"/selftests/cow/*.sh "$ROOT"/selftests/cow/tools/*.sh
	find "$ROOT/scripts" -type f ! -name '*.awk' ! -name '*.py' ! -name '*.pyc' ! -name '*.gp' ! -name '*.mk' \
		! -name '*.md' ! -name '*~' ! -name '.*' | sort
}

# On a kernel without the series the tests of behaviour run, none fails, and none of
# variant plain skips but those that fixtures/plain-skips names.
# plain_kselftests ARCH
plain_kselftests()
{
	local arch=$1 status=0
	plain_tests "$arch" --arch "$arch" --unpatched || status=$?
	[ "$arch" != arm64 ] || plain_on_two_nodes "$arch" || status=$?
	[ "$status" -eq 0 ] && ! grep -q '^fail' "$COW_RESULTS"
}

# plain_tests MACHINE OPTION...: a skip that fixtures/plain-skips does not name is a failure
plain_tests()
{
	local machine=$1 own=$SCRATCH/plain.results status=0
	shift
	: > "$own"
	COW_RESULTS=$own harness_command kselftest --kernel "$K_CHOICE" "$@" || status=$?
	cat "$own" >> "$COW_RESULTS"
	unknown_skips "$machine" "$K_CHOICE" < "$own" | while IFS=$'\t' read -r name reason; do
		echo "$name skipped: $reason"
		printf 'fail\t%s\tskipped: %s\n' "$name" "$reason" >> "$COW_RESULTS"
	done
	[ "$status" -eq 0 ] && ! grep -q '^fail' "$COW_RESULTS"
}

# plain_on_two_nodes ARCH: the tests that need two NUMA nodes must run, except numa_hinting,
# which depends on NUMA balancing
plain_on_two_nodes()
{
	local own=$SCRATCH/two-nodes.results status=0 test tests hinting
	tests=(memory_advice:numa_{policy,local,shared,protected,huge_shared,huge_protected} secondary_mmu:migrated)
	hinting=(memory_advice:numa_hinting{,_mthp,_huge})
	: > "$own"
	COW_RESULTS=$own harness_command kselftest --kernel "$K_CHOICE" --arch "$1" --unpatched \
		--filter "${hinting[*]} ${tests[*]}" --append numa=fake=2 || status=$?
	sed -E 's/(numa_[a-z_]*|migrated)/& on two nodes/' "$own" >> "$COW_RESULTS"
	[ "$status" -eq 0 ] || return
	for test in "${tests[@]}"; do
		grep -q "^pass.*[.]plain[.]${test#*:}" "$own" || {
			echo "$test does not run on two nodes"
			return 1
		}
	done
}

# at_boot ARGUMENTS TEST...: with these arguments of the kernel, each test runs and passes
at_boot()
{
	local arguments=$1 own=$SCRATCH/at-boot.results status=0 test filter=()
	shift
	filter=("${@/#/switching:}")
	: > "$own"
	COW_RESULTS=$own harness_command kselftest --kernel "$K_CHOICE" --filter "${filter[*]}" \
		--append "$arguments" || status=$?
	sed "s/_at_boot/& ($arguments)/" "$own" >> "$COW_RESULTS"
	[ "$status" -eq 0 ] || return
	for test; do
		grep -q "^pass.*$test" "$own" || {
			echo "$test does not run with '$arguments'"
			return 1
		}
	done
}

# What is set at boot; and the counters of each CPU and tests of placement where there is
# one node: the leg of the kselftests has two
boot_arguments()
{
	at_boot 'cow_precopy=on trace_event=cow:cow_fault' precopy_at_boot tracing_at_boot || return
	at_boot 'cow_precopy=perhaps' precopy_at_boot || return
	harness_command kselftest --kernel "$K_CHOICE" --filter 'cow_counts:each_cpu memory_advice' --append numa=fake=1
}

# The patches that count faults without those that copy ahead, and the other way round
parts_of_series()
{
	local part
	for part in measurement engine; do
		harness_command export --part "$part" --kernel "$K_CHOICE" "$SCRATCH/$part" || return
		harness_command gate --base "$K_CHOICE" --series "$SCRATCH/$part" \
			--only form-applies,build-each,build-without,behaviour-kselftest || return
	done
}

# image_tools PACKAGE: the tools that count by kprobes, on a kernel as Debian builds it.
# Only what needs the event of the series skips.
image_tools()
{
	local status=0
	harness_command kselftest --kernel "$K_CHOICE" --image "$1" --filter 'cowstat_stock cow_bpf.sh cow_docs.sh' || status=$?
	! grep "^skip" "$COW_RESULTS" | grep -v -e 'cow_bpf.sh:.*_event' -e 'cow_docs.sh:.*CONFIG_COW_STATS' \
		-e cowstat_stock:bill.lost_stacks || return 1
	return "$status"
}

# The scripts by the event, on a kernel of ours. As an image, since only there bpftrace is
# brought along; the kselftests have built it.
scripts_by_event()
{
	local status=0
	harness_command kselftest --kernel "$K_CHOICE" --image "$K_DIR/x86_64/vmlinux" --filter cow_bpf.sh || status=$?
	! grep '^skip.*_event' "$COW_RESULTS" || return 1
	return "$status"
}
