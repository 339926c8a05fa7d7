"""`pullback bench cliffs`: random shapes in both layouts against PyTorch, the other layout and a neighbouring shape."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from pullback import registry, settings
from pullback.bench import ours, trust
from pullback.bench.accuracy import error, tolerance
from pullback.bench.cases import LAYOUTS, Task
from pullback.bench.cliff_shapes import CLIFF_OPS, GROUPS, Shape, draw, estimate
from pullback.bench.data import quick_data
from pullback.bench.machine import describe_machine
from pullback.bench.peers.base import Clock, Peer, Prepared, UnsupportedError
from pullback.bench.results import geometric_mean
from pullback.bench.timing import take_turns
from pullback.rules import Layout

KIND, FORMAT, DTYPE = "cliffs", 1, "float32"
LOSS = 0.9  # PyTorch's time / ours: a row below it counts as slower
CLIFF = 1.5  # our time for the same work / that of a neighbour or the other layout
WARM_UP_SECONDS = 0.03


@dataclass
class Row:
    """A shape in one layout: seconds of ours (samples), of the peer, of ours in the other layout, of ours on the neighbour.

    `work` and `neighbour_work`: rough times of their operations, by which the two are compared.
    """

    shape: str
    group: str
    op: str
    case: str
    layout: Layout
    kernel: str
    command: str
    step: str
    neighbour: str
    work: float
    neighbour_work: float
    samples: dict[str, list[float]] = field(default_factory=dict)
    error: float | None = None  # of ours, against the peer's result
    wrong: bool = False
    why: str = ""  # there is no peer's time

    def seconds(self, who: str) -> float | None:
        return statistics.median(self.samples[who]) if self.samples.get(who) else None

    @property
    def ratio(self) -> float | None:
        """The peer's time / ours."""
        return _over(self.seconds("peer"), self.seconds("ours"))

    @property
    def layout_cost(self) -> float | None:
        """Our time / our time in the other layout."""
        return _over(self.seconds("ours"), self.seconds("other layout"))

    @property
    def neighbour_cost(self) -> float | None:
        """Our time for an operation / that of the neighbour."""
        found = _over(self.seconds("ours"), self.seconds("neighbour"))
        return found and found * self.neighbour_work / self.work

    @property
    def busy(self) -> bool:
        return any(trust.is_busy(samples) for samples in self.samples.values())


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


@dataclass
class Summary:
    """Ratios of some rows: how many, their geometric mean, the share below the bar, the worst."""

    rows: int
    mean: float
    losing: float
    worst: float


