#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Split the files of kunit/ or selftests/cow/ into patches that can be mailed.

The files that tests share come first, then one patch per KUnit suite or per
kselftest program. File names decide what belongs together:

kunit       each *_kunit.c is a suite; all other files are shared
selftests   programs are the words of the Makefiles' *PROGS* variables, in that
            order. Program X owns X.c, X.sh, X_*.c, X_*.h and the folder X/.

Makefiles, .gitignore and the files that the wiring patch changes must name only
what exists: lines that name a file or program of a later patch are left out. So
such a line must name one program only; otherwise this script fails.

A patch's message is the comment at the head of the program's or suite's source.
The message of the shared files is the text before the diff in the wiring patch.
Files of one program that are too large for one patch are mailed before it.

For each patch OUT/NNN/message and OUT/NNN/tree are written; tree holds the new
content of every file that the patch adds or changes.
"""

import argparse
import os
import re
import shutil
import sys
import textwrap

# A mail with its headers stays below 60 kB; a single file is never split.
PATCH_BYTES = 55000

KUNIT_RUN = """Run with:

  ./tools/testing/kunit/kunit.py run --kunitconfig=mm/tests"""

SELFTEST_RUN = """Build and run with:

  make headers
  make -C tools/testing/selftests TARGETS=cow
  tools/testing/selftests/cow/%s"""

PROGRAM_LIST = re.compile(r"[A-Z_]*PROGS[A-Z_]*\s*[:+?]?=(.*)")


def fail(message):
    sys.exit(f"split_tests.py: {message}")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def stem(path):
    """'tools/cow_bench_rep.c': 'cow_bench_rep'"""
    return os.path.basename(path).split(".")[0]


def is_list_file(path):
    return os.path.basename(path) in ("Makefile", ".gitignore")


def logical_lines(text):
    """Lines with their newline; one that ends in a backslash is joined to the next,
    and the recipe of a make rule to its rule."""
    lines = []
    for line in text.splitlines(keepends=True):
        if lines and (lines[-1].endswith("\\\n") or
                      line.startswith("\t") and lines[-1].strip()):
            lines[-1] += line
        else:
            lines.append(line)
    return lines


#
# Which file belongs to which patch
#

class Group:
    """The files of one program or suite; those that are shared have no name."""

    def __init__(self, name="", path=""):
        self.name = name
        self.path = path
        self.files = []


class Folder:
    """A test folder, its groups, and who owns which name."""

    def __init__(self, source, files):
        self.source = source
        self.files = files
        self.kunit = any(path.endswith("_kunit.c") for path in files)
        programs = self.suites() if self.kunit else self.programs()
        self.groups = [Group()] + [Group(name, path) for name, path in programs.items()]
        for path in files:
            self.groups[self.owner(path)].files.append(path)
        self.groups[1:] = [group for group in self.groups[1:] if group.files]
        self.numbers = {}
        for number, group in enumerate(self.groups):
            for path in group.files:
                name = os.path.basename(path)
                self.numbers[name] = number
                self.numbers[re.sub(r"\.c$", ".o", name)] = number
            if group.name:
                self.numbers[group.name] = number

    def suites(self):
        return {stem(path): path for path in self.files if path.endswith("_kunit.c")}

    def programs(self):
        """Name: path of each program, in the order of the Makefiles."""
        found = {}
        makefiles = [path for path in self.files if os.path.basename(path) == "Makefile"]
        for makefile in sorted(makefiles, key=lambda path: path.count("/")):
            for line in logical_lines(read(os.path.join(self.source, makefile))):
                match = PROGRAM_LIST.match(line.replace("\\\n", " "))
                for word in match[1].split() if match else []:
                    if "$" not in word:
                        path = os.path.join(os.path.dirname(makefile), word)
                        found.setdefault(stem(word), path)
        return found

    def owner(self, path):
        """The number of the group that owns a file: the longest name that fits."""
        best = 0
        for number, group in enumerate(self.groups[1:], 1):
            for part in path.split("/"):
                if (stem(part) == group.name or part.startswith(group.name + "_")) and \
                   (not best or len(group.name) > len(self.groups[best].name)):
                    best = number
        return best

    def named(self, text):
        """The numbers of the groups whose files or programs a line names; what is built
        from the files of program X may have the name X_*."""
        words = re.findall(r"[\w.+-]+", text)
        return {self.numbers[word] for word in words if word in self.numbers} | \
            {self.owner(word) for word in words if word not in self.numbers} - {0}

    def last_named(self, line, path):
        """The number of the patch from which on a line can be there."""
        targets, colon, needs = line.partition(":")
        if not colon or needs.startswith("="):
            targets, needs = line, ""
        of_targets, of_needs = self.named(targets), self.named(needs)
        if len(of_targets) > 1:
            fail(f"{path}: one program per line, not several: {line.strip()}")
        last = max(of_targets, default=0)
        if of_targets and last and max(of_needs, default=0) > last:
            fail(f"{path}: {self.groups[last].name} needs a file that is added after it; "
                 f"name that program first: {line.strip()}")
        return max(of_targets | of_needs, default=0)

    def cut(self, text, number, path):
        """The text without the lines that name something of a patch after NUMBER. A
        paragraph of which only comments are left goes as well."""
        paragraphs = [[]]
        for line in logical_lines(text):
            if line.strip() and paragraphs[-1] and not paragraphs[-1][-1].strip():
                paragraphs.append([])
            paragraphs[-1].append(line)
        kept = []
        for lines in paragraphs:
            left = [line for line in lines if line.startswith("#") or
                    self.last_named(line, path) <= number]
            if len(left) == len(lines) or \
               any(line.strip() and not line.startswith("#") for line in left):
                kept += left
        if "".join(kept) == text:
            return text
        return "".join(kept).rstrip("\n") + "\n" if kept else ""


#
# Messages
#

def head_comment(path):
    """The paragraphs of the comment at the head of a C or shell file, or a manual."""
    lines = []
    for line in read(path).splitlines():
        line = re.sub(r'^\.\\"', "#", line)
        if re.match(r"#!|(//|/\*|#) ?SPDX|/\*$", line):
            continue
        if line.startswith(" */") or not re.match(r" \*|#", line):
            if lines or line.strip():
                break
            continue
        lines.append(re.sub(r"^(#| \*) ?", "", line))
    return [part.strip("\n") for part in re.split(r"\n\s*\n", "\n".join(lines)) if part.strip()]


def fill(paragraph):
    """Lines of at most 72 characters. Lists stay lists, indented text stays as it is."""
    if re.search(r"^(?!  \S)\s", paragraph, re.M):
        return paragraph
    items = re.split(r"\n(?=- )", paragraph)
    return "\n".join(textwrap.fill(" ".join(item.split()), 72, break_on_hyphens=False,
                                   break_long_words=False,
                                   subsequent_indent="  " if item.startswith("- ") else "")
                     for item in items)


def wiring_message(wiring):
    """The text before the diff, without git's separator."""
    text = read(wiring) if wiring and os.path.exists(wiring) else ""
    return re.split(r"^(?:diff --git |---$)", text, maxsplit=1, flags=re.M)[0].strip()


