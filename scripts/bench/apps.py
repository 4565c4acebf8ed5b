#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The output of a job of fixtures/apps: a table, a file of rows, results.

Exit status: 0, or 2 for output that cannot be used.
"""

import argparse
import json
import sys

import rows as bench_rows

RATIOS = ("requests_per_second", "p50_us", "p99_us", "p999_us")
TITLES = {"requests_per_second": "req/s", "p50_us": "p50", "p99_us": "p99", "p999_us": "p99.9",
          "writes_in_save": "in save", "cow_bytes": "cow MB", "fork_us": "fork us",
          "copied_ahead": "ahead", "reused_ahead": "reused ahead", "config": "config",
          "run": "run", "rss_kb": "RSS MB", "pss_kb": "PSS MB"}
# What the table has no room for, or says in its title
HIDDEN = ("app", "pattern", "keys", "sessions", "requests")


def parse(path):
    rows, tests = [], []
    for line in bench_rows.read_text(path).splitlines():
        if not line.startswith("{"):
            continue
        found = bench_rows.parse(line, path)
        if "row" in found:
            rows.append(found["row"])
        else:
            tests.append((found["status"], found["test"], found["message"]))
    if not rows:
        raise bench_rows.BadInput(f"{path}: no rows")
    return rows, tests


def cell(key, value, off):
    if key in ("cow_bytes", "rss_kb", "pss_kb"):
        return f"{value / (1 << (20 if key == 'cow_bytes' else 10)):.1f}"
    if key in RATIOS and off and off[key]:
        return f"{value:.0f} ({value / off[key]:.2f})"
    return f"{value:.0f}" if isinstance(value, (int, float)) else value


def show(rows):
    print("Latencies in us, and in brackets the ratio to 'off' of the same run:")
    print("absolute times are good for this boot only.")
    by_run = {(row["pattern"], row["config"], row["run"]): row for row in rows}
    for (pattern,), some in bench_rows.groups(rows, "pattern"):
        size = ", ".join(f"{some[0][key]} {key}" for key in HIDDEN[2:] if key in some[0])
        print(f"\n{some[0]['app']}, {pattern}, {size}")
        keys = ["config", "run"] + [key for key in some[0] if key not in HIDDEN + ("config", "run")
                                    and not key.startswith("system_")]
        some = sorted(some, key=lambda row: (row["run"], row["config"] != "off",
                                             len(row["config"]), row["config"]))
        lines = [[cell(key, row[key], by_run.get((pattern, "off", row["run"])))
                  for key in keys] for row in some]
        for line in bench_rows.table_lines([TITLES.get(key, key) for key in keys], lines):
            print("  " + line)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("set", nargs="*", metavar="KEY=TEXT", help="what every row carries")
    parser.add_argument("--json")
    parser.add_argument("--results")
    args = parser.parse_args()
    try:
        rows, tests = parse(args.log)
    except bench_rows.BadInput as error:
        print(f"apps.py: {error}", file=sys.stderr)
        return 2
    known = dict(pair.split("=", 1) for pair in args.set)
    show(rows)
    bench_rows.write_results(args.results, tests)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            bench_rows.write_rows([{**known, **row} for row in rows], file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
