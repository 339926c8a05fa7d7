"""Convolution and pooling with the names, arguments and rules of torch.nn.functional, on our kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import has_torch_function_variadic

from pullback.shown import shown
from pullback.torch.arguments import autocast, check, each, integer, plain, remember, unbatched
from pullback.torch.arrays import layout_of, untraced
from pullback.torch.autograd import is_plain
from pullback.torch.forms import called, elsewhere, named
from pullback.torch.mixed import add_bias
from pullback.torch.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]


def _conv_keywords(
    op: str, rank: int, window: tuple[int, ...], stride: Any, padding: Any, dilation: Any, groups: int
) -> dict[str, Any]:
    strides, dilations = each(op, "stride", stride, rank, 1), each(op, "dilation", dilation, rank, 1)
    if padding == "same":
        if any(s != 1 for s in strides):
            raise ValueError(f"{op}: padding='same' needs a stride of 1, not {shown(stride)}")
        totals = [d * (k - 1) for d, k in zip(dilations, window, strict=True)]
        pads = tuple((total // 2, total - total // 2) for total in totals)
    elif padding == "valid":
        pads = ((0, 0),) * rank
    elif isinstance(padding, str):
        raise ValueError(f"{op}: unknown padding {shown(padding)}; it is 'same', 'valid', an integer or one for each axis")
    else:
        pads = tuple((p, p) for p in each(op, "padding", padding, rank, 0))
    if groups < 1:
        raise ValueError(f"{op}: groups is {groups}; it must be at least 1")
    return {"stride": strides, "padding": pads, "dilation": dilations, "groups": groups, "rounding": "floor"}


def _with_bias(y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return y if bias is None else add_bias(y, bias, in_place=is_plain((y, bias)))


def _operands(
    op: str, rank: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Input, weight and bias as they are computed with, each of a kind that our kernels take."""
    x, w, b = autocast(input, weight, bias)
    check(op, rank, input=x, weight=w, bias=b)
    if w.dim() != rank + 2:
        raise ValueError(f"{op}: the weight has shape {tuple(w.shape)}; it needs {rank + 2} axes")
    return x, w, b


@untraced
def _check_channels(
    op: str, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, takes: int, gives: int, groups: int
) -> None:
    """That a weight for so many channels fits the input, the bias and the groups."""
    if w.shape[0] % groups != 0:
        raise ValueError(f"{op}: the weight has shape {tuple(w.shape)}; groups={groups} must divide its {w.shape[0]}")
    channels = x.shape[1 - w.dim() + x.dim()]
    if channels != takes:
        raise ValueError(
            f"{op}: the input has {channels} channels, and a weight of shape {tuple(w.shape)} with groups={groups} takes {takes}"
        )
    if b is not None and tuple(b.shape) != (gives,):
        raise ValueError(f"{op}: the bias has shape {tuple(b.shape)}; it needs one entry for each of {gives} channels")


def _conv(
    rank: int,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> torch.Tensor:
    op = f"conv{rank}d"
    x, w, b = _operands(op, rank, input, weight, bias)
    keywords = conv_keywords(op, w, stride, padding, dilation, groups)
    _check_channels(op, x, w, b, w.shape[1] * keywords["groups"], w.shape[0], keywords["groups"])

    def run(x: torch.Tensor) -> torch.Tensor:
        return _with_bias(called(op, "conv", x, w, layout=layout_of(x, w), **keywords), b)

    result: torch.Tensor = unbatched(run, x, rank)
    return result


@untraced
def conv_keywords(op: str, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, groups: Any) -> dict[str, Any]:
    """What a convolution is called with beside its tensors and its layout."""
    given = (plain(op, "stride", stride), plain(op, "padding", padding), plain(op, "dilation", dilation))
    window = tuple(weight.shape[2:])
    keywords: dict[str, Any] = remember(
        _conv_keywords, op, len(window), window, *given, integer(op, "groups", groups)
    )  # fmt: skip
    return keywords


def transposed_keywords(op: str, rank: int, output_padding: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a convolution with those of its transpose: what is added to its output, beyond it or within its padding."""
    extra = each(op, "output_padding", plain(op, "output_padding", output_padding), rank, 0)
    added, pads = [], []
    for s, d, (p, q), e in zip(keywords["stride"], keywords["dilation"], keywords["padding"], extra, strict=True):
        if e >= max(s, d):
            raise ValueError(
                f"{op}: output_padding is {shown(output_padding)}; it must be smaller than the stride {s} or the dilation {d}"
            )
        # A stride or more is another output of the convolution, unless its padding is cut.
        added.append(e if e < s else 0)
        pads.append((p, q) if e < s else (p, q - e))
    return {**keywords, "padding": tuple(pads), "output_padding": tuple(added)}


def _conv_transpose(
    rank: int,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> torch.Tensor:
    """The input gradient of the convolution that has this weight: its dy is our input."""
    op = f"conv_transpose{rank}d"
    x, w, b = _operands(op, rank, input, weight, bias)
    if isinstance(padding, str):
        raise TypeError(f"{op}: padding is {shown(padding)}; give an integer, or one for each of {rank} axes")
    keywords = conv_keywords(op, w, stride, padding, dilation, groups)
    _check_channels(op, x, w, b, w.shape[0], w.shape[1] * keywords["groups"], keywords["groups"])
    keywords = transposed_keywords(op, rank, output_padding, keywords)

    def run(x: torch.Tensor) -> torch.Tensor:
        return _with_bias(called(op, "conv_transpose", x, w, layout=layout_of(x, w), **keywords), b)

    result: torch.Tensor = unbatched(run, x, rank)
    return result


def _make_conv(rank: int) -> Callable[..., torch.Tensor]:
    def conv(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        given = (input, weight, bias, stride, padding, dilation, groups)
        if has_torch_function_variadic(input, weight, bias):
            return elsewhere(conv, given, 3)
        return _conv(rank, *given)

    return named(conv, f"conv{rank}d")


def _make_conv_transpose(rank: int) -> Callable[..., torch.Tensor]:
    def conv_transpose(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> torch.Tensor:
        given = (input, weight, bias, stride, padding, output_padding, groups, dilation)
        if has_torch_function_variadic(input, weight, bias):
            return elsewhere(conv_transpose, given, 3)
        return _conv_transpose(rank, *given)

    return named(conv_transpose, f"conv_transpose{rank}d")


conv1d, conv2d, conv3d = map(_make_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_make_conv_transpose, (1, 2, 3))
