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

GENERATION, ACTIVE, SEATS, TICKET, PIECES, FUNCTION, ARGUMENTS, SCRATCH, SCRATCH_STRIDE, STOPPED = range(0, 80, 8)


@intrinsic
def call_system(context: Any, address: Any) -> Any:
    """Call a C function without arguments by its address."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return ctx.get_dummy_value()

    return types.void(types.int64), emit


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
    def lead(piece, scratch, job, spins, let_others_run):
        """The caller's part: open the job, work, close it, and return when no worker is in it."""
        atomic_add(job + GENERATION, 1)
        claim(job, 0)
        atomic_add(job + GENERATION, 1)
        waited = 0
        while atomic_load(job + ACTIVE) != 0:
            if waited < spins:
                waited += 1
                spin_pause()
            else:
                call_system(let_others_run)

    def follow(piece, scratch, job, spins, result, seen):
        """A worker's part: help with every open job newer than `seen`; the generation seen last in result.

        Returns when none has come for a while or the pool stops: as long as jobs follow each other, no worker goes back to Python,
        where it would wait for the interpreter. An odd generation is an open job. A worker counts itself in before it looks
        again, and the caller closes the job before it counts the workers, so no worker can touch a job after its caller has left.
        """
        waited = 0
        while waited < spins and atomic_load(job + STOPPED) == 0:
            generation = atomic_load(job + GENERATION)
            if generation % 2 == 0 or generation == seen:
                waited += 1
                spin_pause()
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
