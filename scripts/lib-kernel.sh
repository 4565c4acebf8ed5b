# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Kernel sources: which are known, how they are fetched, and the prepared tree
# (one commit for the base, one for each patch, one for KUnit, one for the
# kselftests).

#
# The table fixtures/kernels
#

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
	kernel_rows | awk '$5 == "lts" { print $1; exit }'
}

mainline_kernel()
{
	kernel_rows | awk '$5 == "mainline" { print $1; exit }'
}

kernel_field()
{
	kernel_rows | awk -v name="$1" -v n="$2" '$1 == name { print $n }'
}

# Sets K_NAME (the folder below build/), K_DIR, K_TREE and, for a tree of the
# user's, K_PATH; for a kernel of the table K_PACKAGE and K_SUITE.
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
	local version
	version=$(tree_version "$1")
	if [ -f "$ROOT/patches/series.$version" ]; then
		echo "series.$version"
	else
		echo series
	fi
}

# The patches that a series file names, one a line.
series_patches()
{
	sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$ROOT/patches/$1"
}

#
# Debian packages, by an apt whose whole state is below build/apt. The mirror
# is the one that the system's own sources name.
#

# Prints "URI SUITE SIGNED-BY" for each of Debian's main archives that the
# system has configured, in one-line and deb822 form alike.
system_sources()
{
	local codename file
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
	for file in "${APT_SOURCES:-/etc/apt}"/sources.list \
		    "${APT_SOURCES:-/etc/apt}"/sources.list.d/*.list \
		    "${APT_SOURCES:-/etc/apt}"/sources.list.d/*.sources; do
		[ -r "$file" ] || continue
		case "$file" in
		*.sources) deb822_sources "$file" ;;
		*) one_line_sources "$file" ;;
		esac
	done | awk -v codename="$codename" '
		function debian(suite) {
			sub(/[-\/].*/, "", suite)
			return suite == codename || suite ~ /^(stable|oldstable|testing|unstable|sid)$/
		}
		$1 !~ /^cdrom:/ && debian($2) && !seen[$1, $2]++'
}

one_line_sources()
{
	awk '$1 == "deb" {
		signed = "-"
		sub(/^deb[ \t]+/, "")
		if (match($0, /^\[[^]]*\]/)) {
			n = split(substr($0, 2, RLENGTH - 2), option, " ")
			for (i = 1; i <= n; i++)
				if (sub(/^signed-by=/, "", option[i]))
					signed = option[i]
				else if (option[i] == "trusted=yes")
					signed = "trusted"
			$0 = substr($0, RLENGTH + 1)
		}
		for (i = 3; i <= NF; i++)
			if ($i == "main")
				print $1, $2, signed
	}' "$1"
}

