"""What a layer has chosen, and is about to: for each kind of input the ops that run on our kernels.

A kind is all that a choice depends on: shape, memory format, dtype, which gradients are wanted, threads. A layer remembers
a bounded number of kinds by their exact shape; further shapes are taken together by their size, so that a model whose shapes change
at every call is measured as well, and for a bounded number of calls.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import get_num_threads as get_torch_threads
from torch import is_autocast_enabled, is_grad_enabled, nn
from torch.autograd import forward_ad

from pullback.registry import selection
from pullback.settings import what_is_set
from pullback.torch.arrays import layout_of
from pullback.torch.autograd import is_plain
from pullback.torch.conv_calls import ConvCall
from pullback.torch.measuring import NONE, WHOLE, Trial, Turn, Verdict
from pullback.torch.pending import FUSES
from pullback.torch.saving import is_watched
from pullback.torch.whole_steps import OP, WholeSteps

CHOICES = "pullback_choices"  # attribute of a layer that measures
MOST_EXACT, MOST_KINDS = 16, 48  # kinds of input with a trial of their own: by exact shape, and in all
MOST_SETTLED = 256  # kinds for which an answer is kept
UNKNOWN = object()
IN_ONE_STEP = "in training one step with the convolution before it"
JOINED, WHOLE_UNIT = "with its normalization", "in all"
MEASURED = "PyTorch's kernels are faster"

Key = tuple[Any, ...]
Ops = frozenset[str] | None  # the ops that are ours; None: the layer is PyTorch's own


class _Paused(threading.local):
    on = False


_paused = _Paused()


def is_paused() -> bool:
    return _paused.on


@contextmanager
def paused() -> Iterator[None]:
    """In this thread nothing is measured in the block: layers do what is settled, or what the rules say."""
    before, _paused.on = _paused.on, True
    try:
        yield
    finally:
        _paused.on = before


def key_of(layer: Any, input: torch.Tensor) -> Key:
    """The kind of an input. Asked at every call, so in haste: each part costs as much as a line of Python."""
    weight = layer._parameters.get("weight")
    watched = trained = needs = False
    if is_grad_enabled():
        watched, trained, needs = is_watched(), input.requires_grad, weight is not None and weight.requires_grad
    return (
        watched, input.shape, input.stride(), input.dtype, trained, needs, weight is not None and weight.stride(),
        layer.has_modes and layer.training, get_torch_threads(), what_is_set(),
        is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
    )  # fmt: skip


def can_measure(input: torch.Tensor) -> bool:
    """Whether PyTorch runs eagerly, and our own function, which has no forward-mode derivative, serves."""
    return input.is_cpu and is_plain((input,)) and forward_ad._current_level < 0


WATCHED, AFTER_SHAPE, AUTOCAST = 0, 3, -1  # places in a key


def geometry(conv: Any) -> tuple[Any, ...]:
    """What a convolution's call depends on beside its tensors: attributes, which a program may change."""
    return conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode, conv.output_padding


