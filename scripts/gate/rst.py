# SPDX-License-Identifier: GPL-2.0
"""Complaints of docutils about .rst files: FILE:LINE: (LEVEL) what is wrong.

usage: rst.py FILE...

Roles, directives and labels that only Sphinx knows are not complained about.
"""

import io
import re
import sys

from docutils.core import publish_doctree

SPHINX = re.compile(r'Unknown interpreted text role|No role entry|Unknown directive type'
                    r'|No directive entry|Unknown target name|Undefined substitution'
                    r'|"(include|raw)" directive disabled')
# On the line after the complaint: what only Sphinx knows of a directive of docutils
OPTION = 'unknown option: "'
SETTINGS = {'syntax_highlight': 'none', 'report_level': 2, 'halt_level': 5, '_disable_config': True,
            'file_insertion_enabled': False, 'raw_enabled': False}


def complaints(path):
    stream = io.StringIO()
    with open(path, encoding='utf-8') as file:
        publish_doctree(file.read(), source_path=path,
                        settings_overrides=dict(SETTINGS, warning_stream=stream))
    begins = re.escape(path) + r':\d+: \('
    lines = stream.getvalue().splitlines()
    return [line for line, after in zip(lines, lines[1:] + [''])
            if re.match(begins, line) and not SPHINX.search(line)
            and not after.startswith(OPTION)]


def main(paths):
    for path in paths:
        for line in complaints(path):
            print(line)


if __name__ == '__main__':
    main(sys.argv[1:])
