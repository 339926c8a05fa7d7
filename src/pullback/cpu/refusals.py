"""Why kernels of the cpu backend cannot run a problem, where several of them say the same."""

from __future__ import annotations

import math

from pullback.problem import AnyProblem, Problem
from pullback.window import span

# Tables and scratch of the plans grow with what windows span, cells or none, and with the cells of a stride.
MOST_SPANNED, FREE_SPAN = 16, 1 << 18  # times the input's cells, and whatever the input is
MOST_PHASES, FREE_PHASES = 16, 1 << 18  # times the taps of a window, and whatever the window is


def ordinary(problem: AnyProblem) -> str | None:
    """Why no kernel but the reference, or `crop`, takes a problem."""
    if 0 in problem.input_shape or 0 in problem.output_shape:  # a filter is empty only where one of these has no channels
        return "there is nothing to compute in an empty array"
    if isinstance(problem, Problem) and problem.window.reaches_crop:
        return "its windows would read cells that a negative pad crops; `crop` runs the others without these"
    return None


def in_reach(problem: Problem) -> str | None:
    """Nothing to compute, or windows that lie so far apart or beyond the input that a plan would take too much memory."""
    refused = ordinary(problem)
    if refused is not None:
        return refused
    window = problem.window
    axes = zip(window.output_size, window.kernel, window.stride, window.dilation, strict=True)
    spanned = math.prod((o - 1) * s + span(k, d) for o, k, s, d in axes)
    if spanned > MOST_SPANNED * math.prod(window.input_size) + FREE_SPAN:
        return (
            f"its windows span {spanned} places for {math.prod(window.input_size)} cells, and its plan would have room for all"
        )
    if math.prod(window.stride) > MOST_PHASES * window.tap_count + FREE_PHASES:
        return f"its plan has tables for each cell of a stride, and a stride of {window.stride} has too many"
    return None
