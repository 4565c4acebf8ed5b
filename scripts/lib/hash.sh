# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The content of this repository's files, as keys under which results are kept.

# worktree_hash PATH...: of the files below ROOT as they are now, tracked or not. In a
# repository of its own, because ROOT need not be one.
worktree_hash()
{
	local repository=$BUILD/hash.git index
	index=$(mktemp -u "$SCRATCH/hash.XXX")
	[ -d "$repository" ] || make_hash_repository "$repository"
	(
		cd "$ROOT"
		export GIT_INDEX_FILE=$index
		kgit --git-dir="$repository" --work-tree="$ROOT" add -f -- "$@" &&
			kgit --git-dir="$repository" --work-tree="$ROOT" write-tree
	) || die "the files that a result depends on cannot be hashed: $*"
	rm -f "$index"
}

# make_hash_repository DIR: two commands may do it at the same time
make_hash_repository()
{
	local tmp
	tmp=$(mktemp -d "$SCRATCH/hash.git.XXX")
	kgit init -q --bare "$tmp"
	mv -T "$tmp" "$1" 2> /dev/null || [ -d "$1" ]
}
