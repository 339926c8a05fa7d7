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


def normalize(
    x: Array, mean: Array, inv_std: Array, scale: Array, bias: Array, relu: bool = False, add: Array | None = None,
    out: Array | None = None,
) -> Array:  # fmt: skip
    """(x - mean) * inv_std * scale + bias of each channel, then + add, then max(..., 0) with `relu`; `out` may be x or add.

    The gradient of inference, dy * inv_std * scale, is this too, with a mean and a bias of 0.
    """
    y = (x - _wide(mean, x)) * _wide(inv_std, x) * _wide(scale, x) + _wide(bias, x)
    if add is not None:
        y += add
    return _stored(np.maximum(y, 0) if relu else y, x, out)


def batch_norm_train(
    x: Array, scale: Array, bias: Array, eps: float, relu: bool = False, add: Array | None = None
) -> tuple[Array, Array, Array]:
    """(y, mean, inv_std): x normalized by its own statistics, then + add, then max(..., 0) with `relu`."""
    mean, variance = batch_statistics(x)
    inv_std = inverse_std(variance, eps)
    return normalize(x, mean, inv_std, scale, bias, relu, add), mean, inv_std


def batch_norm_grad_sums(
    dy: Array, x: Array, mean: Array, inv_std: Array, y: Array | None = None, masked_out: bool = False
) -> tuple[Array, ...]:
    """(sum_dy, sum_dy_xhat) of each channel, which are dbias and dscale; xhat is x normalized, without scale and bias.

    y: the result of a ReLU after the normalization: dy counts where it is above 0. With `masked_out` dy as it counts is a third
    result, which a residual branch needs.
    """
    dy = dy if y is None else relu_grad(dy, y)
    wide = dy.astype(np.float64)
    normalized = (x - _wide(mean, x)) * _wide(inv_std, x)
    sums = wide.sum(axis=_over(x)).astype(x.dtype), (wide * normalized).sum(axis=_over(x)).astype(x.dtype)
    return (*sums, dy) if masked_out else sums


def batch_norm_grad_apply(
    dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array, sum_dy: Array, sum_dy_xhat: Array, count: float,
    y: Array | None = None, out: Array | None = None,
) -> Array:  # fmt: skip
    """dx from the sums over all `count` elements of a channel, which other ranks may have had a part in; `out` may be an argument.

    dy is masked by y as in `batch_norm_grad_sums`, unless it is masked already and y is None.
    """
    dy = dy if y is None else relu_grad(dy, y)
    normalized = (x - _wide(mean, x)) * _wide(inv_std, x)
    rest = dy - _wide(sum_dy, x) / count - normalized * (_wide(sum_dy_xhat, x) / count)
    return _stored(_wide(scale, x) * _wide(inv_std, x) * rest, x, out)


def batch_norm_grad(
    dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array, y: Array | None = None, masked_out: bool = False
) -> tuple[Array, ...]:
    """(dx, dscale, dbias) of a batch normalized by its own statistics; with `masked_out` dy masked by y as a fourth."""
    sum_dy, sum_dy_xhat, masked = batch_norm_grad_sums(dy, x, mean, inv_std, y, masked_out=True)
    dx = batch_norm_grad_apply(masked, x, scale, mean, inv_std, sum_dy, sum_dy_xhat, x.size // x.shape[1])
    return (dx, sum_dy_xhat, sum_dy, masked) if masked_out else (dx, sum_dy_xhat, sum_dy)
