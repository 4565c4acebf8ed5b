# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Results: one line for each test in a file (status, name, message, separated
# by tabs), counted, reported and written out in one place.

RESULTS=

# A nested command hands its results to its caller through COW_RESULTS.
open_results()
{
	open_logs
	RESULTS=$LOGS/results
	: > "$RESULTS"
}

# record STATUS NAME [MESSAGE]
record()
{
	local message=${3-}
	message=${message//$'\t'/ }
	printf '%s\t%s\t%s\n' "$1" "$2" "${message//$'\n'/; }" >> "$RESULTS"
}

# record_ktap LOG [PREFIX]: the tests of a KTAP log
record_ktap()
{
	awk -f "$ROOT/scripts/lib/ktap.awk" "$1" |
		awk -v prefix="${2-}" 'BEGIN { FS = OFS = "\t" } { $2 = prefix $2; print }' >> "$RESULTS"
}

count_results()
{
	awk -F '\t' -v status="$1" '$1 == status { n++ } END { print n + 0 }' "$RESULTS"
}

# show_results: one line for each group of tests (PROGRAM of PROGRAM:TEST,
# ARCH:SUITE of ARCH:SUITE:TEST), each failure, and the reasons of what was skipped
show_results()
{
	awk -F '\t' '
		{
			parts = split($2, part, ":")
			group = parts > 2 ? part[1] ":" part[2] : part[1]
			if (!(group in all))
				order[++n] = group
			all[group]++
			number[group, $1]++
			if ($1 == "fail")
				failures = failures "FAIL " $2 ($3 != "" ? ": " $3 : "") "\n"
			if ($1 == "skip" && !(reasons[$3]++))
				why[++m] = $3
		}
		END {
			for (i = 1; i <= n; i++) {
				group = order[i]
				verdict = number[group, "fail"] ? "FAIL" : number[group, "pass"] ? "PASS" : "SKIP"
				printf "%s %s (%d passed, %d failed, %d skipped)\n", verdict, group,
					number[group, "pass"], number[group, "fail"], number[group, "skip"]
			}
			for (i = 1; i <= m; i++)
				printf "skipped %d: %s\n", reasons[why[i]], why[i] != "" ? why[i] : "no reason given"
			printf "%s", failures
		}' "$RESULTS"
}

xml_escape()
{
	sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g' -e 's/"/\&quot;/g' |
		tr -d '\000-\010\013\014\016-\037'
}

write_junit()
{
	{
		echo '<?xml version="1.0" encoding="UTF-8"?>'
		printf '<testsuite name="cow.%s" tests="%d" failures="%d" errors="%d" skipped="%d">\n' \
			"$COMMAND" "$(wc -l < "$RESULTS")" "$(count_results fail)" "$(count_results error)" \
			"$(count_results skip)"
		xml_escape < "$RESULTS" | awk -F '\t' -v command="$COMMAND" '
			{
				printf "  <testcase classname=\"cow.%s\" name=\"%s\"", command, $2
				if ($1 == "pass")
					print "/>"
				else
					printf "><%s message=\"%s\"/></testcase>\n",
						$1 == "fail" ? "failure" : $1 == "error" ? "error" : "skipped", $3
			}'
		echo '</testsuite>'
	} > "$JUNIT"
}

write_json()
{
	{
		printf '{"command": "%s", "passed": %d, "failed": %d, "skipped": %d, "tests": [' \
			"$COMMAND" "$(count_results pass)" "$(count_results fail)" "$(count_results skip)"
		tr -d '\000-\010\013-\037' < "$RESULTS" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' |
		awk -F '\t' '{
			printf "%s\n  {\"name\": \"%s\", \"result\": \"%s\", \"message\": \"%s\"}",
				(NR > 1 ? "," : ""), $2, $1, $3
		}'
		printf '\n]}\n'
	} > "$JSON"
}

# finish: writes what was asked for, prints the last line, and leaves
finish()
{
	local passed failed skipped
	passed=$(count_results pass)
	failed=$(count_results fail)
	skipped=$(count_results skip)
	[ -z "$JUNIT" ] || write_junit
	[ -z "$JSON" ] || write_json
	[ -z "${COW_RESULTS-}" ] || cat "$RESULTS" >> "$COW_RESULTS"
	[ "$failed" -eq 0 ] || say "logs: $LOGS"
	echo "$passed passed, $failed failed, $skipped skipped"
	if [ "$failed" -gt 0 ]; then
		leave "$E_FAIL"
	elif [ "$passed" -gt 0 ]; then
		leave 0
	elif [ "$skipped" -gt 0 ]; then
		leave "$E_SKIP"
	fi
	die "no test ran; logs: $LOGS"
}
