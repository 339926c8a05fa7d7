"""Tables of grouped convolutions in channels_last: blocks of target rows, segments of columns, what their cells read in scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.common import is_depthwise
from pullback.cpu.depthwise.records import FEW_COLUMNS, PERMUTES, Offsets, Segment
from pullback.cpu.depthwise.tables import Columns, Ints, column_phases, phase_tables, reach_of, segments_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up, sum_bytes
from pullback.cpu.machine_code.levels import level
from pullback.cpu.pool.tables import cut, row_count, rows
from pullback.problem import Problem


@dataclass(frozen=True)
class Sides:
    """A problem seen from its target: where rows come from and go to. For a filter gradient the target is dy."""

    forward: bool
    size: int  # bytes of an element in memory
    wide: int  # and of a sum
    in_channels: int  # of the source
    out_channels: int  # of the target
    group_in_channels: int
    group_out_channels: int
    rows: int
    source_rows: int
    cols: int
    source_cols: int

    @property
    def source_cell(self) -> int:
        """Bytes of all channels of a cell."""
        return self.in_channels * self.size

    @property
    def target_cell(self) -> int:
        return self.out_channels * self.size

    @property
    def target_pitch(self) -> int:
        return self.cols * self.target_cell

    @property
    def tap_weights(self) -> int:
        """Bytes of the weights of one tap: a vector of output channels for each part."""
        return self.group_in_channels * self.out_channels * self.wide

    @property
    def lanes(self) -> int:
        return machine().vector_bytes // self.wide


def sides_of(problem: Problem) -> Sides:
    forward = problem.op != "conv_grad_input"
    window = problem.window
    ends = (problem.channels_in, window.input_size), (problem.channels_out, window.output_size)
    (in_channels, source_size), (out_channels, size) = ends if forward else ends[::-1]
    return Sides(
        forward=forward,
        size=problem.dtype.itemsize,
        wide=sum_bytes(problem.dtype),
        in_channels=in_channels,
        out_channels=out_channels,
        group_in_channels=in_channels // problem.groups,
        group_out_channels=out_channels // problem.groups,
        rows=row_count(size),
        source_rows=row_count(source_size),
        cols=size[-1],
        source_cols=source_size[-1],
    )


def _segment(sides: Sides, part: list[Columns], begin: int, end: int) -> Mapping[str, int]:
    """The Segment of a part of the target columns, which reads source columns from `begin` to `end`, existing or not."""
    c0, c1 = (min(max(at, 0), sides.source_cols) for at in (begin, end))
    first = min((columns.start for columns in part if columns.count), default=0)
    last = max((columns.start + columns.step * (columns.count - 1) + 1 for columns in part if columns.count), default=0)
    return {
        "zeros_before": c0 - begin if c1 > c0 else end - begin, "cells": c1 - c0, "zeros_after": end - c1 if c1 > c0 else 0,
        "source_start": c0 * sides.source_cell, "source_bytes": (c1 - c0) * sides.source_cell,
        "target_start": first * sides.target_cell, "target_bytes": (last - first) * sides.target_cell,
    }  # fmt: skip


def _columns(sides: Sides, split: list[list[Columns]], begins: list[int], cell: int, padded: bool) -> dict[str, Any]:
    """The fields about columns: their phases in each segment, whose source begins at a column of `begins`. cell: bytes of one."""
    tables: list[Ints] = []
    ends: list[Ints] = []
    before, cell_bytes = 0, (cell, sides.target_cell, sides.tap_weights)
    for part, begin in zip(split, begins, strict=True):
        table, known = phase_tables(part, sides.source_cols, cell_bytes, begin, padded, before)
        tables.append(table)
        ends.append(known)
        before += len(known)
    return {"phases": len(split[0]), "phase_table": np.concatenate(tables), "ends": np.concatenate(ends)}


def in_place_tables(problem: Problem, sides: Sides, threads: int) -> dict[str, Any]:
    """Fields of a CellsCopied record whose source rows are read where they are: columns at their ends have taps of their own."""
    window = problem.window
    lists = rows(window, sides.forward)
    phases = column_phases(window, sides.forward)
    # So that all threads have work; but what is summed over blocks must not depend on how many there are.
    wanted = tuning.CELLS_PIECES if problem.op == "conv_grad_filter" else tuning.BLOCKS_EACH * threads
    each = max(1, ceil_div(sides.rows * problem.batch, wanted))
    first_rows = np.append(np.arange(0, sides.rows, each, dtype=np.int64), sides.rows)
    blocks = len(first_rows) - 1
    many = ceil_div(wanted, max(1, blocks * problem.batch))
    split = segments_of(phases, sides.cols, max(1, min(many, sides.cols // tuning.FEWEST_SEGMENT_COLUMNS)))
    pitch, no_rows = sides.source_cols * sides.source_cell, np.zeros(1, np.int64)
    return {
        "source": None, "source_rows": sides.source_rows, "source_pitch": pitch,
        "rows": sides.rows, "target_pitch": sides.target_pitch, "out_channels": sides.out_channels,
        "blocks": blocks, "block_rows": first_rows, "halo_ptr": no_rows, "halo_rows": no_rows,
        "segments": len(split), "segment_table": Segment.table([_segment(sides, part, 0, 0) for part in split]),
        "in_place": 1, "cell": sides.source_cell, "area_pitch": pitch, "row_ptr": lists.ptr,
        "row_offsets": Offsets.columns(source=lists.source * pitch, weight=lists.tap * (window.kernel[-1] * sides.tap_weights)),
        "parts": 1, "part_offsets": Offsets.columns(source=0, weight=0),
        **_columns(sides, split, [0] * len(split), sides.source_cell, padded=False),
    }  # fmt: skip


def reads_in_place(problem: Problem, sides: Sides) -> bool:
    """Whether of the columns that have neighbours enough for a tile most meet all taps: then rows need no halo."""
    phases = column_phases(problem.window, sides.forward)
    middles = [end - begin for begin, end in (phase.middle(sides.source_cols) for phase in phases)]
    tiled, with_halo = (
        sum(count for count in counts if count >= FEW_COLUMNS) for counts in (middles, [phase.count for phase in phases])
    )
    return sides.size == sides.wide and tiled >= tuning.IN_PLACE_COLUMNS * with_halo


def _tables(
    problem: Problem, sides: Sides, threads: int, cell: int, parts: Ints, copy_cell: int, padded: bool
) -> tuple[dict[str, Any], int]:
    """Fields of all kernels whose source rows lie in scratch in cells of `cell` bytes, and the bytes of these.

    parts: Offsets of the parts of a cell. copy_cell: bytes of scratch that a source cell takes beside.
    """
    window = problem.window
    lists = rows(window, sides.forward)
    stride = max(1, sides.source_rows // max(1, sides.rows))  # source rows that a target row more takes
    halo = int(np.diff(lists.ptr).max(initial=1))
    phases = column_phases(window, sides.forward)
    low, high = reach_of(phases)
    wanted = (high - low) * cell * 2 * halo // tuning.CELLS_AREA_BYTES + 1  # so that a block has more than its halo
    split = segments_of(phases, sides.cols, min(wanted, max(1, sides.cols // tuning.FEWEST_SEGMENT_COLUMNS)))
    reaches = [reach_of(part) for part in split]
    most = max(1, *(end - begin for begin, end in reaches))
    area_pitch, copy_pitch = most * cell, round_up(most * copy_cell, LINE)
    fitting = max(1, (tuning.CELLS_AREA_BYTES // (area_pitch + copy_pitch) - halo) // stride)
    # So that all threads have work; but what is summed over blocks must not depend on how many there are.
    if problem.op == "conv_grad_filter":
        wanted_blocks, fewest = tuning.CELLS_PIECES, tuning.HALOS_PER_BLOCK * halo
    else:
        wanted_blocks, fewest = tuning.BLOCKS_EACH * threads, halo
    shared = max(ceil_div(sides.rows * problem.batch, wanted_blocks), fewest)
    blocks = cut(lists, min(sides.rows, fitting, shared))
    given = {
        "source": None, "source_rows": sides.source_rows, "source_pitch": sides.source_cols * sides.source_cell,
        "rows": sides.rows, "target_pitch": sides.target_pitch, "out_channels": sides.out_channels,
        "blocks": blocks.count, "block_rows": blocks.row, "halo_ptr": blocks.need_ptr, "halo_rows": blocks.need,
        "segments": len(split),
        "segment_table": Segment.table([_segment(sides, part, *reach) for part, reach in zip(split, reaches, strict=True)]),
        "in_place": 0, "cell": cell, "area_pitch": area_pitch, "copy_start": blocks.most_needed * area_pitch,
        "copy_pitch": copy_pitch, "row_ptr": lists.ptr,
        "row_offsets": Offsets.columns(
            source=blocks.slot * area_pitch, weight=lists.tap * (window.kernel[-1] * sides.tap_weights)
        ),
        "parts": len(parts), "part_offsets": parts, **_columns(sides, split, [begin for begin, _ in reaches], cell, padded),
    }  # fmt: skip
    return given, blocks.most_needed * (area_pitch + copy_pitch)


def _copied_tables(problem: Problem, sides: Sides, threads: int, padded: bool) -> tuple[dict[str, Any], int]:
    """Fields of a CellsCopied record."""
    vector = machine().vector_bytes
    cell = round_up(sides.out_channels * sides.wide, vector)
    if cell % tuning.CLASH_BYTES == 0:
        cell += vector
    return _tables(problem, sides, threads, cell, Offsets.columns(source=0, weight=0), 0, padded)


def permute_orders(lanes: int, parts: int, outs: int, wide: int) -> Any:
    """For each of `parts` channels of a group on one side, which lane each lane reads that holds `outs` channels on the other."""
    lane, numbers = np.arange(lanes, dtype=np.int64), np.arange(parts, dtype=np.int64)
    orders = np.minimum((lane // outs * parts)[None, :] + numbers[:, None], lanes - 1)
    return orders.astype(np.int64 if wide == 8 else np.int32)


def _orders(sides: Sides) -> Any:
    """For each part of a cell, which lane of a source vector each output channel reads."""
    return permute_orders(sides.lanes, sides.group_in_channels, sides.group_out_channels, sides.wide)


def _step(sides: Sides) -> int:
    """Output channels of as many whole groups as fit into a vector with their targets and their sources; 0 if not even one does."""
    return sides.group_out_channels * (sides.lanes // max(sides.group_in_channels, sides.group_out_channels))


def can_permute_groups(sides: Sides) -> bool:
    """Whether a vector can be spread over groups in registers."""
    return level().machine == "x86_64" and (sides.lanes, sides.wide) in PERMUTES


def can_permute(problem: Problem, sides: Sides) -> bool:
    """Whether vectors of the source can be spread so where they are."""
    return can_permute_groups(sides) and _step(sides) > 0 and reads_in_place(problem, sides)


def permuted_tables(problem: Problem, sides: Sides, threads: int) -> dict[str, Any]:
    """Fields of a CellsPermuted record."""
    numbers = np.arange(sides.group_in_channels, dtype=np.int64)
    part_offsets = Offsets.columns(source=0 * numbers, weight=numbers * (sides.out_channels * sides.wide))
    return in_place_tables(problem, sides, threads) | {
        "parts": len(numbers), "part_offsets": part_offsets, "step": _step(sides), "orders": _orders(sides),
        "group_in_channels": sides.group_in_channels, "group_out_channels": sides.group_out_channels,
    }  # fmt: skip


def _spread_tables(problem: Problem, sides: Sides, threads: int, padded: bool) -> tuple[dict[str, Any], int]:
    """Fields of a CellsSpread record."""
    lanes, vector = sides.lanes, machine().vector_bytes
    parts, outs = sides.group_in_channels, sides.group_out_channels
    step = _step(sides)
    # A spread vector costs a shuffle, or a scalar copy for each lane; it is then used once a tap.
    taps = problem.window.tap_count
    permuted = step > 0 and (taps + 2) * lanes < (taps + 2 * lanes) * step
    numbers = np.arange(parts, dtype=np.int64)
    part_offsets = Offsets.columns(source=numbers * vector, weight=numbers * (sides.out_channels * sides.wide))
    given, scratch = _tables(problem, sides, threads, parts * vector, part_offsets, sides.source_cell, padded)
    given |= {
        "step": step if permuted else lanes, "in_channels": sides.in_channels, "group_in_channels": parts,
        "group_out_channels": outs, "permuted": int(permuted),
        "orders": _orders(sides),
    }  # fmt: skip
    return given, scratch


def cells_tables(problem: Problem, sides: Sides, padded: bool, threads: int = 2) -> tuple[dict[str, Any], int]:
    """Fields of a CellsCopied or CellsSpread record, and bytes of scratch.

    padded: taps beside the source may be multiplied by zero. threads: how many to feed, where nothing is summed over blocks.
    """
    return (_copied_tables if is_depthwise(problem) else _spread_tables)(problem, sides, threads, padded)
