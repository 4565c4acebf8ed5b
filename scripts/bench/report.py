#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A report of benchmarks: one self-contained HTML page.

ROWS are the rows of 'bench', --window rows of some workloads with every size of the
window, --apps rows of 'bench redis' and 'bench prefork'. Rows may have the distribution
of single writes ('cdf') and the progress of a snapshot ('timeline'). --html is the page
to write, --plots a folder for plots that a README can show. Needs gnuplot.

With neither --html nor --plots it only checks the files.

Exit status: 0 good, 2 unusable input, with a message.
"""

import argparse
import os
import re
import statistics
import tempfile

from figures import Plots, escape, panels
from rowfile import (BadInput, REFERENCE, UNITS, by_identity, groups, half_spread, measured, parse,
                     ratio_to_off, read_rows, read_text, run, whole)

FLOORS = ("populate-write", "memcpy", "nofork")
# Names of configurations with a window, without its size
KINDS = {"fixed": "fixed", "adaptive": "adaptive"}
CDF_WORKLOADS = ("seq", "random")
CDF_CONFIGS = ("off", "fixed-1", "fixed-15", "adaptive")

STYLE = """
:root { color-scheme: light dark; --line: #d0d4da; --soft: #5b6570; --shade: #f4f6f8; --page: #fff; --ink: #1d2329; }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a424c; --soft: #9aa5b1; --shade: #1d232a; --page: #14181d; --ink: #e3e8ee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p, figcaption, dd { max-width: 46rem; }
p.note, figcaption { color: var(--soft); font-size: .9rem; margin: .25rem 0 .75rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 1rem 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1.5rem; }
.plots + .plots { margin-top: 1.5rem; }
figure { margin: 0; min-width: 0; max-width: 37rem; }
figure svg { display: block; width: 100%; height: auto; }
figure strong { display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
tr.off td { background: var(--shade); }
nav { font-size: .9rem; columns: 12rem; margin: 1rem 0; }
nav a { display: block; color: inherit; }
"""

APP_VALUES = {"requests_per_second": "requests/s", "p50_us": "P50", "p99_us": "P99",
              "p999_us": "P99.9", "faults": "faults", "cow_bytes": "memory copied",
              "pss_kb": "PSS"}

COLUMNS = (
    ("median", "per page written, median of the repetitions"),
    ("±", "half of the difference between the slowest and the fastest repetition"),
    ("of off", "relative to nothing copied ahead, in the same boot"),
    ("overhead", "without the page copies themselves; unknown where several CPUs copied at the same time"),
    ("faults", "of the writing threads"),
    ("copied", "by a fault on that very page"),
    ("ahead", "copied before the program wrote to it"),
    ("wasted", "copied and never written"),
    ("reused", "made writable without a copy"),
    ("reused ahead", "the same before the program wrote to it"),
    ("P50", "of single writes"), ("P90", ""), ("P99", ""), ("P99.9", ""), ("max", ""),
    ("TLB", "entries flushed on the CPU that writes"),
    ("TLB requests", "to other CPUs, each for a range of entries"),
)


def window_of(row, kind):
    """The size of the row's window in pages, or None."""
    if row["config"] == REFERENCE:
        return 0
    match = re.fullmatch(kind + r"-(\d+)", row["config"])
    return int(match.group(1)) if match else None


def by_window(rows, value, more=""):
    """Pairs of a name and points: fixed and adaptive windows by size."""
    for kind, text in KINDS.items():
        points = sorted((window_of(row, kind), value(row)) for row in rows
                        if window_of(row, kind) is not None and value(row) is not None)
        if len(points) > 1:
            yield text + more, points


def cost_plot(plots, workload, rows, unit):
    series = list(by_window(rows, lambda row: row["per_page_median"]))
    if not series:
        return ""
    most = max(value for _, points in series for _, value in points)
    last = max(x for _, points in series for x, _ in points)
    dashed = list(by_window(rows, lambda row: row["overhead_median"], ", overhead"))
    dashed += [(row["config"], [(0, row["per_page_median"]), (last, row["per_page_median"])])
               for row in rows if row["config"] in FLOORS and row["per_page_median"] < 4 * most]
    return plots.lines("window", workload, f"{unit} per page written", "pages ahead, at most",
                       unit, series, dashed)


def longest_plot(plots, workload, rows, unit):
    series = list(by_window(rows, lambda row: row["max"]))
    if not series:
        return ""
    return plots.lines("window", f"{workload}: the longest write",
                       f"{unit}; dashed: P99",
                       "pages ahead, at most", unit, series,
                       list(by_window(rows, lambda row: row["p99"], ", P99")))


def window_plots(plots, rows, unit):
    yield "<h2 id=window>The window</h2>"
    yield ("<p>The cost of a page if a fault copies a fixed number of pages ahead, or as many as "
           "the kernel chooses up to a limit, for some orders of writing. Dashed: the overhead "
           "(the cost without the copies themselves), the lower bounds, and "
           "<code>MADV_POPULATE_WRITE</code>.</p><div class=plots>")
    by_workload = [(key[0], some) for key, some in groups(rows, "workload")]
    for workload, some in by_workload:
        yield cost_plot(plots, workload, some, unit)
    yield "</div><div class=plots>"
    for workload, some in by_workload:
        if workload in CDF_WORKLOADS:
            yield longest_plot(plots, workload, some, unit)
    yield "</div><div class=plots>"
    for kind, text in KINDS.items():
        for key, title, caption in (("faults", "Faults", "for 100 pages written"),
                                    ("wasted", "Waste", "pages copied and never written, for 100 written")):
            series = []
            for workload, some in by_workload:
                points = sorted((window_of(row, kind), 100 * row[key] / row["written"])
                                for row in some
                                if window_of(row, kind) is not None and row[key] is not None)
                if len(points) > 1:
                    series.append((workload, points))
            if series:
                yield plots.lines("window", f"{title}, {text}", caption, "pages ahead, at most",
                                  "", series)
    yield "</div>"


def cdf_plots(plots, rows, unit):
    some = [row for row in rows if row["workload"] in CDF_WORKLOADS and row.get("cdf")
            and row["config"] in CDF_CONFIGS]
    if not some:
        return
    yield "<h2 id=latency>Single writes</h2>"
    yield ("<p>The distribution of the time of single writes. With a window most writes find "
           "their page already copied; a few faults pay for the copies.</p><div class=plots>")
    for (workload, pages), same in groups(some, "workload", "pages"):
        series = [(row["config"], cdf_points(row)) for row in same]
        yield plots.lines("cdf", f"{workload}, {pages} pages",
                          "share of the writes that took that long or less",
                          unit, "% of writes", series)
    yield "</div>"


def cdf_points(row):
    try:
        points = [(float(time), float(count)) for time, count in row["cdf"]]
    except (TypeError, ValueError):
        raise BadInput(f"{row['workload']} {row['config']}: 'cdf' is not a list of pairs") from None
    last = points[-1][1]
    first = max(points[0][0], 1)
    return [(first * 0.9, 0)] + [(max(time, 1), 100 * count / last) for time, count in points]


def timeline_plots(plots, rows, mode):
    some = [row for row in rows if row.get("timeline") and row["config"] in CDF_CONFIGS]
    if not some:
        return
    unit = "million instructions" if mode == "icount" else "ms"
    yield "<h2 id=snapshot>The snapshot</h2>"
    yield ("<p>Threads write all words of an array while a forked child copies the array and "
           "unmaps what it has copied.</p><div class=plots>")
    for (workload, pages), same in groups(some, "workload", "pages"):
        series = [(row["config"], course(row, 1)) for row in same]
        floors = [(f"{row['config']}, saved", course(row, 2)) for row in same]
        yield plots.lines("time", f"{workload}, {pages} pages",
                          "pages written so far; dashed: saved by the child",
                          unit, "pages", series, floors)
    yield "</div>"


def course(row, column):
    try:
        return [(point[0] / 1e6, float(point[column])) for point in row["timeline"]]
    except (TypeError, ValueError, IndexError):
        raise BadInput(f"{row['workload']} {row['config']}: 'timeline' is no list of points") from None


#
# Real programs
#

def app_plots(plots, rows):
    """Medians of the runs, each relative to 'off' of the same run."""
    if not rows:
        return
    yield "<h2 id=apps>Real programs</h2>"
    yield ("<p>The median of the runs, each relative to <em>off</em> of the same run: 1 is no "
           "change. Less is better, except for requests.</p><div class=plots>")
    for (app, pattern), some in groups(rows, "app", "pattern"):
        configs = list(dict.fromkeys(row["config"] for row in some))
        bars = []
        for key, label in APP_VALUES.items():
            values = [app_ratio(some, config, key) for config in configs]
            if None not in values:
                bars.append((label, values))
        if bars:
            yield plots.bars(f"{app}, {pattern}", f"{len(some) // len(configs)} runs",
                             "of off", bars, configs)
    yield "</div>"


def app_ratio(rows, config, key):
    """The median of the ratios to 'off' of the same run, in the same boot"""
    off = {(row["boot"], row["run"]): row.get(key) for row in rows if row["config"] == REFERENCE}
    ratios = [row[key] / off[row["boot"], row["run"]] for row in rows
              if row["config"] == config and row.get(key) is not None
              and off.get((row["boot"], row["run"]))]
    return round(statistics.median(ratios), 4) if ratios else None


def read_apps(path):
    rows = parse(read_text(path), path)
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"{path}: not an array of rows")
    for number, row in enumerate(rows, 1):
        for key in ("app", "pattern", "config"):
            if not isinstance(row, dict) or not isinstance(row.get(key), str):
                raise BadInput(f"{path}: row {number}: no '{key}': not of 'bench redis' or 'bench prefork'")
        if not isinstance(row.get("run"), int):
            raise BadInput(f"{path}: row {number}: no 'run'")
        for key in APP_VALUES:
            if not isinstance(row.get(key, 0), (int, float)):
                raise BadInput(f"{path}: row {number}: '{key}' is not a number: {row[key]!r}")
        row["boot"] = path
    return rows


#
# Tables
#

def cells(row, table):
    values = [row["config"], whole(row["per_page_median"]), f"{half_spread(row):.1f}%",
              ratio_to_off(row, table)]
    values += [whole(row[key]) for key in (
        "overhead_median", "faults", "copied", "copied_ahead", "wasted", "reused", "reused_ahead")]
    return values + [whole(row.get(key)) for key in ("p50", "p90", "p99", "p999", "max",
                                                     "tlb_flushes", "tlb_shootdowns")]


def workload_table(rows, table):
    yield "<div class=scroll><table><thead><tr><th>configuration</th>"
    for name, what in COLUMNS:
        yield f'<th title="{escape(what)}">{escape(name)}</th>'
    yield "</tr></thead><tbody>"
    for row in measured(rows):
        yield "<tr class=off>" if row["config"] == REFERENCE else "<tr>"
        yield "".join(f"<td>{escape(cell)}</td>" for cell in cells(row, table)) + "</tr>"
    yield "</tbody></table></div>"
    reasons = {}
    for row in rows:
        if "skipped" in row:
            reasons.setdefault(row["skipped"], []).append(row["config"])
    for reason, configs in reasons.items():
        yield f"<p class=note>Not run: {escape(', '.join(configs))}: {escape(reason)}.</p>"


def tables(rows):
    table = by_identity(rows)
    yield "<h2 id=tables>All workloads</h2>"
    yield ("<p class=note>Per page written, unless the heading says otherwise. The row "
           "<em>off</em> copies nothing ahead. Hover over a "
           "heading for its meaning.</p>")
    parts = list(groups(rows, "workload", "pages"))
    yield "<nav>" + "".join(f'<a href="#{escape(w)}-{n}">{escape(w)}, {n} pages</a>'
                            for (w, n), _ in parts) + "</nav>"
    for (workload, pages), some in parts:
        unit = next((row["unit"] for row in some if row.get("unit")), "page")
        each = "" if unit == "page" else f", per {escape(unit)}"
        yield f'<h3 id="{escape(workload)}-{pages}">{escape(workload)}, {pages} pages{each}</h3>'
        yield from workload_table(some, table)


#
# The page
#

MEANING = {
    "icount": "Instructions of the guest, which has one CPU whose clock counts them: exact and "
              "machine-independent, but not a measure of time. Cache misses, TLB misses and traps "
              "cost nothing extra.",
    "wall": "Nanoseconds of this boot on this machine. Only ratios within one boot are meaningful; "
            "absolute values cannot be compared with another boot.",
}


def head(row):
    series = "without the series" if row.get("series") == "without" else \
        "with the series (CONFIG_COW_STATS, CONFIG_COW_PRECOPY)"
    facts = (
        ("Kernel", f"Linux {row.get('release', row['kernel'])}, {row['arch']}, {series}"),
        ("Configuration", "fixtures/config: common, qemu, x86_64, bench (no debugging checks); "
                          "booted with norandmaps"),
        ("Compiler", row.get("compiler", "-")),
        ("Machine", row.get("machine", "-")),
        ("Unit", MEANING[row["mode"]]),
    )
    yield f"<h1>Copy-on-write faults: benchmarks on Linux {escape(row['kernel'])}</h1>"
    yield "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
                           for name, text in facts) + "</dl>"


