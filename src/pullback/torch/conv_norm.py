"""A convolution, the batch normalization after it and its ReLU as one node of autograd, each pass of which is one native call.

In small networks most of the time between kernels goes to Python: three layers are three modules and three nodes. Where a
`nn.Sequential` calls them one after the other (chains.py), nobody else can see what lies between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.sequence import OUT, A, B, JobSequence, Step, Steps, Where
from pullback.cpu.engine.words import float_word
from pullback.cpu.norm.layout import Shape, top_word
from pullback.torch import kernels
from pullback.torch.autograd import is_plain
from pullback.torch.conv_calls import ConvCall
from pullback.torch.mixed import FILTER, FORWARD, INPUT, torch_arguments
from pullback.torch.norm import (
    Lying,
    Relu,
    Statistics,
    gradient_steps,
    masked_by,
    normalize_steps,
    normalized,
    scale_of,
    shift_of,
    statistics_steps,
)

Way = frozenset[str]  # the ops of the convolution that are ours
FORWARD_NAMES = ("x", "filter", "made", "numbers", "running_mean", "running_variance", "eps", "momentum", "scale", "bias", "y",
                 "relu", "top")  # fmt: skip
BACKWARD_NAMES = ("dy", "made", "numbers", "scale", "top", "bias", "sums", "dmade", "count", "x", "filter", "dx", "df")


def _renamed(steps: Steps, names: Mapping[str, str]) -> tuple[Step, ...]:
    """The steps of an op with other names for its arrays."""

    def name(where: Where) -> Where:
        return names.get(where, where) if isinstance(where, str) else (names.get(where[0], where[0]), where[1])

    return tuple(Step(plan, {field: name(where) for field, where in at.items()}) for plan, at in steps.steps)


@planned
def _norm_jobs(shape: Shape) -> JobSequence:
    """Statistics and normalization of what another has made."""
    parts = statistics_steps(shape, "made"), normalize_steps(shape, "made")
    return _joined(FORWARD_NAMES, *parts)


def _joined(names: tuple[str, ...], *parts: Steps) -> JobSequence:
    """One after the other, in the same working memory: none reads what another has left there."""
    return JobSequence([step for part in parts for step in part.steps], names, max(part.work_bytes for part in parts))


class ConvNorm:
    """Calls of one kind: a convolution's, and how its result lies for the normalization."""

    def __init__(self, call: ConvCall, how: Lying, relu: Relu | None) -> None:
        self.call, self.how, self.relu = call, how, relu
        self.forward_jobs: JobSequence | None = None
        steps = call.forward.steps
        if steps is not None:
            conv = Steps(_renamed(steps, {A: "x", B: "filter", OUT: "made"}), steps.work_bytes)
            norm = statistics_steps(how.shape, "made"), normalize_steps(how.shape, "made")
            self.forward_jobs = _joined(FORWARD_NAMES, conv, *norm)
        self._backward: dict[tuple[bool, bool], JobSequence] = {}

    def backward_jobs(self, dx: bool, df: bool) -> JobSequence:
        """The gradient of the normalization, and those of the convolution that are wanted of our kernels."""
        found = self._backward.get((dx, df))
        if found is None:
            parts = [gradient_steps(self.how.shape, "made", "dmade")]
            gradients = (
                (dx, self.call.input_gradient, {A: "dmade", B: "filter", OUT: "dx"}),
                (df, self.call.filter_gradient, {A: "dmade", B: "x", OUT: "df"}),
            )
            for wanted, op, names in gradients:
                if wanted and op.steps is not None:
                    parts.append(Steps(_renamed(op.steps, names), op.steps.work_bytes))
            found = self._backward[dx, df] = _joined(BACKWARD_NAMES, *parts)
        return found

    def normalized(
        self, way: Way, x: torch.Tensor, filter: torch.Tensor, numbers: torch.Tensor, addresses: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(result of the convolution, result). addresses: of running statistics, numbers, scale and bias."""
        made_form, relu = self.call.forward.made, self.relu
        made, made_at = made_form.new()
        y, y_at = made_form.new()
        rest = numbers.data_ptr(), *addresses, y_at, int(relu is not None), top_word(relu and relu.top)
        ours, jobs = FORWARD in way, self.forward_jobs
        if ours and jobs is not None and jobs.run(x.data_ptr(), filter.data_ptr(), made_at, *rest):
            return made, y
        if ours:
            made = kernels.named("conv", self.call.forward.by_arrays, x, filter)
        else:
            made = kernels.listened("conv", torch.convolution, x, filter, None, *torch_arguments(self.call.keywords))
        if made.stride() != made_form.strides:
            made = made_form.lying(made)
        _norm_jobs(self.how.shape).run(0, 0, made.data_ptr(), *rest)
        return made, y


class _ConvNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of: ConvNorm, way: Way, running: tuple[torch.Tensor, torch.Tensor] | None, momentum: float, eps: float,
        x: torch.Tensor, filter: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        channels = of.how.shape.channels
        numbers = torch.empty((3, channels), dtype=x.dtype, device="cpu")
        kept = (0, 0) if running is None else (running[0].data_ptr(), running[1].data_ptr())
        shift = shift_of(bias, channels, x.dtype)
        if of.relu is not None and bias is not None:
            shift = shift.clone()  # the mask is made again of it
        words = float_word(eps), float_word(momentum), scale_of(scale, channels, x.dtype).data_ptr(), shift.data_ptr()
        made, y = of.normalized(way, x, filter, numbers, (*kept, *words))
        ctx.of, ctx.way, ctx.numbers, ctx.eps, ctx.shift = of, way, numbers, eps, shift
        *_, wants_x, wants_filter, _, _ = ctx.needs_input_grad
        goes_on = wants_x or wants_filter  # through the convolution, which derivatives of derivatives make again
        ctx.save_for_backward(x if goes_on else None, filter if goes_on else None, scale, made)
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None) -> Any:
        nothing = (None,) * 5
        if g is None:
            return (*nothing, None, None, None, None)
        call = ctx.of.call
        if torch.is_grad_enabled() or not is_plain((g,)) or g.dtype is not call.dtype or not call.is_selected():
            return (*nothing, *_again(ctx, g))
        return (*nothing, *kernels.named("conv_norm_grad", _gradients, ctx, g))


_apply = super(torch.autograd.Function, _ConvNorm).apply


def conv_norm(of: ConvNorm, way: Way, *arguments: Any) -> torch.Tensor:
    """relu(normalized convolution) in training, with derivatives. arguments: as _ConvNorm.forward has them."""
    y: torch.Tensor = kernels.named("conv_norm", _apply, of, way, *arguments)
    return y


def _gradients(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """(dx, dfilter, dscale, dbias); None for those that nobody wants."""
    x, weight, scale, made = ctx.saved_tensors
    of, way, numbers = ctx.of, ctx.way, ctx.numbers
    *_, wants_x, wants_filter, wants_scale, wants_bias = ctx.needs_input_grad
    call, channels, made_form = of.call, of.how.shape.channels, of.call.forward.made
    dy = g if g.stride() == made_form.strides else made_form.lying(g)
    sums = torch.empty((2, channels), dtype=made.dtype, device="cpu")
    dmade, dmade_at = made_form.new()
    dx = df = None
    dx_at = df_at = 0
    dx_ours, df_ours = wants_x and INPUT in way, wants_filter and FILTER in way
    if dx_ours:
        dx, dx_at = call.input_gradient.made.new()
    if df_ours:
        df, df_at = call.filter_gradient.made.new()
    relu = of.relu
    top, shift = (0, 0) if relu is None else (top_word(relu.top), ctx.shift.data_ptr())
    fine = of.backward_jobs(dx_ours, df_ours).run(
        dy.data_ptr(), made.data_ptr(), numbers.data_ptr(), scale_of(scale, channels, made.dtype).data_ptr(), top, shift,
        sums.data_ptr(), dmade_at, float_word(of.how.shape.terms), 0 if x is None else x.data_ptr(),
        0 if weight is None else weight.data_ptr(), dx_at, df_at,
    )  # fmt: skip
    if dx_ours and not (fine and call.input_gradient.steps is not None):
        dx = kernels.named("conv_grad_input", call.input_gradient.by_arrays, dmade, weight)
    if df_ours and not (fine and call.filter_gradient.steps is not None):
        df = kernels.named("conv_grad_filter", call.filter_gradient.by_arrays, dmade, x)
    left = (wants_x and not dx_ours, wants_filter and not df_ours, False)
    if any(left):
        theirs = torch.ops.aten.convolution_backward(
            dmade, x, weight, None, *torch_arguments(call.keywords), list(left)
        )  # fmt: skip
        dx, df = (theirs[i] if left[i] else mine for i, mine in enumerate((dx, df)))
    return dx, df, sums[1] if wants_scale else None, sums[0] if wants_bias else None


def _again(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The same by PyTorch's ops, which have derivatives and work on batches of gradients."""
    x, weight, scale, made = ctx.saved_tensors
    of, arguments = ctx.of, torch_arguments(ctx.of.call.keywords)
    *_, wants_x, wants_filter, wants_scale, wants_bias = ctx.needs_input_grad
    relu = of.relu
    mean, _, inv_std = ctx.numbers.unbind()
    if relu is not None:
        y = normalized(made.detach(), Statistics(ctx.numbers, ctx.eps, True), scale, ctx.shift, None).detach()
        g = masked_by(y, relu, g)
    if torch.is_grad_enabled() and x is not None:  # derivatives go on to what the convolution was made of
        made = torch.convolution(x, weight, None, *arguments)
    norm = [wants_x or wants_filter, wants_scale, wants_bias]
    found = torch.ops.aten.native_batch_norm_backward(g, made, scale, None, None, mean, inv_std, True, ctx.eps, norm)
    dmade, dscale, dbias = (part if wants else None for part, wants in zip(found, norm, strict=True))
    dx = df = None
    if dmade is not None:
        masks = [wants_x, wants_filter, False]
        dx, df, _ = torch.ops.aten.convolution_backward(dmade, x, weight, None, *arguments, masks)
    return dx if wants_x else None, df if wants_filter else None, dscale, dbias
