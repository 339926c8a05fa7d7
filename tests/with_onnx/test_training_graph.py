"""The training graph of a model: names, order and types of what goes in and out, what is trained, and every refusal."""

import numpy as np
import onnx
import pytest
from networks import Model, lenet, net3d, resnet18, vgg
from onnx import TensorProto, helper, numpy_helper

import pullback as pb
import pullback.onnx as px
from pullback.onnx.executor.program import Program
from pullback.onnx.graph.description import describe
from pullback.onnx.graph.prepare import inference_form
from pullback.onnx.graph.training_graph import training_graph


def names(values):
    return [value.name for value in values]


def ops(graph):
    return [node.op_type for node in graph.graph.node]


def mlp(**options):
    m = Model(**options)
    x = m.input("x", ["batch", 3])
    hidden = m.op("Relu", m.linear(x, "first", 3, 4))
    return m.proto(m.linear(hidden, "last", 4, 2))


def total_of(build, *, shape=(2, 3), **options):
    """The training graph of the sum of what `build` makes of a parameter x."""
    m = Model(**options)
    y = build(m, m.weight("x", shape))
    m.op("ReduceSum", y, keepdims=0, name="total")
    m.output("total", [])
    return training_graph(m.proto(), "total")


def test_inputs_outputs_and_their_order():
    model = resnet18()
    graph = training_graph(model)
    assert names(graph.graph.input)[:2] == ["x", "target"]
    parameters = [t.name for t in model.graph.initializer if "running" not in t.name]
    running = [t.name for t in model.graph.initializer if "running" in t.name]
    described = describe(graph)
    assert described.parameters == tuple(parameters)
    assert described.gradients == {name: f"{name}_grad" for name in parameters}
    assert sorted(described.running) == sorted(running)
    assert names(graph.graph.input)[2:] == [*parameters, *described.running]
    assert names(graph.graph.output) == [
        "loss", model.graph.output[0].name, *described.gradients.values(), *described.running.values()
    ]  # fmt: skip
    assert (described.loss, described.target, described.outputs) == ("loss", "target", (model.graph.output[0].name,))
    shapes = {t.name: list(t.dims) for t in model.graph.initializer}
    for value in graph.graph.output[2:]:
        dims = [size.dim_value for size in value.type.tensor_type.shape.dim]
        assert dims == shapes[value.name.removesuffix("_grad")] if value.name.endswith("_grad") else len(dims) == 1


@pytest.mark.parametrize("build", [lenet, vgg, resnet18, net3d])
def test_the_checker_of_onnx_takes_the_graph(build):
    graph = training_graph(build())
    pools = [node for node in graph.graph.node if node.op_type in ("MaxPoolGrad", "AveragePoolGrad")]
    for node in pools:
        assert node.domain == ""
        graph.graph.node.remove(node)
        graph.graph.input.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, []))
    assert pools
    onnx.checker.check_model(graph)


def test_backward_nodes_have_the_names_of_onnx_runtime():
    graph = training_graph(lenet())
    assert ops(graph)[10:] == [
        "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad", "Gemm", "Gemm", "ReduceSum", "ReluGrad", "Gemm", "Gemm",
        "ReduceSum", "Reshape", "AveragePoolGrad", "TanhGrad", "ConvGrad", "MaxPoolGrad", "ReluGrad", "ConvGrad",
    ]  # fmt: skip
    pool = next(node for node in graph.graph.node if node.op_type == "MaxPool")
    assert pool.output[1] == f"{pool.output[0]}_mask"
    first = graph.graph.node[-1]
    assert first.domain == "com.microsoft"
    assert list(first.output) == ["", "conv1.weight_grad", "conv1.bias_grad"]
    types = {value.name: value.type.tensor_type for value in graph.graph.value_info}
    for node in graph.graph.node:
        if node.op_type in ("MaxPoolGrad", "AveragePoolGrad"):  # ONNX Runtime reads the shape here
            source = next(each.s.decode() for each in node.attribute if each.name == "shape_of")
            assert node.output[0] == f"{source}_grad"
            assert types[node.output[0]].shape == types[source].shape


def test_gradients_of_several_readers_are_summed_under_one_name():
    graph = training_graph(resnet18())
    sums = [node for node in graph.graph.node if node.op_type == "Sum"]
    assert len(sums) == 8
    assert all(node.name == f"AccumulateGrad_{node.output[0].removesuffix('_grad')}" for node in sums)


