"""`slide_cells`: depthwise convolutions in channels_last, in place, for square undilated windows; see slide_cells_kernel.py."""

from __future__ import annotations

import math
from typing import Any

from pullback.cpu.conv.common import even_parts, lanes_of, moved_bytes
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.depthwise import cells, cells_filter, tuning
from pullback.cpu.depthwise.common import (
    depthwise_can,
    filter_gradient_steps,
    near,
    padded_gather_steps,
    run_padded_filter_gradient,
    run_padded_gather,
    several_groups,
    wide,
)
from pullback.cpu.depthwise.partial_sums import FilterPlans, with_add
from pullback.cpu.depthwise.records import SlideCellsGather, SlideCellsProducts
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.memory import SMALLEST
from pullback.cpu.engine.pieces import cut_pieces, streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sequence import Steps
from pullback.cpu.engine.sizes import LINE, ceil_div, sum_bytes
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem
from pullback.rules import Array


def can(problem: Problem) -> str | None:
    if (refused := depthwise_can(problem)) is not None:
        return refused
    if problem.layout != "channels_last":
        return "its vectors hold channels of one cell, and in channels_first these lie a plane apart"
    if problem.channels_in < lanes_of(problem):
        return "it is for at least a vector of channels"
    window = near(problem)[0].window
    size, stride = window.kernel[0], window.stride[0]
    square = (window.kernel, window.stride, window.dilation) == ((size, size), (stride, stride), (1, 1))
    if not square or size not in tuning.SLIDE_SIZES or stride not in tuning.SLIDE_STRIDES:
        windows = ", ".join(f"{n}x{n}" for n in tuning.SLIDE_SIZES)
        return f"its windows are constants of the machine code: {windows}, undilated, with stride 1 or 2"
    if problem.op == "conv_grad_input" and stride != 1:
        return "cells of an input gradient with a stride meet taps of their own"
    return None


def pays(problem: Problem) -> str | None:
    image = math.prod(problem.input_shape[1:]) * problem.dtype.itemsize
    if problem.op == "conv_grad_filter" and max(problem.window.stride) == 1 and image > tuning.SLIDE_CELLS_IMAGE:
        return "a filter gradient of large images is quicker where their rows are read in order"
    window = problem.window
    cols = (window.input_size if problem.op == "conv_grad_input" else window.output_size)[-1]
    most = tuning.SLIDE_CELLS_COLUMNS[min(window.stride[-1], 2)]
    if problem.op != "conv_grad_filter" and window.kernel[-1] == 3 and cols >= most:
        return "rows of this length are quicker where small windows go along them"
    return several_groups(problem)


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input. Weights that are not finite must not meet the zeros beside the rows."""
    return run_padded_gather(problem, source, filter, _gather_plan, wide)


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    return run_padded_filter_gradient(problem, dy, x, _filter_plans)


def steps(problem: Problem, order: FilterOrder) -> Steps | None:
    if problem.op != "conv_grad_filter":
        return padded_gather_steps(problem, _gather_plan, order)
    return filter_gradient_steps(filter_plans(near(problem)[0]), checked=True)


def _gather_plan(problem: Problem, padded: bool) -> Plan:
    return gather_plan(problem) if padded else cells.gather_plan(problem, False)


def _filter_plans(problem: Problem, padded: bool) -> FilterPlans:
    return filter_plans(problem) if padded else cells_filter.filter_plans(problem, False)


def _variant(problem: Problem, kernel: str) -> Variant:
    taps, stride = problem.window.kernel[0], problem.window.stride[0]
    return Variant("depthwise.slide_cells", kernel, problem.dtype.name, (("taps", taps), ("stride", stride)))


def _sizes(problem: Problem) -> dict[str, Any]:
    """Fields of a SlideCells record but for units."""
    window, channels, size = problem.window, problem.channels_in, problem.dtype.itemsize
    forward, taps, stride = problem.op != "conv_grad_input", window.kernel[0], window.stride[0]
    source, target = (window.input_size, window.output_size) if forward else (window.output_size, window.input_size)
    low = [-pad if forward else pad - taps + 1 for pad in window.pad_low]
    # Enough units for many threads: blocks of rows, but few rows twice; then parts of the channels, but whole lines of each cell.
    wanted = ceil_div(tuning.SLIDE_CELLS_UNITS, problem.batch)
    fewest = max(1, tuning.SLIDE_CELLS_HALOS * (taps - 1) // stride)
    block = even_parts(target[0], max(fewest, ceil_div(target[0], wanted)))
    parts = ceil_div(wanted, ceil_div(target[0], block))
    part = even_parts(channels, max(tuning.SLIDE_CELLS_CHANNELS, ceil_div(channels, parts)), lanes_of(problem))
    cell = channels * size
    return {
        "source": None, "channels": channels, "source_rows": source[0], "source_cols": source[1], "source_cell": cell,
        "source_pitch": source[1] * cell, "rows": target[0], "cols": target[1], "target_cell": cell,
        "target_pitch": target[1] * cell, "low_h": low[0], "low_w": low[1], "stride": stride,
        "blocks": ceil_div(target[0], block), "block_rows": block, "parts": ceil_div(channels, part), "part_channels": part,
    }  # fmt: skip


@planned
def gather_plan(problem: Problem) -> Plan:
    """conv and conv_grad_input."""
    given, moved, wide_size, taps = _sizes(problem), moved_bytes(problem), sum_bytes(problem.dtype), problem.window.kernel[0]
    units = problem.batch * given["blocks"] * given["parts"]
    per_piece, pieces = cut_pieces(units, moved)
    tap = problem.channels_in * wide_size
    start, step = (0, tap) if problem.op == "conv" else ((taps * taps - 1) * tap, -tap)  # a gradient has the window reversed
    target_bytes = problem.batch * given["rows"] * given["target_pitch"]
    vector = lanes_of(problem) * problem.dtype.itemsize
    lines = given["target_cell"] % LINE == 0 and vector % LINE == 0 and target_bytes >= SMALLEST  # smaller ones are not aligned
    given |= {
        "weights": None, "target": None, "weight_start": start, "weight_row": taps * step, "weight_column": step,
        "stream": int(streams(moved) and lines), "units": units, "per_piece": per_piece,
    }  # fmt: skip
    scratch = (2 + taps * taps) * machine().vector_bytes
    return make_plan(_variant(problem, "gather"), SlideCellsGather, pieces, scratch, moved, given)


@planned
def filter_plans(problem: Problem) -> FilterPlans:
    given, moved, lanes = _sizes(problem), moved_bytes(problem), lanes_of(problem)
    sums_bytes = math.prod(problem.filter_shape) * sum_bytes(problem.dtype)
    units = problem.batch * given["blocks"]
    worth = moved // max(tuning.LEAST_PIECE_BYTES, 2 * sums_bytes)
    most = max(1, min(units, tuning.CELLS_PIECES, tuning.PIECE_SUMS_BYTES // sums_bytes, worth))
    per_piece = ceil_div(units, most)
    chunks = ceil_div(units, per_piece)
    given |= {"dy": None, "sums": None, "sums_bytes": sums_bytes, "units": units, "per_piece": per_piece, "chunks": chunks}
    vectors = 1 + ceil_div(given["part_channels"], lanes) * problem.window.tap_count
    scratch, pieces = vectors * machine().vector_bytes, chunks * given["parts"]
    products = make_plan(_variant(problem, "products"), SlideCellsProducts, pieces, scratch, moved, given)
    return with_add(problem, products, chunks, sums_bytes)
