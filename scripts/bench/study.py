#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The tables of the published study of copy-on-write faults, for rows of cow_bench.

The study: Linux 6.8.12, a machine of 16 cores, times in nanoseconds; 16 MB five
times, 64 MB three times; one page copied ahead, after the fault.

Exit status: 0 good, 2 unusable input, with a message.
"""

import argparse

from rowfile import BadInput, UNITS, measured, read_rows, run, table_lines

PAGES_PER_MB = 256

STUDY_COPY = {"min": 90, "P50": 361, "P90": 631, "P95": 711, "P99": 862, "max": 1082}
PERCENT = {"min": 0, "P50": 50, "P90": 90, "P95": 95, "P99": 99, "max": 100}
STUDY_FAULT = 6782
STUDY_SHARE = 5
# (workload, MB): ms off, ms with 1 ahead, change of the faults, share installed
STUDY_RUNS = {
    ("seq", 16): (8.989, 7.462, -49.7, 99),
    ("seq", 64): (36.692, 30.169, -49.7, 99),
    ("random", 16): (9.433, 8.024, -36.3, 57),
    ("random", 64): (39.003, 33.291, -36.3, 57),
}
STUDY_SINGLE = (6782, 7935)
# Its second table: what a page copied ahead costs, what a whole fault costs; and the
# share of hits as printed there, which is not quite what the formula gives
STUDY_AHEAD = 550
STUDY_TRAP = 6800
STUDY_PRINTED = 8.5
STUDY_TAIL = {"P99": -14, "max": -28}
# 'adaptive' only if it was measured
TITLES = {"off": "off", "fixed-1": "1 ahead", "fixed-15": "15 ahead", "adaptive": "adaptive"}

NOTES = {
    "icount": ("The unit is an instruction of the guest, not time: caches, TLB misses and traps\n"
               "cost nothing extra. On this CPU model the copy is an unrolled loop, so the share\n"
               "of the copy is too large and that of the fault's entry and exit too small. The\n"
               "numbers of faults and pages are valid for any machine."),
    "wall": ("The unit is a nanosecond of this machine, in a guest. Unless the machine line\n"
             "says kvm, an emulator translated the instructions and walked the page tables in\n"
             "software: only ratios within one column and one boot are meaningful, and the\n"
             "shares of copy and fault are the emulator's."),
    "bare": "The unit is a nanosecond of this machine.",
}


def note_of(row):
    """What the numbers mean; of a guest the machine line names QEMU."""
    bare = row["mode"] == "wall" and "QEMU" not in row.get("machine", "")
    return NOTES["bare" if bare else row["mode"]]


def need(table, workload, config, megabytes):
    key = (workload, config, megabytes * PAGES_PER_MB)
    if key not in table:
        raise BadInput(f"no row {workload} {config} of {megabytes} MB")
    return table[key]


def configs_of(table):
    """The configurations that every workload was measured with."""
    last = list(TITLES)[-1]
    return [config for config in TITLES
            if config != last or any(key[1] == last for key in table)]


def kernel_times(row, key):
    """The kernel's own times: per cent to time."""
    pairs = row.get(key)
    if not isinstance(pairs, list) or not pairs:
        raise BadInput(f"{row['workload']} {row['config']}: no '{key}': run cow_bench with "
                       "--cdf on a kernel with the series")
    try:
        return {float(percent): float(time) for percent, time in pairs}
    except (TypeError, ValueError):
        raise BadInput(f"{row['workload']} {row['config']}: '{key}' is not a list of pairs") from None


def change(new, old):
    return f"{100 * (new / old - 1):+.1f}%" if old else "-"


def total_ms(row):
    return row["per_page_median"] * row["written"] / 1e6


def per_fault(row):
    return row["per_page_median"] * row["written"] / row["faults"]


def print_table(title, head, lines, left=1):
    print(f"\n{title}")
    for line in table_lines(head, lines, left):
        print("  " + line)


def copy_table(table, unit):
    for workload in ("seq", "random"):
        rows = [need(table, workload, config, 16) for config in configs_of(table)]
        times = [kernel_times(row, "kernel_copy") for row in rows]
        lines = [(name, str(STUDY_COPY[name])) + tuple(f"{time[percent]:.0f}" for time in times)
                 for name, percent in PERCENT.items()]
        print_table(f"Copying 4 KiB in a fault, {workload}, 16 MB; study: ns, here: {unit}",
                    ("", "study") + tuple(TITLES[config] for config in configs_of(table)), lines)


def tail_table(table):
    lines = []
    for name, before in STUDY_TAIL.items():
        line = [name, f"{before:+d}%"]
        for workload in ("seq", "random"):
            off, one = (kernel_times(need(table, workload, config, 16), "kernel_copy")
                        for config in ("off", "fixed-1"))
            line.append(change(one[PERCENT[name]], off[PERCENT[name]]))
        lines.append(line)
    print_table("The longest copies, off -> 1 ahead", ("", "study", "seq", "random"), lines)


