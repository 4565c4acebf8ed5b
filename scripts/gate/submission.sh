# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The submission that is judged: an mbox, a range of commits, or our own series.

#
# The submission. Sets G_KIND (own, series or range), G_TITLE, G_BASE and G_HEAD
# (commits in K_TREE's repository), G_MAILS (a folder with one file for each patch,
# 0001 being the first), and G_REFUSED: why it does not apply.
#

take_submission()
{
	G_REFUSED=
	G_ON_SERIES=
	# what is no series is refused before a kernel is fetched for it
	[ -z "$SERIES" ] || split_mails
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
	take_switches
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
	need_known_base "$name"
	select_kernel "$name"
	if [ -n "$G_ON_SERIES" ] || [ -z "$SERIES" ]; then
		prepare_tree
	else
		prepare_base
	fi
	G_BASE=$(kgit -C "$K_TREE" rev-parse base)
	[ -z "$G_ON_SERIES" ] || G_BASE=$(kgit -C "$K_TREE" rev-parse prepared)
}

need_known_base()
{
	[ -n "$(kernel_field "$1" 2)" ] || [ -d "$1" ] ||
		die "--base '$1' is neither a known kernel ($(kernel_names | paste -sd' ')) nor the folder of a kernel tree" \
			"a revision needs the tree that has it: --tree DIR"
}

# Our own series, as it stands in the prepared tree.
take_own()
{
	G_KIND=own
	G_TITLE="our own series"
	G_HEAD=$(kgit -C "$K_TREE" rev-parse HEAD)
	tree_unchanged || die "commit that, or take it back by 'refresh'"
	write_mails "$K_TREE" "$G_BASE..$G_HEAD"
}

# tree_unchanged: whether what is built in the prepared tree is the series that is judged
tree_unchanged()
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
	mv "$SCRATCH"/mails/* "$G_MAILS"
	apply_mails
}

# split_mails: the patches of SERIES in order, to SCRATCH/mails; a cover letter and
# answers are none.
split_mails()
{
	local raw=$SCRATCH/raw file mail n=0
	rm -rf "$raw"
	mkdir -p "$raw" "$SCRATCH/mails" "$SCRATCH/covers"
	if [ -d "$SERIES" ]; then
		for file in "$SERIES"/*; do
			case "$file" in
			*.patch|*.mbox|*.eml|*.mbx|*.cover) ;;
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
	# die() in a pipeline ends only its part
	find "$raw" -type f | sort | patches_in_order > "$SCRATCH/order" || leave "$E_USAGE"
	while read -r mail; do
		n=$((n + 1))
		cp "$mail" "$SCRATCH/mails/$(printf %04d "$n")"
	done < "$SCRATCH/order"
	[ "$n" -gt 0 ] || die "--series '$SERIES' holds no patch in mail format, as 'git format-patch' writes them"
	find "$raw" -type f | sort | while read -r mail; do
		! is_cover_letter "$mail" || cp "$mail" "$SCRATCH/covers/$(basename "$(dirname "$mail")").${mail##*/}"
	done
}

# full_subject MAIL: with the [PATCH n/m]
full_subject()
{
	kgit mailinfo -k /dev/null /dev/null < "$1" | sed -n 's/^Subject: //p'
}

# What a subject begins with: [PATCH v2 03/12], [3/12]. Sets number and total.
is_numbered()
{
	[[ "$1" =~ ^\[([^]]*[^0-9])?([0-9]+)/([0-9]+)\] ]] || return
	number=$((10#${BASH_REMATCH[2]}))
	total=$((10#${BASH_REMATCH[3]}))
}

# is_cover_letter MAIL: number 0 of its series; an answer is none. A diff in it is what
# has changed since the last version (format-patch --interdiff).
is_cover_letter()
{
	local number total
	is_numbered "$(full_subject "$1")" && [ "$number" -eq 0 ]
}

# is_patch MAIL: whether it holds a diff
is_patch()
{
	grep -qE '^(diff --git |--- )' "$1" && grep -qE '^@@ |^(new|deleted) (file )?mode |^(rename|copy) from |^GIT binary patch' "$1"
}

# decode_mail MAIL: as format-patch writes it, if it was encoded on its way: the
# checks read mails as text
decode_mail()
{
	local dir=$SCRATCH/decode
	sed '/^\r\?$/q' "$1" | grep -qiE '^Content-(Transfer-Encoding:[[:space:]]*(base64|quoted-printable)|Type:[[:space:]]*multipart/)' || return 0
	mkdir -p "$dir"
	kgit mailinfo -k --encoding=UTF-8 "$dir/msg" "$dir/diff" < "$1" > "$dir/info" || return 0
	{
		echo 'From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001'
		printf 'From: "%s" <%s>\n' "$(sed -n 's/^Author: //p' "$dir/info")" "$(sed -n 's/^Email: //p' "$dir/info")"
		sed -n '/^\(Date\|Subject\): /p' "$dir/info"
		sed '/^\r\?$/q' "$1" | tr -d '\r' | grep_any -iE '^(Gate-[a-z-]+|Message-ID):'
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
		is_patch "$mail" || continue
		subject=$(full_subject "$mail")
		case "$subject" in
		[Rr]e:*) continue ;;
		esac
		if ! is_numbered "$subject"; then
			number=0
			unnumbered=1
		elif [ "$number" -eq 0 ]; then
			continue
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
	rm -f "$K_TREE/.git/refs/gate/head.lock"
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

# carries_our_options: whether all of Kconfig.fragment are there, which our own tests need
carries_our_options()
{
	local symbol
	while read -r symbol; do
		kgit -C "$K_TREE" grep -q -E "^config $symbol\$" "$G_HEAD" -- '*Kconfig*' || return
	done < <(sed -n 's/^CONFIG_\(.*\)=y$/\1/p' "$ROOT/Kconfig.fragment")
}
