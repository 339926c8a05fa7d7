"""A kernel plug-in: the mean of windows that are the whole input, tried before every other kernel of both backends.

And a convolution with one tap, which wants to stand late in the list, before a kernel of the cpu backend.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback


def accepts(problem: Any) -> str | None:
    window = problem.window
    if window.kernel != window.input_size or window.output_size != (1,) * window.rank:
        return f"window {window.kernel} is not the whole input {window.input_size}"
    return None if not any(window.pad_low) else "padding"


def run(problem: Any, x: np.ndarray) -> np.ndarray:
    axes = tuple(range(1, x.ndim - 1)) if problem.layout == "channels_last" else tuple(range(2, x.ndim))
    return x.mean(axis=axes, keepdims=True, dtype=np.float64).astype(problem.dtype)


def accepts_one_tap(problem: Any) -> str | None:
    window = problem.window
    if window.tap_count != 1 or window.output_size != window.input_size or problem.groups != 1:
        return "more than one tap, or groups, or steps"
    return None if problem.layout == "channels_last" else "channels_first"


def run_one_tap(problem: Any, x: np.ndarray, filter: np.ndarray) -> np.ndarray:
    return (x @ filter.reshape(filter.shape[-2:])).astype(problem.dtype)


def register() -> None:
    for backend, first in (("reference", "taps"), ("cpu", "whole")):
        pullback.register_kernel("avg_pool", backend, "whole_mean", accepts, run, before=first)
    pullback.register_kernel("conv", "cpu", "one_tap", accepts_one_tap, run_one_tap, before="direct")
