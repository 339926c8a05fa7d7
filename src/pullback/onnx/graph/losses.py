"""Losses: what is appended to the model, and the gradient of the loss in the model's output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from pullback.onnx.checks import number, whole
from pullback.onnx.errors import OnnxError
from pullback.onnx.graph.emit import Builder, Value
from pullback.onnx.graph.tensor_type import TensorType


@dataclass(frozen=True)
class LossOptions:
    """`ignore_index`: a class number that does not count. `delta`: where the Huber loss turns from a square to a line."""

    ignore_index: int | None = None
    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.ignore_index is not None:
            whole("training_graph", "ignore_index", self.ignore_index, -(2**63))
        number("training_graph", "delta", self.delta)
        if not self.delta:
            raise OnnxError("training_graph: delta is 0; the Huber loss needs a number above it")


@dataclass(frozen=True)
class Loss:
    """`target`: the type of the target, from that of the model's output. `run` gives the loss and its gradient in the output."""

    target: Callable[[TensorType], TensorType]
    run: Callable[[Builder, Value, Value, LossOptions], tuple[Value, Value]]


def _one_over_size(g: Builder, value: Value, per: int = 1) -> Value | float:
    """1 / (entries / per), a number where the shape is known."""
    sizes = value.static_shape
    if sizes is None:
        count = g.number(g.op.Size(value), value)
        return g.op.Reciprocal(count) if per == 1 else g.op.Div(per, count)
    entries = 1
    for size in sizes:
        entries *= size
    return per / max(entries, 1)


def _mean(g: Builder, value: Value) -> Value:
    result = g.op.ReduceMean(value, keepdims=0)
    return g.typed(result, TensorType(value.dtype, ()))


def _cross_entropy(g: Builder, scores: Value, target: Value, options: LossOptions) -> tuple[Value, Value]:
    attributes: dict[str, Any] = {"reduction": "mean", "ignore_index": options.ignore_index}
    loss, log_prob = g.all_of("SoftmaxCrossEntropyLoss", "", (scores, target), 2, **attributes)
    g.typed(loss, TensorType(scores.dtype, ()))
    g.typed(log_prob, scores.type)
    return loss, g.ms.SoftmaxCrossEntropyLossGrad(g.constant(1, scores.dtype), log_prob, target, **attributes)


def _soft_cross_entropy(g: Builder, scores: Value, target: Value, options: LossOptions) -> tuple[Value, Value]:
    """- mean over rows of sum over classes of target * log(share); the gradient is (share * sum of target - target) / rows."""
    classes = scores.shape[1] if scores.shape and len(scores.shape) > 1 else None
    if not isinstance(classes, int):
        raise OnnxError(f"the number of classes, axis 1 of the model's output '{scores.name}', is not known before the run")
    log_shares = g.typed(g.op.LogSoftmax(scores, axis=1), scores.type)
    loss = _mean(g, target * log_shares) * -float(classes)
    weighted = g.op.Exp(log_shares) * g.sum_over(target, [1])
    return loss, (weighted - target) * _one_over_size(g, scores, per=classes)


def _mse(g: Builder, prediction: Value, target: Value, options: LossOptions) -> tuple[Value, Value]:
    difference = prediction - target
    return _mean(g, difference * difference), difference * _twice(_one_over_size(g, prediction))


def _twice(value: Value | float) -> Value | float:
    return 2 * value


def _l1(g: Builder, prediction: Value, target: Value, options: LossOptions) -> tuple[Value, Value]:
    difference = prediction - target
    return _mean(g, g.op.Abs(difference)), g.op.Sign(difference) * _one_over_size(g, prediction)


def _huber(g: Builder, prediction: Value, target: Value, options: LossOptions) -> tuple[Value, Value]:
    """With c the difference d cut to [-delta, delta], the loss is c (d - c / 2): a square inside, a line outside."""
    difference = prediction - target
    cut = g.typed(g.op.Clip(difference, -options.delta, options.delta), difference.type)
    return _mean(g, cut * (difference - cut * 0.5)), cut * _one_over_size(g, prediction)


def _bce_with_logits(g: Builder, logits: Value, target: Value, options: LossOptions) -> tuple[Value, Value]:
    loss = _mean(g, g.op.Softplus(logits) - logits * target)
    return loss, (g.op.Sigmoid(logits) - target) * _one_over_size(g, logits)


def _classes(output: TensorType) -> TensorType:
    """One class number for each vector of scores, which lies along axis 1."""
    shape = output.shape
    if shape is not None and len(shape) < 2:
        raise OnnxError(f"the output has shape {shape}; cross_entropy takes scores of shape (rows, classes, ...)")
    return TensorType(TensorProto.INT64, None if shape is None else (shape[0], *shape[2:]))


def _same(output: TensorType) -> TensorType:
    return output


LOSSES = {
    "cross_entropy": Loss(_classes, _cross_entropy),
    "soft_cross_entropy": Loss(_same, _soft_cross_entropy),
    "mse": Loss(_same, _mse),
    "l1": Loss(_same, _l1),
    "huber": Loss(_same, _huber),
    "bce_with_logits": Loss(_same, _bce_with_logits),
}
