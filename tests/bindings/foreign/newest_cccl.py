"""Compiles and runs the test of the cuda::mr adapter against the newest CCCL that the package index
has.

usage: newest_cccl.py SOURCE_FOLDER SCRATCH COMPILER TOOLKIT_INCLUDE LIBRARY

Takes pip from build/tools (scripts/install-dependencies) where this Python has none.
Skips (77) where no index can be reached. What was fetched before is kept in SCRATCH, and serves for
a week.
"""

import importlib.util
import subprocess
import sys
import time
import zipfile
from pathlib import Path

source, scratch, compiler, toolkit, library = sys.argv[1:]
has_pip = importlib.util.find_spec("pip") is not None
python = sys.executable if has_pip else f"{source}/build/tools/bin/python"
scratch = Path(scratch)
scratch.mkdir(parents=True, exist_ok=True)
wheels = [
    w for w in scratch.glob("nvidia_cuda_cccl-*.whl") if time.time() - w.stat().st_mtime < 7 * 86400
]
if not wheels:
    for old in scratch.glob("*.whl"):
        old.unlink()
    done = subprocess.run(
        [
            python,
            "-m",
            "pip",
            "download",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            "-d",
            scratch,
            "nvidia-cuda-cccl",
        ],
        capture_output=True,
        text=True,
    )
    wheels = sorted(scratch.glob("nvidia_cuda_cccl-*.whl"))
    if done.returncode != 0 or not wheels:
        print("pip cannot fetch nvidia-cuda-cccl here:", (done.stdout + done.stderr)[-300:])
        sys.exit(77)
    wheels[-1].touch()
unpacked = scratch / wheels[-1].stem
if not unpacked.exists():
    zipfile.ZipFile(wheels[-1]).extractall(unpacked)
found = sorted(unpacked.rglob("cuda/memory_resource"))
assert found, f"{wheels[-1].name} holds no cuda/memory_resource"
include = found[0].parents[1]
program = scratch / "cuda_mr_test"
subprocess.run(
    [
        compiler,
        "-std=c++20",
        "-O0",
        "-Wall",
        "-Wextra",
        f"-I{source}/include",
        "-isystem",
        include,
        "-isystem",
        toolkit,
        f"{source}/tests/bindings/foreign/cuda_mr_test.cpp",
        library,
        "-lz",
        "-lzstd",
        "-ldl",
        "-pthread",
        "-o",
        program,
    ],
    check=True,
)
print(wheels[-1].name, flush=True)
sys.exit(subprocess.run([program]).returncode)
