"""`pullback bench kernels`: what each kernel gains over the next one of its list that could run the same case."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from pullback import registry, settings
from pullback.bench import ours
from pullback.bench.cases import Case, Task
from pullback.bench.data import make_data
from pullback.bench.peers.base import Clock
from pullback.bench.results import geometric_mean
from pullback.bench.timing import take_turns
from pullback.registry import Kernel
from pullback.rules import Layout

# Of the case list, those that are two ops.
PAIRS = ("max_pair", "avg_pair")


@dataclass(frozen=True)
class Gain:
    """One case: seconds of the kernel that runs it, and of the next one that could."""

    task: Task
    kernel: str
    following: str
    seconds: float
    following_seconds: float

    @property
    def ratio(self) -> float:
        return self.following_seconds / self.seconds


@dataclass
class Gains:
    """All cases of a run; those whose kernel has no other behind it have no gain."""

    found: list[Gain] = field(default_factory=list)
    alone: dict[tuple[str, str], int] = field(default_factory=dict)

    def by_kernel(self) -> dict[tuple[str, str], tuple[float, list[Gain]]]:
        """Geometric mean and cases of each (op, kernel), the smallest gain first."""
        names = dict.fromkeys((gain.task.op, gain.kernel) for gain in self.found)
        groups = {name: [g for g in self.found if (g.task.op, g.kernel) == name] for name in names}
        means = {name: (geometric_mean(gain.ratio for gain in gains) or 0.0, gains) for name, gains in groups.items()}
        return dict(sorted(means.items(), key=lambda item: item[1][0]))


def tasks(ops: Sequence[str], cases: Sequence[Case], layouts: Sequence[Layout], dtype: str) -> list[Task]:
    return [
        Task(op, case, dtype, layout) for case in cases for op in ops if case.has(op) and op not in PAIRS for layout in layouts
    ]


def _able(call: ours.Call) -> list[Kernel]:
    """The kernels of the backend that could run a call: the one that dispatch takes, then those behind it."""
    explanation = ours.explain_call(call)
    able = [v.kernel for v in explanation.verdicts if v.cannot is None and v.kernel.backend == registry.current_backend()]
    return able[able.index(explanation.chosen) :] if explanation.chosen in able else []


def run(
    wanted: Sequence[Task], threads: int, seconds: float, tick: Callable[[str], None] = lambda label: None,
    clock: Clock = time.perf_counter, pause: Callable[[float], object] = time.sleep,
) -> Gains:  # fmt: skip
    """Time the kernel of each task and the next one, in turns; `tick` is called with a label when one is done."""
    gains, data = Gains(), None
    with registry.backend(registry.default_backend()), settings.threads(threads):
        for task in wanted:
            if data is None or data.case != task.case:
                data = make_data(task.case, task.dtype)
            prepared = ours.Ours().prepare(task, data, threads)
            assert isinstance(prepared.run, partial)
            able = _able(prepared.run)[:2]
            if len(able) == 1:
                key = (task.op, able[0].name)
                gains.alone[key] = gains.alone.get(key, 0) + 1
            elif able:
                by_name = {k.name: replace(prepared, run=ours.by_name(k.name, prepared.run)) for k in able}
                turns = take_turns(by_name, seconds, clock, pause)
                times = [median(turns[kernel.name].samples) for kernel in able]
                gains.found.append(Gain(task, able[0].name, able[1].name, *times))
            tick(task.label)
    return gains


def print_gains(gains: Gains, least: float) -> None:
    print(f"{'op':28} {'kernel':14} cases  gain  least .. most (against the next that can)")
    for (op, kernel), (mean, cases) in gains.by_kernel().items():
        worst, best = min(cases, key=lambda gain: gain.ratio), max(cases, key=lambda gain: gain.ratio)
        mark = "  <- below the bar" if mean < least else ""
        print(
            f"{op:28} {kernel:14} {len(cases):5}  {mean:4.2f}  {worst.ratio:.2f} {worst.task.case.name} {worst.task.layout} "
            f"({worst.following}) .. {best.ratio:.2f} {best.task.case.name} ({best.following}){mark}"
        )
    for (op, kernel), count in gains.alone.items():
        print(f"{op:28} {kernel:14} {count:5}  runs what no other kernel behind it can")
