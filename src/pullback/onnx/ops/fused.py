"""Nodes that the executor makes of several neighbours (domain `fused`), so that memory is passed over less often."""

from __future__ import annotations

import numpy as np

from pullback import training_kernels
from pullback.onnx.executor.context import Context
from pullback.onnx.executor.layout import channels_last
from pullback.onnx.executor.registry import FUSED, Node, op
from pullback.onnx.ops.convolution import conv, for_kernel, from_kernel
from pullback.onnx.ops.elementwise import add
from pullback.onnx.ops.normalization import batch_norm_internal
from pullback.onnx.ops.pooling import pool_problem
from pullback.registry import dispatch
from pullback.rules import Array


def _add_relu(a: Array, b: Array, out: Array | None = None) -> Array:
    if a.shape == b.shape:
        return training_kernels.add_relu(a, b, out)
    total = add(a, b, out)
    return training_kernels.relu(total, total)


@op("AddRelu", domain=FUSED, overwrites=(0, 1))
def add_relu(node: Node, a: Array, b: Array, out: Array | None = None) -> Array:
    return _add_relu(a, b, out)


@op("ConvRelu", domain=FUSED)
def conv_relu(node: Node, x: Array, w: Array, bias: Array) -> Array:
    y = conv(node, x, w, bias)
    return training_kernels.relu(y, y)


@op("BatchNormRelu", domain=FUSED, context=True)
def batch_norm_relu(
    node: Node, x: Array, scale: Array, bias: Array, mean: Array, var: Array, shortcut: Array | None = None, *, context: Context
) -> tuple[Array, ...]:  # fmt: skip
    """BatchNormInternal, plus a shortcut if there is one, and the ReLU of that."""
    y, *statistics = batch_norm_internal(node, x, scale, bias, mean, var, context=context)
    return training_kernels.relu(y, y) if shortcut is None else _add_relu(y, shortcut, y), *statistics


@op("ReluGradOfSum", domain=FUSED, overwrites=(0, 1))
def relu_grad_of_sum(node: Node, da: Array, db: Array, y: Array, out: Array | None = None) -> Array:
    return training_kernels.relu_grad_of_sum(da, db, y, out)


@op("MaxPoolWinners", domain=FUSED)
def max_pool_winners(node: Node, x: Array) -> tuple[Array, Array]:
    """MaxPool with the number of each window's winning tap in place of its index."""
    last = channels_last(x)
    y, winners = dispatch(pool_problem(node, "max_pool", x.shape, x.dtype, last, winners=True), for_kernel(x, last))
    return from_kernel(y, last), from_kernel(winners, last)


@op("MaxPoolGradFromWinners", domain=FUSED, shaped=True)
def max_pool_grad_from_winners(node: Node, dy: Array, winners: Array, *, shape: tuple[int, ...]) -> Array:
    last = channels_last(winners)
    problem = pool_problem(node, "max_pool_grad_from_winners", shape, dy.dtype, last)
    dx: Array = dispatch(problem, for_kernel(np.asarray(dy), last), for_kernel(winners, last))
    return from_kernel(dx, last)
