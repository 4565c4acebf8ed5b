# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The leg of check that builds the kselftests in all ways.

# How the kselftests build: as README.md says; then all, install, clean and gen_tar, in
# the tree, and with O= absolute and relative. In a copy of what they need of the tree, to
# leave it clean.
selftest_targets()
{
	local copy=$SCRATCH/targets.$K_NAME way out=() failed=
	rm -rf "$copy"
	mkdir -p "$copy" "$copy/out.bare"
	( cd "$K_TREE" && git_archive_for_selftests | tar -x -C "$copy" ) || return 1
	without_headers "$copy" || failed=1
	as_documented "$copy" || failed=1
	for way in in-tree absolute relative; do
		case "$way" in
		in-tree) out=() ;;
		absolute) out=("O=$copy/out.absolute") ;;
		relative) out=(O=out.relative) ;;
		esac
		mkdir -p "$copy/out.absolute" "$copy/out.relative"
		targets_one_way "$copy" "$way" "${out[@]}" || failed=1
	done
	rm -rf "$copy"
	[ -z "$failed" ]
}

# tools_without_headers COPY: by the command of README.md and cow.rst. What it builds is
# removed, it is to be built by others.
tools_without_headers()
{
	local command='make -C tools/testing/selftests/cow tools' tool
	commands_of_leg 'kselftest targets' | grep -qxF "$command" || return
	( cd "$1" && bash -euc "$command" ) || return
	for tool in cowstat cow_snapshot cow_bench cow_profile; do
		rm "$1/tools/testing/selftests/cow/$tool" || return
	done
}

# without_headers COPY: the tools are built, and the message says what the tests need
without_headers()
{
	local said
	if ! tools_without_headers "$1"; then
		printf 'fail\tmake tools\tnot without headers\n' >> "$COW_RESULTS"
		return 1
	fi
	printf 'pass\tmake tools\t\n' >> "$COW_RESULTS"
	said=$(cd "$1" && make -s -C tools/testing/selftests TARGETS=cow O="$1/out.bare" 2>&1)
	if [[ "$said" == *"make headers"* ]] && [ -x "$1/out.bare/kselftest/cow/cowstat" ]; then
		printf 'pass\twithout headers\t\n' >> "$COW_RESULTS"
		return
	fi
	echo "FAIL without headers: $said"
	printf 'fail\twithout headers\tno cowstat, or no word of make headers\n' >> "$COW_RESULTS"
	return 1
}

# as_documented COPY: the commands of README.md, as they are written. They install the
# headers and build cowstat.
as_documented()
{
	local command commands status=0
	mapfile -t commands < <(commands_of_leg 'kselftest targets')
	for command in "${commands[@]}"; do
		( cd "$1" && bash -euc "$command" ) || status=$?
		if [ "$status" -ne 0 ]; then
			printf 'fail\t%s\tstatus %s\n' "$command" "$status" >> "$COW_RESULTS"
			return 1
		fi
		printf 'pass\t%s\t\n' "$command" >> "$COW_RESULTS"
	done
	[ -x "$1/tools/testing/selftests/cow/cowstat" ] || {
		printf 'fail\tcowstat\tnot where README.md says\n' >> "$COW_RESULTS"
		return 1
	}
}

git_archive_for_selftests()
{
	kgit archive HEAD -- Makefile scripts tools/testing/selftests/Makefile \
		tools/testing/selftests/lib.mk tools/testing/selftests/*.h \
		tools/testing/selftests/*.sh tools/testing/selftests/kselftest \
		tools/testing/selftests/cow tools/scripts tools/include include/uapi \
		tools/build tools/arch mm/gup_test.h lib/test_hmm_uapi.h \
		arch/x86 include/asm-generic usr
}

targets_one_way()
{
	local copy=$1 way=$2 target status
	local selftests=$1/tools/testing/selftests failed=
	shift 2
	for target in all install gen_tar clean; do
		status=0
		# also with O=, where no headers are
		( cd "$copy" && make -s -C tools/testing/selftests "$@" TARGETS=cow FORCE_TARGETS=1 \
			KHDR_INCLUDES="-isystem $copy/usr/include" \
			INSTALL_PATH="$copy/installed.$way" "$target" ) || status=$?
		[ "$status" -eq 0 ] || { failed=1; echo "FAIL $way: make $target: status $status"; }
		printf '%s\t%s %s\t\n' "$([ "$status" -eq 0 ] && echo pass || echo fail)" \
			"$way" "$target" >> "$COW_RESULTS"
		[ "$target" != install ] || installed_all "$copy/installed.$way" || {
			failed=1
			printf 'fail\t%s install\tnot every program was installed\n' "$way" >> "$COW_RESULTS"
		}
	done
	left_over "$selftests" "$way" || failed=1
	[ -z "$failed" ]
}

installed_all()
{
	local program
	for program in $(selftest_programs); do
		[ -x "$1/cow/$program" ] || return 1
		grep -qx "cow:$program" "$1/kselftest-list.txt" || return 1
	done
}

left_over()
{
	local file
	# what was built: scripts are sources
	file=$(find "$1/cow" -type f -perm -u+x ! -name '*.sh' | head -n 1)
	if [ -n "$file" ]; then
		printf 'fail\t%s clean\tleaves %s\n' "$2" "${file##*/}" >> "$COW_RESULTS"
		return 1
	fi
}
