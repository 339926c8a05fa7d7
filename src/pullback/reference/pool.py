"""Max and average pooling and their gradients as one masked pass per tap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.problem import IndexProblem, Problem
from pullback.reference.arrays import Float64, channels_last, in_layout, load, store, zeros_like_input, zeros_like_output
from pullback.rules import Array
from pullback.window import axis_slices

Winners = npt.NDArray[np.int64]


def find_winners(problem: Problem, x: Float64) -> tuple[Float64, Winners]:
    """Value and tap number of each window's winner, channels last; tap -1 and the problem's `empty` where there is none."""
    rule = problem.winner
    assert rule is not None
    best = zeros_like_output(problem)
    winner = np.full(best.shape, -1, np.int64)
    for t, tap in enumerate(problem.window.taps()):
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        takes = rule.wins(x[ins], best[outs], winner[outs] >= 0)
        np.copyto(best[outs], x[ins], where=takes)
        winner[outs][takes] = t
    best[winner < 0] = problem.empty
    return best, winner


def flat_indices(problem: Problem, winner: Winners) -> npt.NDArray[np.int64]:
    """Winning tap numbers (channels last) as flat indices into the input array, in the problem's layout."""
    window = problem.window
    rank, sizes = window.rank, window.input_size
    rest = np.maximum(winner, 0)
    spatial = np.zeros(winner.shape, np.int64)
    for axis in reversed(range(rank)):
        rest, tap = np.divmod(rest, window.kernel[axis])
        cells = window.starts(axis).reshape((-1,) + (1,) * (rank - axis)) + tap * window.dilation[axis]
        inner = sizes[:axis] if problem.storage_order else sizes[axis + 1 :]
        spatial += cells * int(np.prod(inner, dtype=np.int64))
    total, channels = int(np.prod(sizes, dtype=np.int64)), problem.channels_in
    n = np.arange(problem.batch).reshape((-1,) + (1,) * (rank + 1))
    c = np.arange(channels)
    last = problem.layout == "channels_last"
    flat = (n * total + spatial) * channels + c if last else (n * channels + c) * total + spatial
    return np.where(winner < 0, -1, flat)


def max_pool(problem: Problem, x: Array) -> Any:
    best, winner = find_winners(problem, load(problem, x))
    values = store(problem, best)
    if problem.return_winners:
        return values, in_layout(problem.layout, winner.astype(problem.winner_dtype))  # -1 becomes the largest value
    if problem.return_indices:
        return values, in_layout(problem.layout, flat_indices(problem, winner))
    return values


def max_pool_grad(problem: Problem, dy: Array, x: Array) -> Array:
    _, winner = find_winners(problem, load(problem, x))
    return _to_winners(problem, dy, winner)


def max_pool_grad_from_winners(problem: Problem, dy: Array, winners: Array) -> Array:
    # The mark of no winner needs no care here: under a rule that uses it, it is no tap; otherwise its window has no cell.
    return _to_winners(problem, dy, channels_last(problem.layout, winners))


def _to_winners(problem: Problem, dy: Array, winner: Array) -> Array:
    d, dx = load(problem, dy), zeros_like_input(problem)
    for t, tap in reversed(list(enumerate(problem.window.taps()))):  # outputs ascending for each input cell
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        with np.errstate(over="ignore", invalid="ignore"):
            dx[ins] += np.where(winner[outs] == t, d[outs], 0.0)  # no product: NaN in dy stays with its winner
    return store(problem, dx)


def row_major_indices(problem: IndexProblem, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Indices of storage_order=1, whose spatial part counts column-major, as plain C-order indices."""
    last = problem.layout == "channels_last"
    sizes = problem.input_shape[1:-1] if last else problem.input_shape[2:]
    inner = problem.input_shape[-1] if last else 1
    total = int(np.prod(sizes, dtype=np.int64))
    if total * inner == 0:
        return indices
    outer, rest = np.divmod(indices, total * inner)
    spatial, channel = np.divmod(rest, inner)
    flat = np.zeros_like(spatial)
    for axis, size in enumerate(sizes):
        spatial, cell = np.divmod(spatial, size)
        flat += cell * int(np.prod(sizes[axis + 1 :], dtype=np.int64))
    return np.where(indices < 0, -1, (outer * total + flat) * inner + channel)


def check_indices(problem: IndexProblem, indices: npt.NDArray[np.int64]) -> None:
    """ValueError for an index that is neither in the input nor -1, which stands for a window without a winner."""
    size = math.prod(problem.input_shape)
    if indices.size and not -1 <= (low := int(indices.min())) <= (high := int(indices.max())) < size:
        raise ValueError(
            f"{problem.op}: index {low if low < -1 else high} in indices is out of range for input_shape {problem.input_shape}: "
            f"indices run from 0 to {size - 1}, and -1 stands for a window without a winner"
        )


def max_pool_grad_from_indices(problem: IndexProblem, dy: Array, indices: npt.NDArray[np.int64]) -> Array:
    check_indices(problem, indices)
    if problem.storage_order:
        indices = row_major_indices(problem, indices)
    flat = indices.reshape(-1)
    won = flat >= 0
    dx = np.zeros(int(np.prod(problem.input_shape, dtype=np.int64)))
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(dx, flat[won], dy.reshape(-1).astype(np.float64)[won])
        return dx.astype(problem.dtype).reshape(problem.input_shape)


def _divisors(problem: Problem) -> Float64:
    """The divisor of each output, shaped to broadcast over (n, *out, c); 1 where no cell counts."""
    assert problem.divisor is not None
    return np.maximum(problem.window.divisor(problem.divisor), 1).astype(np.float64)[None, ..., None]


def avg_pool(problem: Problem, x: Array) -> Array:
    a, y = load(problem, x), zeros_like_output(problem)
    with np.errstate(over="ignore", invalid="ignore"):
        for tap in problem.window.taps():
            outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
            y[outs] += a[ins]
        y /= _divisors(problem)
    y[:, problem.window.divisor("valid") == 0, :] = problem.empty
    return store(problem, y)


def avg_pool_grad(problem: Problem, dy: Array) -> Array:
    d, dx = load(problem, dy), zeros_like_input(problem)
    share = 1.0 / _divisors(problem)
    # Where all divisors are equal the sum is scaled once, after it is complete: one rounding fewer.
    uniform = bool(share.size) and bool((share == share.flat[0]).all())
    with np.errstate(over="ignore", invalid="ignore"):
        if not uniform:
            d = d * share
        for tap in reversed(list(problem.window.taps())):  # outputs ascending for each input cell
            outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
            dx[ins] += d[outs]
        if uniform:
            dx *= share.flat[0]
    return store(problem, dx)
