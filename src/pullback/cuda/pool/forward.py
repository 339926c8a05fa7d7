"""Max and average pooling on a GPU: what `forward_kernel` is launched with."""

from __future__ import annotations

from typing import Any

import torch

from pullback.cuda.axes import axes_of
from pullback.cuda.launch import Launch, launch, tiled
from pullback.cuda.places_kernel import FLAT, LAST
from pullback.cuda.pool import forward_kernel as kernels
from pullback.cuda.pool.common import WINNER_TYPES, divisor_options, geometry
from pullback.problem import Problem


def max_pool_launch(problem: Problem) -> Launch:
    axes, rule = axes_of(problem), problem.winner
    assert rule is not None
    kind = kernels.NO_RESULT
    if problem.return_winners:
        kind = kernels.WINNERS
    elif problem.return_indices:
        kind = kernels.COLUMN_MAJOR if problem.storage_order else kernels.INDICES
    return tiled(
        kernels.max_pool, problem, axes.tile_grid(axes.out), (axes.channels, axes.size, axes.out, axes.low, axes.readable),
        ORDER=(LAST if axes.last else FLAT).value, TIES_FIRST=rule.ties == "first", PROPAGATE=rule.nan == "propagate",
        EMPTY=problem.empty, FOUND=kind.value, **geometry(axes),
    )  # fmt: skip


def max_pool(problem: Problem, x: torch.Tensor) -> Any:
    x = x.contiguous()
    y = found = x.new_empty(problem.output_shape)
    if problem.return_winners or problem.return_indices:
        dtype = WINNER_TYPES[problem.winner_dtype.name] if problem.return_winners else torch.int64
        found = x.new_empty(problem.output_shape, dtype=dtype)
    launch(max_pool_launch, problem, x, y, found)
    return y if found is y else (y, found)


def avg_pool_launch(problem: Problem) -> Launch:
    axes = axes_of(problem)
    return tiled(
        kernels.avg_pool, problem, axes.tile_grid(axes.out),
        (axes.channels, axes.size, axes.out, axes.low, axes.readable, axes.high),
        ORDER=(LAST if axes.last else FLAT).value, EMPTY=problem.empty, **geometry(axes), **divisor_options(problem),
    )  # fmt: skip


def avg_pool(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = x.new_empty(problem.output_shape)
    launch(avg_pool_launch, problem, x, y)
    return y
