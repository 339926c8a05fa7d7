"""Clipping of gradients, by value and by the norm of all together; the norm also tells whether they are finite."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pullback.rules import Array
from pullback.training_kernels import sum_of_squares

TINY = 1e-6  # PyTorch's, beside the norm


def clipped(
    gradients: Mapping[str, Array], clip_norm: float | None, clip_value: float | None
) -> tuple[Mapping[str, Array], float, float]:
    """The gradients, their norm, and what the optimizer multiplies them by. What is given is not written to."""
    if clip_value is not None:
        gradients = {name: np.clip(gradient, -clip_value, clip_value) for name, gradient in gradients.items()}
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(sum(sum_of_squares(gradient) for gradient in gradients.values()))
    scale = 1.0 if clip_norm is None else min(1.0, clip_norm / (norm + TINY))
    return gradients, norm, scale
