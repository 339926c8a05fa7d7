"""The Winograd kernels of the cpu backend: when they pay, and running them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pullback.cpu.conv.filter_order import in_known_order
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.refusals import ordinary
from pullback.cpu.winograd.convolve import convolve_plans, cut_forward
from pullback.cpu.winograd.cost import unpaid
from pullback.cpu.winograd.filter_gradient import gradient_plans
from pullback.cpu.winograd.mend import mend_filter, mend_sweep, odd_channels, too_many
from pullback.cpu.winograd.shapes import axes_of, shape_of
from pullback.problem import Problem
from pullback.registry import CPU, kernels_for
from pullback.rules import Array
from pullback.settings import current_precision
from pullback.window import Window

NAME = "winograd"
ERROR = 100  # of results, by norm, in units of the rounding of a number; 10 to 40 are measured
# And of single results, absolutely, in units of the smallest number above 0, for each summed channel and set of taps, times the
# largest number of x or dy if that is above 1. A transformed weight errs by 3 of them; it meets 100 times such a number, and what
# has been summed is added up with factors of 361 in all.
UNDERFLOW = 2**17
FEWEST_TILES = 8  # of a block
BYTES = np.dtype(np.uint8)


@planned
def _compacted(problem: Problem) -> tuple[Problem, tuple[slice, ...]] | None:
    """In channels_first, where a stride divides the dilation: the problem over the cells that windows read, and where these are.

    Columns must lie side by side there; in channels_last the same cells are read where they are.
    """
    window = problem.window
    strides, sizes = window.stride, window.input_size
    if problem.layout != "channels_first" or strides[-1] == 1:
        return None
    if any(d % s for d, s in zip(window.dilation, strides, strict=True)):
        return None
    firsts = tuple(-p % s for p, s in zip(window.pad_low, strides, strict=True))
    read = tuple(-(-(n - first) // s) for n, first, s in zip(sizes, firsts, strides, strict=True))
    if min(read) < 1:
        return None
    dilation = tuple(d // s for d, s in zip(window.dilation, strides, strict=True))
    low = tuple(-(-p // s) for p, s in zip(window.pad_low, strides, strict=True))
    high = tuple(
        outputs + (k - 1) * d - n - p
        for outputs, k, d, n, p in zip(window.output_size, window.kernel, dilation, read, low, strict=True)
    )
    compact = Window(read, window.output_size, window.kernel, (1,) * len(read), dilation, low, high)
    places = tuple(slice(first, None, s) for first, s in zip(firsts, strides, strict=True))
    return replace(problem, window=compact), (slice(None), slice(None), *places)


def _as_read(problem: Problem) -> Problem:
    """The problem as the kernels see it: over the cells that windows read."""
    compacted = _compacted(problem)
    return problem if compacted is None else compacted[0]


def can(problem: Problem) -> str | None:
    """Why not, in words."""
    if current_precision() == "exact":
        return 'its transforms err by more than plain sums do, and precision "exact" asks for those'
    refused = ordinary(problem)
    if refused is not None:
        return refused
    problem = _as_read(problem)
    window = problem.window
    if axes_of(window) is None:
        return "it is for windows of several taps along one or two axes, or three"
    if any(d % s for d, s in zip(window.dilation, window.stride, strict=True)):
        return "it is for strides of 1, or such that divide the dilation"
    if shape_of(problem, problem.op == "conv_grad_input") is None:
        return "in channels_first it needs several taps along the last axis, or no window reads a cell"
    if _sums_nothing(problem.op, window):
        return "some results are sums of nothing, which its transforms would not leave at exactly zero"
    return None


def _sums_nothing(op: str, window: Window) -> bool:
    """Whether some result has no term, beside others of its tile that have: an output, a cell or a tap that meets nothing."""
    for n, o, k, s, d, p in zip(
        window.input_size, window.output_size, window.kernel, window.stride, window.dilation, window.pad_low, strict=True
    ):
        span, last = (k - 1) * d, (o - 1) * s - p  # of a window, and where the last one begins
        if op == "conv" and (p > span or last >= n):
            return True
        if op == "conv_grad_input" and (p < 0 or last + span + s < n):
            return True
        if op == "conv_grad_filter" and (last < 0 or span - p >= n):
            return True
    return False


def pays(problem: Problem) -> str | None:
    """Why it would take longer than a plain sum, in words."""
    problem = _as_read(problem)
    shape = shape_of(problem, problem.op == "conv_grad_input")
    assert shape is not None
    if cut_forward(shape).block < min(FEWEST_TILES, shape.positions) and shape.target.depth == 1:
        return "so few transformed tiles of so many taps and channels fit into memory that the filter would be read too often"
    return unpaid(problem, shape)


def _otherwise(problem: Problem, *arrays: Array) -> Array:
    """The next kernel of the list that dispatch would take: one that keeps infinities and NaN to what they touch."""
    after = iter(kernels_for(problem.op, CPU))
    for kernel in after:
        if kernel.name == NAME:
            break
    result: Array = next(kernel for kernel in after if kernel.verdict(problem).reason is None).run(problem, *arrays)
    return result


def _convolve(problem: Problem, source: Array, filter: Array, flipped: bool) -> Array:
    source, (weights, order) = np.ascontiguousarray(source), in_known_order(problem, filter)
    plans = convolve_plans(problem, flipped, order)
    target = new_array(problem.input_shape if flipped else problem.output_shape, problem.dtype)
    if plans.leaves_cells:
        target.fill(0)
    packed, faults = new_array((plans.packed_bytes,), BYTES), np.zeros(2, np.int64)
    plans.filter.run(f=address_of(weights), packed=address_of(packed), faults=address_of(faults) + 8)
    odd = odd_channels(problem, weights) if faults[1] else None
    if odd is not None and too_many(problem, odd):
        return _otherwise(problem, source, weights)
    plans.forward.run(
        x=address_of(source) + plans.source_start, packed=address_of(packed), y=address_of(target) + plans.target_start,
        faults=address_of(faults),
    )  # fmt: skip
    if faults.any():  # NaN or infinity, which a tile spreads over its neighbours
        mend_sweep(problem, source, weights, target, odd or odd_channels(problem, weights), _otherwise)
    return target


def conv(problem: Problem, x: Array, filter: Array) -> Array:
    compacted = _compacted(problem)
    if compacted is not None:
        problem, x = compacted[0], x[compacted[1]]
    return _convolve(problem, x, filter, False)


def conv_grad_input(problem: Problem, dy: Array, filter: Array) -> Array:
    compacted = _compacted(problem)
    if compacted is None:
        return _convolve(problem, dy, filter, True)
    dx = new_array(problem.input_shape, problem.dtype)
    dx.fill(0)
    dx[compacted[1]] = _convolve(compacted[0], dy, filter, True)
    return dx


def conv_grad_filter(problem: Problem, dy: Array, x: Array) -> Array:
    compacted = _compacted(problem)
    if compacted is not None:
        problem, x = compacted[0], x[compacted[1]]
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    plans = gradient_plans(problem)
    df = new_array(problem.filter_shape, problem.dtype)
    sums = new_array((plans.sum_bytes,), BYTES)
    faults = np.zeros(1, np.int64)
    plans.share.run(x=address_of(x) + plans.x_start, dy=address_of(dy), sums=address_of(sums))
    plans.finish.run(sums=address_of(sums), df=address_of(df), faults=address_of(faults))
    return mend_filter(problem, dy, x, df, _otherwise) if faults[0] else df
