"""Calls of torch.nn.functional as ours, by the rules that layers choose by: which there are, and why one stays PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as theirs

from pullback.torch import functional as ours
from pullback.torch.adaptive import output_sizes, why_mean_left, why_unequal
from pullback.torch.autograd import is_plain
from pullback.torch.choice import conv_outputs, conv_reason, conv_unsuitable, pool_reason, unsuitable
from pullback.torch.saving import is_watched

NOT_EAGER = "functional calls are taken only where PyTorch runs eagerly on plain tensors"
ON_GPU = "on a GPU only layers are taken"
WATCHED = "a checkpoint or another hook watches what is kept for the backward pass"


@dataclass(frozen=True)
class Function:
    """A function of torch.nn.functional: its name, ours, and why a call of it stays PyTorch's (None: it does not)."""

    name: str
    ours: Callable[..., Any]
    why_left: Callable[..., str | None]


def _not_eager(*tensors: Any) -> str | None:
    given = [tensor for tensor in tensors if tensor is not None]
    if not all(isinstance(tensor, torch.Tensor) for tensor in given) or not is_plain(given):
        return NOT_EAGER
    if any(tensor.is_cuda for tensor in given):
        return ON_GPU
    # A checkpoint runs its function again outside of the model, and wants the same tensors to be kept.
    return WATCHED if is_watched() else None


def _conv(rank: int, transposed: bool = False) -> Callable[..., str | None]:
    def why_left(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: Any = 1, *more: Any, **named: Any
    ) -> str | None:
        groups = more[2] if len(more) > 2 else named.get("groups", 1)  # the seventh argument, transposed or not
        step = 1 if transposed else stride
        unsuited = _not_eager(input, weight, bias) or conv_unsuitable(input, rank, weight, bias)
        return unsuited or conv_reason(input, weight, conv_outputs(input, step, rank), groups)

    return why_left


def _pool(rank: int) -> Callable[..., str | None]:
    def why_left(input: torch.Tensor, *more: Any, **named: Any) -> str | None:
        return _not_eager(input) or unsuitable(input, rank) or pool_reason(input)

    return why_left


def _adaptive(rank: int, mean: bool = False) -> Callable[..., str | None]:
    pool = _pool(rank)

    def why_left(input: torch.Tensor, output_size: Any, return_indices: bool = False) -> str | None:
        left = pool(input)
        if left is not None:
            return left
        outputs = output_sizes("output_size", input.shape[-rank:], output_size)
        return why_mean_left(input, outputs) if mean else why_unequal(input.shape[-rank:], outputs)

    return why_left


def _with_indices(pool: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's functions of this name return the indices whatever `return_indices` says."""

    def both(*given: Any, return_indices: bool = True, **named: Any) -> Any:
        return pool(*given, return_indices=True, **named)

    return both


_RULES: dict[str, Callable[[int], Callable[..., str | None]]] = {
    "conv": _conv, "conv_transpose": partial(_conv, transposed=True), "max_pool": _pool, "avg_pool": _pool,
    "adaptive_max_pool": _adaptive, "adaptive_avg_pool": partial(_adaptive, mean=True),
}  # fmt: skip
FUNCTIONS: dict[Callable[..., Any], Function] = {}
for _kind, _rule in _RULES.items():
    for _rank in (1, 2, 3):
        _name = f"{_kind}{_rank}d"
        _mine, _why_left = getattr(ours, _name), _rule(_rank)
        FUNCTIONS[getattr(theirs, _name)] = Function(_name, _mine, _why_left)
        if "max" in _kind:
            FUNCTIONS[getattr(theirs, f"{_name}_with_indices")] = Function(_name, _with_indices(_mine), _why_left)
OURS = {function.ours: function for function in FUNCTIONS.values()}
