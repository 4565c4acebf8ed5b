# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Kernel sources: which are known, how they are fetched, and the prepared tree
# (one commit for the base, one for each patch, one for KUnit, one for the
# kselftests).

#
# The prepared tree. The commits are made in a second index, without touching
# the files; only when every patch has applied does the tree move there, which
# changes no file (and no time stamp) that stays the same.
#

# have_base: K_TREE is there, with its base tagged; the caller holds its lock
have_base()
{
	mkdir -p "$K_DIR"
	if [ ! -d "$K_TREE" ]; then
		make_base
	fi
	finish_move
	[ -z "$K_PATH" ] || update_base
}

# prepare_base: for who needs the base and not the series
prepare_base()
{
	lock "$K_NAME.tree"
	have_base
	unlock "$K_NAME.tree"
}

# prepare_tree: makes K_TREE ready and returns with it complete
prepare_tree()
{
	lock "$K_NAME.tree"
	have_base
	if [ "$(input_state)" != "$(cat "$K_DIR/prepared" 2> /dev/null)" ]; then
		make_commits
		move_tree "$SERIES_HEAD"
		input_state > "$K_DIR/prepared"
	elif tree_has_edits; then
		say "note: $K_TREE has edits that 'refresh' has not taken back; they are used"
	fi
	unlock "$K_NAME.tree"
}

# What the commits are made of.
input_state()
{
	local series file
	series=$(series_of "$K_TREE")
	{
		kgit -C "$K_TREE" rev-parse base
		series_patches "$series" | while read -r file; do
			sha256sum "$ROOT/patches/$file" 2>&1 || true
		done
		{ cd "$ROOT" && find kunit selftests -type f -print0 2> /dev/null || true; } |
			sort -z | ( cd "$ROOT" && xargs -0 -r sha256sum )
	} | sha256sum | cut -c1-16
}

KUNIT_MESSAGE='mm: add KUnit tests for copy-on-write faults

Test each check that a page has to pass before a copy-on-write fault
copies it ahead: on constructed input at every boundary, and by real
faults in address spaces that are made for it, with races and failed
allocations forced by static stubs.

Run with:

  ./tools/testing/kunit/kunit.py run --kunitconfig=mm/tests'

SELFTESTS_MESSAGE='selftests/cow: add tests of copy-on-write faults

Test what user space can see of copy-on-write faults, with nothing copied
ahead and with one and more pages: isolation after fork, concurrent
writers, reuse after the child is gone, the exact number of faults, and
the interface. On a kernel without the feature every test skips.

Run with:

  make -C tools/testing/selftests TARGETS=cow run_tests'

# make_commits: sets SERIES_HEAD
make_commits()
{
	local series patch
	series=$(series_of "$K_TREE")
	SERIES_HEAD=$(kgit -C "$K_TREE" rev-parse base)
	export GIT_INDEX_FILE=$K_DIR/series.index
	rm -f "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"
	kgit -C "$K_TREE" read-tree base
	while read -r patch; do
		[ -f "$ROOT/patches/$patch" ] || die "patches/$series names '$patch', which does not exist"
		commit_mail "$ROOT/patches/$patch" "patches/$patch"
	done < <(series_patches "$series")
	commit_folder kunit mm/tests "$KUNIT_MESSAGE"
	commit_folder selftests/cow tools/testing/selftests/cow "$SELFTESTS_MESSAGE"
	rm -f "$GIT_INDEX_FILE"
	unset GIT_INDEX_FILE
}

# commit_mail FILE NAME: one patch in mail format onto SERIES_HEAD, strictly: no
# fuzz, no rejects.
commit_mail()
{
	local patch=$1 name=$2 mail=$K_DIR/mail
	local subject author email date tree
	mkdir -p "$mail"
	kgit mailinfo --encoding=UTF-8 "$mail/msg" "$mail/diff" < "$patch" > "$mail/info"
	subject=$(sed -n 's/^Subject: //p' "$mail/info")
	author=$(sed -n 's/^Author: //p' "$mail/info")
	email=$(sed -n 's/^Email: //p' "$mail/info")
	date=$(sed -n 's/^Date: //p' "$mail/info")
	[ -n "$subject" ] && [ -n "$author" ] && [ -n "$email" ] && [ -n "$date" ] ||
		die "$name is not in mail format: it needs From:, Date: and Subject:, as 'git format-patch' writes them"
	kgit -C "$K_TREE" apply --cached --whitespace=nowarn "$mail/diff" 2> "$mail/errors" ||
		refused "$name" "$mail/diff" "$mail/errors"
	tree=$(kgit -C "$K_TREE" write-tree)
	SERIES_HEAD=$({ printf '%s\n\n' "$subject"; cat "$mail/msg"; } | git_stripspace |
		GIT_AUTHOR_NAME=$author GIT_AUTHOR_EMAIL=$email GIT_AUTHOR_DATE=$date \
		GIT_COMMITTER_DATE=$date kgit -C "$K_TREE" commit-tree -p "$SERIES_HEAD" "$tree")
	rm -rf "$mail"
}

