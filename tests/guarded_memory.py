"""Arrays between two inaccessible pages, where a stray access crashes or leaves a mark: for the guarded scripts and the fuzzer."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from pullback.cpu.engine import memory as results
from pullback.cpu.engine import threads

PAGE, MARK, NO_ACCESS = mmap.PAGESIZE, 0xA5, 0

_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Memory:
    """Arrays between inaccessible pages, and the marks around them."""

    def __init__(self, side: str) -> None:
        self.side = side
        self.arrays: list[tuple[np.ndarray, int, int]] = []

    def empty(self, shape: Any, dtype: Any = np.float64) -> np.ndarray:
        dtype = np.dtype(dtype)
        count = int(np.prod(shape)) * dtype.itemsize
        pages = max(1, -(-count // PAGE))
        area = mmap.mmap(-1, (pages + 2) * PAGE)
        whole = np.frombuffer(area, np.uint8)
        whole[:] = MARK
        for guard in (0, pages + 1):
            if _protect(whole.ctypes.data + guard * PAGE, PAGE, NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        inner = whole[PAGE : (pages + 1) * PAGE]
        start = pages * PAGE - count if self.side == "above" else 0
        self.arrays.append((inner, start, count))
        return inner[start : start + count].view(dtype).reshape(shape)

    def copy(self, array: Any) -> np.ndarray:
        source = np.asarray(array)
        kept = self.empty(source.shape, source.dtype)
        kept[...] = source
        return kept

    def holds(self, array: np.ndarray) -> bool:
        return any(inner.ctypes.data <= array.ctypes.data < inner.ctypes.data + inner.size for inner, _, _ in self.arrays)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, what the library allocates lies here too, scratch included."""
        threads.release_scratch()
        real = np.empty, np.ascontiguousarray
        np.empty, np.ascontiguousarray = self.empty, self.copy
        try:
            yield
        finally:
            np.empty, np.ascontiguousarray = real

    def check(self) -> None:
        for inner, start, count in self.arrays:
            assert (inner[:start] == MARK).all(), "a byte before an array was written"
            assert (inner[start + count :] == MARK).all(), "a byte after an array was written"
        self.arrays.clear()


def _settings() -> Iterator[tuple[Any, str, int]]:
    """What must be set so that nothing is aligned or recycled any more, which would hide a short overrun."""
    yield threads, "LINE", 8  # scratch begins at a multiple of this
    for name, module in list(sys.modules.items()):
        if name.startswith("pullback.cpu") and getattr(module, "SMALLEST", None) == results.SMALLEST:
            yield module, "SMALLEST", sys.maxsize  # no result is so large


def bare_memory(side: str) -> Memory:
    """Guarded memory for a whole process."""
    for module, name, value in list(_settings()):
        setattr(module, name, value)
    return Memory(side)


@contextmanager
def bare_block(side: str) -> Iterator[Memory]:
    """Guarded memory for a block, in which the library's allocations lie there too. Plans made in it must be forgotten after it."""
    with ExitStack() as block:
        for module, name, value in list(_settings()):
            block.enter_context(mock.patch.object(module, name, value))
        memory = Memory(side)
        with memory.in_use():
            yield memory
    threads.release_scratch()
