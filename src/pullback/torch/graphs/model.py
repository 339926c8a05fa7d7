"""Which call of a model runs eagerly, which is recorded, and which replayed; and the class of a model that does so."""

from __future__ import annotations

import copyreg
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import nn

from pullback.torch.graphs.kinds import Given, NoGraphError, Parts, given, settings, why_not_now
from pullback.torch.graphs.recording import Recording, Token
from pullback.torch.replayed import to_be_replayed
from pullback.torch.taking import WRAPPERS, wrapping_class

GRAPHS = "pullback_graphs"  # attribute of a model whose calls are recorded
EAGER_STEPS = 3  # of a kind, before it is recorded: in them kernels are compiled and chosen
MOST_KINDS, MOST_RECORDINGS = 8, 24  # at once, and ever: a model that never stays the same is left eager in the end
SYNCHRONIZES = "called a synchronizing CUDA operation"


class Kind:
    """Calls that are alike."""

    def __init__(self) -> None:
        self.eager = 0  # whole steps so far
        self.recording: Recording | None = None
        self.why: str | None = None  # it is never recorded


class Graphs:
    """Of one model. Copies and pickles begin anew."""

    def __init__(self) -> None:
        self.owner: Any = None
        self.why: str | None = None  # the last call was eager
        self.lock = threading.Lock()
        self.recorded = 0
        self._forget()

    def __reduce__(self) -> Any:
        return Graphs, ()

    def __deepcopy__(self, memo: Any) -> Graphs:
        return Graphs()

    def _forget(self) -> None:
        self.kinds: dict[Any, Kind] = {}
        self.parts: Parts | None = None
        self.pool: Any = None
        self.live: Any = None  # weak reference to the Token of the last replay with a backward pass

    def call(self, model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.lock.acquire(blocking=False):  # another thread's, or a call inside of itself
            return forward(model, *args, **kwargs)
        try:
            return self._call(model, forward, args, kwargs)
        finally:
            self.lock.release()

    def _call(self, model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            call = given(args, kwargs)
            kind = self._kind(model, call)
            if kind.recording is None:
                if kind.eager < EAGER_STEPS:
                    self.why = f"its first {EAGER_STEPS} whole steps of a kind are eager"
                    return self._eager_step(kind, forward, model, args, kwargs, call)
                self._record(kind, model, forward, call)
            live = None if self.live is None else self.live()
            if live is not None and not live.done:
                raise NoGraphError("the backward pass of the call before is still to come")
            self.why = None
        except NoGraphError as error:
            self.why = str(error)
            return forward(model, *args, **kwargs)
        token = Token()
        assert kind.recording is not None
        results = kind.recording.replay(call, token)
        self.live = weakref.ref(token)
        return results

    def _kind(self, model: nn.Module, call: Given) -> Kind:
        if self.owner is None:
            self.owner = weakref.ref(model)
        if self.owner() is not model:
            raise NoGraphError("it shares its attributes with another model")
        why = why_not_now()
        if why is not None:
            raise NoGraphError(why)
        if self.parts is None or self.parts.changed():
            if self.recorded >= MOST_RECORDINGS:
                raise NoGraphError("its parameters or modules change again and again")
            self._forget()
            self.parts = Parts(model)
        self.parts.check()
        if self.parts.hooked():
            raise NoGraphError("a module within has hooks, which a replay would not call")
        key = (call.key(), settings(), self.parts.training())
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) >= MOST_KINDS:
                raise NoGraphError(f"there are {MOST_KINDS} kinds of inputs and modes already")
            kind = self.kinds[key] = Kind()
        if kind.why is not None:
            raise NoGraphError(kind.why)
        return kind

    def _eager_step(
        self,
        kind: Kind,
        forward: Callable[..., Any],
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Given,
    ) -> Any:
        """An ordinary call, with the choices of a recorded one. It counts when its backward pass has been."""
        tensors = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
        versions = [] if torch.is_inference_mode_enabled() else [tensor._version for tensor in tensors]
        with to_be_replayed():
            if kind.eager == EAGER_STEPS - 1:
                made, kind.why = _watched(forward, model, args, kwargs)
            else:
                made = forward(model, *args, **kwargs)
        if versions and versions != [tensor._version for tensor in tensors]:
            kind.why = "it changes an argument in place"
        trained = [y for y in given((made,), {}).leaves if isinstance(y, torch.Tensor) and y.requires_grad]
        if not trained:
            kind.eager += 1
            return made
        counted: list[bool] = []

        def count(gradient: torch.Tensor) -> None:
            if not counted:
                counted.append(True)
                kind.eager += 1

        for y in trained:
            if y.grad_fn is not None:
                y.register_hook(count)
        return made

    def _record(self, kind: Kind, model: nn.Module, forward: Callable[..., Any], call: Given) -> None:
        assert self.parts is not None
        random = torch.cuda.get_rng_state()
        self.recorded += 1
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the eager steps had them
                kind.recording = Recording(model, forward, call, self.parts, self.pool)
        except Exception as error:
            kind.why = str(error) if isinstance(error, NoGraphError) else f"it cannot be recorded: {_first_line(error)}"
            traceback.clear_frames(error.__traceback__)  # what holds the half of a graph, whose nodes belong to another stream
            _end_of_failed_recording()
        finally:
            torch.clear_autocast_cache()
            torch.cuda.set_rng_state(random)
        if kind.why is not None:
            raise NoGraphError(kind.why)

    def told(self) -> str:
        """For `explain`."""
        recorded = sum(kind.recording is not None for kind in self.kinds.values())
        whys = dict.fromkeys(kind.why for kind in self.kinds.values() if kind.why is not None)
        lines = [f"CUDA graphs: {recorded} kind{'s' * (recorded != 1)} of calls recorded"]
        lines += [f"CUDA graphs: left eager: {why}" for why in whys]
        if self.why is not None and self.why not in whys:
            lines.append(f"CUDA graphs: the last call was eager: {self.why}")
        return "\n".join(lines)


def _watched(forward: Callable[..., Any], model: nn.Module, args: Any, kwargs: Any) -> tuple[Any, str | None]:
    """The result, and why the call could not be recorded: PyTorch warns of what waits for the GPU."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            made = forward(model, *args, **kwargs)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    why = None
    for warning in heard:
        if SYNCHRONIZES in str(warning.message):
            why = f"it waits for the GPU ({warning.filename}, line {warning.lineno})"
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return made, why


def _end_of_failed_recording() -> None:
    """PyTorch leaves its random generator in the middle of the recording, after which nothing random would run."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"


class Graphed:
    """A model with a class made by `graphed_class`, which pickles and copies as one of its own class."""

    def __init_subclass__(cls) -> None:
        """Not passed on: those who keep a list of their subclasses need not know of this one."""

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        function, arguments, *rest = reduced
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]
            arguments = (ungraphed(type(self)), *arguments[1:])
        return (_graphed_again, (function, arguments), *rest)

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError("torch.jit.script knows PyTorch's own calls only: call pullback.torch.restore(model) first")


WRAPPERS.append(Graphed)


@cache
def graphed_class(kind: Any) -> type[nn.Module]:
    """A subclass of a model's class, of the same name, whose forward is recorded and replayed."""

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[GRAPHS].call(self, kind.forward, args, kwargs)

    return wrapping_class(Graphed, kind, forward)


def ungraphed(kind: Any) -> Any:
    """The class that `graphed_class` made this of; the same class if it made none."""
    return kind.__bases__[1] if kind.__bases__[0] is Graphed else kind


def _graphed_again(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    made = function(*arguments)
    kind: Any = type(made)
    made.__class__ = graphed_class(kind)
    return made


def set_graphs(model: nn.Module, on: bool) -> None:
    """Have a model's calls recorded from now on, or no longer."""
    model.__dict__.pop(GRAPHS, None)
    kind: Any = ungraphed(type(model))
    if on:
        kind = graphed_class(kind)
        model.__dict__[GRAPHS] = Graphs()
    if kind is not type(model):
        model.__class__ = kind
