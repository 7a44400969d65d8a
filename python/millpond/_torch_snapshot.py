"""Memory snapshots that PyTorch's viewer (pytorch.org/memory_viz) and `millpond compare` open.

The blocks are those allocated since record_memory_history(): the pool's own books have no names in
them. Segments are the 2 MiB pages that hold live blocks, joined where they touch.
"""

import json
import pickle

from . import _native
from ._native import check

_PAGE = 2 << 20
_ACTIONS = ("alloc", "free_requested", "oom")


def record_memory_history(enabled=True, max_entries=100000, stacks="python"):
    """Starts (or stops) keeping the last max_entries allocations and frees. stacks: "python" or
    None."""
    check(_native.library().millpond_torch_history(max_entries if enabled else 0))
    from . import torch as ours

    if ours._entry is not None:
        ours._entry.millpond_entry_tell_frames(1 if enabled and stacks is not None else 0)


def torch_record_memory_history(
    enabled="all", *args, max_entries=100000, stacks="python", **kwargs
):
    """torch.cuda.memory._record_memory_history's own arguments."""
    record_memory_history(enabled not in (None, False), min(max_entries, 10_000_000), stacks)


def _frames(text):
    frames = []
    for line in text.split("\x1e"):
        if line:
            name, file, number = line.split("\x1f")
            frames.append({"name": name, "filename": file, "line": int(number)})
    return frames


def _segments(device, live, stacks):
    """Live blocks in address order, as segments of whole pages without gaps."""
    segments = []
    for address, size, stream, stack in sorted(live):
        end = address + size
        if (
            not segments
            or address // _PAGE * _PAGE > segments[-1]["end"]
            or segments[-1]["stream"] != stream
        ):
            start = address // _PAGE * _PAGE
            if segments and start < segments[-1]["end"]:
                start = segments[-1]["end"]  # a page that two streams share belongs to the first
            segments.append({"start": min(start, address), "end": 0, "stream": stream, "live": []})
        segments[-1]["live"].append((address, size, stack))
        segments[-1]["end"] = max(segments[-1]["end"], -(-end // _PAGE) * _PAGE)
    for at, segment in enumerate(segments[:-1]):  # no further than the next one's start
        segment["end"] = min(segment["end"], segments[at + 1]["start"])
    out = []
    for segment in segments:
        blocks, at = [], segment["start"]

        def gap(at, until, blocks=blocks):
            if until > at:
                blocks.append(
                    {
                        "address": at,
                        "size": until - at,
                        "requested_size": 0,
                        "state": "inactive",
                        "frames": [],
                    }
                )

        for address, size, stack in segment["live"]:
            gap(at, address)
            block = -(-size // 512) * 512
            blocks.append(
                {
                    "address": address,
                    "size": block,
                    "requested_size": size,
                    "state": "active_allocated",
                    "frames": stacks[stack - 1] if stack else [],
                }
            )
            at = address + block
        end = max(segment["end"], at)
        gap(at, end)
        used = sum(b["size"] for b in blocks if b["state"] != "inactive")
        out.append(
            {
                "device": device,
                "address": segment["start"],
                "total_size": end - segment["start"],
                "allocated_size": used,
                "active_size": used,
                "requested_size": sum(b["requested_size"] for b in blocks),
                "stream": segment["stream"],
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": True,
                "frames": [],
                "blocks": blocks,
            }
        )
    return out


def snapshot():
    """The snapshot as PyTorch's plain containers."""
    library = _native.library()
    segments, traces = [], []
    for device in range(max(1, _native.gpu_count())):
        reported = library.millpond_torch_history_json(device)
        reported = json.loads(reported) if reported else {"entries": [], "live": [], "stacks": []}
        stacks = [_frames(text) for text in reported["stacks"]]
        trace = []
        for action, address, size, stream, time_us, stack in reported["entries"]:
            entry = {
                "action": _ACTIONS[action],
                "size": size,
                "stream": stream,
                "time_us": time_us,
                "frames": stacks[stack - 1] if stack else [],
            }
            entry["device_free" if _ACTIONS[action] == "oom" else "addr"] = address
            trace.append(entry)
            if (
                _ACTIONS[action] == "free_requested"
            ):  # millpond needs no second step before the address is free
                trace.append({**entry, "action": "free_completed"})
        traces.append(trace)
        segments += _segments(
            device, [(a, b, s, k) for _, a, b, s, _, k in reported["live"]], stacks
        )
    return {
        "segments": segments,
        "device_traces": traces,
        "external_annotations": [],
        "allocator_settings": {"allocator": f"millpond {_native.version()}"},
    }


def dump_snapshot(filename="dump_snapshot.pickle"):
    """Writes the snapshot as a pickle of plain containers."""
    with open(filename, "wb") as out:
        pickle.dump(snapshot(), out, protocol=4)
