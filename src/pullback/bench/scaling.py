"""`pullback bench scaling`: how our times grow with batch, channels and size, and shrink with threads."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pullback import registry, settings
from pullback.bench import ours
from pullback.bench.cases import OPS, Case, Kind, Task, bytes_moved, flop, parse_case
from pullback.bench.data import make_data
from pullback.bench.machine import describe_machine
from pullback.bench.peers.base import Clock, Prepared
from pullback.bench.results import geometric_mean
from pullback.bench.timing import take_turns
from pullback.rules import Layout

KIND, FORMAT = "scaling", 1
SCALING_OPS = ("conv", "conv_grad_input", "conv_grad_filter", "max_pool_grad")
SPEEDUP_BAR = 0.925  # of the number of threads: 1.85 with two

# Each axis is stretched while the other two stay at the base.
BASE = {"batch": 8, "channels": 64, "size": 56}
STEPS = {"batch": (1, 2, 4, 8, 16, 32), "channels": (16, 32, 64, 128, 256), "size": (7, 14, 28, 56, 112)}
# A 3x3 convolution that keeps its channels, and the pooling that usually follows one.
WINDOWS: dict[Kind, dict[str, Any]] = {
    "conv": {"kernel": [3, 3], "stride": 1, "padding": 1, "dilation": 1, "groups": 1},
    "pool": {"window": [3, 3], "stride": 2, "padding": 1},
}


@dataclass(frozen=True)
class Stretch:
    """What to time: ops, the steps along each axis and where the others stay, in one layout and dtype."""

    ops: Sequence[str] = SCALING_OPS
    steps: dict[str, tuple[int, ...]] = field(default_factory=lambda: dict(STEPS))
    base: dict[str, int] = field(default_factory=lambda: dict(BASE))
    layout: Layout = "channels_last"
    dtype: str = "float32"
    threads: int = 2
    seconds: float = 0.3
    backend: str | None = None

    def size(self) -> int:
        """How many points a run yields, for a progress bar."""
        return len(self.ops) * sum(len(values) for values in self.steps.values())


@dataclass
class Point:
    """An op at one step of an axis: its work (flops of a convolution, bytes of pooling) and samples by number of threads."""

    op: str
    axis: str
    value: int
    work: int
    samples: dict[int, list[float]]

    def seconds(self, threads: int) -> float:
        return statistics.median(self.samples[threads])


@dataclass
class Scaling:
    """A run: where and how it was made, and its points. The largest of an op and axis were also timed with one thread."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    points: list[Point] = field(default_factory=list)

    @property
    def threads(self) -> int:
        return int(self.settings["threads"])

    def series(self) -> dict[tuple[str, str], list[Point]]:
        """The points of each (op, axis), smallest work first."""
        found: dict[tuple[str, str], list[Point]] = {}
        for point in self.points:
            found.setdefault((point.op, point.axis), []).append(point)
        return {key: sorted(points, key=lambda p: p.work) for key, points in found.items()}

    def cost(self, point: Point) -> float:
        """Time for a unit of work, relative to the largest of the series: 1 is perfect scaling, above 1 the small one pays more."""
        largest = self.series()[point.op, point.axis][-1]
        return point.seconds(self.threads) / point.work / (largest.seconds(self.threads) / largest.work)

    def speedup(self, point: Point) -> float | None:
        """Time with one thread / time with all; None where it was not timed with one."""
        if self.threads == 1 or 1 not in point.samples:
            return None
        return point.seconds(1) / point.seconds(self.threads)

    def mean_speedup(self) -> float | None:
        """Geometric mean over the large cases."""
        return geometric_mean(found for point in self.points if (found := self.speedup(point)) is not None)

    def is_slow(self, speedup: float) -> bool:
        """Whether a speed-up misses its bar."""
        return speedup < SPEEDUP_BAR * self.threads


def case_of(op: str, batch: int, channels: int, size: int) -> Case:
    kind = OPS[op][0]
    sides = {"c_in": channels, "c_out": channels} if kind == "conv" else {"channels": channels}
    name = f"{batch}x{size}x{size}x{channels}"
    return parse_case(kind, {"name": name, "rank": 2, "batch": batch, "size": [size, size], **sides, **WINDOWS[kind]})


def run(
    stretch: Stretch,
    tick: Callable[[str], None] = lambda label: None,
    clock: Clock = time.perf_counter,
    pause: Callable[[float], object] = time.sleep,
) -> Scaling:
    """Time every point; `tick` is called with a label when one is done."""
    backend = stretch.backend or registry.default_backend()
    chosen = {name: getattr(stretch, name) for name in ("threads", "seconds", "layout", "dtype")}
    found = Scaling(describe_machine(), chosen | {"backend": backend})
    with registry.backend(backend):
        for axis, values in stretch.steps.items():
            for value in values:
                for op in stretch.ops:
                    sizes = {**stretch.base, axis: value}
                    task = Task(op, case_of(op, **sizes), stretch.dtype, stretch.layout)
                    counts = {1, stretch.threads} if value == max(values) else {stretch.threads}
                    found.points.append(Point(op, axis, value, flop(task) or bytes_moved(task), {}))
                    found.points[-1].samples = _time(task, sorted(counts), stretch.seconds, clock, pause)
                    tick(f"{op} {axis} {value}")
    return found


def _time(
    task: Task, counts: list[int], seconds: float, clock: Clock, pause: Callable[[float], object]
) -> dict[int, list[float]]:
    """Samples by number of threads; the numbers take turns, so that a change of load meets them alike."""
    prepared = ours.Ours().prepare(task, make_data(task.case, task.dtype), max(counts))

    def with_threads(count: int) -> Prepared:
        def work() -> None:
            with settings.threads(count):
                prepared.run()

        return Prepared(work, prepared.result)

    turns = take_turns({str(count): with_threads(count) for count in counts}, seconds, clock, pause)
    for turn in turns.values():
        if turn.why:
            raise RuntimeError(f"{task.label}: {turn.why}")
    return {count: turns[str(count)].samples for count in counts}


def save(scaling: Scaling, path: Path) -> None:
    """Write JSON; medians, relative costs and speed-ups are repeated in it for readers that do not want to compute them."""
    document = {"format": FORMAT, "kind": KIND, **asdict(scaling)}
    for written, point in zip(document["points"], scaling.points, strict=True):
        written["median"] = point.seconds(scaling.threads)
        written["cost"], written["speedup"] = scaling.cost(point), scaling.speedup(point)
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def load(path: Path) -> Scaling | None:
    """Read what `save` wrote; None for a JSON file of another kind."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or (document.get("kind"), document.get("format")) != (KIND, FORMAT):
        return None
    points = [
        Point(p["op"], p["axis"], p["value"], p["work"], {int(count): samples for count, samples in p["samples"].items()})
        for p in document["points"]
    ]
    return Scaling(document["machine"], document["settings"], points)
