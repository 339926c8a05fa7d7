"""The command as a whole; each sub-command has tests of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break otherwise there")
def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As `pullback bench --list | head -1`: no traceback, and the status that a shell gives to SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "import sys; from pullback.cli import main; sys.exit(main(['bench', '--list']))"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
