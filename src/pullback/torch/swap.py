"""accelerate(model), restore(model), explain(model, example): swapping the layers of a model in place, and saying why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from pullback.torch.modules import BACK, CHOICES, SWAPS, Accelerated
from pullback.torch.tuning import measured

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, example_input: Any = None, *, tune: bool = False) -> Model:
    """Turn a model's convolutions and poolings into ours, in place; the model is returned.

    Parameters, state_dict, hooks and the modules themselves stay the same. Only layers of exactly PyTorch's classes are taken, so
    quantized, lazy, parametrized ones and subclasses are left alone. With `tune`, both kinds of kernels are timed for every layer
    on inputs as `example_input` (a tensor, or a tuple of arguments) makes them, and the faster is kept for that shape.
    """
    if tune and example_input is None:
        raise ValueError("accelerate: tune=True needs an example_input, a batch as the model will see it")
    for module in model.modules():
        ours = SWAPS.get(type(module))
        if ours is not None:
            module.__class__ = ours
    if tune:
        for module, input in _inputs(model, example_input):
            measured(module, input)
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
    """What happens to one layer: on our kernels if `reason` is None."""

    name: str
    kind: str
    shape: tuple[int, ...]
    reason: str | None


@dataclass(frozen=True)
class Report:
    """All convolutions and poolings of a model, in the order of their calls; printable."""

    layers: tuple[Layer, ...]

    def __str__(self) -> str:
        lines = []
        for layer in self.layers:
            where = "pullback" if layer.reason is None else f"PyTorch   {layer.reason}"
            lines.append(f"{layer.name:<28} {layer.kind:<16} {layer.shape!s:<22} {where}")
        return "\n".join(lines)


def explain(model: nn.Module, example_input: Any) -> Report:
    """Which layers of a model run on our kernels for this input, and why others do not; nothing is changed."""
    names = {module: name for name, module in model.named_modules()}
    layers = []
    for module, input in _inputs(model, example_input, (*SWAPS, *BACK)):
        if isinstance(module, Accelerated):
            reason = module.left_to_torch(input)
        elif type(module) in SWAPS:
            reason = "the model is not accelerated"
        else:
            reason = f"{type(module).__name__} is a class of its own"
        layers.append(Layer(names[module], type(module).__name__, tuple(input.shape), reason))
    return Report(tuple(layers))


def _inputs(
    model: nn.Module, example_input: Any, kinds: tuple[type[nn.Module], ...] = (Accelerated,)  # type: ignore[assignment]
) -> list[tuple[nn.Module, torch.Tensor]]:
    """The layers of these kinds that a call of the model reaches, each with its input; the model's state stays as it was."""
    seen: list[tuple[nn.Module, torch.Tensor]] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        seen.append((module, arguments[0].detach().requires_grad_(arguments[0].requires_grad)))

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, kinds)]
    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    try:
        with _evaluating(model), torch.enable_grad():
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


