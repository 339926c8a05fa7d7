"""Plans of pool gradients phase by phase of the strides, over flat runs of cells: max from winners
(channels_first), and average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.cpu.engine.pieces import cut_pieces, slack, streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.pool import planes
from pullback.cpu.pool.choice import TOO_MANY_WINDOWS, prefers_phases
from pullback.cpu.pool.common import Shape, Table, divisors, row_block, shape_of, simplified, uniform_divisor, variant, wide_row
from pullback.cpu.pool.records import PhasesAvgGrad, PhasesMaxGrad
from pullback.cpu.pool.tables import border_tables, in_three, reader_table, tap_places
from pullback.cpu.pool.tuning import PHASE_BYTES
from pullback.problem import Problem
from pullback.window import Window


def _is_flat(window: Window) -> bool:
    """Whether each axis of a merged window has an output for every cell of its stride phases: see phases_kernel.py."""
    return all(ceil_div(n, s) <= o for n, s, o in zip(window.input_size, window.stride, window.output_size, strict=True))


def can_average(problem: Problem) -> str | None:
    if (refused := planes.can(problem)) is not None:
        return refused
    window = simplified(problem).window
    if any(s > n for s, n in zip(window.stride, window.input_size, strict=True)):
        return "its tables have an entry for every phase of a stride, and a stride is longer than its axis"
    return None


def can(problem: Problem) -> str | None:
    if (refused := can_average(problem)) is not None:
        return refused
    window = simplified(problem).window
    if problem.layout == "channels_last" and problem.channels_in > 1 and window.stride[-1] > 1:
        return "it interleaves single elements, not cells of several channels"
    if problem.winner_dtype.itemsize > 1:
        return "it looks for false winners among the codes of a byte, and this window has more taps"
    if math.prod(problem.output_shape[1:]) >= 1 << 31:
        return "it finds the border of an image by numbers of 31 bits"
    if not _is_flat(window):
        return "it needs an output for every cell of a stride phase, along each axis"
    return None


def pays(problem: Problem) -> str | None:
    return None if prefers_phases(problem) else TOO_MANY_WINDOWS


def _entries(window: Window, axes: Sequence[int], pitches: Sequence[int]) -> tuple[Table, Table, Table]:
    """For each combination of the stride phases of some axes: where its cells find the outputs they are due, and by which taps.

    ptr (one more than combinations), shifts (ascending, in elements) and taps. A tap serves one phase of each axis.
    """
    number, shift, exists = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_)
    for axis, pitch in zip(axes, pitches, strict=True):
        places = tap_places(window, axis)
        number = (number[:, None] * window.stride[axis] + places.plane).ravel()
        shift = (shift[:, None] - places.shift * pitch).ravel()
        there = places.plane < window.input_size[axis]  # a stride beyond the axis has fewer phases
        exists = (exists[:, None] & there).ravel()
    taps = np.flatnonzero(exists)
    taps = taps[np.lexsort((taps, shift[taps], number[taps]))]
    counts = np.bincount(number[taps], minlength=math.prod(window.stride[axis] for axis in axes))
    return np.concatenate([[0], np.cumsum(counts)]), shift[taps], taps


def _in_scratch(shape: Shape, cells: int, stride_h: int, stride_w: int) -> tuple[dict[str, Any], int]:
    """Where the interleaved rows and the phases of a block lie, `cells` elements to a phase; the end of them."""
    row_distance = round_up(cells * stride_w * shape.size + 2 * slack(), LINE)
    distance = round_up(cells * shape.wide + slack(), LINE)
    start = stride_h * row_distance
    return {"row_distance": row_distance, "phase_start": start, "distance": distance}, start + stride_w * distance


@planned
def max_grad_plan(problem: Problem) -> Plan:
    """max_pool_grad_from_winners."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    (in_depth, in_rows, _), (out_depth, out_rows, _) = window.input_size, window.output_size
    stride_d, stride_h, stride_w = window.stride
    ptr, shifts, taps = _entries(window, range(3), (out_rows * shape.out_row, shape.out_row, shape.channels))
    images = shape.images
    direct = window.stride == (1, 1, 1) and shape.in_row == shape.out_row
    if stride_d == 1 and in_depth == out_depth and in_rows == stride_h * out_rows:  # then planes follow each other like rows
        images, in_rows, out_rows = 1, in_rows * in_depth * shape.images, out_rows * out_depth * shape.images
        in_depth = out_depth = 1
    phase_rows = ceil_div(in_rows, stride_h)
    block_rows = row_block(phase_rows, stride_h * stride_w * shape.out_row * shape.wide, PHASE_BYTES)
    blocks = in_depth * ceil_div(phase_rows, block_rows)
    per_piece, pieces = cut_pieces(images * blocks, shape.moved_bytes)
    in_scratch, end = _in_scratch(shape, block_rows * shape.out_row, stride_h, stride_w)
    whole_lines = (block_rows * shape.in_row if direct else shape.in_row) * shape.size % LINE == 0
    given = in_scratch | {
        "dy": None, "winners": None, "dx": None, "per_piece": per_piece, "units": images * blocks, "blocks": blocks,
        "block_rows": block_rows, "in_depth": in_depth, "in_rows": in_rows, "in_row": shape.in_row, "out_depth": out_depth,
        "out_rows": out_rows, "out_row": shape.out_row, "stride_d": stride_d, "stride_h": stride_h, "stride_w": stride_w,
        "channels": shape.channels, "ptr": ptr, "shifts": shifts, "taps": taps, "lowest": int(shifts.min(initial=0)),
        "highest": int(shifts.max(initial=0)), "outputs": shape.images * shape.out_rows * shape.out_row, "direct": int(direct),
        "streams": int(streams(shape.input_bytes) and whole_lines), "faults": None, "pieces": pieces, "images": shape.images,
        "image_outputs": shape.out_rows * shape.out_row, **border_tables(window, shape.channels),
    }  # fmt: skip
    scratch = 0 if direct else end
    return make_plan(variant(problem, "phases", "max_grad"), PhasesMaxGrad, pieces, scratch, shape.moved_bytes, given)


