"""Plans of the direct filter gradient: which channels and cells a piece sums over, and where its sums go."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from pullback.cpu.compiler import Variant, code
from pullback.cpu.conv_common import LINE, PIECES, even_parts, lanes_of, moved_bytes, pitches, wide_of
from pullback.cpu.conv_sweep import AxisSweep, Sweep, sweep_of
from pullback.cpu.machine import machine
from pullback.cpu.plan import Plan, make_plan
from pullback.cpu.pool_common import streams
from pullback.problem import Problem

FEW_CHANNELS, UNPACKED_TERMS = 6, 48
PARTIAL_BYTES = 4 << 20  # of all partial sums together
MOST_BYTES = 4 << 20  # of a block in any case


@dataclass(frozen=True)
class FilterPlan:
    """The sums, straight into the result where `finish` is None; else into a workspace that a second job adds up.

    `checked`: x was padded with zeros, so a result that is not finite may be wrong.
    """

    sums: Plan
    finish: Plan | None
    workspace_bytes: int
    checked: bool


def _tap_reach(axis: AxisSweep, tap: int, low: int, grid: int) -> tuple[int, int, int]:
    """(place that a tap reads from, first and last output for which there is one).

    Cells low, low + grid, ... are places 0, 1, ...
    """
    phase = axis.phases[0]
    if tap not in phase.taps:
        return 0, 0, 0
    offset = phase.offsets[phase.taps.index(tap)]
    first = max(0, -(offset // axis.source_step))
    end = min(phase.count, (axis.source_size - 1 - offset) // axis.source_step + 1)
    return (offset - low) // grid, first, max(first, end)


def merged_taps(sweep: Sweep) -> int:
    """Taps of a row that count as channels, because channels alone are too few for the rows of a tile."""
    offsets, taps = sweep.axes[2].phases[0].offsets, sweep.tap_kernel[2]
    side_by_side = len(offsets) == taps and offsets[-1] - offsets[0] == taps - 1
    return taps if side_by_side and sweep.source_channels < FEW_CHANNELS else 1


@lru_cache(maxsize=1024)
def filter_plan(problem: Problem) -> FilterPlan:
    sweep = sweep_of(replace(problem, op="conv"))
    size, wide, v, l2 = problem.dtype.itemsize, wide_of(problem), lanes_of(problem), machine().l2_bytes
    last = problem.layout == "channels_last"
    d, h, w = sweep.axes
    # Cells that no tap reads are left out of a packed block, and would only stretch the distances of one read in place.
    n_count = sweep.target_channels
    merged = merged_taps(sweep)
    in_place = last and size == wide and w.grid(w.target_size) == 1 and merged == 1
    channels, taps = sweep.source_channels, problem.window.tap_count
    sums_bytes = sweep.groups * taps * channels * n_count * wide
    tap_kernel = list(sweep.tap_kernel)
    # Few sums for each cell do not repay packing it; channels that fill their vectors can be read where they are.
    dy_in_place = last and size == wide and n_count % v == 0 and taps * channels <= UNPACKED_TERMS
    if merged > 1:
        channels, taps, tap_kernel[2] = channels * merged, taps // merged, 1
    n_padded = -(-n_count // v) * v
    n_blocks = -(-n_count // (2 * v))
    # One tap needs dy about as fast as memory gives it: then dy is packed once, and the next block of it asked for early.
    fetch = in_place and taps == sweep.groups == 1 and n_blocks <= 8 and n_count >= channels and streams(moved_bytes(problem))
    # What is packed must serve many sums: the fewer the taps, the more channels on the other side.
    range_blocks = n_blocks if fetch else 1 if in_place else even_parts(n_blocks, 4 if taps > 4 else 8)
    range_channels = channels if in_place or merged > 1 else even_parts(channels, 128 if taps > 4 else 256, v)
    grid = [1, 1, 1] if in_place else [1, h.grid(h.target_size), w.grid(w.target_size) if last else 1]
    low = [0, 0, 0] if in_place else [0, min(h.offsets), min(w.offsets)]
    hop = [axis.source_step // grid[i] for i, axis in enumerate(sweep.axes)]
    reach = [(max(axis.offsets) - min(axis.offsets)) // grid[i] + 1 for i, axis in enumerate(sweep.axes)]

    def block_bytes(images: int, rows: int, cols: int) -> int:
        """Of the panels and of the cells of x that a block reads."""
        cells = d.source_size * ((rows - 1) * hop[1] + reach[1]) * ((cols - 1) * hop[2] + reach[2])
        return images * (d.target_size * rows * cols * range_blocks * 2 * v + cells * range_channels // merged) * wide

    budget = l2 // 4 if fetch else l2 // 2  # two blocks at a time where the next one is on its way
    cols = w.target_size
    while cols > 64 and block_bytes(1, 1, cols) > budget:
        cols = even_parts(w.target_size, cols // 2)
    rows = h.target_size
    while rows > 1 and block_bytes(1, rows, cols) > budget:
        rows = even_parts(h.target_size, rows - 1)
    while block_bytes(1, rows, cols) > MOST_BYTES:  # it holds whole depths, which may be many
        if range_channels > v and not in_place and merged == 1:
            range_channels = even_parts(channels, range_channels // 2, v)
        elif range_blocks > 1:
            range_blocks = even_parts(n_blocks, range_blocks // 2)
        elif cols > 8:
            cols = even_parts(w.target_size, cols // 2)
        else:
            break
    images = 1
    if rows == h.target_size and cols == w.target_size:
        while images < sweep.images and block_bytes(images + 1, rows, cols) <= budget:
            images += 1
        images = even_parts(sweep.images, images)
    row_blocks, col_blocks = -(-h.target_size // rows), -(-w.target_size // cols)
    blocks = -(-sweep.images // images) * row_blocks * col_blocks
    work = sweep.images * math.prod(axis.target_size for axis in sweep.axes) * taps * channels * n_count * sweep.groups

    def pieces(parts: int) -> int:
        return parts * sweep.groups * -(-channels // range_channels) * -(-n_blocks // range_blocks)

    parts = 1
    wanted = min(PIECES, 1 + work // (1 << 20))
    while pieces(parts) < wanted and parts < min(8, blocks) and (parts + 1) * sums_bytes <= PARTIAL_BYTES:
        parts += 1
    while pieces(parts) < wanted and range_channels > 4 * v and merged == 1:
        range_channels = even_parts(channels, range_channels // 2, v)
    part_blocks = -(-blocks // parts)
    parts = -(-blocks // part_blocks)
    tap_table = [
        [value for i, t in enumerate(tap) for value in _tap_reach(sweep.axes[i], t, low[i], grid[i])]
        for tap in product(*map(range, tap_kernel))
    ]
    if merged > 1:  # every output of a row has all its taps
        tap_table = [[*words[:6], 0, 0, w.target_size] for words in tap_table]
    x_channel, x_cell, x_row, x_plane, x_image = pitches(
        problem.layout, size, problem.channels_in, (d.source_size, h.source_size, w.source_size)
    )
    y_channel, y_cell, y_row, y_plane, y_image = pitches(
        problem.layout, size, problem.channels_out, (d.target_size, h.target_size, w.target_size)
    )
    place = range_channels // merged * wide
    line = ((cols - 1) * hop[2] + reach[2]) * place
    plane = ((rows - 1) * hop[1] + reach[1]) * line
    area_bytes = 0 if in_place else images * d.source_size * plane
    panel_start = -(-area_bytes // LINE) * LINE
    panel_bytes = images * d.target_size * rows * cols * 2 * v * wide
    table_start = panel_start + range_blocks * panel_bytes
    scratch = table_start + 32 * images * d.target_size * rows + LINE
    straight = in_place and parts == 1
    c_row = (problem.channels_out if straight else n_count) * wide
    given: dict[str, Any] = {
        "x": None, "dy": None, "target": None, "groups": sweep.groups, "channel_ranges": -(-channels // range_channels),
        "range_channels": range_channels, "n_ranges": -(-n_blocks // range_blocks), "range_blocks": range_blocks,
        "part_blocks": part_blocks, "blocks": blocks, "row_blocks": row_blocks, "col_blocks": col_blocks,
        "block_images": images, "block_rows": rows, "block_cols": cols, "images": sweep.images, "depths": d.target_size,
        "rows": h.target_size, "cols": w.target_size, "in_depth": d.source_size, "in_rows": h.source_size,
        "in_cols": w.source_size, "x_image": x_image, "x_plane": x_plane, "x_row": x_row, "x_cell": x_cell,
        "x_channel": x_channel, "y_image": y_image, "y_plane": y_plane, "y_row": y_row, "y_cell": y_cell,
        "y_channel": y_channel, "step_h": h.source_step, "step_w": w.source_step,
        "channels": channels, "n_count": n_count, "n_padded": n_padded, "taps": taps,
        "tap_table": np.array(tap_table, np.int64).reshape(-1), "in_place": int(in_place), "low_h": low[1],
        "low_w": low[2], "grid_h": grid[1], "grid_w": grid[2], "hop_d": hop[0], "hop_h": hop[1], "hop_w": hop[2],
        "reach_h": reach[1], "reach_w": reach[2], "place_bytes": place, "line_bytes": line,
        "plane_bytes": plane, "volume_bytes": d.source_size * plane, "panel_start": panel_start, "panel_bytes": panel_bytes,
        "table_start": table_start, "c_part": sums_bytes, "c_row": c_row, "c_tap": channels * c_row,
        "c_group": n_count * wide if straight else taps * channels * c_row, "merged": merged,
        "x_channels": sweep.source_channels, "dy_in_place": int(dy_in_place), "fetch": int(fetch),
    }  # fmt: skip
    options = (("first", not last),)
    compiled = code(Variant("conv_filter", "sums", problem.dtype.name, options))
    sums = make_plan(compiled, pieces(parts), scratch, work // 4, given)
    if straight:
        return FilterPlan(sums, None, 0, merged > 1 and sweep.is_padded)
    channels, taps = sweep.source_channels, problem.window.tap_count
    total = sweep.groups * channels
    rows_each = max(1, -(-total // PIECES))
    finish = make_plan(
        code(Variant("conv_filter", "finish", problem.dtype.name, options)), -(-total // rows_each), 0, parts * sums_bytes,
        {
            "sums": None, "target": None, "parts": parts, "part_bytes": sums_bytes, "rows_each": rows_each,
            "groups": sweep.groups, "channels": channels, "n_count": n_count, "taps": taps,
        },
    )  # fmt: skip
    return FilterPlan(sums, finish, parts * sums_bytes, merged > 1 and sweep.is_padded)
