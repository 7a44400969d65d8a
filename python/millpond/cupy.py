"""CuPy's arrays from millpond's pool.

    import cupy, millpond.cupy
    millpond.cupy.use()

CuPy asks for memory on the current stream and gives it back names no stream then: a block goes
back on the stream that it was allocated on, as CuPy's own stream-ordered allocator does.
"""

import ctypes

from . import _native
from ._native import check

__all__ = ["allocate", "use"]


def use(**options):
    """Makes millpond the allocator of CuPy's arrays. options: as millpond.torch.use. With PyTorch
    in the process the pool is shared."""
    import cupy

    library = _native.library()
    if options:
        chosen = _native.pool_options(**options)
        check(library.millpond_torch_configure(ctypes.byref(chosen), 0))
    check(library.millpond_torch_start(cupy.cuda.runtime.getDeviceCount()))
    cupy.cuda.set_allocator(allocate)


def _memory_class(cupy):
    """cupy.cuda.BaseMemory's child that gives its block back; made once, when CuPy is there."""

    class Memory(cupy.cuda.memory.BaseMemory):
        def __init__(self, bytes_):
            self.size = bytes_
            self.device_id = cupy.cuda.device.get_device_id()
            self._stream = cupy.cuda.get_current_stream()  # kept alive as long as the block
            self.ptr = 0
            ptr = ctypes.c_void_p()
            status = _native.library().millpond_torch_malloc(
                bytes_, self.device_id, self._stream.ptr or None, ctypes.byref(ptr)
            )
            if status == _native.OUT_OF_MEMORY:
                raise cupy.cuda.memory.OutOfMemoryError(bytes_, 0, 0)
            check(status)
            self.ptr = ptr.value or 0

        def __del__(self):
            if self.ptr and _native is not None:
                _native.library().millpond_torch_free(
                    self.ptr, self.size, self.device_id, self._stream.ptr or None
                )
                self.ptr = 0

    return Memory


_memory = None


def allocate(bytes_):
    """The function for cupy.cuda.set_allocator."""
    global _memory
    import cupy

    if _memory is None:
        _memory = _memory_class(cupy)
    return cupy.cuda.memory.MemoryPointer(_memory(bytes_), 0)
