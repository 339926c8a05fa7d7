"""What TF.js's 3-D pooling kernels do wrong, step by step: winners decoded with the wrong stride, NCDHW read as NDHWC."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pullback.problem import Problem
from pullback.rules import Array
from pullback.tfjs.call import dispatch
from pullback.window import ravelled, unravelled

Indices = npt.NDArray[np.int64]


def misread_winners(problem: Problem, indices: Indices) -> Indices:
    """Flat winner indices as MaxPool3DGrad reads them back, -1 where the gradient is lost.

    The offset (d, r, c) of the winner is written d*kh*kw + r*kh + c and read as if it were d*kh*kw + r*kw + c.
    """
    window, shape = problem.window, problem.input_shape
    kd, kh, kw = window.kernel
    if indices.size == 0 or math.prod(shape) == 0:
        return indices
    n, *cells, channel = unravelled(np.maximum(indices, 0), shape)
    corners = [
        (np.arange(o) * s - p).reshape((-1,) + (1,) * (3 - axis))
        for axis, (o, s, p) in enumerate(zip(window.output_size, window.stride, window.pad_low, strict=True))
    ]
    d, r, c = (cell - corner for cell, corner in zip(cells, corners, strict=True))
    code = d * kh * kw + r * kh + c
    taps = (code // (kh * kw), code % (kh * kw) // kw, code % kw)
    read = [corner + tap for corner, tap in zip(corners, taps, strict=True)]
    kept = (indices >= 0) & (taps[0] < kd)
    for cell, size in zip(read, window.input_size, strict=True):
        kept &= (cell >= 0) & (cell < size)
    inside = [np.where(kept, cell, 0) for cell in read]
    return np.where(kept, ravelled((n, *inside, channel), shape), -1)


def _offsets(batch: int, size: tuple[int, ...], channels: int) -> Indices:
    """Where the kernel looks for (n, d, r, c, channel) in an NCDHW array: as if its axes 1 to 4 were d, r, c, channel."""
    depth, height, width = size
    steps = (channels * depth * height * width, depth * height * width, height * width, width, 1)
    grids = np.ogrid[tuple(slice(0, n) for n in (batch, depth, height, width, channels))]
    return np.asarray(sum(grid * step for grid, step in zip(grids, steps, strict=True)), np.int64)


def pool_misaddressed(kernel: str, problem: Problem, x: Array) -> Array:
    """A channels-first 3-D pool with the sizes of NCDHW and the addressing of NDHWC.

    Later writes overwrite earlier ones, writes past the end vanish, and cells never written stay 0.
    """
    window = problem.window
    places = _offsets(problem.batch, window.input_size, problem.channels_in)
    for axis, size in enumerate(window.input_size):
        unread = [i for i in range(size) if not window.covering(axis, i)]
        places[(slice(None),) * (axis + 1) + (unread,)] = 0
    if places.size and int(places.max()) >= x.size:
        raise ValueError(f"{kernel}: with dataFormat NCDHW upstream reads x {x.shape} past its end; the answer is undefined")
    seen = np.ascontiguousarray(x).reshape(-1)[places] if x.size else np.zeros(places.shape, x.dtype)
    as_ndhwc = Problem(
        problem.op, problem.dtype, "channels_last", problem.batch, problem.channels_in, problem.channels_in, window,
        winner=problem.winner, divisor=problem.divisor, empty=problem.empty,
    )  # fmt: skip
    pooled = dispatch(as_ndhwc, seen)
    targets = _offsets(problem.batch, window.output_size, problem.channels_in)
    y = np.zeros(math.prod(problem.output_shape), problem.dtype)
    # The kernel's outer loops run over batch, then channel: its order of writing decides which write stays.
    order = np.moveaxis(targets, -1, 1).reshape(-1)
    written = order < y.size
    y[order[written]] = np.moveaxis(pooled, -1, 1).reshape(-1)[written]
    return y.reshape(problem.output_shape)
