"""Plans of max_pool and avg_pool over planes unpacked by stride: any layout, stride and rank."""

from __future__ import annotations

import math
from typing import Any

from pullback.cpu.engine.pieces import cut_pieces, slack
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.pool.common import Shape, shape_of, simplified, variant
from pullback.cpu.pool.forward import forward_fields, winner_row_bytes
from pullback.cpu.pool.records import PlanesAvgForward, PlanesMaxForward
from pullback.cpu.pool.tables import in_three, places_reached, tap_places
from pullback.cpu.pool.tuning import MOST_UNPACKED_BYTES, PLANE_BYTES
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.window import Window


def _least_unpacked_bytes(problem: Problem) -> int:
    """What one output row takes of scratch, unpacked: all that its windows reach over, padding too."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    rows, cols = places_reached(window, 1, 1) * window.stride[1], places_reached(window, 2, shape.out_cols) * window.stride[2]
    return min(window.kernel[0], window.input_size[0]) * rows * cols * shape.channels * shape.wide


def can(problem: Problem) -> str | None:
    if (refused := ordinary(problem)) is not None:
        return refused
    most = max(MOST_UNPACKED_BYTES, 2 * math.prod(problem.input_shape) * problem.dtype.itemsize)
    if _least_unpacked_bytes(problem) > most:
        return "it unpacks all that windows reach over, and here that is padding for the most part"
    return None


def _block_rows(window: Window, bytes_per_place: int) -> int:
    """Output rows whose unpacked input rows fit into a block."""
    return max(1, PLANE_BYTES // max(1, bytes_per_place) - (places_reached(window, 1, 1) - 1))


def _unpacked(problem: Problem, shape: Shape, rows_each: int) -> tuple[dict[str, Any], int]:
    """The fields of Unpacked but for its pieces, and the end of what they need of scratch."""
    window = in_three(problem.window)
    h, w = tap_places(window, 1), tap_places(window, 2)
    places_w = places_reached(window, 2, window.output_size[2])
    pitch = places_w * shape.channels
    phases = window.stride[1] * window.stride[2]
    depths = max(1, int(window.tap_ranges(0)[1].max()))
    out_rows = window.output_size[1]
    block_rows = min(rows_each or out_rows, _block_rows(window, phases * depths * pitch * shape.wide))
    places_h = places_reached(window, 1, block_rows)
    distance = places_h * pitch * shape.wide + slack()
    plane_at = (h.plane[:, None] * window.stride[2] + w.plane) * (distance // shape.wide)
    tap_at = (plane_at + (h.shift - h.low)[:, None] * pitch + (w.shift - w.low) * shape.channels).reshape(-1)
    area_bytes = phases * distance
    sum_start = depths * area_bytes + slack()
    code_start = sum_start + block_rows * pitch * shape.wide + slack()
    end = code_start + block_rows * pitch * problem.winner_dtype.itemsize + slack()
    fields = {
        "low_h": h.low, "places_h": places_h, "low_w": w.low, "places_w": places_w, "distance": distance,
        "block_rows": block_rows, "area_bytes": area_bytes, "sum_start": sum_start, "code_start": code_start,
        "taps": len(tap_at), "tap_at": tap_at, "blocks": window.output_size[0] * ceil_div(out_rows, block_rows),
        "channels": shape.channels,
    }  # fmt: skip
    return fields, round_up(end, LINE)


@planned
def forward_plan(problem: Problem, rows_each: int = 0) -> Plan:
    """max_pool or avg_pool; rows_each: the most output rows of a piece, or 0 for as many as pay."""
    problem = simplified(problem)
    shape, is_max = shape_of(problem), problem.winner is not None
    unpacked, own_start = _unpacked(problem, shape, rows_each)
    units = shape.images * unpacked["blocks"]
    per_piece, pieces = (1, units) if rows_each else cut_pieces(units, shape.moved_bytes)
    scratch = own_start + winner_row_bytes(problem, shape)
    fields, scratch = forward_fields(problem, shape, scratch, wide_divisors=True)
    fields |= unpacked | {"per_piece": per_piece, "units": units, "own_start": own_start}
    kernel, record = ("max_forward", PlanesMaxForward) if is_max else ("avg_forward", PlanesAvgForward)
    compiled = variant(problem, "planes", kernel, finds_winners=is_max)
    return make_plan(compiled, record, pieces, scratch, shape.moved_bytes, fields)
