#!/usr/bin/env python3
"""Runs the inference server on the simulated GPU and says which of the driver's calls a batch
makes: millpond's strategy may make none but those of its copies, its kernels and the one event that
tells when it is done.

    check_calls.py build/examples/inference_server
"""

import json
import subprocess
import sys

ran = subprocess.run(
    [
        sys.argv[1],
        "--gpu",
        "sim",
        "--seconds",
        "0.2",
        "--strategy",
        "millpond",
        "--strategy",
        "control-pinned",
        "--json",
    ],
    check=True,
    capture_output=True,
    text=True,
)
calls = {s["name"]: s["calls_a_batch"] for s in json.loads(ran.stdout)["strategies"]}
own = {
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuLaunchKernel",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
}
wrong = [f"{name}: {count} a batch" for name, count in calls["millpond"].items() if name not in own]
# A batch that is on its way when the time is up has recorded its event and is not counted.
if calls["millpond"]["cuEventRecord"] > 1.05:
    wrong.append(
        f"cuEventRecord: {calls['millpond']['cuEventRecord']} a batch, where the server records one"
    )
if calls["control-pinned"].get("cuMemAllocFromPoolAsync", 0) < 9:
    wrong.append("control-pinned: not nine allocations a batch: this counts something else")
print(
    "\n".join(wrong)
    or "millpond: " + ", ".join(f"{name} {count:.2f}" for name, count in calls["millpond"].items())
)
sys.exit(1 if wrong else 0)
