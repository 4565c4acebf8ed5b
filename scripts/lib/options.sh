# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The command line: options, and what a value must look like.

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
