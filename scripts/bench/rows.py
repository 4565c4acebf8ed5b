#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Rows of results: read and checked, collected, shown and compared.

A file of results is a JSON array of rows, as cow_bench prints them one a line,
with what the harness adds: on what they were measured. The first positional
argument says what to do; see main().

Exit status: 0 good, 1 a comparison says worse, 2 unusable input, with a message.
"""

import argparse
import json
import math
import sys

IDENTITY = ("kernel", "arch", "mode", "workload", "config", "pages")
TEXTS = ("kernel", "arch", "mode", "workload", "config")
COUNTS = ("pages", "written", "faults", "copied", "copied_ahead", "wasted",
          "reused", "reused_ahead")
TIMES = ("per_page_median", "per_page_min", "per_page_max", "overhead_median",
         "p50", "p99", "max")
# null: neither the kernel nor the program can tell.
MAY_BE_UNKNOWN = ("copied", "copied_ahead", "wasted", "reused", "reused_ahead",
                  "overhead_median")
# Where they are not known to be equal, instructions cannot be compared one to one.
BUILT_BY = ("release", "compiler")

# How far two measurements may lie apart, in per cent.
TOLERANCE = {"icount": 1.0, "wall": 5.0}
# Counts of instructions made by another compiler, related to a row beside them.
TOLERANCE_RELATED = 3.0
MODES = tuple(TOLERANCE)

REFERENCE = "off"
UNITS = {"icount": "instructions", "wall": "ns"}


class BadInput(Exception):
    """Its text says what is wrong with a file."""


def not_json(constant):
    raise ValueError(f"{constant} is not JSON")


def parse(text, where):
    try:
        return json.loads(text, parse_constant=not_json)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON: {error}") from None


def is_number(key, value):
    """The overhead is a difference; what else is measured is never negative."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value) and (value >= 0 or key == "overhead_median"))


def check_row(row, where):
    """A row has every key, of the right type, and an order in its spread."""
    if not isinstance(row, dict):
        raise BadInput(f"{where}: not an object")
    was_skipped = "skipped" in row
    for key in TEXTS + (("pages", "skipped") if was_skipped else COUNTS + TIMES):
        if key not in row:
            raise BadInput(f"{where}: no '{key}'")
    for key in TEXTS + (("skipped",) if was_skipped else ()):
        if not isinstance(row[key], str) or not row[key]:
            raise BadInput(f"{where}: '{key}' is not a text")
    for key in ("pages",) if was_skipped else COUNTS + TIMES:
        if row[key] is None and key in MAY_BE_UNKNOWN:
            continue
        if not is_number(key, row[key]):
            raise BadInput(f"{where}: '{key}' is not a number: {row[key]!r}")
        if key in COUNTS and row[key] != int(row[key]):
            raise BadInput(f"{where}: '{key}' is not a count: {row[key]!r}")
    if row["mode"] not in MODES:
        raise BadInput(f"{where}: mode '{row['mode']}' is neither of {', '.join(MODES)}")
    if row["pages"] == 0:
        raise BadInput(f"{where}: no pages")
    if was_skipped:
        return row
    if not row["per_page_min"] <= row["per_page_median"] <= row["per_page_max"]:
        raise BadInput(f"{where}: the median is not between min and max")
    return row


def identity(row):
    return tuple(row[key] for key in IDENTITY)


def name(row):
    return "{kernel} {arch} {mode}: {workload} {config}, {pages} pages".format(**row)


def check_rows(rows, where):
    if not isinstance(rows, list):
        raise BadInput(f"{where}: not an array of rows")
    if not rows:
        raise BadInput(f"{where}: no rows")
    seen = set()
    for number, row in enumerate(rows, 1):
        check_row(row, f"{where}: row {number}")
        if identity(row) in seen:
            raise BadInput(f"{where}: twice the same row: {name(row)}")
        seen.add(identity(row))
    return rows


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None


def read_rows(path):
    return check_rows(parse(read_text(path), path), path)


def measured(rows):
    return [row for row in rows if "skipped" not in row]


