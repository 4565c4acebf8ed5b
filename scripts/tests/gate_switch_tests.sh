# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the gate: what is switched on in the submission's kernel.

# switch_series [LINE...]: a series for the sandbox's kernel in $SCRATCH/switch.mbox that
# adds an option, a sysctl and two files of sysfs. The lines are in its second mail.
switch_series()
{
	local tree=$SCRATCH/switch.tree
	rm -rf "$tree"
	cp -r "$PLAIN" "$tree"
	printf '{ .procname = "old_key", }\n{ .procname = "swap_key", }\nstruct a = __ATTR(enabled, 0);\n' >> "$tree/mm/memory.c"
	printf 'config OLD_OPTION\n\tbool "old"\n' > "$tree/mm/Kconfig"
	kgit -C "$tree" add -A
	kgit -C "$tree" commit -q -m 'the base'
	SWITCH_BASE=$(kgit -C "$tree" rev-parse HEAD)
	printf '\nconfig RIVAL\n\tbool "rival"\n' >> "$tree/mm/Kconfig"
	kgit -C "$tree" commit -q -a -m 'mm: an option' -m 'Because.'
	printf '{ .procname = "rival_key", }\nx = kobject_create_and_add("rival_dir");\n__ATTR(enabled, 1);\nDEVICE_ATTR_RW(rival_file);\n' >> "$tree/mm/memory.c"
	kgit -C "$tree" commit -q -a -m 'mm: a sysctl' -m "Because too.$(printf '\n%s' '' "$@")"
	rm -rf "$SCRATCH/switch.mails"
	kgit -C "$tree" format-patch -q --cover-letter -o "$SCRATCH/switch.mails" HEAD~2
	sed -i 's/^\*\*\* SUBJECT HERE.*//; s/^\*\*\* BLURB HERE.*/What and why./' "$SCRATCH"/switch.mails/0000*
	SWITCH_TREE=$tree
}

# judge_switches ARGUMENT...: in the sandbox, with a check that prints what it got
judge_switches()
{
	rm "$SANDBOX"/scripts/gate/checks/* 2> /dev/null || true
	fake_check form-shows '#' 0 'note "got $(printf %s "$SET|$SET_CONFIG|$APPEND_ON" | paste -sd,)"'
	in_sandbox gate --no-verdict --tree "$SWITCH_TREE" --series "$SCRATCH/switch.mails" --base "$SWITCH_BASE" "$@"
}

# A mail switches on what its patches add; the command line comes last; all is listed.
test_gate_mail_switches()
{
	BEGUN=$SCRATCH/begun.checks
	switch_series 'Gate-set: vm.rival_key=1' 'gate-config:  CONFIG_RIVAL=y' '> Gate-set: vm.old_key=1' \
		'Gate-set: /sys/kernel/mm/rival_dir/enabled=always' 'Gate-set: /sys/block/x/rival_file=0'
	judge_switches && want_status 0 &&
	want_output 'got vm.rival_key=1,/sys/kernel/mm/rival_dir/enabled=always,/sys/block/x/rival_file=0,\|RIVAL=y,\|$' &&
	want_output '^switched on: vm.rival_key=1 [(]patch 2[)]$' && want_output '^switched on: CONFIG_RIVAL=y [(]patch 2[)]$' || return
	# the cover letter, header and text; not an answer to it, nor what a diff adds
	sed -i -e '1a Gate-set: vm.rival_key=2' -e 's/^What and why./Gate-config: RIVAL=m/' "$SCRATCH"/switch.mails/0000*
	sed 's/^Subject: .*/Subject: Re: [PATCH 0\/2] of that/; s/rival_key=2/old_key=1/' "$SCRATCH"/switch.mails/0000* > "$SCRATCH/switch.mails/answer.eml"
	judge_switches --set vm.swap_key=3 --config OLD_OPTION=n --append 'a=b c' --markdown "$SCRATCH/report.md" && want_status 0 &&
	want_output 'got vm.rival_key=2,vm.rival_key=1,.*,vm.swap_key=3,\|RIVAL=m,RIVAL=y,OLD_OPTION=n,\|a=b c$' &&
	want_output '^switched on: vm.rival_key=2 [(]cover letter[)]$' && want_output '^switched on: vm.swap_key=3 [(]--set[)]$' &&
	want_output '^switched on: CONFIG_OLD_OPTION=n [(]--config[)]$' && want_output '^switched on: boot argument a=b c [(]--append[)]$' &&
	want_output '^no check that was run switches anything on$' || return
	grep -q '^switched on: vm.swap_key=3 (--set)$' "$SCRATCH/report.md" || complain "the report does not list it" || return
	fake_check form-switches '#' 0 'note "switched on: vm.rival_key=1"'
	in_sandbox gate --no-verdict --tree "$SWITCH_TREE" --series "$SCRATCH/switch.mails" --base "$SWITCH_BASE" &&
	want_output '^form-switches ran with: vm.rival_key=1$'
}

