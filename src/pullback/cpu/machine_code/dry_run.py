"""Planning without running: which variants calls would ask for, on this machine or for a level that it does not have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pullback.cpu.machine_code.variants import Variant


@dataclass
class DryRun:
    """What has been asked for. `faulty`: whether kernels seem to find faults, and results that are not finite, or neither."""

    faulty: bool
    wanted: dict[Variant, None] = field(default_factory=dict)  # in the order in which they were asked for

    @property
    def result(self) -> float:
        """What every result seems to be."""
        return math.nan if self.faulty else 0.0


FLAGS = ("faults", "nonfinite")  # the fields of records by which kernels report what they have found

current: DryRun | None = None


@contextmanager
def dry_run(faulty: bool) -> Iterator[DryRun]:
    """Inside the block no kernel is compiled or run. For one thread alone: all others would get such results too."""
    from pullback.cpu.engine.plan_cache import release_plans

    global current
    run = DryRun(faulty)
    try:
        release_plans()  # which have asked already
        current = run
        yield run
    finally:
        current = None
        release_plans()  # which have no code
