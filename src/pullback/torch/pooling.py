"""The poolings of pullback.torch.functional, the adaptive ones among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import has_torch_function_variadic

from pullback.shown import shown
from pullback.torch.adaptive import output_sizes, why_not, why_unequal, window_of
from pullback.torch.arguments import check, each, flag, integer, plain, remember, unbatched
from pullback.torch.arrays import layout_of, untraced
from pullback.torch.autograd import watched
from pullback.torch.forms import called, elsewhere, named
from pullback.torch.winners import indices_of


def _made_keywords(
    op: str, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> dict[str, Any]:
    window = each(op, "kernel_size", kernel_size, rank, 1)
    strides = window if stride is None or stride == () else each(op, "stride", stride, rank, 1)
    pads, dilations = each(op, "padding", padding, rank, 0), each(op, "dilation", dilation, rank, 1)
    if any(2 * p > (k - 1) * d + 1 for p, k, d in zip(pads, window, dilations, strict=True)):
        raise ValueError(f"{op}: padding is {shown(padding)}; it can be at most half of the window {shown(kernel_size)}")
    return {
        "window": window, "stride": strides, "padding": tuple((p, p) for p in pads), "dilation": dilations,
        "rounding": "ceil" if ceil_mode else "floor",
    }  # fmt: skip


@untraced
def pool_keywords(
    op: str, x: torch.Tensor, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> dict[str, Any]:
    """What a pooling is called with beside its tensor and its layout."""
    check(op, rank, input=x)
    if any(x.shape[axis] == 0 for axis in range(-rank - 1, 0)):
        raise ValueError(f"{op}: the input has shape {tuple(x.shape)}; only its batch can be empty")
    keywords: dict[str, Any] = remember(
        _made_keywords, op, rank, plain(op, "kernel_size", kernel_size), plain(op, "stride", stride),
        plain(op, "padding", padding), plain(op, "dilation", dilation), flag(op, "ceil_mode", ceil_mode),
    )  # fmt: skip
    return keywords


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
    keywords = pool_keywords(op, input, rank, kernel_size, stride, padding, dilation, ceil_mode)

    def run(x: torch.Tensor) -> Any:
        values, winners = called(op, "max_pool", x, layout=layout_of(x), **keywords)
        return watched(values, indices_of(winners, x.shape[2:], keywords)) if return_indices else values

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
    keywords = pool_keywords(op, input, rank, kernel_size, stride, padding, 1, ceil_mode)
    counted = flag(op, "count_include_pad", count_include_pad)
    divisor = None if divisor_override is None else integer(op, "divisor_override", divisor_override)
    if divisor == 0:
        raise ValueError(f"{op}: divisor_override is 0; give another number, or None for the number of a window's cells")

    def run(x: torch.Tensor) -> torch.Tensor:
        size = None if divisor is None else abs(divisor)
        y: torch.Tensor = called(op, "avg_pool", x, layout=layout_of(x), count_include_pad=counted, divisor=size, **keywords)
        return y if divisor is None or divisor > 0 else -y

    result: torch.Tensor = unbatched(run, input, rank)
    return result


@untraced
def _adaptive_sizes(op: str, x: torch.Tensor, rank: int, output_size: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The spatial sizes of input and output."""
    check(op, rank, input=x)
    size = tuple(x.shape[-rank:])
    outputs = output_sizes(op, size, output_size)
    refused = why_not(size, outputs)
    if refused is not None:
        raise ValueError(f"{op}: {refused}; use torch.nn.functional.{op}")
    if 0 in size:
        raise ValueError(f"{op}: the input has shape {tuple(x.shape)}; only its batch can be empty")
    return size, outputs


def _unequal_means(op: str, x: torch.Tensor, rank: int, outputs: tuple[int, ...]) -> torch.Tensor:
    def run(x: torch.Tensor) -> torch.Tensor:
        shape = (x.shape[0], x.shape[1], *outputs)
        y: torch.Tensor = called(op, "adaptive_avg_pool", x, layout=layout_of(x), output_size=shape)
        return y

    result: torch.Tensor = unbatched(run, x, rank)
    return result


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
        given = (input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        return elsewhere(max_pool, given, 1) if has_torch_function_variadic(input) else _max_pool(rank, *given)

    return named(max_pool, f"max_pool{rank}d")


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
        given = (input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return elsewhere(avg_pool, given, 1) if has_torch_function_variadic(input) else _avg_pool(rank, *given)

    return named(avg_pool, f"avg_pool{rank}d")


def _make_adaptive_max_pool(rank: int) -> Callable[..., Any]:
    def adaptive_max_pool(input: torch.Tensor, output_size: Any, return_indices: bool = False) -> Any:
        if has_torch_function_variadic(input):
            return elsewhere(adaptive_max_pool, (input, output_size, return_indices), 1)
        op = adaptive_max_pool.__name__
        size, outputs = _adaptive_sizes(op, input, rank, output_size)
        unequal = why_unequal(size, outputs)
        if unequal is not None:
            raise ValueError(f"{op}: {unequal}; use torch.nn.functional.{op}, or sizes that divide the input's {size}")
        return _max_pool(rank, input, window_of(size, outputs), None, 0, 1, False, return_indices)

    return named(adaptive_max_pool, f"adaptive_max_pool{rank}d")


def _make_adaptive_avg_pool(rank: int) -> Callable[..., torch.Tensor]:
    def adaptive_avg_pool(input: torch.Tensor, output_size: Any) -> torch.Tensor:
        if has_torch_function_variadic(input):
            return elsewhere(adaptive_avg_pool, (input, output_size), 1)
        size, outputs = _adaptive_sizes(adaptive_avg_pool.__name__, input, rank, output_size)
        if why_unequal(size, outputs) is not None:
            return _unequal_means(adaptive_avg_pool.__name__, input, rank, outputs)
        return _avg_pool(rank, input, window_of(size, outputs), None, 0, False, True, None)

    return named(adaptive_avg_pool, f"adaptive_avg_pool{rank}d")


max_pool1d, max_pool2d, max_pool3d = map(_make_max_pool, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_make_avg_pool, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_make_adaptive_max_pool, (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_make_adaptive_avg_pool, (1, 2, 3))
