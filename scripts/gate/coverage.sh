# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What looked at a submission and what did not: a pass of code that decides what a fault,
# fork or reclaim does means nothing if no kernel with it was booted.

# A change to one of these needs a behaviour check
COW_CODE=(mm/memory.c mm/rmap.c mm/huge_memory.c mm/gup.c mm/swapfile.c mm/ksm.c kernel/fork.c
	fs/proc/task_mmu.c 'arch/*/mm/*tlb*' 'arch/*/include/asm/tlb*')

# cow_code_touched: the files of those that the series changes
cow_code_touched()
{
	kgit -C "$K_TREE" diff --no-renames --name-only "$G_BASE" "$G_HEAD" -- "${COW_CODE[@]}"
}

# not_looked_at: prints why there is no verdict, nothing if there may be one
not_looked_at()
{
	local touched
	touched=$(cow_code_touched | paste -sd' ')
	[ -n "$touched" ] || return 0
	[ "$(gate_report behaviour "$LOGS/gate.json")" -eq 0 ] || return 0
	echo "it changes $touched, but no behaviour check looked at it"
}

# how_to_look: what to do about it
how_to_look()
{
	cat <<-'END'
	Run a behaviour check: leave out --only and --skip, or add --only behaviour-kselftest.
	If one was skipped, its reason is in the table. If you only want the other checks, say
	--no-verdict.
	END
}

show_coverage()
{
	local name
	mapfile -t name < <(all_checks)
	gate_report coverage "$LOGS/gate.json" "${name[@]}"
}
