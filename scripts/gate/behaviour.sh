# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Kernels that the gate boots, by the same functions as the other commands, but on the
# submission's tree.

. "$ROOT/scripts/lib/kunit.sh"
. "$ROOT/scripts/lib/kselftest.sh"
. "$ROOT/scripts/gate/build.sh"

# behaviour_tree: sets B_DIR, the folder with tree/ that holds the submission and
# with its builds. Our own series has one already, with the other commands' builds.
behaviour_tree()
{
	if [ "$G_KIND" = own ]; then
		B_DIR=$K_DIR
		tree_unchanged || die "it has to be as it was when the gate began"
		return
	fi
	build_tree
	checkout_in_gate_tree "$G_HEAD"
	B_DIR=$G_DIR
}

# base_tree: sets BASE_DIR, the same for what the submission is based on
base_tree()
{
	if [ -n "$G_ON_SERIES" ]; then
		BASE_DIR=$K_DIR
	else
		prepare_unpatched
		BASE_DIR=$K_DIR/unpatched
	fi
}

# boot_kernel WHICH: builds what is to be booted next, base or patched, with BENCH and
# DEBUG.
boot_kernel()
{
	UNPATCHED=
	HAS_SERIES=$([ -n "$G_OURS" ] && echo yes || echo no)
	RIVAL_FRAGMENT=
	if [ "$1" = base ]; then
		ON_FAILED_JOB=base_failed
		build_base
		return
	fi
	ON_FAILED_JOB=job_failed
	[ -n "${OPTIONS_OFF-}" ] || enable_options
	build_kernel "$ARCH" "$B_DIR" || build_failed
	[ -z "$RIVAL_FRAGMENT" ] || warn_not_switched "$B_DIR/$(out_name "$ARCH")"
}

# A base that does not build is no failure of the submission.
build_base()
{
	base_tree
	[ -n "$G_ON_SERIES" ] || UNPATCHED=1
	build_kernel "$ARCH" "$BASE_DIR" || die "the base does not build: $(errors_of "$LOGS/build.log")"
}

# The patched kernel does not build: it fails only if the base does.
build_failed()
{
	mv "$LOGS/build.log" "$LOGS/build.patched.log"
	RIVAL_FRAGMENT=
	build_base
	fail "the kernel does not build: $(errors_of "$LOGS/build.patched.log")"
	leave 0
}

# kernel_to_boot ARCH: builds the kernel to test, with the series' options on. Sets OUT.
kernel_to_boot()
{
	ARCH=$1
	behaviour_tree
	boot_kernel patched
	note "${OUT##*/}: builds"
}

# job_failed DIR WHY: a guest with the submission panicked, hung, complained, or read wrong
# data (status 1). If it hung without a complaint it is tried once more: the host may have
# been too slow for it.
job_failed()
{
	die_of_switch "$1"
	if [ -z "$SPLATS" ] && [ "$VERDICT" != panic ] && [ "$VERDICT" != "exited 1" ]; then
		say "the patched kernel: $2; once more"
		rm -rf "$1.first"
		mv "$1" "$1.first"
		ON_FAILED_JOB=job_failed_again
		run_job "$1"
		ON_FAILED_JOB=job_failed
		warn "the patched kernel failed at first: $2; see $1.first"
		return
	fi
	job_failed_again "$@"
}

# A function that runs the same job on the base before a failed guest counts, by which the
# check ends if that fails, too: see base_failed. Empty where the base has run before.
RUN_BASE_FIRST=

job_failed_again()
{
	[ -z "$RUN_BASE_FIRST" ] || "$RUN_BASE_FIRST"
	fail "the patched kernel does not survive the test: $2"
	leave 0
}

# base_failed DIR WHY: there is nothing to compare the submission with
base_failed()
{
	die "the base does not survive the test itself: $2"
}

# enable_options: new options are off by default: switch them on to test them. Those of
# our own series are in Kconfig.fragment.
enable_options()
{
	: > "$SCRATCH/on.fragment"
	[ -n "$G_OURS" ] && [ -z "$G_ON_SERIES" ] || fragment_of on
	set_fragment "$ARCH" > "$SCRATCH/set.fragment"
	without_set_symbols
	[ -s "$SCRATCH/on.fragment" ] || [ -s "$SCRATCH/set.fragment" ] || return 0
	RIVAL_FRAGMENT=$SCRATCH/rival.config
	{ sed 's/$/\t# optional/' "$SCRATCH/on.fragment"; cat "$SCRATCH/set.fragment"; } > "$RIVAL_FRAGMENT"
	note_options
}

# without_set_symbols: --config decides about a new option, too
without_set_symbols()
{
	sed -n -E 's/^(# )?(CONFIG_[A-Za-z0-9_]*).*/\2/p' "$SCRATCH/set.fragment" > "$SCRATCH/set.symbols"
	awk -F = 'FILENAME == ARGV[1] { set[$1]; next } !($1 in set)' "$SCRATCH/set.symbols" "$SCRATCH/on.fragment" > "$SCRATCH/on.rest"
	mv "$SCRATCH/on.rest" "$SCRATCH/on.fragment"
}

