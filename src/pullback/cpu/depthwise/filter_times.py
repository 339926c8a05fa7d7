"""About how long filter gradients in channels_first take, by kernel: for choosing between those that look alike.

In ns on two cores of the machine that they were measured on (574 shapes, errors of a quarter mostly): only their ratios count.
"""

from __future__ import annotations

import math

from pullback.cpu.conv.common import lanes_of
from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.common import group_channels, near
from pullback.cpu.depthwise.planes_blocks import work_of
from pullback.cpu.engine.sizes import ceil_div
from pullback.cpu.winograd import ops as winograd
from pullback.problem import Problem

KERNELS = "planes", "transposed", "direct"


def is_dense(problem: Problem) -> bool:
    """Whether it is a filter gradient without groups in channels_first."""
    return problem.op == "conv_grad_filter" and problem.layout == "channels_first" and problem.groups == 1


def why_not(problem: Problem, kernel: str) -> str | None:
    """Why another of KERNELS is quicker at a gradient without groups."""
    if problem.channels_out > tuning.MOST_DENSE:
        return f"without groups it is for at most {tuning.MOST_DENSE} channels of dy, not {problem.channels_out}"
    settled, is_near = near(problem)
    if not is_near:
        return "its taps lie too far apart"
    if problem.channels_out > tuning.PERMUTED_BESIDE_WINOGRAD and winograd.takes(problem):
        return "Winograd saves more here"
    times = dict(zip(KERNELS, (planes_time(settled), transposed_time(settled), direct_time(settled)), strict=True))
    best = min(times, key=lambda name: times[name])
    return None if best == kernel else f"{'group_' if best != 'direct' else ''}{best} takes less time at so few sums"


def planes_time(problem: Problem) -> float:
    unit, work = tuning.PLANES_FILTER_TIME, work_of(problem)
    rows = (work.unpacked + work.made) * unit.strided_row if work.strided else 0
    return unit.call + rows + work.vectors * unit.vector + work.products * unit.product + work.taps * unit.tap


def transposed_time(problem: Problem) -> float:
    window, lanes, unit = problem.window, lanes_of(problem), tuning.TRANSPOSED_FILTER_TIME
    few, many = sorted(group_channels(problem))
    cells, outputs = (problem.batch * math.prod(size) for size in (window.input_size, window.output_size))
    moved = cells * ceil_div(problem.channels_in, lanes) + outputs * ceil_div(problem.channels_out, lanes)
    vectors = ceil_div(problem.groups, max(1, lanes // many)) * ceil_div(many, lanes)
    taps = outputs * vectors * window.tap_count
    return unit.call + moved * unit.vector + taps * (few * unit.product + unit.tap) + math.prod(problem.filter_shape) * unit.sum


def direct_time(problem: Problem) -> float:
    """Without groups."""
    window, unit = problem.window, tuning.DIRECT_FILTER_TIME
    outputs, channels = problem.batch * math.prod(window.output_size), problem.channels_in
    cells = problem.batch * math.prod(window.input_size) * channels
    read = cells * unit.read if window.stride[-1] == 1 else cells / math.prod(window.stride[:-1]) * unit.strided_read
    taps = outputs * ceil_div(problem.channels_out, lanes_of(problem)) * window.tap_count
    rows = outputs / window.output_size[-1] * window.tap_count * channels
    return (
        unit.call + taps * (channels * unit.product + unit.tap) + outputs * problem.channels_out * unit.panel + read
        + rows * unit.row + math.prod(problem.filter_shape) * unit.sum
    )  # fmt: skip
