"""How long each layer takes inside a step of its model, by op: one way to look at PyTorch's layers, another to look at ours.

PyTorch's is a mode that sees the ops below autograd and times them; PyTorch makes a convolution's gradients in one call, which is
asked for them one by one. Ours is the layer from its call to its return, and in the backward pass from the first of its nodes to
the last: with all that our layers do in Python, so that what is said of ours is rather too long than too short.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pullback.torch.calls import OURS, Function
from pullback.torch.kernels import listening
from pullback.torch.layers import Accelerated
from pullback.torch.measuring import nodes_of
from pullback.torch.watching import Watch, is_known

FORWARD, INPUT, FILTER = "forward", "input gradient", "filter gradient"
OPS = (FORWARD, INPUT, FILTER)
_BACKWARD = torch.ops.aten.convolution_backward.default
_Key = tuple[str, str, int]  # name, kind, and which call of a function it is


@dataclass
class Region:
    """A layer, or a call of a function, in one step: the seconds of its ops, over all of its calls."""

    name: str
    kind: str
    shape: tuple[int, ...]
    ours: bool
    calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, op: str, seconds: float) -> None:
        self.seconds[op] = self.seconds.get(op, 0.0) + seconds


class _StepWatch(Watch):
    """The regions of a step: those that run now, and which autograd nodes each has made."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.regions: dict[_Key, Region] = {}
        self.running: list[Region] = []
        self.calls: dict[tuple[str, str], int] = {}
        self.starts: list[int] = []  # first node of each region that ended, in order
        self.made: list[tuple[int, Region]] = []  # where its nodes end, and the region

    def layer_begins(self, module: nn.Module, given: torch.Tensor) -> None:
        if is_known(module):
            self.begin(self.names[module], type(module).__name__, 0, given, isinstance(module, Accelerated))

    def layer_ends(self, module: nn.Module, result: Any) -> None:
        if is_known(module):
            self.end(result)

    def call(self, function: Function, module: nn.Module, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, kind = self.names[module], f"F.{function.name}"
        count = self.calls[name, kind] = self.calls.get((name, kind), 0) + 1
        self.begin(name, kind, count, args[0] if args else kwargs["input"], func in OURS)
        result = func(*args, **kwargs)
        self.end(result)
        return result

    def begin(self, name: str, kind: str, count: int, given: torch.Tensor, ours: bool) -> None:
        region = self.regions.setdefault((name, kind, count), Region(name, kind, tuple(given.shape), ours))
        region.calls += 1
        self.running.append(region)
        self.first_node = torch.autograd._get_sequence_nr()
        self.began = time.perf_counter()

    def end(self, result: Any) -> None:
        """Regions do not nest: known layers hold no others."""
        self.starts.append(self.first_node)
        self.made.append((torch.autograd._get_sequence_nr(), self.running.pop()))

    def current(self) -> Region | None:
        """The region that runs now, forwards or backwards."""
        if self.running:
            return self.running[-1]
        node = torch._C._current_autograd_node()
        place = 0 if node is None else bisect_right(self.starts, node._sequence_nr())
        if place == 0 or node._sequence_nr() >= self.made[place - 1][0]:
            return None
        return self.made[place - 1][1]


class _TorchTimes(TorchDispatchMode):
    """Times PyTorch's ops for the region that they belong to."""

    def __init__(self, watch: _StepWatch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        region = self.watch.current()
        if region is None:
            return func(*args, **(kwargs or {}))
        if func is _BACKWARD:
            return self._one_by_one(region, args)
        op = FORWARD if self.watch.running else INPUT
        return _timed(region, op, func, *args, **(kwargs or {}))

    def _one_by_one(self, region: Region, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A convolution's gradients: the input's, and the filter's with the bias's."""
        *given, (wants_input, wants_filter, wants_bias) = args
        dx = dw = db = None
        if wants_input:
            dx = _timed(region, INPUT, _BACKWARD, *given, [True, False, False])[0]
        if wants_filter or wants_bias:
            _, dw, db = _timed(region, FILTER, _BACKWARD, *given, [False, wants_filter, wants_bias])
        return dx, dw, db


def _timed(region: Region, op: str, func: Any, *args: Any, **kwargs: Any) -> Any:
    start = time.perf_counter()
    result = func(*args, **kwargs)
    region.add(op, time.perf_counter() - start)
    return result


class _OurWatch(_StepWatch):
    """Times regions from outside, and hears from the kernels which part of the backward pass made which gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.spans: list[tuple[Region, list[float]]] = []  # when nodes of a call of a region began and ended

    def end(self, result: Any) -> None:
        seconds, region, first = time.perf_counter() - self.began, self.running[-1], self.first_node
        super().end(result)
        region.add(FORWARD, seconds)
        moments: list[float] = []
        self.spans.append((region, moments))
        for node in nodes_of(result, first):
            node.register_prehook(lambda _: moments.append(time.perf_counter()))
            node.register_hook(lambda *_: moments.append(time.perf_counter()))

    def heard(self, op: str, seconds: float) -> None:
        region = None if self.running else self.current()
        if region is not None:
            region.add(FILTER if op == "conv_grad_filter" else INPUT, seconds)

    def finish(self) -> None:
        """What the nodes took beyond the ops is the bias's gradient and the calls themselves."""
        taken: dict[int, float] = {}
        for region, moments in self.spans:
            if moments:
                taken[id(region)] = taken.get(id(region), 0.0) + max(moments) - min(moments)
        for region in self.regions.values():
            if id(region) in taken:
                heard = sum(region.seconds.get(op, 0.0) for op in (INPUT, FILTER))
                region.add(FILTER if FILTER in region.seconds else INPUT, max(taken[id(region)] - heard, 0.0))


@contextmanager
def watched_step(model: nn.Module, ours: bool, calls: bool) -> Iterator[dict[_Key, Region]]:
    """The regions of the step that is taken in the block. calls: whether the model calls functions, which a mode looks out for."""
    watch = _OurWatch(model) if ours else _StepWatch(model)
    with ExitStack() as stack:
        stack.enter_context(watch.hooks())
        if calls:
            stack.enter_context(watch)
        if isinstance(watch, _OurWatch):
            stack.callback(setattr, listening, "heard", None)
            listening.heard = watch.heard
        else:
            stack.enter_context(_TorchTimes(watch))
        yield watch.regions
    if isinstance(watch, _OurWatch):
        watch.finish()
