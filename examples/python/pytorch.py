"""PyTorch's tensors from millpond's pool: a few steps of training with batches of changing size.

python3 examples/python/pytorch.py
"""

import sys

import millpond

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.is_available():
    print(
        f"millpond {millpond.__version__}: no PyTorch with a GPU here, so there is nothing to train"
    )
    sys.exit(0)

import millpond.torch

millpond.torch.use()  # before the first CUDA tensor

model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    x = torch.randn(64 + 97 * step, 1024, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(f"loss {loss.item():.4f}")
print(millpond.torch.memory_summary())
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as why:
    print("too much is refused, with the pool's report:\n" + str(why))
