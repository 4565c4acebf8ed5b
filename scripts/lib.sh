# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What every command shares: messages, options, host packages, steps with
# progress, locks and cleaning up. Sourced first; sources the other libraries.

set -euo pipefail
export LC_ALL=C

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
BUILD=${COW_BUILD:-$ROOT/build}
COMMAND=${0##*/}

#
# What --arch knows, one table for each thing that differs. An architecture that
# is in none needs nothing of the kind: UML is a program of the host.
#

ARCHES=(um x86_64 arm64)
# make's target, and the file that is booted
declare -A ARCH_TARGET=([um]=linux [x86_64]=vmlinux [arm64]=Image)
declare -A ARCH_IMAGE=([um]=linux [x86_64]=vmlinux [arm64]=arch/arm64/boot/Image)
# e_machine of its programs, as elf.h has it
declare -A ARCH_ELF=([um]=62 [x86_64]=62 [arm64]=183)
declare -A ARCH_QEMU=([x86_64]=qemu-system-x86_64 [arm64]=qemu-system-aarch64)
# For one that is not the host's: the prefix of its compiler
declare -A ARCH_CROSS=([arm64]=aarch64-linux-gnu-)

# is_foreign: can the host not run the programs of ARCH?
is_foreign()
{
	[ -n "$ARCH" ] && [ -n "${ARCH_CROSS[$ARCH]-}" ]
}

E_FAIL=1
E_USAGE=2
E_SKIP=4

#
# Messages. Standard output is for results, standard error for the rest.
#

say()
{
	printf '%s\n' "$*" >&2
}

verbose()
{
	[ -z "${VERBOSE-}" ] || say "$@"
}

warn()
{
	say "$COMMAND: warning: $*"
}

die()
{
	say "$COMMAND: $1"
	shift
	local line
	for line; do
		say "  $line"
	done
	leave "$E_USAGE"
}

# sieve ARGUMENTS...: grep, for which it is no error to find nothing
sieve()
{
	grep "$@" || [ $? -eq 1 ]
}

is_terminal()
{
	[ -t 2 ] && [ "${TERM-dumb}" != dumb ]
}

#
# Leaving. Whatever a command leaves behind is registered with at_exit, so
# that Ctrl-C cleans up exactly as the normal end does. A command that ends
# by anything but leave() has hit a bug of this harness: that is status 2.
#

AT_EXIT=()
LEAVING=

at_exit()
{
	AT_EXIT+=("$*")
}

leave()
{
	LEAVING=1
	exit "$1"
}

on_exit()
{
	local status=$? i
	trap '' INT TERM HUP
	set +e
	for ((i = ${#AT_EXIT[@]} - 1; i >= 0; i--)); do
		eval "${AT_EXIT[i]}"
	done
	# Status 2 without leave() is a die() in a subshell: it has spoken; 141 is
	# a reader of ours that has seen enough.
	if [ -z "$LEAVING" ] && [ "$status" -ne 0 ] && [ "$status" -ne "$E_USAGE" ] &&
	   [ "$status" -ne 141 ]; then
		say "$COMMAND: stopped by an unexpected error (status $status)${LOGS:+; logs in $LOGS}"
		status=$E_USAGE
	fi
	exit "$status"
}

on_signal()
{
	say ""
	say "$COMMAND: interrupted"
	leave $((128 + $1))
}

trap on_exit EXIT
trap 'on_signal 1' HUP
trap 'on_signal 2' INT
trap 'on_signal 15' TERM

#
# Options. A command says which it takes; any other is an error, not noise.
#

KERNEL=
ARCH=
FILTER=
JOBS=$(nproc)
TIMEOUT=
JUNIT=
JSON=
APPEND=
DEBUG=
UNPATCHED=
INSTALL_DEPS=
VERBOSE=${VERBOSE-}
GDB=
BENCH=
ICOUNT=
MODE=
PROFILE=
QUICK=
TOLERANCE=
HTML=
PLOTS=
SVG=
COUNT=
SIZE=
REPEAT=
OBJECTS=
SERIES=
BASE=
TREE=
RANGE=
ONLY=
SKIP=
MARKDOWN=
LIST=
SELFTEST=
FRESH=
ARGS=()

common_options()
{
	cat <<-'END'
	  --kernel K      6.12 (default), 7.3, or the path of a kernel tree
	  --jobs N        parallel jobs of builds
	  --install-deps  install the host packages that are missing
	  -v              say more
	  -h, --help      this text
	END
}

takes()
{
	case " $ACCEPTED " in
	*" $1 "*) ;;
	*) die "option --$1 does not apply to '$COMMAND'; see './run_tests.sh $COMMAND --help'" ;;
	esac
}

need_number()
{
	case "$2" in
	''|*[!0-9]*|0*) die "$1 needs a whole number from 1 up, not '$2'" ;;
	esac
}

need_writable()
{
	local dir
	dir=$(dirname -- "$2")
	if ! [ -d "$dir" ] || ! [ -w "$dir" ] || [ -d "$2" ]; then
		die "$1 '$2' cannot be written: give a file in a folder that exists"
	fi
}

# parse_options ACCEPTED... -- "$@"
# What is not an option ends up in ARGS. A command that passes unknown options
# on sets PASS_UNKNOWN.
parse_options()
{
	ACCEPTED="kernel jobs install-deps verbose"
	while [ "$1" != -- ]; do
		ACCEPTED+=" $1"
		shift
	done
	shift
	local name value
	while [ $# -gt 0 ]; do
		name=$1
		value=
		case "$name" in
		--kernel=*|--arch=*|--filter=*|--jobs=*|--timeout=*|--junit=*|--json=*|--append=*|--debug=*|--mode=*|--tolerance=*|--html=*|--profile=*|--plots=*|--svg=*|--count=*|--size=*|--repeat=*|--minutes=*|--series=*|--base=*|--tree=*|--range=*|--only=*|--skip=*|--markdown=*)
			value=${name#*=}
			name=${name%%=*}
			shift
			set -- "$name" "$value" "$@" ;;
		esac
		case "$name" in
		--kernel|--arch|--filter|--jobs|--timeout|--junit|--json|--append|--debug|--mode|--tolerance|--html|--profile|--plots|--svg|--count|--size|--repeat|--minutes|--series|--base|--tree|--range|--only|--skip|--markdown)
			takes "${name#--}"
			[ $# -ge 2 ] || die "$name needs a value"
			value=$2
			set_option "$name" "$value"
			shift 2 ;;
		--unpatched)
			takes unpatched
			UNPATCHED=1
			shift ;;
		--gdb)
			takes gdb
			GDB=1
			shift ;;
		--bench)
			takes bench
			BENCH=1
			shift ;;
		--icount)
			takes icount
			ICOUNT=1
			shift ;;
		--quick)
			takes quick
			QUICK=1
			shift ;;
		--objects)
			takes objects
			OBJECTS=1
			shift ;;
		--list)
			takes list
			LIST=1
			shift ;;
		--fresh)
			takes fresh
			FRESH=1
			shift ;;
		--selftest)
			takes selftest
			SELFTEST=1
			shift ;;
		--compare|--check|--record)
			# the command has looked which
			takes "${name#--}"
			shift ;;
		--install-deps)
			INSTALL_DEPS=1
			shift ;;
		-v|--verbose)
			VERBOSE=1
			shift ;;
		-h|--help)
			usage
			leave 0 ;;
		--)
			shift
			ARGS+=("$@")
			break ;;
		-*)
			[ -n "${PASS_UNKNOWN-}" ] ||
				die "unknown option '$name'; see './run_tests.sh $COMMAND --help'"
			ARGS+=("$name")
			shift ;;
		*)
			ARGS+=("$name")
			shift ;;
		esac
	done
	export VERBOSE
	[ "${CI-}" != true ] || [ "$(id -u)" -ne 0 ] || INSTALL_DEPS=1
}

