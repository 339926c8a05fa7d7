"""Convolution and its gradients as one matrix product per tap.

x is (n, *size, g, c) and the filter (t, g, c, m), with g the group, c and m channels within a group. A tap outside the input
is skipped, not multiplied by zero, so NaN and infinity reach only what they touch.
"""

from __future__ import annotations

import numpy as np

from pullback.problem import Problem
from pullback.reference.arrays import Float64, load, store, zeros_like_input, zeros_like_output
from pullback.rules import Array
from pullback.window import axis_slices


def _grouped(problem: Problem, array: Float64) -> Float64:
    """Split the channel axis into (group, channel); a view."""
    return array.reshape(*array.shape[:-1], problem.groups, array.shape[-1] // problem.groups)


def _load_filter(problem: Problem, filter: Array) -> Float64:
    """The filter as (taps, g, c, m)."""
    rank, groups = problem.window.rank, problem.groups
    last = filter if problem.layout == "channels_last" else np.moveaxis(filter, (0, 1), (-1, -2))
    f = last.astype(np.float64)
    f = f.reshape(problem.window.tap_count, f.shape[rank], groups, problem.channels_out // groups)
    return np.moveaxis(f, 2, 1)


def _store_filter(problem: Problem, f: Float64) -> Array:
    """(taps, g, c, m) back in the problem's filter layout and dtype."""
    f = np.moveaxis(f, 1, 2).reshape(*problem.window.kernel, f.shape[2], problem.channels_out)
    if problem.layout == "channels_first":
        f = np.moveaxis(f, (-1, -2), (0, 1))
    return np.ascontiguousarray(f.astype(problem.dtype))


def _product(spec: str, a: Float64, b: Float64) -> Float64:
    return np.asarray(np.einsum(spec, a, b, optimize=True))


# Infinities and NaN are ordinary numbers here: what they become is the answer, not worth a warning.
quiet = np.errstate(over="ignore", invalid="ignore")


@quiet
def conv(problem: Problem, x: Array, filter: Array) -> Array:
    xs, f = _grouped(problem, load(problem, x)), _load_filter(problem, filter)
    y = zeros_like_output(problem)
    ys = _grouped(problem, y)
    for t, tap in enumerate(problem.window.taps()):
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        ys[outs] += _product("...gc,gcm->...gm", xs[ins], f[t])
    return store(problem, y)


@quiet
def conv_grad_input(problem: Problem, dy: Array, filter: Array) -> Array:
    dys, f = _grouped(problem, load(problem, dy)), _load_filter(problem, filter)
    dx = zeros_like_input(problem)
    dxs = _grouped(problem, dx)
    for t, tap in reversed(list(enumerate(problem.window.taps()))):  # outputs ascending for each input cell
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        dxs[ins] += _product("...gm,gcm->...gc", dys[outs], f[t])
    return store(problem, dx)


@quiet
def conv_grad_filter(problem: Problem, dy: Array, x: Array) -> Array:
    dys, xs = _grouped(problem, load(problem, dy)), _grouped(problem, load(problem, x))
    g, c, m = problem.groups, xs.shape[-1], dys.shape[-1]
    df = np.zeros((problem.window.tap_count, g, c, m))
    for t, tap in enumerate(problem.window.taps()):
        outs, ins = (axis_slices(True, s) for s in problem.window.tap_slices(tap))
        cells = xs[ins].shape[:-2]
        count = int(np.prod(cells, dtype=np.int64))
        df[t] += _product(
            "pgc,pgm->gcm", xs[ins].reshape(count, g, c), dys[outs].reshape(count, g, m)
        )  # from +0 on, as all sums
    return _store_filter(problem, df)
