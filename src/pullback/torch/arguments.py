"""Checks of the functional forms: each failure is one exception that names the function, the argument and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pullback.torch.arrays import DTYPES


def each(op: str, name: str, value: Any, rank: int) -> tuple[int, ...]:
    """One integer per axis, from one for all or one for each."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values *= rank
    if len(values) != rank or not all(isinstance(v, int) for v in values):
        raise ValueError(f"{op}: {name} is {value!r}; give an integer, or one for each of {rank} axes")
    return values


def check(op: str, rank: int, **tensors: torch.Tensor | None) -> None:
    """Every tensor must be a float one in the CPU's memory, all of one dtype."""
    first = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{op}: {name} must be a tensor, not {type(tensor).__name__}")
        if not (tensor.is_cpu or tensor.is_meta) or tensor.layout is not torch.strided:
            where = tensor.device if tensor.layout is torch.strided else tensor.layout
            raise ValueError(f"{op}: {name} is on {where}; it must be a dense CPU tensor (or use torch.nn.functional.{op})")
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{op}: {name} has dtype {tensor.dtype}; the dtypes are {', '.join(map(str, DTYPES))}")
        if first is not None and tensor.dtype != first.dtype:
            raise TypeError(f"{op}: {name} is {tensor.dtype} and the input {first.dtype}; convert one so that they agree")
        first = tensor if first is None else first
    if first is not None and first.dim() not in (rank + 1, rank + 2):
        raise ValueError(
            f"{op}: the input has shape {tuple(first.shape)}; it needs {rank + 2} axes, or {rank + 1} without a batch"
        )


def autocast(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Under autocast on the CPU, tensors of its type, as PyTorch's own convolutions do; else as they are."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    cast = (torch.float32, torch.bfloat16, torch.float16)
    return tuple(t.to(dtype) if t is not None and t.dtype in cast else t for t in tensors)


def unbatched(function: Callable[[torch.Tensor], Any], input: torch.Tensor, rank: int) -> Any:
    """Call with a batch axis, and take it off again where the input had none."""
    if input.dim() == rank + 2:
        return function(input)
    found = function(input.unsqueeze(0))
    return tuple(part.squeeze(0) for part in found) if isinstance(found, tuple) else found.squeeze(0)


def hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_remembered: dict[tuple[Any, ...], Any] = {}
MOST_REMEMBERED = 4096


def remember(function: Callable[..., Any], *key: Any) -> Any:
    """function(*key), computed once for equal keys; not while PyTorch traces, which would trace the memory as well.

    Keys hold ints, strings, None and tuples of them; True and 1 are taken for the same.
    """
    if torch.compiler.is_compiling():
        return function(*key)
    found = _remembered.get((function, key))
    if found is None:
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        found = _remembered[function, key] = function(*key)
    return found
