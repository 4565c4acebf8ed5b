# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Booting a guest under QEMU or as UML, and the verdict.
#
# A guest has three output channels: the console, the job's output, and the status
# ("start", "exit N"). The status file says "not started" before the guest runs.

#
# Which accelerator: KVM only if a kernel boots with it. The device node may be there
# where KVM does not work.
#

accelerator()
{
	local answer=$BUILD/kvm-probe boot
	if is_foreign; then
		echo tcg,thread=multi
		return
	fi
	boot=$(boot_id)
	if [ "$(cut -d' ' -f1 "$answer" 2> /dev/null)" != "$boot" ]; then
		echo "$boot $(probe_kvm)" > "$answer"
	fi
	case "$(cut -d' ' -f2 "$answer")" in
	yes) echo kvm ;;
	*) echo tcg,thread=multi ;;
	esac
}

# Boots until the kernel panics because there is no init; -no-reboot ends QEMU then.
probe_kvm()
{
	local log
	[ -w /dev/kvm ] || { echo no; return; }
	log=$(mktemp "$SCRATCH/kvm.XXX")
	timeout -k 1 10 qemu-system-x86_64 -accel kvm -cpu host -m 256 -display none \
		-monitor none -no-reboot -nodefaults -kernel "$KERNEL_IMAGE" \
		-append "console=ttyS0 panic=-1" -serial "file:$log" \
		> /dev/null 2>&1 < /dev/null || true
	if grep -q 'Kernel panic - not syncing: .*\(init\|root fs\)' "$log"; then
		echo yes
	else
		echo no
	fi
}

# uml_preload: prints what LD_PRELOAD must name for the kernel of
# need_kernel um: see fixtures/um/xstate.c
uml_preload()
{
	local source=$ROOT/fixtures/um/xstate.c library=$OUT/xstate.so
	if ! grep -qs host_fp_size "$OUT/../tree/arch/x86/um/os-Linux/registers.c"; then
		[ "$library" -nt "$source" ] || {
			gcc -O2 -shared -fPIC -o "$library.$$" "$source" -ldl &&
				mv "$library.$$" "$library"
		}
		echo "$library"
	fi
}

#
# Booting
#

GUEST=

# The guest leads a process group of its own (UML has many processes), which
# is ended as a whole.
kill_guest()
{
	[ -n "$GUEST" ] || return 0
	kill -TERM -- "-$GUEST" 2> /dev/null || true
	local i
	for i in 1 2 3 4 5 6 7 8 9 10; do
		kill -0 -- "-$GUEST" 2> /dev/null || break
		sleep 0.1
	done
	kill -KILL -- "-$GUEST" 2> /dev/null || true
	GUEST=
}

at_exit kill_guest

# end_with_guest: for a subshell that starts a guest, as it has no trap of the shell's
end_with_guest()
{
	trap kill_guest EXIT
	trap 'exit 1' HUP INT TERM
}

QEMU_BASE=(-nodefaults -display none -no-reboot -m 2G)

# What a command adds to QEMU's arguments.
QEMU_EXTRA=()

# guest_accelerator: with an old QEMU, one thread for all CPUs of a distribution's kernel,
# which patches its code all the time (see qemu.sh)
guest_accelerator()
{
	local answer
	answer=$(accelerator)
	if [ -n "$IMAGE" ] && [ "$answer" != kvm ] && is_old_qemu "${QEMU[@]}"; then
		answer=tcg,thread=single
	fi
	echo "$answer"
}

# guest_machine: sets QEMU, and MACHINE, its arguments for the CPUs. With ICOUNT set, the
# guest's clock counts instructions: one is one nanosecond, and two runs agree.
guest_machine()
{
	if [ -n "$ICOUNT" ]; then
		host_qemu "$ARCH"
		MACHINE=(-smp 1 -accel 'tcg,thread=single' -icount 'shift=0,sleep=off')
		case "$ARCH" in
		arm64) MACHINE+=(-machine virt -cpu 'max,pauth-impdef=on') ;;
		*) MACHINE+=(-machine pc-i440fx-7.2 -cpu "qemu64-v1${BENCH_KVM:+,+svm,+npt}") ;;
		esac
		return
	fi
	need_qemu "$ARCH"
	MACHINE=(-smp '2,sockets=2' -accel "$(guest_accelerator)")
	case "$ARCH-$(accelerator)" in
	# with memory for tags; pauth-impdef: signed pointers without a cipher
	arm64-*) MACHINE+=(-machine 'virt,mte=on' -cpu 'max,pauth-impdef=on') ;;
	*-kvm) MACHINE+=(-cpu host) ;;
	# TCG's default, with nested paging for guests of the guest
	*) MACHINE+=(-cpu 'qemu64,+svm,+npt') ;;
	esac
}

# guest_lines CONSOLE [JOB STATUS]: sets GUEST_LINES, the lines of the guest to which
# these character devices are connected. The machine of arm64 has one UART
# only: the others are virtio's.
guest_lines()
{
	GUEST_LINES=(-serial "chardev:$1")
	[ $# -gt 1 ] || return 0
	case "$ARCH" in
	arm64)
		GUEST_LINES+=(-device virtio-serial-device -device "virtconsole,chardev=$2"
			-device "virtconsole,chardev=$3") ;;
	*)
		GUEST_LINES+=(-serial "chardev:$2" -serial "chardev:$3") ;;
	esac
}

