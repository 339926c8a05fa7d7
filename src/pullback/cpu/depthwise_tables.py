"""The tables of grouped convolutions: which source cells and weights a target row and column sums over, as byte offsets.

Forward, targets are outputs and sources inputs; for the input gradient it is the other way round. A pair is (source, weight).
"""

from __future__ import annotations

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
    """Target columns start, start + step, ... (`count` of them): number j reads source columns j * reach + shifts[i] by taps[i].

    Shifts ascend, so that the taps that exist at a column are a range.
    """

    start: int
    step: int
    count: int
    reach: int
    taps: Ints
    shifts: Ints

    def ranges(self, sources: int) -> Ints:
        """First and last tap (exclusive) of each column, (count, 2)."""
        first = np.arange(self.count, dtype=np.int64) * self.reach
        return np.stack([np.searchsorted(self.shifts, -first), np.searchsorted(self.shifts, sources - first)], axis=-1)

    def middle(self, sources: int) -> tuple[int, int]:
        """The columns for which all taps exist; the same number twice if there are none."""
        ranges = self.ranges(sources)
        whole = np.flatnonzero((ranges[:, 0] == 0) & (ranges[:, 1] == len(self.taps)))
        return (int(whole[0]), int(whole[-1]) + 1) if len(whole) else (0, 0)


def column_phases(window: Window, forward: bool) -> tuple[Columns, ...]:
    """The target columns: one phase forward, one per residue of the stride for the gradient."""
    axis = window.rank - 1
    if forward:
        taps = np.arange(window.kernel[axis], dtype=np.int64)
        shifts = taps * window.dilation[axis] - window.pad_low[axis]
        return (Columns(0, 1, window.output_size[axis], window.stride[axis], taps, shifts),)
    found = []
    for phase in window.phases(axis):
        order = np.argsort(phase.shifts)
        taps, shifts = (np.array(values, np.int64)[order] for values in (phase.taps, phase.shifts))
        found.append(Columns(phase.start, window.stride[axis], phase.count, 1, taps, shifts))
    return tuple(found)


def reach_of(phases: tuple[Columns, ...], sources: int) -> tuple[int, int]:
    """(low, places): the source columns that any tap of any phase names, existing or not, and all that exist."""
    low, high = 0, sources
    for phase in phases:
        if len(phase.shifts) and phase.count:
            low = min(low, int(phase.shifts[0]))
            high = max(high, (phase.count - 1) * phase.reach + int(phase.shifts[-1]) + 1)
    return low, high - low


@dataclass(frozen=True)
class PhaseTables:
    """All phases as a kernel reads them; see kernels/depthwise.py."""

    table: Ints
    ends: Ints
    pairs: Ints


def phase_tables(
    phases: tuple[Columns, ...], sources: int, target_bytes: int, source_bytes: int, part_bytes: Ints, tap_bytes: int, padded: bool
) -> PhaseTables:
    """padded: source columns that do not exist are zeros in scratch, so that every column is a middle one.

    part_bytes: (source, weight) offsets of the parts of a cell; tap_bytes: from a tap's weights to the next one's.
    """
    table, ends, offsets = [], [], []
    taps_before = columns_before = 0
    parts = len(part_bytes)
    for phase in phases:
        middle = (0, phase.count) if padded else phase.middle(sources)
        entries = taps_before + len(phase.taps) * parts
        table.append([phase.start * target_bytes, phase.count, *middle, taps_before, entries, columns_before])
        ends.append(phase.ranges(sources) * parts + taps_before)
        cells = np.stack([phase.shifts * source_bytes, phase.taps * tap_bytes], axis=-1)
        offsets.append((cells[:, None, :] + part_bytes[None]).reshape(-1, 2))
        taps_before, columns_before = entries, columns_before + phase.count
    return PhaseTables(
        np.array(table, np.int64), np.concatenate(ends).astype(np.int64), np.concatenate(offsets).astype(np.int64)
    )


def row_pairs(lists: Lists, source_bytes: int, tap_bytes: int, slots: Ints | None = None) -> Ints:
    """Pairs of the row lists; `slots` are places in scratch instead of source rows."""
    return pairs((lists.source if slots is None else slots) * source_bytes, lists.tap * tap_bytes)
