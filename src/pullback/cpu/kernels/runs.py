"""Runs of neighbouring elements between an array and scratch, where they are as wide as sums are made; neither is overrun."""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.vectors import inline


def make_runs(lanes: Any) -> tuple[Any, Any]:
    """(widen_run, narrow_run) for one element type."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load, load_some, store, store_some = lanes.load, lanes.load_some, lanes.store, lanes.store_some
    load_wide, load_wide_some = lanes.load_wide, lanes.load_wide_some
    store_wide, store_wide_some = lanes.store_wide, lanes.store_wide_some

    @inline
    def widen_run(source, target, count):
        """`count` elements of an array into scratch."""
        j = 0
        while j + V <= count:
            store_wide(target + j * WIDE, load(source + j * SIZE, V), V)
            j += V
        if j < count:
            store_wide_some(target + j * WIDE, load_some(source + j * SIZE, count - j), count - j)

    @inline
    def narrow_run(source, target, count):
        """`count` elements of scratch into an array."""
        j = 0
        while j + V <= count:
            store(target + j * SIZE, load_wide(source + j * WIDE, V), V)
            j += V
        if j < count:
            store_some(target + j * SIZE, load_wide_some(source + j * WIDE, count - j), count - j)

    return widen_run, narrow_run
