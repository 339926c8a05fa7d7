"""Convolution and its two gradients: validation, the Problem, dispatch.

y[n, i, m]  = sum over taps t and channels c of x[n, i*s - p + t*d, c] * f[t, c, m], plus bias[m]
dx = adjoint of y in x,  df = adjoint of y in f,  db = sum of dy over n and i
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from pullback.ops.arguments import (
    as_float_array,
    as_int,
    as_shape,
    check_shape,
    layout_of,
    make_window,
    same_dtype,
    split_shape,
)
from pullback.ops.bias import add_bias, as_bias
from pullback.ops.call import run_op
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.problem import Problem
from pullback.rules import Array, Layout
from pullback.window import Padding

PerAxis = int | Sequence[int]


def split_filter(layout: Layout, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    """(window, input channels of a group, output channels) of a filter's shape."""
    if layout == "channels_last":
        return shape[:-2], shape[-2], shape[-1]
    return shape[2:], shape[1], shape[0]


def conv_problem(
    op: str,
    input_name: str,
    input_shape: tuple[int, ...],
    filter_shape: tuple[int, ...],
    dtype: Any,
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
) -> Problem:
    kind, rank = layout_of(op, layout, input_name, input_shape), len(input_shape) - 2
    if len(filter_shape) != rank + 2:
        raise ValueError(
            f"{op}: the filter has shape {filter_shape}, {len(filter_shape)} axes, but {input_name} {input_shape} "
            f"needs a filter of {rank + 2} axes"
        )
    batch, size, channels_in = split_shape(kind, input_shape)
    kernel, per_group, channels_out = split_filter(kind, filter_shape)
    if min(kernel) < 1:
        raise ValueError(f"{op}: the filter has shape {filter_shape}; its window {kernel} has no taps")
    count = as_int(op, "groups", groups)
    if count < 1:
        raise ValueError(f"{op}: groups is {count}; it must be at least 1")
    if per_group * count != channels_in or channels_out % count:
        raise ValueError(
            f"{op}: with groups={count} the {channels_in} input channels of {input_shape} need a filter of "
            f"{channels_in}/{count} input channels and a multiple of {count} output channels, not {filter_shape}"
            + _other_layout(kind, input_shape, filter_shape, count)
        )
    window = make_window(op, size, kernel, stride, dilation, padding, rounding)
    return Problem(op, dtype, kind, batch, channels_in, channels_out, window, groups=count)


def _other_layout(layout: Layout, input_shape: tuple[int, ...], filter_shape: tuple[int, ...], groups: int) -> str:
    """The end of an error's sentence where the shapes fit together in the other layout."""
    other: Layout = "channels_first" if layout == "channels_last" else "channels_last"
    kernel, per_group, channels_out = split_filter(other, filter_shape)
    fits = split_shape(other, input_shape)[2] == per_group * groups and channels_out % groups == 0 and 0 not in kernel
    return f'; they fit in the other layout: pass layout="{other}"' if fits else ""


def prepare_conv(x: npt.ArrayLike, filter: npt.ArrayLike, **keywords: Any) -> tuple[Problem, Array, Array]:
    a, f = as_float_array("conv", "x", x), as_float_array("conv", "filter", filter)
    return conv_problem("conv", "x", a.shape, f.shape, same_dtype("conv", x=a, filter=f), **keywords), a, f


def prepare_conv_grad_input(
    dy: npt.ArrayLike, filter: npt.ArrayLike, input_shape: Sequence[int], **keywords: Any
) -> tuple[Problem, Array, Array]:
    op = "conv_grad_input"
    d, f = as_float_array(op, "dy", dy), as_float_array(op, "filter", filter)
    shape = as_shape(op, "input_shape", input_shape)
    problem = conv_problem(op, "input_shape", shape, f.shape, same_dtype(op, dy=d, filter=f), **keywords)
    check_shape(op, "dy", d.shape, problem.output_shape, f"the output of input {shape} and filter {f.shape}")
    return problem, d, f


