"""Memory for results: large arrays are aligned to a cache line and recycled when the last view of one is gone.

Fresh memory costs a page fault for every page the kernel writes first, which can take longer than the kernel. Freed blocks are
kept, up to KEPT_BYTES in all, for the next result of the same size; `release_memory` gives them back.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any

import numpy as np

from pullback.rules import Array

LINE = 64
SMALLEST = 64 << 10
KEPT_BYTES = 256 << 20

_free: dict[int, list[Array]] = {}
_kept = 0
_lock = threading.Lock()


def _forget_lock() -> None:
    global _lock
    _lock = threading.Lock()  # a fork may have copied it locked


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


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


def _take_back(block: Array) -> None:
    global _kept
    # A finaliser may interrupt the holder of the lock in the same thread: then the block is simply freed.
    if not _lock.acquire(blocking=False):
        return
    try:
        if _kept + block.nbytes <= KEPT_BYTES:
            _kept += block.nbytes
            _free.setdefault(block.nbytes, []).append(block)
    finally:
        _lock.release()


def new_array(shape: tuple[int, ...], dtype: Any) -> Array:
    """Uninitialised memory for a result; every kernel writes all of it."""
    global _kept
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALLEST:
        return np.empty(shape, dtype)
    size, block = nbytes + LINE, None
    with _lock:
        blocks = _free.get(size)
        if blocks:
            block = blocks.pop()
            _kept -= size
    if block is None:
        block = np.empty(size, np.uint8)
    array: Array = np.asarray(_Lease(block, nbytes)).view(dtype).reshape(shape)
    return array


def release_memory() -> int:
    """Give the memory kept for future results back to the system; how many bytes it was."""
    global _kept
    with _lock:
        released, _kept = _kept, 0
        _free.clear()
    return released
