"""Layers on a GPU: what a call is made of is found once for each kind of input, and then costs about as much Python as PyTorch's.

A plan holds, for each op of a layer, the problem and the kernel that runs it, or None where PyTorch's own op does. Derivatives of
derivatives go by the ops of autograd.py, which are differentiable themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from pullback.ops.explain import PREPARE
from pullback.registry import CUDA, chosen_kernel
from pullback.registry.in_force import asked_backend
from pullback.settings import during
from pullback.torch import on_gpu
from pullback.torch.arrays import LAST, filter_to_last, from_last, to_last
from pullback.torch.autograd import OPS, is_plain

aten = torch.ops.aten
ADD_BIAS = ("depthwise",)  # kernels of the forward op that take one
GPU_PLANS, MOST_PLANS = "pullback_gpu_plans", 64  # attribute of a layer that has been called on a GPU
Bound = tuple[Any, Callable[..., Any]] | None  # a problem and what runs it


class GpuPlans(dict[Any, Any]):
    """Of one layer, by kinds of input. Copies and pickles begin anew."""

    def __reduce__(self) -> Any:
        return GpuPlans, ()

    def __deepcopy__(self, memo: Any) -> GpuPlans:
        return GpuPlans()

    def keep(self, key: Any, plan: Any) -> Any:
        if len(self) >= MOST_PLANS:
            self.clear()
        self[key] = plan
        return plan


class ConvPlan(NamedTuple):
    """A convolution; `keywords` are those of the op, `arguments` PyTorch's."""

    forward: Bound
    input_gradient: Bound
    filter_gradient: Bound
    last: bool
    adds_bias: bool  # in the forward op itself
    keywords: dict[str, Any]
    arguments: tuple[Any, ...]


class PoolPlan(NamedTuple):
    """A pooling and its gradient."""

    forward: Bound
    gradient: Bound
    last: bool
    op: str
    keywords: dict[str, Any]


def ready(input: torch.Tensor) -> bool:
    """Whether PyTorch runs eagerly and without forward-mode derivatives."""
    return is_plain((input,)) and forward_ad._current_level < 0


def find(*arguments: Any) -> Any:
    """cuda.call's, which imports Triton."""
    from pullback.cuda import call

    return call.find(*arguments)


def _bound(taken: bool, op: str, *arguments: Any, **keywords: Any) -> Bound:
    return find(PREPARE[op], arguments, keywords) if taken else None


def _chosen_adds_bias(problem: Any) -> bool:
    with during(asked_backend, CUDA):
        return chosen_kernel(problem).name in ADD_BIAS


def conv_plan(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype, keywords: dict[str, Any], ours: frozenset[str]) -> ConvPlan:
    """`ours`: the ops (as mixed.py names them) that our kernels take."""
    from pullback.torch.mixed import FILTER, FORWARD, INPUT

    last = keywords["layout"] == LAST
    a, f = (torch.empty(t.shape, dtype=dtype, device="meta") for t in (x, w))
    if last:
        a, f = a.permute(to_last(a.dim())), f.permute(filter_to_last(f.dim()))
    problem: Any = find(PREPARE["conv"], (a, f), keywords)[0]
    dy = torch.empty(problem.output_shape, dtype=dtype, device="meta")
    pads = [low for low, _ in keywords["padding"]]
    rest = (list(keywords["stride"]), pads, list(keywords["dilation"]), False, [0] * len(pads), keywords["groups"])
    return ConvPlan(
        _bound(FORWARD in ours, "conv", a, f, **keywords),
        _bound(INPUT in ours, "conv_grad_input", dy, f, tuple(a.shape), **keywords),
        _bound(FILTER in ours, "conv_grad_filter", dy, a, tuple(f.shape), **keywords),
        last, FORWARD in ours and _chosen_adds_bias(problem), keywords, rest,
    )  # fmt: skip


def pool_plan(x: torch.Tensor, op: str, layout: str, keywords: dict[str, Any]) -> PoolPlan:
    a = torch.empty(x.shape, dtype=x.dtype, device="meta")
    if layout == LAST:
        a = a.permute(to_last(a.dim()))
    keywords = {**keywords, "layout": layout}
    more = {"return_winners": True} if op == "max_pool" else {}
    problem: Any
    problem, run = find(PREPARE[op], (a,), {**keywords, **more})
    dy = torch.empty(problem.output_shape, dtype=x.dtype, device="meta")
    given = [dy]
    if op == "max_pool":
        given.append(torch.empty(problem.output_shape, dtype=getattr(torch, problem.winner_dtype.name), device="meta"))
    gradient = _bound(True, on_gpu.FIRST_GRADIENT[op], *given, input_shape=tuple(a.shape), **keywords)
    return PoolPlan((problem, run), gradient, layout == LAST, op, keywords)


