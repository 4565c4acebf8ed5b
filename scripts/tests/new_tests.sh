# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of templates ('new'), of --repeat, and of which mutants and legs are run.

test_new_test()
{
	local makefile=$SANDBOX/selftests/cow/Makefile ignore=$SANDBOX/selftests/cow/.gitignore name
	mkdir -p "$SANDBOX/selftests/cow/tools"
	touch "$SANDBOX/selftests/cow/config" "$SANDBOX/selftests/cow/tools/cowstat.c"
	printf '# SPDX-License-Identifier: GPL-2.0-only\na_test\nz_test\n' > "$ignore"
	cp "$makefile" "$SCRATCH/makefile"
	in_sandbox new test parent_first && want_status 0 && want_output '^selftests/cow/parent_first.c: written$' &&
	want_same "$(diff "$SCRATCH/makefile" "$makefile" | grep '^[<>]')" "> TEST_GEN_PROGS += parent_first" &&
	want_same "$(tail -n 3 "$ignore" | paste -sd,)" "a_test,parent_first,z_test" || return
	grep -q 'TEST_F_TIMEOUT(parent_first, ' "$SANDBOX/selftests/cow/parent_first.c" || complain "no test in it" || return
	cp "$makefile" "$SCRATCH/makefile"
	in_sandbox new test parent_first && want_status 2 && want_output 'exists already' &&
	want_same "$(diff "$SCRATCH/makefile" "$makefile")" "" || return
	for name in cowstat config tools clean; do
		in_sandbox new test $name && want_status 2 && want_output 'a file, a tool or a target of make has it' || return
	done
	in_sandbox new test Parent-First && want_status 2 && want_output 'lower-case letters' &&
	in_sandbox new test && want_status 2 && want_output 'new what' &&
	in_sandbox new nothing x && want_status 2 && want_output "test, mutant or check, not 'nothing'"
}

# without_explanation MUTANT: what decides whether it is killed
without_explanation()
{
	sed -n -e '2,/^$/p' -e '/^diff --git /,$p' "$1"
}

# The template is a mutant that check runs, under another name.
test_new_mutant()
{
	local mutants=$SANDBOX/fixtures/mutants
	in_sandbox new mutant my-mutant && want_status 0 &&
	want_same "$(without_explanation "$mutants/my-mutant.patch")" "$(without_explanation "$mutants/vma-bounds.patch")" || return
	want_same "$(check_mutant "$SANDBOX/fixtures/mutants/my-mutant.patch")" "" || return
	in_sandbox list mutants && want_output '^my-mutant: ' || return
	rm -rf "$SCRATCH/with space"
	cp -r "$SANDBOX" "$SCRATCH/with space"
	"$SCRATCH/with space/run_tests.sh" list mutants > "$OUT" 2>&1 || complain "not in a folder with a space" || return
	want_output '^my-mutant: ' || return
	in_sandbox new mutant my_mutant && want_status 2 && want_output 'cannot be the name'
}

test_new_check()
{
	in_sandbox new check form-my-check && want_status 0 || return
	in_sandbox gate --base 6.12 --no-verdict --only form-my-check && want_status 0 &&
	want_output '^PASS form-my-check \([0-9]+s\): [0-9]+ C files$' || return
	in_sandbox new check my-check && want_status 2 && want_output 'cannot be the name of a check'
}

# fake_mutant NAME TEST
fake_mutant()
{
	mkdir -p "$SCRATCH/mutants"
	printf 'Mutant: nothing\nTest: %s\n\ndiff --git a/mm/memory.c b/mm/memory.c\n' "$2" \
		> "$SCRATCH/mutants/$1.patch"
}

# Of a folder of somebody's, a mutant need not say more than what it is and its test.
test_mutants_from()
{
	local FROM=$SCRATCH/mutants
	fake_mutant any all
	fake_mutant named 'kunit cow_precopy.vma_end'
	want_same "$(mutant_files | sed 's/.*\///' | paste -sd,)" any.patch,named.patch &&
	want_same "$(check_mutant "$FROM/any.patch")" "" &&
	want_same "$(check_mutant "$FROM/named.patch" | paste -sd,)" "no 'Arch:' in its header,no 'Dies:' in its header" &&
	want_same "$(tests_of "$FROM/any.patch" | paste -sd,)" "um kunit ,x86_64 kunit ,x86_64 kselftest " || return
	in_sandbox mutants --from "$SCRATCH/none" && want_status 2 && want_output 'is no folder' &&
	in_sandbox mutants --from "$FROM" --changed && want_status 2 && want_output 'not with --from' &&
	in_sandbox mutants --from "$FROM" --record && want_status 2 && want_output 'not with --from' || return
	rm -rf "$SCRATCH/mutants"
}

