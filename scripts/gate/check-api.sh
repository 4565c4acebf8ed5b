# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What a check of the gate may call. Its function check() reports by fail, warn, note and
# not_applicable; die() is for what stops it and is not the submission's failure.

#
# Findings
#

finding()
{
	printf '%s\t%s\n' "$1" "$(printf %s "$2" | tr '\t\n' ' ;')" >> "$FINDINGS"
}

# The submission fails the check.
fail()
{
	finding fail "$1"
}

# A warning: shown in the report, but the check passes.
warn()
{
	finding warn "$1"
}

# What was measured or checked.
note()
{
	finding note "$1"
}

# The check does not apply: ends it, skipped.
not_applicable()
{
	finding skip "$1"
	leave 0
}

# fail_each PREFIX: each line of standard input is a failure
fail_each()
{
	local line
	while read -r line; do
		fail "$1$line"
	done
}

# warn_each PREFIX: each line of standard input is a warning
warn_each()
{
	local line
	while read -r line; do
		warn "$1$line"
	done
}

#
# The submission
#

message_of()
{
	kgit -C "$K_TREE" log -1 --format=%B "$1"
}

subject_of()
{
	kgit -C "$K_TREE" log -1 --format=%s "$1"
}

# each_patch FUNCTION: calls it with the number, the commit and the mail
each_patch()
{
	local commit number=0
	while read -r commit; do
		number=$((number + 1))
		"$1" "$number" "$commit" "$G_MAILS/$(printf %04d "$number")"
	done < <(commits)
}

# each_kernel_patch FUNCTION: only those that may change what a kernel is built from
each_kernel_patch()
{
	KERNEL_PATCH=$1
	OTHER_PATCHES=0
	each_patch if_kernel_patch
	[ "$OTHER_PATCHES" -eq 0 ] || note "$OTHER_PATCHES patches with nothing but kselftests or documentation are left out"
}

if_kernel_patch()
{
	if changes_kernel "$2"; then
		"$KERNEL_PATCH" "$@"
	else
		OTHER_PATCHES=$((OTHER_PATCHES + 1))
	fi
}

# need_several_patches WHAT: for a check of each patch. With one patch WHAT does the same.
need_several_patches()
{
	[ "$(commits | wc -l)" -gt 1 ] || not_applicable "a single patch: $1"
}

# renamed: OLD TAB NEW, the files that the whole series moves
renamed()
{
	kgit -C "$K_TREE" diff -M --diff-filter=R --name-status "$G_BASE" "$G_HEAD" | cut -f 2-
}

# name_at COMMIT FILE: what a file of the last patch is called there; nothing if there
# is none
name_at()
{
	local old
	if has "$1" "$2"; then
		echo "$2"
		return
	fi
	old=$(renamed | awk -F '\t' -v name="$2" '$2 == name { print $1 }')
	[ -z "$old" ] || ! has "$1" "$old" || echo "$old"
}

# names_at COMMIT: the same for each line of standard input
names_at()
{
	local file
	while read -r file; do
		name_at "$1" "$file"
	done
}

# with_new_names: complaints about files that the series moves get the new names, so
# that they compare equal before and after
with_new_names()
{
	renamed > "$SCRATCH/renamed"
	awk -v list="$SCRATCH/renamed" '
		BEGIN {
			while ((getline line < list) > 0) {
				split(line, name, "\t")
				new[name[1]] = name[2]
			}
		}
		{
			old = $0
			sub(/:.*/, "", old)
			print (old in new ? new[old] substr($0, length(old) + 1) : $0)
		}'
}

# export_files DIR COMMIT PATH...: those files and folders of a commit, as files
export_files()
{
	local dir=$1 commit=$2
	shift 2
	mkdir -p "$dir"
	kgit -C "$K_TREE" archive "$commit" -- "$@" | tar -x -C "$dir"
}

# new_lines BEFORE AFTER: the lines of AFTER that are not in BEFORE. A line that is there
# more often is printed as many times.
new_lines()
{
	awk -v before="$1" 'FILENAME == before { known[$0]++; next }
		known[$0]-- > 0 { next }
		{ print }' "$1" "$2"
}

# without_line_numbers: "file:12:3: text" as "file: text", for comparing
without_line_numbers()
{
	sed -E 's/^([^: ]+):[0-9]+(:[0-9]+(-[0-9]+)?)?:/\1:/; t; s/^([^: ]+):[0-9]+ /\1: /'
}

#
# Our own benchmarks
#

# judge_by_bench WHAT NOTE ARGUMENT...: runs the command bench, on our own series. Each row
# that fails is a failure; NOTE says what the others are.
judge_by_bench()
{
	local what=$1 note=$2 status=0
	shift 2
	COW_RESULTS=$RESULTS bash "$ROOT/scripts/cmd/bench" "$@" --jobs "$JOBS" --kernel "${K_PATH:-$K_NAME}" || status=$?
	[ "$status" -le 1 ] || die "$what could not be measured (status $status)"
	list_results fail | fail_each ""
	note "$(count_results pass) rows $note"
}
