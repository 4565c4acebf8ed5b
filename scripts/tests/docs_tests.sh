# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The commands of README.md: see documented.sh. Those of cow.rst and of the manual of
# cowstat run in a guest: selftests/cow/cow_docs.sh. And how long files may be.

# build_cowstat DIR: by the command of README.md as it is written, without a kernel tree
build_cowstat()
{
	local command
	command=$(readme_commands | grep '^cc ') || return
	mkdir -p "$1"
	ln -sfn "$ROOT/selftests" "$1/selftests"
	( cd "$1" && bash -euc "$command" )
}

# run_documented COMMAND HOW
run_documented()
{
	local args
	read -ra args <<< "${2#* }"
	case "$2" in
	"sandbox "*)
		in_sandbox "${args[@]/#DIR/$SCRATCH/documented.export}"
		want_status 0 ;;
	"host "*)
		OUT=$SCRATCH/output
		STATUS=0
		( cd "$SCRATCH/documented" && PATH=$PWD:$PATH "${args[@]}" ) > "$OUT" 2>&1 < /dev/null || STATUS=$?
		want_status 0 && { [ -s "$OUT" ] || complain "no output"; } ;;
	"leg "*)
		grep -qxF "${2#* }" "$SCRATCH/legs.list" || complain "check --all has no leg '${2#* }'" ;;
	"all "*)
		[ -f "$ROOT/scripts/cmd/${args[0]}" ] || complain "no command ${args[0]}" ;;
	esac || complain "$1: $(cat "$SCRATCH/complaint")"
}

test_readme_commands()
{
	local command how
	rm -rf "$SCRATCH/documented.export"
	build_cowstat "$SCRATCH/documented" || complain "cowstat does not build with cc" || return
	in_repo check --all --list && want_status 0 && cp "$OUT" "$SCRATCH/legs.list" || return
	readme_commands > "$SCRATCH/documented.list"
	while IFS= read -r command <&3; do
		how=$(how_documented "$command")
		[ -n "$how" ] || complain "README.md has '$command', which no test runs: scripts/tests/documented.sh" || return
		run_documented "$command" "$how" || return
	done 3< "$SCRATCH/documented.list"
	# and no line for what README.md does not have
	want_same "$(documented_commands | wc -l)" "$(wc -l < "$SCRATCH/documented.list")"
}

# Options that README.md names for a command are those of its help.
test_readme_options()
{
	local command option
	for option in --kernel --filter --repeat --image --junit --json --kcidb --debug --arch --install-deps; do
		grep -q -- "\`[^\`]*$option" "$ROOT/README.md" || complain "README.md does not name $option" || return
		for command in "$ROOT"/scripts/cmd/*; do
			! bash "$command" --help | grep -- "$option " > /dev/null || continue 2
		done
		complain "no command has $option"
		return
	done
}

# longer_than LINES: those of the files named on standard input
longer_than()
{
	xargs -d '\n' awk -v most="$1" 'FNR == most + 1 { print FILENAME }'
}

# A reader must be able to hold a file in the head.
test_length_of_files()
{
	local long
	long=$(shell_scripts | longer_than 400) &&
		want_same "$long" "" || complain "more than 400 lines of shell: $long" || return
	long=$(find "$ROOT/kunit" "$ROOT/selftests" "$ROOT/scripts" "$ROOT/fixtures" -type f \
		-name '*.[ch]' -o -name '*.py' -o -name '*.md' | longer_than 1500) &&
		want_same "$long" "" || complain "more than 1500 lines: $long" || return
	long=$(longer_than 180 <<< "$ROOT/README.md") && want_same "$long" ""
}
