"""Results of Winograd kernels where something is not finite: a transform spreads NaN, infinities and overflows over its whole tile.

What they have spread over is redone by a plain sum, and no more than that: blocks of a convolution (those of the direct kernel),
channels of a filter gradient, channels whose weights are not finite. What a NaN touches is NaN whatever else there is: no sum is
needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.cpu.conv.ops import redo as redo_blocks
from pullback.cpu.winograd.tuning import MOST_REDONE
from pullback.problem import Problem
from pullback.rules import Array

Flags = npt.NDArray[np.bool_]
PlainSum = Callable[..., Array]  # of a problem and its arrays


@dataclass(frozen=True)
class NonfiniteChannels:
    """Output channels with weights that are not finite: those that are NaN everywhere, and the others."""

    certain: Flags
    others: Flags

    @property
    def any(self) -> bool:
        return bool(self.certain.any() or self.others.any())


def _channels_last(problem: Problem, array: Array) -> Array:
    """A view of x or dy with its channels last."""
    return array if problem.layout == "channels_last" else np.moveaxis(array, 1, -1)


def _taps_first(problem: Problem, filter: Array) -> Array:
    """A view of a filter as (*taps, in, out)."""
    return filter if problem.layout == "channels_last" else np.moveaxis(filter, (0, 1), (-1, -2))


def _picked(flags: Flags) -> npt.NDArray[np.int64]:
    """The numbers of some channels, the last one repeated up to a power of two: so that few different plans are made."""
    found = np.flatnonzero(flags)
    wanted = min(1 << (len(found) - 1).bit_length(), len(flags))
    return np.append(found, np.repeat(found[-1:], wanted - len(found)))


def nonfinite_channels(problem: Problem, filter: Array) -> NonfiniteChannels:
    """Of conv or conv_grad_input."""
    window, forward = problem.window, problem.op == "conv"
    weights = _taps_first(problem, filter)
    sizes = window.output_size if forward else window.input_size
    # Taps that meet a source cell for every target cell.
    whole = [
        np.array([len(window.outputs_of_tap(axis, t)) == sizes[axis] for t in range(k)]) for axis, k in enumerate(window.kernel)
    ]
    always = reduce(np.multiply.outer, whole).reshape(*window.kernel, 1, 1)

    def of_channels(flags: Any) -> Flags:
        if forward:
            return np.asarray(flags.reshape(-1, problem.channels_out).any(axis=0))
        c, m = problem.channels_in // problem.groups, problem.channels_out // problem.groups
        return np.asarray(flags.reshape(-1, c, problem.groups, m).any(axis=(0, 3)).T.reshape(problem.channels_in))

    certain = of_channels(np.isnan(weights) & always)
    return NonfiniteChannels(certain, of_channels(~np.isfinite(weights)) & ~certain)


def too_many(problem: Problem, channels: NonfiniteChannels) -> bool:
    """Whether all channels should be made by a plain sum at once."""
    return bool(channels.others.mean() > MOST_REDONE or (problem.groups > 1 and channels.others.any()))


def _touched(problem: Problem, source: Array) -> Flags | None:
    """What reads a NaN of the target with its channels last, as an index; None if nothing does."""
    view, window, forward = _channels_last(problem, source), problem.window, problem.op == "conv"
    found: Any = np.isnan(view).reshape(*view.shape[:-1], problem.groups, -1).any(axis=-1)
    if not found.any():
        return None
    for axis in range(window.rank):
        size = (window.output_size if forward else window.input_size)[axis]
        more = np.zeros((*found.shape[: axis + 1], size, *found.shape[axis + 2 :]), np.bool_)
        before = (slice(None),) * (axis + 1)
        for t in range(window.kernel[axis]):
            outputs, cells = (slices[axis] for slices in window.tap_slices((0,) * axis + (t,)))
            read, written = (cells, outputs) if forward else (outputs, cells)
            more[(*before, written)] |= found[(*before, read)]
        found = more
    out_channels = (problem.channels_out if forward else problem.channels_in) // problem.groups
    return found[..., 0] if problem.groups == 1 else np.repeat(found, out_channels, axis=-1)


def redo_sweep(
    problem: Problem, source: Array, filter: Array, target: Array, nonfinite: NonfiniteChannels, plain_sum: PlainSum
) -> None:
    """Of conv or conv_grad_input: redo what is not finite, in place. nonfinite: not too many of them."""
    forward, view = problem.op == "conv", _channels_last(problem, target)
    touched = _touched(problem, source)
    weights = filter
    if nonfinite.any:  # out of the way, since their blocks need not be redone for them
        view[..., nonfinite.certain | nonfinite.others] = 0
        weights = np.where(np.isfinite(filter), filter, filter.dtype.type(0))
    if touched is not None:
        view[touched] = 0
    if not np.isfinite(target).all():
        redo_blocks(problem, source, weights, target)
    if touched is not None:
        view[touched] = np.nan
    if nonfinite.others.any():
        channels = _picked(nonfinite.others)
        given = _taps_first(problem, filter)
        given = given[..., channels] if forward else given[..., channels, :]
        if problem.layout == "channels_first":
            given = np.moveaxis(given, (-1, -2), (0, 1))
        count = len(channels)
        some = replace(problem, channels_out=count) if forward else replace(problem, channels_in=count)
        view[..., channels] = _channels_last(problem, plain_sum(some, source, np.ascontiguousarray(given)))
    view[..., nonfinite.certain] = np.nan


def _met_by_all(ranges: list[range]) -> slice:
    """The numbers that all of some ranges of step 1 hold."""
    low = max(one.start for one in ranges)
    return slice(low, max(low, min(one.stop for one in ranges)))


def _certain(problem: Problem, array: Array, boxes: list[slice]) -> Flags:
    """Channels of an array that hold a NaN inside some box of cells."""
    return np.asarray(np.isnan(_channels_last(problem, array)[(slice(None), *boxes)]).any(axis=tuple(range(array.ndim - 1))))


def _certain_channels(problem: Problem, x: Array, dy: Array) -> tuple[Flags, Flags]:
    """Input and output channels whose gradients are NaN for every tap: each has a NaN in a cell that all taps read."""
    window = problem.window
    taps = [range(k) for k in window.kernel]
    outputs = [[window.outputs_of_tap(axis, t) for t in taps[axis]] for axis in range(window.rank)]
    columns = _certain(problem, dy, [_met_by_all(ranges) for ranges in outputs])
    if math.prod(window.stride) > 1:  # no cell is read by all taps
        return np.zeros(problem.channels_in, np.bool_), columns
    firsts = [[t * d - p for t in of_axis] for of_axis, d, p in zip(taps, window.dilation, window.pad_low, strict=True)]
    cells = [
        [range(ys.start + first, ys.stop + first) for ys, first in zip(*both, strict=True)]
        for both in zip(outputs, firsts, strict=True)
    ]
    return _certain(problem, x, [_met_by_all(ranges) for ranges in cells]), columns


def redo_filter(problem: Problem, dy: Array, x: Array, df: Array, plain_sum: PlainSum) -> Array:
    """Of conv_grad_filter: the gradient, with those channels redone that are not finite."""
    if problem.groups > 1:
        return plain_sum(problem, dy, x)
    window, view = problem.window, _taps_first(problem, df)
    nonfinite = ~np.isfinite(view).all(axis=tuple(range(window.rank)))  # (in, out)
    certain_rows, certain_columns = _certain_channels(problem, x, dy)
    rest = nonfinite & ~certain_rows[:, None] & ~certain_columns
    rows, columns = rest.sum(axis=1) == (~certain_columns).sum(), rest.sum(axis=0) == (~certain_rows).sum()
    rows, columns = rows & rest.any(axis=1), columns & rest.any(axis=0)
    if (rest & ~rows[:, None] & ~columns).any() or rows.mean() + columns.mean() > MOST_REDONE:
        return plain_sum(problem, dy, x)
    if columns.any():
        channels = _picked(columns)
        given = _with_channels(problem, dy, channels)
        view[..., channels] = _taps_first(problem, plain_sum(replace(problem, channels_out=len(channels)), given, x))
    if rows.any():
        channels = _picked(rows)
        given = _with_channels(problem, x, channels)
        view[..., channels, :] = _taps_first(problem, plain_sum(replace(problem, channels_in=len(channels)), dy, given))
    view[..., certain_columns] = np.nan
    view[..., certain_rows, :] = np.nan
    return df


def _with_channels(problem: Problem, array: Array, channels: npt.NDArray[np.int64]) -> Array:
    return np.ascontiguousarray(np.take(array, channels, axis=-1 if problem.layout == "channels_last" else 1))
