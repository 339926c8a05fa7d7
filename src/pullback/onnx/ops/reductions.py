"""Reductions of axes: ReduceSum to ReduceLogSumExp, ArgMax, ArgMin, and running sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import axes_of, axis_of, ints, scalar
from pullback.onnx.ops.pooling import mean_over_space
from pullback.rules import Array

Axes = tuple[int, ...]


def reduced_axes(node: Node, x: Array, axes: Array | None = None) -> Axes | None:
    """The axes that a node reduces, an attribute or (since opset 18, ReduceSum 13) an input; None where it reduces none."""
    given = node.attr("axes") if axes is None else axes
    wanted = () if given is None else axes_of(node, given, x.ndim)
    if wanted:
        return wanted
    return None if node.attr("noop_with_empty_axes", 0) else tuple(range(x.ndim))


def _log_sum_exp(x: Array, axis: Axes, keepdims: bool) -> Array:
    most = x.max(axis=axis, keepdims=True, initial=-np.inf)
    most[~np.isfinite(most)] = 0
    sums: Array = np.log(np.exp(x - most).sum(axis=axis, keepdims=True))
    sums += most
    return sums if keepdims else sums.squeeze(axis)


def _sum(x: Array, axis: Axes, keepdims: bool) -> Array:
    return np.asarray(x.sum(axis=axis, keepdims=keepdims, dtype=x.dtype))


def _mean(x: Array, axis: Axes, keepdims: bool) -> Array:
    if x.ndim in (3, 4, 5) and axis == tuple(range(2, x.ndim)) and x.dtype.kind == "f" and x.size:
        # The mean over space, which the kernels have: on all threads, with smaller errors.
        mean = mean_over_space(x)
        return mean if keepdims else mean.reshape(x.shape[:2])
    count = x.size // max(np.prod([x.shape[a] for a in range(x.ndim) if a not in axis], dtype=int), 1)
    total = np.asarray(_sum(x, axis, keepdims))
    return total // count if x.dtype.kind in "iu" else np.asarray(total / x.dtype.type(count))


def _most(x: Array, axis: Axes, keepdims: bool) -> Array:
    return np.asarray(x.max(axis=axis, keepdims=keepdims, initial=_ends(x)[0]))


def _least(x: Array, axis: Axes, keepdims: bool) -> Array:
    return np.asarray(x.min(axis=axis, keepdims=keepdims, initial=_ends(x)[1]))


def _ends(x: Array) -> tuple[Any, Any]:
    """The smallest and the largest number of a type: the maximum and the minimum of nothing."""
    if x.dtype.kind == "b":
        return False, True
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        return limits.min, limits.max
    return -np.inf, np.inf


def _product(x: Array, axis: Axes, keepdims: bool) -> Array:
    return np.asarray(x.prod(axis=axis, keepdims=keepdims, dtype=x.dtype))


REDUCTIONS: dict[str, Callable[[Array, Axes, bool], Array]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _most,
    "ReduceMin": _least,
    "ReduceProd": _product,
    "ReduceL1": lambda x, axis, keepdims: _sum(np.abs(x), axis, keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt(_sum(np.square(x), axis, keepdims)).astype(x.dtype),
    "ReduceSumSquare": lambda x, axis, keepdims: _sum(np.square(x), axis, keepdims),
    "ReduceLogSum": lambda x, axis, keepdims: np.log(_sum(x, axis, keepdims)),
    "ReduceLogSumExp": _log_sum_exp,
}
# What a reduction of no axes does with each element.
OF_EACH: dict[str, Callable[[Array], Array]] = {
    "ReduceL1": np.abs,
    "ReduceL2": np.abs,
    "ReduceSumSquare": np.square,
    "ReduceLogSum": np.log,
}


def _reduce(reduction: Callable[[Array, Axes, bool], Array], node: Node, x: Array, axes: Array | None = None) -> Array:
    along = reduced_axes(node, x, axes)
    if along is None:
        return np.asarray(OF_EACH.get(node.op_type, np.copy)(x))
    return np.asarray(reduction(x, along, bool(node.attr("keepdims", 1))))


for _name, _reduction in REDUCTIONS.items():
    op(_name, sized_by=(1,))(partial(_reduce, _reduction))


def _arg(node: Node, x: Array, find: Any) -> Array:
    axis = axis_of(node, node.attr("axis", 0), x.ndim)
    if node.attr("select_last_index", 0):
        places = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis)
    else:
        places = find(x, axis=axis)
    found = np.asarray(places, np.int64)
    return np.expand_dims(found, axis) if node.attr("keepdims", 1) else found


@op("ArgMax")
def arg_max(node: Node, x: Array) -> Array:
    return _arg(node, x, np.argmax)


@op("ArgMin")
def arg_min(node: Node, x: Array) -> Array:
    return _arg(node, x, np.argmin)


@op("CumSum")
def cumulative_sum(node: Node, x: Array, axis: Array) -> Array:
    return _running(node, x, axis, np.cumsum, 0)


@op("CumProd")
def cumulative_product(node: Node, x: Array, axis: Array) -> Array:
    return _running(node, x, axis, np.cumprod, 1)


def _running(node: Node, x: Array, axis: Array, accumulate: Any, start: int) -> Array:
    along = axis_of(node, int(scalar(axis, 0)), x.ndim)
    ahead = np.flip(x, along) if node.attr("reverse", 0) else x
    if node.attr("exclusive", 0) and x.shape[along]:
        edge = np.full_like(np.take(ahead, [0], axis=along), start)
        ahead = np.concatenate([edge, np.take(ahead, range(x.shape[along] - 1), axis=along)], axis=along)
    sums: Array = accumulate(ahead, axis=along, dtype=x.dtype)
    return np.flip(sums, along) if node.attr("reverse", 0) else sums


@op("TopK", sized_by=(1,))
def top_k(node: Node, x: Array, k: Array) -> tuple[Array, Array]:
    """The largest or smallest entries of an axis, in order; of equal ones the earlier first."""
    axis, count = axis_of(node, node.attr("axis", -1), x.ndim), ints(k)[0]
    if node.attr("largest", 1):
        # From behind, so that a stable ascending order read backwards has the earlier of equal ones first.
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    places = np.take(order, range(count), axis=axis).astype(np.int64, copy=False)
    return np.take_along_axis(x, places, axis=axis), places
