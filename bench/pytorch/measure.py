"""Runs the workloads with PyTorch's own allocator, with its expandable segments, and with millpond; writes one JSON.

    python3 bench/pytorch/measure.py --out pytorch.json [--only serving,training] [--rounds 5]
    python3 bench/pytorch/measure.py --device cpu --small      # does it run at all, without a card

One process an allocator, since a process has one. Each workload: a first round, then timed rounds of the same sizes in
another order of seeds; the wall time of each, the peaks of reserved and requested bytes over all of them, and a digest of
every output. A process that dies is started again behind the workload that it died in.
"""
import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ALLOCATORS = ("millpond", "default", "expandable")


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
    one_round = workloads.ALL[name](s)
    started = time.perf_counter()
    digests = [digest(one_round(0))]
    first_ms = (time.perf_counter() - started) * 1e3
    times = []
    for number in range(1, rounds + 1):
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        outputs = one_round(number % 3)
        if cuda:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
        digests.append(digest(outputs))
        del outputs
    result = {"workload": name, "first_ms": round(first_ms, 2), "round_ms": [round(t, 2) for t in times],
              "digest": hashlib.sha256("".join(digests).encode()).hexdigest()[:16]}
    if cuda:
        stats = torch.cuda.memory_stats()
        result["peak_requested"] = stats["requested_bytes.all.peak"]
        result["peak_reserved"] = stats["reserved_bytes.all.peak"]
        result["retries"] = stats["num_alloc_retries"]
        result["allocations"] = stats["allocation.all.allocated"]
    return result


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
    for name in options.only.split(","):
        print(json.dumps({"starting": name}), flush=True)
        try:
            result = run_one(name, s, options.rounds)
        except Exception as failure:  # the next workload may still run
            import traceback

            at = traceback.extract_tb(failure.__traceback__)[-1]
            result = {"workload": name, "error": f"{type(failure).__name__}: {str(failure)[:600]} ({at.filename}:{at.lineno})"}
        gc.collect()
        if options.device != "cpu":
            torch.cuda.synchronize()
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
        print(json.dumps(result), flush=True)
    print(json.dumps({"machine": {"torch": torch.__version__, "gpu": torch.cuda.get_device_name() if options.device != "cpu" else "none"}}),
          flush=True)


def measure(allocator, names, options):
    """Every workload's result by name; what a dead process left open is an error, and the next go on."""
    environment = dict(os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    results, left, machine = {}, list(names), {}
    while left:
        command = [sys.executable, __file__, "--child", allocator, "--only", ",".join(left), "--rounds", str(options.rounds),
                   "--device", options.device] + (["--small"] if options.small else [])
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        started = None
        for line in done.stdout.splitlines():
            if not line.startswith("{"):
                continue
            entry = json.loads(line)
            if "starting" in entry:
                started = entry["starting"]
            elif "workload" in entry:
                results[entry["workload"]] = entry
            else:
                machine = entry["machine"]
        if done.returncode != 0:
            broken = started if started is not None and started not in results else None
            if broken is None and not results:
                broken = left[0]
            tail = done.stderr.strip().splitlines()[-3:]
            if broken is not None:
                results[broken] = {"workload": broken, "error": f"the process ended with {done.returncode}: {' | '.join(tail)[:600]}"}
            elif started == left[-1]:
                machine["exit"] = f"the process ended with {done.returncode}: {' | '.join(tail)[:600]}"
        elif done.stderr.strip() and allocator == "millpond":
            told = [line for line in done.stderr.splitlines() if "millpond" in line]
            if told:
                machine["told"] = told[:5]
        before = len(left)
        left = [name for name in left if name not in results]
        if len(left) == before:
            break
    return results, machine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="pytorch.json")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        return child(options)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import workloads

    names = [n for n in (options.only.split(",") if options.only else workloads.ALL)
             if options.device != "cpu" or n not in workloads.NEED_CUDA]
    document = {"what": "PyTorch workloads by allocator", "rounds": options.rounds, "allocators": {}, "machine": {}}
    for allocator in options.allocators.split(","):
        started = time.perf_counter()
        results, machine = measure(allocator, names, options)
        document["allocators"][allocator] = results
        document["machine"][allocator] = machine
        Path(options.out).write_text(json.dumps(document, indent=1))
        print(f"{allocator}: {len(results)} workloads, {time.perf_counter() - started:.0f} s", flush=True)
        for name, r in results.items():
            if "error" in r:
                print(f"  {name}: {r['error']}")
            else:
                ratio = f", {r['peak_reserved'] / max(1, r['peak_requested']):.3f} reserved a requested" if "peak_reserved" in r else ""
                print(f"  {name}: {min(r['round_ms']):.1f} ms{ratio}, {r['digest']}", flush=True)


if __name__ == "__main__":
    main()
