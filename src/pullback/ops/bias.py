"""The bias of a convolution, one number for each output channel, and its gradient: the sum of dy over images and cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.arguments import as_array, as_float_array, as_layout, layout_of
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.rules import Array
from pullback.tracing import any_traced, traced_op

BLOCK = 1 << 10  # rows that are summed before their sum goes into float64: few enough for small errors, enough for speed


def as_bias(op: str, bias: Any, y: Any, layout: str) -> Any:
    """A checked bias for the result y of a convolution."""
    channels = y.shape[-1] if as_layout(op, layout, y.ndim - 2) == "channels_last" else y.shape[1]
    b = bias if any_traced([bias]) else as_array(op, "bias", bias)
    if b.shape != (channels,):
        raise ValueError(f"{op}: bias has shape {b.shape}; it needs one entry for each of the {channels} output channels")
    if b.dtype != y.dtype:
        raise TypeError(f"{op}: bias is {b.dtype} but the arrays are {y.dtype}; convert one so that they agree")
    return b


def add_bias(op: str, y: Any, bias: Any, layout: str) -> Any:
    """y plus its bias, in y's own memory unless autograd records it."""
    rank = y.ndim - 2
    shaped = bias if as_layout(op, layout, rank) == "channels_last" else bias.reshape((-1,) + (1,) * rank)
    if any_traced((y, bias)):
        return y + shaped
    with np.errstate(over="ignore", invalid="ignore"):
        y += shaped
    return y


@with_hints
def conv_grad_bias(dy: npt.ArrayLike, *, layout: str = DEFAULT_LAYOUT) -> Array:
    """Gradient of `conv` with respect to its bias, from the gradient dy of its result.

    **Formula.** `db[m] = sum over n, i of dy[n, i, m]`, in one pass over dy.

    **Shapes.** dy is `(N, *out, M)` in channels_last and `(N, M, *out)` in channels_first; the result is `(M,)`.

    **Error.** Blocks of at most 1024 numbers are summed in the dtype of dy (the half precisions in float32), and the blocks
    in float64: about 1024 eps times the sum of absolute values at the most, whatever the size of dy.

    **Equals** the dB of ONNX Runtime's ConvGrad, the bias gradient of PyTorch's convolution_backward.
    """
    op = "conv_grad_bias"
    if any_traced([dy]):
        gradient: Array = traced_op(op)(dy, layout=layout)
        return gradient
    d = as_float_array(op, "dy", dy)
    kind = layout_of(op, layout, "dy", d.shape)
    channels = d.shape[-1] if kind == "channels_last" else d.shape[1]
    if not d.size:
        return np.zeros(channels, d.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = _by_rows(d, channels) if kind == "channels_last" else _by_images(d, channels)
        return np.sum(sums, axis=0, dtype=np.float64).astype(d.dtype)


def _by_rows(d: Array, channels: int) -> Array:
    """Sums of blocks of cells, (blocks, channels)."""
    rows = np.ascontiguousarray(d).reshape(-1, channels)
    whole = len(rows) // BLOCK * BLOCK
    parts = [_sums(rows[:whole].reshape(-1, BLOCK, channels), "NWC")] if whole else []
    if whole < len(rows):
        parts.append(_sums(rows[whole:].reshape(1, -1, channels), "NWC"))
    sums: Array = np.concatenate(parts)
    return sums


def _by_images(d: Array, channels: int) -> Array:
    """Sums of blocks of each image's cells, (blocks, channels)."""
    flat = np.ascontiguousarray(d).reshape(len(d), channels, -1)
    cells = flat.shape[2]
    block = next((cells // parts for parts in range(-(-cells // BLOCK), cells + 1) if cells % parts == 0), cells)
    sums = _sums(flat.reshape(len(d), channels * (cells // block), block), "NCW")
    of_images: Array = sums.reshape(len(d), channels, -1).sum(axis=2, dtype=np.float64)
    return of_images


def _sums(blocks: Array, layout: str) -> Array:
    """The sum of each image of some 1-D ones, by the kernels of average pooling."""
    from pullback.ops.avg_pool import avg_pool  # which needs this module by way of conv

    cells = blocks.shape[1] if layout == "NWC" else blocks.shape[2]
    sums = avg_pool(blocks, cells, layout=layout, divisor=1)
    return sums.reshape(len(blocks), -1)
