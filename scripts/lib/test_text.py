#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a test is made of: its function, and what that uses of the same files.

usage: test_text.py TEST FILE...

TEST is the name of a KUnit case, or of a test of the kselftest harness. Prints its
function, and every function, table, type, macro and fixture of the files that is named
in it, or in one of those. Prints all of the files if none of them has such a test.
"""

import re
import sys

# What the first lines of a piece of C define, by the kernel's style: they are not indented.
DEFINES = [
    r'^#\s*define\s+(\w+)',
    r'^(?:static |const |inline |noinline )*(?:struct|union|enum)\s+(\w+)\s*\{',
    r'^(?!TEST|FIXTURE|KUNIT)[a-z][^(\n]*?(\w+)\(',
    r'^[a-z][^(\n]*?(\w+)(?:\[[^]\n]*\])*(?: =|;)',
    r'^TEST\w*\((?:\w+, )?(\w+)[,)]',
    r'^FIXTURE\w*\((\w+)',
]
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*', flags=re.S)
WORD = re.compile(r'\w+')


def names(piece):
    found = set()
    for pattern in DEFINES:
        found.update(re.findall(pattern, piece, flags=re.M))
    found.update(name + '_gen_params'
                 for name in re.findall(r'^KUNIT_ARRAY_PARAM\w*\((\w+)', piece, flags=re.M))
    if re.search(r'^(?:static )?enum\b', piece, flags=re.M):
        found.update(re.findall(r'^\t([A-Z]\w+)', piece, flags=re.M))
    return found


def main():
    test = sys.argv[1]
    text = [open(name, encoding='utf-8').read() for name in sys.argv[2:]]
    pieces = [p for t in text for p in re.split(r'\n\n(?=\S)', t)]
    defined = {}
    for piece in pieces:
        for name in names(piece):
            defined.setdefault(name, []).append(piece)
    wanted, todo = set(), list(defined.get(test, pieces))
    # The cases of a KUnit test are named in the list of tests only.
    for cases in re.findall(r'KUNIT_CASE_PARAM\w*\(%s, (\w+)' % re.escape(test), ''.join(text)):
        todo += defined.get(cases, [])
    while todo:
        piece = todo.pop()
        if piece not in wanted:
            wanted.add(piece)
            for word in set(WORD.findall(COMMENT.sub('', piece))):
                todo += defined.get(word, [])
    print('\n\n'.join(p for p in pieces if p in wanted))


if __name__ == '__main__':
    main()
