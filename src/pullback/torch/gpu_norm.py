"""Batch and layer normalization of tensors on a GPU, with what follows in the same pass; second derivatives are PyTorch's.

What pending.py puts together, these know how to make: `BatchStatistics` with an activation and a sum, `RowStatistics` in the type
that the next layer wants. What an activation lets through is found again from x in the backward pass, so that only x is kept,
and where something was added, y, which the next layer keeps as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from pullback.torch.arrays import LAST, layout_of, to_last
from pullback.torch.norm import Relu

if TYPE_CHECKING:
    from pullback.cuda.norm.plan import Channels, Rows

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MOST_COLUMNS = 8192  # of a row that one program holds
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@cache
def batch_kernels() -> Any:
    """The module, which imports Triton."""
    from pullback.cuda.norm import batch

    return batch


@cache
def row_kernels() -> Any:
    from pullback.cuda.norm import rows

    return rows


class Silu(NamedTuple):
    """x times the logistic function of it."""


class Cast(NamedTuple):
    """The result in another type."""

    dtype: torch.dtype


def fits(parameters: tuple[torch.Tensor | None, ...], size: int, x: torch.Tensor) -> torch.dtype | None:
    """The type that parameters have, one number for each channel: x's or float32; None where they do not go together."""
    dtype = x.dtype
    kinds = {tensor.dtype for tensor in parameters if tensor is not None} or {dtype}
    for tensor in parameters:
        if tensor is not None and not (
            type(tensor) in _PLAIN and tensor.device == x.device and tensor.shape == (size,) and tensor.stride() == (1,)
        ):
            return None
    found = kinds.pop()
    half = dtype in (torch.bfloat16, torch.float16)
    return found if not kinds and (found is dtype or (half and found is torch.float32)) else None


