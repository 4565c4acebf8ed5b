# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# A reader of the copy-on-write counters for Python programs, which also prints them
# for Prometheus.
"""The copy-on-write counters of the kernel, in a Python program

As a module: read() and read_pid() return the counts by the names that the
kernel's files have. See Documentation/admin-guide/mm/cow.rst for these.

As a program: python3 cow_stats.py [--proc DIR] [PID...]

prints the counts of the system, and of these processes, in the text format of
Prometheus, for the textfile collector of node_exporter:

  python3 cow_stats.py > cow.prom.new && mv cow.prom.new DIRECTORY/cow.prom
"""

import argparse
import os
import sys

PROC = "/proc"

# Counts that do not only grow, and what follows from others
NOT_COUNTERS = ("max_ns", "min_ns", "avg_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns",
                "fault_p50_ns", "fault_p99_ns", "fault_max_ns")


class Malformed(Exception):
    """A line that is not "name: number", or no line at all"""


def parse(text, path):
    counts = {}
    for line in text.splitlines():
        name, colon, number = line.partition(": ")
        if not (name and colon and number.isascii() and number.isdigit()) or name in counts:
            raise Malformed(f"{path}: '{line}'")
        counts[name] = int(number)
    if "faults" not in counts:
        raise Malformed(f"{path}: no 'faults'")
    return counts


def read_file(path):
    with open(path, encoding="ascii") as file:
        return parse(file.read(), path)


def read(proc=None):
    """The counts of the whole system since the last reset.

    Raises FileNotFoundError on a kernel without CONFIG_COW_STATS.
    """
    return read_file(f"{proc or PROC}/cow_stats")


def read_pid(pid="self", proc=None):
    """The counts of one process, and of the children that it has waited for."""
    return read_file(f"{proc or PROC}/{pid}/cow_stats")


def metric(name):
    """The name that Prometheus wants, and how many of ours are one of its unit"""
    if name.endswith("_ns"):
        return f"cow_{name[:-3]}_seconds_total", 1e9
    return f"cow_{name}_total", 1


def prometheus(samples):
    """samples: pairs of labels and counts; lines of one name have to be together."""
    names = {name: None for _, counts in samples for name in counts if name not in NOT_COUNTERS}
    for name in names:
        title, unit = metric(name)
        yield f"# TYPE {title} counter"
        for labels, counts in samples:
            if name in counts:
                value = counts[name] if unit == 1 else counts[name] / unit
                yield f"{title}{labels} {value}"


def process(text):
    """For argparse: the number of a process"""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a process id")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proc", default=PROC, metavar="DIR",
                        help="read the files in DIR instead of those in /proc")
    parser.add_argument("pid", nargs="*", type=process)
    args = parser.parse_args()
    try:
        samples = [("", read(args.proc))]
        # each once: a collector refuses a line that occurs twice
        for pid in dict.fromkeys(args.pid):
            samples.append((f'{{pid="{pid}"}}', read_pid(pid, args.proc)))
    except FileNotFoundError as error:
        what = "no such process" if os.path.exists(f"{args.proc}/cow_stats") else \
               "kernel without CONFIG_COW_STATS"
        print(f"cow_stats.py: {error.filename}: {what}", file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError, Malformed) as error:
        print(f"cow_stats.py: {error}", file=sys.stderr)
        return 2
    try:
        print("\n".join(prometheus(samples)), flush=True)
    except OSError as error:
        print(f"cow_stats.py: cannot write: {error.strerror}", file=sys.stderr)
        # not once more, at exit
        os._exit(2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
