# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The kselftests: built and installed from a tree, run in a guest.

# split_filter: checks FILTER, one or more of PROGRAM[:TEST], and sets CHOSEN to them
split_filter()
{
	local word program
	read -ra CHOSEN <<< "$FILTER"
	for word in "${CHOSEN[@]}"; do
		for program in $(selftest_programs); do
			! names_program "$word" "$program" || continue 2
		done
		die "no kselftest matches '${word%%:*}'; there are: $(selftest_programs | paste -sd' ')"
	done
}

# names_program WORD PROGRAM: the part before the colon is a glob, or nothing
names_program()
{
	local glob=${1%%:*}
	# shellcheck disable=SC2254 # a glob on purpose
	case "$2" in
	${glob:-*}) return 0 ;;
	esac
	return 1
}

# The programs that the Makefile declares.
selftest_programs()
{
	sed -n 's/^TEST_\(GEN_\)\?PROGS[[:space:]]*[:+]\?=[[:space:]]*//p' \
		"$ROOT/selftests/cow/Makefile" | tr -s '[:space:]' '\n' | sort -u | sed '/^$/d'
}

filtered_programs()
{
	local program word
	for program in $(selftest_programs); do
		[ ${#CHOSEN[@]} -gt 0 ] || echo "$program"
		for word in "${CHOSEN[@]}"; do
			! names_program "$word" "$program" || { echo "$program"; break; }
		done
	done
}

# selftests_name: of the folder of those for ARCH; UML runs those of the host
selftests_name()
{
	echo "selftests$(! is_foreign || echo "-$ARCH")"
}

# install_selftests TREE DIR: the folder selftests_name below DIR, with install/ as
# make install leaves it, and the archive of that name in SCRATCH. Sets INSTALLED, a
# copy of install/ that no other run replaces. Without FORCE_TARGETS a test that does
# not compile would be left out silently.
install_selftests()
{
	local tree=$1 dir headers=x86_64
	dir=$2/$(selftests_name)
	! is_foreign || headers=$ARCH
	need_sysroot "${SYSROOT_BASE[@]}"
	need_sysroot "${SYSROOT_SELFTESTS[@]}"
	make_flags "$headers"
	mkdir -p "$dir/build"
	lock "$(out_label "$dir" | tr / -)"
	step "kernel headers" selftests.log \
		kmake "$tree" "$dir/build" "$headers" headers ||
		die "make headers failed; log: $LOGS/selftests.log"
	rm -rf "$dir/install"
	step "building the kselftests" selftests.log \
		make_selftests "$tree" "$dir" "$headers" ||
		die "the kselftests do not build; log: $LOGS/selftests.log"
	selftest_archive "$dir/install" "$SCRATCH/$(selftests_name).cpio"
	unlock "$(out_label "$dir" | tr / -)"
}

make_selftests()
{
	with_low_priority make -s -C "$1/tools/testing/selftests" O="$2/build" TARGETS=cow FORCE_TARGETS=1 \
		ARCH="$3" CROSS_COMPILE="${ARCH_CROSS[$3]-}" \
		SKIP_TARGETS='' INSTALL_PATH="$2/install" -j"$JOBS" install
}

# Packages for guests of another architecture: what the runner and cow_trace.sh call
SYSROOT_SELFTESTS=(coreutils perl-base trace-cmd linux-perf)

# What the installed runner and the tests need in the guest.
selftest_archive()
{
	local install=$1 dir file
	dir=$(mktemp -d "$SCRATCH/tests.XXX")
	mkdir -p "$dir/kselftest" "$dir/usr/bin"
	INSTALLED=$dir/kselftest
	cp -a "$install/." "$INSTALLED/"
	find "$install" -type f -perm -u+x | while read -r file; do
		program_libraries "$file"
	done | sort -u | copy_libraries "$dir"
	copy_program "$dir" "$(guest_program timeout)" /usr/bin/timeout
	copy_perl "$dir"
	pack "$dir" "$2"
}

# guest_program NAME: the path of the one that a guest of ARCH gets
guest_program()
{
	if is_foreign; then
		echo "$(sysroot)/usr/bin/$1"
	else
		type -P "$1"
	fi
}

# With perl the runner prefixes each line as it comes, with sed only at the end.
copy_perl()
{
	local sysroot modules target
	sysroot=$(sysroot)
	modules=$(echo "$sysroot"/usr/lib/*/perl-base)
	[ -x "$sysroot/usr/bin/perl" ] && [ -d "$modules" ] || return 0
	copy_program "$1" "$sysroot/usr/bin/perl"
	target=$1${modules#"$sysroot"}
	mkdir -p "$target"
	cp -aL "$modules/." "$target/"
}

# tools_archive FILE: trace-cmd and perf, with the addr2line that it runs, 35 MB, only for
# the tests that run them; bpftrace, 200 MB with its libraries, if the host has it, for
# images only, as it is so large
tools_archive()
{
	local dir
	dir=$(mktemp -d "$SCRATCH/tools.XXX")
	if [ -n "$IMAGE" ] && filtered_programs | grep -x -e cow_bpf.sh -e cow_docs.sh > /dev/null &&
		[ -x "$(guest_program bpftrace)" ]; then
		copy_program "$dir" "$(guest_program bpftrace)" /usr/bin/bpftrace
		# for events, on a kernel without BTF
		mkdir -p "$dir/usr/include"
		cp -r "$K_DIR/$(selftests_name)"/build/usr/include/{linux,asm,asm-generic} "$dir/usr/include/"
	fi
	if filtered_programs | grep -x -e cow_trace.sh -e cow_docs.sh > /dev/null; then
		copy_program "$dir" "$(guest_program trace-cmd)" /usr/bin/trace-cmd
	fi
	if filtered_programs | grep -x -e cow_trace.sh -e cowstat_stock -e cow_docs.sh > /dev/null; then
		copy_program "$dir" "$(perf_program)" /usr/bin/perf
	fi
	if filtered_programs | grep -x cowstat_stock > /dev/null &&
		[ -x "$(guest_program addr2line)" ]; then
		copy_program "$dir" "$(guest_program addr2line)" /usr/bin/addr2line
	fi
	pack "$dir" "$1"
}

# What linux-perf installs as perf, or the newest that a wrapper chooses from.
perf_program()
{
	local file
	for file in "$(guest_program perf)" $(printf '%s\n' "$(sysroot)"/usr/bin/perf_* | sort -rV); do
		[ ! -e "$file" ] || [ -z "$(elf_machine "$file")" ] || {
			echo "$file"
			return
		}
	done
	guest_program perf
}

# options_of_program PROGRAM: which of its tests to run, nothing if all. FIXTURE.VARIANT.TEST
# is one test, TEST the one of that name in every variant.
options_of_program()
{
	local word options=()
	for word in "${CHOSEN[@]}"; do
		names_program "$word" "$1" || continue
		case "$word" in
		*:*.*) options+=(-r "${word#*:}") ;;
		*:*) options+=(-t "${word#*:}") ;;
		*) return 0 ;;
		esac
	done
	echo "${options[*]}"
}

# The job: the runner, with the tests of a program chosen by its own options.
selftest_job()
{
	local program arguments=() variable options
	for program in $(filtered_programs); do
		arguments+=(-t "cow:$program")
		options=$(options_of_program "$program")
		if [ -n "$options" ]; then
			variable=KSELFTEST_$(printf %s "$program" | tr -c '[:alnum:]_' _ | tr '[:lower:]' '[:upper:]')_ARGS
			echo "export $variable='$options'"
		fi
	done
	switch_on_lines
	echo 'cd /kselftest || exit 2'
	printf 'exec ./run_kselftest.sh '
	# of each program: debugging kernels are slow
	[ -z "$DEBUG" ] || printf -- '--override-timeout 2400 '
	[ ${#arguments[@]} -eq 0 ] || shell_words "${arguments[@]}"
	echo
}

# What the job sets before the tests: lines KEY=VALUE, KEY a sysctl or a file
SWITCH_ON=

switch_on_lines()
{
	local line file
	while IFS= read -r line; do
		[ -n "$line" ] || continue
		file=${line%%=*}
		[[ "$file" == /* ]] || file=/proc/sys/${file//.//}
		printf "echo '%s' > '%s' || { echo 'cannot set %s'; exit 2; }\n" \
			"${line#*=}" "$file" "$line"
	done <<< "$SWITCH_ON"
}

# on_two_nodes: sets NODES. The tests of placement need two NUMA nodes, and the others pass
# there. Guests of arm64, of an image, and with a sanitizer have one; so has any guest with
# --append numa=fake=1, as the last such argument counts.
on_two_nodes()
{
	NODES=
	[ "$ARCH" != x86_64 ] || [ -n "$DEBUG$BENCH$IMAGE" ] || NODES=numa=fake=2
}

# run_selftests: boots the kernel of need_kernel, records every test
run_selftests()
{
	local dir=$LOGS/guest seconds=${TIMEOUT:-4800}
	# A busy host makes all of them slow, but the runner ends a program: see settings there.
	local GUEST_SILENCE=${GUEST_SILENCE:-1800}
	mkdir -p "$SCRATCH/job.dir"
	selftest_job > "$SCRATCH/job.dir/job"
	pack "$SCRATCH/job.dir" "$SCRATCH/job.cpio"
	base_archive "$SCRATCH/base.cpio"
	tools_archive "$SCRATCH/tools.cpio"
	cat "$SCRATCH"/{base,"$(selftests_name)",tools,job}.cpio > "$SCRATCH/initramfs"
	is_terminal || [ -n "${QUIET-}" ] || say "running the kselftests (${IMAGE:+image $IMAGE_NAME, selftests of }$K_NAME $ARCH${UNPATCHED:+, unpatched}) ..."
	STREAM='' run_guest "$ARCH" "$SCRATCH/initramfs" "$dir" "$seconds"
	need_booted "$dir"
	[ -z "$WHY" ] || WHY+=$(hung_test "$dir/job.log")
	record_ktap "$dir/job.log"
	[ -z "$WHY" ] || record fail guest "$WHY"
	[ -z "$SPLATS" ] || record fail console "$(first_splat "$SPLATS")"
	[ -n "${QUIET-}" ] || report_guest "$dir" || true
	check_filter_hit "$dir/job.log"
	show_failures "$dir/job.log"
	[ -z "$VERBOSE" ] || cat "$dir/job.log"
}

# hung_test LOG: where a guest hung, panicked or died: the last program that began, and
# the last of its tests that began and did not end
hung_test()
{
	tr -d '\r' < "$1" | awk '
		/^# selftests: cow: / { program = $4; test = "" }
		/^# #  RUN / { test = $4 }
		/^# # +(OK|FAIL) / { if ($4 == test) test = "" }
		/^(not )?ok / { program = test = "" }
		END { if (program) print ", in " program (test ? ":" test : "") }'
}

# machine_of_skips: what fixtures/plain-skips calls the guest
machine_of_skips()
{
	echo "$ARCH$([ "$ARCH" != x86_64 ] || [ -z "$DEBUG" ] || echo -debug)"
}

# unknown_skips MACHINE [KERNEL]: of the results, the plain tests that skip and are not known to
unknown_skips()
{
	local status name reason
	# not grep, whose status is 1 if there is none
	sed -n '/^skip.*[.]plain[.]/p' | while IFS=$'\t' read -r status name reason; do
		matches "$name" "$(awk -v machine="$1" -v here="${2-}/$1" \
			'!/^#/ && ($2 == machine || $2 == here) { print $1 }' \
			"$ROOT/fixtures/plain-skips" | paste -sd' ')" || printf '%s\t%s\n' "$name" "$reason"
	done
}

check_filter_hit()
{
	[[ "${CHOSEN[*]}" != *:* ]] || [ -n "$WHY" ] || [ -s "$RESULTS" ] ||
		die "no such test: ${CHOSEN[*]}; run the whole program to list its tests: $1"
}

# show_failures LOG: the lines before each 'not ok', 40 at most
show_failures()
{
	local lines
	[ -z "${QUIET-}" ] || return 0
	lines=$(grep -c '^\(# \)\?not ok' "$1" || true)
	[ "$lines" -gt 0 ] || return 0
	say "failures in $1:"
	# head would end with SIGPIPE on thousands of lines
	grep -B 6 '^\(# \)\?not ok' "$1" | grep -v '^# ok\|^--$' | awk 'NR <= 40 { print "  | " $0 }' >&2
}