class Choices:
    """Of one layer. Copies keep what is settled; pickles, which may be loaded on another machine, begin anew."""

    def __init__(self, at_once: bool = False, steps: WholeSteps | None = None) -> None:
        """at_once: whether a new kind of input is measured in its first call, by calls beside it. steps: the model's."""
        self.at_once = at_once
        self.steps = WholeSteps() if steps is None else steps
        self.tiny: set[torch.Size] = set()  # shapes of which nothing else need be asked
        self.settled: dict[Key, Ops] = {}
        self.trials: dict[Key, Trial] = {}
        self.verdicts: dict[Key, Verdict] = {}
        self.calls: dict[Any, ConvCall | None] = {}
        # The ops that are ours in one step with the layers after it (chains.py); none: it is no such step.
        self.units: dict[Key, frozenset[str]] = {}
        self.unit_trials: dict[Key, Trial] = {}
        self.joined = False  # whether it is taken in one step with the layer before it

    def __reduce__(self) -> Any:
        return Choices, (self.at_once, self.steps)

    def __deepcopy__(self, memo: Any) -> Choices:
        copied = Choices(self.at_once, copy.deepcopy(self.steps, memo))
        copied.tiny, copied.settled, copied.verdicts = set(self.tiny), dict(self.settled), dict(self.verdicts)
        copied.units, copied.joined = dict(self.units), self.joined
        return copied

    def settle(self, key: Key, ops: Ops) -> Ops:
        if len(self.settled) < MOST_SETTLED:
            self.settled[key] = ops
        return ops

    def call(self, key: Key, layer: Any, input: torch.Tensor, weight: torch.Tensor) -> ConvCall | None:
        """The convolution of this kind of input, with all decided that can be; None where each call has to be looked at."""
        kind = (key, *geometry(layer), *selection())
        call: Any = self.calls.get(kind, UNKNOWN)
        if call is UNKNOWN:
            if len(self.calls) >= MOST_EXACT:
                self.calls.clear()
            call = None if key[AUTOCAST] else layer.settled_call(input, weight)
            self.calls[kind] = call
        found: ConvCall | None = call if call is not None and call.takes(weight) else None
        return found

    def next(self, layer: Any, input: torch.Tensor, key: Key) -> Ops | Turn:
        """Where a call goes whose kind is not settled: the ops that are ours, or a turn of a trial."""
        if layer.cannot(input) is not None:
            return self.settle(key, None)
        if layer.tiny(input) is not None:
            if len(self.tiny) < MOST_SETTLED:
                self.tiny.add(input.shape)
            return None
        ops, separate = layer.ops_of(input)
        expected = layer.loses(input) is None
        if key[WATCHED] and not separate:
            return self.settle(key, frozenset(ops) if expected else None)
        kind, scale = self.kind_of(input, key)
        trial = self.trials.get(kind)  # before the verdict: another thread may have it now
        if kind in self.verdicts:
            return self.settle(key, _ops(self.verdicts[kind], key, separate))
        if trial is None:
            if (_paused.on and not self.at_once) or len(self.trials) + len(self.verdicts) >= MOST_KINDS:
                return _ops(Verdict(frozenset(ops) if expected else NONE, {}), key, separate)
            trial = self.trials.setdefault(kind, Trial(ops, separate, expected))
            if self.at_once and not any(True for _ in layer.buffers()):
                measure_at_once(layer, input, trial)
        if trial.is_over() and trial.separate and trial.verdict().ours and not key[WATCHED]:
            trial = self.trials[kind] = trial.second()
            if self.at_once:
                measure_at_once(layer, input, trial)
        if trial.is_over():
            self.verdicts[kind] = verdict = trial.verdict()
            self.trials.pop(kind, None)
            return self.settle(key, _ops(verdict, key, separate))
        if _paused.on:
            return _ops(Verdict(frozenset(ops) if expected else NONE, {}), key, separate)
        self.steps.unsettled()
        return trial.turn(scale)

    def end_unit_trial(self, kind: Key, verdict: Verdict, norm: Choices | None) -> None:
        """A unit that this layer begins has been tried: it is taken in one step, with these ops, or each layer goes its own way."""
        if verdict.ours:
            first = self.trials.pop(kind, None)
            own = self.verdicts.get(kind, Verdict(NONE, {})) if first is None else first.verdict()
            joined = {JOINED: verdict.seconds[WHOLE_UNIT]} if WHOLE_UNIT in verdict.seconds else {}
            self.verdicts[kind] = Verdict(own.ours, {**own.seconds, **joined})
            if norm is not None:
                norm.joined = True
                norm.trials.clear()
        self.units[kind] = verdict.ours  # last: another thread may look at it now
        self.unit_trials.pop(kind, None)

    def settle_unit(self, key: Key, kind: Key) -> frozenset[str]:
        """Remember what was found of a kind for one of its inputs."""
        found = self.units[kind]
        if len(self.units) < MOST_SETTLED:
            self.units[key] = found
        return found

    def give_up(self, layer: Any, key: Key, seconds: dict[str, tuple[float, float]]) -> None:
        """Leave a kind of input to PyTorch, whose whole step, of these seconds, is the faster."""
        found = self.verdicts.get(key)
        self.verdicts[key] = Verdict(NONE, {**({} if found is None else found.seconds), **seconds})
        self.units[key], self.joined = NONE, False
        self.settled[key] = NONE if key[WATCHED] and self.settled.get(key) is not None else None
        if layer.__dict__.get(FUSES):
            layer.__dict__[FUSES] = False

    def told(self, layer: Any, input: torch.Tensor, key: Key) -> tuple[str | None, frozenset[str], str]:
        """Why an input that our kernels can do goes to PyTorch (None: it does not), the ops that are ours, how that is known."""
        tiny = layer.tiny(input)
        kind, _ = self.kind_of(input, key)
        verdict = self.verdicts.get(kind)
        if self.joined:
            return None, NONE, IN_ONE_STEP
        if verdict is not None:
            return (None if verdict.ours else MEASURED), verdict.ours, str(verdict)
        if tiny is not None or (key[WATCHED] and not layer.ops_of(input)[1]):
            return layer.loses(input), NONE, ""
        trial = self.trials.get(kind)
        calls = "" if trial is None else f", {trial.calls} calls so far"
        return layer.loses(input), NONE, f"by the rules; the first steps measure it{calls}"

    def kind_of(self, input: torch.Tensor, key: Key) -> tuple[Key, float]:
        """What is measured together with this key, and the size of the input in that."""
        if key in self.trials or key in self.verdicts or len(self.trials) + len(self.verdicts) < MOST_EXACT:
            return key, 1.0
        bits = input.numel().bit_length()
        return (key[WATCHED], bits, layout_of(input), *key[AFTER_SHAPE:]), input.numel() / 2**bits