def split_table(table, unit):
    lines = [("study (ns)", str(STUDY_FAULT), "-", f"{STUDY_COPY['P50']}",
              f"{STUDY_FAULT - STUDY_COPY['P50']}", f"{STUDY_SHARE}%")]
    for workload in ("seq", "random"):
        for megabytes in (16, 64):
            row = need(table, workload, "off", megabytes)
            copy = row["copy_ns"]
            lines.append((f"{workload}, {megabytes} MB", f"{per_fault(row):.0f}",
                          f"{row['kernel_fault_avg']:.0f}", f"{copy:.0f}",
                          f"{per_fault(row) - copy:.0f}", f"{100 * copy / per_fault(row):.0f}%"))
    print_table(f"One fault, off: the copy and everything else ({unit})",
                ("", "seen from the program", "in the kernel", "copy", "else", "copy's share"), lines)


def runs_table(table, unit):
    lines = []
    for (workload, megabytes), (off_ms, one_ms, faults, _) in STUDY_RUNS.items():
        off, one, *others = (need(table, workload, config, megabytes)
                             for config in configs_of(table))
        line = [f"{workload}, {megabytes} MB",
                f"{off_ms:.3f}", f"{one_ms:.3f}", change(one_ms, off_ms), f"{faults:+.1f}%",
                f"{total_ms(off):.3f}", f"{total_ms(one):.3f}"]
        for row in (one, *others):
            line += [change(total_ms(row), total_ms(off)), change(row["faults"], off["faults"])]
        lines.append(line)
    more = [text for config in configs_of(table)[2:] for text in (TITLES[config], "faults")]
    print_table(f"All pages written once: time and faults; study: ms, here: millions of {unit}",
                ("", "study: off", "1 ahead", "", "faults", "here: off", "1 ahead", "", "faults",
                 *more), lines)


def installed_table(table):
    lines = []
    for (workload, megabytes), study in STUDY_RUNS.items():
        cells = [f"{workload}, {megabytes} MB", f"{study[3]}%"]
        for config, ahead in (("fixed-1", 1), ("fixed-15", 15)):
            row = need(table, workload, config, megabytes)
            cells.append(f"{100 * row['copied_ahead'] / (row['copied'] * ahead):.0f}%")
        lines.append(cells)
    print_table("Share of the pages that could be copied ahead that were",
                ("", "study", "1 ahead", "15 ahead"), lines)


def break_even(page_ahead, fault):
    """The share of pages copied ahead that must be written for that to pay, or None."""
    return page_ahead / (fault - page_ahead) if fault > page_ahead else None


def cost_of_page_ahead(off, ahead):
    """What one page copied ahead adds, a fault costing what it costs without any."""
    faults = per_fault(off) * ahead["faults"]
    return (ahead["per_page_median"] * ahead["written"] - faults) / ahead["copied_ahead"]


def break_even_table(table, unit):
    even = break_even(STUDY_AHEAD, STUDY_TRAP)
    hits = "{}%".format(", ".join(str(share) for share in
                                  sorted({run[3] for run in STUDY_RUNS.values()}, reverse=True)))
    lines = [("study (ns)", "1 ahead", str(STUDY_AHEAD), str(STUDY_TRAP),
              f"{100 * even:.1f}% (printed: {STUDY_PRINTED}%)", hits)]
    for workload, megabytes in STUDY_RUNS:
        off = need(table, workload, "off", megabytes)
        for config in configs_of(table)[1:]:
            row = need(table, workload, config, megabytes)
            cells = [f"{workload}, {megabytes} MB", TITLES[config]]
            if not row["copied_ahead"]:
                lines.append(cells + ["-", f"{per_fault(off):.0f}", "-", "-"])
                continue
            page = cost_of_page_ahead(off, row)
            even = break_even(page, per_fault(off))
            hits = ("-" if row["wasted"] is None else
                    f"{100 * (1 - row['wasted'] / row['copied_ahead']):.0f}%")
            lines.append(cells + [f"{page:.0f}", f"{per_fault(off):.0f}",
                                  "never" if even is None else f"{100 * even:.1f}%", hits])
    print_table(f"Break-even: used pages for each unused one, copied ahead; here: {unit}",
                ("", "", "a page ahead", "a fault", "break-even", "useful"), lines, left=2)
    print("  break-even = a page ahead / (a fault - a page ahead)")


def single_table(table, unit):
    off, *others = (need(table, "single", config, 16) for config in configs_of(table))
    line = ["here", f"{off['per_page_median']:.0f}"]
    for row in others:
        line += [f"{row['per_page_median']:.0f}",
                 change(row["per_page_median"], off["per_page_median"])]
    study = ["study (ns)", str(STUDY_SINGLE[0]), str(STUDY_SINGLE[1]),
             change(STUDY_SINGLE[1], STUDY_SINGLE[0])]
    head = ["", "off"] + [text for config in configs_of(table)[1:] for text in (TITLES[config], "")]
    print_table(f"A lone write ({unit})", head, [study + ["-"] * (len(line) - len(study)), line])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    args = parser.parse_args()
    rows = measured(read_rows(args.file))
    if not rows:
        raise BadInput(f"{args.file}: every row was skipped")
    table = {(row["workload"], row["config"], row["pages"]): row for row in rows}
    unit = UNITS[rows[0]["mode"]]
    print(f"Linux {rows[0].get('release', rows[0]['kernel'])}, {rows[0]['mode']}: "
          f"{rows[0].get('machine', rows[0]['arch'])}\n")
    print(note_of(rows[0]))
    copy_table(table, unit)
    tail_table(table)
    split_table(table, unit)
    runs_table(table, unit)
    installed_table(table)
    break_even_table(table, unit)
    single_table(table, unit)
    return 0


if __name__ == "__main__":
    run(main)
