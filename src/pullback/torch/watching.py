"""Seeing what a call of a model reaches: its layers, and the functions that the forward of other modules calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pullback.torch.calls import FUNCTIONS, OURS, Function
from pullback.torch.layers import Accelerated
from pullback.torch.modules import SWAPS
from pullback.torch.selection import names_of
from pullback.torch.taking import plain_class


class Watch(TorchFunctionMode):
    """While it is on (`with watch, watch.hooks():`) its methods are told of layers and of calls.

    The mode of a model that takes calls is asked first: here they arrive as our functions, or as PyTorch's where it left them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.names = model, names_of(model)
        self.inside: list[nn.Module] = []

    def layer_begins(self, module: nn.Module, given: torch.Tensor) -> None:
        """A convolution or pooling, swapped or not, is called with this input."""

    def layer_ends(self, module: nn.Module, result: Any) -> None:
        """It has returned."""

    def call(self, function: Function, module: nn.Module, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch.nn.functional, or ours in its place, is called in the forward of a module that is no known layer."""
        return func(*args, **kwargs)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """The hooks nearest to the modules' forward: the last before it and the first after it."""
        with ExitStack() as hooks:
            for module in self.names:
                if isinstance(module, torch.jit.ScriptModule):  # runs without Python
                    continue
                hooks.enter_context(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(self._leave, prepend=True))
            yield

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.inside.append(module)
        if _is_layer(module):
            self.layer_begins(module, arguments[0] if arguments else named["input"])

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        if _is_layer(module):
            self.layer_ends(module, result)
        self.inside.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named, module = kwargs or {}, self.inside[-1] if self.inside else self.model
        function = FUNCTIONS.get(func) or OURS.get(func)
        if function is None or is_known(module):
            return func(*args, **named)
        return self.call(function, module, func, args, named)


def _is_layer(module: nn.Module) -> bool:
    """Whether it is of a class that has one of ours, or its subclass."""
    return isinstance(module, (Accelerated, *SWAPS))


def is_known(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch's layers or ours, whose calls are its own business."""
    return isinstance(module, Accelerated) or plain_class(type(module)) in SWAPS
