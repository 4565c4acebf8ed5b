# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The gate's own test: it judges fixtures/submissions, whose verdicts are known.
#
# Most have one mistake. NAME.mbox is a whole submission; NAME.diff is a diff against the
# mails of good.mbox, if any is needed. Both begin with a header, which an empty line ends:
#   Submission: what is wrong with it
#   Base: base or series (our own series is the base)
#   Run: globs of the checks to run
#   Verdict: pass, warn or fail
#   Check: the check that must say so (not for pass)
#   Finds: extended regular expression for what it must find (not for pass)
#   Quick: yes for those that check runs: most compile little, some boot a guest
#   Kernel: the bases that it is for, if not all
#   Repeat: COUNT TEXT; so many such lines are added behind the first patch's '---',
#           where a note to the reader stands (only in a .diff)

# submission_files: those that --filter and --quick choose
submission_files()
{
	local file
	for file in "$ROOT"/fixtures/submissions/*.mbox "$ROOT"/fixtures/submissions/*.diff; do
		chosen_by_filter "$(submission_name "$file")" || continue
		[ -z "$QUICK" ] || [ "$(submission_field "$file" Quick)" = yes ] || continue
		echo "$file"
	done
}

# choose_submissions: sets FILES
choose_submissions()
{
	mapfile -t FILES < <(submission_files)
	[ ${#FILES[@]} -gt 0 ] ||
		die "no submission matches '$FILTER'; there are: $(submission_names)"
}

list_submissions()
{
	local file
	choose_submissions
	for file in "${FILES[@]}"; do
		submission_name "$file"
	done | sort
}

submission_name()
{
	basename "${1%.*}"
}

submission_names()
{
	local file
	for file in "$ROOT"/fixtures/submissions/*.mbox "$ROOT"/fixtures/submissions/*.diff; do
		submission_name "$file"
	done | sort | paste -sd' '
}

# submission_mails FILE: the mails themselves, without the header
submission_mails()
{
	case "$1" in
	*.mbox)
		sed '1,/^$/d' "$1" ;;
	*.diff)
		submission_mails "$ROOT/fixtures/submissions/good.mbox" > "$SCRATCH/mails.mbox"
		if grep -q '^@@ ' "$1"; then
			patch -s --fuzz=0 "$SCRATCH/mails.mbox" < "$1" || die "$1 does not apply to good.mbox"
		fi
		repeat_line "$(submission_field "$1" Repeat)" < "$SCRATCH/mails.mbox" ;;
	esac
}

# repeat_line 'COUNT TEXT'
repeat_line()
{
	awk -v count="${1%% *}" -v text="${1#* }" '
		{ print }
		$0 == "---" && !done { done = 1; for (i = 0; i < count; i++) print text }'
}

submission_field()
{
	sed -n -e '/^$/q' -e "s/^$2:[[:space:]]*//p" "$1" | head -n 1
}

# check_submission FILE: prints what is wrong with its header
check_submission()
{
	local field
	for field in Submission Base Run Verdict; do
		[ -n "$(submission_field "$1" "$field")" ] || echo "no '$field:' in its header"
	done
	case "$(submission_field "$1" Verdict)" in
	fail|warn)
		[ -f "$CHECKS_DIR/$(submission_field "$1" Check)" ] || echo "'Check:' names no check"
		[ -n "$(submission_field "$1" Finds)" ] || echo "no 'Finds:' in its header" ;;
	pass) ;;
	*) echo "'Verdict:' must be pass, warn or fail" ;;
	esac
}

# checks_of_submissions FILE...: the checks that judge them
checks_of_submissions()
{
	local file name
	set -f
	for name in $(all_checks); do
		for file; do
			! matches "$name" "$(submission_field "$file" Run)" || echo "$name"
		done
	done | sort -u
	set +f
}

judge_submissions()
{
	local file kernel=${BASE:-$(default_kernel)}
	for file; do
		judge_submission "$file" "$kernel"
	done
}

