"""Whose memory is whose: views that overlap, outputs that users change, shapes that depend on values, fused nodes that share."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from program_models import model, node, whole

import pullback.onnx as px
from pullback.onnx.executor import program
from pullback.onnx.executor.program import Program
from pullback.onnx.executor.registry import FUSED
from pullback.rules import Array


@pytest.mark.parametrize("more", [[], [node("Relu", "s", "r")]])
def test_a_sum_of_two_views_of_one_memory_is_not_made_in_place(more: list[onnx.NodeProto]) -> None:
    """Large enough for the native passes, which would read what they have overwritten."""
    cuts = {"one": np.array([1]), "zero": np.array([0]), "nine": np.array([9]), "eight": np.array([8])}
    nodes = [
        node("Neg", "x", "n"),
        node("Slice", "n one nine zero", "a"),
        node("Slice", "n zero eight zero", "b"),
        node("Add", "a b", "s"),
        *more,
        node("Neg", "r" if more else "s", "y"),
    ]
    ready = Program(model(nodes, {"x": [9, 3000]}, ["y"], cuts))
    x = whole(9, 3000)
    expected = np.maximum(-(x[1:] + x[:-1]), 0) if more else -(x[1:] + x[:-1])
    for _ in range(3):
        np.testing.assert_array_equal(ready.run({"x": x})["y"], -expected)


def test_outputs_have_memory_of_their_own() -> None:
    """Views of a feed, of a constant and of one another, sizes, and a stretched tensor: each may be written to."""
    nodes = [
        node("Flatten", "x", "of_feed", axis=0),
        node("Identity", "w", "of_constant"),
        node("Relu", "x", "a"),
        node("Flatten", "a", "of_a"),
        node("Shape", "x", "sizes"),
        node("Expand", "a twice", "stretched"),
        node("Add", "x w", "z"),
    ]
    outputs = ["of_feed", "of_constant", "a", "of_a", "sizes", "stretched", "z"]
    w = whole(3, 2)
    ready = Program(model(nodes, {"x": [3, 2]}, outputs, {"w": w, "twice": np.array([2, 1, 1])}))
    x = whole(3, 2)
    a = np.maximum(x, 0)
    expected: dict[str, Any] = {
        "of_feed": x.reshape(1, 6), "of_constant": w, "a": a, "of_a": a, "sizes": [3, 2], "stretched": [a, a], "z": x + w,
    }  # fmt: skip
    for _ in range(3):
        fed = x.copy()
        results = ready.run({"x": fed})
        for name in outputs:
            np.testing.assert_array_equal(results[name], expected[name], err_msg=name)
            results[name] += 1
        np.testing.assert_array_equal(fed, x)


def _counted(kind: int, nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: list[str]) -> onnx.ModelProto:
    """With an input `shape` of whole numbers."""
    proto = model(nodes, inputs, outputs, {"ones": np.ones((1, 6), np.float32)})
    proto.graph.input.append(helper.make_tensor_value_info("shape", kind, [2]))
    return proto


def test_shapes_that_depend_on_values_are_worked_out_in_every_run() -> None:
    nodes = [
        node("Reshape", "x shape", "r"),
        node("Shape", "r", "sizes"),
        node("Neg", "r", "n"),
        node("Add", "n ones", "y"),  # in the place of n only where n is not stretched
        node("NonZero", "x", "where"),
        node("Shape", "where", "count"),
    ]
    ready = Program(_counted(TensorProto.INT64, nodes, {"x": [6]}, ["sizes", "y", "count"]))
    for shape, x in (([1, 6], np.ones(6)), ([6, 1], np.eye(6)[0]), ([1, 6], np.zeros(6))):
        results = ready.run({"x": x.astype(np.float32), "shape": np.array(shape)})
        np.testing.assert_array_equal(results["sizes"], shape)
        np.testing.assert_array_equal(results["y"], 1 - x.reshape(shape) + np.zeros((1, 6)))
        np.testing.assert_array_equal(results["count"], [1, np.count_nonzero(x)])


def _joined_and_apart(proto: onnx.ModelProto, feeds: dict[str, Array]) -> set[str]:
    """The same results with and without fused nodes; the kinds of these."""
    joined = Program(proto)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "fused", lambda nodes, outputs: nodes)
        apart = Program(proto)
    for _ in range(2):
        ours, theirs = joined.run(feeds), apart.run(feeds)
        for name, expected in theirs.items():
            np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
    return {each.op_type for each in joined.nodes if each.domain == FUSED}


def test_a_tensor_that_a_fused_node_reads_twice() -> None:
    nodes = [
        node("Relu", "x", "y"),
        node("ReluGrad", "x y", "m"),
        node("Add", "m m", "t"),
        node("Relu", "t", "z"),
        node("ReluGrad", "m z", "q"),
    ]
    assert _joined_and_apart(model(nodes, {"x": [4]}, ["q", "z"]), {"x": whole(4)}) == {"AddRelu"}


def test_statistics_that_are_read_before_the_relu_keep_their_place() -> None:
    """Two batch normalizations share running statistics: the second goes on from those of the first, ahead of its ReLU."""
    nodes = [
        node("BatchNormInternal", "x scale bias mean var", "a m1 v1 s1 i1", training_mode=1),
        node("BatchNormInternal", "z scale bias m1 v1", "b m2 v2 s2 i2", training_mode=1),
        node("Relu", "a", "y"),
        node("Add", "b y", "t"),
        node("Relu", "t", "u"),
    ]
    weights = {"scale": whole(3), "bias": whole(3), "mean": whole(3), "var": abs(whole(3))}
    feeds = {name: whole(4, 3, 2, 2) for name in ("x", "z")}
    proto = model(nodes, {"x": [4, 3, 2, 2], "z": [4, 3, 2, 2]}, ["u", "m2", "v2"], weights)
    assert _joined_and_apart(proto, feeds) == {"BatchNormRelu"}


def test_what_a_gradient_of_normalization_reads_may_be_made_after_the_relu_gradient() -> None:
    nodes = [
        node("ReluGrad", "dy y", "ds"),
        node("Relu", "si", "late"),
        node("BatchNormalizationGrad", "ds c scale sm late", "dc dscale dbias", epsilon=1e-3),
    ]
    inputs = {"dy": [2, 3, 4, 4], "y": [2, 3, 4, 4], "c": [2, 3, 4, 4], "scale": [3], "sm": [3], "si": [3]}
    feeds = {name: whole(*shape) for name, shape in inputs.items()}
    assert not _joined_and_apart(model(nodes, inputs, ["dc", "dscale", "dbias"]), feeds)


def test_no_rows_go_through_every_fused_node() -> None:
    nodes = [
        node("Conv", "x w b", "c", kernel_shape=[3, 3]),
        node("Relu", "c", "r"),
        node("InstanceNormalization", "r b b", "n"),
        node("GlobalAveragePool", "n", "y"),
    ]
    ready = Program(model(nodes, {"x": ["n", 2, 5, 5]}, ["y"], {"w": whole(4, 2, 3, 3), "b": whole(4)}))
    for rows in (0, 0, 2):
        assert ready.run({"x": whole(rows, 2, 5, 5)})["y"].shape == (rows, 4, 1, 1)


def test_constants_that_are_not_finite_are_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready = Program(
            model([node("Log", "w", "l"), node("Add", "x l", "y")], {"x": [2]}, ["y"], {"w": np.zeros(2, np.float32)})
        )
    assert np.isneginf(ready.run({"x": whole(2)})["y"]).all()


def test_a_gradient_that_depends_on_nothing_trains() -> None:
    """It is known before the run, and handed over as every other is."""
    nodes = [node("ReduceSum", "w", "a", keepdims=0), node("ReduceMean", "x", "b", keepdims=0), node("Add", "a b", "loss")]
    proto = model(nodes, {"x": ["n", 2]}, ["loss"], {"w": np.ones(2, np.float32)})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    trainer = px.Trainer(proto, loss="loss", optimizer=px.SGD(lr=0.5))
    for expected in (2.0, 1.0):
        assert trainer.step(np.zeros((3, 2), np.float32)) == expected


def test_the_gradient_of_groups_of_an_image_that_lies_backwards() -> None:
    """Of one channel, where an array may look to lie in both layouts and another of its values in one alone."""
    nodes = [
        node("Slice", "x last first axis step", "f"),
        helper.make_node(
            "GroupNormalizationGrad", ["dy", "f", "scale", "groups", "eps"], ["dx", "ds", "db"], domain="ai.pullback"
        ),
    ]
    weights = {
        "last": np.array([3]), "first": np.array([-5]), "axis": np.array([2]), "step": np.array([-1]),
        "scale": whole(1) + 5, "groups": np.array([0, 1, -1]), "eps": np.array(1e-3, np.float32),
    }  # fmt: skip
    proto = model(nodes, {"x": [2, 1, 4, 3], "dy": [2, 1, 4, 3]}, ["dx", "ds", "db"], weights)
    x, dy = whole(2, 1, 4, 3), whole(2, 1, 4, 3)
    backwards = Program(proto).run({"x": x, "dy": dy})
    proto.graph.node[0].CopyFrom(node("Identity", "x", "f"))
    forwards = Program(proto).run({"x": np.ascontiguousarray(x[:, :, ::-1]), "dy": dy})
    for name, expected in forwards.items():
        np.testing.assert_allclose(backwards[name], expected, rtol=1e-5, atol=1e-5)
