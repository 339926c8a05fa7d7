"""Transposing a matrix on all threads: how a filter's gradient comes to lie as PyTorch keeps its weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from pullback.cpu.addresses import address_of
from pullback.cpu.compiler import Variant, code
from pullback.cpu.memory import new_array
from pullback.cpu.plan import Plan, make_plan
from pullback.rules import Array

BAND = 64  # see kernels/matrix.py
NATIVE = ("float32", "float64")


@lru_cache(maxsize=1024)
def _plan(rows: int, cols: int, dtype: np.dtype[Any]) -> Plan:
    given = {"source": None, "target": None, "rows": rows, "cols": cols}
    moved = 2 * rows * cols * dtype.itemsize
    return make_plan(code(Variant("matrix", "transpose", dtype.name)), -(-rows // BAND), 0, moved, given)


def transposed(matrix: Array) -> Array:
    """A copy of the matrix with its axes exchanged."""
    rows, cols = matrix.shape
    if matrix.dtype.name not in NATIVE or 0 in matrix.shape:
        return np.ascontiguousarray(matrix.T)
    source, target = np.ascontiguousarray(matrix), new_array((cols, rows), matrix.dtype)
    _plan(rows, cols, matrix.dtype).run(source=address_of(source), target=address_of(target))
    return target
