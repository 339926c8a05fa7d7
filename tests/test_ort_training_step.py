"""Whole training steps recorded from ONNX Runtime 1.19.2, replayed with the dialect's kernels (one SGD step, lr 0.5)."""

import contextlib

import numpy as np
import pytest
from ort_model import LOSSES, Model, cross_entropy

from pullback import golden, ort

LEARNING_RATE = 0.5
CASES = golden.load("ort", "e2e_training_step")
REPLAYED = [case for case in CASES if "outputs" in case]

# Refused by the training system before any kernel of ours would run.
NOT_OUR_KERNELS = {
    "e2e_quirk_globalmaxpool": "no gradient builder is registered for GlobalMaxPool",
    "e2e_quirk_lppool": "no gradient builder is registered for LpPool",
    "e2e_quirk_batch_fed_differs_static": "the session checks the fed batch against the graph's static one",
}
REFUSED_BY_KERNELS = {
    "e2e_quirk_dynamic_batch_avgpool": (ValueError, "SIGFPE"),
    "e2e_quirk_dynamic_batch_avg_then_max": (ValueError, "The shape of dY and indices does not match in MaxPoolGrad."),
    "e2e_quirk_convtranspose": (NotImplementedError, r"Could not find an implementation for ConvTransposeGrad\(1\)"),
}


def test_every_recorded_step_is_accounted_for():
    names = {case["name"] for case in REPLAYED} | set(NOT_OUR_KERNELS) | set(REFUSED_BY_KERNELS)
    assert names == {case["name"] for case in CASES}
    assert all("error" in case for case in CASES if case["name"] in NOT_OUR_KERNELS)


def assert_close(got, expected):
    expected = np.asarray(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("mode", ["default", "quirks"])
@pytest.mark.parametrize("case", REPLAYED, ids=lambda case: case["name"])
def test_step(case, mode):
    given, recorded, true = (golden.arrays(case.get(key, {})) for key in ("inputs", "outputs", "true_outputs"))
    parameters = {name: array for name, array in given.items() if name.startswith("p")}
    target_name, loss_of = LOSSES[case["loss"]]
    layers, target = case["attrs"]["layers"], given[target_name]
    undefined = mode == "quirks" and "auto_pad" in layers[0]["attrs"]
    model = Model(layers, parameters, case["batch_in_graph"], case["opset"], skip_filter_gradient=undefined)
    with ort.quirks() if mode == "quirks" else contextlib.nullcontext():
        output, saved = model.forward(given["x"])
        loss, dy = loss_of(output, target)
        gradients = model.backward(dy, saved)
        if undefined:
            with pytest.raises(ValueError, match="undefined"):
                Model(layers, parameters, case["batch_in_graph"], case["opset"]).backward(dy, saved)
        model.parameters = {name: recorded[f"{name}_after"] for name in parameters}
        loss_after, _ = loss_of(model.forward(given["x"])[0], target)
    assert_close(loss, recorded["loss"])
    assert_close(loss_after, recorded["loss_after"])
    assert set(gradients) == set(parameters) - ({"p0_W"} if undefined else set())
    for name, gradient in gradients.items():
        mended = mode == "default" and f"{name}_grad" in true
        assert_close(gradient, (true if mended else recorded)[f"{name}_grad"])
        if not mended:
            assert_close(parameters[name] - LEARNING_RATE * gradient, recorded[f"{name}_after"])


@pytest.mark.parametrize("name", [name for name in REFUSED_BY_KERNELS if "batch" in name])
def test_symbolic_batch(name):
    """1.19.2 loses the batch in AveragePoolGrad and dies later; by default the step goes through."""
    case = next(case for case in CASES if case["name"] == name)
    rng = np.random.default_rng(1)
    layers = case["attrs"]["layers"]
    x = rng.standard_normal((2, 1, 8, 8)).astype(np.float32)
    parameters = {"p0_W": rng.standard_normal((2, 1, 3, 3)), "p0_b": rng.standard_normal(2)}
    parameters = {key: value.astype(np.float32) for key, value in parameters.items()}
    features = 2 * 4 * 4 if len(layers) == 4 else 2 * 2 * 2
    last = len(layers) - 1
    parameters |= {f"p{last}_W": np.ones((2, features), np.float32), f"p{last}_b": np.zeros(2, np.float32)}
    static, symbolic = (Model(layers, parameters, batch, case["opset"]) for batch in (2, case["batch_in_graph"]))
    output, saved = symbolic.forward(x)
    _, dy = cross_entropy(output, np.array([0, 1]))
    dy = dy + np.float32(0.25)
    expected, got = static.backward(dy, saved), symbolic.backward(dy, saved)
    assert np.abs(got["p0_W"]).max() > 0
    for key, gradient in got.items():
        np.testing.assert_array_equal(gradient, expected[key])
    error, message = REFUSED_BY_KERNELS[name]
    with ort.quirks(), pytest.raises(error, match=message):
        symbolic.backward(dy, saved)


def test_transposed_convolution_has_no_cpu_gradient():
    error, message = REFUSED_BY_KERNELS["e2e_quirk_convtranspose"]
    a = np.ones((1, 1, 2, 2), np.float32)
    for context in (ort.quirks(), contextlib.nullcontext()):
        with context, pytest.raises(error, match=message):
            ort.run_kernel("com.microsoft::ConvTransposeGrad", {"dY": a, "X": a, "W": a})
