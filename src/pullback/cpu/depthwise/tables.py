"""The tables of grouped convolutions: which source cells and weights a target row and column sums over, as byte offsets.

Forward, targets are outputs and sources inputs; for the input gradient it is the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pullback.cpu.conv.sweep import gradient_phases, with_idle
from pullback.cpu.depthwise.records import ColumnPhase, Range
from pullback.cpu.depthwise.tuning import MOST_PHASES
from pullback.cpu.engine.sizes import ceil_div
from pullback.window import Window

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Target columns start, start + step, ... (`count` of them), whose taps are one run: number j reads source columns
    first + hop * j + unit * i by tap tap + tap_step * i, for i = 0 .. taps-1.
    """

    start: int
    step: int
    count: int
    first: int
    unit: int
    hop: int
    taps: int
    tap: int
    tap_step: int

    @property
    def reach(self) -> int:
        """By how many taps neighbours differ that read the same source column; 0 where they share none."""
        return self.hop // self.unit if self.hop % self.unit == 0 else 0

    def between(self, begin: int, end: int) -> Columns:
        """Those of its target columns from `begin` on and before `end`."""
        low, high = (min(max(0, ceil_div(at - self.start, self.step)), self.count) for at in (begin, end))
        more = {"start": self.start + low * self.step, "first": self.first + low * self.hop}
        return replace(self, count=high - low, **more)

    def ranges(self, columns: Ints, sources: int) -> Ints:
        """The Range of those i whose source column exists, for some target columns."""
        begin = self.first + columns * self.hop
        low, high = -(begin // self.unit), (sources - 1 - begin) // self.unit + 1
        low = np.clip(low, 0, self.taps)
        return Range.columns(first=low, end=np.clip(high, low, self.taps))

    def middle(self, sources: int) -> tuple[int, int]:
        """The columns for which all taps exist; the same number twice if there are none."""
        low = max(0, -(self.first // self.hop))
        last = sources - 1 - self.unit * (self.taps - 1)  # the last source column that the first tap may read
        high = min(self.count, (last - self.first) // self.hop + 1)
        return (low, high) if low < high else (0, 0)


def column_phases(window: Window, forward: bool) -> tuple[Columns, ...]:
    """The target columns in phases within which neighbours read neighbouring sources, whatever stride and dilation are.

    Where there would be many phases, they are one, whose neighbours share no sources.
    """
    axis = window.rank - 1
    o, k = window.output_size[axis], window.kernel[axis]
    s, d, p = window.stride[axis], window.dilation[axis], window.pad_low[axis]
    common = math.gcd(s, d)
    if forward:
        step = d // common if k > 1 and d // common <= MOST_PHASES else 1
        unit = d if k > 1 else s
        return tuple(
            Columns(start, step, ceil_div(o - start, step), start * s - p, unit, step * s, k, 0, 1)
            for start in range(min(step, o))
        )
    found = []
    for phase in with_idle(gradient_phases(window, axis), window.input_size[axis], s):
        taps = len(phase.taps)
        apart = d // common if taps > 1 else 1  # from one tap of a phase to the next one
        step = apart if apart <= MOST_PHASES else 1
        first, last = (phase.low, phase.taps[0]) if taps else (0, 0)
        for j in range(min(step, phase.count)):
            count = ceil_div(phase.count - j, step)
            found.append(Columns(phase.start + j * s, s * step, count, first + j, apart, step, taps, last, -(s // common)))
    return tuple(found)


def reach_of(phases: Sequence[Columns]) -> tuple[int, int]:
    """(low, high): the source columns that any tap of any phase names, existing or not."""
    used = [phase for phase in phases if phase.taps and phase.count]
    low = min((phase.first for phase in used), default=0)
    return low, max((p.first + p.hop * (p.count - 1) + p.unit * (p.taps - 1) + 1 for p in used), default=low)


def phase_tables(
    phases: Sequence[Columns], sources: int, cells: tuple[int, int, int], low: int, padded: bool, before: int
) -> tuple[Ints, Ints]:
    """The ColumnPhase of each of a segment's phases, and the Range of taps of each column that is not in the middle.

    padded: source columns that do not exist are zeros in scratch, so that every column is a middle one. cells: bytes of a source
    cell, of a target cell, of a tap's weights. low: the column at the source address. before: ranges of segments before this one.
    """
    source_cell, target_cell, tap_weights = cells
    table, ends = [], []
    for phase in phases:
        begin, end = (0, phase.count) if padded else phase.middle(sources)
        if end - begin < 2:
            begin = end = 0
        table.append({
            "source_start": (phase.first - low) * source_cell, "weight_start": phase.tap * tap_weights,
            "target_start": phase.start * target_cell, "count": phase.count, "middle": begin, "end": end, "ends": before,
            "taps": phase.taps, "tap_step": phase.unit * source_cell, "weight_step": phase.tap_step * tap_weights,
            "reach": phase.reach, "source_step": phase.hop * source_cell, "target_step": phase.step * target_cell,
        })  # fmt: skip
        columns = np.concatenate([np.arange(begin, dtype=np.int64), np.arange(end, phase.count, dtype=np.int64)])
        ends.append(phase.ranges(columns, sources))
        before += len(columns)
    return ColumnPhase.table(table), np.concatenate(ends)


def segments_of(phases: Sequence[Columns], cols: int, count: int) -> list[list[Columns]]:
    """The phases of each of `count` parts of a row of `cols` target columns, empty ones included."""
    each = ceil_div(cols, count)
    return [[phase.between(begin, min(begin + each, cols)) for phase in phases] for begin in range(0, cols, each)]
