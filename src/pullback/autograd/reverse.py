"""Reverse mode for a function of several arrays: its value, and what pulls a gradient back to each argument it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from autograd.core import VJPNode, add_outgrads
from autograd.tracer import isbox, new_box, toposort, trace_stack

from pullback.rules import is_supported_float
from pullback.shown import shown
from pullback.tracing import plain

Function = Callable[..., Any]


def pull_back(f: Function, args: Sequence[Any]) -> tuple[Any, Callable[[Any], list[Any]] | None]:
    """f(*args) and the function from the gradient of that value to a list of gradients, None for an argument it ignores.

    No function where the value depends on none of them.
    """
    with trace_stack.new_trace() as trace:
        roots = [VJPNode.new_root() for _ in args]
        boxes = [new_box(value, trace, root) for value, root in zip(args, roots, strict=True)]
        result = f(*boxes)
    if not isbox(result) or result._trace != trace:
        return result, None
    end = result._node

    def back(g: Any) -> list[Any]:
        gradients = {end: (g, False)}
        for node in toposort(end):
            if node in roots:
                continue
            gradient, _ = gradients.pop(node)
            for parent, part in zip(node.parents, node.vjp(gradient), strict=True):
                gradients[parent] = add_outgrads(gradients.get(parent), part)
        return [gradients[root][0] if root in gradients else None for root in roots]

    return result._value, back


def _argument(number: int, value: Any) -> Any:
    if isbox(value):
        return value
    array = np.asarray(value)
    if not is_supported_float(array.dtype):
        raise TypeError(f"grads: argument {number} has dtype {array.dtype}; gradients need floating-point arrays")
    return array


def _as_gradient(dy: Any, value: Any) -> Any:
    shape, dtype = np.shape(value), np.asarray(plain(value)).dtype
    if dy is None:
        return np.ones(shape, dtype)
    given = dy if isbox(dy) else np.asarray(dy, dtype)
    if given.shape != shape:
        raise ValueError(f"grads: dy has shape {given.shape} but f returns an array of shape {shape}")
    return given


def value_and_grads(f: Function) -> Callable[..., tuple[Any, list[Any]]]:
    """The function (args, dy=None) -> (f(*args), its gradients), one for each array in the list `args`.

    dy, the gradient of f's result, is ones by default. f calls the ops of `pullback` and `autograd.numpy`; an argument that it
    does not use has a gradient of zeros.
    """
    if not callable(f):
        raise TypeError(f"grads: f must be a function, not {shown(f)}")

    def both(args: Sequence[Any], dy: Any = None) -> tuple[Any, list[Any]]:
        if not isinstance(args, (list, tuple)) or not args:
            raise TypeError(f"grads: pass the arguments of f as a list of arrays, not {shown(args)}")
        arrays = [_argument(number, value) for number, value in enumerate(args)]
        value, back = pull_back(f, arrays)
        if not isinstance(plain(value), (np.ndarray, np.generic, float)):
            raise TypeError(f"grads: f must return one array, not {type(plain(value)).__name__}")
        if back is None:
            raise ValueError(
                "grads: the result of f does not depend on its arguments; compute it with pullback and autograd.numpy"
            )
        found = back(_as_gradient(dy, value))
        return value, [np.zeros(a.shape, a.dtype) if g is None else g for a, g in zip(arrays, found, strict=True)]

    return both


def grads(f: Function) -> Callable[..., list[Any]]:
    """`value_and_grads` without the value: the function (args, dy=None) -> gradients."""
    both = value_and_grads(f)
    return lambda args, dy=None: both(args, dy)[1]


def grad(f: Function) -> Callable[..., Any]:
    """The function (x, dy=None) -> gradient of f(x), for a function of one array."""
    both = value_and_grads(f)
    return lambda x, dy=None: both([x], dy)[1][0]
