"""The Winograd kernels of the cpu backend: when they pay, and running them."""

from __future__ import annotations

import numpy as np

from pullback.cpu.memory import new_array
from pullback.cpu.winograd_cost import unpaid
from pullback.cpu.winograd_gradient import gradient_plans
from pullback.cpu.winograd_plans import axes_of, filter_plan, forward_plan, packed_filter, shape_of
from pullback.problem import Problem
from pullback.registry import CPU, kernels_for, register_kernel
from pullback.rules import Array
from pullback.settings import current_precision

NAME = "winograd"
ERROR = 100  # of results, by norm, in units of the rounding of a number; 10 to 20 are measured
BYTES = np.dtype(np.uint8)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def accepts(problem: Problem) -> str | None:
    """Why not, in words."""
    window = problem.window
    if current_precision() == "exact":
        return 'its transforms err by more than plain sums do, and precision "exact" asks for those'
    if 0 in problem.input_shape or 0 in problem.output_shape:
        return "there is nothing to compute in an empty array"
    axes = axes_of(window)
    if axes is None or any(s != 1 for s in window.stride):
        return "it is for strides of 1 and windows of several taps along one or two axes, or three"
    if problem.layout == "channels_first" and axes.columns != window.rank - 1:
        return "in channels_first it needs several taps along the last axis, whose cells lie side by side"
    return unpaid(problem)


def _otherwise(problem: Problem, *arrays: Array) -> Array:
    """The next kernel that accepts: one that keeps infinities and NaN to what they touch."""
    after = iter(kernels_for(problem.op, CPU))
    for kernel in after:
        if kernel.name == NAME:
            break
    result: Array = next(kernel for kernel in after if kernel.accepts(problem) is None).run(problem, *arrays)
    return result


def _convolve(problem: Problem, source: Array, filter: Array, flipped: bool) -> Array:
    source, filter = np.ascontiguousarray(source), np.ascontiguousarray(filter)
    target = new_array(problem.input_shape if flipped else problem.output_shape, problem.dtype)
    packed = new_array((packed_filter(shape_of(problem, flipped)).total,), BYTES)
    faults = np.zeros(1, np.int64)
    filter_plan(problem, flipped).run(f=_address(filter), packed=_address(packed))
    forward_plan(problem, flipped).run(x=_address(source), packed=_address(packed), y=_address(target), faults=_address(faults))
    if faults[0]:  # NaN or infinity, which a tile spreads over its neighbours
        return _otherwise(problem, source, filter)
    return target


def conv(problem: Problem, x: Array, filter: Array) -> Array:
    return _convolve(problem, x, filter, False)


def conv_grad_input(problem: Problem, dy: Array, filter: Array) -> Array:
    return _convolve(problem, dy, filter, True)


def conv_grad_filter(problem: Problem, dy: Array, x: Array) -> Array:
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    plans = gradient_plans(problem)
    df = new_array(problem.filter_shape, problem.dtype)
    sums = new_array((plans.sum_bytes,), BYTES)
    faults = np.zeros(1, np.int64)
    plans.share.run(x=_address(x), dy=_address(dy), sums=_address(sums))
    plans.finish.run(sums=_address(sums), df=_address(df), faults=_address(faults))
    return _otherwise(problem, dy, x) if faults[0] else df


def register() -> None:
    for op, run in (("conv", conv), ("conv_grad_input", conv_grad_input), ("conv_grad_filter", conv_grad_filter)):
        register_kernel(op, CPU, NAME, accepts, run, error=ERROR)
