"""The tables that pooling kernels read: which source rows and columns each target row and column sums over, as flat lists.

A problem of any rank is rows by columns: the last spatial axis is the columns, the axes before it together are the rows.
`forward` lists hold the input cells an output reads, `gradient` lists the outputs that read an input cell, outputs ascending.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pullback.window import Window

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """Entries ptr[i] .. ptr[i+1] of target i: source number and tap number of each."""

    ptr: Ints
    source: Ints
    tap: Ints

    @property
    def targets(self) -> int:
        return len(self.ptr) - 1


def _axis(window: Window, axis: int, forward: bool) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """(sources, taps, which exist) of one axis, one row per target."""
    sources, exist = window.reads(axis) if forward else window.readers(axis)
    taps = np.broadcast_to(np.arange(window.kernel[axis], dtype=np.int64), sources.shape)
    if not forward:  # descending taps are ascending outputs
        sources, taps, exist = sources[:, ::-1], taps[:, ::-1], exist[:, ::-1]
    return sources, taps, exist


def _lists(sources: Ints, taps: Ints, exist: npt.NDArray[np.bool_]) -> Lists:
    ptr = np.zeros(len(sources) + 1, np.int64)
    np.cumsum(exist.sum(axis=1), out=ptr[1:])
    return Lists(ptr, np.ascontiguousarray(sources[exist]), np.ascontiguousarray(taps[exist]))


def columns(window: Window, forward: bool) -> Lists:
    """The lists of the last axis."""
    return _lists(*_axis(window, window.rank - 1, forward))


def rows(window: Window, forward: bool) -> Lists:
    """The lists of all axes before the last, numbered row-major; taps count whole rows of the window."""
    sources, taps = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64)
    exist = np.ones((1, 1), np.bool_)
    for axis in range(window.rank - 1):
        more, tap, there = _axis(window, axis, forward)
        size = window.input_size[axis] if forward else window.output_size[axis]
        shape = (len(sources) * len(more), -1)
        sources = (sources[:, None, :, None] * size + more[None, :, None, :]).reshape(shape)
        taps = (taps[:, None, :, None] * window.kernel[axis] + tap[None, :, None, :]).reshape(shape)
        exist = (exist[:, None, :, None] & there[None, :, None, :]).reshape(shape)
    return _lists(sources, taps, exist)


@dataclass(frozen=True)
class Blocks:
    """Target rows cut into blocks, with the source rows each needs: entry e of a block's rows reads its slot[e]-th."""

    row: Ints  # first row of each block, and the end
    need_ptr: Ints
    need: Ints
    slot: Ints
    most_needed: int

    @property
    def count(self) -> int:
        return len(self.row) - 1


def cut(lists: Lists, rows_each: int) -> Blocks:
    """Blocks of `rows_each` target rows."""
    row = np.append(np.arange(0, lists.targets, rows_each, dtype=np.int64), lists.targets)
    slot = np.empty(len(lists.source), np.int64)
    needs, counts = [], [0]
    for first, last in itertools.pairwise(row):
        span = slice(lists.ptr[first], lists.ptr[last])
        need, inverse = np.unique(lists.source[span], return_inverse=True)
        slot[span] = inverse
        needs.append(need)
        counts.append(counts[-1] + len(need))
    need_all = np.concatenate(needs) if needs else np.empty(0, np.int64)
    return Blocks(row, np.array(counts, np.int64), need_all, slot, max(map(len, needs), default=0))


def tap_bases(window: Window, multipliers: tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
    """Row, column and tap parts of a winner's flat index: their sum counts cells by `multipliers` (one per axis)."""
    parts = [
        (np.arange(o, dtype=np.int64) * s - p) * m
        for o, s, p, m in zip(window.output_size, window.stride, window.pad_low, multipliers, strict=True)
    ]
    row = np.zeros(1, np.int64)
    for part in parts[:-1]:
        row = (row[:, None] + part).reshape(-1)
    tap = np.zeros(1, np.int64)
    for k, d, m in zip(window.kernel, window.dilation, multipliers, strict=True):
        tap = (tap[:, None] + np.arange(k, dtype=np.int64) * d * m).reshape(-1)
    return row, parts[-1], tap


def row_count(sizes: tuple[int, ...]) -> int:
    return math.prod(sizes[:-1])


def in_three(window: Window) -> Window:
    """The same window with axes of size 1 in front, so that it has a depth, a row and a column axis."""
    more = 3 - window.rank
    ones, zeros = (1,) * more, (0,) * more
    return Window(
        ones + window.input_size, ones + window.output_size, ones + window.kernel, ones + window.stride, ones + window.dilation,
        zeros + window.pad_low, zeros + window.pad_high,
    )  # fmt: skip


def depth_lists(window: Window, forward: bool) -> dict[str, Ints]:
    """The lists of the depth axis of a three-axis window."""
    lists = _lists(*_axis(window, 0, forward))
    return {"d_ptr": lists.ptr, "d_src": lists.source, "d_tap": lists.tap}


@dataclass(frozen=True)
class TapPlaces:
    """Where the taps of an axis read an axis unpacked by stride: tap t of output y at place y + shift[t] of plane[t]."""

    plane: Ints
    shift: Ints

    @property
    def low(self) -> int:
        return int(self.shift.min())

    def places(self, outputs: int) -> int:
        """Places per plane that `outputs` neighbouring outputs need."""
        return outputs + int(self.shift.max()) - self.low


def tap_places(window: Window, axis: int) -> TapPlaces:
    first = np.arange(window.kernel[axis], dtype=np.int64) * window.dilation[axis] - window.pad_low[axis]
    shift, plane = np.divmod(first, window.stride[axis])
    return TapPlaces(plane, shift)
