"""Batch normalization and its gradient in plain NumPy, with sums in float64: what the native kernels are held to.

Arrays have the shape (N, C, *spatial), whatever their memory order; statistics and parameters are one number for each channel.
"""

from __future__ import annotations

import numpy as np

from pullback.reference.arrays import Float64
from pullback.reference.elementwise import relu_grad
from pullback.rules import Array


def _over(x: Array) -> tuple[int, ...]:
    """The axes that a channel is summed over."""
    if x.ndim < 2 or not x.size:
        raise ValueError(f"batch normalization: x must have the shape (N, C, ...) and elements, not the shape {x.shape}")
    return (0, *range(2, x.ndim))


def _wide(values: Array, x: Array) -> Float64:
    """Numbers of channels as float64, in a shape that goes with x."""
    return np.asarray(values, np.float64).reshape(-1, *(1,) * (x.ndim - 2))


def _stored(values: Float64, x: Array, out: Array | None) -> Array:
    """Rounded once, in the memory order of x or in `out`."""
    result = np.empty_like(x) if out is None else out
    np.copyto(result, values, casting="same_kind")
    return result


def inverse_std(variance: Array, eps: float) -> Array:
    """1 / sqrt(variance + eps), rounded once."""
    return np.asarray(1.0 / np.sqrt(variance.astype(np.float64) + eps)).astype(variance.dtype)


def batch_statistics(x: Array) -> tuple[Array, Array]:
    """(mean, biased variance) of each channel of x."""
    wide = x.astype(np.float64)
    return wide.mean(axis=_over(x)).astype(x.dtype), wide.var(axis=_over(x)).astype(x.dtype)


def training_statistics(
    x: Array, eps: float, running: tuple[Array, Array] | None = None, momentum: float = 0.0
) -> tuple[Array, Array, Array]:
    """(mean, biased variance, 1 / sqrt(variance + eps)) of each channel; running means and variances are moved, in place.

    running <- (1 - momentum) running + momentum new, of variances the unbiased ones.
    """
    wide, count = x.astype(np.float64), x.size // max(x.shape[1], 1)
    mean, variance = wide.mean(axis=_over(x)), wide.var(axis=_over(x))
    if running is not None:
        for old, new in zip(running, (mean, variance * (count / max(count - 1, 1))), strict=True):
            old[...] = (1 - momentum) * old.astype(np.float64) + momentum * new
    inv_std = 1.0 / np.sqrt(variance + eps)
    return mean.astype(x.dtype), variance.astype(x.dtype), inv_std.astype(x.dtype)


def _passed(dy: Array, y: Array, top: float | None) -> Array:
    """dy as it comes through a ReLU of result y: where y is above 0 and, if it ends at a top, below that."""
    return relu_grad(dy, y if top is None else np.where(y >= top, np.zeros_like(y), y))


def normalize(
    x: Array, mean: Array, inv_std: Array, scale: Array, bias: Array, relu: bool = False, add: Array | None = None,
    out: Array | None = None, top: float | None = None,
) -> Array:  # fmt: skip
    """(x - mean) * inv_std * scale + bias of each channel, then + add, then with `relu` max(..., 0), and min(..., top).

    `out` may be x or add.

    The gradient of inference, dy * inv_std * scale, is this too, with a mean and a bias of 0.
    """
    y = (x - _wide(mean, x)) * _wide(inv_std, x) * _wide(scale, x) + _wide(bias, x)
    if add is not None:
        y += add
    if relu:
        y = np.maximum(y, 0) if top is None else np.clip(y, 0, top)
    return _stored(y, x, out)


def batch_norm_train(
    x: Array, scale: Array, bias: Array, eps: float, relu: bool = False, add: Array | None = None, top: float | None = None
) -> tuple[Array, Array, Array]:
    """(y, mean, inv_std): x normalized by its own statistics, then + add, then with `relu` max(..., 0), and min(..., top)."""
    mean, _, inv_std = training_statistics(x, eps)
    return normalize(x, mean, inv_std, scale, bias, relu, add, top=top), mean, inv_std


def _masked(
    dy: Array,
    x: Array,
    scale: Array | None,
    mean: Array,
    inv_std: Array,
    y: Array | None,
    bias: Array | None,
    top: float | None,
) -> Array:
    if y is None and bias is not None and scale is not None:
        y = normalize(x, mean, inv_std, scale, bias)
    return dy if y is None else _passed(dy, y, top)


def batch_norm_grad_sums(
    dy: Array, x: Array, mean: Array, inv_std: Array, y: Array | None = None, masked_out: bool = False, *,
    scale: Array | None = None, bias: Array | None = None, top: float | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """(sum_dy, sum_dy_xhat) of each channel, which are dbias and dscale; xhat is x normalized, without scale and bias.

    y: the result of a ReLU after the normalization: dy counts where it is above 0 (and below `top`). Instead of y, scale and bias
    may be given, of which it is made again. With `masked_out` dy as it counts is a third result, which a residual branch needs.
    """
    dy = _masked(dy, x, scale, mean, inv_std, y, bias, top)
    wide = dy.astype(np.float64)
    normalized = (x - _wide(mean, x)) * _wide(inv_std, x)
    sums = wide.sum(axis=_over(x)).astype(x.dtype), (wide * normalized).sum(axis=_over(x)).astype(x.dtype)
    return (*sums, dy) if masked_out else sums


def batch_norm_grad_apply(
    dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array, sum_dy: Array, sum_dy_xhat: Array, count: float,
    y: Array | None = None, out: Array | None = None, *, bias: Array | None = None, top: float | None = None,
) -> Array:  # fmt: skip
    """dx from the sums over all `count` elements of a channel, which other ranks may have had a part in; `out` may be an argument.

    dy is masked by y or bias as in `batch_norm_grad_sums`, unless it is masked already and both are None.
    """
    dy = _masked(dy, x, scale, mean, inv_std, y, bias, top)
    normalized = (x - _wide(mean, x)) * _wide(inv_std, x)
    rest = dy - _wide(sum_dy, x) / count - normalized * (_wide(sum_dy_xhat, x) / count)
    return _stored(_wide(scale, x) * _wide(inv_std, x) * rest, x, out)


def batch_norm_grad(
    dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array, y: Array | None = None, masked_out: bool = False, *,
    bias: Array | None = None, top: float | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """(dx, dscale, dbias) of a batch normalized by its own statistics; with `masked_out` dy masked by y or bias as a fourth."""
    sums = batch_norm_grad_sums(dy, x, mean, inv_std, y, True, scale=scale, bias=bias, top=top)
    sum_dy, sum_dy_xhat, masked = sums
    dx = batch_norm_grad_apply(masked, x, scale, mean, inv_std, sum_dy, sum_dy_xhat, x.size // x.shape[1])
    return (dx, sum_dy_xhat, sum_dy, masked) if masked_out else (dx, sum_dy_xhat, sum_dy)
