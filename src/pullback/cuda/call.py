"""Running an op on arrays of a GPU: the problem and the kernel of a call, both remembered by shapes and keywords.

The problem is prepared by the op's own function, from stand-ins that have the shapes and dtypes of the arrays but no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from pullback.cuda.launch import on_device
from pullback.ops.call import MOST_REMEMBERED, NotComparableError, token
from pullback.problem import AnyProblem
from pullback.registry import CUDA, KernelError, chosen_kernel
from pullback.registry.in_force import asked_backend, selection
from pullback.settings import during

_remembered: dict[Any, tuple[AnyProblem, Callable[..., Any]]] = {}


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's type for PyTorch's."""
    if dtype is torch.bfloat16:
        try:
            import ml_dtypes
        except ImportError:
            raise ImportError("bfloat16 arrays need the package ml_dtypes: pip install 'pullback[bfloat16]'") from None
        half: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return half
    return np.dtype(str(dtype).removeprefix("torch."))


def stand_in(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """An array of a tensor's shape and type over the memory of one number."""
    return np.broadcast_to(np.zeros((), numpy_dtype(tensor.dtype)), tuple(tensor.shape))


def _check_backend(op: str) -> None:
    asked = asked_backend.get()
    if asked is not None and asked != CUDA:
        raise KernelError(f"{op}: arrays of a GPU run on backend {CUDA!r} only, and {asked!r} was asked for")


def problem_of(prepare: Callable[..., tuple[Any, ...]], args: Sequence[Any], keywords: dict[str, Any]) -> AnyProblem:
    """The problem of a call, some of whose arguments are tensors."""
    given = [stand_in(value) if isinstance(value, torch.Tensor) else value for value in args]
    problem: AnyProblem = prepare(*given, **keywords)[0]
    return problem


def find(prepare: Callable[..., tuple[Any, ...]], args: Sequence[Any], keywords: dict[str, Any]) -> tuple[AnyProblem, Any]:
    """The problem of a call and what runs it, remembered."""
    key: Any
    try:
        key = (
            prepare, selection(),
            *[(value.shape, value.dtype) if isinstance(value, torch.Tensor) else token(value) for value in args],
            *map(token, keywords.values()),
        )  # fmt: skip
    except NotComparableError:
        key = None
    known = _remembered.get(key) if key is not None else None
    if known is None:
        _check_backend(prepare.__name__.removeprefix("prepare_"))
        problem = problem_of(prepare, args, keywords)
        with during(asked_backend, CUDA):
            known = problem, chosen_kernel(problem).run
        if key is not None:
            if len(_remembered) >= MOST_REMEMBERED:
                _remembered.clear()
            _remembered[key] = known
    return known


def run(prepare: Callable[..., tuple[Any, ...]], *args: Any, **keywords: Any) -> Any:
    """An op on tensors of one device; the results lie there."""
    problem, kernel = find(prepare, args, keywords)
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    with on_device(tensors[0]):
        return kernel(problem, *tensors)
