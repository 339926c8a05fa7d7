"""Run as a script: every cpu pooling kernel on memory that ends where it must, so that a stray access crashes or leaves a mark.

All memory that native code sees (inputs, outputs, tables, scratch) lies between two inaccessible pages, flush against the upper
one ("above") or the lower one ("below"); the rest of its pages holds a mark that is looked at after each call.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from cpu_calls import LAYOUTS, as_tuple, assert_close, forget_plans, plan_modules, pool_arguments, shaped

import pullback as pb
from pullback import cpu
from pullback.cpu import memory as results
from pullback.cpu import threads
from pullback.cpu.machine import machine
from pullback.registry import kernels_for

PAGE, MARK, NO_ACCESS = mmap.PAGESIZE, 0xA5, 0
WINDOWS: tuple[dict[str, Any], ...] = (
    {"window": (2, 2), "stride": 2},
    {"window": (3, 3), "stride": 1, "padding": "same"},
    {"window": (3, 3), "stride": 2, "padding": 1},
    {"window": (2, 3), "stride": (1, 3), "dilation": 2, "padding": "same", "rounding": "ceil"},
    {"window": None, "stride": 2},  # the whole image
)

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


def bare_memory(side: str) -> Memory:
    """Guarded memory for a whole process in which nothing is aligned or recycled any more, which would hide a short overrun."""
    results.SMALLEST = sys.maxsize  # no result is so large
    threads.LINE = 8  # scratch begins at a multiple of this
    return Memory(side)


def sizes() -> tuple[int, ...]:
    """Around the vector width of float32 sums, which float16 shares."""
    v = machine().vector_bytes // 4
    return (1, v - 1, v, v + 1, 2 * v + 1, 4 * v - 1, 4 * v, 4 * v + 1)


def cases(dtype: Any) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Each axis in turn around the vector width, the others small; but few channels, and enough for a vector."""
    some = (2, machine().vector_bytes // 4 + 3)
    many = 8 * machine().vector_bytes // 4  # channels that some kernels take at once
    for size, axis, few, layout, options in itertools.product((*sizes(), many, many + 1), range(3), some, LAYOUTS, WINDOWS):
        if size >= many and axis != 0:
            continue
        channels, height, width = (size if place == axis else small for place, small in enumerate((few, 5, 3)))
        if axis == 0 and few != some[0] and options["window"]:
            continue
        if min(height, width) < 3 and options.get("padding") is None and options["window"]:
            continue
        rng = np.random.default_rng([size, axis])
        x = rng.integers(-4, 5, shaped(layout, 2, channels, height, width)).astype(dtype)
        yield x, {**options, "window": options["window"] or (height, width), "layout": layout}


def main(dtype: str, side: str, stores: str) -> None:
    memory = bare_memory(side)
    deciding = [module for module in plan_modules() if hasattr(module, "streams")]
    assert deciding, "nobody decides on streaming stores any more"
    for module in deciding:
        module.streams = lambda total_bytes: stores == "streaming"
    cpu.prefers_gather = cpu.prefers_phases = lambda problem: True  # what would cost more must be safe as well
    seen: dict[str, int] = {}
    for x, options in cases(dtype):
        window = options.pop("window")
        for op, arguments, keywords in pool_arguments(x, 3, window, **options).values():
            with pb.backend("reference"):
                expected = as_tuple(getattr(pb, op)(*arguments, **keywords))
            for kernel in kernels_for(op, "cpu"):
                if kernel.backend != "cpu":
                    continue
                forget_plans()  # their tables lie in guarded memory too, which is for one call
                guarded = [memory.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
                try:
                    with memory.in_use(), pb.backend("cpu"), pb.kernel(kernel.name):
                        found = as_tuple(getattr(pb, op)(*guarded, **keywords))
                except pb.KernelError:
                    memory.arrays.clear()
                    continue
                assert all(memory.holds(array) for array in found), "an output was not allocated with np.empty"
                assert_close(found, expected)
                memory.check()
                seen[f"{op}/{kernel.name}"] = seen.get(f"{op}/{kernel.name}", 0) + 1
    print(json.dumps(seen))


def prove(side: str) -> None:
    """Touch the byte next to an array: the caller expects a crash."""
    array = Memory(side).empty(10, np.float32)
    ctypes.memset(array.ctypes.data + (array.nbytes if side == "above" else -1), 0, 1)


if __name__ == "__main__":
    if sys.argv[1] == "prove":
        prove(sys.argv[2])
    else:
        main(*sys.argv[1:])
