"""The thread pool inside one process: same bits for any number of threads, many callers at once, a busy pool, a stopped pool."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from cpu_calls import LAYOUTS, Answer, assert_close, bits, pool_calls, reals, shaped

import pullback as pb
from pullback import settings
from pullback.cpu.engine import system, team, threads
from pullback.cpu.engine.kernel_records import Follow, Job, System
from pullback.cpu.machine_code.find import code
from pullback.cpu.machine_code.variants import Variant
from pullback.registry import kernels_for


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with pb.backend("cpu"):
        yield


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(pieces, threads that may share them) of every job that was run."""
    seen: list[tuple[int, int]] = []
    real = threads.run

    def run(function: int, arguments: int, pieces: int, scratch_bytes: int, most: int = 1024) -> None:
        seen.append((pieces, most))
        real(function, arguments, pieces, scratch_bytes, most)

    monkeypatch.setattr(threads, "run", run)
    return seen


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pieces of every job that ran on its caller alone."""
    seen: list[int] = []
    real = threads._run_alone

    def run_alone(function: int, arguments: int, pieces: int, scratch_bytes: int) -> None:
        seen.append(pieces)
        real(function, arguments, pieces, scratch_bytes)

    monkeypatch.setattr(threads, "_run_alone", run_alone)
    return seen


@pytest.fixture
def fresh_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[threads.Pool]:
    """A pool without workers, in place of the one of this process."""
    pool = threads.Pool()
    monkeypatch.setitem(threads._state, "pool", pool)
    yield pool
    pool.stop()


def large(layout: str, **keywords: Any) -> dict[str, Callable[[], Answer]]:
    x = reals(shaped(layout, 7, 24, 45, 47))
    return pool_calls(x, (3, 2), **{"stride": (2, 1), "padding": "same", "layout": layout, **keywords})


OPS = tuple(large("channels_last"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_same_bits_for_any_number_of_threads(op: str, layout: str, jobs: list[tuple[int, int]]) -> None:
    call = large(layout)[op]
    own = [kernel.name for kernel in kernels_for(op.split()[0], "cpu") if kernel.backend == "cpu"]
    for kernel in own or ["taps"]:
        answers = []
        for count in (1, 2, 5):
            with pb.threads(count), pb.kernel(kernel), suppress(pb.KernelError):
                answers.append(bits(call()))
        assert answers == answers[:1] * len(answers)
    if own:
        assert len(jobs) >= 3
        assert all(most > 5 and pieces > 5 for pieces, most in jobs), jobs


def test_small_work_stays_on_the_caller(jobs: list[tuple[int, int]], alone: list[int]) -> None:
    with pb.threads(4):
        pb.avg_pool(reals((1, 8, 8, 16)), 2)
    assert [most for _, most in jobs] == [1]
    assert len(alone) == 1


def test_eight_callers_at_once() -> None:
    """Each thread has a shape of its own and compares every answer with the reference's."""

    def caller(number: int) -> int:
        layout = LAYOUTS[number % 2]
        x = reals(shaped(layout, 2, 5 + 3 * number, 40 + number, 37 - number), seed=number)
        calls = pool_calls(x, (2 + number % 2, 3), stride=1 + number % 3, layout=layout)
        with pb.backend("reference"):
            expected = {name: call() for name, call in calls.items()}
        together.wait()
        with pb.backend("cpu"), pb.threads(1 + number % 4):
            for _ in range(6):
                for name, call in calls.items():
                    assert_close(call(), expected[name])
        return number

    together = threading.Barrier(8, timeout=60)
    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(caller, range(8), timeout=300)) == list(range(8))


def test_a_busy_pool_is_not_waited_for(alone: list[int]) -> None:
    calls = large("channels_last")
    expected = {name: bits(call()) for name, call in calls.items()}
    alone.clear()
    with pb.threads(2):
        threads.pool().job[threads.BUSY] = 1  # as another caller does
        try:
            assert {name: bits(call()) for name, call in calls.items()} == expected
        finally:
            threads.pool().job[threads.BUSY] = 0
        taken = len(alone)
        calls["avg_pool"]()
    assert taken > 5
    assert len(alone) == taken, "a free pool was not used"


def test_workers_are_as_many_as_were_asked_for(fresh_pool: threads.Pool, jobs: list[tuple[int, int]]) -> None:
    call = large("channels_first")["avg_pool"]
    for count, workers in ((1, 0), (2, 1), (3, 2), (2, 2)):
        with pb.threads(count):
            call()
        assert len(fresh_pool.workers) == workers
    with pb.threads(1000):
        call()
    assert len(fresh_pool.workers) <= jobs[-1][0] - 1
    assert {worker.name for worker in fresh_pool.workers} <= {thread.name for thread in threading.enumerate()}


def test_a_stopped_pool_leaves_no_thread_and_still_answers(fresh_pool: threads.Pool) -> None:
    call = large("channels_first")["max_pool_grad"]
    with pb.threads(3):
        expected = bits(call())
        workers = list(fresh_pool.workers)
        assert [worker.is_alive() for worker in workers] == [True, True]
        fresh_pool.stop()
        assert [worker.is_alive() for worker in workers] == [False, False]
        before = threading.active_count()
        assert bits(call()) == expected
        assert threading.active_count() == before


