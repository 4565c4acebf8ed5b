# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The initramfs: cpio archives one after the other. One holds busybox and init,
# another what the job needs.

# Packages for guests of another architecture: busybox, and the libraries of programs
SYSROOT_BASE=(busybox-static libc6 libgcc-s1 libstdc++6)

# copy_program ROOT PROGRAM [TARGET]: with its interpreter and libraries
copy_program()
{
	local root=$1 program=$2 target=${3-}
	[ -n "$target" ] || target=${program#"$(sysroot)"}
	mkdir -p "$root$(dirname "$target")"
	cp -L "$program" "$root$target"
	program_libraries "$program" | copy_libraries "$root"
	copy_script_interpreter "$root" "$program"
}

# copy_libraries ROOT: those that the input names, to where the guest looks for them
copy_libraries()
{
	local root=$1 sysroot lib target
	sysroot=$(sysroot)
	while read -r lib; do
		target=$root${lib#"$sysroot"}
		[ -e "$target" ] || {
			mkdir -p "$(dirname "$target")"
			cp -L "$lib" "$target"
		}
	done
}

# elf_machine FILE: its e_machine, nothing for what is no ELF file
elf_machine()
{
	[ "$(head -c 4 "$1" | tr -d '\0\177')" = ELF ] || return 0
	od -An -tu2 -j18 -N2 "$1" | tr -d ' '
}

# The interpreter and libraries of an ELF file, nothing for a static one.
program_libraries()
{
	if is_foreign; then
		[ "$(elf_machine "$1")" != "${ARCH_ELF[$ARCH]}" ] || foreign_libraries "$1" | sort -u
		return
	fi
	{ ldd "$1" 2> /dev/null || true; } |
		sed -n -e 's/.* => \(\/[^ ]*\) (.*/\1/p' -e 's/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p'
}

# foreign_libraries FILE: what ldd prints, for a program that the host cannot run
foreign_libraries()
{
	local name dir file
	{
		readelf -lW "$1" | sed -n 's/.*program interpreter: \/lib\/\(.*\)\]/\1/p'
		readelf -dW "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
	} 2> /dev/null | while read -r name; do
		for dir in "$(sysroot)/lib" "$(sysroot)/lib"/*-linux-gnu; do
			file=$dir/$name
			if [ -e "$file" ]; then
				echo "$file"
				foreign_libraries "$file"
				continue 2
			fi
		done
		say_warning "$1 needs $name, which is not there for $ARCH"
	done
}

# For a script: the interpreter of its first line, unless busybox has it.
copy_script_interpreter()
{
	local interpreter
	[ "$(head -c 2 "$2" | tr -d '\0')" = '#!' ] || return 0
	interpreter=$(head -n 1 "$2" | sed -e 's/^#![[:space:]]*//' -e 's/[[:space:]].*//')
	case "$interpreter" in
	/bin/sh|/usr/bin/env|'') return 0 ;;
	esac
	interpreter=$(sysroot)$interpreter
	[ -x "$interpreter" ] || return 0
	copy_program "$1" "$interpreter"
}

# pack DIR ARCHIVE
pack()
{
	( cd "$1" && find . -mindepth 1 -print0 | LC_ALL=C sort -z |
		cpio --quiet --null -o -H newc -R 0:0 ) > "$2"
}

# guest_busybox: the static busybox of the guests of ARCH
guest_busybox()
{
	if is_foreign; then
		echo "$(sysroot)/bin/busybox"
	else
		busybox_path
	fi
}

# base_archive FILE: busybox and init
base_archive()
{
	local dir
	need_sysroot "${SYSROOT_BASE[@]}"
	dir=$(mktemp -d "$SCRATCH/base.XXX")
	mkdir -p "$dir"/{bin,sbin,usr/bin,usr/sbin,lib,lib64,usr/lib,etc,proc,sys,dev,tmp}
	cp "$(guest_busybox)" "$dir/bin/busybox"
	ln -s busybox "$dir/bin/sh"
	cp "$ROOT/fixtures/init" "$dir/init"
	echo 'root:x:0:0:root:/root:/bin/sh' > "$dir/etc/passwd"
	echo 'nobody:x:65534:65534:nobody:/:/bin/sh' >> "$dir/etc/passwd"
	printf 'root:x:0:\nnogroup:x:65534:\n' > "$dir/etc/group"
	pack "$dir" "$1"
	[ -z "${MODULES-}" ] || cat "$MODULES" >> "$1"
}

# shell_words WORD...: quoted for sh
shell_words()
{
	local word
	for word; do
		printf "'%s' " "${word//\'/\'\\\'\'}"
	done
}
