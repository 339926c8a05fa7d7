"""The native half of the thread pool: taking it, claiming pieces of a job, and spinning for the next one.

A job is a block of int64 words, see threads.py for their order. Pieces are claimed by an atomic ticket, so the split of the
work never depends on the number of threads.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.native import atomic_add, atomic_load, call_piece, fence, spin_pause
from pullback.cpu.simd.vectors import I32, I64, get_int, inline, put_int

# Byte offsets of the words of a job, of what system.py has found, and of the affinity masks.
GENERATION, ACTIVE, SEATS, TICKET, PIECES, FUNCTION, ARGUMENTS, SCRATCH, STRIDE, STOPPED, SLEEPING, BUSY = range(0, 96, 8)
LET_OTHERS_RUN, SYSCALL, FUTEX, GET_MASK, SET_MASK, FIND_CPU, CLOCK = range(0, 56, 8)
MASK_BYTES = 1024
CPU, LOOKED, TIME, WORKERS, SEEN, NOW, THREADS = 0, 8, 24, 40, 48, 48 + MASK_BYTES, 48 + 2 * MASK_BYTES

WAIT, WAKE = 128, 129  # futex operations on memory of this process alone
EVERYBODY = 1 << 30
COARSE = 6  # the clock that ticks every few milliseconds, and takes no time to read


@intrinsic
def call_system(context: Any, address: Any, first: Any, second: Any) -> Any:
    """Call a C function by its address, with two arguments of which it may take none."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(I32, [I64, I64])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:]), I64)

    return types.int64(*[types.int64] * 3), emit


@intrinsic
def system_call(context: Any, function: Any, number: Any, first: Any, second: Any, third: Any) -> Any:
    """A system call of Linux, through the C library's `syscall`."""

    def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64] * 7)
        none = ir.Constant(I64, 0)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*args[1:], none, none, none])

    return types.int64(*[types.int64] * 5), emit


@inline
def claim(job, seat):
    """Run pieces until none is left."""
    function, arguments, pieces = get_int(job + FUNCTION), get_int(job + ARGUMENTS), get_int(job + PIECES)
    memory = get_int(job + SCRATCH) + seat * get_int(job + STRIDE)
    piece = atomic_add(job + TICKET, 1)
    while piece < pieces:
        call_piece(function, arguments, piece, memory)
        piece = atomic_add(job + TICKET, 1)
    fence()


@inline
def wake(job, system, count):
    """Wake so many of the workers that sleep until the generation changes."""
    system_call(get_int(system + SYSCALL), get_int(system + FUTEX), job + GENERATION, WAKE, count)


@inline
def keep_apart(masks, system):
    """Keep the workers off the caller's CPU, within its affinity mask.

    A system that wakes a worker there lets the two take turns for milliseconds. The caller's mask costs a system call: it is looked
    at again when the caller has moved or the coarse clock has ticked.
    """
    cpu = call_system(get_int(system + FIND_CPU), 0, 0)
    call_system(get_int(system + CLOCK), COARSE, masks + TIME)
    known = cpu == get_int(masks + CPU)
    if known and get_int(masks + TIME) == get_int(masks + LOOKED) and get_int(masks + TIME + 8) == get_int(masks + LOOKED + 8):
        return
    size = system_call(get_int(system + SYSCALL), get_int(system + GET_MASK), 0, MASK_BYTES, masks + NOW)
    put_int(masks + LOOKED, get_int(masks + TIME))
    put_int(masks + LOOKED + 8, get_int(masks + TIME + 8))
    for at in range(0, size, 8):  # none where the system refused
        word = get_int(masks + NOW + at)
        known = known and word == get_int(masks + SEEN + at)
        put_int(masks + SEEN + at, word)
    if known or size <= 0 or cpu < 0 or cpu >= 8 * size:
        return
    put_int(masks + CPU, cpu)
    mine = masks + NOW + cpu // 64 * 8
    put_int(mine, get_int(mine) & ~(1 << cpu % 64))
    others = 0
    for at in range(0, size, 8):
        others |= get_int(masks + NOW + at)
    if others == 0:  # one CPU for all
        put_int(mine, 1 << cpu % 64)
    for worker in range(get_int(masks + WORKERS)):
        thread = get_int(masks + THREADS + 8 * worker)
        system_call(get_int(system + SYSCALL), get_int(system + SET_MASK), thread, size, masks + NOW)


def build(lanes: Any) -> dict[str, Any]:
    def lead(piece, scratch, job, system, masks, spins, function, arguments, pieces, memory, stride, seats):
        """The caller's part: take the pool, open the job, wake who sleeps, work, close the job, and leave when no worker is in it.

        Without a job block, or where another caller has the pool, all pieces run here. All of it is one call from Python, so that
        no exception of a signal handler can come between taking the pool and giving it back. No seats: the pool ends.
        """
        if seats == 0:
            put_int(job + STOPPED, 1)
            atomic_add(job + GENERATION, 2)  # open stays open, and who is about to sleep on it does not
            if get_int(system + SYSCALL) != 0:
                wake(job, system, EVERYBODY)
            return
        if job != 0:
            if atomic_add(job + BUSY, 1) == 0:
                if get_int(system + SET_MASK) != 0:
                    keep_apart(masks, system)
                put_int(job + SEATS, seats - 1)
                put_int(job + TICKET, 0)
                put_int(job + PIECES, pieces)
                put_int(job + FUNCTION, function)
                put_int(job + ARGUMENTS, arguments)
                put_int(job + SCRATCH, memory)
                put_int(job + STRIDE, stride)
                atomic_add(job + GENERATION, 1)
                if atomic_load(job + SLEEPING) > 0:
                    wake(job, system, seats - 1)
                claim(job, 0)
                atomic_add(job + GENERATION, 1)
                waited = 0
                while atomic_load(job + ACTIVE) != 0:
                    if waited < spins:
                        waited += 1
                        spin_pause()
                    else:  # the workers have lost their cores
                        call_system(get_int(system + LET_OTHERS_RUN), 0, 0)
                atomic_add(job + BUSY, -1)
                return
            atomic_add(job + BUSY, -1)
        for number in range(pieces):
            call_piece(function, arguments, number, memory)
        fence()

    def follow(piece, scratch, job, system, spins, result, seen):
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
                    syscall = get_int(system + SYSCALL)
                    if syscall == 0:
                        break
                    # Counted in before the system compares the word: a caller opens its job first and counts sleepers then.
                    atomic_add(job + SLEEPING, 1)
                    system_call(syscall, get_int(system + FUTEX), job + GENERATION, WAIT, generation & 0xFFFFFFFF)
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
