# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# --image: a kernel that exists already, as a file or as a Debian package. A package is
# fetched by the private apt, or a .deb file, and unpacked below the build folder, never
# installed.

# Modules that the tests and the guest's lines of output use, where the image has them
IMAGE_MODULES="brd test_hmm kvm-amd virtio_mmio virtio_console"
BRD_OPTIONS="rd_nr=2 rd_size=262144"

# image_help SENTENCE: for the help of commands; SENTENCE, or '', is about --image
image_help()
{
	cat <<-'END'
	  --image I       a kernel image that exists already: a file (vmlinux, bzImage, or
	                  arm64's Image), a .deb file such as 'package' writes, or a
	                  Debian package such as linux-image-cloud-amd64; PACKAGE/SUITE
	                  takes it from that suite
	END
	[ -z "$1" ] || printf '                  (%s)\n' "$1"
	cat <<-'END'
	  --modules DIR   its modules, if it is a file but no .deb: what 'make
	                  modules_install INSTALL_MOD_PATH=DIR' left, or one of its
	                  lib/modules/RELEASE
	END
}

# check_image: whether --image can be booted and --modules is for it, as far as that is
# known before anything is built. Sets ARCH.
check_image()
{
	if [ -z "$IMAGE" ]; then
		[ -z "$MODULES_FROM" ] || die "--modules goes with --image FILE"
		return 0
	fi
	[ -z "$UNPATCHED$BENCH$DEBUG" ] || die "--image is a kernel as it is: without --unpatched, --bench and --debug"
	image_arch "$IMAGE"
	[ -n "$MODULES_FROM" ] || return 0
	[ -f "$IMAGE" ] && ! is_deb "$IMAGE" ||
		die "--modules goes with --image FILE: a package brings its own modules"
	find_modules
}

# is_deb IMAGE: whether it is a Debian package in a file
is_deb()
{
	[ -f "$1" ] && [[ "$1" == *.deb ]]
}

# image_arch IMAGE: sets ARCH to what a file says, or the end of a package's name, and
# RELEASE to the release of the kernel in a file, if it says one
image_arch()
{
	local arch=
	RELEASE=
	if is_deb "$1"; then
		arch=$(dpkg-deb -f "$1" Architecture 2> /dev/null) ||
			die "--image '$1' is no Debian package that dpkg-deb can read"
		case "$arch" in
		amd64) arch=x86_64 ;;
		arm64) ;;
		*) die "--image '$1' is a package for $arch, not for amd64 or arm64" ;;
		esac
	elif [ -f "$1" ]; then
		[ -x "$PYTHON" ] || need_packages
		arch=$("$PYTHON" "$ROOT/scripts/lib/image.py" "$1" 2>&1) ||
			die "--image '$1' is no kernel image that boots: $arch"
		[[ "$arch" != *' '* ]] || RELEASE=${arch#* }
		arch=${arch%% *}
	else
		case "${1%%/*}" in
		linux-image-*amd64) arch=x86_64 ;;
		linux-image-*arm64) arch=arm64 ;;
		*) die "--image '$1' is neither a file nor a package linux-image-...-amd64 or -arm64" ;;
		esac
	fi
	[ -z "$ARCH" ] || [ "$ARCH" = "$arch" ] || die "--image '$1' is for $arch, not for --arch $ARCH"
	ARCH=$arch
}

# find_modules: sets MODULES_FROM to the folder lib/modules/RELEASE of the image
find_modules()
{
	local dir found=()
	for dir in "$MODULES_FROM" "$MODULES_FROM"/{,usr/}lib/modules/* "$MODULES_FROM"/*; do
		[ ! -f "$dir/modules.order" ] && [ ! -f "$dir/modules.dep" ] || found+=("$dir")
	done
	[ ${#found[@]} -gt 0 ] ||
		die "--modules '$MODULES_FROM' holds no modules: neither it nor its lib/modules/RELEASE has a modules.order"
	for dir in "${found[@]}"; do
		[ -n "$RELEASE" ] && [ "${dir##*/}" != "$RELEASE" ] || { MODULES_FROM=$dir; return; }
	done
	die "--modules '$MODULES_FROM' is for $(printf '%s\n' "${found[@]##*/}" | paste -sd' '), but the image is $RELEASE"
}

