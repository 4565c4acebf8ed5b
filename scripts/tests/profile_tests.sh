# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the profiles.

#
# Profiles by section: reports on made-up rows
#

test_profile_options()
{
	refused_with 'fork or cow' profile &&
	refused_with "not 'frok'" profile frok &&
	refused_with 'fork or cow' profile fork cow &&
	refused_with 'from 2 to 16384' profile fork --count 1 &&
	refused_with 'from 2 to 16384' profile cow --count 16385 &&
	refused_with 'is too large' profile cow --count 99999999999999999999 &&
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

# section_report COMMAND ARGS...: sets OUT and STATUS
section_report()
{
	OUT=$SCRATCH/output
	STATUS=0
	"$PYTHON" "$ROOT/scripts/bench/sections.py" "$@" > "$OUT" 2>&1 || STATUS=$?
}

test_profile_reports()
{
	local rows=$SCRATCH/profile about=$SCRATCH/profile.about
	printf '%s\n' kernel=k arch=a mode=icount release=1.2 'machine=m=n' > "$about"
	profile_rows 1500 2500 > "$rows.a"
	profile_rows 1512 2500 > "$rows.b"
	profile_rows 1600 2500 > "$rows.c"
	section_report table --about "$about" "$rows.a" && want_status 0 &&
		want_output '^copy  .* 1 500  .* 60\.0 %' &&
		want_output '^charge .*not traceable \(inlined\)$' || return
	section_report json --about "$about" "$rows.a" && want_status 0 &&
		"$PYTHON" -c 'import json, sys; rows = json.load(sys.stdin)
assert len(rows) == 5 and rows[0]["mean"] == 1500 and rows[2]["mean"] is None' < "$OUT" ||
		complain "JSON: $(head -n 3 "$OUT" | paste -sd'|')" || return
	section_report sums "$rows.a" && want_output '^cow 0 0\.00$' || return
	section_report sums "$rows.c" && want_output '^cow 0 4\.00$' || return
	section_report compare --limit 1 "$rows.a" "$rows.b" && want_output 'pass.the total differs by 0\.48 %' || return
	section_report compare --limit 1 "$rows.a" "$rows.c" &&
		want_output 'fail.*total 2500 and 2600, copy 1500 and 1600'
}

test_profile_chart()
{
	local rows=$SCRATCH/profile about=$SCRATCH/profile.about svg=$SCRATCH/profile.svg
	printf '%s\n' kernel=k arch=a mode=icount release=1.2 machine=m > "$about"
	profile_rows 1500 2500 > "$rows"
	section_report chart --about "$about" --svg "$svg" "$rows" && want_status 0 || return
	"$PYTHON" -c 'import sys, xml.dom.minidom
text = xml.dom.minidom.parse(sys.argv[1]).toxml()
assert all(part in text for part in ("4 KiB page: 2 500", "1 500 (60.0 %)", "LRU", "inlined"))' \
		"$svg" 2> "$OUT" || complain "the chart: $(tail -n 1 "$OUT")" || return
	sed -i '/^tracer/d' "$rows"
	section_report sums "$rows" && want_status 2 && want_output 'no complete profile'
}

#
# Instruction counts by function
#

# Addresses are compared as text; bounds of sections are not functions.
test_insn_profile()
{
	local dir=$SCRATCH/insn map=$SCRATCH/insn.map counts=$SCRATCH/insn/counts got
	mkdir -p "$dir"
	cat > "$map" <<-'END'
	ffffffff81000000 T _stext
	ffffffff81000000 T _text
	ffffffff81000000 T startup_64
	ffffffff81000100 t __pfx_local
	ffffffff81000110 t local
	ffffffff81000200 D data
	ffffffff81000300 T __lock_text_start
	ffffffff81000300 T _raw_spin_lock
	END
	cat > "$counts" <<-'END'
	parts 2
	user 7
	ffffffff80ffffff 5
	ffffffff81000000 1
	ffffffff810000ff 2
	ffffffff81000110 10
	ffffffff81000250 20
	ffffffff81000300 40
	total 85
	END
	got=$(insn functions "$map" "$counts" | sort | paste -sd,)
	want_same "$got" "3 startup_64,30 local,40 _raw_spin_lock,5 unknown,7 user" || return
	tr , '\n' <<< "$got" > "$dir/functions"
	echo 'seq:off 4 2 85 85 0.000' > "$dir/sums"
	got=$(insn report --title k --groups "$ROOT/fixtures/plugin/groups" "$dir" |
		sed '1,/^By subsystem$/d; /^$/,$d' | tr -s ' ' | tail -n +2 | paste -sd,)
	want_same "$got" " 10.00 20.00 47.06% 47.06% page table, 9.50 19.00 44.71% 91.76% other, 1.75 3.50 8.24% 100.00% user, 21.25 42.50 100.00% total, 21.25 42.50 100.00% total without the page copy"
}

# insn_check STATUS [MESSAGE]: of the counts of test_insn_profile, with a row made up here
insn_check()
{
	OUT=$SCRATCH/output
	STATUS=0
	insn check --tolerance 0.5 --results "$SCRATCH/insn.results" seq:off "$SCRATCH/insn.map" \
		"$SCRATCH/insn" > "$OUT" 2>&1 || STATUS=$?
	want_status "$1" && { [ -z "${2-}" ] || want_output "$2"; }
}

# The plugin's total must be the clock's: pages * per_page + faults, of all repetitions.
test_insn_check()
{
	local dir=$SCRATCH/insn results=$SCRATCH/insn.results
	mkdir -p "$dir"
	echo 'ffffffff81000000 T function' > "$SCRATCH/insn.map"
	printf '%s\n' 'parts 2' 'user 3' 'ffffffff81000010 997' 'total 1000' > "$dir/counts"
	echo '{"repeats":2,"written":4,"faults":2,"per_page_median":124.5}' > "$dir/row.out"
	insn_check 0 && want_same "$(cat "$dir/sums" "$dir/functions" | paste -sd,)" \
		'seq:off 8 4 1000 1000 0.000,997 function,3 user' || return
	sed -i s/124.5/123.5/ "$dir/row.out"
	insn_check 1 && want_same "$(tail -n 1 "$results" | cut -f1,2)" $'fail\tprofile:seq:off' || return
	sed -i 's/ffffffff81000000/ffffffff82000000/' "$SCRATCH/insn.map"
	insn_check 2 'the addresses counted are not those of' || return
	sed -i 's/parts 2/parts 0/' "$dir/counts"
	insn_check 2 'no part that is marked' || return
	sed -i /total/d "$dir/counts"
	insn_check 2 'no complete result' || return
	rm "$dir/counts"
	insn_check 2 'no complete result' || return
	echo '{"skipped":"refused"}' > "$dir/row.out"
	insn_check 4 && want_same "$(tail -n 1 "$results")" $'skip\tprofile:seq:off\trefused'
}

# The kernel's instructions are all but those of user space.
test_insn_compile()
{
	local dir=$SCRATCH/insn map=$SCRATCH/insn.map results=$SCRATCH/insn.results OUT=$SCRATCH/output
	mkdir -p "$dir/off" "$dir/on"
	printf 'ffffffff81000000 T function\nffffffff81001000 t cow_copy_around\n' > "$map"
	printf 'parts 1\nuser 500\nffffffff81000000 1000\ntotal 1500\n' > "$dir/off/counts"
	printf 'parts 1\nuser 500\nffffffff81000000 1000\nffffffff81001004 5\ntotal 1505\n' > "$dir/on/counts"
	insn compile --limit 1.005 --results "$results" "$map" "$dir/off" "$dir/on" > "$OUT" &&
		grep -q '1.0050 times .* cow_copy_around, 0.50 %' "$OUT" &&
		want_same "$(tail -n 1 "$results" | cut -f1,2)" $'pass\tcompile:adaptive' || return
	sed -i 's/^total.*/total 1506/' "$dir/on/counts"
	! insn compile --limit 1.005 --results "$results" "$map" "$dir/off" "$dir/on" > "$OUT" &&
		want_same "$(tail -n 1 "$results" | cut -f1,2)" $'fail\tcompile:adaptive' || return
	sed -i '/^total/d' "$dir/on/counts"
	! insn compile --limit 1.005 "$map" "$dir/off" "$dir/on" > "$OUT" 2>&1 &&
		grep -q 'no complete result' "$OUT"
}

# The plugin builds without a warning and loads; a QEMU that loads none is named.
test_insn_plugin()
{
	local bin=$SCRATCH/insn.bin
	OUT=$SCRATCH/output
	STATUS=0
	( BUILD=$SCRATCH/insn.build VERBOSE=1 need_insn_plugin ) > "$OUT" 2>&1 || STATUS=$?
	want_status 0 && want_output "interface version [0-9]+" &&
	want_same "$(cat "$LOGS/plugin.log")" "" || return
	mkdir -p "$bin"
	printf '%s\n' '#!/bin/sh' 'echo "qemu-system-x86_64: -plugin: invalid option"; exit 1' \
		> "$bin/qemu-system-x86_64"
	chmod +x "$bin/qemu-system-x86_64"
	( BUILD=$SCRATCH/insn.build PATH=$bin:$PATH need_insn_plugin ) > "$OUT" 2>&1 || STATUS=$?
	want_status 2 && want_output "cannot load the plugin" && want_output "invalid option"
}
