#!/usr/bin/env python3
"""Writes a PyTorch memory snapshot of any length as PyTorch's pickler does (protocol 4): every
dict, list and text numbered in the memo, lists in batches of 1000, each allocation's list of frames
an object of its own whose frames are shared, a free with its allocation's list. The history is
random (seed 7): blocks of 512 bytes to 1 MiB at 40,000 places, three streams, 3000 frames in 500
stacks.

    bench/make_snapshot.py FILE EVENTS [DEPTH]
        DEPTH frames a stack, default 25; 0: no stacks at all
    bench/make_snapshot.py --measure FILE
        what build/millpond takes to read, explain and draw it, as JSON
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time

from support.block_history import block_history


class emitter:
    def __init__(self, out):
        self.out, self.parts, self.size, self.count = out, [b"\x80\x04"], 0, 0

    def put(self, *parts):
        self.parts.extend(parts)
        if len(self.parts) > 200_000:
            self.flush()

    def flush(self):
        data = b"".join(self.parts)
        self.out.write(data)
        self.size += len(data)
        self.parts = []

    def memoize(self):
        self.put(b"\x94")
        self.count += 1
        return self.count - 1

    def text(self, value):
        coded = value.encode()
        self.put(
            b"\x8c" + bytes([len(coded)]) + coded
            if len(coded) < 256
            else b"X" + struct.pack("<I", len(coded)) + coded
        )
        return self.memoize()


def get(index):
    return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def number(value):
    if value < 256:
        return b"K" + bytes([value])
    if value < 65536:
        return b"M" + struct.pack("<H", value)
    if value < 2**31:
        return b"J" + struct.pack("<i", value)
    coded = value.to_bytes(8, "little").rstrip(b"\0")
    if coded[-1] & 0x80:
        coded += b"\0"
    return b"\x8a" + bytes([len(coded)]) + coded


def write(path, events, depth):
    pick = random.Random(7)
    with open(path, "wb") as out:
        to = emitter(out)
        to.put(b"}")
        to.memoize()
        to.put(b"(")
        to.text("segments")
        to.put(b"]")
        to.memoize()
        to.text("device_traces")
        to.put(b"]")
        to.memoize()
        to.put(b"]")
        to.memoize()
        if events == 0:
            raise SystemExit("at least one event")
        keys, actions, frames, frame_keys = {}, {}, [], {}

        def word(table, name):
            if name in table:
                to.put(get(table[name]))
            else:
                table[name] = to.text(name)

        def frame(n):
            """A frame: written where it is met first, then referred to."""
            if n < len(frames) and frames[n] is not None:
                to.put(frames[n])
                return
            while len(frames) <= n:
                frames.append(None)
            to.put(b"}")
            index = to.memoize()
            to.put(b"(")
            word(frame_keys, "name")
            to.text(f"function_{n}")
            word(frame_keys, "filename")
            to.text(f"/app/lib/module_{n % 300}.py")
            word(frame_keys, "line")
            to.put(number(10 + n), b"u")
            frames[n] = get(index)

        stacks = [[pick.randrange(3000) for _ in range(depth)] for _ in range(500)]
        ready = {}
        history = block_history(pick, grows=0.4)
        time_us, no_frames = 1_764_500_000_000_000, None
        lists = {}
        pending = None
        for at in range(events):
            if at % 1000 == 0:
                to.put(b"e(" if at else b"(")
            time_us += 3
            if pending is not None:
                place, action, pending = pending, "free_completed", None
            else:
                place, allocated = history.next()
                action, pending = ("alloc", None) if allocated else ("free_requested", place)
            to.put(b"}")
            to.memoize()
            to.put(b"(")
            word(keys, "action")
            word(actions, action)
            word(keys, "addr")
            to.put(number(history.address(place)))
            word(keys, "size")
            to.put(number(history.size(place)))
            word(keys, "stream")
            to.put(number((0, 0x55AA00000010, 0x55AA00000020)[place % 3]))
            word(keys, "time_us")
            to.put(number(time_us))
            word(keys, "frames")
            if depth == 0 or action == "free_completed":
                if no_frames is None:
                    to.put(b"]")
                    no_frames = to.memoize()
                else:
                    to.put(get(no_frames))
            elif action == "alloc":
                which = pick.randrange(500)
                to.put(b"]")
                lists[place] = to.memoize()
                to.put(b"(")
                if which in ready:
                    to.put(ready[which])
                else:
                    for n in stacks[which]:
                        frame(n)
                    ready[which] = b"".join(frames[n] for n in stacks[which])
                to.put(b"e")
            else:
                to.put(get(lists.pop(place)))
            to.put(b"u")
        to.put(b"eau.")
        to.flush()
        return to.size


def measure(path):
    millpond = pathlib.Path(__file__).resolve().parent.parent / "build" / "millpond"
    made = {
        "what": "a PyTorch snapshot of bench/make_snapshot.py read, explained and drawn",
        "file_bytes": os.path.getsize(path),
    }
    for name, arguments in (
        ("read", ["report", path, "--format", "csv", "-o", os.devnull, "--json"]),
        ("explain", ["explain", path, "--json"]),
        ("report", ["report", path, "-o", os.devnull]),
    ):
        begin = time.monotonic()
        child = subprocess.Popen([millpond, *arguments], stdout=subprocess.PIPE, text=True)
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        assert os.waitstatus_to_exitcode(status) in (0, 1), said
        if name == "read":
            made["events"] = json.loads(said)["written"]
        made[name] = {
            "peak_rss_bytes": used.ru_maxrss * 1024,
            "processor_s": round(used.ru_utime + used.ru_stime, 1),
            "wall_s": round(time.monotonic() - begin, 1),
        }
    made["processors"], made["load_1min"] = os.cpu_count(), round(os.getloadavg()[0], 1)
    return made


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2]), indent=1))
        sys.exit(0)
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    made = write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else 25)
    print(f"{sys.argv[1]}: {made} bytes")