set_option()
{
	case "$1" in
	--kernel)
		[ -n "$2" ] || die "--kernel needs a name or a path"
		KERNEL=$2 ;;
	--arch)
		[ -n "$2" ] && [ -n "${ARCH_TARGET[$2]-}" ] ||
			die "--arch '$2' is not supported: ${ARCHES[*]}"
		ARCH=$2 ;;
	--filter)
		[ -n "$2" ] || die "--filter needs a glob"
		FILTER=$2 ;;
	--jobs)
		need_number "$1" "$2"
		JOBS=$2 ;;
	--timeout)
		need_number "$1" "$2"
		TIMEOUT=$2 ;;
	--junit)
		need_writable "$1" "$2"
		JUNIT=$(realpath -- "$2") ;;
	--json)
		need_writable "$1" "$2"
		JSON=$(realpath -- "$2") ;;
	--html)
		need_writable "$1" "$2"
		HTML=$(realpath -- "$2") ;;
	--plots)
		[ -d "$2" ] && [ -w "$2" ] || die "--plots '$2' is no folder that can be written to"
		PLOTS=$(realpath -- "$2") ;;
	--profile)
		[ -n "$2" ] || die "--profile needs WORKLOAD:CONFIG"
		PROFILE=$2 ;;
	--svg)
		need_writable "$1" "$2"
		SVG=$(realpath -- "$2") ;;
	--count)
		need_number "$1" "$2"
		COUNT=$2 ;;
	--size)
		SIZE=$2 ;;
	--repeat)
		need_number "$1" "$2"
		REPEAT=$2 ;;
	--minutes)
		need_number "$1" "$2"
		MINUTES=$2 ;;
	--series)
		[ -r "$2" ] || die "--series '$2' is neither an mbox nor a folder of patches that can be read"
		SERIES=$(realpath -- "$2") ;;
	--tree)
		[ -d "$2" ] || die "--tree '$2' is no folder"
		TREE=$(realpath -- "$2") ;;
	--base)
		[ -n "$2" ] || die "--base needs a kernel's name, a path, or a revision of --tree"
		BASE=$2 ;;
	--range)
		[[ "$2" =~ ^[^.](.*[^.])?\.\.[^.].*$ ]] || die "--range '$2' is not A..B"
		RANGE=$2 ;;
	--only)
		ONLY+=" ${2//,/ }" ;;
	--skip)
		SKIP+=" ${2//,/ }" ;;
	--markdown)
		need_writable "$1" "$2"
		MARKDOWN=$(realpath -- "$2") ;;
	--mode)
		case "$2" in
		icount|wall) MODE=$2 ;;
		*) die "--mode '$2' is not known: icount or wall" ;;
		esac ;;
	--tolerance)
		[[ "$2" =~ ^[0-9]{1,3}(\.[0-9]+)?$ ]] ||
			die "--tolerance needs per cent, such as 1 or 0.5, not '$2'"
		TOLERANCE=$2 ;;
	--append)
		APPEND=$2 ;;
	--debug)
		[ -f "$ROOT/fixtures/config/debug-$2.config" ] ||
			die "--debug '$2' is not known: kasan, kcsan or lockdep"
		DEBUG=$2 ;;
	esac
}

