"""`accelerate(model, functional=True)`: modules in whose forward the calls of torch.nn.functional are ours where that pays.

Such a module has a class made for it, a subclass of its own, whose forward installs a mode of PyTorch's that sees each call. A
module inside that is told not to take calls (an excepted one) turns it off for its own forward. All of it is the thread's own.
"""

from __future__ import annotations

import copyreg
import threading
import types
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pullback.torch.calls import FUNCTIONS
from pullback.torch.pending import plain_arguments

TAKES = "pullback_takes_calls"  # attribute of such a module: whether, or whether not


WRAPPERS: list[type] = []  # classes without a state of their own that stand between a module's class and its own


class _State(threading.local):
    taking = False
    installed = False


_state = _State()


class _Taking(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        function = FUNCTIONS.get(func) if _state.taking else None
        if function is not None:
            args, named = plain_arguments(args, named)
        if function is not None and function.why_left(*args, **named) is None:
            return function.ours(*args, **named)
        return func(*args, **named)


def with_calls(taking: bool, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """forward(...), in which calls are taken or are not."""
    if torch.compiler.is_compiling():  # torch.compile traces what PyTorch calls
        return forward(*args, **kwargs)
    before = _state.taking
    if before == taking:
        return forward(*args, **kwargs)
    _state.taking = taking
    try:
        if not taking or _state.installed:
            return forward(*args, **kwargs)
        _state.installed = True
        try:
            with _Taking():
                return forward(*args, **kwargs)
        finally:
            _state.installed = False
    finally:
        _state.taking = before


def is_taking() -> bool:
    """Whether calls of torch.nn.functional are taken now."""
    return _state.taking


def without_calls(forward: Callable[..., Any], *args: Any) -> Any:
    """forward(...), in which no calls are taken."""
    return forward(*args) if not _state.taking else with_calls(False, forward, *args)


class TakesCalls:
    """A module with a class made by `taking_class`, which pickles and copies as one of its own class."""

    def __init_subclass__(cls) -> None:
        """Not passed on: those who keep a list of their subclasses need not know of this one."""

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        function, given, *rest = reduced
        if function is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return (function, given, *rest)  # the module has a way of its own
        return (_new, (plain_class(type(self)), *given[1:]), *rest)

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError("torch.jit.script knows PyTorch's own calls only: call pullback.torch.restore(model) first")


WRAPPERS.append(TakesCalls)


@cache
def taking_class(kind: Any) -> type[nn.Module]:
    """A subclass of a module's class, of the same name, whose forward takes calls or does not, as the module's TAKES says."""

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return with_calls(self.__dict__[TAKES], kind.forward, self, *args, **kwargs)

    body = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return types.new_class(kind.__name__, (TakesCalls, kind), {}, lambda namespace: namespace.update(body))


def plain_class(kind: Any) -> Any:
    """The class that `taking_class` made this of, below what CUDA graphs made of that; the same class if neither made one."""
    while kind.__mro__[1] in WRAPPERS:
        kind = kind.__mro__[2]
    return kind


def _new(kind: Any, *given: Any) -> nn.Module:
    made: nn.Module = taking_class(kind).__new__(taking_class(kind), *given)
    return made


def calls_functions(module: nn.Module) -> bool:
    """Whether a module's forward is the user's, so that it may call functions: PyTorch's own and traced ones are left alone."""
    kind = plain_class(type(module))
    return not kind.__module__.startswith(("torch.", "pullback.torch.")) and not isinstance(module, torch.jit.ScriptModule)
