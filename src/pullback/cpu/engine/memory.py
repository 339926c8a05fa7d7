"""Memory for results: large arrays are aligned to a cache line and recycled when the last view of one is gone.

Fresh memory costs a page fault for every page the kernel writes first, which can take longer than the kernel. Freed blocks are
kept, up to KEPT_BYTES in all, for the next result of the same size; `pullback.release_memory` gives them back.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.recycling import KEPT, Shelf, shelf
from pullback.cpu.engine.sizes import LINE
from pullback.cpu.machine_code import dry_run
from pullback.rules import Array
from pullback.settings import during

SMALLEST = 64 << 10
KEPT_BYTES = 256 << 20

# Memory of a caller that results of the same shape and dtype should lie in.
_offered: ContextVar[list[Array] | None] = ContextVar("pullback_offered", default=None)


def _shelf() -> Shelf | None:
    return shelf(KEPT_BYTES, SMALLEST)


def _used_shelf() -> Shelf | None:
    """None too where no large result has been made yet."""
    return _shelf() if shelf.cache_info().currsize else None


def kept_bytes() -> int:
    """Bytes kept for future results."""
    blocks = _used_shelf()
    return 0 if blocks is None else int(blocks.words[KEPT])


def aligned_bytes(count: int, boundary: int = LINE) -> Array:
    """Uninitialised bytes that begin at a multiple of `boundary`."""
    memory = np.empty(count + boundary, np.uint8)
    skip = -address_of(memory) % boundary
    return memory[skip : skip + count]


def results_in(arrays: Sequence[Array]) -> AbstractContextManager[None]:
    """Offer C-contiguous arrays for the results of the ops in the block: a saved copy where one is taken, no promise that it is."""
    return during(_offered, list(arrays))


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Uninitialised memory for a result; every kernel writes all of it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if dry_run.current is not None:
        return np.full(shape, dry_run.current.result if dtype.kind not in "iu" else 0, dtype)
    if nbytes < SMALLEST:
        return np.empty(shape, dtype)
    offered = _offered.get()
    if offered:
        for place, array in enumerate(offered):
            if array.shape == shape and array.dtype == dtype:
                return offered.pop(place)
    blocks = _shelf()
    if blocks is None:
        return np.ndarray(shape, dtype, aligned_bytes(nbytes))
    return blocks.new_array(shape, dtype)


_work: list[Array] = []  # that no call uses: as many as have been used at once


def take_work(count: int) -> Array:
    """Uninitialised bytes, from a cache line on, for what one job of a call leaves to the next: packed filters, partial sums.

    Calls of all sizes take the same memory, one after the other. Who is interrupted before `put_work_back` has let go of it.
    """
    if count < SMALLEST:
        return aligned_bytes(count)
    try:
        work = _work.pop()
    except IndexError:
        return aligned_bytes(count)
    return work if work.size >= count else aligned_bytes(count)


def put_work_back(work: Array) -> None:
    if work.size >= SMALLEST:
        _work.append(work)


def release_memory() -> int:
    """Let go of the memory kept for future results and as working memory of calls; how many bytes it was."""
    global _work
    blocks = _used_shelf()
    work, _work = _work, []
    return sum(array.size for array in work) + (0 if blocks is None else blocks.clear())


def trim() -> None:
    """Make the C library return freed memory to the system; glibc keeps blocks up to 32 MiB for itself."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library, which returns it by itself
            ctypes.CDLL(None).malloc_trim(0)