# Nothing else: not what the base has, no kernel argument, no file elsewhere.
test_gate_mail_must_not()
{
	local line
	BEGUN=$SCRATCH/begun.checks
	switch_series 'Gate-append: quiet'
	judge_switches && want_status 2 && want_output "patch 2 must not ask for 'Gate-append: quiet'" &&
	want_output 'never kernel arguments' || return
	for line in 'Gate-set: vm.old_key=1' 'Gate-set: /proc/sys/vm/old_key=1' 'Gate-Append: vm.rival_key=1' \
			'Gate-config: OLD_OPTION=y' 'Gate-set: /sys/kernel/mm/ksm/enabled=1' 'Gate-set: /proc/rival_key=1' \
			'Gate-set: /sys/kernel/mm/rival_dir/../ksm/enabled=1' 'Gate-set: /sys/kernel/debug/rival_file=1' \
			'Gate-set: /sys/kernel/mm/rival_dir/run=1' 'Gate-set: vm.rival=1' 'Gate-config: OTHER=y' 'Gate-config: RIVAL=n'; do
		mail_line "$line" && want_status 2 && want_output "patch 2 must not ask for '${line//./[.]}'" || return
	done
	for line in "Gate-set: vm.rival_key=1'; reboot '" 'Gate-set: rival_key' 'Gate-set: /etc/passwd=x' 'Gate-config: RIVAL=maybe' 'Gate-config: RIVAL'; do
		mail_line "$line" && want_status 2 && want_output "patch 2: Gate-(set|config) '" || return
	done
	mail_line 'Gate-set: vm.rival_key=1' && want_status 0
}

# mail_line LINE: what the gate says to it in the second mail of switch_series
mail_line()
{
	OUT=$SCRATCH/output
	STATUS=0
	(
		K_TREE=$SWITCH_TREE G_BASE=$SWITCH_BASE G_HEAD=HEAD MAIL_SET='' MAIL_CONFIG=''
		trap - EXIT
		kernel_lines > "$SCRATCH/added.lines"
		take_mail_switch 'patch 2' "$1"
	) > "$OUT" 2>&1 || STATUS=$?
}

# What the submission's kernel does not have is said before anything is built.
test_gate_unknown_switches()
{
	BEGUN=$SCRATCH/begun.checks
	switch_series
	: > "$BEGUN"
	judge_switches --set vm.no_such=1 && want_status 2 && want_output "has no sysctl 'vm.no_such'" &&
	judge_switches --set /proc/sys/vm/no_such=1 && want_status 2 && want_output "has no sysctl 'vm.no_such'" &&
	judge_switches --set /sys/kernel/mm/no_such=1 && want_status 2 && want_output "is called 'no_such'" &&
	judge_switches --set net.no_such=1 && want_status 2 && want_output "is called 'no_such'" &&
	judge_switches --config NO_SUCH=y && want_status 2 && want_output "has no option NO_SUCH" &&
	want_same "$(cat "$BEGUN")" "" &&
	judge_switches --set vm.old_key=1 --config CONFIG_OLD_OPTION=y && want_status 0 || return
	refused_with "is not SYMBOL=VALUE" gate --config foo=y && refused_with "is not SYMBOL=VALUE" gate --config FOO=yes &&
	refused_with "is not KEY=VALUE" gate --set 1 && refused_with "neither below /sys nor below /proc" gate --set /etc/x=1
}

