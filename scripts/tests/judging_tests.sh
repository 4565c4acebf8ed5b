# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the gate: its verdicts.

#
# gate: on the sandbox's kernel, mostly with checks that are made up here
#

test_judging_bad_input()
{
	refused_with "no check matches 'nonsense-\*'" gate --only 'nonsense-*' &&
	refused_with "no check matches 'x'" gate --skip form-applies,x &&
	refused_with "neither an mbox nor a folder" gate --series /nonexistent &&
	refused_with "is no folder" gate --tree /nonexistent --range a..b &&
	refused_with "is not A..B" gate --tree / --range a &&
	refused_with "needs --range A..B" gate --tree / &&
	refused_with "is no git tree" gate --tree "$SCRATCH" --range a..b &&
	refused_with "are two submissions" gate --tree / --range a..b --series / &&
	refused_with "A is the base" gate --tree / --range a..b --base 6.12 &&
	refused_with "neither a known kernel" gate --base v6.18 &&
	refused_with "is for a --series on top" gate --base series &&
	refused_with "give --base" gate --kernel 6.12 &&
	refused_with "needs globs" gate --only '' &&
	refused_with "goes with --selftest" gate --filter x &&
	refused_with "says what it is judged by" gate --selftest --only 'form-*' &&
	refused_with "brings its own submissions" gate --selftest --series / &&
	refused_with "no submission matches 'x'; there are: .* form-size .* no-maintainer" gate --selftest --filter x &&
	refused_with "cannot be written" gate --markdown /nonexistent/report.md &&
	refused_with "takes no argument 'x'" gate x
}

# Every check says what it is, and of every submission what it is to get.
test_judging_headers()
{
	local name mbox wrong
	in_repo gate --list && want_status 0 || return
	for name in $(cd "$ROOT/scripts/gate/checks" && echo *); do
		want_output "^$name +[0-9]+ min +.*[a-z]" || return
	done
	in_repo gate --list --only 'form-*' --skip form-spdx && want_output '^form-size ' &&
	want_same "$(grep -c '^build\|^form-spdx' "$OUT")" 0 || return
	for mbox in $(submission_files); do
		wrong=$(check_submission "$mbox")
		[ -z "$wrong" ] || complain "${mbox##*/}: $wrong" || return
	done
}

# gate_check NAME COMMAND...: a check in the sandbox, quick, that leaves a trace
gate_check()
{
	local name=$1
	shift
	{
		printf '# shellcheck shell=bash\n# Check: the check %s\n# Cost: 1\n# Quick: yes\n' "$name"
		printf 'check()\n{\n\techo ran >> "%s/ran.%s"\n\t%s\n}\n' "$SCRATCH" "$name" "$*"
	} > "$SANDBOX/scripts/gate/checks/$name"
}

# ran NAME TIMES
ran()
{
	want_same "$1 ran $(wc -l < "$SCRATCH/ran.$1" 2> /dev/null || echo 0)" "$1 ran $2"
}

