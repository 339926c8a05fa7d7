"""Convolution, normalization and ReLU of a Sequential in one step: PyTorch's results and derivatives, and what keeps them apart."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import pullback as pb  # noqa: E402
import pullback.torch as pt  # noqa: E402
from pullback.torch import chains, choices, conv_norm, measuring  # noqa: E402
from pullback.torch.mixed import MIXED_OPS  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_small")]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
CONVS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}
WAYS = (frozenset(MIXED_OPS), frozenset(MIXED_OPS[:1]), frozenset(MIXED_OPS[1:]), frozenset(MIXED_OPS[::2]), frozenset())


class Always:
    """A trial that never ends."""

    def is_over(self) -> bool:
        return False

    def turn(self, _: float) -> None:
        return None


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Units are taken from the first step on, with the ops that the first of the list names; the others are those that ran."""
    seen: list[Any] = [frozenset(MIXED_OPS)]

    def taken(_: Any, of: Any, unit: Any, x: Any, weight: Any) -> Any:
        seen.append(of)
        return chains._run(of, seen[0], unit.norm, x, weight)

    monkeypatch.setattr(chains, "_in_turn", taken)
    monkeypatch.setattr(chains, "_new_trial", lambda *_: Always())
    monkeypatch.setattr(choices.WholeSteps, "is_looking_at", lambda *_: False)
    monkeypatch.setattr(chains, "something_compiled", lambda: False)  # by tests before
    return seen


def network(rank: int = 2, dtype: Any = torch.float64) -> nn.Sequential:
    """All that may follow a normalization; groups, strides, a convolution with a bias, of which no unit is made."""
    torch.manual_seed(rank)
    conv, norm = CONVS[rank]
    layers = (
        conv(3, 8, 3, padding=1, bias=False), norm(8), nn.ReLU(inplace=True),
        conv(8, 8, 3, stride=2, padding=1, groups=8, bias=False), norm(8, momentum=None), nn.ReLU6(),
        conv(8, 20, 1, bias=False), norm(20, affine=False), nn.Hardtanh(0.0, 1.5),
        conv(20, 6, 3, bias=False), norm(6, track_running_stats=False),
        conv(6, 6, 1), norm(6), nn.Tanh(),
    )  # fmt: skip
    net = nn.Sequential(*layers).to(dtype)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.7)
    return net


def images(rank: int = 2, last: bool = False, dtype: Any = torch.float64) -> Any:
    x = torch.randn((4, 3, *(9, 8, 7)[:rank]), dtype=dtype, generator=torch.Generator().manual_seed(5))
    return x.to(memory_format=FORMATS[rank + 2]) if last and rank > 1 else x


def steps(net: nn.Sequential, x: Any, count: int = 2) -> list[Any]:
    """Results, gradients and running statistics of some steps."""
    found = []
    for _ in range(count):
        given = x.clone(memory_format=torch.preserve_format).requires_grad_()
        net.zero_grad()
        y = net(given)
        y.square().sum().backward()
        found += [y.detach(), given.grad, *(parameter.grad.clone() for parameter in net.parameters())]
    return [*found, *(buffer.double() for buffer in net.buffers())]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_steps_are_pytorchs(units: list[Any], rank: int, last: bool, way: int) -> None:
    units[0] = WAYS[way]
    for dtype, close in ((torch.float64, {"rtol": 1e-9, "atol": 1e-10}), (torch.float32, {"rtol": 2e-3, "atol": 2e-3})):
        plain, x = network(rank, dtype), images(rank, last, dtype)
        if last and rank > 1:
            plain = plain.to(memory_format=FORMATS[rank + 2])
        ours = pt.accelerate(copy.deepcopy(plain))
        before = len(units)
        for one, other in zip(steps(plain, x), steps(ours, x), strict=True):
            torch.testing.assert_close(other, one, **close)
        assert len(units) - before == 2 * 4  # the convolution with a bias is none


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_bit(units: list[Any], threads: int) -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            with pb.threads(count):
                ours = pt.accelerate(network(2, torch.float32)[:9])
                found.append(steps(ours, torch.randn((8, 3, 40, 41), generator=torch.Generator().manual_seed(1)), 1))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert len(units) == 2 * 3 + 1


def test_derivatives_of_derivatives(units: list[Any]) -> None:
    plain, x = network()[:9], images()
    ours = pt.accelerate(copy.deepcopy(plain))
    found = []
    for net in (plain, ours):
        given = [x.clone().requires_grad_(), *net.parameters()]
        y = net(given[0])
        (slope,) = torch.autograd.grad((y**3).sum(), given[:1], create_graph=True)
        found.append([slope, *torch.autograd.grad(slope.square().sum(), given, allow_unused=True)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)
    assert len(units) == 3 + 1


def test_batches_of_gradients(units: list[Any]) -> None:
    plain, x = network()[:9], images()
    ours = pt.accelerate(copy.deepcopy(plain))
    found = []
    for net in (plain, ours):
        given = x.clone().requires_grad_()
        y = net(given)
        dys = torch.randn((3, *y.shape), dtype=y.dtype, generator=torch.Generator().manual_seed(2))
        found.append(torch.autograd.grad(y, (given, *net.parameters()), dys, is_grads_batched=True))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)
    assert len(units) > 1