def _run(bound: Any, last: bool, *tensors: torch.Tensor) -> Any:
    """Activations in, activations out."""
    problem, run = bound
    if not last:
        return run(problem, *tensors)
    found = run(problem, *[tensor.permute(to_last(tensor.dim())) for tensor in tensors])
    back = from_last(tensors[0].dim())
    return tuple(part.permute(back) for part in found) if isinstance(found, tuple) else found.permute(back)


def _run_conv(bound: Any, last: bool, x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    problem, run = bound
    rank = x.dim()
    if not last:
        result: torch.Tensor = run(problem, x, w, *bias)
        return result
    y: torch.Tensor = run(problem, x.permute(to_last(rank)), w.permute(filter_to_last(rank)), *bias)
    return y.permute(from_last(rank))


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: ConvPlan, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        ctx.plan, ctx.bias = plan, None if b is None else [b.shape[0]]
        ctx.save_for_backward(x, w)
        if plan.forward is None:
            return torch.convolution(x, w, b, *plan.arguments)
        if plan.adds_bias and b is not None:
            return _run_conv(plan.forward, plan.last, x, w, b)
        y = _run_conv(plan.forward, plan.last, x, w)
        return y if b is None else y.add_(b.view(-1, *(1,) * (y.dim() - 2)))

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x, w), plan, (_, needs_x, needs_w, needs_b) = ctx.saved_tensors, ctx.plan, ctx.needs_input_grad
        if torch.is_grad_enabled():  # somebody wants derivatives of this
            dx = OPS["conv_grad_input"](g, w, input_shape=tuple(x.shape), **plan.keywords) if needs_x else None
            dw = OPS["conv_grad_filter"](g, x, filter_shape=tuple(w.shape), **plan.keywords) if needs_w else None
            return None, dx, dw, g.sum((0, *range(2, g.dim()))) if needs_b else None
        theirs = [needs_x and plan.input_gradient is None, needs_w and plan.filter_gradient is None, False]
        theirs[2] = needs_b and theirs[1]
        dx = dw = db = None
        if any(theirs):
            dx, dw, db = aten.convolution_backward(g, x, w, ctx.bias, *plan.arguments, theirs)
        if needs_x and dx is None:
            dx = _run_conv(plan.input_gradient, plan.last, g, w)
        if needs_w and dw is None:
            problem, run = plan.filter_gradient
            dw = run(problem, *[t.permute(to_last(t.dim())) for t in (g, x)]) if plan.last else run(problem, g, x)
            if plan.last:
                dw = dw.permute(dw.dim() - 1, dw.dim() - 2, *range(dw.dim() - 2))
        if needs_b and db is None:
            db = g.sum((0, *range(2, g.dim())))
        return None, dx, dw, db


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: PoolPlan, x: torch.Tensor) -> torch.Tensor:
        ctx.plan, ctx.shape = plan, x.shape
        found = _run(plan.forward, plan.last, x)
        if plan.op == "max_pool":
            found, winners = found
            ctx.save_for_backward(winners)
        result: torch.Tensor = found
        return result

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        plan = ctx.plan
        if torch.is_grad_enabled():
            op = on_gpu.FIRST_GRADIENT[plan.op]
            return None, OPS[op](g, *ctx.saved_tensors, input_shape=tuple(ctx.shape), **plan.keywords)
        return None, _run(plan.gradient, plan.last, g, *ctx.saved_tensors)


def conv(plan: ConvPlan, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
    return _apply_conv(plan, x, w, b)


def pool(plan: PoolPlan, x: torch.Tensor) -> torch.Tensor:
    return _apply_pool(plan, x)


# PyTorch's C functions: what `apply` does after it has looked for tensors of torch.func, which `ready` has ruled out.
_apply_conv: Callable[..., torch.Tensor] = super(torch.autograd.Function, _Conv).apply
_apply_pool: Callable[..., torch.Tensor] = super(torch.autograd.Function, _Pool).apply
