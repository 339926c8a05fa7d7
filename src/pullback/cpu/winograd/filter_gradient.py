"""Plans of the filter gradient by Winograd: partial sums of splits of the tiles by blocks of channels, then what ends it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pullback.cpu.conv.filter_order import own_order
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned_for_threads
from pullback.cpu.engine.records import WORD
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.winograd import tuning
from pullback.cpu.winograd.blocks import depths_of_block, filter_fields, tile_fields, tiles_of_block, variant
from pullback.cpu.winograd.records import Finish, PartialSums
from pullback.cpu.winograd.shapes import Shape, register_tile, shape_of
from pullback.problem import Problem


@dataclass(frozen=True)
class Cut:
    """Blocks of channels of x and dy, tile positions of a block, and splits of all tiles."""

    x_blocks: int
    dy_blocks: int
    x_block: int
    dy_block: int
    rows: int  # of the register tile
    vectors: int
    tile_pitch: int  # bytes of a transformed tile of x, and of dy: also of the sums of a channel of x
    sum_pitch: int
    block: int
    splits: int


def _channel_blocks(shape: Shape, x_blocks: int, dy_blocks: int) -> Cut:
    """Of about so many blocks of channels, and nothing else."""
    lanes = shape.lanes
    x_block = min(round_up(ceil_div(shape.in_channels, x_blocks), lanes), shape.in_channels)
    dy_block = round_up(ceil_div(shape.out_channels, dy_blocks), lanes)
    rows, vectors = register_tile(dy_block, lanes)
    tile_pitch, sum_pitch = round_up(x_block, lanes) * shape.sum_bytes, round_up(dy_block, vectors * lanes) * shape.sum_bytes
    x_blocks, dy_blocks = ceil_div(shape.in_channels, x_block), ceil_div(shape.out_channels, dy_block)
    return Cut(x_blocks, dy_blocks, x_block, dy_block, rows, vectors, tile_pitch, sum_pitch, 0, 0)


def cut_gradient(shape: Shape, threads: int = 2) -> Cut:
    """For two threads as it is cheapest; for more with smaller blocks of channels, which cut no sum."""
    depth_block, slots = depths_of_block(shape)
    wide = min(shape.in_channels, shape.out_channels) > tuning.MOST_CHANNELS
    most = tuning.MOST_CHANNELS // 2 if wide else tuning.MOST_CHANNELS
    cut = _channel_blocks(shape, ceil_div(shape.in_channels, most), ceil_div(shape.out_channels, most))
    tile_bytes = shape.points * max(cut.tile_pitch * slots * shape.tap_blocks, cut.sum_pitch * depth_block)
    block = tiles_of_block(shape, tile_bytes, depth_block, tuning.GRADIENT_BYTES, tuning.GRADIENT_TILES)
    all_blocks = ceil_div(shape.positions, block) * ceil_div(shape.target.depth, depth_block)
    tiles, channel_blocks = shape.positions * shape.target.depth, shape.groups * cut.x_blocks * cut.dy_blocks
    fitting = max(2, tuning.MOST_SUM_BYTES // (channel_blocks * shape.k_blocks * shape.points * cut.x_block * cut.sum_pitch))
    splits = max(1, min(tuning.MOST_PIECES // channel_blocks, tiles // tuning.SPLIT_TILES, all_blocks, fitting))
    cut = replace(cut, block=block, splits=splits)
    return cut if threads <= 2 else _cut_for(shape, threads, cut)


def _cut_for(shape: Shape, threads: int, cut: Cut) -> Cut:
    """Blocks of channels with which the last of so many threads is done first; each transforms its tiles anew."""

    def cost(finer: Cut) -> float:
        x, dy = ceil_div(finer.x_block, shape.lanes), ceil_div(finer.dy_block, shape.lanes)
        pieces = shape.groups * finer.x_blocks * finer.dy_blocks * cut.splits
        return ceil_div(pieces, threads) * (shape.k_blocks * finer.x_block * dy + tuning.READ * (x * shape.tap_blocks + dy))

    finer = [
        replace(_channel_blocks(shape, x, dy), block=cut.block, splits=cut.splits)
        for x in range(cut.x_blocks, max(cut.x_blocks, shape.in_channels // tuning.FEWEST_CHANNELS) + 1)
        for dy in range(cut.dy_blocks, max(cut.dy_blocks, shape.out_channels // tuning.FEWEST_CHANNELS) + 1)
    ]
    return min([cut, *finer], key=lambda each: (cost(each), each.x_blocks * each.dy_blocks))


@dataclass(frozen=True)
class GradientPlans:
    partial_sums: Plan
    finish: Plan
    sum_bytes: int  # of all splits
    x_start: int  # where its first cell lies


@planned_for_threads
def gradient_plans(threads: int, problem: Problem) -> GradientPlans:
    shape = shape_of(problem, False)
    assert shape is not None
    cut = cut_gradient(shape, threads)
    point_pitch = cut.x_block * cut.sum_pitch + machine().vector_bytes
    sum_bytes = round_up(shape.k_blocks * shape.points * point_pitch, LINE)
    pieces = shape.groups * cut.x_blocks * cut.dy_blocks * cut.splits
    sums = vars(cut) | {"sums": None, "sum_bytes": sum_bytes, "sum_point_pitch": point_pitch}
    partial_sums = _partial_sums_plan(problem, shape, cut, pieces, sums)
    return GradientPlans(
        partial_sums, _finish_plan(problem, shape, pieces, sums), pieces * sum_bytes, shape.source.start_bytes
    )  # fmt: skip


def _partial_sums_plan(problem: Problem, shape: Shape, cut: Cut, pieces: int, sums: dict[str, Any]) -> Plan:
    vector_bytes, (depth_block, slots) = machine().vector_bytes, depths_of_block(shape)
    dy_start = round_up(shape.points * (shape.tap_blocks * slots * cut.block * cut.tile_pitch + vector_bytes), LINE)
    dy_bytes = shape.points * (depth_block * cut.block * cut.sum_pitch + vector_bytes) + cut.vectors * vector_bytes
    zeros = max(cut.x_block, cut.dy_block) * shape.item_bytes
    tiles, scratch = tile_fields(problem, shape, cut.block, dy_start + round_up(dy_bytes, LINE), slots, zeros)
    options = {"channels_first": problem.layout == "channels_first", "rows": cut.rows, "vectors": cut.vectors}
    compiled = variant(problem, shape, "filter_gradient", "partial_sums", **options)
    moved = shape.batch * (shape.source.image_pitch + shape.target.image_pitch) + pieces * sums["sum_bytes"]
    given = sums | tiles | {"x": None, "dy": None, "dy_start": dy_start}
    return make_plan(compiled, PartialSums, pieces, scratch, moved, given)


def _finish_plan(problem: Problem, shape: Shape, pieces: int, sums: dict[str, Any]) -> Plan:
    vector_bytes = machine().vector_bytes
    table_start = round_up(shape.points * vector_bytes, LINE)
    stage_start = table_start + round_up(WORD * shape.points, LINE)
    scratch = stage_start + (1 + round_up(problem.window.tap_count, shape.lanes)) * vector_bytes
    compiled = variant(problem, shape, "filter_gradient", "finish", channels_first=problem.layout == "channels_first")
    given = sums | filter_fields(problem, shape, own_order(problem.layout), False)
    given |= {"table_start": table_start, "stage_start": stage_start}
    return make_plan(compiled, Finish, shape.groups * shape.in_channels, scratch, pieces * sums["sum_bytes"], given)
