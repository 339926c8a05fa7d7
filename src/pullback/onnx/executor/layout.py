"""How images lie in memory: arrays keep ONNX's shape (N, C, spatial ...), and mostly have their channels side by side."""

from __future__ import annotations

import numpy as np

from pullback.rules import Array

FEWEST_AXES = 3


def to_last(rank: int) -> tuple[int, ...]:
    """The axes that make (N, *spatial, C) of (N, C, *spatial)."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The axes that make (N, C, *spatial) of (N, *spatial, C)."""
    return (0, rank - 1, *range(1, rank - 1))


def filter_to_last(rank: int) -> tuple[int, ...]:
    """The axes that make (*k, C/groups, M) of (M, C/groups, *k)."""
    return (*range(2, rank), 1, 0)


def filter_to_first(rank: int) -> tuple[int, ...]:
    """The axes that make (M, C/groups, *k) of (*k, C/groups, M)."""
    return (rank - 1, rank - 2, *range(rank - 2))


def channels_last(x: Array) -> bool:
    """Whether an array of shape (N, C, *spatial) has its channels side by side in memory (one channel or one cell: both hold)."""
    return x.ndim >= FEWEST_AXES and x.transpose(to_last(x.ndim)).flags.c_contiguous


def as_layout(x: Array, last: bool) -> Array:
    """The same values with channels side by side, or in C order; itself where it lies so."""
    if not last:
        return np.ascontiguousarray(x)
    moved = x.transpose(to_last(x.ndim))
    if moved.flags.c_contiguous:
        return x
    from pullback.onnx.executor.memory import empty

    copy = empty(moved.shape, x.dtype)
    np.copyto(copy, moved)
    return copy.transpose(to_first(x.ndim))


def filter_as_last(w: Array) -> Array:
    """A filter of shape (M, C/groups, *k) with the memory (*k, C/groups, M) that the kernels for channels_last read."""
    return np.ascontiguousarray(w.transpose(filter_to_last(w.ndim))).transpose(filter_to_first(w.ndim))
