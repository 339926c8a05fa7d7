"""Plans of the direct convolution kernel (conv and conv_grad_input): the packed filter's panels, blocks that fit the caches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pullback.cpu.conv import tuning
from pullback.cpu.conv.common import (
    ConvPlan,
    even_parts,
    k_block_of,
    lanes_of,
    lines_ahead,
    moved_bytes,
    pack_plan,
    panel_terms,
    phase_table,
    sweep_arguments,
    wide_of,
    work_of,
)
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.conv.records import (
    CELLS_OF_IMAGES,
    MIDDLES_AND_COLUMNS,
    PARTS_OF_ROWS,
    ROWS_OF_CELLS,
    DirectSweep,
    TapList,
)
from pullback.cpu.conv.sweep import Sweep, sweep_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.memory import SMALLEST
from pullback.cpu.engine.pieces import streams
from pullback.cpu.engine.plan import make_plan
from pullback.cpu.engine.plan_cache import planned_for_threads
from pullback.cpu.engine.records import WORD
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up, tile_rows
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem


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
    group_parts: int
    part_groups: int


def _runs_over_images(sweep: Sweep) -> bool:
    """Such runs need no padding: they pay where many taps of short rows would meet none."""
    return sweep.images >= tuning.IMAGE_RUN and sweep.axes[2].taps_met() < tuning.TAPS_MET


def _edges_pay(sweep: Sweep, lanes: int) -> bool:
    """Whether to read the source in place although rows are padded: cells at their ends are made column by column, and the taps of
    a row one by one."""
    return sweep.source_channels >= 2 * lanes and sweep.axes[2].whole_share() >= tuning.WHOLE_COLUMNS


def taps_met(sweep: Sweep) -> float:
    """The share of its products that the kernel makes: taps above, below and beside the source are left out, but not in a run."""
    d, h, w = (axis.taps_met() for axis in sweep.axes)
    return d * h * (w if _runs_over_images(sweep) else 1.0)


def tile_cost(sweep: Sweep, lanes: int) -> float:
    """What a term of a tile takes, over one of a large tile that sums many: loops and calls beside its multiplications."""
    phases = len(sweep.phases)
    rows = even_parts(sweep.images if _runs_over_images(sweep) else sweep.axes[2].bases, tile_rows())
    vectors = min(2, ceil_div(sweep.target_channels, lanes))
    terms = sweep.source_channels * sum(math.prod(len(axis.taps) for axis in phase) for phase in sweep.phases) / max(1, phases)
    beside = tuning.TILE_LOOP + tuning.TILE_CALL / max(1.0, terms)
    return (1 + beside / max(1, rows * vectors)) / (1 + tuning.TILE_LOOP / (2 * tile_rows()))


def _filter_first(problem: Problem, sweep: Sweep) -> bool:
    """Whether the filter is larger than all that is read and made, so that its panels had better stay with a thread than these."""
    return sweep.groups == 1 and math.prod(problem.filter_shape) * problem.dtype.itemsize > moved_bytes(problem)


def choose_blocks(problem: Problem, sweep: Sweep, buffered: bool, threads: int, filter_first: bool) -> Blocks:
    """Blocks of channels whose panel stays in the second-level cache beside a block of source cells."""
    wide, v, l2 = wide_of(problem), lanes_of(problem), machine().l2_bytes
    d, h, w = sweep.axes
    height, taps = tile_rows(), sweep.most_taps
    channels = even_parts(sweep.source_channels, max(v, int(l2 * tuning.PANEL_L2) // (taps * 2 * v * wide)), v)
    place = channels * wide
    depth = d.places(1)

    def area(images: int, rows: int, cols: int) -> int:
        made = images * rows * h.target_step * cols * w.target_step * d.target_step * 2 * v * wide if buffered else 0
        return images * depth * h.kept_places(rows) * w.kept_places(cols) * place + made

    budget = int(l2 * tuning.BLOCK_L2)
    by_images = _runs_over_images(sweep)
    images = even_parts(sweep.images, height) if by_images else 1
    cols = w.bases
    while cols > height and area(images, 1, cols) > budget:
        cols = even_parts(w.bases, cols // 2, height)
    rows = h.bases
    while rows > 1 and area(images, rows, cols) > budget:
        rows = even_parts(h.bases, rows - 1)
    if not by_images and rows == h.bases and cols == w.bases:
        while images < sweep.images and area(images + 1, rows, cols) <= budget:
            images += 1
        images = even_parts(sweep.images, images)
    n_blocks = ceil_div(sweep.target_channels, 2 * v)

    def fewer_cells(most_cols: int, least_cols: int) -> bool:
        """Make the block smaller by images (not those of a tile), rows, or columns beyond `most_cols`; False where it cannot be."""
        nonlocal images, rows, cols
        if images > 1 and not by_images:
            images = even_parts(sweep.images, images - 1)
        elif rows > 1:
            rows = even_parts(h.bases, rows - 1)
        elif cols > most_cols:
            cols = even_parts(w.bases, max(least_cols, cols // 2), 1 if by_images else height)
        else:
            return False
        return True

    def touched() -> int:
        """Bytes of all groups of a block."""
        read = images * depth * ((rows - 1) * h.source_step + 1) * ((cols - 1) * w.source_step + 1) * sweep.source_channels
        made = images * rows * h.target_step * cols * w.target_step * d.target_step * sweep.target_channels
        return (read + made) * sweep.groups * problem.dtype.itemsize

    # In channels_last a group has a few bytes of each cell: a piece takes all groups, of few enough cells that these stay near.
    together = sweep.groups > 1 and problem.layout == "channels_last"
    part_groups = sweep.groups if together else 1
    while together and not by_images and images * rows * cols > 2 * height and touched() > l2 * tuning.GROUPS_L2:
        if not fewer_cells(2 * height, 2 * height):
            break

    def pieces() -> int:
        blocks = ceil_div(sweep.images, images) * d.bases * ceil_div(h.bases, rows) * ceil_div(w.bases, cols)
        return blocks * ceil_div(sweep.groups, part_groups)

    wanted, fewest = (tuning.PIECES, 4) if threads <= 4 else (tuning.PIECES_EACH * threads, 1)
    # A few pieces for every thread: first fewer cells a piece, as long as a panel is worth loading for them, then fewer channels.
    most_cols, least_cols = (1, 1) if by_images else (tuning.PIECE_CELLS, 6 * height)
    while pieces() < wanted and images * rows * cols > tuning.PIECE_CELLS:
        if not fewer_cells(most_cols, least_cols):
            break
    while pieces() < wanted and part_groups > 1:
        part_groups = even_parts(sweep.groups, part_groups - 1)
    range_blocks = n_blocks
    if filter_first:  # a range for each thread
        fewest = min(fewest, max(1, n_blocks // threads))
    while pieces() * ceil_div(n_blocks, range_blocks) < wanted and range_blocks > fewest:
        range_blocks = even_parts(n_blocks, range_blocks - 1)
    return Blocks(
        images, rows, cols, channels, ceil_div(n_blocks, range_blocks), range_blocks, by_images,
        ceil_div(sweep.groups, part_groups), part_groups,
    )  # fmt: skip


@planned_for_threads
def direct_plan(
    threads: int, problem: Problem, order: FilterOrder, padded: bool = True, pairs: bool = False
) -> ConvPlan:  # fmt: skip
    """padded: taps beside the source may be multiplied by zero, as all weights are finite. pairs: of bfloat16 (pairs.py)."""
    single = sweep_of(problem)
    sweep = replace(single, source_channels=ceil_div(single.source_channels, 2)) if pairs else single
    size, wide, v = problem.dtype.itemsize, wide_of(problem), lanes_of(problem)
    last = problem.layout == "channels_last"
    odd = pairs and single.source_channels % 2
    buffered = not last or (size != wide and not pairs)
    filter_first = _filter_first(problem, sweep)
    blocks = choose_blocks(problem, sweep, buffered, threads, filter_first)
    rows, terms, starts = panel_terms(sweep, blocks.channels)
    given = sweep_arguments(problem, single)
    if pairs:
        given |= {"channels": sweep.source_channels, "source_channel": 2 * given["source_channel"]}
    s_cell, s_row, s_plane, s_image = (given[f"source_{name}"] for name in ("cell", "row", "plane", "image"))
    d, h, w = sweep.axes
    one_block = blocks.channels == sweep.source_channels
    near = not buffered and not odd and (w.source_step * s_cell) % 2048 != 0
    edges = near and w.is_padded and not blocks.by_images and _edges_pay(sweep, v)
    in_place = near and (edges or not (w.is_padded or (sweep.is_padded and blocks.by_images)))
    buffered = buffered or (pairs and not one_block)
    low = [axis.low for axis in sweep.axes]
    counts = (1, blocks.rows, blocks.cols)
    grid = [1] * 3 if in_place else [axis.grid(count) for axis, count in zip(sweep.axes, counts, strict=True)]
    if not last:
        grid[2] = 1  # channels_first rows are transposed whole, which is quicker than picking cells
    reach = [(axis.high - low[i]) // grid[i] + 1 for i, axis in enumerate(sweep.axes)]
    hop = [axis.source_step // grid[i] if counts[i] > 1 else 0 for i, axis in enumerate(sweep.axes)]
    # Cells of taps that lie far apart are packed tap by tap.
    apart, parts, tap_grid = [0, 0, 0], [1, 1, 1], list(grid)
    for i, axis in enumerate(sweep.axes):
        if not in_place and i > 0 and axis.lies_apart(counts[i]):
            parts[i], apart[i] = len(axis.phases[0].taps), abs(axis.phases[0].offsets.step)
            grid[i], tap_grid[i], reach[i], hop[i] = axis.source_step, apart[i], 1, int(counts[i] > 1)
    part_places = [(count - 1) * hop[i] + reach[i] for i, count in enumerate(counts)]
    if in_place:
        place, line, plane, volume = s_cell, s_row, s_plane, s_image
    else:
        place = blocks.channels * wide
        if hop[2] * place % 1024 == 0:
            place += LINE  # the rows of a tile would share a few sets of the first-level cache
        line = parts[2] * part_places[2] * place
        plane = parts[1] * part_places[1] * line
        volume = reach[0] * plane
    part_bytes = [0, part_places[1] * line, part_places[2] * place]
    runs = CELLS_OF_IMAGES if blocks.by_images else ROWS_OF_CELLS if padded or not w.is_padded else PARTS_OF_ROWS
    runs = MIDDLES_AND_COLUMNS if edges else runs
    # Taps of one row whose cells follow each other are one longer k-block.
    row_taps = len(w.phases[0].offsets)
    side_by_side = all(len(phase.offsets) == row_taps and (row_taps < 2 or phase.offsets.step == grid[2]) for phase in w.phases)
    one_run = one_block and place == blocks.channels * wide and runs == ROWS_OF_CELLS and parts[2] == 1
    merged = max(1, row_taps) if one_run and side_by_side else 1
    # The next cells are prefetched a few lines at a time: all at once they would hold up the loads of the tile.
    prefetches = in_place and one_block and problem.window.tap_count == 1 and moved_bytes(problem) > machine().l2_bytes
    k_block = k_block_of(blocks.channels) if prefetches else blocks.channels * merged
    cuts = ceil_div(blocks.channels * merged, k_block)
    pitches = [part if of > 1 else pitch for pitch, part, of in zip((plane, line, place), part_bytes, parts, strict=True)]
    phases = phase_table(sweep, starts, tap_grid, pitches)
    area_bytes = 0 if in_place else blocks.images * volume
    buffer_start = round_up(area_bytes, LINE)
    buffer_n = 2 * v if one_block else blocks.range_blocks * 2 * v
    cells = blocks.images * d.target_step * blocks.rows * h.target_step * blocks.cols * w.target_step
    list_start = buffer_start + (cells * buffer_n * wide if buffered else 0)
    list_bytes = TapList.BYTES + 2 * WORD * sweep.most_taps * cuts
    slots = tuning.TAP_LISTS if list_bytes <= tuning.TAP_LIST_BYTES else 1
    scratch = list_start + slots * list_bytes
    block_bytes = sweep.most_taps * blocks.channels * 2 * v * wide
    panels = 1 if buffered else max(1, int(machine().l2_bytes * tuning.PANELS_L2) // block_bytes)
    # Sums that are finished at once, and would have left the cache before anybody reads them, need not go there.
    made_bytes = math.prod(problem.output_shape if problem.op == "conv" else problem.input_shape) * size
    whole_lines = sweep.target_channels * size % LINE == 0 and made_bytes >= SMALLEST  # smaller arrays are not aligned
    stream = whole_lines and one_block and not buffered and streams(moved_bytes(problem))
    ahead, lines = np.zeros(1, np.int64), 0
    if prefetches:
        calls = min(panels, blocks.range_blocks) * cuts
        ahead, lines = lines_ahead(np.arange(tile_rows()) * (hop[2] * place), blocks.channels * wide, calls)
    given |= {
        "group_parts": blocks.group_parts, "part_groups": blocks.part_groups,
        "ranges": blocks.ranges, "range_blocks": blocks.range_blocks, "row_blocks": ceil_div(h.bases, blocks.rows),
        "col_blocks": ceil_div(w.bases, blocks.cols), "block_images": blocks.images, "block_rows": blocks.rows,
        "block_cols": blocks.cols, "grid_d": grid[0], "grid_h": grid[1], "grid_w": grid[2],
        "hop_h": hop[1], "hop_w": hop[2], "reach_d": reach[0], "reach_h": reach[1], "reach_w": reach[2],
        "parts_h": parts[1], "parts_w": parts[2], "apart_h": apart[1], "apart_w": apart[2], "part_h": part_bytes[1],
        "part_w": part_bytes[2], "in_place": int(in_place), "place_bytes": place, "line_bytes": line, "plane_bytes": plane,
        "volume_bytes": volume,
        "base_row": hop[1] * line, "base_col": hop[2] * place, "block_channels": blocks.channels, "merged": merged,
        "terms": terms, "phase_table": phases, "columns": int(merged > 1), "runs": runs, "list_start": list_start,
        "list_bytes": list_bytes, "list_slots": slots, "cuts": cuts,
        "cut_bytes": k_block * wide, "buffered": int(buffered), "redo": None, "odd": int(odd),
        "zeroed": int(not buffered and not stream),
        "buffer_start": buffer_start, "buffer_n": buffer_n, "panels": panels, "stream": int(stream),
        "k_block": k_block if prefetches else 0, "prefetch_table": ahead, "prefetch_lines": lines,
    }  # fmt: skip
    pieces = ceil_div(sweep.images, blocks.images) * d.bases * given["row_blocks"] * given["col_blocks"]
    packed_bytes = sweep.groups * given["padded_channels"] * terms * wide
    given["range_pieces"] = pieces if filter_first else 0
    compiled = Variant("conv.direct", "sweep", problem.dtype.name, (("channels_first", not last),), pairs)
    swept = make_plan(compiled, DirectSweep, pieces * blocks.group_parts * blocks.ranges, scratch, work_of(sweep, terms), given)
    check = runs == ROWS_OF_CELLS and w.is_padded
    if pairs:
        rows = np.where(rows < 0, -1, 2 * rows).repeat(2, axis=1)[:, : single.source_channels]
        rows[:, 1::2] += rows[:, 1::2] >= 0
        if odd:
            rows[:, -1] = np.where(rows[:, -1] < 0, -1, -2 - rows[:, -1])
    packed = pack_plan(problem, single, rows, 2 * terms if pairs else terms, order, check, pairs)
    return ConvPlan(packed, swept, packed_bytes, sweep.target_cells)
