#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a job of fixtures/apps printed: as a table, a file of rows and results.

Exit status: 0, or 2 for unusable input.
"""

import argparse

from rowfile import (BadInput, groups, key_text, read_text, run, table_lines, write_results,
                     write_rows)
from rowfile import parse as parse_json

RATIOS = ("requests_per_second", "p50_us", "p99_us", "p999_us")
TITLES = {"requests_per_second": "req/s", "p50_us": "p50", "p99_us": "p99", "p999_us": "p99.9",
          "writes_in_save": "in save", "cow_bytes": "cow MB", "fork_us": "fork us",
          "copied_ahead": "ahead", "reused_ahead": "reused ahead", "config": "config",
          "run": "run", "rss_kb": "RSS MB", "pss_kb": "PSS MB"}
# The keys of a test's result
TEST = ("status", "test", "message")
# Not columns of the table: in its title, or too wide
HIDDEN = ("app", "pattern", "keys", "sessions", "requests")


def parse(path):
    rows, tests = [], []
    for line in read_text(path).splitlines():
        if not line.startswith("{"):
            continue
        found = parse_json(line, path)
        if isinstance(found.get("row"), dict):
            rows.append(found["row"])
        elif all(isinstance(found.get(key), str) for key in TEST):
            tests.append(tuple(found[key] for key in TEST))
        else:
            raise BadInput(f"{path}: neither a row nor a test's result: {line}")
    if not rows:
        raise BadInput(f"{path}: no rows")
    return rows, tests


def cell(key, value, off):
    if key in ("cow_bytes", "rss_kb", "pss_kb"):
        return f"{value / (1 << (20 if key == 'cow_bytes' else 10)):.1f}"
    if key in RATIOS and off and off[key]:
        return f"{value:.0f} ({value / off[key]:.2f})"
    return f"{value:.0f}" if isinstance(value, (int, float)) else value


def show(rows):
    print("Latencies in us; in brackets the ratio to 'off' of the same run.")
    print("Absolute times are valid for this boot only.")
    by_run = {(row["pattern"], row["config"], row["run"]): row for row in rows}
    for (pattern,), some in groups(rows, "pattern"):
        size = ", ".join(f"{some[0][key]} {key}" for key in HIDDEN[2:] if key in some[0])
        print(f"\n{some[0]['app']}, {pattern}, {size}")
        keys = ["config", "run"] + [key for key in some[0] if key not in HIDDEN + ("config", "run")
                                    and not key.startswith("system_")]
        some = sorted(some, key=lambda row: (row["run"], row["config"] != "off",
                                             len(row["config"]), row["config"]))
        lines = [[cell(key, row[key], by_run.get((pattern, "off", row["run"])))
                  for key in keys] for row in some]
        for line in table_lines([TITLES.get(key, key) for key in keys], lines):
            print("  " + line)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("set", nargs="*", metavar="KEY=TEXT", type=key_text,
                        help="set in every row")
    parser.add_argument("--json")
    parser.add_argument("--results")
    args = parser.parse_args()
    rows, tests = parse(args.log)
    known = dict(args.set)
    show(rows)
    write_results(args.results, tests)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            write_rows([{**known, **row} for row in rows], file)
    return 0


if __name__ == "__main__":
    run(main)
