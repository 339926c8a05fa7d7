"""Fair timing: all participants take turns on the same task, under one clock, with the garbage collector off."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pullback.bench.peers.base import Clock, Prepared

MIN_ROUNDS = 5
MAX_ROUNDS = 50
WARM_UP_SECONDS = 0.1  # OpenMP's first calls were seen a thousand times slower than the later ones
SAMPLE_SECONDS = 0.002  # short ops are called several times in a row, so that a sample is at least this long
MAX_CALLS = 200
PAUSE_SECONDS = 0.01  # worker threads of the one before may still be spinning on our cores
# Ops below this get untimed calls before each sample, until one takes at most twice the best seen or the time is up: the
# others have emptied the caches, and threads that were put to sleep may be slow to wake.
REWARM_SECONDS = 0.02


@dataclass
class Turns:
    """A participant's samples (seconds per call), and why it stopped if it did."""

    prepared: Prepared
    calls: int = 1
    best: float = math.inf
    samples: list[float] = field(default_factory=list)
    spent: float = 0.0
    why: str = ""

    def finished(self, budget: float) -> bool:
        most = self.prepared.max_rounds or MAX_ROUNDS
        if self.why or len(self.samples) >= most:
            return True
        return len(self.samples) >= min(MIN_ROUNDS, most) and self.spent >= budget


@contextmanager
def garbage_collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def take_turns(
    participants: Mapping[str, Prepared],
    budget: float,
    clock: Clock = time.perf_counter,
    pause: Callable[[float], object] = time.sleep,
    warm_up: float = WARM_UP_SECONDS,
) -> dict[str, Turns]:
    """Time every participant for about `budget` seconds and at least five rounds, one sample each per round.

    Before that each is called for `warm_up` seconds. The order turns by one place each round, so that nobody always follows the
    same neighbour.
    """
    turns = {name: Turns(prepared) for name, prepared in participants.items()}
    with garbage_collector_off():
        for turn in turns.values():
            _attempt(turn, lambda t: _warm_up(t, clock, warm_up))
        order = list(turns.values())
        while not all(turn.finished(budget) for turn in order):
            for turn in order:
                if not turn.finished(budget):
                    pause(PAUSE_SECONDS)
                    _attempt(turn, lambda t: _sample(t, clock))
            order = order[1:] + order[:1]
    return turns


def _warm_up(turn: Turns, clock: Clock, least: float) -> None:
    """Call until the clock has run long enough, at least twice (a slow peer once), and see how many calls make a sample."""
    taken = [turn.prepared.seconds(1, clock)]
    while turn.prepared.max_rounds is None and len(taken) < MAX_CALLS and (len(taken) < 2 or sum(taken) < least):
        taken.append(turn.prepared.seconds(1, clock))
    turn.best = min(taken)
    turn.calls = min(MAX_CALLS, max(1, math.ceil(SAMPLE_SECONDS / max(turn.best, 1e-9))))


def _sample(turn: Turns, clock: Clock) -> None:
    warming = 0.0 if turn.best < REWARM_SECONDS else math.inf
    while warming < REWARM_SECONDS:
        seconds = turn.prepared.seconds(1, clock)
        warming = math.inf if seconds <= 2 * turn.best else warming + seconds
    seconds = turn.prepared.seconds(turn.calls, clock)
    turn.best = min(turn.best, seconds)
    turn.samples.append(seconds)
    turn.spent += seconds * turn.calls


def _attempt(turn: Turns, step: Callable[[Turns], None]) -> None:
    try:
        step(turn)
    except Exception as error:  # one participant that breaks off must not end the others' round
        turn.why = f"{error}" or type(error).__name__
