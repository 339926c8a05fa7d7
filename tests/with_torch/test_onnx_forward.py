"""Models that PyTorch exports, run forward by px.Session: PyTorch's own outputs, at other batches and sizes than those exported."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_models import MODELS, export, lenet, make, resnet18

import pullback.onnx as px

pytestmark = pytest.mark.torch

OPSETS = (11, 13, 17, 20)  # of the exporter of TorchScript, each for some of the models


def check(model: torch.nn.Module, x: torch.Tensor, name: str, opset: int, dynamo: bool, error: float) -> None:
    dynamic = MODELS[name][2]
    session = px.Session(export(model, x, opset=opset, dynamo=dynamo, dynamic=dynamic))
    larger = torch.randn([n + (axis in dynamic) * (4 if axis else 1) for axis, n in enumerate(x.shape)], dtype=x.dtype)
    for images in (x, larger, larger):  # the third by the plan that the second has made
        with torch.no_grad():
            expected = model(images).numpy()
        (y,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        assert y.dtype == expected.dtype
        np.testing.assert_allclose(y, expected, rtol=0, atol=error * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_exports_of_torchscript(name: str) -> None:
    check(*make(name), name, OPSETS[list(MODELS).index(name) % len(OPSETS)], False, 1e-5)


@pytest.mark.parametrize(("name", "opset"), [("unet_bilinear", 18), ("pixel_shuffler", 23)])
def test_exports_of_exported_programs(name: str, opset: int) -> None:
    check(*make(name), name, opset, True, 1e-5)


def test_float64() -> None:
    check(*make("lenet", torch.float64), "lenet", 17, False, 1e-12)


@pytest.mark.parametrize("opset", [13, 17])  # before 14, BatchNormalization trains where more than one output is asked for
def test_batch_normalization_in_training(opset: int) -> None:
    torch.manual_seed(0)
    model, x = resnet18(), torch.randn(4, 3, 32, 32)
    options = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    session = px.Session(export(model.train(), x, opset=opset, **options))
    expected = model(x).detach().numpy()
    y = session.run([session.get_outputs()[0].name], {"x": x.numpy()})[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_dropout_of_a_training_graph_is_seeded_and_new_at_each_run() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(lenet(), torch.nn.Dropout(0.5)), torch.randn(40, 1, 28, 28)
    proto = export(model.train(), x, opset=15, training=torch.onnx.TrainingMode.TRAINING)
    first, second = (px.Session(proto, seed=3) for _ in range(2))
    runs = [session.run(None, {"x": x.numpy()})[0] for session in (first, first, second)]
    np.testing.assert_array_equal(runs[0], runs[2])
    assert not np.array_equal(runs[0], runs[1])
    whole = model[0].eval()(x).detach().numpy()
    kept = runs[0] != 0
    np.testing.assert_allclose(runs[0][kept], 2 * whole[kept], rtol=1e-4, atol=1e-5)
    assert 0.4 < kept.mean() < 0.6
