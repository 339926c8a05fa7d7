"""Data-parallel training over MPI: each rank has its rows of every batch, and gradients are summed while backward still runs.

Needs the extra `mpi` (mpi4py) and an MPI; `mpiexec -n 4 pullback train ...` starts it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pullback.onnx.errors import OnnxError
from pullback.rules import Array

BUCKET_BYTES = 1 << 20
GRACE_SECONDS = 1.0  # in which other ranks may fail for the same reason
INTERRUPTED = 130  # the status of what Ctrl-C ended, as shells have it
# What launchers set: MPICH and Intel MPI, Open MPI, MVAPICH; Slurm's PMIx says the rank alone.
SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANK_VARIABLE = "PMIX_RANK"


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError(f"training over MPI needs mpi4py: pip install 'pullback[mpi]' ({error})", name="mpi4py") from None
    return MPI


def world() -> Ranks | None:
    """The ranks of this job; None for a process that mpiexec has not started, or has started alone."""
    sizes = [os.environ[name] for name in SIZE_VARIABLES if os.environ.get(name)]
    if set(sizes) <= {"1"} and (sizes or RANK_VARIABLE not in os.environ):
        return None
    ranks = Ranks(_mpi().COMM_WORLD)
    return ranks if ranks.size > 1 else None


class Ranks:
    """This process among those of a job."""

    def __init__(self, comm: Any) -> None:
        self._mpi = _mpi()
        self.comm = comm.Dup()
        self._failures = comm.Dup()
        self.rank, self.size = int(self.comm.Get_rank()), int(self.comm.Get_size())

    @property
    def first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def neighbours(self) -> int:
        """Ranks on this machine, which share its cores."""
        local = self.comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        count = int(local.Get_size())
        local.Free()
        return count

    def rows(self, count: int) -> slice:
        """Which of the rows of a batch are this rank's."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, array: Array) -> Array:
        """The sum over all ranks, the same bits on each."""
        total: Array = np.array(array, order="C")
        self.comm.Allreduce(self._mpi.IN_PLACE, total, op=self._mpi.SUM)
        return total

    def barrier(self) -> None:
        self.comm.Barrier()

    def buckets(self) -> Buckets:
        return Buckets(self.comm, self._mpi)

    @contextmanager
    def job(self) -> Iterator[None]:
        """Around the work of a rank: one that fails alone ends the whole job, and says which it was.

        Where all fail for the same reason (wrong data, a loss that is not finite), rank 0 raises and the others leave quietly. One
        that is killed ends the job through mpiexec, which names its process: rank 0 says at the beginning which rank that is.
        """
        self._name_processes()
        try:
            yield
        except BaseException as error:
            if isinstance(error, SystemExit) and not error.code:
                raise
            if isinstance(error, KeyboardInterrupt):
                self._break_off()
            if self._all_failed():
                if self.first:
                    raise
                raise SystemExit(1) from None
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            print(f"rank {self.rank} of {self.size} failed, so the job ends: {what}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            self.comm.Abort(1)

    def _break_off(self) -> None:
        """Ctrl-C comes anywhere, also into sums that then never end: MPI would wait for them, and so it is not ended in order."""
        sys.stdout.flush()
        if not self.first:
            time.sleep(GRACE_SECONDS)  # in which rank 0 may say what is kept
        self.comm.Abort(INTERRUPTED)

    def _name_processes(self) -> None:
        places = self.comm.gather((self._mpi.Get_processor_name(), os.getpid()))
        if places is not None:
            listed = ", ".join(f"{rank} is process {process} on {machine}" for rank, (machine, process) in enumerate(places))
            print(f"{self.size} ranks: {listed}", file=sys.stderr, flush=True)

    def _all_failed(self) -> bool:
        """Whether every rank comes here within the time of grace."""
        request, end = self._failures.Ibarrier(), time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            if request.Test():
                return True
            time.sleep(0.005)
        return False


class Buckets:
    """Gradients on their way: gathered into buckets of about a megabyte, each summed over the ranks as soon as it is full.

    Every rank must add the same gradients in the same order.
    """

    def __init__(self, comm: Any, mpi: Any) -> None:
        self._comm, self._mpi = comm, mpi
        self._gathered: list[tuple[str, Array]] = []
        self._sent: list[tuple[list[tuple[str, int]], Array]] = []
        self._requests: list[Any] = []

    def add(self, name: str, gradient: Array) -> None:
        """A flat gradient, which is copied before this returns or when its bucket is sent."""
        if self._gathered and self._gathered[0][1].dtype != gradient.dtype:
            self._send()
        self._gathered.append((name, gradient))
        if sum(each.nbytes for _, each in self._gathered) >= BUCKET_BYTES:
            self._send()
        if self._requests:
            self._mpi.Request.Testall(self._requests)  # MPI moves on when it is called

    def _send(self) -> None:
        bucket = np.concatenate([gradient for _, gradient in self._gathered])
        self._sent.append(([(name, gradient.size) for name, gradient in self._gathered], bucket))
        self._gathered = []
        self._requests.append(self._comm.Iallreduce(self._mpi.IN_PLACE, bucket, op=self._mpi.SUM))

    def finish(self) -> dict[str, Array]:
        """All of them, summed over the ranks."""
        if self._gathered:
            self._send()
        self._mpi.Request.Waitall(self._requests)
        sums = {}
        for entries, bucket in self._sent:
            first = 0
            for name, size in entries:
                sums[name] = bucket[first : first + size]
                first += size
        return sums


def check_same(ranks: Ranks, what: str, number: int) -> None:
    """Refuse to go on where ranks differ in something that must be the same."""
    numbers = ranks.comm.allgather(number)
    if len(set(numbers)) > 1:
        other = next(rank for rank, each in enumerate(numbers) if each != numbers[0])
        raise OnnxError(f"rank {other} has {what} than rank 0: all ranks must be started with the same files and options")
