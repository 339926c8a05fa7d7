"""`grads(f)` without importing autograd before somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def grads(f: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The function (args, dy=None) -> list of the gradients of f(*args), one per array in the list `args`; dy is ones by default.

    f may call the ops of pullback and of `autograd.numpy`. Needs the package autograd: pip install 'pullback[autograd]'.
    """
    from pullback.autograd import grads as traced

    return traced(f)
