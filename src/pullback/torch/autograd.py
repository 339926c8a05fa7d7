"""The ops with derivatives: one autograd function for all of them, whose backward calls the ops again (so it has one too).

Used where PyTorch runs eagerly on plain tensors, since it costs some 5 microseconds; the registered ops of library.py, which
cost 30, where PyTorch traces or transforms (compile, vmap, torch.func, fake tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from pullback.torch import kernels, library
from pullback.torch.kernels import RULES, SHAPES

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are tensors with memory of their own, and PyTorch runs eagerly."""
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
    ):
        return False
    return all(type(tensor) in _PLAIN for tensor in tensors)


def keep(ctx: Any, op: str, tensors: Sequence[torch.Tensor], outputs: Any, keywords: Mapping[str, Any]) -> None:
    """Save for the backward pass what the rules of the wanted gradients read, and the shapes of the rest."""
    rule = RULES[op]
    wanted = [name for name, needs in zip(rule.arrays, ctx.needs_tensors, strict=True) if needs and name in rule.vjp]
    read = {name for of in wanted for name in rule.vjp[of].arrays}
    named = dict(zip(rule.arrays, tensors, strict=True))
    ctx.shapes = {name: SimpleNamespace(shape=tuple(tensor.shape)) for name, tensor in named.items()}
    if op == "max_pool":
        named["winners"] = outputs[1]
    ctx.names = [name for name in named if name in read]
    ctx.save_for_backward(*(named[name] for name in ctx.names))
    ctx.op, ctx.keywords, ctx.wanted = op, keywords, wanted


def gradients(ctx: Any, g: torch.Tensor | None, ops: Mapping[str, Callable[..., Any]]) -> list[torch.Tensor | None]:
    """The gradient of each tensor argument, by these ops; None where it has none or nobody wants it."""
    rule = RULES[ctx.op]
    arrays = {**ctx.shapes, **dict(zip(ctx.names, ctx.saved_tensors, strict=True)), "g": g}
    keywords = {name: value for name, value in ctx.keywords.items() if name not in SHAPES}
    return [
        rule.vjp[name].run(ops, arrays, keywords) if name in ctx.wanted and g is not None else None for name in rule.arrays
    ]


class _Differentiable(torch.autograd.Function):
    """An op by name on tensors."""

    @staticmethod
    def forward(ctx: Any, op: str, keywords: Mapping[str, Any], *tensors: torch.Tensor) -> Any:
        outputs = kernels.run(op, tensors, keywords)
        ctx.set_materialize_grads(False)
        ctx.needs_tensors = ctx.needs_input_grad[2:]
        keep(ctx, op, tensors, outputs, keywords)
        if op == "max_pool":
            ctx.mark_non_differentiable(outputs[1])
        return outputs

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None, *_: Any) -> Any:
        return None, None, *gradients(ctx, g, OPS)


def call(op: str, *tensors: torch.Tensor, **keywords: Any) -> Any:
    """An op on tensors, with derivatives where they are wanted."""
    if not is_plain(tensors):
        return library.call(op, tensors, keywords)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Differentiable.apply(op, keywords, *tensors)
    return kernels.run(op, tensors, keywords)


OPS: dict[str, Callable[..., Any]] = {op: partial(call, op) for op in RULES}
