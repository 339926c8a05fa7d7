"""Plans of the forward pools: max_pool and avg_pool."""

from __future__ import annotations

from typing import Any

from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.records import Record
from pullback.cpu.pool.common import (
    CHANNELS,
    PLANE_BYTES,
    PLANES,
    ROWS,
    WHOLE,
    Shape,
    Table,
    divisors,
    floor_of,
    grouped,
    row_block,
    shape_of,
    simplified,
    slack,
    variant,
    wide_row,
)
from pullback.cpu.pool.records import (
    ChannelsAvgForward,
    ChannelsMaxForward,
    PlanesAvgForward,
    PlanesMaxForward,
    RowsAvgForward,
    RowsMaxForward,
    WholeAvgForward,
    WholeAvgGrad,
    WholeMaxForward,
    WholeMaxGrad,
    WholeMaxGradFromX,
)
from pullback.cpu.pool.tables import axis_table, in_three, lines_in_scratch, places_reached, tap_bases, tap_places
from pullback.problem import Problem
from pullback.window import Window

WHOLE_RECORDS: dict[str, type[Record]] = {
    "max_forward": WholeMaxForward, "max_grad": WholeMaxGrad, "max_grad_from_x": WholeMaxGradFromX, "avg_forward": WholeAvgForward,
    "avg_grad": WholeAvgGrad,
}  # fmt: skip
FORWARD_RECORDS: dict[tuple[str, bool], type[Record]] = {
    (CHANNELS, True): ChannelsMaxForward, (ROWS, True): RowsMaxForward, (PLANES, True): PlanesMaxForward,
    (CHANNELS, False): ChannelsAvgForward, (ROWS, False): RowsAvgForward, (PLANES, False): PlanesAvgForward,
}  # fmt: skip


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


def unpacked_planes(problem: Problem, shape: Shape, most_rows: int | None) -> tuple[dict[str, Any], int]:
    """Arguments of the kernels that unpack planes of the input, and the end of what they need of scratch."""
    window = in_three(problem.window)
    h, w = tap_places(window, 1), tap_places(window, 2)
    places_w = places_reached(window, 2, window.output_size[2])
    pitch = places_w * shape.channels
    planes = window.stride[1] * window.stride[2] * max(1, int(window.tap_ranges(0)[1].max()))
    out_rows = window.output_size[1]
    block_rows = min(out_rows if most_rows is None else min(most_rows, out_rows), _rows_in(window, planes * pitch * shape.wide))
    places_h = places_reached(window, 1, block_rows)
    distance = places_h * pitch * shape.wide + slack()
    plane_at = (h.plane[:, None] * window.stride[2] + w.plane) * (distance // shape.wide)
    tap_at = (plane_at + (h.shift - h.low)[:, None] * pitch + (w.shift - w.low) * shape.channels).reshape(-1)
    area_bytes = window.stride[1] * window.stride[2] * distance
    sum_start = planes // (window.stride[1] * window.stride[2]) * area_bytes + slack()
    code_start = sum_start + block_rows * pitch * shape.wide + slack()
    end = code_start + block_rows * pitch * problem.winner_dtype.itemsize + slack()
    arguments = {
        "low_h": h.low, "places_h": places_h, "low_w": w.low, "places_w": places_w, "distance": distance,
        "block_rows": block_rows, "area_bytes": area_bytes, "sum_start": sum_start, "code_start": code_start,
        "taps": len(tap_at), "tap_at": tap_at, "blocks": window.output_size[0] * -(-out_rows // block_rows),
    }  # fmt: skip
    return arguments, -(-end // 64) * 64


def _rows_in(window: Window, bytes_per_place: int) -> int:
    """Output rows whose unpacked input rows fit into a block."""
    return max(1, PLANE_BYTES // max(1, bytes_per_place) - (places_reached(window, 1, 1) - 1))


def least_unpacked_bytes(problem: Problem) -> int:
    """What one output row takes of scratch, unpacked: all that its windows reach over, padding too."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    rows, cols = places_reached(window, 1, 1) * window.stride[1], places_reached(window, 2, shape.out_cols) * window.stride[2]
    return min(window.kernel[0], window.input_size[0]) * rows * cols * shape.channels * shape.wide


def plan_of_images(problem: Problem, kernel: str, *, rule: bool) -> Plan:
    """A plan of pool_whole: every image is one window."""
    shape = shape_of(simplified(problem))
    moved = shape.input_bytes + shape.output_bytes
    group, pieces = grouped(shape.images, moved)
    given = dict.fromkeys(("x", "y", "winners", "indices", "dy", "dx")) | {
        "group": group, "images": shape.images, "cells": shape.in_row, "empty": problem.empty, "above": floor_of(problem),
    }  # fmt: skip
    return make_plan(variant(problem, WHOLE, kernel, rule=rule), WHOLE_RECORDS[kernel], pieces, 2 * slack(), moved, given)


def _exact_share(row_div: Table, col_div: Table) -> float:
    """The reciprocal of the one divisor of all windows, if it is a power of 2 and so exact; else 0."""
    divisor = int(row_div[0] * col_div[0])
    same = (row_div == row_div[0]).all() and (col_div == col_div[0]).all()
    return 1 / divisor if same and divisor & (divisor - 1) == 0 else 0.0


@planned
def forward_plan(problem: Problem, module: str, by_rows: bool = False) -> Plan:
    """max_pool or avg_pool; by_rows: each piece is one output row."""
    if module == WHOLE:
        is_max = problem.winner is not None
        return plan_of_images(problem, "max_forward" if is_max else "avg_forward", rule=is_max)
    problem = simplified(problem)
    shape = shape_of(problem)
    is_max = problem.winner is not None
    moved = shape.input_bytes + shape.output_bytes
    given: dict[str, Any] = {
        "x": None, "y": None, "rows": shape.out_rows, "channels": shape.channels, "empty": problem.empty,
        "axes": axis_table(in_three(problem.window)),
    }  # fmt: skip
    winner_row = shape.out_row * problem.winner_dtype.itemsize if is_max else 0
    if is_max:
        given |= {"winners": None, "indices": None, "above": floor_of(problem), **index_tables(problem)}
    else:
        row_div, col_div = divisors(problem)
        given |= {"row_div": row_div, "col_div": col_div if module == CHANNELS else wide_row(shape, col_div)}
        given["share"] = _exact_share(row_div, col_div)
    if module in (CHANNELS, ROWS):
        block = 1 if by_rows else row_block(shape.out_rows * shape.images, moved // max(1, shape.images * shape.out_rows))
        pieces, scratch = -(-shape.images * shape.out_rows // block), winner_row
        given |= {"block": block, "images": shape.images}
    else:
        unpacked, scratch = unpacked_planes(problem, shape, 1 if by_rows else None)
        units = shape.images * unpacked["blocks"]
        group, pieces = (1, units) if by_rows else grouped(units, moved)
        given |= unpacked | {"group": group, "units": units, "own_start": scratch}
        scratch += winner_row
    lines, scratch = lines_in_scratch(in_three(problem.window), True, scratch)
    given |= lines
    kernel = "max_forward" if is_max else "avg_forward"
    return make_plan(
        variant(problem, module, kernel, rule=is_max), FORWARD_RECORDS[module, is_max], pieces, scratch, moved, given
    )
