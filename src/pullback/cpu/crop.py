"""Windows that reach into cells which a negative pad crops, as rounding up may have it: the other kernels on the cells that remain.

What is read is sliced (a view), what is made for the remaining cells is set into zeros, and indices are counted in the whole input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pullback.problem import Problem
from pullback.registry import dispatch
from pullback.rules import Array
from pullback.window import axis_slices, ravelled, unravelled

# Which arrays of each op (in the order that kernels get them) have the shape of the input, and whether the result has it.
INPUTS: dict[str, tuple[tuple[bool, ...], bool]] = {
    "conv": ((True, False), False),
    "conv_grad_input": ((False, False), True),
    "conv_grad_filter": ((False, True), False),
    "max_pool": ((True,), False),
    "max_pool_grad": ((False, True), True),
    "max_pool_grad_from_winners": ((False, False), True),
    "max_pool_jvp": ((True, True), False),
    "avg_pool": ((True,), False),
    "avg_pool_grad": ((False,), True),
}


def can(problem: Problem) -> str | None:
    if not problem.window.reaches_crop:
        return "it is for windows that reach into cells which a negative pad crops"
    return None


def run(problem: Problem, *arrays: Array) -> Any:
    """Run any op of INPUTS."""
    whole, rest = problem.window, problem.window.cropped()
    kept = axis_slices(problem.layout == "channels_last", [slice(size) for size in rest.input_size])
    sliced, makes_input = INPUTS[problem.op]
    inner = replace(problem, window=rest)
    result = dispatch(inner, *(array[kept] if of_input else array for array, of_input in zip(arrays, sliced, strict=True)))
    if makes_input:
        dx = np.zeros(problem.input_shape, problem.dtype)
        dx[kept] = result
        return dx
    if problem.return_indices:
        values, indices = result
        return values, _in_whole(problem, indices, rest.input_size, whole.input_size)
    return result


def _in_whole(problem: Problem, indices: Array, rest: tuple[int, ...], whole: tuple[int, ...]) -> Array:
    """Flat indices into the remaining cells as indices into all of them; -1 stays."""
    if 0 in rest:
        return indices
    counted = slice(None, None, -1 if problem.storage_order else 1)  # the axes, from the slowest to the quickest
    shapes = [problem.shape_of(problem.channels_in, size[counted]) for size in (rest, whole)]
    return np.where(indices < 0, -1, ravelled(unravelled(np.maximum(indices, 0), shapes[0]), shapes[1]))
