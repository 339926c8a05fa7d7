"""The records of the engine's own kernels: the thread pool's job, what the system offers, affinity masks, the roofs."""

from __future__ import annotations

from pullback.cpu.engine.records import WORD, Record
from pullback.cpu.engine.sizes import LINE


def _rest_of_line(line: int, used: int) -> str:
    return " ".join(f"unused_{line}_{word}" for word in range(used, LINE // WORD))


class Job(Record):
    """The one job of a pool. An odd generation is an open job; `slots`: how many more threads may join it.

    Its pieces are `ranges` ranges of `each` (the last ones may be short), with a ticket each, at `tickets`, on a line of its own. A
    thread takes those of its own range first, the same in every job: there lies what it has made itself, in the caches near it, and
    no thread writes beside another, nor prefetches what that one writes. Then it helps with the others. `ended`: ranges of which no
    piece is left. number_function: of a team, the address of the function that tells a thread its number.

    A cache line each: what waiting workers look at, what they change as they come and go, and the job itself. On one line, every
    change would take it from all who wait.
    """

    changes = True
    ints = (
        f"generation stopped sleeping busy {_rest_of_line(0, 4)} "
        f"active slots number_function {_rest_of_line(1, 3)} ended {_rest_of_line(2, 1)} "
        f"pieces function arguments scratch stride ranges each tickets"
    )


class SequenceJob(Job):
    """A job of a sequence (sequence.py); `flag`: the address of a word that the job may set, after which no other follows; or 0."""

    ints = "flag"


class System(Record):
    """What the operating system offers (system.py): addresses of functions and numbers of calls; 0 where it has no such thing."""

    ints = "let_others_run syscall futex get_mask set_mask find_cpu clock"


class Masks(Record):
    """The caller's CPU and when its affinity mask was looked at; behind that three areas, whose places follow."""

    changes = True
    ints = "cpu workers looked_seconds looked_nanoseconds seconds nanoseconds"


MASK_BYTES = 1024
SEEN_MASK = Masks.BYTES  # as the caller's mask was when it was looked at
NEW_MASK = SEEN_MASK + MASK_BYTES  # as it is now, and what workers get
WORKER_THREADS = NEW_MASK + MASK_BYTES  # the system's number of each worker
FIRST_WORKER = WORKER_THREADS // WORD  # as a place in an array of words


class Lead(Record):
    """Of the caller: the pool's blocks (no job: it runs alone), and the job. No slots: the pool ends."""

    ints = "job system masks spins tickets function arguments pieces scratch stride slots"


class Follow(Record):
    """Of a worker; `number`: from 1 on. `result` is where it leaves the generation that it has seen last."""

    ints = "job system spins number result seen"


class Transfer(Record):
    """Of copying and filling memory in blocks, each so many times; of filling, `source` is one line."""

    ints = "source target block size stream rounds"


class MultiplyAdd(Record):
    """Of a loop of nothing but multiply-adds."""

    ints = "result"


ROUNDS = 4096  # of that loop, a piece
CHAINS = 12  # of its sums, enough to cover the latency of two multiply-adds a cycle
