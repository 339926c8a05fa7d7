"""In which order a filter lies in memory: the kernels read three orders in place, whatever the layout of the problem.

TAPS_FIRST: (*taps, in, out), as channels_last has it. TAPS_LAST: (out, in, *taps), as channels_first has it.
IN_LAST: (out, *taps, in), as PyTorch keeps the weights of a model in its channels_last memory format.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from pullback.problem import Problem
from pullback.rules import Array, Layout

FilterOrder = Literal["taps_first", "taps_last", "in_last"]
TAPS_FIRST: FilterOrder = "taps_first"
TAPS_LAST: FilterOrder = "taps_last"
IN_LAST: FilterOrder = "in_last"


def own_order(layout: Layout) -> FilterOrder:
    """The order of a contiguous filter."""
    return TAPS_FIRST if layout == "channels_last" else TAPS_LAST


@cache
def memory_axes(layout: Layout, rank: int, order: FilterOrder) -> tuple[int, ...]:
    """The axes of a filter of this layout, in the order of memory."""
    if layout == "channels_last":
        taps, inner, outer = tuple(range(rank)), rank, rank + 1
    else:
        outer, inner, taps = 0, 1, tuple(range(2, rank + 2))
    if order == TAPS_FIRST:
        return (*taps, inner, outer)
    return (outer, inner, *taps) if order == TAPS_LAST else (outer, *taps, inner)


def in_known_order(problem: Problem, filter: Array) -> tuple[Array, FilterOrder]:
    """The filter and the order in which it lies in memory; a contiguous copy where it is none of those known."""
    own = own_order(problem.layout)
    if filter.flags.c_contiguous:
        return filter, own
    for order in (IN_LAST, TAPS_LAST, TAPS_FIRST):
        if filter.transpose(memory_axes(problem.layout, problem.window.rank, order)).flags.c_contiguous:
            return filter, order
    return np.ascontiguousarray(filter), own


def filter_steps(problem: Problem, order: FilterOrder) -> tuple[int, int, int, int]:
    """Elements between taps, input channels, output channels and groups of the filter."""
    taps, c = problem.window.tap_count, problem.channels_in // problem.groups
    m = problem.channels_out // problem.groups
    if order == TAPS_FIRST:
        return c * problem.channels_out, problem.channels_out, 1, m
    if order == TAPS_LAST:
        return 1, taps, c * taps, m * c * taps
    return c, 1, taps * c, m * taps * c
