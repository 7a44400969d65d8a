"""Runs the workloads with PyTorch's own allocator, with millpond, and with PyTorch's expandable segments; writes one JSON.

    python3 bench/pytorch/measure.py --out pytorch.json [--only serving,training] [--rounds 6] [--record FOLDER]
    python3 bench/pytorch/measure.py --device cpu --small      # does it run at all, without a card

One process an allocator, since a process has one, and one of them at a time. Each workload: a first round of either of two
seeds, in which libraries choose kernels for shapes that they have not seen; then timed rounds of the same two seeds in turn.
Written down are the wall time of each, the peaks of reserved and requested bytes over all of them, a digest of all outputs, and,
where a round depends on its seed alone, whether the timed rounds gave the same outputs again. The file is written after each workload. A process that dies, or a workload that takes longer
than its limit, is started again behind the workload that it died in. --record: PyTorch's own allocator does two more rounds of
each workload, a model made anew, while it writes down what it is asked: FOLDER/WORKLOAD.pickle, for `millpond compare`.
"""
import argparse
import gc
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ALLOCATORS = ("default", "millpond", "expandable")
SEEDS = 2
# Timed rounds of the workloads that take longest; the others take --rounds.
ROUNDS = {"generation": 4}


def digest(tensors):
    import torch

    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().to("cpu").reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


def run_one(name, s, rounds):
    import torch
    import workloads

    cuda = s.device != "cpu"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    one_round = workloads.ALL[name](s)
    if cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    make_ms = (started - began) * 1e3
    digests, times, counts = [], [], []
    for number in range(SEEDS + min(rounds, ROUNDS.get(name, rounds))):
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        outputs = one_round(number % SEEDS)
        if cuda:
            torch.cuda.synchronize()
        times.append(round((time.perf_counter() - started) * 1e3, 2))
        digests.append(digest(outputs))
        del outputs
        if cuda:
            stats = torch.cuda.memory_stats()
            counts.append([stats[key] for key in ("millpond.growths", "millpond.moves") if key in stats])
    result = {"workload": name, "make_ms": round(make_ms, 2), "first_ms": times[:SEEDS], "round_ms": times[SEEDS:],
              "digest": hashlib.sha256("".join(digests).encode()).hexdigest()[:16],
              "repeatable": None if name in workloads.LEARN else all(d == digests[n % SEEDS] for n, d in enumerate(digests))}
    if any(counts):
        result["growths_and_moves"] = counts
    if cuda:
        stats = torch.cuda.memory_stats()
        result["peak_requested"] = stats["requested_bytes.all.peak"]
        result["peak_reserved"] = stats["reserved_bytes.all.peak"]
        result["retries"] = stats["num_alloc_retries"]
        result["allocations"] = stats["allocation.all.allocated"]
        result.update({key: value for key, value in stats.items() if key.startswith("millpond.")})
    return result


def record_one(name, s, folder):
    """The allocations and frees of a model made anew and two rounds, as PyTorch's own snapshot."""
    import torch
    import workloads

    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=2_000_000)
    one_round = workloads.ALL[name](s)
    for number in range(2):
        one_round(number)
    torch.cuda.synchronize()
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{name}.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
    return path.stat().st_size


def drop_everything(s):
    gc.collect()
    if s.device != "cpu":
        import torch

        torch.cuda.synchronize()
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def tried(name, work):
    """What work answers; an error by name and place where it fails, for the next workload may still run."""
    try:
        return work()
    except Exception as failure:
        import traceback

        at = traceback.extract_tb(failure.__traceback__)[-1]
        return {"workload": name, "error": f"{type(failure).__name__}: {str(failure)[:600]} ({at.filename}:{at.lineno})"}


def child(options):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if options.child == "millpond":
        import millpond.torch

        millpond.torch.use()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import workloads

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # The fill of empty tensors that deterministic mode adds is work of its own.
    torch.utils.deterministic.fill_uninitialized_memory = False
    s = workloads.Setting(options.device, options.small)
    if options.device != "cpu":
        torch.zeros(1, device=options.device)
    print(json.dumps({"machine": {"torch": torch.__version__, "gpu": torch.cuda.get_device_name() if options.device != "cpu" else "none"}}),
          flush=True)
    for name in options.only.split(","):
        print(json.dumps({"starting": name}), flush=True)
        result = tried(name, lambda: run_one(name, s, options.rounds))
        drop_everything(s)
        print(json.dumps(result), flush=True)
        if options.record and "error" not in result:
            told = tried(name, lambda: record_one(name, s, options.record))
            drop_everything(s)
            print(json.dumps({"recorded": name, "bytes": told} if isinstance(told, int) else {"recorded": name, **told}), flush=True)
    print(json.dumps({"all": "done"}), flush=True)


