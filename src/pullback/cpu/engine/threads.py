"""The thread pool: fixed pieces of work claimed dynamically by the caller and a few workers.

Workers spin briefly in native code for the next job, then sleep there too (in Python where the system has no futex). A second
caller while the pool is busy, a small job, and a caller after the pool has stopped all run on the calling thread alone, with the
same pieces and so the same bits.

A signal handler's exception can arrive between any two steps of the interpreter. So nothing is taken in Python that would have to
be given back: the pool is taken and released by the native call that runs the job, working memory that is not put back is only
allocated again, and a worker enters itself into the pool.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.kernel_records import FIRST_WORKER, Follow, Job, Lead, Masks
from pullback.cpu.engine.memory import aligned_bytes
from pullback.cpu.engine.sizes import LINE, PAGE, round_up
from pullback.cpu.engine.system import system_words
from pullback.cpu.machine_code.find import code
from pullback.cpu.machine_code.variants import Variant
from pullback.settings import MOST_THREADS, get_num_threads, set_num_threads, threads

__all__ = ["Pool", "get_num_threads", "pool", "release_scratch", "run", "set_num_threads", "threads"]

GENERATION, BUSY = Job.place("generation"), Job.place("busy")
CALLER_CPU, WORKERS = Masks.place("cpu"), Masks.place("workers")

WORKER_SPINS = 20000  # some 300 microseconds of waiting for the next job before a worker sleeps
LEADER_SPINS = 20000  # then a caller whose workers have lost their cores lets others run
MOST_WORKERS = 1024
MOST_SCRATCH = 64  # kept for the next jobs: as many as have run at once

_NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_SLOTS = np.zeros(8, np.int64)  # where Numba's functions leave a result or an exception, which ours never do
_SLOTS_AT = _SLOTS.ctypes.data

_pack_lead = struct.Struct(f"={len(Lead.FIELDS)}q").pack


@cache
def _native(kernel: str) -> Callable[..., int]:
    """A native function of the pool: this thread handles no signal until it returns."""
    return _NATIVE(code(Variant("engine.threads", kernel)).address)


def _lead(*arguments: int) -> None:
    """Call the native leader with the fields of `Lead`. The block of its arguments belongs to this call alone."""
    _native("lead")(_SLOTS_AT, _SLOTS_AT, _pack_lead(*arguments), 0, 0)


class Scratch:
    """Working memory of a job, from a cache line on."""

    __slots__ = ("_memory", "_releases", "address", "size")

    def __init__(self, size: int) -> None:
        self._memory, self._releases, self.size = aligned_bytes(size, LINE), _releases, size
        self.address = address_of(self._memory)

    def put_back(self) -> None:
        """Keep it for a later job, unless all working memory has been released meanwhile."""
        if self.size and self._releases == _releases and len(_free) < MOST_SCRATCH:
            _free.append(self)


_free: list[Scratch] = []  # that no job runs in
_releases = 0
_none = Scratch(0)


def take_scratch(size: int) -> Scratch:
    """Working memory of at least so many bytes. Who is interrupted before putting it back has let go of it all the same."""
    try:
        scratch = _free.pop() if size else _none
    except IndexError:
        return Scratch(size)
    return scratch if scratch.size >= size else Scratch(size)


def stride_of(scratch_bytes: int, slots: int) -> int:
    """How far the working memories of two threads are apart: no page is shared."""
    return round_up(scratch_bytes, PAGE) if slots > 1 else scratch_bytes


class Pool:
    """Workers for one process. All callers share it; one at a time, who has counted up its `busy` from 0, has its workers."""

    def __init__(self) -> None:
        self.job = aligned_bytes(Job.BYTES, LINE).view(np.int64)
        self.job.fill(0)
        self.workers: list[threading.Thread] = []
        self._words = self.job.data
        self._masks = np.zeros(FIRST_WORKER + MOST_WORKERS, np.int64)
        self._system = system_words()
        self._tickets = aligned_bytes(MOST_WORKERS * LINE, LINE)
        pool = (address_of(self.job), address_of(self._system), address_of(self._masks))
        self._where = (*pool, LEADER_SPINS, address_of(self._tickets))
        self._entering = threading.Lock()  # of workers alone: they handle no signals
        self._asleep: list[SimpleQueue[None]] = []  # bells of workers that sleep in Python
        self._stop = False

    def _enter(self, most: int) -> int:
        """Enter this thread into the pool, and its number there; 0 if the pool has enough workers already or has been stopped."""
        with self._entering:
            count = len(self.workers)
            if self._stop or count >= most:
                return 0
            self._masks[FIRST_WORKER + count] = threading.get_native_id()
            self._masks[WORKERS] = count + 1
            self._masks[CALLER_CPU] = -1  # so that this one is kept apart too
            self.workers.append(threading.current_thread())
            return count + 1

    def _work(self, most: int, ready: threading.Event) -> None:
        number = self._enter(most)
        ready.set()
        if not number:
            return
        follow = _native("follow")
        job, result, bell = self.job, np.zeros(1, np.int64), SimpleQueue[None]()
        addresses = {"job": address_of(job), "system": address_of(self._system), "result": address_of(result)}
        block, place = Follow.pack({"spins": WORKER_SPINS, "number": number, "seen": -1, **addresses}), Follow.place("seen")
        while not self._stop:
            follow(_SLOTS_AT, _SLOTS_AT, address_of(block), 0, 0)
            seen = block[place] = int(result[0])
            self._asleep.append(bell)
            generation = int(job[GENERATION])
            if generation > seen + 1:  # a job came and perhaps went: look again, past what is over
                block[place] = generation - 1 if generation % 2 == 0 else seen
            elif not self._stop:
                bell.get()
            self._asleep.remove(bell)
            while not bell.empty():
                bell.get()

    def _ensure(self, workers: int) -> None:
        """Start missing workers; where the system or a closing interpreter allows no more threads, do with fewer."""
        while len(self.workers) < workers and not self._stop:
            ready = threading.Event()
            name = f"pullback-{len(self.workers) + 1}"
            try:
                threading.Thread(target=self._work, args=(workers, ready), name=name, daemon=True).start()
            except RuntimeError:
                return
            ready.wait()

    def run(self, function: int, arguments: int, pieces: int, scratch_bytes: int, count: int) -> bool:
        """Run a job on `count` threads; False, and nothing has been done, where others have the pool or it has been stopped."""
        if self._stop or self._words[BUSY]:
            return False
        self._ensure(count - 1)
        for bell in self._asleep[: count - 1]:
            bell.put(None)
        stride = stride_of(scratch_bytes, count)
        scratch = take_scratch(stride * count)
        _lead(*self._where, function, arguments, pieces, scratch.address, stride, count)
        scratch.put_back()
        return True

    def stop(self) -> None:
        """End the workers; jobs that come later run on their callers alone."""
        self._stop = True
        _lead(*self._where, 0, 0, 0, 0, 0, 0)
        for bell in tuple(self._asleep):
            bell.put(None)
        for worker in tuple(self.workers):
            worker.join(timeout=1.0)
        self.workers.clear()


_state: dict[str, Any] = {}  # "pool", and "team": other threads to run on (team.py), where another library has its own
_most: Callable[[], int] | None = None  # how many at most, by that library's settings

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.clear)  # the threads stayed behind; a method in C, which no signal interrupts


def pool() -> Pool:
    """The pool of this process, made at first use."""
    found: Pool | None = _state.get("pool")
    return _state.setdefault("pool", Pool()) if found is None else found


def use_team(team: Any) -> None:
    """Run jobs on these threads (a Team), and never on more than its size says; None: on our own pool again.

    A forked child has its own pool, of that size: OpenMP does not survive a fork.
    """
    global _most
    _state["team"] = team
    _most = None if team is None else team.size


@atexit.register
def _stop_at_exit() -> None:
    if "pool" in _state:
        pool().stop()


def release_scratch() -> int:
    """Give back the working memory of all threads, which stays as large as the largest job has asked for; how many bytes."""
    global _free, _releases
    _releases += 1
    released, _free = _free, []
    return sum(scratch.size for scratch in released)


def in_force() -> int:
    """Threads that a job may use now: those that were asked for, and no more than the other library's."""
    return get_num_threads() if _most is None else min(get_num_threads(), _most())


