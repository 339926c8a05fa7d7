"""Max and average pooling on a GPU: what `forward_kernel` and, for large windows, `loop_kernel` are launched with."""

from __future__ import annotations

from typing import Any

import torch

from pullback.cuda.axes import axes_of
from pullback.cuda.launch import Launch, launch, tiled
from pullback.cuda.places_kernel import FLAT, LAST
from pullback.cuda.pool import forward_kernel, loop_kernel
from pullback.cuda.pool import windows_kernel as windows
from pullback.cuda.pool.common import WINNER_TYPES, divisor_options, geometry, some_empty
from pullback.cuda.pool.plan import patched, plan_of
from pullback.problem import Problem


def _launch(problem: Problem, maximum: bool, patches: Any, loop: Any, **options: Any) -> Launch:
    axes, plan = axes_of(problem), plan_of(problem, False, maximum)
    numbers: tuple[Any, ...] = (axes.size, axes.out, axes.low, axes.readable)
    if not maximum:
        numbers += (axes.high,)
    options |= geometry(axes) | {"EMPTY": problem.empty, "SOME_EMPTY": some_empty(problem)}
    if plan is None:
        order = LAST if axes.last else FLAT
        return tiled(loop, problem, axes.tile_grid(axes.out), (axes.channels, *numbers), ORDER=order.value, **options)
    programs, first, chosen = patched(problem, plan, gradient=False)
    return Launch(patches, programs, first + numbers, options | chosen)


def max_pool_launch(problem: Problem) -> Launch:
    rule = problem.winner
    assert rule is not None
    kind = windows.NO_RESULT
    if problem.return_winners:
        kind = windows.WINNERS
    elif problem.return_indices:
        kind = windows.COLUMN_MAJOR if problem.storage_order else windows.INDICES
    return _launch(
        problem, True, forward_kernel.max_pool, loop_kernel.max_pool,
        TIES_FIRST=rule.ties == "first", PROPAGATE=rule.nan == "propagate", FOUND=kind.value,
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
    return _launch(problem, False, forward_kernel.avg_pool, loop_kernel.avg_pool, **divisor_options(problem))


def avg_pool(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = x.new_empty(problem.output_shape)
    launch(avg_pool_launch, problem, x, y)
    return y
