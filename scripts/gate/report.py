#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The verdicts of the gate, and every report that is made of them.

report.py verdict FOLDER NAME SECONDS STATUS [--moved]
    writes FOLDER/verdict.json (or error.json, which is not kept as a result)
    from FOLDER/findings, lines of "fail|warn|skip|note TAB text", and FOLDER/log,
    and prints the line of the check and what it found
report.py show FOLDER                  the same of a check that was run before
report.py collect GATE FOLDER LOG CHECK...
    the verdicts of all chosen checks as one JSON file, GATE; LOG has one line for
    each check that ended: NAME TAB FOLDER. FOLDER is named for others
report.py table|results|ktap|counts|switched GATE   on standard output
report.py behaviour GATE ARCH          how many ran the kselftests on it: any, x86, arm64
report.py refused GATE                 the options that were on in none of those guests
report.py coverage GATE OPTIONS CHECK...
    which of all checks ran, which did not; OPTIONS left some out
report.py markdown GATE FACTS CHECKS
    FACTS: JSON with title, kernel, about, patches, unseen (why it is no verdict on
    behaviour), form_only (that it was asked for so), switched (what was switched on);
    CHECKS: NAME TAB text, all there are
"""

import json
import os
import re
import sys

MOST_SHOWN = 12


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write_json(path, value):
    """All of it or nothing: a killed gate leaves no half of a verdict."""
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(path + ".tmp", path)


def read_findings(folder):
    lines = read_text(os.path.join(folder, "findings")).splitlines()
    return [line.split("\t", 1) for line in lines if "\t" in line]


def summary_of(findings, verdict):
    kind = "note" if verdict == "pass" else verdict
    texts = [text for found, text in findings if found == kind]
    if not texts:
        return "no complaint"
    return texts[0] + (f" (and {len(texts) - 1} more)" if len(texts) > 1 else "")


def verdict_of(findings):
    """A failure decides even if the check skips the rest."""
    kinds = {kind for kind, _ in findings}
    return next((kind for kind in ("fail", "skip", "warn") if kind in kinds), "pass")


def error_text(folder, status):
    """The end of the log, without the quoted lines of other logs."""
    lines = read_text(os.path.join(folder, "log")).splitlines()
    lines = [line for line in lines if not re.match(r"\s*\|", line)]
    return f"status {status}: " + ";".join(lines[-3:]).replace("\t", " ")


def judge(folder, name, seconds, status, moved):
    findings = read_findings(folder)
    verdict = verdict_of(findings)
    result = {"check": name, "seconds": int(seconds), "findings": findings}
    if status == 0:
        result.update(verdict=verdict, summary=summary_of(findings, verdict))
    elif verdict == "fail" and not moved:
        # what was found before the check broke off fails the submission all the same
        result.update(verdict="fail", summary=summary_of(findings, verdict) +
                      "; then the check could not go on")
    else:
        result.update(verdict="error", summary=error_text(folder, status))
    write_json(os.path.join(folder, "verdict.json" if status == 0 else "error.json"), result)


def load_verdict(folder):
    for name in ("verdict.json", "error.json"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return json.load(file)
    return None


def show(folder, known):
    result = load_verdict(folder)
    verdict = result["verdict"]
    print(f"{verdict.upper()} {result['check']} ({result['seconds']}s)"
          f"{' (known)' if known else ''}: {result['summary']}", flush=True)
    if verdict in ("warn", "fail"):
        texts = [text for kind, text in result["findings"] if kind == verdict]
        for text in texts[:MOST_SHOWN]:
            print("  " + text, file=sys.stderr)
        if len(texts) > MOST_SHOWN:
            print(f"  ... and {len(texts) - MOST_SHOWN} more", file=sys.stderr)
    if verdict in ("fail", "error"):
        print("  logs: " + folder, file=sys.stderr)


def collect(gate, folder, log, checks):
    """In the order of the checks, whichever ended first."""
    ended = dict(line.split("\t") for line in read_text(log).splitlines())
    results = []
    for name in checks:
        result = load_verdict(ended[name]) if name in ended else None
        if result is None:
            result = {"check": name, "seconds": 0, "findings": [], "verdict": "error",
                      "summary": "not run: the gate could not go on"}
        result["folder"] = ended.get(name, folder)
        results.append(result)
    write_json(gate, results)


def count(results, *verdicts):
    return sum(result["verdict"] in verdicts for result in results)


def counts(results):
    """passed, failed, skipped, could not be run; a warning is a pass"""
    return (count(results, "pass", "warn"), count(results, "fail"),
            count(results, "skip"), count(results, "error"))


def looked(result):
    return result["verdict"] in ("pass", "warn", "fail")


# The checks that boot a guest with the kselftests, and its architecture. KUnit's tests
# call functions, most of them of our series: they do not see what a process sees.
KSELFTESTS = {"behaviour-kselftest": "x86", "behaviour-kselftest-arm64": "arm64"}


def boots(check, arch):
    """Whether a check runs the kselftests on that architecture; any: on one of them"""
    return check in KSELFTESTS and arch in ("any", KSELFTESTS[check])


def behaviour(results, arch):
    """How many checks ran the kselftests on the submission"""
    return sum(looked(result) and boots(result["check"], arch) for result in results)


def refused(results):
    """The options of a submission that could be on in none of the guests with the kselftests"""
    ran = [result for result in results if result["check"] in KSELFTESTS and looked(result)]
    refusals = [{text.split()[0] for kind, text in result["findings"]
                 if kind == "warn" and " cannot be on in this configuration" in text}
                for result in ran]
    return sorted(set.intersection(*refusals)) if refusals else []


def coverage(results, options, names):
    """Which checks ran; why the others did not is in the table."""
    chosen = {result["check"] for result in results}
    rows = (("ran", [result["check"] for result in results if looked(result)]),
            ("skipped", [result["check"] for result in results if result["verdict"] == "skip"]),
            ("could not be run", [result["check"] for result in results if result["verdict"] == "error"]),
            ("not chosen" + (f" by {options}" if options else ""),
             [name for name in names if name not in chosen]))
    for text, checks in rows:
        if checks:
            print(f"{text} ({len(checks)}): {' '.join(checks)}")


def switched(results):
    """What each check switched on: notes that begin so"""
    prefix = "switched on: "
    found = False
    for result in results:
        texts = [text[len(prefix):] for _, text in result["findings"] if text.startswith(prefix)]
        if texts:
            print(f"{result['check']} ran with: {'; '.join(texts)}")
            found = True
    if not found:
        print("no check that was run switches anything on")


def status_of(result):
    """Status and message as the harness's other results have them."""
    if result["verdict"] == "warn":
        return "pass", "warning: " + result["summary"]
    return result["verdict"], result["summary"]