made_up_checks()
{
	rm -f "$SANDBOX"/scripts/gate/checks/* "$SCRATCH"/ran.*
	gate_check form-good 'note "2 patches"'
	gate_check form-odd 'warn "this is odd"'
	gate_check build-none 'not_applicable "nothing to build"'
}

test_judging_verdicts()
{
	made_up_checks
	in_sandbox gate --base 6.12 --no-verdict --markdown "$SCRATCH/report.md" && want_status 0 &&
	want_output '^PASS form-good \([0-9]+s\): 2 patches$' &&
	want_output '^WARN form-odd \([0-9]+s\): this is odd$' &&
	want_output '^SKIP build-none \([0-9]+s\): nothing to build$' &&
	want_output '^form +1 +1 +0 +0 +0 ' && want_output '^build +0 +0 +0 +1 +0 ' &&
	want_output '^2 passed, 0 failed, 1 skipped$' || return
	OUT=$SCRATCH/report.md
	want_output '^# PASS, with warnings: our own series on 6.12$' && want_output '^2. mm: change the second thing$' &&
	want_output '^- build-none: nothing to build$' || return
	# a failure, though the check would skip the rest; several are counted
	gate_check form-bad 'fail "one | two"; fail three; not_applicable more'
	in_sandbox gate --base 6.12 --markdown "$SCRATCH/report.md" --json "$SCRATCH/gate.json" \
		--junit "$SCRATCH/gate.xml" && want_status 1 &&
	want_output '^FAIL form-bad .*: one \| two \(and 1 more\)$' && want_output '^2 passed, 1 failed, 1 skipped$' || return
	"$PYTHON" -c 'import json, sys, xml.dom.minidom
assert json.load(open(sys.argv[1]))["failed"] == 1
xml.dom.minidom.parse(sys.argv[2])' "$SCRATCH/gate.json" "$SCRATCH/gate.xml" 2> "$OUT" ||
		complain "JSON or JUnit: $(tail -n 1 "$OUT")"
}

# What cannot be run is neither passed nor failed, and is not kept.
test_judging_infrastructure()
{
	made_up_checks
	gate_check form-broken 'die "the compiler is gone"'
	gate_check form-bug 'false'
	in_sandbox gate --base 6.12 && want_status 2 &&
	want_output '^ERROR form-broken .*the compiler is gone' && want_output '^ERROR form-bug ' &&
	want_output '^2 could not be run: no verdict$' && want_output '^2 passed, 0 failed, 1 skipped$' || return
	in_sandbox gate --base 6.12 && want_status 2 && ran form-broken 2 && ran form-good 1 || return
	gate_check form-bad 'fail "its own"'
	in_sandbox gate --base 6.12 && want_status 1 && want_output '^2 passed, 1 failed, 1 skipped$'
}

test_judging_resumes()
{
	made_up_checks
	# cut off in the midst of the second check
	gate_check form-odd 'kill -KILL "$PPID"; sleep 1'
	in_sandbox gate --base 6.12 && want_status 2 && ran form-good 1 && ran form-odd 1 || return
	in_sandbox gate --base 6.12 && want_status 2 && ran form-good 1 && ran form-odd 2 || return
	gate_check form-odd 'note fine'
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && want_output '^PASS form-good .*\(known\)' &&
	ran form-good 1 && ran form-odd 3 && ran build-none 1 || return
	in_sandbox gate --base 6.12 --no-verdict --fresh && want_status 0 && ran form-good 2 && ran form-odd 4 || return
	# nothing stale: another series, another check
	sed -i 's/+long memory_150;/+short memory_150;/' "$SANDBOX/patches/"0002*
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && ran form-good 3 && ran form-odd 5 && ran build-none 3 || return
	sed -i 's/^Because too\.$/Because as well./' "$SANDBOX/patches/"0002*
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && ran form-good 4 || return
	gate_check form-good 'note "something else"'
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && ran form-good 5 && ran form-odd 6
}

# A result is kept until a file changes that may decide it: what all checks share, or what
# the check's Uses names.
test_judging_keys()
{
	made_up_checks
	rm "$SANDBOX/scripts/gate/checks/build-none"
	echo '# nothing yet' > "$SANDBOX/scripts/bench/other"
	sed -i '/^# Quick/a # Uses: scripts/bench/other' "$SANDBOX/scripts/gate/checks/form-odd"
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && ran form-good 1 && ran form-odd 1 || return
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && ran form-good 1 && ran form-odd 1 || return
	echo '# more' >> "$SANDBOX/scripts/bench/other"
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && ran form-good 1 && ran form-odd 2 || return
	echo '# more' >> "$SANDBOX/scripts/lib/results.sh"
	in_sandbox gate --base 6.12 --no-verdict && want_status 0 && ran form-good 2 && ran form-odd 3
}

# scripts_of FILE: the scripts that it sources or runs, and so on
scripts_of()
{
	local script
	while read -r script; do
		case " $SEEN " in
		*" $script "*) continue ;;
		esac
		SEEN+=" $script"
		scripts_of "$ROOT/$script"
	done < <(sed -n -E 's#^[^\#]*(\.|bash|-f|"\$PYTHON".*) "\$ROOT/(scripts/[^"$]*)".*#\2#p' "$1")
}

# All scripts that a check sources or runs are shared by all checks or among its Uses.
test_judging_uses()
{
	local name script SEEN
	for name in $(all_checks); do
		SEEN=
		scripts_of "$ROOT/scripts/gate/checks/$name"
		for script in $SEEN; do
			case "$script" in
			scripts/lib/*|scripts/gate/*) continue ;;
			esac
			shared_files "$name" | grep -Fx -e "$script" -e "$(dirname "$script")" > /dev/null ||
				complain "$name runs $script, which its Uses do not name" || return
		done
	done
}

# An mbox in any order, with a cover letter and an answer; one patch that is missing;
# one that does not apply.
test_judging_series()
{
	local mbox=$SCRATCH/series.mbox
	in_sandbox tree && want_status 0 || return
	rm -rf "$SCRATCH/split"
	kgit -C "$TREE_OF_BOX" format-patch -q --cover-letter -o "$SCRATCH/split" 'base..prepared^{/change the second thing}'
	cat "$SCRATCH"/split/0002* "$SCRATCH"/split/0000* "$SCRATCH"/split/0001* > "$mbox"
	sed 's/^Subject: .*/Subject: Re: what of that?/' "$SCRATCH"/split/0001* >> "$mbox"
	in_sandbox gate --base 6.12 --no-verdict --series "$mbox" --only form-applies,form-message && want_status 0 &&
	want_output '^judging series.mbox: 2 patches on 6.12$' && want_output '^2 passed, 0 failed' || return
	in_sandbox gate --base 6.12 --no-verdict --series "$SCRATCH/split" --only form-applies && want_status 0 || return
	# numbers with nothing before them; a cover letter with the changes since the last version
	sed -i 's,\[PATCH ,[,' "$mbox"
	sed -n '/^---$/,$p' "$SCRATCH"/split/0002* > "$SCRATCH/interdiff"
	sed -i "/^\*\*\* BLURB HERE/r $SCRATCH/interdiff" "$mbox"
	in_sandbox gate --base 6.12 --no-verdict --series "$mbox" --only form-applies && want_status 0 || return
	cat "$SCRATCH"/split/0002* > "$mbox"
	in_sandbox gate --base 6.12 --series "$mbox" && want_status 2 && want_output 'is not whole: it says 2 patches and has number 2' || return
	! grep 'holds no patch' "$OUT" > "$SCRATCH/complaint" || return
	sed -i 's/^ int memory_149;/ int memory_nonsense;/; s,\[PATCH 2/2\],[PATCH],' "$mbox"
	in_sandbox gate --base 6.12 --series "$mbox" --only 'form-*' && want_status 1 &&
	want_output '^FAIL form-applies .*mm/memory.c: hunk 1' && want_output '^SKIP form-message .*does not apply' &&
	want_output '^0 passed, 1 failed' || return
	in_sandbox gate --base 6.12 --series "$mbox" --only form-message && want_status 1 &&
	want_output 'mm/memory.c: hunk 1' && want_output '^0 passed, 1 failed' || return
	echo nothing > "$mbox"
	in_sandbox gate --base 6.12 --series "$mbox" && want_status 2 && want_output 'holds no patch' || return
	# as b4 am -o - pipes it
	in_sandbox gate --base 6.12 --series - && want_status 2 && want_output 'standard input is empty' || return
	cat "$SCRATCH"/split/000[12]* > "$mbox"
	INPUT=$mbox in_sandbox gate --base 6.12 --no-verdict --series - --only form-applies && want_status 0 &&
	want_output '^judging stdin.mbox: 2 patches on 6.12$'
}

