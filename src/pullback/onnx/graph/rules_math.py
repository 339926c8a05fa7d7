"""Gradients of elementwise functions and losses that take more than a line."""

from __future__ import annotations

import numpy as np

from pullback.onnx.graph import functions
from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.view import NodeView
from pullback.onnx.ops.activations import SELU_ALPHA, SELU_GAMMA

LOSS = ("ignore_index", "reduction")


def square(value: Value) -> Value:
    return value * value


def pow_base(n: NodeView) -> Value:
    """b a^(b-1), shorter for the usual exponents."""
    known = n.constant(1)
    exponent = float(known.reshape(-1)[0]) if known is not None and known.size == 1 else None
    if exponent == 2:
        return n.dy * (n.a * 2.0)
    if exponent == 1:
        return n.dy
    if exponent == 0.5:
        return n.dy * 0.5 / n.y
    if exponent is not None:
        return n.dy * (n.op.Pow(n.a, exponent - 1) * exponent) if exponent else n.dy * 0.0
    b = n.b if n.b.dtype == n.a.dtype else n.g.number(n.b, n.a)
    return n.dy * n.op.Where(n.op.Equal(b, 0), 0, b * n.op.Pow(n.a, b - 1.0))


def pow_exponent(n: NodeView) -> Value:
    """a^b log(a), 0 where a is not positive."""
    return n.dy * n.y * n.op.Log(n.op.Where(n.a > 0, n.a, 1))


def leaky_relu(n: NodeView) -> Value:
    """ONNX Runtime's node looks at the sign of y, which is that of x only where alpha is not negative."""
    alpha = n.attr("alpha", 0.01)
    return n.ms.LeakyReluGrad(n.dy, n.y, alpha=alpha) if alpha >= 0 else n.op.Where(n.x > 0, n.dy, n.dy * alpha)


def selu(n: NodeView) -> Value:
    alpha, gamma = n.attr("alpha", SELU_ALPHA), n.attr("gamma", SELU_GAMMA)
    return n.op.Where(n.x > 0, n.dy * gamma, n.dy * (n.y + alpha * gamma))


def clip(n: NodeView) -> Value:
    low, high = (n.given(place) or n.g.constant(bound, n.x.dtype) for place, bound in ((1, -np.inf), (2, np.inf)))
    return n.g.call("ClipGrad", functions.clip_grad, n.dy, n.x, low, high)


def hard_sigmoid(n: NodeView) -> Value:
    alpha, beta = (n.g.constant(n.attr(name, default), n.x.dtype) for name, default in (("alpha", 0.2), ("beta", 0.5)))
    return n.g.call("HardSigmoidGrad", functions.hard_sigmoid_grad, n.dy, n.x, alpha, beta)


def softmax_cross_entropy_loss(n: NodeView) -> Value:
    if any(n.dys[1:]):
        raise n.refuse("the loss depends on its log_prob too")
    log_prob = n.output(1, "_log_prob", n.x.type)
    return n.ms.SoftmaxCrossEntropyLossGrad(n.dy, log_prob, n.b, n.given(2), **n.attributes(*LOSS))


def negative_log_likelihood_loss(n: NodeView) -> Value:
    shape = n.g.shape_of(n.x)
    return n.own.NegativeLogLikelihoodLossGrad(n.dy, shape, n.b, n.given(2), **n.attributes(*LOSS))
