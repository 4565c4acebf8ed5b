# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The Debian packages that commands need on the host.

#
# Host packages: the one list. A program, or a file, stands for its package.
#

# What one command needs besides, as lines of the same form
MORE_PACKAGES=

host_packages()
{
	[ -z "$MORE_PACKAGES" ] || printf '%s\n' "$MORE_PACKAGES"
	arch_packages "$ARCH"
	cat <<-END
	gcc		build-essential
	make		build-essential
	flex		flex
	bison		bison
	bc		bc
	perl		perl
	$PYTHON	python3
	git		git
	rsync		rsync
	cpio		cpio
	xz		xz-utils
	zstd		zstd
	kmod		kmod
	flock		util-linux
	chrt		util-linux
	dpkg-deb	dpkg
	qemu-system-x86_64	qemu-system-x86
	trace-cmd	trace-cmd
	perf		linux-perf
	shellcheck	shellcheck
	gnuplot		gnuplot-nox
	ccache		ccache
	/usr/include/libelf.h	libelf-dev
	/usr/include/sys/capability.h	libcap-dev
	/usr/include/numa.h	libnuma-dev
	/usr/include/liburing.h	liburing-dev
	/usr/lib/python3/dist-packages/docutils/__init__.py	python3-docutils
	/usr/lib/python3/dist-packages/jsonschema/__init__.py	python3-jsonschema
	/usr/share/keyrings/debian-archive-keyring.gpg	debian-archive-keyring
	END
	echo "$(busybox_path) busybox-static"
}

# arch_packages ARCH: what only guests of that architecture need
arch_packages()
{
	case "$1" in
	arm64)
		cat <<-'END' ;;
		aarch64-linux-gnu-gcc	gcc-aarch64-linux-gnu
		/usr/aarch64-linux-gnu/include/stdio.h	libc6-dev-arm64-cross
		qemu-system-aarch64	qemu-system-arm
		END
	esac
}

# The static busybox of busybox-static; a dynamic one would not start as init.
busybox_path()
{
	local file
	for file in /bin/busybox /usr/bin/busybox; do
		if [ -x "$file" ] && ! ldd "$file" > /dev/null 2>&1; then
			echo "$file"
			return
		fi
	done
	echo /missing/busybox
}

missing_packages()
{
	local what package
	host_packages | while read -r what package; do
		case "$what" in
		/*) [ -e "$what" ] || echo "$package" ;;
		*) command -v "$what" > /dev/null || echo "$package" ;;
		esac
	done | sort -u | tr '\n' ' '
}

need_packages()
{
	local missing
	missing=$(missing_packages)
	missing=${missing% }
	[ -n "$missing" ] || return 0
	local install="apt-get install -y --no-install-recommends $missing"
	[ -n "$INSTALL_DEPS" ] ||
		die "host packages are missing. Install them with" "$install" "or give --install-deps"
	local sudo=
	if [ "$(id -u)" -ne 0 ]; then
		command -v sudo > /dev/null ||
			die "--install-deps needs root. As root, run" "$install"
		sudo=sudo
	fi
	lock host-packages
	# shellcheck disable=SC2086 # words on purpose
	step "installing $missing" install-deps.log install_packages "$sudo" $missing ||
		die "the host packages could not be installed. Try" "$install"
	unlock host-packages
	missing=$(missing_packages)
	[ -z "$missing" ] || die "still missing after the installation: $missing"
}

install_packages()
{
	local sudo=$1
	shift
	$sudo apt-get update &&
	$sudo env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y --no-install-recommends "$@"
}
