"""Gradients of pooling on a GPU: what `gradient_kernel` is launched with."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from pullback.cuda.axes import MOST_KEPT, Three, axes_of, phases_of
from pullback.cuda.launch import Launch, launch, tiled
from pullback.cuda.places_kernel import FLAT, LAST, LINES
from pullback.cuda.pool import forward
from pullback.cuda.pool import gradient_kernel as kernels
from pullback.cuda.pool.common import divisor_options, geometry
from pullback.cuda.pool.forward_kernel import BY_NUMBER
from pullback.problem import Problem

MOST_PHASES = 16  # of a tile, which are all in registers


def _launch(problem: Problem, **options: Any) -> Launch:
    axes = axes_of(problem)
    numbers = (axes.channels, axes.size, axes.out, axes.low, axes.readable, axes.high)
    options |= geometry(axes)
    if axes.phase_count > MOST_PHASES:
        order = LAST if axes.last else FLAT
        grid = axes.tile_grid(axes.size)
        return tiled(kernels.by_cells, problem, grid, numbers, ORDER=order.value, READERS=axes.readers(), **options)
    lines = not axes.last and axes.stride[2] > 1  # whose phases are interleaved
    bases: Three = tuple(-(-n // s) for n, s in zip(axes.size, axes.stride, strict=True))  # type: ignore[assignment]
    order = LAST if axes.last else LINES if lines else FLAT
    cells = 1024 if axes.phase_count == 1 else max(128, 2048 // axes.phase_count)  # the fewer the more phases each has
    return tiled(
        kernels.by_phases, problem, axes.tile_grid(bases, lines), (*numbers, bases), cells=cells,
        ORDER=order.value, PHASES=phases_of(problem), **options,
    )  # fmt: skip


def max_pool_launch(problem: Problem) -> Launch:
    return _launch(problem, MAX=True, BY=BY_NUMBER.value, NUMBER=1)


def avg_pool_launch(problem: Problem) -> Launch:
    return _launch(problem, MAX=False, **divisor_options(problem))


def from_winners(problem: Problem, dy: torch.Tensor, winners: torch.Tensor) -> torch.Tensor:
    dy, winners = dy.contiguous(), winners.contiguous()
    dx = dy.new_empty(problem.input_shape)
    launch(max_pool_launch, problem, dy, winners, dx)
    return dx


@lru_cache(MOST_KEPT)
def _forward(problem: Problem) -> Problem:
    return replace(problem, op="max_pool", return_winners=True)


def from_x(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The winners are found again, in one byte each."""
    _, winners = forward.max_pool(_forward(problem), x)
    return from_winners(problem, dy, winners)


def avg_pool(problem: Problem, dy: torch.Tensor) -> torch.Tensor:
    dy = dy.contiguous()
    dx = dy.new_empty(problem.input_shape)
    launch(avg_pool_launch, problem, dy, dy, dx)
    return dx
