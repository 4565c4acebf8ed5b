#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What the series costs: seven files of rows from one machine.

PLAIN is the kernel without the series, OPTIONLESS that of its patches before the first
option, OFF the kernel with all of it and its options off, STATS0 with its options on and
vm.cow_stats=0, STATS1 with vm.cow_stats=1; the last two are PLAIN and OFF booted without
memory cgroups. Prints instructions per fault and per page written. The limits apply to
the rows in which nothing is copied ahead.

Exit status: 0 within the limits, 1 not, 2 unusable input, with a message.
"""

import argparse

from rowfile import (BadInput, REFERENCE, measured, read_rows, run, table_lines,
                     write_results, write_rows)

# Allowed extra cost per fault, in per cent: of the counters in vmstat and memory.stat
# and the trace event, which have no option; of the rest of the series while its options
# are off; of the options; and of counting and timing.
LIMIT_OFF = {"seq": 1.5, "child-gone": 1.5}
LIMIT_OFF_NO_MEMCG = 1.0
LIMIT_OPTIONS_OFF = 0.1
LIMIT_STATS0 = 0.4
LIMIT_STATS1 = {"seq": 7.0, "child-gone": 6.0}
SETTINGS = ("without the series", "patches without option", "options off", "vm.cow_stats=0",
            "vm.cow_stats=1")
NO_MEMCG = ("without the series, no memory cgroups", "options off, no memory cgroups")
WORKLOADS = {"seq": "a page is copied", "child-gone": "the page is no longer shared"}


def precopy(config):
    if config == REFERENCE:
        return "vm.cow_precopy=0"
    return f"vm.cow_precopy=1, {config.removeprefix('fixed-')} ahead"


def per_fault(row):
    """Instructions per fault, or None if there was no fault."""
    if not row["faults"]:
        return None
    return row["per_page_median"] * row["written"] / row["faults"]


def read(path):
    return {(row["workload"], row["config"]): row for row in measured(read_rows(path))}


def need(table, key, path):
    if key not in table:
        raise BadInput(f"{path}: no row {' '.join(key)}")
    return table[key]


def over(new, old):
    """Extra cost per fault of `new` over `old`, in per cent."""
    values = per_fault(new), per_fault(old)
    if not all(values):
        raise BadInput(f"{new['workload']} {new['config']}: no faults")
    return 100.0 * (values[0] / values[1] - 1)


def judge(what, new, old, limit):
    more = over(new, old)
    status = "pass" if more <= limit else "fail"
    message = (f"{per_fault(old):.1f} -> {per_fault(new):.1f} instructions per fault: "
               f"{more:+.2f} %, allowed {limit} %")
    return status, what, message


def judge_all(tables, paths):
    results = []
    for workload, what in WORKLOADS.items():
        plain, optionless, off, stats0, stats1 = (
            need(table, (workload, REFERENCE), path)
            for table, path in zip(tables[:len(SETTINGS)], paths))
        results.append(judge(f"{what}: options off over the kernel without the series",
                             off, plain, LIMIT_OFF[workload]))
        results.append(judge(f"{what}: options off over the patches without option",
                             off, optionless, LIMIT_OPTIONS_OFF))
        results.append(judge(f"{what}: vm.cow_stats=0 over options off",
                             stats0, off, LIMIT_STATS0))
        results.append(judge(f"{what}: vm.cow_stats=1 over 0", stats1, stats0,
                             LIMIT_STATS1[workload]))
    plain, off = (need(table, ("seq", REFERENCE), path)
                  for table, path in zip(tables[len(SETTINGS):], paths[len(SETTINGS):]))
    results.append(judge("a page is copied, without memory cgroups: options off over the kernel "
                         "without the series", off, plain, LIMIT_OFF_NO_MEMCG))
    return results


def lines_of(workload, tables):
    plain = tables[0][workload, REFERENCE]
    *_, without_counting, counting = tables[:len(SETTINGS)]
    for setting, table in zip(SETTINGS, tables):
        for (name, config), row in table.items():
            if name != workload or not row["faults"]:
                continue
            stats0 = without_counting.get((workload, config))
            yield (setting, "" if row is plain else precopy(config), f"{per_fault(row):.0f}",
                   f"{per_fault(row) / per_fault(plain):.4f}",
                   f"{per_fault(row) / per_fault(stats0):.4f}" if table is counting and stats0 else "",
                   f"{row['per_page_median']:.0f}", f"{row['faults']:.0f}")


def show(tables):
    head = ("kernel", "", "per fault", "of without", "of stats=0", "per page", "faults")
    row = next(iter(tables[0].values()))
    print(f"{row.get('release', row['kernel'])} {row['arch']}: instructions")
    for workload, what in WORKLOADS.items():
        print(f"\n{workload}, {row['pages']} pages: {what}")
        for line in table_lines(head, list(lines_of(workload, tables)), left=2):
            print("  " + line)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", help="append a line for each verdict to this file")
    parser.add_argument("--json", help="write all rows to this file")
    parser.add_argument("files", nargs=7, metavar="FILE",
                        help="PLAIN OPTIONLESS OFF STATS0 STATS1, PLAIN and OFF without memory cgroups")
    args = parser.parse_args()
    tables = [read(path) for path in args.files]
    results = judge_all(tables, args.files)
    show(tables)
    for status, what, message in results:
        print(f"{status.upper()} {what}: {message}")
    write_results(args.results, results)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            write_rows([{**row, "setting": setting}
                        for setting, table in zip(SETTINGS + NO_MEMCG, tables)
                        for row in table.values()], file)
    return 1 if any(status == "fail" for status, _, _ in results) else 0


if __name__ == "__main__":
    run(main)
