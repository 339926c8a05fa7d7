"""Measuring in place: turns, bounded samples, the faster kept for each op and kind of input, and where nothing is measured."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pullback as pb
import pullback.torch as pt
from pullback.torch import choices, measuring, whole_steps
from pullback.torch.measuring import FEW_SAMPLES, FIRST_SAMPLES, MANY_SAMPLES, MOST_CALLS, Trial, Turn
from pullback.torch.mixed import FILTER, FORWARD, INPUT, MIXED_OPS

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_small", "one_thread")]
CLEAR_CALLS = 2 * (FIRST_SAMPLES + FEW_SAMPLES)
Seconds = dict[str, tuple[float, float]]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """What each op takes on PyTorch's kernels and on ours; PyTorch's are faster if nothing else is said.

    Whole steps are not compared.

    "in all": what the passes of a layer take whose ops have been chosen, ours faster if nothing else is said.
    """
    table: Seconds = {}

    def add(turn: Turn, op: str, took: float) -> None:
        assert took > 0
        pair = table.get(op, (1.0, 2.0)) if turn.trial.chosen is None else table.get("in all", (2.0, 1.0))
        turn.trial.add(op, turn.ours, pair[turn.ours] / turn.scale)

    monkeypatch.setattr(Turn, "add", add)
    monkeypatch.setattr(whole_steps, "MOST_STEPS", -1)
    return table


def conv(*given: Any, **named: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(*(given or (3, 6, 3)), **named)).double()


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (1, 3, 5, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def step(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    x.grad = None
    y = net(x)
    y.square().sum().backward()
    gradients = [t.grad for t in (x, *net.parameters()) if t.grad is not None]
    return [y.detach(), *gradients]


def kept(net: nn.Sequential) -> choices.Choices:
    found: choices.Choices = net[0].__dict__[choices.CHOICES]
    return found


def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """(op, ours) of each sample, in order."""
    found: list[tuple[str, bool]] = []
    add = Turn.add

    def hear(turn: Turn, op: str, took: float) -> None:
        found.append((op, turn.ours))
        add(turn, op, took)

    monkeypatch.setattr(Turn, "add", hear)
    return found


def test_calls_take_turns_for_a_few_steps(monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> None:
    samples = heard(monkeypatch)
    net, x = pt.accelerate(conv()), image()
    for _ in range(CLEAR_CALLS + 3):
        step(net, x)
    ops = [FORWARD, FILTER]  # nobody wants the gradient of the data
    assert samples == [(op, number % 2 == 1) for number in range(CLEAR_CALLS) for op in ops]
    assert choices.pending(net) == 0
    assert list(kept(net).settled.values()) == [None]


@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_what_is_not_clear_is_measured_longer(monkeypatch: pytest.MonkeyPatch, seconds: Seconds, ratio: float) -> None:
    samples = heard(monkeypatch)
    seconds.update({FORWARD: (1.0, ratio), FILTER: (1.0, 3.0)})
    net, x = pt.accelerate(conv()), image()
    for _ in range(2 * (FIRST_SAMPLES + MANY_SAMPLES)):
        step(net, x)
    assert samples.count((FORWARD, True)) == samples.count((FORWARD, False)) == FIRST_SAMPLES + MANY_SAMPLES
    for _ in range(CLEAR_CALLS + 1):
        step(net, x)
    assert kept(net).settled.popitem()[1] == (frozenset([FORWARD]) if ratio < 1 else None)


def test_first_samples_do_not_count_and_the_least_does() -> None:
    trial = Trial((FORWARD,), separate=True, expected=False)
    for ours, samples in ((False, (0.1, 5.0, 4.0, 9.0)), (True, (99.0, 9.0, 9.0, 3.0))):
        for sample in samples:
            trial.add(FORWARD, ours, sample)
    assert trial.is_over()
    verdict = trial.verdict()
    assert verdict.ours == {FORWARD}
    assert verdict.seconds == {FORWARD: (4.0, 3.0)}


def test_what_is_saved_must_pay_for_the_call() -> None:
    """Of the ops that are faster, not of those that never ran: the rules speak for these."""
    trial = Trial((FORWARD, FILTER), separate=True, expected=True)
    for ours in (False, True):
        for _ in range(MANY_SAMPLES):
            trial.add(FORWARD, ours, 1e-3 if ours else 3e-3)
    for costs, expected in ((1e-3, {FORWARD, FILTER}), (3e-3, set())):
        trial.beside = [9.0, costs, 2 * costs]
        assert trial.verdict().ours == expected


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("how", [{}, {"tune": True}])
@pytest.mark.parametrize("kind", ["conv", "groups", "transposed", "same"])
@pytest.mark.parametrize("count", range(8))
def test_each_op_goes_where_it_is_faster(seconds: Seconds, count: int, kind: str, how: Any) -> None:
    """Whichever ops are ours: results, gradients and second derivatives are PyTorch's, in every turn and afterwards."""
    wanted = [op for bit, op in enumerate(MIXED_OPS) if count >> bit & 1]
    seconds.update({op: (2.0, 1.0) if op in wanted else (1.0, 2.0) for op in MIXED_OPS})
    plain = {
        "conv": lambda: conv(3, 6, 3, stride=2, padding=1),
        "groups": lambda: conv(3, 6, 3, groups=3, bias=False).to(memory_format=torch.channels_last),
        "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1)).double(),
        "same": lambda: conv(3, 4, 2, padding="same"),  # pads one end more, so that its ops cannot be mixed
    }[kind]()
    net, x = pt.accelerate(copy.deepcopy(plain), **how), image().requires_grad_()
    expected = step(plain, x)
    for _ in range(2 if how else 2 * CLEAR_CALLS + 1):
        torch.testing.assert_close(step(net, x), expected)
    assert choices.pending(net) == 0
    [layer] = pt.explain(net, x).layers
    if kind != "same":
        assert list(layer.ops) == wanted
        assert (layer.reason is None) == bool(wanted)
        assert "measured" in layer.known
    assert torch.autograd.gradgradcheck(net, x, fast_mode=True)
    with torch.no_grad():
        torch.testing.assert_close(net(x), plain(x))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("given", [{"stride": 2}, {"stride": 3, "padding": 1}, {"dilation": 2, "groups": 2}, {"bias": False}])
