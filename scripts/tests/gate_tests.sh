# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the gate: how it runs checks.

# A mail that was encoded on its way reads as it was sent.
test_encoded_mails()
{
	local dir=$SCRATCH/encoded encoding mail
	rm -rf "$dir"
	mkdir -p "$dir"
	split_file "$ROOT/fixtures/submissions/good.mbox" "$dir"
	mail=$dir/0001
	sed -i 's/^From: .*/From: =?UTF-8?q?J=C3=B6rg,_a_Developer?= <j@example.org>/; s/allocator /allocator =20 = /' "$mail"
	for encoding in base64 quoted-printable; do
		{
			sed '/^$/,$d' "$mail"
			printf 'MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: %s\n\n' "$encoding"
			sed '1,/^$/d' "$mail" | case "$encoding" in
			base64) base64 ;;
			*) perl -MMIME::QuotedPrint -pe '$_ = encode_qp($_)' ;;
			esac
		} > "$dir/$encoding"
		decode_mail "$dir/$encoding"
		want_same "$(grep -c '^diff --git ' "$dir/$encoding")" "$(grep -c '^diff --git ' "$mail")" &&
		want_same "$(read_mail "$dir/$encoding")" "$(read_mail "$mail")" || return
	done
	want_same "$(cp "$mail" "$dir/plain" && decode_mail "$dir/plain" && cat "$dir/plain")" "$(cat "$mail")"
}

# read_mail MAIL: all that git takes from it
read_mail()
{
	kgit mailinfo --encoding=UTF-8 "$SCRATCH/msg" "$SCRATCH/diff" < "$1" && cat "$SCRATCH/msg" "$SCRATCH/diff"
}

# Revisions have dots.
test_gate_ranges()
{
	local range
	for range in v7.2..v7.3-cow a..b HEAD~3..HEAD; do
		in_repo gate --tree "$SCRATCH" --range "$range" && want_status 2 && want_output 'is no git tree' || return
	done
	for range in a...b a.. ..b a; do
		refused_with "is not A..B" gate --tree "$SCRATCH" --range "$range" || return
	done
}

# fake_check NAME HEADER SECONDS [COMMAND]: one of the sandbox's, which says in $BEGUN
# when it begins and when it ends
fake_check()
{
	cat > "$SANDBOX/scripts/gate/checks/$1" <<-END
	# Check: nothing
	# Cost: 0
	$2

	check()
	{
		echo "$1 begins" >> "$BEGUN"
		sleep $3
		echo "$1 ends" >> "$BEGUN"
		${4:-note fine}
	}
	END
}

# Two checks at a time, but never two on the gate's own tree; each queue in its order,
# and the verdicts in the order of all checks.
test_gate_queues()
{
	rm "$SANDBOX"/scripts/gate/checks/*
	BEGUN=$SCRATCH/begun.checks
	: > "$BEGUN"
	# It ends after the other queue, however busy the host is.
	fake_check form-long '#' "0; timeout 300 sh -c \"until grep -q 'build-two ends' '$BEGUN'; do sleep 0.1; done\""
	fake_check build-one '# Tree: gate' 0.3
	fake_check build-two '# Queue: builds' 0.3 'fail "that is wrong"'
	fake_check numbers-first '#' 0.1 'warn "look at that"'
	fake_check numbers-last '#' 0.1 'die "no compiler"'
	in_sandbox gate --base 6.12 --jobs 2 && want_status 1 && want_output '^3 passed, 1 failed' || return
	want_same "$(grep build "$BEGUN" | paste -sd,)" \
		"build-one begins,build-one ends,build-two begins,build-two ends" &&
	want_same "$(grep -v build "$BEGUN" | paste -sd,)" \
		"form-long begins,form-long ends,numbers-first begins,numbers-first ends,numbers-last begins,numbers-last ends" || return
	[ "$(grep -n 'build-two ends' "$BEGUN" | cut -d: -f 1)" -lt "$(grep -n 'form-long ends' "$BEGUN" | cut -d: -f 1)" ] ||
		complain "the queues did not run side by side: $(paste -sd, "$BEGUN")" || return
	want_same "$(cut -f 1,2 "$SANDBOX"/build/logs/*/results | tr '\t\n' ' ,')" \
		"pass form-long,pass build-one,fail build-two,pass numbers-first,error numbers-last," || return
	: > "$BEGUN"
	fake_check form-long '#' 0.1
	in_sandbox gate --base 6.12 --jobs 1 --fresh &&
	want_same "$(sed -n 's/ begins//p' "$BEGUN" | paste -sd,)" \
		"form-long,build-one,build-two,numbers-first,numbers-last"
}

