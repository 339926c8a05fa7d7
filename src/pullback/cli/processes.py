"""Work in several processes of Python, that ends with them: whoever waits can be interrupted at any moment."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

MOST_PROCESSES = 60  # Windows waits for no more

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(function: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Generator[Result, None, None]:
    """What a function of a module gives for each item, as it comes; in this process where one job is enough."""
    jobs = min(jobs, MOST_PROCESSES)
    if min(jobs, len(items)) <= 1:
        yield from map(function, items)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    # Fresh processes, not forks: this one may have threads (the progress bar has one).
    executor = ProcessPoolExecutor(min(jobs, len(items)), multiprocessing.get_context("spawn"), _leave_interrupts)
    try:
        with _interrupts_held():
            futures = [executor.submit(function, item) for item in items]
        for future in as_completed(futures):
            yield future.result()
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        children = multiprocessing.active_children()
        for child in children:  # amid work of seconds, for which nobody waits any more
            child.terminate()
        for child in children:
            child.join(1.0)
        raise
    executor.shutdown()


def _leave_interrupts() -> None:
    """In a child: Ctrl-C reaches the whole group, and it is for the parent to end its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Children that start inside the block do not hear Ctrl-C, from their first instruction on; this process does afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
