# SPDX-License-Identifier: GPL-2.0
"""Two files of the same rows: is the second better, the same or worse?"""

from rowfile import (BadInput, BUILT_BY, REFERENCE, by_identity, groups, half_spread, identity, name,
                     read_rows, reasons, reference_of, table_lines, whole, write_results)

# Recorded for information: threads on several CPUs, so that the scheduler decides.
INFORMATION = ("snapshot",)

# How far two measurements may differ, in per cent.
TOLERANCE = {"icount": 1.0, "wall": 5.0}
# Instructions relative to 'off', if compiler or kernel release differ.
TOLERANCE_RELATED = 3.0
# Repetitions of instructions that differ by more than so many times the noise are a cost
# that the median does not show.
SPREAD = 2.0


def need_same_rows(old, new, where, skipped):
    """Raise BadInput with the names of rows that only one file has."""
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
    """The rows of both files by identity, and the rows skipped in the new one."""
    files = (args.old, args.new)
    rows = [[row for row in read_rows(path) if row["workload"] not in INFORMATION]
            for path in files]
    tables = [by_identity(some) for some in rows]
    for path, table in zip(files, tables):
        if not table:
            raise BadInput(f"{path}: every row was skipped, or is of {', '.join(INFORMATION)}, "
                           "which is not compared")
    need_same_rows(*tables, files, [reasons(some) for some in rows])
    return tables, [row for row in rows[1] if "skipped" in row]


def same_build(old, new):
    """Same kernel release and compiler, as far as both are known?"""
    return all(old.get(key) == new.get(key) for key in BUILT_BY
               if key in old and key in new)


class Verdict:
    """The result for one row: better, same, worse, reference or not judged."""

    def __init__(self, old, new, tables, args):
        self.row = new
        self.related = new["mode"] == "wall" or not (args.absolute or same_build(old, new))
        values = [self.value(row, table) for row, table in zip((old, new), tables)]
        self.ratio = values[1] / values[0] if all(values) else None
        self.tolerance = args.tolerance
        if self.tolerance is None:
            self.tolerance = TOLERANCE[new["mode"]]
            if self.related:
                self.tolerance = max(self.tolerance, TOLERANCE_RELATED)
        self.noise = self.noise_of((old, new), tables)
        self.wasted = self.more_wasted(old, new)
        self.text, self.reason = self.judge(values)

    @staticmethod
    def more_wasted(old, new):
        """Change of the pages copied and never written, in per cent of those written."""
        if None in (old["wasted"], new["wasted"]) or not new["written"]:
            return 0.0
        return 100.0 * (new["wasted"] - old["wasted"]) / new["written"]

    def value(self, row, table):
        """The cost per page; if self.related, relative to 'off' of the same boot."""
        if not self.related:
            return row["per_page_median"]
        off = reference_of(row, table)
        if not off or not off["per_page_median"]:
            return None
        return row["per_page_median"] / off["per_page_median"]

    def noise_of(self, pair, tables):
        """Of time, the spread of both. Instructions are repeatable: only of the old ones."""
        both = list(zip(pair, tables))
        if self.row["mode"] == "icount":
            both = both[:1]
        rows = [row for row, _ in both]
        if self.related:
            rows += [reference_of(row, table) or row for row, table in both]
        return max([self.tolerance] + [half_spread(row) for row in rows])

    def judge(self, values):
        # a count of pages, exact in any mode
        if self.wasted > self.tolerance:
            return "worse", "wasted"
        if self.row["mode"] == "icount" and half_spread(self.row) > SPREAD * self.noise:
            return "worse", "spread"
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
        if self.wasted < -self.tolerance:
            return "better", "wasted"
        return "same", ""

    def result(self):
        status = {"worse": "fail", "better": "pass", "same": "pass"}.get(self.text, "skip")
        message = f"{self.text} {self.reason}".strip()
        if self.ratio is not None:
            message += f" (ratio {self.ratio:.4f}, noise {self.noise:.1f} %)"
        return status, name(self.row), message


def compare(args):
    tables, skipped = read_pair(args)
    verdicts = [Verdict(old, tables[1][key], tables, args)
                for key, old in tables[0].items()]
    if all(verdict.text in ("reference", "not judged") for verdict in verdicts):
        raise BadInput(f"no row has a row '{REFERENCE}' beside it: nothing can be compared")
    show_verdicts(verdicts, tables)
    some = {row["workload"] for path in (args.old, args.new) for row in read_rows(path)}
    for workload in some.intersection(INFORMATION):
        print(f"not compared, only for information: {workload}")
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
        print(f"Costs are compared relative to '{REFERENCE}' of the same boot: the clock is real time,")
        print("or another compiler or kernel release was used.\n")
    for line in table_lines(head, lines, left=4):
        print(line)
    print()
    texts = [verdict.text for verdict in verdicts]
    print(", ".join(f"{texts.count(text)} {text}" for text in dict.fromkeys(
        ["better", "same", "worse"] + texts)))


def repeat(args):
    """Do two boots agree within args.limit per cent in every row?"""
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
