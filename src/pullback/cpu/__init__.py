"""The cpu backend: kernels in Python compiled to vector instructions, run on a thread pool of our own.

kernels/ (the sources) · machine (what this CPU is) · compiler (object code, disk cache) · threads (the pool) · plan (a kernel with
its arguments) · pool, pool_tables (pooling) · conv, conv_sweep, winograd (convolution).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pullback.cpu import conv, depthwise, pool, winograd
from pullback.cpu.machine import machine
from pullback.cpu.pool_common import CHANNELS, PHASES, PLANES, ROWS, SCATTER, WHOLE, is_whole, simplified
from pullback.cpu.pool_gradient import is_flat, prefers_gather, prefers_phases
from pullback.problem import AnyProblem, Problem
from pullback.registry import register_kernel

BACKEND = "cpu"
MOST_STRIDE = 4
TOO_MANY_WINDOWS = "adding each output to its winner costs less here than asking every window about every cell"


def _not_empty(problem: AnyProblem) -> str | None:
    if 0 in problem.input_shape or 0 in problem.output_shape:
        return "there is nothing to compute in an empty array"
    return None


def _channels_accepts(problem: Problem) -> str | None:
    if problem.layout != "channels_last":
        return "its vectors run over channels, which do not lie side by side in channels_first"
    lanes = machine().vector_bytes // (8 if problem.dtype.name == "float64" else 4)
    if problem.channels_in < lanes:
        return f"its vectors run over channels, and {problem.channels_in} do not fill one of {lanes}"
    return _not_empty(problem)


def _gather_accepts(problem: Problem) -> str | None:
    refused = _channels_accepts(problem)
    if refused is None and not prefers_gather(problem):
        return TOO_MANY_WINDOWS
    return refused


def _phases_accepts(problem: Problem) -> str | None:
    window = simplified(problem).window
    if problem.layout == "channels_last" and problem.channels_in > 1 and window.stride[-1] > 1:
        return "it weaves single elements, not cells of several channels"
    if not is_flat(window):
        return "it needs as many outputs along each axis as the axis has cells per stride"
    if not prefers_phases(problem):
        return TOO_MANY_WINDOWS
    return _not_empty(problem)


def _rows_accepts(problem: Problem) -> str | None:
    if problem.layout == "channels_last" and problem.channels_in > 1:
        return "its vectors run along rows of single elements, and channels_last has channels between them"
    stride = simplified(problem).window.stride[-1]
    if stride > MOST_STRIDE:
        return f"it splits rows in registers by strides up to {MOST_STRIDE}, not {stride}"
    return _not_empty(problem)


def _whole_accepts(problem: Problem) -> str | None:
    if not is_whole(problem):
        return "it is for windows that are the whole image, with the cells of an image side by side"
    if problem.storage_order and problem.return_indices:
        return "it numbers winners row-major, not by storage_order=1"
    return _not_empty(problem)


def _in_order(problem: Any) -> str | None:
    if problem.storage_order:
        return "it reads row-major indices, not storage_order=1"
    return _not_empty(problem)


def _register(op: str, name: str, accepts: Callable[[Any], str | None], run: Callable[..., Any], *module: str) -> None:
    register_kernel(op, BACKEND, name, accepts, partial(run, *module))


_register("max_pool", "whole", _whole_accepts, pool.max_pool, WHOLE)
_register("max_pool", "channels", _channels_accepts, pool.max_pool, CHANNELS)
_register("max_pool", "rows", _rows_accepts, pool.max_pool, ROWS)
_register("max_pool", "planes", _not_empty, pool.max_pool, PLANES)
_register("max_pool_grad", "whole", _whole_accepts, pool.max_pool_grad, WHOLE)
_register("max_pool_grad", "channels", _channels_accepts, pool.max_pool_grad, CHANNELS)
_register("max_pool_grad", "rows", _rows_accepts, pool.max_pool_grad, ROWS)
_register("max_pool_grad", "planes", _not_empty, pool.max_pool_grad, PLANES)
_register("max_pool_grad_from_winners", "whole", _whole_accepts, pool.max_pool_grad_from_winners, WHOLE)
_register("max_pool_grad_from_winners", "gather", _gather_accepts, pool.max_pool_grad_from_winners, CHANNELS)
_register("max_pool_grad_from_winners", "phases", _phases_accepts, pool.max_pool_grad_from_winners, PHASES)
_register("max_pool_grad_from_winners", "scatter", _not_empty, pool.max_pool_grad_from_winners, SCATTER)
_register("max_pool_grad_from_indices", "scatter", _in_order, pool.max_pool_grad_from_indices)
_register("max_pool_jvp", "take", _not_empty, pool.max_pool_jvp)
_register("avg_pool", "whole", _whole_accepts, pool.avg_pool, WHOLE)
_register("avg_pool", "channels", _channels_accepts, pool.avg_pool, CHANNELS)
_register("avg_pool", "rows", _rows_accepts, pool.avg_pool, ROWS)
_register("avg_pool", "planes", _not_empty, pool.avg_pool, PLANES)
_register("avg_pool_grad", "whole", _whole_accepts, pool.avg_pool_grad, WHOLE)
_register("avg_pool_grad", "channels", _channels_accepts, pool.avg_pool_grad, CHANNELS)
_register("avg_pool_grad", "phases", _not_empty, pool.avg_pool_grad, PHASES)
depthwise.register()  # the special ones first: where they accept, they are faster
winograd.register()
conv.register()