# --config decides about new options, too; what x86_64 refuses is an error there only.
test_gate_set_fragment()
{
	local SET_CONFIG=$'RIVAL=m\nSIZE=3\nRIVAL=n\n' G_OURS='' G_ON_SERIES='' ARCH=x86_64 RIVAL_FRAGMENT='' FINDINGS=$SCRATCH/findings
	local OPTIONS_NOTED=''
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/behaviour.sh"
	fragment_of() { printf '%s\n' CONFIG_RIVAL=y CONFIG_OTHER=y > "$SCRATCH/on.fragment"; }
	: > "$FINDINGS"
	enable_options
	want_same "$(paste -sd'|' "$RIVAL_FRAGMENT")" $'CONFIG_OTHER=y\t# optional|# CONFIG_RIVAL is not set|CONFIG_SIZE=3' || return
	ARCH=arm64
	enable_options
	want_same "$(tail -n 1 "$RIVAL_FRAGMENT")" $'CONFIG_SIZE=3\t# optional' &&
	want_same "$(cat "$FINDINGS")" $'note\tswitched on: CONFIG_OTHER=y # CONFIG_RIVAL is not set CONFIG_SIZE=3' || return
	SET_CONFIG=
	enable_options
	want_same "$(cut -f 1 "$RIVAL_FRAGMENT" | paste -sd'|')" 'CONFIG_RIVAL=y|CONFIG_OTHER=y'
}

# lines STATUS NAME MESSAGE...: results
lines()
{
	printf '%s\t%s\t%s\n' "$@"
}

# What fails on the base, too, is no failure of the submission, but is named; what passes
# there must not skip. A complaint of the kernel is excused by its text, not by its name.
test_gate_judged_by_base()
{
	local ARCH=x86_64 LOGS=$SCRATCH/judged-by-base RESULTS=$SCRATCH/judged-by-base/results FINDINGS=$SCRATCH/findings SWITCH_ON='' DEBUG='' G_OURS=''
	mkdir -p "$LOGS/guest"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/behaviour.sh"
	boot_kernel() { mkdir -p "$LOGS/guest"; }
	run_selftests() {
		printf '%s\n' "${CHOSEN[@]}" > "$LOGS/asked"
		lines fail a:a.plain.known why pass a:a.plain.new '' pass a:a.plain.gone '' skip a:a.plain.lacks no > "$RESULTS"
	}
	: > "$FINDINGS"
	lines fail a:a.plain.known why fail a:a.plain.new why skip a:a.plain.gone 'cannot' skip a:a.plain.lacks no \
		skip mte_tags:mte_tags.plain.x no pass a:a.plain.fine '' > "$RESULTS"
	compare_with_base
	want_same "$(paste -sd, "$LOGS/asked")" "a:a.plain.known,a:a.plain.new,a:a.plain.gone,a:a.plain.lacks" &&
	want_same "$(cut -f 1,2 "$RESULTS" | tr '\t' ' ' | paste -sd,)" \
		"skip a:a.plain.known,fail a:a.plain.new,fail a:a.plain.gone,skip a:a.plain.lacks,skip mte_tags:mte_tags.plain.x,pass a:a.plain.fine" &&
	want_same "$(cat "$FINDINGS")" $'warn\ta:a.plain.known: fails on the base, too: why' || return
	lines fail console 'BUG: KCSAN: data-race in a / b at 0x12' fail guest 'panicked, in a:a.plain.x' > "$SCRATCH/patched"
	lines fail console 'BUG: KCSAN: data-race in a / b at 0x34' fail guest 'panicked, in a:a.plain.y' > "$SCRATCH/base"
	: > "$SCRATCH/none"
	want_same "$(judge_by_base "$SCRATCH/base" "$SCRATCH/none" "$SCRATCH/patched" | cut -f 1,2 | tr '\t' ' ' | paste -sd,)" "skip console,fail guest"
}

# The kernel's own mm selftests run once more with what is switched on.
test_gate_mm_selftests_switched()
{
	local BENCH_JOB=$SCRATCH/job LOGS=$SCRATCH/logs RUNS=$SCRATCH APPEND=fixed SET=vm.rival=1 APPEND_ON=rival=on G_OURS=''
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/mm-selftests.sh"
	boot_kernel() { :; }
	begin_job() { : > "$BENCH_JOB"; }
	add_programs() { :; }
	add_results() { :; }
	run_job() { echo "$APPEND" > "$SCRATCH/arguments"; }
	want_same "$(modes | paste -sd' ')" 'patched switched' || return
	results_of patched patched patched
	want_same "$(cat "$SCRATCH/arguments")" fixed && want_same "$(grep -c rival "$BENCH_JOB")" 0 || return
	results_of patched switched switched
	want_same "$(cat "$SCRATCH/arguments")" 'fixed rival=on' && want_same "$(grep -c "echo '1' > '/proc/sys/vm/rival'" "$BENCH_JOB")" 1 || return
	SET=''
	APPEND_ON=''
	want_same "$(modes)" patched
}
