# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of mutants, and of how the kselftests are chosen.

test_mutant_headers()
(
	. "$ROOT/scripts/lib/mutants.sh"
	mutant_files | while read -r file; do
		wrong=$(check_mutant "$file")
		[ -z "$wrong" ] || complain "${file##*/}: $wrong" || exit
	done
)

# --filter of kselftest: several words, globs, and which tests of a program they choose
test_kselftest_words()
{
	local chosen
	chosen=$(bash -c '
		. "$1/scripts/lib/kselftest.sh"
		FILTER=$2 ROOT=$1
		split_filter
		filtered_programs | while read -r program; do
			echo "$program $(options_of_program "$program")"
		done' - "$ROOT" 'cow_a*:histogram adaptive cow_abi:abi.one.test adaptive:other child_e*:every')
	want_same "$chosen" \
		"$(printf '%s\n' 'adaptive ' 'child_exit -t every' 'cow_abi -t histogram -r abi.one.test')"
}

# A mutant is remembered as long as it is the same.
test_mutants_remembered()
(
	. "$ROOT/scripts/lib/mutants.sh"
	KILLED=$SCRATCH/killed
	cp "$ROOT/fixtures/mutants/pte-same.patch" "$SCRATCH/one.patch"
	! was_killed "$SCRATCH/one.patch" || { complain "known before it was tried"; return; }
	remember_killed "$SCRATCH/one.patch" && was_killed "$SCRATCH/one.patch" ||
		{ complain "not remembered"; return; }
	sed -i 's/^Dies:.*/Dies: otherwise/' "$SCRATCH/one.patch"
	! was_killed "$SCRATCH/one.patch" || { complain "remembered, though its header was changed"; return; }
	KILLED=
	remember_killed "$SCRATCH/one.patch" && ! was_killed "$SCRATCH/one.patch" ||
		complain "remembered, though nobody asked for it"
)

# What was recorded and has changed is tried before what never was, and UML before x86_64.
# shellcheck disable=SC2030 # this test's own, on purpose
test_mutants_in_turn()
(
	. "$ROOT/scripts/lib/kunit.sh"
	. "$ROOT/scripts/lib/mutants.sh"
	K_NAME=6.12 VERIFIED=$SCRATCH/verified
	for name in guest um recorded; do
		printf 'Arch: %s\n' x86_64 > "$SCRATCH/$name.patch"
	done
	echo 'Arch: um' > "$SCRATCH/um.patch"
	printf '%s\n' '7.3 um 0' '6.12 recorded 0' > "$VERIFIED"
	CHANGED=1
	want_same "$(in_turn "$SCRATCH"/{guest,um,recorded}.patch)" \
		"$(printf '%s\n' "$SCRATCH"/{recorded,um,guest}.patch)" || return
	CHANGED=
	want_same "$(in_turn "$SCRATCH"/{guest,um,recorded}.patch)" \
		"$(printf '%s\n' "$SCRATCH"/{um,guest,recorded}.patch)"
)

# What stands for "this test passes without the mutant" when all ran in one kernel.
test_mutants_passed_in()
{
	(
		. "$ROOT/scripts/lib/mutants.sh"
		results=$SCRATCH/together
		{
			printf 'pass\tum:suite:case\t\npass\tum:suite:rows:row 1\t\nfail\tum:suite:rows:row 2\tno\n'
			printf 'pass\tprogram:two.a.test\t\nfail\tprogram:two.b.test\t\nskip\tprogram:skipped\t\n'
			printf 'pass\tprogram:one.a.other\t\npass\tprogram:one.b.other\t\n'
		} > "$results"
		passed_in "$results" um 'kunit suite.case' || die "suite.case"
		passed_in "$results" um 'kselftest program:other' || die "other, in two variants"
		passed_in "$results" um 'kselftest program:two.a.test' || die "one variant"
		for test in 'kunit suite.rows' 'kunit suite.cas' 'kunit suite.none' 'kselftest program:test' \
				'kselftest program:skipped' 'kselftest program:none' 'kselftest other:other'; do
			! passed_in "$results" um "$test" || die "$test"
		done
		! passed_in "$results" x86_64 'kunit suite.case' || die "another architecture"
		for name in um:kernel um:console guest console; do
			printf 'fail\t%s\t\n' "$name" | cat "$results" - > "$results.bad"
			! passed_in "$results.bad" um 'kunit suite.case' || die "with $name"
		done
	)
}
