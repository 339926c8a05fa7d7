"""Where depthwise kernels can run, and where they pay. Imports nothing of a GPU's."""

from __future__ import annotations

from math import prod

from pullback.cuda.reasons import not_empty
from pullback.problem import Problem

MOST_ALONG_AXIS = 11
MOST_TAPS = 343
MOST_PHASES = 16


def can(problem: Problem) -> str | None:
    if problem.groups != problem.channels_in or problem.channels_in != problem.channels_out:
        return "it is for groups of one channel in and one out"
    window = problem.window
    if max(window.kernel) > MOST_ALONG_AXIS or window.tap_count > MOST_TAPS:
        return f"its windows have up to {MOST_ALONG_AXIS} taps along an axis and {MOST_TAPS} in all"
    return not_empty(problem)


def pays(problem: Problem) -> str | None:
    if problem.op == "conv_grad_input" and prod(problem.window.stride) > MOST_PHASES:
        return "strides this large leave most taps without a reader, and it looks at every tap of every cell"
    return None
