"""The entry points for PyTorch: those of the wheel, or the same compiled once for the user's
PyTorch."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

from . import _native


def cache_folder():
    """Where compiled entry points are kept; None where there is no place that is the user's own. A
    relative one would be looked for in whatever folder the program runs in, and loaded from there.
    """
    base = (
        os.environ.get("MILLPOND_CACHE")
        or os.environ.get("XDG_CACHE_HOME")
        or os.path.join(os.path.expanduser("~"), ".cache")
    )
    return Path(base) / "millpond" if os.path.isabs(base) else None


def why_not_kept_there(folder):
    """What is wrong with a cache folder: others could put a library there, and it would be loaded.
    None where nothing is."""
    if folder is None:
        return "there is no cache folder: set HOME, or MILLPOND_CACHE to a whole path"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0):
        return f"{folder} is another user's: set MILLPOND_CACHE to a folder of your own"
    if found.st_mode & 0o022:
        return f"others may write in {folder}: chmod go-w it, or set MILLPOND_CACHE"
    return None


def compiler():
    """The C++ compiler: $CXX, or the first of c++, g++, clang++; None without one."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted is not None else ["c++", "g++", "clang++"]:
        if name and shutil.which(name):
            return name
    return None


def compile_command(torch, compiler_name, out):
    source = _native.native_folder()
    include = Path(torch.__file__).parent / "include"
    lib = Path(torch.__file__).parent / "lib"
    own = Path(_native.library_path()).resolve()
    abi = int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))
    return [
        compiler_name,
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-DMILLPOND_WITH_TORCH",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{source}",
        f"-I{include}",
        str(source / "torch_entry.cpp"),
        str(source / "python_frames.cpp"),
        str(own),
        f"-Wl,-rpath,{own.parent}",
        f"-L{lib}",
        "-lc10",
        f"-Wl,-rpath,{lib}",
        "-ldl",
        "-o",
        str(out),
    ]


def entry_library(torch, compile_shim=True):
    """The path of the library to load. Falls back to the wheel's own, with a warning that says what
    is lost."""
    plain = _native.entry_path()
    if not compile_shim:
        return plain
    chosen = compiler()
    if chosen is None:
        warnings.warn(
            "millpond: no C++ compiler is found, so that running out of memory is a RuntimeError, "
            "with the same text, "
            "and not a torch.OutOfMemoryError",
            stacklevel=4,
        )
        return plain
    # Whatever the result depends on is in its name.
    facts = [
        torch.__version__,
        torch.__file__,
        str(Path(_native.library_path()).resolve()),
        _native.version(),
    ]
    facts += [
        path.read_text() for path in sorted(_native.native_folder().iterdir()) if path.is_file()
    ]
    name = "torch_entry_" + hashlib.sha256("\n".join(facts).encode()).hexdigest()[:24] + ".so"
    folder = cache_folder()
    try:
        why = why_not_kept_there(folder)
        if why is not None:
            raise OSError(why)
        made = folder / name
        if made.exists():
            return str(made)
        # Compiled beside, then moved: two processes may do this at once.
        handle, scratch = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        done = subprocess.run(
            compile_command(torch, chosen, scratch), capture_output=True, text=True, timeout=300
        )
        if done.returncode == 0:
            os.replace(scratch, made)
            return str(made)
        os.unlink(scratch)
        why = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]
        )
    except (OSError, subprocess.SubprocessError) as failure:
        why = str(failure)
    warnings.warn(
        f"millpond: the entry points for PyTorch {torch.__version__} cannot be compiled ({why}); "
        "running out of memory is a "
        "RuntimeError, with the same text, and not a torch.OutOfMemoryError",
        stacklevel=4,
    )
    return plain
