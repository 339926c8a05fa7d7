"""compare(model, ...) and `pullback compare`: what is measured and said, and that the model is left as it was to the last bit."""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (as everybody calls it)

import pullback.torch as pt
from pullback.cli import main
from pullback.torch import kernels
from pullback.torch.comparing import step_times
from pullback.torch.comparing.comparison import Comparison, LayerTimes, Memory, Times

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nothing_is_small")]
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Layers, calls, statistics, random numbers, a list that grows, and a frozen layer; raises at the call it is told to."""

    def __init__(self, raises_at: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2)
        self.frozen = nn.Conv2d(4, 4, 3, padding=1).requires_grad_(False)
        self.ring = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.drop = nn.Dropout().eval()
        self.register_buffer("seen", torch.zeros(()))
        self.sizes: list[Any] = []
        self.raises_at, self.threads = raises_at, torch.get_num_threads()

    def forward(self, x: torch.Tensor, scale: torch.Tensor, *, shift: float = 0.0) -> dict[str, torch.Tensor]:
        self.sizes.append(x.stride())
        self.seen = self.seen + 1  # another tensor
        torch.set_num_threads(1)
        if len(self.sizes) == self.raises_at:
            raise ZeroDivisionError
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        x = self.frozen(self.pool(x)) + torch.rand(()) + random.random() + np.random.random()  # noqa: NPY002
        return {"y": F.avg_pool2d(self.ring(self.ring(self.drop(x))), 2) * scale + shift}


def snapshot(net: nn.Module) -> list[Any]:
    """Everything that must be as it was; tensors by identity, version and bits."""
    tensors = [*net.parameters(), *net.buffers()]
    found: list[Any] = [torch.get_num_threads(), random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()]  # noqa: NPY002
    found += [
        (id(t), t.requires_grad, id(t.grad), t.detach().numpy().tobytes(), t.grad is not None and t.grad.tolist())
        for t in tensors
    ]
    for module in net.modules():
        held = {name: copy.copy(value) for name, value in module.__dict__.items() if isinstance(value, (dict, list, bool, int))}
        found += [type(module), {name: id(value) for name, value in module.__dict__.items()}, str(held)]
    return found


@pytest.mark.parametrize("raises_at", [0, 2, 4, 9])
@pytest.mark.parametrize("how", ["plain", "accelerated", "tuned", "functional"])
def test_the_model_is_left_as_it_was(raises_at: int, how: str) -> None:
    net = Net(raises_at)
    if how != "plain":
        pt.accelerate(net, measure=False, only=["stem", "pool"], tune=how == "tuned", functional=how == "functional")
    net.stem.register_forward_hook(lambda *_: None)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    x, scale = X.clone().requires_grad_(), torch.ones(())
    x.grad = torch.ones_like(x)
    before = snapshot(net)
    if raises_at:
        with pytest.raises(ZeroDivisionError):
            pt.compare(net, x, scale, steps=1)
    else:
        found = pt.compare(net, x, scale, steps=1, measure=how != "plain")
        assert {layer.name for layer in found.layers if layer.reason is None} >= ({"stem", "pool"} if how != "tuned" else set())
    assert snapshot(net) == before
    assert torch.equal(x, X)
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("functional", [False, True])
def test_what_is_said_of_each_layer(functional: bool) -> None:
    found = pt.compare(Net(), X, torch.ones(()), steps=2, measure=False, functional=functional, shift=1.0)
    layers = {layer.name or layer.kind: layer for layer in found.layers}
    assert {name: tuple(layer.ops) for name, layer in layers.items()} == {
        "stem": ("forward", "filter gradient"),  # nobody wants the gradient of the data
        "pool": ("forward", "input gradient"),
        "norm": ("forward", "input gradient"),
        "frozen": ("forward", "input gradient"),
        "ring": ("forward", "input gradient", "filter gradient"),
        "F.avg_pool2d": ("forward", "input gradient"),
    }
    left = {name: layer.reason for name, layer in layers.items() if layer.reason is not None}
    assert "circular" in str(left.pop("ring"))
    assert "small" in str(left.pop("norm"))
    assert list(left) == ([] if functional else ["F.avg_pool2d"])
    assert layers["ring"].calls == 2
    for layer in found.layers:
        for times in layer.ops.values():
            assert len(times.pytorch) == 2
            assert len(times.ours) == (2 if layer.reason is None else 0)
            assert min(times.pytorch + times.ours) > 0
    assert len(found.step.pytorch) == len(found.step.ours) == 2
    assert found.loss_apart is not None
    assert found.loss_apart < 1e-5  # the same random numbers and statistics on both sides
    assert found.memory.kept[0] > found.memory.kept[1] > 0  # winners are a byte each, PyTorch's indices eight
    text = str(found)
    for part in (torch.__version__, "threads: ", "circular", "kept for the backward pass", "parts in eval mode"):
        assert part in text
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["ops"]["forward"]["ours"]["samples_ms"]


def test_each_op_s_time_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by itself at each look, and further in our kernels."""
    now, ops = [0.0], {"conv": 10.0, "conv_grad_input": 20.0, "conv_grad_filter": 40.0}
    compute = kernels.compute

    def looked() -> float:
        now[0] += 1e-3
        return now[0]

    def slow(op: str, *given: Any) -> Any:
        now[0] += ops[op]
        return compute(op, *given)

    for module in (kernels, step_times):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=looked))
    monkeypatch.setattr(kernels, "compute", slow)
    found = pt.compare(nn.Conv2d(3, 4, 3), X.clone().requires_grad_(), steps=1, measure=False)
    [layer] = found.layers
    assert [round(times.ours[0] / 1e3) for times in layer.ops.values()] == [10, 20, 40]
    assert [round(times.pytorch[0]) for times in layer.ops.values()] == [1, 1, 1]


