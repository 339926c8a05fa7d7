"""`slide`: depthwise convolutions in channels_first, in place, for square undilated windows of a few sizes and strides.

See slide_kernel.py. In channels_last the same was slower than cells copied into scratch: what lies a row of channels apart shares
few sets of the first-level cache.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.common import lanes_of, moved_bytes
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.depthwise import flat, tuning
from pullback.cpu.depthwise.common import (
    in_place_can,
    in_place_steps,
    near,
    run_filter_gradient,
    run_gather,
    several_groups,
    wide,
)
from pullback.cpu.depthwise.partial_sums import FilterPlans, plane_pieces, with_add
from pullback.cpu.depthwise.records import SLIDE_SPARE, SlideGather, SlideInterleave, SlideProducts
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import cut_pieces, streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.records import Record
from pullback.cpu.engine.sequence import Steps
from pullback.cpu.engine.sizes import ceil_div, round_up, sum_bytes
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem
from pullback.rules import Array


def can(problem: Problem) -> str | None:
    if (refused := in_place_can(problem)) is not None:
        return refused
    window = near(problem)[0].window
    size, stride = window.kernel[0], window.stride[0]
    square = (window.kernel, window.stride, window.dilation) == ((size, size), (stride, stride), (1, 1))
    if not square or size not in tuning.SLIDE_SIZES or stride not in tuning.SLIDE_STRIDES:
        windows = ", ".join(f"{n}x{n}" for n in tuning.SLIDE_SIZES)
        return f"its windows are constants of the machine code: {windows}, undilated, with stride 1 or 2"
    if problem.op == "conv_grad_filter" and size > tuning.SLIDE_PRODUCTS:
        return f"sums of more than {tuning.SLIDE_PRODUCTS}x{tuning.SLIDE_PRODUCTS} taps do not fit the registers"
    return None


def pays(problem: Problem) -> str | None:
    if (refused := several_groups(problem)) is not None:
        return refused
    cols, size = problem.window.output_size[1], problem.window.kernel[0]
    used = tuning.SLIDE_USED_LANES[size] if flat.can(problem) is None else tuning.SLIDE_FEWEST_LANES
    if cols >= used * round_up(cols, lanes_of(problem)):
        return None
    return "its vectors hold columns of one row, and these fill them badly"


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input; under masks no zero is met."""
    problem, _ = near(problem)
    return run_gather(problem, gather_plan(problem), source, wide(problem, filter))


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    problem, _ = near(problem)
    return run_filter_gradient(problem, filter_plans(problem), dy, x)


def steps(problem: Problem, order: FilterOrder) -> Steps | None:
    return in_place_steps(problem, order, gather_plan, filter_plans)


def _variant(problem: Problem, kernel: str) -> Variant:
    taps, stride = problem.window.kernel[0], problem.window.stride[0]
    return Variant("depthwise.slide", kernel, problem.dtype.name, (("taps", taps), ("stride", stride)))


def _block_rows(problem: Problem, rows: int, cols: int) -> int:
    """Target rows of a block."""
    return min(rows, max(tuning.SLIDE_BLOCK_ROWS, tuning.SLIDE_BLOCK_BYTES // (cols * problem.dtype.itemsize)))


def _sizes(problem: Problem, source: tuple[int, ...], target: tuple[int, ...], low: list[int]) -> dict[str, Any]:
    return {
        "source": None, "groups": problem.groups, "source_rows": source[0], "source_cols": source[1], "rows": target[0],
        "cols": target[1], "low_h": low[0], "low_w": low[1],
    }  # fmt: skip


@planned
def gather_plan(problem: Problem) -> Plan:
    """conv and conv_grad_input."""
    window, moved, wide_size = problem.window, moved_bytes(problem), sum_bytes(problem.dtype)
    (taps, _), (stride, _), pads = window.kernel, window.stride, window.pad_low
    forward = problem.op == "conv"
    source, target = (window.input_size, window.output_size) if forward else (window.output_size, window.input_size)
    record: type[Record]
    block, step = _block_rows(problem, *target), wide_size
    if forward or stride == 1:
        name, record, staged, blocks = "gather", SlideGather, block, ceil_div(target[0], block)
        low, more = [-pad for pad in pads], {"weight_start": 0}
        if not forward:  # a gradient of stride 1 is a convolution with the window reversed
            low, more, step = [pad - taps + 1 for pad in pads], {"weight_start": (taps * taps - 1) * wide_size}, -wide_size
    else:
        name, record, low = "interleave", SlideInterleave, list(pads)
        firsts = [pad // stride for pad in pads]
        lasts = [(n - 1 + pad) // stride + 1 for n, pad in zip(target, pads, strict=True)]
        more = {"first_row": firsts[0], "last_row": lasts[0], "first_column": firsts[1], "last_column": lasts[1]}
        block = ceil_div(block, stride)
        staged, blocks = block * stride, ceil_div(lasts[0] - firsts[0], block)
    scratch = 2 * SLIDE_SPARE
    stage = scratch if streams(moved) else 0
    units = problem.batch * problem.groups * blocks
    per_piece, pieces = cut_pieces(units, moved)
    given = _sizes(problem, source, target, low) | more
    given |= {
        "weights": None, "target": None, "per_piece": per_piece, "units": units, "blocks": blocks, "block_rows": block,
        "stage": stage,
        "group_weights": taps * taps * wide_size, "weight_row": taps * step, "weight_column": step,
    }  # fmt: skip
    scratch += staged * target[1] * problem.dtype.itemsize if stage else 0
    return make_plan(_variant(problem, name), record, pieces, scratch, moved, given)


@planned
def filter_plans(problem: Problem) -> FilterPlans:
    window = problem.window
    source, target = window.input_size, window.output_size
    block = _block_rows(problem, *target)
    blocks = ceil_div(target[0], block)
    given, pieces = plane_pieces(problem, problem.batch * blocks)
    sizes = _sizes(problem, source, target, [-pad for pad in window.pad_low])
    sizes |= {"blocks": blocks, "block_rows": block, "own_start": SLIDE_SPARE}
    scratch = SLIDE_SPARE + window.tap_count * machine().vector_bytes
    products = make_plan(_variant(problem, "products"), SlideProducts, pieces, scratch, moved_bytes(problem), given | sizes)
    return with_add(problem, products, given["chunks"], given["sums_bytes"])
