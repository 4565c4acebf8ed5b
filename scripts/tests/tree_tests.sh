# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of fetching kernels, of the prepared tree, and of refresh and export.

test_apt_sources()
{
	local codename dir=$SCRATCH/etc
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	rm -rf "$dir"
	mkdir -p "$dir/sources.list.d"
	cat > "$dir/sources.list.d/a.sources" <<-END
	# a comment
	Types: deb deb-src
	URIs: http://one.invalid/debian
	Suites: $codename $codename-updates
	Components: main contrib
	Signed-By: /keys/one.gpg

	Types: deb
	URIs: http://other.invalid/thing
	Suites: other
	Components: main
	END
	printf 'deb [arch=amd64 signed-by=/keys/two.gpg] http://two.invalid/debian %s-security main\ndeb-src http://x.invalid/d %s main\n' \
		"$codename" "$codename" > "$dir/sources.list"
	want_same "$(APT_SOURCES=$dir system_sources | paste -sd,)" \
		"http://two.invalid/debian $codename-security /keys/two.gpg,http://one.invalid/debian $codename /keys/one.gpg,http://one.invalid/debian $codename-updates /keys/one.gpg" &&
	want_same "$(APT_SOURCES=$dir apt_sources next)" \
		"deb [signed-by=/keys/one.gpg] http://one.invalid/debian next main"
}

test_fetch_and_prepare()
{
	in_sandbox tree && want_status 0 &&
	want_same "$(tail -n 1 "$OUT")" "$TREE_OF_BOX" &&
	want_same "$(kgit -C "$TREE_OF_BOX" log --format=%s --reverse base..HEAD | paste -sd,)" \
		"mm: change the first thing,mm: change the second thing,$(printf '%s,' \
		'mm: add what the KUnit tests share' 'mm: add KUnit tests for cow' 'mm: add KUnit tests for cow_more' \
		'selftests/cow: add what the tests share' 'selftests/cow: add a_test')selftests/cow: add a_test_more" &&
	want_same "$(tail -n 1 "$TREE_OF_BOX/mm/Makefile")" "obj-y += tests/cow_more_kunit.o" &&
	want_same "$(kgit -C "$TREE_OF_BOX" status --porcelain)" ""
}

# check and the builds in its background ask at the same time what is served.
test_served_to_all()
{
	local i pids=() served=0
	rm -rf "$SANDBOX/build"
	for i in 1 2 3 4 5 6 7 8; do
		( BUILD=$SANDBOX/build; APT_SOURCES=$SCRATCH/archive/etc; select_kernel 6.12
		  kernel_is_served ) > "$SCRATCH/served.$i" 2>&1 &
		pids+=($!)
	done
	for i in "${pids[@]}"; do
		! wait "$i" || served=$((served + 1))
	done
	[ "$served" -eq 8 ] ||
		complain "only $served of 8 were told: $(cat "$SCRATCH"/served.* | grep -v reading | sort -u | head -n 3 | paste -sd'|')"
}

