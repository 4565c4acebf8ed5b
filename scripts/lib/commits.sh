# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The commits of the prepared tree: one per patch of the series, then the KUnit
# tests and the kselftests as split_tests.py splits them. They are made in an index
# of their own; the files of the tree are not touched. Names and dates are fixed,
# so the same input gives the same hashes.

# make_commits: sets SERIES_HEAD
make_commits()
{
	begin_commits
	commit_series
	commit_tests kunit mm/tests
	commit_tests selftests/cow tools/testing/selftests/cow
	end_commits
}

begin_commits()
{
	SERIES_HEAD=$(kgit -C "$K_TREE" rev-parse base)
	export GIT_INDEX_FILE=$K_DIR/series.index
	rm -f "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"
	kgit -C "$K_TREE" read-tree base
}

end_commits()
{
	rm -f "$GIT_INDEX_FILE"
	unset GIT_INDEX_FILE
}

#
# Patches in mail format
#

commit_series()
{
	local series patch
	series=$(series_of "$K_TREE")
	while read -r patch; do
		[ -f "$ROOT/patches/$patch" ] || die "patches/$series names '$patch', which does not exist"
		commit_mail "$ROOT/patches/$patch" "patches/$patch"
	done < <(series_patches "$series")
}

# commit_mail FILE NAME: applies one patch to SERIES_HEAD, strictly: no fuzz, no
# rejects
commit_mail()
{
	local patch=$1 name=$2 mail subject author email date
	mail=$(mktemp -d "$SCRATCH/mail.XXX")
	kgit mailinfo --encoding=UTF-8 "$mail/msg" "$mail/diff" < "$patch" > "$mail/info"
	subject=$(sed -n 's/^Subject: //p' "$mail/info")
	author=$(sed -n 's/^Author: //p' "$mail/info")
	email=$(sed -n 's/^Email: //p' "$mail/info")
	date=$(sed -n 's/^Date: //p' "$mail/info")
	[ -n "$subject" ] && [ -n "$author" ] && [ -n "$email" ] && [ -n "$date" ] ||
		die "$name is not in mail format: it needs From:, Date: and Subject:, as 'git format-patch' writes them"
	kgit -C "$K_TREE" apply --cached --whitespace=nowarn "$mail/diff" 2> "$mail/errors" ||
		die_of_conflict "$name" "$mail/diff" "$mail/errors"
	{ printf '%s\n\n' "$subject"; cat "$mail/msg"; } | kgit stripspace |
		GIT_AUTHOR_NAME=$author GIT_AUTHOR_EMAIL=$email commit_index "$date" > "$mail/commit"
	SERIES_HEAD=$(cat "$mail/commit")
	rm -rf "$mail"
}

# commit_index DATE: the index as a commit on SERIES_HEAD, the message on standard
# input; prints the commit
commit_index()
{
	local tree
	tree=$(kgit -C "$K_TREE" write-tree)
	GIT_AUTHOR_DATE=$1 GIT_COMMITTER_DATE=$1 \
		kgit -C "$K_TREE" commit-tree -p "$SERIES_HEAD" "$tree"
}

# die_of_conflict PATCH DIFF ERRORS: names the patch, each file and the hunk
die_of_conflict()
{
	open_logs
	cp "$3" "$LOGS/apply.log"
	die "$1 does not apply to $K_NAME ($(cat "$K_DIR/base.version")):" \
		"$(explain_refusal "$2" "$3")"
}

# explain_refusal DIFF ERRORS: what git apply's messages say, with hunk numbers.
# "error: patch failed: mm/memory.c:3456" gives the old line at which the hunk starts.
explain_refusal()
{
	local line file start
	while read -r line; do
		case "$line" in
		"error: patch failed: "*)
			file=${line#error: patch failed: }
			start=${file##*:}
			file=${file%:*}
			echo "$file: hunk $(hunk_number "$1" "$file" "$start")" ;;
		"error: "*": patch does not apply") ;;
		error:*)
			echo "${line#error: }" ;;
		esac
	done < "$2" | sed '2,$s/^/  /'
}

# hunk_number DIFF FILE LINE: the hunk of FILE that starts at LINE
hunk_number()
{
	awk -v file="$2" -v line="$3" '
		/^--- / { name = $2; sub(/^a\//, "", name); n = 0 }
		/^@@ / && name == file {
			n++
			split(substr($2, 2), start, ",")
			if (start[1] == line) {
				print n " (" $0 ")"
				found = 1
				exit
			}
		}
		END { if (!found) print "at line " line }' "$1"
}

#
# Tests
#

# commit_tests SOURCE TARGET: the test files of SOURCE, to be added below TARGET, and
# the wiring that adds them to the kernel's Makefiles
commit_tests()
{
	local source=$1 target=$2 wiring parts=$K_DIR/parts part
	[ -n "$(files_of_tests "$source")" ] || return 0
	wiring=$(wiring_of "$source")
	rm -rf "$parts"
	mkdir -p "$parts/wired" "$parts/out"
	extract_wired_files "$wiring" "$parts"
	files_of_tests "$source" | "$PYTHON" "$ROOT/scripts/lib/split_tests.py" \
		--wired "$parts/wired" --wiring "$wiring" "$ROOT/$source" "$target" "$parts/out" ||
		die "the files of $source cannot be split into patches"
	for part in "$parts"/out/*; do
		commit_part "$part"
	done
	rm -rf "$parts"
}

# extract_wired_files WIRING PARTS: write the files that the wiring changes, with its changes,
# to PARTS/wired. The index of the tree is as before.
extract_wired_files()
{
	[ -f "$1" ] || return 0
	kgit -C "$K_TREE" apply --cached --whitespace=nowarn "$1" 2> "$2/errors" ||
		die_of_conflict "${1#"$ROOT/"}" "$1" "$2/errors"
	wired_paths "$1" | kgit -C "$K_TREE" checkout-index --prefix="$2/wired/" --stdin
	kgit -C "$K_TREE" read-tree "$SERIES_HEAD"
}

# commit_part PART: the files of PART/tree with the message of PART/message
commit_part()
{
	local commit
	find "$1/tree" -type f -printf '%P\n' | sort |
		kgit -C "$1/tree" --git-dir="$K_TREE/.git" --work-tree=. update-index --add --stdin
	if [ "$(kgit -C "$K_TREE" write-tree)" = "$(kgit -C "$K_TREE" rev-parse "$SERIES_HEAD^{tree}")" ]; then
		return 0
	fi
	commit=$(commit_index 2000-01-01T00:00:00Z < "$1/message")
	SERIES_HEAD=$commit
}

# files_of_tests SOURCE: the files of kunit/ or selftests/cow/ that are added to the tree
files_of_tests()
{
	[ -d "$ROOT/$1" ] || return 0
	( cd "$ROOT/$1" && find . -type f ! -name 'wiring*.patch' ! -name 'README*' \
		! -name '*~' ! -name '.*.sw?' -printf '%P\n' | sort )
}

# wiring_of SOURCE: the wiring for this kernel's version, else the common one
wiring_of()
{
	local dir=$ROOT/${1%%/*} version
	version=$(tree_version "$K_TREE")
	if [ -f "$dir/wiring.$version.patch" ]; then
		echo "$dir/wiring.$version.patch"
	else
		echo "$dir/wiring.patch"
	fi
}

# wired_paths WIRING: the kernel's files that it changes
wired_paths()
{
	sed -n 's/^+++ b\///p' "$1"
}