@pytest.mark.parametrize("frozen", ["weight", "x", "norm", "all"])
def test_frozen_parts_have_no_gradient(units: list[Any], frozen: str) -> None:
    plain, x = network()[:3], images()
    plain[0].weight.requires_grad_(frozen not in ("weight", "all"))
    for parameter in plain[1].parameters():
        parameter.requires_grad_(frozen not in ("norm", "all"))
    ours = pt.accelerate(copy.deepcopy(plain))
    found = []
    for net in (plain, ours):
        given = x.clone().requires_grad_(frozen not in ("x", "all"))
        y = net(given)
        assert y.requires_grad == (frozen != "all")
        if frozen != "all":
            y.square().sum().backward()
        found.append([y.detach(), given.grad, *(parameter.grad for parameter in net.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one)
    assert len(units) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["x", "weight"])
@pytest.mark.parametrize("last", [False, True])
def test_what_is_not_finite_reaches_what_it_touches(units: list[Any], last: bool, where: str, bad: float) -> None:
    """Kernels that have met it say so, and the convolution is made again by those that can."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    x = torch.randn(2, 16, 20, 20)
    with torch.no_grad():
        (x if where == "x" else plain[0].weight)[1, 0, 0, 0] = bad
    x = x.to(memory_format=FORMATS[4]) if last else x
    ours = pt.accelerate(copy.deepcopy(plain))
    found = [steps(net, x, 1) for net in (plain, ours)]
    for one, other in zip(*found, strict=True):
        assert torch.equal(torch.isfinite(one), torch.isfinite(other))
    assert len(units) == 2


def test_what_keeps_layers_apart(units: list[Any]) -> None:
    """Whoever could see what lies between them: hooks on a layer or on all; eval mode; a checkpoint; fuse=False; a part's call."""
    plain, x = network()[:3], images()
    plain[2] = nn.ReLU()  # not in place, which PyTorch has no hooks beside
    ours = pt.accelerate(copy.deepcopy(plain))

    def apart() -> bool:
        before = len(units)
        ours(x.clone().requires_grad_())
        return len(units) == before

    assert not apart()
    for module in ours:
        for hook in (module.register_forward_hook, module.register_forward_pre_hook, module.register_full_backward_hook):
            handle = hook(lambda *_: None)
            assert apart()
            handle.remove()
    for on_all in (nn.modules.module.register_module_forward_hook, nn.modules.module.register_module_forward_pre_hook):
        handle = on_all(lambda *_: None)
        assert apart()
        handle.remove()
    for module in ours:
        own = module.forward
        module.forward = lambda *given, own=own: own(*given)
        assert apart()
        del module.forward
    assert not apart()
    ours.eval()
    assert apart()
    ours.train()
    with torch.no_grad():
        assert apart()
    torch.utils.checkpoint.checkpoint(ours, x.clone().requires_grad_(), use_reentrant=False)
    before = len(units)
    torch.testing.assert_close(ours[1](ours[0](x)).shape, plain(x).shape)
    assert len(units) == before
    ours[2] = nn.Tanh()  # the unit ends before it now
    torch.testing.assert_close(ours(x), torch.tanh(plain[1](plain[0](x))))
    assert units[-1].relu is None
    assert not any(isinstance(module, chains.Chained) for module in pt.accelerate(copy.deepcopy(plain), fuse=False).modules())


def test_layers_may_change(units: list[Any]) -> None:
    """What a call depends on is asked at each: strides and the like, a bias, where a ReLU ends, what is accelerated."""
    plain, x = network()[6:9], torch.randn(3, 8, 7, 6, dtype=torch.float64)
    ours = pt.accelerate(copy.deepcopy(plain))

    def same(count: int) -> None:
        before = len(units)
        torch.testing.assert_close(ours(x), plain(x))
        assert len(units) - before == count

    same(1)
    for net in (plain, ours):
        net[0].stride, net[0].padding = (2, 1), (1, 0)
    same(1)
    for net in (plain, ours):
        net[2].max_val = 0.5
    same(0)
    for net in (plain, ours):
        net[2].max_val = 1.5
    same(1)
    for net in (plain, ours):
        net[0].bias = nn.Parameter(torch.linspace(-1.0, 1.0, 20, dtype=torch.float64))
    same(0)
    for net in (plain, ours):
        net[0].bias = None
    same(1)
    for change in ({"except_": nn.BatchNorm2d}, {}, {"fuse": False}, {}, {"only": nn.BatchNorm2d}, {}):
        pt.accelerate(ours, **change)
        same(not change)
    pt.restore(ours[1])
    same(0)


def test_other_kernels_and_threads_are_asked_for(units: list[Any]) -> None:
    ours, x = pt.accelerate(network(2, torch.float32)[:3]), images(dtype=torch.float32)
    y = ours(x.clone().requires_grad_())
    with pb.kernel("cells"):  # there is none of this name for the filter's gradient
        torch.testing.assert_close(ours(x.clone().requires_grad_()), y)
        assert units[-1].call.forward.problem == units[-2].call.forward.problem
        assert units[-1] is not units[-2]
    for count in (1, 2, 1):
        with pb.threads(count):
            ours(x.clone().requires_grad_())
            native = units[-1].forward_jobs._native
            assert native is None or native.threads <= count
    with torch.device("meta"):
        given = x.clone().requires_grad_()
        ours(given).sum().backward()
    assert given.grad.device.type == "cpu"


def test_weights_that_are_no_parameters(units: list[Any]) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(4, 8, 3, bias=False)), nn.BatchNorm2d(8), nn.ReLU()).double()
    ours, x = pt.accelerate(copy.deepcopy(plain)), torch.randn(2, 4, 9, 9, dtype=torch.float64)
    for _ in range(3):
        torch.testing.assert_close(ours(x), plain(x))


