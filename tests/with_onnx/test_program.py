"""The executor: plans, memory in place, sharing of memory, fused nodes, layouts, and what it refuses."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from program_models import model, node, whole

import pullback as pb
import pullback.onnx as px
from pullback.onnx.executor import fusion, program
from pullback.onnx.executor.context import Context
from pullback.onnx.executor.program import Program
from pullback.onnx.executor.registry import FUSED, Node


def test_in_place_never_changes_what_others_hold() -> None:
    """Feeds, constants, outputs and tensors that are read later keep their values, on every run; a dying one is written over."""
    nodes = [
        node("Relu", "x", "a"),  # of a feed
        node("Relu", "w", "b"),  # of a constant
        node("Add", "a b", "c"),
        node("Identity", "c", "d"),  # shares c's memory
        node("Relu", "d", "e"),  # d and c die here, but c is an output
        node("Mul", "e e", "f"),
        node("Transpose", "f", "g", perm=[1, 0]),
        node("Add", "f g", "y"),  # g shares f's memory
    ]
    x, w = whole(3, 3), whole(3, 3)
    ready = Program(model(nodes, {"x": [3, 3]}, ["c", "y"], {"w": w}))
    c = np.maximum(x, 0) + np.maximum(w, 0)
    f = np.maximum(c, 0) ** 2
    for _ in range(3):
        fed = x.copy()
        results = ready.run({"x": fed})
        np.testing.assert_array_equal(fed, x)
        np.testing.assert_array_equal(results["c"], c)
        np.testing.assert_array_equal(results["y"], f + f.T)
    (plan,) = ready._plans.values()
    overwritten = {step.node.op_type: step.out for step in plan.steps}
    assert overwritten["Mul"] == 0
    assert all(step.out < 0 for step in plan.steps if step.node.op_type == "Relu")


def test_tensors_are_freed_after_their_last_use() -> None:
    """While a node runs, hardly more than its inputs is alive, however many there were before."""
    seen: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []
    original = Program._run_node

    def watched(self: Program, node: Node, *rest: Any) -> dict[str, np.ndarray]:
        gc.collect()
        alive.append(len({id(array) for reference in seen if (array := reference()) is not None}))
        answers = original(self, node, *rest)
        seen.extend(weakref.ref(array) for array in answers.values())
        return answers

    chain = [node("Exp" if i % 2 else "Tanh", f"t{i}", f"t{i + 1}") for i in range(9)]
    ready = Program(model(chain, {"t0": [4, 4]}, ["t9"]))
    for most in (3, 1):  # the first run also looks at what it gets
        seen.clear()
        alive.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Program, "_run_node", watched)
            ready.run({"t0": whole(4, 4)})
        assert max(alive) <= most, alive


def test_shapes_are_worked_out_once_for_each_set_of_them() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n zeros", "n1"),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "x target", "y"),
        node("Shape", "y", "sizes"),
    ]
    weights = {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1])}
    ready = Program(model(nodes, {"x": ["n", 2, 3]}, ["y", "sizes"], weights))
    for batch in (4, 5, 4):
        x = whole(batch, 2, 3)
        for _ in range(2):
            results = ready.run({"x": x})
            np.testing.assert_array_equal(results["y"], x.reshape(batch, 6))
            np.testing.assert_array_equal(results["sizes"], [batch, 6])
    assert len(ready._plans) == 2
    assert all([step.node.op_type for step in plan.steps] == ["Reshape"] for plan in ready._plans.values())


def test_a_gradient_of_constants_knows_its_shape() -> None:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("AveragePool", "x", "y", **pool),
        node("AveragePoolGrad", "dy", "dx", shape_of="x", **pool),
    ]
    ready = Program(model(nodes, {"x": [1, 1, 4, 4]}, ["y", "dx"], {"dy": np.ones((1, 1, 2, 2), np.float32)}))
    for _ in range(2):
        np.testing.assert_array_equal(ready.run({"x": whole(1, 1, 4, 4)})["dx"], np.full((1, 1, 4, 4), 0.25))


def test_an_output_may_be_an_input_a_constant_or_given_twice() -> None:
    ready = Program(model([node("Relu", "x", "y")], {"x": [2]}, ["y", "x", "w"], {"w": whole(2)}))
    x = whole(2)
    for _ in range(2):
        results = ready.run({"x": x})
        np.testing.assert_array_equal(results["x"], x)
        results["x"] += 1
        results["w"] += 1
    np.testing.assert_array_equal(ready.run({"x": x})["x"], x)


RESIDUAL = [
    node("Conv", "x w", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    node("BatchNormInternal", "c scale bias mean var", "n m1 v1 sm si", epsilon=1e-3, momentum=0.9, training_mode=1),
    node("Add", "n x", "s"),
    node("Relu", "s", "y"),
    node("MaxPool", "y", "p p_mask", kernel_shape=[2, 2], strides=[2, 2]),
    node("Conv", "p w2 b2", "k", kernel_shape=[1, 1]),
    node("Relu", "k", "z"),
    node("ReluGrad", "dz z", "dk"),
    node("ConvGrad", "dk p w2", "dp dw2 db2", kernel_shape=[1, 1]),
    node("MaxPoolGrad", "dp p_mask", "dy1", kernel_shape=[2, 2], strides=[2, 2], shape_of="y"),
    node("Sum", "dy1 dy2", "dy"),
    node("ReluGrad", "dy y", "ds"),
    node("BatchNormalizationGrad", "ds c scale sm si", "dc dscale dbias", epsilon=1e-3),
    node("Relu", "ds", "ds_again"),
]


def _residual(batch: int = 2) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    weights = {
        "w": whole(4, 4, 3, 3), "scale": whole(4), "bias": whole(4), "mean": whole(4), "var": abs(whole(4)),
        "w2": whole(5, 4, 1, 1), "b2": whole(5),
    }  # fmt: skip
    outputs = ["y", "z", "m1", "v1", "dc", "dscale", "dbias", "dw2", "db2", "ds", "ds_again"]
    inputs = {"x": ["n", 4, 6, 6], "dz": ["n", 5, 3, 3], "dy2": ["n", 4, 6, 6]}
    feeds = {name: whole(batch, *map(int, shape[1:])) for name, shape in inputs.items()}
    return model(RESIDUAL, inputs, outputs, weights), feeds


def test_fused_nodes_give_what_their_parts_give(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, feeds = _residual()
    joined = Program(proto)
    kinds = {each.op_type for each in joined.nodes if each.domain == FUSED}
    assert kinds == {"BatchNormRelu", "ConvRelu", "MaxPoolWinners", "MaxPoolGradFromWinners", "ReluGradOfSum"}
    monkeypatch.setattr(program, "fused", lambda nodes, outputs: nodes)
    apart = Program(proto)
    assert len(apart.nodes) == len(RESIDUAL)
    for _ in range(2):
        ours, theirs = joined.run(feeds), apart.run(feeds)
        for name, expected in theirs.items():
            np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_gradient_of_a_normalisation_takes_the_relu_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without another reader of the masked gradient."""
    inputs = {"dy": [2, 3, 4, 4], "y": [2, 3, 4, 4], "c": [2, 3, 4, 4], "scale": [3], "sm": [3], "si": [3]}
    feeds = {name: whole(*shape) for name, shape in inputs.items()}
    nodes = [
        node("ReluGrad", "dy y", "ds"),
        node("BatchNormalizationGrad", "ds c scale sm si", "dc dscale dbias", epsilon=1e-3),
    ]
    for more in ([], [node("Relu", "ds", "other")]):
        proto = model([*nodes, *more], inputs, ["dc", "dscale", "dbias", *(["other"] if more else [])])
        joined = Program(proto)
        assert joined.nodes[0].op_type == "BatchNormReluGrad"
        ours = joined.run(feeds)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program, "fused", lambda nodes, outputs: nodes)
            theirs = Program(proto).run(feeds)
        for name, expected in theirs.items():
            np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-4, err_msg=name)


