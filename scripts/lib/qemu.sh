# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Which QEMU boots a guest.
#
# A kernel patches its code by way of an int3. QEMU before 8.1 translates code first and
# watches its page for writes afterwards. If a vCPU's thread is preempted in between, it keeps
# an int3 that was overwritten meanwhile, and the guest dies (qemu_ran_stale_int3). That is
# rare with one guest on an idle host, and the rule with two.
# So an older QEMU on the host is replaced, for guests with a thread for each CPU, by that of
# the release's backports, which is unpacked into the build folder.

# The libraries are those of the host's QEMU.
QEMU_PACKAGES=(qemu-system-x86 qemu-system-data seabios)

# The program with its first arguments, see need_qemu
QEMU=()

# host_qemu ARCH: for guests of one thread. The plugin is built for it.
host_qemu()
{
	QEMU=("${ARCH_QEMU[$1]}")
}

# need_qemu ARCH: sets QEMU for guests with a thread for each CPU
need_qemu()
{
	local root=$BUILD/qemu/root
	host_qemu "$1"
	[[ "$1" == @(x86_64|i386) ]] && is_old_qemu "${QEMU[@]}" || return 0
	lock qemu
	if [ ! -e "$BUILD/qemu/version" ] && ! is_no_newer_qemu && ! fetch_qemu; then
		boot_id > "$BUILD/qemu/none"
		say "QEMU of ${SUITE_OF_QEMU:-the backports} cannot be had: guests run with the host's, and once more where it fails them"
	fi
	unlock qemu
	[ -e "$BUILD/qemu/version" ] || return 0
	QEMU=("$root/usr/bin/${QEMU[0]}" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios")
}

# is_old_qemu PROGRAM...: before 8.1
is_old_qemu()
{
	local version
	version=$("$@" --version 2> /dev/null | sed -n 's/^QEMU emulator version \([0-9]*\.[0-9]*\).*/\1/p')
	[ -n "$version" ] && [ "$(printf '%s\n' 8.1 "$version" | sort -V | head -n 1)" != 8.1 ]
}

# is_no_newer_qemu: whether it was asked for since the host was booted
is_no_newer_qemu()
{
	[ "$(cat "$BUILD/qemu/none" 2> /dev/null)" = "$(boot_id)" ]
}

boot_id()
{
	cat /proc/sys/kernel/random/boot_id 2> /dev/null || echo unknown
}

# fetch_qemu: BUILD/qemu/root has it, BUILD/qemu/version its version
fetch_qemu()
{
	local dir=$BUILD/qemu root=$BUILD/qemu/root version program
	SUITE_OF_QEMU=$(. /etc/os-release && echo "${VERSION_CODENAME-}-backports")
	rm -rf "$dir"
	mkdir -p "$dir/tmp"
	# a host without apt's sources ends it
	( apt_update "$SUITE_OF_QEMU" ) 2> /dev/null || return
	version=$(package_field "$SUITE_OF_QEMU" "${QEMU_PACKAGES[0]}" Version)
	[ -n "$version" ] || return
	step "downloading ${QEMU_PACKAGES[0]} $version" apt.log \
		download_packages "$SUITE_OF_QEMU" "$dir/tmp" "${QEMU_PACKAGES[@]}" &&
	step "unpacking ${QEMU_PACKAGES[0]}" apt.log unpack_packages "$dir" || return
	rm -rf "$dir/tmp"
	program=$root/usr/bin/${QEMU[0]}
	"$program" --version > /dev/null 2>&1 && ! is_old_qemu "$program" || return
	echo "$version" > "$dir/version"
}
