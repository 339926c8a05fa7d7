"""Arrays whose elements fill their memory without gaps, whatever the order of their axes: what passes over flat memory take.

An image of logical shape (N, C, H, W) may lie channels_last in memory; elementwise it does not matter, as long as all arrays of
a call lie alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pullback.cpu.engine.memory import new_array
from pullback.registry import MissingCode
from pullback.rules import Array

# What the kernels of training steps are compiled for.
NATIVE: frozenset[np.dtype[Any]] = frozenset({np.dtype("float32"), np.dtype("float64")})


class Order(NamedTuple):
    """How the elements lie. axes: from the outermost in memory to the innermost, those of one element first."""

    axes: tuple[int, ...]
    memory_shape: tuple[int, ...]
    back: tuple[int, ...] | None  # the transposition from memory_shape to the shape; None where they are the same


@lru_cache(maxsize=4096)
def order_in(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> Order | None:
    """How an array of this shape, strides in bytes and itemsize lies; None where there are gaps, or elements that are met twice."""
    many = sorted((axis for axis, length in enumerate(shape) if length > 1), key=lambda axis: -strides[axis])
    expected = size
    for axis in reversed(many):
        if strides[axis] != expected:
            return None
        expected *= shape[axis]
    axes = (*(axis for axis, length in enumerate(shape) if length <= 1), *many)
    back = tuple(sorted(range(len(axes)), key=lambda place: axes[place]))
    return Order(axes, tuple(shape[axis] for axis in axes), None if back == axes == tuple(range(len(axes))) else back)


def order_of(array: Array) -> Order | None:
    """How an array lies in memory; None where there are gaps, or elements that are met twice."""
    return order_in(array.shape, array.strides, array.itemsize)


def dense(array: Array) -> tuple[Array, Order]:
    """The array, or a copy without gaps in the same order of axes."""
    order = order_of(array)
    if order is None:
        array = array.copy(order="K")
        order = order_of(array)
        if order is None:  # NumPy has kept an axis of stride 0 where no order is
            array = np.ascontiguousarray(array)
            order = order_of(array)
    assert order is not None
    return array, order


def in_order(array: Array, order: Order) -> Array:
    """An array with these elements whose memory is in this order: the array itself, or a contiguous copy, as memory_shape."""
    return array if order_of(array) == order else np.ascontiguousarray(array.transpose(order.axes))


def new_in_order(order: Order, dtype: np.dtype[Any]) -> Array:
    """Uninitialised memory for a result in this order, as the logical shape."""
    memory = new_array(order.memory_shape, dtype)
    return memory if order.back is None else memory.transpose(order.back)


def check_alike(op: str, first: Array, *others: Array | None) -> None:
    """All arrays must be as the first: the kernels take every one to have its elements."""
    if first.dtype not in NATIVE:
        raise MissingCode(f"{op}: its kernels are compiled for float32 and float64, not for {first.dtype}")
    for other in others:
        if other is not None and (other.shape != first.shape or other.dtype != first.dtype):
            both = f"{first.shape} {first.dtype} and {other.shape} {other.dtype}"
            raise ValueError(f"{op}: all arrays must have the same shape and dtype, not {both}")


def check_writeable(op: str, *arrays: Array | None) -> None:
    """Kernels write to addresses, and nothing else would keep them from memory that is not to be changed."""
    for array in arrays:
        if array is not None and not array.flags.writeable:
            raise ValueError(f"{op}: an array that is to be changed is read-only; give a copy")