# clock_arguments: kernel arguments for the clock of a TCG guest. It reads the host's
# time stamp counter, but cannot calibrate it, because TCG's timers are late; without
# the rate on the command line its clock has 4 ms, which is too coarse for a fault.
# no_timer_check: a busy host that delivers no tick is not a broken timer.
clock_arguments()
{
	local khz=1000000
	if [ -z "$ICOUNT" ]; then
		[ "$(accelerator)" != kvm ] || return 0
		khz=$(host_tsc_khz)
	fi
	[ -z "$khz" ] || echo "tsc=reliable tsc_early_khz=$khz no_timer_check "
}

# host_tsc_khz: measured once after each boot of the host; nothing if it is no x86
host_tsc_khz()
{
	local answer=$BUILD/tsc-khz boot
	[ "$(uname -m)" = x86_64 ] || return 0
	boot=$(boot_id)
	if [ "$(cut -d' ' -f1 "$answer" 2> /dev/null)" != "$boot" ]; then
		gcc -O2 -o "$SCRATCH/tsc_khz" "$ROOT/fixtures/qemu/tsc_khz.c" || return 0
		echo "$boot $("$SCRATCH/tsc_khz")" > "$answer"
	fi
	cut -d' ' -f2 "$answer"
}

# A kernel argument for the number of NUMA nodes, or nothing
NODES=

kernel_arguments()
{
	local console=ttyS0 clock=
	case "$1" in
	x86_64) clock=$(clock_arguments) ;;
	arm64) console=ttyAMA0 ;;
	um) console=tty0 ;;
	esac
	# a task that dies with locks held would let the others hang
	echo "console=$console panic=-1 oops=panic ${DEBUG:+slub_debug=- }${clock}loglevel=7 ${NODES:+$NODES }${APPEND}"
}

# start_guest ARCH INITRAMFS DIR: the job's output goes to file descriptor 3.
# Sets GUEST.
start_guest()
{
	local arch=$1 initramfs=$2 dir=$3
	case "$arch" in
	x86_64|arm64)
		guest_machine
		guest_lines console job status
		setsid "$ROOT/scripts/lib/with-realtime-priority" "${QEMU[@]}" "${QEMU_BASE[@]}" "${MACHINE[@]}" "${QEMU_EXTRA[@]}" \
			${GDB:+-s -S} \
			-kernel "$KERNEL_IMAGE" -initrd "$initramfs" \
			-append "$(kernel_arguments "$arch")" \
			-chardev "file,id=console,path=$dir/console.log" \
			-chardev file,id=job,path=/dev/fd/3 \
			-chardev "file,id=status,path=$dir/status,append=on" "${GUEST_LINES[@]}" \
			< /dev/null > "$dir/qemu.log" 2>&1 & ;;
	um)
		# UML calls poll() on its lines, which does not work on regular files: use pipes.
		# shellcheck disable=SC2046 # words on purpose
		LD_PRELOAD=$(uml_preload) setsid "$KERNEL_IMAGE" mem=1G initrd="$initramfs" \
			con=null con0=null,fd:1 ssl=null ssl1=null,fd:3 ssl2=null,fd:4 \
			$(kernel_arguments "$arch") \
			< /dev/null 4> >(exec cat >> "$dir/status") \
			> >(exec cat > "$dir/console.log") 2>&1 & ;;
	esac
	GUEST=$!
}

# Stop a guest whose job prints nothing for so many seconds; empty: only the timeout does
GUEST_SILENCE=

# The same for an image that has not come to its init yet: it may be no kernel at all
IMAGE_SILENCE=120

# guest_output DIR: how much it has said. Once the job runs only its own output counts:
# a kernel that hangs may repeat its complaint on the console for ever.
guest_output()
{
	if grep -q '^start' "$1/status"; then
		cat "$1/status" "$1/job.log" | wc -c
	else
		cat "$1/status" "$1/console.log" | wc -c
	fi
}

# is_silent DIR: whether it has said nothing for GUEST_SILENCE seconds: then HUNG says so.
# Counts looks, five a second, so that a host that stood still does not count. For
# wait_guest, whose variables it uses.
is_silent()
{
	local now limit=$GUEST_SILENCE who="its job"
	grep -q '^start' "$1/status" || {
		who="its kernel"
		limit=${limit:-${IMAGE:+$IMAGE_SILENCE}}
	}
	[ -n "$limit" ] || return 1
	now=$(guest_output "$1")
	[ "$now" = "$said" ] || looks=0
	said=$now
	looks=$((looks + 1))
	[ "$looks" -gt $((limit * 5)) ] || return 1
	HUNG="$who printed nothing for ${limit}s"
}

