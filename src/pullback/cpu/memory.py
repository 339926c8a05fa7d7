"""Memory for results: large arrays are aligned to a cache line and recycled when the last view of one is gone.

Fresh memory costs a page fault for every page the kernel writes first, which can take longer than the kernel. Freed blocks are
kept, up to KEPT_BYTES in all, for the next result of the same size; `release_memory` gives them back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from pullback.rules import Array

LINE = 64
SMALLEST = 64 << 10
KEPT_BYTES = 256 << 20

# Blocks by size. No lock: a signal handler's exception could leave it locked, and each step here is one step of the interpreter.
_free: dict[int, list[Array]] = {}

# Memory of a caller that results of the same shape and dtype should lie in.
_offered: ContextVar[list[Array] | None] = ContextVar("pullback_offered", default=None)


class _Lease:
    """Lends a block to an array: the array's base, so that it lives until the last view is gone."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: Array, nbytes: int) -> None:
        self._block = block
        address = -(-block.ctypes.data // LINE) * LINE
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None:  # a signal may have interrupted __init__
            _take_back(block)


def _kept() -> int:
    """Bytes kept for future results."""
    return sum(size * len(blocks) for size, blocks in list(_free.items()))


def _take_back(block: Array) -> None:
    if _kept() + block.nbytes <= KEPT_BYTES:
        _free.setdefault(block.nbytes, []).append(block)


@contextmanager
def results_in(arrays: Sequence[Array]) -> Iterator[None]:
    """Offer C-contiguous arrays for the results of the ops in the block: a saved copy where one is taken, no promise that it is."""
    token = _offered.set(list(arrays))
    try:
        yield
    finally:
        _offered.reset(token)


def new_array(shape: tuple[int, ...], dtype: Any) -> Array:
    """Uninitialised memory for a result; every kernel writes all of it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALLEST:
        return np.empty(shape, dtype)
    offered = _offered.get()
    if offered:
        for place, array in enumerate(offered):
            if array.shape == shape and array.dtype == dtype:
                return offered.pop(place)
    size = nbytes + LINE
    try:
        block = _free[size].pop()
    except (KeyError, IndexError):
        block = np.empty(size, np.uint8)
    fresh: Array = np.asarray(_Lease(block, nbytes)).view(dtype).reshape(shape)
    return fresh


def release_memory() -> int:
    """Give the memory kept for future results back to the system; how many bytes it was."""
    released = _kept()
    _free.clear()
    return released
