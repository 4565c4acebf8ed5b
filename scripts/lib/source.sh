# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The base commit of a prepared tree: the unchanged kernel source, tagged base. It is
# made under a temporary name; what a killed run left behind is removed.

# kgit: git without the user's configuration
kgit()
{
	GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 \
	GIT_AUTHOR_NAME="${GIT_AUTHOR_NAME-COW test suite}" \
	GIT_AUTHOR_EMAIL="${GIT_AUTHOR_EMAIL-cow@localhost}" \
	GIT_COMMITTER_NAME="COW test suite" GIT_COMMITTER_EMAIL=cow@localhost \
		git -c gc.auto=0 -c core.trustctime=false -c core.hooksPath=/dev/null -c commit.gpgSign=false \
		-c core.autocrlf=false -c advice.detachedHead=false \
		-c safe.directory='*' "$@"
}

make_base()
{
	local tmp=$K_DIR/tree.tmp version
	rm -rf "$tmp"
	mkdir -p "$tmp"
	if [ -n "$K_PATH" ]; then
		step "copying $K_PATH" unpack.log copy_source "$K_PATH" "$tmp" ||
			die "'$K_PATH' could not be copied"
		version=$(source_state "$K_PATH")
	else
		fetch_package
		step "unpacking ${DEB##*/}" unpack.log unpack_package "$DEB" "$tmp" ||
			die "${DEB##*/} could not be unpacked"
		version=$(dpkg-deb -f "$DEB" Version)
	fi
	is_kernel_tree "$tmp" || die "$K_NAME holds no kernel tree"
	step "committing the base" unpack.log commit_base "$tmp" "$K_NAME $version" ||
		die "the base could not be committed"
	echo "$version" > "$K_DIR/base.version"
	mv "$tmp" "$K_TREE"
}

unpack_package()
{
	dpkg-deb --fsys-tarfile "$1" |
		tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
		xz -dc -T0 | tar -x --strip-components=1 -C "$2"
}

# is_git_tree DIR: is DIR the top of a git tree?
is_git_tree()
{
	[ "$(kgit -C "$1" rev-parse --show-toplevel 2> /dev/null)" = "$(realpath -- "$1")" ]
}

# copy_source FROM TO: of a git tree the tracked files as they are now, else all files
copy_source()
{
	if is_git_tree "$1"; then
		tracked_files "$1" | rsync -a --from0 --files-from=- "$1/" "$2/"
	else
		rsync -a --exclude=/.git "$1/" "$2/" &&
		make -s -C "$2" ARCH=x86_64 mrproper
	fi
}

tracked_files()
{
	kgit -C "$1" ls-files -z | ( cd "$1" && xargs -0 sh -c '
		for f; do [ ! -e "$f" ] && [ ! -L "$f" ] || printf "%s\0" "$f"; done' sh )
}

# source_state DIR: a hash that changes when a file of a user's tree does
source_state()
{
	if is_git_tree "$1"; then
		tracked_files "$1" | ( cd "$1" && xargs -0 stat -c '%n %s %Y' )
	else
		( cd "$1" && find . -name .git -prune -o -type f -printf '%p %s %T@\n' | sort )
	fi | sha256sum | cut -c1-16
}

commit_base()
{
	local dir=$1
	shift
	{ [ -d "$dir/.git" ] || kgit -C "$dir" init -q -b work; } &&
	kgit -C "$dir" add -A -f . &&
	GIT_COMMITTER_DATE=2000-01-01T00:00:00Z \
		kgit -C "$dir" commit -q --allow-empty --date=2000-01-01T00:00:00Z -m "base: $*" &&
	kgit -C "$dir" tag -f base
}

# update_base: copies the files that have changed in a user's tree (--kernel PATH)
update_base()
{
	local tmp=$K_DIR/base.tmp state
	state=$(source_state "$K_PATH")
	[ "$state" != "$(cat "$K_DIR/base.version")" ] || return 0
	refuse_edits
	say "$K_PATH has changed: updating the base"
	rm -rf "$tmp"
	mkdir "$tmp"
	step "copying $K_PATH" unpack.log copy_source "$K_PATH" "$tmp" ||
		die "'$K_PATH' could not be copied"
	touch "$K_DIR/moving"
	kgit -C "$K_TREE" reset -q --hard base
	rsync -rlp --checksum --delete --exclude=/.git "$tmp/" "$K_TREE/"
	rm -rf "$tmp"
	step "committing the base" unpack.log commit_base "$K_TREE" "$K_NAME $state" ||
		die "the base could not be committed"
	kgit -C "$K_TREE" tag -f prepared > /dev/null
	rm -f "$K_DIR/moving" "$K_DIR/prepared"
	echo "$state" > "$K_DIR/base.version"
}
