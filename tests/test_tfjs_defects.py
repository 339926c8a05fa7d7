"""Each defect of TF.js by its smallest example: upstream's answer in quirks, the right one by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import tfjs
from pullback.problem import Problem
from pullback.tfjs.quirks_pool import misread_winners
from pullback.window import Window

NAN = float("nan")
LOWEST = np.float32(-(2.0**53 - 1))


def tensor(shape: tuple[int, ...], values: Any) -> np.ndarray:
    return np.array(values, np.float32).reshape(shape)


@dataclass(frozen=True)
class Defect:
    kernel: str
    inputs: dict[str, np.ndarray]
    attrs: dict[str, Any]
    upstream: Any
    right: Any  # the values, or the exception


UNIT = {"strides": 1, "pad": "valid"}
PADDED = {"filterSize": [1, 2], "strides": 1, "pad": "same"}
PADDED_3D = {"filterSize": [1, 1, 2], "strides": 1, "pad": "same"}
CEIL = {"filterSize": 2, "strides": 2, "pad": 0, "dimRoundingMode": "ceil"}
DILATED = {"strides": 1, "pad": "valid", "dilations": [1, 2]}
NCHW = {"strides": 1, "pad": "valid", "dilations": 1, "dataFormat": "NCHW"}
NCDHW = {"filterSize": [1, 1, 2], "strides": 1, "pad": "valid", "dataFormat": "NCDHW"}
MORPH = {"strides": 1, "pad": "valid", "dilations": 1}
ROW = tensor((1, 1, 3, 1), [1, 2, 3])
BOOLS = np.arange(300).reshape(1, 1, 300, 1) == 299

DEFECTS = {
    "MaxPool3DGrad encodes its winner with the height for the width": Defect(
        "MaxPool3DGrad",
        {"dy": tensor((1, 1, 1, 1, 1), 1), "input": tensor((1, 1, 2, 1, 1), [1, 2])},
        {"filterSize": [1, 2, 1], **UNIT},
        [0, 0],
        [0, 1],
    ),
    "MaxPool3DGrad, a window wider than high": Defect(
        "MaxPool3DGrad",
        {"dy": tensor((1, 1, 1, 1, 1), 1), "input": tensor((1, 1, 2, 3, 1), [1, 2, 3, 4, 6, 5])},
        {"filterSize": [1, 2, 3], **UNIT},
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
    ),
    "AvgPoolGrad divides by the whole filter": Defect(
        "AvgPoolGrad",
        {"dy": tensor((1, 1, 2, 1), [2, 2]), "input": tensor((1, 1, 2, 1), [0, 0])},
        PADDED,
        [1, 2],
        [1, 3],
    ),
    "AvgPool3DGrad divides by the whole filter": Defect(
        "AvgPool3DGrad",
        {"dy": tensor((1, 1, 1, 2, 1), [2, 2]), "input": tensor((1, 1, 1, 2, 1), [0, 0])},
        PADDED_3D,
        [1, 2],
        [1, 3],
    ),
    "AvgPoolGrad loses dimRoundingMode": Defect(
        "AvgPoolGrad",
        {"dy": tensor((1, 2, 2, 1), [4, 4, 4, 4]), "input": tensor((1, 3, 3, 1), [0] * 9)},
        CEIL,
        [1, 1, 0, 1, 1, 0, 0, 0, 0],
        [1, 1, 2, 1, 1, 2, 2, 2, 4],
    ),
    "depthwise input gradient takes undilated taps": Defect(
        "DepthwiseConv2dNativeBackpropInput",
        {"dy": tensor((1, 1, 1, 1), 1), "filter": tensor((1, 2, 1, 1), [5, 7])},
        DILATED | {"inputShape": [1, 1, 3, 1]},
        [5, 7, 0],
        [5, 0, 7],
    ),
    "depthwise filter gradient takes undilated taps": Defect(
        "DepthwiseConv2dNativeBackpropFilter",
        {"x": ROW, "dy": tensor((1, 1, 1, 1), 1)},
        DILATED | {"filterShape": [1, 2, 1, 1]},
        [1, 2],
        [1, 3],
    ),
    "depthwise NCHW is read as NHWC": Defect(
        "DepthwiseConv2dNative",
        {"x": tensor((1, 2, 2, 2), range(8)), "filter": tensor((1, 1, 2, 1), [1, 10])},
        NCHW,
        [0, 10, 2, 30, 4, 50, 6, 70],
        [0, 1, 2, 3, 40, 50, 60, 70],
    ),
    "depthwise input gradient ignores NCHW": Defect(
        "DepthwiseConv2dNativeBackpropInput",
        {"dy": tensor((1, 2, 2, 2), range(8)), "filter": tensor((1, 1, 2, 1), [1, 10])},
        NCHW | {"inputShape": [1, 2, 2, 2]},
        [0, 10, 2, 30, 4, 50, 6, 70],
        [0, 1, 2, 3, 40, 50, 60, 70],
    ),
    "MaxPool3D indexes NCDHW as NDHWC": Defect(
        "MaxPool3D", {"x": tensor((1, 2, 1, 1, 2), [1, 2, 3, 9])}, NCDHW, [3, 9], [2, 9]
    ),
    "AvgPool3D indexes NCDHW as NDHWC": Defect(
        "AvgPool3D", {"x": tensor((1, 2, 1, 1, 2), [1, 2, 3, 9])}, NCDHW, [2, 5.5], [1.5, 6]
    ),
    "Dilation2DBackpropInput credits the corner of a window without a winner": Defect(
        "Dilation2DBackpropInput",
        {"x": tensor((1, 1, 1, 1), NAN), "filter": tensor((1, 1, 1), 0), "dy": tensor((1, 1, 1, 1), 1)},
        MORPH,
        [1],
        [0],
    ),
    "Dilation2DBackpropFilter credits tap (0, 0) of a window without a winner": Defect(
        "Dilation2DBackpropFilter",
        {"x": tensor((1, 1, 1, 1), NAN), "filter": tensor((1, 1, 1), 0), "dy": tensor((1, 1, 1, 1), 1)},
        MORPH,
        [1],
        [0],
    ),
    "MaxPoolGrad takes a complex dy for zeros": Defect(
        "MaxPoolGrad",
        {"dy": np.ones((1, 1, 3, 1), np.complex64), "input": ROW},
        {"filterSize": 1, **UNIT},
        [0, 0, 0],
        TypeError,
    ),
    "Conv2DBackpropInput runs over a negative output": Defect(
        "Conv2DBackpropInput",
        {"dy": tensor((1, 1, 1, 1), 1), "filter": tensor((1, 3, 1, 1), [1, 1, 1])},
        {**UNIT, "inputShape": [1, 1, 1, 1], "dataFormat": "NHWC"},
        [0],
        ValueError,
    ),
}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
def test_defect(defect: Defect) -> None:
    def run() -> np.ndarray:
        return tfjs.run_kernel(defect.kernel, defect.inputs, defect.attrs).reshape(-1)

    with tfjs.quirks():
        np.testing.assert_array_equal(run(), tensor((-1,), defect.upstream))
    if isinstance(defect.right, type):
        with pytest.raises(defect.right):
            run()
    else:
        np.testing.assert_array_equal(run(), tensor((-1,), defect.right))


ARGMAX = {"filterSize": [1, 300], "strides": 300, "pad": "valid"}


def argmax(x: np.ndarray, attrs: dict[str, Any]) -> int:
    _, indices = tfjs.run_kernel("MaxPoolWithArgmax", {"x": x}, attrs)
    assert indices.dtype == np.int32
    return int(indices.reshape(-1)[-1])


def test_argmax_of_bools_is_cut_to_8_bits() -> None:
    assert argmax(BOOLS, ARGMAX) == 299
    with tfjs.quirks():
        assert argmax(BOOLS, ARGMAX) == 299 - 256
        assert argmax(BOOLS.astype(np.int32), ARGMAX) == 299


def test_argmax_beyond_the_integers_of_float32() -> None:
    size = 2**24 + 2
    x = np.zeros((1, size, 1, 1), np.float32)
    x[0, -1] = 1
    attrs = {"filterSize": [2, 1], "strides": [size - 2, 1], "pad": "valid"}
    assert argmax(x, attrs) == 2**24 + 1
    with tfjs.quirks():
        assert argmax(x, attrs) == 2**24


def test_misaddressed_reads_past_the_end_are_refused() -> None:
    x = tensor((1, 1, 2, 1, 1), [1, 2])  # depth 1 is sought behind the end of the one channel
    attrs = {"filterSize": 1, "strides": 1, "pad": "valid", "dataFormat": "NCDHW"}
    np.testing.assert_array_equal(tfjs.run_kernel("MaxPool3D", {"x": x}, attrs).reshape(-1), [1, 2])
    with tfjs.quirks(), pytest.raises(ValueError, match="past its end"):
        tfjs.run_kernel("MaxPool3D", {"x": x}, attrs)


def test_square_windows_are_read_back_as_written() -> None:
    window = Window.make((3, 4, 4), (2, 2, 2), (1, 2, 1), (1, 1, 1), "valid")
    problem = Problem("max_pool", np.dtype(np.float32), "channels_last", 1, 2, 2, window)
    n, d, r, c, channel = np.ogrid[0:1, 0:2, 0:2, 0:3, 0:2]
    indices = np.ravel_multi_index((n, d + 1, 2 * r + 1, c, channel), problem.input_shape)
    np.testing.assert_array_equal(misread_winners(problem, indices), indices)


def test_integers_truncate_at_every_step_in_both_modes() -> None:
    inputs = {"x": np.array([[[[1], [1]]]], np.int32), "filter": tensor((1, 2, 1, 1), [0.75, 0.75])}
    attrs = MORPH | {"dataFormat": "NHWC"}
    for kernel in ("Conv2D", "DepthwiseConv2dNative"):
        plain = tfjs.run_kernel(kernel, inputs, attrs)
        with tfjs.quirks():
            assert plain == tfjs.run_kernel(kernel, inputs, attrs) == 0
        assert plain.dtype == np.int32


def test_an_empty_dilation_gives_the_smallest_safe_integer() -> None:
    x = tensor((1, 1, 1, 1), -np.inf)
    assert tfjs.run_kernel("Dilation2D", {"x": x, "filter": tensor((1, 1, 1), 0)}, MORPH) == LOWEST


def test_conv2d_rounds_at_every_step() -> None:
    """Upstream adds each product to the float32 output itself; the reference sums in float64 and rounds once."""
    inputs = {"x": tensor((1, 1, 3, 1), [2**24, 1, 1]), "filter": tensor((1, 3, 1, 1), [1, 1, 1])}
    attrs = MORPH | {"dataFormat": "NHWC"}
    with tfjs.quirks():
        assert tfjs.run_kernel("Conv2D", inputs, attrs).item() == 2**24
    with pb.backend("reference"):
        assert tfjs.run_kernel("Conv2D", inputs, attrs).item() == 2**24 + 2
