# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The known kernels (fixtures/kernels), and the one that a command works on.

kernel_rows()
{
	grep -v '^[[:space:]]*\(#\|$\)' "$ROOT/fixtures/kernels"
}

kernel_names()
{
	kernel_rows | awk '{ print $1 }'
}

default_kernel()
{
	kernel_rows | awk '$4 == "lts" { print $1; exit }'
}

mainline_kernel()
{
	kernel_rows | awk '$4 == "mainline" { print $1; exit }'
}

kernel_field()
{
	# as strings: as numbers, 6.1 is 6.10
	kernel_rows | awk -v name="$1" -v n="$2" '$1 "" == name "" { print $n }'
}

# select_kernel KERNEL: sets K_NAME, K_DIR (the folder K_NAME below build/) and K_TREE;
# for a kernel of the table K_PACKAGE and K_SUITE, for a user's tree K_PATH
select_kernel()
{
	local kernel=${1:-$(default_kernel)}
	K_PATH=
	K_PACKAGE=$(kernel_field "$kernel" 2)
	K_SUITE=$(kernel_field "$kernel" 3)
	if [ -n "$K_PACKAGE" ]; then
		K_NAME=$kernel
	elif [ -d "$kernel" ]; then
		is_kernel_tree "$kernel" ||
			die "--kernel '$kernel' is not a kernel tree: no Makefile with VERSION and PATCHLEVEL, or no mm/memory.c"
		K_PATH=$(realpath -- "$kernel")
		K_NAME=path-$(basename -- "$K_PATH" | tr -c 'A-Za-z0-9._\n' -)-$(printf %s "$K_PATH" | sha256sum | cut -c1-8)
	else
		die "--kernel '$kernel' is neither a known kernel ($(kernel_names | paste -sd' ')) nor the folder of a kernel tree"
	fi
	K_DIR=$BUILD/$K_NAME
	K_TREE=$K_DIR/tree
}

is_kernel_tree()
{
	[ -f "$1/mm/memory.c" ] && [ -n "$(tree_version "$1" 2> /dev/null)" ]
}

# tree_version DIR: prints X.Y
tree_version()
{
	awk '$1 == "VERSION" { v = $3 } $1 == "PATCHLEVEL" { p = $3 }
	     v != "" && p != "" { print v "." p; exit }' "$1/Makefile"
}

# series_of TREE: the name of the series file for the tree's version
series_of()
{
	series_for "$(tree_version "$1")"
}

# series_for VERSION
series_for()
{
	if [ -f "$ROOT/patches/series.$1" ]; then
		echo "series.$1"
	else
		echo series
	fi
}

# series_patches SERIES: the patches that a series file names, one per line
series_patches()
{
	sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$ROOT/patches/$1"
}
