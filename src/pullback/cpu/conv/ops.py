"""The convolution ops on the cpu backend: allocate the result, take the plan of the problem, run its jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.cpu.conv.cells import prefers_cells
from pullback.cpu.conv.common import ConvPlan
from pullback.cpu.conv.direct import direct_plan
from pullback.cpu.conv.filter_gradient import FilterPlan, filter_plan
from pullback.cpu.conv.filter_order import FilterOrder, in_known_order
from pullback.cpu.conv.sweep import lies_far
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import new_array, put_work_back, take_work
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sequence import FLAG, OUT, WORK, A, B, Step, Steps
from pullback.problem import Problem
from pullback.rules import Array
from pullback.window import Window, axis_slices


def run_sweep(
    make_plan: Callable[..., ConvPlan], problem: Problem, source: Array, filter: Array, redone: Array | None = None
) -> Array:
    """conv (source is x) or conv_grad_input (source is dy).

    Weights that are not finite must not meet the zeros that pad the source: then a second plan runs, which skips taps beside it.
    redone: a result, of which only those blocks are made again that hold something that is not finite (by the direct plan).
    """
    source, (weights, order) = np.ascontiguousarray(source), in_known_order(problem, filter)
    plan = make_plan(problem, order)
    packed, faults = take_work(plan.packed_bytes), np.zeros(1, np.int64)
    start = address_of(packed)
    plan.pack.run(filter=address_of(weights), packed=start, faults=address_of(faults))
    if faults[0]:
        plan = make_plan(problem, order, False)  # whose panels are the same
    if plan.target_cells is not None:
        target = _scattered(problem, plan, redone, source=address_of(source), packed=start)
    else:
        target = _made(problem) if redone is None else redone
        more = {} if redone is None else {"redo": 1}
        plan.sweep.run(source=address_of(source), target=address_of(target), packed=start, **more)
    put_work_back(packed)
    return target


def sweep_steps(make_plan: Callable[..., ConvPlan], problem: Problem, order: FilterOrder) -> Steps | None:
    """The same as jobs, where it is nothing else: A is the source, B a filter in this order."""
    plan = make_plan(problem, order)
    if plan.target_cells is not None:
        return None
    pack = Step(plan.pack, {"filter": B, "packed": WORK, "faults": FLAG})
    return Steps((pack, Step(plan.sweep, {"source": A, "target": OUT, "packed": WORK})), plan.packed_bytes)


def _made(problem: Problem) -> Array:
    return new_array(problem.output_shape if problem.op == "conv" else problem.input_shape, problem.dtype)


def _scattered(problem: Problem, plan: ConvPlan, redone: Array | None, **given: int) -> Array:
    """An input gradient that is zero in most cells: the others are made side by side."""
    assert plan.target_cells is not None
    channels = np.arange(problem.channels_in)
    in_layout = (*plan.target_cells, channels) if problem.layout == "channels_last" else (channels, *plan.target_cells)
    places = (np.arange(problem.batch), *in_layout)
    target = new_array(tuple(map(len, places)), problem.dtype)
    plan.sweep.run(target=address_of(target), **given)
    result = new_array(problem.input_shape, problem.dtype) if redone is None else redone
    result.fill(0)
    result[np.ix_(*places)] = target
    return result


def redo(problem: Problem, source: Array, filter: Array, target: Array) -> None:
    """Make again those blocks of a result, made by another kernel, that hold something that is not finite."""
    run_sweep(direct_plan, problem, source, filter, target)


def direct_filter(problem: Problem, dy: Array, x: Array, pairs: bool = False) -> Array:
    """conv_grad_filter. What has met zeros that stand for no cell, and is not finite, is made again without them."""
    if _by_taps(problem):
        return _filter_by_taps(problem, dy, x, pairs)
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    target = new_array(problem.filter_shape, problem.dtype)
    plan = filter_plan(problem, pairs=pairs)
    _sum_filter(plan, dy, x, target)
    if plan.checked and not np.isfinite(target).all():
        _sum_filter(filter_plan(problem, False), dy, x, target)
    return target


@planned
def _by_taps(problem: Problem) -> bool:
    return problem.window.tap_count > 1 and lies_far(problem.window)


def _filter_by_taps(problem: Problem, dy: Array, x: Array, pairs: bool) -> Array:
    """The filter gradient tap by tap, each from the cells that it reads and the outputs that read them."""
    window, last = problem.window, problem.layout == "channels_last"
    target = new_array(problem.filter_shape, problem.dtype)
    target.fill(0)
    ones, zeros = (1,) * window.rank, (0,) * window.rank
    for tap in window.taps():
        outputs, cells = (axis_slices(last, slices) for slices in window.tap_slices(tap))
        read = np.ascontiguousarray(x[cells])
        sizes = read.shape[1:-1] if last else read.shape[2:]
        if 0 in sizes:
            continue
        alone = replace(problem, window=Window(sizes, sizes, ones, ones, ones, zeros, zeros))
        made = direct_filter(alone, dy[outputs], read, pairs)
        place: Any = (*tap, ...) if last else (..., *tap)
        target[place] = made.reshape(target.shape[-2:] if last else target.shape[:2])
    return target


def _sum_filter(plan: FilterPlan, dy: Array, x: Array, target: Array) -> None:
    workspace = take_work(plan.workspace_bytes)
    start = address_of(workspace)
    a, b = (dy, x) if plan.swapped else (x, dy)
    plan.sums.run(x=address_of(a), dy=address_of(b), target=start if plan.finish else address_of(target))
    if plan.finish:
        plan.finish.run(sums=start, target=address_of(target))
    put_work_back(workspace)


def filter_gradient_steps(problem: Problem, _: FilterOrder) -> Steps | None:
    """A direct filter gradient as jobs: A is dy, B is x."""
    if _by_taps(problem):
        return None
    plan = filter_plan(problem)
    x, dy = (A, B) if plan.swapped else (B, A)
    sums = Step(plan.sums, {"x": x, "dy": dy, "target": WORK if plan.finish else OUT})
    finish = (Step(plan.finish, {"sums": WORK, "target": OUT}),) if plan.finish else ()
    return Steps((sums, *finish), plan.workspace_bytes, plan.checked)


def few_channels(problem: Problem) -> str | None:
    if not prefers_cells(problem):
        return "its vectors run over cells, and the output channels fill vectors as well"
    return None
