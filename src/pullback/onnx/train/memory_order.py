"""Parameters as flat memory: a filter may lie as (*k, C, M) behind its shape (M, C, *k), and optimizers need not know."""

from __future__ import annotations

import numpy as np

from pullback.rules import Array


def axes_in_memory(x: Array) -> tuple[int, ...]:
    """The axes of an array from the one with the longest stride to the one whose elements are side by side."""
    return tuple(sorted(range(x.ndim), key=lambda axis: (-abs(x.strides[axis]), axis)))


def dense_copy(x: Array) -> Array:
    """A copy without gaps whose axes lie in memory as they do in x."""
    axes = axes_in_memory(x)
    return np.array(x.transpose(axes), order="C").transpose(np.argsort(axes))


def flat(x: Array, axes: tuple[int, ...]) -> Array:
    """The elements of x in the order of these axes: a view of x where its memory is so, otherwise a copy."""
    return x.transpose(axes).reshape(-1)


def unflat(memory: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """The array of this shape whose elements lie in `memory` in the order of these axes: a view."""
    return memory.reshape([shape[axis] for axis in axes]).transpose(np.argsort(axes))
