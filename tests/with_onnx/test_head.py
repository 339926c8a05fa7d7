"""replace_head: a fresh last layer for another number of classes, or one clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_models import cnn, mlp, model_of, rows_for_cnn

import pullback.onnx as px
from pullback.rules import Array

rng = np.random.default_rng(0)


def values(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_gemm_gets_fresh_weights_and_everything_else_stays() -> None:
    old = cnn()
    new = px.replace_head(old, 7, seed=3)
    assert values(new)["head.w"].shape == (7, 6)
    assert values(new)["head.b"].shape == (7,)
    assert 0 < np.abs(values(new)["head.w"]).max() <= 1 / np.sqrt(6)
    for name in set(values(old)) - {"head.w", "head.b"}:
        np.testing.assert_array_equal(values(old)[name], values(new)[name])
    assert values(old)["head.w"].shape == (3, 6)
    onnx.checker.check_model(new, full_check=True)
    x, y = rows_for_cnn(12)
    (scores,) = px.Session(new).run(None, {"x": x})
    assert scores.shape == (12, 7)
    assert [d.dim_value for d in new.graph.output[0].type.tensor_type.shape.dim] == [0, 7]
    t = px.Trainer(new, frozen=["conv.*", "norm.*"], optimizer=px.SGD(lr=0.1))
    assert t.step(x, y + 4) > t.step(x, y + 4)


def test_shapes_that_a_model_declares_of_its_weights_are_changed_too() -> None:
    old = mlp()  # as PyTorch's exporter does it since 2.5
    old.graph.value_info.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in old.graph.initializer)
    onnx.checker.check_model(px.replace_head(old, 5), full_check=True)


def test_the_seed_decides_the_weights() -> None:
    a, b, c = (values(px.replace_head(mlp(), 5, seed=seed))["w2"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def matmul() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["b", "m"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=1),
    ]
    return model_of(nodes, {"w": rng.standard_normal((4, 3)), "b": np.zeros(3)}, ["N", 4], ["N", 3])


def one_by_one_conv() -> onnx.ModelProto:
    """As in SqueezeNet: the classes are made by a convolution, and a Reshape has their number."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["y"]),
    ]
    weights = {"w": rng.standard_normal((3, 2, 1, 1)), "b": np.zeros(3), "shape": np.array([-1, 3])}
    return model_of(nodes, weights, ["N", 2, 5, 5], ["N", 3])


@pytest.mark.parametrize(("make", "x"), [(matmul, (2, 4)), (one_by_one_conv, (2, 2, 5, 5))])
def test_other_last_layers(make: Any, x: tuple[int, ...]) -> None:
    new = px.replace_head(make(), 6)
    onnx.checker.check_model(new, full_check=True)
    (scores,) = px.Session(new).run(None, {"x": np.ones(x, np.float32)})
    assert scores.shape == (2, 6)


def test_models_without_a_last_layer_are_refused() -> None:
    pool = model_of([helper.make_node("GlobalAveragePool", ["x"], ["y"])], {}, ["N", 2, 5, 5], ["N", 2, 1, 1])
    with pytest.raises(
        px.OnnxError, match=r"replace_head: there is no layer before the output .* change the model where it is made"
    ):
        px.replace_head(pool, 4)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"], name="t")]
    tanh = model_of(nodes, {"w": np.ones((4, 3))}, ["N", 4], ["N", 3])
    with pytest.raises(px.OnnxError, match=r"node 't' \(Tanh\) is between the last layer and the output"):
        px.replace_head(tanh, 4)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="c", kernel_shape=[3, 3])]
    window = model_of(nodes, {"w": np.ones((3, 2, 3, 3))}, ["N", 2, 5, 5], ["N", 3, 3, 3])
    with pytest.raises(px.OnnxError, match=r"node 'c' is a Conv with a window of \(3, 3\)"):
        px.replace_head(window, 4)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    tied = model_of(nodes, {"w": np.ones((4, 4))}, ["N", 4], ["N", 4])
    with pytest.raises(px.OnnxError, match="'w' belongs to 2 nodes"):
        px.replace_head(tied, 5)
    with pytest.raises(px.OnnxError, match="classes is 0; it must be a whole number, at least 1"):
        px.replace_head(mlp(), 0)
