"""pullback as a participant of its own benchmark, behind the same interface as the peers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pullback as pb
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
from pullback.registry import Kernel
from pullback.rules import Array

NAME = "pullback"


def threads(count: int) -> AbstractContextManager[Any]:
    """Our thread count for a block, where the library already has one to set."""
    limit: Callable[[int], AbstractContextManager[Any]] | None = getattr(pb, "threads", None)
    return nullcontext() if limit is None else limit(count)


def _optional_op(name: str) -> Callable[..., Any]:
    op: Callable[..., Any] | None = getattr(pb, name, None)
    if op is None or "return_winners" not in inspect.signature(pb.max_pool).parameters:
        raise UnsupportedError("not available yet")
    return op


class Ours:
    """Our own ops, on the backend in force."""

    name = NAME
    layouts = LAYOUTS
    slow = False

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return pb.__version__

    def close(self) -> None:
        pass

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        run, kernel = (_pool(task, data), None) if task.case.kind == "pool" else _conv(task, data)

        def result() -> tuple[Array, ...]:
            got = run()
            arrays = got if isinstance(got, tuple) else (got,)
            if task.op == "conv_grad_filter":
                return (filter_to_channels_last(task.layout, arrays[0]),)
            if task.op == "max_pool_with_indices":
                return to_channels_last(task.layout, arrays[0]), spatial_indices(task.layout, task.case, arrays[1])
            return tuple(to_channels_last(task.layout, array) for array in arrays)

        return Prepared(run, result, kernel=kernel)


def _conv(task: Task, data: Data) -> tuple[Callable[[], Any], Kernel | None]:
    x, dy = (to_layout(task.layout, array) for array in (data.x, data.dy))
    f = filter_to_layout(task.layout, data.filter)
    keywords = {**task.case.geometry, "groups": task.case.groups, "layout": task.layout}
    calls = {
        "conv": partial(pb.conv, x, f, **keywords),
        "conv_grad_input": partial(pb.conv_grad_input, dy, f, x.shape, **keywords),
        "conv_grad_filter": partial(pb.conv_grad_filter, dy, x, f.shape, **keywords),
    }
    call = calls[task.op]
    return call, pb.explain(task.op, *call.args, **call.keywords).chosen


def _pool(task: Task, data: Data) -> Callable[[], Any]:
    x, dy = (to_layout(task.layout, array) for array in (data.x, data.dy))
    window, shape = task.case.window.kernel, x.shape
    keywords: dict[str, Any] = {**task.case.geometry, "layout": task.layout}
    if task.op == "max_pool_grad_from_indices":
        indices = pb.max_pool(x, window, return_indices=True, **keywords)[1]
        return partial(pb.max_pool_grad_from_indices, dy, indices, shape, layout=task.layout)
    if task.op in ("max_pool_grad_from_winners", "max_pair"):
        from_winners = _optional_op("max_pool_grad_from_winners")
        max_pool: Any = pb.max_pool
        forward = partial(max_pool, x, window, return_winners=True, **keywords)
        if task.op == "max_pool_grad_from_winners":
            return partial(from_winners, dy, forward()[1], shape, window, **keywords)

        def max_pair() -> tuple[Array, Array]:
            y, winners = forward()
            return y, from_winners(dy, winners, shape, window, **keywords)

        return max_pair

    def avg_pair() -> tuple[Array, Array]:
        return pb.avg_pool(x, window, **keywords), pb.avg_pool_grad(dy, shape, window, **keywords)

    calls: dict[str, Callable[[], Any]] = {
        "max_pool": partial(pb.max_pool, x, window, **keywords),
        "max_pool_with_indices": partial(pb.max_pool, x, window, return_indices=True, **keywords),
        "max_pool_grad": partial(pb.max_pool_grad, dy, x, window, **keywords),
        "avg_pool": partial(pb.avg_pool, x, window, **keywords),
        "avg_pool_grad": partial(pb.avg_pool_grad, dy, shape, window, **keywords),
        "avg_pair": avg_pair,
    }
    return calls[task.op]
