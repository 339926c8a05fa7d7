"""The kernels of training steps against PyTorch's own: its optimizers over several steps, batch normalization with a ReLU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pullback import training_kernels

pytestmark = pytest.mark.torch
STEPS = 4
SGD: tuple[dict[str, Any], ...] = (
    {"weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True},
)


def gradients() -> list[np.ndarray]:
    return [np.random.default_rng(step).standard_normal((5, 7)) for step in range(STEPS)]


def theirs(kind: Any, **options: Any) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.ones(5, 7, dtype=torch.float64))
    optimizer = kind([parameter], lr=0.1, **options)
    for gradient in gradients():
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    found: np.ndarray = parameter.detach().numpy()
    return found


@pytest.mark.parametrize("options", SGD)
def test_sgd(options: dict[str, Any]) -> None:
    p, v = np.ones((5, 7)), np.full((5, 7), np.nan)
    for step, gradient in enumerate(gradients()):
        training_kernels.sgd_step(p, 4 * gradient, v, lr=0.1, **options, first=step == 0, g_scale=0.25)
    np.testing.assert_allclose(p, theirs(torch.optim.SGD, **options), rtol=1e-13)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam(kind: Any) -> None:
    p, m, v = np.ones((5, 7)), np.zeros((5, 7)), np.zeros((5, 7))
    same: dict[str, Any] = {"eps": 1e-3, "weight_decay": 0.1}
    ours = same | {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "decoupled": kind is torch.optim.AdamW}
    for step, gradient in enumerate(gradients(), 1):
        training_kernels.adam_step(p, gradient, m, v, **ours, step=step)
    np.testing.assert_allclose(p, theirs(kind, betas=(0.8, 0.95), **same), rtol=1e-12)


def test_batch_normalization_with_a_shortcut_and_a_relu() -> None:
    rng = np.random.default_rng(0)
    x, add, dy = (rng.standard_normal((4, 6, 5, 3)) for _ in range(3))
    scale, bias = rng.standard_normal((2, 6))
    tensors = [torch.from_numpy(array).requires_grad_() for array in (x, add, scale, bias)]
    normal = torch.nn.functional.batch_norm(tensors[0], None, None, tensors[2], tensors[3], training=True, eps=1e-3)
    expected = torch.relu(normal + tensors[1])
    expected.backward(torch.from_numpy(dy))
    y, mean, inv_std = training_kernels.batch_norm_train(x, scale, bias, 1e-3, relu=True, add=add)
    dx, dscale, dbias, dadd = training_kernels.batch_norm_grad(dy, x, scale, mean, inv_std, y, masked_out=True)
    np.testing.assert_allclose(y, expected.detach().numpy(), atol=1e-12)
    for ours, tensor in zip((dx, dadd, dscale, dbias), tensors, strict=True):
        np.testing.assert_allclose(ours, tensor.grad.numpy(), atol=1e-12)
