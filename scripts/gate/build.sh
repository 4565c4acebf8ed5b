# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Builds for the gate: objects and kernels of several commits in turn, in one tree and
# one output folder per configuration, so that only what differs is compiled.

# The gate's own working copy, $G_DIR/tree; no other command uses it.
build_tree()
{
	GB_TREE=$G_DIR/tree
	lay_out_once "the gate's tree" "$G_DIR" "$G_BASE"
}

# checkout_in_gate_tree COMMIT
checkout_in_gate_tree()
{
	reset_tree "$GB_TREE" "$1"
}

# gate_config OUT ARCH FRAGMENT...: writes OUT/.config. Options that Kconfig refuses are
# left out without an error.
gate_config()
{
	local out=$1 arch=$2 state
	shift 2
	mkdir -p "$out"
	state=$({ cat "$@"; kgit -C "$GB_TREE" ls-files -s -- '*Kconfig*' '*.include' scripts/kconfig; } | sha256sum)
	[ ! -f "$out/.config" ] || [ "$state" != "$(cat "$out/config.state" 2> /dev/null)" ] || return 0
	rm -f "$out/config.state"
	merge_fragments "$GB_TREE" "$out" "$arch" "$@" >> "$LOGS/config.log" 2>&1 || not_configured
	echo "$state" > "$out/config.state"
}

# Kconfig files with errors fail the submission, unless the base has the errors, too
not_configured()
{
	[ "$(kgit -C "$GB_TREE" rev-parse HEAD)" != "$G_BASE" ] ||
		die "the kernel could not be configured; log: $LOGS/config.log"
	fail "the kernel cannot be configured with $(kgit -C "$GB_TREE" log -1 --format=%s): $(tail -n 3 "$LOGS/config.log" | paste -sd';')"
	leave 0
}

# warn_options_off OUT: warns of the series' options that a configuration could not switch
# on; report.py looks for these words (refused)
warn_options_off()
{
	local line
	while read -r line; do
		grep -qE "^${line%=y}=[ym]$" "$1/.config" ||
			warn "${line%=y} cannot be on in this configuration: what it adds was not checked"
	done < "$SCRATCH/on.fragment"
}

# fragment_of WHICH: a file that switches the series' own symbols on, or nothing
fragment_of()
{
	local symbol file
	: > "$SCRATCH/$1.fragment"
	[ "$1" != off ] || return 0
	while read -r symbol file; do
		show "$G_HEAD" "$file" | awk -v name="$symbol" '
			/^[ \t]*(menu)?config[ \t]/ { inside = ($2 == name) }
			inside && /^[ \t]+(bool|tristate)([ \t]|$)/ { found = 1 }
			END { exit !found }' || continue
		echo "CONFIG_$symbol=y"
	done < <(new_symbols "$G_HEAD") > "$SCRATCH/$1.fragment"
	grep -q _KUNIT_TEST "$SCRATCH/$1.fragment" || return 0
	case "$1" in
	on) echo CONFIG_KUNIT=y >> "$SCRATCH/$1.fragment" ;;
	untested) sed -i /_KUNIT_TEST/d "$SCRATCH/$1.fragment" ;;
	esac
}

# ways: off, and on if the series has options; without any there is one way
ways()
{
	echo off
	[ -z "$(new_symbols "$G_HEAD")" ] || echo on
}

# way_untested: on without KUnit tests, which may be all that calls a function
way_untested()
{
	! new_symbols "$G_HEAD" | grep -q _KUNIT_TEST || echo untested
}

# option_names: of the options that the series adds
option_names()
{
	new_symbols "$G_HEAD" | sed 's/ .*//; s/^/CONFIG_/' | paste -sd' '
}

# with_options WAY: for messages, " with ..."; nothing if the series has no option
with_options()
{
	local names
	names=$(option_names)
	echo "${names:+ with $names $1}"
}

# C files of the kernel that the series touches, those of this architecture; of one
# that touches only headers, some that include them.
touched_sources()
{
	local sources
	sources=$(files AM '*.c' "${NOT_KERNEL[@]}" ':!arch'; files AM 'arch/x86/*.c')
	[ -n "$sources" ] || sources=$(including_sources 20)
	[ -z "$sources" ] || printf '%s\n' "$sources"
}

