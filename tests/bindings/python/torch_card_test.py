"""millpond.torch with a real PyTorch on a real card: what a program may ask of its allocator. Each
check is a process.

usage: torch_card_test.py [CHECK] [--out FILE]
"""

import gc
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading


def start(**options):
    import millpond.torch
    import torch

    millpond.torch.use(**options)
    return torch, millpond.torch


def check_tensors_and_numbers():
    torch, ours = start()
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    assert torch.cuda.memory_allocated() >= 4 << 20
    y = (x * 2).sum().item()
    assert y == float((1 << 20) * ((1 << 20) - 1)), y
    peak = torch.cuda.max_memory_allocated()
    del x
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < peak
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] == peak
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() <= peak
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory"):
        assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
    torch.cuda.empty_cache()
    print(torch.cuda.memory_summary())


def check_out_of_memory_is_torchs_own_and_survived():
    torch, ours = start()
    keep = torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        try:
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as why:
            assert "millpond" in str(why) and "asked for 32" in str(why), why
        else:
            raise AssertionError("32 TiB were given")
    assert keep.sum().item() == 1 << 20
    held = []
    try:
        while True:
            held.append(torch.empty(4 << 30, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    assert len(held) > 10
    held.clear()
    assert (
        torch.empty(64 << 30, dtype=torch.uint8, device="cuda").numel() == 64 << 30
    )  # what was freed serves


def check_without_a_compiler_it_is_a_runtime_error():
    os.environ["CXX"] = ""
    import warnings

    warnings.simplefilter("ignore")
    torch, ours = start()
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except RuntimeError as why:
        assert "asked for 32" in str(why) and not isinstance(why, torch.OutOfMemoryError)
    else:
        raise AssertionError("32 TiB were given")
    assert torch.ones(4, device="cuda").sum().item() == 4


def check_memory_fraction():
    torch, ours = start()
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as why:
        assert "limit" in str(why), why
    else:
        raise AssertionError("20 GiB were given within 5%")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(20 << 30, dtype=torch.uint8, device="cuda")


def check_record_stream_keeps_a_block_from_reuse():
    torch, ours = start()
    side = torch.cuda.Stream()
    wrong = 0
    for step in range(200):
        x = torch.full((1 << 22,), step, device="cuda", dtype=torch.float32)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.record_stream(side)
            torch.cuda._sleep(200_000)
            total = x.sum()
        del x
        torch.full((1 << 22,), -1.0, device="cuda")  # would land in x's place
        side.synchronize()
        wrong += total.item() != step * (1 << 22)
    assert wrong == 0, f"{wrong} of 200 were overwritten"


def check_threads_free_each_others_tensors():
    torch, ours = start()
    import queue

    q, bad = queue.Queue(8), []

    def make():
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for n in range(300):
                q.put((n, torch.full((1000 + n * 100,), n, device="cuda")))
            s.synchronize()
        q.put(None)

    def drop():
        while (got := q.get()) is not None:
            torch.cuda.synchronize()
            if got[1].max().item() != got[0]:
                bad.append(got[0])

    threads = [threading.Thread(target=f) for f in (make, drop)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not bad, bad
    gc.collect()
    assert ours.memory_stats()["allocation.all.current"] <= 4


def check_graphs_and_tensors_that_outlive_them():
    torch, ours = start()
    x = torch.zeros(1 << 20, device="cuda")
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            (x * 2 + 1).relu().sum()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = (x * 2 + 1).relu()
        z = y.sum()
    others = [
        torch.full((1 << 20,), -5.0, device="cuda") for _ in range(8)
    ]  # must not land in the graph's memory
    for n in range(5):
        x.fill_(n)
        g.replay()
        assert z.item() == (2 * n + 1) * (1 << 20), (n, z.item())
    assert all(o.sum().item() == -5.0 * (1 << 20) for o in others)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=g.pool()):
        w = (y + 1).sum()
    g.replay()
    second.replay()
    assert w.item() == (2 * 4 + 2) * (1 << 20), w.item()
    assert ours.memory_stats()["millpond.graph_bytes"] > 0
    del g, second
    gc.collect()
    kept = y.clone()
    more = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(50)]
    torch.cuda.synchronize()
    assert torch.equal(kept, y), "a tensor of a graph that is gone was overwritten"
    del y, z, w, kept, more
    gc.collect()
    torch.cuda.empty_cache()
    assert ours.memory_stats()["millpond.graph_bytes"] == 0, ours.memory_stats()[
        "millpond.graph_bytes"
    ]


def check_a_capture_that_fails_gives_its_memory_back():
    torch, ours = start()
    x = torch.ones(1 << 20, device="cuda")
    before = torch.cuda.memory_allocated()
    held = []
    outer = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            held.append(torch.empty(1 << 28, device="cuda"))
            torch.cuda.synchronize()  # breaks the capture
    except RuntimeError:
        pass
    else:
        raise AssertionError("a capture was synchronised in")
    torch.cuda.set_stream(outer)  # PyTorch leaves the capture's stream current
    held.clear()
    gc.collect()
    torch.cuda.empty_cache()
    stats = ours.memory_stats()
    assert stats["allocated_bytes.all.current"] == before and stats["millpond.graph_bytes"] == 0, (
        stats
    )
    assert stats["reserved_bytes.all.current"] < 1 << 30, stats
    assert x.sum().item() == 1 << 20


def check_graphed_callables():
    torch, ours = start()
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)
    ).cuda()
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    y = torch.randn(64, 256, device="cuda", requires_grad=True)
    graphed(y).sum().backward()
    assert y.grad is not None and torch.isfinite(y.grad).all()


