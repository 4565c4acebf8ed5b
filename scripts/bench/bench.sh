# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Benchmarks: builds cow_bench with the kselftests, runs it in a guest without
# debugging checks and collects its output.
#
# A guest's job is a list of sections. After the run the output of a section is in
# DIR/NAME.out; DIR/about describes kernel and machine.

BENCH_PROGRAM=cow_bench

rows()
{
	"$PYTHON" "$ROOT/scripts/bench/rows.py" "$@"
}

# prepare_program: builds the program, so that it can check options before a kernel
# is built
prepare_program()
{
	BENCH=1
	ARCH=${ARCH:-x86_64}
	prepare_sources
	build_bench_program
}

# prepare_bench: the program, and the kernel to measure
prepare_bench()
{
	prepare_program
	need_kernel "$ARCH"
}

build_bench_program()
{
	install_selftests "$K_TREE" "$K_DIR"
	BENCH_PATH=$INSTALLED/cow/$BENCH_PROGRAM
	[ -x "$BENCH_PATH" ] || die "the kselftests of $K_NAME installed no $BENCH_PROGRAM"
}

# use_mode MODE: sets ICOUNT for start_guest()
use_mode()
{
	ICOUNT=
	[ "$1" != icount ] || ICOUNT=1
}

#
# The job
#

# begin_job: starts a new list of sections. They run in a memory cgroup, as all programs of
# a real system do: charges to the root are cheaper.
begin_job()
{
	BENCH_JOB=$SCRATCH/bench.job
	cat > "$BENCH_JOB" <<-'END'
	echo "@section about"
	cat /proc/version
	grep -m 1 'model name' /proc/cpuinfo
	cgroup=/sys/fs/cgroup/system
	if grep -q memory /sys/fs/cgroup/cgroup.subtree_control 2> /dev/null; then
		mkdir -p $cgroup/bench && echo +memory > $cgroup/cgroup.subtree_control &&
			echo $$ > $cgroup/bench/cgroup.procs || exit 2
	fi
	END
}

# section NAME COMMAND...: a failure of the command ends the job
section()
{
	{
		printf 'echo "@section %s"\n' "$1"
		shift
		shell_words "$@"
		echo ' || exit $?'
	} >> "$BENCH_JOB"
}

# set_sysctl NAME VALUE: in the guest, if its kernel has it
set_sysctl()
{
	printf '[ ! -e /proc/sys/vm/%s ] || echo %s > /proc/sys/vm/%s || exit 2\n' \
		"$1" "$2" "$1" >> "$BENCH_JOB"
}

# A folder with more files for the guest's initramfs
BENCH_FILES=

# run_job DIR: boots the guest; leaves the sections' output in DIR. Without norandmaps
# the VMA lookup of a fault would vary with the addresses (30 of 1200 instructions).
run_job()
{
	local dir=$1 files=$SCRATCH/bench.files APPEND="norandmaps $APPEND" start=$SECONDS
	rm -rf "$files"
	mkdir -p "$files"
	[ -z "${BENCH_PATH-}" ] || copy_program "$files" "$BENCH_PATH" "/$BENCH_PROGRAM"
	[ -z "$BENCH_FILES" ] || cp -a "$BENCH_FILES/." "$files/"
	cp "$BENCH_JOB" "$files/job"
	pack "$files" "$SCRATCH/job.cpio"
	base_archive "$SCRATCH/base.cpio"
	cat "$SCRATCH"/{base,job}.cpio > "$SCRATCH/initramfs"
	is_terminal || say "measuring ($K_NAME${UNPATCHED:+ without the series}${ICOUNT:+, instructions}) ..."
	STREAM='' run_guest "$ARCH" "$SCRATCH/initramfs" "$dir" "${TIMEOUT:-1800}"
	say "measuring: $((SECONDS - start))s"
	report_guest "$dir" || job_lost "$dir" "${WHY:-$(first_splat "$SPLATS")}"
	split_sections "$dir"
	job_went_well "$dir" "${VERDICT#exited }"
	write_about "$dir"
}

# A function to call with the job's folder and the reason if a guest or its job fails.
# It returns if the folder is still of use. Without one the command ends.
ON_FAILED_JOB=

job_lost()
{
	[ -n "$ON_FAILED_JOB" ] || leave "$E_USAGE"
	"$ON_FAILED_JOB" "$1" "$2"
}

split_sections()
{
	awk -v dir="$1" '
		/^@section / { out = dir "/" $2 ".out"; printf "" > out; next }
		out != "" { print > out }' "$1/job.log"
}

# job_went_well DIR STATUS: of the program; 1 is a failed check, such as a page with
# wrong content.
job_went_well()
{
	local dir=$1 status=$2
	[ "$status" -ne 0 ] || return 0
	show_tail "$dir/job.log" 10
	if [ -n "$ON_FAILED_JOB" ]; then
		"$ON_FAILED_JOB" "$dir" "status $status, at $(tail -n 1 "$dir/job.log" | tr -d '\r')"
		return
	fi
	if [ "$status" -eq 1 ]; then
		record fail "$BENCH_PROGRAM" "status 1; see $dir/job.log"
		finish
	fi
	die "the job in the guest ended with status $status; log: $dir/job.log"
}

# write_about DIR: a line KEY=TEXT for each key that is set in every row
write_about()
{
	local dir=$1
	{
		echo "kernel=$K_NAME"
		echo "arch=$ARCH"
		echo "mode=$([ -n "$ICOUNT" ] && echo icount || echo wall)"
		sed -n 's/^Linux version \([^ ]*\) .*/release=\1/p' "$dir/about.out"
		sed -n 's/^Linux version [^(]*([^)]*) (\(.*\)) #.*/compiler=\1/p' "$dir/about.out" |
			sed 's/^compiler=\(ccache \)\?\(.*\), GNU ld.*/compiler=\2/'
		echo "machine=$(machine_text) ($(sed -n 's/.*: //p' "$dir/about.out"))"
		[ -z "$UNPATCHED" ] || echo "series=without"
	} > "$dir/about"
}

machine_text()
{
	guest_machine
	"${QEMU[@]}" --version | sed -n 's/^QEMU emulator version \([0-9.]*\).*/QEMU \1/p' | tr '\n' ' '
	echo "${MACHINE[*]}"
}

# collect_rows DIR SECTION...: an array of rows, checked, on standard output
collect_rows()
{
	local dir=$1 about
	shift
	mapfile -t about < "$dir/about"
	cat "${@/#/$dir/}" > "$dir/rows.log" &&
	rows collect "$dir/rows.log" "${about[@]}"
}
