"""Plans of grouped convolutions in channels_last: forward and input gradient by one gather, filter gradient by sums of products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pullback.cpu.compiler import Variant, code
from pullback.cpu.depthwise_tables import column_phases, fresh_rows, pairs, phase_tables, reach_of, row_pairs
from pullback.cpu.machine import machine
from pullback.cpu.memory import LINE, SMALLEST
from pullback.cpu.plan import Plan, make_plan
from pullback.cpu.pool_common import row_block, streams
from pullback.cpu.pool_tables import cut, row_count, rows
from pullback.problem import Problem

AREA_BYTES = 384 << 10  # spread rows of a block
SUM_BYTES = 4 << 20  # of all pieces of a filter gradient together
MOST_PIECES = 32  # of a filter gradient
FILTER = "depthwise_filter"


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


def moved_bytes(problem: Problem) -> int:
    cells = (problem.input_shape, problem.output_shape)
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in cells) * problem.dtype.itemsize


def _lanes(sides: Sides) -> int:
    return machine().vector_bytes // sides.wide


def _direct_tables(problem: Problem, sides: Sides) -> dict[str, Any]:
    lists = rows(problem.window, sides.forward)
    fresh_ptr, fresh = fresh_rows(lists, sides.source_rows)
    phases = column_phases(problem.window, sides.forward)
    cell, target_cell = sides.source_channels * sides.size, sides.channels * sides.size
    table, ends = phase_tables(phases, sides.source_cols, target_cell, cell, 0, sides.tap_bytes, False)
    return {
        "rows": sides.rows, "source_image": sides.source_rows * sides.source_row, "channels": sides.channels,
        "row_ptr": lists.ptr, "row_pairs": row_pairs(lists, sides.source_row, problem.window.kernel[-1] * sides.tap_bytes),
        "ends": ends, "phases": len(phases), "phase_table": table, "part_pairs": np.zeros((1, 2), np.int64),
        "fresh_ptr": fresh_ptr, "fresh": np.append(fresh * sides.source_row, 0),
    }  # fmt: skip


def _spread_tables(problem: Problem, sides: Sides, padded: bool) -> tuple[dict[str, Any], int, int]:
    """Arguments of the kernels that spread rows, the number of row blocks of an image, and the bytes of their scratch."""
    window, lanes = problem.window, _lanes(sides)
    parts, targets = sides.sources_each, sides.targets_each
    step = targets * (lanes // max(parts, targets))
    # A spread vector costs a shuffle, or a scalar copy for each lane; it is then used once a tap.
    permuted = step > 0 and (window.tap_count + 2) * lanes < (window.tap_count + 2 * lanes) * step
    if not permuted:
        step = lanes
    channel = np.arange(lanes, dtype=np.int64)
    orders = np.minimum((channel // targets * parts)[None, :] + np.arange(parts)[:, None], lanes - 1)
    phases = column_phases(window, sides.forward)
    low, places = reach_of(phases, sides.source_cols)
    vector = lanes * sides.wide
    cell = parts * vector
    area_row = places * cell
    lists = rows(window, sides.forward)
    blocks = cut(lists, sides.rows)
    if blocks.most_needed * area_row > AREA_BYTES:
        reach = int(np.diff(lists.ptr).max(initial=1))
        per_row = max(1, sides.source_rows // max(1, sides.rows))
        blocks = cut(lists, max(1, (AREA_BYTES // area_row - reach) // per_row))
    numbers = np.arange(parts, dtype=np.int64)
    target_cell = sides.channels * sides.size
    table, ends = phase_tables(phases, sides.source_cols, target_cell, cell, low, sides.tap_bytes, padded)
    given = {
        "blocks": blocks.count, "block_rows": blocks.row, "need_ptr": blocks.need_ptr, "need_row": blocks.need,
        "rows": sides.rows, "source_rows": sides.source_rows, "source_row": sides.source_row, "target_row": sides.target_row,
        "channels": sides.channels, "step": step, "source_channels": sides.source_channels, "source_cols": sides.source_cols,
        "sources_each": parts, "targets_each": targets, "parts": parts, "permuted": int(permuted),
        "orders": orders.astype(np.int64 if sides.wide == 8 else np.int32), "low": low, "places": places, "area_row": area_row,
        "row_ptr": lists.ptr, "row_pairs": row_pairs(lists, area_row, window.kernel[-1] * sides.tap_bytes, blocks.slot),
        "phases": len(phases), "phase_table": table, "ends": ends,
        "part_pairs": pairs(numbers * vector, numbers * (sides.channels * sides.wide)),
    }  # fmt: skip
    return given, blocks.count, blocks.most_needed * area_row


@lru_cache(maxsize=1024)
def gather_plan(problem: Problem, padded: bool) -> Plan:
    """conv and conv_grad_input. padded: taps outside the source may be multiplied by zero, as all weights are finite."""
    sides = sides_of(problem)
    moved = moved_bytes(problem)
    given: dict[str, Any] = {"source": None, "weights": None, "target": None}
    if sides.is_direct:
        total = problem.batch * sides.rows
        block = row_block(total, sides.target_row)
        past_cache = streams(moved)
        lines = sides.channels * sides.size % LINE == 0 and _lanes(sides) * sides.size % LINE == 0
        stream = past_cache and lines and total * sides.target_row >= SMALLEST  # smaller results are not aligned to lines
        stage = block * sides.target_row if past_cache and not stream else 0
        given |= _direct_tables(problem, sides)
        given |= {"once": int(not sides.forward)}
        given |= {"block": block, "images": problem.batch, "target_row": sides.target_row, "stage": stage}
        given |= {"stream": int(stream)}
        return make_plan(code(Variant("depthwise", "direct", problem.dtype.name)), -(-total // block), stage, moved, given)
    tables, blocks, scratch = _spread_tables(problem, sides, padded)
    units = problem.batch * blocks
    given |= tables | {"units": units}
    return make_plan(code(Variant("depthwise", "grouped", problem.dtype.name)), units, scratch, moved, given)


@dataclass(frozen=True)
class FilterPlans:
    """The two jobs of a filter gradient and the bytes of the sums between them."""

    products: Plan
    add: Plan
    sum_bytes: int


def add_plan(problem: Problem, pieces: int, distance: int) -> Plan:
    count = int(np.prod(problem.filter_shape, dtype=np.int64))
    block = 1024
    given = {"sums": None, "result": None, "pieces": pieces, "distance": distance, "block": block, "count": count}
    return make_plan(code(Variant(FILTER, "add", problem.dtype.name)), -(-count // block), 0, pieces * distance, given)


@lru_cache(maxsize=1024)
def filter_plans(problem: Problem) -> FilterPlans:
    sides = sides_of(problem)
    moved = moved_bytes(problem)
    used = problem.window.tap_count * sides.tap_bytes
    sum_bytes = used + problem.window.kernel[-1] * sides.tap_bytes  # a spare row of taps behind them
    most = max(1, min(MOST_PIECES, SUM_BYTES // sum_bytes, moved // max(64 << 10, 2 * sum_bytes)))
    entries = -(-(problem.window.tap_count * sides.sources_each + 1) * 16 // 64) * 64
    given: dict[str, Any] = {"source": None, "dy": None, "sums": None, "sums_bytes": sum_bytes, "spare": used}
    if sides.is_direct:
        tables = _direct_tables(problem, sides)
        total = problem.batch * sides.rows
        block = -(-total // most)
        pieces = -(-total // block)
        given |= tables | {"block": block, "images": problem.batch, "target_row": sides.target_row}
        name, scratch = "direct", entries
    else:
        tables, blocks, area = _spread_tables(problem, sides, True)
        units = problem.batch * blocks
        group = -(-units // most)
        pieces = -(-units // group)
        given |= tables | {"group": group, "units": units, "area_start": entries}
        name, scratch = "grouped", entries + area
    compiled = code(Variant(FILTER, name, problem.dtype.name))
    return FilterPlans(make_plan(compiled, pieces, scratch, moved, given), add_plan(problem, pieces, sum_bytes), pieces * sum_bytes)
