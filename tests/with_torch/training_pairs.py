"""A PyTorch model and its export side by side: gradients, running statistics and training, for the tests of pullback.onnx."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch_models import export

import pullback.onnx as px
from pullback.rules import Array

LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "soft_cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
}
# Layers before a batch normalisation have gradients that are 0 but for rounding: those are measured against the largest of all.
SMALL = 1e-3


def unlike_new(model: nn.Module) -> nn.Module:
    """Normalisations as after some training, so that no gradient is 0 by symmetry, and no dropout."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.modules.batchnorm._BatchNorm | nn.GroupNorm | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)
    return model


def without_kinks(model: nn.Module) -> nn.Module:
    """The model with smooth activations, so that what rounding does to one step stays small in all that follow."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU | nn.ReLU6):
                setattr(module, name, nn.SiLU())
    return model


def for_training(model: nn.Module, x: torch.Tensor, **options: Any) -> onnx.ModelProto:
    """The export that keeps batch normalisations apart: of TorchScript in training mode, or of a program that is not optimised."""
    if options.get("dynamo"):
        return export(copy.deepcopy(model).eval(), x, optimize=False, **options)
    mode = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    return export(copy.deepcopy(model).train(), x, **mode, **options)


def autograd(
    model: nn.Module, x: torch.Tensor, target: torch.Tensor, loss: str = "cross_entropy"
) -> tuple[float, dict[str, Array], nn.Module]:
    """The loss in training mode, the gradients by the names of the parameters, and the model after the step forward."""
    model = copy.deepcopy(model).train()
    value = LOSSES[loss](model(x), target)
    value.backward()
    return value.item(), {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}, model


def check_gradients(ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float) -> None:
    """Every parameter of PyTorch's is there, and no other; each within the tolerance of its norm."""
    assert set(ours) == set(theirs)
    largest = max(np.linalg.norm(g) for g in theirs.values())
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape
        error = np.linalg.norm(ours[name] - expected) / max(np.linalg.norm(expected), SMALL * largest)
        assert error < tolerance, f"{name}: relative error {error:.1e}"


def check_model(
    model: nn.Module,
    x: torch.Tensor,
    target: torch.Tensor,
    loss: str = "cross_entropy",
    *,
    proto: onnx.ModelProto | None = None,
    **options: Any,
) -> None:
    """The gradients of the export are PyTorch's; the sample that is exported has one row less where the batch is dynamic."""
    sample = x[:-1] if 0 in options.get("dynamic", ()) else x
    proto = for_training(model, sample, **options) if proto is None else proto
    value, expected, _ = autograd(model, x, target, loss)
    ours, gradients = px.gradients(proto, x.numpy(), target.numpy(), loss=loss)
    tolerance = 1e-4 if x.dtype == torch.float32 else 1e-9
    assert abs(ours - value) < tolerance * max(1.0, abs(value))
    check_gradients(gradients, expected, tolerance)
