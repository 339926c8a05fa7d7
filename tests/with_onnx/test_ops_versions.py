"""What changed between opsets: attributes that became inputs, other defaults, other shapes of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from node_cases import run_node

import pullback as pb
from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.context import Context
from pullback.onnx.executor.registry import MICROSOFT, Node

pytestmark = pytest.mark.usefixtures("on_the_reference")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 5, 3)).astype(np.float32)


@pytest.fixture
def on_the_reference() -> Iterator[None]:
    """The kernels have tests of their own."""
    with pb.backend("reference"):
        yield


def node(op_type: str, opset: int, outputs: int = 1, domain: str = "", **attrs: Any) -> Node:
    return Node(op_type, domain, "n", ("x",), tuple(f"y{place}" for place in range(outputs)), attrs, opset)


def run(op_type: str, opset: int, *inputs: Any, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
    results = run_node(node(op_type, opset, outputs, domain, **attrs), *inputs)
    return results[0] if outputs == 1 else results


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_is_of_all_later_axes_before_opset_13(op_type: str) -> None:
    together = run(op_type, 13, X.reshape(2, -1), axis=1).reshape(X.shape)
    np.testing.assert_array_equal(run(op_type, 11, X), together)
    np.testing.assert_array_equal(run(op_type, 13, X), run(op_type, 13, X, axis=3))
    assert not np.allclose(together, run(op_type, 13, X, axis=1))


def test_clip_by_attributes_and_by_inputs() -> None:
    expected = np.clip(X, -0.5, 0.25)
    np.testing.assert_array_equal(run("Clip", 6, X, min=-0.5, max=0.25), expected)
    np.testing.assert_array_equal(run("Clip", 13, X, np.array(-0.5, np.float32), np.array(0.25, np.float32)), expected)
    np.testing.assert_array_equal(run("Clip", 13, X, None, np.array(0.25, np.float32)), np.minimum(X, np.float32(0.25)))
    np.testing.assert_array_equal(run("Clip", 13, X), X)


def test_lists_by_attributes_and_by_inputs() -> None:
    for since, old in ((13, 11), (13, 12)):
        np.testing.assert_array_equal(run("Unsqueeze", old, X, axes=[0, -1]), run("Unsqueeze", since, X, ints(0, -1)))
        one = X[:, :1]
        np.testing.assert_array_equal(run("Squeeze", old, one, axes=[1]), run("Squeeze", since, one, ints(1)))
        by_attribute = run("Split", old, X, outputs=2, axis=1, split=[1, 3])
        by_input = run("Split", since, X, ints(1, 3), outputs=2, axis=1)
        for a, b, shape in zip(by_attribute, by_input, ((2, 1, 5, 3), (2, 3, 5, 3)), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.shape == shape
    for op_type, reduction in (("ReduceMean", np.mean), ("ReduceSum", np.sum), ("ReduceMax", np.max)):
        expected = reduction(X, axis=(1, 3), keepdims=True)
        np.testing.assert_allclose(run(op_type, 11, X, axes=[1, -1]), expected, rtol=1e-5)
        np.testing.assert_allclose(run(op_type, 18, X, ints(1, -1)), expected, rtol=1e-5)
        np.testing.assert_allclose(run(op_type, 18, X, keepdims=0), reduction(X), rtol=1e-5)
        np.testing.assert_array_equal(run(op_type, 18, X, noop_with_empty_axes=1), X)


def test_split_into_parts_of_which_the_last_is_smaller() -> None:
    parts = run("Split", 18, X, outputs=3, axis=2, num_outputs=3)
    assert [part.shape[2] for part in parts] == [2, 2, 1]
    with pytest.raises(OnnxError, match="cannot be split into 3 equal parts"):
        run("Split", 13, X, outputs=3, axis=2)


def test_slice_by_attributes_and_backwards() -> None:
    np.testing.assert_array_equal(run("Slice", 9, X, starts=[1, -2], ends=[9, 2**62], axes=[1, 2]), X[:, 1:, -2:])
    np.testing.assert_array_equal(run("Slice", 13, X, ints(-1), ints(-(2**62)), ints(2), ints(-2)), X[:, :, ::-2])
    np.testing.assert_array_equal(run("Slice", 13, X, ints(-99), ints(-99), ints(2), ints(-1)), X[:, :, :1])
    assert run("Slice", 13, X, ints(3), ints(1), ints(2)).shape == (2, 4, 0, 3)


def test_pad_by_attributes_and_by_inputs() -> None:
    pads = [0, 0, 1, -1, 0, 0, 2, 0]
    expected = np.pad(X[..., 1:], ((0, 0), (0, 0), (1, 2), (0, 0)), constant_values=3)
    np.testing.assert_array_equal(run("Pad", 2, X, pads=pads, value=3.0), expected)
    np.testing.assert_array_equal(run("Pad", 11, X, ints(*pads), np.array(3, np.float32)), expected)
    np.testing.assert_array_equal(run("Pad", 18, X, ints(1, -1, 2, 0), np.array(3, np.float32), ints(2, -1)), expected)
    for mode in ("reflect", "edge", "wrap"):
        wide = np.pad(X, ((0, 0), (0, 0), (7, 3), (0, 4)), mode=mode)
        np.testing.assert_array_equal(run("Pad", 19, X, ints(7, 0, 3, 4), None, ints(2, 3), mode=mode), wide)


def test_reshape_copies_or_allows_zeros() -> None:
    assert run("Reshape", 13, X, ints(0, -1, 3)).shape == (2, 20, 3)
    empty = np.zeros((0, 4), np.float32)
    assert run("Reshape", 14, empty, ints(3, 0, 4), allowzero=1).shape == (3, 0, 4)
    assert run("Reshape", 14, empty, ints(0, 4)).shape == (0, 4)
    with pytest.raises(OnnxError, match=r"n.*Reshape.*do not fit into \[7, 2\]"):
        run("Reshape", 14, X, ints(7, 2))


def test_group_normalization_has_parameters_of_groups_before_opset_21() -> None:
    scale, bias = np.array([2, 3], np.float32), np.array([0.5, -1], np.float32)
    old = run("GroupNormalization", 18, X, scale, bias, num_groups=2)
    new = run("GroupNormalization", 21, X, scale.repeat(2), bias.repeat(2), num_groups=2)
    np.testing.assert_array_equal(old, new)
    groups = X.reshape(2, 2, -1)
    hat = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    expected = hat.reshape(X.shape) * scale.repeat(2).reshape(4, 1, 1) + bias.repeat(2).reshape(4, 1, 1)
    np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-5)


def test_batch_normalization_in_training() -> None:
    scale, bias, mean, var = (RNG.uniform(0.5, 1.5, 4).astype(np.float32) for _ in range(4))
    batch_mean, batch_var = X.mean((0, 2, 3)), X.var((0, 2, 3))
    column = (1, 4, 1, 1)
    inverse = 1 / np.sqrt(batch_var + 1e-3)
    y = (X - batch_mean.reshape(column)) * (scale * inverse).reshape(column) + bias.reshape(column)
    running = (0.8 * mean + 0.2 * batch_mean, 0.8 * var + 0.2 * batch_var)
    attrs = {"epsilon": 1e-3, "momentum": 0.8}
    for got, expected in (
        (run("BatchNormalization", 9, X, scale, bias, mean, var, outputs=5, **attrs), (y, *running, batch_mean, batch_var)),
        (run("BatchNormalization", 15, X, scale, bias, mean, var, outputs=3, training_mode=1, **attrs), (y, *running)),
        (
            run("BatchNormInternal", 1, X, scale, bias, mean, var, outputs=5, domain=MICROSOFT, **attrs),
            (y, *running, batch_mean, inverse),
        ),
    ):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == np.float32
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    flat = X.reshape(-1, 4)
    got = run("BatchNormalization", 15, flat, scale, bias, mean, var, outputs=3, training_mode=1)
    np.testing.assert_allclose(got[0].mean(0), bias, atol=1e-5)


def test_batch_statistics_are_those_of_all_ranks() -> None:
    parameters = [RNG.uniform(0.5, 1.5, 4).astype(np.float32) for _ in range(4)]
    training = node("BatchNormalization", 15, 3, training_mode=1)
    whole = run_node(training, X, *parameters)
    sent: list[Any] = []

    def send(array: Any) -> Any:
        sent.append(array)
        return array

    for part in (X[:1], X[1:]):
        run_node(training, part, *parameters, context=Context(all_reduce=send))
    first, second = sent
    everybody = Context(all_reduce=lambda array: first + second)
    parts = [run_node(training, part, *parameters, context=everybody) for part in (X[:1], X[1:])]
    np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), whole[0], rtol=1e-4, atol=1e-5)
    for part in parts:
        for running, expected in zip(part[1:], whole[1:], strict=True):
            np.testing.assert_allclose(running, expected, rtol=1e-5, atol=1e-6)


def test_resize_and_upsample_of_old_opsets() -> None:
    scales = np.array([1, 1, 2, 3], np.float32)
    expected = X.repeat(2, axis=2).repeat(3, axis=3)
    for result in (
        run("Upsample", 7, X, scales=[1.0, 1.0, 2.0, 3.0]),
        run("Upsample", 9, X, scales),
        run("Resize", 10, X, scales),
        run(
            "Resize", 11, X, np.zeros(0, np.float32), scales, coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ),
        run("Resize", 18, X, None, None, ints(10, 9), axes=[2, 3]),
    ):
        np.testing.assert_array_equal(result, expected)


def test_dropout_passes_on_what_it_gets_outside_training() -> None:
    for opset in (7, 10, 13):
        y, mask = run("Dropout", opset, X, outputs=2, **({"ratio": 0.3} if opset < 12 else {}))
        np.testing.assert_array_equal(y, X)
        assert mask.dtype == np.bool_
        assert mask.all()


@pytest.mark.parametrize(
    ("op_type", "opset", "inputs", "attrs", "message"),
    [
        ("Resize", 19, (X, None, np.ones(4, np.float32)), {"mode": "area"}, "mode is 'area'; the choices are nearest"),
        ("Resize", 19, (X, None, np.ones(2, np.float32)), {}, "2 sizes or scales for 4 axes"),
        ("Pad", 19, (X, ints(*[1] * 8)), {"mode": "mirror"}, "mode is 'mirror'; the modes are"),
        ("Gelu", 20, (X,), {"approximate": "fast"}, "approximations are"),
        ("Cast", 19, (X,), {"to": 17}, "type FLOAT8E4M3FN is not supported; convert the model"),
        ("Conv", 22, (X, X[:, :2]), {}, "Input channels C is not equal to kernel channels"),
        ("Conv", 22, (X, np.ones((1, 4, 9, 9), np.float32)), {}, "does not fit into the input"),
        ("MaxPool", 22, (X,), {"kernel_shape": [9, 9]}, "does not fit into the input"),
        ("AveragePool", 22, (X,), {}, "No kernel shape is set"),
        ("ConvTranspose", 22, (X, np.ones((3, 2, 3, 3), np.float32)), {}, "W needs X's 4 channels first"),
        ("Softmax", 13, (X,), {"axis": 7}, "axis 7 of an array with 4 axes"),
        ("GroupNormalization", 21, (X, X[0, :, 0, 0], X[0, :, 0, 0]), {"num_groups": 3}, "num_groups must divide"),
        ("ScatterND", 18, (X, ints(0), X[0]), {"reduction": "mean"}, "the reductions are none, add"),
        ("SoftmaxCrossEntropyLoss", 13, (X[:, :, 0, 0], ints(0, 4)), {}, "labels run from 0 to 4 but there are 4 classes"),
        ("SoftmaxCrossEntropyLoss", 13, (X[:, :, 0, 0], ints(0, -1)), {}, "labels are the numbers 0 to 3"),
    ],
)
def test_what_cannot_be_run_is_one_error_that_names_the_node(
    op_type: str, opset: int, inputs: Any, attrs: Any, message: str
) -> None:
    with pytest.raises(OnnxError, match=message) as caught:
        run(op_type, opset, *inputs, **attrs)
    assert str(caught.value).startswith(f"node 'n' ({op_type}")
