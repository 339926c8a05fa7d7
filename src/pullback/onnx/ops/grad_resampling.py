"""Gradients of Resize and of padding that copies cells: what an output cell was made of gets its share of dY."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pullback.onnx.executor.memory import memory_order
from pullback.onnx.executor.registry import PULLBACK, Node, op
from pullback.onnx.ops.resize import RESIZE_BY_MODES, AxisSamples, resize_samples
from pullback.onnx.ops.shapes import PAD_BY_INPUTS, pad_widths, padded_cells
from pullback.rules import Array

Shape = tuple[int, ...]


def _along(dy: Array, axis: int, matrix: Array) -> Array:
    """dX[j] = sum over o of matrix[o, j] dY[o] along an axis, lying in memory as dY does."""
    order, back = memory_order(dy)
    moved = dy.transpose(order)
    place = order.index(axis)
    product = np.moveaxis(np.tensordot(matrix, moved, axes=(0, place)), 0, place)
    return np.ascontiguousarray(product).transpose(back)


def _matrix(samples: AxisSamples, size: int, dtype: np.dtype[np.generic]) -> Array:
    """How much input cell j counts in output cell o, [o, j]."""
    outputs, taps = samples.cells.shape
    matrix = np.zeros((outputs, size))
    weights = np.ones((outputs, taps)) if samples.weights is None else samples.weights.copy()
    if samples.outside is not None:
        weights[samples.outside] = 0
    np.add.at(matrix, (np.arange(outputs)[:, None], samples.cells), weights)
    return matrix.astype(dtype)


@op("ResizeGrad", domain=PULLBACK, shaped=True)
def resize_grad(
    node: Node, dy: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None, *, shape: Shape
) -> Array:
    """Resize is a product with one matrix an axis; its gradient with their transposes."""
    forward = replace(node, op_type="Resize", domain="", opset=max(node.opset, RESIZE_BY_MODES))
    dx = dy
    for samples in reversed(resize_samples(forward, shape, roi, scales, sizes)):
        dx = _along(dx, samples.axis, _matrix(samples, shape[samples.axis], dy.dtype))
    return dx if dx is not dy else dy.copy(order="K")


@op("PadGrad", domain=PULLBACK, shaped=True)
def pad_grad(node: Node, dy: Array, pads: Array, axes: Array | None = None, *, shape: Shape) -> Array:
    """Pad of mode reflect, edge or wrap copies cells: each axis is a product with a matrix of zeros and ones."""
    forward = replace(node, op_type="Pad", domain="", opset=max(node.opset, PAD_BY_INPUTS))
    dx = dy
    for axis, (low, high) in enumerate(pad_widths(forward, len(shape), pads, axes)):
        if low or high:
            source = padded_cells(node.attr("mode"), shape[axis], low, high)
            matrix = np.zeros((source.size, shape[axis]), dy.dtype)
            matrix[np.arange(source.size), source] = 1
            dx = _along(dx, axis, matrix)
    return dx if dx is not dy else dy.copy(order="K")
