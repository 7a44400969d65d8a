"""scripts/format in a scratch checkout: each sort of fault is named, and changed where a tool can.

usage: format_test.py ROOT
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# A file, what is wrong in it, what the output says of it, and whether scripts/format mends it.
FAULTS = {
    "src/narrow.cpp": ("int  main( ){return 0;}\n", "clang-format would change it", True),
    "bench/kernel.cu": ("__global__ void f( ){}\n", "clang-format would change it", True),
    "scripts/tool": ("#!/usr/bin/env python3\nx = {'a':1}\n", "ruff format would change it", True),
    "scripts/unused.py": ("import os\n", "F401", True),
    "scripts/long.py": (f'x = "{"a" * 100}"\n', "E501", False),
    "scripts/unquoted": ('#!/bin/sh\nrm "$1"/a $2\n', "SC2086", False),
    "docs/wide.md": (f"# Wide\n\n{'word ' * 30}\n", "mdformat would change it", True),
}
RESULTS = "bench/results"
CLEAN = {
    "src/fine.cpp": "int main() {\n  return 0;\n}\n",
    "scripts/fine": '#!/bin/sh\necho "$1"\n',
    "docs/fine.md": "# Fine\n\n| a | b |\n| -- | -- |\n| 1 | 2 |\n",
    # Neither a table that a program wrote nor a recorded input is ours to format.
    "src/made.inc": "int  x ;\n",
    f"{RESULTS}/made.md": "#  Made\n",
}


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def run(root, *arguments):
    ended = subprocess.run(
        [sys.executable, root / "scripts/format", *arguments], capture_output=True, text=True
    )
    return ended.returncode, ended.stdout + ended.stderr


def main():
    source = Path(sys.argv[1]).resolve()
    tools = source / "build/tools"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        for each in ("scripts/format", "scripts/tools/requirements.txt", ".clang-format"):
            write(root, each, (source / each).read_text())
        write(root, "pyproject.toml", (source / "pyproject.toml").read_text())
        write(root, ".gitignore", "build/\n")
        subprocess.run(["git", "init", "-q", root], check=True)
        status, said = run(root, "--check")
        assert status == 77 and "install-dependencies format" in said, (status, said)
        if not (tools / "installed/scripts/tools/requirements.txt").is_file():
            print("skipped: scripts/install-dependencies format installs the tools")
            return 77
        (root / "build").mkdir()
        (root / "build/tools").symlink_to(tools)

        for path, text in CLEAN.items():
            write(root, path, text)
        status, said = run(root, "--check")
        assert status == 0 and said == "", (status, said)

        for path, (text, _, _) in FAULTS.items():
            write(root, path, text)
        status, said = run(root, "--check")
        assert status == 1, (status, said)
        for path, (text, what, _) in FAULTS.items():
            lines = [line for line in said.splitlines() if line.startswith(path)]
            assert any(what in line for line in lines), (path, said)
            assert (root / path).read_text() == text, f"--check changed {path}"
        assert all(line.startswith(tuple(FAULTS)) for line in said.splitlines()), said

        # One file alone: no other is named or changed.
        first, second, *_ = FAULTS
        status, said = run(root, "--check", str(root / first))
        assert status == 1 and all(line.startswith(first) for line in said.splitlines()), said
        status, said = run(root, str(root / first))
        assert status == 0 and said == "", said
        assert (root / first).read_text() != FAULTS[first][0]
        assert (root / second).read_text() == FAULTS[second][0]

        status, said = run(root)
        for path, (text, _, mended) in FAULTS.items():
            assert ((root / path).read_text() != text) == mended, (path, said)
            assert (path in said) == (not mended), (path, said)
        assert status == 1, said
        for path, text in CLEAN.items():
            assert (root / path).read_text() == text, path
        assert run(root, "--check", str(root / "nowhere.cpp"))[0] == 2

        shutil.rmtree(root / ".git")
        status, said = run(root, "--check")
        assert status == 77 and "no checkout" in said, (status, said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
