"""Runs the workloads with PyTorch's own allocator, with millpond, and with PyTorch's expandable
segments; writes one JSON.

    python3 bench/pytorch/measure.py --out pytorch.json [--only serving,training] [--rounds 6]
        [--record FOLDER] [--scratch]
    python3 bench/pytorch/measure.py --device cpu --small      # does it run at all, without a card

One process an allocator, since a process has one; all live at once, and one of them works at a
time. Each workload: in each process a first round of either of two seeds, in which libraries choose
kernels for shapes that they have not seen (the processes do that at the same time, but for
workloads whose memory depends on how fast the card is); then timed rounds of the same two seeds,
each process in turn, so that whatever else changes on the machine meanwhile meets all of them
alike. Written down are the wall time of each round, what the allocator did in it, the peaks of
reserved and requested bytes over all of them, a digest of all outputs, and, where a round depends
on its seed alone, whether the timed rounds gave the same outputs again. The file is written after
each workload. A process that dies, or takes longer than the limit, is started again for the next
workload. --record: PyTorch's own allocator does two more rounds of each workload, a model made
anew, while it writes down what it is asked: FOLDER/WORKLOAD.pickle, for `millpond
compare`. A build of millpond whose sources no commit holds measures nothing, unless --scratch says
that the numbers are to look at.
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

# By name: options of millpond.torch.use() for millpond's, and the workloads that it is for where
# those are not all.
ALLOCATORS = {
    "default": (None, None),
    "millpond": ({}, None),
    "expandable": (None, None),
    "millpond_may_wait": ({"reuse": "may_wait"}, {"several_streams"}),
}
SEEDS = 2
# Timed rounds of the workloads that take longest; the others take --rounds.
ROUNDS = {"generation": 4}
# What a round's allocations cost, as far as the allocator counts it: PyTorch's own, and millpond's.
COUNTED = (
    "allocation.all.allocated",
    "num_device_alloc",
    "num_device_free",
    "num_sync_all_streams",
    "millpond.growths",
    "millpond.stitches",
    "millpond.stitch_reuses",
    "millpond.seals",
    "millpond.fence_queries",
    "millpond.host_waits",
    "millpond.stream_waits",
    "millpond.thread_caches_flushed",
    "millpond.lock_waits",
    "millpond.thread_cache_hits",
    "millpond.stream_cache_hits",
    "millpond.heap_hits",
)
COUNT_NAMES = {"allocation.all.allocated": "allocations"}


def digest(tensors):
    import torch

    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().to("cpu").reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


class Running:
    """A workload in this process, from its model to its result."""

    def __init__(self, name, s):
        import workloads

        self.name, self.cuda = name, s.device != "cpu"
        self.digests, self.rounds, self.counts = [], [], []
        if self.cuda:
            import torch

            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        self.one_round = workloads.ALL[name](s)
        self.wait()
        self.make_ms = (time.perf_counter() - began) * 1e3
        self.learns = name in workloads.LEARN
        for number in range(SEEDS):
            self.round(number)

    def wait(self):
        if self.cuda:
            import torch

            torch.cuda.synchronize()

    def stats(self):
        if not self.cuda:
            return {}
        import torch

        return torch.cuda.memory_stats()

    def round(self, number):
        before = self.stats()
        self.wait()
        started = time.perf_counter()
        outputs = self.one_round(number % SEEDS)
        self.wait()
        self.rounds.append(round((time.perf_counter() - started) * 1e3, 2))
        after = self.stats()
        self.counts.append(
            {
                COUNT_NAMES.get(key, key.removeprefix("millpond.")): after[key] - before.get(key, 0)
                for key in COUNTED
                if key in after
            }
        )
        self.digests.append(digest(outputs))
        return self.rounds[-1]

    def result(self):
        repeats = all(d == self.digests[n % SEEDS] for n, d in enumerate(self.digests))
        out = {
            "workload": self.name,
            "make_ms": round(self.make_ms, 2),
            "first_ms": self.rounds[:SEEDS],
            "round_ms": self.rounds[SEEDS:],
            "digest": hashlib.sha256("".join(self.digests).encode()).hexdigest()[:16],
            "repeatable": None if self.learns else repeats,
        }
        if self.cuda:
            stats = self.stats()
            out["peak_requested"] = stats["requested_bytes.all.peak"]
            out["peak_reserved"] = stats["reserved_bytes.all.peak"]
            out["retries"] = stats["num_alloc_retries"]
            out["counts"] = self.counts
            out.update(
                {
                    key: value
                    for key, value in stats.items()
                    if key.startswith("millpond.") and "bytes" in key
                }
            )
        return out


def record_one(name, s, folder):
    """The allocations and frees of a model made anew and two rounds, as PyTorch's own snapshot."""
    import torch
    import workloads

    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", max_entries=2_000_000
    )
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


