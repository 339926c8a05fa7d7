"""ONNX Runtime's pooling and convolution kernels with their gradients, spoken over pullback's own kernels.

`run_kernel` takes an operator's ONNX name; each operator is also a function of its own. Defects of 1.19.2 are mended, and
reproduced inside `with quirks():`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.ort import kernels as _kernels  # noqa: F401  (registers the built-in kernels)
from pullback.ort.quirks import quirks
from pullback.ort.registry import KernelDef, Node, find_kernel, register_kernel, unregister_kernel
from pullback.ort.run import run_kernel

__all__ = [
    "KernelDef",
    "Node",
    "average_pool",
    "average_pool_grad",
    "conv",
    "conv_grad",
    "find_kernel",
    "max_pool",
    "max_pool_grad",
    "quirks",
    "register_kernel",
    "run_kernel",
    "unregister_kernel",
]


def max_pool(inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    """MaxPool of X: the tuple (Y, Indices)."""
    return run_kernel("MaxPool", inputs, attrs, **keywords)


def average_pool(inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    """AveragePool of X."""
    return run_kernel("AveragePool", inputs, attrs, **keywords)


def conv(inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    """Conv of X with W and, if given, the bias B."""
    return run_kernel("Conv", inputs, attrs, **keywords)


def max_pool_grad(inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    """MaxPoolGrad of dY and Indices: dX of shape `output_shape`."""
    return run_kernel("MaxPoolGrad", inputs, attrs, **keywords)


def average_pool_grad(inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    """AveragePoolGrad of dY: dX of shape `output_shape`."""
    return run_kernel("AveragePoolGrad", inputs, attrs, **keywords)


def conv_grad(inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    """ConvGrad of dY, X and W: the tuple (dX, dW, dB)."""
    return run_kernel("ConvGrad", inputs, attrs, **keywords)