no_arguments()
{
	[ ${#ARGS[@]} -eq 0 ] ||
		die "'$COMMAND' takes no argument '${ARGS[0]}'; see './run_tests.sh $COMMAND --help'"
}

#
# Host packages: the one list. A program, or a file, stands for its package.
#

# What one command needs besides, as lines of the same form
MORE_PACKAGES=

host_packages()
{
	[ -z "$MORE_PACKAGES" ] || printf '%s\n' "$MORE_PACKAGES"
	arch_packages "$ARCH"
	cat <<-'END'
	gcc		build-essential
	make		build-essential
	flex		flex
	bison		bison
	bc		bc
	perl		perl
	python3		python3
	git		git
	rsync		rsync
	cpio		cpio
	xz		xz-utils
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

#
# Logs: one folder for each invocation; a nested command logs below its caller.
#

LOGS=

open_logs()
{
	[ -z "$LOGS" ] || return 0
	if [ -n "${COW_LOGS-}" ]; then
		LOGS=$(mktemp -d "$COW_LOGS/$COMMAND.XXX")
	else
		mkdir -p "$BUILD/logs"
		drop_old_logs
		LOGS=$(mktemp -d "$BUILD/logs/$(date +%m%d-%H%M%S)-$COMMAND.XXX")
	fi
	export COW_LOGS=$LOGS
}

drop_old_logs()
{
	local dir
	find "$BUILD/logs" -mindepth 1 -maxdepth 1 -type d -mmin +60 | sort -r | tail -n +30 |
	while read -r dir; do
		rm -rf "$dir"
	done
}

show_tail()
{
	local log=$1 lines=${2:-15}
	[ -s "$log" ] || return 0
	say "last lines of $log:"
	tail -n "$lines" "$log" | tr -d '\r' | sed 's/^/  | /' >&2
}

# say_room MB: says it if there is less room for what we build. A full disk takes
# the messages of what fails by it, too: logs are empty.
say_room()
{
	local left
	left=$(room "$BUILD")
	[ "$left" -ge "$1" ] || say "only $left MB are free for $BUILD"
}

# room DIR: MB, on the disk that holds it
room()
{
	df -Pm -- "$1" | awk 'END { print $4 }'
}

#
# Steps: what takes long says what it does and for how long, on a terminal in
# one line that counts up, elsewhere in plain lines. The output goes to a log.
#

TICKER=

start_ticker()
{
	TICKER=
	is_terminal || return 0
	(
		trap '' INT
		trap 'exit 0' TERM
		while sleep 1; do
			printf '\r%s ... %ds ' "$1" $((SECONDS - $2)) >&2
		done
	) &
	TICKER=$!
}

stop_ticker()
{
	[ -n "$TICKER" ] || return 0
	kill "$TICKER" 2> /dev/null || true
	wait "$TICKER" 2> /dev/null || true
	TICKER=
	printf '\r\033[K' >&2
}

# step WHAT LOG COMMAND...: returns the command's status
step()
{
	local what=$1 log=$2 start=$SECONDS status=0
	shift 2
	open_logs
	case "$log" in
	/*) ;;
	*) log=$LOGS/$log ;;
	esac
	is_terminal || [ -n "${QUIET-}" ] || say "$what ..."
	start_ticker "$what" "$start"
	if [ -n "$VERBOSE" ]; then
		"$@" < /dev/null 2>&1 | tee -a "$log" >&2 || status=$?
	else
		"$@" < /dev/null >> "$log" 2>&1 || status=$?
	fi
	stop_ticker
	if [ -n "${QUIET-}" ]; then
		:
	elif [ "$status" -ne 0 ]; then
		say "$what: failed after $((SECONDS - start))s; log: $log"
		show_tail "$log"
		say_room 100
	elif is_terminal || [ $((SECONDS - start)) -ge 5 ]; then
		say "$what: $((SECONDS - start))s"
	fi
	return "$status"
}

at_exit stop_ticker

#
# Locks: several runs may share build/. A lock is held by an open file, so one
# whose holder was killed is free again.
#

declare -A LOCKS=()

lock()
{
	local name=$1 fd
	mkdir -p "$BUILD/locks"
	exec {fd}> "$BUILD/locks/$name"
	if ! flock -n "$fd"; then
		say "waiting for another run that uses $name ..."
		flock "$fd"
	fi
	LOCKS[$name]=$fd
}

unlock()
{
	local fd=${LOCKS[$1]}
	unset "LOCKS[$1]"
	exec {fd}>&-
}

# A folder of our own that is gone at the end.
scratch()
{
	mkdir -p "$BUILD/tmp"
	SCRATCH=$(mktemp -d "$BUILD/tmp/$COMMAND.XXXXXX")
	at_exit "rm -rf '$SCRATCH'"
}

hash_files()
{
	sha256sum -- "$@" | sha256sum | cut -c1-16
}

# shellcheck source=scripts/lib-kernel.sh
. "$ROOT/scripts/lib-kernel.sh"
# shellcheck source=scripts/lib-build.sh
. "$ROOT/scripts/lib-build.sh"
# shellcheck source=scripts/lib-guest.sh
. "$ROOT/scripts/lib-guest.sh"
# shellcheck source=scripts/lib-results.sh
. "$ROOT/scripts/lib-results.sh"
