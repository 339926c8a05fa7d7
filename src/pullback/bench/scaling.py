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
from pullback.bench.limits import COPY, fma_seconds, prepare_limits
from pullback.bench.machine import describe_machine
from pullback.bench.peers.base import Clock, Prepared
from pullback.bench.results import geometric_mean
from pullback.bench.timing import take_turns
from pullback.bench.trust import is_busy
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
    """An op at one step of an axis: its work (flops of a convolution, bytes of pooling) and samples by number of threads.

    limit_seconds: what a copy of these bytes takes, or the multiply-adds at their roof (None: not measured).
    """

    op: str
    axis: str
    value: int
    work: int
    samples: dict[int, list[float]]
    limit_seconds: float | None = None

    def seconds(self, threads: int) -> float:
        return statistics.median(self.samples[threads])

    def rate(self, threads: int) -> float:
        """Work in a second, in units of 1e9: GFLOP/s or GB/s."""
        return self.work / self.seconds(threads) / 1e9

    @property
    def limit_rate(self) -> float | None:
        """The same at the physical limit."""
        return self.work / self.limit_seconds / 1e9 if self.limit_seconds else None

    @property
    def busy(self) -> bool:
        return any(is_busy(samples) for samples in self.samples.values())


@dataclass
class Scaling:
    """A run: where and how it was made, and its points; partial if it was broken off before the last.

    The largest of an op and axis were also timed with one thread.
    """

    machine: dict[str, Any]
    settings: dict[str, Any]
    points: list[Point] = field(default_factory=list)
    partial: bool = False

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
    into: Scaling | None = None,
) -> Scaling:
    """Time every point; `tick` gets a label when one is done. `into`: a frame, left partial if the run is broken off."""
    found = frame(stretch) if into is None else into
    found.partial = True
    with registry.backend(found.settings["backend"]):
        for axis, values in stretch.steps.items():
            for value in values:
                for op in stretch.ops:
                    sizes = {**stretch.base, axis: value}
                    task = Task(op, case_of(op, **sizes), stretch.dtype, stretch.layout)
                    counts = {1, stretch.threads} if value == max(values) else {stretch.threads}
                    samples, limit = _time(task, sorted(counts), stretch, clock, pause)
                    found.points.append(Point(op, axis, value, flop(task) or bytes_moved(task), samples, limit))
                    tick(f"{op} {axis} {value}")
    found.partial = False
    return found


def frame(stretch: Stretch) -> Scaling:
    """Everything but the points."""
    chosen = {name: getattr(stretch, name) for name in ("threads", "seconds", "layout", "dtype", "base")}
    return Scaling(describe_machine(), chosen | {"backend": stretch.backend or registry.default_backend()})


def _time(
    task: Task, counts: list[int], stretch: Stretch, clock: Clock, pause: Callable[[float], object]
) -> tuple[dict[int, list[float]], float | None]:
    """Samples by number of threads, and the limit's seconds with all; they take turns, so that load meets them alike."""
    prepared = ours.Ours().prepare(task, make_data(task.case, task.dtype), max(counts))

    def with_threads(count: int, work: Prepared) -> Prepared:
        def run() -> None:
            with settings.threads(count):
                work.run()

        return Prepared(run, work.result)

    participants = {str(count): with_threads(count, prepared) for count in counts}
    with settings.threads(stretch.threads):  # the copy is tried out as it is prepared
        if COPY in (limits := prepare_limits(task)):
            participants[COPY] = with_threads(stretch.threads, limits[COPY])
    turns = take_turns(participants, stretch.seconds, clock, pause)
    for turn in turns.values():
        if turn.why:
            raise RuntimeError(f"{task.label}: {turn.why}")
    copied = statistics.median(turns[COPY].samples) if COPY in turns else None
    limit = fma_seconds(task, stretch.threads) if task.case.kind == "conv" else copied
    return {count: turns[str(count)].samples for count in counts}, limit


def save(scaling: Scaling, path: Path) -> None:
    """Write JSON; medians, relative costs and speed-ups are repeated in it for readers that do not want to compute them."""
    document = {"format": FORMAT, "kind": KIND, **asdict(scaling)}
    for written, point in zip(document["points"], scaling.points, strict=True):
        written["median"] = point.seconds(scaling.threads)
        written["cost"], written["speedup"], written["busy"] = scaling.cost(point), scaling.speedup(point), point.busy
        written["rate"], written["limit_rate"] = point.rate(scaling.threads), point.limit_rate
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def load(path: Path) -> Scaling | None:
    """Read what `save` wrote; None for a JSON file of another kind."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or (document.get("kind"), document.get("format")) != (KIND, FORMAT):
        return None
    points = []
    for p in document["points"]:
        samples = {int(count): seconds for count, seconds in p["samples"].items()}
        points.append(Point(p["op"], p["axis"], p["value"], p["work"], samples, p.get("limit_seconds")))
    return Scaling(document["machine"], document["settings"], points, document.get("partial", False))
