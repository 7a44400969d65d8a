"""Checks that each room of src/ includes only the rooms that cmake/rooms.cmake lets it see.

The build gives every room the whole of src/ as an include directory, so a forbidden include would
compile. Public headers (include/millpond) may include only each other and the standard library, since
a program that uses the library has nothing else.

usage: check_includes.py ROOT | --self-test
"""

import re
import sys
import tempfile
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def rooms_and_needs(root):
    """The table of cmake/rooms.cmake: room -> set of rooms that it may include, itself too."""
    text = (root / "cmake/rooms.cmake").read_text()
    rooms = re.search(r"set\(millpond_rooms ([^)]*)\)", text).group(1).split()
    needs = {}
    for room in rooms:
        found = re.search(r"set\(millpond_needs_%s([^)]*)\)" % room, text)
        needs[room] = set(found.group(1).split()) | {room} if found else {room}
    return rooms, needs


def includes(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in (".cpp", ".hpp", ".h", ".c"))


def check(root):
    """Every violation as one line of text."""
    rooms, needs = rooms_and_needs(root)
    order = {room: place for place, room in enumerate(rooms)}
    faults = []
    for room, seen in needs.items():
        for other in seen - {room}:
            if other not in order:
                faults.append(f"cmake/rooms.cmake: {room} needs {other}, which is no room")
            elif order[other] >= order[room]:
                faults.append(f"cmake/rooms.cmake: {room} needs {other}, which comes after it")
    for folder in sorted((root / "src").iterdir()):
        if folder.is_dir() and folder.name not in order:
            faults.append(f"src/{folder.name}: not a room of cmake/rooms.cmake")
    for room in rooms:
        for path in sources(root / "src" / room) if (root / "src" / room).is_dir() else []:
            for number, quote, name in includes(path):
                first = name.split("/")[0]
                if first in order and (root / "src" / name).exists() and first not in needs[room]:
                    faults.append(
                        f"{path.relative_to(root)}:{number}: room {room} may not include {name}"
                    )
    for path in sources(root / "include"):
        for number, quote, name in includes(path):
            if name.startswith("millpond/"):
                if not (root / "include" / name).exists():
                    faults.append(f"{path.relative_to(root)}:{number}: no public header {name}")
            elif quote == '"' or (root / "src" / name).exists():
                faults.append(f"{path.relative_to(root)}:{number}: a public header includes {name}")
    return faults


def self_test():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for path, text in {
            "cmake/rooms.cmake": "set(millpond_rooms base heap pool)\nset(millpond_needs_base)\n"
            "set(millpond_needs_heap base)\nset(millpond_needs_pool base heap)\n",
            "src/base/a.hpp": "#pragma once\n",
            "src/heap/b.hpp": '#include "base/a.hpp"\n#include <vector>\n',
            "src/pool/c.hpp": '#include "heap/b.hpp"\n',
            "include/millpond/d.hpp": "#include <vector>\n",
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        assert check(root) == [], check(root)
        (root / "src/heap/b.hpp").write_text('#include "base/a.hpp"\n#include "pool/c.hpp"\n')
        assert check(root) == ["src/heap/b.hpp:2: room heap may not include pool/c.hpp"], check(
            root
        )
        (root / "src/heap/b.hpp").write_text("")
        (root / "include/millpond/d.hpp").write_text('#include "base/a.hpp"\n')
        assert len(check(root)) == 1, check(root)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    found = check(Path(sys.argv[1]))
    print("\n".join(found) if found else "every include is allowed")
    sys.exit(1 if found else 0)
