"""Checks of the functional forms: each failure is one exception that names the function, the argument and what to do."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pullback.shown import shown
from pullback.torch.arrays import DTYPES


def plain(op: str, name: str, value: Any) -> Any:
    """An integer, a tuple of integers, a string or None, of Python's own types, so that equal values mean the same.

    Integers may come as NumPy's, as tensors of one or as sizes that PyTorch traces; as in PyTorch, a bool is none.
    """
    kind = type(value)
    if kind is int or kind is str or value is None or (kind is tuple and all(type(entry) is int for entry in value)):
        return value
    several = isinstance(value, (tuple, list))
    numbers = []
    for entry in value if several else (value,):
        try:
            if isinstance(entry, (bool, np.bool_)):
                raise TypeError
            numbers.append(entry if type(entry) is int else operator.index(entry))
        except TypeError:
            raise TypeError(f"{op}: {name} is {shown(value)}; give an integer, or one for each axis") from None
    return tuple(numbers) if several else numbers[0]


def integer(op: str, name: str, value: Any) -> int:
    number = plain(op, name, value)
    if type(number) is not int:
        raise TypeError(f"{op}: {name} is {shown(value)}; give an integer")
    return number


def flag(op: str, name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{op}: {name} is {shown(value)}; give True or False")
    return value


def each(op: str, name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """One integer per axis, from one for all or one for each, as `plain` gives them."""
    if value is None or isinstance(value, str):
        raise TypeError(f"{op}: {name} is {shown(value)}; give an integer, or one for each of {rank} axes")
    values: tuple[int, ...] = value if isinstance(value, tuple) else (value,)
    if len(values) == 1:
        values *= rank
    if len(values) != rank:
        raise ValueError(f"{op}: {name} is {shown(value)}; give an integer, or one for each of {rank} axes")
    if any(number < least for number in values):
        raise ValueError(f"{op}: {name} is {shown(value)}; it must be at least {least}")
    return values


def check(op: str, rank: int, **tensors: torch.Tensor | None) -> None:
    """Every tensor but the bias must be there, and be a float one of the CPU or a GPU, all of one dtype and device."""
    first = None
    for name, tensor in tensors.items():
        if tensor is None and name == "bias":
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{op}: {name} must be a tensor, not {type(tensor).__name__}")
        if not (tensor.is_cpu or tensor.is_cuda or tensor.is_meta) or tensor.layout is not torch.strided:
            where = tensor.device if tensor.layout is torch.strided else tensor.layout
            raise ValueError(
                f"{op}: {name} is on {where}; it must be a dense CPU tensor, or one of an NVIDIA GPU "
                f"(or use torch.nn.functional.{op})"
            )
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{op}: {name} has dtype {tensor.dtype}; the dtypes are {', '.join(map(str, DTYPES))}")
        if first is not None and (tensor.dtype != first.dtype or tensor.device != first.device):
            mine, other = (t.dtype if tensor.dtype != first.dtype else t.device for t in (tensor, first))
            raise TypeError(f"{op}: {name} is {mine} and the input {other}; convert one so that they agree")
        first = tensor if first is None else first
    if first is not None and first.dim() not in (rank + 1, rank + 2):
        raise ValueError(
            f"{op}: the input has shape {tuple(first.shape)}; it needs {rank + 2} axes, or {rank + 1} without a batch"
        )


def autocast_device(tensor: Any) -> str:
    """The kind of device whose autocast counts for a tensor."""
    return "cuda" if isinstance(tensor, torch.Tensor) and tensor.is_cuda else "cpu"


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """Under autocast on the first one's device, tensors of its type, as PyTorch's own convolutions do; else as they are."""
    where = autocast_device(tensors[0])
    if not torch.is_autocast_enabled(where):
        return tensors
    dtype = torch.get_autocast_dtype(where)
    cast = (torch.float32, torch.bfloat16, torch.float16)
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype in cast else t for t in tensors)


def unbatched(function: Callable[[torch.Tensor], Any], input: torch.Tensor, rank: int) -> Any:
    """Call with a batch axis, and take it off again where the input had none."""
    if input.dim() == rank + 2:
        return function(input)
    found = function(input.unsqueeze(0))
    return tuple(part.squeeze(0) for part in found) if isinstance(found, tuple) else found.squeeze(0)


_remembered: dict[tuple[Any, ...], Any] = {}
MOST_REMEMBERED = 4096


def remember(function: Callable[..., Any], *key: Any) -> Any:
    """function(*key), computed once for equal keys; not while PyTorch traces, which would trace the memory as well.

    Keys are what `plain` and `flag` give: of equal keys each is as good as the other.
    """
    if torch.compiler.is_compiling():
        return function(*key)
    found = _remembered.get((function, key))
    if found is None:
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        found = _remembered[function, key] = function(*key)
    return found
