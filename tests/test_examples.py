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
