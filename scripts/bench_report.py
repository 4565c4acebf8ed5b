#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A report of benchmarks: one HTML page that needs nothing else.

OUT is the page, ROWS what was measured, WINDOW (may be missing) rows of some
workloads with every size of the window. Rows may hold the distribution of single
writes ('cdf') and the course of a snapshot ('timeline'). Plots are drawn by gnuplot.

Exit status: 0 good, 2 unusable input, with a message.
"""

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile

from bench_rows import (BadInput, REFERENCE, UNITS, by_identity, groups, half_spread,
                        measured, read_rows, reference_of, whole)

# Fair on white and on black; the first ones in turn, the others by name
COLOURS = ("#3b82c4", "#d9772b", "#3a9d5d", "#b04bb8", "#c4453b", "#8a7a3a")
COLOUR_OF = {"populate-write": "#3a9d5d", "memcpy": "#b04bb8", "nofork": "#c4453b"}

HERE = os.path.dirname(os.path.abspath(__file__))
FLOORS = ("populate-write", "memcpy", "nofork")
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

COLUMNS = (
    ("median", "per page written, median of the repetitions"),
    ("±", "half of what the repetitions differ by"),
    ("of off", "in relation to nothing copied ahead, in the same boot"),
    ("overhead", "without the page copies themselves"),
    ("faults", "of the writing threads"),
    ("copied", "by a fault on that very page"),
    ("ahead", "copied before the program wrote to it"),
    ("wasted", "copied and never written"),
    ("reused", "made writable without a copy"),
    ("reused ahead", "the same before the program wrote to it"),
    ("P50", "of single writes"), ("P90", ""), ("P99", ""), ("P99.9", ""), ("max", ""),
)


def escape(text):
    return html.escape(str(text))


#
# Plots
#

class Plots:
    """Draws with gnuplot in a folder of its own; counts, so that ids differ."""

    def __init__(self, folder):
        self.folder = folder
        self.number = 0

    def lines(self, kind, title, caption, xtext, ytext, series, dashed=()):
        """A figure; series and dashed are pairs of a name and (x, y) points."""
        self.number += 1
        data = os.path.join(self.folder, f"{self.number}.dat")
        out = os.path.join(self.folder, f"{self.number}.svg")
        with open(data, "w", encoding="utf-8") as file:
            for name, points in list(series) + list(dashed):
                file.write(f'"{name}"\n')
                file.writelines(f"{x} {y}\n" for x, y in points)
                file.write("\n\n")
        colours = [COLOURS[i % len(COLOURS)] for i in range(len(series))]
        colours += [COLOUR_OF.get(name, COLOURS[i % len(COLOURS)])
                    for i, (name, _) in enumerate(dashed)]
        style = {"window": "linespoints pointtype 7 pointsize 0.5", "cdf": "fsteps", "time": "lines"}
        settings = (f"data='{data}'; out='{out}'; solid={len(series)}; xtext='{xtext}'; "
                    f"ytext='{ytext}'; style='{style[kind]}'; kind='{kind}'; "
                    f"colours='{' '.join(colours)}'")
        done = subprocess.run(["gnuplot", "-e", settings, os.path.join(HERE, "bench-lines.gp")],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise BadInput(f"gnuplot: {done.stderr.strip()}")
        with open(out, encoding="utf-8") as file:
            drawing = self.inline(file.read(), title)
        return (f"<figure><strong>{escape(title)}</strong>"
                f"<figcaption>{escape(caption)}</figcaption>{drawing}</figure>")

    def inline(self, svg, title):
        """gnuplot's file as part of a page: no ids twice, the page's own colours."""
        svg = svg[svg.index("<svg"):]
        svg = re.sub(r"<title>.*?</title>", "", svg, flags=re.S)
        svg = re.sub(r"\bgp(Pt\d+|Dot|Mark)", rf"gp{self.number}\1", svg)
        svg = re.sub(r'id="(gnuplot_[^"]*)"', rf'id="p{self.number}\1"', svg)
        svg = re.sub(r"""(fill|stroke) ?= ?(["'])black\2""", r'\1="currentColor"', svg)
        svg = re.sub(r"""\bcolor=(["'])black\1""", "", svg)
        svg = re.sub(r"rgb\( *0, *0, *0\)", "currentColor", svg)
        return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def ahead(row):
    """How many pages the row's window is ahead, or None."""
    if row["config"] == REFERENCE:
        return 0
    match = re.fullmatch(r"fixed-(\d+)", row["config"])
    return int(match.group(1)) if match else None


def window_plots(plots, rows, unit):
    yield "<h2 id=window>The window</h2>"
    yield ("<p>What a page costs if a fault copies a fixed number of pages ahead, for some orders "
           "of writing. Dashed: the floors, and what a program can do itself "
           "(<code>MADV_POPULATE_WRITE</code>).</p><div class=plots>")
    by_workload = [(key[0], some) for key, some in groups(rows, "workload")]
    for workload, some in by_workload:
        points = sorted((ahead(row), row) for row in some if ahead(row) is not None)
        series = [("in all", [(n, row["per_page_median"]) for n, row in points])]
        left = [(n, row["overhead_median"]) for n, row in points
                if row["overhead_median"] is not None]
        if left:
            series.append(("without the copies", left))
        floors = [(row["config"], [(0, row["per_page_median"]), (15, row["per_page_median"])])
                  for row in some if row["config"] in FLOORS
                  and row["per_page_median"] < 4 * max(value for _, value in series[0][1])]
        yield plots.lines("window", workload, f"{unit} per page written", "pages ahead", unit, series, floors)
    yield "</div><div class=plots>"
    for key, title, caption in (("faults", "Faults", "for 100 pages written"),
                                ("wasted", "Waste", "pages copied and never written, for 100 written")):
        series = []
        for workload, some in by_workload:
            points = sorted((ahead(row), 100 * row[key] / row["written"]) for row in some
                            if ahead(row) is not None and row[key] is not None)
            if points:
                series.append((workload, points))
        if series:
            yield plots.lines("window", title, caption, "pages ahead", "", series)
    yield "</div>"


def cdf_plots(plots, rows, unit):
    some = [row for row in rows if row["workload"] in CDF_WORKLOADS and row.get("cdf")
            and row["config"] in CDF_CONFIGS]
    if not some:
        return
    yield "<h2 id=latency>Single writes</h2>"
    yield ("<p>How long one write takes, of all writes: with a window most writes find their page "
           "already copied, and a few pay for all of them.</p><div class=plots>")
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
    yield ("<p>Threads write all words of an array while a child that was forked for it copies the "
           "array and unmaps what it has copied.</p><div class=plots>")
    for (workload, pages), same in groups(some, "workload", "pages"):
        series = [(row["config"], course(row, 1)) for row in same]
        floors = [(f"saved, {row['config']}", course(row, 2)) for row in same]
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
# Tables
#

def cells(row, table):
    off = reference_of(row, table)
    ratio = "-"
    if off and off["per_page_median"]:
        ratio = f"{row['per_page_median'] / off['per_page_median']:.3f}"
    values = [row["config"], whole(row["per_page_median"]), f"{half_spread(row):.1f}%", ratio]
    values += [whole(row[key]) for key in (
        "overhead_median", "faults", "copied", "copied_ahead", "wasted", "reused", "reused_ahead")]
    return values + [whole(row.get(key)) for key in ("p50", "p90", "p99", "p999", "max")]


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
    yield ("<p class=note>Per page written, or whatever else the heading says. The row "
           "<em>off</em> is the kernel as it is, copying nothing ahead. The columns explain "
           "themselves when pointed at.</p>")
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
    "icount": "Instructions of the guest, which has one CPU whose clock counts them: exact, the same "
              "on any machine, and not time. No cache or TLB miss and no trap costs extra.",
    "wall": "Nanoseconds of this boot on this machine. Only ratios within it mean anything; absolute "
            "values cannot be compared with another boot.",
}