def test_settled_transposed_convolutions(seconds: Seconds, given: dict[str, Any], form: torch.memory_format) -> None:
    """They are made once for a kind of input: right for other sizes too, and for an output_size that is asked for."""
    seconds.update(dict.fromkeys(MIXED_OPS, (2.0, 1.0)))
    plain = nn.Sequential(nn.ConvTranspose2d(6, 4, 3, **given)).double()
    net = pt.accelerate(copy.deepcopy(plain))
    sizes = [9] * (2 * CLEAR_CALLS + 2) + [7] * (2 * CLEAR_CALLS + 2) + [9]
    for size in sizes:
        x = image(2, 6, size, size + 1).contiguous(memory_format=form)
        for more in ((), (tuple(n + 1 for n in plain(x).shape[2:]),)) if "stride" in given else ((),):
            found = []
            for model in (plain, net):
                own = x.clone(memory_format=torch.preserve_format).requires_grad_()
                model.zero_grad()
                y = model[0](own, *more)
                y.square().sum().backward()
                found.append([y, own.grad, *(p.grad for p in model.parameters())])
            torch.testing.assert_close(*found)
    assert any(call is not None and call.transposed for call in kept(net).calls.values())


@pytest.mark.parametrize("faster", [False, True])
@pytest.mark.parametrize("layer", [nn.MaxPool2d(2, return_indices=True), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2)])
def test_layers_that_go_one_way_as_a_whole(seconds: Seconds, layer: nn.Module, faster: bool) -> None:
    seconds.update(forward=(1.0, 2.0), backward=(3.0, 1.0) if faster else (3.0, 4.0))
    plain, x = nn.Sequential(copy.deepcopy(layer)), image(2, 3, 4, 4).requires_grad_()
    net = pt.accelerate(copy.deepcopy(plain))
    for _ in range(CLEAR_CALLS + 2):
        found = []
        for model in (plain, net):
            y = model(x)
            y = y[0] if isinstance(y, tuple) else y
            found.append([y, *torch.autograd.grad(y.square().sum(), x)])
        torch.testing.assert_close(*found)
    assert kept(net).settled.popitem()[1] == (frozenset(measuring.WHOLE) if faster else None)
    [told] = pt.explain(net, x).layers
    assert (told.reason is None) == faster
    assert "forward 1e+03 and 2e+03" in told.known
    assert told.reason == (None if faster else choices.MEASURED)


