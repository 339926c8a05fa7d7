"""The pools as ONNX Runtime 1.19.2 computed them, defects included: what answers inside `quirks()`."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from pullback.ort.attributes import pool_attributes
from pullback.ort.pool import check_indices, declared_shape, lowest, run_average_pool, run_max_pool, wanted_pair
from pullback.ort.registry import Node
from pullback.problem import check_room
from pullback.rules import Array, WinnerRule

GRADIENT_ATTRIBUTES = ("kernel_shape", "strides", "pads", "count_include_pad")


def max_pool(node: Node) -> tuple[Array | None, Array | None]:
    """A cell must exceed the lowest number to win; a window without winner points one cell before the origin on every axis."""
    x = node.inputs["X"]
    attrs = pool_attributes(node.op_type, node.attrs)
    order = 1 if attrs.storage_order else 0
    rule = WinnerRule("first", "ignore", above=lowest(x.dtype))
    values, indices = run_max_pool(node, attrs, rule, order, keep_past_end=True)
    assert indices is not None
    sizes = x.shape[2:] if order == 0 else x.shape[:1:-1]
    before_origin = -sum(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    planes = np.arange(x.shape[0] * x.shape[1], dtype=np.int64).reshape(*x.shape[:2], *(1,) * len(sizes))
    indices = np.where(indices < 0, planes * math.prod(sizes) + before_origin, indices)
    return wanted_pair(node, values, indices)


def average_pool(node: Node) -> Array:
    """count_include_pad divides by the whole kernel, even where ceil_mode lets a window leave the padded input."""
    return run_average_pool(node, "full", keep_past_end=True)


def max_pool_grad(node: Node) -> Array:
    """Running float32 sums in the order of dY; storage_order is not read. Writes out of bounds are refused instead."""
    dy, indices, shape = check_indices(node)
    check_room(node.op_type, shape, dy.dtype.itemsize)
    dx = np.zeros(math.prod(shape), dy.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(dx, indices.reshape(-1), dy.reshape(-1))
    return dx.reshape(shape)


def average_pool_grad(node: Node) -> Array:
    """The gradient loop with its defects.

    auto_pad and dilations are not read, a symbolic size is 0, and the declared batch decides how many planes of dY are used.
    In 3-D every window overwrites what is there, and dX and dY are addressed as if their last axis came first.
    """
    dy = node.inputs["dY"]
    read = {name: value for name, value in node.attrs.items() if name in GRADIENT_ATTRIBUTES}
    attrs = pool_attributes(node.op_type, read, pads_below_kernel=False)
    shape = tuple(size or 0 for size in declared_shape(node))
    rank = len(attrs.kernel_shape)
    if len(shape) != rank + 2:
        raise ValueError(
            f"{node.op_type}: output_shape is {shape}; kernel_shape {list(attrs.kernel_shape)} needs {rank + 2} axes"
        )
    if rank > 3:
        raise ValueError(f"{node.op_type}: Unsupported pooling size : kernel_shape is {list(attrs.kernel_shape)}")
    planes = shape[0] * shape[1]
    if dy.ndim != len(shape) or planes > dy.shape[0] * dy.shape[1]:
        raise ValueError(f"{node.op_type}: dY has shape {dy.shape}; filling dX {shape} would read past its end")
    check_room(node.op_type, shape, dy.dtype.itemsize)
    axes = (2, 0, 1) if rank == 3 else tuple(range(rank))
    in_size, out_size = ([array_shape[2 + axis] for axis in axes] for array_shape in (shape, dy.shape))
    d = dy.reshape(dy.shape[0] * dy.shape[1], *out_size)[:planes]
    dx = np.zeros((planes, *in_size), dy.dtype)
    one = dy.dtype.type(1)
    for output in product(*map(range, out_size)):
        starts = [o * attrs.strides[axis] - attrs.pads[axis][0] for o, axis in zip(output, axes, strict=True)]
        lows = [max(start, 0) for start in starts]
        highs = [min(start + attrs.kernel_shape[axis], n) for start, axis, n in zip(starts, axes, in_size, strict=True)]
        cells = [high - low for low, high in zip(lows, highs, strict=True)]
        if min(cells) <= 0:
            continue
        divisor = math.prod(attrs.kernel_shape if attrs.count_include_pad else cells)
        where: tuple[Any, ...] = (slice(None), *map(slice, lows, highs))
        source: tuple[Any, ...] = (slice(None), *output)
        with np.errstate(over="ignore", invalid="ignore"):
            value = (d[source] * (one / dy.dtype.type(divisor))).reshape(-1, *(1,) * rank)
            dx[where] = value if rank == 3 else dx[where] + value
    return dx.reshape(shape)
