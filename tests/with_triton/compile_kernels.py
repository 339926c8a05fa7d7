"""Compiles every kernel of the cuda backend for sm_90, without a GPU, by tools/gpu_code.py; prints the names. A process of its own:
Triton must not interpret there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from triton.runtime import driver

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import gpu_code

import pullback as pb
from pullback.cuda import call, launch
from pullback.cuda.norm import batch, rows
from pullback.cuda.norm.plan import Activation, Channels, Rows
from pullback.ops.explain import PREPARE

compiled: set[str] = set()


def compile_one(plan: Any, problem: Any, *tensors: torch.Tensor) -> None:
    kernel, programs, numbers, options = plan(problem)
    made = kernel.warmup(*tensors, *numbers, grid=(programs,), **options)
    assert made.asm["cubin"]
    compiled.add(f"{kernel.fn.__module__}.{kernel.fn.__name__}")


def normalize(x: torch.Tensor) -> None:
    """Both kinds of normalization of an (image, channel, height, width)."""
    last, of_channels = x.stride(1) == 1, torch.zeros(8)
    shape = (32, 8, 1) if last else (2, 8, 16)
    kind = Channels(*shape, x.dtype, last, activation=Activation("silu"), eps=1e-5, momentum=0.1, running=True, counts=True)
    found = batch.batch_statistics(kind, x, of_channels, (of_channels, of_channels), torch.zeros((), dtype=torch.int64))
    batch.given_statistics(kind, x, of_channels, of_channels, of_channels)
    for what in (kind, kind._replace(activation=Activation("relu", 6.0), adds=True)):
        y = batch.normalize(what, x, found, of_channels, x if what.adds else None)
        batch.gradients(what, x, x, y if what.adds else None, found, of_channels)
    row = Rows(32, 8, x.dtype, torch.float32)
    _, kept = rows.normalize(row, x, of_channels, of_channels)
    rows.gradients(row, x, x, kept, of_channels)


def main() -> None:
    driver.set_active(gpu_code.NoDevice())
    launch.launch = batch.launch = rows.launch = compile_one  # type: ignore[attr-defined]
    x, y = torch.zeros(1, 8, 8, 4), torch.zeros(1, 4, 4, 4)
    half = torch.zeros(1, 4, 8, 8, dtype=torch.bfloat16)
    for window in (2, 8):  # in patches, and by loops at run time
        dy = y if window == 2 else torch.zeros(1, 1, 1, 4)
        keywords = {"stride": window, "layout": "channels_last"}
        call.run(PREPARE["max_pool_grad"], dy, x, window, **keywords)
        call.run(PREPARE["avg_pool"], x, window, **keywords)
        call.run(PREPARE["avg_pool_grad"], dy, tuple(x.shape), window, **keywords)
        call.run(PREPARE["max_pool"], half, window, stride=window, layout="channels_first")
    for name, groups, channels in (("depthwise", 32, 32), ("grouped", 4, 32), ("few_channels", 1, 3)):
        x, dy, weights = torch.zeros(1, 8, 8, channels), torch.zeros(1, 8, 8, 32), torch.zeros(3, 3, channels // groups, 32)
        keywords = {"padding": 1, "groups": groups, "layout": "channels_last"}
        with pb.kernel(name):
            if name != "few_channels":
                call.run(PREPARE["conv"], x, weights, **keywords)
            call.run(PREPARE["conv_grad_input"], dy, weights, tuple(x.shape), **keywords)
            call.run(PREPARE["conv_grad_filter"], dy, x, tuple(weights.shape), **keywords)
    for half_type in (torch.float32, torch.bfloat16):
        normalize(torch.zeros(2, 8, 4, 4, dtype=half_type))
        normalize(torch.zeros(2, 8, 4, 4, dtype=half_type).to(memory_format=torch.channels_last))
    print(*sorted(compiled), sep="\n")


if __name__ == "__main__":
    main()
