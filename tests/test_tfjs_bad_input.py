"""What TF.js's kernels refuse: one ValueError or TypeError that says what is wrong, in both modes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from pullback import tfjs


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


POOL_ATTRS = {"filterSize": 2, "strides": 1, "pad": "valid"}
CONV_ATTRS = {"strides": 1, "pad": "valid", "dilations": 1, "dataFormat": "NHWC"}
# One valid call per kernel; each test below spoils one thing in it.
VALID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "MaxPool": ({"x": ones(1, 4, 4, 2)}, POOL_ATTRS),
    "AvgPool": ({"x": ones(1, 4, 4, 2)}, POOL_ATTRS),
    "MaxPoolWithArgmax": ({"x": ones(1, 4, 4, 2)}, POOL_ATTRS),
    "MaxPoolGrad": ({"dy": ones(1, 3, 3, 2), "input": ones(1, 4, 4, 2)}, POOL_ATTRS),
    "AvgPoolGrad": ({"dy": ones(1, 3, 3, 2), "input": ones(1, 4, 4, 2)}, POOL_ATTRS),
    "MaxPool3D": ({"x": ones(1, 3, 3, 3, 2)}, POOL_ATTRS),
    "AvgPool3D": ({"x": ones(1, 3, 3, 3, 2)}, POOL_ATTRS),
    "MaxPool3DGrad": ({"dy": ones(1, 2, 2, 2, 2), "input": ones(1, 3, 3, 3, 2)}, POOL_ATTRS),
    "AvgPool3DGrad": ({"dy": ones(1, 2, 2, 2, 2), "input": ones(1, 3, 3, 3, 2)}, POOL_ATTRS),
    "Conv2D": ({"x": ones(1, 4, 4, 2), "filter": ones(2, 2, 2, 3)}, CONV_ATTRS),
    "Conv2DBackpropInput": (
        {"dy": ones(1, 3, 3, 3), "filter": ones(2, 2, 2, 3)},
        CONV_ATTRS | {"inputShape": [1, 4, 4, 2]},
    ),
    "Conv2DBackpropFilter": ({"x": ones(1, 4, 4, 2), "dy": ones(1, 3, 3, 3)}, CONV_ATTRS | {"filterShape": [2, 2, 2, 3]}),
    "Conv3D": ({"x": ones(1, 3, 3, 3, 2), "filter": ones(2, 2, 2, 2, 3)}, CONV_ATTRS),
    "Conv3DBackpropInputV2": (
        {"dy": ones(1, 2, 2, 2, 3), "filter": ones(2, 2, 2, 2, 3)},
        CONV_ATTRS | {"inputShape": [1, 3, 3, 3, 2]},
    ),
    "Conv3DBackpropFilterV2": (
        {"x": ones(1, 3, 3, 3, 2), "dy": ones(1, 2, 2, 2, 3)},
        CONV_ATTRS | {"filterShape": [2, 2, 2, 2, 3]},
    ),
    "DepthwiseConv2dNative": ({"x": ones(1, 4, 4, 2), "filter": ones(2, 2, 2, 3)}, CONV_ATTRS),
    "DepthwiseConv2dNativeBackpropInput": (
        {"dy": ones(1, 3, 3, 6), "filter": ones(2, 2, 2, 3)},
        CONV_ATTRS | {"inputShape": [1, 4, 4, 2]},
    ),
    "DepthwiseConv2dNativeBackpropFilter": (
        {"x": ones(1, 4, 4, 2), "dy": ones(1, 3, 3, 6)},
        CONV_ATTRS | {"filterShape": [2, 2, 2, 3]},
    ),
    "Dilation2D": ({"x": ones(1, 4, 4, 2), "filter": ones(2, 2, 2)}, CONV_ATTRS),
    "Dilation2DBackpropInput": ({"x": ones(1, 4, 4, 2), "filter": ones(2, 2, 2), "dy": ones(1, 3, 3, 2)}, CONV_ATTRS),
    "Dilation2DBackpropFilter": ({"x": ones(1, 4, 4, 2), "filter": ones(2, 2, 2), "dy": ones(1, 3, 3, 2)}, CONV_ATTRS),
}
GRADIENTS = [name for name in VALID if "Grad" in name or "Backprop" in name]
CONV_GRADIENTS = [name for name in GRADIENTS if "Conv" in name]

every_kernel = pytest.mark.parametrize("kernel", VALID)
both_modes = pytest.mark.parametrize("mode", [nullcontext, tfjs.quirks], ids=["default", "quirks"])


def refuses(mode: Any, kernel: str, inputs: dict[str, Any], attrs: dict[str, Any], match: str) -> None:
    with mode(), pytest.raises((ValueError, TypeError), match=match):
        tfjs.run_kernel(kernel, inputs, attrs)


@both_modes
@every_kernel
def test_the_valid_call_is_valid(kernel: str, mode: Any) -> None:
    assert set(VALID) == {config.kernel_name for config in tfjs.get_kernels_for_backend("cpu")}
    with mode():
        tfjs.run_kernel(kernel, *VALID[kernel])


@both_modes
@every_kernel
def test_missing_inputs_and_mappings(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    for name in inputs:
        rest = {key: value for key, value in inputs.items() if key != name}
        refuses(mode, kernel, rest, attrs, f"the input '{name}' is missing")
    refuses(mode, kernel, [1], attrs, "inputs must be a mapping")
    refuses(mode, kernel, inputs, 3, "attrs must be a mapping")


@both_modes
@every_kernel
def test_missing_attributes(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    optional = {"dataFormat"} if kernel not in ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter") else set()
    if kernel in ("DepthwiseConv2dNative",) or (kernel in CONV_GRADIENTS and "Depthwise" not in kernel):
        optional.add("dilations")
    for name in attrs:
        rest = {key: value for key, value in attrs.items() if key != name}
        if name in optional:
            with mode():
                tfjs.run_kernel(kernel, inputs, rest)
        else:
            refuses(mode, kernel, inputs, rest, f"{name}|Unknown padding parameter: undefined|Unknown dataFormat undefined")


@both_modes
@every_kernel
def test_complex_inputs(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    for name, array in inputs.items():
        if mode is tfjs.quirks and (kernel, name) == ("MaxPoolGrad", "dy"):
            continue
        refuses(
            mode, kernel, inputs | {name: array.astype(np.complex128)}, attrs, "does not support complex64 tensors in the CPU"
        )


@both_modes
@every_kernel
def test_wrong_rank(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    for name, array in inputs.items():
        refuses(mode, kernel, inputs | {name: array[0]}, attrs, "rank")


@both_modes
@every_kernel
@pytest.mark.parametrize("value", [np.array(["a"]), np.array([None]), np.ma.masked_array([1.0]), np.array([2**40])])
def test_no_numbers_of_tfjs(kernel: str, value: Any, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    refuses(mode, kernel, inputs | {next(iter(inputs)): value}, attrs, "dtype|masked")


@both_modes
@every_kernel
@pytest.mark.parametrize("strides", [0, -1, [1, 0, 1], 1.5, "2", True, [1], None])
def test_bad_strides(kernel: str, strides: Any, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    refuses(mode, kernel, inputs, attrs | {"strides": strides}, "strides")


@both_modes
@every_kernel
@pytest.mark.parametrize("pad", ["full", "SAME", None, True, {"a": 1}])
def test_unknown_pads(kernel: str, pad: Any, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    refuses(mode, kernel, inputs, attrs | {"pad": pad}, "^Unknown padding parameter: ")


@both_modes
@every_kernel
@pytest.mark.parametrize("pad", [[[0, 0]], [0, 0, 0, 0], 0.5, [[0, 0], [0.5, 0], [0, 0], [0, 0]]], ids=str)
def test_malformed_pads(kernel: str, pad: Any, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    refuses(mode, kernel, inputs, attrs | {"pad": pad}, "pad")


@both_modes
@pytest.mark.parametrize("kernel", [name for name in VALID if "Pool" in name])
@pytest.mark.parametrize("size", [0, -2, [2, 0], 1.5, "2", None])
def test_bad_filter_sizes(kernel: str, size: Any, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    refuses(mode, kernel, inputs, attrs | {"filterSize": size}, "filterSize")


@both_modes
@pytest.mark.parametrize("kernel", ["Conv2D", "Conv3D", "Dilation2D", "DepthwiseConv2dNativeBackpropInput"])
@pytest.mark.parametrize("dilations", [0, -1, 1.5, "2"])
def test_bad_dilations(kernel: str, dilations: Any, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    refuses(mode, kernel, inputs, attrs | {"dilations": dilations}, "dilations")


@both_modes
@pytest.mark.parametrize("kernel", GRADIENTS)
@pytest.mark.parametrize("axis", range(4))
def test_dy_too_small(kernel: str, axis: int, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    short = np.delete(inputs["dy"], 0, axis)
    refuses(mode, kernel, inputs | {"dy": short}, attrs, "out of range|channels|does not match the input size")


@pytest.mark.parametrize("kernel", [name for name in GRADIENTS if not name.startswith("Dilation")])
def test_a_surplus_of_dy_is_ignored(kernel: str) -> None:
    inputs, attrs = VALID[kernel]
    channels_too = "Pool" in kernel
    extra = [(0, 1)] * (inputs["dy"].ndim - 1) + [(0, int(channels_too))]
    larger = np.pad(inputs["dy"], extra, constant_values=7)
    expected = tfjs.run_kernel(kernel, inputs, attrs)
    np.testing.assert_array_equal(tfjs.run_kernel(kernel, inputs | {"dy": larger}, attrs), expected)


def test_a_missing_dy_that_is_never_read_is_no_error() -> None:
    x = ones(1, 2, 2, 1)
    x[0, :, 1] = np.nan  # the second window has no winner
    dx = tfjs.run_kernel("MaxPoolGrad", {"dy": ones(1, 2, 1, 1), "input": x}, {"filterSize": 1, "strides": 1, "pad": 0})
    np.testing.assert_array_equal(dx.reshape(-1), [1, 0, 1, 0])
    # Windows wholly in the padding: 4 x 4 outputs of a 1 x 1 filter, of which only the middle 2 x 2 touch the input.
    dx = tfjs.run_kernel("AvgPoolGrad", {"dy": ones(1, 3, 3, 1), "input": x}, {"filterSize": 1, "strides": 1, "pad": 1})
    np.testing.assert_array_equal(dx.reshape(-1), [1, 1, 1, 1])


@both_modes
@pytest.mark.parametrize("kernel", [name for name in VALID if "Conv" in name])
def test_channels_that_disagree(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    for name in inputs.keys() - {"filter"}:
        doubled = np.concatenate([inputs[name], inputs[name]], -1)
        refuses(mode, kernel, inputs | {name: doubled}, attrs, "channels")
    for name in ("inputShape", "filterShape"):
        if name in attrs:
            wrong = [*attrs[name][:-2], attrs[name][-2] + (name == "filterShape"), attrs[name][-1] + (name == "inputShape")]
            refuses(mode, kernel, inputs, attrs | {name: wrong}, "channels")


@both_modes
@pytest.mark.parametrize(
    "kernel", [name for name in VALID if "inputShape" in VALID[name][1] or "filterShape" in VALID[name][1]]
)
@pytest.mark.parametrize("shape", [None, 4, "1144", [1, 4, 4], [1, -4, 4, 2], [1, 4.5, 4, 2]], ids=str)
def test_bad_shapes(kernel: str, shape: Any, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    name = "inputShape" if "inputShape" in attrs else "filterShape"
    refuses(mode, kernel, inputs, attrs | {name: shape}, name)


@both_modes
@pytest.mark.parametrize("kernel", ["MaxPool", "AvgPool", "MaxPoolGrad", "AvgPoolGrad", "MaxPoolWithArgmax"])
def test_pools_that_do_not_fit(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    message = r"^Tensor must have a shape comprised of positive integers but got shape \[1,-2,-2,2\]\."
    refuses(mode, kernel, inputs, attrs | {"filterSize": 7}, message)


@both_modes
@pytest.mark.parametrize("kernel", ["Conv2D", "DepthwiseConv2dNative", "Dilation2D"])
@pytest.mark.parametrize("size", [(7, 2), (7, 7)])
def test_convolutions_that_do_not_fit(kernel: str, size: tuple[int, int], mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    large = ones(*size, *inputs["filter"].shape[2:])
    refuses(mode, kernel, inputs | {"filter": large}, attrs, "negative output size")


@both_modes
def test_unknown_rounding_only_where_rounding_is_needed(mode: Any) -> None:
    inputs, attrs = VALID["MaxPool"]
    refuses(mode, "MaxPool", inputs, attrs | {"pad": 0, "dimRoundingMode": "up"}, "^Unknown roundingMode up")
    with mode():
        tfjs.run_kernel("MaxPool", inputs, attrs | {"dimRoundingMode": "up"})


@both_modes
def test_windows_beyond_the_input_have_no_dilation_gradient(mode: Any) -> None:
    inputs = {"x": ones(1, 2, 2, 1), "filter": ones(1, 1, 1), "dy": ones(1, 4, 4, 1)}
    refuses(mode, "Dilation2DBackpropInput", inputs, {"strides": 1, "pad": 1, "dilations": 1}, "start beyond the input")


@both_modes
def test_bool_sums_are_refused(mode: Any) -> None:
    inputs, attrs = VALID["Conv2D"]
    refuses(mode, "Conv2D", inputs | {"x": inputs["x"].astype(bool)}, attrs, "bool")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64, np.uint16, np.bool_, ">f4"])
@pytest.mark.parametrize("kernel", GRADIENTS)
def test_other_numbers_are_taken_as_those_of_tfjs(kernel: str, dtype: Any) -> None:
    inputs, attrs = VALID[kernel]
    result = tfjs.run_kernel(kernel, {name: array.astype(dtype) for name, array in inputs.items()}, attrs)
    np.testing.assert_array_equal(result, tfjs.run_kernel(kernel, inputs, attrs).astype(result.dtype))
    if not kernel.startswith("Dilation"):
        assert result.dtype == np.float32


@both_modes
@every_kernel
def test_strided_read_only_inputs_are_left_alone(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    rng = np.random.default_rng(0)
    plain = {name: rng.integers(-3, 4, array.shape).astype(np.float32) for name, array in inputs.items()}
    strided = {name: np.asfortranarray(array)[...] for name, array in plain.items()}
    for array in strided.values():
        array.setflags(write=False)
    with mode():
        results = tfjs.run_kernel(kernel, strided, attrs), tfjs.run_kernel(kernel, plain, attrs)
    np.testing.assert_array_equal(*results)
