#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Profiles of instruction counts: the kernel functions of a benchmark's measured part.

A profile is a folder with these files:
  counts     what fixtures/plugin/insn_profile.c wrote
  row.out    the row of cow_bench
  functions  "COUNT NAME" per line, largest first; written by 'check'
  sums       "WORKLOAD:CONFIG WRITTEN FAULTS TOTAL CLOCK OFF" of all repetitions,
             OFF in per cent; written by 'check'

Exit status: 0 good, 1 'check' failed, 2 unusable input, 4 the workload was skipped.
"""

import argparse
import bisect
import json
import os
import re

from rowfile import BadInput, parse, read_text, run, write_results

SKIPPED = 4
TOTAL = "total"
WITHOUT_COPY = "total without the page copy"
COPY = "page copy"

# Bounds of sections, and symbols that objtool and kCFI add, are not functions.
NO_FUNCTION = re.compile(r"__(pfx|cfi)_.*|.*(^_?_?s|^_?_?e|_)(text|start|end|begin)")


#
# functions: instructions of each function
#

def rank(kind, symbol):
    """Which of several names of one address to use: the highest."""
    if NO_FUNCTION.fullmatch(symbol):
        return 0
    return (4 if kind in "TW" else 2) + (not symbol.startswith("__"))


def read_map(path):
    """The addresses of a System.map in ascending order, and a name for each.

    Addresses are 16 hexadecimal digits and compare as text.
    """
    best = {}
    for line in read_text(path).splitlines():
        address, kind, symbol = line.split()[:3]
        if kind in "tTwW" and (address not in best or rank(kind, symbol) > best[address][0]):
            best[address] = (rank(kind, symbol), symbol)
    addresses = sorted(best)
    return addresses, [best[address][1] for address in addresses]


def read_counts(path):
    """Pairs of a key ("parts", "user", "total" or an address) and a count."""
    if not os.path.exists(path):
        return []
    return [(key, int(count)) for key, count in map(str.split, read_text(path).splitlines())]


def complete_counts(folder):
    """As read_counts(), of a plugin that has come to its end."""
    path = os.path.join(folder, "counts")
    counts = read_counts(path)
    if TOTAL not in dict(counts):
        raise BadInput(f"the plugin left no complete result: {path}\n"
                       + last_line(os.path.join(folder, "qemu.log")))
    return counts


def count_functions(map_path, counts):
    """Pairs of a count and a function's name, the largest first."""
    addresses, names = read_map(map_path)
    sums = {}
    for key, count in counts:
        if key in ("parts", "total"):
            continue
        if key != "user":
            i = bisect.bisect_right(addresses, key)
            key = names[i - 1] if i else "unknown"
        sums[key] = sums.get(key, 0) + count
    return sorted(((count, name) for name, count in sums.items()),
                  key=lambda pair: (pair[0], f"{pair[0]} {pair[1]}"), reverse=True)


def function_lines(functions):
    return "".join(f"{count} {name}\n" for count, name in functions)


def show_functions(args):
    print(function_lines(count_functions(args.map, read_counts(args.counts))), end="")
    return 0


#
# check: does the plugin agree with the guest's clock?
#

def read_row(path):
    line = next((line for line in read_text(path).splitlines() if line.startswith("{")), "{}")
    row = parse(line, path)
    for key in () if "skipped" in row else ("repeats", "written", "faults", "per_page_median"):
        if not isinstance(row.get(key), (int, float)):
            raise BadInput(f"{path}: '{key}' is not a number: {row.get(key)!r}")
    return row


def last_line(path):
    lines = read_text(path).splitlines() if os.path.exists(path) else []
    return lines[-1] if lines else ""


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def sums_of(row, total):
    """WRITTEN, FAULTS, TOTAL, CLOCK and OFF of all repetitions.

    The clock counts an instruction that faults twice: it is started twice.
    """
    written = int(row["written"] * row["repeats"])
    faults = int(row["faults"] * row["repeats"])
    clock = row["per_page_median"] * written + faults
    if not clock:
        raise BadInput("the row has no pages written and no faults")
    off = round((total / clock - 1) * 100, 3) + 0.0
    return written, faults, total, f"{clock:.0f}", f"{off:.3f}"