def test_without_a_backward_pass_the_forward_one_decides(seconds: Seconds) -> None:
    seconds.update(forward=(2.0, 1.0))
    net, x = pt.accelerate(conv()), image()
    with torch.no_grad():
        for _ in range(2 * CLEAR_CALLS + 1):
            net(x)
    assert list(kept(net).settled.values()) == [frozenset([FORWARD])]
    for _ in range(2 * MOST_CALLS + 2):  # with gradients that nobody asks for
        net(x)
    assert choices.pending(net) == 0
    assert list(kept(net).settled.values())[1] == frozenset([FORWARD, FILTER])  # the rules say ours


def test_every_kind_of_input_has_its_own_choice(seconds: Seconds) -> None:
    net, x = pt.accelerate(conv()), image()
    before = torch.get_num_threads()
    changes: list[Callable[[], Any]] = [
        lambda: step(net, x),
        lambda: step(net, image(2, 3, 5, 4)),
        lambda: step(net, x.contiguous(memory_format=torch.channels_last)),
        lambda: step(net, x.clone().requires_grad_()),
        lambda: step(net.float(), x.float()),
    ]
    for number, change in enumerate(changes, 1):
        for _ in range(CLEAR_CALLS + 1):
            change()
        assert len(kept(net).settled) == number
    net.double()
    with pb.threads(2):
        step(net, x)
    try:
        torch.set_num_threads(before + 1)
        step(net, x)
    finally:
        torch.set_num_threads(before)
    assert choices.pending(net) == 2