# One signal ends it with all that it began, and nothing of that is taken for a verdict.
test_gate_ended()
{
	local pid status=0 i long="sleep 661.$$"
	rm "$SANDBOX"/scripts/gate/checks/*
	BEGUN=$SCRATCH/begun.checks
	: > "$BEGUN"
	fake_check form-long '#' "0; $long"
	fake_check build-long '# Tree: gate' "0; setsid $long & GUEST=\$!; echo 'guest begins' >> '$BEGUN'; wait"
	COW_BUILD='' COW_LOGS='' COW_RESULTS='' APT_SOURCES="$SCRATCH/archive/etc" \
		bash "$SANDBOX/scripts/cmd/gate" --base 6.12 --jobs 2 > "$SCRATCH/output" 2>&1 < /dev/null &
	pid=$!
	wait_for_begun 3
	kill -TERM "$pid"
	i=$SECONDS
	wait "$pid" || status=$?
	want_same "$(wc -l < "$BEGUN")" 3 && want_same "$status" 143 || return
	[ $((SECONDS - i)) -lt 300 ] || { complain "it took $((SECONDS - i)) seconds to end"; return; }
	want_ended "$long" &&
	want_same "$(find "$SANDBOX/build/6.12/gate/results" -name verdict.json | wc -l)" 0
}

# The base runs only programs of which not all passed; a flaky one is run there again.
test_gate_mm_selftests()
{
	local FINDINGS=$SCRATCH/findings RUNS=$SCRATCH/runs asked=$SCRATCH/asked BENCH_FILES=$SCRATCH/mm
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/mm-selftests.sh"
	mkdir -p "$RUNS" "$BENCH_FILES/selftests"
	touch "$BENCH_FILES/selftests/"{fine,one,two,known,late}
	# the base's third run of two is as the submission's only one
	results_of()
	{
		local name
		# shellcheck disable=SC2154 # run_on_base()'s own
		echo "$number: $MM_PROGRAMS" >> "$asked"
		for name in $MM_PROGRAMS; do
			case "$number $name" in
			*' known'|'3 two') printf '%s: %s\n' "$name" 'not ok 1 b' "$name" '@status 1' ;;
			*' late') printf '%s: %s\n' "$name" '@status 124' ;;
			*) printf '%s: %s\n' "$name" 'ok 1 b' "$name" '@status 0' ;;
			esac
		done > "$RUNS/$2"
	}
	all_pass > "$RUNS/fine"
	all_pass | sed -E '/^two|^known/{s/ok 1/not ok 1/; s/status 0/status 1/}; /^late/{/ok/d; s/status 0/status 143/}' > "$RUNS/off"
	sed -E '/^one/{s/ok 1/not ok 1/; s/status 0/status 1/}' "$RUNS/off" > "$RUNS/on"
	: > "$FINDINGS"
	: > "$asked"
	compare fine
	want_same "$(cut -f 1 "$FINDINGS" | paste -sd,)" note &&
	want_same "$(cat "$asked")" '1: fine known late one two' || return
	: > "$FINDINGS"
	compare off
	want_same "$(cut -f 1 "$FINDINGS" | paste -sd,)" warn,warn,note &&
	want_same "$(grep -c 'two: flaky\|late does not end' "$FINDINGS")" 2 &&
	want_same "$(tail -n +2 "$asked" | paste -sd,)" "2: two,3: two" || return
	: > "$FINDINGS"
	compare on
	want_same "$(cut -f 1 "$FINDINGS" | paste -sd,)" fail,fail,fail,fail,warn,warn,note &&
	want_same "$(grep -c "^fail.*one: " "$FINDINGS")" 4 &&
	want_same "$(tail -n +4 "$asked" | paste -sd,)" "2: one,3: one,4: one,5: one" || return
	# nothing fails, but a test is not there
	: > "$FINDINGS"
	all_pass | grep -v '^one: ok' > "$RUNS/fewer"
	compare fewer
	want_same "$(sed 1q "$FINDINGS")" $'fail\tfewer: on the base only: one: ok 1 b' || return
	: > "$FINDINGS"
	printf '%s: ok 1 %s\n' one 'a # SKIP no' two 'a # SKIP no' two b > "$RUNS/skipped"
	note_skipping_programs skipped
	want_same "$(cat "$FINDINGS")" $'note\tskipped: every test skips in this guest: one'
}

all_pass()
{
	printf '%s: ok 1 b\n%s: @status 0\n' fine fine one one two two known known late late
}

# A guest with the submission that panics fails it only if the base survives the same:
# otherwise there is no verdict.
test_gate_base_panics()
{
	local FINDINGS=$SCRATCH/findings SPLATS='' VERDICT=panic
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/mm-selftests.sh"
	RUN_BASE_FIRST=base_survives
	results_of() { :; }
	: > "$FINDINGS"
	( LEAVING=; trap - EXIT; job_failed "$SCRATCH/job" 'it panics' ) || return
	want_same "$(cut -f 1 "$FINDINGS")" fail || return
	# nor is wrong data tried again; a guest that hung is
	run_job() { echo again > "$SCRATCH/again"; }
	rm -rf "$SCRATCH/again" "$SCRATCH/job"*
	mkdir "$SCRATCH/job"
	: > "$FINDINGS"
	( LEAVING=; trap - EXIT; VERDICT='exited 1'; job_failed "$SCRATCH/job" 'wrong data' ) || return
	want_same "$(cut -f 1 "$FINDINGS")" fail && want_same "$(cat "$SCRATCH/again" 2> /dev/null)" '' || return
	: > "$FINDINGS"
	( LEAVING=; trap - EXIT; VERDICT=hung; job_failed "$SCRATCH/job" 'it hangs' ) || return
	want_same "$(cut -f 1 "$FINDINGS")" warn && want_same "$(cat "$SCRATCH/again")" again || return
	results_of() { VERDICT=panic; base_failed "$SCRATCH/job" 'it panics too'; }
	: > "$FINDINGS"
	STATUS=0
	OUT=$SCRATCH/output
	( LEAVING=; trap - EXIT; job_failed "$SCRATCH/job" 'it panics' ) > "$OUT" 2>&1 || STATUS=$?
	want_status 2 && want_output 'the base does not survive the test itself' && want_same "$(cat "$FINDINGS")" ''
}

# The newest of a check's results stay, while the other queue comes and goes beside.
test_gate_drop_old_results()
{
	local G_DIR=$SCRATCH/drop other i failed=0
	mkdir -p "$G_DIR/results"
	( while mkdir "$G_DIR/results"/other.{1..9}; do rmdir "$G_DIR/results"/other.*; done ) 2> /dev/null &
	other=$!
	drop_old_results one || failed=1
	for i in 1 2 3 4 5 6 7 8; do
		mkdir "$G_DIR/results/one.$i"
		touch -d "2020-01-0$i" "$G_DIR/results/one.$i"
	done
	for ((i = 0; i < 150; i++)); do
		drop_old_results one 2> /dev/null || failed=$((failed + 1))
	done
	kill "$other"
	wait "$other" || true
	want_same "$failed" 0 &&
	want_same "$(cd "$G_DIR/results" && echo one.*)" 'one.4 one.5 one.6 one.7 one.8'
}

# Kernels are not built anew for patches of kselftests and documentation.
test_gate_kernel_patches()
(
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	K_TREE=$PLAIN
	G_MAILS=$SCRATCH/none
	G_BASE=$(kgit -C "$PLAIN" rev-parse HEAD)
	for file in mm/memory.c tools/testing/selftests/Makefile tools/objtool/x Documentation/x MAINTAINERS; do
		mkdir -p "$(dirname "$PLAIN/$file")"
		echo '/* changed */' >> "$PLAIN/$file"
		kgit -C "$PLAIN" add -A
		kgit -C "$PLAIN" commit -q -m "change $file"
	done
	G_HEAD=$(kgit -C "$PLAIN" rev-parse HEAD)
	note() { echo "note $*"; }
	show_patch() { echo "$1 $(subject_of "$2")"; }
	want_same "$(each_kernel_patch show_patch | paste -sd,)" \
		"1 change mm/memory.c,3 change tools/objtool/x,note 3 patches with nothing but kselftests or documentation are left out"
)

