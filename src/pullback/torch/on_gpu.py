"""The ops on tensors of an NVIDIA GPU, and which of them our kernels take: by the lists of the cuda backend, nothing is timed.

What a list leaves to the library that PyTorch calls (`THEIRS`) is PyTorch's own op wherever a layer can call that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from pullback.registry import CUDA, chosen_kernel
from pullback.registry.in_force import asked_backend
from pullback.settings import current_precision, during
from pullback.torch.arrays import FIRST, filter_to_last, from_last, to_last

THEIRS = ("cudnn", "large_windows")  # kernels of the lists that PyTorch has as good
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FIRST_GRADIENT = {"max_pool": "max_pool_grad_from_winners", "avg_pool": "avg_pool_grad"}


def compute(op: str, tensors: Sequence[torch.Tensor], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Run one of the ops on tensors whose axes are PyTorch's; `arguments`: their names, "filter" or another."""
    from pullback.cuda import call
    from pullback.ops.explain import PREPARE

    if keywords["layout"] == FIRST:
        return call.run(PREPARE[op], *tensors, **keywords)
    given = [
        tensor.permute(filter_to_last(tensor.dim()) if name == "filter" else to_last(tensor.dim()))
        for tensor, name in zip(tensors, arguments, strict=True)
    ]
    found = call.run(PREPARE[op], *given, **keywords)
    if op == "conv_grad_filter":
        return found.permute(found.dim() - 1, found.dim() - 2, *range(found.dim() - 2))
    back = from_last(given[0].dim())
    return tuple(part.permute(back) for part in found) if isinstance(found, tuple) else found.permute(back)


def _chosen(op: str, *arguments: Any, **keywords: Any) -> str:
    from pullback.cuda.call import problem_of
    from pullback.ops.explain import PREPARE

    with during(asked_backend, CUDA):
        return chosen_kernel(problem_of(PREPARE[op], arguments, keywords)).name


def _shapes(shape: tuple[int, ...], layout: str, filter: bool = False) -> tuple[int, ...]:
    if layout == FIRST:
        return shape
    return tuple(shape[axis] for axis in (filter_to_last(len(shape)) if filter else to_last(len(shape))))


@lru_cache(4096)
def _conv_kernels(
    shape: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, layout: str, given: Any, precision: str
) -> tuple[str, str, str]:
    from pullback.cuda.call import problem_of
    from pullback.ops.explain import PREPARE

    x = torch.empty(_shapes(shape, layout), dtype=dtype, device="meta")
    w = torch.empty(_shapes(weight, layout, filter=True), dtype=dtype, device="meta")
    keywords = {**dict(given), "layout": layout}
    dy = torch.empty(problem_of(PREPARE["conv"], (x, w), keywords).output_shape, dtype=dtype, device="meta")
    return (
        _chosen("conv", x, w, **keywords), _chosen("conv_grad_input", dy, w, tuple(x.shape), **keywords),
        _chosen("conv_grad_filter", dy, x, tuple(w.shape), **keywords),
    )  # fmt: skip


def conv_kernels(
    x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, keywords: Mapping[str, Any]
) -> tuple[str, str, str]:
    """The kernels of a convolution, its input gradient and its filter gradient; `keywords` are those of `conv`."""
    rest = tuple((name, value) for name, value in keywords.items() if name != "layout")
    return _conv_kernels(tuple(x.shape), tuple(weight.shape), dtype, keywords["layout"], rest, current_precision())


@lru_cache(4096)
def _pool_kernels(op: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str, given: Any) -> tuple[str, str]:
    from pullback.cuda.call import problem_of
    from pullback.ops.explain import PREPARE

    x = torch.empty(_shapes(shape, layout), dtype=dtype, device="meta")
    keywords = {**dict(given), "layout": layout}
    problem: Any = problem_of(PREPARE[op], (x,), keywords)
    dy = torch.empty(problem.output_shape, dtype=dtype, device="meta")
    arrays = [dy]
    if op == "max_pool":
        arrays.append(torch.empty(problem.output_shape, dtype=getattr(torch, problem.winner_dtype.name), device="meta"))
    return _chosen(op, x, **keywords), _chosen(FIRST_GRADIENT[op], *arrays, input_shape=tuple(x.shape), **keywords)


def pool_kernels(op: str, x: torch.Tensor, layout: str, keywords: Mapping[str, Any]) -> tuple[str, str]:
    """The kernels of a pooling ("max_pool" or "avg_pool") and of its gradient."""
    return _pool_kernels(op, tuple(x.shape), x.dtype, layout, tuple(keywords.items()))
