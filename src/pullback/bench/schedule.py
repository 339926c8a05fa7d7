"""A model of the schedule: the time of a call at any number of threads, from the times of its pieces on one.

The simulation claims pieces as the pool does: each thread those of its own range, then of the others', one claim of a range at a
time. It knows nothing of what threads share beside the tickets: no memory bandwidth (but for a floor that can be given), no
frequency that falls, no second socket.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

THREADS = (1, 2, 4, 8, 16, 32, 64)
SHOWN = 16  # threads whose pieces are printed
CHECKED = (1, 2)  # threads that the prediction is compared with
LARGE_FLOP = 20_000_000  # of each of 16 threads, from which on the efficiency has a bar
EFFICIENCY_BAR = 0.8
NOT_SLOWER = 1.01  # time at 16 threads over that at 8
SPUN_SECONDS = 300e-6  # without a job, after which workers sleep


@dataclass(frozen=True)
class Costs:
    """Measured costs of jobs, in seconds.

    call: of a job beside its pieces, on its caller alone. join: more of it where workers are called. start: until a worker that
    waits has its first piece; wake: more, where it sleeps. claim: of a piece, in which nobody else can claim.
    """

    call: float
    join: float
    start: float
    wake: float
    claim: float


@dataclass(frozen=True)
class Job:
    """Seconds of each piece on one thread, and of its caller since the job before. `most`: threads that may take part."""

    pieces: tuple[float, ...]
    before: float
    most: int


@dataclass(frozen=True)
class Recording:
    """The jobs of a call, and the seconds of its caller after the last one."""

    jobs: tuple[Job, ...]
    after: float


def job_seconds(job: Job, costs: Costs, threads: int) -> float:
    """A job on so many threads, from the call to its end."""
    count = min(threads, len(job.pieces), job.most)
    if count <= 1:
        return costs.call + sum(job.pieces)
    late = costs.start + (costs.wake if job.before > SPUN_SECONDS else 0.0)
    free = [(costs.call + (late if thread else 0.0), thread) for thread in range(count)]
    each = -(-len(job.pieces) // count)
    left = [list(job.pieces[first : first + each])[::-1] for first in range(0, count * each, each)]
    unclaimed, end = [0.0] * count, 0.0  # of each range: since when its next piece can be claimed
    while any(left):
        now, thread = heapq.heappop(free)
        own = next(turn % count for turn in range(thread, thread + count) if left[turn % count])
        unclaimed[own] = max(now, unclaimed[own]) + costs.claim
        done = unclaimed[own] + left[own].pop()
        heapq.heappush(free, (done, thread))
        end = max(end, done)
    return end + costs.join


def call_seconds(recording: Recording, costs: Costs, threads: int) -> float:
    """A whole call: its jobs one after the other, and its caller alone between them."""
    return sum(job.before + job_seconds(job, costs, threads) for job in recording.jobs) + recording.after


@dataclass
class Row:
    """A call: its work, predictions and measured medians by number of threads, and its jobs as they are cut for SHOWN threads.

    jobs: (pieces, seconds of them on one thread).
    """

    op: str
    case: str
    layout: str
    flop: int
    moved_bytes: int
    jobs: list[tuple[int, float]]
    serial: float  # seconds of the caller between jobs
    predicted: dict[int, float]
    measured: dict[int, float]

    @property
    def label(self) -> str:
        return f"{self.op} {self.case} {self.layout}"

    def speedup(self, threads: int) -> float:
        return self.predicted[1] / self.predicted[threads]

    def efficiency(self, threads: int) -> float:
        return self.speedup(threads) / threads

    def error(self, threads: int) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted[threads] / self.measured[threads] - 1

    @property
    def is_large(self) -> bool:
        return self.flop > LARGE_FLOP * 16

    def faults(self) -> list[str]:
        found = []
        if self.is_large and self.efficiency(16) < EFFICIENCY_BAR:
            found.append(f"{self.efficiency(16):.0%} at 16")
        if self.predicted[16] > self.predicted[8] * NOT_SLOWER:
            found.append("slower at 16 than at 8")
        return found


@dataclass
class Schedule:
    """A run: where it was made, the costs of jobs, and its rows; partial if it was broken off."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    costs: Costs
    rows: list[Row] = field(default_factory=list)
    partial: bool = False


def make_row(
    op: str, case: str, layout: str, work: tuple[int, int], recordings: Mapping[int, Recording], costs: Costs,
    measured: dict[int, float], bandwidth: float | None = None,
) -> Row:  # fmt: skip
    """work: flop and bytes that must move. recordings: of the call as it is cut for so many threads.

    bandwidth: bytes a second that no call can pass, however many threads.
    """
    floor = work[1] / bandwidth if bandwidth else 0.0
    predicted = {count: max(floor, call_seconds(recordings[count], costs, count)) for count in THREADS}
    recording = recordings[SHOWN]
    jobs = [(len(job.pieces), sum(job.pieces)) for job in recording.jobs]
    serial = recording.after + sum(job.before for job in recording.jobs)
    return Row(op, case, layout, *work, jobs, serial, predicted, measured)


def median_recording(recordings: Sequence[Recording]) -> Recording:
    """Piece by piece the median of several recordings of the same call."""

    def middle(values: Sequence[float]) -> float:
        return sorted(values)[len(values) // 2]

    jobs = []
    for same in zip(*(recording.jobs for recording in recordings), strict=True):
        pieces = tuple(middle(times) for times in zip(*(job.pieces for job in same), strict=True))
        jobs.append(Job(pieces, middle([job.before for job in same]), same[0].most))
    return Recording(tuple(jobs), middle([recording.after for recording in recordings]))
