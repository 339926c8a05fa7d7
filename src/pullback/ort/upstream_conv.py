"""ConvGrad as ONNX Runtime 1.19.2 computed it: auto_pad is not read and the size of dY is taken on trust.

It worked through a buffer of columns, one row per (channel, tap). Where that buffer and dY disagree in size, 2-D dX comes out
scrambled, which is reproduced, and 1-D and 2-D dW come out of uninitialised memory, which is refused.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pullback.ort.attributes import conv_attributes
from pullback.ort.convolution import Convolution, bias_gradient
from pullback.ort.registry import Node
from pullback.registry import dispatch
from pullback.rules import Array
from pullback.window import Window, axis_slices, span

WAY_OUT = 'ask for outputs=("dX", "dB") only, or leave quirks() for the right gradient'


def _trusted_dy(node: Node) -> Array:
    """dY's first images, as many as X has; refused where reading them would leave the array."""
    dy, x, w = node.inputs["dY"], node.inputs["X"], node.inputs["W"]
    given = f"dY has shape {dy.shape}, X {x.shape}, W {w.shape}"
    if dy.shape[:1] == (0,):
        raise ValueError(f"ConvGrad: {given}; an empty batch is a division by zero (SIGFPE) in ONNX Runtime 1.19.2")
    if dy.ndim != x.ndim or dy.shape[1] != w.shape[0] or dy.shape[0] < x.shape[0]:
        raise ValueError(f"ConvGrad: {given}; the kernel would read past the end of dY")
    return dy[: x.shape[0]]


def _scrambled_input_gradient(conv: Convolution, dy: Array, w: Array) -> Array:
    """2-D dX where the columns, written in rows of dY's size, are read in rows of the unpadded output's size."""
    window, groups = conv.window, conv.groups
    rows = conv.channels_in // groups * window.tap_count
    d = dy.reshape(conv.batch, groups, conv.channels_out // groups, -1).astype(np.float64)
    f = w.reshape(groups, conv.channels_out // groups, rows).astype(np.float64)
    columns = np.einsum("gmr,ngmi->ngri", f, d).reshape(conv.batch, groups, -1)
    read = rows * math.prod(window.output_size)
    columns = columns[..., :read].reshape(conv.batch, conv.channels_in, window.tap_count, *window.output_size)
    dx = np.zeros((conv.batch, conv.channels_in, *window.input_size))
    for t, tap in enumerate(window.taps()):
        outs, ins = window.tap_slices(tap)
        dx[axis_slices(False, ins)] += columns[:, :, t][axis_slices(False, outs)]
    return dx.astype(dy.dtype)


def conv_grad(node: Node) -> tuple[Array | None, Array | None, Array | None]:
    x, w = node.inputs["X"], node.inputs["W"]
    attrs, groups = conv_attributes(node.op_type, node.attrs, x.shape, w.shape)
    dy = _trusted_dy(node)
    lows, highs = (tuple(pair[i] for pair in attrs.pads) for i in (0, 1))
    axes = zip(x.shape[2:], attrs.kernel_shape, attrs.strides, attrs.dilations, attrs.pads, strict=True)
    own_size = tuple((n + p + q - span(k, d)) // s + 1 for n, k, s, d, (p, q) in axes)
    window = Window(x.shape[2:], dy.shape[2:], attrs.kernel_shape, attrs.strides, attrs.dilations, lows, highs)
    as_given = Convolution(x.dtype, x.shape[0], x.shape[1], w.shape[0], groups, window)
    as_computed = replace(as_given, window=replace(window, output_size=own_size))
    rank, agree = window.rank, own_size == dy.shape[2:]
    dx = dw = None
    if "dW" in node.wanted:
        if rank < 3 and not agree:
            raise ValueError(
                f"ConvGrad: dW is undefined in ONNX Runtime 1.19.2: without auto_pad the columns of X {x.shape} have size "
                f"{own_size} but dY has {dy.shape[2:]}, and the rest is uninitialised memory; {WAY_OUT}"
            )
        dw = dispatch(as_given.problem("conv_grad_filter"), dy, x)
    if "dX" in node.wanted:
        if rank != 2 or agree:
            dx = dispatch(as_given.problem("conv_grad_input"), dy, w)
        elif min(own_size) < 1 or math.prod(own_size) > math.prod(dy.shape[2:]):
            raise ValueError(
                f"ConvGrad: dY has size {dy.shape[2:]} but the columns {own_size}; they would be read past their end"
            )
        else:
            dx = _scrambled_input_gradient(as_computed, dy, w)
    return dx, dw, bias_gradient(dy) if "dB" in node.wanted else None