def write_rows(rows, file):
    """One row a line, so that a difference of two files can be read."""
    lines = [json.dumps(row, separators=(", ", ": ")) for row in rows]
    file.write("[\n" + ",\n".join(lines) + "\n]\n")


#
# collect
#

def collect(args):
    """Rows out of a guest's output: each line that is an object is one."""
    known = dict(pair.split("=", 1) for pair in args.set)
    rows = []
    for number, line in enumerate(read_text(args.log).splitlines(), 1):
        if line.startswith("{"):
            row = parse(line, f"{args.log}: line {number}")
            if isinstance(row, dict):
                row = {**known, **row, **known}
            rows.append(row)
    write_rows(check_rows(rows, args.log), sys.stdout)
    return 0


#
# record
#

def record(args):
    """What a comparison needs, and no more, for a file in fixtures/."""
    keys = IDENTITY + COUNTS[1:] + TIMES + BUILT_BY
    write_rows([{key: row[key] for key in keys if key in row}
                for row in measured(read_rows(args.file))], sys.stdout)
    return 0


#
# results
#

def results(args):
    """Every row for the harness: measured, or skipped with its reason."""
    for row in read_rows(args.file):
        skipped = row.get("skipped")
        print("skip" if skipped else "pass", name(row), skipped or "", sep="\t")
    return 0


#
# show
#

def whole(value):
    return "-" if value is None else f"{value:.0f}"


def reference_of(row, table):
    """The same workload with nothing copied ahead, from the same boot."""
    return table.get(identity({**row, "config": REFERENCE}))


def by_identity(rows):
    return {identity(row): row for row in measured(rows)}


def half_spread(row):
    """Half of max - min, in per cent of the median."""
    if row["per_page_median"] == 0:
        return 0.0
    return 50.0 * (row["per_page_max"] - row["per_page_min"]) / row["per_page_median"]


def table_lines(head, lines, left=1):
    """Columns as wide as they must be; the first `left` ones are texts."""
    widths = [max(len(line[i]) for line in [head] + lines) for i in range(len(head))]
    for line in [head] + lines:
        cells = [cell.ljust(width) if i < left else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(line, widths))]
        yield "  ".join(cells).rstrip()


