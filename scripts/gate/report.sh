# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The verdict and the reports.

#
# The result
#

show_verdicts()
{
	echo "== verdicts: $G_TITLE on $K_NAME"
	awk -F '\t' '
		{
			split($2, part, "-")
			group = part[1]
			if (!(group in all))
				order[++n] = group
			all[group]++
			number[group, $1]++
			seconds[group] += $3
		}
		END {
			printf "%-12s %5s %5s %5s %5s %6s %8s\n", "group", "pass", "warn", "fail", "skip", "error", "seconds"
			for (i = 1; i <= n; i++) {
				g = order[i]
				printf "%-12s %5d %5d %5d %5d %6d %8d\n", g, number[g, "pass"], number[g, "warn"],
					number[g, "fail"], number[g, "skip"], number[g, "error"], seconds[g]
			}
		}' "$LOGS/verdicts"
	awk -F '\t' '$1 != "pass" { printf "%-5s %s: %s\n", toupper($1), $2, $4 }' "$LOGS/verdicts"
}

write_ktap()
{
	awk -F '\t' -v count="$(wc -l < "$LOGS/verdicts")" '
		BEGIN { print "KTAP version 1\n1.." count }
		{
			printf "%sok %d %s", ($1 == "fail" || $1 == "error" ? "not " : ""), NR, $2
			print ($1 == "skip" ? " # SKIP " $4 : $1 == "pass" ? "" : " # " $1 ": " $4)
		}' "$LOGS/verdicts" > "$LOGS/gate.ktap"
}

# finish_gate: what could not be run is nobody's failure, but no verdict either
finish_gate()
{
	write_ktap
	[ -z "$MARKDOWN" ] || write_markdown > "$MARKDOWN"
	say "logs: $G_DIR/results, $LOGS"
	if [ "$ERRORS" -gt 0 ] && [ "$(count_results fail)" -eq 0 ]; then
		no_verdict "$ERRORS could not be run"
	fi
	[ "$(count_results pass)" -gt 0 ] || [ "$(count_results fail)" -gt 0 ] ||
		no_verdict "none of these checks has anything to look at"
	finish
}

# no_verdict WHY
no_verdict()
{
	write_reports
	say "$1: no verdict"
	echo "$(count_results pass) passed, 0 failed, $(count_results skip) skipped"
	leave "$E_USAGE"
}

# write_markdown: what was run, on what, with which result, and what was not
write_markdown()
{
	local verdict name seconds summary dir number=0 mail
	cat <<-END
	# $(overall_verdict): $G_TITLE on $K_NAME

	Judged on $(date -u '+%Y-%m-%d %H:%M UTC') by \`run_tests.sh gate\` of
	$(git -C "$ROOT" describe --always --dirty 2> /dev/null || echo 'an unknown revision'), with
	$(gcc --version | head -n 1). Base: $K_NAME ($(cat "$K_DIR/base.version"))${G_ON_SERIES:+ with our own series}.

	END
	for mail in "$G_MAILS"/*; do
		number=$((number + 1))
		echo "$number. $(mail_subject "$mail")"
	done
	printf '\n| verdict | check | seconds | what it looks at | result |\n|---|---|---|---|---|\n'
	while IFS=$'\t' read -r verdict name seconds summary dir; do
		printf '| %s | %s | %s | %s | %s |\n' "$verdict" "$name" "$seconds" \
			"$(check_field "$name" Check)" "${summary//|/\\|}"
	done < "$LOGS/verdicts"
	printf '\n## Findings\n'
	while IFS=$'\t' read -r verdict name seconds summary dir; do
		[ -s "$dir/findings" ] || continue
		printf '\n%s (%s):\n\n' "$name" "$verdict"
		awk -F '\t' '{ print "- " $1 ": " $2 }' "$dir/findings"
	done < "$LOGS/verdicts"
	printf '\n## Not tested\n\n'
	awk -F '\t' '$1 == "skip" { print "- " $2 ": " $4 }
		$1 == "error" { print "- " $2 ": could not be run: " $4 }' "$LOGS/verdicts"
	not_chosen
}

not_chosen()
{
	local name
	for name in $(all_checks); do
		case " ${CHECKS[*]} " in
		*" $name "*) ;;
		*) echo "- $name ($(check_field "$name" Check)): not asked for${QUICK:+ by --quick}" ;;
		esac
	done
}

overall_verdict()
{
	if [ "$(count_results fail)" -gt 0 ]; then
		echo FAIL
	elif [ "$ERRORS" -gt 0 ]; then
		echo "NO VERDICT"
	elif grep -q '^warn' "$LOGS/verdicts"; then
		echo "PASS, with warnings"
	else
		echo PASS
	fi
}

# mail_subject MAIL: without the [PATCH n/m], header lines joined and decoded
mail_subject()
{
	kgit mailinfo /dev/null /dev/null < "$1" | sed -n 's/^Subject: //p'
}