@pytest.mark.parametrize("last", [False, True])
def test_inputs_arrive_as_they_are(last: bool) -> None:
    """float64, channels_last, all frozen: forward only."""
    form = torch.channels_last if last else torch.contiguous_format
    net = Net().double().to(memory_format=form).requires_grad_(False)
    seen = []
    net.register_forward_pre_hook(lambda module, given: seen.append((given[0].dtype, given[0].stride())))
    x = X.double().to(memory_format=form)
    with torch.no_grad():
        found = pt.compare(net, x, scale=torch.ones((), dtype=torch.float64), steps=1, measure=False)
    assert set(seen) == {(x.dtype, x.stride())}
    assert {tuple(layer.ops) for layer in found.layers} == {("forward",)}
    assert "forward only" in str(found)
    assert not any(layer.reason for layer in found.layers if layer.kind == "MaxPool2d")


def test_losses_and_steps() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    assert pt.compare(net, X, loss=lambda y: y.abs().sum(), steps=1).step.ours
    with pytest.raises(TypeError, match="loss must be a tensor of one number"):
        pt.compare(net, X, loss=lambda y: y, steps=1)
    with pytest.raises(TypeError, match="returned a str without float tensors; give loss="):
        pt.compare(nn.Sequential(net, Words()), X)
    with pytest.raises(ValueError, match=r"the model is on meta; our kernels are the CPU's: model\.cpu\(\)"):
        pt.compare(Net().to("meta"), X)
    with pytest.raises(ValueError, match="steps is 0"):
        pt.compare(net, X, steps=0)
    with pytest.raises(ValueError, match=r"'0\.weight' has no shape yet; call the model once before"):
        pt.compare(nn.Sequential(nn.LazyConv2d(4, 3)), X)


class Words(nn.Module):
    def forward(self, x: torch.Tensor) -> str:
        return "words"


