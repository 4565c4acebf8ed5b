# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What every command shares: messages, the exit status, logs, steps with
# progress, and locks. Sourced first; sources the other libraries.

set -euo pipefail
export LC_ALL=C
# Where Debian has depmod and modprobe; an ordinary user's PATH lacks it.
export PATH=$PATH:/usr/sbin:/sbin
# What Python compiles would change the hashes of scripts/ (see hash.sh).
export PYTHONDONTWRITEBYTECODE=1
# A git hook sets these, and git would work on the user's repository.
unset CDPATH GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_PREFIX GIT_NAMESPACE \
	GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_QUARANTINE_PATH

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
BUILD=$(realpath -m -- "${COW_BUILD:-$ROOT/build}")
COMMAND=${0##*/}
STARTED=$(date +%s)
# Debian's: what is first in PATH may be a version manager's script, which starts twenty
# processes at each call
PYTHON=/usr/bin/python3

#
# The architectures of --arch, and what differs between them. UML is a program of the
# host and has no entry for QEMU or a cross compiler.
#

ARCHES=(um x86_64 arm64)
# With PAE, a PTE of i386 is longer than an unsigned long.
KUNIT_ARCHES=("${ARCHES[@]}" i386)
# make's target, and the file that is booted
declare -A ARCH_TARGET=([um]=linux [x86_64]=vmlinux [arm64]=Image)
declare -A ARCH_IMAGE=([um]=linux [x86_64]=vmlinux [arm64]=arch/arm64/boot/Image)
# e_machine of its programs, as elf.h has it
declare -A ARCH_ELF=([um]=62 [x86_64]=62 [arm64]=183)
declare -A ARCH_QEMU=([x86_64]=qemu-system-x86_64 [arm64]=qemu-system-aarch64 [i386]=qemu-system-i386)
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

say_warning()
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

# grep_any ARGUMENTS...: grep; no match is not an error
grep_any()
{
	grep "$@" || [ $? -eq 1 ]
}

is_terminal()
{
	[ -t 2 ] && [ "${TERM-dumb}" != dumb ]
}

#
# Exit. What has to be cleaned up is registered with at_exit, so that Ctrl-C cleans
# up as the normal end does. A command that ends without leave() has hit a bug of
# this harness: status 2.
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
	# Status 2 without leave() is a die() in a subshell: already reported; 141 is
	# SIGPIPE.
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
# Logs: one folder for each invocation; a nested command logs below its caller.
#

LOGS=

open_logs()
{
	[ -z "$LOGS" ] || return 0
	use_build
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
	find "$BUILD/logs" -mindepth 1 -maxdepth 1 -type d -mmin +60 -printf '%T@ %p\n' |
	sort -rn | tail -n +30 | cut -d ' ' -f 2- |
	while read -r dir; do
		# a run of hours writes to files in it
		[ -n "$(find "$dir" -type f -mmin -60 -print -quit)" ] || rm -rf "$dir"
	done
}

show_tail()
{
	local log=$1 lines=${2:-15}
	[ -s "$log" ] || return 0
	say "last lines of $log:"
	tail -n "$lines" "$log" | tr -d '\r' | sed 's/^/  | /' >&2
}

# say_room MB: warns if less disk space is left. On a full disk the logs are empty, so
# that nothing else would name the cause.
say_room()
{
	local left
	left=$(room "$BUILD")
	[ "$left" -ge "$1" ] || say "only $left MB are free for $BUILD"
}

# room DIR: the free space on its disk, in MB
room()
{
	df -Pm -- "$1" | awk 'END { print $4 }'
}

#
# Steps: what takes long shows progress, on a terminal as a line with the elapsed time,
# elsewhere as plain lines. The output goes to a log.
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
# Locks: several runs may share build/. A lock is held by an open file: the kernel
# releases it when its holder is killed.
#

declare -A LOCKS=()

lock()
{
	local name=$1 fd
	use_build
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

IN_USE=

# refuse_foreign_build: 'clean' removes all that is in a folder that was given as COW_BUILD
refuse_foreign_build()
{
	[ -z "${COW_BUILD-}" ] || [ -d "$BUILD/locks" ] || [ -z "$(ls -A "$BUILD" 2> /dev/null)" ] ||
		die "COW_BUILD: '$BUILD' holds files of others; give a new or an empty folder"
}

# use_build: build/ must not be removed until this run, and all that it has started, are
# over. A run that removes it removes the lock's file, too.
use_build()
{
	local fd
	[ "$IN_USE" != "$BUILD" ] || return 0
	refuse_foreign_build
	while :; do
		mkdir -p "$BUILD/locks"
		exec {fd}> "$BUILD/locks/in-use"
		flock -s "$fd"
		[ ! "/proc/self/fd/$fd" -ef "$BUILD/locks/in-use" ] || break
		exec {fd}>&-
	done
	IN_USE=$BUILD
}

# use_build_alone: dies if another run uses build/
use_build_alone()
{
	local fd
	refuse_foreign_build
	mkdir -p "$BUILD/locks"
	exec {fd}> "$BUILD/locks/in-use"
	flock -n "$fd" || die "another run uses $BUILD: wait until it is over, or end it"
}

# A folder of our own that is gone at the end.
scratch()
{
	use_build
	mkdir -p "$BUILD/tmp"
	SCRATCH=$(mktemp -d "$BUILD/tmp/$COMMAND.XXXXXX")
	at_exit "rm -rf '$SCRATCH'"
}

# shellcheck source=scripts/lib/options.sh
. "$ROOT/scripts/lib/options.sh"
# shellcheck source=scripts/lib/packages.sh
. "$ROOT/scripts/lib/packages.sh"
# shellcheck source=scripts/lib/kernels.sh
. "$ROOT/scripts/lib/kernels.sh"
# shellcheck source=scripts/lib/apt.sh
. "$ROOT/scripts/lib/apt.sh"
# shellcheck source=scripts/lib/source.sh
. "$ROOT/scripts/lib/source.sh"
# shellcheck source=scripts/lib/commits.sh
. "$ROOT/scripts/lib/commits.sh"
# shellcheck source=scripts/lib/tree.sh
. "$ROOT/scripts/lib/tree.sh"
# shellcheck source=scripts/lib/realtime.sh
. "$ROOT/scripts/lib/realtime.sh"
# shellcheck source=scripts/lib/build.sh
. "$ROOT/scripts/lib/build.sh"
# shellcheck source=scripts/lib/initramfs.sh
. "$ROOT/scripts/lib/initramfs.sh"
# shellcheck source=scripts/lib/image.sh
. "$ROOT/scripts/lib/image.sh"
# shellcheck source=scripts/lib/qemu.sh
. "$ROOT/scripts/lib/qemu.sh"
# shellcheck source=scripts/lib/guest.sh
. "$ROOT/scripts/lib/guest.sh"
# shellcheck source=scripts/lib/results.sh
. "$ROOT/scripts/lib/results.sh"
