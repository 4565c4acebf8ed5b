#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Results of tests: a table for people, and files for other programs.

usage: results.py show|junit|json|kcidb RESULTS [KEY=VALUE...]

RESULTS has a line for each test: status (pass, fail, skip or error), name and message,
separated by tabs. The report goes to standard output. KEY=VALUE: command, for all; for
kcidb also origin, kernel, version, tree, arch, patchset, compiler and start (seconds),
and of a submission comment, message_id and valid (false if it does not apply).
"""
import collections
import hashlib
import json
import re
import sys
import time
from xml.sax.saxutils import quoteattr

Result = collections.namedtuple("Result", "status name message")
XML_FORBIDDEN = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f]")
KCIDB_STATUS = {"pass": "PASS", "fail": "FAIL", "skip": "SKIP", "error": "ERROR"}


def read_results(path):
    """The tests of a file, in its order."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t", 2)
            yield Result(*(fields + [""] * (3 - len(fields))))


def group_of(name):
    """PROGRAM of PROGRAM:TEST, ARCH:SUITE of ARCH:SUITE:TEST."""
    parts = name.split(":")
    return ":".join(parts[:2]) if len(parts) > 2 else parts[0]


def show(results, _about):
    """One line for each group, the reasons of what was skipped, and each failure."""
    groups = {}
    for result in results:
        groups.setdefault(group_of(result.name), collections.Counter())[result.status] += 1
    for group, number in groups.items():
        verdict = "FAIL" if number["fail"] else "PASS" if number["pass"] else "SKIP"
        yield (f"{verdict} {group} ({number['pass']} passed, {number['fail']} failed, "
               f"{number['skip']} skipped)")
    reasons = collections.Counter(r.message for r in results if r.status == "skip")
    for reason, count in reasons.items():
        yield f"skipped {count}: {reason or 'no reason given'}"
    for result in results:
        if result.status == "fail":
            yield f"FAIL {result.name}" + (f": {result.message}" if result.message else "")


def junit(results, about):
    """JUnit XML, as CI systems read it."""
    number = collections.Counter(r.status for r in results)
    suite = "cow." + about["command"]
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield (f'<testsuite name="{suite}" tests="{len(results)}" failures="{number["fail"]}" '
           f'errors="{number["error"]}" skipped="{number["skip"]}">')
    for result in results:
        name, message = (quoteattr(XML_FORBIDDEN.sub("", text), {'"': "&quot;"})
                         for text in result[1:])
        case = f'  <testcase classname="{suite}" name={name}'
        if result.status == "pass":
            yield case + "/>"
        else:
            kind = {"fail": "failure", "error": "error"}.get(result.status, "skipped")
            yield f"{case}><{kind} message={message}/></testcase>"
    yield "</testsuite>"


def as_json(results, about):
    """Counts, and a record for each test."""
    number = collections.Counter(r.status for r in results)
    tests = [{"name": r.name, "result": r.status, "message": r.message} for r in results]
    yield json.dumps({"command": about["command"], "passed": number["pass"],
                      "failed": number["fail"], "skipped": number["skip"], "tests": tests},
                     indent=1)


def timestamp(seconds):
    """RFC 3339, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(int(seconds)))


def kcidb(results, about):
    """KernelCI's KCIDB schema 4.3: one checkout, one build, and the tests of it."""
    origin = about["origin"]
    if not re.fullmatch("[a-z0-9_]+", origin):
        sys.exit(f"results.py: the origin '{origin}' may have lower-case letters, digits and _ only")
    start = timestamp(about["start"])
    valid = about.get("valid", "true") == "true"
    patchset = about["patchset"]
    checkout = {
        "id": "-".join([f"{origin}:{about['kernel']}", about["tree"][:18], patchset[:12]]).rstrip("-"),
        "origin": origin,
        "git_commit_name": about["version"],
        "patchset_hash": patchset,
        "start_time": start,
        "valid": valid,
    }
    # what else is known of a submission
    checkout.update({field: about[field] for field in ("comment", "message_id") if about.get(field)})
    build = {
        "id": f"{checkout['id']}-{about['arch']}-{about['config']}",
        "origin": origin,
        "checkout_id": checkout["id"],
        "architecture": about["arch"],
        "compiler": about["compiler"],
        "config_name": about["config"],
        "start_time": start,
        "valid": valid,
    }
    tests = [kcidb_test(r, build["id"], origin, about, start) for r in results]
    yield json.dumps({"version": {"major": 4, "minor": 3}, "checkouts": [checkout],
                      "builds": [build], "tests": tests}, indent=1)


def kcidb_test(result, build, origin, about, start):
    """One test: its path is the names of the result, from the general to the special."""
    parts = [re.sub(r"[^A-Za-z0-9_-]+", "_", part).strip("_") or "_"
             for part in re.split("[:.]", result.name)]
    run = hashlib.sha256("\0".join((build, about["start"], result.name)).encode()).hexdigest()
    test = {
        "id": f"{origin}:{run[:32]}",
        "origin": origin,
        "build_id": build,
        "path": ".".join(["cow", about["command"]] + parts),
        "comment": result.name,
        "status": KCIDB_STATUS[result.status],
        "start_time": start,
    }
    if result.message:
        test["log_excerpt"] = result.message[:16384]
    return test


REPORTS = {"show": show, "junit": junit, "json": as_json, "kcidb": kcidb}


def main():
    """Writes the report that the command line names."""
    if len(sys.argv) < 3 or sys.argv[1] not in REPORTS:
        sys.exit(__doc__)
    about = dict(argument.split("=", 1) for argument in sys.argv[3:])
    results = list(read_results(sys.argv[2]))
    try:
        for line in REPORTS[sys.argv[1]](results, about):
            print(line)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = None
        sys.exit(f"{sys.argv[1]}: {error.strerror}")


if __name__ == "__main__":
    main()
