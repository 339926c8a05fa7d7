"""Gradients of functions that use the ops, without importing autograd before somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def grads(f: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The function (args, dy=None) -> list of the gradients of f(*args), one per array in the list `args`; dy is ones by default.

    f may call the ops of pullback and of `autograd.numpy`. Needs the package autograd: pip install 'pullback[autograd]'.
    """
    from pullback.autograd import grads as traced

    return traced(f)


def value_and_grads(f: Callable[..., Any]) -> Callable[..., tuple[Any, list[Any]]]:
    """The function (args, dy=None) -> (f(*args), list of its gradients): `grads` with the value, which is computed anyway."""
    from pullback.autograd import value_and_grads as traced

    return traced(f)


def grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function (x, dy=None) -> gradient of f(x), for a function of one array: `grads` without the lists."""
    from pullback.autograd import grad as traced

    return traced(f)
