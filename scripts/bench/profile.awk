# SPDX-License-Identifier: GPL-2.0
#
# What cow_profile prints (see its usage) as one of these reports: table, json,
# sums (workload, MB, difference in percent), compare (of two files), and for
# the chart titles, labels and plot.

BEGIN {
	FS = "\t"
	if (report == "json")
		printf "["
}

function number(v,	s)
{
	s = sprintf("%.0f", v)
	if (unit == "instructions" || v >= 100 || v <= -100 || s == "0")
		return s
	return sprintf("%.1f", v)
}

# 12345678 as 12 345 678
function grouped(v,	s, sign, out)
{
	s = number(v)
	sign = ""
	if (substr(s, 1, 1) == "-") {
		sign = "-"
		s = substr(s, 2)
	}
	out = ""
	while (length(s) > 3 && s !~ /\./) {
		out = " " substr(s, length(s) - 2) out
		s = substr(s, 1, length(s) - 3)
	}
	return sign s out
}

function share(v)
{
	return total > 0 ? 100 * v / total : 0
}

function memory(mb)
{
	return mb == 0 ? "smallest process" : mb " MB written to"
}

function title()
{
	if (what == "fork")
		return "fork, " memory(mb) ": " count " forks"
	return "copy-on-write fault: " count " writes, " sprintf("%g", each) " faults for each"
}

function short_title()
{
	if (what == "fork")
		return (mb == 0 ? "smallest process" : mb " MB") ": " grouped(total)
	return "4 KiB page: " grouped(total)
}

function text(s)
{
	gsub(/\\/, "\\\\", s)
	gsub(/"/, "\\\"", s)
	return "\"" s "\""
}

function json_row(name, functions, traced, calls, mean, var, part)
{
	printf "%s\n  {\"kernel\": %s, \"arch\": %s, \"release\": %s, \"mode\": %s, \"unit\": %s, \"workload\": %s, \"mb\": %d, \"count\": %d, \"section\": %s, \"functions\": %s, \"traced\": %s, \"calls\": %s, \"mean\": %s, \"variance\": %s, \"share\": %s}",
		rows_out++ ? "," : "", text(kernel), text(arch), text(release), text(mode), text(unit),
		text(what), mb, count, text(name), text(functions), text(traced), calls, mean, var, part
}

function print_json(	i)
{
	for (i = 1; i <= n; i++)
		if (absent[i])
			json_row(name[i], functions[i], "", "null", "null", "null", "null")
		else
			json_row(name[i], functions[i], traced[i], calls[i], mean[i], var[i],
				sprintf("%.3f", share(mean[i])))
	json_row("sum of the sections", "", "", tracer_calls, total, total_var, "100")
	json_row("untraced", "", "", "0", untraced, untraced_var, sprintf("%.3f", share(untraced)))
}

function print_table(	i)
{
	print ""
	print title() ", " unit
	printf "%-23s %6s %12s %14s %7s  %s\n", "section", "calls", "mean", "variance", "share", "functions"
	for (i = 1; i <= n; i++) {
		if (absent[i]) {
			printf "%-23s %6s %12s %14s %7s  %s\n", name[i], "-", "-", "-", "-",
				functions[i] ": not traceable (inlined)"
			continue
		}
		printf "%-23s %6s %12s %14s %5.1f %%  %s\n", name[i], sprintf("%.4g", calls[i]),
			grouped(mean[i]), grouped(var[i]), share(mean[i]), functions[i]
	}
	printf "%-23s %6s %12s %14s %5.1f %%\n", "sum", "", grouped(total), grouped(total_var), 100
	printf "%-23s %6s %12s %14s\n", "untraced", "", grouped(untraced), grouped(untraced_var)
	printf "%-23s %6s %11s %%  (before the traced run %s, after it %s)\n", "difference", "",
		sprintf("%.2f", difference()), grouped(first), grouped(second)
	printf "Taken off for tracing: %.4g calls of %s%s. Left out, for an interrupt: %s %%; untraced %s %%.\n",
		tracer_calls, grouped(tracer_cost),
		what == "fork" ? ", and " grouped(tracer_idle) " for a tracer that is on" : "",
		out_traced, out_untraced
}

