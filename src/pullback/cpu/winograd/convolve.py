"""Plans of the Winograd convolution and input gradient: the transformed filter, and blocks of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cpu.conv.filter_order import TAPS_LAST, FilterOrder, filter_steps
from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.winograd.records import ConvolveForward, ConvolveTransformFilter
from pullback.cpu.winograd.shapes import TAPS, Axes, Shape, aligned, axes_of, register_tile, shape_of
from pullback.problem import Problem
from pullback.window import Window

KERNELS = "winograd.convolve"
BLOCK_BYTES = 448 << 10  # transformed tiles of a block: with their products they stay in the second-level cache
FEWEST_TILES, MOST_TILES = 24, 96  # of a block: fewer read the filter too often, more gain nothing
DEPTH_BLOCK = 6  # output depths that share the transformed tiles of a block
MOST_BYTES = 6 << 20  # of a block in any case
FEWEST_PIECES = 4  # where there are enough results: pieces with different results of the same tiles transform these again
FILTER_CHUNK = 16  # summed channels of a piece of the filter


def variant(problem: Problem, shape: Shape, kernel: str, module: str = KERNELS, **more: Any) -> Variant:
    options = {
        "outputs_h": shape.outputs[0], "outputs_w": shape.outputs[1], "first": problem.layout == "channels_first", **more,
    }  # fmt: skip
    return Variant(module, kernel, problem.dtype.name, tuple(options.items()))


@dataclass(frozen=True)
class Packed:
    """Where the transformed filter lies: panels of as many results as the register tile is wide, number after number."""

    panel: int
    step: int
    panel_bytes: int
    group_bytes: int
    total: int


def packed_filter(shape: Shape) -> Packed:
    panel = register_tile(shape.made, shape.lanes)[1] * shape.lanes
    step = shape.sets * shape.summed * panel * shape.wide + machine().vector_bytes
    panel_bytes = shape.numbers * step
    group = -(-shape.made // panel) * panel_bytes
    return Packed(panel, step, panel_bytes, group, group * shape.groups + machine().vector_bytes)


def tap_numbers(window: Window, axes: Axes, flipped: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers in the filter of the taps of each set, by depth, then stretch; -1 for taps that fill up a stretch."""
    numbers = np.arange(window.tap_count, dtype=np.int64).reshape(window.kernel)
    if flipped:
        numbers = np.flip(numbers)
    order = [axis for axis in (axes.depth, axes.rows, axes.columns) if axis is not None]
    numbers = numbers.transpose(order).reshape(axes.pick(window.kernel, 1))
    down, across = 1 if axes.rows is None else TAPS, TAPS
    depth, height, width = numbers.shape
    h, w = -(-height // down), -(-width // across)
    filled = np.full((depth, h * down, w * across), -1, np.int64)
    filled[:, :height, :width] = numbers
    stretches = filled.reshape(depth, h, down, w, across)
    return np.ascontiguousarray(stretches.transpose(0, 1, 3, 2, 4)).reshape(-1)


def filter_plan(problem: Problem, shape: Shape, flipped: bool, order: FilterOrder) -> Plan:
    """The filter, which lies in memory in this order, transformed."""
    axes = axes_of(problem.window)
    assert axes is not None
    packed, cell = packed_filter(shape), machine().vector_bytes
    item = problem.dtype.itemsize
    tap, c, m, group = (step * item for step in filter_steps(problem, order))
    summed_bytes, made_bytes = (m, c) if flipped else (c, m)
    chunks = -(-shape.summed // FILTER_CHUNK)
    stage = aligned(8 * TAPS**2)
    given = {
        "f": None, "packed": None, "faults": None, "chunk": FILTER_CHUNK, "chunks": chunks, "depth": shape.sets,
        "taps": problem.window.tap_count, "made": shape.made, "summed": shape.summed, "tap_bytes": tap,
        "summed_bytes": summed_bytes, "made_bytes": made_bytes, "group_bytes": group,
        "tap_at": tap_numbers(problem.window, axes, flipped), "panel": packed.panel,
        "step": packed.step, "panel_bytes": packed.panel_bytes, "packed_group": packed.group_bytes, "stage_start": stage,
    }  # fmt: skip
    scratch = stage + (1 + problem.window.tap_count * FILTER_CHUNK + 2 * shape.lanes) * cell
    # The kernel's own words: `first` for taps side by side, else `flipped` for summed channels side by side, not the made ones.
    turned = flipped if order == TAPS_LAST else made_bytes != item
    compiled = variant(problem, shape, "transform_filter", first=order == TAPS_LAST, flipped=turned)
    return make_plan(compiled, ConvolveTransformFilter, chunks * shape.groups, scratch, packed.total, given)


def evenly(total: int, most: int, unit: int) -> int:
    """Size of blocks of at most about `most`, nearly alike and even in number, in multiples of `unit`."""
    blocks = -(-total // most)
    if blocks > 1:
        blocks += blocks % 2
    return aligned(-(-total // blocks), unit)


def stage_bytes(problem: Problem, shape: Shape, block: int) -> tuple[int, int]:
    """Bytes of a row of cells that are turned over, and of all rows of a tile; none in channels_last."""
    if problem.layout == "channels_last":
        return 0, 0
    cell, d_w, m = machine().vector_bytes, shape.dilation[2], max(shape.outputs)
    columns = min(max(shape.source.columns, shape.target.columns), ((block // d_w + 1) * m + 2 * TAPS) * d_w)
    row = (columns + shape.lanes) * cell
    return row, (m + TAPS) * row


def geometry(shape: Shape) -> dict[str, int]:
    """The arguments that say where tiles lie."""
    (d_d, d_h, d_w), (tiles_h, tiles_w), source, target = shape.dilation, shape.tiles, shape.source, shape.target
    return {
        "positions": shape.positions, "tiles_h": tiles_h, "tiles_w": tiles_w, "in_depth": source.depth, "in_rows": source.rows,
        "in_columns": source.columns, "out_depth": target.depth, "out_rows": target.rows, "out_columns": target.columns,
        "depth": shape.taps, "stretches_h": shape.stretches_h, "stretches_w": shape.stretches_w, "d_d": d_d, "d_h": d_h, "d_w": d_w,
        "pad_d": shape.pad[0], "pad_h": shape.pad[1], "pad_w": shape.pad[2],
    }  # fmt: skip


@dataclass(frozen=True)
class ForwardCut:
    """Tile positions, output depths and panels of results of a piece, and the bytes of a transformed tile's channels."""

    block: int
    depth_block: int
    panel_block: int
    slots: int  # input depths that the output depths read
    pitch: int


def cut_forward(shape: Shape) -> ForwardCut:
    pitch = aligned(shape.summed, shape.lanes) * shape.wide
    depth_block = min(shape.target.depth, DEPTH_BLOCK)
    slots = depth_block + (shape.taps - 1) * shape.dilation[0]
    tile_bytes = shape.numbers * pitch * slots * shape.stretches
    most = max(min(BLOCK_BYTES // tile_bytes, MOST_TILES), min(-(-FEWEST_TILES // depth_block), MOST_BYTES // tile_bytes), 1)
    block = evenly(shape.positions, most, shape.dilation[2])
    pieces = shape.groups * -(-shape.positions // block) * -(-shape.target.depth // depth_block)
    panels = -(-shape.made // packed_filter(shape).panel)
    return ForwardCut(block, depth_block, -(-panels // -(-FEWEST_PIECES // pieces)), slots, pitch)


def forward_plan(problem: Problem, shape: Shape) -> Plan:
    """The products, from the transformed filter."""
    source, target, packed, cell = shape.source, shape.target, packed_filter(shape), machine().vector_bytes
    cut = cut_forward(shape)
    block, depth_block, pitch = cut.block, cut.depth_block, cut.pitch
    depth_blocks, blocks = -(-target.depth // depth_block), -(-shape.positions // block)
    panel_blocks = -(-shape.made // (cut.panel_block * packed.panel))
    stage_row, stage = stage_bytes(problem, shape, block)
    product_start = aligned(shape.numbers * (shape.stretches * cut.slots * block * pitch + cell))
    offset_start = product_start + aligned(shape.numbers * (depth_block * block * packed.panel * shape.wide + cell))
    table_start = offset_start + aligned(8 * shape.sets)
    zeros_start = table_start + aligned(8 * shape.numbers * (1 if problem.layout == "channels_last" else block))
    stage_start = zeros_start + aligned(max(shape.summed * shape.size, packed.panel * shape.size, cell))
    scratch = stage_start + stage
    given = geometry(shape) | source.arguments("x") | target.arguments("y") | {
        "x": None, "packed": None, "y": None, "faults": None, "blocks": blocks, "depth_blocks": depth_blocks, "block": block,
        "depth_block": depth_block, "panel_blocks": panel_blocks, "panel_block": cut.panel_block,
        "summed": shape.summed, "made": shape.made,
        "filter_step": packed.step, "panel_bytes": packed.panel_bytes, "packed_group": packed.group_bytes, "pitch": pitch,
        "offset_start": offset_start, "table_start": table_start, "zeros_start": zeros_start, "stage_start": stage_start,
        "stage_row": stage_row, "product_start": product_start,
    }  # fmt: skip
    moved = shape.batch * (source.image_bytes + target.image_bytes) + packed.total
    rows, vectors = register_tile(shape.made, shape.lanes)
    compiled = variant(problem, shape, "forward", rows=rows, vectors=vectors)
    return make_plan(compiled, ConvolveForward, blocks * depth_blocks * panel_blocks * shape.groups, scratch, moved, given)


@dataclass(frozen=True)
class ConvolvePlans:
    """Transform the filter into memory of `packed_bytes`, then multiply; where the first cells of the arrays lie."""

    filter: Plan
    forward: Plan
    packed_bytes: int
    source_start: int
    target_start: int
    leaves_cells: bool  # whether some cells of the target are not written


@planned
def convolve_plans(problem: Problem, flipped: bool, order: FilterOrder) -> ConvolvePlans:
    shape = shape_of(problem, flipped)
    assert shape is not None
    return ConvolvePlans(
        filter_plan(problem, shape, flipped, order), forward_plan(problem, shape), packed_filter(shape).total,
        shape.source.start_bytes, shape.target.start_bytes, flipped and any(s > 1 for s in problem.window.stride),
    )  # fmt: skip
