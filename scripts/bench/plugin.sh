# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# bench --profile: the instructions of a benchmark's measured part by kernel
# function. A QEMU plugin counts them. The guest's clock counts instructions too,
# and the two must agree. See insn.py for the files and the tables.
#
# Needs bench.sh.

# Allowed difference between the plugin's total and the guest's clock, in per cent.
PROFILE_TOLERANCE=0.5

# profile_instructions WORKLOAD:CONFIG[,WORKLOAD:CONFIG] [FILE]: prints one profile,
# or two side by side, and writes them to FILE as JSON
profile_instructions()
{
	local specs=() dirs=() spec json=${2-} symbols
	mapfile -t specs < <(printf '%s' "$1" | tr , '\n')
	check_specs "${specs[@]}"
	prepare_bench
	for spec in "${specs[@]}"; do
		known_case "${spec%:*}" "${spec#*:}"
	done
	symbols=$OUT/System.map
	need_symbols "$symbols"
	need_insn_plugin
	use_mode icount
	for spec in "${specs[@]}"; do
		dirs+=("$LOGS/profile.$((${#dirs[@]} + 1))")
		count_instructions "$spec" "${dirs[-1]}"
		check_counts "$spec" "$symbols" "${dirs[-1]}"
	done
	profile_report "${dirs[@]}"
	[ -z "$json" ] || profile_json "${dirs[@]}" > "$json" || leave "$E_USAGE"
}

# check_specs SPEC...: one or two, each WORKLOAD:CONFIG
check_specs()
{
	local spec
	[ $# -ge 1 ] || die "--profile needs WORKLOAD:CONFIG"
	[ $# -le 2 ] || die "--profile compares two, not $#: '$*'"
	for spec; do
		[[ "$spec" =~ ^[a-z0-9-]+:[a-z0-9-]+$ ]] ||
			die "--profile '$spec' is not WORKLOAD:CONFIG, such as seq:off or random:fixed-15"
	done
}

# known_case WORKLOAD CONFIG: ends with a list of those that cow_bench has if it has no such
known_case()
{
	local complaint names
	complaint=$("$BENCH_PATH" --workload "$1" --config "$2" --list 2>&1 > /dev/null) && return
	mapfile -t names < <("$BENCH_PATH" --list |
		awk '/:$/ { printf "%s%s", (NR > 1 ? "\n" : ""), $0; next } { printf " %s", $1 }')
	die "--profile $1:$2: $(printf '%s\n' "$complaint" | head -n 1 | sed 's/^cow_bench: //')" "${names[@]}"
}

need_symbols()
{
	grep -q ' handle_mm_fault$' "$1" 2> /dev/null ||
		die "'$1' lacks the addresses of the kernel's functions"
}

#
# The plugin
#

# need_insn_plugin: sets INSN_PLUGIN; builds it if its source is newer, and loads it once
need_insn_plugin()
{
	local said
	INSN_PLUGIN=$BUILD/plugin/insn_profile.so
	open_logs
	build_insn_plugin "$INSN_PLUGIN"
	said=$(timeout 60 qemu-system-x86_64 -nodefaults -display none -machine none \
		-plugin "$(qemu_value "$INSN_PLUGIN"),probe=on" 2>&1 < /dev/null) ||
		die "this QEMU ($(qemu_version)) cannot load the plugin that counts instructions; it says:" \
			"$(printf '%s\n' "$said" | tail -n 1)"
	verbose "$said"
}

build_insn_plugin()
{
	local plugin=$1 source=$ROOT/fixtures/plugin/insn_profile.c include=$ROOT/selftests/cow/tools
	! [ "$plugin" -nt "$source" ] || ! [ "$plugin" -nt "$include/cow_marker.h" ] || return 0
	mkdir -p "${plugin%/*}"
	gcc -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -I"$include" \
		-o "$plugin.$$" "$source" > "$LOGS/plugin.log" 2>&1 || {
		show_tail "$LOGS/plugin.log"
		die "the QEMU plugin does not build; log: $LOGS/plugin.log"
	}
	mv "$plugin.$$" "$plugin"
}

qemu_version()
{
	qemu-system-x86_64 --version | sed -n 's/^QEMU emulator version //p'
}

# In a value of a QEMU option a comma is doubled.
qemu_value()
{
	printf '%s' "${1//,/,,}"
}

# count_instructions WORKLOAD:CONFIG DIR: runs it in a guest; leaves DIR/counts and
# DIR/row.out
count_instructions()
{
	local workload=${1%:*} config=${1#*:} dir=$2
	begin_job
	# Status 4: all was skipped, with the reason in the row.
	section row sh -c "/$BENCH_PROGRAM --workload $workload --config $config \
		--size 16M --repeat 2 --mode icount --json || [ \$? -eq 4 ]"
	run_counted_job "$dir"
}

# run_counted_job DIR: run_job, with the plugin, which leaves DIR/counts
run_counted_job()
{
	local dir=$1
	mkdir -p "$dir"
	rm -f "$dir/counts"
	# shellcheck disable=SC2034 # for start_guest
	QEMU_EXTRA=(-plugin "$(qemu_value "$INSN_PLUGIN"),out=$(qemu_value "$dir/counts")")
	run_job "$dir"
	# shellcheck disable=SC2034 # for start_guest
	QEMU_EXTRA=()
}

#
# What becomes of the counts
#

insn()
{
	"$PYTHON" "$ROOT/scripts/bench/insn.py" "$@"
}

# check_counts SPEC SYMBOLS DIR: records whether plugin and clock agree; ends if the
# workload was skipped or the counts are unusable
check_counts()
{
	local status=0
	insn check --tolerance "$PROFILE_TOLERANCE" --results "$RESULTS" "$@" || status=$?
	case "$status" in
	0|1) verbose "$(cat "$3/sums")" ;;
	4) show_results
		finish ;;
	*) leave "$E_USAGE" ;;
	esac
}

# profile_report DIR [DIR]: the tables
profile_report()
{
	local least=0.1
	[ -z "$VERBOSE" ] || least=0
	insn report --title "Linux $K_NAME${UNPATCHED:+ without the series}" --least "$least" \
		--groups "$ROOT/fixtures/plugin/groups" "$@" || leave "$E_USAGE"
}

# profile_json DIR [DIR]
profile_json()
{
	insn json --kernel "$K_NAME" ${UNPATCHED:+--series without} "$@"
}
