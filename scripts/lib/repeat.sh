# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# --repeat: a command many times under load, to find tests whose result depends on it.

repeat_help()
{
	cat <<-'END'
	  --repeat N      N times, beside a busy loop on each CPU and with no real-time
	                  priority for the guest: every run must have the same results.
	                  One that was interrupted goes on where it stopped, unless what it
	                  tests has changed
	END
}

# without_repeat ARGUMENT...: sets REPEATED, the same without --repeat and the reports
without_repeat()
{
	REPEATED=()
	while [ $# -gt 0 ]; do
		case "$1" in
		--repeat|--junit|--json|--kcidb) shift ;;
		--repeat=*|--junit=*|--json=*|--kcidb=*) ;;
		*) REPEATED+=("$1") ;;
		esac
		shift
	done
}

BUSY=()

start_busy_loops()
{
	local i
	for ((i = $(nproc); i > 0; i--)); do
		( trap - INT TERM; while :; do :; done ) &
		BUSY+=($!)
	done
}

stop_busy_loops()
{
	[ ${#BUSY[@]} -eq 0 ] || kill "${BUSY[@]}" 2> /dev/null || true
	[ ${#BUSY[@]} -eq 0 ] || wait "${BUSY[@]}" 2> /dev/null || true
	BUSY=()
}

at_exit stop_busy_loops

# repeat_command FUNCTION: FUNCTION, REPEAT times. Records one result for each run, and
# leaves.
repeat_command()
{
	local dir i
	dir=$BUILD/repeat/$COMMAND.$(repeat_key)
	mkdir -p "$dir"
	for ((i = 1; i <= REPEAT; i++)); do
		[ -f "$dir/$i" ] || repeat_once "$dir" "$i" "$1"
		judge_run "$dir" "$i"
	done
	rm -rf "$dir"
	finish
}

# repeat_key: of what decides the results: the arguments, a user's kernel or image, edits of
# the prepared tree, the series, the tests, and the configurations, programs and scripts by
# which they are built and run
repeat_key()
{
	{
		printf '%s\n' "${REPEATED[@]}"
		[ -z "${K_PATH-}" ] || source_state "$K_PATH"
		[ ! -f "$IMAGE" ] || sha256sum < "$IMAGE"
		[ ! -d "${K_TREE-}" ] || ! tree_has_edits || worktree_tree
		worktree_hash Kconfig.fragment fixtures/config fixtures/init fixtures/kernels fixtures/qemu \
			fixtures/um kunit patches scripts/cmd scripts/lib selftests
	} | sha256sum | cut -c1-16
}

# run_command: this command as a whole, with REPEATED
run_command()
{
	COW_RESULTS=$RESULTS bash "$ROOT/scripts/cmd/$COMMAND" "${REPEATED[@]}"
}

# run_below DIR FUNCTION: with logs and results there
run_below()
{
	local LOGS=$1 RESULTS=$1/results
	COW_NO_REALTIME=1 "$2"
}

# repeat_once DIR NUMBER FUNCTION: leaves the results, sorted, in DIR/NUMBER
repeat_once()
{
	local start=$SECONDS logs=$LOGS/run.$2
	mkdir "$logs"
	say "run $2 of $REPEAT ..."
	start_busy_loops
	( run_below "$logs" "$3" ) > "$logs/log" 2>&1 < /dev/null || true
	stop_busy_loops
	[ -s "$logs/results" ] || die "run $2 has no result; log: $logs/log"
	sort "$logs/results" > "$1/$2.part"
	echo "$((SECONDS - start))" > "$1/$2.seconds"
	mv "$1/$2.part" "$1/$2"
}

# judge_run DIR NUMBER: it must have no failure, and the results of the first run
judge_run()
{
	local failed different
	failed=$(list_results fail "$1/$2" | paste -sd';')
	different=$(diff <(cut -f 1,2 "$1/1") <(cut -f 1,2 "$1/$2") | grep '^[<>]' | head -n 5 | paste -sd';' || true)
	if [ -n "$failed" ]; then
		echo "FAIL run $2 ($(cat "$1/$2.seconds")s): $failed"
		record fail "run $2" "$failed"
	elif [ -n "$different" ]; then
		echo "FAIL run $2 ($(cat "$1/$2.seconds")s) differs from the first: $different"
		record fail "run $2" "differs from the first: $different"
	else
		echo "PASS run $2 ($(cat "$1/$2.seconds")s): $(cut -f 1 "$1/$2" | sort | uniq -c | awk '{ printf "%s %s ", $1, $2 }')"
		record pass "run $2"
	fi
}
