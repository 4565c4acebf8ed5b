#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Prints each line of a console by which the kernel complains, with its number.

usage: splats.py FILE

Patterns match from the beginning of the message: a test may well have "BUG" in its name.
Tests: fixtures/consoles.
"""
import re
import sys

from ktap import PRINTK

SUBSYSTEM = re.compile(r"(watchdog|rcu|NMI watchdog|kasan|mm|x86/mm): ")
SPLATS = re.compile("|".join((
    r"WARNING: ",
    r"BUG: ",
    r"BUG \S+ \(.*\): ",
    r"\[ BUG: ",
    r"kernel BUG at ",
    r"-+\[ cut here \]-+",
    r"Oops[: \[]",
    r"Internal error: ",
    r"general protection fault[,:]",
    r"(divide error|invalid opcode|stack segment|double fault|int3|bounds|traps): [0-9a-f]* *\[?#?"
    r".*(SMP|PREEMPT|\[#[0-9]+\])",
    r"Unable to handle kernel ",
    r"unable to handle (page fault|kernel)",
    r"UBSAN: ",
    r"(KASAN|KCSAN|KMSAN): ",
    r"INFO: task .* blocked for more than ",
    r"INFO: rcu[_a-z]* (.*detected.* stall|self-detected)",
    r"INFO: trying to register non-static key",
    r"INFO: (lockdep|possible|suspicious|inconsistent|HARDIRQ|SOFTIRQ)",
    r"Watchdog detected hard",
    r"hard LOCKUP",
    r"[a-z_]+ kthread (starved|timer wakeup)",
    r"DEBUG_LOCKS_WARN_ON",
    r"turning off the locking correctness validator",
    r"list_(add|del) corruption",
    r"Bad (page state|page map|rss-counter)",
    r"\S+:\d+: bad p[gmu4]d ",
    r"(swap_info_get|swap_dup|get_swap_device|_swap_info_get|swap_free): (Bad|Unused) swap",
    r"page dumped because: ",
    r"refcount_t: ",
    r"kmemleak: [0-9]+ new suspected",
    r"Kernel panic - not syncing",
    r"Kernel (mode fault|tried to access user memory)",
    r"Kernel stack (overflow|is corrupted)",
)))


def main():
    with open(sys.argv[1], encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n").rstrip("\r")
            message = PRINTK.sub("", line, count=1)
            start = SUBSYSTEM.match(message)
            if SPLATS.match(message, start.end() if start else 0):
                sys.stdout.buffer.write(f"{number}: {line}\n".encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    main()
