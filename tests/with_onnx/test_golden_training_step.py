"""Whole training steps recorded from ONNX Runtime 1.19.2 (one SGD step, lr 0.5), replayed with our own training graph.

Where upstream is wrong the true values count; what it refuses or dies of trains here, and is tried against finite differences.
"""

import numpy as np
import pytest
from networks import Model

from pullback import backend, golden
from pullback.onnx import OnnxError
from pullback.onnx.executor.program import Program
from pullback.onnx.executor.session import Session
from pullback.onnx.graph.description import describe
from pullback.onnx.graph.training_graph import training_graph

LEARNING_RATE = 0.5
LOSSES = {"CrossEntropyLoss": ("cross_entropy", "labels"), "MSELoss": ("mse", "target")}
CASES = golden.load("ort", "e2e_training_step")
RECORDED = [case for case in CASES if "outputs" in case]
UNRECORDED = [case for case in CASES if "outputs" not in case]


def build(case, image, parameters, dtype=np.float32):
    """The chain of layers of a case as an ONNX model, for images of this shape."""
    m = Model(opset=case["opset"], dtype=dtype)
    x = m.input("x", [case["batch_in_graph"], *image])
    for i, layer in enumerate(case["attrs"]["layers"]):
        names = [f"p{i}_{kind}" for kind in ("W", "b") if f"p{i}_{kind}" in parameters]
        for name in names:
            m.tensor(name, parameters[name].astype(dtype))
        x = m.op(layer["op"], x, *names, **layer["attrs"])
    return m.proto(x)


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_recorded_step(case):
    given, recorded, true = (golden.arrays(case.get(key, {})) for key in ("inputs", "outputs", "true_outputs"))
    loss, target = LOSSES[case["loss"]]
    parameters = {name: array for name, array in given.items() if name.startswith("p")}
    graph = training_graph(build(case, given["x"].shape[1:], parameters), loss)
    names, program = describe(graph), Program(graph)
    assert set(names.parameters) == set(parameters)
    feeds = {"x": given["x"], names.target: given[target]}
    with backend("reference"):
        result = program.run(feeds)
        assert_close(result[names.loss], recorded["loss"])
        after = {}
        for name, output in names.gradients.items():
            wrong = f"{name}_grad" in true
            assert_close(result[output], (true if wrong else recorded)[f"{name}_grad"])
            after[name] = parameters[name] - np.float32(LEARNING_RATE) * result[output]
            if not wrong:
                assert_close(after[name], recorded[f"{name}_after"])
        stepped = {name: recorded[f"{name}_after"] for name in parameters}
        assert_close(program.run(feeds | stepped)[names.loss], recorded["loss_after"])


def shapes_of(case):
    """Parameters for images (1, 8, 8); the outputs of the layers before the last are found by running them."""
    rng = np.random.default_rng(5)
    first, last = case["attrs"]["layers"][0], len(case["attrs"]["layers"]) - 1
    shape = (2, 1, *first["attrs"]["kernel_shape"]) if first["op"] == "Conv" else (1, 2, *first["attrs"]["kernel_shape"])
    parameters = {"p0_W": rng.standard_normal(shape), "p0_b": rng.standard_normal(2)}
    body = {**case, "attrs": {"layers": case["attrs"]["layers"][:-1]}, "batch_in_graph": 2}
    features = Session(build(body, (1, 8, 8), parameters, np.float64)).run(None, {"x": np.zeros((2, 1, 8, 8))})[0].shape[1]
    return parameters | {f"p{last}_W": rng.standard_normal((3, features)), f"p{last}_b": rng.standard_normal(3)}


@pytest.mark.parametrize("case", UNRECORDED, ids=lambda case: case["name"])
def test_what_upstream_cannot_train(case):
    rng = np.random.default_rng(6)
    batch = case["batch_in_graph"] if isinstance(case["batch_in_graph"], int) else 2
    with backend("reference"):
        parameters = shapes_of(case)
        graph = training_graph(build(case, (1, 8, 8), parameters, np.float64))
        names, program = describe(graph), Program(graph)
        feeds = {"x": rng.standard_normal((batch, 1, 8, 8)), names.target: rng.integers(0, 3, batch)}
        result = program.run(feeds)
        for name, array in parameters.items():
            way = rng.standard_normal(array.shape)
            ahead, behind = (program.run(feeds | {name: array + step * way})[names.loss] for step in (1e-6, -1e-6))
            np.testing.assert_allclose(
                (result[names.gradients[name]] * way).sum(), (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8
            )


def test_a_batch_that_the_model_excludes_is_refused():
    case = next(case for case in CASES if case["name"] == "e2e_quirk_batch_fed_differs_static")
    session = Session(training_graph(build(case, (1, 8, 8), shapes_of(case))))
    with pytest.raises(OnnxError, match=r"input 'x' has shape \(2, 1, 8, 8\)"):
        session.run(None, {"x": np.zeros((2, 1, 8, 8), np.float32), "target": np.zeros(2, np.int64)})


def test_every_recorded_step_is_tried():
    assert len(RECORDED) + len(UNRECORDED) == len(CASES) == 14
