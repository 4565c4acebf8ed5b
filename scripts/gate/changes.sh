# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What the submission changes: commits, files, lines and Kconfig symbols. For the gate
# and its checks.

# The commits, the first patch first; the mails are in the same order.
commits()
{
	kgit -C "$K_TREE" rev-list --reverse "$G_BASE..$G_HEAD"
}

# What no kernel is built from, as pathspecs
NOT_KERNEL=(':!tools' ':!scripts' ':!samples' ':!Documentation')

# files FILTER [PATHSPEC...]: what the whole series adds (A), modifies (M), ...
files()
{
	local filter=$1
	shift
	kgit -C "$K_TREE" diff --no-renames --name-only --diff-filter="$filter" "$G_BASE" "$G_HEAD" -- "$@"
}

# changes_kernel COMMIT: does it touch more than kselftests and documentation?
changes_kernel()
{
	[ -n "$(kgit -C "$K_TREE" diff-tree --no-commit-id --name-only -r "$1" -- . \
		':!tools/testing/selftests' ':!Documentation' ':!MAINTAINERS')" ]
}

# new_files [PATHSPEC...]: added files, without renamed ones
new_files()
{
	kgit -C "$K_TREE" diff -M --name-only --diff-filter=A "$G_BASE" "$G_HEAD" -- "$@"
}

# added_lines [PATHSPEC...]: the lines that the whole series adds, without their +
added_lines()
{
	kgit -C "$K_TREE" diff --no-renames -U0 "$G_BASE" "$G_HEAD" -- "$@" |
		sed -n '/^+++ /d; s/^+//p'
}

# show COMMIT PATH: nothing if it has no such file
show()
{
	kgit -C "$K_TREE" cat-file blob "$1:$2" 2> /dev/null || true
}

has()
{
	kgit -C "$K_TREE" cat-file -e "$1:$2" 2> /dev/null
}

# in_tree GREP-ARGUMENTS...: git grep in the tree with the whole series
in_tree()
{
	kgit -C "$K_TREE" grep "${@:1:$#-2}" "$G_HEAD" "${@: -2}"
}

#
# Kconfig symbols that the series adds
#

# new_symbols COMMIT: name and Kconfig file of each that COMMIT has and the base not
new_symbols()
{
	local name file
	kgit -C "$K_TREE" diff --no-renames --name-only "$G_BASE" "$1" -- '*Kconfig*' |
	while read -r file; do
		comm -13 <(show "$G_BASE" "$file" | kconfig_names) <(show "$1" "$file" | kconfig_names) |
			sed "s|\$| $file|"
	done | while read -r name file; do
		# moved from another file
		kgit -C "$K_TREE" grep -qE "^[[:space:]]*(menu)?config[[:space:]]+$name\$" "$G_BASE" -- '*Kconfig*' ||
			echo "$name $file"
	done
}

kconfig_names()
{
	sed -n -E 's/^[[:space:]]*(menu)?config[[:space:]]+([A-Za-z0-9_]+).*/\2/p' | sort -u
}

# kconfig_entry SYMBOL FILE: its lines
kconfig_entry()
{
	show "$G_HEAD" "$2" | awk -v name="$1" '
		/^[ \t]*(menu|endmenu|choice|endchoice|endif|source|comment)([ \t]|$)/ || /^if[ \t]/ { inside = 0 }
		/^[ \t]*(menu)?config[ \t]/ { inside = ($2 == name) }
		inside { print }'
}
