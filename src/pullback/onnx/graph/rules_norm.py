"""Gradients of the normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.view import NodeView

EPSILON = 1e-5


def batch_norm_training(n: NodeView) -> Sequence[Value | None]:
    """Of BatchNormInternal, which keeps the batch's mean and 1 / standard deviation as its fourth and fifth output."""
    mean, inverse = n.g.value(n.node.outputs[3]), n.g.value(n.node.outputs[4])
    epsilon = n.attr("epsilon", EPSILON)
    grads: Sequence[Value] = n.ms.BatchNormalizationGrad(n.dy, n.x, n.b, mean, inverse, outputs=3, epsilon=epsilon)
    return grads


def batch_norm_inference(n: NodeView) -> Sequence[Value | None]:
    """With fixed statistics: y = (x - mean) * factor + bias, factor = scale / sqrt(var + epsilon)."""
    ones = n.g.constant([-1] + [1] * (n.rank() - 2))
    inverse = n.op.Reciprocal(n.op.Sqrt(n.input(4) + n.attr("epsilon", EPSILON)))
    channels_apart = [axis for axis in range(n.rank()) if axis != 1]
    dx = n.dy * n.op.Reshape(n.b * inverse, ones) if n.wanted[0] else None
    dscale = None
    if n.wanted[1]:
        centered = n.x - n.op.Reshape(n.input(3), ones)
        dscale = n.g.sum_over(n.dy * centered, channels_apart, keepdims=False) * inverse
    dbias = n.g.sum_over(n.dy, channels_apart, keepdims=False) if n.wanted[2] else None
    return dx, dscale, dbias
