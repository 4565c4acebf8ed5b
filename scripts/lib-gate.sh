# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The gate: which checks there are, the submission that they judge, their results,
# and what is kept of them. What a check itself may call is in lib-gate-check.sh.

GATE_D=$ROOT/scripts/gate.d
GATE_GROUPS="form build behaviour sanitizers mutants numbers"

#
# Checks. One file each, GROUP-NAME, with a header of "# Field: text" lines:
# Check (what it looks at), Cost (minutes), Quick (yes), Needs (PROGRAM PACKAGE,
# any number), Arch (whose packages it needs, too: arch_packages), Uses (other files
# of ours that decide its verdict), Tree (gate: it works on the gate's own tree).
#

# all_checks: names, in the order in which they run
all_checks()
{
	local group
	for group in $GATE_GROUPS; do
		find "$GATE_D" -maxdepth 1 -type f -name "$group-*" ! -name '*~' -printf '%f\n' | sort
	done
}

# check_field NAME FIELD
check_field()
{
	sed -n "/^#/!q; s/^# $2:[[:space:]]*//p" "$GATE_D/$1"
}

check_group()
{
	echo "${1%%-*}"
}

# matches NAME GLOBS
matches()
{
	local glob
	for glob in $2; do
		# shellcheck disable=SC2254 # a glob on purpose
		case "$1" in
		$glob) return 0 ;;
		esac
	done
	return 1
}

chosen_checks()
{
	local name
	set -f
	for name in $(all_checks); do
		[ -z "$ONLY" ] || matches "$name" "$ONLY" || continue
		[ -z "$SKIP" ] || ! matches "$name" "$SKIP" || continue
		[ -z "$QUICK" ] || [ -n "$ONLY" ] || [ "$(check_field "$name" Quick)" = yes ] || continue
		echo "$name"
	done
	set +f
}

list_checks()
{
	local name
	for name in $(all_checks); do
		printf '%-28s %3s min%s  %s\n' "$name" "$(check_field "$name" Cost)" \
			"$([ "$(check_field "$name" Quick)" = yes ] && echo ' quick' || echo '      ')" \
			"$(check_field "$name" Check)"
	done
}

# known_globs OPTION GLOBS: each must match a check
known_globs()
{
	local glob name hit
	set -f
	for glob in $2; do
		hit=
		for name in $(all_checks); do
			! matches "$name" "$glob" || hit=1
		done
		[ -n "$hit" ] || die "$1: no check matches '$glob'; 'gate --list' lists them"
	done
	set +f
}

check_gate_options()
{
	[ -z "$KERNEL" ] || die "gate takes no --kernel: give --base"
	known_globs --only "$ONLY"
	known_globs --skip "$SKIP"
	[ -z "$RANGE" ] || [ -n "$TREE" ] || die "--range needs --tree DIR"
	[ -z "$RANGE" ] || [ -z "$SERIES" ] || die "--series and --range are two submissions: give one"
	[ -z "$TREE" ] || [ -n "$RANGE" ] || [ -n "$SERIES" ] || die "--tree needs --range A..B"
	[ -z "$RANGE" ] || [ -z "$BASE" ] || die "--base does not go with --range A..B: A is the base"
	[ -z "$TREE" ] || [ -n "$RANGE" ] || [ -n "$BASE" ] ||
		die "--tree with --series needs --base REV, a revision of that tree"
	[ -z "$FILTER" ] || [ -n "$SELFTEST" ] || die "--filter goes with --selftest; checks are chosen by --only"
	[ -z "$SELFTEST" ] || [ -z "$SERIES$TREE" ] || die "--selftest brings its own submissions"
}

# What the chosen checks need on the host: asked before any of them runs, so that a
# missing compiler is not found after an hour.
need_check_packages()
{
	local name
	MORE_PACKAGES=$(for name in "${CHECKS[@]}"; do
		check_field "$name" Needs
		arch_packages "$(check_field "$name" Arch)"
	done | sort -u)
	need_packages
}

#
# The submission. Sets G_KIND (own, series or range), G_TITLE, G_BASE and G_HEAD
# (commits in K_TREE's repository), G_MAILS (a folder with one file for each patch,
# 0001 being the first), and G_REFUSED: why it does not apply.
#

take_submission()
{
	G_REFUSED=
	G_ON_SERIES=
	if [ -n "$TREE" ]; then
		take_tree
	else
		take_base
	fi
	lock "$K_NAME.gate"
	G_DIR=$K_DIR/gate
	G_MAILS=$G_DIR/mails
	rm -rf "$G_MAILS"
	mkdir -p "$G_MAILS"
	if [ -n "$RANGE" ]; then
		take_range
	elif [ -n "$SERIES" ]; then
		take_series
	else
		take_own
	fi
	G_OURS=
	[ -n "$G_REFUSED" ] || ! carries_our_options || G_OURS=1
	say "judging $G_TITLE: $(count_mails) patches on $K_NAME"
}

