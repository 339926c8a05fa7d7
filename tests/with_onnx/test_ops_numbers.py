"""Numbers that are easily wrong: accuracy of erf, extremes of activations, integers, ties, large arrays, memory used twice."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from node_cases import run_node

import pullback as pb
from pullback.onnx.executor.context import Context
from pullback.onnx.executor.layout import as_layout, channels_last
from pullback.onnx.executor.registry import Node, find_op
from pullback.onnx.ops.comparisons import select
from pullback.onnx.ops.special import erf


def run(op_type: str, *inputs: Any, opset: int = 20, outputs: int = 1, out: Any = None, **attrs: Any) -> Any:
    node = Node(op_type, "", "n", ("x",), tuple(f"y{place}" for place in range(outputs)), attrs, opset)
    results = run_node(node, *inputs, out=out)
    return results[0] if outputs == 1 else results


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 5e-7), (np.float64, 1e-15)])
def test_erf_is_accurate_relative_to_itself(dtype: Any, error: float) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), 10.0 ** np.linspace(-30, 0, 300), [np.inf, -np.inf]]).astype(dtype)
    expected = np.array([math.erf(value) for value in x.tolist()])
    assert erf(x).dtype == dtype
    np.testing.assert_allclose(erf(x), expected, rtol=error, atol=0)
    assert np.isnan(erf(np.array([np.nan], dtype))).all()
    assert np.abs(erf(x)).max() == 1
    image = x[:20000].reshape(2, 5, 50, 40)
    lying = erf(as_layout(image, last=True))
    assert channels_last(lying)
    np.testing.assert_array_equal(lying, erf(image))


@pytest.mark.parametrize("op_type", ["Sigmoid", "Softplus", "Mish", "Tanh", "Gelu", "Elu", "Softsign", "HardSwish", "Swish"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_far_from_zero(op_type: str, dtype: Any) -> None:
    x = np.array([-1e4, -100, -20, 0, 20, 100, 1e4], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = find_op(node := Node(op_type, "", "", ("x",), ("y",), {}, 24)).run(node, x)
    assert y.dtype == dtype
    bounded = {
        "Sigmoid": (0, 0, 1, 1),
        "Tanh": (-1, -1, 1, 1),
        "Elu": (-1, -1, 100, 1e4),
        "Softsign": (-1, -100 / 101, 100 / 101, 1),
    }
    np.testing.assert_allclose(y[[0, 1, 5, 6]], bounded.get(op_type, (0, 0, 100, 1e4)), rtol=1e-3, atol=1e-6)


def test_softmax_of_large_numbers() -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    np.testing.assert_allclose(run("Softmax", x), [[1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0]], rtol=1e-6)
    np.testing.assert_allclose(run("LogSoftmax", x)[0, :2], [-math.log1p(math.exp(-1)), -math.log1p(math.e)], rtol=1e-6)


def test_integers_are_divided_towards_zero() -> None:
    a, b = np.array([7, -7, 7, -7, 6, -6], np.int64), np.array([2, 2, -2, -2, 3, 3], np.int64)
    np.testing.assert_array_equal(run("Div", a, b), [3, -3, -3, 3, 2, -2])
    np.testing.assert_array_equal(run("Mod", a, b), [1, 1, -1, -1, 0, 0])
    np.testing.assert_array_equal(run("Mod", a, b, fmod=1), [1, -1, 1, -1, 0, 0])
    assert run("Div", np.array(7, np.int32), np.array(-2, np.int32)).dtype == np.int32


@pytest.mark.parametrize("exponent", [0.5, 1, 2, 3, -1, 2.5, 0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_have_the_type_of_their_base(exponent: float, dtype: Any) -> None:
    x = np.array([0.25, 1, 3.5], dtype)
    for exponents in (np.array(exponent, np.float32), np.full(3, exponent, np.float64)):
        y = run("Pow", x, exponents)
        assert y.dtype == dtype
        np.testing.assert_allclose(y, x.astype(np.float64) ** exponent, rtol=1e-6)
    assert run("Pow", x[0], np.full(3, exponent, np.float32)).shape == (3,)


def test_a_sum_of_a_tensor_with_itself_in_its_own_memory() -> None:
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(run("Sum", x, x, x, out=x), 3 * np.arange(6))
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(run("Mean", x, 2 * x, out=x), 1.5 * np.arange(6))


def test_equal_entries_come_in_order() -> None:
    x = np.array([[3, 1, 3, 1, 2]], np.float32)
    values, places = run("TopK", x, np.array([3]), outputs=2)
    np.testing.assert_array_equal(values, [[3, 3, 2]])
    np.testing.assert_array_equal(places, [[0, 2, 4]])
    np.testing.assert_array_equal(run("TopK", x, np.array([2]), outputs=2, largest=0)[1], [[1, 3]])


def test_large_arrays_in_any_order() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((2, 16, 32, 33)).astype(np.float32) for _ in range(2))
    with pb.backend("reference"):
        for last in (False, True):
            a, b = as_layout(x, last), as_layout(y, not last)
            np.testing.assert_array_equal(run("Relu", a), np.maximum(x, 0))
            np.testing.assert_array_equal(run("Add", a, b), x + y)
            np.testing.assert_array_equal(run("Sum", a, b, a), x + y + x)
            np.testing.assert_array_equal(run("Where", a > 0, a, b), np.where(x > 0, x, y))
            assert channels_last(run("Add", a, b)) is last
    narrow = y[:1, :, :1]
    np.testing.assert_array_equal(select(x > 0, narrow, x), np.where(x > 0, narrow, x))
    np.testing.assert_array_equal(select(x[:1] > 0, x, np.float32(-1) + y * 0), np.where(x[:1] > 0, x, np.float32(-1)))


def test_random_numbers_are_as_described() -> None:
    node = Node("RandomNormalLike", "", "n", ("x",), ("y",), {"mean": 3.0, "scale": 2.0}, 13)
    x = np.zeros((200, 50), np.float32)
    first, again, later = (run_node(node, x, context=Context(seed=1, step=step))[0] for step in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)
    assert first.dtype == np.float32
    assert abs(first.mean() - 3) < 0.1
    assert abs(first.std() - 2) < 0.1
    hits = run("Bernoulli", np.full((100, 100), 0.3))
    assert hits.dtype == np.float64
    assert abs(hits.mean() - 0.3) < 0.03
    flat = run("RandomUniform", shape=[40, 50], low=-1.0, high=3.0)
    assert flat.dtype == np.float32
    assert flat.min() >= -1
    assert flat.max() < 3
    assert abs(flat.mean() - 1) < 0.1
