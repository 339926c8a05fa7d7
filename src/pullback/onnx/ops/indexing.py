"""Elements picked and placed by index: the Gathers and Scatters, Compress, NonZero, Trilu, ReverseSequence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import axis_of, refused, scalar
from pullback.rules import Array

# How a scatter joins an update with what is there; ufunc.at takes indices that come again.
JOINS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@op("Gather")
def gather(node: Node, x: Array, indices: Array) -> Array:
    return np.asarray(np.take(x, indices, axis=axis_of(node, node.attr("axis", 0), x.ndim)))


def _along(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """What picks, for each place of `indices`, the cell of x at the same place but for one axis."""
    places = list(np.ogrid[tuple(map(slice, indices.shape))])
    places[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
    return tuple(places)


@op("GatherElements")
def gather_elements(node: Node, x: Array, indices: Array) -> Array:
    return x[_along(x, indices, axis_of(node, node.attr("axis", 0), x.ndim))]


@op("ScatterElements", "Scatter")
def scatter_elements(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    return _scattered(node, x, _along(x, indices, axis_of(node, node.attr("axis", 0), x.ndim)), updates)


def _scattered(node: Node, x: Array, places: tuple[Array, ...], updates: Array) -> Array:
    result = x.copy(order="K")
    reduction = node.attr("reduction", "none")
    if reduction == "none":
        result[places] = updates
    elif reduction in JOINS:
        JOINS[reduction].at(result, places, updates)
    else:
        raise refused(node, f"reduction is {reduction!r}", f"the reductions are none, {', '.join(JOINS)}")
    return result


@op("GatherND")
def gather_nd(node: Node, x: Array, indices: Array) -> Array:
    batch = node.attr("batch_dims", 0)
    if not batch:
        return np.asarray(x[tuple(np.moveaxis(indices, -1, 0))])
    outer = x.shape[:batch]
    flat = x.reshape(math.prod(outer), *x.shape[batch:])
    which = indices.reshape(math.prod(outer), *indices.shape[batch:])
    row = np.arange(len(flat)).reshape(-1, *(1,) * (which.ndim - 2))
    picked = flat[(row, *np.moveaxis(which, -1, 0))]
    return np.asarray(picked.reshape(*outer, *picked.shape[1:]))


@op("ScatterND")
def scatter_nd(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    return _scattered(node, x, tuple(np.moveaxis(indices, -1, 0)), updates)


@op("Compress", sized_by=(1,))
def compress(node: Node, x: Array, condition: Array) -> Array:
    axis = node.attr("axis")
    return np.compress(condition, x, axis=axis)


@op("NonZero", sized_by=(0,))
def non_zero(node: Node, x: Array) -> Array:
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64).reshape(max(x.ndim, 1), -1)


@op("Trilu")
def trilu(node: Node, x: Array, k: Array | None = None) -> Array:
    triangle = np.triu if node.attr("upper", 1) else np.tril
    return np.asarray(triangle(x, int(scalar(k, 0))))


@op("ReverseSequence")
def reverse_sequence(node: Node, x: Array, lengths: Array) -> Array:
    batch, time = node.attr("batch_axis", 1), node.attr("time_axis", 0)
    result = x.copy()
    rows, source = np.moveaxis(result, (batch, time), (0, 1)), np.moveaxis(x, (batch, time), (0, 1))
    for row, length in enumerate(lengths):
        rows[row, :length] = source[row, :length][::-1]
    return result
