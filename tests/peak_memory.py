"""How much memory a call takes at its peak beyond what it returns; for tests that run Python in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpu_calls import as_tuple

import pullback as pb
from pullback.cpu.engine import threads

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def kilobytes(name: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))


def peak_beyond(call: Callable[[], Any]) -> int:
    """Kilobytes beyond the result. What was kept of earlier calls is given back first, working memory included."""
    threads.pool().stop()
    threads._state.clear()
    pb.release_memory()
    CLEAR.write_text("5")  # the peak begins again at what is resident now
    before = kilobytes("VmRSS")
    answer = as_tuple(call())
    return kilobytes("VmHWM") - before - sum(array.nbytes for array in answer) // 1024
