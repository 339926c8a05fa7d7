"""The winner rules of max pooling on vectors: what `rules.WinnerRule` says, one comparison per tap. Imports Numba."""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.simd.vectors import greater, greater_equal, greater_equal_or_nan, greater_or_nan, inline, invert

MINUS_INFINITY = -float("inf")


@cache
def make_takes(lanes: Any, ties: str, nan: str) -> Any:
    """takes(cell, best): the lanes where a cell, scanned after the best so far, takes the window.

    The first cell in bounds seeds the best, NaN or not; so under "ignore" a NaN best yields to any number.
    """
    splat = lanes.splat
    ordered = greater if ties == "first" else greater_equal
    or_nan = greater_or_nan if ties == "first" else greater_equal_or_nan

    @inline
    def propagate(cell, best):
        return or_nan(cell, best) & greater_equal(best, splat(MINUS_INFINITY))

    @inline
    def ignore(cell, best):
        return or_nan(cell, best) & greater_equal(cell, splat(MINUS_INFINITY))

    @inline
    def leading(cell, best):
        return ordered(cell, best)

    return {"propagate": propagate, "ignore": ignore, "leading": leading}[nan]


@cache
def make_loses(lanes: Any, floor: bool) -> Any:
    """loses(best, above): the lanes whose best is no winner after all: a NaN, or with a floor what does not exceed it."""
    splat = lanes.splat

    @inline
    def is_nan(best, above):
        return invert(greater_equal(best, splat(MINUS_INFINITY)))

    @inline
    def not_above(best, above):
        return invert(greater(best, splat(above)))

    return not_above if floor else is_nan
