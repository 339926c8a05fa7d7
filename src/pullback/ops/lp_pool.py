"""Lp pooling: the p-norm of each window, by average pooling of powers with the divisor 1; and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.ops.arguments import as_float_array, check_shape, same_dtype
from pullback.ops.avg_pool import avg_pool, avg_pool_grad
from pullback.ops.conv import PerAxis
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.rules import Array
from pullback.shown import shown
from pullback.tracing import any_traced
from pullback.window import Padding


def as_exponent(op: str, p: Any) -> float:
    try:
        number = float(p)
    except (TypeError, ValueError):
        number = math.nan
    if not 1 <= number < math.inf:
        raise ValueError(f"{op}: p is {shown(p)}; it must be a number of at least 1 (for p = infinity take max_pool of abs(x))")
    return number


def wide(array: Any) -> Any:
    """Half precisions as float32: a power leaves their range soon."""
    return array if array.dtype.itemsize > 2 else array.astype(np.float32)


def root(xp: Any, sums: Any, exponent: float) -> Any:
    """sums ** exponent, and 0 where a sum is 0, for its derivatives too."""
    some = sums != 0
    return some * xp.where(some, sums, 1) ** exponent


@with_hints
def lp_pool(
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    p: float = 2,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
) -> Array:
    """The p-norm of each window.

    **Formula.** `y[n, i, c] = (sum over the taps inside x of abs(x)^p)^(1/p)`. **Shapes and keywords** as `avg_pool`.

    **Rules.** p is at least 1. Powers and sums beyond the range of the dtype give inf, as elsewhere.

    **Equals** ONNX LpPool, torch.nn.functional.lp_pool2d for x >= 0 or even p.
    """
    op, exponent = "lp_pool", as_exponent("lp_pool", p)
    keywords: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "layout": layout,
        "rounding": rounding,
    }
    if any_traced([x]):
        import autograd.numpy as anp

        traced: Array = root(anp, avg_pool(anp.abs(x) ** exponent, window, divisor=1, **keywords), 1 / exponent)
        return traced
    a = as_float_array(op, "x", x)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = avg_pool(np.abs(wide(a)) ** exponent, window, divisor=1, **keywords)
        norm: Array = root(np, sums, 1 / exponent).astype(a.dtype)
    return norm


@with_hints
def lp_pool_grad(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    window: PerAxis,
    *,
    p: float = 2,
    stride: PerAxis | None = None,
    padding: Padding = "valid",
    dilation: PerAxis = 1,
    layout: str = DEFAULT_LAYOUT,
    rounding: str = "floor",
) -> Array:
    """Gradient of `lp_pool` with respect to x; 0 in windows of zeros, where the norm has none.

    **Formula.** `dx[n, j, c] = sign(x) abs(x)^(p-1) * sum over the windows i that read cell j of dy[n, i, c] * y[n, i,
    c]^(1-p)`.

    **Shapes.** dy has the shape of lp_pool's result, the gradient that of x. **Keywords** as the forward call.
    """
    op, exponent = "lp_pool_grad", as_exponent("lp_pool_grad", p)
    d, a = as_float_array(op, "dy", dy), as_float_array(op, "x", x)
    same_dtype(op, dy=d, x=a)
    keywords: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "layout": layout,
        "rounding": rounding,
    }
    widened = wide(a)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = avg_pool(np.abs(widened) ** exponent, window, divisor=1, **keywords)
        check_shape(op, "dy", d.shape, sums.shape, f"the output of x {a.shape}")
        spread = avg_pool_grad(wide(d) * root(np, sums, 1 / exponent - 1), a.shape, window, divisor=1, **keywords)
        gradient: Array = (spread * np.abs(widened) ** (exponent - 1) * np.sign(widened)).astype(a.dtype)
    return gradient