def test_a_pool_is_stopped_while_others_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping must not write into a job under way: its pieces would never be made."""
    call = large("channels_first")["max_pool"]
    expected = bits(call())
    over = threading.Event()

    def caller() -> int:
        answers = 0
        with pb.backend("cpu"), pb.threads(2):
            while not over.is_set():
                assert bits(call()) == expected
                answers += 1
        return answers

    with ThreadPoolExecutor(2) as callers:
        running = [callers.submit(caller) for _ in range(2)]
        try:
            for _ in range(100):
                monkeypatch.setitem(threads._state, "pool", stopped := threads.Pool())
                time.sleep(0.002)
                stopped.stop()
        finally:
            over.set()
        assert all(each.result(timeout=60) > 0 for each in running)


def test_no_more_threads_to_be_had(fresh_pool: threads.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = large("channels_last")
    with pb.threads(1):
        expected = {name: bits(call()) for name, call in calls.items()}

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pb.threads(4):
        assert {name: bits(call()) for name, call in calls.items()} == expected
    assert fresh_pool.workers == []


class Waiting:
    """A kernel whose every piece waits so long for a job that never opens: a worker's part, where it may not sleep."""

    def __init__(self, spins: int) -> None:
        compiled = code(Variant("engine.threads", "follow"))
        self.result, self._job = np.zeros(1, np.int64), np.zeros(len(Job.FIELDS), np.int64)
        self._system = np.zeros(len(System.FIELDS), np.int64)
        places = {"job": self._job, "system": self._system, "result": self.result}
        addresses = {name: array.ctypes.data for name, array in places.items()}
        self._block = Follow.pack({"spins": spins, "number": 1, "seen": 7, **addresses})
        self.address, self.arguments = compiled.address, self._block.ctypes.data


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_of_very_many_pieces(count: int) -> None:
    """Pieces must not add up on the stack."""
    nothing = Waiting(spins=1)
    with pb.threads(count):
        threads.run(nothing.address, nothing.arguments, 400_000, 0)
    assert nothing.result[0] == 7


@pytest.mark.parametrize("futex", [True, False])
def test_workers_that_fell_asleep_come_back(futex: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has a futex workers sleep in native code, else in Python."""
    if not futex:
        only = np.where(np.arange(len(System.FIELDS)) == System.place("let_others_run"), system.system_words(), 0)
        monkeypatch.setattr(threads, "system_words", lambda: only)
    workers = threads.Pool()
    long = Waiting(spins=200_000)  # some milliseconds a piece
    try:
        for _ in range(3):
            before = sum(thread_times(workers))
            assert workers.run(long.address, long.arguments, 16, 0, 2)
            assert sum(thread_times(workers)) > before, "no worker took part"
            time.sleep(0.05)
        assert futex != bool(workers._asleep)
    finally:
        workers.stop()
    assert not workers.workers


def thread_times(pool: threads.Pool) -> list[float]:
    """Seconds of CPU that each worker has used so far."""
    return [time.clock_gettime(time.pthread_getcpuclockid(worker.ident or 0)) for worker in pool.workers]


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: {0})(0)) < 2, reason="needs two CPUs and affinity masks")
def test_workers_stay_off_the_callers_cpu() -> None:
    with pb.threads(2):
        pb.max_pool(np.zeros((8, 64, 64, 32), np.float32), 2)
    workers = threads.pool()
    for worker in workers.workers:
        assert int(workers._masks[threads.CALLER_CPU]) not in os.sched_getaffinity(worker.native_id or 0)


def test_a_teams_job_names_its_fields_in_the_order_of_the_record() -> None:
    """It is packed by place alone."""
    assert [name for name, _ in Job.FIELDS if name in team.SET_FIELDS] == list(team.SET_FIELDS)


@pytest.mark.parametrize("bad", [0, -1, 1025, 2**70])
def test_thread_counts_out_of_range(bad: int) -> None:
    before = pb.get_num_threads()
    with pytest.raises(ValueError, match=rf"set_num_threads: the number of threads is {bad}; it must be from 1 to 1024"):
        pb.set_num_threads(bad)
    with pytest.raises(ValueError, match="threads: the number of threads"), pb.threads(bad):
        pass
    assert pb.get_num_threads() == before


@pytest.mark.parametrize("bad", [2.0, "2", None, True, (2,)])
def test_thread_counts_of_other_types(bad: Any) -> None:
    with pytest.raises(TypeError, match="set_num_threads: the number of threads must be an integer, not"):
        pb.set_num_threads(bad)


def test_thread_settings_nest(monkeypatch: pytest.MonkeyPatch, variable: Any) -> None:
    monkeypatch.setattr(settings, "_default", None)
    variable(settings.THREADS_VARIABLE, None)
    assert pb.get_num_threads() == settings.cores()
    variable(settings.THREADS_VARIABLE, "7")
    assert pb.get_num_threads() == 7
    pb.set_num_threads(np.int64(3))
    assert pb.get_num_threads() == 3
    with pb.threads(2):
        with pb.threads(5):
            assert pb.get_num_threads() == 5
        assert pb.get_num_threads() == 2
    assert pb.get_num_threads() == 3


@pytest.mark.parametrize("text", ["many", "2.5", "0", "-3", "99999"])
def test_a_bad_environment_variable_is_named(text: str, monkeypatch: pytest.MonkeyPatch, variable: Any) -> None:
    monkeypatch.setattr(settings, "_default", None)
    variable(settings.THREADS_VARIABLE, text)
    with pytest.raises(ValueError, match=settings.THREADS_VARIABLE):
        pb.get_num_threads()
