"""TF.js's ops: its argument order and checks around its kernels, differentiable by `tfjs.grads` and by autograd.

Where a kernel has the op's name, the function is both: max_pool(x, 2, 1, "valid") or max_pool(inputs=..., attrs=...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from pullback.problem import check_room
from pullback.shown import shown
from pullback.tfjs import kernels_conv, kernels_dilation, kernels_pool, kernels_relu
from pullback.tfjs.backprop_ops import conv2d_backprop_input, conv3d_backprop_input
from pullback.tfjs.call import KernelFunc
from pullback.tfjs.geometry import is_number, make_window, per_axis
from pullback.tfjs.op_checks import (
    all_entries,
    as_given,
    check_one_step,
    check_pad,
    check_steps,
    ensure,
    in_batch,
    operand,
)
from pullback.tfjs.quirks import in_quirks
from pullback.tfjs.recorded import run_recorded
from pullback.tfjs.tensors import is_text, js_text

Op = Callable[..., Any]


def _or_kernel(kernel: KernelFunc) -> Callable[[Op], Op]:
    """Make an op that called with `inputs=` and `attrs=` is the kernel of its name."""

    def decorate(op: Op) -> Op:
        @wraps(op)
        def either(*args: Any, **keywords: Any) -> Any:
            return kernel(**keywords) if not args and "inputs" in keywords else op(*args, **keywords)

        either.kernel_func = kernel  # type: ignore[attr-defined]
        return either

    return decorate


def _check_rank(op: str, name: str, tensor: Any, rank: int, comma: str = "") -> Any:
    whole = in_batch(tensor, rank)
    ensure(whole.ndim == rank, f"Error in {op}: {name} must be rank {rank}{comma} but got rank {whole.ndim}.")
    return whole


@_or_kernel(kernels_pool.max_pool)
def max_pool(x: Any, filter_size: Any, strides: Any, pad: Any, dim_rounding_mode: Any = None) -> Any:
    """Maximum of each window of x, (H, W, C) or (N, H, W, C)."""
    given = operand("maxPool", "x", x)
    whole = _check_rank("maxPool", "input", given, 4)
    check_pad("maxPool", pad, dim_rounding_mode)
    attrs = {"filterSize": filter_size, "strides": strides, "pad": pad, "dimRoundingMode": dim_rounding_mode}
    return as_given(run_recorded("MaxPool", {"x": whole}, attrs), given, 4)


@_or_kernel(kernels_pool.avg_pool)
def avg_pool(x: Any, filter_size: Any, strides: Any, pad: Any, dim_rounding_mode: Any = None) -> Any:
    """Mean of each window of x, (H, W, C) or (N, H, W, C), float32 only."""
    given = operand("avgPool", "x", x, "float32")
    whole = _check_rank("avgPool", "x", given, 4)
    check_pad("avgPool", pad, dim_rounding_mode)
    attrs = {"filterSize": filter_size, "strides": strides, "pad": pad, "dimRoundingMode": dim_rounding_mode}
    return as_given(run_recorded("AvgPool", {"x": whole}, attrs), given, 4)


def _pool3d(op: str, kernel: str, given: Any, **attrs: Any) -> Any:
    whole, layout = _check_rank(op, "x", given, 5), attrs["dataFormat"]
    message = f"Only NDHWC is currently supported, but got dataFormat of {js_text(layout)}"
    ensure(is_text(layout, "NDHWC"), f"Error in {op}: {message}")
    strides = attrs["strides"]
    # A stride of 0 reaches upstream's maximum; there is no answer to give.
    ensure(all_entries(strides, lambda s: s > 0), f"Error in {op}: Stride must be > 0, but got '{js_text(strides)}'")
    check_pad(op, attrs["pad"], attrs["dimRoundingMode"])
    return as_given(run_recorded(kernel, {"x": whole}, attrs), given, 5)


@_or_kernel(kernels_pool.max_pool3d)
def max_pool3d(
    x: Any, filter_size: Any, strides: Any, pad: Any, dim_rounding_mode: Any = None, data_format: str = "NDHWC"
) -> Any:
    """Maximum of each window of x, (D, H, W, C) or (N, D, H, W, C)."""
    place = {"filterSize": filter_size, "strides": strides, "pad": pad, "dimRoundingMode": dim_rounding_mode}
    return _pool3d("maxPool3d", "MaxPool3D", operand("maxPool3d", "x", x), dataFormat=data_format, **place)


@_or_kernel(kernels_pool.avg_pool3d)
def avg_pool3d(
    x: Any, filter_size: Any, strides: Any, pad: Any, dim_rounding_mode: Any = None, data_format: str = "NDHWC"
) -> Any:
    """Mean of each window of x, (D, H, W, C) or (N, D, H, W, C), float32 only."""
    place = {"filterSize": filter_size, "strides": strides, "pad": pad, "dimRoundingMode": dim_rounding_mode}
    return _pool3d("avgPool3d", "AvgPool3D", operand("avgPool3d", "x", x, "float32"), dataFormat=data_format, **place)


@_or_kernel(kernels_pool.max_pool_with_argmax)
def max_pool_with_argmax(
    x: Any, filter_size: Any, strides: Any, pad: Any, include_batch_in_index: bool = False
) -> tuple[Any, Any]:
    """max_pool's values and the indices of the winners, of a batch of images."""
    tensor = operand("maxPoolWithArgmax", "x", x)
    attrs = {"filterSize": filter_size, "strides": strides, "pad": pad, "includeBatchInIndex": include_batch_in_index}
    values, indices = run_recorded("MaxPoolWithArgmax", {"x": tensor}, attrs)
    return values, indices


