"""Gradients of elementwise functions that ONNX Runtime has no node for, in few passes (graph/functions.py says what each is)."""

from __future__ import annotations

import numpy as np

from pullback import training_kernels
from pullback.onnx.executor.memory import empty_like
from pullback.onnx.executor.registry import PULLBACK, Node, op
from pullback.onnx.ops.activations import logistic
from pullback.onnx.ops.grad_activations import kept
from pullback.rules import Array


@op("ClipGrad", domain=PULLBACK, overwrites=(0,))
def clip_grad(node: Node, dy: Array, x: Array, low: Array, high: Array, out: Array | None = None) -> Array:
    return training_kernels.clip_grad(dy, x, float(low), float(high), out)


@op("HardSigmoidGrad", domain=PULLBACK)
def hard_sigmoid_grad(node: Node, dy: Array, x: Array, alpha: Array, beta: Array) -> Array:
    line = np.multiply(x, alpha, out=empty_like(x))
    line += beta
    inside = line > 0
    inside &= line < 1
    np.multiply(dy, alpha, out=line)
    return kept(line, inside, line)


@op("HardSwishGrad", domain=PULLBACK)
def hard_swish_grad(node: Node, dy: Array, x: Array) -> Array:
    kind = x.dtype.type
    slope: Array = np.multiply(x, kind(1 / 3), out=empty_like(x))
    slope += kind(0.5)
    np.copyto(slope, kind(1), where=x > 3)
    np.copyto(slope, kind(0), where=x < -3)
    slope *= dy
    return slope


@op("MishGrad", domain=PULLBACK)
def mish_grad(node: Node, dy: Array, x: Array) -> Array:
    kind = x.dtype.type
    t = np.tanh(np.logaddexp(x, kind(0)))
    slope = logistic(x, empty_like(x))
    slope *= x
    slope *= kind(1) - np.square(t)
    slope += t
    slope *= dy
    return slope
