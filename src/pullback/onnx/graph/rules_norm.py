"""Gradients of the normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.onnx.executor.registry import MICROSOFT
from pullback.onnx.graph import functions
from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.tensor_type import Shape, TensorType
from pullback.onnx.graph.view import NodeView, reduced_to

EPSILON = 1e-5
GROUPS_BY_CHANNEL = 21


def batch_norm_training(n: NodeView) -> Sequence[Value | None]:
    """Of BatchNormInternal, which keeps the batch's mean and 1 / standard deviation as its fourth and fifth output."""
    mean, inverse = n.g.value(n.node.outputs[3]), n.g.value(n.node.outputs[4])
    inputs = n.dy, n.x, n.b, mean, inverse
    return n.g.all_of("BatchNormalizationGrad", MICROSOFT, inputs, 3, epsilon=n.attr("epsilon", EPSILON))


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


def layer_norm(n: NodeView) -> Sequence[Value | None]:
    """By ONNX Runtime's LayerNormalizationGrad, which takes a scale of the whole normalised shape."""
    axis, scale = n.attr("axis", -1), n.b
    shape = None if n.x.shape is None else n.x.shape[axis:]
    mean, inverse = n.output(1, "_mean"), n.output(2, "_inv_std_dev")
    stretched = shape is not None and scale.shape is not None and _differ(shape, scale.shape)
    if stretched:
        if not all(isinstance(size, int) for size in shape or ()):
            raise n.unknown("the shape that it normalises")
        scale = n.op.Expand(scale, n.g.constant(shape))
    dx, dscale, dbias = n.g.all_of("LayerNormalizationGrad", MICROSOFT, (n.dy, n.x, scale, mean, inverse), 3, axis=axis)
    if not stretched:
        return dx, dscale, dbias
    whole = TensorType(scale.dtype, shape)
    parts = ((n.b, n.g.typed(dscale, whole)), (n.given(2), n.g.typed(dbias, whole)))
    return dx, *(reduced_to(n.g, part, target, part) if target else None for target, part in parts)


def _differ(shape: Shape, other: Shape) -> bool:
    """Whether two shapes are known to be different."""
    numbers = ((a, b) for a, b in zip(shape, other, strict=False) if isinstance(a, int) and isinstance(b, int))
    return len(shape) != len(other) or any(a != b for a, b in numbers)


def _group_gradients(n: NodeView, scale: Value, groups: int) -> Sequence[Value]:
    shape, epsilon = n.g.constant([0, groups, -1]), n.g.constant(n.attr("epsilon", EPSILON), n.x.dtype)
    body = functions.group_normalization_grad
    return n.g.call_all("GroupNormalizationGrad", body, (n.dy, n.x, scale, shape, epsilon), 3)


def _channels(n: NodeView) -> int:
    channels = n.x.shape[1] if n.x.shape is not None else None
    if not isinstance(channels, int):
        raise n.unknown("its number of channels")
    return channels


def instance_norm(n: NodeView) -> Sequence[Value]:
    """A group for each channel, of which there are as many as scales."""
    scales, known = n.b.static_shape, n.constant(1)
    return _group_gradients(n, n.b, scales[0] if scales else _channels(n) if known is None else known.size)


def group_norm(n: NodeView) -> Sequence[Value]:
    """Before opset 21 scale and bias are of groups: repeated for the channels, and their gradients summed back."""
    groups = n.attr("num_groups")
    if n.node.opset >= GROUPS_BY_CHANNEL:
        return _group_gradients(n, n.b, groups)
    each = _channels(n) // groups
    scale = n.op.Reshape(n.op.Expand(n.op.Unsqueeze(n.b, n.g.constant([1])), n.g.constant([groups, each])), n.g.constant([-1]))
    dx, *of_channels = _group_gradients(n, scale, groups)
    rows = n.g.constant([groups, each])
    return dx, *(n.g.sum_over(n.op.Reshape(d, rows), [1], keepdims=False) for d in of_channels)


def rms_norm(n: NodeView) -> Sequence[Value | None]:
    """With r = 1 / sqrt(mean(x^2) + epsilon) and h = x r: dX = r (d - h mean(d h)), d = dY scale."""
    rank = n.rank()
    axis = n.attr("axis", -1) % rank
    inner = tuple(range(axis, rank))
    one_over_size = n.op.Reciprocal(n.g.number(n.op.Size(n.b), n.x))
    r = n.op.Reciprocal(n.op.Sqrt(n.g.sum_over(n.x * n.x, inner) * one_over_size + n.attr("epsilon", EPSILON)))
    h, d = n.x * r, n.dy * n.b
    dx = (d - h * (n.g.sum_over(d * h, inner) * one_over_size)) * r
    return dx, n.g.sum_over(n.dy * h, list(range(axis)), keepdims=False)


def lp_normalization(n: NodeView) -> Value:
    """Of y = x / norm: (dY - slope sum(dY y)) / norm, where the slope of the norm is sign(x) for p = 1 and y for p = 2."""
    axis, squares = n.attr("axis", -1), n.attr("p", 2) == 2
    powers = n.g.sum_over(n.x * n.x if squares else n.op.Abs(n.x), [axis])
    norm = n.op.Sqrt(powers) if squares else powers
    slope = n.y if squares else n.op.Sign(n.x)
    return (n.dy - slope * n.g.sum_over(n.dy * n.y, [axis])) / norm
