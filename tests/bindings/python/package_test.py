"""The installed Python package, with no GPU and no PyTorch: run by the Python that has it. Each
check is a process of its own, since what PyTorch's allocator is can be chosen once a process.

usage: package_test.py [CHECK]
"""

import ctypes
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent


def simulated():
    """millpond.torch's library serving from a simulated GPU of 1 GiB."""
    from millpond import _native

    library = _native.library()
    _native.check(library.millpond_torch_configure(None, 1))
    _native.check(library.millpond_torch_start(1))
    return _native, library


def entry():
    from millpond import _native

    loaded = ctypes.CDLL(_native.entry_path())  # with the lock of Python let go, as PyTorch calls
    loaded.millpond_entry_malloc.restype = ctypes.c_void_p
    loaded.millpond_entry_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    loaded.millpond_entry_free.restype = None
    loaded.millpond_entry_free.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    return loaded


def check_imports_without_anything():
    import millpond
    import millpond.cupy
    import millpond.torch

    assert "torch" not in sys.modules and "cupy" not in sys.modules
    assert not millpond.torch.in_use()
    assert millpond.__version__ == "0.2.0"
    text = millpond.doctor("--gpu", "sim")
    assert "simulated" in text, text
    try:
        millpond.doctor("--no-such-option")
    except millpond.MillpondError as why:
        assert "no-such-option" in str(why)
    else:
        raise AssertionError("a wrong option was taken")


def check_the_command():
    for command in (
        [str(Path(sys.executable).parent / "millpond")],
        [sys.executable, "-m", "millpond"],
    ):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith("millpond 0.2.0"), done
        assert subprocess.run([*command, "nonsense"], capture_output=True).returncode == 2


def check_serves_and_counts():
    _native, library = simulated()
    e = entry()
    assert e.millpond_entry_malloc(0, 0, None) is None
    ptrs = [e.millpond_entry_malloc(1000 + n, 0, None) for n in range(100)]
    assert len(set(ptrs)) == 100 and all(p % 512 == 0 for p in ptrs)
    from millpond import torch as ours

    stats = ours.memory_stats(0)
    assert stats["allocated_bytes.all.current"] == sum(range(1000, 1100)), stats
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    for n, p in enumerate(ptrs):
        e.millpond_entry_free(p, 1000 + n, 0, None)
    stats = ours.memory_stats(0)
    assert stats["allocated_bytes.all.current"] == 0 and stats["allocated_bytes.all.peak"] == sum(
        range(1000, 1100)
    )
    ours.reset_peak_memory_stats(0)
    assert ours.memory_stats(0)["allocated_bytes.all.peak"] == 0
    assert "reserved of the GPU" in ours.memory_summary(0)
    large = e.millpond_entry_malloc(200 << 20, 0, None)
    e.millpond_entry_free(large, 200 << 20, 0, None)
    before = ours.memory_stats(0)["reserved_bytes.all.current"]
    e.millpond_entry_reset()
    after = ours.memory_stats(0)["reserved_bytes.all.current"]
    assert before >= 200 << 20 and after <= 50 << 20, (before, after)
    # A block of nobody: reported, counted, and no crash.
    assert library.millpond_torch_free(0x1234000, 8, 0, None) != 0
    assert b"not of this pool" in library.millpond_last_error(), library.millpond_last_error()


def check_out_of_memory_and_fraction():
    _native, library = simulated()
    ptr = ctypes.c_void_p()
    try:
        _native.check(library.millpond_torch_malloc(2 << 30, 0, None, ctypes.byref(ptr)))
    except _native.OutOfMemory as why:
        assert "asked for 2.00 GiB" in str(why), why
    else:
        raise AssertionError("2 GiB of 1 GiB were given")
    _native.check(library.millpond_torch_memory_fraction(0.125, 0))
    assert (
        library.millpond_torch_malloc(200 << 20, 0, None, ctypes.byref(ptr))
        == _native.OUT_OF_MEMORY
    )
    assert b"limit" in library.millpond_last_error()
    _native.check(library.millpond_torch_memory_fraction(1.0, 0))
    _native.check(library.millpond_torch_malloc(200 << 20, 0, None, ctypes.byref(ptr)))
    assert library.millpond_torch_memory_fraction(1.5, 0) != 0
    assert library.millpond_torch_malloc(1, 500, None, ctypes.byref(ptr)) != 0
    assert b"no device 500" in library.millpond_last_error()
    assert library.millpond_torch_configure(None, 1) == _native.NOT_PERMITTED
    stats = __import__("millpond.torch").torch.memory_stats(0)
    assert stats["num_ooms"] == 2, stats


