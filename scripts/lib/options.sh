# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The command line: options, and what a value must look like.

# Options with a value: the variable that gets it, the function that checks it, and the
# rest of that function's arguments
declare -A VALUE_OPTIONS=([append]="APPEND any_value" [arch]="ARCH need_arch"
	[base]="BASE need_value a kernel's name, a path, or a revision of --tree"
	[base-config]="BASE_CONFIG need_base_config" [config]="SET_CONFIG need_config" [count]="COUNT need_number"
	[debug]="DEBUG need_debug" [filter]="FILTER need_filter" [from]="FROM need_folder" [html]="HTML need_writable"
	[image]="IMAGE need_value a file or a Debian package"
	[jobs]="JOBS need_number" [json]="JSON need_writable" [junit]="JUNIT need_writable"
	[kcidb]="KCIDB need_kcidb" [kernel]="KERNEL need_value a name or a path" [localmod]="LOCALMOD need_lsmod"
	[markdown]="MARKDOWN need_writable" [minutes]="MINUTES need_number" [mode]="MODE need_mode"
	[modules]="MODULES_FROM need_folder" [only]="ONLY need_globs" [part]="PART need_part" [plots]="PLOTS need_plots"
	[profile]="PROFILE need_value WORKLOAD:CONFIG" [range]="RANGE need_range" [repeat]="REPEAT need_number"
	[series]="SERIES need_series" [set]="SET need_set" [size]="SIZE need_value numbers of MB" [skip]="SKIP need_globs"
	[svg]="SVG need_writable" [timeout]="TIMEOUT need_number" [tolerance]="TOLERANCE need_tolerance"
	[tree]="TREE need_folder")
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

need_accepted()
{
	case " $ACCEPTED " in
	*" $1 "*) ;;
	*) die "option --$1 does not apply to '$COMMAND${ACTION:+ $ACTION}'; see './run_tests.sh $COMMAND --help'" ;;
	esac
}

#
# need_* OPTION VALUE: dies if the value is not a valid one. May set VALUE to what the
# variable is to get instead.
#

any_value()
{
	:
}

# need_value OPTION VALUE WHAT
need_value()
{
	[ -n "$2" ] || die "$1 needs $3"
}

need_number()
{
	case "$2" in
	''|*[!0-9]*|0*) die "$1 needs a whole number from 1 up, not '$2'" ;;
	??????????*) die "$1 '$2' is too large" ;;
	esac
}

need_folder()
{
	[ -d "$2" ] || die "$1 '$2' is no folder"
	VALUE=$(realpath -- "$2")
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
	VALUE=$file
}

need_kcidb()
{
	need_writable "$@"
	[[ "${KCIDB_ORIGIN-x}" =~ ^[a-z0-9_]+$ ]] ||
		die "KCIDB_ORIGIN '$KCIDB_ORIGIN' may have lower-case letters, digits and _ only"
}

need_arch()
{
	[ -n "$2" ] && [[ " ${ARCHES[*]} " == *" $2 "* ]] ||
		die "$1 '$2' is not supported: ${ARCHES[*]}"
}

need_filter()
{
	[[ "$2" == *[![:space:]]* ]] || die "$1 needs a glob"
}

need_globs()
{
	[ -n "$2" ] || die "$1 needs globs, such as 'form-*,build-size'"
	VALUE="${!variable} ${2//,/ }"
}

