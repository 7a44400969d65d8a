"""Checks the rules of the style that a machine can check, on src/, include/, bench/ and examples/:

- no file over 600 lines;
- no getenv, wall clock or random device outside cli, record and adapters (and the measuring programs
  of bench/ and examples/): a replay is exact because these are passed in;
- no half-done marks in code or documents;
- no bool parameter in a public header: an enum says at the call what it means.

usage: check_style.py ROOT | --self-test
"""

import re
import sys
import tempfile
from pathlib import Path

LONGEST = 600
# Rooms that stand at the edge of the process.
EDGE = ("src/cli/", "src/record/", "src/bindings/", "bench/", "examples/")
AMBIENT = re.compile(
    r"\b(?:secure_)?getenv\s*\(|\brandom_device\b|\b(?:system|steady|high_resolution)_clock::now\b"
    r"|\bclock_gettime\s*\(|\bgettimeofday\s*\("
)
HALF_DONE = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
BOOL_PARAMETER = re.compile(r"[(,]\s*(?:const\s+)?bool\s+\w+\s*(?:=\s*\w+\s*)?[,)]")


def without_comment(line):
    return line.split("//")[0]


def check(root):
    faults = []
    files = [
        p
        for folder in ("src", "include", "bench", "examples", "tests")
        for p in sorted((root / folder).rglob("*"))
        if p.suffix in (".cpp", ".hpp", ".h", ".c", ".cu")
    ]
    documents = sorted((root / "docs").rglob("*.md")) + sorted((root / "src").rglob("README.md"))
    for path in files:
        name = path.relative_to(root).as_posix()
        lines = path.read_text(errors="replace").splitlines()
        if len(lines) > LONGEST:
            faults.append(f"{name}: {len(lines)} lines, over {LONGEST}")
        for number, line in enumerate(lines, 1):
            if HALF_DONE.search(line):
                faults.append(f"{name}:{number}: half done: {line.strip()}")
            code = without_comment(line)
            if (
                name.startswith(("src/", "include/"))
                and not name.startswith(EDGE)
                and AMBIENT.search(code)
            ):
                faults.append(f"{name}:{number}: asks the process's surroundings: {line.strip()}")
            if (
                name.startswith("include/")
                and name.endswith(".hpp")
                and BOOL_PARAMETER.search(code)
            ):
                faults.append(f"{name}:{number}: bool parameter: {line.strip()}")
    for path in documents:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if HALF_DONE.search(line):
                faults.append(f"{path.relative_to(root)}:{number}: half done: {line.strip()}")
    return faults


def self_test():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "src/heap").mkdir(parents=True)
        (root / "src/cli").mkdir(parents=True)
        (root / "include/millpond").mkdir(parents=True)
        (root / "src/cli/a.cpp").write_text('auto v = getenv("HOME");\n')
        (root / "src/heap/a.cpp").write_text("// getenv( is not called here\nint x = 0;\n")
        (root / "include/millpond/a.hpp").write_text("bool ready() noexcept;\nvoid f(int count);\n")
        assert check(root) == [], check(root)
        (root / "src/heap/a.cpp").write_text('auto v = std::getenv("X");\n' + "\n" * LONGEST)
        (root / "src/heap/b.cpp").write_text("// TODO: later\n")
        (root / "include/millpond/a.hpp").write_text("void f(int count, bool loud = false);\n")
        assert len(check(root)) == 4, check(root)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    found = check(Path(sys.argv[1]))
    print("\n".join(found) if found else "nothing found")
    sys.exit(1 if found else 0)
