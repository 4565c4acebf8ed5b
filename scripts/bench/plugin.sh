# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Profile of an instruction count: which kernel functions the instructions of a
# benchmark's measured part are in. A plugin of QEMU's counts them, in a guest
# whose clock counts instructions too, so that one can be checked with the other.
#
# Needs bench.sh: the program to measure, and how it runs in a guest.

# How far the plugin's total may lie from the guest's clock, in per cent.
PROFILE_TOLERANCE=0.5

# profile_instructions WORKLOAD:CONFIG[,WORKLOAD:CONFIG] [FILE]: prints the
# profile of one, or of two side by side, and writes them to FILE as JSON. What
# is recorded as a result is that the counts are right.
profile_instructions()
{
	local specs=() dirs=() spec dir json=${2-} i=0
	mapfile -t specs < <(printf '%s' "$1" | tr , '\n')
	[ ${#specs[@]} -ge 1 ] || die "--profile needs WORKLOAD:CONFIG"
	[ ${#specs[@]} -le 2 ] || die "--profile compares two, not ${#specs[@]}: '$1'"
	for spec in "${specs[@]}"; do
		[[ "$spec" =~ ^[a-z0-9-]+:[a-z0-9-]+$ ]] ||
			die "--profile '$spec' is not WORKLOAD:CONFIG, such as seq:off or random:fixed-15"
	done
	prepare_bench
	for spec in "${specs[@]}"; do
		known_case "${spec%:*}" "${spec#*:}"
	done
	need_symbols
	need_insn_plugin
	use_mode icount
	for spec in "${specs[@]}"; do
		i=$((i + 1))
		dir=$LOGS/profile.$i
		count_instructions "${spec%:*}" "${spec#*:}" "$dir"
		dirs+=("$dir")
	done
	profile_tables "${dirs[@]}"
	[ -z "$json" ] || profile_json "${dirs[@]}" > "$json"
}

# known_case WORKLOAD CONFIG: the program itself knows its names.
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
	SYMBOLS=$OUT/System.map
	grep -q ' handle_mm_fault$' "$SYMBOLS" 2> /dev/null ||
		die "the addresses of the kernel's functions are not in '$SYMBOLS'"
}

#
# The plugin
#

# need_insn_plugin: sets INSN_PLUGIN, built when its source is newer, and tried
need_insn_plugin()
{
	local source=$ROOT/fixtures/plugin/insn_profile.c said
	local header=$ROOT/selftests/cow/cow_marker.h
	INSN_PLUGIN=$BUILD/plugin/insn_profile.so
	open_logs
	if ! [ "$INSN_PLUGIN" -nt "$source" ] || ! [ "$INSN_PLUGIN" -nt "$header" ]; then
		mkdir -p "$BUILD/plugin"
		gcc -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -I"$ROOT/selftests/cow" \
			-o "$INSN_PLUGIN.$$" "$source" > "$LOGS/plugin.log" 2>&1 || {
			show_tail "$LOGS/plugin.log"
			die "QEMU's plugin does not build; log: $LOGS/plugin.log"
		}
		mv "$INSN_PLUGIN.$$" "$INSN_PLUGIN"
	fi
	said=$(timeout 60 qemu-system-x86_64 -nodefaults -display none -machine none \
		-plugin "$(qemu_value "$INSN_PLUGIN"),probe=on" 2>&1 < /dev/null) ||
		die "this QEMU ($(qemu_version)) cannot load the plugin that counts instructions; it says:" \
			"$(printf '%s\n' "$said" | tail -n 1)"
	verbose "$said"
}

qemu_version()
{
	qemu-system-x86_64 --version | sed -n 's/^QEMU emulator version //p'
}

# A comma separates QEMU's options.
qemu_value()
{
	printf '%s' "${1//,/,,}"
}

# count_instructions WORKLOAD CONFIG DIR: DIR/functions has "COUNT NAME" a line,
# DIR/sums what they are divided by and checked with.
count_instructions()
{
	local workload=$1 config=$2 dir=$3
	mkdir -p "$dir"
	begin_job
	# Status 4 is "all was skipped", with the reason in the row.
	section row sh -c "/$BENCH_PROGRAM --workload $workload --config $config \
		--size 16M --repeat 2 --mode icount --json || [ \$? -eq 4 ]"
	# shellcheck disable=SC2034 # for start_guest
	QEMU_EXTRA=(-plugin "$(qemu_value "$INSN_PLUGIN"),out=$(qemu_value "$dir/counts")")
	rm -f "$dir/counts"
	run_job "$dir"
	# shellcheck disable=SC2034 # for start_guest
	QEMU_EXTRA=()
	if grep -q '"skipped"' "$dir/row.out"; then
		record skip "profile:$workload:$config" "$(row_value skipped "$dir/row.out")"
		show_results
		finish
	fi
	[ -n "$(counted total "$dir")" ] ||
		die "the plugin left no complete result: $dir/counts" "$(tail -n 1 "$dir/qemu.log")"
	[ "$(counted parts "$dir")" -gt 0 ] ||
		die "$workload:$config has no part that is marked to be counted (several threads have not)"
	awk -f "$ROOT/scripts/bench/insn-profile.awk" "$SYMBOLS" "$dir/counts" | sort -rn > "$dir/functions"
	check_profile "$workload:$config" "$dir"
}

# row_value KEY FILE: of the one row, which is flat
row_value()
{
	sed -n -e "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" -e "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$2" | head -n 1
}

counted()
{
	[ ! -f "$2/counts" ] || awk -v key="$1" '$1 == key { print $2 }' "$2/counts"
}

# The guest's clock must say what the plugin says: per page written, with one
# instruction for each fault, as one that faults starts twice.
check_profile()
{
	local spec=$1 dir=$2 row=$2/row.out
	awk -v spec="$spec" -v total="$(counted total "$dir")" -v repeats="$(row_value repeats "$row")" \
	    -v written="$(row_value written "$row")" -v faults="$(row_value faults "$row")" \
	    -v per_page="$(row_value per_page_median "$row")" '
		BEGIN {
			written *= repeats
			faults *= repeats
			clock = per_page * written + faults
			off = (total / clock - 1) * 100
			if (off > -0.0005 && off < 0)
				off = 0
			printf "%s %d %d %d %.0f %.3f\n", spec, written, faults, total, clock, off
		}' > "$dir/sums"
	local written faults total clock off
	read -r _ written faults total clock off < "$dir/sums"
	verbose "$spec: the plugin counted $total instructions, the guest's clock $clock: $off %"
	if awk -v off="$off" -v most="$PROFILE_TOLERANCE" 'BEGIN { exit !(off <= most && -off <= most) }'; then
		record pass "profile:$spec"
	else
		record fail "profile:$spec" "the plugin counted $total instructions for $written pages and $faults faults, the guest's clock $clock: $off % is more than $PROFILE_TOLERANCE %"
	fi
	awk '{ sum += $1 } $2 == "unknown" { unknown = $1 } END { exit unknown > sum / 100 }' "$dir/functions" ||
		die "$spec: the addresses counted are not those of $SYMBOLS"
}

#
# Tables
#

# profile_tables DIR [DIR]
profile_tables()
{
	local dir spec written faults clock off least=0.1
	[ -z "$VERBOSE" ] || least=0
	printf 'Instructions per page written, Linux %s%s, by function\n' "$K_NAME" \
		"${UNPATCHED:+ without the series}"
	awk -v LEAST="$least" -f "$ROOT/scripts/bench/insn-table.awk" "${@/%//sums}" "${@/%//functions}"
	printf '\nBy what they belong to\n'
	awk -v LEAST=0 -v GROUPS="$ROOT/fixtures/plugin/groups" \
		-f "$ROOT/scripts/bench/insn-table.awk" "${@/%//sums}" "${@/%//functions}"
	echo
	for dir; do
		read -r spec written faults _ clock off < "$dir/sums"
		echo "$spec: $written pages, $faults faults;" \
			"the plugin's total is $off % off the guest's clock"
	done
}

# profile_json DIR [DIR]: an array of objects; functions in instructions per page
profile_json()
{
	local dir files=()
	for dir; do
		files+=("$dir/sums" "$dir/functions")
	done
	awk -v kernel="$K_NAME" -v series="${UNPATCHED:+without}" '
		function end_object() {
			if (objects)
				printf "\n  }\n}"
		}
		BEGIN { printf "[" }
		NF == 6 {
			end_object()
			split($1, name, ":")
			written = $2
			printf "%s\n{\n  \"kernel\": \"%s\",\n  \"series\": \"%s\",", objects++ ? "," : "",
				kernel, series ? series : "with"
			printf "\n  \"workload\": \"%s\",\n  \"config\": \"%s\",", name[1], name[2]
			printf "\n  \"written\": %d,\n  \"faults\": %d,", written, $3
			printf "\n  \"per_page\": %.2f,\n  \"clock_per_page\": %.2f,", $4 / written,
				$5 / written
			printf "\n  \"functions\": {"
			functions = 0
			next
		}
		{ printf "%s\n    \"%s\": %.4f", functions++ ? "," : "", $2, $1 / written }
		END {
			end_object()
			print "\n]"
		}' "${files[@]}"
}
