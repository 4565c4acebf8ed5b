# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Results: a file with one line for each test (status, name, message, separated by
# tabs), from which results.py makes all reports.

RESULTS=

# A nested command hands its results to its caller through COW_RESULTS.
open_results()
{
	open_logs
	RESULTS=$LOGS/results
	: > "$RESULTS"
}

# record STATUS NAME [MESSAGE]
record()
{
	local message=${3-}
	message=${message//$'\t'/ }
	printf '%s\t%s\t%s\n' "$1" "$2" "${message//$'\n'/; }" >> "$RESULTS"
}

# record_ktap LOG [PREFIX]: the tests of a KTAP log
record_ktap()
{
	"$PYTHON" "$ROOT/scripts/lib/ktap.py" "$1" "${2-}" >> "$RESULTS"
}

count_results()
{
	awk -F '\t' -v status="$1" '$1 == status { n++ } END { print n + 0 }' "$RESULTS"
}

# list_results STATUS [FILE]: the name and the message of each result with it
list_results()
{
	awk -F '\t' -v status="$1" '$1 == status { print $2 ($3 != "" ? ": " $3 : "") }' "${2:-$RESULTS}"
}

# report KIND [KEY=VALUE...]: as results.py writes it
report()
{
	"$PYTHON" "$ROOT/scripts/lib/results.py" "$1" "$RESULTS" "command=$COMMAND" "${@:2}"
}

# show_results: one line for each group of tests, each failure, and why tests were skipped
show_results()
{
	report show
}

# What was tested, if it is not the prepared tree: --kcidb of the gate sets these
KCIDB_TREE=
KCIDB_PATCHSET=
KCIDB_COMMENT=
KCIDB_MESSAGE_ID=
KCIDB_VALID=true

# write_kcidb: what a lab sends to KernelCI. KCIDB_ORIGIN is the lab's name.
write_kcidb()
{
	local kernel=$K_NAME version tree config=cow${DEBUG:+-$DEBUG}
	version=$(cat "$K_DIR/base.version" 2> /dev/null || echo "$K_NAME")
	if [ -n "$IMAGE" ]; then
		# only its selftests are of K_NAME
		kernel=$IMAGE_NAME
		version=$IMAGE_NAME
		tree=image-$(sha256sum < "$KERNEL_IMAGE" | cut -c 1-12)
		config=image
	else
		tree=${KCIDB_TREE:-$(tree_hash "${UNPATCHED:+base}")}
	fi
	report kcidb "origin=${KCIDB_ORIGIN:-cow_tests}" "kernel=$kernel" "arch=${ARCH:-x86_64}" \
		"version=$version" "tree=$tree" "config=$config" \
		"patchset=${KCIDB_PATCHSET:-$(patchset_of_series)}" "compiler=$(gcc --version | sed -n 1p)" "start=$STARTED" \
		"comment=$KCIDB_COMMENT" "message_id=$KCIDB_MESSAGE_ID" "valid=$KCIDB_VALID"
}

# tree_hash COMMIT: of the kernel, HEAD without an argument
tree_hash()
{
	kgit -C "$K_TREE" rev-parse "${1:-HEAD}^{tree}" 2> /dev/null || echo unknown
}

# patchset_of_series: of the kernels of other commands; nothing for one without the series
patchset_of_series()
{
	local patches
	[ -z "$UNPATCHED$IMAGE" ] && is_kernel_tree "$K_TREE" || return 0
	mapfile -t patches < <(series_patches "$(series_of "$K_TREE")")
	[ ${#patches[@]} -eq 0 ] || patchset_hash "${patches[@]/#/$ROOT/patches/}"
}

# patchset_hash FILE...: as KCIDB wants it
patchset_hash()
{
	local patch
	for patch; do
		sha256sum < "$patch" | cut -c-64
	done | sha256sum | cut -c-64
}

# write_to FILE COMMAND...: nothing without FILE. Sets LOST if that is not possible.
LOST=

write_to()
{
	[ -n "$1" ] || return 0
	"${@:2}" > "$1" || {
		say "the report '$1' could not be written"
		LOST=1
	}
}

# write_reports: those that were asked for
write_reports()
{
	write_to "$JUNIT" report junit
	write_to "$JSON" report json
	write_to "$KCIDB" write_kcidb
}

# finish: prints the last line, writes what was asked for, and leaves
finish()
{
	local passed failed skipped
	passed=$(count_results pass)
	failed=$(count_results fail)
	skipped=$(count_results skip)
	[ -z "${COW_RESULTS-}" ] || cat "$RESULTS" >> "$COW_RESULTS"
	[ "$failed" -eq 0 ] || say "logs: $LOGS"
	echo "$passed passed, $failed failed, $skipped skipped"
	write_reports
	if [ "$failed" -gt 0 ]; then
		leave "$E_FAIL"
	elif [ -n "$LOST" ]; then
		leave "$E_USAGE"
	elif [ "$passed" -gt 0 ]; then
		leave 0
	elif [ "$skipped" -gt 0 ]; then
		leave "$E_SKIP"
	fi
	die "no test ran; logs: $LOGS"
}
