"""Transposing matrices on all threads: filter gradients as PyTorch keeps its weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.cpu.conv.records import TRANSPOSED_ROWS, Transpose
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sizes import ceil_div
from pullback.cpu.machine_code.variants import Variant
from pullback.registry import MissingCode
from pullback.rules import Array

NATIVE = ("float32", "float64")


@planned
def transpose_plan(count: int, rows: int, cols: int, dtype: np.dtype[Any]) -> Plan:
    """Of so many matrices, one after another."""
    bands = ceil_div(rows, TRANSPOSED_ROWS)
    given = {"source": None, "target": None, "faults": None, "bands": bands, "rows": rows, "cols": cols}
    moved = 2 * count * rows * cols * dtype.itemsize
    return make_plan(Variant("conv.transpose", "transpose", dtype.name), Transpose, count * bands, 0, moved, given)


def transposed(matrices: Array, target: Array | None = None) -> Array:
    """A copy of a matrix, or of several along the first axis, with rows and columns exchanged; in `target`, if that is given."""
    *several, rows, cols = matrices.shape
    if target is None:
        target = new_array((*several, cols, rows), matrices.dtype)
    try:
        known = matrices.dtype.name in NATIVE and matrices.size > 0
        plan = transpose_plan(math.prod(several), rows, cols, matrices.dtype) if known else None
    except MissingCode:
        plan = None
    if plan is None:
        target[...] = matrices.swapaxes(-1, -2)
        return target
    source = np.ascontiguousarray(matrices)
    plan.run(source=address_of(source), target=address_of(target))
    return target
