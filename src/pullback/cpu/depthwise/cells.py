"""`group_cells`: grouped convolutions in channels_last; forward and input gradient are one gather (cells_kernel.py).

The filter gradient is in cells_filter.py, those of narrow groups in permuted_filter.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pullback.cpu.conv.cells import costs
from pullback.cpu.conv.common import moved_bytes
from pullback.cpu.conv.filter_order import FilterOrder
from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.cells_filter import filter_plans
from pullback.cpu.depthwise.cells_tables import (
    Sides,
    can_permute,
    cells_tables,
    in_place_tables,
    permuted_tables,
    reads_in_place,
    sides_of,
)
from pullback.cpu.depthwise.common import (
    filter_gradient_steps,
    group_channels,
    groups_pay,
    is_depthwise,
    near,
    padded_gather_steps,
    run_padded_filter_gradient,
    run_padded_gather,
    wide,
)
from pullback.cpu.depthwise.records import CELL_VECTORS, CellsGather, CellsOneChannel, CellsPermuted, CellsSeveralChannels
from pullback.cpu.engine.memory import SMALLEST
from pullback.cpu.engine.pieces import streams
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned, planned_for_threads
from pullback.cpu.engine.sequence import Steps
from pullback.cpu.engine.sizes import LINE
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.rules import Array
from pullback.window import Window


def can(problem: Problem) -> str | None:
    if problem.layout != "channels_last":
        return "its vectors hold channels of one cell, and in channels_first these lie a plane apart"
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    settled, is_near = near(problem)
    if problem.groups == 1 or problem.op == "conv_grad_filter" or is_depthwise(problem) or not is_near:
        return groups_pay(problem)
    sides = sides_of(settled)
    if not can_permute(settled, sides):
        return groups_pay(problem)
    if 2 * max(group_channels(problem)) > sides.lanes:
        return "it lays groups side by side, and a vector holds no two of them"
    together = sides.lanes // max(group_channels(problem))  # groups of a vector
    if sides.lanes / together > tuning.SPREAD_OVER_CELLS * costs(settled)[0]:
        return "vectors over cells cost less than lanes that stay empty beside spread groups"
    return None


def gather(problem: Problem, source: Array, filter: Array) -> Array:
    """conv and conv_grad_input."""
    flat = _in_one_row(problem)
    if flat is None:
        return run_padded_gather(problem, source, filter, gather_plan, _weights)
    cells, channels, (per_group, out) = flat.window.input_size, source.shape[-1], filter.shape[-2:]
    made = run_padded_gather(
        flat, source.reshape(problem.batch, *cells, channels), filter.reshape(1, per_group, out), gather_plan, _weights
    )
    return made.reshape(problem.output_shape if problem.op == "conv" else problem.input_shape)


@planned
def _in_one_row(problem: Problem) -> Problem | None:
    """The problem with all cells of an image in one row, where each reads itself alone: tiles go along rows."""
    window = problem.window
    plain = window.input_size == window.output_size and set(window.stride) == {1} and not any(window.pad_low)
    if window.rank == 1 or window.tap_count > 1 or not plain:
        return None
    cells = (math.prod(window.input_size),)
    return replace(problem, window=Window(cells, cells, (1,), (1,), (1,), (0,), (0,)))


def filter_gradient(problem: Problem, dy: Array, x: Array) -> Array:
    return run_padded_filter_gradient(problem, dy, x, filter_plans)


def steps(problem: Problem, order: FilterOrder) -> Steps | None:
    settled, is_near = near(problem)
    if problem.op == "conv_grad_filter":
        return filter_gradient_steps(filter_plans(settled, True), checked=True) if is_near else None
    flat = _in_one_row(problem)
    return padded_gather_steps(problem if flat is None else flat, gather_plan, order)


def _weights(problem: Problem, filter: Array) -> Array:
    """The filter as (tap, part, output channel)."""
    if problem.op == "conv":
        return wide(problem, filter)
    group_in, group_out = group_channels(problem)
    return wide(problem, filter.reshape(-1, group_in, problem.groups, group_out).transpose(0, 3, 2, 1))


def _repays_copies(window: Window) -> bool:
    """Whether a source cell is read so often that a copy of it, in rows that are padded and lie closer, is worth it."""
    return window.tap_count >= tuning.COPIED_TAPS * math.prod(window.stride)


def _block_channels(problem: Problem, sides: Sides) -> int:
    """All channels, or so many that their weights stay in the first-level cache."""
    tap_bytes, together = problem.window.tap_count * sides.wide, CELL_VECTORS * sides.lanes
    if tap_bytes * sides.out_channels <= tuning.WEIGHT_BYTES or sides.out_channels <= together:
        return sides.out_channels
    return max(together, tuning.WEIGHT_BYTES // tap_bytes // together * together)


@planned_for_threads
def gather_plan(threads: int, problem: Problem, padded: bool) -> Plan:
    """conv and conv_grad_input. padded: taps beside the source may be multiplied by zero, as all weights are finite."""
    sides, one_channel, moved = sides_of(problem), is_depthwise(problem), moved_bytes(problem)
    permuted = not one_channel and can_permute(problem, sides)
    if permuted:
        tables, scratch = permuted_tables(problem, sides, threads), 0
    elif one_channel and reads_in_place(problem, sides) and not _repays_copies(problem.window):
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
    if one_channel:
        tables["block_channels"] = sides.out_channels if stage else _block_channels(problem, sides)
    record: type[CellsGather] = CellsOneChannel if one_channel else CellsPermuted if permuted else CellsSeveralChannels
    kernel = "one_channel" if one_channel else "permuted_channels" if permuted else "several_channels"
    pieces = problem.batch * tables["blocks"] * tables["segments"]
    return make_plan(Variant("depthwise.cells", kernel, problem.dtype.name), record, pieces, scratch, moved, tables)
