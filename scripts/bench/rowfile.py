# SPDX-License-Identifier: GPL-2.0
"""Files of benchmark rows: read, checked and written. Tables of them.

A file is a JSON array of rows. cow_bench prints the rows, one a line; the harness
adds what they were measured on. Used by all Python files of this folder.
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
# May be null: neither the kernel nor the program counted it.
MAY_BE_UNKNOWN = ("copied", "copied_ahead", "wasted", "reused", "reused_ahead",
                  "overhead_median")
# If these differ, absolute numbers of instructions cannot be compared.
BUILT_BY = ("release", "compiler")

REFERENCE = "off"
UNITS = {"icount": "instructions", "wall": "ns"}
MODES = tuple(UNITS)


class BadInput(Exception):
    """A file cannot be used; the text says why."""


def not_json(constant):
    raise ValueError(f"{constant} is not JSON")


def parse(text, where):
    try:
        return json.loads(text, parse_constant=not_json)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON: {error}") from None


def is_number(key, value):
    """A finite number. Only the overhead, a difference, may be negative."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value) and (value >= 0 or key == "overhead_median"))


def check_row(row, where):
    """Every key is there and of the right type; min <= median <= max."""
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
    """One row per line, for a readable diff."""
    lines = [json.dumps(row, separators=(", ", ": ")) for row in rows]
    file.write("[\n" + ",\n".join(lines) + "\n]\n")


def write_results(path, results):
    """Append to the harness's results: status, name and message of each."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines("\t".join(result) + "\n" for result in results)


def key_text(pair):
    """For argparse: KEY=TEXT"""
    key, equals, text = pair.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"'{pair}' is not KEY=TEXT, such as kernel=7.3")
    return key, text


def run(main):
    """Exit with main()'s status, or with 2 and a message if the input is unusable."""
    try:
        sys.exit(main())
    except (BadInput, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)


#
# Tables
#

def whole(value):
    return "-" if value is None else f"{value:.0f}"


def by_identity(rows):
    return {identity(row): row for row in measured(rows)}


def reference_of(row, table):
    """The row 'off' (nothing copied ahead) of the same workload and boot."""
    return table.get(identity({**row, "config": REFERENCE}))


def ratio_to_off(row, table):
    """The cost per page relative to 'off', as text."""
    off = reference_of(row, table)
    if not off or not off["per_page_median"]:
        return "-"
    return f"{row['per_page_median'] / off['per_page_median']:.3f}"


def reasons(rows):
    """Why rows were skipped, by their identity."""
    return {identity(row): row["skipped"] for row in rows if "skipped" in row}


def half_spread(row):
    """Half of max - min, in per cent of the median."""
    if row["per_page_median"] == 0:
        return 0.0
    return 50.0 * (row["per_page_max"] - row["per_page_min"]) / row["per_page_median"]


def table_lines(head, lines, left=1):
    """Lines of aligned columns; the first `left` columns are left-aligned."""
    widths = [max(len(line[i]) for line in [head] + lines) for i in range(len(head))]
    for line in [head] + lines:
        cells = [cell.ljust(width) if i < left else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(line, widths))]
        yield "  ".join(cells).rstrip()


def groups(rows, *keys):
    """Rows with equal keys together, in order of their first row."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found.items()
