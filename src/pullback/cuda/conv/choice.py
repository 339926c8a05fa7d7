"""Where the kernels of grouped convolutions and of few input channels can run, and where they pay. Imports nothing of a GPU's."""

from __future__ import annotations

from math import prod

from pullback.cuda.axes import axes_of
from pullback.cuda.conv import plan
from pullback.cuda.reasons import not_empty
from pullback.problem import Problem

MOST_IN_GROUP = 32
MOST_TAPS = 64  # unrolled in the kernels
MOST_FEW_TAPS = 121
MOST_FEW_LOADS = 64
MOST_PAYING_LOADS = 25
FEWEST_TAPS, FEW_TAPS = 9, 16
DOUBLE = "tensor cores have no fast float64: it is for float32, float16 and bfloat16"


def _group(problem: Problem) -> tuple[int, int]:
    return problem.channels_in // problem.groups, problem.channels_out // problem.groups


def can_grouped(problem: Problem) -> str | None:
    if problem.groups == 1:
        return "it lays groups side by side, and there is only one"
    if max(_group(problem)) > MOST_IN_GROUP:
        return f"it is for up to {MOST_IN_GROUP} channels in a group"
    if problem.window.tap_count > MOST_TAPS:
        return f"it is for windows of up to {MOST_TAPS} taps"
    if problem.dtype.name == "float64":
        return DOUBLE
    return not_empty(problem)


def grouped_pays(problem: Problem) -> str | None:
    """Measured on an H200 against cuDNN 9 (PyTorch 2.11), by groups of 4, 8 and 16 channels, windows of 3x3, strides 1 and 2."""
    if max(_group(problem)) == 1:
        return "where kernels for groups of one channel do not pay, cuDNN's are faster than tensor cores"
    if max(_group(problem)) > MOST_IN_GROUP // 2:
        return "groups of more than 16 channels are cuDNN's"
    if problem.window.tap_count > 32:
        return "windows of more than 32 taps are cuDNN's"
    half, first = problem.dtype.itemsize == 2, problem.layout == "channels_first"
    strided = max(problem.window.stride) > 1
    wins = {
        "conv": first,
        "conv_grad_input": (strided or half) if first else (strided and not half),
        "conv_grad_filter": not half or (first and max(_group(problem)) <= 4),
    }
    return None if wins[problem.op] else "cuDNN's kernels for such groups are as fast, or faster"


def can_few_channels(problem: Problem) -> str | None:
    if problem.groups != 1 or problem.channels_in > 4:
        return "it is for up to 4 input channels and one group"
    if problem.window.tap_count > MOST_FEW_TAPS:
        return f"it is for windows of up to {MOST_FEW_TAPS} taps"
    if problem.dtype.name == "float64":
        return DOUBLE
    empty = not_empty(problem)
    if empty is not None or problem.op != "conv_grad_input":
        return empty
    if prod(plan.inner_box(problem)) * problem.channels_in > plan.MOST_COLUMNS:
        return f"the cells of a stride have more than {plan.MOST_COLUMNS} channels together"
    if len(plan.few(problem, 1).loads) > MOST_FEW_LOADS:
        return f"more than {MOST_FEW_LOADS} outputs read the cells of a stride"
    return None


def few_channels_pay(problem: Problem) -> str | None:
    """Measured likewise, by windows of 3x3 and 7x7 with stride 2, of 4x4 with stride 4, over images of 3 channels."""
    half, first = problem.dtype.itemsize == 2, problem.layout == "channels_first"
    taps = problem.window.tap_count
    if problem.op == "conv_grad_filter":
        most = (taps if half else FEWEST_TAPS) if first else FEW_TAPS
        if max(axes_of(problem).kernel) < 3 or taps > most:
            return "cuDNN is as fast at this filter gradient, or faster"
        return None
    if len(plan.few(problem, 1).loads) > MOST_PAYING_LOADS:
        return f"more than {MOST_PAYING_LOADS} outputs read the cells of a stride: its code would take long to compile"
    if taps > FEW_TAPS and first and not half:
        return "cuDNN is as fast at large windows in channels_first"
    return None
