# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Mutants for the gate: the command of that name does the work.

. "$ROOT/scripts/lib/mutants.sh"

# A mutant is a diff against our own series.
need_own_series()
{
	[ "$G_KIND" = own ] || not_applicable "the mutants are of our own series"
}

# run_mutants GLOBS: a skipped mutant is a warning
run_mutants()
{
	local globs=$1 status=0 results
	results=$(mktemp "$SCRATCH/mutants.XXX")
	COW_RESULTS=$results bash "$ROOT/scripts/cmd/mutants" \
		--kernel "$(own_kernel)" --jobs "$JOBS" --filter "$globs" || status=$?
	[ "$status" -le 1 ] || [ "$status" -eq "$E_SKIP" ] || die "the mutants could not be run (status $status)"
	[ -s "$results" ] || die "the mutants left no result"
	list_results fail "$results" | fail_each ""
	list_results skip "$results" | warn_each "not tried: "
	note "$(grep -c '^pass' "$results" || true) of $(wc -l < "$results") killed"
}

own_kernel()
{
	echo "${K_PATH:-$K_NAME}"
}
