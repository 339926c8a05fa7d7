"""A convolution, transposed or not, of which each op (forward, input gradient, filter gradient) is our kernel or PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from pullback.torch import kernels
from pullback.torch.arrays import LAST
from pullback.torch.autograd import OPS, Differentiable, is_plain
from pullback.torch.conv_calls import ConvCall
from pullback.torch.kernels import RULES
from pullback.torch.measuring import NONE, Turn

FORWARD, INPUT, FILTER = MIXED_OPS = ("forward", "input gradient", "filter gradient")  # the bias's gradient is the filter's
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
Way = frozenset[str] | Turn  # the ops that are ours; or a turn, in which all are or none


def torch_can(keywords: Mapping[str, Any]) -> bool:
    """Whether PyTorch has this convolution: it pads both ends of an axis alike."""
    return all(low == high for low, high in keywords["padding"])


def add_bias(y: torch.Tensor, bias: torch.Tensor | None, in_place: bool) -> torch.Tensor:
    if bias is None:
        return y
    shaped = bias.view(-1, *(1,) * (y.dim() - 2))
    # bfloat16 results are views of their bits.
    return y.add_(shaped) if in_place and y.dtype != torch.bfloat16 else y + shaped


def torch_arguments(keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    """What PyTorch's convolution is called with beside its tensors."""
    stride, extra = keywords["stride"], keywords.get("output_padding")
    pads = [low for low, _ in keywords["padding"]]
    return stride, pads, keywords["dilation"], extra is not None, extra or [0] * len(stride), keywords["groups"]


def _blank(like: torch.Tensor, shape: Sequence[int], layout: str) -> torch.Tensor:
    """A tensor that PyTorch asks only about its shape and memory format."""
    form = FORMATS.get(len(shape), torch.contiguous_format) if layout == LAST else torch.contiguous_format
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=form)


def _forward(
    ours: bool, call: ConvCall | None, op: str, keywords: Mapping[str, Any], x: torch.Tensor, filter: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    if ours:
        y = kernels.run(op, (x, filter), keywords) if call is None else kernels.named(op, call.forward, x, filter)
        return y if bias is None else add_bias(y, bias, in_place=True)
    theirs: torch.Tensor = kernels.listened(op, torch.convolution, x, filter, bias, *torch_arguments(keywords))
    return theirs


def _theirs(ctx: Any, g: torch.Tensor, x: Any, weight: Any, needs: Sequence[bool]) -> Any:
    """PyTorch's gradients of these: input, filter, bias. What it does not read may be missing."""
    shapes, layout = ctx.shapes, ctx.keywords["layout"]
    x = _blank(g, shapes[0], layout) if x is None else x
    weight = _blank(g, shapes[1], layout) if weight is None else weight
    sizes = [g.shape[1]] if needs[2] else None
    op = "conv_grad_input" if needs[0] else "conv_grad_filter"
    return kernels.listened(
        op, torch.ops.aten.convolution_backward, g, x, weight, sizes, *torch_arguments(ctx.keywords), list(needs)
    )  # fmt: skip


def _is_settled(ctx: Any, g: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a gradient is a call of the kind that was settled: numbers alone, without derivatives of their own.

    other: what was saved of the forward, which hooks may have unpacked otherwise.
    """
    call = ctx.call
    if call is None or torch.is_grad_enabled() or not is_plain((g, other)) or not call.is_selected():
        return False
    return g.dtype is call.dtype is other.dtype


def _input_gradient(ours: bool, ctx: Any, g: torch.Tensor, filter: Any) -> Any:
    if not ours:
        return _theirs(ctx, g, None, filter, (True, False, False))[0]
    if _is_settled(ctx, g, filter) and ctx.call.takes(filter):
        return kernels.named("conv_grad_input", ctx.call.input_gradient, g, filter)
    return RULES[ctx.op].vjp["x"].run(OPS, {"g": g, "filter": filter, "x": _Shape(ctx.shapes[0])}, ctx.keywords)


def _filter_gradient(ours: bool, ctx: Any, g: torch.Tensor, x: Any) -> tuple[Any, Any]:
    """The filter's and the bias's."""
    _, needs_filter, needs_bias = ctx.needs
    if needs_filter and not ours:
        _, dw, db = _theirs(ctx, g, x, None, (False, True, needs_bias))
        return dw, db
    dw = None
    if needs_filter and _is_settled(ctx, g, x):
        dw = kernels.named("conv_grad_filter", ctx.call.gradient_of_filter, g, x)
    elif needs_filter:
        dw = RULES[ctx.op].vjp["filter"].run(OPS, {"g": g, "x": x, "filter": _Shape(ctx.shapes[1])}, ctx.keywords)
    return dw, g.sum((0, *range(2, g.dim()))) if needs_bias else None


class _Shape:
    """A stand-in for a tensor of which a rule asks the shape."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape


def _runs(way: Way, op: str) -> tuple[Callable[..., Any], bool]:
    """How an op's function is called, and whether with our kernel."""
    return (partial(way.timed, op), way.ours) if isinstance(way, Turn) else (_called, op in way)


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class _Mixed(Differentiable):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, way: Way, settled: ConvCall | None, op: str, keywords: Mapping[str, Any], *tensors: Any
    ) -> Any:
        call, ours = _runs(way, FORWARD)
        y = call(_forward, ours, settled, op, keywords, *tensors)
        ctx.set_materialize_grads(False)
        ctx.way, ctx.call, ctx.op, ctx.keywords = way, settled, op, keywords
        x, weight, _ = tensors
        ctx.shapes, ctx.needs = (x.shape, weight.shape), ctx.needs_input_grad[4:]
        needs_input, needs_filter, _ = ctx.needs
        ctx.save_for_backward(x if needs_filter else None, weight if needs_input else None)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None, *_: Any) -> Any:
        if g is None:
            return (None,) * 7
        x, weight = ctx.saved_tensors
        way, (needs_input, needs_filter, needs_bias) = ctx.way, ctx.needs
        if way == NONE and needs_input and needs_filter:
            return None, None, None, None, *_theirs(ctx, g, x, weight, ctx.needs)
        dx = dw = db = None
        if needs_input:
            call, ours = _runs(way, INPUT)
            dx = call(_input_gradient, ours, ctx, g, weight)
        if needs_filter or needs_bias:
            call, ours = _runs(way, FILTER)
            dw, db = call(_filter_gradient, ours, ctx, g, x)
        return None, None, None, None, dx, dw, db


_apply = super(torch.autograd.Function, _Mixed).apply


def mixed_conv(
    way: Way, call: ConvCall | None, op: str, keywords: Mapping[str, Any], x: torch.Tensor, filter: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """A convolution ("conv" or "conv_transpose") of plain tensors, with derivatives where they are wanted.

    call: with these tensors' kind settled, else None.
    """
    if torch.is_grad_enabled() and (x.requires_grad or filter.requires_grad or (bias is not None and bias.requires_grad)):
        result: torch.Tensor = _apply(way, call, op, keywords, x, filter, bias)
        return result
    timed, ours = _runs(way, FORWARD)
    y: torch.Tensor = timed(_forward, ours, call, op, keywords, x, filter, bias)
    return y


def mixed_ops(x: torch.Tensor, filter: torch.Tensor, bias: torch.Tensor | None) -> tuple[str, ...]:
    """The ops that a step with these takes."""
    if not torch.is_grad_enabled():
        return MIXED_OPS[:1]
    needs = (True, x.requires_grad, filter.requires_grad or (bias is not None and bias.requires_grad))
    return tuple(op for op, needed in zip(MIXED_OPS, needs, strict=True) if needed)