def subject(folder, group):
    if not group.name:
        return "mm: add what the KUnit tests share" if folder.kunit else \
            "selftests/cow: add what the tests share"
    if folder.kunit:
        return f"mm: add KUnit tests for {group.name.removesuffix('_kunit')}"
    return f"selftests/cow: add {group.name}"


def message(folder, group, wiring):
    """The message of the patch that completes a group."""
    if not group.name:
        return wiring_message(wiring) or subject(folder, group)
    source = next((path for path in group.files if stem(path) == group.name), group.files[0])
    body = [fill(part) for part in head_comment(os.path.join(folder.source, source))]
    if not body:
        fail(f"{source} has no comment at its head, which becomes the patch's message")
    run = KUNIT_RUN if folder.kunit else SELFTEST_RUN % group.path
    return "\n\n".join([subject(folder, group)] + body + [run])


def parts_message(folder, group, files, part, nr_parts):
    """The message of a patch with files that a later patch makes use of."""
    title = subject(folder, group) + f", part {part} of {nr_parts}"
    body = [f"These files are compiled as soon as part {nr_parts} is there."]
    for path in files:
        about = head_comment(os.path.join(folder.source, path))[:1]
        body.append(fill(" ".join([path + ":"] + about)))
    return "\n\n".join([title] + body)