# warn_not_switched OUT: new options, and those of --config, that this architecture lacks
warn_not_switched()
{
	local line
	warn_options_off "$1"
	sed -n 's/[[:space:]]*# optional//p' "$SCRATCH/set.fragment" | grep_any -v '^#' | while read -r line; do
		grep -qxF "$line" "$1/.config" || warn "$line is not accepted on $ARCH: what it switches was not checked"
	done
}

# note_options: once, however many kernels a check builds
note_options()
{
	[ -z "${OPTIONS_NOTED-}" ] || return 0
	OPTIONS_NOTED=1
	note "switched on: $(sed 's/[[:space:]]*# optional//' "$RIVAL_FRAGMENT" | paste -sd' ')"
}

need_our_tests()
{
	[ -n "$G_OURS" ] || not_applicable "the submission does not carry our options: our tests have nothing to test"
}

# copy_our_selftests: into the tree of a submission without them, since cow_bench measures
# any kernel. Harness and runner are the base's: nothing of the submission judges it. The
# next checkout_in_gate_tree removes them.
copy_our_selftests()
{
	local dir=$B_DIR/tree/tools/testing/selftests/cow
	kgit -C "$B_DIR/tree" checkout -q --no-overlay "$G_BASE" -- tools/testing/selftests tools/include \
		scripts/subarch.include
	rm -rf "$dir"
	cp -r "$ROOT/selftests/cow" "$dir"
}

# take_results WHAT: each test that failed is a finding
take_results()
{
	list_results fail | fail_each "$1"
	note "$1$(count_results pass) passed, $(count_results fail) failed, $(count_results skip) skipped"
	[ "$(count_results pass)" -gt 0 ] || [ "$(count_results fail)" -gt 0 ] || fail "$1no test passed"
}

# kunit_on ARCH [NAME SYMBOL=y...]: our KUnit tests on the submission, in a kernel
# with more options, built in a folder of that name
kunit_on()
{
	local arch=$1 name=${2-} options=() symbol
	need_our_tests
	behaviour_tree
	for symbol in "${@:3}"; do
		options+=("--kconfig_add=CONFIG_$symbol")
	done
	if ! run_kunit "$B_DIR/tree" "$B_DIR/kunit-$arch${name:+-$name}" "$arch" '' "${options[@]}"; then
		fail "the kernel with the KUnit tests does not build: $(errors_of "$LOGS/kunit.py-$arch.log")"
		return
	fi
	take_results ""
}

# kselftests_on ARCH [off]: our kselftests on the submission, with DEBUG. One that does not
# carry our options gets the tests of behaviour (variant plain), as it is and switched on,
# and with "off" without its options, too.
kselftests_on()
{
	ARCH=$1
	CHOSEN=()
	[ -n "$(files AMD '*.[chS]' '*Kconfig*' '*Makefile' '*Kbuild' "${NOT_KERNEL[@]}")" ] ||
		not_applicable "the series touches no code of the kernel"
	warn_changed_tests
	behaviour_tree
	boot_kernel patched
	[ -n "$G_OURS" ] || copy_our_selftests
	install_for_gate || return 0
	on_two_nodes
	run_on_submission ""
	[ -z "$SET$APPEND_ON" ] || run_switched_on
	[ "${2-}" != off ] || run_options_off
}

# warn_changed_tests: a submission on top of our series brings its own version of them
warn_changed_tests()
{
	[ -n "$G_OURS" ] && [ "$G_KIND" != own ] || return 0
	files MD tools/testing/selftests/cow mm/tests | warn_each "it changes a test that judges it: "
}

# install_for_gate: status 1 if they do not build, which is a finding
install_for_gate()
{
	local status=0 errors
	need_sysroot "${SYSROOT_BASE[@]}"
	need_sysroot "${SYSROOT_SELFTESTS[@]}"
	# not as a condition, which no failed command in it would end
	( install_selftests "$B_DIR/tree" "$B_DIR" ) &
	wait $! || status=$?
	[ "$status" -ne 0 ] || return 0
	errors=$(errors_of "$LOGS/selftests.log")
	[ -n "$errors" ] || die "the kselftests could not be installed (status $status)"
	fail "the kselftests do not build: $errors"
	return 1
}

# sanitize DEBUG: our kselftests on x86_64 with that debug configuration
sanitize()
{
	DEBUG=$1
	kselftests_on x86_64
}

# silence_limit: seconds after which a job that prints nothing hangs. The longest
# test takes less than a minute under TCG; a sanitizer makes that many times longer.
silence_limit()
{
	[ -z "$DEBUG" ] && echo 300 || echo 1200
}

