"""The tables that window kernels read: the numbers of each axis, who reads each input cell, where taps lie in unpacked rows.

A problem of any rank is rows by columns: the last spatial axis is the columns, the axes before it together are the rows. Which
cells an output reads follows from six numbers an axis; who reads a cell is tabled, since it takes a division: three words a cell.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.cpu.engine.sizes import LINE, round_up
from pullback.cpu.pool.records import Axis, Line, LineKind, LineRow, LineTable, Reader, ReaderSteps
from pullback.window import AdaptiveWindow, Readers, Window

Ints = npt.NDArray[np.int64]


def axis_table(window: Window) -> Ints:
    """An Axis for each axis of a three-axis window."""
    return Axis.columns(
        outputs=window.output_size, cells=window.input_size, taps=window.kernel, stride=window.stride, dilation=window.dilation,
        first=[-pad for pad in window.pad_low],
    )  # fmt: skip


def reader_table(readers: Readers) -> Ints:
    """ReaderSteps, and a Reader for each cell."""
    steps = ReaderSteps.pack({"output": readers.step, "tap": readers.tap_step})
    return np.concatenate([steps, Reader.columns(first=readers.first, tap=readers.first_tap, count=readers.count).ravel()])


def sources(window: Window | AdaptiveWindow, axis: int, forward: bool) -> Readers:
    """What each target of an axis takes, at even steps: an output its cells (`forward`), a cell the outputs that read it."""
    if not forward:
        return window.readers(axis)
    if isinstance(window, AdaptiveWindow):
        starts = window.starts(axis)
        return Readers(starts, 1, np.zeros_like(starts), 1, window.sizes(axis))
    taps, counts = window.tap_ranges(axis)
    return Readers(window.starts(axis) + taps * window.dilation[axis], window.dilation[axis], taps, 1, counts)


def line_table(window: Window | AdaptiveWindow, forward: bool) -> tuple[Ints, int]:
    """The LineTable of the target rows of a three-axis window with what follows it; how many lines a row has at the most."""
    planes, lines = sources(window, 0, forward), sources(window, 1, forward)
    _, kernel_rows, kernel_cols = window.kernel
    size = (window.input_size if forward else window.output_size)[1]
    (plane_kinds, plane_kind), (row_kinds, row_kind) = (
        np.unique(np.stack([axis.count, axis.first_tap], axis=1), axis=0, return_inverse=True) for axis in (planes, lines)
    )
    head = LineTable.pack({
        "plane_step": planes.step * size, "row_step": lines.step, "plane_tap": planes.tap_step * kernel_rows * kernel_cols,
        "row_tap": lines.tap_step * kernel_cols, "kinds": len(plane_kinds) * len(row_kinds),
    })  # fmt: skip
    each = np.broadcast_arrays(
        plane_kinds[:, :1], row_kinds[:, 0], (plane_kinds[:, 1:] * kernel_rows + row_kinds[:, 1]) * kernel_cols
    )
    kinds = LineKind.columns(planes=each[0], rows=each[1], tap=each[2])
    rows = LineRow.columns(
        line=planes.first[:, None] * size + lines.first,
        kind=plane_kind.reshape(-1, 1) * len(row_kinds) + row_kind.ravel(),
    )
    return np.concatenate([head, kinds.ravel(), rows.ravel()]), int(planes.count.max() * lines.count.max())


def lines_in_scratch(window: Window | AdaptiveWindow, forward: bool, scratch: int) -> tuple[dict[str, Any], int]:
    """Arguments of kernels that go by lines, which they write behind what is used of scratch, and its new end."""
    table, most = line_table(window, forward)
    start = round_up(scratch, LINE)
    return {"line_table": table, "lines_start": start}, start + Line.BYTES * most


def same_divisor(divisor: Ints, readers: Readers) -> Ints:
    """The divisor that all outputs which read a cell share; 0 where they may differ, 1 where there are none."""
    runs = np.concatenate([[0], np.cumsum(np.diff(divisor) != 0)])  # equal neighbours are one run
    last = readers.first + np.maximum(readers.count - 1, 0) * readers.step
    return np.where(readers.count == 0, 1, np.where(runs[readers.first] == runs[last], divisor[readers.first], 0))


@dataclass(frozen=True)
class Lists:
    """Entries ptr[i] .. ptr[i+1] of target i: source number and tap number of each."""

    ptr: Ints
    source: Ints
    tap: Ints

    @property
    def targets(self) -> int:
        return len(self.ptr) - 1


def _axis_lists(window: Window, axis: int, forward: bool) -> Lists:
    """The entries of one axis."""
    found = sources(window, axis, forward)
    ptr = np.concatenate([[0], np.cumsum(found.count)]).astype(np.int64)
    number = np.arange(ptr[-1], dtype=np.int64) - np.repeat(ptr[:-1], found.count)  # of an entry within its target
    return Lists(
        ptr,
        np.repeat(found.first, found.count) + number * found.step,
        np.repeat(found.first_tap, found.count) + number * found.tap_step,
    )


def rows(window: Window, forward: bool) -> Lists:
    """The entries of all axes before the last, numbered row-major; taps count whole rows of the window."""
    found = Lists(np.array([0, 1], np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    for axis in range(window.rank - 1):
        size = window.input_size[axis] if forward else window.output_size[axis]
        found = _product(found, _axis_lists(window, axis, forward), size, window.kernel[axis])
    return found


def _product(outer: Lists, inner: Lists, size: int, kernel: int) -> Lists:
    """The entries of two axes together: for each pair of targets, all pairs of their entries."""
    counts = np.diff(outer.ptr)[:, None] * np.diff(inner.ptr)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    number = np.arange(ptr[-1], dtype=np.int64) - np.repeat(ptr[:-1], counts.ravel())
    target = np.repeat(np.arange(counts.size, dtype=np.int64), counts.ravel())
    a, b = np.divmod(target, max(1, inner.targets))
    a_entry, b_entry = np.divmod(number, np.maximum(np.diff(inner.ptr), 1)[b])
    a_entry, b_entry = a_entry + outer.ptr[a], b_entry + inner.ptr[b]
    return Lists(
        ptr, outer.source[a_entry] * size + inner.source[b_entry], outer.tap[a_entry] * kernel + inner.tap[b_entry]
    )  # fmt: skip


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


def needed_rows(window: Window, rows_each: int) -> tuple[Ints, Ints, Ints]:
    """(first row of each block and the end, ptr, need): the output rows need[ptr[b] : ptr[b+1]] whose windows may reach block b.

    Blocks are `rows_each` input rows of a three-axis window. Along each axis the needed outputs are taken as one run.
    """
    depths, heights = window.input_size[:2]
    row = np.append(np.arange(0, depths * heights, rows_each, dtype=np.int64), depths * heights)
    needs = []
    for first, last in itertools.pairwise(row.tolist()):
        a, b = divmod(first, heights), divmod(last - 1, heights)
        span = (a[1], b[1]) if a[0] == b[0] else (0, heights - 1)
        planes, lines = _outputs_reaching(window, 0, a[0], b[0]), _outputs_reaching(window, 1, *span)
        needs.append((np.arange(planes.start, planes.stop)[:, None] * window.output_size[1] + np.array(lines)).ravel())
    ptr = np.concatenate([[0], np.cumsum([len(need) for need in needs])]).astype(np.int64)
    return row, ptr, np.concatenate([np.empty(0, np.int64), *needs]).astype(np.int64)


def _outputs_reaching(window: Window, axis: int, first: int, last: int) -> range:
    """The outputs whose windows span some of the cells first .. last."""
    s, p, reach = window.stride[axis], window.pad_low[axis], (window.kernel[axis] - 1) * window.dilation[axis]
    return range(max(0, -((reach - p - first) // s)), min(window.output_size[axis], (last + p) // s + 1))


def tap_bases(window: Window | AdaptiveWindow, multipliers: tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
    """Row, column and tap parts of a winner's flat index: their sum counts cells by `multipliers` (one per axis)."""
    parts = [window.starts(axis) * m for axis, m in enumerate(multipliers)]
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
    """The entries of the depth axis of a three-axis window."""
    lists = _axis_lists(window, 0, forward)
    return {"d_ptr": lists.ptr, "d_src": lists.source, "d_tap": lists.tap}


