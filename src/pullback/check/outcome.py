"""What one checked case came to, and the table rows these add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

# equal: the answer of the real system. mended: the real system is wrong, we are right, with a proof. refused: both refuse.
# undefined: the real system reads past the end or checks nothing; we refuse. proved: an identity holds. failed: none of these.
Verdict = Literal["equal", "mended", "refused", "undefined", "proved", "failed"]


@dataclass(frozen=True)
class Outcome:
    """One case: its kernel, its name, the verdict and, for mended or failed ones, the proof or the reason."""

    kernel: str
    case: str
    verdict: Verdict
    detail: str = ""


@dataclass
class Row:
    """All outcomes of one kernel."""

    system: str
    kernel: str
    counts: dict[str, int] = field(default_factory=dict)
    proofs: dict[str, int] = field(default_factory=dict)
    failures: list[Outcome] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def tally(outcomes: Iterable[tuple[str, Outcome]]) -> list[Row]:
    """Rows in order of first appearance."""
    rows: dict[tuple[str, str], Row] = {}
    for system, outcome in outcomes:
        row = rows.setdefault((system, outcome.kernel), Row(system, outcome.kernel))
        row.counts[outcome.verdict] = row.counts.get(outcome.verdict, 0) + 1
        if outcome.verdict == "mended":
            row.proofs[outcome.detail] = row.proofs.get(outcome.detail, 0) + 1
        elif outcome.verdict == "failed":
            row.failures.append(outcome)
    return list(rows.values())
