"""Measuring for the model of the schedule: pieces one by one, what jobs cost, and whole calls on one and two threads."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from pullback import registry, settings
from pullback.bench import ours
from pullback.bench.cases import Case, Task, bytes_moved, flop, parse_case
from pullback.bench.data import Data, make_data
from pullback.bench.machine import describe_machine
from pullback.bench.schedule import CHECKED, THREADS, Costs, Job, Recording, Row, Schedule, make_row, median_recording
from pullback.cpu.engine import threads
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.kernel_records import Follow, MultiplyAdd, System
from pullback.cpu.engine.kernel_records import Job as JobRecord
from pullback.cpu.machine_code.find import code
from pullback.cpu.machine_code.variants import Variant
from pullback.rules import Layout

ROUNDS = 3  # recordings and timed calls of each number of threads
TRAINING = "batch_norm", "batch_norm_grad"
# Cases beside the published list: what is known to suffer from many threads.
MORE_CASES: dict[Any, list[dict[str, Any]]] = {
    "conv": [
        {"name": f"512-7-n{batch}", "batch": batch, "size": [7, 7], "c_in": 512, "c_out": 512, "kernel": [3, 3], "padding": 1}
        for batch in (16, 32)
    ]
    + [
        {"name": "64-56-n16", "batch": 16, "size": [56, 56], "c_in": 64, "c_out": 64, "kernel": [3, 3], "padding": 1},
        {
            "name": "64-56-s2-n16", "batch": 16, "size": [56, 56], "c_in": 64, "c_out": 128, "kernel": [3, 3], "stride": 2,
            "padding": 1,
        },
        {
            "name": "256-14-s2-n16", "batch": 16, "size": [14, 14], "c_in": 256, "c_out": 512, "kernel": [3, 3], "stride": 2,
            "padding": 1,
        },
    ],
    "pool": [
        {"name": "3s2-56-n16", "batch": 16, "size": [56, 56], "channels": 64, "window": [3, 3], "stride": 2, "padding": 1},
        {"name": "global-7-n16", "batch": 16, "size": [7, 7], "channels": 512, "window": [7, 7]},
    ],
}  # fmt: skip
NORM_SHAPES = {"64-56-n16": (16, 64, 56, 56), "256-14-n16": (16, 256, 14, 14), "512-7-n32": (32, 512, 7, 7)}

Call = Callable[[], object]
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def more_cases() -> list[Case]:
    return [parse_case(kind, entry) for kind, entries in MORE_CASES.items() for entry in entries]


@dataclass(frozen=True)
class Subject:
    """A call to look at, and how to make it: its arrays are made when it is its turn."""

    op: str
    case: str
    layout: Layout
    work: tuple[int, int]  # flop, and bytes that must move
    prepare: Callable[[], Call]

    @property
    def label(self) -> str:
        return f"{self.op} {self.case} {self.layout}"


def subjects(ops: Sequence[str], cases: Sequence[Case], layouts: Sequence[Layout], dtype: str) -> list[Subject]:
    """The ops on the cases, then the passes of batch normalization."""
    own = [op for op in ops if op not in TRAINING]
    tasks = [Task(op, case, dtype, layout) for case in cases for op in own if case.has(op) for layout in layouts]
    found = [Subject(t.op, t.case.name, t.layout, (flop(t), bytes_moved(t)), partial(_prepare, t)) for t in tasks]
    for op, (name, shape), layout in product(ops, NORM_SHAPES.items(), layouts):
        if op in TRAINING and dtype in ("float32", "float64"):
            passes = {"batch_norm": 3, "batch_norm_grad": 5}[op]  # over an array of x's size: read twice, written once, ...
            moved = passes * int(np.prod(shape)) * np.dtype(dtype).itemsize
            found.append(Subject(op, name, layout, (0, moved), partial(_prepare_norm, op, shape, layout, dtype)))
    return found


def _prepare(task: Task) -> Call:
    return ours.Ours().prepare(task, _data(task.case, task.dtype), 1).run


@lru_cache(maxsize=1)  # subjects of one case follow each other
def _data(case: Case, dtype: str) -> Data:
    return make_data(case, dtype)


def _prepare_norm(op: str, shape: tuple[int, ...], layout: str, dtype: str) -> Call:
    from pullback.training_kernels import batch_norm_grad, batch_norm_train

    x, dy = (np.random.default_rng(seed).standard_normal(shape).astype(dtype) for seed in (0, 1))
    if layout == "channels_last":
        x, dy = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for a in (x, dy))
    scale, shift = (np.ones(shape[1], dtype) for _ in range(2))
    if op == "batch_norm":
        return partial(batch_norm_train, x, scale, shift, 1e-5)
    _, mean, inverse_std = batch_norm_train(x, scale, shift, 1e-5)
    return partial(batch_norm_grad, dy, x, scale, mean, inverse_std)


class _Empty:
    """A kernel whose pieces do nothing: a worker's part in a pool that has been stopped."""

    def __init__(self) -> None:
        job, system = np.zeros(len(JobRecord.FIELDS), np.int64), np.zeros(len(System.FIELDS), np.int64)
        job[JobRecord.place("stopped")] = 1
        result = np.zeros(1, np.int64)
        places = {"job": job, "system": system, "result": result}
        block = Follow.pack({"spins": 1, "number": 1, "seen": 0, **{name: address_of(array) for name, array in places.items()}})
        self.address, self.arguments = code(Variant("engine.threads", "follow")).address, address_of(block)
        self._keep = (*places.values(), block)


