"""Comparisons and logic: what makes booleans, and Where, which reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.onnx.executor.registry import Node, op
from pullback.rules import Array

MANY = 1 << 12

_UFUNCS: dict[str, Any] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
    "IsNaN": np.isnan,
}


def _of(ufunc: Any) -> Callable[..., Array]:
    def run(node: Node, *arrays: Array) -> Array:
        return np.asarray(ufunc(*arrays))

    return run


for _name, _ufunc in _UFUNCS.items():
    op(_name)(_of(_ufunc))


@op("IsInf")
def is_inf(node: Node, x: Array) -> Array:
    found: Array = np.asarray(np.isinf(x))
    if not node.attr("detect_positive", 1):
        found &= x < 0
    if not node.attr("detect_negative", 1):
        found &= x > 0
    return found


def select(condition: Array, a: Array, b: Array) -> Array:
    """a where the condition holds, else b; by bits where there are many: np.where guesses each one ahead, mostly wrong."""
    if condition.size < MANY or a.itemsize not in (1, 2, 4, 8) or a.dtype != b.dtype:
        return np.asarray(np.where(condition, a, b))
    bits = np.dtype(f"i{a.itemsize}")
    mask = np.negative(condition.view(np.int8), dtype=bits)  # all ones where it holds
    chosen = np.bitwise_and(np.bitwise_xor(a.view(bits), b.view(bits)), mask)
    return np.asarray(np.bitwise_xor(chosen, b.view(bits))).view(a.dtype)


@op("Where")
def where(node: Node, condition: Array, a: Array, b: Array) -> Array:
    return select(condition, a, b)
