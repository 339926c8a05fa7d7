"""Gradients of activations, from dY and the output or the input as the node's name says."""

from __future__ import annotations

import math

import numpy as np

from pullback import training_kernels
from pullback.onnx.executor.memory import empty_like
from pullback.onnx.executor.registry import MICROSOFT, Node, op
from pullback.onnx.ops import special
from pullback.onnx.ops.arguments import axis_of, result_like
from pullback.rules import Array


def kept(dy: Array, where: Array, out: Array | None) -> Array:
    """dy where something holds, else 0, whatever dy is there."""
    if out is dy:
        np.copyto(out, dy.dtype.type(0), where=~where)
        return out
    result = result_like(dy, out)
    result.fill(0)
    np.copyto(result, dy, where=where)
    return result


@op("ReluGrad", domain=MICROSOFT, overwrites=(0,))
def relu_grad(node: Node, dy: Array, y: Array, out: Array | None = None) -> Array:
    return training_kernels.relu_grad(dy, y, out)


@op("LeakyReluGrad", domain=MICROSOFT)
def leaky_relu_grad(node: Node, dy: Array, y: Array) -> Array:
    slopes: Array = np.where(y > 0, dy.dtype.type(1), dy.dtype.type(node.attr("alpha", 0.01)))
    slopes *= dy
    return slopes


@op("SigmoidGrad", domain=MICROSOFT, overwrites=(0,))
def sigmoid_grad(node: Node, dy: Array, y: Array, out: Array | None = None) -> Array:
    slope: Array = np.subtract(y.dtype.type(1), y, out=empty_like(y))
    slope *= y
    return np.multiply(dy, slope, out=result_like(dy, out))


@op("TanhGrad", domain=MICROSOFT, overwrites=(0,))
def tanh_grad(node: Node, dy: Array, y: Array, out: Array | None = None) -> Array:
    slope = np.square(y, out=empty_like(y))
    np.subtract(y.dtype.type(1), slope, out=slope)
    return np.multiply(dy, slope, out=result_like(dy, out))


@op("GeluGrad", domain=MICROSOFT)
def gelu_grad(node: Node, dy: Array, x: Array) -> Array:
    """d/dx of x P(x) is P(x) + x p(x), with the normal distribution's share P and density p."""
    kind = x.dtype.type
    slope = np.square(x, out=empty_like(x))
    slope *= kind(-0.5)
    np.exp(slope, out=slope)
    slope *= kind(1 / math.sqrt(2 * math.pi))
    slope *= x
    share = special.erf(x * kind(math.sqrt(0.5)), None)
    share += kind(1)
    share *= kind(0.5)
    slope += share
    slope *= dy
    return slope


@op("FastGeluGrad", domain=MICROSOFT)
def fast_gelu_grad(node: Node, dy: Array, x: Array) -> Array:
    """Of x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    kind, factor, cubic = x.dtype.type, math.sqrt(2 / math.pi), 0.044715
    squares = np.square(x)
    t = np.tanh(x * (squares * kind(factor * cubic) + kind(factor)))
    inner = x * (squares * kind(3 * factor * cubic) + kind(factor))
    slope = kind(0.5) * (kind(1) + t + inner * (kind(1) - np.square(t)))
    return np.asarray(slope * dy)


@op("SoftmaxGrad_13", domain=MICROSOFT)
def softmax_grad(node: Node, dy: Array, y: Array) -> Array:
    axis = axis_of(node, node.attr("axis", -1), y.ndim)
    dx = np.multiply(dy, y, out=empty_like(y))
    dx -= y * dx.sum(axis=axis, keepdims=True)
    return dx


@op("LogSoftmaxGrad_13", domain=MICROSOFT)
def log_softmax_grad(node: Node, dy: Array, y: Array) -> Array:
    axis = axis_of(node, node.attr("axis", -1), y.ndim)
    dx = np.exp(y, out=empty_like(y))
    dx *= dy.sum(axis=axis, keepdims=True)
    return np.subtract(dy, dx, out=dx)
