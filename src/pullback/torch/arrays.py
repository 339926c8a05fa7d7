"""Tensors as arrays and back without copying: channels_last memory formats as the layout channels_last, half types by their bits.

A tensor's axes are always (N, C, *size), a weight's (out, in / groups, *window); `layout` says how activations lie in memory, and
results come back lying the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch

from pullback.cpu.conv.transpose import transposed
from pullback.rules import Array

Function = TypeVar("Function", bound=Callable[..., Any])
FIRST, LAST = "channels_first", "channels_last"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Those that are summed as they are, which kernels run on the addresses of tensors.
NUMPY: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype("float32"), torch.float64: np.dtype("float64")}


def untraced(function: Function) -> Function:
    """The function outside of torch.jit.trace, for what is decided once: there sizes are plain numbers."""

    @wraps(function)
    def outside(*arguments: Any) -> Any:
        state = None if torch.compiler.is_compiling() else torch._C._get_tracing_state()
        if state is None:
            return function(*arguments)
        torch._C._set_tracing_state(None)
        try:
            return function(*arguments)
        finally:
            torch._C._set_tracing_state(state)

    return cast(Function, outside)


@cache
def _bfloat16() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("bfloat16 tensors need the package ml_dtypes: pip install 'pullback[bfloat16]'") from None
    return np.dtype(ml_dtypes.bfloat16)


@cache
def to_last(rank: int) -> tuple[int, ...]:
    """The axes that turn (N, C, *size) into (N, *size, C)."""
    return (0, *range(2, rank), 1)


@cache
def from_last(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


@cache
def filter_to_last(rank: int) -> tuple[int, ...]:
    """The axes that turn (out, in, *window) into (*window, in, out)."""
    return (*range(2, rank), 1, 0)


@untraced
def layout_of(*tensors: torch.Tensor) -> str:
    """channels_last where one of the tensors lies so, by the rule that PyTorch's own ops choose the format of their results by."""
    for tensor in tensors:
        if _lies_last(tensor):
            return LAST
    return FIRST


def _lies_last(tensor: torch.Tensor) -> bool:
    """Whether steps grow from the channels over the last axis to the batch; where both orders fit, only by a larger batch step."""
    shape, steps = tensor.shape, tensor.stride()
    channel = steps[1]
    least = channel * shape[1]
    if least <= 0 or steps[-1] < least:  # the most common answer, found soon
        return False
    for axis in range(len(steps) - 1, 1, -1):
        if steps[axis] < least or shape[axis] == 0:
            return False
        least = steps[axis] * shape[axis]
    lies_last: bool = least != channel and steps[0] >= least  # no bool(...): PyTorch 2.6 cannot compile it of a size left open
    return lies_last


def as_array(tensor: torch.Tensor) -> Array:
    """The tensor's memory as an array of the same shape."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.dtype is torch.bfloat16:
        half: Array = plain.view(torch.int16).numpy().view(_bfloat16())
        return half
    array: Array = plain.numpy()
    return array


def activation(tensor: torch.Tensor, layout: str) -> Array:
    """x, dy or winners as the ops want them; copied only where it lies neither way."""
    if layout == FIRST:
        return as_array(tensor.contiguous())
    axes = to_last(tensor.dim())
    array = as_array(tensor).transpose(axes)
    if array.flags.c_contiguous:
        return array
    return as_array(tensor.permute(axes).contiguous())  # PyTorch copies with several threads


def filter_array(tensor: torch.Tensor, layout: str) -> Array:
    """A weight as the layout's filter: a view, since the kernels read PyTorch's memory orders in place."""
    array = as_array(tensor)
    return array if layout == FIRST else array.transpose(filter_to_last(tensor.dim()))


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype.kind == "V":  # bfloat16
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor if array.size else tensor.new_empty(array.shape)  # an empty array says nothing of how it lies


def result(array: Array, layout: str) -> torch.Tensor:
    """A tensor over an op's result."""
    return _tensor(array if layout == FIRST else array.transpose(from_last(array.ndim)))


def filter_result(array: Array, layout: str) -> torch.Tensor:
    """A tensor over a filter's gradient; in channels_last it lies as PyTorch keeps weights in that format, (out, *window, in)."""
    if layout == FIRST:
        return _tensor(array)
    *window, per_group, out = array.shape
    turned = transposed(array.reshape(-1, out)).reshape(out, *window, per_group)
    return _tensor(turned).permute(from_last(array.ndim))


def empty_like_result(tensor: torch.Tensor, shape: Sequence[Any], layout: str, dtype: Any = None) -> torch.Tensor:
    """What a result of this shape looks like, for tracing."""
    if layout == FIRST:
        return tensor.new_empty(tuple(shape), dtype=dtype)
    axes = to_last(len(shape))
    return tensor.new_empty([shape[axis] for axis in axes], dtype=dtype).permute(from_last(len(shape)))
