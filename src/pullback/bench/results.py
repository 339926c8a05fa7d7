"""What the benchmark found: rows of samples, their ratios, and their JSON form, from which table and plot can be redrawn."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pullback.bench import trust
from pullback.bench.ours import NAME

FORMAT = 1
LOSS = 0.95  # a peer's time / ours: below it a case is lost; from here to 1 it counts as equal
Time = Literal["median", "best"]


@dataclass
class Entry:
    """One participant on one task: samples in seconds per call, the errors of its result (see accuracy.py), or why it has none.

    `failed` tells a participant that broke from one that has no such op. `plain_sums`: it is one of our kernels that promise
    a `cell_error` of at most 1.
    """

    samples: list[float] = field(default_factory=list)
    error: float | None = None
    tolerance: float = 0.0
    why: str = ""
    failed: bool = False
    cell_error: float | None = None
    kernel: str = ""
    plain_sums: bool = False

    @property
    def median(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None

    @property
    def best(self) -> float | None:
        return min(self.samples, default=None)

    @property
    def differs(self) -> bool:
        """Whether its result is not the right one under our rules."""
        return (self.error is not None and not self.error <= self.tolerance) or self.exceeds_bound

    @property
    def exceeds_bound(self) -> bool:
        """Whether a kernel that promises plain sums errs by more than these may."""
        return self.plain_sums and self.cell_error is not None and not self.cell_error <= 1

    @property
    def spread(self) -> float | None:
        return trust.spread(self.samples)

    @property
    def busy(self) -> bool:
        """Whether something disturbed the samples: their median is not to be trusted."""
        return trust.is_busy(self.samples)


@dataclass
class Row:
    """One task with everybody's entry, ours under "pullback", and the seconds that physics asks for (None: not measured).

    limit: copying a pooling op's bytes, or a convolution's multiply-adds; writes: writing a pooling op's results, nothing else.
    """

    op: str
    case: str
    layout: str
    dtype: str
    bytes_moved: int
    flop: int
    limit_seconds: float | None
    entries: dict[str, Entry]
    writes_seconds: float | None = None
    shape: str = ""

    @property
    def ours(self) -> Entry:
        return self.entries[NAME]

    def ratio(self, peer: str, of: Time = "median") -> float | None:
        """Peer time / our time: above 1 we are faster."""
        theirs, mine = (getattr(entry, of) for entry in (self.entries.get(peer, Entry()), self.ours))
        return theirs / mine if theirs and mine else None

    def ratios(self) -> dict[str, float]:
        found = {peer: self.ratio(peer) for peer in self.entries if peer != NAME}
        return {peer: ratio for peer, ratio in found.items() if ratio is not None}

    def best_peer(self) -> str | None:
        """The fastest peer."""
        ratios = self.ratios()
        return min(ratios, key=lambda peer: ratios[peer]) if ratios else None

    @property
    def loses(self) -> bool:
        """Whether the best peer is faster than we are by enough to count."""
        return any(is_loss(ratio) for ratio in self.ratios().values())

    def is_busy(self, peer: str) -> bool:
        """Whether a ratio to a peer is not to be trusted: the samples of one of the two lie too far apart."""
        return self.ours.busy or (peer in self.entries and self.entries[peer].busy)

    @property
    def busy(self) -> list[str]:
        """Who was disturbed, ours included."""
        return [name for name, entry in self.entries.items() if entry.busy]

    @property
    def limit_share(self) -> float | None:
        return self._share(self.limit_seconds)

    @property
    def writes_share(self) -> float | None:
        return self._share(self.writes_seconds)

    def _share(self, seconds: float | None) -> float | None:
        median = self.ours.median
        return seconds / median if seconds and median else None


@dataclass(frozen=True)
class Rival:
    """The fastest peer of all on an op, case and dtype, in whichever layout, its time / our time, and whether one was busy."""

    peer: str
    layout: str
    ratio: float
    busy: bool = False

    @property
    def wins(self) -> bool:
        return is_loss(self.ratio)


@dataclass
class Results:
    """A run: where and how it was made, and its rows; partial if it was broken off before the last."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]
    missing: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    partial: bool = False

    @property
    def peers(self) -> list[str]:
        """The peers that were to be timed, in their order."""
        return [name for name in self.versions if name != NAME]

    @property
    def wrong(self) -> list[Row]:
        """Rows where our own op gave a wrong result or broke."""
        return [row for row in self.rows if row.ours.differs or row.ours.failed]

    def rival(self, row: Row, of: Time = "median") -> Rival | None:
        """The fastest peer in either layout, against our time in the row's own."""
        times = [
            (seconds, name, other.layout, entry.busy)
            for other in self._alike(row)
            for name, entry in other.entries.items()
            if name != NAME and (seconds := getattr(entry, of))
        ]
        mine = getattr(row.ours, of)
        if not times or not mine:
            return None
        seconds, peer, layout, busy = min(times)
        return Rival(peer, layout, seconds / mine, busy or row.ours.busy)

    def layout_speed(self, row: Row) -> float | None:
        """Our speed in the row's layout / our speed in channels_last; None in that layout, or where it was not timed."""
        last = [other.ours.median for other in self._alike(row) if other.layout == "channels_last"]
        if row.layout == "channels_last" or not last or not last[0] or not row.ours.median:
            return None
        return last[0] / row.ours.median

    def _alike(self, row: Row) -> list[Row]:
        return [other for other in self.rows if (other.op, other.case, other.dtype) == (row.op, row.case, row.dtype)]


def is_loss(ratio: float) -> bool:
    return ratio < LOSS


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def save(results: Results, path: Path) -> None:
    """Write JSON; medians, bests and ratios are repeated in it for readers that do not want to compute them."""
    document = {"format": FORMAT, **asdict(results)}
    for written, row in zip(document["rows"], results.rows, strict=True):
        rival = results.rival(row)
        written |= {"ratios": row.ratios(), "best_peer": rival and asdict(rival), "layout_speed": results.layout_speed(row)}
        for name, entry in row.entries.items():
            derived = ("median", "best", "differs", "spread", "busy")
            written["entries"][name] |= {key: getattr(entry, key) for key in derived}
    path.write_text(json.dumps(_finite(document), indent=1, allow_nan=False) + "\n")


def load(path: Path) -> Results:
    """Read what `save` wrote."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} is not a result file of `pullback bench --json` (format {FORMAT})")
    rows = []
    for row in document["rows"]:
        entries = {name: _entry(written) for name, written in row.pop("entries").items()}
        row = {f.name: row[f.name] for f in fields(Row) if f.name != "entries" and f.name in row}
        rows.append(Row(**row, entries=entries))
    known = {f.name: document[f.name] for f in fields(Results) if f.name != "rows" and f.name in document}
    return Results(**known, rows=rows)


def _entry(written: dict[str, Any]) -> Entry:
    known = {f.name: written[f.name] for f in fields(Entry) if f.name in written}
    for name in ("error", "cell_error"):  # an infinity was written as text
        known[name] = None if known.get(name) is None else float(known[name])
    return Entry(**known)


def _finite(value: Any) -> Any:
    """The same document with infinities as text, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