# wait_guest DIR SECONDS: waits for the guest to exit. Stops it after SECONDS or GUEST_SILENCE
# (HUNG says which), or 5 s after a panic. Ends the ticker.
wait_guest()
{
	local dir=$1 end=$((SECONDS + $2)) panicked="" said="" looks=0
	HUNG=
	while kill -0 "$GUEST" 2> /dev/null; do
		if [ "$SECONDS" -ge "$end" ]; then
			HUNG="stopped after ${2}s (--timeout)"
			break
		fi
		! is_silent "$dir" || break
		[ -z "$panicked" ] || [ "$SECONDS" -lt "$panicked" ] || break
		if [ -z "$panicked" ] && grep -q 'Kernel panic - not syncing' "$dir/console.log" 2> /dev/null; then
			panicked=$((SECONDS + 5))
		fi
		sleep 0.2
	done
	kill_guest
	# the ticker is a child that never ends by itself
	stop_ticker
	wait 2> /dev/null || true
}

# run_guest ARCH INITRAMFS DIR SECONDS: runs a guest to its end, with the
# job's output in DIR/job.log and, with STREAM set, on standard output. After the
# emulator's own fault (qemu_ran_stale_int3) it is run again, unless STREAM is set.
#
# Sets VERDICT: exited N, panic, hung, died (the guest stopped during the job), or
# nostart (its init never ran), and WHY, which explains it. SPLATS gets the kernel's
# complaints.
run_guest()
{
	run_guest_once "$@"
	[ -z "${STREAM-}" ] && qemu_ran_stale_int3 "$3/console.txt" || return 0
	say "QEMU ran half-patched code (its bug, see $3.slipped); once more"
	rm -rf "$3.slipped"
	mv "$3" "$3.slipped"
	run_guest_once "$@"
}

run_guest_once()
{
	local arch=$1 initramfs=$2 dir=$3 seconds=$4
	mkdir -p "$dir"
	: > "$dir/console.log"
	: > "$dir/job.log"
	echo "not started" > "$dir/status"
	start_ticker "guest ($K_NAME $arch)" "$SECONDS"
	if [ -n "${STREAM-}" ]; then
		exec 3> >(trap '' INT; exec tee "$dir/job.log")
	else
		exec 3> >(trap '' INT; exec cat > "$dir/job.log")
	fi
	local reader=$!
	start_guest "$arch" "$initramfs" "$dir"
	exec 3>&-
	wait_guest "$dir" "$seconds"
	wait "$reader" 2> /dev/null || true
	judge_guest "$dir"
}

judge_guest()
{
	local dir=$1 status
	tr -d '\r' < "$dir/console.log" > "$dir/console.txt"
	SPLATS=$(find_splats "$dir/console.txt")
	status=$(tr -d '\r' < "$dir/status" | tail -n 1)
	case "$status" in
	exit\ [0-9]*)
		VERDICT=exited\ ${status#exit }
		WHY=
		[ -z "$HUNG" ] || { VERDICT=hung; WHY="the guest did not switch off after the job: $HUNG"; } ;;
	*)
		if grep -q 'Kernel panic - not syncing' "$dir/console.txt"; then
			VERDICT=panic
			WHY="the guest panicked: $(sed -n 's/.*Kernel panic - not syncing: //p' "$dir/console.txt" | head -n 1)"
		elif [ -n "$HUNG" ]; then
			VERDICT=hung
			WHY="the guest hung: $HUNG, status '$status'"
		elif [ "$status" = start ]; then
			VERDICT=died
			WHY="the guest died early: it stopped before the job had ended"
		else
			VERDICT=nostart
			WHY="the guest did not start: it stopped before its init ran"
		fi ;;
	esac
}

# qemu_ran_stale_int3 CONSOLE: did an old QEMU run an int3 that was gone (see qemu.sh)? A
# kernel without kprobes has no other cause for this oops. Under KVM it would be a bug.
qemu_ran_stale_int3()
{
	[ "$(accelerator)" != kvm ] && grep -q '^\[ *[0-9.]*\] Oops: int3: ' "$1"
}

# report_guest DIR: says what went wrong with the guest itself; status 1 if
# anything did
report_guest()
{
	local dir=$1
	if [ -n "$WHY" ]; then
		say "$WHY"
		[ ! -s "$dir/qemu.log" ] || show_tail "$dir/qemu.log" 5
		show_tail "$dir/console.txt" 20
		[ -s "$dir/console.txt" ] || say "the console is empty: $dir/console.txt"
	fi
	if [ -n "$SPLATS" ]; then
		show_splats "$SPLATS" "$dir/console.txt"
	fi
	[ -z "$WHY" ] && [ -z "$SPLATS" ]
}

# show_splats LINES CONSOLE
show_splats()
{
	say "the kernel complained on its console ($2):"
	printf '%s\n' "$1" | awk 'NR <= 10 { print "  | " $0 }' >&2
}

# first_splat LINES: the first line other than 'cut here'
first_splat()
{
	printf '%s\n' "$1" | awk 'NR == 1 { line = $0 } !/cut here/ && !n++ { line = $0 } END { print line }'
}

# find_splats CONSOLE: prints the lines by which a kernel complains
find_splats()
{
	"$PYTHON" "$ROOT/scripts/lib/splats.py" "$1"
}
