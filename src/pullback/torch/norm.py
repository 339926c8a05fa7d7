"""Batch normalization of tensors on our kernels, with a ReLU and a sum in the same pass; derivatives of derivatives are PyTorch's.

What a ReLU lets through is found again from x in the backward pass, so that its result need not be kept or read for that; only
where something was added to x's normalization, the result itself is kept.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from pullback.cpu.norm import batch_norm_grad_apply, batch_norm_grad_sums, normalize, training_statistics
from pullback.rules import Array
from pullback.torch.arrays import as_array
from pullback.torch.autograd import is_plain
from pullback.torch.kernels import NAMESPACE

EAGER_ONLY = "it is taken only where PyTorch runs eagerly on plain tensors"
NEITHER_FORMAT = "it lies in none of PyTorch's memory formats"
ONE_VALUE = "it has one value for each channel, of which there is no variance"
LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


class Statistics(NamedTuple):
    """What channels are normalized by; training: whether that depends on x. variance: what is needed of it in eval mode."""

    mean: Array
    variance: Array
    inv_std: Array
    eps: float
    training: bool


class Relu(NamedTuple):
    """A ReLU that ends at `top`, or does not."""

    top: float | None


@cache
def _constant(value: float, channels: int, dtype: np.dtype[Any]) -> Array:
    """Scales and biases where there are none; never written to."""
    return np.full(channels, value, dtype)


def _scale(weight: torch.Tensor | None, x: Array) -> Array:
    return _constant(1.0, x.shape[1], x.dtype) if weight is None else as_array(weight)


def lies_well(x: torch.Tensor) -> bool:
    """Whether x fills its memory in one of the formats."""
    form = LAST_FORMATS.get(x.dim())
    return x.is_contiguous() or (form is not None and x.is_contiguous(memory_format=form))


def unsuited(x: torch.Tensor, tensors: tuple[torch.Tensor | None, ...], training: bool) -> str | None:
    """Why x with these parameters and buffers is PyTorch's; their dtypes are known to be alike."""
    given = [tensor for tensor in tensors if tensor is not None]
    if not is_plain((x, *given)) or torch.autograd.forward_ad._current_level >= 0:
        return EAGER_ONLY
    channels = x.shape[1]
    if not lies_well(x) or not all(tensor.is_contiguous() for tensor in given):
        return NEITHER_FORMAT
    if any(tensor.shape != (channels,) for tensor in given):
        return f"it has {channels} channels"  # PyTorch's own error follows
    if training and x.numel() == channels:
        return ONE_VALUE
    return None


def statistics(
    x: torch.Tensor, running: tuple[torch.Tensor, torch.Tensor] | None, training: bool, momentum: float, eps: float
) -> Statistics:  # fmt: skip
    """The batch's own statistics, which move the running ones; or those that run."""
    if training:
        moved = None if running is None else (as_array(running[0]), as_array(running[1]))
        return Statistics(*training_statistics(as_array(x), eps, moved, momentum), eps, True)
    assert running is not None
    mean, variance = as_array(running[0]).copy(), as_array(running[1]).copy()
    inv_std = 1.0 / np.sqrt(variance.astype(np.float64) + eps)
    return Statistics(mean, variance, inv_std.astype(variance.dtype), eps, False)


