"""Plans of the direct convolution with vectors over target cells, and when they run faster than over output channels."""

from __future__ import annotations

import math

import numpy as np

from pullback.cpu.conv import tuning
from pullback.cpu.conv.common import (
    ConvPlan,
    Table,
    even_parts,
    lanes_of,
    pack_plan,
    panel_terms,
    phase_table,
    sweep_arguments,
    wide_of,
    work_of,
)
from pullback.cpu.conv.direct import taps_met, tile_cost
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.conv.records import CellsSweep, LaneRange
from pullback.cpu.conv.sweep import AxisSweep, Sweep, lies_far, sweep_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan import make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.records import WORD
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem


def _hop(axis: AxisSweep, block: int) -> int:
    return axis.source_step // axis.grid(block) if block > 1 else 1


def _splits(axis: AxisSweep, block: int) -> tuple[int, int]:
    """(splits of the places of an axis, places of one of them)."""
    hop = _hop(axis, block)
    return hop, ceil_div(axis.places(block), hop)


def cells_waste(problem: Problem, sweep: Sweep) -> float:
    """Computed cells for each cell wanted: what lies between rows, and the end of the last vector."""
    rows, cols = choose_block(problem, sweep)
    v = 2 * lanes_of(problem)
    made = round_up((rows - 1) * _splits(sweep.axes[2], cols)[1] + cols, v)
    return made / (rows * cols)


def _runs(problem: Problem, sweep: Sweep) -> int:
    """Runs of cells that are copied into planes and out of them: of each channel and row, and of each split of it."""
    rows, cols = choose_block(problem, sweep)
    d, h, w = sweep.axes
    blocks = sweep.images * d.bases * ceil_div(h.bases, rows) * ceil_div(w.bases, cols)
    lines = d.places(1) * min(h.places(rows), h.source_size)
    made = sweep.images * d.target_size * h.target_size
    return blocks * lines * _hop(w, cols) * sweep.source_channels + made * sweep.target_channels


def _cost_of_stride(stride: int, single: float) -> float:
    """Of a cell that a stride takes out of its row or puts into one: `single` where each goes by itself."""
    if stride in tuning.QUICK_STRIDES:
        return 0
    return tuning.CELLS_BY_THREE if stride == 3 else single


def costs(problem: Problem) -> tuple[float, float]:
    """Multiplications for each summed term of a cell, with vectors over cells and over output channels.

    Beside the lanes that they leave empty: one copies short runs, and transposes its source and its results in channels_last; the
    other leaves out taps that meet no cell, has small tiles where there are few channels, and transposes in channels_first, where
    it reads and writes few cells at a time.
    """
    sweep = sweep_of(problem)
    v, n, taps = lanes_of(problem), sweep.target_channels, problem.window.tap_count
    bases = sweep.images * math.prod(axis.bases * sum(len(phase.taps) for phase in axis.phases) for axis in sweep.axes)
    terms = max(1, bases)
    read = min(1.0, sweep.images * math.prod(axis.source_size for axis in sweep.axes) / terms)
    made = n * sweep.images * math.prod(axis.target_size for axis in sweep.axes) / (terms * sweep.source_channels)
    runs = tuning.CELLS_RUN * profile().moving * _runs(problem, sweep) / (terms * sweep.source_channels)
    cells, channels = tuning.CELLS_LOOP * n * cells_waste(problem, sweep) + runs, float(round_up(n, v))
    if problem.layout == "channels_last":
        cells += tuning.TRANSPOSED * profile().moving * (read + made)
    else:
        channels += tuning.TRANSPOSED_BLOCK * profile().transposing * n / (sweep.source_channels * taps)
    taken = _cost_of_stride(sweep.axes[2].source_step, tuning.CELLS_TAKEN)
    cells += taken * sweep.images * math.prod(axis.source_size for axis in sweep.axes) / terms
    cells += _cost_of_stride(sweep.axes[2].target_step, tuning.CELLS_PUT) * made
    return cells, channels * taps_met(sweep) * tile_cost(sweep, v)


def prefers_cells(problem: Problem) -> bool:
    """Whether vectors over cells take less time than over output channels, with some reserve."""
    if lies_far(problem.window):
        return False
    cells, channels = costs(problem)
    return cells < tuning.CELLS_RESERVE * channels


