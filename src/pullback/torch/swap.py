"""accelerate(model), restore(model), explain(model, example): swapping the layers of a model in place, and saying why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from pullback import registry
from pullback.torch.layers import Accelerated
from pullback.torch.mixed import CONV_OPS
from pullback.torch.modules import BACK, SWAPS
from pullback.torch.tuning import CHOICES

Model = TypeVar("Model", bound=nn.Module)
_COMPILED = "_orig_mod."  # what torch.compile puts before the names of the modules within


def accelerate(model: Model, *, tune: bool = False) -> Model:
    """Turn a model's convolutions and poolings into ours, in place; the model is returned.

    Parameters, state_dict, hooks and the modules themselves stay the same. Only layers of exactly PyTorch's classes are taken, so
    quantized, lazy, parametrized ones and subclasses are left alone. Each call decides by rules where our kernels are expected to
    win. With `tune`, the first call of a layer with a new shape times both and keeps the faster, for each op of a convolution:
    forward, input gradient, filter gradient.
    """
    registry.backends()  # imports the kernels now rather than in the first step
    for module in model.modules():
        ours = SWAPS.get(type(module))
        if ours is not None:
            module.__class__ = ours
        if tune and isinstance(module, Accelerated):
            module.__dict__.setdefault(CHOICES, {})
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`, in place; the model is returned."""
    for module in model.modules():
        theirs = BACK.get(type(module))
        if theirs is not None:
            module.__class__ = theirs
            module.__dict__.pop(CHOICES, None)
    return model


@dataclass(frozen=True)
class Layer:
    """What happens to one layer: on our kernels if `reason` is None, or some of its ops, where these were timed one by one."""

    name: str
    kind: str
    shape: tuple[int, ...]
    reason: str | None
    ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All convolutions and poolings of a model, in the order of their calls; printable."""

    layers: tuple[Layer, ...]

    def __str__(self) -> str:
        lines = []
        for layer in self.layers:
            where = f"pullback  {', '.join(layer.ops)}".rstrip() if layer.reason is None else f"PyTorch   {layer.reason}"
            lines.append(f"{layer.name:<28} {layer.kind:<16} {layer.shape!s:<22} {where}")
        return "\n".join(lines)


def explain(model: nn.Module, example_input: Any) -> Report:
    """Which layers of a model run on our kernels for this input, and why others do not; nothing is changed.

    The model is called once, in eval mode and eagerly, whatever of it is compiled.
    """
    names = {module: name.replace(_COMPILED, "") for name, module in model.named_modules()}
    layers = []
    for module, given in _inputs(model, example_input):
        timed = None
        if isinstance(module, Accelerated):
            reason, timed = module.choose(given)
        elif type(module) in SWAPS:
            reason = "the model is not accelerated"
        else:
            reason = f"{type(module).__name__} is a class of its own"
        ops = tuple(op for op in CONV_OPS if timed and op in timed)
        layers.append(Layer(names[module], type(module).__name__, tuple(given.shape), reason, ops))
    return Report(tuple(layers))


def _layers(model: nn.Module) -> list[nn.Module]:
    """All convolutions and poolings, swapped or not."""
    return [module for module in model.modules() if isinstance(module, tuple(SWAPS))]


def _inputs(model: nn.Module, example_input: Any) -> list[tuple[nn.Module, torch.Tensor]]:
    """The convolutions and poolings that a call of the model reaches, each with its input; the model's state stays as it was."""
    seen: list[tuple[nn.Module, torch.Tensor]] = []

    def note(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = arguments[0] if arguments else named["input"]
        seen.append((module, given.detach().requires_grad_(given.requires_grad)))

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in _layers(model)]
    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    try:
        with _evaluating(model), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
            model(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, so that a call leaves no trace in running statistics."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