take_base()
{
	local name=${BASE:-$(mainline_kernel)}
	case "$name" in
	series)
		G_ON_SERIES=1
		name=$(mainline_kernel) ;;
	series:*)
		G_ON_SERIES=1
		name=${name#series:} ;;
	esac
	[ -z "$G_ON_SERIES" ] || [ -n "$SERIES" ] || die "--base series is for a --series on top of our own"
	is_known_base "$name" ||
		die "--base '$name' is neither a known kernel ($(kernel_names | paste -sd' ')) nor the folder of a kernel tree" \
			"a revision needs the tree that has it: --tree DIR"
	select_kernel "$name"
	if [ -n "$G_ON_SERIES" ] || [ -z "$SERIES" ]; then
		prepare_tree
	else
		prepare_base
	fi
	G_BASE=$(kgit -C "$K_TREE" rev-parse base)
	[ -z "$G_ON_SERIES" ] || G_BASE=$(kgit -C "$K_TREE" rev-parse prepared)
}

is_known_base()
{
	[ -n "$(kernel_field "$1" 2)" ] || [ -d "$1" ]
}

# Our own series, as it stands in the prepared tree.
take_own()
{
	G_KIND=own
	G_TITLE="our own series"
	G_HEAD=$(kgit -C "$K_TREE" rev-parse HEAD)
	unmoved || die "commit that, or take it back by 'refresh'"
	write_mails "$K_TREE" "$G_BASE..$G_HEAD"
}

# unmoved: whether what is built in the prepared tree is the series that is judged
unmoved()
{
	local changes
	changes=$(kgit -C "$K_TREE" status --porcelain --untracked-files=normal) || return
	if [ -n "$changes" ]; then
		say "$K_TREE has changes that are not committed"
		return 1
	fi
	if [ "$(kgit -C "$K_TREE" rev-parse HEAD)" != "$G_HEAD" ]; then
		say "$K_TREE is not at the commit that is judged"
		return 1
	fi
}

