# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The command line: options, and what a value must look like.

# Options with a value, each handled by set_option
VALUE_OPTIONS="kernel arch filter jobs timeout junit json append debug mode tolerance html profile
	plots svg count size repeat minutes series base tree range only skip markdown from image kcidb base-config localmod set config modules part"
# Options without one: the variable that each sets to 1
declare -A FLAG_OPTIONS=([unpatched]=UNPATCHED [gdb]=GDB [bench]=BENCH [icount]=ICOUNT
	[quick]=QUICK [list]=LIST [fresh]=FRESH [no-verdict]=NO_VERDICT [selftest]=SELFTEST
	[all]=ALL [changed]=CHANGED [compare]=COMPARE [check]=CHECK [record]=RECORD [debug-info]=DEBUG_INFO)

JOBS=$(nproc)
VERBOSE=${VERBOSE-}
KERNEL=
ARCH=
FILTER=
# Of 'bench': cost, kvm and so on
ACTION=
TIMEOUT=
JUNIT=
JSON=
APPEND=
DEBUG=
UNPATCHED=
OPTIONS_OFF=
INSTALL_DEPS=
GDB=
BENCH=
BENCH_KVM=
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
SERIES=
BASE=
TREE=
RANGE=
PART=
ONLY=
SKIP=
MARKDOWN=
LIST=
SELFTEST=
FRESH=
NO_VERDICT=
ALL=
CHANGED=
COMPARE=
CHECK=
RECORD=
MINUTES=
FROM=
IMAGE=
MODULES_FROM=
RELEASE=
KCIDB=
BASE_CONFIG=
LOCALMOD=
DEBUG_INFO=
SET=
SET_CONFIG=
APPEND_ON=
# The option of each file that a run writes for its user
declare -A REPORT_FILES=()
ARGS=()

# For the help of commands. All commands take these options, so that scripts can give them
# to any; one that has no use for some names only the others.
common_options()
{
	cat <<-'END'
	  --kernel K      6.12 (default), 7.3, or the path of a kernel tree
	  --jobs N        parallel jobs of builds
	  --install-deps  install the host packages that are missing
	  -v              say more
	END
	help_option
}

help_option()
{
	echo '  -h, --help      this text'
}

takes()
{
	case " $ACCEPTED " in
	*" $1 "*) ;;
	*) die "option --$1 does not apply to '$COMMAND${ACTION:+ $ACTION}'; see './run_tests.sh $COMMAND --help'" ;;
	esac
}

need_number()
{
	case "$2" in
	''|*[!0-9]*|0*) die "$1 needs a whole number from 1 up, not '$2'" ;;
	??????????*) die "$1 '$2' is too large" ;;
	esac
}

