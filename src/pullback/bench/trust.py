"""When a time is not to be trusted: its samples lie far apart, or the machine had other work when the run began."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

# Of the median, from the 20th to the 80th percentile of the samples: beyond it a time is busy. On a quiet machine 27 of 324 rows
# were, and 95 % of the others gave the same ratio within 11 % from either half of their rounds.
SPREAD_BAR = 0.5
LOAD_BAR = 0.5  # of the cores in reach, by the load average of the last minute: beyond it the machine is
FEWEST_SAMPLES = 3


def spread(samples: Sequence[float]) -> float | None:
    """Distance between the 20th and the 80th percentile, as a share of the median; None where there are too few samples."""
    if len(samples) < FEWEST_SAMPLES:
        return None
    cuts = statistics.quantiles(samples, n=5, method="inclusive")
    return (cuts[3] - cuts[0]) / statistics.median(samples)


def is_busy(samples: Sequence[float]) -> bool:
    """Whether the samples lie too far apart for their median to be trusted."""
    found = spread(samples)
    return found is not None and found > SPREAD_BAR


def busy_summary(busy: int, total: int, what: str) -> str:
    """How many of all are busy, as the last line of a table."""
    return f"BUSY      {busy} of {total} {what} are not to be trusted (spread beyond {SPREAD_BAR:.0%}): measure again"


def load_warning(machine: dict[str, Any]) -> str:
    """A sentence where other work was running when a run began; empty on a quiet machine, or where the load is unknown."""
    load, cores = machine["load"], machine["cores"]
    if load is None or not cores or load <= LOAD_BAR * cores:
        return ""
    return f"the machine is busy: load {load} on {cores} cores when the run began; measure again when it is quiet"
