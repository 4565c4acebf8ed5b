# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The verdict and the reports: all of them by report.py, from the verdicts of all
# checks in $LOGS/gate.json.

gate_report()
{
	"$PYTHON" "$ROOT/scripts/gate/report.py" "$@"
}

show_verdicts()
{
	echo "== verdicts: $G_TITLE on $K_NAME"
	gate_report table "$LOGS/gate.json"
	show_switches
	show_coverage
}

# show_switches: what was to be switched on, by whom, and by which checks it was
show_switches()
{
	local what by
	[ -n "$G_SWITCHED" ] || return 0
	while IFS=$'\t' read -r what by; do
		[ -z "$what" ] || echo "switched on: $what ($by)"
	done <<< "$G_SWITCHED"
	gate_report switched "$LOGS/gate.json"
}

# finish_gate: writes the reports and leaves; JUnit, JSON and KCIDB as every command. A
# check that could not be run fails nobody, but without it there is no verdict.
finish_gate()
{
	local passed failed skipped errors
	WHY_NO_VERDICT=$(why_no_verdict)
	write_gate_reports
	read -r passed failed skipped errors < <(gate_report counts "$LOGS/gate.json")
	say "logs: $G_DIR/results, $LOGS"
	if [ "$errors" -gt 0 ] && [ "$failed" -eq 0 ]; then
		no_verdict "$errors could not be run"
	fi
	[ $((passed + failed)) -gt 0 ] || no_verdict "none of these checks applies to this submission"
	if [ -n "$WHY_NO_VERDICT" ] && [ "$failed" -eq 0 ]; then
		[ -n "$NO_VERDICT" ] || { say_what_to_run >&2; no_verdict "$WHY_NO_VERDICT"; }
		say "$WHY_NO_VERDICT (--no-verdict)"
	fi
	finish
}

write_gate_reports()
{
	gate_report ktap "$LOGS/gate.json" > "$LOGS/gate.ktap"
	[ -z "$KCIDB" ] || name_submission
	write_to "$MARKDOWN" write_markdown
}

# name_submission: for --kcidb: the base, and the series by its hash and its first mail
name_submission()
{
	local mails=("$G_MAILS"/*) first
	first=${mails[0]}
	KCIDB_TREE=$(kgit -C "$K_TREE" rev-parse "$G_HEAD^{tree}")
	KCIDB_PATCHSET=$(patchset_hash "${mails[@]}")
	KCIDB_COMMENT="$G_TITLE on $K_NAME${G_ON_SERIES:+ with the series of this suite}: ${#mails[@]} patches, the first: $(mail_subject "$first")"
	[ ! -d "$SCRATCH/covers" ] || first=$(find "$SCRATCH/covers" -type f | sort | sed -n 1p)
	KCIDB_MESSAGE_ID=$(sed '/^\r\?$/q' "${first:-${mails[0]}}" | tr -d '\r' | sed -n 's/^[Mm]essage-[Ii][Dd]:[[:space:]]*<\([^<>@ ]*@[^<>@ ]*\)>.*/\1/p' | sed -n 1p)
	[ -z "$G_REFUSED" ] || KCIDB_VALID=false
}

# no_verdict WHY
no_verdict()
{
	say "$1: no verdict"
	echo "$passed passed, 0 failed, $skipped skipped"
	write_reports
	leave "$E_USAGE"
}

write_markdown()
{
	local mail name
	for mail in "$G_MAILS"/*; do
		mail_subject "$mail"
	done > "$SCRATCH/subjects"
	for name in $(all_checks); do
		printf '%s\t%s\n' "$name" "$(check_field "$name" Check)"
	done > "$SCRATCH/checks"
	"$PYTHON" - "$SCRATCH/subjects" "$G_TITLE" "$K_NAME" "${QUICK:+ by --quick}" "$(about_this_run)" "$WHY_NO_VERDICT" "$NO_VERDICT" \
		"$(show_switches)" \
		> "$SCRATCH/facts.json" <<-'END'
	import json, sys
	subjects = open(sys.argv[1], encoding="utf-8", errors="replace").read().splitlines()
	print(json.dumps(dict(zip(("title", "kernel", "quick", "about", "unseen", "form_only", "switched"), sys.argv[2:]), patches=subjects)))
	END
	gate_report markdown "$LOGS/gate.json" "$SCRATCH/facts.json" "$SCRATCH/checks"
}

about_this_run()
{
	cat <<-END
	Judged on $(date -u '+%Y-%m-%d %H:%M UTC') by \`run_tests.sh gate\` of
	$(git -C "$ROOT" describe --always --dirty 2> /dev/null || echo 'an unknown revision'), with
	$(gcc --version | head -n 1). Base: $K_NAME ($(cat "$K_DIR/base.version"))${G_ON_SERIES:+ with our own series}.
	END
}

# mail_subject MAIL: without the [PATCH n/m], header lines joined and decoded
mail_subject()
{
	kgit mailinfo /dev/null /dev/null < "$1" | sed -n 's/^Subject: //p'
}