test_cut_off_download()
{
	local packages=$SANDBOX/build/apt/system/packages deb
	in_sandbox tree && want_status 0 || return
	deb=$(echo "$packages"/*.deb)
	rm -rf "$SANDBOX/build/6.12"
	truncate -s 300 "$deb"
	mkdir "$packages/linux-source-6.12.tmp"
	echo junk > "$packages/linux-source-6.12.tmp/x.deb"
	in_sandbox tree && want_status 0 && want_output 'downloading' &&
	want_same "$(dpkg-deb -f "$deb" Version)" 6.12.1-1
}

test_cut_off_unpack()
{
	in_sandbox tree && want_status 0 || return
	mv "$TREE_OF_BOX" "$TREE_OF_BOX.tmp"
	rm -rf "$SANDBOX/build/6.12/prepared" "$TREE_OF_BOX.tmp/mm"
	in_sandbox tree && want_status 0 && want_same "$(wc -l < "$TREE_OF_BOX/mm/memory.c")" 200
}

# Killed at any time, the next run is a good one.
test_killed_anywhere()
{
	local delay pid
	for delay in 0.05 0.2 0.5 0.8 1.1 1.4 1.8; do
		rm -rf "$SANDBOX/build"
		COW_LOGS='' APT_SOURCES="$SCRATCH/archive/etc" setsid "$SANDBOX/run_tests.sh" tree > /dev/null 2>&1 < /dev/null &
		pid=$!
		sleep "$delay"
		kill -KILL -- "-$pid" 2> /dev/null || true
		wait "$pid" 2> /dev/null || true
		in_sandbox tree
		want_status 0 && want_same "$(kgit -C "$TREE_OF_BOX" status --porcelain)" "" || return
	done
}

# Locks of a git that was killed: test_killed_anywhere seldom hits the instant in which they
# exist.
test_stale_locks()
{
	in_sandbox tree && want_status 0 || return
	touch "$TREE_OF_BOX/.git/"{index,HEAD,ORIG_HEAD,refs/heads/work,refs/tags/prepared}.lock
	kgit -C "$TREE_OF_BOX" rev-parse HEAD > "$SANDBOX/build/6.12/moving"
	in_sandbox tree && want_status 0 && want_same "$(find "$TREE_OF_BOX/.git" -name '*.lock')" ""
}

test_no_longer_served()
{
	sed -i 's/linux-source-6.12/linux-source-6.11/' "$SANDBOX/fixtures/kernels"
	in_sandbox tree && want_status 2 && want_output 'linux-source-6.11 is no longer served.*served: linux-source-6.12'
}

test_refused_patch()
{
	local patch
	patch=$(cd "$SANDBOX/patches" && echo 0002*)
	sed -i 's/ int memory_149;/ int memory_nonsense;/' "$SANDBOX/patches/$patch"
	in_sandbox tree && want_status 2 && want_output "patches/$patch does not apply" &&
	want_output 'mm/memory.c: hunk 1 ' || return
	sed -i 's/ int memory_nonsense;/ int memory_149;/' "$SANDBOX/patches/$patch"
	in_sandbox tree && want_status 0 && want_same "$(kgit -C "$TREE_OF_BOX" rev-list --count base..HEAD)" 8
}

test_patch_not_mail()
{
	local patch
	patch=$(cd "$SANDBOX/patches" && echo 0001*)
	sed -i '1,/^diff --git/{/^diff --git/!d}' "$SANDBOX/patches/$patch"
	in_sandbox tree && want_status 2 && want_output 'not in mail format'
}

test_patch_changed()
{
	in_sandbox tree && want_status 0 || return
	local before
	before=$(stat -c %Y.%i "$TREE_OF_BOX/tools/testing/selftests/Makefile")
	sed -i 's/+long memory_150;/+short memory_150;/' "$SANDBOX/patches/"0002*
	in_sandbox tree && want_status 0 && want_same "$(grep -c '^short' "$TREE_OF_BOX/mm/memory.c")" 1 &&
	want_same "$(stat -c %Y.%i "$TREE_OF_BOX/tools/testing/selftests/Makefile")" "$before"
}

test_edits_are_kept()
{
	in_sandbox tree && want_status 0 || return
	echo 'int mine;' >> "$TREE_OF_BOX/mm/memory.c"
	in_sandbox tree && want_status 0 && want_output 'has edits' || return
	sed -i 's/+long memory_150;/+short memory_150;/' "$SANDBOX/patches/"0002*
	in_sandbox tree && want_status 2 && want_output 'has edits.*Nothing was touched' &&
	want_same "$(tail -n 1 "$TREE_OF_BOX/mm/memory.c")" 'int mine;' || return
	in_sandbox clean && want_status 2 && want_output 'has edits'
}

# What a developer has set aside in the tree is kept as well, and nothing is taken from
# under another run.
test_clean_keeps()
{
	in_sandbox tree && want_status 0 || return
	kgit -C "$TREE_OF_BOX" branch leftover "$(kgit -C "$TREE_OF_BOX" commit-tree -m old -p base 'base^{tree}')"
	in_sandbox clean --kernel 6.12 && want_status 0 && in_sandbox tree && want_status 0 || return
	kgit -C "$TREE_OF_BOX" checkout -q -b try
	git -C "$TREE_OF_BOX" -c user.name=me -c user.email=me@localhost commit -q --allow-empty -m try
	kgit -C "$TREE_OF_BOX" checkout -q work
	in_sandbox clean && want_status 2 && want_output 'commits of yours: refs/heads/try' || return
	kgit -C "$TREE_OF_BOX" branch -q -D try
	(
		BUILD=$SANDBOX/build
		lock some
		in_sandbox clean
		echo "$STATUS" > "$SCRATCH/status"
	)
	STATUS=$(cat "$SCRATCH/status")
	want_status 2 && want_output 'another run uses' || return
	[ -d "$TREE_OF_BOX" ] || complain "the tree is gone"
}

# A refresh that was killed while it wrote is undone by the next one.
test_refresh_killed()
{
	local half
	in_sandbox tree && want_status 0 || return
	echo 'int more;' >> "$TREE_OF_BOX/mm/tests/cow_kunit.c"
	mkdir "$SANDBOX/build/6.12/before"
	cp -r "$SANDBOX/patches" "$SANDBOX/kunit" "$SANDBOX/selftests" "$SANDBOX/build/6.12/before/"
	echo 'half' >> "$SANDBOX/kunit/cow_kunit.c"
	in_sandbox refresh && want_status 0 && want_output 'the last refresh was killed' &&
	want_same "$(tail -n 1 "$SANDBOX/kunit/cow_kunit.c")" 'int more;' || return
	half=$(echo "$SANDBOX/build/refresh-was-killed."*)
	want_same "$(tail -n 1 "$half/kunit/cow_kunit.c")" half &&
	want_same "$(ls -d "$SANDBOX/build/6.12/before" 2> /dev/null)" ""
}

# Without a mirror, a package that was downloaded before will do.
test_no_mirror()
{
	in_sandbox tree && want_status 0 || return
	in_sandbox clean --kernel 6.12 && want_status 0 || return
	mv "$SCRATCH/archive/dists" "$SCRATCH/archive/gone"
	in_sandbox tree
	mv "$SCRATCH/archive/gone" "$SCRATCH/archive/dists"
	want_status 0 && want_output 'was downloaded before, and is used'
}

# Trees that nobody edits share their files; what is written to one stays in it.
test_trees_share_files()
{
	local dir=$SANDBOX/build/6.12
	in_sandbox tree && want_status 0 || return
	(
		K_NAME=6.12 K_DIR=$dir K_TREE=$TREE_OF_BOX BUILD=$SANDBOX/build
		prepare_unpatched
		lay_out_tree "another tree" "$dir/other" prepared
	) 2> "$OUT"
	want_same "$(kgit -C "$dir/other" rev-parse HEAD)" "$(kgit -C "$TREE_OF_BOX" rev-parse HEAD)" &&
	want_same "$(kgit -C "$dir/other" status --porcelain)" "" &&
	want_same "$(stat -c %i "$dir/unpatched/tree/Makefile")" "$(stat -c %i "$dir/other/Makefile")" || return
	[ "$(stat -c %i "$TREE_OF_BOX/Makefile")" != "$(stat -c %i "$dir/other/Makefile")" ] ||
		complain "the tree that people edit is shared, too" || return
	kgit -C "$dir/other" reset -q --hard HEAD~1
	kgit -C "$dir/other" diff --no-renames HEAD base > "$SCRATCH/back"
	kgit -C "$dir/other" apply "$SCRATCH/back"
	want_same "$(kgit -C "$dir/other" diff base)" "" &&
	want_same "$(kgit -C "$dir/unpatched/tree" status --porcelain)" "" &&
	want_same "$(kgit -C "$TREE_OF_BOX" status --porcelain)" ""
}

test_refresh()
{
	in_sandbox tree && want_status 0 || return
	local first second
	first=$(cd "$SANDBOX/patches" && echo 0001*)
	second=$(cd "$SANDBOX/patches" && echo 0002*)
	cp "$SANDBOX/patches/$first" "$SCRATCH/first"
	in_sandbox refresh && want_status 0 && want_output 'nothing to take back' || return
	# core edits must be committed
	echo 'int mine;' >> "$TREE_OF_BOX/mm/memory.c"
	in_sandbox refresh && want_status 2 && want_output 'git commit --fixup' || return
	kgit -C "$TREE_OF_BOX" checkout -q mm/memory.c
	# a test edited, a test added, a patch amended, a patch added
	sed -i 's/long memory_150;/short memory_150;/' "$TREE_OF_BOX/mm/memory.c"
	kgit -C "$TREE_OF_BOX" commit -q -a --fixup 'HEAD^{/change the second thing}'
	in_sandbox refresh && want_status 2 && want_output "'fixup! .*' is not in the commit" || return
	GIT_SEQUENCE_EDITOR=: kgit -C "$TREE_OF_BOX" rebase -q -i --autosquash base > /dev/null 2>&1 ||
		complain "the rebase failed" || return
	kgit -C "$TREE_OF_BOX" checkout -q -b side 'HEAD^{/change the second thing}'
	echo 'int third;' >> "$TREE_OF_BOX/mm/memory.c"
	kgit -C "$TREE_OF_BOX" commit -q -a -m 'mm: a third thing'
	kgit -C "$TREE_OF_BOX" rebase -q side work > /dev/null 2>&1 || complain "the second rebase failed" || return
	echo 'int more;' >> "$TREE_OF_BOX/mm/tests/cow_kunit.c"
	echo 'int b;' > "$TREE_OF_BOX/tools/testing/selftests/cow/b_test.c"
	in_sandbox refresh && want_status 0 &&
	cmp "$SANDBOX/patches/$first" "$SCRATCH/first" > /dev/null || complain "the first patch was rewritten: $(cat "$OUT")" || return
	grep -q '^+short memory_150' "$SANDBOX/patches/$second" || complain "the amended patch was not taken" || return
	want_same "$(tail -n 1 "$SANDBOX/patches/series.6.12")" 6.12/0003-mm-a-third-thing.patch &&
	want_same "$(tail -n 1 "$SANDBOX/kunit/cow_kunit.c")" 'int more;' &&
	want_same "$(cat "$SANDBOX/selftests/cow/b_test.c")" 'int b;' || return
	in_sandbox tree && want_status 0 && want_same "$(kgit -C "$TREE_OF_BOX" status --porcelain)" "" &&
	in_sandbox refresh && want_output 'nothing to take back'
}

# part_has COMMIT PATH TEXT: the file of that commit, lines joined by commas
part_has()
{
	want_same "$(kgit -C "$TREE_OF_BOX" show "$1:$2" 2> /dev/null | tr '\n' ,)" "$3"
}

# Each commit of the tests holds one program or suite and names nothing that is added later.
test_commits_of_tests()
{
	local head cow=tools/testing/selftests/cow
	in_sandbox tree && want_status 0 || return
	part_has HEAD~5 mm/Makefile 'obj-y += memory.o,obj-y += tests/cow_fixture.o,' &&
	part_has HEAD~4 mm/Makefile 'obj-y += memory.o,obj-y += tests/cow_fixture.o,obj-y += tests/cow_kunit.o,' &&
	part_has HEAD~2 $cow/Makefile \
		'# What all programs need,LDLIBS += -lpthread,,$(TEST_GEN_PROGS): helper.c,' &&
	part_has HEAD~2 $cow/.gitignore '' &&
	part_has HEAD~1 $cow/Makefile "$(grep -v a_test_more "$SANDBOX/selftests/cow/Makefile" | tr '\n' ,)" &&
	part_has HEAD~1 $cow/.gitignore '# ignored,a_test,' &&
	part_has HEAD $cow/Makefile "$(tr '\n' , < "$SANDBOX/selftests/cow/Makefile")" &&
	want_same "$(kgit -C "$TREE_OF_BOX" show --format= --name-only HEAD~1 | xargs -n 1 basename | paste -sd' ')" \
		'.gitignore Makefile a_test.c a_test_part.c' &&
	want_same "$(kgit -C "$TREE_OF_BOX" log -1 --format=%b HEAD | sed '$d' | paste -sd' ')" \
		"The program a_test_more.  Build and run with:    make headers   make -C tools/testing/selftests TARGETS=cow   $cow/a_test_more" || return
	head=$(kgit -C "$TREE_OF_BOX" rev-parse HEAD)
	rm -rf "$SANDBOX/build/6.12"
	in_sandbox tree && want_same "$(kgit -C "$TREE_OF_BOX" rev-parse HEAD)" "$head" || return
	echo 'TEST_GEN_PROGS += a_test a_test_more' >> "$SANDBOX/selftests/cow/Makefile"
	in_sandbox tree && want_status 2 && want_output 'one program per line' &&
	want_same "$(kgit -C "$TREE_OF_BOX" rev-parse HEAD)" "$head"
}

# An edit comes back from whatever commit of the tests it was made in.
test_refresh_of_tests()
{
	local cow=tools/testing/selftests/cow
	in_sandbox tree && want_status 0 || return
	kgit -C "$TREE_OF_BOX" checkout -q -B side HEAD~1
	echo 'int edited;' >> "$TREE_OF_BOX/$cow/a_test_part.c"
	kgit -C "$TREE_OF_BOX" commit -q -a --amend -m 'selftests/cow: my words'
	kgit -C "$TREE_OF_BOX" cherry-pick work > /dev/null 2>&1 || complain "the cherry-pick failed" || return
	sed -i '$d' "$TREE_OF_BOX/mm/Makefile"
	kgit -C "$TREE_OF_BOX" rm -q mm/tests/cow_more_kunit.c
	kgit -C "$TREE_OF_BOX" commit -q -a -m 'mm: drop a suite'
	in_sandbox refresh && want_status 0 && want_output 'my words.*is not kept' &&
	want_same "$(tail -n 1 "$SANDBOX/selftests/cow/a_test_part.c")" 'int edited;' &&
	want_same "$(grep -c '^+obj' "$SANDBOX/kunit/wiring.patch")" 2 || return
	[ ! -e "$SANDBOX/kunit/cow_more_kunit.c" ] || complain "the dropped suite is still there" || return
	want_same "$(kgit -C "$TREE_OF_BOX" rev-list --count base..HEAD)" 7 &&
	want_same "$(cd "$SANDBOX/patches" && echo 000*)" "$(grep -v '#' "$SANDBOX/patches/series" | paste -sd' ')" || return
	# nothing changes if a commit mixes tests and core code, or the result is another tree
	echo 'int mixed;' | tee -a "$TREE_OF_BOX/$cow/helper.c" >> "$TREE_OF_BOX/mm/memory.c"
	kgit -C "$TREE_OF_BOX" commit -q -a -m 'mm: mixed'
	in_sandbox refresh && want_status 2 && want_output '"mm: mixed".*changes a test .* and core code' || return
	kgit -C "$TREE_OF_BOX" reset -q --hard prepared
	sed -i '$d' "$TREE_OF_BOX/mm/Makefile"
	kgit -C "$TREE_OF_BOX" commit -q -a -m 'mm: no wiring'
	in_sandbox refresh && want_status 2 && want_output 'are unchanged' &&
	want_same "$(grep -vc '#' "$SANDBOX/patches/series.6.12")" 2
}

test_export()
{
	in_sandbox export --kernel 6.12 "$SCRATCH/mails" && want_status 0 &&
	want_same "$(find "$SCRATCH/mails" -name '*.patch' | wc -l)" 8 || return
	rm -rf "$SCRATCH/applied"
	cp -r "$PLAIN" "$SCRATCH/applied"
	kgit -C "$SCRATCH/applied" am -q "$SCRATCH"/mails/000[1-9]*.patch ||
		complain "the exported series does not apply" || return
	in_sandbox export --kernel 6.12 "$SCRATCH/mails" && want_status 2 && want_output 'not an empty folder'
}

# The second patch without the first one
test_export_part()
{
	local mails=$SCRATCH/part
	printf 'engine\t0001\nmeasurement\t0002\n' > "$SANDBOX/patches/parts"
	in_sandbox export --kernel 6.12 --part engine "$mails" && want_status 0 &&
	want_same "$(cd "$mails" && echo *)" 0001-mm-change-the-second-thing.patch || return
	rm -rf "$SCRATCH/applied"
	cp -r "$PLAIN" "$SCRATCH/applied"
	kgit -C "$SCRATCH/applied" am -q "$mails"/*.patch || complain "the part does not apply" || return
	in_sandbox export --part both "$SCRATCH/none" && want_status 2 && want_output 'engine or measurement'
}

# Any tree, git or not; it is never changed, and followed when it changes.
test_kernel_path()
{
	local before copy=$SCRATCH/no-git
	rm -rf "$copy"
	fake_kernel "$copy"
	printf 'mrproper:\n\t@:\n' >> "$copy/Makefile"
	before=$(cd "$copy" && find . -printf '%p %T@ %s\n' | sort | sha256sum)
	in_sandbox tree --kernel "$copy" && want_status 0 &&
	want_same "$(cd "$copy" && find . -printf '%p %T@ %s\n' | sort | sha256sum)" "$before" || return
	sed -i 's/memory_100;/memory_hundred;/' "$copy/mm/memory.c"
	in_sandbox tree --kernel "$copy" && want_status 0 &&
	want_same "$(grep -c -e hundred -e long "$(tail -n 1 "$OUT")/mm/memory.c")" 3 || return
	echo 'int uncommitted;' >> "$PLAIN/mm/memory.c"
	in_sandbox tree --kernel "$PLAIN" && want_status 0 &&
	want_same "$(tail -n 1 "$(tail -n 1 "$OUT")/mm/memory.c")" 'int uncommitted;' &&
	want_same "$(kgit -C "$PLAIN" status --porcelain)" ' M mm/memory.c'
}
