"""`pullback bench`: our ops timed against other systems, on a published list of shapes, with the right answer checked first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pullback import registry, settings
from pullback.bench import ours
from pullback.bench.accuracy import cell_error, error, tolerance
from pullback.bench.cases import LAYOUTS, OPS, Case, Task, bytes_moved, flop
from pullback.bench.data import Data, Expected, make_data
from pullback.bench.limits import COPY, WRITES, fma_seconds, prepare_limits
from pullback.bench.machine import describe_machine
from pullback.bench.peers.base import Clock, Peer, Prepared, UnsupportedError
from pullback.bench.results import Entry, Results, Row
from pullback.bench.timing import take_turns
from pullback.rules import Layout

Tick = Callable[[str], None]


@dataclass(frozen=True)
class Selection:
    """What to run: every combination of these that exists."""

    cases: Sequence[Case]
    peers: Sequence[Peer] = ()
    ops: Sequence[str] = tuple(OPS)
    layouts: Sequence[Layout] = LAYOUTS
    dtypes: Sequence[str] = ("float32",)
    threads: int = 2
    seconds: float = 0.5
    backend: str | None = None
    kernel: str | None = None

    def tasks(self, case: Case, dtype: str) -> list[Task]:
        fitting = [op for op in self.ops if case.has(op)]
        return [Task(op, case, dtype, layout) for op in fitting for layout in self.layouts]

    def size(self) -> int:
        """How many rows a run yields, for a progress bar."""
        return sum(len(self.tasks(case, dtype)) for case in self.cases for dtype in self.dtypes)


def run(
    selection: Selection,
    tick: Tick = lambda label: None,
    clock: Clock = time.perf_counter,
    pause: Callable[[float], object] = time.sleep,
    into: Results | None = None,
) -> Results:
    """Check and time every task; `tick` is called with each task's label when it is done.

    Who wants to keep what was measured before a run is broken off passes the frame of the results: `into`, then left partial.
    """
    results = frame(selection) if into is None else into
    results.partial = True
    present = [peer for peer in selection.peers if peer.name not in results.missing]
    backend = results.settings["backend"]
    try:
        with registry.backend(backend), settings.threads(selection.threads):
            for case in selection.cases:
                for dtype in selection.dtypes:
                    tasks = selection.tasks(case, dtype)
                    if not tasks:
                        continue
                    data = make_data(case, dtype)
                    expected = Expected(data)
                    for task in tasks:
                        results.rows.append(_row(task, data, expected, present, selection, clock, pause))
                        tick(task.label)
    finally:
        for peer in present:
            peer.close()
    results.partial = False
    return results


def frame(selection: Selection) -> Results:
    """Everything but the rows."""
    missing = {peer.name: why for peer in selection.peers if (why := peer.missing()) is not None}
    participants = (ours.Ours(), *(peer for peer in selection.peers if peer.name not in missing))
    chosen = {
        "threads": selection.threads,
        "seconds": selection.seconds,
        "backend": selection.backend or registry.default_backend(),
        **({"kernel": selection.kernel} if selection.kernel else {}),
    }
    return Results(describe_machine(), chosen, {p.name: p.version() for p in participants}, missing)


def _row(
    task: Task,
    data: Data,
    expected: Expected,
    peers: Sequence[Peer],
    selection: Selection,
    clock: Clock,
    pause: Callable[[float], object],
) -> Row:
    entries: dict[str, Entry] = {}
    ready: dict[str, Prepared] = {}
    for participant in (ours.Ours(selection.kernel), *(peer for peer in peers if task.layout in peer.layouts)):
        entry, prepared = _check(participant, task, data, expected, selection.threads)
        entries[participant.name] = entry
        if prepared is not None:
            ready[participant.name] = prepared
        elif participant.name == ours.NAME:
            break  # without our own time there is nothing to compare
    limits = prepare_limits(task) if ready else {}
    turns = take_turns(ready | limits, selection.seconds, clock, pause)
    for name in ready:
        entries[name].samples = turns[name].samples
        entries[name].why, entries[name].failed = turns[name].why, bool(turns[name].why)
    taken = {name: statistics.median(turns[name].samples) for name in limits}
    limit = fma_seconds(task, selection.threads) if task.case.kind == "conv" else taken.get(COPY)
    moved = bytes_moved(task)
    return Row(
        task.op, task.case.name, task.layout, task.dtype, moved, flop(task), limit, entries, taken.get(WRITES), task.case.shape_text
    )  # fmt: skip


def _check(peer: Peer, task: Task, data: Data, expected: Expected, threads: int) -> tuple[Entry, Prepared | None]:
    """Prepare a task and hold its result against the right one, before anything is timed.

    A wrong result is kept in the entry, not refused: the time of a system that computes something else is still worth knowing,
    as long as the table says so.
    """
    entry = Entry(tolerance=tolerance(task.case, task.dtype))
    try:
        prepared = peer.prepare(task, data, threads)
        result = prepared.result()
        entry.error = error(result, expected.of(task.op))
        entry.cell_error = cell_error(task, result, expected)
    except Exception as failure:  # any system may refuse or break in its own way; the reason goes into the table
        entry.why = str(failure).strip().partition("\n")[0] or type(failure).__name__
        entry.failed = not isinstance(failure, UnsupportedError)
        return entry, None
    if prepared.kernels:
        entry.kernel = " + ".join(f"{kernel.backend}/{kernel.name}" for kernel in prepared.kernels)
        entry.plain_sums = all(kernel.error == 0 for kernel in prepared.kernels)
    return entry, prepared
