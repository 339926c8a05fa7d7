"""Measure on this machine the costs that the choice of max-pool gradient kernels goes by, beside those in use.

    python tools/fit.py            (or: make fit; about a minute, on a quiet machine)

Each kernel is timed by its name on one thread, over windows and strides; a least-squares fit gives nanoseconds per input element.
Prints the numbers of cpu/pool/tuning.py, what was found, and how far the model is off in the worst case.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

import pullback as pb
from pullback.cpu.pool import tuning

GEOMETRIES = [(2, 2), (3, 3), (4, 4), (2, 1), (3, 1), (3, 2), (5, 2), (5, 3)]  # window, stride
SHAPES = {"channels_last": (4, 96, 96, 64), "channels_first": (4, 64, 96, 96)}


def best(call: Callable[[], object], calls: int = 7) -> float:
    """The shortest of some calls, in seconds, after one that makes the plan."""
    call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def samples(kernel: str, layout: str) -> list[tuple[bool, float, int, float]]:
    """(windows apart, outputs per element, taps, nanoseconds per element) of each geometry that a kernel can run."""
    x = np.random.default_rng(0).standard_normal(SHAPES[layout]).astype(np.float32)
    found = []
    for window, stride in GEOMETRIES:
        options = {"stride": stride, "padding": "same", "layout": layout}
        y, winners = pb.max_pool(x, window, return_winners=True, **options)
        call = partial(pb.max_pool_grad_from_winners, y, winners, x.shape, window, **options)
        try:
            with pb.kernel(kernel), pb.threads(1):
                seconds = best(call)
        except pb.KernelError:
            continue
        found.append((window <= stride, y.size / x.size, window * window, seconds / x.size * 1e9))
    return found


def fit(columns: list[list[float]], times: list[float]) -> tuple[list[float], float]:
    """Least-squares factors, and the largest relative error."""
    matrix, wanted = np.array(columns).T, np.array(times)
    factors = np.linalg.lstsq(matrix / wanted[:, None], np.ones(len(wanted)), rcond=None)[0]
    return factors.tolist(), float(np.abs(matrix @ factors / wanted - 1).max())


def show(names: list[str], factors: list[float], error: float) -> None:
    for name, factor in zip(names, factors, strict=True):
        print(f"  {name:18} in use {getattr(tuning, name):6.3f}   here {factor:6.3f}")
    print(f"  the model is off by up to {100 * error:.0f} %")


def main() -> None:
    from pullback.cpu.engine.machine import cpu_model, machine

    print(f"{cpu_model()}, vectors of {machine().vector_bytes} bytes; float32, one thread, nanoseconds")
    scatter = [sample for layout in SHAPES for sample in samples("scatter", layout)]
    print("scatter, per input element:")
    ones, apart = [1.0] * len(scatter), [outputs if is_apart else 0.0 for is_apart, outputs, _, _ in scatter]
    overlap = [0.0 if is_apart else outputs for is_apart, outputs, _, _ in scatter]
    show(["SCATTER_ELEMENT", "SCATTER_OUTPUT", "SCATTER_OVERLAP"], *fit([ones, apart, overlap], [s[3] for s in scatter]))
    phases = samples("phases", "channels_first")
    print("phases, per input element (PHASES_WRITE and PHASES_ELEMENT together under the latter):")
    ones, asked = [1.0] * len(phases), [outputs * taps for _, outputs, taps, _ in phases]
    factors, error = fit([ones, asked], [s[3] for s in phases])
    show(["PHASES_ELEMENT", "PHASES_TAP"], factors, error)
    gather = samples("gather", "channels_last")
    print("gather, per 64 channels of a cell (GATHER_CELL and GATHER_FOUR together under the latter):")
    ones, asked = [1.0] * len(gather), [outputs * taps for _, outputs, taps, _ in gather]
    factors, error = fit([ones, asked], [64 * s[3] for s in gather])
    show(["GATHER_FOUR", "GATHER_FOUR_TAP"], factors, error)


if __name__ == "__main__":
    main()
