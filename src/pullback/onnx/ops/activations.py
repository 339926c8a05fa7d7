"""Activations: of each element (Relu to Mish) and along an axis (Softmax, LogSoftmax, Hardmax)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback import training_kernels
from pullback.onnx.executor.memory import empty_like
from pullback.onnx.executor.registry import MICROSOFT, Node, op
from pullback.onnx.ops import special
from pullback.onnx.ops.arguments import axis_of, refused, result_like, scalar
from pullback.onnx.ops.elementwise import NATIVE_FROM
from pullback.rules import Array

SOFTMAX_OF_ONE_AXIS = 13  # before this opset all axes from `axis` on are one
# Of self-normalising networks: the defaults of Selu, which ONNX has as float32.
SELU_ALPHA, SELU_GAMMA = 1.6732632423543772848, 1.0507009873554804934
MISH_LARGEST = 20.0  # beyond it mish(x) is x in float64 too


def limited(x: Array, least: Any, most: Any, out: Array) -> Array:
    """x between limits, of which one may be None; the upper one holds where they cross.

    By NumPy's clip with both limits, which takes a third of the time of a maximum or minimum with one number.
    """
    if x.dtype.kind in "iu":
        ends = np.iinfo(x.dtype)
        low, high = ends.min if least is None else least, ends.max if most is None else most
    else:
        low, high = -np.inf if least is None else least, np.inf if most is None else most
        if x.size >= NATIVE_FROM:
            return training_kernels.clip(x, float(low), float(high), out)
    return np.asarray(np.clip(x, x.dtype.type(low), x.dtype.type(high), out=out))


@op("Relu", overwrites=(0,))
def relu(node: Node, x: Array, out: Array | None = None) -> Array:
    if x.size >= NATIVE_FROM:
        return training_kernels.relu(x, out)
    return limited(x, 0, None, result_like(x, out))


@op("LeakyRelu", overwrites=(0,))
def leaky_relu(node: Node, x: Array, out: Array | None = None) -> Array:
    return _with_slope(x, x.dtype.type(node.attr("alpha", 0.01)), out)


@op("PRelu", overwrites=(0,))
def prelu(node: Node, x: Array, slope: Array, out: Array | None = None) -> Array:
    return _with_slope(x, slope, out)


def _with_slope(x: Array, slope: Any, out: Array | None) -> Array:
    """x where it is positive, else slope * x."""
    if np.all((slope >= 0) & (slope <= 1)):
        return np.asarray(np.maximum(x, np.multiply(x, slope, out=empty_like(x)), out=result_like(x, out)))
    result = result_like(x, out)
    negative = x < 0
    if result is not x:
        np.copyto(result, x)
    return np.asarray(np.multiply(result, slope, out=result, where=negative))


def _exponential_unit(x: Array, alpha: float, inner: float, out: Array | None) -> Array:
    """max(x, 0) + alpha (exp(min(x, 0) / inner) - 1)."""
    below = limited(x, None, 0, empty_like(x))
    if inner != 1:
        below /= x.dtype.type(inner)
    np.expm1(below, out=below)
    below *= x.dtype.type(alpha)
    result = limited(x, 0, None, result_like(x, out))
    result += below
    return result


@op("Elu", overwrites=(0,))
def elu(node: Node, x: Array, out: Array | None = None) -> Array:
    return _exponential_unit(x, node.attr("alpha", 1.0), 1, out)


@op("Celu", overwrites=(0,))
def celu(node: Node, x: Array, out: Array | None = None) -> Array:
    return _exponential_unit(x, node.attr("alpha", 1.0), node.attr("alpha", 1.0), out)


@op("Selu", overwrites=(0,))
def selu(node: Node, x: Array, out: Array | None = None) -> Array:
    result = _exponential_unit(x, node.attr("alpha", SELU_ALPHA), 1, out)
    result *= x.dtype.type(node.attr("gamma", SELU_GAMMA))
    return result


@op("ThresholdedRelu", overwrites=(0,))
def thresholded_relu(node: Node, x: Array, out: Array | None = None) -> Array:
    return np.asarray(np.multiply(x, x > x.dtype.type(node.attr("alpha", 1.0)), out=result_like(x, out)))


@op("Shrink")
def shrink(node: Node, x: Array) -> Array:
    bias, limit = x.dtype.type(node.attr("bias", 0.0)), node.attr("lambd", 0.5)
    zero = x.dtype.type(0)
    return np.asarray(np.where(x < -limit, x + bias, np.where(x > limit, x - bias, zero)))


@op("Clip", overwrites=(0,))
def clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None, out: Array | None = None) -> Array:
    """Limits are attributes before opset 11 and inputs since."""
    return limited(x, scalar(low, node.attr("min")), scalar(high, node.attr("max")), result_like(x, out))


@op("Sigmoid", overwrites=(0,))
def sigmoid(node: Node, x: Array, out: Array | None = None) -> Array:
    return logistic(x, result_like(x, out))


def logistic(x: Array, out: Array) -> Array:
    """1 / (1 + exp(-x)); exp overflows to infinity where the result is 0."""
    np.negative(x, out=out)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    out += x.dtype.type(1)
    return np.reciprocal(out, out=out)


@op("Swish")
def swish(node: Node, x: Array) -> Array:
    gate: Array = np.multiply(x, x.dtype.type(node.attr("alpha", 1.0)), out=empty_like(x))
    logistic(gate, gate)
    gate *= x
    return gate


def _hard_gate(x: Array, alpha: float, beta: float, out: Array) -> Array:
    """alpha x + beta between 0 and 1."""
    np.multiply(x, x.dtype.type(alpha), out=out)
    out += x.dtype.type(beta)
    return limited(out, 0, 1, out)


@op("HardSigmoid", overwrites=(0,))
def hard_sigmoid(node: Node, x: Array, out: Array | None = None) -> Array:
    return _hard_gate(x, node.attr("alpha", 0.2), node.attr("beta", 0.5), result_like(x, out))


@op("HardSwish", overwrites=(0,))
def hard_swish(node: Node, x: Array, out: Array | None = None) -> Array:
    return np.multiply(x, _hard_gate(x, 1 / 6, 0.5, empty_like(x)), out=result_like(x, out))


@op("Softplus", overwrites=(0,))
def softplus(node: Node, x: Array, out: Array | None = None) -> Array:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), where nothing overflows."""
    tail = np.abs(x, out=empty_like(x))
    np.negative(tail, out=tail)
    np.exp(tail, out=tail)
    np.log1p(tail, out=tail)
    result = limited(x, 0, None, result_like(x, out))
    result += tail
    return result


