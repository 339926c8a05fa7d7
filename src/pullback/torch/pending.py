"""Normalizations that wait for what follows: with a ReLU, or a sum and a ReLU, they are one pass over memory.

A layer returns a `Pending`: a tensor with the right autograd node and without memory. Where PyTorch is asked for its ReLU, or
its sum with another tensor, that is noted or done in the same pass; anything else that asks for its numbers has them made first,
and works on a plain tensor. So nothing depends on what the layer is expected to be followed by. A ReLU's node goes to x straight,
past the node of the normalization: gradients add up in x all the same, whatever else the normalization was used for. Only who
asks for the gradient of the normalization itself, after that, would miss a part of it: that is an error.

On a GPU a layer normalization under autocast waits as well: for a linear layer its result is made in autocast's type at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from pullback.torch.autograd import is_plain
from pullback.torch.gpu_norm import BatchStatistics, Cast, RowStatistics, Silu
from pullback.torch.norm import Relu, Statistics

FUSES = "pullback_fuses"  # attribute of a layer: whether its results wait; False once one was used for something else
By = Statistics | BatchStatistics | RowStatistics
OFF = "accelerate(model, fuse=False) keeps layers apart"


class Source:
    """What the numbers of a Pending are to be made of."""

    def __init__(
        self, layer: Any, by: By, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> None:  # fmt: skip
        self.layer, self.by, self.x, self.weight, self.bias = layer, by, x, weight, bias
        self.add: torch.Tensor | None = None
        self.versions = self._versions()
        self.numbers: torch.Tensor | None = None  # once they are made, without derivatives
        self.value: torch.Tensor | None = None  # the same, with derivatives
        self.casts: dict[torch.dtype, torch.Tensor] = {}  # the same in other types, with derivatives
        self.fused = False

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in (self.x, self.weight, self.bias, self.add) if tensor is not None]

    def plus(self, other: torch.Tensor) -> Source:
        self.check()
        made = Source(self.layer, self.by, self.x, self.weight, self.bias)
        made.add = other
        made.versions = made._versions()
        return made

    def check(self) -> None:
        if self.versions != self._versions():
            raise RuntimeError(
                f"an input or a parameter of a normalization was changed in place before its result was used; {OFF}"
            )

    def make(self) -> torch.Tensor:
        """The numbers; whoever asks for them does not want them with a ReLU."""
        if self.numbers is None:
            self.check()
            if self.add is None:
                self.layer.__dict__[FUSES] = False
            self.numbers = self.by.normalized(self.x, self.weight, self.bias, self.add)
        return self.numbers

    def followed(self, how: Any) -> torch.Tensor:
        """The result with an activation after it."""
        self.check()
        self.fused = True
        return self.by.fused(self.x, self.weight, self.bias, how, self.add)

    def cast(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self.casts:
            self.casts[dtype] = self.followed(Cast(dtype))
        return self.casts[dtype]


class Pending(torch.Tensor):
    """The result of a normalization whose numbers are not made yet."""

    source: Source

    @staticmethod
    def like(x: torch.Tensor, source: Source) -> Pending:
        strides, dtype = source.by.like(x)
        made: Pending = torch.Tensor._make_wrapper_subclass(Pending, x.shape, strides, dtype=dtype, device=x.device)
        made.source = source
        return made

    def plain(self) -> torch.Tensor:
        """The same as a plain tensor, with derivatives."""
        source = self.source
        if source.value is not None:
            return source.value
        if not torch.is_grad_enabled():
            return source.make()
        source.value = _Made.apply(self)
        return source.value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **named)
        rule = _RULES.get(func)
        if rule is not None and torch.is_grad_enabled():
            found = rule(*args, **named)
            if found is not None:
                return found
        if func in _OBSERVES:
            tree_map_only(Pending, _refuse_fused, (args, named))
        args, named = plain_arguments(args, named)
        return func(*args, **named)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Whoever asks from below autograd, which the node of this tensor serves: an autograd.Function, C++."""
        args, named = tree_map_only(Pending, lambda pending: pending.source.make(), (args, kwargs or {}))
        return func(*args, **named)


def plain_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with plain tensors in place of those that wait."""
    found: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(Pending, Pending.plain, (args, kwargs))
    return found


def _refuse_fused(pending: Pending) -> Pending:
    if pending.source.fused:
        raise RuntimeError(f"the gradient of a normalization that is one pass with what follows is never made; {OFF}")
    return pending


@cache
def _deferring(function: Any) -> Callable[..., Pending]:
    """The node of a Pending: that of the normalization alone, whose backward pass is `function`'s."""

    class Deferred(function):
        @staticmethod
        def forward(ctx: Any, by: By, source: Source, x: torch.Tensor, weight: Any, bias: Any, add: None) -> Pending:
            by.remember(ctx, x, weight, bias)
            ctx.set_materialize_grads(False)
            return Pending.like(x, source)

    found: Callable[..., Pending] = super(torch.autograd.Function, Deferred).apply
    return found


