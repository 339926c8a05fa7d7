"""`pullback warmup`: compile the cpu kernels ahead, behind a progress bar, so that no later call has to."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pullback import registry, settings
from pullback.cli.console import progress, size_text
from pullback.rules import FLOAT_NAMES

EXAMPLES = """examples:
  pullback warmup                       all kernels, dtypes and winner rules (minutes, once for a version and a machine)
  pullback warmup --dtype float32       only what float32 arrays need
  pullback warmup --all                 also windows of more than 255 taps
  pullback warmup --prune               compile nothing; remove kernels of other versions, unused for 30 days
  pullback warmup --prune 0             the same, however recently they were used
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "warmup",
        help="compile the kernels ahead and keep them on disk",
        description="Compiles the cpu kernels into the cache folder (pullback info names it), several at a time. Exit status 1 "
        "if they cannot be kept there, 2 if there is nothing to compile with.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtype", action="append", choices=FLOAT_NAMES, help="only this dtype (may be repeated)")
    parser.add_argument("--all", action="store_true", help="also the kernels for windows of more than 255 taps")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="compile in N processes (default: the number of threads in force)"
    )
    parser.add_argument(
        "--prune", type=float, nargs="?", const=settings.UNUSED_DAYS, metavar="DAYS",
        help=f"instead of compiling, remove kernels of other versions and machines, unused for DAYS ({settings.UNUSED_DAYS})",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    why = registry.why_unavailable(registry.CPU)
    if why is not None:
        print(f"pullback warmup: {why}", file=sys.stderr)
        return 2
    if options.prune is not None:
        return _prune(options.prune)
    jobs = settings.get_num_threads() if options.jobs is None else options.jobs
    if jobs < 1:
        print(f"pullback warmup: --jobs is {jobs}; it must be at least 1", file=sys.stderr)
        return 2
    from pullback.cpu.engine import compiler, warmup

    folder = compiler.cache_folder()
    if not compiler.is_kept():
        print(f"pullback warmup: nothing can be kept in {folder}; set ${compiler.CACHE_VARIABLE}", file=sys.stderr)
        return 1
    dtypes = options.dtype or FLOAT_NAMES
    missing = [name for name in dtypes if warmup.dtype_of(name) is None]
    if missing:
        print(f"{', '.join(missing)} left out: ml_dtypes is not installed", file=sys.stderr)
    tasks = warmup.tasks(dtypes, wide=options.all)
    compiled = 0
    with progress("compiling", len(tasks)) as tick, closing(_results(tasks, jobs)) as results:
        for label, count in results:
            compiled += count
            tick(label)
    print(f"{compiled} kernels compiled; {len(list(folder.glob('*.o')))} are in {folder}")
    return 0


def _prune(days: float) -> int:
    from pullback.cpu.engine import cache_folders, compiler

    if not days >= 0:
        print(f"pullback warmup: --prune is {days:g}; it must be a number of days, 0 or more", file=sys.stderr)
        return 2
    removed = list(cache_folders.prune(days))
    room = size_text(sum(folder.size_bytes for folder in removed))
    print(f"{len(removed)} folders of other versions and machines ({room}) removed from {compiler.cache_directory()}")
    return 0


def _results(tasks: Sequence[Any], jobs: int) -> Generator[tuple[str, int], None, None]:
    """(label, kernels compiled) of each task as it ends."""
    from pullback.cpu.engine import warmup

    if min(jobs, len(tasks)) <= 1:
        for task in tasks:
            yield str(task), warmup.run(task)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    # Fresh processes, not forks: this one may have threads (the progress bar has one).
    executor = ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn"), _leave_interrupts)
    try:
        with _interrupts_held():
            futures = {executor.submit(warmup.run, task): str(task) for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        children = multiprocessing.active_children()
        for child in children:  # amid compilations of seconds, for which nobody waits any more
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
