#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reports on the output of cow_profile: the time of each section of the kernel's work.

The input is what cow_profile prints, lines of words separated by tabs; see its usage.
Several profiles may follow each other in one file.

Exit status: 0, or 2 for unusable input, with a message.
"""

import argparse
import json
import os
import tempfile
from dataclasses import dataclass, field

from figures import gnuplot
from rowfile import UNITS, BadInput, read_text, run

@dataclass
class Section:
    """One line 'row', or 'absent' for functions that cannot be traced."""
    name: str
    functions: str
    calls: str = ""
    mean: str = "0"         # numbers as cow_profile printed them
    variance: str = "0"
    traced: str = ""
    absent: bool = False


@dataclass
class Profile:
    """One profile: from a line 'what' to a line 'tracer'."""
    what: str               # fork or cow
    mb: str
    count: str
    each: str
    out: tuple = ("", "")   # per cent left out for an interrupt: traced, untraced
    sections: list = field(default_factory=list)
    total: tuple = ("0", "0")               # mean, variance
    untraced: tuple = ("0", "0", "0", "0")  # mean, variance, before, after
    tracer: tuple = ("0", "0", "0")         # calls, cost of a call, cost of being on

    def share(self, value):
        total = float(self.total[0])
        return 100 * float(value) / total if total > 0 else 0

    def difference(self):
        """Of the sections' sum to the untraced run, in per cent."""
        total, untraced = float(self.total[0]), float(self.untraced[0])
        return 100 * (total - untraced) / untraced if untraced > 0 else 100


def read_profiles(path):
    profiles, current = [], None
    for number, line in enumerate(read_text(path).splitlines(), 1):
        key, *words = line.split("\t")
        try:
            if key == "what":
                current = Profile(*words[:4])
            elif key == "left out":
                current.out = (words[0], words[1])
            elif key == "row":
                current.sections.append(Section(*words[:6]))
            elif key == "absent":
                current.sections.append(Section(words[0], words[1], absent=True))
            elif key == "total":
                current.total = (words[0], words[1])
            elif key == "untraced":
                current.untraced = (words[0], words[1], words[2], words[3])
            elif key == "tracer":
                current.tracer = (words[0], words[1], words[2])
                profiles.append(current)
        except (AttributeError, IndexError, TypeError):
            raise BadInput(f"{path}: line {number} is not complete: {line!r}") from None
    if not profiles:
        raise BadInput(f"{path}: no complete profile")
    return profiles


def read_about(path):
    """KEY=TEXT lines: kernel, arch, mode, release, machine."""
    return dict(line.split("=", 1) for line in read_text(path).splitlines())


#
# Numbers
#

class Numbers:
    """Formats numbers: instructions are whole, 12 345 678 is in groups of three."""

    def __init__(self, unit):
        self.unit = unit

    def text(self, value):
        value = float(value)
        whole = f"{value:.0f}"
        if self.unit == "instructions" or abs(value) >= 100 or whole == "0":
            return whole
        return f"{value:.1f}"

    def grouped(self, value):
        text = self.text(value)
        return text if "." in text else f"{int(text):,}".replace(",", " ") if text != "-0" else text


def memory(mb):
    return "smallest process" if float(mb) == 0 else f"{mb} MB written to"


def title(profile):
    if profile.what == "fork":
        return f"fork, {memory(profile.mb)}: {profile.count} forks"
    return f"copy-on-write fault: {profile.count} writes, {float(profile.each):g} faults for each"


#
# table
#

def table(profile, unit):
    grouped = Numbers(unit).grouped
    yield ""
    yield f"{title(profile)}, {unit}"
    yield line_of("section", "calls", "mean", "variance", f"{'share':>7}", "functions")
    for section in profile.sections:
        if section.absent:
            yield line_of(section.name, "-", "-", "-", f"{'-':>7}",
                          f"{section.functions}: not traceable (inlined)")
            continue
        yield line_of(section.name, f"{float(section.calls):.4g}", grouped(section.mean),
                      grouped(section.variance), f"{profile.share(section.mean):5.1f} %",
                      section.functions)
    yield line_of("sum", "", *map(grouped, profile.total), f"{100:5.1f} %")
    yield line_of("untraced", "", *map(grouped, profile.untraced[:2]))
    yield (f"{'difference':<23} {'':6} {profile.difference():11.2f} %  (before the traced run "
           f"{grouped(profile.untraced[2])}, after it {grouped(profile.untraced[3])})")
    calls, cost, idle = profile.tracer
    switched_on = f", and {grouped(idle)} for a tracer that is on" if profile.what == "fork" else ""
    yield (f"Subtracted for tracing: {float(calls):.4g} calls of {grouped(cost)}{switched_on}. Left "
           f"out, for an interrupt: {profile.out[0]} %; untraced {profile.out[1]} %.")


def line_of(name, calls, mean, variance, share=None, functions=None):
    line = f"{name:<23} {calls:>6} {mean:>12} {variance:>14}"
    if share is not None:
        line += f" {share}"
    return line if functions is None else f"{line}  {functions}"


def show_table(args):
    about = read_about(args.about)
    print(f"{about['release']}, {about['machine']}")
    for profile in read_profiles(args.rows):
        print("\n".join(table(profile, UNITS[about["mode"]])))
    print()
    return 0


#
# json
#

