"""Checks what a libmillpond.so shows: every function of millpond.h under its version node,
PyTorch's entry points, and nothing else, so that two copies or two C++ runtimes in one process
never meet.

usage: check_exports.py LIBRARY HEADER
"""

import re
import subprocess
import sys
from pathlib import Path

library, header = sys.argv[1:]
table = subprocess.run(
    ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
).stdout
shown = {line.split()[-1] for line in table.splitlines() if " A " not in line}
promised = set(
    re.findall(
        r"\b(millpond_\w+)\(", re.sub(r"/\*.*?\*/", "", Path(header).read_text(), flags=re.S)
    )
)
faults = [
    f"{name}: promised by the header and not shown"
    for name in sorted(promised)
    if not any(symbol.startswith(name + "@") for symbol in shown)
]
for symbol in sorted(shown):
    name, _, node = symbol.partition("@@")
    if not re.fullmatch(r"MILLPOND_\d+", node):
        faults.append(f"{symbol}: no version")
    elif name not in promised and not name.startswith("millpond_torch_"):
        faults.append(f"{symbol}: shown and promised nowhere")
assert len(promised) > 25, promised
print("\n".join(faults) if faults else f"{len(shown)} functions, each with its version")
sys.exit(1 if faults else 0)