@planned
def avg_grad_plan(problem: Problem) -> Plan:
    """avg_pool_grad, from unpacked planes of dy."""
    problem = simplified(problem)
    shape, window = shape_of(problem), in_three(problem.window)
    stride_h, stride_w = window.stride[1:]
    low_h, high_h = _reach(window, 1)
    low_w, high_w = _reach(window, 2)
    cells_w = ceil_div(window.input_size[2], stride_w)
    places_w = max(cells_w + high_w - low_w, shape.out_cols - low_w)
    pitch = places_w * shape.channels
    ptr, shifts, _ = _entries(window, (1, 2), (pitch, shape.channels))
    shifts -= low_h * pitch + low_w * shape.channels  # places count from the first that is unpacked
    depth_readers = window.readers(0)
    most = max(1, int(depth_readers.count.max()))
    in_rows = window.input_size[1]
    phase_rows = ceil_div(in_rows, stride_h)
    bytes_each = pitch * shape.wide * (most + stride_h * stride_w)  # of a row of dy and the rows it makes
    block_rows = min(phase_rows, max(1, PHASE_BYTES // max(1, bytes_each)))
    places_h = block_rows + high_h - low_h
    area = places_h * pitch
    blocks = window.input_size[0] * ceil_div(phase_rows, block_rows)
    per_piece, pieces = cut_pieces(shape.images * blocks, shape.moved_bytes)
    in_scratch, area_start = _in_scratch(shape, block_rows * pitch, stride_h, stride_w)
    row_div, col_div = divisors(problem)
    areas_bytes = (most * area + pitch) * shape.wide + slack()
    given = in_scratch | {
        "dy": None, "dx": None, "depth_readers": reader_table(depth_readers), "per_piece": per_piece,
        "units": shape.images * blocks, "blocks": blocks, "block_rows": block_rows,
        "in_depth": window.input_size[0], "in_rows": in_rows, "in_row": shape.in_row, "out_depth": window.output_size[0],
        "out_rows": window.output_size[1], "cols": shape.out_cols, "stride_h": stride_h, "stride_w": stride_w,
        "channels": shape.channels, "ptr": ptr, "shifts": shifts,
        "streams": int(streams(shape.input_bytes) and shape.in_row * shape.size % LINE == 0),
        "low_h": low_h, "places_h": places_h, "low_w": low_w, "places_w": places_w, "area_start": area_start, "area": area,
        "areas_bytes": areas_bytes,
        "row_div": row_div, "col_div": wide_row(shape, col_div), "uniform": uniform_divisor(row_div, col_div),
    }  # fmt: skip
    return make_plan(
        variant(problem, "phases", "avg_grad"), PhasesAvgGrad, pieces, area_start + areas_bytes, shape.moved_bytes, given
    )


def _reach(window: Window, axis: int) -> tuple[int, int]:
    """How far from their own number the cells of a phase find the first and the last output that they are due, 0 included."""
    places = tap_places(window, axis)
    shifts = -places.shift[places.plane < window.input_size[axis]]
    return int(shifts.min(initial=0)), int(shifts.max(initial=0))
