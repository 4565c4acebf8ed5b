#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# The commands of Documentation/admin-guide/mm/cow.rst and of the manual of cowstat
# do what they say: each is taken from the text and run, and has to succeed. A new
# command needs no change here, unless it names something that is not there:
# ./program, ./batch-job, redis-server, process 4711, make and flamegraph.pl are.
#
# -t NAME runs one test; as often as wanted.

DIR=$(dirname "$(readlink -f "$0")")
. "$DIR/trace_helpers.sh"

# first_of FILE...: the first one that there is
first_of()
{
	for file in "$@"; do
		[ ! -e "$file" ] || { echo "$file"; return; }
	done
}

RST=$(first_of "$DIR/cow.rst" "$DIR/../../../../Documentation/admin-guide/mm/cow.rst")
MANUAL=$(first_of "$DIR/cowstat.1" "$DIR/tools/cowstat.1")

# The lines of literal blocks that begin with root's prompt
commands_of_rst()
{
	[ -z "$RST" ] || sed -n 's/^\t\t*# //p' "$RST"
}

# The indented lines of the examples
commands_of_manual()
{
	[ -z "$MANUAL" ] || sed -n -e '/^\.SH EXAMPLES/,/^\.SH BUILDING/{' -e '/^\.RS/,/^\.RE/{' \
		-e '/^\./d' -e 's/\\-/-/g' -e p -e '}' -e '}' "$MANUAL"
}

# Each once, in the order of the text: some need what the one before them leaves.
all_commands()
{
	{ commands_of_rst; commands_of_manual; } | awk '!seen[$0]++'
}

# name_of COMMAND: a name for the test
name_of()
{
	echo "$1" | tr -cs 'A-Za-z0-9\n' _ | sed 's/_$//'
}

# runnable COMMAND: with our process, and an end
runnable()
{
	echo "$1" | sed -e "s/\<4711\>/$(cat "$TMP/pid")/" \
		-e 's/^bpftrace -e/bpftrace -c true -e/' \
		-e '/^cowstat \(.* \)\{0,1\}[0-9.]\{1,\}$/{' -e '/ -- /!s/$/ 2/' -e '}'
}

# why_not COMMAND: why it cannot be run here
why_not()
{
	command -v "${1%% *}" > /dev/null || { echo "no ${1%% *} here"; return; }
	case "$1" in
	*cow_stats*|*cow:*|*"-e cow "*|"perf script"|"trace-cmd report")
		[ -e /proc/cow_stats ] || { echo "kernel without CONFIG_COW_STATS"; return; } ;;
	"cowstat -e"*)
		[ -e /proc/cow_stats ] ||
			{ echo "no vm.cow_stats: kernel without CONFIG_COW_STATS"; return; } ;;
	esac
	case "$1" in
	*--stacks*|flamegraph.pl*)
		command -v perf > /dev/null || { echo "no perf here"; return; }
		[ -e /proc/cow_stats ] || [ -e /sys/kernel/tracing/kprobe_events ] ||
			echo "no kprobe events (CONFIG_KPROBE_EVENTS)" ;;
	bpftrace*|cowtrace*)
		command -v bpftrace > /dev/null || { echo "no bpftrace here"; return; }
		[ -e /sys/kernel/btf/vmlinux ] ||
			{ echo "kernel without CONFIG_DEBUG_INFO_BTF"; return; }
		[ -e /sys/bus/event_source/devices/kprobe ] ||
			echo "no kprobes: kernel without CONFIG_KPROBE_EVENTS" ;;
	esac
}

run_command()
{
	ktap_print_msg "# $1"
	reason=$(why_not "$1")
	[ -z "$reason" ] || { skip_test "$2" "$reason"; return; }
	if ( cd "$TMP" && sh -c "$(runnable "$1")" ) > "$TMP/out" 2> "$TMP/errors" < /dev/null; then
		ktap_test_pass "$2"
	else
		ktap_print_msg "status $?"
		tail -n 20 "$TMP/out" "$TMP/errors" | sed 's/^/# /'
		ktap_test_fail "$2"
	fi
}

# The programs that the text names
make_programs()
{
	mkdir "$TMP/bin"
	for name in program batch-job; do
		ln -s "$DIR/known_faults" "$TMP/$name"
	done
	ln -s "$DIR/known_faults" "$TMP/bin/make"
	for name in cowstat cow_snapshot cowtrace; do
		ln -s "$DIR/$name" "$TMP/bin/$name"
	done
	for name in cowcount cowlat cowmap cowstacks; do
		ln -s "$DIR/$name.bt" "$TMP/$name.bt"
	done
	# What it takes: "FRAME;FRAME COUNT", and what it prints
	cat > "$TMP/bin/flamegraph.pl" <<-'END'
	#!/bin/sh
	[ -s "$1" ] && ! grep -vE '^[^;]+(;[^;]+)* [0-9]+$' "$1" >&2 && echo '<svg/>'
	END
	chmod +x "$TMP/bin/flamegraph.pl"
	PATH=$TMP/bin:$PATH
	make_redis_server
}

# A program of that name that waits. pidof of some systems finds no scripts; sleep of
# others is no program of its own.
make_redis_server()
{
	cp "$(command -v sleep)" "$TMP/bin/redis-server" 2> /dev/null
	if ! redis-server 0 2> /dev/null; then
		mkfifo "$TMP/forever"
		printf '#!/bin/sh\nread -r line < "%s"\n' "$TMP/forever" > "$TMP/bin/redis-server"
		chmod +x "$TMP/bin/redis-server"
	fi
	redis-server 100000 &
	echo $! > "$TMP/pid"
	for _ in $(seq 100); do
		! pidof redis-server > /dev/null || return
		sleep 0.1
	done
	skip_all "pidof finds no redis-server here"
}

cleanup()
{
	[ ! -e "$TMP/pid" ] || kill "$(cat "$TMP/pid")"
	[ -z "$TIMING" ] || echo "$TIMING" > /proc/sys/vm/cow_stats
	rm -rf "$TMP"
	unmount_tracefs
}

ktap_print_header
need_leave_to_change
[ -n "$MANUAL" ] || skip_all "no manual of cowstat here"
command -v pidof > /dev/null || skip_all "no pidof here"
mount_tracefs

TMP=$(mktemp -d)
TIMING=$(cat /proc/sys/vm/cow_stats 2> /dev/null)
trap cleanup EXIT
trap 'exit 1' HUP INT TERM
make_programs

all_commands > "$TMP/commands"
TESTS=$(while read -r line; do name_of "$line"; done < "$TMP/commands")
chosen=$(chosen_tests "$@")
ktap_set_plan "$(echo "$chosen" | wc -l)"
while read -r line; do
	name=$(name_of "$line")
	! echo "$chosen" | grep -qx "$name" || run_command "$line" "$name"
done < "$TMP/commands"
ktap_finished
