"""The tangents of max pooling: t where the winners are. Each is the adjoint of the max-pool gradient of the same name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pullback.problem import IndexProblem, Problem
from pullback.reference.arrays import channels_last, load, store, zeros_like_output
from pullback.reference.pool import check_indices, find_winners, row_major_indices
from pullback.rules import Array
from pullback.window import axis_slices


def max_pool_jvp(problem: Problem, t: Array, x: Array) -> Array:
    _, winner = find_winners(problem, load(problem, x))
    return _at_winners(problem, t, winner)


def max_pool_jvp_from_winners(problem: Problem, t: Array, winners: Array) -> Array:
    return _at_winners(problem, t, channels_last(problem.layout, winners))


def _at_winners(problem: Problem, t: Array, winner: Array) -> Array:
    a, y = load(problem, t), zeros_like_output(problem)
    for number, tap in enumerate(problem.window.taps()):
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        np.copyto(y[outs], a[ins], where=winner[outs] == number)
    return store(problem, y)


def max_pool_jvp_from_indices(problem: IndexProblem, t: Array, indices: npt.NDArray[np.int64]) -> Array:
    check_indices(problem, indices)
    if problem.storage_order:
        indices = row_major_indices(problem, indices)
    return take(t, indices)


def take(t: Array, indices: npt.NDArray[np.int64]) -> Array:
    """t at flat indices; 0 at -1, a window without a winner."""
    if not t.size:
        return np.zeros(indices.shape, t.dtype)
    y: Array = t.reshape(-1).take(indices, mode="clip")
    if indices.size and indices.min() < 0:
        y[indices < 0] = 0
    return y
