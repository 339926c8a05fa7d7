"""Plans of the filter gradient by Winograd: shares of the tiles by blocks of channels, then one plan that ends it."""

from __future__ import annotations

from dataclasses import dataclass

from pullback.cpu.conv.filter_order import filter_steps, own_order
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.winograd.convolve import (
    DEPTH_BLOCK,
    MOST_BYTES,
    evenly,
    geometry,
    stage_bytes,
    tap_numbers,
    variant,
)
from pullback.cpu.winograd.records import FilterGradientFinish, FilterGradientShare
from pullback.cpu.winograd.shapes import Shape, aligned, axes_of, register_tile, shape_of
from pullback.problem import Problem

KERNELS = "winograd.filter_gradient"
MOST_CHANNELS = 128  # of a block: more would need sums beyond the second-level cache, fewer transform each tile more often
BLOCK_BYTES = 640 << 10  # transformed tiles of x, or of dy, in a block
FEWEST_TILES, MOST_TILES = 32, 96  # of a block: with few, the sums are loaded and stored too often
SHARE_TILES = 48  # of a share at least: each has sums of its own, to be cleared and added up
MOST_PIECES = 8  # shares times blocks of channels, where there are not more of these
MOST_SUM_BYTES = 64 << 20  # of all shares, where that leaves two


@dataclass(frozen=True)
class GradientCut:
    """Blocks of channels of x and dy, tile positions and output depths of a block, and shares of all tiles."""

    x_blocks: int
    dy_blocks: int
    x_block: int
    dy_block: int
    vectors: int  # of the register tile
    rows: int
    x_pitch: int
    sum_pitch: int
    block: int
    depth_block: int
    slots: int  # input depths that the output depths read
    shares: int


def cut_gradient(shape: Shape) -> GradientCut:
    lanes, wide, depth_block = shape.lanes, shape.wide, min(shape.target.depth, DEPTH_BLOCK)
    x_blocks, dy_blocks = -(-shape.summed // MOST_CHANNELS), -(-shape.made // MOST_CHANNELS)
    x_block = min(aligned(-(-shape.summed // x_blocks), lanes), shape.summed)
    dy_block = aligned(-(-shape.made // dy_blocks), lanes)
    rows, vectors = register_tile(dy_block, lanes)
    x_pitch, sum_pitch = aligned(x_block, lanes) * wide, aligned(dy_block, vectors * lanes) * wide
    slots = depth_block + (shape.taps - 1) * shape.dilation[0]
    tile_bytes = shape.numbers * max(x_pitch * slots * shape.stretches, sum_pitch * depth_block)
    most = max(min(BLOCK_BYTES // tile_bytes, MOST_TILES), min(-(-FEWEST_TILES // depth_block), MOST_BYTES // tile_bytes), 1)
    block = evenly(shape.positions, most, shape.dilation[2])
    units = -(-shape.positions // block) * -(-shape.target.depth // depth_block)
    tiles = shape.positions * shape.target.depth
    channel_blocks = shape.groups * x_blocks * dy_blocks
    fitting = max(2, MOST_SUM_BYTES // (channel_blocks * shape.sets * shape.numbers * x_block * sum_pitch))
    shares = max(1, min(MOST_PIECES // channel_blocks, tiles // SHARE_TILES, units, fitting))
    return GradientCut(
        x_blocks, dy_blocks, x_block, dy_block, vectors, rows, x_pitch, sum_pitch, block, depth_block, slots, shares
    )  # fmt: skip


@dataclass(frozen=True)
class GradientPlans:
    share: Plan
    finish: Plan
    sum_bytes: int  # of all shares
    x_start: int  # where its first cell lies


@planned
def gradient_plans(problem: Problem) -> GradientPlans:
    shape, axes = shape_of(problem, False), axes_of(problem.window)
    assert shape is not None
    assert axes is not None
    cell, lanes, cut = machine().vector_bytes, shape.lanes, cut_gradient(shape)
    block, depth_block, sum_pitch = cut.block, cut.depth_block, cut.sum_pitch
    sum_step = cut.x_block * sum_pitch + cell
    sum_bytes = aligned(shape.sets * shape.numbers * sum_step)
    blocks, depth_blocks = -(-shape.positions // block), -(-shape.target.depth // depth_block)
    pieces = shape.groups * cut.x_blocks * cut.dy_blocks * cut.shares
    stage_row, stage = stage_bytes(problem, shape, block)
    dy_start = aligned(shape.numbers * (shape.stretches * cut.slots * block * cut.x_pitch + cell))
    offset_start = dy_start + aligned(shape.numbers * (depth_block * block * sum_pitch + cell) + cut.vectors * cell)
    table_start = offset_start + aligned(8 * cut.slots)
    zeros_start = table_start + aligned(8 * shape.numbers * (1 if problem.layout == "channels_last" else block))
    stage_start = zeros_start + aligned(max(max(cut.x_block, cut.dy_block) * shape.size, cell))
    tap, c, m, group = (step * problem.dtype.itemsize for step in filter_steps(problem, own_order(problem.layout)))
    table_of_taps = aligned(shape.numbers * cell)
    cells = table_of_taps + aligned(8 * shape.numbers)
    given = geometry(shape) | shape.source.arguments("x") | shape.target.arguments("dy") | {
        "x": None, "dy": None, "df": None, "sums": None, "faults": None, "sum_bytes": sum_bytes, "sum_step": sum_step,
        "sum_pitch": sum_pitch, "shares": cut.shares, "x_blocks": cut.x_blocks, "dy_blocks": cut.dy_blocks, "x_block": cut.x_block,
        "dy_block": cut.dy_block, "blocks": blocks, "depth_blocks": depth_blocks, "block": block, "depth_block": depth_block,
        "channels": shape.summed, "made": shape.made, "x_pitch": cut.x_pitch, "dy_start": dy_start, "offset_start": offset_start,
        "zeros_start": zeros_start, "stage_row": stage_row,
        "tap_at": tap_numbers(problem.window, axes, False), "tap_bytes": tap, "channel_bytes": c, "made_bytes": m,
        "group_bytes": group,
    }  # fmt: skip
    moved = shape.batch * (shape.source.image_bytes + shape.target.image_bytes) + pieces * sum_bytes
    share = make_plan(
        variant(problem, shape, "share", KERNELS, rows=cut.rows, vectors=cut.vectors), FilterGradientShare, pieces, stage_start + stage, moved,
        given | {"table_start": table_start, "stage_start": stage_start},
    )  # fmt: skip
    finish = make_plan(
        variant(problem, shape, "finish", KERNELS), FilterGradientFinish, shape.groups * shape.summed,
        cells + (1 + aligned(problem.window.tap_count, lanes)) * cell, pieces * sum_bytes,
        given | {"table_start": table_of_taps, "stage_start": cells, "depth": shape.sets, "taps": problem.window.tap_count},
    )  # fmt: skip
    return GradientPlans(share, finish, pieces * sum_bytes, shape.source.start_bytes)
