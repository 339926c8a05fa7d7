"""Running the pieces of a job on the threads of another library's OpenMP, in place of our pool.

Two pools on the same cores cost dearly: the idle threads of one spin on the cores that the other wants. A team calls the OpenMP
library that the other one has loaded, so that there is one set of threads. Pieces and results are the same as on our pool.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import binding

from pullback.cpu.addresses import address_of
from pullback.cpu.threads import Desk

# One thread's part: take a seat, then pieces until none is left. Numbers are places in the job block (threads.py); a kernel
# takes two places for results that it never writes, the arguments, the piece and the working memory.
_MEMBER = """
define void @pullback_member(i64* %job) {
begin:
  %places = alloca i64, i32 2
  %seats = getelementptr i64, i64* %job, i64 2
  %seat = atomicrmw sub i64* %seats, i64 1 seq_cst
  %sits = icmp sge i64 %seat, 0
  br i1 %sits, label %seated, label %done
seated:
  %ticket = getelementptr i64, i64* %job, i64 3
  %pieces.at = getelementptr i64, i64* %job, i64 4
  %pieces = load i64, i64* %pieces.at
  %function.at = getelementptr i64, i64* %job, i64 5
  %address = load i64, i64* %function.at
  %function = inttoptr i64 %address to i32 (i64*, i64*, i64, i64, i64)*
  %arguments.at = getelementptr i64, i64* %job, i64 6
  %arguments = load i64, i64* %arguments.at
  %scratch.at = getelementptr i64, i64* %job, i64 7
  %scratch = load i64, i64* %scratch.at
  %stride.at = getelementptr i64, i64* %job, i64 8
  %stride = load i64, i64* %stride.at
  %offset = mul i64 %seat, %stride
  %memory = add i64 %scratch, %offset
  br label %next
next:
  %piece = atomicrmw add i64* %ticket, i64 1 seq_cst
  %left = icmp slt i64 %piece, %pieces
  br i1 %left, label %work, label %done
work:
  call i32 %function(i64* %places, i64* %places, i64 %arguments, i64 %piece, i64 %memory)
  br label %next
done:
  ret void
}
"""


def _compiled() -> tuple[Any, int]:
    """The engine that keeps the machine code, and its address."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly(_MEMBER), binding.Target.from_default_triple().create_target_machine()
    )
    engine.finalize_object()
    return engine, engine.get_function_address("pullback_member")


class Team:
    """The OpenMP threads of a loaded library; `size()` is how many it uses itself, and so how many are awake."""

    def __init__(self, library: str, size: Callable[[], int]) -> None:
        self.busy = threading.Lock()
        self.size = size
        self._desk = Desk()
        self._job = address_of(self._desk.job)
        self._engine, self._member = _compiled()
        self._parallel = ctypes.CDLL(library).GOMP_parallel
        self._parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._parallel.restype = None

    def run(self, function: int, arguments: int, pieces: int, scratch_bytes: int, count: int) -> None:
        """Run a job on `count` threads; the caller holds `busy`.

        All threads of the team are called, whatever the count: OpenMP ends those that a smaller team leaves out.
        """
        room = self._desk.fill(function, arguments, pieces, scratch_bytes, count)  # noqa: F841 (held until the job is done)
        self._parallel(self._member, self._job, self.size(), 0)
