"""The thread pool: fixed pieces of work claimed dynamically by the caller and a few workers.

Workers spin briefly in native code for the next job, then sleep there too (in Python where the system has no futex). A second
caller while the pool is busy, a small job, and a caller after the pool has stopped all run on the calling thread alone, with the
same pieces and so the same bits.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from pullback.cpu.addresses import address_of
from pullback.cpu.compiler import Code, Variant, code
from pullback.cpu.memory import aligned_bytes
from pullback.settings import get_num_threads, set_num_threads, threads

__all__ = ["Pool", "get_num_threads", "pool", "release_scratch", "run", "set_num_threads", "threads"]

# Words of a job block, in order (kernels/threading_loop.py has their byte offsets).
GENERATION, ACTIVE, SEATS, TICKET, PIECES, FUNCTION, ARGUMENTS, SCRATCH, SCRATCH_STRIDE, STOPPED, SLEEPING = range(11)
JOB_WORDS = 16
_put_job = struct.Struct("=7q").pack_into  # SEATS .. SCRATCH_STRIDE at once

WORKER_SPINS = 20000  # some 300 microseconds of waiting for the next job before a worker sleeps
LEADER_SPINS = 20000  # then a caller whose workers have lost their cores lets others run
LINE, PAGE = 64, 4096
MOST_WORKERS = 1024

_NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def _yield_address() -> int:
    """Address of the system's function that lets another thread run."""
    if sys.platform == "win32":
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _futex() -> dict[str, int]:
    """How native code sleeps on a word and wakes sleepers: Linux's system call; zeros where workers must sleep in Python."""
    number = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or sys.byteorder != "little":
        return {"syscall": 0, "futex_number": 0}
    address = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value
    assert address is not None
    return {"syscall": address, "futex_number": number}


def _cpu_finder() -> Callable[[], int] | None:
    """A function that tells which CPU the calling thread runs on, where threads can also be kept off it."""
    if sys.platform != "linux" or not hasattr(os, "sched_setaffinity"):
        return None
    try:
        finder: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu  # keeps the interpreter: it takes no time
    except (AttributeError, OSError):
        return None
    return finder


class _Native:
    """A native function of the pool, ready to call from one thread with its own argument block."""

    def __init__(self, compiled: Code, **arguments: int) -> None:
        self.block = compiled.pack(**arguments)
        self._slots = np.zeros(8, np.int64)
        self._call = _NATIVE(compiled.address)
        self._where = (self._slots.ctypes.data, self._slots.ctypes.data, self.block.ctypes.data, 0, 0)

    def __call__(self) -> None:
        self._call(*self._where)


class _Room:
    """Working memory that begins at a cache line, and its address, which every job needs."""

    __slots__ = ("_memory", "address", "size")

    def __init__(self, size: int) -> None:
        self._memory, self.size = aligned_bytes(size, LINE), size
        self.address = address_of(self._memory)


