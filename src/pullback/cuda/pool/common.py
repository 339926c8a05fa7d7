"""What the poolings share: geometry and divisors as the kernels are compiled for them, and what they cannot do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from pullback.cuda.axes import MOST_KEPT, Axes
from pullback.cuda.pool import windows_kernel as kernels
from pullback.problem import Problem

WINNER_TYPES = {"uint8": torch.uint8, "uint16": torch.uint16, "uint32": torch.uint32}


def geometry(axes: Axes) -> dict[str, Any]:
    return {"K": axes.kernel, "S": axes.stride, "D": axes.dilation}


@lru_cache(MOST_KEPT)
def divisor_options(problem: Problem) -> dict[str, Any]:
    """How a mean is divided, and the number that it is divided by in the end."""
    rule, window = problem.divisor, problem.window
    assert rule is not None
    if isinstance(rule, int):
        return {"BY": kernels.BY_NUMBER.value, "NUMBER": rule}
    if all((window.axis_divisor(axis, rule) == window.kernel[axis]).all() for axis in range(window.rank)):
        return {"BY": kernels.BY_NUMBER.value, "NUMBER": window.tap_count}
    return {"BY": (kernels.BY_TAPS if rule == "valid" else kernels.BY_PADDED_TAPS).value, "NUMBER": 1}


@lru_cache(MOST_KEPT)
def some_empty(problem: Problem) -> bool:
    """Whether a window may lie wholly in the padding."""
    window = problem.window
    return any((window.tap_ranges(axis)[1] == 0).any() for axis in range(window.rank))
