"""Running the pieces of a job on the threads of another library's OpenMP, in place of our pool.

Two pools on the same cores cost dearly: the idle threads of one spin on the cores that the other wants. A team calls the OpenMP
library that the other one has loaded, so that there is one set of threads. Pieces and results are the same as on our pool.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy as np

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.kernel_records import Job
from pullback.cpu.engine.memory import aligned_bytes
from pullback.cpu.engine.records import WORD
from pullback.cpu.engine.sizes import LINE
from pullback.cpu.engine.threads import stride_of, take_scratch
from pullback.cpu.machine_code.find import code
from pullback.cpu.machine_code.variants import Variant
from pullback.settings import MOST_THREADS

LEAST_SHARE = 8  # of the team: where only a smaller part of it would work, the caller does it alone

# The fields of a job that a team sets, in the order of the record; pad bytes stand for the others. One is packed every few
# microseconds.
SET_FIELDS = (
    "slots", "number_function", "pieces", "function", "arguments", "scratch", "stride", "ranges", "each", "tickets",
)  # fmt: skip
_pack_job = struct.Struct("=" + "".join("q" if name in SET_FIELDS else f"{WORD}x" for name, _ in Job.FIELDS)).pack


class Team:
    """The OpenMP threads of a loaded library; `size()` is how many it uses itself, and so how many are awake."""

    def __init__(self, library: str, size: Callable[[], int]) -> None:
        self.size = size
        self.busy = np.zeros(1, np.int64)  # how many callers want it now; the first has it
        self._words = self.busy.data
        native = code(Variant("engine.team", "team")).functions
        self._library = ctypes.CDLL(library)
        parallel = ctypes.cast(self._library.GOMP_parallel, ctypes.c_void_p).value
        self._number_function = ctypes.cast(self._library.omp_get_thread_num, ctypes.c_void_p).value or 0
        lead = ctypes.CFUNCTYPE(ctypes.c_int32, *(ctypes.c_void_p,) * 3, ctypes.c_uint32)
        self._tickets = aligned_bytes(MOST_THREADS * LINE, LINE)
        self._tickets_at = address_of(self._tickets)
        self._lead, self._where = lead(native["team_lead"]), (address_of(self.busy), parallel)
        sequence = ctypes.CFUNCTYPE(
            ctypes.c_int64, *(ctypes.c_void_p,) * 3, ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p
        )  # fmt: skip
        self._sequence = sequence(native["team_sequence"])

    def run(self, function: int, arguments: int, pieces: int, scratch_bytes: int, count: int) -> bool:
        """Run a job on `count` threads; False, and nothing has been done, where another caller has the team or it does not pay.

        All threads of the team are called, whatever the count: OpenMP ends those that a smaller team leaves out.
        """
        size = self.size()
        if self._words[0] or count * LEAST_SHARE < size:
            return False
        stride = stride_of(scratch_bytes, count)
        scratch = take_scratch(stride * count)
        job = _pack_job(
            count - 1, self._number_function, pieces, function, arguments, scratch.address, stride, count, -(-pieces // count),
            self._tickets_at,
        )  # fmt: skip
        done = self._lead(*self._where, job, size)
        scratch.put_back()
        return bool(done)

    def shares(self, count: int) -> bool:
        """Whether a job for so many threads is shared out."""
        return count > 1 and count * LEAST_SHARE >= self.size()

    def fields(self, function: int, pieces: int, count: int, scratch_bytes: int) -> dict[str, int]:
        """Of the step of a sequence, but for its arguments; a count of 1: the caller runs it alone."""
        return {
            "slots": count - 1, "number_function": self._number_function, "pieces": pieces, "function": function,
            "stride": stride_of(scratch_bytes, count), "ranges": count, "each": -(-pieces // count), "tickets": self._tickets_at,
        }  # fmt: skip

    def run_sequence(self, steps: int, count: int, size: int, scratch: int) -> int:
        """Run the steps at this address on a team of this size; `count`, or the number of the one that has set its flag."""
        done: int = self._sequence(*self._where, steps, count, size, scratch)
        return done
