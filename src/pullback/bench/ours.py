"""pullback as a participant of its own benchmark, behind the same interface as the peers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import pullback as pb
from pullback import registry
from pullback.bench.cases import LAYOUTS, Task
from pullback.bench.data import (
    Data,
    filter_to_channels_last,
    filter_to_layout,
    spatial_indices,
    to_channels_last,
    to_layout,
)
from pullback.bench.peers.base import Prepared, UnsupportedError
from pullback.registry import Explanation
from pullback.rules import Array

NAME = "pullback"
Call = partial[Any]
# The functions that an op of the list calls, where it is not the one of its name.
FUNCTIONS = {
    "max_pool_with_indices": ("max_pool",),
    "max_pair": ("max_pool", "max_pool_grad_from_winners"),
    "avg_pair": ("avg_pool", "avg_pool_grad"),
}


def by_name(kernel: str | None, run: Callable[[], Any]) -> Callable[[], Any]:
    """A call on the kernel of that name and no other; as it is without a name."""
    if kernel is None:
        return run

    def run_by_name() -> Any:
        with registry.kernel(kernel):
            return run()

    return run_by_name


class Ours:
    """Our own ops, on the backend in force; with `kernel` on the kernel of that name alone."""

    name = NAME
    layouts = LAYOUTS
    slow = False

    def __init__(self, kernel: str | None = None) -> None:
        self.kernel = kernel

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return pb.__version__

    def close(self) -> None:
        pass

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        calls = calls_of(task, data, saved_by_forward(task, data))
        explained = [by_name(self.kernel, partial(explain_call, call))() for call in calls]
        if self.kernel is not None and any(explanation.chosen is None for explanation in explained):
            refusals = {
                v.kernel.name: v.cannot for explanation in explained for v in explanation.verdicts if v.cannot is not None
            }
            raise UnsupportedError("; ".join(f"the kernel {name} refuses: {why}" for name, why in refusals.items()))
        run = by_name(self.kernel, _together(task, calls))

        def result() -> tuple[Array, ...]:
            got = run()
            arrays = got if isinstance(got, tuple) else (got,)
            if task.op == "conv_grad_filter":
                return (filter_to_channels_last(task.layout, arrays[0]),)
            if task.op == "max_pool_with_indices":
                return to_channels_last(task.layout, arrays[0]), spatial_indices(task.layout, task.case, arrays[1])
            return tuple(to_channels_last(task.layout, array) for array in arrays)

        return Prepared(run, result, kernels=tuple(e.chosen for e in explained if e.chosen is not None))


def explain_call(call: Call) -> Explanation:
    """pb.explain of a call."""
    return pb.explain(call.func.__name__, *call.args, **call.keywords)


def _together(task: Task, calls: list[Call]) -> Callable[[], Any]:
    """One function for the calls of an op. In a pair of max pooling the winners go from forward to gradient, as in training."""
    if len(calls) == 1:
        return calls[0]
    forward, gradient = calls
    if task.op != "max_pair":
        return lambda: (forward(), gradient())
    dy, _, *rest = gradient.args

    def max_pair() -> tuple[Array, Array]:
        y, winners = forward()
        return y, gradient.func(dy, winners, *rest, **gradient.keywords)

    return max_pair


def _forward_with(task: Task, data: Data, wanted: str) -> Call:
    keywords: dict[str, Any] = {**task.case.geometry, "layout": task.layout, wanted: True}
    return partial(pb.max_pool, to_layout(task.layout, data.x), task.case.window.kernel, **keywords)


def saved_by_forward(task: Task, data: Data) -> Any:
    """What a gradient of max pooling takes from the forward: its indices or winners; nothing for the other ops."""
    for op, wanted in (("max_pool_grad_from_indices", "return_indices"), ("max_pool_grad_from_winners", "return_winners")):
        if task.op == op:
            return _forward_with(task, data, wanted)()[1]
    return placeholder(task, data)


def placeholder(task: Task, data: Data) -> Any:
    """Zeros of the form that the forward would save, to explain a call and run nothing."""
    shape = to_layout(task.layout, data.dy).shape
    if task.op == "max_pool_grad_from_indices":
        return np.zeros(shape, np.int64)
    if task.op in ("max_pool_grad_from_winners", "max_pair"):
        problem: Any = explain_call(_forward_with(task, data, "return_winners")).problem
        return np.zeros(shape, problem.winner_dtype)
    return None


def calls_of(task: Task, data: Data, saved: Any) -> list[Call]:
    """The calls of our functions that an op of the list is: one, or forward and gradient of a pair."""
    x, dy = (to_layout(task.layout, array) for array in (data.x, data.dy))
    keywords: dict[str, Any] = {**task.case.geometry, "layout": task.layout}
    if task.case.kind == "conv":
        f, keywords = filter_to_layout(task.layout, data.filter), keywords | {"groups": task.case.groups}
        arguments = {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}
        return [partial(getattr(pb, task.op), *arguments[task.op], **keywords)]
    window, shape = task.case.window.kernel, x.shape
    from_winners = partial(pb.max_pool_grad_from_winners, dy, saved, shape, window, **keywords)
    avg, avg_grad = partial(pb.avg_pool, x, window, **keywords), partial(pb.avg_pool_grad, dy, shape, window, **keywords)
    calls: dict[str, list[Call]] = {
        "max_pool": [partial(pb.max_pool, x, window, **keywords)],
        "max_pool_with_indices": [_forward_with(task, data, "return_indices")],
        "max_pool_grad": [partial(pb.max_pool_grad, dy, x, window, **keywords)],
        "max_pool_grad_from_indices": [partial(pb.max_pool_grad_from_indices, dy, saved, shape, layout=task.layout)],
        "max_pool_grad_from_winners": [from_winners],
        "max_pair": [_forward_with(task, data, "return_winners"), from_winners],
        "avg_pool": [avg],
        "avg_pool_grad": [avg_grad],
        "avg_pair": [avg, avg_grad],
    }
    return calls[task.op]
