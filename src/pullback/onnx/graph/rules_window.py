"""Gradients of convolutions and pools: ONNX Runtime's own nodes, or stock operators where it has none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto

from pullback.onnx.executor.registry import MICROSOFT
from pullback.onnx.graph import functions
from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.tensor_type import TensorType
from pullback.onnx.graph.view import NodeView

CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
AVERAGE = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")


def conv(n: NodeView) -> Sequence[Value | None]:
    return n.g.several("ConvGrad", MICROSOFT, (n.dy, n.x, n.b), (*n.wanted, False)[:3], **n.attributes(*CONV))


def max_pool(n: NodeView) -> Value:
    """By Indices, in C order where the model itself does not use them: ONNX Runtime's gradient knows no other."""
    if len(n.node.outputs) < 2 or not n.node.outputs[1]:
        for attribute in [each for each in n.proto.attribute if each.name == "storage_order"]:
            n.proto.attribute.remove(attribute)
        order = {}
    else:
        order = n.attributes("storage_order")
    indices = n.output(1, "_mask", TensorType(TensorProto.INT64, n.y.shape))
    return n.op.MaxPoolGrad(n.dy, indices, shape_of=n.x.name, **order)


def average_pool(n: NodeView) -> Value:
    return n.op.AveragePoolGrad(n.dy, shape_of=n.x.name, **n.attributes(*AVERAGE))


def global_average_pool(n: NodeView) -> Value:
    return spread(n, n.dy, mean=True)


def spread(n: NodeView, dy: Value, *, mean: bool) -> Value:
    """The gradient of a sum (or mean) over axes that dy still has, of size 1: the same for each entry of x."""
    if mean:
        scaled = dy * one_over_count(n, dy)
        dy = scaled if scaled is dy else n.g.typed(scaled, dy.type)
    return n.op.Expand(dy, n.g.shape_of(n.x))


def one_over_count(n: NodeView, dy: Value) -> float | Value:
    """1 / (entries of x for each of dy)."""
    g, x = n.g, n.x
    large, small = x.shape or (None,), dy.shape
    pairs = list(zip(large, (1,) * len(large) if small == () else small or (None,), strict=False))
    numbers = [(size, kept) for size, kept in pairs if isinstance(size, int) and isinstance(kept, int)]
    if len(numbers) + sum(isinstance(size, str) and size == kept for size, kept in pairs) == len(pairs):
        return 1 / math.prod(size // kept for size, kept in numbers)
    entries: Value = g.right_after(x, lambda: g.number(g.op.Size(x), x))
    return g.number(g.op.Size(dy), x) / entries


def global_max_pool(n: NodeView) -> Value:
    return n.g.call("GlobalMaxPoolGrad", functions.global_max_pool_grad, n.dy, n.x)


def lp_pool(n: NodeView) -> Value:
    return n.own.LpPoolGrad(n.dy, n.x, n.y, **n.attributes("p", *AVERAGE))


def conv_transpose(n: NodeView) -> Sequence[Value | None]:
    """A transposed convolution is the input gradient of a convolution: dX is that convolution of dY, and dW its filter gradient
    with X and dY in each other's place. Where the sizes are given otherwise than by pads, ONNX Runtime's node, which its CPU lacks.
    """
    wanted = (*n.wanted, False)[:3]
    if "output_shape" in n.node.attrs or n.attr("auto_pad", "NOTSET").startswith("SAME"):
        attrs = n.attributes(*CONV, "output_padding", "output_shape")
        return n.g.several("ConvTransposeGrad", MICROSOFT, (n.dy, n.x, n.b), wanted, **attrs)
    attrs = n.attributes(*CONV)
    dx = n.op.Conv(n.dy, n.b, **attrs) if wanted[0] else None
    dw = n.g.several("ConvGrad", MICROSOFT, (n.x, n.dy, n.b), (False, True, False), **attrs)[1] if wanted[1] else None
    db = n.g.sum_over(n.dy, [0, *range(2, n.rank())], keepdims=False) if wanted[2] else None
    return dx, dw, db