def choose_block(problem: Problem, sweep: Sweep) -> tuple[int, int]:
    """Rows and columns of bases in a piece: their planes and their results fit the second-level cache together."""
    wide = wide_of(problem)
    d, h, w = sweep.axes
    channels = min(sweep.source_channels, tuning.CELLS_CHANNELS)
    results = len(sweep.phases) * sweep.target_channels

    def block_bytes(rows: int, cols: int) -> int:
        lines = d.places(1) * math.prod(_splits(h, rows)) * math.prod(_splits(w, cols))
        return (channels * lines + results * rows * _splits(w, cols)[1]) * wide

    budget = int(machine().l2_bytes * tuning.CELLS_L2)
    rows, cols = h.bases, w.bases
    while cols > 64 and block_bytes(1, cols) > budget:
        cols = even_parts(w.bases, cols // 2)
    while rows > 1 and block_bytes(rows, cols) > budget:
        rows = even_parts(h.bases, rows - 1)
    return rows, cols


@planned
def cells_plan(problem: Problem, order: FilterOrder, padded: bool = True) -> ConvPlan:
    """padded: taps beside the source may be multiplied by zero, as all weights are finite."""
    sweep = sweep_of(problem)
    wide, v = wide_of(problem), lanes_of(problem)
    d, h, w = sweep.axes
    block_channels = even_parts(sweep.source_channels, tuning.CELLS_CHANNELS)
    rows, cols = choose_block(problem, sweep)
    places, terms, starts = panel_terms(sweep, block_channels)
    n_count = sweep.target_channels
    low = [axis.low for axis in sweep.axes]
    counts = (1, rows, cols)
    grid = [axis.grid(count) for axis, count in zip(sweep.axes, counts, strict=True)]
    reach = [(axis.high - low[i]) // grid[i] + 1 for i, axis in enumerate(sweep.axes)]
    hop_h, split_rows = _splits(h, rows)
    hop_w, line = _splits(w, cols)
    split = split_rows * line
    lines = reach[0] * hop_h * hop_w * split
    plane = round_up((lines + 4 * v) * wide, LINE)
    plane += LINE if plane // LINE % 2 == 0 else 0  # an odd number of lines: planes spread over all sets of a cache
    kept: list[Table] = []
    for phase in sweep.phases:
        offsets = np.ix_(*(np.array(axis.offsets, np.int64) for axis in phase))
        a, b, c = ((offset - low[i]) // grid[i] for i, offset in enumerate(offsets))
        at = ((a * hop_h + b % hop_h) * hop_w + c % hop_w) * split + b // hop_h * line + c // hop_w
        kept.append(np.append(at * wide, 0))  # never empty
    buffer_row = round_up((rows * line + 4 * v) * wide, LINE)
    buffer_start = block_channels * plane + 4 * v * wide
    table_start = buffer_start + len(starts) * n_count * buffer_row
    taps, columns = sweep.most_taps, max(len(phase.taps) for phase in w.phases)
    range_start = table_start + WORD * taps
    scratch = range_start if padded else range_start + WORD * taps + LaneRange.BYTES * (taps + columns)
    given = sweep_arguments(problem, sweep) | {
        "row_blocks": ceil_div(h.bases, rows), "col_blocks": ceil_div(w.bases, cols), "block_rows": rows, "block_cols": cols,
        "grid_d": grid[0], "grid_h": grid[1], "grid_w": grid[2], "hop_h": hop_h, "hop_w": hop_w,
        "reach_d": reach[0], "reach_h": reach[1], "reach_w": reach[2], "line_places": line, "split_places": split,
        "row_phases": len(w.phases),
        "plane_bytes": plane, "block_channels": block_channels, "terms": terms,
        "phase_table": phase_table(sweep, starts, grid, (0, 0, 0), kept),
        "buffer_start": buffer_start, "buffer_row": buffer_row, "table_start": table_start,
        "range_start": range_start, "most_taps": taps,
    }  # fmt: skip
    pieces = sweep.images * d.bases * given["row_blocks"] * given["col_blocks"] * sweep.groups
    last = problem.layout == "channels_last"
    compiled = Variant("conv.cells", "sweep" if padded else "skip", problem.dtype.name, (("channels_first", not last),))
    swept = make_plan(compiled, CellsSweep, pieces, scratch, work_of(sweep, terms), given, tuple(kept))
    packed_bytes = sweep.groups * given["padded_channels"] * terms * wide
    check = padded and sweep.is_padded
    return ConvPlan(pack_plan(problem, sweep, places, terms, order, check), swept, packed_bytes, sweep.target_cells)
