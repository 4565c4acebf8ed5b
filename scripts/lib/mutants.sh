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

# A line for each mutant that its test has killed: the kernel, the mutant, and a hash of the
# mutant and of that test as they were then. 'mutants --record' writes it.
VERIFIED=$ROOT/fixtures/mutants.verified

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

# text_of_test TEST: its function and what that uses of the same files; all of the files if
# it names a suite or a program
text_of_test()
{
	local name=${1#* }
	case "$1" in
	'kunit '*.*) name=${name#*.} ;;
	'kselftest '*:*) name=${name#*:} ;;
	*) name= ;;
	esac
	( cd "$ROOT" && sources_of_test "$1" | sort |
		xargs -r python3 "${BASH_SOURCE[0]%/*}/test_text.py" "$name" )
}

# verified_line FILE
verified_line()
{
	local hash
	hash=$({ cat "$1"; text_of_test "$(mutant_field "$1" Test)"; } | sha256sum | cut -c1-16)
	echo "$K_NAME $(mutant_name "$1") $hash"
}

# has_changed FILE: since it was recorded as killed
has_changed()
{
	! grep -qxF "$(verified_line "$1")" "$VERIFIED" 2> /dev/null
}

# was_recorded FILE: as killed, whether or not it has changed since
was_recorded()
{
	grep -q "^$K_NAME $(mutant_name "$1") " "$VERIFIED" 2> /dev/null
}

# in_turn FILE...: in the order in which they are tried when there may not be time for all.
# With --changed, those that were killed before something changed go first; a new mutant,
# which nobody has recorded, waits among the others.
in_turn()
{
	local file recorded=() others=()
	for file; do
		if [ -n "${CHANGED-}" ] && was_recorded "$file"; then
			recorded+=("$file")
		else
			others+=("$file")
		fi
	done
	by_architecture "${recorded[@]}"
	by_architecture "${others[@]}"
}

# by_architecture FILE...: in the order of KUNIT_ARCHES: those whose kernel is built soonest first
by_architecture()
{
	local arch file
	for arch in "${KUNIT_ARCHES[@]}" ''; do
		for file; do
			[ "$(mutant_field "$file" Arch)" != "$arch" ] || echo "$file"
		done
	done
}

# record_killed FILE: in place of what was recorded of it before
record_killed()
{
	local line
	line=$(verified_line "$1")
	lock verified
	{
		grep -vF "${line% *} " "$VERIFIED" 2> /dev/null || true
		echo "$line"
	} | LC_ALL=C sort > "$VERIFIED.part"
	mv "$VERIFIED.part" "$VERIFIED"
	unlock verified
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
# another one whenever anything but the mutants and their tests has changed.
KILLED=${COW_KILLED-}

# killed_marker FILE: the file that marks a mutant, with all sources of its test, as killed
killed_marker()
{
	local hash
	hash=$({
		cat "$1"
		( cd "$ROOT" && sources_of_test "$(mutant_field "$1" Test)" | sort | xargs -r cat )
	} | sha256sum | cut -c1-16)
	echo "$KILLED/$(mutant_name "$1").$hash"
}

was_killed()
{
	[ -n "$KILLED" ] && [ -e "$(killed_marker "$1")" ]
}

remember_killed()
{
	[ -z "$KILLED" ] || { mkdir -p "$KILLED" && : > "$(killed_marker "$1")"; }
}

# is_for_tree KERNELS: is the prepared tree's version one of those of a field Kernel?
is_for_tree()
{
	[ -z "$1" ] || [[ " $1 " = *" $(tree_version "$K_TREE") "* ]]
}

#
# The tree that mutants are applied to, and a test in it
#

# prepare_mutant_tree NAME: the copy follows the prepared tree's commits; its builds lie
# beside it.
prepare_mutant_tree()
{
	local head
	M_DIR=$K_DIR/$1
	M_TREE=$M_DIR/tree
	head=$(kgit -C "$K_TREE" rev-parse HEAD)
	lay_out_once "the mutants' tree" "$M_DIR" "$head"
	reset_tree "$M_TREE" "$head"
}

# run_named DIR ARCH TEST: builds DIR/tree and runs the one test. Sets OUTCOME
# to passed, failed or nobuild, and FAILING, the file with the lines that say why.
run_named()
{
	local dir=$1 arch=$2 test=$3
	FAILING=$LOGS/failing
	: > "$RESULTS"
	: > "$FAILING"
	case "$test" in
	'kunit '*) run_named_kunit "$dir" "$arch" "${test#kunit }" ;;
	'kselftest '*) run_named_kselftest "$dir" "$arch" "${test#kselftest }" ;;
	esac
}

run_named_kunit()
{
	local dir=$1 arch=$2 glob=$3
	if ! run_kunit "$dir/tree" "$dir/kunit-$arch" "$arch" "$glob"; then
		OUTCOME=nobuild
		return
	fi
	failing_lines "$KUNIT_LOG" > "$FAILING"
	find_splats "$KUNIT_LOG" >> "$FAILING"
	judge_named
}

run_named_kselftest()
{
	local dir=$1 arch=$2
	ARCH=$arch
	[ -f "$SCRATCH/$(selftests_name).cpio" ] || install_selftests "$K_TREE" "$K_DIR"
	FILTER=$3 split_filter
	if ! build_kernel "$arch" "$dir"; then
		OUTCOME=nobuild
		return
	fi
	run_selftests
	failing_lines "$LOGS/guest/job.log" > "$FAILING"
	# not the test in which the guest ended: its name is no reason
	printf '%s\n' "${WHY%%, in *}" "$SPLATS" >> "$FAILING"
	judge_named
}

judge_named()
{
	list_results fail >> "$FAILING"
	if [ "$(count_results fail)" -gt 0 ]; then
		OUTCOME=failed
	elif [ "$(count_results pass)" -gt 0 ]; then
		OUTCOME=passed
	else
		OUTCOME=skipped
	fi
}

# failing_lines LOG: each 'not ok' with what the test said before it
failing_lines()
{
	awk '
		{ sub(/\r$/, "") }
		/^([# ]|\[ *[0-9.]+\])*ok [0-9]+/ { n = 0; next }
		{ line[++n] = $0 }
		/^([# ]|\[ *[0-9.]+\])*not ok [0-9]+/ {
			for (i = 1; i <= n; i++)
				print line[i]
			n = 0
		}' "$1"
}
