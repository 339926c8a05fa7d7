"""Batch normalization of tensors on our kernels, with a ReLU and a sum in the same pass; derivatives of derivatives are PyTorch's.

What a ReLU lets through is found again from x in the backward pass, so that its result need not be kept or read for that; only
where something was added to x's normalization, the result itself is kept. Kernels are run on addresses: a network has many small
layers of this kind, and what a call costs in Python shows.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from pullback.cpu.engine.dense import Order, order_in
from pullback.cpu.engine.memory import SMALLEST, new_array
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sequence import WORK, JobSequence, Step, Steps, Where
from pullback.cpu.engine.words import float_word
from pullback.cpu.norm.gradient import apply_plan, gradient_plans
from pullback.cpu.norm.layout import Shape, shape_of, top_word
from pullback.cpu.norm.normalize import normalize_plan
from pullback.cpu.norm.statistics import statistics_plans
from pullback.torch.arrays import NUMPY
from pullback.torch.autograd import is_plain
from pullback.torch.kernels import NAMESPACE

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Lying(NamedTuple):
    """How a tensor lies in memory: as kernels see it, and as a result of the same form is made."""

    shape: Shape
    order: Order


@lru_cache(maxsize=4096)
def _lying(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Lying | None:
    known = NUMPY[dtype]
    order = order_in(size, tuple(known.itemsize * step for step in strides), known.itemsize)
    return None if order is None else Lying(shape_of(order, size[1], known), order)


def lying(x: torch.Tensor) -> Lying | None:
    """None where there are gaps, or elements that are met twice."""
    return _lying(x.shape, x.stride(), x.dtype)


def _like(x: torch.Tensor, how: Lying) -> torch.Tensor:
    """Memory for a result that lies as x does; large ones are recycled."""
    if how.shape.nbytes < SMALLEST:
        return torch.empty_like(x)
    memory = new_array(how.order.memory_shape, how.shape.dtype)
    return torch.from_numpy(memory if how.order.back is None else memory.transpose(how.order.back))


def lying_as(tensor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The tensor in x's memory order; PyTorch copies with several threads."""
    return tensor if tensor.stride() == x.stride() else torch.empty_like(x).copy_(tensor)


@cache
def _constant(value: float, channels: int, dtype: torch.dtype) -> torch.Tensor:
    """Scales and biases where there are none; never written to."""
    return torch.full((channels,), value, dtype=dtype, device="cpu")


def scale_of(weight: torch.Tensor | None, channels: int, dtype: torch.dtype) -> torch.Tensor:
    return _constant(1.0, channels, dtype) if weight is None else weight


def shift_of(bias: torch.Tensor | None, channels: int, dtype: torch.dtype) -> torch.Tensor:
    return _constant(0.0, channels, dtype) if bias is None else bias.detach()


