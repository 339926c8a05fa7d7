"""`pullback bench --from`: the shapes of a PyTorch model's forward."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pullback.bench import from_model
from pullback.cli import main

MODEL = """
import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, stride=2, padding=2)
        self.grouped = nn.Conv2d(8, 8, 3, padding="same", groups=4)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.back = nn.ConvTranspose2d(8, 4, 2)
        self.line = nn.Conv1d(4, 2, 3)
        self.last = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.grouped(self.grouped(self.first(x)))  # the same shape twice
        y = self.pool(x)
        functional.avg_pool2d(y, 2)
        functional.max_pool2d(y, 2, return_indices=True)  # the same window
        functional.max_pool2d(y, 4, ceil_mode=True)
        functional.adaptive_max_pool2d(y, 4)
        self.line(self.back(y).flatten(2))
        return self.last(y)


def make():
    return Net(), torch.ones(2, 3, 24, 24)


def alone():
    return Net()


def nothing():
    return nn.ReLU(), (torch.ones(2),)
"""


@pytest.fixture
def model_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "a_model", raising=False)
    return tmp_path


@pytest.mark.torch
def test_the_distinct_shapes_of_a_forward(model_folder: Path) -> None:
    cases, left_out = from_model.find_cases("a_model:make")
    assert {case.name: case.families for case in cases} == {
        "2x24x24x3-5x5-8-s2-p2": ("conv",),
        "2x12x12x8-3x3-8-p1-g4": ("conv",),
        "2x12x12x8-3x3-s2-p1": ("max",),
        "2x6x6x8-2x2-s2": ("avg", "max"),
        "2x49x4-3-2": ("conv",),
        "2x6x6x8-6x6-s6": ("avg",),
    }
    assert dict(left_out) == {
        "conv_transpose2d, for which the benchmark has no op": 1,
        "max_pool2d whose ceil_mode adds a window": 1,
        "adaptive_max_pool2d whose windows are not all alike": 1,
    }


@pytest.mark.torch
def test_each_shape_has_the_ops_that_the_model_takes(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--backend", "reference", "--peer", "none", "--seconds", "0", "--layout", "channels_last"]
    assert main(["bench", "--from", "a_model:make", "--op", "max_pool", "--op", "avg_pool", *quick]) == 0
    told = capsys.readouterr()
    assert "4 rows" in told.out
    assert "left out: conv_transpose2d" in told.err


@pytest.mark.torch
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("a_model", "give a module and a function"),
        ("no_model:make", "there is no module 'no_model'"),
        ("a_model:absent", "has no 'absent'"),
        ("a_model:alone", "must return the model and its inputs"),
        ("a_model:nothing", "no convolution or pooling"),
    ],
)
def test_what_cannot_be_asked(spec: str, message: str, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--from", spec]) == 2
    assert f"--from {spec}: " in (err := capsys.readouterr().err)
    assert message in err


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(package: str, extra: str) -> Any:
        return f"{package} is not installed: pip install 'pullback[{extra}]'"

    monkeypatch.setattr(from_model, "package_missing", missing)
    assert main(["bench", "--from", "a_model:make"]) == 2
    assert "pip install 'pullback[torch]'" in capsys.readouterr().err
