"""Depthwise convolution and its input gradient on a GPU: every result gathers what it is summed of (`gather_kernel`)."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch

from pullback.cuda.axes import MOST_KEPT, axes_of
from pullback.cuda.depthwise import gather_kernel as kernels
from pullback.cuda.depthwise.plan import THREADS, channel_tile, plan_of
from pullback.cuda.launch import Launch, blocks, is_wide, launch, sum_type
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


def _launch(problem: Problem, gradient: bool, bias: bool = False) -> Launch:
    axes, plan = axes_of(problem), plan_of(problem, gradient)
    cells = axes.size if gradient else axes.out
    images, channels = axes.images, problem.channels_in
    options = {
        "K": axes.kernel, "S": axes.stride, "D": axes.dilation, "GRADIENT": gradient, "LAST": axes.last, "BIAS": bias,
        "SUM": sum_type(problem), "WIDE": is_wide(problem),
    }  # fmt: skip
    if plan is None:
        rows, columns = channel_tile(channels, 4 * THREADS) if axes.last else (1, 2 * THREADS)
        count = images * prod(cells)
        programs = blocks(count, rows) * blocks(channels, columns) if axes.last else blocks(count, columns)
        numbers = (count, channels, cells, axes.size, axes.out, axes.low, axes.readable)
        return Launch(kernels.by_cells, programs, numbers, {**options, "BR": rows, "BC": columns, "num_warps": 4})
    bases = plan.bases(cells)
    count = images * prod(bases)
    programs = blocks(count, plan.rows) * blocks(channels, plan.columns) if axes.last else blocks(count, plan.columns)
    vectors = channels // plan.vector if axes.last else channels
    options |= {"BR": plan.rows, "BC": plan.columns, "num_warps": THREADS // 32, "GUARD": reaches_beside(problem, gradient)}
    numbers = (count, vectors, bases, axes.size, axes.out, axes.low, axes.readable)
    return Launch(kernels.gather, programs, numbers, options | plan.constants())


def forward_launch(problem: Problem) -> Launch:
    return _launch(problem, False)


def shifted_launch(problem: Problem) -> Launch:
    return _launch(problem, False, True)


def gradient_launch(problem: Problem) -> Launch:
    return _launch(problem, True)


def conv(problem: Problem, x: torch.Tensor, filter: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """bias: one number for each channel, which is added in the same pass."""
    y, weights = x.new_empty(problem.output_shape), packed(problem, filter)
    if bias is None:
        launch(forward_launch, problem, x.contiguous(), weights, weights, y)
    else:
        launch(shifted_launch, problem, x.contiguous(), weights, bias.contiguous(), y)
    return y


def conv_grad_input(problem: Problem, dy: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    dx, weights = dy.new_empty(problem.input_shape), packed(problem, filter)
    launch(gradient_launch, problem, dy.contiguous(), weights, weights, dx)
    return dx
