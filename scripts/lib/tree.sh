# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The prepared tree: a git repository with one commit for the base, one per patch of
# the series, and the tests (see commits.sh). The commits are made without touching
# the files. Only when every patch has applied is the tree moved there; files that
# stay the same keep their time stamps, so builds redo only what changed.

# ensure_base: makes K_TREE with its base commit if it is missing, and follows a user's
# tree that changed; the caller holds the lock
ensure_base()
{
	[[ "$BUILD" != *[[:space:]:]* ]] ||
		die "the kernel cannot be built in '$BUILD': kbuild takes no path with spaces or colons" \
			"move this repository, or set COW_BUILD to another folder"
	mkdir -p "$K_DIR"
	if [ ! -d "$K_TREE" ]; then
		make_base
	fi
	finish_move
	[ -z "$K_PATH" ] || update_base
}

# prepare_base: for callers that do not need the series
prepare_base()
{
	lock "$K_NAME.tree"
	ensure_base
	unlock "$K_NAME.tree"
}

# prepare_tree: makes K_TREE ready and returns with it complete
prepare_tree()
{
	lock "$K_NAME.tree"
	ensure_base
	if [ "$(input_state)" != "$(cat "$K_DIR/prepared" 2> /dev/null)" ]; then
		make_commits
		move_tree "$SERIES_HEAD"
		input_state > "$K_DIR/prepared"
	elif tree_has_edits; then
		say "note: $K_TREE has edits that 'refresh' has not taken back; they are used"
	fi
	unlock "$K_NAME.tree"
}

# input_state: a hash of all that the commits are made from
input_state()
{
	local series file
	series=$(series_of "$K_TREE")
	{
		kgit -C "$K_TREE" rev-parse base
		series_patches "$series" | while read -r file; do
			sha256sum "$ROOT/patches/$file" 2>&1 || true
		done
		{ cd "$ROOT" && find kunit selftests scripts/lib/commits.sh scripts/lib/split_tests.py \
			-type f -print0 2> /dev/null || true; } |
			sort -z | ( cd "$ROOT" && xargs -0 -r sha256sum )
	} | sha256sum | cut -c1-16
}

# tree_has_edits: does K_TREE have commits or changes since it was prepared?
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

# move_tree COMMIT: checks out COMMIT in place of what was prepared before
move_tree()
{
	if [ "$(kgit -C "$K_TREE" rev-parse 'HEAD^{tree}')" != "$(kgit -C "$K_TREE" rev-parse "$1^{tree}")" ] ||
	   [ -n "$(kgit -C "$K_TREE" status --porcelain | head -n 1)" ]; then
		refuse_edits
	fi
	echo "$1" > "$K_DIR/moving"
	finish_move
}

# finish_move: completes a move, also one of a run that was killed. The file 'moving'
# names the commit; the tree had no edits when it was written.
finish_move()
{
	local commit
	[ -f "$K_DIR/moving" ] || return 0
	commit=$(cat "$K_DIR/moving")
	drop_stale_locks "$K_TREE"
	kgit -C "$K_TREE" reset -q --hard "${commit:-base}"
	kgit -C "$K_TREE" clean -fdq
	kgit -C "$K_TREE" tag -f prepared > /dev/null
	rm -f "$K_DIR/moving"
}

# drop_stale_locks TREE: of the index and of refs, which a git that was killed left behind.
# The caller holds our lock of the tree: no other git of ours writes there.
drop_stale_locks()
{
	local dir
	dir=$(kgit -C "$1" rev-parse --absolute-git-dir)
	find "$dir" "$dir/refs/heads" "$dir/refs/tags" -maxdepth 1 -name '*.lock' -delete 2> /dev/null || true
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

# lay_out_tree WHAT DIR COMMIT: another working tree of the prepared one's repository
lay_out_tree()
{
	rm -rf "$2"
	kgit -C "$K_TREE" worktree prune
	step "laying out $1" unpack.log add_working_tree "$2" "$3" ||
		die "$1 could not be laid out"
}

# lay_out_once WHAT DIR COMMIT: DIR/tree, one command's own, unless it is there already
lay_out_once()
{
	if [ -f "$2/whole" ] && kgit -C "$2/tree" rev-parse -q --verify HEAD > /dev/null 2>&1; then
		return
	fi
	rm -f "$2/whole"
	mkdir -p "$2"
	prepare_unpatched
	lay_out_tree "$1" "$2/tree" "$3"
	: > "$2/whole"
}

# reset_tree TREE COMMIT: files that stay the same keep their time stamps
reset_tree()
{
	drop_stale_locks "$1"
	kgit -C "$1" reset -q --hard "$2"
	kgit -C "$1" clean -fdq
}

# add_working_tree DIR COMMIT: --force twice, because git keeps a lock on a working tree
# whose creation was killed
add_working_tree()
{
	kgit -C "$K_TREE" worktree add -f -f --no-checkout --detach "$1" "$2" || return
	link_unchanged_files "$1"
	kgit -C "$1" reset -q --hard
}

# link_unchanged_files DIR: hard links to the unpatched tree's files, because a kernel
# takes 1.5 GB and a series changes little of it. This is safe: git replaces files and
# never writes into them. The prepared tree shares no files, because people edit it. A
# file that cannot be linked is written by git.
link_unchanged_files()
{
	local from=$K_DIR/unpatched/tree
	# there is no unpatched tree yet, or it is the one being made
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
