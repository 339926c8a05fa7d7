"""Kernels that TF.js lacks, without which some of its ops have no derivative: tangents of the pools, gradients of dilated filters.

They are not in the registry, since no TF.js has them; the gradients outside `quirks()` run them.
"""

from __future__ import annotations

import math
from typing import Any

from pullback.rules import Array
from pullback.tfjs.attributes import CONV_2D, OF_FILTER, OF_INPUT, POOL_2D, POOL_3D, STEPS
from pullback.tfjs.call import Call, KernelFunc, dispatch, kernel
from pullback.tfjs.geometry import as_layout, as_shape
from pullback.tfjs.kernels_conv import conv_problem, filter_grad, input_grad
from pullback.tfjs.kernels_pool import WINNER_2D, WINNER_3D, grad_layout, pool_problem
from pullback.tfjs.tensors import FLOAT32, stored_as, working_dtype

BEYOND: dict[str, KernelFunc] = {}


def _pool_tangent(call: Call, rank: int, op: str, rules: dict[str, Any]) -> Array:
    t, x = call.tensor("t", rank + 2), call.tensor("input", rank + 2)
    dtype, mode = working_dtype(t, x), call.attr("dimRoundingMode")
    problem = pool_problem(call, op, x.shape, dtype, grad_layout(call, rank), mode, **rules)
    arrays = (t, x) if op == "max_pool_jvp" else (t,)
    return stored_as(FLOAT32, dispatch(problem, *(array.astype(dtype, copy=False) for array in arrays)))


@kernel("MaxPoolTangent", POOL_2D, among=BEYOND)
def max_pool_tangent(call: Call) -> Array:
    """`t` at the winners of `input`: the derivative of MaxPool, and the gradient of MaxPoolGrad for its dy."""
    return _pool_tangent(call, 2, "max_pool_jvp", {"winner": WINNER_2D, "empty": -math.inf})


@kernel("MaxPool3DTangent", POOL_3D, among=BEYOND)
def max_pool3d_tangent(call: Call) -> Array:
    """`t` at the winners of `input`, of MaxPool3D."""
    return _pool_tangent(call, 3, "max_pool_jvp", {"winner": WINNER_3D, "empty": -math.inf})


@kernel("AvgPoolTangent", POOL_2D, among=BEYOND)
def avg_pool_tangent(call: Call) -> Array:
    """AvgPool of `t`, but 0 for a window without a cell: the gradient of AvgPoolGrad for its dy."""
    return _pool_tangent(call, 2, "avg_pool", {"divisor": "valid", "empty": 0.0})


@kernel("AvgPool3DTangent", POOL_3D, among=BEYOND)
def avg_pool3d_tangent(call: Call) -> Array:
    """AvgPool3D of `t`."""
    return _pool_tangent(call, 3, "avg_pool", {"divisor": "valid", "empty": 0.0})


def _place(call: Call, rank: int) -> dict[str, Any]:
    """The layout and steps of a convolution whose dilations are not lost; only in 2-D has it a dataFormat and a mode."""
    layout = as_layout(2, call.attr("dataFormat")) if rank == 2 else "channels_last"
    return {"layout": layout, "dilations": call.attr("dilations"), "mode": call.attr("dimRoundingMode") if rank == 2 else None}


def _dilated_input_grad(call: Call, rank: int) -> Array:
    dy, weights = call.tensor("dy", rank + 2), call.tensor("filter", rank + 2)
    shape = as_shape(call.kernel, "inputShape", call.attr("inputShape"), rank + 2)
    dtype = working_dtype(dy, weights)
    problem = conv_problem(call, "conv_grad_input", shape, weights.shape, dtype, **_place(call, rank))
    return input_grad(call, dy, weights, problem)


def _dilated_filter_grad(call: Call, rank: int) -> Array:
    x, dy = call.tensor("x", rank + 2), call.tensor("dy", rank + 2)
    shape = as_shape(call.kernel, "filterShape", call.attr("filterShape"), rank + 2)
    problem = conv_problem(call, "conv_grad_filter", x.shape, shape, working_dtype(dy, x), **_place(call, rank))
    return filter_grad(call, dy, x, shape, problem)


@kernel("DilatedConv2DBackpropInput", CONV_2D + OF_INPUT, among=BEYOND)
def dilated_conv2d_backprop_input(call: Call) -> Array:
    """Conv2DBackpropInput with dilations."""
    return _dilated_input_grad(call, 2)


@kernel("DilatedConv2DBackpropFilter", CONV_2D + OF_FILTER, among=BEYOND)
def dilated_conv2d_backprop_filter(call: Call) -> Array:
    """Conv2DBackpropFilter with dilations."""
    return _dilated_filter_grad(call, 2)


@kernel("DilatedConv3DBackpropInput", STEPS + OF_INPUT, among=BEYOND)
def dilated_conv3d_backprop_input(call: Call) -> Array:
    """Conv3DBackpropInputV2 with dilations."""
    return _dilated_input_grad(call, 3)


@kernel("DilatedConv3DBackpropFilter", STEPS + OF_FILTER, among=BEYOND)
def dilated_conv3d_backprop_filter(call: Call) -> Array:
    """Conv3DBackpropFilterV2 with dilations."""
    return _dilated_filter_grad(call, 3)
