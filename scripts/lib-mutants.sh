# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The mutants' headers.

mutant_files()
{
	find "$ROOT/fixtures/mutants" -name '*.patch' | sort
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