git_stripspace()
{
	kgit stripspace
}

# refused PATCH DIFF ERRORS: names the patch, each file and the hunk
refused()
{
	local line
	open_logs
	cp "$3" "$LOGS/apply.log"
	die "$1 does not apply to $K_NAME ($(cat "$K_DIR/base.version")):" \
		"$(explain_refusal "$2" "$3")"
}

# "error: patch failed: mm/memory.c:3456" names the old line of a hunk's start.
explain_refusal()
{
	local line file at
	while read -r line; do
		case "$line" in
		"error: patch failed: "*)
			file=${line#error: patch failed: }
			at=${file##*:}
			file=${file%:*}
			echo "$file: hunk $(hunk_at "$1" "$file" "$at")" ;;
		"error: "*": patch does not apply") ;;
		error:*)
			echo "${line#error: }" ;;
		esac
	done < "$2" | sed '2,$s/^/  /'
}

hunk_at()
{
	awk -v file="$2" -v at="$3" '
		/^--- / { name = $2; sub(/^a\//, "", name); n = 0 }
		/^@@ / && name == file {
			n++
			split(substr($2, 2), start, ",")
			if (start[1] == at) {
				print n " (" $0 ")"
				found = 1
				exit
			}
		}
		END { if (!found) print "at line " at }' "$1"
}

# commit_folder SOURCE TARGET SUBJECT: the files of SOURCE below TARGET, and
# the wiring that hooks them in.
commit_folder()
{
	local source=$1 target=$2 subject=$3 file blob mode tree wiring
	[ -n "$(folder_files "$source")" ] || return 0
	while read -r file; do
		blob=$(kgit -C "$K_TREE" hash-object -w "$ROOT/$source/$file")
		mode=100644
		[ ! -x "$ROOT/$source/$file" ] || mode=100755
		kgit -C "$K_TREE" update-index --add --cacheinfo "$mode,$blob,$target/$file"
	done < <(folder_files "$source")
	wiring=$(wiring_of "$source")
	if [ -f "$wiring" ]; then
		mkdir -p "$K_DIR/mail"
		kgit -C "$K_TREE" apply --cached --whitespace=nowarn "$wiring" 2> "$K_DIR/mail/errors" ||
			refused "${wiring#"$ROOT/"}" "$wiring" "$K_DIR/mail/errors"
		rm -rf "$K_DIR/mail"
		subject=$(wiring_message "$wiring" "$subject")
	fi
	tree=$(kgit -C "$K_TREE" write-tree)
	SERIES_HEAD=$(echo "$subject" |
		GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z \
		kgit -C "$K_TREE" commit-tree -p "$SERIES_HEAD" "$tree")
}

# The files of kunit/ or selftests/cow/ that belong into the tree.
folder_files()
{
	[ -d "$ROOT/$1" ] || return 0
	( cd "$ROOT/$1" && find . -type f ! -name 'wiring*.patch' ! -name 'README*' \
		! -name '*~' ! -name '.*.sw?' -printf '%P\n' | sort )
}

# The wiring for this kernel's version if there is one, else the common one.
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

# The text before the diff is the commit's message.
wiring_message()
{
	local message
	message=$(sed '/^diff --git /,$d' "$1" | sed '/^---$/,$d' | kgit stripspace)
	printf '%s\n' "${message:-$2}"
}

# tree_has_edits: commits or changes that are not what was prepared
tree_has_edits()
{
	[ "$(kgit -C "$K_TREE" rev-parse HEAD)" != "$(kgit -C "$K_TREE" rev-parse -q --verify prepared)" ] ||
		[ -n "$(kgit -C "$K_TREE" status --porcelain --untracked-files=normal | head -n 1)" ]
}

refuse_edits()
{
	kgit -C "$K_TREE" rev-parse -q --verify prepared > /dev/null || return 0
	! tree_has_edits ||
		die "$K_TREE has edits, and what it is made from has changed too. Nothing was touched." \
			"take the edits back:  ./run_tests.sh refresh --kernel ${K_PATH:-$K_NAME}" \
			"or drop them:         git -C $K_TREE reset --hard prepared && git -C $K_TREE clean -fd"
}

# move_tree COMMIT: from what was prepared before to COMMIT
move_tree()
{
	if [ "$(kgit -C "$K_TREE" rev-parse 'HEAD^{tree}')" != "$(kgit -C "$K_TREE" rev-parse "$1^{tree}")" ] ||
	   [ -n "$(kgit -C "$K_TREE" status --porcelain | head -n 1)" ]; then
		refuse_edits
	fi
	echo "$1" > "$K_DIR/moving"
	finish_move
}

# A move that was cut off is completed: before it the tree was clean.
finish_move()
{
	local commit
	[ -f "$K_DIR/moving" ] || return 0
	commit=$(cat "$K_DIR/moving")
	rm -f "$K_TREE/.git/index.lock" "$K_TREE/.git/HEAD.lock"
	kgit -C "$K_TREE" reset -q --hard "${commit:-base}"
	kgit -C "$K_TREE" clean -fdq
	kgit -C "$K_TREE" tag -f prepared > /dev/null
	rm -f "$K_DIR/moving"
}

# source_tree: prints the tree to build: the prepared one, or with --unpatched
# a second working copy of its base
source_tree()
{
	if [ -n "$UNPATCHED" ]; then
		echo "$K_DIR/unpatched/tree"
	else
		echo "$K_TREE"
	fi
}

# lay_out_tree WHAT DIR COMMIT: another working tree of the prepared one's repository.
# Forced twice: git keeps a lock on one that was cut off while it was laid out.
lay_out_tree()
{
	rm -rf "$2"
	kgit -C "$K_TREE" worktree prune
	step "laying out $1" unpack.log working_tree "$2" "$3" ||
		die "$1 could not be laid out"
}

working_tree()
{
	kgit -C "$K_TREE" worktree add -f -f --no-checkout --detach "$1" "$2" || return
	link_unpatched "$1"
	kgit -C "$1" reset -q --hard
}

# link_unpatched DIR: a kernel takes 1.5 GB, of which a series changes next to nothing:
# what is the same is linked to the unpatched tree's files. git replaces files and never
# writes into them; the prepared tree's are not shared, for people edit those. Whatever
# cannot be linked git writes.
link_unpatched()
{
	local from=$K_DIR/unpatched/tree
	# none yet, or it is the one that is laid out now
	[ -f "$K_DIR/unpatched/base" ] || return 0
	find "$from" -mindepth 1 -maxdepth 1 ! -name .git -exec cp -al -t "$1" {} + || true
	cp "$(kgit -C "$from" rev-parse --git-path index)" "$(kgit -C "$1" rev-parse --git-path index)"
}

prepare_unpatched()
{
	local tree=$K_DIR/unpatched/tree base
	lock "$K_NAME.unpatched"
	base=$(kgit -C "$K_TREE" rev-parse base)
	if [ "$base" != "$(cat "$K_DIR/unpatched/base" 2> /dev/null)" ]; then
		mkdir -p "$K_DIR/unpatched"
		rm -f "$K_DIR/unpatched/base"
		lay_out_tree "the unpatched tree" "$tree" base
		echo "$base" > "$K_DIR/unpatched/base"
	fi
	unlock "$K_NAME.unpatched"
}

# prepare_sources: the tree that this invocation builds
prepare_sources()
{
	prepare_tree
	[ -z "$UNPATCHED" ] || prepare_unpatched
}

# worktree_tree: the tree object of the files as they are now
worktree_tree()
{
	local index=$K_DIR/worktree.index
	cp "$K_TREE/.git/index" "$index"
	GIT_INDEX_FILE=$index kgit -C "$K_TREE" add -A . &&
	GIT_INDEX_FILE=$index kgit -C "$K_TREE" write-tree
	rm -f "$index"
}