def prepared(options):
    """The setting of this process, its allocator chosen."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    ours, _ = ALLOCATORS[options.child]
    if ours is not None:
        import millpond.torch

        millpond.torch.use(**ours)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import workloads

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # The fill of empty tensors that deterministic mode adds is work of its own.
    torch.utils.deterministic.fill_uninitialized_memory = False
    if options.device != "cpu":
        torch.zeros(1, device=options.device)
    return workloads.Setting(options.device, options.small)


def say(what):
    print(json.dumps(what), flush=True)


def child(options):
    """Does what is asked on standard input, a line each: begin NAME, round NUMBER, end, record
    NAME."""
    import torch

    s = prepared(options)
    say(
        {
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if options.device != "cpu" else "none",
        }
    )
    running = None
    for line in sys.stdin:
        what, _, rest = line.strip().partition(" ")
        try:
            if what == "begin":
                running = Running(rest, s)
                say({"first_ms": running.rounds})
            elif what == "round":
                say({"ms": running.round(int(rest))})
            elif what == "end":
                reported, running = running.result(), None
                drop_everything(s)
                say(reported)
            elif what == "record":
                reported = record_one(rest, s, options.record)
                drop_everything(s)
                say({"bytes": reported})
        except Exception as failure:  # an error by name and place: the next workload may still run
            import traceback

            running, at = None, traceback.extract_tb(failure.__traceback__)[-1]
            reported = f"{type(failure).__name__}: {str(failure)[:600]} ({at.filename}:{at.lineno})"
            del failure
            drop_everything(s)
            say({"error": reported})


def alone(options):
    """One allocator's process by itself: every workload once, its result printed."""
    s = prepared(options)
    for name in options.only.split(","):
        running = Running(name, s)
        for number in range(options.rounds):
            running.round(number)
        say(running.result())
        del running
        drop_everything(s)


