"""Grey-scale dilation and its gradients: the maximum over a window's taps of input plus filter, and who earned it.

y[n, i, c] = max over taps t of x[n, i*s - p + t*d, c] + f[t, c]. Not public ops: the TF.js dialect's Dilation2D runs on them.
"""

from __future__ import annotations

import numpy as np

from pullback.problem import Problem
from pullback.reference.arrays import Float64, load, store, zeros_like_input, zeros_like_output
from pullback.reference.pool import Winners
from pullback.rules import Array
from pullback.window import axis_slices


def _load_filter(problem: Problem, filter: Array) -> Float64:
    """The filter (*k, c) as (taps, c)."""
    return filter.astype(np.float64).reshape(problem.window.tap_count, problem.channels_in)


def find_winners(problem: Problem, x: Array, filter: Array) -> tuple[Float64, Winners]:
    """Value and tap number of each window's winner, channels last; tap -1 and the problem's `empty` where there is none."""
    rule = problem.winner
    assert rule is not None
    a, f = load(problem, x), _load_filter(problem, filter)
    best = zeros_like_output(problem)
    winner = np.full(best.shape, -1, np.int64)
    for t, tap in enumerate(problem.window.taps()):
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        with np.errstate(over="ignore", invalid="ignore"):
            raised = a[ins] + f[t]
        takes = rule.wins(raised, best[outs], winner[outs] >= 0)
        np.copyto(best[outs], raised, where=takes)
        winner[outs][takes] = t
    best[winner < 0] = problem.empty
    return best, winner


def dilation(problem: Problem, x: Array, filter: Array) -> Array:
    return store(problem, find_winners(problem, x, filter)[0])


def dilation_grad_input(problem: Problem, dy: Array, x: Array, filter: Array) -> Array:
    _, winner = find_winners(problem, x, filter)
    d, dx = load(problem, dy), zeros_like_input(problem)
    for t, tap in reversed(list(enumerate(problem.window.taps()))):  # outputs ascending for each input cell
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        with np.errstate(over="ignore", invalid="ignore"):
            dx[ins] += np.where(winner[outs] == t, d[outs], 0.0)
    return store(problem, dx)


def dilation_grad_filter(problem: Problem, dy: Array, x: Array, filter: Array) -> Array:
    _, winner = find_winners(problem, x, filter)
    df = sum_by_tap(problem, load(problem, dy), winner)
    with np.errstate(over="ignore", invalid="ignore"):
        return df.astype(problem.dtype)


def sum_by_tap(problem: Problem, d: Float64, winner: Winners) -> Float64:
    """dy (channels last) added to the winning tap of its channel, outputs ascending, as (*k, c)."""
    channels = problem.channels_in
    df = np.zeros(problem.window.tap_count * channels)
    won = winner >= 0
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(df, (winner * channels + np.arange(channels))[won], d[won])
    return df.reshape(*problem.window.kernel, channels)