# write_mails REPOSITORY RANGE: only reads the repository
write_mails()
{
	local file n=0
	rm -rf "$SCRATCH/mails"
	kgit -C "$1" format-patch -q --no-signature --zero-commit -o "$SCRATCH/mails" "$2"
	for file in "$SCRATCH"/mails/*.patch; do
		[ -f "$file" ] || die "there is no commit in $2"
		n=$((n + 1))
		mv "$file" "$G_MAILS/$(printf %04d "$n")"
	done
}

take_series()
{
	G_KIND=series
	G_TITLE=$(basename -- "$SERIES")
	split_mails
	apply_mails
}

# split_mails: the patches of SERIES in order; a cover letter and answers are none.
split_mails()
{
	local raw=$SCRATCH/raw file mail n=0
	rm -rf "$raw"
	mkdir -p "$raw"
	if [ -d "$SERIES" ]; then
		for file in "$SERIES"/*; do
			case "$file" in
			*.patch|*.mbox|*.eml|*.mbx) ;;
			*) continue ;;
			esac
			n=$((n + 1))
			mkdir "$raw/$(printf %04d "$n")"
			split_file "$file" "$raw/$(printf %04d "$n")"
		done
	else
		mkdir "$raw/0001"
		split_file "$SERIES" "$raw/0001"
	fi
	n=0
	find "$raw" -type f | while read -r mail; do
		decode_mail "$mail"
	done
	while read -r mail; do
		n=$((n + 1))
		cp "$mail" "$G_MAILS/$(printf %04d "$n")"
	done < <(find "$raw" -type f | sort | patches_in_order)
	[ "$n" -gt 0 ] || die "--series '$SERIES' holds no patch in mail format, as 'git format-patch' writes them"
}

# decode_mail MAIL: as format-patch writes it, if it was encoded on its way: the
# checks read mails as text
decode_mail()
{
	local dir=$SCRATCH/decode
	sed '/^\r\?$/q' "$1" | grep -qiE '^Content-Transfer-Encoding:[[:space:]]*(base64|quoted-printable)' || return 0
	mkdir -p "$dir"
	kgit mailinfo -k --encoding=UTF-8 "$dir/msg" "$dir/diff" < "$1" > "$dir/info" || return 0
	{
		echo 'From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001'
		printf 'From: "%s" <%s>\n' "$(sed -n 's/^Author: //p' "$dir/info")" "$(sed -n 's/^Email: //p' "$dir/info")"
		sed -n '/^\(Date\|Subject\): /p' "$dir/info"
		printf 'MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\n'
		cat "$dir/msg" "$dir/diff"
	} > "$1.decoded"
	mv "$1.decoded" "$1"
}

split_file()
{
	# text before the first mail is a note of whoever keeps the file
	sed -n '/^From [^ ].* [0-9][0-9]:[0-9][0-9]:[0-9][0-9] /,$p' "$1" > "$SCRATCH/mbox"
	[ -s "$SCRATCH/mbox" ] || cp "$1" "$SCRATCH/mbox"
	kgit mailsplit -b -o"$2" "$SCRATCH/mbox" > /dev/null || die "'$1' is no mbox"
}

# patches_in_order: those of the named mails that hold a diff, by the numbers in
# their subjects if all have one
patches_in_order()
{
	local mail subject number numbered=() unnumbered="" total=""
	while read -r mail; do
		grep -qE '^(diff --git |--- )' "$mail" && grep -qE '^@@ |^(new|deleted) file|^rename ' "$mail" || continue
		subject=$(kgit mailinfo -k /dev/null /dev/null < "$mail" | sed -n 's/^Subject: //p')
		case "$subject" in
		[Rr]e:*) continue ;;
		esac
		if [[ "$subject" =~ ^\[[^]]*[^0-9]([0-9]+)/([0-9]+)\] ]]; then
			number=$((10#${BASH_REMATCH[1]}))
			total=$((10#${BASH_REMATCH[2]}))
		else
			number=0
			unnumbered=1
		fi
		numbered+=("$number $mail")
	done
	[ ${#numbered[@]} -gt 0 ] || return 0
	if [ -n "$unnumbered" ]; then
		printf '%s\n' "${numbered[@]#* }"
		return
	fi
	[ "$(printf '%s\n' "${numbered[@]%% *}" | sort -un | wc -l)" -eq "$total" ] && [ ${#numbered[@]} -eq "$total" ] ||
		die "--series '$SERIES' is not whole: it says $total patches and has number $(printf '%s\n' "${numbered[@]%% *}" | sort -n | paste -sd' ')"
	printf '%s\n' "${numbered[@]}" | sort -n | sed 's/^[0-9]* //'
}

count_mails()
{
	find "$G_MAILS" -type f | wc -l
}

# apply_mails: sets G_HEAD, or G_REFUSED. The commits are made in an index of their
# own; no file is touched.
apply_mails()
{
	local mail status=0
	rm -f "$SCRATCH/head"
	(
		SERIES_HEAD=$G_BASE
		export GIT_INDEX_FILE=$SCRATCH/apply.index
		rm -f "$GIT_INDEX_FILE"
		kgit -C "$K_TREE" read-tree "$G_BASE"
		for mail in "$G_MAILS"/*; do
			commit_mail "$mail" "patch ${mail##*/}"
		done
		echo "$SERIES_HEAD" > "$SCRATCH/head"
	) 2> "$SCRATCH/refused" &
	wait $! || status=$?
	G_HEAD=$G_BASE
	if [ "$status" -ne 0 ]; then
		G_REFUSED=$(sed "s/^$COMMAND: //" "$SCRATCH/refused")
		[ -n "$G_REFUSED" ] && [ "$status" -eq "$E_USAGE" ] ||
			die "the series could not be applied (status $status): $G_REFUSED"
		return
	fi
	G_HEAD=$(cat "$SCRATCH/head")
	# what keeps the commits from being collected as garbage
	kgit -C "$K_TREE" update-ref refs/gate/head "$G_HEAD"
}

#
# A tree of the user's: two revisions of it, in a repository of ours. Not one of his
# files is written; not even his index is refreshed.
#

user_rev()
{
	kgit -C "$TREE" rev-parse -q --verify "$1^{commit}" || die "'$1' is no commit of $TREE"
}

# take_tree: K_TREE gets the base, RANGE's first commit or --base
take_tree()
{
	local base tree
	is_git_tree "$TREE" || die "--tree '$TREE' is no git tree"
	if [ -n "$RANGE" ]; then
		base=$(user_rev "${RANGE%%..*}") || leave "$E_USAGE"
		G_LAST=$(user_rev "${RANGE#*..}") || leave "$E_USAGE"
		G_FIRST=$(kgit -C "$TREE" merge-base "$base" "$G_LAST") || die "'$RANGE' has no common ancestor"
	else
		G_FIRST=$(user_rev "$BASE") || leave "$E_USAGE"
	fi
	tree=$(kgit -C "$TREE" rev-parse "$G_FIRST^{tree}")
	K_PATH=
	K_PACKAGE=
	K_SUITE=
	K_NAME=tree-${tree:0:12}
	K_DIR=$BUILD/$K_NAME
	K_TREE=$K_DIR/tree
	lock "$K_NAME.tree"
	mkdir -p "$K_DIR"
	[ -d "$K_TREE" ] || copy_revision
	unlock "$K_NAME.tree"
	is_kernel_tree "$K_TREE" || die "--tree '$TREE': $G_FIRST is no kernel tree"
	G_BASE=$(kgit -C "$K_TREE" rev-parse base)
}

