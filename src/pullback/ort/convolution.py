"""Conv and ConvGrad, mended: from a checked node to Problems, and dispatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.ops.replay import dispatch, step
from pullback.ort.attributes import conv_attributes
from pullback.ort.geometry import conv_window
from pullback.ort.registry import Node
from pullback.problem import Problem
from pullback.rules import Array
from pullback.window import Window


@dataclass(frozen=True)
class Convolution:
    """The shapes of one convolution, from which each of its three problems is made."""

    dtype: np.dtype[Any]
    batch: int
    channels_in: int
    channels_out: int
    groups: int
    window: Window

    def problem(self, op: str) -> Problem:
        return Problem(
            op, self.dtype, "channels_first", self.batch, self.channels_in, self.channels_out, self.window, groups=self.groups
        )


def _convolution(node: Node) -> Convolution:
    x, w = node.inputs["X"], node.inputs["W"]
    attrs, groups = conv_attributes(node.op_type, node.attrs, x.shape, w.shape)
    window = conv_window(node.op_type, attrs, x.shape[2:])
    return Convolution(x.dtype, x.shape[0], x.shape[1], w.shape[0], groups, window)


def conv(node: Node) -> Array:
    x, w, bias = node.inputs["X"], node.inputs["W"], node.inputs.get("B")
    convolution = _convolution(node)
    if bias is not None and bias.shape != w.shape[:1]:
        raise ValueError(f"Conv: B has shape {bias.shape} but W {w.shape} has {w.shape[0]} output channels")
    y: Array = dispatch(convolution.problem("conv"), x, w)
    if bias is None:
        return y
    result: Array = step(_add_bias, (), y, bias)
    return result


def _add_bias(y: Array, bias: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(y + bias.reshape(-1, *(1,) * (y.ndim - 2)), y.dtype)


def bias_gradient(dy: Array) -> Array:
    """dB: dY summed over batch and space, in float64, rounded once."""
    axes = (0, *range(2, dy.ndim))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(dy.astype(np.float64).sum(axis=axes).astype(dy.dtype))


def conv_grad(node: Node) -> tuple[Array | None, Array | None, Array | None]:
    dy, x, w = node.inputs["dY"], node.inputs["X"], node.inputs["W"]
    convolution = _convolution(node)
    expected = convolution.problem("conv").output_shape
    if dy.shape != expected:
        raise ValueError(f"ConvGrad: dY has shape {dy.shape} but the Conv of X {x.shape} with W {w.shape} has {expected}")
    return (
        dispatch(convolution.problem("conv_grad_input"), dy, w) if "dX" in node.wanted else None,
        dispatch(convolution.problem("conv_grad_filter"), dy, x) if "dW" in node.wanted else None,
        step(bias_gradient, (), dy) if "dB" in node.wanted else None,
    )
