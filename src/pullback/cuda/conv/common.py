"""What the launches of this folder share: precision, bundles of groups, strides of filters, results for filters."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from pullback import settings
from pullback.cuda.axes import MOST_KEPT, Three
from pullback.cuda.launch import INTERPRETED, power_of_two
from pullback.problem import Problem

LEAST_SIDE = 16  # of a matrix on the tensor cores


class Bundle(NamedTuple):
    """Groups side by side whose channels fill the sides of a matrix: `a` source and `b` result channels a group."""

    groups: int
    a: int
    b: int
    rows: int
    columns: int
    bundles: int
    full: bool  # no row of the matrix is left empty, and no bundle


@lru_cache(MOST_KEPT)
def bundle_of(problem: Problem, forward: bool) -> Bundle:
    a, b = problem.channels_in // problem.groups, problem.channels_out // problem.groups
    if not forward:
        a, b = b, a
    groups = max(1, LEAST_SIDE // max(a, b))
    groups = min(groups, power_of_two(problem.groups))
    rows, columns = (max(LEAST_SIDE, power_of_two(groups * side)) for side in (a, b))
    count = -(-problem.groups // groups)
    return Bundle(groups, a, b, rows, columns, count, groups * a == rows and problem.groups % groups == 0)


def precision(problem: Problem) -> str:
    """How the products of its numbers are made: of float32 as three products of TF32, which err about as plain ones do."""
    if INTERPRETED:
        return "upcast"
    if problem.dtype.name == "float32" and settings.current_precision() != "exact":
        return "tf32x3"
    return "ieee"


def filter_strides(problem: Problem, filter: torch.Tensor) -> tuple[int, ...]:
    """Strides of (depth, height, width, input channel, output channel)."""
    strides = filter.stride()
    rank = problem.window.rank
    if problem.layout == "channels_last":
        taps, channels = strides[:rank], strides[rank:]
    else:
        taps, channels = strides[2:], (strides[1], strides[0])
    return (*(0,) * (3 - rank), *taps, *channels)


def one_tap_stride(strides: tuple[int, ...], kernel: Three) -> int | None:
    """The step from a tap to the next where all taps lie evenly, in their order."""
    step: int | None = None
    for stride, k, after in zip(reversed(strides[:3]), reversed(kernel), (1, kernel[2], kernel[1] * kernel[2]), strict=True):
        if k > 1:
            if step is None:
                step, rest = divmod(stride, after)
                if rest:
                    return None
            elif stride != step * after:
                return None
    return step or 0


def new_filter(problem: Problem, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(memory of (C_out, C_in / groups, *k), the same in the problem's filter layout)."""
    inner = problem.channels_in // problem.groups
    memory = like.new_empty((problem.channels_out, inner, *problem.window.kernel))
    if problem.layout == "channels_first":
        return memory, memory
    return memory, memory.permute(*range(2, memory.dim()), 1, 0)
