"""How long the first calls take in a fresh process: import, each op, and the first step of an accelerated ResNet-18.

    python tools/first_calls.py [--empty-cache] [--resnet]

--empty-cache gives every process a cache folder of its own, as on a machine that has never seen the library. Each op is called in a
process of its own that has imported the package; the second call shows what of the first was making ready.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"

OP = """
import sys, time
start = time.perf_counter()
import numpy as np
with_numpy = time.perf_counter()
import pullback as pb
imported = time.perf_counter()
rng = np.random.default_rng(0)
x = rng.standard_normal((4, 32, 32, 32), dtype=np.float32)
w = rng.standard_normal((3, 3, 32, 32), dtype=np.float32)
y, p = rng.standard_normal((4, 32, 32, 32), dtype=np.float32), rng.standard_normal((4, 16, 16, 32), dtype=np.float32)
same = {"padding": "same"}
indices = np.broadcast_to(np.arange(16 * 16 * 32).reshape(1, 16, 16, 32), p.shape).copy()
winners = np.zeros(p.shape, np.uint8)
call = {
    "conv": lambda: pb.conv(x, w, **same),
    "conv_grad_input": lambda: pb.conv_grad_input(y, w, x.shape, **same),
    "conv_grad_filter": lambda: pb.conv_grad_filter(y, x, w.shape, **same),
    "conv_transpose": lambda: pb.conv_transpose(x, w, **same),
    "max_pool": lambda: pb.max_pool(x, 2),
    "max_pool_grad": lambda: pb.max_pool_grad(p, x, 2),
    "max_pool_grad_from_indices": lambda: pb.max_pool_grad_from_indices(p, indices, x.shape),
    "max_pool_grad_from_winners": lambda: pb.max_pool_grad_from_winners(p, winners, x.shape, 2),
    "avg_pool": lambda: pb.avg_pool(x, 2),
    "avg_pool_grad": lambda: pb.avg_pool_grad(p, x.shape, 2),
}[sys.argv[1]]
times = []
for _ in range(2):
    start_call = time.perf_counter()
    call()
    times.append(time.perf_counter() - start_call)
print(imported - with_numpy, *times, "numba" in sys.modules)
"""
OPS = (
    "conv", "conv_grad_input", "conv_grad_filter", "conv_transpose", "max_pool", "max_pool_grad", "max_pool_grad_from_indices",
    "max_pool_grad_from_winners", "avg_pool", "avg_pool_grad",
)  # fmt: skip

RESNET = """
import sys, time
sys.path.insert(0, sys.argv[1])
import models, torch
import pullback.torch as pt
torch.manual_seed(0)
torch.set_num_threads(2)
plain = models.resnet18()
x, labels = torch.randn(16, 3, 64, 64), torch.randint(3, (16,))
def step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    start = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), labels).backward()
    optimizer.step()
    return time.perf_counter() - start
step(plain)  # what PyTorch itself does first is not counted
model = pt.accelerate(plain)
times = [step(model) for _ in range(8)]
print(times[0], sorted(times[3:])[2], "numba" in sys.modules)
"""


def run(code: str, argument: str, empty_cache: bool) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | ({"PULLBACK_CACHE_DIR": folder} if empty_cache else {})
        done = subprocess.run(
            [sys.executable, "-c", code, argument], env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--empty-cache", action="store_true")
    parser.add_argument("--resnet", action="store_true", help="also the first step of ResNet-18, which needs PyTorch")
    options = parser.parse_args()
    print(f"{'':<28}{'import':>9}{'first call':>12}{'second':>10}   (milliseconds)")
    for op in OPS:
        imported, first, second, numba = run(OP, op, options.empty_cache)
        slow = "   over 100 ms" if float(first) > 0.1 else ""
        used = "   with Numba" if numba == "True" else ""
        print(f"{op:<28}{1e3 * float(imported):9.0f}{1e3 * float(first):12.1f}{1e3 * float(second):10.2f}{slow}{used}")
    if options.resnet:
        first, warm, numba = run(RESNET, str(EXAMPLES), options.empty_cache)
        ratio = float(first) / float(warm)
        print(
            f"ResNet-18, 16 x 3 x 64 x 64: first accelerated step {ratio:.2f} x a warm one{'' if numba == 'False' else ' (Numba)'}"
        )


if __name__ == "__main__":
    main()
