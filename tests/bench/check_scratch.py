"""A build keeps a result only where its sources were committed and it was optimised; a scratch
result is not taken in.

usage: check_scratch.py PLANNED_BENCHMARK RESULT_FILES_SCRIPT
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main(benchmark, script):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "planned.json"

        def run(*more):
            return subprocess.run(
                [benchmark, "--gpu", "sim", "--scale", "0.01", "--out", out, *more],
                capture_output=True,
                text=True,
            )

        scratch = run("--scratch")
        assert scratch.returncode == 0, scratch.stderr
        made = json.loads(out.read_text())
        assert made["scratch"] is True and made["rows"], made
        added = subprocess.run(
            [sys.executable, script, "--add", "here", out], capture_output=True, text=True
        )
        assert added.returncode == 1 and "scratch" in added.stderr, added
        out.unlink()
        kept = run()
        if made["commit"].endswith("-dirty") or not made.get("optimised", True):
            assert kept.returncode == 2 and not out.exists(), kept
            assert "--scratch" in kept.stderr, kept.stderr
        else:
            assert kept.returncode == 0, kept.stderr
            assert "scratch" not in json.loads(out.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
