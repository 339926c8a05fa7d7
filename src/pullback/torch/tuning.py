"""Timing a layer on our kernels and on PyTorch's when it first meets a shape; the faster are kept for it.

A convolution's ops are timed one by one, and each goes to the faster; other layers are timed whole, with their gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from pullback.torch import kernels
from pullback.torch.arrays import layout_of
from pullback.torch.autograd import is_plain
from pullback.torch.choice import surely
from pullback.torch.mixed import CONV_OPS, THEIRS, torch_can

CHOICES = "pullback_choices"  # attribute of a layer to be tuned: what an input is like -> whether ours is faster
ROUNDS, LEAST_SECONDS = 3, 0.01
CALL_SECONDS = 3e-5  # what a call with derivatives costs more than PyTorch's own
MARGIN = 0.97  # ours must take at most this share of PyTorch's time: within the noise PyTorch keeps its own


def _known(choices: dict[Any, Any], key: tuple[Any, ...]) -> Any:
    """What was chosen before; while PyTorch traces, for the shapes that it has surely, so that others are not ruled out."""
    if not torch.compiler.is_compiling():
        return choices.get(key)
    for other, choice in choices.items():
        same = other[1:] == key[1:] and len(other[0]) == len(key[0])
        if same and all(surely(a == b) for a, b in zip(key[0], other[0], strict=True)):
            return choice
    return None


def _key(module: Any, input: torch.Tensor) -> tuple[Any, ...]:
    """What a choice depends on."""
    trained = torch.is_grad_enabled() and (input.requires_grad or any(p.requires_grad for p in module.parameters()))
    return tuple(input.shape), layout_of(input), input.dtype, trained, input.requires_grad


def faster_ops(module: Any, input: torch.Tensor, keywords: dict[str, Any]) -> frozenset[str] | None:
    """The ops of a convolution that our kernels are faster at; None where they cannot be measured.

    Where PyTorch traces or transforms, the ops of a layer cannot be told apart: all go where the forward one goes.
    """
    choices: dict[Any, Any] = module.__dict__[CHOICES]
    key = _key(module, input)
    known: frozenset[str] | None = _known(choices, key)
    if not is_plain((input, module.weight)):
        return known if known is None else frozenset(CONV_OPS if "conv" in known else ())
    if known is None and torch_can(keywords):
        known = choices[key] = _measure_ops(module.weight.detach(), input.detach(), keywords, _wanted(module, input))
    return known


def _wanted(module: Any, input: torch.Tensor) -> tuple[str, ...]:
    """The ops that a step with this input takes."""
    if not torch.is_grad_enabled():
        return CONV_OPS[:1]
    needs = (True, input.requires_grad, module.weight.requires_grad)
    return tuple(op for op, needed in zip(CONV_OPS, needs, strict=True) if needed)


def _measure_ops(
    weight: torch.Tensor, x: torch.Tensor, keywords: dict[str, Any], wanted: tuple[str, ...]
) -> frozenset[str]:  # fmt: skip
    with torch.no_grad():
        dy = torch.ones_like(THEIRS["conv"](x, weight, **keywords))
        given: dict[str, tuple[tuple[torch.Tensor, ...], dict[str, Any]]] = {
            "conv": ((x, weight), keywords),
            "conv_grad_input": ((dy, weight), {**keywords, "input_shape": tuple(x.shape)}),
            "conv_grad_filter": ((dy, x), {**keywords, "filter_shape": tuple(weight.shape)}),
        }
        saved, ours = 0.0, []
        for op in wanted:
            tensors, more = given[op]
            mine, theirs = partial(kernels.run, op, tensors, more), partial(THEIRS[op], *tensors, **more)
            times = {mine: float("inf"), theirs: float("inf")}
            for _ in range(ROUNDS):
                for way in times:
                    times[way] = min(times[way], _seconds(way))
            if times[mine] <= MARGIN * times[theirs]:
                ours.append(op)
                saved += times[theirs] - times[mine]
    return frozenset(ours if saved > CALL_SECONDS else ())


def is_faster(module: Any, input: torch.Tensor) -> bool | None:
    """Whether our kernels are the faster ones for this input, measured the first time; None where nothing can be measured."""
    key = _key(module, input)
    trained = key[3]
    choices: dict[Any, bool] = module.__dict__[CHOICES]
    known: bool | None = _known(choices, key)
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


def _seconds(step: Callable[[], Any]) -> float:
    """The least time of a call, over calls that last long enough together to be timed."""
    best, spent = float("inf"), 0.0
    while spent < LEAST_SECONDS:
        start = time.perf_counter()
        step()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
    return best
