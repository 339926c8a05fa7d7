"""`nn.Sequential`s whose forward takes a convolution, its batch normalization and a ReLU after it in one step (conv_norm.py).

In training only, where both layers are ours and settled, and only of neighbours in a Sequential: what it passes from one to the
other nobody else sees, unless a hook is on one of them. All else is called as the Sequential's own forward does.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.compiler import is_compiling

from pullback.registry import MissingCode, selection
from pullback.torch import kernels
from pullback.torch.autograd import is_plain
from pullback.torch.choices import (
    AUTOCAST,
    CHOICES,
    UNKNOWN,
    WATCHED,
    Choices,
    Key,
    can_measure,
    geometry,
    is_paused,
    key_of,
)
from pullback.torch.conv_norm import ConvNorm, conv_norm
from pullback.torch.layers import ConvLayer
from pullback.torch.measuring import NONE, WHOLE, Trial, Turn, Verdict, nearly_ours
from pullback.torch.norm import Relu, lying
from pullback.torch.norm_layers import LEAST_FUSED, BatchNormLayer, any_hooks, something_compiled
from pullback.torch.pending import FUSES, Pending
from pullback.torch.taking import WRAPPERS, Wrapped, is_taking, plain_class, wrapping_class
from pullback.torch.whole_steps import OP

UNITS = "pullback_units"  # attribute of a Sequential
MOST_CALLS = 16  # kinds of input of a unit that are remembered


class Unit(NamedTuple):
    """Neighbours that may be one step, or a module alone (norm: None)."""

    first: nn.Module
    norm: BatchNormLayer | None
    activation: nn.Module | None
    relu: Relu | None


class Units:
    """Of one Sequential. Copies and pickles begin anew."""

    def __init__(self) -> None:
        self.modules: tuple[Any, ...] = ()
        self.units: tuple[Unit, ...] = ()
        self.calls: dict[Any, ConvNorm | None] = {}

    def __reduce__(self) -> Any:
        return Units, ()

    def __deepcopy__(self, memo: Any) -> Units:
        return Units()

    def of(self, modules: tuple[Any, ...]) -> tuple[Unit, ...]:
        if modules != self.modules:
            self.modules, self.units, self.calls = modules, tuple(_units(modules)), {}
        return self.units


def _units(modules: tuple[Any, ...]) -> list[Unit]:
    found: list[Unit] = []
    place = 0
    while place < len(modules):
        first, norm = modules[place], modules[place + 1] if place + 1 < len(modules) else None
        activation = modules[place + 2] if place + 2 < len(modules) else None
        if not (_is_conv(first) and isinstance(norm, BatchNormLayer) and norm.spatial_rank == first.spatial_rank):
            found.append(Unit(first, None, None, None))
            place += 1
            continue
        relu = _relu(activation)
        found.append(Unit(first, norm, None if relu is None else activation, relu))
        place += 2 if relu is None else 3
    return found


def _is_conv(module: Any) -> bool:
    layer: Any = module
    return isinstance(module, ConvLayer) and module.op == "conv" and layer.bias is None


def _relu(module: Any) -> Relu | None:
    """What a module does, where that is a ReLU."""
    kind = type(module)
    if kind is nn.ReLU:
        return Relu(None)
    if kind is nn.ReLU6:
        return Relu(6.0)
    if kind is nn.Hardtanh and module.min_val == 0 < module.max_val:
        return Relu(float(module.max_val))
    return None


def _is_hooked(module: Any) -> bool:
    """Whether somebody looks at what goes in or comes out, or calls another forward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def run_units(sequential: Any, input: Any) -> Any:
    """A Sequential's forward, for an ordinary step of a training."""
    found = sequential.__dict__.get(UNITS)
    if found is None:
        found = sequential.__dict__[UNITS] = Units()
    x = input
    for unit in found.of(tuple(sequential._modules.values())):
        y = None if unit.norm is None else _together(found, unit, x)
        if y is None:
            y = unit.first(x)
            for module in (unit.norm, unit.activation):
                y = y if module is None else module(y)
        x = y
    return x


def _together(units: Units, unit: Unit, given: Any) -> torch.Tensor | None:
    """The result of a unit in one step, or of a turn of its trial; None where it has to be taken module by module."""
    conv: Any
    norm: Any
    conv, norm, activation, relu = unit
    x = given.plain() if type(given) is Pending else given
    choices, weight = conv.__dict__.get(CHOICES), conv._parameters.get("weight")
    if choices is None or FUSES not in norm.__dict__ or not norm.training or not can_measure(x):
        return None
    if weight is None or conv._parameters.get("bias") is not None or choices.steps.is_looking_at(conv):
        return None
    if (
        _is_hooked(conv)
        or _is_hooked(norm)
        or (activation is not None and (_is_hooked(activation) or _relu(activation) != relu))
    ):
        return None
    key = key_of(conv, x)
    way = choices.units.get(key)
    if way == NONE or key[WATCHED] or key[AUTOCAST] or kernels.listening.heard is not None or is_taking() or is_paused():
        return None
    trial = None
    if way is None:
        kind, scale = choices.kind_of(x, key)
        if kind in choices.units:  # of another shape that is taken together with this one
            choices.settle_unit(key, kind)
            return None
        trial = choices.unit_trials.get(kind) or _new_trial(choices, kind, conv, x)
        if trial is None:
            return None
    of = _settled(units, unit, key, x, weight)
    if of is None or not of.call.takes(weight) or not is_plain((weight,)):
        return None
    if relu is None and norm.__dict__[FUSES] and of.how.shape.terms * of.how.shape.channels >= LEAST_FUSED[of.call.layout]:
        return None  # what follows may be a sum and a ReLU, in the same pass
    if way is not None:
        return _run(of, way, norm, x, weight)
    assert trial is not None
    choices.unit_trials[kind] = trial
    if trial.is_over():
        choices.end_unit_trial(kind, trial.verdict(), norm.__dict__.get(CHOICES))
        way = choices.settle_unit(key, kind)
        return _run(of, way, norm, x, weight) if way else None
    choices.steps.unsettled()
    return _in_turn(trial.turn(scale), of, unit, x, weight)


