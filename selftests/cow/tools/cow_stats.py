# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# A reader of the copy-on-write counters for Python programs, which also prints them
# for Prometheus.
"""The copy-on-write counters of the kernel, in a Python program

As a module: read(), read_pid() and read_vmstat() return the counts by the names
that the kernel's files have. See Documentation/admin-guide/mm/cow.rst for these.

As a program: python3 cow_stats.py [--proc DIR] [PID...]

prints the counts of the system, and of these processes, in the text format of
Prometheus, for the textfile collector of node_exporter:

  python3 cow_stats.py > cow.prom.new && mv cow.prom.new DIRECTORY/cow.prom

The pgcow_* counts of /proc/vmstat are among them. A kernel without CONFIG_COW_STATS
has only these. A process that has ended is left out.
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


class NoMemory(Malformed):
    """An empty file: that of a process without an address space"""


def parse(text, path):
    if not text:
        raise NoMemory(f"{path} is empty")
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


def read_vmstat(proc=None):
    """What every kernel of the series counts, since boot; empty on others."""
    try:
        with open(f"{proc or PROC}/vmstat", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except FileNotFoundError:
        return {}
    return {line[0]: int(line[1]) for line in lines
            if len(line) == 2 and line[0].startswith("pgcow_") and line[1].isdigit()}


def metric(name, prefix):
    """The name that Prometheus wants, and how many of ours are one of its unit"""
    if name.endswith("_ns"):
        return f"{prefix}_{name[:-3]}_seconds_total", 1e9
    return f"{prefix}_{name}_total", 1


def prometheus(samples, prefix):
    """samples: pairs of labels and counts; lines of one name have to be together."""
    names = {name: None for _, counts in samples for name in counts if name not in NOT_COUNTERS}
    for name in names:
        title, unit = metric(name, prefix)
        yield f"# TYPE {title} counter"
        for labels, counts in samples:
            if name in counts:
                value = counts[name] if unit == 1 else counts[name] / unit
                yield f"{title}{labels} {value}"


def read_system(proc):
    """What there is of both files"""
    counts = read_vmstat(proc)
    try:
        counts.update(read(proc))
    except FileNotFoundError:
        if not counts:
            raise
    return counts


def warn(text):
    print(f"cow_stats.py: {text}", file=sys.stderr)


def read_processes(pids, proc):
    """Pairs as prometheus() wants them. One that has ended is named and left out."""
    for pid in dict.fromkeys(pids):
        try:
            yield f'{{pid="{pid}"}}', read_pid(pid, proc)
        except (FileNotFoundError, ProcessLookupError):
            warn(f"process {pid} left out: " +
                 ("no such process" if not os.path.exists(f"{proc}/{pid}/stat") else
                  "kernel without CONFIG_COW_STATS"))
        except PermissionError:
            warn(f"process {pid} left out: it is another user's")
        except NoMemory:
            warn(f"process {pid} left out: it has no memory, as one that has ended")


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
        lines = list(prometheus([("", read_system(args.proc))], "cow"))
        # under other names, so that a sum over one name counts nothing twice; each process
        # once: a collector refuses a line that occurs twice
        lines += prometheus(list(read_processes(args.pid, args.proc)), "cow_process")
    except FileNotFoundError as error:
        warn(f"{error.filename}: kernel without CONFIG_COW_STATS")
        return 2
    except (OSError, UnicodeDecodeError, Malformed) as error:
        warn(error)
        return 2
    try:
        print("\n".join(lines), flush=True)
    except OSError as error:
        warn(f"cannot write: {error.strerror}")
        # not once more, at exit
        os._exit(2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
