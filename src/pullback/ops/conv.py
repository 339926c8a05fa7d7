"""Convolution and its two gradients: validation, the Problem, dispatch.

y[n, i, m]  = sum over taps t and channels c of x[n, i*s - p + t*d, c] * f[t, c, m]
dx = adjoint of y in x,  df = adjoint of y in f
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from pullback.ops.arguments import (
    as_float_array,
    as_int,
    as_layout,
    as_shape,
    check_shape,
    make_window,
    same_dtype,
    spatial_rank,
    split_shape,
)
from pullback.ops.call import run_op
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
    layout: str = "channels_last",
    rounding: str = "floor",
) -> Problem:
    rank = spatial_rank(op, input_name, input_shape)
    kind = as_layout(op, layout, rank)
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
        )
    window = make_window(op, size, kernel, stride, dilation, padding, rounding)
    return Problem(op, dtype, kind, batch, channels_in, channels_out, window, groups=count)


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


def conv(
    x: npt.ArrayLike,
    filter: npt.ArrayLike,
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
) -> Array:
    """Convolution (cross-correlation, as in every deep-learning system) of x with a filter.

    channels_last: x is (N, *size, C), the filter (*k, C/groups, M), the result (N, *out, M).
    channels_first: x is (N, C, *size), the filter (M, C/groups, *k), the result (N, M, *out).
    """
    return run_op(
        prepare_conv, x, filter,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout, rounding=rounding,
    )  # fmt: skip


def conv_grad_input(
    dy: npt.ArrayLike,
    filter: npt.ArrayLike,
    input_shape: Sequence[int],
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
) -> Array:
    """Gradient of `conv` with respect to x, from the gradient dy of its result; the keywords are those of `conv`."""
    return run_op(
        prepare_conv_grad_input, dy, filter, input_shape,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout, rounding=rounding,
    )  # fmt: skip


def conv_grad_filter(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    filter_shape: Sequence[int],
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = "channels_last",
    rounding: str = "floor",
) -> Array:
    """Gradient of `conv` with respect to its filter, from the gradient dy of its result; the keywords are those of `conv`."""
    return run_op(
        prepare_conv_grad_filter, dy, x, filter_shape,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout, rounding=rounding,
    )  # fmt: skip
