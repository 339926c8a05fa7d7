"""Training graphs of what PyTorch exports, by both of its exporters: every parameter's gradient is that of autograd."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_models import MODELS, export, make

import pullback as pb
from pullback.onnx.executor.program import Program
from pullback.onnx.graph.description import describe
from pullback.onnx.graph.training_graph import training_graph

pytestmark = pytest.mark.torch

OPSETS = (11, 13, 17, 20)
# PyTorch multiplies with 1/6 in float32 in the gradient of hardsigmoid, whatever the dtype.
IN_FLOAT32 = {"pixel_shuffler": 1e-7}
TRAINING = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}


class Transformer(nn.Module):
    """A small vision transformer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, 10, width))
        layer = nn.TransformerEncoderLayer(width, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.first.expand(len(patches), -1, -1), patches], 1) + self.places
        return self.head(self.encoder(rows)[:, 0])


class Windows(nn.Module):
    """Attention in shifted windows, with a table of biases that indices read."""

    def __init__(self, width: int = 6, size: int = 3) -> None:
        super().__init__()
        self.size, self.patches, self.norm = size, nn.Conv2d(3, width, 2, 2), nn.LayerNorm(width)
        self.mix, self.temperature = nn.Linear(width, 3 * width), nn.Parameter(torch.tensor(0.7))
        self.table = nn.Parameter(torch.randn(25))
        self.register_buffer("places", torch.randint(0, 25, (size**4,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, s = self.patches(x).permute(0, 2, 3, 1), self.size
        b, h, w, c = x.shape
        rows = torch.roll(self.norm(x), (-1, -1), (1, 2)).view(b, h // s, s, w // s, s, c)
        q, k, v = self.mix(rows.permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)).view(-1, s * s, 3, c).unbind(2)
        weights = q @ k.transpose(1, 2) * self.temperature + self.table[self.places].view(s * s, s * s)
        y = (weights.softmax(-1) @ v).view(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return functional.normalize((x + torch.roll(y, (1, 1), (1, 2))).amax((1, 2)), dim=1)


def check(model: nn.Module, x: torch.Tensor, proto: Any, error: float) -> None:
    """Compares after one backward pass of the same mean squared error."""
    trained = copy.deepcopy(model).train()
    y = trained(x)
    target = torch.randn_like(y)
    functional.mse_loss(y, target).backward()
    graph = training_graph(proto, "mse")
    names = describe(graph)
    with pb.backend("reference"):  # the kernels have their own tests, and take their time to compile
        result = Program(graph).run({"x": x.numpy(), "target": target.numpy()})
    expected = {name: p.grad.numpy() for name, p in trained.named_parameters() if p.grad is not None}
    assert set(names.parameters) == set(expected)
    for name, gradient in expected.items():
        got = result[names.gradients[name]]
        assert got.dtype == gradient.dtype
        # The gradient of a bias before a normalisation is 0 but for rounding.
        np.testing.assert_allclose(got, gradient, rtol=0, atol=error * max(np.abs(gradient).max(), 1e-3), err_msg=name)


def prepared(name: str, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    model, x = make(name, dtype)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return model.train(), torch.randn(4, *x.shape[1:], dtype=dtype)


@pytest.mark.parametrize("name", MODELS)
def test_float64(name: str) -> None:
    model, x = prepared(name, torch.float64)
    opset = OPSETS[list(MODELS).index(name) % len(OPSETS)]
    proto = export(copy.deepcopy(model), x, opset=opset, dynamic=MODELS[name][2], **TRAINING)
    check(model, x, proto, IN_FLOAT32.get(name, 1e-9))


@pytest.mark.parametrize("name", ["lenet", "vgg11", "resnet18", "mobilenet_v2", "unet3d"])
def test_float32(name: str) -> None:
    model, x = prepared(name, torch.float32)
    check(model, x, export(copy.deepcopy(model), x, opset=17, **TRAINING), 1e-4)


@pytest.mark.parametrize(("make_model", "size"), [(Transformer, 12), (Windows, 12)])
@pytest.mark.parametrize(("opset", "dynamo"), [(17, False), (18, True)])
def test_attention(make_model: type[nn.Module], size: int, opset: int, dynamo: bool) -> None:
    torch.manual_seed(0)
    model, x = make_model().double().train(), torch.randn(2, 3, size, size).double()
    options = {"optimize": False} if dynamo else TRAINING
    check(model, x, export(copy.deepcopy(model), x, opset=opset, dynamo=dynamo, dynamic=(0,), **options), 1e-9)


def test_the_attention_of_onnx() -> None:
    """Which the newer exporter writes from opset 23 on; ONNX defines it with a scale in float32."""
    torch.manual_seed(0)
    model, x = Transformer().train(), torch.randn(2, 3, 12, 12)
    check(model, x, export(copy.deepcopy(model), x, opset=23, dynamo=True, optimize=False), 1e-4)


@pytest.mark.parametrize("name", ["densenet", "pixel_shuffler"])
def test_exported_programs(name: str) -> None:
    model, x = prepared(name, torch.float64)
    proto = export(copy.deepcopy(model), x, opset=18, dynamo=True, dynamic=MODELS[name][2], optimize=False)
    check(model, x, proto, IN_FLOAT32.get(name, 1e-9))


def test_parameters_that_happen_to_be_equal_are_not_one() -> None:
    """The exporter writes fresh normalisations so that they share an initializer; weights that are shared stay so."""
    torch.manual_seed(0)
    tied, other = nn.Linear(6, 6), nn.Linear(6, 6)
    other.weight = tied.weight
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), tied, nn.Tanh(), other).double()
    x = torch.randn(5, 6).double()
    options = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    proto = export(copy.deepcopy(model).eval(), x, opset=17, **options)
    assert any(node.op_type == "Identity" for node in proto.graph.node)
    check(model, x, proto, 1e-9)
