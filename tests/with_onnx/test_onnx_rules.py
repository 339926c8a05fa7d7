"""Every rule of the training graph against finite differences in float64, with sizes known beforehand and with open ones."""

import numpy as np
import pytest
from networks import Model
from onnx import TensorProto, numpy_helper
from rule_cases import CASES, model_of

import pullback as pb
from pullback.onnx.executor.program import Program
from pullback.onnx.graph.description import describe
from pullback.onnx.graph.rules import RULES
from pullback.onnx.graph.training_graph import training_graph

STEP = 1e-6

TRIALS = [(case, dynamic) for case in CASES for dynamic in (False, True) if not (dynamic and case.fixed)]


@pytest.mark.parametrize(("case", "dynamic"), TRIALS, ids=[f"{case.id}-{'open' if d else 'known'}" for case, d in TRIALS])
def test_rule(case, dynamic):
    parameters = [f"p{i}" for i, given in enumerate(case.inputs) if isinstance(given, tuple)]
    with pb.backend("reference"):
        model, feeds = model_of(case, dynamic)
        rng = np.random.default_rng(1)
        graph = training_graph(model, "total", trainable=parameters)
        description = describe(graph)
        assert description.parameters == tuple(parameters)
        program = Program(graph)
        result = program.run(feeds)
        start = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
        for name in parameters:
            gradient = result[description.gradients[name]]
            assert gradient.shape == start[name].shape
            assert gradient.dtype == start[name].dtype
            for _ in range(2):
                way = rng.standard_normal(start[name].shape)
                ahead, behind = (
                    program.run(feeds | {name: start[name] + sign * STEP * way})[description.loss] for sign in (1, -1)
                )
                expected = (ahead - behind) / (2 * STEP)
                np.testing.assert_allclose((gradient * way).sum(), expected, rtol=1e-6, atol=1e-7 * max(1, np.abs(way).sum()))


@pytest.mark.parametrize("op", ["Cast", "CastLike"])
def test_cast(op):
    """The gradient comes back in the type of the parameter."""
    m = Model(dtype=np.float64)
    x = m.weight("x", (3, 4))
    narrow = m.op("Cast", x, to=TensorProto.FLOAT)
    y = m.op("Cast", narrow, to=TensorProto.DOUBLE) if op == "Cast" else m.op("CastLike", narrow, x)
    graph = training_graph(m.proto(m.op("ReduceSum", m.op("Mul", y, y), keepdims=0, name="total")), "total")
    gradient = Program(graph).run({})["x_grad"]
    assert gradient.dtype == np.float64
    np.testing.assert_allclose(gradient, 2 * numpy_helper.to_array(m.initializers[0]), rtol=1e-6)


def test_dropout():
    """What was kept gets the gradient, by the factor that it was multiplied with."""
    m = Model()
    x = m.weight("x", (40, 50), 1.0)
    y = m.op("Dropout", x, m.tensor("ratio", np.array(0.25, np.float32)), name="y")
    m.op("ReduceSum", y, keepdims=0, name="total")
    m.output(y, [40, 50])
    m.output("total", [])
    result = Program(training_graph(m.proto(), "total")).run({})
    np.testing.assert_array_equal(result["x_grad"], result["y"])
    assert set(np.unique(result["y"])) == {np.float32(0), np.float32(1 / 0.75)}


def test_ties_are_split_evenly_or_given_to_the_first():
    for op, expected in (("ReduceMax", [0.5, 0.5, 0]), ("GlobalMaxPool", [1, 0, 0])):
        m = Model()
        x = m.tensor("x", np.array([[[3, 3, 1]]], np.float32))
        y = m.op(op, x, **({"axes": [2]} if op == "ReduceMax" else {}))
        graph = training_graph(m.proto(m.op("ReduceSum", m.op("Mul", y, y), keepdims=0, name="total")), "total")
        np.testing.assert_array_equal(Program(graph).run({})["x_grad"].ravel(), np.array(expected) * 6)


def test_every_rule_is_tried():
    tried = {case.op for case in CASES} | {"BatchNormInternal", "Dropout", "Cast", "CastLike", "Identity"}
    assert set(RULES) <= tried, set(RULES) - tried
