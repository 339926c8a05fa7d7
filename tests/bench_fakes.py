"""Two small cases, a clock, a peer and made-up results for the benchmark's tests: time passes only when told to."""

from __future__ import annotations

from collections.abc import Callable

from pullback.bench import ours
from pullback.bench.cases import LAYOUTS, Task
from pullback.bench.data import Data, Expected
from pullback.bench.peers.base import Prepared
from pullback.bench.results import Entry, Results, Row
from pullback.rules import Array, Layout

POOL = {
    "name": "small-pool",
    "rank": 2,
    "batch": 2,
    "channels": 3,
    "size": [7, 9],
    "window": [3, 2],
    "stride": [2, 1],
    "padding": 1,
}
CONV = {
    "name": "small-conv", "rank": 1, "batch": 2, "c_in": 4, "size": [11], "c_out": 6,
    "kernel": [3], "stride": 2, "padding": 1, "groups": 2, "dilation": 1,
}  # fmt: skip


class FakeClock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def step(self, seconds: float) -> None:
        self.now += seconds


class FakePeer:
    """A peer that computes with our reference backend, spoils the result as told, and takes as long as told."""

    slow = False

    def __init__(
        self,
        clock: FakeClock,
        seconds: float,
        name: str = "fake",
        spoil: Callable[[Array], Array] = lambda a: a,
        layouts: tuple[Layout, ...] = LAYOUTS,
        why_missing: str | None = None,
        refuse: Exception | None = None,
    ) -> None:
        self.clock, self.duration, self.name, self.spoil = clock, seconds, name, spoil
        self.layouts, self.why_missing, self.refuse = layouts, why_missing, refuse
        self.closed = 0

    def missing(self) -> str | None:
        return self.why_missing

    def version(self) -> str:
        return "1.2.3"

    def close(self) -> None:
        self.closed += 1

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        if self.refuse is not None:
            raise self.refuse
        right = Expected(data).of(task.op)
        return Prepared(lambda: self.clock.step(self.duration), lambda: tuple(self.spoil(a.copy()) for a in right))


def row(layout: str, mine: float, op: str = "conv", case: str = "a", **peers: float) -> Row:
    entries = {name: Entry([seconds], 1e-7, 2e-5) for name, seconds in {ours.NAME: mine, **peers}.items()}
    entries[ours.NAME].cell_error, entries[ours.NAME].kernel = 0.5, "cpu/direct"
    return Row(op, case, layout, "float32", 1, 1, None, entries)


def made(*rows: Row) -> Results:
    machine = {"cpu": "abacus", "cores": 2, "load": 0, "system": "any", "date": "2000-01-01", "python": "3"}
    settings = {"threads": 2, "seconds": 0.0, "backend": "cpu"}
    return Results(machine, settings, {ours.NAME: "1", "torch": "2", "jax": "3"}, {}, list(rows))
