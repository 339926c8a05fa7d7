"""The thread pool: fixed pieces of work claimed dynamically by the caller and a few workers.

Workers spin briefly in native code for the next job, then sleep in Python. A second caller while the pool is busy, a small job,
and a forked child before its first job all run on the calling thread alone, with the same pieces and so the same bits.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from pullback.cpu.compiler import Code, Variant, code
from pullback.cpu.machine import cores

# Words of a job block, in order (kernels/threading_loop.py has their byte offsets).
GENERATION, ACTIVE, SEATS, TICKET, PIECES, FUNCTION, ARGUMENTS, SCRATCH, SCRATCH_STRIDE = range(9)
JOB_WORDS = 16

WORKER_SPINS = 4000  # some 100 microseconds of waiting for the next job before a worker sleeps
LEADER_SPINS = 20000
THREADS_VARIABLE = "PULLBACK_NUM_THREADS"

_NATIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

_default_threads: int | None = None
_threads: ContextVar[int | None] = ContextVar("pullback_threads", default=None)


def _checked(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 1 <= n <= 1024:
        raise ValueError(f"the number of threads is {n!r}; it must be a whole number from 1 to 1024")
    return int(n)


def set_num_threads(n: int) -> None:
    """Use this many threads from now on, wherever no `with threads(...)` says otherwise."""
    global _default_threads
    _default_threads = _checked(n)


def get_num_threads() -> int:
    """Threads in force: `with threads(n)`, set_num_threads, $PULLBACK_NUM_THREADS, else the cores of this process."""
    chosen = _threads.get() or _default_threads
    if chosen is not None:
        return chosen
    asked = os.environ.get(THREADS_VARIABLE, "")
    return _checked(int(asked)) if asked.isdigit() else cores()


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Use n threads inside the block."""
    token = _threads.set(_checked(n))
    try:
        yield
    finally:
        _threads.reset(token)


class _Native:
    """A native function of the pool, ready to call from one thread with its own argument block."""

    def __init__(self, compiled: Code, **arguments: int) -> None:
        self.result = np.zeros(8, np.int64)
        self.block = compiled.pack(result=self.result.ctypes.data, **arguments)
        self._slots = np.zeros(8, np.int64)
        self._call = _NATIVE(compiled.address)
        self._where = (self._slots.ctypes.data, self._slots.ctypes.data, self.block.ctypes.data)

    def __call__(self, piece: int = 0) -> int:
        self._call(*self._where, piece, 0)
        return int(self.result[0])


class Pool:
    """Workers for one process. All callers share it; one at a time has its workers."""

    def __init__(self) -> None:
        self.job = np.zeros(JOB_WORDS, np.int64)
        self.busy = threading.Lock()
        self.workers: list[threading.Thread] = []
        self._sleep = threading.Condition()
        self._sleeping = 0
        self._stop = False
        self._scratch = np.empty(0, np.uint8)
        self._lead = _Native(code(Variant("threading_loop", "lead")), job=self.job.ctypes.data, spins=LEADER_SPINS)

    def _work(self) -> None:
        follow = _Native(code(Variant("threading_loop", "follow")), job=self.job.ctypes.data, spins=WORKER_SPINS, seen=0)
        place = [name for name, _ in code(Variant("threading_loop", "follow")).parameters].index("seen")
        while not self._stop:
            seen = int(follow.block[place])
            newest = follow()
            if newest != seen:
                follow.block[place] = newest
                continue
            with self._sleep:
                generation = int(self.job[GENERATION])
                if generation > seen + 1:  # a job came and perhaps went: look again, past what is over
                    follow.block[place] = generation - 1 if generation % 2 == 0 else seen
                elif not self._stop:
                    self._sleeping += 1
                    self._sleep.wait()
                    self._sleeping -= 1

    def _ensure(self, workers: int) -> None:
        while len(self.workers) < workers:
            worker = threading.Thread(target=self._work, name=f"pullback-{len(self.workers) + 1}", daemon=True)
            worker.start()
            self.workers.append(worker)

    def scratch(self, bytes_each: int, seats: int) -> tuple[int, int]:
        """Address and stride of per-seat working memory, aligned to 64 bytes and kept for the next job."""
        stride = -(-bytes_each // 4096) * 4096
        if self._scratch.size < stride * seats + 64:
            self._scratch = np.empty(stride * seats + 64, np.uint8)
        return -(-self._scratch.ctypes.data // 64) * 64, stride

    def run(self, function: int, arguments: int, pieces: int, scratch_bytes: int, count: int) -> None:
        """Run a job on `count` threads; the caller holds `busy`."""
        self._ensure(count - 1)
        address, stride = self.scratch(scratch_bytes, count)
        job = self.job
        job[SEATS] = count - 1
        job[TICKET], job[PIECES] = 0, pieces
        job[FUNCTION], job[ARGUMENTS] = function, arguments
        job[SCRATCH], job[SCRATCH_STRIDE] = address, stride
        if self._sleeping:
            self._wake_later()
        done = self._lead(0)
        while not done:  # a worker lost its core in the middle of a piece
            time.sleep(0)
            done = self._lead(1)

    def _wake_later(self) -> None:
        with self._sleep:
            self._sleep.notify_all()

    def stop(self) -> None:
        self._stop = True
        with self._sleep:
            self._sleep.notify_all()
        for worker in self.workers:
            worker.join(timeout=1.0)
        self.workers.clear()


_pool: Pool | None = None
_pool_lock = threading.Lock()
_own = threading.local()


def _forget_pool() -> None:
    """In a forked child: the workers stayed behind."""
    global _pool, _pool_lock, _own
    _pool, _pool_lock, _own = None, threading.Lock(), threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def pool() -> Pool:
    global _pool
    if _pool is None:
        with _pool_lock:
            if _pool is None:
                _pool = Pool()
                atexit.register(_stop_at_exit)
    return _pool


def _stop_at_exit() -> None:
    if _pool is not None:
        _pool.stop()


def _run_alone(function: int, arguments: int, pieces: int, scratch_bytes: int) -> None:
    """All pieces on this thread, with memory of its own."""
    memory = getattr(_own, "memory", None)
    if memory is None or memory.size < scratch_bytes + 64:
        memory = _own.memory = np.empty(scratch_bytes + 64, np.uint8)
    slots = np.zeros(8, np.int64)
    job = np.zeros(JOB_WORDS, np.int64)
    job[PIECES], job[FUNCTION], job[ARGUMENTS] = pieces, function, arguments
    job[SCRATCH] = -(-memory.ctypes.data // 64) * 64
    alone = code(Variant("threading_loop", "lead"))
    result = np.zeros(1, np.int64)
    block = alone.pack(job=job.ctypes.data, spins=1, result=result.ctypes.data)
    _NATIVE(alone.address)(slots.ctypes.data, slots.ctypes.data, block.ctypes.data, 0, 0)


def run(function: int, arguments: int, pieces: int, scratch_bytes: int, parallel: bool = True) -> None:
    """Run pieces 0 .. pieces-1 of a kernel, on the threads in force unless the job is small or the pool is taken."""
    count = min(get_num_threads(), pieces) if parallel else 1
    if count > 1:
        workers = pool()
        if workers.busy.acquire(blocking=False):
            try:
                workers.run(function, arguments, pieces, scratch_bytes, count)
            finally:
                workers.busy.release()
            return
    _run_alone(function, arguments, pieces, scratch_bytes)