@op("Softsign", overwrites=(0,))
def softsign(node: Node, x: Array, out: Array | None = None) -> Array:
    below = np.abs(x, out=empty_like(x))
    below += x.dtype.type(1)
    return np.divide(x, below, out=result_like(x, out))


@op("Mish", overwrites=(0,))
def mish(node: Node, x: Array, out: Array | None = None) -> Array:
    """x tanh(log(1 + e)) with e = exp(x), which is x n / (n + 2) with n = e (e + 2)."""
    e = limited(x, None, MISH_LARGEST, empty_like(x))
    np.exp(e, out=e)
    e *= e + x.dtype.type(2)
    e /= e + x.dtype.type(2)
    return np.asarray(np.multiply(x, e, out=result_like(x, out)))


@op("Erf", overwrites=(0,))
def erf(node: Node, x: Array, out: Array | None = None) -> Array:
    return special.erf(x, out)


@op("Gelu", overwrites=(0,))
@op("Gelu", domain=MICROSOFT, overwrites=(0,))
def gelu(node: Node, x: Array, out: Array | None = None) -> Array:
    """x times the normal distribution's share below x, or an approximation of that by tanh."""
    kind, approximate = x.dtype.type, node.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise refused(node, f"approximate is {approximate!r}", "the approximations are 'none' and 'tanh'")
    if approximate == "tanh":
        gate = np.square(x, out=empty_like(x))
        gate *= kind(0.044715)
        gate += kind(1)
        gate *= x
        gate *= kind(math.sqrt(2 / math.pi))
        np.tanh(gate, out=gate)
    else:
        gate = np.multiply(x, kind(math.sqrt(0.5)), out=empty_like(x))
        special.erf(gate, gate)
    gate += kind(1)
    gate *= kind(0.5)
    return np.multiply(x, gate, out=result_like(x, out))


def softmax_rows(node: Node, x: Array) -> tuple[Array, int]:
    """x and the axis along which a softmax is taken; before opset 13 that is all axes from one on, made into one."""
    old = node.opset < SOFTMAX_OF_ONE_AXIS
    axis = axis_of(node, node.attr("axis", 1 if old else -1), x.ndim)
    if not old:
        return x, axis
    return x.reshape(math.prod(x.shape[:axis]), -1), 1


def shifted(x: Array, axis: int) -> Array:
    """x less its maximum along an axis, in new memory."""
    return np.asarray(np.subtract(x, x.max(axis=axis, keepdims=True, initial=-np.inf), out=empty_like(x)))


@op("Softmax")
def softmax(node: Node, x: Array) -> Array:
    rows, axis = softmax_rows(node, x)
    e = shifted(rows, axis)
    np.exp(e, out=e)
    e /= e.sum(axis=axis, keepdims=True)
    return e.reshape(x.shape)


def log_softmax_along(x: Array, axis: int) -> Array:
    """log(softmax(x)), in new memory."""
    shift = shifted(x, axis)
    shift -= np.log(np.exp(shift).sum(axis=axis, keepdims=True))
    return shift


@op("LogSoftmax")
def log_softmax(node: Node, x: Array) -> Array:
    rows, axis = softmax_rows(node, x)
    return log_softmax_along(rows, axis).reshape(x.shape)


@op("Hardmax")
def hardmax(node: Node, x: Array) -> Array:
    rows, axis = softmax_rows(node, x)
    hits = np.zeros_like(rows)
    np.put_along_axis(hits, np.expand_dims(rows.argmax(axis=axis), axis), 1, axis=axis)
    return hits.reshape(x.shape)
