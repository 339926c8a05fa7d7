"""Gradients of convolutions and pools: ONNX Runtime's own nodes, or stock operators where it has none."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from pullback.onnx.graph.emit import TensorType, Value
from pullback.onnx.graph.view import NodeView

CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
AVERAGE = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")


def conv(n: NodeView) -> Sequence[Value | None]:
    wanted = (*n.wanted, False)[:3]
    grads: Sequence[Value | None] = n.ms.ConvGrad(n.dy, n.x, n.b, outputs=wanted, **n.attributes(*CONV))
    return grads


def max_pool(n: NodeView) -> Value:
    indices = n.output(1, "_mask", TensorType(TensorProto.INT64, n.y.shape))
    order = n.attributes("storage_order")
    dx: Value = n.op.MaxPoolGrad(n.dy, indices, shape_of=n.x.name, **order)
    return dx


def average_pool(n: NodeView) -> Value:
    dx: Value = n.op.AveragePoolGrad(n.dy, shape_of=n.x.name, **n.attributes(*AVERAGE))
    return dx


def global_average_pool(n: NodeView) -> Value:
    return spread(n, n.dy, mean=True)


def spread(n: NodeView, dy: Value, *, mean: bool) -> Value:
    """The gradient of a sum (or mean) over axes that dy still has, of size 1: the same for each entry of x."""
    if mean:
        dy = n.g.typed(dy * one_over_count(n, dy), dy.type)
    dx: Value = n.op.Expand(dy, n.g.shape_of(n.x))
    return dx


def one_over_count(n: NodeView, dy: Value) -> float | Value:
    """1 / (entries of x for each of dy)."""
    sizes = zip(n.x.shape or (None,), dy.shape or (None,), strict=False)
    count = 1
    for size, kept in sizes:
        if size == kept:
            continue
        if not isinstance(size, int) or not isinstance(kept, int):
            g, x = n.g, n.x
            entries = g.right_after(x, lambda: g.number(g.op.Size(x), x))
            return g.number(g.op.Size(dy), x) / entries  # type: ignore[no-any-return]
        count *= size // kept
    return 1 / count
