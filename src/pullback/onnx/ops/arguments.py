"""What the ops share in reading their nodes: refusals, axes, lists of integers, results that lie in memory as an input does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.onnx.errors import OnnxError
from pullback.onnx.executor.memory import empty, empty_like, memory_order
from pullback.onnx.executor.registry import Node
from pullback.rules import Array


def refused(node: Node, problem: str, remedy: str) -> OnnxError:
    """The error of a node that cannot be run as it is: what is wrong with it, and what to do."""
    return OnnxError(f"{node.title}: {problem}; {remedy}")


@contextmanager
def naming(node: Node) -> Iterator[None]:
    """Errors of the code inside, which knows shapes and attributes but no graph, as errors of this node."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if isinstance(error, OnnxError):
            raise
        raise OnnxError(f"{node.title}: {error}") from error


def frozen(node: Node) -> tuple[tuple[str, Any], ...]:
    """The attributes as something that can be a key: what the geometry of a node is remembered by."""
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in node.attrs.items())


def ints(values: Any) -> tuple[int, ...]:
    """The integers of an attribute or of a small input."""
    return tuple(int(value) for value in (values.reshape(-1) if isinstance(values, np.ndarray) else values))


def scalar(value: Array | None, default: Any) -> Any:
    """The one value of an optional input."""
    return default if value is None else value.reshape(-1)[0]


def axis_of(node: Node, axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise refused(node, f"axis {axis} of an array with {rank} axes", "mend the attribute or the input's shape")
    return axis % rank if rank else 0


def axes_of(node: Node, axes: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, ascending, each once."""
    found = sorted(axis_of(node, axis, rank) for axis in ints(axes))
    if len(set(found)) < len(found):
        raise refused(node, f"axes {list(ints(axes))} name an axis twice", "name each axis once")
    return tuple(found)


def take(x: Array, indices: npt.NDArray[np.int64], axis: int) -> Array:
    """The cells of an axis that a list of indices (none of them negative) names, lying in memory as x does."""
    order, back = memory_order(x)
    place = order.index(axis)
    shape = tuple(len(indices) if each == axis else x.shape[each] for each in order)
    # Not mode="raise", which fills a buffer of its own first.
    return np.take(x.transpose(order), indices, axis=place, out=empty(shape, x.dtype), mode="clip").transpose(back)


def result_like(x: Array, out: Array | None) -> Array:
    """Where a result of x's shape and dtype goes: what was given for it, or new memory."""
    return empty_like(x) if out is None else out
