#!/usr/bin/env python3
"""Writes the small pickles that the snapshot importer's tests read, next to this file.

The plain ones have the shape that torch.cuda.memory._snapshot() gives; the hostile ones would run
code in Python's own unpickler. Deterministic: the same files each time.
"""

import pathlib
import pickle

here = pathlib.Path(__file__).parent


def frames(*names):
    return [
        {"name": name, "filename": f"/app/{name}.py", "line": 10 + i}
        for i, name in enumerate(names)
    ]


def snapshot():
    base = 0x7F0000000000
    forward = frames("linear", "forward", "main")  # shared, as PyTorch shares them

    def entry(action, addr, size, stream, time_us, stack=None):
        return {
            "action": action,
            "addr": addr,
            "size": size,
            "stream": stream,
            "frames": stack or [],
            "time_us": time_us,
            "compile_context": "N/A",
            "user_metadata": "",
        }

    t = 1_764_500_000_000_000
    first = [
        entry("segment_alloc", base, 2 << 20, 0, t + 0),
        entry("free_requested", base + 0x9000, 300, 0, t + 1),  # allocated before the recording
        entry("free_completed", base + 0x9000, 300, 0, t + 2),
        entry("alloc", base, 1000, 0, t + 10, forward),
        entry("alloc", base + 1024, 2000, 0x55AA00000010, t + 30, frames("attention", "main")),
        entry("free_requested", base, 1000, 0, t + 50, forward),
        entry("free_completed", base, 1000, 0, t + 51),
        entry("snapshot", 0, 0, 0, t + 55),
        {
            "action": "oom",
            "device_free": 4096,
            "size": 1 << 40,
            "stream": 0,
            "frames": forward,
            "time_us": t + 60,
        },
        entry("workspace_snapshot", 0, 0, 0, t + 61),  # of a later PyTorch
    ]
    second = [
        entry("alloc", 0x7E0000000000, 64, 0x55AA00000010, t + 20),
        entry("free_requested", 0x7E0000000000, 64, 0x55AA00000010, t + 40),
        entry("free_completed", 0x7E0000000000, 64, 0x55AA00000010, t + 41),
    ]
    blocks = [
        {"address": base, "size": 1024, "requested_size": 1000, "state": "inactive", "frames": []},
        {
            "address": base + 1024,
            "size": 2048,
            "requested_size": 2000,
            "state": "active_allocated",
            "frames": forward,
        },
        {
            "address": base + 3072,
            "size": 512,
            "requested_size": 77,
            "state": "active_allocated",
            "frames": [],
        },
    ]
    segment = {
        "device": 0,
        "address": base,
        "total_size": 2 << 20,
        "allocated_size": 2560,
        "active_size": 2560,
        "requested_size": 2077,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    return {
        "segments": [segment],
        "device_traces": [first, second],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "roundup": {"4": 1.5},
        },
        "external_annotations": [
            {"stage": "x", "name": "a", "device": 0, "time_us": t, "more": (None, True, 2**70)}
        ],
    }


def save(name, data, protocol):
    (here / f"{name}.pickle").write_bytes(pickle.dumps(data, protocol=protocol))


class Code:
    def __reduce__(self):
        return (print, ("this must never run",))


class Plain:
    pass


for protocol in (2, 3, 4, 5):
    save(f"plain_protocol{protocol}", snapshot(), protocol)
old = snapshot()
del old["allocator_settings"], old["external_annotations"]
for trace in old["device_traces"]:
    for each in trace:
        (
            each.pop("time_us", None),
            each.pop("compile_context", None),
            each.pop("user_metadata", None),
        )
for block in old["segments"][0]["blocks"]:
    del block["address"]
save("old_without_times", old, 2)
save("no_history", {"segments": snapshot()["segments"], "device_traces": [[]]}, 4)
save("not_a_snapshot", {"weights": [1, 2, 3]}, 4)
save("hostile_reduce", {"segments": [Code()], "device_traces": []}, 4)
save("hostile_reduce_protocol2", {"segments": [Code()], "device_traces": []}, 2)
save("hostile_object", {"segments": [Plain()], "device_traces": []}, 2)
save(
    "bad_address",
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": -5, "size": 1}]]},
    4,
)
save(
    "bad_size",
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": 5, "size": 2**64}]]},
    4,
)
save("bad_entry", {"segments": [], "device_traces": [[3]]}, 4)
