"""Max and average pooling on a GPU: what `forward_kernel` is launched with."""

from __future__ import annotations

from typing import Any

import torch

from pullback.cuda.axes import axes_of
from pullback.cuda.launch import is_wide, launch_tiles, sum_type
from pullback.cuda.pool import forward_kernel as kernels
from pullback.cuda.pool.common import WINNER_TYPES, divisor_options, geometry
from pullback.problem import Problem


def max_pool(problem: Problem, x: torch.Tensor) -> Any:
    axes, rule = axes_of(problem), problem.winner
    assert rule is not None
    x = x.contiguous()
    y = x.new_empty(problem.output_shape)
    found, kind = y, kernels.NO_RESULT
    if problem.return_winners:
        found = x.new_empty(problem.output_shape, dtype=WINNER_TYPES[problem.winner_dtype.name])
        kind = kernels.WINNERS
    elif problem.return_indices:
        found = x.new_empty(problem.output_shape, dtype=torch.int64)
        kind = kernels.COLUMN_MAJOR if problem.storage_order else kernels.INDICES
    launch_tiles(
        kernels.max_pool, axes.tile_grid(axes.out), (x, y, found), (axes.channels, axes.size, axes.out, axes.low, axes.readable),
        TIES_FIRST=rule.ties == "first", PROPAGATE=rule.nan == "propagate", EMPTY=problem.empty, FOUND=kind.value,
        SUM=sum_type(x), WIDE=is_wide(x, y), **geometry(axes),
    )  # fmt: skip
    return (y, found) if kind.value else y


def avg_pool(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    axes = axes_of(problem)
    x = x.contiguous()
    y = x.new_empty(problem.output_shape)
    launch_tiles(
        kernels.avg_pool, axes.tile_grid(axes.out), (x, y),
        (axes.channels, axes.size, axes.out, axes.low, axes.readable, axes.high),
        EMPTY=problem.empty, SUM=sum_type(x), WIDE=is_wide(x, y), **geometry(axes), **divisor_options(problem),
    )  # fmt: skip
    return y