def _ops(verdict: Verdict, key: Key, separate: bool) -> Ops:
    """What is watched goes through our function even where all ops are PyTorch's: it keeps the same tensors either way."""
    return verdict.ours if verdict.ours or (key[WATCHED] and separate) else None


def measure_at_once(layer: Any, input: torch.Tensor, trial: Trial) -> None:
    """Take a trial's turns on such an input, beside the step. Hooks are not run."""
    given = input.detach().requires_grad_(input.requires_grad)
    while not trial.is_over():
        y = layer.take_turn(trial.turn(1.0), given)
        y = y[0] if isinstance(y, tuple) else y
        if y.requires_grad:
            inputs = [t for t in (given, *layer.parameters()) if t.requires_grad]
            torch.autograd.grad(y, inputs, torch.ones_like(y))


def pending(model: nn.Module) -> int:
    """How many trials of a model's layers are not over, and comparisons of whole steps."""
    kept: list[Choices] = [found for module in model.modules() if (found := module.__dict__.get(CHOICES)) is not None]
    undecided = [steps for steps in {choices.steps for choices in kept} if steps.undecided()]
    return len(undecided) + sum(len(choices.trials) + len(choices.unit_trials) for choices in kept)


def steps_of(modules: Iterable[nn.Module]) -> tuple[tuple[float, float], ...]:
    """What whole steps took that were compared: seconds on plain PyTorch and on ours."""
    models = dict.fromkeys(choices.steps for module in modules if (choices := module.__dict__.get(CHOICES)) is not None)
    return tuple(verdict.seconds[OP] for steps in models for verdict in steps.found.values())


def ops_wanted(layer: Any, input: torch.Tensor) -> tuple[str, ...]:
    """Of a layer whose ops go one way together: whether there is a backward pass."""
    needs = input.requires_grad or any(parameter.requires_grad for parameter in layer.parameters())
    return WHOLE if torch.is_grad_enabled() and needs else WHOLE[:1]
