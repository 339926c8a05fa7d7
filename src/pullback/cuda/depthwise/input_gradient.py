"""The input gradient of depthwise convolution on a GPU: every cell gathers from the outputs that read it."""

from __future__ import annotations

import torch

from pullback.cuda.depthwise.gather import gathered
from pullback.problem import Problem


def conv_grad_input(problem: Problem, dy: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    return gathered(problem, dy, filter, gradient=True)