# A mutant has changed if its patch has, or its test and what that uses, since it was killed.
test_mutants_changed()
{
	local file=$SCRATCH/vma-bounds.patch suite K_NAME=6.12 VERIFIED=$SCRATCH/verified ROOT=$ROOT
	want_same "$(sources_of_test 'kselftest adaptive:child_gone')" "$(cd "$ROOT" && ls selftests/cow/adaptive*.[ch])" || return
	cp "$ROOT/fixtures/mutants/vma-bounds.patch" "$file"
	mkdir -p "$SCRATCH/changed/kunit"
	cp "$ROOT"/kunit/*_kunit.c "$SCRATCH/changed/kunit/"
	ROOT=$SCRATCH/changed
	echo '6.12 vma-bounds-too 0' > "$VERIFIED"
	has_changed "$file" || complain "known though it was never recorded" || return
	record_killed "$file"
	! has_changed "$file" || complain "changed since it was recorded" || return
	K_NAME=7.3
	has_changed "$file" || complain "known of another kernel" || return
	K_NAME=6.12
	echo >> "$ROOT/kunit/cow_stats_kunit.c"
	! has_changed "$file" || complain "changed by another suite" || return
	suite=$ROOT/$(sources_of_test 'kunit cow_precopy.vma_end')
	sed -i '/^static void notifier_range(/a /* changed */' "$suite"
	! has_changed "$file" || complain "changed by another test of the suite" || return
	sed -i '/^static void vma_end(/a /* changed */' "$suite"
	has_changed "$file" || complain "not changed by its test" || return
	record_killed "$file"
	sed -i '/^static void test_bound(/a /* changed */' "$suite"
	has_changed "$file" || complain "not changed by what its test uses" || return
	record_killed "$file"
	want_same "$(wc -l < "$VERIFIED")" 2 || return
	echo >> "$file"
	has_changed "$file" || complain "not changed by itself"
}

# Every run must be like the first; one that was interrupted goes on.
test_repeat()
{
	cat > "$SANDBOX/scripts/cmd/kunit" <<-'END'
	. "$(dirname "$0")/../lib/base.sh"
	. "$ROOT/scripts/lib/hash.sh"
	. "$ROOT/scripts/lib/repeat.sh"
	parse_options filter repeat junit -- "$@"
	without_repeat "$@"
	scratch
	open_results
	[ -z "$KERNEL" ] || select_kernel "$KERNEL"
	[ -z "$REPEAT" ] || repeat_command run_command
	[ ! -e "$ROOT/broken" ] || [ "$(wc -l < "$ROOT/runs")" -lt 2 ] || exit 2
	echo "${COW_NO_REALTIME-}" >> "$ROOT/runs"
	record pass first
	[ "$(wc -l < "$ROOT/runs")" -ne 3 ] || record "$(cat "$ROOT/third")" second
	[ "$(wc -l < "$ROOT/runs")" -eq 3 ] || record pass second
	finish
	END
	echo skip > "$SANDBOX/third"
	: > "$SANDBOX/runs"
	: > "$SANDBOX/broken"
	in_sandbox kunit --filter x --repeat 4 && want_status 2 && want_output '^PASS run 2 ' &&
	want_output 'run 3 has no result' || return
	rm "$SANDBOX/broken"
	in_sandbox kunit --filter x --repeat=4 && want_status 1 && want_output '^FAIL run 3 .* differs from the first: < pass.second;> skip.second$' &&
	want_output '^3 passed, 1 failed' && want_same "$(sort -u "$SANDBOX/runs") $(wc -l < "$SANDBOX/runs")" "1 4" || return
	: > "$SANDBOX/runs"
	in_sandbox kunit --kernel "$PLAIN" --repeat 2 && want_status 0 && want_same "$(wc -l < "$SANDBOX/runs")" 2 || return
	echo '/* changed */' >> "$PLAIN/mm/memory.c"
	in_sandbox kunit --kernel "$PLAIN" --repeat 2 && want_same "$(wc -l < "$SANDBOX/runs")" 4 || return
	: > "$SANDBOX/runs"
	echo fail > "$SANDBOX/third"
	in_sandbox kunit --filter x --repeat 3 && want_status 1 && want_output '^FAIL run 3 .*: second$'
}

test_check_legs()
{
	in_repo check --list && want_status 0 && want_output '^6.12: KUnit on UML$' && want_output 'changed mutants' &&
	! grep -q 'all mutants' "$OUT" || complain "all mutants are not for every check" || return
	in_repo check --list --all && want_output '^6.12: all mutants$' &&
	refused_with "no leg of check matches" check --list --filter 'no_such*' &&
	refused_with "goes with --all" check --fresh
}

