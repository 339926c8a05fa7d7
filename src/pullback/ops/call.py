"""Running an op: prepare its problem, dispatch it, and remember both, so that the same call costs microseconds next time.

What a problem depends on is remembered, never values of arrays: shapes, dtypes, keywords, and which kernels are chosen from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from pullback.ops.arguments import FEWEST_AXES, check_shape
from pullback.ops.foreign_arrays import any_device_array
from pullback.problem import AnyProblem
from pullback.registry import chosen_kernel, selection
from pullback.rules import Array
from pullback.shown import shown
from pullback.tracing import any_traced, traced_op

MOST_REMEMBERED = 4096
MOST_NUMBERS = 16
DEEPEST = 3

_remembered: dict[Any, tuple[Any, Callable[..., Any]]] = {}


class NotComparableError(Exception):
    """An argument whose equality does not mean the same call."""


def token(value: Any, depth: int = 0) -> Any:
    """A hashable stand-in for an argument that is equal only for the same call (1, 1.0, True and np.int64(1) are not)."""
    kind = type(value)
    if kind is int or kind is str or value is None:
        return value
    if kind is bool:
        return kind, value
    if kind is tuple or kind is list:
        if depth < DEEPEST:  # no argument is nested any deeper, unless it is refused or contains itself
            return kind, *[entry if type(entry) is int else token(entry, depth + 1) for entry in value]
    elif isinstance(value, np.integer):
        return kind, int(value)
    elif kind is np.ndarray and value.dtype.kind in "iu" and value.size <= MOST_NUMBERS:  # sizes and steps, not data
        return kind, value.shape, value.dtype, value.tobytes()
    raise NotComparableError


def run_op(prepare: Callable[..., tuple[Any, ...]], *args: Any, out: Array | None = None, **keywords: Any) -> Array:
    """Prepare a call, find its kernel and run it. (max_pool may give a pair, and says so itself.)"""
    key: Any = None
    arrays = []
    try:
        tokens: list[Any] = [prepare, selection()]
        for value in (*args, *keywords.values()):
            kind = type(value)
            if kind is np.ndarray and value.ndim >= FEWEST_AXES:
                arrays.append(value)
                tokens += value.shape, value.dtype
            else:
                tokens.append(value if kind is int or kind is str or value is None else token(value))
        key = tuple(tokens)
    except NotComparableError:
        if any_device_array(args):
            return cast(Array, _on_device(prepare, out, args, keywords))
        if any_traced(args):
            return _traced(prepare.__name__.removeprefix("prepare_"), out, args, keywords)
        arrays = [value for value in args if type(value) is np.ndarray]
    known = _remembered.get(key) if key is not None else None
    if known is not None:
        problem, run = known
    else:
        problem, *prepared = prepare(*args, **keywords)
        run = chosen_kernel(problem).run
        # Only a call whose arrays are used as they are can skip its preparation next time.
        if key is not None and len(arrays) == len(prepared) and all(a is b for a, b in zip(arrays, prepared, strict=True)):
            if len(_remembered) >= MOST_REMEMBERED:
                _remembered.clear()
            _remembered[key] = problem, run
        arrays = prepared
    result: Array = run(problem, *arrays) if out is None else _run_into(out, run, problem, arrays)
    return result


def _on_device(prepare: Callable[..., tuple[Any, ...]], out: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """On arrays of a GPU, which come back as such."""
    from pullback.cuda.arrays import run_on_arrays

    found: Any = run_on_arrays(prepare, out, args, keywords)
    return found


def _traced(op: str, out: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Array:
    if out is not None:
        raise TypeError(f"{op}: autograd records this call and keeps its result; leave out= away")
    traced: Array = traced_op(op)(*args, **keywords)
    return traced


def _run_into(out: Any, run: Callable[..., Any], problem: AnyProblem, arrays: Sequence[Array]) -> Array:
    """Run a kernel with its result in the caller's array: without a second array of that size wherever the kernel can."""
    from pullback.cpu.engine.memory import results_in

    op = problem.op
    if type(out) is not np.ndarray or not out.flags.writeable:
        raise TypeError(f"{op}: out must be a writable NumPy array, not {shown(out)}")
    check_shape(op, "out", out.shape, problem.result_shape, "the shape of the result")
    if out.dtype != problem.dtype:
        raise TypeError(f"{op}: out has dtype {out.dtype}; the result has {problem.dtype}")
    fits = out.flags.c_contiguous and out.flags.aligned and not any(np.may_share_memory(out, array) for array in arrays)
    with results_in([out] if fits else []):
        result = run(problem, *arrays)
    if result is not out:
        out[...] = result
    return cast(Array, out)
