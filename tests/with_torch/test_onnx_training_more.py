"""Training of many architectures as PyTorch exports them: the gradient of every parameter against PyTorch's, in float64."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from onnx_more_models import MORE_MODELS, VisionTransformer, conv_norm
from torch import nn
from torch_models import MODELS, export, make
from training_pairs import autograd, check_gradients, check_model, for_training, unlike_new

import pullback.onnx as px

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

OPSETS = (13, 16, 18, 20)  # of the exporter of TorchScript, each for some of the models
ROUNDED_BY_TORCH = ("pixel_shuffler",)  # its gradient of hardsigmoid has a sixth in float32, in float64 too
IN_THE_OTHER_FILE = ("lenet", "vgg11", "resnet18", "mobilenet_v2", "unet3d")


def a_target(scores: torch.Tensor, loss: str) -> torch.Tensor:
    if loss == "cross_entropy":
        return torch.randint(scores.shape[1], (len(scores), *scores.shape[2:]))
    values = torch.randn_like(scores).detach()
    return {"soft_cross_entropy": values.softmax(1), "bce_with_logits": (values > 0).to(scores.dtype)}.get(loss, 2 * values)


def check(model: nn.Module, x: torch.Tensor, loss: str, **options: object) -> None:
    unlike_new(model)
    check_model(model, x, a_target(model.eval()(x), loss), loss, **options)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in IN_THE_OTHER_FILE])
def test_gradients(name: str) -> None:
    model, x = make(name, torch.float32 if name in ROUNDED_BY_TORCH else torch.float64)
    x = torch.randn(3, *x.shape[1:], dtype=x.dtype)
    loss = "cross_entropy" if model(x).ndim == 2 else "mse"
    check(model, x, loss, opset=OPSETS[len(name) % len(OPSETS)], dynamic=MODELS[name][2])


@pytest.mark.parametrize("name", MORE_MODELS)
def test_gradients_of_more_models(name: str) -> None:
    torch.manual_seed(len(name))
    maker, shape, dynamic, loss = MORE_MODELS[name]
    check(maker().double(), torch.randn(shape, dtype=torch.float64), loss, opset=17, dynamic=dynamic)


def test_parts_taken_of_a_sequence() -> None:
    """The exporter of programs writes chunk and split as sequences."""
    torch.manual_seed(0)
    model = VisionTransformer(einsum=True).double()
    check(model, torch.randn(3, 3, 12, 12, dtype=torch.float64), "cross_entropy", opset=18, dynamic=(0,), dynamo=True)


class Fresh(nn.Module):
    """Untrained normalisations of equal width, whose parameters are all ones and zeros, and buffers that scale the input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.GroupNorm(2, 6))
        self.norms = nn.ModuleList([nn.LayerNorm(6), nn.LayerNorm(6), nn.BatchNorm1d(6)])
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.first(x - self.centre).mean((2, 3)))
        return self.head(self.norms[2](self.norms[1](torch.tanh(y) * y).relu()))


def test_equal_parameters_that_the_exporter_merged() -> None:
    """It writes one tensor for the scales of both LayerNorms and the running variance; buffers are not parameters."""
    torch.manual_seed(0)
    model, x, target = Fresh().double(), torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.randint(4, (5,))
    proto = export(model.eval(), x[:-1], opset=21, dynamic=(0,), dynamo=True)
    assert len(proto.graph.initializer) < len(model.state_dict())
    trainer = px.Trainer(proto, optimizer=px.SGD(lr=0.1))
    assert set(trainer.parameters) == {name for name, _ in model.named_parameters()}
    _, gradients = px.gradients(proto, x.numpy(), target.numpy())
    check_gradients(gradients, autograd(model, x, target)[1], 1e-9)
    trainer.step(x.numpy(), target.numpy())
    scales = [trainer.parameters[f"norms.{number}.weight"] for number in range(3)]
    assert not np.array_equal(scales[0], scales[1])
    assert not np.array_equal(scales[1], scales[2])