def groups(rows, *keys):
    """Rows in the order they came, those with equal keys together."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found.items()


def show(args):
    rows = read_rows(args.file)
    table = by_identity(rows)
    for (kernel, arch, mode), boot in groups(rows, "kernel", "arch", "mode"):
        print(f"{kernel} {arch}, {mode}: {UNITS[mode]} per written page")
        if mode == "wall":
            print("Absolute values are good for this boot only: compare the ratios.")
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
    off = reference_of(row, table)
    ratio = "-"
    if off and off["per_page_median"]:
        ratio = f"{row['per_page_median'] / off['per_page_median']:.3f}"
    return (row["config"], whole(row["per_page_median"]), f"±{half_spread(row):.1f}%", ratio,
            whole(row["overhead_median"]), *(whole(row[key]) for key in (
                "faults", "copied", "copied_ahead", "wasted", "reused", "reused_ahead",
                "p50", "p99", "max")))


#
# compare
#

def reasons(rows):
    """Why a row was skipped, for those that were."""
    return {identity(row): row["skipped"] for row in rows if "skipped" in row}


def need_same_rows(old, new, where, skipped):
    """Both have the same rows, or a message names those that lack a partner."""
    lines = []
    for path, some, others, why in ((where[1], old, new, skipped[1]),
                                    (where[0], new, old, skipped[0])):
        for key, row in some.items():
            if key in why:
                lines.append(f"  skipped in {path}: {name(row)}: {why[key]}")
            elif key not in others:
                lines.append(f"  not in {path}: {name(row)}")
    if lines:
        more = [f"  ... and {len(lines) - 10} more"] if len(lines) > 10 else []
        raise BadInput("\n".join(["the rows do not match:"] + lines[:10] + more))


def read_pair(args):
    """Two tables of the same rows, and those of the new file that were skipped."""
    files = (args.old, args.new)
    rows = [read_rows(path) for path in files]
    tables = [by_identity(some) for some in rows]
    for path, table in zip(files, tables):
        if not table:
            raise BadInput(f"{path}: every row was skipped")
    need_same_rows(*tables, files, [reasons(some) for some in rows])
    return tables, [row for row in rows[1] if "skipped" in row]


def same_build(old, new):
    """Were both measured on the same code? Unknown counts as yes."""
    return all(old.get(key) == new.get(key) for key in BUILT_BY
               if key in old and key in new)


class Verdict:
    """What became of one row: better, same, worse, or reference."""

    def __init__(self, old, new, tables, tolerance):
        self.row = new
        self.related = new["mode"] == "wall" or not same_build(old, new)
        values = [self.value(row, table) for row, table in zip((old, new), tables)]
        self.ratio = values[1] / values[0] if all(values) else None
        self.noise = self.noise_of((old, new), tables, tolerance)
        self.wasted = self.more_wasted(old, new)
        self.text, self.reason = self.judge(values)

    @staticmethod
    def more_wasted(old, new):
        """Pages copied and never written: the change, in per cent of those written."""
        if None in (old["wasted"], new["wasted"]) or not new["written"]:
            return 0.0
        return 100.0 * (new["wasted"] - old["wasted"]) / new["written"]

    def value(self, row, table):
        """Cost per page; related to the row `off` of its boot where boots differ."""
        if not self.related:
            return row["per_page_median"]
        off = reference_of(row, table)
        if not off or not off["per_page_median"]:
            return None
        return row["per_page_median"] / off["per_page_median"]

    def noise_of(self, pair, tables, tolerance):
        if tolerance is None:
            tolerance = TOLERANCE[self.row["mode"]]
            if self.related:
                tolerance = max(tolerance, TOLERANCE_RELATED)
        rows = list(pair)
        if self.related:
            rows += [reference_of(row, table) or row for row, table in zip(pair, tables)]
        return max([tolerance] + [half_spread(row) for row in rows])

    def judge(self, values):
        if self.wasted > self.noise:
            return "worse", "wasted"
        if self.related and self.row["config"] == REFERENCE:
            return "reference", ""
        if self.related and None in values:
            return "not judged", f"no row '{REFERENCE}' beside it"
        if not all(values):
            if values[0] == values[1]:
                return "same", ""
            return ("worse" if values[1] else "better"), "cost"
        change = 100.0 * (self.ratio - 1)
        if change > self.noise:
            return "worse", "cost"
        if change < -self.noise:
            return "better", "cost"
        if self.wasted < -self.noise:
            return "better", "wasted"
        return "same", ""

    def result(self):
        status = {"worse": "fail", "better": "pass", "same": "pass"}.get(self.text, "skip")
        message = f"{self.text} {self.reason}".strip()
        if self.ratio is not None:
            message += f" (ratio {self.ratio:.4f}, noise {self.noise:.1f} %)"
        return status, name(self.row), message


def write_results(path, results):
    """For the harness: a line of status, name and message for each row."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines("\t".join(result) + "\n" for result in results)


def compare(args):
    tables, skipped = read_pair(args)
    verdicts = [Verdict(old, tables[1][key], tables, args.tolerance)
                for key, old in tables[0].items()]
    if all(verdict.text in ("reference", "not judged") for verdict in verdicts):
        raise BadInput(f"no row has a row '{REFERENCE}' beside it, so that nothing can be compared")
    show_verdicts(verdicts, tables)
    for (config, reason), some in groups(skipped, "config", "skipped"):
        print(f"not compared: {len(some)} of '{config}', skipped: {reason}")
    write_results(args.results, [verdict.result() for verdict in verdicts] +
                  [("skip", name(row), row["skipped"]) for row in skipped])
    return 1 if any(verdict.text == "worse" for verdict in verdicts) else 0