copy_revision()
{
	local tmp=$K_DIR/tree.tmp
	rm -rf "$tmp"
	mkdir -p "$tmp"
	kgit -C "$tmp" init -q -b work
	step "copying $(kgit -C "$TREE" describe --always "$G_FIRST")" unpack.log fetch_revision "$tmp" ||
		die "$G_FIRST could not be copied from $TREE"
	mv "$tmp" "$K_TREE"
	kgit -C "$TREE" describe --always "$G_FIRST" > "$K_DIR/base.version"
}

fetch_revision()
{
	local commit
	kgit -C "$1" fetch -q --depth=1 \
		--upload-pack='git -c safe.directory=* -c uploadpack.allowAnySHA1InWant=true upload-pack' \
		"file://$TREE" "$G_FIRST" &&
	commit=$(echo "base: $G_FIRST" | GIT_AUTHOR_DATE=2000-01-01T00:00:00Z \
		GIT_COMMITTER_DATE=2000-01-01T00:00:00Z kgit -C "$1" commit-tree 'FETCH_HEAD^{tree}') &&
	kgit -C "$1" reset -q --hard "$commit" &&
	kgit -C "$1" tag -f base
}

take_range()
{
	G_KIND=range
	G_TITLE="$RANGE of $(basename -- "$TREE")"
	G_HEAD=$G_BASE
	write_mails "$TREE" "$G_FIRST..$G_LAST"
	if [ -n "$(kgit -C "$TREE" rev-list --merges "$G_FIRST..$G_LAST")" ]; then
		G_REFUSED="the range holds merges: a series is a line of patches"
		return
	fi
	apply_mails
}

# carries_our_options: whether our own tests have anything to look at
carries_our_options()
{
	kgit -C "$K_TREE" grep -q -E '^config COW_PRECOPY$' "$G_HEAD" -- '*Kconfig*'
}

#
# Results, kept under a key that is made of all that decides them
#

