#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Copy-on-write faults, by the bpftrace script for this kernel: cowNAME_event.bt where
# there is one and the event cow:cow_fault, else cowNAME.bt, which needs none. They explain
# themselves.

dir=$(dirname "$(readlink -f "$0")")
case "$1" in
count|lat|map|stacks) script=$dir/cow$1 ;;
*)
	echo "Usage: cowtrace count|lat|map|stacks [-c 'COMMAND ARGUMENTS'] [PID [FROM TO]]" >&2
	exit 2 ;;
esac
shift

for tracefs in /sys/kernel/tracing /sys/kernel/debug/tracing; do
	[ -e "${script}_event.bt" ] || break
	grep -qs ' ahead;' $tracefs/events/cow/cow_fault/format || continue
	script=${script}_event
	break
done

if [ "$1" = -c ] && [ $# -gt 1 ]; then
	command=$2
	shift 2
	exec bpftrace -c "$command" "$script.bt" "$@"
fi
exec bpftrace "$script.bt" "$@"
