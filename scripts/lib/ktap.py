#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reads KTAP, nested by "# " (kselftest's runner) or by four spaces (KUnit).

usage: ktap.py FILE [PREFIX]

Prints one line for each individual test: pass, fail or skip, a tab, its name with PREFIX,
a tab, a message. A test that has subtests counts as itself only if it failed though none of them
did, or if it ran fewer of them than it had planned. Tests: fixtures/ktap.
"""
import re
import sys

DEEPEST = 8
# What printk and its options put before a line
PRINTK = re.compile(r"(<\d+>)?(\[ *\d+\.\d+\] ?)?(\[ *[TC]\d+\] ?)?")
PLAN = re.compile(r"1\.\.(\d+)(?: *# *SKIP *(.*))?")
TITLE = re.compile(r"(Subtest: |selftests: (?:[^ ]*: )?)(.*)")
RESULT = re.compile(r"(not )?ok \d+(?: |$)(.*)")
DIRECTIVE = re.compile(r"(?:^| )# *")
# What says nothing about why a test failed
CHATTER = re.compile(r"Starting|PASSED|FAILED|Totals|TAP version|KTAP version|timeout set|module: |"
                     r"[# ]*(?:RUN|OK|FAIL) ")
COMPLAINT = re.compile(r"Expected|EXPECTATION|ASSERTION")


class Level:
    """The tests of one depth, until the one that they belong to has its result."""

    def __init__(self):
        self.results = []
        self.seen = 0
        self.plan = None
        self.reason = ""  # why all are skipped
        self.title = ""

    def add(self, status, name, message=""):
        self.results.append((status, name.replace("\t", " "), message.replace("\t", " ")))

    def adopt(self, name, below):
        """Takes the results of its subtests; returns how many of these failed."""
        for status, subtest, message in below.results:
            self.results.append((status, f"{name}:{subtest}", message))
        return sum(status == "fail" for status, _, _ in below.results)


class Parser:
    def __init__(self):
        self.levels = [Level() for _ in range(DEEPEST + 2)]
        self.forget_diagnosis()

    def forget_diagnosis(self):
        self.diagnosis = ""
        self.complained = False

    def line(self, text):
        text = PRINTK.sub("", text.rstrip("\r"), count=1)
        depth = 0
        while text.startswith(("# ", "    ")):
            text = text[2 if text[0] == "#" else 4:]
            depth += 1
        if depth <= DEEPEST:
            self.line_at(depth, text)

    def line_at(self, depth, text):
        level = self.levels[depth]
        plan, title, result = PLAN.match(text), TITLE.match(text), RESULT.match(text)
        if plan:
            level.plan, level.seen, level.reason = int(plan[1]), 0, plan[2] or ""
        elif title and depth:
            # KUnit's is said by the subtests, kselftest's by the test
            self.levels[depth - title[1].startswith("Subtest")].title = title[2]
        elif result:
            self.result(depth, not result[1], result[2])
        elif depth and text and not self.complained and not CHATTER.match(text):
            # The first complaint since the last result says most.
            self.diagnosis = text.lstrip("# ")
            self.complained = bool(COMPLAINT.search(text))

    def result(self, depth, ok, text):
        level, below = self.levels[depth], self.levels[depth + 1]
        name, _, directive = (DIRECTIVE.sub("\0", text, count=1)).partition("\0")
        name = re.sub(r"^(- )?(selftests: ([^ ]*: )?)?", "", name).rstrip() or below.title
        level.seen += 1
        status = "pass" if ok or directive.startswith("XFAIL") else "fail"
        if directive.startswith("SKIP"):
            status, directive = "skip", directive[4:].lstrip(" :") or below.reason
        if below.results:
            self.result_of_subtests(level, below, status, name, directive)
        elif status != "skip" and below.plan:
            level.add("fail", name, f"ran none of {below.plan} planned tests")
        elif status != "pass" or below.plan is None:
            level.add(status, name, "" if status == "pass" else directive or self.diagnosis)
        # else a filter has left none of its subtests
        for i in range(depth + 1, DEEPEST + 2):
            self.levels[i] = Level()
        self.forget_diagnosis()

    def result_of_subtests(self, level, below, status, name, directive):
        short = below.plan is not None and below.plan > below.seen
        if short:
            directive = directive or f"ran {below.seen} of {below.plan} planned tests"
        failed = level.adopt(name, below)
        if short or (status == "fail" and not failed):
            level.add("fail", name, directive or self.diagnosis)

    def end(self):
        """What never came to its end: a guest that died, a log that was cut off."""
        for depth in range(DEEPEST, 0, -1):
            level, above = self.levels[depth], self.levels[depth - 1]
            if level.results or level.title:
                name = level.title or "unfinished"
                above.adopt(name, level)
                above.add("fail", name, "did not come to its end")
        top = self.levels[0]
        if top.plan is not None and top.plan > top.seen:
            top.add("fail", "plan", f"ran {top.seen} of {top.plan} planned tests")
        return top.results


def main():
    parser = Parser()
    with open(sys.argv[1], encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in file:
            parser.line(line.rstrip("\n"))
    prefix = sys.argv[2] if len(sys.argv) > 2 else ""
    for status, name, message in parser.end():
        line = f"{status}\t{prefix}{name}\t{message}\n"
        sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
