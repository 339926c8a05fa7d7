"""`permuted`: filter gradients of groups of few channels, and of few channels of dy, channels_last (permuted_filter_kernel.py)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pullback.cpu.conv.common import moved_bytes, pitches
from pullback.cpu.conv.filter_gradient import axis_entries, tap_table
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.conv.sweep import sweep_of
from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.cells_tables import can_permute_groups, permute_orders, sides_of
from pullback.cpu.depthwise.common import filter_gradient_steps, group_channels, is_depthwise, near, run_filter_gradient
from pullback.cpu.depthwise.partial_sums import FilterPlans, with_add
from pullback.cpu.depthwise.records import PermutedFilter
from pullback.cpu.engine.plan import make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sequence import Steps
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.refusals import ordinary
from pullback.cpu.winograd import ops as winograd
from pullback.problem import Problem
from pullback.rules import Array
from pullback.window import Window


def can(problem: Problem) -> str | None:
    if problem.layout != "channels_last":
        return "its vectors hold channels of one cell, and in channels_first these lie a plane apart"
    if (refused := ordinary(problem)) is not None:
        return refused
    settled, is_near = near(problem)
    if not is_near:
        return "its taps lie too far apart"
    return None if can_permute_groups(sides_of(settled)) else "vectors of this dtype cannot be permuted on this CPU"


def pays(problem: Problem) -> str | None:
    """Why it would take longer: the permutes of a cell are too many beside the products that each is used for."""
    settled, _ = near(problem)
    lanes, (x_channels, y_channels) = sides_of(settled).lanes, group_channels(settled)
    if is_depthwise(problem):
        return None if _few_channels(settled, lanes) else "no channel is spread where groups have one"
    if x_channels < y_channels:
        if x_channels == 1 and settled.window.tap_count > tuning.PERMUTED_ONE_TAPS * math.prod(settled.window.stride):
            return "it is slow at large windows over one channel"
        if x_channels <= tuning.PERMUTED_ROWS and y_channels <= _widest(settled) * lanes:
            return None
        return "it is for few channels of x where dy has more, and these must fit into few vectors"
    if y_channels > (_most_of_groups if problem.groups > 1 else _most_dense)(settled, x_channels, lanes):
        return "it is for groups of which a vector holds two, or dy of few channels"
    return None


def _few_channels(problem: Problem, lanes: int) -> bool:
    """Whether the channels of groups of one are so few that other kernels would spend most of the time around their vectors."""
    window, channels = problem.window, problem.channels_in
    if channels > lanes or window.tap_count * channels > tuning.PERMUTED_DEPTHWISE_SUMS:
        return False
    return window.rank == 1 or window.tap_count * channels <= tuning.PERMUTED_DEPTHWISE_REUSE * math.prod(window.stride)


def _most_of_groups(problem: Problem, x_channels: int, lanes: int) -> float:
    """Channels of dy in a group that pay, where x has as many or more."""
    if x_channels > tuning.PERMUTED_GROUP_LANES * lanes:
        return 0
    if problem.window.tap_count == 1 or _fills_tiles(problem.window):
        return tuning.PERMUTED_SHARE * lanes
    return lanes / 2 if x_channels < lanes else tuning.PERMUTED_FEW


def _fills_tiles(window: Window) -> bool:
    """Whether tiles of several taps, that lie in one row, are full."""
    return window.rank < 3 and window.kernel[-1] in tuning.PERMUTED_ROW_TAPS


def _most_dense(problem: Problem, x_channels: int, lanes: int) -> float:
    """Channels of dy that pay without groups, where x has as many or more."""
    single, strided = problem.window.tap_count == 1, max(problem.window.stride) > 1
    if _by_winograd(problem):
        most: float = tuning.PERMUTED_BESIDE_WINOGRAD
    elif (
        (single and x_channels <= tuning.PERMUTED_SINGLE_LANES * lanes)
        or (strided and x_channels <= tuning.PERMUTED_SHARE_LANES * lanes)
        or _fills_tiles(problem.window)
    ):
        most = tuning.PERMUTED_SHARE * lanes
    elif single:
        most = tuning.PERMUTED_ROWS if strided else tuning.PERMUTED_FEWER
    else:
        most = tuning.PERMUTED_MORE_ROWS if x_channels > tuning.PERMUTED_GROUP_LANES * lanes else tuning.PERMUTED_ROWS
    return most if x_channels <= tuning.PERMUTED_MOST_LANES * lanes else 0


def _widest(problem: Problem) -> float:
    """Vectors of channels of dy that few channels of x are spread beside at the most."""
    rules = tuning.PERMUTED_WIDE_STRIDED if max(problem.window.stride) > 1 else tuning.PERMUTED_WIDE
    of_groups = (rule[1:] for rule in rules if problem.window.tap_count <= rule[0])
    return next(of_groups, tuning.PERMUTED_WIDEST)[problem.groups == 1]


def _by_winograd(problem: Problem) -> bool:
    """Whether it is one of the small windows whose transforms save much."""
    return max(problem.window.kernel) <= tuning.PERMUTED_WINOGRAD_TAPS and winograd.takes(problem)


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    settled, _ = near(problem)
    return run_filter_gradient(settled, permuted_filter_plans(settled), dy, x)


def steps(problem: Problem, _: FilterOrder) -> Steps:
    return filter_gradient_steps(permuted_filter_plans(near(problem)[0]))


def _in_one_row(problem: Problem) -> Problem:
    """All cells of the batch in one row, where each output reads the cell of its own place."""
    window = problem.window
    if window.tap_count > 1 or set(window.stride) != {1} or any(window.pad_low) or window.input_size != window.output_size:
        return problem
    cells = (problem.batch * math.prod(window.input_size),)
    return replace(problem, batch=1, window=Window(cells, cells, (1,), (1,), (1,), (0,), (0,)))


@planned
def permuted_filter_plans(problem: Problem) -> FilterPlans:
    filter_shape_of, problem = problem, _in_one_row(problem)
    sides, sweep, taps = sides_of(problem), sweep_of(problem), problem.window.tap_count
    size, lanes, moved = sides.size, sides.lanes, moved_bytes(problem)
    x_channels, y_channels = group_channels(problem)
    few, many = sorted((x_channels, y_channels))
    together, lane_parts, row_parts = max(1, lanes // many), ceil_div(many, lanes), ceil_div(few, tuning.PERMUTED_ROWS)
    rows = ceil_div(few, row_parts)
    vectors = ceil_div(problem.groups, together) * lane_parts * row_parts
    vector_sums = taps * rows * lanes * sides.wide
    range_vectors = ceil_div(vectors, ceil_div(vectors * vector_sums, tuning.PERMUTED_SUMS_BYTES))
    d, h, w = sweep.axes
    sizes = [[getattr(axis, f"{side}_size") for axis in sweep.axes] for side in ("source", "target")]
    _, x_cell, x_row, x_plane, x_image = pitches("channels_last", size, problem.channels_in, tuple(sizes[0]))
    _, y_cell, y_row, _, _ = pitches("channels_last", size, problem.channels_out, tuple(sizes[1]))
    all_rows = sweep.images * d.target_size * h.target_size
    # A block's cells serve every tap: they should stay in the second-level cache. Sums are read and written once a block and tap.
    cell_bytes = y_cell + x_cell * min(w.source_step, ceil_div(w.source_size, w.target_size)) * h.source_step
    cells = max(tuning.PERMUTED_CELLS, tuning.PERMUTED_BLOCK_BYTES // cell_bytes)
    block_cols = ceil_div(w.target_size, ceil_div(w.target_size, cells))
    col_blocks = ceil_div(w.target_size, block_cols)
    parts_worth = moved // max(tuning.LEAST_PIECE_BYTES, 2 * vectors * vector_sums)
    sums_bytes = math.prod(problem.filter_shape) * sides.wide
    parts = max(1, min(tuning.CELLS_PIECES, tuning.PIECE_SUMS_BYTES // sums_bytes, parts_worth))
    block_rows = max(1, min(cells // block_cols, ceil_div(all_rows * col_blocks, parts)))
    blocks = ceil_div(all_rows, block_rows) * col_blocks
    part_blocks = ceil_div(blocks, parts)
    parts = ceil_div(blocks, part_blocks)
    ranges = ceil_div(vectors, range_vectors)
    tap_kernel = list(sweep.tap_kernel)
    columns = axis_entries(w, tap_kernel[2], 0, 1)
    columns = np.append(columns, np.broadcast_to([0, 0, 0], columns.shape), axis=1)
    in_filter = problem.channels_out * sides.wide, sides.wide  # distances of input and of output channels of a filter
    x_spread = x_channels < y_channels
    row_taps = tap_kernel[2]
    tile_taps = ceil_div(
        row_taps, ceil_div(row_taps, max(1, min(tuning.PERMUTED_MOST_TAPS, tuning.PERMUTED_MOST_SUMS // rows)))
    )
    table_start = round_up(range_vectors * vector_sums, LINE)
    given = {
        "source": None, "dy": None, "sums": None, "sums_bytes": sums_bytes, "groups": problem.groups, "together": together,
        "vectors": vectors, "row_parts": row_parts, "lane_parts": lane_parts, "ranges": ranges, "range_vectors": range_vectors,
        "x_channels": x_channels, "y_channels": y_channels, "row_taps": row_taps, "tile_taps": tile_taps,
        "tap_step": w.phases[0].offsets.step * x_cell, "orders": permute_orders(lanes, rows, min(many, lanes), sides.wide),
        "taps": taps, "tap_table": tap_table(sweep, tap_kernel, [0, 0, 0], [1, 1, 1], columns),
        "depths": d.target_size, "rows": h.target_size, "cols": w.target_size, "all_rows": all_rows, "col_blocks": col_blocks,
        "block_cols": block_cols, "block_rows": block_rows, "blocks": blocks, "part_blocks": part_blocks,
        "step_d": d.source_step, "step_h": h.source_step, "step_w": w.source_step, "x_image": x_image, "x_plane": x_plane,
        "x_row": x_row, "x_cell": x_cell, "y_row": y_row, "y_cell": y_cell, "table_start": table_start,
        "sums_tap": x_channels * in_filter[0], "row_distance": in_filter[0 if x_spread else 1],
        "lane_distance": in_filter[1 if x_spread else 0],
    }  # fmt: skip
    compiled = Variant("depthwise.permuted_filter", "products", problem.dtype.name, (("rows", rows), ("x_spread", x_spread)))
    products = make_plan(compiled, PermutedFilter, parts * ranges, table_start + 16 * block_rows, moved, given)
    return with_add(filter_shape_of, products, parts, sums_bytes)
