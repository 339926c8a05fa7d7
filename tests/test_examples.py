"""The examples run, learn, and explain themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *options: str) -> str:
    return subprocess.run([sys.executable, EXAMPLES / name, *options], check=True, capture_output=True, text=True).stdout


def test_digits_autograd_learns() -> None:
    output = run("digits_autograd.py", "--epochs", "4")
    assert output.count("epoch") == 4
    found = re.search(r"final accuracy ([\d.]+)%", output)
    assert found is not None
    assert float(found[1]) > 95


def test_digits_autograd_explains_itself() -> None:
    text = run("digits_autograd.py", "--help")
    assert "--epochs" in text
    assert "max_pool" in text
    with pytest.raises(subprocess.CalledProcessError):
        run("digits_autograd.py", "--epochs", "0")


def test_digits_onnx_learns_and_writes_a_model_that_onnx_reads(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'pullback[onnx]'")
    saved = tmp_path / "digits.onnx"
    output = run("digits_onnx.py", "--epochs", "2", "--save", str(saved))
    found = re.search(r"final accuracy ([\d.]+)%", output)
    assert found is not None
    assert float(found[1]) > 90
    onnx.checker.check_model(onnx.load(saved), full_check=True)
    further = run("digits_onnx.py", "--epochs", "1", "--model", str(saved), "--save", str(tmp_path / "further.onnx"))
    losses = [float(re.search(r"loss ([\d.]+)", text)[1]) for text in (output, further)]  # type: ignore[index]
    assert losses[1] < losses[0] / 2  # it began where the other ended
    assert (tmp_path / "further.onnx").read_bytes() != saved.read_bytes()
    parity = re.findall(r"([\d.]+)% of unseen digits right", further)[-1]
    assert float(parity) > 85
