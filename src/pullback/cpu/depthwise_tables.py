"""The tables of grouped convolutions: which source cells and weights a target row and column sums over, as byte offsets.

Forward, targets are outputs and sources inputs; for the input gradient it is the other way round. A pair is (source, weight).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pullback.cpu.pool_tables import Lists
from pullback.window import Window

Ints = npt.NDArray[np.int64]


def pairs(sources: Ints, weights: Ints) -> Ints:
    """A table of (source, weight) offsets."""
    return np.ascontiguousarray(np.stack([sources, weights], axis=-1).reshape(-1, 2).astype(np.int64))


@dataclass(frozen=True)
class Columns:
    """Target columns start, start + step, ... (`count` of them), whose taps are one run: number j reads source columns
    first + unit * (reach * j + i) by tap tap + tap_step * i, for i = 0 .. taps-1.
    """

    start: int
    step: int
    count: int
    first: int
    unit: int
    reach: int
    taps: int
    tap: int
    tap_step: int

    def ranges(self, sources: int) -> Ints:
        """First and last i (exclusive) whose source column exists, for each target column, (count, 2)."""
        begin = self.first + np.arange(self.count, dtype=np.int64) * (self.reach * self.unit)
        low, high = -(begin // self.unit), (sources - 1 - begin) // self.unit + 1
        low = np.clip(low, 0, self.taps)
        return np.stack([low, np.clip(high, low, self.taps)], axis=-1)

    def middle(self, sources: int) -> tuple[int, int]:
        """The columns for which all taps exist; the same number twice if there are none."""
        ranges = self.ranges(sources)
        whole = np.flatnonzero((ranges[:, 0] == 0) & (ranges[:, 1] == self.taps))
        return (int(whole[0]), int(whole[-1]) + 1) if len(whole) else (0, 0)


def column_phases(window: Window, forward: bool) -> tuple[Columns, ...]:
    """The target columns in classes within which neighbours read neighbouring sources, whatever stride and dilation are."""
    axis = window.rank - 1
    o, k = window.output_size[axis], window.kernel[axis]
    s, d, p = window.stride[axis], window.dilation[axis], window.pad_low[axis]
    common = math.gcd(s, d)
    if forward:
        step = d // common if k > 1 else 1
        unit = d if k > 1 else s
        return tuple(
            Columns(start, step, -(-(o - start) // step), start * s - p, unit, step * s // unit, k, 0, 1)
            for start in range(min(step, o))
        )
    found = []
    unit, tap_step = d // common, s // common  # from one tap of a phase to the next one
    for phase in window.phases(axis):
        taps = len(phase.taps)
        apart = unit if taps > 1 else 1
        first = min(phase.shifts, default=0)
        for j in range(min(apart, phase.count)):
            count, last = -(-(phase.count - j) // apart), max(phase.taps, default=0)
            found.append(Columns(phase.start + j * s, s * apart, count, first + j, apart, 1, taps, last, -tap_step))
    return tuple(found)


def reach_of(phases: tuple[Columns, ...], sources: int) -> tuple[int, int]:
    """(low, places): the source columns that any tap of any phase names, existing or not, and all that exist."""
    low, high = 0, sources
    for phase in phases:
        if phase.taps:
            low = min(low, phase.first)
            high = max(high, phase.first + phase.unit * (phase.reach * (phase.count - 1) + phase.taps - 1) + 1)
    return low, high - low


def phase_tables(
    phases: tuple[Columns, ...], sources: int, target_bytes: int, source_bytes: int, low: int, tap_bytes: int, padded: bool
) -> tuple[Ints, Ints]:
    """The phases as kernels/depthwise.py reads them, and the range of taps of each column.

    padded: source columns that do not exist are zeros in scratch, so that every column is a middle one. low: the column at
    the source address. tap_bytes: from a tap's weights to the next one's.
    """
    table, ends = [], []
    before = 0
    for phase in phases:
        middle = (0, phase.count) if padded else phase.middle(sources)
        table.append([
            phase.start * target_bytes, (phase.first - low) * source_bytes, phase.tap * tap_bytes, phase.count, *middle,
            phase.taps, phase.unit * source_bytes, phase.tap_step * tap_bytes, phase.reach, phase.step * target_bytes, before,
        ])  # fmt: skip
        ends.append(phase.ranges(sources))
        before += phase.count
    return np.array(table, np.int64), np.concatenate(ends).astype(np.int64)


def row_pairs(lists: Lists, source_bytes: int, tap_bytes: int, slots: Ints | None = None) -> Ints:
    """Pairs of the row lists; `slots` are places in scratch instead of source rows."""
    return pairs((lists.source if slots is None else slots) * source_bytes, lists.tap * tap_bytes)
