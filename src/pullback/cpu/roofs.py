"""The physical limits that benchmarks are held against, measured on this machine: copy bandwidth and multiply-add rate."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from pullback.cpu import threads
from pullback.cpu.compiler import Variant, code
from pullback.cpu.machine import machine

COPY_BLOCK = 64 << 10
REPEATS = 15
ROUNDS, CHAINS = 4096, 12  # of the multiply-add kernel: see kernels/roofs.py


def _best(run: object, repeats: int = REPEATS) -> float:
    assert callable(run)
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@cache
def copy_rate(footprint_bytes: int, threads_used: int) -> float:
    """Bytes read plus bytes written per second by a plain parallel copy that touches `footprint_bytes` in all.

    The better of ordinary and streaming stores.
    """
    size = max(64, footprint_bytes // 2)
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    compiled = code(Variant("roofs", "copy"))
    pieces, best = -(-size // COPY_BLOCK), float("inf")
    for stream in (0, 1):
        block = compiled.pack(source=source.ctypes.data, target=target.ctypes.data, block=COPY_BLOCK, size=size, stream=stream)
        with threads.threads(threads_used):
            best = min(best, _best(lambda b=block: threads.run(compiled.address, b.ctypes.data, pieces, 0)))
    return 2 * size / best


@cache
def fma_rate(threads_used: int, dtype: str = "float32") -> float:
    """Floating-point operations per second of independent multiply-adds in registers."""
    name = "float64" if dtype == "float64" else "float32"
    lanes = machine().vector_bytes // (8 if name == "float64" else 4)
    pieces = 64 * threads_used
    result = np.zeros(pieces)
    compiled = code(Variant("roofs", "multiply_add", name))
    block = compiled.pack(result=result.ctypes.data)
    with threads.threads(threads_used):
        seconds = _best(lambda: threads.run(compiled.address, block.ctypes.data, pieces, 0))
    return pieces * ROUNDS * CHAINS * lanes * 2 / seconds
