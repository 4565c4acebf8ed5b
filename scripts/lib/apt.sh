# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Debian packages fetched into a private apt directory below build/apt.

# The mirror is the one that the system's own apt sources name.

# system_sources: prints "URI SUITE SIGNED-BY" for each of Debian's main archives that the
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

# apt_sources SUITE: the lines of a private sources.list; suite "-" means the suites
# that the system has configured
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

# apt_dir SUITE: the folder with apt's state for that suite; SUITE@ARCH is for packages
# of another architecture
apt_dir()
{
	echo "$BUILD/apt/${1/#-/system}"
}

# apt_do SUITE PROGRAM ARGS...: under a lock, because apt-get does not wait for another
# apt-get, and apt-cache finds no packages while the lists are updated
apt_do()
{
	local dir
	dir=$(apt_dir "$1")
	shift
	flock "$dir/one-at-a-time" "$1" -c "$dir/apt.conf" -q "${@:2}"
}

# write_atomically FILE: standard input; readers see the old content or the new
write_atomically()
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
	apt_sources "${suite%@*}" | write_atomically "$dir/sources.list"
	[ -s "$dir/sources.list" ] ||
		die "no Debian mirror found in the system's apt sources (/etc/apt/sources.list, /etc/apt/sources.list.d)"
	apt_conf "$suite" "$dir" | write_atomically "$dir/apt.conf"
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

# package_field SUITE PACKAGE FIELD: nothing if there is no such package
package_field()
{
	{ apt_do "$1" apt-cache show --no-all-versions "$2" 2> /dev/null || true; } |
		sed -n "s/^$3: //p"
}

# download_packages SUITE DIR PACKAGE...
download_packages()
{
	( cd "$2" && apt_do "$1" apt-get download "${@:3}" )
}

# unpack_packages DIR: those of DIR/tmp, into DIR/root
unpack_packages()
{
	local deb
	for deb in "$1"/tmp/*.deb; do
		dpkg-deb -x "$deb" "$1/root" || return
	done
}

# kernel_is_served: does the mirror have the selected kernel's package? If not, WHY_NOT
# is the message.
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

# fetch_package: sets DEB to the verified package, which is downloaded into a temporary
# folder and moved when it is complete
fetch_package()
{
	local dir
	dir=$(apt_dir "$K_SUITE")/packages
	if ! { apt_update - && apt_update "$K_SUITE"; } && find_package "$dir"; then
		say "the package lists cannot be read; ${DEB##*/} was downloaded before, and is used"
		return
	fi
	kernel_is_served || die "$WHY_NOT" \
		"give --kernel with another name of fixtures/kernels, or the path of a kernel tree"
	! find_package "$dir" || return 0
	mkdir -p "$dir"
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

# find_package DIR: sets DEB to the verified package, if it was downloaded before
find_package()
{
	for DEB in "$1/${K_PACKAGE}_"*.deb; do
		[ ! -e "$DEB" ] || ! package_is_whole "$DEB" || return 0
	done
	return 1
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
# Programs and libraries of another architecture. They are unpacked into a folder, not
# installed on the host.
#

# sysroot: that folder; prints nothing if ARCH is the host's architecture
sysroot()
{
	! is_foreign || echo "$(apt_dir "-@$ARCH")/root"
}

# need_sysroot PACKAGE...: unpacks them and their dependencies into sysroot
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

# Older packages still have files in /bin, /sbin and /lib, which are links to /usr.
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
