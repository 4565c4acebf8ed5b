# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Profiles: cow_profile in a guest, and what is made of its rows. The guest is
# that of the benchmarks, see bench.sh.

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
# does not bear; and nobody else runs.
prepare_profile()
{
	BENCH_PROGRAM=cow_profile
	[ "$MODE" = icount ] || APPEND+=' maxcpus=1'
	prepare_bench
}

# In a memory cgroup, as all programs of a real system are.
profile_job()
{
	local size
	begin_job
	cat >> "$BENCH_JOB" <<-'END'
	mkdir /sys/fs/cgroup/profile && echo $$ > /sys/fs/cgroup/profile/cgroup.procs || exit 2
	END
	for size in "${SIZES[@]}"; do
		if [ "$WORKLOAD" = fork ]; then
			section "fork-$size" "/$BENCH_PROGRAM" fork -n "$COUNT" -s "$size"
		else
			section cow "/$BENCH_PROGRAM" cow -n "$COUNT"
		fi
	done
}

# A run's rows are in DIR/rows.
profile_boots()
{
	local i dir file
	profile_job
	for ((i = 1; i <= REPEAT; i++)); do
		dir=$LOGS/guest$i
		run_job "$dir"
		for file in "$dir/$WORKLOAD"*.out; do
			check_complete "$file"
		done
		cat "$dir/$WORKLOAD"*.out > "$dir/unsorted"
		sort_sizes "$dir" > "$dir/rows"
		if [ "$i" -eq 1 ]; then
			ABOUT=$dir/about
			ROWS=$dir/rows
			profile_table
			check_sums
		else
			compare_boots "$i" "$dir/rows"
		fi
	done
}

check_complete()
{
	[ "$(tail -n 1 "$1" | cut -f1)" = tracer ] ||
		die "the rows of $1 are not complete"
}

sort_sizes()
{
	local size
	for size in "${SIZES[@]}"; do
		if [ "$WORKLOAD" = fork ]; then
			cat "$1/fork-$size.out"
		else
			cat "$1/cow.out"
		fi
	done
}

about()
{
	sed -n "s/^$1=//p" "$ABOUT"
}

profile_unit()
{
	if [ "$MODE" = icount ]; then
		echo instructions
	else
		echo ns
	fi
}

# profile_awk REPORT ROWS...: see profile.awk
profile_awk()
{
	local report=$1
	shift
	awk -v report="$report" -v kernel="$K_NAME" -v arch="$ARCH" -v mode="$MODE" \
		-v unit="$(profile_unit)" -v release="$(about release)" \
		-v machine="$(about machine)" \
		-f "$ROOT/scripts/bench/profile.awk" "$@"
}

profile_table()
{
	echo "$(about release), $(about machine)"
	profile_awk table "$ROWS"
	echo
}

profile_json()
{
	profile_awk json "$ROWS"
}

# Do the sections add up to what the work takes untraced?
check_sums()
{
	local what mb difference
	while read -r what mb difference; do
		[ "$what" = fork ] || mb=
		if profile_within "$difference" "$SUM_TOLERANCE"; then
			record pass "profile:$what${mb:+-$mb}.sum" "$difference %"
		else
			record fail "profile:$what${mb:+-$mb}.sum" \
				"the sections differ from the untraced total by $difference %, more than $SUM_TOLERANCE %"
		fi
	done < <(profile_awk sums "$ROWS")
}

profile_within()
{
	awk -v a="$1" -v limit="$2" 'BEGIN { exit !(a <= limit && a >= -limit) }'
}

# compare_boots N ROWS: the N-th boot with the first
compare_boots()
{
	local what mb verdict text
	while IFS=$'\t' read -r what mb verdict text; do
		[ "$what" = fork ] || mb=
		record "$verdict" "profile:$what${mb:+-$mb}.boot$1" "$text"
		echo "boot $1, $what${mb:+ $mb MB}: $text"
	done < <(awk -v limit="$REPEAT_TOLERANCE" -v report=compare \
		-f "$ROOT/scripts/bench/profile.awk" "$ROWS" "$2")
}

finish_profile()
{
	awk -F '\t' '$1 == "fail" { print "FAIL " $2 ": " $3 }' "$RESULTS"
	JSON='' finish
}

#
# The chart: a panel for each size, a bar for each section
#

profile_svg()
{
	profile_awk plot "$ROWS" > "$SCRATCH/plot.data"
	profile_awk labels "$ROWS" > "$SCRATCH/plot.labels"
	profile_gnuplot "${#SIZES[@]}" > "$SCRATCH/plot.gp"
	# gnuplot writes the data's name into the picture
	( cd "$SCRATCH" && gnuplot plot.gp ) > "$LOGS/gnuplot.log" 2>&1 ||
		die "gnuplot failed: $(head -n 3 "$LOGS/gnuplot.log" | tr '\n' ' ')"
}

# Blocks of plot.data: one for each size. Columns: line, mean, its text
profile_gnuplot()
{
	local panels=$1 left=230 width=270 height total sections i=0 title largest step
	sections=$(wc -l < "$SCRATCH/plot.labels")
	height=$((112 + 22 * sections))
	[ "$panels" -gt 1 ] || width=520
	total=$((left + panels * (width + 25)))
	cat <<-END
	set terminal svg size $total,$height font 'sans,12' background '#ffffff'
	set output '$SVG'
	unset key
	set style fill solid 1.0 noborder
	set border 1 lc rgb '#808080'
	set tics nomirror textcolor rgb '#404040'
	set ytics scale 0
	set xtics format '%.0s%c' out
	set grid xtics lc rgb '#e0e0e0' lt 1
	set yrange [$sections.5:0.5]
	set tmargin at screen $(ratio $((height - 68)) "$height")
	set bmargin at screen $(ratio 40 "$height")
	set multiplot
	set label 1 "$(profile_title)" at screen 0.5,$(ratio $((height - 16)) "$height") center font ',15'
	set ytics ($(plot_tics))
	END
	while IFS=$'\t' read -r title largest step; do
		cat <<-END
		set lmargin at screen $(ratio $((left + i * (width + 25))) "$total")
		set rmargin at screen $(ratio $((left + i * (width + 25) + width)) "$total")
		set title "$title" offset 0,-0.5
		set xrange [0:$largest * 1.55]
		set xtics $step
		plot 'plot.data' index $i using (0):1:(0):2:(\$1-0.36):(\$1+0.36) with boxxyerror lc rgb '#3b6ea8', \\
			'' index $i using 2:1:3 with labels left offset 0.4,0 font ',10' textcolor rgb '#404040'
		unset label 1
		unset ytics
		END
		i=$((i + 1))
	done < <(profile_awk titles "$ROWS")
	echo 'unset multiplot'
}

ratio()
{
	awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f", a / b }'
}

plot_tics()
{
	awk '{ printf "%s\"%s\" %d", (NR > 1 ? ", " : ""), $0, NR }' "$SCRATCH/plot.labels"
}

profile_title()
{
	local what="a fork"
	[ "$WORKLOAD" = fork ] || what="a copy-on-write fault"
	echo "Where the time of $what goes: Linux $(about release), $(profile_unit)"
}