# A range of the user's tree, of which not one file is written.
test_judging_range()
{
	local tree=$SCRATCH/users.tree before
	rm -rf "$tree"
	cp -r "$PLAIN" "$tree"
	sed -i 's/int memory_20;/long memory_20;/' "$tree/mm/memory.c"
	kgit -C "$tree" commit -q -a -m 'mm: change it' -m 'Because.'
	echo 'int uncommitted;' >> "$tree/mm/memory.c"
	before=$(cd "$tree" && find . -type f -printf '%p %T@ %s\n' | sort | sha256sum)
	in_sandbox gate --no-verdict --tree "$tree" --range HEAD~1..HEAD --only form-applies,form-message && want_status 0 &&
	want_output '^judging HEAD~1..HEAD of users.tree: 1 patches' &&
	want_same "$(cd "$tree" && find . -type f -printf '%p %T@ %s\n' | sort | sha256sum)" "$before" || return
	in_sandbox gate --tree "$tree" --range HEAD..HEAD && want_status 2 && want_output 'no commit in' || return
	in_sandbox gate --tree "$tree" --range nonsense..HEAD && want_status 2 && want_output "'nonsense' is no commit" || return
	kgit -C "$tree" checkout -q -f -b side HEAD~1
	kgit -C "$tree" commit -q --allow-empty -m 'mm: another'
	kgit -C "$tree" merge -q -m merged work
	in_sandbox gate --tree "$tree" --range HEAD~1..HEAD --only form-applies && want_status 1 && want_output 'holds merges'
}
