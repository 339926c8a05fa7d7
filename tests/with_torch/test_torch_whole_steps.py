"""Whole steps in turns: the faster way is kept for the whole model, after a bounded number of steps, and steps are told apart."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pullback.torch as pt
from pullback.torch import choices, measuring, whole_steps
from pullback.torch.layers import Accelerated
from pullback.torch.measuring import MOST_CALLS, Turn
from pullback.torch.pending import FUSES
from pullback.torch.whole_steps import FEW_SAMPLES, FIRST_SAMPLES, MANY_SAMPLES, MOST_COMPARED, WholeSteps

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_small", "one_thread")]


class Clock:
    """Stands still but for steps: a plain one and one of ours take so many seconds, whoever asks in between."""

    def __init__(self) -> None:
        self.now, self.plain, self.ours = 0.0, 3.0, 2.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The ops of every layer are ours by far; what whole steps take is said by the clock."""
    made = Clock()
    called = WholeSteps.call

    def add(turn: Turn, op: str, _: float) -> None:
        turn.trial.add(op, turn.ours, 1.0 if turn.ours else 2.0)

    def call(steps: WholeSteps, layer: Any, *given: Any) -> Any:
        begun = steps.steps
        found = called(steps, layer, *given)
        if steps.steps > begun:  # the rest of the step
            made.now += made.plain if steps._plain else made.ours
        return found

    monkeypatch.setattr(Turn, "add", add)
    monkeypatch.setattr(measuring, "clock", made)
    monkeypatch.setattr(WholeSteps, "call", call)
    return made


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3))
    return nn.Sequential(*layers).double()


def image(batch: int = 2) -> torch.Tensor:
    return torch.randn((batch, 3, 9, 8), dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def step(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    net.zero_grad()
    y: torch.Tensor = net(x)
    y.square().sum().backward()
    return y.detach()


def steps_of(net: nn.Sequential) -> WholeSteps:
    found: WholeSteps = net[0].__dict__[choices.CHOICES].steps
    return found


def settle(net: nn.Module, x: torch.Tensor) -> None:
    for _ in range(2 * MOST_CALLS + MOST_COMPARED):
        step(net, x)
        if not choices.pending(net):
            return
    raise AssertionError("it never ends")


def ours_now(net: nn.Module, x: torch.Tensor) -> list[str]:
    return [layer.name for layer in pt.explain(net, x).layers if layer.reason is None]


@pytest.mark.parametrize("ratio", [0.5, 0.97, 1.0, 1.03, 2.0])
def test_the_faster_way_is_kept(clock: Clock, ratio: float) -> None:
    clock.ours, clock.plain = 2.0, 2.0 * ratio
    plain = network()
    net, x = pt.accelerate(copy.deepcopy(plain)), image()
    settle(net, x)
    [verdict] = steps_of(net).found.values()
    assert verdict.seconds == {"whole step": (pytest.approx(clock.plain), pytest.approx(2.0))}
    layers = [module for module in net if isinstance(module, Accelerated)]
    ways = [way for layer in layers for way in layer.__dict__[choices.CHOICES].settled.values()]
    if ratio > 1:
        assert None not in ways
        assert net[1].__dict__[FUSES]
    else:
        assert set(ways) == {None}
        assert not net[1].__dict__[FUSES]
    assert f"whole step: measured ms, PyTorch's and ours: {clock.plain * 1e3:.3g} and 2e+03" in str(pt.explain(net, x))
    torch.testing.assert_close(step(net, x), step(plain, x))


def test_plain_steps_are_pytorchs_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """And turns are balanced: what happens every other step happens to both ways."""
    net, x = pt.accelerate(network()), image()
    clock.plain = clock.ours = 2.0
    taken: list[tuple[bool | None, set[str]]] = []
    for name in ("plain", "settled"):
        way = getattr(Accelerated, name)

        def noted(self: Any, *given: Any, name: str = name, way: Any = way) -> Any:
            taken[-1][1].add(name)
            return way(self, *given)

        monkeypatch.setattr(Accelerated, name, noted)
    for _ in range(2 * MOST_CALLS + MOST_COMPARED):
        taken.append((None, set()))
        step(net, x)
        taken[-1] = (steps_of(net)._plain, taken[-1][1])
        if not choices.pending(net):
            break
    turns = [(plain, ways) for plain, ways in taken if plain is not None]
    assert [plain for plain, _ in turns[:8]] == [True, False, False, True] * 2
    assert len(turns) == 2 * (FIRST_SAMPLES + MANY_SAMPLES)
    assert all(ways == ({"plain"} if plain else {"settled"}) for plain, ways in turns)


def test_a_clear_winner_is_known_soon(clock: Clock) -> None:
    net, x = pt.accelerate(network(), tune=True), image()
    # The first step is measured beside itself, and tells that all is settled; the end of the last one is seen after it.
    for _ in range(2 + 2 * (FIRST_SAMPLES + FEW_SAMPLES)):
        assert not steps_of(net).found
        step(net, x)
    assert steps_of(net).found


def test_kinds_of_steps_are_told_apart(clock: Clock) -> None:
    net = pt.accelerate(network())
    settle(net, image(2))
    clock.plain, clock.ours = 1.0, 2.0
    settle(net, image(3))
    assert ours_now(net.train(), image(2))
    assert len(steps_of(net).found) == 2
    seconds = pt.explain(net, image(2)).steps
    assert [a > b for a, b in seconds] == [True, False]


def test_steps_without_gradients_are_compared_too(clock: Clock) -> None:
    clock.plain, clock.ours = 1.0, 2.0
    net, x = pt.accelerate(network()).eval(), image()
    with torch.no_grad():
        for _ in range(2 * MOST_CALLS + MOST_COMPARED):
            net(x)
    [verdict] = steps_of(net).found.values()
    assert not verdict.ours


def test_a_layer_called_twice_in_a_step_begins_one_step(clock: Clock) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x))

    net, x = pt.accelerate(Twice(), tune=True), image()
    steps = net.conv.__dict__[choices.CHOICES].steps
    for count in range(1, 6):
        step(net, x)
        assert steps.steps == count