def lines_of(process, limit):
    """The lines that a process prints; ends with None where none came for so many seconds, and the process is killed."""
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=max(1.0, limit()))
        except queue.Empty:
            process.kill()
            yield None
            return
        if line == "":
            return
        yield line


def measure(allocator, names, options, deadline, save):
    """Every workload's result by name; what a dead process left open is an error, and the next go on."""
    environment = dict(os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    results, left, machine = {}, list(names), {}
    while left and time.monotonic() < deadline:
        command = [sys.executable, __file__, "--child", allocator, "--only", ",".join(left), "--rounds", str(options.rounds),
                   "--device", options.device] + (["--small"] if options.small else [])
        if options.record and allocator == "default":
            command += ["--record", options.record]
        started, slow, complete = None, False, False
        with open(f"{options.out}.stderr", "w+") as told:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True, env=environment)
            for line in lines_of(process, lambda: min(options.limit, deadline - time.monotonic())):
                if line is None:
                    slow = True
                    break
                if not line.startswith("{"):
                    continue
                entry = json.loads(line)
                if "starting" in entry:
                    started = entry["starting"]
                elif "recorded" in entry:
                    machine.setdefault("recorded", {})[entry["recorded"]] = entry.get("bytes", entry.get("error"))
                elif "workload" in entry:
                    results[entry["workload"]] = entry
                    tell(entry)
                elif "all" in entry:
                    complete = True
                else:
                    machine.update(entry["machine"])
                save(results, machine)
            code = process.wait()
            told.seek(0)
            stderr = told.read()
        os.unlink(f"{options.out}.stderr")
        why = f"took longer than {options.limit} s" if slow else f"the process ended with {code}: {' | '.join(stderr.strip().splitlines()[-3:])[:600]}"
        if code != 0 and complete:
            machine["exit"] = why
        elif code != 0 and (started is None or started not in results) and time.monotonic() < deadline:
            broken = started or left[0]
            results[broken] = {"workload": broken, "error": why}
            tell(results[broken])
        if allocator == "millpond" and (lines := [line for line in stderr.splitlines() if "millpond" in line]):
            machine["told"] = lines[:5]
        before = len(left)
        left = [name for name in left if name not in results]
        if complete or len(left) == before:
            break
    for name in left:
        results[name] = {"workload": name, "error": "not reached in the time given"}
    save(results, machine)


def tell(r):
    if "error" in r:
        print(f"  {r['workload']}: {r['error']}", flush=True)
    else:
        ratio = f", {r['peak_reserved'] / max(1, r['peak_requested']):.3f} reserved a requested" if "peak_reserved" in r else ""
        again = ", not the same again" if r["repeatable"] is False else ""
        print(f"  {r['workload']}: {min(r['round_ms']):.1f} ms{ratio}, {r['digest']}{again}", flush=True)


def warm_libraries(most_seconds=40):
    """Reads the libraries that PyTorch loads as it goes, so that the first allocator does not pay for a cold disk."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None:
        return
    until = time.monotonic() + most_seconds
    files = [f for base in ("torch/lib", "nvidia", "torchvision", "triton") for f in (Path(spec.origin).parents[1] / base).rglob("*.so*")
             if f.is_file() and f.stat().st_size > 1 << 20]

    def read(path):
        with open(path, "rb") as f:
            while time.monotonic() < until and f.read(8 << 20):
                pass

    began = time.monotonic()
    with ThreadPoolExecutor(12) as readers:
        list(readers.map(read, sorted(files, key=lambda f: -f.stat().st_size)))
    print(f"{sum(f.stat().st_size for f in files) >> 20} MiB of libraries read in {time.monotonic() - began:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="pytorch.json")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--limit", type=float, default=90, help="seconds that a workload may take")
    parser.add_argument("--seconds", type=float, default=3600, help="seconds that everything may take")
    parser.add_argument("--record", default="", help="a folder for snapshots of what PyTorch's own allocator is asked")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        return child(options)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    deadline = time.monotonic() + options.seconds
    if options.device != "cpu":
        warm_libraries()
    import workloads

    names = [n for n in (options.only.split(",") if options.only else workloads.ALL)
             if options.device != "cpu" or n not in workloads.NEED_CUDA]
    document = {"what": "PyTorch workloads by allocator", "rounds": options.rounds, "seeds": SEEDS, "allocators": {}, "machine": {}}
    for allocator in options.allocators.split(","):
        started = time.monotonic()

        def save(results, machine):
            document["allocators"][allocator] = results
            document["machine"][allocator] = machine
            scratch = Path(f"{options.out}.part")
            scratch.write_text(json.dumps(document, indent=1))
            scratch.replace(options.out)

        print(allocator, flush=True)
        measure(allocator, names, options, deadline, save)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
