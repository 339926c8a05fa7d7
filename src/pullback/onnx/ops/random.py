"""Dropout and random numbers: drawn from the context, so that seed, step and node alone decide them."""

from __future__ import annotations

import numpy as np

from pullback.onnx.executor.context import Context
from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import ints, refused, scalar
from pullback.onnx.ops.constants import dtype_of
from pullback.rules import Array

TRAINING_BY_INPUT = 12  # since when Dropout has the inputs ratio and training_mode; before it only passes its input on


@op("Dropout", views=(0,), context=True)
def dropout(
    node: Node, x: Array, ratio: Array | None = None, training: Array | None = None, *, context: Context
) -> tuple[Array, Array | None]:
    """In training each element is kept with the probability 1 - ratio and divided by it; else x as it is."""
    share = float(scalar(ratio, node.attr("ratio", 0.5)))
    if node.opset < TRAINING_BY_INPUT or not bool(scalar(training, False)) or share == 0:
        return x, np.ones(x.shape, np.bool_) if node.wants(1) else None
    if not 0 <= share < 1:
        raise refused(node, f"ratio is {share}", "it must be at least 0 and less than 1")
    kept = context.uniform(node, x.shape) >= share
    y = np.multiply(x, kept)
    y *= x.dtype.type(1 / (1 - share))
    return y, kept


def _normal(node: Node, shape: tuple[int, ...], context: Context) -> Array:
    """Two uniform numbers make a normal one (Box and Muller)."""
    radius, angle = np.moveaxis(context.uniform(node, (*shape, 2)).astype(np.float64), -1, 0)
    return np.asarray(np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle))


def _draw(node: Node, shape: tuple[int, ...], dtype: np.dtype[np.generic], context: Context) -> Array:
    if node.op_type.startswith("RandomNormal"):
        numbers = _normal(node, shape, context) * node.attr("scale", 1.0) + node.attr("mean", 0.0)
    else:
        low, high = node.attr("low", 0.0), node.attr("high", 1.0)
        numbers = context.uniform(node, shape) * (high - low) + low
    return np.asarray(numbers, dtype)


@op("RandomNormal", "RandomUniform", context=True)
def random(node: Node, *, context: Context) -> Array:
    return _draw(node, ints(node.attr("shape")), dtype_of(node, node.attr("dtype", 1)), context)


@op("RandomNormalLike", "RandomUniformLike", context=True)
def random_like(node: Node, x: Array, *, context: Context) -> Array:
    number = node.attr("dtype")
    return _draw(node, x.shape, x.dtype if number is None else dtype_of(node, number), context)


@op("Bernoulli", context=True)
def bernoulli(node: Node, x: Array, *, context: Context) -> Array:
    number = node.attr("dtype")
    hits = context.uniform(node, x.shape) < x
    return hits.astype(x.dtype if number is None else dtype_of(node, number))
