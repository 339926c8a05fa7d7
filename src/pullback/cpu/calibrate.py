"""Measure the figures of a Profile on this machine, in about two seconds: roofs of the engine, and kernels by their names.

Every figure of a kernel comes from one call of it on a fixed small problem, so that the same procedure gives a machine's figure and
the built-in one; what the call spends beside the work in question cancels between them for the most part.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback.cpu.conv.transpose import transposed
from pullback.cpu.engine import roofs
from pullback.cpu.engine.machine import cpu_model, machine
from pullback.cpu.engine.profile import FIGURES, SECONDS, Profile
from pullback.cpu.machine_code.levels import level
from pullback.settings import cores, threads

MEMORY_BYTES = 256 << 20  # of a copy in memory, at most
JOBS, WAKES = 400, 24
ASLEEP_SECONDS = 0.002  # workers have stopped spinning by then
REPEATS = 15
ROUNDS = 3  # of all steps, of which the best rates count: what disturbs one is over at the next
CONV, POOL = (4, 56, 56, 16), (2, 64, 64, 64)  # channels last
Figures = dict[str, float]
Tick = Callable[[str], None]


def _array(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _seconds(kernel: str | None, run: Callable[[], object]) -> float:
    """The shortest of some calls on one thread, by the kernel of that name."""
    with threads(1):
        if kernel is None:
            return roofs.best(run, REPEATS)
        with pb.kernel(kernel):
            return roofs.best(run, REPEATS)


def _multiply_adds(found: Figures) -> None:
    found["fma"], found["fma_all"] = roofs.multiply_add_rate(1), roofs.multiply_add_rate(cores())


def _caches(found: Figures) -> None:
    here = machine()
    found["l1"], found["l2"] = roofs.copy_rate(here.l1_bytes // 2), roofs.copy_rate(here.l2_bytes // 2)
    found["l3"] = roofs.copy_rate(min(here.l3_bytes // 2, 8 * here.l2_bytes))  # a core may reach only a part of it


def _memory(found: Figures) -> None:
    size = min(MEMORY_BYTES, 4 * machine().l3_bytes)
    found["memory"] = roofs.copy_rate(size)
    with threads(cores()):
        found["memory_all"] = size / roofs.best(roofs.copier(size), 3)


def _transpose(found: Figures) -> None:
    side = 16 * (math.isqrt(machine().l2_bytes // 16) // 16)  # it and its copy fill half the second-level cache
    matrix = _array((side, side))
    found["transpose"] = matrix.size / _seconds(None, lambda: transposed(matrix))


def _transform(found: Figures) -> None:
    """What Winograd takes beyond its products at their roof; few channels, so that these are the smaller part."""
    n, h, w, c = CONV
    x, f = _array(CONV), _array((3, 3, c, c))
    points = n * (h // 4) * (w // 4) * 36
    seconds = _seconds("winograd", lambda: pb.conv(x, f, padding=1)) - points * 2 * c * c / found["fma"]
    found["transform"] = points * 2 * c / max(seconds, 1e-6)


def _winners(found: Figures) -> None:
    """Max-pool gradients from winners, 3x3 windows at stride 2, by the three kernels between which a cost model chooses."""
    n, h, w, c = POOL
    for kernel, layout, shape in (
        ("scatter", "channels_last", POOL),
        ("gather", "channels_last", POOL),
        ("phases", "channels_first", (n, c, h, w)),
    ):
        options: dict[str, Any] = {"stride": 2, "padding": 1, "layout": layout}
        y, winners = pb.max_pool(_array(shape), 3, return_winners=True, **options)

        def run(y: Any = y, winners: Any = winners, shape: Any = shape, options: Any = options) -> object:
            return pb.max_pool_grad_from_winners(y, winners, shape, 3, **options)

        found[kernel] = math.prod(shape) / _seconds(kernel, run)


def _dispatch(found: Figures) -> None:
    """A job of nothing, on two threads and on all, spinning and asleep, beyond what it takes alone."""
    least, most = 1e-7, cores()
    alone, two = roofs.job_seconds(1, 0.0, JOBS), roofs.job_seconds(2, 0.0, JOBS)
    found["dispatch"] = max(least, two - alone)
    every = roofs.job_seconds(most, 0.0, JOBS) - two if most > 2 else found["dispatch"]
    found["dispatch_thread"] = max(least / 10, every / max(1, most - 2))
    rested = roofs.job_seconds(1, ASLEEP_SECONDS, WAKES)
    found["wake"] = max(least, roofs.job_seconds(2, ASLEEP_SECONDS, WAKES) - rested - found["dispatch"])


STEPS: dict[str, Callable[[Figures], None]] = {
    "multiply-adds": _multiply_adds,
    "caches": _caches,
    "memory": _memory,
    "transpose": _transpose,
    "Winograd's transforms": _transform,
    "pooling": _winners,
    "handing out work": _dispatch,
}


def measure(tick: Tick = lambda label: None) -> Profile:
    """All figures of this machine; `tick` gets a label when a step is done. Nothing is kept."""
    rounds: list[Figures] = []
    with pb.backend("cpu"):
        for _ in range(ROUNDS):
            rounds.append({})
            for label, step in STEPS.items():
                step(rounds[-1])
                tick(label)
    found = {name: (statistics.median if name in SECONDS else max)([figures[name] for figures in rounds]) for name in FIGURES}
    return Profile("measured now", cpu_model(), level().name, os.cpu_count() or 1, **found)
