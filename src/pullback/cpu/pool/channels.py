"""Plans of pooling with vectors of channels (channels_last): max_pool, avg_pool and avg_pool_grad."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sizes import AHEAD, ceil_div, sum_bytes
from pullback.cpu.pool import choice, planes
from pullback.cpu.pool.common import Shape, Table, divisors, lanes_at_once, row_block, shape_of, simplified, variant
from pullback.cpu.pool.forward import blocked_columns, forward_fields, over_channels_fields, winner_row_bytes
from pullback.cpu.pool.records import ChannelsAvgForward, ChannelsAvgGrad, ChannelsMaxForward
from pullback.cpu.pool.tables import axis_table, in_three, lines_in_scratch, reader_table, same_divisor, sources
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.window import AdaptiveWindow, Window


def can(problem: Problem) -> str | None:
    if problem.layout != "channels_last":
        return "its vectors run over channels, which do not lie side by side in channels_first"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    lanes = machine().vector_bytes // sum_bytes(problem.dtype)
    fewest = lanes
    if problem.window.stride[-1] > 1:  # then vectors along rows hold cells that are not asked for
        fewest = lanes // (3 if problem.window.tap_count == 1 else 2)
    if problem.channels_in < fewest:
        return f"its vectors run over channels, and {problem.channels_in} fill too little of one of {lanes}"
    return None


def forward_pays(problem: Problem) -> str | None:
    """Of max_pool and avg_pool, and of a gradient that finds the winners first."""
    if (refused := pays(problem)) is not None:
        return refused
    if planes.can(problem) is None and choice.prefers_planes(problem):
        return "each tap of so few channels waits for the one before, and vectors along rows do not"
    return None


@planned
def forward_plan(problem: Problem, rows_each: int = 0) -> Plan:
    """max_pool or avg_pool; rows_each: output rows of a piece, or 0 for as many as pay."""
    problem = simplified(problem)
    shape, is_max = shape_of(problem), problem.winner is not None
    blocks, pieces = blocked_columns(shape, rows_each)
    fields, scratch = forward_fields(problem, shape, winner_row_bytes(problem, shape), wide_divisors=False)
    if is_max:
        step, far = problem.window.stride[-1] * shape.channels * shape.size, shape.moved_bytes > machine().l2_bytes
        fields = over_channels_fields(fields) | {"ahead": step * ceil_div(AHEAD, step) if far else 0}
    record = ChannelsMaxForward if is_max else ChannelsAvgForward
    compiled = variant(problem, "channels", "max_forward" if is_max else "avg_forward", finds_winners=is_max)
    return make_plan(compiled, record, pieces, scratch, shape.moved_bytes, fields | blocks)


def input_rows(problem: Problem, shape: Shape, rows_each: int) -> tuple[dict[str, Any], int, int]:
    """`target_rows` of a gradient, whose targets are the cells of the input."""
    window = in_three(problem.window)
    return target_rows(window, shape, axis_table(window), rows_each=rows_each)


def target_rows(
    window: Window | AdaptiveWindow, shape: Shape, axes: Table, *, forward: bool = False, rows_each: int = 0
) -> tuple[dict[str, Any], int, int]:
    """The fields of InputRows, pieces and scratch of a kernel that takes all target rows, those of `in_rows`, as one list.

    rows_each: target rows of a piece, which stay in the cache, or 0 for as many as pay.
    """
    total = shape.in_rows * shape.images
    block = rows_each or row_block(total, shape.in_row * shape.size)
    past_cache = not rows_each and streams(shape.input_bytes)
    whole = shape.channels % lanes_at_once(shape.wide) == 0  # then no store is masked, and each can pass the cache by itself
    stage = block * shape.in_row * shape.size if past_cache and not whole else 0
    lines, scratch = lines_in_scratch(window, forward, stage)
    given = lines | {
        "dy": None, "dx": None, "block": block, "images": shape.images, "rows": shape.in_rows, "channels": shape.channels,
        "stage": stage, "streams": int(past_cache and whole), "axes": axes,
        "col_readers": reader_table(sources(window, 2, forward)),
    }  # fmt: skip
    return given, ceil_div(total, block), scratch


@planned
def avg_grad_plan(problem: Problem, rows_each: int = 0) -> Plan:
    """rows_each: input rows of a piece, or 0 for as many as pay."""
    problem = simplified(problem)
    shape, window, rule = shape_of(problem), in_three(problem.window), problem.divisor
    assert rule is not None
    row_div, col_div = divisors(problem)
    depth_same, row_same, col_same = (
        same_divisor(np.maximum(window.axis_divisor(axis, rule), 1), window.readers(axis)) for axis in range(3)
    )
    given, pieces, scratch = input_rows(problem, shape, rows_each)
    given |= {
        "row_div": row_div, "col_div": col_div, "row_same": np.multiply.outer(depth_same, row_same).ravel(), "col_same": col_same,
    }  # fmt: skip
    return make_plan(
        variant(problem, "channels", "avg_grad"), ChannelsAvgGrad, pieces, scratch, shape.moved_bytes, given
    )  # fmt: skip
