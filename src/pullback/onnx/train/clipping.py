"""Clipping of gradients, by value and by the norm of all together; the norm also tells whether they are finite."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pullback.onnx.train.update_steps import sum_of_squares
from pullback.rules import Array

TINY = 1e-6  # PyTorch's, beside the norm


def clipped(
    gradients: Mapping[str, Array], clip_norm: float | None, clip_value: float | None
) -> tuple[Mapping[str, Array], float]:
    """The gradients as the optimizer gets them, and their norm before it is clipped. What is given is not written to."""
    if clip_value is not None:
        gradients = {name: np.clip(gradient, -clip_value, clip_value) for name, gradient in gradients.items()}
    norm = math.sqrt(sum(sum_of_squares(gradient) for gradient in gradients.values()))
    if clip_norm is not None and math.isfinite(norm) and clip_norm < norm + TINY:
        factor = clip_norm / (norm + TINY)
        gradients = {name: gradient * gradient.dtype.type(factor) for name, gradient in gradients.items()}
    return gradients, norm
