"""What TF.js's kernels refuse: one ValueError or TypeError that says what is wrong, in both modes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from endless import LISTS, NO_END

from pullback import tfjs
from pullback.ops.arguments import LARGEST
from pullback.shown import shown


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
    assert {*VALID, "Relu"} == {config.kernel_name for config in tfjs.get_kernels_for_backend("cpu")}  # which takes any rank
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


BEYOND = (LARGEST + 1, -LARGEST - 1, 2**63, float(2**60), 1e300, np.float32(1e30), np.uint64(2**63))


@both_modes
@every_kernel
def test_numbers_beyond_the_largest_size(kernel: str, mode: Any) -> None:
    """Of every attribute that holds numbers, alone and in a list; JavaScript's numbers have no end either."""
    inputs, attrs = VALID[kernel]
    rank = next(iter(inputs.values())).ndim - 2
    numeric = {name for name in attrs if name != "dataFormat"}
    unread = {"dilations"} if kernel in CONV_GRADIENTS and "Depthwise" not in kernel else set()
    for name in sorted(numeric - unread):
        shape = attrs[name] if name.endswith("Shape") else None
        for number in BEYOND:
            values = [[number, *shape[1:]]] if shape else [number] + ([[number] * rank] if name != "pad" else [])
            for value in values:
                words = f"{kernel}: {name} holds .*, beyond the largest size"
                refuses(mode, kernel, inputs, attrs | {name: value}, words)


@pytest.mark.parametrize("kernel", ["MaxPool", "AvgPoolGrad", "MaxPool3D"])
def test_windows_of_too_many_taps(kernel: str) -> None:
    inputs, attrs = VALID[kernel]
    large = attrs | {"filterSize": 2**20, "pad": 2**20}
    refuses(nullcontext, kernel, inputs, large, f"{kernel}: a window of .* has .* taps; the most is ")


@both_modes
@every_kernel
def test_lists_without_an_end(kernel: str, mode: Any) -> None:
    inputs, attrs = VALID[kernel]
    unread = {"dilations", "dataFormat"} if "3D" in kernel or kernel in CONV_GRADIENTS else set()
    unread |= {"dataFormat"} if "Dilation" in kernel or (mode is tfjs.quirks and "Depthwise" in kernel) else set()
    for value in NO_END:
        for name in attrs.keys() - unread:
            with mode(), pytest.raises((TypeError, ValueError)) as caught:
                tfjs.run_kernel(kernel, inputs, attrs | {name: value})
            assert len(str(caught.value)) < 500
    for value in LISTS:
        for name in inputs:
            refuses(mode, kernel, inputs | {name: value}, attrs, f"{kernel}: {name} is not an array")


@pytest.mark.parametrize("value", LISTS, ids=shown)
def test_ops_refuse_lists_without_an_end(value: Any) -> None:
    x, weights = ones(1, 4, 4, 2), ones(2, 2, 2, 3)
    calls: dict[str, tuple[Any, ...]] = {
        "max_pool": (x, 2, 1, "valid", None), "avg_pool": (x, 2, 1, "valid", None), "pool": (x, 2, "max", "valid", 1, 1, None),
        "conv2d": (x, weights, 1, "valid", "NHWC", 1, None),
        "conv2d_transpose": (ones(1, 3, 3, 3), weights, [1, 4, 4, 2], 1, "valid"),
        "depthwise_conv2d": (x, weights, 1, "valid", "NHWC", 1, None), "dilation2d": (x, weights[..., 0], 1, "valid", 1, "NHWC"),
    }  # fmt: skip
    for op, arguments in calls.items():
        getattr(tfjs, op)(*arguments)
        for place in range(len(arguments)):
            if op in ("max_pool", "avg_pool", "conv2d", "depthwise_conv2d", "pool") and place == len(arguments) - 1:
                continue  # a rounding mode is read only beside a number for a pad
            with pytest.raises((TypeError, ValueError)) as caught:
                getattr(tfjs, op)(*arguments[:place], value, *arguments[place + 1 :])
            assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match="dimRoundingMode"):
        tfjs.max_pool(x, 2, 1, "valid", value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((5, {}, {}), "run_kernel: kernel_name must be a string, not 5"),
        (([], {}, {}), "run_kernel: kernel_name must be a string"),
        (("MaxPool", 5, {}), "MaxPool: inputs must be a mapping of names to values, not 5"),
        (("MaxPool", [ones(1, 4, 4, 2)], {}), "MaxPool: inputs must be a mapping"),
        (("MaxPool", None, {}), "MaxPool: inputs must be a mapping"),
        (("MaxPool", {"x": ones(1, 4, 4, 2)}, 5), "MaxPool: attrs must be a mapping of names to values, not 5"),
        (("MaxPool", {"x": ones(1, 4, 4, 2)}, "abc"), "MaxPool: attrs must be a mapping"),
        (("MaxPool", {"x": ones(1, 4, 4, 2)}, POOL_ATTRS, []), "run_kernel: backend must be the name of one"),
        (("MaxPool", {"x": ones(1, 4, 4, 2)}, POOL_ATTRS | {"dimRoundingMode": np.array(["a", "b"]), "pad": 0}), "Unknown rou"),
        (("MaxPoolWithArgmax", {"x": ones(1, 4, 4, 2)}, POOL_ATTRS | {"includeBatchInIndex": np.ones(2)}), "includeBatchInIndex"),
    ],
)  # fmt: skip
def test_arguments_of_a_wrong_kind(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        tfjs.run_kernel(*arguments)


def test_zeros_for_a_dilated_pool_that_no_machine_holds() -> None:
    with pytest.raises(MemoryError, match=r"pool: an array of shape .* more than there is"):
        tfjs.pool(ones(1, 4, 4, 2), 4096, "max", "same", LARGEST)
