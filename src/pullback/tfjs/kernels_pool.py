"""TF.js's pooling kernels and their gradients, 2-D and 3-D.

2-D: the first maximum wins, and a window of nothing but NaN and -inf has no winner. 3-D: the last maximum wins, -inf included.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from pullback.ops.arguments import one_of
from pullback.problem import IndexProblem, Problem
from pullback.rules import Array, Layout, WinnerRule
from pullback.tfjs.attributes import ARGMAX, POOL_2D, POOL_3D
from pullback.tfjs.call import Call, dispatch, fit_dy, kernel, touching
from pullback.tfjs.geometry import POSITIVE, as_layout, make_window, per_axis
from pullback.tfjs.quirks import in_quirks
from pullback.tfjs.quirks_pool import misread_winners, pool_misaddressed
from pullback.tfjs.tensors import FLOAT32, stored_as, working_dtype

WINNER_2D = WinnerRule("first", "ignore", above=-math.inf)
WINNER_3D = WinnerRule("last", "ignore")
# The running maximum of the 3-D forward is replaced on > only: of +0 and -0 it keeps the first.
WINNER_3D_VALUE = WinnerRule("first", "ignore")
# The empty average: 0/0 in 2-D, a sum over max(count, 1) in 3-D.
EMPTY_MEAN = {2: math.nan, 3: 0.0}


def pool_problem(call: Call, op: str, shape: tuple[int, ...], dtype: Any, layout: Layout, mode: Any, **rules: Any) -> Problem:
    rank = len(shape) - 2
    last = layout == "channels_last"
    size, channels = (shape[1:-1], shape[-1]) if last else (shape[2:], shape[1])
    taps = per_axis(call.kernel, "filterSize", call.attr("filterSize"), rank)
    window = make_window(
        call.kernel, size, taps, strides=call.attr("strides"), dilations=1, pad=call.attr("pad"), mode=mode, layout=layout
    )
    problem = Problem(op, dtype, layout, shape[0], channels, channels, window, **rules)
    if min(window.output_size) < 0:
        listed = ",".join(map(str, problem.output_shape))
        raise ValueError(f"{POSITIVE} but got shape [{listed}]. {call.kernel}: the filter does not fit into the input {shape}")
    return problem


def _layout_3d(call: Call) -> Layout:
    given = call.attr("dataFormat")
    return "channels_last" if given is None else as_layout(3, given)


def grad_layout(call: Call, rank: int) -> Layout:
    """The gradients know no dataFormat upstream. Mended, a 3-D gradient follows the dataFormat its forward was given."""
    return _layout_3d(call) if rank == 3 and not in_quirks() else "channels_last"


def _pool(call: Call, rank: int, op: Literal["max_pool", "avg_pool"]) -> Array:
    x = call.tensor("x", rank + 2)
    layout = _layout_3d(call) if rank == 3 else "channels_last"
    work = working_dtype(x)
    rules: dict[str, Any] = (
        {"winner": WINNER_2D if rank == 2 else WINNER_3D_VALUE, "empty": -math.inf}
        if op == "max_pool"
        else {"divisor": "valid", "empty": EMPTY_MEAN[rank]}
    )
    problem = pool_problem(call, op, x.shape, work, layout, call.attr("dimRoundingMode"), **rules)
    if rank == 2 and problem.window.tap_count == 1 and problem.output_shape == x.shape:
        return x.copy()  # TF.js hands the input through here, NaN and all
    values = x.astype(work, copy=False)
    y = (
        pool_misaddressed(call.kernel, problem, values)
        if layout == "channels_first" and in_quirks()
        else dispatch(problem, values)
    )
    stored = stored_as(x.dtype, _empty_as_zero(x, y) if op == "max_pool" else y)
    return stored if rank == 2 else stored.astype(FLOAT32, copy=False)


def _empty_as_zero(x: Array, y: Array) -> Array:
    """Integer storage keeps the -inf of an empty window as 0."""
    return y if x.dtype == FLOAT32 else np.where(np.isfinite(y), y, 0.0)


def _max_pool_grad(call: Call, rank: int) -> Array:
    x = call.tensor("input", rank + 2)
    if rank == 2 and call.inputs.get("output") is not None:
        call.tensor("output", None)
    dy = call.tensor("dy", rank + 2, complex_allowed=rank == 2 and in_quirks())
    if dy.dtype.kind == "c":
        dy = np.zeros(dy.shape, FLOAT32)  # upstream looks for real numbers where complex ones are kept apart, and finds none
    work = working_dtype(dy, x)
    winner = WINNER_2D if rank == 2 else WINNER_3D
    shape, mode, layout = x.shape, call.attr("dimRoundingMode"), grad_layout(call, rank)
    problem = pool_problem(call, "max_pool_grad", shape, work, layout, mode, winner=winner, empty=-math.inf)
    d, a = dy.astype(work, copy=False), x.astype(work, copy=False)
    misread = rank == 3 and in_quirks()
    if misread or any(have < want for have, want in zip(d.shape, problem.output_shape, strict=True)):
        forward = pool_problem(call, "max_pool", shape, work, layout, mode, winner=winner, empty=-math.inf, return_indices=True)
        indices = dispatch(forward, a)[1]
        if misread:
            indices = misread_winners(forward, indices)
        d = fit_dy(call, problem, d, indices >= 0)
        scatter = IndexProblem("max_pool_grad_from_indices", work, layout, shape, problem.output_shape)
        return stored_as(FLOAT32, dispatch(scatter, np.ascontiguousarray(d), indices))
    return stored_as(FLOAT32, dispatch(problem, fit_dy(call, problem, d, np.array(True)), a))


def _avg_pool_grad(call: Call, rank: int) -> Array:
    dy, x = call.tensor("dy", rank + 2), call.tensor("input", rank + 2)
    work = working_dtype(dy)
    # The 2-D kernel has no rounding mode, and both divide by the whole filter where the forward counts cells in bounds.
    mode = None if rank == 2 and in_quirks() else call.attr("dimRoundingMode")
    divisor = "full" if in_quirks() else "valid"
    layout = grad_layout(call, rank)
    problem = pool_problem(call, "avg_pool_grad", x.shape, work, layout, mode, divisor=divisor, empty=EMPTY_MEAN[rank])
    return stored_as(FLOAT32, dispatch(problem, fit_dy(call, problem, dy.astype(work, copy=False), touching(problem))))


@kernel("MaxPool", POOL_2D)
def max_pool(call: Call) -> Array:
    """Maximum of each window of `x` (NHWC). Attributes: filterSize, strides, pad, dimRoundingMode."""
    return _pool(call, 2, "max_pool")


@kernel("MaxPool3D", POOL_3D, label="maxPool3d")
def max_pool3d(call: Call) -> Array:
    """Maximum of each window of `x`, always float32. Attributes: those of MaxPool, and dataFormat (NDHWC, NCDHW)."""
    return _pool(call, 3, "max_pool")


@kernel("AvgPool", POOL_2D)
def avg_pool(call: Call) -> Array:
    """Mean of each window of `x` (NHWC) over its cells in bounds. Attributes: filterSize, strides, pad, dimRoundingMode."""
    return _pool(call, 2, "avg_pool")


@kernel("AvgPool3D", POOL_3D, label="avgPool3d")
def avg_pool3d(call: Call) -> Array:
    """Mean of each window of `x`, always float32. Attributes: those of AvgPool, and dataFormat (NDHWC, NCDHW)."""
    return _pool(call, 3, "avg_pool")


@kernel("MaxPoolGrad", POOL_2D)
def max_pool_grad(call: Call) -> Array:
    """Gradient of MaxPool from `dy` and `input`; `output` is not read."""
    return _max_pool_grad(call, 2)


@kernel("MaxPool3DGrad", POOL_3D)
def max_pool3d_grad(call: Call) -> Array:
    """Gradient of MaxPool3D from `dy` and `input`; `output` is not read."""
    return _max_pool_grad(call, 3)


@kernel("AvgPoolGrad", POOL_2D)
def avg_pool_grad(call: Call) -> Array:
    """Gradient of AvgPool from `dy`; of `input` only the shape is read."""
    return _avg_pool_grad(call, 2)


@kernel("AvgPool3DGrad", POOL_3D)
def avg_pool3d_grad(call: Call) -> Array:
    """Gradient of AvgPool3D from `dy`; of `input` only the shape is read."""
    return _avg_pool_grad(call, 3)


@kernel("MaxPoolWithArgmax", ARGMAX, label="MaxPoolWithArgmax")
def max_pool_with_argmax(call: Call) -> tuple[Array, Array]:
    """MaxPool's values and the winners' int32 indices in their image, or in x with includeBatchInIndex; -1 for no winner."""
    x = call.tensor("x", 4)
    if x.size > np.iinfo(np.int32).max:
        raise ValueError(f"{call.kernel}: x has shape {x.shape}, more cells than an int32 index can tell apart")
    work = working_dtype(x)
    problem = pool_problem(
        call, "max_pool", x.shape, work, "channels_last", None, winner=WINNER_2D, empty=-math.inf, return_indices=True
    )
    values, indices = dispatch(problem, x.astype(work, copy=False))
    if not one_of(call.kernel, "includeBatchInIndex", call.attr("includeBatchInIndex"), (None, False, True, 0, 1)):
        image = np.arange(x.shape[0]).reshape(-1, 1, 1, 1) * math.prod(x.shape[1:])
        indices = np.where(indices < 0, -1, indices - image)
    if in_quirks() and x.dtype == np.bool_:
        indices = indices % 256  # upstream keeps the indices in an array of x's dtype
    elif in_quirks() and x.dtype == FLOAT32:
        indices = indices.astype(FLOAT32).astype(np.int64)
    return stored_as(x.dtype, _empty_as_zero(x, values)), indices.astype(np.int32)
