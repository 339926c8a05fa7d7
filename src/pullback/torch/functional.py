"""Convolution and pooling with the names, arguments and rules of torch.nn.functional, on our kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pullback.torch.arguments import autocast, check, each, hashable, remember, unbatched
from pullback.torch.arrays import layout_of
from pullback.torch.autograd import call, is_plain
from pullback.torch.winners import indices_of


def _conv_keywords(
    op: str, rank: int, window: tuple[int, ...], stride: Any, padding: Any, dilation: Any, groups: int
) -> dict[str, Any]:
    strides, dilations = each(op, "stride", stride, rank), each(op, "dilation", dilation, rank)
    if padding == "same":
        if any(s != 1 for s in strides):
            raise ValueError(f"{op}: padding='same' needs a stride of 1, not {stride!r}")
        totals = [d * (k - 1) for d, k in zip(dilations, window, strict=True)]
        pads = tuple((total // 2, total - total // 2) for total in totals)
    elif padding == "valid":
        pads = ((0, 0),) * rank
    elif isinstance(padding, str):
        raise ValueError(f"{op}: unknown padding {padding!r}; it is 'same', 'valid', an integer or one for each axis")
    else:
        pads = tuple((p, p) for p in each(op, "padding", padding, rank))
        if any(p < 0 for p, _ in pads):
            raise ValueError(f"{op}: padding is {padding!r}; it cannot be negative")
    return {"stride": strides, "padding": pads, "dilation": dilations, "groups": groups, "rounding": "floor"}


def add_bias(y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if bias is None:
        return y
    shaped = bias.view(-1, *(1,) * (y.dim() - 2))
    # In place where y is memory of its own: bfloat16 results are views of their bits.
    return y.add_(shaped) if is_plain((y, bias)) and y.dtype != torch.bfloat16 else y + shaped


def _operands(
    op: str, rank: int, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Input, weight and bias as they are computed with, each of a kind that our kernels take."""
    x, w, b = autocast(input, weight, bias)
    assert x is not None
    assert w is not None
    check(op, rank, input=x, weight=w, bias=b)
    return x, w, b


def _check_filter(op: str, rank: int, weight: torch.Tensor, bias: torch.Tensor | None, outputs: int) -> None:
    if weight.dim() != rank + 2:
        raise ValueError(f"{op}: the weight has shape {tuple(weight.shape)}; it needs {rank + 2} axes")
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"{op}: the bias has shape {tuple(bias.shape)}; it needs one entry for each of {outputs} channels")


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
    _check_filter(op, rank, w, b, w.shape[0])
    if x.dim() == rank + 1:
        batch = x.unsqueeze(0)
        return add_bias(call("conv", batch, w, **conv_keywords(w, w, stride, padding, dilation, groups)), b).squeeze(0)
    return add_bias(call("conv", x, w, **conv_keywords(x, w, stride, padding, dilation, groups)), b)


def conv_keywords(
    like: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> dict[str, Any]:
    """What `conv` is called with beside its tensors; its layout is that of `like` or the weight."""
    rank = weight.dim() - 2
    given = (hashable(stride), hashable(padding), hashable(dilation), groups)
    keywords = remember(_conv_keywords, f"conv{rank}d", rank, tuple(weight.shape[2:]), *given)
    return {**keywords, "layout": layout_of(like, weight)}


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
    _check_filter(op, rank, w, b, w.shape[1] * groups)
    window = tuple(w.shape[2:])
    keywords = dict(
        remember(_conv_keywords, op, rank, window, hashable(stride), hashable(padding), hashable(dilation), groups)
    )  # fmt: skip
    extra = each(op, "output_padding", output_padding, rank)
    sizes, pads = [], []
    axes = zip(x.shape[-rank:], window, keywords["stride"], keywords["dilation"], keywords["padding"], extra, strict=True)
    for n, k, s, d, (p, q), e in axes:
        if not 0 <= e < max(s, d):
            raise ValueError(
                f"{op}: output_padding is {output_padding!r}; it must be smaller than the stride {s} or the dilation {d}"
            )
        sizes.append((n - 1) * s - p - q + d * (k - 1) + e + 1)
        pads.append((p, q) if e < s else (p, q - e))
    keywords["padding"] = tuple(pads)

    def run(x: torch.Tensor) -> torch.Tensor:
        shape = (x.shape[0], w.shape[1] * groups, *sizes)
        y = call("conv_grad_input", x, w, input_shape=shape, layout=layout_of(x, w), **keywords)
        return add_bias(y, b)

    result: torch.Tensor = unbatched(run, x, rank)
    return result


def _pool_keywords(
    op: str, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> dict[str, Any]:
    window = each(op, "kernel_size", kernel_size, rank)
    strides = window if stride is None or stride == () else each(op, "stride", stride, rank)
    pads, dilations = each(op, "padding", padding, rank), each(op, "dilation", dilation, rank)
    if any(p < 0 or 2 * p > (k - 1) * d + 1 for p, k, d in zip(pads, window, dilations, strict=True)):
        raise ValueError(f"{op}: padding is {padding!r}; it can be at most half of the window {kernel_size!r}")
    return {
        "window": window, "stride": strides, "padding": tuple((p, p) for p in pads), "dilation": dilations,
        "rounding": "ceil" if ceil_mode else "floor",
    }  # fmt: skip


def _max_pool(
    rank: int,
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    op = f"max_pool{rank}d"
    check(op, rank, input=input)
    keywords = remember(
        _pool_keywords, op, rank, hashable(kernel_size), hashable(stride), hashable(padding), hashable(dilation), ceil_mode
    )  # fmt: skip

    def run(x: torch.Tensor) -> Any:
        values, winners = call("max_pool", x, layout=layout_of(x), **keywords)
        return (values, indices_of(winners, x.shape[2:], keywords)) if return_indices else values

    return unbatched(run, input, rank)


def _avg_pool(
    rank: int,
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor:
    op = f"avg_pool{rank}d"
    check(op, rank, input=input)
    if divisor_override is not None:
        raise ValueError(f"{op}: divisor_override is not supported; scale the result, or use torch.nn.functional.{op}")
    keywords = remember(_pool_keywords, op, rank, hashable(kernel_size), hashable(stride), hashable(padding), 1, ceil_mode)

    def run(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = call("avg_pool", x, layout=layout_of(x), count_include_pad=count_include_pad, **keywords)
        return y

    result: torch.Tensor = unbatched(run, input, rank)
    return result


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"torch.nn.functional.{name}, on our kernels."
    return function


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
        return _conv(rank, input, weight, bias, stride, padding, dilation, groups)

    return _named(conv, f"conv{rank}d")


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
        return _conv_transpose(rank, input, weight, bias, stride, padding, output_padding, groups, dilation)

    return _named(conv_transpose, f"conv_transpose{rank}d")


def _make_max_pool(rank: int) -> Callable[..., Any]:
    def max_pool(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        return _max_pool(rank, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)

    return _named(max_pool, f"max_pool{rank}d")


def _make_avg_pool(rank: int) -> Callable[..., torch.Tensor]:
    def avg_pool(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> torch.Tensor:
        return _avg_pool(rank, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return _named(avg_pool, f"avg_pool{rank}d")


conv1d, conv2d, conv3d = map(_make_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_make_conv_transpose, (1, 2, 3))
max_pool1d, max_pool2d, max_pool3d = map(_make_max_pool, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_make_avg_pool, (1, 2, 3))