def head(rows):
    row = rows[0]
    series = "without the series" if row.get("series") == "without" else \
        "with the series (CONFIG_COW_STATS, CONFIG_COW_PRECOPY)"
    facts = (
        ("Kernel", f"Linux {row.get('release', row['kernel'])}, {row['arch']}, {series}"),
        ("Configuration", "fixtures/config: common, x86_64, bench (no debugging checks); "
                          "booted with norandmaps"),
        ("Compiler", row.get("compiler", "-")),
        ("Machine", row.get("machine", "-")),
        ("Unit", MEANING[row["mode"]]),
    )
    yield f"<h1>Copy-on-write faults: benchmarks on Linux {escape(row['kernel'])}</h1>"
    yield "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
                           for name, text in facts) + "</dl>"


def page(rows, window, plots):
    mode = rows[0]["mode"]
    unit = UNITS[mode]
    yield "<!doctype html><html lang=en><head><meta charset=utf-8>"
    yield '<meta name=viewport content="width=device-width, initial-scale=1">'
    yield f"<title>Copy-on-write benchmarks, Linux {escape(rows[0]['kernel'])}</title>"
    yield f"<style>{STYLE}</style></head><body>"
    yield from head(rows)
    if window:
        yield from window_plots(plots, window, unit)
    yield from cdf_plots(plots, measured(rows), unit)
    yield from timeline_plots(plots, measured(rows), mode)
    yield from tables(rows)
    yield "</body></html>"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("rows")
    parser.add_argument("window", nargs="?")
    args = parser.parse_args()
    try:
        rows = read_rows(args.rows)
        window = measured(read_rows(args.window)) if args.window else []
        with tempfile.TemporaryDirectory() as folder:
            text = "\n".join(page(rows, window, Plots(folder)))
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    except (BadInput, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
