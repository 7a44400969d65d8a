"""libmillpond.so by ctypes: loading, errors, and the structures of millpond.h that Python fills."""

import ctypes
import os
import threading
from pathlib import Path

ABI = 1  # MILLPOND_ABI of the header that this file was written against
OK, OUT_OF_MEMORY, NOT_SUPPORTED, NOT_PERMITTED = 0, 2, 4, 11

_package = Path(__file__).resolve().parent
_lock = threading.Lock()
_library = None


class MillpondError(RuntimeError):
    """A call that millpond refused; the text says why."""


class OutOfMemory(MillpondError, MemoryError):
    """The memory is not there; the text is the pool's whole report."""


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("reuse", ctypes.c_int),
        ("context_fences", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("limit_bytes", ctypes.c_uint64),
        ("initial_bytes", ctypes.c_uint64),
        ("slack", ctypes.c_double),
        ("cache_small_bytes", ctypes.c_uint64),
        ("cache_large_bytes", ctypes.c_uint64),
        ("max_wait_ns", ctypes.c_uint64),
        ("on_pressure", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
    ]


# The pool's own counts, by the names of millpond::pool_statistics, and what no allocator could do
# with less than.
POOL_COUNTS = (
    "growths",
    "stitches",
    "stitch_reuses",
    "host_waits",
    "stream_waits",
    "fence_queries",
    "thread_cache_hits",
    "heap_hits",
    "given_back_bytes",
    "cached_bytes",
    "pending_bytes",
    "idle_bytes",
    "peak_out_bytes",
    "peak_needed_bytes",
    "seals",
    "stream_cache_hits",
    "thread_caches_flushed",
    "lock_waits",
)


class TorchNumbers(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "requested",
            "peak_requested",
            "allocated",
            "freed",
            "allocations",
            "deallocations",
            "live_blocks",
            "peak_live_blocks",
            "reserved",
            "peak_reserved",
            "graph_bytes",
            "out_of_memory",
            *POOL_COUNTS,
        )
    ]


def _file(folder, *names):
    for name in names:
        path = _package / folder / name
        if path.exists():
            return str(path)
    raise MillpondError(
        f"{_package / folder / names[0]} is missing: this millpond was not installed whole; "
        "install it with `pip install .` from its source, or from its wheel"
    )


def library_path():
    """The shared library with the C interface."""
    return os.environ.get("MILLPOND_LIBRARY") or _file("lib", "libmillpond.so.0")


def command_path():
    """The program `millpond`."""
    return os.environ.get("MILLPOND_COMMAND") or _file("bin", "millpond")


def entry_path():
    return os.environ.get("MILLPOND_TORCH_LIBRARY") or _file("lib", "libmillpond_torch.so")


def native_folder():
    return _package / "native"


_SIGNATURES = {
    "millpond_version": (ctypes.c_char_p, []),
    "millpond_last_error": (ctypes.c_char_p, []),
    "millpond_compatible": (ctypes.c_int, [ctypes.c_int]),
    "millpond_check_single_copy": (ctypes.c_int, []),
    "millpond_gpu_count": (ctypes.c_int, [ctypes.POINTER(ctypes.c_int)]),
    "millpond_pool_options_init": (None, [ctypes.POINTER(PoolOptions)]),
    "millpond_torch_configure": (ctypes.c_int, [ctypes.POINTER(PoolOptions), ctypes.c_int]),
    "millpond_torch_start": (ctypes.c_int, [ctypes.c_int]),
    "millpond_torch_malloc": (
        ctypes.c_int,
        [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)],
    ),
    "millpond_torch_free": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p],
    ),
    "millpond_torch_record_stream": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "millpond_torch_empty_cache": (ctypes.c_int, []),
    "millpond_torch_memory_fraction": (ctypes.c_int, [ctypes.c_double, ctypes.c_int]),
    "millpond_torch_statistics": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(TorchNumbers)]),
    "millpond_torch_reset_peaks": (ctypes.c_int, [ctypes.c_int]),
    "millpond_torch_history": (ctypes.c_int, [ctypes.c_uint64]),
    "millpond_torch_history_json": (ctypes.c_char_p, [ctypes.c_int]),
}


def library():
    """The loaded library. Raises MillpondError where it is missing or of another version."""
    global _library
    with _lock:
        if _library is None:
            path = library_path()
            try:
                loaded = ctypes.CDLL(path)
            except OSError as why:
                raise MillpondError(f"{path} cannot be loaded: {why}") from None
            for name, (result, arguments) in _SIGNATURES.items():
                try:
                    function = getattr(loaded, name)
                except AttributeError:
                    raise MillpondError(
                        f"{path} has no {name}: it is of another version than this Python package"
                    ) from None
                function.restype, function.argtypes = result, arguments
            if loaded.millpond_compatible(ABI) != OK:
                raise MillpondError(loaded.millpond_last_error().decode())
            _library = loaded
    return _library


def check(status):
    """Raises for a status that is not 0."""
    if status == OK:
        return
    text = library().millpond_last_error().decode(errors="replace")
    raise (OutOfMemory if status == OUT_OF_MEMORY else MillpondError)(text)


def version():
    return library().millpond_version().decode()


def gpu_count():
    """How many CUDA devices this process sees; 0 without a driver."""
    count = ctypes.c_int(0)
    return count.value if library().millpond_gpu_count(ctypes.byref(count)) == OK else 0


def pool_options(
    reuse="idle",
    limit_bytes=0,
    initial_bytes=0,
    slack=None,
    max_wait_seconds=1.0,
    cache_small_bytes=0,
    cache_large_bytes=0,
):
    """The options of a pool (millpond/pool/pool.hpp says what each means)."""
    options = PoolOptions()
    library().millpond_pool_options_init(ctypes.byref(options))
    policies = {"idle": 0, "same_stream": 1, "may_wait": 2}
    if reuse not in policies:
        raise ValueError(f"reuse must be one of {', '.join(policies)}, not {reuse!r}")
    options.reuse = policies[reuse]
    options.limit_bytes, options.initial_bytes = limit_bytes, initial_bytes
    options.cache_small_bytes, options.cache_large_bytes = cache_small_bytes, cache_large_bytes
    if slack is not None:
        options.slack = slack
    options.max_wait_ns = int(max_wait_seconds * 1e9)
    return options