# submission_key: the patches and the base
submission_key()
{
	{
		kgit -C "$K_TREE" rev-parse "$G_BASE^{tree}" "$G_HEAD^{tree}"
		echo "$G_KIND $G_ON_SERIES $K_NAME"
		cat "$G_MAILS"/*
	} | sha256sum
}

# sourced FILE...: those, and all the shell files that they source, and so on
sourced()
{
	local file again known=$'\n'
	while [ $# -gt 0 ]; do
		again=()
		for file; do
			[[ "$known" != *$'\n'"$file"$'\n'* ]] || continue
			known+=$file$'\n'
			mapfile -t -O ${#again[@]} again < <(sources_of "$file")
		done
		set -- "${again[@]}"
	done
	printf %s "${known#?}"
}

# sources_of FILE: what it sources itself; like all paths here, seen from ROOT
sources_of()
{
	sed -n -E 's#^[[:space:]]*\. "(\$ROOT/scripts|\$\(dirname "\$0"\))/([^"]*)".*#scripts/\2#p' "$ROOT/$1"
}

# check_files NAME: all files of ours that decide the check's verdict
check_files()
{
	local uses scripts=() file
	cd "$ROOT" || exit
	uses=$(check_field "$1" Uses)
	for file in $uses; do
		[[ "$file" != scripts/* ]] || scripts+=("$file")
	done
	{
		sourced scripts/gate-check "scripts/gate.d/$1" "${scripts[@]}"
		# shellcheck disable=SC2086 # words on purpose
		find Kconfig.fragment fixtures/config scripts/*.awk scripts/cached scripts/urgently $uses -type f
	} | sort -u
}

# check_key NAME [FOLDER]: the submission, the check with what it uses but for what is in
# that folder, and the tools of this host
check_key()
{
	local name=$1
	{
		echo "$SUBMISSION_KEY $TIMEOUT"
		tools_of "$name"
		check_files "$name" | sieve -v "^${2:-/}" | ( cd "$ROOT" && xargs -d '\n' sha256sum )
	} | sha256sum | cut -c1-16
}

# tools_of NAME: the versions of the host's tools that the check asks
tools_of()
{
	gcc --version | head -n 1
	ld --version | head -n 1
	{ check_field "$1" Needs; arch_packages "$(check_field "$1" Arch)"; echo qemu qemu-system-x86; } |
		while read -r _ package; do
			dpkg-query -W "$package" 2> /dev/null || true
		done
}

# run_checks: every chosen check, or what is known of it. Two at a time: a guest leaves
# half of two cores to a compiler. Those that work on the gate's own tree run one after
# the other, and who has no more of his own takes the last ones of the others.
run_checks()
{
	local name in_tree=() others=() backwards=()
	SUBMISSION_KEY=$(submission_key)
	GATE_STATE=$SCRATCH/state
	save_state
	mkdir -p "$G_DIR/results" "$SCRATCH/begun"
	: > "$LOGS/verdicts"
	for name in "${CHECKS[@]}"; do
		if uses_tree "$name"; then
			in_tree+=("$name")
		else
			others+=("$name")
			backwards=("$name" "${backwards[@]}")
		fi
	done
	if [ "$JOBS" -gt 1 ]; then
		start_lane "${others[@]}"
		start_lane "${in_tree[@]}" "${backwards[@]}"
	else
		start_lane "${CHECKS[@]}"
	fi
	wait_lanes
	record_verdicts
}

# uses_tree NAME: the gate's own, at one commit or another. A submission that is not our
# own series has no other tree.
uses_tree()
{
	[ "$(check_field "$1" Tree)" = gate ] || { [ "$G_KIND" != own ] && [ "$(check_group "$1")" != form ]; }
}

LANES=()

# start_lane NAME...: in a process group of its own, which is ended as a whole
start_lane()
{
	set -m
	run_lane "$@" &
	set +m
	LANES+=($!)
}

# wait_lanes: until the last has ended, or one that could not go on
wait_lanes()
{
	local lane status=0 left
	start_ticker "the gate" "$SECONDS"
	while [ ${#LANES[@]} -gt 0 ]; do
		wait -n "${LANES[@]}" || status=$?
		# what one that was killed has begun still runs: end_lanes
		[ "$status" -eq 0 ] || break
		left=()
		for lane in "${LANES[@]}"; do
			! kill -0 "$lane" 2> /dev/null || left+=("$lane")
		done
		LANES=("${left[@]}")
	done
	end_lanes
	stop_ticker
	leave_if_asked "$status"
	[ "$status" -eq 0 ] || say "the gate could not go on (status $status)"
}

# leave_if_asked STATUS: who interrupts or ends a part of the gate means all of it
leave_if_asked()
{
	case "$1" in
	130|143) leave "$1" ;;
	esac
}

# end_lanes: with all that they have begun, even one that was killed itself
end_lanes()
{
	local tries
	for ((tries = 0; tries < 20; tries++)); do
		# once more after a while: a process that was just being started may have missed it
		[ $((tries % 10)) -ne 0 ] || signal_lanes TERM || break
		sleep 0.3
		signal_lanes 0 || break
	done
	LANES=()
}

# signal_lanes SIGNAL: status 1 if there is none left
signal_lanes()
{
	local lane status=1
	for lane in "${LANES[@]}"; do
		! kill "-$1" -- "-$lane" 2> /dev/null || status=0
	done
	return "$status"
}

at_exit end_lanes

# run_lane NAME...: those that the other lane has not begun
run_lane()
{
	local name
	# after the check that runs, which has had the signal as well
	trap 'exit 143' TERM
	for name; do
		# a gate that was killed has no use for more
		kill -0 $$ 2> /dev/null || exit
		if ! mkdir "$SCRATCH/begun/$name" 2> /dev/null; then
			[ -d "$SCRATCH/begun/$name" ] || die "no folder can be made in $SCRATCH"
			continue
		fi
		G_RESULT=$G_DIR/results/$name.$(check_key "$name")
		G_AGAIN=
		if [ -n "$FRESH" ] || [ ! -f "$G_RESULT/verdict" ]; then
			run_check "$name"
		else
			G_AGAIN=' (known)'
		fi
		report_check "$name"
	done
}

# in_place_of_ticker: what a lane says next does not go behind the elapsed time
in_place_of_ticker()
{
	! is_terminal || printf '\r\033[K' >&2
}

# record_verdicts: in the order of the checks, whichever ended first
record_verdicts()
{
	local verdict name seconds summary dir
	for name in "${CHECKS[@]}"; do
		awk -F '\t' -v name="$name" '$2 == name { found = 1 } END { exit !found }' "$LOGS/verdicts" ||
			printf 'error\t%s\t0\tnot run: the gate could not go on\t%s\n' "$name" "$G_DIR/results" >> "$LOGS/verdicts"
	done
	awk -F '\t' 'NR == FNR { place[$1] = NR; next } { print place[$2] "\t" $0 }' \
		<(printf '%s\n' "${CHECKS[@]}") "$LOGS/verdicts" | sort -n | cut -f 2- > "$LOGS/verdicts.sorted"
	mv "$LOGS/verdicts.sorted" "$LOGS/verdicts"
	while IFS=$'\t' read -r verdict name seconds summary dir; do
		case "$verdict" in
		warn) record pass "$name" "warning: $summary" ;;
		*) record "$verdict" "$name" "$summary" ;;
		esac
	done < "$LOGS/verdicts"
	ERRORS=$(count_results error)
}

# What a check's own process needs to know.
save_state()
{
	local variable
	for variable in K_NAME K_DIR K_TREE K_PATH K_PACKAGE K_SUITE G_KIND G_TITLE G_BASE G_HEAD \
			G_DIR G_MAILS G_REFUSED G_OURS G_ON_SERIES BASE JOBS TIMEOUT QUICK SUBMISSION_KEY; do
		printf '%s=%q\n' "$variable" "${!variable-}"
	done > "$GATE_STATE"
}

# run_check NAME: in a process of its own, which leaves its findings and logs in
# G_RESULT. The verdict is written last: without one it is run again.
run_check()
{
	local name=$1 start=$SECONDS status=0 moved=
	rm -rf "$G_RESULT"
	drop_old_results "$name"
	mkdir -p "$G_RESULT"
	in_place_of_ticker
	say "== $name ..."
	COW_LOGS=$G_RESULT COW_RESULTS='' bash "$ROOT/scripts/gate-check" "$GATE_STATE" "$name" "$G_RESULT" \
		> "$G_RESULT/log" 2>&1 < /dev/null || status=$?
	[ "$G_KIND" != own ] || unmoved 2>> "$G_RESULT/log" || moved=1
	[ -z "$moved" ] || [ "$status" -ne 0 ] || status=$E_USAGE
	if [ "$status" -ne 0 ]; then
		printf 'error\t%s\tstatus %s: %s\n' $((SECONDS - start)) "$status" \
			"$(grep -v '^[[:space:]]*|' "$G_RESULT/log" | tail -n 3 | paste -sd';' | tr '\t' ' ')" > "$G_RESULT/error"
		leave_if_asked "$status"
		# what was found until then is a fault all the same, if of what is judged
		[ -n "$moved" ] || ! grep -q '^fail' "$G_RESULT/findings" 2> /dev/null ||
			printf 'fail\t%s\t%s; then the check could not go on\n' $((SECONDS - start)) \
				"$(summary_of "$G_RESULT/findings")" > "$G_RESULT/error"
		return
	fi
	printf '%s\t%s\t%s\n' "$(verdict_of "$G_RESULT/findings")" $((SECONDS - start)) \
		"$(summary_of "$G_RESULT/findings")" > "$G_RESULT/verdict.tmp"
	mv "$G_RESULT/verdict.tmp" "$G_RESULT/verdict"
}

# The newest few of each check: whoever goes back and forth between two versions of
# a series does not wait twice.
drop_old_results()
{
	local dir
	# only its own: of other checks, the other lane removes some meanwhile
	{ find "$G_DIR/results/$1."* -maxdepth 0 -type d -printf "%T@ %p\n" 2> /dev/null || true; } |
		sort -rn | tail -n +6 | while read -r _ dir; do
			rm -rf "$dir"
		done
}

# Findings are lines "fail|warn|skip|note TAB text". A failure is one even of a check
# that skips the rest.
verdict_of()
{
	local verdict
	for verdict in fail skip warn; do
		if grep -q "^$verdict"$'\t' "$1"; then
			echo "$verdict"
			return
		fi
	done
	echo pass
}

# The first of the findings that decide the verdict, and how many more there are. Never
# empty: read would take what comes behind an empty field for it.
summary_of()
{
	awk -F '\t' -v verdict="$(verdict_of "$1")" '
		$1 == (verdict == "pass" ? "note" : verdict) { if (!n++) first = $2 }
		END { printf "%s%s", (n ? first : "no complaint"), (n > 1 ? " (and " n - 1 " more)" : "") }' "$1"
}

# report_check NAME: one line, what was found, and a line for the table
report_check()
{
	local name=$1 verdict seconds summary file=$G_RESULT/verdict
	[ -f "$file" ] || file=$G_RESULT/error
	IFS=$'\t' read -r verdict seconds summary < "$file"
	in_place_of_ticker
	printf '%s %s (%ss)%s%s\n' "$(echo "$verdict" | tr '[:lower:]' '[:upper:]')" "$name" "$seconds" \
		"$G_AGAIN" "${summary:+: $summary}"
	printf '%s\t%s\t%s\t%s\t%s\n' "$verdict" "$name" "$seconds" "$summary" "$G_RESULT" >> "$LOGS/verdicts"
	case "$verdict" in
	warn)
		say_findings warn ;;
	fail)
		say_findings fail
		say "  logs: $G_RESULT" ;;
	error)
		say "  logs: $G_RESULT" ;;
	esac
}

say_findings()
{
	awk -F '\t' -v which="$1" '$1 == which && n++ < 12 { print "  " $2 }
		END { if (n > 12) print "  ... and " n - 12 " more" }' "$G_RESULT/findings" >&2
}

#
# The result
#

show_verdicts()
{
	echo "== verdicts: $G_TITLE on $K_NAME"
	awk -F '\t' '
		{
			split($2, part, "-")
			group = part[1]
			if (!(group in all))
				order[++n] = group
			all[group]++
			number[group, $1]++
			seconds[group] += $3
		}
		END {
			printf "%-12s %5s %5s %5s %5s %6s %8s\n", "group", "pass", "warn", "fail", "skip", "error", "seconds"
			for (i = 1; i <= n; i++) {
				g = order[i]
				printf "%-12s %5d %5d %5d %5d %6d %8d\n", g, number[g, "pass"], number[g, "warn"],
					number[g, "fail"], number[g, "skip"], number[g, "error"], seconds[g]
			}
		}' "$LOGS/verdicts"
	awk -F '\t' '$1 != "pass" { printf "%-5s %s: %s\n", toupper($1), $2, $4 }' "$LOGS/verdicts"
}

write_ktap()
{
	awk -F '\t' -v count="$(wc -l < "$LOGS/verdicts")" '
		BEGIN { print "KTAP version 1\n1.." count }
		{
			printf "%sok %d %s", ($1 == "fail" || $1 == "error" ? "not " : ""), NR, $2
			print ($1 == "skip" ? " # SKIP " $4 : $1 == "pass" ? "" : " # " $1 ": " $4)
		}' "$LOGS/verdicts" > "$LOGS/gate.ktap"
}

# finish_gate: what could not be run is nobody's failure, but no verdict either
finish_gate()
{
	write_ktap
	[ -z "$MARKDOWN" ] || write_markdown > "$MARKDOWN"
	say "logs: $G_DIR/results, $LOGS"
	if [ "$ERRORS" -gt 0 ] && [ "$(count_results fail)" -eq 0 ]; then
		no_verdict "$ERRORS could not be run"
	fi
	[ "$(count_results pass)" -gt 0 ] || [ "$(count_results fail)" -gt 0 ] ||
		no_verdict "none of these checks has anything to look at"
	finish
}

# no_verdict WHY
no_verdict()
{
	[ -z "$JUNIT" ] || write_junit
	[ -z "$JSON" ] || write_json
	say "$1: no verdict"
	echo "$(count_results pass) passed, 0 failed, $(count_results skip) skipped"
	leave "$E_USAGE"
}

# write_markdown: what was run, on what, with which result, and what was not
write_markdown()
{
	local verdict name seconds summary dir number=0 mail
	cat <<-END
	# $(overall_verdict): $G_TITLE on $K_NAME

	Judged on $(date -u '+%Y-%m-%d %H:%M UTC') by \`run_tests.sh gate\` of
	$(git -C "$ROOT" describe --always --dirty 2> /dev/null || echo 'an unknown revision'), with
	$(gcc --version | head -n 1). Base: $K_NAME ($(cat "$K_DIR/base.version"))${G_ON_SERIES:+ with our own series}.

	END
	for mail in "$G_MAILS"/*; do
		number=$((number + 1))
		echo "$number. $(mail_subject "$mail")"
	done
	printf '\n| verdict | check | seconds | what it looks at | result |\n|---|---|---|---|---|\n'
	while IFS=$'\t' read -r verdict name seconds summary dir; do
		printf '| %s | %s | %s | %s | %s |\n' "$verdict" "$name" "$seconds" \
			"$(check_field "$name" Check)" "${summary//|/\\|}"
	done < "$LOGS/verdicts"
	printf '\n## Findings\n'
	while IFS=$'\t' read -r verdict name seconds summary dir; do
		[ -s "$dir/findings" ] || continue
		printf '\n%s (%s):\n\n' "$name" "$verdict"
		awk -F '\t' '{ print "- " $1 ": " $2 }' "$dir/findings"
	done < "$LOGS/verdicts"
	printf '\n## Not tested\n\n'
	awk -F '\t' '$1 == "skip" { print "- " $2 ": " $4 }
		$1 == "error" { print "- " $2 ": could not be run: " $4 }' "$LOGS/verdicts"
	not_chosen
}

not_chosen()
{
	local name
	for name in $(all_checks); do
		case " ${CHECKS[*]} " in
		*" $name "*) ;;
		*) echo "- $name ($(check_field "$name" Check)): not asked for${QUICK:+ by --quick}" ;;
		esac
	done
}

overall_verdict()
{
	if [ "$(count_results fail)" -gt 0 ]; then
		echo FAIL
	elif [ "$ERRORS" -gt 0 ]; then
		echo "NO VERDICT"
	elif grep -q '^warn' "$LOGS/verdicts"; then
		echo "PASS, with warnings"
	else
		echo PASS
	fi
}

# mail_subject MAIL: without the [PATCH n/m], header lines joined and decoded
mail_subject()
{
	kgit mailinfo /dev/null /dev/null < "$1" | sed -n 's/^Subject: //p'
}

#
# Submissions with one fault each: the gate's own test. A header like a mutant's:
# Submission (what is wrong), Base (base or series), Run (globs of checks),
# Verdict (pass, fail or warn), Check (which says so; none for pass), Finds (regular
# expression for the finding), Quick (yes: compiles little), Kernel (the bases that it
# is for, if not all).
#

submission_files()
{
	local file
	for file in "$ROOT"/fixtures/submissions/*.mbox; do
		# shellcheck disable=SC2254 # a glob on purpose
		case "$(basename "$file" .mbox)" in
		${FILTER:-*}) ;;
		*) continue ;;
		esac
		[ -z "$QUICK" ] || [ "$(submission_field "$file" Quick)" = yes ] || continue
		echo "$file"
	done
}

submission_field()
{
	sed -n -e '/^From /q' -e "s/^$2:[[:space:]]*//p" "$1" | head -n 1
}

# check_submission FILE: prints what is wrong with its header
check_submission()
{
	local field
	for field in Submission Base Run Verdict; do
		[ -n "$(submission_field "$1" "$field")" ] || echo "no '$field:' in its header"
	done
	case "$(submission_field "$1" Verdict)" in
	fail|warn)
		[ -f "$GATE_D/$(submission_field "$1" Check)" ] || echo "'Check:' names no check"
		[ -n "$(submission_field "$1" Finds)" ] || echo "no 'Finds:' in its header" ;;
	pass) ;;
	*) echo "'Verdict:' must be pass, warn or fail" ;;
	esac
}

