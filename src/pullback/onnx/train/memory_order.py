"""Parameters as flat memory: a filter may lie as (*k, C, M) behind its shape (M, C, *k), and optimizers need not know."""

from __future__ import annotations

import numpy as np

from pullback.onnx.executor.memory import memory_order
from pullback.rules import Array


def dense_copy(x: Array) -> Array:
    """A copy without gaps whose axes lie in memory as they do in x."""
    axes, back = memory_order(x)
    return np.array(x.transpose(axes), order="C").transpose(back)


def flat(x: Array, axes: tuple[int, ...]) -> Array:
    """The elements of x in the order of these axes: a view of x where its memory is so, otherwise a copy."""
    return x.transpose(axes).reshape(-1)


def unflat(memory: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """The array of this shape whose elements lie in `memory` in the order of these axes: a view."""
    return memory.reshape([shape[axis] for axis in axes]).transpose(np.argsort(axes))
