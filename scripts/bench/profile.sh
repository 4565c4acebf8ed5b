# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Profiles: cow_profile in a guest, and reports on its rows by sections.py. Needs
# bench.sh.

# In per cent: the sum of the sections against the untraced run, and two boots
SUM_TOLERANCE=5
REPEAT_TOLERANCE=1

# select_workload: sets WORKLOAD, SIZES, COUNT and MODE from the command line
select_workload()
{
	[ ${#ARGS[@]} -eq 1 ] || die "profile what? fork or cow; see './run_tests.sh profile --help'"
	WORKLOAD=${ARGS[0]}
	MODE=${MODE:-icount}
	case "$WORKLOAD" in
	fork)
		COUNT=${COUNT:-100}
		select_sizes "${SIZE-}" ;;
	cow)
		[ -z "${SIZE-}" ] || die "--size is for 'profile fork': each of the faults takes a page"
		COUNT=${COUNT:-4096}
		SIZES=(0) ;;
	*)
		die "profile what? fork or cow, not '$WORKLOAD'" ;;
	esac
	[ "${#COUNT}" -le 5 ] && [ "$COUNT" -ge 2 ] && [ "$COUNT" -le 16384 ] ||
		die "--count needs a number from 2 to 16384, not '$COUNT'"
	REPEAT=${REPEAT:-1}
	[ "${#REPEAT}" -le 2 ] || die "--repeat needs a number up to 99, not '$REPEAT'"
	[ "$REPEAT" -eq 1 ] || [ "$MODE" = icount ] ||
		die "--repeat is for --mode icount: no two boots agree on real time"
}

select_sizes()
{
	local size
	SIZES=()
	[[ "${1:-0,1,16,256}" =~ ^[0-9]{1,4}(,[0-9]{1,4})*$ ]] ||
		die "--size needs numbers of MB with commas between them, not '$1'"
	for size in $(echo "${1:-0,1,16,256}" | tr , ' '); do
		size=$((10#$size))
		[ "$size" -le 1024 ] || die "--size $size: the guest has memory for 1024 MB"
		case " ${SIZES[*]} " in
		*" $size "*) die "--size names $size twice" ;;
		esac
		SIZES+=("$size")
	done
}

# One CPU: the tracer patches the kernel's code, which TCG with several threads
# does not support.
prepare_profile()
{
	BENCH_PROGRAM=cow_profile
	[ "$MODE" = icount ] || APPEND+=' maxcpus=1'
	prepare_bench
}

profile_job()
{
	local size
	begin_job
	if [ "$WORKLOAD" = cow ]; then
		section cow "/$BENCH_PROGRAM" cow -n "$COUNT"
		return
	fi
	for size in "${SIZES[@]}"; do
		section "fork-$size" "/$BENCH_PROGRAM" fork -n "$COUNT" -s "$size"
	done
}

# profile_boots DIR: boots REPEAT times; the rows of boot N are in DIR/guestN/rows
profile_boots()
{
	local dir=$1 i
	profile_job
	for ((i = 1; i <= REPEAT; i++)); do
		run_job "$dir/guest$i"
		collect_sections "$dir/guest$i"
		if [ "$i" -eq 1 ]; then
			sections table --about "$dir/guest1/about" "$dir/guest1/rows" || leave "$E_USAGE"
			check_sums "$dir/guest1/rows"
		else
			compare_boots "$i" "$dir/guest1/rows" "$dir/guest$i/rows"
		fi
	done
}

# collect_sections DIR: DIR/rows from the output of each size
collect_sections()
{
	local dir=$1 file files=("$1/cow.out")
	[ "$WORKLOAD" = cow ] || mapfile -t files < <(printf "$dir/fork-%s.out\n" "${SIZES[@]}")
	for file in "${files[@]}"; do
		[ "$(tail -n 1 "$file" | cut -f1)" = tracer ] ||
			die "the rows of $file are not complete"
	done
	cat "${files[@]}" > "$dir/rows"
}

sections()
{
	"$PYTHON" "$ROOT/scripts/bench/sections.py" "$@"
}

# check_sums ROWS: do the sections add up to the time of the untraced run?
check_sums()
{
	local what mb difference
	sections sums "$1" > "$SCRATCH/sums" || leave "$E_USAGE"
	while read -r what mb difference; do
		[ "$what" = fork ] || mb=
		if profile_within "$difference" "$SUM_TOLERANCE"; then
			record pass "profile:$what${mb:+-$mb}.sum" "$difference %"
		else
			record fail "profile:$what${mb:+-$mb}.sum" \
				"the sections differ from the untraced total by $difference %, more than $SUM_TOLERANCE %"
		fi
	done < "$SCRATCH/sums"
}

profile_within()
{
	awk -v a="$1" -v limit="$2" 'BEGIN { exit !(a <= limit && a >= -limit) }'
}

# compare_boots N FIRST ROWS: the rows of boot N with those of the first
compare_boots()
{
	local boot=$1 what mb verdict text
	sections compare --limit "$REPEAT_TOLERANCE" "$2" "$3" > "$SCRATCH/compared" || leave "$E_USAGE"
	while IFS=$'\t' read -r what mb verdict text; do
		[ "$what" = fork ] || mb=
		record "$verdict" "profile:$what${mb:+-$mb}.boot$boot" "$text"
		echo "boot $boot, $what${mb:+ $mb MB}: $text"
	done < "$SCRATCH/compared"
}

# profile_files DIR: what --json and --svg ask for, from the first boot
profile_files()
{
	local first=$1/guest1
	[ -z "$JSON" ] || sections json --about "$first/about" "$first/rows" > "$JSON" ||
		leave "$E_USAGE"
	[ -z "$SVG" ] || sections chart --about "$first/about" --svg "$SVG" "$first/rows" ||
		leave "$E_USAGE"
}

finish_profile()
{
	list_results fail | sed 's|^|FAIL |'
	JSON='' finish
}
