# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The mutants' headers, and what is known of them.

mutant_files()
{
	find "$ROOT/fixtures/mutants" -name '*.patch' | sort
}

mutant_name()
{
	basename "$1" .patch
}

# mutant_field FILE FIELD
mutant_field()
{
	sed -n -e '/^\(diff --git\|---\) /q' -e "s/^$2:[[:space:]]*//p" "$1" | head -n 1
}

# check_mutant FILE: prints what is wrong with its header
check_mutant()
{
	local field arch
	for field in Mutant Hazard Arch Test Dies; do
		[ -n "$(mutant_field "$1" "$field")" ] || echo "no '$field:' in its header"
	done
	arch=$(mutant_field "$1" Arch)
	[ -z "$arch" ] || [ -n "${ARCH_TARGET[$arch]-}" ] || echo "'Arch:' must be one of ${ARCHES[*]}"
	case "$(mutant_field "$1" Test)" in
	'kunit '*|'kselftest '*|'') ;;
	*) echo "'Test:' must be 'kunit SUITE.TEST' or 'kselftest PROGRAM[:TEST]'" ;;
	esac
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

# Who calls may name a folder that remembers which mutants were killed, and has to see
# to it that all else is as it was then.
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
