"""The native half of the thread pool: taking it, claiming pieces of a job, and spinning for the next one.

Pieces are claimed by atomic tickets, so the split of the work never depends on the number of threads; in which order they are
claimed does (see Job).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.engine.kernel_records import MASK_BYTES, NEW_MASK, SEEN_MASK, WORKER_THREADS, Follow, Job, Lead, Masks, System
from pullback.cpu.engine.sizes import LINE
from pullback.cpu.simd.native import atomic_add, atomic_load, call_piece, fence, spin_pause
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import I32, I64, get_int, inline, put_int

job_at, system_at, masks_at = records_at(Job), records_at(System), records_at(Masks)

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
def claim(job, slot, number):
    """Run pieces until none is left, those of the range of thread `number` first."""
    function, arguments, pieces = job.function, job.arguments, job.pieces
    scratch = job.scratch + slot * job.stride
    ranges, each = job.ranges, job.each
    for i in range(ranges):
        turn = (number + i) % ranges
        first, place = turn * each, job.tickets + turn * LINE
        count = min(each, pieces - first)
        ticket = atomic_add(place, 1)
        while ticket < count:
            call_piece(function, arguments, first + ticket, scratch)
            ticket = atomic_add(place, 1)
        if ticket == max(0, count):
            atomic_add(job.ended_at, 1)
    fence()


@inline
def wake(job, system, count):
    """Wake so many of the workers that sleep until the generation changes."""
    system_call(system.syscall, system.futex, job.generation_at, WAKE, count)


@inline
def keep_apart(masks, system):
    """Keep the workers off the caller's CPU, within its affinity mask.

    A system that wakes a worker there lets the two take turns for milliseconds. The caller's mask costs a system call: it is looked
    at again when the caller has moved or the coarse clock has ticked.
    """
    cpu = call_system(system.find_cpu, 0, 0)
    call_system(system.clock, COARSE, masks.seconds_at)
    known = cpu == masks.cpu
    if known and masks.seconds == masks.looked_seconds and masks.nanoseconds == masks.looked_nanoseconds:
        return
    seen, new = masks.cpu_at + SEEN_MASK, masks.cpu_at + NEW_MASK
    size = system_call(system.syscall, system.get_mask, 0, MASK_BYTES, new)
    masks.looked_seconds = masks.seconds
    masks.looked_nanoseconds = masks.nanoseconds
    for at in range(0, size, 8):  # none where the system refused
        word = get_int(new + at)
        known = known and word == get_int(seen + at)
        put_int(seen + at, word)
    if known or size <= 0 or cpu < 0 or cpu >= 8 * size:
        return
    masks.cpu = cpu
    mine = new + cpu // 64 * 8
    put_int(mine, get_int(mine) & ~(1 << cpu % 64))
    others = 0
    for at in range(0, size, 8):
        others |= get_int(new + at)
    if others == 0:  # one CPU for all
        put_int(mine, 1 << cpu % 64)
    for worker in range(masks.workers):
        thread = get_int(masks.cpu_at + WORKER_THREADS + 8 * worker)
        system_call(system.syscall, system.set_mask, thread, size, new)


def build(lanes: Any) -> dict[str, Any]:
    def lead(args: Lead, piece, scratch):
        """The caller's part: take the pool, open the job, wake who sleeps, work, close the job, and leave when no worker is in it.

        Without a job block, or where another caller has the pool, all pieces run here. All of it is one call from Python, so that
        no exception of a signal handler can come between taking the pool and giving it back.
        """
        job, system = job_at(args.job, 0), system_at(args.system, 0)
        if args.slots == 0:
            job.stopped = 1
            atomic_add(job.generation_at, 2)  # open stays open, and who is about to sleep on it does not
            if system.syscall != 0:
                wake(job, system, EVERYBODY)
            return
        if args.job != 0:
            if atomic_add(job.busy_at, 1) == 0:
                if system.set_mask != 0:
                    keep_apart(masks_at(args.masks, 0), system)
                job.slots = args.slots - 1
                job.ended = 0
                job.tickets = args.tickets
                for turn in range(args.slots):
                    put_int(args.tickets + turn * LINE, 0)
                job.pieces = args.pieces
                job.function = args.function
                job.arguments = args.arguments
                job.scratch = args.scratch
                job.stride = args.stride
                job.ranges = args.slots
                job.each = (args.pieces + args.slots - 1) // args.slots
                atomic_add(job.generation_at, 1)
                if atomic_load(job.sleeping_at) > 0:
                    wake(job, system, args.slots - 1)
                claim(job, 0, 0)
                atomic_add(job.generation_at, 1)
                waited = 0
                while atomic_load(job.active_at) != 0:
                    if waited < args.spins:
                        waited += 1
                        spin_pause()
                    else:  # the workers have lost their cores
                        call_system(system.let_others_run, 0, 0)
                atomic_add(job.busy_at, -1)
                return
            atomic_add(job.busy_at, -1)
        for number in range(args.pieces):
            call_piece(args.function, args.arguments, number, args.scratch)
        fence()

    def follow(args: Follow, piece, scratch):
        """A worker's part: help with every open job newer than `seen`; the generation seen last in result.

        When none has come for a while, a worker sleeps on the generation word where the system can do that, else it returns:
        back in Python it would wait for the interpreter, which took milliseconds to let it in. A worker counts itself in before it
        looks again, and the caller closes the job before it counts the workers, so no worker can touch a job after its caller has
        left.
        """
        job, system = job_at(args.job, 0), system_at(args.system, 0)
        waited, seen = 0, args.seen
        while atomic_load(job.stopped_at) == 0:
            generation = atomic_load(job.generation_at)
            if generation % 2 == 0 or generation == seen:
                waited += 1
                spin_pause()
                if waited >= args.spins:
                    if system.syscall == 0:
                        break
                    # Counted in before the system compares the word: a caller opens its job first and counts sleepers then.
                    atomic_add(job.sleeping_at, 1)
                    system_call(system.syscall, system.futex, job.generation_at, WAIT, generation & 0xFFFFFFFF)
                    atomic_add(job.sleeping_at, -1)
                    waited = 0
                continue
            # Who comes too late does not enter: its caller would wait for it. What is read here may be of a later job already,
            # which then has another generation.
            if atomic_load(job.slots_at) > 0 and atomic_load(job.ended_at) < job.ranges:
                atomic_add(job.active_at, 1)
                if atomic_load(job.generation_at) == generation:
                    slot = atomic_add(job.slots_at, -1)
                    if slot > 0:
                        claim(job, slot, args.number)
                atomic_add(job.active_at, -1)
            seen = generation
            waited = 0
        put_int(args.result, seen)

    return {"lead": lead, "follow": follow}
