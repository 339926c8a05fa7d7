"""The convolution ops on the cpu backend: allocate the result, take the plan of the problem, run its jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from pullback.cpu.addresses import address_of
from pullback.cpu.conv_cells import cells_plan, prefers_cells
from pullback.cpu.conv_common import LINE, ConvPlan
from pullback.cpu.conv_direct import direct_plan
from pullback.cpu.conv_filter import filter_plan
from pullback.cpu.conv_pointwise import pointwise_plan, prefers_pointwise, takes_pointwise
from pullback.cpu.filter_memory import FilterOrder, in_known_order
from pullback.cpu.matrix import transposed
from pullback.cpu.memory import new_array
from pullback.cpu.refusals import in_reach
from pullback.problem import Problem
from pullback.reference import conv as reference
from pullback.registry import CPU, add_kernel
from pullback.rules import Array

BYTE = np.dtype(np.uint8)
MOST_TURNED_CELLS, FEWEST_TURNED_CHANNELS = 16, 32  # measured: larger images fill vectors in place
MOST_TURNED_BYTES = 8 << 20


def run_sweep(make_plan: Callable[[Problem, FilterOrder], ConvPlan], problem: Problem, source: Array, filter: Array) -> Array:
    """conv (source is x) or conv_grad_input (source is dy)."""
    source, (weights, order) = np.ascontiguousarray(source), in_known_order(problem, filter)
    plan = make_plan(problem, order)
    forward = problem.op == "conv"
    target = new_array(problem.output_shape if forward else problem.input_shape, problem.dtype)
    packed, faults = new_array((plan.packed_bytes + LINE,), BYTE), np.zeros(1, np.int64)
    start = -(-address_of(packed) // LINE) * LINE
    plan.pack.run(filter=address_of(weights), packed=start, faults=address_of(faults))
    if faults[0]:  # padding made of zeros would spoil what it should leave alone
        return (reference.conv if forward else reference.conv_grad_input)(problem, source, filter)
    plan.sweep.run(source=address_of(source), target=address_of(target), packed=start)
    return target


def direct_filter(problem: Problem, dy: Array, x: Array) -> Array:
    """conv_grad_filter."""
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    plan = filter_plan(problem)
    target = new_array(problem.filter_shape, problem.dtype)
    workspace = new_array((plan.workspace_bytes + LINE,), BYTE)
    start = -(-address_of(workspace) // LINE) * LINE
    a, b = (dy, x) if plan.swapped else (x, dy)
    plan.sums.run(x=address_of(a), dy=address_of(b), target=start if plan.finish else address_of(target))
    if plan.finish:
        plan.finish.run(sums=start, target=address_of(target))
    if plan.checked and not np.isfinite(target).all():  # a dy that is not finite has met zeros that stand for no cell
        return reference.conv_grad_filter(problem, dy, x)
    return target


def few_channels(problem: Problem) -> str | None:
    if not prefers_cells(problem):
        return "its vectors run over cells, and the produced channels fill vectors as well"
    return None


def turned(problem: Problem, source: Array, filter: Array) -> Array:
    """Images turned to channels_last and back, between which the direct kernel finds whole vectors of channels."""
    last = replace(problem, layout="channels_last")
    rank = problem.window.rank
    cells = transposed(source.reshape(*source.shape[:2], -1))
    shape = last.output_shape if problem.op == "conv" else last.input_shape
    given = last.input_shape if problem.op == "conv" else last.output_shape
    result = run_sweep(direct_plan, last, cells.reshape(given), filter.transpose(*range(2, rank + 2), 1, 0))
    flat = transposed(result.reshape(shape[0], -1, shape[-1]))
    return flat.reshape(problem.output_shape if problem.op == "conv" else problem.input_shape)


def can_turn(problem: Problem) -> str | None:
    if problem.layout != "channels_first":
        return "it turns images from channels_first, and these lie in channels_last"
    return in_reach(problem)


def worth_turning(problem: Problem) -> str | None:
    window = problem.window
    if max(math.prod(window.input_size), math.prod(window.output_size)) > MOST_TURNED_CELLS:
        return f"it is for images of at most {MOST_TURNED_CELLS} cells, which do not fill vectors"
    if min(problem.channels_in, problem.channels_out) // problem.groups < FEWEST_TURNED_CHANNELS:
        return f"it is for at least {FEWEST_TURNED_CHANNELS} channels, which fill vectors"
    both = math.prod(problem.input_shape) + math.prod(problem.output_shape)
    if both * problem.dtype.itemsize > MOST_TURNED_BYTES:
        return "it turns all images at once, and these take too much memory"
    return None


def register() -> None:
    for op in ("conv", "conv_grad_input"):
        add_kernel(op, CPU, "pointwise", takes_pointwise, partial(run_sweep, pointwise_plan), pays=prefers_pointwise)
        add_kernel(op, CPU, "cells", in_reach, partial(run_sweep, cells_plan), pays=few_channels)
        add_kernel(op, CPU, "turned", can_turn, turned, pays=worth_turning)
        add_kernel(op, CPU, "direct", in_reach, partial(run_sweep, direct_plan))
    add_kernel("conv_grad_filter", CPU, "direct", in_reach, direct_filter)
