# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Queues of work, run side by side: a guest leaves half of two cores to a compiler.

# By process id, which is that of a process group, too
declare -A QUEUES=()

# start_queue COMMAND ARGS...: in a process group, which is ended as a whole
start_queue()
{
	set -m
	in_queue "$@" &
	set +m
	QUEUES[$!]=1
}

in_queue()
{
	# bash runs the trap when the command has ended, which got the signal, too
	trap 'exit 143' TERM
	"$@"
}

# wait_for_queues WHAT: until all have ended, or one has failed, whose status it returns
wait_for_queues()
{
	local ended status=0
	start_ticker "$1" "$SECONDS"
	while [ ${#QUEUES[@]} -gt 0 ] && [ "$status" -eq 0 ]; do
		wait -n -p ended "${!QUEUES[@]}" || status=$?
		# end_queues ends what a killed queue has started
		[ "$status" -ne 0 ] || unset "QUEUES[$ended]"
	done
	end_queues
	stop_ticker
	leave_if_interrupted "$status"
	[ "$status" -eq 0 ] || say "$1 could not go on (status $status)"
	return "$status"
}

# leave_if_interrupted STATUS: a signal to a part is for all of it
leave_if_interrupted()
{
	case "$1" in
	130|143) leave "$1" ;;
	esac
}

# end_queues: with what each of them runs
end_queues()
{
	local tries
	for ((tries = 0; tries < 20; tries++)); do
		# again after 3 s: a process that was just being started may have missed it
		[ $((tries % 10)) -ne 0 ] || signal_queues TERM || break
		sleep 0.3
		signal_queues 0 || break
	done
	QUEUES=()
}

# signal_queues SIGNAL: status 1 if there is none left
signal_queues()
{
	local queue status=1
	for queue in "${!QUEUES[@]}"; do
		! kill "-$1" -- "-$queue" 2> /dev/null || status=0
	done
	return "$status"
}

at_exit end_queues

# clear_ticker: the line with the elapsed time, for what is printed next
clear_ticker()
{
	! is_terminal || printf '\r\033[K' >&2
}
