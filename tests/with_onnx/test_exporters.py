"""What exporters do to a model that its training has to undo: merged parameters, sequences, sizes of an example."""

import numpy as np
from networks import Model, branching
from onnx import TensorProto

import pullback.onnx as px
from pullback.onnx.graph.description import describe


def normalised(producer):
    """Two batch normalisations, all of whose parameters and statistics are two tensors, as tf2onnx writes them."""
    m = Model()
    ones, zeros = m.weight("ones", (3,), 1.0), m.weight("zeros", (3,), 0.0)
    y = m.input("x", ["N", 3, 2])
    for name in ("first", "second"):
        y = m.op("BatchNormalization", y, ones, zeros, zeros, ones, name=name)
    m.output(m.op("ReduceMean", y, axes=[2], keepdims=0), ["N", 3])
    model = m.proto()
    model.producer_name = producer
    return model


def test_equal_tensors_that_an_exporter_merged_are_separate_parameters():
    x, target = np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32), np.array([0, 1, 2, 0])
    trainer = px.Trainer(normalised("tf2onnx"), optimizer=px.SGD(lr=0.5))
    assert len(trainer.parameters) == 4
    assert len(trainer.running) == 4
    trainer.step(x, target)
    values = [*trainer.parameters.copies().values(), *trainer.running.values()]
    assert len({array.tobytes() for array in values}) == 8
    trained = {tensor.name for tensor in trainer.model().graph.initializer}
    assert trained == {*trainer.parameters, *trainer.running}


def test_a_shared_normalisation_of_torchscript_stays_shared():
    """There, equal tensors get names of their own, so one name is one tensor; running statistics are never a parameter."""
    names = describe(px.training_graph(normalised("pytorch")))
    assert (len(names.parameters), len(names.running)) == (2, 2)


def test_shared_weights_with_different_values_stay_shared():
    m = Model()
    w = m.weight("w", (3, 3))
    y = m.op("MatMul", m.op("Tanh", m.op("MatMul", m.input("x", ["N", 3]), w)), w)
    m.output(y, ["N", 3])
    assert describe(px.training_graph(m.proto())).parameters == ("w",)


def test_the_sizes_of_an_example_are_not_believed():
    """The output is said to have two rows, by an exporter that lost sight of the open axis of the input."""
    m = Model()
    shape = m.op("Concat", m.op("Shape", m.input("x", ["N", 4]), end=1), m.ints(2, 2), axis=0)
    m.output(m.op("Reshape", m.op("Mul", "x", m.weight("w", (4,))), shape), [2, 2, 2])
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    model = m.proto()
    _, gradients = px.gradients(model, x, np.zeros((5, 2, 2), np.float32), loss="mse")
    w = np.frombuffer(model.graph.initializer[-1].raw_data, np.float32)
    np.testing.assert_allclose(gradients["w"], (2 * w * x * x).sum(0) / x.size, rtol=1e-5)


def test_parts_taken_of_a_sequence():
    m = Model(opset=18)
    parts = m.op(
        "SplitToSequence", m.op("Mul", m.input("x", ["N", 5]), m.weight("w", (5,))), m.tensor("two", np.array(2)), axis=1
    )
    last, first = (m.op("SequenceAt", parts, m.tensor(f"at_{at}", np.array(at))) for at in (-1, 0))
    m.output(m.op("Mul", last, first), ["N", 2])
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    model = m.proto()
    w = np.frombuffer(next(t for t in model.graph.initializer if t.name == "w").raw_data, np.float32)
    product = (w * x)[:, 4:] * (w * x)[:, :2]
    np.testing.assert_allclose(px.Session(model).run(None, {"x": x})[0], product, rtol=1e-6)
    _, gradients = px.gradients(model, x, np.zeros((3, 2), np.float32), loss="mse")
    expected = np.array([*(product**2).sum(0), 0, 0, (product**2).sum()]) / (3 * w)  # product is linear in each factor
    np.testing.assert_allclose(gradients["w"], expected, rtol=1e-4)


def test_a_branch_inside_a_model_that_is_trained():
    """The trained model is written without it."""
    m = Model()
    m.op("Mul", m.input("raw", ["N", 3]), m.weight("w", (3,)), name="x")
    size = m.op("Gather", m.op("Shape", "x"), m.tensor("one", np.array(1)))
    trainer = px.Trainer(branching(m, m.op("Equal", size, m.tensor("three", np.array(3)))), loss="mse")
    trainer.step(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
    assert not any(node.op_type == "If" for node in trainer.model().graph.node)
    assert trainer.model().graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_numbers_of_formulas_are_not_trained():
    """A scalar that TensorFlow's variable gave is a parameter; the epsilon of a written-out normalisation is none."""
    m = Model()
    y = m.op("Mul", m.input("x", ["N", 3]), m.weight("net/scale/ReadVariableOp:0", ()))
    m.output(m.op("Add", y, m.weight("net/layer_normalization/add/y:0", ())), ["N", 3])
    assert describe(px.training_graph(m.proto(), loss="mse")).parameters == ("net/scale/ReadVariableOp:0",)
