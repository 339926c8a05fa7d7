"""Gradients of nodes that pick, cut and move: each value of dY goes back to where it came from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pullback.onnx.executor.memory import memory_order
from pullback.onnx.executor.registry import MICROSOFT, Node, op
from pullback.onnx.ops.arguments import axis_of, ints, scalar
from pullback.onnx.ops.shapes import SLICE_BY_INPUTS, slices
from pullback.rules import Array


def zeros_in_order(shape: tuple[int, ...], like: Array) -> Array:
    """Zeros that lie in memory as another array of the same rank does."""
    order, back = memory_order(like)
    return np.zeros([shape[axis] for axis in order], like.dtype).transpose(back)


@op("BroadcastGradientArgs", domain=MICROSOFT)
def broadcast_gradient_args(node: Node, a: Array, b: Array) -> tuple[Array, Array]:
    """The axes, of the shape that a and b make together, over which the gradient of a and that of b are sums."""
    rank = max(a.size, b.size)
    whole = np.broadcast_shapes(ints(a), ints(b))

    def summed(shape: Array) -> Array:
        sizes = (1,) * (rank - shape.size) + ints(shape)
        axes = [i for i, size in enumerate(sizes) if size == 1 and (whole[i] != 1 or i < rank - shape.size)]
        return np.array(axes[::-1], np.int64)

    return summed(a), summed(b)


@op("DropoutGrad", domain=MICROSOFT)
def dropout_grad(node: Node, dy: Array, mask: Array, ratio: Array | None = None, training: Array | None = None) -> Array:
    share = float(scalar(ratio, 0.5))
    if not bool(scalar(training, True)) or share == 0:
        return dy.copy(order="K")
    dx = np.multiply(dy, mask)
    dx *= dy.dtype.type(1 / (1 - share))
    return dx


@op("GatherGrad", domain=MICROSOFT)
def gather_grad(node: Node, shape: Array, indices: Array, dy: Array) -> Array:
    """Each slice of dY added to the slice of X that it was taken from."""
    dx = np.zeros(ints(shape), dy.dtype)
    axis = axis_of(node, node.attr("axis", 0), dx.ndim)
    rows = dy.reshape(*dy.shape[:axis], indices.size, *dy.shape[axis + indices.ndim :])
    np.add.at(np.moveaxis(dx, axis, 0), indices.reshape(-1), np.moveaxis(rows, axis, 0))
    return dx


@op("GatherElementsGrad", domain=MICROSOFT)
def gather_elements_grad(node: Node, dy: Array, shape: Array, indices: Array) -> Array:
    dx = np.zeros(ints(shape), dy.dtype)
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis_of(node, node.attr("axis", 0), dx.ndim)] = indices
    np.add.at(dx, tuple(places), dy)
    return dx


@op("GatherNDGrad", domain=MICROSOFT)
def gather_nd_grad(node: Node, shape: Array, indices: Array, dy: Array) -> Array:
    dx, batch = np.zeros(ints(shape), dy.dtype), node.attr("batch_dims", 0)
    outer = tuple(
        each.reshape(*each.shape, *(1,) * (indices.ndim - 1 - batch)) for each in np.indices(dx.shape[:batch], sparse=True)
    )
    np.add.at(dx, (*outer, *np.moveaxis(indices, -1, 0)), dy)
    return dx


@op("SliceGrad", domain=MICROSOFT)
def slice_grad(
    node: Node, dy: Array, shape: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    """dY in the place that the slice was cut from, 0 elsewhere."""
    dx = zeros_in_order(ints(shape), dy)
    dx[slices(replace(node, opset=SLICE_BY_INPUTS), dx, starts, ends, axes, steps)] = dy
    return dx
