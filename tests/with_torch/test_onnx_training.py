"""Training of models that PyTorch exports: gradients, running statistics and optimizer steps against PyTorch's own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch_models import export, make
from training_pairs import autograd, check_gradients, check_model, for_training, unlike_new, without_kinks

import pullback.onnx as px

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

NAMES = ("lenet", "vgg11", "resnet18", "mobilenet_v2", "unet3d")
DTYPES = (torch.float32, torch.float64)
STEPS, RATE = 20, 4e-4


def pair(name: str, dtype: torch.dtype, rows: int = 4) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """A model, a batch and class numbers: one for each image, or for each cell of a volume."""
    model, x = make(name, dtype)
    model = unlike_new(model)
    x = torch.randn(rows, *x.shape[1:], dtype=dtype)
    with torch.no_grad():
        scores = model(x)
    return model, x, torch.randint(scores.shape[1], (rows, *scores.shape[2:]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "opset", "dynamic"),
    [("lenet", 11, (0,)), ("vgg11", 13, ()), ("resnet18", 17, (0, 2, 3)), ("mobilenet_v2", 14, (0,)), ("unet3d", 20, ())],
)
def test_gradients_of_exports_of_torchscript(name: str, opset: int, dynamic: tuple[int, ...], dtype: torch.dtype) -> None:
    check_model(*pair(name, dtype), opset=opset, dynamic=dynamic)


@pytest.mark.parametrize(
    ("name", "opset", "dynamic", "dtype"),
    [("lenet", 18, (0,), torch.float32), ("mobilenet_v2", 23, (0, 2, 3), torch.float64), ("unet3d", 20, (), torch.float64)],
)
def test_gradients_of_exported_programs(name: str, opset: int, dynamic: tuple[int, ...], dtype: torch.dtype) -> None:
    check_model(*pair(name, dtype), opset=opset, dynamic=dynamic, dynamo=True)


def test_gradients_of_an_export_in_evaluation_mode() -> None:
    """In which batch normalisations stay apart: they train all the same."""
    model, x, target = pair("resnet18", torch.float64)
    proto = export(model.eval(), x, opset=17, training=torch.onnx.TrainingMode.PRESERVE)
    assert sum(node.op_type == "BatchNormalization" for node in proto.graph.node) == 20
    check_model(model, x, target, proto=proto)


@pytest.mark.parametrize("name", ["resnet18", "unet3d"])
def test_running_statistics(name: str) -> None:
    """Means are PyTorch's. ONNX takes the variance of the batch, PyTorch the estimate, which is n / (n - 1) times as large."""
    model, x, target = pair(name, torch.float64)
    counts: dict[str, int] = {}
    for key, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            count = lambda _, args, key=key: counts.update({key: args[0].numel() // args[0].shape[1]})  # noqa: E731
            module.register_forward_pre_hook(count)
    trainer = px.Trainer(export(model.eval(), x, opset=17, training=torch.onnx.TrainingMode.PRESERVE), optimizer=px.SGD(lr=0.0))
    before = trainer.running
    trainer.step(x.numpy(), target.numpy())
    after = {key: value.numpy() for key, value in autograd(model, x, target)[2].state_dict().items()}
    assert len(trainer.running) == 2 * len(counts) > 0
    for key, n in counts.items():
        mean, variance = (f"{key}.running_{what}" for what in ("mean", "var"))
        np.testing.assert_allclose(trainer.running[mean], after[mean], rtol=1e-9, atol=1e-12)
        old = 0.9 * before[variance]
        np.testing.assert_allclose(trainer.running[variance], old + (after[variance] - old) * (n - 1) / n, rtol=1e-9)


def both_train(name: str, dtype: torch.dtype, ours: Any, theirs: Any, steps: int) -> tuple[list[float], list[float]]:
    """The losses of every step of ours and of PyTorch's, after which the parameters are the same."""
    model, x, target = pair(name, dtype)
    if dtype == torch.float32:  # of 100,000 activations, one falls on the other side of a kink within some steps
        model = without_kinks(model)
    trainer = px.Trainer(for_training(model, x, opset=17, dynamic=(0,)), optimizer=ours)
    model = copy.deepcopy(model).train()
    optimizer = theirs(model.parameters())
    losses, expected = [], []
    for _ in range(steps):
        losses.append(trainer.step(x.numpy(), target.numpy()))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    tolerance = 1e-3 if dtype == torch.float32 else 1e-8
    check_gradients(trainer.parameters.copies(), {k: p.detach().numpy() for k, p in model.named_parameters()}, tolerance)
    return losses, expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_twenty_steps_of_sgd_stay_together(name: str, dtype: torch.dtype) -> None:
    losses, expected = both_train(
        name, dtype, px.SGD(lr=RATE, momentum=0.9), lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9), STEPS
    )
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize(("ours", "theirs"), [(px.Adam(lr=RATE), torch.optim.Adam), (px.AdamW(lr=RATE), torch.optim.AdamW)])
def test_steps_of_adam(ours: Any, theirs: Any) -> None:
    losses, expected = both_train("lenet", torch.float64, ours, lambda p: theirs(p, lr=RATE), 6)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-9)