def table(results):
    columns = ("pass", "warn", "fail", "skip", "error")
    print("%-12s %5s %5s %5s %5s %6s %8s" % (("group",) + columns + ("seconds",)))
    groups = {}
    for result in results:
        groups.setdefault(result["check"].split("-")[0], []).append(result)
    for group, own in groups.items():
        print("%-12s %5d %5d %5d %5d %6d %8d" % (
            (group,) + tuple(count(own, verdict) for verdict in columns) +
            (sum(result["seconds"] for result in own),)))
    for result in results:
        if result["verdict"] != "pass":
            print(f"{result['verdict'].upper():<5} {result['check']}: {result['summary']}")


def results_lines(results):
    for result in results:
        status, message = status_of(result)
        print(status, result["check"], message.replace("\t", " "), sep="\t")


def ktap(results):
    print(f"KTAP version 1\n1..{len(results)}")
    for number, result in enumerate(results, 1):
        verdict = result["verdict"]
        text = {"pass": "", "skip": " # SKIP " + result["summary"]}.get(
            verdict, f" # {verdict}: {result['summary']}")
        print(f"{'not ' if verdict in ('fail', 'error') else ''}ok {number} {result['check']}{text}")


def overall(results, unseen):
    _, failed, _, errors = counts(results)
    if failed:
        return "FAIL"
    if errors or unseen:
        return "NO VERDICT"
    return "PASS, with warnings" if count(results, "warn") else "PASS"


def markdown(results, facts, checks):
    """What was run, on what, with which result, and what was not."""
    print(f"# {overall(results, facts['unseen'] and not facts['form_only'])}: {facts['title']} on {facts['kernel']}\n\n{facts['about']}\n")
    if facts["unseen"]:
        print(f"This is no verdict on its behaviour: {facts['unseen']}.\n")
    for number, subject in enumerate(facts["patches"], 1):
        print(f"{number}. {subject}")
    if facts["switched"]:
        print("\n```\n" + facts["switched"] + "\n```")
    print("\n| verdict | check | seconds | what it checks | result |\n|---|---|---|---|---|")
    for result in results:
        cells = [result["verdict"], result["check"], str(result["seconds"]),
                 checks.get(result["check"], ""), result["summary"].replace("|", "\\|")]
        print("| " + " | ".join(cells) + " |")
    print("\n## Findings")
    for result in results:
        if result["findings"]:
            print(f"\n{result['check']} ({result['verdict']}):\n")
            for kind, text in result["findings"]:
                print(f"- {kind}: {text}")
    print("\n## Not tested\n")
    for result in results:
        if result["verdict"] == "skip":
            print(f"- {result['check']}: {result['summary']}")
        elif result["verdict"] == "error":
            print(f"- {result['check']}: could not be run: {result['summary']}")
    chosen = {result["check"] for result in results}
    for name, text in checks.items():
        if name not in chosen:
            print(f"- {name} ({text}): not asked for{facts['quick']}")


def main(command, path, *arguments):
    if command == "verdict":
        judge(path, arguments[0], arguments[1], int(arguments[2]), "--moved" in arguments)
        show(path, False)
    elif command == "show":
        show(path, True)
    elif command == "collect":
        collect(path, arguments[0], arguments[1], arguments[2:])
    else:
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        if command == "markdown":
            checks = dict(line.split("\t", 1) for line in read_text(arguments[1]).splitlines())
            markdown(results, json.loads(read_text(arguments[0])), checks)
        elif command == "counts":
            print(*counts(results))
        elif command == "behaviour":
            print(behaviour(results, arguments[0]))
        elif command == "refused":
            print("\n".join(refused(results)))
        elif command == "coverage":
            coverage(results, arguments[0], arguments[1:])
        else:
            {"table": table, "results": results_lines, "ktap": ktap, "switched": switched}[command](results)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    sys.stderr.reconfigure(encoding="utf-8", errors="replace")
    main(*sys.argv[1:])