function difference()
{
	return untraced > 0 ? 100 * (total - untraced) / untraced : 100
}

function print_plot(	i, text_of)
{
	if (blocks++)
		printf "\n\n"
	for (i = 1; i <= n; i++) {
		text_of = grouped(mean[i]) " (" sprintf("%.1f", share(mean[i])) " %)"
		printf "%d\t%s\t\"%s\"\n", i, (mean[i] > 0 ? mean[i] : 0),
			(absent[i] ? "inlined" : text_of)
	}
}

# For a panel: its title, the longest bar, the step of the axis
function print_panel(	i, largest, step)
{
	largest = 1
	for (i = 1; i <= n; i++)
		if (mean[i] > largest)
			largest = mean[i]
	step = 1
	while (step * 10 <= largest)
		step *= 10
	if (largest / step > 4)
		step *= 2
	printf "%s\t%s\t%s\n", short_title(), largest, step
}

# The same section of two boots: within the limit, or a tenth of it of the total
function compare(	i, key, d, worst, worst_name, bad)
{
	key = what SUBSEP mb
	if (NR == FNR) {
		for (i = 1; i <= n; i++)
			old[key, name[i]] = mean[i]
		old[key, "total"] = total
		return
	}
	worst = -1
	bad = ""
	for (i = 0; i <= n; i++) {
		d = i ? mean[i] - old[key, name[i]] : total - old[key, "total"]
		if (i && (absent[i] || name[i] == "interrupts"))
			continue
		if (d < 0)
			d = -d
		if (d / total > worst) {
			worst = d / total
			worst_name = i ? name[i] : "total"
		}
		if (d > limit / 100 * (i ? mean[i] : total) && d > limit / 1000 * total)
			bad = bad (bad == "" ? "" : ", ") sprintf("%s %.0f and %.0f", i ? name[i] : "total",
				i ? old[key, name[i]] : old[key, "total"], i ? mean[i] : total)
	}
	d = total - old[key, "total"]
	if (bad != "")
		printf "%s\t%s\tfail\tthe boots do not agree within %s %%: %s\n", what, mb, limit, bad
	else
		printf "%s\t%s\tpass\tthe total differs by %.2f %%, a section by at most %.2f %% of it (%s)\n",
			what, mb, 100 * (d < 0 ? -d : d) / total, 100 * worst, worst_name
}

$1 == "what" {
	n = 0
	what = $2
	mb = $3
	count = $4
	each = $5
}

$1 == "left out" {
	out_traced = $2
	out_untraced = $3
}

$1 == "row" {
	n++
	name[n] = $2
	functions[n] = $3
	calls[n] = $4
	mean[n] = $5
	var[n] = $6
	traced[n] = $7
	absent[n] = 0
}

$1 == "absent" {
	n++
	name[n] = $2
	functions[n] = $3
	mean[n] = var[n] = 0
	absent[n] = 1
}

$1 == "total" {
	total = $2
	total_var = $3
}

$1 == "untraced" {
	untraced = $2
	untraced_var = $3
	first = $4
	second = $5
}

# The last line of a profile
$1 == "tracer" {
	tracer_calls = $2
	tracer_cost = $3
	tracer_idle = $4
	if (report == "table")
		print_table()
	else if (report == "json")
		print_json()
	else if (report == "sums")
		printf "%s %s %.2f\n", what, mb, difference()
	else if (report == "compare")
		compare()
	else if (report == "plot")
		print_plot()
	else if (report == "titles")
		print_panel()
	else if (report == "labels" && !blocks++)
		for (i = 1; i <= n; i++)
			print name[i]
}

END {
	if (report == "json")
		print "\n]"
}
