"""The gradient of batch normalization, in two halves: the sums of each channel, and dx from them."""

from __future__ import annotations

import numpy as np

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.dense import check_alike, check_writeable, in_order, new_in_order, order_of
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan import Plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.words import float_word
from pullback.cpu.norm.layout import Shape, Sums, pass_plan, per_channel, seen, sums_plans, top_word
from pullback.cpu.norm.records import (
    GradientApplyPlanes,
    GradientApplyRows,
    GradientSumsPlanes,
    GradientSumsRows,
    MergeGradient,
)
from pullback.rules import Array


@planned
def gradient_plans(shape: Shape) -> Sums:
    partial = pass_plan("gradient", "sums_", (GradientSumsRows, GradientSumsPlanes), shape, arrays=2, rows=3)
    return sums_plans("gradient", partial, MergeGradient, shape, arrays=2, kinds=2)


@planned
def apply_plan(shape: Shape) -> Plan:
    return pass_plan("gradient", "apply_", (GradientApplyRows, GradientApplyPlanes), shape, arrays=3, rows=5)


def _address(array: Array | None) -> int:
    return 0 if array is None else address_of(array)


def batch_norm_grad_sums(
    dy: Array, x: Array, mean: Array, inv_std: Array, y: Array | None = None, masked_out: bool = False, *,
    scale: Array | None = None, bias: Array | None = None, top: float | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """(sum_dy, sum_dy_xhat) of each channel; with `masked_out` dy as it is masked by y, or by scale and bias, as a third."""
    op = "batch_norm_grad_sums"
    check_alike(op, x, dy, y)
    given, order, shape = seen(op, x)
    dy_, y_ = in_order(dy, order), None if y is None else in_order(y, order)
    mean, inv_std = per_channel(op, "mean", mean, shape), per_channel(op, "inv_std", inv_std, shape)
    line = [None if values is None else per_channel(op, "scale and bias", values, shape) for values in (scale, bias)]
    masked = new_in_order(order, x.dtype) if masked_out and not (y is bias is None) else None
    plans = gradient_plans(shape)
    partials = new_array((plans.numbers,), x.dtype)
    sum_dy, sum_dy_xhat = new_array((shape.channels,), x.dtype), new_array((shape.channels,), x.dtype)
    plans.partial.run(
        dy=address_of(dy_), x=address_of(given), y=_address(y_), mean=address_of(mean), inv_std=address_of(inv_std),
        scale=_address(line[0]), bias=_address(line[1]), top=top_word(top), masked=_address(masked),
        partials=address_of(partials),
    )  # fmt: skip
    plans.merge.run(
        partials=address_of(partials), inv_std=address_of(inv_std), sum_dy=address_of(sum_dy),
        sum_dy_xhat=address_of(sum_dy_xhat),
    )  # fmt: skip
    if masked_out:
        return sum_dy, sum_dy_xhat, dy if masked is None else masked
    return sum_dy, sum_dy_xhat


def batch_norm_grad_apply(
    dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array, sum_dy: Array, sum_dy_xhat: Array, count: float,
    y: Array | None = None, out: Array | None = None, *, bias: Array | None = None, top: float | None = None,
) -> Array:  # fmt: skip
    """dx from the sums over all `count` elements of a channel; `out` may be dy, x or y."""
    op = "batch_norm_grad_apply"
    check_alike(op, x, dy, y, out)
    check_writeable(op, out)
    given, order, shape = seen(op, x)
    dy_, y_ = in_order(dy, order), None if y is None else in_order(y, order)
    vectors = {
        name: per_channel(op, name, values, shape)
        for name, values in (
            ("scale", scale), ("mean", mean), ("inv_std", inv_std), ("sum_dy", sum_dy), ("sum_dy_xhat", sum_dy_xhat),
        )
    }  # fmt: skip
    line = None if bias is None else per_channel(op, "bias", bias, shape)
    dx = out if out is not None and order_of(out) == order else new_in_order(order, x.dtype)
    apply_plan(shape).run(
        dy=address_of(dy_), x=address_of(given), y=_address(y_), bias=_address(line), top=top_word(top), dx=address_of(dx),
        count=float_word(count), **{name: address_of(values) for name, values in vectors.items()},
    )  # fmt: skip
    if out is not None and dx is not out:
        np.copyto(out, dx)
        return out
    return dx


def batch_norm_grad(
    dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array, y: Array | None = None, masked_out: bool = False, *,
    bias: Array | None = None, top: float | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """(dx, dscale, dbias); with `masked_out` dy as it is masked by y, or by scale and bias, as a fourth."""
    line = {} if bias is None else {"scale": scale, "bias": bias}
    sum_dy, sum_dy_xhat, *masked = batch_norm_grad_sums(dy, x, mean, inv_std, y, masked_out, top=top, **line)
    if masked:
        dy, y, bias = masked[0], None, None
    count = x.size // x.shape[1]
    dx = batch_norm_grad_apply(dy, x, scale, mean, inv_std, sum_dy, sum_dy_xhat, count, y, bias=bias, top=top)
    return dx, sum_dy_xhat, sum_dy, *masked
