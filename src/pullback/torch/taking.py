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
from typing import Any, ClassVar

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


class Wrapped:
    """A module with a class made for it, a subclass of its own of the same name, which pickles and copies as one of its own class.

    `class_of` makes that class, whose bases are the wrapper (a subclass of this one) and the module's own.
    """

    class_of: ClassVar[Callable[[Any], type[nn.Module]]]

    def __init_subclass__(cls) -> None:
        """Not passed on: those who keep a list of their subclasses need not know of this one."""

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        function, given, *rest = reduced
        if function is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return (function, given, *rest)  # the module has a way of its own
        return (_new, (type(self).__bases__[0], plain_class(type(self)), *given[1:]), *rest)

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError("torch.jit.script knows PyTorch's own layers only: call pullback.torch.restore(model) first")


class TakesCalls(Wrapped):
    """A module whose forward takes calls, or does not, as its TAKES says."""


WRAPPERS.append(TakesCalls)


@cache
def taking_class(kind: Any) -> type[nn.Module]:
    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return with_calls(self.__dict__[TAKES], kind.forward, self, *args, **kwargs)

    return wrapping_class(TakesCalls, kind, forward)


TakesCalls.class_of = staticmethod(taking_class)


def wrapping_class(wrapper: type, kind: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    """A subclass of a module's class with this forward."""
    body = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return types.new_class(kind.__name__, (wrapper, kind), {}, lambda namespace: namespace.update(body))


def plain_class(kind: Any) -> Any:
    """The class that wrappers were put around; the same class if none was."""
    while kind.__bases__ and kind.__bases__[0] in WRAPPERS:
        kind = kind.__bases__[1]
    return kind


def _new(wrapper: type[Wrapped], kind: Any, *given: Any) -> nn.Module:
    made = wrapper.class_of(kind)
    new: nn.Module = made.__new__(made, *given)
    return new


def calls_functions(module: nn.Module) -> bool:
    """Whether a module's forward is the user's, so that it may call functions: PyTorch's own and traced ones are left alone."""
    kind = plain_class(type(module))
    return not kind.__module__.startswith(("torch.", "pullback.torch.")) and not isinstance(module, torch.jit.ScriptModule)
