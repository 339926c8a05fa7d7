"""Plans of windows of one cell in channels_first; see kernels/conv_pointwise.py."""

from __future__ import annotations

import math

import numpy as np

from pullback.cpu.compiler import Variant, code
from pullback.cpu.conv_common import (
    LINE,
    PIECES,
    ConvPlan,
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
from pullback.cpu.conv_sweep import sweep_of
from pullback.cpu.filter_memory import FilterOrder
from pullback.cpu.memory import SMALLEST
from pullback.cpu.plan import make_plan
from pullback.cpu.plan_cache import planned
from pullback.cpu.pool_common import streams
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem

BLOCK_BYTES = 192 << 10  # of source cells in scratch
MOST_CELLS = 256  # of a block
# Against the direct kernel, in multiplications of a cell: what a tile costs beside its terms, copying a cell instead of turning it,
# turning a result, and how much of all the time the direct kernel waits for memory that is not asked for ahead. Measured.
TILE_TERMS, COPIED, TURNED, WAITED = 6, 2, 7, 0.2


def takes_pointwise(problem: Problem) -> str | None:
    """Why not, if not."""
    window = problem.window
    if problem.layout != "channels_first":
        return "its vectors run over cells, and these lie in channels_last"
    if window.tap_count != 1 or window.input_size != window.output_size or set(window.stride) != {1} or any(window.pad_low):
        return "it is for windows of one cell, one for each cell"
    if problem.dtype.name not in ("float32", "float64"):
        return "it writes sums as they are, and these must be narrowed"
    return ordinary(problem)


def prefers_pointwise(problem: Problem) -> str | None:
    """Why it would take longer than the direct kernel, if so."""
    sweep, v = sweep_of(problem), lanes_of(problem)
    cells, summed, produced = math.prod(problem.window.input_size), sweep.source_channels, sweep.target_channels
    wasted = -(-cells // (2 * v)) * 2 * v / cells - -(-produced // v) * v / produced
    more = wasted * (1 + TILE_TERMS / summed) + COPIED / produced - TURNED / summed
    if more > (WAITED if streams(moved_bytes(problem)) else 0):
        return "its vectors run over cells, and these would leave more of them empty than the produced channels"
    return None


@planned
def pointwise_plan(problem: Problem, order: FilterOrder) -> ConvPlan:
    sweep = sweep_of(problem)
    wide, v = wide_of(problem), lanes_of(problem)
    channels, produced = sweep.source_channels, sweep.target_channels
    cells = math.prod(problem.window.input_size)
    rows, terms, _ = panel_terms(sweep, channels)
    most = max(2 * v, min(MOST_CELLS, BLOCK_BYTES // (channels * wide)) // (2 * v) * 2 * v)
    block = even_parts(cells, most, 2 * v)
    blocks = -(-cells // block)
    # What a piece reads ahead is its own, so a piece has several blocks where there are enough of them.
    piece_blocks = max(1, min(blocks, blocks * sweep.images * sweep.groups // (2 * PIECES)))
    pieces_each = -(-blocks // piece_blocks)
    given = sweep_arguments(problem, sweep)
    stretch = stretch_of(terms)
    stretches = terms // stretch
    parts = sum(-(-min(2 * v, produced - n0) // tile_rows()) for n0 in range(0, produced, 2 * v))
    asking = parts * -(-block // (2 * v)) * stretches  # stretches of a whole block
    ahead, lines = lines_ahead(np.arange(channels) * given["source_channel"], block * wide, asking)
    steps = np.arange(stretches, dtype=np.int64) * stretch
    made_bytes = math.prod(problem.output_shape if problem.op == "conv" else problem.input_shape) * wide
    whole_lines = cells * wide % LINE == 0 and made_bytes >= SMALLEST  # smaller arrays are not aligned
    given |= {
        "pieces_each": pieces_each, "piece_blocks": piece_blocks, "block_cells": block, "cells": cells, "stretches": stretches,
        "stretch": stretch, "wide_table": steps * 2 * v * wide, "narrow_table": steps * v * wide, "ahead_table": ahead,
        "lines": lines, "stream": int(whole_lines and streams(moved_bytes(problem))),
    }  # fmt: skip
    scratch = -(-block // (2 * v)) * channels * 2 * v * wide
    compiled = code(Variant("conv_pointwise", "sweep", problem.dtype.name))
    swept = make_plan(compiled, sweep.images * sweep.groups * pieces_each, scratch, work_of(sweep, terms), given)
    packed_bytes = sweep.groups * given["n_padded"] * terms * wide
    return ConvPlan(pack_plan(problem, sweep, rows, terms, order, False), swept, packed_bytes, None)