# virtme-ng: the lines of scripts/README.md are what the leg runs; without vng it says so.
test_virtme_ng()
{
	local K_TREE=$PLAIN COW_RESULTS=$SCRATCH/vng.results bin=$SCRATCH/vng.bin LIST=''
	want_same "$(virtme_ng_commands | grep -c '^vng --\(build\|run\) ')" 3 &&
	want_same "$(virtme_ng_commands | grep -c 'kunit.py exec\|make kselftest TARGETS=cow')" 2 || return
	in_sandbox check --all --list --filter '*virtme*' && want_status 0 && want_output '^6.12: virtme-ng$' || return
	want_same "$(
		leg() { echo "ran $1"; }
		skip_leg() { echo "skipped $1: $2"; }
		wanted() { [ "$1" = mine ]; }
		leg_with no-such-vng mine true
		leg_with no-such-vng other true
		leg_with sh mine true)" "skipped mine: no-such-vng is not installed"$'\n'"ran mine" || return
	# a vng without a kernel, which prints its arguments
	mkdir -p "$bin" "$PLAIN/tools/testing/kunit"
	printf '#!/bin/sh\n[ "$1" = --run ] || exit 0\nwhile [ "$1" != -- ]; do shift; done\nshift\ncase "$*" in\n*kselftest*) cat "%s" ;;\n*) exec "$@" ;;\nesac\n' \
		"$SCRATCH/vng.ktap" > "$bin/vng"
	printf '#!/bin/sh\n' | tee "$bin/make" > "$PLAIN/tools/testing/kunit/kunit.py"
	chmod +x "$bin"/* "$PLAIN/tools/testing/kunit/kunit.py"
	kgit -C "$PLAIN" add -A
	kgit -C "$PLAIN" commit -q -m kunit
	printf '%s\n' 'TAP version 13' '1..1' '# selftests: cow: one' '# TAP version 13' '# 1..1' '# not ok 1 global.a' \
		'not ok 1 selftests: cow: one # exit=1' > "$SCRATCH/vng.ktap"
	: > "$COW_RESULTS"
	! PATH=$bin:$PATH virtme_ng > "$SCRATCH/output" 2>&1 || complain 'a test that fails is not noticed' || return
	grep -q '^fail' "$COW_RESULTS" || complain "no failure: $(paste -sd'|' "$COW_RESULTS")" || return
	sed -i 's/not ok/ok/' "$SCRATCH/vng.ktap"
	: > "$COW_RESULTS"
	PATH=$bin:$PATH virtme_ng > "$SCRATCH/output" 2>&1 || complain "status $?: $(tail -n 3 "$SCRATCH/output")" || return
	# kunit.py has failed
	printf '#!/bin/sh\nexit 1\n' > "$PLAIN/tools/testing/kunit/kunit.py"
	kgit -C "$PLAIN" commit -q -a -m 'kunit fails'
	! PATH=$bin:$PATH virtme_ng > "$SCRATCH/output" 2>&1 || complain 'a KUnit test that fails is not noticed'
}

# What KernelCI is told was tested: not the prepared tree, if it was not that.
test_reports_kernel()
{
	local file=$SCRATCH/kcidb.json tree=$SCRATCH/kcidb.tree results=$SCRATCH/report.results
	printf 'pass\ta:b\t\n' > "$results"
	rm -rf "$tree"
	git init -q "$tree"
	kgit -C "$tree" commit -q --allow-empty -m base
	kgit -C "$tree" tag base
	echo x > "$tree/x"
	kgit -C "$tree" add x
	kgit -C "$tree" commit -q -m series
	of_build() { "$PYTHON" -c 'import json, sys
data = json.load(open(sys.argv[1])); print(data["builds"][0]["id"], data["checkouts"][0]["git_commit_name"])' "$file"; }
	kcidb() { ( RESULTS=$results COMMAND=kselftest K_NAME=6.12 K_DIR=$SCRATCH K_TREE=$tree && write_kcidb > "$file" ) && of_build; }
	local IMAGE='' UNPATCHED=1 DEBUG='' KERNEL_IMAGE='' IMAGE_NAME=''
	want_same "$(kcidb)" "cow_tests:6.12-$(kgit -C "$tree" rev-parse 'base^{tree}' | cut -c 1-18)-x86_64-cow 6.12" || return
	IMAGE=vmlinuz UNPATCHED='' KERNEL_IMAGE=$tree/x IMAGE_NAME=vmlinuz
	want_same "$(kcidb)" "cow_tests:vmlinuz-image-$(sha256sum < "$tree/x" | cut -c 1-12)-x86_64-image vmlinuz" || return
	IMAGE='' DEBUG=kasan
	want_same "$(kcidb)" "cow_tests:6.12-$(kgit -C "$tree" rev-parse 'HEAD^{tree}' | cut -c 1-18)-x86_64-cow-kasan 6.12"
}

# A line each: as people and as programs read them. KCIDB is checked against its schema.
test_reports()
{
	local results=$SCRATCH/report.results file=$SCRATCH/kcidb.json
	printf '%s\t%s\t%s\n' pass 'um:suite:a "test"' '' fail prog:case 'why & <so>' skip prog:other 'not root' \
		error prog:third 'x' > "$results"
	makes 0 '^PASS um:suite \(1 passed, 0 failed, 0 skipped\)$' ../lib/results.py show "$results" command=kunit &&
	want_output '^FAIL prog \(0 passed, 1 failed, 1 skipped\)$' && want_output '^skipped 1: not root$' &&
	want_output '^FAIL prog:case: why & <so>$' || return
	( RESULTS=$results COMMAND=kunit K_NAME=6.12 K_DIR=$SCRATCH K_TREE=$SCRATCH && write_kcidb > "$file" ) ||
		complain "no KCIDB" || return
	"$PYTHON" -c 'import json, jsonschema, sys
data, schema = (json.load(open(name)) for name in sys.argv[1:])
jsonschema.validate(data, schema)
assert [test["status"] for test in data["tests"]] == ["PASS", "FAIL", "SKIP", "ERROR"]
assert data["tests"][0]["path"] == "cow.kunit.um.suite.a_test"
data["tests"][0]["path"] = "a b"
try:
    jsonschema.validate(data, schema)
except jsonschema.ValidationError:
    sys.exit(0)
sys.exit("a path with a space is valid")' "$file" "$ROOT/fixtures/kcidb/schema.json" 2> "$OUT" ||
		complain "KCIDB: $(tail -n 1 "$OUT")"
}

# Which guests of the kselftests have two NUMA nodes, and what their known skips are called
test_two_nodes()
{
	local arch debug image bench ARCH DEBUG IMAGE BENCH NODES APPEND
	while read -r arch debug image bench; do
		ARCH=$arch DEBUG=${debug#-} IMAGE=${image#-} BENCH=${bench#-}
		on_two_nodes
		echo "$arch$debug$image$bench '$NODES' $(machine_of_skips)"
	done > "$SCRATCH/nodes" <<-'END'
	x86_64 - - -
	x86_64 kasan - -
	x86_64 - linux-image-x -
	x86_64 - - 1
	arm64 - - -
	um - - -
	END
	want_same "$(cut -d' ' -f2,3 "$SCRATCH/nodes" | paste -sd,)" \
		"'numa=fake=2' x86_64,'' x86_64-debug,'' x86_64,'' x86_64,'' arm64,'' um" || return
	NODES=numa=fake=2 ARCH=x86_64 DEBUG='' APPEND=numa=fake=1
	[[ "$(kernel_arguments um)" == *' numa=fake=2 numa=fake=1' ]] || complain "arguments: $(kernel_arguments um)"
}

# A plain test that skips is known, for that machine, or complained about.
test_plain_skips()
{
	local results
	results=$(printf 'skip\t%s\twhy\n' mte_tags:mte_tags.plain.reused kvm_mmu:kvm_mmu.plain.x child_exit:child_exit.plain.exited \
		child_exit:child_exit.adaptive.exited
		printf 'pass\tfork_isolation:fork_isolation.plain.runs\t\n')
	unknown_skips x86_64 < /dev/null || complain "status $? without a result" || return
	want_same "$(unknown_skips x86_64 <<< "$results" | cut -f1 | paste -sd,)" "kvm_mmu:kvm_mmu.plain.x,child_exit:child_exit.plain.exited" &&
	want_same "$(unknown_skips x86_64 <<< $'skip\tmemory_advice:memory_advice.plain.numa_policy\tone node' | cut -f1)" \
		memory_advice:memory_advice.plain.numa_policy &&
	want_same "$(unknown_skips x86_64-debug <<< $'skip\tmemory_advice:memory_advice.plain.numa_policy\tone node')" "" &&
	want_same "$(unknown_skips um <<< "$results" | cut -f1 | paste -sd,)" "child_exit:child_exit.plain.exited" &&
	results=$'skip\taccess_tracking:access_tracking.plain.in_swap\told kernel' &&
	want_same "$(unknown_skips x86_64 6.12 <<< "$results")" "" &&
	want_same "$(unknown_skips x86_64 7.3 <<< "$results" | wc -l)" 1
}
