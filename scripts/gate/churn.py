#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Which patches of a series remove lines that an earlier patch of it has added.

Prints a line for each such pair: the number of lines, how many the earlier patch has
added in all, and both commits. What a patch only moves counts as removed.
"""

import argparse
import collections
import re
import subprocess

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? ")


def git(tree, *args):
    return subprocess.run(["git", "-C", tree, *args], check=True, text=True,
                          capture_output=True, errors="replace").stdout


def removed_ranges(tree, commit):
    """(file, first line, number of lines) of all that a commit removes"""
    path = None
    for line in git(tree, "show", "--format=", "--no-renames", "-U0", commit).splitlines():
        if line.startswith("--- "):
            path = line[6:] if line.startswith("--- a/") else None
        match = HUNK.match(line)
        if match and path:
            number = int(match[2]) if match[2] is not None else 1
            if number:
                yield path, int(match[1]), number


def authors(tree, commit, path, first, number):
    """The commit that has added each of these lines, as they were before a commit"""
    blame = git(tree, "blame", "-s", "-l", "--abbrev=40", "-L", f"{first},+{number}",
                f"{commit}~", "--", path)
    return [line.lstrip("^").split()[0][:40] for line in blame.splitlines()]


def added_lines(tree, commit):
    rows = git(tree, "show", "--format=", "--no-renames", "--numstat", commit).split("\n")
    return sum(int(row.split("\t")[0]) for row in rows if row and row[0].isdigit())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree")
    parser.add_argument("base")
    parser.add_argument("head")
    args = parser.parse_args()
    commits = git(args.tree, "rev-list", "--reverse", f"{args.base}..{args.head}").split()
    pairs = collections.Counter()
    for commit in commits:
        for path, first, number in removed_ranges(args.tree, commit):
            for author in authors(args.tree, commit, path, first, number):
                if author in commits:
                    pairs[author, commit] += 1
    for (author, commit), lines in pairs.most_common():
        print(lines, added_lines(args.tree, author), author, commit)


if __name__ == "__main__":
    main()
