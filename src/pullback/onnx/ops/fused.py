"""Nodes that the executor makes of several neighbours (executor/fusion.py): one pass over memory instead of two or three."""

from __future__ import annotations

import numpy as np

from pullback import training_kernels
from pullback.onnx.executor.context import Context
from pullback.onnx.executor.layout import channels_last
from pullback.onnx.executor.registry import FUSED, Node, op
from pullback.onnx.ops.batch_norm import batch_norm_grad, batch_norm_training
from pullback.onnx.ops.convolution import convolved, for_kernel, from_kernel
from pullback.onnx.ops.pooling import pool_problem
from pullback.registry import dispatch
from pullback.rules import Array

Shape = tuple[int, ...]


@op("BatchNormRelu", domain=FUSED, context=True)
def batch_norm_relu(
    node: Node, x: Array, scale: Array, bias: Array, mean: Array, var: Array, add: Array | None = None, *, context: Context
) -> tuple[Array, ...]:
    """Relu(BatchNormalization(x)) or Relu(BatchNormalization(x) + add)."""
    if add is not None and add.shape != x.shape:  # stretched: not for one pass
        y, *rest = batch_norm_training(node, x, scale, bias, mean, var, context)
        return np.maximum(y + add, x.dtype.type(0)), *rest[:4]
    return batch_norm_training(node, x, scale, bias, mean, var, context, relu=True, add=add)[:5]


@op("BatchNormReluGrad", domain=FUSED, context=True)
def batch_norm_relu_grad(
    node: Node, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array, y: Array, *, context: Context
) -> tuple[Array | None, ...]:
    """BatchNormalizationGrad of ReluGrad(dy, y), and that gradient itself where somebody else reads it too."""
    return batch_norm_grad(node, dy, x, scale, mean, inverse, context, y=y)


@op("AddRelu", domain=FUSED, overwrites=(0, 1))
def add_relu(node: Node, a: Array, b: Array, out: Array | None = None) -> Array:
    if a.shape == b.shape and a.dtype == b.dtype:
        return training_kernels.add_relu(a, b, out)
    total: Array = np.asarray(np.add(a, b, out=out))
    np.maximum(total, total.dtype.type(0), out=total)
    return total


@op("ReluGradOfSum", domain=FUSED, overwrites=(0, 1))
def relu_grad_of_sum(node: Node, a: Array, b: Array, y: Array, out: Array | None = None) -> Array:
    return training_kernels.relu_grad_of_sum(a, b, y, out)


@op("ConvRelu", domain=FUSED)
def conv_relu(node: Node, x: Array, w: Array, bias: Array) -> Array:
    """The bias and the ReLU of a convolution in one pass, where its result lies."""
    y = convolved(node, x, w)
    if not y.size:
        return y
    one, zero = np.ones_like(bias), np.zeros_like(bias)
    return training_kernels.normalize(y, zero, one, one, bias, relu=True, out=y)


@op("MaxPoolWinners", domain=FUSED)
def max_pool_winners(node: Node, x: Array) -> tuple[Array, Array]:
    """MaxPool with the number of each window's winning tap, in one byte, in place of its Indices."""
    last = channels_last(x)
    y, winners = dispatch(pool_problem(node, "max_pool", x.shape, x.dtype, last, winners=True), for_kernel(x, last))
    return from_kernel(y, last), from_kernel(winners, last)


@op("MaxPoolGradFromWinners", domain=FUSED, shaped=True)
def max_pool_grad_from_winners(node: Node, dy: Array, winners: Array, *, shape: Shape) -> Array:
    last = channels_last(winners)
    problem = pool_problem(node, "max_pool_grad_from_winners", shape, dy.dtype, last)
    return from_kernel(dispatch(problem, for_kernel(dy, last), for_kernel(winners, last)), last)
