# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the mails into which split_tests.py divides the real tests.

# split_mails SOURCE: the mails of the real tests in SOURCE, in $SCRATCH/mails
split_mails()
{
	rm -rf "$SCRATCH/mails"
	mkdir "$SCRATCH/mails"
	files_of_tests "$1" | "$PYTHON" "$ROOT/scripts/lib/split_tests.py" \
		"$ROOT/$1" . "$SCRATCH/mails" || complain "$1 cannot be split"
}

# The real kselftests: with each mail, make knows how to build all that the Makefile names.
test_mails_build()
{
	local part all=$SCRATCH/all/cow
	split_mails selftests/cow || return
	mkdir -p "$all"
	# In place of the kernel's
	cat > "$SCRATCH/all/lib.mk" <<-'END'
	TEST_GEN_PROGS := $(addprefix $(OUTPUT)/,$(TEST_GEN_PROGS))
	TEST_GEN_PROGS_EXTENDED := $(addprefix $(OUTPUT)/,$(TEST_GEN_PROGS_EXTENDED))
	all: $(TEST_GEN_PROGS) $(TEST_GEN_PROGS_EXTENDED) $(addprefix $(OUTPUT)/,$(TEST_GEN_FILES))
	$(OUTPUT)/%: %.c; $(LINK.c) $^ -o $@
	END
	for part in "$SCRATCH"/mails/*; do
		cp -r "$part/tree/." "$all"
		[ -f "$all/Makefile" ] || continue
		make -n -C "$all" OUTPUT=out > "$SCRATCH/make" 2>&1 ||
			complain "$(head -n 1 "$part/message"): $(grep '\*\*\*' "$SCRATCH/make")" || return
	done
}

# The real tests: no mail of theirs is over 100 kB.
test_mail_sizes()
{
	local source part size
	for source in kunit selftests/cow; do
		split_mails "$source" || return
		for part in "$SCRATCH"/mails/*; do
			# a header, the message, and one character more per line
			size=$(find "$part" -type f -exec cat {} + | sed 's/^/+/' | wc -c)
			[ $((size + 2000)) -le 100000 ] ||
				complain "$(head -n 1 "$part/message"): $size bytes" || return
		done
	done
}