def test_no_node_that_does_nothing():
    counts = {op: ops(training_graph(resnet18())).count(op) for op in ("Identity", "Mul", "Cast", "Shape")}
    assert counts == {"Identity": 0, "Mul": 0, "Cast": 0, "Shape": 0}


def test_names_that_are_taken():
    m = Model()
    x, target = m.input("x", [2, 3]), m.input("target", [2, 3])
    y = m.op("Add", m.op("Add", x, target), m.weight("loss", (2, 3)), name="loss_grad")
    graph = training_graph(m.proto(y), "mse")
    described = describe(graph)
    assert len({described.loss, described.target, *described.gradients.values(), "x", "target", "loss", "loss_grad"}) == 7
    result = Program(graph).run({name: np.ones((2, 3), np.float32) for name in ("x", "target", described.target)})
    assert result[described.gradients["loss"]].shape == (2, 3)


# what is trained


def test_patterns_choose_and_frozen_wins():
    model = vgg()
    graph = training_graph(model, trainable=["classifier.*", "features.0.weight"], frozen="*.bias")
    assert describe(graph).parameters == ("features.0.weight", "classifier.0.weight", "classifier.3.weight")
    graph = training_graph(model, frozen="features.*")
    assert "ConvGrad" not in ops(graph)
    assert "MaxPoolGrad" not in ops(graph)


@pytest.mark.parametrize("argument", ["trainable", "frozen"])
def test_a_pattern_without_a_match_names_the_nearest(argument):
    with pytest.raises(
        px.OnnxError, match=rf"{argument}: no parameter .*'clasifier.0.weight'; did you mean 'classifier.0.weight'"
    ):
        training_graph(vgg(), **{argument: ["clasifier.0.weight"]})


def test_running_statistics_are_no_parameters():
    with pytest.raises(px.OnnxError, match=r"no parameter is called or matches 'bn1\.running_mean'"):
        training_graph(resnet18(), trainable="bn1.running_mean")


def test_nothing_to_train():
    with pytest.raises(px.OnnxError, match=r"depends on no trainable parameter: .*all are frozen"):
        training_graph(lenet(), frozen="*")


def test_numbers_of_a_formula_are_not_trained():
    m = Model()
    number = np.array(2, np.float32)
    x = m.op("Mul", m.op("Mul", m.weight("w", (3,)), m.tensor("val_7", number)), m.tensor("temperature", number))
    y = m.op("Pow", x, m.op("Constant", value=numpy_helper.from_array(number)))
    model = m.proto(y)
    assert describe(training_graph(model, "mse")).parameters == ("w", "temperature")
    assert describe(training_graph(model, "mse", trainable="val_7")).parameters == ("val_7",)


def test_axes_that_are_computed_from_constants():
    m = Model(opset=18)
    axes = m.op("Reshape", m.op("Constant", value_int=1), m.op("Constant", value_ints=[-1]))
    y = m.op("ReduceMean", m.op("Add", m.input("x", [2, 3, 4]), m.weight("w", (3, 4))), axes)
    m.output(y, [2, 1, 4])
    assert describe(training_graph(m.proto(), "mse")).parameters == ("w",)


def test_constants_in_the_place_of_weights_are_trained():
    m = Model()
    w = m.op("Constant", value=numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2)), name="w")
    model = m.proto(m.op("MatMul", m.input("x", [4, 3]), w))
    assert describe(training_graph(model, "mse")).parameters == ("w",)
    assert [tensor.name for tensor in inference_form(model).graph.initializer] == ["w"]


def test_an_initializer_under_a_second_name_is_a_weight_of_its_own():
    """As PyTorch's exporter writes parameters that happen to be equal."""
    m = Model()
    first = m.weight("a", (2, 2))
    second = m.op("Identity", first, name="b")
    y = m.op("MatMul", m.op("MatMul", m.input("x", [3, 2]), first), second)
    assert describe(training_graph(m.proto(y), "mse")).parameters == ("a", "b")


# training mode


