"""What depthwise kernels are compiled for: which cells a program reads for a patch of results, by which taps, and its tile.

A base is a patch of results beside each other; every cell that is loaded serves all results of its patch. Along an axis, base j
makes the cells j CELLS + r for results r and reads the source cells j STEP + offset, of which each result takes some by some taps:
in the forward op output r takes tap t at r s - p + t d; in the input gradient result (m, phase) takes what `Window.phases` says. So
one kernel makes both.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from pullback.cuda.axes import MOST_KEPT, Axes, Three, axes_of, phases_of
from pullback.cuda.launch import power_of_two
from pullback.problem import Problem

Pairs = tuple[tuple[tuple[int, int], ...], ...]  # of each result: its (tap, offset)
THREADS = 128
MOST_RESULTS = 16  # of a base, all in registers
MOST_PRODUCTS = 112  # multiply-adds written out in a kernel: the compiler's time grows with their square
PER_LOAD = 5  # instructions of a load beside its conversions: its place, its mask, itself


class AxisTable(NamedTuple):
    """One axis: `offsets` that a base reads, ascending, and of each result its (index of offset, tap) in that order."""

    offsets: tuple[int, ...]
    pairs: Pairs
    step: int  # source cells from base to base
    cells: int  # results from base to base

    def products(self) -> int:
        return sum(map(len, self.pairs))


class Plan(NamedTuple):
    """A launch: tables of three axes, and the tile."""

    tables: tuple[AxisTable, AxisTable, AxisTable]
    vector: int  # elements that a thread loads at once: channels in channels_last, else cells along the width
    store: int  # likewise of the results, in channels_first
    columns: int
    rows: int
    loop: bool  # over the lines of the source, at run time

    @property
    def step(self) -> Three:
        return tuple(table.step for table in self.tables)  # type: ignore[return-value]

    @property
    def cells(self) -> Three:
        return tuple(table.cells for table in self.tables)  # type: ignore[return-value]

    def bases(self, size: Three) -> Three:
        return tuple(-(-n // table.cells) for n, table in zip(size, self.tables, strict=True))  # type: ignore[return-value]

    def constants(self) -> dict[str, Any]:
        return {
            "OFFSETS": tuple(table.offsets for table in self.tables),
            "PAIRS": tuple(table.pairs for table in self.tables),
            "STEP": self.step, "CELLS": self.cells, "VECTOR": self.vector, "STORE": self.store, "LOOP": self.loop,
        }  # fmt: skip


def table(of_results: Pairs, step: int, cells: int, vector: int = 1) -> AxisTable:
    """`of_results` as a table whose offsets come in whole aligned groups of `vector`."""
    groups = sorted({offset // vector for pairs in of_results for _, offset in pairs})
    offsets = tuple(group * vector + i for group in groups for i in range(vector))
    index = {offset: i for i, offset in enumerate(offsets)}
    pairs = tuple(tuple(sorted((index[offset], tap) for tap, offset in pairs)) for pairs in of_results)
    return AxisTable(offsets, pairs, step, cells)


def forward_results(k: int, s: int, d: int, p: int, patch: int) -> Pairs:
    return tuple(tuple((t, r * s - p + t * d) for t in range(k)) for r in range(patch))


def gradient_results(phases: Pairs, patch: int) -> Pairs:
    return tuple(tuple((t, m + shift) for t, shift in phase) for m in range(patch) for phase in phases)


def widest(*sizes: int, most: int = 4) -> int:
    """The largest power of two up to `most` that divides all of these."""
    while any(size % most for size in sizes):
        most //= 2
    return most


def channel_tile(channels: int, elements: int) -> tuple[int, int]:
    """(positions, channels) of a tile of so many elements, of which few lie beside the channels."""
    wide = 128
    while wide > 8 and -(-channels // wide) * wide > 1.13 * channels:
        wide //= 2
    wide = min(wide, power_of_two(channels), elements)
    return elements // wide, wide


def tables_of(problem: Problem, gradient: bool, patch: Three, vector: int) -> tuple[AxisTable, AxisTable, AxisTable]:
    axes = axes_of(problem)
    found = []
    for axis in range(3):
        s, many, v = axes.stride[axis], patch[axis], vector if axis == 2 else 1
        if gradient:
            found.append(table(gradient_results(phases_of(problem)[axis], many), many, many * s, v))
        else:
            geometry = axes.kernel[axis], s, axes.dilation[axis], axes.low[axis]
            found.append(table(forward_results(*geometry, many), many * s, many, v))
    return tuple(found)  # type: ignore[return-value]


def _source_vector(axes: Axes, gradient: bool, across: int) -> int:
    """How many cells along the width can be loaded at once, always whole in the source or whole beside it."""
    width, readable = (axes.out[2], axes.out[2]) if gradient else (axes.size[2], axes.readable[2])
    return widest(width, readable, across * (1 if gradient else axes.stride[2]))


@lru_cache(MOST_KEPT)
def plan_of(problem: Problem, gradient: bool) -> Plan | None:
    """The patch that takes the fewest instructions, of those that fit into registers; None where none does."""
    axes = axes_of(problem)
    size = axes.size if gradient else axes.out
    item = min(problem.dtype.itemsize, 8)
    best: tuple[float, Plan] | None = None
    for loop, high, across in product((False, True), (1, 2, 4), (1, 2, 4, 7, 8) if axes.last else (1, 2, 4, 8)):
        vector = (
            widest(problem.channels_in, most=2 if item == 8 else 4) if axes.last else _source_vector(axes, gradient, across)
        )
        tables = tables_of(problem, gradient, (1, high, across), 1 if axes.last else vector)
        depth, line, row = tables
        results = prod(len(t.pairs) for t in tables)
        lines = depth.products() * line.products() if loop else len(depth.offsets) * len(line.offsets)
        written = len(depth.pairs) * len(line.pairs) * row.products() if loop else prod(t.products() for t in tables)
        most = MOST_RESULTS // 2 if axes.last and vector == 4 and not loop else MOST_RESULTS
        if (
            written > MOST_PRODUCTS
            or results > (most if high * across > 1 else MOST_RESULTS)
            or (loop and high > (2 if not gradient or axes.stride[1] == 1 else 1))
        ):
            continue
        each = vector if axes.last else 1  # results of a thread that share places, masks and loads
        loads = lines * len(row.offsets) / (1 if axes.last else vector)
        weights = depth.products() * (line.products() // high if loop else axes.kernel[1]) * axes.kernel[2]
        convert = item == 2
        cost = prod(t.products() for t in tables) * each + loads * (PER_LOAD + convert * vector)
        cost += weights * (2 + convert * each) + 4 * results + (10 * lines // high if loop else 0) + 80
        cost *= prod(-(-n // t.cells) for n, t in zip(size, tables, strict=True)) / each
        if best is None or cost < best[0]:
            rows, columns = channel_tile(problem.channels_in, THREADS * vector) if axes.last else (1, THREADS)
            store = widest(size[2], row.cells) if not axes.last and len(row.pairs) == row.cells else 1
            best = cost, Plan(tables, vector, store, columns, rows, loop)
    return best[1] if best else None
