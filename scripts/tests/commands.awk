# SPDX-License-Identifier: GPL-2.0
#
# The commands of README.md, one a line and each once: of the blocks of shell, behind
# the prompt of transcripts, in the first column of the table of commands, and
# between backquotes in the text.

function command(text) {
	sub(/ +#.*/, "", text)
	gsub(/\\\|/, "|", text)
	if (text != "" && !seen[text]++)
		print text
}
/^```/ { fenced = !fenced; shell = $0 == "```sh"; next }
fenced && shell { command($0) }
fenced && !shell && /^\$ / { command(substr($0, 3)) }
fenced { next }
/^## / { table = $0 == "## Commands" }
{
	text = $0
	first = table && /^\| `/
	gsub(/\\\|/, "\001", text)
	if (first) {
		split(text, cell, "|")
		text = cell[2]
	}
	while (match(text, /`[^`]+`/)) {
		span = substr(text, RSTART + 1, RLENGTH - 2)
		text = substr(text, RSTART + RLENGTH)
		gsub(/\001/, "\\|", span)
		if (first)
			command("./run_tests.sh " span)
		else if (span ~ /^(\.\/run_tests\.sh|cowstat|cc|man|make|bpftrace|check) /)
			command(span)
	}
}
