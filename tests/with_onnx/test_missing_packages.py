"""Without onnx, safetensors, matplotlib or rich: one sentence that names what to install, and what can be done is done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from cpu_calls import run_python

from pullback.cli import main, train_progress
from pullback.cli.train_files import files_of


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        (["onnx"], ["train"]),
        (["safetensors"], ["train"]),
        (["onnx", "safetensors"], ["train"]),
        (["matplotlib"], ["train", "--curves", "curves.png"]),
        (["onnx"], ["grads"]),
    ],
)
def test_what_a_command_cannot_do_without(
    missing: list[str],
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.err == f"pullback {command[0]}: this needs {' and '.join(missing)}: pip install 'pullback[train]'\n"
    assert said.out == ""
    assert not list(tmp_path.iterdir())


def test_the_training_graph_needs_no_safetensors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["grads"]) == 0
    assert "conv1.weight" in capsys.readouterr().out


def test_curves_that_nobody_asked_for_are_left_out_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert files_of(None, Path(), None, None, None).curves == Path("digits-curves.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert files_of(None, Path(), None, None, None).curves is None


def test_a_terminal_without_rich_is_told_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    trainer: Any = None  # not looked at
    for is_terminal in (True, False):
        monkeypatch.setattr(train_progress, "HAS_RICH", False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=is_terminal: shown)
        with train_progress.Display(1, 1, quiet=False).shown(trainer):
            pass
        said = capsys.readouterr().err
        assert said == ("no progress bar: it needs rich, pip install 'pullback[train]'\n" if is_terminal else "")


def test_names_of_pullback_onnx_say_what_they_need() -> None:
    source = """
import sys
sys.modules["onnx"] = None
import pullback.onnx as px
for name in ("Session", "training_graph"):
    try:
        getattr(px, name)
    except ImportError as error:
        print(error)
"""
    assert run_python(source).splitlines() == [
        f"pullback.onnx.{name} needs onnx: pip install 'pullback[onnx]'" for name in ("Session", "training_graph")
    ]