deb822_sources()
{
	awk '
	function flush(	i, j, nu, ns, u, s) {
		if (types ~ /(^| )deb( |$)/ && components ~ /(^| )main( |$)/ && enabled !~ /^(no|false|0)$/) {
			nu = split(uris, u, " ")
			ns = split(suites, s, " ")
			for (i = 1; i <= nu; i++)
				for (j = 1; j <= ns; j++)
					print u[i], s[j], (signed ~ /^\// ? signed : "-")
		}
		types = uris = suites = components = signed = enabled = ""
	}
	/^#/ { next }
	/^[ \t]*$/ { flush(); next }
	/^[^ \t]/ {
		field = tolower($0)
		sub(/:.*/, "", field)
		sub(/^[^:]*:[ \t]*/, "")
	}
	{
		gsub(/^[ \t]+|[ \t]+$/, "")
		if (field == "types") types = types " " $0
		else if (field == "uris") uris = uris " " $0
		else if (field == "suites") suites = suites " " $0
		else if (field == "components") components = components " " $0
		else if (field == "signed-by") signed = signed $0
		else if (field == "enabled") enabled = tolower($0)
	}
	END { flush() }' "$1"
}

# apt_sources SUITE: the lines of a private sources.list; "-" for what the
# system has.
apt_sources()
{
	local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	system_sources | awk -v suite="$1" -v keyring="$keyring" '
		function print_line(uri, suite, signed) {
			if (signed == "-")
				signed = keyring
			printf "deb [%s] %s %s main\n", signed == "trusted" ? "trusted=yes" : "signed-by=" signed, uri, suite
		}
		suite == "-" { print_line($1, $2, $3) }
		suite != "-" && $2 !~ /[-\/]/ && !done++ { print_line($1, suite, $3) }'
}

# apt_dir SUITE: where the apt of that suite has its state. SUITE@ARCH is the same
# for packages of another architecture.
apt_dir()
{
	echo "$BUILD/apt/${1/#-/system}"
}

# apt_do SUITE PROGRAM ARGS... One at a time in a folder: apt-get does not wait for
# another one, and apt-cache sees no packages while the lists are read anew.
apt_do()
{
	local dir
	dir=$(apt_dir "$1")
	shift
	flock "$dir/one-at-a-time" "$1" -c "$dir/apt.conf" -q "${@:2}"
}

# place FILE: what is read from stdin, whole at every moment
place()
{
	local part=$1.$BASHPID
	cat > "$part" && mv "$part" "$1"
}

# apt_update SUITE: once per invocation
apt_update()
{
	local suite=$1 dir
	dir=$(apt_dir "$suite")
	case " ${APT_UPDATED-} " in
	*" $suite "*) return 0 ;;
	esac
	mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/etc"
	: > "$dir/status"
	apt_sources "${suite%@*}" | place "$dir/sources.list"
	[ -s "$dir/sources.list" ] ||
		die "no Debian mirror found in the system's apt sources (/etc/apt/sources.list, /etc/apt/sources.list.d)"
	apt_conf "$suite" "$dir" | place "$dir/apt.conf"
	step "reading the package lists ($(basename "$dir"))" apt.log \
		apt_do "$suite" apt-get update || return 1
	APT_UPDATED="${APT_UPDATED-} $suite"
}

# apt_conf SUITE DIR
apt_conf()
{
	cat <<-END
	Dir::Etc::SourceList "$2/sources.list";
	Dir::Etc::SourceParts "/dev/null";
	Dir::State "$2";
	Dir::State::Lists "$2/lists";
	Dir::State::status "$2/status";
	Dir::Cache "$2/cache";
	APT::Sandbox::User "root";
	APT::Update::Error-Mode "any";
	Acquire::Languages "none";
	Acquire::Retries "3";
	#clear APT::Update::Post-Invoke;
	#clear APT::Update::Post-Invoke-Success;
	#clear DPkg::Post-Invoke;
	END
	case "$1" in
	*@*)
		printf 'APT::Architecture "%s";\nAPT::Architectures { "%s"; };\n' \
			"${1#*@}" "${1#*@}" ;;
	esac
}

# Whether the mirror serves the selected kernel; WHY_NOT says what it does.
kernel_is_served()
{
	WHY_NOT=
	apt_update - ||
		die "the package lists cannot be read: is the mirror of the system's apt sources reachable?"
	if apt_update "$K_SUITE" 2> /dev/null && [ -n "$(package_version)" ]; then
		return 0
	fi
	WHY_NOT="$K_PACKAGE is no longer served (suite ${K_SUITE/#-/$(system_sources | awk '{print $2}' | paste -sd' ')}); served: $(served_kernels)"
	return 1
}

package_version()
{
	apt_do "$K_SUITE" apt-cache show "$K_PACKAGE" 2> /dev/null |
		awk '$1 == "Version:" { print $2; exit }'
}

served_kernels()
{
	local suite
	for suite in - "$K_SUITE"; do
		apt_do "$suite" apt-cache search --names-only '^linux-source-[0-9]' 2> /dev/null
	done | awk '{ print $1 }' | sort -u | paste -sd' '
}

