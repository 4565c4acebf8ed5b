# SPDX-License-Identifier: GPL-2.0
#
# Tables of one or two profiles, the dearest function first.
#
# For each profile a file "sums" (WORKLOAD:CONFIG WRITTEN FAULTS TOTAL CLOCK OFF,
# all of several repetitions together), then for each a file "functions"
# (COUNT NAME a line). By groups of functions if GROUPS names their file. What
# is below LEAST per cent in all profiles is one line.

function read_groups(	line, tab)
{
	while ((getline line < GROUPS) > 0) {
		if (line ~ /^(#|[ \t]*$)/)
			continue
		tab = index(line, "\t")
		group[++groups] = substr(line, 1, tab - 1)
		pattern[groups] = substr(line, tab)
		sub(/^\t+/, "", pattern[groups])
		pattern[groups] = "^(" pattern[groups] ")$"
	}
	close(GROUPS)
}

function group_of(name,		i)
{
	for (i = 1; i <= groups; i++)
		if (name ~ pattern[i])
			return group[i]
	return "other"
}

function add(p, name, n)
{
	if (!(name in weight)) {
		names[++rows] = name
		weight[name] = 0
	}
	count[p, name] += n
	if (count[p, name] / written[p] > weight[name])
		weight[name] = count[p, name] / written[p]
}

function is_small(name,		p)
{
	for (p = 1; p <= profiles; p++)
		if (count[p, name] * 100 >= LEAST * total[p])
			return 0
	return 1
}

function sort_rows(	i, j, name)
{
	for (i = 2; i <= rows; i++) {
		name = names[i]
		for (j = i - 1; j && weight[names[j]] < weight[name]; j--)
			names[j + 1] = names[j]
		names[j + 1] = name
	}
}

function heading(	p)
{
	if (profiles == 1)
		printf "%10s %10s %8s %8s", "per page", "per fault", "share", "sum"
	for (p = 1; p <= profiles && profiles > 1; p++)
		printf "%21s", spec[p]
	if (profiles > 1)
		printf " %11s", "difference"
	printf "  %s\n", GROUPS ? "part" : "function"
}

function row(name,	p)
{
	for (p = 1; p <= profiles; p++) {
		printf "%*.2f", (profiles > 1 ? 12 : 10), count[p, name] / written[p]
		if (profiles == 1 && faults[p])
			printf " %10.2f", count[p, name] / faults[p]
		else if (profiles == 1)
			printf " %10s", "-"
		printf " %7.2f%%", count[p, name] * 100 / total[p]
	}
	if (profiles == 1) {
		sum += count[1, name]
		if (name in below)
			printf " %8s", ""
		else
			printf " %7.2f%%", sum * 100 / total[1]
	} else {
		printf " %+11.2f", count[2, name] / written[2] - count[1, name] / written[1]
	}
	printf "  %s\n", name
}

BEGIN {
	if (GROUPS)
		read_groups()
}

FNR == 1 { file++ }

NF == 6 {
	profiles++
	spec[profiles] = $1
	written[profiles] = $2
	faults[profiles] = $3
	total[profiles] = $4
	next
}

{
	p = file - profiles
	add(p, GROUPS ? group_of($2) : $2, $1)
	count[p, "total"] += $1
	if (GROUPS && group_of($2) != "page copy")
		count[p, "total without the page copy"] += $1
}

END {
	below["total"] = below["total without the page copy"] = 1
	sort_rows()
	heading()
	for (i = 1; i <= rows; i++) {
		if (!is_small(names[i])) {
			row(names[i])
			continue
		}
		small++
		for (p = 1; p <= profiles; p++)
			count[p, "rest"] += count[p, names[i]]
	}
	if (small) {
		rest = small " others"
		for (p = 1; p <= profiles; p++)
			count[p, rest] = count[p, "rest"]
		row(rest)
	}
	row("total")
	if (GROUPS)
		row("total without the page copy")
}
