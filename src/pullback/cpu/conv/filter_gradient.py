"""Plans of the direct filter gradient: which channels and cells a piece sums over, and where its sums go."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pullback.cpu.conv import tuning
from pullback.cpu.conv.common import Table, lanes_of, pitches, wide_of
from pullback.cpu.conv.filter_gradient_blocks import FilterBlocks, filter_blocks
from pullback.cpu.conv.records import (
    SHORTEST_K_BLOCK,
    TRANSPOSED_ROWS,
    FilterGradientFinish,
    FilterGradientSums,
    FilterTap,
    Runs,
)
from pullback.cpu.conv.sweep import AxisSweep, Sweep, sweep_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned_for_threads
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up, tile_rows
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem


@dataclass(frozen=True)
class FilterPlan:
    """The sums, straight into the result where `finish` is None; else into a workspace that a second job adds up.

    `checked`: x was padded with zeros, so a result that is not finite may be wrong. `swapped`: dy is to be given as x, and x as dy.
    """

    sums: Plan
    finish: Plan | None
    workspace_bytes: int
    checked: bool
    swapped: bool


def axis_entries(axis: AxisSweep, taps: int, low: int, grid: int) -> Table:
    """(place that a tap reads from, first and last output for which there is one), for each tap of an axis.

    Cells low, low + grid, ... are places 0, 1, ...
    """
    entries = np.zeros((taps, 3), np.int64)
    phase = axis.phases[0]
    first, end = phase.met(axis.source_step, axis.source_size)
    offsets = np.array(phase.offsets, np.int64)
    entries[phase.taps.start : phase.taps.stop] = np.stack([(offsets - low) // grid, first, end], axis=-1)
    return entries


def _merged_entries(axis: AxisSweep, channels: int, low: int, padded: bool) -> Table:
    """Entries of taps that count as channels, with (first channel, channels, whether it adds to another entry) for each.

    padded: one entry for all outputs, which meets zeros beside the source. Else one for those outputs that have all taps, and
    one for each run of others with the same taps.
    """
    phase, taps = axis.phases[0], len(axis.phases[0].taps)
    place, all_taps = axis.low - low, [0, taps * channels, 0]
    if padded:
        return np.array([[place, 0, axis.target_size, *all_taps]], np.int64)
    first, end = phase.met(axis.source_step, axis.source_size)
    middle = int(first.max()), int(end.min())
    found = [[place, middle[0], max(middle), *all_taps]]
    edges = np.unique(np.concatenate([first, end])).tolist()
    for begin, stop in itertools.pairwise(edges):
        met = np.flatnonzero((first <= begin) & (end >= stop))
        if 0 < len(met) < taps:
            found.append([place + int(met[0]), begin, stop, int(met[0]) * channels, len(met) * channels, 1])
    return np.array(found, np.int64)


def tap_table(
    sweep: Sweep, tap_kernel: list[int], low: list[int], grid: list[int], columns: Table
) -> Table:  # fmt: skip
    """A FilterTap for each entry. columns: the entries of the last axis, as _merged_entries has them."""
    depths, rows = (axis_entries(sweep.axes[i], tap_kernel[i], low[i], grid[i]) for i in (0, 1))
    a, b, c = (index.reshape(-1) for index in np.indices((len(depths), len(rows), len(columns))))
    # Of the last axis, entries are taps of their own, or else parts of one tap.
    number = (a * len(rows) + b) * tap_kernel[2] + (c if tap_kernel[2] > 1 else 0)
    of_axes = {
        f"{name}_{letter}": entries[index, place]
        for letter, entries, index in (("d", depths, a), ("h", rows, b), ("w", columns, c))
        for place, name in enumerate(("place", "first", "last"))
    }
    return FilterTap.columns(**of_axes, number=number, first_row=columns[c, 3], rows=columns[c, 4], adds=columns[c, 5])


def merged_taps(sweep: Sweep, in_place: bool) -> int:
    """Taps of a row that count as channels, because channels alone are too few for the rows of a tile."""
    offsets, taps = sweep.axes[2].phases[0].offsets, sweep.tap_kernel[2]
    side_by_side = len(offsets) == taps and offsets[-1] - offsets[0] == taps - 1
    return taps if side_by_side and sweep.source_channels < (tuning.FEW_IN_PLACE if in_place else tuning.FEW_CHANNELS) else 1


def _spread_in_l1(distance: int) -> bool:
    """Whether the rows of a tile, at this distance, do not meet in a few sets of the first-level cache (64 sets of lines)."""
    sets = [row * distance // LINE % 64 for row in range(tile_rows())]
    return max(sets.count(one) for one in sets) <= 4


def _crowds_l2(read: int, distance: int) -> bool:
    """Whether this many bytes of each cell, with cells at this distance, lie in a small share of the sets of the cache."""
    return read < tuning.CROWDED * math.gcd(distance, machine().l2_bytes // 8)


def _cycles(problem: Problem, channels: int, n_count: int) -> float:
    """Rough cycles of a cell and group: vectors multiplied, and channels transposed into panels in channels_first."""
    vectors = ceil_div(n_count, lanes_of(problem))
    return channels * vectors + (n_count * tuning.TRANSPOSING if problem.layout == "channels_first" else 0)


def _swaps(problem: Problem) -> bool:
    """Whether the vectors should run over the input channels: with one tap, cell by cell, x and dy are alike."""
    window = problem.window
    if problem.dtype.itemsize < 4 or window.tap_count > 1 or window.input_size != window.output_size:
        return False
    if any(window.pad_low) or set(window.stride) != {1}:
        return False
    if problem.groups > 1 and problem.layout == "channels_last":  # each row of the result has channels of every group
        return False
    c, n = problem.channels_in // problem.groups, problem.channels_out // problem.groups
    return _cycles(problem, n, c) < tuning.SWAP_RESERVE * _cycles(problem, c, n)


@planned_for_threads
def filter_plan(threads: int, problem: Problem, padded: bool = True, pairs: bool = False) -> FilterPlan:
    """padded: x may be padded with zeros, as a dy that is not finite would be found in the result (`checked`).

    pairs: of bfloat16 (pairs.py), which are padded always.
    """
    swaps = _swaps(problem)
    if swaps:
        problem = replace(problem, channels_in=problem.channels_out, channels_out=problem.channels_in)
    return _plan(problem, swaps, padded, pairs, 2 if pairs else threads)


def _runs(outer: int, outer_pitch: int, inner: int, inner_pitch: int, run_bytes: int) -> dict[str, int]:
    return {"outer": outer, "outer_pitch": outer_pitch, "inner": inner, "inner_pitch": inner_pitch, "bytes": run_bytes}


def _block_runs(
    problem: Problem, sweep: Sweep, cut: FilterBlocks, x: tuple[int, ...], y: tuple[int, ...]
) -> tuple[dict[str, int], dict[str, int]]:
    """The Runs that a block reads of x and of dy. A hint, rough at the edges.

    x, y: bytes between channels, cells, rows and images.
    """
    size, n = problem.dtype.itemsize, min(sweep.target_channels, cut.range_blocks * 2 * lanes_of(problem))
    d, h, w = sweep.axes
    if problem.layout == "channels_first":
        cells = cut.rows * cut.cols * size
        read = cells * h.source_step * w.source_step
        return _runs(cut.images, x[3], cut.range_channels, x[0], read), _runs(cut.images, y[3], n, y[0], cells)
    channels = min(cut.range_channels, sweep.source_channels)
    rows, row_pitch = cut.images * d.source_size * cut.rows, h.source_step * x[2]
    if h.source_step > 1 and h.high > h.low:
        rows, row_pitch = rows * h.source_step, x[2]
    x_runs = _runs(rows, row_pitch, cut.cols, w.source_step * x[1], channels * size)
    if channels == problem.channels_in and (w.source_step == 1 or w.high > w.low):  # no cell is left out
        x_runs = _runs(rows, row_pitch, 1, 0, cut.cols * w.source_step * x[1])
    y_rows = cut.images * d.target_size * cut.rows
    y_runs = _runs(y_rows, y[2], cut.cols, y[1], n * size)
    if n == problem.channels_out:
        y_runs = _runs(y_rows, y[2], 1, 0, cut.cols * y[1])
    return x_runs, y_runs


def _plan(problem: Problem, swapped: bool, padded: bool, pairs: bool, threads: int) -> FilterPlan:
    sweep = sweep_of(problem)
    size, wide, v = problem.dtype.itemsize, wide_of(problem), lanes_of(problem)
    last = problem.layout == "channels_last"
    d, h, w = sweep.axes
    n_count = sweep.target_channels
    # Taps are side by side in the memory of x itself where no row needs padding.
    plain_rows = last and size == wide and sweep.groups == 1 and not w.is_padded
    merged = merged_taps(sweep, plain_rows)
    channels, taps = sweep.source_channels, problem.window.tap_count
    x_channel, x_cell, x_row, x_plane, x_image = pitches(
        problem.layout, size, problem.channels_in, (d.source_size, h.source_size, w.source_size)
    )
    y_channel, y_cell, y_row, y_plane, y_image = pitches(
        problem.layout, size, problem.channels_out, (d.target_size, h.target_size, w.target_size)
    )
    in_place = plain_rows if merged > 1 else size == wide and (last or _spread_in_l1(x_channel))
    sums_bytes = sweep.groups * taps * channels * n_count * wide
    tap_kernel = list(sweep.tap_kernel)
    if merged > 1:
        channels, taps, tap_kernel[2] = channels * merged, taps // merged, 1
    n_padded = round_up(n_count, v)
    n_blocks = ceil_div(n_count, 2 * v)
    cut = filter_blocks(sweep, channels, taps, merged, v, wide, in_place, last, threads)
    range_channels, range_blocks, images, rows, cols = cut.range_channels, cut.range_blocks, cut.images, cut.rows, cut.cols
    dy_in_place = last and size == wide
    whole_sums = in_place
    if last and taps == 1 == merged and _crowds_l2(cut.most_channels * size, w.source_step * x_cell):
        in_place = False
    # Cells that no tap reads are left out of a packed block.
    grid = [1, 1, 1] if in_place else [1, h.grid(h.target_size), w.grid(w.target_size) if last else 1]
    low = [0, 0, 0] if in_place else [0, h.low, w.low]
    hop = [axis.source_step // grid[i] for i, axis in enumerate(sweep.axes)]
    reach = [(axis.high - axis.low) // grid[i] + 1 for i, axis in enumerate(sweep.axes)]
    channel_ranges, n_ranges = ceil_div(channels, range_channels), ceil_div(n_blocks, range_blocks)
    pieces = cut.parts * sweep.groups * channel_ranges * n_ranges
    work = sweep.images * math.prod(axis.target_size for axis in sweep.axes) * taps * channels * n_count * sweep.groups
    if merged > 1:
        columns = _merged_entries(w, sweep.source_channels, low[2], padded)
    else:
        columns = axis_entries(w, tap_kernel[2], low[2], grid[2])
        if pairs:
            columns[w.phases[0].taps.start : w.phases[0].taps.stop, 1:] = 0, w.target_size
        columns = np.append(columns, np.broadcast_to([0, channels, 0], columns.shape), axis=1)
    entries = tap_table(sweep, tap_kernel, low, grid, columns)
    place = range_channels // merged * wide
    line = ((cols - 1) * hop[2] + reach[2]) * place
    plane = ((rows - 1) * hop[1] + reach[1]) * line
    area_bytes = 0 if in_place else images * d.source_size * plane
    panel_start = round_up(area_bytes, LINE)
    panel_bytes = images * d.target_size * rows * (ceil_div(cols, 2) if pairs else cols) * 2 * v * wide
    table_start = panel_start + (1 if dy_in_place else range_blocks) * panel_bytes
    table_bytes = 8 * images * d.target_size * rows * (1 + cols // SHORTEST_K_BLOCK)
    transposed = last == swapped  # the result has output channels by input channels, the sums have it the other way round
    straight = not transposed and whole_sums and cut.parts == 1
    x_run, y_run = _block_runs(problem, sweep, cut, (x_channel, x_cell, x_row, x_image), (y_channel, y_cell, y_row, y_image))
    lines = sum(run["outer"] * run["inner"] * ceil_div(run["bytes"], LINE) for run in (x_run, y_run))
    fetch = whole_sums and cut.blocks * pieces > cut.parts and lines * LINE <= machine().l2_bytes
    fetch = fetch and (d.source_size == 1 or rows == h.target_size)
    scratch = table_start + 3 * table_bytes + (8 * lines + table_bytes if fetch else 0) + LINE
    c_row = (problem.channels_out if straight and not swapped else n_count) * wide
    given: dict[str, Any] = {
        "x": None, "dy": None, "target": None, "groups": sweep.groups, "channel_ranges": channel_ranges,
        "range_channels": range_channels, "n_ranges": n_ranges, "range_blocks": range_blocks,
        "part_blocks": cut.part_blocks, "blocks": cut.blocks, "row_blocks": ceil_div(h.target_size, rows),
        "col_blocks": ceil_div(w.target_size, cols),
        "block_images": images, "block_rows": rows, "block_cols": cols, "images": sweep.images, "depths": d.target_size,
        "rows": h.target_size, "cols": w.target_size, "in_depth": d.source_size, "in_rows": h.source_size,
        "in_cols": w.source_size, "x_image": x_image, "x_plane": x_plane, "x_row": x_row, "x_cell": x_cell,
        "x_channel": x_channel, "y_image": y_image, "y_plane": y_plane, "y_row": y_row, "y_cell": y_cell,
        "y_channel": y_channel, "step_h": h.source_step, "step_w": w.source_step,
        "channels": channels, "out_channels": n_count, "padded_channels": n_padded, "taps": len(entries),
        "tap_table": entries, "in_place": int(in_place), "low_h": low[1],
        "low_w": low[2], "grid_h": grid[1], "grid_w": grid[2], "hop_d": hop[0], "hop_h": hop[1], "hop_w": hop[2],
        "reach_h": reach[1], "reach_w": reach[2], "place_bytes": place, "line_bytes": line,
        "plane_bytes": plane, "volume_bytes": d.source_size * plane, "panel_start": panel_start,
        "panel_bytes": 0 if dy_in_place else panel_bytes,  # in place, only the last block of channels can need one
        "table_start": table_start, "sums_part": sums_bytes, "sums_row": c_row, "sums_tap": channels * c_row,
        "sums_group": n_count * wide if straight and not swapped else taps * channels * c_row, "merged": merged,
        "x_channels": sweep.source_channels, "dy_in_place": int(dy_in_place), "prefetches": int(fetch),
        "table_bytes": table_bytes, "block_runs": Runs.table([x_run, y_run]),
    }  # fmt: skip
    compiled = Variant("conv.filter_gradient", "sums", problem.dtype.name, (("channels_first", not last),), pairs)
    sums = make_plan(compiled, FilterGradientSums, pieces, scratch, work // 4, given)
    checked = pairs or (merged > 1 and w.is_padded and padded)
    if straight:
        return FilterPlan(sums, None, 0, checked, swapped)
    groups, channels, taps = sweep.groups, sweep.source_channels, problem.window.tap_count
    if swapped and not transposed:  # rows of all groups follow each other, here and there
        groups, channels = 1, groups * channels
    rows_each = max(ceil_div(groups * channels, tuning.PIECES), ceil_div(v, taps))
    fields = {
        "sums": None, "target": None, "parts": cut.parts, "part_bytes": sums_bytes, "rows_each": rows_each,
        "groups": groups, "channels": channels, "out_channels": n_count, "taps": taps,
    }  # fmt: skip
    compiled = Variant("conv.filter_gradient", "finish", problem.dtype.name, (("channels_first", transposed),))
    pieces, scratch = ceil_div(groups * channels, rows_each), TRANSPOSED_ROWS * 4 * v * wide
    finish = make_plan(compiled, FilterGradientFinish, pieces, scratch, cut.parts * sums_bytes, fields)
    return FilterPlan(sums, finish, cut.parts * sums_bytes, checked, swapped)