def test_a_checkpoint_stays_what_it_is(clock: Clock) -> None:
    """The second call of its layers comes within the backward pass: the same step, the same way."""
    clock.plain, clock.ours = 1.0, 2.0

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return found

    plain = Checkpointed()
    net, x = pt.accelerate(copy.deepcopy(plain)), image()
    for _ in range(2 * MOST_CALLS + MOST_COMPARED):
        torch.testing.assert_close(step(net, x), step(plain, x))
        for a, b in zip(net.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_steps_are_looked_at_for_a_bounded_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose shapes change at every call never settles."""
    monkeypatch.setattr(whole_steps, "MOST_STEPS", 20)
    net = pt.accelerate(network())
    for batch in range(1, 23):
        step(net, image(batch))
    assert not steps_of(net).open
    assert not steps_of(net).found
    assert not steps_of(net).undecided()


def test_copies_keep_what_was_found_and_pickles_begin_anew(clock: Clock) -> None:
    net, x = pt.accelerate(network()), image()
    settle(net, x)
    copied, loaded = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    for other, found in ((copied, 1), (loaded, 0)):
        assert len(steps_of(other).found) == found
        shared = {layer.__dict__[choices.CHOICES].steps for layer in other if isinstance(layer, Accelerated)}
        assert shared == {steps_of(other)}
        assert steps_of(other) is not steps_of(net)


def test_explain_and_other_threads_are_no_steps(clock: Clock) -> None:
    net, x = pt.accelerate(network(), tune=True), image()
    step(net, x)
    before = steps_of(net).steps
    pt.explain(net, x)
    worker = threading.Thread(target=step, args=(net, x))
    worker.start()
    worker.join()
    assert steps_of(net).steps == before


@pytest.mark.parametrize("steps", [1, 30])
def test_a_model_that_is_let_go_is_freed_at_once(steps: int) -> None:
    """Not only when the garbage collector comes by: parameters and activations may be large."""
    net, x = pt.accelerate(network()), image()
    for _ in range(steps):
        step(net, x)
    layers = [weakref.ref(layer) for layer in net]
    gc.collect()
    gc.disable()
    try:
        del net
        assert [layer() for layer in layers] == [None] * len(layers)
    finally:
        gc.enable()
