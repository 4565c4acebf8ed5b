# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Are the checks that ran enough for a verdict? A change to the code of faults, fork or
# reclaim must have been tested in a guest.

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
	'include/linux/cow*' include/asm-generic/tlb.h include/linux/highmem.h fs/userfaultfd.c
	arch/arm64/mm/contpte.c 'arch/*/mm/copypage*' 'arch/*/lib/copy_*page*' 'arch/*/*mte*'
	'arch/*/mm/fault*' 'arch/*/mm/pgtable*'
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
	local touched unseen
	touched=$(cow_code_touched)
	[ -n "$touched" ] || return 0
	unseen=$(unseen_code <<< "$touched")
	[ -n "$unseen" ] || unseen=$(unseen_options)
	[ -n "$unseen" ] || unseen=$(unseen_switches)
	echo "$unseen"
}

# unseen_code: of the files on standard input, those that no guest of their architecture has
# run
unseen_code()
{
	local file arch unseen=()
	declare -A looked=()
	while read -r file; do
		arch=any
		[[ "$file" != arch/* ]] || { arch=${file#arch/}; arch=${arch%%/*}; }
		[ -n "${looked[$arch]-}" ] || looked[$arch]=$(gate_report behaviour "$LOGS/gate.json" "$arch")
		[ "${looked[$arch]}" -gt 0 ] || unseen+=("$file")
	done
	[ ${#unseen[@]} -eq 0 ] || echo "it changes ${unseen[*]}, but no check ran the kselftests on it"
}

# unseen_options: what the series adds, and could be on in no guest
unseen_options()
{
	local names
	names=$(gate_report refused "$LOGS/gate.json" | paste -sd' ')
	[ -z "$names" ] || echo "it adds $names, which could be on in no guest"
}

# unseen_switches: sysctls, boot arguments, parameters and writable files of sysfs and
# debugfs that the series adds, and nobody has switched
unseen_switches()
{
	local names
	[ -z "${G_OURS-}" ] || return 0
	names=$(comm -13 <(named_switches '-') <(named_switches '+') | while read -r name; do
		grep -qwF -- "$name" <<< "${SET-} ${APPEND_ON-}" || echo "$name"
	done | paste -sd' ')
	[ -z "$names" ] || echo "it adds $names, which nothing switched"
}

# named_switches SIGN: those in the lines that the series adds (+) or removes (-); not what
# can only be read
named_switches()
{
	kgit -C "$K_TREE" diff --no-renames -U0 "$G_BASE" "$G_HEAD" -- '*.[ch]' ':!tools' ':!samples' ':!*/tests/*' |
		sed -n -E "/^[$1]{3} /d; s/^[$1]//p" | sysctls_last | grep_any -vE '\b0?444\b|S_IRUGO' | sed -n -E '
			s/.*\.procname[[:space:]]*=[[:space:]]*"([^"]+)".*/\1/p
			s/.*\b(__setup|early_param|debugfs_create_(bool|u8|u16|u32|u64|ulong))\([[:space:]]*"([^"=]+)=?".*/\3/p
			s/.*\b(core_param|module_param(_named|_cb)?|__ATTR|__ATTR_RW|__ATTR_WO)\([[:space:]]*([A-Za-z0-9_]+).*/\3/p' | sort -u
}

# sysctls_last: each entry of a table of sysctls as one line, at its end
sysctls_last()
{
	awk '
		/\.procname/ { entry = "" ; inside = 1 }
		!inside { print; next }
		{ entry = entry $0 }
		/}/ { print entry; inside = 0 }
		END { if (inside) print entry }'
}

# say_what_to_run: what to do about it
say_what_to_run()
{
	cat <<-'END'
	Run the kselftests in a guest: leave out --only and --skip, or add
	--only behaviour-kselftest; KUnit alone is not enough. If it was skipped, its reason is
	in the table. Code of an architecture needs a guest of it: behaviour-kselftest for x86
	or, without --quick, behaviour-kselftest-arm64; there is none for others. What a
	submission adds has to be on: sysctls and files by --set KEY=VALUE, or by a line
	Gate-set: KEY=VALUE in a mail; boot arguments by --append; what an option depends on
	by --config. If you only want the other checks, say --no-verdict.
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
