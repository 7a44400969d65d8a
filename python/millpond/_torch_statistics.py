"""millpond's numbers under PyTorch's names, and torch.cuda's functions that ask for them.

PyTorch's own functions raise with any allocator but its own; programs call them everywhere, so
use() answers in their place.
"""

import collections
import ctypes

from . import _native
from ._native import check


def _index(device):
    if isinstance(device, int):
        return device
    import torch

    if device is None:
        return torch.cuda.current_device() if torch.cuda.is_available() else 0
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def numbers(device=None):
    out = _native.TorchNumbers()
    out.struct_bytes = ctypes.sizeof(out)
    check(_native.library().millpond_torch_statistics(_index(device), ctypes.byref(out)))
    return out


def memory_stats(device=None):
    n = numbers(device)
    stats = collections.OrderedDict()
    for key, now, peak, up, down in (
        ("allocation", n.live_blocks, n.peak_live_blocks, n.allocations, n.deallocations),
        ("active", n.live_blocks, n.peak_live_blocks, n.allocations, n.deallocations),
        ("allocated_bytes", n.requested, n.peak_requested, n.allocated, n.freed),
        ("requested_bytes", n.requested, n.peak_requested, n.allocated, n.freed),
        ("active_bytes", n.requested, n.peak_requested, n.allocated, n.freed),
        (
            "reserved_bytes",
            n.reserved,
            n.peak_reserved,
            n.peak_reserved,
            n.peak_reserved - n.reserved,
        ),
    ):
        for field, value in (("current", now), ("peak", peak), ("allocated", up), ("freed", down)):
            stats[f"{key}.all.{field}"] = int(value)
    stats["num_ooms"] = int(n.out_of_memory)
    stats["num_alloc_retries"] = 0
    stats["millpond.graph_bytes"] = int(n.graph_bytes)
    for name in _native.POOL_COUNTS:
        stats[f"millpond.{name}"] = int(getattr(n, name))
    return stats


def memory_stats_as_nested_dict(device=None):
    nested = {}
    for key, value in memory_stats(device).items():
        at = nested
        *path, last = key.split(".")
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return nested


def reset_peak_memory_stats(device=None):
    check(_native.library().millpond_torch_reset_peaks(_index(device)))


def memory_summary(device=None, abbreviated=False):
    n = numbers(device)

    def size(value):
        for unit in ("B", "KiB", "MiB", "GiB"):
            if value < 1024 or unit == "GiB":
                return f"{value:.4g} {unit}"
            value /= 1024

    rows = [
        ("live, as asked for", n.requested, n.peak_requested),
        ("reserved of the GPU", n.reserved, n.peak_reserved),
    ]
    lines = [
        f"millpond {_native.version()}, device {_index(device)}",
        f"{'':22}{'now':>12}{'peak':>12}",
    ]
    lines += [f"{name:22}{size(now):>12}{size(peak):>12}" for name, now, peak in rows]
    lines.append(f"{'blocks':22}{n.live_blocks:>12}{n.peak_live_blocks:>12}")
    lines.append(
        f"lent to captured graphs {size(n.graph_bytes)}; {n.allocations} allocations, "
        f"{n.out_of_memory} out of memory"
    )
    return "\n".join(lines)


def patch(torch):
    """Answers in place of torch.cuda's functions that PyTorch refuses for other allocators."""
    from . import _torch_snapshot

    memory = torch.cuda.memory
    ours = {
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "reset_peak_memory_stats": reset_peak_memory_stats,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "reset_max_memory_allocated": reset_peak_memory_stats,
        "reset_max_memory_cached": reset_peak_memory_stats,
        "memory_allocated": lambda device=None: int(numbers(device).requested),
        "max_memory_allocated": lambda device=None: int(numbers(device).peak_requested),
        "memory_reserved": lambda device=None: int(numbers(device).reserved),
        "max_memory_reserved": lambda device=None: int(numbers(device).peak_reserved),
        "memory_summary": memory_summary,
        "memory_snapshot": lambda *args, **kwargs: _torch_snapshot.snapshot()["segments"],
        "_snapshot": lambda *args, **kwargs: _torch_snapshot.snapshot(),
        "_dump_snapshot": lambda filename="dump_snapshot.pickle", *args, **kwargs: (
            _torch_snapshot.dump_snapshot(filename)
        ),
        "_record_memory_history": _torch_snapshot.torch_record_memory_history,
    }
    _put(ours, memory, torch.cuda)
    # The same for any kind of device, from PyTorch 2.9 on; its other functions ask these.
    accelerator = getattr(torch, "accelerator", None)
    _put(
        {
            name: ours[name]
            for name in (
                "memory_stats",
                "reset_peak_memory_stats",
                "reset_accumulated_memory_stats",
            )
        },
        getattr(accelerator, "memory", None),
        accelerator,
    )


def _put(functions, *modules):
    for module in modules:
        for name, function in functions.items():
            if hasattr(module, name):
                setattr(module, name, function)