def check_snapshot_with_frames():
    torch, ours = start()
    torch.cuda.memory._record_memory_history()

    def a_function_of_the_program():
        return torch.ones(3 << 20, device="cuda")

    held = a_function_of_the_program()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        got = pickle.load(open(path, "rb"))
        live = [
            b
            for s in got["segments"]
            for b in s["blocks"]
            if b["requested_size"] == held.numel() * 4
        ]
        assert live and any(f["name"] == "a_function_of_the_program" for f in live[0]["frames"]), (
            live
        )
        from torch.cuda import _memory_viz  # what PyTorch's viewer is made of

        assert "Active Memory Timeline" in _memory_viz.trace_plot(
            got
        ) and "Allocator State" in _memory_viz.segment_plot(got)
        assert "total_reserved" in _memory_viz.segsum(got)
        assert re.search(r"^\w+ = \w+\[", _memory_viz.trace(got), re.M), _memory_viz.trace(got)[
            :500
        ]  # an allocation, by its viewer's name
        done = subprocess.run(
            [sys.executable, "-m", "millpond", "compare", path, "--gpu", "sim"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def check_use_after_the_first_tensor_is_refused():
    import millpond.torch
    import torch

    torch.zeros(1, device="cuda")
    try:
        millpond.torch.use()
    except RuntimeError as why:
        assert "too late" in str(why), why
    else:
        raise AssertionError("it was taken")
    assert torch.ones(3, device="cuda").sum().item() == 3


def check_exit_with_live_tensors():
    code = (
        "import torch, millpond.torch; millpond.torch.use(); a=[torch.ones(1000, device='cuda') "
        "for _ in range(100)]; "
        "torch.cuda.synchronize(); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "done" in done.stdout and "millpond" not in done.stderr, done


def check_fork_is_refused():
    torch, ours = start()
    torch.ones(4, device="cuda")
    child = os.fork()
    if child == 0:
        try:
            torch.ones(4, device="cuda")
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def check_cupy_shares_the_pool():
    import cupy
    import millpond.cupy
    from millpond import torch as ours

    millpond.cupy.use()
    a = cupy.arange(1 << 20, dtype=cupy.float32)
    b = (a * 2).sum()
    assert float(b) == float((1 << 20) * ((1 << 20) - 1))
    assert ours.memory_stats(0)["allocated_bytes.all.current"] >= 4 << 20
    with cupy.cuda.Stream(non_blocking=True) as stream:
        c = cupy.ones((1000, 1000))
        assert float((c @ c).sum()) == 1e9
        stream.synchronize()
    del a, b, c
    gc.collect()
    assert ours.memory_stats(0)["allocated_bytes.all.current"] < 64 << 20


def check_mem_pool_segments():
    import millpond.torch
    import torch

    pool = millpond.torch.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 22, device="cuda")
    assert x.sum().item() == 1 << 22
    assert millpond.torch.memory_stats(0)["allocated_bytes.all.current"] >= 16 << 20


if __name__ == "__main__":
    checks = {name[6:]: body for name, body in globals().items() if name.startswith("check_")}
    out = None
    if "--out" in sys.argv:
        at = sys.argv.index("--out")
        out = sys.argv[at + 1]
        del sys.argv[at : at + 2]
    if len(sys.argv) > 1:
        checks[sys.argv[1]]()
        sys.exit(0)
    from concurrent.futures import ThreadPoolExecutor

    def attempt(name):
        done = subprocess.run(
            [sys.executable, __file__, name], capture_output=True, text=True, timeout=140
        )
        answer = "ok" if done.returncode == 0 else (done.stdout + done.stderr)[-1500:]
        print(f"{name}: {'ok' if answer == 'ok' else 'FAILED ' + str(done.returncode)}", flush=True)
        if answer != "ok":
            print("   ", "\n    ".join(answer.splitlines()[-8:]), flush=True)
        return name, answer

    # Some fill the card, and want it for themselves.
    alone = {
        "out_of_memory_is_torchs_own_and_survived",
        "memory_fraction",
        "record_stream_keeps_a_block_from_reuse",
    }
    with ThreadPoolExecutor(5) as several:
        results = dict(several.map(attempt, [name for name in checks if name not in alone]))
    results |= dict(map(attempt, sorted(alone)))
    if out:
        with open(out, "w") as file:
            json.dump(
                {"what": "checks of millpond.torch on a card", "results": results}, file, indent=1
            )
    sys.exit(0 if all(r == "ok" for r in results.values()) else 1)
