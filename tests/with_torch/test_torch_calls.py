"""accelerate(functional=True), only=, except_= and adaptive pools: what is taken, what is left and said, and back again."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (as everybody calls it)
from torch.utils.checkpoint import checkpoint

import pullback.torch as pt
from pullback.torch import functional as ours
from pullback.torch import kernels, measuring, report, saving

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_small")]


class Centred(nn.Conv2d):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias, padding=1)


class Block(nn.Module):
    """Layers and calls, one of them left to PyTorch by its unequal windows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.own = nn.Conv2d(3, 4, 3, padding=1), Centred(4, 4, 3)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4 * 4 * 9).view(4, 4, 3, 3))

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        x = self.own(F.conv2d(torch.relu(self.conv(x)), self.weight, padding=1))
        values, _ = F.max_pool2d(x, 2, return_indices=True)
        values = F.adaptive_max_pool2d(F.adaptive_avg_pool2d(values, 4), 3)
        return values if scale is None else values * scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Block(), nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.AdaptiveAvgPool2d((1, None)))

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x, scale=scale))
        return y


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
CALLS = ["F.conv2d", "F.conv2d", "F.max_pool2d", "F.adaptive_avg_pool2d", "F.adaptive_max_pool2d"]


def gradients(net: nn.Module) -> list[Any]:
    net.zero_grad()
    y = net(X)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in net.parameters())]


def told(net: nn.Module) -> dict[str, list[str | None]]:
    """Reasons by kind."""
    found: dict[str, list[str | None]] = {}
    for layer in pt.explain(net, X).layers:
        found.setdefault(layer.kind, []).append(layer.reason)
    return found


def test_calls_are_listed_with_what_to_do() -> None:
    found = pt.explain(pt.accelerate(Net()), X).layers
    called = [layer for layer in found if layer.kind.startswith("F.")]
    assert [call.kind for call in called] == CALLS
    assert [call.name for call in called] == ["first", "first.own", "first", "first", "first"]
    assert {call.reason for call in called[:4]} == {report.A_CALL}
    assert "functional=True" in report.A_CALL
    assert "3 out of 4 cells" in str(called[4].reason)
    assert [layer.reason for layer in found if layer not in called] == [None, None, None]


def test_calls_are_taken_and_given_back() -> None:
    plain = Net()
    net = copy.deepcopy(plain)
    assert pt.accelerate(net, functional=True) is net
    assert isinstance(net, Net)
    assert [reasons for kind, reasons in told(net).items() if kind in CALLS[:4]] == [[None, None], [None], [None]]
    torch.testing.assert_close(gradients(net), gradients(plain), rtol=1e-4, atol=1e-5)
    assert list(net.state_dict()) == list(plain.state_dict())
    pt.restore(net)
    assert [type(module) for module in net.modules()] == [type(module) for module in plain.modules()]
    assert all(set(mine.__dict__) == set(other.__dict__) for mine, other in zip(net.modules(), plain.modules(), strict=True))


def test_taken_calls_copied_pickled_traced_and_compiled() -> None:
    net = pt.accelerate(Net(), functional=True)
    expected = gradients(net)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(other) is type(net)
        torch.testing.assert_close(gradients(other), expected)
    torch.testing.assert_close(torch.fx.symbolic_trace(net, {"scale": None})(X, None), expected[0])
    torch.testing.assert_close(torch.jit.trace(net, X)(X), expected[0])
    torch.testing.assert_close(torch.vmap(lambda x: net(x[None])[0])(X), expected[0])
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(compiled), expected)
    assert set(told(compiled)["F.conv2d"]) == {report.COMPILED_CALL}


