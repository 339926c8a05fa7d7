"""explain(model, ...): which convolutions and poolings of a model run on our kernels, and why others do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pullback.torch.calls import OURS, Function
from pullback.torch.choices import CHOICES, Key, can_measure, key_of, paused, steps_of
from pullback.torch.graphs.model import GRAPHS
from pullback.torch.layers import Accelerated
from pullback.torch.measuring import NONE
from pullback.torch.mixed import MIXED_OPS
from pullback.torch.modules import SWAPS
from pullback.torch.swap import never_on_gpu
from pullback.torch.taking import TakesCalls, calls_functions, plain_class
from pullback.torch.watching import Watch

NOT_ACCELERATED = "the model is not accelerated"
NOT_ON_GPU = "on a GPU we have no kernel for it"
LEFT_OUT = "it was not accelerated with the others"
A_CALL = "a call in forward, not a layer: accelerate(model, functional=True) takes it"
COMPILED_CALL = "a call in forward: torch.compile traces PyTorch's own"


@dataclass(frozen=True)
class Layer:
    """What happens to one layer: on our kernels if `reason` is None, or some of its ops, where these were timed one by one.

    `known` says how that is known: the times that were measured, or that they are yet to be.
    A call of torch.nn.functional has a `kind` that begins with "F." and the name of the module in whose forward it is.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    reason: str | None
    ops: tuple[str, ...] = ()
    known: str = ""


@dataclass(frozen=True)
class Report:
    """All convolutions and poolings of a model, in the order of their calls; printable.

    `steps`: the seconds of whole steps that were measured, of each kind (pairs, plain PyTorch's and ours). `graphs`: what is
    recorded of a model that was accelerated with graphs=True, and why not more.
    """

    layers: tuple[Layer, ...]
    steps: tuple[tuple[float, float], ...] = ()
    graphs: str = ""

    def __str__(self) -> str:
        lines = []
        for layer in self.layers:
            where = f"pullback  {', '.join(layer.ops)}".rstrip() if layer.reason is None else f"PyTorch   {layer.reason}"
            where += f" ({layer.known})" if layer.known else ""
            lines.append(f"{layer.name or '(the model)':<28} {layer.kind:<21} {layer.shape!s:<22} {where}")
        for theirs, ours in self.steps:
            lines.append(f"whole step: measured ms, PyTorch's and ours: {theirs * 1e3:.3g} and {ours * 1e3:.3g}")
        return "\n".join([*lines, self.graphs] if self.graphs else lines)


def explain(model: nn.Module, *inputs: Any, **named: Any) -> Report:
    """Which layers of a model run on our kernels for these inputs, and why others do not; nothing is changed.

    The model is called once, model(*inputs, **named), in eval mode and eagerly, whatever of it is compiled. A single tuple holds
    all inputs.
    """
    watch = Explaining(model)
    graphs = model.__dict__.get(GRAPHS)
    told = "" if graphs is None else graphs.told()
    with watch.hooks(), _evaluating(model), torch.enable_grad(), torch.compiler.set_stance("force_eager"), paused(), watch:
        model(*(inputs[0] if len(inputs) == 1 and isinstance(inputs[0], tuple) else inputs), **named)
    return replace(watch.report(), graphs=told)


@dataclass(frozen=True)
class _Seen:
    """A layer with its input, or a call of a function with the reason why it is PyTorch's."""

    module: nn.Module
    input: torch.Tensor
    function: str = ""
    reason: str | None = None
    key: Key | None = None


class Explaining(Watch):
    """Notes layers and calls; `report` says where each runs, and why."""

    def __init__(self, model: nn.Module, eager: bool = False) -> None:
        """eager: whether the answer should be that of eager calls, whatever of the model is compiled."""
        super().__init__(model)
        self.seen: list[_Seen] = []
        parts = () if eager else model.modules()
        compiled = [module for module in parts if module._compiled_call_impl or hasattr(module, "_orig_mod")]
        self.compiled = {part for module in compiled for part in module.modules()}

    def layer_begins(self, module: nn.Module, given: torch.Tensor) -> None:
        key = key_of(module, given) if isinstance(module, Accelerated) and can_measure(given) else None
        self.seen.append(_Seen(module, given.detach().requires_grad_(given.requires_grad), key=key))

    def call(self, function: Function, module: nn.Module, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.seen and self.seen[-1].module is module and not self.seen[-1].function:
            self.seen.pop()  # a layer of another class, of which the call says more
        reason = None if func in OURS else function.why_left(*args, **kwargs) or self._why_not_taken(module)
        reason = COMPILED_CALL if module in self.compiled else reason
        self.seen.append(_Seen(module, args[0] if args else kwargs["input"], f"F.{function.name}", reason))
        return func(*args, **kwargs)

    def _why_not_taken(self, module: nn.Module) -> str:
        takers = [outer for outer in self.inside if isinstance(outer, TakesCalls)]
        if takers:
            return LEFT_OUT
        return A_CALL if any(map(calls_functions, self.inside)) else f"{type(module).__name__} is a class of its own"

    def report(self) -> Report:
        return Report(tuple(map(self._told, self.seen)), steps_of(self.names))

    def _told(self, seen: _Seen) -> Layer:
        module, shape = seen.module, tuple(seen.input.shape)
        if seen.function:
            return Layer(self.names[module], seen.function, shape, seen.reason)
        reason, ours, known = None, NONE, ""
        if isinstance(module, Accelerated):
            reason, choices = module.cannot(seen.input), module.__dict__.get(CHOICES)
            if reason is None and choices is not None and seen.key is not None:
                reason, ours, known = choices.told(module, seen.input, seen.key)
            elif reason is None:
                reason = module.loses(seen.input)
        elif plain_class(type(module)) in SWAPS and never_on_gpu(module):
            reason = NOT_ON_GPU
        elif plain_class(type(module)) in SWAPS:
            reason = LEFT_OUT if any(isinstance(other, Accelerated) for other in self.names) else NOT_ACCELERATED
        else:
            reason = f"{type(module).__name__} is a class of its own"
        ops = tuple(op for op in MIXED_OPS if op in ours)
        return Layer(self.names[module], type(module).__name__, shape, reason, ops, known)


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