# need_image IMAGE: sets KERNEL_IMAGE, IMAGE_NAME, and MODULES, the archive with its modules
need_image()
{
	local dir
	MODULES=
	OUT=
	if [ -f "$1" ] && ! is_deb "$1"; then
		KERNEL_IMAGE=$(realpath -- "$1")
		IMAGE_NAME=$(basename -- "$1")
		[ -z "$MODULES_FROM" ] || archive_modules_of_user
		return
	fi
	if is_deb "$1"; then
		dir=$SCRATCH/image
		mkdir -p "$dir"
		dpkg-deb -x "$(realpath -- "$1")" "$dir/root" ||
			die "--image '$1' could not be unpacked"
		IMAGE_NAME=$(basename -- "$1")
	else
		dir=$BUILD/images/${1//\//_}
		lock "image-$(basename "$dir")"
		fetch_image "$1" "$dir"
		unlock "image-$(basename "$dir")"
		IMAGE_NAME=$(cat "$dir/version")
	fi
	# below /boot, or with its modules
	KERNEL_IMAGE=$(find "$dir/root" -type f -name 'vmlinuz*' | sort | sed -n 1p)
	[ -n "$KERNEL_IMAGE" ] || die "--image '$1': the package holds no vmlinuz"
	MODULES=$SCRATCH/modules.cpio
	modules_archive "$dir/root" "$MODULES"
}

# archive_modules_of_user: by links, for depmod writes into the folder that it reads
archive_modules_of_user()
{
	local to=$SCRATCH/image.root/lib/modules
	mkdir -p "$to"
	cp -rs "$MODULES_FROM" "$to/"
	rm -f "$to"/*/{build,source}
	rm -f "$to"/*/modules.{dep,alias,symbols,softdep,devname,weakdep,builtin.alias}{,.bin}
	MODULES=$SCRATCH/modules.cpio
	modules_archive "$SCRATCH/image.root" "$MODULES"
}

# need_booted DIR: an image whose guest never came to its init cannot be tested
need_booted()
{
	[ -n "$IMAGE" ] && ! grep -q '^start' "$1/status" || return 0
	report_guest "$1" || true
	die "--image '$IMAGE' does not boot: ${WHY:-it did not come to its init}"
}

# fetch_image PACKAGE[/SUITE] DIR: DIR/root has the unpacked package, DIR/version its name
# and version. What was fetched before and is the newest version stays.
fetch_image()
{
	local package=${1%%/*} suite=- dir=$2 version parts
	[[ "$1" != */* ]] || suite=${1#*/}
	! is_foreign || suite+=@$ARCH
	if ! apt_update "$suite"; then
		[ -s "$dir/version" ] ||
			die "the package lists of '${suite%@*}' cannot be read: is it a suite that the mirror serves?"
		say "the package lists cannot be read; $(cat "$dir/version") was downloaded before, and is used"
		return
	fi
	package=$(real_package "$suite" "$package")
	version=$(package_field "$suite" "$package" Version)
	[ -n "$version" ] || die "--image: there is no package '$package' in suite '${suite%@*}' ('-': as configured)" \
		"there are: $(apt_do "$suite" apt-cache search --names-only '^linux-image-([0-9.]+-)?(cloud-)?(amd64|arm64)$' |
			awk '{ print $1 }' | sort | paste -sd' ')"
	[ "$(cat "$dir/version" 2> /dev/null)" != "$package $version" ] || return 0
	rm -rf "$dir"
	mkdir -p "$dir/tmp"
	mapfile -t parts < <(image_parts "$suite" "$package")
	step "downloading $package $version" apt.log download_packages "$suite" "$dir/tmp" "${parts[@]}" ||
		die "$package could not be downloaded"
	step "unpacking $package" apt.log unpack_packages "$dir" ||
		die "$package could not be unpacked"
	rm -rf "$dir/tmp"
	echo "$package $version" > "$dir/version"
}

# image_parts SUITE PACKAGE: since 7.x Debian has the image and the modules in packages
# of their own, which this one depends on
image_parts()
{
	echo "$2"
	package_field "$1" "$2" Depends | grep -oE 'linux-(base|binary|modules)-[0-9][^ ,]+' || true
}

# real_package SUITE PACKAGE: linux-image-cloud-amd64 stands for the newest of its kind
real_package()
{
	local depends
	depends=$(package_field "$1" "$2" Depends | sed -n 's/.*\<\(linux-image-[^ ,]*\).*/\1/p')
	echo "${depends:-$2}"
}

# modules_archive ROOT ARCHIVE: IMAGE_MODULES with what they depend on, and the list of
# them for the guest's init
modules_archive()
{
	local root=$1 archive=$2 from version dir to module
	dir=$(mktemp -d "$SCRATCH/modules.XXX")
	from=$(find "$root" -type d -path '*/lib/modules/*' -prune | sed -n 1p)
	if [ -n "$from" ]; then
		version=${from##*/}
		to=$dir/lib/modules/$version
		mkdir -p "$to"
		depmod -b "${from%/lib/modules/*}" "$version"
		for module in $IMAGE_MODULES; do
			modprobe -d "${from%/lib/modules/*}" -S "$version" --show-depends "$module" 2> /dev/null |
				awk '$1 == "insmod" { print $2 }' || true
		done | sort -u | while read -r file; do
			copy_module "$file" "$to"
		done
		cp "$from"/modules.{order,builtin,builtin.modinfo} "$to/" 2> /dev/null || true
		depmod -b "$dir" "$version"
	fi
	tr " " "\n" <<< "$IMAGE_MODULES" | sed "s/^brd$/& $BRD_OPTIONS/" > "$dir/modules.load"
	pack "$dir" "$archive"
}

# copy_module FILE DIR: decompressed, as busybox's modprobe reads them
copy_module()
{
	case "$1" in
	*.ko.xz) xz -dc "$1" > "$2/$(basename "$1" .xz)" ;;
	*.ko.zst) zstd -dcq "$1" > "$2/$(basename "$1" .zst)" ;;
	*) cp "$1" "$2/" ;;
	esac
}
