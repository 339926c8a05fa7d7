"""Normalizing the channels of a batch by given statistics, or by its own."""

from __future__ import annotations

import numpy as np

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.dense import check_alike, check_writeable, in_order, new_in_order, order_of
from pullback.cpu.engine.plan import Plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.norm.layout import Shape, pass_plan, per_channel, seen, top_word
from pullback.cpu.norm.records import NormalizePlanes, NormalizeRows
from pullback.cpu.norm.statistics import training_statistics
from pullback.rules import Array


@planned
def normalize_plan(shape: Shape, arrays: int) -> Plan:
    return pass_plan("normalize", "", (NormalizeRows, NormalizePlanes), shape, arrays, rows=3)


def normalize(
    x: Array, mean: Array, inv_std: Array, scale: Array, bias: Array, relu: bool = False, add: Array | None = None,
    out: Array | None = None, top: float | None = None,
) -> Array:  # fmt: skip
    """(x - mean) * inv_std * scale + bias of each channel, then + add, then max(..., 0) with `relu`, of which min(..., top)."""
    op = "normalize"
    check_alike(op, x, add, out)
    check_writeable(op, out)
    given, order, shape = seen(op, x)
    vectors = [per_channel(op, name, values, shape) for name, values in
               (("mean", mean), ("inv_std", inv_std), ("scale", scale), ("bias", bias))]  # fmt: skip
    added = None if add is None else in_order(add, order)
    y = out if out is not None and order_of(out) == order else new_in_order(order, x.dtype)
    normalize_plan(shape, 2 if add is None else 3).run(
        x=address_of(given), mean=address_of(vectors[0]), inv_std=address_of(vectors[1]), scale=address_of(vectors[2]),
        bias=address_of(vectors[3]), add=0 if added is None else address_of(added), y=address_of(y), relu=int(relu),
        top=top_word(top),
    )  # fmt: skip
    if out is not None and y is not out:
        np.copyto(out, y)
        return out
    return y


def batch_norm_train(
    x: Array, scale: Array, bias: Array, eps: float, relu: bool = False, add: Array | None = None, top: float | None = None
) -> tuple[Array, Array, Array]:
    """(y, mean, inv_std): x normalized by its own statistics."""
    mean, _, inv_std = training_statistics(x, eps)
    return normalize(x, mean, inv_std, scale, bias, relu, add, top=top), mean, inv_std
