"""`group_planes`: grouped convolutions in channels_first, by source planes unpacked into scratch; see planes_kernel.py."""

from __future__ import annotations

import math

from pullback.cpu.conv.common import moved_bytes
from pullback.cpu.depthwise import filter_times, tuning
from pullback.cpu.depthwise.common import groups_pay, run_padded_filter_gradient, run_padded_gather, wide
from pullback.cpu.depthwise.partial_sums import FilterPlans, plane_pieces, with_add
from pullback.cpu.depthwise.planes_blocks import blocks_of, work_of
from pullback.cpu.depthwise.records import (
    PLANE_OUTS,
    SKIPPED_TAP,
    SPARE_SUMS,
    TAP_ENTRIES_SPARE,
    LaneRange,
    ListedOffsets,
    PlanesGather,
    PlanesProducts,
)
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import cut_pieces, streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sizes import LINE, round_up
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.rules import Array

MODULE = "depthwise.planes"


def can(problem: Problem) -> str | None:
    if problem.layout != "channels_first":
        return "its vectors run along planes, and channels_last has channels between their cells"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    if filter_times.is_dense(problem):
        return filter_times.why_not(problem, "planes")
    return groups_pay(problem)


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input."""
    return run_padded_gather(problem, source, filter, gather_plan, wide)


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    return run_padded_filter_gradient(problem, dy, x, filter_plans)


def time_of(problem: Problem) -> float:
    """About how long conv and conv_grad_input take, in the unit of tuning.PLANES_TIME."""
    work, unit = work_of(problem), tuning.PLANES_TIME
    rows = (work.unpacked + work.made) * (unit.row + work.strided * unit.strided_row)
    return unit.call + work.blocks * unit.block + rows + work.vectors * unit.vector + work.products * unit.product


@planned
def gather_plan(problem: Problem, padded: bool) -> Plan:
    """conv and conv_grad_input. padded: taps beside the source may be multiplied by zero, as all weights are finite."""
    blocks, moved = blocks_of(problem), moved_bytes(problem)
    given = blocks.given
    units = problem.batch * problem.groups * given["blocks"]
    per_piece, pieces = cut_pieces(units, moved)
    out_pitch = given["phases"] * blocks.plane_bytes
    stage = blocks.end + min(PLANE_OUTS, given["group_out_channels"]) * out_pitch
    staged = given["block_rows"] * given["cols"] * problem.dtype.itemsize if streams(moved) else 0
    entry_start = stage + round_up(staged, LINE)
    given |= {
        "weights": None, "target": None, "per_piece": per_piece, "units": units, "sum_start": blocks.end,
        "sum_pitch": blocks.plane_bytes, "out_pitch": out_pitch, "stage": stage if staged else 0, "entry_start": entry_start,
        "most_taps": blocks.most_taps,
    }  # fmt: skip
    compiled = Variant(MODULE, "gather" if padded else "gather_skipping", problem.dtype.name)
    scratch = entry_start if padded else entry_start + SKIPPED_TAP * blocks.most_taps
    return make_plan(compiled, PlanesGather, pieces, scratch, moved, given)


@planned
def filter_plans(problem: Problem, padded: bool = True) -> FilterPlans:
    """padded: taps beside the source may be multiplied by zero; a result that is not finite may be wrong then."""
    blocks, vector = blocks_of(problem), machine().vector_bytes
    pieces_given, pieces = plane_pieces(problem, problem.batch * blocks.given["blocks"])
    weights = math.prod(problem.filter_shape) // problem.groups
    entries = blocks.most_taps + TAP_ENTRIES_SPARE
    entry_start = blocks.end + blocks.plane_bytes
    range_start = entry_start + round_up(entries * ListedOffsets.BYTES, LINE)
    own_start = range_start + round_up(entries * LaneRange.BYTES, LINE)
    spare_start = own_start + weights * vector
    scratch = spare_start + SPARE_SUMS * vector
    given = blocks.given | pieces_given
    given |= {
        "dy_start": blocks.end, "entry_start": entry_start, "range_start": range_start, "own_start": own_start,
        "own_bytes": scratch - own_start, "spare_start": spare_start,
    }  # fmt: skip
    compiled = Variant(MODULE, "products" if padded else "products_skipping", problem.dtype.name)
    products = make_plan(compiled, PlanesProducts, pieces, scratch, moved_bytes(problem), given)
    return with_add(problem, products, given["chunks"], given["sums_bytes"])
