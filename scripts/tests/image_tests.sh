# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of --image and --modules.

# make_images: in $SCRATCH/images, headers of kernel images with zeros behind them
make_images()
{
	rm -rf "$SCRATCH/images"
	mkdir "$SCRATCH/images"
	"$PYTHON" - "$SCRATCH/images" <<-'END'
	import gzip, struct, sys
	def write(name, data, *fields):
	    data = bytearray(data)
	    for at, form, value in fields:
	        struct.pack_into("<" + form, data, at, value)
	    open(sys.argv[1] + "/" + name, "wb").write(data)
	    return bytes(data)
	elf = [(0, "4s", b"\x7fELF"), (18, "H", 62), (32, "Q", 64), (40, "Q", 900), (54, "H", 56),
	       (56, "H", 1), (58, "H", 64), (60, "H", 1), (64, "I", 4), (72, "Q", 128), (96, "Q", 24),
	       (128, "I", 4), (132, "I", 8), (136, "I", 18), (140, "4s", b"Xen\0")]
	banner = (300, "28s", b"Linux version 6.12.1-a+ (x)")
	write("vmlinux", bytes(1000), *elf, banner)
	write("truncated-vmlinux", bytes(950), *elf)
	write("program", bytes(1000), *elf, (136, "I", 3))
	write("vmlinux-i386", bytes(1000), *elf, (18, "H", 3))
	write("vmlinux-arm64", bytes(1000), *elf, (18, "H", 183))
	boot = [(0x1f1, "B", 1), (0x1f4, "I", 64), (514, "4s", b"HdrS"), (0x206, "H", 0x20f),
	        (0x236, "H", 1), (0x20e, "H", 0x100), (0x300, "16s", b"6.1.0-1-amd64 (")]
	write("bzImage", bytes(2048), *boot)
	write("truncated-bzImage", bytes(2047), *boot)
	write("bzImage-i386", bytes(2048), *boot, (0x236, "H", 0))
	arm = [(56, "4s", b"ARM\x64"), (60, "I", 64), (64, "4s", b"PE\0\0"), (70, "H", 1), (84, "H", 16),
	       (120, "I", 500), (124, "I", 500)]
	image = write("Image", bytes(1000), *arm, banner)
	write("truncated-Image", bytes(999), *arm)
	write("Image.gz", gzip.compress(image))
	write("truncated-Image.gz", gzip.compress(image)[:-9])
	write("damaged-Image.gz", gzip.compress(image), (10, "8s", b"\xff" * 8))
	write("module.ko", bytes(1000), *elf, (32, "Q", 0), (54, "H", 0), (56, "H", 0))
	write("Image-riscv", bytes(1000), (48, "8s", b"RISCV\0\0\0"), (56, "4s", b"RSC\x05"))
	write("text", b"no kernel\n" * 100)
	write("empty", b"")
	END
}

# What a file is, said before anything is built.
test_images()
{
	local image
	make_images
	cd "$SCRATCH/images" || return
	want_same "$(for image in vmlinux bzImage Image Image.gz; do "$PYTHON" "$ROOT/scripts/lib/image.py" "$image"; done | paste -sd,)" \
		"x86_64 6.12.1-a+,x86_64 6.1.0-1-amd64,arm64 6.12.1-a+,arm64 6.12.1-a+" || return
	refused_with "is no kernel image that boots: it is neither an ELF file" kselftest --image text &&
	no_image empty "it is neither an ELF file" &&
	no_image truncated-bzImage "it is not whole: 2047 of 2048 bytes" &&
	no_image truncated-vmlinux "it is not whole: 950 of 964 bytes" &&
	no_image truncated-Image "it is not whole: 999 of 1000 bytes" &&
	no_image truncated-Image.gz "compressed, but damaged or not whole" &&
	no_image damaged-Image.gz "compressed, but damaged or not whole" &&
	no_image module.ko "no vmlinux with CONFIG_PVH" &&
	no_image . "it cannot be read: Is a directory" &&
	refused_with "no kernel image that boots: it is compressed, but damaged" boot --image damaged-Image.gz -- true &&
	refused_with "no kernel image that boots: it is an ELF file, but no vmlinux" kselftest --image module.ko &&
	# a file that also root cannot read from its beginning
	refused_with "no kernel image that boots: it cannot be read" kselftest --image /proc/self/mem &&
	no_image program "no vmlinux with CONFIG_PVH" &&
	no_image vmlinux-i386 "for i386, not for x86_64" &&
	no_image bzImage-i386 "bzImage for i386" &&
	no_image vmlinux-arm64 "boots arch/arm64/boot/Image" &&
	no_image Image-riscv "for riscv; supported are" &&
	refused_with "no kernel image that boots: it is not whole" boot --image truncated-bzImage -- true &&
	refused_with "neither a file nor a package" kselftest --image linux-image-x &&
	refused_with "is for arm64, not for --arch x86_64" kselftest --arch x86_64 --image Image &&
	refused_with "without --unpatched" kselftest --unpatched --image linux-image-cloud-amd64
}

# no_image FILE WHY
no_image()
{
	OUT=$SCRATCH/output
	STATUS=0
	"$PYTHON" "$ROOT/scripts/lib/image.py" "$1" > "$OUT" 2>&1 || STATUS=$?
	want_status 1 && want_output "$2" && want_same "$(wc -l < "$OUT")" 1
}