def _scale(weight: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    return scale_of(weight, x.shape[1], x.dtype)


def _shift(bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    return shift_of(bias, x.shape[1], x.dtype)


def fits(parameters: tuple[torch.Tensor | None, ...], x: torch.Tensor) -> bool:
    """Whether parameters and buffers are plain, and one number of x's dtype for each channel."""
    return fits_channels(parameters, x.shape[1:2], x.dtype)


def fits_channels(
    parameters: tuple[torch.Tensor | None, ...], channels: tuple[int, ...], dtype: torch.dtype
) -> bool:  # fmt: skip
    for tensor in parameters:
        if tensor is not None and not (
            type(tensor) in _PLAIN
            and tensor.dtype is dtype
            and tensor.shape == channels
            and tensor.is_cpu
            and tensor.stride() == (1,)
        ):
            return False
    return True


class Statistics(NamedTuple):
    """What channels are normalized by; training: whether that depends on x."""

    numbers: torch.Tensor  # three rows: mean, variance, 1 / sqrt(variance + eps)
    eps: float
    training: bool

    # What pending.py asks of statistics, whatever device they are on.

    def takes(self, how: Any, adds: bool) -> bool:
        """Whether this, with a sum before it or without one, can be in the same pass."""
        return how is None or type(how) is Relu

    def normalized(self, x: torch.Tensor, weight: Any, bias: Any, add: torch.Tensor | None) -> torch.Tensor:
        return normalized(x, self, weight, bias, add)

    def fused(self, x: torch.Tensor, weight: Any, bias: Any, how: Any, add: torch.Tensor | None) -> torch.Tensor:
        return batch_norm(x, self, weight, bias, how, add)

    def like(self, x: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
        """Strides and type of the result."""
        return x.stride(), x.dtype

    def function(self) -> Any:
        return BatchNorm

    def remember(self, ctx: Any, x: torch.Tensor, weight: Any, bias: Any) -> None:
        """What the backward pass of the normalization alone wants."""
        ctx.by, ctx.relu, ctx.shift, ctx.how = self, None, None, lying(x)
        ctx.save_for_backward(x, weight, None)


def statistics(
    x: torch.Tensor, running: tuple[torch.Tensor, torch.Tensor] | None, training: bool, momentum: float, eps: float
) -> Statistics:  # fmt: skip
    """The batch's own statistics, which move the running ones; or those that run."""
    numbers = torch.empty((3, x.shape[1]), dtype=x.dtype, device="cpu")
    if not training:
        assert running is not None
        mean, variance, inv_std = numbers.unbind()
        mean.copy_(running[0])
        variance.copy_(running[1])
        inv_std.copy_((variance.double() + eps).rsqrt_())
        return Statistics(numbers, eps, False)
    how = lying(x)
    assert how is not None
    kept = (0, 0) if running is None else (running[0].data_ptr(), running[1].data_ptr())
    _statistics_jobs(how.shape).run(x.data_ptr(), numbers.data_ptr(), *kept, float_word(eps), float_word(momentum))
    return Statistics(numbers, eps, True)


def _rows(shape: Shape) -> dict[str, Where]:
    """Where means and inverse deviations lie among the numbers of `Statistics`."""
    return {"mean": ("numbers", 0), "inv_std": ("numbers", 2 * shape.channels * shape.dtype.itemsize)}


def statistics_steps(shape: Shape, x: str = "x") -> Steps:
    """x: what it is called."""
    plans, row = statistics_plans(shape), shape.channels * shape.dtype.itemsize
    kept = {name: name for name in ("running_mean", "running_variance", "eps", "momentum")}
    merge = Step(plans.merge, {"partials": WORK, **_rows(shape), "variance": ("numbers", row), **kept})
    return Steps((Step(plans.partial, {"x": x, "partials": WORK}), merge), plans.numbers * shape.dtype.itemsize)


def normalize_steps(shape: Shape, x: str = "x", *, adds: bool = False) -> Steps:
    names = ("scale", "bias", "y", "relu", "top", *(("add",) if adds else ()))
    at = {"x": x, **{name: name for name in names}, **_rows(shape)}
    return Steps((Step(normalize_plan(shape, 3 if adds else 2), at),), 0)


def gradient_steps(shape: Shape, x: str = "x", dx: str | None = "dx", *, adds: bool = False) -> Steps:
    """The sums of a gradient, and then dx, where it is called anything. adds: something was added before the ReLU.

    Then the result of the ReLU is read, and dy as it is masked is kept, from which dx is made.
    """
    plans, row = gradient_plans(shape), shape.channels * shape.dtype.itemsize
    masks = ("y", "bias", "masked") if adds else ("bias",)
    of_sums: dict[str, Where] = {"sum_dy": ("sums", 0), "sum_dy_xhat": ("sums", row)}
    seen: dict[str, Where] = {"x": x, "scale": "scale", "top": "top", **_rows(shape)}
    at: dict[str, Where] = {"dy": "dy", **seen, **{name: name for name in masks}, "partials": WORK}
    steps = [
        Step(plans.partial, at),
        Step(plans.merge, {"partials": WORK, "inv_std": _rows(shape)["inv_std"], **of_sums}),
    ]
    if dx is not None:
        applied = {name: f"applied_{name}" for name in ("dy", "y", "bias")} if adds else {"dy": "dy", "bias": "bias"}
        steps.append(Step(apply_plan(shape), {**seen, **of_sums, **applied, "dx": dx, "count": "count"}))
    return Steps(tuple(steps), plans.numbers * shape.dtype.itemsize)


@planned
def _statistics_jobs(shape: Shape) -> JobSequence:
    steps = statistics_steps(shape)
    return JobSequence(
        steps.steps, ("x", "numbers", "running_mean", "running_variance", "eps", "momentum"), steps.work_bytes
    )  # fmt: skip


@planned
def _normalize_jobs(shape: Shape, adds: bool) -> JobSequence:
    names = ("x", "numbers", "scale", "bias", "add", "y", "relu", "top")
    return JobSequence(normalize_steps(shape, adds=adds).steps, names)


@planned
def _gradient_jobs(shape: Shape, applied: bool) -> JobSequence:
    """The sums of a gradient; and then dx, from a dy and what masks it."""
    steps = gradient_steps(shape, dx="dx" if applied else None, adds=True)
    names = (
        "dy", "x", "numbers", "scale", "top", "y", "bias", "masked", "sums", "applied_dy", "applied_y", "applied_bias", "dx",
        "count",
    )  # fmt: skip
    return JobSequence(steps.steps, names if applied else names[:9], steps.work_bytes)


class Relu(NamedTuple):
    """A ReLU that ends at `top`, or does not."""

    top: float | None


def _normalize(
    x: torch.Tensor, how: Lying, by: Statistics, scale: torch.Tensor, shift: torch.Tensor, relu: Relu | None = None,
    add: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    y = _like(x, how)
    _normalize_jobs(how.shape, add is not None).run(
        x.data_ptr(), by.numbers.data_ptr(), scale.data_ptr(), shift.data_ptr(), 0 if add is None else add.data_ptr(),
        y.data_ptr(), int(relu is not None), top_word(relu and relu.top),
    )  # fmt: skip
    return y


def normalized(
    x: torch.Tensor, by: Statistics, weight: torch.Tensor | None, bias: torch.Tensor | None, add: torch.Tensor | None
) -> torch.Tensor:
    """The numbers alone."""
    how = lying(x)
    assert how is not None
    return _normalize(x, how, by, _scale(weight, x), _shift(bias, x), None, None if add is None else lying_as(add, x))


def masked_by(y: torch.Tensor, relu: Relu, g: torch.Tensor) -> torch.Tensor:
    """The gradient of a ReLU with this result or input; as in PyTorch, it passes a NaN."""
    ends = y <= 0
    return torch.where(ends if relu.top is None else ends | (y >= relu.top), 0.0, g)


class BatchNorm(torch.autograd.Function):
    """relu(normalized x + add), without a ReLU where `relu` is None; `add` may be None, too."""

    @staticmethod
    def forward(
        ctx: Any, by: Statistics, relu: Relu | None, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
        add: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        how = lying(x)
        assert how is not None
        shift = _shift(bias, x)
        if relu is not None and bias is not None:
            shift = shift.clone()  # the mask is made again of it
        y = _normalize(x, how, by, _scale(weight, x), shift, relu, None if add is None else lying_as(add, x))
        ctx.by, ctx.relu, ctx.shift, ctx.how = by, relu, shift, how
        ctx.save_for_backward(x, weight, y if relu is not None and add is not None else None)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None) -> Any:
        x, weight, y = ctx.saved_tensors
        if g is None:
            return (None,) * 6
        if torch.is_grad_enabled() or not is_plain((g, x)):
            return None, None, *_theirs(ctx, g, x, weight, y)
        if torch.autograd._profiler_enabled():
            with torch.profiler.record_function(f"{NAMESPACE}::batch_norm_grad"):
                return None, None, *_gradients(ctx, g, x, weight, y)
        return None, None, *_gradients(ctx, g, x, weight, y)


_apply = super(torch.autograd.Function, BatchNorm).apply  # what `apply` does where nothing is transformed


def batch_norm(
    x: torch.Tensor, by: Statistics, weight: torch.Tensor | None, bias: torch.Tensor | None, relu: Relu | None = None,
    add: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """x normalized, with derivatives where they are wanted."""
    if torch.autograd._profiler_enabled():
        with torch.profiler.record_function(f"{NAMESPACE}::batch_norm"):
            return _apply(by, relu, x, weight, bias, add)
    return _apply(by, relu, x, weight, bias, add)


def _gradients(
    ctx: Any, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, y: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """(dx, dweight, dbias, dadd) on our kernels; None for those that nobody wants."""
    by, how = ctx.by, ctx.how
    _, _, wants_x, wants_weight, wants_bias, wants_add = ctx.needs_input_grad
    channels, dtype = x.shape[1], x.dtype
    dy, scale = lying_as(g, x), _scale(weight, x)
    top, shift, masked = 0, 0, None
    if ctx.relu is not None:
        top, shift = top_word(ctx.relu.top), ctx.shift.data_ptr() if y is None else 0
        if wants_add or not by.training:  # dy, once masked, is wanted itself
            masked = _like(x, how)
    sums = torch.empty((2, channels), dtype=dtype, device="cpu")
    masks = (0 if y is None else y.data_ptr(), shift)
    fields = (
        dy.data_ptr(), x.data_ptr(), by.numbers.data_ptr(), scale.data_ptr(), top, *masks,
        0 if masked is None else masked.data_ptr(), sums.data_ptr(),
    )  # fmt: skip
    dx = None
    if wants_x and by.training:
        dx = _like(x, how)
        applied = (dy.data_ptr(), *masks) if masked is None else (masked.data_ptr(), 0, 0)
        _gradient_jobs(how.shape, True).run(*fields, *applied, dx.data_ptr(), float_word(how.shape.terms))
    else:
        _gradient_jobs(how.shape, False).run(*fields)
    if masked is not None:
        dy = masked
    if wants_x and not by.training:
        nothing = torch.zeros((3, channels), dtype=dtype, device="cpu")
        nothing[2] = by.numbers[2]
        dx = _normalize(dy, how, Statistics(nothing, 0.0, False), scale, nothing[0])
    return dx, sums[1] if wants_weight else None, sums[0] if wants_bias else None, dy if wants_add else None


def _theirs(
    ctx: Any, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, y: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The same by PyTorch's ops, which have derivatives and work on batches of gradients."""
    by, relu = ctx.by, ctx.relu
    _, _, wants_x, wants_weight, wants_bias, wants_add = ctx.needs_input_grad
    if relu is not None:
        if y is None:
            y = _normalize(x, ctx.how, by, _scale(weight, x), ctx.shift)
        g = masked_by(y.detach(), relu, g)
    mean, variance, inv_std = by.numbers.unbind()
    wanted = [wants_x, wants_weight, wants_bias]
    running = (None, None) if by.training else (mean, variance)
    found = torch.ops.aten.native_batch_norm_backward(g, x, weight, *running, mean, inv_std, by.training, by.eps, wanted)
    dx, dweight, dbias = (part if wants else None for part, wants in zip(found, wanted, strict=True))
    return dx, dweight, dbias, g if wants_add else None