def _conv(op: str, kernel: str, x: Any, weights: Any, rank: int, channels: int, attrs: dict[str, Any]) -> Any:
    whole = _check_rank(op, "input", x, rank, ",")
    ensure(weights.ndim == rank, f"Error in {op}: filter must be rank {rank}, but got rank {weights.ndim}.")
    check_pad(op, attrs["pad"], attrs.get("dimRoundingMode"))
    depth, takes = whole.shape[channels], weights.shape[rank - 2]
    ensure(depth == takes, f"Error in {op}: depth of input ({depth}) must match input depth for filter {takes}.")
    strides, dilations, name = attrs["strides"], attrs["dilations"], f"{op[:-1]}D"
    check_one_step(name, strides, dilations)
    if rank == 5:
        layout = attrs["dataFormat"]
        message = f"got dataFormat of {js_text(layout)} but only NDHWC is currently supported."
        ensure(is_text(layout, "NDHWC"), f"Error in {op}: {message}")
    check_steps(name, strides, dilations)
    return as_given(run_recorded(kernel, {"x": whole, "filter": weights}, attrs), x, rank)


@_or_kernel(kernels_conv.conv2d)
def conv2d(
    x: Any,
    filter: Any,
    strides: Any,
    pad: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1),
    dim_rounding_mode: Any = None,
) -> Any:
    """Convolution of x with a filter (kh, kw, inC, outC), float32 only."""
    attrs = {"strides": strides, "pad": pad, "dataFormat": data_format, "dilations": dilations}
    a, weights = operand("conv2d", "x", x, "float32"), operand("conv2d", "filter", filter, "float32")
    channels = 1 if is_text(data_format, "NCHW") else 3
    return _conv("conv2d", "Conv2D", a, weights, 4, channels, attrs | {"dimRoundingMode": dim_rounding_mode})


@_or_kernel(kernels_conv.conv3d)
def conv3d(x: Any, filter: Any, strides: Any, pad: Any, data_format: str = "NDHWC", dilations: Any = (1, 1, 1)) -> Any:
    """Convolution of x with a filter (kd, kh, kw, inC, outC)."""
    attrs = {"strides": strides, "pad": pad, "dataFormat": data_format, "dilations": dilations}
    return _conv("conv3d", "Conv3D", operand("conv3d", "x", x), operand("conv3d", "filter", filter), 5, 4, attrs)


def depthwise_conv2d(
    x: Any,
    filter: Any,
    strides: Any,
    pad: Any,
    data_format: str = "NHWC",
    dilations: Any = (1, 1),
    dim_rounding_mode: Any = None,
) -> Any:
    """Convolution of each channel of x with its own filters (kh, kw, inC, multiplier), float32 only."""
    op = "depthwiseConv2d"
    given, weights = operand(op, "x", x, "float32"), operand(op, "filter", filter, "float32")
    whole = _check_rank(op, "input", given, 4, ",")
    ensure(weights.ndim == 4, f"Error in {op}: filter must be rank 4, but got rank {weights.ndim}.")
    have, takes = whole.shape[1 if is_text(data_format, "NCHW") else 3], weights.shape[2]
    ensure(
        have == takes,
        f"Error in {op}: number of input channels ({have}) must match the inChannels dimension in filter {takes}.",
    )
    check_pad(op, pad, dim_rounding_mode)
    attrs = {"strides": strides, "pad": pad, "dataFormat": data_format, "dilations": dilations}
    attrs["dimRoundingMode"] = dim_rounding_mode
    return as_given(run_recorded("DepthwiseConv2dNative", {"x": whole, "filter": weights}, attrs), given, 4)


def conv2d_transpose(
    x: Any, filter: Any, output_shape: Sequence[int], strides: Any, pad: Any, dim_rounding_mode: Any = None
) -> Any:
    """The input gradient of conv2d read forwards; the filter is (kh, kw, outC, inC)."""
    a, weights = operand("conv2dTranspose", "x", x), operand("conv2dTranspose", "filter", filter)
    return conv2d_backprop_input(output_shape, a, weights, strides, pad, "NHWC", dim_rounding_mode)


