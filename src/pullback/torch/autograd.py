"""The ops with derivatives: one autograd function for all of them, whose backward calls the ops again (so it has one too).

Used where PyTorch runs eagerly on plain tensors, since it costs some 5 microseconds; the registered ops of library.py, which
cost 30, where PyTorch traces or transforms (compile, vmap, torch.func, fake tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor

from pullback.torch import kernels, library
from pullback.torch.kernels import RULES
from pullback.torch.library import batched

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
    for tensor in tensors:
        if type(tensor) not in _PLAIN or not (tensor.is_cpu or tensor.is_cuda):
            return False
        # Batched gradients, and numbers that PyTorch has yet to negate or to write.
        if is_legacy_batchedtensor(tensor) or tensor.is_neg() or tensor._is_zerotensor():
            return False
    return True


@cache
def _needs(op: str, needed: tuple[bool, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(arguments whose gradients are wanted, tensors that their rules read) of an op, from which arguments need gradients."""
    rule = RULES[op]
    wanted = tuple(name for name, needs in zip(rule.arrays, needed, strict=True) if needs and name in rule.vjp)
    read = {name for of in wanted for name in rule.vjp[of].arrays}
    return wanted, tuple(name for name in (*rule.arrays, "winners") if name in read)


def keep(ctx: Any, op: str, tensors: Sequence[torch.Tensor], outputs: Any, keywords: Mapping[str, Any]) -> None:
    """Save for the backward pass what the rules of the wanted gradients read, and the shapes of the rest."""
    ctx.op, ctx.keywords = op, keywords
    ctx.wanted, ctx.names = _needs(op, ctx.needs_tensors)
    ctx.shapes = [tensor.shape for tensor in tensors]
    named = dict(zip(RULES[op].arrays, tensors, strict=True))
    ctx.output_shape = outputs[0].shape if op == "max_pool" else outputs.shape
    if op == "max_pool":
        named["winners"] = outputs[1]
    ctx.save_for_backward(*[named[name] for name in ctx.names])


def _shapes(ctx: Any) -> dict[str, Any]:
    """Stand-ins for the tensors whose shapes are all a rule asks for, "y" the result."""
    named = {name: SimpleNamespace(shape=shape) for name, shape in zip(RULES[ctx.op].arrays, ctx.shapes, strict=True)}
    return {**named, "y": SimpleNamespace(shape=ctx.output_shape)}


def gradients(ctx: Any, g: torch.Tensor | None, ops: Mapping[str, Callable[..., Any]]) -> list[torch.Tensor | None]:
    """The gradient of each tensor argument, by these ops; None where it has none or nobody wants it."""
    rule = RULES[ctx.op]
    arrays = {**_shapes(ctx), **dict(zip(ctx.names, ctx.saved_tensors, strict=True)), "g": g}
    return [
        rule.vjp[name].run(ops, arrays, ctx.keywords) if name in ctx.wanted and g is not None else None for name in rule.arrays
    ]


class Differentiable(torch.autograd.Function):
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


class _Transformable(Differentiable):
    """The same, in the form that torch.func and forward-mode derivatives ask for, which costs more."""

    @staticmethod
    def forward(op: str, keywords: Mapping[str, Any], *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        return call(op, *tensors, **keywords)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        op, keywords, *tensors = inputs
        ctx.needs_tensors = ctx.needs_input_grad[2:]
        ctx.set_materialize_grads(False)
        winners = [output[1]] if op == "max_pool" else []
        keep(ctx, op, tensors, output, keywords)
        ctx.mark_non_differentiable(*winners)
        ctx.save_for_forward(*tensors, *winners)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], op: str, keywords: Mapping[str, Any], *tensors: torch.Tensor) -> Any:
        return batched(OPS[op], op, info.batch_size, in_dims[2:], tensors, keywords)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: torch.Tensor | None) -> Any:
        rule = RULES[ctx.op]
        arrays = {**_shapes(ctx), **dict(zip((*rule.arrays, "winners"), ctx.saved_for_forward, strict=False))}
        parts = [
            rule.jvp[name].run(OPS, {**arrays, "t": tangent}, ctx.keywords)
            for name, tangent in zip(rule.arrays, tangents, strict=True)
            if tangent is not None and name in rule.jvp
        ]
        tangent = sum(parts[1:], parts[0]) if parts else None
        return (tangent, None) if ctx.op == "max_pool" else tangent


def call(op: str, *tensors: torch.Tensor, **keywords: Any) -> Any:
    """An op on tensors, with derivatives where they are wanted."""
    if not is_plain(tensors):
        if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
            return _Transformable.apply(op, keywords, *tensors)
        return library.call(op, tensors, keywords)
    if torch.autograd.forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
        return _Transformable.apply(op, keywords, *tensors)
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return _apply(op, keywords, *tensors)
    return kernels.run(op, tensors, keywords)


class _Watched(torch.autograd.Function):
    """Values as they are, whose gradient cannot be asked for once a tensor that came with them has been changed."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(other)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        _ = ctx.saved_tensors  # PyTorch compares the versions
        return g, None


def watched(values: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A maximum and its indices. As in PyTorch, changing the indices in place is an error of the backward pass.

    (The gradient is made from winners, which stay as they were: an error nevertheless, since the program meant something by it.)
    """
    if is_plain((values,)) and values.requires_grad and torch.autograd.forward_ad._current_level < 0:
        values = _Watched.apply(values, indices)
    return values, indices


# PyTorch's C function: what `apply` does after it has looked for tensors of torch.func, which is_plain has ruled out.
_apply = super(torch.autograd.Function, Differentiable).apply


OPS: dict[str, Callable[..., Any]] = {op: partial(call, op) for op in RULES}