# ccache repeats a warning with the path of the clone in which it was first given.
test_gate_warnings_of()
{
	local log=$SCRATCH/warnings
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/build.sh"
	with_new_names() { cat; }
	cat > "$log" <<-'END'
	/one/build/7.3/gate/tree/mm/a.c:10:2: warning: unused variable
	/other/clone/build/7.3/gate/tree/mm/b.c:11:3: warning: no prototype
	../tree/mm/c.c: In function 'f':
	../tree/mm/c.c:12:4: warning: set but not used
	END
	want_same "$(warnings_of "$log" | paste -sd'|')" \
		'mm/a.c: warning: unused variable|mm/b.c: warning: no prototype|mm/c.c: warning: set but not used'
}

# Whether a file is compiled hangs on its own line and on each that leads to its folder.
test_gate_is_built()
{
	local K_TREE=$SCRATCH/built file built
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/check-api.sh"
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/build.sh"
	mkdir -p "$K_TREE"/{mm/off,mm/some,net/core}
	kgit -C "$K_TREE" init -q
	printf 'obj-y += mm/\nobj-$(CONFIG_NET) += net/\n' > "$K_TREE/Kbuild"
	printf 'obj-y += core/ socket.o\n' > "$K_TREE/net/Kbuild"
	echo 'obj-y += skbuff.o' > "$K_TREE/net/core/Makefile"
	printf '%s\n' "obj-y := memory.o \\" '	rmap.o' 'obj-$(CONFIG_OFF) += off.o some/' 'obj-$(CONFIG_ON) += on.o some/' \
		'obj-$(CONFIG_OFF) += off/' > "$K_TREE/mm/Makefile"
	echo 'obj-y += core.o' | tee "$K_TREE/mm/off/Makefile" > "$K_TREE/mm/some/Makefile"
	kgit -C "$K_TREE" add -A
	kgit -C "$K_TREE" -c user.name=a -c user.email=a@b.invalid commit -qm files
	echo CONFIG_ON=y > "$SCRATCH/built.config"
	for file in mm/memory.c mm/rmap.c mm/off.c mm/on.c mm/none.c mm/off/core.c mm/some/core.c net/socket.c net/core/skbuff.c; do
		is_built HEAD "$file" "$SCRATCH/built.config" && built=yes || built=no
		echo "$file $built"
	done > "$SCRATCH/built.list"
	want_same "$(sed -n 's/ yes//p' "$SCRATCH/built.list" | paste -sd' ')" "mm/memory.c mm/rmap.c mm/on.c mm/some/core.c"
}

