"""Gradients of reductions: sums, means, norms, maxima along axes."""

from __future__ import annotations

from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.rules_window import spread
from pullback.onnx.graph.tensor_type import TensorType
from pullback.onnx.graph.view import NodeView

AXES_AS_INPUT = 18  # since when reductions other than ReduceSum take their axes as an input


def _axes(n: NodeView) -> tuple[int, ...] | None:
    return n.axes(newer=13 if n.node.op_type == "ReduceSum" else AXES_AS_INPUT)


def _nothing(n: NodeView) -> bool:
    """Whether the node says that no axes means none, and has none."""
    return bool(n.attr("noop_with_empty_axes", 0)) and _axes(n) is None


def kept(n: NodeView, value: Value) -> Value:
    """The output, or its gradient, with the reduced axes at size 1; where all are reduced, as it is: a number stretches anyway."""
    axes, shape = _axes(n), n.x.shape
    if axes is None:
        return value
    if not n.attr("keepdims", 1):
        value = n.op.Unsqueeze(value, n.g.constant(list(axes)))
    if shape is None or value.name not in n.g.made:
        return value
    return n.g.typed(value, TensorType(value.dtype, tuple(1 if axis in axes else size for axis, size in enumerate(shape))))


def total(n: NodeView) -> Value:
    """ReduceSum."""
    return n.dy if _nothing(n) else spread(n, kept(n, n.dy), mean=False)


def mean(n: NodeView) -> Value:
    """ReduceMean."""
    return n.dy if _nothing(n) else spread(n, kept(n, n.dy), mean=True)


def extreme(n: NodeView) -> Value:
    """ReduceMax and ReduceMin: evenly to all entries that are the maximum."""
    hits = n.g.number(n.op.Equal(n.x, kept(n, n.y)), n.x)
    axes = _axes(n)
    count = n.op.ReduceSum(hits, keepdims=0) if axes is None else n.g.sum_over(hits, axes)
    return hits * (kept(n, n.dy) / count)


def l1(n: NodeView) -> Value:
    return kept(n, n.dy) * n.op.Sign(n.x)


def l2(n: NodeView) -> Value:
    """x / norm, 0 where the norm is 0."""
    norm = kept(n, n.y)
    return n.x * (kept(n, n.dy) / n.op.Where(n.op.Equal(norm, 0), 1, norm))


def sum_square(n: NodeView) -> Value:
    return n.x * (kept(n, n.dy) * 2.0)


def log_sum(n: NodeView) -> Value:
    return spread(n, kept(n, n.dy) * n.op.Exp(-kept(n, n.y)), mean=False)


def log_sum_exp(n: NodeView) -> Value:
    return kept(n, n.dy) * n.op.Exp(n.x - kept(n, n.y))


def global_lp_pool(n: NodeView) -> Value:
    """y = (sum of |x|^p)^(1/p) over the cells of an image and channel: dX = dY sign(x) (|x| / y)^(p-1)."""
    p = n.attr("p", 2)
    safe = n.op.Where(n.op.Equal(n.y, 0), 1, n.y)
    if p == 2:
        return n.x * (n.dy / safe)
    return n.dy * n.op.Sign(n.x) * n.op.Pow(n.op.Abs(n.x) / safe, float(p - 1))


def arg_extreme_of(n: NodeView, place: int) -> Value:
    """Max and Min of several tensors: evenly to those that have the extreme value."""
    hits = [n.g.number(n.op.Equal(n.input(i), n.y), n.y) for i in range(len(n.node.inputs))]
    if len(hits) == 1:
        return n.dy
    return n.dy * hits[place] / n.op.Sum(*hits)
