# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The gate judges fixtures/submissions, whose verdicts are known.

#
# Submissions with one fault each: the gate's own test. A header like a mutant's:
# Submission (what is wrong), Base (base or series), Run (globs of checks),
# Verdict (pass, fail or warn), Check (which says so; none for pass), Finds (regular
# expression for the finding), Quick (yes: compiles little), Kernel (the bases that it
# is for, if not all).
#

submission_files()
{
	local file
	for file in "$ROOT"/fixtures/submissions/*.mbox; do
		# shellcheck disable=SC2254 # a glob on purpose
		case "$(basename "$file" .mbox)" in
		${FILTER:-*}) ;;
		*) continue ;;
		esac
		[ -z "$QUICK" ] || [ "$(submission_field "$file" Quick)" = yes ] || continue
		echo "$file"
	done
}

submission_field()
{
	sed -n -e '/^From /q' -e "s/^$2:[[:space:]]*//p" "$1" | head -n 1
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

# checks_of_submissions FILE...: the checks that these submissions are to be asked by
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
	name=$(basename "$file" .mbox)
	log=$LOGS/$name.log
	only=$(submission_field "$file" Kernel)
	if [ -n "$only" ] && [[ " $only " != *" $kernel "* ]]; then
		echo "SKIP $name (only for kernel $only)"
		record skip "$name" "only for kernel $only"
		return
	fi
	wrong=$(check_submission "$file" | paste -sd';')
	if [ -z "$wrong" ]; then
		start_ticker "$name" "$start"
		COW_RESULTS='' bash "$ROOT/scripts/cmd/gate" --series "$file" --base "$(submission_base "$file" "$kernel")" \
			--only "$(submission_field "$file" Run)" --jobs "$JOBS" ${TIMEOUT:+--timeout "$TIMEOUT"} \
			${FRESH:+--fresh} ${INSTALL_DEPS:+--install-deps} --json "$LOGS/$name.json" > "$log" 2>&1 < /dev/null || status=$?
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