def conv3d_transpose(x: Any, filter: Any, output_shape: Sequence[int], strides: Any, pad: Any) -> Any:
    """The input gradient of conv3d read forwards; the filter is (kd, kh, kw, outC, inC)."""
    a, weights = operand("conv3dTranspose", "x", x), operand("conv3dTranspose", "filter", filter)
    return conv3d_backprop_input(output_shape, a, weights, strides, pad)


@_or_kernel(kernels_dilation.dilation2d)
def dilation2d(x: Any, filter: Any, strides: Any, pad: Any, dilations: Any = (1, 1), data_format: str = "NHWC") -> Any:
    """Maximum over each window of x plus the filter (kh, kw, C)."""
    op = "dilation2d"
    given, weights = operand(op, "x", x), operand(op, "filter", filter)
    ensure(given.ndim in (3, 4), f"Error in {op}: input must be rank 3 or 4, but got rank {given.ndim}.")
    ensure(weights.ndim == 3, f"Error in {op}: filter must be rank 3, but got rank {weights.ndim}.")
    message = f"Only NHWC is currently supported, but got dataFormat of {js_text(data_format)}"
    ensure(is_text(data_format, "NHWC"), f"Error in {op}: {message}")
    attrs = {"strides": strides, "pad": pad, "dilations": dilations}
    return as_given(run_recorded("Dilation2D", {"x": in_batch(given, 4), "filter": weights}, attrs), given, 4)


@_or_kernel(kernels_relu.relu)
def relu(x: Any) -> Any:
    """The larger of x and 0, of any shape."""
    return run_recorded("Relu", {"x": operand("relu", "x", x)})


def _in_phases(x: Any, steps: Sequence[int]) -> Any:
    """The phases of an image under its dilations as a batch: cells that lie a dilation apart become neighbours."""
    n, h, w, c = x.shape
    a, b = steps
    return x.reshape((n, h // a, a, w // b, b, c)).transpose((2, 4, 0, 1, 3, 5)).reshape((a * b * n, h // a, w // b, c))


def _out_of_phases(y: Any, steps: Sequence[int]) -> Any:
    many, h, w, c = y.shape
    a, b = steps
    return y.reshape((a, b, many // (a * b), h, w, c)).transpose((2, 3, 0, 4, 1, 5)).reshape((-1, h * a, w * b, c))


def _pad_with_zeros(x: Any, pads: Sequence[tuple[int, int]]) -> Any:
    for axis, pair in enumerate(pads, 1):
        low, high = (np.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype) for n in pair)
        x = _concatenate([low, x, high], axis)
    return x


def _concatenate(parts: list[Any], axis: int) -> Any:
    if isinstance(parts[1], np.ndarray):
        return np.concatenate(parts, axis)
    from autograd import numpy as recorded_numpy

    return recorded_numpy.concatenate(parts, axis)


def pool(
    input: Any,
    window_shape: Any,
    pooling_type: str,
    pad: Any,
    dilations: Any = (1, 1),
    strides: Any = 1,
    dim_rounding_mode: Any = None,
) -> Any:
    """Pooling ("max" or "avg") whose window may be dilated. Under "same" a dilated window sees zeros beyond the edge."""
    op = "pool"
    given = operand("maxPool", "x", input)
    pad = "valid" if is_number(pad) and pad == 0 else pad
    ensure(
        is_text(pooling_type, "max", "avg"),
        f"Error in {op}: the pooling type is {shown(pooling_type)}; it must be 'max' or 'avg'",
    )
    whole = _check_rank(op, "x", given, 4)
    check_one_step(op, strides, dilations)
    forward = avg_pool if pooling_type == "avg" else max_pool
    taps, steps = (per_axis(op, name, value, 2) for name, value in (("windowShape", window_shape), ("dilations", dilations)))
    if max(steps) == 1:
        return as_given(forward(whole, taps, strides, pad, dim_rounding_mode), given, 4)
    size = whole.shape[1:3]
    make_window(op, size, taps, strides=strides, dilations=dilations, pad=pad, mode=None)
    if not isinstance(pad, str) and not in_quirks():
        raise ValueError(f"Error in {op}: pad is {shown(pad)}; with dilations TF.js drops it, use 'same' or 'valid'")
    zeros_around = is_text(pad, "same")
    spread = [(k - 1) * d if zeros_around else 0 for k, d in zip(taps, steps, strict=True)]
    # Zeros up to whole phases at the end; the windows that see them are cut off again.
    extra = [-(n + both) % d for n, both, d in zip(size, spread, steps, strict=True)]
    pads = [(both // 2, both - both // 2 + more) for both, more in zip(spread, extra, strict=True)]
    padded = (low + n + high for n, (low, high) in zip(size, pads, strict=True))
    check_room(op, (whole.shape[0], *padded, whole.shape[3]), whole.dtype.itemsize)
    pooled = forward(_in_phases(_pad_with_zeros(whole, pads), steps), taps, strides, "valid", dim_rounding_mode)
    y = _out_of_phases(pooled, steps)
    return as_given(y[:, : y.shape[1] - extra[0], : y.shape[2] - extra[1]], given, 4)