def test_sequentials_stay_what_they_were(units: list[Any]) -> None:
    class Block(nn.Sequential):
        """A subclass with the forward of its parent."""

    class Other(nn.Sequential):
        def forward(self, input: Any) -> Any:
            return super().forward(input) + 1

    layers = list(network()[:3])
    net = nn.Sequential(Block(*copy.deepcopy(layers)), Other(*[nn.Identity()], nn.Sequential(nn.Conv2d(8, 3, 1)))).double()
    names = [type(module).__name__ for module in net.modules()]
    ours = pt.accelerate(copy.deepcopy(net))
    assert isinstance(ours[0], (Block, chains.Chained))
    assert not isinstance(ours[1], chains.Chained)
    assert [type(module).__name__ for module in ours.modules()] == names
    assert repr(ours) == repr(net)
    assert len(ours[0][:2]) == 2
    torch.testing.assert_close(ours(images()), net(images()))
    assert len(units) == 2
    again = pickle.loads(pickle.dumps(pt.accelerate(network()[:3])))
    assert isinstance(again, chains.Chained)
    torch.testing.assert_close(again(images()), network()[:3](images()))
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    net.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    assert [type(module) for module in pt.restore(ours).modules()] == [type(module) for module in net.modules()]
    with pt.accelerated(net) as inside:
        assert isinstance(inside[0], chains.Chained)
    assert type(net[0]) is Block
    with pytest.raises(RuntimeError, match="restore"):
        torch.jit.script(pt.accelerate(network()[:3]))


def test_threads_of_python_share_a_layer(units: list[Any]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ours, x = pt.accelerate(network()[:3]), images()
    expected = steps(copy.deepcopy(ours), x, 1)[0]

    def forward(_: int) -> Any:
        return ours(x.clone().requires_grad_()).detach()

    with ThreadPoolExecutor(4) as executor:
        for y in executor.map(forward, range(40)):
            torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("wins", [True, False])
def test_a_unit_is_tried_after_its_convolution(monkeypatch: pytest.MonkeyPatch, wins: bool) -> None:
    """By a clock of our own: all ops of the convolution take as long either way, the unit half as long or twice."""

    def add(turn: Any, op: str, _: float) -> None:
        shorter, longer = (1.0, 2.0) if wins or turn.trial.separate else (2.0, 1.0)
        turn.trial.add(op, turn.ours, shorter if turn.ours else longer)

    monkeypatch.setattr(measuring.Turn, "add", add)
    monkeypatch.setattr(choices.WholeSteps, "is_looking_at", lambda *_: False)
    monkeypatch.setattr(chains, "something_compiled", lambda: False)
    ran: list[Any] = []
    real = conv_norm._apply
    monkeypatch.setattr(conv_norm, "_apply", lambda *given: (ran.append(given[1]), real(*given))[1])
    net, x = pt.accelerate(network()[:3]), images()
    for _ in range(30):
        net(x.clone().requires_grad_()).sum().backward()
    kept = net[0].__dict__[choices.CHOICES]
    assert [bool(ops) for ops in kept.units.values()] == [wins]
    assert not kept.unit_trials
    before = len(ran)
    net(x.clone().requires_grad_()).sum().backward()
    assert (len(ran) > before) == wins
    told = pt.explain(net, x.clone().requires_grad_()).layers
    assert ("with its normalization" in told[0].known) == wins
    assert (told[1].known == choices.IN_ONE_STEP) == wins
    copied = copy.deepcopy(net)
    copied(x.clone().requires_grad_()).sum().backward()
    assert (len(ran) > before + 1 + (not wins)) == wins
    steps(net, x, 1)