def test_calls_end_with_the_model_and_stay_in_its_thread() -> None:
    """Nothing outside of forward is taken: not after an exception, nor in a thread beside it."""
    seen = []

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            beside = threading.Thread(target=lambda: seen.append(torch._C._len_torch_function_stack()))
            beside.start()
            beside.join()
            seen.append(torch._C._len_torch_function_stack())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pt.accelerate(Asking(), functional=True)(X)
    assert seen == [0, 1]
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("told", [True, False])
def test_checkpoints_keep_what_they_kept(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """The function of a checkpoint is run again outside of the model, where it must keep the same tensors."""
    if not told:
        monkeypatch.setattr(saving, "TOP_HOOKS", None)  # as in PyTorch 2.6

    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = checkpoint(lambda z: F.max_pool2d(z, 2), x, use_reentrant=False)
            return y

    x = X.clone().requires_grad_()
    net = pt.accelerate(Checked(), functional=True)
    net(x).sum().backward()
    assert x.grad is not None
    assert x.grad.sum() == x.numel() / 4
    assert "checkpoint" in str(pt.explain(net, x))


def layers(net: nn.Module) -> list[str]:
    """The names of the layers that are ours."""
    return [name for name, module in net.named_modules() if type(module).__module__ == "pullback.torch.modules"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"only": "second.*"}, ["second.0", "second.1"]),
        ({"only": "second"}, ["second.0", "second.1"]),
        ({"only": nn.Conv2d}, ["first.conv", "second.0"]),
        ({"only": [Block, "*.1"]}, ["first.conv", "second.1"]),
        ({"except_": "first"}, ["second.0", "second.1"]),
        ({"only": nn.Conv2d, "except_": lambda name, module: name.endswith("conv")}, ["second.0"]),
    ],
)
def test_only_and_except(options: dict[str, Any], expected: list[str]) -> None:
    """Whatever was accelerated before."""
    for net in (Net(), pt.accelerate(Net()), pt.accelerate(Net(), functional=True)):
        assert layers(pt.accelerate(net, **options)) == expected


def test_excepted_layers_stay_pytorch_s_inside_taken_calls() -> None:
    net = pt.accelerate(Net(), functional=True, except_=["first.own", "second"])
    found = told(net)
    assert found["F.conv2d"] == [None, report.LEFT_OUT]
    assert found["AdaptiveAvgPool2d"] == [report.LEFT_OUT]
    assert isinstance(net.second[0], nn.Conv2d)
    torch.testing.assert_close(gradients(net), gradients(Net()), rtol=1e-4, atol=1e-5)


