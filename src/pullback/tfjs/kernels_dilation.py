"""TF.js's grey-scale dilation (NHWC, filter (kh, kw, C)) and its two gradients, each in the dtype of what it belongs to."""

from __future__ import annotations

import math

import numpy as np

from pullback.problem import IndexProblem, Problem
from pullback.reference.morphology import find_winners, sum_by_tap
from pullback.reference.pool import Winners, flat_indices
from pullback.rules import Array, WinnerRule
from pullback.tfjs.attributes import STEPS
from pullback.tfjs.call import Call, dispatch, kernel
from pullback.tfjs.geometry import make_window
from pullback.tfjs.quirks import in_quirks
from pullback.tfjs.tensors import stored_as, working_dtype

# The running maximum starts at JavaScript's smallest safe integer: nothing at or below it can win.
LOWEST = -(2.0**53 - 1)
WINNER = WinnerRule("first", "ignore", above=LOWEST)


def _problem(call: Call, op: str, x: Array, filter: Array, *others: Array) -> Problem:
    if x.shape[3] != filter.shape[2]:
        raise ValueError(
            f"{call.kernel}: x {list(x.shape)} and filter {list(filter.shape)} differ in their last axis, the channels"
        )
    strides, dilations, pad = call.attr("strides"), call.attr("dilations"), call.attr("pad")
    window = make_window(
        call.kernel, x.shape[1:3], filter.shape[:2], strides=strides, dilations=dilations, pad=pad, mode=None
    )  # fmt: skip
    if min(window.output_size) < 0:
        raise ValueError(
            f"{call.kernel}: a filter {list(filter.shape)} on an input {list(x.shape)} gives a negative output size "
            f"{list(window.output_size)}; the filter must fit into the padded input"
        )
    dtype, channels = working_dtype(x, filter, *others), x.shape[3]
    return Problem(op, dtype, "channels_last", x.shape[0], channels, channels, window, winner=WINNER, empty=LOWEST)


def _with_dy(call: Call, op: str) -> tuple[Problem, Array, Array, Array]:
    x, weights, dy = call.tensor("x", 4), call.tensor("filter", 3), call.tensor("dy", None)
    problem = _problem(call, op, x, weights, dy)
    if dy.ndim != 4:
        raise ValueError(f"Error in {call.kernel}, dy must have the same rank as output 4, but got {dy.ndim}")
    if dy.size != math.prod(problem.output_shape):
        listed = ",".join(map(str, problem.output_shape))
        raise ValueError(f"[{listed}] does not match the input size {dy.size}.")
    work = problem.dtype
    d = np.ascontiguousarray(dy).reshape(problem.output_shape)  # TF.js counts the elements of dy, not its axes
    return problem, d.astype(work, copy=False), x.astype(work, copy=False), weights.astype(work, copy=False)


def _corners(problem: Problem, axis: int) -> Winners:
    """First cell of each window on an axis, moved into the input where it lies before it."""
    window = problem.window
    return np.maximum(np.arange(window.output_size[axis]) * window.stride[axis] - window.pad_low[axis], 0)


@kernel("Dilation2D", STEPS, label="dilation2d")
def dilation2d(call: Call) -> Array:
    """Maximum over each window of `x` plus `filter`. Attributes: strides, pad, dilations."""
    x, weights = call.tensor("x", 4), call.tensor("filter", 3)
    problem = _problem(call, "dilation", x, weights)
    work = problem.dtype
    return stored_as(x.dtype, dispatch(problem, x.astype(work, copy=False), weights.astype(work, copy=False)))


@kernel("Dilation2DBackpropInput", STEPS, label="dilation2dBackpropInput")
def dilation2d_backprop_input(call: Call) -> Array:
    """Gradient of Dilation2D for its input, from `x`, `filter` and `dy`."""
    problem, dy, x, weights = _with_dy(call, "dilation_grad_input")
    rows, cols = _corners(problem, 0), _corners(problem, 1)
    if dy.size and (rows[-1] >= x.shape[1] or cols[-1] >= x.shape[2]):
        raise TypeError(
            f"{call.kernel}: windows of output {list(problem.output_shape)} start beyond the input {list(x.shape)}; "
            "upstream fails on these, make pad smaller"
        )
    dtype = call.tensor("x", 4).dtype
    if not in_quirks():
        return stored_as(dtype, dispatch(problem, dy, x, weights))
    # Upstream credits the window's corner where there is no winner.
    winner = find_winners(problem, x, weights)[1]
    n, c = np.arange(problem.batch).reshape(-1, 1, 1, 1), np.arange(problem.channels_in)
    corner = ((n * x.shape[1] + rows[:, None, None]) * x.shape[2] + cols[:, None]) * x.shape[3] + c
    indices = np.where(winner < 0, corner, flat_indices(problem, winner))
    wide = np.dtype(np.float64)
    scatter = IndexProblem("max_pool_grad_from_indices", wide, "channels_last", x.shape, dy.shape)
    return stored_as(dtype, dispatch(scatter, dy.astype(wide), indices))


@kernel("Dilation2DBackpropFilter", STEPS, label="dilation2dBackpropFilter")
def dilation2d_backprop_filter(call: Call) -> Array:
    """Gradient of Dilation2D for its filter, from `x`, `filter` and `dy`."""
    problem, dy, x, weights = _with_dy(call, "dilation_grad_filter")
    dtype = call.tensor("filter", 3).dtype
    if not in_quirks():
        return stored_as(dtype, dispatch(problem, dy, x, weights))
    # Upstream credits tap (0, 0) where there is no winner.
    winner = find_winners(problem, x, weights)[1]
    return stored_as(dtype, sum_by_tap(problem, dy.astype(np.float64), np.maximum(winner, 0)))
