"""Batch normalization and its gradient, on the native passes; over ranks, the statistics are those of all of them."""

from __future__ import annotations

import numpy as np

from pullback import training_kernels
from pullback.onnx.executor.context import Context
from pullback.onnx.executor.registry import MICROSOFT, Node, op
from pullback.onnx.ops.arguments import refused
from pullback.rules import Array

EPSILON, MOMENTUM = 1e-5, 0.9
TRAINING_BY_ATTRIBUTE = 14  # since when BatchNormalization says whether it trains; before, by asking for more than one output


def _statistics(x: Array, context: Context) -> tuple[Array, Array]:
    """Mean and population variance of each channel, over all ranks' parts of the batch."""
    count = x.size // max(x.shape[1], 1)
    if count:
        mean, variance = training_kernels.batch_statistics(x)
    else:
        mean = variance = np.zeros(x.shape[1], x.dtype)
    if context.all_reduce is None:
        return mean, variance
    # Sums of squares about a common centre would need another round; in float64 those about 0 lose nothing that float32 has.
    wide = mean.astype(np.float64)
    sums = context.all_reduce(np.concatenate([count * wide, count * (variance + wide * wide), [count]]))
    centre, squares = (part / max(sums[-1], 1) for part in np.split(sums[:-1], 2))
    return centre.astype(x.dtype), np.maximum(squares - centre * centre, 0).astype(x.dtype)


def batch_norm_training(
    node: Node, x: Array, scale: Array, bias: Array, mean: Array, var: Array, context: Context, *,
    relu: bool = False, add: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """(Y, next running mean and variance, mean, inverse deviation and variance of the batch); Y with `add`, then ReLU, as asked."""
    batch_mean, batch_var = _statistics(x, context)
    inverse = training_kernels.inverse_std(batch_var, node.attr("epsilon", EPSILON))
    y = training_kernels.normalize(x, batch_mean, inverse, scale, bias, relu, add) if x.size else x.copy()
    old = node.attr("momentum", MOMENTUM)
    kept, new = mean.dtype.type(old), mean.dtype.type(1 - old)
    return y, mean * kept + batch_mean * new, var * kept + batch_var * new, batch_mean, inverse, batch_var


@op("BatchNormalization", context=True)
def batch_normalization(
    node: Node, x: Array, scale: Array, bias: Array, mean: Array, var: Array, *, context: Context
) -> Array | tuple[Array, ...]:
    if node.attr("spatial", 1) == 0:
        raise refused(node, "spatial is 0", "export the model with an opset of at least 9")
    old = node.opset < TRAINING_BY_ATTRIBUTE
    if node.attr("training_mode", 0) or (old and len(node.outputs) > 1):
        y, next_mean, next_var, batch_mean, _, batch_var = batch_norm_training(node, x, scale, bias, mean, var, context)
        return (y, next_mean, next_var, batch_mean, batch_var) if old else (y, next_mean, next_var)
    inverse = training_kernels.inverse_std(var, node.attr("epsilon", EPSILON))
    if not x.size:
        return x.copy()
    mean, inverse, scale, bias = (values.astype(x.dtype, copy=False) for values in (mean, inverse, scale, bias))
    return training_kernels.normalize(x, mean, inverse, scale, bias)


@op("BatchNormInternal", domain=MICROSOFT, context=True)
def batch_norm_internal(
    node: Node, x: Array, scale: Array, bias: Array, mean: Array, var: Array, *, context: Context
) -> tuple[Array, ...]:
    """BatchNormalization in training, with what its gradient needs: mean and inverse deviation of the batch."""
    return batch_norm_training(node, x, scale, bias, mean, var, context)[:5]


def batch_norm_grad(
    node: Node, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array, context: Context, y: Array | None = None
) -> tuple[Array | None, ...]:
    """(dX, dscale, dB, dY where y > 0): with h = (x - mean) inverse, dX = scale inverse (dY - (sum dY + h sum dY h) / count).

    Where the batch is spread over ranks, dscale and dB are of this rank's part, as all gradients are; dX needs the whole sums.
    """
    count = x.size // max(x.shape[1], 1)
    if count:
        masked_out = y is not None and node.wants(3)
        shift, slope, *masked = training_kernels.batch_norm_grad_sums(dy, x, mean, inverse, y, masked_out)
        if masked:
            dy, y = masked[0], None
    else:
        shift, slope = np.zeros_like(mean), np.zeros_like(mean)
    own = slope, shift
    if context.all_reduce is not None:
        sums = context.all_reduce(np.concatenate([shift, slope, [count]]).astype(np.float64))
        count = int(sums[-1])
        shift, slope = (part.astype(x.dtype) for part in np.split(sums[:-1], 2))
    dx = None
    if node.wants(0):
        dx = training_kernels.batch_norm_grad_apply(dy, x, scale, mean, inverse, shift, slope, count, y) if x.size else x.copy()
    return dx, *own, dy


@op("BatchNormalizationGrad", domain=MICROSOFT, context=True)
def batch_normalization_grad(
    node: Node, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array, *, context: Context
) -> tuple[Array | None, ...]:
    return batch_norm_grad(node, dy, x, scale, mean, inverse, context)[:3]
