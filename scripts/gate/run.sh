# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Running the checks, and what is kept of their results.

#
# Results, kept under a key that is made of all that decides them
#

# submission_key: the patches and the base
submission_key()
{
	{
		kgit -C "$K_TREE" rev-parse "$G_BASE^{tree}" "$G_HEAD^{tree}"
		echo "$G_KIND $G_ON_SERIES $K_NAME $SET $SET_CONFIG $APPEND_ON"
		cat "$G_MAILS"/*
	} | sha256sum
}

# check_files NAME: the files and folders of ours that decide the check's verdict
check_files()
{
	printf '%s\n' Kconfig.fragment fixtures/config scripts/lib "scripts/gate/checks/$1"
	( cd "$ROOT" && ls scripts/gate/*.* scripts/gate/run-check )
	check_field "$1" Uses | tr -s ' ' '\n'
}

# check_key NAME [FOLDER]: the submission, the check with what it uses but for what is in
# that folder, and the tools of this host
check_key()
{
	local name=$1 files
	mapfile -t files < <(check_files "$name" | grep -v "^${2:-/}")
	{
		echo "$SUBMISSION_KEY $TIMEOUT"
		tools_of "$name"
		worktree_hash "${files[@]}"
	} | sha256sum | cut -c1-16
}

# tools_of NAME: the versions of the host's tools that the check asks
tools_of()
{
	gcc --version | head -n 1
	ld --version | head -n 1
	{ check_field "$1" Needs; arch_packages "$(check_field "$1" Arch)"; echo qemu qemu-system-x86; } |
		while read -r _ package; do
			dpkg-query -W "$package" 2> /dev/null || true
		done
}

# run_checks: every chosen check, or what is known of it. Two at a time: a guest leaves
# half of two cores to a compiler. Those that work on the gate's own tree run one after
# the other, and who has no more of his own takes the last ones of the others.
run_checks()
{
	local name in_tree=() others=() backwards=()
	SUBMISSION_KEY=$(submission_key)
	GATE_STATE=$SCRATCH/state
	save_state
	mkdir -p "$G_DIR/results" "$SCRATCH/begun"
	: > "$LOGS/verdicts"
	for name in "${CHECKS[@]}"; do
		if uses_tree "$name"; then
			in_tree+=("$name")
		else
			others+=("$name")
			backwards=("$name" "${backwards[@]}")
		fi
	done
	if [ "$JOBS" -gt 1 ]; then
		start_lane "${others[@]}"
		start_lane "${in_tree[@]}" "${backwards[@]}"
	else
		start_lane "${CHECKS[@]}"
	fi
	wait_lanes
	record_verdicts
}

# uses_tree NAME: the gate's own, at one commit or another. A submission that is not our
# own series has no other tree.
uses_tree()
{
	[ "$(check_field "$1" Tree)" = gate ] || { [ "$G_KIND" != own ] && [ "$(check_group "$1")" != form ]; }
}

LANES=()

# start_lane NAME...: in a process group of its own, which is ended as a whole
start_lane()
{
	set -m
	run_lane "$@" &
	set +m
	LANES+=($!)
}

# wait_lanes: until the last has ended, or one that could not go on
wait_lanes()
{
	local lane status=0 left
	start_ticker "the gate" "$SECONDS"
	while [ ${#LANES[@]} -gt 0 ]; do
		wait -n "${LANES[@]}" || status=$?
		# what one that was killed has begun still runs: end_lanes
		[ "$status" -eq 0 ] || break
		left=()
		for lane in "${LANES[@]}"; do
			! kill -0 "$lane" 2> /dev/null || left+=("$lane")
		done
		LANES=("${left[@]}")
	done
	end_lanes
	stop_ticker
	leave_if_asked "$status"
	[ "$status" -eq 0 ] || say "the gate could not go on (status $status)"
}

# leave_if_asked STATUS: who interrupts or ends a part of the gate means all of it
leave_if_asked()
{
	case "$1" in
	130|143) leave "$1" ;;
	esac
}

# end_lanes: with all that they have begun, even one that was killed itself
end_lanes()
{
	local tries
	for ((tries = 0; tries < 20; tries++)); do
		# once more after a while: a process that was just being started may have missed it
		[ $((tries % 10)) -ne 0 ] || signal_lanes TERM || break
		sleep 0.3
		signal_lanes 0 || break
	done
	LANES=()
}

# signal_lanes SIGNAL: status 1 if there is none left
signal_lanes()
{
	local lane status=1
	for lane in "${LANES[@]}"; do
		! kill "-$1" -- "-$lane" 2> /dev/null || status=0
	done
	return "$status"
}

at_exit end_lanes

# run_lane NAME...: those that the other lane has not begun
run_lane()
{
	local name
	# after the check that runs, which has had the signal as well
	trap 'exit 143' TERM
	for name; do
		# a gate that was killed has no use for more
		kill -0 $$ 2> /dev/null || exit
		if ! mkdir "$SCRATCH/begun/$name" 2> /dev/null; then
			[ -d "$SCRATCH/begun/$name" ] || die "no folder can be made in $SCRATCH"
			continue
		fi
		G_RESULT=$G_DIR/results/$name.$(check_key "$name")
		G_AGAIN=
		if [ -n "$FRESH" ] || [ ! -f "$G_RESULT/verdict" ]; then
			run_check "$name"
		else
			G_AGAIN=' (known)'
		fi
		report_check "$name"
	done
}

# in_place_of_ticker: what a lane says next does not go behind the elapsed time
in_place_of_ticker()
{
	! is_terminal || printf '\r\033[K' >&2
}

# record_verdicts: in the order of the checks, whichever ended first
record_verdicts()
{
	local verdict name seconds summary dir
	for name in "${CHECKS[@]}"; do
		awk -F '\t' -v name="$name" '$2 == name { found = 1 } END { exit !found }' "$LOGS/verdicts" ||
			printf 'error\t%s\t0\tnot run: the gate could not go on\t%s\n' "$name" "$G_DIR/results" >> "$LOGS/verdicts"
	done
	awk -F '\t' 'NR == FNR { place[$1] = NR; next } { print place[$2] "\t" $0 }' \
		<(printf '%s\n' "${CHECKS[@]}") "$LOGS/verdicts" | sort -n | cut -f 2- > "$LOGS/verdicts.sorted"
	mv "$LOGS/verdicts.sorted" "$LOGS/verdicts"
	while IFS=$'\t' read -r verdict name seconds summary dir; do
		case "$verdict" in
		warn) record pass "$name" "warning: $summary" ;;
		*) record "$verdict" "$name" "$summary" ;;
		esac
	done < "$LOGS/verdicts"
	ERRORS=$(count_results error)
}

# What a check's own process needs to know.
save_state()
{
	local variable
	for variable in K_NAME K_DIR K_TREE K_PATH K_PACKAGE K_SUITE G_KIND G_TITLE G_BASE G_HEAD \
			G_DIR G_MAILS G_REFUSED G_OURS G_ON_SERIES BASE JOBS TIMEOUT QUICK \
			SUBMISSION_KEY SET SET_CONFIG APPEND_ON; do
		printf '%s=%q\n' "$variable" "${!variable-}"
	done > "$GATE_STATE"
}

# run_check NAME: in a process of its own, which leaves its findings and logs in
# G_RESULT. The verdict is written last: without one it is run again.
run_check()
{
	local name=$1 start=$SECONDS status=0 moved=
	rm -rf "$G_RESULT"
	drop_old_results "$name"
	mkdir -p "$G_RESULT"
	in_place_of_ticker
	say "== $name ..."
	COW_LOGS=$G_RESULT COW_RESULTS='' bash "$ROOT/scripts/gate/run-check" "$GATE_STATE" "$name" "$G_RESULT" \
		> "$G_RESULT/log" 2>&1 < /dev/null || status=$?
	[ "$G_KIND" != own ] || tree_unchanged 2>> "$G_RESULT/log" || moved=1
	[ -z "$moved" ] || [ "$status" -ne 0 ] || status=$E_USAGE
	if [ "$status" -ne 0 ]; then
		printf 'error\t%s\tstatus %s: %s\n' $((SECONDS - start)) "$status" \
			"$(grep -v '^[[:space:]]*|' "$G_RESULT/log" | tail -n 3 | paste -sd';' | tr '\t' ' ')" > "$G_RESULT/error"
		leave_if_asked "$status"
		# what was found until then is a fault all the same, if of what is judged
		[ -n "$moved" ] || ! grep -q '^fail' "$G_RESULT/findings" 2> /dev/null ||
			printf 'fail\t%s\t%s; then the check could not go on\n' $((SECONDS - start)) \
				"$(summary_of "$G_RESULT/findings")" > "$G_RESULT/error"
		return
	fi
	printf '%s\t%s\t%s\n' "$(verdict_of "$G_RESULT/findings")" $((SECONDS - start)) \
		"$(summary_of "$G_RESULT/findings")" > "$G_RESULT/verdict.tmp"
	mv "$G_RESULT/verdict.tmp" "$G_RESULT/verdict"
}

# The newest few of each check: whoever goes back and forth between two versions of
# a series does not wait twice.
drop_old_results()
{
	local dir
	# only its own: of other checks, the other lane removes some meanwhile
	{ find "$G_DIR/results/$1."* -maxdepth 0 -type d -printf "%T@ %p\n" 2> /dev/null || true; } |
		sort -rn | tail -n +6 | while read -r _ dir; do
			rm -rf "$dir"
		done
}

# Findings are lines "fail|warn|skip|note TAB text". A failure is one even of a check
# that skips the rest.
verdict_of()
{
	local verdict
	for verdict in fail skip warn; do
		if grep -q "^$verdict"$'\t' "$1"; then
			echo "$verdict"
			return
		fi
	done
	echo pass
}

# The first of the findings that decide the verdict, and how many more there are. Never
# empty: read would take what comes behind an empty field for it.
summary_of()
{
	awk -F '\t' -v verdict="$(verdict_of "$1")" '
		$1 == (verdict == "pass" ? "note" : verdict) { if (!n++) first = $2 }
		END { printf "%s%s", (n ? first : "no complaint"), (n > 1 ? " (and " n - 1 " more)" : "") }' "$1"
}

# report_check NAME: one line, what was found, and a line for the table
report_check()
{
	local name=$1 verdict seconds summary file=$G_RESULT/verdict
	[ -f "$file" ] || file=$G_RESULT/error
	IFS=$'\t' read -r verdict seconds summary < "$file"
	in_place_of_ticker
	printf '%s %s (%ss)%s%s\n' "$(echo "$verdict" | tr '[:lower:]' '[:upper:]')" "$name" "$seconds" \
		"$G_AGAIN" "${summary:+: $summary}"
	printf '%s\t%s\t%s\t%s\t%s\n' "$verdict" "$name" "$seconds" "$summary" "$G_RESULT" >> "$LOGS/verdicts"
	case "$verdict" in
	warn)
		say_findings warn ;;
	fail)
		say_findings fail
		say "  logs: $G_RESULT" ;;
	error)
		say "  logs: $G_RESULT" ;;
	esac
}

say_findings()
{
	awk -F '\t' -v which="$1" '$1 == which && n++ < 12 { print "  " $2 }
		END { if (n > 12) print "  ... and " n - 12 " more" }' "$G_RESULT/findings" >&2
}
