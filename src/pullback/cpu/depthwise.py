"""Convolutions of many groups with few channels each on the cpu backend: their ops, and which problems they take."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pullback.cpu import depthwise_cells, depthwise_flat, depthwise_planes, depthwise_slide
from pullback.cpu.addresses import address_of
from pullback.cpu.conv_common import lanes_of
from pullback.cpu.memory import new_array
from pullback.cpu.plan_cache import planned
from pullback.problem import Problem
from pullback.reference import conv as reference
from pullback.registry import CPU, register_kernel
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
    y = _gather(problem, x, filter, problem.output_shape)
    return reference.conv(problem, x, filter) if y is None else y


def conv_grad_input(problem: Problem, dy: Array, filter: Array) -> Array:
    dx = _gather(problem, dy, filter, problem.input_shape)
    return reference.conv_grad_input(problem, dy, filter) if dx is None else dx


@planned
def _in_place(problem: Problem) -> Any:
    """The module whose plans read and write the arrays of this depthwise problem in place; None if there is none."""
    if _each(problem) == (1, 1):
        if depthwise_slide.slides(problem):
            return depthwise_slide
        if depthwise_flat.flattens(problem):
            return depthwise_flat
    return None


def _gather(problem: Problem, source: Array, filter: Array, shape: tuple[int, ...]) -> Array | None:
    """Forward or input gradient; None where a weight that is not finite would be multiplied by the zeros beyond the ends."""
    last = problem.layout == "channels_last"
    weights = _weights_last(problem, filter) if last else _wide(problem, filter)
    finite = bool(np.isfinite(weights).all())
    if not finite and not last:
        return None
    source = np.ascontiguousarray(source)
    target = new_array(shape, problem.dtype)
    if last:
        plan = depthwise_cells.gather_plan(problem, finite)
    else:
        plan = (_in_place(problem) or depthwise_planes).gather_plan(problem)
    plan.run(source=address_of(source), weights=address_of(weights), target=address_of(target))
    return target


def conv_grad_filter(problem: Problem, dy: Array, x: Array) -> Array:
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    result = new_array(problem.filter_shape, problem.dtype)
    last = problem.layout == "channels_last"
    plans = (depthwise_cells if last else _in_place(problem) or depthwise_planes).filter_plans(problem)
    sums = np.empty(plans.sum_bytes, np.uint8)
    plans.products.run(source=address_of(x), dy=address_of(dy), sums=address_of(sums))
    plans.add.run(sums=address_of(sums), result=address_of(result))
    if not np.isfinite(result).all():  # it may have come from a zero beyond the ends times an infinity
        return reference.conv_grad_filter(problem, dy, x)
    return result


def _accepts(problem: Problem) -> str | None:
    if problem.groups == 1:
        return "it is for more than one group"
    if 0 in problem.input_shape or 0 in problem.output_shape or 0 in problem.filter_shape:
        return "there is nothing to compute in an empty array"
    return None


def _each(problem: Problem) -> tuple[int, int]:
    return problem.channels_in // problem.groups, problem.channels_out // problem.groups


def _depthwise_accepts(problem: Problem) -> str | None:
    if _each(problem) != (1, 1):
        return "it is for groups of one channel in and one out, not {} and {}".format(*_each(problem))
    return _accepts(problem)


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


def _grouped_accepts(problem: Problem) -> str | None:
    if max(_each(problem)) > MOST_EACH:
        return f"it is for groups of at most {MOST_EACH} channels in and out, not {max(_each(problem))}"
    refused = _accepts(problem)
    if refused is None and _fills_vectors(problem):
        return "it spreads groups over vectors, and the channels of one group fill them well enough"
    return refused


def register() -> None:
    """Put the kernels on the lists of the cpu backend."""
    runs: dict[str, Any] = {"conv": conv, "conv_grad_input": conv_grad_input, "conv_grad_filter": conv_grad_filter}
    for op, run in runs.items():
        register_kernel(op, CPU, "depthwise", _depthwise_accepts, run)
        register_kernel(op, CPU, "grouped", _grouped_accepts, partial(run))