# asked_by FILE...: the checks that these submissions are to be asked by
asked_by()
{
	local file name
	set -f
	for name in $(all_checks); do
		for file; do
			! matches "$name" "$(submission_field "$file" Run)" || echo "$name"
		done
	done | sort -u
	set +f
}

judge_submissions()
{
	local file kernel=${BASE:-$(default_kernel)}
	for file; do
		judge_submission "$file" "$kernel"
	done
}

# judge_submission FILE KERNEL
judge_submission()
{
	local file=$1 kernel=$2 name start=$SECONDS log status=0 wrong only
	name=$(basename "$file" .mbox)
	log=$LOGS/$name.log
	only=$(submission_field "$file" Kernel)
	if [ -n "$only" ] && [[ " $only " != *" $kernel "* ]]; then
		echo "SKIP $name (only for kernel $only)"
		record skip "$name" "only for kernel $only"
		return
	fi
	wrong=$(check_submission "$file" | paste -sd';')
	if [ -z "$wrong" ]; then
		start_ticker "$name" "$start"
		COW_RESULTS='' bash "$ROOT/scripts/gate" --series "$file" --base "$(submission_base "$file" "$kernel")" \
			--only "$(submission_field "$file" Run)" --jobs "$JOBS" ${TIMEOUT:+--timeout "$TIMEOUT"} \
			${FRESH:+--fresh} ${INSTALL_DEPS:+--install-deps} --json "$LOGS/$name.json" > "$log" 2>&1 < /dev/null || status=$?
		stop_ticker
		leave_if_asked "$status"
		wrong=$(wrong_verdict "$file" "$log" "$status")
	fi
	if [ -z "$wrong" ]; then
		echo "PASS $name: $(submission_field "$file" Verdict)$(submission_field "$file" Check | sed 's/^/ by /') ($((SECONDS - start))s)"
		record pass "$name"
	else
		echo "FAIL $name: $wrong ($((SECONDS - start))s)"
		[ ! -f "$log" ] || show_tail "$log"
		record fail "$name" "$wrong"
	fi
}

