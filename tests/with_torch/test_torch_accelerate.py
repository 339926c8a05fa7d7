"""accelerate, restore and explain: the same model with the same answers; and training it on two processes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pullback.torch as pt
from pullback.torch import choice

pytestmark = pytest.mark.torch
EXAMPLES = Path(__file__).parents[2] / "examples"


def model() -> nn.Sequential:
    """One layer of every swapped kind of two axes, one of a kind that is not, and one with another padding mode."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding="same", groups=2),
        nn.AvgPool2d(3, 1, 1), nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(4, 4, 3, padding_mode="circular", padding=1),
        nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip


X = torch.randn(2, 3, 12, 10, generator=torch.Generator().manual_seed(1))


def outcome(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Result and all gradients."""
    net.zero_grad()
    y = net(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]


@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.parametrize("last", [False, True])
def test_same_answers_and_back_again(last: bool) -> None:
    plain, x = model(), X
    if last:
        plain, x = plain.to(memory_format=torch.channels_last), X.to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    assert pt.accelerate(ours) is ours
    assert [layer.reason for layer in pt.explain(ours, x).layers].count(None) == 6
    torch.testing.assert_close(outcome(ours, x), outcome(plain, x), rtol=1e-4, atol=1e-4)
    state = plain.state_dict()
    assert list(ours.state_dict()) == list(state)
    ours.load_state_dict(state)
    assert all(isinstance(mine, type(theirs)) for mine, theirs in zip(ours, plain, strict=True))
    pt.restore(ours)
    assert [type(layer) for layer in ours] == [type(layer) for layer in plain]


@pytest.mark.usefixtures("nothing_is_small")
def test_pickled_copied_and_compiled() -> None:
    ours = pt.accelerate(model())
    expected = outcome(ours, X)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        other.load_state_dict(ours.state_dict())
        torch.testing.assert_close(outcome(other.train(), X), expected)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(outcome(compiled, X), expected)


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_normalization_large_enough_to_wait_is_compiled_whole() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    ours, x = pt.accelerate(copy.deepcopy(plain)), torch.randn(4, 3, 66, 66)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(outcome(compiled, x), outcome(plain, x))


@pytest.mark.usefixtures("nothing_is_small")
def test_left_alone() -> None:
    """What our kernels do not do, or PyTorch does better, runs as before."""
    assert pt.accelerate(model().to("meta"))(X.to("meta")).is_meta
    lazy = pt.accelerate(nn.Sequential(nn.LazyConv2d(4, 3)))
    assert type(lazy[0]) is nn.LazyConv2d
    with torch.autocast("cpu", torch.bfloat16):
        told = pt.explain(pt.accelerate(nn.Sequential(nn.Conv2d(3, 4, 3).double())), X.double()).layers
    assert "float64" in str(told[0].reason)


@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cast", [False, True], ids=["a half model", "autocast"])
@pytest.mark.parametrize("measure", [False, True])
def test_half_types(dtype: torch.dtype, cast: bool, measure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models in a half type and under autocast: results and gradients in the dtypes of PyTorch's, and about the same numbers."""
    monkeypatch.setattr(choice, "MULTIPLIES_BFLOAT16", True)  # as its rules are where the CPU has the instructions
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ConvTranspose2d(8, 4, 2, 2)
    )
    x = X.clone().requires_grad_()
    if not cast:
        plain, x = plain.to(dtype), x.detach().to(dtype).requires_grad_()
    ours = pt.accelerate(copy.deepcopy(plain), measure=measure)
    found = []
    with torch.autocast("cpu", dtype, enabled=cast):
        told = pt.explain(ours, x).layers
        assert (told[0].reason is None) == (dtype is torch.bfloat16)
        for _ in range(6 if measure else 1):  # one after the other, on PyTorch's kernels and on ours
            x.grad = None
            found.append([*outcome(ours, x), x.grad])
        x.grad = None
        expected = [*outcome(plain, x), x.grad]
    for one in found:
        assert [t.dtype for t in one] == [t.dtype for t in expected]
        assert one[0].dtype == dtype
        for made, wanted in zip(one, expected, strict=True):
            scale = float(wanted.abs().max())
            torch.testing.assert_close(made.float(), wanted.float(), rtol=0.05, atol=0.03 * scale)


def test_explain() -> None:
    report = pt.explain(model(), X)
    assert {layer.reason for layer in report.layers} == {"the model is not accelerated"}
    net = pt.accelerate(
        nn.Sequential(nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 3, groups=64), nn.MaxPool2d(2))
    )
    net.append(nn.Conv2d(64, 2, 3))
    before = copy.deepcopy(net.state_dict())
    report = pt.explain(net, torch.randn(8, 32, 40, 40))
    told = [layer.reason for layer in report.layers]
    assert told[0] is None
    assert "1x1" in str(told[1])
    assert "depthwise" in str(told[2])
    assert told[3] is None
    assert told[4] == "it was not accelerated with the others"
    assert len(str(report).splitlines()) == 5
    assert net.training
    torch.testing.assert_close(net.state_dict(), before)


def test_statistics_are_not_touched_by_explain() -> None:
    net = pt.accelerate(model())
    before = copy.deepcopy(net.state_dict())
    pt.explain(net, X)
    torch.testing.assert_close(net.state_dict(), before)
    assert net.training


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """DistributedDataParallel over gloo: the weights after a few steps are those of one process with the whole batch."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import ddp_torch
    finally:
        sys.path.remove(str(EXAMPLES))
    saved = tmp_path / "weights.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(EXAMPLES / "ddp_torch.py"), "--steps", "3", "--batch", "16", "--save", str(saved)]
    done = subprocess.run(command, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    single = pt.accelerate(ddp_torch.network())
    ddp_torch.train(single, 3, 16)
    torch.testing.assert_close(torch.load(saved), single.state_dict(), rtol=1e-4, atol=1e-5)