def test_no_fusion_where_somebody_else_reads_what_lies_between() -> None:
    nodes = [Node("Add", "", "", ("a", "b"), ("s",)), Node("Relu", "", "", ("s",), ("y",)), Node("Exp", "", "", ("s",), ("z",))]
    assert fusion.fused(nodes, ["y", "z"]) == nodes
    assert fusion.fused(nodes[:2], ["y", "s"]) == nodes[:2]
    assert [each.op_type for each in fusion.fused(nodes[:2], ["y"])] == ["AddRelu"]


def test_the_same_bits_for_any_number_of_threads_and_any_memory_order() -> None:
    proto, feeds = _residual(batch=9)
    answers = []
    for threads in (1, 2, 5):
        with pb.threads(threads):
            ready = Program(proto)
            answers += [ready.run(feeds), ready.run({name: np.asfortranarray(array) for name, array in feeds.items()})]
    for other in answers[1:]:
        for name, expected in answers[0].items():
            assert np.ascontiguousarray(other[name]).tobytes() == np.ascontiguousarray(expected).tobytes(), name


def test_outputs_are_handed_over_as_soon_as_they_are_there() -> None:
    proto, feeds = _residual()
    ready, order = Program(proto), []
    for _ in range(2):
        order.clear()
        results = ready.run(feeds, on_output=lambda name, array: order.append((name, array)))
        assert [name for name, _ in order].index("z") < [name for name, _ in order].index("dw2")
        assert {name for name, _ in order} == set(results)
        assert all(results[name] is array for name, array in order)


