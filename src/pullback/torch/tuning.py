"""Timing a layer on our kernels and on PyTorch's, with its gradients, when it first meets a shape; the faster is kept for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pullback.torch.arrays import layout_of
from pullback.torch.autograd import is_plain

CHOICES = "pullback_choices"  # attribute of a layer to be tuned: what an input is like -> whether ours is faster
ROUNDS, LEAST_SECONDS = 3, 0.01
MARGIN = 0.97  # ours must take at most this share of PyTorch's time: within the noise PyTorch keeps its own


def is_faster(module: Any, input: torch.Tensor) -> bool | None:
    """Whether our kernels are the faster ones for this input, measured the first time; None where nothing can be measured."""
    trained = torch.is_grad_enabled() and (input.requires_grad or any(p.requires_grad for p in module.parameters()))
    key = (tuple(input.shape), layout_of(input), input.dtype, trained, input.requires_grad)
    choices: dict[Any, bool] = module.__dict__[CHOICES]
    known = choices.get(key)
    if known is None and is_plain((input,)):
        choices[key] = True  # what the layer asks while it is timed
        try:
            choices[key] = known = _measure(module, input, trained)
        finally:
            if known is None:
                del choices[key]
    return known


def _measure(module: nn.Module, input: torch.Tensor, trained: bool) -> bool:
    """Time a layer both ways on such an input. Hooks are not run: `forward` is called as it is."""
    ours = type(module)
    theirs = next(kind for kind in ours.__mro__ if kind.__module__.startswith("torch.nn"))
    given = input.detach().requires_grad_(input.requires_grad)
    inputs = [t for t in (given, *module.parameters()) if t.requires_grad]
    times = {ours: float("inf"), theirs: float("inf")}

    def step() -> None:
        found: Any = module.forward(given)
        y = found[0] if isinstance(found, tuple) else found
        if trained:
            torch.autograd.grad(y, inputs, torch.ones_like(y))

    try:
        for _ in range(ROUNDS):
            for kind in times:
                module.__class__ = kind
                times[kind] = min(times[kind], _seconds(step))
    finally:
        module.__class__ = ours
    return times[ours] <= MARGIN * times[theirs]


def _seconds(step: Callable[[], None]) -> float:
    """The least time of a call, over calls that last long enough together to be timed."""
    best, spent = float("inf"), 0.0
    while spent < LEAST_SECONDS:
        start = time.perf_counter()
        step()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
    return best
