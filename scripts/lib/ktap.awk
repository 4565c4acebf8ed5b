# SPDX-License-Identifier: GPL-2.0
#
# Reads KTAP, nested by "# " (kselftest's runner) or by four spaces (KUnit), and
# prints one line for each individual test: pass, fail or skip, a tab, its name,
# a tab, a message. A test that has subtests counts as itself only if it failed
# though none of them did, or if it ran fewer of them than it had planned.

function add(d, status, name, message) {
	gsub(/\t/, " ", name)
	gsub(/\t/, " ", message)
	n = ++count[d]
	rec_status[d, n] = status
	rec_name[d, n] = name
	rec_message[d, n] = message
}

# Moves the subtests of NAME from depth d + 1 to d; counts the failed ones.
function adopt(d, name,		i, failed) {
	failed = 0
	for (i = 1; i <= count[d + 1]; i++) {
		add(d, rec_status[d + 1, i], name ":" rec_name[d + 1, i], rec_message[d + 1, i])
		if (rec_status[d + 1, i] == "fail")
			failed++
	}
	return failed
}

function forget(d) {
	count[d] = seen[d] = 0
	delete plan[d]
	delete title[d]
}

function result(d, ok, name, directive,		status, failed, short) {
	sub(/^- /, "", name)
	sub(/^selftests: ([^ ]*: )?/, "", name)
	sub(/[ \t]+$/, "", name)
	status = ok ? "pass" : "fail"
	if (directive ~ /^SKIP/) {
		status = "skip"
		sub(/^SKIP[ :]*/, "", directive)
	} else if (directive ~ /^XFAIL/)
		status = "pass"
	seen[d]++
	if (name == "" && title[d + 1] != "")
		name = title[d + 1]
	if (count[d + 1] > 0) {
		short = (d + 1) in plan && plan[d + 1] > seen[d + 1]
		if (short && directive == "")
			directive = "ran " seen[d + 1] " of " plan[d + 1] " planned tests"
		failed = adopt(d, name)
		if ((status == "fail" && !failed) || short)
			add(d, "fail", name, directive != "" ? directive : diag)
	} else if (status == "pass" && (d + 1) in plan && plan[d + 1] == 0) {
		# a filter left none of its subtests
	} else if (status != "skip" && (d + 1) in plan && plan[d + 1] > 0)
		add(d, "fail", name, "ran none of " plan[d + 1] " planned tests")
	else
		add(d, status, name, status == "pass" ? "" : (directive != "" ? directive : diag))
	for (i = d + 1; i <= 9; i++)
		forget(i)
	diag = ""
	complained = 0
}

{
	line = $0
	sub(/\r$/, "", line)
	sub(/^<[0-9]+>/, "", line)
	sub(/^\[ *[0-9]+\.[0-9]+\] ?/, "", line)
	sub(/^\[ *[TC][0-9]+\] ?/, "", line)
	depth = 0
	while (1) {
		if (line ~ /^# /)
			line = substr(line, 3)
		else if (line ~ /^    /)
			line = substr(line, 5)
		else
			break
		depth++
	}
	if (depth > 8)
		next
}

line ~ /^1\.\.[0-9]+/ {
	match(line, /^1\.\.[0-9]+/)
	plan[depth] = substr(line, 4, RLENGTH - 3) + 0
	seen[depth] = 0
	next
}

depth > 0 && line ~ /^(Subtest: |selftests: )/ {
	name = line
	sub(/^(Subtest: |selftests: ([^ ]*: )?)/, "", name)
	title[line ~ /^Subtest/ ? depth - 1 : depth] = name
	next
}

line ~ /^(not )?ok [0-9]+( |$)/ {
	ok = line !~ /^not/
	name = line
	sub(/^(not )?ok [0-9]+ ?/, "", name)
	directive = ""
	if (match(name, /(^| )# */)) {
		directive = substr(name, RSTART + RLENGTH)
		name = substr(name, 1, RSTART - 1)
	}
	result(depth, ok, name, directive)
	next
}

# The first complaint since the last result says most.
depth > 0 && line != "" && !complained &&
line !~ /^(Starting|PASSED|FAILED|Totals|TAP version|KTAP version|timeout set|module: |[# ]*(RUN|OK|FAIL) )/ {
	diag = line
	sub(/^[# ]+/, "", diag)
	complained = line ~ /(Expected|EXPECTATION|ASSERTION)/
}

# What never came to its end: a guest that died, a log that was cut off.
END {
	for (d = 8; d >= 1; d--)
		if (count[d] > 0 || title[d] != "") {
			name = title[d] != "" ? title[d] : "unfinished"
			adopt(d - 1, name)
			add(d - 1, "fail", name, "did not come to its end")
			forget(d)
		}
	if (0 in plan && plan[0] > seen[0])
		add(0, "fail", "plan", "ran " seen[0] + 0 " of " plan[0] " planned tests")
	for (i = 1; i <= count[0]; i++)
		print rec_status[0, i] "\t" rec_name[0, i] "\t" rec_message[0, i]
}