def test_batch_normalisation_trains_unless_it_is_frozen():
    model = vgg(norm=True)
    assert "BatchNormalization" not in ops(training_graph(model))
    graph = training_graph(model, frozen=["*.norm.weight", "*.norm.bias"])
    assert "BatchNormInternal" not in ops(graph)
    assert not describe(graph).running
    with pb.backend("reference"):
        result = Program(graph).run({"x": np.ones((2, 3, 16, 16), np.float32), "target": np.zeros(2, np.int64)})
    assert np.abs(result["features.0.weight_grad"]).max() > 0


def test_running_statistics_go_on():
    m = Model()
    y = m.norm(m.input("x", ["n", 2]), "norm", 2)
    graph = training_graph(m.proto(y), "mse")
    x = np.array([[1, 10], [3, 30]], np.float32)
    described = describe(graph)
    result = Program(graph).run({"x": x, "target": x})
    np.testing.assert_allclose(result[described.running["norm.running_mean"]], 0.1 * x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(result[described.running["norm.running_var"]], 0.9 + 0.1 * x.var(0), rtol=1e-6)


def test_two_nodes_that_share_statistics_go_on_from_each_other():
    m = Model()
    y = m.norm(m.input("x", ["n", 2]), "norm", 2)
    m.nodes.append(helper.make_node("BatchNormalization", [y, *m.nodes[0].input[1:]], ["again"]))
    graph = training_graph(m.proto("again"), "mse")
    first, second = (node for node in graph.graph.node if node.op_type == "BatchNormInternal")
    assert second.input[3] == first.output[1]
    assert describe(graph).running["norm.running_mean"] == second.output[1]


def test_exponents_are_not_trained_unless_asked_for():
    m = Model()
    power = m.tensor("power", np.array(2.0, np.float32))
    y = m.op("Pow", m.op("Mul", m.input("x", ["n", 2]), m.tensor("gain", np.array(3.0, np.float32))), power)
    proto = m.proto(y)
    assert describe(training_graph(proto, "mse")).parameters == ("gain",)
    assert describe(training_graph(proto, "mse", trainable="power")).parameters == ("power",)


# losses


LOSSES = {
    "mse": lambda p, t: np.mean((p - t) ** 2),
    "l1": lambda p, t: np.mean(np.abs(p - t)),
    "huber": lambda p, t: np.mean(np.where(np.abs(p - t) < 0.5, 0.5 * (p - t) ** 2, 0.5 * (np.abs(p - t) - 0.25))),
    "bce_with_logits": lambda p, t: np.mean(np.log1p(np.exp(p)) - p * t),
    "soft_cross_entropy": lambda p, t: -(t * (p - np.log(np.exp(p).sum(1, keepdims=True)))).sum() / (p.size / p.shape[1]),
}


@pytest.mark.parametrize("rows", [4, "batch"])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss(loss, rows):
    rng = np.random.default_rng(2)
    m = Model(dtype=np.float64)
    y = m.op("Add", m.input("x", [rows, 3, 2]), m.weight("w", (3, 2)))
    x, target = rng.standard_normal((4, 3, 2)), rng.random((4, 3, 2))
    w = numpy_helper.to_array(m.initializers[0])
    graph = training_graph(m.proto(y), loss, delta=0.5)
    result = Program(graph).run({"x": x, "target": target})
    np.testing.assert_allclose(result["loss"], LOSSES[loss](x + w, target), rtol=1e-12)
    way = rng.standard_normal(w.shape)
    ahead, behind = (LOSSES[loss](x + w + step * way, target) for step in (1e-6, -1e-6))
    np.testing.assert_allclose((result["w_grad"] * way).sum(), (ahead - behind) / 2e-6, rtol=1e-7)


def test_cross_entropy_of_dense_predictions_and_a_class_that_does_not_count():
    rng = np.random.default_rng(2)
    m = Model(dtype=np.float64)
    y = m.op("Add", m.input("x", ["n", 3, 4, 5]), m.weight("w", (3, 1, 1)))
    graph = training_graph(m.proto(y), ignore_index=2)
    x, target = rng.standard_normal((2, 3, 4, 5)), rng.integers(0, 3, (2, 4, 5))
    w = numpy_helper.to_array(m.initializers[0])

    def expected(w):
        log_shares = x + w - np.log(np.exp(x + w).sum(1, keepdims=True))
        return -np.take_along_axis(log_shares, target[:, None], 1)[target[:, None] != 2].mean()

    result = Program(graph).run({"x": x, "target": target})
    np.testing.assert_allclose(result["loss"], expected(w), rtol=1e-12)
    way = rng.standard_normal(w.shape)
    difference = (expected(w + 1e-6 * way) - expected(w - 1e-6 * way)) / 2e-6
    np.testing.assert_allclose((result["w_grad"] * way).sum(), difference, rtol=1e-7)


def test_a_scalar_output_is_the_loss():
    graph = total_of(lambda m, x: m.op("Exp", x))
    assert names(graph.graph.output) == ["total", "x_grad"]
    assert describe(graph).target is None


def test_the_output_that_the_loss_is_of():
    m = Model()
    x = m.op("Mul", m.input("x", [2, 3]), m.weight("w", (3,)), name="a")
    m.op("Exp", x, name="b")
    model = m.proto("a", "b")
    target = np.zeros((2, 3), np.float32)
    first, second = (
        Program(training_graph(model, "mse", output=output)).run({"x": target + 1, "target": target}) for output in ("a", "b")
    )
    np.testing.assert_allclose(first["loss"], np.mean(first["a"] ** 2), rtol=1e-6)
    np.testing.assert_allclose(second["loss"], np.mean(second["b"] ** 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "cross_entrpy"}, "no loss and no output of the model is called 'cross_entrpy'; did you mean 'cross_entropy'"),
        ({"loss": "t3"}, r"the output 't3' of the model is no loss: it has shape \('batch', 2\)"),
        ({"output": "t4"}, "no output of the model is called 't4'; did you mean 't3'"),
    ],
)
def test_losses_that_cannot_be(arguments, message):
    with pytest.raises(px.OnnxError, match=message):
        training_graph(mlp(), **arguments)


