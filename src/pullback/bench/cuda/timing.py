"""Times on a GPU by its own events: groups of calls, everybody in turns, so that clocks and neighbours meet all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

GROUPS, GROUP_SECONDS = 5, 0.012
Run = Callable[[], Any]


def _milliseconds(run: Run, calls: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def take_turns(participants: Mapping[str, Run]) -> dict[str, tuple[float, float]]:
    """(median, best) milliseconds of a call of each."""
    counts = {}
    for name, run in participants.items():
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        counts[name] = max(3, min(200, int(GROUP_SECONDS * 1e3 / max(_milliseconds(run, 3), 1e-3))))
    samples: dict[str, list[float]] = {name: [] for name in participants}
    for _ in range(GROUPS):
        for name, run in participants.items():
            samples[name].append(_milliseconds(run, counts[name]))
    return {name: (statistics.median(found), min(found)) for name, found in samples.items()}


def copy_rate() -> float:
    """Bytes a second, read and written, of a large copy on the device."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    _, best = take_turns({"copy": lambda: target.copy_(source)})["copy"]
    return float(2e3 * source.numel() * source.element_size() / best)
