# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Which checks there are, and which are run.

#
# Checks. One file each, GROUP-NAME, with a header of "# Field: text" lines:
# Check (what it checks), Cost (minutes), Quick (yes), Needs (PROGRAM PACKAGE,
# any number), Arch (whose packages it needs, too: arch_packages), Uses (other files
# of ours that decide its verdict), Queue and Tree (gate: it works on the gate's own
# tree): see scripts/gate/README.md.
#

# all_checks: names, in the order in which they run. In a subshell, because callers may have
# switched pathname expansion off (set -f).
all_checks()
(
	set +f
	for group in $GATE_GROUPS; do
		for file in "$CHECKS_DIR/$group-"*[!~]; do
			[ ! -f "$file" ] || echo "${file##*/}"
		done
	done
)

# check_field NAME FIELD: its lines; starts no program, as there are many checks
check_field()
{
	local line
	while IFS= read -r line && [ "${line:0:1}" = '#' ]; do
		[ "${line#"# $2:"}" != "$line" ] || continue
		line=${line#"# $2:"}
		echo "${line#"${line%%[![:space:]]*}"}"
	done < "$CHECKS_DIR/$1"
}

check_group()
{
	echo "${1%%-*}"
}

chosen_checks()
{
	local name
	set -f
	for name in $(all_checks); do
		[ -z "$ONLY" ] || matches "$name" "$ONLY" || continue
		[ -z "$SKIP" ] || ! matches "$name" "$SKIP" || continue
		[ -z "$QUICK" ] || [ -n "$ONLY" ] || [ "$(check_field "$name" Quick)" = yes ] || continue
		echo "$name"
	done
	set +f
}

list_checks()
{
	local name
	for name in $(chosen_checks); do
		printf '%-28s %3s min%s  %s\n' "$name" "$(check_field "$name" Cost)" \
			"$([ "$(check_field "$name" Quick)" = yes ] && echo ' quick' || echo '      ')" \
			"$(check_field "$name" Check)"
	done
}

# need_known_globs OPTION GLOBS: each must match a check
need_known_globs()
{
	local glob name hit
	set -f
	for glob in $2; do
		hit=
		for name in $(all_checks); do
			! matches "$name" "$glob" || hit=1
		done
		[ -n "$hit" ] || die "$1: no check matches '$glob'; 'gate --list' lists them"
	done
	set +f
}

check_gate_options()
{
	[ -z "$KERNEL" ] || die "gate takes no --kernel: give --base"
	need_known_globs --only "$ONLY"
	need_known_globs --skip "$SKIP"
	[ -z "$RANGE" ] || [ -n "$TREE" ] || die "--range needs --tree DIR"
	[ -z "$RANGE" ] || [ -z "$SERIES" ] || die "--series and --range are two submissions: give one"
	[ -z "$TREE" ] || [ -n "$RANGE" ] || [ -n "$SERIES" ] || die "--tree needs --range A..B"
	[ -z "$RANGE" ] || [ -z "$BASE" ] || die "--base does not go with --range A..B: A is the base"
	[ -z "$TREE" ] || [ -n "$RANGE" ] || [ -n "$BASE" ] ||
		die "--tree with --series needs --base REV, a revision of that tree"
	[ -z "$BASE" ] || [ -n "$TREE" ] || [ "$BASE" = series ] || need_known_base "${BASE#series:}"
	[ -z "$FILTER" ] || [ -n "$SELFTEST" ] || die "--filter goes with --selftest; checks are chosen by --only"
	[ -z "$SELFTEST" ] || [ -z "$SERIES$TREE" ] || die "--selftest brings its own submissions"
	[ -z "$SELFTEST" ] || [[ "$BASE" != series* ]] ||
		die "--selftest: each submission names its base, a kernel or our series on it; --base chooses the kernel"
	[ -z "$SELFTEST" ] || [ -z "$KCIDB" ] || die "--kcidb is about one submission, not about --selftest"
	[ -z "$SELFTEST" ] || [ -z "$MARKDOWN$SET$SET_CONFIG$APPEND_ON$NO_VERDICT$ONLY$SKIP" ] ||
		die "--selftest: each submission says what it is judged by; --filter, --quick and --fresh go with it"
}

# What the chosen checks need on the host, installed before any of them runs
need_check_packages()
{
	local name
	MORE_PACKAGES=$(for name in "${CHECKS[@]}"; do
		check_field "$name" Needs
		arch_packages "$(check_field "$name" Arch)"
	done | sort -u)
	need_packages
}
