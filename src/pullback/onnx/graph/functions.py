"""Gradients that ONNX Runtime has no node for, as functions in stock operators (domain ai.pullback).

A runtime that does not know the names puts the bodies in their place; pullback's own executor computes each in one go. Numbers that
the model's node has as attributes are inputs here, so that one body serves every node.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.onnx.graph.emit import Builder, Value


def clip_grad(g: Builder, dY: Value, X: Value, low: Value, high: Value) -> Value:
    """dY where low <= X <= high, the bounds included, else 0."""
    return g.op.Where(g.op.And(g.op.LessOrEqual(low, X), g.op.LessOrEqual(X, high)), dY, 0)


def hard_sigmoid_grad(g: Builder, dY: Value, X: Value, alpha: Value, beta: Value) -> Value:
    """alpha dY where 0 < alpha X + beta < 1, else 0."""
    line = X * alpha + beta
    return g.op.Where(g.op.And(line > 0, g.op.Less(line, 1)), dY * alpha, 0)


def hard_swish_grad(g: Builder, dY: Value, X: Value) -> Value:
    """Of X times a line from 0 at -3 to 1 at 3: dY beyond 3, nothing before -3, (X / 3 + 1/2) dY between."""
    inside = dY * (X * (1 / 3) + 0.5)
    return g.op.Where(g.op.Less(X, -3), 0, g.op.Where(X > 3, dY, inside))


def mish_grad(g: Builder, dY: Value, X: Value) -> Value:
    """Of X tanh(softplus(X)): t + X (1 - t^2) sigmoid(X) with t = tanh(softplus(X))."""
    t = g.op.Tanh(g.op.Softplus(X))
    return dY * (t + X * (1 - t * t) * g.op.Sigmoid(X))


def global_max_pool_grad(g: Builder, dY: Value, X: Value) -> Value:
    """All of dY to the first maximum of each image and channel."""
    rows, shape = g.constant([0, 0, -1]), g.op.Shape(X)
    flat = g.op.Reshape(X, rows)
    where = g.op.ArgMax(flat, axis=2, keepdims=1)
    zeros = g.op.Expand(g.constant(0, X.dtype), g.op.Shape(flat))
    return g.op.Reshape(g.op.ScatterElements(zeros, where, g.op.Reshape(dY, rows), axis=2), shape)


def group_normalization_grad(g: Builder, dY: Value, X: Value, scale: Value, groups: Value, epsilon: Value) -> Sequence[Value]:
    """dX, dscale and dB of GroupNormalization with a scale for each channel; `groups` is the shape (0, groups, -1).

    With h = (X - mean) / sqrt(var + epsilon) of each group: dX = (d - mean(d) - h mean(d h)) / sqrt(var + epsilon), d = dY scale.
    """
    rows, two = g.constant([0, 0, -1]), g.constant([2])
    cells, shape = g.op.Shape(g.op.Reshape(X, rows)), g.op.Shape(X)

    def mean(value: Value) -> Value:
        return g.op.ReduceSum(value, two, keepdims=1) / count

    x = g.op.Reshape(X, groups)
    count = g.op.ReduceSum(g.op.Expand(g.constant(1, X.dtype), g.op.Shape(x)), two, keepdims=1)
    centred = x - mean(x)
    inverse = g.op.Reciprocal(g.op.Sqrt(mean(centred * centred) + epsilon))
    h = centred * inverse
    dy = g.op.Reshape(dY, rows)
    d = g.op.Reshape(dy * g.op.Reshape(scale, g.constant([1, -1, 1])), groups)
    dx = g.op.Reshape((d - mean(d) - h * mean(d * h)) * inverse, shape)
    outer = g.constant([0, 2])
    dscale = g.op.ReduceSum(dy * g.op.Reshape(h, cells), outer, keepdims=0)
    return dx, dscale, g.op.ReduceSum(dy, outer, keepdims=0)