def test_shapes_that_always_change_are_measured_together_and_not_forever(
    monkeypatch: pytest.MonkeyPatch, seconds: Seconds
) -> None:
    seconds.update(dict.fromkeys(MIXED_OPS, (2.0, 1.0)))
    net = pt.accelerate(conv())
    samples = heard(monkeypatch)
    shapes = [(1, 3, 27 + i % 8, 27 + i // 8) for i in range(64)]  # all with the same number of bits
    for shape in shapes:
        step(net, image(*shape))
    assert len(kept(net).trials) == choices.MOST_EXACT  # of shapes that came once
    assert len(kept(net).verdicts) == 1
    assert len(samples) == 2 * (choices.MOST_EXACT + 2 * CLEAR_CALLS)
    [verdict] = kept(net).verdicts.values()
    assert verdict.ours == {FORWARD, FILTER}
    monkeypatch.setattr(choices, "MOST_KINDS", choices.MOST_EXACT + 1)
    step(net, image(1, 3, 9, 9))
    assert len(samples) == 2 * (choices.MOST_EXACT + 2 * CLEAR_CALLS)


def test_fast_ops_that_make_no_fast_layer_are_given_up(seconds: Seconds) -> None:
    seconds.update({**dict.fromkeys(MIXED_OPS, (2.0, 1.0)), "in all": (2.0, 2.1)})
    net, x = pt.accelerate(conv()), image()
    for _ in range(CLEAR_CALLS + 2 * (FIRST_SAMPLES + MANY_SAMPLES) + 1):
        step(net, x)
    assert list(kept(net).settled.values()) == [None]
    [layer] = pt.explain(net, x).layers
    assert layer.reason == choices.MEASURED
    assert "forward 2e+03 and 1e+03" in layer.known
    assert "in all 4e+03 and 4.2e+03" in layer.known


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_is_measured_where_pytorch_traces_or_explains(monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> None:
    samples = heard(monkeypatch)
    net, x = pt.accelerate(conv()), image(2, 3, 5, 4)
    expected = net(x)
    assert len(samples) == 1
    torch.testing.assert_close(torch.compile(net, backend="aot_eager", fullgraph=True)(x), expected)
    torch.testing.assert_close(torch.vmap(lambda y: net(y[None])[0])(x), expected)
    torch.testing.assert_close(torch.func.functional_call(net, dict(net.named_parameters()), (x,)), expected)
    torch.testing.assert_close(torch.jit.trace(net, x, check_trace=False)(x), expected)
    torch.testing.assert_close(torch.fx.symbolic_trace(net)(x), expected)
    torch.func.jvp(net, (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        net(torch.autograd.forward_ad.make_dual(x, x))
    assert "the first steps measure it" in str(pt.explain(net, x))
    assert len(samples) == 3  # of net(x), functional_call and torch.fx's graph, which call it as it is


def test_checkpoints_are_measured_and_keep_what_they_kept(seconds: Seconds) -> None:
    """Its function is run twice, and the second time in another turn: it must keep the same tensors."""
    plain = nn.Sequential(conv(), nn.MaxPool2d(2))
    net = pt.accelerate(copy.deepcopy(plain))
    for x in (image(), image().requires_grad_()):
        expected = step(plain, x)
        for faster in (1.0, 3.0):
            seconds.update(dict.fromkeys(MIXED_OPS, (2.0, faster)))
            kept(net[0]).__init__()  # type: ignore[misc]
            for _ in range(CLEAR_CALLS + 1):
                found = step(lambda_module(lambda y: checkpoint(net, y, use_reentrant=False), net), x)
                torch.testing.assert_close(found, expected)
            assert choices.pending(net) == 0


def lambda_module(function: Callable[[torch.Tensor], Any], inner: nn.Module) -> nn.Module:
    class Called(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return Called()


def test_copies_keep_what_is_settled_and_pickles_begin_anew(seconds: Seconds) -> None:
    net, x = pt.accelerate(conv()), image()
    for _ in range(CLEAR_CALLS + 1):
        step(net, x)
    step(net, image(2, 3, 5, 4))
    assert (len(kept(net).settled), choices.pending(net)) == (1, 1)
    copied, loaded = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    assert (kept(copied).settled, choices.pending(copied)) == (kept(net).settled, 0)
    assert (kept(loaded).settled, choices.pending(loaded)) == ({}, 0)
    for other in (copied, loaded):
        assert list(other.state_dict()) == list(conv().state_dict())
        torch.testing.assert_close(step(other, x), step(net, x))


def test_measuring_ends_with_restore_and_without_measure(monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> None:
    samples = heard(monkeypatch)
    net, x = pt.accelerate(conv(), measure=False), image()
    first = step(net, x)
    assert all(torch.equal(a, b) for _ in range(3) for a, b in zip(step(net, x), first, strict=True))
    assert choices.CHOICES not in net[0].__dict__
    assert pt.explain(net, x).layers[0].known == ""
    pt.accelerate(net)
    step(net, x)
    pt.restore(net)
    assert choices.CHOICES not in net[0].__dict__
    step(net, x)
    assert len(samples) == 2


def test_many_threads_measure_the_same_model(seconds: Seconds) -> None:
    plain, x = conv(), image().requires_grad_()
    net, expected = pt.accelerate(copy.deepcopy(plain)), plain(x).detach()
    failed: list[BaseException] = []

    def train() -> None:
        try:
            for _ in range(MOST_CALLS):
                y = net(x)
                torch.testing.assert_close(y.detach(), expected)
                torch.autograd.grad(y.sum(), [*net.parameters()])
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=train) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed
    assert len(kept(net).verdicts) == 1


def test_time_is_looked_at_around_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on in our kernels alone: 1 for the first of them in a call, 2 for the second."""
    from pullback.torch import kernels

    now, named = [0.0], kernels.named

    def slow(op: str, *given: Any) -> Any:
        now[0] += 1.0 if op == "conv" else 2.0
        return named(op, *given)

    monkeypatch.setattr(kernels, "named", slow)
    monkeypatch.setattr(measuring, "clock", lambda: now[0])
    net, x = pt.accelerate(conv()), image()
    for _ in range(4):
        step(net, x)
    [trial] = kept(net).trials.values()
    assert trial.samples == {
        (FORWARD, False): [0.0, 0.0], (FORWARD, True): [1.0, 1.0], (FILTER, False): [0.0, 0.0], (FILTER, True): [2.0, 2.0],
    }  # fmt: skip
    assert INPUT not in trial.ops
    assert trial.beside == [0.0] * 4


def test_what_a_call_takes_beside_its_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by one at each look: one look after the other around each op, and around each pass."""
    now = [0.0]

    def looked() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(measuring, "clock", looked)
    net, x = pt.accelerate(conv()), image().requires_grad_()
    step(net, x)
    [trial] = kept(net).trials.values()
    assert [len(samples) for (_, ours), samples in trial.samples.items()] == [1, 0] * 3
    assert trial.beside == [(3.0 - 1.0) + (5.0 - 2.0)]