# KEY=VALUE, once more
need_set()
{
	[[ "$2" != *$'\n'* ]] || die "$1 takes one KEY=VALUE; give it several times"
	[[ "$2" =~ ^[/a-z][A-Za-z0-9_./-]*=[^\']*$ ]] ||
		die "$1 '$2' is not KEY=VALUE, KEY a sysctl such as vm.swappiness or a file below /sys or /proc"
	[[ "$2" != /* ]] || [[ "$2" == /sys/* ]] || [[ "$2" == /proc/* ]] ||
		die "$1 '$2': the file is neither below /sys nor below /proc"
	VALUE=$SET$2$'\n'
}

# SYMBOL=VALUE, once more
need_config()
{
	[[ "$2" != *$'\n'* ]] || die "$1 takes one SYMBOL=VALUE; give it several times"
	[[ "$2" =~ ^[A-Z0-9][A-Za-z0-9_]*=(y|m|n|-?[0-9]+|0x[0-9a-fA-F]+|\"[^\"\']*\")$ ]] ||
		die "$1 '$2' is not SYMBOL=VALUE, such as MY_OPTION=y, MY_SIZE=16 or MY_NAME=\"text\""
	VALUE=$SET_CONFIG${2#CONFIG_}$'\n'
}

need_base_config()
{
	case "$2" in
	running|cloud) return ;;
	esac
	[ -f "$2" ] && [ -r "$2" ] || die "$1 '$2' is neither a file nor 'running' nor 'cloud'"
	VALUE=$(realpath -- "$2")
}

need_lsmod()
{
	[ -r "$2" ] && head -n 1 "$2" | grep -q '^Module ' ||
		die "$1 '$2' is not the output of lsmod in a file"
	VALUE=$(realpath -- "$2")
}

need_plots()
{
	[ -d "$2" ] && [ -w "$2" ] || die "$1 '$2' is no folder that can be written to"
	VALUE=$(realpath -- "$2")
}

need_series()
{
	[ "$2" != - ] || return 0
	[ -r "$2" ] || die "$1 '$2' is neither an mbox nor a folder of patches that can be read"
	VALUE=$(realpath -- "$2")
}

need_range()
{
	[[ "$2" =~ ^[^.](.*[^.])?\.\.[^.].*$ ]] || die "$1 '$2' is not A..B"
}

need_part()
{
	[[ "$2" =~ ^(engine|measurement)$ ]] || die "$1 '$2' is not known: engine or measurement"
}

need_mode()
{
	[[ "$2" =~ ^(icount|wall)$ ]] || die "$1 '$2' is not known: icount or wall"
}

need_tolerance()
{
	[[ "$2" =~ ^[0-9]{1,3}(\.[0-9]+)?$ ]] ||
		die "$1 needs per cent, such as 1 or 0.5, not '$2'"
}

need_debug()
{
	[ -f "$ROOT/fixtures/config/debug-$2.config" ] ||
		die "$1 '$2' is not known: kasan, kcsan or lockdep"
}

# check_debug_arch ARCH: these have no HAVE_ARCH_KCSAN
check_debug_arch()
{
	[ "$DEBUG" != kcsan ] || ! [[ "$1" =~ ^(um|i386)$ ]] ||
		die "--debug kcsan needs x86_64 or arm64, there is no KCSAN on $1${2-}"
}

#
# What a command is given
#

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
}

# parse_long_option OPTION [VALUE]: --NAME, --NAME VALUE or --NAME=VALUE. Status 1 if
# it took VALUE.
parse_long_option()
{
	local name=${1#--}
	name=${name%%=*}
	if [ -n "${VALUE_OPTIONS[$name]-}" ]; then
		need_accepted "$name"
		if [[ "$1" == *=* ]]; then
			set_option "$name" "${1#*=}"
			return 0
		fi
		[ $# -ge 2 ] || die "$1 needs a value"
		set_option "$name" "$2"
		return 1
	fi
	if [ "$1" = "--$name" ] && [ -n "${FLAG_OPTIONS[$name]-}" ]; then
		need_accepted "$name"
		printf -v "${FLAG_OPTIONS[$name]}" 1
		return 0
	fi
	unknown_option "$1"
}

# set_option NAME VALUE
set_option()
{
	local VALUE=$2 variable check what
	read -r variable check what <<< "${VALUE_OPTIONS[$1]}"
	"$check" "--$1" "$2" "$what"
	printf -v "$variable" %s "$VALUE"
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

no_arguments()
{
	[ ${#ARGS[@]} -eq 0 ] ||
		die "'$COMMAND' takes no argument '${ARGS[0]}'; see './run_tests.sh $COMMAND --help'"
}