def json_rows(profile):
    """Name, functions, traced, calls, mean, variance and share of each section."""
    for section in profile.sections:
        if section.absent:
            yield section.name, section.functions, "", None, None, None, None
        else:
            yield (section.name, section.functions, section.traced, section.calls, section.mean,
                   section.variance, f"{profile.share(section.mean):.3f}")
    yield "sum of the sections", "", "", profile.tracer[0], *profile.total, "100"
    yield ("untraced", "", "", "0", *profile.untraced[:2],
           f"{profile.share(profile.untraced[0]):.3f}")


def print_json(args):
    about = read_about(args.about)
    known = {key: about[key] for key in ("kernel", "arch", "release", "mode")}
    known["unit"] = UNITS[about["mode"]]
    lines = []
    for profile in read_profiles(args.rows):
        for name, functions, traced, *numbers in json_rows(profile):
            numbers = (None if text is None else json.loads(text) for text in numbers)
            lines.append(json.dumps({
                **known, "workload": profile.what, "mb": int(profile.mb),
                "count": int(profile.count), "section": name, "functions": functions,
                "traced": traced, **dict(zip(("calls", "mean", "variance", "share"), numbers))}))
    print("[\n  " + ",\n  ".join(lines) + "\n]")
    return 0


#
# sums, compare
#

def print_sums(args):
    """Workload, MB and the difference in per cent, for each profile."""
    for profile in read_profiles(args.rows):
        print(f"{profile.what} {profile.mb} {profile.difference():.2f}")
    return 0


def differences(old, new):
    """Name, old and new mean of the total and of each section that is compared."""
    yield "total", float(old.total[0]), float(new.total[0])
    before = {section.name: float(section.mean) for section in old.sections}
    for section in new.sections:
        if not section.absent and section.name != "interrupts":
            yield section.name, before.get(section.name, 0.0), float(section.mean)


def verdict(old, new, limit):
    """Each mean must agree within `limit` per cent, or within a tenth of it of the total."""
    total = float(new.total[0])
    pairs = list(differences(old, new))
    bad = [f"{name} {before:.0f} and {after:.0f}" for name, before, after in pairs
           if abs(after - before) > limit / 100 * after
           and abs(after - before) > limit / 1000 * total]
    if bad:
        return "fail", f"the boots do not agree within {limit:g} %: {', '.join(bad)}"
    worst, name = max(((abs(after - before) / total, name) for name, before, after in pairs),
                      key=lambda pair: pair[0])
    return "pass", (f"the total differs by {100 * abs(pairs[0][2] - pairs[0][1]) / total:.2f} %, "
                    f"a section by at most {100 * worst:.2f} % of it ({name})")


def compare(args):
    """The same sections of two boots: workload, MB, verdict and message for each profile."""
    old = {(profile.what, profile.mb): profile for profile in read_profiles(args.old)}
    for new in read_profiles(args.new):
        key = (new.what, new.mb)
        if key not in old:
            raise BadInput(f"{args.old}: no profile {' '.join(key)}")
        print(*key, *verdict(old[key], new, args.limit), sep="\t")
    return 0


#
# chart: a panel for each profile, a bar for each section
#

def short_title(profile, numbers):
    total = numbers.grouped(profile.total[0])
    if profile.what != "fork":
        return f"4 KiB page: {total}"
    return f"{'smallest process' if float(profile.mb) == 0 else profile.mb + ' MB'}: {total}"


def bars(profile, numbers):
    """A block of data: line, mean and text of each bar."""
    for line, section in enumerate(profile.sections, 1):
        text = f"{numbers.grouped(section.mean)} ({profile.share(section.mean):.1f} %)"
        mean = section.mean if float(section.mean) > 0 else 0
        yield f'{line}\t{mean}\t"{"inlined" if section.absent else text}"\n'


def longest(profile):
    """The longest bar, and the step of its axis."""
    text = max(["1"] + [section.mean for section in profile.sections], key=float)
    step = 1
    while step * 10 <= float(text):
        step *= 10
    return text, step * 2 if float(text) / step > 4 else step


def words(texts):
    """A list for gnuplot's word()."""
    return " ".join(f'"{text}"' for text in texts)


def draw_chart(args):
    about = read_about(args.about)
    profiles = read_profiles(args.rows)
    unit = UNITS[about["mode"]]
    numbers = Numbers(unit)
    what = "a fork" if profiles[0].what == "fork" else "a copy-on-write fault"
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "plot.data"), "w", encoding="utf-8") as file:
            file.write("\n\n".join("".join(bars(profile, numbers)) for profile in profiles))
        gnuplot("sections.gp", folder, data="plot.data", out=os.path.abspath(args.svg),
                caption=f"Where the time of {what} goes: Linux {about['release']}, {unit}",
                panels=len(profiles),
                titles=words(short_title(profile, numbers) for profile in profiles),
                longest=" ".join(longest(profile)[0] for profile in profiles),
                steps=" ".join(str(longest(profile)[1]) for profile in profiles),
                labels=words(section.name for section in profiles[0].sections))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, function, text in (("table", show_table, "tables"),
                                 ("json", print_json, "the rows as a JSON array"),
                                 ("chart", draw_chart, "a bar chart")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--about", required=True, help="KEY=TEXT lines of the run")
        command.add_argument("rows")
        command.set_defaults(run=function)
    commands.choices["chart"].add_argument("--svg", required=True, help="the file to write")
    command = commands.add_parser("sums", help="workload, MB and difference to the untraced run")
    command.add_argument("rows")
    command.set_defaults(run=print_sums)
    command = commands.add_parser("compare", help="do two boots agree?")
    command.add_argument("--limit", type=float, required=True, help="in per cent")
    command.add_argument("old")
    command.add_argument("new")
    command.set_defaults(run=compare)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    run(main)
