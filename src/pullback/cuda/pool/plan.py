"""What the pooling kernels are compiled for: the patch of results that share what a program loads, and its tile.

The tables are those of the depthwise kernels, which read the same cells: see `depthwise/plan.py`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from pullback.cuda.axes import MOST_KEPT, Axes, Three, axes_of
from pullback.cuda.depthwise.plan import THREADS, AxisTable, channel_tile, tables_of, widest
from pullback.cuda.launch import blocks, is_wide, sum_type
from pullback.problem import Problem

PATCHES = (1, 2, 4)  # results along the height, and along the width
MOST_RESULTS = 16  # of a base
MOST_KEPT_VALUES = 40  # of a thread, from line to line: in registers
MOST_LOADS, MOST_STEPS = 28, 80  # written out, and comparisons or additions: the compiler's time grows with their square
MOST_ALONE = 50  # loads of a result by itself
PER_LOAD = 5  # instructions of a load: its place, its mask, itself
PER_STORE = 5
PER_BASE = 90


class PoolPlan(NamedTuple):
    """Tables of three axes, and the tile: a thread loads `vector` elements at once, and stores `store` cells along the width."""

    tables: tuple[AxisTable, AxisTable, AxisTable]
    vector: int
    store: int
    rows: int
    columns: int

    @property
    def bases_of(self) -> Three:
        """Results from base to base."""
        return tuple(table.cells for table in self.tables)  # type: ignore[return-value]

    def constants(self) -> dict[str, Any]:
        return {
            "OFFSETS": tuple(table.offsets for table in self.tables),
            "PAIRS": tuple(table.pairs for table in self.tables),
            "STEP": tuple(table.step for table in self.tables),
            "CELLS": self.bases_of, "VECTOR": self.vector, "STORE": self.store, "BR": self.rows, "BC": self.columns,
        }  # fmt: skip


def _vector(axes: Axes, gradient: bool, across: int) -> int:
    """Cells along the width that can be loaded at once: always whole in the source, or whole beside it."""
    if gradient:
        return widest(axes.out[2], across)
    return widest(axes.size[2], axes.readable[2], across * axes.stride[2])


def _steps(tables: tuple[AxisTable, AxisTable, AxisTable], gradient: bool, maximum: bool) -> int:
    """Comparisons or additions of a base: what lines have in common for all results of a column is made once."""
    depth, line, row = tables
    if gradient and maximum:
        return prod(table.products() for table in tables)
    return depth.products() * (len(line.offsets) * row.products() + line.products() * len(row.pairs))


@lru_cache(MOST_KEPT)
def plan_of(problem: Problem, gradient: bool, maximum: bool) -> PoolPlan | None:
    """The patch that takes the fewest instructions a result, of those that fit into registers; None where none does."""
    axes = axes_of(problem)
    size = axes.size if gradient else axes.out
    item = min(problem.dtype.itemsize, 8)
    best: tuple[float, PoolPlan] | None = None
    for high, across in product(PATCHES, PATCHES):
        vector = widest(problem.channels_in, most=2 if item == 8 else 4) if axes.last else _vector(axes, gradient, across)
        tables = tables_of(problem, gradient, (1, high, across), 1 if axes.last else vector)
        depth, line, row = tables
        results, steps = prod(len(table.pairs) for table in tables), _steps(tables, gradient, maximum)
        each = vector if axes.last else 1  # elements of a thread that share places and masks
        kept = results * each * (2 if maximum and not gradient else 1)
        loads = len(depth.offsets) * len(line.offsets) * len(row.offsets) // (1 if axes.last else vector)
        many = loads > MOST_LOADS or steps > MOST_STEPS or kept > MOST_KEPT_VALUES
        if results > MOST_RESULTS or max(loads, steps // 2) > MOST_ALONE or (many and high * across > 1):
            continue
        store = widest(size[2], row.cells) if not axes.last and len(row.pairs) == row.cells else 1
        cost: float = loads * (PER_LOAD + (item == 2) * vector) * (2 if gradient and maximum else 1)
        cost += steps * each * ((2 if gradient else 4) if maximum else 1)
        cost += results * (PER_STORE / store + each) * (2 if maximum and not gradient else 1) + PER_BASE
        cost *= prod(-(-n // table.cells) for n, table in zip(size, tables, strict=True)) / each
        if best is None or cost < best[0]:
            rows, columns = channel_tile(problem.channels_in, THREADS * vector) if axes.last else (1, THREADS)
            best = cost, PoolPlan(tables, vector, store, rows, columns)
    return best[1] if best else None


def patched(problem: Problem, plan: PoolPlan, gradient: bool) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """(programs, the first numbers, options) of a kernel that makes a patch for each base."""
    axes = axes_of(problem)
    size = axes.size if gradient else axes.out
    bases: Three = tuple(-(-n // cells) for n, cells in zip(size, plan.bases_of, strict=True))  # type: ignore[assignment]
    rows, columns = axes.tile_grid(bases)
    vectors = axes.channels // plan.vector if axes.last else 1
    options = {"LAST": axes.last, "SUM": sum_type(problem), "WIDE": is_wide(problem), "num_warps": THREADS // 32}
    programs = blocks(rows, plan.rows) * blocks(columns, plan.columns)
    return programs, (rows, columns, vectors, bases), options | plan.constants()
