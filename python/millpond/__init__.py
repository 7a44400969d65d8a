"""millpond: a stream-ordered GPU memory pool for PyTorch, CuPy and C, and the command that explains
memory.

    import millpond.torch
    millpond.torch.use()            # before the first CUDA tensor

    import millpond.cupy
    millpond.cupy.use()

    print(millpond.doctor())        # what this machine has, with or without a GPU

The package imports nothing but the standard library; PyTorch and CuPy are imported when they are
asked for.
"""

from ._native import MillpondError, OutOfMemory, command_path, gpu_count, library_path, version

__version__ = version()
__all__ = [
    "MillpondError",
    "OutOfMemory",
    "command_path",
    "doctor",
    "gpu_count",
    "library_path",
    "run_command",
    "version",
]


def run_command(*arguments):
    """Runs `millpond ARGUMENTS...` and returns (exit status, standard output, standard error)."""
    import subprocess

    done = subprocess.run([command_path(), *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def doctor(*arguments):
    """What this machine has for GPU memory and what is misconfigured, as text (`millpond
    doctor`)."""
    status, out, err = run_command("doctor", *arguments)
    if status not in (0, 1):  # 1: it found something to say
        raise MillpondError(err.strip() or f"millpond doctor ended with status {status}")
    return out
