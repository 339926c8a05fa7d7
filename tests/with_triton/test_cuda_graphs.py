"""`accelerate(model, graphs=True)` against the same model without graphs: on a GPU, since there is nothing to record elsewhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import pullback.torch as pt  # noqa: E402

nn = torch.nn
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here, and CUDA graphs need one"),
]
STEPS = 6  # the last ones are replayed


class Net(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False), nn.BatchNorm2d(8))
        self.drop, self.norm, self.head = nn.Dropout(drop), nn.LayerNorm(8), nn.Linear(8, 4)
        self.scale = 1.0

    def forward(self, x: Any, factor: float = 1.0) -> Any:
        y = self.first(x)
        y = torch.relu(self.second(y) + y)
        return self.head(self.norm(self.drop(y).mean((2, 3)))) * factor


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The same model twice, eager and with graphs; what cuDNN runs repeats its bits, in float32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.manual_seed(0)
    eager = Net().cuda().to(memory_format=torch.channels_last)
    yield pt.accelerate(copy.deepcopy(eager)), pt.accelerate(eager, graphs=True)
    torch.cuda.synchronize()


def images(seed: int, batch: int = 4, **more: Any) -> Any:
    torch.manual_seed(seed)
    return torch.randn(batch, 3, 12, 10, device="cuda", **more).to(memory_format=torch.channels_last)


def graphs(model: Any) -> Any:
    return model.__dict__["pullback_graphs"]


def recorded(model: Any) -> int:
    return sum(kind.recording is not None for kind in graphs(model).kinds.values())


def steps(model: Any, count: int = STEPS, half: bool = False, zero: bool = True) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for seed in range(count):
        optimizer.zero_grad(set_to_none=zero)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = model(images(seed)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def same_state(one: Any, other: Any, **tolerance: Any) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=name, **(tolerance or {"rtol": 1e-4, "atol": 1e-5}))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("zero", [True, False])
def test_training(pair: Any, half: bool, zero: bool) -> None:
    one, other = (steps(model, half=half, zero=zero) for model in pair)
    assert recorded(pair[1]) == 1
    close = {"rtol": 2e-2, "atol": 2e-2} if half else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), **close)
    same_state(*pair, **close)


def test_gradients_add_up_and_stay(pair: Any) -> None:
    for model in pair:
        steps(model)
        model.zero_grad()
    kept = []
    for model in pair:
        for seed in range(3):
            model(images(seed)).sum().backward()
            if seed == 0:
                held = [p.grad for p in model.parameters()]
                kept.append([g.clone() for g in held])
    for a, b in zip(pair[0].parameters(), pair[1].parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    for a, b in zip(*kept, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    model, x = pair[1], images(9)
    first = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    before = [g.clone() for g in first]
    torch.autograd.grad(model(images(8)).sum(), list(model.parameters()))
    assert graphs(model).why is None
    for a, b in zip(first, before, strict=True):
        assert torch.equal(a, b)


def test_a_second_call_before_the_backward_pass_is_eager(pair: Any) -> None:
    results = []
    for model in pair:
        steps(model)
        model.zero_grad()
        one, two = model(images(20)), model(images(21))
        assert model is pair[0] or "still to come" in graphs(model).why
        (one.sum() + 2 * two.square().sum()).backward()
        results.append([one, two, *[p.grad for p in model.parameters()]])
        dropped = model(images(22))
        del dropped
        model(images(23)).sum().backward()  # what nobody holds any more needs no backward pass
        assert model is pair[0] or graphs(model).why is None
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    same_state(*pair)


def test_results_are_not_overwritten(pair: Any) -> None:
    model = pair[1]
    steps(model)
    y = model(images(30))
    before = y.detach().clone()
    y.sum().backward()
    model(images(31)).sum().backward()
    assert graphs(model).why is None
    assert torch.equal(y, before)


def test_backward_passes_that_are_not_recorded(pair: Any) -> None:
    model = pair[1]
    steps(model)
    y = model(images(0))
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call the model again"):
        y.sum().backward()
    y = model(images(0, requires_grad=False))
    with pytest.raises(RuntimeError, match="derivatives of derivatives"):
        torch.autograd.grad(y.sum(), list(model.parameters()), create_graph=True)


def test_weights_that_change_before_the_backward_pass(pair: Any) -> None:
    model = pair[1]
    steps(model)
    y = model(images(0))
    with torch.no_grad():
        model.head.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_input_gradients_and_unused_results(pair: Any) -> None:
    found = []
    for model in pair:
        for seed in range(5):
            x = images(seed).requires_grad_()
            model(x, 2.0).sum().backward()
        found.append(x.grad)
    assert recorded(pair[1]) == 1
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_modes_and_numbers_are_kinds(pair: Any) -> None:
    for model in pair:
        steps(model)
        model.eval()
    for _ in range(5):
        with torch.no_grad():
            a, b = (model(images(3), factor) for model, factor in zip(pair, (3.0, 3.0), strict=True))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert recorded(pair[1]) == 2
    for model in pair:
        model.train()
    torch.testing.assert_close(pair[0](images(4), 0.5), pair[1](images(4), 0.5), rtol=1e-4, atol=1e-5)
    assert len(graphs(pair[1]).kinds) == 3


def test_weights_that_become_others(pair: Any) -> None:
    for model in pair:
        steps(model)
        with torch.no_grad():
            model.load_state_dict(
                {name: value / 2 if value.is_floating_point() else value + 1 for name, value in model.state_dict().items()},
                assign=True,
            )
        steps(model)
        model.first[0].weight.requires_grad_(False)
        steps(model)
        model.head = nn.Linear(8, 4, device="cuda")
        nn.init.ones_(model.head.weight)
        nn.init.zeros_(model.head.bias)
        steps(model)
    assert graphs(pair[1]).recorded == 4
    same_state(*pair)


def test_hooks_within_are_called(pair: Any) -> None:
    model, seen = pair[1], []
    steps(model)
    handle = model.first.register_forward_hook(lambda *_: seen.append(1))
    steps(model)
    assert len(seen) == STEPS
    assert "hooks" in graphs(model).why
    handle.remove()
    steps(model)
    assert graphs(model).why is None


def test_random_numbers_go_on() -> None:
    torch.manual_seed(0)
    model = pt.accelerate(Net(0.5).cuda(), graphs=True)
    x = images(0)
    for _ in range(5):
        model(x).sum().backward()
    assert recorded(model) == 1
    torch.manual_seed(5)
    one = model(x).detach()
    two = model(x).detach()
    torch.manual_seed(5)
    again = model(x).detach()
    assert not torch.equal(one, two)
    assert torch.equal(one, again)


class Waits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Net(0.5)

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        return y * 2 if y.sum().item() > 0 else y


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * float(g.sum().item() * 0 + 1)


class Fails(Waits):
    def forward(self, x: Any) -> Any:
        return _Fails.apply(self.inner(x))


@pytest.mark.parametrize(("kind", "why"), [(Waits, "waits for the GPU"), (Fails, "cannot be recorded")])
def test_what_cannot_be_recorded_stays_eager(kind: Any, why: str) -> None:
    torch.manual_seed(0)
    plain = kind().cuda()
    model = pt.accelerate(copy.deepcopy(plain), graphs=True)
    found = []
    for one in (plain, model):
        torch.manual_seed(1)
        found.append(steps(one, 7))
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(found[1]), rtol=1e-3, atol=1e-4)
    assert recorded(model) == 0
    assert why in str(pt.explain(model, images(0)))


def test_tensors_that_no_module_holds() -> None:
    model = Net().cuda()
    model.extra = [torch.ones(4, device="cuda", requires_grad=True)]
    forward = Net.forward

    class Extra(Net):
        def forward(self, x: Any) -> Any:
            return forward(self, x) * self.extra[0]

    model.__class__ = Extra
    pt.accelerate(model, graphs=True)
    for seed in range(5):
        model(images(seed)).sum().backward()
    assert "no parameter" in graphs(model).why
    assert model.extra[0].grad is not None


def test_undone_and_copied(pair: Any) -> None:
    model = pair[1]
    steps(model)
    twin, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for other in (twin, again):
        assert recorded(other) == 0
        steps(other)
        assert recorded(other) == 1
    steps(model)
    same_state(model, twin)
    same_state(model, again)
    pt.restore(model)
    assert type(model) is Net
    assert "pullback_graphs" not in model.__dict__
    steps(model, 1)


def test_two_streams_and_threads(pair: Any) -> None:
    for model in pair:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            steps(model)
        torch.cuda.current_stream().wait_stream(stream)
        steps(model)
    same_state(*pair)
