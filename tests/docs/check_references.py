"""Checks that every relative link of every document exists, and what a document names between
backticks: paths of the tree (`src/heap/heap.hpp`, `src/heap/heap.hpp:12`) and tests
(`heap.suite.the_tests_name`).

usage: check_references.py ROOT | --self-test
"""

import re
import sys
import tempfile
from pathlib import Path

from markdown import anchors, documents, split

# Begins at the end of the link's text, which may have begun on the line before.
LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"`([^`]+)`")
TOP = (
    "src/",
    "include/",
    "docs/",
    "tests/",
    "bench/",
    "examples/",
    "cmake/",
    "data/",
    "scripts/",
    "python/",
    ".ci/",
)
TEST = re.compile(r"^([a-z]+)\.([a-z]\w*)\.([a-z]\w*)$")
CASE = re.compile(
    r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s*(\w+)\)|^RC_GTEST_(?:FIXTURE_)?PROP\((\w+),\s*(\w+)",
    re.M,
)
PLACEHOLDER = re.compile(r"/(?!README|CMakeLists)[A-Z]{3,}(?=[/_.]|$)")
PATH = re.compile(r"^[\w.\-/*+]+(?::\d+)?$")


COMMENTED = ("src", "include", "bench", "examples", "cmake", "scripts", "python")
COMMENT = re.compile(r"//|#|^\s*\*")
CITED = re.compile(
    r"(?<![\w./-])((?:src|include|docs|tests|bench|examples|cmake|data|scripts|python)/[\w./-]*\w"
    r"\.(?:hpp|cpp|h|cu|md|json|csv|txt|py|cmake)(?:\.gz)?)\b"
)


def sources(root):
    for folder in COMMENTED:
        for path in sorted((root / folder).rglob("*")):
            if "results" in path.parts or path.suffix in (".md", ".json", ".csv", ".txt"):
                continue
            if path.is_file():
                try:
                    yield path, path.read_text()
                except UnicodeDecodeError:
                    continue


def cited_by_comments(root):
    faults = []
    for path, text in sources(root):
        for number, line in enumerate(text.splitlines(), 1):
            comment = COMMENT.split(line, maxsplit=1)[1:]
            for file in CITED.findall(comment[0] if comment else ""):
                if not (root / file).exists():
                    faults.append(f"{path.relative_to(root)}:{number}: a comment cites {file}")
    return faults


def tests_of(root):
    """Every test of tests/ROOM as ROOM.suite.name."""
    names = set()
    for path in [*root.glob("tests/*/*.cpp"), *root.glob("tests/*/*.hpp")]:
        for a, b, c, d in CASE.findall(path.read_text(errors="replace")):
            names.add(f"{path.parent.name}.{a or c}.{b or d}")
    return names


def check(root):
    faults, tests = [], tests_of(root)
    rooms = {name.split(".")[0] for name in tests}
    for path in documents(root):
        name = path.relative_to(root)
        prose, _ = split(path)
        for number, line in prose:
            text = CODE.sub("", line)
            if "](" in LINK.sub("", text):
                faults.append(f"{name}:{number}: a link that leads nowhere: {line.strip()}")
            for target in LINK.findall(text):
                if re.match(r"^[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                there = (path.parent / file).resolve() if file else path
                if not there.exists():
                    faults.append(f"{name}:{number}: no {target}")
                elif anchor and there.suffix == ".md" and anchor not in anchors(there):
                    faults.append(f"{name}:{number}: no heading #{anchor} in {file or name}")
            for code in CODE.findall(line):
                named = TEST.match(code)
                if named and named.group(1) in rooms and code not in tests:
                    faults.append(f"{name}:{number}: no test {code}")
                # A word in capitals stands for a name: `src/ROOM/a.cpp` is a pattern, not a path.
                if not code.startswith(TOP) or not PATH.match(code) or PLACEHOLDER.search(code):
                    continue
                file, _, at = code.partition(":")
                if not list(root.glob(file.rstrip("/"))):
                    faults.append(f"{name}:{number}: no {file}")
                elif at and int(at) > len((root / file).read_text().splitlines()):
                    faults.append(f"{name}:{number}: {file} is shorter than {at} lines")
    return faults + cited_by_comments(root)


def self_test():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "docs").mkdir()
        (root / "src").mkdir()
        (root / "tests/heap").mkdir(parents=True)
        (root / "tests/heap/a_test.cpp").write_text("TEST_F(holes, are_filled) {}\n")
        (root / "src/a.hpp").write_text("int one;  // as in docs/b.md\n")
        (root / "docs/b.md").write_text("# A heading, with `code`\n")
        (root / "README.md").write_text(
            "[b](docs/b.md) [c](docs/b.md#a-heading-with-code) `src/a.hpp:1` `src/*.hpp` `src/heap "
            "is x` `heap.holes.are_filled`\n"
            "`src/ROOM/*_test.cpp`\n```\n[not](checked.md)\n```\n[out](https://example.org)\n"
        )
        assert check(root) == [], check(root)
        (root / "README.md").write_text(
            "[b](docs/c.md)\n[c\nd](docs/b.md#other)\n[e](docs/b.md#a heading)\n"
            "`src/a.hpp:2`\n`src/*.cpp`\n`heap.holes.are_left`\n"
        )
        (root / "src/a.hpp").write_text("int one;  // as in docs/c.md\n")
        assert len(check(root)) == 7, check(root)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    found = check(Path(sys.argv[1]))
    print("\n".join(found) if found else "every reference resolves")
    sys.exit(1 if found else 0)
