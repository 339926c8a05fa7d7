"""Launching `gather_kernel`, for the forward op and the input gradient alike."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch

from pullback.cuda.axes import MOST_KEPT, axes_of
from pullback.cuda.depthwise import gather_kernel as kernels
from pullback.cuda.depthwise.plan import THREADS, channel_tile, plan_of
from pullback.cuda.launch import blocks, is_wide, launch, sum_type
from pullback.problem import Problem


def packed(problem: Problem, weights: torch.Tensor) -> torch.Tensor:
    """Weights as [taps, channels] in channels_last and [channels, taps] in channels_first: a copy only where they lie otherwise."""
    taps, channels = problem.window.tap_count, problem.channels_in
    shape = (taps, channels) if problem.layout == "channels_last" else (channels, taps)
    return weights.reshape(shape).contiguous()


@lru_cache(MOST_KEPT)
def reaches_beside(problem: Problem, gradient: bool) -> bool:
    """Whether some tap of some result has no cell in the source."""
    window = problem.window
    for axis in range(window.rank):
        n, o = window.readable(axis), window.output_size[axis]
        if gradient and (window.kernel[axis] > 1 or window.stride[axis] > 1 or window.pad_low[axis] or n != o):
            return True
        if window.tap_cell(axis, 0, 0) < 0 or window.tap_cell(axis, o - 1, window.kernel[axis] - 1) >= n:
            return True
    return False


def gathered(problem: Problem, source: torch.Tensor, weights: torch.Tensor, gradient: bool) -> torch.Tensor:
    axes, plan = axes_of(problem), plan_of(problem, gradient)
    source, weights = source.contiguous(), packed(problem, weights)
    made = source.new_empty(problem.input_shape if gradient else problem.output_shape)
    cells = axes.size if gradient else axes.out
    images, channels = axes.images, problem.channels_in
    geometry = {
        "K": axes.kernel, "S": axes.stride, "D": axes.dilation, "GRADIENT": gradient, "LAST": axes.last,
        "SUM": sum_type(source), "WIDE": is_wide(source, made),
    }  # fmt: skip
    if plan is None:
        rows, columns = channel_tile(channels, 4 * THREADS) if axes.last else (1, 2 * THREADS)
        count = images * prod(cells)
        programs = blocks(count, rows) * blocks(channels, columns) if axes.last else blocks(count, columns)
        launch(
            kernels.by_cells, programs, source, weights, made, count, channels, cells, axes.size, axes.out, axes.low, axes.readable,
            BR=rows, BC=columns, num_warps=4, **geometry,
        )  # fmt: skip
        return made
    bases = plan.bases(cells)
    count = images * prod(bases)
    programs = blocks(count, plan.rows) * blocks(channels, plan.columns) if axes.last else blocks(count, plan.columns)
    launch(
        kernels.gather, programs, source, weights, made, count, channels // plan.vector if axes.last else channels, bases,
        axes.size, axes.out, axes.low, axes.readable,
        BR=plan.rows, BC=plan.columns, num_warps=THREADS // 32, GUARD=reaches_beside(problem, gradient),
        **geometry, **plan.constants(),
    )  # fmt: skip
    return made
