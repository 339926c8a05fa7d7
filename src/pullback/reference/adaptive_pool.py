"""Adaptive pooling over windows of unequal sizes, as one masked pass per tap of the largest window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.problem import AdaptiveProblem, IndexProblem
from pullback.reference.arrays import Float64, in_layout, load, store, zeros_like_input, zeros_like_output
from pullback.reference.pool import flat_indices, max_pool_grad_from_indices
from pullback.reference.pool_tangent import take
from pullback.rules import Array


def _places(problem: AdaptiveProblem, axes: list[npt.NDArray[np.int64]], channels: int) -> tuple[Array, ...]:
    """The index of a channels-last array at these places of its spatial axes."""
    return np.ix_(np.arange(problem.batch), *axes, np.arange(channels))


def _pairs(problem: AdaptiveProblem, tap: tuple[int, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The index of the outputs whose windows have a tap, and that of the cells that they read by it."""
    outputs, cells = problem.window.cells_of_tap(tap)
    return _places(problem, outputs, problem.channels_out), _places(problem, cells, problem.channels_in)


def _divisors(problem: AdaptiveProblem) -> Float64:
    return problem.window.divisor().astype(np.float64)[None, ..., None]


def adaptive_max_pool(problem: AdaptiveProblem, x: Array) -> Any:
    rule, a = problem.winner, load(problem, x)
    assert rule is not None
    best, winner = zeros_like_output(problem), np.full((problem.batch, *problem.window.output_size, problem.channels_out), -1)
    for t, tap in enumerate(problem.window.taps()):
        outs, ins = _pairs(problem, tap)
        takes = rule.wins(a[ins], best[outs], winner[outs] >= 0)
        best[outs] = np.where(takes, a[ins], best[outs])
        winner[outs] = np.where(takes, t, winner[outs])
    best[winner < 0] = problem.empty
    values = store(problem, best)
    return (values, in_layout(problem.layout, flat_indices(problem, winner))) if problem.return_indices else values


def _indices(problem: AdaptiveProblem, x: Array) -> Any:
    return adaptive_max_pool(replace(problem, return_indices=True, storage_order=0), x)[1]


def index_problem(problem: AdaptiveProblem) -> IndexProblem:
    """The gradient of a maximum whose winners are known by their indices."""
    return IndexProblem("max_pool_grad_from_indices", problem.dtype, problem.layout, problem.input_shape, problem.output_shape)


def adaptive_max_pool_grad(problem: AdaptiveProblem, dy: Array, x: Array) -> Array:
    return max_pool_grad_from_indices(index_problem(problem), dy, _indices(problem, x))


def adaptive_max_pool_jvp(problem: AdaptiveProblem, t: Array, x: Array) -> Array:
    return take(t, _indices(problem, x))


def adaptive_avg_pool(problem: AdaptiveProblem, x: Array) -> Array:
    a, y = load(problem, x), zeros_like_output(problem)
    with np.errstate(over="ignore", invalid="ignore"):
        for tap in problem.window.taps():
            outs, ins = _pairs(problem, tap)
            y[outs] += a[ins]
        y /= _divisors(problem)
    return store(problem, y)


def adaptive_avg_pool_grad(problem: AdaptiveProblem, dy: Array) -> Array:
    d, dx = load(problem, dy), zeros_like_input(problem)
    with np.errstate(over="ignore", invalid="ignore"):
        d = d / _divisors(problem)
        for tap in problem.window.taps():
            outs, ins = _pairs(problem, tap)
            np.add.at(dx, ins, d[outs])  # several outputs may read a cell by the same tap
    return store(problem, dx)
