"""Many cases until the time is up: which kernels they reached, what failed, each failure shrunk once, and a summary in words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from .cases import OPS, Case, kernel_names, kernel_op, on_each_kernel, pairs
from .check import Outcome
from .draws import Draw
from .program import snippet
from .runner import Worker
from .shrink import shrink

SHRUNK_EACH = 4  # failures of one op, kernel and category: others with the same shrunk case would only be counted
SHRINK_SECONDS = 60.0


@dataclass
class Failure:
    """A failure, as found and shrunk."""

    case: Case
    outcome: Outcome
    found: Case
    times: int = 1

    def report(self) -> str:
        kernel = self.outcome.kernel or "no kernel"
        return (
            f"{self.case.op} on {kernel}: {self.outcome.category}: {self.outcome.text}\n"
            f"{snippet(self.case, self.outcome.category)}\n"
            f"# --case '{self.case.text()}'" + (f"  (seen {self.times} times)" if self.times > 1 else "")
        )


@dataclass
class Result:
    """What a campaign did."""

    seed: int
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)  # comparisons by op and kernel
    failures: list[Failure] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(self.statuses.values())

    def never_reached(self, ops: Sequence[str]) -> list[str]:
        """Kernels of these ops that compared nothing. conv_transpose runs on those of conv_grad_input."""
        wanted = {(kernel_op(op), name) for op in ops for name in kernel_names(op)}
        seen = {(kernel_op(op), name) for op, name in self.reached}
        return [f"{op}/{name}" for op, name in sorted(wanted - seen)]

    def summary(self, ops: Sequence[str], *, reports: bool = True) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        lines = [f"seed {self.seed}: {self.cases} calls in {self.seconds:.0f} s ({counts})", "compared, by op and kernel:"]
        for op in ops:
            named = [f"{name} {count}" for (other, name), count in sorted(self.reached.items()) if other == op]
            lines.append(f"  {op}: {', '.join(named) or 'nothing'}")
        if self.reached and (missed := self.never_reached(ops)):
            lines.append(f"never reached: {', '.join(missed)}")
        if reports:
            lines += [f"\n{failure.report()}\n" for failure in self.failures]
        lines.append(f"{len(self.failures)} different failures" if self.failures else "no failure")
        return "\n".join(lines)


def signature(case: Case, outcome: Outcome) -> tuple[object, ...]:
    """What makes two shrunk failures the same: the kernel, the category, and which parameters are not as plain as can be."""
    if outcome.category in ("crop", "sign of zero"):
        return case.op, outcome.kernel if outcome.category != "crop" else None, outcome.category
    defaults = {f.name: f.default for f in fields(case)}
    unusual = {name for name, value in vars(case).items() if value != defaults[name] and name not in ("seed", "kernel")}
    if not isinstance(case.padding, str) and min(min(pair) for pair in pairs(case.padding, case.rank)) < 0:
        unusual.add("negative padding")
    return case.op, outcome.kernel, outcome.category, frozenset(unusual), case.data, case.spoiled


def run(
    seed: int, seconds: float, *, ops: Sequence[str] = OPS, garbage: float = 0.1, limit: float = 120.0, plant: str | None = None,
    most: int = 100, by_name: bool = True, shrink_seconds: float = SHRINK_SECONDS,
    progress: Callable[[Result, float], None] | None = None, found: Callable[[Failure], None] | None = None,
) -> Result:  # fmt: skip
    """Draw and run cases for some seconds, or until `most` different failures are found; on every kernel, or by dispatch alone."""
    draw, result = Draw(seed, ops, garbage), Result(seed)
    start = time.monotonic()
    raw: Counter[tuple[object, ...]] = Counter()
    known: dict[tuple[object, ...], Failure] = {}
    latest: dict[tuple[object, ...], Failure] = {}
    with Worker(limit, plant) as worker:
        while time.monotonic() - start < seconds and len(known) < most:
            problem = draw.case()
            for case in on_each_kernel(problem) if by_name and not problem.spoiled else [problem]:
                outcome = worker.run(case)
                result.statuses[outcome.status] += 1
                if outcome.kernel is not None and outcome.status in ("same", "failed"):
                    result.reached[case.op, outcome.kernel] += 1
                if outcome.status == "failed":
                    kind = (case.op, outcome.kernel, outcome.category)
                    raw[kind] += 1
                    if raw[kind] <= SHRUNK_EACH:
                        least, why = shrink(case, outcome, worker.run, shrink_seconds)
                        latest[kind] = failure = known.setdefault(signature(least, why), Failure(least, why, case, 0))
                        if not failure.times and found is not None:
                            found(failure)
                    latest[kind].times += 1
                if progress is not None:
                    progress(result, time.monotonic() - start)
    result.failures = list(known.values())
    result.seconds = time.monotonic() - start
    return result
