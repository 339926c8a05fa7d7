"""When our kernels are expected to beat PyTorch's: the rules where nothing is measured, and what is not worth measuring.

A reason to leave a call to PyTorch is a sentence; None means ours. The numbers were measured on a Zen 4 CPU with AVX-512; whether
they hold on another machine matters only where nothing can be measured (traces, functional calls) or nothing should be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pullback.cpu.machine_code.levels import has_pairs
from pullback.registry import CUDA, why_unavailable
from pullback.torch.arguments import autocast_device
from pullback.torch.arrays import FIRST, LAST, layout_of
from pullback.torch.on_gpu import DTYPES as GPU_DTYPES

SMALL_WORK = 4_000_000  # multiplications of a convolution that takes PyTorch about as long as our call does to begin
SMALL_POOL = {FIRST: 200_000, LAST: 1_000_000}  # elements of a pooled input, likewise
TINY_WORK, TINY_POOL = 1_000_000, 50_000  # what is not even measured, in either memory format
SMALL = "it is so small that the call would cost more than it saves"
FEW_CHANNELS = 128  # channels in times channels out of a convolution with too little to multiply for each cell it reads


DTYPES = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)
HAS_BFLOAT16 = find_spec("ml_dtypes") is not None  # without which NumPy has no such arrays
MULTIPLIES_BFLOAT16 = has_pairs()


# Classes of tensors that our registered ops know; other classes with rules of their own know PyTorch's ops only.
_TRACED = "torch._subclasses."

# Older ones break off where torch.compile(fullgraph=True) meets statically_known_true.
_COMPILES_SURELY = torch.__version__ >= "2.8"


def surely(condition: Any) -> bool:
    """Whether a condition on sizes holds; while PyTorch traces with sizes that it leaves open, whether it must, without asking."""
    if not _COMPILES_SURELY and torch.compiler.is_dynamo_compiling():
        asked: bool = condition  # who branches on it compiles for this answer, and again for the other
        return asked
    if torch.compiler.is_compiling() or not isinstance(condition, bool):
        return bool(statically_known_true(condition))
    return condition


def _foreign(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter or kind.__module__.startswith(_TRACED):
        return False
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def unsuitable(
    input: torch.Tensor,
    rank: int,
    *others: torch.Tensor | None,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    alike: bool = True,
    gpu: bool = False,
) -> str | None:
    """Why a layer of this rank cannot put an input, and its weight and bias, on our kernels, or never should.

    alike: whether all must have the same of these dtypes. gpu: whether it has kernels for a GPU, which take all our dtypes.
    """
    if gpu and input.is_cuda:
        if input.dtype is torch.bfloat16 and not HAS_BFLOAT16:
            return "bfloat16 needs the package ml_dtypes"
        dtypes = GPU_DTYPES
    if input.dim() not in (rank + 1, rank + 2):
        return f"the input has {input.dim()} axes"
    if surely(input.numel() == 0):
        return "the input is empty"
    for tensor in (input, *others):
        if tensor is None:
            continue
        if _foreign(tensor):
            return f"{type(tensor).__name__} has rules of its own for PyTorch's ops"
        if not (tensor.is_cpu or (gpu and tensor.is_cuda)) or tensor.layout is not torch.strided:
            return f"a tensor is on {tensor.device}, or not dense"
        if tensor.is_cuda and (left := why_unavailable(CUDA)) is not None:
            return left
        if tensor.dtype not in dtypes:
            return f"PyTorch has instructions of the CPU's for {tensor.dtype} that ours do without"
        if alike and tensor.dtype != input.dtype:
            return "input, weight and bias differ in dtype"
    return None


def conv_unsuitable(input: torch.Tensor, rank: int, weight: torch.Tensor, bias: torch.Tensor | None) -> str | None:
    """`unsuitable` of a convolution, whose operands are of one dtype, or become so under autocast."""
    if computed_dtype(input) is torch.bfloat16 and not HAS_BFLOAT16:
        return "bfloat16 needs the package ml_dtypes"
    if torch.is_autocast_enabled(autocast_device(input)):  # which leaves float64 alone
        return unsuitable(input, rank, weight, bias, dtypes=(torch.float32, *HALVES), alike=False, gpu=True)
    return unsuitable(input, rank, weight, bias, dtypes=(*DTYPES, *HALVES), gpu=True)


def computed_dtype(input: torch.Tensor) -> torch.dtype:
    """What a convolution computes with: under autocast its dtype, else the input's."""
    where = autocast_device(input)
    return torch.get_autocast_dtype(where) if torch.is_autocast_enabled(where) else input.dtype


def conv_reason(input: torch.Tensor, weight: torch.Tensor, outputs: int, groups: int) -> str | None:
    """Why to leave a convolution to PyTorch; `outputs`: cells of its result (of its input, where it is transposed)."""
    if surely(outputs * weight.numel() < SMALL_WORK):
        return SMALL
    dtype = computed_dtype(input)
    if dtype is torch.float64:
        return None  # PyTorch has no fast kernels for it
    if dtype in HALVES and not (dtype is torch.bfloat16 and MULTIPLIES_BFLOAT16):
        return f"it is in {dtype}, which ours widen to float32; measuring tells"
    if dtype in HALVES and groups == 1 and surely(2 * outputs <= input.numel() // input.shape[-weight.dim() + 1]):
        return f"in {dtype} PyTorch is as fast at convolutions with strides; measuring tells"
    if math.prod(weight.shape[2:]) == 1 and groups == 1:
        return "a 1x1 convolution is a plain matrix product, where PyTorch is as fast"
    if weight.shape[0] * weight.shape[1] < FEW_CHANNELS and groups == 1:
        return "it has so few channels that PyTorch is faster"
    if weight.shape[1] == 1 and groups > 1:
        return "inside a network PyTorch is about as fast at most depthwise convolutions; measuring finds the others"
    return None


def conv_tiny(weight: torch.Tensor, outputs: int) -> str | None:
    """Why not even to measure a convolution."""
    return SMALL if surely(outputs * weight.numel() < TINY_WORK) else None


def pool_tiny(input: torch.Tensor) -> str | None:
    """Why not even to measure a pooling."""
    return SMALL if surely(input.numel() < TINY_POOL) else None


def pool_reason(input: torch.Tensor) -> str | None:
    """Why to leave a pooling to PyTorch."""
    return SMALL if surely(input.numel() < SMALL_POOL[layout_of(input)]) else None


def conv_outputs(input: torch.Tensor, stride: int | Sequence[int], rank: int) -> int:
    """About as many cells as the result of a padded convolution has."""
    step = stride**rank if isinstance(stride, int) else math.prod(stride)
    cells: int = math.prod(input.shape[-rank:]) // step * (input.shape[0] if input.dim() == rank + 2 else 1)
    return cells
