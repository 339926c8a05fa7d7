"""Normalisations of layers, groups, instances and neighbouring channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.onnx.executor.layout import channels_last
from pullback.onnx.executor.memory import empty_like
from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import axes_of, axis_of, refused
from pullback.onnx.ops.convolution import for_kernel, layout_name
from pullback.onnx.ops.pooling import mean_over_space
from pullback.ops.bias import conv_grad_bias
from pullback.rules import Array

GROUPS_BY_CHANNEL = 21  # since when GroupNormalization's scale and bias are of channels, not of groups
EPSILON = 1e-5


def by_channel(values: Array, rank: int) -> Array:
    """One value for each channel, to be broadcast over (N, C, *spatial)."""
    return values.reshape(-1, *(1,) * (rank - 2))


def channel_sums(x: Array) -> Array:
    """The sum of each channel of (N, C, *spatial)."""
    if x.ndim == 2:
        return conv_grad_bias(x[None], layout="channels_last")
    last = channels_last(x)
    return conv_grad_bias(for_kernel(x, last), layout=layout_name(last))


def normalized(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(variance + epsilon) over some axes, which stay with size 1 in the mean and the inverse deviation."""
    mean: Array = x.mean(axis=axes, keepdims=True)
    y = np.subtract(x, mean, out=empty_like(x))
    variance = np.square(y, out=empty_like(x)).mean(axis=axes, keepdims=True)
    inverse: Array = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    y *= inverse
    return y, mean, inverse


def _wide(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


@op("LayerNormalization")
def layer_normalization(node: Node, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, Array, Array]:
    axis = axis_of(node, node.attr("axis", -1), x.ndim)
    y, mean, inverse = normalized(_wide(x), tuple(range(axis, x.ndim)), node.attr("epsilon", EPSILON))
    y *= scale
    if bias is not None:
        y += bias
    return y.astype(x.dtype, copy=False), mean, inverse


@op("RMSNormalization")
def rms_normalization(node: Node, x: Array, scale: Array) -> Array:
    axes = tuple(range(axis_of(node, node.attr("axis", -1), x.ndim), x.ndim))
    wide = _wide(x)
    squares = np.square(wide).mean(axis=axes, keepdims=True)
    y: Array = wide / np.sqrt(squares + wide.dtype.type(node.attr("epsilon", EPSILON)))
    y *= scale
    return y.astype(x.dtype, copy=False)


def grouped(x: Array, groups: int, last: bool) -> tuple[Array, tuple[int, ...]]:
    """x with its channels in groups and its cells in one axis, and the axes of one group; a view where x lies as `last` says."""
    n, channels = x.shape[:2]
    cells = math.prod(x.shape[2:])
    if last:
        return for_kernel(x, True).reshape(n, cells, groups, channels // groups), (1, 3)
    return x.reshape(n, groups, channels // groups * cells), (2,)


def _group_means(x: Array, groups: int) -> Array:
    """The mean of each channel's group, (N, C, 1 ...)."""
    n, channels = x.shape[:2]
    if not x.size or x.ndim not in (3, 4, 5):
        means = x.reshape(n, groups, math.prod(x.shape[1:]) // groups).mean(2)
    else:  # the mean over space by the kernels, on all threads
        means = mean_over_space(x).reshape(n, groups, channels // groups).mean(2)
    return np.asarray(means).repeat(channels // groups, axis=1).reshape(n, channels, *(1,) * (x.ndim - 2))


def _by_groups(x: Array, groups: int, scale: Array, bias: Array, epsilon: float) -> Array:
    y = np.subtract(x, _group_means(x, groups), out=empty_like(x))
    variance = _group_means(np.square(y, out=empty_like(x)), groups)
    y *= by_channel(scale, x.ndim) / np.sqrt(variance + x.dtype.type(epsilon))
    y += by_channel(bias, x.ndim)
    return y


@op("GroupNormalization")
def group_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    groups, channels = node.attr("num_groups"), x.shape[1]
    if channels % groups:
        raise refused(node, f"{channels} channels do not make {groups} groups", "num_groups must divide the channels")
    if node.opset < GROUPS_BY_CHANNEL:
        scale, bias = (np.repeat(values, channels // groups) for values in (scale, bias))
    return _by_groups(x, groups, scale, bias, node.attr("epsilon", EPSILON))


@op("InstanceNormalization")
def instance_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    return _by_groups(x, x.shape[1], scale, bias, node.attr("epsilon", EPSILON))


@op("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, x: Array) -> Array:
    axes = axes_of(node, node.attr("axes", [0, 2, 3]), x.ndim)
    y: Array = x - x.mean(axis=axes, keepdims=True)
    y /= np.sqrt(np.square(y).mean(axis=axes, keepdims=True)) + x.dtype.type(1e-9)
    return y


@op("LpNormalization")
def lp_normalization(node: Node, x: Array) -> Array:
    axis, p = node.attr("axis", -1), node.attr("p", 2)
    norms: Any = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
    return np.asarray(np.divide(x, norms, out=np.zeros_like(x), where=norms != 0))


def channel_window_sums(x: Array, before: int, behind: int) -> Array:
    """Of each channel, the sum over so many channels before it, itself, and so many behind."""
    sums, channels = np.zeros_like(x), x.shape[1]
    for offset in range(-before, behind + 1):
        low, high = max(0, -offset), min(channels, channels - offset)
        if low < high:
            sums[:, low:high] += x[:, low + offset : high + offset]
    return sums


@op("LRN")
def local_response_normalization(node: Node, x: Array) -> Array:
    """Each cell divided by a power of the mean square of its neighbours in the channels."""
    size = node.attr("size")
    sums = channel_window_sums(np.square(x), (size - 1) // 2, size // 2)
    sums *= x.dtype.type(node.attr("alpha", 0.0001) / size)
    sums += x.dtype.type(node.attr("bias", 1.0))
    np.power(sums, x.dtype.type(node.attr("beta", 0.75)), out=sums)
    return np.divide(x, sums, out=sums)
