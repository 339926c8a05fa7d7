"""Plans of grouped convolutions in channels_last: forward and input gradient by one gather, filter gradient by sums of products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cpu.conv.common import moved_bytes
from pullback.cpu.depthwise.records import CellsDirect, CellsFilterAdd, CellsFilterDirect, CellsFilterGrouped, CellsGrouped
from pullback.cpu.depthwise.tables import Ints, column_phases, pairs, phase_tables, reach_of, row_pairs, segments_of
from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.memory import LINE, SMALLEST
from pullback.cpu.engine.pieces import streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.pool.tables import cut, row_count, rows
from pullback.problem import Problem
from pullback.settings import cores

AREA_BYTES = 512 << 10  # source rows of a block in scratch
CLASH = 1 << 10  # cells this far apart would share few sets of the first-level cache
SUM_BYTES = 4 << 20  # of all pieces of a filter gradient together
MOST_PIECES, PLANE_PIECES = 32, 64  # of a filter gradient: over cells, over planes
FILTER = "depthwise.cells_filter"


@dataclass(frozen=True)
class Sides:
    """A problem seen from its target: where rows come from and go to. For a filter gradient the target is dy."""

    forward: bool
    size: int
    wide: int
    targets_each: int  # channels of a group
    sources_each: int
    channels: int
    source_channels: int
    rows: int
    source_rows: int
    cols: int
    source_cols: int

    @property
    def target_row(self) -> int:
        return self.cols * self.channels * self.size

    @property
    def source_row(self) -> int:
        return self.source_cols * self.source_channels * self.size

    @property
    def tap_bytes(self) -> int:
        """Weights of one tap: a vector of target channels for each part."""
        return self.sources_each * self.channels * self.wide

    @property
    def is_direct(self) -> bool:
        return self.sources_each == self.targets_each == 1


def sides_of(problem: Problem) -> Sides:
    forward = problem.op != "conv_grad_input"
    window = problem.window
    ends = (problem.channels_in, window.input_size), (problem.channels_out, window.output_size)
    (source_channels, source_size), (channels, size) = ends if forward else ends[::-1]
    return Sides(
        forward=forward,
        size=problem.dtype.itemsize,
        wide=8 if problem.dtype.name == "float64" else 4,
        targets_each=channels // problem.groups,
        sources_each=source_channels // problem.groups,
        channels=channels,
        source_channels=source_channels,
        rows=row_count(size),
        source_rows=row_count(source_size),
        cols=size[-1],
        source_cols=source_size[-1],
    )


def _lanes(sides: Sides) -> int:
    return machine().vector_bytes // sides.wide


def _tables(problem: Problem, sides: Sides, cell: int, parts: Ints, more_cell: int, padded: bool) -> tuple[dict[str, Any], int]:
    """Arguments of all kernels whose source rows lie in scratch in cells of `cell` bytes, and the bytes of these.

    parts: (source, weight) offsets of the parts of a cell. more_cell: bytes of scratch that a source cell takes beside.
    """
    window = problem.window
    lists = rows(window, sides.forward)
    stride = max(1, sides.source_rows // max(1, sides.rows))  # source rows that a target row more takes
    halo = int(np.diff(lists.ptr).max(initial=1))
    phases = column_phases(window, sides.forward)
    low, high = reach_of(phases)
    wanted = (high - low) * cell * 2 * halo // AREA_BYTES + 1  # so that a block has more than its halo
    split = segments_of(phases, sides.cols, min(wanted, max(1, sides.cols // 16)))
    reaches = [reach_of(part) for part in split]
    most = max(1, *(end - begin for begin, end in reaches))
    area_row, more_row = most * cell, -(-most * more_cell // LINE) * LINE
    fitting = max(1, (AREA_BYTES // (area_row + more_row) - halo) // stride)
    # So that all threads have work; but what is summed over blocks must not depend on how many cores there are.
    summed = problem.op == "conv_grad_filter"
    wanted_blocks, fewest = (MOST_PIECES, 3 * halo) if summed else (4 * cores(), halo)
    shared = max(-(-sides.rows * problem.batch // wanted_blocks), fewest)
    blocks = cut(lists, min(sides.rows, fitting, shared))
    target_cell = sides.channels * sides.size
    tables: list[Ints] = []
    ends: list[Ints] = []
    segments: list[list[int]] = []
    before = 0
    source_cell = sides.source_channels * sides.size
    for part, (begin, end) in zip(split, reaches, strict=True):
        table, known = phase_tables(part, sides.source_cols, target_cell, cell, begin, sides.tap_bytes, padded, before)
        tables.append(table)
        ends.append(known)
        before += len(known)
        c0, c1 = (min(max(at, 0), sides.source_cols) for at in (begin, end))
        first = min((columns.start for columns in part if columns.count), default=0)
        last = max((columns.start + columns.step * (columns.count - 1) + 1 for columns in part if columns.count), default=0)
        segments.append([
            c0 - begin if c1 > c0 else end - begin, c1 - c0, c0 * source_cell, (c1 - c0) * source_cell,
            first * target_cell, (last - first) * target_cell, end - c1 if c1 > c0 else 0,
        ])  # fmt: skip
    given = {
        "blocks": blocks.count, "block_rows": blocks.row, "need_ptr": blocks.need_ptr, "need_row": blocks.need,
        "rows": sides.rows, "source_rows": sides.source_rows, "source_row": sides.source_row, "target_row": sides.target_row,
        "channels": sides.channels, "cell": cell, "segments": len(split), "segment_table": np.array(segments, np.int64),
        "area_row": area_row, "row_ptr": lists.ptr,
        "row_pairs": row_pairs(lists, area_row, window.kernel[-1] * sides.tap_bytes, blocks.slot),
        "phases": len(phases), "phase_table": np.concatenate(tables), "ends": np.concatenate(ends), "part_pairs": parts,
        "copy_start": blocks.most_needed * area_row, "copy_row": more_row,
    }  # fmt: skip
    return given, blocks.most_needed * (area_row + more_row)


def _direct_tables(problem: Problem, sides: Sides, padded: bool) -> tuple[dict[str, Any], int]:
    vector = machine().vector_bytes
    cell = -(-sides.channels * sides.wide // vector) * vector
    if cell % CLASH == 0:
        cell += vector
    return _tables(problem, sides, cell, np.zeros((1, 2), np.int64), 0, padded)


def _spread_tables(problem: Problem, sides: Sides, padded: bool) -> tuple[dict[str, Any], int]:
    lanes, vector = _lanes(sides), machine().vector_bytes
    parts, targets = sides.sources_each, sides.targets_each
    step = targets * (lanes // max(parts, targets))
    # A spread vector costs a shuffle, or a scalar copy for each lane; it is then used once a tap.
    taps = problem.window.tap_count
    permuted = step > 0 and (taps + 2) * lanes < (taps + 2 * lanes) * step
    channel, numbers = np.arange(lanes, dtype=np.int64), np.arange(parts, dtype=np.int64)
    orders = np.minimum((channel // targets * parts)[None, :] + numbers[:, None], lanes - 1)
    part_pairs = pairs(numbers * vector, numbers * (sides.channels * sides.wide))
    given, scratch = _tables(problem, sides, parts * vector, part_pairs, sides.source_channels * sides.size, padded)
    given |= {
        "step": step if permuted else lanes, "source_channels": sides.source_channels, "sources_each": parts,
        "targets_each": targets, "parts": parts, "permuted": int(permuted),
        "orders": orders.astype(np.int64 if sides.wide == 8 else np.int32),
    }  # fmt: skip
    return given, scratch


@planned
def gather_plan(problem: Problem, padded: bool) -> Plan:
    """conv and conv_grad_input. padded: taps outside the source may be multiplied by zero, as all weights are finite."""
    sides = sides_of(problem)
    moved = moved_bytes(problem)
    name = "direct" if sides.is_direct else "grouped"
    past_cache = streams(moved)
    tables, scratch = (_direct_tables if sides.is_direct else _spread_tables)(problem, sides, padded)
    step = tables.get("step", sides.channels)
    lines = all(count * sides.size % LINE == 0 for count in (sides.channels, step, _lanes(sides)))
    stream = past_cache and lines and problem.batch * sides.rows * sides.target_row >= SMALLEST  # smaller ones are not aligned
    stage = past_cache and not stream and sides.is_direct and tables["segments"] == 1
    given = {"source": None, "weights": None, "target": None, "stream": int(stream), "stage": scratch if stage else 0}
    scratch += sides.target_row if stage else 0
    compiled = Variant("depthwise.cells", name, problem.dtype.name)
    return make_plan(
        compiled,
        CellsDirect if sides.is_direct else CellsGrouped,
        problem.batch * tables["blocks"] * tables["segments"],
        scratch,
        moved,
        given | tables,
    )


@dataclass(frozen=True)
class FilterPlans:
    """The two jobs of a filter gradient and the bytes of the sums between them."""

    products: Plan
    add: Plan
    sum_bytes: int


def filter_pieces(groups: int, units: int) -> tuple[int, int, int, int]:
    """In channels_first: groups of a part, parts, units (blocks of images) of a chunk, chunks; a piece is a chunk of a part."""
    group_block = -(-groups // PLANE_PIECES)
    parts = -(-groups // group_block)
    group = -(-units // min(units, max(1, PLANE_PIECES // parts)))
    return group_block, parts, group, -(-units // group)


def add_plan(problem: Problem, pieces: int, distance: int) -> Plan:
    count = int(np.prod(problem.filter_shape, dtype=np.int64))
    block = 1024
    given = {"sums": None, "result": None, "pieces": pieces, "distance": distance, "block": block, "count": count}
    return make_plan(
        Variant(FILTER, "add", problem.dtype.name), CellsFilterAdd, -(-count // block), 0, pieces * distance, given
    )


@planned
def filter_plans(problem: Problem, padded: bool = True) -> FilterPlans:
    """padded: taps outside the source may be multiplied by zero; a result that is not finite may be wrong then."""
    sides = sides_of(problem)
    moved = moved_bytes(problem)
    used = problem.window.tap_count * sides.tap_bytes
    sum_bytes = used + problem.window.kernel[-1] * sides.tap_bytes  # a spare row of taps behind them
    most = max(1, min(MOST_PIECES, SUM_BYTES // sum_bytes, moved // max(64 << 10, 2 * sum_bytes)))
    entries = -(-(problem.window.tap_count * sides.sources_each + 1) * 16 // 64) * 64
    given: dict[str, Any] = {"source": None, "dy": None, "sums": None, "sums_bytes": sum_bytes, "spare": used}
    tables, area = (_direct_tables if sides.is_direct else _spread_tables)(problem, sides, padded)
    other_start = -(-(entries + area) // LINE) * LINE
    units = problem.batch * tables["blocks"] * tables["segments"]
    group = -(-units // most)
    pieces = -(-units // group)
    given |= tables | {"group": group, "units": units, "area_start": entries, "other_start": other_start}
    compiled = Variant(FILTER, "direct" if sides.is_direct else "grouped", problem.dtype.name)
    # Groups of one channel copy the part of a row of dy that belongs to a segment; the others read it where it is.
    other_bytes = int(tables["segment_table"][:, 5].max()) if sides.is_direct else 0
    products = make_plan(
        compiled, CellsFilterDirect if sides.is_direct else CellsFilterGrouped, pieces, other_start + other_bytes, moved, given
    )
    return FilterPlans(products, add_plan(problem, pieces, sum_bytes), pieces * sum_bytes)
