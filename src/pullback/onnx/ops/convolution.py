"""Conv and ConvTranspose on pullback's kernels, in the memory layout that the images have."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from pullback.onnx.executor.layout import channels_last, filter_to_last, to_first, to_last
from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import frozen, ints, naming, refused
from pullback.ops.arguments import check_taps
from pullback.ort.attributes import WindowAttributes, conv_attributes
from pullback.ort.geometry import conv_window
from pullback.problem import Problem
from pullback.registry import dispatch
from pullback.rules import Array, Layout
from pullback.window import Window, same_pads, span

Shape = tuple[int, ...]


@lru_cache(1024)
def _conv_problem(
    kernel_op: str, op_type: str, attrs: tuple[tuple[str, Any], ...], x: Shape, w: Shape, dtype: Any, last: bool
) -> Problem:
    window_attrs, groups = conv_attributes(op_type, dict(attrs), x, w)
    if window_attrs.auto_pad.startswith("SAME") and any(d != 1 for d in window_attrs.dilations):
        # ONNX Runtime refuses this; ONNX says what it means.
        lower = window_attrs.auto_pad == "SAME_LOWER"
        axes = zip(x[2:], window_attrs.kernel_shape, window_attrs.strides, window_attrs.dilations, strict=True)
        pads = tuple(same_pads(n, span(k, d), s, lower=lower) for n, k, s, d in axes)
        window_attrs = replace(window_attrs, auto_pad="NOTSET", pads=pads)
    window = conv_window(op_type, window_attrs, x[2:])
    return Problem(kernel_op, dtype, layout_name(last), x[0], x[1], w[0], window, groups=groups)


def conv_problem(node: Node, kernel_op: str, x_shape: Shape, w_shape: Shape, dtype: np.dtype[Any], last: bool) -> Problem:
    """The problem `conv`, `conv_grad_input` or `conv_grad_filter` of a Conv node or its gradient, for images in one layout."""
    with naming(node):
        return _conv_problem(kernel_op, node.op_type, frozen(node), x_shape, w_shape, dtype, last)


def layout_name(last: bool) -> Layout:
    return "channels_last" if last else "channels_first"


def for_kernel(x: Array, last: bool) -> Array:
    """An array of shape (N, C, *spatial) as a kernel for its layout takes it."""
    return x.transpose(to_last(x.ndim)) if last else x


def from_kernel(y: Array, last: bool) -> Array:
    """A kernel's result in the shape that ONNX has for it."""
    return y.transpose(to_first(y.ndim)) if last else y


def filter_for_kernel(w: Array, last: bool) -> Array:
    """A filter of shape (M, C/groups, *k) as a kernel for images of a layout takes it; kernels read it in any order."""
    return w.transpose(filter_to_last(w.ndim)) if last else w


def add_bias(node: Node, y: Array, bias: Array | None) -> Array:
    """A bias added into the result of a convolution."""
    if bias is None:
        return y
    if bias.shape != y.shape[1:2]:
        raise refused(node, f"B has shape {bias.shape} for {y.shape[1]} output channels", "give one entry for each channel")
    y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y


def convolved(node: Node, x: Array, w: Array) -> Array:
    """The convolution without its bias."""
    last = channels_last(x)
    problem = conv_problem(node, "conv", x.shape, w.shape, x.dtype, last)
    return from_kernel(dispatch(problem, for_kernel(x, last), filter_for_kernel(w, last)), last)


@op("Conv")
def conv(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    return add_bias(node, convolved(node, x, w), bias)


def _transposed_window(attrs: WindowAttributes, x: Shape, extra: Shape, given: Shape) -> Window:
    """The window of the convolution that turns ConvTranspose's output into its input: ConvTranspose is its input gradient."""
    spans = [span(k, d) for k, d in zip(attrs.kernel_shape, attrs.dilations, strict=True)]
    whole = [(n - 1) * s + e + more for n, s, e, more in zip(x, attrs.strides, spans, extra, strict=True)]
    same = attrs.auto_pad.startswith("SAME")
    if given or same:
        sizes = given or tuple(n * s for n, s in zip(x, attrs.strides, strict=True))
        totals = [max(0, full - size) for full, size in zip(whole, sizes, strict=True)]
        # SAME_UPPER has the odd cell at the end; every other way at the start.
        lows = tuple(total // 2 if attrs.auto_pad == "SAME_UPPER" else total - total // 2 for total in totals)
        highs = tuple(total - low for total, low in zip(totals, lows, strict=True))
    else:
        pads = ((0, 0),) * len(x) if attrs.auto_pad == "VALID" else attrs.pads
        lows, highs = (tuple(pair[i] for pair in pads) for i in (0, 1))
        sizes = tuple(full - low - high for full, low, high in zip(whole, lows, highs, strict=True))
    if min(sizes) < 1:
        raise ValueError(f"ConvTranspose: pads {list(attrs.pads)} leave an output of {list(sizes)} of the input {list(x)}")
    return Window(sizes, x, attrs.kernel_shape, attrs.strides, attrs.dilations, lows, highs)


@lru_cache(1024)
def _transposed_problem(
    kernel_op: str, op_type: str, attrs: tuple[tuple[str, Any], ...], x: Shape, w: Shape, dtype: Any, last: bool
) -> Problem:
    given = dict(attrs)
    groups = given.get("group", 1)
    # What is this op's input is the output of the convolution, whose attributes and checks serve here.
    if len(w) != len(x) or x[1] != w[0]:
        raise ValueError(f"{op_type}: X has shape {x} and W {w}; W needs X's {x[1]} channels first and as many axes")
    window_attrs, _ = conv_attributes(op_type, given, (x[0], w[1] * groups, *x[2:]), w)
    check_taps(op_type, window_attrs.kernel_shape)
    extra = ints(given.get("output_padding") or (0,) * (len(x) - 2))
    size = ints(given.get("output_shape") or ())[-(len(x) - 2) :]
    window = _transposed_window(window_attrs, x[2:], extra, size)
    return Problem(kernel_op, dtype, layout_name(last), x[0], w[1] * groups, w[0], window, groups=groups)


def transposed_problem(node: Node, kernel_op: str, x_shape: Shape, w_shape: Shape, dtype: np.dtype[Any], last: bool) -> Problem:
    """A problem of a ConvTranspose node: it is `conv_grad_input` of X, its dX `conv` of dY, its dW `conv_grad_filter` of both."""
    with naming(node):
        return _transposed_problem(kernel_op, node.op_type, frozen(node), x_shape, w_shape, dtype, last)


@op("ConvTranspose")
def conv_transpose(node: Node, x: Array, w: Array, bias: Array | None = None) -> Array:
    last = channels_last(x)
    problem = transposed_problem(node, "conv_grad_input", x.shape, w.shape, x.dtype, last)
    y = dispatch(problem, for_kernel(x, last), filter_for_kernel(w, last))
    return add_bias(node, from_kernel(y, last), bias)
