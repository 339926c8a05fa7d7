"""Gradients of the normalisations of layers and groups."""

from __future__ import annotations

import numpy as np

from pullback.onnx.executor.layout import channels_last
from pullback.onnx.executor.memory import empty_like
from pullback.onnx.executor.registry import MICROSOFT, PULLBACK, Node, op
from pullback.onnx.ops.convolution import for_kernel, from_kernel
from pullback.onnx.ops.normalization import by_channel, channel_sums, channel_window_sums, grouped, normalized
from pullback.rules import Array


@op("LayerNormalizationGrad", domain=MICROSOFT)
def layer_normalization_grad(
    node: Node, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array
) -> tuple[Array | None, Array, Array]:
    """As of a batch, with the mean over the axes from `axis` on; scale and bias lie along these."""
    axis = node.attr("axis", -1) % x.ndim
    inner, outer = tuple(range(axis, x.ndim)), tuple(range(axis))
    h = (x - mean) * inverse
    dscale, dbias = (dy * h).sum(axis=outer), dy.sum(axis=outer)
    if not node.wants(0):
        return None, dscale, dbias
    return _through(dy * scale, h, inverse, inner).astype(x.dtype, copy=False), dscale, dbias


def _through(dh: Array, h: Array, inverse: Array, axes: tuple[int, ...]) -> Array:
    """dX from the gradient of h = (x - mean) inverse: less its mean, and less h times the mean of dh h."""
    slope = (dh * h).mean(axis=axes, keepdims=True)
    dx: Array = dh - dh.mean(axis=axes, keepdims=True)
    dx -= h * slope
    dx *= inverse
    return dx


@op("GroupNormalizationGrad", domain=PULLBACK)
def group_normalization_grad(
    node: Node, dy: Array, x: Array, scale: Array, groups: Array, epsilon: Array
) -> tuple[Array, Array, Array]:
    """Of GroupNormalization with one scale for each channel; `groups` is the shape (0, groups, -1). Instances: a group each."""
    last = channels_last(x)  # of one channel or one cell, x and what is made of it may look to lie differently
    parts, axes = grouped(x, int(groups[1]), last)
    h, _, inverse = normalized(parts, axes, float(epsilon))
    dh, _ = grouped(np.multiply(dy, by_channel(scale, x.ndim), out=empty_like(x)), int(groups[1]), last)
    dx = _through(dh, h, inverse, axes)
    whole, back = (from_kernel(part.reshape(for_kernel(x, last).shape), last) for part in (h, dx))
    return back, channel_sums(dy * whole), channel_sums(dy)


@op("LRNGrad", domain=PULLBACK)
def lrn_grad(node: Node, dy: Array, x: Array) -> Array:
    """Of y = x s^-beta with s = bias + alpha / size times the sum of squares of neighbouring channels.

    dX = dY s^-beta - 2 alpha beta / size x sum over the channels j that have x's among their neighbours of dY_j x_j s_j^(-beta-1).
    """
    kind, size, beta = x.dtype.type, node.attr("size"), node.attr("beta", 0.75)
    factor = node.attr("alpha", 0.0001) / size
    before, behind = (size - 1) // 2, size // 2
    s = channel_window_sums(np.square(x), before, behind)
    s *= kind(factor)
    s += kind(node.attr("bias", 1.0))
    power = s ** kind(-beta)
    back = channel_window_sums(dy * x * power / s, behind, before)
    return np.asarray(dy * power - x * back * kind(2 * factor * beta))
