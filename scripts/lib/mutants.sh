# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The mutants' headers, and what is known of them.

# The mutants without one of the five checks of a page (one has two parts), as globs
FIVE_CHECKS='vma-bounds pmd-crossing not-present already-writable exclusive-flag pte-same'

# mutant_files: with --from those of another folder
mutant_files()
{
	find "${FROM:-$ROOT/fixtures/mutants}" -name '*.patch' | sort
}

mutant_name()
{
	basename "$1" .patch
}

# read_header FILE: sets HEADER. Starts no program, as there are many mutants.
read_header()
{
	local line field
	HEADER=()
	while IFS= read -r line; do
		case "$line" in
		'diff --git '*|'--- '*) return ;;
		esac
		field=${line%%:*}
		[ -n "$field" ] && [ "$field" != "$line" ] && [ -z "${HEADER[$field]-}" ] || continue
		line=${line#"$field:"}
		HEADER[$field]=${line#"${line%%[![:space:]]*}"}
	done < "$1"
}

# mutant_field FILE FIELD
mutant_field()
{
	local -A HEADER=()
	read_header "$1"
	[ -z "${HEADER[$2]-}" ] || echo "${HEADER[$2]}"
}

# check_mutant FILE: prints what is wrong with its header. Only a mutant of our own has to
# say which hazard it stands for, and one that names its test how that test fails.
check_mutant()
{
	local -A HEADER=()
	local field required='Mutant Test'
	read_header "$1"
	[ -n "$FROM" ] || required+=' Hazard'
	[ "${HEADER[Test]-}" = all ] || required+=' Arch Dies'
	for field in $required; do
		[ -n "${HEADER[$field]-}" ] || echo "no '$field:' in its header"
	done
	field=${HEADER[Arch]-}
	[ -z "$field" ] || [[ " ${KUNIT_ARCHES[*]} " == *" $field "* ]] ||
		echo "'Arch:' must be one of ${KUNIT_ARCHES[*]}"
	case "${HEADER[Test]-}" in
	'kunit '*|'kselftest '*|all|'') ;;
	*) echo "'Test:' must be 'kunit SUITE.TEST', 'kselftest PROGRAM[:TEST]' or 'all'" ;;
	esac
}

# tests_of FILE: ARCH and test, a line each, in the order in which they are run
tests_of()
{
	local arch test
	arch=$(mutant_field "$1" Arch)
	test=$(mutant_field "$1" Test)
	if [ "$test" != all ]; then
		echo "$arch $test"
	elif [ "$arch" = arm64 ]; then
		printf '%s\n' 'arm64 kunit ' 'arm64 kselftest '
	else
		printf '%s\n' 'um kunit ' 'x86_64 kunit ' 'x86_64 kselftest '
	fi
}

#
# Which mutants have to be run again after a change
#

# The commit whose tests have killed all mutants: 'check --all' writes it
VERIFIED=$ROOT/fixtures/mutants.verified

# changed_files: those that differ from that commit, tracked or not
changed_files()
{
	local commit
	commit=$(cat "$VERIFIED" 2> /dev/null || true)
	if ! git -C "$ROOT" rev-parse -q --verify "$commit^{commit}" > /dev/null 2>&1; then
		say "${VERIFIED#"$ROOT/"} names no commit of this repository: every mutant counts as changed"
		( cd "$ROOT" && find fixtures/mutants kunit selftests -type f )
		return
	fi
	git -C "$ROOT" diff --name-only --no-renames "$commit" --
	git -C "$ROOT" ls-files --others --exclude-standard
}

# sources_of_test TEST: the files that a test is made of
sources_of_test()
{
	local name=${1#* }
	case "$1" in
	'kunit '*)
		( cd "$ROOT" && grep -lE "\.name *= *\"${name%%.*}\"" kunit/*.c || true ) ;;
	'kselftest '*)
		( cd "$ROOT" && find selftests/cow -name "${name%%[:.]*}*" -name '*.[ch]' -o \
			-name "${name%%:*}" -path 'selftests/cow/*' ) ;;
	esac
}

# has_changed MUTANT CHANGED: whether its patch or its test is in the list of files
has_changed()
{
	{
		echo "${1#"$ROOT/"}"
		sources_of_test "$(mutant_field "$1" Test)"
	} | grep -qxFf "$2"
}

# passed_in RESULTS ARCH TEST: in each of its rows or variants, of which there is one,
# and nothing went wrong beside the tests
passed_in()
{
	local name=${3#* }
	[ -f "$1" ] || return 1
	[[ "$3" != kunit* ]] || name=$2:${name/./:}
	awk -F '\t' -v name="$name" '
		# TEST of a kselftest is that of each FIXTURE.VARIANT
		{ short = $2; sub(/:.*[.]/, ":", short) }
		$1 == "fail" && $2 ~ /^(console|guest|.*:kernel|.*:console)$/ { bad = 1 }
		$2 == name || short == name || index($2, name ":") == 1 { n[$1]++ }
		END { exit bad || n["fail"] || !n["pass"] }' "$1"
}

# The caller may name a folder that remembers which mutants were killed. It must then name
# another one whenever anything but the mutants has changed.
KILLED=${COW_KILLED-}

# memory_of FILE: that of this very mutant
memory_of()
{
	echo "$KILLED/$(mutant_name "$1").$(sha256sum < "$1" | cut -c1-16)"
}

was_killed()
{
	[ -n "$KILLED" ] && [ -e "$(memory_of "$1")" ]
}

remember_killed()
{
	[ -z "$KILLED" ] || { mkdir -p "$KILLED" && : > "$(memory_of "$1")"; }
}