# fetch_package: sets DEB to the verified package. It is downloaded into a
# folder of its own and takes its name when it is whole.
fetch_package()
{
	local dir
	kernel_is_served || die "$WHY_NOT" \
		"give --kernel with another name of fixtures/kernels, or the path of a kernel tree"
	dir=$(apt_dir "$K_SUITE")/packages
	mkdir -p "$dir"
	for DEB in "$dir/${K_PACKAGE}_"*.deb; do
		[ ! -e "$DEB" ] || ! package_is_whole "$DEB" || return 0
	done
	rm -rf "$dir/${K_PACKAGE}_"* "$dir/$K_PACKAGE.tmp"
	mkdir "$dir/$K_PACKAGE.tmp"
	step "downloading $K_PACKAGE $(package_version)" apt.log \
		download_package "$dir/$K_PACKAGE.tmp" ||
		die "$K_PACKAGE could not be downloaded"
	DEB=$(echo "$dir/$K_PACKAGE.tmp/"*.deb)
	( cd "$dir/$K_PACKAGE.tmp" && sha256sum "${DEB##*/}" > "../${DEB##*/}.sha256" )
	mv "$DEB" "$dir/"
	DEB=$dir/${DEB##*/}
	rmdir "$dir/$K_PACKAGE.tmp"
}

# apt checks what it downloads against the signed index.
download_package()
{
	( cd "$1" && apt_do "$K_SUITE" apt-get download "$K_PACKAGE" && dpkg-deb --info ./*.deb )
}

package_is_whole()
{
	( cd "$(dirname "$1")" && sha256sum --quiet -c "${1##*/}.sha256" ) > /dev/null 2>&1
}

#
# Programs and libraries of another architecture, unpacked into a folder: the host's
# dpkg knows nothing of them.
#

# sysroot: that folder for the guests of ARCH; nothing if they are of the host's
sysroot()
{
	! is_foreign || echo "$(apt_dir "-@$ARCH")/root"
}

# need_sysroot PACKAGE...: they are in sysroot, with what they depend on
need_sysroot()
{
	local root marker
	is_foreign || return 0
	root=$(sysroot)
	marker=$root.$(printf '%s\n' "$@" | sha256sum | cut -c1-8)
	[ ! -f "$marker" ] || return 0
	lock "apt-$ARCH"
	apt_update "-@$ARCH" ||
		die "the package lists of $ARCH cannot be read: does the mirror of the system's apt sources serve it?"
	step "downloading $* ($ARCH)" apt.log \
		apt_do "-@$ARCH" apt-get install -y --no-install-recommends --download-only "$@" ||
		die "the packages of $ARCH could not be downloaded"
	step "unpacking $* ($ARCH)" apt.log unpack_sysroot "$root" ||
		die "the packages of $ARCH could not be unpacked"
	: > "$marker"
	unlock "apt-$ARCH"
}

# Debian's folders lie below /usr, whatever its older packages say.
unpack_sysroot()
{
	local root=$1 dir deb
	for dir in bin sbin lib; do
		mkdir -p "$root/usr/$dir"
		ln -sfn "usr/$dir" "$root/$dir"
	done
	for deb in "$(apt_dir "-@$ARCH")"/cache/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" |
			tar -x --keep-directory-symlink --no-same-owner -C "$root" || return
	done
}

#
# The base: the untouched source as the first commit, tagged base. Everything
# is made under a temporary name; what was cut off is thrown away.
#

# git in a tree of ours: nothing of the user's configuration may interfere.
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

# A git tree of its own, not a folder somewhere in another.
is_git_tree()
{
	[ "$(kgit -C "$1" rev-parse --show-toplevel 2> /dev/null)" = "$(realpath -- "$1")" ]
}

# The tracked files of a git tree as they are now, or all files of another.
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

# What tells whether a tree of the user's has changed since it was copied.
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
	kgit -C "$dir" commit -q --allow-empty --date=2000-01-01T00:00:00Z -m "base: $*" &&
	kgit -C "$dir" tag -f base
}

# A tree of the user's that changed: the base follows, file by file.
update_base()
{
	local tmp=$K_DIR/base.tmp state
	state=$(source_state "$K_PATH")
	[ "$state" != "$(cat "$K_DIR/base.version")" ] || return 0
	refuse_edits
	say "$K_PATH has changed: the base follows"
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
