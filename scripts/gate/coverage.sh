# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What looked at a submission and what did not: a pass of code that decides what a fault,
# fork or reclaim does means nothing if no kernel with it was booted.

# A change to one of these needs a check that runs the kselftests in a guest; to one below
# arch/, in a guest of that architecture. mm/folio.c is mm/swap.c since 7.x, leafops.h was
# swapops.h.
COW_CODE=(mm/memory.c mm/rmap.c mm/huge_memory.c mm/gup.c mm/swapfile.c mm/swap_state.c mm/ksm.c
	kernel/fork.c fs/proc/task_mmu.c mm/internal.h mm/mprotect.c mm/mremap.c mm/mmap.c 'mm/vma*'
	mm/userfaultfd.c mm/memcontrol.c 'mm/migrate*' mm/vmscan.c mm/mlock.c mm/madvise.c
	mm/memory-failure.c mm/mmu_gather.c mm/pgtable-generic.c mm/hugetlb.c mm/khugepaged.c
	mm/page_vma_mapped.c mm/swap.c mm/folio.c mm/swap.h mm/mempolicy.c 'mm/cow*'
	kernel/events/uprobes.c include/linux/mm.h include/linux/mm_inline.h include/linux/mm_types.h
	include/linux/rmap.h include/linux/huge_mm.h include/linux/hugetlb.h include/linux/ksm.h
	include/linux/page-flags.h include/linux/swap.h include/linux/swapops.h
	include/linux/leafops.h include/linux/pgtable.h include/linux/mmu_notifier.h
	mm/mmu_notifier.c 'mm/Kconfig*' mm/Makefile arch/x86/Kconfig arch/arm64/Kconfig
	'include/linux/cow*' include/asm-generic/tlb.h arch/arm64/mm/copypage.c
	arch/arm64/mm/contpte.c 'arch/*/mm/fault*' 'arch/*/mm/pgtable*'
	'arch/*/mm/*tlb*' 'arch/*/kernel/*tlb*' 'arch/*/include/asm/*tlb*'
	'arch/*/include/asm/pgtable*')

# cow_code_touched: the files of those that the series changes
cow_code_touched()
{
	kgit -C "$K_TREE" diff --no-renames --name-only "$G_BASE" "$G_HEAD" -- "${COW_CODE[@]}"
}

# why_no_verdict: prints why there is no verdict, nothing if there may be one
why_no_verdict()
{
	local file arch unseen=()
	declare -A looked=()
	while read -r file; do
		arch=any
		[[ "$file" != arch/* ]] || { arch=${file#arch/}; arch=${arch%%/*}; }
		[ -n "${looked[$arch]-}" ] || looked[$arch]=$(gate_report behaviour "$LOGS/gate.json" "$arch")
		[ "${looked[$arch]}" -gt 0 ] || unseen+=("$file")
	done < <(cow_code_touched)
	[ ${#unseen[@]} -eq 0 ] || echo "it changes ${unseen[*]}, but no check ran the kselftests on it"
}

# say_what_to_run: what to do about it
say_what_to_run()
{
	cat <<-'END'
	Run the kselftests in a guest: leave out --only and --skip, or add
	--only behaviour-kselftest; KUnit alone is not enough. If it was skipped, its reason is
	in the table. Code of an architecture needs a guest of it: behaviour-kselftest for x86
	or, without --quick, behaviour-kselftest-arm64; there is none for others. If you only
	want the other checks, say --no-verdict.
	END
}

# show_coverage: which checks ran and which did not; why those were skipped is in
# the table
show_coverage()
{
	local name
	mapfile -t name < <(all_checks)
	gate_report coverage "$LOGS/gate.json" "$(not_chosen_by)" "${name[@]}"
}

# not_chosen_by: the options that left checks out
not_chosen_by()
{
	echo "${ONLY:+ --only}${QUICK:+ --quick}${SKIP:+ --skip}" | sed 's/^ //; s/ / and /g'
}
