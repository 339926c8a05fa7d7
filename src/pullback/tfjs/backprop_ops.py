"""TF.js's ops behind its gradients, which it does not export: the same checks, in the same order, before the kernels.

Two of them are also the forward pass of the transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.tfjs.op_checks import as_given, check_pad, ensure, in_batch, operand, sizes
from pullback.tfjs.recorded import run_recorded
from pullback.tfjs.tensors import is_text, js_text


def _pool_attrs(filter_size: Any, strides: Any, pad: Any, mode: Any) -> dict[str, Any]:
    return {"filterSize": filter_size, "strides": strides, "pad": pad, "dimRoundingMode": mode}


def _conv2d_attrs(strides: Any, pad: Any, data_format: str, mode: Any) -> tuple[int, dict[str, Any]]:
    """The axis of the channels, and the attributes."""
    attrs = {"strides": strides, "pad": pad, "dataFormat": data_format, "dimRoundingMode": mode}
    return 1 if is_text(data_format, "NCHW") else 3, attrs


def _dy_and_input(op: str, dy: Any, input: Any, rank: int, *, batchless: bool) -> tuple[Any, Any, Any]:
    d, x = operand(op, "dy", dy), operand(op, "input", input)
    if rank == 4:
        ensure(x.ndim == d.ndim, f"Rank of input ({x.ndim}) does not match rank of dy ({d.ndim})")
    d4, x4 = (in_batch(d, rank), in_batch(x, rank)) if batchless else (d, x)
    ensure(d4.ndim == rank, f"Error in {op}: dy must be rank {rank} but got rank {d4.ndim}.")
    ensure(x4.ndim == rank, f"Error in {op}: input must be rank {rank} but got rank {x4.ndim}.")
    return d4, x4, x


def max_pool_grad(
    dy: Any, input: Any, output: Any, filter_size: Any, strides: Any, pad: Any, dim_rounding_mode: Any = None
) -> Any:
    """Gradient of max_pool; `output` is not looked at."""
    op = "maxPoolGrad"
    d, x, _ = _dy_and_input(op, dy, input, 4, batchless=False)
    check_pad(op, pad, dim_rounding_mode)
    attrs = _pool_attrs(filter_size, strides, pad, dim_rounding_mode)
    return run_recorded("MaxPoolGrad", {"dy": d, "input": x}, attrs)


def avg_pool_grad(dy: Any, input: Any, filter_size: Any, strides: Any, pad: Any) -> Any:
    """Gradient of avg_pool; it takes no rounding mode."""
    d, x, given = _dy_and_input("avgPoolGrad", dy, input, 4, batchless=True)
    attrs = {"filterSize": filter_size, "strides": strides, "pad": pad}
    return as_given(run_recorded("AvgPoolGrad", {"dy": d, "input": x}, attrs), given, 4)


def _pool3d_grad(op: str, kernel: str, dy: Any, input: Any, attrs: dict[str, Any]) -> Any:
    d, x, given = _dy_and_input(op, dy, input, 5, batchless=True)
    check_pad(op, attrs["pad"], attrs["dimRoundingMode"])
    return as_given(run_recorded(kernel, {"dy": d, "input": x}, attrs), given, 5)


def max_pool3d_grad(
    dy: Any, input: Any, output: Any, filter_size: Any, strides: Any, pad: Any, dim_rounding_mode: Any = None
) -> Any:
    """Gradient of max_pool3d; `output` is not looked at."""
    attrs = _pool_attrs(filter_size, strides, pad, dim_rounding_mode)
    return _pool3d_grad("maxPool3dGrad", "MaxPool3DGrad", dy, input, attrs)


def avg_pool3d_grad(dy: Any, input: Any, filter_size: Any, strides: Any, pad: Any, dim_rounding_mode: Any = None) -> Any:
    """Gradient of avg_pool3d."""
    attrs = _pool_attrs(filter_size, strides, pad, dim_rounding_mode)
    return _pool3d_grad("avgPool3dGrad", "AvgPool3DGrad", dy, input, attrs)


def _input_gradient(
    name: str, kernel: str, shape: Sequence[int], dy: Any, filter: Any, rank: int, channels: int, attrs: dict[str, Any]
) -> Any:
    d, weights, size = operand(name, "dy", dy), operand(name, "filter", filter), sizes(name, "inShape", shape)
    ensure(len(size) == d.ndim, f"Length of inShape ({len(size)}) and rank of dy ({d.ndim}) must match")
    whole, d4 = [1, *size] if d.ndim == rank - 1 else size, in_batch(d, rank)
    ensure(len(whole) == rank, f"Error in {name}: inShape must be length {rank}, but got length {len(whole)}.")
    ensure(d4.ndim == rank, f"Error in {name}: dy must be rank {rank}, but got rank {d4.ndim}")
    ensure(weights.ndim == rank, f"Error in {name}: filter must be rank {rank}, but got rank {weights.ndim}")
    have, make = weights.shape[rank - 2], weights.shape[rank - 1]
    depth_in, depth_out = whole[channels], d4.shape[channels]
    ensure(depth_in == have, f"Error in {name}: depth of input ({depth_in}) must match input depth for filter {have}.")
    ensure(depth_out == make, f"Error in {name}: depth of output ({depth_out}) must match output depth for filter {make}.")
    check_pad(name, attrs["pad"], attrs.get("dimRoundingMode"))
    return as_given(run_recorded(kernel, {"dy": d4, "filter": weights}, {**attrs, "inputShape": whole}), d, rank)


def conv2d_backprop_input(
    x_shape: Sequence[int],
    dy: Any,
    filter: Any,
    strides: Any,
    pad: Any,
    data_format: str = "NHWC",
    dim_rounding_mode: Any = None,
) -> Any:
    """Gradient of conv2d for its input."""
    channels, attrs = _conv2d_attrs(strides, pad, data_format, dim_rounding_mode)
    return _input_gradient("conv2dDerInput", "Conv2DBackpropInput", x_shape, dy, filter, 4, channels, attrs)


def conv3d_backprop_input(x_shape: Sequence[int], dy: Any, filter: Any, strides: Any, pad: Any) -> Any:
    """Gradient of conv3d for its input."""
    attrs = {"strides": strides, "pad": pad}
    return _input_gradient("conv3dDerInput", "Conv3DBackpropInputV2", x_shape, dy, filter, 5, 4, attrs)


def _filter_gradient(
    name: str, kernel: str, x: Any, dy: Any, shape: Sequence[int], rank: int, channels: int, attrs: dict[str, Any]
) -> Any:
    a, d = in_batch(operand(name, "x", x), rank), in_batch(operand(name, "dy", dy), rank)
    shape = sizes(name, "filterShape", shape)
    ensure(a.ndim == rank, f"Error in {name}: input must be rank {rank}, but got shape {js_text(a.shape)}.")
    ensure(d.ndim == rank, f"Error in {name}: dy must be rank {rank}, but got shape {js_text(d.shape)}.")
    ensure(len(shape) == rank, f"Error in {name}: filterShape must be length {rank}, but got {js_text(shape)}.")
    *_, takes, makes = shape
    depth_in, depth_out = a.shape[channels], d.shape[channels]
    ensure(depth_in == takes, f"Error in {name}: depth of input {depth_in}) must match input depth in filter ({takes}.")
    ensure(depth_out == makes, f"Error in {name}: depth of dy ({depth_out}) must match output depth for filter ({makes}).")
    check_pad(name, attrs["pad"], attrs.get("dimRoundingMode"))
    return run_recorded(kernel, {"x": a, "dy": d}, {**attrs, "filterShape": shape})


def conv2d_backprop_filter(
    x: Any,
    dy: Any,
    filter_shape: Sequence[int],
    strides: Any,
    pad: Any,
    data_format: str = "NHWC",
    dim_rounding_mode: Any = None,
) -> Any:
    """Gradient of conv2d for its filter."""
    channels, attrs = _conv2d_attrs(strides, pad, data_format, dim_rounding_mode)
    return _filter_gradient("conv2dDerFilter", "Conv2DBackpropFilter", x, dy, filter_shape, 4, channels, attrs)


def conv3d_backprop_filter(x: Any, dy: Any, filter_shape: Sequence[int], strides: Any, pad: Any) -> Any:
    """Gradient of conv3d for its filter."""
    attrs = {"strides": strides, "pad": pad}
    return _filter_gradient("conv3dDerFilter", "Conv3DBackpropFilterV2", x, dy, filter_shape, 5, 4, attrs)
