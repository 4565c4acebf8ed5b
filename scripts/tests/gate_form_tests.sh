# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the gate's checks of form: what they find, and what they leave alone.

# form_tree: a repository with one commit on a base, in $K_TREE
form_tree()
{
	K_TREE=$SCRATCH/form.tree G_BASE=HEAD~1 G_HEAD=HEAD FINDINGS=$SCRATCH/form.findings
	rm -rf "$K_TREE"
	mkdir -p "$K_TREE/mm" "$K_TREE/Documentation"
	kgit -C "$K_TREE" init -q
	printf 'config MMU\n\tdef_bool y\n\nconfig OLD\n\tbool "old"\n\tdefault n\n' > "$K_TREE/mm/Kconfig"
	printf 'int a;\n' > "$K_TREE/mm/memory.c"
	printf 'x\n' > "$K_TREE/Documentation/x"
	kgit -C "$K_TREE" add -A
	kgit -C "$K_TREE" commit -q -m base
}

# form_check NAME: runs it on the last commit; prints its findings but for notes
form_check()
{
	local SCRATCH=$SCRATCH/form LEAVING='' G_MAILS=none
	mkdir -p "$SCRATCH"
	: > "$FINDINGS"
	(
		trap - EXIT
		# shellcheck source=/dev/null
		. "$ROOT/scripts/gate/check-api.sh"
		# shellcheck source=/dev/null
		. "$ROOT/scripts/gate/checks/$1"
		check
	)
	sed -n '/^note/!p' "$FINDINGS"
}

# kconfig_says LINES EXPECTED: LINES are appended to mm/Kconfig
kconfig_says()
{
	form_tree
	printf '%b' "$1" >> "$K_TREE/mm/Kconfig"
	printf '#ifdef CONFIG_RIVAL\n#ifdef CONFIG_PART\n' >> "$K_TREE/mm/memory.c"
	kgit -C "$K_TREE" commit -q -a -m more
	want_same "$1: $(form_check form-kconfig | paste -sd'|')" "$1: $2"
}

test_form_kconfig()
{
	local rival='config RIVAL\n\tbool "rival"\n\thelp\n\t  Why.\n' on=$'fail\tRIVAL is not off by default: '
	kconfig_says "$rival" '' && kconfig_says "$rival\tdefault n\n" '' && kconfig_says "$rival\tdefault KUNIT_ALL_TESTS\n" '' &&
	kconfig_says "$rival\tdefault y\n" "${on}default y" && kconfig_says "$rival\tdefault MMU\n" "${on}default MMU" &&
	kconfig_says "$rival\tdefault !EXPERT\n" "${on}default !EXPERT" && kconfig_says "$rival\tdef_bool MMU\n" "${on}def_bool MMU" &&
	kconfig_says "  ${rival//\\t/\\t  }\t  default y\n" "${on}default y" || return
	# a part of what is off is off
	kconfig_says "${rival}config PART\n\tbool \"part\"\n\tdepends on RIVAL\n\tdefault y\n\thelp\n\t  Why.\n" '' || return
	# an option that was there
	kconfig_says "\tselect MMU\n" $'warn\tan option that was there gets \'select MMU\'' || return
	form_tree
	printf 'menuconfig MENU\n\tbool "menu"\n\thelp\n\t  Why.\nif MENU\nendif\n' >> "$K_TREE/mm/Kconfig"
	kgit -C "$K_TREE" commit -q -a -m more
	want_same "$(form_check form-kconfig)" '' && want_same "$(form_check form-documented)" \
		$'warn\toption CONFIG_MENU is mentioned only in its help text, nowhere in Documentation'
}

# message_says CHECK BODY: its findings about a commit with that message
message_says()
{
	form_tree
	kgit -C "$K_TREE" commit -q --allow-empty -m 'mm: change something' -m "$(printf '%b' "$2")"
	form_check "$1" | paste -sd'|'
}

# What is quoted may be long, and another patch may be called what it likes.
test_form_messages()
{
	local long='This line of the message goes on and on, and has more than seventy-five characters.'
	message_says form-message "$long" | grep -q 'has [0-9]* characters' || complain "a long line is allowed" || return
	want_same "$(message_says form-message "Seen:\n\n WARNING: CPU: 0\n$long\n[    1.000000] $long")" '' &&
	want_same "$(message_says form-message "Seen:\n\n[   45.123456] WARNING: CPU: 0\n$long")" '' || return
	message_says form-numbers 'This makes it faster.' | grep -q "^fail.*claims 'faster'" || complain "no number is wanted" || return
	want_same "$(message_says form-numbers 'Broken by a patch.\n\nFixes: f822a9a81a31 ("mm: optimize mremap() by PTE batching")')" \
		$'skip\tno patch claims to make anything faster'
}

# A mail is a patch, too, if it changes a mode, copies a file, or is binary.
test_form_is_patch()
{
	local line mail=$SCRATCH/is.patch
	for line in '@@ -1 +1 @@' 'old mode 100644\nnew mode 100755' 'rename from a' 'copy from a' 'GIT binary patch' 'deleted file mode 100644'; do
		printf 'Subject: x\n\n---\ndiff --git a/x b/x\n%b\n' "$line" > "$mail"
		is_patch "$mail" || complain "'$line' is no patch" || return
	done
	printf 'Subject: x\n\nThe diff was "diff --git a/x".\n' > "$mail"
	! is_patch "$mail" || complain "text is a patch"
}

# What would keep a check quiet is shown to who reviews.
test_form_silenced()
{
	local line
	for line in 'KCSAN_SANITIZE_memory.o := n' 'CFLAGS_memory.o += -w' 'ccflags-y += -Wno-unused'; do
		form_tree
		echo "$line" > "$K_TREE/mm/Makefile"
		kgit -C "$K_TREE" add -A
		kgit -C "$K_TREE" commit -q -m more
		want_same "$(form_check form-silenced)" $'warn\tlook why this is needed: '"$line" || return
	done
	form_tree
	echo 'int console_loglevel_of(void) { return x - w; }' >> "$K_TREE/mm/memory.c"
	kgit -C "$K_TREE" commit -q -a -m more
	want_same "$(form_check form-silenced)" ''
}
