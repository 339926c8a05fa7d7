"""What the plans of max_pool and avg_pool share: the fields of their records beside the blocks of each kernel."""

from __future__ import annotations

from typing import Any

from pullback.cpu.engine.pieces import PIECE_BYTES
from pullback.cpu.engine.sizes import ceil_div
from pullback.cpu.pool.common import Shape, Table, divisors, floor_of, row_block, wide_row
from pullback.cpu.pool.tables import axis_table, in_three, lines_in_scratch, tap_bases
from pullback.cpu.pool.tuning import FEW_PIECES
from pullback.problem import Problem


def index_tables(problem: Problem) -> dict[str, Any]:
    """Tables that turn winners into flat indices."""
    sizes = problem.window.input_size
    order = range(len(sizes)) if problem.storage_order else reversed(range(len(sizes)))
    count = problem.channels_in if problem.layout == "channels_last" else 1
    multipliers = [0] * len(sizes)
    for axis in order:
        multipliers[axis] = count
        count *= sizes[axis]
    row_base, col_base, tap_base = tap_bases(problem.window, tuple(multipliers))
    return {"index_image": count, "row_base": row_base, "col_base": col_base, "tap_base": tap_base}


def winner_row_bytes(problem: Problem, shape: Shape) -> int:
    """Of the winners of an output row."""
    return shape.out_row * problem.winner_dtype.itemsize if problem.winner else 0


def forward_fields(problem: Problem, shape: Shape, scratch: int, *, wide_divisors: bool) -> tuple[dict[str, Any], int]:
    """The fields of MaxForward or AvgForward, whose lines are written behind what is used of scratch; and its new end."""
    lines, end = lines_in_scratch(in_three(problem.window), True, scratch)
    axes = axis_table(in_three(problem.window))
    if problem.winner is not None:
        return lines | max_fields(problem, axes), end
    given = lines | {"x": None, "y": None, "axes": axes, "empty": problem.empty}
    row_div, col_div = divisors(problem)
    return given | {"row_div": row_div, "col_div": wide_row(shape, col_div) if wide_divisors else col_div}, end


def max_fields(problem: Problem, axes: Table) -> dict[str, Any]:
    """The fields of MaxForward but for its lines."""
    given = {"x": None, "y": None, "winners": None, "indices": None}
    return given | {"axes": axes, "empty": problem.empty, "above": floor_of(problem)} | index_tables(problem)


def over_channels_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Those of MaxForward with the one that ChannelsMaxForward has beside."""
    return fields | {"ahead": 0, "indexed": int(fields["tap_base"].max(initial=0) < 1 << 31)}


def blocked(shape: Shape, rows_each: int) -> tuple[dict[str, int], int]:
    """The fields of Blocked, and the pieces; rows_each: output rows of a piece, or 0 for as many as pay."""
    rows = shape.images * shape.out_rows
    block = rows_each or row_block(rows, shape.moved_bytes // max(1, rows))
    return {"block": block, "images": shape.images, "rows": shape.out_rows}, ceil_div(rows, block)


def blocked_columns(shape: Shape, rows_each: int) -> tuple[dict[str, int], int]:
    """The fields of OverChannels, and the pieces: rows of one axis alone may be few and long."""
    blocks, pieces = blocked(shape, rows_each)
    parts = 1
    if not rows_each and pieces < FEW_PIECES:
        parts = min(ceil_div(shape.moved_bytes, max(1, pieces) * PIECE_BYTES), shape.out_cols)
    part_cols = ceil_div(shape.out_cols, max(1, parts))
    parts = ceil_div(shape.out_cols, max(1, part_cols))
    return blocks | {"channels": shape.channels, "part_cols": part_cols, "parts": parts}, pieces * parts
