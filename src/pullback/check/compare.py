"""Comparing arrays, and the two proofs of a gradient: the adjoint identity and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.rules import Array

Function = Callable[[Array], Array]


def identical(a: Array, b: Array) -> bool:
    """Same shape, dtype and bits, except that all NaN are one."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    number = ~np.isnan(a)
    return bool(np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[number]), np.signbit(b[number])))


def close(a: Array, b: Array, relative: float = 1e-5) -> bool:
    """Same shape and dtype, non-finite entries alike, the rest within `relative` of the largest magnitude."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(finite, np.isfinite(x)) or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    if not finite.any():
        return True
    return bool(np.abs(x[finite] - y[finite]).max() <= relative * max(np.abs(y[finite]).max(), 1e-30))


def _dot(a: Array, b: Array) -> float:
    return float(np.sum(a.astype(np.float64) * b.astype(np.float64)))


def _agree(left: float, right: float, scale: float) -> bool:
    return abs(left - right) <= 1e-4 * max(scale, 1e-30)


def is_adjoint(forward: Function, dy: Array, gradient: Array, seed: int = 0) -> bool:
    """Whether <forward(v), dy> = <v, gradient> for several probes v: then `gradient` is the adjoint of a linear `forward`.

    NaN in forward(v) stands for an empty window and counts as 0.
    """
    rng = np.random.default_rng(seed)
    for _ in range(3):
        v = rng.standard_normal(gradient.shape).astype(gradient.dtype)
        y = np.nan_to_num(forward(v), nan=0.0)
        if y.shape != dy.shape:
            return False
        scale = _dot(np.abs(y), np.abs(dy)) + _dot(np.abs(v), np.abs(gradient))
        if not _agree(_dot(y, dy), _dot(v, gradient), scale):
            return False
    return True


def ranks(x: Array, ties: str) -> Array:
    """x with each value replaced by its place in order, distinct whole numbers: the same winners, and no ties.

    Of equal values the one that wins under `ties` gets the higher place; NaN stays NaN.
    """
    flat = x.reshape(-1).astype(np.float64)
    order = np.lexsort((np.arange(flat.size) * (1 if ties == "last" else -1), flat))
    places = np.empty(flat.size, np.float32)
    places[order] = np.arange(flat.size)
    places[np.isnan(flat)] = np.nan
    return places.reshape(x.shape)


def is_slope(forward: Function, x: Array, dy: Array, gradient: Array, step: float = 0.25, seed: int = 0) -> bool:
    """Whether central differences of <forward(x), dy> along several directions agree with `gradient`."""
    rng = np.random.default_rng(seed)
    for _ in range(3):
        v = rng.uniform(-1.0, 1.0, x.shape).astype(x.dtype)
        up, down = forward((x + step * v).astype(x.dtype)), forward((x - step * v).astype(x.dtype))
        if up.shape != dy.shape:
            return False
        with np.errstate(invalid="ignore"):
            change = np.where(up == down, 0.0, up.astype(np.float64) - down) / (2 * step)
        scale = _dot(np.abs(change), np.abs(dy)) + float(np.abs(gradient).sum())
        if not abs(_dot(change, dy) - _dot(v, gradient)) <= 1e-3 * max(scale, 1e-30):
            return False
    return True


def attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The result of a call, or the exception it raised."""
    try:
        return call(), None
    except Exception as error:
        return None, error
