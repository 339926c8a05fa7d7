"""Where depthwise kernels can run, and where they pay. Imports nothing of a GPU's."""

from __future__ import annotations

from math import prod

from pullback.cuda.reasons import not_empty
from pullback.problem import Problem

MOST_ALONG_AXIS = 11
MOST_TAPS = 343
MOST_PHASES = 16
FEW_TAPS, SOME_TAPS = 9, 25
LARGE = 1 << 25  # elements of x of a filter gradient that is bound by memory


def can(problem: Problem) -> str | None:
    if problem.groups != problem.channels_in or problem.channels_in != problem.channels_out:
        return "it is for groups of one channel in and one out"
    window = problem.window
    if max(window.kernel) > MOST_ALONG_AXIS or window.tap_count > MOST_TAPS:
        return f"its windows have up to {MOST_ALONG_AXIS} taps along an axis and {MOST_TAPS} in all"
    return not_empty(problem)


def pays(problem: Problem) -> str | None:
    """Measured on an H200 against cuDNN 9 (PyTorch 2.11), which has kernels of its own for 2-D in channels_last alone."""
    window, op = problem.window, problem.op
    if op == "conv_grad_input" and prod(window.stride) > MOST_PHASES:
        return "strides this large leave most taps without a reader, and it looks at every tap of every cell"
    if problem.layout == "channels_first" or window.rank != 2 or op == "conv_grad_input":
        return None
    half, strided = problem.dtype.itemsize == 2, max(window.stride) > 1
    if op == "conv":
        if window.tap_count > FEW_TAPS or (half and strided):
            return None
        return "windows this small are as fast in cuDNN"
    if window.tap_count > SOME_TAPS and problem.dtype.itemsize >= 4:
        return None
    if window.tap_count <= FEW_TAPS and half and prod(problem.input_shape) >= LARGE:
        return None
    return "this filter gradient is as fast in cuDNN, or faster"
