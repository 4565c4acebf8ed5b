# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Running the checks, and which of their results are kept.

#
# A result is kept under a key made of all that decides it
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

# shared_files NAME: what decides the verdict besides the check's own file: what all
# checks share, and what its Uses name. As pathspecs of git.
shared_files()
{
	printf '%s\n' Kconfig.fragment fixtures/config scripts/lib scripts/gate ':!scripts/gate/checks' ':!*.md'
	check_field "$1" Uses | tr -s ' ' '\n'
}

# check_key NAME: the submission, the check, what it uses, and the tools of this host
check_key()
{
	local name=$1 files
	mapfile -t files < <(shared_files "$name")
	{
		echo "$SUBMISSION_KEY $TIMEOUT"
		tools_of "$name"
		sha256sum < "$CHECKS_DIR/$name"
		worktree_hash "${files[@]}"
	} | sha256sum | cut -c1-16
}

# host_tools: the versions of the compiler, of QEMU, and of the packages that any check may
# run or copy into a guest, with libraries
host_tools()
{
	local MORE_PACKAGES=
	need_qemu x86_64
	head -qn 1 <(gcc --version) <(ld --version) <("${QEMU[@]}" --version)
	{ host_packages; echo 'bpftrace bpftrace'; echo 'libc libc6'; } | package_versions
}

# tools_of NAME: those, and of what only this check needs
tools_of()
{
	echo "$HOST_TOOLS"
	{ check_field "$1" Needs; arch_packages "$(check_field "$1" Arch)"; } | package_versions
}

# package_versions: of lines PROGRAM PACKAGE; what is not installed has no line
package_versions()
{
	local packages
	mapfile -t packages < <(awk '{ print $2 }' | sort -u)
	[ ${#packages[@]} -eq 0 ] || dpkg-query -W "${packages[@]}" 2> /dev/null || true
}

#
# Two queues of checks. One has those that work on the gate's own tree, most of which
# compile, the other all the rest, most of which boot guests with several CPUs.
#

run_checks()
{
	local name builds=() others=()
	SUBMISSION_KEY=$(submission_key)
	HOST_TOOLS=$(host_tools)
	GATE_STATE=$SCRATCH/state
	save_state
	mkdir -p "$G_DIR/results"
	: > "$LOGS/ended"
	for name in "${CHECKS[@]}"; do
		if [ "$JOBS" -eq 1 ] || is_of_builds "$name"; then
			builds+=("$name")
		else
			others+=("$name")
		fi
	done
	[ ${#builds[@]} -eq 0 ] || start_queue run_queue "${builds[@]}"
	[ ${#others[@]} -eq 0 ] || start_queue run_queue "${others[@]}"
	# a check without a verdict says so in the report
	wait_for_queues "the gate" || true
	gate_report collect "$LOGS/gate.json" "$G_DIR/results" "$LOGS/ended" "${CHECKS[@]}"
	gate_report results "$LOGS/gate.json" >> "$RESULTS"
}

# is_of_builds NAME: is it in the queue of the gate's tree, most of which compile?
is_of_builds()
{
	uses_gate_tree "$1" || [ "$(check_field "$1" Queue)" = builds ]
}

# uses_gate_tree NAME: a submission that is not our own series has no other tree
uses_gate_tree()
{
	[ "$(check_field "$1" Tree)" = gate ] || { [ "$G_KIND" != own ] && [ "$(check_group "$1")" != form ]; }
}

# run_queue NAME...: each of them, or what is known of it
run_queue()
{
	local name
	for name; do
		# the gate itself was killed
		kill -0 $$ 2> /dev/null || exit
		G_RESULT=$G_DIR/results/$name.$(check_key "$name")
		if [ -n "$FRESH" ] || [ ! -f "$G_RESULT/verdict.json" ]; then
			run_check "$name"
		else
			clear_ticker
			gate_report show "$G_RESULT"
		fi
		printf '%s\t%s\n' "$name" "$G_RESULT" >> "$LOGS/ended"
	done
}

# What a check's own process needs to know
save_state()
{
	local variable
	for variable in K_NAME K_DIR K_TREE K_PATH K_PACKAGE K_SUITE G_KIND G_BASE G_HEAD \
			G_DIR G_MAILS G_REFUSED G_OURS G_ON_SERIES JOBS TIMEOUT \
			SET SET_CONFIG APPEND_ON G_SWITCHED; do
		printf '%s=%q\n' "$variable" "${!variable-}"
	done > "$GATE_STATE"
}

# run_check NAME: in a process of its own, which leaves its findings and logs in
# G_RESULT. The verdict is written last: without one the check is run again.
run_check()
{
	local name=$1 start=$SECONDS status=0 moved=
	rm -rf "$G_RESULT"
	drop_old_results "$name"
	mkdir -p "$G_RESULT"
	clear_ticker
	say "== $name ..."
	COW_LOGS=$G_RESULT COW_RESULTS='' bash "$ROOT/scripts/gate/run-check" "$GATE_STATE" "$name" "$G_RESULT" \
		> "$G_RESULT/log" 2>&1 < /dev/null || status=$?
	# a tree that was edited meanwhile is no failure of the submission
	[ "$G_KIND" != own ] || tree_unchanged 2>> "$G_RESULT/log" || moved=--moved
	[ -z "$moved" ] || [ "$status" -ne 0 ] || status=$E_USAGE
	leave_if_interrupted "$status"
	clear_ticker
	gate_report verdict "$G_RESULT" "$name" $((SECONDS - start)) "$status" $moved
}

# The newest five of each check are kept, so that the results of both versions are there for
# someone who goes back and forth between two versions of a series.
drop_old_results()
{
	local dir
	# the other queue removes results of its own checks meanwhile: look at no others
	{ find "$G_DIR/results/$1."* -maxdepth 0 -type d -printf "%T@ %p\n" 2> /dev/null || true; } |
		sort -rn | tail -n +6 | while read -r _ dir; do
			rm -rf "$dir"
		done
}