#
# Patches
#

def patch_order(group, path):
    """Headers, sources, then what makes use of them."""
    if path.endswith(".h"):
        return (0, path)
    if group.name and stem(path) == group.name:
        return (3, path)
    return (1 if path.endswith(".c") else 2, path)


def patches_of(folder, group):
    """The files of a group as lists that are small enough for one mail each."""
    lists, size = [[]], 0
    for path in sorted(group.files, key=lambda path: patch_order(group, path)):
        text = read(os.path.join(folder.source, path))
        more = len(text.encode()) + text.count("\n")   # one '+' per line
        if lists[-1] and size + more > PATCH_BYTES and not is_list_file(path):
            lists.append([])
            size = 0
        lists[-1].append(path)
        size += more
    return lists


class Output:
    """Writes the numbered patches."""

    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.patches = 0
        self.written = {}

    def begin(self, text):
        self.patches += 1
        self.dir = os.path.join(self.args.out, f"{self.patches:03}")
        os.makedirs(os.path.join(self.dir, "tree"))
        with open(os.path.join(self.dir, "message"), "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def target_path(self, path):
        path = os.path.join(self.dir, "tree", path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def add(self, path):
        shutil.copy(os.path.join(self.folder.source, path),
                    self.target_path(os.path.join(self.args.target, path)))

    def add_cut(self, source, path, number):
        """What of a file can be there with patch NUMBER, if that is anything new."""
        text = self.folder.cut(read(source), number, path)
        if self.written.get(path, "") != text:
            target = self.target_path(path)
            shutil.copy(source, target)
            with open(target, "w", encoding="utf-8") as file:
                file.write(text)
            self.written[path] = text


def wired_files(wired):
    for top, _, names in os.walk(wired):
        for name in names:
            yield os.path.relpath(os.path.join(top, name), wired)


def write_patches(args, folder):
    output = Output(args, folder)
    for number, group in enumerate(folder.groups):
        lists = patches_of(folder, group)
        for part, files in enumerate(lists, 1):
            if part < len(lists):
                output.begin(parts_message(folder, group, files, part, len(lists)))
            else:
                output.begin(message(folder, group, args.wiring))
            for path in files:
                if not is_list_file(path):
                    output.add(path)
        for path in folder.files:
            # a Makefile of a folder comes with the first file that needs it
            if is_list_file(path) and folder.owner(path) <= number:
                output.add_cut(os.path.join(folder.source, path),
                               os.path.join(args.target, path), number)
        for path in sorted(wired_files(args.wired)):
            output.add_cut(os.path.join(args.wired, path), path, number)


def main():
    parser = argparse.ArgumentParser(
        description="Split a test folder into patches. Standard input: its files, one a line.")
    parser.add_argument("source", help="the folder, kunit or selftests/cow")
    parser.add_argument("target", help="where its files go in a kernel tree")
    parser.add_argument("out", help="where the patches are written, one folder each")
    parser.add_argument("--wired", default="",
                        help="folder with the files of the kernel that the wiring changes, changed")
    parser.add_argument("--wiring", default="", help="the wiring patch")
    args = parser.parse_args()
    files = sorted(line.strip() for line in sys.stdin if line.strip())
    if files:
        write_patches(args, Folder(args.source, files))


if __name__ == "__main__":
    main()
