# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# How each command of README.md is tested. The test readme_commands of the harness
# fails for a command that is not in this list, and for a line that no command needs.
#
#	sandbox ARGS	by that test, with this harness in a sandbox; ARGS may differ
#	host COMMAND	by that test, on this machine; cowstat is built for it by the
#			line of README.md
#	leg NAME	by this leg of check --all
#	all ARGS	by the leg "commands of the README" of check --all
#	by-hand REASON	by nobody
#
# At the end are the commands for virtme-ng, which scripts/README.md has.

documented_commands()
{
	cat <<-'END'
	./run_tests.sh|all run
	./run_tests.sh run|all run
	./run_tests.sh run --install-deps|all run
	./run_tests.sh check --install-deps|by-hand it would call itself; CI runs it
	./run_tests.sh check|by-hand it would call itself; CI runs it
	./run_tests.sh [COMMAND] [OPTIONS]|sandbox --help
	./run_tests.sh COMMAND --help|sandbox kunit --help
	./run_tests.sh kunit|leg 6.12: KUnit on UML
	./run_tests.sh kselftest|leg 6.12: kselftests on x86_64
	./run_tests.sh boot [-- CMD ARGS]|leg 6.12: guests
	./run_tests.sh bench|leg 6.12: recorded benchmarks
	./run_tests.sh bench cost|leg 6.12: cost of counting
	./run_tests.sh bench study|all bench study
	./run_tests.sh bench kvm|all bench kvm --quick
	./run_tests.sh bench compile|leg 6.12: instructions of a compile
	./run_tests.sh bench redis|all bench redis --mode wall --quick
	./run_tests.sh bench prefork|all bench prefork --mode wall --quick
	./run_tests.sh bench --profile W:C,W:C|leg 6.12: profile of instructions
	./run_tests.sh profile fork|cow|leg 6.12: profile of a fault
	./run_tests.sh mutants|leg 6.12: all mutants
	./run_tests.sh mutants --filter NAME|leg 6.12: mutants of the five checks
	./run_tests.sh gate|leg 7.3: gate
	./run_tests.sh package|by-hand builds a distribution's kernel, in hours
	./run_tests.sh new test|mutant|check NAME|sandbox new check form-readme
	./run_tests.sh new test NAME|sandbox new test readme
	./run_tests.sh new mutant NAME|sandbox new mutant readme
	./run_tests.sh new check NAME|sandbox new check form-readme-too
	./run_tests.sh tree|sandbox tree
	./run_tests.sh export DIR|sandbox export --kernel 6.12 DIR
	./run_tests.sh refresh|sandbox refresh
	./run_tests.sh list kernels|tests|mutants|sandbox list kernels
	./run_tests.sh clean|sandbox clean
	make kselftest TARGETS=cow|leg 6.12: virtme-ng
	cc -O2 -o cowstat selftests/cow/tools/cowstat*.c selftests/cow/tools/cow_stats.c|host cowstat -V
	cowstat 1|host cowstat 0.1 2
	cowstat -a 1|host cowstat -a 0.1 2
	cowstat -- CMD|host cowstat -- true
	cowstat --stacks -- CMD|leg linux-image-cloud-amd64: cowstat and bpftrace
	man -l selftests/cow/tools/cowstat.1|host man -l selftests/cow/tools/cowstat.1
	END
}

# how_documented COMMAND: the second field of its line
how_documented()
{
	documented_commands | awk -v command="$1" 'index($0, command "|") == 1 {
		how = substr($0, length(command) + 2)
		if (how ~ /^(sandbox|host|leg|all|by-hand) /) { print how; exit } }'
}

# commands_of_leg NAME: those that the leg of that name runs as they are written, for
# whichever kernel
commands_of_leg()
{
	documented_commands | sed -n "s/|leg [^:]*: $1\$//p"
}

# readme_commands: those of README.md
readme_commands()
{
	awk -f "$ROOT/scripts/tests/commands.awk" "$ROOT/README.md"
}

# The leg of check --all
documented_leg()
{
	local command how args known=: failed=''
	while IFS= read -r command; do
		how=$(how_documented "$command")
		[[ "$how" == "all "* && "$known" != *":$how:"* ]] || continue
		known+=$how:
		read -ra args <<< "${how#all }"
		if COW_RESULTS='' harness_command "${args[@]}" < /dev/null; then
			printf 'pass\t%s\t\n' "$command" >> "$COW_RESULTS"
		else
			printf 'fail\t%s\t%s\n' "$command" "status $?" >> "$COW_RESULTS"
			failed=1
		fi
	done < <(readme_commands)
	[ -z "$failed" ]
}

# virtme_ng_commands: as scripts/README.md has them
virtme_ng_commands()
{
	sed -n '/^```sh vng$/,/^```$/{/^```/!p}' "$ROOT/scripts/README.md"
}

# virtme_ng: runs them in a clone of the prepared tree. The runner's status tells nothing.
virtme_ng()
{
	local dir=$SCRATCH/vng log=$SCRATCH/vng.log status=0
	rm -rf "$dir"
	kgit clone -q "$K_TREE" "$dir"
	virtme_ng_commands > "$SCRATCH/vng.sh"
	( cd "$dir" && bash -eux "$SCRATCH/vng.sh" ) > "$log" 2>&1 < /dev/null || status=$?
	rm -rf "$dir"
	cat "$log"
	"$PYTHON" "$ROOT/scripts/lib/ktap.py" "$log" >> "$COW_RESULTS"
	[ "$status" -eq 0 ] && ! grep -q '^fail' "$COW_RESULTS"
}
