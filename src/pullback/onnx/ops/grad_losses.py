"""Gradients of cross-entropy in the scores and of the negative log-likelihood in the logarithms of the shares."""

from __future__ import annotations

import numpy as np

from pullback.onnx.executor.registry import MICROSOFT, PULLBACK, Node, op
from pullback.onnx.ops.arguments import ints, refused
from pullback.onnx.ops.losses import CLASSES, class_weights
from pullback.rules import Array


@op("SoftmaxCrossEntropyLossGrad", domain=MICROSOFT)
def softmax_cross_entropy_loss_grad(
    node: Node, dloss: Array, log_prob: Array, labels: Array, weights: Array | None = None
) -> Array:
    """dloss * weight * (share - 1 for the right class), divided by the sum of the weights under the reduction `mean`."""
    used, each = _weighted(node, dloss, labels, log_prob.shape[CLASSES], weights)
    dx = np.exp(log_prob)
    places = np.expand_dims(used, CLASSES)
    np.put_along_axis(dx, places, np.take_along_axis(dx, places, axis=CLASSES) - dx.dtype.type(1), axis=CLASSES)
    dx *= np.expand_dims(each, CLASSES)
    return dx


@op("NegativeLogLikelihoodLossGrad", domain=PULLBACK)
def negative_log_likelihood_loss_grad(
    node: Node, dloss: Array, shape: Array, labels: Array, weights: Array | None = None
) -> Array:
    """- dloss * weight at the right class, 0 elsewhere."""
    used, each = _weighted(node, dloss, labels, int(shape[CLASSES]), weights)
    dx = np.zeros(ints(shape), each.dtype)
    np.put_along_axis(dx, np.expand_dims(used, CLASSES), np.expand_dims(-each, CLASSES), axis=CLASSES)
    return dx


def _weighted(node: Node, dloss: Array, labels: Array, classes: int, weights: Array | None) -> tuple[Array, Array]:
    """The labels, and for each place what its log-probability's negative counts in the loss, times dloss."""
    used, each = class_weights(node, labels, classes, weights, dloss.dtype)
    reduction = node.attr("reduction", "mean")
    if reduction not in ("mean", "sum", "none"):
        raise refused(node, f"reduction is {reduction!r}", "the reductions are none, sum and mean")
    total = each.sum(dtype=np.float64) if reduction == "mean" else 1
    return used, each * (dloss / dloss.dtype.type(total if total else 1))