# The modules are those of the image, and their folder is only read.
test_image_modules()
{
	local IMAGE MODULES_FROM RELEASE ARCH='' IMAGE_MODULES='brd' dir=$SCRATCH/modules before ko
	make_images
	cd "$SCRATCH" || return
	refused_with "goes with --image FILE" boot --modules / -- true &&
	refused_with "a package brings its own" boot --image linux-image-cloud-amd64 --modules / -- true &&
	refused_with "is no folder" boot --image images/bzImage --modules "$SCRATCH/none" -- true &&
	refused_with "holds no modules" boot --image images/bzImage --modules images -- true || return
	rm -rf "$dir"
	for release in 6.1.0-1-amd64 6.2; do
		mkdir -p "$dir/lib/modules/$release/kernel"
		touch "$dir/lib/modules/$release/modules.order" "$dir/lib/modules/$release/modules.builtin"
		ln -s /usr/src "$dir/lib/modules/$release/build"
	done
	refused_with "is for 6.1.0-1-amd64 6.2, but the image is 6.12.1-a[+]" boot --image images/vmlinux --modules "$dir" -- true &&
	refused_with "is for 6.2, but the image is 6.1.0-1-amd64" boot --image images/bzImage --modules "$dir/lib/modules/6.2" -- true || return
	# an object with what depmod wants of a module
	printf '__attribute__((section(".modinfo"), used)) static const char n[] = "name=brd";\n' |
		gcc -c -x c - -o "$dir/lib/modules/6.1.0-1-amd64/kernel/brd.ko" || return
	before=$(find "$dir" -printf '%p %T@\n' | sort | sha256sum)
	IMAGE=$SCRATCH/images/bzImage MODULES_FROM=$dir
	check_image
	want_same "$MODULES_FROM" "$dir/lib/modules/6.1.0-1-amd64" || return
	need_image "$IMAGE"
	ko=$(cpio -t --quiet < "$MODULES" | grep '[.]ko$')
	want_same "$ko" lib/modules/6.1.0-1-amd64/brd.ko &&
	want_same "$(find "$dir" -printf '%p %T@\n' | sort | sha256sum)" "$before"
}

# make_deb FILE ARCHITECTURE RELEASE: with a vmlinuz of zeros and an empty folder of modules,
# nothing if there is no RELEASE
make_deb()
{
	local root=$SCRATCH/deb.root
	rm -rf "$root"
	mkdir -p "$root/DEBIAN" "$root/boot"
	printf '%s\n' 'Package: linux-image-x' 'Version: 1' "Architecture: $2" 'Maintainer: nobody <nobody@localhost>' \
		'Description: nothing' > "$root/DEBIAN/control"
	if [ -n "$3" ]; then
		mkdir -p "$root/lib/modules/$3"
		touch "$root/boot/vmlinuz-$3" "$root/lib/modules/$3/modules.order" "$root/lib/modules/$3/modules.builtin"
	fi
	dpkg-deb --root-owner-group -b "$root" "$1" > /dev/null
}

# What 'package' writes: unpacked in the private folder, with the modules in it
test_image_deb()
{
	local IMAGE MODULES_FROM='' RELEASE ARCH='' IMAGE_NAME deb=$SCRATCH/linux-image-6.12-x.deb
	make_deb "$deb" amd64 6.12.1-x || return
	IMAGE=$deb
	check_image
	need_image "$IMAGE"
	want_same "$ARCH $IMAGE_NAME" "x86_64 linux-image-6.12-x.deb" &&
	want_same "$KERNEL_IMAGE" "$(find "$SCRATCH/image" -path '*/boot/vmlinuz-6.12.1-x')" || return
	cpio -t --quiet < "$MODULES" | grep -qx lib/modules/6.12.1-x/modules.order || complain "no modules of the package" || return
	refused_with "is for x86_64, not for --arch arm64" kselftest --arch arm64 --image "$deb" &&
	refused_with "a package brings its own" boot --image "$deb" --modules / -- true || return
	make_deb "$deb" riscv64 6.12.1-x && refused_with "is a package for riscv64, not for amd64 or arm64" kselftest --image "$deb" || return
	make_deb "$deb" amd64 '' && refused_with "the package holds no vmlinuz" boot --image "$deb" -- true || return
	echo nothing > "$deb"
	refused_with "is no Debian package that dpkg-deb can read" kselftest --image "$deb"
}

# An image that says nothing is stopped; one that does not come to its init is no failure
# of a test, but status 2.
test_image_silent()
{
	local dir=$SCRATCH/silent-image IMAGE=x IMAGE_SILENCE=1 GUEST_SILENCE='' HUNG='' WHY='' SPLATS='' LOGS=$SCRATCH
	mkdir -p "$dir"
	echo 'not started' > "$dir/status"
	: > "$dir/console.log"
	: > "$dir/console.txt"
	: > "$dir/job.log"
	setsid sleep 600 &
	GUEST=$!
	wait_guest "$dir" 600
	want_same "$HUNG" 'its kernel printed nothing for 1s' || return
	OUT=$SCRATCH/output
	STATUS=0
	( trap - EXIT; WHY='it hung'; need_booted "$dir" ) > "$OUT" 2>&1 || STATUS=$?
	want_status 2 && want_output "^harness: --image 'x' does not boot: it hung$" || return
	echo start >> "$dir/status"
	( trap - EXIT; need_booted "$dir" ) > "$OUT" 2>&1 || complain 'a job that fails is a result' || return
	IMAGE=
	echo 'not started' > "$dir/status"
	( trap - EXIT; need_booted "$dir" ) > "$OUT" 2>&1 || complain 'a kernel of ours that does not boot is a failure'
}