def test_a_session_runs_what_is_asked_for() -> None:
    proto, feeds = _residual()
    session = px.Session(proto)
    assert [argument.name for argument in session.get_inputs()] == list(feeds)
    dw, y = session.run(["dw2", "y"], feeds)
    everything = dict(zip([argument.name for argument in session.get_outputs()], session.run(None, feeds), strict=True))
    np.testing.assert_array_equal(everything["y"], y)
    np.testing.assert_array_equal(everything["dw2"], dw)
    assert y.flags.c_contiguous


@pytest.mark.parametrize(
    ("feeds", "sentence"),
    [
        ({}, "input 'x' is missing; the inputs are x"),
        ({"x": np.zeros((2, 3))}, "dtype float64; the model takes float32"),
        ({"x": np.zeros((2, 4), np.float32)}, r"shape \(2, 4\); the model takes \(n, 3\)"),
        ({"x": np.zeros((2, 3), np.float32), "y": 1}, "there is no input 'y'"),
        (np.zeros((2, 3), np.float32), "inputs must be a mapping"),
    ],
)
def test_wrong_inputs_are_one_clear_error(feeds: Any, sentence: str) -> None:
    session = px.Session(model([node("Relu", "x", "y")], {"x": ["n", 3]}, ["y"]))
    with pytest.raises(px.OnnxError, match=sentence):
        session.run(None, feeds)


def test_an_op_that_nobody_knows_is_named() -> None:
    with pytest.raises(px.OnnxError, match=r"node \(Reluu, output 'y'\): the executor has no Reluu; did you mean Relu\?"):
        Program(model([node("Reluu", "x", "y")], {"x": [2]}, ["y"]))


def test_what_fails_inside_a_node_names_the_node() -> None:
    ready = Program(
        model([helper.make_node("MatMul", ["x", "w"], ["y"], name="head")], {"x": ["n", 3]}, ["y"], {"w": whole(4, 2)})
    )
    with pytest.raises(px.OnnxError, match="node 'head' "):
        ready.run({"x": whole(2, 3)})


def test_random_numbers_of_a_row_do_not_depend_on_the_rank() -> None:
    drop = Node("Dropout", "", "", ("x",), ("y",))
    whole_batch = Context(seed=3, step=5).uniform(drop, (6, 7, 3))
    part = Context(seed=3, step=5, first_row=2).uniform(drop, (4, 7, 3))
    np.testing.assert_array_equal(part, whole_batch[2:])
    assert not np.array_equal(Context(seed=3, step=6).uniform(drop, (6, 7, 3)), whole_batch)
    assert not np.array_equal(Context(seed=4, step=5).uniform(drop, (6, 7, 3)), whole_batch)
