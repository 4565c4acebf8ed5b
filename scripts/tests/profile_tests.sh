# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the profiles.

#
# Profiles: the reports on rows that are made up here
#

test_profile_options()
{
	refused_with 'fork or cow' profile &&
	refused_with "not 'frok'" profile frok &&
	refused_with 'fork or cow' profile fork cow &&
	refused_with 'from 2 to 16384' profile fork --count 1 &&
	refused_with 'from 2 to 16384' profile cow --count 99999999999999999999 &&
	refused_with 'numbers of MB' profile fork --size 1,much &&
	refused_with 'memory for 1024 MB' profile fork --size 2048 &&
	refused_with 'twice' profile fork --size 1,16,01 &&
	refused_with "for 'profile fork'" profile cow --size 1 &&
	refused_with 'no two boots agree' profile cow --mode wall --repeat 2 &&
	refused_with 'does not apply' profile cow --filter x &&
	refused_with 'cannot be written' profile fork --svg /nonexistent/file
}

# profile_rows COPY UNTRACED: the rows of cow_profile
profile_rows()
{
	printf 'what\tcow\t0\t4096\t1.000\nleft out\t0.0\t0.1\n'
	printf 'row\tcopy\tcopy_"mc"\t1.00\t%s\t4.00\tcopy_mc_to_kernel\n' "$1"
	printf 'row\tLRU\tfolio_add_lru_vma\t1.00\t1000.00\t9.00\tfolio_add_lru_vma\n'
	printf 'absent\tcharge\tcharge_memcg\n'
	printf 'total\t%s\t13.00\nuntraced\t%s\t12.00\t%s\t%s\n' "$(($1 + 1000))" "$2" "$2" "$2"
	printf 'tracer\t2.00\t100.00\t0.00\n'
}

# profile_report REPORT FILE...: sets OUT and STATUS
profile_report()
{
	OUT=$SCRATCH/output
	STATUS=0
	awk -v report="$1" -v unit=instructions -v limit=1 -f "$ROOT/scripts/bench/profile.awk" \
		"${@:2}" > "$OUT" 2>&1 || STATUS=$?
}

test_profile_reports()
{
	local rows=$SCRATCH/profile
	profile_rows 1500 2500 > "$rows.a"
	profile_rows 1512 2500 > "$rows.b"
	profile_rows 1600 2500 > "$rows.c"
	profile_report table "$rows.a" && want_status 0 &&
		want_output '^copy  .* 1 500  .* 60\.0 %' &&
		want_output '^charge .*not traceable \(inlined\)$' || return
	profile_report json "$rows.a" && want_status 0 &&
		python3 -c 'import json, sys; rows = json.load(sys.stdin)
assert len(rows) == 5 and rows[0]["mean"] == 1500 and rows[2]["mean"] is None' < "$OUT" ||
		complain "JSON: $(head -n 3 "$OUT" | paste -sd'|')" || return
	profile_report sums "$rows.a" && want_output '^cow 0 0\.00$' || return
	profile_report sums "$rows.c" && want_output '^cow 0 4\.00$' || return
	profile_report compare "$rows.a" "$rows.b" && want_output 'pass.the total differs by 0\.48 %' || return
	profile_report compare "$rows.a" "$rows.c" &&
		want_output 'fail.*total 2500 and 2600, copy 1500 and 1600'
}
