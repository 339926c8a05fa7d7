"""compare(model, ...): a model's own training step on PyTorch's kernels and on ours, in turns; the model is left as it was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

import pullback as pb
from pullback.torch.choices import pending
from pullback.torch.comparing.comparison import Comparison, LayerTimes, Memory, Times
from pullback.torch.comparing.keeping import Kept, kept
from pullback.torch.comparing.step_memory import kept_bytes, peak_bytes
from pullback.torch.comparing.step_times import OPS, Region, watched_step
from pullback.torch.layers import Accelerated
from pullback.torch.measuring import MOST_CALLS
from pullback.torch.report import Explaining, Layer
from pullback.torch.selection import Wishes
from pullback.torch.swap import State, accelerate, restore
from pullback.torch.taking import TakesCalls
from pullback.torch.whole_steps import MOST_COMPARED

WARMUPS = 2
SIDES = ("pytorch", "ours")
Loss = Callable[[Any], torch.Tensor]


def compare(
    model: nn.Module,
    *inputs: Any,
    loss: Loss | None = None,
    steps: int = 10,
    measure: bool = True,
    tune: bool = False,
    only: Wishes | None = None,
    except_: Wishes | None = None,
    functional: bool = False,
    tick: Callable[[str], object] | None = None,
    **named: Any,
) -> Comparison:  # fmt: skip
    """Time a model's step, model(*inputs, **named) and the backward pass, on PyTorch's kernels and on ours, layer by layer.

    The two take turns: `steps` rounds of each, timed as they are, and as many in which every layer is timed. `loss(output)` is the
    scalar to go back from (default: the mean square of every float tensor in the output). The model runs eagerly, in the mode
    (training or eval) that it is in, without an optimizer; inputs are copied for each step.

    measure, tune, only, except_, functional: as for `accelerate`. Without any of them, a model that is accelerated already is
    compared as it is. Afterwards the model is what it was: classes, parameters, gradients, buffers, attributes, modes and hooks,
    and so are the random states and the number of threads; also where the model raises.

    tick: called with a label before each round.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"compare: steps is {steps!r}; give a number of at least 1")
    elsewhere = {str(tensor.device) for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_cpu}
    if elsewhere:
        raise ValueError(
            f"compare: the model is on {', '.join(sorted(elsewhere))}; our kernels are the CPU's: model.cpu() brings it there"
        )
    before = State(model)
    with kept(model) as state, ExitStack() as stack:
        stack.callback(before.put_back)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        as_it_is = not (not measure or tune or functional or only is not None or except_ is not None) and _is_accelerated(model)
        if not as_it_is:
            accelerate(restore(model), measure=measure, tune=tune, only=only, except_=except_, functional=functional)
        ours = State(model)
        theirs = State(restore(model))
        turns = _Turns(model, inputs, named, loss or _mean_square, state, dict(zip(SIDES, (theirs, ours), strict=True)))
        return turns.compare(steps, tick or (lambda label: None))


def _is_accelerated(model: nn.Module) -> bool:
    return any(isinstance(module, (Accelerated, TakesCalls)) for module in model.modules())


def _mean_square(output: Any) -> torch.Tensor:
    tensors = [part for part in tree_flatten(output)[0] if isinstance(part, torch.Tensor) and part.is_floating_point()]
    if not tensors:
        raise TypeError(
            f"compare: the model returned a {type(output).__name__} without float tensors; give loss=, of its output"
        )
    total: torch.Tensor = sum((part.square().mean() for part in tensors[1:]), tensors[0].square().mean())
    return total


