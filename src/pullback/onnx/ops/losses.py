"""SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.activations import log_softmax_along
from pullback.onnx.ops.arguments import refused
from pullback.rules import Array

CLASSES = 1  # the axis


def class_weights(node: Node, labels: Array, classes: int, weights: Array | None, dtype: Any) -> tuple[Array, Array]:
    """Labels with 0 in place of the ignored ones, and the weight of each place: that of its class, 0 where it is ignored."""
    ignored = labels == node.attr("ignore_index") if "ignore_index" in node.attrs else None
    used = labels if ignored is None else np.where(ignored, 0, labels)
    if used.size and not 0 <= used.min() <= used.max() < classes:
        raise refused(
            node, f"labels run from {used.min()} to {used.max()} but there are {classes} classes",
            f"labels are the numbers 0 to {classes - 1}",
        )  # fmt: skip
    each = np.ones(used.shape, dtype) if weights is None else weights[used]
    if ignored is not None:
        each[ignored] = 0
    return used, each


def _reduced(node: Node, losses: Array, weights: Array) -> Array:
    reduction = node.attr("reduction", "mean")
    if reduction == "none":
        return losses
    total = losses.sum(dtype=np.float64)
    if reduction == "mean":
        total /= weights.sum(dtype=np.float64)
    elif reduction != "sum":
        raise refused(node, f"reduction is {reduction!r}", "the reductions are none, sum and mean")
    return np.asarray(total, losses.dtype)


def _loss(node: Node, log_probabilities: Array, labels: Array, weights: Array | None) -> Array:
    used, each = class_weights(node, labels, log_probabilities.shape[CLASSES], weights, log_probabilities.dtype)
    picked = np.take_along_axis(log_probabilities, np.expand_dims(used, CLASSES), axis=CLASSES).squeeze(CLASSES)
    losses = np.multiply(np.negative(picked), each, where=each != 0, out=np.zeros_like(picked))
    return _reduced(node, losses, each)


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(node: Node, log_probabilities: Array, labels: Array, weights: Array | None = None) -> Array:
    return _loss(node, log_probabilities, labels, weights)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(node: Node, scores: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Array]:
    log_probabilities = log_softmax_along(scores, CLASSES)
    return _loss(node, log_probabilities, labels, weights), log_probabilities
