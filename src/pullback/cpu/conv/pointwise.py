"""Plans of windows of one cell in channels_first, without transposing."""

from __future__ import annotations

import math

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
    sweep_arguments,
    wide_of,
    work_of,
)
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.conv.records import PointwiseSweep
from pullback.cpu.conv.sweep import sweep_of
from pullback.cpu.engine.memory import SMALLEST
from pullback.cpu.engine.pieces import streams
from pullback.cpu.engine.plan import make_plan
from pullback.cpu.engine.plan_cache import planned_for_threads
from pullback.cpu.engine.profile import profile
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up, tile_rows
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem


def can(problem: Problem) -> str | None:
    """Why not, if not."""
    window = problem.window
    if problem.layout != "channels_first":
        return "its vectors run over cells, and these lie in channels_last"
    if window.tap_count != 1 or window.input_size != window.output_size or set(window.stride) != {1} or any(window.pad_low):
        return "it is for windows of one cell, one for each cell"
    if problem.dtype.name not in ("float32", "float64"):
        return "it writes sums as they are, and these must be narrowed"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    """Why it would take longer than the direct kernel, if so."""
    sweep, v = sweep_of(problem), lanes_of(problem)
    cells, summed, out_channels = math.prod(problem.window.input_size), sweep.source_channels, sweep.target_channels
    wasted = ceil_div(cells, 2 * v) * 2 * v / cells - round_up(out_channels, v) / out_channels
    copied, transposed = tuning.COPIED * profile().copying, tuning.TRANSPOSED_RESULT * profile().transposing
    more = wasted * (1 + tuning.TILE_TERMS / summed) + copied / out_channels - transposed / summed
    if more > (tuning.WAITED if streams(moved_bytes(problem)) else 0):
        return "its vectors run over cells, and these would leave more of them empty than the output channels"
    return None


@planned_for_threads
def pointwise_plan(threads: int, problem: Problem, order: FilterOrder) -> ConvPlan:
    sweep = sweep_of(problem)
    wide, v = wide_of(problem), lanes_of(problem)
    channels, out_channels = sweep.source_channels, sweep.target_channels
    cells = math.prod(problem.window.input_size)
    rows, terms, _ = panel_terms(sweep, channels)
    most = max(2 * v, min(tuning.POINTWISE_CELLS, tuning.POINTWISE_BYTES // (channels * wide)) // (2 * v) * 2 * v)
    block = even_parts(cells, most, 2 * v)
    blocks = ceil_div(cells, block)
    # What a piece reads ahead is its own, so a piece has several blocks where there are enough of them.
    piece_blocks = max(
        1, min(blocks, blocks * sweep.images * sweep.groups // max(2 * tuning.PIECES, tuning.PIECES_EACH * threads))
    )
    pieces_each = ceil_div(blocks, piece_blocks)
    given = sweep_arguments(problem, sweep)
    k_block = k_block_of(terms)
    k_blocks = terms // k_block
    height = tile_rows()
    parts = sum(ceil_div(min(2 * v, out_channels - n0), height) for n0 in range(0, out_channels, 2 * v))
    fetching = parts * ceil_div(block, 2 * v) * k_blocks  # k-blocks of a whole block
    ahead, lines = lines_ahead(np.arange(channels) * given["source_channel"], block * wide, fetching)
    steps = np.arange(k_blocks, dtype=np.int64) * k_block
    made_bytes = math.prod(problem.output_shape if problem.op == "conv" else problem.input_shape) * wide
    whole_lines = cells * wide % LINE == 0 and made_bytes >= SMALLEST  # smaller arrays are not aligned
    given |= {
        "pieces_each": pieces_each, "piece_blocks": piece_blocks, "block_cells": block, "cells": cells, "k_blocks": k_blocks,
        "terms": terms, "k_block": k_block, "wide_table": steps * 2 * v * wide, "narrow_table": steps * v * wide,
        "prefetch_table": ahead, "prefetch_lines": lines, "stream": int(whole_lines and streams(moved_bytes(problem))),
    }  # fmt: skip
    scratch = ceil_div(block, 2 * v) * channels * 2 * v * wide
    compiled = Variant("conv.pointwise", "sweep", problem.dtype.name)
    swept = make_plan(
        compiled, PointwiseSweep, sweep.images * sweep.groups * pieces_each, scratch, work_of(sweep, terms), given
    )
    packed_bytes = sweep.groups * given["padded_channels"] * terms * wide
    return ConvPlan(pack_plan(problem, sweep, rows, terms, order, False), swept, packed_bytes, None)
