"""What the Winograd plans share: blocks of tiles, the fields and scratch of what reads them, and the order of taps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from pullback.cpu.conv.filter_order import FilterOrder, filter_steps
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.records import WORD
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.winograd.records import TAPS, TiledArray
from pullback.cpu.winograd.shapes import Axes, Shape, axes_of
from pullback.cpu.winograd.tuning import DEPTH_BLOCK, MOST_BLOCK_BYTES
from pullback.problem import Problem
from pullback.window import Window


def variant(problem: Problem, shape: Shape, module: str, kernel: str, **options: Any) -> Variant:
    options = {"outputs_h": shape.outputs[0], "outputs_w": shape.outputs[1], **options}
    return Variant(f"winograd.{module}", kernel, problem.dtype.name, tuple(options.items()))


def depths_of_block(shape: Shape) -> tuple[int, int]:
    """Output depths of a block, and the input depths that they read."""
    depth_block = min(shape.target.depth, DEPTH_BLOCK)
    return depth_block, depth_block + (shape.depth_taps - 1) * shape.dilation[0]


def tiles_of_block(shape: Shape, tile_bytes: int, depth_block: int, block_bytes: int, tiles: tuple[int, int]) -> int:
    """Positions of a block, in whole groups of a dilated axis: blocks nearly alike, and even in number.

    Transformed tiles (of `tile_bytes` at a position) take up to block_bytes, but there are a few in any case.
    """
    fewest, most = tiles
    in_cache, fitting = block_bytes // tile_bytes, MOST_BLOCK_BYTES // tile_bytes
    blocks = ceil_div(shape.positions, max(min(in_cache, most), min(ceil_div(fewest, depth_block), fitting), 1))
    if blocks > 1:
        blocks += blocks % 2
    return round_up(ceil_div(shape.positions, blocks), shape.dilation[2])


def tile_fields(problem: Problem, shape: Shape, block: int, start: int, offsets: int, zeros: int) -> tuple[dict[str, Any], int]:
    """The fields of Tiles, and the bytes of scratch with theirs, which begins at `start`.

    offsets: how many are kept of k-blocks; zeros: bytes that stand for a cell outside the array, or take what is written there.
    """
    first, vector_bytes = problem.layout == "channels_first", machine().vector_bytes
    (d_d, d_h, d_w), (pad_d, pad_h, pad_w), (tiles_h, tiles_w) = shape.dilation, shape.pad, shape.tiles
    depth_block, _ = depths_of_block(shape)
    arrays = TiledArray.table(
        [asdict(shape.source) | {"pad_h": pad_h, "pad_w": pad_w}, asdict(shape.target) | {"pad_h": 0, "pad_w": 0}]
    )
    table_start = start + round_up(WORD * offsets, LINE)
    zeros_start = table_start + round_up(WORD * shape.points * (block if first else 1), LINE)
    stage_start = zeros_start + round_up(max(zeros, vector_bytes), LINE)
    stage_pitch = stage_bytes = 0
    if first:  # rows of transposed cells, all that a tile reads
        m = max(shape.outputs)
        columns = min(max(shape.source.columns, shape.target.columns), ((block // d_w + 1) * m + 2 * TAPS) * d_w)
        stage_pitch = (columns + shape.lanes) * vector_bytes
        stage_bytes = (m + TAPS) * stage_pitch
    return {
        "arrays": arrays, "in_channels": shape.in_channels, "out_channels": shape.out_channels,
        "positions": shape.positions, "tiles_h": tiles_h, "tiles_w": tiles_w,
        "depth_taps": shape.depth_taps, "tap_blocks_h": shape.tap_blocks_h, "tap_blocks_w": shape.tap_blocks_w,
        "dilation_d": d_d, "dilation_h": d_h, "dilation_w": d_w, "pad_d": pad_d,
        "blocks": ceil_div(shape.positions, block), "block": block,
        "depth_blocks": ceil_div(shape.target.depth, depth_block), "depth_block": depth_block,
        "offsets_start": start, "table_start": table_start, "zeros_start": zeros_start, "stage_start": stage_start,
        "stage_pitch": stage_pitch,
    }, stage_start + stage_bytes  # fmt: skip


def filter_fields(problem: Problem, shape: Shape, order: FilterOrder, flipped: bool) -> dict[str, Any]:
    """The fields of Filter, for one that lies in memory in this order."""
    axes = axes_of(problem.window)
    assert axes is not None
    tap, c, m, group = (step * problem.dtype.itemsize for step in filter_steps(problem, order))
    return {
        "filter": None, "nonfinite": None, "in_channels": shape.in_channels, "out_channels": shape.out_channels,
        "taps": problem.window.tap_count, "k_blocks": shape.k_blocks, "group_pitch": group, "tap_pitch": tap,
        "in_channel_pitch": m if flipped else c, "out_channel_pitch": c if flipped else m,
        "tap_numbers": _tap_numbers(problem.window, axes, flipped),
    }  # fmt: skip


def _tap_numbers(window: Window, axes: Axes, flipped: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers in the filter of the taps of each k-block, by depth, then tap block; -1 for taps that fill up a tap block."""
    numbers = np.arange(window.tap_count, dtype=np.int64).reshape(window.kernel)
    if flipped:
        numbers = np.flip(numbers)
    order = [axis for axis in (axes.depth, axes.rows, axes.columns) if axis is not None]
    numbers = numbers.transpose(order).reshape(axes.pick(window.kernel, 1))
    down, across = 1 if axes.rows is None else TAPS, TAPS
    depth, height, width = numbers.shape
    h, w = ceil_div(height, down), ceil_div(width, across)
    filled = np.full((depth, h * down, w * across), -1, np.int64)
    filled[:, :height, :width] = numbers
    return np.ascontiguousarray(filled.reshape(depth, h, down, w, across).transpose(0, 1, 3, 2, 4)).reshape(-1)
