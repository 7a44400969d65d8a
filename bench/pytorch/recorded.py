"""What recording costs PyTorch programs: runs under `millpond record`, and pauses and resumes the
recording.

    millpond record -o out.mpt -- \\
        python3 bench/pytorch/recorded.py quads SECONDS [serving,training,generation]
    CUDA_INJECTION64_PATH=libcupti_floor.so \\
        python3 bench/pytorch/recorded.py quads|subscribed SECONDS [...]

quads: the same unit of work (10 to 60 ms) four times: alone, recorded, recorded, alone, and every
second quad the other way round. Both states meet the same clock, caches, memory and neighbours,
which change more from second to second than a recording costs. Under bench/cupti/floor.cpp
"recorded" is CUPTI's own part: callbacks that write nothing down.

subscribed: the same, where alone is a process that has no subscriber with CUPTI, and recorded is
one that is paused.

SECONDS is for each workload. Prints RECORDED and one JSON: of each workload the quads, [alone,
alone, recorded, recorded] each.
"""

import ctypes
import gc
import json
import os
import sys
import time

import torch

mode, seconds = sys.argv[1], float(sys.argv[2])
names = (sys.argv[3] if len(sys.argv) > 3 else "serving,training,generation").split(",")

torch.manual_seed(1)
device = "cuda"
if not torch.cuda.is_available():
    sys.exit("no card")
torch.cuda.init()  # loads the library, which is asked for here once more
recorder = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])


def serving():
    """Eight requests of changing size through a convolutional net; their input is in pageable
    memory, as servers have it."""
    layers, width = [torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.ReLU()], 64
    for n in range(12):
        wider = min(512, width * (2 if n % 3 == 2 else 1))
        layers += [
            torch.nn.Conv2d(width, wider, 3, 2 if n % 3 == 2 else 1, 1),
            torch.nn.BatchNorm2d(wider),
            torch.nn.ReLU(),
        ]
        width = wider
    net = (
        torch.nn.Sequential(
            *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 1000)
        )
        .to(device)
        .eval()
    )
    requests = [
        torch.randn(1 + (n * 7) % 32, 3, *2 * [(128, 160, 192, 224)[n % 4]]) for n in range(32)
    ]

    def unit(n):
        with torch.no_grad():
            for k in range(8):
                net(requests[(8 * n + k) % len(requests)].to(device)).cpu()

    return unit


def training():
    """One step of AdamW on an encoder of 8 layers, of changing length."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    net = torch.nn.TransformerEncoder(layer, 8).to(device)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def unit(n):
        x = torch.randn(8, 64 + (n * 37) % 192, 512, device=device)
        loss = net(x).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        loss.item()

    return unit


def generation():
    """Sixteen tokens of a request whose cache grows by concatenation."""
    width, heads = 512, 8
    qkv = [torch.nn.Linear(width, 3 * width).to(device) for _ in range(8)]
    out = [torch.nn.Linear(width, width).to(device) for _ in range(8)]

    def unit(n):
        with torch.no_grad():
            caches = [None] * 8
            x = torch.randn(1 + n % 8, 1, width, device=device)
            for _ in range(16):
                for layer in range(8):
                    q, k, v = (
                        t.view(x.shape[0], 1, heads, -1).transpose(1, 2)
                        for t in qkv[layer](x).chunk(3, -1)
                    )
                    if caches[layer] is not None:
                        k, v = (
                            torch.cat([caches[layer][0], k], 2),
                            torch.cat([caches[layer][1], v], 2),
                        )
                    caches[layer] = (k, v)
                    x = x + out[layer](
                        torch.nn.functional.scaled_dot_product_attention(q, k, v)
                        .transpose(1, 2)
                        .reshape(x.shape)
                    )
                x[0, 0, 0].item()

    return unit


units = {
    name: {"serving": serving, "training": training, "generation": generation}[name]()
    for name in names
}
if mode == "subscribed":
    recorder.millpond_record_pause()
    become = {"alone": recorder.cupti_floor_detach, "recorded": recorder.cupti_floor_attach}
else:
    become = {"alone": recorder.millpond_record_pause, "recorded": recorder.millpond_record_resume}


def timed(unit, n):
    # A few calls, so that what a change of state leaves behind is over.
    for _ in range(20):
        torch.empty(64, device=device).zero_()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    unit(n)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def in_state(state, unit, n):
    become[state]()
    return timed(unit, n)


def warm():
    """Every shape once, and the clock up to speed."""
    for unit in units.values():
        for n in range(32):
            unit(n)
    torch.cuda.synchronize()
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in one half of a quad would be taken for the recording's


def quads_of(unit):
    for n in range(4):
        in_state("recorded", unit, n)
    made, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        n, states = len(made), ("alone", "recorded")
        if n % 2:
            states = states[::-1]
        spent = {"alone": [], "recorded": []}
        for state in (*states, *states[::-1]):
            spent[state].append(in_state(state, unit, n))
        made.append(spent["alone"] + spent["recorded"])
    become["recorded"]()
    return made


warm()
print("RECORDED", json.dumps({name: quads_of(unit) for name, unit in units.items()}))
