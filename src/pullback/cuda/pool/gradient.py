"""Gradients of pooling on a GPU: what `gradient_kernel` and, for large strides and windows, `loop_kernel` are launched with."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from pullback.cuda.axes import MOST_KEPT, axes_of
from pullback.cuda.launch import Launch, launch, tiled
from pullback.cuda.places_kernel import FLAT, LAST
from pullback.cuda.pool import forward, gradient_kernel, loop_kernel
from pullback.cuda.pool.common import divisor_options, geometry
from pullback.cuda.pool.plan import patched, plan_of
from pullback.cuda.pool.windows_kernel import BY_NUMBER
from pullback.problem import Problem


def _launch(problem: Problem, maximum: bool, **options: Any) -> Launch:
    axes, plan = axes_of(problem), plan_of(problem, True, maximum)
    numbers = (axes.size, axes.out, axes.low, axes.readable, axes.high)
    options |= geometry(axes) | {"MAX": maximum}
    if plan is None:
        order = LAST if axes.last else FLAT
        return tiled(
            loop_kernel.gradient, problem, axes.tile_grid(axes.size), (axes.channels, *numbers),
            ORDER=order.value, READERS=axes.readers(), **options,
        )  # fmt: skip
    programs, first, chosen = patched(problem, plan, gradient=True)
    options |= {"CROPS": axes.readable != axes.size}
    return Launch(gradient_kernel.patches, programs, first + numbers, options | chosen)


def max_pool_launch(problem: Problem) -> Launch:
    return _launch(problem, True, BY=BY_NUMBER.value, NUMBER=1)


def avg_pool_launch(problem: Problem) -> Launch:
    return _launch(problem, False, **divisor_options(problem))


def from_winners(problem: Problem, dy: torch.Tensor, winners: torch.Tensor) -> torch.Tensor:
    dy, winners = dy.contiguous(), winners.contiguous()
    dx = dy.new_empty(problem.input_shape)
    launch(max_pool_launch, problem, dy, winners, dx)
    return dx


@lru_cache(MOST_KEPT)
def with_winners(problem: Problem) -> Problem:
    """The forward problem of a gradient or tangent that finds its winners again."""
    return replace(problem, op="max_pool", return_winners=True)


def from_x(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The winners are found again, in one byte each."""
    _, winners = forward.max_pool(with_winners(problem), x)
    return from_winners(problem, dy, winners)


def avg_pool(problem: Problem, dy: torch.Tensor) -> torch.Tensor:
    dy = dy.contiguous()
    dx = dy.new_empty(problem.input_shape)
    launch(avg_pool_launch, problem, dy, dy, dx)
    return dx
