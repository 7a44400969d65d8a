"""A test double of the few parts of PyTorch that millpond.torch touches; it has no c10, so that the
shim cannot compile."""

import ctypes
import types

__version__ = "9.9.0"
calls = {}
refuse_change = False


class _Inner:
    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda address: calls.__setitem__(name, address)


class CUDAPluggableAllocator:
    def __init__(self, path, malloc, free):
        library = ctypes.CDLL(path)
        calls["malloc"] = ctypes.cast(getattr(library, malloc), ctypes.c_void_p).value
        calls["free"] = ctypes.cast(getattr(library, free), ctypes.c_void_p).value
        self._inner = _Inner()

    def allocator(self):
        return self._inner


def change_current_allocator(allocator):
    if refuse_change:
        raise RuntimeError("Can't swap an already initialized allocator")
    calls["current"] = allocator


def _refuses(*args, **kwargs):
    raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")


memory = types.ModuleType("torch.cuda.memory")
memory.CUDAPluggableAllocator = CUDAPluggableAllocator
memory.change_current_allocator = change_current_allocator
memory.memory_allocated = memory.memory_stats = memory._snapshot = _refuses
cuda = types.ModuleType("torch.cuda")
cuda.memory = memory
cuda.memory_allocated = _refuses
cuda.is_available = lambda: False
cuda.current_device = lambda: 0
accelerator = types.ModuleType("torch.accelerator")
accelerator.memory = types.ModuleType("torch.accelerator.memory")
for _module in (accelerator, accelerator.memory):
    _module.memory_stats = _module.reset_peak_memory_stats = _refuses
_C = types.SimpleNamespace(
    _cuda_customAllocator=None, _cuda_changeCurrentAllocator=None, _GLIBCXX_USE_CXX11_ABI=True
)
