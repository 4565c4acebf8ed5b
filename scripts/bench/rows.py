#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Rows of results: collected, shown, recorded and compared.

The first positional argument is the command; see main(). For the format of the
files see rowfile.py.

Exit status: 0 good, 1 a comparison failed, 2 unusable input, with a message.
"""

import argparse
import sys

from rowfile import (BUILT_BY, COUNTS, IDENTITY, TIMES, UNITS, BadInput, by_identity, check_rows,
                     groups, half_spread, key_text, measured, name, parse, ratio_to_off, read_rows,
                     read_text, run, table_lines, whole, write_rows)
from verdict import compare, repeat


def collect(args):
    """Rows from a guest's output: each line that is a JSON object."""
    known = dict(args.set)
    rows = []
    for number, line in enumerate(read_text(args.log).splitlines(), 1):
        if line.startswith("{"):
            row = parse(line, f"{args.log}: line {number}")
            if isinstance(row, dict):
                row = {**known, **row, **known}
            rows.append(row)
    write_rows(check_rows(rows, args.log), sys.stdout)
    return 0


def record(args):
    """Only the keys that a comparison needs, for fixtures/results."""
    keys = IDENTITY + COUNTS[1:] + TIMES + BUILT_BY
    write_rows([{key: row[key] for key in keys if key in row}
                for row in measured(read_rows(args.file))], sys.stdout)
    return 0


def results(args):
    """For the harness: each row was measured, or skipped for a reason."""
    for row in read_rows(args.file):
        skipped = row.get("skipped")
        print("skip" if skipped else "pass", name(row), skipped or "", sep="\t")
    return 0


def show(args):
    rows = read_rows(args.file)
    table = by_identity(rows)
    for (kernel, arch, mode), boot in groups(rows, "kernel", "arch", "mode"):
        print(f"{kernel} {arch}, {mode}: {UNITS[mode]} per written page")
        if mode == "wall":
            print("Absolute values are valid for this boot only: compare the ratios.")
        for (workload, pages), some in groups(boot, "workload", "pages"):
            print(f"\n{workload}, {pages} pages")
            some_measured = measured(some)
            for line in table_lines(SHOWN, [shown_row(row, table) for row in some_measured]):
                print("  " + line)
            for row in some:
                if "skipped" in row:
                    print(f"  {row['config']}: skipped: {row['skipped']}")
        print()
    return 0


SHOWN = ("config", "median", "spread", "of off", "overhead", "faults", "copied", "ahead",
         "wasted", "reused", "reused ahead", "p50", "p99", "max")


def shown_row(row, table):
    return (row["config"], whole(row["per_page_median"]), f"±{half_spread(row):.1f}%",
            ratio_to_off(row, table), *(whole(row[key]) for key in (
                "overhead_median", "faults", "copied", "copied_ahead", "wasted", "reused", "reused_ahead",
                "p50", "p99", "max")))


# The configurations and workloads of the table in a README
README_CONFIGS = {"off": "off", "fixed-1": "1 ahead", "fixed-15": "15 ahead",
                  "adaptive": "adaptive", "populate-write": "MADV_POPULATE_WRITE"}
README_WORKLOADS = {
    "seq": "sequential", "random": "random, every page once", "reverse": "backward",
    "stride-4": "every 4th page", "stride-16": "every 16th page",
    "sparse-5": "5 % of the pages, at random", "single": "a lone write",
    "child-gone": "child has exited", "multi-child-16": "16 children",
}
# These also show the overhead, in brackets.
README_OVERHEAD = ("seq", "random")


def markdown(args):
    """Recorded rows as a table in Markdown."""
    table = {(row["workload"], row["config"]): row for row in measured(read_rows(args.file))}
    have = [config for config in README_CONFIGS if any(key[1] == config for key in table)]
    print("| | " + " | ".join(README_CONFIGS[config] for config in have) + " |")
    print("|---" * (len(have) + 1) + "|")
    for workload, text in README_WORKLOADS.items():
        cells = []
        for config in have:
            row = table.get((workload, config))
            if row is None:
                raise BadInput(f"{args.file}: no row {workload} {config}")
            cell = whole(row["per_page_median"])
            if len(cell) > 4:
                cell = f"{cell[:-3]} {cell[-3:]}"
            if workload in README_OVERHEAD and row["overhead_median"] is not None:
                cell += f" ({row['overhead_median']:.0f})"
            # populates all of the memory for a single write
            lone = workload == "single" and config == "populate-write"
            cells.append("\u2013" if lone else cell)
        print(f"| {text} | " + " | ".join(cells) + " |")
    return 0


def per_cent(text):
    value = float(text)
    if not 0 <= value < 1000:
        raise ValueError
    return value


# Name, function, positional arguments, help
COMMANDS = (
    ("collect", collect, ("log",), "an array of rows from a guest's output"),
    ("show", show, ("file",), "tables, one for each workload"),
    ("record", record, ("file",), "the rows, with only the keys that a comparison needs"),
    ("results", results, ("file",), "a line for each row, for the harness"),
    ("markdown", markdown, ("file",), "recorded rows as a table for a README"),
    ("compare", compare, ("old", "new"), "a verdict for each row"),
    ("repeat", repeat, ("old", "new"), "are two boots the same?"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for command, function, arguments, text in COMMANDS:
        command = commands.add_parser(command, help=text)
        for argument in arguments:
            command.add_argument(argument)
        command.set_defaults(run=function)
    commands.choices["collect"].add_argument("set", nargs="*", metavar="KEY=TEXT", type=key_text,
                                             help="set in every row")
    commands.choices["compare"].add_argument("--tolerance", type=per_cent)
    commands.choices["compare"].add_argument("--absolute", action="store_true",
                                             help="one compiler built both, whatever their release")
    commands.choices["repeat"].add_argument("--limit", type=per_cent, default=0.2)
    for command in (commands.choices["compare"], commands.choices["repeat"]):
        command.add_argument("--results", help="append a line for each row to this file")
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    run(main)
