"""TF.js's convolutions and their gradients: Conv2D, Conv3D and the depthwise Conv2D, which is a grouped one.

Filters are (*k, inC, outC) in every dataFormat; the depthwise filter (kh, kw, inC, mult) makes output channel c*mult + q.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pullback.problem import Problem
from pullback.rules import Array, Layout
from pullback.tfjs.attributes import CONV_2D, OF_FILTER, OF_INPUT, STEPS, UNDILATED_2D, UNDILATED_3D
from pullback.tfjs.call import Call, dispatch, fit_dy, kernel, touching
from pullback.tfjs.geometry import as_layout, as_shape, make_window, per_axis
from pullback.tfjs.quirks import in_quirks
from pullback.tfjs.stepwise import conv_step_by_step
from pullback.tfjs.tensors import BOOL, FLOAT32, INT32, js_text, stored_as, working_dtype

Shape = tuple[int, ...]


def _split(layout: Layout, shape: Shape) -> tuple[int, Shape, int]:
    return (shape[0], shape[1:-1], shape[-1]) if layout == "channels_last" else (shape[0], shape[2:], shape[1])


def conv_problem(
    call: Call, op: str, x: Shape, filter: Shape, dtype: Any, layout: Layout = "channels_last", *,
    dilations: Any = 1, mode: Any = None, depthwise: bool = False,
) -> Problem:  # fmt: skip
    batch, size, channels = _split(layout, x)
    window = make_window(
        call.kernel, size, filter[: len(size)],
        strides=call.attr("strides"), dilations=dilations, pad=call.attr("pad"), mode=mode, layout=layout,
    )  # fmt: skip
    if min(window.output_size) < 0:
        if op == "conv" or not in_quirks():
            raise ValueError(
                f"{call.kernel}: a filter {list(filter)} on an input {list(x)} gives a negative output size "
                f"{list(window.output_size)}; the filter must fit into the padded input"
            )
        # Upstream's gradient loops run over no output at all, and the channels are never looked at.
        window = replace(window, output_size=tuple(max(0, o) for o in window.output_size))
    elif filter[-2] != channels:
        raise ValueError(
            f"{call.kernel}: the input {list(x)} has {channels} channels but the filter {list(filter)} {filter[-2]}"
        )
    channels_out = channels * filter[-1] if depthwise else filter[-1]
    return Problem(op, dtype, layout, batch, channels, channels_out, window, groups=channels if depthwise else 1)


def _filter_in(problem: Problem, filter: Array) -> Array:
    """A TF.js filter as pullback's filter of the problem."""
    grouped = filter.reshape(*problem.window.kernel, problem.channels_in // problem.groups, problem.channels_out)
    return grouped if problem.layout == "channels_last" else np.moveaxis(grouped, (-1, -2), (0, 1))


def _filter_out(problem: Problem, df: Array, shape: Shape) -> Array:
    last = df if problem.layout == "channels_last" else np.moveaxis(df, (0, 1), (-1, -2))
    return np.ascontiguousarray(last).reshape(shape)


def _forward(call: Call, x: Array, filter: Array, problem: Problem) -> Array:
    if x.dtype == BOOL:
        raise TypeError(
            f"{call.kernel}: x is bool; the 8-bit sums TF.js makes of it do not fit a NumPy bool, use x.astype(int32)"
        )
    if 0 in (*problem.output_shape, *x.shape, *filter.shape):
        return np.zeros(problem.output_shape, x.dtype)
    f = _filter_in(problem, filter)
    if x.dtype == INT32 or in_quirks():
        return conv_step_by_step(problem, x, f)
    return stored_as(x.dtype, dispatch(problem, x.astype(problem.dtype, copy=False), f.astype(problem.dtype, copy=False)))


def _fitted_dy(call: Call, problem: Problem, dy: Array) -> Array:
    have = _split(problem.layout, dy.shape)[2]
    if have != problem.channels_out:
        raise ValueError(f"{call.kernel}: dy {list(dy.shape)} has {have} channels but the filter makes {problem.channels_out}")
    return fit_dy(call, problem, dy.astype(problem.dtype, copy=False), touching(problem))


def input_grad(call: Call, dy: Array, filter: Array, problem: Problem) -> Array:
    if 0 in (*problem.window.output_size, *problem.input_shape, *filter.shape):
        return np.zeros(problem.input_shape, FLOAT32)
    d, f = _fitted_dy(call, problem, dy), _filter_in(problem, filter.astype(problem.dtype, copy=False))
    return stored_as(FLOAT32, dispatch(problem, d, f))


def filter_grad(call: Call, dy: Array, x: Array, shape: Shape, problem: Problem) -> Array:
    if 0 in (*problem.output_shape, *x.shape, *shape):
        return np.zeros(shape, FLOAT32)
    df = dispatch(problem, _fitted_dy(call, problem, dy), x.astype(problem.dtype, copy=False))
    return _filter_out(problem, stored_as(FLOAT32, df), shape)


@kernel("Conv2D", CONV_2D, label="conv2d")
def conv2d(call: Call) -> Array:
    """Convolution of `x` with `filter`. Attributes: strides, pad, dataFormat, dilations, dimRoundingMode."""
    x, weights = call.tensor("x", 4), call.tensor("filter", 4)
    layout = as_layout(2, call.attr("dataFormat"))
    dilations, mode = call.attr("dilations"), call.attr("dimRoundingMode")
    dtype = working_dtype(x, weights)
    return _forward(
        call, x, weights, conv_problem(call, "conv", x.shape, weights.shape, dtype, layout, dilations=dilations, mode=mode)
    )


@kernel("Conv2DBackpropInput", UNDILATED_2D + OF_INPUT, label="conv2dBackpropInput")
def conv2d_backprop_input(call: Call) -> Array:
    """Gradient of an undilated Conv2D for its input: `dy`, `filter`, and the attribute inputShape beside Conv2D's."""
    dy, weights = call.tensor("dy", 4), call.tensor("filter", 4)
    shape = as_shape(call.kernel, "inputShape", call.attr("inputShape"), 4)
    layout, mode = as_layout(2, call.attr("dataFormat")), call.attr("dimRoundingMode")
    dtype = working_dtype(dy, weights)
    return input_grad(call, dy, weights, conv_problem(call, "conv_grad_input", shape, weights.shape, dtype, layout, mode=mode))


@kernel("Conv2DBackpropFilter", UNDILATED_2D + OF_FILTER, label="conv2dBackpropFilter")
def conv2d_backprop_filter(call: Call) -> Array:
    """Gradient of an undilated Conv2D for its filter: `x`, `dy`, and the attribute filterShape beside Conv2D's."""
    x, dy = call.tensor("x", 4), call.tensor("dy", 4)
    shape = as_shape(call.kernel, "filterShape", call.attr("filterShape"), 4)
    layout, mode = as_layout(2, call.attr("dataFormat")), call.attr("dimRoundingMode")
    dtype = working_dtype(dy, x)
    return filter_grad(call, dy, x, shape, conv_problem(call, "conv_grad_filter", x.shape, shape, dtype, layout, mode=mode))


@kernel("Conv3D", STEPS, label="conv3d")
def conv3d(call: Call) -> Array:
    """Convolution of `x` (NDHWC) with `filter`. Attributes: strides, pad, dilations; the others are not read."""
    x, weights = call.tensor("x", 5), call.tensor("filter", 5)
    dtype = working_dtype(x, weights)
    return _forward(
        call, x, weights, conv_problem(call, "conv", x.shape, weights.shape, dtype, dilations=call.attr("dilations"))
    )


@kernel("Conv3DBackpropInputV2", UNDILATED_3D + OF_INPUT, label="conv3dBackpropInputV2")
def conv3d_backprop_input_v2(call: Call) -> Array:
    """Gradient of an undilated Conv3D for its input: `dy`, `filter`; attributes inputShape, strides, pad."""
    dy, weights = call.tensor("dy", 5), call.tensor("filter", 5)
    shape = as_shape(call.kernel, "inputShape", call.attr("inputShape"), 5)
    dtype = working_dtype(dy, weights)
    return input_grad(call, dy, weights, conv_problem(call, "conv_grad_input", shape, weights.shape, dtype))


@kernel("Conv3DBackpropFilterV2", UNDILATED_3D + OF_FILTER, label="conv3dBackpropFilterV2")
def conv3d_backprop_filter_v2(call: Call) -> Array:
    """Gradient of an undilated Conv3D for its filter: `x`, `dy`; attributes filterShape, strides, pad."""
    x, dy = call.tensor("x", 5), call.tensor("dy", 5)
    shape = as_shape(call.kernel, "filterShape", call.attr("filterShape"), 5)
    return filter_grad(call, dy, x, shape, conv_problem(call, "conv_grad_filter", x.shape, shape, working_dtype(dy, x)))


def _depthwise_problem(call: Call, op: str, x: Shape, filter: Shape, dtype: Any, dilations: Any) -> Problem:
    given, mode = call.attr("dataFormat"), call.attr("dimRoundingMode")
    # Upstream never reads dataFormat; mended, NCHW means NCHW.
    layout: Layout = "channels_last" if in_quirks() or given is None else as_layout(2, given)
    problem = conv_problem(call, op, x, filter, dtype, layout, dilations=dilations, mode=mode, depthwise=True)
    if op != "conv" and in_quirks():
        # Upstream's gradients know the dilation in their sizes but not in their taps.
        return replace(problem, window=replace(problem.window, dilation=(1, 1)))
    return problem


@kernel("DepthwiseConv2dNative", CONV_2D, label="depthwiseConv2DNative")
def depthwise_conv2d_native(call: Call) -> Array:
    """Convolution of each channel of `x` with its own filters. Attributes: those of Conv2D; no dilations means 1."""
    x, weights = call.tensor("x", 4), call.tensor("filter", 4)
    strides = call.attr("strides")
    dilations = 1 if call.attr("dilations") is None else call.attr("dilations")
    both = (per_axis(call.kernel, "strides", strides, 2), per_axis(call.kernel, "dilations", dilations, 2))
    if all(max(steps) > 1 for steps in both):
        raise ValueError(
            "Error in depthwiseConv2d: Either strides or dilations must be 1. "
            f"Got strides {js_text(strides)} and dilations '{js_text(dilations)}'"
        )
    dtype = working_dtype(x, weights)
    return _forward(call, x, weights, _depthwise_problem(call, "conv", x.shape, weights.shape, dtype, dilations))


@kernel("DepthwiseConv2dNativeBackpropInput", CONV_2D + OF_INPUT, label="depthwiseConv2DNativeBackpropInput")
def depthwise_conv2d_native_backprop_input(call: Call) -> Array:
    """Gradient of DepthwiseConv2dNative for its input: `dy`, `filter`, and the attribute inputShape."""
    dy, weights = call.tensor("dy", 4), call.tensor("filter", 4)
    shape = as_shape(call.kernel, "inputShape", call.attr("inputShape"), 4)
    dtype, dilations = working_dtype(dy, weights), call.attr("dilations")
    return input_grad(call, dy, weights, _depthwise_problem(call, "conv_grad_input", shape, weights.shape, dtype, dilations))


@kernel("DepthwiseConv2dNativeBackpropFilter", CONV_2D + OF_FILTER, label="depthwiseConv2dNativeBackpropFilter")
def depthwise_conv2d_native_backprop_filter(call: Call) -> Array:
    """Gradient of DepthwiseConv2dNative for its filter: `x`, `dy`, and the attribute filterShape."""
    x, dy = call.tensor("x", 4), call.tensor("dy", 4)
    shape = as_shape(call.kernel, "filterShape", call.attr("filterShape"), 4)
    dtype, dilations = working_dtype(dy, x), call.attr("dilations")
    return filter_grad(call, dy, x, shape, _depthwise_problem(call, "conv_grad_filter", x.shape, shape, dtype, dilations))
