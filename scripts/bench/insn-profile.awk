# SPDX-License-Identifier: GPL-2.0
#
# From a kernel's System.map and the result of fixtures/plugin/insn_profile.c:
# one line for each function, "INSTRUCTIONS NAME", and "N user" for user space.
# Both files must be sorted by address, which System.map is: 16 hexadecimal
# digits that compare as text, since awk's numbers have not 64 bits.

# How good a name is, of several for one address. Bounds of sections and what
# objtool and kCFI add are not functions; a global name says more than a local.
function rank(type, name)
{
	if (name ~ /^__(pfx|cfi)_/ || name ~ /(^_?_?s|^_?_?e|_)(text|start|end|begin)$/)
		return 0
	return (type ~ /[TW]/ ? 4 : 2) + (name !~ /^__/)
}

FNR == NR {
	if ($2 !~ /^[tTwW]$/)
		next
	if (!n || $1 != address[n]) {
		address[++n] = $1 ""
		best = -1
	}
	if (rank($2, $3) > best) {
		best = rank($2, $3)
		name[n] = $3
	}
	next
}

$1 == "parts" || $1 == "total" { next }

$1 == "user" {
	count["user"] += $2
	next
}

{
	while (i < n && address[i + 1] <= $1 "")
		i++
	count[i ? name[i] : "unknown"] += $2
}

END {
	for (symbol in count)
		printf "%d %s\n", count[symbol], symbol
}
