"""Sums over flat memory, for clipping gradients by their norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.elementwise.common import flat_plan
from pullback.cpu.elementwise.records import SquareSums
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.dense import check_alike, dense
from pullback.cpu.engine.plan import Plan
from pullback.cpu.engine.plan_cache import planned
from pullback.rules import Array


@planned
def _plan(dtype: np.dtype[Any], count: int) -> Plan:
    return flat_plan("sums", "sum_of_squares", SquareSums, dtype, count, 1)


def sum_of_squares(g: Array) -> float:
    """The sum of all elements' squares, in float64."""
    check_alike("sum_of_squares", g)
    if not g.size:
        return 0.0
    given, _ = dense(g)
    plan = _plan(g.dtype, g.size)
    sums = np.empty(plan.pieces, np.float64)
    plan.run(g=address_of(given), sums=address_of(sums))
    return float(sums.sum())
