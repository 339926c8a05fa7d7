"""Runs of neighbouring elements between an array and scratch, where they are as wide as sums are made; neither is overrun."""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.simd.vectors import inline


@cache
def make_runs(lanes: Any) -> tuple[Any, Any]:
    """(widen_run, narrow_run) for one element type: run(source, target, count) from an array into scratch, and the reverse."""
    narrow = (lanes.size, lanes.load, lanes.load_some, lanes.store, lanes.store_some)
    wide = (lanes.compute_size, lanes.load_wide, lanes.load_wide_some, lanes.store_wide, lanes.store_wide_some)
    return _make_run(lanes.count, narrow, wide), _make_run(lanes.count, wide, narrow)


def _make_run(V: int, read: tuple[Any, ...], written: tuple[Any, ...]) -> Any:
    FROM, load, load_some, _, _ = read
    TO, _, _, store, store_some = written

    @inline
    def run(source, target, count):
        j = 0
        while j + V <= count:
            store(target + j * TO, load(source + j * FROM, V), V)
            j += V
        if j < count:
            store_some(target + j * TO, load_some(source + j * FROM, count - j), count - j)

    return run
