"""Plans of depthwise convolutions in channels_first, in place: square undilated windows of a few sizes, stride 1 or 2.

See kernels/depthwise_slide.py. In channels_last the same was slower than cells laid out in scratch: what lies a row of channels
apart meets in few sets of the first-level cache.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.conv.common import lanes_of, moved_bytes, wide_of
from pullback.cpu.depthwise.cells import FilterPlans, add_plan, filter_pieces
from pullback.cpu.depthwise.records import SlideGather, SlideProducts, SlideWeave
from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import grouped, streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.records import Record
from pullback.problem import Problem

MODULE = "depthwise.slide"
SPARE = 1 << 10  # of the kernels
STAGE_BYTES = 32 << 10  # of target rows, which may wait in scratch to be streamed
FEWEST_ROWS = 8  # of a block: the rows above it are read again
SIZES = (3, 5)  # of the windows that machine code is made for
FULL = 0.6  # of the lanes of a row's vectors that must be used


def slides(problem: Problem) -> bool:
    """Whether these kernels take a depthwise problem."""
    window = problem.window
    if problem.layout != "channels_first" or window.rank != 2 or problem.channels_in != problem.channels_out:
        return False
    size, stride = window.kernel[0], window.stride[0]
    if window.kernel != (size, size) or window.stride != (stride, stride) or window.dilation != (1, 1):
        return False
    if size not in SIZES or stride not in (1, 2) or not machine().masks_memory:
        return False
    cols, lanes = window.output_size[1], lanes_of(problem)
    return cols >= FULL * (-(-cols // lanes) * lanes)


def _variant(problem: Problem, kernel: str) -> Variant:
    taps, stride = problem.window.kernel[0], problem.window.stride[0]
    return Variant(MODULE, kernel, problem.dtype.name, (("taps", taps), ("stride", stride)))


def _block_rows(problem: Problem, rows: int, cols: int) -> int:
    """Target rows of a block."""
    return min(rows, max(FEWEST_ROWS, STAGE_BYTES // (cols * problem.dtype.itemsize)))


@planned
def gather_plan(problem: Problem) -> Plan:
    """conv and conv_grad_input with finite weights."""
    window, moved, wide = problem.window, moved_bytes(problem), wide_of(problem)
    (taps, _), (stride, _), pads = window.kernel, window.stride, window.pad_low
    forward = problem.op == "conv"
    source, target = (window.input_size, window.output_size) if forward else (window.output_size, window.input_size)
    record: type[Record]
    given: dict[str, Any] = {
        "source": None, "weights": None, "target": None, "source_rows": source[0], "source_cols": source[1], "rows": target[0],
        "cols": target[1], "groups": problem.groups, "group_weights": taps * taps * wide,
    }  # fmt: skip
    block, step = _block_rows(problem, *target), wide
    if forward or stride == 1:
        name, record, staged, blocks = "gather", SlideGather, block, -(-target[0] // block)
        low, start = [-pad for pad in pads], 0
        if not forward:  # a gradient of stride 1 is a convolution with the window turned round
            low, start, step = [pad - taps + 1 for pad in pads], (taps * taps - 1) * wide, -wide
        given |= {"low_h": low[0], "low_w": low[1], "weight_start": start}
    else:
        name, record = "weave", SlideWeave
        firsts = [pad // stride for pad in pads]
        lasts = [(n - 1 + pad) // stride + 1 for n, pad in zip(target, pads, strict=True)]
        block = -(-block // stride)
        staged, blocks = block * stride, -(-(lasts[0] - firsts[0]) // block)
        given |= {
            "first_row": firsts[0], "last_row": lasts[0], "first_column": firsts[1], "last_column": lasts[1],
            "low_h": pads[0], "low_w": pads[1],
        }  # fmt: skip
    stage = 2 * SPARE if streams(moved) else 0
    units = problem.batch * problem.groups * blocks
    group, pieces = grouped(units, moved)
    given |= {
        "group": group, "units": units, "blocks": blocks, "block_rows": block, "stage": stage,
        "weight_row": taps * step, "weight_column": step,
    }  # fmt: skip
    scratch = 2 * SPARE + (staged * target[1] * problem.dtype.itemsize if stage else 0)
    return make_plan(_variant(problem, name), record, pieces, scratch, moved, given)


@planned
def filter_plans(problem: Problem) -> FilterPlans:
    window, groups = problem.window, problem.groups
    (taps, _), (rows, cols) = window.kernel, window.output_size
    block = _block_rows(problem, rows, cols)
    blocks = -(-rows // block)
    units = problem.batch * blocks
    group_block, parts, group, chunks = filter_pieces(groups, units)
    bytes_each = taps * taps * groups * wide_of(problem)
    given = {
        "source": None, "dy": None, "sums": None, "group": group, "units": units, "groups": groups, "group_block": group_block,
        "chunks": chunks, "sums_bytes": bytes_each, "blocks": blocks, "block_rows": block, "source_rows": window.input_size[0],
        "source_cols": window.input_size[1], "rows": rows, "cols": cols, "low_h": -window.pad_low[0],
        "low_w": -window.pad_low[1], "own_start": SPARE,
    }  # fmt: skip
    scratch = SPARE + taps * taps * machine().vector_bytes
    products = make_plan(_variant(problem, "products"), SlideProducts, parts * chunks, scratch, moved_bytes(problem), given)
    return FilterPlans(products, add_plan(problem, chunks, bytes_each), chunks * bytes_each)
