"""Calls of the dialects, remembered as their steps: other values get their own answers, and what may differ is asked anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import ort, tfjs
from pullback.ops import call, replay

RANDOM = np.random.default_rng(12)
CONV: dict[str, Any] = {"strides": [1, 2], "pad": "same", "dataFormat": "NHWC", "dilations": 1, "dimRoundingMode": None}
POOL: dict[str, Any] = {"filterSize": [2, 3], "strides": [2, 1], "pad": "valid", "dimRoundingMode": None}
CUBE = {"filterSize": 2, "strides": 2, "pad": "same", "dimRoundingMode": None, "dataFormat": "NDHWC"}
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}
PADS = {"pads": [1, 1, 1, 1]}
Call = tuple[Callable[..., Any], str, dict[str, tuple[int, ...]], dict[str, Any], dict[str, Any]]

CALLS: tuple[Call, ...] = (
    (tfjs.run_kernel, "Conv2D", {"x": (1, 6, 8, 3), "filter": (3, 3, 3, 4)}, CONV, {}),
    (tfjs.run_kernel, "Conv2D", {"x": (1, 3, 6, 8), "filter": (3, 3, 3, 4)}, CONV | {"dataFormat": "NCHW"}, {}),
    (tfjs.run_kernel, "Conv2DBackpropInput", {"dy": (1, 6, 4, 4), "filter": (3, 3, 3, 4)}, CONV | {"inputShape": [1, 6, 8, 3]}, {}),
    (tfjs.run_kernel, "Conv2DBackpropFilter", {"dy": (1, 6, 4, 4), "x": (1, 6, 8, 3)}, CONV | {"filterShape": [3, 3, 3, 4]}, {}),
    (tfjs.run_kernel, "DepthwiseConv2dNative", {"x": (1, 6, 6, 3), "filter": (3, 3, 3, 2)}, CONV | {"strides": 1}, {}),
    (tfjs.run_kernel, "DepthwiseConv2dNativeBackpropFilter", {"x": (1, 6, 8, 3), "dy": (1, 6, 4, 6)},
     CONV | {"filterShape": [3, 3, 3, 2]}, {}),
    (tfjs.run_kernel, "MaxPool", {"x": (1, 6, 8, 3)}, POOL, {}),
    (tfjs.run_kernel, "MaxPoolGrad", {"dy": (1, 3, 6, 3), "input": (1, 6, 8, 3), "output": (1, 3, 6, 3)}, POOL, {}),
    (tfjs.run_kernel, "MaxPoolGrad", {"dy": (2, 5, 9, 3), "input": (1, 6, 8, 3), "output": (1, 3, 6, 3)}, POOL, {}),
    (tfjs.run_kernel, "AvgPool", {"x": (1, 6, 8, 3)}, POOL, {}),
    (tfjs.run_kernel, "AvgPoolGrad", {"dy": (1, 3, 6, 3), "input": (1, 6, 8, 3)}, POOL, {}),
    (tfjs.run_kernel, "MaxPool3DGrad", {"dy": (1, 2, 3, 2, 2), "input": (1, 4, 5, 4, 2)}, CUBE, {}),
    (tfjs.run_kernel, "MaxPoolWithArgmax", {"x": (2, 6, 8, 3)}, POOL, {}),
    (tfjs.run_kernel, "Dilation2D", {"x": (1, 6, 8, 3), "filter": (2, 2, 3)}, {"strides": 1, "pad": "same", "dilations": 1}, {}),
    (ort.run_kernel, "Conv", {"X": (2, 3, 6, 6), "W": (4, 3, 3, 3), "B": (4,)}, PADS, {}),
    (ort.run_kernel, "ConvGrad", {"dY": (2, 4, 6, 6), "X": (2, 3, 6, 6), "W": (4, 3, 3, 3)}, PADS, {}),
    (ort.run_kernel, "ConvGrad", {"dY": (2, 4, 6, 6), "X": (2, 3, 6, 6), "W": (4, 3, 3, 3)}, PADS, {"outputs": ["dW"]}),
    (ort.run_kernel, "MaxPool", {"X": (2, 3, 6, 6)}, WINDOW, {}),
    (ort.run_kernel, "MaxPool", {"X": (2, 3, 6, 6)}, WINDOW, {"outputs": ["Indices"]}),
    (ort.run_kernel, "AveragePool", {"X": (2, 3, 6, 6)}, WINDOW, {"opset": 19}),
    (ort.run_kernel, "AveragePoolGrad", {"dY": (2, 3, 3, 3)}, WINDOW, {"output_shape": ["N", 3, 6, 6]}),
    (ort.run_kernel, "MaxPoolGrad", {"dY": (2, 3, 3, 3), "Indices": (2, 3, 3, 3)}, WINDOW, {"output_shape": (2, 3, 6, 6)}),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    replay._remembered.clear()
    yield
    replay._remembered.clear()


def numbers(shape: tuple[int, ...], dtype: Any, name: str) -> Any:
    if name == "Indices":
        return RANDOM.integers(0, 216, shape)
    return RANDOM.integers(-9, 9, shape).astype(dtype)


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert isinstance(got, tuple)
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            same(a, b)
    elif expected is None:
        assert got is None
    else:
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected, equal_nan=True)


# TF.js takes integers for its own, ONNX has no such kernels.
WITH_DTYPES = [
    pytest.param(case, dtype, id=f"{case[1]}-{dtype}")
    for case in CALLS
    for dtype in ("float32", "float64", *(("int32", "int64") if case[0] is tfjs.run_kernel else ()))
]
# Where arrays are cut, converted or moved, where three ops are one call, and where only the reference has a kernel.
TRANSLATED_EACH_TIME = (CALLS[1], CALLS[8], CALLS[12])
LONGER = ("ConvGrad", "Dilation2D")
KNOWN = [case for case in CALLS if case not in TRANSLATED_EACH_TIME and case[1] not in LONGER]


@pytest.mark.parametrize(("case", "dtype"), WITH_DTYPES)
def test_other_values_get_their_own_answers(case: Call, dtype: str) -> None:
    run, name, shapes, attrs, options = case
    first, second = ({at: numbers(shape, dtype, at) for at, shape in shapes.items()} for _ in range(2))
    run(name, first, attrs, **options)
    got = run(name, second, attrs, **options)  # from memory, where it can be
    replay._remembered.clear()
    expected = run(name, second, attrs, **options)
    same(got, expected)


def python_calls(function: Callable[[], Any]) -> int:
    """How many Python functions a call of this one enters when it has been called before."""
    for _ in range(3):
        function()
    count = 0

    def enter(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case[1])
def test_a_known_call_is_not_translated_again(case: Call) -> None:
    run, name, shapes, attrs, options = case
    inputs = {at: numbers(shape, "float32", at) for at, shape in shapes.items()}
    known = python_calls(lambda: run(name, inputs, attrs, **options))
    assert len(replay._remembered) == 1
    assert known <= 75, known  # an untranslated call of pb.* enters 20 to 40


def test_registered_kernels_are_heard_at_once() -> None:
    x = np.ones((1, 4, 4, 1), np.float32)
    before = tfjs.run_kernel("AvgPool", {"x": x}, POOL)
    own = tfjs.KernelConfig("AvgPool", "cpu", lambda *, inputs, attrs, backend=None: "mine")
    known = tfjs.get_kernel("AvgPool", "cpu")
    assert known is not None
    tfjs.unregister_kernel("AvgPool", "cpu")
    tfjs.register_kernel(own)
    try:
        assert tfjs.run_kernel("AvgPool", {"x": x}, POOL) == "mine"
    finally:
        tfjs.unregister_kernel("AvgPool", "cpu")
        tfjs.register_kernel(known)
    assert np.array_equal(tfjs.run_kernel("AvgPool", {"x": x}, POOL), before)

    planes = np.ones((1, 1, 4, 4), np.float32)
    ort.run_kernel("AveragePool", {"X": planes}, WINDOW)
    (found,) = (k for k in ort.registry._kernels[False] if k.op_type == "AveragePool" and k.serves(22))
    ort.unregister_kernel(found)
    try:
        with pytest.raises(NotImplementedError):
            ort.run_kernel("AveragePool", {"X": planes}, WINDOW)
    finally:
        ort.register_kernel(found)
    assert ort.run_kernel("AveragePool", {"X": planes}, WINDOW).shape == (1, 1, 2, 2)


def test_the_core_kernels_are_chosen_anew() -> None:
    x = np.ones((1, 4, 4, 8), np.float32)
    tfjs.run_kernel("AvgPool", {"x": x}, POOL)
    with pb.kernel("nothing"), pytest.raises(pb.KernelError):
        tfjs.run_kernel("AvgPool", {"x": x}, POOL)
    assert len(replay._remembered) == 1
    with pb.backend("reference"):
        tfjs.run_kernel("AvgPool", {"x": x}, POOL)
    tfjs.run_kernel("AvgPool", {"x": x}, POOL, "reference")
    assert len(replay._remembered) == 2


def test_quirks_are_not_remembered_and_not_answered_from_memory() -> None:
    dy, x = np.ones((1, 3, 3, 1), np.float32), np.ones((1, 3, 3, 1), np.float32)
    attrs = {"filterSize": 2, "strides": 1, "pad": "same", "dimRoundingMode": None}
    mended = tfjs.run_kernel("AvgPoolGrad", {"dy": dy, "input": x}, attrs)
    with tfjs.quirks():
        assert not np.array_equal(tfjs.run_kernel("AvgPoolGrad", {"dy": dy, "input": x}, attrs), mended)
    assert len(replay._remembered) == 1


@pytest.mark.parametrize("stride", [True, 2.5, "2", {}, [[1]]])
def test_equal_looking_attributes_are_not_the_same_call(stride: Any) -> None:
    x = np.ones((1, 4, 4, 1), np.float32)
    for known in (1, 2):
        tfjs.run_kernel("AvgPool", {"x": x}, POOL | {"strides": known})
    with pytest.raises((TypeError, ValueError)):
        tfjs.run_kernel("AvgPool", {"x": x}, POOL | {"strides": stride})


def test_values_are_looked_at_every_time() -> None:
    dy, shape = np.ones((1, 1, 2, 2), np.float32), (1, 1, 4, 4)
    good = np.array([[[[0, 2], [8, 15]]]])
    ort.run_kernel("MaxPoolGrad", {"dY": dy, "Indices": good}, WINDOW, output_shape=shape)
    with pytest.raises(ValueError, match="index value 16"):
        ort.run_kernel("MaxPoolGrad", {"dY": dy, "Indices": good + 1}, WINDOW, output_shape=shape)
    x, output = np.ones((1, 6, 8, 3), np.float32), np.ones((1, 3, 6, 3), np.int64)
    tfjs.run_kernel("MaxPoolGrad", {"dy": np.ones((1, 3, 6, 3), np.float32), "input": x, "output": output}, POOL)
    inputs = {"dy": np.ones((1, 3, 6, 3), np.float32), "input": x, "output": output << 40}
    with pytest.raises(ValueError, match="beyond int32"):
        tfjs.run_kernel("MaxPoolGrad", inputs, POOL)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST_REMEMBERED", 3)
    for size in range(4, 14):
        tfjs.run_kernel("AvgPool", {"x": np.ones((1, size, 4, 1), np.float32)}, POOL)
    assert 0 < len(replay._remembered) <= 3
    assert call.MOST_REMEMBERED > 3


def test_one_array_given_twice_says_nothing_of_calls_with_two() -> None:
    a, b = RANDOM.standard_normal((2, 1, 2, 3, 3)).astype(np.float32)
    inputs = {"W": np.ones((2, 2, 1, 1), np.float32)}

    def gradient(dy: Any, x: Any) -> Any:
        return ort.run_kernel("ConvGrad", {"dY": dy, "X": x, **inputs}, {"kernel_shape": [1, 1]}, outputs=["dW"])[1]

    gradient(a, a)
    gradient(a, a[...])  # another view of the same memory
    got = gradient(a, b)
    replay._remembered.clear()
    same(got, gradient(a, b))
    x = RANDOM.standard_normal((1, 4, 4, 2)).astype(np.float32)
    attrs = {"filterSize": 3, "strides": 1, "pad": "same", "dimRoundingMode": None}
    for dy in (x, -x):
        got = tfjs.run_kernel("MaxPoolGrad", {"dy": dy, "input": x, "output": x}, attrs)
        expected = pb.max_pool_grad(dy, x, 3, stride=1, padding="same")
        same(got, expected)


def test_what_a_stranger_does_with_an_answer_is_done_every_time() -> None:
    known = ort.registry.find_kernel("", "AveragePool", 22, {"T": np.float32})

    def doubled(node: Any) -> Any:
        y = known.run(node)
        y *= 2
        return y

    x = np.ones((1, 1, 4, 4), np.float32)
    ort.unregister_kernel(known)
    own = ort.register_kernel(ort.KernelDef("", "AveragePool", 22, None, {"T": ("float32",)}, doubled))
    try:
        for _ in range(3):
            assert (ort.run_kernel("AveragePool", {"X": x}, WINDOW) == 2).all()
    finally:
        ort.unregister_kernel(own)
        ort.register_kernel(known)


@pytest.mark.parametrize("kind", [tuple, list, type("Pair", (tuple,), {})])
def test_answers_in_any_sequence(kind: Any) -> None:
    first = pb.explain("max_pool", np.ones((1, 1, 4, 4), np.float32), 2, layout="channels_first", return_indices=True).chosen
    assert first is not None
    pb.register_kernel(
        "max_pool", first.backend, "test-pair", lambda p: None, lambda p, x: kind(first.run(p, x)), before=first.name
    )
    try:
        for number in range(3):
            y, indices = ort.run_kernel("MaxPool", {"X": np.full((1, 1, 4, 4), number, np.float32)}, WINDOW)
            assert (y == number).all()
            assert indices.shape == y.shape
    finally:
        pb.unregister_kernel("max_pool", first.backend, "test-pair")