def test_a_trained_export_runs_in_onnx_runtime(tmp_path: object) -> None:
    """Shape arithmetic folded, merged parameters apart: the exported model is still the one that was trained."""
    ort = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model, x, target = Fresh(), torch.randn(5, 3, 8, 8), torch.randint(4, (5,))
    trainer = px.Trainer(export(model.eval(), x[:-1], opset=18, dynamic=(0,), dynamo=True), optimizer=px.SGD(lr=0.1))
    for _ in range(3):
        trainer.step(x.numpy(), target.numpy())
    path = f"{tmp_path}/trained.onnx"
    trainer.export(path)
    (ours,) = px.Session(path).run(None, {"x": x.numpy()})
    (theirs,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert trainer.evaluate((x.numpy(), target.numpy()))["loss"] == pytest.approx(
        nn.functional.cross_entropy(torch.from_numpy(theirs), target).item(), rel=1e-4
    )


def test_dropout_of_a_model_in_training() -> None:
    """A third of the entries are 0 and the others larger by the same share, new at every step and the same for the same seed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 600, bias=False), nn.Dropout(1 / 3))
    x = torch.ones(2, 4)
    proto = for_training(model, x, opset=17)
    expected = (x @ model[0].weight.T).detach().numpy()
    first, again, other = (
        px.gradients(proto, x.numpy(), 0 * expected, loss="l1", seed=seed)[1]["0.weight"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    size = np.abs(first).max(1) * expected.size
    assert set(np.round(size, 4)) == {0.0, 1.5, 3.0}  # a row of the weight serves two outputs; each counts 3/2 or nothing
    assert (size == 0).mean() == pytest.approx(1 / 9, abs=0.05)


def test_a_layer_without_a_gradient_says_so() -> None:
    model = nn.Sequential(nn.LSTM(3, 4, batch_first=True))
    proto = for_training(model, torch.randn(2, 5, 3), opset=17)
    with pytest.raises(px.OnnxError, match=r"LSTM.*freeze|LSTM.*frozen"):
        px.training_graph(proto, loss="mse")


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_warning_where_the_exporter_folds_normalisations(dynamo: bool) -> None:
    """And nothing else: the gradients are those of the convolutions that it left."""
    torch.manual_seed(0)
    model = unlike_new(nn.Sequential(conv_norm(3, 6), conv_norm(6, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten())).eval().double()
    x, target = torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.randint(6, (5,))
    proto = export(model, x, opset=18, dynamo=dynamo)
    with pytest.warns(UserWarning, match="folded batch normalisations into 2 convolutions"):
        loss, gradients = px.gradients(proto, x.numpy(), target.numpy())
    plain = nn.Sequential(*(nn.utils.fuse_conv_bn_eval(*model[i][:2]) for i in (0, 1))).requires_grad_(True)
    y = plain[1](plain[0](x).relu()).relu().mean((2, 3))
    expected = nn.functional.cross_entropy(y, target)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-9)
    theirs = [p.grad.numpy() for p in plain.parameters()]
    assert len(gradients) == len(theirs)
    for g in theirs:  # whose order is the exporter's
        assert min(np.linalg.norm(o - g) / np.linalg.norm(g) for o in gradients.values() if o.shape == g.shape) < 1e-9


def test_frozen_normalisations_keep_their_statistics() -> None:
    """Of an export in training mode as well: what is trained sees the layers as they are after training."""
    torch.manual_seed(0)
    model = unlike_new(nn.Sequential(conv_norm(3, 6), conv_norm(6, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten())).double()
    x, target = torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.randint(6, (5,))
    proto = for_training(model, x, opset=17)
    model.load_state_dict(
        {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in proto.graph.initializer}, strict=False
    )
    loss = nn.functional.cross_entropy(model.eval()(x), target)
    loss.backward()
    names = ("0.0.weight", "1.0.weight")
    ours, gradients = px.gradients(proto, x.numpy(), target.numpy(), trainable=names)
    assert ours == pytest.approx(loss.item(), rel=1e-9)
    check_gradients(gradients, {name: model.get_parameter(name).grad.numpy() for name in names}, 1e-9)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.cells = nn.Conv2d(3, 6, 3), nn.Linear(6, 4), nn.Conv2d(6, 5, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.stem(x))
        return self.first(y.mean((2, 3))), self.cells(y)


def test_the_loss_of_a_later_output_with_cells_that_do_not_count() -> None:
    torch.manual_seed(0)
    model, x = TwoHeads().double(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    target = torch.randint(5, (3, 6, 6))
    target[:, :2] = 255
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = io.BytesIO()
        torch.onnx.export(
            model, (x,), file, dynamo=False, opset_version=17, input_names=["x"], output_names=["classes", "cells"]
        )
    loss = nn.functional.cross_entropy(model(x)[1], target, ignore_index=255)
    loss.backward()
    ours, gradients = px.gradients(file.getvalue(), x.numpy(), target.numpy(), output="cells", ignore_index=255)
    assert ours == pytest.approx(loss.item(), rel=1e-9)
    check_gradients(gradients, {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}, 1e-9)
    target[0, 5, 5] = 6
    with pytest.raises(px.OnnxError, match="is class 6; the model has 5 classes"):
        px.gradients(file.getvalue(), x.numpy(), target.numpy(), output="cells", ignore_index=255)