def lying(x: torch.Tensor) -> tuple[int, int, int, bool] | None:
    """(outer, channels, inner, channels_last) of x's memory; None where it has gaps."""
    if x.dim() < 2 or not x.numel():
        return None
    channels = x.shape[1]
    inner = x[0, 0].numel()
    last = x.dim() > 2 and layout_of(x) == LAST
    if inner == 1 or last:
        whole = x.permute(to_last(x.dim())).is_contiguous()
        return (x.numel() // channels, channels, 1, True) if whole else None
    return (x.shape[0], channels, inner, False) if x.is_contiguous() else None


def _lying_as(tensor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride() == x.stride() else torch.empty_like(x).copy_(tensor)


@lru_cache(4096)
def _with(what: Channels, kind: str, top: float, adds: bool) -> Channels:
    from pullback.cuda.norm.plan import Activation

    return what._replace(activation=Activation(kind, top), adds=adds)


class BatchStatistics(NamedTuple):
    """What channels are normalized by."""

    what: Channels
    found: torch.Tensor  # rows of mean, variance, inverse deviation, shift

    def takes(self, how: Any, adds: bool) -> bool:
        """Whether this, with a sum before it or without one, can be in the same pass."""
        return how is None or type(how) is Relu or (type(how) is Silu and not adds)

    def normalized(self, x: torch.Tensor, weight: Any, bias: Any, add: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = batch_kernels().normalize(self._kind(None, add is not None), x, self.found, weight, add)
        return y

    def fused(self, x: torch.Tensor, weight: Any, bias: Any, how: Any, add: torch.Tensor | None) -> torch.Tensor:
        return _apply_batch(self, how, x, weight, bias, add)

    def like(self, x: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
        return x.stride(), x.dtype

    def function(self) -> Any:
        return GpuBatchNorm

    def remember(self, ctx: Any, x: torch.Tensor, weight: Any, bias: Any) -> None:
        ctx.by, ctx.how, ctx.adds, ctx.bias = self, None, False, bias
        ctx.save_for_backward(x, weight, None)

    def _kind(self, how: Any, adds: bool) -> Channels:
        if type(how) is Relu:
            return _with(self.what, "relu", how.top or 0.0, adds)
        return _with(self.what, "" if how is None else "silu", 0.0, adds)


class GpuBatchNorm(torch.autograd.Function):
    """activation(normalized x + add)."""

    @staticmethod
    def forward(
        ctx: Any, by: BatchStatistics, how: Any, x: torch.Tensor, weight: Any, bias: Any, add: torch.Tensor | None
    ) -> torch.Tensor:
        by.remember(ctx, x, weight, bias)
        ctx.how, ctx.adds = how, add is not None
        ctx.set_materialize_grads(False)
        y: torch.Tensor = batch_kernels().normalize(
            by._kind(how, ctx.adds), x, by.found, weight, None if add is None else _lying_as(add, x)
        )
        if how is not None and ctx.adds:
            ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None) -> Any:
        if g is None:
            return (None,) * 6
        (x, weight, y), by = ctx.saved_tensors, ctx.by
        wants = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # somebody wants derivatives of this
            return None, None, *_theirs(ctx, g, x, weight, y)
        what = by._kind(ctx.how, y is not None)
        dx, sums, masked = batch_kernels().gradients(what, _lying_as(g, x), x, y, by.found, weight, wants[0])
        dtype = by.what.of_channels
        return (
            None, None, dx, sums[1].to(dtype) if wants[1] else None, sums[0].to(dtype) if wants[2] else None,
            masked if wants[3] else None,
        )  # fmt: skip


def _theirs(ctx: Any, g: torch.Tensor, x: torch.Tensor, weight: Any, y: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The same by PyTorch's ops, which have derivatives."""
    by, how = ctx.by, ctx.how
    mean, variance = by.found[0], by.found[1]
    running = (None, None) if by.what.batch else (mean, variance)
    wanted = [tensor for tensor, wants in zip((x, weight, ctx.bias), ctx.needs_input_grad[2:5], strict=True) if wants]
    with torch.enable_grad():
        z = functional.batch_norm(x, *running, weight, ctx.bias, by.what.batch, 0.0, by.what.eps)
        if type(how) is Silu:
            z = functional.silu(z)
        elif how is not None:
            seen = (z if y is None else y).detach()
            g = torch.where((seen > 0) & (seen < (how.top or torch.inf)), g, 0.0)
        found = iter(torch.autograd.grad(z, wanted, g, create_graph=True) if wanted else ())
    return (*(next(found) if wants else None for wants in ctx.needs_input_grad[2:5]), g if ctx.needs_input_grad[5] else None)


class RowStatistics(NamedTuple):
    """What rows are normalized by: they are found in the pass that normalizes."""

    what: Rows

    def takes(self, how: Any, adds: bool) -> bool:
        return type(how) is Cast and not adds

    def normalized(self, x: torch.Tensor, weight: Any, bias: Any, add: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = row_kernels().normalize(self.what, x, weight, bias)[0]
        return y if add is None else y + add

    def fused(self, x: torch.Tensor, weight: Any, bias: Any, how: Any, add: None) -> torch.Tensor:
        what = self.what if how is None else self.what._replace(out=how.dtype)
        return _apply_rows(RowStatistics(what), how, x, weight, bias, None)

    def like(self, x: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
        return x.stride(), self.what.out

    def function(self) -> Any:
        return GpuLayerNorm

    def remember(self, ctx: Any, x: torch.Tensor, weight: Any, bias: Any) -> None:
        ctx.by, ctx.bias, ctx.kept = self, bias, None
        ctx.save_for_backward(x, weight)


class GpuLayerNorm(torch.autograd.Function):
    """Rows of x normalized, in the type that `by` says."""

    @staticmethod
    def forward(ctx: Any, by: RowStatistics, how: Any, x: torch.Tensor, weight: Any, bias: Any, add: None) -> torch.Tensor:
        by.remember(ctx, x, weight, bias)
        ctx.set_materialize_grads(False)
        y: torch.Tensor
        y, ctx.kept = row_kernels().normalize(by.what, x, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None) -> Any:
        if g is None:
            return (None,) * 6
        (x, weight), what, wants = ctx.saved_tensors, ctx.by.what, ctx.needs_input_grad[2:5]
        if torch.is_grad_enabled():
            return None, None, *_theirs_of_rows(ctx, g, x, weight), None
        kept = ctx.kept
        if kept is None:  # the result was made elsewhere
            kept = row_kernels().normalize(what, x, weight, ctx.bias)[1]
        what = what._replace(sums=wants[1] or wants[2])
        dx, sums = row_kernels().gradients(what, g.contiguous(), x, kept, weight)
        dtype = what.of_columns
        dweight, dbias = (sums[1].to(dtype), sums[0].to(dtype)) if sums is not None else (None, None)
        return None, None, dx if wants[0] else None, dweight if wants[1] else None, dbias if wants[2] else None, None


def _theirs_of_rows(ctx: Any, g: torch.Tensor, x: torch.Tensor, weight: Any) -> tuple[torch.Tensor | None, ...]:
    """The same by PyTorch's ops, which have derivatives."""
    what, wants = ctx.by.what, ctx.needs_input_grad[2:5]
    wanted = [tensor for tensor, want in zip((x, weight, ctx.bias), wants, strict=True) if want]
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        wide = torch.promote_types(x.dtype, what.of_columns)
        parts = [None if part is None else part.to(wide) for part in (weight, ctx.bias)]
        y = functional.layer_norm(x.to(wide), (what.columns,), *parts, what.eps).to(what.out)
        found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
    return tuple(next(found) if want else None for want in wants)


# PyTorch's C functions: what `apply` does after it has looked for tensors of torch.func, which is_plain has ruled out.
_apply_batch: Callable[..., torch.Tensor] = super(torch.autograd.Function, GpuBatchNorm).apply
_apply_rows: Callable[..., torch.Tensor] = super(torch.autograd.Function, GpuLayerNorm).apply
