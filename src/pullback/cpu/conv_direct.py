"""Plans of the direct convolution kernel (conv and conv_grad_input): the packed filter's panels, blocks that fit the caches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from pullback.cpu.compiler import Variant, code
from pullback.cpu.conv_common import (
    LINE,
    PIECES,
    ConvPlan,
    Table,
    even_parts,
    lanes_of,
    lines_ahead,
    moved_bytes,
    pack_plan,
    panel_terms,
    stretch_of,
    sweep_arguments,
    tile_rows,
    wide_of,
    work_of,
)
from pullback.cpu.conv_sweep import Sweep, sweep_of
from pullback.cpu.filter_memory import FilterOrder
from pullback.cpu.machine import machine
from pullback.cpu.memory import SMALLEST
from pullback.cpu.plan import make_plan
from pullback.cpu.plan_cache import planned
from pullback.cpu.pool_common import streams
from pullback.problem import Problem

IMAGE_RUN = 7  # images in a block from which on a tile may hold one cell of each


@dataclass(frozen=True)
class Blocks:
    """How a sweep is cut into pieces, and its sums into blocks of channels."""

    images: int
    rows: int
    cols: int
    channels: int
    ranges: int
    range_blocks: int
    by_images: bool


def _runs_over_images(sweep: Sweep) -> bool:
    """Such runs need no padding: they pay where many taps of short rows would meet none."""
    return sweep.images >= IMAGE_RUN and sweep.axes[2].taps_met() < 0.98


def taps_met(sweep: Sweep) -> float:
    """The share of its products that the kernel makes: taps above, below and beside the source are left out, but not in a run."""
    d, h, w = (axis.taps_met() for axis in sweep.axes)
    return d * h * (w if _runs_over_images(sweep) else 1.0)


def choose_blocks(problem: Problem, sweep: Sweep, buffered: bool) -> Blocks:
    """Blocks of channels whose panel stays in the second-level cache beside a block of source cells."""
    wide, v, l2 = wide_of(problem), lanes_of(problem), machine().l2_bytes
    d, h, w = sweep.axes
    taps = max(1, *(len(sweep.tap_numbers(phase)) for phase in sweep.phases))
    channels = even_parts(sweep.source_channels, max(v, l2 // 5 // (taps * 2 * v * wide)), v)
    place = channels * wide
    depth = d.places(1)

    def area(images: int, rows: int, cols: int) -> int:
        made = images * rows * h.target_step * cols * w.target_step * d.target_step * 2 * v * wide if buffered else 0
        return images * depth * h.places(rows) * w.places(cols) * place + made

    budget = l2 * 2 // 5
    by_images = _runs_over_images(sweep)
    images = even_parts(sweep.images, 14) if by_images else 1
    cols = w.bases
    while cols > 14 and area(images, 1, cols) > budget:
        cols = even_parts(w.bases, cols // 2, 14)
    rows = h.bases
    while rows > 1 and area(images, rows, cols) > budget:
        rows = even_parts(h.bases, rows - 1)
    if not by_images and rows == h.bases and cols == w.bases:
        while images < sweep.images and area(images + 1, rows, cols) <= budget:
            images += 1
        images = even_parts(sweep.images, images)
    n_blocks = -(-sweep.target_channels // (2 * v))

    def pieces() -> int:
        return -(-sweep.images // images) * d.bases * -(-h.bases // rows) * -(-w.bases // cols) * sweep.groups

    # A few pieces for every thread: first fewer cells a piece, as long as a panel is worth loading for them, then fewer channels.
    while pieces() < PIECES and images * rows * cols > 96 and not by_images:
        if images > 1:
            images = even_parts(sweep.images, images - 1)
        elif rows > 1:
            rows = even_parts(h.bases, rows - 1)
        elif cols > 96:
            cols = even_parts(w.bases, max(84, cols // 2), 14)
        else:
            break
    range_blocks = n_blocks
    while pieces() * -(-n_blocks // range_blocks) < PIECES and range_blocks > 4:
        range_blocks = even_parts(n_blocks, range_blocks - 1)
    return Blocks(images, rows, cols, channels, -(-n_blocks // range_blocks), range_blocks, by_images)


def _phase_tables(
    sweep: Sweep,
    starts: list[int],
    merged: int,
    low: list[int],
    grid: list[int],
    pitches: tuple[int, ...],
    by_images: bool,
    cuts: list[int],
) -> list[Table]:
    """The table of phases (see the kernel), then the tables it points to.

    A list of taps is their count, where the cells they read lie from the first place of a base, and their numbers. Each tap may be
    cut into several, which begin so many bytes further.
    """
    kept: list[Table] = []

    def address(values: list[int]) -> int:
        kept.append(np.array(values or [0], np.int64))
        return int(kept[-1].ctypes.data)

    words: list[int] = []
    for phase, start in zip(sweep.phases, starts, strict=True):
        kinds, met = [], []
        for axis, swept in zip(phase, sweep.axes, strict=True):
            if axis is phase[2] and not by_images:  # runs along a row read zeros where there is no cell
                kinds.append([0])
                met.append([tuple(range(0, len(axis.offsets), merged))])
            else:
                axis_kinds, axis_met = axis.classes(swept.source_step, swept.source_size)
                kinds.append(axis_kinds)
                met.append(axis_met)
        lists = []
        for sets in product(*met):
            taps = list(product(*sets))
            numbers = [((a * len(phase[1].taps) + b) * len(phase[2].taps) + c) // merged for a, b, c in taps]
            places = [sum((phase[i].offsets[t] - low[i]) // grid[i] * pitches[i] for i, t in enumerate(tap)) for tap in taps]
            places = [place + cut for place in places for cut in cuts]
            numbers = [number * len(cuts) + i for number in numbers for i in range(len(cuts))]
            lists.append(address([len(places), *places, *numbers]))
        own = math.prod(len(axis.taps) for axis in phase)
        words += [*(axis.count for axis in phase), *(axis.start for axis in phase), start // sweep.source_channels, own]
        words += [address(kinds[0]), address(lists), address(kinds[1]), len(met[1]), address(kinds[2]), len(met[2])]
    return [np.array(words, np.int64), *kept]


@planned
def direct_plan(problem: Problem, order: FilterOrder) -> ConvPlan:
    sweep = sweep_of(problem)
    size, wide, v = problem.dtype.itemsize, wide_of(problem), lanes_of(problem)
    last = problem.layout == "channels_last"
    buffered = not last or size != wide
    blocks = choose_blocks(problem, sweep, buffered)
    rows, terms, starts = panel_terms(sweep, blocks.channels)
    given = sweep_arguments(problem, sweep)
    s_cell, s_row, s_plane, s_image = (given[f"source_{name}"] for name in ("cell", "row", "plane", "image"))
    d, h, w = sweep.axes
    one_block = blocks.channels == sweep.source_channels
    in_place = not buffered and not sweep.is_padded and (w.source_step * s_cell) % 2048 != 0
    low = [min(axis.offsets) for axis in sweep.axes]
    counts = (1, blocks.rows, blocks.cols)
    grid = [1] * 3 if in_place else [axis.grid(count) for axis, count in zip(sweep.axes, counts, strict=True)]
    if not last:
        grid[2] = 1  # channels_first rows are transposed whole, which is quicker than picking cells
    reach = [(max(axis.offsets) - low[i]) // grid[i] + 1 for i, axis in enumerate(sweep.axes)]
    hop = [axis.source_step // grid[i] if counts[i] > 1 else 0 for i, axis in enumerate(sweep.axes)]
    if in_place:
        place, line, plane, volume = s_cell, s_row, s_plane, s_image
    else:
        place = blocks.channels * wide
        if hop[2] * place % 1024 == 0:
            place += LINE  # the rows of a tile would share a few sets of the first-level cache
        line = ((blocks.cols - 1) * hop[2] + reach[2]) * place
        plane = ((blocks.rows - 1) * hop[1] + reach[1]) * line
        volume = reach[0] * plane
    # Taps of one row whose cells follow each other are one longer stretch of terms.
    side_by_side = all(
        tuple(np.diff(phase.offsets)) == (grid[2],) * (len(phase.offsets) - 1) for phase in w.phases
    ) and len({len(phase.offsets) for phase in w.phases}) == 1  # fmt: skip
    merged = (
        max(1, len(w.phases[0].offsets))
        if one_block and place == blocks.channels * wide and side_by_side and not blocks.by_images
        else 1
    )
    # The next cells are asked for a few lines at a time: all at once they would hold up the loads of the tile.
    asks = in_place and one_block and problem.window.tap_count == 1 and moved_bytes(problem) > machine().l2_bytes
    stretch = stretch_of(blocks.channels) if asks else blocks.channels * merged
    cuts = [at * wide for at in range(0, blocks.channels * merged, stretch)]
    tables = _phase_tables(sweep, starts, merged, low, grid, (plane, line, place), blocks.by_images, cuts)
    area_bytes = 0 if in_place else blocks.images * volume
    buffer_start = -(-area_bytes // LINE) * LINE
    buffer_n = 2 * v if one_block else blocks.range_blocks * 2 * v
    cells = blocks.images * d.target_step * blocks.rows * h.target_step * blocks.cols * w.target_step
    scratch = buffer_start + (cells * buffer_n * wide if buffered else 0)
    block_bytes = max(1, *(len(sweep.tap_numbers(phase)) for phase in sweep.phases)) * blocks.channels * 2 * v * wide
    panels = 1 if buffered else max(1, machine().l2_bytes // 2 // block_bytes)
    # Sums that are finished at once, and would have left the cache before anybody reads them, need not go there.
    made_bytes = math.prod(problem.output_shape if problem.op == "conv" else problem.input_shape) * size
    whole_lines = sweep.target_channels * size % LINE == 0 and made_bytes >= SMALLEST  # smaller arrays are not aligned
    stream = whole_lines and one_block and not buffered and streams(moved_bytes(problem))
    ahead, lines = np.zeros(1, np.int64), 0
    if asks:
        calls = min(panels, blocks.range_blocks) * len(cuts)
        ahead, lines = lines_ahead(np.arange(tile_rows()) * (hop[2] * place), blocks.channels * wide, calls)
    given |= {
        "ranges": blocks.ranges, "range_blocks": blocks.range_blocks, "row_blocks": -(-h.bases // blocks.rows),
        "col_blocks": -(-w.bases // blocks.cols), "block_images": blocks.images, "block_rows": blocks.rows,
        "block_cols": blocks.cols, "grid_d": grid[0], "grid_h": grid[1], "grid_w": grid[2],
        "hop_h": hop[1], "hop_w": hop[2], "reach_d": reach[0], "reach_h": reach[1], "reach_w": reach[2],
        "in_place": int(in_place), "place_bytes": place, "line_bytes": line, "plane_bytes": plane, "volume_bytes": volume,
        "base_row": hop[1] * line, "base_col": hop[2] * place, "block_channels": blocks.channels, "merged": merged,
        "terms": terms, "phase_table": tables[0], "by_images": int(blocks.by_images), "buffered": int(buffered),
        "buffer_start": buffer_start, "buffer_n": buffer_n, "panels": panels, "stream": int(stream),
        "stretch": stretch if asks else 0, "ahead_table": ahead, "lines": lines,
    }  # fmt: skip
    pieces = -(-sweep.images // blocks.images) * d.bases * given["row_blocks"] * given["col_blocks"]
    compiled = code(Variant("conv_direct", "sweep", problem.dtype.name, (("first", not last),)))
    swept = make_plan(
        compiled, pieces * sweep.groups * blocks.ranges, scratch, work_of(sweep, terms), given, tuple(tables)
    )  # fmt: skip
    packed_bytes = sweep.groups * given["n_padded"] * terms * wide
    return ConvPlan(pack_plan(problem, sweep, rows, terms, order), swept, packed_bytes)