def _run(of: ConvNorm, way: Any, norm: Any, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    arguments = norm.batch_arguments(of.call)
    return None if arguments is None else conv_norm(of, way, *arguments[:3], input, weight, *arguments[3:])


def _in_turn(turn: Turn, of: ConvNorm, unit: Unit, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """A turn of the trial of a unit: PyTorch's layers, or ours in one step."""
    conv: Any
    norm: Any
    conv, norm, activation, _ = unit
    chosen = turn.trial.chosen
    assert chosen is not None

    def plain() -> Any:
        y = norm.plain(conv.plain(input))
        return y if activation is None else activation(y)

    y: torch.Tensor | None = turn.take(partial(_run, of, chosen.ours, norm, input, weight) if turn.ours else plain)
    return y


def _new_trial(choices: Choices, kind: Key, conv: Any, input: torch.Tensor) -> Trial | None:
    """The trial of a unit, once it is known which ops of the convolution can be ours; None before."""
    if len(choices.unit_trials) >= MOST_CALLS or conv.cannot(input) is not None:
        return None
    ops, separate = conv.ops_of(input)
    first, verdict = choices.trials.get(kind), choices.verdicts.get(kind)
    if input.shape in choices.tiny:
        chosen = frozenset(ops)
    elif separate and first is not None and first.separate and first.is_over():
        chosen = nearly_ours(first.verdict().seconds, ops)
    elif separate and verdict is not None and OP not in verdict.seconds:
        chosen = nearly_ours(verdict.seconds, ops)
    else:
        return None
    return Trial(WHOLE, False, True, Verdict(chosen, {})) if chosen else None


def _settled(units: Units, unit: Unit, key: Key, input: torch.Tensor, weight: torch.Tensor) -> ConvNorm | None:
    """The unit for such an input; None where one of its layers would not be ours."""
    conv: Any = unit.first
    kind = (id(conv), key, *geometry(conv), *selection())
    of: Any = units.calls.get(kind, UNKNOWN)
    if of is UNKNOWN:
        if len(units.calls) >= MOST_CALLS * len(units.units):
            units.calls.clear()
        of = None
        with suppress(MissingCode):
            of = _make(key, unit, input, weight)
        units.calls[kind] = of
    found: ConvNorm | None = of
    return found


def _make(key: Key, unit: Unit, input: torch.Tensor, weight: torch.Tensor) -> ConvNorm | None:
    conv: Any = unit.first
    if input.dim() != conv.spatial_rank + 2:
        return None
    call = conv.__dict__[CHOICES].call(key, conv, input, weight)
    if call is None or call.forward.forms[0].strides != input.stride():
        return None
    made = call.forward.made
    how = lying(torch.empty_strided(made.shape, made.strides, dtype=made.dtype, device="cpu"))
    return None if how is None or how.shape.terms < 2 else ConvNorm(call, how, unit.relu)


class Chained(Wrapped):
    """A Sequential whose forward takes units."""


WRAPPERS.append(Chained)


@cache
def chained_class(kind: Any) -> type[nn.Module]:
    @wraps(kind.forward)
    def forward(self: Any, input: Any) -> Any:
        if is_compiling() or not torch.is_grad_enabled() or not isinstance(input, torch.Tensor) or not input.is_cpu:
            return kind.forward(self, input)
        if any_hooks() or something_compiled():
            return kind.forward(self, input)
        return run_units(self, input)

    return wrapping_class(Chained, kind, forward)


Chained.class_of = staticmethod(chained_class)


def unchain(module: nn.Module) -> None:
    """The Sequential as it was."""
    kind: Any = type(module)
    if kind.__bases__[0] is Chained:
        module.__class__ = kind.__bases__[1]
    module.__dict__.pop(UNITS, None)


def has_units(module: nn.Module) -> bool:
    """Whether a module's forward is that of nn.Sequential, and it has a convolution before a normalization."""
    kind: Any = plain_class(type(module))
    if not issubclass(kind, nn.Sequential) or (kind.forward, kind.__iter__) != (nn.Sequential.forward, nn.Sequential.__iter__):
        return False
    return any(unit.norm is not None for unit in _units(tuple(module._modules.values())))
