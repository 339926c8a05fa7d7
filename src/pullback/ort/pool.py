"""MaxPool, AveragePool and their gradients, mended: from a checked node to a Problem, and dispatch.

The pieces that 1.19.2 does otherwise are parameters; `upstream_pool` passes its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.arguments import as_int
from pullback.ops.replay import dispatch, step
from pullback.ort.attributes import PoolAttributes, pool_attributes, row_or_column_major
from pullback.ort.geometry import pool_window
from pullback.ort.registry import Node
from pullback.problem import IndexProblem, Problem
from pullback.rules import Array, Layout, WinnerRule
from pullback.window import Divisor, Window

LAYOUT: Layout = "channels_first"

# The first cell in bounds seeds the maximum, then strictly greater cells take it: a leading NaN stays, a later one loses.
SEEDED_BY_FIRST = WinnerRule("first", "leading")


def lowest(dtype: np.dtype[Any]) -> float:
    """The most negative finite number of a dtype, which ONNX Runtime starts a maximum from."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min)
    if dtype.name == "bfloat16":
        return -(2 - 2.0**-7) * 2.0**127
    return float(np.finfo(dtype).min)


def check_pool_input(op: str, attrs: PoolAttributes, shape: Sequence[int], name: str) -> None:
    """Rank and sizes of the array a pool slides over."""
    rank = len(attrs.kernel_shape)
    given = f"{name} has shape {tuple(shape)}, kernel_shape is {list(attrs.kernel_shape)}"
    if len(shape) < 3:
        raise ValueError(f"{op}: Input dimension cannot be less than 3. {given}")
    if len(shape) != rank + 2:
        raise ValueError(f"{op}: kernel_shape num_dims is not compatible with X num_dims. {given}")
    if rank > 3:
        raise ValueError(f"{op}: Unsupported pooling size : {given}; there are at most 3 spatial axes")
    if 0 in shape[1:]:
        raise ValueError(f"{op}: Invalid input shape. Only N can be zero. Got: {tuple(shape)}")


def run_max_pool(
    node: Node, attrs: PoolAttributes, rule: WinnerRule, storage_order: int, *, keep_past_end: bool
) -> tuple[Array, npt.NDArray[np.int64] | None]:
    """Values and flat indices of the winners; index -1 and the dtype's lowest value where a window has none."""
    x = node.inputs["X"]
    check_pool_input(node.op_type, attrs, x.shape, "X")
    window = pool_window(node.op_type, attrs, x.shape[2:], keep_past_end=keep_past_end)
    # Kernels compute in floating point; every int8 and uint8 is a float32.
    work = x.astype(np.float32) if x.dtype.kind in "iu" else x
    problem = Problem(
        "max_pool", work.dtype, LAYOUT, x.shape[0], x.shape[1], x.shape[1], window,
        winner=rule, empty=lowest(x.dtype), return_indices=True,
        storage_order=storage_order if window.rank > 1 else 0,
    )  # fmt: skip
    values, indices = dispatch(problem, work)
    return values.astype(x.dtype, copy=False), indices


def wanted_pair(node: Node, values: Array, indices: Any) -> tuple[Array | None, Any]:
    return values if "Y" in node.wanted else None, indices if "Indices" in node.wanted else None


def max_pool(node: Node) -> tuple[Array | None, Any]:
    attrs = pool_attributes(node.op_type, node.attrs)
    order = row_or_column_major(node.op_type, node.attrs)
    return wanted_pair(node, *run_max_pool(node, attrs, SEEDED_BY_FIRST, order, keep_past_end=False))


def run_average_pool(node: Node, padded_divisor: Divisor, *, keep_past_end: bool) -> Array:
    """The averages; `padded_divisor` says what count_include_pad divides by."""
    attrs, x = pool_attributes(node.op_type, node.attrs), node.inputs["X"]
    check_pool_input(node.op_type, attrs, x.shape, "X")
    window = pool_window(node.op_type, attrs, x.shape[2:], keep_past_end=keep_past_end)
    divisor: Divisor = padded_divisor if attrs.count_include_pad else "valid"
    result: Array = dispatch(
        Problem("avg_pool", x.dtype, LAYOUT, x.shape[0], x.shape[1], x.shape[1], window, divisor=divisor), x
    )
    return result


def average_pool(node: Node) -> Array:
    return run_average_pool(node, "padded", keep_past_end=False)