class Process:
    """The process of one allocator, as the measuring one sees it. Answers are dictionaries, with
    "error" where one failed."""

    def __init__(self, allocator, options):
        self.allocator, self.limit = allocator, options.limit
        environment = dict(os.environ)
        environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        if allocator == "expandable":
            environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        command = [
            sys.executable,
            __file__,
            "--child",
            allocator,
            "--served",
            "--device",
            options.device,
        ]
        command += (["--small"] if options.small else []) + (
            ["--record", options.record] if options.record else []
        )
        self.reported = open(f"{options.out}.{allocator}.stderr", "w+")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.reported,
            text=True,
            env=environment,
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def ask(self, what):
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has died, which answer() tells

    def answer(self):
        try:
            line = self.lines.get(timeout=self.limit)
        except queue.Empty:
            self.process.kill()
            self.process.wait()
            return {"error": f"took longer than {self.limit} s"}
        if line is None:
            code = self.process.wait()
            last_words = " | ".join(self.stderr().strip().splitlines()[-3:])[:600]
            return {"error": f"the process ended with {code}: {last_words}"}
        return json.loads(line)

    def stderr(self):
        self.reported.flush()
        return Path(self.reported.name).read_text(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def end(self):
        """The exit status and what was printed as errors; the process is gone afterwards."""
        if self.alive():
            self.process.stdin.close()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        text = self.stderr()
        self.reported.close()
        os.unlink(self.reported.name)
        return self.process.returncode, text


class Measurement:
    def __init__(self, allocators, options, save):
        self.allocators, self.options, self.save = allocators, options, save
        self.processes = {}
        self.results = {allocator: {} for allocator in allocators}
        self.machine = {allocator: {} for allocator in allocators}

    def wanted(self, name):
        return [a for a in self.allocators if ALLOCATORS[a][1] is None or name in ALLOCATORS[a][1]]

    def start(self, allocators):
        fresh = [a for a in allocators if a not in self.processes or not self.processes[a].alive()]
        for allocator in fresh:
            if allocator in self.processes:
                self.close(allocator)
            self.processes[allocator] = Process(allocator, self.options)
        for allocator in fresh:
            self.machine[allocator].update(self.processes[allocator].answer())

    def close(self, allocator):
        code, text = self.processes.pop(allocator).end()
        if code not in (0, -9):
            self.machine[allocator]["exit"] = (
                f"{code}: {' | '.join(text.strip().splitlines()[-3:])[:600]}"
            )
        if lines := [line for line in text.splitlines() if "millpond" in line]:
            self.machine[allocator]["reported"] = lines[:5]

    def workload(self, name):
        import workloads

        left = self.wanted(name)
        self.start(left)
        results = {}

        def ask(allocators, what, keep=lambda allocator, reported: None):
            for allocator in allocators:
                self.processes[allocator].ask(what)
            for allocator in list(allocators):
                reported = self.processes[allocator].answer()
                if "error" in reported:
                    results[allocator] = {"workload": name, **reported}
                    left.remove(allocator)
                else:
                    keep(allocator, reported)

        if name in workloads.TIMING_TELLS:
            for allocator in list(left):
                ask([allocator], f"begin {name}")
        else:
            ask(list(left), f"begin {name}")
        rounds = min(self.options.rounds, ROUNDS.get(name, self.options.rounds))
        for number in range(rounds):
            first = number % max(1, len(left))
            for allocator in left[first:] + left[:first]:
                ask([allocator], f"round {number}")
        for allocator in list(left):
            ask([allocator], "end", results.__setitem__)
        for allocator, result in results.items():
            self.results[allocator][name] = result
            tell(allocator, result)
        if self.options.record and "default" in left:
            ask(
                ["default"],
                f"record {name}",
                lambda a, reported: (
                    self.machine[a].setdefault("recorded", {}).__setitem__(name, reported["bytes"])
                ),
            )
        self.save(self.results, self.machine)

    def end(self, names):
        for allocator in list(self.processes):
            self.close(allocator)
        for allocator in self.allocators:
            for name in names:
                if allocator in self.wanted(name):
                    self.results[allocator].setdefault(
                        name, {"workload": name, "error": "not reached in the time given"}
                    )
        self.save(self.results, self.machine)


def tell(allocator, r):
    if "error" in r:
        print(f"  {r['workload']}, {allocator}: {r['error']}", flush=True)
        return
    times = sorted(r["round_ms"])
    ratio = (
        f", {r['peak_reserved'] / max(1, r['peak_requested']):.3f} reserved a requested"
        if "peak_reserved" in r
        else ""
    )
    again = ", not the same again" if r["repeatable"] is False else ""
    counts = {}
    for each in r.get("counts", [])[SEEDS:]:
        for key, value in each.items():
            counts[key] = counts.get(key, 0) + value
    shown = ", ".join(
        f"{value} {key}" for key, value in counts.items() if value and not key.endswith("_hits")
    )
    print(
        f"  {r['workload']}, {allocator}: {times[0]:.1f} to {times[-1]:.1f} ms{ratio}, "
        f"{r['digest']}{again}" + (f"; in the timed rounds {shown}" if shown else ""),
        flush=True,
    )


def warm_libraries(most_seconds=40):
    """Reads the libraries that PyTorch loads as it goes, so that the first allocator does not pay
    for a cold disk."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None:
        return
    until = time.monotonic() + most_seconds
    files = [
        f
        for base in ("torch/lib", "nvidia", "torchvision", "triton")
        for f in (Path(spec.origin).parents[1] / base).rglob("*.so*")
        if f.is_file() and f.stat().st_size > 1 << 20
    ]

    def read(path):
        with open(path, "rb") as f:
            while time.monotonic() < until and f.read(8 << 20):
                pass

    began = time.monotonic()
    with ThreadPoolExecutor(12) as readers:
        list(readers.map(read, sorted(files, key=lambda f: -f.stat().st_size)))
    print(
        f"{sum(f.stat().st_size for f in files) >> 20} MiB of libraries read in "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )


def version_of_millpond():
    """What the command says that comes with the library; empty where there is none."""
    try:
        import millpond

        said = subprocess.run(
            [millpond.command_path(), "--version"], capture_output=True, text=True, check=True
        )
        return said.stdout
    except (ImportError, OSError, subprocess.SubprocessError):
        return ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="pytorch.json")
    parser.add_argument(
        "--scratch", action="store_true", help="the result is to look at, not to keep"
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds that a step of a workload may take"
    )
    parser.add_argument(
        "--seconds", type=float, default=3600, help="no workload is begun after so many"
    )
    parser.add_argument(
        "--record",
        default="",
        help="a folder for snapshots of what PyTorch's own allocator is asked",
    )
    parser.add_argument(
        "--child", help="this process is one allocator's, and runs --only by itself"
    )
    parser.add_argument(
        "--served", action="store_true", help="with --child: does what standard input says"
    )
    options = parser.parse_args()
    if options.child:
        return child(options) if options.served else alone(options)
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent / "support")]
    import result_files

    commit = result_files.check_may_write(options.out, version_of_millpond(), options.scratch)
    began = time.monotonic()
    if options.device != "cpu":
        warm_libraries()
    import workloads

    names = [
        n
        for n in (options.only.split(",") if options.only else workloads.ALL)
        if options.device != "cpu" or n not in workloads.NEED_CUDA
    ]

    def save(results, machine):
        document = {
            "what": "PyTorch workloads by allocator",
            "commit": commit,
            **({"scratch": True} if options.scratch else {}),
            "rounds": options.rounds,
            "seeds": SEEDS,
            "turns": "interleaved",
            "allocators": results,
            "machine": machine,
        }
        part = Path(f"{options.out}.part")
        part.write_text(json.dumps(document, indent=1))
        part.replace(options.out)

    measurement = Measurement(options.allocators.split(","), options, save)
    for name in names:
        if time.monotonic() - began > options.seconds:
            break
        started = time.monotonic()
        measurement.workload(name)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
    measurement.end(names)
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
