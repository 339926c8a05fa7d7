"""The native half of the thread pool: claiming pieces of a job, and spinning for the next one.

A job is a block of int64 words, see threads.py for their order. Pieces are claimed by an atomic ticket, so the split of the
work never depends on the number of threads.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.kernels.native import atomic_add, atomic_load, call_piece, fence, spin_pause
from pullback.cpu.kernels.vectors import get_int, inline, put_int

GENERATION, ACTIVE, SEATS, TICKET, PIECES, FUNCTION, ARGUMENTS, SCRATCH, SCRATCH_STRIDE, STOPPED, SLEEPING = range(0, 88, 8)


@intrinsic
def call_system(context: Any, address: Any) -> Any:
    """Call a C function without arguments by its address."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return ctx.get_dummy_value()

    return types.void(types.int64), emit


WAIT, WAKE = 128, 129  # futex operations on memory of this process alone


@intrinsic
def futex(context: Any, function: Any, number: Any, address: Any, operation: Any, value: Any) -> Any:
    """Linux's system call for sleeping on a word of memory, through the C library's `syscall`."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * 7)
        none = ir.Constant(ir.IntType(64), 0)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*args[1:], none, none, none])
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


@inline
def claim(job, seat):
    """Run pieces until none is left."""
    function, arguments, pieces = get_int(job + FUNCTION), get_int(job + ARGUMENTS), get_int(job + PIECES)
    memory = get_int(job + SCRATCH) + seat * get_int(job + SCRATCH_STRIDE)
    piece = atomic_add(job + TICKET, 1)
    while piece < pieces:
        call_piece(function, arguments, piece, memory)
        piece = atomic_add(job + TICKET, 1)
    fence()


def build(lanes: Any) -> dict[str, Any]:
    def lead(piece, scratch, job, spins, let_others_run, syscall, futex_number):
        """The caller's part: open the job, wake who sleeps, work, close the job, and return when no worker is in it."""
        atomic_add(job + GENERATION, 1)
        if get_int(job + SEATS) > 0 and atomic_load(job + SLEEPING) > 0:
            futex(syscall, futex_number, job + GENERATION, WAKE, get_int(job + SEATS))
        claim(job, 0)
        atomic_add(job + GENERATION, 1)
        waited = 0
        while atomic_load(job + ACTIVE) != 0:
            if waited < spins:
                waited += 1
                spin_pause()
            else:
                call_system(let_others_run)

    def follow(piece, scratch, job, spins, result, seen, syscall, futex_number):
        """A worker's part: help with every open job newer than `seen`; the generation seen last in result.

        When none has come for a while, a worker sleeps on the generation word where the system can do that, else it returns:
        back in Python it would wait for the interpreter, which took milliseconds to let it in. An odd generation is an open job. A
        worker counts itself in before it looks again, and the caller closes the job before it counts the workers, so no worker
        can touch a job after its caller has left.
        """
        waited = 0
        while atomic_load(job + STOPPED) == 0:
            generation = atomic_load(job + GENERATION)
            if generation % 2 == 0 or generation == seen:
                waited += 1
                spin_pause()
                if waited >= spins:
                    if syscall == 0:
                        break
                    # Counted in before the system compares the word: a caller opens its job first and counts sleepers then.
                    atomic_add(job + SLEEPING, 1)
                    futex(syscall, futex_number, job + GENERATION, WAIT, generation & 0xFFFFFFFF)
                    atomic_add(job + SLEEPING, -1)
                    waited = 0
                continue
            atomic_add(job + ACTIVE, 1)
            if atomic_load(job + GENERATION) == generation:
                seat = atomic_add(job + SEATS, -1)
                if seat > 0:
                    claim(job, seat)
            atomic_add(job + ACTIVE, -1)
            seen = generation
            waited = 0
        put_int(result, seen)

    return {"lead": lead, "follow": follow}
