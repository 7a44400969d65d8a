"""CuPy's arrays from millpond's pool.

python3 examples/python/cupy_arrays.py
"""

import sys

import millpond

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except Exception:  # no CuPy, or no driver behind it
    print(f"millpond {millpond.__version__}: no CuPy with a GPU here")
    sys.exit(0)

import millpond.cupy
import millpond.torch

millpond.cupy.use()
a = cupy.random.random((2000, 2000))
print("trace of a product:", float(cupy.trace(a @ a)))
print(millpond.torch.memory_summary(0))
