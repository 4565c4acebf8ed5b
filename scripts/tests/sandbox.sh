# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# A sandbox: a copy of this harness with a kernel of four files, served by an apt
# archive in a folder; and what a test says.

#
# The sandbox
#

# A kernel tree of a few files in folder $1.
fake_kernel()
{
	mkdir -p "$1"/{mm,tools/testing/selftests}
	printf 'VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 1\nEXTRAVERSION =\n' > "$1/Makefile"
	seq 1 200 | sed 's/.*/int memory_&;/' > "$1/mm/memory.c"
	printf 'obj-y += memory.o\n' > "$1/mm/Makefile"
	printf 'TARGETS += breakpoints\nTARGETS += cpufreq\n' > "$1/tools/testing/selftests/Makefile"
}

# fake_archive DIR: an apt archive below DIR that serves linux-source-6.12
fake_archive()
{
	local archive=$1 package=$1/package
	mkdir -p "$archive/pool" "$package/DEBIAN" "$package/usr/src"
	fake_kernel "$archive/linux-source-6.12"
	tar -cJf "$package/usr/src/linux-source-6.12.tar.xz" -C "$archive" linux-source-6.12
	cat > "$package/DEBIAN/control" <<-END
	Package: linux-source-6.12
	Version: 6.12.1-1
	Architecture: all
	Maintainer: nobody <nobody@localhost>
	Description: a kernel of four files
	END
	dpkg-deb --root-owner-group -b "$package" "$archive/pool/linux-source-6.12_6.12.1-1_all.deb" > /dev/null
	serve_pool "$archive"
}

# serve_pool ARCHIVE [-backports]: lists what is in its pool, and how apt finds it
serve_pool()
{
	local archive=$1 codename dir
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	dir=$archive/dists/$codename${2-}/main/binary-$(dpkg --print-architecture)
	mkdir -p "$dir" "$archive/etc"
	( cd "$archive" && dpkg-scanpackages -m pool /dev/null > "$dir/Packages" ) 2> /dev/null
	echo "deb [trusted=yes] file:$archive $codename main" > "$archive/etc/sources.list"
}

# A copy of the harness in $SANDBOX with a series of two patches. It is made once; later calls
# restore it.
make_sandbox()
{
	SANDBOX=$SCRATCH/sandbox
	PLAIN=$SCRATCH/sandbox.tree
	TREE_OF_BOX=$SANDBOX/build/6.12/tree
	[ -d "$SCRATCH/new" ] || {
		first_sandbox "$PLAIN"
		mkdir "$SCRATCH/new"
		cp -a "$SANDBOX" "$PLAIN" "$SCRATCH/new/"
	}
	rm -rf "$SANDBOX" "$PLAIN"
	cp -a "$SCRATCH/new/." "$SCRATCH/"
}

# prepared_sandbox: with the kernel tree prepared
prepared_sandbox()
{
	make_sandbox
	[ -d "$SCRATCH/prepared" ] || {
		in_sandbox tree
		[ "$STATUS" -eq 0 ] || die "the sandbox cannot be prepared: $(cat "$OUT")"
		cp -a "$SANDBOX/build" "$SCRATCH/prepared"
	}
	rm -rf "$SANDBOX/build"
	cp -a "$SCRATCH/prepared" "$SANDBOX/build"
}

first_sandbox()
{
	local tree=$1
	mkdir -p "$SANDBOX"/{patches,kunit,selftests/cow}
	cp -r "$ROOT/run_tests.sh" "$ROOT/Kconfig.fragment" "$ROOT/scripts" "$ROOT/fixtures" "$SANDBOX/"
	fake_kernel "$tree"
	kgit -C "$tree" init -q -b work
	kgit -C "$tree" add -A
	kgit -C "$tree" commit -q -m base
	sed -i 's/int memory_20;/long memory_20;/' "$tree/mm/memory.c"
	kgit -C "$tree" commit -q -a -m 'mm: change the first thing' -m 'Because.'
	sed -i 's/int memory_150;/long memory_150;/' "$tree/mm/memory.c"
	kgit -C "$tree" commit -q -a -m 'mm: change the second thing' -m 'Because too.'
	kgit -C "$tree" format-patch -q -U2 --no-signature --zero-commit -N -o "$SANDBOX/patches" HEAD~2
	( cd "$SANDBOX/patches" && printf '# the series\n%s\n%s\n' 000*.patch | tee series > series.6.12 )
	make_fake_tests "$tree"
	kgit -C "$tree" reset -q --hard HEAD~2
}