# What an object calls is there if something that is linked defines it for others.
test_gate_finds_all()
{
	local out=$SCRATCH/out part name LOGS=$SCRATCH/finds_all touched=()
	# shellcheck source=/dev/null
	. "$ROOT/scripts/gate/checks/build-without"
	mkdir -p "$LOGS"
	for part in "${PARTS[@]}"; do
		mkdir -p "$out/$part"
		ar rcsT "$out/$part/built-in.a"
	done
	echo there_of_the_rest > "$SCRATCH/reference"
	for name in 'caller:void helper(void), there_of_the_rest(void); void caller(void) { helper(); there_of_the_rest(); }' \
			'left-over:void helper(void) { }' 'own:static __attribute__((used)) void helper(void) { }' \
			'helper:void helper(void) { }'; do
		echo "${name#*:}" > "$SCRATCH/one.c"
		gcc -O2 -c "$SCRATCH/one.c" -o "$out/mm/${name%%:*}.o" || return
	done
	ar rcsT "$out/fs/built-in.a" "$out/mm/own.o"
	ar rcsT "$out/mm/built-in.a" "$out/mm/caller.o"
	! finds_all "$out" || { complain "found in what is not linked, or is another's own"; return; }
	want_same "$(cat "$LOGS/missing")" helper || return
	ar rcsT "$out/fs/built-in.a" "$out/mm/helper.o"
	finds_all "$out" || complain "not found: $(cat "$LOGS/missing")"
}

