"""bench/pytorch/measure.py measures no build whose sources no commit holds, unless the result is to
look at; and no benchmark writes a result but through the place that refuses it.

usage: check_pytorch.py BENCH_FOLDER
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# What measure.py loads before it measures; PyTorch itself is not needed for a run of no time.
MILLPOND = """
def command_path():
    return {command!r}
"""
TORCH = """
import sys
from unittest.mock import MagicMock
sys.modules[__name__] = MagicMock()
"""


def check_measure(bench, folder):
    out, command = folder / "pytorch.json", folder / "millpond_command"
    (folder / "millpond").mkdir()
    (folder / "millpond/__init__.py").write_text(MILLPOND.format(command=str(command)))
    (folder / "torch.py").write_text(TORCH)

    def run(version, *more):
        command.write_text(f"#!/bin/sh\necho 'millpond 0.2.0 ({version}, GNU 13.2.0, release)'\n")
        command.chmod(0o755)
        out.unlink(missing_ok=True)
        measure = [sys.executable, bench / "pytorch/measure.py", "--device", "cpu", "--out", out]
        return subprocess.run(
            [*measure, "--seconds", "0", *more],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )

    for version in ("0123456789ab-dirty", "unknown"):
        refused = run(version)
        assert refused.returncode == 2 and not out.exists(), refused
        assert "--scratch" in refused.stderr, refused.stderr
        kept = run(version, "--scratch")
        assert kept.returncode == 0, kept.stderr
        assert json.loads(out.read_text())["scratch"] is True
    kept = run("0123456789ab")
    assert kept.returncode == 0, kept.stderr
    made = json.loads(out.read_text())
    assert made["commit"] == "0123456789ab" and "scratch" not in made, made


def check_one_place(bench):
    for path in sorted(p for p in bench.rglob("*") if p.suffix in (".cpp", ".cu", ".py")):
        text = path.read_text()
        if '"--out"' not in text or path == bench / "support/result_file.cpp":
            continue
        assert path.suffix == ".py" and "check_may_write(" in text, (
            f"{path} writes a result by itself; bench/support/result_file.hpp and "
            "bench/support/result_files.py do, and refuse a build of changes"
        )


def main(bench):
    check_one_place(bench)
    with tempfile.TemporaryDirectory() as folder:
        check_measure(bench, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
