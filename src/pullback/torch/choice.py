"""When our kernels are expected to beat PyTorch's: asked by swapped layers at every call, told by `explain`.

A reason to leave a call to PyTorch is a sentence; None means ours. The numbers were measured on a Zen 4 CPU with AVX-512.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pullback.torch.arrays import FIRST, LAST, layout_of

SMALL_WORK = 4_000_000  # multiplications of a convolution that takes PyTorch about as long as our call does to begin
SMALL_POOL = {FIRST: 200_000, LAST: 1_000_000}  # elements of a pooled input, likewise
FEW_CHANNELS = 128  # channels in times channels out of a convolution with too little to multiply for each cell it reads


def unsuitable(input: torch.Tensor) -> str | None:
    """Why a tensor cannot go to our kernels, or should not."""
    if not input.is_cpu or input.layout is not torch.strided:
        return f"the input is on {input.device}, not a dense CPU tensor"
    if input.dtype not in (torch.float32, torch.float64):
        return f"PyTorch has instructions of the CPU's for {input.dtype} that ours do without"
    if input.numel() == 0:
        return "the input is empty"
    return None


def conv_reason(input: torch.Tensor, weight: torch.Tensor, outputs: int, groups: int) -> str | None:
    """Why to leave a convolution to PyTorch; `outputs`: cells of its result (of its input, where it is transposed)."""
    if torch.is_autocast_enabled("cpu"):
        return "under autocast PyTorch uses instructions of the CPU's that ours do without"
    if weight.dtype != input.dtype or weight.device != input.device:
        return "input and weight differ in dtype or device"
    if outputs * weight.numel() < SMALL_WORK:
        return "it is so small that the call would cost more than it saves"
    if input.dtype is torch.float64:
        return None  # PyTorch has no fast kernels for it
    if math.prod(weight.shape[2:]) == 1 and groups == 1:
        return "a 1x1 convolution is a plain matrix product, where PyTorch is as fast"
    if weight.shape[0] * weight.shape[1] < FEW_CHANNELS and groups == 1:
        return "it has so few channels that PyTorch is faster"
    if weight.shape[1] == 1 and groups > 1:
        return "inside a network PyTorch is about as fast at most depthwise convolutions; tune=True finds the others"
    return None


def pool_reason(input: torch.Tensor) -> str | None:
    """Why to leave a pooling to PyTorch."""
    if input.numel() < SMALL_POOL[layout_of(input)]:
        return "it is so small that the call would cost more than it saves"
    return None


def conv_outputs(input: torch.Tensor, stride: Sequence[int], rank: int) -> int:
    """About as many cells as the result of a padded convolution has."""
    cells: int = math.prod(input.shape[-rank:]) // math.prod(stride) * (input.shape[0] if input.dim() == rank + 2 else 1)
    return cells