# including_sources MOST: for each touched header, MOST files at most that include it
including_sources()
{
	local header name
	{ files AM '*.h' "${NOT_KERNEL[@]}" ':!arch'; files AM 'arch/x86/*.h'; } | while read -r header; do
		name=${header##*include/}
		{
			kgit -C "$K_TREE" grep -l -F -e "<${name#uapi/}>" -e "\"${header##*/}\"" "$G_HEAD" -- \
				'mm/*.c' 'kernel/*.c' 'fs/proc/*.c' "$(dirname "$header")/*.c" || [ $? -eq 1 ]
		} | sed "s/^$G_HEAD://" | sort -t / -k 1,1r -k 2 | awk -v most="$1" 'NR <= most'
	done | sort -u
}

# objects COMMIT OUT [LISTING]: the objects of the touched sources, or of those that a
# function lists, that COMMIT has and the configuration builds
objects()
{
	local file
	while read -r file; do
		! is_built "$1" "$file" "$2/.config" || echo "${file%.c}.o"
	done < <("${3:-touched_sources}" | names_at "$1")
}

# is_built COMMIT FILE CONFIG: does kbuild reach it from the top?
is_built()
{
	local path=${2%.c}.o FOLDER
	is_listed "$1" "$path" "$3" || return
	while [ "$FOLDER" != . ]; do
		is_listed "$1" "$FOLDER/" "$3" || return
	done
}

# is_listed COMMIT PATH CONFIG: by the kbuild file of a folder above it. Sets FOLDER to it.
is_listed()
{
	local rest=$2
	FOLDER=${2%/}
	while [ "$FOLDER" != . ]; do
		FOLDER=$(dirname "$FOLDER")
		[ "$FOLDER" = . ] || rest=${2#"$FOLDER/"}
		[ "$FOLDER" != . ] || rest=$2
		! listed_by "$1" "$FOLDER" "$3" | grep -xF -- "$rest" > /dev/null || return 0
	done
	return 1
}

# listed_by COMMIT FOLDER CONFIG: what the folder's kbuild file lists; nothing if there is
# none
listed_by()
{
	local name=${2#.} file=$SCRATCH/kbuild
	name=${name:+$name/}
	show "$1" "${name}Kbuild" > "$file"
	[ -s "$file" ] || show "$1" "${name}Makefile" > "$file"
	[ -s "$file" ] || return 0
	make -s -f "$ROOT/scripts/gate/kbuild.mk" CONFIG="$3" KBUILD="$file" \
		SRCARCH=x86 src="$2" obj="$2" srctree="$K_TREE" listed 2> "$SCRATCH/kbuild.errors" ||
		die "$2: its kbuild file cannot be read: $(tail -n 1 "$SCRATCH/kbuild.errors")"
	# libs-y of the Makefiles, which are no kbuild files
	[ "$2" != . ] || printf '%s\n' lib/ arch/x86/lib/
}

# Objects compiled so far; a check that compiled none is skipped.
OBJECTS_SEEN=0

count_objects()
{
	OBJECTS_SEEN=$((OBJECTS_SEEN + $1))
}

need_objects()
{
	[ "$OBJECTS_SEEN" -gt 0 ] || not_applicable "the configuration builds none of the touched files"
}

# warn_not_built OUT: the touched files that are not compiled with all options on
warn_not_built()
{
	local file
	while read -r file; do
		! has "$G_HEAD" "$file" || is_built "$G_HEAD" "$file" "$1/.config" ||
			warn "$file is not built in this configuration: not checked"
	done < <(touched_sources)
}

# compile OUT ARCH LOG [MAKE-ARGUMENT...] -- OBJECT...: all of them anew, for the
# sake of their warnings; status 1 if one does not compile
compile()
{
	local out=$1 arch=$2 log=$3 arguments=() object
	shift 3
	while [ "$1" != -- ]; do
		arguments+=("$1")
		shift
	done
	shift
	: > "$log"
	[ $# -gt 0 ] || return 0
	for object; do
		rm -f "$out/$object"
	done
	kmake "$GB_TREE" "$out" "$arch" -k "${arguments[@]}" "$@" > "$log" 2>&1
}

# errors_of LOG: the first ones
errors_of()
{
	grep_any -E '(error|undefined reference|ERROR|\*\*\*|No rule)' "$1" | sed -n 1,3p | paste -sd';'
}

# warnings_of LOG: one a line, without line numbers; paths as in the tree, in the end.
# ccache repeats a warning with the path at which it was first given: another clone's.
warnings_of()
{
	grep_any -E ': (warning|error|note): |: (warning|error): ' "$1" | grep_any -v ': note: ' |
		sed -e 's/^\.\.\/tree\///' -e 's|^/[^:]*/gate/tree/||' | with_new_names | without_line_numbers | sort
}

# compile_both WAY BEFORE FUNCTION MAKE-ARGUMENT...: compiles the touched objects of the
# commit BEFORE, then those of the whole series, and calls FUNCTION with 'before' or 'after'
# and the log each time. Sets GB_OUT to the folder with the objects, GB_OBJECTS to their names,
# and COMPILED to nothing if the series does not compile, which is a finding.
compile_both()
{
	local way=$1 commit=$2 function=$3 when log fragments
	shift 3
	GB_OUT=$G_DIR/x86_64-$way
	COMPILED=1
	make_flags
	fragment_of "$way"
	mapfile -t fragments < <(guest_fragments x86_64)
	for when in before after; do
		log=$LOGS/$way.$when.log
		checkout_in_gate_tree "$commit"
		gate_config "$GB_OUT" x86_64 "${fragments[@]}" "$SCRATCH/$way.fragment"
		mapfile -t GB_OBJECTS < <(objects "$commit" "$GB_OUT")
		if ! compile "$GB_OUT" x86_64 "$log" "$@" -- "${GB_OBJECTS[@]}"; then
			[ "$when" = after ] || die "the base does not compile: $(errors_of "$log")"
			fail "$way: does not compile: $(errors_of "$log")"
			COMPILED=
		fi
		[ -z "$COMPILED" ] || "$function" "$when" "$log"
		commit=$G_HEAD
	done
	count_objects "${#GB_OBJECTS[@]}"
}

# compare_warnings WAY MAKE-ARGUMENT...: those of the touched objects that the base
# does not have.
compare_warnings()
{
	local way=$1
	compile_both "$way" "$G_BASE" take_warnings "${@:2}"
	[ -n "$COMPILED" ] || return 0
	[ "$way" != on ] || warn_options_off "$GB_OUT"
	new_lines "$SCRATCH/warnings.before" "$SCRATCH/warnings.after" | fail_each "$way: "
	note "$way: ${#GB_OBJECTS[@]} objects, $(wc -l < "$SCRATCH/warnings.before") warnings before"
}

# take_warnings before|after LOG: for compile_both
take_warnings()
{
	warnings_of "$2" > "$SCRATCH/warnings.$1"
}

#
# Whole kernels of the submission: what only the linker finds
#

# need_kernel_of NAME ARCH TARGET FRAGMENT...: builds it in $G_DIR/NAME. One that the
# base cannot build either is an error of the gate, not a failure.
need_kernel_of()
{
	local name=$1 arch=$2 target=$3 out=$G_DIR/$1
	shift 3
	checkout_in_gate_tree "$G_HEAD"
	gate_config "$out" "$arch" "$@"
	if kmake "$GB_TREE" "$out" "$arch" "$target" > "$LOGS/$name.log" 2>&1; then
		note "$name: builds"
		return 0
	fi
	checkout_in_gate_tree "$G_BASE"
	gate_config "$out" "$arch" "$@"
	kmake "$GB_TREE" "$out" "$arch" "$target" > "$LOGS/$name.base.log" 2>&1 ||
		die "$name: not even the base builds: $(errors_of "$LOGS/$name.base.log")"
	fail "$name: does not build: $(errors_of "$LOGS/$name.log")"
}

# without SYMBOL...: a fragment that switches them off, in $SCRATCH/without.fragment
without()
{
	printf '# CONFIG_%s is not set\n' "$@" > "$SCRATCH/without.fragment"
}

# is_off NAME SYMBOL: in the configuration of $G_DIR/NAME; otherwise building it tests nothing
is_off()
{
	! grep -q "^CONFIG_$2=" "$G_DIR/$1/.config" ||
		die "$1: CONFIG_$2 cannot be switched off here: something selects it"
}