def page(rows, window, apps, plots):
    some = rows or apps
    mode = some[0].get("mode", "wall")
    unit = UNITS[mode]
    yield "<!doctype html><html lang=en><head><meta charset=utf-8>"
    yield '<meta name=viewport content="width=device-width, initial-scale=1">'
    yield f"<title>Copy-on-write benchmarks, Linux {escape(some[0].get('kernel', ''))}</title>"
    yield f"<style>{STYLE}</style></head><body>"
    yield from head({"kernel": "-", "arch": "-", "mode": mode, **some[0]})
    if window:
        yield from window_plots(plots, window, unit)
    if rows:
        yield from cdf_plots(plots, measured(rows), unit)
        yield from timeline_plots(plots, measured(rows), mode)
    yield from app_plots(plots, apps)
    if rows:
        yield from tables(rows)
    yield "</body></html>"


#
# Plots for a README
#

# How many stand side by side, if not two
COLUMNS_OF = {"window": 3}


def write_plots(folder, kernel, rows, window, apps, plots):
    """Write WHAT-KERNEL.svg for each kind of plot that has data."""
    mode = (rows or apps)[0].get("mode", "wall")
    unit = UNITS[mode]
    parts = {}
    for key, some in groups(window, "workload"):
        cost_plot(plots, key[0], some, unit)
    parts["window"], plots.drawings = plots.drawings, []
    list(cdf_plots(plots, measured(rows), unit))
    for key, some in groups(window, "workload"):
        if key[0] in CDF_WORKLOADS:
            longest_plot(plots, key[0], some, unit)
    parts["latency"], plots.drawings = plots.drawings, []
    list(timeline_plots(plots, measured(rows), mode))
    parts["snapshot"], plots.drawings = plots.drawings, []
    list(app_plots(plots, apps))
    parts["apps"] = plots.drawings
    for name, drawings in parts.items():
        if drawings:
            path = os.path.join(folder, f"{name}-{kernel}.svg")
            with open(path, "w", encoding="utf-8") as file:
                file.write("\n".join(panels(drawings, min(len(drawings), COLUMNS_OF.get(name, 2)))) + "\n")
            print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--html", metavar="FILE")
    parser.add_argument("--plots", metavar="DIR")
    parser.add_argument("--window", metavar="ROWS")
    parser.add_argument("--apps", metavar="ROWS", action="append", default=[])
    parser.add_argument("rows", nargs="?")
    args = parser.parse_args()
    rows = read_rows(args.rows) if args.rows else []
    window = measured(read_rows(args.window)) if args.window else []
    apps = [row for path in args.apps for row in read_apps(path)]
    if not args.html and not args.plots:
        return 0
    if not rows and not apps:
        raise BadInput("nothing to report: neither rows nor --apps")
    with tempfile.TemporaryDirectory() as folder:
        if args.html:
            text = "\n".join(page(rows, window, apps, Plots(folder)))
            with open(args.html, "w", encoding="utf-8") as file:
                file.write(text)
        if args.plots:
            kernel = (rows or apps)[0].get("kernel", "unknown")
            write_plots(args.plots, kernel, rows, window, apps, Plots(folder))
    return 0


if __name__ == "__main__":
    run(main)
