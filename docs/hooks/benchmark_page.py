"""The published benchmark results: docs/data/benchmark.json through `pullback bench page`, which prints them as a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "data" / "benchmark.json"
NONE_YET = "No results are published yet. `make bench` measures your machine."


def results() -> str:
    """The results as tables that can be sorted and searched, or a sentence where there are none."""
    if not RESULTS.exists():
        return NONE_YET
    command = [sys.executable, "-m", "pullback", "bench", "page", str(RESULTS)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