def show_verdicts(verdicts, tables):
    head = ("kernel", "mode", "workload", "config", "pages", "before", "after", "ratio",
            "noise", "wasted", "verdict")
    lines = []
    for verdict in verdicts:
        row = verdict.row
        old = tables[0][identity(row)]
        ratio = "-" if verdict.ratio is None else f"{verdict.ratio:.4f}"
        lines.append((row["kernel"], row["mode"], row["workload"], row["config"],
                      whole(row["pages"]), whole(old["per_page_median"]),
                      whole(row["per_page_median"]), ratio, f"±{verdict.noise:.1f}%",
                      f"{verdict.wasted:+.1f}%",
                      f"{verdict.text} ({verdict.reason})" if verdict.reason else verdict.text))
    if any(verdict.related for verdict in verdicts):
        print(f"Ratios are those of 'cost in relation to {REFERENCE} in the same boot':")
        print("another boot of a wall clock, or another compiler or kernel release.\n")
    for line in table_lines(head, lines, left=4):
        print(line)
    print()
    texts = [verdict.text for verdict in verdicts]
    print(", ".join(f"{texts.count(text)} {text}" for text in dict.fromkeys(
        ["better", "same", "worse"] + texts)))


#
# markdown
#

# What the README shows of a recorded pass
README_CONFIGS = {"off": "off", "fixed-1": "1 ahead", "fixed-15": "15 ahead",
                  "adaptive": "adaptive", "populate-write": "MADV_POPULATE_WRITE"}
README_WORKLOADS = {
    "seq": "sequential", "random": "random, every page once", "reverse": "backward",
    "stride-4": "every 4th page", "stride-16": "every 16th page",
    "sparse-5": "5 % of the pages, at random", "single": "a lone write",
    "child-gone": "child has exited", "multi-child-16": "16 children",
}
# With what is left without the copies, in brackets
README_OVERHEAD = ("seq", "random")


def markdown(args):
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
            # fills all of the memory for one write
            lone = workload == "single" and config == "populate-write"
            cells.append("\u2013" if lone else cell)
        print(f"| {text} | " + " | ".join(cells) + " |")
    return 0


#
# repeat
#

def repeat(args):
    """Is every row of two boots within LIMIT per cent?"""
    tables, _ = read_pair(args)
    results = []
    for key, old in tables[0].items():
        new = tables[1][key]
        values = (old["per_page_median"], new["per_page_median"])
        apart = 100.0 * (max(values) - min(values)) / max(min(values), 1e-9)
        good = apart <= args.limit
        message = f"{values[0]:.1f} and {values[1]:.1f}, {apart:.3f} % apart, {args.limit} % allowed"
        print(f"two boots: {name(new)}: {message}")
        results.append(("pass" if good else "fail", f"two boots: {name(new)}", message))
    write_results(args.results, results)
    return 1 if any(result[0] == "fail" for result in results) else 0


def per_cent(text):
    value = float(text)
    if not 0 <= value < 1000:
        raise ValueError
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("collect", help="a guest's output to an array of rows")
    command.add_argument("log")
    command.add_argument("set", nargs="*", metavar="KEY=TEXT", help="set in every row")
    command.set_defaults(run=collect)
    command = commands.add_parser("show", help="tables, one for each workload")
    command.add_argument("file")
    command.set_defaults(run=show)
    command = commands.add_parser("record", help="the rows, without what no comparison needs")
    command.add_argument("file")
    command.set_defaults(run=record)
    command = commands.add_parser("results", help="a line for each row, for the harness")
    command.add_argument("file")
    command.set_defaults(run=results)
    command = commands.add_parser("markdown", help="the README's table of recorded rows")
    command.add_argument("file")
    command.set_defaults(run=markdown)
    command = commands.add_parser("compare", help="a verdict for each row")
    command.add_argument("--tolerance", type=per_cent)
    command.add_argument("old")
    command.add_argument("new")
    command.set_defaults(run=compare)
    command = commands.add_parser("repeat", help="are two boots the same?")
    command.add_argument("--limit", type=per_cent, default=0.2)
    command.add_argument("old")
    command.add_argument("new")
    command.set_defaults(run=repeat)
    for command in (commands.choices["compare"], commands.choices["repeat"]):
        command.add_argument("--results", help="append a line for each row to this file")
    args = parser.parse_args()
    try:
        return args.run(args)
    except BadInput as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