def fed_threads() -> int:
    """Threads that a plan should have pieces for, where its pieces cut no sum: those in force, as a power of two from 2 on."""
    return max(2, 1 << (in_force() - 1).bit_length())


def current_team() -> Any:
    """The other library's threads (a Team) that jobs run on; None: our own pool."""
    return _state.get("team")


def threads_of(pieces: int, most: int) -> int:
    """Threads for a job of so many pieces that pays for at most so many."""
    return min(in_force(), pieces, most) if most > 1 else 1


def _run_alone(function: int, arguments: int, pieces: int, scratch_bytes: int) -> None:
    """All pieces on this thread."""
    scratch = take_scratch(scratch_bytes)
    _lead(0, 0, 0, 0, 0, function, arguments, pieces, scratch.address, scratch_bytes, 1)
    scratch.put_back()


def run(function: int, arguments: int, pieces: int, scratch_bytes: int, most: int = MOST_THREADS) -> None:
    """Run pieces 0 .. pieces-1 of a kernel, on the threads in force, or at most so many of them, unless the pool is taken."""
    count = threads_of(pieces, most)
    if count > 1 and (current_team() or pool()).run(function, arguments, pieces, scratch_bytes, count):
        return
    _run_alone(function, arguments, pieces, scratch_bytes)
