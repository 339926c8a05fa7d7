"""Optimizers, clipping and the plateau schedule of the ONNX trainer against PyTorch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pullback.onnx import SGD, Adam, AdamW
from pullback.onnx.train.clipping import clipped
from pullback.onnx.train.schedules import ReduceOnPlateau, StepDecay

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(), (torch.optim.SGD, {})),
        (
            SGD(0.1, momentum=0.9, dampening=0.3, weight_decay=0.05),
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05}),
        ),
        (SGD(0.1, momentum=0.8, nesterov=True), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "nesterov": True})),
        (Adam(), (torch.optim.Adam, {})),
        (
            Adam(0.02, (0.8, 0.95), 1e-4, 0.1),
            (torch.optim.Adam, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
        ),
        (AdamW(), (torch.optim.AdamW, {})),
        (AdamW(0.02, weight_decay=0.3), (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.3})),
    ],
    ids=lambda value: repr(value) if not isinstance(value, tuple) else "",
)
def test_twenty_steps(ours: Any, theirs: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    p = rng.standard_normal(37).astype(dtype)
    tensor = torch.nn.Parameter(torch.from_numpy(p.copy()))
    kind, options = theirs
    optimizer = kind([tensor], **options)
    state = [np.zeros_like(p) for _ in ours.state_names]
    for step in range(1, 21):
        g = rng.standard_normal(37).astype(dtype)
        tensor.grad = torch.from_numpy(g)
        optimizer.step()
        ours.update(p, g, state, ours.lr, step)
    tolerance = 1e-6 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(p, tensor.detach().numpy(), rtol=tolerance * 10, atol=tolerance)


def test_clipping_by_norm() -> None:
    gradients = {"a": np.arange(4.0), "b": -np.ones(3)}
    tensors = [torch.nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in gradients.values()]
    for tensor, g in zip(tensors, gradients.values(), strict=True):
        tensor.grad = torch.from_numpy(g.copy())
    norm = torch.nn.utils.clip_grad_norm_(tensors, 1.5)
    _, ours, scale = clipped(gradients, 1.5, None)
    assert ours == pytest.approx(float(norm), rel=1e-14)
    for tensor, g in zip(tensors, gradients.values(), strict=True):
        np.testing.assert_allclose(g * scale, tensor.grad.numpy(), rtol=1e-13)


def test_schedules() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    values = [1.0, 0.9, 0.95, 0.9, 0.89999, 0.5, 0.6, 0.6, 0.4, 0.4, 0.4]
    for count, value in enumerate(values, 1):
        plateau.step(value)
        ours = ReduceOnPlateau(gamma=0.5, patience=1).factor(0.0, values[:count])
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for epoch in range(8):
        assert StepDecay(3).factor(epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        steps.step()
