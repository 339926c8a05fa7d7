"""The physical limits that benchmarks are held against, measured on this machine: copying, writing, multiply-adds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from pullback.cpu.engine import threads
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.kernel_records import CHAINS, ROUNDS, MultiplyAdd, Transfer
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.memory import aligned_bytes
from pullback.cpu.engine.sizes import LINE
from pullback.cpu.machine_code.find import code
from pullback.cpu.machine_code.variants import Variant
from pullback.rules import Array

COPY_BLOCK = 64 << 10
REPEATS = 15


def best(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """The shortest of some calls in seconds, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _runner(
    kernel: str, size: int, arrays: dict[str, Array], stream: int, block: int = COPY_BLOCK, rounds: int = 1
) -> Callable[[], None]:
    """A kernel over `size` bytes as a function to call."""
    compiled, pieces = code(Variant("engine.roofs", kernel)), -(-size // block)
    addresses = {name: address_of(array) for name, array in arrays.items()}
    words = Transfer.pack({"block": block, "size": size, "stream": stream, "rounds": rounds, **addresses})
    # The default argument keeps the arrays alive.
    return lambda keep=arrays: threads.run(compiled.address, address_of(words), pieces, 0)  # type: ignore[misc]


def _quicker(kernel: str, size: int, arrays: dict[str, Array]) -> Callable[[], None]:
    """The same with ordinary or streaming stores, whichever is quicker here."""
    return min((_runner(kernel, size, arrays, stream) for stream in (0, 1)), key=best)


def _memory(size: int) -> Array:
    """Memory that has been written to, so that all its pages are there."""
    memory = aligned_bytes(size)
    memory.fill(1)
    return memory


def copier(footprint_bytes: int) -> Callable[[], None]:
    """A plain parallel copy that touches `footprint_bytes` in all, half of them read and half written."""
    size = max(LINE, footprint_bytes // 2)
    return _quicker("copy", size, {"source": _memory(size), "target": _memory(size)})


def copy_rate(footprint_bytes: int, least_seconds: float = 0.0005) -> float:
    """Bytes read and written per second by one core that copies the same memory again and again."""
    size = footprint_bytes // 2
    arrays, rounds = {"source": _memory(size), "target": _memory(size)}, 1
    with threads.threads(1):
        while (seconds := best(_runner("copy", size, arrays, 0, size, rounds), 3)) < least_seconds:
            rounds *= 4
    return 2 * size * rounds / seconds


def job_seconds(threads_used: int, pause: float, repeats: int) -> float:
    """Median seconds of a job of nothing, with so long a pause before each: workers spin meanwhile, or have gone to sleep."""
    run = _runner("fill", threads_used * LINE, {"source": _memory(LINE), "target": _memory(threads_used * LINE)}, 0, LINE)
    times = []
    with threads.threads(threads_used):
        run()
        for _ in range(repeats):
            time.sleep(pause)
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def filler(size: int) -> Callable[[], None]:
    """Parallel writing of `size` bytes and nothing else."""
    size = max(LINE, size // LINE * LINE)
    return _quicker("fill", size, {"source": _memory(LINE), "target": _memory(size)})


def multiply_add_rate(threads_used: int, dtype: str = "float32") -> float:
    """Floating-point operations per second of independent multiply-adds in registers."""
    name = "float64" if dtype == "float64" else "float32"
    lanes = machine().vector_bytes // (8 if name == "float64" else 4)
    pieces = 64 * threads_used
    result = np.zeros(pieces)
    compiled = code(Variant("engine.roofs", "multiply_add", name))
    block = MultiplyAdd.pack({"result": address_of(result)})
    with threads.threads(threads_used):
        seconds = best(lambda: threads.run(compiled.address, address_of(block), pieces, 0))
    return pieces * ROUNDS * CHAINS * lanes * 2 / seconds


fma_rate = cache(multiply_add_rate)  # measured once, as the limit of many rows
