"""Averages of windows that lie side by side, one axis after the other: for long strides in channels_first.

The sum of a window is the sum over its last axis of the sums over the others. Along all axes but the last, what lies behind
an axis is read as channels, by vectors, by another kernel; along the last each window is a run of cells.
"""

from __future__ import annotations

import math

import numpy as np

from pullback.cpu.engine.memory import new_array
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.registry import dispatch
from pullback.rules import Array
from pullback.window import Window

SHORT_STRIDE = 4  # which `rows` splits in registers


def _side_by_side(window: Window) -> bool:
    """Whether no two windows share a cell, none has a gap, and all are inside the input."""
    return all(
        p == 0 and (d == 1 or k == 1) and (s == k or o == 1) and (o - 1) * s + k <= n
        for n, o, k, s, d, p in zip(
            window.input_size, window.output_size, window.kernel, window.stride, window.dilation, window.pad_low, strict=True
        )
    )


def can(problem: Problem) -> str | None:
    if problem.layout == "channels_last" and problem.channels_in > 1:
        return "it reads what lies behind an axis as channels, and channels_last has channels of its own"
    if not _side_by_side(problem.window):
        return "it is for windows that lie side by side inside the input"
    if problem.dtype.itemsize < 4:
        return "it keeps sums of parts in the type of the arrays, which is too narrow for them"
    if isinstance(problem.divisor, int) and problem.divisor != problem.window.tap_count:
        return "it divides by the number of cells, and the divisor is another"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    if problem.window.stride[-1] <= SHORT_STRIDE:
        return f"others take strides up to {SHORT_STRIDE} in one pass"
    return None


def avg_pool(problem: Problem, x: Array) -> Array:
    window = problem.window
    sizes = list(window.input_size)
    sums, images = np.ascontiguousarray(x), problem.batch * problem.channels_in
    for axis, (o, k) in enumerate(zip(window.output_size[:-1], window.kernel[:-1], strict=True)):
        if k > 1 or o < sizes[axis]:
            sums = _sums(problem, sums.reshape(images, sizes[axis], math.prod(sizes[axis + 1 :])), o, k)
        images, sizes[axis] = images * o, o
    o, k = window.output_size[-1], window.kernel[-1]
    runs = np.ascontiguousarray(sums.reshape(images, sizes[-1])[:, : o * k]).reshape(images * o, k)
    return (_mean_of_runs(problem, runs) if k == window.tap_count else _quotient(runs, window.tap_count)).reshape(
        problem.output_shape
    )


def _sums(problem: Problem, x: Array, outputs: int, kernel: int) -> Array:
    """Sums along the middle axis of x, its last axis being channels."""
    images, size, channels = x.shape
    window = Window((size,), (outputs,), (kernel,), (kernel,), (1,), (0,), (0,))
    sums: Array = dispatch(
        Problem("avg_pool", problem.dtype, "channels_last", images, channels, channels, window, divisor=1), x
    )
    return sums


def _mean_of_runs(problem: Problem, runs: Array) -> Array:
    images, cells = runs.shape
    window = Window((cells,), (1,), (cells,), (1,), (1,), (0,), (0,))
    means: Array = dispatch(
        Problem("avg_pool", problem.dtype, "channels_last", images, 1, 1, window, divisor="valid"), runs[..., None]
    )
    return means


def _quotient(runs: Array, divisor: int) -> Array:
    """The sum of each run, divided once: few numbers are left here, and means of means would round twice."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = new_array(runs.shape[:1], runs.dtype)
        total[:] = runs[:, 0]
        for cell in range(1, runs.shape[1]):
            total += runs[:, cell]
        total /= divisor
    return total
