"""Running the pieces of a job on the threads of another library's OpenMP, in place of our pool.

Two pools on the same cores cost dearly: the idle threads of one spin on the cores that the other wants. A team calls the OpenMP
library that the other one has loaded, so that there is one set of threads. Pieces and results are the same as on our pool.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from string import Template
from typing import Any

import numpy as np
from llvmlite import binding

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.kernel_records import Job
from pullback.cpu.engine.threads import stride_of, take_scratch

# The caller's part: take the team, copy the job to where its threads count it down, run it on all of them, give the team back. It
# is one call from Python, so that no signal handler can interrupt it. 0: another caller has the team.
#
# One thread's part: take a slot, then pieces until none is left. The places ($) are those of a `Job`; a kernel takes two places
# for results that it never writes, the record of its arguments, the piece and the working memory.
_TEAM = """
declare void @llvm.memcpy.p0i8.p0i8.i64(i8*, i8*, i64, i1)

define i32 @pullback_team(i64* %busy, i64 %parallel, i8* %given, i32 %size) {
begin:
  %job = alloca i64, i32 $words
  %before = atomicrmw add i64* %busy, i64 1 seq_cst
  %free = icmp eq i64 %before, 0
  br i1 %free, label %taken, label %given.back
taken:
  %bytes = bitcast i64* %job to i8*
  call void @llvm.memcpy.p0i8.p0i8.i64(i8* %bytes, i8* %given, i64 $bytes, i1 false)
  %run = inttoptr i64 %parallel to void (void (i64*)*, i64*, i32, i32)*
  call void %run(void (i64*)* @pullback_member, i64* %job, i32 %size, i32 0)
  br label %given.back
given.back:
  %after = atomicrmw sub i64* %busy, i64 1 seq_cst
  %done = zext i1 %free to i32
  ret i32 %done
}

define void @pullback_member(i64* %job) {
begin:
  %places = alloca i64, i32 2
  %slots = getelementptr i64, i64* %job, i64 $slots
  %slot = atomicrmw sub i64* %slots, i64 1 seq_cst
  %joins = icmp sge i64 %slot, 0
  br i1 %joins, label %joined, label %done
joined:
  %ticket = getelementptr i64, i64* %job, i64 $ticket
  %pieces.at = getelementptr i64, i64* %job, i64 $pieces
  %pieces = load i64, i64* %pieces.at
  %function.at = getelementptr i64, i64* %job, i64 $function
  %address = load i64, i64* %function.at
  %function = inttoptr i64 %address to i32 (i64*, i64*, i64, i64, i64)*
  %arguments.at = getelementptr i64, i64* %job, i64 $arguments
  %arguments = load i64, i64* %arguments.at
  %scratch.at = getelementptr i64, i64* %job, i64 $scratch
  %scratch = load i64, i64* %scratch.at
  %stride.at = getelementptr i64, i64* %job, i64 $stride
  %stride = load i64, i64* %stride.at
  %offset = mul i64 %slot, %stride
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


def _source() -> str:
    places = {name: Job.place(name) for name, _ in Job.FIELDS}
    return Template(_TEAM).substitute(places, words=len(Job.FIELDS), bytes=Job.BYTES)


def _compiled() -> tuple[Any, int]:
    """The engine that keeps the machine code, and its address."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    engine = binding.create_mcjit_compiler(
        binding.parse_assembly(_source()), binding.Target.from_default_triple().create_target_machine()
    )
    engine.finalize_object()
    return engine, engine.get_function_address("pullback_team")


class Team:
    """The OpenMP threads of a loaded library; `size()` is how many it uses itself, and so how many are awake."""

    def __init__(self, library: str, size: Callable[[], int]) -> None:
        self.size = size
        self.busy = np.zeros(1, np.int64)  # how many callers want it now; the first has it
        self._words = self.busy.data
        self._engine, address = _compiled()
        self._library = ctypes.CDLL(library)
        parallel = ctypes.cast(self._library.GOMP_parallel, ctypes.c_void_p).value
        lead = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
        self._lead, self._where = lead(address), (address_of(self.busy), parallel)

    def run(self, function: int, arguments: int, pieces: int, scratch_bytes: int, count: int) -> bool:
        """Run a job on `count` threads; False, and nothing has been done, where another caller has the team.

        All threads of the team are called, whatever the count: OpenMP ends those that a smaller team leaves out.
        """
        if self._words[0]:
            return False
        stride = stride_of(scratch_bytes, count)
        scratch = take_scratch(stride * count)
        fields = dict.fromkeys((name for name, _ in Job.FIELDS), 0) | {
            "slots": count - 1, "pieces": pieces, "function": function, "arguments": arguments, "scratch": scratch.address,
            "stride": stride,
        }  # fmt: skip
        job = struct.pack(f"={len(fields)}q", *fields.values())
        done = self._lead(*self._where, job, self.size())
        scratch.put_back()
        return bool(done)
