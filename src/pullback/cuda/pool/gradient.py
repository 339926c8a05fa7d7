"""Gradients of pooling on a GPU: what `gradient_kernel` is launched with, and the gradient from indices."""

from __future__ import annotations

from dataclasses import replace

import torch

from pullback.cuda.axes import Axes, axes_of, phases_of
from pullback.cuda.launch import is_wide, launch_tiles, sum_type
from pullback.cuda.pool import forward
from pullback.cuda.pool import gradient_kernel as kernels
from pullback.cuda.pool.common import divisor_options, geometry
from pullback.problem import Problem

MOST_PHASES = 16  # of a tile, which are all in registers


def _launch(problem: Problem, dy: torch.Tensor, winners: torch.Tensor | None, **options: object) -> torch.Tensor:
    axes = axes_of(problem)
    dy = dy.contiguous()
    dx = dy.new_empty(problem.input_shape)
    tensors = (dy, dy if winners is None else winners.contiguous(), dx)
    numbers = (axes.channels, axes.size, axes.out, axes.low, axes.readable, axes.high)
    options |= geometry(axes) | {"MAX": winners is not None, "SUM": sum_type(dy), "WIDE": is_wide(dy, dx)}
    if axes.phase_count <= MOST_PHASES:
        bases = tuple(-(-n // s) for n, s in zip(axes.size, axes.stride, strict=True))
        launch_tiles(
            kernels.by_phases, axes.tile_grid(bases), tensors, (*numbers, bases), cells=_cells(axes),
            PHASES=phases_of(problem), **options,
        )  # fmt: skip
    else:
        launch_tiles(kernels.by_cells, axes.tile_grid(axes.size), tensors, numbers, READERS=axes.readers(), **options)
    return dx


def _cells(axes: Axes) -> int:
    """Bases of a tile: the fewer the more phases each has."""
    return 1024 if axes.phase_count == 1 else max(128, 2048 // axes.phase_count)


def from_winners(problem: Problem, dy: torch.Tensor, winners: torch.Tensor) -> torch.Tensor:
    return _launch(problem, dy, winners, BY=kernels.BY_NUMBER.value, NUMBER=1)


def from_x(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The winners are found again, in one byte each."""
    _, winners = forward.max_pool(replace(problem, op="max_pool", return_winners=True), x)
    return from_winners(problem, dy, winners)


def avg_pool(problem: Problem, dy: torch.Tensor) -> torch.Tensor:
    return _launch(problem, dy, None, **divisor_options(problem))
