"""What the ORT dialect refuses: one exception that names the operator, the argument, the shapes and the rule."""

import contextlib

import numpy as np
import pytest
from endless import LISTS, NO_END

from pullback import ort
from pullback.ops.arguments import LARGEST
from pullback.shown import shown

X2 = np.ones((1, 1, 4, 4), np.float32)
W2 = np.ones((1, 1, 3, 3), np.float32)
DY2 = np.ones((1, 1, 2, 2), np.float32)
I2 = np.arange(4).reshape(1, 1, 2, 2)
K2 = {"kernel_shape": [2, 2], "strides": [2, 2]}

MODES = pytest.mark.parametrize("context", [contextlib.nullcontext, ort.quirks], ids=["default", "quirks"])


def refused(context, error, message, op, inputs, attrs=None, **keywords):
    with context(), pytest.raises(error, match=message) as refusal:
        ort.run_kernel(op, inputs, attrs, **keywords)
    assert len(str(refusal.value)) < 400


@MODES
@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({}, "Required attribute 'kernel_shape' is missing"),
        ({"kernel_shape": None}, "Required attribute 'kernel_shape' is missing"),
        ({"kernel_shape": []}, "No kernel shape is set"),
        ({"kernel_shape": [0, 2]}, "kernel_shape is .*at least 1"),
        ({"kernel_shape": [2]}, r"kernel_shape num_dims is not compatible with X num_dims.*\(1, 1, 4, 4\)"),
        ({"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, "Pad should be smaller than kernel"),
        ({"kernel_shape": [2, 2], "pads": [0, 0, 0, 2]}, "Pad should be smaller than kernel"),
        ({"kernel_shape": [2, 2], "pads": [-1, 0, 0, 0]}, "pads .*negative"),
        ({"kernel_shape": [2, 2], "pads": [1, 1]}, "pads_.size"),
        ({"kernel_shape": [2, 2], "strides": [1]}, "strides_.size"),
        ({"kernel_shape": [2, 2], "strides": [0, 1]}, "strides is .*at least 1"),
        ({"kernel_shape": [2, 2], "dilations": [1, 1, 1]}, "Dilations dimensions should match kernel shape"),
        ({"kernel_shape": [2, 2], "dilations": [0, 1]}, "dilations is .*at least 1"),
        ({"kernel_shape": [2, 2], "auto_pad": "SAME"}, "Unknown AutoPadType String.*'SAME'"),
        ({"kernel_shape": [5, 2]}, r"does not fit into the input \[4, 4\]"),
        ({"kernel_shape": [2, 2], "dilations": [4, 1]}, "does not fit"),
        ({"kernel_shape": [2, 2], "group": 1}, "Unrecognized attribute: group"),
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pool_attributes(context, op, attrs, message):
    refused(context, ValueError, message, op, {"X": X2}, attrs)


@MODES
@pytest.mark.parametrize(
    ("shape", "kernel", "message"),
    [
        ((4, 4), [2], "Input dimension cannot be less than 3"),
        ((1, 1, 2, 2, 2, 2), [1, 1, 1, 1], "Unsupported pooling size"),
        ((1, 0, 4, 4), [2, 2], r"Only N can be zero. Got: \(1, 0, 4, 4\)"),
        ((1, 1, 0, 4), [2, 2], "Only N can be zero"),
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pool_shapes(context, op, shape, kernel, message):
    refused(context, ValueError, message, op, {"X": np.ones(shape, np.float32)}, {"kernel_shape": kernel})


@MODES
@pytest.mark.parametrize(
    ("name", "value"), [("kernel_shape", 2), ("kernel_shape", "22"), ("kernel_shape", [2.0, 2]), ("strides", [True, True])]
)
def test_attributes_of_a_wrong_kind(context, name, value):
    refused(context, TypeError, f"MaxPool: {name} must be", "MaxPool", {"X": X2}, K2 | {name: value})


def test_storage_order_is_0_or_1_by_default():
    message = "storage_order is 2"
    refused(contextlib.nullcontext, ValueError, message, "MaxPool", {"X": X2}, K2 | {"storage_order": 2})
    gradient = {"dY": DY2, "Indices": I2}
    refused(contextlib.nullcontext, ValueError, message, "MaxPoolGrad", gradient, {"storage_order": 2}, output_shape=X2.shape)


@MODES
@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({}, ValueError, r"input size 0 not in range \[min=1, max=1\].*needs X"),
        ({"x": X2}, ValueError, "no input 'x'; the inputs are X"),
        ({"X": None}, ValueError, "needs X"),
        ({"X": X2.astype(np.int64)}, TypeError, r"Type 'tensor\(int64\)' of input parameter \(X\) of operator \(MaxPool\)"),
        ({"X": X2 > 0}, TypeError, r"tensor\(bool\)"),
        ({"X": X2 + 0j}, TypeError, r"tensor\(complex"),
        ({"X": np.ma.masked_array(X2)}, TypeError, "masked"),
    ],
)
def test_inputs(context, inputs, error, message):
    refused(context, error, message, "MaxPool", inputs, K2)


@MODES
@pytest.mark.parametrize("outputs", [(), ("Z",), "dX", ("Y", "Mask")])
def test_outputs(context, outputs):
    refused(context, ValueError, "MaxPool: outputs is", "MaxPool", {"X": X2}, K2, outputs=outputs)


@MODES
@pytest.mark.parametrize(
    ("inputs", "output_shape", "error", "message"),
    [
        ({"dY": DY2, "Indices": I2}, None, ValueError, "output_shape is None"),
        ({"dY": DY2, "Indices": I2}, (), ValueError, "output_shape"),
        ({"dY": DY2, "Indices": I2}, (1, 1, -4, 4), ValueError, "negative"),
        ({"dY": DY2, "Indices": I2}, (1, 1, "H", 4), ValueError, "only its batch may be symbolic"),
        ({"dY": DY2, "Indices": I2}, (None, None, 4, 4), ValueError, "only its batch may be symbolic"),
        ({"dY": DY2, "Indices": I2}, (1, 1, 4.0, 4), TypeError, "output_shape must be an integer"),
        ({"dY": DY2, "Indices": I2}, "NCHW", ValueError, "output_shape is 'NCHW'"),
        ({"dY": DY2, "Indices": I2[0]}, X2.shape, ValueError, r"does not match in MaxPoolGrad. dY has \(1, 1, 2, 2\)"),
        ({"dY": DY2, "Indices": I2 + 13}, X2.shape, ValueError, r"index value 16 at position 3 is out of range \[0, 16\)"),
        ({"dY": DY2, "Indices": I2 - 1}, X2.shape, ValueError, r"index value -1 at position 0 is out of range \[0, 16\)"),
        ({"dY": DY2, "Indices": I2 + 2**40}, X2.shape, ValueError, "index value 1099511627776 at position 0"),
        ({"dY": DY2, "Indices": I2}, (1, 1, 0, 4), ValueError, r"out of range \[0, 0\)"),
        ({"dY": DY2, "Indices": I2.astype(np.int32)}, X2.shape, TypeError, r"tensor\(int32\).*\(Indices\)"),
        ({"dY": DY2, "Indices": I2.astype(np.float32)}, X2.shape, TypeError, r"tensor\(float\).*\(Indices\)"),
        ({"dY": DY2, "Indices": I2, "indices": I2}, X2.shape, ValueError, "given twice"),
        ({"dY": DY2}, X2.shape, ValueError, "needs Indices"),
        ({"dY": DY2[0, 0, 0, 0], "Indices": I2[0, 0, 0, 0]}, (1,), ValueError, "dY has no axes"),
    ],
)
def test_max_pool_grad(context, inputs, output_shape, error, message):
    refused(context, error, message, "MaxPoolGrad", inputs, {}, output_shape=output_shape)


@MODES
@pytest.mark.parametrize(
    ("attrs", "output_shape", "message"),
    [
        (K2, None, "output_shape is None"),
        ({}, X2.shape, "Required attribute 'kernel_shape' is missing"),
        (K2 | {"pads": [1, 1]}, X2.shape, "pads_.size"),
        (K2 | {"strides": [2]}, X2.shape, "strides_.size"),
        (K2, (1, 1, 4), "kernel_shape"),
        (K2, (1, 1, 4, -4), "negative"),
        (K2, (3, 1, 4, 4), r"dY has shape \(1, 1, 2, 2\)"),
        (K2, (1, 2, 4, 4), r"dY has shape \(1, 1, 2, 2\)"),
    ],
)
def test_average_pool_grad(context, attrs, output_shape, message):
    refused(context, ValueError, message, "AveragePoolGrad", {"dY": DY2}, attrs, output_shape=output_shape)


@pytest.mark.parametrize("size", [(1, 2), (3, 2), (2, 3), (2,), (2, 2, 1)])
def test_average_pool_grad_checks_dy_by_default(size):
    dy = np.ones((1, 1, *size), np.float32)
    message = r"dY has shape .* but the AveragePool of an input \(1, 1, 4, 4\) .* has \(1, 1, 2, 2\)$"
    refused(contextlib.nullcontext, ValueError, message, "AveragePoolGrad", {"dY": dy}, K2, output_shape=X2.shape)


@MODES
@pytest.mark.parametrize(
    ("x", "w", "attrs", "message"),
    [
        (X2[0], W2, {}, r"X num_dims does not match W num_dims. X: \{1,4,4\} W: \{1,1,3,3\}"),
        (X2[0, 0], W2[0, 0], {}, "X must have 3, 4 or 5 axes"),
        (X2, np.ones((1, 2, 3, 3), np.float32), {}, "C: 1 kernel channels: 2 group: 1"),
        (
            np.ones((1, 2, 4, 4), np.float32),
            np.ones((3, 1, 3, 3), np.float32),
            {"group": 2},
            "not divisible by group. M: 3 group: 2",
        ),
        (X2, W2, {"group": 0}, "group is 0"),
        (X2, W2, {"kernel_shape": [3]}, "kernel_shape num_dims is not compatible with W num_dims"),
        (X2, W2, {"kernel_shape": [2, 3]}, r"kernel_shape: \{2,3\} W: \{1,1,3,3\} channels_last: 0"),
        (X2, W2, {"pads": [0] * 4, "auto_pad": "VALID"}, "both 'auto_pad' and 'pads'"),
        (X2, W2, {"strides": [1]}, "strides_.size"),
        (X2, W2, {"dilations": [1, -1]}, "dilations is"),
    ],
)
def test_convolutions(context, x, w, attrs, message):
    refused(context, ValueError, message, "Conv", {"X": x, "W": w}, attrs)
    refused(context, ValueError, message, "ConvGrad", {"dY": DY2, "X": x, "W": w}, attrs)


@MODES
def test_conv(context):
    refused(context, ValueError, r"B has shape \(2,\)", "Conv", {"X": X2, "W": W2, "B": np.ones(2, np.float32)})
    refused(context, ValueError, "does not fit", "Conv", {"X": X2, "W": np.ones((1, 1, 5, 3), np.float32)})
    mixed = {"X": X2, "W": W2.astype(np.float64)}
    refused(context, TypeError, r"bound to different types \(tensor\(float\) and tensor\(double\)", "Conv", mixed)
    refused(context, ValueError, "output_shape is only for", "Conv", {"X": X2, "W": W2}, output_shape=(1, 1, 2, 2))
    refused(context, ValueError, "Unrecognized attribute: ceil_mode", "Conv", {"X": X2, "W": W2}, {"ceil_mode": 1})


@pytest.mark.parametrize("shape", [(2, 1, 2, 2), (1, 2, 2, 2), (1, 1, 2, 3), (1, 1, 4), (0, 1, 2, 2)])
def test_conv_grad_checks_dy_by_default(shape):
    inputs = {"dY": np.ones(shape, np.float32), "X": X2, "W": W2}
    refused(contextlib.nullcontext, ValueError, r"dY has shape .* has \(1, 1, 2, 2\)", "ConvGrad", inputs)


@pytest.mark.parametrize(
    ("shape", "message"), [((1, 2, 2, 2), "past the end of dY"), ((1, 1, 4), "past the end of dY"), ((0, 1, 2, 2), "SIGFPE")]
)
def test_conv_grad_in_quirks_reads_no_foreign_memory(shape, message):
    inputs = {"dY": np.ones(shape, np.float32), "X": X2, "W": W2}
    refused(ort.quirks, ValueError, message, "ConvGrad", inputs)


def test_conv_grad_in_quirks_refuses_undefined_results():
    inputs = {"dY": np.ones((1, 1, 4, 4), np.float32), "X": X2, "W": W2}
    attrs = {"auto_pad": "SAME_UPPER"}
    refused(ort.quirks, ValueError, r'undefined.*outputs=\("dX", "dB"\)', "ConvGrad", inputs, attrs)
    small = {"dY": np.ones((1, 1, 1, 1), np.float32), "X": X2, "W": W2}
    refused(ort.quirks, ValueError, "past their end", "ConvGrad", small, outputs=("dX",))
    with ort.quirks():
        dx, dw, db = ort.conv_grad(inputs, attrs, outputs=("dX", "dB"))
    assert dx.shape == X2.shape
    assert dw is None
    assert db == 16


CALLS = {
    "MaxPool": ({"X": X2}, K2 | {"pads": [0] * 4, "dilations": [1, 1], "storage_order": 0, "ceil_mode": 0}, {}),
    "AveragePool": ({"X": X2}, K2 | {"pads": [0] * 4, "dilations": [1, 1], "count_include_pad": 0, "ceil_mode": 0}, {}),
    "Conv": ({"X": X2, "W": W2}, {"pads": [0] * 4, "dilations": [1, 1], "strides": [1, 1], "group": 1}, {}),
    "ConvGrad": ({"dY": DY2, "X": X2, "W": W2}, {"pads": [0] * 4, "dilations": [1, 1], "strides": [1, 1], "group": 1}, {}),
    "AveragePoolGrad": ({"dY": DY2}, K2 | {"pads": [0] * 4}, {"output_shape": X2.shape}),
    "MaxPoolGrad": ({"dY": DY2, "Indices": I2}, {}, {"output_shape": X2.shape}),
}


@MODES
@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("given", [5, [X2], (X2,), "X", np.ones(3), *LISTS], ids=shown)
def test_inputs_and_attributes_that_are_no_mappings(context, op, given):
    inputs, attrs, keywords = CALLS[op]
    refused(context, TypeError, f"^{op}: inputs must be a mapping of names to arrays, not ", op, given, attrs, **keywords)
    refused(context, TypeError, f"^{op}: attrs must be a mapping of names to values, not ", op, inputs, given, **keywords)


@MODES
@pytest.mark.parametrize("op", CALLS)
def test_other_arguments_of_a_wrong_kind(context, op):
    inputs, attrs, keywords = CALLS[op]
    for outputs in (5, [5], [None], [["Y"]], np.ones(2), *NO_END):
        refused(context, ValueError, f"^{op}: outputs is ", op, inputs, attrs, **keywords | {"outputs": outputs})
    for domain in (5, [], {}):
        refused(context, TypeError, "^run_kernel: domain must be a string", op, inputs, attrs, **keywords, domain=domain)
    for opset in ("9", 9.0, [9], *NO_END[:4]):
        refused(context, TypeError, "^run_kernel: opset must be an integer", op, inputs, attrs, **keywords, opset=opset)
    if keywords:
        for shape in (5, {1}, {}, X2.sum(), *NO_END):
            refused(context, (TypeError, ValueError), f"^{op}: output_shape", op, inputs, attrs, output_shape=shape)


@MODES
@pytest.mark.parametrize("op", CALLS)
def test_attributes_without_an_end_or_beyond_the_largest_size(context, op):
    inputs, attrs, keywords = CALLS[op]
    unread = {"dilations", "ceil_mode", "storage_order"} if context is ort.quirks and op == "AveragePoolGrad" else set()
    for name in attrs.keys() - unread:
        for value in NO_END:
            refused(context, (TypeError, ValueError), f"{op}: .*{name}", op, inputs, attrs | {name: value}, **keywords)
        for number in (LARGEST + 1, -LARGEST - 1, 2**63, np.uint64(2**63)):
            value = [number, *attrs[name][1:]] if isinstance(attrs[name], list) else number
            refused(
                context, ValueError, f"{op}: {name} is .*, beyond the largest", op, inputs, attrs | {name: value}, **keywords
            )
    for value in LISTS:
        for name in inputs:
            refused(context, ValueError, f"{op}: {name} is not an array", op, inputs | {name: value}, attrs, **keywords)


@MODES
@pytest.mark.parametrize("value", [b"\xff", np.array(["VALID", "NOTSET"]), 5, ["VALID"], *LISTS], ids=shown)
def test_auto_pads_of_a_wrong_kind(context, value):
    refused(context, ValueError, "MaxPool: Unknown AutoPadType String", "MaxPool", {"X": X2}, K2 | {"auto_pad": value})


@MODES
def test_results_that_no_machine_holds(context):
    large = (1, 1, LARGEST, LARGEST)
    for op in ("MaxPoolGrad", "AveragePoolGrad"):
        inputs, attrs, _ = CALLS[op]
        far = attrs | {"strides": [LARGEST - 2] * 2} if attrs else {}
        refused(context, MemoryError, "an array of shape .* more than there is", op, inputs, far, output_shape=large)


def test_windows_of_too_many_taps():
    attrs = {"kernel_shape": [2**20] * 2, "pads": [2**20 - 1] * 4}
    refused(contextlib.nullcontext, ValueError, "MaxPool: a window of .* taps; the most is", "MaxPool", {"X": X2}, attrs)