# make_fake_tests TREE: two KUnit suites with a shared file, two programs with a helper
make_fake_tests()
{
	local tree=$1 name
	( cd "$tree" && printf 'obj-y += tests/cow_%s.o\n' fixture kunit more_kunit >> mm/Makefile &&
		kgit diff > "$SANDBOX/kunit/wiring.patch" && kgit checkout -q . )
	( cd "$tree" && sed -i 's/^TARGETS += cpufreq/TARGETS += cow\n&/' tools/testing/selftests/Makefile &&
		kgit diff > "$SANDBOX/selftests/wiring.patch" && kgit checkout -q . )
	for name in cow_kunit cow_more_kunit; do
		printf '/*\n * Tests of %s.\n */\nint %s;\n' "$name" "$name" > "$SANDBOX/kunit/$name.c"
	done
	echo 'int fixture;' > "$SANDBOX/kunit/cow_fixture.c"
	echo 'CONFIG_KUNIT=y' > "$SANDBOX/kunit/.kunitconfig"
	for name in a_test a_test_more; do
		printf '/*\n * The program %s.\n */\nint main;\n' "$name" > "$SANDBOX/selftests/cow/$name.c"
	done
	echo 'int part;' > "$SANDBOX/selftests/cow/a_test_part.c"
	echo 'int helper;' > "$SANDBOX/selftests/cow/helper.c"
	cat > "$SANDBOX/selftests/cow/Makefile" <<-'END'
	# What all programs need
	LDLIBS += -lpthread

	# The tests
	TEST_GEN_PROGS += a_test
	TEST_GEN_PROGS += a_test_more
	TEST_GEN_FILES += a_test_small

	$(TEST_GEN_PROGS): helper.c

	# In two files
	$(OUTPUT)/a_test: a_test_part.c
	END
	printf '# ignored\na_test\na_test_more\n' > "$SANDBOX/selftests/cow/.gitignore"
}

# in_sandbox COMMAND...: the sandboxed harness; output in $OUT, status in $STATUS
in_sandbox()
{
	OUT=$SCRATCH/output
	STATUS=0
	COW_BUILD='' COW_LOGS='' COW_RESULTS='' APT_SOURCES="$SCRATCH/archive/etc" \
		"$SANDBOX/run_tests.sh" "$@" > "$OUT" 2>&1 < "${INPUT:-/dev/null}" || STATUS=$?
}

# in_repo COMMAND...: this harness
in_repo()
{
	OUT=$SCRATCH/output
	STATUS=0
	COW_RESULTS='' "$ROOT/run_tests.sh" "$@" > "$OUT" 2>&1 < /dev/null || STATUS=$?
}

#
# What a test says. A test is a function test_NAME; the first complaint fails it.
#

complain()
{
	echo "$*" > "$SCRATCH/complaint"
	return 1
}

want_status()
{
	[ "$STATUS" -eq "$1" ] ||
		complain "status $STATUS, wanted $1: $(tail -n 3 "$OUT" | paste -sd'|')"
}

want_output()
{
	grep -qE -- "$1" "$OUT" ||
		complain "no /$1/ in the output: $(tail -n 3 "$OUT" | paste -sd'|')"
}

want_same()
{
	[ "$1" = "$2" ] || complain "'$1' is not '$2'"
}

# wait_for_begun NR: until so many of the fake checks have begun
wait_for_begun()
{
	local i
	for ((i = 0; i < 3000; i++)); do
		[ "$(wc -l < "$BEGUN")" -lt "$1" ] || return 0
		sleep 0.1
	done
	complain "only $(wc -l < "$BEGUN") of $1 checks have begun"
}

# want_ended PATTERN: no process with such a command is left, soon; on a busy host a signal
# takes its time
want_ended()
{
	local i
	for ((i = 0; i < 600; i++)); do
		pgrep -f "$1" > /dev/null || return 0
		sleep 0.1
	done
	complain "still runs: $(pgrep -af "$1" | head -n 1)"
}
