"""Timing a layer on our kernels and on PyTorch's, with its gradients, and keeping the faster for the shape of its input."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pullback.torch.modules import BACK, CHOICES, input_key

ROUNDS, LEAST_SECONDS = 5, 0.02
MARGIN = 0.97  # ours must take at most this share of PyTorch's time: within the noise PyTorch keeps its own


def measured(module: nn.Module, input: torch.Tensor) -> None:
    """Time a swapped layer both ways on such an input, and write the choice into the layer."""
    choices: dict[Any, bool] = module.__dict__.setdefault(CHOICES, {})
    key = input_key(input)
    if key in choices:
        return
    ours, theirs = type(module), BACK[type(module)]
    times: dict[type[nn.Module], float] = {}
    choices[key] = True
    try:
        steps = {kind: _step(module, kind, input) for kind in (ours, theirs)}
        for step in steps.values():
            step()
        for _ in range(ROUNDS):
            for kind, step in steps.items():
                times[kind] = min(times.get(kind, float("inf")), _seconds(step))
    finally:
        module.__class__ = ours
        choices.pop(key)
    choices[key] = times[ours] <= MARGIN * times[theirs]


def _step(module: nn.Module, kind: type[nn.Module], input: torch.Tensor) -> Callable[[], None]:
    """One call of the layer as this kind, with the gradients that training would ask for."""
    parameters = [p for p in module.parameters() if p.requires_grad]

    def step() -> None:
        module.__class__ = kind
        found = module(input)
        y = found[0] if isinstance(found, tuple) else found
        if y.requires_grad:
            torch.autograd.grad(y, [t for t in (input, *parameters) if t.requires_grad], torch.ones_like(y))

    return step


def _seconds(step: Callable[[], None]) -> float:
    """The least time of a call, over calls that last long enough together to be timed."""
    best, spent = float("inf"), 0.0
    while spent < LEAST_SECONDS:
        start = time.perf_counter()
        step()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
    return best