@contextmanager
def _recording(jobs: list[Job], overhead: float) -> Iterator[Callable[[], float]]:
    """Inside the block jobs run piece by piece on this thread, and their times go into `jobs`; seconds since the last one."""
    places = np.zeros(8, np.int64)
    slots, clock, real = places.ctypes.data, time.perf_counter, threads.run
    left = clock()

    def run(function: int, arguments: int, pieces: int, scratch_bytes: int, most: int = 1024) -> None:
        nonlocal left
        before, kernel, scratch, times = clock() - left, _KERNEL(function), threads.take_scratch(scratch_bytes), []
        for piece in range(pieces):
            start = clock()
            kernel(slots, slots, arguments, piece, scratch.address)
            times.append(clock() - start)
        scratch.put_back()
        jobs.append(Job(tuple(max(0.0, taken - overhead) for taken in times), before, min(pieces, most)))
        left = clock()

    threads.run = run
    try:
        yield lambda: clock() - left
    finally:
        threads.run = real


def record(call: Call, overhead: float = 0.0, count: int = 1) -> Recording:
    """The jobs of a call as it is cut for `count` threads. overhead: of calling a piece from here, which is taken off its time."""
    jobs: list[Job] = []
    with settings.threads(count), _recording(jobs, overhead) as since:
        call()
        after = since()
    return Recording(tuple(jobs), after)


def _median(run: Call, repeats: int = 200, pause: float = 0.0) -> float:
    taken = []
    for _ in range(repeats):
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return median(taken)


def measure_costs() -> tuple[Costs, float]:
    """Of real jobs on one thread and two; and what it takes to call a piece from `record`."""
    empty, result = _Empty(), np.zeros(64)
    kernel, block = code(Variant("engine.roofs", "multiply_add", "float32")), MultiplyAdd.pack({"result": address_of(result)})

    def nothing(pieces: int) -> Call:
        return lambda: threads.run(empty.address, empty.arguments, pieces, 0)

    def some(pieces: int) -> Call:
        return lambda: threads.run(kernel.address, address_of(block), pieces, 0)

    many = 20_000
    with settings.threads(1):
        call, one = _median(nothing(1)), _median(some(1))
        overhead = median(time for time in record(nothing(1000)).jobs[0].pieces)
    if settings.cores() < 2:
        return Costs(call, 0.0, 0.0, 0.0, 0.0), overhead
    with settings.threads(2):
        join = max(0.0, _median(nothing(2)) - call)
        claim = max(0.0, _median(nothing(many), 5) - call) / many
        start = max(0.0, _median(some(2)) - one - join)
        wake = max(0.0, _median(some(64), 20, pause=0.003) - _median(some(64), 20))
    return Costs(call, join, start, wake, claim), overhead


def frame(layouts: Sequence[str], dtype: str, bandwidth: float | None) -> tuple[Schedule, float]:
    """A run without rows, and the overhead of a recorded piece."""
    costs, overhead = measure_costs()
    chosen = {"layouts": list(layouts), "dtype": dtype, "bandwidth": bandwidth, "backend": registry.default_backend()}
    return Schedule(describe_machine(), chosen, costs), overhead


def run(
    wanted: Sequence[Subject], into: Schedule, overhead: float, tick: Callable[[str], None] = lambda label: None
) -> Schedule:  # fmt: skip
    """Record, predict and time every subject; `tick` gets a label when one is done."""
    into.partial = True
    with registry.backend(into.settings["backend"]):
        for subject in wanted:
            into.rows.append(_row(subject, into, overhead))
            tick(subject.label)
    into.partial = False
    return into


def _row(subject: Subject, schedule: Schedule, overhead: float) -> Row:
    call, counts = subject.prepare(), [count for count in CHECKED if count <= max(1, settings.cores())]
    taken: dict[int, list[float]] = {count: [] for count in counts}
    recordings: dict[int, list[Recording]] = {count: [] for count in THREADS}
    gc.collect()
    for _ in range(ROUNDS):  # in turns, so that load meets them alike
        for count, found in recordings.items():
            if not found:
                record(call, count=count)  # plans are made
            found.append(record(call, overhead, count))
        for count in counts:
            with settings.threads(count):
                call()  # the one before has left its workers asleep
                start = time.perf_counter()
                call()
                taken[count].append(time.perf_counter() - start)
    measured = {count: median(times) for count, times in taken.items()}
    middle = {count: median_recording(found) for count, found in recordings.items()}
    return make_row(
        subject.op, subject.case, subject.layout, subject.work, middle, schedule.costs, measured,
        schedule.settings["bandwidth"],
    )  # fmt: skip


def document(schedule: Schedule) -> dict[str, Any]:
    """For JSON: all of it, with the predicted speed-ups."""
    written = asdict(schedule)
    for row, found in zip(written["rows"], schedule.rows, strict=True):
        row["speedup"] = {count: found.speedup(count) for count in found.predicted}
        row["error"] = {count: found.error(count) for count in found.measured}
    return {"kind": "schedule", "format": 1, **written}
