# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the gate: when there is a verdict, and what ends early.

# A change to the code of faults needs the kselftests in a guest: a check that is
# skipped, or not chosen, leaves the submission without a verdict.
test_gate_needs_behaviour()
{
	rm "$SANDBOX"/scripts/gate/checks/*
	BEGUN=$SCRATCH/begun.checks
	: > "$BEGUN"
	fake_check form-fine '#' 0
	fake_check behaviour-none '#' 0 'not_applicable "no kernel"'
	fake_check behaviour-kselftest '#' 0
	in_sandbox gate --base 6.12 && want_status 0 &&
	want_output '^ran [(]2[)]: form-fine behaviour-kselftest$' && want_output '^skipped [(]1[)]: behaviour-none$' || return
	in_sandbox gate --base 6.12 --skip behaviour-kselftest --markdown "$SCRATCH/report.md" && want_status 2 &&
	want_output '^it changes mm/Makefile mm/memory.c, but no check ran the kselftests on it: no verdict$' &&
	want_output '--only behaviour-kselftest' && want_output '^not chosen by --skip [(]1[)]: behaviour-kselftest$' &&
	want_output '^1 passed, 0 failed, 1 skipped$' || return
	grep -q '^# NO VERDICT: ' "$SCRATCH/report.md" || complain "the report says: $(head -n 1 "$SCRATCH/report.md")" || return
	in_sandbox gate --base 6.12 --only 'form-*' && want_status 2 &&
	in_sandbox gate --base 6.12 --only 'form-*' --no-verdict && want_status 0 && want_output 'no check ran the kselftests on it' || return
	# a failure needs no other look
	fake_check form-bad '#' 0 'fail "that is wrong"'
	in_sandbox gate --base 6.12 --only 'form-*' && want_status 1 || return
	# nor does a change to anything else
	rm "$SANDBOX/scripts/gate/checks/form-bad"
	other_change > "$SCRATCH/other.mbox"
	in_sandbox gate --base 6.12 --series "$SCRATCH/other.mbox" --only 'form-*' && want_status 0
}

# What it takes to look at a file: of an architecture, a check that boots that one.
test_gate_coverage()
{
	local LOGS=$SCRATCH/coverage K_TREE=$SCRATCH/coverage.tree G_BASE=HEAD~1 G_HEAD=HEAD file checks check why
	mkdir -p "$LOGS"
	while IFS='|' read -r file checks why; do
		rm -rf "$K_TREE"
		mkdir -p "$K_TREE/$(dirname "$file")"
		kgit -C "$K_TREE" init -q
		kgit -C "$K_TREE" commit -q --allow-empty -m base
		: > "$K_TREE/$file"
		kgit -C "$K_TREE" add -A
		kgit -C "$K_TREE" commit -q -m more
		for check in $checks; do
			printf '{"check": "%s", "verdict": "%s", "findings": []},' "${check%=*}" "${check#*=}"
		done | sed 's/^/[/; s/,$/]/' > "$LOGS/gate.json"
		want_same "$file $checks: $(why_no_verdict)" "$file $checks: ${why:+it changes $file, but no check ran the kselftests on it}" || return
	done <<-'END'
	mm/ksm.c|form-a=pass behaviour-kselftest=pass|
	mm/ksm.c|form-a=pass behaviour-kselftest=warn|
	mm/ksm.c|form-a=pass behaviour-kselftest-arm64=pass|
	mm/swapfile.c|behaviour-kunit-um=pass behaviour-kunit-x86_64=pass behaviour-kunit-arm64=pass|no
	mm/swapfile.c|behaviour-mm-cow=pass behaviour-mm-selftests=pass|no
	mm/ksm.c|form-a=pass behaviour-kselftest=skip sanitizers-kasan=pass|no
	mm/ksm.c|form-a=pass behaviour-kunit-each=pass|no
	mm/ksm.c|form-a=pass behaviour-kselftest=error|no
	fs/proc/task_mmu.c|build-each=pass|no
	mm/slub.c|build-each=pass|
	mm/cow_batch.c|behaviour-kunit-um=pass|no
	mm/folio.c|build-each=pass|no
	mm/migrate_device.c|build-each=pass|no
	mm/hugetlb.c|build-each=pass|no
	kernel/events/uprobes.c|build-each=pass|no
	include/linux/huge_mm.h|build-each=pass|no
	arch/x86/mm/pgtable.c|behaviour-kselftest-arm64=pass|no
	arch/x86/mm/pgtable.c|behaviour-kselftest=pass|
	arch/arm64/mm/fault.c|behaviour-kselftest=pass|no
	arch/x86/mm/tlb.c|behaviour-kselftest=pass|
	arch/x86/include/asm/tlbflush.h|behaviour-kselftest-arm64=pass behaviour-kunit-um=pass|no
	arch/arm64/include/asm/tlbflush.h|behaviour-kselftest-arm64=pass|
	arch/arm64/include/asm/tlb.h|behaviour-kselftest=pass behaviour-kunit-x86_64=pass|no
	arch/riscv/mm/tlbflush.c|behaviour-kselftest=pass behaviour-kselftest-arm64=pass|no
	arch/powerpc/mm/book3s64/radix_tlb.c|behaviour-kselftest=pass|no
	arch/arm64/lib/copy_page.S|behaviour-kselftest=pass|no
	arch/arm64/kernel/mte.c|behaviour-kselftest=pass|no
	END
}

# What a series adds has to be on in a guest: there is no verdict on code that never ran.
test_gate_not_switched()
{
	local LOGS=$SCRATCH/switched K_TREE=$SCRATCH/switched.tree G_BASE=HEAD~1 G_HEAD=HEAD G_OURS='' SET='' APPEND_ON='' line why
	mkdir -p "$LOGS"
	echo '[{"check": "behaviour-kselftest", "verdict": "pass", "findings": []}]' > "$LOGS/gate.json"
	while IFS='|' read -r line SET APPEND_ON why; do
		rm -rf "$K_TREE"
		mkdir -p "$K_TREE/mm"
		kgit -C "$K_TREE" init -q
		echo '	{ .procname = "old_key" },' > "$K_TREE/mm/memory.c"
		kgit -C "$K_TREE" add -A
		kgit -C "$K_TREE" commit -q -m base
		printf '%b\n' "$line" > "$K_TREE/mm/memory.c"
		kgit -C "$K_TREE" commit -q -a -m more
		want_same "$line: $(why_no_verdict)" "$line: ${why:+it adds $why, which nothing switched}" || return
	done <<-'END'
	x = 1;||||
	{ .procname = "old_key" }, x = 1;|||
	{ .procname = "key" },|||key
	{ .procname = "key" },|vm.other=1||key
	{ .procname = "key" },|vm.key=1||
	{ .procname = "key" },|/proc/sys/vm/key=1||
	{\n.procname = "key",\n.mode = 0444,\n},|||
	{\n.procname = "key",\n.mode = 0644,\n},|||key
	__setup("rival=", x);|||rival
	__setup("rival=", x);||rival=on|
	module_param(rival, bool, 0644);|||rival
	module_param(rival, bool, 0444);|||
	static struct kobj_attribute a = __ATTR_RW(rival);|||rival
	static struct kobj_attribute a = __ATTR_RO(rival);|||
	debugfs_create_bool("rival", 0600, NULL, \&rival);|||rival
	END
	# a kernel that is built without the option says nothing about it
	printf '[%s,%s]' '{"check": "behaviour-kselftest", "verdict": "pass", "findings": [["warn", "CONFIG_A cannot be on in this configuration: x"], ["warn", "CONFIG_B cannot be on in this configuration: x"]]}' \
		'{"check": "behaviour-kselftest-arm64", "verdict": "pass", "findings": [["warn", "CONFIG_B cannot be on in this configuration: x"]]}' > "$LOGS/gate.json"
	want_same "$(why_no_verdict)" "it adds CONFIG_B, which could be on in no guest"
}

# The options that a rival adds are off in one more run, and in no later one, as are the
# kernel's assertions.
test_gate_options_off()
(
	FINDINGS=$SCRATCH/findings LOGS=$SCRATCH/off.logs RAN=$SCRATCH/ran G_HEAD=HEAD G_OURS=
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/behaviour.sh"
	new_symbols() { printf '%s' "$SYMBOLS"; }
	boot_kernel() { echo "boot $1 off=$OPTIONS_OFF" >> "$RAN"; }
	run_on_submission() { echo "run $1" >> "$RAN"; }
	mkdir -p "$LOGS/guest"
	: > "$FINDINGS"
	: > "$RAN"
	SYMBOLS=
	G_OURS=yes SYMBOLS=$'COW_X mm/Kconfig\n' run_options_off
	printf 'fail\tno\n' > "$FINDINGS"
	run_options_off
	want_same "$(cat "$RAN")" '' || return
	: > "$FINDINGS"
	run_options_off
	SYMBOLS=$'COW_X mm/Kconfig\nCOW_Y mm/Kconfig\n'
	mkdir -p "$LOGS/guest"
	run_options_off
	want_same "$(paste -sd, "$RAN")" 'boot patched off=1,run options off: ,boot patched off=1,run options off: ' &&
	want_same "$OPTIONS_OFF" '' &&
	want_same "$(paste -sd, "$FINDINGS")" $'note\toptions off: CONFIG_DEBUG_VM,note\toptions off: CONFIG_COW_X CONFIG_COW_Y CONFIG_DEBUG_VM'
)

# Tests that skip for want of an option that is on have lost its interface.
test_gate_interfaces_missing()
(
	RESULTS=$SCRATCH/missing.results OUT=$SCRATCH/missing.out
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/behaviour.sh"
	mkdir -p "$OUT"
	echo CONFIG_COW_STATS=y > "$OUT/.config"
	printf 'skip\ta\tno vm.cow_precopy: kernel without CONFIG_COW_PRECOPY\npass\tb\t\n' > "$RESULTS"
	want_same "$(interfaces_missing)" '' || return
	printf 'skip\tc\tno /proc/cow_stats: kernel without CONFIG_COW_STATS\n%.0s' 1 2 >> "$RESULTS"
	want_same "$(interfaces_missing)" 'CONFIG_COW_STATS is on, but tests do not find its interface'
)

# KCIDB names what was tested: the base, the series, and the mail that introduces it.
test_gate_kcidb()
{
	local mails=$SCRATCH/kcidb.mails hash
	rm -rf "$SANDBOX"/scripts/gate/checks/* "$mails" "$SCRATCH"/kcidb*.json
	BEGUN=$SCRATCH/begun.checks
	fake_check form-applies '#' 0 '[ -z "$G_REFUSED" ] || fail "$G_REFUSED"'
	in_sandbox tree && want_status 0 || return
	kgit -C "$TREE_OF_BOX" format-patch -q --cover-letter -o "$mails" 'base..prepared^{/change the second thing}'
	in_sandbox gate --base 6.12 --no-verdict --series "$mails" --kcidb "$SCRATCH/kcidb.1.json" && want_status 0 || return
	sed -i '1a Message-ID: <cover.1@example.org>' "$mails"/0000*
	sed -i '1a Message-ID: <patch.1@example.org>' "$mails"/0001*
	hash=$(patchset_hash "$mails"/0001* "$mails"/0002*)
	in_sandbox gate --base 6.12 --no-verdict --series "$mails" --kcidb "$SCRATCH/kcidb.2.json" && want_status 0 || return
	# one that does not apply
	sed -i 's/^ int memory_149;/ int nonsense;/' "$mails"/0002*
	rm "$mails"/0000*
	in_sandbox gate --base 6.12 --series "$mails" --kcidb "$SCRATCH/kcidb.3.json" && want_status 1 || return
	OUT=$SCRATCH/output
	"$PYTHON" - "$SANDBOX/fixtures/kcidb/schema.json" "$hash" "$SCRATCH"/kcidb.?.json 2> "$OUT" <<-'END' || complain "KCIDB: $(tail -n 1 "$OUT")"
	import json, jsonschema, sys
	schema, *files = (json.load(open(name)) for name in [sys.argv[1]] + sys.argv[3:])
	for data in files:
	    jsonschema.validate(data, schema)
	bare, whole, refused = (data["checkouts"][0] for data in files)
	assert whole["patchset_hash"] == sys.argv[2], "the hash is not that of the mails"
	assert whole["message_id"] == "cover.1@example.org", whole
	assert whole["comment"] == "kcidb.mails on 6.12: 2 patches, the first: mm: change the first thing", whole
	assert whole["git_commit_name"] == "6.12.1-1", whole
	assert "message_id" not in bare and bare["valid"], bare
	assert not refused["valid"] and refused["message_id"] == "patch.1@example.org", refused
	assert refused["id"] != whole["id"], "two submissions with one id"
	assert [test["status"] for data in files for test in data["tests"]] == ["PASS", "PASS", "FAIL"], files
	assert files[1]["tests"][0]["path"] == "cow.gate.form-applies", files[1]
	END
	refused_with "about one submission" gate --selftest --kcidb "$SCRATCH/kcidb.json" || return
	# nor does it pass if only other checks are asked for
	fake_check form-other '#' 0 ':'
	in_sandbox gate --base 6.12 --only form-other --series "$mails" && want_status 1 &&
	want_output '^FAIL form-applies' && want_output '^SKIP form-other .*: the series does not apply'
}

# With one patch, the checks of each patch are skipped: those of the whole do the same.
test_gate_single_patch()
{
	find "$SANDBOX/scripts/gate/checks" -type f ! -name build-each ! -name behaviour-kunit-each -delete
	in_sandbox tree && want_status 0 || return
	kgit -C "$TREE_OF_BOX" format-patch -q -1 -o "$SCRATCH/single" 'prepared^{/change the first thing}'
	in_sandbox gate --base 6.12 --series "$SCRATCH/single" && want_status 2 &&
	want_output '^SKIP build-each .*: a single patch: build-warnings compiles the same$' &&
	want_output '^SKIP behaviour-kunit-each .*: a single patch: behaviour-kunit-um ' &&
	want_output '^none of these checks applies' || return
	# the sandbox's kernel cannot be built, but that is what is tried
	in_sandbox gate --base 6.12
	[ "$(grep -cE '^(FAIL|ERROR) (build|behaviour-kunit)-each [(]' "$OUT")" -eq 2 ] || complain "two patches: $(paste -sd'|' "$OUT")"
}

# other_change: a mail that changes the Makefile of the sandbox's kernel
other_change()
{
	sed 's/^EXTRAVERSION =/EXTRAVERSION = more/' "$PLAIN/Makefile" > "$SCRATCH/Makefile"
	cat <<-'END'
	From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
	From: A Developer <developer@example.org>
	Date: Mon, 23 Nov 2026 12:00:00 +0000
	Subject: [PATCH] a name

	More.
	---
	END
	diff -u --label a/Makefile --label b/Makefile "$PLAIN/Makefile" "$SCRATCH/Makefile" | sed '1i diff --git a/Makefile b/Makefile'
}

# A signal to the gate that judges submissions ends the gate that it runs.
test_gate_selftest_ended()
{
	local pid status=0 long="sleep 663.$$"
	rm "$SANDBOX"/scripts/gate/checks/* "$SANDBOX"/fixtures/submissions/*
	BEGUN=$SCRATCH/begun.checks
	: > "$BEGUN"
	fake_check form-long '#' "0; $long"
	{
		printf '%s\n' 'Submission: a name' 'Base: base' 'Run: form-long' 'Verdict: pass' ''
		other_change
	} > "$SANDBOX/fixtures/submissions/name.mbox"
	COW_BUILD='' COW_LOGS='' COW_RESULTS='' APT_SOURCES="$SCRATCH/archive/etc" \
		bash "$SANDBOX/scripts/cmd/gate" --selftest --base 6.12 > "$SCRATCH/output" 2>&1 < /dev/null &
	pid=$!
	wait_for_begun 1
	kill -TERM "$pid"
	wait "$pid" || status=$?
	want_same "$(wc -l < "$BEGUN")" 1 && want_same "$status" 143 || return
	want_ended "$long"
}

# A guest whose job prints nothing is stopped, whatever its console repeats; one that
# prints is not. The test that began and did not end is named.
test_gate_silence()
{
	local dir=$SCRATCH/silence GUEST_SILENCE=1 HUNG=
	mkdir -p "$dir"
	echo start > "$dir/status"
	: > "$dir/console.log"
	printf '%s\n' '# selftests: cow: a_test' '# #  RUN   a.one ...' 'ok 1 selftests: cow: a_test' \
		'# selftests: cow: b_test' '# #  RUN           b.fine ...' '# #            OK  b.fine' \
		'# #  RUN           b.stuck ...' > "$dir/job.log"
	want_same "$(hung_test "$dir/job.log")" ', in b_test:b.stuck' || return
	setsid bash -c "while sleep 0.1; do echo 'BUG: soft lockup' >> '$dir/console.log'; done" &
	GUEST=$!
	wait_guest "$dir" 600
	want_same "$HUNG" 'its job printed nothing for 1s' || return
	setsid bash -c "for i in 1 2 3 4 5 6 7 8; do sleep 0.3; echo more >> '$dir/job.log'; done" &
	GUEST=$!
	GUEST_SILENCE=30
	wait_guest "$dir" 600
	want_same "$HUNG" ''
}
