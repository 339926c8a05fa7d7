"""A convolution's three ops, each on our kernels or on PyTorch's: what `accelerate(model, tune=True)` measures and keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from pullback.torch import kernels
from pullback.torch.arrays import LAST
from pullback.torch.autograd import OPS, Differentiable, gradients, keep

CONV_OPS = ("conv", "conv_grad_input", "conv_grad_filter")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def torch_can(keywords: Mapping[str, Any]) -> bool:
    """Whether PyTorch has this convolution: it pads both ends of an axis alike."""
    return all(low == high for low, high in keywords["padding"])


def _arguments(stride: Sequence[int], padding: Any, dilation: Sequence[int], groups: int, **_: Any) -> tuple[Any, ...]:
    return stride, [low for low, _ in padding], dilation, False, [0] * len(stride), groups


def _blank(like: torch.Tensor, shape: Sequence[int], layout: str) -> torch.Tensor:
    """A tensor that PyTorch asks only about its shape and memory format."""
    form = FORMATS.get(len(shape), torch.contiguous_format) if layout == LAST else torch.contiguous_format
    return torch.empty(tuple(shape), dtype=like.dtype, memory_format=form)


def _conv(x: torch.Tensor, filter: torch.Tensor, **keywords: Any) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.convolution(x, filter, None, *_arguments(**keywords))
    return result


def _backward(
    dy: torch.Tensor, x: torch.Tensor, filter: torch.Tensor, place: int, keywords: Mapping[str, Any]
) -> torch.Tensor:  # fmt: skip
    wanted = [place == 0, place == 1, False]
    backward = torch.ops.aten.convolution_backward
    found = kernels.listened(CONV_OPS[1 + place], backward, dy, x, filter, None, *_arguments(**keywords), wanted)
    gradient: torch.Tensor = found[place]
    return gradient


def _conv_grad_input(dy: torch.Tensor, filter: torch.Tensor, *, input_shape: Sequence[int], **keywords: Any) -> torch.Tensor:
    return _backward(dy, _blank(dy, input_shape, keywords["layout"]), filter, 0, keywords)


def _conv_grad_filter(dy: torch.Tensor, x: torch.Tensor, *, filter_shape: Sequence[int], **keywords: Any) -> torch.Tensor:
    return _backward(dy, x, _blank(dy, filter_shape, keywords["layout"]), 1, keywords)


THEIRS: dict[str, Callable[..., Any]] = dict(zip(CONV_OPS, (_conv, _conv_grad_input, _conv_grad_filter), strict=True))


@cache
def _ops(ours: frozenset[str]) -> dict[str, Callable[..., Any]]:
    return {op: THEIRS[op] if op in THEIRS and op not in ours else function for op, function in OPS.items()}


class _Mixed(Differentiable):
    """A convolution of which `ours` are the ops on our kernels."""

    @staticmethod
    def forward(ctx: Any, ours: frozenset[str], keywords: Mapping[str, Any], *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        y = kernels.run("conv", tensors, keywords) if "conv" in ours else _conv(*tensors, **keywords)
        ctx.set_materialize_grads(False)
        ctx.needs_tensors, ctx.ours = ctx.needs_input_grad[2:], ours
        keep(ctx, "conv", tensors, y, keywords)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None, *_: Any) -> Any:
        return None, None, *gradients(ctx, g, _ops(ctx.ours))


_apply = super(torch.autograd.Function, _Mixed).apply


def mixed_conv(ours: frozenset[str], x: torch.Tensor, weight: torch.Tensor, keywords: Mapping[str, Any]) -> torch.Tensor:
    """A convolution of plain tensors, with derivatives where they are wanted."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        result: torch.Tensor = _apply(ours, keywords, x, weight)
        return result
    return kernels.run("conv", (x, weight), keywords) if "conv" in ours else _conv(x, weight, **keywords)
