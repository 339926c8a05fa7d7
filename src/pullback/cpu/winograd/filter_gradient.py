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
    fitting = tuning.MOST_SUM_BYTES // (channel_blocks * shape.k_blocks * shape.points * cut.x_block * cut.sum_pitch)
    most = max(1, min(tuning.MOST_PIECES // channel_blocks, tiles // tuning.SPLIT_TILES, all_blocks, fitting))
    splits = 1 << (most.bit_length() - 1)  # a power of two: threads end together
    cut = replace(cut, block=block, splits=splits)
    if threads > 2:
        return _cut_for(shape, threads, cut)
    if channel_blocks == 1 and splits == 1 and shape.in_channels >= 2 * tuning.FEWEST_CHANNELS:  # so that both threads work
        return replace(_channel_blocks(shape, 2, 1), block=block, splits=splits)
    return cut


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
    """finish: None where the pieces of partial_sums end them. sum_bytes: of all splits, then 0."""

    partial_sums: Plan
    finish: Plan | None
    sum_bytes: int
    x_start: int  # where its first cell lies


def _sum_bytes(shape: Shape, cut: Cut) -> tuple[int, int]:
    """Bytes from point to point, and of all sums of a piece."""
    point_pitch = cut.x_block * cut.sum_pitch + machine().vector_bytes
    return point_pitch, round_up(shape.k_blocks * shape.points * point_pitch, LINE)


def ends_own_sums(shape: Shape, cut: Cut) -> bool:
    """Whether a piece makes its part of the gradient itself, from sums that never leave the cache."""
    return cut.splits == 1 and _sum_bytes(shape, cut)[1] <= tuning.OWN_SUM_BYTES


@planned_for_threads
def gradient_plans(threads: int, problem: Problem) -> GradientPlans:
    shape = shape_of(problem, False)
    assert shape is not None
    cut = cut_gradient(shape, threads)
    point_pitch, sum_bytes = _sum_bytes(shape, cut)
    pieces = shape.groups * cut.x_blocks * cut.dy_blocks * cut.splits
    sums = vars(cut) | {"sums": None, "sum_bytes": sum_bytes, "sum_point_pitch": point_pitch}
    finish = _finish_plan(problem, shape, pieces, sums)
    partial_sums = _partial_sums_plan(problem, shape, cut, pieces, sums, finish)
    if ends_own_sums(shape, cut):
        return GradientPlans(partial_sums, None, 0, shape.source.start_bytes)
    return GradientPlans(partial_sums, finish, pieces * sum_bytes, shape.source.start_bytes)


def _finish_fields(finish: Plan, own: bool, sum_bytes: int, start: int) -> tuple[dict[str, Any], int]:
    """The fields of PartialSums with which a piece ends its sums itself, and the bytes of scratch with theirs."""
    if not own:
        return dict.fromkeys(("finish", "finish_record", "record_start", "finish_start", "sums_start"), 0), start
    finish_start = round_up(start + Finish.BYTES, LINE)
    sums_start = finish_start + round_up(finish.scratch_bytes, LINE)
    record = finish.template.copy()
    for name in ("x_blocks", "dy_blocks"):
        record[Finish.place(name)] = 1
    return {
        "finish": finish.code.address, "finish_record": record, "record_start": start, "finish_start": finish_start,
        "sums_start": sums_start,
    }, sums_start + sum_bytes  # fmt: skip


def _partial_sums_plan(
    problem: Problem, shape: Shape, cut: Cut, pieces: int, sums: dict[str, Any], finish: Plan
) -> Plan:  # fmt: skip
    vector_bytes, (depth_block, slots) = machine().vector_bytes, depths_of_block(shape)
    dy_start = round_up(shape.points * (shape.tap_blocks * slots * cut.block * cut.tile_pitch + vector_bytes), LINE)
    dy_bytes = shape.points * (depth_block * cut.block * cut.sum_pitch + vector_bytes) + cut.vectors * vector_bytes
    zeros = max(cut.x_block, cut.dy_block) * shape.item_bytes
    tiles, scratch = tile_fields(problem, shape, cut.block, dy_start + round_up(dy_bytes, LINE), slots, zeros)
    options = {"channels_first": problem.layout == "channels_first", "rows": cut.rows, "vectors": cut.vectors}
    compiled = variant(problem, shape, "filter_gradient", "partial_sums", **options)
    moved = shape.batch * (shape.source.image_pitch + shape.target.image_pitch) + pieces * sums["sum_bytes"]
    ending, scratch = _finish_fields(finish, ends_own_sums(shape, cut), sums["sum_bytes"], round_up(scratch, LINE))
    given = sums | tiles | ending | {"x": None, "dy": None, "dy_start": dy_start, "filter": None, "nonfinite": None}
    return make_plan(compiled, PartialSums, pieces, scratch, moved, given, finish.keep)


def _finish_plan(problem: Problem, shape: Shape, pieces: int, sums: dict[str, Any]) -> Plan:
    vector_bytes = machine().vector_bytes
    table_start = round_up(shape.points * vector_bytes, LINE)
    stage_start = table_start + round_up(WORD * shape.points, LINE)
    scratch = stage_start + (1 + round_up(problem.window.tap_count, shape.lanes)) * vector_bytes
    compiled = variant(problem, shape, "filter_gradient", "finish", channels_first=problem.layout == "channels_first")
    given = sums | filter_fields(problem, shape, own_order(problem.layout), False)
    given |= {"table_start": table_start, "stage_start": stage_start}
    return make_plan(compiled, Finish, shape.groups * shape.in_channels, scratch, pieces * sums["sum_bytes"], given)