def made_up(
    count: int, steps: tuple[float, ...] = (1.0, 1.05, 1.1), layer: tuple[float, ...] = (3.0, 3.0, 4.0)
) -> Comparison:  # fmt: skip
    times = Times(layer, (1.5, 1.5, 2.0))
    layers = [LayerTimes(f"layer{i}", "Conv2d", (1, 2, 3), 1, None, {"forward": times}) for i in range(count)]
    layers.append(LayerTimes("last", "MaxPool2d", (1,), 1, "why not", {"forward": Times((1.0,))}))
    settings = {"versions": {"PyTorch": "2", "pullback": "1"}, "threads": 2, "step": "forward", "cpu": "a CPU"}
    return Comparison(tuple(layers), Times((2.0, 2.1, 2.2), steps), Memory((4 << 20, 1 << 20), None), None, settings)


def test_a_busy_machine_is_said() -> None:
    quiet, busy = made_up(1), made_up(1, (1.0, 1.5, 9.0))
    assert quiet.busy is None
    assert "busy" not in str(quiet)
    assert "our steps took 1.00 ms at best and 1.50 in the median (steps up to 9.00): the machine seems busy" in str(busy)
    assert "PyTorch's layers took 3.00 ms at best and 5.00 in the median" in str(made_up(1, layer=(2.0, 4.0, 9.0)))
    assert quiet.gain == 2.0
    assert quiet.layers[0].gain == 2.0
    assert "last: why not" in str(quiet)
    assert "1 of 2 are ours: 3.00 ms of PyTorch's became 1.50 ms; those left to PyTorch take 1.00 ms" in str(quiet)
    assert "PyTorch 4.0 MiB, ours 1.0 MiB" in str(quiet)


@pytest.mark.parametrize("count", [1, 40])
def test_pictures(tmp_path: Path, count: int) -> None:
    sizes = []
    for theme in ("light", "dark"):
        path = tmp_path / f"{theme}.png"
        made_up(count).plot(path, theme=theme)
        sizes.append(int.from_bytes(path.read_bytes()[16:20], "big"))  # the width, as PNG has it
    assert sizes == [880, 880]
    made_up(count).plot(tmp_path / "bars.svg")
    text = (tmp_path / "bars.svg").read_text()
    assert "left to PyTorch" in text if count == 1 else "18 shorter ones" in text
    with pytest.raises(ValueError, match="the themes are light, dark"):
        made_up(1).plot(tmp_path / "bars.svg", theme="blue")
    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        made_up(1).plot(tmp_path / "bars.gif")


SOURCE = """
import torch
from torch import nn

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, a, b, scale=1.0):
        return self.conv(a + b) * scale

def example():
    return Sum(), (torch.ones(2, 3, 8, 8), torch.ones(2, 3, 8, 8)), {"scale": 2.0}

def alone():
    return Sum()

def broken():
    raise ValueError("mine")

def loss(y):
    return y.sum()
"""


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "compared_source.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    options = ["--steps", "1", "--loss", "compared_source:loss", "--json", "step.json", "--plot", "step.png", "--theme", "dark"]
    assert main(["compare", "compared_source:example", *options]) == 0
    output = capsys.readouterr().out
    assert "conv" in output
    assert "times as fast" in output
    assert json.loads((tmp_path / "step.json").read_text())["layers"][0]["name"] == "conv"
    assert (tmp_path / "step.png").stat().st_size > 1000
    assert main(["compare", f"{tmp_path / 'compared_source.py'}:example", "--steps", "1", "--only", "conv"]) == 0
    capsys.readouterr()
    for given, said in {
        "compared_source": "'compared_source' is no MODULE:FUNCTION",
        "no_such_module:example": "there is no module 'no_such_module'",
        "no/such.py:example": "there is no file 'no/such.py'",
        "compared_source:exmaple": "has no function 'exmaple'; it has Sum, example, alone, broken, loss",
        "compared_source:alone": "must return a model and its inputs",
        "compared_source:example --only cnov": "only='cnov' is the name of no convolution or pooling; the nearest names are 'conv'",
        "compared_source:example --steps 0": "at least 1 of each",
        "compared_source:example --plot a.gif": ".png or .svg",
    }.items():
        assert main(["compare", *given.split()]) == 2, given
        assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match="mine"):
        main(["compare", "compared_source:broken"])
    assert torch.get_num_threads() == threads
