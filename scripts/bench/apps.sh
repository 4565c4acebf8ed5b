# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Real programs that fork, measured in a guest: Redis with writes during BGSAVE, and
# a prefork server in Python. The jobs are in fixtures/apps.

APP_DIR=/apps

# check_app APP: checks MODE and sets MORE_PACKAGES, before anything is built
check_app()
{
	case "$MODE" in
	''|wall) MODE=wall ;;
	*) die "bench $1 is for --mode wall: on one CPU, parent and child of a fork would share it" ;;
	esac
	[ "$1" != redis ] || MORE_PACKAGES="redis-server redis-server"$'\n'"redis-benchmark redis-tools"
}

# app_size APP: the job's options for its size
app_size()
{
	case "$1${QUICK:+-quick}" in
	redis) echo --keys 200000 --requests 20000 ;;
	redis-quick) echo --keys 30000 --requests 3000 ;;
	prefork) echo --sessions 200000 --requests 2000 ;;
	prefork-quick) echo --sessions 40000 --requests 300 ;;
	esac
}

# copy_python DIR SCRIPT: Debian's Python with the modules that SCRIPT imports
copy_python()
{
	local dir=$1 file
	copy_program "$dir" "$PYTHON"
	"$PYTHON" -s -E -S "$ROOT/fixtures/apps/modules.py" "$2" > "$SCRATCH/modules" ||
		die "$PYTHON lacks a module that $2 imports"
	while read -r file; do
		copy_program "$dir" "$file"
	done < "$SCRATCH/modules"
}

# app_files APP DIR: the files of the guest
app_files()
{
	local app=$1 dir=$2
	mkdir -p "$dir$APP_DIR"
	cp "$ROOT/fixtures/apps/"{cowapp.py,"${app}_job.py"} "$dir$APP_DIR/"
	copy_python "$dir" "$ROOT/fixtures/apps/${app}_job.py"
	[ "$app" = redis ] || return 0
	copy_program "$dir" "$(type -P redis-server)" /usr/bin/redis-server
	copy_program "$dir" "$(type -P redis-benchmark)" /usr/bin/redis-benchmark
}

bench_app()
{
	local app=$1 dir=$LOGS/guest size rows=$LOGS/rows.json
	read -ra size <<< "$(app_size "$app")"
	use_mode "$MODE"
	need_gnuplot
	BENCH=1
	ARCH=x86_64
	prepare_sources
	need_kernel "$ARCH"
	BENCH_FILES=$SCRATCH/app
	BENCH_PROGRAM=$app
	app_files "$app" "$BENCH_FILES"
	begin_job
	section rows "$PYTHON" -s -E -S "$APP_DIR/${app}_job.py" "${size[@]}"
	run_job "$dir"
	app_rows "$dir" --json "$rows" --results "$RESULTS" || leave "$E_USAGE"
	[ -z "$ROWS_FILE" ] || cp "$rows" "$ROWS_FILE"
	! has_plots || draw --apps "$rows"
	say "elapsed: ${SECONDS}s"
}

# app_rows DIR OPTIONS...: shows the rows
app_rows()
{
	local dir=$1 about
	shift
	mapfile -t about < "$dir/about"
	"$PYTHON" "$ROOT/scripts/bench/apps.py" "$@" "$dir/rows.out" "${about[@]}"
}
