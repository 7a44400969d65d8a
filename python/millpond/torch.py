"""PyTorch's CUDA tensors from millpond's pool.

    import torch, millpond.torch
    millpond.torch.use()                      # before the first CUDA tensor of the process
    ...
    print(millpond.torch.memory_summary())

use() also answers torch.cuda.memory_stats and its kin, which PyTorch itself refuses with any other
allocator than its own. Nothing here imports torch before use() is called.
"""

import ctypes

from . import _native
from ._native import check
from ._torch_shim import entry_library
from ._torch_snapshot import dump_snapshot, record_memory_history, snapshot

__all__ = [
    "allocator",
    "dump_snapshot",
    "in_use",
    "mem_pool",
    "memory_stats",
    "memory_summary",
    "record_memory_history",
    "reset_peak_memory_stats",
    "snapshot",
    "use",
]

_allocator = None
_entry = None


def in_use():
    """Whether use() has made millpond PyTorch's allocator."""
    return _allocator is not None and _entry is not None


def use(*, patch_statistics=True, compile_shim=True, **options):
    """Makes millpond the allocator of PyTorch's CUDA tensors, for the rest of the process.

    options: reuse, limit_bytes, initial_bytes, slack, max_wait_seconds (see
    millpond/pool/pool.hpp).
    patch_statistics: also answer torch.cuda.memory_stats, memory_allocated, memory_snapshot and the
    like.
    compile_shim: compile, once for this PyTorch, the few lines that make running out of memory a
    torch.OutOfMemoryError; without them, or without a compiler, it is a RuntimeError with the same
    text.

    Raises RuntimeError where PyTorch has used its own allocator already, or another millpond is
    loaded.
    """
    global _allocator, _entry
    import torch

    if _allocator is not None:
        if options:
            raise RuntimeError(
                "millpond already serves PyTorch; its options are chosen in the first call of use()"
            )
        return _allocator
    library = _native.library()
    if library.millpond_check_single_copy() != _native.OK:
        raise RuntimeError(library.millpond_last_error().decode())
    chosen = _native.pool_options(**options)
    check(library.millpond_torch_configure(ctypes.byref(chosen), 0))
    made, entry = _make_allocator(torch, compile_shim)
    try:
        torch.cuda.memory.change_current_allocator(made)
    except (RuntimeError, AttributeError) as why:
        if not hasattr(torch._C, "_cuda_changeCurrentAllocator"):
            raise RuntimeError(
                "this PyTorch was built without CUDA: there is no allocator to replace"
            ) from None
        raise RuntimeError(
            "millpond.torch.use() comes too late: PyTorch has used its own allocator already. Call "
            "it before the "
            f"first CUDA tensor, best right after `import torch` ({why})"
        ) from None
    _allocator, _entry = made, entry
    if patch_statistics:
        from . import _torch_statistics

        _torch_statistics.patch(torch)
    return _allocator


def allocator(compile_shim=True):
    """A torch.cuda.memory.CUDAPluggableAllocator over millpond, without making it the current
    one."""
    import torch

    return _make_allocator(torch, compile_shim)[0]


def mem_pool():
    """A torch.cuda.MemPool whose segments come from millpond, for `with
    torch.cuda.use_mem_pool(...)`."""
    import torch

    return torch.cuda.MemPool(allocator().allocator())


def _make_allocator(torch, compile_shim):
    path = entry_library(torch, compile_shim)
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError("this PyTorch was built without CUDA: there is no allocator to replace")
    made = torch.cuda.memory.CUDAPluggableAllocator(
        path, "millpond_entry_malloc", "millpond_entry_free"
    )
    entry = ctypes.CDLL(path)
    inner = made.allocator()
    # What older PyTorch lacks is left out: then its own default stands.
    for setter, name in (
        ("set_init_fn", "init"),
        ("set_reset_fn", "reset"),
        ("set_memory_fraction_fn", "memory_fraction"),
        ("set_base_alloc_fn", "base"),
        ("set_record_stream_fn", "record_stream"),
        ("set_begin_allocate_to_pool", "begin_pool"),
        ("set_end_allocate_to_pool_fn", "end_pool"),
        ("set_release_pool", "release_pool"),
    ):
        if hasattr(inner, setter):
            function = getattr(entry, f"millpond_entry_{name}")
            getattr(inner, setter)(ctypes.cast(function, ctypes.c_void_p).value)
        elif setter == "set_record_stream_fn":
            raise RuntimeError(
                f"PyTorch {torch.__version__} cannot tell another allocator of record_stream, so "
                "that tensors used on "
                "several streams would be unsafe: PyTorch 2.1 or newer is needed"
            )
    return made, entry


def memory_stats(device=None):
    """millpond's numbers by PyTorch's names (bytes and counts); see torch.cuda.memory_stats."""
    from . import _torch_statistics

    return _torch_statistics.memory_stats(device)


def reset_peak_memory_stats(device=None):
    from . import _torch_statistics

    _torch_statistics.reset_peak_memory_stats(device)


def memory_summary(device=None):
    """A few lines for people."""
    from . import _torch_statistics

    return _torch_statistics.memory_summary(device)