class _Sum(torch.autograd.Function):
    """A Pending with something added, in place or as a new one."""

    @staticmethod
    def forward(ctx: Any, pending: Pending, other: torch.Tensor, in_place: bool) -> Pending:
        source = pending.source.plus(other)
        if not in_place:
            return Pending.like(pending.source.x, source)
        ctx.mark_dirty(pending)
        pending.source = source
        return pending

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g, g, None


class _Made(torch.autograd.Function):
    """The numbers of a Pending as a plain tensor, whose gradient is the Pending's."""

    @staticmethod
    def forward(ctx: Any, pending: Pending) -> torch.Tensor:
        return pending.source.make().detach()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class _Become(torch.autograd.Function):
    """A Pending after an op in place: it is that op's result from then on."""

    @staticmethod
    def forward(ctx: Any, pending: Pending, result: torch.Tensor) -> Pending:
        ctx.mark_dirty(pending)
        return pending

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return None, g


_sum, _become = (super(torch.autograd.Function, kind).apply for kind in (_Sum, _Become))


def deferred(
    layer: Any, by: By, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:  # fmt: skip
    """The layer's result, which waits for what follows."""
    found: torch.Tensor = _deferring(by.function())(by, Source(layer, by, x, weight, bias), x, weight, bias, None)
    return found


def _waits(pending: Any) -> bool:
    return type(pending) is Pending and pending.source.numbers is None and pending.source.value is None


def _followed(pending: Any, how: Any, in_place: bool) -> torch.Tensor | None:
    if not _waits(pending) or not pending.source.by.takes(how, pending.source.add is not None):
        return None
    y = pending.source.followed(how)
    if in_place:
        with torch._C.DisableTorchFunctionSubclass():  # PyTorch clears the tensor's hooks, which is no use of its numbers
            _become(pending, y)
        pending.source.value, pending.source.numbers = y, y.detach()
    return y


def _plain_relu(input: Any, inplace: bool = False) -> Any:
    return _followed(input, Relu(None), inplace)


def _relu6(input: Any, inplace: bool = False) -> Any:
    return _followed(input, Relu(6.0), inplace)


def _hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return _followed(input, Relu(float(max_val)), inplace) if min_val == 0 < max_val else None


def _silu(input: Any, inplace: bool = False) -> Any:
    return _followed(input, Silu(), inplace)


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Under autocast a linear layer takes its input in autocast's type."""
    if not _waits(input) or not torch.is_autocast_enabled(input.source.x.device.type):
        return None
    dtype = torch.get_autocast_dtype(input.source.x.device.type)
    if not input.source.by.takes(Cast(dtype), input.source.add is not None):
        return None
    return functional.linear(input.source.cast(dtype), weight, bias)


def _sum_of(input: Any, other: Any, in_place: bool) -> Any:
    first, second = (input, other) if in_place or _waits(input) else (other, input)
    if not _waits(first) or first.source.add is not None or first is second or not first.source.by.takes(None, True):
        return None
    second = second.plain() if type(second) is Pending else second
    if (
        type(second) is not torch.Tensor
        or second.shape != first.shape
        or second.dtype is not first.dtype
        or not is_plain((second,))
    ):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return _sum(first, second, in_place)


def _add(input: Any, other: Any, **more: Any) -> Any:
    """A sum of two; with a factor or a place for the result it is PyTorch's."""
    return None if more else _sum_of(input, other, False)


def _iadd(input: Any, other: Any, **more: Any) -> Any:
    return None if more else _sum_of(input, other, True)


def _relu_(input: Any) -> Any:
    return _followed(input, Relu(None), True)


_RULES: dict[Any, Callable[..., Any]] = {
    functional.relu: _plain_relu, torch.relu: _plain_relu, torch.Tensor.relu: _plain_relu,
    torch.relu_: _relu_, torch.Tensor.relu_: _relu_,
    functional.silu: _silu, functional.linear: _linear,
    functional.relu6: _relu6, functional.hardtanh: _hardtanh,
    torch.add: _add, torch.Tensor.add: _add, torch.Tensor.__add__: _add, torch.Tensor.__radd__: _add,
    torch.Tensor.add_: _iadd, torch.Tensor.__iadd__: _iadd,
}  # fmt: skip
_ABOUT = {
    torch.Tensor.size, torch.Tensor.stride, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_contiguous,
    *(getattr(torch.Tensor, name).__get__ for name in (
        "shape", "dtype", "device", "ndim", "requires_grad", "is_cpu", "is_cuda", "layout", "grad_fn", "is_leaf", "_version",
    )),
}  # fmt: skip
_OBSERVES = {torch.Tensor.register_hook, torch.Tensor.retain_grad, torch.autograd.grad}