@dataclass
class Cliffs:
    """A run: where and how it was made, and its rows; partial if it was broken off before the last."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    partial: bool = False

    def summary(self, rows: Iterable[Row]) -> Summary | None:
        ratios = [row.ratio for row in rows if row.ratio is not None]
        if not ratios:
            return None
        losing = sum(ratio < LOSS for ratio in ratios) / len(ratios)
        return Summary(len(ratios), geometric_mean(ratios) or 0.0, losing, min(ratios))

    def summaries(self) -> dict[str, Summary]:
        """Of all rows, of each kind, and of each op, where there are any."""
        parts = {"all": self.rows}
        parts |= {group: [row for row in self.rows if row.group == group] for group in GROUPS}
        parts |= {op: [row for row in self.rows if row.op == op] for op in CLIFF_OPS}
        return {name: found for name, rows in parts.items() if (found := self.summary(rows)) is not None}

    def losing(self) -> list[Row]:
        """Rows where the peer is faster by enough to count, the worst first."""
        rows = [(row.ratio, row) for row in self.rows if row.ratio is not None and row.ratio < LOSS]
        return [row for _, row in sorted(rows, key=lambda pair: pair[0])]

    def cliffs(self) -> list[tuple[float, str, Row]]:
        """Rows that pay much more than the other layout or their neighbour: how much, than what; the worst first."""
        found = []
        for row in self.rows:
            if (cost := row.layout_cost) is not None and cost > CLIFF:
                found.append((cost, "the other layout", row))
            if (cost := row.neighbour_cost) is not None and cost > CLIFF:
                found.append((cost, row.step, row))
        return sorted(found, key=lambda item: -item[0])

    @property
    def wrong(self) -> list[Row]:
        return [row for row in self.rows if row.wrong]


@dataclass(frozen=True)
class Search:
    """What to look at: shapes of one seed (or these numbers alone), filtered by op and kind, until enough rows or seconds."""

    seed: int
    numbers: Sequence[int] | None = None
    ops: Sequence[str] = CLIFF_OPS
    groups: Sequence[str] = GROUPS
    rows: int | None = None
    seconds: float | None = None
    threads: int = 2
    peer: Peer | None = None
    first: int = 0

    def shapes(self) -> Iterator[Shape]:
        numbers = count(self.first) if self.numbers is None else self.numbers
        shapes = (draw(self.seed, number) for number in numbers)
        wanted = (shape for shape in shapes if shape.op in self.ops and shape.group in self.groups)
        most = None if self.rows is None else -(-self.rows // len(LAYOUTS))
        return islice(wanted, most)

    def size(self) -> int:
        """How far a progress bar goes: rows, or seconds where these end the run."""
        if self.seconds is not None:
            return max(1, round(self.seconds))
        return len(LAYOUTS) * sum(1 for _ in self.shapes())


def frame(search: Search) -> Cliffs:
    """Everything but the rows."""
    peer = search.peer and f"{search.peer.name} {search.peer.version()}"
    chosen = {"seed": search.seed, "threads": search.threads, "dtype": DTYPE, "peer": peer}
    return Cliffs(describe_machine(), chosen | {"backend": registry.default_backend()})


def run(
    search: Search,
    tick: Callable[[str], None] = lambda label: None,
    clock: Clock = time.perf_counter,
    pause: Callable[[float], object] = time.sleep,
    into: Cliffs | None = None,
) -> Cliffs:
    """Time every shape; `tick` gets a label for each row, or for each second where these end the run."""
    found = frame(search) if into is None else into
    found.partial = True
    gc.freeze()  # what is there already need not be looked at before each shape
    start, ticks = clock(), 0
    with registry.backend(found.settings["backend"]), settings.threads(search.threads):
        for shape in search.shapes():
            rows = _time(shape, search, clock, pause)
            found.rows += rows
            passed = clock() - start
            due = len(rows) if search.seconds is None else int(min(passed, search.seconds)) - ticks
            for _ in range(due):
                tick(f"{shape.name} {shape.op}")
            ticks += due
            if search.seconds is not None and passed >= search.seconds:
                break
    found.partial = False
    return found


def _time(shape: Shape, search: Search, clock: Clock, pause: Callable[[float], object]) -> list[Row]:
    """Both layouts of a shape: everybody takes turns, and twice as many where a row seems to lose."""
    tasks = [Task(shape.op, shape.case, DTYPE, layout) for layout in LAYOUTS]
    data, near_data = quick_data(shape.case), quick_data(shape.neighbour)
    ready: dict[tuple[str, str], Prepared] = {}
    rows = []
    for task in tasks:
        near = Task(shape.op, shape.neighbour, DTYPE, task.layout)
        mine = ready["ours", task.layout] = ours.Ours().prepare(task, data, search.threads)
        ready["neighbour", task.layout] = ours.Ours().prepare(near, near_data, search.threads)
        names = " + ".join(kernel.name for kernel in mine.kernels)
        row = Row(
            shape.name, shape.group, shape.op, shape.case.name, task.layout, names, command(task), shape.step,
            shape.neighbour.name, estimate(task), estimate(near),
        )  # fmt: skip
        rows.append(row)
        if search.peer is not None:
            try:
                theirs = search.peer.prepare(task, data, search.threads)
                row.error = error(mine.result(), theirs.result())
            except UnsupportedError as refusal:
                row.why = str(refusal)
            else:
                row.wrong = not row.error <= 2 * tolerance(task.case, DTYPE)  # both may err
                ready["peer", task.layout] = theirs
    _sample(rows, ready, clock, pause)
    if any(row.ratio is not None and row.ratio < LOSS for row in rows):
        _sample(rows, ready, clock, pause)
    return rows


def _sample(rows: list[Row], ready: dict[tuple[str, str], Prepared], clock: Clock, pause: Callable[[float], object]) -> None:
    keys = {f"{who} {layout}": (who, layout) for who, layout in ready}
    participants = {name: ready[key] for name, key in keys.items()}
    turns = take_turns(participants, 0.0, clock, pause, warm_up=WARM_UP_SECONDS)
    for name, (who, layout) in keys.items():
        if turns[name].why:
            raise RuntimeError(f"{rows[0].op} {rows[0].case} {layout}, {who}: {turns[name].why}")
        for row in rows:
            if row.layout == layout:
                row.samples.setdefault(who, []).extend(turns[name].samples)
            elif who == "ours":
                row.samples.setdefault("other layout", []).extend(turns[name].samples)


def command(task: Task) -> str:
    """What repeats a row with the right answer checked, as a command of the shell."""
    case, window = task.case, task.case.window
    batch, *size, channels = case.input_shape
    shape = [batch, *size, channels] if task.layout == "channels_last" else [batch, channels, *size]

    def times(values: Sequence[int]) -> str:
        return "x".join(map(str, values))

    taps = times(window.kernel)
    taps = f"--filter {taps} --out {case.channels_out}" if case.kind == "conv" else f"--window {taps}"
    parts = [f"pullback bench {case.kind} --input {times(shape)} {taps} --stride {times(window.stride)}"]
    parts += [f"--padding {times(window.pad_low)}"] if any(window.pad_low) else []
    parts += [f"--dilation {times(window.dilation)}"] if max(window.dilation) > 1 else []
    parts += [f"--groups {case.groups}"] if case.groups > 1 else []
    return " ".join([*parts, f"--layout {task.layout} --op {task.op} --peer torch"])


def save(found: Cliffs, path: Path) -> None:
    """Write JSON; ratios are repeated in it for readers that do not want to compute them."""
    document = {"format": FORMAT, "kind": KIND, **asdict(found)}
    for written, row in zip(document["rows"], found.rows, strict=True):
        derived = ("ratio", "layout_cost", "neighbour_cost", "busy")
        written |= {name: getattr(row, name) for name in derived}
    document["summary"] = {name: asdict(summary) for name, summary in found.summaries().items()}
    path.write_text(json.dumps(document, indent=1) + "\n")
