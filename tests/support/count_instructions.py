"""Instructions a pair of an allocation and a free, counted by callgrind: evidence that holds on any
machine."""

import re
import shutil
import subprocess
import sys

PAIRS = (500, 4500)
# GCC 12 at -O3 needs 155, 275, 293 and 159 (the null driver's own two calls included); the rest is
# room for compilers.
BOUNDS = {"cache": 200, "plain": 350, "streams": 370, "capture": 200}
CALLS_A_PAIR = {
    "cache": 0,
    "plain": 2,
    "streams": 2,
    "capture": 0,
}  # the plain call asks for identity and capture


def run(program, way, pairs):
    done = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            program,
            way,
            str(pairs),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    instructions = int(re.search(r"Collected : (\d+)", done.stderr).group(1))
    calls = int(re.search(r"driver_calls (\d+)", done.stdout).group(1))
    return instructions, calls


def main():
    program = sys.argv[1]
    if shutil.which("valgrind") is None:
        print("skipped: no valgrind")
        return 77
    failed = 0
    for way, bound in BOUNDS.items():
        (few, _), (many, calls) = (run(program, way, n) for n in PAIRS)
        pair = (many - few) / (PAIRS[1] - PAIRS[0])
        print(
            f"{way}: {pair:.1f} instructions a pair (at most {bound}), {calls / PAIRS[1]:g} driver "
            "calls"
        )
        if pair > bound or calls != CALLS_A_PAIR[way] * PAIRS[1]:
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