def prepare_conv_grad_filter(
    dy: npt.ArrayLike, x: npt.ArrayLike, filter_shape: Sequence[int], **keywords: Any
) -> tuple[Problem, Array, Array]:
    op = "conv_grad_filter"
    d, a = as_float_array(op, "dy", dy), as_float_array(op, "x", x)
    shape = as_shape(op, "filter_shape", filter_shape)
    problem = conv_problem(op, "x", a.shape, shape, same_dtype(op, dy=d, x=a), **keywords)
    check_shape(op, "dy", d.shape, problem.output_shape, f"the output of x {a.shape} and filter {shape}")
    return problem, d, a


@with_hints
def conv(
    x: npt.ArrayLike,
    filter: npt.ArrayLike,
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    bias: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Convolution (cross-correlation, as in every deep-learning system) of x with a filter, plus a bias.

    **Formula.** `y[n, i, m] = bias[m] + sum over t, c of x[n, i*stride - low + t*dilation, c] * filter[t, c, m]`, over the
    taps t that fall inside x and the channels c of the group of m.

    **Shapes.** channels_last: x is `(N, *size, C)`, the filter `(*k, C/groups, M)`, the result `(N, *out, M)`.
    channels_first: x is `(N, C, *size)`, the filter `(M, C/groups, *k)`, the result `(N, M, *out)`. 1, 2 or 3 spatial axes.
    The bias has M entries.

    **Rules.** `stride`, `dilation`: a number, or one per axis. `padding`: "valid", "same", "same_lower" (in any case), a
    number, one per axis, or (low, high) pairs. `rounding` of the output's size: "floor", "ceil" or "round". `layout`:
    "channels_last" ("NHWC" and the like) or "channels_first" ("NCHW"). `out`: an array that takes the result. The bias is
    added in a pass of its own.

    **Error.** A sum of n products errs by at most n eps times the sum of their absolute values; the Winograd kernels by about
    1e-6 of the result's norm in float32, and not under `precision("exact")`.

    **Equals** torch.nn.functional.conv1d to conv3d and ONNX Conv (channels_first), tf.nn.convolution and TF.js Conv2D
    (channels_last).
    """
    y = run_op(
        prepare_conv, x, filter, out=out,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout, rounding=rounding,
    )  # fmt: skip
    return y if bias is None else add_bias("conv", y, as_bias("conv", bias, y, layout), layout)


@with_hints
def conv_grad_input(
    dy: npt.ArrayLike,
    filter: npt.ArrayLike,
    input_shape: Sequence[int],
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    out: Array | None = None,
) -> Array:
    """Gradient of `conv` with respect to x, from the gradient dy of its result.

    **Formula.** `dx[n, j, c] = sum over i, t, m with i*stride - low + t*dilation = j of dy[n, i, m] * filter[t, c, m]`.

    **Shapes.** dy has the shape of conv's result, the filter that of conv's filter. `input_shape` is x's shape, or x itself,
    of which only the shape is read. The result has that shape.

    **Rules.** The keywords are those of `conv`, and must be those of the forward call.

    **Error.** As `conv`.

    **Equals** torch.nn.grad.conv2d_input, TF.js Conv2DBackpropInput and Conv3DBackpropInputV2, the dX of ONNX Runtime's
    ConvGrad.
    """
    return run_op(
        prepare_conv_grad_input, dy, filter, input_shape, out=out,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout, rounding=rounding,
    )  # fmt: skip


@with_hints
def conv_grad_filter(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    filter_shape: Sequence[int],
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
    out: Array | None = None,
) -> Array:
    """Gradient of `conv` with respect to its filter, from the gradient dy of its result.

    **Formula.** `df[t, c, m] = sum over n, i of x[n, i*stride - low + t*dilation, c] * dy[n, i, m]`.

    **Shapes.** dy has the shape of conv's result. `filter_shape` is the filter's shape, or the filter itself, of which only
    the shape is read. The result has that shape.

    **Rules.** The keywords are those of `conv`, and must be those of the forward call.

    **Error.** As `conv`, with n the cells that a tap meets in all images.

    **Equals** torch.nn.grad.conv2d_weight, TF.js Conv2DBackpropFilter and Conv3DBackpropFilterV2, the dW of ONNX Runtime's
    ConvGrad.
    """
    return run_op(
        prepare_conv_grad_filter, dy, x, filter_shape, out=out,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout, rounding=rounding,
    )  # fmt: skip
