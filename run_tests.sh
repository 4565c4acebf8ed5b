#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The one entry point: finds the command's script in scripts/cmd/ and runs it.

set -eu

root=$(dirname -- "$(realpath -- "$0")")

usage()
{
	cat <<-'END'
	Usage: ./run_tests.sh [COMMAND] [OPTIONS]

	  run         KUnit (UML) and kselftests (x86_64 guest); the default
	  kunit       KUnit by the kernel's own kunit.py
	  kselftest   builds TARGETS=cow, boots a guest and runs it there
	  boot        runs a program of the host as root in the booted kernel
	  bench       the benchmarks, in instructions or ratios of time
	  profile     where the time of a fork, or of a copy-on-write fault, goes
	  tree        prints the path of the prepared kernel tree
	  export DIR  writes the mail-ready series
	  refresh     takes edits in the prepared tree back to this repository
	  mutants     every mutant must be killed by the test that it names
	  gate        every check of a patch series that is to be submitted: one verdict
	  package     the patched kernel as Debian packages, for real machines
	  new         writes a template of a test, a mutant or a check, which already runs
	  check       this project's own tests: what CI runs; everything with --all
	  clean       removes what was built
	  list        kernels, tests or mutants

	Common options: --kernel 6.12|7.3|PATH, --jobs N, --install-deps, -v.
	'./run_tests.sh COMMAND --help' lists all options.

	Exit status: 0 passed, 1 a test failed, 2 usage or infrastructure error,
	4 everything was skipped.
	END
}

case "${1-}" in
-h|--help|help)
	usage
	exit 0 ;;
''|-*)
	command=run ;;
*)
	command=$1
	shift ;;
esac

case "$command" in
run|kunit|kselftest|boot|bench|profile|tree|export|refresh|mutants|gate|package|new|check|clean|list)
	exec bash "$root/scripts/cmd/$command" "$@" ;;
*)
	echo "run_tests.sh: unknown command '$command'; './run_tests.sh --help' lists the commands" >&2
	exit 2 ;;
esac