def test_layers_choose_for_themselves_inside_taken_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured to be faster on PyTorch stays there, though the call within looks like one to take."""
    monkeypatch.setattr(measuring.Turn, "add", lambda turn, op, _: turn.trial.add(op, turn.ours, 2.0 if turn.ours else 1.0))
    net = pt.accelerate(Net(), functional=True, tune=True)
    net(X)
    heard: list[str] = []
    monkeypatch.setattr(kernels.listening, "heard", lambda op, seconds: heard.append(op))
    net(X)
    assert heard == ["conv", "conv", "max_pool", "avg_pool"]  # of the functions alone, in the order of their calls


def test_wishes_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match=r"only='frist.conv' is the name of no .* nearest names are 'first.conv'"):
        pt.accelerate(Net(), only="frist.conv")
    with pytest.raises(ValueError, match=r"except_=Conv3d .* the model has AdaptiveAvgPool2d, Block"):
        pt.accelerate(Net(), except_=[nn.Conv3d])
    with pytest.raises(TypeError, match="only has a int"):
        pt.accelerate(Net(), only=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [False, True])
def test_accelerated_for_a_block(before: bool) -> None:
    net = pt.accelerate(Net(), tune=True, only="second") if before else Net()
    kinds, inner = [type(module) for module in net.modules()], [dict(module.__dict__) for module in net.modules()]
    with contextlib.suppress(ZeroDivisionError), pt.accelerated(net, functional=True) as same:
        assert same is net
        assert layers(net) == ["first.conv", "second.0", "second.1"]
        raise ZeroDivisionError
    assert [type(module) for module in net.modules()] == kinds
    assert [dict(module.__dict__) for module in net.modules()] == inner


@pytest.mark.parametrize("kind", ["adaptive_max_pool", "adaptive_avg_pool"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_pools(kind: str, rank: int) -> None:
    x = torch.randn(2, 3, *(6, 8, 4)[:rank], dtype=torch.float64, requires_grad=True)
    name = f"{kind}{rank}d"
    mine, other = getattr(ours, name), getattr(F, name)
    sizes = [1, (3, 2, None)[:rank], (None,) * rank]
    for size in sizes:
        expected = other(x, size if rank > 1 or size != (None,) else x.shape[-1])
        y = mine(x, size)
        torch.testing.assert_close(y, expected)
        dy = torch.randn_like(y)
        torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(expected, x, dy))
    if "max" in kind:
        torch.testing.assert_close(mine(x[0], 2, True), other(x[0], 2, True))
        with pytest.raises(
            ValueError, match=rf"{name}: its windows differ in size: 5 out of 6 cells; use torch.nn.functional.{name}"
        ):
            mine(x, 5)
    module = getattr(nn, "".join(part.title() for part in kind.split("_")) + f"{rank}d")
    net = pt.accelerate(nn.Sequential(module(2), module(3 if rank > 1 else 1)))
    assert [layer.reason is None for layer in pt.explain(net, x).layers] == [True, rank == 1 or "avg" in kind]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_averages_over_windows_of_unequal_sizes(memory_format: torch.memory_format) -> None:
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
    y, expected = ours.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_avg_pool2d(x, (3, 4))
    torch.testing.assert_close(y, expected)
    assert y.is_contiguous(memory_format=memory_format)
    assert torch.autograd.gradcheck(lambda x: ours.adaptive_avg_pool2d(x, (3, 4)), x)
    assert torch.autograd.gradgradcheck(lambda x: ours.adaptive_avg_pool2d(x, (3, 4)) ** 2, x)
    many = torch.randn(4, 2, 3, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(lambda x: ours.adaptive_avg_pool2d(x, 3))(many), F.adaptive_avg_pool2d(
        many.flatten(0, 1), 3).unflatten(0, (4, 2)))  # fmt: skip
    net = pt.accelerate(nn.Sequential(nn.AdaptiveAvgPool2d(3)))
    last = memory_format == torch.channels_last
    [with_gradient], [without] = pt.explain(net, x).layers, pt.explain(net, x.detach()).layers
    assert (with_gradient.reason is None, without.reason is None) == (True, last)


def test_adaptive_pools_leave_sizes_open_in_traces() -> None:
    net = pt.accelerate(nn.Sequential(nn.AdaptiveAvgPool2d(1)))
    larger = torch.randn(1, 2, 6, 10)
    torch.testing.assert_close(torch.jit.trace(net, X)(larger), larger.mean((2, 3), keepdim=True))
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close([compiled(X), compiled(larger)], [x.mean((2, 3), keepdim=True) for x in (X, larger)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's, of its own exporter
def test_export_and_script_of_accelerated_models() -> None:
    net = pt.accelerate(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)))
    torch.onnx.export(net, (X,), io.BytesIO(), dynamo=False)
    with pytest.raises(RuntimeError, match=r"call pullback.torch.restore\(model\) first"):
        torch.jit.script(net)
    with pytest.raises(RuntimeError, match=r"call pullback.torch.restore\(model\) first"):
        torch.jit.script(pt.accelerate(Net(), functional=True, only="first"))
    torch.testing.assert_close(torch.jit.script(pt.restore(net))(X), net(X))
    traced = torch.fx.symbolic_trace(pt.accelerate(net))
    torch.testing.assert_close(traced(X), net(X))


def test_explain_takes_what_the_model_takes() -> None:
    net = pt.accelerate(Net())
    expected = str(pt.explain(net, X))
    scale = torch.ones(())
    assert (
        str(pt.explain(net, X, scale=scale)) == str(pt.explain(net, X, scale)) == str(pt.explain(net, (X, scale))) == expected
    )
    nested = torch.compile(nn.Sequential(torch.compile(net.second), nn.Flatten()))
    assert [layer.name for layer in pt.explain(nested, net.first(X)).layers] == ["0.0", "0.1"]