def declared_shape(node: Node) -> tuple[int | None, ...]:
    """dX's shape as the graph declares it, None for a symbolic size."""
    assert node.output_shape is not None
    sizes = tuple(
        None if size is None or isinstance(size, str) else as_int(node.op_type, "output_shape", size)
        for size in node.output_shape
    )
    if not sizes or any(size is not None and size < 0 for size in sizes):
        raise ValueError(f"{node.op_type}: output_shape is {node.output_shape}; it needs sizes, none of them negative")
    return sizes


def known_shape(node: Node, declared: tuple[int | None, ...], batch: int) -> tuple[int, ...]:
    """The declared shape with this batch; only the batch may be symbolic."""
    if None in declared[1:]:
        raise ValueError(f"{node.op_type}: output_shape is {node.output_shape}; only its batch may be symbolic")
    return (batch, *(size for size in declared[1:] if size is not None))


def check_indices(node: Node) -> tuple[Array, npt.NDArray[np.int64], tuple[int, ...]]:
    """dY, Indices and the shape of dX, whose batch is dY's, with every index inside dX."""
    dy, indices = node.inputs["dY"], node.inputs["Indices"]
    if dy.shape != indices.shape:
        raise ValueError(
            f"The shape of dY and indices does not match in MaxPoolGrad. dY has {dy.shape}, Indices have {indices.shape}"
        )
    if dy.ndim == 0:
        raise ValueError("MaxPoolGrad: dY has no axes; its first axis is the batch")
    shape = known_shape(node, declared_shape(node), dy.shape[0])
    return dy, step(_in_range, (shape,), indices), shape


def _in_range(shape: tuple[int, ...], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    size = math.prod(shape)
    wrong = np.flatnonzero((indices < 0) | (indices >= size))
    if wrong.size:
        value = int(indices.reshape(-1)[wrong[0]])
        raise ValueError(
            f"MaxPoolGrad: index value {value} at position {int(wrong[0])} is out of range [0, {size}) of dX {shape}"
        )
    return indices


def max_pool_grad(node: Node) -> Array:
    dy, indices, shape = check_indices(node)
    order = row_or_column_major(node.op_type, node.attrs) if len(shape) > 3 else 0
    planes_match = len(shape) in (3, 4, 5) and dy.ndim == len(shape) and dy.shape[:2] == shape[:2]
    if order and not planes_match:
        raise ValueError(
            f"MaxPoolGrad: under storage_order=1 dX {shape} needs 4 or 5 axes and dY {dy.shape} the same rank, batch, channels"
        )
    # Row-major indices are flat over everything, so arrays of any other shape are one long plane.
    inner, outer = (shape, dy.shape) if planes_match else ((1, 1, math.prod(shape)), (1, 1, dy.size))
    problem = IndexProblem("max_pool_grad_from_indices", dy.dtype, LAYOUT, inner, outer, order)
    result: Array = dispatch(problem, dy.reshape(outer), indices.reshape(outer))
    return result.reshape(shape)


def _gradient_window(node: Node, attrs: PoolAttributes, shape: tuple[int, ...], dy: Array) -> Window:
    """The window whose output is dY; under ceil_mode that of 1.19.2's forward, with a window past the end, serves too."""
    expected = []
    for keep_past_end in (False, True):
        window = pool_window(node.op_type, attrs, shape[2:], keep_past_end=keep_past_end)
        expected.append((*shape[:2], *window.output_size))
        if dy.shape == expected[-1]:
            return window
    raise ValueError(
        f"{node.op_type}: dY has shape {dy.shape} but the AveragePool of an input {shape} with kernel_shape "
        f"{list(attrs.kernel_shape)} has {' or '.join(map(str, dict.fromkeys(expected)))}"
    )


def average_pool_grad(node: Node) -> Array:
    attrs, dy = pool_attributes(node.op_type, node.attrs), node.inputs["dY"]
    declared = declared_shape(node)
    batch = declared[0] if declared[0] is not None else dy.shape[0] if dy.ndim else 0
    shape = known_shape(node, declared, batch)
    check_pool_input(node.op_type, attrs, shape, "dX")
    window = _gradient_window(node, attrs, shape, dy)
    divisor: Divisor = "padded" if attrs.count_include_pad else "valid"
    problem = Problem("avg_pool_grad", dy.dtype, LAYOUT, shape[0], shape[1], shape[1], window, divisor=divisor)
    result: Array = dispatch(problem, dy)
    return result
