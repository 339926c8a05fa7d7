"""SoftmaxCrossEntropyLossGrad: the gradient of cross-entropy in the scores, from the logarithms of the shares."""

from __future__ import annotations

import numpy as np

from pullback.onnx.executor.registry import MICROSOFT, Node, op
from pullback.onnx.ops.arguments import refused
from pullback.onnx.ops.losses import CLASSES, class_weights
from pullback.rules import Array


@op("SoftmaxCrossEntropyLossGrad", domain=MICROSOFT)
def softmax_cross_entropy_loss_grad(
    node: Node, dloss: Array, log_prob: Array, labels: Array, weights: Array | None = None
) -> Array:
    """dloss * weight * (share - 1 for the right class), divided by the sum of the weights under the reduction `mean`."""
    used, each = class_weights(node, labels, log_prob.shape[CLASSES], weights, log_prob.dtype)
    reduction = node.attr("reduction", "mean")
    if reduction == "mean":
        total = each.sum(dtype=np.float64)
        each = each * (dloss / log_prob.dtype.type(total if total else 1))
    elif reduction in ("sum", "none"):
        each = each * dloss
    else:
        raise refused(node, f"reduction is {reduction!r}", "the reductions are none, sum and mean")
    dx = np.exp(log_prob)
    places = np.expand_dims(used, CLASSES)
    np.put_along_axis(dx, places, np.take_along_axis(dx, places, axis=CLASSES) - dx.dtype.type(1), axis=CLASSES)
    dx *= np.expand_dims(each, CLASSES)
    return dx
