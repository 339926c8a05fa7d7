"""Plans of the forward pools: max_pool and avg_pool."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.compiler import code
from pullback.cpu.plan import Plan, make_plan
from pullback.cpu.plan_cache import planned
from pullback.cpu.pool_common import (
    CHANNELS,
    PLANE_BYTES,
    ROWS,
    WHOLE,
    Shape,
    Table,
    divisors,
    floor_of,
    grouped,
    row_block,
    row_geometry,
    shape_of,
    simplified,
    slack,
    variant,
    wide_row,
)
from pullback.cpu.pool_tables import TapPlaces, columns, depth_lists, in_three, rows, tap_bases, tap_places
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


def winner_lists(problem: Problem, shape: Shape) -> dict[str, Any]:
    """The lists by which a kernel scans each window cell by cell."""
    window = problem.window
    r, c = rows(window, True), columns(window, True)
    return {
        "row_ptr": r.ptr, "row_src": r.source * shape.in_row, "row_tap": r.tap * window.kernel[-1],
        "col_ptr": c.ptr, "col_src": c.source * shape.channels, "col_tap": c.tap,
    }  # fmt: skip


def unpacked_planes(problem: Problem, shape: Shape, most_rows: int | None) -> tuple[dict[str, Any], int]:
    """Arguments of the kernels that unpack planes of the input, and the end of what they need of scratch."""
    window = in_three(problem.window)
    depths = depth_lists(window, True)
    h, w = tap_places(window, 1), tap_places(window, 2)
    places_w = w.places(window.output_size[2])
    pitch = places_w * shape.channels
    planes = window.stride[1] * window.stride[2] * int(np.diff(depths["d_ptr"]).max(initial=1))
    out_rows = window.output_size[1]
    block_rows = min(out_rows if most_rows is None else min(most_rows, out_rows), _rows_in(h, planes * pitch * shape.wide))
    places_h = h.places(block_rows)
    distance = places_h * pitch * shape.wide + slack()
    plane_at = (h.plane[:, None] * window.stride[2] + w.plane) * (distance // shape.wide)
    tap_at = (plane_at + (h.shift - h.low)[:, None] * pitch + (w.shift - w.low) * shape.channels).reshape(-1)
    area_bytes = window.stride[1] * window.stride[2] * distance
    sum_start = planes // (window.stride[1] * window.stride[2]) * area_bytes + slack()
    code_start = sum_start + block_rows * pitch * shape.wide + slack()
    end = code_start + block_rows * pitch * problem.winner_dtype.itemsize + slack()
    arguments = depths | {
        "out_depth": window.output_size[0], "out_rows": out_rows, "cols": shape.out_cols, "channels": shape.channels,
        "in_depth": window.input_size[0], "in_rows": window.input_size[1], "in_cols": shape.in_cols,
        "stride_h": window.stride[1], "stride_w": window.stride[2], "low_h": h.low, "places_h": places_h,
        "low_w": w.low, "places_w": places_w, "distance": distance, "block_rows": block_rows, "area_bytes": area_bytes,
        "sum_start": sum_start, "code_start": code_start, "taps": len(tap_at), "tap_at": tap_at,
    }  # fmt: skip
    return arguments, -(-end // 64) * 64


def _rows_in(h: TapPlaces, bytes_per_place: int) -> int:
    """Output rows whose unpacked input rows fit into a block."""
    return max(1, PLANE_BYTES // max(1, bytes_per_place) - (h.places(1) - 1))


def plan_of_images(problem: Problem, kernel: str, *, rule: bool) -> Plan:
    """A plan of pool_whole: every image is one window."""
    shape = shape_of(simplified(problem))
    moved = shape.input_bytes + shape.output_bytes
    group, pieces = grouped(shape.images, moved)
    given = dict.fromkeys(("x", "y", "winners", "indices", "dy", "dx")) | {
        "group": group, "images": shape.images, "cells": shape.in_row, "empty": problem.empty, "above": floor_of(problem),
    }  # fmt: skip
    return make_plan(code(variant(problem, WHOLE, kernel, rule=rule)), pieces, 2 * slack(), moved, given)


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
    given = winner_lists(problem, shape) | {
        "x": None, "y": None, "rows": shape.out_rows, "cols": shape.out_cols, "channels": shape.channels,
        "source_image": shape.in_rows * shape.in_row, "empty": problem.empty,
    }  # fmt: skip
    winner_row = shape.out_row * problem.winner_dtype.itemsize if is_max else 0
    if is_max:
        given |= {"winners": None, "indices": None, "above": floor_of(problem), **index_tables(problem)}
    else:
        row_div, col_div = divisors(problem)
        given |= {"row_div": row_div, "col_div": col_div if module == CHANNELS else wide_row(shape, col_div)}
    if module == ROWS:
        given |= row_geometry(problem)
        if not is_max:
            given["share"] = _exact_share(row_div, col_div)
    if module in (CHANNELS, ROWS):
        block = 1 if by_rows else row_block(shape.out_rows * shape.images, moved // max(1, shape.images * shape.out_rows))
        pieces, scratch = -(-shape.images * shape.out_rows // block), winner_row
        given |= {"block": block, "images": shape.images}
    else:
        unpacked, scratch = unpacked_planes(problem, shape, 1 if by_rows else None)
        blocks = unpacked["out_depth"] * -(-unpacked["out_rows"] // unpacked["block_rows"])
        group, pieces = (1, shape.images * blocks) if by_rows else grouped(shape.images * blocks, moved)
        given |= unpacked | {"group": group, "units": shape.images * blocks, "blocks": blocks, "own_start": scratch}
        scratch += winner_row
    kernel = "max_forward" if is_max else "avg_forward"
    return make_plan(code(variant(problem, module, kernel, rule=is_max)), pieces, scratch, moved, given)