def check(args):
    """Write functions and sums; the two totals must agree."""
    row = read_row(os.path.join(args.dir, "row.out"))
    test = f"profile:{args.spec}"
    if "skipped" in row:
        write_results(args.results, [("skip", test, row["skipped"])])
        return SKIPPED
    counts = complete_counts(args.dir)
    known = dict(counts)
    if not known.get("parts"):
        raise BadInput(f"{args.spec} has no part that is marked to be counted "
                       "(workloads with several threads have none)")
    functions = count_functions(args.map, counts)
    write(os.path.join(args.dir, "functions"), function_lines(functions))
    written, faults, total, clock, off = sums_of(row, known[TOTAL])
    write(os.path.join(args.dir, "sums"), f"{args.spec} {written} {faults} {total} {clock} {off}\n")
    if 100 * sum(count for count, name in functions if name == "unknown") \
            > sum(count for count, _ in functions):
        raise BadInput(f"{args.spec}: the addresses counted are not those of {args.map}")
    if abs(float(off)) <= args.tolerance:
        write_results(args.results, [("pass", test, "")])
        return 0
    write_results(args.results, [("fail", test, (
        f"the plugin counted {total} instructions for {written} pages and {faults} faults, the "
        f"guest's clock {clock}: {off} % is more than {args.tolerance} %"))])
    return 1


#
# report, json
#

class Profile:
    """A profile after 'check'."""

    def __init__(self, folder):
        path = os.path.join(folder, "sums")
        words = read_text(path).split()
        if len(words) != 6:
            raise BadInput(f"{path}: not six words")
        self.spec = words[0]
        self.written, self.faults, self.total, self.clock = map(int, words[1:5])
        self.off = words[5]
        self.functions = [(int(count), name) for count, name in
                          map(str.split, read_text(os.path.join(folder, "functions")).splitlines())]

    def grouped(self, groups):
        """Instructions by function, or by group, and the totals."""
        counts = {}
        sums = {TOTAL: 0}
        if groups:
            sums[WITHOUT_COPY] = 0
        for count, name in self.functions:
            name = group_of(name, groups) if groups else name
            counts[name] = counts.get(name, 0) + count
            sums[TOTAL] += count
            if groups and name != COPY:
                sums[WITHOUT_COPY] += count
        return counts, sums


def read_groups(path):
    """Pairs of a group and the pattern of its functions' names."""
    groups = []
    for line in read_text(path).splitlines():
        if line.strip() and not line.startswith("#"):
            group, pattern = line.split("\t", 1)
            groups.append((group, re.compile(pattern.lstrip("\t"))))
    return groups


def group_of(name, groups):
    return next((group for group, pattern in groups if pattern.fullmatch(name)), "other")


def table(profiles, least, groups):
    """Lines: a heading, the rows sorted by instructions per page, the totals.

    Rows below `least` per cent in every profile are combined.
    """
    columns, totals = zip(*(profile.grouped(groups) for profile in profiles))
    names = list(dict.fromkeys(name for counts in columns for name in counts))
    names.sort(key=lambda name: -max(counts.get(name, 0) / profile.written
                                     for counts, profile in zip(columns, profiles)))
    small = [name for name in names
             if all(counts.get(name, 0) * 100 < least * profile.total
                    for counts, profile in zip(columns, profiles))]
    rows = [(name, [counts.get(name, 0) for counts in columns])
            for name in names if name not in set(small)]
    if small:
        rows.append((f"{len(small)} others",
                     [sum(counts.get(name, 0) for name in small) for counts in columns]))
    sums = [(name, [total[name] for total in totals]) for name in totals[0]]
    what = "part" if groups else "function"
    if len(profiles) == 1:
        return list(lines_of_one(profiles[0], what, rows, sums))
    return list(lines_of_two(profiles, what, rows + sums))


def lines_of_one(profile, what, rows, sums):
    yield f"{'per page':>10} {'per fault':>10} {'share':>8} {'sum':>8}  {what}"
    so_far = 0
    for i, (name, (count,)) in enumerate(rows + sums):
        so_far += count
        per_fault = f"{count / profile.faults:.2f}" if profile.faults else "-"
        running = f"{so_far * 100 / profile.total:.2f}%" if i < len(rows) else ""
        yield (f"{count / profile.written:10.2f} {per_fault:>10} "
               f"{count * 100 / profile.total:7.2f}% {running:>8}  {name}")


def lines_of_two(profiles, what, rows):
    yield "".join(f"{profile.spec:>21}" for profile in profiles) + f" {'difference':>11}  {what}"
    for name, counts in rows:
        cells = "".join(f"{count / profile.written:12.2f} {count * 100 / profile.total:7.2f}%"
                        for count, profile in zip(counts, profiles))
        per_page = [count / profile.written for count, profile in zip(counts, profiles)]
        yield f"{cells} {per_page[1] - per_page[0]:+11.2f}  {name}"


