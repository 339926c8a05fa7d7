"""`group_cells`: grouped convolutions in channels_last; forward and input gradient are one gather (cells_kernel.py).

The filter gradient is in cells_filter.py.
"""

from __future__ import annotations

from pullback.cpu.conv.common import moved_bytes
from pullback.cpu.depthwise.cells_filter import filter_plans
from pullback.cpu.depthwise.cells_tables import cells_tables, in_place_tables, reads_in_place, sides_of
from pullback.cpu.depthwise.common import (
    group_channels,
    groups_pay,
    is_depthwise,
    run_padded_filter_gradient,
    run_padded_gather,
    wide,
)
from pullback.cpu.depthwise.records import CellsOneChannel, CellsSeveralChannels
from pullback.cpu.engine.memory import SMALLEST
from pullback.cpu.engine.pieces import streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned_for_threads
from pullback.cpu.engine.sizes import LINE
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.rules import Array

pays = groups_pay


def can(problem: Problem) -> str | None:
    if problem.layout != "channels_last":
        return "its vectors hold channels of one cell, and in channels_first these lie a plane apart"
    return ordinary(problem)


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input."""
    return run_padded_gather(problem, source, filter, gather_plan, _weights)


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    return run_padded_filter_gradient(problem, dy, x, filter_plans)


def _weights(problem: Problem, filter: Array) -> Array:
    """The filter as (tap, part, output channel)."""
    if problem.op == "conv":
        return wide(problem, filter)
    group_in, group_out = group_channels(problem)
    return wide(problem, filter.reshape(-1, group_in, problem.groups, group_out).transpose(0, 3, 2, 1))


@planned_for_threads
def gather_plan(threads: int, problem: Problem, padded: bool) -> Plan:
    """conv and conv_grad_input. padded: taps beside the source may be multiplied by zero, as all weights are finite."""
    sides, one_channel, moved = sides_of(problem), is_depthwise(problem), moved_bytes(problem)
    in_place = one_channel and reads_in_place(problem, sides)
    if in_place:
        tables, scratch = in_place_tables(problem, sides, threads), 0
    else:
        tables, scratch = cells_tables(problem, sides, padded, threads)
    step = tables.get("step", sides.out_channels)
    lines = all(count * sides.size % LINE == 0 for count in (sides.out_channels, step, sides.lanes))
    target_bytes = problem.batch * sides.rows * sides.target_pitch
    stream = streams(moved) and lines and target_bytes >= SMALLEST  # smaller results are not aligned
    stage = streams(moved) and not stream and one_channel and tables["segments"] == 1
    tables |= {"weights": None, "target": None, "stream": int(stream), "stage": scratch if stage else 0}
    scratch += sides.target_pitch if stage else 0
    compiled = Variant("depthwise.cells", "one_channel" if one_channel else "several_channels", problem.dtype.name)
    pieces = problem.batch * tables["blocks"] * tables["segments"]
    return make_plan(compiled, CellsOneChannel if one_channel else CellsSeveralChannels, pieces, scratch, moved, tables)
