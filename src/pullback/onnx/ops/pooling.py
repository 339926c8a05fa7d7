"""MaxPool, AveragePool, LpPool and the global pools, on pullback's kernels in the memory layout that the images have."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.onnx.executor.layout import channels_last
from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import frozen, naming
from pullback.onnx.ops.convolution import Shape, for_kernel, from_kernel, layout_name
from pullback.ops.global_pool import global_avg_pool
from pullback.ops.lp_pool import root
from pullback.ort.attributes import pool_attributes, row_or_column_major
from pullback.ort.geometry import pool_window
from pullback.ort.pool import SEEDED_BY_FIRST, check_pool_input, lowest
from pullback.problem import Problem
from pullback.registry import dispatch
from pullback.rules import Array
from pullback.window import Divisor, Window

_AVERAGES = ("avg_pool", "avg_pool_grad")


@lru_cache(1024)
def _pool_problem(
    kernel_op: str, op_type: str, attrs: tuple[tuple[str, Any], ...], x: Shape, dtype: Any, last: bool, divisor: Divisor | None,
    winners: bool,
) -> Problem:  # fmt: skip
    parsed = pool_attributes(op_type, dict(attrs))
    check_pool_input(op_type, parsed, x, "X")
    window = pool_window(op_type, parsed, x[2:])
    rules: dict[str, Any]
    if kernel_op in _AVERAGES:
        rules = {"divisor": divisor or ("padded" if parsed.count_include_pad else "valid")}
    else:
        row_or_column_major(op_type, dict(attrs))
        rules = {"winner": SEEDED_BY_FIRST, "empty": lowest(dtype), "return_winners": winners}
    return Problem(kernel_op, dtype, layout_name(last), x[0], x[1], x[1], window, **rules)


def pool_problem(
    node: Node, kernel_op: str, x_shape: Shape, dtype: np.dtype[Any], last: bool, *, divisor: Divisor | None = None,
    winners: bool = False,
) -> Problem:  # fmt: skip
    """The problem of a pool's node or of its gradient: `max_pool`, `avg_pool`, `avg_pool_grad`, `max_pool_grad_from_winners` ..."""
    with naming(node):
        return _pool_problem(kernel_op, node.op_type, frozen(node), x_shape, dtype, last, divisor, winners)


@lru_cache(64)
def _offsets(window: Window, storage_order: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of indices into an image: where each window begins, and what each tap adds."""
    size = window.input_size
    ahead = [size[:axis] if storage_order else size[axis + 1 :] for axis in range(len(size))]
    steps = np.array([math.prod(sizes) for sizes in ahead], np.int64)
    begins = np.zeros((), np.int64)
    for axis, step in enumerate(steps):
        begins = begins[..., None] + window.starts(axis) * step
    taps = np.array(list(window.taps()), np.int64) * window.dilation @ steps
    return begins, taps


def indices_of_winners(problem: Problem, winners: Array, storage_order: int) -> npt.NDArray[np.int64]:
    """ONNX's Indices (flat over N, C and space, of shape (N, C, *out)) from the winning taps of a max pool; -1 for none."""
    last, size = problem.layout == "channels_last", problem.window.input_size
    begins, taps = _offsets(problem.window, storage_order)
    images = np.arange(problem.batch * problem.channels_out, dtype=np.int64) * math.prod(size)
    indices: npt.NDArray[np.int64] = from_kernel(np.take(taps, winners, mode="clip"), last)
    indices += begins
    indices += images.reshape(problem.batch, -1, *(1,) * len(size))
    none = winners == np.iinfo(winners.dtype).max
    if none.any():
        indices[from_kernel(none, last)] = -1
    return indices


@op("MaxPool")
def max_pool(node: Node, x: Array) -> Array | tuple[Array, Array]:
    # Kernels compute in floating point; every int8 and uint8 is a float32.
    work = x.astype(np.float32) if x.dtype.kind in "iu" else x
    last, wanted = channels_last(work), node.wants(1)
    problem = pool_problem(node, "max_pool", x.shape, work.dtype, last, winners=wanted)
    result = dispatch(problem, for_kernel(work, last))
    y = from_kernel(result[0] if wanted else result, last).astype(x.dtype, copy=False)
    if not wanted:
        return y
    return y, indices_of_winners(problem, result[1], node.attr("storage_order", 0) if x.ndim > 3 else 0)


@op("AveragePool")
def average_pool(node: Node, x: Array) -> Array:
    last = channels_last(x)
    return from_kernel(dispatch(pool_problem(node, "avg_pool", x.shape, x.dtype, last), for_kernel(x, last)), last)


@op("LpPool")
def lp_pool(node: Node, x: Array) -> Array:
    """The p-norm of each window: the sum of powers is an average with the divisor 1."""
    p, last = node.attr("p", 2), channels_last(x)
    powers = np.square(x) if p == 2 else np.abs(x) ** p
    sums = dispatch(pool_problem(node, "avg_pool", x.shape, x.dtype, last, divisor=1), for_kernel(powers, last))
    norms: Array = from_kernel(root(np, sums, 1 / p), last)
    return norms.astype(x.dtype, copy=False)


def global_node(node: Node, x: Array) -> Node:
    """The node of the pool whose window is the whole image."""
    attrs = {"kernel_shape": list(x.shape[2:]), **node.attrs}
    return Node(node.op_type, node.domain, node.name, node.inputs, node.outputs, attrs, node.opset)


def mean_over_space(x: Array) -> Array:
    """The mean over all spatial axes, which stay with size 1."""
    last = channels_last(x)
    return from_kernel(global_avg_pool(for_kernel(x, last), layout=layout_name(last)), last)


@op("GlobalAveragePool")
def global_average_pool(node: Node, x: Array) -> Array:
    with naming(node):
        return mean_over_space(x)


@op("GlobalMaxPool")
def global_max_pool(node: Node, x: Array) -> Array:
    y = max_pool(global_node(node, x), x)
    assert isinstance(y, np.ndarray)
    return y


@op("GlobalLpPool")
def global_lp_pool(node: Node, x: Array) -> Array:
    return lp_pool(global_node(node, x), x)