# refusals


def test_an_op_without_a_rule_names_node_op_and_what_to_do():
    def build(m, x):
        y = m.op("Det", x)
        m.nodes[-1].name = "the determinant"
        return y

    with pytest.raises(px.OnnxError, match=r"node 'the determinant' \(Det, .*no gradient of Det.*freeze.*or replace"):
        total_of(build, shape=(3, 3))


def test_an_op_without_a_rule_elsewhere_does_no_harm():
    m = Model()
    x = m.input("x", [3, 3])
    y = m.op("Mul", m.op("Det", x), m.weight("w", (1,)))
    assert describe(training_graph(m.proto(y), "mse")).parameters == ("w",)


def test_whole_numbers_stop_the_gradient():
    def build(m, x):
        counted = m.op("Cast", m.op("ArgMax", x, axis=1), to=TensorProto.FLOAT)
        kept = m.op("Cast", m.op("Greater", x, m.tensor("zero", np.array(0, np.float32))), to=TensorProto.FLOAT)
        return m.op("Mul", m.op("Mul", x, kept), m.op("Floor", counted))

    graph = total_of(build)
    x = numpy_helper.to_array(graph.graph.initializer[0])
    gradient = Program(graph).run({})["x_grad"]
    np.testing.assert_array_equal(gradient, (x > 0) * x.argmax(1)[:, None])


def test_a_training_graph_is_not_differentiated_again():
    with pytest.raises(px.OnnxError, match="is a training graph already"):
        training_graph(training_graph(mlp()))
    with pytest.raises(px.OnnxError, match="no training graph"):
        describe(mlp())


def test_a_model_is_not_changed():
    model = vgg(norm=True, opset=12)
    before = model.SerializeToString(deterministic=True)
    training_graph(model)
    assert model.SerializeToString(deterministic=True) == before


def test_functions_of_the_model_are_written_out():
    body = [helper.make_node("Mul", ["a", "a"], ["square"]), helper.make_node("Add", ["square", "b"], ["y"])]
    function = helper.make_function("local", "SquarePlus", ["a", "b"], ["y"], body, [helper.make_opsetid("", 17)])
    m = Model()
    x, w = m.input("x", [2, 3]), m.weight("w", (3,))
    node = helper.make_node("SquarePlus", [x, w], ["y"], domain="local")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([node], "g", m.inputs, [output], m.initializers)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    x, target = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    result = Program(training_graph(model, "mse")).run({"x": x, "target": target})
    np.testing.assert_allclose(result["w_grad"], 2 * result["y"].sum(0) / 6, rtol=1e-6)