class Desk:
    """A job block, working memory, and the native leader that opens the job and returns when nobody works on it any more.

    From the first instruction of a job to its last the caller is in native code, so no signal handler or exception can free the
    arrays under a worker.
    """

    def __init__(self) -> None:
        self.job = np.zeros(JOB_WORDS, np.int64)
        self._job_words = self.job.data.cast("B")
        self._room = _Room(0)
        leader = code(Variant("threading_loop", "lead"))
        self._lead = _Native(leader, job=self.job.ctypes.data, spins=LEADER_SPINS, let_others_run=_yield_address(), **_futex())
        _desks[id(self)] = self

    def release(self) -> int:
        """Give the working memory back, as soon as no job runs in it any more; how many bytes it was."""
        released, self._room = self._room.size, _Room(0)
        return released

    def wake_all(self) -> None:
        """Open and close a job without pieces, so that sleeping workers look at the job block."""
        self.lead(0, 0, 0, 0, 1 + MOST_WORKERS)

    def fill(self, function: int, arguments: int, pieces: int, scratch_bytes: int, seats: int) -> _Room:
        """Write down a job with room for `seats` threads, the caller included.

        The caller holds on to their working memory: release_scratch may take it from the desk at any time.
        """
        stride = -(-scratch_bytes // PAGE) * PAGE if seats > 1 else scratch_bytes
        room = self._room
        if room.size < stride * seats:
            room = self._room = _Room(stride * seats)
        _put_job(self._job_words, 8 * SEATS, seats - 1, 0, pieces, function, arguments, room.address, stride)
        return room

    def lead(self, function: int, arguments: int, pieces: int, scratch_bytes: int, seats: int) -> None:
        """Run a job with room for `seats` threads, this one included."""
        room = self.fill(function, arguments, pieces, scratch_bytes, seats)  # noqa: F841 (held until the job is done)
        self._lead()


class Pool:
    """Workers for one process. All callers share it; one at a time, the holder of `busy`, has its workers."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.workers: list[threading.Thread] = []
        self._desk = Desk()
        self._wake = threading.Condition()
        self._sleeping = 0
        self._stop = False
        self._futex = _futex()
        self._find_cpu = _cpu_finder()
        self._caller_cpu = -1

    def _work(self) -> None:
        compiled = code(Variant("threading_loop", "follow"))
        job, result = self._desk.job, np.zeros(1, np.int64)
        follow = _Native(compiled, job=job.ctypes.data, spins=WORKER_SPINS, result=result.ctypes.data, seen=-1, **self._futex)
        place = [name for name, _ in compiled.parameters].index("seen")
        while not self._stop:
            follow()
            seen = follow.block[place] = int(result[0])
            with self._wake:
                generation = int(job[GENERATION])
                if generation > seen + 1:  # a job came and perhaps went: look again, past what is over
                    follow.block[place] = generation - 1 if generation % 2 == 0 else seen
                elif not self._stop:
                    self._sleeping += 1
                    self._wake.wait()
                    self._sleeping -= 1

    def _ensure(self, workers: int) -> None:
        """Start missing workers; where the system or a closing interpreter allows no more threads, do with fewer."""
        while len(self.workers) < workers:
            worker = threading.Thread(target=self._work, name=f"pullback-{len(self.workers) + 1}", daemon=True)
            try:
                worker.start()
            except RuntimeError:
                return
            self.workers.append(worker)
            self._caller_cpu = -1  # so that the new one is kept apart too

    def _keep_apart(self, cpu: int) -> None:
        """Keep the workers off the caller's CPU: a system that wakes one there lets the two take turns for milliseconds."""
        self._caller_cpu = cpu
        allowed = os.sched_getaffinity(0)
        for worker in self.workers:
            with suppress(OSError):
                os.sched_setaffinity(worker.native_id or 0, allowed - {cpu} or allowed)

    def run(self, function: int, arguments: int, pieces: int, scratch_bytes: int, count: int) -> None:
        """Run a job on `count` threads; the caller holds `busy`."""
        if not self._stop:
            self._ensure(count - 1)
        if self._find_cpu is not None and (cpu := self._find_cpu()) != self._caller_cpu:
            self._keep_apart(cpu)
        if self._sleeping:
            with self._wake:
                self._wake.notify(count - 1)
        self._desk.lead(function, arguments, pieces, scratch_bytes, count)

    def stop(self) -> None:
        """End the workers; jobs that come later run on their callers alone."""
        self._stop = True
        self._desk.job[STOPPED] = 1
        if self.busy.acquire(timeout=1.0):  # not while a job is written down there
            try:
                self._desk.wake_all()
            finally:
                self.busy.release()
        with self._wake:
            self._wake.notify_all()
        for worker in self.workers:
            worker.join(timeout=1.0)
        self.workers.clear()


_pool: Pool | None = None
_team: Any = None  # other threads to run on (team.py), where another library has its own
_most: Callable[[], int] | None = None  # how many at most, by that library's settings
_pool_lock = threading.Lock()
_own = threading.local()
_desks: weakref.WeakValueDictionary[int, Desk] = weakref.WeakValueDictionary()  # by id: the pool's and those of other callers


def _forget_pool() -> None:
    """In a forked child: the workers stayed behind."""
    global _pool, _team, _pool_lock, _own
    _pool, _team, _pool_lock, _own = None, None, threading.Lock(), threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def pool() -> Pool:
    """The pool of this process, made at first use."""
    global _pool
    if _pool is None:
        with _pool_lock:
            if _pool is None:
                _pool = Pool()
    return _pool


def use_team(team: Any) -> None:
    """Run jobs on these threads (a Team), and never on more than its size says; None: on our own pool again.

    A forked child has its own pool, of that size: OpenMP does not survive a fork.
    """
    global _team, _most
    _team, _most = team, None if team is None else team.size


@atexit.register
def _stop_at_exit() -> None:
    if _pool is not None:
        _pool.stop()


def release_scratch() -> int:
    """Give back the working memory of all threads, which stays as large as the largest job has asked for; how many bytes."""
    desks = [reference() for reference in _desks.valuerefs()]
    return sum(desk.release() for desk in desks if desk is not None)


def _run_alone(function: int, arguments: int, pieces: int, scratch_bytes: int) -> None:
    """All pieces on this thread, at a desk of its own; a call from inside another one (a signal handler) gets another desk."""
    mine: dict[str, Any] = _own.__dict__
    desk = mine.pop("desk", None) or Desk()
    desk.lead(function, arguments, pieces, scratch_bytes, 1)
    mine["desk"] = desk


def run(function: int, arguments: int, pieces: int, scratch_bytes: int, parallel: bool = True) -> None:
    """Run pieces 0 .. pieces-1 of a kernel, on the threads in force unless the job is small or the pool is taken."""
    count = min(get_num_threads(), pieces) if parallel else 1
    if count > 1 and _most is not None:
        count = min(count, _most())
    if count > 1:
        workers = _team or pool()
        if workers.busy.acquire(blocking=False):
            try:
                workers.run(function, arguments, pieces, scratch_bytes, count)
            finally:
                workers.busy.release()
            return
    _run_alone(function, arguments, pieces, scratch_bytes)
