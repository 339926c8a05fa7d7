"""Memory for the tensors of a graph: large ones come from the recycled memory of the kernels, which costs no page faults."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.registry import CPU, MissingCode, current_backend
from pullback.rules import Array

SMALLEST = 64 << 10


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """An uninitialised array in C order."""
    dtype = np.dtype(dtype)
    if dtype.itemsize * int(np.prod(shape, dtype=np.int64)) < SMALLEST:
        return np.empty(shape, dtype)
    if current_backend() != CPU:
        return np.empty(shape, dtype)
    from pullback.cpu.engine.memory import new_array

    try:
        return new_array(shape, dtype)
    except MissingCode:
        return np.empty(shape, dtype)


def memory_order(x: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes from the largest stride to the smallest, and the axes that turn this order back."""
    order = sorted(range(x.ndim), key=lambda axis: (-abs(x.strides[axis]), axis))
    return tuple(order), tuple(sorted(range(x.ndim), key=order.__getitem__))


def empty_like(x: Array) -> Array:
    """An uninitialised array of the same shape, dtype and order of axes in memory."""
    order, back = memory_order(x)
    return empty(tuple(x.shape[axis] for axis in order), x.dtype).transpose(back)
