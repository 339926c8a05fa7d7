"""The cpu backend: kernels in Python compiled to vector instructions, run on a thread pool of our own.

kernels/ (the sources) · machine (what this CPU is) · compiler (object code), kept_code (on disk) · threads (the pool) · memory,
recycling (results) · plan, plan_cache (a kernel with its arguments) · pool, pool_tables (pooling) · conv, conv_sweep, winograd
(convolution).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from pullback.cpu import crop
from pullback.cpu.conv import ops as conv
from pullback.cpu.depthwise import ops as depthwise
from pullback.cpu.engine.machine import machine
from pullback.cpu.pool.common import CHANNELS, PHASES, PLANES, ROWS, SCATTER, WHOLE, is_whole, simplified
from pullback.cpu.pool.forward import least_unpacked_bytes
from pullback.cpu.pool.gradient import is_flat, prefers_gather, prefers_phases
from pullback.cpu.pool import ops as pool
from pullback.cpu.refusals import ordinary
from pullback.cpu.winograd import ops as winograd
from pullback.problem import Problem
from pullback.registry import CPU, Accepts, add_kernel

MOST_STRIDE = 4
MOST_UNPACKED = 64 << 20  # bytes of scratch, or twice the input
TOO_MANY_WINDOWS = "adding each output to its winner costs less here than asking every window about every cell"


def _channels_can(problem: Problem) -> str | None:
    if problem.layout != "channels_last":
        return "its vectors run over channels, which do not lie side by side in channels_first"
    return ordinary(problem)


def _channels_pays(problem: Problem) -> str | None:
    lanes = machine().vector_bytes // (8 if problem.dtype.name == "float64" else 4)
    if problem.channels_in < lanes:
        return f"its vectors run over channels, and {problem.channels_in} do not fill one of {lanes}"
    return None


def _gather_pays(problem: Problem) -> str | None:
    refused = _channels_pays(problem)
    return TOO_MANY_WINDOWS if refused is None and not prefers_gather(problem) else refused


def _unpacks(problem: Problem) -> str | None:
    if (refused := ordinary(problem)) is not None:
        return refused
    most = max(MOST_UNPACKED, 2 * math.prod(problem.input_shape) * problem.dtype.itemsize)
    if least_unpacked_bytes(problem) > most:
        return "it unpacks all that windows reach over, and here that is padding for the most part"
    return None


def _phases_exist(problem: Problem) -> str | None:
    if (refused := _unpacks(problem)) is not None:
        return refused
    window = simplified(problem).window
    if any(s > n for s, n in zip(window.stride, window.input_size, strict=True)):
        return "its tables have an entry for every phase of a stride, and a stride is longer than its axis"
    return None


def _phases_can(problem: Problem) -> str | None:
    window = simplified(problem).window
    if (refused := _phases_exist(problem)) is not None:
        return refused
    if problem.layout == "channels_last" and problem.channels_in > 1 and window.stride[-1] > 1:
        return "it weaves single elements, not cells of several channels"
    if problem.winner_dtype.itemsize > 1:
        return "it looks for false winners among the codes of a byte, and this window has more taps"
    if math.prod(problem.output_shape[1:]) >= 1 << 31:
        return "it finds the border of an image by numbers of 31 bits"
    if not is_flat(window):
        return "it needs as many outputs along each axis as the axis has cells per stride"
    return None


def _phases_pays(problem: Problem) -> str | None:
    return None if prefers_phases(problem) else TOO_MANY_WINDOWS


def _rows_can(problem: Problem) -> str | None:
    if problem.layout == "channels_last" and problem.channels_in > 1:
        return "its vectors run along rows of single elements, and channels_last has channels between them"
    stride = simplified(problem).window.stride[-1]
    if stride > MOST_STRIDE:
        return f"it splits rows in registers by strides up to {MOST_STRIDE}, not {stride}"
    return ordinary(problem)


def _whole_can(problem: Problem) -> str | None:
    if not is_whole(problem):
        return "it is for windows that are the whole image, with the cells of an image side by side"
    if problem.storage_order and problem.return_indices:
        return "it numbers winners row-major, not by storage_order=1"
    return ordinary(problem)


def _in_order(problem: Any) -> str | None:
    if problem.storage_order:
        return "it reads row-major indices, not storage_order=1"
    return ordinary(problem)


def _register(op: str, name: str, can: Accepts, run: Callable[..., Any], *module: str, pays: Accepts | None = None) -> None:
    add_kernel(op, CPU, name, can, partial(run, *module), pays=pays)


for _op in crop.INPUTS:
    _register(_op, "crop", crop.can_crop, crop.crop)
_register("max_pool", "whole", _whole_can, pool.max_pool, WHOLE)
_register("max_pool", "channels", _channels_can, pool.max_pool, CHANNELS, pays=_channels_pays)
_register("max_pool", "rows", _rows_can, pool.max_pool, ROWS)
_register("max_pool", "planes", _unpacks, pool.max_pool, PLANES)
_register("max_pool_grad", "whole", _whole_can, pool.max_pool_grad, WHOLE)
_register("max_pool_grad", "channels", _channels_can, pool.max_pool_grad, CHANNELS, pays=_channels_pays)
_register("max_pool_grad", "rows", _rows_can, pool.max_pool_grad, ROWS)
_register("max_pool_grad", "planes", _unpacks, pool.max_pool_grad, PLANES)
_register("max_pool_grad_from_winners", "whole", _whole_can, pool.max_pool_grad_from_winners, WHOLE)
_register("max_pool_grad_from_winners", "gather", _channels_can, pool.max_pool_grad_from_winners, CHANNELS, pays=_gather_pays)
_register("max_pool_grad_from_winners", "phases", _phases_can, pool.max_pool_grad_from_winners, PHASES, pays=_phases_pays)
_register("max_pool_grad_from_winners", "scatter", ordinary, pool.max_pool_grad_from_winners, SCATTER)
_register("max_pool_grad_from_indices", "scatter", _in_order, pool.max_pool_grad_from_indices)
_register("max_pool_jvp", "take", ordinary, pool.max_pool_jvp)
_register("avg_pool", "whole", _whole_can, pool.avg_pool, WHOLE)
_register("avg_pool", "channels", _channels_can, pool.avg_pool, CHANNELS, pays=_channels_pays)
_register("avg_pool", "rows", _rows_can, pool.avg_pool, ROWS)
_register("avg_pool", "planes", _unpacks, pool.avg_pool, PLANES)
_register("avg_pool_grad", "whole", _whole_can, pool.avg_pool_grad, WHOLE)
_register("avg_pool_grad", "channels", _channels_can, pool.avg_pool_grad, CHANNELS, pays=_channels_pays)
_register("avg_pool_grad", "phases", _phases_exist, pool.avg_pool_grad, PHASES)
depthwise.register()  # the special ones first: where they pay, they are faster
winograd.register()
conv.register()
