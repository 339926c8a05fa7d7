"""Compiling is never silent: one line on stderr, a line that lasts as long as it does on a terminal, nothing where nobody asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.cpu.machine_code.notice import ERASE, TEXT

CALL = """
import sys
import numpy as np
import pullback as pb
with pb.backend("cpu"):
    pb.avg_pool(np.ones((1, 4, 4, 64), np.float32), 2)
    if "more" in sys.argv:
        pb.avg_pool(np.ones((1, 4, 4, 64)), 2)
"""


def said(folder: Path, *arguments: str, code: str = CALL, **environment: str) -> str:
    variables = os.environ | {"PULLBACK_CACHE_DIR": str(folder), "PULLBACK_QUIET": ""} | environment
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=variables, capture_output=True, text=True, timeout=300, check=True
    )
    assert ended.stdout == ""
    return ended.stderr


def test_it_is_said_once(tmp_path: Path) -> None:
    assert said(tmp_path, "more") == f"{TEXT}\n"
    assert said(tmp_path, "more") == "", "there was nothing to compile"


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    assert said(tmp_path, PULLBACK_QUIET="1") == ""


@pytest.mark.parametrize("stream", ["None", "open('/dev/full', 'w')", "object()"])
def test_a_broken_stderr_is_no_reason_to_fail(stream: str, tmp_path: Path) -> None:
    after = "import sys\nsys.stderr = sys.__stderr__\n"  # what is left in its buffer is not ours to write
    assert said(tmp_path, code=f"import sys\nsys.stderr = {stream}\n{CALL}{after}") == ""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no such terminals")
def test_on_a_terminal_the_kernel_at_hand_is_shown_and_erased(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    variables = os.environ | {"PULLBACK_CACHE_DIR": str(tmp_path), "PULLBACK_QUIET": ""}
    subprocess.run([sys.executable, "-c", CALL], env=variables, stderr=end, timeout=300, check=True)
    os.close(end)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # its other end is closed
        pass
    os.close(terminal)
    text = shown.decode()
    assert text.startswith(TEXT)
    assert "0 compiled in 0 s, now " in text
    assert "now pool.channels-avg_forward-float32" in text
    assert text.endswith(ERASE)
