"""ReLU, sums of two arrays and their gradients: one pass over the memory of arrays that lie alike.

`out` may be one of the arguments. Without it the result is a new array in the memory order of the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.elementwise.common import flat_plan
from pullback.cpu.elementwise.records import Flat, Limited, Map
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.dense import check_alike, check_writeable, dense, in_order, new_in_order
from pullback.cpu.engine.plan import Plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.words import float_word
from pullback.rules import Array


@planned
def _plan(kernel: str, record: type[Flat], dtype: np.dtype[Any], count: int, inputs: int) -> Plan:
    return flat_plan("maps", kernel, record, dtype, count, inputs + 1)


def _map(kernel: str, out: Array | None, first: Array, *others: Array, limits: tuple[float, float] | None = None) -> Array:
    check_alike(kernel, first, *others, out)
    check_writeable(kernel, out)
    given, order = dense(first if out is None else out)
    if not first.size:
        return first.copy() if out is None else out
    inputs = [in_order(array, order) for array in (first, *others)]
    result = new_in_order(order, first.dtype) if given is not out else given
    a, b, c = (address_of(inputs[min(place, len(others))]) for place in range(3))
    if limits is None:
        _plan(kernel, Map, first.dtype, first.size, len(inputs)).run(a=a, b=b, c=c, out=address_of(result))
    else:
        low, high = map(float_word, limits)
        plan = _plan(kernel, Limited, first.dtype, first.size, len(inputs))
        plan.run(dy=a, x=b, out=address_of(result), low=low, high=high)
    if out is not None and result is not out:
        np.copyto(out, result)
        return out
    return result


def relu(x: Array, out: Array | None = None) -> Array:
    """max(x, 0); NaN stays."""
    return _map("relu", out, x)


def relu_grad(dy: Array, y: Array, out: Array | None = None) -> Array:
    """dy where y > 0, else 0, whatever dy is there."""
    return _map("relu_grad", out, dy, y)


def add(a: Array, b: Array, out: Array | None = None) -> Array:
    """a + b."""
    return _map("add", out, a, b)


def add_relu(a: Array, b: Array, out: Array | None = None) -> Array:
    """max(a + b, 0)."""
    return _map("add_relu", out, a, b)


def relu_grad_of_sum(da: Array, db: Array, y: Array, out: Array | None = None) -> Array:
    """da + db where y > 0, else 0."""
    return _map("relu_grad_of_sum", out, da, db, y)


def clip(x: Array, low: float, high: float, out: Array | None = None) -> Array:
    """min(max(x, low), high); NaN stays."""
    return _map("clip", out, x, limits=(low, high))


def clip_grad(dy: Array, x: Array, low: float, high: float, out: Array | None = None) -> Array:
    """dy where low <= x <= high, else 0, whatever dy is there."""
    return _map("clip_grad", out, dy, x, limits=(low, high))