class _Turns:
    """Steps of a model, on either side."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        loss: Loss,
        state: Kept,
        sides: Mapping[str, State],
    ) -> None:
        self.model, self.inputs, self.named, self.loss, self.state, self.sides = model, inputs, named, loss, state, sides
        self.goes_back = True
        self.losses: dict[str, float] = {}

    def step(self, side: str) -> float:
        """Seconds of a step."""
        inputs, named = tree_map(_copied, (tuple(self.inputs), dict(self.named)))
        self.state.rewind()
        self.sides[side].put_back()
        start = time.perf_counter()
        loss = self.loss(self.model(*inputs, **named))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError("compare: loss must be a tensor of one number")
        if loss.requires_grad:
            loss.backward()
        seconds = time.perf_counter() - start
        self.goes_back, self.losses[side] = loss.requires_grad, float(loss.detach())
        return seconds

    def compare(self, steps: int, tick: Callable[[str], object]) -> Comparison:
        from pullback.bench.timing import (
            garbage_collector_off,
        )  # only here: importing pullback.torch should not import the bench

        report = self._explained()
        calls = any(layer.kind.startswith("F.") for layer in report)
        for _ in range(WARMUPS):
            for side in SIDES:
                self.step(side)
                self._watched(side, calls)
        whole: dict[str, list[float]] = {side: [] for side in SIDES}
        parts: dict[str, list[dict[Any, Region]]] = {side: [] for side in SIDES}
        with garbage_collector_off():
            for number in range(steps):
                tick(f"step {number + 1}")
                for side in SIDES if number % 2 == 0 else SIDES[::-1]:  # nobody always follows the other
                    whole[side].append(self.step(side) * 1e3)
                for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                    parts[side].append(self._watched(side, calls))
        kept = [kept_bytes(self.model, partial(self.step, side)) for side in SIDES]
        peaks = [peak_bytes(partial(self.step, side)) for side in SIDES]
        memory = Memory((kept[0], kept[1]), None if peaks[0] is None or peaks[1] is None else (peaks[0], peaks[1]))
        layers = _layers(report, parts)
        return Comparison(layers, Times(*(tuple(whole[side]) for side in SIDES)), memory, self._apart(), self._settings())

    def _explained(self) -> tuple[Layer, ...]:
        """Where each layer runs on our side, after steps there that compile and measure."""
        watch = Explaining(self.model, eager=True)
        for _ in range(2 * MOST_CALLS + MOST_COMPARED):
            self.step("ours")
            if not pending(self.model):
                break
        with watch.hooks(), watch:
            self.step("ours")
        self.sides["ours"].put_back()
        return watch.report().layers

    def _watched(self, side: str, calls: bool) -> dict[Any, Region]:
        with watched_step(self.model, side == "ours", calls) as regions:
            self.step(side)
        return regions

    def _apart(self) -> float | None:
        theirs, ours = (self.losses[side] for side in SIDES)
        scale = max(abs(theirs), abs(ours))
        return abs(theirs - ours) / scale if 0 < scale < math.inf else None

    def _settings(self) -> dict[str, Any]:
        from pullback.bench.machine import describe_machine

        modes = {module.training for module in self.model.modules()}
        mode = "training mode" if modes == {True} else "eval mode" if modes == {False} else "parts in eval mode"
        return {
            "versions": {"PyTorch": torch.__version__, "pullback": pb.__version__, "NumPy": np.__version__},
            "threads": torch.get_num_threads(),
            "step": f"{'forward and backward' if self.goes_back else 'forward only: nothing requires a gradient'}, {mode}",
            **describe_machine(),
        }


def _copied(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _layers(report: Sequence[Layer], parts: Mapping[str, Sequence[Mapping[Any, Region]]]) -> tuple[LayerTimes, ...]:
    """The regions of both sides beside what was said of each, in the order of their calls."""
    reasons: dict[Any, str | None] = {}
    counts: dict[tuple[str, str], int] = {}
    for layer in report:
        place = (layer.name, layer.kind)
        counts[place] = counts.get(place, 0) + 1
        reasons.setdefault((*place, counts[place] if layer.kind.startswith("F.") else 0), layer.reason)
    found = []
    for key, region in parts["ours"][0].items():
        reason = reasons.get(key)
        ops = {}
        for op in OPS:
            samples = {
                side: tuple(step[key].seconds[op] * 1e3 for step in parts[side] if _has(step, key, op)) for side in SIDES
            }
            if samples["pytorch"]:
                ops[op] = Times(samples["pytorch"], samples["ours"] if reason is None else ())
        found.append(LayerTimes(region.name, region.kind, region.shape, region.calls, reason, ops))
    return tuple(found)


def _has(step: Mapping[Any, Region], key: Any, op: str) -> bool:
    return key in step and op in step[key].seconds
