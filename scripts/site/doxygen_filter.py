"""The headers' plain comments as Doxygen wants them: a comment above a declaration, or behind it
and on the lines below at the same column, belongs to it. A comment before a blank line is about
what follows in general and stays out.

usage: doxygen_filter.py HEADER
"""

import re
import sys

FULL = re.compile(r"^(\s*)//(?!/) ?(.*)$")
TRAILING = re.compile(r"^(\s*\S.*?[;,{}>)\w])(\s+)//(?!/) (.*)$")
C_FULL = re.compile(r"^(\s*)/\* ?(?!-)(.*)$")
C_TRAILING = re.compile(r"^(\s*[^\s/*].*?[;,{}])(\s+)/\* (.*)$")


def filtered(text):
    lines, made = text.splitlines(), []
    at = 0
    # The first comment is the file's idea.
    if lines and FULL.match(lines[0]):
        made.append("/// \\file")
        while at < len(lines) and (found := FULL.match(lines[at])):
            made.append("/// " + found.group(2))
            at += 1
    elif lines and lines[0].startswith("/* "):
        made.append("/** \\file")
        made.append(" * " + lines[0][3:])
        at = 1
    while at < len(lines):
        line = lines[at]
        if TRAILING.match(line) and line.count('"') % 2 == 0:
            found = TRAILING.match(line)
            made.append(f"{found.group(1)}{found.group(2)}///< {found.group(3)}")
            column = line.index("//", len(found.group(1)))
            at += 1
            while (
                at < len(lines)
                and (more := FULL.match(lines[at]))
                and abs(len(more.group(1)) - column) <= 1
                and column > 8
            ):
                made.append(f"{more.group(1)}///< {more.group(2)}")
                at += 1
            continue
        if FULL.match(line):
            end = at
            while end < len(lines) and FULL.match(lines[end]):
                end += 1
            general = end == len(lines) or not lines[end].strip()
            for each in lines[at:end]:
                found = FULL.match(each)
                made.append(each if general else f"{found.group(1)}/// {found.group(2)}")
            at = end
            continue
        if found := C_FULL.match(line):
            line = f"{found.group(1)}/** {found.group(2)}"
        elif found := C_TRAILING.match(line):
            line = f"{found.group(1)}{found.group(2)}/**< {found.group(3)}"
        made.append(line)
        at += 1
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(filtered(file.read()))