def lying_as(tensor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The tensor in x's memory format; PyTorch copies with several threads."""
    return tensor if tensor.stride() == x.stride() else torch.empty_like(x).copy_(tensor)


class BatchNorm(torch.autograd.Function):
    """relu(normalized x + add), without a ReLU where `relu` is None; `add` may be None, too."""

    @staticmethod
    def forward(
        ctx: Any, by: Statistics, relu: Relu | None, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
        add: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        given = as_array(x)
        scale, shift = _scale(weight, given), _constant(0.0, *_kind(given)) if bias is None else as_array(bias).copy()
        added = None if add is None else as_array(lying_as(add, x))
        made = normalize(given, by.mean, by.inv_std, scale, shift, relu is not None, added, top=relu and relu.top)
        y = torch.from_numpy(made)
        ctx.by, ctx.relu, ctx.shift = by, relu, shift
        ctx.save_for_backward(x, weight, y if relu is not None and add is not None else None)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None) -> Any:
        x, weight, y = ctx.saved_tensors
        if g is None:
            return (None,) * 6
        plain = is_plain((g, x)) and not torch.is_grad_enabled()
        return None, None, *(_gradients if plain else _theirs)(ctx, g, x, weight, y)


apply_batch_norm = super(torch.autograd.Function, BatchNorm).apply  # what `apply` does where nothing is transformed


def _kind(x: Array) -> tuple[int, np.dtype[Any]]:
    return x.shape[1], x.dtype


def _gradients(
    ctx: Any, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, y: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """(dx, dweight, dbias, dadd) on our kernels; None for those that nobody wants."""
    if torch.autograd._profiler_enabled():
        with torch.profiler.record_function(f"{NAMESPACE}::batch_norm_grad"):
            return _our_gradients(ctx, g, x, weight, y)
    return _our_gradients(ctx, g, x, weight, y)


def _our_gradients(
    ctx: Any, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, y: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    by, relu = ctx.by, ctx.relu
    wants_x, wants_weight, wants_bias, wants_add = ctx.needs_input_grad[2:]
    given, dy = as_array(x), as_array(lying_as(g, x))
    scale = _scale(weight, given)
    mask: dict[str, Any] = {}
    if relu is not None:
        mask = {"top": relu.top, **({"bias": ctx.shift} if y is None else {"y": as_array(y)})}
    dx = dadd = None
    split = wants_add or not by.training  # whether dy, once masked, is wanted itself
    sum_dy, sum_dy_xhat, *masked = batch_norm_grad_sums(
        dy, given, by.mean, by.inv_std, masked_out=split, **mask, **({"scale": scale} if "bias" in mask else {})
    )
    if masked:
        dy, mask = masked[0], {}
        dadd = torch.from_numpy(dy) if wants_add else None
    if wants_x and by.training:
        count = given.size // given.shape[1]
        dx = batch_norm_grad_apply(dy, given, scale, by.mean, by.inv_std, sum_dy, sum_dy_xhat, count, **mask)
    elif wants_x:
        nothing = _constant(0.0, *_kind(given))
        dx = normalize(dy, nothing, by.inv_std, scale, nothing)
    return (
        None if dx is None else torch.from_numpy(dx),
        torch.from_numpy(sum_dy_xhat) if wants_weight else None,
        torch.from_numpy(sum_dy) if wants_bias else None,
        dadd,
    )


def _theirs(
    ctx: Any, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, y: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The same by PyTorch's ops, which have derivatives and work on batches of gradients."""
    by, relu = ctx.by, ctx.relu
    wants_x, wants_weight, wants_bias, wants_add = ctx.needs_input_grad[2:]
    if relu is not None:
        if y is None:
            given = as_array(x)
            y = torch.from_numpy(normalize(given, by.mean, by.inv_std, _scale(weight, given), ctx.shift))
        passes = y.detach() > 0
        g = torch.where(passes if relu.top is None else passes & (y.detach() < relu.top), g, 0.0)
    mean, variance, inv_std = map(torch.from_numpy, (by.mean, by.variance, by.inv_std))
    wanted = [wants_x, wants_weight, wants_bias]
    found = torch.ops.aten.native_batch_norm_backward(
        g, x, weight, None if by.training else mean, None if by.training else variance, mean, inv_std, by.training, by.eps, wanted
    )
    dx, dweight, dbias = (part if wants else None for part, wants in zip(found, wanted, strict=True))
    return dx, dweight, dbias, g if wants_add else None


def batch_norm(
    x: torch.Tensor, by: Statistics, weight: torch.Tensor | None, bias: torch.Tensor | None, relu: Relu | None = None,
    add: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """x normalized, with derivatives where they are wanted."""
    if torch.autograd._profiler_enabled():
        with torch.profiler.record_function(f"{NAMESPACE}::batch_norm"):
            made: torch.Tensor = apply_batch_norm(by, relu, x, weight, bias, add)
            return made
    made = apply_batch_norm(by, relu, x, weight, bias, add)
    return made