def places_reached(window: Window, axis: int, outputs: int) -> int:
    """Places of an axis unpacked by stride that the windows of so many neighbouring outputs reach over, inside the input or not."""
    reach = (window.kernel[axis] - 1) * window.dilation[axis] - window.pad_low[axis]
    return outputs + reach // window.stride[axis] - -window.pad_low[axis] // window.stride[axis]


@dataclass(frozen=True)
class TapPlaces:
    """Where the taps of an axis read an axis unpacked by stride: tap t of output y at place y + shift[t] of plane[t]."""

    plane: Ints
    shift: Ints

    @property
    def low(self) -> int:
        return int(self.shift.min())


def tap_places(window: Window, axis: int) -> TapPlaces:
    first = np.arange(window.kernel[axis], dtype=np.int64) * window.dilation[axis] - window.pad_low[axis]
    shift, plane = np.divmod(first, window.stride[axis])
    return TapPlaces(plane, shift)


def border_tables(window: Window, channels: int) -> dict[str, Any]:
    """The outputs of an image whose windows stick out of it, and which of their taps do: codes that only a false winner has.

    Windows that have the same taps inside, per axis, are of one kind.
    """
    numbers, kinds, outside = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.bool_)
    for axis in range(3):
        ranges, kind = np.unique(np.stack(window.tap_ranges(axis), axis=1), axis=0, return_inverse=True)
        taps, outputs = np.arange(window.kernel[axis]), np.arange(window.output_size[axis])
        out = (taps < ranges[:, :1]) | (taps >= ranges.sum(axis=1)[:, None])
        outside = (outside[:, None, :, None] | out[:, None, :]).reshape(len(outside) * len(out), -1)
        kinds = (kinds[:, None] * len(ranges) + kind.ravel()).ravel()
        numbers = (numbers[:, None] * len(outputs) + outputs).ravel()
    sticks_out = np.take(outside.any(axis=1), kinds)
    faults = np.zeros((len(outside), 256), np.uint8)
    faults[:, : window.tap_count] = outside
    places = (numbers[sticks_out][:, None] * channels + np.arange(channels)).ravel()
    border = np.stack([places, np.repeat(kinds[sticks_out], channels) * 256], axis=1).astype(np.int32)
    border = np.concatenate([border, border[:1].repeat(-len(border) % 4, axis=0)])
    return {"border": border, "border_count": len(border), "false_codes": faults}
