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


@dataclass(frozen=True)
class TapPlaces:
    """Where the taps of the last axis read an unpacked row (see pool_columns): plane, then place, in cells."""

    low: int
    places: int
    at: Ints


def forward_places(window: Window) -> TapPlaces:
    """Every output y reads tap t at place y + shift of the plane of its stride residue."""
    axis = window.rank - 1
    first = np.arange(window.kernel[axis], dtype=np.int64) * window.dilation[axis] - window.pad_low[axis]
    shift, plane = np.divmod(first, window.stride[axis])
    low = int(shift.min())
    places = window.output_size[axis] + int(shift.max()) - low
    return TapPlaces(low, places, plane * places + shift - low)


@dataclass(frozen=True)
class PhasePlaces:
    """Where each stride phase of a gradient row reads an unpacked row of dy: entries ptr[r] .. ptr[r+1] of phase r."""

    low: int
    places: int
    widest: int
    ptr: Ints
    at: Ints
    tap: Ints


def gradient_places(window: Window) -> PhasePlaces:
    """Cell j of phase r is read by output j + shift; places outside dy's row hold zeros."""
    axis = window.rank - 1
    phases = window.phases(axis)
    low = min([0, *(shift for phase in phases for shift in phase.shifts)])
    high = max([window.output_size[axis], *(phase.count + shift for phase in phases for shift in phase.shifts)])
    counts, at, tap = [0], [], []
    for phase in phases:
        # Taps descending are outputs ascending, the order in which the reference adds.
        for t, shift in sorted(zip(phase.taps, phase.shifts, strict=True), reverse=True):
            at.append(shift - low)
            tap.append(t)
        counts.append(len(at))
    counts += [len(at)] * (window.stride[axis] - len(phases))  # a stride beyond the row has phases without cells
    widest = max([0, *(phase.count for phase in phases)])
    as_ints = [np.array(values, np.int64) for values in (counts, at, tap)]
    return PhasePlaces(low, high - low, widest, *as_ints)