# run_switched_on: once more with what --set and --append name
run_switched_on()
{
	SWITCH_ON=$SET
	APPEND=$APPEND_ON
	mv "$LOGS/guest" "$LOGS/guest.off"
	run_on_submission "switched on: "
	note "switched on: $(printf '%s' "$SET" | paste -sd' ')${APPEND_ON:+ (boot: $APPEND_ON)}"
	SWITCH_ON=
	APPEND=
}

# run_options_off: once more without the options that the submission adds, and as
# distributions build their kernels. It may have put a rule under an option, or into an
# assertion. For our own options build-size finds out what they leave. A submission that
# has failed needs no other guest.
run_options_off()
{
	[ -z "$G_OURS" ] && ! grep -q '^fail' "$FINDINGS" || return 0
	mv "$LOGS/guest" "$LOGS/guest.on"
	OPTIONS_OFF=1
	boot_kernel patched
	run_on_submission "options off: "
	OPTIONS_OFF=
	note "options off: $({ option_names; echo CONFIG_DEBUG_VM; } | grep . | paste -sd' ')"
}

# run_on_submission WHAT: the chosen kselftests, each failure a finding
run_on_submission()
{
	: > "$RESULTS"
	GUEST_SILENCE=$(silence_limit)
	run_selftests
	die_of_switch "$LOGS/guest"
	[ -n "$G_OURS" ] || compare_with_base
	interfaces_missing | fail_each "$1"
	take_results "$1"
}

# interfaces_missing: our options that are on, while tests skip as if they were off
interfaces_missing()
{
	local symbol
	sed -n -E '/^skip/s/.*kernel without (CONFIG_COW_[A-Z]+).*/\1/p' "$RESULTS" | sort -u | while read -r symbol; do
		! grep -qxF "$symbol=y" "$OUT/.config" || echo "$symbol is on, but tests do not find its interface"
	done
}

# die_of_switch DIR: if the guest could not set what --set, or a mail, names
die_of_switch()
{
	local what
	[ -f "$1/job.log" ] || return 0
	what=$(sed -n 's/^cannot set //p' "$1/job.log" | tr -d '\r' | sed -n 1p)
	[ -z "$what" ] || die "the patched kernel does not take $what ($(awk -F '\t' -v what="$what" '$1 == what { by = $2 } END { print by }' <<< "$G_SWITCHED"))"
}

# compare_with_base: tests that fail, or skip though they should not here, are run on the
# base, too. Those that fail there as well are not held against the submission; those that
# pass there must not skip.
compare_with_base()
{
	local line
	unknown_skips "$(machine_of_skips)" < "$RESULTS" | cut -f 1 > "$SCRATCH/skipped"
	[ "$(count_results fail)" -gt 0 ] || [ -s "$SCRATCH/skipped" ] || return 0
	mv "$LOGS/guest" "$LOGS/guest.patched"
	cp "$RESULTS" "$SCRATCH/patched.results"
	# a complaint of the kernel or a dead guest: nobody knows which test it was
	CHOSEN=()
	grep -qE $'^fail\t(guest|console)\t' "$RESULTS" ||
		mapfile -t CHOSEN < <(awk -F '\t' '$1 == "fail" { print $2 }' "$RESULTS" | cat - "$SCRATCH/skipped")
	(
		end_with_guest
		SWITCH_ON=
		boot_kernel base
		: > "$RESULTS"
		run_selftests
	)
	mv "$LOGS/guest" "$LOGS/guest.base"
	# What comes after the end of the guest was not run on the submission either.
	line=$(awk -F '\t' '$1 == "fail" && $2 == "guest" { print $3; exit }' "$RESULTS")
	[ -z "$line" ] || base_failed "$LOGS/guest.base" "$line"
	judge_by_base "$RESULTS" "$SCRATCH/skipped" "$SCRATCH/patched.results" > "$SCRATCH/judged"
	cp "$SCRATCH/judged" "$RESULTS"
	awk -F '\t' '$1 == "skip" && $3 ~ /^fails on the base, too/ { print $2 ": " $3 }' "$RESULTS" |
		warn_each ""
	mv "$LOGS/guest.patched" "$LOGS/guest"
	CHOSEN=()
}

# judge_by_base BASE SKIPPED PATCHED: the results of PATCHED by those of BASE; SKIPPED are
# the tests that should not skip. A complaint of the kernel, or the end of a guest, is
# the same if its text is, but for numbers.
judge_by_base()
{
	awk '
		function key(name, text) {
			if (name != "guest" && name != "console")
				return name
			gsub(/0x[0-9a-f]+|[0-9]+/, "N", text)
			return name ": " text
		}
		BEGIN { FS = OFS = "\t" }
		FILENAME == ARGV[1] { base[key($2, $3)] = $1; next }
		FILENAME == ARGV[2] { unexpected[$1] = 1; next }
		$1 == "fail" && base[key($2, $3)] == "fail" { print "skip", $2, "fails on the base, too: " $3; next }
		$1 == "skip" && $2 in unexpected && base[$2] == "pass" {
			print "fail", $2, "skips, but passes on the base: " $3; next
		}
		{ print }' "$1" "$2" "$3"
}
