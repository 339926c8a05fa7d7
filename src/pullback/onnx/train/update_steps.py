"""One step of an optimizer over flat arrays, in place, in NumPy: a piece that fits into the cache at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pullback.rules import Array

PIECE = 16384  # elements: five arrays of them stay in a core's cache


def _pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    for first in range(0, arrays[0].size, PIECE):
        yield tuple(array[first : first + PIECE] for array in arrays)


def sgd_step(
    parameter: Array,
    gradient: Array,
    momentum_buffer: Array | None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    first: bool = False,
) -> None:
    """Stochastic gradient descent. The first step of all sets the buffer to the gradient, as PyTorch does."""
    arrays = (parameter, gradient) if momentum_buffer is None else (parameter, gradient, momentum_buffer)
    for p, g, *rest in _pieces(*arrays):
        change = g + weight_decay * p if weight_decay else g
        if rest:
            (buffer,) = rest
            if first:
                buffer[...] = change
            else:
                buffer *= momentum
                buffer += (1 - dampening) * change
            change = change + momentum * buffer if nesterov else buffer
        p -= lr * change


def adam_step(
    parameter: Array,
    gradient: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    step: int,
) -> None:
    """Adam; `decoupled`: the weights decay beside the gradient (AdamW) and not as a part of it. Steps count from 1."""
    rate = lr / (1 - beta1**step)
    root = math.sqrt(1 - beta2**step)
    for p, g, mean, square in _pieces(parameter, gradient, exp_avg, exp_avg_sq):
        if weight_decay and decoupled:
            p *= 1 - lr * weight_decay
        change = g + weight_decay * p if weight_decay and not decoupled else g
        mean += (1 - beta1) * (change - mean)
        square *= beta2
        square += (1 - beta2) * (change * change)
        p -= rate * (mean / (np.sqrt(square) / root + eps))


def sum_of_squares(x: Array) -> float:
    """Of a flat array, in float64, in an order that depends on its length alone; inf or NaN where the array holds one."""
    total = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for (piece,) in _pieces(x):
            wide = piece.astype(np.float64, copy=False)
            total += float(np.dot(wide, wide))
    return total