# What kills half of it does not leave a table that looks whole, nor the rest running.
test_gate_broken()
{
	local long="sleep 662.$$"
	rm "$SANDBOX"/scripts/gate/checks/*
	BEGUN=$SCRATCH/begun.checks
	: > "$BEGUN"
	fake_check form-fine '#' 0
	fake_check form-kills '#' 0.2 "kill -KILL \$PPID; $long"
	fake_check form-lost '#' 0
	fake_check build-long '# Tree: gate' "0; $long"
	in_sandbox gate --base 6.12 --jobs 2 && want_status 2 && want_output '^1 passed, 0 failed' &&
	want_output '^ERROR form-lost: not run' && want_output '^ERROR build-long: not run' || return
	want_ended "$long"
}

# A verdict is about what was committed when the gate began.
test_gate_moved()
{
	rm "$SANDBOX"/scripts/gate/checks/*
	BEGUN=$SCRATCH/begun.checks
	: > "$BEGUN"
	fake_check form-edits '#' 0 'echo >> "$K_TREE/README"; note fine'
	in_sandbox gate --base 6.12 --jobs 2 && want_status 2 && want_output 'ERROR form-edits .*not committed' &&
	in_sandbox gate --base 6.12 --jobs 2 && want_status 2 && want_output 'not committed' &&
	want_same "$(grep -c begins "$BEGUN")" 1 || return
	rm "$SANDBOX/build/6.12/tree/README"
	fake_check form-edits '#' 0 'echo >> "$K_TREE/README"; fail "of that"; note fine'
	in_sandbox gate --base 6.12 --jobs 2 && want_status 2 && want_output 'ERROR form-edits .*not committed'
}

# A submission that is stored as a diff; one that is made by repeating a line.
test_gate_submissions()
{
	local dir=$SCRATCH/submissions ROOT=$SCRATCH/submissions FILTER='' QUICK=''
	mkdir -p "$dir/fixtures/submissions"
	cd "$dir/fixtures/submissions" || return
	printf 'Submission: good\nQuick: yes\n\nFrom me\n---\n a\n b\n---\n' > good.mbox
	printf 'Submission: bad\n\n--- good.mbox\n+++ bad.mbox\n@@ -3,3 +3,3 @@\n  a\n- b\n+ c\n ---\n' > bad.diff
	printf 'Submission: long\nRepeat: 3 one more\nFinds: x: y\n' > long.diff
	want_same "$(submission_mails bad.diff | paste -sd,)" 'From me,---, a, c,---' &&
	want_same "$(submission_mails long.diff | paste -sd,)" 'From me,---,one more,one more,one more, a, b,---' &&
	want_same "$(submission_names)" 'bad good long' &&
	want_same "$(submission_files | xargs -n 1 basename | paste -sd,)" 'good.mbox,bad.diff,long.diff' &&
	want_same "$(QUICK=1 submission_files | xargs -n 1 basename)" good.mbox &&
	want_same "$(FILTER='[bl]*' submission_files | xargs -n 1 basename | paste -sd,)" 'bad.diff,long.diff' &&
	want_same "$(submission_field long.diff Finds)" 'x: y' || return
	sed -i 's/^- b/- z/' bad.diff
	! ( trap - EXIT; submission_mails bad.diff ) > /dev/null 2>&1 || complain "a diff that does not apply was taken"
}
