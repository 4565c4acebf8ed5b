# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# bench compile: what copying ahead costs a build with make and gcc, which forks and execs for
# each file, and gains nothing by it. A QEMU plugin counts the kernel's instructions, without and
# with copying ahead. Needs bench.sh and plugin.sh.

COMPILED_FILES=30
# The kernel's instructions with copying ahead, relative to those without, at most
COMPILE_LIMIT=1.005

bench_compile()
{
	local config dirs=() status=0
	use_mode icount
	BENCH=1
	ARCH=x86_64
	prepare_sources
	need_kernel "$ARCH"
	need_symbols "$OUT/System.map"
	need_insn_plugin
	BENCH_FILES=$SCRATCH/compile
	BENCH_PROGRAM=compile
	compile_files "$BENCH_FILES"
	for config in off adaptive; do
		dirs+=("$LOGS/compile.$config")
		count_compile "$config" "${dirs[-1]}"
	done
	insn compile --limit "$COMPILE_LIMIT" --results "$RESULTS" \
		${ROWS_FILE:+--json "$ROWS_FILE"} "$OUT/System.map" "${dirs[@]}" || status=$?
	[ "$status" -le 1 ] || leave "$E_USAGE"
}

# compile_files DIR: the files of the guest: gcc, make and what they compile
compile_files()
{
	local dir=$1 program
	mkdir -p "$dir/src" "$dir/tmp"
	for program in gcc make as ld; do
		copy_program "$dir" "/usr/bin/$program"
	done
	copy_program "$dir" "$(/usr/bin/gcc -print-prog-name=cc1)"
	compile_sources "$dir/src"
	compile_headers "$dir"
	gcc -O2 -Wall -Wextra -static -I"$ROOT/selftests/cow/tools" -o "$dir/marked" \
		"$ROOT/fixtures/plugin/marked.c" || leave "$E_USAGE"
}

# compile_sources DIR: small programs with the headers that most have
compile_sources()
{
	local dir=$1 i
	for ((i = 1; i <= COMPILED_FILES; i++)); do
		cat > "$dir/part$i.c" <<-END
		#include <stdio.h>
		#include <stdlib.h>
		#include <string.h>

		char *part$i(const char *text, int times)
		{
			size_t len = strlen(text);
			char *all = calloc(times, len + 1);

			for (int i = 0; all && i < times; i++)
				snprintf(all + i * len, len + 1, "%s", text);
			return all;
		}
		END
	done
	cat > "$dir/Makefile" <<-'END'
	CC := gcc
	CFLAGS := -O2
	all.o: $(patsubst %.c,%.o,$(wildcard *.c)); ld -r -o $@ $^
	END
}

# compile_headers DIR: those that the sources include
compile_headers()
{
	local dir=$1 file
	/usr/bin/gcc -O2 -M "$dir/src/part1.c" | tr ' ' '\n' | grep '^/usr/' | while read -r file; do
		mkdir -p "$dir${file%/*}"
		cp "$file" "$dir$file"
	done
}

# count_compile CONFIG DIR: compiles once to have all files in memory, and once more to count
count_compile()
{
	local config=$1 dir=$2 build='PATH=/usr/bin:/bin make -s -C /src'
	begin_job
	set_sysctl cow_precopy "$([ "$config" = off ] && echo 0 || echo 1)"
	section warm sh -c "$build && rm /src/*.o"
	section counted sh -c "/marked env $build"
	run_counted_job "$dir"
}
