"""The cpu backend: kernels in Python compiled to vector instructions, run on a thread pool of our own.

kernels/ (the sources) · machine (what this CPU is) · compiler (object code, disk cache) · threads (the pool) · plan (a kernel with
its arguments) · pool, pool_tables (pooling).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pullback.cpu import pool
from pullback.problem import Problem
from pullback.registry import register_kernel

BACKEND = "cpu"


def _columns_accepts(problem: Problem) -> str | None:
    if 0 in problem.input_shape or 0 in problem.output_shape:
        return "there is nothing to compute in an empty array"
    return None


def _channels_accepts(problem: Problem) -> str | None:
    if problem.layout != "channels_last":
        return "its vectors run over channels, which do not lie side by side in channels_first"
    return _columns_accepts(problem)


_POOL: dict[str, Callable[..., Any]] = {
    "max_pool": pool.max_pool,
    "max_pool_grad": pool.max_pool_grad,
    "max_pool_grad_from_winners": pool.max_pool_grad_from_winners,
    "avg_pool": pool.avg_pool,
    "avg_pool_grad": pool.avg_pool_grad,
}
for _op, _run in _POOL.items():
    register_kernel(_op, BACKEND, "channels", _channels_accepts, partial(_run, pool.CHANNELS))
    register_kernel(_op, BACKEND, "columns", _columns_accepts, partial(_run, pool.COLUMNS))
