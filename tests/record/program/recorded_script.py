# Allocates from known lines of known functions, over and over from the same place in C.
import ctypes
import sys

allocate = ctypes.CDLL(sys.argv[1]).recorded_allocate
allocate.argtypes = [ctypes.c_ulonglong]


def weights():
    allocate(1000)  # line 10


class Cache:
    def grow(self, größe):
        allocate(
            größe  # the call begins on line 15
        )

    def steps(self):
        yield 1
        self.grow(3000)  # line 21
        yield 2


for _ in range(3):
    weights()  # line 26
list(Cache().steps())  # line 27
exec(compile("\n\n\nallocate(4000)", "generated.py", "exec"))  # line 28