def check_snapshot():
    simulated()
    from millpond import torch as ours

    ours.record_memory_history(max_entries=3)
    e = entry()
    e.millpond_entry_tell_frames(1)

    def the_caller():
        return e.millpond_entry_malloc(3 << 20, 0, None)

    first, second = the_caller(), e.millpond_entry_malloc(100, 0, None)
    e.millpond_entry_free(second, 100, 0, None)
    ours.dump_snapshot("snapshot.pickle")
    got = pickle.loads(Path("snapshot.pickle").read_bytes())
    live = [b for s in got["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert [(b["address"], b["requested_size"]) for b in live] == [(first, 3 << 20)], live
    assert any(f["name"] == "the_caller" for f in live[0]["frames"]), live[0]["frames"]
    for s in got["segments"]:  # the blocks cover the segment without gaps
        at = s["address"]
        for b in s["blocks"]:
            assert b["address"] == at, (s, b)
            at += b["size"]
        assert at == s["address"] + s["total_size"]
    actions = [t["action"] for t in got["device_traces"][0]]
    assert actions == ["alloc", "alloc", "free_requested", "free_completed"], actions
    # What millpond writes, millpond reads.
    done = subprocess.run(
        [sys.executable, "-m", "millpond", "compare", "snapshot.pickle", "--gpu", "sim", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    ours.record_memory_history(False)


def check_exit_with_live_tensors():
    done = subprocess.run(
        [sys.executable, __file__, "--leave-live"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "left" in done.stdout and done.stderr == "", done


def check_a_fork_refuses():
    _native, library = simulated()
    e = entry()
    ptr = e.millpond_entry_malloc(4096, 0, None)
    child = os.fork()
    if child == 0:
        out = ctypes.c_void_p()
        refused = (
            library.millpond_torch_malloc(4096, 0, None, ctypes.byref(out)) == _native.NOT_PERMITTED
        )
        said = b"forked" in library.millpond_last_error()
        os._exit(0 if refused and said else 1)
    assert os.waitpid(child, 0)[1] == 0
    e.millpond_entry_free(ptr, 4096, 0, None)


def check_two_copies_are_noticed():
    import shutil

    from millpond import _native

    library = _native.library()
    assert library.millpond_check_single_copy() == _native.OK
    shutil.copy(_native.library_path(), "libmillpond.so.0.copy")
    other = ctypes.CDLL(os.path.abspath("libmillpond.so.0.copy"))
    other.millpond_version.restype = ctypes.c_char_p
    assert library.millpond_check_single_copy() == _native.NOT_PERMITTED
    text = library.millpond_last_error().decode()
    assert "libmillpond.so.0.copy" in text and "0.2.0" in text, text
    sys.path.insert(0, str(HERE / "fake_torch"))
    import millpond.torch

    try:
        millpond.torch.use()
    except RuntimeError as why:
        assert "more than one millpond" in str(why)
    else:
        raise AssertionError("use() with two copies")


def check_use_wires_everything():
    sys.path.insert(0, str(HERE / "fake_torch"))
    import millpond.torch
    import torch

    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        made = millpond.torch.use(limit_bytes=1 << 30)
    assert any("RuntimeError" in str(w.message) for w in reported), (
        reported
    )  # no c10: the shim does not compile
    assert torch.calls["current"] is made and millpond.torch.in_use()
    wanted = {
        "set_init_fn",
        "set_reset_fn",
        "set_memory_fraction_fn",
        "set_base_alloc_fn",
        "set_record_stream_fn",
        "set_begin_allocate_to_pool",
        "set_end_allocate_to_pool_fn",
        "set_release_pool",
    }
    assert wanted <= set(torch.calls) and all(torch.calls[name] for name in wanted)
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory.memory_stats()["num_ooms"] == 0
    assert (
        torch.accelerator.memory.memory_stats(0)["num_ooms"] == 0
        and torch.accelerator.memory_stats is torch.cuda.memory.memory_stats
    )
    assert millpond.torch.use() is made
    try:
        millpond.torch.use(limit_bytes=1)
    except RuntimeError as why:
        assert "first call" in str(why)
    else:
        raise AssertionError("options after the first call were taken")


def check_too_late_is_said():
    sys.path.insert(0, str(HERE / "fake_torch"))
    os.environ["CXX"] = ""
    import millpond.torch
    import torch

    torch.refuse_change = True
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        try:
            millpond.torch.use()
        except RuntimeError as why:
            assert "too late" in str(why), why
        else:
            raise AssertionError("the refusal was lost")
    assert any("no C++ compiler" in str(w.message) for w in reported), reported
    assert not millpond.torch.in_use()
    del torch._C._cuda_customAllocator
    try:
        millpond.torch.use()
    except RuntimeError as why:
        assert "without CUDA" in str(why)
    else:
        raise AssertionError("a PyTorch without CUDA was taken")


def check_a_missing_driver_is_said():
    import millpond
    from millpond import _native

    if millpond.gpu_count() > 0:
        return
    ptr = ctypes.c_void_p()
    status = _native.library().millpond_torch_malloc(64, 0, None, ctypes.byref(ptr))
    text = _native.library().millpond_last_error().decode()
    assert status != 0 and ("libcuda" in text or "CUDA device" in text), text


def check_compiled_entry_points_are_kept_where_only_the_user_writes():
    import tempfile

    from millpond import _torch_shim

    names = ("MILLPOND_CACHE", "XDG_CACHE_HOME")
    for name in names:
        os.environ.pop(name, None)
    # As expanduser answers with no HOME and no entry in the list of users.
    real, os.path.expanduser = os.path.expanduser, lambda path: path
    try:
        assert _torch_shim.cache_folder() is None
        assert "no cache folder" in _torch_shim.why_not_kept_there(None)
    finally:
        os.path.expanduser = real
    os.environ["MILLPOND_CACHE"] = "relative"
    assert _torch_shim.cache_folder() is None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MILLPOND_CACHE"] = folder
        kept = _torch_shim.cache_folder()
        assert _torch_shim.why_not_kept_there(kept) is None
        assert kept.stat().st_mode & 0o077 == 0
        kept.chmod(0o777)
        assert "others may write" in _torch_shim.why_not_kept_there(kept)


def check_a_missing_library_is_said():
    environment = {**os.environ, "MILLPOND_LIBRARY": "/nowhere/libmillpond.so"}
    done = subprocess.run(
        [sys.executable, "-c", "import millpond"], capture_output=True, text=True, env=environment
    )
    assert done.returncode != 0 and "/nowhere/libmillpond.so cannot be loaded" in done.stderr, (
        done.stderr
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--leave-live"]:
        simulated()
        held = [entry().millpond_entry_malloc(1 << 20, 0, None) for _ in range(10)]
        print("left", len(held))
        sys.exit(0)
    checks = {name[6:]: body for name, body in globals().items() if name.startswith("check_")}
    if len(sys.argv) > 1:
        checks[sys.argv[1]]()
        sys.exit(0)
    failed = 0
    for name in checks:
        done = subprocess.run(
            [sys.executable, __file__, name], capture_output=True, text=True, timeout=250
        )
        print(f"{name}: {'ok' if done.returncode == 0 else 'FAILED'}")
        if done.returncode != 0:
            failed += 1
            print(done.stdout + done.stderr)
    sys.exit(1 if failed else 0)