def report(args):
    profiles = [Profile(folder) for folder in args.dirs]
    print(f"Instructions per page written, {args.title}, by function")
    print("\n".join(table(profiles, args.least, None)))
    print("\nBy subsystem")
    print("\n".join(table(profiles, 0, read_groups(args.groups))))
    print()
    for profile in profiles:
        print(f"{profile.spec}: {profile.written} pages, {profile.faults} faults; "
              f"the plugin's total is {profile.off} % off the guest's clock")
    return 0


def json_object(profile, kernel, series):
    workload, config = profile.spec.split(":")
    return {"kernel": kernel, "series": series, "workload": workload, "config": config,
            "written": profile.written, "faults": profile.faults,
            "per_page": round(profile.total / profile.written, 2),
            "clock_per_page": round(profile.clock / profile.written, 2),
            "functions": {name: round(count / profile.written, 4)
                          for count, name in profile.functions}}


def print_json(args):
    """An array of objects; functions in instructions per page."""
    objects = [json_object(Profile(folder), args.kernel, args.series) for folder in args.dirs]
    print("[\n" + ",\n".join(json.dumps(item, indent=2) for item in objects) + "\n]")
    return 0


#
# compile: the kernel's share of a program, without and with copying ahead
#

def kernel_and_user(counts):
    known = dict(counts)
    if not known.get("parts"):
        raise BadInput("no part of the compile is marked to be counted")
    user = known.get("user", 0)
    return known[TOTAL] - user, user


def cow_share(map_path, counts, kernel):
    """The largest function of mm/cow*, in per cent of the kernel's instructions."""
    count, name = next(((count, name) for count, name in count_functions(map_path, counts)
                        if name.startswith(("cow_", "__cow_"))), (0, "none"))
    return name, 100 * count / kernel


def compare_compile(args):
    """What the second folder has more than the first must be within the limit."""
    counts_off, counts_on = map(complete_counts, (args.off, args.on))
    (off, off_user), (on, on_user) = map(kernel_and_user, (counts_off, counts_on))
    name, share = cow_share(args.map, counts_on, on)
    ratio = on / off
    print(f"{'':<20} {'kernel':>14} {'user':>14}")
    print(f"{'off':<20} {off:14} {off_user:14}")
    print(f"{'adaptive':<20} {on:14} {on_user:14}")
    text = (f"the kernel takes {ratio:.4f} times as many instructions with copying ahead; the "
            f"largest function of mm/cow* is {name}, {share:.2f} % of them")
    print(text)
    if args.json:
        write(args.json, json.dumps([
            {"config": "off", "kernel": off, "user": off_user},
            {"config": "adaptive", "kernel": on, "user": on_user}], indent=2) + "\n")
    good = ratio <= args.limit
    write_results(args.results, [("pass" if good else "fail", "compile:adaptive",
                                  "" if good else f"{text}; {args.limit} is allowed")])
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("functions", help="counts of addresses as counts of functions")
    command.add_argument("map", help="the kernel's System.map")
    command.add_argument("counts")
    command.set_defaults(run=show_functions)
    command = commands.add_parser("check", help="write functions and sums, check the total")
    command.add_argument("--tolerance", type=float, required=True, help="in per cent")
    command.add_argument("--results", help="append a line to this file")
    command.add_argument("spec", metavar="WORKLOAD:CONFIG")
    command.add_argument("map", help="the kernel's System.map")
    command.add_argument("dir")
    command.set_defaults(run=check)
    command = commands.add_parser("report", help="tables of one profile, or of two side by side")
    command.add_argument("--title", required=True)
    command.add_argument("--least", type=float, default=0, help="combine smaller rows (per cent)")
    command.add_argument("--groups", required=True, help="fixtures/plugin/groups")
    command.add_argument("dirs", nargs="+", metavar="DIR")
    command.set_defaults(run=report)
    command = commands.add_parser("compile", help="a program without and with copying ahead")
    command.add_argument("--limit", type=float, required=True)
    command.add_argument("--results", help="append a line to this file")
    command.add_argument("--json", metavar="FILE")
    command.add_argument("map", help="the kernel's System.map")
    command.add_argument("off", metavar="DIR")
    command.add_argument("on", metavar="DIR")
    command.set_defaults(run=compare_compile)
    command = commands.add_parser("json", help="the profiles as JSON")
    command.add_argument("--kernel", required=True)
    command.add_argument("--series", choices=("with", "without"), default="with")
    command.add_argument("dirs", nargs="+", metavar="DIR")
    command.set_defaults(run=print_json)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    run(main)