submission_base()
{
	case "$(submission_field "$1" Base)" in
	series) echo "series:$2" ;;
	*) echo "$2" ;;
	esac
}

# not_passed FILE LOG: the checks that Run names, not by a glob, and that said anything
# else: skipped is not looked at
not_passed()
{
	local name
	set -f
	for name in $(submission_field "$1" Run); do
		[[ "$name" == *[*?[]* ]] || grep -q "^PASS $name (" "$2" || echo "$name did not pass"
	done
	set +f
}

# wrong_verdict FILE LOG STATUS: prints how the verdict differs from the header's.
# Exactly the named check must fail (or warn), and for the reason that is named.
wrong_verdict()
{
	local file=$1 log=$2 status=$3 want check got others
	want=$(submission_field "$file" Verdict)
	check=$(submission_field "$file" Check)
	others=$(sed -n 's/^\(FAIL\|ERROR\) \([^ ]*\) (.*/\2/p' "$log" | paste -sd' ')
	case "$want" in
	pass|warn)
		[ "$status" -eq 0 ] || echo "status $status, wanted 0: $others"
		not_passed "$file" "$log"
		[ "$want" = warn ] || return 0
		got=$(sed -n "s/^WARN $check (/(/p" "$log") ;;
	fail)
		[ "$status" -eq 1 ] || echo "status $status, wanted 1"
		[ "$others" = "$check" ] || echo "failing: '$others', wanted '$check'"
		got=$(sed -n "/^FAIL $check (/p" "$log") ;;
	esac
	[ -n "$got" ] || echo "no $want by $check"
	grep -qE -- "$(submission_field "$file" Finds)" "$log" ||
		echo "for another reason: no /$(submission_field "$file" Finds)/"
}
