# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# checkpatch, and where it is wrong.

# What checkpatch says of a patch, a line each, without what is wrong:
# - about the macros of trace events
# - about stubs in mm/cow.h, which must not evaluate their arguments
# - in programs: advice for kernel code, 1e-8, kselftest's macros, text that is a test's input
# - unknown commit IDs, as the tree's history begins with the base
run_checkpatch()
{
	( cd "$K_TREE" && perl scripts/checkpatch.pl --strict --quiet --no-tree --no-summary \
		--terse --showfile --show-types --max-line-length=100 \
		--ignore FILE_PATH_CHANGES,MISSING_SIGN_OFF,NO_AUTHOR_SIGN_OFF,UNKNOWN_COMMIT_ID "$1" ) 2>&1 |
		grep -v -E '(^|: )include/trace/events/[a-z_]+\.h:[0-9]+: [A-Z]+:(COMPLEX_MACRO|TRAILING_SEMICOLON|MACRO_ARG_UNUSED|OPEN_ENDED_LINE|PARENTHESIS_ALIGNMENT):' |
		grep -v -E '(^|: )mm/cow\.h:[0-9]+: [A-Z]+:MACRO_ARG_(UNUSED|REUSE):' |
		grep -v -E '(^|: )tools/testing/selftests/cow/[a-z_./]+:[0-9]+: [A-Z]+:(PREFER_DEFINED_ATTRIBUTE_MACRO|VOLATILE|STRCPY|NAKED_SSCANF|EMBEDDED_FUNCTION_NAME|LONG_LINE_STRING|SPLIT_STRING|QUOTED_WHITESPACE_BEFORE_NEWLINE|STATIC_CONST_CHAR_ARRAY|SPACING|BRACES):' |
		grep -v -E '^$|^No codespell' || true
}