# judge_submission FILE KERNEL
judge_submission()
{
	local file=$1 kernel=$2 name start=$SECONDS log status=0 wrong only
	name=$(submission_name "$file")
	log=$LOGS/$name.log
	only=$(submission_field "$file" Kernel)
	if [ -n "$only" ] && [[ " $only " != *" $kernel "* ]]; then
		echo "SKIP $name (only for kernel $only)"
		record skip "$name" "only for kernel $only"
		return
	fi
	wrong=$(check_submission "$file" | paste -sd';')
	if [ -z "$wrong" ]; then
		submission_mails "$file" > "$SCRATCH/$name.mbox"
		start_ticker "$name" "$start"
		run_nested_gate --series "$SCRATCH/$name.mbox" --base "$(submission_base "$file" "$kernel")" \
			--no-verdict --only "$(submission_field "$file" Run)" --jobs "$JOBS" ${TIMEOUT:+--timeout "$TIMEOUT"} \
			${FRESH:+--fresh} ${INSTALL_DEPS:+--install-deps} > "$log" 2>&1 || status=$?
		stop_ticker
		leave_if_interrupted "$status"
		wrong=$(wrong_verdict "$file" "$log" "$status")
	fi
	if [ -z "$wrong" ]; then
		echo "PASS $name: $(submission_field "$file" Verdict)$(submission_field "$file" Check | sed 's/^/ by /') ($((SECONDS - start))s)"
		record pass "$name"
	else
		echo "FAIL $name: $wrong ($((SECONDS - start))s)"
		[ ! -f "$log" ] || show_tail "$log"
		record fail "$name" "$wrong"
	fi
}

NESTED_GATE=

# run_nested_gate ARGUMENT...: waited for in the background, so that a signal is handled
# at once; end_nested_gate then ends it with all that it started
run_nested_gate()
{
	local status=0
	set -m
	COW_RESULTS='' bash "$ROOT/scripts/cmd/gate" "$@" < /dev/null &
	NESTED_GATE=$!
	set +m
	wait "$NESTED_GATE" || status=$?
	NESTED_GATE=
	return "$status"
}

end_nested_gate()
{
	[ -n "$NESTED_GATE" ] || return 0
	kill -TERM "$NESTED_GATE" 2> /dev/null || true
	wait "$NESTED_GATE" 2> /dev/null || true
	NESTED_GATE=
}

at_exit end_nested_gate

submission_base()
{
	case "$(submission_field "$1" Base)" in
	series) echo "series:$2" ;;
	*) echo "$2" ;;
	esac
}

# not_passed FILE LOG: the checks that Run names, not by a glob, and that said anything
# else: skipped is not looked at
not_passed()
{
	local name
	set -f
	for name in $(submission_field "$1" Run); do
		[[ "$name" == *[*?[]* ]] || grep -q "^PASS $name (" "$2" || echo "$name did not pass"
	done
	set +f
}

# wrong_verdict FILE LOG STATUS: prints how the verdict differs from the header's.
# Exactly the named check must fail (or warn), and for the reason that is named.
wrong_verdict()
{
	local file=$1 log=$2 status=$3 want check got others
	want=$(submission_field "$file" Verdict)
	check=$(submission_field "$file" Check)
	others=$(sed -n 's/^\(FAIL\|ERROR\) \([^ ]*\) (.*/\2/p' "$log" | paste -sd' ')
	case "$want" in
	pass|warn)
		[ "$status" -eq 0 ] || echo "status $status, wanted 0: $others"
		not_passed "$file" "$log"
		[ "$want" = warn ] || return 0
		got=$(sed -n "s/^WARN $check (/(/p" "$log") ;;
	fail)
		[ "$status" -eq 1 ] || echo "status $status, wanted 1"
		[ "$others" = "$check" ] || echo "failing: '$others', wanted '$check'"
		got=$(sed -n "/^FAIL $check (/p" "$log") ;;
	esac
	[ -n "$got" ] || echo "no $want by $check"
	grep -qE -- "$(submission_field "$file" Finds)" "$log" ||
		echo "for another reason: no /$(submission_field "$file" Finds)/"
}
