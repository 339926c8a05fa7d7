"""ReLU, sums, their gradients and optimizer steps in plain NumPy: what the native passes over flat memory are held to."""

from __future__ import annotations

import numpy as np

from pullback.rules import Array


def relu(x: Array, out: Array | None = None) -> Array:
    """max(x, 0), into `out` where it is given, which may be x; NaN stays."""
    return np.asarray(np.maximum(x, x.dtype.type(0), out=out))


def _where_positive(values: Array, y: Array, out: Array | None) -> Array:
    return _where(values, y > 0, out)


def _where(values: Array, alive: Array, out: Array | None) -> Array:
    result = np.empty_like(values) if out is None else out
    np.copyto(result, values)
    np.copyto(result, 0, where=np.logical_not(alive))
    return result


def relu_grad(dy: Array, y: Array, out: Array | None = None) -> Array:
    """dy where y > 0, else 0, whatever dy is there; into `out` where it is given, which may be an argument."""
    return _where_positive(dy, y, out)


def add(a: Array, b: Array, out: Array | None = None) -> Array:
    """a + b, of arrays of one shape."""
    return np.asarray(np.add(a, b, out=out))


def add_relu(a: Array, b: Array, out: Array | None = None) -> Array:
    """max(a + b, 0), of arrays of one shape."""
    return relu(add(a, b), out)


def relu_grad_of_sum(da: Array, db: Array, y: Array, out: Array | None = None) -> Array:
    """da + db where y > 0, else 0: the gradient of a ReLU whose result two others have read."""
    return _where_positive(add(da, db), y, out)


def clip(x: Array, low: float, high: float, out: Array | None = None) -> Array:
    """min(max(x, low), high); NaN stays."""
    kind = x.dtype.type
    return np.asarray(np.minimum(np.maximum(x, kind(low), out=out), kind(high), out=out))


def clip_grad(dy: Array, x: Array, low: float, high: float, out: Array | None = None) -> Array:
    """dy where low <= x <= high, else 0, whatever dy is there."""
    kind = x.dtype.type
    return _where(dy, (x >= kind(low)) & (x <= kind(high)), out)


def sum_of_squares(g: Array) -> float:
    """The sum of all elements' squares, in float64."""
    return float(np.square(g.astype(np.float64)).sum())


def sgd_step(
    p: Array, g: Array, v: Array | None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, first: bool = False, g_scale: float = 1.0,
) -> None:  # fmt: skip
    """One step of stochastic gradient descent, in place on p and v.

    v, the momentum, is not needed where `momentum` is 0; at the first step it is set without being read. The gradient is multiplied
    by g_scale before all else (clipping, averages).
    """
    step = g.astype(np.float64) * g_scale
    if weight_decay:
        step += weight_decay * p
    if momentum:
        if v is None:
            raise ValueError("sgd_step: momentum needs v, an array like the parameter")
        moved = step if first else momentum * v.astype(np.float64) + (1 - dampening) * step
        v[...] = moved
        step = step + momentum * moved if nesterov else moved
    p[...] = p - lr * step


def adam_step(
    p: Array, g: Array, m: Array, v: Array, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
    decoupled: bool, step: int, g_scale: float = 1.0,
) -> None:  # fmt: skip
    """One step of Adam, in place on p, m and v; with `decoupled` weight decay that is AdamW. `step` counts from 1."""
    if step < 1:
        raise ValueError(f"adam_step: step counts from 1, and is {step}")
    gradient = g.astype(np.float64) * g_scale
    parameter = p.astype(np.float64)
    if decoupled:
        parameter *= 1 - lr * weight_decay
    elif weight_decay:
        gradient += weight_decay * parameter
    mean = beta1 * m.astype(np.float64) + (1 - beta1) * gradient
    square = beta2 * v.astype(np.float64) + (1 - beta2) * np.square(gradient)
    m[...], v[...] = mean, square
    divisor = np.sqrt(square) / np.sqrt(1 - beta2**step) + eps
    p[...] = parameter - lr / (1 - beta1**step) * mean / divisor
