"""MaxPoolGrad, AveragePoolGrad, and the gradients of global and Lp pools, in the memory layout that the images have."""

from __future__ import annotations

import math

import numpy as np

from pullback.onnx.executor.layout import channels_last
from pullback.onnx.executor.registry import PULLBACK, Node, op
from pullback.onnx.ops.arguments import naming, refused
from pullback.onnx.ops.convolution import for_kernel, from_kernel, layout_name
from pullback.onnx.ops.pooling import pool_problem
from pullback.ops.global_pool import global_max_pool_grad
from pullback.ops.max_pool import max_pool_grad_from_indices
from pullback.registry import dispatch
from pullback.rules import Array

Shape = tuple[int, ...]


@op("MaxPoolGrad", shaped=True)
def max_pool_grad(node: Node, dy: Array, indices: Array, *, shape: Shape) -> Array:
    """dX[Indices] += dY. Indices are flat over (N, C, *spatial), whatever the layout in memory."""
    if dy.shape != indices.shape:
        raise refused(node, f"dY has shape {dy.shape} and Indices {indices.shape}", "they must agree")
    order = node.attr("storage_order", 0) if len(shape) > 3 else 0
    last = not order and dy.shape[:2] == shape[:2] and channels_last(dy)
    if last:
        indices = _for_channels_last(node, indices, shape)
        shape = (shape[0], *shape[2:], shape[1])
    with naming(node):
        d, i = np.ascontiguousarray(for_kernel(dy, last)), np.ascontiguousarray(for_kernel(indices, last))
        return from_kernel(max_pool_grad_from_indices(d, i, shape, layout=layout_name(last), storage_order=order), last)


def _for_channels_last(node: Node, indices: Array, shape: Shape) -> Array:
    """Indices flat over (N, *spatial, C): image n, cell s and channel c are at n cells C + s C + c."""
    n, c, cells = shape[0], shape[1], math.prod(shape[2:])
    ones = (1,) * (len(shape) - 2)
    images = np.arange(n, dtype=np.int64).reshape(-1, 1, *ones)
    channels = np.arange(c, dtype=np.int64).reshape(-1, *ones)
    cell = indices - (images * c + channels) * cells
    if cell.size and not 0 <= cell.min() <= cell.max() < cells:
        raise refused(node, "Indices point out of their own image and channel", "feed the Indices of the MaxPool itself")
    return np.asarray(cell * c + (images * (cells * c) + channels))


@op("AveragePoolGrad", shaped=True)
def average_pool_grad(node: Node, dy: Array, *, shape: Shape) -> Array:
    last = channels_last(dy)
    problem = pool_problem(node, "avg_pool_grad", shape, dy.dtype, last)
    return from_kernel(dispatch(problem, _checked(node, problem.output_shape, for_kernel(dy, last))), last)


def _checked(node: Node, expected: Shape, dy: Array) -> Array:
    if dy.shape != expected:
        raise refused(node, f"dY has shape {dy.shape}, not {expected}", "feed the gradient of the pool's Y")
    return dy


@op("GlobalMaxPoolGrad", domain=PULLBACK)
def global_max_pool_grad_of(node: Node, dy: Array, x: Array) -> Array:
    """All of dY to the first maximum of each image and channel."""
    last = channels_last(x)
    with naming(node):
        return from_kernel(global_max_pool_grad(for_kernel(dy, last), for_kernel(x, last), layout=layout_name(last)), last)


@op("LpPoolGrad", domain=PULLBACK)
def lp_pool_grad(node: Node, dy: Array, x: Array, y: Array) -> Array:
    """y = (sum of |x|^p)^(1/p), so dX = sign(x) |x|^(p-1) times the sum, over the windows of x, of dY y^(1-p); 0 where y is 0."""
    p, last = node.attr("p", 2), channels_last(x)
    factor = np.zeros_like(y)
    np.divide(dy, y if p == 2 else y ** (p - 1), out=factor, where=y != 0)
    problem = pool_problem(node, "avg_pool_grad", x.shape, x.dtype, last, divisor=1)
    sums = from_kernel(dispatch(problem, _checked(node, problem.output_shape, for_kernel(factor, last))), last)
    sums *= x if p == 2 else np.sign(x) * np.abs(x) ** (p - 1)
    return sums
