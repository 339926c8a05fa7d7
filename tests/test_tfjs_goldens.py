"""TF.js's recorded answers: all of them in quirks, and by default either upstream's answer or a defect whose mending is proved.

A proof takes the case's geometry with fresh data: an adjoint identity for the linear kernels, an exact difference for the
maxima, and the other layout for the layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pullback import golden, tfjs
from pullback.tfjs.geometry import make_window, per_axis

NOT_KERNELS = ("Gradients", "OpErrors")
KERNELS = [name for name in golden.names("tfjs") if name not in NOT_KERNELS]
CASES = [(kernel, case) for kernel in KERNELS for case in golden.load("tfjs", kernel)]
FORWARD_CONVS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")

READS_PAST_THE_END = "upstream reads past the end of dy and answers NaN"
READS_WRONG_ENTRIES = "upstream reads the entries of other channels"
UNDEFINED = {
    ("Conv2D", "oddity/both output dims negative"): "no array has negative sizes",
    ("Conv2DBackpropInput", "oddity/dy spatially too small reads past the end (NaN)"): READS_PAST_THE_END,
    ("Conv3DBackpropInputV2", "oddity/dy too small reads past the end (NaN)"): READS_PAST_THE_END,
    ("Conv3DBackpropFilterV2", "oddity/dy too small"): READS_PAST_THE_END,
    ("Conv2DBackpropInput", "oddity/inputShape channels disagree with filter"): READS_WRONG_ENTRIES,
    ("Conv3DBackpropInputV2", "oddity/inputShape channels disagree with filter"): READS_WRONG_ENTRIES,
}

every_case = pytest.mark.parametrize(("kernel", "case"), CASES, ids=[f"{kernel}-{case['name']}" for kernel, case in CASES])


def run(kernel: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    result = tfjs.run_kernel(kernel, inputs, attrs)
    return result if isinstance(result, tuple) else (result,)


def expected_outputs(case: dict[str, Any]) -> list[np.ndarray]:
    return [golden.array(tensor) for tensor in case.get("outputs") or [case["output"]]]


def must_raise(kernel: str, case: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        run(kernel, golden.arrays(case["inputs"]), case["attrs"])
    text = case.get("error", "")
    if case.get("errorType") != "Error":  # undefined upstream, or in the words of the JavaScript engine
        return
    for phrase in ("out of range element", "shape comprised of positive integers"):
        text = phrase if phrase in text and "-1" not in text else text
    assert text in str(caught.value)


def test_the_undefined_cases_exist() -> None:
    assert set(UNDEFINED) <= {(kernel, case["name"]) for kernel, case in CASES}


@every_case
def test_quirks_equal_upstream(kernel: str, case: dict[str, Any]) -> None:
    with tfjs.quirks():
        if "error" in case or (kernel, case["name"]) in UNDEFINED:
            must_raise(kernel, case)
            return
        inputs = golden.arrays(case["inputs"])
        before = {name: array.copy() for name, array in inputs.items()}
        for array in inputs.values():
            array.setflags(write=False)
        results = run(kernel, inputs, case["attrs"])
    for result, expected in zip(results, expected_outputs(case), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(result, expected)
        if result.dtype.kind == "f":
            numbers = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(result[numbers]), np.signbit(expected[numbers]))
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, before[name])


def fresh(rng: np.random.Generator, shape: tuple[int, ...], limit: int = 4) -> np.ndarray:
    """Small integers as float32: their sums are exact."""
    return rng.integers(-limit, limit + 1, shape).astype(np.float32)


def inner(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sum(a.astype(np.float64) * b.astype(np.float64)))


def prove_mean_grad(kernel: str, x_shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    v = fresh(rng, x_shape)
    (y,) = run(kernel.removesuffix("Grad"), {"x": v}, attrs)
    y = np.nan_to_num(y)  # the mean of an empty window is NaN in 2-D: a constant, with no gradient
    dy = fresh(rng, y.shape)
    (dx,) = run(kernel, {"dy": dy, "input": np.zeros(x_shape, np.float32)}, attrs)
    assert inner(y, dy) == pytest.approx(inner(v, dx), rel=1e-5, abs=1e-3)
    assert np.any(dx) == np.any(y)  # not proved by zeros, except where no window touches the input


def prove_conv_grads(kernel: str, x_shape: tuple[int, ...], f_shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    """kernel is a forward convolution; its two gradients must be its adjoints."""
    suffix = "V2" if kernel == "Conv3D" else ""
    rng = np.random.default_rng(4)
    v, w = fresh(rng, x_shape), fresh(rng, f_shape)
    (y,) = run(kernel, {"x": v, "filter": w}, attrs)
    dy = fresh(rng, y.shape)
    (dx,) = run(f"{kernel}BackpropInput{suffix}", {"dy": dy, "filter": w}, attrs | {"inputShape": list(x_shape)})
    (df,) = run(f"{kernel}BackpropFilter{suffix}", {"x": v, "dy": dy}, attrs | {"filterShape": list(f_shape)})
    assert inner(y, dy) == inner(v, dx) == inner(w, df)
    assert np.any(dx)
    assert np.any(df)


def prove_max_grad(forward: str, grads: dict[str, str], shapes: dict[str, tuple[int, ...]], attrs: dict[str, Any]) -> None:
    """Between two points with the same winners the maximum is linear, so a difference equals the gradient exactly.

    grads: kernel -> the input it differentiates. Cells lie 100 apart, steps are below 1, filters within 40: no winner changes.
    """
    rng = np.random.default_rng(5)
    at = {name: rng.permutation(np.prod(shape, dtype=int)).reshape(shape) * np.float32(100) for name, shape in shapes.items()}
    if "filter" in at:
        at["filter"] = fresh(rng, shapes["filter"], 40)
    steps = {name: fresh(rng, shape, 16) / np.float32(64) for name, shape in shapes.items()}
    at = {name: values.astype(np.float32) for name, values in at.items()}
    (y,) = run(forward, at, attrs)
    dy, won = fresh(rng, y.shape), np.abs(y) < 1e15  # without a winner -inf, or -(2**53 - 1) in a dilation
    for kernel, wrt in grads.items():
        (moved,) = run(forward, at | {wrt: at[wrt] + steps[wrt]}, attrs)
        change = np.where(won, moved, 0).astype(np.float64) - np.where(won, y, 0)
        given = {"dy": dy, "input": at["x"]} if kernel.endswith("Grad") else {"dy": dy, **at}
        (grad,) = run(kernel, given, attrs)
        assert inner(change, dy) == pytest.approx(inner(steps[wrt], grad), abs=1e-9)
        assert np.any(grad) == np.any(change)


def prove_layout(kernel: str, inputs: dict[str, np.ndarray], attrs: dict[str, Any]) -> None:
    """Channels-first results are the channels-last results of the same data."""
    (first,) = run(kernel, inputs, attrs)
    last_format = {"NCHW": "NHWC", "NCDHW": "NDHWC"}[attrs["dataFormat"]]
    (last,) = run(kernel, inputs | {"x": np.moveaxis(inputs["x"], 1, -1)}, attrs | {"dataFormat": last_format})
    np.testing.assert_allclose(first, np.moveaxis(last, -1, 1), rtol=1e-6)


def window_of(kernel: str, size: tuple[int, ...], taps: tuple[int, ...], attrs: dict[str, Any], mode: Any = None) -> Any:
    return make_window(kernel, size, taps, strides=attrs["strides"], dilations=1, pad=attrs["pad"], mode=mode)


def prove_defect(kernel: str, case: dict[str, Any]) -> bool:
    """Recognise a defect by its condition and prove its mending; False if the case meets none."""
    attrs, shapes = case["attrs"], {name: tuple(t["shape"]) for name, t in case["inputs"].items()}
    if kernel in ("AvgPoolGrad", "AvgPool3DGrad"):
        size = shapes["input"][1:-1]
        taps = per_axis(kernel, "filterSize", attrs["filterSize"], len(size))
        mode = attrs.get("dimRoundingMode")
        window = window_of(kernel, size, taps, attrs, mode)
        rounding_lost = kernel == "AvgPoolGrad" and window.output_size != window_of(kernel, size, taps, attrs).output_size
        padded = bool(np.any(window.divisor("valid") != window.tap_count))
        if padded or rounding_lost:
            prove_mean_grad(kernel, shapes["input"], attrs)
        return padded or rounding_lost
    if kernel == "MaxPool3DGrad":
        _, kh, kw = per_axis(kernel, "filterSize", attrs["filterSize"], 3)
        if kh != kw:
            prove_max_grad("MaxPool3D", {kernel: "x"}, {"x": shapes["input"]}, attrs)
        return kh != kw
    if kernel.startswith("DepthwiseConv2dNativeBackprop") and max(per_axis(kernel, "dilations", attrs["dilations"], 2)) > 1:
        x_shape = shapes.get("x") or tuple(attrs["inputShape"])
        prove_conv_grads("DepthwiseConv2dNative", x_shape, shapes.get("filter") or tuple(attrs["filterShape"]), attrs)
        return True
    if kernel in ("DepthwiseConv2dNative", "MaxPool3D", "AvgPool3D") and attrs.get("dataFormat") in ("NCHW", "NCDHW"):
        prove_layout(kernel, golden.arrays(case["inputs"]), attrs)
        return True
    if kernel.startswith("Dilation2DBackprop"):
        inputs = golden.arrays(case["inputs"])
        (y,) = run("Dilation2D", {"x": inputs["x"], "filter": inputs["filter"]}, attrs)
        if no_winner := bool(np.any(y == np.float32(-(2.0**53 - 1)))):
            (result,) = run(kernel, inputs, attrs)
            kept = np.where(y == np.float32(-(2.0**53 - 1)), np.float32(0), inputs["dy"])
            with tfjs.quirks():
                np.testing.assert_allclose(result, run(kernel, inputs | {"dy": kept}, attrs)[0], rtol=1e-6)
            grads = {kernel: "x" if kernel.endswith("Input") else "filter"}
            prove_max_grad("Dilation2D", grads, {"x": shapes["x"], "filter": shapes["filter"]}, attrs)
        return no_winner
    if kernel == "MaxPoolWithArgmax" and case["inputs"]["x"]["dtype"] == "bool" and np.prod(shapes["x"]) > 256:
        x = golden.arrays(case["inputs"])["x"]
        values, indices = run(kernel, {"x": x}, attrs)
        np.testing.assert_array_equal(x.reshape(-1)[indices], values)
        np.testing.assert_array_equal(indices % 256, expected_outputs(case)[1])
        assert indices.max() > 255
        return True
    return False


def refused_by_default(kernel: str, case: dict[str, Any]) -> bool:
    if kernel == "MaxPoolGrad":
        return case["inputs"]["dy"]["dtype"] == "complex64"
    if kernel == "Conv2DBackpropInput" and "inputShape" in case["attrs"] and case["attrs"]["pad"] == "valid":
        size = case["attrs"]["inputShape"][1:3] if case["attrs"]["dataFormat"] == "NHWC" else case["attrs"]["inputShape"][2:]
        return bool(np.any(np.array(case["inputs"]["filter"]["shape"][:2]) > np.array(size) + 1))
    return False


@every_case
def test_default_equals_upstream_or_mends_a_defect(kernel: str, case: dict[str, Any]) -> None:
    if "error" in case or (kernel, case["name"]) in UNDEFINED or refused_by_default(kernel, case):
        must_raise(kernel, case)
        return
    if prove_defect(kernel, case):
        return
    inputs = golden.arrays(case["inputs"])
    results = run(kernel, inputs, case["attrs"])
    for result, expected in zip(results, expected_outputs(case), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(result[~finite], expected[~finite])
        scale = np.max(np.abs(expected[finite]), initial=0)
        if kernel in FORWARD_CONVS and result.dtype == np.float32:
            # Upstream rounds at every step: its own error grows with the sum of the absolute products.
            sizes = {name: np.nan_to_num(np.abs(array), nan=0, posinf=0) for name, array in inputs.items()}
            scale = np.max(run(kernel, sizes, case["attrs"])[0], initial=0)
        # Below the normal numbers a product can be no closer than the distance of two of them.
        least = float(np.finfo(result.dtype).smallest_subnormal) if result.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(result[finite], expected[finite], rtol=1e-5, atol=max(1e-5 * float(scale), least))


GEOMETRIES = [
    {"strides": 1, "pad": "same"},
    {"strides": [2, 1], "pad": "valid"},
    {"strides": [1, 3], "pad": "same"},
    {"strides": 2, "pad": 1, "dimRoundingMode": "ceil"},
    {"strides": [2, 3], "pad": [[0, 0], [2, 0], [1, 1], [0, 0]], "dimRoundingMode": "round"},
    {"strides": 1, "pad": 3},
]


@pytest.mark.parametrize("attrs", GEOMETRIES, ids=str)
@pytest.mark.parametrize("dilations", [1, [2, 3]])
def test_2d_gradients_are_adjoints(attrs: dict[str, Any], dilations: Any) -> None:
    x_shape, taps = (2, 7, 8, 3), (3, 2)
    pools = attrs | {"filterSize": taps}
    prove_mean_grad("AvgPoolGrad", x_shape, pools)
    prove_max_grad("MaxPool", {"MaxPoolGrad": "x"}, {"x": x_shape}, pools)
    prove_conv_grads("Conv2D", x_shape, (*taps, 3, 2), attrs | {"dilations": 1, "dataFormat": "NHWC"})
    dilated = attrs | {"dilations": dilations}
    if dilations == 1 or attrs["strides"] == 1:
        prove_conv_grads("DepthwiseConv2dNative", x_shape, (*taps, 3, 2), dilated)
    no_mode = {key: value for key, value in dilated.items() if key != "dimRoundingMode"}
    if attrs["pad"] not in (1, 3):  # windows that start beyond the input have no input gradient upstream
        grads = {"Dilation2DBackpropInput": "x", "Dilation2DBackpropFilter": "filter"}
        prove_max_grad("Dilation2D", grads, {"x": x_shape, "filter": (*taps, 3)}, no_mode)


@pytest.mark.parametrize("pad", ["same", "valid", [[0, 0], [0, 0], [2, 0], [1, 3]]], ids=str)
def test_channels_first_gradients_are_adjoints(pad: Any) -> None:
    attrs = {"strides": [2, 1], "pad": pad, "dilations": 1, "dataFormat": "NCHW"}
    prove_conv_grads("Conv2D", (2, 3, 7, 8), (3, 2, 3, 2), attrs)
    prove_conv_grads("DepthwiseConv2dNative", (2, 3, 7, 8), (3, 2, 3, 2), attrs)


@pytest.mark.parametrize("attrs", [{"strides": [1, 2, 3], "pad": p} for p in ("same", "valid", 1, 2)], ids=str)
@pytest.mark.parametrize("data_format", ["NDHWC", "NCDHW"])
def test_3d_gradients_are_adjoints(attrs: dict[str, Any], data_format: str) -> None:
    x_shape = (2, 4, 7, 8, 2)
    prove_conv_grads("Conv3D", x_shape, (2, 3, 2, 2, 3), attrs | {"dilations": 1})
    pools = attrs | {"filterSize": (2, 3, 2), "dimRoundingMode": "ceil", "dataFormat": data_format}
    prove_mean_grad("AvgPool3DGrad", x_shape, pools)
    prove_max_grad("MaxPool3D", {"MaxPool3DGrad": "x"}, {"x": x_shape}, pools)