need_writable()
{
	local file
	[ -n "$2" ] || die "$1 needs a file"
	file=$(realpath -s -- "$2")
	if [ -e "$2" ]; then
		[ ! -d "$2" ] && [ -w "$2" ] || die "$1 '$2' cannot be written: give another file"
	elif ! [ -d "${file%/*}/" ] || ! [ -w "${file%/*}/" ]; then
		die "$1 '$2' cannot be written: give a file in a folder that exists"
	fi
	[[ "$file" == /dev/* ]] || [ "${REPORT_FILES[$file]-$1}" = "$1" ] ||
		die "$1 '$2': ${REPORT_FILES[$file]} goes to that file already"
	REPORT_FILES[$file]=$1
}

# need_set WHO KEY=VALUE
need_set()
{
	[[ "$2" != *$'\n'* ]] || die "$1 takes one KEY=VALUE; give it several times"
	[[ "$2" =~ ^[/a-z][A-Za-z0-9_./-]*=[^\']*$ ]] ||
		die "$1 '$2' is not KEY=VALUE, KEY a sysctl such as vm.swappiness or a file below /sys or /proc"
	[[ "$2" != /* ]] || [[ "$2" == /sys/* ]] || [[ "$2" == /proc/* ]] ||
		die "$1 '$2': the file is neither below /sys nor below /proc"
}

# need_config WHO SYMBOL=VALUE
need_config()
{
	[[ "$2" != *$'\n'* ]] || die "$1 takes one SYMBOL=VALUE; give it several times"
	[[ "$2" =~ ^[A-Z0-9][A-Za-z0-9_]*=(y|m|n|-?[0-9]+|0x[0-9a-fA-F]+|\"[^\"\']*\")$ ]] ||
		die "$1 '$2' is not SYMBOL=VALUE, such as MY_OPTION=y, MY_SIZE=16 or MY_NAME=\"text\""
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
	while [ $# -gt 0 ]; do
		case "$1" in
		--install-deps)
			INSTALL_DEPS=1 ;;
		-v|--verbose)
			VERBOSE=1 ;;
		-h|--help)
			usage
			leave 0 ;;
		--)
			shift
			ARGS+=("$@")
			break ;;
		--*)
			parse_long_option "$@" || shift ;;
		-*)
			unknown_option "$1" ;;
		*)
			ARGS+=("$1") ;;
		esac
		shift
	done
	export VERBOSE
	[ "${CI-}" != true ] || [ "$(id -u)" -ne 0 ] || INSTALL_DEPS=1
}

# parse_long_option OPTION [VALUE]: --NAME, --NAME VALUE or --NAME=VALUE. Status 1 if
# it took VALUE.
parse_long_option()
{
	local name=${1#--}
	name=${name%%=*}
	if [[ " ${VALUE_OPTIONS//[[:space:]]/ } " == *" $name "* ]]; then
		takes "$name"
		if [[ "$1" == *=* ]]; then
			set_option "--$name" "${1#*=}"
			return 0
		fi
		[ $# -ge 2 ] || die "$1 needs a value"
		set_option "--$name" "$2"
		return 1
	fi
	if [ "$1" = "--$name" ] && [ -n "${FLAG_OPTIONS[$name]-}" ]; then
		takes "$name"
		printf -v "${FLAG_OPTIONS[$name]}" 1
		return 0
	fi
	unknown_option "$1"
}

unknown_option()
{
	[ -n "${PASS_UNKNOWN-}" ] ||
		die "unknown option '$1'; see './run_tests.sh $COMMAND --help'"
	ARGS+=("$1")
}

# matches NAME GLOBS: whether the name matches one of the words
matches()
{
	local glob status=1
	set -f
	for glob in $2; do
		# shellcheck disable=SC2254 # a glob on purpose
		case "$1" in
		$glob) status=0 ;;
		esac
	done
	set +f
	return "$status"
}

# chosen_by_filter NAME: whether --filter, one or more globs, has it; without all are
chosen_by_filter()
{
	[ -z "$FILTER" ] || matches "$1" "$FILTER"
}

set_option()
{
	case "$1" in
	--kernel)
		[ -n "$2" ] || die "--kernel needs a name or a path"
		KERNEL=$2 ;;
	--arch)
		[ -n "$2" ] && [[ " ${ARCHES[*]} " == *" $2 "* ]] ||
			die "--arch '$2' is not supported: ${ARCHES[*]}"
		ARCH=$2 ;;
	--filter)
		[[ "$2" == *[![:space:]]* ]] || die "--filter needs a glob"
		FILTER=$2 ;;
	--jobs)
		need_number "$1" "$2"
		JOBS=$2 ;;
	--timeout)
		need_number "$1" "$2"
		TIMEOUT=$2 ;;
	--junit)
		need_writable "$1" "$2"
		JUNIT=$(realpath -s -- "$2") ;;
	--json)
		need_writable "$1" "$2"
		JSON=$(realpath -s -- "$2") ;;
	--base-config)
		case "$2" in
		running|cloud) BASE_CONFIG=$2 ;;
		*)
			[ -f "$2" ] && [ -r "$2" ] || die "--base-config '$2' is neither a file nor 'running' nor 'cloud'"
			BASE_CONFIG=$(realpath -- "$2") ;;
		esac ;;
	--localmod)
		[ -r "$2" ] && head -n 1 "$2" | grep -q '^Module ' ||
			die "--localmod '$2' is not the output of lsmod in a file"
		LOCALMOD=$(realpath -- "$2") ;;
	--set)
		need_set "$1" "$2"
		SET+=$2$'\n' ;;
	--config)
		need_config "$1" "$2"
		SET_CONFIG+=${2#CONFIG_}$'\n' ;;
	--kcidb)
		need_writable "$1" "$2"
		[[ "${KCIDB_ORIGIN-x}" =~ ^[a-z0-9_]+$ ]] ||
			die "KCIDB_ORIGIN '$KCIDB_ORIGIN' may have lower-case letters, digits and _ only"
		KCIDB=$(realpath -s -- "$2") ;;
	--html)
		need_writable "$1" "$2"
		HTML=$(realpath -s -- "$2") ;;
	--plots)
		[ -d "$2" ] && [ -w "$2" ] || die "--plots '$2' is no folder that can be written to"
		PLOTS=$(realpath -- "$2") ;;
	--profile)
		[ -n "$2" ] || die "--profile needs WORKLOAD:CONFIG"
		PROFILE=$2 ;;
	--svg)
		need_writable "$1" "$2"
		SVG=$(realpath -s -- "$2") ;;
	--count)
		need_number "$1" "$2"
		COUNT=$2 ;;
	--size)
		[ -n "$2" ] || die "--size needs numbers of MB"
		SIZE=$2 ;;
	--repeat)
		need_number "$1" "$2"
		REPEAT=$2 ;;
	--minutes)
		need_number "$1" "$2"
		MINUTES=$2 ;;
	--series)
		[ "$2" != - ] || { SERIES=-; return; }
		[ -r "$2" ] || die "--series '$2' is neither an mbox nor a folder of patches that can be read"
		SERIES=$(realpath -- "$2") ;;
	--tree)
		[ -d "$2" ] || die "--tree '$2' is no folder"
		TREE=$(realpath -- "$2") ;;
	--image)
		[ -n "$2" ] || die "--image needs a file or a Debian package"
		IMAGE=$2 ;;
	--modules)
		[ -d "$2" ] || die "--modules '$2' is no folder"
		MODULES_FROM=$(realpath -- "$2") ;;
	--from)
		[ -d "$2" ] || die "--from '$2' is no folder"
		FROM=$(realpath -- "$2") ;;
	--base)
		[ -n "$2" ] || die "--base needs a kernel's name, a path, or a revision of --tree"
		BASE=$2 ;;
	--range)
		[[ "$2" =~ ^[^.](.*[^.])?\.\.[^.].*$ ]] || die "--range '$2' is not A..B"
		RANGE=$2 ;;
	--part)
		case "$2" in
		engine|measurement) PART=$2 ;;
		*) die "--part '$2' is not known: engine or measurement" ;;
		esac ;;
	--only|--skip)
		[ -n "$2" ] || die "$1 needs globs, such as 'form-*,build-size'"
		;;&
	--only)
		ONLY+=" ${2//,/ }" ;;
	--skip)
		SKIP+=" ${2//,/ }" ;;
	--markdown)
		need_writable "$1" "$2"
		MARKDOWN=$(realpath -s -- "$2") ;;
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
