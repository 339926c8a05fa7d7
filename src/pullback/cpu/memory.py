"""Memory for results: large arrays are aligned to a cache line and recycled when the last view of one is gone.

Fresh memory costs a page fault for every page the kernel writes first, which can take longer than the kernel. Freed blocks are
kept, up to KEPT_BYTES in all, for the next result of the same size; `pullback.release_memory` gives them back.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np

from pullback.cpu.addresses import address_of
from pullback.rules import Array

LINE = 64
SMALLEST = 64 << 10
KEPT_BYTES = 256 << 20

# Blocks by size. No lock: a signal handler's exception could leave it locked, and each step here is one step of the interpreter.
_free: dict[int, list[_Block]] = {}

# Memory of a caller that results of the same shape and dtype should lie in.
_offered: ContextVar[list[Array] | None] = ContextVar("pullback_offered", default=None)


class _Block(np.ndarray[Any, Any]):
    """Memory of ours. A type of its own, since a view of a plain array's view has the first array as its base."""


class _Lease(_Block):
    """Lends a block to an array: the array's base, so that it lives until the last view is gone."""

    def __del__(self) -> None:
        block = self.base
        if type(block) is _Block:  # and not of a view that somebody took of this one
            _take_back(block)


def _kept() -> int:
    """Bytes kept for future results."""
    return sum(size * len(blocks) for size, blocks in list(_free.items()))


def _take_back(block: _Block) -> None:
    if _kept() + block.nbytes <= KEPT_BYTES:
        _free.setdefault(block.nbytes, []).append(block)


def aligned_bytes(count: int, boundary: int = LINE) -> Array:
    """Uninitialised bytes that begin at a multiple of `boundary`."""
    memory = np.empty(count + boundary, np.uint8)
    skip = -address_of(memory) % boundary
    return memory[skip : skip + count]


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
    try:
        block = _free[nbytes].pop()
    except (KeyError, IndexError):
        block = aligned_bytes(nbytes).view(_Block)
    return np.ndarray(shape, dtype, block.view(_Lease))


def release_memory() -> int:
    """Let go of the memory kept for future results; how many bytes it was."""
    released = _kept()
    _free.clear()
    return released


def trim() -> None:
    """Make the C library return freed memory to the system; glibc keeps blocks up to 32 MiB for itself."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library, which returns it by itself
            ctypes.CDLL(None).malloc_trim(0)
