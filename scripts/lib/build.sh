# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Kernel builds: allnoconfig plus fragments, out of tree, with ccache when it
# is there. An output folder is beside its tree (DIR/tree, DIR/x86_64), so that
# relative paths, and with them ccache's keys, are the same for all trees.

unset MAKEFLAGS MAKELEVEL MAKEOVERRIDES KBUILD_OUTPUT CROSS_COMPILE CFLAGS LDFLAGS

use_ccache()
{
	command -v ccache > /dev/null || return 1
	export CCACHE_BASEDIR=$BUILD CCACHE_NOHASHDIR=1
	export CCACHE_IGNOREOPTIONS='-fmacro-prefix-map=* -ffile-prefix-map=*'
	export CCACHE_SLOPPINESS=time_macros,locale
}

# make_flags [ARCH]: sets MAKE_FLAGS, what every make of the kernel's gets
make_flags()
{
	local ccache='' cross=${ARCH_CROSS[${1:-um}]-}
	! use_ccache || ccache="$ROOT/scripts/lib/ccache-compiler "
	export KBUILD_BUILD_TIMESTAMP='Sat Jan  1 00:00:00 UTC 2000'
	export KBUILD_BUILD_USER=cow KBUILD_BUILD_HOST=cow KBUILD_BUILD_VERSION=1
	MAKE_FLAGS=(CC="$ccache${cross}gcc" HOSTCC="${ccache}gcc" LOCALVERSION=)
	[ -z "$cross" ] || MAKE_FLAGS+=("CROSS_COMPILE=$cross")
}

# with_low_priority COMMAND...: guests come first. Where they have no real-time priority,
# only when nothing else wants the CPU: beside a compiler at nice 10, too, they are slow.
with_low_priority()
{
	if guests_have_realtime; then
		nice "$@"
	else
		chrt --idle 0 "$@"
	fi
}

# kmake TREE OUT ARCH TARGET...
kmake()
{
	local tree=$1 out=$2 arch=$3
	shift 3
	with_low_priority make -s -C "$tree" O="$out" ARCH="$arch" "${MAKE_FLAGS[@]}" -j"$JOBS" "$@"
}

# guest_fragments ARCH: what the tests need of any kernel
guest_fragments()
{
	echo "$ROOT/fixtures/config/common.config"
	[ "$1" = um ] || echo "$ROOT/fixtures/config/qemu.config"
	echo "$ROOT/fixtures/config/$1.config"
}

# fragments ARCH: the files whose options make up the configuration
fragments()
{
	local config=$ROOT/fixtures/config
	guest_fragments "$1"
	[ -z "$DEBUG" ] || echo "$config/debug-$DEBUG.config"
	[ -z "$BENCH" ] || echo "$config/bench.config"
	[ -z "$BENCH" ] || [ ! -f "$config/bench-$1.config" ] || echo "$config/bench-$1.config"
	[ -z "$BENCH_KVM" ] || echo "$config/bench-kvm.config"
	[ -z "$OPTIONS_OFF" ] || echo "$config/production.config"
	[ -n "$UNPATCHED$OPTIONS_OFF" ] || ! tree_has_series || echo "$ROOT/Kconfig.fragment"
	[ -n "$UNPATCHED" ] || [ -z "${RIVAL_FRAGMENT-}" ] || echo "$RIVAL_FRAGMENT"
}

# tree_has_series: whether K_TREE has the options of Kconfig.fragment. A caller that
# already knows sets HAS_SERIES to yes or no.
HAS_SERIES=

tree_has_series()
{
	[ -z "$HAS_SERIES" ] || { [ "$HAS_SERIES" = yes ]; return; }
	[ -n "$(series_patches "$(series_of "$K_TREE")")" ]
}

out_name()
{
	echo "$1${DEBUG:+-$DEBUG}${BENCH:+-bench}${BENCH_KVM:+-kvm}${OPTIONS_OFF:+-off}"
}

# configure TREE OUT ARCH: writes OUT/.config when what it depends on changed
configure()
{
	local tree=$1 out=$2 arch=$3 state files
	mapfile -t files < <(fragments "$arch")
	state=$({
		cat "${files[@]}"
		kgit -C "$tree" rev-parse HEAD
		kgit -C "$tree" diff HEAD -- '*Kconfig*'
	} | sha256sum)
	if [ -f "$out/.config" ] && [ "$state" = "$(cat "$out/config.state" 2> /dev/null)" ]; then
		return 0
	fi
	rm -f "$out/config.state"
	step "configuring $(out_label "$out")" build.log \
		merge_fragments "$tree" "$out" "$arch" "${files[@]}" ||
		die "the kernel could not be configured"
	check_config "$out/.config" "${files[@]}"
	echo "$state" > "$out/config.state"
}

out_label()
{
	echo "${1#"$BUILD"/}"
}

merge_fragments()
{
	local tree=$1 out=$2 arch=$3 merged=$2/fragments
	shift 3
	sed 's/[[:space:]]*# optional.*//' "$1" > "$out/fragment.first" &&
	sed 's/[[:space:]]*# optional.*//' "${@:2}" > "$out/fragment.rest" &&
	( cd "$out" && KCONFIG_CONFIG=$merged bash "$tree/scripts/kconfig/merge_config.sh" \
		-m -Q fragment.first fragment.rest ) &&
	kmake "$tree" "$out" "$arch" KCONFIG_ALLCONFIG="$merged" allnoconfig
}

# check_config CONFIG FRAGMENT...: every option that was asked for is there
check_config()
{
	local config=$1 lost
	shift
	lost=$(awk '
		function symbol(line) {
			sub(/^# /, "", line)
			sub(/[= ].*/, "", line)
			return line
		}
		FNR == NR {
			if (/^CONFIG_/ || /^# CONFIG_.* is not set$/)
				have[symbol($0)] = $0
			next
		}
		/^CONFIG_/ || /^# CONFIG_.* is not set$/ {
			name = symbol($0)
			optional[name] = /# optional/
			sub(/[ \t]*# optional.*/, "")
			want[name] = $0
		}
		END {
			for (name in want) {
				got = name in have ? have[name] : "# " name " is not set"
				if (got != want[name] && !optional[name])
					print "wanted " want[name] ", got " got
			}
		}' "$config" "$@" | sort)
	[ -z "$lost" ] || die "options that the kernel's Kconfig did not accept:" "$lost"
}

# build_kernel ARCH [BASE]: sets OUT and KERNEL_IMAGE. BASE is the folder that
# holds tree/ (default: the prepared or the unpatched one).
build_kernel()
{
	local arch=$1 base=${2-} status=0
	[ -n "$base" ] || base=$(dirname "$(source_tree)")
	OUT=$base/$(out_name "$arch")
	KERNEL_IMAGE=$OUT/${ARCH_IMAGE[$arch]}
	make_flags "$arch"
	mkdir -p "$OUT"
	lock "$(out_label "$OUT" | tr / -)"
	configure "$base/tree" "$OUT" "$arch"
	step "building $(out_label "$OUT")" build.log \
		kmake "$base/tree" "$OUT" "$arch" "${ARCH_TARGET[$arch]}" || status=$?
	unlock "$(out_label "$OUT" | tr / -)"
	[ "$status" -eq 0 ] || show_errors "$LOGS/build.log"
	return "$status"
}

need_kernel()
{
	build_kernel "$@" || die "the kernel does not build; log: $LOGS/build.log"
}

show_errors()
{
	grep -m 5 -n -E '(error|Error|undefined reference|\*\*\*)' "$1" | sed 's/^/  | /' >&2 || true
}
