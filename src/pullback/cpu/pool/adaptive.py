"""Plans of adaptive pooling over windows of unequal sizes, by the kernels with vectors of channels and tables of their own.

Those kernels take rows (depth and height together) from tables, whatever their sizes. The maximum reads columns by arithmetic:
there the window gets a column axis of one cell, and its own axes are the depth and the height. The mean of the cells of an output
is made by the kernel of the gradient, which sums the sources of a target: its tables are exchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.pool import run
from pullback.cpu.pool.channels import target_rows
from pullback.cpu.pool.common import Table, shape_of, variant
from pullback.cpu.pool.forward import blocked_columns, max_fields, over_channels_fields, winner_row_bytes
from pullback.cpu.pool.records import Axis, ChannelsAvgGrad, ChannelsMaxForward
from pullback.cpu.pool.tables import lines_in_scratch, same_divisor
from pullback.cpu.refusals import ordinary
from pullback.problem import AdaptiveProblem
from pullback.reference.adaptive_pool import index_problem
from pullback.reference.arrays import channels_last, in_layout
from pullback.reference.pool_tangent import take
from pullback.rules import Array
from pullback.window import AdaptiveWindow

MOST_MAX_AXES = 2


def can(problem: AdaptiveProblem) -> str | None:
    if problem.winner is not None and problem.window.rank > MOST_MAX_AXES:
        return "it takes two axes from tables, and this window has three"
    return ordinary(problem)


def _with_units(window: AdaptiveWindow, before: int, behind: int) -> AdaptiveWindow:
    """The same window with so many axes of one cell before and behind its own."""
    front, back = (1,) * before, (1,) * behind
    return AdaptiveWindow(front + window.input_size + back, front + window.output_size + back)


def _axis_table(outputs: tuple[int, ...], cells: tuple[int, ...]) -> Table:
    """An Axis for each axis, of which kernels that go by tables read the sizes alone."""
    ones, zeros = (1,) * len(cells), (0,) * len(cells)
    return Axis.columns(outputs=outputs, cells=cells, taps=ones, stride=ones, dilation=ones, first=zeros)


@planned
def max_plan(problem: AdaptiveProblem) -> Plan:
    """adaptive_max_pool."""
    window = _with_units(problem.window, MOST_MAX_AXES - problem.window.rank, 1)
    problem = replace(problem, window=window)
    shape = shape_of(problem)
    blocks, pieces = blocked_columns(shape, 0)
    lines, scratch = lines_in_scratch(window, True, winner_row_bytes(problem, shape))
    found = max_fields(problem, _axis_table(window.output_size, window.input_size))
    fields = lines | over_channels_fields(found) | blocks
    compiled = variant(problem, "channels", "max_forward", finds_winners=True)
    return make_plan(compiled, ChannelsMaxForward, pieces, scratch, shape.moved_bytes, fields)


@planned
def mean_plan(problem: AdaptiveProblem) -> Plan:
    """adaptive_avg_pool (its outputs are the targets) or adaptive_avg_pool_grad (the cells are)."""
    forward = problem.op == "adaptive_avg_pool"
    window, shape = _with_units(problem.window, 3 - problem.window.rank, 0), shape_of(problem)
    sizes = [window.sizes(axis) for axis in range(3)]
    if forward:
        shape = replace(
            shape, in_rows=shape.out_rows, in_cols=shape.out_cols, out_rows=shape.in_rows, out_cols=shape.in_cols
        )  # fmt: skip
        axes, same = _axis_table(window.input_size, window.output_size), sizes
    else:
        axes = _axis_table(window.output_size, window.input_size)
        same = [same_divisor(sizes[axis], window.readers(axis)) for axis in range(3)]
    given, pieces, scratch = target_rows(window, shape, axes, forward=forward)
    given |= {
        "row_div": np.multiply.outer(sizes[0], sizes[1]).ravel(), "col_div": sizes[2],
        "row_same": np.multiply.outer(same[0], same[1]).ravel(), "col_same": same[2],
    }  # fmt: skip
    return make_plan(variant(problem, "channels", "avg_grad"), ChannelsAvgGrad, pieces, scratch, shape.moved_bytes, given)


def _last(problem: AdaptiveProblem) -> AdaptiveProblem:
    return replace(problem, layout="channels_last")


def max_pool(problem: AdaptiveProblem, x: Array) -> Any:
    found = run.max_pool(max_plan, _last(problem), channels_last(problem.layout, x))
    if not problem.return_indices:
        return in_layout(problem.layout, found)
    values, indices = found
    if problem.layout == "channels_first":
        indices = _indices_channels_first(problem, indices)
    return in_layout(problem.layout, values), in_layout(problem.layout, indices)


def _indices(problem: AdaptiveProblem, x: Array) -> Array:
    found: Array = max_pool(replace(problem, op="adaptive_max_pool", return_indices=True), x)[1]
    return found


def max_pool_grad(problem: AdaptiveProblem, dy: Array, x: Array) -> Array:
    return run.max_pool_grad_from_indices(index_problem(problem), dy, _indices(problem, x))


def max_pool_jvp(problem: AdaptiveProblem, t: Array, x: Array) -> Array:
    return take(t, _indices(problem, x))


def _indices_channels_first(problem: AdaptiveProblem, indices: Array) -> Array:
    """Flat indices into a channels_last array as those into the same array in channels_first."""
    channels, cells = problem.channels_in, int(np.prod(problem.window.input_size, dtype=np.int64))
    image = np.arange(problem.batch).reshape((-1,) + (1,) * (indices.ndim - 1))
    return np.where(indices < 0, -1, (image * channels + np.arange(channels)) * cells + indices // channels % cells)


def avg_pool(problem: AdaptiveProblem, x: Array) -> Array:
    last = _last(problem)
    x = np.ascontiguousarray(channels_last(problem.layout, x))
    y = new_array(last.output_shape, last.dtype)
    mean_plan(last).run(dy=address_of(x), dx=address_of(y))
    return in_layout(problem.layout, y)


def avg_pool_grad(problem: AdaptiveProblem, dy: Array) -> Array:
    return in_layout(problem.layout, run.avg_pool_grad(mean_plan, _last(problem), channels_last(problem.layout, dy)))
