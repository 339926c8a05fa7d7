"""Convolutions of many groups with few channels each on the cpu backend: their ops, and which problems they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.conv.common import lanes_of
from pullback.cpu.conv.direct import direct_plan
from pullback.cpu.conv.ops import direct_filter, run_sweep
from pullback.cpu.conv.sweep import lies_far, settled
from pullback.cpu.depthwise import cells as depthwise_cells
from pullback.cpu.depthwise import flat as depthwise_flat
from pullback.cpu.depthwise import planes as depthwise_planes
from pullback.cpu.depthwise import slide as depthwise_slide
from pullback.cpu.depthwise.cells import FilterPlans
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem
from pullback.rules import Array

MOST_EACH = 16  # channels of a group on either side
# Time of a spread multiplication against one of the direct kernel, and of spreading a cell: measured, 8 and 16 channels each.
SPREAD, SPREAD_CELL = 1.75, 0.75


def _wide(problem: Problem, array: Array) -> Array:
    """Contiguous, in the type that sums are made in."""
    return np.ascontiguousarray(array.astype(np.float64 if problem.dtype.name == "float64" else np.float32, copy=False))


def _weights_last(problem: Problem, filter: Array) -> Array:
    """The filter as (tap, part, target channel)."""
    taps, groups = problem.window.tap_count, problem.groups
    each_in, each_out = problem.channels_in // groups, problem.channels_out // groups
    if problem.op == "conv_grad_input":
        return _wide(problem, filter.reshape(taps, each_in, groups, each_out).transpose(0, 3, 2, 1))
    return _wide(problem, filter)


def conv(problem: Problem, x: Array, filter: Array) -> Array:
    return _gather(problem, x, filter, problem.output_shape)


def conv_grad_input(problem: Problem, dy: Array, filter: Array) -> Array:
    return _gather(problem, dy, filter, problem.input_shape)


@planned
def _settled(problem: Problem) -> tuple[Problem, bool]:
    """The problem as it is run, and whether its windows reach too far for the kernels here."""
    problem = settled(problem)
    return problem, lies_far(problem.window)


@planned
def _in_place(problem: Problem) -> Any:
    """The module whose plans read and write the arrays of this depthwise problem in place; None if there is none."""
    if _each(problem) == (1, 1):
        if depthwise_slide.slides(problem):
            return depthwise_slide
        if depthwise_flat.flattens(problem):
            return depthwise_flat
    return None


def _gather(problem: Problem, source: Array, filter: Array, shape: tuple[int, ...]) -> Array:
    """Forward or input gradient. Weights that are not finite must not meet zeros beyond the ends: their plan skips those taps."""
    problem, far = _settled(problem)
    if far:
        return run_sweep(direct_plan, problem, source, filter)
    last = problem.layout == "channels_last"
    weights = _weights_last(problem, filter) if last else _wide(problem, filter)
    source = np.ascontiguousarray(source)
    target = new_array(shape, problem.dtype)
    in_place = None if last else _in_place(problem)
    if in_place is not None:  # under masks: no zero is met
        plan = in_place.gather_plan(problem)
    else:
        plan = (depthwise_cells if last else depthwise_planes).gather_plan(problem, bool(np.isfinite(weights).all()))
    plan.run(source=address_of(source), weights=address_of(weights), target=address_of(target))
    return target


def conv_grad_filter(problem: Problem, dy: Array, x: Array) -> Array:
    """What has met zeros beyond the ends, and is not finite, is made again without them."""
    problem, far = _settled(problem)
    if far:
        return direct_filter(problem, dy, x)
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    result = new_array(problem.filter_shape, problem.dtype)
    last = problem.layout == "channels_last"
    in_place = None if last else _in_place(problem)
    plans: Any = depthwise_cells if last else depthwise_planes
    if in_place is not None:  # under masks: no zero is met
        _sum(in_place.filter_plans(problem), dy, x, result)
        return result
    _sum(plans.filter_plans(problem, True), dy, x, result)
    if not np.isfinite(result).all():
        _sum(plans.filter_plans(problem, False), dy, x, result)
    return result


def _sum(plans: FilterPlans, dy: Array, x: Array, result: Array) -> None:
    sums = np.empty(plans.sum_bytes, np.uint8)
    plans.products.run(source=address_of(x), dy=address_of(dy), sums=address_of(sums))
    plans.add.run(sums=address_of(sums), result=address_of(result))


def _each(problem: Problem) -> tuple[int, int]:
    return problem.channels_in // problem.groups, problem.channels_out // problem.groups


def can(problem: Problem) -> str | None:
    if _each(problem) != (1, 1):
        return "it is for groups of one channel in and one out, not {} and {}".format(*_each(problem))
    return ordinary(problem)


def pays(problem: Problem) -> str | None:
    return "it lays groups side by side, and there is only one" if problem.groups == 1 else None


def _fills_vectors(problem: Problem) -> bool:
    """Whether the direct kernel, whose vectors hold channels of one group only, is quicker than spreading all groups over vectors.

    Spreading costs some time for every cell, and leaves lanes empty where groups are wide on the source side (channels_last).
    """
    sources, targets = _each(problem)[:: 1 if problem.op != "conv_grad_input" else -1]
    lanes = lanes_of(problem)
    direct = -(-targets // lanes) * lanes / targets
    spread = SPREAD + SPREAD_CELL / problem.window.tap_count
    if problem.layout == "channels_last":
        together = max(1, lanes // max(sources, targets))
        spread *= min(2.0, max(1.0, lanes / (targets * together)))
    return direct < spread


def grouped_pays(problem: Problem) -> str | None:
    if max(_each(problem)) > MOST_EACH:
        return f"it is for groups of at most {MOST_EACH} channels in and out, not {max(_each(problem))}"
    refused = pays(problem)
    if refused is None and _fills_vectors(problem):
        return "it spreads groups over vectors, and the channels of one group fill them well enough"
    return refused
